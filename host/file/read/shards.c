/* Shards of tensors, as PyTorch's distributed checkpoint writes them, made into layouts and stored arrays.
 *
 * Where every block of a tensor is a box, the layout is the list of these boxes, whatever the metadata names. A tensor
 * that has arrays stored whole (more boxes than are written one by one) keeps the layout of the metadata. Its blocks
 * are matched with that layout's arrays, or with the boxes of these.
 *
 * Of equal boxes a source keeps the first: one of them will do. A set that is compared keeps all. */
#include "file/read/shards.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

/* A block of a tensor that is being built: its shard, its rank, which array of that it is in, and its number among the
 * boxes of the array; count: blocks that the array has. */
typedef struct shard_block {
  const rs_shard *shard;
  int64_t rank, array, box, count;
} shard_block;

typedef struct builder {
  rs_shards *shards;
  RS_VEC(shard_block) blocks;
  RS_VEC(int64_t) ranks;
  RS_VEC(reshard_box) boxes;
  RS_VEC(reshard_interval) intervals;
} builder;

static int by_rank_and_box(const void *a, const void *b) {
  const shard_block *x = a, *y = b;
  if (x->rank != y->rank)
    return x->rank < y->rank ? -1 : 1;
  if (x->array != y->array)
    return x->array < y->array ? -1 : 1;
  if (x->box != y->box)
    return x->box < y->box ? -1 : 1;
  return x->shard < y->shard ? -1 : x->shard > y->shard; /* in the order of files */
}

static void sort_blocks(builder *b) {
  bool sorted = true;
  for (int64_t i = 1; i < b->blocks.n && sorted; i++)
    sorted = by_rank_and_box(&b->blocks.at[i - 1], &b->blocks.at[i]) <= 0;
  if (!sorted)
    qsort(b->blocks.at, (size_t)b->blocks.n, sizeof *b->blocks.at, by_rank_and_box);
}

/* The shards of a tensor that have elements; where none has, the first. */
static reshard_status gather_blocks(builder *b, const rs_global_tensor *global) {
  const rs_shards *s = b->shards;
  b->blocks.n = 0;
  RS_TRY(rs_vec_reserve(&b->blocks, rs_max(global->count, 1)));
  for (int64_t i = 0; i < global->count; i++) {
    const rs_shard *shard = &s->all.at[s->by_tensor.at[global->first + i]];
    if (!shard->empty)
      b->blocks.at[b->blocks.n++] = (shard_block){shard, s->rank.at[shard->file], 0, 0, 1};
  }
  if (b->blocks.n == 0 && global->count > 0) {
    const rs_shard *shard = &s->all.at[s->by_tensor.at[global->first]];
    b->blocks.at[b->blocks.n++] = (shard_block){shard, s->rank.at[shard->file], 0, 0, 1};
  }
  return RESHARD_SUCCESS;
}

static reshard_status prefix_tensor(const rs_shards *s, const rs_global_tensor *global, reshard_status status) {
  char quoted[RS_QUOTE];
  if (status != RESHARD_ERROR_INVALID)
    return status;
  return rs_error(status, "%s: tensor '%s': %s", s->opening->where, rs_quote(quoted, sizeof quoted, global->name),
                  reshard_last_error());
}

/* Appends blocks[first .. first + its count) as an array of their rank. */
static reshard_status add_stored_array(builder *b, int64_t first, int64_t array) {
  rs_store *store = &b->shards->opening->checkpoint->store;
  const shard_block *at = &b->blocks.at[first];
  RS_TRY(rs_vec_reserve(&store->arrays, store->arrays.n + 1));
  RS_TRY(rs_vec_reserve(&store->blocks, store->blocks.n + at->count));
  store->arrays.at[store->arrays.n++] = (rs_stored_array){at->rank, array, store->blocks.n, (int32_t)at->count};
  for (int64_t i = 0; i < at->count; i++)
    store->blocks.at[store->blocks.n++] = (rs_stored_block){at[i].shard->offset, (int32_t)at[i].shard->file};
  return RESHARD_SUCCESS;
}

