/* Execute: one thread does it for all ranks of the process. On the CPU the device's threads help, and all is done when
 * it returns. On a device with streams it gives the work to streams (streams.c).
 *
 * Direct: one program. Packed: the data that stays on the rank, then round after round in the order that all ranks
 * share. The communicator packs, moves and unpacks a round in the way that suits it. Nothing is allocated and no offset
 * is computed here. */
#include "device/stream.h"
#include "device/trace.h"
#include "exec/transfer.h"

#include <string.h>

static reshard_status run_direct(int64_t n, struct reshard_transfer_s *const *t) {
  rs_device *device = t[0]->comm->device;
  rs_trace_begin(device, NULL, &(rs_trace_step){RS_TRACE_WORK, "copy", NULL, -1, -1, -1});
  reshard_status status = device->ops->run(device, 1, t[0]->binding.direct->programs, NULL);
  rs_trace_end(device, NULL);
  RS_TRY(status);
  for (int64_t i = 0; i < n; i++)
    rs_comm_count(t[i]->comm, t[i]->binding.foreign_bytes, 0);
  return RESHARD_SUCCESS;
}

bool rs_next_round(int64_t n, struct reshard_transfer_s *const *t) {
  const rs_round *first = NULL;
  int64_t *cursor = t[0]->cursor;
  for (int64_t i = 0; i < n; i++) {
    if (cursor[i] == t[i]->binding.nrounds)
      continue;
    const rs_round *r = &t[i]->binding.rounds[cursor[i]];
    if (first == NULL || r->group < first->group || (r->group == first->group && r->piece < first->piece))
      first = r;
  }
  for (int64_t i = 0; i < n && first != NULL; i++) {
    const rs_binding *b = &t[i]->binding;
    const rs_round *r = cursor[i] < b->nrounds ? &b->rounds[cursor[i]] : NULL;
    bool in = r != NULL && r->group == first->group && r->piece == first->piece;
    const rs_collective *collective = in && r->collective.kind != RESHARD_COLLECTIVE_NONE ? &r->collective : NULL;
    t[0]->turns[i] = in ? (rs_turn){t[i]->comm, r->nsends, r->nreceives, r->sends, r->receives, collective, NULL}
                        : (rs_turn){.comm = t[i]->comm};
    cursor[i] += in;
  }
  return first != NULL;
}

static reshard_status run_packed(int64_t n, struct reshard_transfer_s *const *t) {
  reshard_comm comm = t[0]->comm;
  memset(t[0]->cursor, 0, (size_t)n * sizeof *t[0]->cursor);
  for (int64_t i = 0; i < n; i++)
    t[0]->programs[i] = t[i]->binding.keep;
  rs_trace_begin(comm->device, NULL, &(rs_trace_step){RS_TRACE_WORK, "keep", NULL, -1, -1, -1});
  reshard_status status = comm->device->ops->run(comm->device, n, t[0]->programs, NULL);
  rs_trace_end(comm->device, NULL);
  for (int64_t number = 0; status == RESHARD_SUCCESS && rs_next_round(n, t); number++) {
    rs_trace_begin(comm->device, NULL, &(rs_trace_step){RS_TRACE_WORK, "round", NULL, -1, number, -1});
    status = comm->ops->exchange(n, t[0]->turns, t[0]->plan->info.bytes);
    rs_trace_end(comm->device, NULL);
  }
  return status;
}

/* gates: the ranks have come through theirs, each with a stream of its own. */
static reshard_status run_transfers(int64_t n, struct reshard_transfer_s *const *t, void *stream, bool gates) {
  for (int64_t i = 1; i < n; i++)
    if (t[i]->key != t[0]->key)
      return rs_error(RESHARD_ERROR_MISMATCH, "ranks %lld and %lld execute different transfers",
                      (long long)t[0]->comm->rank, (long long)t[i]->comm->rank);
  if (t[0]->comm->device->ops->streams)
    return rs_execute_on_streams(n, t, stream, gates);
  return t[0]->path == RESHARD_PATH_DIRECT ? run_direct(n, t) : run_packed(n, t);
}

/* Runs when all ranks of the process have come with threads of their own. */
static reshard_status run_together(int64_t n, void **all) {
  struct reshard_transfer_s *const *t = (struct reshard_transfer_s *const *)all;
  return run_transfers(n, t, t[0]->gate.stream, n > 1);
}

