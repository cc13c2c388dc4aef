/* Ranks of an NCCL communicator.
 *
 * An exchange is one group with at most one send and one receive per peer, none of zero bytes. NCCL splits a group that
 * is too large for one kernel by each rank's own list of operations, and hangs when the lists differ. So a rank with
 * very many peers makes several groups, by the distance between the ranks: sender and receiver compute the same group.
 * Where all messages are a collective together, NCCL's own may carry them.
 *
 * The host waits in three places, never in an exchange that has been planned: for a non-blocking communicator to take
 * up a call, for an all-gather of records, and when the communicator ends. All three look at the deadline and at the
 * communicator's own error. After the deadline the communicator is given up, and revoked or aborted unless it is
 * borrowed, which ends its kernels. NCCL alone decides what becomes of a peer's kernels when a process died.
 *
 * NCCL does not tell for whom it waits. Ranks of a node do, by words that they share (comm/roll.h). */
#include "comm/nccl/nccl.h"

#include "base/range.h"
#include "comm/nccl/node.h"
#include "comm/nccl/records.h"
#include "device/cuda/memory.h"
#include "device/stream.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ASK_MS = 250 };  /* at most, and two looks at least, for others to tell that they wait */
enum { WINDOW = 1024 }; /* peers in one group: 2,048 operations, where 8,000 are known to be safe */

/* --- Errors, waiting, the end ----------------------------------------------------------------------------------- */

static reshard_status status_of(ncclResult_t result) {
  switch (result) {
  case ncclInvalidArgument:
  case ncclInvalidUsage: return RESHARD_ERROR_INVALID;
  case ncclRemoteError: return RESHARD_ERROR_PEER;
  case ncclInternalError: return RESHARD_ERROR_INTERNAL;
  default: return RESHARD_ERROR_SYSTEM;
  }
}

reshard_status rs_nccl_error(const rs_nccl_api *api, ncclComm_t nccl, ncclResult_t result, const char *call) {
  const char *last = api->ncclGetLastError(nccl);
  return rs_error(status_of(result), "%s: %s (NCCL error %d)%s%.300s", call, api->ncclGetErrorString(result),
                  (int)result, last != NULL && *last != '\0' ? ": " : "", last != NULL ? last : "");
}

/* SUCCESS, or why it has ended. */
static reshard_status check_alive(const rs_nccl *c) {
  if (c->quit)
    return rs_comm_error_destroyed((reshard_comm)&c->base);
  if (!c->ended)
    return RESHARD_SUCCESS;
  const char *reason = rs_roll_reason(c->roll);
  if (c->lost != RESHARD_SUCCESS)
    return rs_error(c->lost, "%s", c->why);
  return reason != NULL ? rs_error(RESHARD_ERROR_PEER, "the communicator has ended: %.*s", RS_ROLL_REASON, reason)
                        : rs_comm_error_ended();
}

reshard_status rs_nccl_end_after_error(rs_nccl *c, reshard_status status) {
  if (status == RESHARD_SUCCESS || c->ended)
    return status;
  c->lost = status;
  snprintf(c->why, sizeof c->why, "%s", reshard_last_error());
  rs_nccl_end(c);
  rs_nccl_quiesce(c);
  return status;
}

/* Ends the communicator where its node has ended. Ranks in sight say the same: what the first of them has found. */
static reshard_status check_node(rs_nccl *c) {
  reshard_status status = c->ended || c->closing ? RESHARD_SUCCESS : rs_nccl_check_node(c);
  if (status == RESHARD_SUCCESS)
    return status;
  static const char ended[] = "the communicator has ended: "; /* as later calls say */
  const char *reason = rs_roll_conclude(c->roll, status, reshard_last_error());
  if (reason != NULL)
    status = rs_roll_status(c->roll);
  snprintf(c->why, sizeof c->why, "%s%.*s", ended, (int)(sizeof c->why - sizeof ended),
           reason != NULL ? reason : reshard_last_error());
  c->lost = RESHARD_ERROR_PEER;
  rs_nccl_end(c);
  rs_nccl_quiesce(c);
  return rs_error(status, "%s", c->why + strlen(ended));
}

reshard_status rs_nccl_check_call(rs_nccl *c) {
  RS_TRY(check_node(c));
  return check_alive(c);
}

