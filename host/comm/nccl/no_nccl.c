/* A build without NCCL: linked in place of the others here. */
#include "comm/comm.h"

static reshard_status no_nccl(const char *call) {
  return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: this build has no NCCL", call);
}

reshard_status reshard_comm_from_nccl(void *nccl_comm, reshard_device device, int64_t timeout_ms, reshard_comm *comm) {
  (void)nccl_comm, (void)device, (void)timeout_ms, (void)comm;
  return no_nccl("reshard_comm_from_nccl");
}

reshard_status reshard_comm_from_nccl_library(void *nccl_comm, void (*get_version)(void), reshard_device device,
                                              int64_t timeout_ms, reshard_comm *comm) {
  (void)get_version;
  return reshard_comm_from_nccl(nccl_comm, device, timeout_ms, comm);
}

reshard_status reshard_nccl_unique_id(void *id) {
  (void)id;
  return no_nccl("reshard_nccl_unique_id");
}

reshard_status reshard_comm_create_nccl(const void *id, int64_t n, int64_t rank, reshard_device device,
                                        int64_t timeout_ms, reshard_comm *comm) {
  (void)id, (void)n, (void)rank, (void)device, (void)timeout_ms, (void)comm;
  return no_nccl("reshard_comm_create_nccl");
}
