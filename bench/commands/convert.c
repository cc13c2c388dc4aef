/* reshard convert: makes another checkpoint of one. The library's reshard_convert does the work; the program adds
 * options, limits and signals of the process, progress, and the report.
 *
 * A signal that ends programs sets a flag, which the next call of the progress function returns. The library then
 * removes its output, and the program dies by the same signal, so that a waiting shell sees it. A second signal ends
 * the program at once. */
#define _GNU_SOURCE
#include "bench/cli/options.h"
#include "bench/cli/rule_uses.h"
#include "bench/cli/shipped.h"
#include "bench/commands/commands.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static volatile sig_atomic_t caught; /* the signal that came; 0: none */

static void catch_signal(int number) {
  if (caught != 0) {
    signal(number, SIG_DFL);
    raise(number); /* held back until this handler returns */
  }
  caught = number;
}

/* Restores the default actions, so that a signal ends the program at once; raises one that came before. */
static void release_signals(void) {
  cli_on_signals(SIG_DFL, 0);
  if (caught != 0) {
    fflush(stdout);
    raise(caught);
  }
}

/* A conversion under way. */
typedef struct convert_run {
  cli_stage stage;
  workload_layouts src, dst;
  rule_uses uses;
} convert_run;

static int show_progress(void *user, const char *stage, int64_t done, int64_t all) {
  cli_show_stage(&((convert_run *)user)->stage, stage, done, all);
  return caught;
}

static void show_note(void *user, const char *text) {
  (void)user;
  cli_note(text);
}

static void take_models(void *user, reshard_model source, reshard_model target) {
  convert_run *run = user;
  rule_uses_add(&run->uses, "src", &run->src, source);
  rule_uses_add(&run->uses, "dst", &run->dst, target);
}

/* Checks the path of the report before any work: the report is written last, and the path may be wrong, or IN or OUT.
 * */
static void check_report_path(const cli_options *o) {
  struct stat in, json;
  if (o->json == NULL)
    return;
  cli_check_file(o->json);
  if (strcmp(o->json, o->out) == 0 ||
      (stat(o->in, &in) == 0 && stat(o->json, &json) == 0 && in.st_dev == json.st_dev && in.st_ino == json.st_ino))
    cli_exit(EXIT_USAGE, "--json %s: this is IN or OUT", o->json);
}

static void write_report(const reshard_convert_report *r, const rule_uses *uses, const char *path) {
  rs_json j = {.text.grows = true};
  rs_json_open(&j, NULL, '{');
  rs_json_int(&j, "version", 1);
  rs_json_open(&j, "source", '{');
  rs_json_string(&j, "format", reshard_file_format_string(r->source.format));
  rs_json_ints(&j, {"tensors", r->source.tensors}, {"files", r->source.files}, {"ranks", r->source.world},
               {"bytes", r->source.bytes}, {"stored_bytes", r->source.stored_bytes},
               {"checked_bytes", r->checked_bytes}, {"leaves", r->source.leaves}, {"left_out", r->source.left_out},
               {"left_out_tensors", r->source.left_out_tensors}, {"left_out_bytes", r->source.left_out_bytes},
               {"unlisted", r->source.unlisted});
  rs_json_bool(&j, "described", r->source.format != RESHARD_FORMAT_SHARDS || r->source.described);
  rs_json_close(&j, '}');
  rs_json_open(&j, "target", '{');
  rs_json_string(&j, "format", reshard_file_format_string(r->format));
  rs_json_ints(&j, {"tensors", r->tensors}, {"files", r->files}, {"ranks", r->world}, {"stored_bytes", r->bytes},
               {"leaves", r->leaves}, {"whole_arrays", r->whole_arrays}, {"gapped", r->gapped}, {"haloed", r->haloed},
               {"digests", r->digests}, {"converted", r->converted}, {"unconverted", r->unconverted},
               {"scaled", r->scaled});
  if (r->scalars > 0)
    rs_json_int(&j, "scalars", r->scalars);
  rs_json_bool(&j, "from_device", r->from_device);
  rs_json_close(&j, '}');
  rule_uses_json(uses, &j);
  if (r->wire_bytes >= 0)
    rs_json_int(&j, "wire_bytes", r->wire_bytes);
  else
    rs_json_null(&j, "wire_bytes");
  rs_json_real(&j, "open_us", 1e6 * r->open_seconds);
  rs_json_real(&j, "reserve_us", 1e6 * r->reserve_seconds);
  rs_json_real(&j, "move_us", 1e6 * r->move_seconds);
  rs_json_real(&j, "sync_us", 1e6 * r->sync_seconds);
  rs_json_real(&j, "verify_us", 1e6 * r->verify_seconds);
  rs_json_close(&j, '}');
  cli_write_json(path, &j);
}

