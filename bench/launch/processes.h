/* The processes of a run: their number, this one's rank, and a broadcast of a few bytes, which NCCL needs to begin.
 * Processes are started by mpirun, or in torchrun's way by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; otherwise
 * there is one. */
#ifndef BENCH_PROCESSES_H
#define BENCH_PROCESSES_H

#include "bench/cli/util.h"

typedef struct processes {
  int64_t n, me;
  int64_t local_n, local_me; /* of those on this machine, where that is known; else n, me */
  const char *by;            /* "mpi", "environment", "none" */
} processes;

/* The default of --comm: "local" for one process; of several, "nccl" on GPUs and "mpi" on CPUs, so that none works
 * alone unasked. Ends the program where nothing connects them. */
const char *processes_comm(bool cuda);

/* Finds the processes. comm "mpi": by MPI; "nccl": by MPI where mpirun started this process, else by the environment;
 * "local": one process. Ends the program where something is wrong or missing. */
void processes_open(const char *comm, processes *out);
/* Broadcasts the first process's bytes to all, within processes_timeout_ms. Collective. */
void processes_share(const processes *p, void *bytes, size_t n);
void processes_close(const processes *p);

/* Longest wait for other processes: RESHARD_TIMEOUT_MS, else a minute. */
int64_t processes_timeout_ms(void);

/* By MPI: mpi.c, or no_mpi.c in a build without MPI, where mpi_open ends the program with status 3. */
bool mpi_built(void);
void mpi_open(processes *out);
void mpi_share(void *bytes, size_t n);
void mpi_close(void);
const void *mpi_world(void); /* an MPI_Comm */

/* Broadcasts by a connection from each process to the first, at the port after MASTER_PORT, where torchrun itself
 * listens. */
void tcp_share(const processes *p, void *bytes, size_t n);

#endif
