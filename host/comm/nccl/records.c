/* Records that the ranks of an NCCL communicator publish: an all-gather of NCCL's, on a stream of its own. The
 * event after it stands for all that was given to that stream. */
#include "comm/nccl/records.h"

#include "base/range.h"
#include "comm/nccl/end.h"
#include "device/cuda/memory.h"
#include "device/stream.h"

#include <string.h>

/* Blocks until the event has happened. */
static reshard_status wait_for_event(rs_nccl *c, rs_event *event, const char *call) {
  rs_device *device = c->base.device;
  rs_nccl_wait w = {call, rs_now_ns(), rs_now_ns()};
  RS_RANGE("wait", -1, -1, -1, -1);
  for (bool done = false; !done;) {
    RS_TRY(device->streams->event_done(device, event, &done));
    ncclResult_t state;
    RS_TRY(rs_nccl_get_async_error(c, call, &state));
    if (!done)
      RS_TRY(rs_nccl_wait_more(c, &w, RS_NCCL_SPIN_NS));
  }
  return RESHARD_SUCCESS;
}

/* An earlier call that failed half-way, as a split, may be under way still. */
static reshard_status start_allgather(rs_nccl *c) {
  rs_cuda_before previous;
  RS_TRY(rs_nccl_settle(c, ncclInProgress, "ncclAllGather"));
  RS_TRY(rs_cuda_enter(c->base.device, &previous));
  reshard_status status = rs_nccl_lock(c);
  if (status == RESHARD_SUCCESS) {
    c->handed = true;
    ncclResult_t result = c->api.ncclAllGather(c->device_mine, c->device_all, sizeof *c->mine, ncclInt8, c->nccl,
                                               (cudaStream_t)c->stream);
    rs_nccl_unlock(c);
    status = rs_nccl_settle(c, result, "ncclAllGather");
  }
  rs_cuda_leave(previous);
  return status;
}

/* Between GPUs of one process NCCL reads and writes the callers' buffers where they are, which storage of a pool has to
 * be opened to. Ranks that meet for the first time learn who that is; everything that is moved comes after that. */
static reshard_status open_storage(rs_nccl *c) {
  for (int64_t r = 0; r < c->base.size && !c->met; r++)
    if (c->all[r].process == c->process)
      RS_TRY(rs_cuda_open(c->base.device, c->all[r].device));
  c->met = true;
  return RESHARD_SUCCESS;
}

reshard_status rs_nccl_record_gathered(rs_nccl *c) {
  c->handed = true;
  RS_TRY(rs_stream_record(c->base.device, c->gathered, c->stream, RS_EDGE("records before host")));
  c->handed = false;
  return RESHARD_SUCCESS;
}

reshard_status rs_nccl_end_handed(rs_nccl *c, reshard_status status) {
  ncclResult_t state = ncclInProgress;
  status = rs_nccl_end_after_error(c, status);
  if (status == RESHARD_SUCCESS || !c->base.borrowed)
    return status;
  for (int64_t since = rs_now_ns(); c->handed && state == ncclInProgress && rs_now_ns() - since < RS_NCCL_LOOK_NS;) {
    pthread_mutex_lock(&c->mutex);
    if (c->api.ncclCommGetAsyncError(c->nccl, &state) != ncclSuccess)
      state = ncclInternalError;
    pthread_mutex_unlock(&c->mutex);
    rs_nccl_pause(since, RS_NCCL_SPIN_NS);
  }
  if (c->handed && state != ncclInProgress)
    (void)rs_nccl_record_gathered(c);
  return status;
}

/* c->mine of every rank, to c->all. */
static reshard_status allgather_records(rs_nccl *c) {
  rs_device *device = c->base.device;
  RS_TRY(device->memory->memcpy(device, c->device_mine, c->mine, sizeof *c->mine, c->stream));
  RS_TRY(start_allgather(c));
  RS_TRY(device->memory->memcpy(device, c->all, c->device_all, (size_t)c->base.size * sizeof *c->all, c->stream));
  RS_TRY(rs_nccl_record_gathered(c));
  return wait_for_event(c, c->gathered, "all-gather of records");
}

reshard_status rs_nccl_allgather(reshard_comm comm, const void *mine, size_t bytes, const void **all) {
  rs_nccl *c = rs_nccl_of(comm);
  rs_presence *presence = c->part_ranks == NULL ? c->presence : c->part != NULL ? c->part->presence : NULL;
  RS_TRY(rs_nccl_check_call(c)); /* the stream may still read the record */
  *c->mine = (rs_nccl_record){
      .device = comm->device->index, .process = c->process, .presence = rs_presence_own_offer(presence)};
  rs_visit_fill(comm, &c->mine->visit, bytes, mine, bytes);
  rs_presence_come(c->presence, RS_PRESENCE_STEP, 0);
  RS_TRY(rs_nccl_end_handed(c, allgather_records(c)));
  rs_presence_pass(c->presence);
  rs_presence_join(presence, &c->all[0].presence, sizeof *c->all, c->part_ranks);
  RS_TRY(rs_visits_compare(comm, &c->all[0].visit, sizeof *c->all));
  RS_TRY(open_storage(c));
  rs_visits_pack(comm, bytes, c->packed);
  *all = c->packed;
  return RESHARD_SUCCESS;
}
