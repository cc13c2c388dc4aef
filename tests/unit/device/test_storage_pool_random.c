/* Storage pools against a model: random allocations, uses, frees, trims, forgotten and captured streams on a device
 * whose streams run in random order. Blocks that are in use are disjoint; what a stream was given for a block sees that
 * block's bytes and no one else's; the figures add up; what is kept is bounded. The same without the pool's waits must
 * go wrong. */
#include "bench/verify/random.h"
#include "device/memory/pool.h"
#include "support/devices/queue.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS = 5, MOST = 60, MIB = 1 << 20 };

typedef struct held {
  rs_block *block;
  int home; /* stream that it was allocated on; -1: that is gone */
  uint8_t byte;
  size_t step;
} held;

typedef struct model {
  rng r;
  queue_device *q;
  rs_device *device;
  rs_storage_pool *pool;
  reshard_device_options options;
  void *streams[STREAMS]; /* 0: the legacy default stream */
  bool captures;          /* are streams captured now and then? */
  int captured;           /* -1: none */
  held held[MOST];
  int n;
  int64_t allocs, frees, refused;
  size_t most_busy[2];
} model;

static size_t step_of(size_t bytes) { return bytes < MIB ? 256 : 64 << 10; } /* blocks are multiples of that */

static int any_stream(model *m) {
  int s = (int)rng_below(&m->r, STREAMS);
  return s == m->captured ? 0 : s;
}

static size_t draw_bytes(model *m) {
  static const int pages[] = {16, 17, 24, 32, 48, 64}; /* of 64 KiB: sizes come again */
  if (rng_one_in(&m->r, 30))
    return 0;
  if (rng_one_in(&m->r, 3))
    return (size_t)rng_log(&m->r, MIB - 1);
  return (size_t)pages[rng_below(&m->r, 6)] * (64 << 10) - (size_t)rng_below(&m->r, 3);
}

/* Bytes of segments with blocks in use, small and large ones, which their blocks tell apart. */
static void busy_bytes(const model *m, size_t busy[2]) {
  const char *seen[MOST];
  int n = 0;
  busy[0] = busy[1] = 0;
  for (int i = 0; i < m->n; i++) {
    size_t bytes;
    const char *piece = m->held[i].block->bytes > 0 ? queue_piece(m->q, m->held[i].block->memory, &bytes) : NULL;
    bool known = piece == NULL;
    for (int k = 0; k < n && !known; k++)
      known = seen[k] == piece;
    if (known)
      continue;
    seen[n++] = piece;
    busy[m->held[i].block->bytes >= MIB] += bytes;
  }
}

static void check_figures(model *m) {
  reshard_memory_stats s;
  rs_storage_pool_stats(m->pool, &s);
  queue_counts c = queue_count(m->q);
  size_t wanted = 0, busy[2];
  for (int i = 0; i < m->n; i++)
    wanted += m->held[i].block->bytes;
  assert_int_equal(s.allocs, m->allocs);
  assert_int_equal(s.frees, m->frees);
  assert_int_equal(s.in_use_bytes + s.kept_bytes, c.live);
  assert_true(s.in_use_bytes >= wanted && s.peak_bytes >= s.in_use_bytes && s.peak_held_bytes == c.peak);
  assert_int_equal(s.upstream_allocs, c.calls[QUEUE_ALLOC] - m->refused);
  assert_int_equal(s.upstream_frees, c.frees);
  assert_true(s.records <= c.calls[QUEUE_RECORD] && s.waits == c.calls[QUEUE_WAIT]);
  if (m->options.limit_bytes > 0)
    assert_true(c.live <= m->options.limit_bytes);
  busy_bytes(m, busy);
  for (int k = 0; k < 2; k++)
    m->most_busy[k] = busy[k] > m->most_busy[k] ? busy[k] : m->most_busy[k];
  if (m->captures)
    return; /* what was freed on a captured stream cannot go back for a while */
  if (m->options.keep_bytes == 0)
    assert_true(c.live <= m->most_busy[0] + m->most_busy[1]);
  else if (m->options.keep_bytes < 0)
    assert_int_equal(c.live, busy[0] + busy[1]);
  else if (c.live > busy[0] + busy[1])
    assert_true(s.kept_bytes <= (size_t)m->options.keep_bytes);
}

static void step_alloc(model *m) {
  if (m->n == MOST)
    return;
  held *h = &m->held[m->n];
  size_t bytes = draw_bytes(m), busy[2];
  *h = (held){.home = any_stream(m), .byte = (uint8_t)rng_below(&m->r, 256), .step = step_of(bytes)};
  reshard_status status = rs_storage_pool_alloc(m->pool, bytes, m->streams[h->home], &h->block);
  if (status != RESHARD_SUCCESS) {
    assert_int_equal(status, RESHARD_ERROR_OUT_OF_MEMORY);
    assert_true(m->options.limit_bytes > 0);
    busy_bytes(m, busy);
    if (!m->captures) /* nothing was left that could go */
      assert_int_equal(queue_count(m->q).live, busy[0] + busy[1]);
    return;
  }
  m->allocs++;
  assert_int_equal(h->block->bytes, bytes);
  assert_true((bytes == 0) == (h->block->memory == NULL) && (uintptr_t)h->block->memory % 256 == 0);
  for (int i = 0; i < m->n && bytes > 0; i++) {
    const char *a = h->block->memory, *b = m->held[i].block->memory;
    assert_true(b == NULL || a + bytes <= b || b + m->held[i].block->bytes <= a);
  }
  m->n++;
  if (bytes > 0)
    queue_write(m->q, m->streams[h->home], h->block->memory, bytes, h->step, h->byte);
}

