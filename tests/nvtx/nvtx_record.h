/* A tool for NVTX that keeps the ranges of a process, for tests: NVTX_INJECTION64_PATH names it. A test that has loaded
 * it by that path too reads them. */
#ifndef TESTS_NVTX_RECORD_H
#define TESTS_NVTX_RECORD_H

#include <stdbool.h>
#include <stdint.h>

typedef struct nvtx_range {
  char name[48];
  bool registered; /* the name */
  bool schema;     /* the payload has the four numbers; else bytes alone */
  int64_t bytes, peers, round, tensors;
  int64_t thread;     /* the system's number */
  int64_t parent;     /* the range of the thread that it is inside of; -1: none */
  int64_t begin, end; /* places in the order of all begins and ends; end 0: it has not ended */
} nvtx_range;

/* The ranges of the domain so far, in the order of their begins, and how often a thread ended one that it had not
 * begun. Valid until the next range begins. */
typedef const nvtx_range *(*nvtx_recorded_function)(const char *domain, int64_t *n, int64_t *unbegun);

#endif
