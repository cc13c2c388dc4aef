/* Costs of the second and every later redistribute, reshard and gather of a pair of layouts on virtual GPUs: no
 * collective that the host waits for, no call of the driver's allocator, no wait for the device. Over NCCL, a rank a
 * GPU, and by threads with one GPU each, or one for all. Each call has other arrays. */
#include "base/base.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/sharded_ranks.h"
#include "virtual_gpu.h"
#include "virtual_gpu/library/nccl/nccl_rank.h"

#include <reshard/fsdp.h>
#include <reshard/reshard.h>
#include <reshard/torch.h>

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fixtures/case.h"

enum { MOST = 4, ROWS = 48, COLUMNS = 60, KEPT = 3 };
static const int64_t shape[2] = {ROWS, COLUMNS};
static const reshard_properties f32 = {.dtype = RESHARD_F32};

/* A rank, between the phases of a test. */
typedef struct rank {
  reshard_comm comm;
  ncclComm_t nccl; /* the caller's */
  reshard_device device;
  reshard_sharder sharder;
  reshard_mesh mesh;
  cudaStream_t stream;
  reshard_dtensor tensor;     /* cut by the placement `at` */
  reshard_dtensor kept[KEPT]; /* earlier results: their memory is taken */
  reshard_tensor whole;
  int at;
  bool passes; /* the other placement is replicas: domains pass bytes on to them */
  rank_result result;
} rank;

typedef struct world {
  int64_t n;
  bool nccl;
  bool borrowed; /* the communicator of NCCL is the caller's */
  int calls;
  unsigned char id[RESHARD_NCCL_ID_BYTES];
  reshard_sharder_options options;
  const reshard_device_options *device_options;
  rank ranks[MOST];
} world;

static float element_value(int64_t i) { return (float)(i * 7 % 1021); }

static reshard_status cuda(cudaError_t error) {
  return error == cudaSuccess ? RESHARD_SUCCESS : rs_error(RESHARD_ERROR_SYSTEM, "%s", cudaGetErrorString(error));
}

static reshard_placing placing_of(const rank *r, int at) {
  static const reshard_placement cuts[3] = {{.kind = RESHARD_PLACEMENT_SHARD, .dim = 0},
                                            {.kind = RESHARD_PLACEMENT_SHARD, .dim = 1},
                                            {.kind = RESHARD_PLACEMENT_REPLICATE}};
  return (reshard_placing){r->mesh, &cuts[at == 1 && r->passes ? 2 : at], NULL};
}

/* This rank's part, of the host. */
static reshard_status make_tensor(const world *w, rank *r, int64_t i) {
  const reshard_placing placing = placing_of(r, 0);
  reshard_tensor_info info;
  float part[ROWS * COLUMNS];
  RS_TRY(reshard_dtensor_empty(r->sharder, &placing, 2, shape, &f32, r->stream, &r->tensor));
  RS_TRY(reshard_tensor_get_info(reshard_dtensor_local(r->tensor), &info));
  for (int64_t e = 0; e < info.elements; e++)
    part[e] = element_value(i * (ROWS / w->n) * COLUMNS + e);
  RS_TRY(cuda(cudaStreamSynchronize(r->stream)));
  vg_poke(info.data, part, sizeof(float) * (size_t)info.elements);
  return RESHARD_SUCCESS;
}

static reshard_status borrow(const world *w, int64_t i, rank *r) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  memcpy(&id, w->id, sizeof id);
  config.blocking = 0;
  RS_TRY(cuda(cudaSetDevice((int)i)));
  ncclResult_t state = ncclCommInitRankConfig(&r->nccl, (int)w->n, id, (int)i, &config);
  while (state == ncclInProgress)
    ncclCommGetAsyncError(r->nccl, &state);
  return state == ncclSuccess ? reshard_comm_from_nccl(r->nccl, r->device, 2000, &r->comm) : RESHARD_ERROR_SYSTEM;
}

