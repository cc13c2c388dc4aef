/* The storage pool and the staging ring on a virtual GPU, called as the rest of the library calls them. */
#include "device/handle.h"
#include "device/memory/deferred_release.h"
#include "device/memory/pool.h"
#include "device/memory/staging.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fixtures/case.h"

/* A call of the test's own. */
#define CUDA(call) \
  do { \
    vg_own_calls(true); \
    assert_int_equal((call), cudaSuccess); \
    vg_own_calls(false); \
  } while (0)

enum { STREAMS = 4, BLOCKS = 10, OUTPUTS = 64, PIECE = 64 };

typedef struct world {
  reshard_device device;
  rs_storage_pool *pool;
  rs_staging *staging;
  cudaStream_t stream[STREAMS];
  cudaEvent_t event[STREAMS];
  unsigned char *output; /* OUTPUTS pieces of the device */
} world;

static void open_world(world *w, const vg_options *options) {
  vg_begin(options);
  *w = (world){.device = NULL};
  for (int s = 0; s < STREAMS; s++) {
    CUDA(cudaStreamCreateWithFlags(&w->stream[s], cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&w->event[s], cudaEventDisableTiming));
  }
  CUDA(cudaMalloc((void **)&w->output, OUTPUTS * PIECE));
}

static reshard_status open_device(world *w, const reshard_device_options *given) {
  RS_TRY(reshard_device_create("cuda", given, &w->device));
  RS_TRY(rs_device_pool(w->device, &w->pool));
  return rs_device_staging(w->device, &w->staging);
}

static void close_world(world *w) {
  reshard_device_release(w->device); /* while the streams still run */
  CUDA(cudaDeviceSynchronize());
  CUDA(cudaFree(w->output));
  for (int s = 0; s < STREAMS; s++) {
    CUDA(cudaStreamDestroy(w->stream[s]));
    CUDA(cudaEventDestroy(w->event[s]));
  }
}

static void bytes_fill(world *w, void *at, int byte, size_t n, int s) {
  CUDA(cudaMemsetAsync(at, byte, n, w->stream[s]));
}

/* stream later comes after what earlier has: the test's own order. */
static void order(world *w, int earlier, int later) {
  CUDA(cudaEventRecord(w->event[earlier], w->stream[earlier]));
  CUDA(cudaStreamWaitEvent(w->stream[later], w->event[earlier], 0));
}

static void read_piece(world *w, int output, const void *at, int s) {
  CUDA(cudaMemcpyAsync(w->output + output * PIECE, at, PIECE, cudaMemcpyDeviceToDevice, w->stream[s]));
}

/* --- Every edge of the pool and the ring -------------------------------------------------------------------------- */
static reshard_status take_block(world *w, size_t bytes, int s, rs_block **block) {
  RS_TRY(rs_storage_pool_alloc(w->pool, bytes, w->stream[s], block));
  bytes_fill(w, (*block)->memory, s + 1, bytes, s);
  return RESHARD_SUCCESS;
}

static void give_block(world *w, rs_block *block, int s) { rs_storage_pool_free(w->pool, block, w->stream[s]); }

/* Freed on one stream, taken by another. */
static reshard_status reuse_elsewhere(world *w, size_t bytes) {
  rs_block *x, *y;
  RS_TRY(take_block(w, bytes, 0, &x));
  give_block(w, x, 0);
  RS_TRY(take_block(w, bytes, 1, &y));
  give_block(w, y, 1);
  return RESHARD_SUCCESS;
}

/* Used by another stream too, freed and taken on the first. */
static reshard_status reuse_after_use(world *w, size_t bytes) {
  rs_block *x, *y;
  RS_TRY(take_block(w, bytes, 0, &x));
  order(w, 0, 1);
  reshard_status status = rs_storage_pool_use(w->pool, x, w->stream[1]);
  if (status == RESHARD_SUCCESS)
    read_piece(w, 0, x->memory, 1);
  give_block(w, x, 0);
  RS_TRY(status);
  RS_TRY(take_block(w, bytes, 0, &y));
  give_block(w, y, 0);
  return RESHARD_SUCCESS;
}

