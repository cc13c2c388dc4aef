/* Communicators over MPI. These functions are in a library of their own, libreshard_mpi, which is linked beside
 * libreshard and needs one of the same build: `pkg-config reshard_mpi`, or CMake's component mpi and target
 * reshard::mpi. A libreshard without MPI has no such library. */
#ifndef RESHARD_MPI_H
#define RESHARD_MPI_H

#include <reshard/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes one rank of an MPI communicator, for memory of the CPU. Collective over mpi_comm. MPI is initialised, for
 * threads where several use it. Each call on the handle is made by a thread that may call MPI. All ranks destroy their
 * handle, before MPI is finalised.
 *
 * - mpi_comm: points to the caller's MPI_Comm, of which the library uses a duplicate. What is split from the
 *   communicator shares it, with tags of its own.
 * - device: a CPU (kept). NULL: one of the library's own, made with `shared` (reshard_device_options) where the system
 *   can. Where all ranks have such a device, those of one node map each other's storage, as reshard_comm_alloc gives
 *   it. The path is then RESHARD_PATH_DIRECT where all ranks are on one node, else RESHARD_PATH_MIXED. The system must
 *   let a process open files of another one (/proc/PID/fd), or all is sent. Splits and shrinks of the communicator have
 *   what it has, where two of their ranks are on one node.
 * - timeout_ms: time that a rank waits for others, here too. 0: RESHARD_TIMEOUT_MS, else for ever. It is that of this
 *   call as a whole, and of a split. Before it has passed, ranks that wait tell each other for whom. The error names
 *   those that tell nothing, and not those that wait for them; it is one text on all ranks.
 *
 * MPI cannot take back a message that is under way. So where any rank has a deadline, messages go through memory of the
 * communicator's, and a transfer's own workspace is not used. From an error on nothing reads or writes memory of the
 * caller's. That of the communicator is freed when its messages have come; it stays where they never do. Where no rank
 * has a deadline, messages that are contiguous go in place, and long runs from where they are (plan.h). A rank that
 * hears of an abort then returns when what is under way to it has come, and such runs have gone: a peer that is stopped
 * holds it up.
 *
 * After a loss reshard_comm_shrink goes on, where the launcher lets it: Open MPI's mpirun with --enable-recovery. MPI
 * itself may wait for the lost ranks, as MPI_Finalize does.
 *
 * Errors, the same on all ranks, of the lowest rank that failed:
 * - RESHARD_ERROR_UNSUPPORTED: a device that is no CPU; and, before anything else, which that rank alone may get:
 *   libreshard is of another build than libreshard_mpi, the text has both.
 * - RESHARD_ERROR_INVALID: MPI is not initialised, which that rank alone gets; a negative timeout; comm is NULL.
 * - RESHARD_ERROR_OUT_OF_MEMORY: that rank alone gets it, the others give up at their deadline.
 * - RESHARD_ERROR_TIMEOUT: a rank did not come. Until MPI has made the duplicate it does not tell which: the text says
 *   "not known yet", and each rank gives up at its own deadline. MPI has no end for a duplication. It stays under way,
 *   and the rank's next call with mpi_comm goes on with it, so all ranks may call again. mpi_comm is not freed before
 *   that. */
RESHARD_API reshard_status reshard_comm_from_mpi(const void *mpi_comm, reshard_device device, int64_t timeout_ms,
                                                 reshard_comm *comm);

/* The same with a communicator of Fortran: the INTEGER of `use mpi`, or mpi_val of `use mpi_f08`. reshard.f90, which is
 * installed beside this header, has it for Fortran. */
RESHARD_API reshard_status reshard_comm_from_mpi_fortran(int handle, reshard_device device, int64_t timeout_ms,
                                                         reshard_comm *comm);

#ifdef MPI_VERSION
/* The same with a type that the compiler checks, where mpi.h is included before this header. The MPI_Comm is passed by
 * value, and MPI_Comm_idup makes the library's own of it. */
static inline reshard_status reshard_comm_from_mpi_comm(MPI_Comm mpi_comm, reshard_device device, int64_t timeout_ms,
                                                        reshard_comm *comm) {
  return reshard_comm_from_mpi(&mpi_comm, device, timeout_ms, comm);
}

/* A reshard_allgather over MPI: mpi_comm points to an MPI_Comm. For a node communicator its ranks are on one node, as
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
