/* chunk_dtensor and all_gather_dtensor: every small shape on every small mesh against a search row by row, HSDP, bytes
 * on the wire, and what is refused. */
#include "fsdp_world.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scale.h"

#include <stdlib.h>

/* A mesh of FSDP and TP, and the placement of TP. */
typedef struct grid {
  int64_t fsdp, tp;
  int dim; /* that TP cuts, -1: none */
} grid;

static const char *const names[2] = {"dp", "tp"};

static reshard_mesh mesh_of(const sharded_ranks *p, int64_t r, const grid *g) {
  const int64_t shape[2] = {g->fsdp, g->tp};
  reshard_mesh mesh;
  bool made = reshard_mesh_create(p->comms[r], 0, 2, shape, names, 0, NULL, &mesh) == RESHARD_SUCCESS &&
              reshard_mesh_init_groups(mesh, 0, NULL) == RESHARD_SUCCESS;
  return made ? mesh : NULL;
}

/* Calls with every shape of one dim, and of two, up to 12. */
static void each_shape(sharded_ranks *p, int64_t r, int64_t step,
                       void (*call)(sharded_ranks *p, int64_t r, int ndim, const int64_t *shape)) {
  for (int64_t n = 0; n <= 12; n++)
    for (int64_t m = 0; m <= 12; m += m == 0 ? 1 : step) {
      const int64_t shape[2] = {n, m};
      call(p, r, m == 0 ? 1 : 2, shape);
    }
}

/* --- Every shape -------------------------------------------------------------------------------------------------- */

static void check_chunk(sharded_ranks *p, int64_t r, int ndim, const int64_t *shape) {
  const grid *g = p->user;
  if (g->dim >= ndim)
    return;
  reshard_mesh mesh = mesh_of(p, r, g);
  reshard_tensor whole = whole_of(ndim, shape);
  reshard_tree leaf = tp_leaf(p->sharders[r], mesh, whole, g->dim), chunk = NULL;
  reshard_tensor_info info;
  reshard_box part, box = box_of(ndim, shape, g->dim, g->tp, r % g->tp, g->fsdp, r / g->tp);
  part = box_of(ndim, shape, g->dim, g->tp, r % g->tp, 1, 0);
  SO(p, r, leaf != NULL && wrong_in(local_of(leaf), ndim, shape, &part) == 0);
  if (WELL(p, r, reshard_fsdp_chunk_dtensor(p->sharders[r], leaf, mesh, NULL, &chunk))) {
    reshard_tensor local = local_of(chunk);
    SO(p, r, wrong_in(local, ndim, shape, &box) == 0);
    reshard_tensor_get_info(local, &info);
    SO(p, r, info.requires_grad == 0 && info.contiguous);
  }
  reshard_tree_release(chunk);
  reshard_tree_release(leaf);
  reshard_tensor_release(whole);
  reshard_mesh_release(mesh);
}

static void chunk_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  int64_t before = received(p->comms[r]);
  each_shape(p, r, test_scaled(10, 1) >= 10 ? 1 : 6, check_chunk);
  SO(p, r, received(p->comms[r]) == before);
}

static void check_gather(sharded_ranks *p, int64_t r, int ndim, const int64_t *shape) {
  const grid *g = p->user;
  if (g->dim >= ndim)
    return;
  reshard_mesh mesh = mesh_of(p, r, g);
  reshard_tensor whole = whole_of(ndim, shape), tensor = NULL;
  reshard_tree leaf = tp_leaf(p->sharders[r], mesh, whole, g->dim), chunk = NULL, gathered = NULL;
  reshard_box part, box = box_of(ndim, shape, g->dim, g->tp, r % g->tp, g->fsdp, r / g->tp);
  part = box_of(ndim, shape, g->dim, g->tp, r % g->tp, 1, 0);
  WELL(p, r, reshard_fsdp_chunk_dtensor(p->sharders[r], leaf, mesh, NULL, &chunk));
  int64_t before = received(p->comms[r]);
  if (WELL(p, r, reshard_fsdp_all_gather(p->sharders[r], chunk, mesh, NULL, &gathered))) {
    WELL(p, r, reshard_tree_get_tensor(gathered, &tensor));
    SO(p, r, wrong_in(tensor, ndim, shape, &part) == 0);
    SO(p, r, received(p->comms[r]) - before == 4 * (elements_of(ndim, &part) - elements_of(ndim, &box)));
  }
  reshard_tree_release(gathered);
  reshard_tree_release(chunk);
  reshard_tree_release(leaf);
  reshard_tensor_release(whole);
  reshard_mesh_release(mesh);
}

