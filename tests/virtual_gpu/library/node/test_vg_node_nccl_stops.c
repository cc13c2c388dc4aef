/* The mixed path over NCCL where ranks are lost, abort, or fail in any call; what goes on of the communicator then, and
 * in its parts; sharded tensors. */
#include "comm/nccl/nccl.h"
#include "comm/node/node.h"
#include "node_nccl.h"
#include "reshard/dtensor.h"
#include "support/fixtures/case.h"

#include <stdio.h>
#include <stdlib.h>

/* --- Ranks that are lost ------------------------------------------------------------------------------------------ */

/* True where nothing of this rank's node was copied: rows of ranks that are there, and of this one. */
static bool is_unread(const moving_rank *me) {
  char here[BYTES];
  vg_peek(here, me->dst, BYTES);
  for (int i = 0; i < BYTES; i++)
    if (on_one_node(me->m->nodes, i / ROWS / ROWS, me->rank) && (unsigned char)here[i] != 0xEE)
      return false;
  return true;
}

static bool is_named(moving_rank *me, reshard_status status) {
  NEED(me, status == RESHARD_ERROR_TIMEOUT);
  return strstr(reshard_last_error(), "missing: 3") != NULL;
}

/* From here on nothing is written to its memory. */
static void end_transfer(moving_rank *me) {
  reshard_transfer_destroy(me->transfer);
  me->transfer = NULL;
  NEED(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
}

/* No deadline has passed. */
static bool none_missing(const moving_rank *me) {
  int64_t ranks[RANKS], n = -1;
  return reshard_comm_missing(me->comm, ranks, &n) == RESHARD_SUCCESS && n == 0;
}

/* Rank 3 does not come to an execute, which that of its node hears on its stream, and all by their deadline. */
static void lose_one(moving_rank *me) {
  move_once(me, 0);
  cudaMemsetAsync(me->dst, 0xEE, BYTES, me->stream);
  if (me->rank != 3) {
    NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
    NEED(me, is_named(me, reshard_comm_barrier(me->comm)));
    NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_ERROR_PEER);
    NEED(me, strstr(reshard_last_error(), "missing: 3") != NULL);
    end_transfer(me);
    NEED(me, me->rank != 1 || is_unread(me));
  }
  node_gather_meet(&me->m->gather);
  if (me->rank == 3)
    end_transfer(me);
  node_gather_meet(&me->m->gather); /* now rank 1 knows that its words are free */
}

/* Rank 1, which is of its node, hears it before the others begin to wait. */
static void lose_one_on_stream(moving_rank *me) {
  move_once(me, 0);
  if (me->rank != 3)
    NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
  if (me->rank == 1) {
    while (cudaStreamQuery(me->stream) == cudaErrorNotReady && rs_comm_alive(me->comm) == RESHARD_SUCCESS)
      test_sleep_ms(5);
    NEED(me, strstr(reshard_last_error(), "execute on the GPU: not done within 300 ms; missing: 3") != NULL);
    NEED(me, reshard_comm_barrier(me->comm) == RESHARD_ERROR_PEER);
  }
  node_gather_meet(&me->m->gather);
  NEED(me, me->rank % 2 == 1 || is_named(me, reshard_comm_barrier(me->comm)));
  NEED(me, me->rank != 3 || reshard_comm_barrier(me->comm) != RESHARD_SUCCESS); /* its node has ended */
  node_gather_meet(&me->m->gather);
}

/* Rank 3 aborts: the rank on its node hears it, and no stream waits for it, without a deadline. */
static void abort_instead(moving_rank *me) {
  move_once(me, 0);
  if (me->rank == 3)
    NEED(me, reshard_comm_abort(me->comm) == RESHARD_SUCCESS);
  else /* NCCL may tell of it, too */
    (void)reshard_execute(me->transfer, me->stream);
  node_gather_meet(&me->m->gather);
  if (me->rank == 1) {
    NEED(me, reshard_comm_barrier(me->comm) == RESHARD_ERROR_PEER);
    NEED(me, strstr(reshard_last_error(), "rank 3 has ended the communicator") != NULL);
  }
  node_gather_meet(&me->m->gather);
  NEED(me, reshard_comm_abort(me->comm) == RESHARD_SUCCESS);
  NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_ERROR_PEER);
  end_transfer(me);
}

/* Streams of ranks 1 and 3 wait for the other node, which does not come. Rank 3 aborts, and the rank on its node makes
 * no call before it destroys its transfer. That waits for the stream, and not for ever. The last error of a caller who
 * destroys it for that stays. */