static reshard_status open_rank(world *w, int64_t i) {
  rank *r = &w->ranks[i];
  reshard_sharder_options options = w->options;
  if (w->nccl) {
    char name[32];
    snprintf(name, sizeof name, "cuda:%d", (int)i);
    RS_TRY(reshard_device_create(name, w->device_options, &r->device));
    RS_TRY(w->borrowed ? borrow(w, i, r) : reshard_comm_create_nccl(w->id, w->n, i, r->device, 2000, &r->comm));
  }
  reshard_device_info info;
  RS_TRY(reshard_device_get_info(r->device, &info));
  RS_TRY(cuda(cudaSetDevice(info.index)));
  RS_TRY(cuda(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking)));
  options.size = RESHARD_SHARDER_OPTIONS_INIT;
  options.device = r->device;
  r->passes = options.topology != NULL;
  RS_TRY(reshard_sharder_create(r->comm, &options, &r->sharder));
  RS_TRY(reshard_mesh_create(r->comm, 0, 1, &w->n, NULL, 0, NULL, &r->mesh));
  RS_TRY(reshard_tensor_create_on(r->device, RESHARD_F32, 2, shape, r->stream, &r->whole));
  return make_tensor(w, r, i);
}

/* There and back, as often as the phase says; results stay for a while, so that the next ones lie elsewhere. */
static reshard_status move_rank(world *w, rank *r) {
  for (int i = 0; i < w->calls; i++) {
    reshard_dtensor next;
    r->at = 1 - r->at;
    const reshard_placing to = placing_of(r, r->at);
    RS_TRY(reshard_dtensor_redistribute(1, &r->tensor, &to, r->stream, &next));
    reshard_dtensor_release(r->kept[i % KEPT]);
    r->kept[i % KEPT] = r->tensor;
    r->tensor = next;
    reshard_sharded_tensor view = reshard_dtensor_sharded(r->tensor);
    RS_TRY(reshard_sharded_tensor_gather(view, 0, r == w->ranks ? r->whole : NULL, r->stream));
  }
  return RESHARD_SUCCESS;
}

static reshard_status close_rank(world *w, rank *r) {
  for (int i = 0; i < KEPT; i++)
    reshard_dtensor_release(r->kept[i]);
  reshard_dtensor_release(r->tensor);
  reshard_tensor_release(r->whole);
  reshard_mesh_release(r->mesh);
  reshard_sharder_destroy(r->sharder);
  reshard_comm_destroy(r->comm);
  if (w->nccl)
    reshard_device_release(r->device);
  return cuda(cudaStreamSynchronize(r->stream));
}

static void open_body(void *user, int64_t i) {
  world *w = user;
  rank_result_set(&w->ranks[i].result, open_rank(w, i));
}

static void move_body(void *user, int64_t i) {
  world *w = user;
  rank_result_set(&w->ranks[i].result, move_rank(w, &w->ranks[i]));
}

static void close_body(void *user, int64_t i) {
  world *w = user;
  rank_result_set(&w->ranks[i].result, close_rank(w, &w->ranks[i]));
}

static void run_phase(world *w, void (*body)(void *user, int64_t rank)) {
  rank_threads_run(w->n, body, w);
  for (int64_t i = 0; i < w->n; i++)
    if (w->ranks[i].result.status != RESHARD_SUCCESS)
      fail_msg("rank %d: %s", (int)i, w->ranks[i].result.text);
}

/* Memory into which rank 0 has gathered the tensor. */
static void check_whole(const world *w) {
  float seen[ROWS * COLUMNS];
  reshard_tensor_info info;
  GOOD(reshard_tensor_get_info(w->ranks[0].whole, &info));
  assert_int_equal(cudaStreamSynchronize(w->ranks[0].stream), cudaSuccess);
  vg_peek(seen, info.data, sizeof seen);
  for (int64_t i = 0; i < ROWS * COLUMNS; i++)
    if (seen[i] != element_value(i))
      fail_msg("element %d is %g, not %g", (int)i, (double)seen[i], (double)element_value(i));
}

static void open_local(world *w, int ngpus) {
  reshard_device devices[MOST];
  reshard_comm comms[MOST];
  for (int64_t i = 0; i < w->n; i++) {
    char name[32];
    snprintf(name, sizeof name, "cuda:%d", (int)i % ngpus);
    GOOD(reshard_device_create(name, NULL, &devices[i]));
  }
  const reshard_local_options local = {.size = RESHARD_LOCAL_OPTIONS_INIT, .devices = devices, .ndevices = w->n};
  GOOD(reshard_comm_create_local(w->n, &local, comms));
  for (int64_t i = 0; i < w->n; i++) {
    w->ranks[i].comm = comms[i];
    w->ranks[i].device = devices[i];
  }
}

