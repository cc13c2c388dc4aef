/* Records the steps of a trace. */
#include "bench/trace/trace.h"
#include "bench/launch/gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for one more element: doubles the array at powers of two. */
static void *grow_array(void *at, int64_t n, size_t element) {
  return n & (n - 1) ? at : cli_realloc(at, n > 0 ? 2 * n : 1, element);
}

static int gpu_of(const rs_device *device) { return device->type == RESHARD_DEVICE_CPU ? TRACE_CPU : device->index; }

static trace_track *find_track(trace *t, const rs_device *device, const void *stream) {
  int gpu = gpu_of(device);
  for (int64_t i = 0; i < t->ntracks; i++)
    if (t->track[i].gpu == gpu &&
        (gpu == TRACE_CPU ? pthread_equal(t->track[i].thread, pthread_self()) : t->track[i].stream == stream))
      return &t->track[i];
  t->track = grow_array(t->track, t->ntracks, sizeof *t->track);
  trace_track *track = &t->track[t->ntracks++];
  *track = (trace_track){.gpu = gpu, .stream = stream, .thread = pthread_self()};
  return track;
}

static rs_event *record_timing(rs_device *device, void *stream) {
  rs_event *event = NULL;
  CLI_TRY("trace: ", gpu_time_create(device, &event));
  CLI_TRY("trace: ", device->streams->event_record(device, event, stream));
  return event;
}

static int64_t find_record(const trace *t, const rs_event *event) {
  int64_t i = t->nsteps - 1;
  while (i >= 0 && !(t->step[i].is.kind == RS_TRACE_RECORD && t->step[i].is.event == event))
    i--;
  return i;
}

static void begin_step(rs_tracer *tracer, rs_device *device, void *stream, const rs_trace_step *is) {
  trace *t = (trace *)tracer;
  trace_step step = {.is = *is, .from = -1};
  if (gpu_of(device) != TRACE_CPU)
    step.timing[0] = record_timing(device, stream);
  pthread_mutex_lock(&t->lock);
  trace_track *track = find_track(t, device, stream);
  if (is->kind == RS_TRACE_WAIT && track->gpu == TRACE_CPU && track->depth == 0) { /* the caller's, of nothing drawn */
    track->passed++;
    pthread_mutex_unlock(&t->lock);
    return;
  }
  if (track->depth == TRACE_DEPTH)
    cli_exit(EXIT_FAILED, "trace: steps are more than %d deep", TRACE_DEPTH);
  if (track->name[0] == '\0' && is->kind == RS_TRACE_WORK && is->rank >= 0 && track->gpu == TRACE_CPU)
    snprintf(track->name, sizeof track->name, "rank %lld", (long long)is->rank);
  if (is->kind == RS_TRACE_WAIT)
    step.from = find_record(t, is->event);
  step.track = track - t->track;
  step.depth = track->depth;
  step.begin = rs_seconds();
  track->open[track->depth++] = t->nsteps;
  t->step = grow_array(t->step, t->nsteps, sizeof *t->step);
  t->step[t->nsteps++] = step;
  pthread_mutex_unlock(&t->lock);
}

static void end_step(rs_tracer *tracer, rs_device *device, void *stream) {
  trace *t = (trace *)tracer;
  double now = rs_seconds();
  pthread_mutex_lock(&t->lock);
  trace_track *track = find_track(t, device, stream);
  if (track->depth == 0 && track->passed > 0) {
    track->passed--;
    pthread_mutex_unlock(&t->lock);
    return;
  }
  trace_step *step = &t->step[track->open[--track->depth]];
  step->end = now;
  if (track->gpu != TRACE_CPU && step->is.kind != RS_TRACE_RECORD)
    step->timing[1] = record_timing(device, stream);
  pthread_mutex_unlock(&t->lock);
}

trace *trace_create(void) {
  trace *t = cli_alloc(1, sizeof *t);
  t->tracer = (rs_tracer){begin_step, end_step};
  pthread_mutex_init(&t->lock, NULL);
  return t;
}

static struct trace_gpu *find_gpu(const trace *t, int index) {
  for (int64_t i = 0; i < t->ngpus; i++)
    if (t->gpu[i].index == index)
      return &t->gpu[i];
  return NULL;
}

void trace_base(trace *t, rs_device *device, void *stream) {
  pthread_mutex_lock(&t->lock);
  if (gpu_of(device) != TRACE_CPU && find_gpu(t, device->index) == NULL) {
    t->gpu = grow_array(t->gpu, t->ngpus, sizeof *t->gpu);
    t->gpu[t->ngpus++] = (struct trace_gpu){device->index, device, record_timing(device, stream), stream};
  }
  pthread_mutex_unlock(&t->lock);
}

void trace_name(trace *t, const rs_device *device, const void *stream, const char *name) {
  trace_track *track = find_track(t, device, stream);
  snprintf(track->name, sizeof track->name, "%s", name);
}

void trace_start(trace *t, rs_device *device) {
  if (device->tracer != NULL)
    return; /* it was among those before */
  t->device = grow_array(t->device, t->ndevices, sizeof *t->device);
  t->device[t->ndevices++] = device;
  t->base = rs_seconds();
  device->tracer = &t->tracer;
}

/* --- The end ----------------------------------------------------------------------------------------------------- */

/* Microseconds in whole nanoseconds, as they are written: sums of them agree then. */
static double whole_ns(double seconds) { return 1e-3 * round(1e9 * seconds); }

