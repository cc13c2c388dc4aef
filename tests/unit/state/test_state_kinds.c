/* Checkpoints of trees that are more than dicts and lists: tuples, structs, packed sequences; and of values that no
 * checkpoint can have. */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scratch.h"
#include "support/fixtures/trees.h"

#include <reshard/state_dict.h>

#include <stdlib.h>
#include <string.h>

typedef struct world {
  reshard_comm comm;
  reshard_sharder sharder;
} world;

static int open_world(void **state) {
  world *w = calloc(1, sizeof *w);
  GOOD(reshard_comm_create_local(1, NULL, &w->comm));
  GOOD(reshard_sharder_create(w->comm, NULL, &w->sharder));
  *state = w;
  return 0;
}

static int close_world(void **state) {
  world *w = *state;
  reshard_sharder_destroy(w->sharder);
  reshard_comm_destroy(w->comm);
  free(w);
  return 0;
}

static float *memory_of(reshard_tree tree, const char *path) {
  reshard_tensor tensor;
  reshard_tensor_info info;
  GOOD(reshard_tree_get_tensor(node_at(tree, path), &tensor));
  GOOD(reshard_tensor_get_info(tensor, &info));
  return info.data;
}

/* Numbers and elements from `first` on. */
static reshard_tree make_state(int64_t first) {
  static const int64_t sizes[2] = {2, 1};
  reshard_tree root = set(set(structure("Checkpoint"), "epoch", integer(first)), "seq", packed(floats(3), 2, sizes));
  set(root, "state", append(append(tuple(), real((double)first + 0.5)), leaf_of(floats(2))));
  for (int i = 0; i < 3; i++)
    memory_of(root, "seq.data")[i] = (float)(first + i);
  for (int i = 0; i < 2; i++)
    memory_of(root, "state.1")[i] = (float)(first + 10 + i);
  return root;
}

static void tuples_structs_and_sequences_are_saved_by_their_data(void **state) {
  const world *w = *state;
  reshard_tree saved = make_state(1), loaded = make_state(100), data = node_at(loaded, "seq.data");
  double number;
  const int64_t *sizes;
  char path[256];
  strcpy(path, scratch_path("kinds"));
  GOOD(reshard_state_save(w->sharder, saved, path, NULL, NULL));
  GOOD(reshard_state_load(w->sharder, loaded, path, NULL, NULL));
  assert_int_equal(value_at(loaded, "epoch"), 1);
  GOOD(reshard_tree_get_float(node_at(loaded, "state.0"), &number));
  assert_true(number == 1.5);
  assert_memory_equal(memory_of(loaded, "seq.data"), memory_of(saved, "seq.data"), 3 * sizeof(float));
  assert_memory_equal(memory_of(loaded, "state.1"), memory_of(saved, "state.1"), 2 * sizeof(float));
  assert_ptr_equal(node_at(loaded, "seq.data"), data); /* filled where it is */
  GOOD(reshard_tree_get_packed(node_at(loaded, "seq"), NULL, NULL, &sizes, NULL, NULL));
  assert_int_equal(sizes[1], 1);
  reshard_tree_release(saved);
  reshard_tree_release(loaded);
}

static void test_own_values(void **state) {
  static const reshard_tree_type handle = {.name = "handle"};
  const world *w = *state;
  reshard_tree root = set(dict(), "epoch", integer(1)), own;
  char path[256];
  strcpy(path, scratch_path("own"));
  GOOD(reshard_state_save(w->sharder, root, path, NULL, NULL));
  GOOD(reshard_tree_opaque(&handle, root, &own));
  set(root, "list", append(list(), own));
  FAILS_WITH(reshard_state_load(w->sharder, root, path, NULL, NULL), RESHARD_ERROR_INVALID,
             "path 'list.0': a handle, which a checkpoint cannot have");
  strcpy(path, scratch_path("none"));
  FAILS_WITH(reshard_state_save(w->sharder, root, path, NULL, NULL), RESHARD_ERROR_INVALID,
             "path 'list.0': a handle, which a checkpoint cannot have");
  reshard_tree_release(root);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(tuples_structs_and_sequences_are_saved_by_their_data, open_world, close_world),
      cmocka_unit_test_setup_teardown(test_own_values, open_world, close_world)};
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
