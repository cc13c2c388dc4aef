/* Places of arrays. Memory that the rank's GPU does not reach is an error of all ranks at create and rebind, with the
 * numbers; memory of the GPU that another rank's does not reach is packed by all ranks, and never read
 * where it is. */
#include "base/base.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#include <reshard/reshard.h>
#include <reshard/sharded.h>
#include <reshard/tensor.h>

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, ROWS = 3 * RANKS, COLUMNS = 4 * RANKS, ELEMENTS = ROWS * COLUMNS / RANKS, BYTES = 4 * ELEMENTS };

/* Memory of rank 1's source; of the others it is plain. */
typedef enum memory { PLAIN, PAGEABLE, PINNED, OTHER_GPU, CLOSED_POOL, OPEN_POOL, MAPPED, MEMORIES } memory;
static const char *const memory_names[] = {"plain",       "pageable",  "pinned", "another GPU's",
                                           "closed pool", "open pool", "mapped"};

typedef struct world {
  memory source;
  reshard_path path;
  bool rebind; /* the source comes with a rebind; else at create */
  bool nccl;
  unsigned char id[RESHARD_NCCL_ID_BYTES];
  reshard_device device[RANKS];
  reshard_comm comm[RANKS];
  void *src[RANKS], *dst[RANKS], *plain[RANKS];
  cudaMemPool_t pool;
  cudaStream_t stream[RANKS];
  reshard_path taken[RANKS];
  rank_result result[RANKS];
} world;

static void *make_source(world *w, int64_t r, cudaStream_t stream) {
  struct cudaMemPoolProps props = {.allocType = cudaMemAllocationTypePinned};
  struct cudaMemAccessDesc access[RANKS];
  void *at = NULL;
  props.location.type = cudaMemLocationTypeDevice;
  props.location.id = (int)r;
  switch (r == 1 ? w->source : PLAIN) {
  case PAGEABLE: return malloc(BYTES);
  case PINNED: cudaHostAlloc(&at, BYTES, cudaHostAllocPortable); return at;
  case OTHER_GPU:
    cudaSetDevice(2);
    cudaMalloc(&at, BYTES);
    cudaSetDevice((int)r);
    return at;
  case CLOSED_POOL:
  case OPEN_POOL:
    cudaMemPoolCreate(&w->pool, &props);
    for (int g = 0; g < RANKS; g++)
      access[g] = (struct cudaMemAccessDesc){{cudaMemLocationTypeDevice, g}, cudaMemAccessFlagsProtReadWrite};
    if (w->source == OPEN_POOL)
      cudaMemPoolSetAccess(w->pool, access, RANKS);
    cudaMallocFromPoolAsync(&at, BYTES, w->pool, stream);
    cudaStreamSynchronize(stream);
    return at;
  case MAPPED: return vg_map((int)r, BYTES);
  default: cudaMalloc(&at, BYTES); return at;
  }
}

static void free_source(world *w, int64_t r, cudaStream_t stream) {
  memory kind = r == 1 ? w->source : PLAIN;
  if (kind == PAGEABLE)
    free(w->src[r]);
  else if (kind == PINNED)
    cudaFreeHost(w->src[r]);
  else if (kind == MAPPED)
    vg_unmap(w->src[r]);
  else if (w->pool != NULL && r == 1)
    cudaFreeAsync(w->src[r], stream);
  else
    cudaFree(w->src[r]);
  if (w->pool != NULL && r == 1)
    cudaMemPoolDestroy(w->pool);
}

static float value_of(int64_t i) { return (float)(1000 + i); }

static void fill_source(void *at, int64_t r) {
  float values[ELEMENTS];
  for (int64_t i = 0; i < ELEMENTS; i++)
    values[i] = value_of(r * ELEMENTS + i);
  vg_poke(at, values, sizeof values);
}

