/* Nested sharded tensors made flat: PyTorch's case, then what it does not have; every refusal. */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/sharded_ranks.h"
#include "support/oracles/nested.h"

#include "bench/cli/util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const reshard_properties i32 = {.dtype = RESHARD_I32};

/* Rows [begin, end) of so many columns, on a rank. */
static reshard_shard rows(int64_t begin, int64_t end, int64_t columns, int64_t rank) {
  return (reshard_shard){{{begin, 0}, {end - begin, columns}}, {rank, RESHARD_DEVICE_CPU, -1}};
}

static reshard_metadata metadata(const reshard_properties *properties, int64_t height, int64_t width, int64_t n,
                                 const reshard_shard *shards) {
  const int64_t shape[2] = {height, width};
  reshard_metadata m;
  GOOD(reshard_metadata_create(properties, 2, shape, n, shards, &m));
  return m;
}

/* A sharded tensor of new tensors for what the metadata place on a rank; takes the metadata. */
static reshard_tree sharded(reshard_sharder sharder, int64_t rank, reshard_metadata m) {
  reshard_tensor tensors[16];
  reshard_sharded_tensor t;
  reshard_tree s;
  int64_t n = 0;
  const reshard_properties p = reshard_metadata_properties(m);
  for (int64_t i = 0; i < reshard_metadata_count(m); i++) {
    const reshard_shard *shard = &reshard_metadata_shards(m)[i];
    if (shard->placement.rank != rank)
      continue;
    GOOD(reshard_tensor_create(p.dtype, 2, shard->box.extent, &tensors[n]));
    reshard_tensor_set_requires_grad(tensors[n], p.requires_grad);
    reshard_tensor_set_pin_memory(tensors[n++], p.pin_memory);
  }
  GOOD(reshard_sharded_tensor_from_metadata(sharder, m, n, tensors, &t));
  GOOD(reshard_state_sharded(t, &s));
  reshard_sharded_tensor_release(t);
  reshard_metadata_release(m);
  for (int64_t i = 0; i < n; i++)
    reshard_tensor_release(tensors[i]);
  return s;
}

/* Takes the metadata and the inner ones. */
static reshard_tree nested(reshard_sharder sharder, reshard_metadata outer, int64_t n, const reshard_shard *shards,
                           reshard_tree *inner) {
  reshard_tree s;
  GOOD(reshard_state_nested(sharder, outer, n, shards, inner, &s));
  reshard_metadata_release(outer);
  for (int64_t i = 0; i < n; i++)
    reshard_tree_release(inner[i]);
  return s;
}

static reshard_tree at_key(const char *key, reshard_tree child) {
  reshard_tree d;
  GOOD(reshard_tree_dict(&d));
  GOOD(reshard_tree_set(d, key, child));
  reshard_tree_release(child);
  return d;
}

static void assert_shards(reshard_tree flat, const char *path, const char *expected) {
  reshard_tree leaf;
  reshard_sharded_tensor t;
  char text[1024] = "";
  GOOD(reshard_tree_at(flat, path, &leaf));
  GOOD(reshard_state_get_sharded(leaf, &t));
  reshard_metadata m = reshard_sharded_tensor_metadata(t);
  for (int64_t i = 0; i < reshard_metadata_count(m); i++) {
    const reshard_shard *s = &reshard_metadata_shards(m)[i];
    snprintf(text + strlen(text), sizeof text - strlen(text), "%d:%d-%dx%d-%d ", (int)s->placement.rank,
             (int)s->box.offset[0], (int)(s->box.offset[0] + s->box.extent[0]), (int)s->box.offset[1],
             (int)(s->box.offset[1] + s->box.extent[1]));
  }
  assert_string_equal(text, expected);
}

/* --- Tensor parallelism outside, FSDP inside ------------------------------------------------------------------ */

/* 4 ranks: TP cuts 16 rows over ranks 2g, 2g + 1, and FSDP each half over ranks t and 2 + t. */
typedef struct tp_fsdp {
  sharded_ranks p;
  reshard_comm comms[2][2];       /* of the FSDP groups */
  reshard_sharder sharders[2][2]; /* likewise */
  reshard_tree trees[4], flat[4];
} tp_fsdp;

