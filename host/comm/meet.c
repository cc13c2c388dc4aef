/* Steps of a rank's call that other ranks take part in, and what ranks that are processes bring to them. */
#include "comm/comm.h"

#include "device/trace.h"

#include <string.h>

#define SET RS_CALL_SET
#define GET RS_CALL_GET

static reshard_status check_process(reshard_comm comm) {
  return !rs_comm_is_forked(comm) ? RESHARD_SUCCESS
                                  : rs_error(RESHARD_ERROR_PEER,
                                             "rank %lld of the %s communicator is the process that was forked, not "
                                             "this one",
                                             (long long)comm->rank, comm->ops->name);
}

reshard_status rs_comm_alive(reshard_comm comm) {
  RS_TRY(check_process(comm));
  return rs_comm_cancel(comm, comm->ops->look(comm));
}

/* A step, by the rank's own thread. Returns the call that it is by itself; NULL within another. */
static inline rs_call *begin_step(reshard_comm comm, const char *name, int64_t bytes) {
  rs_calls *c = &comm->log.calls;
  rs_call *lone = NULL;
  if (!rs_calls_open(c)) /* else the clock need not be read */
    lone = rs_call_begin(c, name, bytes, rs_call_ticks());
  SET(c->steps, GET(c->steps) + 1);
  SET(c->step, name);
  return lone;
}

static inline reshard_status end_step(reshard_comm comm, rs_call *lone, reshard_status status) {
  rs_calls *c = &comm->log.calls;
  SET(c->step, NULL);
  if (GET(c->nawaited) > 0)
    SET(c->nawaited, 0);
  if (status != RESHARD_SUCCESS)
    status = rs_error_pass(rs_comm_cancel(comm, status));
  if (lone != NULL)
    rs_call_end(c, lone, status, rs_call_ticks());
  return status;
}

/* The only rank of its process. Calls of threads need no room for this one. */
static __attribute__((noinline)) reshard_status run_alone(reshard_comm comm,
                                                          reshard_status (*run)(int64_t n, void **all), void *mine) {
  RS_TRY(comm->ops->meet(comm, &(rs_meeting){.scope = RS_MEET_BEGIN}));
  reshard_status status = run(1, &mine);
  RS_WAIT(comm, "meeting");
  return comm->ops->meet(comm, &(rs_meeting){.scope = RS_MEET_END, .status = status});
}

static inline reshard_status run_combined(reshard_comm comm, reshard_status (*run)(int64_t n, void **all), void *mine) {
  return comm->ops->threads != NULL ? comm->ops->threads->combine(comm, run, mine) : run_alone(comm, run, mine);
}

reshard_status rs_comm_combine(reshard_comm comm, reshard_status (*run)(int64_t n, void **all), void *mine) {
  RS_TRY(check_process(comm));
  if (comm->locals == 1 && rs_calls_open(&comm->log.calls)) { /* no other rank to meet here: no step */
    reshard_status status = run_combined(comm, run, mine);
    return status == RESHARD_SUCCESS ? status : rs_error_pass(rs_comm_cancel(comm, status));
  }
  RS_RANGE("meeting", -1, -1, -1, -1);
  rs_call *lone = begin_step(comm, "meeting", 0);
  return end_step(comm, lone, run_combined(comm, run, mine));
}

rs_wait_scope rs_wait_enter(reshard_comm comm, const char *name) {
  rs_device *device = comm->device;
  /* Ranks of MPI tell each other that one could not make its device: it has none then. */
  if (device == NULL || device->tracer == NULL || comm->locals > 1 || device->streams->asynchronous)
    return (rs_wait_scope){NULL};
  rs_trace_begin(device, NULL, &(rs_trace_step){RS_TRACE_WAIT, name, NULL, -1, -1, -1, -1});
  return (rs_wait_scope){comm};
}

void rs_wait_leave(rs_wait_scope *scope) {
  if (scope->comm != NULL)
    rs_trace_end(scope->comm->device, NULL);
}

static reshard_status meet_others(reshard_comm comm, const char *name, const rs_meeting *meeting) {
  RS_WAIT(comm, name);
  rs_call *lone = begin_step(comm, name, (int64_t)meeting->bytes);
  return end_step(comm, lone, comm->ops->meet(comm, meeting));
}

reshard_status rs_comm_meet(reshard_comm comm) {
  return comm->ops->threads != NULL ? RESHARD_SUCCESS
                                    : meet_others(comm, "meeting", &(rs_meeting){.scope = RS_MEET_END});
}

reshard_status rs_comm_meet_node(reshard_comm comm, uint64_t key) {
  return meet_others(comm, "meeting of a node", &(rs_meeting){.scope = RS_MEET_NODE, .key = key});
}

reshard_status rs_comm_allgather(reshard_comm comm, const void *mine, size_t bytes, const void **all) {
  RS_TRY(check_process(comm));
  RS_RANGE("all-gather", (int64_t)bytes, -1, -1, -1);
  return meet_others(comm, "all-gather",
                     &(rs_meeting){.scope = RS_MEET_ALL, .record = mine, .bytes = bytes, .all = all});
}

reshard_status rs_comm_exchange(int64_t n, const rs_exchange *exchanges, int64_t total_bytes, int64_t round) {
  reshard_comm comm = exchanges[0].comm;
  for (int64_t i = 0; i < n; i++)
    SET(exchanges[i].comm->log.calls.round, (int32_t)round);
  if (comm->locals > 1) /* in a meeting: the others wait there for this rank */
    return comm->ops->exchange(n, exchanges, total_bytes);
  rs_call *lone = begin_step(comm, "exchange", 0);
  return end_step(comm, lone, comm->ops->exchange(n, exchanges, total_bytes));
}

void rs_comm_await(reshard_comm comm, int64_t n, const int64_t *peers) {
  rs_calls *c = &comm->log.calls;
  for (int64_t i = 0; i < rs_min(n, RS_AWAITED); i++)
    SET(c->awaited[i], (int32_t)peers[i]);
  SET(c->nawaited, (int32_t)rs_min(n, RS_AWAITED));
}

/* --- Visits ------------------------------------------------------------------------------------------------------- */

void rs_visit_fill(reshard_comm comm, rs_visit *visit, uint64_t call, const void *record, size_t bytes) {
  rs_call_label_of(comm, &visit->caller);
  visit->call = call;
  visit->transfer = comm->meets.transfer;
  visit->bytes = (int64_t)bytes;
  if (bytes > 0)
    memcpy(visit->record, record, bytes);
}

void rs_visits_pack(reshard_comm comm, size_t bytes, char *to) {
  for (int64_t r = 0; r < comm->size; r++)
    memcpy(to + (size_t)r * bytes, rs_visit_of(comm, r)->record, bytes);
}

reshard_status rs_visits_compare(reshard_comm comm, const rs_visit *first, size_t stride) {
  comm->meets.visits = first;
  comm->meets.stride = stride;
  for (int64_t r = 1; r < comm->size; r++) {
    const rs_visit *b = rs_visit_of(comm, r);
    if (first->transfer != b->transfer && first->transfer != 0 && b->transfer != 0)
      return rs_error(RESHARD_ERROR_MISMATCH, "ranks 0 and %lld execute different transfers", (long long)r);
    if (first->transfer != b->transfer || first->call != b->call)
      return rs_comm_error_calls(comm, r);
  }
  return RESHARD_SUCCESS;
}
