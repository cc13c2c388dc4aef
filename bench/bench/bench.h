/* reshard bench, in parts: bench.c has sizes and the command, bench_run.c measures a row, bench_time.c times,
 * bench_print.c tells it, bench_host.c what the host needs for it on a GPU, bench_trace.c records an execute of it. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include "bench/bench/data.h"
#include "bench/cli/json.h"
#include "bench/cli/machine.h"
#include "bench/launch/gpu.h"
#include "bench/trace/trace.h"

typedef struct bench_row {
  int64_t bytes, elements, wrong, widest_flow;
  int64_t sets; /* of buffers, which are used in turn */
  double time_us, algbw, busbw, memcpy_gbps, ratio;
  double loop_us;  /* GPU: of an execute among many, one after the other, by the host's clock */
  double host_us;  /* GPU: of the host for an execute; and */
  double group_us; /* for its messages alone, in one round, where ranks are not all of one process; 0: not measured */
  bool host_bound; /* GPU: some times have the host's work in them, which took too long to hold the streams for */
  char shape[WORKLOAD_SHAPE_TEXT];
  const char *dtype, *path, *collective;
  char why[160]; /* it is one, or none */
} bench_row;

typedef struct bench_state {
  const cli_options *o;
  workload w;
  session s;
  char gpu[256]; /* name of the first one; empty on the CPU */
  /* CPU */
  rs_device *cpu; /* of the straight copy */
  bool streaming; /* the faster straight copy */
  /* GPU */
  void **stream;         /* [locals] */
  rs_event **done;       /* [locals] */
  rs_event *begin, *end; /* with timing, on the first rank's GPU */
  void **scratch;        /* [devices]: of which a memset replaces what is in the caches */
  size_t scratch_bytes;
  int64_t l2;
  int64_t hold; /* memsets before what is timed */
  bool again;
  bool traced;  /* each row ends with an execute that is recorded */
  trace *trace; /* of the last row; NULL: none */
  /* of the row */
  reshard_entry *entries;
  bench_side src, dst;
  reshard_transfer *transfers;    /* [sets][locals] */
  gpu_graph **graphs;             /* [sets]; NULL: none */
  double *ours, *straight, *ends; /* [iterations], [iterations], [locals] */
  bench_row row;
} bench_state;

/* Collective over the processes, like the rest. */
void bench_start(bench_state *b);
void bench_finish(bench_state *b);
/* Measures what b->w says, to b->row. */
void bench_run_row(bench_state *b);

/* What is timed: called by every local rank, with each set of buffers in turn. */
typedef void (*bench_work)(bench_state *b, int64_t local, int64_t set);
void bench_reshard(bench_state *b, int64_t local, int64_t set);
void bench_memcpy(bench_state *b, int64_t local, int64_t set);
/* Called by every local rank; the result is local rank 0's. Seconds that work takes for a set; of what the processes'
 * first ranks have measured, the longest. */
double bench_timed(bench_state *b, int64_t local, bench_work work);
double bench_longest(bench_state *b, int64_t local, double seconds);
static inline void *bench_stream(const bench_state *b, int64_t local) { return b->s.cuda ? b->stream[local] : NULL; }

/* Called by every local rank while the row's transfers are there, on GPUs. */
void bench_host_times(bench_state *b, int64_t local, reshard_plan plan);

/* Called by every local rank while the row's transfers are there. */
void bench_trace_row(bench_state *b, int64_t local);
/* NULL: not to a file of this kind. */
void bench_trace_write(const bench_state *b, const char *json, const char *svg);

void bench_print_head(const bench_state *b, const machine *m);
void bench_print_row(const bench_state *b);
void bench_json_head(json *j, const bench_state *b, const machine *m);
void bench_json_row(json *j, const bench_state *b);

#endif
