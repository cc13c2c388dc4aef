/* One rank's tensors to all: contents on every path, in buckets of every size; messages as few as they may be; every
 * refusal on all ranks. */
#include "base/base.h"
#include "bench/cli/util.h"
#include "bench/verify/random.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scale.h"
#include "support/fixtures/sharded_ranks.h"

#include <reshard/sync.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 24 };

static const reshard_path paths[] = {RESHARD_PATH_AUTO, RESHARD_PATH_DIRECT, RESHARD_PATH_PACKED};

/* Tensors of all ranks: the same shapes and dtypes, strides as they come. */
typedef struct world {
  int64_t n, src;
  reshard_tensor tensors[SHARDED_RANKS_MOST][MOST];
  reshard_layout whole[MOST]; /* of a world of one rank, to fill and check by */
  bool unnamed;
  reshard_sync_options options;
  bool no_options;
  reshard_sync_report reports[SHARDED_RANKS_MOST];
  void *stream;
} world;

static void world_add(world *w, int64_t ranks, rng *random, reshard_dtype dtype, int ndim, const int64_t *shape,
                      bool strided) {
  for (int64_t r = 0; r < ranks; r++) {
    reshard_tensor *t = &w->tensors[r][w->n];
    if (strided && rng_one_in(random, 2))
      *t = strided_tensor(dtype, ndim, shape, rng_one_in(random, 2));
    else
      CLI_TRY("tensor: ", reshard_tensor_create(dtype, ndim, shape, t));
  }
  w->whole[w->n++] = layout_from_text("rank(0)", ndim, shape, 1);
}

static void clear(world *w, int64_t ranks) {
  for (int64_t i = 0; i < w->n; i++) {
    for (int64_t r = 0; r < ranks; r++)
      reshard_tensor_release(w->tensors[r][i]);
    reshard_layout_release(w->whole[i]);
  }
  *w = (world){.options = {.size = RESHARD_SYNC_OPTIONS_INIT}};
}

static const char *const names[MOST] = {"a.weight", "a.bias", "b.weight", "b.bias", "c", "d", "e", "f"};

static void sync(void *user, int64_t r) {
  sharded_ranks *p = user;
  world *w = p->user;
  for (int64_t i = 0; i < w->n; i++)
    array_fill(w->whole[i], 0, 0, w->tensors[r][i], (uint64_t)(1000 * r + i));
  w->reports[r].tensors = -1;
  rank_result_set(&p->results[r],
                  reshard_sync_tensors(p->comms[r], w->src, w->n, w->tensors[r], w->unnamed ? NULL : names,
                                       w->no_options ? NULL : &w->options, w->stream, &w->reports[r]));
  for (int64_t i = 0; i < w->n; i++) /* what failed has changed nothing */
    p->wrong[r] += array_check(w->whole[i], 0, 0, w->tensors[r][i],
                               (uint64_t)(1000 * (p->results[r].status == RESHARD_SUCCESS ? w->src : r) + i));
}

static int64_t bytes_of(const world *w, int64_t i) {
  reshard_tensor_info info;
  assert_int_equal(reshard_tensor_get_info(w->tensors[0][i], &info), RESHARD_SUCCESS);
  return info.elements * (int64_t)reshard_dtype_size(info.dtype);
}

