/* The k-th allocation fails while ranks save a state dict, or load one: all ranks get the same status and the same
 * text; nothing is left behind in memory or on disk; what was there before is still there; and right after, the same
 * call succeeds. */
#include "bench/cli/util.h"
#include "comm/comm.h"
#include "support/fault_collective.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scratch.h"

#include <reshard/state_dict.h>

#ifdef RS_HAVE_JANSSON

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 2, ANY = -1, STORED = 1, BEFORE = 2 };

typedef struct world {
  sharded_ranks p;
  int64_t watched; /* the rank whose allocations can fail; ANY: all ranks' */
  reshard_sharded_tensor tensors[RANKS][2];
  reshard_tensor plain[RANKS];
  reshard_tree states[RANKS];
  rs_comm_ops ops; /* of ranks that do as if they were processes of their own */
  rs_thread_ops alone;
  bool boxes;          /* one tensor is of another communicator, one path is on rank 1 alone */
  sharded_ranks other; /* that communicator */
  char path[512];
} world;

static void put_child(reshard_tree dict, const char *key, reshard_tree child) {
  CLI_TRY("", reshard_tree_set(dict, key, child));
  reshard_tree_release(child);
}

static reshard_status alone(reshard_comm comm, reshard_status (*run)(int64_t n, void **all), void *mine) {
  return run(1, &mine);
}

/* Ranks that do not reach each other's memory. */
static void set_apart(world *w) {
  w->ops = *w->p.comms[0]->ops;
  w->ops.addressable = false;
  w->alone = *w->ops.threads;
  w->alone.combine = alone;
  w->ops.threads = &w->alone;
  for (int64_t r = 0; r < RANKS; r++) {
    w->p.comms[r]->ops = &w->ops;
    w->p.comms[r]->locals = 1;
  }
}

/* A tensor that is cut in many boxes, one with gaps in memory, a plain one with gaps, and two leaves. */
static void open_world(world *w, const char *layout) {
  const int64_t shape[2] = {9, 14};
  const reshard_properties f32 = {.dtype = RESHARD_F32};
  sharded_ranks_open(&w->p, RANKS, NULL);
  sharded_ranks_open(&w->other, RANKS, NULL);
  snprintf(w->path, sizeof w->path, "%s", scratch_path("state"));
  reshard_layout cut = layout_from_text(layout, 2, shape, RANKS);
  for (int64_t r = 0; r < RANKS; r++) {
    reshard_tree root = NULL, leaf = NULL;
    reshard_metadata metadata;
    reshard_tensor rows = strided_tensor(RESHARD_F32, 2, (const int64_t[]){r == 0 ? 5 : 4, 14}, false);
    const reshard_shard shards[2] = {{{{0, 0}, {5, 14}}, {0, RESHARD_DEVICE_CPU, -1}},
                                     {{{5, 0}, {4, 14}}, {1, RESHARD_DEVICE_CPU, -1}}};
    CLI_TRY("", reshard_sharded_tensor_empty(w->p.sharders[r], cut, &f32, NULL, &w->tensors[r][0]));
    CLI_TRY("", reshard_metadata_create(&f32, 2, shape, 2, shards, &metadata));
    CLI_TRY("", reshard_sharded_tensor_from_metadata((w->boxes ? &w->other : &w->p)->sharders[r], metadata, 1, &rows,
                                                     &w->tensors[r][1]));
    reshard_metadata_release(metadata);
    reshard_tensor_release(rows);
    w->plain[r] = strided_tensor(RESHARD_I16, 2, shape, true);
    CLI_TRY("", reshard_tree_dict(&root));
    for (int i = 0; i < 2; i++) {
      CLI_TRY("", reshard_state_sharded(w->tensors[r][i], &leaf));
      put_child(root, i == 0 ? "cut" : "rows", leaf);
    }
    CLI_TRY("", reshard_tree_tensor(w->plain[r], &leaf));
    put_child(root, "plain", leaf);
    CLI_TRY("", reshard_tree_bytes("bytes", 5, &leaf));
    if (!w->boxes || r == 1)
      put_child(root, "bytes", leaf);
    else
      reshard_tree_release(leaf);
    CLI_TRY("", reshard_tree_int(BEFORE, &leaf));
    put_child(root, "step", leaf);
    w->states[r] = root;
  }
  reshard_layout_release(cut);
}

static void close_world(world *w) {
  for (int64_t r = 0; r < RANKS; r++) {
    reshard_tree_release(w->states[r]);
    reshard_tensor_release(w->plain[r]);
    for (int i = 0; i < 2; i++)
      reshard_sharded_tensor_release(w->tensors[r][i]);
  }
  sharded_ranks_close(&w->p);
  sharded_ranks_close(&w->other);
}

static void state_fill(world *w, uint64_t seed) {
  const int64_t shape[2] = {9, 14};
  reshard_layout whole = layout_from_text("rank(0)", 2, shape, 1);
  for (int64_t r = 0; r < RANKS; r++) {
    for (int i = 0; i < 2; i++)
      sharded_fill(w->tensors[r][i], r, seed);
    array_fill(whole, 0, 0, w->plain[r], seed);
  }
  reshard_layout_release(whole);
}