/* gpus: as in check_steady. */
static void open_world(world *w, int gpus) {
  if (w->nccl)
    GOOD(reshard_nccl_unique_id(w->id));
  else
    open_local(w, gpus);
  run_phase(w, open_body);
}

static void close_world(world *w) {
  run_phase(w, close_body);
  for (int64_t i = 0; i < w->n; i++) {
    if (!w->nccl)
      reshard_device_release(w->ranks[i].device);
    if (w->borrowed)
      ncclCommAbort(w->ranks[i].nccl);
    cudaStreamDestroy(w->ranks[i].stream);
  }
}

/* Of each of so many ways there a quarter of the tensor comes into the other domain once, from each rank; and two of
 * them to rank 0 on the way back, where it is gathered. */
static void check_entered(const world *w, int64_t ways) {
  int64_t bytes = 0;
  for (int64_t i = 0; i < w->n; i++) {
    reshard_comm_stats stats;
    GOOD(reshard_comm_get_stats(w->ranks[i].comm, &stats));
    bytes += stats.between_bytes;
  }
  assert_int_equal(bytes, ways * (4 + 2) * (ROWS * COLUMNS / 4) * (int64_t)sizeof(float));
}

/* Ranks in two domains. */
static const int64_t halves[MOST] = {0, 0, 1, 1};
static const reshard_topology in_halves = {RESHARD_TOPOLOGY_INIT, 4, halves, 1000, 1000, 1000, 2};

/* gpus: 0: over NCCL; -1: over the caller's communicators. */
static void check_steady_in(const reshard_topology *topology, const char *name, int64_t n, int gpus, reshard_path path,
                            int64_t limit, uint64_t seed) {
  enum { WARM = 8, CALLS = 12 };
  world w = {.n = n,
             .nccl = gpus <= 0,
             .borrowed = gpus < 0,
             .options = {.path = path, .workspace_limit = limit, .topology = topology}};
  vg_begin(&(vg_options){.devices = (int)n, .seed = seed});
  open_world(&w, gpus);
  w.calls = WARM;
  run_phase(&w, move_body);
  check_whole(&w);
  vg_counts before = vg_count();
  int64_t gathers = vg_calls("ncclAllGather"), driver = vg_calls("cudaMalloc*") + vg_calls("cudaHostAlloc");
  w.calls = CALLS;
  run_phase(&w, move_body);
  vg_counts after = vg_count();
  gathers = vg_calls("ncclAllGather") - gathers;
  driver = vg_calls("cudaMalloc*") + vg_calls("cudaHostAlloc") - driver;
  if (gathers + driver + after.allocs - before.allocs + after.frees - before.frees + after.host_syncs -
          before.host_syncs + after.creates - before.creates !=
      0)
    fail_msg("%s: %d all-gathers, %d allocations (%d), %d frees, %d waits of the host, %d creations in %d calls", name,
             (int)gathers, (int)driver, (int)(after.allocs - before.allocs), (int)(after.frees - before.frees),
             (int)(after.host_syncs - before.host_syncs), (int)(after.creates - before.creates), CALLS);
  check_whole(&w);
  if (topology != NULL)
    check_entered(&w, (WARM + CALLS) / 2);
  close_world(&w);
  if (vg_end() != 0)
    fail_msg("%s, seed %d: %s", name, (int)seed, vg_report(0));
}

static void check_steady(const char *name, int64_t n, int gpus, reshard_path path, int64_t limit, uint64_t seed) {
  check_steady_in(NULL, name, n, gpus, path, limit, seed);
}

CASE(later_calls_that_pass_bytes_on_wait_for_nothing) {
  for (uint64_t seed = 1; seed <= 3; seed++) {
    check_steady_in(&in_halves, "passed on", 4, 4, RESHARD_PATH_PACKED, 0, seed);
    check_steady_in(&in_halves, "passed on, 2 GPUs, rounds", 4, 2, RESHARD_PATH_PACKED, 16384, seed);
  }
}

