/* The cost of resharding in place and of redistributing beyond the copies. A small tensor goes to and fro between two
 * layouts whose plans are in the cache (sharded_reshard, dtensor_redistribute). Beside it runs the bare execute of the
 * same plans by prepared transfers (sharded_execute). The figure is the difference per item: an item is one reshard, by
 * all ranks. Then one large tensor goes there and back, as bench/compare has it with PyTorch. Its sibling is a straight
 * copy of the part of each rank there and back, into new memory where the tensor has new memory. */
#include "bench/micro/micro.h"

#include "bench/launch/rank_threads.h"
#include "device/cpu/cpu.h"

#include <reshard/dtensor.h>
#include <reshard/reshard.h>

#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, SIDE = 8192 };

typedef enum sharded_way {
  EXECUTE,
  RESHARD,
  REDISTRIBUTE,
  STRAIGHT,
  RESHARD_NEW,
  REDISTRIBUTE_NEW,
  STRAIGHT_NEW
} sharded_way; /* STRAIGHT: no tensor, but copies; NEW: memory that is freed goes back to the system */

static int is_straight(sharded_way way) { return way == STRAIGHT || way == STRAIGHT_NEW; }
static int is_dtensor(sharded_way way) { return way == REDISTRIBUTE || way == REDISTRIBUTE_NEW; }

typedef struct sharded_world sharded_world;

typedef struct sharded_rank {
  sharded_world *world;
  reshard_comm comm;
  reshard_sharder sharder;
  reshard_sharded_tensor tensor, sides[2]; /* resharded; arrays of the bare executes */
  reshard_plan plans[2];                   /* to layouts[i] from the other one */
  reshard_transfer transfers[2];
  reshard_mesh mesh;
  reshard_dtensor dtensor;
  void *copies[2]; /* what straight copies go between, one of them NULL where memory is new */
  int failed;
} sharded_rank;

struct sharded_world {
  int64_t n, rounds; /* ranks; there and back so often in a run */
  int64_t bytes;     /* of the whole tensor */
  sharded_way way;
  reshard_layout layouts[2];
  sharded_rank ranks[RANKS];
  rank_pool *pool;
  rs_device *device; /* of straight copies: each rank's thread copies alone */
};

/* Replaces the rank's DTensor by one with the other placement. */
static int redistribute_rank(sharded_rank *m, int dim) {
  const reshard_placement shard = {.kind = RESHARD_PLACEMENT_SHARD, .dim = dim};
  const reshard_placing placing = {m->mesh, &shard, NULL};
  reshard_dtensor result;
  if (reshard_dtensor_redistribute(1, &m->dtensor, &placing, NULL, &result))
    return 1;
  reshard_dtensor_release(m->dtensor);
  m->dtensor = result;
  return 0;
}

static int copy_rank(sharded_rank *m, int to) {
  const sharded_world *w = m->world;
  const size_t bytes = (size_t)(w->bytes / w->n);
  if (m->copies[to] == NULL && w->device->memory->alloc(w->device, bytes, &m->copies[to]))
    return 1;
  rs_device_cpu_straight(w->device, m->copies[to], m->copies[1 - to], (int64_t)bytes, true);
  if (w->way == STRAIGHT_NEW) {
    w->device->memory->free(w->device, m->copies[1 - to]);
    m->copies[1 - to] = NULL;
  }
  return 0;
}

static int move_rank(sharded_rank *m, int to) {
  if (is_straight(m->world->way))
    return copy_rank(m, to);
  if (m->world->way == EXECUTE)
    return reshard_execute(m->transfers[to], NULL) != RESHARD_SUCCESS;
  if (is_dtensor(m->world->way))
    return redistribute_rank(m, to);
  return reshard_sharded_tensor_reshard(1, &m->tensor, &m->world->layouts[to], NULL) != RESHARD_SUCCESS;
}

static int create_dtensor(sharded_rank *m, const reshard_properties *properties) {
  const reshard_placement rows = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0};
  if (reshard_mesh_create(m->comm, 0, 1, &m->world->n, NULL, 0, NULL, &m->mesh))
    return 1;
  const reshard_placing placing = {m->mesh, &rows, NULL};
  return reshard_dtensor_empty(m->sharder, &placing, 2, reshard_layout_shape(m->world->layouts[0]), properties, NULL,
                               &m->dtensor) != RESHARD_SUCCESS;
}

static int create_copies(sharded_rank *m) {
  rs_device *device = m->world->device;
  const size_t bytes = (size_t)(m->world->bytes / m->world->n);
  if (device->memory->alloc(device, bytes, &m->copies[0]))
    return 1;
  memset(m->copies[0], 1, bytes);
  return 0;
}

/* Plans, arrays and transfers; collective. */
static int create_tensors(sharded_rank *m) {
  sharded_world *w = m->world;
  const reshard_properties properties = {.dtype = RESHARD_F32};
  void *data[2];
  if (is_straight(w->way))
    return create_copies(m);
  if (is_dtensor(w->way))
    return create_dtensor(m, &properties);
  if (reshard_sharded_tensor_zeros(m->sharder, w->layouts[0], &properties, NULL, &m->tensor))
    return 1;
  for (int i = 0; i < 2 && w->way == EXECUTE; i++) {
    reshard_tensor array;
    reshard_tensor_info info;
    if (reshard_sharded_tensor_zeros(m->sharder, w->layouts[i], &properties, NULL, &m->sides[i]) ||
        reshard_sharded_tensor_local(m->sides[i], 0, &array, NULL) || reshard_tensor_get_info(array, &info))
      return 1;
    data[i] = info.data;
  }
  for (int to = 0; to < 2 && w->way == EXECUTE; to++) {
    reshard_entry entry = {RESHARD_ENTRY_INIT, .src = w->layouts[1 - to], .dst = w->layouts[to], .dtype = RESHARD_F32};
    reshard_arrays arrays = {RESHARD_ARRAYS_INIT, .src = &data[1 - to], .dst = &data[to]};
    if (reshard_plan_create(1, &entry, reshard_comm_rank(m->comm), NULL, &m->plans[to]) ||
        reshard_transfer_create(m->plans[to], m->comm, &arrays, NULL, &m->transfers[to]))
      return 1;
  }
  return 0;
}

