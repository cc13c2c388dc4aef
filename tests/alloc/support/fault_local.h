/* A local call under injected faults: for each k, its k-th allocation fails. */
#ifndef TESTS_FAULT_LOCAL_H
#define TESTS_FAULT_LOCAL_H

#include "fault.h"

#include <reshard/reshard.h>

typedef union fault_output {
  void *object;
  int64_t number;
} fault_output;

typedef struct fault_local {
  const char *name;
  reshard_status (*call)(fault_output *out, const void *with);
  bool (*good)(const fault_output *out, const void *with); /* checks the result; may call the library */
  void (*drop)(fault_output *out);                         /* frees the result; NULL: nothing to free */
  const void *with;
} fault_local;

/* Calls with the k-th allocation failing, k = 0, 1, ..., until no allocation is left to fail. Each failed call must
 * have the right status and a text, and leave its output alone and no block behind. The same call right after must
 * succeed with the right result. Fails the test otherwise. Returns the number of allocations of the call. */
int64_t fault_local_run(const fault_local *p);

/* Checks nothing. */
bool fault_any_output(const fault_output *out, const void *with);

/* Status of a call in which this kind of call failed. */
reshard_status fault_status(fault_kind kind);

#endif
