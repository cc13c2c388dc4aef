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
 * NCCL does not tell for whom it waits. Ranks of a node do, by what they share (comm/presence.h). */
#include "comm/nccl/nccl.h"

#include "base/range.h"
#include "comm/nccl/end.h"
#include "comm/nccl/node.h"
#include "comm/nccl/records.h"
#include "device/cuda/memory.h"
#include "device/stream.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WINDOW = 1024 }; /* peers in one group: 2,048 operations, where 8,000 are known to be safe */

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

static reshard_status exchange_window(rs_nccl *c, const rs_exchange *exchange, int64_t window, void *stream) {
  int64_t me = c->base.rank, size = c->base.size;
  RS_TRY(rs_nccl_lock(c));
  c->handed = true;
  ncclResult_t result = c->api.ncclGroupStart(), end;
  bool open = result == ncclSuccess;
  int64_t send = rs_parts_begin(exchange->sends, exchange->nsends, me),
          receive = rs_parts_begin(exchange->receives, exchange->nreceives, me);
  for (int64_t i = 0; i < exchange->nsends && result == ncclSuccess; i++) {
    const rs_part *p = rs_parts_at(exchange->sends, exchange->nsends, send, i);
    if (window_of(me, p->peer, size) == window)
      result = c->api.ncclSend(p->at, (size_t)p->bytes, ncclInt8, (int)p->peer, c->nccl, (cudaStream_t)stream);
  }
  for (int64_t i = 0; i < exchange->nreceives && result == ncclSuccess; i++) {
    const rs_part *p = rs_parts_at(exchange->receives, exchange->nreceives, receive, i);
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

static bool has_window(const rs_nccl *c, const rs_exchange *exchange, int64_t window) {
  for (int64_t i = 0; i < exchange->nsends; i++)
    if (window_of(c->base.rank, exchange->sends[i].peer, c->base.size) == window)
      return true;
  for (int64_t i = 0; i < exchange->nreceives; i++)
    if (window_of(exchange->receives[i].peer, c->base.rank, c->base.size) == window)
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

static reshard_status exchange_one(rs_nccl *c, const rs_exchange *exchange, void *stream) {
  rs_cuda_before previous;
  reshard_status status = rs_cuda_enter(c->base.device, &previous);
  if (status != RESHARD_SUCCESS)
    return rs_nccl_end_after_error(c, status);
  if (exchange->collective != NULL)
    status = exchange_collective(c, exchange->collective, stream);
  for (int64_t w = 0; exchange->collective == NULL && w * WINDOW < c->base.size - 1 && status == RESHARD_SUCCESS; w++)
    if (has_window(c, exchange, w))
      status = exchange_window(c, exchange, w, stream);
  rs_cuda_leave(previous);
  return rs_nccl_end_handed(c, status);
}

static reshard_status nccl_exchange(int64_t n, const rs_exchange *exchanges, int64_t total_bytes) {
  (void)total_bytes;
  for (int64_t i = 0; i < n; i++) {
    rs_nccl *c = rs_nccl_of(exchanges[i].comm);
    RS_TRY(exchange_one(c, &exchanges[i], exchanges[i].stream));
    rs_comm_count_exchange(&exchanges[i]);
  }
  return RESHARD_SUCCESS;
}

/* Sends a byte to each peer and receives one, in the buffers and on the stream of the all-gather. The received bytes
 * are not read. The host connects when it plans the group, so nothing has to be waited for. */
static reshard_status connect_peers(rs_nccl *c, const rs_links *links) {
  const int64_t nsends = links->nsends, nreceives = links->nreceives;
  reshard_comm comm = &c->base;
  rs_part *parts = NULL;
  if (links->kind != RESHARD_COLLECTIVE_NONE) {
    char *send = (char *)c->device_all; /* of every rank a byte, and the same behind it to receive */
    rs_collective o = {links->kind, links->root, send, send + comm->size, 1};
    return exchange_one(c, &(rs_exchange){.comm = comm, .collective = &o}, c->stream);
  }
  if (nsends + nreceives == 0)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc(&parts, nsends + nreceives, sizeof *parts));
  for (int64_t i = 0; i < nsends; i++)
    parts[i] = (rs_part){.peer = links->sends[i], .at = (char *)c->device_mine, .bytes = 1, .staged = true};
  for (int64_t i = 0; i < nreceives; i++)
    parts[nsends + i] = (rs_part){
        .peer = links->receives[i], .at = (char *)(c->device_all + links->receives[i]), .bytes = 1, .staged = true};
  rs_exchange exchange = {comm, nsends, nreceives, parts, parts + nsends, NULL, c->stream, NULL, NULL};
  reshard_status status = exchange_one(c, &exchange, c->stream);
  free(parts);
  return status;
}

static reshard_status nccl_connect(reshard_comm comm, const rs_links *links) {
  rs_nccl *c = rs_nccl_of(comm);
  rs_presence_come(c->presence, RS_PRESENCE_STEP, 0);
  RS_TRY(connect_peers(c, links));
  RS_TRY(rs_nccl_end_after_error(c, rs_nccl_record_gathered(c)));
  rs_presence_pass(c->presence);
  return RESHARD_SUCCESS;
}

/* --- The rest --------------------------------------------------------------------------------------------------- */

/* The rank has come to its call, also where it has nothing to send or receive in it. */
static reshard_status nccl_meet(reshard_comm comm, const rs_meeting *m) {
  rs_nccl *c = rs_nccl_of(comm);
  if (m->scope == RS_MEET_ALL)
    return rs_nccl_allgather(comm, m->record, m->bytes, m->all);
  if (m->scope == RS_MEET_END)
    return m->status;
  if (m->scope == RS_MEET_CLOSED) {
    rs_nccl_await_closed(comm, m->key);
    return RESHARD_SUCCESS;
  }
  RS_TRY(rs_nccl_check_call(c));
  if (m->scope == RS_MEET_BEGIN)
    rs_presence_come(c->presence, RS_PRESENCE_CALL, rs_calls_made(&comm->log.calls));
  return RESHARD_SUCCESS;
}

static reshard_status nccl_look(reshard_comm comm) { return rs_nccl_check_call(rs_nccl_of(comm)); }

static int64_t nccl_absent(reshard_comm comm, int64_t *ranks) {
  return rs_presence_missing(rs_nccl_of(comm)->presence, ranks);
}

/* Where the rank ends its calls NCCL goes on: work that streams have been given may be under way. */
static bool nccl_end(reshard_comm comm, rs_end what) {
  rs_nccl *c = rs_nccl_of(comm);
  if (what == RS_END_NOTHING)
    return rs_nccl_stuck(c);
  if (what == RS_END_ABORT)
    rs_nccl_end(c);
  if (what == RS_END_STREAMS)
    rs_nccl_stop(c);
  if (what == RS_END_CALLS)
    rs_presence_leave(c->presence);
  return false;
}

static void nccl_destroy(reshard_comm comm) {
  comm->life.quit = false; /* its end is as ever */
  rs_nccl_close(rs_nccl_of(comm));
}

static const rs_message_ops nccl_messages = {.connect = nccl_connect}; /* a group needs no memory of ours */
static const rs_neighbour_ops nccl_neighbours = {.open = rs_nccl_open_node, .pass = rs_nccl_pass, .take = rs_nccl_take};

const rs_comm_ops rs_nccl_ops = {
    .name = "nccl",
    .alignment = 16, /* at other addresses NCCL moves byte by byte */
    .messages = &nccl_messages,
    .neighbours = &nccl_neighbours,
    .look = nccl_look,
    .meet = nccl_meet,
    .exchange = nccl_exchange,
    .make = rs_nccl_make_part,
    .absent = nccl_absent,
    .end = nccl_end,
    .destroy = nccl_destroy,
};
