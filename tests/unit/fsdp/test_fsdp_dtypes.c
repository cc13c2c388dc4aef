/* A trainer's f32, cut by FSDP over TP, gathered as an engine's bf16, and brought back: every number against the exact
 * cast, and the bytes that travel; what is refused on all ranks. */
#include "bench/cli/naive_cast.h"
#include "fsdp_world.h"

#include <reshard/plan.h>

enum { RANKS = 4 };
static const int64_t shape[2] = {13, 21};

typedef struct scene {
  int64_t fsdp, tp;
  int dim; /* that TP cuts; -1: none */
  reshard_dtype as, odd;
  bool packed;
} scene;

/* Any bits of f32. */
static uint32_t bits_of(int64_t index) { return (uint32_t)(index + 1) * 2654435761u; }

static reshard_tensor make_numbers(void) {
  reshard_tensor tensor;
  reshard_tensor_info info;
  if (reshard_tensor_create(RESHARD_F32, 2, shape, &tensor) != RESHARD_SUCCESS ||
      reshard_tensor_get_info(tensor, &info) != RESHARD_SUCCESS)
    return NULL;
  for (int64_t i = 0; i < info.elements; i++)
    ((uint32_t *)info.data)[i] = bits_of(i);
  return tensor;
}

/* Elements of a tensor that are not the box of the whole, cast to `by` and from there to its dtype, which is `to`. */
static int64_t wrong_cast(reshard_tensor tensor, const reshard_box *box, reshard_dtype by, reshard_dtype to) {
  reshard_tensor_info info;
  int64_t wrong = 0;
  if (tensor == NULL || reshard_tensor_get_info(tensor, &info) != RESHARD_SUCCESS || info.dtype != to ||
      memcmp(info.shape, box->extent, sizeof shape) != 0)
    return 1;
  size_t width = reshard_dtype_size(to);
  for (int64_t i = 0; i < info.shape[0]; i++)
    for (int64_t j = 0; j < info.shape[1]; j++) {
      uint64_t is = 0, wanted = bits_of((box->offset[0] + i) * shape[1] + box->offset[1] + j);
      wanted = by != RESHARD_F32 ? naive_cast(RESHARD_F32, by, wanted) : wanted;
      wanted = by != to ? naive_cast(by, to, wanted) : wanted;
      memcpy(&is, (const char *)info.data + (size_t)(i * info.strides[0] + j * info.strides[1]) * width, width);
      wrong += is != wanted;
    }
  return wrong;
}

/* The gathered parameter as a DTensor, back in f32 where FSDP had it. */
static void check_way_back(sharded_ranks *p, int64_t r, reshard_tree leaf, reshard_tree chunk, reshard_tensor gathered,
                           const reshard_box *own) {
  const scene *c = p->user;
  const reshard_dtype f32 = RESHARD_F32;
  reshard_tree flat = NULL, again = NULL, spread = NULL;
  reshard_flat_record record = NULL;
  reshard_dtensor part = NULL, shards = NULL, back = NULL;
  WELL(p, r, reshard_state_get_dtensor(chunk, &shards));
  WELL(p, r, reshard_fsdp_flatten(leaf, &flat, &record));
  if (WELL(p, r, reshard_fsdp_unflatten(p->sharders[r], gathered, record, &again)) &&
      WELL(p, r, reshard_fsdp_chunk_dtensor(p->sharders[r], again, reshard_dtensor_mesh(shards), NULL, &spread)) &&
      WELL(p, r, reshard_state_get_dtensor(spread, &part))) {
    const reshard_placing home = {reshard_dtensor_mesh(shards), reshard_dtensor_placements(shards),
                                  reshard_dtensor_order(shards)};
    WELL(p, r, reshard_dtensor_redistribute_as(1, &part, &home, &f32, NULL, &back));
    SO(p, r, wrong_cast(reshard_dtensor_local(back), own, c->as, RESHARD_F32) == 0);
  }
  reshard_dtensor_release(back);
  reshard_tree_release(spread);
  reshard_tree_release(again);
  reshard_tree_release(flat);
  reshard_flat_record_free(record);
}

