/* The k-th allocation fails while sharded tensors are made and moved: on one rank, the others take part. All ranks get
 * the same status and text, every tensor is as it was, nothing is left behind; and right after, the same call succeeds.
 * And what a reshard in place takes at most, counted in the allocator. */
#include "bench/cli/util.h"
#include "support/fault_collective.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scale.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 3 };

static const int64_t shape[2] = {9, 14};
static const reshard_properties f64 = {.dtype = RESHARD_F64};

/* --- Collective calls -------------------------------------------------------------------------------------------- */

typedef struct act {
  reshard_layout from, to, single;
  reshard_sharded_tensor tensors[RANKS][2], made[RANKS][2];
  reshard_local_shard shards[RANKS];                   /* what tensors[][0] is made of */
  reshard_tensor wholes[RANKS], result[RANKS], narrow; /* narrow: f32, in which nothing has been put yet */
} act;

static bool shards_hold(reshard_sharded_tensor t, reshard_layout layout, int64_t r, uint64_t seed) {
  return reshard_sharded_tensor_layout(t) == layout && sharded_check(t, r, seed) == 0;
}

static reshard_status run_reshard(sharded_ranks *p, void *user, int64_t r) {
  act *a = user;
  return reshard_sharded_tensor_reshard(2, a->tensors[r], (reshard_layout[]){a->to, a->to}, NULL);
}
static bool good_reshard(const void *user, int64_t r) {
  const act *a = user;
  return shards_hold(a->tensors[r][0], a->to, r, 0) && shards_hold(a->tensors[r][1], a->to, r, 1);
}

static reshard_status run_reshard_to(sharded_ranks *p, void *user, int64_t r) {
  act *a = user;
  return reshard_sharded_tensor_reshard_to(2, a->tensors[r], (reshard_layout[]){a->to, a->from}, NULL, a->made[r]);
}
static bool good_reshard_to(const void *user, int64_t r) {
  const act *a = user;
  return shards_hold(a->made[r][0], a->to, r, 0) && shards_hold(a->made[r][1], a->from, r, 1);
}

static reshard_status run_gather(sharded_ranks *p, void *user, int64_t r) {
  act *a = user;
  return reshard_sharded_tensor_gather(a->tensors[r][0], 1, r == 1 ? a->wholes[r] : NULL, NULL);
}
static bool good_gather(const void *user, int64_t r) {
  const act *a = user;
  return r != 1 || array_check(a->single, 1, 0, a->wholes[r], 0) == 0;
}

static reshard_status run_gather_all(sharded_ranks *p, void *user, int64_t r) {
  act *a = user;
  return reshard_sharded_tensor_gather_all(a->tensors[r][1], a->wholes[r], NULL);
}
static bool good_gather_all(const void *user, int64_t r) {
  const act *a = user;
  return array_check(a->single, 1, 0, a->wholes[r], 1) == 0;
}

static reshard_status run_gather_as(sharded_ranks *p, void *user, int64_t r) {
  act *a = user;
  return reshard_sharded_tensor_gather_as(a->tensors[r][0], 1, RESHARD_F32, r == 1 ? a->narrow : NULL, NULL);
}
/* Another test checks the copied numbers; here everything but the output is unchanged. */
static bool good_gather_as(const void *user, int64_t r) {
  const act *a = user;
  return shards_hold(a->tensors[r][0], a->from, r, 0) && array_check(a->single, 1, 0, a->wholes[r], 9) == 0;
}

static reshard_status run_scatter(sharded_ranks *p, void *user, int64_t r) {
  act *a = user;
  return reshard_sharded_tensor_scatter(p->sharders[r], r == 1 ? a->wholes[r] : NULL, 1, a->to, &f64, NULL,
                                        &a->made[r][0]);
}
static bool good_scatter(const void *user, int64_t r) {
  const act *a = user;
  return shards_hold(a->made[r][0], a->to, r, 9);
}

static reshard_status run_from_local(sharded_ranks *p, void *user, int64_t r) {
  act *a = user;
  return reshard_sharded_tensor_from_local(p->sharders[r], 2, shape, 1, &a->shards[r], &a->made[r][0]);
}
static bool good_from_local(const void *user, int64_t r) {
  const act *a = user;
  return sharded_check(a->made[r][0], r, 0) == 0;
}