static void gather_body(void *user, int64_t r) { each_shape(user, r, test_scaled(10, 1) >= 10 ? 4 : 12, check_gather); }

/* All meshes up to 4 x 3, TP on dim 0, on dim 1, on none. */
static void each_grid(void (*body)(void *ranks, int64_t rank)) {
  for (int64_t fsdp = 1; fsdp <= 4; fsdp++)
    for (int64_t tp = 1; tp <= 3; tp++) {
      sharded_ranks p;
      sharded_ranks_open(&p, fsdp * tp, NULL);
      for (int dim = -1; dim <= 1; dim++) {
        grid g = {fsdp, tp, dim};
        sharded_ranks_run(&p, body, &g);
        sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
      }
      sharded_ranks_close(&p);
    }
}

CASE(test_every_chunk) { each_grid(chunk_body); }

CASE(test_every_gather) { each_grid(gather_body); }

/* --- Print-outs --------------------------------------------------------------------------------------------------- */

static void rows_body(void *user, int64_t r) {
  static const char *const layouts[2] = {"mesh(dp=2,tp=2;S0,S0;order=tp,dp)", "mesh(dp=2,tp=2;S0,R)"};
  static const int64_t shape[1] = {5}, rows[4][2] = {{0, 2}, {3, 1}, {2, 1}, {4, 1}};
  sharded_ranks *p = user;
  const grid g = {2, 2, 0};
  reshard_mesh mesh = mesh_of(p, r, &g), fsdp = NULL;
  reshard_tensor whole = whole_of(1, shape);
  reshard_tree leaves[3] = {tp_leaf(p->sharders[r], mesh, whole, 0), NULL, tp_leaf(p->sharders[r], mesh, whole, 0)};
  WELL(p, r, reshard_tree_tensor(whole, &leaves[1]));
  WELL(p, r, reshard_mesh_sub(mesh, "dp", RESHARD_MESH_MINE, &fsdp));
  for (int i = 0; i < 3; i++) { /* the last with the mesh that FSDP has, which stands for its root */
    reshard_tree chunk = NULL;
    reshard_dtensor tensor = NULL;
    reshard_layout wanted = layout_from_text(layouts[i % 2], 1, shape, 4);
    reshard_box box = {{rows[r][0]}, {rows[r][1]}}, half = {{r / 2 * 3}, {3 - r / 2}};
    if (WELL(p, r, reshard_fsdp_chunk_dtensor(p->sharders[r], leaves[i], i == 2 ? fsdp : mesh, NULL, &chunk))) {
      WELL(p, r, reshard_state_get_dtensor(chunk, &tensor));
      SO(p, r, reshard_layout_equal(reshard_dtensor_layout(tensor), wanted));
      SO(p, r, reshard_mesh_equal(reshard_dtensor_mesh(tensor), mesh));
      SO(p, r, wrong_in(local_of(chunk), 1, shape, i == 1 ? &half : &box) == 0);
    }
    reshard_layout_release(wanted);
    reshard_tree_release(chunk);
  }
  for (int i = 0; i < 3; i++)
    reshard_tree_release(leaves[i]);
  reshard_tensor_release(whole);
  reshard_mesh_release(fsdp);
  reshard_mesh_release(mesh);
}

CASE(test_five_rows) { sharded_ranks_check(4, NULL, rows_body, NULL, RESHARD_SUCCESS, NULL); }

/* --- HSDP --------------------------------------------------------------------------------------------------------- */

