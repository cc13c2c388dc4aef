/* Trees moved to a device.
 *
 * One mapping makes the new tensors and lists the copies; then all are given to streams at once. Copies run on a side
 * stream of a GPU, so that they overlap with the caller's stream. What protects whom:
 *
 *   - A source that work of the caller's stream may still write (memory of a GPU, pinned memory): the side stream
 *     comes after that work. The host reads a source in pageable memory before the call returns.
 *   - New storage belongs to the side stream, on which it is allocated: it is there as soon as earlier uses of that
 *     memory are done, not when all work of the caller's stream is. The caller's stream is marked as one that uses it.
 *   - Later work of the caller's stream comes after the copies: uses of new tensors, writes to sources.
 *   - A source that is released after the call: storage of a pool is freed after the streams that are marked on it;
 *     borrowed pinned memory is retained until an event has happened. The owner of borrowed memory of a GPU frees it
 *     in the order of the caller's stream. Storage of another GPU's streams cannot be marked with one of this GPU: a
 *     side stream of its owner waits for the copies and is marked instead.
 *   - Staging and temporary memory are freed on the side stream. */
#include "tree/move.h"

#include "tree/walk.h"

#include <stdlib.h>

reshard_status rs_tensor_where(const char *call, reshard_tensor tensor, reshard_device device) {
  char is[RS_DEVICE_TEXT], wanted[RS_DEVICE_TEXT];
  if (rs_tensor_is_on(tensor, device->device))
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_INVALID, "%s: a tensor on %s, the device is %s", call,
                  rs_device_text(is, tensor->info.device_type, tensor->info.device_index),
                  rs_device_text(wanted, device->device->type, device->device->index));
}

/* --- Tensors to be moved --------------------------------------------------------------------------------- */

/* Finds the streams and the events of the GPU that copies. */
static reshard_status open_gpu(rs_move *m, reshard_device gpu) {
  m->gpu = reshard_device_retain(gpu);
  m->side = m->stream;
  RS_TRY(rs_device_check_capture(m->call, gpu->device, m->stream));
  if (!m->same_stream)
    RS_TRY(rs_device_side(gpu, m->to == gpu ? RS_SIDE_IN : RS_SIDE_OUT, &m->side));
  return rs_deferred_release_begin(gpu->deferred, &m->kept);
}

/* Opens the GPU of a source; one without a handle (DLPack) gets one for the time of the move. */
static reshard_status open_source(rs_move *m, reshard_tensor src) {
  char name[RS_DEVICE_TEXT];
  reshard_device owner = reshard_device_retain(rs_tensor_device(src));
  if (owner == NULL)
    RS_TRY(reshard_device_create(rs_device_text(name, RESHARD_DEVICE_CUDA, src->info.device_index), NULL, &owner));
  reshard_status status = open_gpu(m, owner);
  reshard_device_release(owner);
  return status;
}

static reshard_status open_for_source(rs_move *m, reshard_tensor src) {
  if (m->to->device->type == RESHARD_DEVICE_CUDA)
    return m->gpu != NULL ? RESHARD_SUCCESS : open_gpu(m, m->to);
  if (m->gpu == NULL)
    return open_source(m, src);
  if (rs_tensor_is_on(src, m->gpu->device))
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_INVALID, "%s: a tensor on cuda:%d and one on cuda:%d: stream is of one GPU", m->call,
                  m->gpu->device->index, src->info.device_index);
}

static void release_tensor(void *user, void *what) {
  (void)user;
  reshard_tensor_release(what);
}

/* Finds a side stream of another GPU's handle, which will come after the copies. */
static reshard_status owner_stream(rs_move *m, reshard_device owner, void **stream) {
  RS_TRY(rs_device_side(owner, RS_SIDE_OUT, stream));
  for (int64_t i = 0; i < m->owners.n; i++)
    if (m->owners.at[i] == owner)
      return RESHARD_SUCCESS;
  return rs_vec_push(&m->owners, reshard_device_retain(owner));
}

