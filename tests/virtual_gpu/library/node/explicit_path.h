/* Sharders over processes with GPUs that read each other's storage on an explicit path: scenes of a rank among
 * NODE_RANKS. */
#ifndef TESTS_VG_EXPLICIT_PATH_H
#define TESTS_VG_EXPLICIT_PATH_H

#include "columns.h"
#include "exec/transfer.h"
#include "node_gather.h"
#include "support/contracts/contract.h"
#include "support/fixtures/case.h"
#include "virtual_gpu.h"

#include <reshard/sync.h>

#include <cuda_runtime_api.h>
#include <string.h>

/* The communicator of the ranks. */
typedef struct explicit_comm {
  node_gather *gather;
  uint64_t (*meetings)(reshard_comm comm); /* of the rank's host with the others' */
  bool by_gpu;                             /* hosts meet through their GPUs, which they wait for */
  int64_t gpus, nodes;                     /* rank r has GPU r % gpus, and is on node r % nodes */
  reshard_path path;
} explicit_comm;

/* The part of a rank in a scene. */
typedef void explicit_scene(const explicit_comm *c, contract_rank *me, int64_t rank);

/* A tensor of rows goes to columns and back, in pieces that have a segment each. */
typedef struct moving {
  reshard_mesh mesh;
  reshard_dtensor tensor;
} moving;

enum { CALLS = 4 };

static inline reshard_status begin_moving(contract_rank *me, int64_t columns, moving *m) {
  const int64_t n = NODE_RANKS, shape[2] = {NODE_RANKS, columns};
  const reshard_properties bytes = {.dtype = RESHARD_U8};
  const reshard_placement rows = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0};
  reshard_tensor_info info;
  reshard_status status = reshard_mesh_create(me->comm, 0, 1, &n, NULL, 0, NULL, &m->mesh);
  RS_THEN(status, reshard_dtensor_empty(me->sharder, &(reshard_placing){m->mesh, &rows, NULL}, 2, shape, &bytes,
                                        me->stream, &m->tensor));
  if (status != RESHARD_SUCCESS)
    return status;
  (void)reshard_tensor_get_info(reshard_dtensor_local(m->tensor), &info);
  vg_own_calls(true);
  cudaMemsetAsync(info.data, (int)reshard_comm_rank(me->comm) + 1, (size_t)columns, me->stream);
  vg_own_calls(false);
  return RESHARD_SUCCESS;
}

static inline reshard_status move_once(contract_rank *me, int dim, moving *m) {
  const reshard_placement cut = {.kind = RESHARD_PLACEMENT_SHARD, .dim = dim};
  reshard_dtensor next;
  reshard_status status =
      reshard_dtensor_redistribute(1, &m->tensor, &(reshard_placing){m->mesh, &cut, NULL}, me->stream, &next);
  if (status != RESHARD_SUCCESS)
    return status;
  reshard_dtensor_release(m->tensor);
  m->tensor = next;
  return RESHARD_SUCCESS;
}

static inline void end_moving(moving *m) {
  reshard_dtensor_release(m->tensor);
  reshard_mesh_release(m->mesh);
}

/* Each rank has a part of all rows, and each row is of the rank that had it. */
static inline bool is_moved(const moving *m) {
  reshard_tensor_info info;
  (void)reshard_tensor_get_info(reshard_dtensor_local(m->tensor), &info);
  int64_t columns = info.shape[1], right = 0;
  for (int64_t i = 0; i < info.shape[0] * columns; i += 97) {
    char here;
    vg_peek(&here, (char *)info.data + i, 1);
    right += here == 1 + i / columns;
  }
  return info.shape[0] == NODE_RANKS && right == (NODE_RANKS * columns + 96) / 97;
}

