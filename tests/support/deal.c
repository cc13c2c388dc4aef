#include "support/deal.h"

#include "random.h"
#include "ranks.h"

#include <stdlib.h>
#include <string.h>

struct deal_world {
  int64_t n;
  reshard_comm *comms;
  rank_pool *pool;
};

/* All calls here are right by construction. */
static void must(reshard_status status) { CLI_TRY("", status); }

void deal_create(reshard_layout layout, int64_t width, deal *out) {
  deal d = {.layout = layout, .world = reshard_layout_world(layout), .width = width};
  d.first = cli_alloc(d.world + 1, sizeof *d.first);
  for (int64_t r = 0; r < d.world; r++) {
    int64_t count;
    must(reshard_layout_buffer_count(layout, r, &count));
    d.first[r + 1] = d.first[r] + count;
  }
  d.buffer = cli_alloc(d.first[d.world], sizeof *d.buffer);
  for (int64_t r = 0; r < d.world; r++)
    for (int64_t b = d.first[r]; b < d.first[r + 1]; b++) {
      int64_t elements;
      must(reshard_layout_buffer_elements(layout, r, b - d.first[r], &elements));
      if (elements == 0)
        continue;
      d.buffer[b] = cli_alloc(elements, (size_t)width);
      memset(d.buffer[b], 0xEE, (size_t)(elements * width));
    }
  *out = d;
}

void deal_free(deal *d) {
  for (int64_t b = 0; b < d->first[d->world]; b++)
    free(d->buffer[b]);
  free(d->buffer);
  free(d->first);
}

/* Global indices of an array in each dim. */
typedef struct axes {
  int64_t n[RESHARD_MAX_DIMS], *at[RESHARD_MAX_DIMS];
} axes;

static axes axes_of(reshard_layout layout, int64_t rank, int64_t array, const reshard_array_info *info) {
  axes x = {{0}, {NULL}};
  for (int d = 0; d < reshard_layout_ndim(layout); d++) {
    int64_t count, n = 0;
    must(reshard_layout_array_intervals(layout, rank, array, d, 0, 0, NULL, &count));
    reshard_interval *runs = cli_alloc(count, sizeof *runs);
    must(reshard_layout_array_intervals(layout, rank, array, d, 0, count, runs, &count));
    x.n[d] = info->shape[d];
    x.at[d] = cli_alloc(x.n[d], sizeof *x.at[d]);
    for (int64_t r = 0; r < count; r++)
      for (int64_t i = runs[r].begin; i < runs[r].end; i++)
        x.at[d][n++] = i;
    free(runs);
  }
  return x;
}

/* Copies an array from the tensor, or into it; returns how many elements differ from what the tensor had and was
 * written before. */
static int64_t move(const deal *d, int64_t rank, int64_t array, unsigned char *tensor, unsigned char *written) {
  reshard_array_info info;
  must(reshard_layout_array(d->layout, rank, array, &info));
  if (info.elements == 0)
    return 0;
  axes x = axes_of(d->layout, rank, array, &info);
  int ndim = reshard_layout_ndim(d->layout);
  const int64_t *shape = reshard_layout_shape(d->layout);
  unsigned char *local = d->buffer[d->first[rank] + info.buffer] + info.offset * d->width;
  int64_t at[RESHARD_MAX_DIMS] = {0}, differ = 0;
  for (int64_t e = 0; e < info.elements; e++, local += d->width) {
    int64_t linear = 0;
    for (int i = 0; i < ndim; i++)
      linear = linear * shape[i] + x.at[i][at[i]];
    unsigned char *global = tensor + linear * d->width;
    if (written == NULL) {
      memcpy(local, global, (size_t)d->width);
    } else {
      differ += written[linear] && memcmp(local, global, (size_t)d->width) != 0;
      memcpy(global, local, (size_t)d->width);
      written[linear] = 1;
    }
    for (int i = ndim - 1; i >= 0 && ++at[i] == x.n[i]; i--)
      at[i] = 0;
  }
  for (int i = 0; i < ndim; i++)
    free(x.at[i]);
  return differ;
}

static int64_t move_all(const deal *d, unsigned char *tensor, unsigned char *written) {
  int64_t differ = 0;
  for (int64_t r = 0; r < d->world; r++) {
    int64_t arrays;
    must(reshard_layout_array_count(d->layout, r, &arrays));
    for (int64_t a = 0; a < arrays; a++)
      differ += move(d, r, a, tensor, written);
  }
  return differ;
}