/* Replicas, FSDP, TP: rank 4 a + 2 b + c. Ranks 8 and 9 are outside. */
static void hsdp_body(void *user, int64_t r) {
  static const char *const hsdp[3] = {"replicate", "shard", "tp"};
  static const int64_t extents[3] = {2, 2, 2}, shape[2] = {7, 5};
  sharded_ranks *p = user;
  int dim = *(const int *)p->user;
  char text[96];
  reshard_mesh mesh = NULL;
  reshard_dtensor tensor = NULL;
  reshard_tensor part = NULL;
  reshard_tree leaf = NULL, chunk = NULL, gathered = NULL;
  reshard_tensor whole = whole_of(2, shape);
  reshard_box box = box_of(2, shape, dim, 2, r % 2, 2, r / 2 % 2), tp = box_of(2, shape, dim, 2, r % 2, 1, 0);
  WELL(p, r, reshard_mesh_create(p->comms[r], 0, 3, extents, hsdp, 0, NULL, &mesh));
  WELL(p, r, reshard_mesh_init_groups(mesh, 0, NULL));
  snprintf(text, sizeof text, "mesh(replicate=2,shard=2,tp=2;R,S0,%s", dim < 0 ? "R)" : dim == 1 ? "S1)" : "");
  if (dim == 0)
    strcat(text, "S0;order=tp,replicate,shard)");
  reshard_layout wanted = layout_from_text(text, 2, shape, p->n);
  if (r < 8) {
    leaf = tp_leaf(p->sharders[r], mesh, whole, dim);
  } else { /* where nothing of it is, the handle is made by hand */
    reshard_placing placing = {mesh, (reshard_placement[3]){{0}, {0}, {0}}, (int[3]){2, 0, 1}};
    reshard_placement placements[3] = {placement_of(-1), placement_of(0), placement_of(dim)};
    reshard_properties i32 = {.dtype = RESHARD_I32};
    placing.placements = placements;
    placing.order = dim == 0 ? placing.order : NULL;
    WELL(p, r, reshard_dtensor_empty(p->sharders[r], &placing, 2, shape, &i32, NULL, &tensor));
    WELL(p, r, reshard_state_dtensor(tensor, &chunk));
    reshard_dtensor_release(tensor);
  }
  if (r < 8 && WELL(p, r, reshard_fsdp_chunk_dtensor(p->sharders[r], leaf, mesh, NULL, &chunk)))
    SO(p, r, wrong_in(local_of(chunk), 2, shape, &box) == 0);
  WELL(p, r, reshard_state_get_dtensor(chunk, &tensor));
  SO(p, r, reshard_layout_equal(reshard_dtensor_layout(tensor), wanted));
  const int *order = reshard_dtensor_order(tensor);
  SO(p, r, dim == 0 ? order[0] == 2 && order[1] == 0 && order[2] == 1 : order[0] == 0 && order[2] == 2);
  int64_t before = received(p->comms[r]);
  if (WELL(p, r, reshard_fsdp_all_gather(p->sharders[r], chunk, NULL, NULL, &gathered))) {
    if (r < 8) {
      WELL(p, r, reshard_tree_get_tensor(gathered, &part));
      SO(p, r, wrong_in(part, 2, shape, &tp) == 0);
      SO(p, r, received(p->comms[r]) - before == 4 * (elements_of(2, &tp) - elements_of(2, &box)));
    } else {
      reshard_tensor_info info = {0};
      WELL(p, r, reshard_tree_get_tensor(gathered, &part));
      WELL(p, r, reshard_tensor_get_info(part, &info));
      SO(p, r, info.ndim == 1 && info.elements == 0 && info.dtype == RESHARD_I32);
    }
  }
  reshard_layout_release(wanted);
  reshard_tree_release(gathered);
  reshard_tree_release(chunk);
  reshard_tree_release(leaf);
  reshard_tensor_release(whole);
  reshard_mesh_release(mesh);
}

CASE(hsdp_chunks_on_each_dim_of_the_mesh) {
  for (int64_t n = 8; n <= 10; n += 2)
    for (int dim = -1; dim <= 1; dim++) {
      sharded_ranks_check(n, NULL, hsdp_body, &dim, RESHARD_SUCCESS, NULL);
    }
}

