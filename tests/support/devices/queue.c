#include "queue.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum kind { ALLOC, FREE, RECORD, WAIT, WRITE, CHECK } kind;

typedef struct region {
  char *at;
  size_t bytes;
  bool live;   /* for the host: allocated and not freed */
  bool usable; /* for streams: their order has passed the one and not the other */
} region;

typedef struct record { /* a wait is for what the event was recorded at then, whatever it is recorded at later */
  bool happened;
  struct record *next; /* of all, freed at the end */
} record;

typedef struct event {
  record *last; /* NULL: not yet */
} event;

typedef struct operation {
  kind kind;
  int64_t region; /* ALLOC, FREE */
  record *record;
  char *at;
  size_t bytes, step;
  uint8_t byte;
  int64_t *barrier; /* of the legacy stream: how far the others have to be */
} operation;

typedef struct queue {
  bool exists, captured;
  const void *thread; /* that it is the per-thread stream of */
  RS_VEC(operation) todo;
  int64_t done;
} queue;

struct queue_device {
  rs_device base;
  uint64_t random;
  queue queues[QUEUE_STREAMS]; /* 0: legacy; handles are the addresses */
  const queue *held;
  RS_VEC(region) regions;
  RS_VEC(event *) events; /* freed at the end */
  record *records;
  int64_t fail[QUEUE_CALLS];
  bool ignore_waits;
  void (*mark)(bool counts);
  const rs_event *asked; /* last */
  size_t limit;
  queue_counts counts;
};

static char per_thread_handle;

static queue_device *of(rs_device *device) { return (queue_device *)device; }
rs_device *queue_device_of(queue_device *q) { return &q->base; }

static void queue_wrong(queue_device *q, const char *what) {
  if (q->counts.wrong++ < 10 && !q->ignore_waits)
    fprintf(stderr, "queue device: %s\n", what);
}

/* Memory of the device itself: does not fail, and is not what the test counts. */
static void *own(queue_device *q, size_t n, size_t size) {
  if (q->mark != NULL)
    q->mark(false);
  void *at = calloc(n, size);
  if (at == NULL)
    abort();
  if (q->mark != NULL)
    q->mark(true);
  return at;
}
#define GROW(q, vector) \
  do { \
    if ((q)->mark != NULL) \
      (q)->mark(false); \
    if (rs_vec_reserve(vector, (vector)->n + 1) != RESHARD_SUCCESS) \
      abort(); \
    if ((q)->mark != NULL) \
      (q)->mark(true); \
  } while (0)

static char *pages(queue_device *q, size_t bytes) {
  void *at = NULL;
  if (q->mark != NULL)
    q->mark(false);
  if (posix_memalign(&at, 4096, bytes) != 0)
    at = NULL;
  if (q->mark != NULL)
    q->mark(true);
  return at;
}

static const void *this_thread(void) {
  static _Thread_local char here;
  return &here;
}

static queue *per_thread(queue_device *q) {
  queue *unused = NULL;
  for (int i = 1; i < QUEUE_STREAMS; i++) {
    if (q->queues[i].exists && q->queues[i].thread == this_thread())
      return &q->queues[i];
    if (unused == NULL && !q->queues[i].exists)
      unused = &q->queues[i];
  }
  unused->exists = true;
  unused->thread = this_thread();
  return unused;
}

/* The queue of a stream that something is given to. */
static queue *queue_of(queue_device *q, void *stream) {
  queue *s = stream == NULL || stream == q ? &q->queues[0] : stream == &per_thread_handle ? per_thread(q) : stream;
  if (!s->exists)
    queue_wrong(q, "a stream that was destroyed is given something");
  if (s->captured)
    queue_wrong(q, "a stream that is being captured is given something");
  return s;
}