reshard_status rs_nccl_lock(rs_nccl *c) {
  pthread_mutex_lock(&c->mutex);
  reshard_status status = check_alive(c);
  if (status != RESHARD_SUCCESS)
    pthread_mutex_unlock(&c->mutex);
  return status;
}

void rs_nccl_unlock(rs_nccl *c) { pthread_mutex_unlock(&c->mutex); }

void rs_nccl_abort(const rs_nccl *c, ncclComm_t nccl) {
  if (nccl == NULL)
    return;
  rs_cuda_before before = rs_cuda_try_enter(c->base.device);
  (void)c->api.ncclCommAbort(nccl);
  rs_cuda_leave(before);
}

void rs_nccl_end(rs_nccl *c) {
  c->ended = true; /* before the lock: who holds it may be waiting for NCCL */
  rs_roll_leave(c->roll);
  pthread_mutex_lock(&c->mutex);
  rs_nccl_leave_node(c);
  ncclComm_t nccl = c->borrowed || c->revoked ? NULL : c->nccl;
  if (nccl != NULL && !c->closing && rs_nccl_revoke(c)) {
    c->revoked = true; /* rs_nccl_close aborts it */
    nccl = NULL;
  } else if (nccl != NULL) {
    c->nccl = NULL;
  }
  for (rs_nccl *child = c->children; child != NULL; child = child->next)
    rs_nccl_end(child);
  pthread_mutex_unlock(&c->mutex);
  rs_nccl_abort(c, nccl);
}

/* The sleep grows with the wait: one that lasts until a deadline would look at NCCL 20,000 times a second. */
void rs_nccl_pause(int64_t since, int64_t spin_ns) {
  const int64_t shortest = 50000, longest = 1000000, waited = rs_now_ns() - since;
  if (waited < spin_ns)
    sched_yield();
  else
    nanosleep(&(struct timespec){0, rs_min(rs_max(waited / 16, shortest), longest)}, NULL);
}

/* The ranks of a node that give up say the same: what the first of them has found. At its end none is waited for. */
static reshard_status give_up(rs_nccl *c, const char *call) {
  char missing[RS_ROLL_TEXT];
  rs_roll *roll = c->closing ? NULL : c->roll;
  rs_roll_ask(roll, rs_max(rs_min(c->timeout_ms / 2, ASK_MS), 2 * RS_NCCL_LOOK_NS / 1000000));
  reshard_status status = rs_comm_error_timeout(&c->base, call, c->timeout_ms, rs_roll_text(roll, 0, NULL, missing));
  const char *reason = rs_roll_conclude(roll, status, reshard_last_error());
  if (reason != NULL)
    status = rs_error(rs_roll_status(roll), "%.*s", RS_ROLL_REASON, reason);
  pthread_mutex_lock(&c->mutex);
  if (!c->closing) /* the node hears the same, also where there is no roll */
    rs_nccl_end_node(c, status, reshard_last_error());
  pthread_mutex_unlock(&c->mutex);
  rs_nccl_end(c);
  rs_nccl_quiesce(c);
  return status;
}

/* The roll comes first: those that give up end their nodes after it. */
reshard_status rs_nccl_wait_more(rs_nccl *c, rs_nccl_wait *w, int64_t spin_ns) {
  int64_t few[RS_AWAITED], now = rs_now_ns();
  if (!c->closing && rs_roll_reason(c->roll) != NULL)
    return give_up(c, w->call);
  RS_TRY(check_node(c));
  if (rs_late(c->since != 0 ? c->since : w->since, c->timeout_ms))
    return give_up(c, w->call);
  if (now - w->looked >= RS_NCCL_LOOK_NS) {
    w->looked = now;
    rs_roll_wait(c->roll);
    rs_comm_await(&c->base, rs_roll_absent(c->roll, 0, NULL, RS_AWAITED, few), few);
  }
  if (rs_comm_poll(&c->base, w->since))
    return rs_comm_error_ended();
  rs_nccl_pause(w->since, spin_ns);
  return RESHARD_SUCCESS;
}