/* Where no rank's arrays have moved, hosts meet once in a call, and nothing is made. */
static inline void explicit_in_place(const explicit_comm *c, contract_rank *me, int64_t rank) {
  static vg_counts before, now;
  moving m = {.mesh = NULL};
  CONTRACT_SUCCEEDS(me, begin_moving(me, 12, &m));
  for (int i = 0; i < 4 * CALLS; i++) {
    uint64_t before_it = c->meetings(me->comm);
    if (i == 2 * CALLS) {
      node_gather_meet(c->gather);
      before = rank == 0 ? vg_count() : before;
      node_gather_meet(c->gather);
    }
    CONTRACT_SUCCEEDS(me, move_once(me, (i + 1) % 2, &m));
    CONTRACT_CHECK(me, i < 2 * CALLS || c->meetings(me->comm) == before_it + 1);
  }
  node_gather_meet(c->gather);
  now = rank == 0 ? vg_count() : now;
  node_gather_meet(c->gather);
  CONTRACT_CHECK(me, now.allocs == before.allocs && now.frees == before.frees && now.creates == before.creates);
  CONTRACT_CHECK(me, (c->by_gpu || now.host_syncs == before.host_syncs) && now.launches > before.launches);
  CONTRACT_SUCCEEDS(me, move_once(me, 1, &m));
  CONTRACT_CHECK(me, cudaStreamSynchronize(me->stream) == cudaSuccess && is_moved(&m));
  end_moving(&m);
}

/* One rank's arrays move in some of the calls: they read its new ones. */
static inline void explicit_elsewhere(const explicit_comm *c, contract_rank *me, int64_t rank) {
  reshard_dtensor kept[CALLS] = {NULL};
  moving m = {.mesh = NULL};
  CONTRACT_SUCCEEDS(me, begin_moving(me, 12, &m));
  for (int i = 0; i < 6 * CALLS; i++) {
    reshard_dtensor *place = &kept[i / 5 % CALLS];
    if (rank == 1 && i % 5 == 0) {
      reshard_dtensor_release(*place);
      *place = reshard_dtensor_retain(m.tensor);
    }
    CONTRACT_SUCCEEDS(me, move_once(me, (i + 1) % 2, &m));
    CONTRACT_CHECK(me, i % 2 == 1 || (cudaStreamSynchronize(me->stream) == cudaSuccess && is_moved(&m)));
  }
  for (int i = 0; i < CALLS; i++)
    reshard_dtensor_release(kept[i]);
  end_moving(&m);
}

/* A source of cudaMalloc is an error on all ranks, and they go on. */
static inline void explicit_from_outside(const explicit_comm *c, contract_rank *me, int64_t rank) {
  const int64_t n = NODE_RANKS, shape[2] = {NODE_RANKS, 12}, part[2] = {1, 12};
  const reshard_placement rows = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0};
  moving m = {.mesh = NULL}, storage = {.mesh = NULL};
  reshard_tensor own = NULL;
  char *source = NULL;
  CONTRACT_SUCCEEDS(me, begin_moving(me, 12, &storage));
  CONTRACT_SUCCEEDS(me, reshard_mesh_create(me->comm, 0, 1, &n, NULL, 0, NULL, &m.mesh));
  if (rank == 1) {
    cudaMalloc((void **)&source, 12);
    CONTRACT_SUCCEEDS(me, reshard_tensor_wrap_on(me->device, RESHARD_U8, 2, part, NULL, source, NULL, NULL, &own));
  } else {
    own = reshard_tensor_retain(reshard_dtensor_local(storage.tensor));
  }
  CONTRACT_SUCCEEDS(me, reshard_dtensor_from_local(me->sharder, &(reshard_placing){m.mesh, &rows, NULL}, own, 2, shape,
                                                   0, &m.tensor));
  reshard_tensor_release(own);
  for (int i = 0; i < CALLS; i++) {
    CONTRACT_CHECK(me, move_once(me, 1, &m) == RESHARD_ERROR_UNSUPPORTED);
    CONTRACT_CHECK(me, strstr(reshard_last_error(), "rank 1 has a source of entry 0") != NULL);
    CONTRACT_CHECK(me, strstr(reshard_last_error(), "elsewhere: of cudaMalloc") != NULL);
  }
  end_moving(&m);
  CONTRACT_SUCCEEDS(me, move_once(me, 1, &storage));
  CONTRACT_CHECK(me, cudaStreamSynchronize(me->stream) == cudaSuccess && is_moved(&storage));
  CONTRACT_CHECK(me, vg_calls("cudaIpcOpenMemHandle") == 0);
  end_moving(&storage);
  cudaFree(source);
}