static void gather_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const scene *c = p->user;
  const int64_t grid[2] = {c->fsdp, c->tp};
  const char *const names[2] = {"dp", "tp"};
  reshard_mesh mesh = NULL;
  reshard_tree chunk = NULL, whole = NULL;
  reshard_tensor gathered = NULL, numbers = make_numbers();
  reshard_fsdp_extension x = RESHARD_FSDP_EXTENSION_DEFAULTS;
  reshard_box part = box_of(2, shape, c->dim, c->tp, r % c->tp, 1, 0),
              own = box_of(2, shape, c->dim, c->tp, r % c->tp, c->fsdp, r / c->tp);
  WELL(p, r, reshard_mesh_create(p->comms[r], 0, 2, grid, names, 0, NULL, &mesh));
  WELL(p, r, reshard_mesh_init_groups(mesh, 0, NULL));
  WELL(p, r, reshard_fsdp_extension_init(p->sharders[r], &x));
  reshard_tree leaf = tp_leaf(p->sharders[r], mesh, numbers, c->dim);
  WELL(p, r, x.chunk_dtensor(x.user, leaf, mesh, NULL, &chunk));
  int64_t before = received(p->comms[r]);
  reshard_dtype as = r == 1 && c->odd != RESHARD_DTYPE_NONE ? c->odd : c->as;
  reshard_status status = x.all_gather_dtensor_as(x.user, chunk, mesh, as, NULL, &whole);
  rank_result_set(&p->results[r], status);
  if (status == RESHARD_SUCCESS) {
    WELL(p, r, reshard_tree_get_tensor(whole, &gathered));
    SO(p, r, wrong_cast(gathered, &part, c->as, c->as) == 0);
    size_t width = reshard_dtype_size(c->as) < 4 && c->packed ? reshard_dtype_size(c->as) : 4;
    SO(p, r, received(p->comms[r]) - before == (int64_t)width * (elements_of(2, &part) - elements_of(2, &own)));
    check_way_back(p, r, leaf, chunk, gathered, &own);
  }
  reshard_tree_release(whole);
  reshard_tree_release(chunk);
  reshard_tree_release(leaf);
  reshard_tensor_release(numbers);
  reshard_mesh_release(mesh);
}

CASE(shards_of_f32_are_gathered_in_another_dtype_and_come_back) {
  static const reshard_dtype dtypes[] = {RESHARD_BF16, RESHARD_F16, RESHARD_F8_E4M3, RESHARD_F64};
  static const scene grids[] = {
      {.fsdp = 4, .tp = 1, .dim = -1}, {.fsdp = 2, .tp = 2, .dim = 0}, {.fsdp = 2, .tp = 2, .dim = 1}};
  for (int packed = 0; packed < 2; packed++)
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++)
      for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        scene c = grids[g];
        const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT,
                                                 .path = packed ? RESHARD_PATH_PACKED : RESHARD_PATH_AUTO};
        c.as = dtypes[d];
        c.packed = packed;
        sharded_ranks_check(RANKS, &options, gather_body, &c, RESHARD_SUCCESS, NULL);
      }
}

CASE(gathers_that_ranks_want_otherwise_are_refused_on_all) {
  scene c = {.fsdp = 4, .tp = 1, .dim = -1, .as = RESHARD_BF16, .odd = RESHARD_F16};
  sharded_ranks_check(RANKS, NULL, gather_body, &c, RESHARD_ERROR_MISMATCH, "dst_dtype bf16 on rank 0, f16 on rank 1");
  c.as = RESHARD_I32;
  c.odd = RESHARD_DTYPE_NONE;
  sharded_ranks_check(RANKS, NULL, gather_body, &c, RESHARD_ERROR_UNSUPPORTED,
                      "reshard_fsdp_all_gather_as: tensor 0: no cast from f32 to i32");
}

/* bf16 is packed from the f32 of the others straight to its place; the other way f32 is packed of bf16 in place. */
CASE(gathered_bf16_arrives_in_its_place) {
  reshard_layout shards, whole;
  assert_int_equal(reshard_layout_parse("chunk(0)", 2, shape, RANKS, &shards), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse("mesh(4;R)", 2, shape, RANKS, &whole), RESHARD_SUCCESS);
  for (int wide = 0; wide < 2; wide++) {
    const reshard_entry entry = {.size = RESHARD_ENTRY_INIT,
                                 .src = shards,
                                 .dst = whole,
                                 .dtype = wide ? RESHARD_BF16 : RESHARD_F32,
                                 .dst_dtype = wide ? RESHARD_F32 : RESHARD_BF16};
    reshard_plan plan;
    reshard_plan_info info;
    assert_int_equal(reshard_plan_create(1, &entry, 1, NULL, &plan), RESHARD_SUCCESS);
    assert_int_equal(reshard_plan_get_info(plan, &info), RESHARD_SUCCESS);
    assert_int_equal(info.unpacks_skipped, wide ? 0 : RANKS - 1);
    assert_int_equal(info.packs_skipped, wide ? RANKS - 1 : 0);
    assert_int_equal(info.received_bytes, 2 * (13 - 4) * 21);
    reshard_plan_destroy(plan);
  }
  reshard_layout_release(shards);
  reshard_layout_release(whole);
}

RUN_CASES
