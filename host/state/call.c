/* What ranks that are processes of their own tell each other of their leaves: as much as is compared, and what
 * state.json will have of them. Each rank then makes, of what it has heard, the same lists as ranks of one process find
 * in each other's memory, and comes to the same conclusions. */
#include "state/checkpoint.h"

#include <stdlib.h>
#include <string.h>

/* --- Telling ----------------------------------------------------------------------------------------------------- */

static void put(rs_print *out, int64_t number) { rs_print_bytes(out, (const char *)&number, sizeof number); }

static void put_text(rs_print *out, const char *text) {
  put(out, (int64_t)strlen(text));
  rs_print_bytes(out, text, (int64_t)strlen(text) + 1);
}

static void put_item(rs_print *out, const rs_item *item) {
  int ndim = rs_item_is_tensor(item) ? rs_item_ndim(item) : 0;
  put_text(out, item->path);
  put(out, rs_item_kind(item));
  put(out, rs_item_is_sharded(item));
  put(out, item->boxes);
  put(out, rs_item_is_tensor(item) ? (int64_t)rs_item_dtype(item) : 0);
  put(out, item->sharded != NULL && !item->boxes ? (int64_t)rs_layout_hash(item->sharded->local.layout) : 0);
  put(out, ndim);
  for (int d = 0; d < ndim; d++)
    put(out, rs_item_shape(item)[d]);
  int64_t size = out->n;
  put(out, 0); /* of the value */
  if (!rs_item_is_tensor(item))
    rs_state_json_value(out, item->leaf);
  rs_print_bytes(out, "", 1);
  if (out->status != RESHARD_SUCCESS)
    return;
  int64_t value = out->n - size - (int64_t)sizeof size - 1;
  memcpy(out->at + size, &value, sizeof value);
}

reshard_status rs_told_pack(const rs_state_turn *turn, int64_t option, rs_print *out) {
  put(out, option);
  put_text(out, turn->directory);
  put(out, turn->items.all.n);
  for (int64_t i = 0; i < turn->items.all.n; i++)
    put_item(out, &turn->items.all.at[i]);
  return out->status;
}

/* --- Hearing ----------------------------------------------------------------------------------------------------- */

typedef struct hearer {
  const char *at, *end;
} hearer;

static reshard_status take(hearer *h, int64_t *number) {
  if (h->end - h->at < (int64_t)sizeof *number)
    return rs_error(RESHARD_ERROR_CORRUPT, "what a rank told of its leaves is cut off");
  memcpy(number, h->at, sizeof *number);
  h->at += sizeof *number;
  return RESHARD_SUCCESS;
}

static reshard_status take_text(hearer *h, const char **text) {
  int64_t length = 0;
  RS_TRY(take(h, &length));
  if (length < 0 || h->end - h->at < length + 1 || h->at[length] != '\0')
    return rs_error(RESHARD_ERROR_CORRUPT, "what a rank told of its leaves is cut off");
  *text = h->at;
  h->at += length + 1;
  return RESHARD_SUCCESS;
}

static reshard_status take_item(hearer *h, rs_item *item, rs_told *told) {
  int64_t kind = 0, sharded = 0, boxes = 0, dtype = 0, layout = 0, ndim = 0;
  RS_TRY(take_text(h, &item->path));
  RS_TRY(take(h, &kind));
  RS_TRY(take(h, &sharded));
  RS_TRY(take(h, &boxes));
  RS_TRY(take(h, &dtype));
  RS_TRY(take(h, &layout));
  RS_TRY(take(h, &ndim));
  if (ndim < 0 || ndim > RESHARD_MAX_DIMS)
    return rs_error(RESHARD_ERROR_CORRUPT, "what a rank told of its leaves has %lld dims", (long long)ndim);
  *told = (rs_told){.kind = (reshard_tree_kind)kind,
                    .sharded = sharded != 0,
                    .boxes = boxes != 0,
                    .dtype = (reshard_dtype)dtype,
                    .layout = (uint64_t)layout,
                    .ndim = (int)ndim};
  for (int d = 0; d < told->ndim; d++)
    RS_TRY(take(h, &told->shape[d]));
  RS_TRY(take_text(h, &told->value));
  item->told = told;
  return RESHARD_SUCCESS;
}

reshard_status rs_told_unpack(const char *bytes, int64_t size, rs_state_turn *turn, int64_t *option) {
  hearer h = {bytes, bytes + size};
  rs_items *items = &turn->items;
  int64_t n = 0;
  RS_TRY(take(&h, option));
  RS_TRY(take_text(&h, &turn->directory));
  RS_TRY(take(&h, &n));
  if (n < 0 || n > size)
    return rs_error(RESHARD_ERROR_CORRUPT, "what a rank told of its leaves has %lld of them", (long long)n);
  RS_TRY(rs_vec_reserve(&items->all, n));
  RS_TRY(rs_alloc_zero(&items->told, n, sizeof *items->told));
  for (int64_t i = 0, number; i < n; i++) {
    rs_item *item = &items->all.at[items->all.n++];
    *item = (rs_item){.group = -1};
    RS_TRY(take_item(&h, item, &items->told[i]));
    RS_TRY(rs_names_put(&items->names, item->path, strlen(item->path), &number));
  }
  return RESHARD_SUCCESS;
}
