/* Moving parts of arrays between files and memory.
 *
 * A part is a box of an array's own indices; in memory it is dense, in a block on file it is rows: as many elements in
 * one piece as its trailing dims span the block. Each row is one read or write. Where the row is in several pieces in
 * memory (the array is cut in boxes side by side), it passes through scratch memory. */
#include "file/move/store.h"

#include <stdlib.h>
#include <string.h>

void rs_store_free(rs_store *s) {
  for (int64_t i = 0; i < s->files.n; i++)
    rs_file_close(&s->files.at[i]);
  for (int64_t i = 0; i < s->tensors.n; i++)
    reshard_layout_release(s->tensors.at[i].layout);
  reshard_model_free(s->model);
  free(s->tensors.at);
  free(s->arrays.at);
  free(s->blocks.at);
  free(s->files.at);
  free(s->views.at);
  *s = (rs_store){0};
}

const rs_stored_array *rs_store_find(const rs_store *s, int64_t tensor, int64_t rank, int64_t array) {
  const rs_stored_tensor *t = &s->tensors.at[tensor];
  int64_t low = t->first, high = t->first + t->count;
  RS_LOWER_BOUND(low, high,
                 s->arrays.at[i].rank < rank || (s->arrays.at[i].rank == rank && s->arrays.at[i].index < array));
  const rs_stored_array *found = &s->arrays.at[low];
  return low < t->first + t->count && found->rank == rank && found->index == array ? found : NULL;
}

reshard_status rs_array_boxes(reshard_layout layout, int64_t rank, int64_t array, int64_t *count, int64_t *shape) {
  if (shape != NULL) {
    reshard_array_info info;
    RS_TRY(reshard_layout_array(layout, rank, array, &info));
    memcpy(shape, info.shape, (size_t)layout->ndim * sizeof *shape);
  }
  int64_t boxes = 1;
  for (int d = 0; d < layout->ndim && count != NULL; d++) {
    int64_t runs;
    RS_TRY(reshard_layout_array_intervals(layout, rank, array, d, 0, 0, NULL, &runs));
    if (!rs_mul(boxes, runs, &boxes))
      boxes = INT64_MAX;
  }
  if (count != NULL)
    *count = boxes;
  return RESHARD_SUCCESS;
}

reshard_status rs_array_box(reshard_layout layout, int64_t rank, int64_t array, int64_t j, reshard_box *global,
                            int64_t *local) {
  reshard_interval runs[RS_MOST_BOXES];
  for (int d = layout->ndim - 1; d >= 0; d--) {
    int64_t count, before = 0;
    RS_TRY(reshard_layout_array_intervals(layout, rank, array, d, 0, RS_MOST_BOXES, runs, &count));
    if (count < 1 || count > RS_MOST_BOXES)
      return rs_error(RESHARD_ERROR_INTERNAL, "an array with %lld runs in dim %d is no list of boxes", (long long)count,
                      d);
    int64_t k = j % count;
    j /= count;
    for (int64_t i = 0; i < k; i++)
      before += runs[i].end - runs[i].begin;
    if (global != NULL) {
      global->offset[d] = runs[k].begin;
      global->extent[d] = runs[k].end - runs[k].begin;
    }
    if (local != NULL)
      local[d] = before;
  }
  return RESHARD_SUCCESS;
}

/* One dense block, and a part of it that is wanted: dims, per dim the block's extent, the part's first index in it, the
 * part's extent; memory strides, all in elements. */
typedef struct block_part {
  const rs_file *file;
  int64_t offset, width;
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS], lo[RESHARD_MAX_DIMS], extent[RESHARD_MAX_DIMS], stride[RESHARD_MAX_DIMS];
  char *memory; /* of the part's first element */
} block_part;

/* Elements of a row: the dims from *dim on are walked by it. dense: extents of the array it is dense in. */
static int64_t row_elements(const block_part *b, const int64_t *dense, int *dim) {
  int64_t n = 1;
  int d = b->ndim;
  while (d > 0) {
    n *= b->extent[--d];
    if (b->extent[d] != dense[d])
      break;
  }
  *dim = d;
  return n;
}

/* The next position in dims [0, dims), as offsets in the block and in memory; false when there is none. */
static bool next_position(const block_part *b, int dims, int64_t *at) {
  for (int d = dims - 1; d >= 0; d--) {
    if (++at[d] < b->extent[d])
      return true;
    at[d] = 0;
  }
  return false;
}

static int64_t block_offset(const block_part *b, const int64_t *at, int dims) {
  int64_t index = 0;
  for (int d = 0; d < b->ndim; d++)
    index = index * b->shape[d] + b->lo[d] + (d < dims ? at[d] : 0);
  return b->offset + index * b->width;
}

