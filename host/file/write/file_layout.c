/* Shards: the boxes of all arrays that a rank holds of a tensor are numbered, array after array. Box j is in the rank's
 * file j, so that a file has each name once, as PyTorch's reader wants it. Whole formats are the same with one rank and
 * one block a tensor, and files that are filled one after the other.
 *
 * Tensors are taken in the order in which they lie in a file. Blocks are then sorted by (rank, number), which keeps
 * that order: two radix sorts. All of it is linear but for the sort of the names. */
#include "file/write/file_layout.h"

#include "base/text.h"
#include "file/write/header.h"
#include "layout/sort.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES ((int64_t)1 << 62) /* so that no sum with headers overflows */

typedef struct layout_builder {
  rs_file_layout *files;
  rs_store *store;
  const char *where;
  bool dedup;
  RS_VEC(int64_t) ranks;
  RS_VEC(rs_holder) holders;
} layout_builder;

void rs_file_layout_free(rs_file_layout *files) {
  free(files->blocks.at);
  free(files->all.at);
  free(files->order);
  *files = (rs_file_layout){0};
}

typedef struct sorted_tensor {
  const char *name;
  int64_t tensor;
  int class;
} sorted_tensor;

static int by_class_and_name(const void *a, const void *b) {
  const sorted_tensor *x = a, *y = b;
  return x->class != y->class ? (x->class > y->class ? -1 : 1) : strcmp(x->name, y->name);
}

/* Appends the ranks that a layout names, ascending. */
static reshard_status list_ranks(layout_builder *w, reshard_layout layout) {
  w->ranks.n = 0;
  if (layout->kind == RESHARD_LAYOUT_BOXES) {
    RS_TRY(rs_vec_reserve(&w->ranks, layout->boxes->nranks));
    for (int64_t i = 0; i < layout->boxes->nranks; i++)
      w->ranks.at[w->ranks.n++] = layout->boxes->rank[i];
    return RESHARD_SUCCESS;
  }
  RS_TRY(rs_vec_reserve(&w->ranks, layout->ranks.n));
  for (int64_t r = 0; r < layout->ranks.nranges; r++) {
    const rs_rank_range *range = &layout->ranks.sorted[r];
    int64_t lowest = range->step > 0 ? range->first : range->first - range->count + 1;
    for (int64_t i = 0; i < range->count; i++)
      w->ranks.at[w->ranks.n++] = lowest + i;
  }
  return RESHARD_SUCCESS;
}

/* Appends a stored array of that many elements, whose blocks are the next ones. */
static reshard_status add_array(layout_builder *w, int64_t tensor, rs_stored_array array, int64_t elements) {
  int64_t bytes = elements * (int64_t)reshard_dtype_size(w->store->model->tensors.at[tensor].dtype);
  if (!rs_add(w->files->bytes, bytes, &w->files->bytes) || w->files->bytes > MOST_BYTES)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the files would have more than 2^62 bytes", w->where);
  return rs_vec_push(&w->store->arrays, array);
}

static reshard_status add_block(layout_builder *w, rs_file_block block) {
  return rs_vec_push(&w->files->blocks, block);
}

/* The lowest rank that holds an array, its own included, is where it is stored. */
static reshard_status is_lowest(layout_builder *w, reshard_layout layout, int64_t rank, int64_t array, bool *lowest) {
  int64_t cell = rs_layout_cell(layout, rank, array);
  RS_TRY(rs_vec_reserve(&w->holders, rs_layout_holder_count(layout, cell)));
  const rs_holder *holders = rs_layout_holders(layout, cell, w->holders.at);
  *lowest = holders[0].rank == rank;
  return RESHARD_SUCCESS;
}

/* One array of a rank, whose first box is number *number; `whole` has no boxes of its own. */
static reshard_status add_array_blocks(layout_builder *w, int64_t tensor, int64_t rank, int64_t array, bool whole,
                                       int64_t *number) {
  reshard_layout layout = w->store->tensors.at[tensor].layout;
  int64_t boxes, shape[RESHARD_MAX_DIMS], elements = 1;
  RS_TRY(rs_array_boxes(layout, rank, array, &boxes, shape));
  for (int d = 0; d < layout->ndim; d++)
    elements *= shape[d];
  if (elements == 0)
    return RESHARD_SUCCESS;
  bool here = true;
  if (w->dedup)
    RS_TRY(is_lowest(w, layout, rank, array, &here));
  if (!here)
    return RESHARD_SUCCESS;
  int32_t count = whole ? 1 : (int32_t)boxes;
  RS_TRY(add_array(w, tensor, (rs_stored_array){rank, array, w->files->blocks.n, count}, elements));
  for (int32_t j = 0; j < count; j++)
    RS_TRY(add_block(w, (rs_file_block){tensor, w->store->arrays.n - 1, rank, (*number)++, whole ? -1 : j}));
  w->files->whole_arrays += whole;
  return RESHARD_SUCCESS;
}

