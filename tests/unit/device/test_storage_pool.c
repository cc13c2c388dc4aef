/* Storage pools, one property at a time, on a device whose streams the test runs. */
#include "device/memory/pool.h"
#include "support/devices/queue.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"

#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20, STREAMS = 4 };

typedef struct fixture {
  queue_device *q;
  rs_device *device;
  rs_storage_pool *pool;
  void *stream[STREAMS];
  queue_counts before; /* assert_calls */
} fixture;

static fixture open_fixture(int64_t keep, size_t limit) {
  fixture r = {.q = queue_device_new(7)};
  r.device = queue_device_of(r.q);
  for (int i = 0; i < STREAMS; i++)
    assert_int_equal(r.device->streams->create(r.device, &r.stream[i]), RESHARD_SUCCESS);
  reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .limit_bytes = limit, .keep_bytes = keep};
  assert_int_equal(rs_storage_pool_create(r.device, &options, &r.pool), RESHARD_SUCCESS);
  return r;
}

static void close_fixture(fixture *r) {
  rs_storage_pool_destroy(r->pool);
  queue_run(r->q, INT64_MAX);
  queue_counts c = queue_count(r->q);
  assert_int_equal(c.wrong, 0);
  assert_int_equal(c.live, 0);
  assert_int_equal(c.events, 0);
  assert_int_equal(c.streams, STREAMS);
  queue_device_free(r->q);
}

