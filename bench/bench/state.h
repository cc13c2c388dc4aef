/* The state of a benchmark: what all rows share, and the row that is measured. */
#ifndef BENCH_STATE_H
#define BENCH_STATE_H

#include "bench/bench/data.h"
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
  double blocking_group_us; /* the same over an NCCL communicator that blocks, as a caller has it; 0: not measured */
  bool host_bound; /* GPU: some times have the host's work in them, which took too long to hold the streams for */
  char shape[RS_SHAPE_TEXT];
  int64_t limit, workspace, rounds, least_rounds; /* of a transfer; workspace: of the rank that has most */
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

/* Both functions are collective over the processes. */
void bench_start(bench_state *b);
void bench_finish(bench_state *b);
static inline void *bench_stream(const bench_state *b, int64_t local) { return b->s.cuda ? b->stream[local] : NULL; }
static inline const rs_device_streams *bench_streams(const bench_state *b, int64_t local) {
  return session_device(&b->s, local)->streams;
}

/* Work that is timed: called by every local rank, with each set of buffers in turn. */
typedef void (*bench_work)(bench_state *b, int64_t local, int64_t set);
void bench_reshard(bench_state *b, int64_t local, int64_t set);
void bench_memcpy(bench_state *b, int64_t local, int64_t set);
/* Both functions are called by every local rank; the result is local rank 0's. bench_timed returns the seconds of the
 * work on one set. bench_longest returns the longest time of the processes' first ranks. */
double bench_timed(bench_state *b, int64_t local, bench_work work);
double bench_longest(bench_state *b, int64_t local, double seconds);

/* Measures b->w, to b->row. */
void bench_run_row(bench_state *b);

/* Called by every local rank on GPUs, between the creation of the row's transfers and their end. */
void bench_host_times(bench_state *b, int64_t local, reshard_plan plan);

/* The results of a benchmark: a table in the manner of nccl-tests, or JSON. */
void bench_print_head(const bench_state *b, const machine *m);
void bench_print_row(const bench_state *b);
void bench_json_head(rs_json *j, const bench_state *b, const machine *m);
void bench_json_row(rs_json *j, const bench_state *b);

/* Records an execute. Called by every local rank, between the creation of the row's transfers and their end. */
void bench_trace_row(bench_state *b, int64_t local);
/* Writes the trace; NULL: no file of this kind. */
void bench_trace_write(const bench_state *b, const char *json, const char *svg);

#endif