static void tp_fsdp_open(tp_fsdp *w) {
  static const int64_t half[2] = {8, 3};
  static const reshard_properties with_grad = {.dtype = RESHARD_I32, .requires_grad = 1};
  sharded_ranks_open(&w->p, 4, NULL);
  for (int t = 0; t < 2; t++) {
    const int64_t group[2] = {t, 2 + t};
    const reshard_sharder_options options = {RESHARD_SHARDER_OPTIONS_INIT, .group = {2, group}};
    GOOD(reshard_comm_create_local(2, NULL, w->comms[t]));
    sharders_open(2, w->comms[t], &options, w->sharders[t]);
  }
  reshard_layout cut = layout_from_text("chunk(0)", 2, half, 2);
  for (int64_t r = 0; r < 4; r++) {
    int64_t t = r % 2, g = r / 2;
    const reshard_shard outer[2] = {rows(0, 8, 3, 2 * g), rows(8, 16, 3, 2 * g + 1)};
    reshard_sharded_tensor inner;
    reshard_tree node;
    GOOD(reshard_sharded_tensor_empty(w->sharders[t][g], cut, &with_grad, NULL, &inner));
    GOOD(reshard_state_sharded(inner, &node));
    reshard_sharded_tensor_release(inner);
    w->trees[r] = at_key(
        "model", at_key("weight", nested(w->p.sharders[r], metadata(&i32, 16, 3, 2, outer), 1, &outer[t], &node)));
  }
  reshard_layout_release(cut);
}

static void tp_fsdp_close(tp_fsdp *w) {
  for (int64_t r = 0; r < 4; r++) {
    reshard_tree_release(w->trees[r]);
    reshard_tree_release(w->flat[r]);
    reshard_sharder_destroy(w->sharders[r % 2][r / 2]);
    reshard_comm_destroy(w->comms[r % 2][r / 2]);
  }
  sharded_ranks_close(&w->p);
}

/* The use that PyTorch's flattening is made for. It names rank 0 or 1 as owner of all that is not its own. */
CASE(test_tp_fsdp) {
  static const char *const expected[4] = {"0:0-4x0-3 1:8-16x0-3 2:4-8x0-3 ", "0:0-8x0-3 1:8-12x0-3 3:12-16x0-3 ",
                                          "0:0-4x0-3 2:4-8x0-3 3:8-16x0-3 ", "1:8-12x0-3 2:0-8x0-3 3:12-16x0-3 "};
  tp_fsdp w = {0};
  tp_fsdp_open(&w);
  for (int64_t r = 0; r < 4; r++) {
    reshard_tree leaf;
    reshard_sharded_tensor t;
    reshard_tensor array;
    reshard_box box;
    GOOD(reshard_state_flatten_sharded_tensors(w.trees[r], &w.flat[r]));
    assert_shards(w.flat[r], "model.weight", expected[r]);
    GOOD(reshard_tree_at(w.flat[r], "model.weight", &leaf));
    GOOD(reshard_state_get_sharded(leaf, &t));
    assert_int_equal(reshard_metadata_properties(reshard_sharded_tensor_metadata(t)).requires_grad, 1); /* inner's */
    assert_int_equal(reshard_sharded_tensor_local_count(t), 1);
    GOOD(reshard_sharded_tensor_local(t, 0, &array, &box));
    assert_int_equal(box.offset[0], 8 * (r % 2) + 4 * (r / 2));
    GOOD(reshard_tree_at(w.trees[r], "model.weight", &leaf)); /* what was given is as it was */
    assert_string_equal(reshard_tree_get_type(leaf)->name, "nested sharded tensor");
    const reshard_tree *inner;
    const int64_t *entries;
    reshard_metadata outer;
    int64_t n;
    reshard_tensor same;
    GOOD(reshard_state_get_nested(leaf, &outer, &n, &entries, &inner));
    assert_int_equal(n, 1);
    assert_int_equal(reshard_metadata_count(outer), 2);
    assert_int_equal(entries[0], r % 2);
    GOOD(reshard_state_get_sharded(inner[0], &t));
    GOOD(reshard_sharded_tensor_local(t, 0, &same, NULL));
    assert_ptr_equal(same, array); /* no copy */
  }
  tp_fsdp_close(&w);
}

static void flatten_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  tp_fsdp *w = p->user;
  rank_result_set(&p->results[r],
                  reshard_state_flatten_sharded_tensors_global(p->sharders[r], w->trees[r], &w->flat[r]));
}

CASE(test_tp_fsdp_global) {
  tp_fsdp w = {0};
  tp_fsdp_open(&w);
  sharded_ranks_run(&w.p, flatten_body, &w);
  sharded_ranks_assert(&w.p, RESHARD_SUCCESS, NULL);
  for (int64_t r = 0; r < 4; r++)
    assert_shards(w.flat[r], "model.weight", "0:0-4x0-3 1:8-12x0-3 2:4-8x0-3 3:12-16x0-3 ");
  tp_fsdp_close(&w);
}