static reshard_status build_boxes(builder *b, const rs_global_tensor *global, reshard_layout *out) {
  rs_shards *s = b->shards;
  int64_t n = b->blocks.n, number = 0;
  sort_blocks(b);
  RS_TRY(rs_vec_reserve(&b->ranks, n));
  RS_TRY(rs_vec_reserve(&b->boxes, n));
  for (int64_t i = 0; i < n; i++) {
    b->ranks.at[i] = b->blocks.at[i].rank;
    b->boxes.at[i] = b->blocks.at[i].shard->box;
  }
  RS_TRY(prefix_tensor(
      s, global,
      rs_layout_cache_boxes(&s->layouts, global->ndim, global->shape, s->world, n, b->ranks.at, b->boxes.at, &number)));
  reshard_layout layout = s->layouts.made.at[number];
  if (!s->opening->options.gaps_allowed)
    RS_TRY(prefix_tensor(s, global, reshard_layout_check_source(layout)));
  const rs_boxes *boxes = layout->boxes;
  for (int64_t i = 0, array = 0; i < n; i++) {
    array = i > 0 && b->ranks.at[i] == b->ranks.at[i - 1] ? array + 1 : 0;
    rs_holder first = boxes->holders[boxes->cell_first[boxes->cell_of[i]]];
    bool again = first.rank != b->ranks.at[i] || first.array != array;
    if (!b->blocks.at[i].shard->empty && (!again || s->opening->options.gaps_allowed))
      RS_TRY(add_stored_array(b, i, array));
  }
  *out = layout;
  return RESHARD_SUCCESS;
}

/* Compares the runs of a shard with those of an array of its rank. */
static reshard_status same_runs(builder *b, reshard_layout layout, const shard_block *at, bool *same) {
  const int64_t *run = b->shards->runs.at + at->shard->runs;
  int64_t shape[RESHARD_MAX_DIMS];
  RS_TRY(rs_array_boxes(layout, at->rank, at->array, NULL, shape));
  *same = memcmp(shape, at->shard->box.extent, (size_t)layout->ndim * sizeof *shape) == 0;
  for (int d = 0; d < layout->ndim && *same; d++) {
    int64_t n = *run++, count = 0;
    RS_TRY(rs_vec_reserve(&b->intervals, n));
    RS_TRY(reshard_layout_array_intervals(layout, at->rank, at->array, d, 0, n, b->intervals.at, &count));
    *same = count == n && (n == 0 || run[0] == at->shard->box.offset[d]);
    for (int64_t i = 0; i < n && *same; i++, run += 2)
      *same = b->intervals.at[i].begin == run[0] && b->intervals.at[i].end == run[1];
  }
  return RESHARD_SUCCESS;
}

/* Compares the box of a shard with those of an array of its rank. */
static reshard_status same_box(reshard_layout layout, shard_block *at, bool *same) {
  int64_t boxes = 0;
  size_t size = (size_t)layout->ndim * sizeof(int64_t);
  RS_TRY(rs_array_boxes(layout, at->rank, at->array, &boxes, NULL));
  *same = false;
  for (int64_t j = 0; j < boxes && boxes <= RS_MOST_BOXES && !*same; j++) {
    reshard_box box;
    RS_TRY(rs_array_box(layout, at->rank, at->array, j, &box, NULL));
    *same =
        memcmp(box.offset, at->shard->box.offset, size) == 0 && memcmp(box.extent, at->shard->box.extent, size) == 0;
    at->box = j;
  }
  at->count = boxes;
  return RESHARD_SUCCESS;
}