reshard_status rs_nccl_get_async_error(rs_nccl *c, const char *call, ncclResult_t *state) {
  RS_TRY(rs_nccl_lock(c));
  ncclResult_t result = c->api.ncclCommGetAsyncError(c->nccl, state);
  reshard_status status = RESHARD_SUCCESS;
  if (result != ncclSuccess || (*state != ncclSuccess && *state != ncclInProgress))
    status = rs_nccl_error(&c->api, c->nccl, result != ncclSuccess ? result : *state, call);
  rs_nccl_unlock(c);
  return status;
}

/* NCCL takes up each group of a non-blocking communicator on a thread of its own, in some tens of microseconds. A sleep
 * meanwhile would last longer than that. What takes far longer, as a first connection, is slept through. */
static void learn_spin(rs_nccl *c, int64_t took_ns) {
  const int64_t most = 1000000;
  c->spin_ns = rs_min(most, rs_max(RS_NCCL_SPIN_NS, rs_max(2 * took_ns, c->spin_ns - c->spin_ns / 8)));
}

reshard_status rs_nccl_settle(rs_nccl *c, ncclResult_t result, const char *call) {
  rs_nccl_wait w = {call, rs_now_ns(), rs_now_ns()};
  if (result != ncclSuccess && result != ncclInProgress)
    return rs_nccl_error(&c->api, c->nccl, result, call);
  RS_RANGE("wait", -1, -1, -1, -1);
  while (result == ncclInProgress) {
    RS_TRY(rs_nccl_get_async_error(c, call, &result));
    if (result == ncclInProgress)
      RS_TRY(rs_nccl_wait_more(c, &w, c->spin_ns));
  }
  learn_spin(c, rs_now_ns() - w.since);
  return RESHARD_SUCCESS;
}

/* --- Messages --------------------------------------------------------------------------------------------------- */

/* NCCL has launched what it was handed: the stream's own events come after it. */
static reshard_status settle_handed(rs_nccl *c, ncclResult_t result, const char *call) {
  RS_TRY(rs_nccl_settle(c, result, call));
  c->handed = false;
  return RESHARD_SUCCESS;
}

/* Number of the group that a message from sender to receiver is in: the same for both. */
static int64_t window_of(int64_t sender, int64_t receiver, int64_t size) {
  return ((receiver - sender + size) % size - 1) / WINDOW;
}

static reshard_status exchange_window(rs_nccl *c, const rs_turn *turn, int64_t window, void *stream) {
  int64_t me = c->base.rank, size = c->base.size;
  RS_TRY(rs_nccl_lock(c));
  c->handed = true;
  ncclResult_t result = c->api.ncclGroupStart(), end;
  bool open = result == ncclSuccess;
  int64_t send = rs_parts_begin(turn->sends, turn->nsends, me),
          receive = rs_parts_begin(turn->receives, turn->nreceives, me);
  for (int64_t i = 0; i < turn->nsends && result == ncclSuccess; i++) {
    const rs_part *p = rs_parts_at(turn->sends, turn->nsends, send, i);
    if (window_of(me, p->peer, size) == window)
      result = c->api.ncclSend(p->at, (size_t)p->bytes, ncclInt8, (int)p->peer, c->nccl, (cudaStream_t)stream);
  }
  for (int64_t i = 0; i < turn->nreceives && result == ncclSuccess; i++) {
    const rs_part *p = rs_parts_at(turn->receives, turn->nreceives, receive, i);
    if (window_of(p->peer, me, size) == window)
      result = c->api.ncclRecv(p->at, (size_t)p->bytes, ncclInt8, (int)p->peer, c->nccl, (cudaStream_t)stream);
  }
  if (open) {
    end = c->api.ncclGroupEnd();
    result = result == ncclSuccess || result == ncclInProgress ? end : result;
  }
  rs_nccl_unlock(c);
  return settle_handed(c, result, "group of sends and receives");
}

static bool has_window(const rs_nccl *c, const rs_turn *turn, int64_t window) {
  for (int64_t i = 0; i < turn->nsends; i++)
    if (window_of(c->base.rank, turn->sends[i].peer, c->base.size) == window)
      return true;
  for (int64_t i = 0; i < turn->nreceives; i++)
    if (window_of(turn->receives[i].peer, c->base.rank, c->base.size) == window)
      return true;
  return false;
}