/* --- Agreement of ranks --------------------------------------------------------------------------------------- */

static reshard_tree small(reshard_sharder sharder, int64_t rank, const reshard_properties *properties, int64_t height,
                          int64_t kept) {
  const reshard_shard outer = rows(0, height, 2, rank), inner[2] = {rows(0, 2, 2, 0), rows(2, height, 2, 1)};
  reshard_tree node = sharded(sharder, rank, metadata(properties, height, 2, kept, inner));
  return nested(sharder, metadata(properties, height, 2, 1, &outer), 1, &outer, &node);
}

CASE(test_global_refusals) {
  static const reshard_properties f32 = {.dtype = RESHARD_F32}, grad = {.dtype = RESHARD_I32, .requires_grad = 1};
  for (int k = 0; k < 8; k++) {
    tp_fsdp w = {0}; /* two ranks of it */
    reshard_tree more;
    const char *text = "";
    sharded_ranks_open(&w.p, 2, NULL);
    w.trees[0] = at_key("a", small(w.p.sharders[0], 0, &i32, 4, 2));
    switch (k) {
    case 0:
      text = "ranks 0 and 1 differ in the paths of nested tensors: 'a' and 'b'";
      w.trees[1] = at_key("b", small(w.p.sharders[1], 1, &i32, 4, 2));
      break;
    case 1:
      text = "ranks 0 and 1 differ in the number of nested tensors: 1 and 2";
      w.trees[1] = at_key("a", small(w.p.sharders[1], 1, &i32, 4, 2));
      more = small(w.p.sharders[1], 1, &i32, 4, 2);
      GOOD(reshard_tree_set(w.trees[1], "c", more));
      reshard_tree_release(more);
      break;
    case 2:
      text = "path 'a': ranks 0 and 1 differ: i32 of shape 4x2, requires_grad 0, pin_memory 0, and i32 of shape 5x2, "
             "requires_grad 0, pin_memory 0";
      w.trees[1] = at_key("a", small(w.p.sharders[1], 1, &i32, 5, 2));
      break;
    case 3:
      text = "path 'a': ranks 0 and 1 differ: i32 of shape 4x2, requires_grad 0, pin_memory 0, and f32 of";
      w.trees[1] = at_key("a", small(w.p.sharders[1], 1, &f32, 4, 2));
      break;
    case 4:
      text = "requires_grad 0, pin_memory 0, and i32 of shape 4x2, requires_grad 1, pin_memory 0";
      w.trees[1] = at_key("a", small(w.p.sharders[1], 1, &grad, 4, 2));
      break;
    case 5: text = "reshard_state_flatten_sharded_tensors_global: state is NULL"; break;
    case 6: { /* what rank 1 was to give is not there */
      const reshard_shard outer = rows(0, 4, 2, 0);
      text = "path 'a': no shard holds [2,4)x[0,2) of shape 4x2";
      w.trees[1] = at_key("a", nested(w.p.sharders[1], metadata(&i32, 4, 2, 1, &outer), 0, NULL, NULL));
      break;
    }
    case 7: { /* each took its own for all of it, and they differ */
      reshard_shard outer = rows(0, 4, 2, 1), inner = rows(0, 4, 2, 1);
      reshard_tree node = sharded(w.p.sharders[1], 1, metadata(&i32, 4, 2, 1, &inner));
      text = "path 'a': shards 0 (rank:0/cpu) and 1 (rank:1/cpu) overlap at [0,2)x[0,2)";
      w.trees[1] = at_key("a", nested(w.p.sharders[1], metadata(&i32, 4, 2, 1, &outer), 1, &outer, &node));
      break;
    }
    }
    sharded_ranks_run(&w.p, flatten_body, &w);
    sharded_ranks_assert(&w.p, k < 5 ? RESHARD_ERROR_MISMATCH : RESHARD_ERROR_INVALID, text);
    for (int r = 0; r < 2; r++) {
      assert_null(w.flat[r]);
      reshard_tree_release(w.trees[r]);
    }
    sharded_ranks_close(&w.p);
  }
}

