/* A local call under faults: for each k, its k-th allocation fails. */
#ifndef TESTS_PROBE_H
#define TESTS_PROBE_H

#include "fault.h"

#include <reshard/reshard.h>

typedef union probe_out {
  void *object;
  int64_t number;
} probe_out;

typedef struct probe {
  const char *name;
  reshard_status (*call)(probe_out *out, const void *with);
  bool (*good)(const probe_out *out, const void *with); /* is this the right result? May call the library */
  void (*drop)(probe_out *out);                         /* frees it; NULL: nothing to free */
  const void *with;
} probe;

/* Calls with the k-th allocation failing, k = 0, 1, ..., until nothing is left to fail. Each failed call must have the right status
 * and a text, leave *out alone and no block behind; the same call right after must succeed with the right result. Fails
 * the test otherwise. Returns how many allocations the call makes. */
int64_t probe_run(const probe *p);

/* The status that a call has in which this failed. */
reshard_status probe_status(fault_kind kind);

#endif
