/* Executes of arrays that are used once, by ranks of one process (call.h). The rank that acts for all sees their
 * arrays, lists the copies to each of them, compiles and runs those; or it runs their cached transfers. */
#include "device/stream.h"
#include "exec/call.h"

#include <stdlib.h>
#include <string.h>

void rs_request_free_lanes(rs_request_memory *memory) {
  for (int64_t g = 0; g < memory->nlanes; g++) {
    rs_device *device = memory->lanes[g].device;
    device->work->release(device, memory->programs[g]);
    rs_lane_destroy(&memory->lanes[g]);
  }
  free(memory->programs);
  free(memory->lanes);
  free(memory->flow);
  memory->programs = NULL;
  memory->lanes = NULL;
  memory->flow = NULL;
  memory->nlanes = 0;
}

/* One rank's part in the meeting. */
typedef struct request_rank {
  reshard_comm comm;
  const rs_request *request;
  rs_request_memory *memory;
  rs_arrays arrays;
  reshard_transfer transfer; /* NULL: all is copied from array to array */
  rs_fork_join *fork_join;
  bool ready;
  int64_t foreign_bytes;
  bool done; /* for all ranks, or for none */
} request_rank;

static reshard_status view_of_rank(void *user, int64_t rank, int64_t entry, bool source, int64_t array, rs_view *view) {
  const request_rank *o = ((request_rank *const *)user)[rank];
  rs_arrays_view(&o->arrays, o->request->plan, entry, source, array, view);
  return RESHARD_SUCCESS;
}

static bool calls_alike(const request_rank *a, const request_rank *b) {
  const rs_request_terms *x = &a->request->terms, *y = &b->request->terms;
  return b->ready && (a->transfer == NULL) == (b->transfer == NULL) && x->path == y->path &&
         memcmp(a->request->plan->fields, b->request->plan->fields, sizeof a->request->plan->fields) == 0;
}

/* Compiles the copies to the ranks of a lane. */
static reshard_status compile_lane(int64_t n, request_rank *const *o, int64_t lane) {
  rs_request_memory *memory = o[0]->memory; /* its rank waits here, as all do */
  rs_device *device = o[0]->comm->process.lane_devices[lane];
  rs_copies_clear(&memory->copies);
  memory->copies.deal = memory->nlanes > 1;
  for (int64_t r = 0; r < n; r++)
    if (o[r]->comm->process.lane == lane)
      RS_TRY(rs_pull(o[r]->request->plan, NULL, view_of_rank, NULL, (void *)o, &memory->copies, &o[r]->foreign_bytes));
  return device->work->recompile(device, &memory->copies, memory->copies.bytes, &memory->programs[lane]);
}

/* Each GPU fetches what comes to its ranks. */
static reshard_status run_lanes(rs_request_memory *memory, void *stream) {
  rs_flow flow = {.n = memory->nlanes, .lane = memory->flow};
  rs_flow_begin(&flow, stream, false, false);
  reshard_status status = rs_flow_start(&flow);
  for (int64_t g = 0; g < flow.n && status == RESHARD_SUCCESS; g++) {
    rs_device *device = flow.lane[g]->device;
    void *side;
    if (device->work->count(memory->programs[g]) == 0)
      continue;
    status = rs_flow_use(&flow, flow.lane[g], RS_MOVE, &side);
    RS_THEN(status, device->work->run(device, 1, &memory->programs[g], side));
  }
  reshard_status ended = rs_flow_end(&flow);
  return status != RESHARD_SUCCESS ? status : ended;
}

/* The programs in the order of `stream`, which comes after all ranks' and before what they do next. */
static reshard_status run_between(int64_t n, request_rank *const *o, void *stream) {
  rs_device *device = o[0]->comm->process.lane_devices[0];
  rs_request_memory *memory = o[0]->memory;
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t r = 0; r < n && status == RESHARD_SUCCESS; r++)
    status = rs_fork_join_open(o[r]->fork_join, stream);
  RS_THEN(status,
          memory->nlanes == 1 ? device->work->run(device, 1, memory->programs, stream) : run_lanes(memory, stream));
  for (int64_t r = 0; r < n; r++) {
    reshard_status closed = rs_fork_join_close(o[r]->fork_join, stream);
    status = status != RESHARD_SUCCESS ? status : closed;
  }
  return status;
}