static reshard_status run_chunks(sharded_ranks *p, void *user, int64_t r) {
  act *a = user;
  static const reshard_remote_device before[3] = {
      {0, RESHARD_DEVICE_CPU, -1}, {1, RESHARD_DEVICE_CPU, -1}, {2, RESHARD_DEVICE_CPU, -1}};
  static const reshard_remote_device after[3] = {
      {2, RESHARD_DEVICE_CPU, -1}, {0, RESHARD_DEVICE_CPU, -1}, {1, RESHARD_DEVICE_CPU, -1}};
  const reshard_local_reshard cuts = {RESHARD_LOCAL_RESHARD_INIT, RESHARD_F64,           2, shape,
                                      .before = {0, 3, before},   .after = {1, 3, after}};
  return reshard_reshard_local_shard(p->sharders[r], &cuts, a->shards[r].tensor, NULL, &a->result[r]);
}
static bool good_chunks(const void *user, int64_t r) {
  const act *a = user;
  return array_check(a->to, r, 0, a->result[r], 0) == 0;
}

static const struct {
  const char *name;
  reshard_status (*call)(sharded_ranks *p, void *act, int64_t r);
  bool (*good)(const void *act, int64_t r);
} calls[] = {
    {"reshard", run_reshard, good_reshard},
    {"reshard_to", run_reshard_to, good_reshard_to},
    {"gather", run_gather, good_gather},
    {"gather_all", run_gather_all, good_gather_all},
    {"gather_as", run_gather_as, good_gather_as},
    {"scatter", run_scatter, good_scatter},
    {"from_local", run_from_local, good_from_local},
    {"reshard_local_shard", run_chunks, good_chunks},
};

static void open_act(sharded_ranks *p, void *user) {
  act *a = user;
  CLI_TRY("narrow: ", reshard_tensor_create(RESHARD_F32, 2, shape, &a->narrow));
  array_fill(a->single, 1, 0, a->narrow, 8);
  for (int64_t r = 0; r < RANKS; r++) {
    for (int i = 0; i < 2; i++) {
      CLI_TRY("tensor: ", reshard_sharded_tensor_empty(p->sharders[r], a->from, &f64, NULL, &a->tensors[r][i]));
      sharded_fill(a->tensors[r][i], r, (uint64_t)i);
      a->made[r][i] = NULL;
    }
    a->shards[r] = (reshard_local_shard){{.placement = {r, RESHARD_DEVICE_CPU, -1}}, NULL};
    CLI_TRY("shard: ",
            reshard_sharded_tensor_local(a->tensors[r][0], 0, &a->shards[r].tensor, &a->shards[r].metadata.box));
    CLI_TRY("whole: ", reshard_tensor_create(RESHARD_F64, 2, shape, &a->wholes[r]));
    array_fill(a->single, 1, 0, a->wholes[r], 9);
    a->result[r] = NULL;
  }
}

static void close_act(void *user) {
  act *a = user;
  reshard_tensor_release(a->narrow);
  for (int64_t r = 0; r < RANKS; r++) {
    for (int i = 0; i < 2; i++) {
      reshard_sharded_tensor_release(a->tensors[r][i]);
      reshard_sharded_tensor_release(a->made[r][i]);
    }
    reshard_tensor_release(a->wholes[r]);
    reshard_tensor_release(a->result[r]);
  }
}

/* Everything is as open_act made it. */
static bool same(const void *user, int64_t r) {
  const act *a = user;
  bool is = a->result[r] == NULL && array_check(a->single, 1, 0, a->wholes[r], 9) == 0 &&
            array_check(a->single, 1, 0, a->narrow, 8) == 0;
  for (int i = 0; i < 2; i++)
    is = is && a->made[r][i] == NULL && shards_hold(a->tensors[r][i], a->from, r, (uint64_t)i);
  return is;
}

CASE(collective_calls_survive_a_failed_allocation_of_any_rank) {
  int64_t live = fault_live(), failed = 0,
          step = 8 / (test_scaled(8, 1) < 8 ? test_scaled(8, 1) : 8); /* 1 at full scale */
  act a = {.from = layout_from_text("chunk(0)", 2, shape, RANKS),
           .to = layout_from_text("chunk(1;2,0,1)", 2, shape, RANKS),
           .single = layout_from_text("rank(1)", 2, shape, RANKS)};
  for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
    for (int64_t watched = FAULT_ANY_RANK; watched < RANKS; watched++) { /* each rank, one way or the other */
      const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT,
                                               .path = (c + (size_t)(watched + 1)) % 2 ? RESHARD_PATH_PACKED
                                                                                       : RESHARD_PATH_AUTO,
                                               .cached_plans = watched == 2 ? -1 : 0};
      failed += fault_collective_run(&(fault_collective){calls[c].name, RANKS, watched, &options, &a, open_act,
                                                         calls[c].call, same, calls[c].good, close_act},
                                     step);
    }
  assert_true(failed * step > 200);
  reshard_layout_release(a.from);
  reshard_layout_release(a.to);
  reshard_layout_release(a.single);
  assert_int_equal(fault_live(), live);
}

/* --- Local calls ------------------------------------------------------------------------------------------------- */

