/* DTensors on sub-meshes: what is done on mesh["tp"] is done by its group alone, as often as it likes; ranks outside
 * take no part; the groups are made once, by all ranks; what goes to another mesh is done by all. */
#include "support/fixtures/expect.h"
#include "unit/fsdp/fsdp_world.h"

#include <stdlib.h>

/* A mesh with the groups of its dims, and others. */
typedef struct fixture {
  const char *mesh;
  int64_t ranks;
} fixture;

static const fixture fixtures[] = {{"dp=2,tp=2", 4}, {"dp=2,tp=3", 6}, {"replicate=2,shard=2,tp=2", 8}};

static const reshard_placement rows = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 0};
static const reshard_placement columns = {.kind = RESHARD_PLACEMENT_SHARD, .dim = 1};
static const reshard_placement copies = {.kind = RESHARD_PLACEMENT_REPLICATE};

static reshard_mesh mesh_of(sharded_ranks *p, int64_t r, const char *text, bool groups) {
  reshard_mesh mesh = NULL;
  WELL(p, r, reshard_mesh_parse(p->comms[r], 0, text, &mesh));
  if (groups)
    WELL(p, r, reshard_mesh_init_groups(mesh, 0, NULL));
  return mesh;
}

static reshard_mesh sub_of(sharded_ranks *p, int64_t r, reshard_mesh mesh, const char *dims, int64_t of) {
  reshard_mesh sub = NULL;
  WELL(p, r, reshard_mesh_sub(mesh, dims, of, &sub));
  return sub;
}

/* The box of a matrix that the i-th of n ranks has. */
static reshard_box part_of(const int64_t *shape, const reshard_placement *placement, int64_t n, int64_t i) {
  bool cut = placement->kind == RESHARD_PLACEMENT_SHARD;
  return box_of(2, shape, cut ? placement->dim : -1, n, i, 1, 0);
}

/* A copy of a box of a matrix. */
static reshard_tensor part(const int64_t *shape, const reshard_box *box) {
  reshard_tensor tensor = NULL;
  reshard_tensor_info info;
  if (reshard_tensor_create(RESHARD_I32, 2, box->extent, &tensor) != RESHARD_SUCCESS ||
      reshard_tensor_get_info(tensor, &info) != RESHARD_SUCCESS)
    return NULL;
  for (int64_t e = 0; e < info.elements; e++)
    ((int32_t *)info.data)[e] =
        (int32_t)((box->offset[0] + e / box->extent[1]) * shape[1] + box->offset[1] + e % box->extent[1]);
  return tensor;
}

/* --- A group alone ------------------------------------------------------------------------------------------------ */

/* The group of one rank in a dim. */
typedef struct rank_state {
  reshard_mesh sub;
  int64_t size, i;      /* ranks in it; which of them this one is */
  int64_t lead;         /* the lowest of them, in the communicator */
  int64_t shape[2];     /* of this group's tensor: no other has it */
  reshard_dtensor rows; /* cut along dim 0 */
} rank_state;

static bool is_part(const rank_state *s, reshard_dtensor t, const reshard_placement *placement) {
  reshard_box box = part_of(s->shape, placement, s->size, s->i);
  return wrong_in(reshard_dtensor_local(t), 2, s->shape, &box) == 0;
}

/* The shape is inferred by the group. */
static void check_made(sharded_ranks *p, int64_t r, rank_state *s) {
  const reshard_placing placing = {s->sub, &rows, NULL};
  reshard_box box = part_of(s->shape, &rows, s->size, s->i), mine;
  reshard_tensor local = part(s->shape, &box);
  int64_t first;
  if (!WELL(p, r, reshard_dtensor_from_local(p->sharders[r], &placing, local, 0, NULL, 1, &s->rows)))
    return;
  SO(p, r, memcmp(reshard_dtensor_shape(s->rows), s->shape, sizeof s->shape) == 0 && is_part(s, s->rows, &rows));
  SO(p, r, reshard_layout_world(reshard_dtensor_layout(s->rows)) == s->size);
  WELL(p, r, reshard_dtensor_local_box(s->rows, &mine));
  SO(p, r, memcmp(&mine, &box, sizeof box) == 0);
  reshard_metadata metadata = reshard_sharded_tensor_metadata(reshard_dtensor_sharded(s->rows));
  const reshard_shard *shards = reshard_metadata_shards(metadata);
  for (int64_t i = 0; i < reshard_metadata_count(metadata); i++) {
    box = part_of(s->shape, &rows, s->size, i);
    WELL(p, r, reshard_mesh_rank_at(s->sub, &i, &first));
    SO(p, r, shards[i].placement.rank == first && memcmp(&shards[i].box, &box, sizeof box) == 0);
    WELL(p, r, reshard_dtensor_box_for(s->rows, i, &mine));
    SO(p, r, memcmp(&mine, &box, sizeof box) == 0);
  }
  reshard_tensor_release(local);
}

