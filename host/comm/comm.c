#include "comm/comm.h"

#include "device/cpu/segment.h"
#include "device/plain.h"

#include <stdlib.h>
#include <string.h>

reshard_status rs_comm_error_ended(void) {
  return rs_error(RESHARD_ERROR_PEER, "the communicator was aborted, or a rank gave up waiting");
}

reshard_status rs_comm_error_destroyed(reshard_comm comm) {
  return rs_error(RESHARD_ERROR_PEER, "rank %lld has destroyed its handle", (long long)comm->rank);
}

reshard_status rs_comm_error_timeout(reshard_comm comm, const char *step, int64_t timeout_ms, const char *missing) {
  char call[RS_CALL_TEXT];
  return rs_error(RESHARD_ERROR_TIMEOUT, "%s: %s: not done within %lld ms%s%s", rs_call_text(comm, call), step,
                  (long long)timeout_ms, missing[0] != '\0' ? "; missing: " : "", missing);
}

int64_t reshard_comm_rank(reshard_comm comm) { return comm != NULL ? comm->rank : -1; }
int64_t reshard_comm_size(reshard_comm comm) { return comm != NULL ? comm->size : 0; }

const int64_t *reshard_comm_global_ranks(reshard_comm comm) { return comm != NULL ? comm->global_ranks : NULL; }

void rs_comm_init(reshard_comm comm, const rs_comm_ops *ops, int64_t rank, int64_t size) {
  *comm = (struct reshard_comm_s){.ops = ops, .rank = rank, .size = size, .locals = 1, .group = comm};
  comm->process = (rs_comm_lanes){.lanes = 1, .lane_devices = &comm->device};
}

void rs_comm_close_imports(reshard_comm comm) {
  if (comm->memory.imports == NULL)
    return;
  for (int64_t r = 0; r < comm->size; r++)
    rs_import_close(comm->memory.imports[r]);
  free(comm->memory.imports);
  free(comm->memory.passed);
  comm->memory.imports = NULL;
  comm->memory.passed = NULL;
  rs_shared_close();
}

void rs_comm_free_deferred(reshard_comm comm) {
  for (rs_deferred_destroy **at = &comm->life.deferred, *deferred; (deferred = *at) != NULL;) {
    if (deferred->has_ended(deferred)) {
      *at = deferred->next;
      deferred->free(deferred);
    } else {
      at = &deferred->next;
    }
  }
}

static void free_handle(reshard_comm comm) {
  if (comm->life.cached != NULL)
    comm->life.drop_cached(comm);
  rs_comm_free_deferred(comm);
  bool used = comm->life.deferred != NULL || rs_comm_is_stuck(comm);
  if (comm->memory.peers != NULL && !used)
    comm->memory.drop_peers(comm);
  if (comm->waits.barriers != NULL && !used)
    comm->device->processes->end(comm->device, comm->waits.barriers);
  rs_board_leave(comm);
  comm->ops->destroy(comm);
}

void rs_comm_hold(reshard_comm comm) { atomic_fetch_add_explicit(&comm->life.held, 1, memory_order_relaxed); }

void rs_comm_let_go(reshard_comm comm) {
  RS_HOLD_CANCEL;
  if (atomic_fetch_sub_explicit(&comm->life.held, 1, memory_order_acq_rel) == 0)
    free_handle(comm);
}

/* The call returns nothing, so nobody looks for an error: it is printed. */
static void quit_held(reshard_comm comm, int64_t held) {
  (void)rs_error(RESHARD_ERROR_BUSY,
                 "reshard_comm_destroy: rank %lld of %lld has %lld transfers, sharders, meshes or allocations on the "
                 "communicator: it has ended, and is freed with the last of them",
                 (long long)comm->rank, (long long)comm->size, (long long)held);
  fprintf(stderr, "reshard: %s\n", reshard_last_error());
  comm->life.quit = true;
  (void)comm->ops->end(comm, RS_END_CALLS);
}

void reshard_comm_destroy(reshard_comm comm) {
  RS_HOLD_CANCEL;
  if (comm == NULL || rs_comm_is_forked(comm))
    return;
  int64_t held = atomic_load_explicit(&comm->life.held, memory_order_acquire);
  if (held > 0)
    quit_held(comm, held);
  rs_comm_let_go(comm);
}

void rs_comm_retire(reshard_comm comm, void *memory) {
  if (rs_comm_keeps_messages(comm))
    comm->ops->messages->retire(comm, memory);
  else
    rs_device_free(comm->device, memory);
}

reshard_status reshard_comm_alloc(reshard_comm comm, size_t bytes, void **memory) {
  void *made;
  RS_TRY(RS_GIVEN("reshard_comm_alloc", comm, memory));
  RS_TRY(rs_device_alloc(comm->device, bytes, &made));
  if (made != NULL)
    rs_comm_hold(comm);
  *memory = made;
  return RESHARD_SUCCESS;
}

