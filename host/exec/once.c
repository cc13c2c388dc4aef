/* A transfer that is executed once costs more to make than to execute: ranks compare records, show addresses, agree,
 * compile, and execute, and meet for each. Ranks of one process that have prepared everything need to meet only once.
 * The rank that acts for all sees all arrays, lists the copies to each rank, compiles and runs them. Anything unusual -
 * a rank that failed, plans that differ, a packed path - is left to the ordinary way, which tells all ranks the
 * error. */
#include "exec/once.h"

#include "device/stream.h"
#include "exec/arrays.h"
#include "exec/transfer.h"

#include <stdlib.h>
#include <string.h>

void rs_once_memory_free(rs_once_memory *memory, rs_device *device) {
  rs_gate_destroy(&memory->gate);
  if (memory->stream != NULL)
    device->streams->destroy(device, memory->stream);
  free(memory->extents.at);
  rs_copies_free(&memory->copies);
  device->work->release(device, memory->program);
  *memory = (rs_once_memory){0};
}

/* One rank's call of rs_execute_once. */
typedef struct once_call {
  reshard_comm comm;
  reshard_plan plan;
  rs_arrays arrays;
  rs_once_memory *memory;
  void *stream;
  bool ready;
  int64_t foreign_bytes;
  bool done; /* for all ranks, or for none */
} once_call;

static reshard_status view_of_rank(void *user, int64_t rank, int64_t entry, bool source, int64_t array, rs_view *view) {
  const once_call *o = ((once_call *const *)user)[rank];
  rs_arrays_view(&o->arrays, o->plan, entry, source, array, view);
  return RESHARD_SUCCESS;
}

static bool plans_alike(const once_call *a, const once_call *b) {
  return b->ready && memcmp(a->plan->fields, b->plan->fields, sizeof a->plan->fields) == 0;
}

/* The program in the order of `stream`, which comes after all ranks' and before what they do next. */
static reshard_status run_between(int64_t n, once_call *const *o, rs_program *const *program, void *stream) {
  rs_device *device = o[0]->comm->device;
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t r = 0; r < n && status == RESHARD_SUCCESS; r++)
    status = rs_gate_open(&o[r]->memory->gate, stream);
  RS_THEN(status, device->work->run(device, 1, program, stream));
  for (int64_t r = 0; r < n; r++) {
    reshard_status closed = rs_gate_close(&o[r]->memory->gate, stream);
    status = status != RESHARD_SUCCESS ? status : closed;
  }
  return status;
}

static reshard_status run_calls(int64_t n, void **all) {
  once_call *const *o = (once_call *const *)all; /* by rank: all ranks are here */
  for (int64_t r = 0; r < n; r++)
    if (!o[0]->ready || !plans_alike(o[0], o[r]))
      return RESHARD_SUCCESS;
  rs_device *device = o[0]->comm->device;
  rs_once_memory *memory = o[0]->memory; /* its rank waits here, as all do */
  rs_copies_clear(&memory->copies);
  for (int64_t r = 0; r < n; r++)
    RS_TRY(rs_pull(o[r]->plan, view_of_rank, all, &memory->copies, &o[r]->foreign_bytes));
  RS_TRY(device->work->recompile(device, &memory->copies, memory->copies.bytes, &memory->program));
  RS_TRY(run_between(n, o, &memory->program, n > 1 ? memory->stream : o[0]->stream));
  for (int64_t r = 0; r < n; r++) {
    rs_comm_count(o[r]->comm, o[r]->foreign_bytes, 0);
    o[r]->done = true;
  }
  return RESHARD_SUCCESS;
}

static reshard_status execute_by_transfer(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays,
                                          reshard_path path, void *stream, size_t *workspace_bytes) {
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = path};
  reshard_transfer transfer;
  RS_TRY(reshard_transfer_create(plan, comm, arrays, &options, &transfer));
  reshard_status status = reshard_execute(transfer, stream);
  if (comm->locals < comm->size) { /* ranks that do not meet to execute may fail one by one */
    bool streams = transfer->on_streams;
    if (status == RESHARD_SUCCESS ||
        !streams) /* else the others would take what this rank tells them for what it has not given */
      status = rs_agree(comm, status);
    if (status != RESHARD_SUCCESS && streams) /* streams may wait for ever for one that failed */
      (void)comm->ops->abort(comm);
  }
  if (status == RESHARD_SUCCESS)
    *workspace_bytes = transfer->binding.info.workspace_bytes;
  reshard_transfer_destroy(transfer);
  return status;
}

/* Makes the gate and the stream of such a meeting, where they are not there yet. */
static reshard_status make_gate(reshard_comm comm, rs_once_memory *memory) {
  rs_device *device = comm->device;
  if (comm->locals == 1)
    return RESHARD_SUCCESS;
  if (memory->gate.comm == NULL)
    RS_TRY(rs_gate_create(comm, &memory->gate));
  return comm->rank == 0 && memory->stream == NULL ? device->streams->create(device, &memory->stream) : RESHARD_SUCCESS;
}

reshard_status rs_execute_once(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays, reshard_path path,
                               reshard_status mine, const rs_argument *argument, rs_once_memory *memory, void *stream,
                               size_t *workspace_bytes) {
  once_call o = {.comm = comm, .plan = plan, .memory = memory, .stream = stream};
  if (mine == RESHARD_SUCCESS)
    mine = rs_stream_check(comm->device, stream, "execute");
  if (rs_path_find(comm, path) == &rs_direct_path && comm->locals == comm->size && comm->lanes == 1) {
    if (mine == RESHARD_SUCCESS)
      mine = rs_arrays_borrow(plan, arrays, &memory->extents, &o.arrays);
    if (mine == RESHARD_SUCCESS)
      mine = make_gate(comm, memory);
    o.ready = mine == RESHARD_SUCCESS && plan->rank == comm->rank && (plan->nentries == 0 || plan->world == comm->size);
    if (o.ready)
      rs_gate_come(&memory->gate, stream);
    RS_TRY(rs_gate_leave(&memory->gate, rs_comm_together(comm, run_calls, &o)));
    if (o.done) {
      *workspace_bytes = 0;
      return RESHARD_SUCCESS;
    }
  }
  RS_TRY(rs_agree_on(comm, mine, argument));
  return execute_by_transfer(plan, comm, arrays, path, stream, workspace_bytes);
}
