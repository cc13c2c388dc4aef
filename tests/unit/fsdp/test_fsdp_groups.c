/* FSDP with TP on groups of a mesh: a DTensor on the TP dim or on the TP group's own mesh is cut alike; a pipeline's
 * stage works for itself; the order in which PyTorch cuts, row by row; requires_grad of what is flattened. */
#include "fsdp_world.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scale.h"

/* A mesh of FSDP and TP, and the dim that TP cuts, -1: none. */
typedef struct grid {
  int64_t fsdp, tp;
  int dim;
} grid;

static reshard_mesh mesh_of(sharded_ranks *p, int64_t r, const char *text) {
  reshard_mesh mesh = NULL;
  WELL(p, r, reshard_mesh_parse(p->comms[r], 0, text, &mesh));
  WELL(p, r, reshard_mesh_init_groups(mesh, 0, NULL));
  return mesh;
}

/* FSDP first, where both cut dim 0: the row search with its cuts the other way round. */
static reshard_box fsdp_first(const grid *g, const int64_t *shape, int64_t f, int64_t t) {
  return g->dim == 0 ? box_of(2, shape, 0, g->fsdp, f, g->tp, t) : box_of(2, shape, g->dim, g->tp, t, g->fsdp, f);
}

/* --- PyTorch's order ---------------------------------------------------------------------------------------------- */

static void check_first(sharded_ranks *p, int64_t r, reshard_mesh mesh, const grid *g, int64_t n) {
  const int64_t shape[2] = {n, 3};
  reshard_tensor whole = whole_of(2, shape), gathered = NULL;
  reshard_tree leaf = tp_leaf(p->sharders[r], mesh, whole, g->dim), chunk = NULL, again = NULL;
  reshard_box box = fsdp_first(g, shape, r / g->tp, r % g->tp), tp = box_of(2, shape, g->dim, g->tp, r % g->tp, 1, 0);
  reshard_dtensor tensor = NULL;
  reshard_tensor_info info = {0};
  WELL(p, r, reshard_fsdp_chunk_dtensor_ordered(p->sharders[r], leaf, mesh, RESHARD_FSDP_FSDP_FIRST, NULL, &chunk));
  WELL(p, r, reshard_state_get_dtensor(chunk, &tensor));
  SO(p, r, wrong_in(local_of(chunk), 2, shape, &box) == 0);
  SO(p, r, reshard_dtensor_order(tensor)[0] == 0 && reshard_dtensor_placements(tensor)[0].dim == 0);
  reshard_tensor_get_info(local_of(chunk), &info);
  SO(p, r, info.requires_grad == 0 && info.contiguous);
  WELL(p, r, reshard_fsdp_all_gather(p->sharders[r], chunk, mesh, NULL, &again));
  WELL(p, r, reshard_tree_get_tensor(again, &gathered));
  SO(p, r, wrong_in(gathered, 2, shape, &tp) == 0);
  reshard_tree_release(again);
  reshard_tree_release(chunk);
  reshard_tree_release(leaf);
  reshard_tensor_release(whole);
}

static void first_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const grid *g = p->user;
  char text[32];
  snprintf(text, sizeof text, "dp=%d,tp=%d", (int)g->fsdp, (int)g->tp);
  reshard_mesh mesh = mesh_of(p, r, text);
  for (int64_t n = 0; n <= 13; n += 1 + (test_scaled(10, 1) < 10))
    check_first(p, r, mesh, g, n);
  reshard_mesh_release(mesh);
}

CASE(test_fsdp_first) {
  for (int64_t fsdp = 1; fsdp <= 3; fsdp++)
    for (int64_t tp = 1; tp <= 3; tp++) {
      sharded_ranks p;
      sharded_ranks_open(&p, fsdp * tp, NULL);
      for (int dim = -1; dim <= 1; dim++) {
        grid g = {fsdp, tp, dim};
        sharded_ranks_run(&p, first_body, &g);
        sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
      }
      sharded_ranks_close(&p);
    }
}

