/* A rank copies alone the data that stays with it; no other rank has to know. */
#include "exec/once.h"

#include "device/stream.h"
#include "exec/arrays.h"

reshard_status rs_execute_local(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays,
                                rs_once_memory *memory, void *stream) {
  rs_device *device = comm->device;
  rs_arrays own;
  if (plan->info.received_bytes > 0)
    return rs_error(RESHARD_ERROR_INVALID, "rank %lld lacks %lld bytes, which others have", (long long)plan->rank,
                    (long long)plan->info.received_bytes);
  RS_TRY(rs_stream_check(device, stream, "execute"));
  RS_TRY(rs_arrays_borrow(plan, arrays, &memory->extents, &own));
  rs_copies_clear(&memory->copies);
  RS_TRY(rs_pull_own(plan, &own, &memory->copies));
  RS_TRY(device->work->recompile(device, &memory->copies, memory->copies.bytes, &memory->own));
  return device->work->run(device, 1, &memory->own, stream);
}
