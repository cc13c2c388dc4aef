/* The host's time on an empty stream.
 *
 * - gpu_execute_4_ranks: a prepared transfer, rows to columns, 256 KiB, by 4 ranks of one thread: a rank's share of the
 *   call; _graph: the launch of a graph that has it.
 * - gpu_storage_pool_pair: a block of the pool is taken and given back, beside the runtime's own pool. */
#include "bench/micro/gpu.h"

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
  RS_THEN(status, reshard_transfer_create(w->plan[r], w->comm[r], &arrays, NULL, &w->transfer[r]));
  if (status != RESHARD_SUCCESS)
    cli_fail(status, "rank %lld: %s", (long long)r, reshard_last_error());
}

static reshard_status execute_ranks(void *user, void *stream) {
  return reshard_execute_all(HOST_RANKS, ((host_bench *)user)->transfer, stream);
}

/* Median of the host's time for a call. The stream is empty before each, so that no queue is full. */
static double time_on_host(gpu_row *x, gpu_work work, void *user) {
  gpu_context *b = &x->context;
  int64_t n = x->turns > 0 ? 10 * x->turns : 1;
  double *times = cli_alloc(n, sizeof *times);
  for (int64_t i = -5; i < n; i++) {
    double begin = rs_seconds();
    CLI_TRY("", work(user, b->stream[0]));
    double end = rs_seconds();
    gpu_context_wait(b);
    if (i >= 0)
      times[i] = end - begin;
  }
  double median = cli_median(times, n);
  free(times);
  return median;
}

static int measure_execute(gpu_row *x, bool graph) {
  gpu_context *b = &x->context;
  host_bench w = {.b = b};
  reshard_local_options local = {.size = RESHARD_LOCAL_OPTIONS_INIT, .devices = &b->handle, .ndevices = 1};
  int64_t shape[] = {256, 256};
  CLI_TRY("", reshard_layout_parse("chunk(0)", 2, shape, HOST_RANKS, &w.layout[0]));
  CLI_TRY("", reshard_layout_parse("chunk(1)", 2, shape, HOST_RANKS, &w.layout[1]));
  w.memory[0] = gpu_context_alloc(b, HOST_RANKS * HOST_SHARE);
  w.memory[1] = gpu_context_alloc(b, HOST_RANKS * HOST_SHARE);
  CLI_TRY("", b->gpu->memory->memset(b->gpu, w.memory[0], 1, HOST_RANKS * HOST_SHARE, b->stream[0]));
  gpu_context_wait(b);
  CLI_TRY("", reshard_comm_create_local(HOST_RANKS, &local, w.comm));
  rank_pool *pool = rank_pool_create();
  rank_pool_run(pool, HOST_RANKS, create_transfer, &w);
  rank_pool_destroy(pool);
  gpu_graph made = {0};
  if (graph)
    CLI_TRY("", gpu_capture(b->gpu, b->stream[0], execute_ranks, &w, &made));
  gpu_row_set(x, HOST_RANKS * HOST_SHARE,
              graph ? time_on_host(x, gpu_launch, &made) : time_on_host(x, execute_ranks, &w) / HOST_RANKS);
  gpu_graph_destroy(&made);
  for (int64_t r = 0; r < HOST_RANKS; r++)
    reshard_transfer_destroy(w.transfer[r]);
  for (int64_t r = 0; r < HOST_RANKS; r++) {
    reshard_plan_destroy(w.plan[r]);
    reshard_comm_destroy(w.comm[r]);
  }
  for (int i = 0; i < 2; i++) {
    reshard_layout_release(w.layout[i]);
    gpu_context_free(b, w.memory[i]);
  }
  return 0;
}

static int host_execute(void *row) { return measure_execute(row, false); }
static int host_graph(void *row) { return measure_execute(row, true); }

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

static int host_pool(void *row) {
  gpu_row *x = row;
  pool_work p = {.bytes = HOST_SHARE};
  CLI_TRY("", rs_device_pool(x->context.handle, &p.pool));
  gpu_row_set(x, HOST_SHARE, time_on_host(x, take_and_give, &p));
  gpu_row_add(x, "cudaMallocAsync_us", 1e6 * time_on_host(x, take_and_give_by_runtime, &x->context));
  return 0;
}

static const micro_case micro_gpu_host[] = {
    GPU_ROW("gpu_execute_4_ranks", 0, host_execute),
    GPU_ROW("gpu_execute_4_ranks_graph", 0, host_graph),
    GPU_ROW("gpu_storage_pool_pair", HOST_SHARE, host_pool),
};
GPU_TABLE(micro_gpu_host)
