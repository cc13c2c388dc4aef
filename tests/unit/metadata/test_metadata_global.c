/* Local metadata to global metadata, collective: ranks are threads. All get the same metadata, or the same status and
 * text; a rank whose own step failed leaves nobody waiting. Each case by ranks that reach each other's memory, and by
 * ranks that do not, which exchange records. */
#include "bench/verify/random.h"
#include "metadata/serialize.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8, TENSORS = 3, PATIENCE = 60000 };

/* Ways to exchange: as the local communicator does; by records; by records, each as a process of its own. */
enum { REACH, RECORDS, PROCESSES, WAYS };

/* Shards that a rank brings, and the metadata that it gets. */
typedef struct part {
  int64_t tensors; /* 0: one */
  reshard_metadata locals[TENSORS], globals[TENSORS];
  bool no_locals, no_globals;
  const char *failed; /* text of its own failure */
  int recalc;         /* recalc_dim + 1 */
  int late_ms;
} part;

typedef struct world {
  int64_t n;
  reshard_comm comms[MOST];
  rs_comm_ops ops;
  const reshard_group *group;
  bool many;
  part parts[MOST];
  rank_result results[MOST];
} world;

static void open_world(world *w, int64_t n, int way) {
  const reshard_local_options options = {RESHARD_LOCAL_OPTIONS_INIT, 1, RESHARD_ISA_AUTO, PATIENCE, NULL, 0};
  *w = (world){.n = n};
  GOOD(reshard_comm_create_local(n, &options, w->comms));
  w->ops = *w->comms[0]->ops;
  w->ops.addressable = false;
  for (int64_t r = 0; r < n && way != REACH; r++) {
    w->comms[r]->ops = &w->ops;
    w->comms[r]->locals = way == PROCESSES ? 1 : n;
  }
}

static void close_world(world *w) {
  for (int64_t r = 0; r < w->n; r++) {
    for (int i = 0; i < TENSORS; i++)
      reshard_metadata_release(w->parts[r].locals[i]);
    reshard_comm_destroy(w->comms[r]);
  }
}

static void metadata_body(void *user, int64_t rank) {
  world *w = user;
  part *p = &w->parts[rank];
  reshard_status failed = RESHARD_SUCCESS;
  test_sleep_ms(p->late_ms);
  if (p->failed != NULL)
    failed = rs_error(RESHARD_ERROR_UNSUPPORTED, "%s", p->failed);
  const reshard_metadata *locals = p->no_locals ? NULL : p->locals;
  reshard_metadata *globals = p->no_globals ? NULL : p->globals;
  int64_t n = p->tensors != 0 ? p->tensors : 1;
  reshard_status status;
  if (w->group != NULL)
    status = rs_metadata_build_global(w->comms[rank], w->group, n, locals, failed, p->recalc - 1, globals);
  else if (w->many)
    status = reshard_metadata_build_global_many(w->comms[rank], n, locals, failed, globals);
  else
    status = reshard_metadata_build_global(w->comms[rank], p->locals[0], failed, p->recalc - 1, globals);
  rank_result_set(&w->results[rank], status);
}

static void world_run(world *w) {
  for (int64_t r = 0; r < w->n; r++)
    for (int i = 0; i < TENSORS; i++)
      w->parts[r].globals[i] = (reshard_metadata)w;
  rank_threads_run(w->n, metadata_body, w);
}

static void run_wrong(world *w, reshard_status status, const char *text) {
  world_run(w);
  for (int64_t r = 0; r < w->n; r++) {
    if (!rank_result_is(&w->results[r], status, text))
      fail_msg("rank %lld: %s: '%s'; expected '%s'", (long long)r, reshard_status_string(w->results[r].status),
               w->results[r].text, text);
    for (int i = 0; i < TENSORS; i++)
      assert_ptr_equal(w->parts[r].globals[i], (reshard_metadata)w);
  }
}

/* The list of what they bring is merged into what they get. */
static void check_merge(const world *w) {
  reshard_metadata list[MOST], merged = NULL;
  for (int64_t r = 0; r < w->n; r++)
    list[r] = w->parts[r].locals[0];
  GOOD(reshard_metadata_merge(w->n, list, w->parts[0].recalc - 1, &merged));
  assert_int_equal(reshard_metadata_equal(merged, w->parts[0].globals[0]), 1);
  reshard_metadata_release(merged);
}