/* A transfer between storage: ranks destroy it in any order, beside calls. */
static inline void explicit_beside_transfers(const explicit_comm *c, contract_rank *me, int64_t rank) {
  const int64_t n = NODE_RANKS, side = 12, bytes = side * side / n;
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = c->path};
  reshard_tensor src = NULL, dst = NULL;
  reshard_tensor_info from, to;
  reshard_plan plan = NULL;
  CONTRACT_SUCCEEDS(me, columns_plan(side, n, rank, &plan));
  CONTRACT_SUCCEEDS(me, reshard_tensor_create_on(me->device, RESHARD_U8, 1, &bytes, me->stream, &src));
  CONTRACT_SUCCEEDS(me, reshard_tensor_create_on(me->device, RESHARD_U8, 1, &bytes, me->stream, &dst));
  (void)reshard_tensor_get_info(src, &from);
  (void)reshard_tensor_get_info(dst, &to);
  cudaMemsetAsync(from.data, byte_of(0, rank), (size_t)bytes, me->stream);
  for (int i = 0; i < CALLS; i++) {
    const reshard_arrays arrays = {RESHARD_ARRAYS_INIT, .src = (void *[]){from.data}, .dst = (void *[]){to.data}};
    reshard_transfer transfer = NULL;
    char last = 0;
    CONTRACT_SUCCEEDS(me, reshard_transfer_create(plan, me->comm, &arrays, &options, &transfer));
    CONTRACT_SUCCEEDS(me, reshard_execute(transfer, me->stream));
    CONTRACT_CHECK(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
    vg_peek(&last, (char *)to.data + bytes - 1, 1);
    CONTRACT_CHECK(me, last == byte_of(0, n - 1));
    if (rank == i % n)
      reshard_transfer_destroy(transfer);
    moving m = {.mesh = NULL};
    CONTRACT_SUCCEEDS(me, begin_moving(me, 12, &m));
    CONTRACT_SUCCEEDS(me, move_once(me, 1, &m));
    CONTRACT_CHECK(me, cudaStreamSynchronize(me->stream) == cudaSuccess && is_moved(&m));
    end_moving(&m);
    if (rank != i % n)
      reshard_transfer_destroy(transfer);
    node_gather_meet(c->gather);
  }
  reshard_plan_destroy(plan);
  reshard_tensor_release(src);
  reshard_tensor_release(dst);
}

/* Of each GPU. */
static inline void memory_now(const explicit_comm *c, size_t *used) {
  node_gather_meet(c->gather);
  for (int64_t gpu = 0; gpu < c->gpus; gpu++)
    used[gpu] = vg_memory_used((int)gpu);
  node_gather_meet(c->gather);
}

/* Each rank whose memory others had open has given so much back, or more. */
static inline bool is_given_back(const explicit_comm *c, const size_t *before, size_t bytes) {
  size_t now[NODE_RANKS], given[NODE_RANKS] = {0};
  bool all = true;
  memory_now(c, now);
  for (int64_t r = 0; r < NODE_RANKS; r++) {
    bool read = false;
    for (int64_t other = 0; other < NODE_RANKS; other++)
      read = read || (other != r && other % c->nodes == r % c->nodes);
    given[r % c->gpus] += read ? bytes : 0;
  }
  for (int64_t gpu = 0; gpu < c->gpus; gpu++)
    all = all && now[gpu] + given[gpu] <= before[gpu];
  return all;
}

static inline void move_and_give_back(contract_rank *me, int64_t columns) {
  moving m = {.mesh = NULL};
  CONTRACT_SUCCEEDS(me, begin_moving(me, columns, &m));
  CONTRACT_SUCCEEDS(me, move_once(me, 1, &m));
  CONTRACT_CHECK(me, cudaStreamSynchronize(me->stream) == cudaSuccess && is_moved(&m));
  end_moving(&m);
  CONTRACT_SUCCEEDS(me, reshard_device_trim(me->device, 0));
}

enum { LARGE = 3 << 19, SEGMENT = 2 << 20 };

/* Pools give back what plans of other sizes have used: peers close it at the next call, though their transfers for
 * those plans are kept. They are bound anew when they are taken again. */
