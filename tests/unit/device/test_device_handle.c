/* The public handle of a device: names, options, figures; storage of the CPU, from several threads at once. */
#include "bench/verify/random.h"
#include "device/cpu/cpu.h"
#include "device/handle.h"
#include "device/memory/pool.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"

#include <stdlib.h>
#include <string.h>

static reshard_device open_cpu(const reshard_device_options *options) {
  reshard_device device;
  if (reshard_device_create("cpu", options, &device) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  return device;
}

static void refuse(const char *name, const reshard_device_options *options, reshard_status status, const char *text) {
  reshard_device device = NULL;
  assert_int_equal(reshard_device_create(name, options, &device), status);
  assert_null(device);
  if (strstr(reshard_last_error(), text) == NULL)
    fail_msg("'%s' is not in '%s'", text, reshard_last_error());
}

CASE(wrong_names_and_options_are_refused) {
  static const char *const names[] = {
      "", "CPU", "cpu:0", "cudaX", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999", "tpu"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    refuse(names[i], NULL, RESHARD_ERROR_INVALID, "\"cpu\", \"cuda\" and \"cuda:N\" are possible");
  refuse(NULL, NULL, RESHARD_ERROR_INVALID, "name is NULL");
  refuse("cpu", &(reshard_device_options){3, .threads = 1}, RESHARD_ERROR_INVALID, "size field 3");
  refuse("cpu", &(reshard_device_options){RESHARD_DEVICE_OPTIONS_INIT, .threads = -1}, RESHARD_ERROR_INVALID,
         "-1 copy threads");
  refuse("cpu", &(reshard_device_options){RESHARD_DEVICE_OPTIONS_INIT, .threads = 5000}, RESHARD_ERROR_INVALID,
         "5000 copy threads");
  refuse("cpu", &(reshard_device_options){RESHARD_DEVICE_OPTIONS_INIT, .isa = RESHARD_ISA_COUNT},
         RESHARD_ERROR_UNSUPPORTED, "unknown");
  refuse("cpu", &(reshard_device_options){RESHARD_DEVICE_OPTIONS_INIT, .keep_bytes = -2}, RESHARD_ERROR_INVALID,
         "keep_bytes -2");
  refuse("cpu", &(reshard_device_options){RESHARD_DEVICE_OPTIONS_INIT, .max_blocks = -1}, RESHARD_ERROR_INVALID,
         "max_blocks -1");
  const reshard_allocator half = {.free = NULL};
  refuse("cpu", &(reshard_device_options){RESHARD_DEVICE_OPTIONS_INIT, .allocator = &half}, RESHARD_ERROR_INVALID,
         "function alloc is NULL");
  assert_int_equal(reshard_device_create("cpu", NULL, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_device_get_info(NULL, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_device_get_memory_stats(NULL, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_device_trim(NULL, 0), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_device_forget_stream(NULL, NULL), RESHARD_ERROR_INVALID);
  assert_null(reshard_device_retain(NULL));
  reshard_device_release(NULL);
}

CASE(environment_sets_threads_and_isa) {
  setenv("RESHARD_THREADS", "three", 1);
  refuse("cpu", NULL, RESHARD_ERROR_INVALID, "RESHARD_THREADS=three");
  reshard_device device =
      open_cpu(&(reshard_device_options){RESHARD_DEVICE_OPTIONS_INIT, .threads = 2}); /* not looked at */
  assert_int_equal(rs_device_cpu_threads(device->device), 2);
  reshard_device_release(device);
  setenv("RESHARD_THREADS", "3", 1);
  setenv("RESHARD_ISA", "scalar", 1);
  device = open_cpu(NULL);
  assert_int_equal(rs_device_cpu_threads(device->device), 3);
  assert_int_equal(rs_device_cpu_isa(device->device), RESHARD_ISA_SCALAR);
  reshard_device_release(device);
  setenv("RESHARD_ISA", "mmx", 1);
  refuse("cpu", NULL, RESHARD_ERROR_INVALID, "RESHARD_ISA=mmx");
  unsetenv("RESHARD_THREADS");
  unsetenv("RESHARD_ISA");
}

CASE(cpu_tells_its_type_and_memory) {
  reshard_device device = open_cpu(&(reshard_device_options){RESHARD_DEVICE_OPTIONS_INIT, .threads = 1});
  reshard_device_info info;
  reshard_memory_stats s;
  assert_int_equal(reshard_device_get_info(device, &info), RESHARD_SUCCESS);
  assert_true(info.type == RESHARD_DEVICE_CPU && info.index == 0 && info.streams == 0);
  void *side = &info;
  assert_int_equal(rs_device_side(device, RS_SIDE_OUT, &side), RESHARD_SUCCESS);
  assert_null(side);
  assert_int_equal(rs_device_check_capture("test", device->device, NULL), RESHARD_SUCCESS);

  rs_storage_pool *pool;
  assert_int_equal(rs_device_pool(device, &pool), RESHARD_SUCCESS);
  rs_block *small, *large;
  assert_int_equal(rs_storage_pool_alloc(pool, 1000, NULL, &small), RESHARD_SUCCESS);
  assert_int_equal(rs_storage_pool_alloc(pool, (3 << 20) + 1, NULL, &large), RESHARD_SUCCESS);
  assert_true((uintptr_t)small->memory % 256 == 0 && (uintptr_t)large->memory % (2 << 20) == 0); /* huge pages */
  memset(large->memory, 1, large->bytes);
  const void *memory = large->memory;
  assert_int_equal(rs_storage_pool_use(pool, large, NULL), RESHARD_SUCCESS);
  rs_storage_pool_free(pool, large, NULL);
  rs_storage_pool_free(pool, small, NULL);
  assert_int_equal(rs_storage_pool_alloc(pool, 3 << 20, NULL, &large), RESHARD_SUCCESS);
  assert_ptr_equal(large->memory, memory);
  assert_int_equal(reshard_device_get_memory_stats(device, &s), RESHARD_SUCCESS);
  assert_true(s.allocs == 3 && s.frees == 2 && s.upstream_allocs == 2 && s.upstream_frees == 1);
  assert_true(s.in_use_bytes == 3 << 20 && s.kept_bytes == 4096 && s.peak_bytes == (3 << 20) + 4096 + 1000);
  assert_true(s.records == 0 && s.waits == 0);
  rs_storage_pool_free(pool, large, NULL);
  assert_int_equal(reshard_device_trim(device, 0), RESHARD_SUCCESS);
  assert_int_equal(reshard_device_forget_stream(device, NULL), RESHARD_SUCCESS);
  assert_int_equal(reshard_device_get_memory_stats(device, &s), RESHARD_SUCCESS);
  assert_true(s.in_use_bytes == 0 && s.kept_bytes == 0);
  assert_ptr_equal(reshard_device_retain(device), device);
  reshard_device_release(device);
  reshard_device_release(device);
}

/* Blocks of all sizes by several threads: nobody writes into another's. */
static void handle_hammer(void *user, int64_t rank) {
  enum { MOST = 12 };
  rs_storage_pool *pool = user;
  rs_block *held[MOST];
  uint8_t byte[MOST];
  int n = 0;
  rng r;
  rng_seed(&r, (uint64_t)rank + 1);
  for (int64_t i = test_scaled(3000, 1); i > 0 || n > 0; i--) {
    if (i > 0 && n < MOST && rng_one_in(&r, 2)) {
      size_t bytes = (size_t)rng_log(&r, 1 << 20);
      if (rs_storage_pool_alloc(pool, bytes, NULL, &held[n]) != RESHARD_SUCCESS)
        continue;
      byte[n] = (uint8_t)rng_below(&r, 256);
      memset(held[n]->memory, byte[n], rs_min(64, (int64_t)bytes));
      ((uint8_t *)held[n]->memory)[bytes - 1] = byte[n];
      n++;
    } else if (n > 0) {
      int k = (int)rng_below(&r, n);
      const uint8_t *at = held[k]->memory;
      if (at[0] != byte[k] || at[held[k]->bytes - 1] != byte[k])
        abort();
      rs_storage_pool_free(pool, held[k], NULL);
      held[k] = held[--n];
      byte[k] = byte[n];
    }
  }
}

CASE(threads_take_storage_within_the_limit) {
  reshard_device device =
      open_cpu(&(reshard_device_options){RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .limit_bytes = 16 << 20});
  reshard_memory_stats s;
  rank_threads_run(4, handle_hammer, device->storage);
  assert_int_equal(reshard_device_get_memory_stats(device, &s), RESHARD_SUCCESS);
  assert_true(s.in_use_bytes == 0 && s.allocs == s.frees && s.peak_held_bytes <= 16 << 20 &&
              s.upstream_allocs < s.allocs);
  reshard_device_release(device);
}

/* On a machine with a GPU there is one; else the text says what is missing. */
CASE(cuda_is_there_or_says_what_is_missing) {
  reshard_device device = NULL;
  reshard_status status = reshard_device_create("cuda", NULL, &device);
  if (status == RESHARD_SUCCESS) {
    refuse("cuda:4096", NULL, RESHARD_ERROR_UNSUPPORTED, "there is no cuda:4096: the process sees");
    reshard_device_release(device);
    return;
  }
  assert_int_equal(status, RESHARD_ERROR_UNSUPPORTED);
  assert_null(device);
  assert_true(strstr(reshard_last_error(), "this build has no CUDA") != NULL ||
              strstr(reshard_last_error(), "this machine has no CUDA driver") != NULL ||
              strstr(reshard_last_error(), "no GPU can be used") != NULL);
  print_message("%s\n", reshard_last_error());
}

/* On the CPU streams are NULL, and nothing else is one. */
CASE(streams_of_the_cpu_are_null) {
  reshard_device cpu = open_cpu(NULL);
  void *stream = cpu;
  assert_int_equal(reshard_stream_create(cpu, &stream), RESHARD_SUCCESS);
  assert_null(stream);
  assert_int_equal(reshard_stream_order(cpu, stream, NULL), RESHARD_SUCCESS);
  assert_int_equal(reshard_stream_synchronize(cpu, stream), RESHARD_SUCCESS);
  assert_int_equal(reshard_stream_order(cpu, NULL, cpu), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_stream_order(cpu, cpu, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_stream_synchronize(cpu, cpu), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_stream_create(NULL, &stream), RESHARD_ERROR_INVALID);
  assert_string_equal(reshard_last_error(), "reshard_stream_create: device is NULL");
  assert_int_equal(reshard_stream_create(cpu, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_stream_order(NULL, NULL, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_stream_synchronize(NULL, NULL), RESHARD_ERROR_INVALID);
  reshard_stream_destroy(cpu, NULL);
  reshard_stream_destroy(NULL, NULL);
  reshard_device_release(cpu);
}

RUN_CASES
