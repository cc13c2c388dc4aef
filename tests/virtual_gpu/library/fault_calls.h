/* The public calls on the GPU path, for test_vg_faults.c: what each needs, how it is called, and how to tell that it
 * has done what it should, or nothing. The CUDA calls of the test itself never fail. */
#ifndef TESTS_FAULT_CALLS_H
#define TESTS_FAULT_CALLS_H

#include "base/base.h"
#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <reshard/reshard.h>
#include <reshard/torch.h>

#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, ROWS = 24, COLUMNS = 40, BYTES = 4 * ROWS * COLUMNS, REMOTE_ERROR = 6 /* ncclRemoteError */ };
#ifdef __SANITIZE_ADDRESS__ /* how the library orders its threads by atomics is not seen; and one in so many */
enum { SEEN = false, SPARSE = 6 };
#else
enum { SEEN = true, SPARSE = 1 };
#endif
/* A deadline where ranks are to run into it, and one that they do not; what a call may take beyond it. */
enum { DEADLINE_MS = 60, PATIENCE_MS = 60000, SLACK_SECONDS = 10 };
typedef enum kind { SOLO, ONE_GPU, GPUS, NCCL, KINDS } kind;
static const char *const kind_names[KINDS] = {"one rank", "ranks on one GPU", "ranks on a GPU each", "NCCL"};
static const int64_t whole_shape[2] = {ROWS, COLUMNS};

typedef struct rank {
  struct world *world;
  int64_t number, n;
  reshard_device device;
  reshard_comm comm;
  cudaStream_t stream, second, other; /* other: of another GPU */
  /* what calls need and make */
  reshard_layout rows, columns;
  reshard_plan plan;
  reshard_transfer transfer;
  reshard_sharder sharder;
  reshard_tensor a, b, c; /* of the rank's rows, of its columns, else */
  reshard_tree tree, made_tree;
  reshard_sharded_tensor sharded, made_sharded;
  reshard_module module;
  reshard_comm made_comm, made_comms[RANKS];
  reshard_device made_device;
  void *managed, *memory;
  rank_result result;
  char why[300]; /* what is wrong */
} rank;

typedef struct public_call {
  const char *name, *way;
  unsigned kinds;                      /* bits */
  reshard_status (*prepare)(rank *me); /* may be NULL; collective where the call is */
  reshard_status (*call)(rank *me);
  bool (*right)(rank *me);           /* after success, when the stream is at its end; may be NULL */
  bool (*untouched)(const rank *me); /* after an error: no output was written; may be NULL */
  reshard_path path;
  int64_t limit;   /* of workspace */
  bool own_status; /* a rank may fail alone: it says so to nobody, or what fails is the way to the others */
  bool collective; /* the ranks wait for one another in it */
} public_call;

typedef struct world {
  const public_call *call;
  kind kind;
  int64_t n, timeout_ms, victim, absent; /* -1: nobody */
  const char *function;                  /* that fails: as in vg_fail */
  int error;
  int64_t k;
  int64_t failed; /* calls that did */
  bool from_then_on;
  unsigned char
      id[3][RESHARD_NCCL_ID_BYTES]; /* of a communicator that is there, that a call makes, for what comes after */
  rank ranks[RANKS];
} world;

static uint32_t value(int64_t row, int64_t column) { return (uint32_t)(1000 + row * COLUMNS + column); }

/* --- Tensors ------------------------------------------------------------------------------------------------------ */

/* A rank's part of the whole, cut by the chunk rule along a dim. */
static reshard_box part_of(const rank *me, int dim) {
  reshard_box box = {.offset = {0, 0}, .extent = {ROWS, COLUMNS}};
  int64_t size = whole_shape[dim], chunk = rs_ceil_div(size, me->n);
  box.offset[dim] = rs_min(me->number * chunk, size);
  box.extent[dim] = rs_min(chunk, size - box.offset[dim]);
  return box;
}

static void *data_of(reshard_tensor tensor) {
  reshard_tensor_info info;
  return reshard_tensor_get_info(tensor, &info) == RESHARD_SUCCESS ? info.data : NULL;
}