static void run_well(world *w) {
  world_run(w);
  for (int64_t r = 0; r < w->n; r++)
    if (w->results[r].status != RESHARD_SUCCESS)
      fail_msg("rank %lld: %s", (long long)r, w->results[r].text);
  check_merge(w);
}

static void release_globals(world *w) {
  for (int64_t r = 0; r < w->n; r++)
    for (int i = 0; i < TENSORS; i++)
      if (w->parts[r].globals[i] != (reshard_metadata)w)
        reshard_metadata_release(w->parts[r].globals[i]);
}

/* A tensor of 6x4 f32 by rows: n of them from the begin-th on, placed on a global rank. */
typedef struct local {
  int64_t rank, begin, n;
  reshard_properties p; /* dtype NONE: f32 */
  int ndim;             /* 0: 2 */
  int64_t rows;         /* of the tensor; 0: 6 */
} local;

/* clang-format off */
#define ROWS(on, from, count, ...) {.rank = on, .begin = from, .n = count, __VA_ARGS__}
#define NONE {.n = -1} /* no metadata */
/* clang-format on */

static reshard_metadata metadata_make(const local *l) {
  const int64_t shape[3] = {l->rows > 0 ? l->rows : 6, 4, 1};
  const reshard_shard shard = {{{l->begin, 0, 0}, {l->n, 4, 1}}, {l->rank, RESHARD_DEVICE_CPU, -1}};
  reshard_properties p = l->p;
  reshard_metadata m;
  p.dtype = p.dtype != RESHARD_DTYPE_NONE ? p.dtype : RESHARD_F32;
  GOOD(reshard_metadata_create(&p, l->ndim > 0 ? l->ndim : 2, shape, 1, &shard, &m));
  return m;
}

/* --- Agreement -------------------------------------------------------------------------------------------------- */

/* The shards of a rank of a layout's metadata; NULL, or no shards, where it has none. */
static reshard_metadata part_of(reshard_metadata all, int64_t rank) {
  reshard_shard *shards = calloc((size_t)reshard_metadata_count(all) + 1, sizeof *shards);
  const reshard_properties p = reshard_metadata_properties(all);
  int64_t n = 0;
  reshard_metadata m = NULL;
  for (int64_t i = 0; i < reshard_metadata_count(all); i++)
    if (reshard_metadata_shards(all)[i].placement.rank == rank)
      shards[n++] = reshard_metadata_shards(all)[i];
  if (n > 0 || rank % 2 == 0)
    GOOD(reshard_metadata_create(&p, reshard_metadata_ndim(all), reshard_metadata_shape(all), n, shards, &m));
  free(shards);
  return m;
}

CASE(local_metadata_merge_to_those_of_the_layout) {
  static const char *const layouts[] = {
      "chunk(0)",        "chunk(1;3,1)",      "mesh(2x2;S1,S0)",
      "cyclic(2x2;2x3)", "mesh(2x2;S0*2,S0)", "rank(2)",
      "flat()",          "rank(3)",           "boxes(2:[0,0]+[6,4];1:[6,0]+[5,4];0:[11,0]+[0,4])"};
  const int64_t shape[2] = {11, 4};
  enum { N = sizeof layouts / sizeof *layouts };
  const reshard_properties p = {RESHARD_I16, RESHARD_MEMORY_CONTIGUOUS, 1, 1};
  for (int way = 0; way < WAYS; way++)
    for (int first = 0; first < N; first++) {
      reshard_metadata all[TENSORS];
      world w;
      open_world(&w, 4, way);
      w.many = first % 2 == 0;
      int tensors = w.many ? TENSORS : 1;
      for (int i = 0; i < tensors; i++) {
        reshard_layout layout;
        GOOD(reshard_layout_parse(layouts[(first + i) % N], 2, shape, 4, &layout));
        GOOD(reshard_metadata_from_layout(&p, layout, NULL, NULL, &all[i]));
        reshard_layout_release(layout);
        for (int64_t r = 0; r < 4; r++) {
          w.parts[r].tensors = tensors;
          w.parts[r].locals[i] = part_of(all[i], r);
        }
      }
      run_well(&w);
      for (int i = 0; i < tensors; i++) {
        for (int64_t r = 0; r < 4; r++) {
          assert_true(reshard_metadata_equal(w.parts[r].globals[i], all[i]));
          assert_ptr_equal(w.parts[r].globals[i], w.parts[0].globals[i]); /* shared */
        }
        reshard_metadata_release(all[i]);
      }
      release_globals(&w);
      close_world(&w);
    }
}

