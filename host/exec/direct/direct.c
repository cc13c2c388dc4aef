/* The direct path: strided source to strided destination, in one pass. One program serves all ranks of the process on
 * one GPU (or the CPU).
 *
 * Each rank lists what comes to it - from itself and, through their addresses, from the others. One rank then compiles
 * the lists of all: the device sees which copies share source lines or destination lines, whichever ranks they belong
 * to. With several GPUs each fetches what comes to its own ranks.
 *
 * Ranks that are processes do the same, each for itself, where all sources lie in memory that the others have mapped.
 * They meet twice in an execute: no source is read before its rank has come, and none after a rank has returned. On
 * GPUs their streams meet, by flags in memory of the GPUs, and no host waits. */
#include "device/stream.h"
#include "device/trace.h"
#include "exec/arrays.h"
#include "exec/record.h"
#include "exec/transfer.h"

#include <stdio.h>
#include <stdlib.h>

static bool direct_applicable(reshard_comm comm, reshard_path asked) {
  (void)asked;
  return comm->memory.direct || (comm->memory.imports != NULL && !comm->memory.multi_node);
}

static bool between_processes(reshard_comm comm) { return !comm->memory.direct; }

static rs_program *const *programs_of(const rs_binding *binding) {
  return binding->by_lane ? binding->compiled.at : &binding->self_copy;
}

/* rs_view_of of a transfer: peers have published where their arrays are. */
static reshard_status view_of_peer(void *user, int64_t rank, int64_t entry, bool source, int64_t array, rs_view *view) {
  rs_descriptor_view(((const rs_descriptor *const *)user)[rank], entry, source, array, view);
  return RESHARD_SUCCESS;
}

/* Compiles the copies to the ranks of a lane. */
static reshard_status compile_lane(int64_t n, rs_bind_call *const *c, int64_t lane, rs_device *device,
                                   rs_program **program) {
  rs_copies merged = {.deal = c[0]->t->comm->process.lanes > 1};
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++)
    if (c[i]->t->comm->process.lane == lane)
      status = rs_copies_append(&merged, &c[i]->binding->listed);
  if (status == RESHARD_SUCCESS && merged.copy.n > 0)
    status = device->work->compile(device, &merged, merged.bytes, program);
  rs_copies_free(&merged);
  return status;
}

/* For all ranks of the process: the first failure, or programs shared by all. */
static reshard_status compile_lanes(int64_t n, void **all) {
  rs_bind_call *const *c = (rs_bind_call *const *)all;
  RS_TRY(rs_bind_calls_failed(n, c));
  reshard_comm comm = c[0]->t->comm;
  rs_binding *first = c[0]->binding; /* an execute is of all, and takes the first one's */
  first->by_lane = true;
  RS_TRY(rs_vec_reserve(&first->compiled, comm->process.lanes));
  for (int64_t g = 0; g < comm->process.lanes; g++) {
    first->compiled.at[first->compiled.n++] = NULL;
    RS_TRY(compile_lane(n, c, g, comm->process.lane_devices[g], &first->compiled.at[g]));
  }
  return RESHARD_SUCCESS;
}

/* Lists the copies to one of the ranks of this process, each of which may read the lists of the others meanwhile. */
static reshard_status list_copies(reshard_transfer t, rs_binding *binding, const rs_descriptor *const *descriptors) {
  RS_TRY(t->comm->ops->threads->enter(t->comm));
  reshard_status status =
      rs_pull(t->plan, NULL, view_of_peer, NULL, (void *)descriptors, &binding->listed, &binding->foreign_bytes);
  t->comm->ops->threads->leave(t->comm);
  return status;
}

/* Compiles those to the only rank of its process. */
static reshard_status compile_alone(reshard_transfer t, rs_binding *binding, const rs_descriptor *const *descriptors) {
  rs_copies *copies = &binding->listed;
  copies->deal = between_processes(t->comm);
  RS_TRY(rs_pull(t->plan, NULL, view_of_peer, NULL, (void *)descriptors, copies, &binding->foreign_bytes));
  int64_t bytes = between_processes(t->comm) ? t->plan->info.bytes : copies->bytes;
  return copies->copy.n > 0 ? rs_binding_compile(t, binding, copies, bytes, t->streams.barrier, &binding->self_copy)
                            : RESHARD_SUCCESS;
}

static reshard_status direct_bind(reshard_transfer t, rs_binding *binding, const rs_descriptor *const *descriptors) {
  RS_TRY(t->comm->locals > 1 ? list_copies(t, binding, descriptors) : compile_alone(t, binding, descriptors));
  binding->info = (reshard_transfer_info){.path = RESHARD_PATH_DIRECT, .copies = binding->listed.copy.n, .rounds = 1};
  if (t->comm->locals == 1)
    rs_copies_free(&binding->listed);
  return RESHARD_SUCCESS;
}

static void count_bytes(const rs_execution *x) {
  for (int64_t i = 0; i < x->n; i++)
    rs_comm_count(x->t[i]->comm, x->t[i]->binding.foreign_bytes);
}

static reshard_status direct_run(rs_execution *x) {
  reshard_comm comm = x->t[0]->comm;
  rs_device *device = comm->device;
  bool apart = between_processes(comm), published = x->t[0]->cached != NULL; /* in a meeting of this call */
  if (apart && !published) /* within another call `combine` is no meeting */
    RS_TRY(comm->meets.transfer != 0 ? rs_comm_meet(comm) : rs_descriptors_meet(comm, x->t[0]->key));
  rs_trace_work(device, NULL, "copy", -1, rs_execution_copied(x, device));
  reshard_status status = device->work->run(device, 1, programs_of(&x->t[0]->binding), NULL);
  rs_trace_worked(device, NULL);
  if (apart && published)
    status = rs_agree(comm, status); /* with those that could not bind what was published */
  else if (apart)
    RS_THEN(status, rs_descriptors_meet(comm, x->t[0]->key));
  if (status == RESHARD_SUCCESS)
    count_bytes(x);
  return status;
}

static reshard_status direct_run_on_streams(rs_execution *x) {
  rs_program *const *programs = programs_of(&x->t[0]->binding);
  RS_TRY(rs_execution_meet(x, RS_MOVE, RS_EDGE("copy after peers")));
  if (x->flow.n > 1)
    RS_TRY(rs_flow_start(&x->flow));
  for (int64_t g = 0; g < x->flow.n; g++) {
    rs_lane *lane = x->flow.lane[g];
    void *stream;
    if (programs[g] == NULL)
      continue;
    RS_TRY(rs_flow_use(&x->flow, lane, RS_MOVE, &stream));
    rs_trace_work(lane->device, stream, "copy", -1, -1);
    reshard_status status = lane->device->work->run(lane->device, 1, &programs[g], stream);
    rs_trace_worked(lane->device, stream);
    RS_TRY(status);
  }
  RS_TRY(rs_execution_meet(x, RS_MOVE, RS_EDGE("user after peers")));
  count_bytes(x);
  return RESHARD_SUCCESS;
}

static void direct_release(reshard_comm comm, rs_binding *binding) {
  (void)comm;
  rs_mappings_free(binding->mappings);
}

const rs_path_ops rs_direct_path = {
    .number = RESHARD_PATH_DIRECT,
    .no_collective = "the direct path is one pass already",
    .reads_others = true,
    .applicable = direct_applicable,
    .bind = direct_bind,
    .compile = compile_lanes,
    .run = direct_run,
    .run_on_streams = direct_run_on_streams,
    .release = direct_release,
};