static void world_run(sharded_ranks *p, world *w) {
  reshard_comm_stats before[SHARDED_RANKS_MOST], after;
  int64_t bytes = 0, alone = 0, bucket = w->no_options ? 0 : w->options.bucket_bytes;
  bucket = bucket == 0 ? (int64_t)250 << 20 : bucket;
  bucket = (bucket + 255) / 256 * 256;
  for (int64_t r = 0; r < p->n; r++)
    reshard_comm_get_stats(p->comms[r], &before[r]);
  sharded_ranks_run(p, sync, w);
  sharded_ranks_assert(p, RESHARD_SUCCESS, NULL);
  for (int64_t i = 0; i < w->n; i++) {
    bytes += bytes_of(w, i);
    alone += bytes_of(w, i) > bucket;
  }
  bool packed = !w->no_options && w->options.path == RESHARD_PATH_PACKED;
  for (int64_t r = 0; r < p->n; r++) {
    const reshard_sync_report *report = &w->reports[r];
    reshard_comm_get_stats(p->comms[r], &after);
    int64_t messages = after.received_messages - before[r].received_messages, least = (p->n - 1) * bytes / bucket;
    assert_int_equal(after.received_bytes - before[r].received_bytes, r == w->src ? 0 : bytes);
    /* a bucket of the least size has room for pieces of 16 bytes alone */
    if (messages > (r == w->src || !packed ? 0 : least + least / 4 + 2 * (alone + 1)))
      fail_msg("rank %lld got %lld messages, about %lld + %lld are allowed", (long long)r, (long long)messages,
               (long long)least, (long long)alone);
    if (packed && p->n > 1 && r != w->src && bytes > 0)
      assert_true(messages > 0);
    assert_int_equal(report->tensors, w->n);
    assert_int_equal(report->bytes, bytes);
    assert_true(report->workspace_bytes <= (packed ? rs_max(2 * bucket, 256 * p->n) : 0));
    assert_true(report->alone <= (packed && p->n > 1 ? alone : 0));
  }
}

CASE(random_tensors_of_one_rank_reach_all) {
  static const reshard_dtype dtypes[] = {RESHARD_BOOL, RESHARD_BF16, RESHARD_F32, RESHARD_I64, RESHARD_C128};
  static world w;
  int64_t alone = 0, staged = 0;
  for (int64_t seed = 0; seed < test_scaled(150, 1); seed++) {
    rng random;
    rng_seed(&random, (uint64_t)seed);
    int64_t ranks = rng_in(&random, 1, 6), n = rng_below(&random, 9);
    sharded_ranks p;
    clear(&w, 0);
    sharded_ranks_open(&p, ranks, NULL);
    for (int64_t i = 0; i < n; i++) {
      int ndim = (int)rng_below(&random, 4);
      int64_t shape[3];
      for (int d = 0; d < ndim; d++)
        shape[d] = rng_one_in(&random, 12) ? 0 : rng_log(&random, ndim == 1 ? 3000 : 20);
      world_add(&w, ranks, &random, dtypes[rng_below(&random, 5)], ndim, shape, rng_one_in(&random, 2));
    }
    w.src = rng_below(&random, ranks);
    w.options.path = paths[rng_below(&random, 3)];
    w.options.bucket_bytes = rng_one_in(&random, 8) ? 0 : 256 * rng_log(&random, 100);
    w.unnamed = rng_one_in(&random, 2);
    w.no_options = rng_one_in(&random, 8);
    for (int call = 0; call < 3; call++) { /* again, and once more with another source */
      w.src = call < 2 ? w.src : (w.src + 1) % ranks;
      world_run(&p, &w);
      for (int64_t r = 0; r < ranks; r++)
        assert_int_equal(w.reports[r].planned > 0, call != 1 && w.reports[r].bytes > 0 && ranks > 1);
    }
    alone += w.reports[0].alone;
    staged += w.reports[0].workspace_bytes > 0;
    clear(&w, ranks);
    sharded_ranks_close(&p);
  }
  if (test_scale() >= 1) /* fewer cases may have none */
    assert_true(alone > 10 && staged > 10);
}

