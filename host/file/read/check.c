/* Checks a checkpoint by its digests: a directory with all that opening looks at, or single files, of which each may be
 * a shard of a set. Every file is read past the page cache where the system allows. */
#include "base/text.h"
#include "device/cpu/cpu.h"
#include "device/cpu/threads.h"
#include "device/environment.h"
#include "file/format/safetensors.h"
#include "file/ground/digest.h"
#include "file/ground/file.h"
#include "file/read/checkpoint.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct checker {
  const reshard_check_options *options;
  reshard_check_report report;
  rs_threads *pool;
  int64_t bytes; /* of all files */
  const rs_file *file;
  pthread_mutex_t lock; /* of what follows, and of the caller's functions */
  int64_t done;         /* bytes of files before this one, and pieces of it */
  int64_t next_report_ns;
  reshard_status status; /* the first failure */
  char text[2 * RS_WHERE + RS_BOX_TEXT];
} checker;

static bool goes_on(reshard_status status) { return status == RESHARD_SUCCESS || status == RESHARD_ERROR_CORRUPT; }

/* Keeps the first failure; one that ends the check takes the place of a wrong piece. */
static void keep_first(checker *c, reshard_status status) {
  if (status == RESHARD_SUCCESS || !goes_on(c->status) || (c->status != RESHARD_SUCCESS && goes_on(status)))
    return;
  c->status = status;
  strncpy(c->text, reshard_last_error(), sizeof c->text - 1);
}

/* With the lock held. */
static void take_finding(checker *c, reshard_status status) {
  keep_first(c, status);
  if (status != RESHARD_ERROR_CORRUPT)
    return;
  c->report.wrong++;
  if (c->options->found != NULL)
    c->options->found(c->options->user, 1, reshard_last_error());
}

static void show_progress(checker *c) {
  int64_t now = rs_now_ns();
  if (c->options->progress == NULL || now <= c->next_report_ns)
    return;
  c->next_report_ns = now + 50000000;
  if (c->options->progress(c->options->user, "checking", c->done, c->bytes) != 0)
    keep_first(c, rs_error(RESHARD_ERROR_CANCELLED, "cancelled after %lld of %lld bytes", (long long)c->done,
                           (long long)c->bytes));
}

/* A wrong piece does not end the check; what cannot be read does. */
static void check_pieces(const void *user, rs_claim *claim) {
  checker *c = *(checker *const *)user;
  for (int64_t p; (p = rs_threads_next(claim)) >= 0;) {
    pthread_mutex_lock(&c->lock);
    bool go = goes_on(c->status);
    pthread_mutex_unlock(&c->lock);
    if (!go)
      continue;
    reshard_status status = rs_digests_check(c->file, p);
    pthread_mutex_lock(&c->lock);
    take_finding(c, status);
    c->done += RS_DIGEST_PIECE;
    if (claim->thread == 0)
      show_progress(c);
    pthread_mutex_unlock(&c->lock);
  }
}

static void take_unchecked(checker *c, const char *where) {
  char text[RS_WHERE + 32];
  c->report.unchecked_files++;
  snprintf(text, sizeof text, "%s: has no digests", where);
  if (c->options->found != NULL)
    c->options->found(c->options->user, 0, text);
}

/* state.json, where the directory has it. */
static reshard_status check_leaves(checker *c, const char *directory) {
  char where[RS_WHERE], *text = NULL;
  rs_path_text path = {0};
  bool sealed = false;
  RS_TRY(rs_path_join(directory, RS_STATE_JSON, &path));
  rs_where(where, "file", path.at);
  reshard_status status = RESHARD_SUCCESS;
  if (access(path.at, F_OK) == 0) {
    rs_file file = {.fd = -1};
    status = rs_file_open(where, path.at, 1, &file);
    file.dropped = status == RESHARD_SUCCESS && rs_file_drop_pages(&file);
    if (status == RESHARD_SUCCESS && file.size > RS_TEXT_LIMIT)
      status = rs_error(RESHARD_ERROR_CORRUPT, "%s: longer than %lld bytes", where, (long long)RS_TEXT_LIMIT);
    RS_THEN(status, rs_alloc(&text, file.size + 1, 1));
    RS_THEN(status, rs_file_read_plain(&file, 0, text, file.size));
    RS_THEN(status, rs_digest_check_seal(where, text, file.size, &sealed));
    c->report.files++;
    c->report.checked_bytes += status == RESHARD_SUCCESS && sealed ? file.size : 0;
    c->report.from_device &= file.dropped || !sealed;
    rs_file_close(&file);
    if (status != RESHARD_SUCCESS)
      take_finding(c, status);
    else if (!sealed)
      take_unchecked(c, where);
  }
  free(text);
  free(path.at);
  return status;
}

