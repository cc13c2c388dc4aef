/* Processes that mpirun has started, and the MPI communicator. */
#include "support/processes/world.h"

#include <mpi.h>
#include <reshard/mpi.h>

const char world_name[] = "mpi";
const char world_call[] = "reshard_comm_from_mpi";
const char world_bad_timeout[] = "reshard_comm_from_mpi: timeout_ms -1 ms on rank 1, 7000 ms on rank 0";

void world_open(int *argc, char ***argv, int *rank, int *size) {
  int level;
  MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, size);
}

int64_t world_close(int64_t failures) {
  int64_t all = 0;
  MPI_Allreduce(&failures, &all, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return all;
}

void world_barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

void world_broadcast(void *bytes, size_t n, int from) { MPI_Bcast(bytes, (int)n, MPI_BYTE, from, MPI_COMM_WORLD); }

reshard_status world_connect(int64_t timeout_ms, reshard_comm *comm) {
  MPI_Comm world = MPI_COMM_WORLD;
  return reshard_comm_from_mpi(&world, NULL, timeout_ms, comm);
}

reshard_status world_connect_without(int64_t timeout_ms, reshard_comm *comm) {
  static MPI_Comm copy = MPI_COMM_NULL; /* where the duplication is left half-done */
  if (timeout_ms == 0)
    return MPI_Comm_dup(MPI_COMM_WORLD, &copy) == MPI_SUCCESS ? RESHARD_SUCCESS : RESHARD_ERROR_PEER;
  return reshard_comm_from_mpi(&copy, NULL, timeout_ms, comm);
}
