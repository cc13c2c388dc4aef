/* Shapes that are kept once, tables as the kernels read them, and the parameters of launches. */
#include "device/cuda/tiles.h"

#include <string.h>

/* --- Shapes --- */

static uint64_t hash_of_shape(const rs_box_shape *shape, const rs_box_axis *more, size_t bytes) {
  uint64_t hash = rs_hash(0, shape, sizeof *shape); /* `more` is 0 here */
  return bytes > 0 ? rs_hash(hash, more, bytes) : hash;
}

static bool shape_equals(const rs_box_tables *tables, const rs_box_shape *have, const rs_box_shape *want,
                         const rs_box_axis *more, size_t bytes) {
  rs_box_shape plain = *have;
  plain.more = 0;
  return memcmp(&plain, want, sizeof plain) == 0 &&
         (bytes == 0 || memcmp(tables->axis.at + have->more, more, bytes) == 0);
}

static int64_t more_loops(const rs_box_shape *shape) { return shape->inside > 1 ? shape->inside - 1 : 0; }

static void put_slot(rs_box_tables *tables, uint64_t hash, uint32_t index) {
  uint64_t at = hash & (uint64_t)(tables->slot.n - 1);
  while (tables->slot.at[at] != 0)
    at = (at + 1) & (uint64_t)(tables->slot.n - 1);
  tables->slot.at[at] = index + 1;
}

/* Room for one shape more, half of it empty. */
static reshard_status grow_slots(rs_box_tables *tables) {
  if (2 * (tables->shape.n + 1) <= tables->slot.n)
    return RESHARD_SUCCESS;
  int64_t n = rs_max(2 * tables->slot.n, 64);
  RS_TRY(rs_vec_reserve(&tables->slot, n));
  memset(tables->slot.at, 0, (size_t)n * sizeof *tables->slot.at);
  tables->slot.n = n;
  for (int64_t i = 0; i < tables->shape.n; i++) {
    rs_box_shape plain = tables->shape.at[i];
    const rs_box_axis *more = more_loops(&plain) > 0 ? tables->axis.at + plain.more : NULL;
    plain.more = 0;
    put_slot(tables, hash_of_shape(&plain, more, (size_t)more_loops(&plain) * sizeof *more), (uint32_t)i);
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_box_shape_index(rs_box_tables *tables, const rs_box_shape *shape, const rs_box_axis *more,
                                  uint32_t *index) {
  size_t bytes = (size_t)more_loops(shape) * sizeof *more;
  if (tables->shape.n > 0 && shape_equals(tables, &tables->shape.at[tables->last], shape, more, bytes)) {
    *index = tables->last;
    return RESHARD_SUCCESS;
  }
  uint64_t hash = hash_of_shape(shape, more, bytes);
  RS_TRY(grow_slots(tables));
  RS_TRY(rs_vec_reserve(&tables->shape, tables->shape.n + 1));
  RS_TRY(rs_vec_reserve(&tables->axis, tables->axis.n + more_loops(shape)));
  for (uint64_t at = hash & (uint64_t)(tables->slot.n - 1); tables->slot.at[at] != 0;
       at = (at + 1) & (uint64_t)(tables->slot.n - 1)) {
    *index = tables->last = tables->slot.at[at] - 1;
    if (shape_equals(tables, &tables->shape.at[*index], shape, more, bytes))
      return RESHARD_SUCCESS;
  }
  *index = tables->last = (uint32_t)tables->shape.n++;
  tables->shape.at[*index] = *shape;
  tables->shape.at[*index].more = bytes > 0 ? (uint32_t)tables->axis.n : 0;
  if (bytes > 0)
    memcpy(tables->axis.at + tables->axis.n, more, bytes);
  tables->axis.n += more_loops(shape);
  put_slot(tables, hash, *index);
  return RESHARD_SUCCESS;
}

/* --- Tables in memory of the device --- */

/* Shapes first: all is aligned to 8 then, and shapes to 64. */
int64_t rs_box_tables_bytes(const rs_box_tables *tables) {
  int64_t bytes = tables->shape.n * (int64_t)sizeof(rs_box_shape) + tables->axis.n * (int64_t)sizeof(rs_box_axis);
  for (int c = 0; c < RS_BOX_CLASSES; c++)
    bytes += tables->tile[c].n * (int64_t)sizeof(rs_box_tile);
  return bytes;
}

static const char *write_table(char *host, const char *device, int64_t *at, const void *from, int64_t n, size_t size) {
  const char *place = device + *at;
  if (n > 0)
    memcpy(host + *at, from, (size_t)n * size);
  *at += n * (int64_t)size;
  return place;
}

void rs_box_tables_write(const rs_box_tables *tables, char *host, const char *device,
                         rs_box_part part[RS_BOX_CLASSES]) {
  int64_t at = 0;
  const char *shapes = write_table(host, device, &at, tables->shape.at, tables->shape.n, sizeof(rs_box_shape));
  const char *axes = write_table(host, device, &at, tables->axis.at, tables->axis.n, sizeof(rs_box_axis));
  for (int c = 0; c < RS_BOX_CLASSES; c++) {
    const char *tiles = write_table(host, device, &at, tables->tile[c].at, tables->tile[c].n, sizeof(rs_box_tile));
    part[c] = (rs_box_part){.tiles = (const rs_box_tile *)tiles,
                            .shapes = (const rs_box_shape *)shapes,
                            .axes = (const rs_box_axis *)axes,
                            .count = (uint32_t)tables->tile[c].n,
                            .largest = tables->largest,
                            .threads = tables->threads,
                            .kept = tables->kept,
                            .vector_threads = tables->vector_threads,
                            .slots = tables->slots};
  }
}

/* --- Parameters --- */

bool rs_box_batch_add(rs_box_batch *batch, const rs_box_part *part) {
  if (batch->nparts == RS_BOX_PARTS || (int64_t)batch->tiles + part->count > INT32_MAX)
    return false;
  uint32_t at = batch->nparts++; /* sorted by count */
  for (; at > 0 && batch->part[at - 1].count > part->count; at--)
    batch->part[at] = batch->part[at - 1];
  batch->part[at] = *part;
  batch->tiles += part->count;
  return true;
}

void rs_box_batch_close(rs_box_batch *batch) {
  uint32_t begin = 0, before = 0;
  for (uint32_t k = 0; k < batch->nparts; k++) {
    batch->part[k].begin = begin;
    begin += (batch->nparts - k) * (batch->part[k].count - before);
    before = batch->part[k].count;
  }
}

bool rs_box_spans_add(rs_box_spans *spans, const char *src, char *dst, int64_t bytes) {
  int64_t before = spans->n > 0 ? spans->span[spans->n - 1].end : 0;
  int64_t end = before + rs_box_pieces(dst, bytes, spans->tile);
  if (spans->n == RS_BOX_SPANS || end > INT32_MAX)
    return false;
  spans->span[spans->n++] = (rs_box_span){src, dst, bytes, (uint32_t)end, 0};
  return true;
}
