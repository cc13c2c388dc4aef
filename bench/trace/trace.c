/* The recorder. */
#include "bench/trace/trace.h"
#include "bench/launch/gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Room for one more: doubles at powers of two. */
static void *grown(void *at, int64_t n, size_t element) {
  return n & (n - 1) ? at : cli_realloc(at, n > 0 ? 2 * n : 1, element);
}

static int gpu_of(const rs_device *device) { return device->streams->asynchronous ? device->index : TRACE_CPU; }

static trace_lane *lane_of(trace *t, const rs_device *device, const void *stream) {
  int gpu = gpu_of(device);
  for (int64_t i = 0; i < t->nlanes; i++)
    if (t->lane[i].gpu == gpu &&
        (gpu == TRACE_CPU ? pthread_equal(t->lane[i].thread, pthread_self()) : t->lane[i].stream == stream))
      return &t->lane[i];
  t->lane = grown(t->lane, t->nlanes, sizeof *t->lane);
  trace_lane *lane = &t->lane[t->nlanes++];
  *lane = (trace_lane){.gpu = gpu, .stream = stream, .thread = pthread_self()};
  return lane;
}

static rs_event *mark(rs_device *device, void *stream) {
  rs_event *event = NULL;
  CLI_TRY("trace: ", gpu_time_create(device, &event));
  CLI_TRY("trace: ", device->streams->event_record(device, event, stream));
  return event;
}

static int64_t recorded(const trace *t, const rs_event *event) {
  int64_t i = t->nsteps - 1;
  while (i >= 0 && !(t->step[i].is.kind == RS_TRACE_RECORD && t->step[i].is.event == event))
    i--;
  return i;
}

static void begin(rs_tracer *tracer, rs_device *device, void *stream, const rs_trace_step *is) {
  trace *t = (trace *)tracer;
  trace_step step = {.is = *is, .from = -1};
  if (device->streams->asynchronous)
    step.timing[0] = mark(device, stream);
  pthread_mutex_lock(&t->lock);
  trace_lane *lane = lane_of(t, device, stream);
  if (lane->depth == TRACE_DEPTH)
    cli_exit(EXIT_FAILED, "trace: steps are more than %d deep", TRACE_DEPTH);
  if (lane->name[0] == '\0' && is->kind == RS_TRACE_WORK && is->rank >= 0 && lane->gpu == TRACE_CPU)
    snprintf(lane->name, sizeof lane->name, "rank %lld", (long long)is->rank);
  if (is->kind == RS_TRACE_WAIT)
    step.from = recorded(t, is->event);
  step.lane = lane - t->lane;
  step.depth = lane->depth;
  step.begin = cli_seconds();
  lane->open[lane->depth++] = t->nsteps;
  t->step = grown(t->step, t->nsteps, sizeof *t->step);
  t->step[t->nsteps++] = step;
  pthread_mutex_unlock(&t->lock);
}

static void end(rs_tracer *tracer, rs_device *device, void *stream) {
  trace *t = (trace *)tracer;
  double now = cli_seconds();
  pthread_mutex_lock(&t->lock);
  trace_lane *lane = lane_of(t, device, stream);
  trace_step *step = &t->step[lane->open[--lane->depth]];
  step->end = now;
  if (device->streams->asynchronous && step->is.kind != RS_TRACE_RECORD)
    step->timing[1] = mark(device, stream);
  pthread_mutex_unlock(&t->lock);
}

trace *trace_create(void) {
  trace *t = cli_alloc(1, sizeof *t);
  t->tracer = (rs_tracer){begin, end};
  pthread_mutex_init(&t->lock, NULL);
  return t;
}

static struct trace_gpu *gpu_at(const trace *t, int index) {
  for (int64_t i = 0; i < t->ngpus; i++)
    if (t->gpu[i].index == index)
      return &t->gpu[i];
  return NULL;
}

void trace_base(trace *t, rs_device *device, void *stream) {
  pthread_mutex_lock(&t->lock);
  if (device->streams->asynchronous && gpu_at(t, device->index) == NULL) {
    t->gpu = grown(t->gpu, t->ngpus, sizeof *t->gpu);
    t->gpu[t->ngpus++] = (struct trace_gpu){device->index, device, mark(device, stream)};
  }
  pthread_mutex_unlock(&t->lock);
}

void trace_name(trace *t, const rs_device *device, const void *stream, const char *name) {
  trace_lane *lane = lane_of(t, device, stream);
  snprintf(lane->name, sizeof lane->name, "%s", name);
}

