/* Small random programs on the virtual GPU against a naive model: every call is a node, every rule of order an edge,
 * and order is whether there is a path. A program in which two conflicting accesses have none must be reported. One in
 * which all have one must not be, and must leave the data that running it in the order of issue leaves. */
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fixtures/case.h"

#define OK(call) \
  do { \
    if ((call) != cudaSuccess) \
      fail_msg("%s", #call); \
  } while (0)

enum { NODES = 250, STREAMS = 5, EVENTS = 4, BUFFERS = 6, BYTES = 48, DEVICES = 2, CAPTURED = 10 };

static uint64_t state;
static int draw_number(int n) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (int)((state * 0x2545F4914F6CDD1Dull >> 33) % (uint64_t)n);
}

typedef struct access {
  int buffer, begin, end;
  bool write;
} access;
typedef struct action {
  int kind; /* 1: fill, else copy */
  access to, from;
  int byte;
} action;
typedef struct program {
  int n;
  unsigned char before[NODES][NODES]; /* [b][a]: a comes before b, by any path */
  access uses[NODES][2];
  int nuses[NODES], stream_of[NODES];     /* -1: the host */
  int last[STREAMS], event[EVENTS], host; /* nodes, -1: none */
  bool races;
  /* as it runs */
  int devices;
  cudaStream_t stream[STREAMS];
  int device_of[STREAMS];
  bool blocking[STREAMS], legacy[STREAMS];
  cudaEvent_t events[EVENTS];
  int event_device[EVENTS];
  unsigned char *buffer[BUFFERS], model[BUFFERS][BYTES];
  bool pinned[BUFFERS];
} program;

static void comes_after(program *p, int b, int a) {
  if (a < 0)
    return;
  p->before[b][a] = 1;
  for (int i = 0; i < a; i++)
    p->before[b][i] |= p->before[a][i];
}

/* A node on a stream, with the rules of the legacy default stream. */
static int node_on(program *p, int s) {
  int b = p->n++;
  memset(p->before[b], 0, sizeof p->before[b]);
  p->nuses[b] = 0;
  p->stream_of[b] = s;
  comes_after(p, b, p->host);
  comes_after(p, b, p->last[s]);
  if (p->blocking[s])
    for (int o = 0; o < STREAMS; o++)
      if (p->blocking[o] && p->device_of[o] == p->device_of[s] && (p->legacy[s] || p->legacy[o]))
        comes_after(p, b, p->last[o]);
  p->last[s] = b;
  return b;
}

static int node_of_host(program *p) {
  int b = p->n++;
  memset(p->before[b], 0, sizeof p->before[b]);
  p->nuses[b] = 0;
  p->stream_of[b] = -1;
  comes_after(p, b, p->host);
  p->host = b;
  return b;
}

/* An earlier node that b conflicts with and does not come after; -1: none. */
static int conflict(const program *p, int b) {
  for (int a = 0; a < b; a++)
    if (!p->before[b][a])
      for (int i = 0; i < p->nuses[a]; i++)
        for (int j = 0; j < p->nuses[b]; j++) {
          const access *x = &p->uses[a][i], *y = &p->uses[b][j];
          if (x->buffer == y->buffer && (x->write || y->write) && x->begin < y->end && y->begin < x->end)
            return a;
        }
  return -1;
}

static void set_device(const program *p, int device) {
  if (p->devices > 1)
    OK(cudaSetDevice(device));
}

static void record(program *p, int e, int s) {
  set_device(p, p->device_of[s]);
  OK(cudaEventRecord(p->events[e], p->stream[s]));
  p->event[e] = node_on(p, s);
}

static void wait_for(program *p, int e, int s) {
  set_device(p, p->device_of[s]);
  OK(cudaStreamWaitEvent(p->stream[s], p->events[e], 0));
  if (p->event[e] < 0)
    return;
  int b = node_on(p, s);
  comes_after(p, b, p->event[e]);
}

static void synchronise(program *p, int s) {
  set_device(p, p->device_of[s]);
  OK(cudaStreamSynchronize(p->stream[s]));
  comes_after(p, node_of_host(p), p->last[s]);
}

