/* Counts by a plan of each rank, which moves nothing. */
#include "file/map/wire.h"

#include "layout/blocks.h"
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

/* Plans of all ranks over all regions count the bytes between ranks, up to this number of regions. */
enum { COUNTED = 1 << 20 };

typedef struct counter {
  const rs_wire *wire;
  RS_VEC(reshard_entry) entries;
  RS_VEC(reshard_layout) scales; /* of entries; owned */
} counter;

static reshard_status add_entry(counter *c, reshard_entry entry) {
  RS_TRY(rs_vec_reserve(&c->entries, c->entries.n + 1));
  entry.size = RESHARD_ENTRY_INIT;
  c->entries.at[c->entries.n++] = entry;
  return RESHARD_SUCCESS;
}

/* A layout of scales, where no block of the tensor is cut. */
static reshard_status add_scales(counter *c, reshard_layout values, const int64_t *block, reshard_layout *scales) {
  rs_block_cut cut;
  *scales = NULL;
  RS_TRY(rs_vec_reserve(&c->scales, c->scales.n + 1));
  RS_TRY(rs_layout_find_cut(values, block, &cut));
  reshard_status status = cut.dim < 0 ? rs_layout_blocks(values, block, scales) : RESHARD_SUCCESS;
  if (*scales != NULL)
    c->scales.at[c->scales.n++] = *scales;
  return status == RESHARD_ERROR_UNSUPPORTED ? RESHARD_SUCCESS : status;
}

/* A region with scales on one side; entry: what it would be without. */
static reshard_status add_scaled(counter *c, const rs_copy_region *r, reshard_entry entry) {
  const rs_model_tensor *from = &c->wire->source->tensors.at[r->src], *to = &c->wire->target->tensors.at[r->dst];
  bool made = rs_region_scaled(r, to->dtype), whole = from->ndim == to->ndim;
  int64_t block[RESHARD_MAX_DIMS];
  reshard_entry scales = {.dtype = r->blocks.scales, .name = entry.name};
  for (int d = 0; d < to->ndim && whole; d++) {
    block[d] = rs_blocks_extent(&r->blocks, to->ndim, d);
    whole = r->permutation[d] == d && r->src_extent[d] == from->shape[d] && r->dst_extent[d] == to->shape[d];
  }
  if (whole)
    RS_TRY(add_scales(c, entry.src, block, &scales.src));
  if (whole && scales.src != NULL)
    RS_TRY(add_scales(c, entry.dst, block, &scales.dst));
  entry.dtype = scales.dst != NULL ? RESHARD_F8_E4M3 : made ? from->dtype : to->dtype;
  entry.dst_dtype = RESHARD_DTYPE_NONE;
  RS_TRY(add_entry(c, entry));
  return scales.dst != NULL ? add_entry(c, scales) : RESHARD_SUCCESS;
}

static reshard_status add_region(counter *c, const rs_copy_region *r) {
  const rs_wire *w = c->wire;
  const reshard_entry entry = {.src = w->src_layouts[r->src],
                               .dst = w->dst_layouts[r->dst],
                               .dtype = w->source->tensors.at[r->src].dtype,
                               .dst_dtype = w->target->tensors.at[r->dst].dtype,
                               .src_offset = r->src_offset,
                               .src_extent = r->src_extent,
                               .dst_offset = r->dst_offset,
                               .dst_extent = r->dst_extent,
                               .permutation = r->permutation,
                               .name = rs_model_name(w->target, r->dst)};
  return r->blocks.rows > 0 ? add_scaled(c, r, entry) : add_entry(c, entry);
}

/* Bytes that each rank of the target receives. */
static reshard_status count_received(const counter *c, int64_t *bytes) {
  int64_t all = 0, world = c->wire->world; /* the source may have more ranks */
  for (int64_t i = 0; i < c->wire->nsrc; i++)
    world = rs_max(world, c->wire->src_layouts[i] != NULL ? c->wire->src_layouts[i]->world : 0);
  for (int64_t rank = 0; rank < c->wire->world; rank++) {
    reshard_plan plan;
    RS_TRY(rs_plan_create_wide(c->entries.n, c->entries.at, rank, world, &plan));
    all += plan->info.received_bytes;
    reshard_plan_destroy(plan);
  }
  *bytes = all;
  return RESHARD_SUCCESS;
}

reshard_status rs_wire_count(const rs_wire *wire, int64_t *bytes) {
  counter c = {.wire = wire};
  reshard_status status = RESHARD_SUCCESS;
  *bytes = -1;
  if (wire->regions->n > COUNTED / wire->world)
    return RESHARD_SUCCESS;
  for (int64_t i = 0; i < wire->regions->n && status == RESHARD_SUCCESS; i++)
    if (wire->regions->at[i].src >= 0) /* zeros travel from nowhere */
      status = add_region(&c, &wire->regions->at[i]);
  RS_THEN(status, count_received(&c, bytes));
  for (int64_t i = 0; i < c.scales.n; i++)
    reshard_layout_release(c.scales.at[i]);
  free(c.scales.at);
  free(c.entries.at);
  return status;
}
