/* Tracing of the work that is given to streams, for a program that draws it. A tracer is set in the device before
 * anything is given to its streams, and taken away when nothing is. Without one, a call here is a comparison.
 *
 * A step is work on a stream - on the CPU, of the calling thread -, an event that is recorded, or a wait for one. It
 * begins before and ends after the calls that make it, so that a tracer can put events with timing around it. Steps may
 * be inside of others on the CPU. */
#ifndef RS_DEVICE_TRACE_H
#define RS_DEVICE_TRACE_H

#include "device/device.h"

typedef enum rs_trace_kind { RS_TRACE_WORK, RS_TRACE_RECORD, RS_TRACE_WAIT } rs_trace_kind;

typedef struct rs_trace_step {
  rs_trace_kind kind;
  const char *name;      /* of the work or the edge: a literal */
  const rs_event *event; /* recorded, or waited for */
  int64_t rank;          /* work: of one rank; -1: of all that are on the device */
  int64_t round, bytes;  /* work; -1: in no round, not known */
} rs_trace_step;

/* Functions that any thread calls. end: of the step that began last, and has not ended, on the stream or thread. */
typedef struct rs_tracer {
  void (*begin)(struct rs_tracer *tracer, rs_device *device, void *stream, const rs_trace_step *step);
  void (*end)(struct rs_tracer *tracer, rs_device *device, void *stream);
} rs_tracer;

static inline void rs_trace_begin(rs_device *device, void *stream, const rs_trace_step *step) {
  if (device->tracer != NULL)
    device->tracer->begin(device->tracer, device, stream, step);
}
/* Begins work. Nothing is written to memory without a tracer: it counts in an empty execute. */
static inline void rs_trace_work(rs_device *device, void *stream, const char *name, int64_t rank, int64_t round,
                                 int64_t bytes) {
  if (device->tracer != NULL)
    rs_trace_begin(device, stream, &(rs_trace_step){RS_TRACE_WORK, name, NULL, rank, round, bytes});
}
static inline void rs_trace_end(rs_device *device, void *stream) {
  if (device->tracer != NULL)
    device->tracer->end(device->tracer, device, stream);
}

#endif
