/* The host's time to launch an execute on the streams of a GPU; and, over NCCL, its time for one bare round of messages
 * of the same sizes. The difference is the execute's own work. */
#include "bench/bench/time.h"
#include "bench/launch/gpu.h"
#include "comm/comm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct timed_launch {
  reshard_status (*launch)(void *user, void *stream);
  void *user;
  double us; /* the median, and of all ranks the largest */
} timed_launch;

/* n calls in turn, each on an empty stream, so that no queue is full, and a busy GPU is so for all of them. */
static void time_in_turn(bench_state *b, int64_t local, int64_t n, timed_launch *calls) {
  rs_device *device = session_device(&b->s, local);
  const int64_t turns = b->o->iterations;
  double *times = cli_alloc(n * turns, sizeof *times);
  for (int64_t i = 0; i < n * turns; i++) {
    const timed_launch *call = &calls[i % n];
    session_barrier(&b->s, local, true);
    double begin = rs_seconds();
    CLI_TRY("", call->launch(call->user, b->stream[local]));
    times[i % n * turns + i / n] = rs_seconds() - begin;
    CLI_TRY("", device->streams->synchronize(device, b->stream[local]));
  }
  for (int64_t i = 0; i < n; i++) {
    double most = cli_median(times + i * turns, turns);
    const double *all = session_gather(&b->s, local, most);
    for (int64_t r = 0; r < b->s.world; r++)
      most = all[r] > most ? all[r] : most;
    calls[i].us = 1e6 * most;
  }
  free(times);
}

static double time_launches(bench_state *b, int64_t local, reshard_status (*launch)(void *user, void *stream),
                            void *user) {
  timed_launch one = {launch, user, NAN};
  time_in_turn(b, local, 1, &one);
  return one.us;
}

static reshard_status launch_execute(void *transfer, void *stream) { return reshard_execute(transfer, stream); }

static reshard_status launch_round(void *user, void *stream) {
  rs_exchange *exchange = user;
  exchange->stream = stream;
  return exchange->comm->ops->exchange(1, exchange, 0);
}

/* Times the launch of a graph that holds the work. */
static double time_graph(bench_state *b, int64_t local, reshard_status (*launch)(void *user, void *stream),
                         void *user) {
  gpu_graph graph = {0};
  session_barrier(&b->s, local, true);
  CLI_TRY("", gpu_capture(session_device(&b->s, local), b->stream[local], launch, user, &graph));
  double us = time_launches(b, local, gpu_launch, &graph);
  gpu_graph_destroy(&graph);
  return us;
}

/* Times one round with the plan's messages, to and from memory that is not used otherwise; and as a graph. beside: a
 * transfer of the communicator, whose executes take turns with the rounds; NULL: none. *execute: of that. */
static double time_round(bench_state *b, int64_t local, reshard_comm comm, reshard_plan plan, double *graph,
                         reshard_transfer beside, double *execute) {
  rs_device *device = session_device(&b->s, local);
  reshard_plan_info info;
  reshard_plan_get_info(plan, &info);
  rs_part *sends = cli_alloc(info.peers, sizeof *sends), *receives = cli_alloc(info.peers, sizeof *receives);
  rs_exchange exchange = {.comm = comm, .sends = sends, .receives = receives};
  char *memory = NULL, *at;
  CLI_TRY("", device->memory->alloc(device, (size_t)(info.sent_bytes + info.received_bytes), (void **)&memory));
  CLI_TRY("",
          device->memory->memset(device, memory, 0, (size_t)(info.sent_bytes + info.received_bytes), b->stream[local]));
  at = memory;
  for (int64_t i = 0; i < info.peers; i++) {
    int64_t peer, sent, received;
    CLI_TRY("", reshard_plan_peer(plan, i, &peer, &sent, &received));
    if (sent > 0)
      sends[exchange.nsends++] = (rs_part){.peer = peer, .at = at, .bytes = sent, .staged = true};
    at += sent;
    if (received > 0)
      receives[exchange.nreceives++] = (rs_part){.peer = peer, .at = at, .bytes = received, .staged = true};
    at += received;
  }
  timed_launch calls[2] = {{launch_round, &exchange, NAN}, {launch_execute, beside, NAN}};
  time_in_turn(b, local, beside != NULL ? 2 : 1, calls);
  *execute = calls[1].us;
  *graph = time_graph(b, local, launch_round, &exchange);
  device->memory->free(device, memory);
  free(sends);
  free(receives);
  return calls[0].us;
}

/* NCCL takes up a group at once where its communicator blocks, and on a thread of its own where it does not. */
static double time_blocking_round(bench_state *b, int64_t local, reshard_plan plan, double *graph, double *execute) {
  const reshard_transfer_options how = {RESHARD_TRANSFER_OPTIONS_INIT, .path = b->o->path,
                                        .collective = b->o->collective};
  const reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT,
                                 .src = b->src.buffer + b->src.first[local],
                                 .dst = b->dst.buffer + b->dst.first[local]};
  void *nccl = NULL;
  reshard_comm comm = NULL;
  reshard_transfer transfer = NULL;
  CLI_TRY("a communicator that blocks: ", gpu_nccl_create(b->s.comms[local], &nccl, &comm));
  CLI_TRY("a communicator that blocks: ", reshard_transfer_create(plan, comm, &arrays, &how, &transfer));
  double us = time_round(b, local, comm, plan, graph, transfer, execute);
  reshard_transfer_destroy(transfer);
  gpu_nccl_destroy(nccl, comm);
  return us;
}

void bench_host_times(bench_state *b, int64_t local, reshard_plan plan) {
  double execute = time_launches(b, local, launch_execute, b->transfers[local]), group = NAN, blocking = NAN;
  double group_graph = NAN, blocking_graph = NAN, blocking_execute = NAN, none;
  reshard_transfer_info info;
  reshard_transfer_get_info(b->transfers[local], &info);
  bool one_round = true;
  const double *rounds = session_gather(&b->s, local, (double)info.rounds);
  for (int64_t r = 0; r < b->s.world; r++)
    one_round = one_round && rounds[r] <= 1;
  if (strcmp(b->s.comm, "nccl") == 0 && one_round)
    group = time_round(b, local, b->s.comms[local], plan, &group_graph, NULL, &none);
  if (group > 0)
    blocking = time_blocking_round(b, local, plan, &blocking_graph, &blocking_execute);
  if (local == 0) {
    b->row.host_us = execute;
    b->row.group_us = group;
    b->row.blocking_group_us = blocking;
    b->row.blocking_host_us = blocking_execute;
    b->row.group_graph_us = group_graph;
    b->row.blocking_graph_us = blocking_graph;
  }
}