CASE(later_calls_over_nccl_wait_for_nothing) {
  for (uint64_t seed = 1; seed <= 3; seed++) {
    check_steady("NCCL", 3, 0, RESHARD_PATH_AUTO, 0, seed);
    check_steady("NCCL, rounds", 4, 0, RESHARD_PATH_AUTO, 16384, seed);
    check_steady("a caller's NCCL", 3, -1, RESHARD_PATH_AUTO, 0, seed);
    check_steady("a caller's NCCL, rounds", 4, -1, RESHARD_PATH_AUTO, 16384, seed);
  }
}

CASE(later_calls_of_threads_wait_for_nothing) {
  for (uint64_t seed = 1; seed <= 3; seed++) {
    check_steady("direct", 3, 1, RESHARD_PATH_AUTO, 0, seed);
    check_steady("direct, a GPU each", 3, 3, RESHARD_PATH_AUTO, 0, seed);
    check_steady("packed", 3, 1, RESHARD_PATH_PACKED, 0, seed);
    check_steady("packed, 2 GPUs", 4, 2, RESHARD_PATH_PACKED, 16384, seed);
  }
}

/* --- A captured stream -------------------------------------------------------------------------------------------- */

static bool refused(reshard_status status) {
  return status == RESHARD_ERROR_INVALID && strstr(reshard_last_error(), "is being captured") != NULL;
}
#define REFUSED(call) \
  do { \
    if (!refused(call)) \
      return rs_error(RESHARD_ERROR_INTERNAL, "%s: %s", #call, reshard_last_error()); \
  } while (0)

/* Each collective call that moves data. What the result of each would hold lies in place: nothing is packed. */
static reshard_status move_captured(world *w, rank *r) {
  const reshard_placing to = placing_of(r, 1 - r->at), from = placing_of(r, r->at);
  const reshard_remote_device ranks[MOST] = {{0, RESHARD_DEVICE_CUDA, 0},
                                             {1, RESHARD_DEVICE_CUDA, 1},
                                             {2, RESHARD_DEVICE_CUDA, 2},
                                             {3, RESHARD_DEVICE_CUDA, 3}};
  reshard_local_reshard cuts = {.size = RESHARD_LOCAL_RESHARD_INIT,
                                .dtype = RESHARD_F32,
                                .ndim = 2,
                                .shape = shape,
                                .before = {r->at, w->n, ranks},
                                .after = {1 - r->at, w->n, ranks}};
  reshard_tensor root = r == w->ranks ? r->whole : NULL, local = reshard_dtensor_local(r->tensor), whole;
  reshard_sharded_tensor view = reshard_dtensor_sharded(r->tensor), made;
  reshard_layout layout = reshard_sharded_tensor_layout(view);
  reshard_dtensor next;
  REFUSED(reshard_dtensor_redistribute(1, &r->tensor, &to, r->stream, &next));
  REFUSED(reshard_dtensor_full(r->tensor, r->stream, &whole));
  REFUSED(reshard_dtensor_distribute(r->sharder, &from, root, 0, 2, shape, &f32, r->stream, &next));
  REFUSED(reshard_sharded_tensor_gather(view, 0, root, r->stream));
  REFUSED(reshard_sharded_tensor_gather_as(view, 0, RESHARD_F32, root, r->stream));
  REFUSED(reshard_sharded_tensor_gather_all(view, r->whole, r->stream));
  REFUSED(reshard_sharded_tensor_scatter(r->sharder, root, 0, layout, &f32, r->stream, &made));
  REFUSED(reshard_sharded_tensor_reshard(1, &view, &layout, r->stream));
  REFUSED(reshard_sharded_tensor_reshard_to(1, &view, &layout, r->stream, &made));
  REFUSED(reshard_reshard_local_shard(r->sharder, &cuts, local, r->stream, &whole));
  cuts.after = cuts.before;
  REFUSED(reshard_reshuffle_local_shard(r->sharder, &cuts, local, r->stream, &whole));
  REFUSED(reshard_sync_tensors(r->comm, 0, 1, &r->whole, NULL, NULL, r->stream, NULL));
  return RESHARD_SUCCESS;
}

/* Calls of FSDP, of a leaf and of none: the stream is looked at first. */
static reshard_status shard_captured(rank *r) {
  reshard_tree leaf, made;
  RS_TRY(reshard_state_dtensor(r->tensor, &leaf));
  bool gathers = refused(reshard_fsdp_all_gather(r->sharder, leaf, NULL, r->stream, &made)) &&
                 refused(reshard_fsdp_all_gather(r->sharder, NULL, NULL, r->stream, &made));
  bool chunks = gathers && refused(reshard_fsdp_chunk_dtensor(r->sharder, leaf, r->mesh, r->stream, &made));
  reshard_tree_release(leaf);
  return chunks ? RESHARD_SUCCESS
                : rs_error(RESHARD_ERROR_INTERNAL, "%s: %s", gathers ? "chunk" : "all-gather", reshard_last_error());
}

static reshard_status capture_rank(world *w, rank *r) {
  cudaGraph_t graph;
  size_t nodes = 0;
  RS_TRY(cuda(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal)));
  reshard_status status = move_captured(w, r);
  RS_THEN(status, shard_captured(r));
  RS_TRY(cuda(cudaStreamEndCapture(r->stream, &graph)));
  RS_TRY(cuda(cudaGraphGetNodes(graph, NULL, &nodes)));
  RS_TRY(cuda(cudaGraphDestroy(graph)));
  RS_TRY(status);
  return nodes == 0 ? status : rs_error(RESHARD_ERROR_INTERNAL, "%d nodes in the graph", (int)nodes);
}