/* Finds what a block is of its rank's arrays in the layout of the metadata: all of one, or one of its boxes. */
static reshard_status match_block(builder *b, reshard_layout layout, shard_block *at) {
  int64_t arrays = rs_layout_arrays(layout, at->rank);
  bool same = false;
  for (int64_t a = 0; a < arrays && !same; a++) {
    at->array = a;
    RS_TRY(at->shard->runs >= 0 ? same_runs(b, layout, at, &same) : same_box(layout, at, &same));
  }
  if (!same) {
    char where[RS_SHARD_WHERE], text[RS_BOX_TEXT];
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s %s of what rank %lld holds by the layout of its metadata",
                    rs_shard_where(b->shards, at->shard, where),
                    at->shard->runs >= 0
                        ? "the intervals are not those"
                        : rs_box_text(text, layout->ndim, at->shard->box.offset, at->shard->box.extent),
                    at->shard->runs >= 0 ? "" : "is no box", (long long)at->rank);
  }
  return RESHARD_SUCCESS;
}

/* Each rank's blocks must be the whole of its arrays, and as a source all arrays must be there, each cell once. */
static reshard_status hold_arrays(builder *b, const rs_global_tensor *global, reshard_layout layout) {
  const rs_shards *s = b->shards;
  int64_t held = 0;
  bool *seen = NULL;
  reshard_status status = RESHARD_SUCCESS;
  RS_TRY(rs_alloc_zero(&seen, layout->cells, sizeof *seen));
  for (int64_t i = 0, next; i < b->blocks.n; i = next) {
    const shard_block *at = &b->blocks.at[i];
    bool complete = true;
    for (next = i; next < b->blocks.n && b->blocks.at[next].rank == at->rank && b->blocks.at[next].array == at->array;
         next++)
      complete &= b->blocks.at[next].count == at->count && b->blocks.at[next].box == next - i;
    if (!complete || next - i != at->count) {
      char where[RS_SHARD_WHERE];
      status = rs_error(RESHARD_ERROR_INVALID, "%s: %lld blocks of rank %lld, whose array has %lld",
                        rs_shard_where(s, at->shard, where), (long long)(next - i), (long long)at->rank,
                        (long long)at->count);
      goto done;
    }
    int64_t cell = rs_layout_cell(layout, at->rank, at->array), elements = 1, shape[RESHARD_MAX_DIMS];
    if (seen[cell] && !s->opening->options.gaps_allowed)
      continue;
    rs_layout_cell_shape(layout, cell, shape);
    for (int d = 0; d < layout->ndim; d++)
      elements *= shape[d];
    held += seen[cell] ? 0 : elements;
    seen[cell] = true;
    RS_TRY_GOTO(status, add_stored_array(b, i, at->array), done);
  }
  if (held != layout->elements && !s->opening->options.gaps_allowed) {
    char quoted[RS_QUOTE];
    status = rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': %lld of %lld elements are in no file", s->opening->where,
                      rs_quote(quoted, sizeof quoted, global->name), (long long)(layout->elements - held),
                      (long long)layout->elements);
  }
done:
  free(seen);
  return status;
}

static reshard_status build_arrays(builder *b, const rs_global_tensor *global, reshard_layout *out) {
  reshard_layout layout = b->shards->layouts.made.at[global->layout];
  if (!rs_layout_regular(layout)) {
    char quoted[RS_QUOTE];
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s' has intervals, in a layout whose arrays are boxes",
                    b->shards->opening->where, rs_quote(quoted, sizeof quoted, global->name));
  }
  if (b->blocks.at[0].shard->empty)
    b->blocks.n = 0;
  for (int64_t i = 0; i < b->blocks.n; i++)
    RS_TRY(match_block(b, layout, &b->blocks.at[i]));
  sort_blocks(b);
  RS_TRY(hold_arrays(b, global, layout));
  *out = layout;
  return RESHARD_SUCCESS;
}