/* The rank's columns of the whole. */
static reshard_status check_columns(const void *at, int64_t r) {
  float seen[ELEMENTS];
  vg_peek(seen, at, sizeof seen);
  for (int64_t i = 0; i < ROWS; i++)
    for (int64_t j = 0; j < COLUMNS / RANKS; j++)
      if (seen[i * (COLUMNS / RANKS) + j] != value_of(i * COLUMNS + r * (COLUMNS / RANKS) + j))
        return RESHARD_ERROR_CORRUPT;
  return RESHARD_SUCCESS;
}

static reshard_status move_rank(world *w, int64_t r, reshard_plan plan, cudaStream_t stream) {
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, .src = w->rebind ? &w->plain[r] : &w->src[r], .dst = &w->dst[r]};
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = w->path};
  reshard_transfer transfer = NULL;
  reshard_transfer_info info;
  reshard_status status = reshard_transfer_create(plan, w->comm[r], &arrays, &options, &transfer);
  arrays.src = &w->src[r];
  if (status == RESHARD_SUCCESS && w->rebind)
    status = reshard_transfer_rebind(transfer, &arrays);
  rank_result_set(&w->result[r], status);
  RS_THEN(status, reshard_transfer_get_info(transfer, &info));
  for (int i = 0; i < 2 && status == RESHARD_SUCCESS; i++)
    status = reshard_execute(transfer, stream);
  cudaStreamSynchronize(stream);
  if (status == RESHARD_SUCCESS) {
    w->taken[r] = info.path;
    status = check_columns(w->dst[r], r);
    rank_result_set(&w->result[r], status);
  }
  reshard_transfer_destroy(transfer);
  return status;
}

static void rank_body(void *user, int64_t r) {
  world *w = user;
  const int64_t shape[2] = {ROWS, COLUMNS};
  reshard_entry entry = {.size = RESHARD_ENTRY_INIT, .dtype = RESHARD_F32, .name = "w"};
  reshard_plan plan = NULL;
  cudaSetDevice((int)r);
  cudaStreamCreateWithFlags(&w->stream[r], cudaStreamNonBlocking);
  cudaStream_t stream = w->stream[r];
  w->src[r] = make_source(w, r, stream);
  cudaMalloc(&w->plain[r], BYTES);
  cudaMalloc(&w->dst[r], BYTES);
  fill_source(w->plain[r], r);
  fill_source(w->src[r], r);
  reshard_status status = RESHARD_SUCCESS;
  if (w->nccl) {
    char name[32];
    snprintf(name, sizeof name, "cuda:%d", (int)r);
    status = reshard_device_create(name, NULL, &w->device[r]);
    RS_THEN(status, reshard_comm_create_nccl(w->id, RANKS, r, w->device[r], 5000, &w->comm[r]));
  }
  RS_THEN(status, reshard_layout_parse("chunk(0)", 2, shape, RANKS, &entry.src));
  RS_THEN(status, reshard_layout_parse("chunk(1)", 2, shape, RANKS, &entry.dst));
  RS_THEN(status, reshard_plan_create(1, &entry, r, NULL, &plan));
  rank_result_set(&w->result[r], status);
  if (status == RESHARD_SUCCESS)
    (void)move_rank(w, r, plan, stream);
  reshard_plan_destroy(plan);
  reshard_layout_release(entry.src);
  reshard_layout_release(entry.dst);
}

static void close_rank(void *user, int64_t r) {
  world *w = user;
  cudaSetDevice((int)r);
  cudaDeviceSynchronize();
  free_source(w, r, w->stream[r]);
  cudaFree(w->plain[r]);
  cudaFree(w->dst[r]);
  reshard_comm_destroy(w->comm[r]);
  cudaStreamDestroy(w->stream[r]);
}

static void open_devices(const reshard_device_options *options, reshard_device *devices, reshard_comm *comms) {
  for (int r = 0; r < RANKS; r++) {
    char name[32];
    snprintf(name, sizeof name, "cuda:%d", r);
    GOOD(reshard_device_create(name, options, &devices[r]));
  }
  const reshard_local_options local = {.size = RESHARD_LOCAL_OPTIONS_INIT, .devices = devices, .ndevices = RANKS};
  GOOD(reshard_comm_create_local(RANKS, &local, comms));
}

