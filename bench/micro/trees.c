/* Trees of 100,000 tensors, as a large model's: 250 layers of 4 parts of 100 tensors each; and one dict of as many. An
 * item is one leaf. tree_map replaces every tensor, and the result is freed; tree_map_same replaces none, and the
 * result is the same tree. tree_flatten_rebuild flattens to paths and leaves, replaces every leaf, and rebuilds. */
#include "bench/micro/micro.h"

#include <reshard/tree.h>

#include <stdio.h>
#include <stdlib.h>

enum { LEAVES = 100000, LAYERS = 250, PARTS = 4, TENSORS = 100 };

typedef struct tree_bench {
  reshard_tree tree, leaf;
  reshard_tensor other;
  reshard_tree *leaves; /* LEAVES times leaf */
  int same;
} tree_bench;

static void tree_drop(void *state) {
  tree_bench *g = state;
  reshard_tree_release(g->tree);
  reshard_tree_release(g->leaf);
  reshard_tensor_release(g->other);
  free(g->leaves);
  free(g);
}

static int add_child(reshard_tree container, const char *key, reshard_tree child) {
  int failed = key != NULL ? reshard_tree_set(container, key, child) : reshard_tree_append(container, child);
  reshard_tree_release(child);
  return failed;
}

static int add_tensors(reshard_tree dict, int n) {
  static const int64_t shape[1] = {1};
  for (int i = 0; i < n; i++) {
    reshard_tensor tensor;
    reshard_tree leaf = NULL;
    char key[32];
    snprintf(key, sizeof key, "tensor%d.weight", i);
    if (reshard_tensor_create(RESHARD_F32, 1, shape, &tensor))
      return 1;
    int failed = reshard_tree_tensor(tensor, &leaf);
    reshard_tensor_release(tensor);
    if (failed || add_child(dict, key, leaf))
      return 1;
  }
  return 0;
}

static int add_layers(reshard_tree root) {
  static const char *const parts[PARTS] = {"attention", "mlp", "norm", "experts"};
  reshard_tree layers, layer, part;
  if (reshard_tree_list(&layers) || add_child(root, "layers", layers))
    return 1;
  for (int l = 0; l < LAYERS; l++) {
    if (reshard_tree_dict(&layer) || add_child(layers, NULL, layer))
      return 1;
    for (int p = 0; p < PARTS; p++)
      if (reshard_tree_dict(&part) || add_child(layer, parts[p], part) || add_tensors(part, TENSORS))
        return 1;
  }
  return 0;
}

static tree_bench *tree_bench_create(int flat) {
  static const int64_t shape[1] = {1};
  tree_bench *g = calloc(1, sizeof *g);
  if (g == NULL)
    return NULL;
  g->leaves = malloc(LEAVES * sizeof(reshard_tree));
  if (g->leaves == NULL || reshard_tree_dict(&g->tree) || (flat ? add_tensors(g->tree, LEAVES) : add_layers(g->tree)) ||
      reshard_tensor_create(RESHARD_F32, 1, shape, &g->other) || reshard_tree_tensor(g->other, &g->leaf)) {
    tree_drop(g);
    return NULL;
  }
  for (int i = 0; i < LEAVES; i++)
    g->leaves[i] = g->leaf;
  return g;
}

static void *tree_make(int64_t parameter, int64_t *items) {
  (void)parameter;
  *items = LEAVES;
  return tree_bench_create(0);
}

static void *tree_make_flat(int64_t parameter, int64_t *items) {
  (void)parameter;
  *items = LEAVES;
  return tree_bench_create(1);
}

static void *tree_make_same(int64_t parameter, int64_t *items) {
  tree_bench *g = tree_make(parameter, items);
  if (g != NULL)
    g->same = 1;
  return g;
}

static reshard_status map_tensor(void *user, const char *path, reshard_tensor tensor, reshard_tensor *mapped) {
  const tree_bench *g = user;
  (void)path;
  (void)tensor;
  if (!g->same)
    *mapped = reshard_tensor_retain(g->other);
  return RESHARD_SUCCESS;
}

static int tree_run_map(void *state) {
  tree_bench *g = state;
  reshard_tree mapped;
  if (reshard_tree_map_tensors(g->tree, map_tensor, g, &mapped))
    return 1;
  int wrong = (mapped == g->tree) != g->same;
  reshard_tree_release(mapped);
  return wrong;
}

static int tree_run_rebuild(void *state) {
  tree_bench *g = state;
  const reshard_tree_leaves *flat;
  reshard_tree rebuilt;
  if (reshard_tree_flatten(g->tree, &flat))
    return 1;
  int failed = flat->n != LEAVES || reshard_tree_rebuild(g->tree, LEAVES, g->leaves, &rebuilt);
  reshard_tree_leaves_release(flat);
  if (!failed)
    reshard_tree_release(rebuilt);
  return failed;
}

static const micro_case micro_trees[] = {
    {"tree_map", 0, 0, tree_make, tree_run_map, tree_drop},
    {"tree_map_flat", 0, 0, tree_make_flat, tree_run_map, tree_drop},
    {"tree_map_same", 0, 0, tree_make_same, tree_run_map, tree_drop},
    {"tree_flatten_rebuild", 0, 0, tree_make, tree_run_rebuild, tree_drop},
    {"tree_flatten_rebuild_flat", 0, 0, tree_make_flat, tree_run_rebuild, tree_drop},
};
MICRO_TABLE(micro_trees, NULL)
