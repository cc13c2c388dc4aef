/* Trees with sharded tensors, DTensors and nested ones in them, mapped, cast and moved: their local tensors are others
 * then, on all ranks alike, and what they are parts of is as before. */
#include "base/base.h"
#include "bench/cli/naive_cast.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scale.h"
#include "support/fixtures/sharded_ranks.h"
#include "support/fixtures/trees.h"
#include "support/oracles/nested.h"

#include <reshard/dtensor.h>
#include <reshard/move.h>
#include <reshard/state_dict.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3 };
static const reshard_properties f32 = {.dtype = RESHARD_F32, .requires_grad = 1};

static reshard_device open_cpu(void) {
  const reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .threads = 1};
  reshard_device device;
  GOOD(reshard_device_create("cpu", &options, &device));
  return device;
}

/* Takes the tensor. */
static reshard_tree sharded_leaf(reshard_sharded_tensor tensor) {
  reshard_tree leaf;
  GOOD(reshard_state_sharded(tensor, &leaf));
  reshard_sharded_tensor_release(tensor);
  return leaf;
}

static reshard_sharded_tensor sharded_at(reshard_tree tree, const char *path) {
  reshard_sharded_tensor tensor;
  GOOD(reshard_state_get_sharded(node_at(tree, path), &tensor));
  return tensor;
}

/* Both are contiguous: each element is the other's, cast. */
static void assert_elements(reshard_tensor cast, reshard_tensor src) {
  reshard_tensor_info is = tensor_info(cast), was = tensor_info(src);
  assert_true(is.ndim == was.ndim && is.contiguous && was.contiguous && is.requires_grad == was.requires_grad);
  assert_memory_equal(is.shape, was.shape, (size_t)is.ndim * sizeof *is.shape);
  for (int64_t i = 0; i < is.elements; i++) {
    uint64_t wanted = 0, have = 0;
    memcpy(&wanted, (char *)was.data + i * 4, 4);
    memcpy(&have, (char *)is.data + i * (int64_t)reshard_dtype_size(is.dtype), reshard_dtype_size(is.dtype));
    assert_int_equal(have, naive_cast(RESHARD_F32, is.dtype, wanted));
  }
}

/* The metadata differ in dtype alone. */
static void assert_metadata(reshard_metadata is, reshard_metadata was, reshard_dtype to) {
  reshard_properties p = reshard_metadata_properties(is), had = reshard_metadata_properties(was);
  assert_int_equal(p.dtype, to);
  assert_true(p.requires_grad == had.requires_grad && p.pin_memory == had.pin_memory);
  assert_int_equal(reshard_metadata_count(is), reshard_metadata_count(was));
  assert_memory_equal(reshard_metadata_shards(is), reshard_metadata_shards(was),
                      (size_t)reshard_metadata_count(was) * sizeof(reshard_shard));
}

/* --- Sharded tensors --------------------------------------------------------------------------------------------- */

static const char *const layouts[] = {"chunk(0)", "chunk(1)", "flat()", "flat(0,2,1)", "chunk(0;2,0)", "rank(1)"};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

typedef struct gathering {
  reshard_tree state[RANKS], cast[RANKS];
  reshard_tensor whole[RANKS], whole_cast[RANKS];
  char path[16];
} gathering;

static void gather_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  gathering *g = p->user;
  reshard_sharded_tensor before = sharded_at(g->state[r], g->path), after = sharded_at(g->cast[r], g->path);
  reshard_status status = reshard_sharded_tensor_gather_all(before, g->whole[r], NULL);
  RS_THEN(status, reshard_sharded_tensor_gather_all(after, g->whole_cast[r], NULL));
  rank_result_set(&p->results[r], status);
}

