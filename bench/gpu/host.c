/* The host's time for an execute of a prepared transfer. */
#include "bench/gpu/cases.h"

#include "bench/launch/rank_threads.h"
#include "device/handle.h"
#include "device/memory/pool.h"

#include <reshard/reshard.h>

#include <stdlib.h>

enum { HOST_RANKS = 4, HOST_SHARE = 64 << 10 };

typedef struct host_bench {
  gpu_context *b;
  reshard_comm comm[HOST_RANKS];
  reshard_plan plan[HOST_RANKS];
  reshard_transfer transfer[HOST_RANKS];
  char *memory[2];
  reshard_layout layout[2];
} host_bench;

static void create_transfer(void *user, int64_t r) {
  host_bench *w = user;
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = w->layout[0], .dst = w->layout[1], .dtype = RESHARD_F32};
  void *src[] = {w->memory[0] + r * HOST_SHARE}, *dst[] = {w->memory[1] + r * HOST_SHARE};
  reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = src, .dst = dst};
  reshard_status status = reshard_plan_create(1, &entry, r, NULL, &w->plan[r]);
  if (status == RESHARD_SUCCESS)
    status = reshard_transfer_create(w->plan[r], w->comm[r], &arrays, NULL, &w->transfer[r]);
  if (status != RESHARD_SUCCESS)
    cli_fail(status, "rank %lld: %s", (long long)r, reshard_last_error());
}

static reshard_status execute_ranks(void *user, void *stream) {
  return reshard_execute_all(HOST_RANKS, ((host_bench *)user)->transfer, stream);
}

typedef struct context_launch {
  gpu_context *b;
  gpu_graph *graph;
} context_launch;

static reshard_status launch_graph(void *user, void *stream) {
  context_launch *j = user;
  return gpu_launch(j->b->gpu, j->graph, stream);
}

/* Median of the host's time for a call. The stream is empty before each, so that no queue is full. */
static double time_on_host(gpu_bench_run *x, gpu_work work, void *user) {
  int64_t n = 10 * x->o->iterations;
  double *times = cli_alloc(n, sizeof *times);
  for (int64_t i = -5; i < n; i++) {
    double begin = rs_seconds();
    CLI_TRY("", work(user, x->b->stream[0]));
    double end = rs_seconds();
    gpu_context_wait(x->b);
    if (i >= 0)
      times[i] = end - begin;
  }
  double median = cli_median(times, n);
  free(times);
  return median;
}

static void add_host_row(gpu_bench_run *x, const char *name, double seconds) {
  gpu_row *r = gpu_add_row(x, name, "us of the host");
  r->bytes = HOST_RANKS * HOST_SHARE;
  r->figure = r->us = 1e6 * seconds;
  gpu_print_row(x, r);
}

/* Rows to columns, 256 KiB, 4 ranks of one thread. */
void gpu_host_cases(gpu_bench_run *x) {
  if (!gpu_begin_case(x, "execute") || x->o->profile)
    return;
  host_bench w = {.b = x->b};
  reshard_local_options local = {.size = RESHARD_LOCAL_OPTIONS_INIT, .devices = &x->b->handle, .ndevices = 1};
  int64_t shape[] = {256, 256};
  CLI_TRY("", reshard_layout_parse("chunk(0)", 2, shape, HOST_RANKS, &w.layout[0]));
  CLI_TRY("", reshard_layout_parse("chunk(1)", 2, shape, HOST_RANKS, &w.layout[1]));
  w.memory[0] = gpu_context_alloc(x->b, HOST_RANKS * HOST_SHARE);
  w.memory[1] = gpu_context_alloc(x->b, HOST_RANKS * HOST_SHARE);
  CLI_TRY("", x->b->gpu->memory->memset(x->b->gpu, w.memory[0], 1, HOST_RANKS * HOST_SHARE, x->b->stream[0]));
  gpu_context_wait(x->b);
  CLI_TRY("", reshard_comm_create_local(HOST_RANKS, &local, w.comm));
  rank_pool *pool = rank_pool_create();
  rank_pool_run(pool, HOST_RANKS, create_transfer, &w);
  rank_pool_destroy(pool);
  add_host_row(x, "execute of 4 ranks, a rank", time_on_host(x, execute_ranks, &w) / HOST_RANKS);
  context_launch j = {x->b, NULL};
  CLI_TRY("", gpu_capture(x->b->gpu, x->b->stream[0], execute_ranks, &w, &j.graph));
  add_host_row(x, "execute of 4 ranks, launch of a graph", time_on_host(x, launch_graph, &j));
  gpu_graph_destroy(j.graph);
  for (int64_t r = 0; r < HOST_RANKS; r++)
    reshard_transfer_destroy(w.transfer[r]);
  for (int64_t r = 0; r < HOST_RANKS; r++) {
    reshard_plan_destroy(w.plan[r]);
    reshard_comm_destroy(w.comm[r]);
  }
  reshard_layout_release(w.layout[0]);
  reshard_layout_release(w.layout[1]);
  gpu_context_free(x->b, w.memory[0]);
  gpu_context_free(x->b, w.memory[1]);
}

typedef struct pool_work {
  struct rs_storage_pool *pool;
  size_t bytes;
} pool_work;

static reshard_status take_and_give(void *user, void *stream) {
  pool_work *p = user;
  rs_block *block;
  RS_TRY(rs_storage_pool_alloc(p->pool, p->bytes, stream, &block));
  rs_storage_pool_free(p->pool, block, stream);
  return RESHARD_SUCCESS;
}

static reshard_status take_and_give_by_runtime(void *user, void *stream) {
  gpu_context *b = user;
  void *memory;
  RS_TRY(b->gpu->memory->alloc_async(b->gpu, HOST_SHARE, stream, &memory));
  b->gpu->memory->free_async(b->gpu, memory, stream);
  return RESHARD_SUCCESS;
}

void gpu_pool_case(gpu_bench_run *x) {
  if (!gpu_begin_case(x, "pool") || x->o->profile)
    return;
  pool_work p = {.bytes = HOST_SHARE};
  CLI_TRY("", rs_device_pool(x->b->handle, &p.pool));
  gpu_row *r = gpu_add_row(x, "pool, a block taken and given back", "us of the host");
  r->bytes = HOST_SHARE;
  r->figure = r->us = 1e6 * time_on_host(x, take_and_give, &p);
  gpu_print_row(x, r);
  r = gpu_add_row(x, "cudaMallocAsync and cudaFreeAsync", "us of the host");
  r->bytes = HOST_SHARE;
  r->figure = r->us = 1e6 * time_on_host(x, take_and_give_by_runtime, x->b);
  gpu_print_row(x, r);
}
