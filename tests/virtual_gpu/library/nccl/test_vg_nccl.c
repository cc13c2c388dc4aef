/* The shipped NCCL communicator on the virtual GPU: rank threads, a GPU each. Records, random reshards against the
 * oracle, and splits; what a rank that fails or does not come does to the others; faults of every call, and every edge
 * left out. */
#include "comm/split.h"
#include "nccl_edges.h"
#include "support/fixtures/case.h"
#include "support/reshards/stream_ways.h"
#include "virtual_gpu.h"

#include <stdlib.h>
#include <string.h>

static void gpus_begin(int devices, uint64_t seed) { vg_begin(&(vg_options){.devices = devices, .seed = seed}); }

/* --- Random cases ----------------------------------------------------------------------------------------------- */

static void make_case(uint64_t seed, int64_t ranks, bool rounds, case_plan *c) {
  rs_text why = {0};
  const case_choices fixed = {
      .ranks = ranks, .rounds = rounds, .path = RESHARD_PATH_PACKED, .topologies = true, .gpus = true};
  if (!case_make(seed, &fixed, c, &why))
    fail_msg("seed %llu: %s", (unsigned long long)seed, why.at);
  free(why.at);
}

CASE(random_reshards_over_nccl_are_right) {
  int64_t most = vg_scaled(60, 1500), cases = 0, replayed = 0, in_rounds = 0;
  for (int64_t i = 0; i < most; i++) {
    case_plan c;
    nccl_world w;
    uint64_t seed = vg_first_seed() + (uint64_t)i;
    if (!vg_is_mine(i / 6)) /* what is drawn by the remainder of the seed is in each */
      continue;
    cases++;
    make_case(9100 + seed, vg_proving() ? 2 + (int64_t)(seed % (NCCL_MOST - 1)) : 1 + i % 8, seed % 3 != 0, &c);
    gpus_begin((int)c.world, seed);
    nccl_world_open(&w, c.world, 60000);
    w.c = &c;
    w.check = true;
    w.graph = seed / 3 % 3 == 0;
    w.executes = 2;
    replayed += w.graph ? 2 : 0;
    bool rounds = false;
    rank_threads_run(w.n, nccl_case_rank, &w);
    rank_results_assert(w.n, w.result, RESHARD_SUCCESS, NULL, "a random case");
    for (int64_t r = 0; r < w.n; r++) {
      reshard_comm_stats stats;
      rounds |= w.rounds[r] > 1;
      assert_string_equal(w.why[r], "");
      assert_int_equal(reshard_comm_get_stats(w.comm[r], &stats), RESHARD_SUCCESS);
      assert_int_equal(stats.received_bytes, (w.graph ? 1 : 2) * c.counts.lacked[r]); /* captured once */
    }
    in_rounds += rounds;
    nccl_world_close(&w);
    if (vg_end() != 0)
      fail_msg("seed %lld: the checker reports %s", (long long)seed, vg_report(0));
    case_free(&c);
  }
  printf("%lld cases over NCCL, %lld in several rounds\n", (long long)cases, (long long)in_rounds);
  assert_true(in_rounds >= cases / (vg_proving() ? 8 : 4));
  vg_prove("cases|NCCL|%lld|%lld|%lld|%lld", (long long)cases, (long long)(2 * cases), (long long)in_rounds,
           (long long)replayed);
}

/* --- Records, splits, refusals ------------------------------------------------------------------------------------ */

static void barrier_rank(void *user, int64_t rank) {
  nccl_world *w = user;
  rank_result_set(&w->result[rank], reshard_comm_barrier(w->comm[rank]));
}

static void gather_rank(void *user, int64_t rank) {
  nccl_world *w = user;
  const void *all;
  char mine[RS_COMM_RECORD];
  memset(mine, 'a' + (int)rank, sizeof mine);
  reshard_status status = RESHARD_SUCCESS;
  for (size_t bytes = 1; bytes <= sizeof mine && status == RESHARD_SUCCESS;
       bytes = bytes * 3 < 512 ? bytes * 3 : bytes + 512) {
    status = rs_comm_allgather(w->comm[rank], mine, bytes, &all);
    for (int64_t r = 0; r < w->n && status == RESHARD_SUCCESS; r++)
      for (size_t i = 0; i < bytes; i++)
        if (((const char *)all)[(size_t)r * bytes + i] != 'a' + r)
          status = RESHARD_ERROR_CORRUPT;
  }
  rank_result_set(&w->result[rank], status);
}

static void mixed_rank(void *user, int64_t rank) {
  nccl_world *w = user;
  const void *all;
  char mine[64] = "";
  rank_result_set(&w->result[rank], rs_comm_allgather(w->comm[rank], mine, rank == 2 ? 64 : 1, &all));
}

CASE(records_reach_all_ranks) {
  nccl_world w;
  gpus_begin(4, 1);
  nccl_world_open(&w, 4, 60000);
  rank_threads_run(4, gather_rank, &w);
  rank_results_assert(4, w.result, RESHARD_SUCCESS, NULL, "records");
  rank_threads_run(4, mixed_rank, &w);
  rank_results_assert(4, w.result, RESHARD_ERROR_MISMATCH, "different collective calls", "calls that do not match");
  rank_threads_run(4, barrier_rank, &w);
  rank_results_assert(4, w.result, RESHARD_SUCCESS, NULL, "after that");
  nccl_world_close(&w);
  assert_int_equal(vg_end(), 0);
}