static inline void explicit_trimmed(const explicit_comm *c, contract_rank *me, int64_t rank) {
  size_t first[NODE_RANKS], used[NODE_RANKS];
  for (int64_t i = 0; i < 3 * CALLS; i++) {
    move_and_give_back(me, LARGE + 12 * (i % CALLS));
    memory_now(c, i == 0 ? first : used);
    for (int64_t gpu = 0; gpu < c->gpus && i > 0; gpu++)
      CONTRACT_CHECK(me, used[gpu] < first[gpu] + SEGMENT);
  }
}

/* As a rank would find it whose stream is behind the others'. */
static inline void set_under_way(reshard_comm comm, bool under_way) {
  for (reshard_transfer kept = comm->memory.persistent_transfers; kept != NULL; kept = kept->next)
    kept->streams.lost = under_way;
}

/* None of a call's arrays has moved, and others close what was freed elsewhere: they meet for that alone. What streams
 * may still read is closed in a later call. */
static inline void explicit_freed_elsewhere(const explicit_comm *c, contract_rank *me, int64_t rank) {
  size_t before[NODE_RANKS];
  moving m = {.mesh = NULL};
  CONTRACT_SUCCEEDS(me, begin_moving(me, 12, &m));
  for (int i = 0; i < 2 * CALLS; i++)
    CONTRACT_SUCCEEDS(me, move_once(me, (i + 1) % 2, &m));
  move_and_give_back(me, 3 * LARGE); /* more than the next call may take for its arrays */
  memory_now(c, before);
  for (int i = 0; i < 3; i++) {
    uint64_t met = c->meetings(me->comm);
    set_under_way(me->comm, i == 0);
    CONTRACT_SUCCEEDS(me, move_once(me, (i + 1) % 2, &m));
    met = c->meetings(me->comm) - met;
    CONTRACT_CHECK(me, i == 0 ? met <= 4 : met == 1);
    CONTRACT_CHECK(me, is_given_back(c, before, 2 * SEGMENT) == (i > 0));
  }
  CONTRACT_CHECK(me, cudaStreamSynchronize(me->stream) == cudaSuccess && is_moved(&m));
  end_moving(&m);
}

/* A call fails after ranks have published what they have freed: others close it all the same. */
static inline void explicit_freed_and_failed(const explicit_comm *c, contract_rank *me, int64_t rank) {
  size_t before[NODE_RANKS];
  moving m = {.mesh = NULL};
  move_and_give_back(me, 3 * LARGE);
  CONTRACT_SUCCEEDS(me, begin_moving(me, 12, &m));
  memory_now(c, before);
  if (rank == 0)
    vg_fail_here("cuMemImportFromShareableHandle", 1, false, 0);
  CONTRACT_CHECK(me, move_once(me, 1, &m) != RESHARD_SUCCESS);
  CONTRACT_CHECK(me, strncmp(reshard_last_error(), "rank 0: ", 8) == 0);
  CONTRACT_CHECK(me, is_given_back(c, before, SEGMENT));
  CONTRACT_SUCCEEDS(me, move_once(me, 1, &m));
  CONTRACT_CHECK(me, cudaStreamSynchronize(me->stream) == cudaSuccess && is_moved(&m));
  end_moving(&m);
}

/* Only ranks that write need an order of their own between calls on two streams: the others' transfer runs once at a
 * time all the same. */
