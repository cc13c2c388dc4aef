/* The limit of blocks (max_blocks of a device): no launch of a transfer has more, and what arrives is the same. */
#include "base/base.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <reshard/reshard.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, ROWS = 384, COLUMNS = 768, ENTRIES = 3 };
static const int64_t shape[] = {ROWS, COLUMNS}, transposed[] = {COLUMNS, ROWS};
static const int swap[] = {1, 0};

typedef struct world {
  reshard_path path;
  int max_blocks;
  reshard_device device; /* of all ranks */
  reshard_comm comms[RANKS];
  reshard_layout rows, columns, across;
  void *src[RANKS][ENTRIES], *dst[RANKS][ENTRIES];
  rank_result result[RANKS];
} world;

static float value(int64_t row, int64_t column) { return (float)(row * COLUMNS + column + 1); }

/* Rows to columns, rows to rows, and rows to columns of the transpose: all kinds of copies. */
static reshard_status create_plan(const world *w, int64_t rank, reshard_plan *plan) {
  const reshard_layout to[ENTRIES] = {w->columns, w->rows, w->across};
  reshard_entry entry[ENTRIES];
  for (int e = 0; e < ENTRIES; e++)
    entry[e] = (reshard_entry){RESHARD_ENTRY_INIT, .src = w->rows, .dst = to[e], .dtype = RESHARD_F32};
  entry[2].permutation = swap;
  return reshard_plan_create(ENTRIES, entry, rank, NULL, plan);
}

static reshard_status move_rank(world *w, int64_t rank) {
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  cudaStream_t stream;
  const reshard_transfer_options options = {.size = RESHARD_TRANSFER_OPTIONS_INIT, .path = w->path};
  const reshard_arrays arrays = {RESHARD_ARRAYS_INIT, .src = w->src[rank], .dst = w->dst[rank]};
  cudaSetDevice(0);
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  reshard_status status = create_plan(w, rank, &plan);
  RS_THEN(status, reshard_transfer_create(plan, w->comms[rank], &arrays, &options, &transfer));
  RS_THEN(status, reshard_execute(transfer, stream));
  cudaStreamSynchronize(stream);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  cudaStreamDestroy(stream);
  return status;
}

static void move_body(void *user, int64_t rank) {
  world *w = user;
  rank_result_set(&w->result[rank], move_rank(w, rank));
}

static void open_world(world *w) {
  const reshard_device_options options = {.size = RESHARD_DEVICE_OPTIONS_INIT, .max_blocks = w->max_blocks};
  reshard_device_info info;
  GOOD(reshard_device_create("cuda:0", &options, &w->device));
  GOOD(reshard_device_get_info(w->device, &info));
  assert_int_equal(info.max_blocks, w->max_blocks);
  const reshard_local_options local = {.size = RESHARD_LOCAL_OPTIONS_INIT, .devices = &w->device, .ndevices = 1};
  GOOD(reshard_comm_create_local(RANKS, &local, w->comms));
  GOOD(reshard_layout_parse("chunk(0)", 2, shape, RANKS, &w->rows));
  GOOD(reshard_layout_parse("chunk(1)", 2, shape, RANKS, &w->columns));
  GOOD(reshard_layout_parse("chunk(1)", 2, transposed, RANKS, &w->across));
  enum { PART = ROWS * COLUMNS / RANKS };
  static float part[PART];
  for (int64_t r = 0; r < RANKS; r++) {
    for (int64_t i = 0; i < PART; i++)
      part[i] = value(r * (ROWS / RANKS) + i / COLUMNS, i % COLUMNS);
    for (int e = 0; e < ENTRIES; e++) {
      assert_int_equal(cudaMalloc(&w->src[r][e], sizeof part), cudaSuccess);
      assert_int_equal(cudaMalloc(&w->dst[r][e], sizeof part), cudaSuccess);
      vg_poke(w->src[r][e], part, sizeof part);
    }
  }
}

static void check_arrived(const world *w) {
  enum { PART = ROWS * COLUMNS / RANKS, WIDE = COLUMNS / RANKS, HIGH = ROWS / RANKS };
  static float seen[ENTRIES][PART];
  for (int64_t r = 0; r < RANKS; r++) {
    for (int e = 0; e < ENTRIES; e++)
      vg_peek(seen[e], w->dst[r][e], sizeof seen[e]);
    for (int64_t i = 0; i < PART; i++) {
      assert_true(seen[0][i] == value(i / WIDE, r * WIDE + i % WIDE));
      assert_true(seen[1][i] == value(r * HIGH + i / COLUMNS, i % COLUMNS));
      assert_true(seen[2][i] == value(r * HIGH + i % HIGH, i / HIGH));
    }
  }
}

static void close_world(world *w) {
  for (int64_t r = 0; r < RANKS; r++)
    for (int e = 0; e < ENTRIES; e++) {
      cudaFree(w->src[r][e]);
      cudaFree(w->dst[r][e]);
    }
  reshard_layout_release(w->rows);
  reshard_layout_release(w->columns);
  reshard_layout_release(w->across);
  rank_comms_close(RANKS, w->comms);
  reshard_device_release(w->device);
}

/* Most blocks of a launch. */
static int64_t run(reshard_path path, int max_blocks) {
  world w = {.path = path, .max_blocks = max_blocks};
  vg_begin(&(vg_options){.seed = 7});
  open_world(&w);
  rank_threads_run(RANKS, move_body, &w);
  for (int64_t r = 0; r < RANKS; r++)
    if (w.result[r].status != RESHARD_SUCCESS)
      fail_msg("rank %d: %s", (int)r, w.result[r].text);
  check_arrived(&w);
  int64_t most = vg_count().most_blocks;
  close_world(&w);
  assert_int_equal(vg_end(), 0);
  return most;
}

CASE(launches_keep_the_limit_of_blocks) {
  for (int direct = 0; direct < 2; direct++) {
    reshard_path path = direct ? RESHARD_PATH_DIRECT : RESHARD_PATH_PACKED;
    assert_true(run(path, 0) > 16); /* else the limits below would prove nothing */
    assert_int_equal(run(path, 16), 16);
    assert_int_equal(run(path, 3), 3);
    assert_int_equal(run(path, 1), 1);
  }
}

RUN_CASES