static void print_time(const char *label, double seconds, int64_t bytes) {
  printf("%-13s %.1f ms", label, 1e3 * seconds);
  if (bytes > 0 && seconds > 0)
    printf(", %.2f GB/s", 1e-9 * (double)bytes / seconds);
}

/* Prints which parts of the result cannot be read back, or not by everyone. */
static void print_warnings(const reshard_convert_report *r) {
  if (r->source.format == RESHARD_FORMAT_SHARDS && !r->source.described)
    printf(
        "shapes        inferred from the offsets: the source does not state them, so that a shard missing at the end "
        "would not show\n");
  int64_t left_out = r->source.left_out + r->source.leaves - r->leaves;
  if (r->leaves > 0)
    printf("state.json    %lld lea%s of the source that %s no tensor%s: numbers and texts\n", (long long)r->leaves,
           r->leaves == 1 ? "f" : "ves", r->leaves == 1 ? "is" : "are", cli_plural(r->leaves));
  if (left_out > 0)
    printf("left out      %lld lea%s of the source that %s no tensor%s%s\n", (long long)left_out,
           left_out == 1 ? "f" : "ves", left_out == 1 ? "is" : "are", cli_plural(left_out),
           left_out > r->source.left_out ? ": a directory of shards would have its numbers and texts" : "");
  if (r->source.left_out_tensors > 0)
    printf("left out      %lld tensor%s, %lld bytes: of dtypes or below classes that are not read\n",
           (long long)r->source.left_out_tensors, cli_plural(r->source.left_out_tensors),
           (long long)r->source.left_out_bytes);
  if (r->source.unlisted > 0)
    printf("unlisted      %lld tensor%s that the index gives to another file, or does not list: left out\n",
           (long long)r->source.unlisted, cli_plural(r->source.unlisted));
  if (r->gapped > 0)
    printf("gaps          %lld tensor%s not covered by the target's boxes: this cannot be read back\n",
           (long long)r->gapped, r->gapped == 1 ? " is" : "s are");
  if (r->haloed > 0)
    printf("halos         %lld tensor%s boxes that overlap: this cannot be read back\n", (long long)r->haloed,
           r->haloed == 1 ? " has" : "s have");
  if (r->whole_arrays > 0)
    printf("whole arrays  %lld of more than 64 boxes: reshard alone can read %s\n", (long long)r->whole_arrays,
           r->whole_arrays == 1 ? "it" : "them");
}

