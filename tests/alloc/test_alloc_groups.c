/* The k-th allocation fails while DTensors on sub-meshes are made and moved, from the first that a group makes: its
 * ranks have the same error, the other group does not notice, nothing is left behind, and the same call right after
 * succeeds. */
#include "bench/cli/util.h"
#include "support/fault_local.h"
#include "support/fixtures/case.h"
#include "support/fixtures/sharded_ranks.h"

#include <reshard/dtensor.h>

#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, SEED = 7, ANY = -1 };

static const int64_t shape[2] = {5, 3};
static const reshard_properties f64 = {.dtype = RESHARD_F64};
static const reshard_placement rows = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0},
                               columns = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 1};

/* dp 2 x tp 2: groups are ranks 0 and 1, 2 and 3. */
typedef struct world {
  sharded_ranks p;
  reshard_mesh mesh[RANKS], tp[RANKS];
  reshard_tensor part[RANKS], whole[RANKS];
  reshard_dtensor tensor[RANKS]; /* cut along dim 0; NULL: not made yet */
  int64_t watched;               /* whose allocations can fail, or ANY */
  const struct call *call;
  void *out[RANKS];
} world;

typedef struct call {
  const char *name;
  bool made; /* the tensor is there before */
  bool all;  /* all ranks do it together */
  reshard_status (*make)(world *w, int64_t r, void **out);
  bool full; /* the result is a whole tensor */
} call;

static reshard_status from_local(world *w, int64_t r, void **out) {
  const reshard_placing at = {w->tp[r], &rows, NULL};
  reshard_dtensor made = NULL;
  reshard_status status = reshard_dtensor_from_local(w->p.sharders[r], &at, w->part[r], 0, NULL, 0, &made);
  *out = made;
  return status;
}

static reshard_status distribute(world *w, int64_t r, void **out) {
  const reshard_placing at = {w->tp[r], &columns, NULL};
  reshard_dtensor made = NULL;
  reshard_status status = reshard_dtensor_distribute(w->p.sharders[r], &at, r % 2 == 1 ? w->whole[r] : NULL, 1, 2,
                                                     shape, &f64, NULL, &made);
  *out = made;
  return status;
}

static reshard_status redistribute(world *w, int64_t r, void **out) {
  const reshard_placing to = {w->tp[r], &columns, NULL};
  reshard_dtensor made = NULL;
  reshard_status status = reshard_dtensor_redistribute(1, &w->tensor[r], &to, NULL, &made);
  *out = made;
  return status;
}

static reshard_status full(world *w, int64_t r, void **out) {
  reshard_tensor made = NULL;
  reshard_status status = reshard_dtensor_full(w->tensor[r], NULL, &made);
  *out = made;
  return status;
}

/* Five of the row of rank 0, by all ranks, to the whole mesh. */
static reshard_status elsewhere(world *w, int64_t r, void **out) {
  const reshard_placement both[2] = {columns, rows};
  reshard_placing to[5];
  reshard_dtensor five[5], made[5] = {NULL};
  for (int i = 0; i < 5; i++) {
    to[i] = (reshard_placing){w->mesh[r], both, NULL};
    five[i] = w->tensor[r];
  }
  reshard_status status = reshard_dtensor_redistribute(5, five, to, NULL, made);
  *out = made[0];
  for (int i = 1; i < 5; i++)
    reshard_dtensor_release(made[i]);
  return status;
}

static void open_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  world *w = p->user;
  CLI_TRY("mesh: ", reshard_mesh_parse(p->comms[r], 0, "dp=2,tp=2", &w->mesh[r]));
  CLI_TRY("groups: ", reshard_mesh_init_groups(w->mesh[r], 0, NULL));
  CLI_TRY("sub: ", reshard_mesh_sub(w->mesh[r], "tp", w->call->all ? 0 : RESHARD_MESH_MINE, &w->tp[r]));
  const int64_t mine[2] = {3 - r % 2, 3};
  reshard_layout single = layout_from_text("rank(0)", 2, shape, 1), cut = layout_from_text("mesh(2;S0)", 2, shape, 2);
  CLI_TRY("whole: ", reshard_tensor_create(RESHARD_F64, 2, shape, &w->whole[r]));
  CLI_TRY("part: ", reshard_tensor_create(RESHARD_F64, 2, mine, &w->part[r]));
  array_fill(single, 0, 0, w->whole[r], SEED);
  array_fill(cut, r % 2, 0, w->part[r], SEED);
  reshard_layout_release(single);
  reshard_layout_release(cut);
  const reshard_placing at = {w->tp[r], &rows, NULL};
  if (w->call->made)
    CLI_TRY("tensor: ", reshard_dtensor_distribute(p->sharders[r], &at, w->call->all && r > 1 ? NULL : w->whole[r], -1,
                                                   2, shape, &f64, NULL, &w->tensor[r]));
}