static void check_sharded(reshard_sharded_tensor is, reshard_sharded_tensor was, int64_t rank, uint64_t seed) {
  reshard_tensor array, cast;
  assert_ptr_not_equal(is, was);
  assert_true(reshard_layout_equal(reshard_sharded_tensor_layout(is), reshard_sharded_tensor_layout(was)));
  assert_metadata(reshard_sharded_tensor_metadata(is), reshard_sharded_tensor_metadata(was), RESHARD_BF16);
  assert_int_equal(reshard_sharded_tensor_local_count(is), reshard_sharded_tensor_local_count(was));
  assert_int_equal(sharded_check(was, rank, seed), 0); /* as it was */
  for (int64_t i = 0; i < reshard_sharded_tensor_local_count(is); i++) {
    GOOD(reshard_sharded_tensor_local(is, i, &cast, NULL));
    GOOD(reshard_sharded_tensor_local(was, i, &array, NULL));
    assert_int_equal(tensor_info(array).dtype, RESHARD_F32);
    assert_elements(cast, array);
  }
}

CASE(test_cast_sharded) {
  const int64_t shape[2] = {2, 7};
  reshard_device cpu = open_cpu();
  gathering g;
  sharded_ranks p;
  sharded_ranks_open(&p, RANKS, NULL);
  for (int64_t r = 0; r < RANKS; r++) {
    g.state[r] = dict();
    for (int l = 0; l < LAYOUTS; l++) {
      char key[16];
      reshard_sharded_tensor tensor;
      reshard_layout layout = layout_from_text(layouts[l], 2, shape, RANKS);
      GOOD(reshard_sharded_tensor_empty(p.sharders[r], layout, &f32, NULL, &tensor));
      reshard_layout_release(layout);
      sharded_fill(tensor, r, (uint64_t)l);
      snprintf(key, sizeof key, "%d", l);
      set(g.state[r], key, sharded_leaf(tensor));
    }
    GOOD(reshard_tree_cast(g.state[r], RESHARD_BF16, cpu, NULL, &g.cast[r]));
    GOOD(reshard_tensor_create(RESHARD_F32, 2, shape, &g.whole[r]));
    reshard_tensor_set_requires_grad(g.whole[r], 1);
    GOOD(reshard_tensor_create(RESHARD_BF16, 2, shape, &g.whole_cast[r]));
    reshard_tensor_set_requires_grad(g.whole_cast[r], 1);
  }
  for (int l = 0; l < LAYOUTS; l++) {
    snprintf(g.path, sizeof g.path, "%d", l);
    for (int64_t r = 0; r < RANKS; r++)
      check_sharded(sharded_at(g.cast[r], g.path), sharded_at(g.state[r], g.path), r, (uint64_t)l);
    sharded_ranks_run(&p, gather_body, &g);
    sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
    for (int64_t r = 0; r < RANKS; r++)
      assert_elements(g.whole_cast[r], g.whole[r]);
  }
  for (int64_t r = 0; r < RANKS; r++) {
    reshard_tree same;
    GOOD(reshard_tree_cast(g.cast[r], RESHARD_BF16, cpu, NULL,
                           &same)); /* nothing to do, on a rank without tensors too */
    assert_ptr_equal(same, g.cast[r]);
    reshard_tree_release(same);
    GOOD(reshard_tree_to(g.state[r], cpu, NULL, NULL, &same));
    assert_ptr_equal(same, g.state[r]);
    reshard_tree_release(same);
    reshard_tree_release(g.state[r]);
    reshard_tree_release(g.cast[r]);
    reshard_tensor_release(g.whole[r]);
    reshard_tensor_release(g.whole_cast[r]);
  }
  sharded_ranks_close(&p);
  reshard_device_release(cpu);
}

