/* The stored shards of a tensor, rank by rank, from the oracle's lists of elements alone: the boxes of each array are
 * the products of its maximal runs per dim. Those of a flat piece are the longest boxes that begin where the one before
 * ended. */
#include "file_cut.h"

#ifdef RS_HAVE_JANSSON

#include <stdlib.h>
#include <string.h>

static int64_t coordinate(const oracle_layout *l, int64_t linear, int dim) {
  for (int d = l->ndim - 1; d > dim; d--)
    linear /= l->shape[d];
  return linear % l->shape[dim];
}

static naive_shard *shard_add(naive_cut *cut, const oracle_layout *l, int64_t rank, int64_t array,
                              const reshard_box *box) {
  cut->at = cli_realloc(cut->at, cut->n + 1, sizeof *cut->at);
  naive_shard *s = &cut->at[cut->n++];
  *s = (naive_shard){.rank = rank, .array = array, .box = *box};
  s->n = naive_volume(l->ndim, box->extent);
  s->index = cli_alloc(s->n, sizeof *s->index);
  for (int64_t e = 0; e < s->n; e++) {
    int64_t rest = e, stride = 1;
    for (int d = l->ndim - 1; d >= 0; d--) {
      s->index[e] += (box->offset[d] + rest % box->extent[d]) * stride;
      rest /= box->extent[d];
      stride *= l->shape[d];
    }
  }
  return s;
}

/* The maximal runs of an array's indices in one dim, from the elements along that dim. */
static void find_runs(const oracle_layout *l, const oracle_buffer *b, int dim, naive_shard *out) {
  int64_t step = 1, n = 0;
  for (int d = l->ndim - 1; d > dim; d--)
    step *= b->shape[d];
  out->runs[dim] = cli_alloc(b->shape[dim], sizeof *out->runs[dim]);
  for (int64_t i = 0; i < b->shape[dim]; i++) {
    int64_t at = coordinate(l, b->index[i * step], dim);
    if (n > 0 && out->runs[dim][n - 1].end == at)
      out->runs[dim][n - 1].end++;
    else
      out->runs[dim][n++] = (reshard_interval){at, at + 1};
  }
  out->nruns[dim] = n;
}

static void free_runs(naive_shard *s) {
  for (int d = 0; d < RESHARD_MAX_DIMS; d++)
    free(s->runs[d]);
}

static void cut_array(const oracle_layout *l, const oracle_buffer *b, int64_t rank, int64_t array, int64_t most,
                      naive_cut *out) {
  naive_shard all = {.rank = rank, .array = array, .whole = true, .n = b->n};
  int64_t boxes = 1;
  for (int d = 0; d < l->ndim; d++) {
    find_runs(l, b, d, &all);
    boxes *= all.nruns[d];
    all.box.offset[d] = all.runs[d][0].begin;
    all.box.extent[d] = b->shape[d];
  }
  if (boxes > most) {
    all.index = cli_alloc(b->n, sizeof *all.index);
    memcpy(all.index, b->index, (size_t)b->n * sizeof *all.index);
    out->at = cli_realloc(out->at, out->n + 1, sizeof *out->at);
    out->at[out->n++] = all;
    return;
  }
  for (int64_t j = 0; j < boxes; j++) {
    reshard_box box = {{0}, {0}};
    int64_t rest = j;
    for (int d = l->ndim - 1; d >= 0; d--) {
      const reshard_interval *run = &all.runs[d][rest % all.nruns[d]];
      rest /= all.nruns[d];
      box.offset[d] = run->begin;
      box.extent[d] = run->end - run->begin;
    }
    shard_add(out, l, rank, array, &box);
  }
  free_runs(&all);
}

