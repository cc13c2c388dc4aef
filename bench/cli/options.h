/* Options of the commands, from one table. */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include "bench/cli/util.h"

enum {
  COMMAND_PLAN = 1,
  COMMAND_BENCH = 2,
  COMMAND_VERIFY = 4,
  COMMAND_INFO = 8,
  COMMAND_CONVERT = 16,
  COMMAND_TRACE = 32,
  COMMAND_CHECK = 64
};

typedef struct cli_options {
  /* the workload: tensors and their two layouts */
  const char *shape, *dtype, *model, *src, *dst, *mesh, *permutation;
  /* where it runs */
  int64_t ranks;             /* 0: not given */
  int64_t processes;         /* that the program starts itself; 0: not given */
  const char *device, *comm; /* words of the table; NULL: not given */
  int path;                  /* a reshard_path */
  int collective;            /* a reshard_collective_use */
  int64_t workspace;         /* as in reshard_plan_options */
  int64_t threads;           /* 0: not given */
  int64_t max_blocks;        /* as in reshard_device_options */
  bool shared;               /* the same */
  const char *topology;      /* NULL: none */
  /* plan */
  int64_t rank; /* -1: all */
  bool peers;
  const char *json, *svg; /* NULL: none */
  /* bench */
  const char *suite;                            /* a word of the table; NULL: none */
  double scale;                                 /* of each tensor's dim 0; 0: not given */
  const char *mesh_dst;                         /* of a suite: --mesh of --dst alone, "": none; NULL: as of --src */
  int64_t size_begin, size_end, size_increment; /* 0: not given */
  double size_factor;                           /* 0: not given */
  int64_t iterations, warmup;
  int64_t aggregate;     /* executes that are timed as one */
  int64_t cycles;        /* 0: without end */
  int64_t average;       /* a bench_average */
  int64_t check;         /* executes whose result is looked at; 0: none */
  int64_t ranks_per_gpu; /* -t; 0: not given */
  int64_t gpus;          /* -g; 0: not given */
  bool graph;
  int64_t launches;          /* -G N: of a graph of all iterations; -1: of one iteration each; 0: not given */
  int64_t blocking;          /* the host waits for each; 0 or 1, as the next ones */
  int64_t host_time;         /* of the host instead of the device */
  int64_t stamps, memory;    /* columns and lines more */
  int64_t shift;             /* of buffers, in elements */
  int64_t timeout;           /* seconds for a row; 0: none */
  const char *trace, *csv;   /* NULL: none */
  int64_t connect, registry; /* -p and -R, which have one value each */
  /* verify */
  int64_t cases, seconds; /* seconds 0: not given */
  uint64_t seed;
  /* convert */
  const char *in, *out;     /* the arguments that are no options; never NULL there */
  const char *map;          /* NULL: none */
  const char *source_dtype; /* NULL: none */
  const char *dst_dtype;    /* likewise */
  bool force, verify, dedup, no_digests, leave_out;
  int64_t index_bytes; /* 0: not given */
  /* check: the arguments that are no options, at least one */
  char **paths;
  int npaths;
} cli_options;

/* Reads the options of a command. A wrong option ends the program with status 2, one that this build cannot serve with
 * status 3; the error names it. --help prints and ends with status 0. */
void cli_read_options(int argc, char **argv, int command, const char *usage, cli_options *out);

/* Both functions are for shell completion: the options of a command; lines of a bash `case` with the words of each
 * option's argument. */
void cli_add_option_names(int command, rs_text *out);
void cli_add_option_values(rs_text *out);

#endif
