#include "bench/verify/case_make.h"

#include <stdlib.h>
#include <string.h>

static void expect_equal(rs_text *why, int64_t rank, const char *what, int64_t is, int64_t should) {
  if (is != should && why->length == 0)
    cli_add(why, "plan of rank %lld: %s is %lld, should be %lld", (long long)rank, what, (long long)is,
            (long long)should);
}

void case_check_plan(const case_plan *c, int64_t rank, reshard_plan plan, const reshard_plan_info *info, rs_text *why) {
  const oracle_counts *counts = &c->counts;
  expect_equal(why, rank, "rank", info->rank, rank);
  expect_equal(why, rank, "world", info->world, c->nentries > 0 ? c->world : info->world); /* nothing names a world */
  expect_equal(why, rank, "entries", info->entries, c->nentries);
  expect_equal(why, rank, "bytes", info->bytes, c->bytes);
  expect_equal(why, rank, "received_bytes", info->received_bytes, counts->lacked[rank]);
  expect_equal(why, rank, "lower_bound_bytes", info->lower_bound_bytes, counts->lacked[rank]);
  expect_equal(why, rank, "self_copy_bytes", info->self_copy_bytes, counts->needed[rank] - counts->lacked[rank]);
  expect_equal(why, rank, "exclusive_bytes", info->exclusive_bytes, counts->exclusive[rank]);
  expect_equal(why, rank, "stages", info->stages, 1);
  size_t workspace = 0;
  if (reshard_plan_workspace(plan, &workspace) != RESHARD_SUCCESS)
    cli_add(why, "plan of rank %lld: workspace: %s", (long long)rank, reshard_last_error());
  if (why->length == 0 && info->workspace_bytes > (int64_t)workspace)
    cli_add(why, "plan of rank %lld: %lld bytes for contiguous arrays, %zu for any", (long long)rank,
            (long long)info->workspace_bytes, workspace);
  if (why->length == 0 && c->options.workspace_limit > 0 && (int64_t)workspace > c->options.workspace_limit)
    cli_add(why, "plan of rank %lld: workspace %zu, the limit is %lld", (long long)rank, workspace,
            (long long)c->options.workspace_limit);
}

void case_check_world(const case_plan *c, const reshard_plan *plans, rs_text *why) {
  int64_t n = c->world, sent = 0, received = 0, messages_sent = 0, messages_received = 0, rounds = 0, streams = 0,
          last_peer;
  int64_t *out = cli_alloc(n * n, sizeof *out), *in = cli_alloc(n * n, sizeof *in);
  reshard_plan_info info = {0};
  for (int64_t r = 0; r < n; r++) {
    reshard_plan_get_info(plans[r], &info);
    streams = rs_max(streams, info.streams);
  }
  for (int64_t r = 0; r < n; r++) { /* as many as any needs with the pieces of all */
    reshard_plan_get_info_at(plans[r], 0, streams, &info);
    rounds = rs_max(rounds, info.rounds);
  }
  for (int64_t r = 0; r < n; r++) {
    if (reshard_plan_get_info_at(plans[r], rounds, streams, &info) != RESHARD_SUCCESS && why->length == 0)
      cli_add(why, "plan of rank %lld in %lld rounds: %s", (long long)r, (long long)rounds, reshard_last_error());
    if (c->options.workspace_limit > 0 && info.workspace_bytes > c->options.workspace_limit && why->length == 0)
      cli_add(why, "plan of rank %lld in %lld rounds: workspace %lld, the limit is %lld", (long long)r,
              (long long)rounds, (long long)info.workspace_bytes, (long long)c->options.workspace_limit);
    sent += info.sent_bytes;
    received += info.received_bytes;
    messages_sent += info.messages_sent;
    messages_received += info.messages_received;
    int64_t row_sent = 0, row_received = 0;
    last_peer = -1;
    for (int64_t i = 0; i < info.peers; i++) {
      int64_t peer = 0, s = 0, v = 0;
      if (reshard_plan_peer(plans[r], i, &peer, &s, &v) != RESHARD_SUCCESS || peer <= last_peer || peer >= n ||
          peer == r || s + v == 0) {
        if (why->length == 0)
          cli_add(why, "plan of rank %lld: peer %lld of %lld is rank %lld with %lld bytes sent, %lld received",
                  (long long)r, (long long)i, (long long)info.peers, (long long)peer, (long long)s, (long long)v);
        continue;
      }
      last_peer = peer;
      out[r * n + peer] = s;
      in[peer * n + r] = v;
      row_sent += s;
      row_received += v;
    }
    expect_equal(why, r, "sum of sent bytes over peers", row_sent, info.sent_bytes);
    expect_equal(why, r, "sum of received bytes over peers", row_received, info.received_bytes);
  }
  for (int64_t i = 0; i < n * n && why->length == 0; i++)
    if (out[i] != in[i])
      cli_add(why, "rank %lld sends %lld bytes to rank %lld, which expects %lld", (long long)(i / n), (long long)out[i],
              (long long)(i % n), (long long)in[i]);
  if (why->length == 0 && (sent != received || messages_sent != messages_received))
    cli_add(why, "all ranks send %lld bytes in %lld messages and receive %lld in %lld", (long long)sent,
            (long long)messages_sent, (long long)received, (long long)messages_received);
  free(out);
  free(in);
}

