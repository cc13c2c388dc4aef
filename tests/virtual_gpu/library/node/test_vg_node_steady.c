/* Steady state of sharders over processes of a node with GPUs: what the second and later calls of a pair cost, and what
 * keeps their order. Messages go through mailboxes of the communicator in memory of the GPUs, whatever memory arrays
 * are in. */
#include "base/base.h"
#include "comm/node/node.h"
#include "node_gather.h"
#include "reshard/reshard.h"
#include "reshard/torch.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 12, COLUMNS = 30, KEPT = 3, STREAMS = 2 };

typedef struct world world;

/* A tensor that goes to columns and back. Results stay for a while, so that the next ones lie elsewhere. */
typedef struct moving {
  cudaStream_t stream;
  reshard_dtensor tensor, kept[KEPT];
  reshard_tensor whole; /* that rank 0 gathers */
  int dim;              /* that is cut */
  int calls;
} moving;

typedef struct node_rank {
  world *w;
  int64_t rank;
  reshard_device device;
  reshard_comm comm;
  reshard_sharder sharder;
  reshard_mesh mesh;
  moving moving[STREAMS];
  const char *wrong; /* NULL: nothing */
} node_rank;

struct world {
  int gpus, ranks;             /* ranks 0: NODE_RANKS */
  int64_t timeout_ms, columns; /* 0: a minute; COLUMNS */
  bool endless;                /* ranks wait without a deadline */
  bool warm;                   /* calls have gone well before */
  bool own_memory;             /* of the arrays, that no other process can open */
  reshard_sharder_options options;
  void (*body)(node_rank *me);
  int64_t failing; /* call of rank 0 that fails; 0: none */
  node_gather gather;
  rank_result result[NODE_MOST_RANKS];
  const char *wrong[NODE_MOST_RANKS];
};

#define NEED(me, what) \
  do { \
    if (!(what) && (me)->wrong == NULL) \
      (me)->wrong = #what; \
  } while (0)

static int64_t columns_of(const world *w) { return w->columns > 0 ? w->columns : COLUMNS; }
static unsigned char byte_at(int64_t i) { return (unsigned char)(i * 7 % 251); }

static reshard_placing placing_of(const node_rank *me, int dim) {
  static const reshard_placement cuts[2] = {{.kind = RESHARD_PLACEMENT_SHARD, .dim = 0},
                                            {.kind = RESHARD_PLACEMENT_SHARD, .dim = 1}};
  return (reshard_placing){me->mesh, &cuts[dim], NULL};
}

static reshard_status open_rank(node_rank *me) {
  const int64_t n = me->w->gather.ranks;
  char name[32];
  node_gatherer gatherer = {&me->w->gather, me->rank};
  reshard_node_options options = {.size = RESHARD_NODE_OPTIONS_INIT,
                                  .timeout_ms = me->w->timeout_ms > 0 ? me->w->timeout_ms : 60000};
  const reshard_device_options storage = {.size = RESHARD_DEVICE_OPTIONS_INIT, .shared = !me->w->own_memory};
  reshard_sharder_options sharder = me->w->options;
  if (me->w->endless)
    options.timeout_ms = 0;
  snprintf(name, sizeof name, "cuda:%d", (int)(me->rank % me->w->gpus));
  reshard_status status = reshard_device_create(name, &storage, &me->device);
  options.device = me->device;
  if (status != RESHARD_SUCCESS) /* the others hear of it */
    options.timeout_ms = -1;
  reshard_status made = reshard_comm_create_node(n, me->rank, node_gather_all, &gatherer, &options, &me->comm);
  status = status != RESHARD_SUCCESS ? status : made;
  sharder.size = RESHARD_SHARDER_OPTIONS_INIT;
  sharder.device = me->device;
  RS_THEN(status, reshard_sharder_create(me->comm, &sharder, &me->sharder));
  RS_THEN(status, reshard_mesh_create(me->comm, 0, 1, &n, NULL, 0, NULL, &me->mesh));
  return status;
}