static void read_times(trace *t) {
  for (int64_t i = 0; i < t->nsteps; i++) {
    trace_step *s = &t->step[i];
    const struct trace_gpu *gpu = find_gpu(t, t->track[s->track].gpu);
    double seconds[2] = {s->begin - t->base, s->end - t->base};
    for (int k = 0; k < 2 && gpu != NULL; k++)
      if (s->timing[k] != NULL)
        CLI_TRY("trace: ", gpu_elapsed(gpu->base, s->timing[k], &seconds[k]));
    s->begin = fmax(0, whole_ns(seconds[0])); /* a stream without work comes to a wait before time begins */
    s->end = fmax(s->begin, whole_ns(gpu != NULL && s->timing[1] == NULL ? seconds[0] : seconds[1]));
    for (int k = 0; k < 2 && gpu != NULL; k++)
      if (s->timing[k] != NULL)
        gpu->device->streams->event_destroy(gpu->device, s->timing[k]);
  }
}

/* Time 0 by the host's clock; of a GPU from an event now, which the host waits for. */
static double find_origin(trace *t) {
  double since = 0;
  if (t->ngpus == 0)
    return t->base;
  struct trace_gpu *gpu = &t->gpu[0];
  rs_event *now = record_timing(gpu->device, gpu->stream);
  CLI_TRY("trace: ", gpu->device->streams->synchronize(gpu->device, gpu->stream));
  double host = rs_seconds();
  CLI_TRY("trace: ", gpu_elapsed(gpu->base, now, &since));
  gpu->device->streams->event_destroy(gpu->device, now);
  return host - since;
}

/* A wait ends when its event has happened. Where the clock is coarser than that, or GPUs' clocks differ, it ends with
 * the record. */
static void order_times(trace *t) {
  for (int64_t i = 0; i < t->nsteps; i++)
    if (t->step[i].from >= 0)
      t->step[i].end = fmax(t->step[i].end, t->step[t->step[i].from].begin);
}

/* Names a track. The library's streams are named for their work, "pack" or "move, unpack"; the caller's too: "rank 3:
 * move". */
static void name_track(trace *t, trace_track *track, int64_t number) {
  bool mine = track->name[0] != '\0', any = false;
  for (int64_t i = 0; i < t->nsteps; i++) {
    const trace_step *s = &t->step[i];
    if (s->track != number || s->is.kind != RS_TRACE_WORK || track->gpu == TRACE_CPU ||
        strstr(track->name, s->is.name) != NULL)
      continue;
    size_t used = strlen(track->name);
    snprintf(track->name + used, sizeof track->name - used, "%s%s", any ? ", " : mine ? ": " : "", s->is.name);
    any = true;
  }
  if (!any && !mine && track->gpu == TRACE_CPU) /* ranks have an execute, and with it a name */
    snprintf(track->name, sizeof track->name, "copy thread %lld", (long long)++t->helpers);
  else if (!any && !mine)
    snprintf(track->name, sizeof track->name, "stream");
}

static int track_role(const trace_track *track) {
  static const char *const roles[] = {"rank", "pack", "move", "copy", "unpack", "self_copy"};
  int i = 0;
  while (i < 6 && strncmp(track->name, roles[i], strlen(roles[i])) != 0)
    i++;
  return i;
}

static int compare_tracks(const void *a, const void *b) {
  const trace_track *x = a, *y = b;
  if (x->gpu != y->gpu)
    return x->gpu < y->gpu ? -1 : 1;
  int by_role = track_role(x) - track_role(y),
      by_length = (int)strlen(x->name) - (int)strlen(y->name); /* rank 2, rank 10 */
  return by_role != 0 ? by_role : by_length != 0 ? by_length : strcmp(x->name, y->name);
}

/* Sorts the tracks; depth, which has no other use any more, keeps a track's number over the sort. */
static void sort_tracks(trace *t) {
  int64_t *place = cli_alloc(t->ntracks, sizeof *place);
  for (int64_t i = 0; i < t->ntracks; i++)
    t->track[i].depth = (int)i;
  qsort(t->track, (size_t)t->ntracks, sizeof *t->track, compare_tracks);
  for (int64_t i = 0; i < t->ntracks; i++)
    place[t->track[i].depth] = i;
  for (int64_t i = 0; i < t->nsteps; i++)
    t->step[i].track = place[t->step[i].track];
  free(place);
}

void trace_stop(trace *t) {
  for (int64_t i = 0; i < t->ndevices; i++) {
    t->device[i]->tracer = NULL;
    CLI_TRY("trace: ", t->device[i]->streams->finish(t->device[i])); /* our events behind the last work, too */
  }
  t->origin = find_origin(t);
  read_times(t);
  order_times(t);
  for (int64_t i = 0; i < t->ntracks; i++)
    name_track(t, &t->track[i], i);
  sort_tracks(t);
  for (int64_t i = 0; i < t->ngpus; i++)
    t->gpu[i].device->streams->event_destroy(t->gpu[i].device, t->gpu[i].base);
  t->ndevices = t->ngpus = 0;
}

void trace_destroy(trace *t) {
  if (t == NULL)
    return;
  pthread_mutex_destroy(&t->lock);
  for (int64_t i = 0; i < t->nnames; i++)
    free(t->names[i]);
  free(t->names);
  free(t->step);
  free(t->track);
  free(t->gpu);
  free(t->device);
  free(t);
}
