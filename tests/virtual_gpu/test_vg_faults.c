/* Every public call on the GPU path, with each call of the runtime that it makes failing, one at a time: once, and from
 * then on; and with a rank that never comes. After each the call has ended within its deadline with a status that says
 * what happened, has written no output, and leaves nothing behind; and the ranks that are left make a new plan that
 * works. The CUDA calls of the test itself never fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>

#include "base/base.h"
#include "support/crew.h"
#include "virtual_gpu.h"

#include <reshard/reshard.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 3, ROWS = 12, COLUMNS = 20, BYTES = 4 * ROWS * COLUMNS, REMOTE_ERROR = 6 /* ncclRemoteError */ };
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
  void *managed;
  crew_result result;
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

/* What a rank has of the whole, cut by the chunk rule along a dim. */
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
  if (options.workspace_limit > 0)
    options.peers_per_round = 1;
  RS_TRY(make_both(me));
  return reshard_plan_create(1, &entry, me->number, &options, &me->plan);
}

static reshard_status make_transfer(rank *me) {
  void *src = data_of(me->a), *dst = data_of(me->b);
  reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = &src, .dst = &dst};
  reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, me->world->call->path, NULL, 0};
  return reshard_transfer_create(me->plan, me->comm, &arrays, &options, &me->transfer);
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