/* Freed on a stream that knows less of the first one's work than a third has to wait for. */
static reshard_status reuse_after_home(world *w, size_t bytes) {
  rs_block *x, *y;
  RS_TRY(take_block(w, bytes, 0, &x));
  order(w, 0, 1);
  bytes_fill(w, (char *)x->memory + bytes - 1, 9, 1, 0);
  read_piece(w, 1, x->memory, 1);
  give_block(w, x, 1);
  RS_TRY(take_block(w, bytes, 2, &y));
  give_block(w, y, 2);
  return RESHARD_SUCCESS;
}

/* The stream ends before somebody else takes what was freed on it. */
static reshard_status stream_forget(world *w, size_t bytes) {
  rs_block *x, *y;
  RS_TRY(take_block(w, bytes, 3, &x));
  give_block(w, x, 3);
  RS_TRY(reshard_device_forget_stream(w->device, w->stream[3]));
  CUDA(cudaStreamDestroy(w->stream[3]));
  CUDA(cudaStreamCreateWithFlags(&w->stream[3], cudaStreamNonBlocking));
  RS_TRY(take_block(w, bytes, 1, &y));
  give_block(w, y, 1);
  return RESHARD_SUCCESS;
}

/* Memory goes back to the device while streams use it. */
static reshard_status trim(world *w, size_t bytes) {
  RS_TRY(reuse_after_use(w, bytes));
  RS_TRY(reuse_elsewhere(w, bytes));
  return reshard_device_trim(w->device, 0);
}

static reshard_status stage(world *w, size_t bytes) {
  for (int i = 0; i < 4; i++) {
    rs_staging_block *piece;
    void *memory;
    RS_TRY(rs_staging_take(w->staging, bytes, &piece, &memory));
    vg_host_write(memory, bytes);
    memset(memory, i, bytes);
    CUDA(cudaMemcpyAsync(w->output + i * PIECE, memory, bytes, cudaMemcpyHostToDevice, w->stream[0]));
    RS_TRY(rs_staging_give(w->staging, piece, w->stream[0]));
  }
  return RESHARD_SUCCESS;
}

typedef reshard_status (*part)(world *w, size_t bytes);
static const part parts[] = {reuse_elsewhere, reuse_after_use, reuse_after_home, stream_forget, trim, stage};
static const char *const part_names[] = {"pool: reuse elsewhere",
                                         "pool: reuse after use",
                                         "pool: reuse after home",
                                         "pool: forget",
                                         "pool: trim",
                                         "staging"};
enum { PARTS = sizeof parts / sizeof *parts };

typedef struct scenario {
  part part;
  size_t bytes;
  reshard_status status;
} scenario;

static void run_part(void *user, const vg_options *options) {
  scenario *c = user;
  world w;
  open_world(&w, options);
  c->status = open_device(&w, NULL);
  if (c->status == RESHARD_SUCCESS)
    c->status = c->part(&w, c->bytes);
  close_world(&w);
}

static void run_edges(void *user, const vg_options *options) {
  run_part(user, options);
  vg_end();
}

CASE(every_edge_of_the_pool_is_needed) {
  if (!vg_sees_kernels()) /* nothing is checked in this build */
    skip();
  for (int i = 0; i < PARTS; i++) {
    scenario c = {.part = parts[i], .bytes = parts[i] == stage ? PIECE : 3 << 20};
    vg_edge_result result = vg_for_each_edge(
        &(vg_edge_search){.path = part_names[i], .run = run_edges, .user = &c, .options = {.seed = 1}, .seeds = 5});
    print_message("%s: %d edges at %d places, %d missed when left out\n", part_names[i], result.edges, result.uses,
                  result.found);
    assert_int_equal(result.false_alarms, 0);
    assert_true(result.uses > 0);
    assert_int_equal(result.found, result.uses);
  }
}

/* --- Calls that fail ----------------------------------------------------------------------------------------------
 * A call of the pool may fail then, with a status; memory is never lost, and never given to two at once. */