static void cut_flat(const oracle_layout *l, const oracle_buffer *b, int64_t rank, naive_cut *out) {
  int64_t array = 0;
  for (int64_t at = 0; at < b->n;) {
    int64_t begin = b->index[at], end = b->index[b->n - 1] + 1, inner = 1, longest = 0;
    reshard_box box = {{0}, {0}};
    for (int d = l->ndim - 1; d >= 0 && begin % inner == 0; d--) {
      int64_t i = coordinate(l, begin, d), n = (end - begin) / inner;
      n = n < l->shape[d] - i ? n : l->shape[d] - i;
      if (n * inner > longest) {
        longest = n * inner;
        for (int k = 0; k < l->ndim; k++) {
          box.offset[k] = coordinate(l, begin, k);
          box.extent[k] = k < d ? 1 : k == d ? n : l->shape[k];
        }
      }
      inner *= l->shape[d];
    }
    if (l->ndim == 0)
      longest = 1;
    shard_add(out, l, rank, array++, &box);
    at += longest;
  }
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Indices [begin, end) of a buffer along a dim, as one of its own. */
static oracle_buffer cut_buffer(const oracle_layout *l, const oracle_buffer *b, int dim, int64_t begin, int64_t end) {
  oracle_buffer out = *b;
  int64_t inner = 1, n = 0;
  for (int d = dim + 1; d < l->ndim; d++)
    inner *= b->shape[d];
  out.shape[dim] = end - begin;
  out.index = cli_alloc(b->n, sizeof *out.index);
  for (int64_t e = 0; e < b->n; e++)
    if (e / inner % b->shape[dim] >= begin && e / inner % b->shape[dim] < end)
      out.index[n++] = b->index[e];
  out.n = n;
  return out;
}

static int64_t count_boxes(const oracle_layout *l, const oracle_buffer *b) {
  naive_shard runs = {0};
  int64_t boxes = b->n > 0;
  for (int d = 0; d < l->ndim && b->n > 0; d++) {
    find_runs(l, b, d, &runs);
    boxes *= runs.nruns[d];
  }
  free_runs(&runs);
  return boxes;
}

/* Buffers of a rank whose dim is cut in parts of mesh dim m: one for each run of parts in as many pieces. Returns how
 * many. */
static int64_t cut_runs(const oracle_layout *l, int m, const oracle_buffer *b, int64_t rank, oracle_buffer *out) {
  int64_t digit = 0, w = l->mesh[m], n = 0, begin = 0, end = 0, last = 0;
  while (l->ranks[digit] != rank)
    digit++;
  for (int i = l->mesh_ndim - 1; i > m; i--)
    digit /= l->mesh[i];
  digit %= w;
  for (int p = 0; p < l->placement[m].nparts; p++) {
    int64_t size = l->part[m][p].size, pieces = l->part[m][p].pieces > 0 ? smaller(l->part[m][p].pieces, w) : w;
    int64_t split = (size + pieces - 1) / pieces, first = smaller(digit / (w / pieces) * split, size);
    if (size > 0 && last > 0 && last != pieces) {
      out[n++] = cut_buffer(l, b, l->placement[m].dim, begin, end);
      begin = end;
    }
    last = size > 0 ? pieces : last;
    end += smaller(first + split, size) - first;
  }
  out[n++] = cut_buffer(l, b, l->placement[m].dim, begin, end);
  return n;
}

/* A rank's arrays, each stored whole where they have too many boxes together. */
static void cut_arrays(const oracle_layout *l, const oracle_buffer *b, int64_t rank, int64_t array, int64_t most,
                       naive_cut *out) {
  oracle_buffer runs[ORACLE_PARTS];
  int64_t n = 0, boxes = 0;
  for (int m = 0; m < l->mesh_ndim; m++)
    for (int p = 0; p < l->placement[m].nparts && n == 0; p++)
      if (l->part[m][p].pieces > 0 && l->part[m][p].pieces < l->mesh[m])
        n = cut_runs(l, m, b, rank, runs);
  if (n == 0) {
    cut_array(l, b, rank, array, most, out);
    return;
  }
  for (int64_t i = 0; i < n; i++)
    boxes += count_boxes(l, &runs[i]);
  for (int64_t i = 0; i < n; i++) {
    if (runs[i].n > 0)
      cut_array(l, &runs[i], rank, i, boxes > most ? 0 : most, out);
    free(runs[i].index);
  }
}

static bool stored_below(const naive_cut *cut, const naive_shard *s) {
  for (int64_t i = 0; i < cut->n; i++)
    if (cut->at[i].rank < s->rank && cut->at[i].n == s->n &&
        memcmp(cut->at[i].index, s->index, (size_t)s->n * sizeof *s->index) == 0)
      return true;
  return false;
}

static void free_shard(naive_shard *s) {
  free(s->index);
  free_runs(s);
}

static int64_t first_rank(const oracle_layout *l) {
  return l->kind == RESHARD_LAYOUT_BOXES ? l->box_rank[0] : l->ranks[0];
}

void naive_cut_make(const oracle_layout *l, const oracle_buffers *held, int64_t most_boxes, bool dedup,
                    naive_cut *out) {
  *out = (naive_cut){0};
  if (naive_volume(l->ndim, l->shape) == 0) {
    reshard_box box = {{0}, {0}};
    memcpy(box.extent, l->shape, sizeof box.extent);
    shard_add(out, l, first_rank(l), 0, &box);
    return;
  }
  for (int64_t rank = 0; rank < l->world; rank++)
    for (int64_t b = held->first[rank]; b < held->first[rank + 1]; b++) {
      if (held->buffer[b].n == 0)
        continue;
      if (l->kind == RESHARD_LAYOUT_FLAT)
        cut_flat(l, &held->buffer[b], rank, out);
      else
        cut_arrays(l, &held->buffer[b], rank, b - held->first[rank], most_boxes, out);
    }
  naive_cut kept = {0, out->at};
  for (int64_t i = 0; i < out->n; i++) {
    naive_shard s = out->at[i];
    if (dedup && stored_below(&kept, &s)) {
      free_shard(&s);
      continue;
    }
    const naive_shard *before = kept.n > 0 ? &kept.at[kept.n - 1] : NULL;
    s.number = before != NULL && before->rank == s.rank ? before->number + 1 : 0;
    kept.at[kept.n++] = s;
  }
  *out = kept;
}

void naive_cut_free(naive_cut *cut) {
  for (int64_t i = 0; i < cut->n; i++)
    free_shard(&cut->at[i]);
  free(cut->at);
  *cut = (naive_cut){0};
}

/* --- A directory of them ----------------------------------------------------------------------------------------- */

static json_t *list(int64_t n, const int64_t *at) {
  json_t *out = json_array();
  for (int64_t i = 0; i < n; i++)
    json_array_append_new(out, json_integer(at[i]));
  return out;
}

static json_t *intervals_of(const naive_shard *s, int ndim) {
  json_t *out = json_array();
  for (int d = 0; d < ndim; d++) {
    json_t *dim = json_array();
    for (int64_t i = 0; i < s->nruns[d]; i++)
      json_array_append_new(dim, json_pack("[I,I]", (json_int_t)s->runs[d][i].begin, (json_int_t)s->runs[d][i].end));
    json_array_append_new(out, dim);
  }
  return out;
}

static void add_shard(naive_file *file, const naive_tensor *t, const naive_shard *s, json_t *info, json_t *intervals) {
  size_t width = reshard_dtype_size(t->dtype);
  naive_tensor *part = naive_add(&file->set, t->name, t->dtype, t->ndim, s->box.extent);
  for (int64_t e = 0; e < s->n; e++)
    memcpy(part->bytes + e * (int64_t)width, t->bytes + s->index[e] * (int64_t)width, width);
  json_object_set_new(info, t->name, json_pack("{s:o}", "saved_offsets", list(t->ndim, s->box.offset)));
  if (s->whole)
    json_object_set_new(intervals, t->name, intervals_of(s, t->ndim));
}

static json_t *describe(const naive_set *set, int64_t world, const char *const *layouts, json_t *files) {
  json_t *shapes = json_object(), *strings = json_object();
  for (int64_t i = 0; i < set->n; i++) {
    json_object_set_new(shapes, set->at[i].name, list(set->at[i].ndim, set->at[i].shape));
    json_object_set_new(strings, set->at[i].name, json_pack("s", layouts[i]));
  }
  return json_pack("{s:i, s:I, s:O, s:o, s:o}", "version", 1, "world", (json_int_t)world, "files", files, "shapes",
                   shapes, "layout", strings);
}

/* The largest number of boxes that a rank has of any tensor. What there is to know stands in one file at least. */
static int64_t files_of(int64_t n, const naive_cut *cuts, int64_t rank) {
  int64_t most = 0, all = 0;
  for (int64_t t = 0; t < n; t++)
    for (int64_t s = 0; s < cuts[t].n; s++, all++)
      if (cuts[t].at[s].rank == rank && cuts[t].at[s].number >= most)
        most = cuts[t].at[s].number + 1;
  return all == 0 && rank == 0 ? 1 : most;
}

void naive_shards_dir(const naive_set *set, const naive_cut *cuts, int64_t world, const char *const *layouts,
                      naive_dir *out) {
  *out = (naive_dir){0};
  json_t *files = json_array(), *intervals = json_array();
  for (int64_t rank = 0; rank < world; rank++) {
    int64_t k = files_of(set->n, cuts, rank);
    for (int64_t j = 0; j < k; j++) {
      char name[96];
      snprintf(name, sizeof name, "shard-%05lld-model-%05lld-of-%05lld.safetensors", (long long)rank + 1,
               (long long)j + 1, (long long)k);
      naive_file *file = naive_dir_add(out, name);
      json_t *info = json_object(), *runs = json_object();
      json_array_append_new(intervals, runs);
      for (int64_t t = 0; t < set->n; t++)
        for (int64_t s = 0; s < cuts[t].n; s++)
          if (cuts[t].at[s].rank == rank && cuts[t].at[s].number == j)
            add_shard(file, &set->at[t], &cuts[t].at[s], info, runs);
      file->metadata = json_pack("{s:s, s:s, s:o}", "format", "pt", "DCP_VERSION", "1.0", "DCP_SHARDING_INFO", info);
      json_array_append_new(files, json_pack("s", name));
    }
  }
  for (int64_t f = 0; f < out->n && layouts != NULL; f++) {
    json_t *about = describe(set, world, layouts, files), *runs = json_array_get(intervals, (size_t)f);
    if (json_object_size(runs) > 0)
      json_object_set(about, "intervals", runs);
    json_object_set_new(out->file[f].metadata, "reshard", about);
  }
  json_decref(intervals);
  json_decref(files);
}

#endif
