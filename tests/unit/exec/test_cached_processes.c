/* Redistributing again and again between processes, which keep what they know of each other: how often they meet,
 * arrays that move in the pool, private memory in between, and ranks that fail or are killed. */
#include "comm/node/node.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scale.h"
#include "support/processes/process_matrix.h"

#include <reshard/dtensor.h>
#include <reshard/sync.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 96, COLUMNS = 80, HELD = 4 };
#define GOOD(call) CHILD_CHECK((call) == RESHARD_SUCCESS)

/* One rank: a matrix, cut in rows or in columns. */
typedef struct world {
  reshard_comm comm;
  reshard_sharder sharder;
  reshard_mesh mesh;
  reshard_placement placement[2];
  int order[2];
  int64_t n, rank;
} world;

static reshard_placing placing_of(const world *w, int cut) {
  return (reshard_placing){w->mesh, &w->placement[cut], &w->order[cut]};
}

static void open_world(processes *all, int64_t rank, const reshard_sharder_options *options, world *w) {
  char text[32];
  *w = (world){.n = all->n, .rank = rank};
  GOOD(processes_comm(all, rank, NULL, TIMEOUT_MS, &w->comm));
  GOOD(reshard_sharder_create(w->comm, options, &w->sharder));
  snprintf(text, sizeof text, "tp=%lld", (long long)all->n);
  GOOD(reshard_mesh_parse(w->comm, 0, text, &w->mesh));
  GOOD(reshard_placements_parse("S0", w->mesh, &w->placement[0], &w->order[0]));
  GOOD(reshard_placements_parse("S1", w->mesh, &w->placement[1], &w->order[1]));
}

static void close_world(world *w) {
  reshard_mesh_release(w->mesh);
  reshard_sharder_destroy(w->sharder);
  reshard_comm_destroy(w->comm);
}

static float value_at(int64_t row, int64_t column, int turn) { return (float)(row * COLUMNS + column + 17 * turn); }

/* This rank's part, element by element: written, or compared. */
static bool walk(const world *w, int cut, float *local, int turn, bool writes) {
  int64_t rows = cut == 0 ? ROWS / w->n : ROWS, columns = cut == 1 ? COLUMNS / w->n : COLUMNS;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) {
      float value = value_at(i + (cut == 0 ? w->rank * rows : 0), j + (cut == 1 ? w->rank * columns : 0), turn);
      if (writes)
        local[i * columns + j] = value;
      else if (local[i * columns + j] != value)
        return false;
    }
  return true;
}

static float *data_of(reshard_dtensor tensor) {
  reshard_tensor_info info;
  GOOD(reshard_tensor_get_info(reshard_dtensor_local(tensor), &info));
  return info.data;
}

/* In rows, of the sharder's pool. */
static reshard_dtensor make_tensor(const world *w, int turn) {
  const int64_t shape[] = {ROWS, COLUMNS};
  const reshard_properties properties = {.dtype = RESHARD_F32};
  reshard_placing placing = placing_of(w, 0);
  reshard_dtensor tensor;
  GOOD(reshard_dtensor_empty(w->sharder, &placing, 2, shape, &properties, NULL, &tensor));
  walk(w, 0, data_of(tensor), turn, true);
  return tensor;
}

/* The same, in memory of malloc. */
static reshard_dtensor make_private(const world *w, int turn) {
  const int64_t shape[] = {ROWS, COLUMNS}, local[] = {ROWS / w->n, COLUMNS};
  reshard_placing placing = placing_of(w, 0);
  reshard_dtensor tensor;
  reshard_tensor part;
  GOOD(reshard_tensor_create(RESHARD_F32, 2, local, &part));
  GOOD(reshard_dtensor_from_local(w->sharder, &placing, part, 2, shape, 0, &tensor));
  reshard_tensor_release(part);
  walk(w, 0, data_of(tensor), turn, true);
  return tensor;
}

typedef struct cost {
  uint64_t meetings;
  int64_t messages, bytes;
} cost;

/* Moves a tensor, checks the result, and counts. */
static reshard_dtensor move(const world *w, reshard_dtensor tensor, int cut, int turn, cost *c) {
  reshard_comm_stats before, after;
  reshard_placing placing = placing_of(w, cut);
  reshard_dtensor moved = NULL;
  GOOD(reshard_comm_get_stats(w->comm, &before));
  uint64_t meetings = rs_node_of(w->comm)->meetings;
  GOOD(reshard_dtensor_redistribute(1, &tensor, &placing, NULL, &moved));
  GOOD(reshard_comm_get_stats(w->comm, &after));
  *c = (cost){rs_node_of(w->comm)->meetings - meetings, after.received_messages - before.received_messages,
              after.received_bytes - before.received_bytes};
  CHILD_CHECK(walk(w, cut, data_of(moved), turn, false));
  CHILD_CHECK(walk(w, 1 - cut, data_of(tensor), turn, false)); /* it has not changed */
  return moved;
}