/* First row and rows of each rank, as _chunk_dtensor of PyTorch 2.15 leaves them: by the table of functions. */
static void torch_body(void *user, int64_t r) {
  static const int64_t of_2x2[4][2] = {{0, 3}, {3, 3}, {6, 3}, {9, 3}};
  static const int64_t of_3x2[6][2] = {{0, 2}, {2, 1}, {3, 2}, {5, 1}, {6, 1}, {7, 1}};
  sharded_ranks *p = user;
  bool small = p->n == 4;
  const int64_t shape[2] = {small ? 12 : 8, 1}, *mine = small ? of_2x2[r] : of_3x2[r];
  reshard_mesh mesh = mesh_of(p, r, small ? "dp=2,tp=2" : "dp=3,tp=2"), fsdp = NULL;
  reshard_tensor whole = whole_of(2, shape);
  reshard_tree leaf = tp_leaf(p->sharders[r], mesh, whole, 0), chunk = NULL;
  reshard_box box = {{mine[0], 0}, {mine[1], 1}}, ours = box_of(2, shape, 0, 2, r % 2, p->n / 2, r / 2);
  reshard_fsdp_extension x = {.size = RESHARD_FSDP_EXTENSION_INIT};
  WELL(p, r, reshard_mesh_sub(mesh, "dp", RESHARD_MESH_MINE, &fsdp));
  WELL(p, r, reshard_fsdp_extension_init(p->sharders[r], &x));
  WELL(p, r, reshard_fsdp_extension_set_order(&x, RESHARD_FSDP_FSDP_FIRST));
  WELL(p, r, reshard_fsdp_extension_check(&x));
  WELL(p, r, x.chunk_dtensor(x.user, leaf, fsdp, NULL, &chunk));
  SO(p, r, wrong_in(local_of(chunk), 2, shape, &box) == 0);
  reshard_tree_release(chunk);
  chunk = NULL;
  WELL(p, r, reshard_fsdp_extension_set_order(&x, RESHARD_FSDP_TP_FIRST));
  WELL(p, r, x.chunk_dtensor(x.user, leaf, fsdp, NULL, &chunk));
  SO(p, r, wrong_in(local_of(chunk), 2, shape, &ours) == 0);
  reshard_tree_release(chunk);
  reshard_tree_release(leaf);
  reshard_tensor_release(whole);
  reshard_mesh_release(fsdp);
  reshard_mesh_release(mesh);
}

CASE(test_rows_of_torch) {
  sharded_ranks_check(4, NULL, torch_body, NULL, RESHARD_SUCCESS, NULL);
  sharded_ranks_check(6, NULL, torch_body, NULL, RESHARD_SUCCESS, NULL);
}

/* Rank 1 alone has no parameter: all are told. */
static void refused_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const int64_t shape[2] = {7, 3};
  reshard_mesh mesh = mesh_of(p, r, "dp=2,tp=2");
  reshard_tensor whole = whole_of(2, shape);
  reshard_tree leaf = tp_leaf(p->sharders[r], mesh, whole, 0), chunk = NULL, one = NULL;
  WELL(p, r, reshard_tree_int(1, &one));
  rank_result_set(&p->results[r], reshard_fsdp_chunk_dtensor_ordered(p->sharders[r], r == 1 ? one : leaf, mesh,
                                                                     RESHARD_FSDP_FSDP_FIRST, NULL, &chunk));
  SO(p, r, chunk == NULL);
  reshard_tree_release(one);
  reshard_tree_release(leaf);
  reshard_tensor_release(whole);
  reshard_mesh_release(mesh);
}

static reshard_status no_chunk(void *user, reshard_tree leaf, reshard_mesh mesh, void *stream, reshard_tree *chunk) {
  (void)user, (void)leaf, (void)mesh, (void)stream, (void)chunk;
  return RESHARD_ERROR_INTERNAL;
}

CASE(test_refused_order) {
  sharded_ranks_check(4, NULL, refused_body, NULL, RESHARD_ERROR_INVALID,
                      "the leaf is an integer, a tensor or a DTensor is needed");
  sharded_ranks p;
  reshard_fsdp_extension x = {.size = RESHARD_FSDP_EXTENSION_INIT};
  sharded_ranks_open(&p, 1, NULL);
  GOOD(reshard_fsdp_extension_init(p.sharders[0], &x));
  BAD(reshard_fsdp_extension_set_order(&x, (reshard_fsdp_order)7), "reshard_fsdp_extension_set_order: unknown order 7");
  x.chunk_dtensor = no_chunk;
  assert_int_equal(reshard_fsdp_extension_set_order(&x, RESHARD_FSDP_TP_FIRST), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_fsdp_extension_set_order(NULL, RESHARD_FSDP_TP_FIRST), RESHARD_ERROR_INVALID);
  reshard_mesh mesh;
  GOOD(reshard_mesh_parse(p.comms[0], 0, "1x1", &mesh));
  BAD(reshard_fsdp_chunk_dtensor_ordered(p.sharders[0], NULL, mesh, (reshard_fsdp_order)7, NULL, &(reshard_tree){NULL}),
      "reshard_fsdp_chunk_dtensor: unknown order 7");
  reshard_mesh_release(mesh);
  sharded_ranks_close(&p);
}