/* This rank's rows. */
static reshard_status make_tensor(node_rank *me, moving *m) {
  const reshard_properties bytes = {.dtype = RESHARD_U8};
  const int64_t columns = columns_of(me->w), whole[2] = {ROWS, columns};
  const reshard_placing placing = placing_of(me, 0);
  reshard_tensor_info info;
  reshard_status status = reshard_dtensor_empty(me->sharder, &placing, 2, whole, &bytes, m->stream, &m->tensor);
  RS_THEN(status, reshard_tensor_create_on(me->device, RESHARD_U8, 2, whole, m->stream, &m->whole));
  if (status != RESHARD_SUCCESS)
    return status;
  (void)reshard_tensor_get_info(reshard_dtensor_local(m->tensor), &info);
  unsigned char *part = malloc((size_t)info.elements);
  for (int64_t i = 0; i < info.elements; i++)
    part[i] = byte_at(me->rank * info.elements + i);
  vg_own_calls(true);
  cudaMemcpyAsync(info.data, part, (size_t)info.elements, cudaMemcpyHostToDevice, m->stream);
  cudaStreamSynchronize(m->stream);
  vg_own_calls(false);
  free(part);
  return RESHARD_SUCCESS;
}

/* There or back, then to rank 0. */
static reshard_status move_once(node_rank *me, moving *m) {
  reshard_dtensor next;
  const reshard_placing to = placing_of(me, 1 - m->dim);
  reshard_status status = reshard_dtensor_redistribute(1, &m->tensor, &to, m->stream, &next);
  if (status != RESHARD_SUCCESS)
    return status;
  m->dim = 1 - m->dim;
  reshard_dtensor_release(m->kept[m->calls % KEPT]);
  m->kept[m->calls++ % KEPT] = m->tensor;
  m->tensor = next;
  return reshard_sharded_tensor_gather(reshard_dtensor_sharded(m->tensor), 0, me->rank == 0 ? m->whole : NULL,
                                       m->stream);
}

/* Of rank 0, whose stream has ended. */
static bool is_whole(const world *w, const moving *m) {
  int64_t n = ROWS * columns_of(w), right = 0;
  unsigned char *seen = malloc((size_t)n);
  reshard_tensor_info info;
  (void)reshard_tensor_get_info(m->whole, &info);
  vg_peek(seen, info.data, (size_t)n);
  while (right < n && seen[right] == byte_at(right))
    right++;
  free(seen);
  return right == n;
}

static void check_whole(node_rank *me) {
  vg_own_calls(true);
  for (int s = 0; s < STREAMS; s++)
    NEED(me, cudaStreamSynchronize(me->moving[s].stream) == cudaSuccess);
  vg_own_calls(false);
  for (int s = 0; s < STREAMS; s++)
    NEED(me, me->rank != 0 || me->moving[s].calls == 0 || is_whole(me->w, &me->moving[s]));
}

static void close_rank(node_rank *me) {
  for (int s = 0; s < STREAMS; s++) {
    moving *m = &me->moving[s];
    for (int i = 0; i < KEPT; i++)
      reshard_dtensor_release(m->kept[i]);
    reshard_dtensor_release(m->tensor);
    reshard_tensor_release(m->whole);
  }
  reshard_mesh_release(me->mesh);
  reshard_sharder_destroy(me->sharder);
  reshard_comm_destroy(me->comm);
  reshard_device_release(me->device);
}

static void run_rank(void *user, int64_t rank) {
  world *w = user;
  node_rank me = {.w = w, .rank = rank};
  vg_process((int)rank);
  cudaSetDevice((int)(rank % w->gpus));
  for (int s = 0; s < STREAMS; s++)
    cudaStreamCreateWithFlags(&me.moving[s].stream, cudaStreamNonBlocking);
  if (rank == 0 && w->failing > 0)
    vg_fail_here(NULL, w->failing, false, 0);
  reshard_status status = open_rank(&me);
  for (int s = 0; s < STREAMS && status == RESHARD_SUCCESS; s++)
    status = make_tensor(&me, &me.moving[s]);
  rank_result_set(&w->result[rank], status);
  if (status == RESHARD_SUCCESS)
    w->body(&me);
  close_rank(&me);
  w->wrong[rank] = me.wrong;
  vg_own_calls(true);
  for (int s = 0; s < STREAMS; s++)
    cudaStreamDestroy(me.moving[s].stream);
  vg_own_calls(false);
}