/* A contiguous tensor above a bucket needs no staging on either side; one that is not is packed where it is not. */
CASE(large_tensors_travel_without_staging) {
  static world w;
  const int64_t shape[2] = {40, 50}, one[1] = {100};
  sharded_ranks p;
  rng random;
  rng_seed(&random, 1);
  sharded_ranks_open(&p, 3, NULL);
  clear(&w, 0);
  world_add(&w, 3, &random, RESHARD_F32, 2, shape, false); /* 8,000 bytes */
  w.src = 1;
  w.options = (reshard_sync_options){RESHARD_SYNC_OPTIONS_INIT, 1024, RESHARD_PATH_PACKED};
  world_run(&p, &w);
  for (int64_t r = 0; r < 3; r++) {
    assert_int_equal(w.reports[r].alone, 1);
    assert_int_equal(w.reports[r].workspace_bytes, 0);
  }
  reshard_tensor_release(w.tensors[2][0]);
  w.tensors[2][0] = strided_tensor(RESHARD_F32, 2, shape, true);
  world_run(&p, &w);
  assert_int_equal(w.reports[0].workspace_bytes, 0);
  assert_int_equal(w.reports[1].workspace_bytes, 0);
  assert_true(w.reports[2].workspace_bytes >= 1024);
  world_add(&w, 3, &random, RESHARD_U8, 1, one, false); /* a bucket of their own: packed */
  world_add(&w, 3, &random, RESHARD_F64, 1, one, false);
  world_run(&p, &w);
  assert_int_equal(w.reports[0].alone, 1);
  assert_true(w.reports[0].workspace_bytes >= 900);
  clear(&w, 3);

  /* Exactly a bucket is none too many, and a bucket is rounded up. */
  const int64_t kilo[1] = {1024};
  world_add(&w, 3, &random, RESHARD_U8, 1, kilo, false);
  w.options = (reshard_sync_options){RESHARD_SYNC_OPTIONS_INIT, 1024, RESHARD_PATH_PACKED};
  world_run(&p, &w);
  assert_int_equal(w.reports[0].alone, 0);
  w.options.bucket_bytes = 1023;
  world_run(&p, &w);
  assert_int_equal(w.reports[0].alone, 0);
  w.options.bucket_bytes = 1;
  world_run(&p, &w);
  assert_int_equal(w.reports[0].alone, 1);
  clear(&w, 3);
  sharded_ranks_close(&p);
}

/* --- Refusals --------------------------------------------------------------------------------------------------- */

/* The difference that one rank makes. */
typedef struct odd {
  world *w;
  int64_t rank;
  int64_t src, n;
  const reshard_tensor *tensors;
  const char *const *names;
  const reshard_sync_options *options;
  void *stream;
} odd;

static void odd_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const odd *o = p->user;
  world *w = o->w;
  bool me = o->rank == r;
  reshard_sync_report report = {.tensors = -1};
  for (int64_t i = 0; i < w->n; i++)
    array_fill(w->whole[i], 0, 0, w->tensors[r][i], (uint64_t)(1000 * r + i));
  rank_result_set(&p->results[r], reshard_sync_tensors(p->comms[r], me ? o->src : w->src, me ? o->n : w->n,
                                                       me ? o->tensors : w->tensors[r], me ? o->names : names,
                                                       me ? o->options : &w->options, me ? o->stream : NULL, &report));
  p->wrong[r] += report.tensors != -1;
  for (int64_t i = 0; i < w->n; i++)
    p->wrong[r] += array_check(w->whole[i], 0, 0, w->tensors[r][i], (uint64_t)(1000 * r + i));
}

static void assert_refused(sharded_ranks *p, odd *o, reshard_status status, const char *text) {
  sharded_ranks_run(p, odd_body, o);
  sharded_ranks_assert(p, status, NULL);
  if (!rank_result_is(&p->results[0], status, text))
    fail_msg("'%s' is not '%s'", p->results[0].text, text);
}