static void open_world(world *w) {
  sharded_ranks_open(&w->p, RANKS, NULL);
  sharded_ranks_run(&w->p, open_body, w);
}

static void close_world(world *w) {
  for (int64_t r = 0; r < RANKS; r++) {
    reshard_dtensor_release(w->tensor[r]);
    w->tensor[r] = NULL;
    reshard_tensor_release(w->part[r]);
    reshard_tensor_release(w->whole[r]);
    reshard_mesh_release(w->tp[r]);
    reshard_mesh_release(w->mesh[r]);
  }
  sharded_ranks_close(&w->p);
}

static void call_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  world *w = p->user;
  w->out[r] = NULL;
  fault_mark(w->watched == ANY || w->watched == r);
  reshard_status status = w->call->make(w, r, &w->out[r]);
  fault_mark(false);
  rank_result_set(&p->results[r], status);
}

/* Checks the result of a rank, if it has one. */
static bool good(world *w, int64_t r) {
  if (w->p.results[r].status != RESHARD_SUCCESS)
    return w->out[r] == NULL;
  if (!w->call->full) {
    reshard_layout layout = reshard_dtensor_layout(w->out[r]);
    int64_t rank = w->call->all ? r : r % 2;
    return array_check(layout, rank, 0, reshard_dtensor_local(w->out[r]), SEED) == 0;
  }
  reshard_layout single = layout_from_text("rank(0)", 2, shape, 1);
  bool right = array_check(single, 0, 0, w->out[r], SEED) == 0;
  reshard_layout_release(single);
  return right;
}

/* Calls, and compares what the ranks of a group got. Returns how many failed. */
static int64_t run_with_fault(world *w, int64_t k) {
  int64_t failed = 0;
  sharded_ranks_run(&w->p, call_body, w);
  reshard_status status = fault_status(fault_fired());
  for (int64_t r = 0; r < RANKS; r++) {
    const rank_result *mine = &w->p.results[r], *first = &w->p.results[w->call->all ? 0 : r / 2 * 2];
    bool error = mine->status != RESHARD_SUCCESS;
    failed += error;
    if (!good(w, r) || mine->status != first->status ||
        (error && (mine->status != status || strcmp(mine->text, first->text) != 0)))
      fail_msg("%s, allocation %lld of rank %d fails: rank %d: %s: %s", w->call->name, (long long)k, (int)w->watched,
               (int)r, reshard_status_string(mine->status), mine->text);
    if (w->call->full)
      reshard_tensor_release(w->out[r]);
    else
      reshard_dtensor_release(w->out[r]);
  }
  return failed;
}

/* Each in a world of its own, so that nothing is kept for it. */
static int64_t ranks_run(world *w) {
  for (int64_t k = 0;; k++) {
    int64_t live = fault_live();
    open_world(w);
    fault_arm(k);
    int64_t failed = run_with_fault(w, k), wanted = w->call->all ? RANKS : RANKS / 2;
    fault_disarm();
    bool fired = fault_fired() != FAULT_NONE;
    if (failed != (fired ? wanted : 0))
      fail_msg("%s, allocation %lld of rank %d fails: %lld ranks have an error", w->call->name, (long long)k,
               (int)w->watched, (long long)failed);
    assert_int_equal(run_with_fault(w, k), 0);
    close_world(w);
    if (fault_live() != live)
      fail_msg("%s, allocation %lld of rank %d fails: %lld blocks leak", w->call->name, (long long)k, (int)w->watched,
               (long long)(fault_live() - live));
    if (!fired)
      return k;
  }
}

CASE(failed_allocation_of_a_group_leaves_the_others_alone) {
  static const call calls[] = {
      {"from_local", false, false, from_local, false},    {"distribute", false, false, distribute, false},
      {"redistribute", true, false, redistribute, false}, {"full", true, false, full, true},
      {"to another mesh", true, true, elsewhere, false},
  };
  world w = {0};
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    w.call = &calls[i];
    for (w.watched = ANY; w.watched < 2; w.watched += 2) {
      int64_t made = ranks_run(&w);
      print_message("%s: %lld allocations\n", w.call->name, (long long)made);
      assert_true(made > 0);
    }
  }
}

RUN_CASES
