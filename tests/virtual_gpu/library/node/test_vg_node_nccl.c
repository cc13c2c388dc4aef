/* The mixed path over NCCL: ranks are processes on several nodes, with a GPU each. Ranks of a node read each other's
 * arrays, the others send messages, in one execute. The nodes are those of RESHARD_NODE. */
#include "base/base.h"
#include "library/nccl/nccl_edges.h"
#include "node_nccl.h"
#include "plan/hops.h"
#include "reshard/reshard.h"
#include "reshard/tensor.h"
#include "support/fixtures/case.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- Bytes that NCCL moves ---------------------------------------------------------------------------------------- */

/* The table of each communicator, with functions that count. */
static struct {
  const rs_comm_ops *original;
  rs_comm_ops ops;
  rs_message_ops messages;
  int64_t nodes, bytes[NCCL_MOST];
  atomic_int within; /* messages, or connections, between ranks of a node */
} counted;

static reshard_status count_exchange(int64_t n, const rs_exchange *exchanges, int64_t total_bytes) {
  const rs_exchange *t = &exchanges[0];
  for (int64_t i = 0; i < t->nreceives; i++) {
    counted.bytes[t->comm->rank] += t->receives[i].bytes;
    counted.within += on_one_node(counted.nodes, t->receives[i].peer, t->comm->rank);
  }
  return counted.original->exchange(n, exchanges, total_bytes);
}

static reshard_status count_connections(reshard_comm comm, const rs_links *links) {
  for (int64_t i = 0; i < links->nsends; i++)
    counted.within += on_one_node(counted.nodes, links->sends[i], comm->rank);
  for (int64_t i = 0; i < links->nreceives; i++)
    counted.within += on_one_node(counted.nodes, links->receives[i], comm->rank);
  return counted.original->messages->connect(comm, links);
}

static void count_of(nccl_world *w) {
  memset(counted.bytes, 0, sizeof counted.bytes);
  counted.within = 0;
  counted.nodes = w->nodes;
  counted.original = w->comm[0]->ops;
  counted.ops = *counted.original;
  counted.ops.exchange = count_exchange;
  counted.messages = *counted.original->messages;
  counted.messages.connect = count_connections;
  counted.ops.messages = &counted.messages;
  for (int64_t r = 0; r < w->n; r++)
    w->comm[r]->ops = &counted.ops;
}

/* Bytes that come to a rank in messages: from ranks of other nodes, and what is passed on. */
static int64_t message_bytes(const nccl_world *w, int64_t rank) {
  reshard_plan plan = NULL;
  reshard_plan_info info;
  int64_t bytes = 0;
  reshard_entry *entries = case_entries(w->c);
  assert_int_equal(reshard_plan_create(w->c->nentries, entries, rank, &w->c->options, &plan), RESHARD_SUCCESS);
  assert_int_equal(reshard_plan_get_info(plan, &info), RESHARD_SUCCESS);
  bool passes = w->info[0].streams > 0;
  for (int64_t i = 0; passes && i < plan->hops->receives.n; i++) {
    const rs_stream_end *end = &plan->hops->receives.at[i];
    const rs_stream *stream = &plan->hops->streams.at[end->stream];
    bytes += stream->group == 0 && on_one_node(w->nodes, end->peer, rank) ? 0 : stream->bytes;
  }
  for (int64_t i = 0; !passes && i < info.peers; i++) {
    int64_t peer, sent, received;
    assert_int_equal(reshard_plan_peer(plan, i, &peer, &sent, &received), RESHARD_SUCCESS);
    bytes += on_one_node(w->nodes, peer, rank) ? 0 : received;
  }
  reshard_plan_destroy(plan);
  free(entries);
  return bytes;
}

/* --- Random cases ------------------------------------------------------------------------------------------------- */

static void assert_counts(nccl_world *w, int executes) {
  for (int64_t r = 0; r < w->n; r++) {
    reshard_comm_stats stats;
    assert_string_equal(w->why[r], "");
    assert_int_equal(w->info[r].path, RESHARD_PATH_MIXED);
    assert_int_equal(reshard_comm_get_stats(w->comm[r], &stats), RESHARD_SUCCESS);
    assert_int_equal(stats.received_bytes, executes * w->c->counts.lacked[r]);
    assert_int_equal(counted.bytes[r], executes * message_bytes(w, r));
  }
  assert_true(counted.within == 0 || w->info[0].streams > 0);
}