static rs_block *take_block(fixture *r, size_t bytes, int stream) {
  rs_block *block = NULL;
  if (rs_storage_pool_alloc(r->pool, bytes, r->stream[stream], &block) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  queue_write(r->q, r->stream[stream], block->memory, bytes, 4096, (uint8_t)bytes);
  return block;
}
static void give_block(fixture *r, rs_block *block, int stream) {
  rs_storage_pool_free(r->pool, block, r->stream[stream]);
}
/* After what the stream that it is from has, the other one reads it. */
static void block_use(fixture *r, rs_block *block, int from, int stream) {
  queue_order(r->q, r->stream[from], r->stream[stream]);
  assert_int_equal(rs_storage_pool_use(r->pool, block, r->stream[stream]), RESHARD_SUCCESS);
  queue_check(r->q, r->stream[stream], block->memory, block->bytes, 4096, (uint8_t)block->bytes);
}

static reshard_memory_stats stats_of(const fixture *r) {
  reshard_memory_stats s;
  rs_storage_pool_stats(r->pool, &s);
  return s;
}

/* Counts since the last call. */
static void assert_calls(fixture *r, int64_t allocs, int64_t frees, int64_t records, int64_t waits) {
  queue_counts now = queue_count(r->q);
  assert_int_equal(now.calls[QUEUE_ALLOC] - r->before.calls[QUEUE_ALLOC], allocs);
  assert_int_equal(now.frees - r->before.frees, frees);
  assert_int_equal(now.calls[QUEUE_RECORD] - r->before.calls[QUEUE_RECORD], records);
  assert_int_equal(now.calls[QUEUE_WAIT] - r->before.calls[QUEUE_WAIT], waits);
  r->before = now;
}

/* The same stream gets what it gave, and the device is not called at all. */
CASE(test_warm_pair) {
  static const size_t sizes[] = {1, 256, 1000, MIB - 1, MIB, 3 * MIB + 1, 100 * MIB};
  fixture r = open_fixture(0, 0);
  for (int i = 0; i < 7; i++) {
    rs_block *block = take_block(&r, sizes[i], 1);
    void *memory = block->memory;
    give_block(&r, block, 1);
    int64_t calls = queue_count(r.q).all;
    for (int k = 0; k < 100; k++) {
      block = take_block(&r, sizes[i], 1);
      assert_ptr_equal(block->memory, memory);
      give_block(&r, block, 1);
    }
    assert_int_equal(queue_count(r.q).all, calls);
  }
  close_fixture(&r);
}

CASE(block_of_no_bytes_has_no_memory) {
  fixture r = open_fixture(0, 0);
  rs_block *block;
  assert_int_equal(rs_storage_pool_alloc(r.pool, 0, r.stream[0], &block), RESHARD_SUCCESS);
  assert_true(block->memory == NULL && block->bytes == 0);
  assert_int_equal(rs_storage_pool_use(r.pool, block, r.stream[1]), RESHARD_SUCCESS);
  give_block(&r, block, 2);
  give_block(&r, NULL, 2);
  assert_int_equal(rs_storage_pool_alloc(r.pool, SIZE_MAX, r.stream[0], &block), RESHARD_ERROR_OUT_OF_MEMORY);
  assert_non_null(strstr(reshard_last_error(), "18446744073709551615 bytes of storage on queue 0"));
  assert_calls(&r, 0, 0, 0, 0);
  rs_storage_pool_destroy(NULL);
  close_fixture(&r);
}

/* One event for all blocks that a stream freed so far, one wait for each stream that wants some of them. */
CASE(test_other_stream) {
  fixture r = open_fixture(0, 0);
  rs_block *b[6];
  for (int i = 0; i < 6; i++)
    b[i] = take_block(&r, (size_t)(2 + i) * MIB, 0);
  assert_calls(&r, 6, 0, 0, 0);
  for (int i = 0; i < 5; i++)
    give_block(&r, b[i], 0);
  assert_calls(&r, 0, 0, 0, 0);
  b[0] = take_block(&r, 2 * MIB, 1);
  assert_calls(&r, 0, 0, 1, 1);
  b[1] = take_block(&r, 3 * MIB, 1);
  b[2] = take_block(&r, 4 * MIB, 1);
  assert_calls(&r, 0, 0, 0, 0);
  b[3] = take_block(&r, 5 * MIB, 2);
  assert_calls(&r, 0, 0, 0, 1);
  give_block(&r, b[5], 0); /* after the event */
  b[5] = take_block(&r, 7 * MIB, 2);
  assert_calls(&r, 0, 0, 1, 1);
  for (int i = 0; i < 6; i++)
    if (i != 4)
      give_block(&r, b[i], 3);
  close_fixture(&r);
}

/* The free waits for the uses, not for what these streams are given afterwards, and only where the block is taken. */
CASE(free_waits_for_uses_where_the_block_is_taken) {
  fixture r = open_fixture(0, 0);
  rs_block *block = take_block(&r, 2 * MIB, 0), *other;
  void *memory = block->memory;
  block_use(&r, block, 0, 1);
  block_use(&r, block, 0, 2);
  block_use(&r, block, 0, 1);
  block_use(&r, block, 0, 0);
  assert_calls(&r, 1, 0, 0, 0);
  give_block(&r, block, 0);
  assert_calls(&r, 0, 0, 2, 0);
  queue_order(r.q, r.stream[3], r.stream[1]); /* from here on stream 1 waits for one that does not go on */
  queue_hold(r.q, r.stream[3]);
  other = take_block(&r, MIB, 0); /* a part of it: so it has to wait */
  assert_ptr_equal(other->memory, memory);
  assert_calls(&r, 0, 0, 0, 2);
  queue_run(r.q, INT64_MAX);
  bool done;
  rs_event *event;
  assert_int_equal(r.device->streams->event_create(r.device, &event), RESHARD_SUCCESS);
  assert_int_equal(r.device->streams->event_record(r.device, event, r.stream[0]), RESHARD_SUCCESS);
  queue_run(r.q, INT64_MAX);
  assert_int_equal(r.device->streams->event_done(r.device, event, &done), RESHARD_SUCCESS);
  assert_true(done); /* although stream 3 stands still */
  r.device->streams->event_destroy(r.device, event);
  queue_hold(r.q, NULL);
  give_block(&r, other, 0);
  close_fixture(&r);
}

/* Neighbours that different streams freed become one block, before there is a new segment. */
CASE(neighbours_of_different_streams_merge) {
  fixture r = open_fixture(0, 0);
  give_block(&r, take_block(&r, 6 * MIB, 0), 0);
  rs_block *b[3];
  for (int i = 0; i < 3; i++) {
    b[i] = take_block(&r, 2 * MIB, 0);
    assert_true(i == 0 || (char *)b[i]->memory == (char *)b[i - 1]->memory + 2 * MIB);
  }
  assert_calls(&r, 1, 0, 0, 0);
  void *memory = b[0]->memory;
  give_block(&r, b[1], 1);
  assert_calls(&r, 0, 0, 0, 0);
  give_block(&r, b[0], 0);
  give_block(&r, b[2], 0);
  rs_block *all = take_block(&r, 6 * MIB, 3);
  assert_ptr_equal(all->memory, memory);
  assert_calls(&r, 0, 0, 2, 2);
  give_block(&r, all, 3);
  assert_int_equal(stats_of(&r).kept_bytes, 6 * MIB);
  close_fixture(&r);
}

/* Freed on another stream than it was allocated on, which uses it too: who takes it comes after both; the stream that
 * it was allocated on, only after the other one. */
CASE(block_comes_after_both_its_streams) {
  fixture r = open_fixture(0, 0);
  for (int taker = 0; taker < 3; taker++) {
    rs_block *block = take_block(&r, 2 * MIB, 0);
    assert_calls(&r, taker == 0, 0, taker == 2, taker == 2);
    give_block(&r, block, 1);
    assert_calls(&r, 0, 0, 0, 0);
    block = take_block(&r, 2 * MIB, taker);
    int edges = taker == 2 ? 2 : 1;
    assert_calls(&r, 0, 0, edges, edges);
    give_block(&r, block, taker);
  }
  close_fixture(&r);
}

/* A block that was freed after events of others has an event of its own, also as a part of a larger one. */
CASE(test_merge_later) {
  fixture r = open_fixture(0, 0);
  rs_block *other = take_block(&r, 3 * MIB, 0);
  give_block(&r, take_block(&r, 4 * MIB, 0), 0);
  rs_block *first = take_block(&r, 2 * MIB, 0), *second = take_block(&r, 2 * MIB, 0);
  assert_ptr_equal((char *)first->memory + 2 * MIB, second->memory);
  give_block(&r, other, 0);
  give_block(&r, first, 0);
  other = take_block(&r, 3 * MIB, 1);
  assert_calls(&r, 2, 0, 1, 1);
  give_block(&r, second, 0);
  rs_block *both = take_block(&r, 4 * MIB, 1);
  assert_calls(&r, 0, 0, 1, 1);
  give_block(&r, both, 1);
  give_block(&r, other, 1);
  close_fixture(&r);
}

/* Of several free blocks the smallest that is large enough is taken; of equal ones one that nobody waits for. */
CASE(smallest_block_without_a_wait_is_taken) {
  fixture r = open_fixture(0, 0);
  static const size_t sizes[] = {2 * MIB, 3 * MIB, 5 * MIB, 5 * MIB, 40 * MIB};
  rs_block *b[5];
  void *memory[5];
  for (int i = 0; i < 5; i++) {
    b[i] = take_block(&r, sizes[i], 0);
    memory[i] = b[i]->memory;
  }
  block_use(&r, b[3], 0, 1);
  for (int i = 0; i < 5; i++)
    give_block(&r, b[i], 0);
  b[0] = take_block(&r, 2 * MIB + 2 * (64 << 10), 0); /* 2 MiB are in its list, and too few */
  assert_ptr_equal(b[0]->memory, memory[1]);
  b[2] = take_block(&r, 5 * MIB, 0);
  assert_ptr_equal(b[2]->memory, memory[2]);
  b[3] = take_block(&r, 5 * MIB, 0);
  assert_ptr_equal(b[3]->memory, memory[3]);
  b[4] = take_block(&r, 4 * MIB, 0); /* 4 to 8 MiB: none is left */
  assert_ptr_equal(b[4]->memory, memory[4]);
  assert_calls(&r, 5, 0, 1, 1);
  give_block(&r, b[0], 0);
  for (int i = 2; i < 5; i++)
    give_block(&r, b[i], 0);
  close_fixture(&r);
}

/* A block of a stream that has been waited for, up to its event, comes before a smaller one that is waited for once. */
CASE(block_whose_stream_has_been_waited_for_is_taken) {
  fixture r = open_fixture(0, 0);
  static const size_t sizes[] = {3 * MIB, 5 * MIB, 7 * MIB, 6 * MIB};
  rs_block *b[4];
  void *memory[4];
  for (int i = 0; i < 4; i++) {
    b[i] = take_block(&r, sizes[i], i < 2 ? 2 : 0);
    memory[i] = b[i]->memory;
  }
  give_block(&r, b[0], 2);
  give_block(&r, b[1], 2);
  b[0] = take_block(&r, 3 * MIB, 3); /* records what the block of 5 MiB comes after, too */
  assert_ptr_equal(b[0]->memory, memory[0]);
  give_block(&r, b[2], 0);
  give_block(&r, b[3], 0);
  b[2] = take_block(&r, 7 * MIB, 1);
  assert_ptr_equal(b[2]->memory, memory[2]);
  assert_calls(&r, 4, 0, 2, 2);
  b[3] = take_block(&r, 5 * MIB, 1);
  assert_ptr_equal(b[3]->memory, memory[3]);
  assert_calls(&r, 0, 0, 0, 0);
  give_block(&r, b[0], 3);
  give_block(&r, b[2], 1);
  give_block(&r, b[3], 1);
  close_fixture(&r);
}

CASE(test_keep_none) {
  fixture r = open_fixture(-1, 0);
  rs_block *a = take_block(&r, 2 * MIB, 0), *b = take_block(&r, 2 * MIB, 0);
  give_block(&r, a, 0);
  assert_calls(&r, 2, 1, 0, 0); /* in the order of the stream: no event */
  block_use(&r, b, 0, 1);
  give_block(&r, b, 0);
  assert_calls(&r, 0, 1, 2, 2); /* of a side stream that waits for both */
  assert_int_equal(queue_count(r.q).streams, STREAMS + 1);
  a = take_block(&r, 1000, 0); /* in one slab, of two streams */
  b = take_block(&r, 1000, 1);
  assert_calls(&r, 1, 0, 1, 1);
  give_block(&r, a, 0);
  give_block(&r, b, 1);
  assert_calls(&r, 0, 1, 2, 2);
  assert_int_equal(stats_of(&r).kept_bytes, 0);
  close_fixture(&r);
}

/* Sizes that take turns: no more is held than the most in use at one time, and that settles. */
CASE(test_keep_peak) {
  fixture r = open_fixture(0, 0);
  for (int turn = 0; turn < 5; turn++) {
    int64_t before = queue_count(r.q).all;
    rs_block *a = take_block(&r, 10 * MIB, 0), *b = take_block(&r, 4 * MIB, 0);
    give_block(&r, a, 0);
    give_block(&r, b, 0);
    rs_block *small[20];
    for (int i = 0; i < 20; i++)
      small[i] = take_block(&r, 4000, 0);
    for (int i = 0; i < 20; i++)
      give_block(&r, small[i], 0);
    rs_block *c = take_block(&r, 12 * MIB, 0);
    give_block(&r, c, 0);
    reshard_memory_stats s = stats_of(&r);
    assert_true(s.in_use_bytes == 0 && s.kept_bytes <= (14 + 2 + (turn > 0 ? 4 : 0)) * MIB);
    assert_true(turn < 3 || queue_count(r.q).all == before);
  }
  close_fixture(&r);
}

CASE(trim_gives_back_what_is_free) {
  fixture r = open_fixture(0, 0);
  rs_block *b[4];
  for (int i = 0; i < 4; i++)
    b[i] = take_block(&r, 4 * MIB, i);
  void *last = b[3]->memory;
  for (int i = 0; i < 4; i++)
    give_block(&r, b[i], i);
  assert_int_equal(stats_of(&r).kept_bytes, 16 * MIB);
  assert_int_equal(rs_storage_pool_trim(r.pool, 5 * MIB), RESHARD_SUCCESS);
  assert_int_equal(stats_of(&r).kept_bytes, 4 * MIB);
  assert_calls(&r, 4, 3, 0, 0); /* each in the order of its own stream */
  b[3] = take_block(&r, 4 * MIB, 3);
  assert_ptr_equal(b[3]->memory, last); /* the others were kept longer */
  give_block(&r, b[3], 3);
  assert_int_equal(rs_storage_pool_trim(r.pool, 0), RESHARD_SUCCESS);
  assert_int_equal(stats_of(&r).kept_bytes, 0);
  close_fixture(&r);
}

CASE(limit_counts_in_use_and_kept) {
  fixture r = open_fixture(0, 10 * MIB);
  rs_block *a = take_block(&r, 6 * MIB, 0), *b = take_block(&r, 4 * MIB, 0), *c = NULL;
  assert_int_equal(rs_storage_pool_alloc(r.pool, 100, r.stream[0], &c), RESHARD_ERROR_OUT_OF_MEMORY);
  assert_null(c);
  assert_string_equal(reshard_last_error(),
                      "100 bytes of storage on queue 0: 10485760 are in use, 0 kept, the limit is 10485760");
  give_block(&r, b, 0);
  c = take_block(&r, 100, 0); /* what was kept made room for a slab */
  assert_calls(&r, 3, 1, 0, 0);
  assert_int_equal(rs_storage_pool_alloc(r.pool, 4 * MIB, r.stream[0], &b), RESHARD_ERROR_OUT_OF_MEMORY);
  give_block(&r, c, 0);
  b = take_block(&r, 4 * MIB, 2);
  assert_calls(&r, 1, 1, 1, 1);
  give_block(&r, a, 0);
  give_block(&r, b, 2);
  close_fixture(&r);
  r = open_fixture(0, MIB / 2); /* less than a slab: as much as is needed */
  a = take_block(&r, MIB / 4, 0);
  b = take_block(&r, 300, 0);
  assert_int_equal(stats_of(&r).in_use_bytes, MIB / 4 + 512);
  give_block(&r, a, 0);
  give_block(&r, b, 0);
  close_fixture(&r);
}

/* The device has no more: what is kept goes back, then it is asked again. */
CASE(test_device_is_full) {
  fixture r = open_fixture(64 * MIB, 0);
  queue_limit(r.q, 10 * MIB);
  give_block(&r, take_block(&r, 6 * MIB, 0), 1);
  rs_block *block = take_block(&r, 8 * MIB, 0), *none = NULL;
  assert_int_equal(stats_of(&r).kept_bytes, 0);
  assert_int_equal(rs_storage_pool_alloc(r.pool, 3 * MIB, r.stream[0], &none), RESHARD_ERROR_OUT_OF_MEMORY);
  assert_null(none);
  assert_non_null(strstr(reshard_last_error(), "the limit is none"));
  give_block(&r, block, 0);
  queue_fail(r.q, QUEUE_ALLOC, 0); /* another error is passed on */
  assert_int_equal(rs_storage_pool_alloc(r.pool, 9 * MIB, r.stream[0], &none), RESHARD_ERROR_SYSTEM);
  assert_non_null(strstr(reshard_last_error(), "fails on purpose"));
  assert_null(none);
  close_fixture(&r);
}

typedef struct upstream {
  void *expect_stream;
  int64_t allocs, frees;
  size_t bytes;
  bool empty;
} upstream;
static void *hook_alloc(void *user, size_t bytes, void *stream) {
  upstream *u = user;
  assert_ptr_equal(stream, u->expect_stream);
  u->allocs++;
  u->bytes += bytes;
  return u->empty ? NULL : aligned_alloc(256, (bytes + 255) / 256 * 256);
}
static void hook_free(void *user, void *memory, size_t bytes, void *stream) {
  upstream *u = user;
  assert_ptr_equal(stream, u->expect_stream);
  u->frees++;
  u->bytes -= bytes;
  free(memory);
}

CASE(hooks_are_called_with_the_stream) {
  fixture r = open_fixture(0, 0);
  rs_storage_pool_destroy(r.pool);
  upstream u = {.expect_stream = r.stream[2]};
  const reshard_allocator hooks = {hook_alloc, hook_free, &u};
  reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .allocator = &hooks};
  assert_int_equal(rs_storage_pool_create(r.device, &options, &r.pool), RESHARD_SUCCESS);
  rs_block *a, *b;
  assert_int_equal(rs_storage_pool_alloc(r.pool, 10, r.stream[2], &a), RESHARD_SUCCESS);
  assert_int_equal(rs_storage_pool_alloc(r.pool, 5 * MIB, r.stream[2], &b), RESHARD_SUCCESS);
  assert_true(u.allocs == 2 && u.bytes == 7 * MIB);
  give_block(&r, a, 2);
  give_block(&r, b, 2);
  u.empty = true;
  assert_int_equal(rs_storage_pool_alloc(r.pool, 6 * MIB, r.stream[2], &b), RESHARD_ERROR_OUT_OF_MEMORY);
  assert_true(u.frees == 2 && u.bytes == 6 * MIB * (size_t)(u.allocs - 2));
  close_fixture(&r);
  assert_int_equal(u.frees, 2);
}