/* Shards of some ranks alone, of any strides, with an empty one that has no tensor. */
CASE(test_cast_shards) {
  reshard_device cpu = open_cpu();
  sharded_ranks p;
  sharded_ranks_open(&p, RANKS, NULL);
  const int64_t shape[2] = {4, 6}, half[2] = {2, 6};
  const reshard_properties plain = {.dtype = RESHARD_F32};
  const reshard_shard shards[3] = {{{{0, 0}, {2, 6}}, {0, RESHARD_DEVICE_CPU, -1}},
                                   {{{2, 0}, {2, 6}}, {1, RESHARD_DEVICE_CPU, -1}},
                                   {{{4, 0}, {0, 6}}, {1, RESHARD_DEVICE_CPU, -1}}};
  reshard_metadata m;
  GOOD(reshard_metadata_create(&plain, 2, shape, 3, shards, &m));
  for (int64_t r = 0; r < RANKS; r++) {
    reshard_tensor tensors[2] = {NULL, NULL}, array;
    reshard_sharded_tensor tensor;
    reshard_tree cast;
    if (r < 2)
      tensors[0] = strided_tensor(RESHARD_F32, 2, half, r == 1);
    GOOD(reshard_sharded_tensor_from_metadata(p.sharders[r], m, r < 2 ? r + 1 : 0, tensors, &tensor));
    if (r < 2)
      array_fill(reshard_sharded_tensor_layout(tensor), r, 0, tensors[0], 7);
    reshard_tree leaf = sharded_leaf(tensor);
    GOOD(reshard_tree_cast(leaf, RESHARD_F64, cpu, NULL, &cast));
    assert_metadata(reshard_sharded_tensor_metadata(sharded_at(cast, "")), m, RESHARD_F64);
    assert_int_equal(reshard_sharded_tensor_local_count(sharded_at(cast, "")), r < 2 ? r + 1 : 0);
    for (int64_t i = 0; i < (r < 2 ? r + 1 : 0); i++) {
      GOOD(reshard_sharded_tensor_local(sharded_at(cast, ""), i, &array, NULL));
      assert_int_equal(array != NULL, i == 0);
    }
    if (r < 2) {
      GOOD(reshard_sharded_tensor_local(sharded_at(cast, ""), 0, &array, NULL));
      reshard_tensor_info is = tensor_info(array), was = tensor_info(tensors[0]);
      assert_true(is.contiguous && is.dtype == RESHARD_F64 && is.shape[0] == 2 && is.shape[1] == 6);
      for (int i = 0; i < 12; i++) {
        uint64_t wanted = 0;
        memcpy(&wanted, (float *)was.data + i / 6 * was.strides[0] + i % 6 * was.strides[1], 4);
        assert_true(((uint64_t *)is.data)[i] == naive_cast(RESHARD_F32, RESHARD_F64, wanted));
      }
    }
    reshard_tree_release(cast);
    reshard_tree_release(leaf);
    reshard_tensor_release(tensors[0]);
  }
  reshard_metadata_release(m);
  sharded_ranks_close(&p);
  reshard_device_release(cpu);
}

/* --- One tensor at several places -------------------------------------------------------------------------------- */

static reshard_status count_tensor(void *user, const char *path, reshard_tensor tensor, reshard_tensor *mapped) {
  reshard_tensor_info info;
  reshard_status status = reshard_tensor_get_info(tensor, &info);
  ++*(int *)user;
  return status == RESHARD_SUCCESS ? reshard_tensor_create(RESHARD_F16, info.ndim, info.shape, mapped) : status;
}

