/* The ring of pinned memory. */
#include "device/cpu/cpu.h"
#include "device/memory/staging.h"
#include "support/devices/queue.h"
#include "support/fixtures/case.h"

#include <string.h>

enum { KIB = 1 << 10 };

typedef struct fixture {
  queue_device *q;
  rs_device *device;
  rs_staging *staging;
  void *stream[2];
} fixture;

static fixture open_fixture(size_t most) {
  fixture r = {.q = queue_device_new(3)};
  r.device = queue_device_of(r.q);
  for (int i = 0; i < 2; i++)
    assert_int_equal(r.device->streams->create(r.device, &r.stream[i]), RESHARD_SUCCESS);
  assert_int_equal(rs_staging_create(r.device, most, &r.staging), RESHARD_SUCCESS);
  return r;
}
static void close_fixture(fixture *r) {
  rs_staging_destroy(r->staging);
  queue_counts c = queue_count(r->q);
  assert_int_equal(c.wrong, 0);
  assert_int_equal(c.events, 0);
  assert_int_equal(c.frees, c.calls[QUEUE_ALLOC]);
  queue_device_free(r->q);
}

static rs_staging_block *take_block(fixture *r, size_t bytes, void **memory) {
  rs_staging_block *block;
  if (rs_staging_take(r->staging, bytes, &block, memory) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  assert_true((uintptr_t)*memory % 256 == 0);
  memset(*memory, 1, bytes);
  return block;
}
static void give_block(fixture *r, rs_staging_block *block, int stream) {
  assert_int_equal(rs_staging_give(r->staging, block, r->stream[stream]), RESHARD_SUCCESS);
}
static rs_staging_stats stats_of(const fixture *r) {
  rs_staging_stats s;
  rs_staging_get_stats(r->staging, &s);
  return s;
}

/* A block comes again when the stream is past its use, and not before. */
CASE(test_again_when_done) {
  fixture r = open_fixture(1024 * KIB);
  void *a, *b, *c;
  rs_staging_block *block = take_block(&r, 1, &a);
  queue_hold(r.q, r.stream[0]);
  give_block(&r, block, 0);
  block = take_block(&r, 64 * KIB, &b);
  assert_ptr_not_equal(a, b);
  give_block(&r, block, 1);
  queue_run(r.q, INT64_MAX);
  block = take_block(&r, 20 * KIB, &c);
  assert_ptr_equal(c, b);
  give_block(&r, block, 1);
  queue_hold(r.q, NULL);
  queue_run(r.q, INT64_MAX);
  block = take_block(&r, 20 * KIB, &c);
  assert_ptr_equal(c, a);
  give_block(&r, block, 1);
  assert_true(stats_of(&r).bytes == 128 * KIB && stats_of(&r).takes == 4 && stats_of(&r).waits == 0);
  assert_int_equal(queue_count(r.q).calls[QUEUE_SYNCHRONIZE], 0);
  close_fixture(&r);
}

/* No more than `most`: blocks that are free and do not fit go, then the host waits for the one given back first. */
CASE(staging_keeps_within_its_most) {
  fixture r = open_fixture(512 * KIB);
  void *m;
  rs_staging_block *p[4], *none = NULL;
  for (int i = 0; i < 4; i++)
    p[i] = take_block(&r, 128 * KIB, &m);
  assert_int_equal(rs_staging_take(r.staging, 1, &none, &m), RESHARD_ERROR_OUT_OF_MEMORY);
  assert_string_equal(reshard_last_error(), "1 bytes of staging: 524288 of at most 524288 are in use");
  assert_int_equal(rs_staging_take(r.staging, 513 * KIB, &none, &m), RESHARD_ERROR_OUT_OF_MEMORY);
  assert_string_equal(reshard_last_error(), "525312 bytes of staging: 524288 are the most");
  assert_null(none);
  for (int i = 0; i < 4; i++)
    give_block(&r, p[i], i % 2);
  p[0] = take_block(&r, 300 * KIB, &m); /* for all four: 512 KiB at once */
  assert_true(stats_of(&r).waits >= 1 && stats_of(&r).bytes == 512 * KIB);
  give_block(&r, p[0], 0);
  queue_run(r.q, INT64_MAX);
  int64_t waits = stats_of(&r).waits;
  p[0] = take_block(&r, 1, &m); /* far larger than needed, and there is no fixture for another */
  assert_true(stats_of(&r).waits == waits && stats_of(&r).bytes == 512 * KIB);
  give_block(&r, p[0], 0);
  close_fixture(&r);
}

CASE(failing_calls_leave_the_ring_whole) {
  fixture r = open_fixture(512 * KIB);
  void *m;
  rs_staging_block *block, *none = NULL;
  static const queue_call calls[] = {QUEUE_EVENT, QUEUE_ALLOC};
  for (int i = 0; i < 2; i++) {
    queue_fail(r.q, calls[i], 0);
    assert_int_equal(rs_staging_take(r.staging, 1, &none, &m), RESHARD_ERROR_SYSTEM);
    assert_true(none == NULL && stats_of(&r).bytes == 0);
  }
  queue_counts before = queue_count(r.q);
  block = take_block(&r, 1, &m);
  queue_fail(r.q, QUEUE_RECORD, 0);
  give_block(&r, block, 0); /* the host waits */
  assert_int_equal(queue_count(r.q).calls[QUEUE_SYNCHRONIZE], 1);
  block = take_block(&r, 1, &m);
  assert_int_equal(queue_count(r.q).calls[QUEUE_ALLOC], before.calls[QUEUE_ALLOC] + 1);
  queue_fail(r.q, QUEUE_RECORD, 0);
  queue_fail(r.q, QUEUE_SYNCHRONIZE, 0);
  assert_int_equal(rs_staging_give(r.staging, block, r.stream[0]), RESHARD_ERROR_SYSTEM);
  block = take_block(&r, 1, &m); /* another one */
  assert_int_equal(queue_count(r.q).calls[QUEUE_ALLOC], before.calls[QUEUE_ALLOC] + 2);
  queue_capture(r.q, r.stream[1], true);
  give_block(&r, block, 1); /* a graph's now */
  queue_capture(r.q, r.stream[1], false);
  block = take_block(&r, 1, &m);
  assert_int_equal(queue_count(r.q).calls[QUEUE_ALLOC], before.calls[QUEUE_ALLOC] + 3);
  give_block(&r, block, 1);
  rs_staging_destroy(r.staging);
  assert_int_equal(queue_count(r.q).events, 0);
  queue_device_free(r.q);
}

CASE(staging_of_the_cpu_is_plain_memory) {
  rs_device *cpu;
  rs_staging *staging;
  rs_staging_block *block;
  void *a, *b;
  assert_int_equal(rs_device_cpu_create(1, RESHARD_ISA_AUTO, &cpu), RESHARD_SUCCESS);
  assert_int_equal(rs_staging_create(cpu, 1024 * KIB, &staging), RESHARD_SUCCESS);
  assert_int_equal(rs_staging_take(staging, 1000, &block, &a), RESHARD_SUCCESS);
  assert_int_equal(rs_staging_give(staging, block, NULL), RESHARD_SUCCESS);
  assert_int_equal(rs_staging_take(staging, 1000, &block, &b), RESHARD_SUCCESS);
  assert_ptr_equal(a, b);
  assert_int_equal(rs_staging_give(staging, block, NULL), RESHARD_SUCCESS);
  rs_staging_destroy(staging);
  rs_staging_destroy(NULL);
  cpu->destroy(cpu);
}

RUN_CASES