static void no_tensors_body(void *user, int64_t rank) {
  world *w = user;
  rank_result_set(&w->results[rank],
                  reshard_metadata_build_global_many(w->comms[rank], 0, NULL, RESHARD_SUCCESS, NULL));
}

CASE(test_no_tensors) {
  for (int way = 0; way < WAYS; way++) {
    world w;
    open_world(&w, 3, way);
    rank_threads_run(3, no_tensors_body, &w);
    for (int64_t r = 0; r < 3; r++)
      assert_int_equal(w.results[r].status, RESHARD_SUCCESS);
    close_world(&w);
  }
}

/* Sizes have changed, and ranks of the communicator are not in the order of global ranks. */
CASE(sizes_are_recalculated_before_the_check) {
  const int64_t global[3] = {9, 2, 5}, sizes[3] = {4, 0, 3}, offsets[3] = {3, 0, 0};
  const reshard_group group = {3, global};
  for (int way = 0; way < WAYS; way++) {
    world w;
    open_world(&w, 3, way);
    for (int64_t r = 0; r < 3; r++) {
      w.parts[r].locals[0] =
          metadata_make(&(local)ROWS(global[r], 40 * r, sizes[r], .rows = 10 + r)); /* all think differently */
      w.parts[r].recalc = 1;
    }
    w.group = way == REACH ? &group : NULL;
    run_well(&w);
    reshard_metadata m = w.parts[0].globals[0];
    assert_int_equal(reshard_metadata_shape(m)[0], 7);
    for (int64_t i = 0; i < 3; i++) {
      const reshard_shard *s = &reshard_metadata_shards(m)[i];
      int64_t r;
      GOOD(reshard_group_find(&group, s->placement.rank, &r));
      assert_int_equal(s->box.offset[0], offsets[r]);
      assert_int_equal(s->box.extent[0], sizes[r]);
      assert_true(i == 0 || s[-1].placement.rank < s->placement.rank);
    }
    release_globals(&w);
    close_world(&w);
  }
}

/* --- Disagreement ----------------------------------------------------------------------------------------------- */