static void fill(void *data, const reshard_box *box, bool poison) {
  uint32_t numbers[ROWS * COLUMNS];
  for (int64_t i = 0; i < box->extent[0]; i++)
    for (int64_t j = 0; j < box->extent[1]; j++)
      numbers[i * box->extent[1] + j] = poison ? 0xdbdbdbdb : value(box->offset[0] + i, box->offset[1] + j);
  vg_poke(data, numbers, (size_t)(box->extent[0] * box->extent[1]) * 4);
}

static bool holds(const void *data, const reshard_box *box) {
  uint32_t numbers[ROWS * COLUMNS];
  if (data == NULL)
    return false;
  vg_peek(numbers, data, (size_t)(box->extent[0] * box->extent[1]) * 4);
  for (int64_t i = 0; i < box->extent[0]; i++)
    for (int64_t j = 0; j < box->extent[1]; j++)
      if (numbers[i * box->extent[1] + j] != value(box->offset[0] + i, box->offset[1] + j))
        return false;
  return true;
}

static reshard_status make_tensor(rank *me, const reshard_box *box, bool poison, reshard_tensor *tensor) {
  RS_TRY(reshard_tensor_create_on(me->device, RESHARD_F32, 2, box->extent, me->stream, tensor));
  fill(data_of(*tensor), box, poison);
  return RESHARD_SUCCESS;
}

static const reshard_box whole_box = {.offset = {0, 0}, .extent = {ROWS, COLUMNS}};

static reshard_status make_rows(rank *me) {
  reshard_box rows = part_of(me, 0);
  return make_tensor(me, &rows, false, &me->a);
}

static reshard_status make_both(rank *me) {
  reshard_box columns = part_of(me, 1);
  RS_TRY(make_rows(me));
  return make_tensor(me, &columns, true, &me->b);
}

static bool b_is_right(rank *me) {
  reshard_box columns = part_of(me, 1);
  return holds(data_of(me->b), &columns);
}

/* --- Calls of one rank -------------------------------------------------------------------------------------------- */

static reshard_status device_create(rank *me) { return reshard_device_create("cuda", NULL, &me->made_device); }
static bool no_device(const rank *me) { return me->made_device == NULL; }
static bool device_works(rank *me) {
  reshard_tensor tensor = NULL;
  if (reshard_tensor_create_on(me->made_device, RESHARD_F32, 2, whole_shape, me->stream, &tensor) != RESHARD_SUCCESS)
    return false;
  reshard_tensor_release(tensor);
  return true;
}

static reshard_status tensor_create(rank *me) {
  return reshard_tensor_create_on(me->device, RESHARD_F32, 2, whole_shape, me->stream, &me->c);
}
static bool no_tensor(const rank *me) { return me->c == NULL; }

static reshard_status make_freed(rank *me) {
  RS_TRY(tensor_create(me));
  RS_TRY(reshard_storage_free(me->c, me->stream, NULL));
  return reshard_device_trim(me->device, 0);
}
static reshard_status storage_alloc(rank *me) { return reshard_storage_alloc(me->c, BYTES, me->stream, NULL); }
static bool c_is_there(rank *me) { return reshard_data_allocated(me->c) == 1; }
static bool c_is_freed(const rank *me) { return reshard_data_allocated(me->c) == 0; }

static reshard_status make_used(rank *me) {
  RS_TRY(tensor_create(me));
  fill(data_of(me->c), &whole_box, false);
  return reshard_storage_record_use(me->c, me->second);
}
static reshard_status storage_free(rank *me) { return reshard_storage_free(me->c, me->stream, NULL); }
static reshard_status storage_record_use(rank *me) { return reshard_storage_record_use(me->c, me->second); }

static reshard_status make_kept(rank *me) {
  RS_TRY(make_used(me));
  RS_TRY(reshard_tensor_create_on(me->device, RESHARD_F32, 2, whole_shape, me->second, &me->a));
  reshard_tensor_release(me->c);
  reshard_tensor_release(me->a);
  me->a = me->c = NULL;
  return RESHARD_SUCCESS;
}
static reshard_status device_trim(rank *me) { return reshard_device_trim(me->device, 0); }
static reshard_status device_forget(rank *me) { return reshard_device_forget_stream(me->device, me->second); }

