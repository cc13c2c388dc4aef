/* Parts of an open checkpoint, read into a caller's memory, which is a store too. */
#include "base/text.h"
#include "file/model/layout_cache.h"
#include "file/move/move.h"
#include "file/read/checkpoint.h"

#include <stdlib.h>
#include <string.h>

/* Boxes as tensors of their own, each with its region: a plan would look at all boxes of a layout for each region. */
static reshard_status add_boxes(rs_store *s, int64_t tensor, reshard_layout layout, int64_t rank, reshard_dtype dtype,
                                const rs_views *views, rs_copy_regions *regions) {
  rs_layout_cache shapes = {0};
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t a = 0, number; a < views->n && status == RESHARD_SUCCESS; a++) {
    reshard_array_info info;
    reshard_box box;
    status = reshard_layout_array(layout, rank, a, &info);
    if (status == RESHARD_SUCCESS && info.elements == 0) /* no box has it, and nothing is read */
      continue;
    RS_THEN(status, rs_array_box(layout, rank, a, 0, &box, NULL));
    RS_THEN(status, rs_layout_cache_single(&shapes, layout->ndim, box.extent, &number));
    RS_THEN(status, rs_memory_add_tensor(s, dtype, shapes.made.at[number]));
    RS_THEN(status, rs_memory_add_arrays(s, 0, &views->at[a]));
    RS_THEN(status, rs_whole_region(tensor, s, s->tensors.n - 1, regions));
    if (status == RESHARD_SUCCESS)
      memcpy(regions->at[regions->n - 1].src_offset, box.offset, (size_t)layout->ndim * sizeof *box.offset);
  }
  rs_layout_cache_free(&shapes);
  return status;
}

/* The caller's buffers as a store, and the way there. */
static reshard_status make_target(rs_store *s, reshard_checkpoint checkpoint, int64_t tensor, reshard_layout layout,
                                  int64_t rank, void *const *buffers, rs_copy_regions *regions) {
  reshard_dtype dtype = checkpoint->store.model->tensors.at[tensor].dtype;
  rs_views views = {0};
  reshard_status status = rs_memory_views("reshard_checkpoint_read", layout, rank, dtype, buffers, &views);
  if (status == RESHARD_SUCCESS && layout->kind == RESHARD_LAYOUT_BOXES && views.n > 1) {
    status = add_boxes(s, tensor, layout, rank, dtype, &views, regions);
  } else {
    RS_THEN(status, rs_memory_add_tensor(s, dtype, layout));
    RS_THEN(status, rs_memory_add_arrays(s, rank, views.at));
    RS_THEN(status, rs_rank_regions(&checkpoint->store, tensor, s, 0, rank, regions));
  }
  free(views.at);
  return status;
}

reshard_status reshard_checkpoint_read(reshard_checkpoint checkpoint, int64_t tensor, reshard_layout layout,
                                       int64_t rank, int threads, void *const *buffers) {
  RS_TRY(rs_checkpoint_given("reshard_checkpoint_read", checkpoint, tensor, layout));
  const rs_model_tensor *t = &checkpoint->store.model->tensors.at[tensor];
  char wanted[RS_SHAPE_TEXT], given[RS_SHAPE_TEXT];
  RS_TRY(rs_model_check_dtype(checkpoint->store.model, tensor));
  if (!rs_shape_equal(layout->ndim, layout->shape, t->ndim, t->shape))
    return rs_error(RESHARD_ERROR_INVALID, "reshard_checkpoint_read: a layout of shape %s, the tensor's is %s",
                    rs_shape_text(given, layout->ndim, layout->shape), rs_shape_text(wanted, t->ndim, t->shape));
  if (threads < 0)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_checkpoint_read: %d threads", threads);
  if (rank < 0 || rank >= layout->world)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_checkpoint_read: rank %lld of %lld", (long long)rank,
                    (long long)layout->world);
  rs_store target = {0};
  rs_copy_regions regions = {0};
  reshard_status status = make_target(&target, checkpoint, tensor, layout, rank, buffers, &regions);
  RS_THEN(status, rs_store_move_run(&(rs_store_move){.src = &checkpoint->store,
                                                     .dst = &target,
                                                     .nregions = regions.n,
                                                     .regions = regions.at,
                                                     .threads = threads,
                                                     .only_rank = -1}));
  rs_store_free(&target);
  free(regions.at);
  return status;
}