static void queue_add(queue_device *q, queue *s, operation o) {
  if (s == &q->queues[0]) { /* comes after all that other streams have */
    o.barrier = own(q, QUEUE_STREAMS, sizeof *o.barrier);
    for (int i = 1; i < QUEUE_STREAMS; i++)
      o.barrier[i] = q->queues[i].todo.n;
  }
  GROW(q, &s->todo);
  s->todo.at[s->todo.n++] = o;
}

/* --- Running ---------------------------------------------------------------------------------------------------- */

static bool ready(const queue_device *q, const queue *s) {
  if (s == q->held || s->done == s->todo.n)
    return false;
  const operation *o = &s->todo.at[s->done];
  for (int i = 1; o->barrier != NULL && i < QUEUE_STREAMS; i++)
    if (q->queues[i].done < o->barrier[i])
      return false;
  return o->kind != WAIT || o->record == NULL || o->record->happened;
}

static region *region_at(const queue_device *q, const char *at) {
  for (int64_t i = q->regions.n - 1; i >= 0; i--) {
    region *r = &q->regions.at[i];
    if (at >= r->at && at < r->at + r->bytes)
      return r;
  }
  return NULL;
}

static void queue_touch(queue_device *q, const operation *o) {
  const region *r = region_at(q, o->at);
  if (r == NULL || !r->usable || o->at + o->bytes > r->at + r->bytes) {
    queue_wrong(q, "memory is used that is not allocated");
    return;
  }
  char *first = o->at + (o->step - (uintptr_t)o->at % o->step) % o->step;
  for (char *at = first; at < o->at + o->bytes; at += o->step)
    if (o->kind == WRITE)
      *at = (char)o->byte;
    else if (*at != (char)o->byte) {
      queue_wrong(q, "memory has other bytes than were written");
      return;
    }
}

static void queue_execute(queue_device *q, queue *s) {
  operation *o = &s->todo.at[s->done++];
  switch (o->kind) {
  case ALLOC: q->regions.at[o->region].usable = true; break;
  case FREE: q->regions.at[o->region].usable = false; break;
  case RECORD: o->record->happened = true; break;
  case WAIT: break;
  case WRITE:
  case CHECK: queue_touch(q, o); break;
  }
  free(o->barrier);
  o->barrier = NULL;
}

static uint64_t draw_number(queue_device *q) {
  q->random = q->random * 6364136223846793005u + 1442695040888963407u;
  return q->random >> 33;
}

int64_t queue_run(queue_device *q, int64_t n) {
  int64_t ran = 0;
  for (; ran < n; ran++) {
    queue *can[QUEUE_STREAMS];
    int count = 0;
    for (int i = 0; i < QUEUE_STREAMS; i++)
      if (ready(q, &q->queues[i]))
        can[count++] = &q->queues[i];
    if (count == 0)
      break;
    queue_execute(q, can[draw_number(q) % (uint64_t)count]);
  }
  return ran;
}

void queue_write(queue_device *q, void *stream, void *memory, size_t bytes, size_t step, uint8_t byte) {
  queue_add(q, queue_of(q, stream),
            (operation){.kind = WRITE, .at = memory, .bytes = bytes, .step = step, .byte = byte});
}
void queue_check(queue_device *q, void *stream, void *memory, size_t bytes, size_t step, uint8_t byte) {
  queue_add(q, queue_of(q, stream),
            (operation){.kind = CHECK, .at = memory, .bytes = bytes, .step = step, .byte = byte});
}
static event *new_event(queue_device *q) {
  event *made = own(q, 1, sizeof *made);
  GROW(q, &q->events);
  q->events.at[q->events.n++] = made;
  return made;
}
static record *new_record(queue_device *q) {
  record *made = own(q, 1, sizeof *made);
  made->next = q->records;
  return q->records = made;
}
void queue_order(queue_device *q, void *earlier, void *later) {
  record *r = new_record(q);
  queue_add(q, queue_of(q, earlier), (operation){.kind = RECORD, .record = r});
  queue_add(q, queue_of(q, later), (operation){.kind = WAIT, .record = r});
}
void queue_ignore_waits(queue_device *q) { q->ignore_waits = true; }
void queue_hold(queue_device *q, void *stream) { q->held = stream == &per_thread_handle ? per_thread(q) : stream; }
void queue_capture(queue_device *q, void *stream, bool captured) {
  (void)q;
  ((queue *)stream)->captured = captured;
}
void queue_fail(queue_device *q, queue_call call, int64_t k) { q->fail[call] = k; }
void queue_limit(queue_device *q, size_t bytes) { q->limit = bytes; }
void queue_mark(queue_device *q, void (*mark)(bool counts)) { q->mark = mark; }
queue_counts queue_count(const queue_device *q) { return q->counts; }
char *queue_piece(const queue_device *q, const void *at, size_t *bytes) {
  const region *r = region_at(q, at);
  if (r == NULL || !r->live)
    return NULL;
  *bytes = r->bytes;
  return r->at;
}

