/* Expected targets, and what the library reads of them. */
#include "random/file_case.h"

#include <reshard/file.h>

#ifdef RS_HAVE_JANSSON

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool case_wrong(rs_text *why, const char *what) {
  cli_add(why, "%s", what);
  return false;
}

/* --- By the naive reader ----------------------------------------------------------------------------------------- */

static bool check_npy(const file_case *c, const char *path, rs_text *why) {
  naive_set set;
  bool right = naive_read_npy(path, &set, why);
  if (right) {
    naive_tensor should = c->dst.at[0];
    should.name = (char *)"tensor";
    right = naive_same_set(&set, &(naive_set){1, &should}, why);
  }
  naive_set_free(&set);
  return right;
}

static void add_owner(const file_case *c, json_t *metadata) {
  if (c->owner)
    json_object_set_new(metadata, FILE_CASE_KEY, json_string(FILE_CASE_VALUE));
}

static bool says_pt(const file_case *c, const naive_file *file, rs_text *why) {
  json_t *should = json_pack("{s:s}", "format", "pt");
  add_owner(c, should);
  bool right = file->metadata != NULL && json_equal(file->metadata, should);
  json_decref(should);
  return right || case_wrong(why, "__metadata__ is not {\"format\": \"pt\"} and the owner's");
}

static bool check_safetensors(const file_case *c, const char *path, rs_text *why) {
  naive_file file;
  bool right =
      naive_read_safetensors(path, &file, why) && naive_same_set(&file.set, &c->dst, why) && says_pt(c, &file, why);
  naive_file_free(&file);
  return right;
}

/* The writer chooses which tensors share a file, within the limit; the index says what is there. */
static bool check_index(const file_case *c, const char *path, rs_text *why) {
  naive_dir dir;
  naive_set all = {0};
  json_t *map = json_object();
  int64_t bytes = 0;
  bool right = naive_read_dir(path, &dir, why);
  for (int64_t f = 0; f < dir.n && right; f++) {
    char name[64];
    struct stat info;
    rs_text full = {0};
    const naive_file *file = &dir.file[f];
    snprintf(name, sizeof name, "model-%05lld-of-%05lld.safetensors", (long long)f + 1, (long long)dir.n);
    cli_add(&full, "%s/%s", path, file->name);
    right = says_pt(c, file, why) &&
            (strcmp(name, file->name) == 0 || case_wrong(why, "files are not numbered as they should be"));
    if (right && (stat(full.at, &info) != 0 || (info.st_size > c->index_bytes && file->set.n != 1 && c->dst.n > 0)))
      right = case_wrong(why, "a file of several tensors is larger than was asked for");
    free(full.at);
    for (int64_t i = 0; i < file->set.n; i++) {
      const naive_tensor *t = &file->set.at[i];
      size_t size = (size_t)t->n * reshard_dtype_size(t->dtype);
      memcpy(naive_add(&all, t->name, t->dtype, t->ndim, t->shape)->bytes, t->bytes, size);
      json_object_set_new(map, t->name, json_pack("s", file->name));
      bytes += (int64_t)size;
    }
  }
  json_t *index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map);
  right = right && naive_same_set(&all, &c->dst, why) &&
          (json_equal(index, dir.index) || case_wrong(why, "the index is not what is in the files"));
  json_decref(index);
  naive_set_free(&all);
  naive_dir_free(&dir);
  return right;
}

static bool check_shards(const file_case *c, const char *path, rs_text *why) {
  naive_cut *cuts = cli_alloc(c->dst.n, sizeof *cuts);
  char **layouts = cli_alloc(c->dst.n, sizeof *layouts);
  naive_dir is, should;
  for (int64_t i = 0; i < c->dst.n; i++) {
    size_t needed = 0;
    cuts[i] = c->to[i].cut;
    reshard_layout_print(c->to[i].layout, NULL, 0, &needed);
    layouts[i] = cli_alloc((int64_t)needed, 1);
    reshard_layout_print(c->to[i].layout, layouts[i], needed, NULL);
  }
  naive_shards_dir(&c->dst, cuts, c->dst.n > 0 ? c->out_world : 1, (const char *const *)layouts, &should);
  for (int64_t f = 0; f < should.n; f++)
    add_owner(c, should.file[f].metadata);
  bool right = naive_read_dir(path, &is, why) && naive_same_dir(&is, &should, why);
  for (int64_t i = 0; i < c->dst.n; i++)
    free(layouts[i]);
  free(layouts);
  free(cuts);
  naive_dir_free(&is);
  naive_dir_free(&should);
  return right;
}

static bool check_format(const file_case *c, const char *path, rs_text *why) {
  switch (c->out) {
  case TO_NPY: return check_npy(c, path, why);
  case TO_SAFETENSORS: return check_safetensors(c, path, why);
  case TO_INDEX: return check_index(c, path, why);
  default: return check_shards(c, path, why);
  }
}