CASE(leaves_that_share_a_tensor_are_mapped_once) {
  const int64_t shape[2] = {6, 4};
  sharded_ranks p;
  sharded_ranks_open(&p, 1, NULL);
  reshard_layout layout = layout_from_text("chunk(0)", 2, shape, 1);
  reshard_sharded_tensor a, b, tied;
  reshard_tensor array;
  int calls = 0;
  GOOD(reshard_sharded_tensor_empty(p.sharders[0], layout, &f32, NULL, &a));
  GOOD(reshard_sharded_tensor_local(a, 0, &array, NULL));
  GOOD(reshard_sharded_tensor_from_layout(p.sharders[0], layout, &f32, 1, &array, &b));
  reshard_tree root = set(dict(), "plain", leaf_of(reshard_tensor_retain(array))), mapped;
  tied = reshard_sharded_tensor_retain(a);
  set(root, "a", sharded_leaf(a));
  set(root, "inner", append(list(), sharded_leaf(tied)));
  set(root, "b", sharded_leaf(b));
  set(root, "n", integer(1));
  GOOD(reshard_tree_map_tensors(root, count_tensor, &calls, &mapped));
  assert_int_equal(calls, 1);
  assert_ptr_equal(sharded_at(mapped, "a"), sharded_at(mapped, "inner.0"));
  assert_ptr_not_equal(sharded_at(mapped, "a"), sharded_at(mapped, "b"));
  reshard_tensor in_a, in_b, plain;
  GOOD(reshard_sharded_tensor_local(sharded_at(mapped, "a"), 0, &in_a, NULL));
  GOOD(reshard_sharded_tensor_local(sharded_at(mapped, "b"), 0, &in_b, NULL));
  GOOD(reshard_tree_get_tensor(node_at(mapped, "plain"), &plain));
  assert_true(in_a == in_b && in_a == plain && tensor_info(plain).dtype == RESHARD_F16);
  assert_ptr_equal(node_at(mapped, "n"), node_at(root, "n"));
  reshard_properties properties = reshard_metadata_properties(reshard_sharded_tensor_metadata(sharded_at(mapped, "a")));
  assert_true(properties.dtype == RESHARD_F16 && properties.requires_grad == 0); /* as the new tensors are */
  reshard_tree_release(mapped);
  reshard_tree_release(root);
  reshard_layout_release(layout);
  sharded_ranks_close(&p);
}

/* A type of a user's: its tensors are visited as well. */
typedef struct pair {
  int references;
  reshard_tensor first, second;
} pair;
static void pair_retain(void *value) { ((pair *)value)->references++; }
static void pair_release(void *value) {
  pair *p = value;
  if (--p->references > 0)
    return;
  reshard_tensor_release(p->first);
  reshard_tensor_release(p->second);
  free(p);
}
static reshard_status pair_map(void *value, const char *path, reshard_tree_tensor_map map, void *user, void **mapped) {
  const pair *p = value;
  pair *made = calloc(1, sizeof *made);
  if (made == NULL)
    return RESHARD_ERROR_OUT_OF_MEMORY;
  made->references = 1;
  reshard_status status = map(user, path, p->first, &made->first);
  RS_THEN(status, map(user, path, p->second, &made->second));
  bool changed = made->first != NULL || made->second != NULL;
  if (made->first == NULL)
    made->first = reshard_tensor_retain(p->first);
  if (made->second == NULL)
    made->second = reshard_tensor_retain(p->second);
  if (status == RESHARD_SUCCESS && changed)
    *mapped = made;
  else
    pair_release(made);
  return status;
}
static const reshard_tree_type pair_type = {
    .name = "pair", .retain = pair_retain, .release = pair_release, .map_tensors = pair_map};

CASE(test_own_type) {
  const int64_t n = 3;
  reshard_device cpu = open_cpu();
  pair *value = calloc(1, sizeof *value);
  void *found;
  assert_non_null(value);
  value->references = 1;
  GOOD(reshard_tensor_create(RESHARD_I32, 1, &n, &value->first));
  GOOD(reshard_tensor_create(RESHARD_F32, 1, &n, &value->second));
  memcpy(tensor_info(value->second).data, (float[]){1, 2, 3}, 12);
  reshard_tree leaf, cast;
  GOOD(reshard_tree_opaque(&pair_type, value, &leaf));
  reshard_tree root = append(append(list(), reshard_tree_retain(leaf)), leaf);
  GOOD(reshard_tree_cast(root, RESHARD_F64, cpu, NULL, &cast));
  GOOD(reshard_tree_get_opaque(node_at(cast, "1"), &pair_type, &found));
  const pair *is = found;
  assert_true(is != value && is->first == value->first && is->references == 1);
  assert_memory_equal(tensor_info(is->second).data, ((double[]){1, 2, 3}), 24);
  assert_ptr_equal(node_at(cast, "0"), node_at(cast, "1"));
  reshard_tree_release(cast);
  GOOD(reshard_tree_cast(root, RESHARD_F32, cpu, NULL, &cast));
  assert_ptr_equal(cast, root);
  reshard_tree_release(cast);
  assert_int_equal(value->references, 2);
  reshard_tree_release(root);
  pair_release(value);
  reshard_device_release(cpu);
}

