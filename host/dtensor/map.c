/* DTensors with other local tensors, of the same mesh and placements. */
#include "dtensor/dtensor.h"

reshard_status rs_dtensor_map(reshard_dtensor t, const rs_tensor_mapper *mapper, reshard_dtensor *mapped) {
  reshard_properties properties = t->properties;
  reshard_device_type home = t->sharder->device->device->type, type = t->on_cpu ? RESHARD_DEVICE_CPU : home;
  rs_local_arrays local;
  bool changed;
  *mapped = NULL;
  RS_TRY(rs_local_arrays_map(t->sharder, &t->local, mapper, &properties, &type, &local, &changed));
  if (!changed)
    return RESHARD_SUCCESS;
  reshard_status status = rs_dtensor_new(t->given, t->sharder, t->mesh, &properties, &local, mapped);
  if (status == RESHARD_SUCCESS)
    (*mapped)->on_cpu = type != home;
  else
    rs_local_arrays_free(&local);
  return status;
}