/* Bytes of a box that lie in one run of a file, which a tensor is in whole, and where; 0: they do not. */
static int64_t find_run(const rs_store *s, int64_t tensor, const reshard_box *box, const rs_file **file,
                        int64_t *offset) {
  const rs_model_tensor *t = &s->model->tensors.at[tensor];
  const rs_stored_tensor *stored = &s->tensors.at[tensor];
  int64_t width = (int64_t)reshard_dtype_size(t->dtype), bytes = width, first = 0;
  bool inner = true; /* all dims behind are whole */
  if (stored->layout->kind != RESHARD_LAYOUT_SINGLE || stored->count != 1 || stored->reversed)
    return 0;
  for (int d = t->ndim - 1; d >= 0; d--) {
    if (!inner && box->extent[d] != 1)
      return 0;
    inner = inner && box->extent[d] == t->shape[d];
    first += box->offset[d] * width;
    width *= t->shape[d];
    bytes *= box->extent[d];
  }
  const rs_stored_block *block = &s->blocks.at[s->arrays.at[stored->first].first];
  *file = &s->files.at[block->file];
  *offset = block->offset + first;
  return bytes;
}

/* The box as the one array of a layout. */
static reshard_status read_layout(reshard_checkpoint c, int64_t tensor, const reshard_box *box, int threads,
                                  void *buffer) {
  const rs_model_tensor *t = &c->store.model->tensors.at[tensor];
  const int64_t rank = 0;
  reshard_layout layout;
  if (rs_shape_equal(t->ndim, t->shape, t->ndim, box->extent))
    RS_TRY(reshard_layout_create_single(t->ndim, t->shape, 1, rank, &layout));
  else
    RS_TRY(reshard_layout_create_boxes(t->ndim, t->shape, 1, 1, &rank, box, 0, &layout));
  reshard_status status = reshard_checkpoint_read(c, tensor, layout, rank, threads, &buffer);
  reshard_layout_release(layout);
  return status;
}

enum { ONE_READ = 1 << 20 }; /* bytes; more are worth what it takes to find threads */

reshard_status reshard_checkpoint_read_box(reshard_checkpoint checkpoint, int64_t tensor, const reshard_box *box,
                                           int threads, void *buffer) {
  static const char call[] = "reshard_checkpoint_read_box";
  RS_TRY(rs_checkpoint_given(call, checkpoint, tensor, box));
  const rs_model_tensor *t = &checkpoint->store.model->tensors.at[tensor];
  const rs_file *file = NULL;
  int64_t offset = 0;
  bool empty = false;
  RS_TRY(rs_model_check_dtype(checkpoint->store.model, tensor));
  for (int d = 0; d < t->ndim; d++) {
    int64_t end;
    if (box->offset[d] < 0 || box->extent[d] < 0 || !rs_add(box->offset[d], box->extent[d], &end) || end > t->shape[d])
      return rs_error(RESHARD_ERROR_INVALID, "%s: offset %lld and extent %lld in dim %d, of extent %lld", call,
                      (long long)box->offset[d], (long long)box->extent[d], d, (long long)t->shape[d]);
    empty = empty || box->extent[d] == 0;
  }
  if (threads < 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %d threads", call, threads);
  if (empty)
    return RESHARD_SUCCESS;
  RS_TRY(RS_GIVEN(call, buffer));
  int64_t bytes = find_run(&checkpoint->store, tensor, box, &file, &offset);
  if (bytes > 0 && bytes <= ONE_READ)
    return rs_file_read_at(file, offset, buffer, bytes);
  return read_layout(checkpoint, tensor, box, threads, buffer);
}
