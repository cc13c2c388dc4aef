#include "late.h"

#include "bench/cli/util.h"
#include "bench/verify/random.h"
#include "device/cpu/cpu.h"
#include "device/handle.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEVICES = 8 };

/* One record of an event. */
typedef struct point {
  bool done;
} point;

struct rs_event {
  int device;
  point *last; /* NULL: never recorded */
};

typedef enum kind { RUN, COPY, MOVE, RECORD, WAIT } kind;

typedef struct op {
  kind kind;
  int64_t n;
  rs_program **programs;
  rs_span *spans;
  point *point; /* may be NULL in a wait */
} op;

typedef struct stream {
  int device;
  bool destroyed;
  RS_VEC(op) ops;
  int64_t next;
} stream;

typedef struct late {
  rs_device base;
  struct reshard_device_s handle;
} late;

static struct {
  pthread_mutex_t lock;
  int n;
  late devices[MOST_DEVICES];
  rs_device *cpu;
  RS_VEC(stream *) streams;  /* the first n are the default streams */
  RS_VEC(rs_program *) old;  /* of recompile: may still be in use */
  RS_VEC(rs_program *) once; /* of recompile: the latest */
  RS_VEC(point *) points;
  rng random;
  stream *victim;
  int64_t alive, wrong;
  late_counts counts;
  int64_t fail, calls, failed, skip, edges;
  bool go_on, apart; /* apart: they do not reach each other */
} m = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void lock(void) { pthread_mutex_lock(&m.lock); }
static void unlock(void) { pthread_mutex_unlock(&m.lock); }

static void complain(const char *text) {
  fprintf(stderr, "late device: %s\n", text);
  m.wrong++;
}

static bool fails(void) {
  m.calls++;
  if (m.fail == 0 || m.calls < m.fail || (m.calls > m.fail && !m.go_on))
    return false;
  m.failed++;
  return true;
}

static reshard_status refuse(const char *call) { return rs_error(RESHARD_ERROR_SYSTEM, "late device: %s fails", call); }

#define OR_FAIL(call) \
  do { \
    lock(); \
    bool refused = fails(); \
    unlock(); \
    if (refused) \
      return refuse(call); \
  } while (0)

/* --- Streams ------------------------------------------------------------------------------------------------------ */

static int number_of(const rs_device *device) { return device->index; }

static stream *stream_of(rs_device *device, void *handle) {
  stream *s = handle != NULL ? handle : m.streams.at[number_of(device)];
  if (s->device != number_of(device) || s->destroyed)
    complain(s->destroyed ? "a stream that was destroyed" : "a stream of another device");
  return s;
}

static void give_operation(stream *s, op o) {
  if (rs_vec_reserve(&s->ops, s->ops.n + 1) != RESHARD_SUCCESS)
    abort();
  s->ops.at[s->ops.n++] = o;
}

static bool ready(const stream *s) {
  if (s->next == s->ops.n)
    return false;
  const op *o = &s->ops.at[s->next];
  return o->kind != WAIT || o->point == NULL || o->point->done;
}

static void do_op(op *o) {
  switch (o->kind) {
  case RUN: m.cpu->work->run(m.cpu, o->n, o->programs, NULL); break;
  case COPY:
  case MOVE: m.cpu->work->copy(m.cpu, o->n, o->spans, 0, NULL); break;
  case RECORD: o->point->done = true; break;
  case WAIT: break;
  }
  free(o->programs);
  free(o->spans);
}

/* To a stream that has something to do, or to itself. */
static void change_victim(void) {
  stream *before = m.victim;
  int64_t candidates = 0;
  for (int64_t i = 0; i < m.streams.n; i++)
    if (m.streams.at[i]->next < m.streams.at[i]->ops.n && rng_below(&m.random, ++candidates) == 0)
      m.victim = m.streams.at[i];
  if (rng_one_in(&m.random, 2))
    m.victim = before;
}

/* One operation of one stream, if any can go on. */
static bool late_step(void) {
  stream *found = NULL;
  int64_t candidates = 0;
  for (int64_t i = 0; i < m.streams.n; i++) {
    stream *s = m.streams.at[i];
    if (ready(s) && s != m.victim && rng_below(&m.random, ++candidates) == 0)
      found = s;
  }
  if (found == NULL && m.victim != NULL && ready(m.victim)) {
    found = m.victim;
    change_victim();
  }
  if (found == NULL)
    return false;
  do_op(&found->ops.at[found->next++]);
  if (found->next == found->ops.n)
    found->next = found->ops.n = 0;
  return true;
}