static reshard_status build_all(builder *b) {
  const rs_shards *s = b->shards;
  rs_store *store = &s->opening->checkpoint->store;
  RS_TRY(rs_vec_reserve(&store->tensors, s->tensors.n));
  for (int64_t i = 0; i < s->tensors.n; i++) {
    const rs_global_tensor *global = &s->tensors.at[i];
    int64_t first = store->arrays.n, t = store->tensors.n;
    reshard_layout layout = NULL;
    if (global->left_out)
      continue;
    RS_TRY(rs_model_add(store->model, s->opening->where, global->name, rs_name_length(global->name, global->solid),
                        global->dtype, global->ndim, global->shape));
    store->model->tensors.at[t].packed = global->packed;
    store->model->tensors.at[t].solid = global->solid;
    RS_TRY(gather_blocks(b, global));
    RS_TRY(global->whole_arrays ? build_arrays(b, global, &layout) : build_boxes(b, global, &layout));
    store->tensors.at[store->tensors.n++] =
        (rs_stored_tensor){reshard_layout_retain(layout), .first = first, .count = store->arrays.n - first};
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_shards_build(rs_shards *s) {
  builder b = {.shards = s};
  reshard_status status = build_all(&b);
  free(b.blocks.at);
  free(b.ranks.at);
  free(b.boxes.at);
  free(b.intervals.at);
  return status;
}

reshard_status rs_shards_append(rs_shards *s, rs_shard *shard, int64_t bytes) {
  rs_global_tensor *global = &s->tensors.at[shard->tensor];
  char where[RS_SHARD_WHERE];
  global->ndim = 1;
  global->layout = -1;
  s->opening->checkpoint->info.left_out_tensors -= global->left_out; /* is counted once */
  global->left_out = rs_opening_leaves(s->opening, &(reshard_model_tensor){.shape = {bytes}});
  shard->box = (reshard_box){.offset = {global->count == 0 ? 0 : global->shape[0]}, .extent = {bytes}};
  if (!rs_add(shard->box.offset[0], bytes, &global->shape[0]))
    return rs_error(RESHARD_ERROR_INVALID, "%s: its shards have more than 2^63 bytes", rs_shard_where(s, shard, where));
  global->count++;
  return RESHARD_SUCCESS;
}

/* By counting. */
reshard_status rs_shards_group(rs_shards *s) {
  char quoted[RS_QUOTE];
  int64_t first = 0;
  RS_TRY(rs_vec_reserve(&s->by_tensor, s->all.n));
  for (int64_t t = 0; t < s->tensors.n; t++) {
    rs_global_tensor *global = &s->tensors.at[t];
    if (global->count == 0 && !global->left_out && !s->opening->options.gaps_allowed)
      return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s' of the reshard metadata is in no file", s->opening->where,
                      rs_quote(quoted, sizeof quoted, global->name));
    global->first = first;
    first += global->count;
    global->count = 0;
  }
  for (int64_t i = 0; i < s->all.n; i++) {
    rs_global_tensor *global = &s->tensors.at[s->all.at[i].tensor];
    s->by_tensor.at[global->first + global->count++] = i;
  }
  s->by_tensor.n = s->all.n;
  return RESHARD_SUCCESS;
}

void rs_shards_free(rs_shards *s) {
  rs_names_free(&s->names);
  free(s->tensors.at);
  free(s->all.at);
  free(s->file_first.at);
  free(s->by_tensor.at);
  free(s->runs.at);
  free(s->rank.at);
  rs_layout_cache_free(&s->layouts);
}

#ifdef RS_HAVE_JANSSON

reshard_status rs_open_shards(rs_opening *opening) {
  rs_shards s = {.opening = opening};
  reshard_checkpoint_info *info = &opening->checkpoint->info;
  reshard_status status = rs_shards_collect(&s);
  RS_THEN(status, rs_shards_group(&s));
  RS_THEN(status, rs_shards_rank(&s));
  RS_THEN(status, rs_shards_build(&s));
  for (int64_t f = 0; f < opening->checkpoint->store.files.n; f++)
    info->stored_bytes += opening->headers[f].model->bytes;
  const char *format = json_string_value(json_object_get(s.root, "format"));
  bool differs;
  if (format != NULL)
    RS_THEN(status, rs_text_pairs_put(&opening->checkpoint->owner, "format", format, &differs));
  info->world = s.stated > 0 ? s.stated : s.world;
  info->described = s.root != NULL;
  json_decref(s.root);
  rs_shards_free(&s);
  return status;
}

#else

reshard_status rs_open_shards(rs_opening *opening) {
  return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: this build reads no shards, it was made without jansson",
                  opening->where);
}

#endif
