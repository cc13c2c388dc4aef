/* Messages over NCCL go in place where their address is a multiple of 16 on that side, else through staging; the data
 * comes out alike, and each rank decides for itself. */
#include "base/base.h"
#include "nccl_rank.h"
#include "reshard/reshard.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, ELEMENTS = 3 * 5000, PART = 4 * ELEMENTS / RANKS, ROOM = PART + 64 };

typedef struct side {
  int src, dst; /* bytes beyond an aligned address */
} side;

typedef struct world {
  unsigned char id[RESHARD_NCCL_ID_BYTES];
  side first[RANKS], then[RANKS]; /* the second after a rebind */
  int64_t limit;
  int64_t rounds[RANKS][2], packs[RANKS][2], unpacks[RANKS][2];
  size_t staging[RANKS][2];
  bool right[RANKS][2];
  rank_result result[RANKS];
} world;

static unsigned char byte_of(int64_t rank, int64_t byte) { return (unsigned char)(rank * 83 + byte % 251); }

static void buffers_fill(char *src, char *dst, int64_t rank) {
  unsigned char host[PART];
  for (int64_t b = 0; b < PART; b++)
    host[b] = byte_of(rank, b);
  cudaMemcpy(src, host, PART, cudaMemcpyHostToDevice);
  cudaMemset(dst, 0, PART);
  cudaDeviceSynchronize();
}

/* The chunk of the rank before, which is this rank's now. */
static bool buffer_is_right(const char *dst, int64_t rank) {
  unsigned char host[PART];
  vg_peek(host, dst, PART);
  for (int64_t b = 0; b < PART; b++)
    if (host[b] != byte_of((rank + RANKS - 1) % RANKS, b))
      return false;
  return true;
}

static reshard_status world_turn(world *w, int64_t r, int i, reshard_transfer transfer, char *src, char *dst,
                                 cudaStream_t stream) {
  reshard_transfer_info info;
  buffers_fill(src, dst, r);
  reshard_status status = reshard_execute(transfer, stream);
  cudaStreamSynchronize(stream);
  RS_THEN(status, reshard_transfer_get_info(transfer, &info));
  if (status != RESHARD_SUCCESS)
    return status;
  w->right[r][i] = buffer_is_right(dst, r);
  w->rounds[r][i] = info.rounds;
  w->packs[r][i] = info.packs_skipped;
  w->unpacks[r][i] = info.unpacks_skipped;
  w->staging[r][i] = info.workspace_bytes;
  return RESHARD_SUCCESS;
}

static reshard_status plan_make(const world *w, int64_t r, reshard_plan *plan) {
  const int64_t shape[1] = {ELEMENTS};
  reshard_entry entry = {.size = RESHARD_ENTRY_INIT, .dtype = RESHARD_F32};
  const reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = w->limit};
  reshard_status status = reshard_layout_parse("chunk(0)", 1, shape, RANKS, &entry.src);
  RS_THEN(status, reshard_layout_parse("chunk(0;1,2,0)", 1, shape, RANKS, &entry.dst));
  RS_THEN(status, reshard_plan_create(1, &entry, r, &options, plan));
  reshard_layout_release(entry.src);
  reshard_layout_release(entry.dst);
  return status;
}

static void world_rank(void *user, int64_t r) {
  world *w = user;
  nccl_rank own;
  reshard_status status = nccl_rank_begin(w->id, RANKS, r, 4 * ROOM, 0, &own);
  char *src[2] = {own.memory + w->first[r].src, own.memory + w->then[r].src};
  char *dst[2] = {own.memory + 2 * ROOM + w->first[r].dst, own.memory + 2 * ROOM + w->then[r].dst};
  reshard_arrays arrays[2];
  for (int i = 0; i < 2; i++)
    arrays[i] = (reshard_arrays){
        .size = RESHARD_ARRAYS_INIT, .src = (void **)&src[i], .dst = (void **)&dst[i], .nsrc = 1, .ndst = 1};
  RS_THEN(status, plan_make(w, r, &own.plan));
  RS_THEN(status, reshard_transfer_create(own.plan, own.comm, &arrays[0], NULL, &own.transfer));
  RS_THEN(status, world_turn(w, r, 0, own.transfer, src[0], dst[0], own.stream));
  RS_THEN(status, reshard_transfer_rebind(own.transfer, &arrays[1]));
  RS_THEN(status, world_turn(w, r, 1, own.transfer, src[1], dst[1], own.stream));
  nccl_rank_end(&own);
  rank_result_set(&w->result[r], status);
}

static void world_run(world *w) {
  vg_begin(&(vg_options){.devices = RANKS, .seed = 4});
  GOOD(reshard_nccl_unique_id(w->id));
  rank_threads_run(RANKS, world_rank, w);
  rank_results_assert(RANKS, w->result, RESHARD_SUCCESS, NULL, "a transfer and a rebind");
  assert_int_equal(vg_end(), 0);
  for (int r = 0; r < RANKS; r++)
    for (int i = 0; i < 2; i++) {
      const side *s = i == 0 ? &w->first[r] : &w->then[r];
      assert_true(w->right[r][i]);
      assert_int_equal(w->packs[r][i], s->src % 16 == 0);
      assert_int_equal(w->unpacks[r][i], s->dst % 16 == 0);
      assert_int_equal(w->rounds[r][i], w->rounds[0][0]);
      assert_true(w->staging[r][i] >=
                  (size_t)((s->src % 16 != 0) + (s->dst % 16 != 0)) * PART / (size_t)w->rounds[r][i]);
    }
}

CASE(aligned_sides_go_in_place) {
  world w = {.first = {{0, 0}, {4, 0}, {16, 8}}, .then = {{4, 12}, {0, 32}, {8, 0}}};
  world_run(&w);
  assert_int_equal(w.rounds[0][0], 1);
  assert_int_equal(w.staging[0][0], 0);
}

/* Addresses count where the number of rounds is found: the staging of what is not aligned fits the limit. */
CASE(staging_of_unaligned_sides_fits_the_limit) {
  world w = {.first = {{0, 0}, {4, 4}, {0, 0}}, .then = {{0, 0}, {0, 0}, {0, 0}}, .limit = 4096 * RANKS};
  world_run(&w);
  assert_true(w.rounds[0][0] > 1);
  assert_true(w.staging[1][0] <= (size_t)w.limit);
  assert_int_equal(w.staging[1][1], 0);
}

/* A rebind to arrays that are not aligned keeps the rounds, and stages more. */
CASE(rebind_to_unaligned_arrays_keeps_the_rounds) {
  world w = {.first = {{0, 0}, {0, 0}, {0, 0}}, .then = {{4, 4}, {4, 4}, {4, 4}}, .limit = 4096 * RANKS};
  world_run(&w);
  assert_int_equal(w.rounds[0][0], 1);
  assert_int_equal(w.staging[0][0], 0);
  assert_true(w.staging[0][1] >= 2 * PART);
}

RUN_CASES