/* No event for a use: the host waits. It cannot do that either: tried again before there is a new segment. */
CASE(test_events_fail) {
  for (int given_up = 0; given_up < 2; given_up++) {
    fixture r = open_fixture(0, 0);
    rs_block *block = take_block(&r, 2 * MIB, 0);
    const void *memory = block->memory;
    block_use(&r, block, 0, 1);
    queue_fail(r.q, QUEUE_RECORD, 0);
    queue_fail(r.q, QUEUE_SYNCHRONIZE, given_up ? 0 : -1);
    give_block(&r, block, 0);
    block = take_block(&r, 2 * MIB, 0);
    assert_true(block->memory == memory);
    assert_int_equal(stats_of(&r).in_use_bytes, 2 * MIB);
    assert_int_equal(queue_count(r.q).calls[QUEUE_RECORD], 1 + given_up); /* it was tried again */
    give_block(&r, block, 0);
    close_fixture(&r);
  }
  /* A block that another stream cannot be ordered after stays where it is. */
  static const queue_call calls[] = {QUEUE_EVENT, QUEUE_RECORD, QUEUE_WAIT};
  for (int i = 0; i < 3; i++) {
    fixture r = open_fixture(0, 0);
    rs_block *block = take_block(&r, 2 * MIB, 0), *none = NULL;
    const void *memory = block->memory;
    give_block(&r, block, 0);
    queue_fail(r.q, calls[i], 0);
    assert_int_equal(rs_storage_pool_alloc(r.pool, MIB, r.stream[1], &none), RESHARD_ERROR_SYSTEM);
    assert_null(none);
    block = take_block(&r, MIB, 1);
    assert_ptr_equal(block->memory, memory);
    give_block(&r, block, 1);
    close_fixture(&r);
  }
}