static inline void explicit_on_two_streams(const explicit_comm *c, contract_rank *me, int64_t rank) {
  const int64_t columns = 3 << 12, shape[2] = {NODE_RANKS, columns};
  moving m = {.mesh = NULL};
  cudaStream_t other;
  reshard_tensor out = NULL;
  reshard_tensor_info info;
  cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
  CONTRACT_SUCCEEDS(me, begin_moving(me, columns, &m));
  CONTRACT_CHECK(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
  if (rank == 0)
    CONTRACT_SUCCEEDS(me, reshard_tensor_create_on(me->device, RESHARD_U8, 2, shape, me->stream, &out));
  for (int i = 0; i < 4 * CALLS; i++)
    CONTRACT_SUCCEEDS(me, reshard_sharded_tensor_gather(reshard_dtensor_sharded(m.tensor), 0, out,
                                                        rank == 0 || i % 2 == 0 ? me->stream : other));
  CONTRACT_CHECK(me, cudaStreamSynchronize(me->stream) == cudaSuccess && cudaStreamSynchronize(other) == cudaSuccess);
  for (int64_t r = 0; r < NODE_RANKS && rank == 0; r++) {
    char here;
    (void)reshard_tensor_get_info(out, &info);
    vg_peek(&here, (char *)info.data + r * columns + 7, 1);
    CONTRACT_CHECK(me, here == 1 + r);
  }
  reshard_tensor_release(out);
  CONTRACT_SUCCEEDS(me, reshard_device_forget_stream(me->device, other));
  cudaStreamDestroy(other);
  end_moving(&m);
}

static inline void check_captured_by_one(contract_rank *me, reshard_status status) {
  CONTRACT_CHECK(me, status == RESHARD_ERROR_INVALID && strncmp(reshard_last_error(), "rank 1: ", 8) == 0);
  CONTRACT_CHECK(me, strstr(reshard_last_error(), "is being captured") != NULL);
}

/* From rank 0, which has the whole. */
static inline reshard_status distribute_whole(contract_rank *me, int64_t rank, reshard_tensor whole, const moving *m) {
  const int64_t shape[2] = {NODE_RANKS, 12};
  const reshard_properties bytes = {.dtype = RESHARD_U8};
  const reshard_placement rows = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0};
  reshard_dtensor made = NULL;
  reshard_status status = reshard_dtensor_distribute(me->sharder, &(reshard_placing){m->mesh, &rows, NULL},
                                                     rank == 0 ? whole : NULL, 0, 2, shape, &bytes, me->stream, &made);
  reshard_dtensor_release(made);
  return status;
}

