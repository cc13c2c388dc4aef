/* The k-th allocation fails, for every k, in each call of metadata: local ones, and the collective one, where all ranks
 * have the same status and text, whichever rank it was. */
#include "comm/comm.h"
#include "metadata/metadata.h"
#include "support/fault_collective.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"

#include <reshard/tensor.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, TENSORS = 2, PATIENCE = 60000, ANY = -1 };

static const reshard_properties f32 = {.dtype = RESHARD_F32};
static const int64_t shape[2] = {11, 6};

/* --- Local calls ------------------------------------------------------------------------------------------------ */

typedef struct given {
  reshard_layout layout;
  reshard_metadata metadata; /* of the layout */
  reshard_group group;
  reshard_tensor tensor;
  reshard_remote_device placements[RANKS];
  unsigned char *string;
  size_t size;
} given;

static void drop_metadata(fault_output *out) { reshard_metadata_release(out->object); }
static void drop_layout(fault_output *out) { reshard_layout_release(out->object); }
static void drop_workers(fault_output *out) { reshard_workers_free(out->object); }

static bool good_metadata(const fault_output *out, const void *with) {
  return reshard_metadata_equal(out->object, ((const given *)with)->metadata);
}
static bool good_any(const fault_output *out, const void *with) { return out->object != NULL; }

/* The status of a call that wrote to `made` (as it was before: out's), and out with it. */
#define MAKE(type, call) \
  const given *g = with; \
  type made = out->object; \
  reshard_status status = (call); \
  out->object = made; \
  (void)g; \
  return status

static reshard_status metadata_create(fault_output *out, const void *with) {
  MAKE(reshard_metadata,
       reshard_metadata_create(&f32, 2, shape, g->metadata->n, reshard_metadata_shards(g->metadata), &made));
}
static reshard_status from_chunk(fault_output *out, const void *with) {
  MAKE(reshard_metadata, reshard_metadata_from_chunk(&f32, 2, shape, 0, RANKS, g->placements, &made));
}
static reshard_status from_layout(fault_output *out, const void *with) {
  MAKE(reshard_metadata, reshard_metadata_from_layout(&f32, g->layout, &g->group, NULL, &made));
}
static reshard_status to_layout(fault_output *out, const void *with) {
  MAKE(reshard_layout, reshard_metadata_layout(g->metadata, &g->group, 0, &made));
}
static reshard_status recalc(fault_output *out, const void *with) {
  reshard_metadata rows, made = out->object;
  const given *g = with;
  fault_mark(false); /* its input is made each time */
  reshard_status status = reshard_metadata_from_chunk(&f32, 2, shape, 0, RANKS, g->placements, &rows);
  fault_mark(true);
  if (status == RESHARD_SUCCESS)
    status = reshard_metadata_recalc(rows, 0, &made);
  reshard_metadata_release(rows);
  out->object = made;
  return status;
}
static reshard_status deserialize(fault_output *out, const void *with) {
  MAKE(reshard_metadata, reshard_metadata_deserialize(g->string, g->size, &made));
}
static reshard_status build_local(fault_output *out, const void *with) {
  const reshard_local_shard shard = {{{{0, 0}, {11, 6}}, {4, RESHARD_DEVICE_CPU, -1}}, ((const given *)with)->tensor};
  MAKE(reshard_metadata, reshard_metadata_build_local(2, shape, 1, &shard, 4, &made));
}

static reshard_status merge(fault_output *out, const void *with) {
  const reshard_metadata list[3] = {NULL, ((const given *)with)->metadata, NULL};
  MAKE(reshard_metadata, reshard_metadata_merge(3, list, -1, &made));
}

static reshard_status metadata_check(fault_output *out, const void *with) {
  RS_TRY(reshard_metadata_check(((const given *)with)->metadata));
  out->number = 1;
  return RESHARD_SUCCESS;
}
static reshard_status reshard_metadata_by_rank(fault_output *out, const void *with) {
  reshard_shard shards[16];
  int64_t order[RANKS];
  RS_TRY(reshard_build_reshard_metadata(2, shape, 1, RANKS, ((const given *)with)->placements, 16, shards, order));
  out->number = 1;
  return RESHARD_SUCCESS;
}
static bool good_one(const fault_output *out, const void *with) { return out->number == 1; }

