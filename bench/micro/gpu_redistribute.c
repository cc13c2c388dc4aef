/* A DTensor there and back, rows to columns to rows, by 4 ranks that are threads of one GPU: in new memory each time,
 * which the sharders' pools have kept. The time is that of one of WAYS ways, by the host's clock, so that of the host's
 * work only the first way's is in it; host_us is that. The memcpy's is by events. */
#include "bench/micro/gpu.h"

#include "bench/launch/rank_threads.h"

#include <reshard/dtensor.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, WAYS = 8 };

typedef struct redistribute_bench {
  gpu_context *b;
  rank_pool *pool;
  reshard_comm comm[RANKS];
  reshard_sharder sharder[RANKS];
  reshard_mesh mesh[RANKS];
  reshard_dtensor tensor[RANKS];
  void *stream[RANKS];
  int64_t side;
  double given[RANKS], end[RANKS]; /* seconds: the first way is given to the stream, all are done */
} redistribute_bench;

static void check_rank(int64_t rank, reshard_status status) {
  if (status != RESHARD_SUCCESS)
    cli_fail(status, "rank %lld: %s", (long long)rank, reshard_last_error());
}

static void open_rank(void *user, int64_t r) {
  redistribute_bench *w = user;
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .device = w->b->handle};
  const reshard_properties properties = {.dtype = RESHARD_F32};
  const reshard_placement rows = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0};
  const int64_t ranks = RANKS, shape[2] = {w->side, w->side};
  check_rank(r, w->b->gpu->streams->create(w->b->gpu, &w->stream[r]));
  check_rank(r, reshard_sharder_create(w->comm[r], &options, &w->sharder[r]));
  check_rank(r, reshard_mesh_create(w->comm[r], 0, 1, &ranks, NULL, 0, NULL, &w->mesh[r]));
  const reshard_placing placing = {w->mesh[r], &rows, NULL};
  check_rank(r, reshard_dtensor_empty(w->sharder[r], &placing, 2, shape, &properties, w->stream[r], &w->tensor[r]));
  check_rank(r, w->b->gpu->streams->synchronize(w->b->gpu, w->stream[r])); /* other streams fill it */
}

static void close_rank(void *user, int64_t r) {
  redistribute_bench *w = user;
  reshard_dtensor_release(w->tensor[r]);
  reshard_mesh_release(w->mesh[r]);
  reshard_sharder_destroy(w->sharder[r]);
  check_rank(r, reshard_device_forget_stream(w->b->handle, w->stream[r]));
  w->b->gpu->streams->destroy(w->b->gpu, w->stream[r]);
}

static void place_rank(redistribute_bench *w, int64_t r, int dim) {
  const reshard_placement shard = {.kind = RESHARD_PLACEMENT_SHARD, .dim = dim};
  const reshard_placing placing = {w->mesh[r], &shard, NULL};
  reshard_dtensor moved;
  check_rank(r, reshard_dtensor_redistribute(1, &w->tensor[r], &placing, w->stream[r], &moved));
  reshard_dtensor_release(w->tensor[r]);
  w->tensor[r] = moved;
}

static char *local_data(const redistribute_bench *w, int64_t r) {
  reshard_tensor array;
  reshard_tensor_info info;
  check_rank(r, reshard_sharded_tensor_local(reshard_dtensor_sharded(w->tensor[r]), 0, &array, NULL));
  check_rank(r, reshard_tensor_get_info(array, &info));
  return info.data;
}

static void place_columns(void *user, int64_t r) {
  redistribute_bench *w = user;
  place_rank(w, r, 1);
  check_rank(r, w->b->gpu->streams->synchronize(w->b->gpu, w->stream[r]));
}

/* True where each rank has its columns of the matrix that s->host is. */
static bool has_columns(const redistribute_bench *w, gpu_buffers *s) {
  int64_t row = w->side * (int64_t)sizeof(float), part = row / RANKS;
  bool right = true;
  for (int64_t r = 0; r < RANKS; r++) {
    gpu_context_to_host(w->b, s->seen, local_data(w, r), w->side * part);
    for (int64_t i = 0; i < w->side; i++)
      right &= memcmp(s->seen + i * part, s->host + i * row + r * part, (size_t)part) == 0;
  }
  return right;
}

static void move_rank(void *user, int64_t r) {
  redistribute_bench *w = user;
  rank_pool_barrier(w->pool, true);
  place_rank(w, r, 1);
  w->given[r] = rs_seconds() - rank_pool_opened(w->pool);
  for (int way = 1; way < WAYS; way++)
    place_rank(w, r, 1 - way % 2);
  check_rank(r, w->b->gpu->streams->synchronize(w->b->gpu, w->stream[r]));
  w->end[r] = rs_seconds() - rank_pool_opened(w->pool);
}

static double last_of(const double *seconds) {
  double most = 0;
  for (int r = 0; r < RANKS; r++)
    most = fmax(most, seconds[r]);
  return most;
}

/* Median seconds of one way, until the last rank's stream is empty, and those of the host for the first. */
static double time_moves(const gpu_row *x, redistribute_bench *w, double *host) {
  int64_t n = rs_max(x->turns, 1);
  double *times = cli_alloc(2 * n, sizeof *times);
  for (int64_t i = x->turns > 0 ? -2 : 0; i < n; i++) {
    rank_pool_run(w->pool, RANKS, move_rank, w);
    if (i < 0)
      continue;
    times[i] = last_of(w->end) / WAYS;
    times[n + i] = last_of(w->given);
  }
  double median = cli_median(times, n);
  *host = cli_median(times + n, n);
  free(times);
  return median;
}

static int redistribute_4_ranks(void *row) {
  gpu_row *x = row;
  gpu_context *b = &x->context;
  redistribute_bench w = {.b = b, .pool = rank_pool_create()};
  w.side = (int64_t)sqrt((double)x->most / sizeof(float)) & -RANKS;
  const reshard_local_options local = {.size = RESHARD_LOCAL_OPTIONS_INIT, .devices = &b->handle, .ndevices = 1};
  CLI_TRY("", reshard_comm_create_local(RANKS, &local, w.comm));
  rank_pool_run(w.pool, RANKS, open_rank, &w);
  int64_t bytes = w.side * w.side * (int64_t)sizeof(float);
  gpu_buffers s = gpu_buffers_create_one(b, bytes, bytes);
  gpu_memcpy plain = {b, s.to, s.from, bytes};
  double copied, host;
  for (int64_t r = 0; r < RANKS; r++)
    gpu_context_to_gpu(b, local_data(&w, r), s.host + r * (bytes / RANKS), bytes / RANKS);
  gpu_row_measure(x, 1, 1, &(gpu_timed_work){gpu_memcpy_run, &plain, sizeof plain}, &copied);
  gpu_row_set(x, bytes, time_moves(x, &w, &host));
  gpu_row_add_memcpy(x, copied);
  gpu_row_add(x, "host_us", 1e6 * host);
  rank_pool_run(w.pool, RANKS, place_columns, &w);
  bool right = has_columns(&w, &s);
  if (!right)
    cli_error("wrong data");
  gpu_buffers_free(b, &s);
  rank_pool_run(w.pool, RANKS, close_rank, &w);
  for (int r = 0; r < RANKS; r++)
    reshard_comm_destroy(w.comm[r]);
  rank_pool_destroy(w.pool);
  return !right;
}

static const micro_case micro_gpu_redistribute[] = {
    GPU_ROW("gpu_dtensor_redistribute_4_ranks", 0, redistribute_4_ranks),
};
GPU_TABLE(micro_gpu_redistribute)