/* Makes what comes next on s (-1: on the host) come after node a. */
static void repair(program *p, int a, int s) {
  int from = p->stream_of[a];
  int e = -1;
  for (int i = 0; i < EVENTS && s >= 0 && from >= 0; i++)
    if (p->event_device[i] == p->device_of[from])
      e = i;
  if (s < 0 || (e >= 0 && draw_number(6) == 0))
    synchronise(p, from);
  else {
    record(p, e, from);
    wait_for(p, e, s);
  }
}

static int choose_event(const program *p, int s) {
  int e = draw_number(EVENTS);
  while (p->event_device[e] != p->device_of[s])
    e = (e + 1) % EVENTS;
  return e;
}

static access random_access(int buffer, int n, bool write) {
  int begin = draw_number(BYTES - n + 1);
  return (access){buffer, begin, begin + n, write};
}

static action random_action(void) {
  int n = 1 + draw_number(BYTES);
  return (action){1 + draw_number(4), random_access(draw_number(BUFFERS), n, true),
                  random_access(draw_number(BUFFERS), n, false), draw_number(256)};
}

static void set_uses(program *p, int b, const action *a) {
  p->uses[b][0] = a->to;
  p->uses[b][1] = a->from;
  p->nuses[b] = a->kind == 1 ? 1 : 2;
}

static void issue(program *p, const action *a, int s) {
  unsigned char *to = p->buffer[a->to.buffer] + a->to.begin;
  size_t n = (size_t)(a->to.end - a->to.begin);
  set_device(p, p->device_of[s]);
  if (a->kind == 1)
    OK(cudaMemsetAsync(to, a->byte, n, p->stream[s]));
  else
    OK(cudaMemcpyAsync(to, p->buffer[a->from.buffer] + a->from.begin, n, cudaMemcpyDefault, p->stream[s]));
}

static void program_act(program *p, const action *a) {
  unsigned char *to = p->model[a->to.buffer] + a->to.begin;
  size_t n = (size_t)(a->to.end - a->to.begin);
  if (a->kind == 1)
    memset(to, a->byte, n);
  else
    memmove(to, p->model[a->from.buffer] + a->from.begin, n);
}

/* Makes node b, which is the last one, come after what it conflicts with; false: it has been taken back, and s waits.
 */
static bool buffer_settle(program *p, int b, int s, int host, int last, bool repairs) {
  int a = conflict(p, b);
  if (a < 0)
    return true;
  if (!repairs || p->n > NODES - 8) {
    p->races = true;
    return true;
  }
  p->n = b;
  p->host = host;
  if (s >= 0)
    p->last[s] = last;
  repair(p, a, s);
  return false;
}

/* A copy or a fill. repairs: what it conflicts with is made to come first. */
static void use_memory(program *p, bool repairs) {
  action a = random_action();
  int s = draw_number(STREAMS), b, host, last;
  do {
    host = p->host;
    last = p->last[s];
    b = node_on(p, s);
    set_uses(p, b, &a);
  } while (!buffer_settle(p, b, s, host, last, repairs));
  issue(p, &a, s);
  program_act(p, &a);
}

/* The host reads or writes pinned memory. */
static void use_by_host(program *p, bool repairs) {
  action a = random_action();
  int b, host;
  a.kind = 1;
  a.to.buffer %= 2;
  a.to.write = a.byte % 2;
  do {
    host = p->host;
    b = node_of_host(p);
    set_uses(p, b, &a);
  } while (!buffer_settle(p, b, -1, host, -1, repairs));
  unsigned char *to = p->buffer[a.to.buffer] + a.to.begin;
  size_t n = (size_t)(a.to.end - a.to.begin);
  if (!a.to.write) {
    vg_host_read(to, n);
    return;
  }
  vg_host_write(to, n);
  memset(to, a.byte, n);
  program_act(p, &a);
}

/* --- Graphs: captured on two streams, which wait for each other now and then, and launched twice ------------------ */
typedef struct captured {
  action action;
  int branch;
  bool after[CAPTURED];
} captured;

static bool clash(const action *a, const action *b) {
  const access *x[2] = {&a->to, &a->from}, *y[2] = {&b->to, &b->from};
  for (int i = 0; i < 2 - (a->kind == 1); i++)
    for (int j = 0; j < 2 - (b->kind == 1); j++)
      if (x[i]->buffer == y[j]->buffer && (x[i]->write || y[j]->write) && x[i]->begin < y[j]->end &&
          y[j]->begin < x[i]->end)
        return true;
  return false;
}

