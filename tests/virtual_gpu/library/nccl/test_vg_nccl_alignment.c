/* Messages over NCCL go in place where their address is a multiple of 16 on that side, else through staging; the data
 * comes out alike, and each rank decides for itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "nccl_rank.h"
#include "reshard/reshard.h"
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

static unsigned char value(int64_t rank, int64_t byte) { return (unsigned char)(rank * 83 + byte % 251); }

static void fill(char *src, char *dst, int64_t rank) {
  unsigned char host[PART];
  for (int64_t b = 0; b < PART; b++)
    host[b] = value(rank, b);
  cudaMemcpy(src, host, PART, cudaMemcpyHostToDevice);
  cudaMemset(dst, 0, PART);
  cudaDeviceSynchronize();
}

/* The chunk of the rank before, which is this rank's now. */
static bool is_right(const char *dst, int64_t rank) {
  unsigned char host[PART];
  vg_peek(host, dst, PART);
  for (int64_t b = 0; b < PART; b++)
    if (host[b] != value((rank + RANKS - 1) % RANKS, b))
      return false;
  return true;
}

static reshard_status turn(world *w, int64_t r, int i, reshard_transfer transfer, char *src, char *dst,
                           cudaStream_t stream) {
  reshard_transfer_info info;
  fill(src, dst, r);
  reshard_status status = reshard_execute(transfer, stream);
  cudaStreamSynchronize(stream);
  if (status == RESHARD_SUCCESS)
    status = reshard_transfer_get_info(transfer, &info);
  if (status != RESHARD_SUCCESS)
    return status;
  w->right[r][i] = is_right(dst, r);
  w->rounds[r][i] = info.rounds;
  w->packs[r][i] = info.packs_skipped;
  w->unpacks[r][i] = info.unpacks_skipped;
  w->staging[r][i] = info.workspace_bytes;
  return RESHARD_SUCCESS;
}

static reshard_status make_plan(const world *w, int64_t r, reshard_plan *plan) {
  const int64_t shape[1] = {ELEMENTS};
  reshard_entry entry = {.size = RESHARD_ENTRY_INIT, .dtype = RESHARD_F32};
  const reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = w->limit};
  reshard_status status = reshard_layout_parse("chunk(0)", 1, shape, RANKS, &entry.src);
  if (status == RESHARD_SUCCESS)
    status = reshard_layout_parse("chunk(0;1,2,0)", 1, shape, RANKS, &entry.dst);
  if (status == RESHARD_SUCCESS)
    status = reshard_plan_create(1, &entry, r, &options, plan);
  reshard_layout_release(entry.src);
  reshard_layout_release(entry.dst);
  return status;
}

static void run_rank(void *user, int64_t r) {
  world *w = user;
  reshard_comm comm = NULL;
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  cudaStream_t stream;
  char *memory;
  cudaSetDevice((int)r);
  cudaMalloc((void **)&memory, 4 * ROOM);
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  char *src[2] = {memory + w->first[r].src, memory + w->then[r].src};
  char *dst[2] = {memory + 2 * ROOM + w->first[r].dst, memory + 2 * ROOM + w->then[r].dst};
  reshard_arrays arrays[2];
  for (int i = 0; i < 2; i++)
    arrays[i] = (reshard_arrays){
        .size = RESHARD_ARRAYS_INIT, .src = (void **)&src[i], .dst = (void **)&dst[i], .nsrc = 1, .ndst = 1};
  reshard_status status = nccl_rank_open(w->id, RANKS, r, 0, &comm);
  if (status == RESHARD_SUCCESS)
    status = make_plan(w, r, &plan);
  if (status == RESHARD_SUCCESS)
    status = reshard_transfer_create(plan, comm, &arrays[0], NULL, &transfer);
  if (status == RESHARD_SUCCESS)
    status = turn(w, r, 0, transfer, src[0], dst[0], stream);
  if (status == RESHARD_SUCCESS)
    status = reshard_transfer_rebind(transfer, &arrays[1]);
  if (status == RESHARD_SUCCESS)
    status = turn(w, r, 1, transfer, src[1], dst[1], stream);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_comm_destroy(comm);
  cudaStreamDestroy(stream);
  cudaFree(memory);
  rank_result_set(&w->result[r], status);
}

static void run(world *w) {
  vg_begin(&(vg_options){.devices = RANKS, .seed = 4});
  assert_int_equal(reshard_nccl_unique_id(w->id), RESHARD_SUCCESS);
  rank_threads_run(RANKS, run_rank, w);
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

static void test_sides(void **state) {
  (void)state;
  world w = {.first = {{0, 0}, {4, 0}, {16, 8}}, .then = {{4, 12}, {0, 32}, {8, 0}}};
  run(&w);
  assert_int_equal(w.rounds[0][0], 1);
  assert_int_equal(w.staging[0][0], 0);
}

/* Addresses count where the number of rounds is found: the staging of what is not aligned fits the limit. */
static void test_rounds(void **state) {
  (void)state;
  world w = {.first = {{0, 0}, {4, 4}, {0, 0}}, .then = {{0, 0}, {0, 0}, {0, 0}}, .limit = 4096 * RANKS};
  run(&w);
  assert_true(w.rounds[0][0] > 1);
  assert_true(w.staging[1][0] <= (size_t)w.limit);
  assert_int_equal(w.staging[1][1], 0);
}

/* A rebind to arrays that are not aligned keeps the rounds, and stages more. */
static void test_rebind(void **state) {
  (void)state;
  world w = {.first = {{0, 0}, {0, 0}, {0, 0}}, .then = {{4, 4}, {4, 4}, {4, 4}}, .limit = 4096 * RANKS};
  run(&w);
  assert_int_equal(w.rounds[0][0], 1);
  assert_int_equal(w.staging[0][0], 0);
  assert_true(w.staging[0][1] >= 2 * PART);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_sides), cmocka_unit_test(test_rounds),
                                     cmocka_unit_test(test_rebind)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