void deal_scatter(const deal *d, const unsigned char *tensor) { move_all(d, (unsigned char *)tensor, NULL); }

int64_t deal_collect(const deal *d, unsigned char *tensor) {
  unsigned char *written = cli_alloc(reshard_layout_elements(d->layout), 1);
  int64_t differ = move_all(d, tensor, written);
  free(written);
  return differ;
}

unsigned char *deal_tensor(int64_t elements, int64_t width, uint64_t key) {
  unsigned char *tensor = cli_alloc(elements, (size_t)width);
  for (int64_t e = 0; e < elements; e++) {
    uint64_t low = rng_mix(key + (uint64_t)e * 0x9e3779b97f4a7c15u), parts[2] = {low, rng_mix(low + 1)};
    memcpy(tensor + e * width, parts, (size_t)width);
  }
  return tensor;
}

void deal_expect(const reshard_entry *e, reshard_layout src, reshard_layout dst, int64_t width,
                 const unsigned char *from, unsigned char *to) {
  int ndim = reshard_layout_ndim(dst), src_ndim = reshard_layout_ndim(src);
  const int64_t *shape = reshard_layout_shape(dst), *src_shape = reshard_layout_shape(src);
  int64_t extent[RESHARD_MAX_DIMS], at[RESHARD_MAX_DIMS] = {0}, n = 1;
  int walks[RESHARD_MAX_DIMS];
  for (int d = 0; d < ndim; d++) {
    int p = walks[d] = e->permutation != NULL ? e->permutation[d] : d;
    extent[d] = e->dst_extent != NULL ? e->dst_extent[d]
                : p < 0               ? 1
                : e->src_extent       ? e->src_extent[p]
                                      : src_shape[p] - (e->src_offset != NULL ? e->src_offset[p] : 0);
    n *= extent[d];
  }
  for (int64_t i = 0; i < n; i++) {
    int64_t x[RESHARD_MAX_DIMS] = {0}, source = 0, destination = 0;
    for (int d = 0; d < src_ndim; d++)
      x[d] = e->src_offset != NULL ? e->src_offset[d] : 0;
    for (int d = 0; d < ndim; d++) {
      destination = destination * shape[d] + at[d] + (e->dst_offset != NULL ? e->dst_offset[d] : 0);
      if (walks[d] >= 0)
        x[walks[d]] += at[d];
    }
    for (int d = 0; d < src_ndim; d++)
      source = source * src_shape[d] + x[d];
    memcpy(to + destination * width, from + source * width, (size_t)width);
    for (int d = ndim - 1; d >= 0 && ++at[d] == extent[d]; d--)
      at[d] = 0;
  }
}

deal_world *deal_world_create(int64_t n) {
  deal_world *w = cli_alloc(1, sizeof *w);
  w->n = n;
  w->comms = cli_alloc(n, sizeof *w->comms);
  w->pool = rank_pool_create();
  reshard_local_options options = {RESHARD_LOCAL_OPTIONS_INIT, 1, RESHARD_ISA_AUTO, 60000, NULL, 0};
  must(reshard_comm_create_local(n, &options, w->comms));
  return w;
}

void deal_world_destroy(deal_world *w) {
  for (int64_t r = 0; r < w->n; r++)
    reshard_comm_destroy(w->comms[r]);
  rank_pool_destroy(w->pool);
  free(w->comms);
  free(w);
}

typedef struct run {
  deal_world *world;
  const reshard_plan *plans;
  int64_t nentries;
  const deal *const *src, *const *dst;
  reshard_path path;
  reshard_transfer *transfers;
  reshard_status *status;
  char (*error)[512];
} run;

/* Buffers of one rank, entry after entry. */
static void **list_buffers(const run *u, const deal *const *side, int64_t rank, int64_t *n) {
  *n = 0;
  for (int64_t i = 0; i < u->nentries; i++)
    *n += side[i]->first[rank + 1] - side[i]->first[rank];
  void **list = cli_alloc(*n, sizeof *list);
  int64_t at = 0;
  for (int64_t i = 0; i < u->nentries; i++)
    for (int64_t b = side[i]->first[rank]; b < side[i]->first[rank + 1]; b++)
      list[at++] = side[i]->buffer[b];
  return list;
}

