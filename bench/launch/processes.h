/* The processes of a run: their number, this one's rank, and an all-gather of a few bytes, by which communicators
 * begin. Processes are started by mpirun; in torchrun's or Slurm's way, which the environment tells; or by the program
 * itself (--processes); otherwise there is one. */
#ifndef BENCH_PROCESSES_H
#define BENCH_PROCESSES_H

#include "bench/cli/util.h"

#include <reshard/comm.h>

typedef struct processes {
  int64_t n, me;
  int64_t local_n, local_me;     /* of those on this machine, where that is known; else n, me */
  const char *by;                /* "mpi", "environment", "program", "none" */
  reshard_rendezvous rendezvous; /* of "environment" */
  struct processes_page *page;   /* of "program": shared memory */
} processes;

/* Starts n processes of the program, this one among none of them: it waits for them and ends with their status. Called
 * before any thread is started; returns in each of them. */
void processes_start(int64_t n, processes *out);

/* Their all-gather, of at most 1 KiB of each. */
reshard_status processes_show(processes *p, const void *mine, size_t bytes, void *all);

/* The default of --comm: "local" for one process; of several, "nccl" on GPUs and "mpi" or "node" on CPUs, so that none
 * works alone unasked. Ends the program where nothing connects them. */
const char *processes_comm_name(const processes *started, bool cuda);

/* Finds the processes, unless the program has started them. comm "mpi": by MPI; "nccl" and "node": by MPI where mpirun
 * started this process, else by the environment; "local": one process. Ends the program where something is wrong or
 * missing. */
void processes_open(const char *comm, processes *out);
/* A reshard_allgather; user: the processes. Errors are left to the caller. */
reshard_status processes_allgather(void *user, const void *mine, size_t bytes, void *all);
/* Broadcasts the first process's bytes to all, within processes_timeout_ms. Collective. */
void processes_share(processes *p, void *bytes, size_t n);
void processes_close(const processes *p);

/* Longest wait for other processes: RESHARD_TIMEOUT_MS, else a minute. */
int64_t processes_timeout_ms(void);

/* By MPI: mpi.c, or no_mpi.c in a build without MPI. mpi_open ends the program with status 3 there, and where
 * libreshard_mpi is not found. */
bool mpi_built(void);
void mpi_open(processes *out);
void mpi_gather(const void *mine, size_t n, void *all);
void mpi_close(void);
void mpi_connect(reshard_device device, reshard_comm *comm); /* the communicator of them all; collective */

#endif