/* A rank without a shard learns from the others what theirs are like. */
CASE(test_global_properties) {
  static const reshard_properties grad = {.dtype = RESHARD_I32, .requires_grad = 1};
  const reshard_shard outer = rows(0, 4, 2, 1);
  tp_fsdp w = {0}; /* two ranks of it */
  sharded_ranks_open(&w.p, 2, NULL);
  reshard_tree node = sharded(w.p.sharders[1], 1, metadata(&grad, 4, 2, 1, &outer));
  w.trees[0] = nested(w.p.sharders[0], metadata(&i32, 4, 2, 1, &outer), 0, NULL, NULL);
  w.trees[1] = nested(w.p.sharders[1], metadata(&i32, 4, 2, 1, &outer), 1, &outer, &node);
  sharded_ranks_run(&w.p, flatten_body, &w);
  sharded_ranks_assert(&w.p, RESHARD_SUCCESS, NULL);
  for (int r = 0; r < 2; r++) {
    reshard_sharded_tensor t;
    assert_shards(w.flat[r], "", "1:0-4x0-2 ");
    GOOD(reshard_state_get_sharded(w.flat[r], &t));
    assert_int_equal(reshard_metadata_properties(reshard_sharded_tensor_metadata(t)).requires_grad, 1);
    reshard_tree_release(w.flat[r]);
    reshard_tree_release(w.trees[r]);
  }
  sharded_ranks_close(&w.p);
}

/* A tree of another rank's tensors. */
CASE(test_global_rank) {
  sharded_ranks p;
  reshard_tree flat = NULL, tree;
  reshard_comm alone;
  reshard_sharder sharder;
  sharded_ranks_open(&p, 2, NULL);
  GOOD(reshard_comm_create_local(1, NULL, &alone));
  GOOD(reshard_sharder_create(alone, NULL, &sharder));
  tree = at_key("a", small(p.sharders[1], 1, &i32, 4, 2));
  BAD(reshard_state_flatten_sharded_tensors_global(sharder, tree, &flat),
      "rank 0: path 'a': a tensor of global rank 1, the sharder is rank 0's");
  reshard_tree_release(tree);
  reshard_sharder_destroy(sharder);
  reshard_comm_destroy(alone);
  sharded_ranks_close(&p);
}

/* --- Trees ---------------------------------------------------------------------------------------------------- */

CASE(flattening_keeps_other_nodes_of_a_tree) {
  sharded_ranks p;
  reshard_tree root, a, b, c, number, plain, weight, flat, found, other;
  sharded_ranks_open(&p, 2, NULL);
  weight = small(p.sharders[0], 0, &i32, 4, 2);
  GOOD(reshard_tree_int(7, &number));
  plain = at_key("n", number); /* nothing nested in it */
  a = at_key("w", weight);
  GOOD(reshard_tree_list(&b));
  GOOD(reshard_tree_append(b, plain));
  GOOD(reshard_tree_append(b, a));
  GOOD(reshard_tree_append(b, a));
  GOOD(reshard_tree_dict(&root));
  GOOD(reshard_tree_set(root, "first", plain));
  GOOD(reshard_tree_set(root, "b", b));
  GOOD(reshard_tree_set(root, "again", weight));
  GOOD(reshard_tree_set(root, "number", number));
  GOOD(reshard_state_flatten_sharded_tensors(root, &flat));
  static const char *const keys[] = {"first", "b", "again", "number"};
  for (int i = 0; i < 4; i++) {
    const char *key;
    GOOD(reshard_tree_child(flat, i, &key, &found));
    assert_string_equal(key, keys[i]);
  }
  GOOD(reshard_tree_find(flat, "first", &found));
  assert_ptr_equal(found, plain);
  GOOD(reshard_tree_find(flat, "number", &found));
  assert_ptr_equal(found, number);
  GOOD(reshard_tree_at(flat, "b.0", &found));
  assert_ptr_equal(found, plain);
  GOOD(reshard_tree_at(flat, "b.1", &found)); /* what was shared is shared */
  GOOD(reshard_tree_at(flat, "b.2", &c));
  assert_ptr_equal(found, c);
  assert_ptr_not_equal(found, a);
  GOOD(reshard_tree_at(flat, "b.2.w", &found));
  GOOD(reshard_tree_find(flat, "again", &other));
  assert_ptr_equal(found, other);
  assert_shards(flat, "b.1.w", "0:0-2x0-2 1:2-4x0-2 ");
  reshard_tree_release(flat);
  GOOD(reshard_state_flatten_sharded_tensors(weight, &flat)); /* the root itself */
  assert_shards(flat, "", "0:0-2x0-2 1:2-4x0-2 ");
  GOOD(reshard_state_flatten_sharded_tensors(flat, &found)); /* flat already */
  assert_ptr_equal(found, flat);
  reshard_tree_release(found);
  reshard_tree_release(flat);
  reshard_tree_release(root);
  reshard_tree_release(a);
  reshard_tree_release(b);
  reshard_tree_release(plain);
  sharded_ranks_close(&p);
}

