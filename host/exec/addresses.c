/* Places of the user's arrays on a GPU, asked of the driver: an address that a kernel cannot reach ends the context,
 * and with it the program. Also memory of the GPU may be out of reach for GPUs of other ranks in the process, which
 * read it where it is: that of a pool not open to them, and mapped memory, as PyTorch's expandable segments. */
#include "exec/arrays.h"

#include <stdlib.h>

/* Another GPU of the process that does not reach the address; NULL: all do. */
static reshard_status find_barred(reshard_comm comm, const void *at, const rs_device **barred) {
  *barred = NULL;
  for (int64_t g = 0; comm->memory.direct && g < comm->process.lanes && *barred == NULL; g++) {
    rs_device *device = comm->process.lane_devices[g];
    rs_address address;
    if (g == comm->process.lane)
      continue;
    RS_TRY(device->memory->look_up(device, at, &address));
    *barred = address.accessible ? NULL : device;
  }
  return RESHARD_SUCCESS;
}

static reshard_status check_home(reshard_comm comm, const struct reshard_plan_s *plan, const rs_extent *x) {
  rs_device *device = comm->device;
  const char *name = plan->entries[x->entry].name, *side = x->source ? "source" : "destination";
  rs_address address;
  RS_TRY(device->memory->look_up(device, x->begin, &address));
  if (address.gpu >= 0 && address.gpu != device->index)
    return rs_error(RESHARD_ERROR_INVALID,
                    "entry %lld '%.64s': %s buffer %lld at %p is on cuda:%d, the rank on cuda:%d", (long long)x->entry,
                    name, side, (long long)x->buffer, (const void *)x->begin, address.gpu, device->index);
  if (!address.accessible)
    return rs_error(RESHARD_ERROR_INVALID,
                    "entry %lld '%.64s': %s buffer %lld at %p is memory of the host that is not pinned, the rank is "
                    "on cuda:%d",
                    (long long)x->entry, name, side, (long long)x->buffer, (const void *)x->begin, device->index);
  return RESHARD_SUCCESS;
}

static reshard_status error_barred(reshard_comm comm, const struct reshard_plan_s *plan, const rs_extent *x,
                                   const rs_device *barred) {
  return rs_error(RESHARD_ERROR_UNSUPPORTED,
                  "entry %lld '%.64s': source buffer %lld at %p on cuda:%d is not reached by cuda:%d: its pool or "
                  "mapping is not open to it, and the direct path reads it there",
                  (long long)x->entry, plan->entries[x->entry].name, (long long)x->buffer, (const void *)x->begin,
                  comm->device->index, barred->index);
}

reshard_status rs_arrays_look_up(reshard_comm comm, const struct reshard_plan_s *plan, rs_extents *extents,
                                 bool direct_only, rs_arrays *arrays) {
  const rs_device *barred;
  arrays->has_private = false;
  if (comm->device->memory->look_up == NULL)
    return RESHARD_SUCCESS;
  extents->n = 0;
  RS_TRY(rs_arrays_add(plan, arrays, extents));
  for (int64_t i = 0; i < extents->n; i++) {
    const rs_extent *x = &extents->at[i];
    if (x->begin == x->end)
      continue;
    RS_TRY(check_home(comm, plan, x));
    if (!x->source || arrays->has_private)
      continue;
    RS_TRY(find_barred(comm, x->begin, &barred));
    if (barred != NULL && direct_only)
      return error_barred(comm, plan, x, barred);
    arrays->has_private = barred != NULL;
    arrays->private_entry = x->entry;
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_arrays_bind_on(reshard_comm comm, const struct reshard_plan_s *plan, const reshard_arrays *given,
                                 bool direct_only, rs_arrays *out) {
  rs_extents extents = {0};
  RS_TRY(rs_arrays_bind(plan, given, out));
  reshard_status status = rs_arrays_look_up(comm, plan, &extents, direct_only, out);
  free(extents.at);
  return status;
}

reshard_status rs_staging_look_up(reshard_comm comm, const void *staging, size_t bytes) {
  const rs_device *barred = NULL;
  if (comm->device->memory->look_up != NULL)
    RS_TRY(find_barred(comm, staging, &barred));
  if (barred == NULL)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_UNSUPPORTED,
                  "staging of %zu bytes at %p on cuda:%d is not reached by cuda:%d: the pool or mapping that the "
                  "caller took it from is not open to it",
                  bytes, staging, comm->device->index, barred->index);
}