CASE(first_difference_between_ranks_is_named) {
  static const struct {
    const char *error;
    reshard_status status;
    int recalc;
    local locals[3];
  } cases[] = {
      {"dtype f32 on rank 0, bf16 on rank 2",
       RESHARD_ERROR_MISMATCH,
       0,
       {ROWS(0, 0, 2), ROWS(1, 2, 2), ROWS(2, 4, 2, .p.dtype = RESHARD_BF16)}},
      {"dtype f32 on rank 1, bf16 on rank 2", /* the lowest that has shards */
       RESHARD_ERROR_MISMATCH,
       0,
       {NONE, ROWS(1, 2, 2), ROWS(2, 4, 2, .p.dtype = RESHARD_BF16)}},
      {"requires_grad 1 on rank 0, 0 on rank 1",
       RESHARD_ERROR_MISMATCH,
       0,
       {ROWS(0, 0, 2, .p.requires_grad = 1), ROWS(1, 2, 2), ROWS(2, 4, 2)}},
      {"pin_memory 0 on rank 0, 1 on rank 2",
       RESHARD_ERROR_MISMATCH,
       0,
       {ROWS(0, 0, 2), ROWS(1, 2, 2), ROWS(2, 4, 2, .p.pin_memory = 1)}},
      {"memory_format contiguous on rank 0, preserve on rank 2",
       RESHARD_ERROR_MISMATCH,
       0,
       {ROWS(0, 0, 2), ROWS(1, 2, 2), ROWS(2, 4, 2, .p.memory_format = RESHARD_MEMORY_PRESERVE)}},
      {"shape [6,4] on rank 0, [7,4] on rank 2",
       RESHARD_ERROR_MISMATCH,
       0,
       {ROWS(0, 0, 2), ROWS(1, 2, 2), ROWS(2, 4, 2, .rows = 7)}},
      {"shape [6,4] on rank 0, [6,4,1] on rank 1",
       RESHARD_ERROR_MISMATCH,
       0,
       {ROWS(0, 0, 2), ROWS(1, 2, 2, .ndim = 3), ROWS(2, 4, 2)}},
      {"shape [6,4] on rank 0, [6,4,1] on rank 1",
       RESHARD_ERROR_MISMATCH,
       1,
       {ROWS(0, 0, 2), ROWS(1, 2, 2, .ndim = 3), ROWS(2, 4, 2)}},
      {"shape [6,4] on rank 0, [8,4] on rank 1", /* of another dim than that of recalc */
       RESHARD_ERROR_MISMATCH,
       2,
       {ROWS(0, 0, 2), ROWS(1, 2, 2, .rows = 8), ROWS(2, 4, 2)}},
      {"recalc along dim 1: shards 0 (rank:0/cpu) and 1 (rank:1/cpu) differ in the size of dim 0: 2 and 3",
       RESHARD_ERROR_INVALID,
       2,
       {ROWS(0, 0, 2), ROWS(1, 2, 3), ROWS(2, 4, 2)}},
      {"shards 1 (rank:1/cpu) and 2 (rank:2/cpu) overlap at [3,4)x[0,4): they are [2,4)x[0,4) and [3,6)x[0,4)",
       RESHARD_ERROR_INVALID,
       0,
       {ROWS(0, 0, 2), ROWS(1, 2, 2), ROWS(2, 3, 3)}},
      {"no shard holds [2,4)x[0,4) of shape 6x4", RESHARD_ERROR_INVALID, 0, {ROWS(0, 0, 2), NONE, ROWS(2, 4, 2)}},
      {"shard 2 (rank:2/cpu) has offset 4 and size 3 in dim 0 of shape 6x4",
       RESHARD_ERROR_INVALID,
       0,
       {ROWS(0, 0, 2), ROWS(1, 2, 2), ROWS(2, 4, 3)}},
      {"no rank has any shard", RESHARD_ERROR_INVALID, 0, {NONE, NONE, NONE}},
      {"recalc: shard 1 is placed on cpu, without a rank",
       RESHARD_ERROR_INVALID,
       1,
       {ROWS(0, 0, 2), ROWS(-1, 2, 2), ROWS(2, 4, 2)}},
  };
  for (int way = 0; way < WAYS; way++) {
    world w;
    open_world(&w, 3, way);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
      for (int64_t r = 0; r < 3; r++)
        w.parts[r] = (part){.locals = {cases[i].locals[r].n < 0 ? NULL : metadata_make(&cases[i].locals[r])},
                            .recalc = cases[i].recalc};
      run_wrong(&w, cases[i].status, cases[i].error);
      reshard_metadata merged = NULL; /* of a list alone */
      const reshard_metadata list[3] = {w.parts[0].locals[0], w.parts[1].locals[0], w.parts[2].locals[0]};
      FAILS(reshard_metadata_merge(3, list, cases[i].recalc - 1, &merged), cases[i].status, cases[i].error);
      assert_null(merged);
      for (int64_t r = 0; r < 3; r++)
        reshard_metadata_release(w.parts[r].locals[0]);
    }
    for (int64_t r = 0; r < 3; r++) /* the communicator goes on */
      w.parts[r] = (part){.locals = {metadata_make(&(local)ROWS(r, 2 * r, 2))}};
    run_well(&w);
    release_globals(&w);
    close_world(&w);
  }
}

/* A rank's own failure is everybody's; of several the lowest's. The last to come speaks for all: it may be the one that
 * failed, and its text is then in the buffer that the error is written to. */