static void capture_body(void *user, int64_t i) {
  world *w = user;
  rank_result_set(&w->ranks[i].result, capture_rank(w, &w->ranks[i]));
}

/* Rank 1 alone captures: ranks of one process all hear of it. */
static void capture_alone_body(void *user, int64_t i) {
  world *w = user;
  cudaGraph_t graph;
  if (i == 1)
    cudaStreamBeginCapture(w->ranks[i].stream, cudaStreamCaptureModeThreadLocal);
  rank_result_set(&w->ranks[i].result, move_captured(w, &w->ranks[i]));
  if (i == 1 && cudaStreamEndCapture(w->ranks[i].stream, &graph) == cudaSuccess)
    cudaGraphDestroy(graph);
}

/* gpus: as in check_steady. Also where plans are kept, over the library's own communicator of NCCL. */
static void check_captured(int64_t n, int gpus, reshard_path path) {
  world w = {.n = n, .nccl = gpus <= 0, .borrowed = gpus < 0, .options = {.path = path}};
  vg_begin(&(vg_options){.devices = (int)n, .seed = 1});
  open_world(&w, gpus);
  run_phase(&w, capture_body);
  for (w.calls = 3; w.calls > 0; w.calls--) {
    run_phase(&w, move_body);
    check_whole(&w);
    vg_counts before = vg_count();
    run_phase(&w, capture_body);
    if (!w.nccl && n > 1)
      run_phase(&w, capture_alone_body);
    vg_counts after = vg_count();
    int64_t records = w.nccl ? n * 2 * 2 : 0; /* to NCCL and back: hosts of processes meet in two of the calls */
    assert_int_equal(after.launches + after.copies, before.launches + before.copies + records);
  }
  close_world(&w);
  if (vg_end() != 0)
    fail_msg("%d ranks, %d GPUs: %s", (int)n, gpus, vg_report(0));
}

/* Calls that move data are refused on a stream that is being captured. The graph is empty, and later calls go well. */
CASE(captured_stream_is_refused_and_the_graph_empty) {
  check_captured(1, 1, RESHARD_PATH_AUTO);
  check_captured(3, 1, RESHARD_PATH_AUTO);
  check_captured(3, 3, RESHARD_PATH_AUTO);
  check_captured(3, 3, RESHARD_PATH_PACKED);
  check_captured(1, 0, RESHARD_PATH_AUTO);
  check_captured(3, 0, RESHARD_PATH_AUTO);
  check_captured(3, -1, RESHARD_PATH_AUTO);
}

