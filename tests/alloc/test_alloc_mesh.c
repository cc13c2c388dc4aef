/* The k-th allocation fails, for every k: making meshes, their parts and layouts; and splitting a communicator and
 * making the communicators of a mesh, on one rank or on any: all ranks get the same error, nothing leaks, nothing is
 * kept, and the next call succeeds. */
#include "support/fault_collective.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"

#include <reshard/mesh.h>

#include <stdio.h>
#include <string.h>

/* --- One rank alone ---------------------------------------------------------------------------------------------- */

static reshard_mesh dry; /* dp=2,cp=3,tp=4 */

static void drop_mesh(fault_output *out) { reshard_mesh_release(out->object); }
static bool good_mesh(const fault_output *out, const void *with) {
  char text[256];
  return reshard_mesh_print(out->object, text, sizeof text, NULL) == RESHARD_SUCCESS && strcmp(text, with) == 0;
}

static reshard_status mesh_parse(fault_output *out, const void *with) {
  reshard_mesh made = out->object;
  reshard_status status = reshard_mesh_parse(NULL, 30, with, &made);
  out->object = made;
  return status;
}
static reshard_status sub(fault_output *out, const void *with) {
  reshard_mesh made = out->object;
  reshard_status status = reshard_mesh_sub(dry, "tp,dp", 17, &made);
  out->object = made;
  return status;
}
static reshard_status slice(fault_output *out, const void *with) {
  reshard_mesh made = out->object;
  reshard_status status = reshard_mesh_slice(dry, "cp", 0, 3, 2, &made);
  out->object = made;
  return status;
}
static reshard_status mesh_flatten(fault_output *out, const void *with) {
  reshard_mesh made = out->object;
  reshard_status status = reshard_mesh_flatten(dry, "cp,tp", "all", &made);
  out->object = made;
  return status;
}

static reshard_status layout(fault_output *out, const void *with) {
  reshard_layout made = out->object;
  const int64_t shape[1] = {100};
  const reshard_placement placements[2] = {{.kind = RESHARD_PLACEMENT_SHARD, .dim = 0},
                                           {.kind = RESHARD_PLACEMENT_REPLICATE}};
  reshard_mesh part;
  reshard_status status = reshard_mesh_sub(dry, "tp,dp", 17, &part);
  if (status != RESHARD_SUCCESS)
    return status;
  status = reshard_mesh_layout(part, 1, shape, placements, NULL, &made);
  reshard_mesh_release(part);
  out->object = made;
  return status;
}
static bool good_layout(const fault_output *out, const void *with) {
  char text[256];
  return reshard_layout_print(out->object, text, sizeof text, NULL) == RESHARD_SUCCESS && strcmp(text, with) == 0;
}
static void drop_layout(fault_output *out) { reshard_layout_release(out->object); }

CASE(meshes_survive_any_failed_allocation) {
  assert_int_equal(reshard_mesh_parse(NULL, 30, "dp=2,cp=3,tp=4", &dry), RESHARD_SUCCESS);
  const fault_local calls[] = {
      {"parse, regular", mesh_parse, good_mesh, drop_mesh, "dp=2,tp=3@4-9"},
      {"parse, a list", mesh_parse, good_mesh, drop_mesh, "2x3@4,9,5-6,1,29"},
      {"sub", sub, good_mesh, drop_mesh, "tp=4,dp=2@4,16,5,17,6,18,7,19"},
      {"slice", slice, good_mesh, drop_mesh, "dp=2,cp=2,tp=4@0-3,8-15,20-23"},
      {"flatten", mesh_flatten, good_mesh, drop_mesh, "dp=2,all=12@0-23"},
      {"layout", layout, good_layout, drop_layout, "mesh(tp=4,dp=2@4,16,5,17,6,18,7,19;S0,R)"},
  };
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
    assert_true(fault_local_run(&calls[i]) >= 2);
  reshard_mesh_release(dry);
}

/* --- All ranks together ------------------------------------------------------------------------------------------ */

enum { RANKS = 7, ANY = -1, PATIENCE = 60000 };

typedef struct world {
  reshard_comm comms[RANKS], subs[RANKS];
  reshard_mesh meshes[RANKS], owns[RANKS]; /* dp=2,tp=3: rank 6 is outside */
  rank_result results[RANKS];
  int64_t watched; /* whose allocations count, or ANY */
} world;

static void split_body(void *user, int64_t r) {
  world *w = user;
  fault_mark(w->watched == ANY || w->watched == r);
  reshard_status status = reshard_comm_split(w->comms[r], r % 3 - 1, -r, &w->subs[r]);
  fault_mark(false);
  rank_result_set(&w->results[r], status);
}