typedef struct local {
  sharded_ranks p;
  reshard_layout layout;
  reshard_metadata metadata;
  reshard_tensor whole, rows, index;
  void *memory;
} local;

static void drop_tensor(fault_output *out) { reshard_tensor_release(out->object); }
static void drop_sharded(fault_output *out) { reshard_sharded_tensor_release(out->object); }
static void drop_sharder(fault_output *out) { reshard_sharder_destroy(out->object); }

/* Keeps *out as it was until there is a result. */
#define MAKE(name, type, expression) \
  static reshard_status name(fault_output *out, const void *with) { \
    const local *l = with; \
    type made = out->object; \
    reshard_status status = (expression); \
    (void)l; \
    out->object = made; \
    return status; \
  }
static reshard_status box_fill(void *user, reshard_tensor array, const reshard_box *box) {
  (void)user, (void)array, (void)box;
  return RESHARD_SUCCESS;
}
static const int64_t five[1] = {5}, global[1] = {12};
static const reshard_sharder_options grouped = {.size = RESHARD_SHARDER_OPTIONS_INIT, .group = {1, global}};
static char memory[40];
MAKE(create_tensor, reshard_tensor, reshard_tensor_create(RESHARD_F32, 2, shape, &made))
MAKE(wrap_tensor, reshard_tensor, reshard_tensor_wrap(RESHARD_F64, 1, five, NULL, memory, NULL, NULL, &made))
MAKE(create_sharder, reshard_sharder, reshard_sharder_create(l->p.comms[0], &grouped, &made))
MAKE(make_empty, reshard_sharded_tensor, reshard_sharded_tensor_empty(l->p.sharders[0], l->layout, &f64, NULL, &made))
MAKE(make_zeros, reshard_sharded_tensor, reshard_sharded_tensor_zeros(l->p.sharders[0], l->layout, &f64, NULL, &made))
MAKE(make_generated, reshard_sharded_tensor,
     reshard_sharded_tensor_generate(l->p.sharders[0], l->layout, &f64, box_fill, NULL, NULL, &made))
MAKE(from_metadata, reshard_sharded_tensor,
     reshard_sharded_tensor_from_metadata(l->p.sharders[0], l->metadata, 1, &l->whole, &made))
MAKE(from_layout, reshard_sharded_tensor,
     reshard_sharded_tensor_from_layout(l->p.sharders[0], l->layout, &f64, 1, &l->whole, &made))
MAKE(from_buffers, reshard_sharded_tensor,
     reshard_sharded_tensor_from_buffers(l->p.sharders[0], l->layout, &f64, &l->memory, NULL, &made))

static reshard_status select_rows(fault_output *out, const void *with) {
  const local *l = with;
  reshard_status status = reshard_index_select(l->whole, 0, l->index, l->rows, 1, NULL);
  if (status == RESHARD_SUCCESS)
    out->number = 1;
  return status;
}

/* The records of the sharder's pool stay allocated from here on. */
static void warm(const local *l) {
  reshard_sharded_tensor tensor;
  CLI_TRY("warm: ", reshard_sharded_tensor_empty(l->p.sharders[0], l->layout, &f64, NULL, &tensor));
  reshard_sharded_tensor_release(tensor);
}

CASE(local_calls_survive_any_failed_allocation) {
  local l;
  const int64_t rows[2] = {4, 14}, four = 4;
  reshard_tensor_info info;
  sharded_ranks_open(&l.p, 1, NULL);
  l.layout = layout_from_text("mesh(1x1;R,S1)", 2, shape, 1);
  CLI_TRY("", reshard_metadata_from_layout(&f64, l.layout, NULL, NULL, &l.metadata));
  CLI_TRY("", reshard_tensor_create(RESHARD_F64, 2, shape, &l.whole));
  CLI_TRY("", reshard_tensor_create(RESHARD_F64, 2, rows, &l.rows));
  CLI_TRY("", reshard_tensor_create(RESHARD_I64, 1, &four, &l.index));
  CLI_TRY("", reshard_tensor_get_info(l.index, &info));
  memcpy(info.data, (int64_t[]){8, 1, 1, 3}, 32);
  CLI_TRY("", reshard_tensor_get_info(l.whole, &info));
  memset(info.data, 0, sizeof(double[9][14]));
  l.memory = info.data;
  warm(&l);
  const fault_local calls[] = {
      {"reshard_tensor_create", create_tensor, fault_any_output, drop_tensor, &l},
      {"reshard_tensor_wrap", wrap_tensor, fault_any_output, drop_tensor, &l},
      {"reshard_sharder_create", create_sharder, fault_any_output, drop_sharder, &l},
      {"reshard_sharded_tensor_empty", make_empty, fault_any_output, drop_sharded, &l},
      {"reshard_sharded_tensor_zeros", make_zeros, fault_any_output, drop_sharded, &l},
      {"reshard_sharded_tensor_generate", make_generated, fault_any_output, drop_sharded, &l},
      {"reshard_sharded_tensor_from_metadata", from_metadata, fault_any_output, drop_sharded, &l},
      {"reshard_sharded_tensor_from_layout", from_layout, fault_any_output, drop_sharded, &l},
      {"reshard_sharded_tensor_from_buffers", from_buffers, fault_any_output, drop_sharded, &l},
      {"reshard_index_select", select_rows, fault_any_output, NULL, &l},
  };
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
    assert_true(fault_local_run(&calls[i]) >= 1);
  reshard_layout mesh = l.layout;
  sharded_ranks_close(&l.p);
  const reshard_sharder_options nothing_kept = {.size = RESHARD_SHARDER_OPTIONS_INIT, .keep_bytes = -1};
  sharded_ranks_open(&l.p, 2, &nothing_kept);
  l.layout =
      layout_from_text("flat(0,1)", 2, (int64_t[]){257, 515}, 2); /* several arrays in one buffer, which is large */
  warm(&l);
  assert_true(fault_local_run(&calls[3]) >= 6);
  reshard_layout_release(l.layout);
  l.layout = mesh;
  reshard_tensor_release(l.whole);
  reshard_tensor_release(l.rows);
  reshard_tensor_release(l.index);
  reshard_metadata_release(l.metadata);
  reshard_layout_release(l.layout);
  sharded_ranks_close(&l.p);
}