/* Rank 1, a process, captures alone. Where hosts meet in a call all hear of it. */
static bool distributed_captured(world *w, rank *r) {
  const reshard_placing placing = placing_of(r, r->at);
  reshard_dtensor made;
  return refused(reshard_dtensor_distribute(r->sharder, &placing, r == w->ranks ? r->whole : NULL, 0, 2, shape, &f32,
                                            r->stream, &made)) &&
         strncmp(reshard_last_error(), "rank 1: ", 8) == 0;
}

/* It returns at once from another one. The others wait for it until their deadline. */
static void capture_alone(void *user, int64_t i) {
  world *w = user;
  rank *r = &w->ranks[i];
  cudaGraph_t graph;
  size_t nodes = 1;
  if (i != 1 && !distributed_captured(w, r)) {
    rank_result_set(&r->result, RESHARD_ERROR_INTERNAL);
    return;
  }
  if (i != 1) {
    reshard_status status = move_rank(w, r); /* cached: its part is given to the stream */
    rank_result_set(&r->result, status == RESHARD_SUCCESS ? reshard_comm_barrier(r->comm) : status);
    return;
  }
  cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal);
  bool right = distributed_captured(w, r) && refused(move_rank(w, r));
  right &= cudaStreamEndCapture(r->stream, &graph) == cudaSuccess;
  right &= cudaGraphGetNodes(graph, NULL, &nodes) == cudaSuccess && nodes == 0;
  cudaGraphDestroy(graph);
  rank_result_set(&r->result, right ? RESHARD_SUCCESS : RESHARD_ERROR_INTERNAL);
}

/* Over the library's own communicator of NCCL, which ends then; in the first call, and where plans are kept. */
CASE(test_captured_by_one_process) {
  vg_quiet(true);
  for (int warm = 0; warm < 2; warm++) {
    world w = {.n = 3, .nccl = true, .calls = 4 * warm};
    vg_begin(&(vg_options){.devices = 3, .seed = 5});
    GOOD(reshard_nccl_unique_id(w.id));
    run_phase(&w, open_body);
    run_phase(&w, move_body);
    w.calls = 1;
    rank_threads_run(w.n, capture_alone, &w);
    assert_int_equal(w.ranks[1].result.status, RESHARD_SUCCESS);
    for (int64_t i = 0; i < w.n; i += 2)
      assert_true(w.ranks[i].result.status == RESHARD_ERROR_TIMEOUT || w.ranks[i].result.status == RESHARD_ERROR_PEER);
    assert_true(w.ranks[0].result.status == RESHARD_ERROR_TIMEOUT || w.ranks[2].result.status == RESHARD_ERROR_TIMEOUT);
    for (int64_t i = 0; i < w.n; i++)
      assert_int_equal(cudaStreamSynchronize(w.ranks[i].stream), cudaSuccess); /* nothing is left on it */
    run_phase(&w, close_body);
    for (int64_t i = 0; i < w.n; i++)
      cudaStreamDestroy(w.ranks[i].stream);
    (void)vg_end();
  }
  vg_quiet(false);
}

/* --- Destroying beside a capture ---------------------------------------------------------------------------------- */

/* Rebinding and destroying wait for the transfer's own execute, which is under way, while another stream is
 * captured. */
