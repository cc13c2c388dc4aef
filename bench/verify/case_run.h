/* Random cases run: one over a communicator and compared with the oracle byte by byte. */
#ifndef BENCH_CASE_RUN_H
#define BENCH_CASE_RUN_H

#include "bench/verify/case_make.h"

/* A runner owns rank threads and communicators and runs one case at a time; several runners may run at
 * once. */
typedef struct case_runner case_runner;
/* Counts of entries with blocks, by the wide dtype, what travels to and from f8_e4m3, dtypes of scales, blocks of more
 * than one element, shorter blocks at the end, and cases of several rounds. */
enum {
  BLOCKS_F32,
  BLOCKS_BF16,
  BLOCKS_F16,
  BLOCKS_TO,
  BLOCKS_BACK,
  BLOCKS_WIDE_BACK,
  BLOCKS_F32_SCALES,
  BLOCKS_E8M0,
  BLOCKS_LARGE,
  BLOCKS_SHORT,
  BLOCKS_ROUNDS,
  CASE_BLOCKS
};
/* Sums over cases, numbers of 64 bits all of them. */
typedef struct case_totals {
  int64_t cases, entries, executes, bytes, wire_bytes, reversed;
  int64_t casts;                                 /* cases that convert */
  int64_t parts[2];                              /* sides cut part by part; those of which ranks share parts */
  int64_t converted[CASE_NUMBERS][CASE_NUMBERS]; /* entries, by dtypes */
  int64_t blocks[CASE_BLOCKS];                   /* entries with blocks */
  int64_t limited, staged, rounds; /* under a limit: cases; those with staging; those that take several rounds */
  int64_t domains, passed[2];      /* cases with a topology; that pass bytes on, in one round and in several */
  int64_t between, within;         /* bytes of these that came in messages, as the plans have them */
  int64_t pairs[RESHARD_LAYOUT_KIND_COUNT][RESHARD_LAYOUT_KIND_COUNT]; /* cases that hold such an entry */
} case_totals;
case_runner *case_runner_create(const case_choices *fixed);
void case_runner_destroy(case_runner *runner);
/* True when all was right; else *why (to be freed) tells the first thing that was not. Adds to totals. */
bool case_run(case_runner *runner, uint64_t seed, case_totals *totals, char **why);

/* Many seeds by several runners at once. */
typedef struct case_options {
  int64_t cases;
  uint64_t seed; /* case i has seed + i */
  int workers;
  case_choices fixed;
  const char *reproduce; /* further options of the command that reproduces a failure */
  int64_t most_failures; /* stop after so many */
  double end;            /* begin no case after this time of rs_seconds(); 0: never */
} case_options;
/* Prints each failure with the command that reproduces it; returns how many there were. */
int64_t case_run_all(const case_options *many, case_totals *totals);
/* Runs the kept regressions. */
int64_t case_run_regressions(const case_options *many, case_totals *totals, int64_t *count);
/* The tables of pairs of kinds and of dtypes; returns the number of pairs without a case. */
int64_t case_print_totals(const case_totals *totals, FILE *out);

#endif