/* Every file has digests that are right, or none. */
static bool check_digests(const file_case *c, const char *path, rs_text *why) {
  const reshard_check_options options = {.size = RESHARD_CHECK_OPTIONS_INIT, .threads = c->threads};
  reshard_check_report report;
  bool made = c->out != TO_NPY && !FILE_CASE_NO_DIGESTS(c);
  if (reshard_checkpoint_check(path, &options, &report) != RESHARD_SUCCESS)
    return case_wrong(why, reshard_last_error());
#ifndef RS_HAVE_XXHASH
  made = false;
#endif
  if (report.files > 0 && report.unchecked_files == (made ? 0 : report.files))
    return true;
  cli_add(why, "%lld of %lld files have no digests", (long long)report.unchecked_files, (long long)report.files);
  return false;
}

bool file_check_target(const file_case *c, const char *path, rs_text *why) {
  return check_format(c, path, why) && check_digests(c, path, why);
}

/* --- By the library ---------------------------------------------------------------------------------------------- */

/* Reads the arrays of a rank. */
static bool read_rank(reshard_checkpoint checkpoint, int64_t tensor, const naive_tensor *t, const naive_side *side,
                      int64_t rank, int threads, rs_text *why) {
  int64_t first = side->held.first[rank], n = side->held.first[rank + 1] - first;
  size_t width = reshard_dtype_size(t->dtype);
  unsigned char **buffers = cli_alloc(n, sizeof *buffers);
  for (int64_t b = 0; b < n; b++)
    if (side->held.buffer[first + b].n > 0)
      buffers[b] = cli_alloc(side->held.buffer[first + b].n, width);
  bool right = reshard_checkpoint_read(checkpoint, tensor, side->layout, rank, threads, (void *const *)buffers) ==
               RESHARD_SUCCESS;
  if (!right)
    cli_add(why, "reading tensor '%s' as rank %lld of %s: %s", t->name, (long long)rank, side->text,
            reshard_last_error());
  for (int64_t b = 0; b < n; b++) {
    const oracle_buffer *buffer = &side->held.buffer[first + b];
    for (int64_t e = 0; e < buffer->n && right; e++)
      if (memcmp(buffers[b] + (size_t)e * width, t->bytes + (size_t)buffer->index[e] * width, width) != 0) {
        cli_add(why, "tensor '%s' read as rank %lld of %s: element %lld of buffer %lld is wrong", t->name,
                (long long)rank, side->text, (long long)e, (long long)b);
        right = false;
      }
    free(buffers[b]);
  }
  free(buffers);
  return right;
}

static bool read_tensor(rng *r, reshard_checkpoint checkpoint, const naive_tensor *t, bool npy, rs_text *why) {
  reshard_model_tensor is;
  int64_t number;
  if (reshard_checkpoint_find(checkpoint, npy ? "tensor" : t->name, &number) != RESHARD_SUCCESS ||
      reshard_model_get(reshard_checkpoint_model(checkpoint), number, &is) != RESHARD_SUCCESS)
    return case_wrong(why, reshard_last_error());
  if (is.dtype != t->dtype || is.ndim != t->ndim ||
      memcmp(is.shape, t->shape, (size_t)t->ndim * sizeof *t->shape) != 0) {
    cli_add(why, "tensor '%s' is read with another dtype or shape", t->name);
    return false;
  }
  reshard_layout layout;
  if (reshard_checkpoint_layout(checkpoint, number, &layout) != RESHARD_SUCCESS)
    return case_wrong(why, reshard_last_error());
  bool right = reshard_layout_check_source(layout) == RESHARD_SUCCESS || case_wrong(why, reshard_last_error());
  reshard_layout_release(layout);
  naive_side side = {0};
  int64_t world = rng_in(r, 1, 5);
  right =
      right && naive_side_make(r, t->ndim, t->shape, world, false, RESHARD_LAYOUT_KIND_COUNT, 64, false, &side, why);
  for (int64_t rank = 0; rank < world && right; rank++)
    right = read_rank(checkpoint, number, t, &side, rank, (int)rng_in(r, 1, 2), why);
  naive_side_free(&side);
  return right;
}

bool file_read_back(rng *r, const char *path, const naive_set *set, file_totals *totals, rs_text *why) {
  reshard_checkpoint checkpoint;
  reshard_checkpoint_info info;
  if (reshard_checkpoint_open(path, &checkpoint) != RESHARD_SUCCESS)
    return case_wrong(why, reshard_last_error());
  bool right = reshard_checkpoint_get_info(checkpoint, &info) == RESHARD_SUCCESS;
  if (right && (info.tensors != set->n || reshard_model_count(reshard_checkpoint_model(checkpoint)) != set->n)) {
    cli_add(why, "%lld tensors are read, should be %lld", (long long)info.tensors, (long long)set->n);
    right = false;
  }
  for (int64_t i = 0; i < set->n && i < 6 && right; i++) {
    int64_t t = set->n <= 6 ? i : rng_below(r, set->n);
    right = read_tensor(r, checkpoint, &set->at[t], info.format == RESHARD_FORMAT_NPY, why);
    totals->reads++;
  }
  reshard_checkpoint_close(checkpoint);
  return right;
}

#endif
