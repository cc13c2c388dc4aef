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

static void *tree_make(const micro_case *of, int64_t *items) {
  static const int64_t shape[1] = {1};
  tree_bench *g = calloc(1, sizeof *g);
  *items = LEAVES;
  if (g == NULL)
    return NULL;
  g->same = of->more[1] != 0;
  g->leaves = malloc(LEAVES * sizeof(reshard_tree));
  if (g->leaves == NULL || reshard_tree_dict(&g->tree) ||
      (of->more[0] ? add_tensors(g->tree, LEAVES) : add_layers(g->tree)) ||
      reshard_tensor_create(RESHARD_F32, 1, shape, &g->other) || reshard_tree_tensor(g->other, &g->leaf)) {
    tree_drop(g);
    return NULL;
  }
  for (int i = 0; i < LEAVES; i++)
    g->leaves[i] = g->leaf;
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

#define CASE(name, run, flat, same) \
  { "tree_" name, 0, 0, tree_make, run, tree_drop, {flat, same}, NULL }
static const micro_case micro_trees[] = {
    CASE("map", tree_run_map, 0, 0),
    CASE("map_flat", tree_run_map, 1, 0),
    CASE("map_same", tree_run_map, 0, 1),
    CASE("flatten_rebuild", tree_run_rebuild, 0, 0),
    CASE("flatten_rebuild_flat", tree_run_rebuild, 1, 0),
};
MICRO_TABLE(micro_trees, NULL)