static reshard_status copy_directly(int64_t n, request_rank *const *o) {
  rs_request_memory *memory = o[0]->memory;
  for (int64_t g = 0; g < memory->nlanes; g++)
    RS_TRY(compile_lane(n, o, g));
  RS_TRY(run_between(n, o, n > 1 ? memory->lanes[0].side[RS_MOVE] : o[0]->request->stream));
  for (int64_t r = 0; r < n; r++)
    rs_comm_count(o[r]->comm, o[r]->foreign_bytes);
  return RESHARD_SUCCESS;
}

static reshard_status run_calls(int64_t n, void **all) {
  request_rank *const *o = (request_rank *const *)all; /* by rank: all ranks are here */
  for (int64_t r = 0; r < n; r++)
    if (!o[0]->ready || !calls_alike(o[0], o[r]))
      return RESHARD_SUCCESS;
  if (o[0]->transfer == NULL) {
    RS_TRY(copy_directly(n, o));
  } else {
    struct reshard_transfer_s **transfers = o[0]->transfer->team.ranks;
    for (int64_t r = 0; r < n; r++)
      transfers[r] = o[r]->transfer;
    RS_TRY(rs_transfers_run(n, transfers, o[0]->request->stream, n > 1));
  }
  for (int64_t r = 0; r < n; r++)
    o[r]->done = true;
  return RESHARD_SUCCESS;
}

static reshard_status make_lanes(reshard_comm comm, rs_request_memory *memory) {
  RS_TRY(rs_alloc_zero((void *)&memory->programs, comm->process.lanes, sizeof *memory->programs));
  RS_TRY(rs_alloc_zero(&memory->lanes, comm->process.lanes, sizeof *memory->lanes));
  RS_TRY(rs_alloc_zero((void *)&memory->flow, comm->process.lanes, sizeof *memory->flow));
  for (int64_t g = 0; g < comm->process.lanes; g++) {
    const rs_lane_needs needs = {.ranks = comm->locals > 1, .lanes = comm->process.lanes, .number = g};
    RS_TRY(rs_lane_create(comm->process.lane_devices[g], &needs, &memory->lanes[g]));
    memory->flow[g] = &memory->lanes[g];
    memory->nlanes = g + 1;
  }
  return RESHARD_SUCCESS;
}

/* Makes the fork_join and the lanes of such a meeting, where they are not there yet. */
static reshard_status make_fork_join(reshard_comm comm, rs_request_memory *memory) {
  if (comm->locals > 1 && memory->fork_join.comm == NULL)
    RS_TRY(rs_fork_join_create(comm, &memory->fork_join));
  if (comm->rank != 0 || memory->nlanes == comm->process.lanes)
    return RESHARD_SUCCESS;
  rs_request_free_lanes(memory);
  return make_lanes(comm, memory);
}

/* All that the rank can do before the meeting. */
static reshard_status prepare_rank(request_rank *o, bool direct) {
  const rs_request *request = o->request;
  if (!direct) {
    RS_TRY(rs_cached_bind(request->cached, request->arrays, NULL, request->stream));
    o->transfer = request->cached->transfer;
    o->fork_join = &o->transfer->streams.fork_join;
    return RESHARD_SUCCESS;
  }
  o->fork_join = &o->memory->fork_join;
  RS_TRY(rs_arrays_borrow(request->plan, request->arrays, &o->memory->extents, &o->arrays));
  RS_TRY(rs_arrays_look_up(o->comm, request->plan, &o->memory->extents, request->terms.path == RESHARD_PATH_DIRECT,
                           &o->arrays));
  return make_fork_join(o->comm, o->memory);
}

reshard_status rs_request_combine(reshard_comm comm, const rs_request *request, bool direct, reshard_status *mine,
                                  rs_request_memory *memory, bool *done) {
  request_rank o = {.comm = comm, .request = request, .memory = memory};
  reshard_plan plan = request->plan;
  bool known = direct || (request->cached != NULL && request->cached->transfer != NULL);
  if (*mine == RESHARD_SUCCESS && known)
    *mine = prepare_rank(&o, direct);
  o.ready = *mine == RESHARD_SUCCESS && known && plan->rank == comm->rank && !o.arrays.has_private &&
            (plan->nentries == 0 || plan->world == comm->size);
  if (o.ready)
    rs_fork_join_come(o.fork_join, request->stream);
  reshard_status status = rs_comm_combine(comm, run_calls, &o);
  *done = o.done;
  return o.fork_join != NULL ? rs_fork_join_leave(o.fork_join, status) : status;
}