static void check_file(checker *c, const rs_file *file) {
  char where[RS_WHERE];
  int64_t before = c->done;
  c->report.files++;
  if (file->digests == NULL) {
    take_unchecked(c, rs_where(where, "file", file->path));
  } else {
    checker *shared = c;
    c->report.from_device &= file->dropped && rs_file_drop_pages(file);
    c->file = file;
    rs_threads_run(c->pool, file->digests->pieces.n, check_pieces, &shared);
    c->report.checked_bytes += atomic_load(&file->digests->checked) + file->digests->header;
  }
  c->done = before + file->size;
}

/* A single file: its header, and its digests if it has any. */
static reshard_status open_single(const char *path, rs_file *file) {
  char where[RS_WHERE], first[9] = {0};
  rs_safetensors header = {0};
  rs_where(where, "file", path);
  RS_TRY(rs_file_open(where, path, 1, file));
  file->dropped = rs_file_drop_pages(file);
  reshard_status status = rs_file_read_plain(file, 0, first, rs_min(file->size, sizeof first));
  if (status == RESHARD_SUCCESS && (first[8] == '{' || rs_ends(path, ".safetensors"))) {
    status = rs_safetensors_read(where, file, &header);
    if (status == RESHARD_SUCCESS && header.sharding != NULL)
      status = rs_safetensors_read_sharding(where, &header);
    RS_THEN(status, rs_safetensors_read_digests(where, &header, file));
    rs_safetensors_free(&header);
  }
  if (status != RESHARD_SUCCESS)
    rs_file_close(file);
  return status;
}

/* A malformed file that is there was not written so. */
static reshard_status opened(reshard_status status) {
  return status == RESHARD_ERROR_INVALID ? RESHARD_ERROR_CORRUPT : status;
}

static reshard_status check_path(checker *c, const char *path) {
  struct stat info;
  char where[RS_WHERE];
  rs_where(where, "checkpoint", path);
  if (stat(path, &info) != 0)
    return rs_file_error(where, errno);
  RS_TRY(rs_temporary_refuse(where, path));
  reshard_checkpoint directory = NULL;
  rs_file single;
  bool is_directory = S_ISDIR(info.st_mode), is_single = !is_directory && !rs_ends(path, ".json");
  reshard_status status = opened(
      !is_single ? rs_checkpoint_open(path, &(rs_checkpoint_options){.gaps_allowed = true, .check = true}, &directory)
                 : open_single(path, &single));
  RS_TRY_OR(status, take_finding(c, status));
  const rs_file *files = !is_single ? directory->store.files.at : &single;
  int64_t n = !is_single ? directory->store.files.n : 1;
  for (int64_t f = 0; f < n; f++)
    c->bytes += files[f].size;
  for (int64_t f = 0; f < n && goes_on(c->status); f++)
    check_file(c, &files[f]);
  c->report.from_device &= c->report.unchecked_files < n;
  if (is_directory && goes_on(c->status))
    keep_first(c, check_leaves(c, path));
  if (is_single)
    rs_file_close(&single);
  reshard_checkpoint_close(directory);
  return c->status;
}

reshard_status reshard_checkpoint_check(const char *path, const reshard_check_options *options,
                                        reshard_check_report *report) {
  const reshard_check_options none = RESHARD_CHECK_OPTIONS_DEFAULTS;
  checker c = {.options = options != NULL ? options : &none, .report = {.from_device = 1}};
  if (path == NULL)
    return rs_error_null("reshard_checkpoint_check", "path");
  if (c.options->size != sizeof *options)
    return rs_error(RESHARD_ERROR_INVALID, "size field %zu, this library's reshard_check_options has %zu",
                    c.options->size, sizeof *options);
  int threads = c.options->threads;
  reshard_isa isa = RESHARD_ISA_AUTO;
  RS_TRY(rs_environment_cpu(&threads, &isa));
  RS_TRY(rs_threads_create(threads > 0 ? threads : rs_device_cpu_cores(), &c.pool));
  pthread_mutex_init(&c.lock, NULL);
  reshard_status status = check_path(&c, path);
  pthread_mutex_destroy(&c.lock);
  rs_threads_destroy(c.pool);
  if (c.status != RESHARD_SUCCESS)
    rs_error_set(c.text);
  if (report != NULL && goes_on(status))
    *report = c.report;
  return status;
}