/* Reports. */
static int run_world(world *w, const vg_options *options) {
  node_gather_begin(&w->gather);
  if (w->ranks > 0)
    w->gather.ranks = w->ranks;
  vg_begin(options);
  rank_threads_run(w->gather.ranks, run_rank, w);
  int reports = vg_end();
  node_gather_end(&w->gather);
  return reports;
}

static void run_right(world w, uint64_t seed) {
  int reports = run_world(&w, &(vg_options){.devices = w.gpus, .seed = seed});
  rank_results_assert(w.gather.ranks, w.result, RESHARD_SUCCESS, NULL, "opening");
  for (int r = 0; r < w.gather.ranks; r++)
    if (w.wrong[r] != NULL)
      fail_msg("seed %d, rank %d: %s", (int)seed, r, w.wrong[r]);
  if (reports != 0)
    fail_msg("seed %d: %s", (int)seed, vg_report(0));
}

/* --- Costs -------------------------------------------------------------------------------------------------------- */

/* No meeting of hosts, no call of the driver's allocator, no wait for a device, whichever arrays a call has. */
static void count_calls(node_rank *me) {
  enum { WARM = 8, CALLS = 12 };
  static vg_counts before;
  static int64_t driver;
  for (int i = 0; i < WARM; i++)
    NEED(me, move_once(me, &me->moving[0]) == RESHARD_SUCCESS);
  check_whole(me);
  uint64_t meetings = rs_node_of(me->comm)->meetings;
  node_gather_meet(&me->w->gather);
  if (me->rank == 0) {
    before = vg_count();
    driver = vg_calls("cudaMalloc*") + vg_calls("cudaHostAlloc") + vg_calls("cuMem*");
  }
  node_gather_meet(&me->w->gather);
  for (int i = 0; i < CALLS; i++)
    NEED(me, move_once(me, &me->moving[0]) == RESHARD_SUCCESS);
  NEED(me, rs_node_of(me->comm)->meetings == meetings);
  node_gather_meet(&me->w->gather);
  if (me->rank == 0) {
    vg_counts now = vg_count();
    NEED(me, now.allocs == before.allocs && now.frees == before.frees && now.creates == before.creates);
    NEED(me, now.host_syncs == before.host_syncs);
    NEED(me, vg_calls("cudaMalloc*") + vg_calls("cudaHostAlloc") + vg_calls("cuMem*") == driver);
    NEED(me, now.launches > before.launches);
  }
  node_gather_meet(&me->w->gather);
  check_whole(me);
}

CASE(test_later_calls_cost_nothing) {
  const reshard_sharder_options rounds = {.workspace_limit = 256 * NODE_RANKS};
  for (int64_t seed = 0, n = vg_scaled(1, 3); seed < n; seed++) {
    run_right((world){.gpus = NODE_RANKS, .body = count_calls}, seed);
    run_right((world){.gpus = 1, .body = count_calls}, seed);
    run_right((world){.gpus = NODE_RANKS, .body = count_calls, .options = rounds, .columns = 3000}, seed);
    run_right((world){.gpus = NODE_RANKS, .body = count_calls, .own_memory = true}, seed);
    run_right((world){.gpus = NODE_RANKS, .body = count_calls, .options = {.path = RESHARD_PATH_PACKED}}, seed);
  }
}

/* --- Order -------------------------------------------------------------------------------------------------------- */

static void fill_slots(node_rank *me) {
  for (int i = 0; i < 2; i++)
    NEED(me, move_once(me, &me->moving[0]) == RESHARD_SUCCESS);
  check_whole(me);
}

/* Messages of three chunks: slots are filled again in one exchange. */
CASE(slots_are_filled_again_in_one_exchange) {
  const int64_t columns = NODE_RANKS * (5 << 20) / (ROWS / NODE_RANKS);
  run_right((world){.gpus = NODE_RANKS, .body = fill_slots, .columns = columns}, 1);
}