/* True where all that a rank has of a tensor is too many boxes: each of its arrays is stored whole then. An array of
 * other kinds is a box. */
static reshard_status is_whole(layout_builder *w, int64_t tensor, int64_t rank, bool *whole) {
  reshard_layout layout = w->store->tensors.at[tensor].layout;
  int64_t arrays = rs_layout_arrays(layout, rank), boxes, sum = 0;
  char quoted[RS_QUOTE];
  *whole = false;
  if (!rs_layout_regular(layout))
    return RESHARD_SUCCESS;
  if (arrays > RS_MOST_BOXES)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': %lld arrays of rank %lld, %d are the most in shards",
                    w->where, rs_quote(quoted, sizeof quoted, rs_model_name(w->store->model, tensor)),
                    (long long)arrays, (long long)rank, RS_MOST_BOXES);
  for (int64_t a = 0; a < arrays; a++) {
    RS_TRY(rs_array_boxes(layout, rank, a, &boxes, NULL));
    sum += rs_min(boxes, RS_MOST_BOXES + 1);
  }
  *whole = sum > RS_MOST_BOXES;
  return RESHARD_SUCCESS;
}

static reshard_status add_shard_blocks(layout_builder *w, int64_t tensor) {
  reshard_layout layout = w->store->tensors.at[tensor].layout;
  if (layout->elements == 0) {
    bool boxes = layout->kind == RESHARD_LAYOUT_BOXES;
    int64_t first = !boxes ? rs_ranks_at(&layout->ranks, 0) : layout->boxes->n > 0 ? layout->boxes->ranks[0] : 0;
    return add_block(w, (rs_file_block){tensor, -1, first, 0, 0});
  }
  RS_TRY(list_ranks(w, layout));
  for (int64_t i = 0; i < w->ranks.n; i++) {
    int64_t number = 0, arrays = rs_layout_arrays(layout, w->ranks.at[i]);
    bool whole;
    RS_TRY(is_whole(w, tensor, w->ranks.at[i], &whole));
    for (int64_t a = 0; a < arrays; a++)
      RS_TRY(add_array_blocks(w, tensor, w->ranks.at[i], a, whole, &number));
  }
  return RESHARD_SUCCESS;
}

static reshard_status add_whole_block(layout_builder *w, int64_t tensor, int64_t number) {
  reshard_layout layout = w->store->tensors.at[tensor].layout;
  if (layout->elements == 0)
    return add_block(w, (rs_file_block){tensor, -1, 0, number, 0});
  RS_TRY(list_ranks(w, layout));
  for (int64_t i = 0; i < w->ranks.n; i++) {
    int64_t arrays = rs_layout_arrays(layout, w->ranks.at[i]);
    for (int64_t a = 0; a < arrays; a++) {
      reshard_array_info info;
      RS_TRY(reshard_layout_array(layout, w->ranks.at[i], a, &info));
      if (info.elements < layout->elements)
        continue;
      RS_TRY(add_array(w, tensor, (rs_stored_array){w->ranks.at[i], a, w->files->blocks.n, 1}, info.elements));
      return add_block(w, (rs_file_block){tensor, w->store->arrays.n - 1, 0, number, 0});
    }
  }
  char quoted[RS_QUOTE], other[RS_QUOTE], text[RS_QUOTE + 1] = "";
  (void)reshard_layout_print(layout, text, sizeof text, NULL); /* what fits is enough */
  return rs_error(RESHARD_ERROR_INVALID,
                  "%s: tensor '%s': no rank of the layout '%s' holds all of it in one array, and the "
                  "file is one of whole tensors",
                  w->where, rs_quote(quoted, sizeof quoted, rs_model_name(w->store->model, tensor)),
                  rs_quote(other, sizeof other, text));
}

/* Assigns a file to each whole tensor. Files are filled in the order of the model. A tensor that fits in none has one
 * of its own, and the file under way goes on. Source: Hugging Face's save_pretrained, which does not count the header;
 * here a file with its header is within the limit. */
static void fill_files(const rs_file_layout *layout, const rs_store *store, int64_t most, int64_t *number) {
  int64_t files = 0, open = -1, used = 0, least = rs_header_least(layout);
  for (int64_t i = 0; i < store->model->tensors.n; i++) {
    const rs_model_tensor *t = &store->model->tensors.at[i];
    int64_t bytes = store->tensors.at[i].layout->elements * (int64_t)reshard_dtype_size(t->dtype), need;
    if (!rs_add(bytes, rs_header_most(layout, store, i), &need) || need > most - least) {
      number[i] = files++;
      continue;
    }
    if (open < 0 || used > most - need) {
      open = files++;
      used = least;
    }
    number[i] = open;
    used += need;
  }
}

