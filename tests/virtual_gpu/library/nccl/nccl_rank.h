/* One rank of the NCCL communicator on a virtual GPU of its own. */
#ifndef VG_NCCL_RANK_H
#define VG_NCCL_RANK_H

#include <reshard/comm.h>
#include <reshard/device.h>

#include <stdio.h>

/* Collective: creates the communicator on the GPU of the rank's number, which it keeps. */
static inline reshard_status nccl_rank_open(const unsigned char *id, int64_t n, int64_t rank, int64_t timeout_ms,
                                            reshard_comm *comm) {
  reshard_device device = NULL;
  char name[32];
  snprintf(name, sizeof name, "cuda:%d", (int)rank);
  reshard_status status = reshard_device_create(name, NULL, &device);
  if (status == RESHARD_SUCCESS)
    status = reshard_comm_create_nccl(id, n, rank, device, timeout_ms, comm);
  reshard_device_release(device);
  return status;
}

#endif
