/* Execute: one thread does it for all ranks of the process, on the path that they have chosen. On the CPU the device's
 * threads help, and all is done when it returns. On a device with streams it gives the work to streams, without a wait.
 * Nothing is allocated and no offset is computed here. */
#include "device/stream.h"
#include "device/trace.h"
#include "exec/transfer/steps.h"

#include <string.h>

reshard_status rs_execution_meet(rs_execution *x, rs_step step, const char *edge) {
  rs_stream_barrier *meeting = x->t[0]->streams.barrier;
  rs_lane *lane = x->flow.lane[0];
  void *stream;
  if (meeting == NULL)
    return RESHARD_SUCCESS;
  RS_TRY(rs_flow_use(&x->flow, lane, step, &stream));
  return rs_stream_meet(lane->device, meeting, NULL, 0, stream, edge); /* the meeting is this transfer's alone */
}

int64_t rs_execution_copied(const rs_execution *x, const rs_device *device) {
  int64_t bytes = 0;
  if (!rs_trace_heard(device))
    return -1;
  for (int64_t i = 0; i < x->n; i++)
    bytes += x->t[i]->plan->info.self_copy_bytes + x->t[i]->binding.foreign_bytes;
  return bytes;
}

static void begin_flow(rs_execution *x, void *stream, bool forked) {
  struct reshard_transfer_s *const *t = x->t;
  int64_t rounds = 0;
  x->flow = (rs_flow){.n = t[0]->comm->process.lanes, .lane = t[0]->streams.lanes};
  for (int64_t i = 0; i < x->n; i++) {
    if (t[i]->comm->process.lane_rank == 0)
      x->flow.lane[t[i]->comm->process.lane] = &t[i]->streams.lane;
    rounds = rs_max(rounds, t[i]->binding.nrounds);
  }
  rs_flow_begin(&x->flow, forked ? t[0]->streams.lane.side[RS_MOVE] : stream, rounds > 0, rounds > 1);
}

/* The host asks for the event before it frees what the transfer has. */
static reshard_status record_end(reshard_transfer t, void *stream) {
  reshard_status status = rs_stream_record_external(t->comm->process.lane_devices[0], t->streams.ended, stream,
                                                    RS_EDGE("execute before host"));
  t->streams.lost |= status != RESHARD_SUCCESS;
  return status;
}

/* stream: the one of all ranks, of the first rank's device; not read where they have come by fork and join. */
static reshard_status run_on_streams(rs_execution *x, void *stream, bool forked) {
  rs_saved_error e;
  e.status = RESHARD_SUCCESS;
  begin_flow(x, stream, forked);
  void *main = x->flow.lane[0]->stream[RS_MOVE];
  for (int64_t i = 0; i < x->n && forked && e.status == RESHARD_SUCCESS; i++)
    rs_error_save(&e, rs_fork_join_open(&x->t[i]->streams.fork_join, main));
  if (e.status == RESHARD_SUCCESS)
    rs_error_save(&e, x->t[0]->path->run_on_streams(x));
  rs_error_save(&e, rs_flow_end(&x->flow));
  for (int64_t i = 0; i < x->n && forked; i++)
    rs_error_save(&e, rs_fork_join_close(&x->t[i]->streams.fork_join, main));
  for (int64_t i = 0; i < x->n && !forked; i++)
    rs_error_save(&e, record_end(x->t[i], main));
  return rs_error_restore(&e);
}

reshard_status rs_transfers_run(int64_t n, struct reshard_transfer_s *const *t, void *stream, bool forked) {
  for (int64_t i = 1; i < n; i++)
    if (t[i]->key != t[0]->key)
      return rs_error(RESHARD_ERROR_MISMATCH, "ranks %lld and %lld execute different transfers",
                      (long long)t[0]->comm->rank, (long long)t[i]->comm->rank);
  rs_execution x = {.n = n, .t = t};
  return t[0]->streams.used ? run_on_streams(&x, stream, forked) : t[0]->path->run(&x);
}

/* Runs when all ranks of the process have come with threads of their own. */
static reshard_status run_combined(int64_t n, void **all) {
  struct reshard_transfer_s *const *t = (struct reshard_transfer_s *const *)all;
  return rs_transfers_run(n, t, t[0]->streams.fork_join.stream, n > 1);
}

