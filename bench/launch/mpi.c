/* Processes that mpirun started. */
#include "bench/launch/processes.h"

#include <mpi.h>

static MPI_Comm world; /* what mpi_world points to */

bool mpi_built(void) { return true; }

/* MPI's own errors end the program: that is its default for the world. */
void mpi_open(processes *out) {
  int level, n, me;
  MPI_Comm local;
  MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
  world = MPI_COMM_WORLD;
  MPI_Comm_size(world, &n);
  MPI_Comm_rank(world, &me);
  *out = (processes){.n = n, .me = me, .by = "mpi"};
  MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, me, MPI_INFO_NULL, &local);
  MPI_Comm_size(local, &n);
  MPI_Comm_rank(local, &me);
  MPI_Comm_free(&local);
  out->local_n = n;
  out->local_me = me;
}

void mpi_gather(const void *mine, size_t n, void *all) {
  MPI_Allgather(mine, (int)n, MPI_BYTE, all, (int)n, MPI_BYTE, world);
}

void mpi_close(void) { MPI_Finalize(); }

const void *mpi_world(void) { return &world; }
