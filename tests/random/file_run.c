/* One case: the source is written naively, the library converts it, and the target is looked at from both sides. */
#include "base/base.h"
#include "file/map/line.h"
#include "file/move/move.h"
#include "random/file_case.h"
#include "support/oracles/store.h"

#ifdef RS_HAVE_JANSSON

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *place_path(const char *directory, const char *name, const char *suffix) {
  rs_text text = {0};
  cli_add(&text, "%s/%s%s", directory, name, suffix);
  return text.at;
}

static void remove_all(const char *path) {
  DIR *open = opendir(path);
  if (open == NULL) {
    unlink(path);
    return;
  }
  for (struct dirent *entry; (entry = readdir(open)) != NULL;)
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
      char *name = place_path(path, entry->d_name, "");
      remove_all(name);
      free(name);
    }
  closedir(open);
  rmdir(path);
}

/* Entries of a directory but . and .. */
static int64_t count_entries(const char *path) {
  int64_t n = -2;
  DIR *open = opendir(path);
  while (open != NULL && readdir(open) != NULL)
    n++;
  if (open != NULL)
    closedir(open);
  return n;
}

static bool failed_step(rs_text *why, const char *call) {
  cli_add(why, "%s: %s", call, reshard_last_error());
  return false;
}

static bool same_number(rs_text *why, const char *what, int64_t is, int64_t should) {
  if (is != should)
    cli_add(why, "the report's %s is %lld, should be %lld", what, (long long)is, (long long)should);
  return is == should;
}

/* --- The report ---------------------------------------------------------------------------------------- */

/* Bytes that would travel: element by element, for a source of whole tensors without a map. */
static int64_t count_wire(const file_case *c) {
  oracle_counts counts = {{0}, {0}, {0}};
  int64_t bytes = 0;
  for (int64_t i = 0; i < c->src.n; i++) {
    const naive_tensor *t = &c->src.at[i];
    oracle_layout first = {.kind = RESHARD_LAYOUT_SINGLE, .ndim = t->ndim, .world = 1, .nranks = 1};
    oracle_buffers from, to;
    oracle_region whole = {{0}, {0}, {0}, {0}, {0}};
    memcpy(first.shape, t->shape, sizeof first.shape);
    memcpy(whole.src_extent, t->shape, sizeof whole.src_extent);
    memcpy(whole.dst_extent, t->shape, sizeof whole.dst_extent);
    for (int d = 0; d < t->ndim; d++)
      whole.permutation[d] = d;
    const oracle_layout *what = c->from != NULL ? &c->from[i].what : &first;
    oracle_evaluate(what, &from);
    oracle_evaluate(&c->to[i].what, &to);
    int64_t width =
        rs_min((int64_t)reshard_dtype_size(t->dtype), (int64_t)reshard_dtype_size(c->dst.at[i].dtype)); /* travels */
    oracle_reshard(what, &from, &c->to[i].what, &to, &whole, width, &counts);
    oracle_buffers_free(&from, what->world);
    oracle_buffers_free(&to, c->to[i].what.world);
  }
  for (int r = 0; r < ORACLE_WORLD; r++)
    bytes += counts.lacked[r];
  return bytes;
}