/* To and fro, as often as this group likes. */
static void check_moved(sharded_ranks *p, int64_t r, rank_state *s, int64_t times) {
  const reshard_placement *ways[3] = {&columns, &copies, &rows};
  reshard_dtensor at = reshard_dtensor_retain(s->rows), next;
  for (int64_t k = 0; k < times; k++) {
    const reshard_placing to = {s->sub, ways[k % 3], NULL};
    next = NULL;
    WELL(p, r, reshard_dtensor_redistribute(1, &at, &to, NULL, &next));
    SO(p, r, is_part(s, next, ways[k % 3]));
    reshard_dtensor_release(at);
    at = next;
  }
  reshard_dtensor_release(at);
}

static void check_full(sharded_ranks *p, int64_t r, rank_state *s) {
  reshard_box whole = {{0}, {s->shape[0], s->shape[1]}}, box = part_of(s->shape, &rows, s->size, s->i);
  reshard_tensor full = NULL;
  int64_t before = received(p->comms[r]);
  reshard_comm comm = NULL;
  WELL(p, r, reshard_mesh_comm(s->sub, NULL, &comm));
  int64_t came = received(comm);
  WELL(p, r, reshard_dtensor_full(s->rows, NULL, &full));
  SO(p, r, wrong_in(full, 2, s->shape, &whole) == 0);
  SO(p, r, received(comm) - came == 4 * (s->shape[0] * s->shape[1] - box.extent[0] * box.extent[1]));
  SO(p, r, received(p->comms[r]) == before);
  reshard_tensor_release(full);
}

/* From one rank of each group, with a sharded tensor in between. */
static void check_distributed(sharded_ranks *p, int64_t r, rank_state *s) {
  const reshard_properties i32 = {.dtype = RESHARD_I32};
  const reshard_placing placing = {s->sub, &columns, NULL};
  reshard_tensor whole = s->i == s->size - 1 ? whole_of(2, s->shape) : NULL;
  reshard_dtensor t = NULL, again = NULL;
  WELL(p, r, reshard_dtensor_distribute(p->sharders[r], &placing, whole, s->size - 1, 2, s->shape, &i32, NULL, &t));
  SO(p, r, is_part(s, t, &columns));
  WELL(p, r, reshard_dtensor_from_sharded(reshard_dtensor_sharded(t), s->sub, &again));
  SO(p, r,
     reshard_dtensor_local(again) == reshard_dtensor_local(t) &&
         reshard_layout_equal(reshard_dtensor_layout(again), reshard_dtensor_layout(t)));
  reshard_dtensor_release(again);
  reshard_dtensor_release(t);
  reshard_tensor_release(whole);
}

static void check_dim(sharded_ranks *p, int64_t r, reshard_mesh mesh, const char *dim) {
  rank_state s = {.sub = sub_of(p, r, mesh, dim, RESHARD_MESH_MINE)};
  s.size = reshard_mesh_size(s.sub);
  WELL(p, r, reshard_mesh_coordinate(s.sub, RESHARD_MESH_MINE, &s.i));
  WELL(p, r, reshard_mesh_rank_at(s.sub, (int64_t[]){0}, &s.lead));
  s.shape[0] = 5 + s.lead;
  s.shape[1] = 4 + s.lead % 3;
  check_made(p, r, &s);
  if (s.rows != NULL) {
    check_moved(p, r, &s, 1 + 5 * s.lead);
    for (int64_t i = 0; i < s.lead; i++)
      check_full(p, r, &s);
    check_distributed(p, r, &s);
  }
  reshard_dtensor_release(s.rows);
  reshard_mesh_release(s.sub);
}

