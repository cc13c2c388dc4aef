/* Random cases: from a 64-bit seed a world, layouts, entries, strides, options; run over a communicator and compared
 * with the oracle byte by byte. A seed gives the same case on every machine. */
#ifndef BENCH_CASES_H
#define BENCH_CASES_H

#include "bench/cli/util.h"
#include "bench/verify/oracle.h"
#include "bench/verify/random.h"

#include <reshard/reshard.h>

/* One side of an entry. */
typedef struct case_side {
  oracle_layout what;
  reshard_layout layout;
  oracle_buffers held; /* destination: after oracle_reshard source elements, or -1 */
  char *text;          /* how the layout was made: its string, or "kind by constructor" */
} case_side;

typedef struct case_entry {
  case_side src, dst;
  oracle_region region;
  unsigned given; /* which pointers of the reshard_entry are passed: GIVEN_* */
  reshard_dtype dtype;
  char name[24];
} case_entry;

enum {
  GIVEN_SRC_OFFSET = 1,
  GIVEN_SRC_EXTENT = 2,
  GIVEN_DST_OFFSET = 4,
  GIVEN_DST_EXTENT = 8,
  GIVEN_PERMUTATION = 16,
  GIVEN_NAME = 32,
};

typedef struct case_plan {
  uint64_t seed;
  int64_t world;
  int64_t nentries;
  case_entry *entry;
  reshard_plan_options options;
  int64_t nodes[ORACLE_WORLD];
  int64_t least_limit;  /* of workspace_limit for this world; 0 where there is no limit */
  oracle_counts counts; /* of all entries, in bytes */
  int64_t bytes;        /* of all regions */
  bool plain;           /* every array is contiguous; else as the seed has it */
  bool reversible;      /* every destination is whole, without gap, halo or replica */
} case_plan;

/* Fixed choices; 0 or AUTO leave a choice to the seed. */
typedef struct case_choices {
  int64_t ranks;
  int threads;
  reshard_path path; /* AUTO: direct, packed and auto in turn */
  bool describe;     /* print what each case is before it runs */
  bool graph;        /* on GPUs: each execute is launched from a graph */
  struct session
      *session; /* the devices, and a communicator where it is not a local one; NULL: local ranks on the CPU */
} case_choices;

/* case_layout.c: a random description for a shape, and the library's layout for it. */
void case_describe(rng *r, int ndim, const int64_t *shape, int64_t world, bool source, oracle_layout *out);
void case_describe_free(oracle_layout *what);
/* The layout, by string or by constructor; *text receives how. Errors of the library are returned. */
reshard_status case_build(rng *r, const oracle_layout *what, reshard_layout *layout, char **text);
extern const char *const case_kind_name[RESHARD_LAYOUT_KIND_COUNT];

/* case_make.c. On failure false, with the reason in why. */
bool case_make(uint64_t seed, const case_choices *fixed, case_plan *out, cli_text *why);
void case_free(case_plan *plan);
/* The entries as reshard_plan_create takes them; free()d by the caller, and not used after the case. */
reshard_entry *case_entries(const case_plan *plan);

/* case_run.c: a runner owns rank threads and communicators and runs one case at a time; several runners may run at
 * once. */
typedef struct case_runner case_runner;
typedef struct case_totals {
  int64_t cases, entries, executes, bytes, wire_bytes, reversed;
  int64_t pairs[RESHARD_LAYOUT_KIND_COUNT][RESHARD_LAYOUT_KIND_COUNT]; /* cases that hold such an entry */
} case_totals;
case_runner *case_runner_create(const case_choices *fixed);
void case_runner_destroy(case_runner *runner);
/* True when all was right; else *why (to be freed) tells the first thing that was not. Adds to totals. */
bool case_run(case_runner *runner, uint64_t seed, case_totals *totals, char **why);

/* case_options.c: many seeds by several runners at once. */
typedef struct case_options {
  int64_t cases;
  uint64_t seed; /* case i has seed + i */
  int workers;
  case_choices fixed;
  const char *reproduce; /* further options of the command that reproduces a failure */
  int64_t most_failures; /* stop after so many */
  double end;            /* begin no case after this time of cli_seconds(); 0: never */
} case_options;
/* Prints each failure with the command that reproduces it; returns how many there were. */
int64_t case_run_all(const case_options *many, case_totals *totals);
/* Kept regressions (regressions.h). */
int64_t case_run_regressions(const case_options *many, case_totals *totals, int64_t *count);
/* The table of pairs of kinds; returns the number of pairs without a case. */
int64_t case_print_totals(const case_totals *totals, FILE *out);

#endif