/* --- The TP group's own mesh -------------------------------------------------------------------------------------- */

/* Flattened and made again by the table, whose sharder is the world's: of the kind that it was. */
static void check_hooks(sharded_ranks *p, int64_t r, const grid *g, reshard_tree leaf) {
  static const int64_t shape[2] = {7, 5};
  reshard_fsdp_extension x = {.size = RESHARD_FSDP_EXTENSION_INIT};
  reshard_tree flat = NULL, again = NULL;
  reshard_flat_record record = NULL;
  reshard_dtensor tensor = NULL;
  reshard_tensor full = NULL;
  reshard_box part = box_of(2, shape, g->dim, g->tp, r % g->tp, 1, 0), whole = {{0}, {7, 5}};
  WELL(p, r, reshard_fsdp_extension_init(p->sharders[r], &x));
  WELL(p, r, x.pre_flatten_transform(x.user, leaf, &flat, &record));
  WELL(p, r, x.post_unflatten_transform(x.user, local_of(leaf), record, NULL, &again));
  SO(p, r, local_of(again) == local_of(leaf) && wrong_in(local_of(again), 2, shape, &part) == 0);
  WELL(p, r, reshard_state_get_dtensor(again, &tensor));
  WELL(p, r, reshard_dtensor_full(tensor, NULL, &full)); /* by the row alone */
  SO(p, r, wrong_in(full, 2, shape, &whole) == 0);
  reshard_tensor_release(full);
  reshard_flat_record_free(record);
  reshard_tree_release(again);
  reshard_tree_release(flat);
}

/* The same parameter on mesh["tp"] with the world's sharder, and on a mesh of the group with the group's. */
static void own_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const grid *g = p->user;
  const int64_t shape[2] = {7, 5};
  const reshard_placement placement = placement_of(g->dim);
  const reshard_properties i32 = {.dtype = RESHARD_I32};
  char text[32];
  snprintf(text, sizeof text, "dp=%d,tp=%d", (int)g->fsdp, (int)g->tp);
  reshard_mesh mesh = mesh_of(p, r, text), tp = NULL, own = NULL;
  reshard_sharder sharder = NULL;
  reshard_tensor whole = whole_of(2, shape);
  reshard_dtensor tensor = NULL, chunked[2] = {NULL, NULL};
  reshard_tree leaves[2] = {tp_leaf(p->sharders[r], mesh, whole, g->dim), NULL}, chunks[2] = {NULL, NULL};
  WELL(p, r, reshard_mesh_sub(mesh, "tp", RESHARD_MESH_MINE, &tp));
  WELL(p, r, reshard_mesh_own(tp, &own));
  WELL(p, r, reshard_sharder_create(reshard_mesh_base_comm(own), NULL, &sharder));
  const reshard_placing placing = {own, &placement, NULL};
  WELL(p, r, reshard_dtensor_distribute(sharder, &placing, whole, -1, 2, shape, &i32, NULL, &tensor));
  WELL(p, r, reshard_state_dtensor(tensor, &leaves[1]));
  for (int order = RESHARD_FSDP_TP_FIRST; order <= RESHARD_FSDP_FSDP_FIRST; order++) {
    for (int i = 0; i < 2; i++) {
      WELL(p, r,
           reshard_fsdp_chunk_dtensor_ordered(p->sharders[r], leaves[i], mesh, (reshard_fsdp_order)order, NULL,
                                              &chunks[i]));
      WELL(p, r, reshard_state_get_dtensor(chunks[i], &chunked[i]));
    }
    reshard_box box = order == RESHARD_FSDP_FSDP_FIRST ? fsdp_first(g, shape, r / g->tp, r % g->tp)
                                                       : box_of(2, shape, g->dim, g->tp, r % g->tp, g->fsdp, r / g->tp);
    SO(p, r, wrong_in(local_of(chunks[0]), 2, shape, &box) + wrong_in(local_of(chunks[1]), 2, shape, &box) == 0);
    SO(p, r, reshard_layout_equal(reshard_dtensor_layout(chunked[0]), reshard_dtensor_layout(chunked[1])));
    reshard_tree_release(chunks[0]);
    reshard_tree_release(chunks[1]);
  }
  check_hooks(p, r, g, leaves[0]);
  check_hooks(p, r, g, leaves[1]);
  /* On the FSDP group instead: its ranks are others. */
  if (g->fsdp == g->tp && g->fsdp > 1) {
    reshard_tree chunk = NULL;
    reshard_mesh turned = NULL;
    WELL(p, r, reshard_mesh_sub(mesh, "tp,dp", RESHARD_MESH_MINE, &turned));
    SO(p, r,
       reshard_fsdp_chunk_dtensor(p->sharders[r], leaves[1], turned, NULL, &chunk) == RESHARD_ERROR_INVALID &&
           chunk == NULL && strstr(reshard_last_error(), "the DTensor is on the mesh tp=2@0-1") != NULL);
    reshard_mesh_release(turned);
  }
  reshard_tree_release(leaves[0]);
  reshard_tree_release(leaves[1]);
  reshard_dtensor_release(tensor);
  reshard_tensor_release(whole);
  reshard_sharder_destroy(sharder);
  reshard_mesh_release(own);
  reshard_mesh_release(tp);
  reshard_mesh_release(mesh);
}