static void groups_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const fixture *s = p->user;
  reshard_mesh mesh = mesh_of(p, r, s->mesh, true);
  for (int d = reshard_mesh_ndim(mesh) - 1; d >= 0; d--)
    check_dim(p, r, mesh, reshard_mesh_name(mesh, d));
  reshard_mesh_release(mesh);
}

CASE(test_each_group_alone) {
  for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
    sharded_ranks_check(fixtures[i].ranks, NULL, groups_body, (void *)&fixtures[i], RESHARD_SUCCESS, NULL);
  }
}

/* One rank of a group gives nothing: its group has the error, the others do not notice. */
static void fails_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const int64_t shape[2] = {7, 4};
  reshard_mesh mesh = mesh_of(p, r, "dp=2,tp=2", true), tp = sub_of(p, r, mesh, "tp", RESHARD_MESH_MINE);
  const reshard_placing placing = {tp, &rows, NULL}, to = {tp, &columns, NULL};
  reshard_box box = part_of(shape, &rows, 2, r % 2);
  if (r == 3)
    box.extent[0] += 2; /* more than the rank before it */
  reshard_tensor local = part(shape, &box), whole = NULL;
  reshard_dtensor t = NULL, moved = NULL;
  rank_result_set(&p->results[r], reshard_dtensor_from_local(p->sharders[r], &placing, local, 0, NULL, 1, &t));
  if (r < 2) {
    WELL(p, r, reshard_dtensor_full(t, NULL, &whole));
    reshard_status status = reshard_dtensor_redistribute(1, &t, r == 1 ? NULL : &to, NULL, &moved);
    SO(p, r,
       status == RESHARD_ERROR_INVALID && moved == NULL &&
           strstr(reshard_last_error(), "reshard_dtensor_redistribute: placings is NULL") != NULL);
  } else {
    SO(p, r, t == NULL);
  }
  reshard_tensor_release(whole);
  reshard_dtensor_release(t);
  reshard_tensor_release(local);
  reshard_mesh_release(tp);
  reshard_mesh_release(mesh);
}

CASE(test_one_group_fails) {
  sharded_ranks p;
  sharded_ranks_open(&p, 4, NULL);
  sharded_ranks_run(&p, fails_body, NULL);
  for (int r = 0; r < 4; r++) {
    assert_int_equal(p.wrong[r], 0);
    assert_int_equal(p.results[r].status, r < 2 ? RESHARD_SUCCESS : RESHARD_ERROR_INVALID);
  }
  print_message("%s\n", p.results[3].text);
  assert_string_equal(p.results[2].text, p.results[3].text);
  assert_non_null(strstr(p.results[3].text, "the local tensor of rank 2 is of shape 4x4 and should be of 5x4"));
  sharded_ranks_close(&p);
}

/* Rank 1 gives no placements: it finds its group all the same, and the others do not notice. */
static void no_placements_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const int64_t shape[2] = {7, 4};
  const reshard_properties i32 = {.dtype = RESHARD_I32};
  reshard_mesh mesh = mesh_of(p, r, "dp=2,tp=2", true), tp = sub_of(p, r, mesh, "tp", RESHARD_MESH_MINE);
  const reshard_placing placing = {tp, r == 1 ? NULL : &rows, NULL};
  const reshard_status wanted = r < 2 ? RESHARD_ERROR_INVALID : RESHARD_SUCCESS;
  static const char text[] = "the list of placements is NULL";
  reshard_box box = part_of(shape, &rows, 2, r % 2);
  reshard_tensor local = part(shape, &box), whole = r % 2 == 0 ? whole_of(2, shape) : NULL;
  reshard_dtensor t[2] = {NULL, NULL};
  SO(p, r, reshard_dtensor_from_local(p->sharders[r], &placing, local, 0, NULL, 1, &t[0]) == wanted);
  SO(p, r, r >= 2 || strstr(reshard_last_error(), text) != NULL);
  SO(p, r, reshard_dtensor_distribute(p->sharders[r], &placing, whole, 0, 2, shape, &i32, NULL, &t[1]) == wanted);
  SO(p, r, r >= 2 || strstr(reshard_last_error(), text) != NULL);
  for (int i = 0; i < 2; i++) {
    SO(p, r, r < 2 ? t[i] == NULL : wrong_in(reshard_dtensor_local(t[i]), 2, shape, &box) == 0);
    reshard_dtensor_release(t[i]);
  }
  reshard_tensor_release(whole);
  reshard_tensor_release(local);
  reshard_mesh_release(tp);
  reshard_mesh_release(mesh);
}