/* The path that all ranks are to take, or the words of the error that they are to get. */
static reshard_path expected(const world *w, char *words, size_t size) {
  words[0] = '\0';
  if (w->source == PAGEABLE)
    snprintf(words, size, "'w': source buffer 0 at %p is memory of the host that is not pinned, the rank is on cuda:1",
             w->src[1]);
  if (w->source == OTHER_GPU)
    snprintf(words, size, "'w': source buffer 0 at %p is on cuda:2, the rank on cuda:1", w->src[1]);
  if (w->nccl || w->path == RESHARD_PATH_PACKED)
    return RESHARD_PATH_PACKED;
  bool barred = w->source == CLOSED_POOL || w->source == MAPPED;
  if (barred && (w->path == RESHARD_PATH_DIRECT || w->rebind))
    snprintf(words, size, "'w': source buffer 0 at %p on cuda:1 is not reached by cuda:0", w->src[1]);
  return barred ? RESHARD_PATH_PACKED : RESHARD_PATH_DIRECT;
}

static void run_scene(memory source, reshard_path path, bool rebind, bool nccl) {
  world w = {.source = source, .path = path, .rebind = rebind, .nccl = nccl};
  char words[256], what[64];
  bool closed = source == CLOSED_POOL || source == MAPPED;
  vg_begin(&(vg_options){.devices = RANKS, .seed = (uint64_t)source + 7 * rebind});
  if (nccl)
    GOOD(reshard_nccl_unique_id(w.id));
  else
    open_devices(NULL, w.device, w.comm);
  rank_threads_run(RANKS, rank_body, &w);
  snprintf(what, sizeof what, "%s, path %d%s%s", memory_names[source], (int)path, rebind ? ", rebind" : "",
           nccl ? ", NCCL" : "");
  reshard_path taken = expected(&w, words, sizeof words);
  for (int r = 0; r < RANKS; r++) {
    bool own = nccl || (rebind && path == RESHARD_PATH_PACKED); /* the others do not hear of a local rebind */
    if (words[0] == '\0' && (w.result[r].status != RESHARD_SUCCESS || w.taken[r] != taken))
      fail_msg("%s: rank %d took path %d: %s", what, r, (int)w.taken[r], w.result[r].text);
    if (words[0] != '\0' && (r == 1 || !own) &&
        (w.result[r].status != (closed ? RESHARD_ERROR_UNSUPPORTED : RESHARD_ERROR_INVALID) ||
         strstr(w.result[r].text, words) == NULL || (!own && strstr(w.result[r].text, "rank 1") == NULL)))
      fail_msg("%s: rank %d: %s, not '%s'", what, r, w.result[r].text, words);
  }
  rank_threads_run(RANKS, close_rank, &w);
  for (int r = 0; r < RANKS; r++)
    reshard_device_release(w.device[r]);
  if (vg_end() != 0)
    fail_msg("%s: %s", what, vg_report(0));
}

CASE(create_refuses_memory_out_of_reach) {
  vg_quiet(true);
  for (int source = PLAIN; source < MEMORIES; source++) {
    run_scene((memory)source, RESHARD_PATH_AUTO, false, false);
    run_scene((memory)source, RESHARD_PATH_DIRECT, false, false);
    run_scene((memory)source, RESHARD_PATH_PACKED, false, false);
  }
  vg_quiet(false);
}

CASE(rebind_refuses_memory_out_of_reach) {
  vg_quiet(true);
  for (int source = PLAIN; source < MEMORIES; source++)
    run_scene((memory)source, RESHARD_PATH_AUTO, true, false);
  for (int source = PINNED; source < MEMORIES; source++)
    if (source != OTHER_GPU) /* packed: a rank's rebind is its own, and the others would wait in execute */
      run_scene((memory)source, RESHARD_PATH_PACKED, true, false);
  vg_quiet(false);
}

/* --- Repeated calls ----------------------------------------------------------------------------------------------- */

enum { CALLS = 6, MOVED = 2 };

