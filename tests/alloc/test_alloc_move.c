/* The k-th allocation fails while a tree is cast, or moved to and from a device with streams: the right status, nothing
 * left behind, no output. */
#include "device/handle.h"
#include "device/memory/deferred_release.h"
#include "device/memory/pool.h"
#include "device/memory/staging.h"
#include "support/devices/late.h"
#include "support/fault_local.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/trees.h"

#include <reshard/move.h>

#include <string.h>

typedef struct arguments {
  reshard_tree args, kwargs;
} arguments;

/* One for each call: a pool keeps what it has allocated for itself. */
static reshard_status open_cpu(reshard_device *cpu) {
  const reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .threads = 1};
  return reshard_device_create("cpu", &options, cpu);
}

static reshard_status tree_cast(fault_output *out, const void *with) {
  const arguments *a = with;
  reshard_device cpu;
  reshard_tree made;
  reshard_status status = open_cpu(&cpu);
  if (status != RESHARD_SUCCESS)
    return status;
  status = reshard_tree_cast(a->kwargs, RESHARD_BF16, cpu, NULL, &made);
  reshard_device_release(cpu);
  if (status == RESHARD_SUCCESS)
    out->object = made;
  return status;
}

static bool good_cast(const fault_output *out, const void *with) {
  const arguments *a = with;
  reshard_tree made = out->object;
  reshard_tensor tensor;
  reshard_tensor_info info;
  return reshard_tree_get_tensor(node_at(made, "deep.0"), &tensor) == RESHARD_SUCCESS &&
         reshard_tensor_get_info(tensor, &info) == RESHARD_SUCCESS && info.dtype == RESHARD_BF16 &&
         node_at(made, "number") == node_at(a->kwargs, "number");
}

static void drop_tree(fault_output *out) { reshard_tree_release(out->object); }

static reshard_status to_kwargs(fault_output *out, const void *with) {
  const arguments *a = with;
  reshard_device cpu;
  reshard_tree first, second;
  reshard_status status = open_cpu(&cpu);
  if (status != RESHARD_SUCCESS)
    return status;
  status = reshard_tree_to_kwargs(a->args, a->kwargs, cpu, NULL, NULL, &first, &second);
  reshard_device_release(cpu);
  if (status == RESHARD_SUCCESS) {
    reshard_tree_release(second);
    out->object = first;
  }
  return status;
}

static bool good_kwargs(const fault_output *out, const void *with) {
  const arguments *a = with;
  return node_at(out->object, "0") == a->args;
}

CASE(casts_and_moves_survive_any_failed_allocation) {
  arguments a;
  a.args = append(tuple(), leaf_of(floats(10)));
  a.kwargs = set(set(dict(), "deep", append(list(), leaf_of(floats(1000)))), "number", integer(3));
  set(a.kwargs, "more", leaf_of(floats(70)));
  const fault_local calls[] = {{"reshard_tree_cast", tree_cast, good_cast, drop_tree, &a},
                               {"reshard_tree_to_kwargs", to_kwargs, good_kwargs, drop_tree, &a}};
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
    assert_true(fault_local_run(&calls[i]) > 3);
  reshard_tree_release(a.args);
  reshard_tree_release(a.kwargs);
}

/* --- With streams --- */

/* The late device with what a handle has, and without faults in its own allocations, which are the test's. */
static rs_device late;
static rs_device_memory quiet_memory;
static rs_device_streams quiet_streams;
static rs_device_work quiet_work;
static bool counting;
#define QUIET(call) \
  fault_mark(false); \
  reshard_status status_ = (call); \
  fault_mark(counting); \
  return status_

static reshard_status quiet_alloc_async(rs_device *d, size_t bytes, void *stream, void **memory) {
  QUIET(late.memory->alloc(d, bytes, memory));
}
static void quiet_free_async(rs_device *d, void *memory, void *stream) {
  GOOD(late.streams->finish(d));
  late.memory->free(d, memory);
}
static reshard_status quiet_host_alloc(rs_device *d, size_t bytes, void **memory) {
  QUIET(late.memory->host_alloc(d, bytes, memory));
}
static reshard_status quiet_recompile(rs_device *d, const rs_copies *copies, int64_t total_bytes,
                                      rs_program **program) {
  QUIET(late.work->recompile(d, copies, total_bytes, program));
}
static reshard_status quiet_run(rs_device *d, int64_t n, rs_program *const *programs, void *stream) {
  QUIET(late.work->run(d, n, programs, stream));
}
static reshard_status quiet_memcpy(rs_device *d, void *dst, const void *src, size_t bytes, void *stream) {
  QUIET(late.memory->memcpy(d, dst, src, bytes, stream));
}
static reshard_status quiet_stream_create(rs_device *d, void **stream) { QUIET(late.streams->create(d, stream)); }
static reshard_status quiet_event_create(rs_device *d, rs_event **event) {
  QUIET(late.streams->event_create(d, event));
}
static reshard_status quiet_event_record(rs_device *d, rs_event *event, void *stream) {
  QUIET(late.streams->event_record(d, event, stream));
}
static reshard_status quiet_event_wait(rs_device *d, void *stream, rs_event *event) {
  QUIET(late.streams->event_wait(d, stream, event));
}
static reshard_status quiet_capturing(rs_device *d, void *stream, bool *capturing) {
  (void)d, (void)stream;
  *capturing = false;
  return RESHARD_SUCCESS;
}

