/* A rank copies alone the data that stays with it; no other rank has to know. */
#include "exec/once.h"

#include "device/stream.h"
#include "exec/pull.h"

typedef struct local_call {
  reshard_plan plan;
  rs_arrays arrays;
} local_call;

static reshard_status view_of_own(void *user, int64_t rank, int64_t entry, bool source, int64_t array, rs_view *view) {
  const local_call *k = user;
  (void)rank;
  rs_arrays_view(&k->arrays, k->plan, entry, source, array, view);
  return RESHARD_SUCCESS;
}

reshard_status rs_execute_local(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays,
                                rs_once_memory *memory, void *stream) {
  rs_device *device = comm->device;
  local_call k = {.plan = plan};
  int64_t foreign = 0;
  if (plan->info.received_bytes > 0)
    return rs_error(RESHARD_ERROR_INVALID, "rank %lld lacks %lld bytes, which others have", (long long)plan->rank,
                    (long long)plan->info.received_bytes);
  RS_TRY(rs_stream_check(device, stream, "execute"));
  RS_TRY(rs_arrays_borrow(plan, arrays, &memory->extents, &k.arrays));
  rs_copies_clear(&memory->copies);
  RS_TRY(rs_pull(plan, view_of_own, &k, &memory->copies, &foreign));
  RS_TRY(device->ops->recompile(device, &memory->copies, memory->copies.bytes, &memory->program));
  return device->ops->run(device, 1, &memory->program, stream);
}