typedef struct repeated {
  reshard_device device[RANKS];
  reshard_comm comm[RANKS];
  reshard_sharder sharder[RANKS];
  void *memory[2]; /* of rank 1: mapped */
  rank_result result[RANKS];
} repeated;

static reshard_status check_result(reshard_sharded_tensor result, int64_t r) {
  reshard_tensor array;
  reshard_tensor_info info;
  reshard_status status = reshard_sharded_tensor_local(result, 0, &array, NULL);
  RS_THEN(status, reshard_tensor_get_info(array, &info));
  return status == RESHARD_SUCCESS ? check_columns(info.data, r) : status;
}

/* From rows to columns, out of new arrays each time; those of rank 1 are mapped memory from call MOVED on. */
static reshard_status reshard_often(repeated *w, int64_t r) {
  const int64_t shape[2] = {ROWS, COLUMNS}, rows[2] = {ROWS / RANKS, COLUMNS};
  const reshard_properties f32 = {.dtype = RESHARD_F32};
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .device = w->device[r]};
  reshard_layout from = NULL, to = NULL;
  void *stream = NULL;
  reshard_status status = reshard_stream_create(w->device[r], &stream);
  RS_THEN(status, reshard_sharder_create(w->comm[r], &options, &w->sharder[r]));
  RS_THEN(status, reshard_layout_parse("chunk(0)", 2, shape, RANKS, &from));
  RS_THEN(status, reshard_layout_parse("chunk(1)", 2, shape, RANKS, &to));
  for (int i = 0; i < CALLS && status == RESHARD_SUCCESS; i++) {
    reshard_tensor part = NULL;
    reshard_tensor_info info;
    reshard_sharded_tensor tensor = NULL, result = NULL;
    if (r == 1 && i >= MOVED)
      status = reshard_tensor_wrap_on(w->device[r], RESHARD_F32, 2, rows, NULL, w->memory[i % 2], NULL, NULL, &part);
    else
      status = reshard_tensor_create_on(w->device[r], RESHARD_F32, 2, rows, stream, &part);
    RS_THEN(status, reshard_stream_synchronize(w->device[r], stream));
    RS_THEN(status, reshard_tensor_get_info(part, &info));
    if (status == RESHARD_SUCCESS)
      fill_source(info.data, r);
    RS_THEN(status, reshard_sharded_tensor_from_layout(w->sharder[r], from, &f32, 1, &part, &tensor));
    RS_THEN(status, reshard_sharded_tensor_reshard_to(1, &tensor, &to, stream, &result));
    RS_THEN(status, reshard_stream_synchronize(w->device[r], stream));
    RS_THEN(status, check_result(result, r));
    reshard_sharded_tensor_release(result);
    reshard_sharded_tensor_release(tensor);
    reshard_tensor_release(part);
  }
  reshard_layout_release(from);
  reshard_layout_release(to);
  reshard_sharder_destroy(w->sharder[r]);
  reshard_stream_destroy(w->device[r], stream);
  return status;
}

static void repeated_body(void *user, int64_t r) {
  repeated *w = user;
  rank_result_set(&w->result[r], reshard_often(w, r));
}

/* Calls go on with the same results, and no GPU reads what it does not reach. */
CASE(repeated_calls_read_only_what_they_reach) {
  for (uint64_t seed = 1; seed <= 3; seed++) {
    repeated w = {.memory = {NULL}};
    vg_begin(&(vg_options){.devices = RANKS, .seed = seed});
    open_devices(NULL, w.device, w.comm);
    for (int i = 0; i < 2; i++)
      w.memory[i] = vg_map(1, BYTES);
    rank_threads_run(RANKS, repeated_body, &w);
    rank_results_assert(RANKS, w.result, RESHARD_SUCCESS, NULL, "repeated calls");
    for (int i = 0; i < 2; i++)
      vg_unmap(w.memory[i]);
    for (int r = 0; r < RANKS; r++) {
      reshard_comm_destroy(w.comm[r]);
      reshard_device_release(w.device[r]);
    }
    if (vg_end() != 0)
      fail_msg("seed %d: %s", (int)seed, vg_report(0));
  }
}

RUN_CASES
