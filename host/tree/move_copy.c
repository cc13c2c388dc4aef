/* The copies of a move.
 *
 * The host packs pageable memory into pieces of the staging ring; the GPU copies one piece while the next one is
 * packed. A piece may have parts of several tensors. A GPU makes a strided tensor contiguous that the host cannot read
 * itself: before the copy to the host; or after the copy from it, of all bytes from its first to its last. All these
 * tensors are one program. */
#include "device/memory/staging.h"
#include "device/stream.h"
#include "tree/move.h"

#include <stdlib.h>

enum {
  PIECE = 4 << 20,  /* bytes of staging */
  ALONE = 16 << 20, /* fewer are not worth starting threads for */
};

static bool is_outgoing(const rs_move *m) { return m->to != m->gpu; }

static reshard_status copy_to(const rs_move *m, void *dst, const void *src, size_t bytes) {
  rs_device *device = m->gpu->device;
  return device->memory->memcpy(device, dst, src, bytes, m->side);
}

/* Adds loops of n dims, from strides of the source to contiguous. */
static reshard_status add_boxes(rs_copies *copies, const char *src, char *dst, const reshard_tensor_info *info,
                                int first, int64_t n) {
  int64_t width = (int64_t)reshard_dtype_size(info->dtype), step = width;
  rs_axis axes[RESHARD_MAX_DIMS];
  for (int d = info->ndim - 1; d >= first; d--) {
    axes[d] = (rs_axis){d == first ? n : info->shape[d], info->strides[d] * width, step};
    step *= axes[d].n;
  }
  return rs_copies_add(copies, src, dst, (int32_t)width, info->ndim - first, axes + first);
}

/* --- Pageable memory to the GPU -------------------------------------------------------------------------- */

/* Contiguous bytes of a piece, and their destination. */
typedef struct packed_part {
  char *dst;
  int64_t at, bytes;
} packed_part;

typedef struct piece_packer {
  const rs_move *m;
  reshard_device cpu;
  rs_staging *staging;
  rs_staging_block *piece; /* that is being filled; NULL: none */
  char *memory;
  int64_t filled;
  rs_copies copies; /* into it */
  RS_VEC(packed_part) parts;
} piece_packer;

static reshard_status send_parts(piece_packer *p) {
  RS_TRY(rs_device_run_once(p->cpu, &p->copies, p->m->pageable, NULL));
  for (int64_t i = 0; i < p->parts.n; i++)
    RS_TRY(copy_to(p->m, p->parts.at[i].dst, p->memory + p->parts.at[i].at, (size_t)p->parts.at[i].bytes));
  return RESHARD_SUCCESS;
}

/* Sends the piece that is being filled; it is returned in any case. */
static reshard_status send_piece(piece_packer *p) {
  if (p->piece == NULL)
    return RESHARD_SUCCESS;
  reshard_status status = send_parts(p);
  reshard_status given = rs_staging_give(p->staging, p->piece, p->m->side);
  p->piece = NULL;
  p->filled = p->parts.n = 0;
  rs_copies_clear(&p->copies);
  return status != RESHARD_SUCCESS ? status : given;
}

/* Packs n steps of dim `first`, all of the dims inside of it: bytes that fit a piece. dst continues the box before. */
static reshard_status pack_box(piece_packer *p, const char *src, char *dst, const reshard_tensor_info *info, int first,
                               int64_t n, int64_t bytes) {
  if (p->filled + bytes > PIECE)
    RS_TRY(send_piece(p));
  if (p->piece == NULL)
    RS_TRY(rs_staging_take(p->staging, PIECE, &p->piece, (void **)&p->memory));
  RS_TRY(rs_vec_reserve(&p->parts, p->parts.n + 1));
  RS_TRY(add_boxes(&p->copies, src, p->memory + p->filled, info, first, n));
  packed_part *last = p->parts.n > 0 ? &p->parts.at[p->parts.n - 1] : NULL;
  if (last != NULL && last->dst + last->bytes == dst && last->at + last->bytes == p->filled)
    last->bytes += bytes;
  else
    p->parts.at[p->parts.n++] = (packed_part){dst, p->filled, bytes};
  p->filled += bytes;
  return RESHARD_SUCCESS;
}

/* Packs a tensor in boxes that fit a piece: of the outermost dim of which a step fits. */
static reshard_status pack_tensor(piece_packer *p, reshard_tensor src, char *dst) {
  const reshard_tensor_info *info = &src->info;
  int64_t width = (int64_t)reshard_dtype_size(info->dtype), inner = (int64_t)rs_tensor_nbytes(src), outer = 1;
  int dim = 0;
  for (; dim < info->ndim; dim++) {
    inner /= info->shape[dim];
    if (inner <= PIECE)
      break;
    outer *= info->shape[dim];
  }
  int64_t n = info->ndim == 0 ? 1 : info->shape[dim], step = rs_min(n, PIECE / inner);
  for (int64_t i = 0; i < outer; i++) {
    int64_t rest = i, offset = 0;
    for (int d = dim - 1; d >= 0; d--) {
      offset += rest % info->shape[d] * info->strides[d];
      rest /= info->shape[d];
    }
    for (int64_t at = 0; at < n; at += step) {
      int64_t part = rs_min(step, n - at), along = info->ndim == 0 ? 0 : at * info->strides[dim];
      RS_TRY(pack_box(p, (const char *)rs_tensor_data(src) + (offset + along) * width, dst, info, dim, part,
                      part * inner));
      dst += part * inner;
    }
  }
  return RESHARD_SUCCESS;
}

