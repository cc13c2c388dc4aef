/* A trace in Chrome's format. A step is a complete event ("X"), an edge a flow ("s" to "f") from the record to the
 * wait. Viewers tie a flow to the step that it begins or ends in, so records and waits last a nanosecond at least. */
#include "bench/trace/trace.h"

#include <math.h>

#define LEAST 0.001 /* us */

/* Processes of the format: GPUs by number, from 1 on; 0: the CPU. */
static int process_of(const trace_track *track) { return track->gpu + 1; }

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
    char device[32] = "CPU";
    if (track->gpu != TRACE_CPU)
      snprintf(device, sizeof device, "GPU %d", track->gpu);
    if (i == 0 || t->track[i - 1].gpu != track->gpu)
      add_name(j, "process_name", device, process_of(track), 0);
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
  rs_json_close(&j, ']');
  rs_json_close(&j, '}');
  cli_write_json(path, &j);
}