/* The table is as it was after a name that could not be added. */
static reshard_status workers(fault_output *out, const void *with) {
  reshard_workers made;
  RS_TRY(reshard_workers_create(&made));
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < 20 && status == RESHARD_SUCCESS; i++) {
    const char name[3] = {(char)('a' + i * 7 % 20), 'x', '\0'};
    reshard_remote_device device;
    status = reshard_workers_add(made, name, i);
    const char text[] = {name[0], 'x', '/', 'c', 'p', 'u', '\0'};
    if (status != RESHARD_SUCCESS) {
      char why[128];
      strncpy(why, reshard_last_error(), sizeof why - 1);
      why[sizeof why - 1] = '\0';
      assert_int_equal(reshard_remote_device_parse(text, made, &device), RESHARD_ERROR_INVALID);
      rs_error_set(why);
    } else {
      assert_int_equal(reshard_remote_device_parse(text, made, &device), RESHARD_SUCCESS);
      assert_int_equal(device.rank, i);
    }
  }
  if (status != RESHARD_SUCCESS)
    reshard_workers_free(made);
  else
    out->object = made;
  return status;
}

CASE(local_metadata_survive_any_failed_allocation) {
  static const int64_t global[RANKS] = {4, 1, 9};
  given g = {.group = {RANKS, global}};
  for (int64_t r = 0; r < RANKS; r++)
    g.placements[r] = (reshard_remote_device){global[r], RESHARD_DEVICE_CUDA, (int)r};
  assert_int_equal(reshard_layout_parse("cyclic(3x1;2x5)", 2, shape, RANKS, &g.layout), RESHARD_SUCCESS);
  assert_int_equal(reshard_metadata_from_layout(&f32, g.layout, &g.group, NULL, &g.metadata), RESHARD_SUCCESS);
  assert_int_equal(reshard_tensor_create(RESHARD_F32, 2, shape, &g.tensor), RESHARD_SUCCESS);
  assert_int_equal(reshard_metadata_serialize(g.metadata, NULL, 0, &g.size), RESHARD_SUCCESS);
  g.string = malloc(g.size);
  assert_int_equal(reshard_metadata_serialize(g.metadata, g.string, g.size, NULL), RESHARD_SUCCESS);
  const struct {
    fault_local p;
    int64_t least; /* allocations */
  } calls[] = {
      {{"reshard_metadata_create", metadata_create, good_metadata, drop_metadata, &g}, 1},
      {{"reshard_metadata_from_chunk", from_chunk, good_any, drop_metadata, &g}, 3},
      {{"reshard_metadata_from_layout", from_layout, good_metadata, drop_metadata, &g}, 4},
      {{"reshard_metadata_layout", to_layout, good_any, drop_layout, &g}, 8},
      {{"reshard_metadata_recalc", recalc, good_any, drop_metadata, &g}, 3},
      {{"reshard_metadata_deserialize", deserialize, good_metadata, drop_metadata, &g}, 1},
      {{"reshard_metadata_build_local", build_local, good_any, drop_metadata, &g}, 1},
      {{"reshard_metadata_merge", merge, good_metadata, drop_metadata, &g}, 10},
      {{"reshard_metadata_check", metadata_check, good_one, NULL, &g}, 4},
      {{"reshard_build_reshard_metadata", reshard_metadata_by_rank, good_one, NULL, &g}, 2},
      {{"reshard_workers_add", workers, good_any, drop_workers, &g}, 22},
  };
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
    assert_true(fault_local_run(&calls[i].p) >= calls[i].least);
  free(g.string);
  reshard_tensor_release(g.tensor);
  reshard_metadata_release(g.metadata);
  reshard_layout_release(g.layout);
}

/* --- Tables of workers ------------------------------------------------------------------------------------------- */

static void check_worker(reshard_workers workers, const char *name, int64_t rank) {
  char text[64];
  reshard_remote_device device;
  snprintf(text, sizeof text, "%s/cpu", name);
  if (reshard_remote_device_parse(text, workers, &device) != RESHARD_SUCCESS || device.rank != rank)
    fail_msg("%s: %s", text, reshard_last_error());
}

/* A worker is added to a table, which is as it was, and takes the worker then. */
CASE(tables_of_workers_survive_any_failed_allocation) {
  reshard_workers workers;
  assert_int_equal(reshard_workers_create(&workers), RESHARD_SUCCESS);
  int64_t failed = 0, live = -1;
  for (int64_t rank = 0; rank < 40; rank++) { /* tables grow on the way */
    char name[16], other[16];
    snprintf(name, sizeof name, "w%d", (int)rank);
    snprintf(other, sizeof other, "v%d", (int)rank);
    reshard_status status = RESHARD_ERROR_OUT_OF_MEMORY;
    int64_t global = rank;
    for (int64_t k = 0; status != RESHARD_SUCCESS; k++) {
      global = rank + 100 * k;
      fault_mark(true);
      fault_arm(k);
      status = reshard_workers_add(workers, k % 2 == 0 ? name : other, global);
      fault_disarm();
      fault_mark(false);
      if (status == RESHARD_SUCCESS) {
        check_worker(workers, k % 2 == 0 ? name : other, global);
        break;
      }
      assert_int_equal(status, RESHARD_ERROR_OUT_OF_MEMORY);
      failed++;
    }
    if (rank > 0)
      assert_int_equal(reshard_workers_add(workers, "again", global), RESHARD_ERROR_INVALID);
    live = fault_live();
  }
  assert_true(failed >= 40 && live > 0);
  reshard_workers_free(workers);
}