static void cross(cudaStream_t from, cudaStream_t to, cudaEvent_t e) {
  OK(cudaEventRecord(e, from));
  OK(cudaStreamWaitEvent(to, e, 0));
}

static int program_capture(program *p, captured *nodes, const int *branch, cudaEvent_t e, bool repairs) {
  bool seen[2][CAPTURED] = {{0}}; /* by a branch: what comes before its next node */
  int n = 2 + draw_number(CAPTURED - 2);
  cudaStream_t s[2] = {p->stream[branch[0]], p->stream[branch[1]]};
  cross(s[0], s[1], e);
  for (int i = 0; i < n; i++) {
    int b = draw_number(2);
    bool waits = draw_number(4) == 0;
    nodes[i].action = random_action();
    nodes[i].branch = b;
    for (int k = 0; k < i; k++)
      if (repairs && !seen[b][k] && clash(&nodes[k].action, &nodes[i].action))
        waits = true;
    for (int k = 0; k < i && waits; k++)
      seen[b][k] |= seen[!b][k];
    if (waits)
      cross(s[!b], s[b], e);
    memcpy(nodes[i].after, seen[b], sizeof seen[b]);
    seen[b][i] = true;
    issue(p, &nodes[i].action, branch[b]);
  }
  cross(s[1], s[0], e);
  return n;
}

/* Its nodes come after what is in s, after the launch before, and as captured. */
static int program_launch(program *p, const captured *nodes, int n, cudaGraphExec_t exec, int s, int before) {
  set_device(p, p->device_of[s]);
  int start = node_on(p, s), first = p->n;
  comes_after(p, start, before);
  for (int i = 0; i < n; i++) {
    int b = p->n++;
    memset(p->before[b], 0, sizeof p->before[b]);
    p->stream_of[b] = s;
    comes_after(p, b, start);
    for (int k = 0; k < i; k++)
      if (nodes[i].after[k])
        comes_after(p, b, first + k);
    set_uses(p, b, &nodes[i].action);
    p->races |= conflict(p, b) >= 0;
    program_act(p, &nodes[i].action);
  }
  int end = node_on(p, s);
  for (int i = 0; i < n; i++)
    comes_after(p, end, first + i);
  OK(cudaGraphLaunch(exec, p->stream[s]));
  return end;
}

static void graph(program *p, bool repairs) {
  captured nodes[CAPTURED];
  int branch[2] = {1 + draw_number(STREAMS - 1), 0};
  do
    branch[1] = 1 + draw_number(STREAMS - 1);
  while (branch[1] == branch[0] || p->device_of[branch[1]] != p->device_of[branch[0]]);
  cudaGraph_t made;
  cudaGraphExec_t exec;
  cudaEvent_t e;
  set_device(p, p->device_of[branch[0]]);
  OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
  OK(cudaStreamBeginCapture(p->stream[branch[0]], cudaStreamCaptureModeRelaxed));
  int n = program_capture(p, nodes, branch, e, repairs);
  OK(cudaStreamEndCapture(p->stream[branch[0]], &made));
  OK(cudaGraphInstantiate(&exec, made, 0));
  OK(cudaGraphDestroy(made));
  for (int i = 0, before = -1; i < 2; i++) {
    if (repairs) /* all that went before, other than the launch before */
      for (int s = 0; s < STREAMS && i == 0; s++)
        synchronise(p, s);
    before = program_launch(p, nodes, n, exec, draw_number(STREAMS), before);
  }
  OK(cudaGraphExecDestroy(exec));
  OK(cudaEventDestroy(e));
}