void trace_start(trace *t, rs_device *device) {
  if (device->tracer != NULL)
    return; /* it was among those before */
  t->device = grown(t->device, t->ndevices, sizeof *t->device);
  t->device[t->ndevices++] = device;
  t->base = cli_seconds();
  device->tracer = &t->tracer;
}

/* --- The end ------------------------------------------------------------------------------------------------------ */

static void read_times(trace *t) {
  for (int64_t i = 0; i < t->nsteps; i++) {
    trace_step *s = &t->step[i];
    const struct trace_gpu *gpu = gpu_at(t, t->lane[s->lane].gpu);
    double seconds[2] = {s->begin - t->base, s->end - t->base};
    for (int k = 0; k < 2 && gpu != NULL; k++)
      if (s->timing[k] != NULL)
        CLI_TRY("trace: ", gpu_elapsed(gpu->base, s->timing[k], &seconds[k]));
    s->begin = fmax(0, 1e6 * seconds[0]); /* a stream without work comes to a wait before time begins */
    s->end = fmax(s->begin, 1e6 * (gpu != NULL && s->timing[1] == NULL ? seconds[0] : seconds[1]));
    for (int k = 0; k < 2 && gpu != NULL; k++)
      if (s->timing[k] != NULL)
        gpu->device->streams->event_destroy(gpu->device, s->timing[k]);
  }
}

/* A lane of the library's is called by what it does: "pack", or "move, unpack". The caller's, too: "rank 3: move". */
static void name_lane(const trace *t, trace_lane *lane, int64_t number) {
  bool mine = lane->name[0] != '\0', any = false;
  for (int64_t i = 0; i < t->nsteps; i++) {
    const trace_step *s = &t->step[i];
    if (s->lane != number || s->is.kind != RS_TRACE_WORK || lane->gpu == TRACE_CPU ||
        strstr(lane->name, s->is.name) != NULL)
      continue;
    size_t used = strlen(lane->name);
    snprintf(lane->name + used, sizeof lane->name - used, "%s%s", any ? ", " : mine ? ": " : "", s->is.name);
    any = true;
  }
  if (!any && !mine)
    snprintf(lane->name, sizeof lane->name, "%s", lane->gpu == TRACE_CPU ? "thread" : "stream");
}

static int role(const trace_lane *lane) {
  static const char *const roles[] = {"rank", "pack", "move", "copy", "unpack", "keep"};
  int i = 0;
  while (i < 6 && strncmp(lane->name, roles[i], strlen(roles[i])) != 0)
    i++;
  return i;
}

static int in_order(const void *a, const void *b) {
  const trace_lane *x = a, *y = b;
  if (x->gpu != y->gpu)
    return x->gpu < y->gpu ? -1 : 1;
  int by_role = role(x) - role(y), by_length = (int)strlen(x->name) - (int)strlen(y->name); /* rank 2, rank 10 */
  return by_role != 0 ? by_role : by_length != 0 ? by_length : strcmp(x->name, y->name);
}

/* depth has no use any more: it carries a lane's number over the sort. */
static void sort_lanes(trace *t) {
  int64_t *place = cli_alloc(t->nlanes, sizeof *place);
  for (int64_t i = 0; i < t->nlanes; i++)
    t->lane[i].depth = (int)i;
  qsort(t->lane, (size_t)t->nlanes, sizeof *t->lane, in_order);
  for (int64_t i = 0; i < t->nlanes; i++)
    place[t->lane[i].depth] = i;
  for (int64_t i = 0; i < t->nsteps; i++)
    t->step[i].lane = place[t->step[i].lane];
  free(place);
}

void trace_stop(trace *t) {
  for (int64_t i = 0; i < t->ndevices; i++) {
    t->device[i]->tracer = NULL;
    CLI_TRY("trace: ", t->device[i]->streams->finish(t->device[i])); /* our events behind the last work, too */
  }
  read_times(t);
  for (int64_t i = 0; i < t->nlanes; i++)
    name_lane(t, &t->lane[i], i);
  sort_lanes(t);
  for (int64_t i = 0; i < t->ngpus; i++)
    t->gpu[i].device->streams->event_destroy(t->gpu[i].device, t->gpu[i].base);
  t->ndevices = t->ngpus = 0;
}

void trace_destroy(trace *t) {
  if (t == NULL)
    return;
  pthread_mutex_destroy(&t->lock);
  free(t->step);
  free(t->lane);
  free(t->gpu);
  free(t->device);
  free(t);
}