/* --- The table -------------------------------------------------------------------------------------------------- */

static reshard_status called(queue_device *q, queue_call call) {
  q->counts.all++;
  q->counts.calls[call]++;
  if (q->fail[call] < 0 || q->fail[call]-- > 0)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_SYSTEM, "call %d fails on purpose", (int)call);
}

static reshard_status alloc_async(rs_device *device, size_t bytes, void *stream, void **memory) {
  queue_device *q = of(device);
  queue *s = queue_of(q, stream);
  RS_TRY(called(q, QUEUE_ALLOC));
  char *at = q->limit > 0 && bytes > q->limit - q->counts.live ? NULL : pages(q, bytes);
  if (at == NULL)
    return rs_error_memory(bytes);
  GROW(q, &q->regions);
  q->regions.at[q->regions.n] = (region){at, bytes, true, false};
  queue_add(q, s, (operation){.kind = ALLOC, .region = q->regions.n++});
  q->counts.live += bytes;
  q->counts.peak = q->counts.live > q->counts.peak ? q->counts.live : q->counts.peak;
  *memory = at;
  return RESHARD_SUCCESS;
}

static void free_async(rs_device *device, void *memory, void *stream) {
  queue_device *q = of(device);
  region *r = region_at(q, memory);
  q->counts.all++;
  q->counts.frees++;
  if (r == NULL || r->at != memory || !r->live) {
    queue_wrong(q, "memory is freed that is not allocated");
    return;
  }
  r->live = false;
  q->counts.live -= r->bytes;
  queue_add(q, queue_of(q, stream), (operation){.kind = FREE, .region = r - q->regions.at});
}

static reshard_status host_alloc(rs_device *device, size_t bytes, void **memory) {
  RS_TRY(called(of(device), QUEUE_ALLOC));
  *memory = pages(of(device), bytes);
  return *memory != NULL ? RESHARD_SUCCESS : rs_error_memory(bytes);
}

static void host_free(rs_device *device, void *memory) {
  of(device)->counts.frees++;
  free(memory);
}

static reshard_status stream_create(rs_device *device, void **stream) {
  queue_device *q = of(device);
  RS_TRY(called(q, QUEUE_STREAM));
  for (int i = 1; i < QUEUE_STREAMS; i++)
    if (!q->queues[i].exists) {
      q->queues[i].exists = true;
      *stream = &q->queues[i];
      q->counts.streams++;
      return RESHARD_SUCCESS;
    }
  return rs_error(RESHARD_ERROR_SYSTEM, "no more streams");
}

/* Operations that the stream has are still done. */
static void stream_destroy(rs_device *device, void *stream) {
  queue_of(of(device), stream)->exists = false;
  of(device)->counts.streams--;
}

static reshard_status event_create(rs_device *device, rs_event **out) {
  queue_device *q = of(device);
  RS_TRY(called(q, QUEUE_EVENT));
  *out = (rs_event *)new_event(q);
  q->counts.events++;
  return RESHARD_SUCCESS;
}

