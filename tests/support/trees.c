#include "support/trees.h"

#include "support/expect.h"

#include <string.h>

reshard_tree integer(int64_t value) {
  reshard_tree made;
  GOOD(reshard_tree_int(value, &made));
  return made;
}

reshard_tree real(double value) {
  reshard_tree made;
  GOOD(reshard_tree_float(value, &made));
  return made;
}

reshard_tree flag(int value) {
  reshard_tree made;
  GOOD(reshard_tree_bool(value, &made));
  return made;
}

reshard_tree nothing(void) {
  reshard_tree made;
  GOOD(reshard_tree_null(&made));
  return made;
}

reshard_tree text(const char *text) {
  reshard_tree made;
  GOOD(reshard_tree_bytes(text, strlen(text), &made));
  return made;
}

reshard_tree dict(void) {
  reshard_tree made;
  GOOD(reshard_tree_dict(&made));
  return made;
}

reshard_tree list(void) {
  reshard_tree made;
  GOOD(reshard_tree_list(&made));
  return made;
}

reshard_tree tuple(void) {
  reshard_tree made;
  GOOD(reshard_tree_tuple(&made));
  return made;
}

reshard_tree structure(const char *name) {
  reshard_tree made;
  GOOD(reshard_tree_struct(name, &made));
  return made;
}

reshard_tree leaf_of(reshard_tensor tensor) {
  reshard_tree made;
  GOOD(reshard_tree_tensor(tensor, &made));
  reshard_tensor_release(tensor);
  return made;
}

reshard_tree packed(reshard_tensor data, int64_t steps, const int64_t *sizes) {
  reshard_tree made;
  GOOD(reshard_tree_packed(data, steps, sizes, NULL, NULL, &made));
  reshard_tensor_release(data);
  return made;
}

reshard_tree set(reshard_tree container, const char *key, reshard_tree child) {
  GOOD(reshard_tree_set(container, key, child));
  reshard_tree_release(child);
  return container;
}

reshard_tree append(reshard_tree container, reshard_tree child) {
  GOOD(reshard_tree_append(container, child));
  reshard_tree_release(child);
  return container;
}

reshard_tensor floats(int64_t n) {
  reshard_tensor tensor;
  GOOD(reshard_tensor_create(RESHARD_F32, 1, &n, &tensor));
  return tensor;
}

reshard_tree node_at(reshard_tree tree, const char *path) {
  reshard_tree found;
  GOOD(reshard_tree_at(tree, path, &found));
  return found;
}

int64_t value_at(reshard_tree tree, const char *path) {
  int64_t value = -1;
  GOOD(reshard_tree_get_int(node_at(tree, path), &value));
  return value;
}