CASE(test_no_placements) { sharded_ranks_check(4, NULL, no_placements_body, NULL, RESHARD_SUCCESS, NULL); }

/* --- Sub-meshes of several dims ----------------------------------------------------------------------------------- */

/* (shard, tp) of an HSDP mesh, TP first; the same ranks as one dim. */
static void pair_body(void *user, int64_t r) {
  static const char *const wanted[2] = {"shard,tp", "tp"};
  static const int64_t shape[2] = {7, 5};
  static const int tp_first[2] = {1, 0};
  sharded_ranks *p = user;
  const reshard_placement both[2] = {rows, rows};
  const reshard_properties i32 = {.dtype = RESHARD_I32};
  reshard_mesh mesh = mesh_of(p, r, "replicate=2,shard=2,tp=2", false), flat = NULL;
  WELL(p, r, reshard_mesh_init_groups(mesh, 2, wanted));
  reshard_mesh pair = sub_of(p, r, mesh, "shard,tp", RESHARD_MESH_MINE);
  WELL(p, r, reshard_mesh_flatten(pair, "shard,tp", "all", &flat));
  const reshard_placing cut = {pair, both, tp_first}, one = {flat, &columns, NULL};
  reshard_tensor whole = whole_of(2, shape), full = NULL;
  reshard_dtensor t = NULL, moved = NULL;
  reshard_box box = box_of(2, shape, 0, 2, r % 2, 2, r / 2 % 2), column = part_of(shape, &columns, 4, r % 4),
              all = {{0}, {7, 5}};
  WELL(p, r, reshard_dtensor_distribute(p->sharders[r], &cut, whole, -1, 2, shape, &i32, NULL, &t));
  SO(p, r, wrong_in(reshard_dtensor_local(t), 2, shape, &box) == 0);
  if (r < 4) { /* the other replica does not call */
    WELL(p, r, reshard_dtensor_redistribute(1, &t, &one, NULL, &moved));
    SO(p, r, wrong_in(reshard_dtensor_local(moved), 2, shape, &column) == 0);
    WELL(p, r, reshard_dtensor_full(moved, NULL, &full));
    SO(p, r, wrong_in(full, 2, shape, &all) == 0);
  }
  char text[512] = "";
  WELL(p, r, reshard_dtensor_print(t, text, sizeof text, NULL));
  SO(p, r, strstr(text, r < 4 ? "[0,2)  0" : "[0,2)  4") != NULL); /* ranks of the communicator */
  if (r == 4)
    print_message("%s", text);
  reshard_tensor_release(full);
  reshard_dtensor_release(moved);
  reshard_dtensor_release(t);
  reshard_tensor_release(whole);
  reshard_mesh_release(flat);
  reshard_mesh_release(pair);
  reshard_mesh_release(mesh);
}

