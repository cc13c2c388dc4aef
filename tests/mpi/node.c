/* A communicator of processes of one node, whose ranks find each other by MPI. */
#include <mpi.h>
#include <reshard/mpi.h>

#include <reshard/reshard.h>

#include <stdio.h>

int main(int argc, char **argv) {
  MPI_Comm world = MPI_COMM_WORLD;
  reshard_comm comm = NULL, half = NULL;
  int rank, size, failed = 0, all = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(world, &rank);
  MPI_Comm_size(world, &size);
  failed += reshard_comm_create_node(size, rank, reshard_mpi_allgather, &world, NULL, &comm) != RESHARD_SUCCESS;
  failed += reshard_comm_rank(comm) != rank || reshard_comm_size(comm) != size;
  failed += reshard_comm_barrier(comm) != RESHARD_SUCCESS;
  failed += reshard_comm_split(comm, rank % 2, 0, &half) != RESHARD_SUCCESS;
  failed += reshard_comm_barrier(half) != RESHARD_SUCCESS;
  if (failed > 0)
    printf("rank %d: %s\n", rank, reshard_last_error());
  reshard_comm_destroy(half);
  reshard_comm_destroy(comm);
  MPI_Allreduce(&failed, &all, 1, MPI_INT, MPI_SUM, world);
  if (rank == 0)
    printf("%d ranks: %d checks failed\n", size, all);
  MPI_Finalize();
  return all > 0;
}