/* --- The collective call ---------------------------------------------------------------------------------------- */

/* As the local communicator exchanges; by records; by records, each rank as a process of its own. */
enum { REACH, RECORDS, PROCESSES, WAYS };

typedef struct world {
  reshard_comm comms[RANKS];
  rs_comm_ops ops;
  reshard_metadata locals[RANKS][TENSORS], globals[RANKS][TENSORS];
  rank_result results[RANKS];
  int64_t watched;
} world;

static void metadata_body(void *user, int64_t r) {
  world *w = user;
  fault_mark(w->watched == ANY || w->watched == r);
  reshard_status status =
      reshard_metadata_build_global_many(w->comms[r], TENSORS, w->locals[r], RESHARD_SUCCESS, w->globals[r]);
  fault_mark(false);
  rank_result_set(&w->results[r], status);
}

static void open_world(world *w, int way) {
  reshard_local_options options = {RESHARD_LOCAL_OPTIONS_INIT, 1, RESHARD_ISA_AUTO, PATIENCE, NULL, 0};
  assert_int_equal(reshard_comm_create_local(RANKS, &options, w->comms), RESHARD_SUCCESS);
  w->ops = *w->comms[0]->ops;
  w->ops.addressable = false;
  for (int64_t r = 0; r < RANKS; r++) {
    if (way != REACH)
      w->comms[r]->ops = &w->ops;
    w->comms[r]->locals = way == PROCESSES ? 1 : RANKS;
    for (int i = 0; i < TENSORS; i++) {
      const reshard_shard shard = {{{4 * r, 0}, {rs_min(4, 11 - 4 * r), 6}}, {r, RESHARD_DEVICE_CPU, -1}};
      assert_int_equal(reshard_metadata_create(&f32, 2, shape, 1, &shard, &w->locals[r][i]), RESHARD_SUCCESS);
    }
  }
}

static void close_world(world *w) {
  for (int64_t r = 0; r < RANKS; r++) {
    for (int i = 0; i < TENSORS; i++)
      reshard_metadata_release(w->locals[r][i]);
    reshard_comm_destroy(w->comms[r]);
  }
}

static void reset(world *w) {
  for (int64_t r = 0; r < RANKS; r++)
    for (int i = 0; i < TENSORS; i++)
      w->globals[r][i] = (reshard_metadata)w;
}

static void assert_all(const world *w, reshard_status status, int64_t k) {
  char what[80];
  snprintf(what, sizeof what, "allocation %lld of rank %lld fails", (long long)k, (long long)w->watched);
  rank_results_assert(RANKS, w->results, status, "out of memory", what);
  for (int64_t r = 0; r < RANKS && status != RESHARD_SUCCESS; r++)
    for (int i = 0; i < TENSORS; i++)
      assert_ptr_equal(w->globals[r][i], w);
}

static void works(world *w, int64_t k) {
  reset(w);
  rank_threads_run(RANKS, metadata_body, w);
  assert_all(w, RESHARD_SUCCESS, k);
  for (int64_t r = 0; r < RANKS; r++)
    for (int i = 0; i < TENSORS; i++) {
      assert_int_equal(reshard_metadata_count(w->globals[r][i]), RANKS);
      reshard_metadata_release(w->globals[r][i]);
    }
}

CASE(merged_metadata_survive_a_failed_allocation_of_any_rank) {
  for (int way = 0; way < WAYS; way++)
    for (int64_t watched = ANY; watched < RANKS; watched++) {
      int64_t before = fault_live(), made = 0;
      world w = {.watched = watched};
      open_world(&w, way);
      for (int64_t k = 0;; k++) {
        int64_t live = fault_live();
        reset(&w);
        fault_arm(k);
        rank_threads_run(RANKS, metadata_body, &w);
        made = fault_disarm();
        fault_kind kind = fault_fired();
        assert_all(&w, fault_status(kind), k);
        for (int64_t r = 0; r < RANKS && kind == FAULT_NONE; r++)
          for (int i = 0; i < TENSORS; i++)
            reshard_metadata_release(w.globals[r][i]);
        fault_collective_no_leak("build_global", live, watched, k);
        works(&w, k);
        if (kind == FAULT_NONE)
          break;
      }
      assert_true(made >= 2);
      close_world(&w);
      assert_int_equal(fault_live(), before);
    }
}

RUN_CASES