/* Ranks that are processes with GPUs, and that a call of their hosts would make wait for each other. */
static bool meets_on_stream(reshard_transfer t) {
  return t->streams.used && t->comm->waits.ended != NULL && t->comm->ops->neighbours->publish != NULL;
}

/* Streams of others wait for that of a rank that has failed alone: it ends the communicator, which ends their wait. */
static reshard_status end_waits(reshard_transfer t, reshard_status status) {
  return status == RESHARD_SUCCESS ? status : rs_comm_end_after_error(t->comm, status);
}

static reshard_status show_others(reshard_transfer t, void *stream) {
  uint64_t capture;
  RS_TRY(t->comm->device->processes->capture(t->comm->device, stream, &capture));
  return t->comm->ops->neighbours->publish(t->comm, t->key, t->streams.barrier != NULL, capture != 0);
}

static reshard_status run_alone(reshard_transfer t, void *stream) {
  RS_TRY(rs_comm_alive(t->comm));
  reshard_status status = show_others(t, stream);
  RS_THEN(status, rs_transfers_run(1, &t, stream, false));
  return end_waits(t, status);
}

/* With the others of the process, if it has any. */
static reshard_status run_with_others(reshard_transfer t) {
  reshard_status status = rs_fork_join_leave(&t->streams.fork_join, rs_comm_combine(t->comm, run_combined, t));
  return t->streams.barrier != NULL ? end_waits(t, status) : status;
}

/* One call of a rank that meets the others of its process, if it has any, and those of its node where they execute so.
 * The caller has the transfer's busy flag. */
static reshard_status run_as_call(reshard_transfer t, void *stream, const char *name) {
  int64_t bytes = t->plan->info.bytes;
  bool waits = t->comm->size > 1;
  RS_RANGE(name, bytes, t->plan->info.peers, -1, t->plan->nentries);
  rs_call *call = rs_call_begin(&t->comm->log.calls, name, bytes, rs_call_time(waits, bytes));
  rs_device *device = t->comm->device;
  if (!t->streams.used) /* until it returns: the thread waits for the others, or does the work */
    rs_trace_begin(device, NULL,
                   &(rs_trace_step){RS_TRACE_WORK, "execute", NULL, rs_comm_global(t->comm, t->comm->rank), -1,
                                    t->plan->info.bytes, -1});
  rs_fork_join_come(&t->streams.fork_join, stream);
  t->comm->meets.transfer =
      call != NULL || meets_on_stream(t) ? t->key : 0; /* within another call hosts have agreed on the transfer */
  reshard_status status = meets_on_stream(t) ? run_alone(t, stream) : run_with_others(t);
  t->comm->meets.transfer = 0;
  if (!t->streams.used)
    rs_trace_end(device, NULL);
  rs_call_end(&t->comm->log.calls, call, status, rs_call_time(waits, bytes));
  return status;
}

/* False: it meets nobody. The only cancellation points are the wait for copy threads and a line of the log, which hold
 * a cancellation off themselves. */
static bool may_wait(const struct reshard_transfer_s *t) {
  return t->comm->size > 1 || !t->comm->ops->addressable || t->streams.used || t->comm->device->tracer != NULL;
}

reshard_status reshard_execute(reshard_transfer t, void *stream) {
  if (t == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_execute: transfer is NULL");
  RS_HOLD_CANCEL_WHERE(may_wait(t)); /* until it is given back, too */
  if (stream != NULL)
    RS_TRY(rs_stream_check(t->comm->device, stream, "reshard_execute"));
  if (!rs_transfer_take(t))
    return rs_error(RESHARD_ERROR_BUSY, "reshard_execute: the transfer is executing already");
  reshard_status status = run_as_call(t, stream, "reshard_execute");
  rs_transfer_give_back(t);
  return status;
}

/* One call of every rank. */
static reshard_status run_as_calls(int64_t n, struct reshard_transfer_s *const *t, void *stream) {
  int64_t bytes = t[0]->plan->info.bytes; /* the plans of all ranks are one */
  bool waits = t[0]->comm->locals < t[0]->comm->size;
  RS_RANGE("reshard_execute_all", bytes, t[0]->plan->info.peers, -1, t[0]->plan->nentries);
  int64_t ticks = rs_call_time(waits, bytes);
  for (int64_t i = 0; i < n; i++)
    t[i]->call = rs_call_begin(&t[i]->comm->log.calls, "reshard_execute_all", t[i]->plan->info.bytes, ticks);
  reshard_status status = rs_transfers_run(n, t, stream, false);
  ticks = rs_call_time(waits, bytes);
  for (int64_t i = 0; i < n; i++)
    rs_call_end(&t[i]->comm->log.calls, t[i]->call, status, ticks);
  return status;
}

reshard_status rs_place_of_rank(const char *call, const char *what, int64_t n, int64_t i, reshard_comm first,
                                reshard_comm comm, int64_t *place) {
  if (n != first->locals)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld %ss, this process has %lld ranks", call, (long long)n, what,
                    (long long)first->locals);
  if (comm->group != first->group)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %ss 0 and %lld are on different communicators", call, what,
                    (long long)i);
  *place = first->locals > 1 ? comm->rank : 0; /* ranks of one process, or one of several processes */
  return RESHARD_SUCCESS;
}