/* --- DTensors ---------------------------------------------------------------------------------------------------- */

/* On a mesh of two of the three ranks, cut and replicated. */
CASE(test_cast_dtensors) {
  const int64_t shape[2] = {5, 4}, two = 2, ranks[2] = {2, 0};
  const reshard_placement placements[2] = {{.kind = RESHARD_PLACEMENT_SHARD, .dim = 0},
                                           {.kind = RESHARD_PLACEMENT_REPLICATE}};
  reshard_device cpu = open_cpu();
  sharded_ranks p;
  sharded_ranks_open(&p, RANKS, NULL);
  for (int64_t r = 0; r < RANKS; r++)
    for (int k = 0; k < 2; k++) {
      reshard_mesh mesh;
      reshard_dtensor was, is;
      reshard_tree leaf, cast;
      GOOD(reshard_mesh_create(p.comms[r], 0, 1, &two, NULL, 2, ranks, &mesh));
      GOOD(reshard_dtensor_empty(p.sharders[r], &(reshard_placing){mesh, &placements[k], NULL}, 2, shape, &f32, NULL,
                                 &was));
      sharded_fill(reshard_dtensor_sharded(was), r, 3);
      GOOD(reshard_state_dtensor(was, &leaf));
      GOOD(reshard_tree_cast(leaf, RESHARD_BF16, cpu, NULL, &cast));
      GOOD(reshard_state_get_dtensor(cast, &is));
      assert_ptr_equal(reshard_dtensor_mesh(is), mesh);
      assert_memory_equal(reshard_dtensor_placements(is), &placements[k], sizeof *placements);
      assert_true(reshard_layout_equal(reshard_dtensor_layout(is), reshard_dtensor_layout(was)));
      assert_metadata(reshard_sharded_tensor_metadata(reshard_dtensor_sharded(is)),
                      reshard_sharded_tensor_metadata(reshard_dtensor_sharded(was)), RESHARD_BF16);
      assert_int_equal(reshard_dtensor_local(is) != NULL, reshard_dtensor_local(was) != NULL);
      if (r != 1)
        assert_elements(reshard_dtensor_local(is), reshard_dtensor_local(was));
      assert_int_equal(sharded_check(reshard_dtensor_sharded(was), r, 3), 0);
      reshard_tree_release(cast);
      reshard_tree_release(leaf);
      reshard_dtensor_release(was);
      reshard_mesh_release(mesh);
    }
  sharded_ranks_close(&p);
  reshard_device_release(cpu);
}

/* --- Nested tensors ---------------------------------------------------------------------------------------------- */

/* A copy that wants a gradient. */
static reshard_status copy_tensor(void *user, const char *path, reshard_tensor tensor, reshard_tensor *mapped) {
  reshard_tensor_info was, is;
  reshard_status status = reshard_tensor_get_info(tensor, &was);
  RS_THEN(status, reshard_tensor_create(was.dtype, was.ndim, was.shape, mapped));
  RS_THEN(status, reshard_tensor_get_info(*mapped, &is));
  if (status != RESHARD_SUCCESS)
    return status;
  if (was.elements > 0 && was.contiguous)
    memcpy(is.data, was.data, (size_t)was.elements * 4);
  reshard_tensor_set_requires_grad(*mapped, 1);
  return was.contiguous ? status : RESHARD_ERROR_INTERNAL;
}

