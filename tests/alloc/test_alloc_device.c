/* The k-th allocation fails, for every k: making a device, taking and using storage, staging. What is freed while it
 * fails is freed all the same. */
#include "device/memory/pool.h"
#include "device/memory/staging.h"
#include "support/devices/queue.h"
#include "support/fault_local.h"
#include "support/fixtures/case.h"

#include <string.h>

enum { MIB = 1 << 20 };

static reshard_status device_create(fault_output *out, const void *with) {
  reshard_device device = out->object;
  reshard_status status = reshard_device_create("cpu", with, &device);
  out->object = device;
  return status;
}
static bool good_device(const fault_output *out, const void *with) {
  reshard_device_info info;
  return reshard_device_get_info(out->object, &info) == RESHARD_SUCCESS && info.type == RESHARD_DEVICE_CPU;
}
static void drop_device(fault_output *out) { reshard_device_release(out->object); }

CASE(devices_survive_any_failed_allocation) {
  const reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .threads = 2};
  assert_true(
      fault_local_run(&(fault_local){"reshard_device_create", device_create, good_device, drop_device, &options}) >= 5);
}

/* --- Storage on a device with streams, whose own memory does not fail ------------------------------------------- */

typedef struct fixture {
  queue_device *q;
  rs_storage_pool *pool;
  rs_staging *staging;
  void *stream[3];
} fixture;

static fixture open_fixture(void) {
  fixture s = {.q = queue_device_new(5)};
  rs_device *device = queue_device_of(s.q);
  const reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .threads = 0};
  for (int i = 0; i < 3; i++)
    assert_int_equal(device->streams->create(device, &s.stream[i]), RESHARD_SUCCESS);
  assert_int_equal(rs_storage_pool_create(device, &options, &s.pool), RESHARD_SUCCESS);
  assert_int_equal(rs_staging_create(device, MIB, &s.staging), RESHARD_SUCCESS);
  return s;
}
static void close_fixture(fixture *s) {
  rs_storage_pool_destroy(s->pool);
  rs_staging_destroy(s->staging);
  queue_run(s->q, INT64_MAX);
  queue_counts c = queue_count(s->q);
  assert_true(c.wrong == 0 && c.live == 0 && c.events == 0);
  queue_device_free(s->q);
}

/* A whole life of blocks in a fixture of its own; the k-th allocation of the library fails. false: none was left to. */
static bool life(int64_t k) {
  enum { BLOCKS = 4 };
  fixture s = open_fixture();
  rs_block *b[BLOCKS] = {NULL};
  rs_staging_block *piece = NULL;
  void *memory;
  queue_mark(s.q, fault_mark);
  fault_mark(true);
  fault_arm(k);
  for (int i = 0; i < BLOCKS; i++) {
    reshard_status status = rs_storage_pool_alloc(s.pool, i % 2 ? 2 * MIB : 5000, s.stream[i % 3], &b[i]);
    if (status == RESHARD_SUCCESS)
      queue_write(s.q, s.stream[i % 3], b[i]->memory, b[i]->bytes, 4096, 1);
    else if (status != RESHARD_ERROR_OUT_OF_MEMORY || b[i] != NULL)
      fail_msg("allocation %lld: %s", (long long)k, reshard_last_error());
  }
  for (int i = 0; i < BLOCKS; i++) {
    void *other = s.stream[(i + 1) % 3];
    if (b[i] == NULL)
      continue;
    queue_order(s.q, s.stream[i % 3], other);
    if (rs_storage_pool_use(s.pool, b[i], other) == RESHARD_SUCCESS)
      queue_check(s.q, other, b[i]->memory, b[i]->bytes, 4096, 1);
  }
  for (int i = 0; i < BLOCKS; i++)
    rs_storage_pool_free(s.pool, b[i], s.stream[(i + 2) % 3]);
  for (int i = 0; i < BLOCKS; i++) {
    b[i] = NULL;
    if (rs_storage_pool_alloc(s.pool, 2 * MIB, s.stream[1], &b[i]) == RESHARD_SUCCESS)
      queue_write(s.q, s.stream[1], b[i]->memory, b[i]->bytes, 4096, 2);
    rs_storage_pool_drop(s.pool, b[i]);
  }
  if (rs_staging_take(s.staging, 1000, &piece, &memory) == RESHARD_SUCCESS)
    assert_int_equal(rs_staging_give(s.staging, piece, s.stream[0]), RESHARD_SUCCESS);
  bool fired = fault_fired() != FAULT_NONE;
  fault_disarm();
  fault_mark(false);
  queue_mark(s.q, NULL);
  reshard_memory_stats stats;
  rs_storage_pool_stats(s.pool, &stats);
  assert_int_equal(stats.in_use_bytes, 0);
  close_fixture(&s);
  return fired;
}

CASE(storage_survives_any_failed_allocation) {
  int64_t k = 0, live = fault_live();
  while (life(k)) {
    assert_int_equal(fault_live(), live);
    k++;
  }
  assert_true(k >= 15);
}

RUN_CASES
