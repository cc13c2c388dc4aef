/* The session of a command: the processes, the ranks that are threads of this one, their devices and communicators.
 * Ranks = processes x -t x -g; local rank l is on GPU l mod -g of this process's. */
#ifndef BENCH_SESSION_H
#define BENCH_SESSION_H

#include "bench/cli/options.h"
#include "bench/launch/processes.h"
#include "bench/launch/rank_threads.h"

#include "device/device.h"

#include <pthread.h>

typedef struct session {
  const cli_options *o;
  processes processes;
  const char *comm; /* "local", "node", "nccl", "mpi" */
  bool cuda;
  int64_t world, first, locals; /* ranks [first, first + locals) are here */
  int threads;                  /* copy threads of the CPU, for all ranks here */
  rank_pool *pool;              /* of the local ranks */
  int64_t ndevices;
  reshard_device *devices; /* the GPUs; none where local ranks share a CPU, which is their communicator's own */
  reshard_comm *comms;     /* [locals]; NULL until they are there */
  pthread_mutex_t asking;  /* of comms, while another thread may look at them */
  pthread_t answerer;
  bool answers, over;
} session;

/* Finds processes and ranks. Sets o->ranks where the options or the processes say how many ranks there are. Ends the
 * program where they contradict each other, and where this machine or build lacks what they ask for. */
void session_begin(session *s, cli_options *o);
/* Opens devices and a communicator of so many ranks (0: none). Collective over the processes. */
void session_connect(session *s, int64_t world);
void session_end(session *s);
/* Starts, and ends, a thread that tells on SIGUSR1 where the ranks here are. Before any other thread is started. */
void session_answer(session *s);
void session_silence(session *s);

/* The device of a rank; NULL for the CPU of a local communicator's own. */
rs_device *session_device(const session *s, int64_t local);
/* Memory for the arrays of ranks on a device: storage of which other processes can map all, where it is shared. */
reshard_status session_alloc(rs_device *device, int64_t bytes, void **memory);
void session_free(rs_device *device, void *memory);
/* Barrier of all ranks of all processes, each by its thread. True where all came with ok; false where a rank cannot be
 * reached. */
bool session_barrier(session *s, int64_t local, bool ok);
/* Gathers a number of each rank; valid until the rank's next collective call. Ends the program where it fails. */
const double *session_gather(session *s, int64_t local, double mine);

#endif