CASE(test_random_nests) {
  int64_t seeds = test_scaled(60, 1);
  sharded_ranks p;
  sharded_ranks_open(&p, RANKS, NULL);
  for (int64_t seed = 0; seed < seeds; seed++) {
    nested_case *n = nested_create((uint64_t)seed, RANKS, 1 + (int)(seed % 4));
    for (int64_t r = 0; r < RANKS; r++) {
      reshard_tree root = set(dict(), "nested", nested_state(n, p.sharders[r], r)), mapped, flat;
      reshard_metadata outer, before;
      GOOD(reshard_tree_map_tensors(root, copy_tensor, NULL, &mapped));
      reshard_tree leaf = node_at(mapped, "nested");
      GOOD(reshard_state_get_nested(leaf, &outer, NULL, NULL, NULL));
      GOOD(reshard_state_get_nested(node_at(root, "nested"), &before, NULL, NULL, NULL));
      assert_int_equal(reshard_metadata_properties(outer).requires_grad, 1);
      assert_int_equal(reshard_metadata_properties(before).requires_grad, 0);
      reshard_tree_release(root); /* the copy has all that it needs */
      GOOD(reshard_state_flatten_sharded_tensors(mapped, &flat));
      reshard_sharded_tensor t = sharded_at(flat, "nested");
      assert_int_equal(reshard_metadata_properties(reshard_sharded_tensor_metadata(t)).requires_grad, 1);
      assert_int_equal(nested_check_owners(n, t, r, false), 0);
      assert_int_equal(nested_check(t), 0);
      reshard_tree_release(flat);
      reshard_tree_release(mapped);
    }
    nested_free(n);
  }
  sharded_ranks_close(&p);
}

/* A nested tensor in a nested tensor in ..., deeper than a stack. */
CASE(test_deep_nest) {
  enum { DEPTH = 30000 };
  const int64_t shape[1] = {4};
  const reshard_shard whole = {{{0}, {4}}, {0, RESHARD_DEVICE_CPU, -1}};
  const reshard_properties plain = {.dtype = RESHARD_F32};
  reshard_device cpu = open_cpu();
  reshard_layout layout = layout_from_text("chunk(0)", 1, shape, 1);
  reshard_sharded_tensor end;
  reshard_metadata m;
  const reshard_tree *inner;
  sharded_ranks p;
  sharded_ranks_open(&p, 1, NULL);
  GOOD(reshard_sharded_tensor_zeros(p.sharders[0], layout, &plain, NULL, &end));
  GOOD(reshard_metadata_create(&plain, 1, shape, 1, &whole, &m));
  reshard_tree nested = sharded_leaf(end), cast;
  for (int i = 0; i < DEPTH; i++) {
    reshard_tree outer;
    GOOD(reshard_state_nested(p.sharders[0], m, 1, &whole, &nested, &outer));
    reshard_tree_release(nested);
    nested = outer;
  }
  GOOD(reshard_tree_cast(nested, RESHARD_F16, cpu, NULL, &cast));
  reshard_tree at = cast;
  for (int i = 0; i < DEPTH; i++) {
    reshard_metadata outer;
    GOOD(reshard_state_get_nested(at, &outer, NULL, NULL, &inner));
    assert_int_equal(reshard_metadata_properties(outer).dtype, RESHARD_F16);
    at = inner[0];
  }
  assert_int_equal(reshard_metadata_properties(reshard_sharded_tensor_metadata(sharded_at(at, ""))).dtype, RESHARD_F16);
  reshard_tree_release(cast);
  reshard_tree_release(nested);
  reshard_metadata_release(m);
  reshard_layout_release(layout);
  sharded_ranks_close(&p);
  reshard_device_release(cpu);
}

/* --- Refused ----------------------------------------------------------------------------------------------------- */

typedef struct odd {
  int calls;
  const char *how;
} odd;

/* All tensors but the first become what a leaf cannot have. */
static reshard_status odd_tensor(void *user, const char *path, reshard_tensor tensor, reshard_tensor *mapped) {
  odd *o = user;
  reshard_tensor_info info;
  const int64_t one = 1;
  reshard_status status = reshard_tensor_get_info(tensor, &info);
  if (status != RESHARD_SUCCESS || o->calls++ == 0)
    return status;
  if (strcmp(o->how, "shape") == 0)
    return reshard_tensor_create(info.dtype, 1, &one, mapped);
  if (strcmp(o->how, "dtype") == 0)
    return reshard_tensor_create(RESHARD_F64, info.ndim, info.shape, mapped);
  return RESHARD_ERROR_INTERNAL;
}