static reshard_status add_tensors(layout_builder *w, int64_t index_bytes) {
  int64_t n = w->store->model->tensors.n, *number = NULL;
  sorted_tensor *places;
  RS_TRY(rs_alloc(&places, n, sizeof *places));
  reshard_status status = rs_alloc_zero(&number, n, sizeof *number);
  if (status == RESHARD_SUCCESS && index_bytes > 0)
    fill_files(w->files, w->store, index_bytes, number);
  for (int64_t i = 0; i < n; i++)
    places[i] =
        (sorted_tensor){rs_model_name(w->store->model, i), i, rs_header_class(w->store->model->tensors.at[i].dtype)};
  if (n > 1)
    qsort(places, (size_t)n, sizeof *places, by_class_and_name);
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++) {
    int64_t tensor = places[i].tensor;
    rs_stored_tensor *stored = &w->store->tensors.at[tensor];
    stored->first = w->store->arrays.n;
    status = w->files->format == RESHARD_FORMAT_SHARDS ? add_shard_blocks(w, tensor)
                                                       : add_whole_block(w, tensor, number[tensor]);
    stored->count = w->store->arrays.n - stored->first;
  }
  free(number);
  free(places);
  return status;
}

/* Blocks by (rank, number), each of which is a file. */
static reshard_status sort_blocks(rs_file_layout *files, int64_t *order) {
  int64_t n = files->blocks.n;
  rs_pair *memory, *pairs, *spare;
  if (n == 0)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc(&memory, 2 * n, sizeof *memory));
  uint64_t ranks = 0, numbers = 0;
  for (int64_t i = 0; i < n; i++) {
    memory[i] = (rs_pair){(uint64_t)files->blocks.at[i].number, (uint64_t)i};
    numbers |= memory[i].key;
    ranks |= (uint64_t)files->blocks.at[i].rank;
  }
  pairs = rs_sort_pairs(memory, memory + n, n, false, 0, rs_bits(numbers));
  spare = pairs == memory ? memory + n : memory;
  for (int64_t i = 0; i < n; i++)
    pairs[i].key = (uint64_t)files->blocks.at[pairs[i].value].rank;
  pairs = rs_sort_pairs(pairs, spare, n, false, 0, rs_bits(ranks));
  for (int64_t i = 0; i < n; i++)
    order[i] = (int64_t)pairs[i].value;
  free(memory);
  return RESHARD_SUCCESS;
}

static reshard_status list_files(rs_file_layout *files, rs_store *store) {
  for (int64_t i = 0; i < files->blocks.n; i++) {
    const rs_file_block *b = &files->blocks.at[files->order[i]];
    rs_layout_file *last = files->all.n > 0 ? &files->all.at[files->all.n - 1] : NULL;
    if (last == NULL || last->rank != b->rank || last->number != b->number + 1)
      RS_TRY(rs_vec_push(&files->all, (rs_layout_file){b->rank, b->number + 1, 0, i, 0}));
    files->all.at[files->all.n - 1].count++;
    store->blocks.at[files->order[i]] = (rs_stored_block){0, (int32_t)(files->all.n - 1)};
  }
  if (files->all.n == 0) { /* nothing is held: what there is to know stands in one file */
    RS_TRY(rs_vec_reserve(&files->all, 1));
    files->all.at[files->all.n++] = (rs_layout_file){0, 1, 0, 0, 0};
  }
  for (int64_t i = files->all.n - 1; i >= 0; i--) {
    rs_layout_file *f = &files->all.at[i];
    f->of = i + 1 < files->all.n && f[1].rank == f->rank ? f[1].of : f->number;
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_file_layout_make(rs_file_layout *files, rs_store *store, const char *where, bool dedup,
                                   int64_t index_bytes) {
  layout_builder w = {.files = files, .store = store, .where = where, .dedup = dedup};
  reshard_status status = add_tensors(&w, index_bytes);
  free(w.ranks.at);
  free(w.holders.at);
  RS_TRY(status);
  RS_TRY(rs_vec_reserve(&store->blocks, files->blocks.n));
  store->blocks.n = files->blocks.n;
  RS_TRY(rs_alloc(&files->order, files->blocks.n, sizeof *files->order));
  RS_TRY(sort_blocks(files, files->order));
  RS_TRY(list_files(files, store));
  if (files->all.n > INT32_MAX)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld files, %d are the most", where, (long long)files->all.n,
                    INT32_MAX);
  return RESHARD_SUCCESS;
}

const char *rs_file_layout_name(const rs_file_layout *files, int64_t file, char name[RS_FILE_LAYOUT_NAME]) {
  const rs_layout_file *f = &files->all.at[file];
  name[0] = '\0';
  if (files->format == RESHARD_FORMAT_SHARDS)
    snprintf(name, RS_FILE_LAYOUT_NAME, "shard-%05lld-model-%05lld-of-%05lld.safetensors", (long long)f->rank + 1,
             (long long)f->number, (long long)f->of);
  else if (files->format == RESHARD_FORMAT_WHOLE)
    snprintf(name, RS_FILE_LAYOUT_NAME, "model-%05lld-of-%05lld.safetensors", (long long)f->number, (long long)f->of);
  return name;
}