static reshard_status barrier(rank *me) { return reshard_comm_barrier(me->comm); }
static reshard_status split(rank *me) { return reshard_comm_split(me->comm, me->number % 2, 0, &me->made_comm); }
static bool no_comm(const rank *me) { return me->made_comm == NULL; }
static bool comm_is_right(rank *me) { return reshard_comm_size(me->made_comm) == (me->number % 2 == 0 ? 2 : 1); }

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
static reshard_status make_sharded(rank *me) {
  RS_TRY(make_sharder(me));
  RS_TRY(make_rows(me));
  return reshard_sharded_tensor_from_layout(me->sharder, me->rows, &properties, 1, &me->a, &me->sharded);
}
static reshard_status sharded_empty(rank *me) {
  return reshard_sharded_tensor_empty(me->sharder, me->columns, &properties, &me->made_sharded);
}
static reshard_status sharded_zeros(rank *me) {
  return reshard_sharded_tensor_zeros(me->sharder, me->columns, &properties, &me->made_sharded);
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
static bool first_has_all(rank *me) { return me->number != 0 || whole_is_right(me); }
static reshard_status sharded_gather_all(rank *me) {
  return reshard_sharded_tensor_gather_all(me->sharded, me->c, me->stream);
}
static reshard_status make_scatter(rank *me) {
  RS_TRY(make_sharder(me));
  return me->number == 0 ? make_tensor(me, &whole_box, false, &me->c) : RESHARD_SUCCESS;
}
static reshard_status sharded_scatter(rank *me) {
  return reshard_sharded_tensor_scatter(me->sharder, me->c, 0, me->columns, &properties, &me->made_sharded);
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
    {"reshard_comm_barrier", "", ALL, NONE, barrier, NONE, NONE, 0, 0, false, true},
    {"reshard_transfer_create", "direct", LOCAL, make_plan, make_transfer, NONE, no_transfer, DIRECT, 0, false, true},
    {"reshard_transfer_create", "packed", ALL, make_plan, make_transfer, NONE, no_transfer, PACKED, 0, false, true},
    {"reshard_transfer_create", "rounds", ALL, make_plan, make_transfer, NONE, no_transfer, PACKED, 1024, false, true},
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
    {"reshard_sharder_create", "", ALL, NONE, make_sharder, NONE, NONE, 0, 0, true, false},
    {"reshard_sharded_tensor_empty", "", ALL, make_sharder, sharded_empty, NONE, nothing_sharded, 0, 0, true, false},
    {"reshard_sharded_tensor_zeros", "", ALL, make_sharder, sharded_zeros, NONE, nothing_sharded, 0, 0, true, false},
    {"reshard_sharded_tensor_scatter", "", ALL, make_scatter, sharded_scatter, made_is_columns, nothing_sharded, 0, 0,
     false, true},
    {"reshard_sharded_tensor_reshard", "", ALL, make_sharded, sharded_reshard, is_columns, is_still_rows, 0, 0, false,
     true},
    {"reshard_sharded_tensor_reshard_to", "", ALL, make_sharded, sharded_reshard_to, made_is_columns, nothing_sharded,
     0, 0, false, true},
    {"reshard_sharded_tensor_gather", "", ALL, make_gather, sharded_gather, first_has_all, NONE, 0, 0, false, true},
    {"reshard_sharded_tensor_gather_all", "", ALL, make_gather, sharded_gather_all, whole_is_right, NONE, 0, 0, false,
     true},
};
enum { CALLS = sizeof calls / sizeof *calls };

/* --- One run ------------------------------------------------------------------------------------------------------ */

static void note(rank *me, const char *what, reshard_status status) {
  if (status != RESHARD_SUCCESS && me->why[0] == '\0')
    snprintf(me->why, sizeof me->why, "rank %d: %s: %s: %s", (int)me->number, what, reshard_status_string(status),
             reshard_last_error());
}

static reshard_status open_nccl(rank *me) {
  world *w = me->world;
  return reshard_comm_create_nccl(w->id[0], w->n, me->number, me->device, w->timeout_ms, &me->comm);
}

static int gpu_of(const rank *me) { return me->world->kind == GPUS || me->world->kind == NCCL ? (int)me->number : 0; }

static void open_rank(void *user, int64_t r) {
  world *w = user;
  rank *me = &w->ranks[r];
  char name[16];
  snprintf(name, sizeof name, "cuda:%d", gpu_of(me));
  cudaSetDevice(gpu_of(me));
  cudaStreamCreateWithFlags(&me->stream, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&me->second, cudaStreamNonBlocking);
  note(me, "device", reshard_device_create(name, NULL, &me->device));
  note(me, "layout", reshard_layout_parse("chunk(0)", 2, whole_shape, w->n, &me->rows));
  note(me, "layout", reshard_layout_parse("chunk(1)", 2, whole_shape, w->n, &me->columns));
  if (w->kind == NCCL)
    note(me, "communicator", open_nccl(me));
}

static void open_local(world *w) {
  reshard_device devices[RANKS];
  reshard_comm comms[RANKS];
  for (int64_t r = 0; r < w->n; r++)
    devices[r] = w->ranks[r].device;
  reshard_local_options options = {RESHARD_LOCAL_OPTIONS_INIT, 0, RESHARD_ISA_AUTO, w->timeout_ms, devices,
                                   w->kind == GPUS ? w->n : 1};
  note(&w->ranks[0], "communicator", reshard_comm_create_local(w->n, &options, comms));
  for (int64_t r = 0; r < w->n && w->ranks[0].why[0] == '\0'; r++)
    w->ranks[r].comm = comms[r];
}

static void open_world(world *w) {
  vg_begin(&(vg_options){.devices = RANKS, .seed = (uint64_t)w->k, .patience_ms = 5 * rs_min(w->timeout_ms, 2000)});
  for (int i = 0; i < 3; i++)
    (void)reshard_nccl_unique_id(w->id[i]);
  for (int64_t r = 0; r < w->n; r++)
    w->ranks[r] = (rank){.world = w, .number = r, .n = w->n};
  crew_run(w->n, open_rank, w);
  if (w->kind != NCCL)
    open_local(w);
}

static void prepare_rank(void *user, int64_t r) {
  world *w = user;
  rank *me = &w->ranks[r];
  if (w->call->prepare != NULL)
    note(me, "before the call", w->call->prepare(me));
  cudaStreamSynchronize(me->stream);
}

static void call_rank(void *user, int64_t r) {
  world *w = user;
  rank *me = &w->ranks[r];
  me->result.status = RESHARD_ERROR_TIMEOUT;
  if (w->absent == r)
    return;
  if (w->victim == r)
    vg_fail_here(w->function, w->k, w->from_then_on, w->error);
  crew_note(&me->result, w->call->call(me));
}

static bool any_failed(const world *w) {
  for (int64_t r = 0; r < w->n; r++)
    if (w->ranks[r].result.status != RESHARD_SUCCESS)
      return true;
  return false;
}

/* What a user does then: what has reached a stream may wait for a rank for ever. */
static void abort_nccl(rank *me) {
  if (me->comm != NULL)
    (void)reshard_comm_abort(me->comm);
  if (me->made_comm != NULL)
    (void)reshard_comm_abort(me->made_comm);
}

static void settle_rank(void *user, int64_t r) {
  world *w = user;
  rank *me = &w->ranks[r];
  if (any_failed(w) && w->kind == NCCL)
    abort_nccl(me);
  cudaSetDevice(gpu_of(me));
  cudaDeviceSynchronize();
  if (me->other != NULL)
    cudaStreamSynchronize(me->other);
}

static void check_rank(void *user, int64_t r) {
  world *w = user;
  rank *me = &w->ranks[r];
  bool failed = any_failed(w);
  if (!failed && w->call->right != NULL && !w->call->right(me))
    snprintf(me->why, sizeof me->why, "rank %d: wrong data", (int)r);
  if (me->result.status != RESHARD_SUCCESS && w->absent != r && w->call->untouched != NULL && !w->call->untouched(me))
    snprintf(me->why, sizeof me->why, "rank %d: an output was written", (int)r);
}

static void drop_rank(void *user, int64_t r) {
  rank *me = &((world *)user)->ranks[r];
  reshard_transfer_destroy(me->transfer);
  reshard_plan_destroy(me->plan);
  reshard_sharded_tensor_release(me->sharded);
  reshard_sharded_tensor_release(me->made_sharded);
  reshard_sharder_destroy(me->sharder);
  reshard_module_release(me->module);
  reshard_tree_release(me->tree);
  reshard_tree_release(me->made_tree);
  reshard_tensor managed = NULL;
  if (me->managed != NULL)
    note(me, "reshard_tensor_from_dlpack", reshard_tensor_from_dlpack(me->managed, 1, 0, &managed));
  reshard_tensor_release(managed);
  reshard_tensor_release(me->a);
  reshard_tensor_release(me->b);
  reshard_tensor_release(me->c);
  reshard_comm_destroy(me->made_comm);
  for (int i = 0; i < RANKS; i++)
    reshard_comm_destroy(me->made_comms[i]);
  if (me->other != NULL) {
    cudaStreamSynchronize(me->other);
    note(me, "forget", reshard_device_forget_stream(me->made_device, me->other));
    cudaStreamDestroy(me->other);
  }
  reshard_device_release(me->made_device);
  me->transfer = NULL;
  me->plan = NULL;
  me->a = me->b = me->c = NULL;
}

/* A new plan, on the same communicator or, where that may have ended, on a new one. */
static void work_rank(void *user, int64_t r) {
  world *w = user;
  rank *me = &w->ranks[r];
  if (w->kind == NCCL && any_failed(w)) {
    reshard_comm_destroy(me->comm);
    me->comm = NULL;
    note(me, "a new communicator", reshard_comm_create_nccl(w->id[2], w->n, r, me->device, PATIENCE_MS, &me->comm));
  }
  if (me->comm == NULL)
    return;
  note(me, "a new plan", make_ready(me));
  if (me->transfer != NULL)
    note(me, "a new execute", execute(me));
  cudaStreamSynchronize(me->stream);
  if (me->why[0] == '\0' && !b_is_right(me))
    snprintf(me->why, sizeof me->why, "rank %d: a new plan moves wrong data", (int)r);
  reshard_transfer_destroy(me->transfer);
  reshard_plan_destroy(me->plan);
  reshard_tensor_release(me->a);
  reshard_tensor_release(me->b);
}

static void close_rank(void *user, int64_t r) {
  rank *me = &((world *)user)->ranks[r];
  reshard_layout_release(me->rows);
  reshard_layout_release(me->columns);
  reshard_comm_destroy(me->comm);
  cudaStreamSynchronize(me->stream);
  cudaStreamSynchronize(me->second);
  note(me, "forget", reshard_device_forget_stream(me->device, me->stream)); /* ranks share devices */
  note(me, "forget", reshard_device_forget_stream(me->device, me->second));
  reshard_device_release(me->device);
  cudaStreamDestroy(me->stream);
  cudaStreamDestroy(me->second);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Of what can fail here: the runtime for its own reasons, NCCL for its peers'. */
static bool is_right_status(const world *w, reshard_status status) {
  bool peers = w->kind == NCCL || w->absent >= 0;
  return status == RESHARD_SUCCESS || status == RESHARD_ERROR_OUT_OF_MEMORY || status == RESHARD_ERROR_SYSTEM ||
         (peers && (status == RESHARD_ERROR_TIMEOUT || status == RESHARD_ERROR_PEER));
}

static void judge(world *w, int64_t failed, double seconds) {
  /* Ranks hear of one another's failures where they meet, and a rank that is lost after that is so alone. */
  bool alone = w->call->own_status || w->kind == NCCL || w->absent >= 0 || (w->function == NULL && w->from_then_on);
  rank *first = &w->ranks[w->absent == 0 ? 1 : 0];
  for (int64_t r = 0; r < w->n; r++) {
    rank *me = &w->ranks[r];
    reshard_status status = me->result.status;
    if (r == w->absent || me->why[0] != '\0')
      continue;
    if (failed == 0 && w->absent < 0)
      note(me, "no call has failed", status);
    if (!is_right_status(w, status) || (status != RESHARD_SUCCESS && me->result.text[0] == '\0'))
      snprintf(me->why, sizeof me->why, "rank %d: %s (%.200s)", (int)r, reshard_status_string(status), me->result.text);
    if (!alone && (status != first->result.status ||
                   (status != RESHARD_SUCCESS && strcmp(me->result.text, first->result.text) != 0)))
      snprintf(me->why, sizeof me->why, "ranks %d and %d: %s (%.90s) and %s (%.90s)", (int)first->number, (int)r,
               reshard_status_string(first->result.status), first->result.text, reshard_status_string(status),
               me->result.text);
  }
  if (seconds > 1e-3 * (double)w->timeout_ms + SLACK_SECONDS)
    snprintf(first->why, sizeof first->why, "the call took %.1f s", seconds);
}

/* Was anything wrong? */
static bool run_once(world *w) {
  open_world(w);
  crew_run(w->n, prepare_rank, w);
  double start = now();
  crew_run(w->n, call_rank, w);
  double seconds = now() - start;
  w->failed = vg_failed();
  vg_fail(NULL, 0, false, 0);
  crew_run(w->n, settle_rank, w);
  crew_run(w->n, check_rank, w);
  judge(w, w->failed, seconds);
  crew_run(w->n, drop_rank, w);
  for (int64_t r = 0; r < w->n && w->absent >= 0 && w->kind != NCCL; r++)
    reshard_comm_destroy(w->ranks[r].comm);
  if (w->absent >= 0 && w->kind != NCCL)
    open_local(w);
  crew_run(w->n, work_rank, w);
  crew_run(w->n, close_rank, w);
  /* Where nothing works any more nobody can wait for what a lost device did. */
  bool lost = w->function == NULL && w->from_then_on;
  bool bad = vg_end() > (lost ? vg_reports_with("free while in use") : 0);
  for (int64_t r = 0; r < w->n; r++)
    bad |= w->ranks[r].why[0] != '\0';
  return bad;
}

/* False when there were not so many calls to fail. Counts what was wrong; where that may be a deadline that a busy
 * machine has missed, what is wrong with a long one. */
static bool run(world *w, int64_t *wrong) {
  int64_t timeout_ms = w->timeout_ms;
  bool bad = run_once(w);
  if (bad && timeout_ms == DEADLINE_MS) {
    w->timeout_ms = 50 * DEADLINE_MS;
    bad = run_once(w);
    w->timeout_ms = timeout_ms;
  }
  if (bad) {
    fprintf(stderr, "%s %s, %s: call %d of %s by rank %d fails%s, rank %d never comes:\n", w->call->name, w->call->way,
            kind_names[w->kind], (int)w->k, w->function == NULL ? "any" : w->function, (int)w->victim,
            w->from_then_on ? " and all after it" : "", (int)w->absent);
    for (int64_t r = 0; r < w->n; r++)
      if (w->ranks[r].why[0] != '\0')
        fprintf(stderr, "  %s\n", w->ranks[r].why);
    for (int i = 0; i < vg_reports() && i < 5; i++)
      fprintf(stderr, "  %s\n", vg_report(i));
  }
  *wrong += bad;
  return w->failed > 0;
}

/* --- The sweep ---------------------------------------------------------------------------------------------------- */

static const struct {
  const char *what, *function;
  bool from_then_on, nccl;
  int error;
} faults[] = {{"any call", NULL, false, false, 0},
              {"any call", NULL, true, false, 0},
              {"out of memory", "cudaMalloc*", true, false, cudaErrorMemoryAllocation},
              {"out of pinned memory", "cudaHostAlloc", true, false, cudaErrorMemoryAllocation},
              {"launch failure", "cudaLaunchKernel", true, false, cudaErrorLaunchFailure},
              {"NCCL remote error", "nccl*", false, true, REMOTE_ERROR},
              {"NCCL remote error", "nccl*", true, true, REMOTE_ERROR}};
enum { FAULTS = sizeof faults / sizeof *faults };

static bool have_nccl(void) {
  unsigned char id[RESHARD_NCCL_ID_BYTES];
  vg_begin(NULL);
  reshard_status status = reshard_nccl_unique_id(id);
  vg_end();
  return status == RESHARD_SUCCESS;
}

static const char *only; /* calls whose names have it; NULL: all */

static void sweep(world *w, int f, int64_t *wrong) {
  int64_t runs = 0, wrong_before = *wrong, step = vg_proving() ? 0 : w->kind == NCCL ? 9 : 2;
  w->function = faults[f].function;
  w->error = faults[f].error;
  w->from_then_on = faults[f].from_then_on;
  for (w->k = 1; run(w, wrong); w->k += 1 + step * (1 + w->k / 4))
    runs++;
  vg_prove("faults|%s%s%s, %s|%s|%s|%lld|%lld", w->call->name, w->call->way[0] != '\0' ? ", " : "", w->call->way,
           kind_names[w->kind], faults[f].what, w->from_then_on ? "from then on" : "once", (long long)runs,
           (long long)(runs - rs_min(runs, *wrong - wrong_before)));
}

static void test_faults(void **state) {
  (void)state;
  int64_t wrong = 0;
  if (!vg_sees_kernels()) /* nothing is checked in this build */
    skip();
  int kinds = have_nccl() ? KINDS : NCCL;
  vg_quiet(true);
  for (int c = 0; c < CALLS; c++)
    for (int k = 0; k < kinds; k++)
      for (int f = 0; f < FAULTS; f++) {
        world w = {.call = &calls[c], .kind = (kind)k, .n = k == SOLO ? 1 : RANKS, .absent = -1};
        if ((calls[c].kinds >> k & 1) == 0 || (faults[f].nccl && k != NCCL) || (only && !strstr(calls[c].name, only)))
          continue;
        if (k == NCCL && !vg_proving() && (c + f) % 4 != 0) /* which wait for a deadline each */
          continue;
        w.timeout_ms = k == NCCL ? DEADLINE_MS : PATIENCE_MS;
        w.victim = c % w.n;
        sweep(&w, f, &wrong);
      }
  vg_quiet(false);
  assert_int_equal(wrong, 0);
}

/* A rank that never comes to a collective call: the others have their deadline. An execute on a stream has none, as the
 * host does not wait in it. */
static void test_absent(void **state) {
  (void)state;
  int64_t wrong = 0;
  if (!vg_sees_kernels()) /* nothing is checked in this build */
    skip();
  int kinds = have_nccl() ? KINDS : NCCL;
  vg_quiet(true);
  for (int c = 0; c < CALLS; c++)
    for (int k = ONE_GPU; k < kinds; k++) {
      if ((calls[c].kinds >> k & 1) == 0 || !calls[c].collective || (only && !strstr(calls[c].name, only)))
        continue;
      world w = {.call = &calls[c], .kind = (kind)k, .n = RANKS, .victim = -1, .timeout_ms = DEADLINE_MS};
      w.absent = c % RANKS;
      int64_t before = wrong;
      run(&w, &wrong);
      vg_prove("faults|%s%s%s, %s|a rank never comes||1|%d", w.call->name, w.call->way[0] != '\0' ? ", " : "",
               w.call->way, kind_names[k], (int)(wrong == before));
    }
  vg_quiet(false);
  assert_int_equal(wrong, 0);
}

/* An argument is part of the names of the calls to test. */
int main(int argc, char **argv) {
  only = argc > 1 ? argv[1] : NULL;
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_faults), cmocka_unit_test(test_absent)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
