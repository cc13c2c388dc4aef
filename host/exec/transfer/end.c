/* The end of a binding, and of a transfer: streams, peers and graphs have done with them. */
#include "exec/transfer/steps.h"

#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

enum { LOOK_MS = 1000 }; /* without a deadline: between two looks whether the communicator has ended */

void rs_binding_free(reshard_comm comm, const rs_path_ops *path, rs_binding *b) {
  for (int64_t i = 0; i < b->compiled.n; i++) {
    rs_device *device = b->by_lane ? comm->process.lane_devices[i] : comm->device;
    device->work->release(device, b->compiled.at[i]);
  }
  free(b->compiled.at);
  rs_copies_free(&b->listed);
  if (path != NULL)
    path->release(comm, b);
  rs_sources_free(&b->sources);
  rs_arrays_free(&b->arrays);
  *b = (rs_binding){0};
}

/* A communicator of the library's own ends at its deadline, and with it what a stream waits for. Where it had ended
 * before, that is work of a graph that was launched, or that the stream came to, after its end. */
static void stop_streams(reshard_comm comm) {
  (void)comm->ops->end(comm, RS_END_STREAMS);
  if (comm->timeout_ms > 0)
    (void)comm->ops->end(comm, RS_END_ABORT);
}

/* A peer may have ended the communicator, and with it what a stream waits for. The caller's last error stays. */
static void look_at_peers(reshard_comm comm) {
  rs_saved_error saved = {.status = RESHARD_SUCCESS};
  rs_error_save(&saved, RESHARD_ERROR_INTERNAL); /* any: it may be an error of before */
  if (comm->ops->look(comm) != RESHARD_SUCCESS)
    (void)rs_error_restore(&saved);
}

/* Waits until an event has happened; *late: it has not by the deadline, and nothing here can make it. */
static reshard_status wait_for_event(reshard_comm comm, rs_event *event, int64_t since, bool *late) {
  rs_device *device = comm->process.lane_devices[0];
  bool done = event == NULL;
  int64_t limit_ms = comm->timeout_ms == 0 && !comm->borrowed ? LOOK_MS : comm->timeout_ms;
  for (int64_t from = since; !done && !*late;) {
    RS_TRY(device->streams->event_done(device, event, &done));
    if (!done)
      look_at_peers(comm);
    if (!done && rs_late(from, limit_ms)) {
      *late = comm->borrowed;
      if (!comm->borrowed)
        stop_streams(comm);
      from = rs_now_ns();
    }
    if (!done && rs_now_ns() - since < 200000)
      sched_yield();
    else if (!done)
      nanosleep(&(struct timespec){0, 50000}, NULL);
  }
  return RESHARD_SUCCESS;
}

void rs_transfer_finish(reshard_transfer t, bool *late) {
  int64_t since = rs_now_ns();
  reshard_status status = t->streams.lost ? RESHARD_ERROR_SYSTEM : RESHARD_SUCCESS;
  *late = false;
  if (!t->streams.used)
    return;
  *late = rs_comm_is_stuck(t->comm);
  RS_THEN(status, wait_for_event(t->comm, t->streams.fork_join.done, since, late));
  RS_THEN(status, wait_for_event(t->comm, t->streams.ended, since, late));
  if (*late)
    return;
  for (int64_t g = 0; status != RESHARD_SUCCESS && g < t->comm->process.lanes; g++) {
    rs_device *device = t->comm->process.lane_devices[g];
    if (device->streams->finish(device) != RESHARD_SUCCESS)
      (void)device->streams->finish(device);
  }
  t->streams.lost = false;
}

static reshard_transfer transfer_of(const rs_deferred_destroy *deferred) {
  return (reshard_transfer)((char *)deferred - offsetof(struct reshard_transfer_s, deferred));
}

/* A rank that has something open still, as a GPU is stuck, tells the others nothing until that is freed. */
void rs_transfer_await_closed(reshard_comm comm, bool closed) {
  comm->memory.closings++;
  if (closed && comm->life.deferred == NULL)
    (void)comm->ops->meet(comm, &(rs_meeting){.scope = RS_MEET_CLOSED, .key = comm->memory.closings});
}

/* Nothing of this rank uses it any more. */
static void free_transfer(reshard_transfer t) {
  rs_device *device = t->comm->device;
  rs_binding_free(t->comm, t->path, &t->binding);
  rs_binding_free(t->comm, t->path, &t->failed);
  if (t->streams.barrier != NULL)
    device->processes->destroy(device, t->streams.barrier);
  rs_fork_join_destroy(&t->streams.fork_join);
  rs_lane_destroy(&t->streams.lane);
  if (t->streams.ended != NULL)
    t->comm->process.lane_devices[0]->streams->event_destroy(t->comm->process.lane_devices[0], t->streams.ended);
  free(t->streams.lanes);
  free(t->team.ranks);
  free(t->team.programs);
  free(t->team.exchanges);
  free(t->team.cursor);
  free(t);
}

/* No stream has anything to do with it any more. */
static bool has_ended(reshard_transfer t) {
  bool done = false, ended = false;
  rs_device *first = t->comm->process.lane_devices[0];
  return !t->streams.lost && !rs_comm_is_stuck(t->comm) &&
         (t->streams.fork_join.done == NULL ||
          (first->streams->event_done(first, t->streams.fork_join.done, &done) == RESHARD_SUCCESS && done)) &&
         first->streams->event_done(first, t->streams.ended, &ended) == RESHARD_SUCCESS && ended;
}

static bool deferred_has_ended(const rs_deferred_destroy *deferred) { return has_ended(transfer_of(deferred)); }

static void free_deferred(rs_deferred_destroy *deferred) { free_transfer(transfer_of(deferred)); }

static void forget_persistent(reshard_transfer t) {
  struct reshard_transfer_s **at = &t->comm->memory.persistent_transfers;
  while (*at != NULL && *at != t)
    at = &(*at)->next;
  if (*at == t)
    *at = t->next;
}

void rs_transfer_unbind_freed(reshard_comm comm, const struct reshard_transfer_s *but) {
  for (reshard_transfer kept = comm->memory.persistent_transfers; kept != NULL && rs_descriptors_gone(comm);
       kept = kept->next) {
    if (kept == but || !rs_mappings_freed(kept->binding.mappings) || !has_ended(kept))
      continue;
    rs_binding_free(comm, kept->path, &kept->binding);
    kept->bound = false;
  }
}

void rs_transfer_persist(reshard_transfer t) {
  forget_persistent(t);
  t->next = t->comm->memory.persistent_transfers;
  t->comm->memory.persistent_transfers = t;
}

void rs_transfer_end(reshard_transfer t) {
  reshard_comm comm = t->comm;
  bool late, holds = t->holds, of_malloc = t->binding.of_malloc || t->failed.of_malloc;
  t->holds = false;
  forget_persistent(t);
  rs_comm_free_deferred(comm);
  rs_transfer_finish(t, &late);
  if (late) {
    t->deferred = (rs_deferred_destroy){comm->life.deferred, deferred_has_ended, free_deferred};
    comm->life.deferred = &t->deferred;
  } else {
    free_transfer(t);
  }
  if (of_malloc)
    rs_transfer_await_closed(comm, !late);
  if (holds)
    rs_comm_let_go(comm); /* which frees what is late */
}

void reshard_transfer_destroy(reshard_transfer t) {
  RS_HOLD_CANCEL;
  int taken = RS_TAKEN;
  if (t != NULL && !rs_comm_is_forked(t->comm) && !atomic_compare_exchange_strong(&t->busy, &taken, RS_DESTROYED))
    rs_transfer_end(t);
}