static bool state_holds(const world *w, uint64_t seed) {
  const int64_t shape[2] = {9, 14};
  reshard_layout whole = layout_from_text("rank(0)", 2, shape, 1);
  int64_t wrong = 0;
  for (int64_t r = 0; r < RANKS; r++) {
    for (int i = 0; i < 2; i++)
      wrong += sharded_check(w->tensors[r][i], r, seed);
    wrong += array_check(whole, 0, 0, w->plain[r], seed);
  }
  reshard_layout_release(whole);
  return wrong == 0;
}

static int64_t step_of(const world *w, int64_t r) {
  reshard_tree leaf;
  int64_t value = -1;
  if (reshard_tree_find(w->states[r], "step", &leaf) == RESHARD_SUCCESS)
    (void)reshard_tree_get_int(leaf, &value);
  return value;
}

static void save_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  world *w = p->user;
  reshard_state_save_options options = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1, .threads = 1};
  fault_mark(w->watched == ANY || w->watched == r);
  reshard_status status = reshard_state_save(p->sharders[r], w->states[r], w->path, &options, NULL);
  fault_mark(false);
  rank_result_set(&p->results[r], status);
}

static void load_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  world *w = p->user;
  reshard_state_load_options options = {.size = RESHARD_STATE_LOAD_OPTIONS_INIT, .threads = 1};
  fault_mark(w->watched == ANY || w->watched == r);
  reshard_status status = reshard_state_load(p->sharders[r], w->states[r], w->path, &options, NULL);
  fault_mark(false);
  rank_result_set(&p->results[r], status);
}

static int64_t count_names(void) {
  DIR *directory = opendir(scratch_path(""));
  int64_t n = 0;
  while (readdir(directory) != NULL)
    n++;
  closedir(directory);
  return n;
}

static int64_t each_save(world *w) {
  for (int64_t k = 0;; k++) {
    int64_t live = fault_live(), names = count_names();
    state_fill(w, STORED);
    fault_arm(k);
    sharded_ranks_run(&w->p, save_body, w);
    int64_t made = fault_disarm();
    fault_kind kind = fault_fired();
    sharded_ranks_assert(&w->p, fault_status(kind), NULL);
    fault_collective_no_leak("save", live, w->watched, k);
    assert_int_equal(count_names(), names);
    if (kind == FAULT_NONE)
      return made;
    state_fill(w, BEFORE); /* what was stored before is still there */
    sharded_ranks_run(&w->p, load_body, w);
    sharded_ranks_assert(&w->p, RESHARD_SUCCESS, NULL);
    assert_true(state_holds(w, STORED));
  }
}

static int64_t each_load(world *w) {
  for (int64_t k = 0;; k++) {
    reshard_tree leaf;
    int64_t live = fault_live();
    state_fill(w, BEFORE);
    fault_arm(k);
    sharded_ranks_run(&w->p, load_body, w);
    int64_t made = fault_disarm();
    fault_kind kind = fault_fired();
    sharded_ranks_assert(&w->p, fault_status(kind), NULL);
    for (int64_t r = 0; r < RANKS; r++)
      assert_int_equal(step_of(w, r), kind == FAULT_NONE ? STORED : BEFORE);
    if (kind == FAULT_NONE) {
      assert_true(state_holds(w, STORED));
      for (int64_t r = 0; r < RANKS; r++) {
        CLI_TRY("", reshard_tree_int(BEFORE, &leaf));
        put_child(w->states[r], "step", leaf);
      }
      return made;
    }
    fault_collective_no_leak("load", live, w->watched, k);
  }
}

CASE(saves_and_loads_survive_a_failed_allocation_of_any_rank) {
  world w = {.watched = 5}; /* nobody */
  open_world(&w, "chunk(1)");
  for (int64_t r = 0; r < RANKS; r++) {
    reshard_tree leaf;
    CLI_TRY("", reshard_tree_int(STORED, &leaf));
    put_child(w.states[r], "step", leaf);
  }
  state_fill(&w, STORED);
  sharded_ranks_run(&w.p, save_body, &w);
  sharded_ranks_assert(&w.p, RESHARD_SUCCESS, NULL);
  close_world(&w);
  static const struct {
    bool saves, apart, boxes;
    int64_t watched;
    const char *layout;
  } rounds[] = {{false, false, false, ANY, "cyclic(2x1;1x14)"},
                {false, false, false, 0, "cyclic(2x1;1x14)"},
                {false, false, false, ANY, "chunk(1)"},
                {false, false, true, ANY, "chunk(1)"},
                {true, false, false, 1, "cyclic(2x1;1x14)"},
                {true, false, false, ANY, "cyclic(2x1;1x14)"},
                {true, false, true, 1, "chunk(1)"},
                {true, false, true, ANY, "chunk(1)"},
                {false, true, false, 1, "chunk(1)"},
                {false, true, true, 0, "chunk(1)"},
                {true, true, false, 0, "chunk(1)"},
                {true, true, false, 1, "chunk(1)"},
                {true, true, true, 0, "chunk(1)"},
                {true, true, true, 1, "chunk(1)"}};
  int64_t made = 0;
  for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++) {
    w.boxes = rounds[i].boxes;
    open_world(&w, rounds[i].layout);
    if (rounds[i].apart)
      set_apart(&w);
    w.watched = rounds[i].watched;
    made += rounds[i].saves ? each_save(&w) : each_load(&w);
    close_world(&w);
  }
  print_message("%lld allocations failed one by one\n", (long long)made);
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)

#else

int main(void) { return 77; }

#endif
