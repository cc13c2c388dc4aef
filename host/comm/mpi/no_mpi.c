/* A build without MPI: linked in place of the others here. */
#include "comm/comm.h"

reshard_status reshard_comm_from_mpi(const void *mpi_comm, reshard_device device, int64_t timeout_ms,
                                     reshard_comm *comm) {
  (void)mpi_comm, (void)device, (void)timeout_ms, (void)comm;
  return rs_error(RESHARD_ERROR_UNSUPPORTED, "reshard_comm_from_mpi: this build has no MPI");
}