/* A DTensor on a communicator of a split is drawn with the ranks of the world. */
static void split_print_body(void *user, int64_t r) {
  static const int64_t shape[2] = {4, 6}, cube[3] = {2, 2, 2};
  sharded_ranks *p = user;
  const reshard_placement both[2] = {rows, rows};
  reshard_comm half = NULL;
  reshard_sharder sharder = NULL;
  reshard_mesh mesh = NULL;
  reshard_tensor whole = whole_of(2, shape), third = whole_of(3, cube);
  reshard_dtensor t = NULL, list = NULL;
  char text[512] = "";
  WELL(p, r, reshard_comm_split(p->comms[r], r < 2, -r, &half)); /* 5, 4, 3, 2, and 1, 0 */
  WELL(p, r, reshard_sharder_create(half, NULL, &sharder));
  WELL(p, r, reshard_mesh_parse(half, 0, r < 2 ? "1x2" : "2x2", &mesh));
  const reshard_placing placing = {mesh, both, NULL};
  WELL(p, r,
       reshard_dtensor_distribute(sharder, &placing, whole, -1, 2, shape, &(reshard_properties){.dtype = RESHARD_I32},
                                  NULL, &t));
  WELL(p, r,
       reshard_dtensor_distribute(sharder, &placing, third, -1, 3, cube, &(reshard_properties){.dtype = RESHARD_I32},
                                  NULL, &list));
  WELL(p, r, reshard_dtensor_print(t, text, sizeof text, NULL));
  SO(p, r, strstr(text, r < 2 ? " of global ranks [1,0], " : " of global ranks [5,4,3,2], ") != NULL);
  SO(p, r, strstr(text, r < 2 ? "\n[0,2)  1\n[2,4)  0\n" : "\n[0,1)  5\n[1,2)  4\n[2,3)  3\n[3,4)  2\n") != NULL);
  WELL(p, r, reshard_dtensor_print(list, text, sizeof text, NULL));
  SO(p, r, strstr(text, r < 2 ? "\nrank 1: [0,1)x" : "\nrank 5: [0,1)x") != NULL);
  if (r == 0 || r == 2)
    print_message("%s", text);
  reshard_dtensor_release(list);
  reshard_dtensor_release(t);
  reshard_tensor_release(third);
  reshard_tensor_release(whole);
  reshard_mesh_release(mesh);
  reshard_sharder_destroy(sharder);
  reshard_comm_destroy(half);
}

CASE(test_split_print) { sharded_ranks_check(6, NULL, split_print_body, NULL, RESHARD_SUCCESS, NULL); }

/* --- Outside, and to other meshes --------------------------------------------------------------------------------- */

/* The row of rank 0 as all ranks name it; then the row of rank 2, the whole mesh, and the first row again. */
static void rows_body(void *user, int64_t r) {
  static const int64_t shape[2] = {5, 6};
  sharded_ranks *p = user;
  const reshard_placement both[2] = {rows, columns};
  reshard_mesh mesh = mesh_of(p, r, "pp=2,tp=2", true);
  reshard_mesh first = sub_of(p, r, mesh, "tp", 0), second = sub_of(p, r, mesh, "tp", 2);
  const reshard_placing from = {first, &rows, NULL}, to = {second, &columns, NULL}, over = {mesh, both, NULL},
                        within = {first, &columns, NULL};
  reshard_box none = {{0}, {0, 0}}, box = r < 2 ? part_of(shape, &rows, 2, r) : none, all = {{0}, {5, 6}};
  reshard_tensor local = part(shape, &box), whole = NULL;
  reshard_dtensor t = NULL, moved = NULL, next = NULL;
  reshard_sharder_stats before = {0}, after = {0};
  if (r >= 2) {
    SO(p, r,
       reshard_dtensor_from_local(p->sharders[r], &from, NULL, 0, NULL, 1, &t) == RESHARD_ERROR_INVALID &&
           strstr(reshard_last_error(), "is outside of the sub-mesh tp=2@0-1") != NULL);
    SO(p, r, reshard_dtensor_from_local(p->sharders[r], &from, NULL, 2, shape, 1, &t) == RESHARD_ERROR_INVALID);
  }
  WELL(p, r, reshard_dtensor_from_local(p->sharders[r], &from, local, 2, shape, r < 2, &t));
  WELL(p, r, reshard_sharder_get_stats(p->sharders[r], &before));
  for (int64_t k = 0; k < 3 + r / 2; k++) { /* outside it is local, and nothing comes of it */
    WELL(p, r, reshard_dtensor_full(t, NULL, &whole));
    SO(p, r, r < 2 ? wrong_in(whole, 2, shape, &all) == 0 : whole == NULL);
    reshard_tensor_release(whole);
    WELL(p, r, reshard_dtensor_redistribute(1, &t, &within, NULL, &moved));
    SO(p, r, (reshard_dtensor_local(moved) != NULL) == (r < 2));
    reshard_dtensor_release(moved);
  }
  WELL(p, r, reshard_sharder_get_stats(p->sharders[r], &after)); /* plans are the group's alone */
  SO(p, r, after.misses == before.misses && after.hits == before.hits);
  WELL(p, r, reshard_dtensor_redistribute(1, &t, &to, NULL, &moved));
  box = part_of(shape, &columns, 2, r % 2);
  SO(p, r, r >= 2 ? wrong_in(reshard_dtensor_local(moved), 2, shape, &box) == 0 : reshard_dtensor_local(moved) == NULL);
  WELL(p, r, reshard_dtensor_redistribute(1, &moved, &over, NULL, &next));
  box = box_of(2, shape, 1, 2, r % 2, 2, r / 2);
  SO(p, r, wrong_in(reshard_dtensor_local(next), 2, shape, &box) == 0);
  reshard_dtensor_release(moved);
  WELL(p, r, reshard_dtensor_redistribute(1, &next, &from, NULL, &moved));
  box = part_of(shape, &rows, 2, r);
  SO(p, r, r < 2 ? wrong_in(reshard_dtensor_local(moved), 2, shape, &box) == 0 : reshard_dtensor_local(moved) == NULL);
  reshard_dtensor_release(next);
  /* Two tensors, of which one goes elsewhere: one plan of all ranks. */
  const reshard_dtensor pair[2] = {t, moved};
  const reshard_placing ways[2] = {within, to};
  reshard_dtensor results[2] = {NULL, NULL};
  WELL(p, r, reshard_dtensor_redistribute(2, pair, ways, NULL, results));
  box = part_of(shape, &columns, 2, r % 2);
  SO(p, r, wrong_in(reshard_dtensor_local(results[r / 2]), 2, shape, &box) == 0);
  SO(p, r, reshard_dtensor_local(results[1 - r / 2]) == NULL);
  reshard_dtensor_release(results[0]);
  reshard_dtensor_release(results[1]);
  reshard_dtensor_release(moved);
  reshard_dtensor_release(t);
  reshard_tensor_release(local);
  reshard_mesh_release(second);
  reshard_mesh_release(first);
  reshard_mesh_release(mesh);
}

