/* The processes of a run: how many there are, which one this is, and a few bytes from the first to all, which is what
 * NCCL needs to begin. Processes are started by mpirun, or by anything that sets RANK, WORLD_SIZE, MASTER_ADDR and
 * MASTER_PORT as torchrun does; with neither there is one. */
#ifndef BENCH_PROCESSES_H
#define BENCH_PROCESSES_H

#include "bench/cli/util.h"

typedef struct processes {
  int64_t n, me;
  int64_t local_n, local_me; /* of those on this machine, where that is known; else n, me */
  const char *by;            /* "mpi", "environment", "none" */
} processes;

/* --comm where it is not given: "local" for one process; where several were started together, what connects them, so
 * that none works alone unasked: "nccl" on GPUs, "mpi" on CPUs. Ends the program where nothing does. */
const char *processes_comm(bool cuda);

/* comm: of --comm. "mpi": by MPI. "nccl": by MPI where mpirun started this process, else by the environment. "local":
 * one process. Ends the program where something is wrong or missing. */
void processes_open(const char *comm, processes *out);
/* Collective: the first process's bytes to all. Waits no longer than processes_timeout_ms. */
void processes_share(const processes *p, void *bytes, size_t n);
void processes_close(const processes *p);

/* How long anything waits for other processes: RESHARD_TIMEOUT_MS, else a minute. */
int64_t processes_timeout_ms(void);

#endif
