/* A transfer that is executed once costs more to make than to execute: ranks compare records, show addresses, agree,
 * compile, and execute, and meet for each. Ranks of one process that have prepared everything need to meet only once:
 * the one who acts for all sees everybody's arrays, lists what comes to each rank, compiles that and runs it. Anything
 * unusual - a rank that failed, plans that differ, a packed path - is left to the ordinary way, which tells all ranks
 * what is wrong. */
#include "exec/once.h"

#include <stdlib.h>
#include <string.h>

void rs_once_memory_free(rs_once_memory *memory, rs_device *device) {
  free(memory->extents.at);
  rs_copies_free(&memory->copies);
  device->ops->release(device, memory->program);
  *memory = (rs_once_memory){0};
}

/* What a rank brings. */
typedef struct once {
  reshard_comm comm;
  reshard_plan plan;
  rs_arrays arrays;
  rs_once_memory *memory;
  bool ready;
  int64_t foreign_bytes;
  bool done; /* for all ranks, or for none */
} once;

static reshard_status view_of(void *user, int64_t rank, int64_t entry, bool source, int64_t array, rs_view *view) {
  const once *o = ((once *const *)user)[rank];
  rs_arrays_view(&o->arrays, o->plan, entry, source, array, view);
  return RESHARD_SUCCESS;
}

static bool alike(const once *a, const once *b) {
  return b->ready && memcmp(a->plan->fields, b->plan->fields, sizeof a->plan->fields) == 0;
}

static reshard_status run(int64_t n, void **all) {
  once *const *o = (once *const *)all; /* by rank: all ranks are here */
  for (int64_t r = 0; r < n; r++)
    if (!o[0]->ready || !alike(o[0], o[r]))
      return RESHARD_SUCCESS;
  rs_device *device = o[0]->comm->device;
  rs_once_memory *memory = o[0]->memory; /* its rank waits here, as all do */
  rs_copies_clear(&memory->copies);
  for (int64_t r = 0; r < n; r++)
    RS_TRY(rs_pull(o[r]->plan, view_of, all, &memory->copies, &o[r]->foreign_bytes));
  RS_TRY(device->ops->recompile(device, &memory->copies, memory->copies.bytes, &memory->program));
  RS_TRY(device->ops->run(device, 1, &memory->program, NULL));
  for (int64_t r = 0; r < n; r++) {
    rs_comm_count(o[r]->comm, o[r]->foreign_bytes, 0);
    o[r]->done = true;
  }
  return RESHARD_SUCCESS;
}

static reshard_status by_transfer(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays, reshard_path path,
                                  void *stream, size_t *workspace_bytes) {
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, path, NULL, 0};
  reshard_transfer transfer;
  RS_TRY(reshard_transfer_create(plan, comm, arrays, &options, &transfer));
  reshard_status status = reshard_execute(transfer, stream);
  if (comm->locals < comm->size) /* ranks that do not meet to execute may fail one by one */
    status = rs_agree(comm, status);
  if (status == RESHARD_SUCCESS)
    *workspace_bytes = transfer->binding.info.workspace_bytes;
  reshard_transfer_destroy(transfer);
  return status;
}

reshard_status rs_execute_once(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays, reshard_path path,
                               reshard_status mine, rs_once_memory *memory, void *stream, size_t *workspace_bytes) {
  once o = {.comm = comm, .plan = plan, .memory = memory};
  if (mine == RESHARD_SUCCESS && stream != NULL)
    mine = rs_error(RESHARD_ERROR_INVALID, "stream is %p, on the CPU it is NULL", stream);
  if (path != RESHARD_PATH_PACKED && comm->locals == comm->size && comm->ops->reach) {
    if (mine == RESHARD_SUCCESS)
      mine = rs_arrays_borrow(plan, arrays, &memory->extents, &o.arrays);
    o.ready = mine == RESHARD_SUCCESS && plan->rank == comm->rank && (plan->nentries == 0 || plan->world == comm->size);
    RS_TRY(comm->ops->together(comm, run, &o));
    if (o.done) {
      *workspace_bytes = 0;
      return RESHARD_SUCCESS;
    }
  }
  RS_TRY(rs_agree(comm, mine));
  return by_transfer(plan, comm, arrays, path, stream, workspace_bytes);
}