/* No local shard: the original drops the key. */
CASE(test_no_local_shard) {
  const reshard_shard outer[2] = {rows(4, 8, 2, 2), rows(0, 4, 2, 1)};
  sharded_ranks p;
  reshard_tree tree, flat, leaf;
  reshard_sharded_tensor t;
  sharded_ranks_open(&p, 3, NULL);
  tree = at_key("x", nested(p.sharders[0], metadata(&i32, 8, 2, 2, outer), 0, NULL, NULL));
  GOOD(reshard_state_flatten_sharded_tensors(tree, &flat));
  assert_shards(flat, "x", "1:0-4x0-2 2:4-8x0-2 ");
  GOOD(reshard_tree_at(flat, "x", &leaf));
  GOOD(reshard_state_get_sharded(leaf, &t));
  assert_int_equal(reshard_sharded_tensor_local_count(t), 0);
  reshard_tree_release(flat);
  reshard_tree_release(tree);
  sharded_ranks_close(&p);
}

/* Empty shards are nobody's replicas, and stay; my own need not be given. */
CASE(empty_shards_stay) {
  const reshard_shard outer[4] = {rows(0, 4, 2, 1), rows(4, 4, 2, 0), rows(4, 4, 2, 1), rows(4, 4, 2, 2)};
  const reshard_shard inner[2] = {rows(0, 0, 2, 1), rows(0, 0, 2, 0)};
  sharded_ranks p;
  reshard_tree tree, flat, node;
  sharded_ranks_open(&p, 3, NULL);
  tree = nested(p.sharders[0], metadata(&i32, 4, 2, 4, outer), 0, NULL, NULL);
  GOOD(reshard_state_flatten_sharded_tensors(tree, &flat));
  assert_shards(flat, "", "0:4-4x0-2 1:0-4x0-2 1:4-4x0-2 2:4-4x0-2 ");
  reshard_tree_release(flat);
  reshard_tree_release(tree);
  node = sharded(p.sharders[0], 0, metadata(&i32, 0, 2, 2, inner));
  tree = nested(p.sharders[0], metadata(&i32, 4, 2, 4, outer), 1, &outer[1], &node);
  GOOD(reshard_state_flatten_sharded_tensors(tree, &flat));
  assert_shards(flat, "", "0:4-4x0-2 1:0-4x0-2 1:4-4x0-2 1:4-4x0-2 2:4-4x0-2 ");
  reshard_tree_release(flat);
  reshard_tree_release(tree);
  sharded_ranks_close(&p);
}

/* Replicas: of outer shards that are here, of those that are not, and of inner ones. */
CASE(replicas_of_outer_and_inner_shards_go_once) {
  const reshard_shard outer[4] = {rows(4, 8, 2, 3), rows(0, 4, 2, 2), rows(0, 4, 2, 0), rows(4, 8, 2, 1)};
  const reshard_shard inner[4] = {rows(0, 2, 2, 0), rows(0, 2, 2, 2), rows(2, 4, 2, 2), rows(2, 4, 2, 3)};
  sharded_ranks p;
  sharded_ranks_open(&p, 4, NULL);
  for (int64_t r = 0; r < 4; r += 2) {
    reshard_tree node = sharded(p.sharders[r], r, metadata(&i32, 4, 2, 4, inner)), tree, flat;
    tree = at_key("x", nested(p.sharders[r], metadata(&i32, 8, 2, 4, outer), 1, &outer[r == 0 ? 2 : 1], &node));
    GOOD(reshard_state_flatten_sharded_tensors(tree, &flat));
    assert_shards(flat, "x", r == 0 ? "0:0-2x0-2 1:4-8x0-2 2:2-4x0-2 " : "1:4-8x0-2 2:0-2x0-2 2:2-4x0-2 ");
    reshard_tree_release(flat);
    reshard_tree_release(tree);
  }
  sharded_ranks_close(&p);
}

