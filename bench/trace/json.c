/* A trace in Chrome's format. A step is a complete event ("X"), an edge a flow ("s" to "f") from the record to the
 * wait. Viewers tie a flow to the step that it begins or ends in, so records and waits last a nanosecond at least. */
#include "bench/trace/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAST 0.001 /* us */

/* Processes of the format: GPUs by number, from 1 on; 0: the CPU. Those of the next process have larger numbers. */
static int process_of(const trace_track *track) { return 1024 * track->process + track->gpu + 1; }

static void open_event(rs_json *j, const char *phase, const char *add_name, int process, int64_t thread) {
  rs_json_line(j, 2);
  rs_json_open(j, NULL, '{');
  rs_json_string(j, "ph", phase);
  rs_json_string(j, "name", add_name);
  rs_json_int(j, "pid", process);
  rs_json_int(j, "tid", thread);
}

static void add_name(rs_json *j, const char *what, const char *add_name, int process, int64_t thread) {
  open_event(j, "M", what, process, thread);
  rs_json_open(j, "args", '{');
  rs_json_string(j, "name", add_name);
  rs_json_close(j, '}');
  rs_json_close(j, '}');
}

static void add_tracks(rs_json *j, const trace *t) {
  for (int64_t i = 0; i < t->ntracks; i++) {
    const trace_track *track = &t->track[i];
    char device[TRACE_NAME];
    if (i == 0 || !trace_same_device(&t->track[i - 1], track))
      add_name(j, "process_name", trace_device_text(t, track, device), process_of(track), 0);
    add_name(j, "thread_name", track->name, process_of(track), i + 1);
    open_event(j, "M", "thread_sort_index", process_of(track), i + 1);
    rs_json_open(j, "args", '{');
    rs_json_int(j, "sort_index", i);
    rs_json_close(j, '}');
    rs_json_close(j, '}');
  }
}

static void add_step(rs_json *j, const trace *t, const trace_step *s) {
  static const char *const kinds[] = {"work", "record", "wait"};
  const rs_trace_step *is = &s->is;
  double time = s->end - s->begin;
  char text[TRACE_NAME];
  snprintf(text, sizeof text, is->round >= 0 ? "%s %lld" : "%s", is->name, (long long)is->round);
  open_event(j, "X", text, process_of(&t->track[s->track]), s->track + 1);
  rs_json_string(j, "cat", kinds[is->kind]);
  rs_json_time(j, "ts", s->begin);
  rs_json_time(j, "dur", time > LEAST ? time : LEAST);
  rs_json_open(j, "args", '{');
  if (is->rank >= 0)
    rs_json_int(j, "rank", is->rank);
  if (is->round >= 0)
    rs_json_int(j, "round", is->round);
  if (is->bytes >= 0)
    rs_json_int(j, "bytes", is->bytes);
  rs_json_close(j, '}');
  rs_json_close(j, '}');
}

static void add_flow(rs_json *j, const trace *t, const trace_step *wait, int64_t id) {
  const trace_step *record = &t->step[wait->from];
  for (int end = 0; end < 2; end++) {
    const trace_step *s = end ? wait : record;
    open_event(j, end ? "f" : "s", wait->is.name, process_of(&t->track[s->track]), s->track + 1);
    rs_json_string(j, "cat", "edge");
    rs_json_int(j, "id", id);
    if (end)
      rs_json_string(j, "bp", "e");
    rs_json_time(j, "ts", end ? fmax(fmax(s->begin, s->end - LEAST), record->begin) : s->begin);
    rs_json_close(j, '}');
  }
}

/* --- Counters ----------------------------------------------------------------------------------------------------- */

/* A change of what a device moves: a step begins, or ends and has moved its bytes. */
typedef struct change {
  int process;
  double at, rate; /* us, GB/s */
  int64_t bytes;
} change;

static int compare_changes(const void *a, const void *b) {
  const change *x = a, *y = b;
  return x->process != y->process ? (x->process > y->process) - (x->process < y->process)
                                  : (x->at > y->at) - (x->at < y->at);
}

/* Whether a step moves bytes itself: work that no other work is inside of, and that is no whole execute. */
static bool is_move(const trace *t, int64_t i) {
  const trace_step *s = &t->step[i];
  if (s->is.kind != RS_TRACE_WORK || s->is.bytes <= 0 || s->end <= s->begin || strcmp(s->is.name, "execute") == 0)
    return false;
  for (int64_t k = i + 1; k < t->nsteps; k++)
    if (t->step[k].track == s->track && t->step[k].begin >= s->end)
      return true;
    else if (t->step[k].track == s->track && t->step[k].depth > s->depth && t->step[k].is.bytes > 0 &&
             t->step[k].is.kind == RS_TRACE_WORK)
      return false;
  return true;
}

static void open_counter(rs_json *j, const char *name, int process, double at) {
  rs_json_line(j, 2);
  rs_json_open(j, NULL, '{');
  rs_json_string(j, "ph", "C");
  rs_json_string(j, "name", name);
  rs_json_int(j, "pid", process);
  rs_json_time(j, "ts", at);
  rs_json_open(j, "args", '{');
}

static void close_counter(rs_json *j) {
  rs_json_close(j, '}');
  rs_json_close(j, '}');
}

/* Tracks of each device: the bytes that its steps have moved, and GB/s of those under way. */
static void add_counters(rs_json *j, const trace *t) {
  change *changes = cli_alloc(2 * t->nsteps, sizeof *changes);
  int64_t n = 0, bytes = 0;
  double rate = 0;
  for (int64_t i = 0; i < t->nsteps; i++) {
    const trace_step *s = &t->step[i];
    if (!is_move(t, i))
      continue;
    int process = process_of(&t->track[s->track]);
    double gbps = 1e-3 * (double)s->is.bytes / (s->end - s->begin);
    changes[n++] = (change){process, s->begin, gbps, 0};
    changes[n++] = (change){process, s->end, -gbps, s->is.bytes};
  }
  qsort(changes, (size_t)n, sizeof *changes, compare_changes);
  for (int64_t i = 0; i < n; i++) {
    if (i == 0 || changes[i].process != changes[i - 1].process)
      rate = 0, bytes = 0;
    rate += changes[i].rate;
    bytes += changes[i].bytes;
    if (i + 1 < n && changes[i + 1].process == changes[i].process && changes[i + 1].at == changes[i].at)
      continue; /* as it is after all changes of the moment */
    open_counter(j, "GB/s", changes[i].process, changes[i].at);
    rs_json_real(j, "GB/s", fabs(rate) < 1e-9 ? 0 : rate);
    close_counter(j);
    open_counter(j, "bytes", changes[i].process, changes[i].at);
    rs_json_int(j, "bytes", bytes);
    close_counter(j);
  }
  free(changes);
}

void trace_json(const trace *t, const char *title, const char *note, const char *path) {
  rs_json j = {.text.grows = true};
  rs_json_open(&j, NULL, '{');
  rs_json_string(&j, "displayTimeUnit", "ns");
  rs_json_open(&j, "otherData", '{');
  rs_json_string(&j, "title", title);
  rs_json_string(&j, "time", note);
  rs_json_close(&j, '}');
  rs_json_open(&j, "traceEvents", '[');
  add_tracks(&j, t);
  for (int64_t i = 0; i < t->nsteps; i++) {
    add_step(&j, t, &t->step[i]);
    if (t->step[i].from >= 0)
      add_flow(&j, t, &t->step[i], i);
  }
  add_counters(&j, t);
  rs_json_close(&j, ']');
  rs_json_close(&j, '}');
  cli_write_json(path, &j);
}