static bool check_report(const file_case *c, const char *out, const reshard_convert_report *report, file_totals *totals,
                         rs_text *why) {
  static const reshard_file_format formats[TARGETS] = {RESHARD_FORMAT_NPY, RESHARD_FORMAT_SAFETENSORS,
                                                       RESHARD_FORMAT_WHOLE, RESHARD_FORMAT_SHARDS,
                                                       RESHARD_FORMAT_SHARDS};
  static const reshard_file_format sources[SOURCES] = {
      RESHARD_FORMAT_NPY,   RESHARD_FORMAT_NPY,    RESHARD_FORMAT_SAFETENSORS, RESHARD_FORMAT_WHOLE,
      RESHARD_FORMAT_WHOLE, RESHARD_FORMAT_SHARDS, RESHARD_FORMAT_SHARDS};
  int64_t bytes = 0, whole_arrays = 0, gapped = 0, haloed = 0, source_bytes = 0, converted = 0, unconverted = 0;
  bool directory = c->out >= TO_INDEX, shards = c->out >= TO_SHARDS;
  for (int64_t i = 0; i < c->src.n; i++)
    source_bytes += c->src.at[i].n * (int64_t)reshard_dtype_size(c->src.at[i].dtype);
  for (int64_t i = 0; i < c->dst.n; i++) {
    for (int64_t s = 0; s < c->to[i].cut.n; s++) {
      bytes += c->to[i].cut.at[s].n * (int64_t)reshard_dtype_size(c->dst.at[i].dtype);
      whole_arrays += shards && c->to[i].cut.at[s].whole;
    }
    haloed += c->to[i].haloed;
    gapped += c->to[i].gapped && !c->to[i].haloed;
    unconverted += c->dtype != RESHARD_DTYPE_NONE && c->dst.at[i].dtype != c->dtype;
    converted += c->map == NULL && c->dst.at[i].dtype != c->src.at[i].dtype;
  }
  totals->bytes += bytes;
  totals->whole_arrays += whole_arrays;
  return same_number(why, "format", report->format, formats[c->out]) &&
         same_number(why, "source.format", report->source.format, sources[c->in]) &&
         same_number(why, "source.tensors", report->source.tensors, c->src.n) &&
         same_number(why, "source.bytes", report->source.bytes, source_bytes) &&
         same_number(why, "source.described", report->source.described, c->in == FROM_SHARDS) &&
         (c->in < FROM_SHARDS || same_number(why, "source.world", report->source.world, c->in_world)) &&
         same_number(why, "tensors", report->tensors, c->dst.n) && same_number(why, "bytes", report->bytes, bytes) &&
         same_number(why, "world", report->world, c->out_world) &&
         same_number(why, "files", report->files, directory ? count_entries(out) - (c->out == TO_INDEX) : 1) &&
         same_number(why, "whole_arrays", report->whole_arrays, whole_arrays) &&
         same_number(why, "gapped", report->gapped, gapped) && same_number(why, "haloed", report->haloed, haloed) &&
         (c->map != NULL || same_number(why, "converted", report->converted, converted)) &&
         same_number(why, "unconverted", report->unconverted, unconverted) &&
         (c->map != NULL || c->in >= FROM_SHARDS || same_number(why, "wire_bytes", report->wire_bytes, count_wire(c)));
}

/* --- The two ways to a target ------------------------------------------------------------------------------------ */

typedef struct watched {
  int64_t calls, last;
  bool cancel, right;
} watched;

static int watch_progress(void *user, const char *stage, int64_t done, int64_t all) {
  watched *w = user;
  w->calls++;
  w->right = w->right && stage != NULL && done >= 0 && done <= all;
  return w->cancel;
}

static reshard_status convert_case(const file_case *c, const char *in, const char *out, bool force, watched *watch_at,
                                   reshard_convert_report *report) {
  reshard_convert_options o = {.size = RESHARD_CONVERT_OPTIONS_INIT,
                               .world = c->world,
                               .force = force,
                               .dedup = c->out == TO_DEDUP,
                               .verify = c->verify,
                               .index_bytes = c->index_bytes,
                               .no_digests = FILE_CASE_NO_DIGESTS(c),
                               .threads = c->threads,
                               .dtype = c->dtype,
                               .progress = watch_at != NULL ? watch_progress : NULL,
                               .user = watch_at};
  reshard_status status = RESHARD_SUCCESS;
  bool said = c->from != NULL && c->in < FROM_SHARDS;
  if (said && c->src.n == 1 && c->seed % 2 == 0)
    o.src = c->from[0].text;
  else if (said)
    status = reshard_rules_parse(c->src_rules, "src", &o.src_rules);
  if (status == RESHARD_SUCCESS && c->dst.n == 1 && c->seed % 3 == 0)
    o.dst = c->to[0].text;
  else if (status == RESHARD_SUCCESS)
    status = reshard_rules_parse(c->dst_rules, "dst", &o.dst_rules);
  if (status == RESHARD_SUCCESS && c->map != NULL)
    status = reshard_map_parse(c->map, "map", &o.map);
  RS_THEN(status, reshard_convert(in, out, &o, report));
  reshard_rules_free(o.src_rules);
  reshard_rules_free(o.dst_rules);
  reshard_map_free(o.map);
  return status;
}

static reshard_status put_rank(const file_case *c, reshard_writer writer, int64_t tensor, int64_t rank) {
  const naive_tensor *t = &c->dst.at[tensor];
  const oracle_buffers *held = &c->to[tensor].held;
  int64_t first = held->first[rank], n = held->first[rank + 1] - first;
  size_t width = reshard_dtype_size(t->dtype);
  unsigned char **buffers = cli_alloc(n, sizeof *buffers);
  for (int64_t b = 0; b < n; b++) {
    const oracle_buffer *buffer = &held->buffer[first + b];
    if (buffer->n > 0)
      buffers[b] = cli_alloc(buffer->n, width);
    for (int64_t e = 0; e < buffer->n; e++)
      memcpy(buffers[b] + (size_t)e * width, t->bytes + (size_t)buffer->index[e] * width, width);
  }
  reshard_status status = reshard_writer_put(writer, tensor, rank, (const void *const *)buffers);
  for (int64_t b = 0; b < n; b++)
    free(buffers[b]);
  free(buffers);
  return status;
}