CASE(differences_are_refused_on_all_ranks) {
  static world w;
  sharded_ranks p;
  rng random;
  char text[256];
  const int64_t shape[2] = {6, 4}, turned[2] = {4, 6};
  rng_seed(&random, 7);
  sharded_ranks_open(&p, 3, NULL);
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
    clear(&w, 0);
    for (int k = 0; k < 4; k++)
      world_add(&w, 3, &random, RESHARD_F32, 2, shape, true);
    w.options.path = paths[i];
    w.src = 1;
    const odd same = {&w, 2, w.src, w.n, w.tensors[2], names, &w.options, NULL};
    reshard_tensor others[MOST];
    memcpy(others, w.tensors[2], sizeof others);
    odd o = same;
    o.src = 0;
    assert_refused(&p, &o, RESHARD_ERROR_MISMATCH, "reshard_sync_tensors: src 1 on rank 0, 0 on rank 2");
    o.src = 3;
    assert_refused(&p, &o, RESHARD_ERROR_INVALID, "rank 2: reshard_sync_tensors: source rank 3 of a communicator of 3");
    o.src = -1;
    assert_refused(&p, &o, RESHARD_ERROR_INVALID,
                   "rank 2: reshard_sync_tensors: source rank -1 of a communicator of 3");
    o = same;
    o.n = 3;
    assert_refused(&p, &o, RESHARD_ERROR_MISMATCH,
                   "reshard_sync_tensors: 'b.bias' is on rank 0, and not on rank 2 (4 tensors on rank 0, 3 on rank 2)");
    o = same;
    o.tensors = others;
    others[2] = NULL;
    assert_refused(&p, &o, RESHARD_ERROR_INVALID, "rank 2: reshard_sync_tensors: tensor 2 is NULL");
    CLI_TRY("tensor: ", reshard_tensor_create(RESHARD_F32, 2, turned, &others[2]));
    assert_refused(&p, &o, RESHARD_ERROR_MISMATCH,
                   "reshard_sync_tensors: 'b.weight': shape [6,4] on rank 0, [4,6] on rank 2");
    reshard_tensor_release(others[2]);
    CLI_TRY("tensor: ", reshard_tensor_create(RESHARD_I32, 2, shape, &others[2]));
    assert_refused(&p, &o, RESHARD_ERROR_MISMATCH,
                   "reshard_sync_tensors: 'b.weight': dtype f32 on rank 0, i32 on rank 2");
    reshard_tensor_release(others[2]);
    others[2] = others[0]; /* twice: a destination over another */
    sharded_ranks_run(&p, odd_body, &o);
    sharded_ranks_assert(&p, RESHARD_ERROR_INVALID, "reshard_sync_tensors: rank 2: entry ");
    sharded_ranks_assert(&p, RESHARD_ERROR_INVALID, "entry 0 'a.weight'");
    sharded_ranks_assert(&p, RESHARD_ERROR_INVALID, "entry 2 'b.weight'");
    sharded_ranks_assert(&p, RESHARD_ERROR_INVALID, " bytes overlaps the destination of ");
    o = same;
    o.names = NULL;
    assert_refused(&p, &o, RESHARD_ERROR_MISMATCH,
                   "reshard_sync_tensors: tensor 0: name 'a.weight' on rank 0, '' on rank 2 (4 and 4 tensors)");
    reshard_sync_options options = {.size = 3};
    o = same;
    o.options = &options;
    snprintf(text, sizeof text, "rank 2: size field 3, this library's reshard_sync_options has %zu", sizeof options);
    assert_refused(&p, &o, RESHARD_ERROR_INVALID, text);
    options = (reshard_sync_options){RESHARD_SYNC_OPTIONS_INIT, -1, w.options.path};
    assert_refused(&p, &o, RESHARD_ERROR_INVALID, "rank 2: reshard_sync_tensors: a bucket of -1 bytes");
    options.bucket_bytes = INT64_MAX / 8 + 1;
    assert_refused(&p, &o, RESHARD_ERROR_INVALID,
                   "rank 2: reshard_sync_tensors: a bucket of 1152921504606846976 bytes");
    options.bucket_bytes = 1000;
    assert_refused(&p, &o, RESHARD_ERROR_MISMATCH,
                   "reshard_sync_tensors: bucket_bytes 262144000 on rank 0, 1024 on rank 2");
    options = (reshard_sync_options){RESHARD_SYNC_OPTIONS_INIT, 0, (reshard_path)9};
    assert_refused(&p, &o, RESHARD_ERROR_INVALID, "rank 2: reshard_sync_tensors: unknown path 9");
    options.path = paths[(i + 1) % 3];
    sharded_ranks_run(&p, odd_body, &o);
    sharded_ranks_assert(&p, RESHARD_ERROR_MISMATCH, "reshard_sync_tensors: path ");
    options.path = RESHARD_PATH_MIXED;
    sharded_ranks_run(&p, odd_body, &o);
    sharded_ranks_assert(&p, RESHARD_ERROR_MISMATCH, " on rank 0, mixed on rank 2");
    o = same;
    o.stream = &o;
    sharded_ranks_run(&p, odd_body, &o);
    sharded_ranks_assert(&p, RESHARD_ERROR_INVALID, ", on the CPU it is NULL");
    world_run(&p, &w); /* and all goes on */
    clear(&w, 3);
  }
  assert_int_equal(reshard_sync_tensors(NULL, 0, 0, NULL, NULL, NULL, NULL, NULL), RESHARD_ERROR_INVALID);
  assert_string_equal(reshard_last_error(), "reshard_sync_tensors: comm is NULL");
  sharded_ranks_close(&p);
}