CASE(random_mixed_reshards_are_right) {
  int64_t most = vg_scaled(40, 600), cases = 0, in_rounds = 0, crossing = 0, passing = 0;
  for (int64_t i = 0; i < most; i++) {
    case_plan c;
    uint64_t seed = vg_first_seed() + (uint64_t)i;
    rs_text why = {0};
    if (!vg_is_mine(i))
      continue;
    cases++;
    const case_choices choices = {
        .ranks = 3 + i % 4, .rounds = seed % 3 == 0, .path = RESHARD_PATH_PACKED, .topologies = true, .gpus = true};
    if (!case_make(4400 + seed, &choices, &c, &why))
      fail_msg("seed %lld: %s", (long long)seed, why.at);
    free(why.at);
    nccl_world w = {.n = c.world, .timeout_ms = LIMIT_MS, .nodes = 2, .path = RESHARD_PATH_MIXED};
    w.c = &c;
    w.check = true;
    w.graph = seed % 4 == 1;
    w.executes = 2;
    vg_begin(&(vg_options){.devices = (int)c.world, .seed = seed});
    nccl_world_begin(&w);
    count_of(&w);
    rank_threads_run(w.n, nccl_case_rank, &w);
    rank_results_assert(w.n, w.result, RESHARD_SUCCESS, NULL, "a random case");
    assert_counts(&w, w.graph ? 1 : 2); /* captured once */
    bool crosses = false;
    for (int64_t r = 0; r < w.n; r++)
      crosses |= counted.bytes[r] > 0 && counted.bytes[r] < (w.graph ? 1 : 2) * c.counts.lacked[r];
    crossing += crosses;
    in_rounds += w.info[0].rounds > 1;
    passing += w.info[0].streams > 0;
    nccl_world_close(&w);
    if (vg_end() != 0)
      fail_msg("seed %lld: the checker reports %s", (long long)seed, vg_report(0));
    case_free(&c);
  }
  printf("%lld cases over NCCL and nodes, %lld in several rounds, %lld with both, %lld pass bytes on\n",
         (long long)cases, (long long)in_rounds, (long long)crossing, (long long)passing);
  assert_true(in_rounds * 8 >= cases && crossing * 4 >= cases && passing * 8 >= cases);
}

/* --- Edges -------------------------------------------------------------------------------------------------------- */

CASE(every_edge_of_the_mixed_path_is_needed) {
  static const nccl_edges cases[] = {
      {"NCCL and nodes", {-1, {7, 2}}, {-1, {3, 5}}, 0, false},
      {"NCCL and nodes, graph", {-1, {7, 2}}, {-1, {3, 5}}, 0, true},
      {"NCCL and nodes, rounds", {-1, {7, 2}}, {-1, {3, 5}}, 1024, false},
      {"NCCL and nodes, rounds, graph", {-1, {7, 2}}, {-1, {3, 5}}, 1024, true},
  };
  enum { ALL = sizeof cases / sizeof *cases, FEW = 1 };
  const nccl_world world = {.n = RANKS, .timeout_ms = 300, .nodes = NODES, .path = RESHARD_PATH_MIXED};
  for (int i = 0; i < (vg_proving() ? ALL : FEW); i++)
    if (vg_is_mine(i))
      nccl_edges_find(&cases[i], world, 6, 0);
}

/* --- Transfers ---------------------------------------------------------------------------------------------------- */

/* A later call waits for nothing, and asks the driver for nothing. */
static void count_calls(moving_rank *me) {
  enum { CALLS = 3 };
  static vg_counts before;
  reshard_transfer_info info = {.path = RESHARD_PATH_AUTO};
  NEED(me, reshard_transfer_get_info(me->transfer, &info) == RESHARD_SUCCESS && info.path == RESHARD_PATH_MIXED);
  move_once(me, 0);
  node_gather_meet(&me->m->gather);
  if (me->rank == 0)
    before = vg_count();
  node_gather_meet(&me->m->gather);
  for (int i = 0; i < CALLS; i++)
    NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
  node_gather_meet(&me->m->gather);
  if (me->rank == 0) {
    vg_counts now = vg_count();
    NEED(me, now.allocs == before.allocs && now.frees == before.frees);
    NEED(me, now.creates == before.creates && now.host_syncs == before.host_syncs);
  }
  node_gather_meet(&me->m->gather);
  cudaStreamSynchronize(me->stream);
}

CASE(test_later_calls_wait_for_nothing) {
  moving m = {.nodes = NODES, .body = count_calls, .timeout_ms = LIMIT_MS, .path = RESHARD_PATH_MIXED};
  assert_moved(&m, 5);
}

/* After a rebind the old arrays are the owner's alone. The new ones are storage whose descriptors are passed on. */
static void rebind_arrays(moving_rank *me) {
  const reshard_device_options shared = {.size = RESHARD_DEVICE_OPTIONS_INIT, .shared = true};
  const int64_t elements = BYTES + 100;
  char name[32];
  reshard_device device = NULL;
  reshard_tensor tensor = NULL;
  reshard_tensor_info info = {.data = NULL};
  snprintf(name, sizeof name, "cuda:%d", (int)me->rank);
  NEED(me, reshard_device_create(name, &shared, &device) == RESHARD_SUCCESS);
  NEED(me, reshard_tensor_create_on(device, RESHARD_U8, 1, &elements, me->stream, &tensor) == RESHARD_SUCCESS);
  NEED(me, reshard_tensor_get_info(tensor, &info) == RESHARD_SUCCESS);
  move_once(me, 0);
  char *src = (char *)info.data + 100, *old = me->src;
  const reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = (void *[]){src}, .dst = (void *[]){me->dst}};
  NEED(me, reshard_transfer_rebind(me->transfer, &arrays) == RESHARD_SUCCESS);
  cudaFree(old);
  me->src = src;
  move_once(me, 1);
  move_once(me, 2);
  reshard_transfer_destroy(me->transfer);
  me->transfer = NULL;
  reshard_tensor_release(tensor);
  cudaMalloc((void **)&me->src, BYTES);
  NEED(me, make_transfer(me, me->src, me->dst, RESHARD_PATH_MIXED) == RESHARD_SUCCESS); /* the nodes are open */
  move_once(me, 3);
  reshard_comm_barrier(me->comm);
  reshard_device_release(device);
}

