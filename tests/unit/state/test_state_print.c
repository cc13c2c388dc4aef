/* Trees with sharded tensors, DTensors and nested tensors as they are drawn: dtype, shape, and how they are cut. */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/sharded_ranks.h"

#include <reshard/dtensor.h>
#include <reshard/state_dict.h>

#include <stdio.h>
#include <string.h>

enum { RANKS = 4 };
static const int64_t shape[2] = {8, 6};
static const reshard_properties bf16 = {.dtype = RESHARD_BF16, .requires_grad = 1}, f32 = {.dtype = RESHARD_F32};

typedef struct world {
  sharded_ranks p;
  reshard_sharder sharder; /* of rank 1 */
  reshard_tree state;
} world;

static void state_add(world *w, const char *key, reshard_tree leaf) {
  GOOD(reshard_tree_set(w->state, key, leaf));
  reshard_tree_release(leaf);
}

static reshard_tree sharded_leaf(const world *w, const char *text, const int64_t *of) {
  reshard_layout layout;
  reshard_sharded_tensor tensor;
  reshard_tree leaf;
  GOOD(reshard_layout_parse(text, 2, of, RANKS, &layout));
  GOOD(reshard_sharded_tensor_empty(w->sharder, layout, &bf16, NULL, &tensor));
  GOOD(reshard_state_sharded(tensor, &leaf));
  reshard_sharded_tensor_release(tensor);
  reshard_layout_release(layout);
  return leaf;
}

static void add_dtensor(world *w) {
  const reshard_placement placements[2] = {{.kind = RESHARD_PLACEMENT_SHARD}, {.kind = RESHARD_PLACEMENT_REPLICATE}};
  reshard_mesh mesh;
  reshard_dtensor tensor;
  reshard_tree leaf;
  GOOD(reshard_mesh_parse(w->p.comms[1], 0, "dp=2,tp=2", &mesh));
  const reshard_placing placing = {mesh, placements, NULL};
  GOOD(reshard_dtensor_empty(w->sharder, &placing, 2, shape, &f32, NULL, &tensor));
  GOOD(reshard_state_dtensor(tensor, &leaf));
  state_add(w, "norm", leaf);
  reshard_dtensor_release(tensor);
  reshard_mesh_release(mesh);
}

/* Two parts of rows, of which the second is here. */
static void add_nested(world *w) {
  const int64_t rows[2] = {4, 6};
  const reshard_shard shards[2] = {{{{0, 0}, {4, 6}}, {0, RESHARD_DEVICE_CPU, -1}},
                                   {{{4, 0}, {4, 6}}, {1, RESHARD_DEVICE_CPU, -1}}};
  reshard_tree inner = sharded_leaf(w, "chunk(0;1,3)", rows), leaf;
  reshard_metadata outer;
  GOOD(reshard_metadata_create(&bf16, 2, shape, 2, shards, &outer));
  GOOD(reshard_state_nested(w->sharder, outer, 1, &shards[1], &inner, &leaf));
  state_add(w, "wq", leaf);
  reshard_tree_release(inner);
  reshard_metadata_release(outer);
}

CASE(trees_are_drawn_with_dtypes_shapes_and_cuts) {
  static const char drawn[] =
      "dict\n"
      "├── embedding: <sharded tensor> bf16 8x6 chunk(0;0-3) requires_grad\n"
      "├── norm: <DTensor> f32 8x6 mesh(dp=2,tp=2@0-3;S0,R)\n"
      "├── wq: <nested sharded tensor> bf16 8x6 requires_grad, 1 of 2 shards here: [4,8)x[0,6) of bf16 4x6 "
      "chunk(0;1,3) requires_grad\n"
      "└── value: <handle>\n";
  static const reshard_tree_type handle = {.name = "handle"};
  world w;
  reshard_tree value;
  char text[1024];
  size_t needed;
  sharded_ranks_open(&w.p, RANKS, NULL);
  w.sharder = w.p.sharders[1];
  GOOD(reshard_tree_dict(&w.state));
  state_add(&w, "embedding", sharded_leaf(&w, "chunk(0)", shape));
  add_dtensor(&w);
  add_nested(&w);
  GOOD(reshard_tree_opaque(&handle, text, &value));
  state_add(&w, "value", value);
  GOOD(reshard_tree_print(w.state, text, sizeof text, &needed));
  assert_string_equal(text, drawn);
  assert_int_equal(needed, sizeof drawn);
  reshard_tree_release(w.state);
  sharded_ranks_close(&w.p);
}

/* A layout of a hundred boxes is cut off, and the line ends there. */
CASE(test_long_layout) {
  const int64_t tall[2] = {100, 1};
  world w;
  char boxes[4096] = "boxes(", text[1024];
  size_t n = strlen(boxes);
  for (int i = 0; i < 100; i++)
    n += (size_t)snprintf(boxes + n, sizeof boxes - n, "%s%d:[%d,0]+[1,1]", i > 0 ? ";" : "", i % RANKS, i);
  snprintf(boxes + n, sizeof boxes - n, ")");
  sharded_ranks_open(&w.p, RANKS, NULL);
  w.sharder = w.p.sharders[1];
  reshard_tree leaf = sharded_leaf(&w, boxes, tall);
  GOOD(reshard_tree_print(leaf, text, sizeof text, NULL));
  assert_memory_equal(text, "<sharded tensor> bf16 100x1 boxes(0:[0,0]+[1,1];", 48);
  assert_non_null(strstr(text, "... requires_grad\n"));
  assert_true(strlen(text) < 300);
  reshard_tree_release(leaf);
  sharded_ranks_close(&w.p);
}

RUN_CASES
