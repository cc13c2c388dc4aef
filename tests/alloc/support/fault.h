/* Injected faults: the linker wraps the allocator and pthread_create (-Wl,--wrap), so that the k-th call fails and
 * blocks are counted. Memory that libraries allocate for themselves is not seen. */
#ifndef TESTS_FAULT_H
#define TESTS_FAULT_H

#include <stdbool.h>
#include <stdint.h>

/* Counts this thread's calls towards the k-th, or stops. Threads start unmarked. */
void fault_mark(bool counts);

/* Counts calls of marked threads from 0 and lets the k-th fail; k < 0: none. */
void fault_arm(int64_t k);
/* Stops counting; returns the number of calls that were counted. */
int64_t fault_disarm(void);

/* Kind of call that failed since fault_arm. */
typedef enum fault_kind { FAULT_NONE, FAULT_MEMORY, FAULT_THREAD } fault_kind;
fault_kind fault_fired(void);

int64_t fault_live(void);  /* allocated blocks of all threads */
int64_t fault_calls(void); /* allocations so far of all threads, marked or not */
int64_t fault_bytes(void); /* of the allocated blocks, as the allocator rounds them up */
int64_t fault_peak(void);  /* largest fault_bytes since fault_arm */

#endif
