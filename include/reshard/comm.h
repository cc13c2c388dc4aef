/* Communicators: who takes part, and how bytes get from rank to rank. */
#ifndef RESHARD_COMM_H
#define RESHARD_COMM_H

#include <reshard/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct reshard_comm_s *reshard_comm;

/* Instruction sets of the CPU copies. AUTO takes the best that the machine has. */
typedef enum reshard_isa {
  RESHARD_ISA_AUTO = 0,
  RESHARD_ISA_SCALAR,
  RESHARD_ISA_SSE2,
  RESHARD_ISA_AVX2,
  RESHARD_ISA_AVX512,
  RESHARD_ISA_NEON,
  RESHARD_ISA_COUNT
} reshard_isa;
/* "auto", "scalar", "sse2", "avx2", "avx512", "neon"; "unknown" else. */
RESHARD_API const char *reshard_isa_string(reshard_isa isa);
/* 1 when this build and this machine can run it, else 0. AUTO and SCALAR always can. */
RESHARD_API int reshard_isa_available(reshard_isa isa);

typedef struct reshard_local_options {
  size_t size;
  int threads; /* copy threads shared by the ranks; 0: RESHARD_THREADS, else one per core that the process may use */
  reshard_isa isa; /* AUTO: RESHARD_ISA, else the best of the machine. Forcing one that is not available is an error. */
  int64_t
      timeout_ms; /* how long a rank waits for the others in a collective call; 0: RESHARD_TIMEOUT_MS, else for ever */
} reshard_local_options;
#define RESHARD_LOCAL_OPTIONS_INIT sizeof(reshard_local_options)

/* n ranks that are threads of this process, on the CPU. comms receives n handles, comms[r] for rank r; each handle is
 * used by one thread at a time. The environment is read here and only here. */
RESHARD_API reshard_status reshard_comm_create_local(int64_t n, const reshard_local_options *options,
                                                     reshard_comm *comms);

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