/* Retains a source's memory until it has been copied, whatever becomes of the tensor. */
static reshard_status keep_source(rs_move *m, reshard_tensor src) {
  reshard_device owner = rs_tensor_device(src);
  RS_TRY(rs_tensor_ready(m->call, src));
  if (src->info.elements == 0) /* its storage may be freed */
    return RESHARD_SUCCESS;
  if (rs_tensor_pageable(src)) {
    m->pageable += (int64_t)rs_tensor_nbytes(src);
    return RESHARD_SUCCESS;
  }
  m->after |= !m->sources_ready;
  bool streamed = src->storage->block != NULL && owner->device->type == m->gpu->device->type;
  if (!streamed && src->info.device_type == RESHARD_DEVICE_CPU) {
    RS_TRY(rs_deferred_release_add(m->kept, release_tensor, NULL, src));
    reshard_tensor_retain(src);
    return RESHARD_SUCCESS;
  }
  void *stream = m->side;
  if (streamed && owner->device->index != m->gpu->device->index)
    RS_TRY(owner_stream(m, owner, &stream));
  return rs_tensor_use(m->call, src, stream);
}

static reshard_status make_destination(rs_move *m, reshard_tensor src, reshard_tensor *dst) {
  const reshard_tensor_info *info = &src->info;
  bool in = m->to == m->gpu, pinned = !in && info->pin_memory;
  if (pinned)
    RS_TRY(rs_tensor_create_pinned(m->gpu, info->dtype, info->ndim, info->shape, m->side, dst));
  else
    RS_TRY(reshard_tensor_create_on(m->to, info->dtype, info->ndim, info->shape, in ? m->side : NULL, dst));
  reshard_tensor_set_requires_grad(*dst, info->requires_grad);
  reshard_tensor_set_pin_memory(*dst, info->pin_memory);
  m->waits |= !in && !pinned;
  return in || pinned ? rs_tensor_use(m->call, *dst, m->stream) : RESHARD_SUCCESS;
}

static reshard_status add_entry(rs_move *m, reshard_tensor src, reshard_tensor *dst) {
  RS_TRY(open_for_source(m, src));
  RS_TRY(rs_vec_reserve(&m->entries, m->entries.n + 1));
  RS_TRY(keep_source(m, src));
  RS_TRY(make_destination(m, src, dst));
  if (src->info.elements > 0)
    m->entries.at[m->entries.n++] = (rs_move_entry){reshard_tensor_retain(src), reshard_tensor_retain(*dst), NULL};
  return RESHARD_SUCCESS;
}

static reshard_status move_tensor(void *user, const char *path, reshard_tensor src, reshard_tensor *moved) {
  rs_move *m = user;
  reshard_tensor dst = NULL;
  if (rs_tensor_is_on(src, m->to->device))
    return RESHARD_SUCCESS;
  reshard_status status = add_entry(m, src, &dst);
  if (status != RESHARD_SUCCESS) {
    reshard_tensor_release(dst);
    return rs_path_error(path, status);
  }
  *moved = dst;
  return status;
}

/* --- The call -------------------------------------------------------------------------------------------- */

static reshard_status read_options(rs_move *m, const reshard_move_options *options) {
  if (options == NULL)
    return RESHARD_SUCCESS;
  RS_TRY(RS_SIZED(reshard_move_options, options));
  m->same_stream = options->same_stream != 0;
  m->sources_ready = options->sources_ready != 0;
  return RESHARD_SUCCESS;
}

static void move_free(rs_move *m) {
  if (m->kept != NULL)
    rs_deferred_release_end(m->gpu->deferred, m->kept, m->under_way);
  for (int64_t i = 0; i < m->owners.n; i++)
    reshard_device_release(m->owners.at[i]);
  for (int64_t i = 0; i < m->entries.n; i++) {
    reshard_tensor_release(m->entries.at[i].src);
    reshard_tensor_release(m->entries.at[i].dst);
  }
  reshard_device_release(m->gpu);
  free(m->owners.at);
  free(m->entries.at);
}

reshard_status reshard_tree_to(reshard_tree tree, reshard_device device, void *stream,
                               const reshard_move_options *options, reshard_tree *moved) {
  rs_move m = {.call = "reshard_tree_to", .to = device, .stream = stream};
  RS_TRY(RS_GIVEN("reshard_tree_to", tree, device, moved));
  RS_TRY(read_options(&m, options));
  reshard_tree made;
  reshard_status status = rs_tree_map_tensors(tree, move_tensor, &m, false, &made);
  if (status == RESHARD_SUCCESS) {
    if (m.gpu != NULL)
      status = rs_move_launch(&m);
    if (status != RESHARD_SUCCESS)
      reshard_tree_release(made);
  }
  move_free(&m);
  if (status == RESHARD_SUCCESS)
    *moved = made;
  return status;
}