static reshard_status to_dlpack(rank *me) { return reshard_tensor_to_dlpack(me->a, 1, &me->managed); }
static reshard_status make_managed(rank *me) {
  RS_TRY(make_rows(me));
  return to_dlpack(me);
}
static reshard_status from_dlpack(rank *me) {
  RS_TRY(reshard_tensor_from_dlpack(me->managed, 1, 0, &me->c));
  me->managed = NULL;
  return RESHARD_SUCCESS;
}

static reshard_status make_tree(rank *me) {
  RS_TRY(make_tensor(me, &whole_box, false, &me->c));
  return reshard_tree_tensor(me->c, &me->tree);
}
static reshard_status make_host_tree(rank *me) {
  RS_TRY(reshard_tensor_create(RESHARD_F32, 2, whole_shape, &me->c));
  for (int64_t i = 0; i < ROWS * COLUMNS; i++)
    ((uint32_t *)data_of(me->c))[i] = value(i / COLUMNS, i % COLUMNS);
  return reshard_tree_tensor(me->c, &me->tree);
}
static reshard_status make_pinned_tree(rank *me) {
  RS_TRY(make_tree(me));
  reshard_tensor_set_pin_memory(me->c, 1);
  return RESHARD_SUCCESS;
}
static reshard_status move_in(rank *me) {
  return reshard_tree_to(me->tree, me->device, me->stream, NULL, &me->made_tree);
}
static reshard_status move_out(rank *me) {
  RS_TRY(reshard_device_create("cpu", &(reshard_device_options){RESHARD_DEVICE_OPTIONS_INIT, .threads = 1},
                               &me->made_device));
  return reshard_tree_to(me->tree, me->made_device, me->stream, NULL, &me->made_tree);
}
static reshard_status make_other(rank *me) {
  RS_TRY(make_tree(me));
  cudaSetDevice(1);
  cudaStreamCreateWithFlags(&me->other, cudaStreamNonBlocking);
  cudaSetDevice(0);
  return reshard_device_create("cuda:1", NULL, &me->made_device);
}
static reshard_status move_between(rank *me) {
  return reshard_tree_to(me->tree, me->made_device, me->other, NULL, &me->made_tree);
}
static bool moved_is_right(rank *me) {
  reshard_tensor tensor = NULL;
  reshard_tensor_info info;
  if (reshard_tree_get_tensor(me->made_tree, &tensor) != RESHARD_SUCCESS ||
      reshard_tensor_get_info(tensor, &info) != RESHARD_SUCCESS)
    return false;
  return holds(info.data, &whole_box);
}
static bool nothing_moved(const rank *me) { return me->made_tree == NULL; }
static reshard_status cast(rank *me) {
  return reshard_tree_cast(me->tree, RESHARD_F64, me->device, me->stream, &me->made_tree);
}

static reshard_status make_select(rank *me) {
  static const int64_t taken = ROWS;
  int32_t index[ROWS];
  for (int i = 0; i < ROWS; i++)
    index[i] = i;
  RS_TRY(make_tensor(me, &whole_box, false, &me->a));
  RS_TRY(make_tensor(me, &whole_box, true, &me->b));
  RS_TRY(reshard_tensor_create_on(me->device, RESHARD_I32, 1, &taken, me->stream, &me->c));
  vg_poke(data_of(me->c), index, sizeof index);
  return RESHARD_SUCCESS;
}
static reshard_status index_select(rank *me) { return reshard_index_select(me->a, 0, me->c, me->b, 0, me->stream); }
static bool selected(rank *me) { return holds(data_of(me->b), &whole_box); }

static reshard_status comm_create_local(rank *me) {
  reshard_local_options options = {RESHARD_LOCAL_OPTIONS_INIT, 0, RESHARD_ISA_AUTO, 60000, &me->device, 1};
  return reshard_comm_create_local(RANKS, &options, me->made_comms);
}
static bool no_comms(const rank *me) { return me->made_comms[0] == NULL; }