/* One in the other, so many times: no stack is needed, and offsets add up. */
CASE(deep_nestings_add_their_offsets) {
  enum { LEVELS = 20000 };
  sharded_ranks p;
  sharded_ranks_open(&p, 2, NULL);
  reshard_shard own = rows(0, 2, 2, 0);
  reshard_tree tree = sharded(p.sharders[0], 0, metadata(&i32, 2, 2, 1, &own)), flat, leaf;
  for (int64_t i = 1; i < LEVELS; i++) { /* one row more, on the other rank, above or below */
    const reshard_shard outer[2] = {rows(i % 2, i + 1 + i % 2, 2, 0),
                                    i % 2 ? rows(0, 1, 2, 1) : rows(i + 1, i + 2, 2, 1)};
    tree = nested(p.sharders[0], metadata(&i32, i + 2, 2, 2, outer), 1, outer, &tree);
    if (i == 1) { /* 3 rows: the inner tensor of 2 begins at row 1 */
      GOOD(reshard_state_flatten_sharded_tensors(tree, &flat));
      assert_shards(flat, "", "0:1-3x0-2 1:0-1x0-2 ");
      reshard_tree_release(flat);
    }
  }
  reshard_sharded_tensor t;
  reshard_box box;
  GOOD(reshard_state_flatten_sharded_tensors(tree, &flat));
  GOOD(reshard_tree_at(flat, "", &leaf));
  GOOD(reshard_state_get_sharded(leaf, &t));
  assert_int_equal(reshard_metadata_count(reshard_sharded_tensor_metadata(t)), LEVELS);
  GOOD(reshard_sharded_tensor_local(t, 0, NULL, &box));
  assert_int_equal(box.offset[0], LEVELS / 2);
  reshard_tree_release(flat);
  reshard_tree_release(tree);
  sharded_ranks_close(&p);
}

/* --- Arrays that are many boxes ------------------------------------------------------------------------------- */

CASE(nestings_of_every_layout_are_flattened) {
  static const char *const kinds[] = {"chunk(1)", "cyclic(2x2;2x1)", "mesh(2x2;S0*2,S0)", "mesh(2x2;S1,R)",
                                      "flat()",   "rank(2)",         "cyclic(4x1;1x5)",   "mesh(4;R)"};
  static const int64_t shape[2] = {14, 5}, half[2] = {7, 5};
  sharded_ranks p;
  sharded_ranks_open(&p, 4, NULL);
  for (size_t a = 0; a < sizeof kinds / sizeof *kinds; a++)
    for (size_t b = 0; b < sizeof kinds / sizeof *kinds; b++)
      for (int64_t r = 0; r < 4; r++) { /* both halves are here, in inner tensors of these layouts */
        const reshard_shard outer[2] = {rows(0, 7, 5, r), rows(7, 14, 5, r)};
        reshard_tree inner[2], tree, flat;
        reshard_sharded_tensor t;
        for (int k = 0; k < 2; k++) {
          reshard_layout cut = layout_from_text(kinds[k == 0 ? a : b], 2, half, 4);
          GOOD(reshard_sharded_tensor_empty(p.sharders[r], cut, &i32, NULL, &t));
          nested_fill(t, r, &outer[k].box, shape);
          GOOD(reshard_state_sharded(t, &inner[k]));
          reshard_sharded_tensor_release(t);
          reshard_layout_release(cut);
        }
        tree = nested(p.sharders[r], metadata(&i32, 14, 5, 2, outer), 2, outer, inner);
        GOOD(reshard_state_flatten_sharded_tensors(tree, &flat));
        GOOD(reshard_state_get_sharded(flat, &t));
        assert_int_equal(nested_check(t), 0);
        reshard_tree_release(tree); /* the views keep the arrays */
        assert_int_equal(nested_check(t), 0);
        reshard_tree_release(flat);
      }
  sharded_ranks_close(&p);
}

/* --- Refusals ------------------------------------------------------------------------------------------------- */

CASE(test_leaf_refusals) {
  reshard_tree leaf, made;
  reshard_sharded_tensor tensor;
  reshard_dtensor dtensor;
  GOOD(reshard_tree_int(3, &leaf));
  BAD(reshard_state_sharded(NULL, &made), "reshard_state_sharded: tensor is NULL");
  BAD(reshard_state_dtensor(NULL, &made), "reshard_state_dtensor: tensor is NULL");
  BAD(reshard_state_get_sharded(leaf, &tensor),
      "reshard_state_get_sharded: the leaf is an integer, not a sharded tensor");
  BAD(reshard_state_get_dtensor(leaf, &dtensor), "reshard_state_get_dtensor: the leaf is an integer, not a DTensor");
  BAD(reshard_state_get_nested(leaf, NULL, NULL, NULL, NULL),
      "reshard_state_get_nested: the leaf is an integer, not a nested sharded tensor");
  BAD(reshard_state_get_sharded(NULL, &tensor), "reshard_state_get_sharded: leaf is NULL");
  BAD(reshard_state_get_sharded(leaf, NULL), "reshard_state_get_sharded: the output is NULL");
  BAD(reshard_state_get_nested(NULL, NULL, NULL, NULL, NULL), "reshard_state_get_nested: leaf is NULL");
  BAD(reshard_state_flatten_sharded_tensors(NULL, &made), "reshard_state_flatten_sharded_tensors: state is NULL");
  BAD(reshard_state_flatten_sharded_tensors(leaf, NULL), "reshard_state_flatten_sharded_tensors: flat is NULL");
  BAD(reshard_state_flatten_sharded_tensors_global(NULL, leaf, &made),
      "reshard_state_flatten_sharded_tensors_global: sharder is NULL");
  GOOD(reshard_state_flatten_sharded_tensors(leaf, &made)); /* nothing in it: the same */
  assert_ptr_equal(made, leaf);
  reshard_tree_release(made);
  reshard_tree_release(leaf);
}