static void own_body(void *user, int64_t r) {
  world *w = user;
  fault_mark(w->watched == ANY || w->watched == r);
  reshard_status status = reshard_mesh_own(w->meshes[r], &w->owns[r]);
  fault_mark(false);
  rank_result_set(&w->results[r], status);
}

static void comm_body(void *user, int64_t r) {
  world *w = user;
  reshard_comm found = NULL;
  fault_mark(w->watched == ANY || w->watched == r);
  reshard_status status = reshard_mesh_comm(w->meshes[r], "tp", &found);
  fault_mark(false);
  rank_result_set(&w->results[r], status);
  w->subs[r] = found; /* borrowed */
}

static void groups_body(void *user, int64_t r) {
  world *w = user;
  static const char *const dims[3] = {"tp", "dp", NULL};
  fault_mark(w->watched == ANY || w->watched == r);
  reshard_status status = reshard_mesh_init_groups(w->meshes[r], 3, dims);
  fault_mark(false);
  rank_result_set(&w->results[r], status);
}

static void barrier_body(void *user, int64_t r) {
  world *w = user;
  rank_result_set(&w->results[r], w->subs[r] != NULL ? reshard_comm_barrier(w->subs[r]) : RESHARD_SUCCESS);
}

static void assert_all(const world *w, reshard_status status, int64_t k) {
  char what[80];
  snprintf(what, sizeof what, "allocation %lld of rank %lld fails", (long long)k, (long long)w->watched);
  rank_results_assert(RANKS, w->results, status, NULL, what);
}

/* Releases the results of a call: handles, meshes, and the caches of meshes. */
static void world_drop(world *w, void (*body)(void *user, int64_t r)) {
  for (int r = 0; r < RANKS; r++) {
    if (body == split_body)
      reshard_comm_destroy(w->subs[r]);
    reshard_mesh_release(w->owns[r]);
    reshard_mesh_release(w->meshes[r]);
    w->subs[r] = NULL;
    w->owns[r] = NULL;
    assert_int_equal(reshard_mesh_parse(w->comms[r], 0, "dp=2,tp=3@0-5", &w->meshes[r]), RESHARD_SUCCESS);
  }
}

static int64_t ranks_run(world *w, void (*body)(void *user, int64_t r)) {
  for (int64_t k = 0;; k++) {
    int64_t live = fault_live();
    fault_arm(k);
    rank_threads_run(RANKS, body, w);
    int64_t made = fault_disarm();
    fault_kind kind = fault_fired();
    assert_all(w, fault_status(kind), k);
    if (kind != FAULT_NONE) {
      assert_true(strlen(w->results[0].text) > 0);
      fault_collective_no_leak("mesh", live, w->watched, k);
      for (int r = 0; r < RANKS; r++)
        assert_true(w->subs[r] == NULL && w->owns[r] == NULL);
      rank_threads_run(RANKS, body, w);
      assert_all(w, RESHARD_SUCCESS, k);
    }
    assert_true(fault_live() > live);
    rank_threads_run(RANKS, barrier_body, w);
    assert_all(w, RESHARD_SUCCESS, k);
    world_drop(w, body);
    fault_collective_no_leak("mesh", live, w->watched, k);
    if (kind == FAULT_NONE)
      return made;
  }
}

CASE(splits_survive_a_failed_allocation_of_any_rank) {
  world w = {0};
  int64_t live = fault_live(), made = 0;
  reshard_local_options options = {RESHARD_LOCAL_OPTIONS_INIT, 1, RESHARD_ISA_AUTO, PATIENCE, NULL, 0};
  assert_int_equal(reshard_comm_create_local(RANKS, &options, w.comms), RESHARD_SUCCESS);
  for (int r = 0; r < RANKS; r++)
    assert_int_equal(reshard_mesh_parse(w.comms[r], 0, "dp=2,tp=3@0-5", &w.meshes[r]), RESHARD_SUCCESS);
  for (w.watched = ANY; w.watched < RANKS; w.watched++) {
    made += ranks_run(&w, split_body);
    made += ranks_run(&w, comm_body);
    made += ranks_run(&w, own_body);
    made += ranks_run(&w, groups_body);
  }
  assert_true(made > 100);
  for (int r = 0; r < RANKS; r++) {
    reshard_mesh_release(w.meshes[r]);
    reshard_comm_destroy(w.comms[r]);
  }
  assert_int_equal(fault_live(), live);
}

RUN_CASES