/* On the stream that it was allocated on, or on another one after that. */
static void step_use(model *m) {
  held *h = &m->held[rng_below(&m->r, m->n)];
  int s = any_stream(m);
  if (h->home < 0 || h->home == m->captured || h->block->bytes == 0)
    return;
  if (s != h->home)
    queue_order(m->q, m->streams[h->home], m->streams[s]);
  assert_int_equal(rs_storage_pool_use(m->pool, h->block, m->streams[s]), RESHARD_SUCCESS);
  queue_check(m->q, m->streams[s], h->block->memory, h->block->bytes, h->step, h->byte);
}

static void step_free(model *m) {
  int i = (int)rng_below(&m->r, m->n), s = any_stream(m);
  held *h = &m->held[i];
  if (rng_one_in(&m->r, 2))
    rs_storage_pool_drop(m->pool, h->block); /* in the order of home, whatever has become of it */
  else
    rs_storage_pool_free(m->pool, h->block, m->streams[s]);
  m->frees++;
  *h = m->held[--m->n];
}

static void step_forget(model *m) {
  int s = (int)rng_in(&m->r, 1, STREAMS - 1);
  if (s == m->captured)
    return;
  assert_int_equal(rs_storage_pool_forget(m->pool, m->streams[s]), RESHARD_SUCCESS);
  m->device->streams->destroy(m->device, m->streams[s]);
  assert_int_equal(m->device->streams->create(m->device, &m->streams[s]), RESHARD_SUCCESS);
  for (int i = 0; i < m->n; i++)
    m->held[i].home = m->held[i].home == s ? -1 : m->held[i].home;
}

static void step_capture(model *m) {
  if (m->captured >= 0) {
    queue_capture(m->q, m->streams[m->captured], false);
    m->captured = -1;
  } else {
    m->captured = (int)rng_in(&m->r, 1, STREAMS - 1);
    queue_capture(m->q, m->streams[m->captured], true);
  }
}

static void model_step(model *m, bool all) {
  int64_t what = rng_below(&m->r, 100);
  if (what < 35)
    step_alloc(m);
  else if (what < 50 && m->n > 0)
    step_use(m);
  else if (what < 82 && m->n > 0)
    step_free(m);
  else if (what < 96)
    queue_run(m->q, rng_log(&m->r, 40));
  else if (what < 97)
    assert_int_equal(rs_storage_pool_trim(m->pool, (size_t)rng_below(&m->r, 16 * MIB)), RESHARD_SUCCESS);
  else if (what < 98 && all)
    step_forget(m);
  else if (m->captures)
    step_capture(m);
}

/* Returns how much went wrong. */
static int64_t run_case(uint64_t seed, bool waits) {
  model m = {.captured = -1};
  rng_seed(&m.r, seed);
  m.q = queue_device_new(seed);
  m.device = queue_device_of(m.q);
  for (int i = 1; i < STREAMS; i++)
    assert_int_equal(m.device->streams->create(m.device, &m.streams[i]), RESHARD_SUCCESS);
  m.captures = waits && rng_one_in(&m.r, 3);
  static const int64_t keeps[] = {0, -1, 5 * MIB};
  m.options = (reshard_device_options){RESHARD_DEVICE_OPTIONS_INIT, .keep_bytes = keeps[rng_below(&m.r, 3)]};
  m.options.limit_bytes = rng_one_in(&m.r, 3) ? (size_t)rng_in(&m.r, 1, 40) * MIB : 0;
  assert_int_equal(rs_storage_pool_create(m.device, &m.options, &m.pool), RESHARD_SUCCESS);
  if (!waits)
    queue_ignore_waits(m.q);
  for (int i = 0; i < 400; i++) {
    model_step(&m, waits);
    check_figures(&m);
  }
  if (m.captured >= 0)
    step_capture(&m);
  while (m.n > 0)
    step_free(&m);
  rs_storage_pool_destroy(m.pool); /* while streams still use what was freed */
  for (int i = 1; i < STREAMS; i++)
    m.device->streams->destroy(m.device, m.streams[i]);
  queue_run(m.q, INT64_MAX);
  queue_counts c = queue_count(m.q);
  assert_true(c.live == 0 && c.events == 0 && c.streams == 0);
  queue_device_free(m.q);
  return c.wrong;
}

CASE(random_uses_of_the_pool_match_the_model) {
  int64_t cases = test_scaled(400, 1);
  for (int64_t seed = 1; seed <= cases; seed++)
    if (run_case((uint64_t)seed, true) != 0)
      fail_msg("seed %lld", (long long)seed);
}

CASE(test_waits_are_needed) {
  int64_t found = 0, cases = 20;
  fflush(stderr);
  for (int64_t seed = 1; seed <= cases; seed++)
    found += run_case((uint64_t)seed, false) != 0;
  assert_true(found == cases);
}

RUN_CASES