/* Global linear index of the k-th element of a product of index sets, row-major; lists[d] holds count[d] indices. */
static int64_t linear_index(const oracle_layout *l, int64_t *const *lists, const int64_t *count, int64_t k) {
  int64_t linear = 0, stride = 1;
  for (int d = l->ndim - 1; d >= 0; d--) {
    linear += lists[d][k % count[d]] * stride;
    k /= count[d];
    stride *= l->shape[d];
  }
  return linear;
}

/* Lists the indices of an array in one dim, asked for a few runs at a time; returns -1 where the runs make no sense. */
static int64_t list_indices(rng *r, reshard_layout layout, int64_t rank, int64_t array, int dim, int64_t extent,
                            int64_t **out) {
  reshard_interval runs[7];
  int64_t runs_in_all = 0, n = 0, last = -1, step = rng_in(r, 1, 7);
  *out = cli_alloc(extent, sizeof **out);
  if (reshard_layout_array_intervals(layout, rank, array, dim, 0, 0, NULL, &runs_in_all) != RESHARD_SUCCESS)
    return -1;
  for (int64_t first = 0; first < runs_in_all; first += step) {
    int64_t count = 0;
    if (reshard_layout_array_intervals(layout, rank, array, dim, first, step, runs, &count) != RESHARD_SUCCESS ||
        count != runs_in_all)
      return -1;
    for (int64_t i = 0; i < step && first + i < count; i++) {
      if (runs[i].begin <= last || runs[i].end <= runs[i].begin ||
          runs[i].end > extent) /* maximal: never next to the one before */
        return -1;
      last = runs[i].end;
      for (int64_t x = runs[i].begin; x < runs[i].end; x++)
        (*out)[n++] = x;
    }
  }
  return n;
}

/* An array's elements stand in its buffer where the oracle has them; returns how many there are. */
static int64_t check_array(rng *r, const case_side *side, int64_t rank, int64_t array, rs_text *why) {
  const oracle_layout *l = &side->described;
  const oracle_buffers *buffers = &side->buffers;
  reshard_array_info info;
  int64_t *lists[RESHARD_MAX_DIMS] = {0}, count[RESHARD_MAX_DIMS], elements = 1, stride = 1;
  if (reshard_layout_array(side->layout, rank, array, &info) != RESHARD_SUCCESS) {
    cli_add(why, "array %lld of rank %lld: %s", (long long)array, (long long)rank, reshard_last_error());
    return 0;
  }
  bool right = info.buffer >= 0 && info.buffer < buffers->first[rank + 1] - buffers->first[rank];
  for (int d = 0; d < l->ndim; d++) {
    count[d] = list_indices(r, side->layout, rank, array, d, l->shape[d], &lists[d]);
    right = right && count[d] == info.shape[d];
    elements *= count[d];
  }
  right = right && elements == info.elements;
  const oracle_buffer *buffer = right ? &buffers->buffer[buffers->first[rank] + info.buffer] : NULL;
  for (int d = l->ndim - 1; d >= 0 && elements > 0 && right; d--) {
    right = info.strides[d] == stride;
    stride *= l->kind == RESHARD_LAYOUT_FLAT ? count[d] : buffer->shape[d];
  }
  for (int64_t k = 0; right && k < elements; k++) {
    int64_t at = info.offset, rest = k;
    for (int d = l->ndim - 1; d >= 0; d--) {
      at += rest % count[d] * info.strides[d];
      rest /= count[d];
    }
    right = at >= 0 && at < buffer->n && buffer->index[at] == linear_index(l, lists, count, k);
  }
  if (!right && why->length == 0)
    cli_add(why, "array %lld of rank %lld (buffer %lld, offset %lld, %lld elements) of layout %s is not the oracle's",
            (long long)array, (long long)rank, (long long)info.buffer, (long long)info.offset, (long long)info.elements,
            side->text);
  for (int d = 0; d < l->ndim; d++)
    free(lists[d]);
  return elements;
}

typedef struct meeting_counts {
  int64_t elements[ORACLE_WORLD];
  int64_t last_rank, last_array;
  bool ordered;
} meeting_counts;

static int count_meeting(void *user, int64_t rank, int64_t array, int64_t elements) {
  meeting_counts *m = user;
  m->ordered = m->ordered && elements > 0 && (rank > m->last_rank || (rank == m->last_rank && array > m->last_array));
  m->last_rank = rank;
  m->last_array = array;
  if (rank >= 0 && rank < ORACLE_WORLD)
    m->elements[rank] += elements;
  return 0;
}

