/* Tracing of the work that is given to streams, for a program that draws it and for a profiler (base/range.h). A tracer
 * is set in the device before anything is given to its streams, and taken away when nothing is. Without either, a call
 * here is two comparisons.
 *
 * A step is work on a stream - on the CPU, of the calling thread -, an event that is recorded, or a wait for one. It
 * begins before and ends after the calls that make it, so that a tracer can put events with timing around it. Steps may
 * be inside of others on the CPU. */
#ifndef RS_DEVICE_TRACE_H
#define RS_DEVICE_TRACE_H

#include "base/range.h"
#include "device/device.h"

typedef enum rs_trace_kind { RS_TRACE_WORK, RS_TRACE_RECORD, RS_TRACE_WAIT } rs_trace_kind;

typedef struct rs_trace_step {
  rs_trace_kind kind;
  const char *name;      /* of the work or the edge: a literal */
  const rs_event *event; /* recorded, or waited for */
  int64_t rank;          /* work: of one rank; -1: of all that are on the device */
  int64_t round, bytes;  /* work; -1: in no round, not known */
  int64_t peers;         /* work: messages of an exchange; -1: none, or not known */
} rs_trace_step;

/* Functions that any thread calls. end: of the step that began last, and has not ended, on the stream or thread. */
typedef struct rs_tracer {
  void (*begin)(struct rs_tracer *tracer, rs_device *device, void *stream, const rs_trace_step *step);
  void (*end)(struct rs_tracer *tracer, rs_device *device, void *stream);
} rs_tracer;

/* A record, a wait, or a call that has a range of its own. */
static inline void rs_trace_begin(rs_device *device, void *stream, const rs_trace_step *step) {
  if (device->tracer != NULL)
    device->tracer->begin(device->tracer, device, stream, step);
}
static inline void rs_trace_end(rs_device *device, void *stream) {
  if (device->tracer != NULL)
    device->tracer->end(device->tracer, device, stream);
}

/* Work: a step, and a range of the thread that gives it. The thread that begins it ends it. Nothing is written to
 * memory where nobody listens: it counts in an empty execute. */
void rs_trace_begin_work(rs_device *device, void *stream, const rs_trace_step *step);
void rs_trace_end_work(rs_device *device, void *stream);
static inline bool rs_trace_heard(const rs_device *device) {
  return device->tracer != NULL || atomic_load_explicit(&rs_ranges, memory_order_acquire) != NULL;
}
static inline void rs_trace_work(rs_device *device, void *stream, const char *name, int64_t round, int64_t bytes) {
  if (rs_trace_heard(device))
    rs_trace_begin_work(device, stream, &(rs_trace_step){RS_TRACE_WORK, name, NULL, -1, round, bytes, -1});
}
static inline void rs_trace_worked(rs_device *device, void *stream) {
  if (rs_trace_heard(device))
    rs_trace_end_work(device, stream);
}

#endif