CASE(test_capture_elsewhere) {
  const int64_t bytes = 4 * ROWS * COLUMNS;
  for (uint64_t seed = 1; seed <= 8; seed++) {
    vg_begin(&(vg_options){.seed = seed});
    reshard_device device;
    reshard_comm comm;
    reshard_plan plan;
    reshard_transfer transfer;
    cudaStream_t stream, other;
    cudaGraph_t graph;
    void *at[3], *more;
    GOOD(reshard_device_create("cuda:0", NULL, &device));
    const reshard_local_options local = {.size = RESHARD_LOCAL_OPTIONS_INIT, .devices = &device, .ndevices = 1};
    GOOD(reshard_comm_create_local(1, &local, &comm));
    reshard_layout layout = layout_from_text("rank(0)", 2, shape, 1);
    const reshard_entry entry = {RESHARD_ENTRY_INIT, .src = layout, .dst = layout, .dtype = RESHARD_F32};
    GOOD(reshard_plan_create(1, &entry, 0, NULL, &plan));
    GOOD(cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
    GOOD(cuda(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking)));
    for (int i = 0; i < 3; i++)
      GOOD(cuda(cudaMalloc(&at[i], (size_t)bytes)));
    GOOD(cuda(cudaMalloc(&more, 64)));
    GOOD(cuda(cudaMemsetAsync(at[0], 1, (size_t)bytes, stream)));
    const reshard_transfer_options packed = {RESHARD_TRANSFER_OPTIONS_INIT, .path = RESHARD_PATH_PACKED};
    reshard_arrays arrays = {RESHARD_ARRAYS_INIT, .src = &at[0], .dst = &at[1]};
    GOOD(reshard_transfer_create(plan, comm, &arrays, &packed, &transfer));
    GOOD(reshard_execute(transfer, stream));
    GOOD(cuda(cudaStreamBeginCapture(other, cudaStreamCaptureModeGlobal)));
    GOOD(cuda(cudaMemsetAsync(more, 2, 64, other)));
    int64_t waits = vg_calls("cudaDeviceSynchronize");
    arrays.dst = &at[2];
    GOOD(reshard_transfer_rebind(transfer, &arrays));
    GOOD(reshard_execute(transfer, stream));
    reshard_transfer_destroy(transfer);
    assert_int_equal(vg_calls("cudaDeviceSynchronize"), waits);
    GOOD(cuda(cudaStreamEndCapture(other, &graph))); /* it is as it was */
    GOOD(cuda(cudaGraphDestroy(graph)));
    GOOD(cuda(cudaStreamSynchronize(stream)));
    for (int i = 0; i < 3; i++)
      cudaFree(at[i]);
    cudaFree(more);
    reshard_plan_destroy(plan);
    reshard_layout_release(layout);
    reshard_comm_destroy(comm);
    reshard_device_release(device);
    cudaStreamDestroy(stream);
    cudaStreamDestroy(other);
    if (vg_end() != 0)
      fail_msg("seed %d: %s", (int)seed, vg_report(0));
  }
}

/* --- A rank that fails alone ------------------------------------------------------------------------------------- */

enum { HOGS = 256 };

/* Takes all that the rank's pool has. */
static int take_all(rank *r, reshard_tensor hogs[HOGS]) {
  int n = 0;
  for (int64_t size = 1 << 20; size >= 256 && n < HOGS;)
    if (reshard_tensor_create_on(r->device, RESHARD_U8, 1, &size, r->stream, &hogs[n]) == RESHARD_SUCCESS)
      n++;
    else
      size /= 2;
  return n;
}

/* Rank 1 has no memory for the result of a call that went well before. */
static void failing_rank(void *user, int64_t i) {
  world *w = user;
  rank *r = &w->ranks[i];
  reshard_tensor hogs[HOGS];
  int nhogs = i == 1 ? take_all(r, hogs) : 0;
  reshard_status status = move_rank(w, r);
  rank_result_set(&r->result, status);
  if (i == 1) /* the next call does not wait for anybody */
    snprintf(r->result.text + strlen(r->result.text), 60, "; then %s", reshard_status_string(move_rank(w, r)));
  else if (status == RESHARD_SUCCESS) /* its part of the call is given to the stream, which waits for rank 1's */
    rank_result_set(&r->result, reshard_comm_barrier(r->comm));
  while (nhogs > 0)
    reshard_tensor_release(hogs[--nhogs]);
}

/* Opens 3 ranks, whose plans are cached; a later call of rank 1 alone fails. */
static void fail_alone(world *w) {
  vg_quiet(true);
  vg_begin(&(vg_options){.devices = 3, .seed = 5});
  GOOD(reshard_nccl_unique_id(w->id));
  run_phase(w, open_body);
  w->calls = 4;
  run_phase(w, move_body);
  check_whole(w);
  w->calls = 1;
  rank_threads_run(w->n, failing_rank, w);
  assert_int_equal(w->ranks[1].result.status, RESHARD_ERROR_OUT_OF_MEMORY);
  assert_non_null(strstr(w->ranks[1].result.text, "then RESHARD_ERROR_PEER"));
}

