/* The k-th allocation fails while DTensors are made and moved: all ranks get the same status and text, nothing is left
 * behind, and right after the same call succeeds. And what redistribute allocates for a pair of placings that it knows:
 * its result. */
#include "base/base.h"
#include "bench/cli/util.h"
#include "support/fault_collective.h"
#include "support/fixtures/case.h"

#include <reshard/dtensor.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, SEED = 5 };

static const int64_t shape[2] = {7, 5};
static const reshard_properties f64 = {.dtype = RESHARD_F64};
static const reshard_placement rows = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0},
                               columns = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 1},
                               mixed = {.kind = RESHARD_PLACEMENT_STRIDED_SHARD, .dim = 0, .split_factor = 2};

static int64_t dtensor_wrong(reshard_dtensor t, int64_t r) {
  return array_check(reshard_dtensor_layout(t), r, 0, reshard_dtensor_local(t), SEED);
}

/* --- Collective calls -------------------------------------------------------------------------------------------- */

typedef struct act {
  reshard_mesh meshes[RANKS];
  reshard_dtensor tensors[RANKS], made[RANKS][2];
  reshard_tensor wholes[RANKS], result[RANKS];
} act;

static reshard_status redistribute(sharded_ranks *p, void *user, int64_t r) {
  act *a = user;
  const reshard_placing to[2] = {{a->meshes[r], &columns, NULL}, {a->meshes[r], &mixed, NULL}};
  return reshard_dtensor_redistribute(2, (reshard_dtensor[]){a->tensors[r], a->tensors[r]}, to, NULL, a->made[r]);
}

static reshard_status full(sharded_ranks *p, void *user, int64_t r) {
  act *a = user;
  return reshard_dtensor_full(a->tensors[r], NULL, &a->result[r]);
}

static reshard_status from_local(sharded_ranks *p, void *user, int64_t r) {
  act *a = user;
  const reshard_placing at = {a->meshes[r], &rows, NULL};
  return reshard_dtensor_from_local(p->sharders[r], &at, reshard_dtensor_local(a->tensors[r]), 2, NULL, 0,
                                    &a->made[r][0]);
}

static reshard_status distribute(sharded_ranks *p, void *user, int64_t r) {
  act *a = user;
  const reshard_placing at = {a->meshes[r], &mixed, NULL};
  return reshard_dtensor_distribute(p->sharders[r], &at, r == 1 ? a->wholes[r] : NULL, 1, 2, shape, &f64, NULL,
                                    &a->made[r][0]);
}

static void open_act(sharded_ranks *p, void *user) {
  act *a = user;
  const int64_t size = RANKS;
  reshard_layout single = layout_from_text("rank(0)", 2, shape, 1);
  for (int64_t r = 0; r < RANKS; r++) {
    CLI_TRY("mesh: ", reshard_mesh_create(p->comms[r], 0, 1, &size, NULL, 0, NULL, &a->meshes[r]));
    const reshard_placing at = {a->meshes[r], &rows, NULL};
    CLI_TRY("tensor: ", reshard_dtensor_empty(p->sharders[r], &at, 2, shape, &f64, NULL, &a->tensors[r]));
    array_fill(reshard_dtensor_layout(a->tensors[r]), r, 0, reshard_dtensor_local(a->tensors[r]), SEED);
    CLI_TRY("whole: ", reshard_tensor_create(RESHARD_F64, 2, shape, &a->wholes[r]));
    array_fill(single, 0, 0, a->wholes[r], SEED);
    a->made[r][0] = a->made[r][1] = NULL;
    a->result[r] = NULL;
  }
  reshard_layout_release(single);
}

static void close_act(void *user) {
  act *a = user;
  for (int64_t r = 0; r < RANKS; r++) {
    reshard_dtensor_release(a->tensors[r]);
    reshard_dtensor_release(a->made[r][0]);
    reshard_dtensor_release(a->made[r][1]);
    reshard_tensor_release(a->wholes[r]);
    reshard_tensor_release(a->result[r]);
    reshard_mesh_release(a->meshes[r]);
  }
}

static bool act_is(const act *a, int64_t r, bool done) {
  reshard_layout single = layout_from_text("rank(0)", 2, shape, 1);
  bool made = a->made[r][0] != NULL || a->result[r] != NULL,
       good = made == done && dtensor_wrong(a->tensors[r], r) == 0;
  for (int i = 0; i < 2; i++)
    good = good && (a->made[r][i] == NULL || dtensor_wrong(a->made[r][i], r) == 0);
  good = good && (a->result[r] == NULL || array_check(single, 0, 0, a->result[r], SEED) == 0);
  reshard_layout_release(single);
  return good;
}
static bool same(const void *a, int64_t r) { return act_is(a, r, false); }
static bool good(const void *a, int64_t r) { return act_is(a, r, true); }