static void print_report(const cli_options *o, const reshard_convert_report *r, const rule_uses *uses) {
  char a[CLI_BYTES_TEXT];
  printf("source        %s, %lld file%s", reshard_file_format_string(r->source.format), (long long)r->source.files,
         cli_plural(r->source.files));
  if (r->source.format == RESHARD_FORMAT_SHARDS || r->source.format == RESHARD_FORMAT_DISTCP)
    printf(" of %lld rank%s", (long long)r->source.world, cli_plural(r->source.world));
  printf(": %lld tensor%s, %s\n", (long long)r->source.tensors, cli_plural(r->source.tensors),
         cli_bytes_text(a, (double)r->source.bytes));
  printf("target        %s, %lld file%s", reshard_file_format_string(r->format), (long long)r->files,
         cli_plural(r->files));
  if (r->format == RESHARD_FORMAT_SHARDS)
    printf(" of %lld rank%s", (long long)r->world, cli_plural(r->world));
  printf(": %lld tensor%s, %s written\n", (long long)r->tensors, cli_plural(r->tensors),
         cli_bytes_text(a, (double)r->bytes));
  if (r->wire_bytes >= 0) /* else it would have taken long to count */
    printf("between ranks %s would travel, were the data in memory\n", cli_bytes_text(a, (double)r->wire_bytes));
  if (r->converted > 0 || r->unconverted > 0)
    printf("converted     %lld tensor%s\n", (long long)r->converted, cli_plural(r->converted));
  if (r->unconverted > 0)
    printf("unconverted   %lld tensor%s, as they were: without a cast, or FP8 and its scales\n",
           (long long)r->unconverted, cli_plural(r->unconverted));
  if (r->scaled > 0)
    printf("scales        %lld tensor%s of FP8, each beside its scales: engines want a quantization_config in "
           "config.json\n",
           (long long)r->scaled, cli_plural(r->scaled));
  if (r->scalars > 0)
    printf("without dims  %lld tensor%s, whole on each rank of %s layout\n", (long long)r->scalars,
           cli_plural(r->scalars), r->scalars == 1 ? "its" : "their");
  rule_uses_print(uses);
  print_warnings(r);
  if (r->digests == 0 && r->bytes > 0)
    printf("digests       none%s\n", r->format == RESHARD_FORMAT_NPY ? ": .npy has no place for them"
                                     : o->no_digests                 ? ""
                                                                     : ": built without xxhash");
  printf("before        headers %.1f ms, reserving space %.1f ms\n", 1e3 * r->open_seconds, 1e3 * r->reserve_seconds);
  print_time("moving", r->move_seconds, r->bytes);
  printf("\n");
  print_time("syncing", r->sync_seconds, 0);
  printf("\n");
  if (o->verify) {
    print_time("comparing", r->verify_seconds, r->bytes);
    printf(", every byte is right, %s\n", cli_from_device(r->from_device));
    printf("checked       %s of the source by its digests%s\n", cli_bytes_text(a, (double)r->checked_bytes),
           r->checked_bytes > 0 || r->bytes == 0 ? ""
           : cli_has_digests()                   ? ": it has none"
                                                 : ": built without xxhash");
  }
}

/* Fills the library's options; the run keeps the layouts. */
static reshard_convert_options make_options(const cli_options *o, convert_run *run) {
  workload_layouts *src = &run->src, *dst = &run->dst;
  reshard_convert_options options = {.size = RESHARD_CONVERT_OPTIONS_INIT,
                                     .world = o->ranks,
                                     .force = o->force,
                                     .dedup = o->dedup,
                                     .verify = o->verify,
                                     .index_bytes = o->index_bytes,
                                     .no_digests = o->no_digests,
                                     .leave_out = o->leave_out,
                                     .threads = (int)o->threads};
  workload_mesh mesh;
  workload_read_mesh(o->mesh, &mesh);
  if (o->src != NULL)
    workload_read_layouts("--src", o->src, &mesh, src);
  if (o->dst != NULL)
    workload_read_layouts("--dst", o->dst, &mesh, dst);
  else if (o->index_bytes == 0 && !rs_ends(o->out, ".npy") && !rs_ends(o->out, ".safetensors"))
    cli_exit(EXIT_USAGE,
             "--dst is missing: a layout such as chunk(0), or @FILE of rules, for the shards in '%s' (one whole file "
             "ends in .safetensors or .npy)",
             o->out);
  workload_check_mesh(&mesh);
  options.src = src->text;
  options.src_rules = src->rules;
  options.dst = dst->text;
  options.dst_rules = dst->rules;
  if (o->source_dtype != NULL)
    CLI_TRY("--source-dtype: ", reshard_dtype_parse(o->source_dtype, &options.source_dtype));
  if (o->dtype != NULL && strchr(o->dtype, '/') != NULL)
    CLI_TRY("--dtype: ", reshard_dtype_parse_blocks(o->dtype, &options.dtype, &options.blocks));
  else if (o->dtype != NULL)
    options.dtype = workload_dtype("--dtype", o->dtype, NULL);
  if (o->map != NULL) {
    char *path = shipped_find(&shipped_maps, "--map", o->map);
    CLI_TRY("--map: ", reshard_map_load(path, &options.map));
    free(path);
  }
  return options;
}