reshard_status reshard_execute(reshard_transfer t, void *stream) {
  if (t == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_execute: transfer is NULL");
  if (stream != NULL)
    RS_TRY(rs_stream_check(t->comm->device, stream, "reshard_execute"));
  if (atomic_flag_test_and_set_explicit(&t->busy, memory_order_acquire))
    return rs_error(RESHARD_ERROR_BUSY, "reshard_execute: the transfer is executing already");
  rs_device *device = t->comm->device;
  if (!device->ops->streams) /* until it returns: the thread waits for the others, or does the work */
    rs_trace_begin(device, NULL, &(rs_trace_step){RS_TRACE_WORK, "execute", NULL, t->comm->rank, -1, -1});
  rs_gate_come(&t->gate, stream);
  reshard_status status = rs_gate_leave(&t->gate, t->comm->ops->together(t->comm, run_together, t));
  if (!device->ops->streams)
    rs_trace_end(device, NULL);
  atomic_flag_clear_explicit(&t->busy, memory_order_release);
  return status;
}

/* Puts the transfers in the order of their ranks; all ranks of the process must be there once. */
static reshard_status order_transfers(int64_t n, const reshard_transfer *transfers) {
  for (int64_t i = 0; i < n; i++)
    if (transfers[i] == NULL)
      return rs_error(RESHARD_ERROR_INVALID, "reshard_execute_all: transfer %lld is NULL", (long long)i);
  struct reshard_transfer_s **ranks = transfers[0]->ranks;
  int64_t locals = transfers[0]->comm->locals;
  if (n != locals)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_execute_all: %lld transfers, this process has %lld ranks",
                    (long long)n, (long long)locals);
  memset(ranks, 0, (size_t)n * sizeof *ranks);
  for (int64_t i = 0; i < n; i++) {
    int64_t rank = locals > 1 ? transfers[i]->comm->rank : 0; /* ranks of one process, or one of several processes */
    if (transfers[i]->comm->group != transfers[0]->comm->group)
      return rs_error(RESHARD_ERROR_INVALID, "reshard_execute_all: transfers 0 and %lld are on different communicators",
                      (long long)i);
    if (rank >= n || ranks[rank] != NULL)
      return rs_error(RESHARD_ERROR_INVALID, "reshard_execute_all: transfer %lld is of rank %lld, as another one is",
                      (long long)i, (long long)rank);
    ranks[rank] = transfers[i];
  }
  return RESHARD_SUCCESS;
}

/* Transfer i was found to be executing: elsewhere, or because it is in the list twice. */
static reshard_status refuse_busy(const reshard_transfer *transfers, int64_t i) {
  for (int64_t j = 0; j < i; j++)
    if (transfers[j] == transfers[i])
      return rs_error(RESHARD_ERROR_INVALID, "reshard_execute_all: transfers %lld and %lld are the same", (long long)j,
                      (long long)i);
  return rs_error(RESHARD_ERROR_BUSY, "reshard_execute_all: transfer %lld is executing already", (long long)i);
}

reshard_status reshard_execute_all(int64_t n, const reshard_transfer *transfers, void *stream) {
  if (n < 1 || transfers == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_execute_all: %lld transfers, list %s", (long long)n,
                    transfers == NULL ? "NULL" : "given");
  if (transfers[0] != NULL)
    RS_TRY(rs_stream_check(transfers[0]->comm->device, stream, "reshard_execute_all"));
  int64_t taken = 0;
  reshard_status status = RESHARD_SUCCESS;
  for (; taken < n && status == RESHARD_SUCCESS; taken++)
    if (transfers[taken] != NULL && atomic_flag_test_and_set_explicit(&transfers[taken]->busy, memory_order_acquire)) {
      status = refuse_busy(transfers, taken);
      break;
    }
  if (status == RESHARD_SUCCESS)
    status = order_transfers(n, transfers);
  if (status == RESHARD_SUCCESS)
    status = transfers[0]->comm->ops->alive(transfers[0]->comm);
  if (status == RESHARD_SUCCESS)
    status = run_transfers(n, transfers[0]->ranks, stream, false);
  for (int64_t i = 0; i < taken; i++)
    if (transfers[i] != NULL)
      atomic_flag_clear_explicit(&transfers[i]->busy, memory_order_release);
  return status;
}