/* --- Collective calls --------------------------------------------------------------------------------------------- */

static reshard_status make_plan(rank *me) {
  reshard_entry entry = {
      .size = RESHARD_ENTRY_INIT, .src = me->rows, .dst = me->columns, .dtype = RESHARD_F32, .name = "tensor"};
  reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = me->world->call->limit};
  RS_TRY(make_both(me));
  return reshard_plan_create(1, &entry, me->number, &options, &me->plan);
}

static reshard_status make_transfer(rank *me) {
  void *src = data_of(me->a), *dst = data_of(me->b);
  reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = &src, .dst = &dst};
  reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = me->world->call->path};
  return reshard_transfer_create(me->plan, me->comm, &arrays, &options, &me->transfer);
}
/* Rank 0 makes those of all. */
static reshard_status make_transfers(rank *me) {
  reshard_plan plans[RANKS];
  reshard_comm comms[RANKS];
  void *src[RANKS], *dst[RANKS];
  reshard_arrays arrays[RANKS];
  const reshard_arrays *list[RANKS];
  reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = me->world->call->path};
  const reshard_transfer_options *alike[RANKS];
  reshard_transfer made[RANKS];
  for (int64_t r = 0; r < me->n && me->number == 0; r++) {
    rank *other = &me->world->ranks[r];
    src[r] = data_of(other->a);
    dst[r] = data_of(other->b);
    arrays[r] = (reshard_arrays){.size = RESHARD_ARRAYS_INIT, .src = &src[r], .dst = &dst[r]};
    plans[r] = other->plan;
    comms[r] = other->comm;
    list[r] = &arrays[r];
    alike[r] = &options;
  }
  if (me->number != 0)
    return RESHARD_SUCCESS;
  RS_TRY(reshard_transfer_create_all(me->n, plans, comms, list, alike, made));
  for (int64_t r = 0; r < me->n; r++)
    me->world->ranks[r].transfer = made[r];
  return RESHARD_SUCCESS;
}
static bool no_transfer(const rank *me) { return me->transfer == NULL; }

static reshard_status make_ready(rank *me) {
  RS_TRY(make_plan(me));
  return make_transfer(me);
}
static reshard_status execute(rank *me) { return reshard_execute(me->transfer, me->stream); }
static reshard_status execute_all(rank *me) {
  reshard_transfer all[RANKS];
  for (int64_t r = 0; r < me->n; r++)
    all[r] = me->world->ranks[r].transfer;
  return me->number == 0 ? reshard_execute_all(me->n, all, me->stream) : RESHARD_SUCCESS;
}
static reshard_status rebind(rank *me) {
  void *src = data_of(me->a), *dst = data_of(me->b);
  reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = &src, .dst = &dst};
  return reshard_transfer_rebind(me->transfer, &arrays);
}

static reshard_status comm_alloc(rank *me) { return reshard_comm_alloc(me->comm, BYTES, &me->memory); }
static bool memory_is_there(rank *me) { return me->memory != NULL; }
static bool no_memory(const rank *me) { return me->memory == NULL; }
static reshard_status barrier(rank *me) { return reshard_comm_barrier(me->comm); }
static reshard_status split(rank *me) { return reshard_comm_split(me->comm, me->number % 2, 0, &me->made_comm); }
static bool no_comm(const rank *me) { return me->made_comm == NULL; }
static bool comm_is_right(rank *me) { return reshard_comm_size(me->made_comm) == (me->number % 2 == 0 ? 2 : 1); }

/* A communicator of its own to shrink, which ends. The last rank is lost: it does not call. */
static reshard_status make_copy(rank *me) { return reshard_comm_split(me->comm, 0, 0, &me->made_comms[0]); }
static reshard_status shrink(rank *me) {
  const int64_t lost = me->n - 1;
  return me->number == lost ? RESHARD_SUCCESS : reshard_comm_shrink(me->made_comms[0], 1, &lost, &me->made_comm);
}
static bool shrunk_works(rank *me) {
  return me->made_comm == NULL ? me->number == me->n - 1 : reshard_comm_barrier(me->made_comm) == RESHARD_SUCCESS;
}