CASE(moves_and_casts_that_do_not_fit_are_refused) {
  const int64_t shape[2] = {4, 6};
  reshard_device cpu = open_cpu();
  sharded_ranks p;
  sharded_ranks_open(&p, 1, NULL);
  const reshard_properties plain = {.dtype = RESHARD_F32};
  const reshard_shard shards[2] = {{{{0, 0}, {1, 6}}, {0, RESHARD_DEVICE_CPU, -1}},
                                   {{{1, 0}, {3, 6}}, {0, RESHARD_DEVICE_CPU, -1}}};
  reshard_metadata m;
  reshard_sharded_tensor t;
  reshard_tensor tensors[2];
  reshard_tree mapped = NULL;
  GOOD(reshard_metadata_create(&plain, 2, shape, 2, shards, &m));
  for (int i = 0; i < 2; i++)
    GOOD(reshard_tensor_create(RESHARD_F32, 2, shards[i].box.extent, &tensors[i]));
  GOOD(reshard_sharded_tensor_from_metadata(p.sharders[0], m, 2, tensors, &t));
  reshard_tree root = set(dict(), "w", sharded_leaf(t));
  BAD(reshard_tree_map_tensors(root, odd_tensor, &(odd){0, "shape"}, &mapped),
      "path 'w': a local tensor of shape 3x6 would become one of 1");
  BAD(reshard_tree_map_tensors(root, odd_tensor, &(odd){0, "dtype"}, &mapped),
      "path 'w': local tensors would be f32 and f64, with requires_grad 0 and 0, pin_memory 0 and 0");
  assert_int_equal(reshard_tree_map_tensors(root, odd_tensor, &(odd){0, "error"}, &mapped), RESHARD_ERROR_INTERNAL);
  GOOD(reshard_storage_free(tensors[1], NULL, NULL));
  BAD(reshard_tree_cast(root, RESHARD_BF16, cpu, NULL, &mapped),
      "path 'w': reshard_tree_cast: the storage of a tensor of shape 3x6 is freed");
  assert_null(mapped);
  reshard_tree_release(root);
  reshard_metadata_release(m);
  reshard_tensor_release(tensors[0]);
  reshard_tensor_release(tensors[1]);
  sharded_ranks_close(&p);
  reshard_device_release(cpu);
}

/* The boxes of a flat piece as a user may give them: end to end, but lent one by one. */
CASE(test_flat_of_several) {
  static float memory[5];
  const int64_t shape[2] = {3, 3}, boxes[2][2] = {{1, 2}, {1, 3}};
  const reshard_properties plain = {.dtype = RESHARD_F32};
  reshard_device cpu = open_cpu();
  reshard_layout layout = layout_from_text("flat()", 2, shape, 2); /* rank 0: a row and two elements */
  reshard_tensor tensors[2];
  reshard_sharded_tensor flat;
  reshard_tree mapped = NULL;
  sharded_ranks p;
  sharded_ranks_open(&p, 2, NULL);
  GOOD(reshard_tensor_wrap(RESHARD_F32, 2, boxes[1], NULL, memory, NULL, NULL, &tensors[0]));
  GOOD(reshard_tensor_wrap(RESHARD_F32, 2, boxes[0], NULL, memory + 3, NULL, NULL, &tensors[1]));
  GOOD(reshard_sharded_tensor_from_layout(p.sharders[0], layout, &plain, 2, tensors, &flat));
  reshard_tree root = set(dict(), "w", sharded_leaf(flat));
  FAILS(reshard_tree_cast(root, RESHARD_BF16, cpu, NULL, &mapped), RESHARD_ERROR_UNSUPPORTED,
        "path 'w': the arrays 0 and 1 of a buffer are in several storages");
  assert_null(mapped);
  reshard_tree_release(root);
  reshard_tensor_release(tensors[0]);
  reshard_tensor_release(tensors[1]);
  reshard_layout_release(layout);
  sharded_ranks_close(&p);
  reshard_device_release(cpu);
}

RUN_CASES