/* From memory, rank after rank. */
static reshard_status write_target(const file_case *c, const char *out) {
  reshard_writer_tensor *tensors = cli_alloc(c->dst.n, sizeof *tensors);
  reshard_writer_options o = {.size = RESHARD_WRITER_OPTIONS_INIT,
                              .dedup = c->out == TO_DEDUP,
                              .index_bytes = c->index_bytes,
                              .no_digests = FILE_CASE_NO_DIGESTS(c),
                              .nmetadata = c->owner && c->out != TO_NPY,
                              .metadata = &(reshard_text_pair){FILE_CASE_KEY, FILE_CASE_VALUE}};
  reshard_writer writer = NULL;
  for (int64_t i = 0; i < c->dst.n; i++)
    tensors[i] = (reshard_writer_tensor){c->dst.at[i].name, c->dst.at[i].dtype, c->to[i].layout};
  reshard_status status = reshard_writer_create(out, c->dst.n, tensors, &o, &writer);
  for (int64_t rank = c->out_world - 1; rank >= 0 && status == RESHARD_SUCCESS; rank--)
    for (int64_t i = 0; i < c->dst.n && status == RESHARD_SUCCESS; i++)
      status = put_rank(c, writer, i, rank);
  if (status == RESHARD_SUCCESS)
    status = reshard_writer_commit(writer);
  else
    reshard_writer_abandon(writer);
  free(tensors);
  return status;
}

/* Something of the same format is there already: it stays as it is unless force says otherwise. */
static bool refuse_case(file_case *c, const char *in, const char *out, rs_text *why) {
  rng same_again = c->r, *r = &c->r;
  naive_set set = {0};
  naive_dir dir = {0}, is = {0};
  naive_fill(naive_add(&set, "there", RESHARD_I16, 1, (int64_t[]){5}), c->seed);
  if (c->out == TO_NPY)
    naive_write_npy(r, out, &set.at[0], false);
  naive_file *file = naive_dir_add(&dir, "model-00001-of-00001.safetensors");
  file->set = set;
  if (c->out == TO_SAFETENSORS)
    naive_write_safetensors(r, out, file);
  else if (c->out != TO_NPY)
    naive_write_dir(r, out, &dir);
  reshard_status status = convert_case(c, in, out, false, NULL, NULL);
  bool right = status == RESHARD_ERROR_INVALID;
  if (!right)
    cli_add(why, "a target that is there: status %d, %s", status, reshard_last_error());
  if (right && c->out >= TO_INDEX)
    right = naive_read_dir(out, &is, why) && naive_same_dir(&is, &dir, why);
  naive_dir_free(&is);
  naive_dir_free(&dir);
  c->r = same_again;
  return right;
}

static bool cancel_case(file_case *c, const char *in, const char *out, bool *done, rs_text *why) {
  watched w = {.cancel = true, .right = true};
  reshard_status status = convert_case(c, in, out, c->force, &w, NULL);
  *done = status == RESHARD_SUCCESS && w.calls == 0;
  if (!*done && status != RESHARD_ERROR_CANCELLED)
    cli_add(why, "cancelled: status %d, %s", status, reshard_last_error());
  return why->length == 0;
}

/* The regions of a map alone, walked element by element. */
static bool check_map(const file_case *c, rs_text *why) {
  reshard_model source = NULL, target = NULL;
  reshard_map map = NULL;
  rs_copy_regions regions = {0};
  naive_set made = {0};
  reshard_status status = rs_model_new(&source);
  for (int64_t i = 0; i < c->src.n && status == RESHARD_SUCCESS; i++) {
    const naive_tensor *t = &c->src.at[i];
    status = rs_model_add(source, "naive", t->name, strlen(t->name), t->dtype, t->ndim, t->shape);
  }
  RS_THEN(status, reshard_map_parse(c->map, "map", &map));
  RS_THEN(status, rs_map_apply(map, source, &target, &regions));
  bool right = status == RESHARD_SUCCESS || failed_step(why, "rs_map_apply");
  for (int64_t i = 0; i < reshard_model_count(target); i++) {
    reshard_model_tensor t;
    reshard_model_get(target, i, &t);
    naive_add(&made, t.name, t.dtype, t.ndim, t.shape);
  }
  for (int64_t i = 0; i < regions.n && right; i++)
    naive_region(&c->src, &regions.at[i], &made);
  file_cast_set(&made, c->dtype);
  right = right && naive_same_set(&made, &c->dst, why);
  naive_set_free(&made);
  free(regions.at);
  reshard_map_free(map);
  reshard_model_free(target);
  reshard_model_free(source);
  return right;
}