static reshard_status send_pageable(const rs_move *m) {
  piece_packer p = {.m = m};
  reshard_status status;
  if (m->pageable == 0)
    return RESHARD_SUCCESS;
  const reshard_device_options alone = {RESHARD_DEVICE_OPTIONS_INIT, .threads = 1};
  RS_TRY(rs_device_staging(m->gpu, &p.staging));
  RS_TRY(reshard_device_create("cpu", m->pageable <= ALONE ? &alone : NULL, &p.cpu));
  status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < m->entries.n && status == RESHARD_SUCCESS; i++)
    if (rs_tensor_pageable(m->entries.at[i].src))
      status = pack_tensor(&p, m->entries.at[i].src, rs_tensor_data(m->entries.at[i].dst));
  RS_THEN(status, send_piece(&p));
  if (p.piece != NULL)
    (void)rs_staging_give(p.staging, p.piece, m->side);
  reshard_device_release(p.cpu);
  rs_copies_free(&p.copies);
  free(p.parts.at);
  return status;
}

/* --- All other memory ------------------------------------------------------------------------------------ */

/* Allocates memory in which a strided tensor is contiguous before its copy, or lies as at its source after it. */
static reshard_status prepare_temporary(const rs_move *m, rs_move_entry *moved, rs_copies *copies) {
  const reshard_tensor_info *info = &moved->src->info;
  rs_storage_pool *pool;
  if (info->contiguous || rs_tensor_pageable(moved->src))
    return RESHARD_SUCCESS;
  RS_TRY(rs_device_pool(m->gpu, &pool));
  if (is_outgoing(m)) {
    RS_TRY(rs_storage_pool_alloc(pool, rs_tensor_nbytes(moved->src), m->side, &moved->temporary));
    return add_boxes(copies, rs_tensor_data(moved->src), moved->temporary->memory, info, 0,
                     info->ndim == 0 ? 1 : info->shape[0]);
  }
  RS_TRY(rs_storage_pool_alloc(pool, moved->src->span, m->side, &moved->temporary));
  RS_TRY(copy_to(m, moved->temporary->memory, rs_tensor_data(moved->src), moved->src->span));
  return add_boxes(copies, moved->temporary->memory, rs_tensor_data(moved->dst), info, 0,
                   info->ndim == 0 ? 1 : info->shape[0]);
}

static reshard_status send_rest(const rs_move *m) {
  rs_copies copies = {0};
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < m->entries.n && status == RESHARD_SUCCESS; i++)
    status = prepare_temporary(m, &m->entries.at[i], &copies);
  if (status == RESHARD_SUCCESS && copies.copy.n > 0)
    status = rs_device_run_once(m->gpu, &copies, copies.bytes, m->side);
  for (int64_t i = 0; i < m->entries.n && status == RESHARD_SUCCESS; i++) {
    const rs_move_entry *moved = &m->entries.at[i];
    if (!is_outgoing(m) && (rs_tensor_pageable(moved->src) || !moved->src->info.contiguous))
      continue; /* staged, or copied already */
    const void *src = moved->temporary != NULL ? moved->temporary->memory : rs_tensor_data(moved->src);
    status = copy_to(m, rs_tensor_data(moved->dst), src, rs_tensor_nbytes(moved->src));
  }
  rs_copies_free(&copies);
  return status;
}

static void free_temporaries(const rs_move *m) {
  rs_storage_pool *pool;
  if (rs_device_pool(m->gpu, &pool) == RESHARD_SUCCESS)
    for (int64_t i = 0; i < m->entries.n; i++)
      rs_storage_pool_free(pool, m->entries.at[i].temporary, m->side);
}

/* --- The order ------------------------------------------------------------------------------------------- */

/* Orders the caller's stream, and streams of other GPUs that own sources, after the copies. */
static reshard_status order_after(const rs_move *m) {
  rs_device *device = m->gpu->device;
  if (m->side == m->stream && m->owners.n == 0 && m->kept->items.n == 0)
    return RESHARD_SUCCESS;
  RS_TRY(rs_stream_record(device, m->kept->event, m->side, RS_EDGE("move: done")));
  if (m->side != m->stream)
    RS_TRY(rs_stream_wait(device, m->stream, m->kept->event, RS_EDGE("move: stream after")));
  for (int64_t i = 0; i < m->owners.n; i++) {
    void *stream;
    RS_TRY(rs_device_side(m->owners.at[i], RS_SIDE_OUT, &stream));
    RS_TRY(rs_stream_wait(m->owners.at[i]->device, stream, m->kept->event, RS_EDGE("move: owner of sources after")));
  }
  return RESHARD_SUCCESS;
}

static reshard_status enqueue_copies(const rs_move *m) {
  rs_device *device = m->gpu->device;
  if (m->after)
    RS_TRY(rs_stream_order(device, m->stream, m->side, m->kept->event, RS_EDGE("move: after stream")));
  RS_TRY(send_rest(m)); /* first, since the host does not wait for them */
  RS_TRY(send_pageable(m));
  return m->waits ? RESHARD_SUCCESS : order_after(m);
}

reshard_status rs_move_launch(rs_move *m) {
  rs_device *device = m->gpu->device;
  reshard_status status = enqueue_copies(m), waited = RESHARD_SUCCESS;
  free_temporaries(m);
  m->under_way = status == RESHARD_SUCCESS;
  if (status != RESHARD_SUCCESS || m->waits) {
    waited = device->streams->synchronize(device, m->side);
    m->under_way = m->kept->lost = waited != RESHARD_SUCCESS;
  }
  return status != RESHARD_SUCCESS ? status : waited;
}