/* A fused matrix: TP has its rows of each part, and FSDP cuts what that leaves. */
static void fused_body(void *user, int64_t r) {
  static const reshard_part parts[2] = {{3, 0}, {1, 0}};
  static const int64_t shape[2] = {16, 3}, extents[2] = {2, 2};
  static const char *const names[2] = {"fsdp", "tp"};
  sharded_ranks *p = user;
  reshard_placement placement = {.kind = RESHARD_PLACEMENT_SHARD, .nparts = 2, .ratio = 1, .parts = parts};
  reshard_properties f32 = {.dtype = RESHARD_F32};
  reshard_tensor whole = NULL, part = NULL;
  reshard_tensor_info info = {0};
  reshard_mesh mesh = NULL, tp = NULL;
  reshard_dtensor tensor = NULL;
  reshard_tree leaf = NULL, chunk = NULL, gathered = NULL;
  WELL(p, r, reshard_tensor_create(RESHARD_F32, 2, shape, &whole));
  WELL(p, r, reshard_tensor_get_info(whole, &info));
  for (int64_t e = 0; e < 48; e++)
    ((float *)info.data)[e] = (float)e;
  WELL(p, r, reshard_mesh_create(p->comms[r], 0, 2, extents, names, 0, NULL, &mesh));
  WELL(p, r, reshard_mesh_init_groups(mesh, 0, NULL));
  WELL(p, r, reshard_mesh_sub(mesh, "tp", RESHARD_MESH_MINE, &tp));
  const reshard_placing placing = {tp, &placement, NULL};
  WELL(p, r, reshard_dtensor_distribute(p->sharders[r], &placing, whole, -1, 2, shape, &f32, NULL, &tensor));
  WELL(p, r, reshard_state_dtensor(tensor, &leaf));
  reshard_dtensor_release(tensor);
  int64_t rows[8], t = r % 2, f = r / 2; /* of this rank of TP */
  for (int64_t i = 0; i < 8; i++)
    rows[i] = i < 6 ? 6 * t + i : 12 + 2 * t + i - 6;
  if (WELL(p, r, reshard_fsdp_chunk_dtensor(p->sharders[r], leaf, mesh, NULL, &chunk)) &&
      WELL(p, r, reshard_tensor_get_info(local_of(chunk), &info)))
    for (int64_t e = 0; e < 12; e++)
      SO(p, r, ((float *)info.data)[e] == (float)(3 * rows[4 * f + e / 3] + e % 3));
  if (WELL(p, r, reshard_fsdp_all_gather(p->sharders[r], chunk, NULL, NULL, &gathered)) &&
      WELL(p, r, reshard_tree_get_tensor(gathered, &part)) && WELL(p, r, reshard_tensor_get_info(part, &info)))
    for (int64_t e = 0; e < 24; e++)
      SO(p, r, ((float *)info.data)[e] == (float)(3 * rows[e / 3] + e % 3));
  reshard_tree_release(gathered);
  reshard_tree_release(chunk);
  reshard_tree_release(leaf);
  reshard_mesh_release(tp);
  reshard_mesh_release(mesh);
  reshard_tensor_release(whole);
}

CASE(fsdp_cuts_what_the_parts_of_tp_leave) { sharded_ranks_check(4, NULL, fused_body, NULL, RESHARD_SUCCESS, NULL); }

/* --- Refused ------------------------------------------------------------------------------------------------------ */

typedef struct refused {
  const char *mesh; /* that is given */
  const char *leaf; /* "tensor", "int", or the mesh of a DTensor, of which it is on the dim tp */
  const char *text;
} refused;

static const refused refusals[] = {
    {"fsdp=4", "tensor", "the parent mesh fsdp=4@0-3 has 1 dim"},
    {"dp=2,tp=2", "int", "the leaf is an integer, a tensor or a DTensor is needed"},
    {"dp=2,tp=2", "NULL", "the leaf is NULL, a tensor or a DTensor is needed"},
    {"dp=2,tp=2", "tp=4",
     "the DTensor is on the mesh tp=4@0-3, the last dim of the parent mesh dp=2,tp=2@0-3 is tp=2@"},
    {"tp=2,dp=2", "tp=2,dp=2", "the last dim of the parent mesh tp=2,dp=2@0-3 is dp=2@"},
};

