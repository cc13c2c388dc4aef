/* What the host needs for an execute that was prepared: of reshard_gpu bench. */
#include "bench/gpu/rows.h"

#include <pthread.h>
#include <stdlib.h>

enum { HOST_RANKS = 4, HOST_SHARE = 64 << 10 };

typedef struct world {
  bed *b;
  reshard_comm comm[HOST_RANKS];
  reshard_plan plan[HOST_RANKS];
  reshard_transfer transfer[HOST_RANKS];
  reshard_status status[HOST_RANKS];
  char *memory[2];
  reshard_layout layout[2];
} world;

typedef struct seat {
  world *w;
  int64_t rank;
} seat;

static void *host_rank(void *user) {
  world *w = ((seat *)user)->w;
  int64_t r = ((seat *)user)->rank, share = HOST_SHARE;
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = w->layout[0], .dst = w->layout[1], .dtype = RESHARD_F32};
  void *src[] = {w->memory[0] + r * share}, *dst[] = {w->memory[1] + r * share};
  reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = src, .dst = dst};
  w->status[r] = reshard_plan_create(1, &entry, r, NULL, &w->plan[r]);
  if (w->status[r] == RESHARD_SUCCESS)
    w->status[r] = reshard_transfer_create(w->plan[r], w->comm[r], &arrays, NULL, &w->transfer[r]);
  if (w->status[r] != RESHARD_SUCCESS)
    cli_error("rank %lld: %s", (long long)r, reshard_last_error());
  return NULL;
}

static reshard_status execute_all(void *user, void *stream) {
  return reshard_execute_all(HOST_RANKS, ((world *)user)->transfer, stream);
}

typedef struct launching {
  bed *b;
  gpu_graph *graph;
} launching;

static reshard_status launch(void *user, void *stream) {
  launching *j = user;
  return gpu_launch(j->b->gpu, j->graph, stream);
}

/* Median of the host's time for a call. The stream is empty before each, so that no queue is full. */
static double host_time(gpu_bench_run *x, bed_work work, void *user) {
  int64_t n = 10 * x->o->iterations;
  double *times = cli_alloc(n, sizeof *times);
  for (int64_t i = -5; i < n; i++) {
    double begin = cli_seconds();
    CLI_TRY("", work(user, x->b->stream[0]));
    double end = cli_seconds();
    bed_wait(x->b);
    if (i >= 0)
      times[i] = end - begin;
  }
  double median = cli_median(times, n);
  free(times);
  return median;
}

static void host_row(gpu_bench_run *x, const char *name, double seconds) {
  gpu_row *r = gpu_add_row(x, name, "us of the host", 10, false);
  r->bytes = HOST_RANKS * HOST_SHARE;
  r->figure = r->us = 1e6 * seconds;
  gpu_tell(x, r);
}

/* Rows to columns, 256 KiB, 4 ranks of one thread. */
void gpu_host_cases(gpu_bench_run *x) {
  if (!gpu_wanted(x, "execute") || x->o->profile)
    return;
  world w = {.b = x->b};
  reshard_local_options local = {.size = RESHARD_LOCAL_OPTIONS_INIT, .devices = &x->b->handle, .ndevices = 1};
  int64_t shape[] = {256, 256};
  seat mine[HOST_RANKS];
  pthread_t thread[HOST_RANKS];
  CLI_TRY("", reshard_layout_parse("chunk(0)", 2, shape, HOST_RANKS, &w.layout[0]));
  CLI_TRY("", reshard_layout_parse("chunk(1)", 2, shape, HOST_RANKS, &w.layout[1]));
  w.memory[0] = bed_alloc(x->b, HOST_RANKS * HOST_SHARE);
  w.memory[1] = bed_alloc(x->b, HOST_RANKS * HOST_SHARE);
  CLI_TRY("", x->b->gpu->memory->memset(x->b->gpu, w.memory[0], 1, HOST_RANKS * HOST_SHARE, x->b->stream[0]));
  bed_wait(x->b);
  CLI_TRY("", reshard_comm_create_local(HOST_RANKS, &local, w.comm));
  for (int64_t r = 0; r < HOST_RANKS; r++) {
    mine[r] = (seat){&w, r};
    if (pthread_create(&thread[r], NULL, host_rank, &mine[r]) != 0)
      cli_exit(EXIT_FAILED, "no thread");
  }
  for (int64_t r = 0; r < HOST_RANKS; r++)
    pthread_join(thread[r], NULL);
  for (int64_t r = 0; r < HOST_RANKS; r++)
    if (w.status[r] != RESHARD_SUCCESS)
      exit(EXIT_FAILED);
  host_row(x, "execute of 4 ranks, a rank", host_time(x, execute_all, &w) / HOST_RANKS);
  launching j = {x->b, NULL};
  CLI_TRY("", gpu_capture(x->b->gpu, x->b->stream[0], execute_all, &w, &j.graph));
  host_row(x, "execute of 4 ranks, launch of a graph", host_time(x, launch, &j));
  gpu_graph_destroy(j.graph);
  for (int64_t r = 0; r < HOST_RANKS; r++)
    reshard_transfer_destroy(w.transfer[r]);
  for (int64_t r = 0; r < HOST_RANKS; r++) {
    reshard_plan_destroy(w.plan[r]);
    reshard_comm_destroy(w.comm[r]);
  }
  reshard_layout_release(w.layout[0]);
  reshard_layout_release(w.layout[1]);
  bed_free(x->b, w.memory[0]);
  bed_free(x->b, w.memory[1]);
}