CASE(test_own_mesh) {
  static const int64_t sizes[3][2] = {{2, 2}, {2, 3}, {3, 2}};
  for (int i = 0; i < 3; i++)
    for (int dim = -1; dim <= 1; dim++) {
      grid g = {sizes[i][0], sizes[i][1], dim};
      sharded_ranks_check(g.fsdp * g.tp, NULL, own_body, &g, RESHARD_SUCCESS, NULL);
    }
}

/* --- A stage of a pipeline ---------------------------------------------------------------------------------------- */

/* The parent mesh is a part itself, dp and tp of this stage, which cuts and gathers as often as it likes. */
static void stage_body(void *user, int64_t r) {
  static const char *const wanted[2] = {"tp", "dp,tp"};
  static const grid g = {2, 2, 0};
  sharded_ranks *p = user;
  const int64_t stage = r / 4, shape[2] = {7 + stage, 3};
  reshard_mesh mesh = NULL, parent = NULL;
  WELL(p, r, reshard_mesh_parse(p->comms[r], 0, "pp=2,dp=2,tp=2", &mesh));
  WELL(p, r, reshard_mesh_init_groups(mesh, 2, wanted));
  WELL(p, r, reshard_mesh_sub(mesh, "dp,tp", RESHARD_MESH_MINE, &parent));
  reshard_tensor whole = whole_of(2, shape);
  reshard_tree leaf = tp_leaf(p->sharders[r], mesh, whole, 0), plain = NULL;
  reshard_box rows = box_of(2, shape, -1, 1, 0, 2, r / 2 % 2), part = box_of(2, shape, 0, 2, r % 2, 1, 0);
  WELL(p, r, reshard_tree_tensor(whole, &plain));
  for (int64_t k = 0; k < 1 + 3 * stage; k++) {
    reshard_tree chunk = NULL, gathered = NULL;
    reshard_tensor tensor = NULL;
    reshard_box box =
        k % 2 == 0 ? box_of(2, shape, 0, 2, r % 2, 2, r / 2 % 2) : fsdp_first(&g, shape, r / 2 % 2, r % 2);
    WELL(p, r,
         reshard_fsdp_chunk_dtensor_ordered(
             p->sharders[r], leaf, parent, k % 2 == 0 ? RESHARD_FSDP_TP_FIRST : RESHARD_FSDP_FSDP_FIRST, NULL, &chunk));
    SO(p, r, wrong_in(local_of(chunk), 2, shape, &box) == 0);
    WELL(p, r, reshard_fsdp_all_gather(p->sharders[r], chunk, parent, NULL, &gathered));
    WELL(p, r, reshard_tree_get_tensor(gathered, &tensor));
    SO(p, r, wrong_in(tensor, 2, shape, &part) == 0);
    reshard_tree_release(gathered);
    reshard_tree_release(chunk);
    chunk = NULL;
    WELL(p, r, reshard_fsdp_chunk_dtensor(p->sharders[r], plain, parent, NULL, &chunk));
    SO(p, r, wrong_in(local_of(chunk), 2, shape, &rows) == 0);
    reshard_tree_release(chunk);
  }
  reshard_tree_release(plain);
  reshard_tree_release(leaf);
  reshard_tensor_release(whole);
  reshard_mesh_release(parent);
  reshard_mesh_release(mesh);
}

CASE(stages_of_a_pipeline_work_for_themselves) {
  sharded_ranks_check(8, NULL, stage_body, NULL, RESHARD_SUCCESS, NULL);
}