/* Elements of a destination that share memory are refused; those of the source are read like any other. */
CASE(test_overlapping_strides) {
  static world w;
  static const int64_t shape[2] = {3, 4}, strides[2] = {0, 1};
  rng random;
  sharded_ranks p;
  rng_seed(&random, 3);
  sharded_ranks_open(&p, 3, NULL);
  clear(&w, 0);
  world_add(&w, 3, &random, RESHARD_F32, 2, shape, false);
  float row[4] = {1, 2, 3, 4};
  reshard_tensor had = w.tensors[0][0], view;
  CLI_TRY("view: ", reshard_tensor_wrap(RESHARD_F32, 2, shape, strides, row, NULL, NULL, &view));
  w.tensors[0][0] = view;
  for (w.src = 0; w.src < 2; w.src++) {
    sharded_ranks_run(&p, sync, &w);
    if (w.src == 0) { /* array_fill has left the last of what it wrote to each: all rows are equal */
      for (int64_t r = 0; r < 3; r++)
        assert_int_equal(p.results[r].status, RESHARD_SUCCESS);
      reshard_tensor_info info;
      reshard_tensor_get_info(w.tensors[2][0], &info);
      for (int i = 0; i < 3; i++)
        assert_memory_equal((float *)info.data + 4 * i, row, sizeof row);
    } else {
      for (int64_t r = 0; r < 3; r++) {
        assert_int_equal(p.results[r].status, RESHARD_ERROR_INVALID);
        assert_string_equal(p.results[r].text, "rank 0: reshard_sync_tensors: strides 0x1 of tensor 0 of shape 3x4 "
                                               "overlap, and it is written to");
      }
    }
  }
  reshard_tensor_release(view);
  w.tensors[0][0] = had;
  clear(&w, 3);
  sharded_ranks_close(&p);
}

/* More bytes than a plan can count, in views that nobody reads. */
static void huge_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  reshard_tensor tensors[3];
  static char byte;
  const int64_t shape[1] = {INT64_MAX / 2}, strides[1] = {0};
  for (int i = 0; i < 3; i++)
    CLI_TRY("view: ", reshard_tensor_wrap(RESHARD_U8, 1, shape, strides, &byte, NULL, NULL, &tensors[i]));
  rank_result_set(&p->results[r], reshard_sync_tensors(p->comms[r], r, 3, tensors, NULL, NULL, NULL, NULL));
  for (int i = 0; i < 3; i++)
    reshard_tensor_release(tensors[i]);
}

CASE(bytes_that_overflow_are_refused) {
  sharded_ranks p;
  sharded_ranks_open(&p, 1, NULL);
  sharded_ranks_run(&p, huge_body, NULL);
  sharded_ranks_assert(&p, RESHARD_ERROR_INVALID, NULL);
  assert_string_equal(p.results[0].text,
                      "rank 0: reshard_sync_tensors: the bytes of all tensors overflow 63 bits at tensor 2");
  sharded_ranks_close(&p);
}

RUN_CASES