CASE(test_making_refusals) {
  static const reshard_properties f32 = {.dtype = RESHARD_F32};
  const reshard_shard outer[3] = {rows(0, 4, 2, 0), rows(4, 8, 2, 1), rows(4, 8, 2, 0)};
  const reshard_shard half[2] = {rows(0, 4, 2, 0), rows(0, 4, 2, 1)}, small_one = rows(0, 3, 2, 0);
  sharded_ranks p;
  reshard_tree inner, s = NULL, number, twice[2], none = NULL;
  sharded_ranks_open(&p, 2, NULL);
  reshard_metadata m = metadata(&i32, 8, 2, 2, outer), both = metadata(&i32, 8, 2, 3, outer);
  inner = sharded(p.sharders[0], 0, metadata(&i32, 4, 2, 1, half));
  GOOD(reshard_tree_int(1, &number));
  BAD(reshard_state_nested(NULL, m, 1, outer, &inner, &s), "reshard_state_nested: sharder is NULL");
  BAD(reshard_state_nested(p.sharders[0], NULL, 1, outer, &inner, &s), "reshard_state_nested: outer is NULL");
  BAD(reshard_state_nested(p.sharders[0], m, -1, outer, &inner, &s), "reshard_state_nested: -1 shards, 0 is the least");
  BAD(reshard_state_nested(p.sharders[0], m, 1, NULL, &inner, &s), "reshard_state_nested: 1 shards, shards is NULL");
  BAD(reshard_state_nested(p.sharders[0], m, 1, outer, NULL, &s), "reshard_state_nested: 1 shards, inner is NULL");
  BAD(reshard_state_nested(p.sharders[0], m, 1, outer, &inner, NULL), "reshard_state_nested: the output is NULL");
  BAD(reshard_state_nested(p.sharders[0], m, 1, outer, &none, &s),
      "reshard_state_nested: inner tensor 0 is NULL, and should be a sharded or a nested one");
  BAD(reshard_state_nested(p.sharders[0], m, 1, outer, &number, &s),
      "reshard_state_nested: inner tensor 0 is an integer, and should be a sharded or a nested one");
  BAD(reshard_state_nested(p.sharders[0], m, 0, NULL, NULL, &s),
      "reshard_state_nested: outer shard 0 is this rank's and not given: [0,4)x[0,2) on rank:0/cpu");
  BAD(reshard_state_nested(p.sharders[0], both, 1, outer, &inner, &s),
      "reshard_state_nested: outer shard 2 is this rank's and not given: [4,8)x[0,2) on rank:0/cpu");
  BAD(reshard_state_nested(p.sharders[0], m, 1, &outer[2], &inner, &s),
      "reshard_state_nested: local shard 0 is not in the outer metadata: [4,8)x[0,2) on rank:0/cpu");
  const reshard_shard same[2] = {outer[0], outer[0]};
  twice[0] = twice[1] = inner;
  BAD(reshard_state_nested(p.sharders[0], m, 2, same, twice, &s),
      "reshard_state_nested: local shard 1 is given more often than the outer metadata has it: [0,4)x[0,2) on "
      "rank:0/cpu");
  BAD(reshard_state_nested(p.sharders[1], m, 1, outer, &inner, &s),
      "reshard_state_nested: inner tensor 0 is global rank 0's, the outer one is 1's");
  reshard_tree_release(inner);
  inner = sharded(p.sharders[0], 0, metadata(&i32, 3, 2, 1, &small_one));
  BAD(reshard_state_nested(p.sharders[0], m, 1, outer, &inner, &s),
      "reshard_state_nested: inner tensor 0 is of shape 3x2, its shard of size 4x2");
  reshard_tree_release(inner);
  inner = sharded(p.sharders[0], 0, metadata(&f32, 4, 2, 1, half));
  BAD(reshard_state_nested(p.sharders[0], m, 1, outer, &inner, &s),
      "reshard_state_nested: inner tensor 0 is f32, the outer one is i32");
  reshard_tree_release(inner);
  assert_null(s);
  reshard_tree_release(number);
  reshard_metadata_release(m);
  reshard_metadata_release(both);
  sharded_ranks_close(&p);
}