static void open_gpu(uint64_t seed, reshard_device *gpu) {
  const reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .threads = 1};
  late_open(1, seed, gpu);
  rs_device *device = (*gpu)->device;
  late = *device;
  quiet_memory = *late.memory;
  quiet_streams = *late.streams;
  quiet_work = *late.work;
  quiet_memory.alloc_async = quiet_alloc_async;
  quiet_memory.free_async = quiet_free_async;
  quiet_memory.host_alloc = quiet_host_alloc;
  quiet_work.recompile = quiet_recompile;
  quiet_work.run = quiet_run;
  quiet_memory.memcpy = quiet_memcpy;
  quiet_streams.create = quiet_stream_create;
  quiet_streams.event_create = quiet_event_create;
  quiet_streams.event_record = quiet_event_record;
  quiet_streams.event_wait = quiet_event_wait;
  quiet_streams.capturing = quiet_capturing;
  device->memory = &quiet_memory;
  device->streams = &quiet_streams;
  device->work = &quiet_work;
  pthread_mutex_init(&(*gpu)->mutex, NULL);
  GOOD(rs_storage_pool_create(device, &options, &(*gpu)->storage));
  GOOD(rs_storage_pool_create_pinned(device, &(*gpu)->pinned));
  GOOD(rs_staging_create(device, 64 << 20, &(*gpu)->staging));
  GOOD(rs_deferred_list_create(device, &(*gpu)->deferred));
}

static void close_gpu(reshard_device gpu) {
  rs_device *device = gpu->device;
  assert_int_equal(atomic_load(&gpu->references), 1);
  GOOD(device->streams->finish(device));
  if (gpu->once != NULL)
    device->work->release(device, gpu->once);
  rs_deferred_list_destroy(gpu->deferred);
  rs_staging_destroy(gpu->staging);
  reshard_memory_stats stats; /* temporary memory, too, has been given back to the pool */
  rs_storage_pool_stats(gpu->storage, &stats);
  assert_true(stats.in_use_bytes == 0 && stats.allocs == stats.frees);
  rs_storage_pool_destroy(gpu->pinned);
  rs_storage_pool_destroy(gpu->storage);
  for (int i = 0; i < RS_SIDES; i++)
    if (atomic_load(&gpu->side[i]) != NULL)
      device->streams->destroy(device, atomic_load(&gpu->side[i]));
  pthread_mutex_destroy(&gpu->mutex);
  *device = late;
  assert_int_equal(late_close(), 0);
}

/* A tree of the CPU: contiguous and strided, pageable and pinned. */
static reshard_tree make_tree(void) {
  const int64_t shape[2] = {30, 20};
  reshard_tree tree = list();
  for (int i = 0; i < 4; i++) {
    reshard_tensor tensor, view;
    GOOD(reshard_tensor_create(RESHARD_F32, 2, shape, &tensor));
    reshard_tensor_info info;
    GOOD(reshard_tensor_get_info(tensor, &info));
    memset(info.data, i + 1, info.storage_bytes);
    reshard_tensor_set_pin_memory(tensor, i / 2);
    GOOD(reshard_tensor_permute(tensor, i % 2 == 0 ? (const int[]){0, 1} : (const int[]){1, 0}, &view));
    reshard_tensor_release(tensor);
    append(tree, leaf_of(view));
  }
  return tree;
}

static void assert_bytes(reshard_tree tree) {
  for (int64_t i = 0; i < 4; i++) {
    reshard_tree child;
    reshard_tensor tensor;
    reshard_tensor_info info;
    GOOD(reshard_tree_child(tree, i, NULL, &child));
    GOOD(reshard_tree_get_tensor(child, &tensor));
    GOOD(reshard_tensor_get_info(tensor, &info));
    for (int64_t k = 0; k < info.elements * 4; k++)
      assert_int_equal(((unsigned char *)info.data)[k], i + 1);
  }
}

/* Moves with the k-th allocation failing; true where one did. */
static bool move_with_fault(reshard_tree tree, reshard_device to, int64_t k, reshard_tree *moved) {
  counting = true;
  fault_mark(true);
  fault_arm(k);
  reshard_status status = reshard_tree_to(tree, to, NULL, NULL, moved);
  fault_disarm();
  counting = false;
  fault_mark(false);
  fault_kind kind = fault_fired();
  if (status != RESHARD_SUCCESS) { /* the pool can do without some of what it asks for */
    assert_int_equal(status, fault_status(kind));
    assert_null(*moved);
    assert_true(strlen(reshard_last_error()) > 0);
  }
  return kind != FAULT_NONE;
}

CASE(moves_on_streams_survive_any_failed_allocation) {
  for (int out = 0; out <= 1; out++) {
    bool failed = true;
    int64_t k = 0;
    for (; failed; k++) {
      int64_t live = fault_live();
      reshard_device gpu, cpu;
      open_gpu((uint64_t)k, &gpu);
      GOOD(open_cpu(&cpu));
      reshard_tree tree = make_tree(), there = NULL, back = NULL;
      if (out)
        GOOD(reshard_tree_to(tree, gpu, NULL, NULL, &there));
      failed = move_with_fault(out ? there : tree, out ? cpu : gpu, k, out ? &back : &there);
      if (there != NULL && back == NULL)
        GOOD(reshard_tree_to(there, cpu, NULL, NULL, &back));
      if (back != NULL) {
        GOOD(gpu->device->streams->finish(gpu->device));
        assert_bytes(back);
      }
      reshard_tree_release(back);
      reshard_tree_release(there);
      reshard_tree_release(tree);
      reshard_device_release(cpu);
      close_gpu(gpu);
      assert_int_equal(fault_live(), live);
    }
    assert_true(k > 10);
  }
}

RUN_CASES
