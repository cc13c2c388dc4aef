/* A device with streams on the CPU, for tests of what is built on the tables of rs_device: what a stream is given is
 * done late. A seeded scheduler respects only the order of each stream and the events, and likes to hold one stream
 * back. No checker of races: a missing edge shows as wrong data under some seed. (The virtual GPU has that and more, at
 * the level of the CUDA runtime.) Apart from queue.h, since it computes, on several devices that the threads of ranks
 * use at the same time, and allocates at once. */
#ifndef TESTS_LATE_DEVICE_H
#define TESTS_LATE_DEVICE_H

#include "device/device.h"

/* n devices of one machine; all that follows is about the machine. Between open and close. */
void late_open(int n, uint64_t seed, reshard_device *devices);
/* Runs what is left. Returns the number of things made and not destroyed, or used in a wrong way (each with a line on
 * standard error). */
int late_close(void);

typedef struct late_counts {
  int64_t allocs, syncs; /* calls that allocate on a device or create; that wait for one */
  int64_t records, waits, runs, copies;
} late_counts;
late_counts late_count(void);
/* Operations that streams have still to do. */
int64_t late_pending(void);

/* From now on devices do not reach each other's memory, or do; what copies or runs does not care. */
void late_set_peers(bool reach);

/* The k-th call from here (from 1) that can fail fails, once or from then on; 0: none. */
void late_fail(int64_t k, bool from_then_on);
int64_t late_failed(void);
/* The k-th record or wait from here (from 1) is left out; 0: none. */
void late_skip(int64_t k);

#endif