CASE(collective_calls_of_dtensors_survive_any_failed_allocation) {
  static const struct {
    const char *name;
    reshard_status (*call)(sharded_ranks *p, void *act, int64_t r);
  } calls[] = {{"redistribute", redistribute}, {"full", full}, {"from_local", from_local}, {"distribute", distribute}};
  act a = {0};
  int64_t failed = 0;
  for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
    for (int64_t watched = FAULT_ANY_RANK; watched < RANKS; watched += 1 + (c != 0)) {
      const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT,
                                               .path = watched == 1 ? RESHARD_PATH_PACKED : RESHARD_PATH_AUTO,
                                               .cached_plans = watched == 2 ? -1 : 0};
      failed += fault_collective_run(&(fault_collective){calls[c].name, RANKS, watched, &options, &a, open_act,
                                                         calls[c].call, same, good, close_act},
                                     1);
    }
  assert_true(failed > 200);
}

/* --- Local calls ------------------------------------------------------------------------------------------------- */

typedef struct local {
  sharded_ranks p;
  reshard_mesh mesh;
  reshard_placing placing;
  reshard_dtensor tensor;
  reshard_sharded_tensor sharded;
  reshard_tensor whole;
  reshard_metadata metadata;
} local;

#define MAKE(name, type, expression) \
  static reshard_status name(fault_output *out, const void *with) { \
    const local *l = with; \
    type made = out->object; \
    reshard_status status = (expression); \
    out->object = made; \
    return status; \
  }
MAKE(make_empty, reshard_dtensor, reshard_dtensor_empty(l->p.sharders[0], &l->placing, 2, shape, &f64, NULL, &made))
MAKE(make_from_local, reshard_dtensor,
     reshard_dtensor_from_local(l->p.sharders[0], &l->placing, l->whole, 2, shape, 0, &made))
MAKE(make_parts, reshard_dtensor,
     reshard_dtensor_distribute(l->p.sharders[0], &l->placing, l->whole, -1, 2, shape, &f64, NULL, &made))
MAKE(make_from_sharded, reshard_dtensor, reshard_dtensor_from_sharded(l->sharded, l->mesh, &made))
MAKE(make_metadata, reshard_metadata, reshard_dtensor_metadata(l->tensor, &made))
MAKE(make_rewritten, reshard_metadata, reshard_metadata_rewrite(l->metadata, l->whole, 0, &made))

static reshard_status local_shape(fault_output *out, const void *with) {
  const local *l = with;
  const int64_t coordinate[1] = {0};
  int64_t made[2];
  RS_TRY(reshard_dtensor_local_shape(&l->placing, 2, shape, coordinate, made, NULL));
  out->number = made[0];
  return RESHARD_SUCCESS;
}

static reshard_status placements_parse(fault_output *out, const void *with) {
  const local *l = with;
  reshard_placement placement;
  int order;
  RS_TRY(reshard_placements_parse("S1;order=0", l->mesh, &placement, &order));
  out->number = placement.dim;
  return RESHARD_SUCCESS;
}

static void drop_dtensor(fault_output *out) { reshard_dtensor_release(out->object); }
static void drop_metadata(fault_output *out) { reshard_metadata_release(out->object); }
CASE(local_calls_of_dtensors_survive_any_failed_allocation) {
  const int64_t one = 1;
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .cached_plans = -1};
  const reshard_remote_device cuda = {0, RESHARD_DEVICE_CUDA, 0};
  local l;
  int64_t live = fault_live();
  sharded_ranks_open(&l.p, 1, &options);
  CLI_TRY("mesh: ", reshard_mesh_create(l.p.comms[0], 0, 1, &one, NULL, 0, NULL, &l.mesh));
  l.placing = (reshard_placing){l.mesh, &rows, NULL};
  CLI_TRY("tensor: ", reshard_dtensor_empty(l.p.sharders[0], &l.placing, 2, shape, &f64, NULL, &l.tensor));
  l.sharded = reshard_dtensor_sharded(l.tensor);
  CLI_TRY("whole: ", reshard_tensor_create(RESHARD_F64, 2, shape, &l.whole));
  reshard_tensor_info info;
  CLI_TRY("whole: ", reshard_tensor_get_info(l.whole, &info));
  memset(info.data, 0, sizeof(double[7][5]));
  CLI_TRY("metadata: ", reshard_metadata_from_chunk(&f64, 2, shape, 0, 1, &cuda, &l.metadata));
  const fault_local calls[] = {
      {"reshard_dtensor_empty", make_empty, fault_any_output, drop_dtensor, &l},
      {"reshard_dtensor_from_local", make_from_local, fault_any_output, drop_dtensor, &l},
      {"reshard_dtensor_from_sharded", make_from_sharded, fault_any_output, drop_dtensor, &l},
      {"reshard_dtensor_metadata", make_metadata, fault_any_output, drop_metadata, &l},
      {"reshard_metadata_rewrite", make_rewritten, fault_any_output, drop_metadata, &l},
      {"reshard_dtensor_local_shape", local_shape, fault_any_output, NULL, &l},
      {"reshard_placements_parse", placements_parse, fault_any_output, NULL, &l},
      {"reshard_dtensor_distribute", make_parts, fault_any_output, drop_dtensor, &l},
  };
  reshard_dtensor warm; /* what the sharder keeps stays from here on */
  CLI_TRY("parts: ", reshard_dtensor_distribute(l.p.sharders[0], &l.placing, l.whole, -1, 2, shape, &f64, NULL, &warm));
  reshard_dtensor_release(warm);
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
    assert_true(fault_local_run(&calls[i]) >= 1);
  reshard_dtensor_release(l.tensor);
  reshard_tensor_release(l.whole);
  reshard_metadata_release(l.metadata);
  reshard_mesh_release(l.mesh);
  sharded_ranks_close(&l.p);
  assert_int_equal(fault_live(), live);
}