int command_convert(int argc, char **argv) {
  cli_options o;
  cli_read_options(
      argc, argv, COMMAND_CONVERT,
      "usage: reshard convert IN OUT [--src L] [--dst L] [OPTION]...\n\n"
      "Cuts, reshards, joins and fuses files of tensors.\n"
      "IN   an .npy file, a .safetensors file, or a directory of .safetensors files: whole tensors, or "
      "shards, which tell\n"
      "     their own layout; a directory of .distcp files of PyTorch, or a .pt file of torch.save; whole tensors are\n"
      "     first held by --src (default rank(0)); files of an engine's ranks (model-rank-R-part-P.safetensors) are "
      "cut as\n"
      "     --src says, --ranks is their number then\n"
      "OUT  one whole file where it ends in .npy or .safetensors, else a directory: shards as --dst says, "
      "or with --index\n"
      "     whole tensors. It appears complete or not at all.\n"
      "L    a layout string, chunk(0)  mesh(dp=2,tp=4;S0,S1)  flat(0-7)  ..., or @FILE of rules 'PATTERN "
      "LAYOUT'\n"
      "     (by name: @fsdp  @tp  @fsdp-tp  ...); ranks of OUT: --ranks, else what --dst names, else IN's\n\n"
      "examples:\n"
      "  reshard convert model.safetensors shards --dst 'mesh(fsdp=8;S0)'       cut for 8 ranks\n"
      "  reshard convert shards shards-tp --dst @tp --ranks 8 --verify          to another layout\n"
      "  reshard convert shards-tp joined.safetensors                           joined\n"
      "  reshard convert shards-tp hub --index 5G                               joined, in files of 5 GiB\n"
      "  reshard convert model.safetensors fused.safetensors --map llama-fuse   q, k, v to qkv, ...\n"
      "  reshard convert model.safetensors bf16.safetensors --dtype bf16        converted on the way\n"
      "  reshard convert step-1000 from-torch.safetensors                       .distcp files of PyTorch, joined\n"
      "  reshard convert weights.npy rows --dst 'chunk(0)' --ranks 4            a numpy array\n",
      &o);
  convert_run run = {0};
  reshard_convert_report report = {0};
  check_report_path(&o);
  reshard_convert_options options = make_options(&o, &run);
  options.progress = show_progress;
  options.models = take_models;
  options.user = &run;
  options.note = show_note;
  cli_raise_file_limit();
  cli_on_signals(catch_signal, SA_RESTART);
  signal(SIGXFSZ, SIG_IGN); /* a write past the file size limit fails with EFBIG instead */
  reshard_status status = reshard_convert(o.in, o.out, &options, &report);
  cli_progress_clear();
  reshard_map_free(options.map);
  workload_free_layouts(&run.src);
  workload_free_layouts(&run.dst);
  if (status == RESHARD_ERROR_CANCELLED && caught != 0) {
    cli_error("%s: '%s' is as it was", strsignal(caught), o.out);
    release_signals();
  }
  if (status != RESHARD_SUCCESS)
    cli_fail(status, "%s", reshard_last_error());
  cli_done("'%s' is in place", o.out);
  if (o.json != NULL)
    write_report(&report, &run.uses, o.json);
  if (o.json == NULL || strcmp(o.json, "-") != 0)
    print_report(&o, &report, &run.uses);
  rule_uses_warn(&run.uses);
  rule_uses_free(&run.uses);
  release_signals();
  return EXIT_DONE;
}
