/* A trace in Chrome's format. A step is a complete event ("X"), an edge a flow ("s" to "f") from the record to the
 * wait. Viewers tie a flow to the step that it begins or ends in, so records and waits last a nanosecond at least. */
#include "bench/trace/trace.h"

#include "bench/cli/json.h"

#define LEAST 0.001 /* us */

/* Processes of the format: GPUs by number, from 1 on; 0: the CPU. */
static int process_of(const trace_track *track) { return track->gpu + 1; }

static void open_event(json *j, const char *phase, const char *add_name, int process, int64_t thread) {
  cli_json_line(j);
  cli_json_open(j, NULL, '{');
  cli_json_string(j, "ph", phase);
  cli_json_string(j, "name", add_name);
  cli_json_int(j, "pid", process);
  cli_json_int(j, "tid", thread);
}

static void add_name(json *j, const char *what, const char *add_name, int process, int64_t thread) {
  open_event(j, "M", what, process, thread);
  cli_json_open(j, "args", '{');
  cli_json_string(j, "name", add_name);
  cli_json_close(j, '}');
  cli_json_close(j, '}');
}

static void add_tracks(json *j, const trace *t) {
  for (int64_t i = 0; i < t->ntracks; i++) {
    const trace_track *track = &t->track[i];
    char device[32] = "CPU";
    if (track->gpu != TRACE_CPU)
      snprintf(device, sizeof device, "GPU %d", track->gpu);
    if (i == 0 || t->track[i - 1].gpu != track->gpu)
      add_name(j, "process_name", device, process_of(track), 0);
    add_name(j, "thread_name", track->name, process_of(track), i + 1);
    open_event(j, "M", "thread_sort_index", process_of(track), i + 1);
    cli_json_open(j, "args", '{');
    cli_json_int(j, "sort_index", i);
    cli_json_close(j, '}');
    cli_json_close(j, '}');
  }
}

static void add_step(json *j, const trace *t, const trace_step *s) {
  static const char *const kinds[] = {"work", "record", "wait"};
  const rs_trace_step *is = &s->is;
  double time = s->end - s->begin;
  char text[TRACE_NAME];
  snprintf(text, sizeof text, is->round >= 0 ? "%s %lld" : "%s", is->name, (long long)is->round);
  open_event(j, "X", text, process_of(&t->track[s->track]), s->track + 1);
  cli_json_string(j, "cat", kinds[is->kind]);
  cli_json_time(j, "ts", s->begin);
  cli_json_time(j, "dur", time > LEAST ? time : LEAST);
  cli_json_open(j, "args", '{');
  if (is->rank >= 0)
    cli_json_int(j, "rank", is->rank);
  if (is->round >= 0)
    cli_json_int(j, "round", is->round);
  if (is->bytes >= 0)
    cli_json_int(j, "bytes", is->bytes);
  cli_json_close(j, '}');
  cli_json_close(j, '}');
}

static void add_flow(json *j, const trace *t, const trace_step *wait, int64_t id) {
  const trace_step *record = &t->step[wait->from];
  for (int end = 0; end < 2; end++) {
    const trace_step *s = end ? wait : record;
    open_event(j, end ? "f" : "s", wait->is.name, process_of(&t->track[s->track]), s->track + 1);
    cli_json_string(j, "cat", "edge");
    cli_json_int(j, "id", id);
    if (end)
      cli_json_string(j, "bp", "e");
    cli_json_time(j, "ts", end && s->end - LEAST > s->begin ? s->end - LEAST : s->begin);
    cli_json_close(j, '}');
  }
}

void trace_json(const trace *t, const char *title, const char *note, const char *path) {
  json j = {0};
  cli_json_open(&j, NULL, '{');
  cli_json_string(&j, "displayTimeUnit", "ns");
  cli_json_open(&j, "otherData", '{');
  cli_json_string(&j, "title", title);
  cli_json_string(&j, "time", note);
  cli_json_close(&j, '}');
  cli_json_open(&j, "traceEvents", '[');
  add_tracks(&j, t);
  for (int64_t i = 0; i < t->nsteps; i++) {
    add_step(&j, t, &t->step[i]);
    if (t->step[i].from >= 0)
      add_flow(&j, t, &t->step[i], i);
  }
  cli_json_close(&j, ']');
  cli_json_close(&j, '}');
  cli_json_write(&j, path);
}