/* All have the whole; rank 0's is right. */
static reshard_status make_whole(rank *me) { return make_tensor(me, &whole_box, me->number != 0, &me->c); }
static bool whole_is_right(rank *me) { return holds(data_of(me->c), &whole_box); }
static reshard_status verify_shapes(rank *me) { return reshard_verify_shapes(me->comm, 1, &me->c, NULL); }
static reshard_status sync_tensors(rank *me) {
  reshard_sync_options options = {RESHARD_SYNC_OPTIONS_INIT, 512, me->world->call->path};
  return reshard_sync_tensors(me->comm, 0, 1, &me->c, NULL, &options, me->stream, NULL);
}
static reshard_status make_module(rank *me) {
  RS_TRY(make_whole(me));
  RS_TRY(reshard_module_create(&me->module));
  return reshard_module_set_parameter(me->module, "weight", me->c);
}
static reshard_status sync_module(rank *me) {
  reshard_sync_options options = {RESHARD_SYNC_OPTIONS_INIT, 512, me->world->call->path};
  return reshard_sync_module_states(me->comm, 0, me->module, NULL, &options, me->stream, NULL);
}

static const reshard_properties properties = {.dtype = RESHARD_F32};

static reshard_status make_sharder(rank *me) {
  reshard_sharder_options options = {
      .size = RESHARD_SHARDER_OPTIONS_INIT, .path = me->world->call->path, .device = me->device};
  return reshard_sharder_create(me->comm, &options, &me->sharder);
}
static bool no_sharder(const rank *me) { return me->sharder == NULL; }
static reshard_status make_sharded(rank *me) {
  RS_TRY(make_sharder(me));
  RS_TRY(make_rows(me));
  return reshard_sharded_tensor_from_layout(me->sharder, me->rows, &properties, 1, &me->a, &me->sharded);
}
static reshard_status sharded_empty(rank *me) {
  return reshard_sharded_tensor_empty(me->sharder, me->columns, &properties, me->stream, &me->made_sharded);
}
static reshard_status sharded_zeros(rank *me) {
  return reshard_sharded_tensor_zeros(me->sharder, me->columns, &properties, me->stream, &me->made_sharded);
}
static bool nothing_sharded(const rank *me) { return me->made_sharded == NULL; }
static bool local_is(reshard_sharded_tensor sharded, const reshard_box *box) {
  reshard_tensor array = NULL;
  return reshard_sharded_tensor_local(sharded, 0, &array, NULL) == RESHARD_SUCCESS && holds(data_of(array), box);
}
static reshard_status sharded_reshard(rank *me) {
  return reshard_sharded_tensor_reshard(1, &me->sharded, &me->columns, me->stream);
}
static bool is_columns(rank *me) {
  reshard_box columns = part_of(me, 1);
  return local_is(me->sharded, &columns);
}
static bool is_still_rows(const rank *me) {
  reshard_box rows = part_of(me, 0);
  return local_is(me->sharded, &rows);
}
static reshard_status sharded_reshard_to_as(rank *me) {
  return reshard_sharded_tensor_reshard_to_as(1, &me->sharded, &me->columns, NULL, me->stream, &me->made_sharded);
}
static reshard_status sharded_reshard_to(rank *me) {
  return reshard_sharded_tensor_reshard_to(1, &me->sharded, &me->columns, me->stream, &me->made_sharded);
}
static bool made_is_columns(rank *me) {
  reshard_box columns = part_of(me, 1);
  return local_is(me->made_sharded, &columns);
}
static reshard_status make_gather(rank *me) {
  RS_TRY(make_sharded(me));
  return make_tensor(me, &whole_box, true, &me->c);
}
static reshard_status sharded_gather(rank *me) {
  return reshard_sharded_tensor_gather(me->sharded, 0, me->number == 0 ? me->c : NULL, me->stream);
}
static reshard_status make_gather_as(rank *me) {
  RS_TRY(make_sharded(me));
  return me->number == 0 ? reshard_tensor_create_on(me->device, RESHARD_F64, 2, whole_shape, me->stream, &me->c)
                         : RESHARD_SUCCESS;
}
static reshard_status sharded_gather_as(rank *me) {
  return reshard_sharded_tensor_gather_as(me->sharded, 0, RESHARD_F64, me->c, me->stream);
}
static bool first_has_all(rank *me) { return me->number != 0 || whole_is_right(me); }
static reshard_status sharded_gather_all(rank *me) {
  return reshard_sharded_tensor_gather_all(me->sharded, me->c, me->stream);
}
static reshard_status make_scatter(rank *me) {
  RS_TRY(make_sharder(me));
  return me->number == 0 ? make_tensor(me, &whole_box, false, &me->c) : RESHARD_SUCCESS;
}
static reshard_status sharded_scatter(rank *me) {
  return reshard_sharded_tensor_scatter(me->sharder, me->c, 0, me->columns, &properties, me->stream, &me->made_sharded);
}