CASE(own_failure_of_a_rank_is_everybodys) {
  for (int way = 0; way < WAYS; way++)
    for (int late = 0; late < 4; late++)
      for (int64_t failed = 0; failed < 3; failed++) {
        world w;
        char text[64];
        open_world(&w, 3, way);
        for (int64_t r = 0; r < 3; r++)
          w.parts[r] = (part){.locals = {metadata_make(&(local)ROWS(r, 2 * r, 2))}, .late_ms = r == late ? 5 : 0};
        w.parts[failed].failed = "a %s of its own, and words";
        w.parts[2].failed = "of the last rank";
        snprintf(text, sizeof text, "rank %d: %s", (int)failed,
                 failed == 2 ? "of the last rank" : "a %s of its own, and words");
        run_wrong(&w, RESHARD_ERROR_UNSUPPORTED, text);
        close_world(&w);
      }
  for (int way = 0; way < WAYS; way++) { /* alone: its own buffer always */
    world w;
    open_world(&w, 1, way);
    w.parts[0].failed = "nothing is right here";
    run_wrong(&w, RESHARD_ERROR_UNSUPPORTED, "rank 0: nothing is right here");
    w.parts[0] = (part){.locals = {metadata_make(&(local)ROWS(0, 0, 6))}};
    run_well(&w);
    release_globals(&w);
    w.many = true;
    w.parts[0].tensors = 2;
    run_wrong(&w, RESHARD_ERROR_INVALID, "tensor 1: no rank has any shard");
    close_world(&w);
  }
}

/* Calls that are wrong on one rank alone, or not the same on all. */
CASE(calls_that_differ_between_ranks_are_refused) {
  static const struct {
    const char *error;
    reshard_status status;
    bool many;
    part odd; /* of rank 1 */
  } cases[] = {
      {"rank 1: reshard_metadata_build_global: 1 tensors, globals is NULL",
       RESHARD_ERROR_INVALID,
       false,
       {.no_globals = true}},
      {"rank 1: reshard_metadata_build_global: 1 tensors, globals is NULL",
       RESHARD_ERROR_INVALID,
       true,
       {.no_globals = true}},
      {"rank 1: reshard_metadata_build_global: 1 tensors, locals is NULL",
       RESHARD_ERROR_INVALID,
       true,
       {.no_locals = true}},
      {"rank 1: reshard_metadata_build_global: -1 tensors, nothing is NULL",
       RESHARD_ERROR_INVALID,
       true,
       {.tensors = -1}},
      {"number of tensors 1 on rank 0, 2 on rank 1", RESHARD_ERROR_MISMATCH, true, {.tensors = 2}},
      {"recalc_dim -1 on rank 0, 1 on rank 1", RESHARD_ERROR_MISMATCH, false, {.recalc = 2}},
      {"rank 1: recalc_dim 2 of a tensor of 2 dims", RESHARD_ERROR_INVALID, false, {.recalc = 3}},
      {"rank 1: recalc_dim 8, -1 to 7 are allowed", RESHARD_ERROR_INVALID, false, {.recalc = 9}},
      {"rank 1: recalc_dim -2, -1 to 7 are allowed", RESHARD_ERROR_INVALID, false, {.recalc = -1}},
  };
  for (int way = 0; way < WAYS; way++)
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
      world w;
      open_world(&w, 3, way);
      w.many = cases[i].many;
      w.parts[1] = cases[i].odd;
      for (int64_t r = 0; r < 3; r++)
        w.parts[r].locals[0] = metadata_make(&(local)ROWS(r, 2 * r, 2));
      run_wrong(&w, cases[i].status, cases[i].error);
      close_world(&w);
    }
  reshard_metadata m = NULL;
  BAD(reshard_metadata_build_global(NULL, NULL, RESHARD_SUCCESS, -1, &m),
      "reshard_metadata_build_global: comm is NULL");
  assert_int_equal(reshard_metadata_build_global_many(NULL, 0, NULL, RESHARD_SUCCESS, NULL), RESHARD_ERROR_INVALID);
}