/* Each from the row that it is in: no mesh that all agree on. */
static void disagree_body(void *user, int64_t r) {
  static const int64_t shape[2] = {5, 6};
  sharded_ranks *p = user;
  const reshard_placement both[2] = {copies, rows};
  reshard_mesh mesh = mesh_of(p, r, "dp=2,tp=2", true), tp = sub_of(p, r, mesh, "tp", RESHARD_MESH_MINE);
  const reshard_placing from = {tp, &rows, NULL}, to = {mesh, both, NULL};
  const reshard_properties i32 = {.dtype = RESHARD_I32};
  reshard_dtensor t = NULL, moved = NULL;
  WELL(p, r, reshard_dtensor_empty(p->sharders[r], &from, 2, shape, &i32, NULL, &t));
  rank_result_set(&p->results[r], reshard_dtensor_redistribute(1, &t, &to, NULL, &moved));
  SO(p, r, moved == NULL);
  reshard_dtensor_release(t);
  reshard_mesh_release(tp);
  reshard_mesh_release(mesh);
}

/* Two meshes cut the ranks by other dims of one name: a sharded tensor of one's group is none of the other's. */
static void foreign_group_body(void *user, int64_t r) {
  static const int64_t shape[2] = {6, 4};
  sharded_ranks *p = user;
  reshard_mesh meshes[2] = {mesh_of(p, r, "dp=2,tp=2", true), mesh_of(p, r, "tp=2,dp=2", true)}, tp[2];
  for (int i = 0; i < 2; i++)
    tp[i] = sub_of(p, r, meshes[i], "tp", RESHARD_MESH_MINE);
  const reshard_placing placing = {tp[0], &rows, NULL};
  const reshard_properties i32 = {.dtype = RESHARD_I32};
  reshard_dtensor t = NULL, never = NULL;
  WELL(p, r, reshard_dtensor_empty(p->sharders[r], &placing, 2, shape, &i32, NULL, &t));
  SO(p, r, reshard_dtensor_from_sharded(reshard_dtensor_sharded(t), tp[1], &never) == RESHARD_ERROR_INVALID);
  SO(p, r,
     never == NULL &&
         strstr(reshard_last_error(), r % 2 == 0 ? "one of the mesh tp=2@0,2" : "one of the mesh tp=2@1,3") != NULL);
  reshard_dtensor_release(t);
  for (int i = 0; i < 2; i++) {
    reshard_mesh_release(tp[i]);
    reshard_mesh_release(meshes[i]);
  }
}

