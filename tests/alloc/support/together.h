/* A collective call under faults: its k-th allocation fails, on one rank or on any; the others take part. */
#ifndef TESTS_TOGETHER_H
#define TESTS_TOGETHER_H

#include "probe.h"
#include "support/fixtures/sharded_ranks.h"

enum { TOGETHER_ANY = -1 };

typedef struct together {
  const char *name;
  int64_t ranks, watched; /* the rank whose allocations fail, or TOGETHER_ANY */
  const reshard_sharder_options *options;
  void *act; /* what the functions below work on */
  void (*open)(sharded_ranks *p, void *act);
  reshard_status (*call)(sharded_ranks *p, void *act, int64_t rank);
  bool (*same)(const void *act, int64_t rank); /* is this rank's part as `open` made it? */
  bool (*good)(const void *act, int64_t rank); /* is it as after the call? */
  void (*close)(void *act);
} together;

/* Calls with the k-th allocation failing, k = 0, step, ..., each in a world of its own, until nothing is left to fail.
 * All ranks of a failed call must have the right status and the same text, and nothing is changed; the same call right
 * after must succeed; no block is left behind. Fails the test otherwise. Returns how many calls failed. */
int64_t together_run(const together *t, int64_t step);

/* No more blocks than there were before the k-th allocation of a rank failed. */
void together_no_leak(const char *name, int64_t live, int64_t watched, int64_t k);

#endif