/* The handle of the per-thread stream means another stream in each thread. */
typedef struct thread_case {
  fixture *r;
  uint8_t byte;
  void *memory;
  rs_block *block; /* of use_on_thread */
  bool used;
} thread_case;
static void on_thread(void *user, int64_t rank) {
  thread_case *t = user;
  rs_block *block;
  void *stream = t->r->device->thread_stream;
  if (rs_storage_pool_alloc(t->r->pool, 2 * MIB, stream, &block) != RESHARD_SUCCESS)
    return;
  t->memory = block->memory;
  queue_write(t->r->q, stream, block->memory, block->bytes, 4096, t->byte);
  queue_check(t->r->q, stream, block->memory, block->bytes, 4096, t->byte);
  rs_storage_pool_free(t->r->pool, block, stream);
}

static void use_on_thread(void *user, int64_t rank) {
  thread_case *t = user;
  t->used = rs_storage_pool_use(t->r->pool, t->block, t->r->device->thread_stream) == RESHARD_SUCCESS;
}

CASE(test_thread_streams) {
  fixture r = open_fixture(0, 0);
  thread_case mine = {.r = &r, .byte = 1}, other = {.r = &r, .byte = 2};
  on_thread(&mine, 0);
  assert_calls(&r, 1, 0, 0, 0);
  on_thread(&mine, 0);
  assert_calls(&r, 0, 0, 0, 0);
  assert_int_equal(queue_run(r.q, 4), 4); /* all but the last check of this thread's */
  queue_hold(r.q, r.device->thread_stream);
  rank_thread_join(rank_thread_start(on_thread, &other));
  queue_run(r.q, INT64_MAX);
  queue_hold(r.q, NULL);
  queue_run(r.q, INT64_MAX);
  assert_true(mine.memory != NULL && mine.memory == other.memory);
  assert_calls(&r, 0, 0, 1, 1);
  on_thread(&mine, 0); /* back again: ordered after the other thread by the legacy stream */
  assert_calls(&r, 0, 0, 1, 1);
  void *stream = r.device->thread_stream;
  assert_int_equal(rs_storage_pool_alloc(r.pool, 2 * MIB, stream, &other.block), RESHARD_SUCCESS);
  rank_thread_join(rank_thread_start(use_on_thread, &other));
  assert_true(other.used);
  assert_calls(&r, 0, 0, 0, 0);
  rs_storage_pool_free(r.pool, other.block, stream); /* after the other thread's use */
  assert_calls(&r, 0, 0, 1, 0);
  close_fixture(&r);
}

