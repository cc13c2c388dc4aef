/* processes_share without MPI. */
#ifndef BENCH_TCP_H
#define BENCH_TCP_H

#include "bench/launch/processes.h"

/* Broadcasts by a connection from each process to the first, at the port after MASTER_PORT, where torchrun itself
 * listens. */
void tcp_share(const processes *p, void *bytes, size_t n);

#endif