/* --- Back and forth ----------------------------------------------------------------------------------------------- */

/* Each result is the next source. Some are held for a while, so that the pool gives other places by turns. */
static void go_back_and_forth(processes *all, int64_t rank, void *user) {
  const reshard_sharder_options *options = user;
  int turns = (int)(60 * test_scale()) + 8;
  reshard_dtensor held[HELD] = {NULL};
  world w;
  cost c;
  open_world(all, rank, options, &w);
  reshard_dtensor tensor = make_tensor(&w, 0);
  for (int turn = 1; turn <= turns; turn++) {
    reshard_dtensor moved = move(&w, tensor, turn % 2, 0, &c);
    CHILD_CHECK(c.meetings == 2 && c.messages == 0 && c.bytes > 0);
    reshard_dtensor_release(held[turn * 7 % 5 % HELD]);
    held[turn * 7 % 5 % HELD] = tensor;
    tensor = moved;
  }
  for (int i = 0; i < HELD; i++)
    reshard_dtensor_release(held[i]);
  reshard_dtensor_release(tensor);
  close_world(&w);
}

CASE(test_back_and_forth) {
  /* with a cache, without one, and with a pool that gives memory back to the system */
  const reshard_sharder_options options[] = {{.size = RESHARD_SHARDER_OPTIONS_INIT},
                                             {.size = RESHARD_SHARDER_OPTIONS_INIT, .cached_plans = -1},
                                             {.size = RESHARD_SHARDER_OPTIONS_INIT, .keep_bytes = -1},
                                             {.size = RESHARD_SHARDER_OPTIONS_INIT, .cached_plans = 1}};
  for (size_t i = 0; i < sizeof options / sizeof *options; i++)
    for (int64_t n = 2; n <= 4; n += 2)
      assert_int_equal(processes_run(n, 0, go_back_and_forth, (void *)&options[i]), 0);
}

/* --- Private memory ----------------------------------------------------------------------------------------------- */

/* One rank by turns has private memory, then nobody has. All take another path, and the former one again. */
static void mix_memory(processes *all, int64_t rank, void *user) {
  world w;
  cost c;
  open_world(all, rank, NULL, &w);
  for (int turn = 0; turn < 24; turn++) {
    int64_t owner = turn % 6 < 3 ? -1 : turn % all->n;
    reshard_dtensor tensor = owner == rank ? make_private(&w, turn) : make_tensor(&w, turn);
    reshard_dtensor moved = move(&w, tensor, 1, turn, &c);
    CHILD_CHECK(owner < 0 ? c.messages == 0 : c.messages > 0);
    /* Two where the last call was like it: one to agree, one to execute. */
    CHILD_CHECK(turn % 3 == 0 ? c.meetings <= 12 : c.meetings == 2);
    reshard_dtensor_release(moved);
    reshard_dtensor_release(tensor);
  }
  close_world(&w);
}

CASE(private_memory_is_packed_in_that_call) {
  for (int64_t n = 2; n <= 4; n += 2)
    assert_int_equal(processes_run(n, 0, mix_memory, NULL), 0);
}

/* Where the direct path is wished, private memory is an error on all ranks; then it goes on. */
static void refuse_private(processes *all, int64_t rank, void *user) {
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .path = RESHARD_PATH_DIRECT};
  world w;
  cost c;
  open_world(all, rank, &options, &w);
  reshard_placing placing = placing_of(&w, 1);
  for (int turn = 0; turn < 4; turn++) {
    reshard_dtensor tensor = rank == 1 ? make_private(&w, turn) : make_tensor(&w, turn), moved = NULL;
    CHILD_CHECK(reshard_dtensor_redistribute(1, &tensor, &placing, NULL, &moved) == RESHARD_ERROR_UNSUPPORTED);
    CHILD_CHECK(strstr(reshard_last_error(), "rank 1 has a source of entry 0") != NULL && moved == NULL);
    reshard_dtensor_release(tensor);
    tensor = make_tensor(&w, turn);
    moved = move(&w, tensor, 1, turn, &c);
    CHILD_CHECK(c.messages == 0 && c.meetings == 2);
    reshard_dtensor_release(moved);
    reshard_dtensor_release(tensor);
  }
  close_world(&w);
}

CASE(explicit_path_refuses_private_memory) { assert_int_equal(processes_run(2, 0, refuse_private, NULL), 0); }