static void refused_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const int64_t shape[1] = {5};
  reshard_tensor whole = whole_of(1, shape);
  for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
    const refused *f = &refusals[i];
    reshard_mesh mesh = NULL, other = NULL;
    reshard_tree leaf = NULL, chunk = (reshard_tree)p;
    WELL(p, r, reshard_mesh_parse(p->comms[r], 0, f->mesh, &mesh));
    if (strcmp(f->leaf, "tensor") == 0) {
      WELL(p, r, reshard_tree_tensor(whole, &leaf));
    } else if (strcmp(f->leaf, "int") == 0) {
      WELL(p, r, reshard_tree_int(3, &leaf));
    } else if (strcmp(f->leaf, "NULL") != 0) {
      WELL(p, r, reshard_mesh_parse(p->comms[r], 0, f->leaf, &other));
      WELL(p, r, reshard_mesh_init_groups(other, 0, NULL));
      leaf = tp_leaf(p->sharders[r], other, whole, 0);
      SO(p, r, leaf != NULL);
    }
    SO(p, r, reshard_fsdp_chunk_dtensor(p->sharders[r], leaf, mesh, NULL, &chunk) == RESHARD_ERROR_INVALID);
    SO(p, r, chunk == (reshard_tree)p && strstr(reshard_last_error(), f->text) != NULL);
    if (r == 0)
      print_message("%s\n", reshard_last_error());
    reshard_tree_release(leaf);
    reshard_mesh_release(other);
    reshard_mesh_release(mesh);
  }
  reshard_tensor_release(whole);
}

CASE(test_refused_chunk) {
  sharded_ranks p;
  sharded_ranks_open(&p, 4, NULL);
  sharded_ranks_run(&p, refused_body, NULL);
  sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  reshard_tree none;
  BAD(reshard_fsdp_chunk_dtensor(NULL, NULL, NULL, NULL, &none), "reshard_fsdp_chunk_dtensor: sharder is NULL");
  BAD(reshard_fsdp_chunk_dtensor(p.sharders[0], NULL, NULL, NULL, &none), "reshard_fsdp_chunk_dtensor: mesh is NULL");
  sharded_ranks_close(&p);
}

typedef enum gather_fault { LEAF, MESH, SHARDER, OUTPUT, STREAM, FAULTS } gather_fault;

/* Rank 2 alone does something else; all ranks have its error. */
static void gather_fault_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const gather_fault fault = *(const gather_fault *)p->user;
  const grid g = {2, 2, 0};
  const int64_t shape[1] = {9};
  reshard_mesh mesh = mesh_of(p, r, &g), flat = NULL, given = mesh;
  reshard_tensor whole = whole_of(1, shape);
  reshard_tree leaf = tp_leaf(p->sharders[r], mesh, whole, 0), chunk = NULL, gathered = NULL, one = NULL, *out;
  reshard_sharder other = NULL, sharder = p->sharders[r];
  WELL(p, r, reshard_tree_int(1, &one));
  WELL(p, r, reshard_mesh_flatten(mesh, "dp,tp", "all", &flat));
  WELL(p, r, reshard_sharder_create(p->comms[r], NULL, &other));
  WELL(p, r, reshard_fsdp_chunk_dtensor(sharder, leaf, mesh, NULL, &chunk));
  out = &gathered;
  if (r == 2) {
    given = fault == MESH ? flat : mesh;
    sharder = fault == SHARDER ? other : sharder;
    out = fault == OUTPUT ? NULL : out;
  }
  reshard_tree what = r == 2 && fault == LEAF ? one : chunk;
  rank_result_set(&p->results[r],
                  reshard_fsdp_all_gather(sharder, what, given, r == 2 && fault == STREAM ? p : NULL, out));
  SO(p, r, gathered == NULL);
  reshard_tree_release(gathered);
  reshard_tree_release(chunk);
  reshard_tree_release(leaf);
  reshard_tree_release(one);
  reshard_sharder_destroy(other);
  reshard_tensor_release(whole);
  reshard_mesh_release(flat);
  reshard_mesh_release(mesh);
}

CASE(test_refused_gather) {
  static const char *const texts[FAULTS] = {
      "the leaf is an integer, a DTensor is needed",
      "the DTensor is on the mesh dp=2,tp=2@0-3, not on the parent mesh all=4@0-3",
      "the DTensor is of another sharder",
      "whole is NULL",
      "stream is ",
  };
  for (gather_fault f = 0; f < FAULTS; f++) {
    sharded_ranks p;
    sharded_ranks_open(&p, 4, NULL);
    sharded_ranks_run(&p, gather_fault_body, &f);
    print_message("%s\n", p.results[0].text);
    sharded_ranks_assert(&p, RESHARD_ERROR_INVALID, texts[f]);
    sharded_ranks_close(&p);
  }
  reshard_tree none;
  assert_int_equal(reshard_fsdp_all_gather(NULL, NULL, NULL, NULL, &none), RESHARD_ERROR_INVALID);
}

RUN_CASES