reshard_status reshard_comm_free(reshard_comm comm, void *memory) {
  RS_TRY(RS_GIVEN("reshard_comm_free", comm));
  rs_device_free(comm->device, memory);
  if (memory != NULL)
    rs_comm_let_go(comm);
  return RESHARD_SUCCESS;
}

reshard_status rs_comm_end_after_error(reshard_comm comm, reshard_status status) {
  rs_saved_error saved = {.status = RESHARD_SUCCESS};
  rs_error_save(&saved, status);
  (void)comm->ops->end(comm, RS_END_ABORT);
  return rs_error_restore(&saved);
}

reshard_status reshard_comm_abort(reshard_comm comm) {
  RS_TRY(RS_GIVEN("reshard_comm_abort", comm));
  if (rs_comm_is_forked(comm))
    return rs_comm_alive(comm);
  (void)comm->ops->end(comm, RS_END_ABORT);
  return RESHARD_SUCCESS;
}

reshard_status reshard_comm_set_poll(reshard_comm comm, reshard_poll poll, void *user) {
  RS_TRY(RS_GIVEN("reshard_comm_set_poll", comm));
  comm->polling = (rs_polling){.call = poll, .user = user, .last = rs_now_ns()};
  return RESHARD_SUCCESS;
}

bool rs_comm_is_cancelled(reshard_comm comm) {
  return comm->polling.cancelled != 0 && comm->polling.cancelled == rs_calls_made(&comm->log.calls);
}

bool rs_comm_poll(reshard_comm comm, int64_t since) {
  rs_polling *p = &comm->polling;
  if (p->call == NULL || rs_comm_is_cancelled(comm) || rs_now_ns() - rs_max(since, p->last) < RS_POLL_NS)
    return rs_comm_is_cancelled(comm);
  if (p->call(p->user) != 0) {
    p->cancelled = rs_calls_made(&comm->log.calls);
    (void)comm->ops->end(comm, RS_END_ABORT);
  }
  p->last = rs_now_ns();
  return rs_comm_is_cancelled(comm);
}

reshard_status rs_comm_cancel(reshard_comm comm, reshard_status status) {
  char call[RS_CALL_TEXT];
  return status == RESHARD_SUCCESS || !rs_comm_is_cancelled(comm)
             ? status
             : rs_error(RESHARD_ERROR_CANCELLED, "%s: the poll function of rank %lld has ended the wait",
                        rs_call_text(comm, call), (long long)comm->rank);
}

reshard_status reshard_comm_missing(reshard_comm comm, int64_t *ranks, int64_t *n) {
  RS_TRY(RS_GIVEN("reshard_comm_missing", comm, ranks, n));
  *n = comm->ops->absent(comm, ranks);
  return RESHARD_SUCCESS;
}

reshard_status reshard_comm_barrier(reshard_comm comm) {
  RS_TRY(RS_GIVEN("reshard_comm_barrier", comm));
  const void *all;
  RS_CALL(comm, 0);
  return rs_comm_allgather(comm, "", 1, &all);
}

/* A rank that cannot tell its machine is on a node of its own. */
reshard_status reshard_comm_nodes(reshard_comm comm, int64_t *nodes) {
  RS_TRY(RS_GIVEN("reshard_comm_nodes", comm, nodes));
  RS_CALL(comm, 0);
  bool one = comm->ops->one_node;
  const uint64_t mine[2] = {one ? 0 : rs_system_hash("pid"), one ? 0 : (uint64_t)comm->process.node};
  const void *gathered;
  RS_TRY(rs_comm_allgather(comm, mine, sizeof mine, &gathered));
  const uint64_t(*all)[2] = gathered;
  int64_t count = 0;
  for (int64_t r = 0, first; r < comm->size; r++) {
    for (first = 0; first < r && (memcmp(all[first], all[r], sizeof all[r]) != 0 || (!one && all[r][0] == 0));)
      first++;
    nodes[r] = first < r ? nodes[first] : count++;
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_comm_get_stats(reshard_comm comm, reshard_comm_stats *stats) {
  RS_TRY(RS_GIVEN("reshard_comm_get_stats", comm, stats));
  *stats = (reshard_comm_stats){
      .received_bytes = atomic_load_explicit(&comm->stats.received_bytes, memory_order_relaxed),
      .received_messages = atomic_load_explicit(&comm->stats.received_messages, memory_order_relaxed),
      .between_bytes = atomic_load_explicit(&comm->stats.between_bytes, memory_order_relaxed),
      .within_bytes = atomic_load_explicit(&comm->stats.within_bytes, memory_order_relaxed),
      .leaving_bytes = atomic_load_explicit(&comm->stats.leaving_bytes, memory_order_relaxed)};
  return RESHARD_SUCCESS;
}