/* One run with the k-th call failing; false: there are not so many. */
static bool run_with_fault(scenario c, const char *name, int k, bool from_then_on) {
  world w;
  open_world(&w, &(vg_options){.seed = (uint64_t)k});
  vg_fail(NULL, k, from_then_on, 0);
  c.status = open_device(&w, NULL);
  if (c.status == RESHARD_SUCCESS)
    c.status = c.part(&w, c.bytes);
  bool early = vg_failed() > 0;
  if (c.status != RESHARD_SUCCESS && !early)
    fail_msg("%s, no call has failed: %s", name, reshard_last_error());
  close_world(&w);
  bool hit = vg_failed() > 0;
  /* A device that cannot be waited for at the end is lost: nothing of it runs any more. */
  int reports = vg_end(), allowed = early && !from_then_on ? 0 : vg_reports_with("free while in use");
  if (reports != allowed)
    fail_msg("%s, call %d fails%s: %s", name, k, from_then_on ? " and all after it" : "", vg_report(0));
  return hit;
}

CASE(every_failing_call_leaves_the_pool_whole) {
  vg_quiet(true);
  for (int i = 0; i < PARTS; i++)
    for (int from_then_on = 0; from_then_on < 2; from_then_on++) {
      scenario c = {.part = parts[i], .bytes = parts[i] == stage ? PIECE : 3 << 20};
      int k = 1;
      while (run_with_fault(c, part_names[i], k, from_then_on))
        k++;
      assert_in_range(k, 10, 200);
    }
  vg_quiet(false);
}

/* --- Random programs ---------------------------------------------------------------------------------------------- */
static uint64_t random_state;
static int draw_number(int n) {
  random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
  return (int)((random_state * 0x2545F4914F6CDD1Dull >> 33) % (uint64_t)n);
}

typedef struct held {
  rs_block *block;
  int home, byte;
  size_t bytes;
} held;

static void random_program(uint64_t seed) {
  world w;
  held all[BLOCKS] = {{NULL, 0, 0, 0}};
  unsigned char expected[OUTPUTS];
  int outputs = 0;
  random_state = seed * 0x9E3779B97F4A7C15ull | 1;
  draw_number(2);
  const reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .limit_bytes = draw_number(3) == 0 ? 4 << 20 : 0,
                                          .keep_bytes = draw_number(3) - 1};
  open_world(&w, &(vg_options){.seed = seed});
  assert_int_equal(open_device(&w, &options), RESHARD_SUCCESS);
  for (int i = 0; i < 80; i++) {
    held *h = &all[draw_number(BLOCKS)];
    int s = draw_number(STREAMS), kind = draw_number(8);
    if (h->block == NULL) {
      h->bytes = (size_t)(PIECE + (draw_number(4) == 0 ? draw_number(1 << 21) : draw_number(3000)));
      reshard_status status = rs_storage_pool_alloc(w.pool, h->bytes, w.stream[s], &h->block);
      if (status != RESHARD_SUCCESS) {
        assert_int_equal(status, RESHARD_ERROR_OUT_OF_MEMORY);
        assert_true(options.limit_bytes > 0);
        h->block = NULL;
        continue;
      }
      h->home = s;
      h->byte = draw_number(256);
      bytes_fill(&w, h->block->memory, h->byte, h->bytes, s);
    } else if (kind < 4 && outputs < OUTPUTS) {
      if (s != h->home) {
        order(&w, h->home, s);
        assert_int_equal(rs_storage_pool_use(w.pool, h->block, w.stream[s]), RESHARD_SUCCESS);
      }
      read_piece(&w, outputs, (char *)h->block->memory + draw_number((int)(h->bytes - PIECE + 1)), s);
      expected[outputs++] = (unsigned char)h->byte;
    } else if (kind < 7) {
      rs_storage_pool_free(w.pool, h->block, w.stream[s]);
      h->block = NULL;
    } else if (draw_number(4) == 0)
      assert_int_equal(reshard_device_trim(w.device, (size_t)draw_number(1 << 20)), RESHARD_SUCCESS);
  }
  for (int i = 0; i < BLOCKS; i++)
    rs_storage_pool_free(w.pool, all[i].block, w.stream[draw_number(STREAMS)]);
  reshard_memory_stats stats;
  assert_int_equal(reshard_device_get_memory_stats(w.device, &stats), RESHARD_SUCCESS);
  assert_int_equal(stats.in_use_bytes, 0);
  reshard_device_release(w.device);
  w.device = NULL;
  CUDA(cudaDeviceSynchronize());
  for (int i = 0; i < outputs; i++) {
    unsigned char piece[PIECE];
    vg_peek(piece, w.output + i * PIECE, PIECE);
    for (int b = 0; b < PIECE; b++)
      assert_int_equal(piece[b], expected[i]);
  }
  close_world(&w);
  if (vg_end() != 0)
    fail_msg("seed %llu", (unsigned long long)seed);
}

