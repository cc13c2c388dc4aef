/* Traces of several processes as one. */
#include "bench/trace/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct packed_head {
  int64_t ntracks, nsteps;
  double origin;
} packed_head;

typedef struct packed_track {
  int32_t gpu;
  char name[2 * TRACE_NAME];
} packed_track;

typedef struct packed_step {
  int32_t kind, depth;
  int64_t rank, round, bytes, peers, track, from;
  double begin, end;
  char name[TRACE_NAME];
} packed_step;

void trace_pack(const trace *t, rs_text *out) {
  const packed_head head = {t->ntracks, t->nsteps, t->origin};
  cli_add_bytes(out, (const char *)&head, sizeof head);
  for (int64_t i = 0; i < t->ntracks; i++) {
    packed_track track = {.gpu = t->track[i].gpu};
    snprintf(track.name, sizeof track.name, "%s", t->track[i].name);
    cli_add_bytes(out, (const char *)&track, sizeof track);
  }
  for (int64_t i = 0; i < t->nsteps; i++) {
    const trace_step *s = &t->step[i];
    packed_step step = {(int32_t)s->is.kind,
                        s->depth,
                        s->is.rank,
                        s->is.round,
                        s->is.bytes,
                        s->is.peers,
                        s->track,
                        s->from,
                        s->begin,
                        s->end,
                        ""};
    snprintf(step.name, sizeof step.name, "%s", s->is.name);
    cli_add_bytes(out, (const char *)&step, sizeof step);
  }
}

/* The name of steps of others, which lives as long as the trace. */
static const char *keep_name(trace *t, const char *name) {
  for (int64_t i = 0; i < t->nnames; i++)
    if (strcmp(t->names[i], name) == 0)
      return t->names[i];
  t->names = cli_realloc(t->names, t->nnames + 1, sizeof *t->names);
  return t->names[t->nnames++] = cli_strdup(name);
}

void trace_join(trace *t, int process, const char *bytes, size_t n, double offset) {
  packed_head head;
  memcpy(&head, bytes, sizeof head);
  const char *track_at = bytes + sizeof head;
  const char *step_at = track_at + (size_t)head.ntracks * sizeof(packed_track);
  if (n != sizeof head + (size_t)head.ntracks * sizeof(packed_track) + (size_t)head.nsteps * sizeof(packed_step))
    cli_exit(EXIT_FAILED, "trace: process %d has shown %zu bytes", process, n);
  const double shift = 1e6 * (head.origin + offset - t->origin);
  t->track = cli_realloc(t->track, t->ntracks + head.ntracks, sizeof *t->track);
  t->step = cli_realloc(t->step, t->nsteps + head.nsteps, sizeof *t->step);
  for (int64_t i = 0; i < head.ntracks; i++) {
    packed_track track;
    memcpy(&track, track_at + (size_t)i * sizeof track, sizeof track);
    trace_track *made = &t->track[t->ntracks + i];
    *made = (trace_track){.process = process, .gpu = track.gpu};
    memcpy(made->name, track.name, sizeof made->name);
  }
  for (int64_t i = 0; i < head.nsteps; i++) {
    packed_step s;
    memcpy(&s, step_at + (size_t)i * sizeof s, sizeof s);
    t->step[t->nsteps + i] =
        (trace_step){.is = {(rs_trace_kind)s.kind, keep_name(t, s.name), NULL, s.rank, s.round, s.bytes, s.peers},
                     .track = t->ntracks + s.track,
                     .depth = s.depth,
                     .begin = s.begin + shift,
                     .end = s.end + shift,
                     .from = s.from < 0 ? -1 : t->nsteps + s.from};
  }
  t->ntracks += head.ntracks;
  t->nsteps += head.nsteps;
  t->processes = t->processes > process ? t->processes : process + 1;
}

void trace_joined(trace *t) {
  double first = INFINITY;
  for (int64_t i = 0; i < t->nsteps; i++)
    first = fmin(first, t->step[i].begin);
  for (int64_t i = 0; i < t->nsteps; i++) { /* in whole nanoseconds, as they are written */
    t->step[i].begin = 1e-3 * round(1e3 * (t->step[i].begin - first));
    t->step[i].end = 1e-3 * round(1e3 * (t->step[i].end - first));
  }
}

bool trace_same_device(const trace_track *a, const trace_track *b) {
  return a->process == b->process && a->gpu == b->gpu;
}

const char *trace_device_text(const trace *t, const trace_track *track, char text[TRACE_NAME]) {
  char process[32] = "";
  if (t->processes > 0)
    snprintf(process, sizeof process, "process %d, ", track->process);
  if (track->gpu == TRACE_CPU)
    snprintf(text, TRACE_NAME, "%sCPU", process);
  else
    snprintf(text, TRACE_NAME, "%sGPU %d", process, track->gpu);
  return text;
}