static void run_until(const stream *s) {
  while (s == NULL || s->next < s->ops.n)
    if (!late_step())
      break;
  if (s != NULL && s->next < s->ops.n)
    complain("a stream waits for what never comes");
}

static reshard_status new_stream(int device, stream **out) {
  stream *s;
  RS_TRY(rs_vec_reserve(&m.streams, m.streams.n + 1));
  RS_TRY(rs_alloc_zero(&s, 1, sizeof *s));
  s->device = device;
  m.streams.at[m.streams.n++] = s;
  if (m.victim == NULL || rng_one_in(&m.random, 3))
    m.victim = s;
  *out = s;
  return RESHARD_SUCCESS;
}

static reshard_status late_stream_create(rs_device *device, void **out) {
  OR_FAIL("stream_create");
  lock();
  stream *made = NULL;
  reshard_status status = new_stream(number_of(device), &made);
  m.alive += status == RESHARD_SUCCESS;
  m.counts.allocs++;
  unlock();
  *out = made;
  return status;
}

static void late_stream_destroy(rs_device *device, void *handle) {
  lock();
  stream *s = stream_of(device, handle);
  s->destroyed = true; /* what it has still to do is done */
  m.alive--;
  unlock();
}

static reshard_status late_synchronize(rs_device *device, void *handle) {
  lock();
  m.counts.syncs++;
  run_until(stream_of(device, handle));
  unlock();
  return RESHARD_SUCCESS;
}

static reshard_status late_finish(rs_device *device) {
  lock();
  m.counts.syncs++;
  for (int64_t i = 0; i < m.streams.n; i++)
    if (m.streams.at[i]->device == number_of(device))
      run_until(m.streams.at[i]);
  unlock();
  return RESHARD_SUCCESS;
}

/* --- Events ------------------------------------------------------------------------------------------------------- */

static reshard_status late_event_create(rs_device *device, rs_event **out) {
  OR_FAIL("event_create");
  rs_event *e;
  RS_TRY(rs_alloc_zero(&e, 1, sizeof *e));
  e->device = number_of(device);
  lock();
  m.alive++;
  m.counts.allocs++;
  unlock();
  *out = e;
  return RESHARD_SUCCESS;
}

static void late_event_destroy(rs_device *device, rs_event *event) {
  (void)device;
  lock();
  m.alive--;
  unlock();
  free(event);
}

static bool left_out(void) { return ++m.edges == m.skip; }

static void record_event(rs_device *device, rs_event *event, void *handle) {
  if (event->device != number_of(device))
    complain("an event of another device is recorded");
  if (rs_vec_reserve(&m.points, m.points.n + 1) != RESHARD_SUCCESS)
    abort();
  m.points.at[m.points.n++] = event->last = cli_alloc(1, sizeof(point));
  give_operation(stream_of(device, handle), (op){.kind = RECORD, .point = event->last});
}

static reshard_status late_event_record(rs_device *device, rs_event *event, void *handle) {
  OR_FAIL("event_record");
  lock();
  m.counts.records++;
  if (!left_out())
    record_event(device, event, handle);
  unlock();
  return RESHARD_SUCCESS;
}

/* No edge: where the next execute records again before anything is destroyed, nobody would miss it. */
static reshard_status late_event_record_external(rs_device *device, rs_event *event, void *handle) {
  OR_FAIL("event_record_external");
  lock();
  record_event(device, event, handle);
  unlock();
  return RESHARD_SUCCESS;
}

static reshard_status late_event_wait(rs_device *device, void *handle, rs_event *event) {
  OR_FAIL("event_wait");
  lock();
  m.counts.waits++;
  if (!left_out())
    give_operation(stream_of(device, handle), (op){.kind = WAIT, .point = event->last});
  unlock();
  return RESHARD_SUCCESS;
}

static reshard_status late_event_done(rs_device *device, rs_event *event, bool *done) {
  (void)device;
  lock();
  *done = true;
  while (event->last != NULL && !event->last->done) /* the host may ask until it has happened */
    if (!late_step()) {
      complain("the host waits for an event that never comes");
      break;
    }
  unlock();
  return RESHARD_SUCCESS;
}

/* --- Work --------------------------------------------------------------------------------------------------------- */

