/* A call of a save or a load, as bytes for other processes: what is compared of its leaves, and their values for
 * state.json. Each rank unpacks the others' calls into lists, such as ranks of one process find in each other's memory,
 * and draws the same conclusions. */
#include "base/text.h"
#include "device/cpu/cpu.h"
#include "state/checkpoint.h"

#include <string.h>

int rs_rank_threads(reshard_comm comm, int threads) {
  return threads > 0 ? threads : (int)rs_max(1, rs_device_cpu_cores() / comm->locals);
}

reshard_status rs_state_calls_check(const char *does, const char *way, int64_t n, rs_state_call *const *calls) {
  char first[RS_QUOTE], second[RS_QUOTE];
  for (int64_t r = 0; r < n; r++)
    if (calls[r]->status != RESHARD_SUCCESS)
      return rs_error(calls[r]->status, "rank %lld: %s", (long long)r, calls[r]->text);
  for (int64_t r = 1; r < n; r++)
    if (strcmp(calls[0]->directory, calls[r]->directory) != 0)
      return rs_error(RESHARD_ERROR_MISMATCH, "rank 0 %s %s '%s', rank %lld %s '%s'", does, way,
                      rs_quote(first, sizeof first, calls[0]->directory), (long long)r, way,
                      rs_quote(second, sizeof second, calls[r]->directory));
  return RESHARD_SUCCESS;
}

/* --- Packing ---------------------------------------------------------------------------------------------------- */

static void put_number(rs_text *out, int64_t number) { rs_text_bytes(out, (const char *)&number, sizeof number); }

static void put_text(rs_text *out, const char *text) {
  put_number(out, (int64_t)strlen(text));
  rs_text_bytes(out, text, strlen(text) + 1);
}

static void put_leaf(rs_text *out, const rs_state_leaf *leaf) {
  int ndim = rs_state_leaf_is_tensor(leaf) ? rs_state_leaf_ndim(leaf) : 0;
  put_text(out, leaf->path);
  put_number(out, rs_state_leaf_kind(leaf));
  put_number(out, rs_state_leaf_is_sharded(leaf));
  put_number(out, leaf->exchanged);
  put_number(out, rs_state_leaf_is_tensor(leaf) ? (int64_t)rs_state_leaf_dtype(leaf) : 0);
  put_number(out, leaf->sharded != NULL && !leaf->exchanged ? (int64_t)rs_layout_hash(leaf->sharded->local.layout) : 0);
  put_number(out, ndim);
  for (int d = 0; d < ndim; d++)
    put_number(out, rs_state_leaf_shape(leaf)[d]);
  size_t size = out->length;
  put_number(out, 0); /* size of the value */
  if (!rs_state_leaf_is_tensor(leaf))
    rs_state_json_value(out, leaf->node);
  rs_text_bytes(out, "", 1);
  if (out->status != RESHARD_SUCCESS)
    return;
  int64_t value = (int64_t)(out->length - size - sizeof value) - 1;
  memcpy(out->at + size, &value, sizeof value);
}

reshard_status rs_state_call_pack(const rs_state_call *call, int64_t option, rs_text *out) {
  put_number(out, option);
  put_text(out, call->directory);
  put_number(out, call->leaves.all.n);
  for (int64_t i = 0; i < call->leaves.all.n; i++)
    put_leaf(out, &call->leaves.all.at[i]);
  return out->status;
}

/* --- Unpacking -------------------------------------------------------------------------------------------------- */

typedef struct leaf_reader {
  const char *at, *end;
} leaf_reader;

static reshard_status read_number(leaf_reader *r, int64_t *number) {
  if (r->end - r->at < (int64_t)sizeof *number)
    return rs_error(RESHARD_ERROR_CORRUPT, "the leaves that a rank sent are cut off");
  memcpy(number, r->at, sizeof *number);
  r->at += sizeof *number;
  return RESHARD_SUCCESS;
}

static reshard_status read_text(leaf_reader *r, const char **text) {
  int64_t length = 0;
  RS_TRY(read_number(r, &length));
  if (length < 0 || r->end - r->at < length + 1 || r->at[length] != '\0')
    return rs_error(RESHARD_ERROR_CORRUPT, "the leaves that a rank sent are cut off");
  *text = r->at;
  r->at += length + 1;
  return RESHARD_SUCCESS;
}

static reshard_status read_leaf(leaf_reader *r, rs_state_leaf *leaf, rs_remote_leaf *remote) {
  int64_t kind = 0, sharded = 0, exchanged = 0, dtype = 0, layout = 0, ndim = 0;
  RS_TRY(read_text(r, &leaf->path));
  RS_TRY(read_number(r, &kind));
  RS_TRY(read_number(r, &sharded));
  RS_TRY(read_number(r, &exchanged));
  RS_TRY(read_number(r, &dtype));
  RS_TRY(read_number(r, &layout));
  RS_TRY(read_number(r, &ndim));
  if (ndim < 0 || ndim > RESHARD_MAX_DIMS)
    return rs_error(RESHARD_ERROR_CORRUPT, "a leaf that a rank sent has %lld dims", (long long)ndim);
  *remote = (rs_remote_leaf){.kind = (reshard_tree_kind)kind,
                             .sharded = sharded != 0,
                             .exchanged = exchanged != 0,
                             .dtype = (reshard_dtype)dtype,
                             .layout = (uint64_t)layout,
                             .ndim = (int)ndim};
  for (int d = 0; d < remote->ndim; d++)
    RS_TRY(read_number(r, &remote->shape[d]));
  RS_TRY(read_text(r, &remote->value));
  leaf->remote = remote;
  return RESHARD_SUCCESS;
}

reshard_status rs_state_call_unpack(const char *bytes, int64_t size, rs_state_call *call, int64_t *option) {
  leaf_reader r = {bytes, bytes + size};
  rs_state_leaves *leaves = &call->leaves;
  int64_t n = 0;
  RS_TRY(read_number(&r, option));
  RS_TRY(read_text(&r, &call->directory));
  RS_TRY(read_number(&r, &n));
  if (n < 0 || n > size)
    return rs_error(RESHARD_ERROR_CORRUPT, "a rank sent %lld leaves", (long long)n);
  RS_TRY(rs_vec_reserve(&leaves->all, n));
  RS_TRY(rs_alloc_zero(&leaves->remote, n, sizeof *leaves->remote));
  for (int64_t i = 0, number; i < n; i++) {
    rs_state_leaf *leaf = &leaves->all.at[leaves->all.n++];
    *leaf = (rs_state_leaf){.batch = -1};
    RS_TRY(read_leaf(&r, leaf, &leaves->remote[i]));
    RS_TRY(rs_names_put(&leaves->names, leaf->path, strlen(leaf->path), &number));
  }
  return RESHARD_SUCCESS;
}