/* The first stage's mesh as all ranks name it. Rank 5, outside, gives no output: it fails alone, and nobody waits. Rank
 * 2, in it, has no DTensor: the stage gets its error. */
static void gather_fails_body(void *user, int64_t r) {
  static const char *const wanted[1] = {"dp,tp"};
  static const int64_t shape[2] = {7, 3};
  sharded_ranks *p = user;
  const reshard_placement both[2] = {placement_of(0), placement_of(1)};
  const reshard_properties i32 = {.dtype = RESHARD_I32};
  reshard_mesh mesh = NULL, parent = NULL;
  WELL(p, r, reshard_mesh_parse(p->comms[r], 0, "pp=2,dp=2,tp=2", &mesh));
  WELL(p, r, reshard_mesh_init_groups(mesh, 1, wanted));
  WELL(p, r, reshard_mesh_sub(mesh, "dp,tp", 0, &parent));
  const reshard_placing placing = {parent, both, NULL};
  reshard_dtensor tensor = NULL;
  reshard_tree leaf = NULL, one = NULL, whole = NULL;
  WELL(p, r, reshard_dtensor_empty(p->sharders[r], &placing, 2, shape, &i32, NULL, &tensor));
  WELL(p, r, reshard_state_dtensor(tensor, &leaf));
  WELL(p, r, reshard_tree_int(1, &one));
  reshard_status status = reshard_fsdp_all_gather(p->sharders[r], leaf, parent, NULL, r == 5 ? NULL : &whole);
  SO(p, r, status == (r == 5 ? RESHARD_ERROR_INVALID : RESHARD_SUCCESS) && (whole != NULL) == (r != 5));
  SO(p, r, r != 5 || strcmp(reshard_last_error(), "reshard_fsdp_all_gather: whole is NULL") == 0);
  reshard_tree_release(whole);
  whole = NULL;
  status = reshard_fsdp_all_gather(p->sharders[r], r == 2 ? one : leaf, parent, NULL, &whole);
  SO(p, r, status == (r < 4 ? RESHARD_ERROR_INVALID : RESHARD_SUCCESS) && (whole != NULL) == (r >= 4));
  SO(p, r, r >= 4 || strstr(reshard_last_error(), "the leaf is an integer, a DTensor is needed") != NULL);
  WELL(p, r, reshard_comm_barrier(p->comms[r]));
  reshard_tree_release(whole);
  reshard_tree_release(one);
  reshard_tree_release(leaf);
  reshard_dtensor_release(tensor);
  reshard_mesh_release(parent);
  reshard_mesh_release(mesh);
}

CASE(test_gather_fails) { sharded_ranks_check(8, NULL, gather_fails_body, NULL, RESHARD_SUCCESS, NULL); }

/* The first stage's mesh as all ranks name it, FSDP first. A rank outside has no part, cuts as often as it likes, and
 * waits for nobody. */
static void outside_body(void *user, int64_t r) {
  static const char *const wanted[2] = {"tp", "dp,tp"};
  static const int64_t shape[2] = {7, 3};
  static const grid g = {2, 2, 0};
  sharded_ranks *p = user;
  const reshard_placement rows = placement_of(0);
  const reshard_properties i32 = {.dtype = RESHARD_I32};
  reshard_mesh mesh = NULL, parent = NULL, tp = NULL;
  reshard_dtensor tensor = NULL, cut = NULL;
  reshard_tree leaf = NULL;
  WELL(p, r, reshard_mesh_parse(p->comms[r], 0, "pp=2,dp=2,tp=2", &mesh));
  WELL(p, r, reshard_mesh_init_groups(mesh, 2, wanted));
  WELL(p, r, reshard_mesh_sub(mesh, "dp,tp", 0, &parent));
  WELL(p, r, reshard_mesh_sub(mesh, "tp", r < 4 ? RESHARD_MESH_MINE : 0, &tp));
  const reshard_placing placing = {tp, &rows, NULL};
  WELL(p, r, reshard_dtensor_empty(p->sharders[r], &placing, 2, shape, &i32, NULL, &tensor));
  WELL(p, r, reshard_state_dtensor(tensor, &leaf));
  for (int64_t k = 0; k < (r < 4 ? 1 : r - 4); k++) {
    reshard_tree chunk = NULL;
    reshard_box box = {{0}, {0}}, mine = r < 4 ? fsdp_first(&g, shape, r / 2, r % 2) : box;
    WELL(p, r, reshard_fsdp_chunk_dtensor_ordered(p->sharders[r], leaf, parent, RESHARD_FSDP_FSDP_FIRST, NULL, &chunk));
    WELL(p, r, reshard_state_get_dtensor(chunk, &cut));
    SO(p, r, (reshard_dtensor_local(cut) != NULL) == (r < 4));
    if (r < 4)
      WELL(p, r, reshard_dtensor_local_box(cut, &box));
    SO(p, r, memcmp(box.extent, mine.extent, 2 * sizeof *mine.extent) == 0);
    reshard_tree_release(chunk);
  }
  WELL(p, r, reshard_comm_barrier(p->comms[r]));
  reshard_tree_release(leaf);
  reshard_dtensor_release(tensor);
  reshard_mesh_release(tp);
  reshard_mesh_release(parent);
  reshard_mesh_release(mesh);
}

