/* The virtual NCCL itself: what its calls move, in which order, and splits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fixtures/case.h"

#include "nccl_world.h"

CASE(sends_and_receives_move_every_byte) {
  for (uint64_t seed = 0; seed < 20; seed++) {
    world w;
    open_world(&w, seed);
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++)
      for (int p = 0; p < RANKS; p++)
        if (p != r) {
          OK(ncclSend(w.send[r] + p * PART, PART, ncclInt8, p, w.comm[r], w.stream[r]));
          OK(ncclRecv(w.receive[r] + p * PART, PART, ncclInt8, p, w.comm[r], w.stream[r]));
        }
    through(&w, ncclGroupEnd());
    synchronise(&w);
    for (int r = 0; r < RANKS; r++)
      for (int p = 0; p < RANKS; p++)
        if (p != r)
          assert_came(&w, r, p * PART, p, r * PART);
    for (int r = 0; r < RANKS; r++)
      through(&w, ncclAllGather(w.send[r], w.receive[r], PART / 4, ncclInt32, w.comm[r], w.stream[r]));
    synchronise(&w);
    for (int r = 0; r < RANKS; r++)
      for (int p = 0; p < RANKS; p++)
        assert_came(&w, r, p * PART, p, 0);
    for (int r = 0; r < RANKS; r++)
      through(&w, ncclAlltoAll(w.send[r], w.receive[r], PART, ncclInt8, w.comm[r], w.stream[r]));
    synchronise(&w);
    for (int r = 0; r < RANKS; r++)
      for (int p = 0; p < RANKS; p++)
        assert_came(&w, r, p * PART, p, r * PART);
    for (int r = 0; r < RANKS; r++) /* the root gets it, too: it is not in place */
      through(&w, ncclBroadcast(w.send[r], w.receive[r], PART, ncclInt8, 1, w.comm[r], w.stream[r]));
    synchronise(&w);
    for (int r = 0; r < RANKS; r++)
      assert_came(&w, r, 0, 1, 0);
    OK(ncclGroupStart()); /* two collectives of each, one in place */
    for (int r = 0; r < RANKS; r++) {
      unsigned char *mine = w.receive[r] + r * PART;
      OK(ncclBroadcast(w.send[r], w.receive[r] + 3 * PART, PART, ncclInt8, 2, w.comm[r], w.stream[r]));
      OK(ncclAllGather(mine, w.receive[r], PART, ncclInt8, w.comm[r], w.stream[r]));
      OK(ncclAllGather(w.send[r], w.receive[r], 0, ncclInt8, w.comm[r], w.other[r])); /* nothing */
    }
    through(&w, ncclGroupEnd());
    synchronise(&w);
    for (int r = 0; r < RANKS; r++) {
      assert_came(&w, r, 3 * PART, 2, 0);
      for (int p = 1; p < RANKS; p++)
        assert_came(&w, r, p * PART, p == 1 ? 1 : 2, p * PART);
    }
    end_comms(&w);
    assert_int_equal(close_world(&w), 0);
  }
}

/* --- Groups on several streams ------------------------------------------------------------------------------------ */

/* Rank 0 sends from `send`, which its second stream has filled, on its first stream; and, where they are mixed, sends
 * something else on the second. Then its second stream fills `send` again. Captured: the second stream is joined to the
 * first by an event, and the group is all that is between them. */
static void send_on_two(world *w, bool mix, cudaStream_t stream) {
  OK(ncclGroupStart());
  OK(ncclSend(w->send[0], PART, ncclInt8, 1, w->comm[0], stream));
  if (mix)
    OK(ncclSend(w->receive[0], PART, ncclInt8, 2, w->comm[0], w->other[0]));
  through(w, ncclGroupEnd());
}

static void receive_on_two(world *w, bool mix) {
  through(w, ncclRecv(w->receive[1], PART, ncclInt8, 0, w->comm[1], w->stream[1]));
  if (mix)
    through(w, ncclRecv(w->receive[2], PART, ncclInt8, 0, w->comm[2], w->stream[2]));
}

static void two_streams(world *w, bool mix) {
  CUDA(cudaSetDevice(0));
  CUDA(cudaMemsetAsync(w->send[0], 7, PART, w->other[0]));
  send_on_two(w, mix, w->stream[0]);
  CUDA(cudaMemsetAsync(w->send[0], 9, PART, w->other[0]));
  receive_on_two(w, mix);
}

