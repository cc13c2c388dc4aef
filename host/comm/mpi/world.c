#include "comm/mpi/world.h"

#include "comm/mpi/mpi.h"

static MPI_Comm everyone; /* rs_mpi_world's */

reshard_status rs_mpi_world_open(rs_mpi_world *world) {
  int level, n, me, local_n, local_me;
  MPI_Comm local;
  RS_TRY(rs_mpi_check_build());
  MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
  everyone = MPI_COMM_WORLD;
  MPI_Comm_size(everyone, &n);
  MPI_Comm_rank(everyone, &me);
  MPI_Comm_split_type(everyone, MPI_COMM_TYPE_SHARED, me, MPI_INFO_NULL, &local);
  MPI_Comm_size(local, &local_n);
  MPI_Comm_rank(local, &local_me);
  MPI_Comm_free(&local);
  *world = (rs_mpi_world){.n = n, .me = me, .local_n = local_n, .local_me = local_me, .comm = &everyone};
  return RESHARD_SUCCESS;
}

void rs_mpi_world_gather(const rs_mpi_world *world, const void *mine, size_t bytes, void *all) {
  MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, *(const MPI_Comm *)world->comm);
}

void rs_mpi_world_close(void) { MPI_Finalize(); }
