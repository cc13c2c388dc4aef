/* A trace: the work that an execute launches on streams, and its times. A recorder behind the library's tracer
 * (host/device/trace.h).
 *
 * A track is a stream of a GPU, or a thread of the CPU, where calls return when the work is done. Times of a GPU are
 * those of events that the trace records itself, from one event that all GPUs have waited for. Traces of several
 * processes are joined in one, by one clock. */
#ifndef BENCH_TRACE_H
#define BENCH_TRACE_H

#include "bench/cli/util.h"

#include "device/trace.h"

#include <pthread.h>

enum { TRACE_NAME = 64, TRACE_DEPTH = 8, TRACE_CPU = -1 };

typedef struct trace_step {
  rs_trace_step is;
  int64_t track;
  int depth;           /* inside of how many others */
  double begin, end;   /* us */
  int64_t from;        /* of a wait: the step that recorded the event; -1: none since the trace began */
  rs_event *timing[2]; /* GPU */
} trace_step;

typedef struct trace_track {
  int process; /* 0: of this one, or the first */
  int gpu;     /* or TRACE_CPU */
  char name[2 * TRACE_NAME];
  const void *stream;
  pthread_t thread;
  int64_t open[TRACE_DEPTH];
  int depth;
  int passed; /* waits outside of all work, which are left out */
} trace_track;

typedef struct trace {
  rs_tracer tracer;
  pthread_mutex_t lock;
  int64_t nsteps, ntracks, ngpus, ndevices, helpers; /* helpers: copy threads of the CPU */
  trace_step *step;
  trace_track *track;
  struct trace_gpu {
    int index;
    rs_device *device;
    rs_event *base;
    void *stream;
  } * gpu;
  rs_device **device; /* that have the tracer */
  double base;        /* CPU */
  double origin;      /* time 0, by rs_seconds */
  int processes;      /* that are in it; 0: this one alone */
  int64_t nnames;     /* of steps of other processes; owned */
  char **names;
} trace;

trace *trace_create(void);
void trace_destroy(trace *t); /* NULL is allowed */
/* Sets time 0 of the device's GPU to the work that is launched on stream from here on. Called for the first GPU's
 * stream first; the other GPUs' streams have waited for it. Does nothing on the CPU. */
void trace_base(trace *t, rs_device *device, void *stream);
/* Names the track of a stream of the caller's. */
void trace_name(trace *t, const rs_device *device, const void *stream, const char *name);
/* Records all work of the device from now on, until trace_stop. The device is idle. */
void trace_start(trace *t, rs_device *device);
/* Ends the recording of idle devices: reads the times, and sorts the tracks by GPU, the caller's streams first. */
void trace_stop(trace *t);

/* A trace that has stopped as bytes, for another process. */
void trace_pack(const trace *t, rs_text *out);
/* Adds the trace of another process, whose clock is `offset` seconds behind this one's. */
void trace_join(trace *t, int process, const char *bytes, size_t n, double offset);
/* Begins time with the first step. Called when all have been added. */
void trace_joined(trace *t);
/* Tells whether two tracks are of one device of one process; names it: "CPU", "process 2, GPU 0". */
bool trace_same_device(const trace_track *a, const trace_track *b);
const char *trace_device_text(const trace *t, const trace_track *track, char text[TRACE_NAME]);

/* Write the trace to a file: in Chrome's format, and as a picture. title names the workload, note the ranks and
 * devices. */
void trace_json(const trace *t, const char *title, const char *note, const char *path);
void trace_svg(const trace *t, const char *title, const char *note, const char *path);

#endif