static char *memory_at(const block_part *b, const int64_t *at, int from, int dims) {
  int64_t index = 0;
  for (int d = from; d < dims; d++)
    index += at[d] * b->stride[d];
  return b->memory + index * b->width;
}

/* Pieces of one row between memory and scratch: dims [dim, pieces) count them. */
static void copy_row(const block_part *b, const int64_t *at, int dim, int pieces, int64_t piece, char *scratch,
                     bool write) {
  int64_t inner[RESHARD_MAX_DIMS] = {0};
  char *base = memory_at(b, at, 0, dim);
  do {
    char *memory = base + (memory_at(b, inner, dim, pieces) - b->memory);
    memcpy(write ? scratch : memory, write ? memory : scratch, (size_t)piece);
    scratch += piece;
    int d = pieces - 1;
    while (d >= dim && ++inner[d] == b->extent[d])
      inner[d--] = 0;
    if (d < dim)
      return;
  } while (true);
}

/* memory_shape: extents of the dense memory that the strides belong to. */
static reshard_status move_block(const block_part *b, const int64_t *memory_shape, rs_scratch *scratch, bool write) {
  int dim, pieces;
  int64_t bytes = row_elements(b, b->shape, &dim) * b->width, piece = row_elements(b, memory_shape, &pieces) * b->width;
  int64_t at[RESHARD_MAX_DIMS] = {0};
  if (pieces <= dim) { /* a row is in one piece in memory */
    do {
      int64_t offset = block_offset(b, at, dim);
      char *memory = memory_at(b, at, 0, dim);
      RS_TRY(write ? rs_file_write_at(b->file, offset, memory, bytes)
                   : rs_file_read_at(b->file, offset, memory, bytes));
    } while (next_position(b, dim, at));
    return RESHARD_SUCCESS;
  }
  RS_TRY(rs_vec_reserve(scratch, bytes));
  do {
    int64_t offset = block_offset(b, at, dim);
    if (write) {
      copy_row(b, at, dim, pieces, piece, scratch->at, true);
      RS_TRY(rs_file_write_at(b->file, offset, scratch->at, bytes));
    } else {
      RS_TRY(rs_file_read_at(b->file, offset, scratch->at, bytes));
      copy_row(b, at, dim, pieces, piece, scratch->at, false);
    }
  } while (next_position(b, dim, at));
  return RESHARD_SUCCESS;
}

static reshard_status move_part(const rs_store *s, int64_t tensor, const rs_stored_array *array, const int64_t *lo,
                                const int64_t *extent, char *memory, rs_scratch *scratch, bool write) {
  reshard_layout layout = s->tensors.at[tensor].layout;
  int ndim = layout->ndim;
  block_part b = {.ndim = ndim, .width = (int64_t)reshard_dtype_size(s->model->tensors.at[tensor].dtype)};
  int64_t stride = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    if (extent[d] == 0)
      return RESHARD_SUCCESS;
    b.stride[d] = stride;
    stride *= extent[d];
  }
  for (int32_t j = 0; j < array->count; j++) {
    const rs_stored_block *from = &s->blocks.at[array->first + j];
    reshard_box box;
    int64_t first[RESHARD_MAX_DIMS] = {0}, skip = 0;
    bool meets = true;
    b.file = &s->files.at[from->file];
    b.offset = from->offset;
    if (array->count == 1)
      RS_TRY(rs_array_boxes(layout, array->rank, array->index, NULL, b.shape));
    else
      RS_TRY(rs_array_box(layout, array->rank, array->index, j, &box, first));
    for (int d = 0; d < ndim; d++) {
      if (array->count > 1)
        b.shape[d] = box.extent[d];
      int64_t begin = rs_max(lo[d], first[d]), end = rs_min(lo[d] + extent[d], first[d] + b.shape[d]);
      b.lo[d] = begin - first[d];
      b.extent[d] = end - begin;
      skip += (begin - lo[d]) * b.stride[d];
      meets = meets && begin < end;
    }
    b.memory = memory + skip * b.width;
    if (meets)
      RS_TRY(move_block(&b, extent, scratch, write));
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_store_read(const rs_store *store, int64_t tensor, const rs_stored_array *array, const int64_t *lo,
                             const int64_t *extent, char *memory, rs_scratch *scratch) {
  return move_part(store, tensor, array, lo, extent, memory, scratch, false);
}

reshard_status rs_store_write(const rs_store *store, int64_t tensor, const rs_stored_array *array, const int64_t *lo,
                              const int64_t *extent, const char *memory, rs_scratch *scratch) {
  return move_part(store, tensor, array, lo, extent, (char *)memory, scratch, true);
}