/* All ranks have a sharded tensor with arrays on the second row's ranks alone. As a DTensor it is the row's. */
static void shared_by_all_body(void *user, int64_t r) {
  static const int64_t shape[2] = {6, 4};
  sharded_ranks *p = user;
  reshard_mesh mesh = mesh_of(p, r, "dp=2,tp=2", true), row = sub_of(p, r, mesh, "tp", 2);
  const reshard_properties i32 = {.dtype = RESHARD_I32};
  reshard_layout layout = NULL;
  reshard_sharded_tensor sharded = NULL;
  reshard_dtensor t = NULL;
  reshard_tensor full = NULL;
  WELL(p, r, reshard_mesh_layout(row, 2, shape, &rows, NULL, &layout));
  WELL(p, r, reshard_sharded_tensor_zeros(p->sharders[r], layout, &i32, NULL, &sharded));
  WELL(p, r, reshard_dtensor_from_sharded(sharded, row, &t));
  SO(p, r, reshard_layout_world(reshard_dtensor_layout(t)) == (r < 2 ? 4 : 2));
  SO(p, r, (reshard_dtensor_local(t) != NULL) == (r >= 2));
  for (int64_t k = 0; k < r / 2; k++) { /* the row alone */
    WELL(p, r, reshard_dtensor_full(t, NULL, &full));
    reshard_tensor_release(full);
  }
  WELL(p, r, reshard_comm_barrier(p->comms[r]));
  reshard_dtensor_release(t);
  reshard_sharded_tensor_release(sharded);
  reshard_layout_release(layout);
  reshard_mesh_release(row);
  reshard_mesh_release(mesh);
}

CASE(sharded_tensors_of_another_group_become_no_dtensor) {
  sharded_ranks_check(4, NULL, foreign_group_body, NULL, RESHARD_SUCCESS, NULL);
}
CASE(sharded_tensors_of_all_ranks_become_dtensors_of_a_group) {
  sharded_ranks_check(4, NULL, shared_by_all_body, NULL, RESHARD_SUCCESS, NULL);
}
CASE(test_two_dims) { sharded_ranks_check(8, NULL, pair_body, NULL, RESHARD_SUCCESS, NULL); }
CASE(test_to_another_mesh) { sharded_ranks_check(4, NULL, rows_body, NULL, RESHARD_SUCCESS, NULL); }
CASE(test_meshes_that_differ) { sharded_ranks_check(4, NULL, disagree_body, NULL, RESHARD_ERROR_MISMATCH, "layout"); }

/* --- Groups that are missing, and how they are made --------------------------------------------------------------- */

static void missing_body(void *user, int64_t r) {
  static const int64_t shape[2] = {5, 6};
  static const char missing[] = "all ranks make those of dp=2,tp=2@0-3 by reshard_mesh_init_groups";
  sharded_ranks *p = user;
  reshard_mesh mesh = mesh_of(p, r, "dp=2,tp=2", false), tp = sub_of(p, r, mesh, "tp", RESHARD_MESH_MINE);
  const reshard_placing placing = {tp, &rows, NULL};
  const reshard_properties i32 = {.dtype = RESHARD_I32};
  reshard_box box = part_of(shape, &rows, 2, r % 2);
  reshard_tensor local = part(shape, &box), whole = whole_of(2, shape);
  reshard_dtensor t = NULL;
  SO(p, r,
     reshard_dtensor_from_local(p->sharders[r], &placing, local, 0, NULL, 1, &t) == RESHARD_ERROR_INVALID &&
         strstr(reshard_last_error(), missing) != NULL);
  SO(p, r,
     reshard_dtensor_empty(p->sharders[r], &placing, 2, shape, &i32, NULL, &t) == RESHARD_ERROR_INVALID &&
         strstr(reshard_last_error(), missing) != NULL);
  SO(p, r,
     reshard_dtensor_distribute(p->sharders[r], &placing, whole, -1, 2, shape, &i32, NULL, &t) ==
             RESHARD_ERROR_INVALID &&
         strstr(reshard_last_error(), missing) != NULL);
  SO(p, r, t == NULL);
  if (r == 0)
    print_message("%s\n", reshard_last_error());
  /* Of one dim alone: the other is missing still. */
  WELL(p, r, reshard_mesh_init_groups(mesh, 1, (const char *const[]){"dp"}));
  SO(p, r, reshard_dtensor_empty(p->sharders[r], &placing, 2, shape, &i32, NULL, &t) == RESHARD_ERROR_INVALID);
  WELL(p, r, reshard_mesh_init_groups(mesh, 0, NULL));
  WELL(p, r, reshard_dtensor_from_local(p->sharders[r], &placing, local, 0, NULL, 1, &t));
  reshard_mesh_release(mesh); /* its group stays, with what is on it */
  reshard_mesh_release(tp);
  reshard_tensor_release(whole);
  WELL(p, r, reshard_dtensor_full(t, NULL, &whole));
  reshard_tensor_release(whole);
  reshard_dtensor_release(t);
  reshard_tensor_release(local);
}

