/* A device whose streams are queues that the test runs, one operation at a time, in any order that the events allow. It
 * has memory, streams and events, and nothing that computes: writes and checks of memory are given to streams by the
 * test. What must not be is counted as wrong and printed: memory that is touched before it is usable or after it was
 * freed; other bytes than were written; a call for a stream that was destroyed, or for one that is being captured.
 * Apart from late.h, since its memory comes and goes in the order of streams, and the test says what runs when. */
#ifndef TESTS_QUEUE_DEVICE_H
#define TESTS_QUEUE_DEVICE_H

#include "device/device.h"

enum { QUEUE_STREAMS = 16 };

typedef struct queue_device queue_device;
queue_device *queue_device_new(uint64_t seed);
void queue_device_free(queue_device *q); /* runs what is left first */
rs_device *queue_device_of(queue_device *q);

/* Gives the stream a write, or a check, of memory: every `step`-th byte by address. stream NULL: the legacy default
 * stream. */
void queue_write(queue_device *q, void *stream, void *memory, size_t bytes, size_t step, uint8_t byte);
void queue_check(queue_device *q, void *stream, void *memory, size_t bytes, size_t step, uint8_t byte);

/* later comes after what earlier has now, by the test: not counted. */
void queue_order(queue_device *q, void *earlier, void *later);

/* Runs up to n operations; returns how many could be run. */
int64_t queue_run(queue_device *q, int64_t n);
/* From now on that stream waits, until something else is set; NULL: none. */
void queue_hold(queue_device *q, void *stream);
void queue_capture(queue_device *q, void *stream, bool captured);
/* The k-th call from now on fails, k = 0 the next one; -1: none. */
typedef enum queue_call {
  QUEUE_ALLOC,
  QUEUE_RECORD,
  QUEUE_WAIT,
  QUEUE_SYNCHRONIZE,
  QUEUE_EVENT,
  QUEUE_STREAM,
  QUEUE_CALLS
} queue_call;
void queue_fail(queue_device *q, queue_call call, int64_t k);
void queue_ignore_waits(queue_device *q);        /* they succeed and do nothing */
void queue_limit(queue_device *q, size_t bytes); /* of memory that is allocated at one time, as the host sees it */

typedef struct queue_counts {
  int64_t wrong;
  int64_t calls[QUEUE_CALLS];
  int64_t frees, queries, all; /* calls of the table */
  size_t live, peak;           /* bytes of memory, as the host sees it */
  int64_t streams, events;     /* that there are */
} queue_counts;
/* Called with false before and with true after the device takes memory for itself; NULL: nobody is. */
void queue_mark(queue_device *q, void (*mark)(bool counts));
queue_counts queue_count(const queue_device *q);
/* The piece of memory around an address: its first byte, *bytes how many; NULL: none that is allocated. */
char *queue_piece(const queue_device *q, const void *at, size_t *bytes);

#endif