/* Where rank 3 has failed before, which the others hear. */
static void split_rank(void *user, int64_t rank) {
  nccl_world *w = user;
  reshard_comm sub;
  rs_split mine = {.key = rank};
  if (rank == 3)
    mine.status = rs_error(RESHARD_ERROR_OUT_OF_MEMORY, "there is none");
  rank_result_set(&w->result[rank], rs_comm_split(w->comm[rank], &mine, &sub));
}

CASE(split_tells_all_that_a_rank_has_failed) {
  nccl_world w;
  gpus_begin(5, 3);
  nccl_world_open(&w, 5, 60000);
  rank_threads_run(5, split_rank, &w);
  rank_results_assert(5, w.result, RESHARD_ERROR_OUT_OF_MEMORY, "rank 3: there is none", "a rank that failed");
  nccl_world_close(&w);
  assert_int_equal(vg_end(), 0);
}

CASE(test_same_gpu) {
  nccl_world w = {.n = 2, .timeout_ms = 60000};
  gpus_begin(1, 4); /* cuda:1 is not there */
  assert_int_equal(reshard_nccl_unique_id(w.id), RESHARD_SUCCESS);
  reshard_device device;
  assert_int_equal(reshard_device_create("cuda:1", NULL, &device), RESHARD_ERROR_UNSUPPORTED);
  reshard_comm comm;
  assert_int_equal(reshard_comm_create_nccl(w.id, 2, 2, NULL, 0, &comm), RESHARD_ERROR_INVALID);
  assert_non_null(strstr(reshard_last_error(), "rank 2 of 2"));
  assert_int_equal(reshard_comm_from_nccl(NULL, NULL, 0, &comm), RESHARD_ERROR_INVALID);
  assert_int_equal(vg_end(), 0);
}

/* --- Deadlines, aborts -------------------------------------------------------------------------------------------- */

CASE(rank_that_never_comes_to_a_creation_is_named) {
  nccl_world w = {.n = 2, .timeout_ms = 3000}; /* under ThreadSanitizer time is real */
  gpus_begin(2, 6);
  assert_int_equal(reshard_nccl_unique_id(w.id), RESHARD_SUCCESS);
  rank_threads_run(1, nccl_world_open_rank, &w);
  assert_int_equal(w.result[0].status, RESHARD_ERROR_TIMEOUT);
  assert_non_null(strstr(w.result[0].text, "rank 0 of 2"));
  assert_int_equal(vg_end(), 0);
}

static void abort_rank(void *user, int64_t rank) {
  nccl_world *w = user;
  if (rank == 0) {
    test_sleep_ms(50);
    for (int64_t r = 0; r < w->n; r++)
      reshard_comm_abort(w->comm[r]);
    rank_result_set(&w->result[0], RESHARD_ERROR_PEER);
  } else {
    rank_result_set(&w->result[rank], reshard_comm_barrier(w->comm[rank]));
  }
}

CASE(abort_ends_all_ranks) {
  nccl_world w;
  gpus_begin(3, 7);
  nccl_world_open(&w, 3, 0);
  rank_threads_run(3, abort_rank, &w);
  for (int r = 1; r < 3; r++)
    assert_int_equal(w.result[r].status, RESHARD_ERROR_PEER);
  nccl_world_close(&w);
  assert_int_equal(vg_end(), 0);
}

/* --- Edges -------------------------------------------------------------------------------------------------------- */

CASE(every_edge_over_nccl_is_needed) {
  if (!vg_sees_kernels()) /* nothing is checked in this build */
    skip();
#ifdef __SANITIZE_ADDRESS__
  skip(); /* the library's own accesses to pinned memory are not seen with a sanitizer */
#endif
  static const nccl_edges cases[] = {
      {"NCCL", {-1, {7, 2}}, {-1, {3, 5}}, 0, false},
      {"NCCL, rounds", {-1, {7, 2}}, {-1, {3, 5}}, 1024, false},
      {"NCCL, few rounds", {-1, {7, 2}}, {-1, {3, 5}}, 2048, false},
      {"NCCL, rounds, sent in place", {1, {0, 0}}, {0, {0, 0}}, 1024, false},
      {"NCCL, rounds, received in place", {0, {0, 0}}, {1, {0, 0}}, 1024, false},
      {"NCCL, passed on", {-1, {7, 2}}, {-2, {2, 2}}, 4096, false},
      {"NCCL, graph", {-1, {7, 2}}, {-1, {3, 5}}, 0, true},
      {"NCCL, rounds, graph", {-1, {7, 2}}, {-1, {3, 5}}, 1024, true},
  };
  enum { ALL = sizeof cases / sizeof *cases, FEW = 2 };
  for (int i = 0; i < (vg_proving() ? ALL : FEW); i++)
    if (vg_is_mine(i)) { /* with an edge left out records may be garbage, and ranks wait for nothing */
      int64_t ranks = cases[i].dst.dim == STREAM_REPLICAS ? 4 : 3;
      nccl_edges_find(&cases[i], (nccl_world){.n = ranks, .timeout_ms = 300}, 2, 4);
    }
}

/* An argument names the tests to run, with wildcards. */
RUN_CASES