/* Two tensors, each with a stream of its own: nothing but the communicator keeps their messages in order. */
static void move_on_two_streams(node_rank *me) {
  for (int i = 0; i < 6; i++)
    NEED(me, move_once(me, &me->moving[i % STREAMS]) == RESHARD_SUCCESS);
  check_whole(me);
}

CASE(test_two_streams) {
  for (int64_t seed = 0, n = vg_scaled(2, 6); seed < n; seed++)
    run_right((world){.gpus = seed % 2 == 0 ? NODE_RANKS : 1, .body = move_on_two_streams}, seed);
}

/* --- A captured stream -------------------------------------------------------------------------------------------- */

/* Messages of a gather of rows lie in place: nothing but the check refuses them. */
static void gather_captured(node_rank *me) {
  moving *m = &me->moving[0];
  reshard_sharded_tensor view = reshard_dtensor_sharded(m->tensor);
  const reshard_placing to = placing_of(me, 1 - m->dim);
  reshard_dtensor next;
  cudaGraph_t graph;
  size_t nodes = 1;
  NEED(me, cudaStreamBeginCapture(m->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  NEED(me, reshard_sharded_tensor_gather_all(view, m->whole, m->stream) == RESHARD_ERROR_INVALID);
  NEED(me, strstr(reshard_last_error(), "is being captured") != NULL);
  NEED(me, reshard_dtensor_redistribute(1, &m->tensor, &to, m->stream, &next) == RESHARD_ERROR_INVALID);
  NEED(me, reshard_sync_tensors(me->comm, 0, 1, &m->whole, NULL, NULL, m->stream, NULL) == RESHARD_ERROR_INVALID);
  NEED(me, cudaStreamEndCapture(m->stream, &graph) == cudaSuccess);
  NEED(me, cudaGraphGetNodes(graph, NULL, &nodes) == cudaSuccess && nodes == 0);
  NEED(me, cudaGraphDestroy(graph) == cudaSuccess);
}

/* The communicator goes on, also where plans are kept. */
static void move_around_captures(node_rank *me) {
  moving *m = &me->moving[0];
  for (int i = 0; i < 3; i++) {
    gather_captured(me);
    NEED(me,
         reshard_sharded_tensor_gather_all(reshard_dtensor_sharded(m->tensor), m->whole, m->stream) == RESHARD_SUCCESS);
    NEED(me, move_once(me, m) == RESHARD_SUCCESS);
  }
  check_whole(me);
}

CASE(captures_beside_later_calls_go_well) {
  for (uint64_t seed = 0; seed < 2; seed++)
    run_right((world){.gpus = seed == 0 ? NODE_RANKS : 1, .body = move_around_captures}, seed);
}

/* --- A rank that is lost, or fails alone -------------------------------------------------------------------------- */

/* Rank 2 does not come to a call that went well before. The others' streams end by the deadline, and their next call
 * names it. */
static void come_without_one(node_rank *me) {
  int64_t missing[NODE_RANKS], n = 0;
  moving *m = &me->moving[0];
  for (int i = 0; i < 2; i++)
    NEED(me, move_once(me, m) == RESHARD_SUCCESS);
  check_whole(me);
  node_gather_meet(&me->w->gather);
  if (me->rank < 2) {
    NEED(me, move_once(me, m) == RESHARD_SUCCESS);
    NEED(me, cudaStreamSynchronize(m->stream) == cudaSuccess);
    NEED(me, move_once(me, m) == RESHARD_ERROR_PEER);
    NEED(me, strstr(reshard_last_error(), "missing: 2") != NULL);
    NEED(me, reshard_comm_missing(me->comm, missing, &n) == RESHARD_SUCCESS && n == 1 && missing[0] == 2);
  }
  node_gather_meet(&me->w->gather);
  NEED(me, reshard_comm_barrier(me->comm) == RESHARD_ERROR_PEER);
}

CASE(late_rank_of_a_later_call_is_named) {
  for (int64_t seed = 0, n = vg_scaled(2, 4); seed < n; seed++) {
    run_right((world){.gpus = NODE_RANKS, .body = come_without_one, .timeout_ms = 200}, seed);
    assert_true(vg_count().closed_bytes > 0); /* it is unpacked before the failed barrier is known */
  }
}

/* Rank 1 has no memory for the result of a call that went well before: it ends the communicator. */
static void fail_alone(node_rank *me) {
  moving *m = &me->moving[0];
  for (int i = 0; i < 2; i++)
    NEED(me, move_once(me, m) == RESHARD_SUCCESS);
  check_whole(me);
  node_gather_meet(&me->w->gather);
  if (me->rank == 1)
    vg_fail_here("cudaLaunchKernel*", 1, true, 0);
  reshard_status status = move_once(me, m);
  if (me->rank == 1)
    vg_fail_here(NULL, 0, false, 0);
  NEED(me, me->rank != 1 || status != RESHARD_SUCCESS);
  NEED(me, cudaStreamSynchronize(m->stream) == cudaSuccess); /* nothing is left on it */
  NEED(me, reshard_comm_barrier(me->comm) == RESHARD_ERROR_PEER);
  NEED(me, move_once(me, m) == RESHARD_ERROR_PEER);
}

CASE(test_fails_alone) {
  for (int64_t seed = 0, n = vg_scaled(2, 4); seed < n; seed++)
    run_right((world){.gpus = NODE_RANKS, .body = fail_alone}, seed);
}

static reshard_status gather_whole(node_rank *me, moving *m, bool to_all) {
  reshard_sharded_tensor rows = reshard_dtensor_sharded(m->tensor);
  if (to_all)
    return reshard_sharded_tensor_gather_all(rows, m->whole, m->stream);
  return reshard_sharded_tensor_gather(rows, 0, me->rank == 0 ? m->whole : NULL, m->stream);
}

/* Rank 1 makes another call than the others; plans of both are kept. All get the error of the first rank that makes a
 * call after its stream found it. */
static void call_another(node_rank *me) {
  moving *m = &me->moving[0];
  for (int i = 0; i < 4; i++)
    NEED(me, gather_whole(me, m, i % 2 == 0) == RESHARD_SUCCESS);
  m->calls = 1;
  check_whole(me);
  node_gather_meet(&me->w->gather);
  NEED(me, gather_whole(me, m, me->rank == 1) == RESHARD_SUCCESS);
  node_gather_meet(&me->w->gather); /* one that finds it does not wait for who has not called yet */
  NEED(me, cudaStreamSynchronize(m->stream) == cudaSuccess);
  NEED(me, reshard_comm_barrier(me->comm) == RESHARD_ERROR_MISMATCH);
  NEED(me, strstr(reshard_last_error(), "ranks 0 and 1 execute different transfers") != NULL);
  NEED(me, gather_whole(me, m, true) == RESHARD_ERROR_MISMATCH);
}

CASE(test_another_call) {
  for (int64_t seed = 0, n = vg_scaled(2, 6); seed < n; seed++)
    run_right((world){.gpus = seed % 2 == 0 ? NODE_RANKS : 1, .body = call_another}, seed);
}

/* Rank 1 makes a call whose plan it has to make first, where the others' is kept: its host waits for theirs, and their
 * streams for its own. */
static void call_unknown(node_rank *me) {
  moving *m = &me->moving[0];
  for (int i = 0; i < 3; i++)
    NEED(me, gather_whole(me, m, true) == RESHARD_SUCCESS);
  NEED(me, cudaStreamSynchronize(m->stream) == cudaSuccess);
  reshard_status status = gather_whole(me, m, me->rank != 1);
  NEED(me, status == RESHARD_ERROR_MISMATCH || (me->rank != 1 && status == RESHARD_SUCCESS));
  NEED(me, cudaStreamSynchronize(m->stream) == cudaSuccess);
  node_gather_meet(&me->w->gather);
  NEED(me, reshard_comm_barrier(me->comm) == RESHARD_ERROR_MISMATCH);
  NEED(me, strstr(reshard_last_error(), " executes a transfer, rank 1 is in reshard_sharded_tensor_gather") != NULL);
  NEED(me, gather_whole(me, m, true) == RESHARD_ERROR_MISMATCH);
}

CASE(test_unknown_call) {
  for (int64_t seed = 0, n = vg_scaled(2, 6); seed < n; seed++)
    run_right((world){.gpus = seed % 2 == 0 ? NODE_RANKS : 1, .endless = seed >= 3, .body = call_unknown}, seed);
}

/* Ranks 0 and 3 gather to rank 0, ranks 1 and 2 to rank 1; plans of both are kept. Ranks 0 and 1 find each other's
 * call, and wait for nobody else: that who goes elsewhere never comes. Their next call ends the wait of the others. */
static void gather_to_two(node_rank *me) {
  moving *m = &me->moving[0];
  reshard_sharded_tensor rows = reshard_dtensor_sharded(m->tensor);
  for (int64_t i = 0; i < 4; i++)
    NEED(me,
         reshard_sharded_tensor_gather(rows, i % 2, me->rank == i % 2 ? m->whole : NULL, m->stream) == RESHARD_SUCCESS);
  NEED(me, cudaStreamSynchronize(m->stream) == cudaSuccess);
  node_gather_meet(&me->w->gather);
  int64_t dst = me->rank == 1 || me->rank == 2, begin = rs_now_ns();
  NEED(me, reshard_sharded_tensor_gather(rows, dst, me->rank == dst ? m->whole : NULL, m->stream) == RESHARD_SUCCESS);
  if (me->rank < 2)
    NEED(me, cudaStreamSynchronize(m->stream) == cudaSuccess);
  node_gather_meet(&me->w->gather);
  NEED(me, reshard_comm_barrier(me->comm) == RESHARD_ERROR_MISMATCH);
  NEED(me, strstr(reshard_last_error(), "ranks 0 and 1 execute different transfers") != NULL);
  NEED(me, cudaStreamSynchronize(m->stream) == cudaSuccess);
  NEED(me, rs_now_ns() - begin < INT64_C(30000000000)); /* half of the deadline, where there is one */
  NEED(me, reshard_sharded_tensor_gather_all(rows, m->whole, m->stream) == RESHARD_ERROR_MISMATCH);
}

CASE(test_two_calls) {
  for (int64_t seed = 0, n = vg_scaled(2, 4); seed < n; seed++)
    run_right((world){.gpus = seed % 2 == 0 ? NODE_MOST_RANKS : 1,
                      .ranks = NODE_MOST_RANKS,
                      .endless = seed >= 2,
                      .body = gather_to_two},
              seed);
}

/* Rank 1 captures alone and returns at once. The others wait for it until their deadline. */
static void capture_alone(node_rank *me) {
  moving *m = &me->moving[0];
  cudaGraph_t graph;
  size_t nodes = 1;
  for (int i = 0; i < 2 * me->w->warm; i++)
    NEED(me, move_once(me, m) == RESHARD_SUCCESS);
  NEED(me, cudaStreamSynchronize(m->stream) == cudaSuccess);
  node_gather_meet(&me->w->gather);
  if (me->rank == 1) {
    NEED(me, cudaStreamBeginCapture(m->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    NEED(me, move_once(me, m) == RESHARD_ERROR_INVALID);
    NEED(me, strstr(reshard_last_error(), "is being captured") != NULL);
    NEED(me, cudaStreamEndCapture(m->stream, &graph) == cudaSuccess);
    NEED(me, cudaGraphGetNodes(graph, NULL, &nodes) == cudaSuccess && nodes == 0);
    NEED(me, cudaGraphDestroy(graph) == cudaSuccess);
  } else {
    reshard_status status = move_once(me, m);
    NEED(me, (status == RESHARD_SUCCESS) == me->w->warm); /* its part is given to the stream */
    NEED(me, cudaStreamSynchronize(m->stream) == cudaSuccess);
    if (me->w->warm)
      status = move_once(me, m);
    NEED(me, status == RESHARD_ERROR_TIMEOUT || status == RESHARD_ERROR_PEER);
    NEED(me, strstr(reshard_last_error(), "missing: 1") != NULL);
  }
  node_gather_meet(&me->w->gather);
  NEED(me, reshard_comm_barrier(me->comm) == RESHARD_ERROR_PEER);
}

CASE(test_captured_by_one) {
  for (int64_t seed = 0, n = vg_scaled(2, 4); seed < n; seed++)
    run_right((world){.gpus = NODE_RANKS, .body = capture_alone, .timeout_ms = 200, .warm = seed % 2 == 1}, seed);
}

/* Ranks that want unequal things all hear of it when they make their sharders. */
static void give_unequal_options(node_rank *me) {
  const reshard_sharder_options options = {
      .size = RESHARD_SHARDER_OPTIONS_INIT, .device = me->device, .cached_plans = me->rank == 1 ? 3 : 5};
  reshard_sharder_destroy(me->sharder);
  reshard_dtensor_release(me->moving[0].tensor);
  reshard_dtensor_release(me->moving[1].tensor);
  me->sharder = NULL;
  me->moving[0].tensor = me->moving[1].tensor = NULL;
  NEED(me, reshard_sharder_create(me->comm, &options, &me->sharder) == RESHARD_ERROR_MISMATCH);
  NEED(me, strstr(reshard_last_error(), "cached_plans 5 on rank 0, 3 on rank 1") != NULL);
  NEED(me, me->sharder == NULL);
}

CASE(test_unequal_options) { run_right((world){.gpus = NODE_RANKS, .body = give_unequal_options}, 1); }

/* --- Edges and faults --------------------------------------------------------------------------------------------- */

static void run_search(void *user, const vg_options *options) {
  world w = *(world *)user;
  (void)run_world(&w, options);
}

/* All ranks get all rows, as they lie: neither staging nor new storage keeps the streams in order. */
static void gather_on_two_streams(node_rank *me) {
  for (int i = 0; i < 6; i++) {
    moving *m = &me->moving[i % STREAMS];
    m->calls++;
    NEED(me,
         reshard_sharded_tensor_gather_all(reshard_dtensor_sharded(m->tensor), m->whole, m->stream) == RESHARD_SUCCESS);
  }
  check_whole(me);
}

static void find_edges(world w, const char *path) {
  vg_edge_result r = vg_for_each_edge(&(vg_edge_search){.path = path,
                                                        .run = run_search,
                                                        .user = &w,
                                                        .options = {.devices = NODE_RANKS, .seed = 1},
                                                        .seeds = 3,
                                                        .only = "slots ",
                                                        .covered = "no message comes after it",
                                                        .covered_edges = "slots again after peers"});
  assert_int_equal(r.false_alarms, 0);
  assert_int_equal(r.found + r.covered, r.uses);
  assert_true(r.covered <= 2 * NODE_RANKS);
}

CASE(every_edge_of_the_mailboxes_is_needed) {
  find_edges((world){.gpus = NODE_RANKS, .body = gather_on_two_streams}, "mailboxes of GPUs of a node");
}

static void move_twice(node_rank *me) {
  reshard_status status = RESHARD_SUCCESS;
  for (int i = 0; i < 3 && status == RESHARD_SUCCESS; i++)
    status = move_once(me, &me->moving[0]);
  vg_own_calls(true);
  cudaStreamSynchronize(me->moving[0].stream);
  vg_own_calls(false);
}

/* One call of rank 0 fails, whichever, or each eighth: nobody hangs, and nothing is left. */
CASE(every_failing_call_of_later_calls_is_told) {
  int64_t fired = 1;
  world w = {.gpus = NODE_RANKS, .body = move_twice, .timeout_ms = 1000};
  for (w.failing = 1; fired > 0; w.failing += vg_proving() ? 1 : 8) {
    int reports = run_world(&w, &(vg_options){.devices = NODE_RANKS, .seed = (uint64_t)w.failing});
    fired = vg_failed();
    if (reports != 0)
      fail_msg("call %lld of rank 0 fails: %s", (long long)w.failing, vg_report(0));
  }
  assert_true(w.failing > 50);
}

RUN_CASES_IF(vg_sees_kernels(), "this build sees no accesses")
