/* Faults on purpose: the allocator and pthread_create, wrapped by the linker (-Wl,--wrap), so that the k-th call fails and blocks are
 * counted. Memory that libraries take for themselves is not seen. */
#ifndef TESTS_FAULT_H
#define TESTS_FAULT_H

#include <stdbool.h>
#include <stdint.h>

/* Do this thread's calls count towards the k-th? No thread's do at first. */
void fault_mark(bool counts);

/* From now on calls of marked threads are counted, from 0, and the k-th fails; k < 0: none does. */
void fault_arm(int64_t k);
/* Ends that; returns how many calls were counted. */
int64_t fault_disarm(void);

/* What failed since fault_arm. */
typedef enum fault_kind { FAULT_NONE, FAULT_MEMORY, FAULT_THREAD } fault_kind;
fault_kind fault_fired(void);

int64_t fault_live(void);  /* blocks that are allocated, by all threads */
int64_t fault_calls(void); /* allocations so far, by all threads, marked or not */
int64_t fault_bytes(void); /* that the blocks have, with what the allocator rounds them up by */
int64_t fault_peak(void);  /* most of them at once since fault_arm */

#endif