CASE(mixed_rebinds_read_the_new_arrays) {
  for (uint64_t seed = 0; seed < 6; seed++) {
    moving m = {.nodes = NODES, .body = rebind_arrays, .timeout_ms = LIMIT_MS, .path = RESHARD_PATH_MIXED};
    assert_moved(&m, seed);
  }
}

/* AUTO and PACKED send all by NCCL, before a mixed transfer and after it. */
static void take_turns(moving_rank *me) {
  static const reshard_path wishes[] = {RESHARD_PATH_MIXED, RESHARD_PATH_AUTO, RESHARD_PATH_PACKED, RESHARD_PATH_MIXED};
  reshard_transfer_info info = {.path = RESHARD_PATH_AUTO};
  move_once(me, 0);
  for (int i = 0; i < 4; i++) {
    NEED(me, reshard_transfer_get_info(me->transfer, &info) == RESHARD_SUCCESS);
    NEED(me, info.path == (i % 3 == 1 ? RESHARD_PATH_MIXED : RESHARD_PATH_PACKED));
    reshard_transfer_destroy(me->transfer);
    me->transfer = NULL;
    NEED(me, make_transfer(me, me->src, me->dst, wishes[i]) == RESHARD_SUCCESS);
    move_once(me, i + 1);
  }
}

CASE(mixed_path_is_taken_by_wish_alone) {
  moving m = {.nodes = NODES, .body = take_turns, .timeout_ms = LIMIT_MS, .path = RESHARD_PATH_AUTO};
  assert_moved(&m, 3);
}

/* --- Refusals ----------------------------------------------------------------------------------------------------- */

/* The communicator goes on. */
static void move_packed(moving_rank *me) {
  NEED(me, make_transfer(me, me->src, me->dst, RESHARD_PATH_AUTO) == RESHARD_SUCCESS);
  move_once(me, 1);
}

CASE(worlds_without_nodes_refuse_the_mixed_path) {
  static const struct {
    int64_t nodes;
    bool threads, pooled;
    const char *part;
  } cases[] = {
      {1, false, false, "all ranks are on one node"},
      {RANKS, false, false, "no two ranks are on one node"},
      {NODES, true, false, "ranks 0 and 2 of one are threads of one process"},
      {NODES, false, true, "rank 1 has a source of entry 0 'weights'"},
  };
  for (int i = 0; i < 4; i++) {
    moving m = {.nodes = cases[i].nodes, .threads = cases[i].threads, .pooled = cases[i].pooled};
    m.path = RESHARD_PATH_MIXED;
    m.timeout_ms = LIMIT_MS;
    m.body = move_packed;
    assert_int_equal(moving_run(&m, (uint64_t)i, run_rank), 0);
    rank_results_assert(RANKS, m.result, RESHARD_ERROR_UNSUPPORTED, cases[i].part, "where nobody can be read");
    for (int r = 0; r < RANKS; r++)
      assert_null(m.wrong[r]);
  }
}

/* One rank wishes another path, or has no plan: all get the same error, and nobody opens nodes alone. */
static void wish_otherwise(moving_rank *me) {
  reshard_transfer none = NULL;
  const reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = (void *[]){me->src}, .dst = (void *[]){me->dst}};
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = RESHARD_PATH_MIXED};
  NEED(me, make_transfer(me, me->src, me->dst, me->rank == 2 ? RESHARD_PATH_PACKED : RESHARD_PATH_MIXED) ==
               RESHARD_ERROR_MISMATCH);
  NEED(me, strstr(reshard_last_error(), "path mixed on rank 0, packed on rank 2") != NULL);
  NEED(me, reshard_transfer_create(me->rank == 3 ? NULL : me->plan, me->comm, &arrays, &options, &none) ==
               RESHARD_ERROR_INVALID);
  NEED(me, strstr(reshard_last_error(), "rank 3: ") != NULL);
  NEED(me, make_transfer(me, me->src, me->dst, RESHARD_PATH_MIXED) == RESHARD_SUCCESS);
  move_once(me, 1);
}

CASE(test_differing_wishes) {
  moving m = {.nodes = NODES, .body = wish_otherwise, .timeout_ms = LIMIT_MS};
  assert_int_equal(moving_run(&m, 1, run_without), 0);
  for (int r = 0; r < RANKS; r++)
    if (m.wrong[r] != NULL)
      fail_msg("rank %d: %s", r, m.wrong[r]);
}

RUN_CASES_IF(vg_sees_kernels(), "this build sees no accesses")