/* --- Peak memory ------------------------------------------------------------------------------------------------- */

/* Shards below 2 MiB: larger ones begin at a huge page, with address space before and behind them that is not touched.
 * Slack: what plans, messages and programs take. */
enum { SIDE = 768, SLACK = 256 << 10 };

typedef struct peak {
  reshard_layout sides[2];
  int to;
  int64_t told[RANKS];
  reshard_sharded_tensor tensors[RANKS];
} peak;

static void peak_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  peak *k = p->user;
  reshard_sharder_stats stats = {0};
  reshard_status status = reshard_sharded_tensor_reshard(1, &k->tensors[r], &k->sides[k->to], NULL);
  reshard_sharder_get_stats(p->sharders[r], &stats);
  k->told[r] = stats.peak_bytes;
  rank_result_set(&p->results[r], status);
}

/* A reshard takes what it tells: new shards and staging. Where freed memory is not kept, memory is then as it was;
 * where it is, by default, the next one needs no more than what is there. */
CASE(reshard_takes_the_memory_that_it_tells) {
  static const int64_t large[2] = {SIDE, SIDE};
  const int64_t bytes = (int64_t)SIDE * SIDE * 8;
  peak k = {.sides = {layout_from_text("chunk(0)", 2, large, RANKS), layout_from_text("chunk(1)", 2, large, RANKS)}};
  for (int turn = 0; turn < 6; turn++) {
    sharded_ranks p;
    int limited = turn / 2;
    bool keeps = turn % 2 == 1;
    reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT,
                                       .path = limited > 0 ? RESHARD_PATH_PACKED : RESHARD_PATH_AUTO,
                                       .workspace_limit = limited > 1 ? 1 << 20 : 0,
                                       .keep_bytes = keeps ? 0 : -1};
    sharded_ranks_open(&p, RANKS, &options);
    for (int64_t r = 0; r < RANKS; r++)
      CLI_TRY("", reshard_sharded_tensor_zeros(p.sharders[r], k.sides[0], &f64, NULL, &k.tensors[r]));
    for (int again = 0; again < 2; again++) {
      int64_t before = fault_bytes(), told = 0;
      k.to = 1 - again;
      fault_arm(-1);
      sharded_ranks_run(&p, peak_body, &k);
      fault_disarm();
      sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
      for (int64_t r = 0; r < RANKS; r++)
        told += k.told[r];
      int64_t most = fault_peak() - before, left = fault_bytes() - before, there = keeps && again ? told : 0;
      int64_t kept = keeps && !again ? told : 0;
      if (most > told - there + SLACK || most < told - there || left > kept + SLACK || left < kept - SLACK)
        fail_msg("turn %d.%d: %d bytes at most, %d were told, %d are left of %d", turn, again, (int)most, (int)told,
                 (int)left, (int)bytes);
      assert_true(limited == 0 ? told == bytes : limited == 1 ? told > bytes : told <= bytes + RANKS * (1 << 20));
    }
    for (int64_t r = 0; r < RANKS; r++)
      reshard_sharded_tensor_release(k.tensors[r]);
    sharded_ranks_close(&p);
  }
  reshard_layout_release(k.sides[0]);
  reshard_layout_release(k.sides[1]);
}

RUN_CASES