CASE(ranks_outside_of_a_stage_wait_for_nobody) {
  sharded_ranks_check(8, NULL, outside_body, NULL, RESHARD_SUCCESS, NULL);
}

/* No leaf to cut, and no group to tell: the first of the two errors stays. */
static void first_error_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  reshard_mesh mesh = NULL, parent = NULL;
  reshard_tree one = NULL, chunk = NULL;
  WELL(p, r, reshard_mesh_parse(p->comms[r], 0, "pp=2,dp=2,tp=2", &mesh));
  WELL(p, r, reshard_mesh_sub(mesh, "dp,tp", RESHARD_MESH_MINE, &parent));
  WELL(p, r, reshard_tree_int(1, &one));
  SO(p, r,
     reshard_fsdp_chunk_dtensor_ordered(p->sharders[r], one, parent, RESHARD_FSDP_FSDP_FIRST, NULL, &chunk) ==
             RESHARD_ERROR_INVALID &&
         strstr(reshard_last_error(), "the leaf is an integer, a tensor or a DTensor is needed") != NULL);
  reshard_tree_release(one);
  reshard_mesh_release(parent);
  reshard_mesh_release(mesh);
}

CASE(test_first_error) { sharded_ranks_check(8, NULL, first_error_body, NULL, RESHARD_SUCCESS, NULL); }

/* --- Empty parts, gradients --------------------------------------------------------------------------------------- */

/* One row: the second rank of TP gives no tensor at all. */
static void empty_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const int64_t shape[2] = {1, 3};
  const reshard_placement rows = placement_of(0);
  reshard_mesh mesh = mesh_of(p, r, "dp=2,tp=2"), tp = NULL;
  reshard_tensor whole = whole_of(2, shape);
  reshard_dtensor tensor = NULL;
  reshard_tree leaf = NULL, flat = NULL, chunk = NULL;
  reshard_flat_record record = NULL;
  reshard_tensor_info info = {0};
  reshard_box box = box_of(2, shape, 0, 2, r % 2, 2, r / 2);
  reshard_tensor_set_requires_grad(whole, 0);
  WELL(p, r, reshard_mesh_sub(mesh, "tp", RESHARD_MESH_MINE, &tp));
  const reshard_placing placing = {tp, &rows, NULL};
  WELL(p, r, reshard_dtensor_from_local(p->sharders[r], &placing, r % 2 == 0 ? whole : NULL, 2, NULL, 0, &tensor));
  WELL(p, r, reshard_state_dtensor(tensor, &leaf));
  WELL(p, r, reshard_fsdp_chunk_dtensor(p->sharders[r], leaf, mesh, NULL, &chunk));
  SO(p, r, wrong_in(local_of(chunk), 2, shape, &box) == 0);
  WELL(p, r, reshard_fsdp_flatten(leaf, &flat, &record));
  if (r % 2 == 0)
    WELL(p, r, reshard_tensor_get_info(whole, &info));
  SO(p, r, info.requires_grad == (r % 2 == 0));
  reshard_tensor_release(whole);
  WELL(p, r, reshard_tree_get_tensor(flat, &whole));
  WELL(p, r, reshard_tensor_get_info(whole, &info));
  SO(p, r, info.requires_grad == 1 && reshard_fsdp_is_flattened(whole));
  reshard_flat_record_free(record);
  reshard_tree_release(chunk);
  reshard_tree_release(flat);
  reshard_tree_release(leaf);
  reshard_dtensor_release(tensor);
  reshard_mesh_release(tp);
  reshard_mesh_release(mesh);
}

CASE(test_empty_parts) { sharded_ranks_check(4, NULL, empty_body, NULL, RESHARD_SUCCESS, NULL); }

RUN_CASES