static void create_one(void *user, int64_t rank) {
  run *u = user;
  reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT};
  void **src = list_buffers(u, u->src, rank, &arrays.nsrc), **dst = list_buffers(u, u->dst, rank, &arrays.ndst);
  arrays.src = src;
  arrays.dst = dst;
  reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = u->path};
  u->status[rank] =
      reshard_transfer_create(u->plans[rank], u->world->comms[rank], &arrays, &options, &u->transfers[rank]);
  if (u->status[rank] != RESHARD_SUCCESS)
    snprintf(u->error[rank], sizeof u->error[rank], "%s", reshard_last_error());
  free(src);
  free(dst);
}

static reshard_status make_plan(int64_t nentries, const reshard_entry *entries, int64_t rank,
                                const reshard_plan_options *options, bool reverse, reshard_plan *plan) {
  reshard_plan forward;
  reshard_status status = reshard_plan_create(nentries, entries, rank, options, &forward);
  if (status != RESHARD_SUCCESS || !reverse) {
    *plan = status == RESHARD_SUCCESS ? forward : NULL;
    return status;
  }
  *plan = NULL;
  status = reshard_plan_reverse(forward, plan);
  reshard_plan_destroy(forward);
  return status;
}

static void execute(run *u, deal_result *result) {
  int64_t n = u->world->n;
  rank_pool_run(u->world->pool, n, create_one, u);
  for (int64_t r = 0; r < n && result->status == RESHARD_SUCCESS; r++)
    if (u->status[r] != RESHARD_SUCCESS) {
      result->status = u->status[r];
      snprintf(result->error, sizeof result->error, "rank %lld: %s", (long long)r, u->error[r]);
    }
  if (result->status != RESHARD_SUCCESS)
    return;
  for (int64_t r = 0; r < n; r++) {
    reshard_comm_stats stats;
    must(reshard_comm_get_stats(u->world->comms[r], &stats));
    result->wire_bytes[r] = -stats.received_bytes;
  }
  result->status = reshard_execute_all(n, u->transfers, NULL);
  if (result->status != RESHARD_SUCCESS)
    snprintf(result->error, sizeof result->error, "%s", reshard_last_error());
  for (int64_t r = 0; r < n; r++) {
    reshard_comm_stats stats;
    must(reshard_comm_get_stats(u->world->comms[r], &stats));
    result->wire_bytes[r] += stats.received_bytes;
  }
}

void deal_run(deal_world *w, int64_t nentries, const reshard_entry *entries, const deal *const *src,
              const deal *const *dst, const reshard_plan_options *options, reshard_path path, bool reverse,
              deal_result *result) {
  *result = (deal_result){.status = RESHARD_SUCCESS};
  result->wire_bytes = cli_alloc(w->n, sizeof *result->wire_bytes);
  result->info = cli_alloc(w->n, sizeof *result->info);
  reshard_entry *own = cli_alloc(nentries, sizeof *own);
  for (int64_t i = 0; i < nentries; i++) {
    own[i] = entries[i];
    own[i].src = src[i]->layout;
    own[i].dst = dst[i]->layout;
  }
  reshard_plan *plans = cli_alloc(w->n, sizeof *plans);
  run u = {w, plans, nentries, reverse ? dst : src, reverse ? src : dst, path, NULL, NULL, NULL};
  u.transfers = cli_alloc(w->n, sizeof *u.transfers);
  u.status = cli_alloc(w->n, sizeof *u.status);
  u.error = cli_alloc(w->n, sizeof *u.error);
  for (int64_t r = 0; r < w->n && result->status == RESHARD_SUCCESS; r++) {
    result->status = make_plan(nentries, own, r, options, reverse, &plans[r]);
    if (result->status != RESHARD_SUCCESS)
      snprintf(result->error, sizeof result->error, "%s", reshard_last_error());
    else
      must(reshard_plan_get_info(plans[r], &result->info[r]));
  }
  if (result->status == RESHARD_SUCCESS)
    execute(&u, result);
  for (int64_t r = 0; r < w->n; r++) {
    reshard_transfer_destroy(u.transfers[r]);
    reshard_plan_destroy(plans[r]);
  }
  free(u.transfers);
  free(u.status);
  free(u.error);
  free(plans);
  free(own);
}

void deal_result_free(deal_result *result) {
  free(result->wire_bytes);
  free(result->info);
}