static reshard_status late_compile(rs_device *device, const rs_copies *copies, int64_t total, rs_program **program) {
  (void)device;
  OR_FAIL("compile");
  reshard_status status = m.cpu->work->compile(m.cpu, copies, total, program);
  lock();
  m.alive += status == RESHARD_SUCCESS;
  m.counts.allocs++;
  unlock();
  return status;
}

static reshard_status late_recompile(rs_device *device, const rs_copies *copies, int64_t total, rs_program **program) {
  rs_program *made;
  RS_TRY(late_compile(device, copies, total, &made));
  lock();
  if (rs_vec_reserve(&m.old, m.old.n + 1) != RESHARD_SUCCESS)
    abort();
  m.old.at[m.old.n++] = *program;
  if (rs_vec_reserve(&m.once, m.once.n + 1) != RESHARD_SUCCESS)
    abort();
  m.once.at[m.once.n++] = made;
  m.alive -= *program != NULL;
  unlock();
  *program = made;
  return RESHARD_SUCCESS;
}

/* True when a stream has the program before it. */
static bool has_to_run(const rs_program *program) {
  for (int64_t i = 0; i < m.streams.n; i++)
    for (int64_t k = m.streams.at[i]->next; k < m.streams.at[i]->ops.n; k++)
      for (int64_t p = 0; p < m.streams.at[i]->ops.at[k].n && m.streams.at[i]->ops.at[k].kind == RUN; p++)
        if (m.streams.at[i]->ops.at[k].programs[p] == program)
          return true;
  return false;
}

static void late_release(rs_device *device, rs_program *program) {
  (void)device;
  lock();
  for (int64_t i = 0; i < m.once.n; i++)
    if (m.once.at[i] == program) {
      run_until(NULL);
      m.once.at[i] = NULL;
    }
  if (program != NULL && has_to_run(program)) {
    complain("a program is released while a stream has still to run it");
    run_until(NULL);
  }
  m.alive -= program != NULL;
  unlock();
  m.cpu->work->release(m.cpu, program);
}

static reshard_status late_run(rs_device *device, int64_t n, rs_program *const *programs, void *handle) {
  OR_FAIL("run");
  op o = {.kind = RUN, .n = n, .programs = cli_alloc(n, sizeof *programs)};
  memcpy(o.programs, programs, (size_t)n * sizeof *programs);
  lock();
  m.counts.runs++;
  give_operation(stream_of(device, handle), o);
  unlock();
  return RESHARD_SUCCESS;
}

static void give_spans(rs_device *device, kind kind, int64_t n, const rs_span *spans, void *handle) {
  op o = {.kind = kind, .n = n, .spans = cli_alloc(n, sizeof *spans)};
  memcpy(o.spans, spans, (size_t)n * sizeof *spans);
  lock();
  m.counts.copies++;
  give_operation(stream_of(device, handle), o);
  unlock();
}

static reshard_status late_copy(rs_device *device, int64_t n, const rs_span *spans, int64_t total, void *handle) {
  (void)total;
  OR_FAIL("copy");
  give_spans(device, COPY, n, spans, handle);
  return RESHARD_SUCCESS;
}

/* The test's own: does not fail. */
static reshard_status late_memcpy(rs_device *device, void *dst, const void *src, size_t bytes, void *handle) {
  if (bytes > 0)
    give_spans(device, MOVE, 1, &(rs_span){src, dst, (int64_t)bytes, false}, handle);
  return RESHARD_SUCCESS;
}

static int64_t late_number(const rs_program *program) { return m.cpu->work->count(program); }

static reshard_status late_alloc(rs_device *device, size_t bytes, void **memory) {
  (void)device;
  OR_FAIL("alloc");
  reshard_status status = m.cpu->memory->alloc(m.cpu, bytes, memory);
  lock();
  m.alive += status == RESHARD_SUCCESS && bytes > 0;
  m.counts.allocs++;
  unlock();
  return status;
}

static void late_free(rs_device *device, void *memory) {
  (void)device;
  lock();
  if (memory != NULL) /* freeing waits for what uses it, as CUDA does */
    run_until(NULL);
  m.alive -= memory != NULL;
  unlock();
  m.cpu->memory->free(m.cpu, memory);
}

static reshard_status late_host_alloc(rs_device *device, size_t bytes, void **memory) {
  (void)device;
  *memory = cli_alloc((int64_t)bytes, 1);
  return RESHARD_SUCCESS;
}