static ncclResult_t start_collective(rs_nccl *c, const rs_collective *o, cudaStream_t stream) {
  size_t bytes = (size_t)o->bytes;
  switch (o->kind) {
  case RESHARD_COLLECTIVE_ALL_GATHER:
    return c->api.ncclAllGather(o->send, o->receive, bytes, ncclInt8, c->nccl, stream);
  case RESHARD_COLLECTIVE_ALL_TO_ALL: return c->api.ncclAlltoAll(o->send, o->receive, bytes, ncclInt8, c->nccl, stream);
  case RESHARD_COLLECTIVE_BROADCAST: /* of the root in place */
    return c->api.ncclBroadcast(o->send, c->base.rank == o->root ? o->send : o->receive, bytes, ncclInt8, (int)o->root,
                                c->nccl, stream);
  default: return ncclInvalidUsage;
  }
}

static reshard_status exchange_collective(rs_nccl *c, const rs_collective *o, void *stream) {
  RS_TRY(rs_nccl_lock(c));
  c->handed = true;
  ncclResult_t result = start_collective(c, o, (cudaStream_t)stream);
  rs_nccl_unlock(c);
  return settle_handed(c, result, reshard_collective_string(o->kind));
}

/* An all-gather sends each message once where a group sends it to every peer, and a broadcast takes the links in turn.
 * An all-to-all of NCCL is a group of sends and receives inside, and so brings nothing. Not measured between GPUs. */
static rs_fit nccl_fit(reshard_comm comm, reshard_collective kind, int64_t bytes) {
  bool has_all_to_all = rs_nccl_of(comm)->api.ncclAlltoAll != NULL;
  (void)bytes;
  switch (kind) {
  case RESHARD_COLLECTIVE_ALL_GATHER:
  case RESHARD_COLLECTIVE_BROADCAST: return RS_FIT_FASTER;
  case RESHARD_COLLECTIVE_ALL_TO_ALL: return has_all_to_all ? RS_FIT_SLOWER : RS_FIT_NONE;
  default: return RS_FIT_NONE;
  }
}

static reshard_status exchange_turn(rs_nccl *c, const rs_turn *turn, void *stream) {
  rs_cuda_before previous;
  reshard_status status = rs_cuda_enter(c->base.device, &previous);
  if (status != RESHARD_SUCCESS)
    return rs_nccl_end_after_error(c, status);
  if (turn->collective != NULL)
    status = exchange_collective(c, turn->collective, stream);
  for (int64_t w = 0; turn->collective == NULL && w * WINDOW < c->base.size - 1 && status == RESHARD_SUCCESS; w++)
    if (has_window(c, turn, w))
      status = exchange_window(c, turn, w, stream);
  rs_cuda_leave(previous);
  return rs_nccl_end_handed(c, status);
}

static reshard_status nccl_exchange(int64_t n, const rs_turn *turns, int64_t total_bytes) {
  (void)total_bytes;
  for (int64_t i = 0; i < n; i++) {
    rs_nccl *c = rs_nccl_of(turns[i].comm);
    int64_t bytes = 0;
    RS_TRY(exchange_turn(c, &turns[i], turns[i].stream));
    for (int64_t r = 0; r < turns[i].nreceives; r++)
      bytes += turns[i].receives[r].bytes;
    rs_comm_count(turns[i].comm, bytes, turns[i].nreceives);
  }
  return RESHARD_SUCCESS;
}

/* Sends a byte to each peer and receives one, in the buffers and on the stream of the all-gather. The received bytes
 * are not read. The host connects when it plans the group, so nothing has to be waited for. */
static reshard_status connect_peers(rs_nccl *c, int64_t nsends, const int64_t *sends, int64_t nreceives,
                                    const int64_t *receives, reshard_collective kind, int64_t root) {
  reshard_comm comm = &c->base;
  rs_part *parts = NULL;
  if (kind != RESHARD_COLLECTIVE_NONE) {
    char *send = (char *)c->device_all; /* of every rank a byte, and the same behind it to receive */
    rs_collective o = {kind, root, send, send + comm->size, 1};
    return exchange_turn(c, &(rs_turn){.comm = comm, .collective = &o}, c->stream);
  }
  if (nsends + nreceives == 0)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc(&parts, nsends + nreceives, sizeof *parts));
  for (int64_t i = 0; i < nsends; i++)
    parts[i] = (rs_part){.peer = sends[i], .at = (char *)c->device_mine, .bytes = 1, .staged = true};
  for (int64_t i = 0; i < nreceives; i++)
    parts[nsends + i] =
        (rs_part){.peer = receives[i], .at = (char *)(c->device_all + receives[i]), .bytes = 1, .staged = true};
  rs_turn turn = {comm, nsends, nreceives, parts, parts + nsends, NULL, c->stream};
  reshard_status status = exchange_turn(c, &turn, c->stream);
  free(parts);
  return status;
}