/* Outer shards of which the first is here, whole, and the rest elsewhere. */
static reshard_status flatten_outer(const sharded_ranks *p, const reshard_properties *inner_properties, int64_t n,
                                    const reshard_shard *outer) {
  const int64_t height = outer[0].box.extent[0];
  const reshard_shard whole = rows(0, height, 2, 0);
  reshard_tree inner = sharded(p->sharders[0], 0, metadata(inner_properties, height, 2, 1, &whole)), flat = NULL;
  reshard_tree tree =
      at_key("model",
             at_key("layer.0", at_key("w", nested(p->sharders[0], metadata(&i32, 8, 2, n, outer), 1, outer, &inner))));
  reshard_status status = reshard_state_flatten_sharded_tensors(tree, &flat);
  assert_null(flat);
  reshard_tree_release(tree);
  return status;
}

CASE(test_flatten_refusals) {
  const reshard_shard gap[2] = {rows(0, 4, 2, 0), rows(5, 8, 2, 1)};
  const reshard_shard overlap[3] = {rows(0, 4, 2, 0), rows(3, 8, 2, 1)};
  const reshard_shard beyond[2] = {rows(0, 4, 2, 0), rows(4, 9, 2, 1)};
  const reshard_shard nowhere[2] = {rows(0, 4, 2, 0), rows(4, 8, 2, -1)};
  const reshard_shard stranger[2] = {rows(0, 4, 2, 0), rows(4, 8, 2, 9)};
  sharded_ranks p;
  sharded_ranks_open(&p, 2, NULL);
  BAD(flatten_outer(&p, &i32, 2, gap), "path 'model.layer.0.w': no shard holds [4,5)x[0,2) of shape 8x2");
  BAD(flatten_outer(&p, &i32, 2, overlap),
      "path 'model.layer.0.w': shards 0 (rank:0/cpu) and 1 (rank:1/cpu) overlap at [3,4)x[0,2): they are [0,4)x[0,2) "
      "and [3,8)x[0,2)");
  BAD(flatten_outer(&p, &i32, 2, beyond),
      "path 'model.layer.0.w': shard 1 (rank:1/cpu) has offset 4 and size 5 in dim 0 of shape 8x2");
  BAD(flatten_outer(&p, &i32, 2, nowhere), "path 'model.layer.0.w': shard 0 is placed on cpu, without a rank");
  assert_int_equal(flatten_outer(&p, &i32, 2, stranger), RESHARD_ERROR_INVALID);
  assert_non_null(strstr(reshard_last_error(), "path 'model.layer.0.w': "));
  assert_non_null(strstr(reshard_last_error(), "9"));

  /* two inner tensors, of which one has gradients */
  static const reshard_properties grad = {.dtype = RESHARD_I32, .requires_grad = 1, .pin_memory = 1};
  const reshard_shard two[2] = {rows(0, 4, 2, 0), rows(4, 8, 2, 0)};
  reshard_tree inner[2] = {sharded(p.sharders[0], 0, metadata(&i32, 4, 2, 1, two)),
                           sharded(p.sharders[0], 0, metadata(&grad, 4, 2, 1, two))},
               tree, flat;
  tree = nested(p.sharders[0], metadata(&i32, 8, 2, 2, two), 2, two, inner);
  BAD(reshard_state_flatten_sharded_tensors(tree, &flat),
      "path '': inner tensors differ: requires_grad 0 and pin_memory 0, requires_grad 1 and pin_memory 1");
  reshard_tree_release(tree);

  /* a shard far outside of its tensor, in one that is far outside of its own */
  const reshard_shard far[2] = {rows(INT64_MAX - 4, INT64_MAX, 2, 0), rows(0, 4, 2, 1)};
  const reshard_shard far_outer = rows(9, 13, 2, 0);
  inner[0] = sharded(p.sharders[0], 0, metadata(&i32, 4, 2, 1, two));
  tree = nested(p.sharders[0], metadata(&i32, 4, 2, 2, far), 1, far, inner);
  tree = nested(p.sharders[0], metadata(&i32, 13, 2, 1, &far_outer), 1, &far_outer, &tree);
  BAD(reshard_state_flatten_sharded_tensors(tree, &flat),
      "path '': offsets 9 and 9223372036854775803 of outer and inner shard overflow in dim 0");
  reshard_tree_release(tree);
  sharded_ranks_close(&p);
}

RUN_CASES
