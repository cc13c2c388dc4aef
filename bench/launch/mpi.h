/* Processes that mpirun started: mpi.c, or no_mpi.c in a build without MPI, where mpi_open ends the program with
 * status 3. */
#ifndef BENCH_MPI_H
#define BENCH_MPI_H

#include "bench/launch/processes.h"

bool mpi_built(void);
void mpi_open(processes *out);
void mpi_share(void *bytes, size_t n);
void mpi_close(void);
const void *mpi_world(void); /* an MPI_Comm */

#endif