static reshard_status nccl_connect(reshard_comm comm, int64_t nsends, const int64_t *sends, int64_t nreceives,
                                   const int64_t *receives, reshard_collective kind, int64_t root) {
  rs_nccl *c = rs_nccl_of(comm);
  rs_roll_come(c->roll, RS_ROLL_STEP, 0);
  RS_TRY(connect_peers(c, nsends, sends, nreceives, receives, kind, root));
  RS_TRY(rs_nccl_end_after_error(c, rs_nccl_record_gathered(c)));
  rs_roll_pass(c->roll);
  return RESHARD_SUCCESS;
}

/* --- The rest --------------------------------------------------------------------------------------------------- */

/* One rank of this process: there is no other to meet. It has come to its call, also where it has nothing to send or
 * receive in it. */
static reshard_status nccl_together(reshard_comm comm, reshard_status (*run)(int64_t n, void **all), void *mine) {
  rs_nccl *c = rs_nccl_of(comm);
  RS_TRY(rs_nccl_check_call(c));
  rs_roll_come(c->roll, RS_ROLL_CALL, rs_calls_made(&c->base.calls));
  return run(1, &mine);
}

static void nccl_caller(reshard_comm comm, int64_t rank, rs_stamp *stamp) {
  *stamp = rs_nccl_of(comm)->all[rank].caller;
}

static int64_t nccl_missing(reshard_comm comm, int64_t *ranks) {
  return rs_roll_missing(rs_nccl_of(comm)->roll, ranks);
}

static reshard_status nccl_enter(reshard_comm comm) { return rs_nccl_check_call(rs_nccl_of(comm)); }

static void nccl_leave(reshard_comm comm) { (void)comm; }

/* A group needs no memory of ours. */
static reshard_status nccl_reserve(reshard_comm comm, int64_t most) {
  (void)comm, (void)most;
  return RESHARD_SUCCESS;
}

static reshard_status nccl_abort(reshard_comm comm) {
  rs_nccl_end(rs_nccl_of(comm));
  return RESHARD_SUCCESS;
}

static void nccl_stop(reshard_comm comm) { rs_nccl_stop(rs_nccl_of(comm)); }

/* NCCL goes on: work that streams have been given may be under way. */
static void nccl_quit(reshard_comm comm) {
  rs_nccl_of(comm)->quit = true;
  rs_roll_leave(rs_nccl_of(comm)->roll);
}

static void nccl_destroy(reshard_comm comm) {
  rs_nccl_of(comm)->quit = false; /* its end is as ever */
  rs_nccl_close(rs_nccl_of(comm));
}

const rs_comm_ops rs_nccl_ops = {
    .name = "nccl",
    .alignment = 16, /* at other addresses NCCL moves byte by byte */
    .reach = false,
    .together = nccl_together,
    .allgather = rs_nccl_allgather,
    .enter = nccl_enter,
    .leave = nccl_leave,
    .exchange = nccl_exchange,
    .reserve = nccl_reserve,
    .fit = nccl_fit,
    .connect = nccl_connect,
    .open_node = rs_nccl_open_node,
    .pass = rs_nccl_pass,
    .take = rs_nccl_take,
    .await_closed = rs_nccl_await_closed,
    .split = rs_nccl_split,
    .missing = nccl_missing,
    .caller = nccl_caller,
    .shrink = rs_nccl_shrink,
    .alive = nccl_enter,
    .abort = nccl_abort,
    .quit = nccl_quit,
    .stop = nccl_stop,
    .stuck = rs_nccl_stuck,
    .destroy = nccl_destroy,
};
