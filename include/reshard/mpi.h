/* Communicators over MPI, in a library of their own, libreshard_mpi, which is linked beside
 * libreshard and needs one of the same build: `pkg-config reshard_mpi`, or CMake's component mpi and target
 * reshard::mpi. A libreshard without MPI has no such library. */
#ifndef RESHARD_MPI_H
#define RESHARD_MPI_H

#include <reshard/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes one rank of an MPI communicator, for memory of the CPU. Collective over mpi_comm. All ranks destroy their
 * handle before MPI is finalised.
 *
 * - mpi_comm: points to the caller's MPI_Comm, of which the library uses a duplicate.
 * - device: a CPU (kept). NULL: one of the library's own, made with `shared` where the system can. If all ranks have
 *   such a device, those of a node read each other's storage (RESHARD_PATH_DIRECT, or RESHARD_PATH_MIXED over
 *   several nodes).
 * - timeout_ms: time that a rank waits for others, here too. 0: RESHARD_TIMEOUT_MS, else for ever.
 *
 * Errors, the same on all ranks, but for those that one rank gets alone:
 * - RESHARD_ERROR_UNSUPPORTED: a device that is no CPU; libreshard of another build (alone).
 * - RESHARD_ERROR_INVALID: MPI is not initialised (alone); a negative timeout; comm is NULL.
 * - RESHARD_ERROR_OUT_OF_MEMORY (alone).
 * - RESHARD_ERROR_TIMEOUT: a rank did not come; "not known yet" which, until MPI has made the duplicate. */
RESHARD_API reshard_status reshard_comm_from_mpi(const void *mpi_comm, reshard_device device, int64_t timeout_ms,
                                                 reshard_comm *comm);

/* The same with a communicator of Fortran: the INTEGER of `use mpi`, or mpi_val of `use mpi_f08`. reshard.f90, which is
 * installed beside this header, has the call for Fortran. */
RESHARD_API reshard_status reshard_comm_from_mpi_fortran(int handle, reshard_device device, int64_t timeout_ms,
                                                         reshard_comm *comm);

#ifdef MPI_VERSION
/* The same with a type that the compiler checks, where mpi.h is included before this header. The MPI_Comm is passed by
 * value, and MPI_Comm_idup makes the library's own of it. */
static inline reshard_status reshard_comm_from_mpi_comm(MPI_Comm mpi_comm, reshard_device device, int64_t timeout_ms,
                                                        reshard_comm *comm) {
  return reshard_comm_from_mpi(&mpi_comm, device, timeout_ms, comm);
}

/* A reshard_allgather over MPI: mpi_comm points to an MPI_Comm. The ranks of a node communicator are on one node, as
 * those of MPI_Comm_split_type with MPI_COMM_TYPE_SHARED are. */
static inline reshard_status reshard_mpi_allgather(void *mpi_comm, const void *mine, size_t bytes, void *all) {
  MPI_Comm comm = *(MPI_Comm *)mpi_comm;
  return MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, comm) == MPI_SUCCESS ? RESHARD_SUCCESS
                                                                                                   : RESHARD_ERROR_PEER;
}
#endif

#ifdef __cplusplus
}
#endif

#endif