CASE(forgotten_streams_are_not_used) {
  fixture r = open_fixture(0, 0);
  rs_block *freed = take_block(&r, 2 * MIB, 0), *held = take_block(&r, 3 * MIB, 0), *used = take_block(&r, 4 * MIB, 1),
           *kept = take_block(&r, 5 * MIB, 0);
  block_use(&r, used, 1, 0);
  give_block(&r, freed, 0);
  assert_int_equal(rs_storage_pool_forget(r.pool, r.stream[0]), RESHARD_SUCCESS);
  assert_calls(&r, 4, 0, 1, 0);
  r.device->streams->destroy(r.device, r.stream[0]); /* what it is given from here on is counted as wrong */
  assert_int_equal(r.device->streams->create(r.device, &r.stream[0]), RESHARD_SUCCESS); /* with the same handle */
  freed = take_block(&r, 2 * MIB, 0);
  assert_calls(&r, 0, 0, 0, 1);
  rs_storage_pool_drop(r.pool, held); /* in the order of the one that is forgotten */
  give_block(&r, used, 1);
  assert_calls(&r, 0, 0, 0, 0);
  held = take_block(&r, 3 * MIB, 1);
  used = take_block(&r, 4 * MIB, 1);
  assert_calls(&r, 0, 0, 0, 1);
  block_use(&r, kept, 1, 0);
  rs_storage_pool_drop(r.pool, kept); /* the new one has used it */
  assert_calls(&r, 0, 0, 1, 0);
  give_block(&r, freed, 0);
  give_block(&r, held, 1);
  give_block(&r, used, 1);
  for (int i = 0; i < 100; i++) { /* streams that come and go leave nothing */
    void *stream;
    assert_int_equal(r.device->streams->create(r.device, &stream), RESHARD_SUCCESS);
    rs_block *block;
    assert_int_equal(rs_storage_pool_alloc(r.pool, 4 * MIB, stream, &block), RESHARD_SUCCESS);
    rs_storage_pool_free(r.pool, block, stream);
    assert_int_equal(rs_storage_pool_forget(r.pool, stream), RESHARD_SUCCESS);
    r.device->streams->destroy(r.device, stream);
  }
  assert_true(queue_count(r.q).events < 10);
  close_fixture(&r);
}

