/* Communicators: who takes part, and how bytes get from rank to rank. A NULL communicator has rank -1, size 0 and no
 * global ranks; calls that return a status refuse it (RESHARD_ERROR_INVALID). */
#ifndef RESHARD_COMM_H
#define RESHARD_COMM_H

#include <reshard/device.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct reshard_comm_s *reshard_comm;

typedef struct reshard_local_options {
  size_t size;
  int threads; /* copy threads shared by the ranks; 0: RESHARD_THREADS, else one per core that the process may use */
  reshard_isa isa; /* AUTO: RESHARD_ISA, else the best of the machine. Forcing one that is not available is an error. */
  int64_t
      timeout_ms; /* how long a rank waits for the others in a collective call; 0: RESHARD_TIMEOUT_MS, else for ever */
  /* Where the ranks' arrays are: rank r on devices[r % ndevices], all of one type; kept by the communicator. Several
   * ranks may share a GPU. ndevices 0: a CPU of the communicator's own, with threads and isa above. */
  const reshard_device *devices;
  int64_t ndevices;
} reshard_local_options;
#define RESHARD_LOCAL_OPTIONS_INIT sizeof(reshard_local_options)
#define RESHARD_LOCAL_OPTIONS_DEFAULTS {sizeof(reshard_local_options), 0, RESHARD_ISA_AUTO, 0, NULL, 0}

/* n ranks that are threads of this process. comms receives n handles, comms[r] for rank r; each handle is
 * used by one thread at a time. The environment is read here and only here. */
RESHARD_API reshard_status reshard_comm_create_local(int64_t n, const reshard_local_options *options,
                                                     reshard_comm *comms);

/* One rank of an NCCL communicator that the caller has (an ncclComm_t): borrowed, and not to be used by others while a
 * call of this library on it runs. device: the GPU that it is on (kept); NULL: one of our own on it. Local.
 * timeout_ms: deadline of what the host waits for (creating transfers, splits); 0: RESHARD_TIMEOUT_MS, else for ever.
 * Errors: RESHARD_ERROR_UNSUPPORTED in a build without NCCL; INVALID when the device is another one. */
RESHARD_API reshard_status reshard_comm_from_nccl(void *nccl_comm, reshard_device device, int64_t timeout_ms,
                                                  reshard_comm *comm);
/* A new NCCL communicator of our own: rank of n. Collective over the n callers. id: 128 bytes from
 * reshard_nccl_unique_id on one of them, passed on by the caller. Made non-blocking, so that the deadline and
 * reshard_comm_abort hold. All ranks destroy their handle, each on a thread of its own where they are in one process:
 * NCCL waits there for the others, at most until the deadline. Graphs that transfers on it were captured into are
 * destroyed before: NCCL waits for them, too. A rank that could not make a call which the others make ends its
 * communicator then and there: its later calls give that error, and the others hear of it by their deadline. One GPU
 * per rank: two ranks on one are INVALID. Between GPUs of one process arrays in a memory pool of the caller's own are
 * open to the others, as above. */
#define RESHARD_NCCL_ID_BYTES 128
RESHARD_API reshard_status reshard_nccl_unique_id(void *id);
RESHARD_API reshard_status reshard_comm_create_nccl(const void *id, int64_t n, int64_t rank, reshard_device device,
                                                    int64_t timeout_ms, reshard_comm *comm);

/* One rank of an MPI communicator, for memory of the CPU: mpi_comm points to the caller's MPI_Comm, which is duplicated,
 * not used. Collective over it. MPI is initialised, for threads where several use it; each call on the handle is made
 * by a thread that may call MPI. device: a CPU (kept); NULL: one of our own. timeout_ms: how long a rank waits for
 * others; 0: RESHARD_TIMEOUT_MS, else for ever. To find out who is missing a rank then takes up to a quarter as long
 * again, a second at most. All ranks destroy their handle, before MPI is finalised.
 * Errors: RESHARD_ERROR_UNSUPPORTED in a build without MPI, and for a device that is no CPU; INVALID when MPI is not
 * initialised. */
RESHARD_API reshard_status reshard_comm_from_mpi(const void *mpi_comm, reshard_device device, int64_t timeout_ms,
                                                 reshard_comm *comm);

/* The same with types that the compiler checks, where nccl.h or mpi.h is included before this header: an MPI_Comm by
 * value, of which MPI_Comm_dup makes the library's own. */
#ifdef NCCL_MAJOR
static inline reshard_status reshard_comm_from_nccl_comm(ncclComm_t nccl_comm, reshard_device device,
                                                         int64_t timeout_ms, reshard_comm *comm) {
  return reshard_comm_from_nccl((void *)nccl_comm, device, timeout_ms, comm);
}
#endif
#ifdef MPI_VERSION
static inline reshard_status reshard_comm_from_mpi_comm(MPI_Comm mpi_comm, reshard_device device, int64_t timeout_ms,
                                                        reshard_comm *comm) {
  return reshard_comm_from_mpi(&mpi_comm, device, timeout_ms, comm);
}
#endif

/* Not collective. Every transfer on the handle must have been destroyed. NULL is allowed. */
RESHARD_API void reshard_comm_destroy(reshard_comm comm);

/* Wakes every rank that waits in a collective call, with RESHARD_ERROR_PEER; later calls on any of the ranks' handles
 * fail with it too. Callable from any thread; a copy that runs is finished first. Communicators that were split from it
 * are aborted with it; those that it was split from are not. */
RESHARD_API reshard_status reshard_comm_abort(reshard_comm comm);

/* Collective. Returns when all ranks have called. */
RESHARD_API reshard_status reshard_comm_barrier(reshard_comm comm);

/* Collective: ranks that give the same color (0 or more) make a communicator of their own, ranked by key and, where
 * keys are equal, by rank in comm. A rank that gives a negative color is in none of them: *sub is NULL. All ranks
 * succeed, or all get the same error (that of the lowest rank that failed) and nothing is made. The new communicator is
 * one like any other - transfers on it and on comm, or on its siblings, may run at the same time - with the device,
 * copy threads and deadline of comm, and statistics of its own. The caller destroys it, before or after comm. It does
 * not end when a rank gives up waiting on comm, or the reverse; for aborts see reshard_comm_abort. Source:
 * MPI_Comm_split, ncclCommSplit; torch.distributed.split_group. */
RESHARD_API reshard_status reshard_comm_split(reshard_comm comm, int64_t color, int64_t key, reshard_comm *sub);

RESHARD_API int64_t reshard_comm_rank(reshard_comm comm);
RESHARD_API int64_t reshard_comm_size(reshard_comm comm);
/* Global ranks of the communicator's: their ranks in the communicator that was split first. One per rank, NULL where
 * they are the same numbers (it was not split from another); borrowed, lives as long as the handle.
 * Source: torch.distributed.get_process_group_ranks. */
RESHARD_API const int64_t *reshard_comm_global_ranks(reshard_comm comm);

/* What the communicator itself has counted on this handle: payload bytes that came to this rank from other ranks, and
 * messages (packed path) they came in. Not reset by anything. */
typedef struct reshard_comm_stats {
  int64_t received_bytes;
  int64_t received_messages;
} reshard_comm_stats;
RESHARD_API reshard_status reshard_comm_get_stats(reshard_comm comm, reshard_comm_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