/* --- A case ------------------------------------------------------------------------------------------------------ */

static void add_totals(const file_case *c, file_totals *totals) {
  totals->cases++;
  totals->tensors += c->dst.n;
  totals->mapped += c->map != NULL;
  totals->cast += c->dtype != RESHARD_DTYPE_NONE;
  totals->verified += c->verify && !c->by_writer;
  totals->by_writer += c->by_writer;
  totals->formats[c->in][c->out] += !c->by_writer;
  for (int64_t i = 0; i < c->dst.n && c->map == NULL; i++)
    if (c->from != NULL)
      totals->kinds[c->from[i].what.kind][c->to[i].what.kind]++;
}

static bool readable_target(const file_case *c) {
  bool right = true;
  for (int64_t i = 0; i < c->dst.n; i++)
    right = right && !c->to[i].gapped && !c->to[i].haloed;
  return right;
}

/* A target that cannot be read back is refused, and the report has said so. */
static bool check_readable(file_case *c, const char *out, file_totals *totals, rs_text *why) {
  reshard_checkpoint checkpoint;
  if (readable_target(c))
    return file_read_back(&c->r, out, &c->dst, totals, why);
  totals->unreadable++;
  if (reshard_checkpoint_open(out, &checkpoint) != RESHARD_SUCCESS)
    return true;
  reshard_checkpoint_close(checkpoint);
  cli_add(why, "tensors with gaps or halos are read back");
  return false;
}

static bool make_target(file_case *c, const char *in, const char *out, file_totals *totals, rs_text *why) {
  watched w = {.right = true};
  reshard_convert_report report = {0};
  bool done = false;
  if (c->by_writer)
    return write_target(c, out) == RESHARD_SUCCESS || failed_step(why, "reshard_writer");
  if (c->force) {
    totals->refused++;
    if (!refuse_case(c, in, out, why))
      return false;
  }
  if (c->cancel && !cancel_case(c, in, out, &done, why))
    return false;
  totals->cancelled += c->cancel && !done;
  if (convert_case(c, in, out, c->force || done, rng_one_in(&c->r, 2) ? &w : NULL, &report) != RESHARD_SUCCESS)
    return failed_step(why, "reshard_convert");
  if (!w.right) {
    cli_add(why, "progress of more than all, or of less than nothing");
    return false;
  }
  return check_report(c, out, &report, totals, why);
}

/* From a source that is there; entries: of the directory, with the target. */
static bool run_step(file_case *c, const char *directory, const char *in, const char *out, int64_t entries,
                     file_totals *totals, rs_text *why) {
  bool right = make_target(c, in, out, totals, why);
  if (right && count_entries(directory) != entries) {
    cli_add(why, "something is left beside the target");
    right = false;
  }
  right = right && file_check_target(c, out, why) && check_readable(c, out, totals, why);
  add_totals(c, totals);
  return right;
}

bool file_case_run(file_case *c, const char *directory, file_totals *totals, rs_text *why) {
  static const char *const suffixes[TARGETS] = {".npy", ".safetensors", "", "", ""};
  const char *suffix = c->in <= FROM_FORTRAN ? ".npy" : c->in == FROM_SAFETENSORS ? ".safetensors" : "";
  char *in = place_path(directory, "in", suffix), *out = place_path(directory, "out", suffixes[c->out]);
  file_write_source(c, in);
  bool right = c->map == NULL || check_map(c, why);
  right = right && (rng_one_in(&c->r, 2) || file_read_back(&c->r, in, &c->src, totals, why));
  right = right && run_step(c, directory, in, out, 2, totals, why);
  if (right && readable_target(c) && rng_one_in(&c->r, 3)) {
    file_case next;
    char *again = NULL;
    right = file_case_next(c, &next, why);
    if (right) {
      again = place_path(directory, "again", suffixes[next.out]);
      right = run_step(&next, directory, out, again, 3, totals, why);
      remove_all(again);
    }
    if (!right) {
      cli_add(why, "\n  from what the library wrote:");
      file_case_describe(&next, why);
    }
    free(again);
    file_case_free(&next);
  }
  remove_all(in);
  remove_all(out);
  free(in);
  free(out);
  return right;
}

#endif
