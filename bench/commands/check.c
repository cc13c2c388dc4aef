/* reshard check: files of tensors against the digests in them. */
#include "bench/cli/options.h"
#include "bench/commands/commands.h"

#include <reshard/file.h>

#include <stdlib.h>
#include <string.h>

typedef struct findings {
  bool quiet; /* standard output is for the JSON */
  rs_json list;
  char *first; /* text of the first that is wrong; NULL: none */
  cli_stage stage;
} findings;

static void take_finding(void *user, int wrong, const char *text) {
  findings *f = user;
  if (wrong && f->first == NULL)
    f->first = cli_strdup(text);
  cli_progress_clear();
  if (!f->quiet)
    printf("%s %s\n", wrong ? "wrong        " : "unchecked    ", text);
  rs_json_open(&f->list, NULL, '{');
  rs_json_bool(&f->list, "wrong", wrong);
  rs_json_string(&f->list, "text", text);
  rs_json_close(&f->list, '}');
}

static int show_progress(void *user, const char *stage, int64_t done, int64_t all) {
  cli_show_stage(&((findings *)user)->stage, stage, done, all);
  return 0;
}

static void print_report(const reshard_check_report *r) {
  char a[CLI_BYTES_TEXT];
  printf("checked       %s of %lld file%s", cli_bytes_text(a, (double)r->checked_bytes), (long long)r->files,
         cli_plural(r->files));
  if (r->unchecked_files > 0)
    printf(", of which %lld ha%s no digests", (long long)r->unchecked_files, r->unchecked_files == 1 ? "s" : "ve");
  if (r->checked_bytes > 0)
    printf(", %s", cli_from_device(r->from_device));
  printf("\n");
}

static void write_report(findings *f, const reshard_check_report *r, const char *path) {
  rs_json *j = &f->list;
  rs_json_close(j, ']');
  rs_json_int(j, "files", r->files);
  rs_json_int(j, "unchecked_files", r->unchecked_files);
  rs_json_int(j, "checked_bytes", r->checked_bytes);
  rs_json_int(j, "wrong", r->wrong);
  rs_json_bool(j, "from_device", r->from_device);
  rs_json_close(j, '}');
  cli_write_json(path, j);
}

int command_check(int argc, char **argv) {
  cli_options o;
  cli_read_options(argc, argv, COMMAND_CHECK,
                   "usage: reshard check DIR|FILE... [OPTION]...\n\n"
                   "Reads files of tensors and compares them with the digests in them, past the page cache where the "
                   "system allows.\n"
                   "reshard writes a digest for each MiB of a tensor's box, and one for the header, into .safetensors "
                   "files.\n"
                   "What is wrong is named: file, tensor, box, bytes; and which files have no digests (.npy has no "
                   "place for them).\n"
                   "DIR   a directory of .safetensors files: whole tensors, or shards, of which none may be missing\n"
                   "FILE  a .safetensors file; it may be one of a set of shards\n\n"
                   "examples:\n"
                   "  reshard check shards                            a checkpoint\n"
                   "  reshard check a.safetensors b.safetensors       files\n"
                   "  reshard check shards --json - | jq .findings    for scripts\n",
                   &o);
  if (o.json != NULL)
    cli_check_file(o.json);
  findings f = {.list.text.grows = true, .quiet = o.json != NULL && strcmp(o.json, "-") == 0};
  rs_json_open(&f.list, NULL, '{');
  rs_json_int(&f.list, "version", 1);
  rs_json_open(&f.list, "findings", '[');
  reshard_check_options options = {.size = RESHARD_CHECK_OPTIONS_INIT,
                                   .threads = (int)o.threads,
                                   .found = take_finding,
                                   .progress = show_progress,
                                   .user = &f};
  reshard_check_report all = {.from_device = 1};
  cli_raise_file_limit();
  for (int i = 0; i < o.npaths; i++) {
    reshard_check_report r;
    reshard_status status = reshard_checkpoint_check(o.paths[i], &options, &r);
    cli_progress_clear();
    if (status != RESHARD_SUCCESS && status != RESHARD_ERROR_CORRUPT)
      cli_fail(status, "%s", reshard_last_error());
    all.files += r.files;
    all.unchecked_files += r.unchecked_files;
    all.checked_bytes += r.checked_bytes;
    all.wrong += r.wrong;
    all.from_device &= r.from_device;
  }
  if (o.json != NULL)
    write_report(&f, &all, o.json);
  else
    free(f.list.text.at);
  if (!f.quiet)
    print_report(&all);
  if (f.first == NULL)
    return EXIT_DONE;
  if (f.quiet)
    cli_error("%lld wrong: %s", (long long)all.wrong, f.first);
  else
    cli_error("%lld wrong", (long long)all.wrong); /* they are listed */
  free(f.first);
  return EXIT_FAILED;
}