reshard_status rs_error_twice(const char *call, const char *what, int64_t i, int64_t rank) {
  return rs_error(RESHARD_ERROR_INVALID, "%s: %s %lld is of rank %lld, as another one is", call, what, (long long)i,
                  (long long)rank);
}

/* Puts the transfers in the order of their ranks; all ranks of the process must be there once. */
static reshard_status order_transfers(int64_t n, const reshard_transfer *transfers) {
  struct reshard_transfer_s **ranks = transfers[0]->team.ranks;
  memset(ranks, 0, (size_t)transfers[0]->comm->locals * sizeof *ranks);
  for (int64_t i = 0, rank = 0; i < n; i++) {
    RS_TRY(rs_place_of_rank("reshard_execute_all", "transfer", n, i, transfers[0]->comm, transfers[i]->comm, &rank));
    if (ranks[rank] != NULL)
      return rs_error_twice("reshard_execute_all", "transfer", i, rank);
    ranks[rank] = transfers[i];
  }
  return RESHARD_SUCCESS;
}

/* Transfer i was found to be in use: elsewhere, or because it is in the list twice. */
static reshard_status refuse_busy(const char *call, const reshard_transfer *transfers, int64_t i) {
  for (int64_t j = 0; j < i; j++)
    if (transfers[j] == transfers[i])
      return rs_error(RESHARD_ERROR_INVALID, "%s: transfers %lld and %lld are the same", call, (long long)j,
                      (long long)i);
  return rs_error(RESHARD_ERROR_BUSY, "%s: transfer %lld is executing already", call, (long long)i);
}

reshard_status rs_transfers_take(const char *call, int64_t n, const reshard_transfer *transfers) {
  if (n < 1 || transfers == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld transfers, list %s", call, (long long)n,
                    transfers == NULL ? "NULL" : "given");
  for (int64_t i = 0; i < n; i++)
    if (transfers[i] == NULL)
      return rs_error(RESHARD_ERROR_INVALID, "%s: transfer %lld is NULL", call, (long long)i);
  for (int64_t i = 0; i < n; i++)
    if (!rs_transfer_take(transfers[i])) {
      reshard_status status = refuse_busy(call, transfers, i);
      rs_transfers_give_back(i, transfers);
      return status;
    }
  return RESHARD_SUCCESS;
}

void rs_transfers_give_back(int64_t n, const reshard_transfer *transfers) {
  for (int64_t i = 0; i < n; i++)
    rs_transfer_give_back(transfers[i]);
}

reshard_status reshard_execute_all(int64_t n, const reshard_transfer *transfers, void *stream) {
  RS_HOLD_CANCEL;
  RS_TRY(rs_transfers_take("reshard_execute_all", n, transfers));
  reshard_status status = rs_stream_check(transfers[0]->comm->device, stream, "reshard_execute_all");
  RS_THEN(status, order_transfers(n, transfers));
  RS_THEN(status, rs_comm_alive(transfers[0]->comm));
  RS_THEN(status, n == 1 ? run_as_call(transfers[0], stream, "reshard_execute_all")
                         : run_as_calls(n, transfers[0]->team.ranks, stream));
  rs_transfers_give_back(n, transfers);
  return status;
}