CASE(test_missing_groups) { sharded_ranks_check(4, NULL, missing_body, NULL, RESHARD_SUCCESS, NULL); }

/* Ranks that ask for different groups, or of which one fails: the same error on all, and nothing is kept. */
static void unlike_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const int what = *(const int *)p->user;
  const char *const given[3][3] = {{"dp", "tp", "dp,tp"}, {"dp", "cp", "tp"}, {"dp", "tp", "tp"}};
  reshard_mesh mesh = mesh_of(p, r, "dp=2,tp=2", false);
  reshard_comm comm = NULL;
  WELL(p, r, reshard_mesh_comm(mesh, "dp", &comm)); /* there already: it does not meet the others by itself */
  const char *const *dims = given[r == 2 && what < 3 ? what : 0];
  rank_result_set(&p->results[r], reshard_mesh_init_groups(mesh,
                                                           r == 2 && what == 0   ? 2
                                                           : what == 3 && r == 1 ? -1
                                                                                 : 3,
                                                           dims));
  const reshard_placing placing = {sub_of(p, r, mesh, "tp", RESHARD_MESH_MINE), &rows, NULL};
  const reshard_properties i32 = {.dtype = RESHARD_I32};
  reshard_dtensor t = NULL;
  SO(p, r, reshard_dtensor_empty(p->sharders[r], &placing, 2, (int64_t[]){4, 4}, &i32, NULL, &t) != RESHARD_SUCCESS);
  reshard_mesh_release(placing.mesh);
  reshard_mesh_release(mesh);
}

CASE(test_unlike_groups) {
  static const char *const texts[] = {
      "ranks 0 and 2 make different groups: groups of dp=2,tp=2@0-3: 0 1 0,1 (",
      "the mesh has no dim named cp; names: dp, tp",
      "ranks 0 and 2 make different groups",
      "reshard_mesh_init_groups: -1 groups, list given",
  };
  for (int what = 0; what < 4; what++) {
    sharded_ranks p;
    sharded_ranks_open(&p, 4, NULL);
    sharded_ranks_run(&p, unlike_body, &what);
    print_message("%s\n", p.results[0].text);
    sharded_ranks_assert(&p, what % 2 == 0 ? RESHARD_ERROR_MISMATCH : RESHARD_ERROR_INVALID, texts[what]);
    sharded_ranks_close(&p);
  }
  BAD(reshard_mesh_init_groups(NULL, 0, NULL), "reshard_mesh_init_groups: mesh is NULL");
  reshard_mesh dry;
  GOOD(reshard_mesh_parse(NULL, 0, "2x2", &dry));
  BAD(reshard_mesh_init_groups(dry, 0, NULL), "reshard_mesh_init_groups: a dry mesh has no communicator");
  reshard_mesh_release(dry);
}

/* Ranks outside of the mesh make the groups with the others, and are in none. */
static void outside_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  reshard_mesh mesh = mesh_of(p, r, "dp=2,tp=2@1-4", true);
  reshard_comm comm = NULL, again = NULL;
  if (r == 3) { /* made: nobody else calls */
    WELL(p, r, reshard_mesh_comm(mesh, "tp", &comm));
    WELL(p, r, reshard_mesh_comm(mesh, "dp", &again));
    SO(p, r,
       reshard_comm_size(comm) == 2 && reshard_comm_global_ranks(comm)[0] == 3 && again != comm &&
           reshard_comm_global_ranks(again)[0] == 1);
  }
  reshard_mesh_release(mesh);
}

CASE(test_outside_of_the_mesh) { sharded_ranks_check(6, NULL, outside_body, NULL, RESHARD_SUCCESS, NULL); }

RUN_CASES