/* The sharded tensor of a DTensor is made when it is asked for; without memory it is NULL, and the DTensor as it was.
 */
CASE(sharded_tensor_of_a_dtensor_is_null_without_memory) {
  const int64_t one = 1;
  sharded_ranks p;
  reshard_mesh mesh;
  reshard_dtensor tensor;
  int64_t live = fault_live(), k = 0;
  sharded_ranks_open(&p, 1, NULL);
  CLI_TRY("mesh: ", reshard_mesh_create(p.comms[0], 0, 1, &one, NULL, 0, NULL, &mesh));
  CLI_TRY("tensor: ",
          reshard_dtensor_empty(p.sharders[0], &(reshard_placing){mesh, &rows, NULL}, 2, shape, &f64, NULL, &tensor));
  reshard_sharded_tensor sharded = NULL;
  for (; sharded == NULL; k++) {
    fault_mark(true);
    fault_arm(k);
    sharded = reshard_dtensor_sharded(tensor);
    fault_disarm();
    fault_mark(false);
    assert_true((sharded == NULL) == (fault_fired() == FAULT_MEMORY));
  }
  assert_true(k > 4);
  reshard_dtensor_release(tensor);
  reshard_mesh_release(mesh);
  sharded_ranks_close(&p);
  assert_int_equal(fault_live(), live);
}

/* --- Costs of a known pair --------------------------------------------------------------------------------------- */

typedef struct pair {
  pthread_barrier_t barrier;
  int64_t before, after, live;
} pair;

/* To and fro; counted between two barriers, within which ranks do nothing but redistribute. */
static void pair_body(void *user, int64_t r) {
  enum { WARM = 3, TIMES = 10 };
  sharded_ranks *p = user;
  pair *x = p->user;
  const int64_t size = RANKS;
  reshard_mesh mesh;
  reshard_dtensor tensor, results[2 * TIMES];
  CLI_TRY("mesh: ", reshard_mesh_create(p->comms[r], 0, 1, &size, NULL, 0, NULL, &mesh));
  const reshard_placing sides[2] = {{mesh, &rows, NULL}, {mesh, &columns, NULL}};
  CLI_TRY("tensor: ", reshard_dtensor_empty(p->sharders[r], &sides[0], 2, shape, &f64, NULL, &tensor));
  array_fill(reshard_dtensor_layout(tensor), r, 0, reshard_dtensor_local(tensor), SEED);
  reshard_status status = RESHARD_SUCCESS;
  for (int i = 1; i <= 2 * WARM && status == RESHARD_SUCCESS; i++) {
    reshard_dtensor next = NULL;
    status = reshard_dtensor_redistribute(1, &tensor, &sides[i % 2], NULL, &next);
    reshard_dtensor_release(tensor);
    tensor = next;
  }
  pthread_barrier_wait(&x->barrier);
  if (r == 0) {
    x->before = fault_calls();
    x->live = fault_live();
  }
  pthread_barrier_wait(&x->barrier);
  for (int i = 0; i < 2 * TIMES && status == RESHARD_SUCCESS; i++)
    status = reshard_dtensor_redistribute(1, i == 0 ? &tensor : &results[i - 1], &sides[1 - i % 2], NULL, &results[i]);
  pthread_barrier_wait(&x->barrier);
  if (r == 0) {
    x->after = fault_calls();
    x->live = fault_live() - x->live;
  }
  pthread_barrier_wait(&x->barrier);
  rank_result_set(&p->results[r], status);
  for (int i = 0; i < 2 * TIMES; i++) {
    p->wrong[r] += dtensor_wrong(results[i], r);
    reshard_dtensor_release(results[i]);
  }
  reshard_dtensor_release(tensor);
  reshard_mesh_release(mesh);
}

CASE(test_known_pair) {
  sharded_ranks p;
  pair x;
  pthread_barrier_init(&x.barrier, NULL, RANKS);
  sharded_ranks_open(&p, RANKS, NULL);
  sharded_ranks_run(&p, pair_body, &x);
  sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  /* The handle, its list of arrays, the tensor, its storage, the memory, and the pool's record, of which each pool had
   * one to spare; and nothing was freed, so nothing else was allocated. */
  assert_int_equal(x.after - x.before, x.live);
  assert_int_equal(x.after - x.before, 6 * 20 * RANKS - RANKS);
  sharded_ranks_close(&p);
  pthread_barrier_destroy(&x.barrier);
}

RUN_CASES