static void event_destroy(rs_device *device, rs_event *e) {
  if (e != NULL)
    of(device)->counts.events--;
}

static reshard_status event_record(rs_device *device, rs_event *e, void *stream) {
  queue_device *q = of(device);
  RS_TRY(called(q, QUEUE_RECORD));
  record *r = ((event *)e)->last = new_record(q);
  queue_add(q, queue_of(q, stream), (operation){.kind = RECORD, .record = r});
  return RESHARD_SUCCESS;
}

static reshard_status event_wait(rs_device *device, void *stream, rs_event *e) {
  queue_device *q = of(device);
  RS_TRY(called(q, QUEUE_WAIT));
  queue *s = queue_of(q, stream);
  if (!q->ignore_waits)
    queue_add(q, s, (operation){.kind = WAIT, .record = ((event *)e)->last});
  return RESHARD_SUCCESS;
}

static reshard_status event_done(rs_device *device, rs_event *e, bool *done) {
  queue_device *q = of(device);
  q->counts.all++;
  q->counts.queries++;
  if (q->asked == e) /* again: somebody waits for it */
    queue_run(q, 1);
  q->asked = e;
  *done = ((event *)e)->last == NULL || ((event *)e)->last->happened;
  return RESHARD_SUCCESS;
}

static reshard_status synchronize(rs_device *device, void *stream) {
  queue_device *q = of(device);
  RS_TRY(called(q, QUEUE_SYNCHRONIZE));
  queue *s = queue_of(q, stream);
  q->held = NULL;
  while (s->done < s->todo.n && queue_run(q, 1) > 0)
    ;
  return RESHARD_SUCCESS;
}

static reshard_status queue_finish(rs_device *device) {
  of(device)->held = NULL;
  queue_run(of(device), INT64_MAX);
  return RESHARD_SUCCESS;
}

static reshard_status capturing(rs_device *device, void *stream, bool *captured) {
  queue_device *q = of(device);
  q->counts.all++;
  q->counts.queries++;
  *captured = stream != NULL && stream != q && stream != &per_thread_handle && ((queue *)stream)->captured;
  return RESHARD_SUCCESS;
}

static const rs_device_memory queue_memory = {
    .alloc_async = alloc_async,
    .free_async = free_async,
    .host_alloc = host_alloc,
    .host_free = host_free,
};

static const rs_device_streams queue_streams = {
    .asynchronous = true,
    .create = stream_create,
    .destroy = stream_destroy,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_done = event_done,
    .synchronize = synchronize,
    .finish = queue_finish,
    .capturing = capturing,
};

queue_device *queue_device_new(uint64_t seed) {
  queue_device *q = calloc(1, sizeof *q);
  if (q == NULL)
    abort();
  q->base = (rs_device){.name = "queue",
                        .memory = &queue_memory,
                        .streams = &queue_streams,
                        .type = RESHARD_DEVICE_CUDA,
                        .thread_stream = &per_thread_handle,
                        .legacy_stream = q};
  q->random = seed * 2654435761u + 1;
  q->queues[0].exists = true;
  for (int i = 0; i < QUEUE_CALLS; i++)
    q->fail[i] = -1;
  return q;
}

void queue_device_free(queue_device *q) {
  (void)queue_finish(&q->base);
  for (int i = 0; i < QUEUE_STREAMS; i++) {
    if (q->queues[i].done < q->queues[i].todo.n)
      fprintf(stderr, "queue device: stream %d waits for ever\n", i);
    free(q->queues[i].todo.at);
  }
  for (int64_t i = 0; i < q->regions.n; i++)
    free(q->regions.at[i].at);
  for (int64_t i = 0; i < q->events.n; i++)
    free(q->events.at[i]);
  for (record *next; q->records != NULL; q->records = next) {
    next = q->records->next;
    free(q->records);
  }
  free(q->regions.at);
  free(q->events.at);
  free(q);
}