static void late_host_free(rs_device *device, void *memory) {
  (void)device;
  free(memory);
}

static reshard_status late_enable_access(rs_device *device, rs_device *other, bool *can) {
  (void)device, (void)other;
  OR_FAIL("reach");
  *can = !m.apart;
  return RESHARD_SUCCESS;
}

static const rs_device_memory late_device_memory = {
    .alloc = late_alloc,
    .free = late_free,
    .host_alloc = late_host_alloc,
    .host_free = late_host_free,
    .memcpy = late_memcpy,
    .enable_access = late_enable_access,
};

static const rs_device_streams late_device_streams = {
    .asynchronous = true,
    .create = late_stream_create,
    .destroy = late_stream_destroy,
    .event_create = late_event_create,
    .event_destroy = late_event_destroy,
    .event_record = late_event_record,
    .event_record_external = late_event_record_external,
    .event_wait = late_event_wait,
    .event_done = late_event_done,
    .synchronize = late_synchronize,
    .finish = late_finish,
};

static const rs_device_work late_device_work = {
    .compile = late_compile,
    .recompile = late_recompile,
    .release = late_release,
    .run = late_run,
    .copy = late_copy,
    .count = late_number,
};

/* --- The machine ------------------------------------------------------------------------------------------------ */

void late_open(int n, uint64_t seed, reshard_device *devices) {
  rng_seed(&m.random, seed);
  m.n = n;
  m.alive = m.wrong = 0;
  m.counts = (late_counts){0};
  m.victim = NULL;
  if (rs_device_cpu_create(1, RESHARD_ISA_AUTO, &m.cpu) != RESHARD_SUCCESS)
    abort();
  for (int i = 0; i < n; i++) {
    late *d = &m.devices[i];
    *d = (late){.base = {.name = "late",
                         .memory = &late_device_memory,
                         .streams = &late_device_streams,
                         .work = &late_device_work,
                         .type = RESHARD_DEVICE_CUDA,
                         .index = i}};
    d->handle.device = &d->base;
    atomic_init(&d->handle.references, 1);
    devices[i] = &d->handle;
    stream *s;
    if (new_stream(i, &s) != RESHARD_SUCCESS)
      abort();
  }
  late_fail(0, false);
  late_skip(0);
  late_set_peers(true);
}

int late_close(void) {
  run_until(NULL);
  for (int64_t i = 0; i < m.streams.n; i++) {
    stream *s = m.streams.at[i];
    if (s->next < s->ops.n)
      complain("a stream waits for what never comes");
    for (int64_t k = s->next; k < s->ops.n; k++) {
      free(s->ops.at[k].programs);
      free(s->ops.at[k].spans);
    }
    free(s->ops.at);
    free(s);
  }
  for (int64_t i = 0; i < m.old.n; i++)
    m.cpu->work->release(m.cpu, m.old.at[i]);
  for (int i = 0; i < m.n; i++)
    if (atomic_load(&m.devices[i].handle.references) != 1)
      complain("a handle is kept");
  if (m.alive != 0)
    complain("something was not destroyed");
  for (int64_t i = 0; i < m.points.n; i++)
    free(m.points.at[i]);
  free(m.points.at);
  memset(&m.points, 0, sizeof m.points);
  free(m.streams.at);
  free(m.old.at);
  free(m.once.at);
  memset(&m.once, 0, sizeof m.once);
  memset(&m.streams, 0, sizeof m.streams);
  memset(&m.old, 0, sizeof m.old);
  m.cpu->destroy(m.cpu);
  return (int)m.wrong;
}

late_counts late_count(void) {
  lock();
  late_counts counts = m.counts;
  unlock();
  return counts;
}

int64_t late_pending(void) {
  int64_t pending = 0;
  lock();
  for (int64_t i = 0; i < m.streams.n; i++)
    pending += m.streams.at[i]->ops.n - m.streams.at[i]->next;
  unlock();
  return pending;
}

void late_set_peers(bool reach) { m.apart = !reach; }

void late_fail(int64_t k, bool from_then_on) {
  lock();
  m.fail = k;
  m.go_on = from_then_on;
  m.calls = m.failed = 0;
  unlock();
}

int64_t late_failed(void) { return m.failed; }

void late_skip(int64_t k) {
  lock();
  m.skip = k;
  m.edges = 0;
  unlock();
}