CASE(test_merge_refused) {
  const reshard_metadata rows = metadata_make(&(local)ROWS(0, 0, 6));
  reshard_metadata merged = NULL;
  const struct {
    const char *error;
    int64_t n;
    const reshard_metadata *locals;
    int recalc_dim;
    reshard_metadata *global;
  } cases[] = {
      {"reshard_metadata_merge: 1 local metadata, global is NULL", 1, &rows, -1, NULL},
      {"reshard_metadata_merge: 1 local metadata, locals is NULL", 1, NULL, -1, &merged},
      {"reshard_metadata_merge: -1 local metadata, 0 is the least", -1, &rows, -1, &merged},
      {"reshard_metadata_merge: recalc_dim 8, -1 to 7 are allowed", 1, &rows, 8, &merged},
      {"reshard_metadata_merge: recalc_dim -2, -1 to 7 are allowed", 1, &rows, -2, &merged},
      {"reshard_metadata_merge: recalc_dim 2 of a tensor of 2 dims", 1, &rows, 2, &merged},
      {"no rank has any shard", 0, NULL, -1, &merged},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    BAD(reshard_metadata_merge(cases[i].n, cases[i].locals, cases[i].recalc_dim, cases[i].global), cases[i].error);
    assert_null(merged);
  }
  reshard_metadata_release(rows);
}

/* Where the group is known, errors name global ranks. */
CASE(errors_name_global_ranks) {
  const int64_t global[3] = {9, 2, 5};
  const reshard_group group = {3, global}, small = {2, global};
  world w;
  open_world(&w, 3, REACH);
  for (int64_t r = 0; r < 3; r++)
    w.parts[r].locals[0] = metadata_make(&(local)ROWS(global[r], 2 * r, 2, .p.requires_grad = r == 2));
  w.group = &group;
  run_wrong(&w, RESHARD_ERROR_MISMATCH, "requires_grad 0 on rank 9, 1 on rank 5");
  w.group = &small;
  run_wrong(&w, RESHARD_ERROR_INVALID, "rank 0: a group of 2 ranks, the communicator has 3");
  close_world(&w);
}

/* --- Strings from rank to rank ---------------------------------------------------------------------------------- */

typedef struct strings {
  world w;
  uint64_t seed;
  int64_t wrong[MOST];
} strings;

static int64_t length_of(uint64_t seed, int64_t rank) {
  static const int64_t lengths[] = {0, 1, 511, 512, 513, 1024, 5000};
  return lengths[rng_mix(seed * 8 + (uint64_t)rank) % (sizeof lengths / sizeof *lengths)];
}

static char character(uint64_t seed, int64_t rank, int64_t i) {
  return (char)rng_mix(seed * 1000003 + (uint64_t)rank * 10007 + (uint64_t)i);
}

static void strings_body(void *user, int64_t rank) {
  strings *s = user;
  int64_t n = length_of(s->seed, rank);
  char *mine = malloc((size_t)n + 1);
  rs_strings *all = NULL;
  for (int64_t i = 0; i < n; i++)
    mine[i] = character(s->seed, rank, i);
  reshard_status status = rs_comm_gather_bytes(s->w.comms[rank], RESHARD_SUCCESS, mine, n, &all);
  free(mine); /* nobody reads it any more */
  rank_result_set(&s->w.results[rank], status);
  s->wrong[rank] = status != RESHARD_SUCCESS || all->n != s->w.n;
  for (int64_t r = 0; r < s->w.n && s->wrong[rank] == 0; r++) {
    s->wrong[rank] += all->first[r + 1] - all->first[r] != length_of(s->seed, r);
    for (int64_t i = all->first[r]; i < all->first[r + 1]; i++)
      s->wrong[rank] += all->bytes[i] != character(s->seed, r, i - all->first[r]);
  }
  rs_strings_release(all);
}

CASE(random_strings_are_gathered_whole) {
  for (int way = 0; way < 2; way++)
    for (int64_t n = 1; n <= 5; n++) {
      strings s = {.seed = 0};
      open_world(&s.w, n, way);
      for (s.seed = 1; s.seed <= (uint64_t)test_scaled(10, 1); s.seed++) {
        rank_threads_run(n, strings_body, &s);
        for (int64_t r = 0; r < n; r++)
          assert_int_equal(s.wrong[r], 0);
      }
      close_world(&s.w);
    }
}

RUN_CASES
