/* Execute on the virtual GPU: random reshards under the checker, by rank threads, by one thread and from graphs; each
 * edge left out once; each call of the runtime failing once; what an execute costs the host. */
#include "support/fixtures/case.h"
#include <cuda_runtime_api.h>

#include "support/fixtures/rank_threads.h"
#include "support/reshards/stream_ways.h"
#include "virtual_gpu.h"

#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SPARSE = 10 }; /* one in so many */
#else
enum { SPARSE = 1 };
#endif
enum { DEVICES = 3, MOST_DEVICES = 16 };

/* A machine with handles of its GPUs, and what the test knows of it. */
typedef struct machine {
  int n;
  reshard_device devices[MOST_DEVICES];
  cudaGraphExec_t graph;
  vg_counts before;
  int64_t costs, failed;
} machine;

static reshard_status status_of(cudaError_t error) {
  return error == cudaSuccess ? RESHARD_SUCCESS : rs_error(RESHARD_ERROR_SYSTEM, "%s", cudaGetErrorString(error));
}

static reshard_status graph_capture(void *user, void *stream) {
  return status_of(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
}

static reshard_status graph_instantiate(void *user, void *stream) {
  machine *m = user;
  cudaGraph_t graph = NULL;
  reshard_status status = status_of(cudaStreamEndCapture(stream, &graph));
  if (status == RESHARD_SUCCESS)
    status = status_of(cudaGraphInstantiate(&m->graph, graph, 0));
  if (graph != NULL)
    cudaGraphDestroy(graph);
  return status;
}

static reshard_status graph_launch(void *user, void *stream) {
  return status_of(cudaGraphLaunch(((machine *)user)->graph, stream));
}

static void end_graph(void *user) {
  machine *m = user;
  if (m->graph != NULL)
    cudaGraphExecDestroy(m->graph);
  m->graph = NULL;
}

static void kernels_watch(void *user, bool on) {
  machine *m = user;
  vg_counts now = vg_count();
  if (on)
    m->before = now;
  else
    m->costs += now.allocs - m->before.allocs + now.creates - m->before.creates + now.host_syncs -
                m->before.host_syncs + now.queries - m->before.queries;
}

static void calm(void *user) {
  ((machine *)user)->failed += vg_failed();
  vg_fail(NULL, 0, false, 0);
}

static void bytes_touch(void *at, size_t n, bool write) {
  if (write)
    vg_host_write(at, n);
  else
    vg_host_read(at, n);
}

/* False, with the reason, when there is not even a device. options->devices 0: DEVICES. */
static bool open_machine(machine *m, const vg_options *options) {
  vg_options own = *options;
  *m = (machine){.n = own.devices == 0 ? DEVICES : own.devices};
  own.devices = m->n;
  vg_begin(&own);
  bool right = true;
  for (int i = 0; i < m->n; i++) {
    char name[16];
    snprintf(name, sizeof name, "cuda:%d", i);
    right = right && reshard_device_create(name, NULL, &m->devices[i]) == RESHARD_SUCCESS;
  }
  return right;
}

static int close_machine(machine *m) {
  for (int i = 0; i < m->n; i++)
    reshard_device_release(m->devices[i]);
  return vg_end();
}

static stream_case options_on(machine *m, int executes) {
  return (stream_case){.devices = m->devices,
                       .executes = executes,
                       .capture = graph_capture,
                       .captured = graph_instantiate,
                       .launch = graph_launch,
                       .end = end_graph,
                       .user = m,
                       .watch = kernels_watch,
                       .touch = bytes_touch,
                       .calm = calm};
}

/* The case of a seed: its way to drive, ranks and devices. In full: 2 to 16 GPUs, and one rank to three on each, or 8
 * ranks at most, whose tensors take several rounds. */
static stream_case drawn(machine *m, uint64_t seed, bool full) {
  stream_case s = options_on(m, 3);
  s.ndevices = full ? m->n : seed % 4 == 3 ? 3 : (int64_t)(seed % 2) + 1;
  s.ranks = full ? rs_min(m->n * (1 + (int64_t)(seed / 7 % 3)), seed / 5 % 2 ? 8 : 20) : 1 + (int64_t)(seed % 8);
  s.path = seed / 2 % 2 == 0 ? RESHARD_PATH_DIRECT : RESHARD_PATH_PACKED;
  if (seed % 11 == 0)
    s.path = RESHARD_PATH_AUTO;
  s.drive = (stream_drive)(seed / 3 % 5);
  s.rebind = seed % 5 == 0;
  s.rounds = seed % 3 != 0;
  s.shared_handle = seed % 7 == 0 && s.drive != STREAM_GRAPH;
  s.handle = !s.shared_handle || seed % 14 == 0 ? NULL : cudaStreamPerThread;
  return s;
}

CASE(random_reshards_are_right_in_every_way) {
  int64_t most = vg_scaled(120 / SPARSE, 3600), cases = 0, executed = 0, replayed = 0, in_rounds = 0;
  for (int64_t i = 0; i < most; i++) {
    uint64_t seed = 1 + vg_first_seed() + (uint64_t)i;
    if (!vg_is_mine(i / 60)) /* what is drawn by remainders of the seed is in each */
      continue;
    cases++;
    rs_text why = {0};
    machine m;
    assert_true(open_machine(&m, &(vg_options){.seed = seed,
                                               .no_peers = seed % 11 == 0,
                                               .devices = vg_proving() ? 2 + (int)(seed % (MOST_DEVICES - 1)) : 0}));
    stream_case s = drawn(&m, seed, vg_proving());
    if (!stream_case_run_seed(&s, seed, &why, NULL))
      fail_msg("%s", why.at);
    executed += s.executed;
    in_rounds += s.rounds_most > 1 && s.path == RESHARD_PATH_PACKED;
    replayed += s.drive == STREAM_GRAPH ? s.executed : 0;
    if (close_machine(&m) != 0)
      fail_msg("seed %llu: %d reports, %s", (unsigned long long)seed, vg_reports(), vg_report(0));
    assert_int_equal(m.costs, 0);
    free(why.at);
  }
  printf("%lld cases, %lld executes, %lld cases in several rounds\n", (long long)cases, (long long)executed,
         (long long)in_rounds);
  assert_true(in_rounds >= cases / (vg_proving() ? 16 : 8)); /* half of them stage */
  vg_prove("cases|the local communicator, direct and packed|%lld|%lld|%lld|%lld", (long long)cases, (long long)executed,
           (long long)in_rounds, (long long)replayed);
}

/* --- Edges ------------------------------------------------------------------------------------------------------ */

static void scenario(void *user, const vg_options *options) {
  const stream_way *way = user;
  rs_text why = {0};
  machine m;
  if (open_machine(&m, options)) {
    stream_case s = options_on(&m, vg_proving() ? 2 : 1);
    (void)stream_way_run(&s, way, &why, NULL);
  }
  (void)close_machine(&m);
  free(why.at);
}

static vg_edge_result edges_of(const stream_way *way) {
  stream_way copy = *way;
  vg_edge_search search = {
      .path = way->name, .run = scenario, .user = &copy, .options = {.seed = 1}, .seeds = 1, .most = 4};
  if (way->drive == STREAM_CACHED) {
    search.covered = "ranks of one GPU execute together, and the transfer waits for its execute before its memory goes";
    search.covered_edges = vg_proving() /* one execute under one seed misses fewer */
                               ? "execute before host|tables after run|storage: reuse after free|storage: forget stream"
                               : NULL;
  } else if (way->ranks > 1) {
    search.covered = "the transfer that is destroyed first waits for what all have executed together";
    search.covered_edges = "execute before host";
  }
  vg_edge_result r = vg_for_each_edge(&search);
  assert_int_equal(r.false_alarms, 0);
  assert_true(r.uses > 0 || way->edges == 0); /* as many as there are, where the way does not say */
  if (r.found + r.covered != r.uses)
    printf("%s: %d of %d uses of %d edges found\n", way->name, r.found, r.uses, r.edges);
  return r;
}

/* Staging goes to another stream, which writes to it, while the execute is pending, and comes back. */
static void reusing_scenario(void *user, const vg_options *options) {
  rs_text why = {0};
  machine m;
  if (open_machine(&m, options)) {
    stream_case s = options_on(&m, 3);
    s.reuse = s.rebind = true;
    (void)stream_way_run(&s, user, &why, NULL);
  }
  (void)close_machine(&m);
  free(why.at);
}

CASE(test_edges_of_staging) {
  if (!vg_sees_kernels() || !vg_is_mine(2)) /* nothing is checked in this build */
    skip();
  for (int i = 0; i < stream_nways; i++) {
    stream_way way = stream_ways[i];
    if (strcmp(way.name, "kept, rounds, 2 devices") != 0)
      continue;
    way.ranks = 2; /* one on each: only the other stream takes what a rank gives back */
    vg_edge_result r = vg_for_each_edge(&(vg_edge_search){.path = "kept, staging taken again",
                                                          .run = reusing_scenario,
                                                          .user = &way,
                                                          .options = {.seed = 1},
                                                          .seeds = 5,
                                                          .only = "storage: reuse after",
                                                          .covered = "the host has waited when a pool goes",
                                                          .covered_edges = "storage: reuse after free"});
    assert_int_equal(r.false_alarms, 0);
    assert_int_equal(r.covered, way.devices); /* a wait of each pool */
    assert_true(r.found == r.uses - r.covered && r.found > 10);
  }
}

/* Where a call fails in between, what was packed is joined by the user's stream, as no move has waited for it. */
static void failing_scenario(void *user, const vg_options *options) {
  rs_text why = {0};
  machine m;
  if (open_machine(&m, options)) {
    stream_case s = options_on(&m, 1);
    vg_fail("cudaStreamWaitEvent", 3, false, 0);
    (void)stream_way_run(&s, user, &why, NULL);
    vg_fail(NULL, 0, false, 0);
  }
  (void)close_machine(&m);
  free(why.at);
}

CASE(test_edges_of_failures) {
  static const char *const names[] = {"pack before user", "user after pack"};
  static const char *const paths[] = {"rounds, a wait fails", "rounds, a wait fails, the user's side"};
  if (!vg_sees_kernels()) /* nothing is checked in this build */
    skip();
  for (int i = 0; i < 2; i++) {
    if (!vg_is_mine(i))
      continue;
    stream_way way = stream_ways[0];
    for (int w = 0; w < stream_nways; w++)
      if (strcmp(stream_ways[w].name, "rounds") == 0)
        way = stream_ways[w];
    vg_edge_result r = vg_for_each_edge(&(vg_edge_search){
        .path = paths[i], .run = failing_scenario, .user = &way, .options = {.seed = 1}, .seeds = 5, .only = names[i]});
    assert_int_equal(r.false_alarms, 0);
    assert_true(r.uses > 0);
    assert_int_equal(r.found, r.uses);
  }
}

CASE(every_edge_of_an_execute_is_needed) {
  int64_t uses = 0, found = 0, number = 0;
  if (!vg_sees_kernels()) /* nothing is checked in this build */
    skip();
  vg_quiet(true);
  for (int i = SPARSE == 1 ? 0 : 8; i < stream_nways; i += SPARSE) {
    stream_way way = stream_ways[i];
    char name[100];
    for (int graph = 0; graph <= (way.drive == STREAM_ALL && SPARSE == 1); graph++) {
      snprintf(name, sizeof name, "%s%s", stream_ways[i].name, graph ? ", graph" : "");
      way.name = name;
      way.drive = graph ? STREAM_GRAPH : way.drive;
      if (!vg_is_mine(number++))
        continue;
      vg_edge_result r = edges_of(&way);
      uses += r.uses;
      found += r.found + r.covered;
    }
  }
  vg_quiet(false);
  printf("%lld of %lld edges found\n", (long long)found, (long long)uses);
  assert_int_equal(found, uses);
}

/* --- Faults ----------------------------------------------------------------------------------------------------- */

/* One call fails, or all of a kind from one on: a device that has no call left that works cannot be left in order. */
static const char *const failing[] = {NULL,          "cudaLaunchKernel", "cudaEventRecord*", "cudaStreamWaitEvent",
                                      "cudaMalloc*", "cudaEventCreate*", "cudaStreamCreate*"};

/* The k-th call fails. False when there were not so many. */
static bool fault(const stream_way *way, const char *name, int64_t k) {
  rs_text why = {0};
  machine m;
  assert_true(open_machine(&m, &(vg_options){.seed = (uint64_t)k}));
  stream_case s = options_on(&m, 2);
  vg_fail(name, k, name != NULL, 0);
  bool right = stream_way_run(&s, way, &why, NULL);
  calm(&m);
  if (close_machine(&m) != 0)
    fail_msg("%s, call %lld of %s fails: %s", way->name, (long long)k, name != NULL ? name : "all", vg_report(0));
  assert_true(right || m.failed > 0);
  assert_true(!right || name == NULL || m.failed == 0 || strcmp(name, "cudaStreamWaitEvent") == 0); /* the host did */
  free(why.at);
  return m.failed > 0;
}

/* In short, a way has every other kind of call, and the next two ways have the rest. */
static bool is_tried(int way, size_t kind) { return vg_proving() || kind == 0 || (kind + (size_t)way / 2) % 2 == 0; }

CASE(every_failing_call_of_an_execute_is_told) {
  if (!vg_sees_kernels()) /* under ThreadSanitizer it takes a minute */
    skip();
  const int64_t one = vg_proving() ? 16 : 3, rest = vg_proving() ? 4 : 2; /* steps grow by one in so many */
  int64_t runs = 0;
  vg_quiet(true);
  for (int i = 0; i < stream_nways; i += SPARSE == 1 ? 1 : 2)
    for (size_t f = 0; f < sizeof failing / sizeof *failing; f++)
      for (int64_t k = 1; vg_is_mine((int64_t)f + i) && is_tried(i, f) && fault(&stream_ways[i], failing[f], k); runs++)
        k += SPARSE + k / (f == 0 ? one : rest);
  vg_quiet(false);
  printf("%lld runs\n", (long long)runs);
}

/* An argument names the tests to run, with wildcards. */
RUN_CASES