/* The parts of one rank in the preparation and in a run. */
static void prepare_rank(void *user, int64_t rank) {
  sharded_rank *m = &((sharded_world *)user)->ranks[rank];
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT,
                                           .keep_bytes = m->world->way >= RESHARD_NEW ? -1 : 0};
  m->failed = reshard_sharder_create(m->comm, &options, &m->sharder) || create_tensors(m);
}

static void run_rank(void *user, int64_t rank) {
  sharded_world *w = user;
  sharded_rank *m = &w->ranks[rank];
  for (int64_t i = 0; i < w->rounds && !m->failed; i++)
    m->failed = move_rank(m, 1) || move_rank(m, 0);
}

static int run_ranks(sharded_world *w, void (*body)(void *user, int64_t rank)) {
  int failed = 0;
  rank_pool_run(w->pool, w->n, body, w);
  for (int64_t r = 0; r < w->n; r++)
    failed |= w->ranks[r].failed;
  return failed;
}

static int sharded_run(void *state) { return run_ranks(state, run_rank); }

static void sharded_drop(void *state) {
  sharded_world *w = state;
  rank_pool_destroy(w->pool);
  for (int64_t r = 0; r < w->n; r++) {
    sharded_rank *m = &w->ranks[r];
    for (int i = 0; i < 2; i++) {
      if (w->device != NULL)
        w->device->memory->free(w->device, m->copies[i]);
      reshard_transfer_destroy(m->transfers[i]);
      reshard_plan_destroy(m->plans[i]);
      reshard_sharded_tensor_release(m->sides[i]);
    }
    reshard_sharded_tensor_release(m->tensor);
    reshard_dtensor_release(m->dtensor);
    reshard_mesh_release(m->mesh);
    reshard_sharder_destroy(m->sharder);
    reshard_comm_destroy(m->comm);
  }
  for (int i = 0; i < 2; i++)
    reshard_layout_release(w->layouts[i]);
  if (w->device != NULL)
    w->device->destroy(w->device);
  free(w);
}

/* Rows to columns and back: a small tensor of so many ranks, or a large one (parameter 0). The memory of a world that
 * cannot be made is lost: the process ends. */
static void *sharded_make(const micro_case *of, int64_t *items) {
  const sharded_way way = (sharded_way)of->more[0];
  const int64_t n = of->parameter > 0 ? of->parameter : RANKS, side = of->parameter > 0 ? 4 : SIDE;
  const int64_t rounds = of->parameter > 0 ? 64 : 1;
  sharded_world *w = calloc(1, sizeof *w);
  reshard_comm comms[RANKS];
  const int64_t shape[2] = {side, side};
  *w = (sharded_world){.n = n, .rounds = rounds, .way = way, .pool = rank_pool_create()};
  w->bytes = side * side * 4;
  if ((is_straight(way) && rs_device_cpu_create(1, RESHARD_ISA_AUTO, &w->device)) ||
      reshard_comm_create_local(n, NULL, comms) || reshard_layout_parse("chunk(0)", 2, shape, n, &w->layouts[0]) ||
      reshard_layout_parse("chunk(1)", 2, shape, n, &w->layouts[1]))
    return NULL;
  for (int64_t r = 0; r < n; r++) {
    sharded_rank *m = &w->ranks[r];
    *m = (sharded_rank){.world = w, .comm = comms[r]};
  }
  *items = 2 * rounds;
  if (run_ranks(w, prepare_rank) == 0 && sharded_run(w) == 0) /* the plans are in the caches from now on */
    return w;
  sharded_drop(w);
  return NULL;
}

/* Bytes of the tensor, once for each time that it moves. */
static int64_t sharded_bytes(const void *state) {
  const sharded_world *w = state;
  return 2 * w->rounds * w->bytes;
}

#define CASE(name, ranks, way) \
  { name, ranks, 0, sharded_make, sharded_run, sharded_drop, {way}, NULL }
#define PAIR(name, way, straight) CASE(name, 0, way), CASE(name "_memcpy", 0, straight)
static const micro_case micro_sharded[] = {
    CASE("sharded_execute", 1, EXECUTE),
    CASE("sharded_reshard", 1, RESHARD),
    CASE("dtensor_redistribute", 1, REDISTRIBUTE),
    CASE("sharded_execute", 4, EXECUTE),
    CASE("sharded_reshard", 4, RESHARD),
    CASE("dtensor_redistribute", 4, REDISTRIBUTE),
    PAIR("execute_there_and_back_4_ranks", EXECUTE, STRAIGHT),
    PAIR("sharded_reshard_there_and_back_4_ranks", RESHARD, STRAIGHT),
    PAIR("sharded_reshard_there_and_back_4_ranks_new_memory", RESHARD_NEW, STRAIGHT_NEW),
    PAIR("dtensor_redistribute_there_and_back_4_ranks", REDISTRIBUTE, STRAIGHT),
    PAIR("dtensor_redistribute_there_and_back_4_ranks_new_memory", REDISTRIBUTE_NEW, STRAIGHT_NEW),
};
MICRO_TABLE(micro_sharded, sharded_bytes)