static void destroy_after_abort(moving_rank *me) {
  move_once(me, 0);
  NEED(me, me->rank % 2 == 0 || reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
  node_gather_meet(&me->m->gather);
  if (me->rank == 3)
    NEED(me, reshard_comm_abort(me->comm) == RESHARD_SUCCESS);
  node_gather_meet(&me->m->gather);
  if (me->rank % 2 == 1) {
    (void)rs_error(RESHARD_ERROR_INVALID, "the caller's");
    end_transfer(me);
    NEED(me, strcmp(reshard_last_error(), "the caller's") == 0);
  }
  node_gather_meet(&me->m->gather);
  NEED(me, reshard_comm_abort(me->comm) == RESHARD_SUCCESS);
}

/* Rank 3 has ended the communicator, and does not part from the rank on its node. That goes on after a while. */
static void destroy_before_peer(moving_rank *me) {
  move_once(me, 0);
  if (me->rank == 3)
    NEED(me, reshard_comm_abort(me->comm) == RESHARD_SUCCESS);
  node_gather_meet(&me->m->gather);
  if (me->rank == 1)
    end_transfer(me);
  node_gather_meet(&me->m->gather);
  if (me->rank == 3)
    end_transfer(me);
  node_gather_meet(&me->m->gather);
  NEED(me, reshard_comm_abort(me->comm) == RESHARD_SUCCESS);
}

/* Rank 3 aborts while the others wait for it in a call: that of its node hears it, and those in sight of that. */
static void abort_beside_call(moving_rank *me) {
  move_once(me, 0);
  if (me->rank == 3) {
    test_sleep_ms(50);
    NEED(me, reshard_comm_abort(me->comm) == RESHARD_SUCCESS);
  } else {
    NEED(me, reshard_comm_barrier(me->comm) == RESHARD_ERROR_PEER);
    NEED(me, strstr(reshard_last_error(), "rank 3 has ended the communicator") != NULL);
    NEED(me, none_missing(me));
  }
  node_gather_meet(&me->m->gather);
}

static void assert_lost(void (*body)(moving_rank *me), int64_t timeout_ms) {
  for (uint64_t seed = 0; seed < 6; seed++) {
    moving m = {.nodes = NODES, .body = body, .timeout_ms = timeout_ms, .path = RESHARD_PATH_MIXED};
    assert_lost_once(&m, seed, true);
  }
}

CASE(lost_rank_of_a_node_is_named) {
  assert_lost(lose_one, 300);
  assert_lost(lose_one_on_stream, 300);
}

CASE(abort_ends_the_mixed_path) {
  assert_lost(abort_instead, 0);
  assert_lost(destroy_after_abort, 0);
  assert_lost(abort_beside_call, 0);
  assert_lost(destroy_before_peer, 0);
}

/* --- Opening ------------------------------------------------------------------------------------------------------ */

/* A rank that is held on its way to the others of its node, and the one whose communicator is aborted meanwhile. */
typedef struct opening {
  moving m;
  int64_t held, aborts;
  node_gather gate; /* of two: the held one with the one who aborts, then with the one who lets it go */
  const rs_comm_ops *ops;
  rs_comm_ops holding;
  size_t last; /* all-gather of the held rank */
} opening;

/* After the ranks have shown their places comes the all-gather of their addresses. */
static reshard_status gather_and_hold(reshard_comm comm, const rs_meeting *meeting) {
  const size_t places = 3 * sizeof(int64_t);
  opening *o = (opening *)((char *)comm->ops - offsetof(opening, holding));
  reshard_status status = o->ops->meet(comm, meeting);
  if (meeting->scope != RS_MEET_ALL)
    return status;
  bool addresses = o->last == places && meeting->bytes != places;
  o->last = meeting->bytes;
  if (addresses) {
    node_gather_meet(&o->gate);
    node_gather_meet(&o->gate);
  }
  return status;
}

typedef struct opening_rank {
  opening *o;
  moving_rank *me;
} opening_rank;

static void abort_beside(void *user, int64_t unused) {
  const opening_rank *r = user;
  (void)unused;
  vg_process((int)r->me->rank);
  node_gather_meet(&r->o->gate);
  (void)reshard_comm_abort(r->me->comm);
  if (r->o->held == r->me->rank)
    node_gather_meet(&r->o->gate);
}

/* The transfer is the first that asks for the node. No rank waits for long. */
static void open_and_abort(moving_rank *me) {
  opening *o = (opening *)((char *)me->m - offsetof(opening, m));
  opening_rank beside = {o, me};
  rank_thread *thread = NULL;
  int64_t begin = rs_now_ns();
  if (me->rank == o->held) {
    o->ops = me->comm->ops;
    o->holding = *o->ops;
    o->holding.meet = gather_and_hold;
    me->comm->ops = &o->holding;
  }
  if (me->rank == o->aborts)
    thread = rank_thread_start(abort_beside, &beside);
  NEED(me, make_transfer(me, me->src, me->dst, RESHARD_PATH_MIXED) == RESHARD_ERROR_PEER);
  NEED(me, rs_now_ns() - begin < INT64_C(30000000000)); /* half of the deadline, where there is one */
  if (me->rank == o->held)
    me->comm->ops = o->ops;
  if (on_one_node(NODES, me->rank, o->held) && me->rank != o->held && o->held != o->aborts)
    node_gather_meet(&o->gate);
  if (thread != NULL)
    rank_thread_join(thread);
}

CASE(test_abort_while_opening) {
  static const int64_t held[4] = {3, 1, 3, 3}, aborts[4] = {1, 3, 3, 0}; /* the last one is of the other node */
  (void)state;
  for (uint64_t seed = 0; seed < 12; seed++) {
    opening o = {.m = {.nodes = NODES, .body = open_and_abort, .timeout_ms = seed < 6 ? LIMIT_MS : 0},
                 .held = held[seed % 4],
                 .aborts = aborts[seed % 4]};
    node_gather_begin(&o.gate);
    o.gate.ranks = 2;
    vg_quiet(true);
    (void)moving_run(&o.m, seed, run_without);
    vg_quiet(false);
    node_gather_end(&o.gate);
    for (int r = 0; r < RANKS; r++)
      if (o.m.wrong[r] != NULL)
        fail_msg("seed %d, rank %d: %s", (int)seed, r, o.m.wrong[r]);
    if (vg_reports_with("race") + vg_reports_with("freed") + vg_reports_with("leak") > 0)
      fail_msg("seed %d: %s", (int)seed, vg_report(vg_reports() - 1));
  }
}

/* In a child of fork the handle of rank 3 is no rank, and ends nothing. */
static void call_in_child(moving_rank *me) {
  if (me->rank == 3) {
    reshard_comm rest = NULL;
    me->comm->life.forks++; /* as a child finds it */
    NEED(me, reshard_comm_barrier(me->comm) == RESHARD_ERROR_PEER);
    NEED(me, strstr(reshard_last_error(), "rank 3 of the nccl communicator is the process that was forked") != NULL);
    NEED(me, reshard_comm_abort(me->comm) == RESHARD_ERROR_PEER);
    NEED(me, reshard_comm_shrink(me->comm, 1, &(int64_t){0}, &rest) == RESHARD_ERROR_PEER);
    reshard_comm_destroy(me->comm);
    me->comm->life.forks--;
  }
  move_once(me, 0);
}

CASE(child_has_no_rank_of_the_mixed_path) {
  moving m = {.nodes = NODES, .body = call_in_child, .timeout_ms = LIMIT_MS, .path = RESHARD_PATH_MIXED};
  assert_moved(&m, 0);
}

/* --- A communicator of the caller's ------------------------------------------------------------------------------- */

static void move_twice(moving_rank *me) {
  move_once(me, 0);
  move_once(me, 1);
}

/* Rank 3 does not come. The others' streams wait in NCCL until the caller aborts. What they still use is kept, and open
 * where rank 3 frees its source. */
static void hold_streams(moving_rank *me) {
  move_once(me, 0);
  if (me->rank == 3)
    return;
  NEED(me, reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
  NEED(me, is_named(me, reshard_comm_barrier(me->comm)));
}

CASE(callers_communicator_stays_the_callers) {
  for (uint64_t seed = 0; seed < 4; seed++) {
    moving m = {.nodes = NODES, .body = move_twice, .timeout_ms = LIMIT_MS, .path = RESHARD_PATH_MIXED};
    m.borrowed = true;
    assert_moved(&m, seed);
#ifndef __SANITIZE_ADDRESS__ /* what stays for ever is a leak */
    m.body = hold_streams;
    m.timeout_ms = 300;
    vg_quiet(true);
    (void)moving_run(&m, seed, run_rank);
    vg_quiet(false);
    rank_results_assert(RANKS, m.result, RESHARD_SUCCESS, NULL, "a transfer");
    for (int r = 0; r < RANKS; r++)
      if (m.wrong[r] != NULL)
        fail_msg("seed %d, rank %d: %s", (int)seed, r, m.wrong[r]);
    for (int i = 0; i < vg_reports(); i++)
      if (strstr(vg_report(i), "leak") == NULL && strstr(vg_report(i), "NCCL") == NULL &&
          strstr(vg_report(i), "ipc") == NULL)
        fail_msg("seed %d: %s", (int)seed, vg_report(i));
#endif
  }
}

/* --- Parts -------------------------------------------------------------------------------------------------------- */

/* Parts and what is left after a loss have nodes of their own. */
static void split_and_shrink(moving_rank *me) {
  const int64_t lost[1] = {3};
  reshard_comm turned = NULL, rest = NULL;
  move_once(me, 0);
  NEED(me, reshard_comm_split(me->comm, 0, -me->rank, &turned) == RESHARD_SUCCESS);
  NEED(me, reshard_comm_rank(turned) == RANKS - 1 - me->rank);
  NEED(me, columns_move(SIDE, turned, RESHARD_PATH_MIXED, me->stream) == RESHARD_SUCCESS);
  reshard_comm_destroy(turned);
  move_once(me, 1);
  node_gather_meet(&me->m->gather);
  if (me->rank != 3) {
    NEED(me, reshard_comm_shrink(me->comm, 1, lost, &rest) == RESHARD_SUCCESS);
    NEED(me, columns_move(SIDE, rest, RESHARD_PATH_MIXED, me->stream) == RESHARD_SUCCESS);
    reshard_comm_destroy(rest);
  }
  node_gather_meet(&me->m->gather);
}

/* NCCL 2.27 does not revoke what it shrinks. The stream of rank 1 waits for the lost rank of its node, without a
 * deadline, until the shrink. */
static void shrink_unrevoked(moving_rank *me) {
  const int64_t lost[1] = {3};
  reshard_comm rest = NULL;
  rs_nccl_of(me->comm)->api.ncclCommRevoke = NULL;
  move_once(me, 0);
  if (me->rank != 3) {
    NEED(me, me->rank != 1 || reshard_execute(me->transfer, me->stream) == RESHARD_SUCCESS);
    NEED(me, reshard_comm_shrink(me->comm, 1, lost, &rest) == RESHARD_SUCCESS);
    end_transfer(me);
    NEED(me, columns_move(SIDE, rest, RESHARD_PATH_MIXED, me->stream) == RESHARD_SUCCESS);
    reshard_comm_destroy(rest);
  }
  node_gather_meet(&me->m->gather);
  if (me->rank == 3) {
    NEED(me, reshard_comm_abort(me->comm) == RESHARD_SUCCESS);
    end_transfer(me);
  }
  node_gather_meet(&me->m->gather); /* now rank 1 knows that its words are free */
}

CASE(parts_of_nodes_go_on) {
  for (uint64_t seed = 0; seed < 4; seed++) {
    moving m = {.nodes = NODES, .body = split_and_shrink, .timeout_ms = LIMIT_MS, .path = RESHARD_PATH_MIXED};
    assert_moved(&m, seed);
  }
  assert_lost(shrink_unrevoked, 0);
}

/* --- Sharded tensors ---------------------------------------------------------------------------------------------- */

static bool is_cut(const moving_rank *me, reshard_dtensor tensor) {
  char here[BYTES];
  reshard_tensor_info info = {.data = NULL};
  if (reshard_tensor_get_info(reshard_dtensor_local(tensor), &info) != RESHARD_SUCCESS)
    return false;
  cudaStreamSynchronize(me->stream);
  vg_peek(here, info.data, BYTES);
  for (int64_t i = 0; i < BYTES; i++)
    if (here[i] != byte_of(0, i / ROWS / ROWS))
      return false;
  return true;
}

/* Rows to columns again and again, of other arrays each time: nothing that others read is kept. */
static void redistribute_again(moving_rank *me) {
  const int64_t n = RANKS, shape[2] = {SIDE, SIDE};
  const reshard_placement cuts[2] = {{.kind = RESHARD_PLACEMENT_SHARD, .dim = 0},
                                     {.kind = RESHARD_PLACEMENT_SHARD, .dim = 1}};
  const reshard_properties properties = {.dtype = RESHARD_U8};
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .path = RESHARD_PATH_MIXED};
  reshard_sharder sharder = NULL;
  reshard_mesh mesh = NULL;
  reshard_dtensor held[3] = {NULL, NULL, NULL};
  NEED(me, reshard_sharder_create(me->comm, &options, &sharder) == RESHARD_SUCCESS);
  NEED(me, reshard_mesh_create(me->comm, 0, 1, &n, NULL, 0, NULL, &mesh) == RESHARD_SUCCESS);
  const reshard_placing rows = {mesh, &cuts[0], NULL}, columns = {mesh, &cuts[1], NULL};
  for (int turn = 0; turn < 6 && me->wrong == NULL; turn++) {
    reshard_dtensor source = NULL, result = NULL;
    reshard_tensor_info info = {.data = NULL};
    NEED(me, reshard_dtensor_empty(sharder, &rows, 2, shape, &properties, me->stream, &source) == RESHARD_SUCCESS);
    NEED(me, reshard_tensor_get_info(reshard_dtensor_local(source), &info) == RESHARD_SUCCESS);
    cudaMemsetAsync(info.data, byte_of(0, me->rank), BYTES, me->stream);
    NEED(me, reshard_dtensor_redistribute(1, &source, &columns, me->stream, &result) == RESHARD_SUCCESS);
    NEED(me, result != NULL && is_cut(me, result));
    reshard_dtensor_release(source);
    reshard_dtensor_release(held[turn % 3]); /* so that arrays lie elsewhere */
    held[turn % 3] = result;
  }
  for (int i = 0; i < 3; i++)
    reshard_dtensor_release(held[i]);
  reshard_comm_barrier(me->comm);
  reshard_mesh_release(mesh);
  reshard_sharder_destroy(sharder);
}

CASE(sharded_tensors_go_on_the_packed_path) {
  for (uint64_t seed = 0; seed < 3; seed++) {
    moving m = {.nodes = NODES, .body = redistribute_again, .timeout_ms = LIMIT_MS, .path = RESHARD_PATH_PACKED};
    assert_moved(&m, seed);
  }
}

/* --- Faults ------------------------------------------------------------------------------------------------------- */

static int64_t failing; /* call of rank 0 */

/* One call of rank 0 fails, whichever: nobody hangs, and all hear of it. */
static void run_failing(void *user, int64_t rank) {
  moving *m = user;
  moving_rank me = {.m = m, .rank = rank};
  vg_own_calls(true);
  open_memory(&me);
  reshard_status status = make_plan(&me);
  RS_THEN(status, open_comm(&me));
  if (rank == 0)
    vg_fail_here(NULL, failing, false, 0);
  cudaMemsetAsync(me.src, byte_of(0, rank), BYTES, me.stream);
  vg_own_calls(false);
  RS_THEN(status, make_transfer(&me, me.src, me.dst, RESHARD_PATH_MIXED));
  RS_THEN(status, reshard_execute(me.transfer, me.stream));
  reshard_transfer_destroy(me.transfer);
  me.transfer = NULL;
  vg_own_calls(true);
  node_gather_meet(&m->gather); /* nobody reads its memory any more */
  reshard_status met = reshard_comm_barrier(me.comm);
  rank_result_set(&m->result[rank], status != RESHARD_SUCCESS ? status : met);
  if (met != RESHARD_SUCCESS)
    reshard_comm_abort(me.comm);
  close_rank(&me);
}

CASE(every_failing_call_of_the_mixed_path_is_told) {
  int64_t fired = 1, step = vg_proving() ? 1 : 5;
  for (failing = 1; fired > 0; failing += step) {
    moving m = {.nodes = NODES, .timeout_ms = 1000};
    vg_quiet(true);
    (void)moving_run(&m, (uint64_t)failing, run_failing);
    vg_quiet(false);
    fired = vg_failed();
    bool heard = true;
    for (int r = 1; r < RANKS; r++)
      heard &= (m.result[r].status == RESHARD_SUCCESS) == (m.result[0].status == RESHARD_SUCCESS);
    if (!heard ||
        vg_reports_with("race") + vg_reports_with("freed") + vg_reports_with("ipc") + vg_reports_with("leak") > 0)
      fail_msg("call %d of rank 0 fails: %s; %s", (int)failing, m.result[0].text,
               vg_reports() > 0 ? vg_report(0) : "the ranks do not agree");
  }
  assert_true(failing > 60);
}

RUN_CASES_IF(vg_sees_kernels(), "this build sees no accesses")
