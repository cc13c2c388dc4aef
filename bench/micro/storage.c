/* The host's cost of memory from a warm pool of a device: an allocation and a free of a tensor's storage, on one stream
 * (the CPU has none); and a tensor made and released, which allocates the tensor itself as well. */
#include "bench/micro/micro.h"

#include "device/handle.h"
#include "device/memory/pool.h"

#include <reshard/tensor.h>

#include <stdlib.h>

typedef struct storage_bench {
  reshard_device device;
  reshard_tensor tensor;
  int64_t bytes;
} storage_bench;

static void storage_drop(void *state) {
  storage_bench *p = state;
  reshard_tensor_release(p->tensor);
  reshard_device_release(p->device);
  free(p);
}

static void *storage_make(const micro_case *of, int64_t *items) {
  storage_bench *p = calloc(1, sizeof *p);
  const reshard_device_options options = {.size = RESHARD_DEVICE_OPTIONS_INIT, .threads = 1};
  p->bytes = of->parameter;
  *items = 1;
  if (reshard_device_create("cpu", &options, &p->device) == RESHARD_SUCCESS &&
      reshard_tensor_create_on(p->device, RESHARD_U8, 1, &p->bytes, NULL, &p->tensor) == RESHARD_SUCCESS)
    return p;
  storage_drop(p);
  return NULL;
}

static int storage_run_pair(void *state) {
  storage_bench *p = state;
  return reshard_storage_free(p->tensor, NULL, NULL) || reshard_storage_alloc(p->tensor, (size_t)p->bytes, NULL, NULL);
}

/* The pool itself. */
static int storage_run_blocks(void *state) {
  storage_bench *p = state;
  rs_block *block;
  if (rs_storage_pool_alloc(p->device->storage, (size_t)p->bytes, NULL, &block) != RESHARD_SUCCESS)
    return 1;
  rs_storage_pool_free(p->device->storage, block, NULL);
  return 0;
}

static int storage_run_tensor(void *state) {
  storage_bench *p = state;
  reshard_tensor t;
  if (reshard_tensor_create_on(p->device, RESHARD_U8, 1, &p->bytes, NULL, &t) != RESHARD_SUCCESS)
    return 1;
  reshard_tensor_release(t);
  return 0;
}

static const micro_case micro_storage[] = {
    {"storage_pool_pair", 4096, 0, storage_make, storage_run_blocks, storage_drop, {0}, NULL},
    {"storage_pool_pair", 64 << 20, 0, storage_make, storage_run_blocks, storage_drop, {0}, NULL},
    {"storage_alloc_and_free", 4096, 0, storage_make, storage_run_pair, storage_drop, {0}, NULL},
    {"storage_alloc_and_free", 64 << 20, 0, storage_make, storage_run_pair, storage_drop, {0}, NULL},
    {"tensor_create_on_and_release", 4096, 0, storage_make, storage_run_tensor, storage_drop, {0}, NULL},
};
MICRO_TABLE(micro_storage, NULL)