/* The communicator is the library's own: it ends, and the others hear of that. */
CASE(test_fails_alone) {
  const reshard_device_options limit = {.size = RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .limit_bytes = 4 << 20};
  world w = {.n = 3, .nccl = true, .options = {.path = RESHARD_PATH_AUTO}, .device_options = &limit};
  fail_alone(&w);
  for (int64_t i = 0; i < w.n; i++) {
    if (i != 1)
      assert_true(w.ranks[i].result.status == RESHARD_ERROR_TIMEOUT || w.ranks[i].result.status == RESHARD_ERROR_PEER);
    assert_int_equal(cudaStreamSynchronize(w.ranks[i].stream), cudaSuccess); /* nothing is left on it */
  }
  run_phase(&w, close_body);
  for (int64_t i = 0; i < w.n; i++)
    cudaStreamDestroy(w.ranks[i].stream);
  (void)vg_end();
  vg_quiet(false);
}

/* It is the caller's, who aborts it. Nothing is left on a stream then, and everything can be destroyed. */
CASE(test_fails_alone_borrowed) {
  const reshard_device_options limit = {.size = RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .limit_bytes = 4 << 20};
  world w = {.n = 3, .nccl = true, .borrowed = true, .device_options = &limit};
  fail_alone(&w);
  for (int64_t i = 0; i < w.n; i++) {
    if (i != 1)
      assert_int_equal(w.ranks[i].result.status, RESHARD_ERROR_TIMEOUT);
    assert_int_equal(ncclCommAbort(w.ranks[i].nccl), ncclSuccess);
  }
  for (int64_t i = 0; i < w.n; i++)
    assert_int_equal(cudaStreamSynchronize(w.ranks[i].stream), cudaSuccess);
  run_phase(&w, close_body);
  for (int64_t i = 0; i < w.n; i++)
    cudaStreamDestroy(w.ranks[i].stream);
  int reports = vg_end();
  assert_int_equal(reports, vg_reports_with("leak")); /* it keeps what the peers may still have held */
  vg_quiet(false);
}

/* --- Sharders that cannot be made --------------------------------------------------------------------------------- */

/* Another sharder: rank 1's options are out of bounds, then unlike the others'; then all are well. */
static reshard_status make_sharders(rank *r, int64_t i) {
  reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .device = r->device};
  reshard_sharder made = NULL;
  options.cached_plans = i == 1 ? -2 : 5;
  reshard_status status = reshard_sharder_create(r->comm, &options, &made);
  if (status != RESHARD_ERROR_INVALID || strstr(reshard_last_error(), "rank 1: -2 cached plans") == NULL)
    return rs_error(RESHARD_ERROR_INTERNAL, "a rank that fails: %s", reshard_last_error());
  options.cached_plans = i == 1 ? 3 : 5;
  status = reshard_sharder_create(r->comm, &options, &made);
  if (status != RESHARD_ERROR_MISMATCH ||
      strstr(reshard_last_error(), "cached_plans 5 on rank 0, 3 on rank 1") == NULL || made != NULL)
    return rs_error(RESHARD_ERROR_INTERNAL, "unequal options: %s", reshard_last_error());
  options.cached_plans = 5;
  RS_TRY(reshard_sharder_create(r->comm, &options, &made));
  reshard_sharder_destroy(made);
  return RESHARD_SUCCESS;
}

static void make_sharders_body(void *user, int64_t i) {
  world *w = user;
  rank_result_set(&w->ranks[i].result, make_sharders(&w->ranks[i], i));
}

/* All ranks get the same error, and the caller's communicator goes on. */
CASE(test_sharders_borrowed) {
  world w = {.n = 3, .nccl = true, .borrowed = true};
  vg_begin(&(vg_options){.devices = 3, .seed = 2});
  GOOD(reshard_nccl_unique_id(w.id));
  run_phase(&w, open_body);
  run_phase(&w, make_sharders_body);
  w.calls = 2;
  run_phase(&w, move_body);
  check_whole(&w);
  run_phase(&w, close_body);
  for (int64_t i = 0; i < w.n; i++) {
    ncclCommAbort(w.ranks[i].nccl);
    cudaStreamDestroy(w.ranks[i].stream);
  }
  if (vg_end() != 0)
    fail_msg("%s", vg_report(0));
}

RUN_CASES