static void build_program(program *p, uint64_t seed) {
  memset(p, 0, sizeof *p);
  state = seed * 0x9E3779B97F4A7C15ull | 1;
  draw_number(2), draw_number(2);
  p->devices = 1 + draw_number(DEVICES);
  p->host = -1;
  vg_begin(&(vg_options){.devices = p->devices, .seed = seed});
  for (int d = 0; d < p->devices && p->devices > 1; d++) {
    set_device(p, d);
    OK(cudaDeviceEnablePeerAccess(1 - d, 0));
  }
  for (int s = 0; s < STREAMS; s++) {
    p->last[s] = -1;
    p->device_of[s] = s % p->devices;
    set_device(p, p->device_of[s]);
    p->legacy[s] = s == 0 && draw_number(3) == 0;
    p->blocking[s] = p->legacy[s] || draw_number(3) == 0;
    if (!p->legacy[s])
      OK(cudaStreamCreateWithFlags(&p->stream[s], p->blocking[s] ? cudaStreamDefault : cudaStreamNonBlocking));
  }
  for (int e = 0; e < EVENTS; e++) {
    p->event[e] = -1;
    p->event_device[e] = e % p->devices;
    set_device(p, p->event_device[e]);
    OK(cudaEventCreateWithFlags(&p->events[e], cudaEventDisableTiming));
  }
  for (int b = 0; b < BUFFERS; b++) {
    p->pinned[b] = b < 2;
    set_device(p, b % p->devices);
    OK(b < 2 ? cudaHostAlloc((void **)&p->buffer[b], BYTES, 0) : cudaMalloc((void **)&p->buffer[b], BYTES));
    for (int i = 0; i < BYTES; i++)
      p->model[b][i] = (unsigned char)(b * 50 + i);
    vg_poke(p->buffer[b], p->model[b], BYTES);
  }
}

static int end_program(program *p) {
  for (int d = 0; d < p->devices; d++) {
    set_device(p, d);
    OK(cudaDeviceSynchronize());
  }
  if (!p->races)
    for (int b = 0; b < BUFFERS; b++) {
      unsigned char now[BYTES];
      vg_peek(now, p->buffer[b], BYTES);
      assert_memory_equal(now, p->model[b], BYTES);
    }
  for (int b = 0; b < BUFFERS; b++)
    OK(p->pinned[b] ? cudaFreeHost(p->buffer[b]) : cudaFree(p->buffer[b]));
  for (int s = 0; s < STREAMS; s++)
    if (!p->legacy[s])
      OK(cudaStreamDestroy(p->stream[s]));
  for (int e = 0; e < EVENTS; e++)
    OK(cudaEventDestroy(p->events[e]));
  return vg_end();
}

/* racy: how often of 24 nothing is repaired. */
static bool run_seed(uint64_t seed, int racy) {
  static program p;
  build_program(&p, seed);
  int length = 10 + draw_number(40);
  for (int i = 0; i < length && p.n < NODES - 50; i++) {
    int kind = draw_number(40), s = draw_number(STREAMS);
    bool repairs = draw_number(24) >= racy;
    if (kind < 5)
      record(&p, choose_event(&p, s), s);
    else if (kind < 10)
      wait_for(&p, draw_number(EVENTS), s);
    else if (kind < 12)
      synchronise(&p, s);
    else if (kind < 13)
      graph(&p, repairs);
    else if (kind < 18)
      use_by_host(&p, repairs);
    else
      use_memory(&p, repairs);
  }
  int reports = end_program(&p);
  if ((reports > 0) != p.races) {
    for (int i = 0; i < reports; i++)
      print_message("%s\n", vg_report(i));
    fail_msg("seed %llu: %d reports, but the model says %s", (unsigned long long)seed, reports,
             p.races ? "race" : "none");
  }
  return p.races;
}

static int cases(int n) {
  const char *scale = getenv("RESHARD_TEST_SCALE");
  int scaled = scale ? (int)(n * atof(scale)) : n;
  return scaled < 20 ? 20 : scaled;
}

CASE(no_false_alarm) {
  for (int i = 0; i < cases(10000); i++)
    assert_false(run_seed((uint64_t)i + 1, 0));
}

CASE(races_are_found_exactly) {
  vg_quiet(true);
  int with = 0, n = cases(10000);
  for (int i = 0; i < n; i++)
    with += run_seed((uint64_t)i + 1000000, 1 + i % 3);
  print_message("%d of %d programs had a race\n", with, n);
  assert_true(with > n / 10 && with < n - n / 10);
  vg_quiet(false);
}

RUN_CASES_IF(vg_sees_kernels(), "nothing is checked in this build")