static void two_streams_captured(world *w, bool mix) {
  cudaEvent_t event;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA(cudaSetDevice(0));
  CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CUDA(cudaStreamBeginCapture(w->stream[0], cudaStreamCaptureModeThreadLocal));
  CUDA(cudaEventRecord(event, w->stream[0]));
  CUDA(cudaStreamWaitEvent(w->other[0], event, 0));
  CUDA(cudaMemsetAsync(w->send[0], 7, PART, w->other[0]));
  send_on_two(w, mix, w->stream[0]);
  CUDA(cudaMemsetAsync(w->send[0], 9, PART, w->other[0]));
  CUDA(cudaEventRecord(event, w->other[0]));
  CUDA(cudaStreamWaitEvent(w->stream[0], event, 0));
  CUDA(cudaStreamEndCapture(w->stream[0], &graph));
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CUDA(cudaGraphDestroy(graph));
  for (int i = 0; i < 2; i++) {
    CUDA(cudaGraphLaunch(exec, w->stream[0]));
    receive_on_two(w, mix);
  }
  synchronise(w);
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaEventDestroy(event));
}

CASE(test_mixed_streams) {
  static void (*const ways[])(world * w, bool mix) = {two_streams, two_streams_captured};
  vg_quiet(true);
  for (uint64_t seed = 0; seed < 100; seed++)
    for (int way = 0; way < 2; way++)
      for (int mix = 0; mix < 2; mix++) {
        world w;
        open_world(&w, seed);
        ways[way](&w, mix);
        synchronise(&w);
        unsigned char seen[PART];
        vg_peek(seen, w.receive[1], PART);
        for (int i = 0; mix && i < PART; i++)
          assert_int_equal(seen[i], 7);
        assert_int_equal(vg_count().mixed_groups, mix);
        end_comms(&w);
        int reports = close_world(&w);
        if (mix && reports > 0)
          fail_msg("seed %llu: %s", (unsigned long long)seed, vg_report(0));
        if (!mix && vg_sees_kernels())
          assert_true(vg_reports_with("race: group cudaMemsetAsync") > 0);
      }
  vg_quiet(false);
}

/* The new communicators are there when all have asked, and not before. */
CASE(split_is_there_when_all_have_asked) {
  world w;
  ncclComm_t sub[RANKS];
  open_world(&w, 3);
  for (int r = 0; r < RANKS; r++) {
    assert_int_equal(ncclCommSplit(w.comm[r], r == 1 ? NCCL_SPLIT_NOCOLOR : 5, -r, &sub[r], NULL),
                     r < RANKS - 1 ? ncclInProgress : ncclSuccess);
    for (int s = 0; s <= r && r < RANKS - 1; s++)
      assert_null(sub[s]);
  }
  through(&w, ncclSuccess);
  assert_null(sub[1]);
  for (int r = 0; r < RANKS; r += 2) {
    int n, rank;
    OK(ncclCommCount(sub[r], &n));
    OK(ncclCommUserRank(sub[r], &rank));
    assert_int_equal(n, 2);
    assert_int_equal(rank, r == 0 ? 1 : 0);
    OK(ncclCommAbort(sub[r]));
  }
  assert_int_equal(close_world(&w), 0);
}

/* A parent and its child on streams of their own, in one order on all ranks, which changes from time to time; the ranks
 * come one after the other, so that a launch waits for partners behind others. */
CASE(test_same_order) {
  for (uint64_t seed = 0; seed < 50; seed++) {
    world w;
    ncclComm_t sub[RANKS];
    open_world(&w, seed);
    for (int r = 0; r < RANKS; r++)
      (void)ncclCommSplit(w.comm[r], 0, 0, &sub[r], NULL);
    through(&w, ncclSuccess);
    for (int round = 0; round < 3; round++)
      for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < 4; i++) {
          bool child = (seed >> i & 1) != 0;
          ncclComm_t comm = child ? sub[r] : w.comm[r];
          ncclResult_t result = ncclAllGather(w.send[r], w.receive[r] + (child ? 32 : 0), PART, ncclInt8, comm,
                                              child ? w.other[r] : w.stream[r]);
          while (result == ncclInProgress)
            OK(ncclCommGetAsyncError(comm, &result));
          OK(result);
        }
    synchronise(&w);
    for (int r = 0; r < RANKS; r++) {
      if ((seed & 15) != 15) /* not the child alone */
        assert_came(&w, r, 0, 0, 0);
      CUDA(cudaStreamSynchronize(w.other[r]));
      OK(ncclCommAbort(sub[r]));
    }
    end_comms(&w);
    assert_int_equal(close_world(&w), 0);
  }
}

RUN_CASES