/* Rank 1 alone captures its stream: all have its error, and go on, where a transfer is kept and where none is. */
static inline void explicit_captured_by_one(const explicit_comm *c, contract_rank *me, int64_t rank) {
  const int64_t shape[2] = {NODE_RANKS, 12};
  moving m = {.mesh = NULL};
  reshard_tensor whole = NULL;
  reshard_tensor_info info;
  cudaGraph_t graph;
  CONTRACT_SUCCEEDS(me, begin_moving(me, 12, &m));
  CONTRACT_SUCCEEDS(me, reshard_tensor_create_on(me->device, RESHARD_U8, 2, shape, me->stream, &whole));
  (void)reshard_tensor_get_info(whole, &info);
  cudaMemsetAsync(info.data, 0, NODE_RANKS * 12, me->stream);
  for (int i = 0; i < CALLS; i++) {
    size_t nodes = 0;
    CONTRACT_SUCCEEDS(me, move_once(me, (i + 1) % 2, &m));
    if (i > 0) {
      CONTRACT_SUCCEEDS(me, distribute_whole(me, rank, whole, &m));
      CONTRACT_SUCCEEDS(me, reshard_sync_tensors(me->comm, 0, 1, &whole, NULL, NULL, me->stream, NULL));
    }
    CONTRACT_CHECK(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
    if (rank == 1)
      CONTRACT_CHECK(me, cudaStreamBeginCapture(me->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    check_captured_by_one(me, move_once(me, i % 2, &m));
    check_captured_by_one(me, distribute_whole(me, rank, whole, &m));
    check_captured_by_one(me, reshard_sync_tensors(me->comm, 0, 1, &whole, NULL, NULL, me->stream, NULL));
    if (rank == 1) {
      CONTRACT_CHECK(me, cudaStreamEndCapture(me->stream, &graph) == cudaSuccess);
      CONTRACT_CHECK(me, cudaGraphGetNodes(graph, NULL, &nodes) == cudaSuccess && nodes == 0);
      CONTRACT_CHECK(me, cudaGraphDestroy(graph) == cudaSuccess);
    }
  }
  CONTRACT_SUCCEEDS(me, move_once(me, 1, &m));
  CONTRACT_CHECK(me, cudaStreamSynchronize(me->stream) == cudaSuccess && is_moved(&m));
  reshard_tensor_release(whole);
  end_moving(&m);
}

/* Rank 0 gathers to memory of its host, which is pinned no more in the last call, at the same address. */
static inline void explicit_unpinned(const explicit_comm *c, contract_rank *me, int64_t rank) {
  enum { COLUMNS = 12 };
  static char memory[NODE_RANKS * COLUMNS];
  const int64_t shape[2] = {NODE_RANKS, COLUMNS};
  moving m = {.mesh = NULL};
  reshard_tensor out = NULL;
  CONTRACT_SUCCEEDS(me, begin_moving(me, COLUMNS, &m));
  if (rank == 0) {
    memset(memory, 0, sizeof memory);
    CONTRACT_CHECK(me, cudaHostRegister(memory, sizeof memory, cudaHostRegisterDefault) == cudaSuccess);
    CONTRACT_SUCCEEDS(me, reshard_tensor_wrap_on(me->device, RESHARD_U8, 2, shape, NULL, memory, NULL, NULL, &out));
  }
  for (int i = 0; i < CALLS; i++)
    CONTRACT_SUCCEEDS(me, reshard_sharded_tensor_gather(reshard_dtensor_sharded(m.tensor), 0, out, me->stream));
  CONTRACT_CHECK(me, cudaStreamSynchronize(me->stream) == cudaSuccess);
  for (int64_t r = 0; r < NODE_RANKS && rank == 0; r++)
    CONTRACT_CHECK(me, memory[r * COLUMNS + 7] == 1 + r);
  if (rank == 0)
    CONTRACT_CHECK(me, cudaHostUnregister(memory) == cudaSuccess);
  reshard_status status = reshard_sharded_tensor_gather(reshard_dtensor_sharded(m.tensor), 0, out, me->stream);
  CONTRACT_CHECK(me, status == RESHARD_ERROR_INVALID && strncmp(reshard_last_error(), "rank 0: ", 8) == 0);
  CONTRACT_CHECK(me, strstr(reshard_last_error(), "memory of the host that is not pinned") != NULL);
  reshard_tensor_release(out);
  CONTRACT_SUCCEEDS(me, move_once(me, 1, &m));
  CONTRACT_CHECK(me, cudaStreamSynchronize(me->stream) == cudaSuccess && is_moved(&m));
  end_moving(&m);
}

/* Sharders come and go, and so do transfers that they keep. A rank destroys its own before the others: it does not wait
 * for them. Memory does not grow. */
static inline void explicit_with_others(const explicit_comm *c, contract_rank *me, int64_t rank) {
  const reshard_sharder_options options = {
      .size = RESHARD_SHARDER_OPTIONS_INIT, .device = me->device, .path = c->path, .cached_plans = 2};
  size_t used[2 * CALLS] = {0};
  for (int i = 0; i < 2 * CALLS; i++) {
    reshard_sharder first = me->sharder;
    CONTRACT_SUCCEEDS(me, reshard_sharder_create(me->comm, &options, &me->sharder));
    for (int64_t columns = 12; columns < 12 * CALLS; columns += 12) { /* each pair of plans evicts the last one */
      moving m = {.mesh = NULL};
      CONTRACT_SUCCEEDS(me, begin_moving(me, columns, &m));
      for (int k = 0; k < CALLS - 1; k++)
        CONTRACT_SUCCEEDS(me, move_once(me, (k + 1) % 2, &m));
      CONTRACT_CHECK(me, cudaStreamSynchronize(me->stream) == cudaSuccess && is_moved(&m));
      end_moving(&m);
    }
    CONTRACT_CHECK(me, vg_calls("cudaIpcOpenMemHandle") == 0);
    for (int64_t r = 0; r < NODE_RANKS; r++) { /* one after the other */
      if (r == rank)
        reshard_sharder_destroy(me->sharder);
      node_gather_meet(c->gather);
    }
    me->sharder = first;
    used[i] = vg_memory_used((int)rank);
    node_gather_meet(c->gather);
  }
  CONTRACT_CHECK(me, used[CALLS] == used[CALLS - 1] && used[2 * CALLS - 1] == used[CALLS - 1]);
}

#endif
