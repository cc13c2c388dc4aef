/* A collective call under injected faults: its k-th allocation fails, on one rank or on any; the others take part. */
#ifndef TESTS_FAULT_COLLECTIVE_H
#define TESTS_FAULT_COLLECTIVE_H

#include "fault_local.h"
#include "support/fixtures/sharded_ranks.h"

enum { FAULT_ANY_RANK = -1 };

typedef struct fault_collective {
  const char *name;
  int64_t ranks, watched; /* the rank whose allocations fail, or FAULT_ANY_RANK */
  const reshard_sharder_options *options;
  void *act; /* argument of the functions below */
  void (*open)(sharded_ranks *p, void *act);
  reshard_status (*call)(sharded_ranks *p, void *act, int64_t rank);
  bool (*same)(const void *act, int64_t rank); /* checks that this rank's part is as `open` made it */
  bool (*good)(const void *act, int64_t rank); /* checks that it is as after the call */
  void (*close)(void *act);
} fault_collective;

/* Calls with the k-th allocation failing, k = 0, step, ..., each in a world of its own, until no allocation is left to
 * fail. All ranks of a failed call must have the right status and the same text, and their parts unchanged. The same
 * call right after must succeed. No block may leak. Fails the test otherwise. Returns the number of failed calls. */
int64_t fault_collective_run(const fault_collective *t, int64_t step);

/* Fails the test when more blocks are allocated than `live`, those before the k-th allocation of a rank failed. */
void fault_collective_no_leak(const char *name, int64_t live, int64_t watched, int64_t k);

#endif