static reshard_status comm_create_nccl(rank *me) {
  return reshard_comm_create_nccl(me->world->id[1], me->n, me->number, me->device, me->world->timeout_ms,
                                  &me->made_comm);
}
static bool made_comm_works(rank *me) { return reshard_comm_barrier(me->made_comm) == RESHARD_SUCCESS; }

enum { ONE = 1 << SOLO, LOCAL = 1 << ONE_GPU | 1 << GPUS, OVER_NCCL = 1 << NCCL, ALL = LOCAL | OVER_NCCL };
#define NONE   NULL
#define DIRECT RESHARD_PATH_DIRECT
#define PACKED RESHARD_PATH_PACKED
static const public_call calls[] = {
    {"reshard_device_create", "", ONE, NONE, device_create, device_works, no_device, 0, 0, false, false},
    {"reshard_device_trim", "", ONE, make_kept, device_trim, NONE, NONE, 0, 0, false, false},
    {"reshard_device_forget_stream", "", ONE, make_kept, device_forget, NONE, NONE, 0, 0, false, false},
    {"reshard_tensor_create_on", "", ONE, NONE, tensor_create, c_is_there, no_tensor, 0, 0, false, false},
    {"reshard_storage_alloc", "", ONE, make_freed, storage_alloc, c_is_there, c_is_freed, 0, 0, false, false},
    {"reshard_storage_free", "", ONE, make_used, storage_free, NONE, NONE, 0, 0, false, false},
    {"reshard_storage_record_use", "", ONE, tensor_create, storage_record_use, c_is_there, NONE, 0, 0, false, false},
    {"reshard_tensor_to_dlpack", "", ONE, make_rows, to_dlpack, NONE, NONE, 0, 0, false, false},
    {"reshard_tensor_from_dlpack", "", ONE, make_managed, from_dlpack, c_is_there, no_tensor, 0, 0, false, false},
    {"reshard_tree_to", "to a GPU", ONE, make_host_tree, move_in, moved_is_right, nothing_moved, 0, 0, false, false},
    {"reshard_tree_to", "to pageable memory", ONE, make_tree, move_out, moved_is_right, nothing_moved, 0, 0, false,
     false},
    {"reshard_tree_to", "to pinned memory", ONE, make_pinned_tree, move_out, moved_is_right, nothing_moved, 0, 0, false,
     false},
    {"reshard_tree_to", "to another GPU", ONE, make_other, move_between, moved_is_right, nothing_moved, 0, 0, false,
     false},
    {"reshard_tree_cast", "", ONE, make_tree, cast, NONE, nothing_moved, 0, 0, false, false},
    {"reshard_index_select", "", ONE, make_select, index_select, selected, NONE, 0, 0, false, false},
    {"reshard_comm_create_local", "", ONE, NONE, comm_create_local, NONE, no_comms, 0, 0, false, false},
    {"reshard_comm_create_nccl", "", OVER_NCCL, NONE, comm_create_nccl, made_comm_works, no_comm, 0, 0, true, true},
    {"reshard_comm_split", "", ALL, NONE, split, comm_is_right, no_comm, 0, 0, false, true},
    {"reshard_comm_shrink", "", OVER_NCCL, make_copy, shrink, shrunk_works, no_comm, 0, 0, true, false},
    {"reshard_comm_alloc", "", ALL, NONE, comm_alloc, memory_is_there, no_memory, 0, 0, true, false},
    {"reshard_comm_barrier", "", ALL, NONE, barrier, NONE, NONE, 0, 0, false, true},
    {"reshard_transfer_create", "direct", LOCAL, make_plan, make_transfer, NONE, no_transfer, DIRECT, 0, false, true},
    {"reshard_transfer_create", "packed", ALL, make_plan, make_transfer, NONE, no_transfer, PACKED, 0, false, true},
    {"reshard_transfer_create", "rounds", ALL, make_plan, make_transfer, NONE, no_transfer, PACKED, 1024, false, true},
    {"reshard_transfer_create_all", "direct", LOCAL, make_plan, make_transfers, NONE, no_transfer, DIRECT, 0, true,
     false},
    {"reshard_transfer_create_all", "rounds", LOCAL, make_plan, make_transfers, NONE, no_transfer, PACKED, 1024, true,
     false},
    {"reshard_transfer_rebind", "direct", LOCAL, make_ready, rebind, NONE, NONE, DIRECT, 0, false, true},
    {"reshard_transfer_rebind", "packed", ALL, make_ready, rebind, NONE, NONE, PACKED, 0, true, false},
    {"reshard_execute", "direct", LOCAL, make_ready, execute, b_is_right, NONE, DIRECT, 0, true, false},
    {"reshard_execute", "packed", ALL, make_ready, execute, b_is_right, NONE, PACKED, 0, true, false},
    {"reshard_execute", "rounds", ALL, make_ready, execute, b_is_right, NONE, PACKED, 1024, true, false},
    {"reshard_execute_all", "direct", LOCAL, make_ready, execute_all, b_is_right, NONE, DIRECT, 0, true, false},
    {"reshard_execute_all", "rounds", LOCAL, make_ready, execute_all, b_is_right, NONE, PACKED, 1024, true, false},
    {"reshard_verify_shapes", "", ALL, make_whole, verify_shapes, NONE, NONE, 0, 0, false, true},
    {"reshard_sync_tensors", "direct", LOCAL, make_whole, sync_tensors, whole_is_right, NONE, DIRECT, 0, false, true},
    {"reshard_sync_tensors", "packed", ALL, make_whole, sync_tensors, whole_is_right, NONE, PACKED, 0, false, true},
    {"reshard_sync_module_states", "", ALL, make_module, sync_module, whole_is_right, NONE, 0, 0, false, true},
    {"reshard_sharder_create", "", ALL, NONE, make_sharder, NONE, no_sharder, 0, 0, false, true},
    {"reshard_sharded_tensor_empty", "", ALL, make_sharder, sharded_empty, NONE, nothing_sharded, 0, 0, true, false},
    {"reshard_sharded_tensor_zeros", "", ALL, make_sharder, sharded_zeros, NONE, nothing_sharded, 0, 0, true, false},
    {"reshard_sharded_tensor_scatter", "", ALL, make_scatter, sharded_scatter, made_is_columns, nothing_sharded, 0, 0,
     false, true},
    {"reshard_sharded_tensor_reshard", "", ALL, make_sharded, sharded_reshard, is_columns, is_still_rows, 0, 0, false,
     true},
    {"reshard_sharded_tensor_reshard_to", "", ALL, make_sharded, sharded_reshard_to, made_is_columns, nothing_sharded,
     0, 0, false, true},
    {"reshard_sharded_tensor_reshard_to_as", "", ALL, make_sharded, sharded_reshard_to_as, made_is_columns,
     nothing_sharded, 0, 0, false, true},
    {"reshard_sharded_tensor_gather", "", ALL, make_gather, sharded_gather, first_has_all, NONE, 0, 0, false, true},
    {"reshard_sharded_tensor_gather_as", "", ALL, make_gather_as, sharded_gather_as, NONE, NONE, 0, 0, false, true},
    {"reshard_sharded_tensor_gather_all", "", ALL, make_gather, sharded_gather_all, whole_is_right, NONE, 0, 0, false,
     true},
};
enum { CALLS = sizeof calls / sizeof *calls };

#endif
