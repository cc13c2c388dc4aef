/* The processes that mpirun has started, for a program that is not linked with MPI and loads libreshard_mpi when it
 * needs it: the program `reshard`. Errors of MPI end the program, as its default is. */
#ifndef RS_COMM_MPI_WORLD_H
#define RS_COMM_MPI_WORLD_H

#include "base/base.h"

typedef struct rs_mpi_world {
  int64_t n, me;
  int64_t local_n, local_me; /* of those on this machine */
  const void *comm;          /* points to an MPI_Comm */
} rs_mpi_world;

/* Initialises MPI. RESHARD_ERROR_UNSUPPORTED: libreshard_mpi is of another build than the caller. */
RS_PRIVATE_API reshard_status rs_mpi_world_open(rs_mpi_world *world);
RS_PRIVATE_API void rs_mpi_world_gather(const rs_mpi_world *world, const void *mine, size_t bytes, void *all);
RS_PRIVATE_API void rs_mpi_world_close(void);

#endif
