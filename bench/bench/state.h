/* The state of a benchmark: what all rows share, and the row that is measured. */
#ifndef BENCH_STATE_H
#define BENCH_STATE_H

#include "bench/bench/data.h"
#include "bench/cli/machine.h"
#include "bench/launch/gpu.h"
#include "bench/trace/trace.h"

/* Phases of an execute, as its steps are named to a tracer. */
enum { BENCH_PACK, BENCH_EXCHANGE, BENCH_UNPACK, BENCH_COPY, BENCH_SELF_COPY, BENCH_PHASES };

/* A result. Times that were not measured are NAN. */
typedef struct bench_row {
  int64_t bytes, elements, wrong, cycle;
  int64_t wire_bytes, bound_bytes;      /* that all ranks receive, and the least that they have to */
  int64_t busiest_bytes, busiest_bound; /* that one rank sends or receives at most, and the least likewise */
  int64_t between_bytes, within_bytes, leaving_bytes; /* of messages, by the communicator; of an execute with domains */
  int64_t workspace, rounds, messages; /* staging of the largest rank; rounds; messages of all ranks in all rounds */
  int64_t limit, least_rounds;         /* of staging; the least rounds under it */
  int64_t sets;                        /* of buffers, which are used in turn */
  int64_t source_bytes, destination_bytes; /* of one set, of all ranks */
  double time_us, algbw, busbw, memcpy_gbps, ratio;
  double min_us, p50_us, p95_us, p99_us, max_us;
  double first_us;                    /* of the first execute, by the host's clock */
  double plan_us, create_us, bind_us; /* of the slowest rank */
  double phase_us[BENCH_PHASES];      /* of one execute: of the rank or stream that is longest in it */
  double loop_us;                     /* GPU: of an execute among many, one after the other, by the host's clock */
  double host_us;                     /* GPU: of the host for an execute; and */
  double group_us;                    /* for its messages alone, in one round, where ranks are not all of one process */
  double blocking_group_us;           /* the same over an NCCL communicator that blocks, as a caller has it; and */
  double blocking_host_us;            /* an execute over that, in turn with it */
  double group_graph_us, blocking_graph_us; /* and both from a graph */
  bool host_bound; /* GPU: some times have the host's work in them, which took too long to hold the streams for */
  char shape[RS_SHAPE_TEXT];
  const char *name, *src, *dst;        /* of a suite's case, and its layouts; NULL: no suite */
  const char *model, *mesh, *mesh_dst; /* likewise, and NULL where the case has none */
  const char *dtype, *dst_dtype, *path, *collective;
  char scaled[2][RS_BLOCKS_TEXT]; /* dtypes of what has scales */
  char why[160];                  /* it is one, or none */
} bench_row;

typedef struct bench_state {
  const cli_options *o;
  workload w;
  session s;
  bool squares;  /* no workload is given: shapes are 2^ceil(k/2) x 2^floor(k/2), k = floor(log2(bytes / width)) */
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
  bool traced;           /* each row ends with an execute that is recorded */
  int64_t samples, each; /* measurements of a row, and executes in each */
  bool skipped;          /* the row does not fit in memory: */
  char why_skipped[400];
  trace *trace;       /* of the last row, in the first process of all of them; NULL: none */
  double clock_error; /* seconds: of the times of the other processes in it, at most; 0: one clock */
  /* of the row */
  reshard_entry *entries;
  reshard_topology topology; /* domain NULL: none */
  bench_side src, dst;
  reshard_transfer *transfers;    /* [sets][locals] */
  gpu_graph *graphs;              /* [sets]; NULL: none */
  double *ours, *straight, *ends; /* [samples], [samples], [locals] */
  bench_row row;
} bench_state;

/* Both functions are collective over the processes. */
void bench_start(bench_state *b);
void bench_finish(bench_state *b);
static inline void *bench_stream(const bench_state *b, int64_t local) { return b->s.cuda ? b->stream[local] : NULL; }
static inline const rs_device_streams *bench_streams(const bench_state *b, int64_t local) {
  return session_device(&b->s, local)->streams;
}

/* Measures b->w, to b->row; or sets b->skipped. */
void bench_run_row(bench_state *b);

#endif