/* Nothing is given to a stream that is being captured: what it freed is left alone, what it uses is nobody's till then.
 */
CASE(captured_streams_are_left_alone) {
  fixture r = open_fixture(0, 0);
  rs_block *freed = take_block(&r, 2 * MIB, 0), *used = take_block(&r, 2 * MIB, 1), *block;
  const void *of_freed = freed->memory, *of_used = used->memory;
  block_use(&r, used, 1, 0);
  give_block(&r, freed, 0);
  queue_capture(r.q, r.stream[0], true);
  block = take_block(&r, 2 * MIB, 1);
  assert_ptr_not_equal(block->memory, of_freed);
  give_block(&r, block, 1);
  rs_storage_pool_drop(r.pool, used);
  assert_int_equal(stats_of(&r).in_use_bytes, 2 * MIB);
  assert_int_equal(rs_storage_pool_trim(r.pool, 0), RESHARD_SUCCESS);
  assert_int_equal(rs_storage_pool_forget(r.pool, r.stream[0]), RESHARD_ERROR_INVALID);
  assert_int_equal(queue_count(r.q).wrong, 0);
  queue_capture(r.q, r.stream[0], false);
  block = take_block(&r, 2 * MIB, 2);
  assert_ptr_equal(block->memory, of_freed);
  rs_block *more = take_block(&r, 2 * MIB, 2);
  assert_ptr_equal(more->memory, of_used);
  assert_int_equal(stats_of(&r).in_use_bytes, 4 * MIB);
  give_block(&r, block, 2);
  give_block(&r, more, 2);
  close_fixture(&r);
}

CASE(pinned_pools_give_host_memory) {
  fixture r = open_fixture(0, 0);
  rs_storage_pool_destroy(r.pool);
  assert_int_equal(rs_storage_pool_create_pinned(r.device, &r.pool), RESHARD_SUCCESS);
  rs_block *block;
  assert_int_equal(rs_storage_pool_alloc(r.pool, 1000, r.stream[0], &block), RESHARD_SUCCESS);
  memset(block->memory, 1, 1000);
  assert_calls(&r, 1, 0, 0, 0);
  assert_int_equal(rs_storage_pool_use(r.pool, block, r.stream[1]), RESHARD_SUCCESS);
  give_block(&r, block, 0);
  close_fixture(&r);
}

RUN_CASES