CASE(random_programs_on_the_pool_are_right) {
  int64_t n = vg_scaled(500, 3000);
  for (int64_t i = 0; i < n; i++)
    random_program(vg_first_seed() + (uint64_t)i + 1);
  vg_prove("schedules|random programs on the storage pool|%lld", (long long)n);
}

/* --- Costs -------------------------------------------------------------------------------------------------------- */
CASE(test_a_warm_pair_calls_nothing) {
  world w;
  rs_block *block;
  open_world(&w, NULL);
  assert_int_equal(open_device(&w, NULL), RESHARD_SUCCESS);
  const size_t sizes[] = {1, 1000, 100000, 5 << 20};
  vg_counts before = vg_count();
  for (int warm = 0; warm < 2; warm++) {
    before = vg_count();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
      for (int k = 0; k < 20; k++) {
        assert_int_equal(rs_storage_pool_alloc(w.pool, sizes[i], w.stream[0], &block), RESHARD_SUCCESS);
        rs_storage_pool_free(w.pool, block, w.stream[0]);
      }
  }
  assert_int_equal(vg_count().calls, before.calls);
  close_world(&w);
  assert_int_equal(vg_end(), 0);
}

/* --- Threads' own default streams --------------------------------------------------------------------------------- */

/* One thread's stream is not that of a later one, which may have everything else of it: its stack, its address. */
static void use_own_stream(void *user, int64_t rank) {
  world *w = user;
  rs_block *block;
  CUDA(cudaSetDevice(0));
  if (rs_storage_pool_alloc(w->pool, 1 << 20, cudaStreamPerThread, &block) != RESHARD_SUCCESS)
    abort();
  CUDA(cudaMemsetAsync(block->memory, 1, 1 << 20, cudaStreamPerThread));
  rs_storage_pool_free(w->pool, block, cudaStreamPerThread);
}

CASE(test_threads_one_after_another) {
  for (uint64_t seed = 0; seed < 20; seed++) {
    world w;
    open_world(&w, &(vg_options){.seed = seed});
    assert_int_equal(open_device(&w, NULL), RESHARD_SUCCESS);
    for (int i = 0; i < 3; i++)
      rank_threads_run(1, use_own_stream, &w);
    close_world(&w);
    assert_int_equal(vg_end(), 0);
  }
}

/* --- Blocks kept until a stream is done with them ----------------------------------------------------------------- */

static void note_released(void *user, void *what) {
  unsigned char seen;
  vg_peek(&seen, ((world *)user)->output, 1);
  assert_int_equal(seen, 3); /* the stream is there */
}

/* The end waits for that, and for nothing else: not for a device of which another stream is captured. */
CASE(test_end_of_what_is_kept) {
  for (uint64_t seed = 0; seed < 20; seed++) {
    world w;
    rs_deferred_list *keep;
    rs_deferred_release *kept;
    cudaGraph_t graph;
    open_world(&w, &(vg_options){.seed = seed});
    assert_int_equal(open_device(&w, NULL), RESHARD_SUCCESS);
    rs_device *device = w.device->device;
    assert_int_equal(rs_deferred_list_create(device, &keep), RESHARD_SUCCESS);
    assert_int_equal(rs_deferred_release_begin(keep, &kept), RESHARD_SUCCESS);
    assert_int_equal(rs_deferred_release_add(kept, note_released, &w, NULL), RESHARD_SUCCESS);
    bytes_fill(&w, w.output, 3, PIECE, 0);
    CUDA(cudaEventRecord((cudaEvent_t)kept->event, w.stream[0]));
    rs_deferred_release_end(keep, kept, true);
    CUDA(cudaStreamBeginCapture(w.stream[1], cudaStreamCaptureModeGlobal));
    bytes_fill(&w, w.output + PIECE, 4, PIECE, 1);
    rs_deferred_list_destroy(keep);
    CUDA(cudaStreamEndCapture(w.stream[1], &graph));
    CUDA(cudaGraphDestroy(graph));
    close_world(&w);
    assert_int_equal(vg_end(), 0);
  }
}

RUN_CASES