static void check_meet(rng *r, const case_side *side, rs_text *why) {
  const oracle_layout *l = &side->described;
  const oracle_buffers *buffers = &side->buffers;
  reshard_box box = {{0}, {0}};
  meeting_counts m = {.ordered = true, .last_rank = -1};
  for (int d = 0; d < l->ndim; d++) {
    box.offset[d] = rng_in(r, 0, l->shape[d]);
    box.extent[d] = rng_in(r, 0, l->shape[d] - box.offset[d]);
  }
  reshard_status status = reshard_layout_meet(side->layout, &box, count_meeting, &m);
  for (int64_t rank = 0; rank < l->world; rank++)
    for (int64_t b = buffers->first[rank]; b < buffers->first[rank + 1]; b++)
      for (int64_t e = 0; e < buffers->buffer[b].n; e++) {
        int64_t index = buffers->buffer[b].index[e];
        bool in = true;
        for (int d = l->ndim - 1; d >= 0; d--) {
          int64_t i = index % l->shape[d] - box.offset[d];
          in = in && i >= 0 && i < box.extent[d];
          index /= l->shape[d];
        }
        m.elements[rank] -= in;
      }
  bool right = status == RESHARD_SUCCESS && m.ordered;
  for (int64_t rank = 0; rank < l->world; rank++)
    right = right && m.elements[rank] == 0;
  if (!right && why->length == 0)
    cli_add(why, "reshard_layout_meet of layout %s is not the oracle's%s", side->text,
            m.ordered ? "" : " or not in order");
}

void case_check_layout(rng *r, const case_side *side, rs_text *why) {
  const oracle_layout *l = &side->described;
  for (int64_t rank = 0; rank < l->world; rank++) {
    int64_t buffers = 0, arrays = 0, in_buffers = 0, in_arrays = 0,
            n = side->buffers.first[rank + 1] - side->buffers.first[rank];
    bool right = reshard_layout_buffer_count(side->layout, rank, &buffers) == RESHARD_SUCCESS && buffers == n &&
                 reshard_layout_array_count(side->layout, rank, &arrays) == RESHARD_SUCCESS;
    for (int64_t b = 0; right && b < n; b++) {
      int64_t elements = -1, should = side->buffers.buffer[side->buffers.first[rank] + b].n;
      right = reshard_layout_buffer_elements(side->layout, rank, b, &elements) == RESHARD_SUCCESS && elements == should;
      in_buffers += should;
    }
    for (int64_t a = 0; right && a < arrays && why->length == 0; a++)
      in_arrays += check_array(r, side, rank, a, why);
    if ((!right || in_arrays != in_buffers) && why->length == 0)
      cli_add(why, "buffers of rank %lld of layout %s: %lld elements in %lld arrays, should be %lld in %lld buffers",
              (long long)rank, side->text, (long long)in_arrays, (long long)arrays, (long long)in_buffers,
              (long long)n);
  }
  if (why->length == 0)
    check_meet(r, side, why);
}

static void add_dims(rs_text *out, const char *what, int ndim, const int64_t *at) {
  cli_add(out, "%s", what);
  rs_text_list(out, ndim, at);
}

void case_describe_entry(const case_entry *e, int64_t number, rs_text *out) {
  const oracle_layout *src = &e->src.described, *dst = &e->dst.described;
  bool whole = src->ndim == dst->ndim;
  cli_add(out, "\n  entry %lld, %s", (long long)number, reshard_dtype_string(e->dtype));
  if (e->dst_dtype != e->dtype)
    cli_add(out, " to %s", reshard_dtype_string(e->dst_dtype));
  if (e->scales != RESHARD_DTYPE_NONE) {
    add_dims(out, ", blocks of ", (e->dtype == RESHARD_F8_E4M3 ? src : dst)->ndim, e->block);
    cli_add(out, " with scales of %s%s", reshard_dtype_string(e->scales), e->whole ? ", which travel" : "");
  }
  add_dims(out, ": ", src->ndim, src->shape);
  cli_add(out, " %s -> ", e->src.text);
  add_dims(out, "", dst->ndim, dst->shape);
  cli_add(out, " %s", e->dst.text);
  for (int d = 0; whole && d < src->ndim; d++)
    whole = e->region.permutation[d] == d && e->region.src_extent[d] == src->shape[d] && src->shape[d] == dst->shape[d];
  if (whole)
    return;
  add_dims(out, "; region ", src->ndim, e->region.src_offset);
  add_dims(out, "+", src->ndim, e->region.src_extent);
  add_dims(out, " to ", dst->ndim, e->region.dst_offset);
  cli_add(out, ", permutation [");
  for (int d = 0; d < dst->ndim; d++)
    cli_add(out, d > 0 ? ",%d" : "%d", e->region.permutation[d]);
  cli_add(out, "]");
}