/* --- Failures ----------------------------------------------------------------------------------------------------- */

/* A rank comes with another placing, between calls that are cached: an error on all, and nothing has changed. */
static void differ_between(processes *all, int64_t rank, void *user) {
  world w;
  cost c;
  open_world(all, rank, NULL, &w);
  reshard_dtensor tensor = make_tensor(&w, 0), wrong = NULL;
  for (int turn = 0; turn < 6; turn++) {
    reshard_placing placing = placing_of(&w, rank == turn % all->n ? 0 : 1);
    CHILD_CHECK(reshard_dtensor_redistribute(1, &tensor, &placing, NULL, &wrong) == RESHARD_ERROR_MISMATCH);
    CHILD_CHECK(wrong == NULL);
    reshard_dtensor_release(move(&w, tensor, 1, 0, &c));
    CHILD_CHECK(c.meetings == 2 && c.messages == 0);
  }
  reshard_dtensor_release(tensor);
  close_world(&w);
}

/* A rank is killed between two cached calls. */
static void die_between(processes *all, int64_t rank, void *user) {
  int turns = *(int *)user;
  world w;
  cost c;
  open_world(all, rank, NULL, &w);
  reshard_dtensor tensor = make_tensor(&w, 0), moved = NULL;
  for (int turn = 0; turn < turns; turn++)
    reshard_dtensor_release(move(&w, tensor, 1, 0, &c));
  if (rank == 1)
    raise(SIGKILL);
  reshard_placing placing = placing_of(&w, 1);
  CHILD_CHECK(reshard_dtensor_redistribute(1, &tensor, &placing, NULL, &moved) == RESHARD_ERROR_PEER);
  CHILD_CHECK(strstr(reshard_last_error(), "rank 1 is gone") != NULL && moved == NULL);
  CHILD_CHECK(walk(&w, 0, data_of(tensor), 0, false));
  CHILD_CHECK(reshard_dtensor_redistribute(1, &tensor, &placing, NULL, &moved) == RESHARD_ERROR_PEER);
  reshard_dtensor_release(tensor);
  close_world(&w);
}

CASE(call_that_fails_in_one_process_fails_in_all) {
  assert_int_equal(processes_run(4, 0, differ_between, NULL), 0);
  for (int turns = 0; turns < 3; turns++)
    assert_int_equal(processes_run(4, 1u << 1, die_between, &turns), 0);
}

/* --- One rank's tensors to all ------------------------------------------------------------------------------------ */

enum { TENSORS = 40 };

/* Tensors of a pool go straight to the others, in the meetings of one plan, and those of private memory in messages. */
static void sync_tensors(processes *all, int64_t rank, void *user) {
  const bool *own = user;
  reshard_device device;
  reshard_comm comm;
  reshard_tensor tensors[TENSORS];
  reshard_comm_stats before, after;
  uint64_t meetings = 0;
  open_device(*own, &device);
  GOOD(processes_comm(all, rank, NULL, TIMEOUT_MS, &comm));
  float *data[TENSORS];
  for (int64_t i = 0; i < TENSORS; i++)
    tensors[i] = alloc_on(device, (i * 37 % 11 + 1) * 64, (void **)&data[i]);
  for (int turn = 0; turn < 5; turn++) {
    for (int64_t i = 0; i < TENSORS; i++)
      memset(data[i], rank == 2 ? (int)(i + turn) : -1, (size_t)(i * 37 % 11 + 1) * 64);
    GOOD(reshard_comm_get_stats(comm, &before));
    meetings = rs_node_of(comm)->meetings;
    GOOD(reshard_sync_tensors(comm, 2, TENSORS, tensors, NULL, NULL, NULL, NULL));
    meetings = rs_node_of(comm)->meetings - meetings;
    GOOD(reshard_comm_get_stats(comm, &after));
    CHILD_CHECK((after.received_messages > before.received_messages) == (!*own && rank != 2));
    CHILD_CHECK(!*own || meetings <= 4);
    for (int64_t i = 0; i < TENSORS; i++)
      for (int64_t b = 0; b < (i * 37 % 11 + 1) * 64; b++)
        CHILD_CHECK(((unsigned char *)data[i])[b] == (unsigned char)(i + turn));
  }
  for (int64_t i = 0; i < TENSORS; i++)
    reshard_tensor_release(tensors[i]);
  reshard_device_release(device);
  reshard_comm_destroy(comm);
}

CASE(syncs_between_processes_keep_their_plans) {
  for (int own = 0; own < 2; own++) {
    bool shared = own != 0;
    assert_int_equal(processes_run(4, 0, sync_tensors, &shared), 0);
  }
}

RUN_CASES
