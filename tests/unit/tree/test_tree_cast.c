/* Trees cast to another dtype, and moved to a device where they are already, on the CPU. What a number becomes is
 * floating_tensors_are_cast_and_the_rest_stays's matter; here it is what becomes of the tree. */
#include "bench/cli/naive_cast.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/trees.h"

#include <reshard/move.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int open_cpu(void **state) {
  const reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .threads = 2};
  return reshard_device_create("cpu", &options, (reshard_device *)state) != RESHARD_SUCCESS;
}

static int close_cpu(void **state) {
  reshard_memory_stats stats;
  GOOD(reshard_device_get_memory_stats(*state, &stats));
  assert_int_equal(stats.in_use_bytes, 0);
  reshard_device_release(*state);
  return 0;
}

/* A tensor with a pattern of bytes in it. */
static reshard_tensor filled(reshard_dtype dtype, int ndim, const int64_t *shape, unsigned salt) {
  reshard_tensor tensor;
  reshard_tensor_info info;
  GOOD(reshard_tensor_create(dtype, ndim, shape, &tensor));
  GOOD(reshard_tensor_get_info(tensor, &info));
  for (size_t i = 0; i < info.storage_bytes; i++)
    ((unsigned char *)info.data)[i] = (unsigned char)((i + salt) * 37 ^ i >> 3);
  return tensor;
}

static uint64_t bits_at(const reshard_tensor_info *info, const int64_t *index) {
  uint64_t bits = 0;
  size_t width = reshard_dtype_size(info->dtype);
  const char *at = info->data;
  for (int d = 0; d < info->ndim; d++)
    at += index[d] * info->strides[d] * (int64_t)width;
  memcpy(&bits, at, width); /* the tests' machines have the lowest byte first */
  return bits;
}

static reshard_tensor tensor_of(reshard_tree tree, const char *path) {
  reshard_tensor tensor;
  GOOD(reshard_tree_get_tensor(node_at(tree, path), &tensor));
  return tensor;
}

/* The tensor is what casting the other one gives, in every way. */
static void assert_cast(reshard_tensor cast, reshard_tensor src, reshard_dtype to) {
  reshard_tensor_info is, was;
  GOOD(reshard_tensor_get_info(cast, &is));
  GOOD(reshard_tensor_get_info(src, &was));
  assert_int_equal(is.dtype, to);
  assert_int_equal(is.ndim, was.ndim);
  assert_memory_equal(is.shape, was.shape, (size_t)is.ndim * sizeof *is.shape);
  assert_true(is.contiguous);
  assert_int_equal(is.offset, 0);
  assert_int_equal(is.storage_bytes, (size_t)was.elements * reshard_dtype_size(to));
  assert_int_equal(is.requires_grad, was.requires_grad);
  for (int64_t i = 0; i < was.elements; i++) {
    int64_t index[RESHARD_MAX_DIMS], rest = i;
    for (int d = was.ndim - 1; d >= 0; d--) {
      index[d] = rest % was.shape[d];
      rest /= was.shape[d];
    }
    assert_int_equal(bits_at(&is, index), naive_cast(was.dtype, to, bits_at(&was, index)));
  }
}

static void floating_tensors_are_cast_and_the_rest_stays(void **state) {
  reshard_device cpu = *state;
  const int64_t shape[2] = {13, 21}, none[2] = {0, 5}, rows[2] = {5, 3}, sizes[2] = {3, 2};
  const int order[2] = {1, 0};
  reshard_tensor weight = filled(RESHARD_F32, 2, shape, 1), turned, part;
  reshard_tensor_set_requires_grad(weight, 1);
  GOOD(reshard_tensor_permute(weight, order, &turned));
  GOOD(reshard_tensor_narrow(turned, 0, 3, 7, &part));
  reshard_tensor_release(turned);
  reshard_tree shared = leaf_of(reshard_tensor_retain(weight));
  reshard_tree same = set(dict(), "ids", leaf_of(filled(RESHARD_I32, 1, shape, 2)));
  set(same, "scale", leaf_of(filled(RESHARD_F8_E8M0, 1, shape, 3)));
  set(same, "done", leaf_of(filled(RESHARD_BF16, 1, shape, 4)));
  set(same, "n", integer(5));
  reshard_tree root = set(dict(), "same", reshard_tree_retain(same));
  set(root, "weight", reshard_tree_retain(shared));
  set(root, "again", append(append(tuple(), shared), leaf_of(weight)));
  set(root, "part", leaf_of(part));
  set(root, "wide", leaf_of(filled(RESHARD_F64, 0, NULL, 5)));
  set(root, "half", leaf_of(filled(RESHARD_F16, 2, shape, 6)));
  set(root, "eight", append(list(), leaf_of(filled(RESHARD_F8_E4M3, 1, shape, 7))));
  set(root, "five", set(structure("S"), "x", leaf_of(filled(RESHARD_F8_E5M2, 1, shape, 8))));
  set(root, "none", leaf_of(filled(RESHARD_F32, 2, none, 9)));
  set(root, "packed", packed(filled(RESHARD_F32, 2, rows, 10), 2, sizes));
  reshard_tree cast;
  const char *const changed[] = {"weight", "part",    "wide", "half",       "eight.0",
                                 "five.x", "again.0", "none", "packed.data"};
  reshard_memory_stats before, after;
  GOOD(reshard_device_get_memory_stats(cpu, &before));
  GOOD(reshard_tree_cast(root, RESHARD_BF16, cpu, NULL, &cast));
  GOOD(reshard_device_get_memory_stats(cpu, &after));
  assert_int_equal(after.allocs - before.allocs, 7); /* once each, none without elements */
  for (size_t i = 0; i < sizeof changed / sizeof *changed; i++)
    assert_cast(tensor_of(cast, changed[i]), tensor_of(root, changed[i]), RESHARD_BF16);
  assert_ptr_equal(node_at(cast, "weight"), node_at(cast, "again.0"));
  assert_ptr_equal(tensor_of(cast, "weight"), tensor_of(cast, "again.1"));
  assert_ptr_equal(node_at(cast, "same"), same);
  reshard_tree_release(cast);
  GOOD(reshard_tree_cast(same, RESHARD_BF16, cpu, NULL, &cast)); /* nothing to do */
  assert_ptr_equal(cast, same);
  reshard_tree_release(cast);
  reshard_tree_release(same);
  reshard_tree_release(root);
}

/* A leaf without a cast is no error, in any state: _cast_forward_inputs looks at floating tensors alone. */
static void test_others_stay(void **state) {
  reshard_device cpu = *state;
  static const reshard_dtype dtypes[] = {RESHARD_BOOL, RESHARD_U8,  RESHARD_I8,   RESHARD_U16,
                                         RESHARD_I16,  RESHARD_U32, RESHARD_I32,  RESHARD_U64,
                                         RESHARD_I64,  RESHARD_C64, RESHARD_C128, RESHARD_F8_E8M0};
  enum { OTHERS = sizeof dtypes / sizeof *dtypes };
  const int64_t n = 7;
  reshard_tree root = list(), cast;
  reshard_tensor freed = filled(RESHARD_I64, 1, &n, 1);
  GOOD(reshard_storage_free(freed, NULL, NULL));
  append(root, leaf_of(freed));
  for (int i = 0; i < OTHERS; i++)
    append(root, leaf_of(filled(dtypes[i], 1, &n, (unsigned)i)));
  GOOD(reshard_tree_cast(root, RESHARD_F8_E4M3, cpu, NULL, &cast));
  assert_ptr_equal(cast, root);
  reshard_tree_release(cast);
  append(root, leaf_of(filled(RESHARD_F32, 1, &n, 3)));
  GOOD(reshard_tree_cast(root, RESHARD_BF16, cpu, NULL, &cast));
  for (int64_t i = 0; i <= OTHERS; i++) {
    reshard_tree was, is;
    GOOD(reshard_tree_child(root, i, NULL, &was));
    GOOD(reshard_tree_child(cast, i, NULL, &is));
    assert_ptr_equal(is, was);
  }
  assert_cast(tensor_of(cast, "13"), tensor_of(root, "13"), RESHARD_BF16);
  reshard_tree_release(cast);
  reshard_tree_release(root);
}

/* Any floating dtype to any other one, and what is too large or none. As torch.Tensor.to has it. */
static void test_floating_pairs(void **state) {
  reshard_device cpu = *state;
  static const reshard_dtype dtypes[] = {RESHARD_F64,  RESHARD_F32,     RESHARD_F16,
                                         RESHARD_BF16, RESHARD_F8_E4M3, RESHARD_F8_E5M2};
  const int64_t n = 300;
  for (int from = 0; from < 6; from++)
    for (int to = 0; to < 6; to++) {
      reshard_tree root = leaf_of(filled(dtypes[from], 1, &n, (unsigned)(from + to))), cast;
      GOOD(reshard_tree_cast(root, dtypes[to], cpu, NULL, &cast));
      if (from == to)
        assert_ptr_equal(cast, root);
      else
        assert_cast(tensor_of(cast, ""), tensor_of(root, ""), dtypes[to]);
      reshard_tree_release(cast);
      reshard_tree_release(root);
    }
  static const float large[] = {INFINITY, -INFINITY, 1e30f, -1e30f, 448, 480, 61439, 61440, -65536, NAN};
  static const unsigned char e4m3[] = {0x7e, 0xfe, 0x7e, 0xfe, 0x7e, 0x7e, 0x7e, 0x7e, 0xfe, 0x7f};
  static const unsigned char e5m2[] = {0x7c, 0xfc, 0x7c, 0xfc, 0x5f, 0x60, 0x7b, 0x7c, 0xfc, 0x7f};
  const int64_t most = sizeof large / sizeof *large;
  reshard_tensor tensor;
  GOOD(reshard_tensor_wrap(RESHARD_F32, 1, &most, NULL, (void *)large, NULL, NULL, &tensor));
  reshard_tree root = leaf_of(tensor);
  for (int i = 0; i < 2; i++) {
    reshard_tensor_info info;
    reshard_tree cast;
    GOOD(reshard_tree_cast(root, i == 0 ? RESHARD_F8_E4M3 : RESHARD_F8_E5M2, cpu, NULL, &cast));
    GOOD(reshard_tensor_get_info(tensor_of(cast, ""), &info));
    assert_memory_equal(info.data, i == 0 ? e4m3 : e5m2, sizeof e4m3);
    reshard_tree_release(cast);
  }
  reshard_tree_release(root);
}

static void wrong_casts_are_refused_with_the_path(void **state) {
  reshard_device cpu = *state;
  const int64_t n = 100;
  reshard_tree cast = NULL, root = set(dict(), "a", leaf_of(filled(RESHARD_F32, 1, &n, 1)));
  reshard_tensor freed;
  GOOD(reshard_tensor_create_on(cpu, RESHARD_F32, 1, &n, NULL, &freed));
  GOOD(reshard_storage_free(freed, NULL, NULL));
  BAD(reshard_tree_cast(NULL, RESHARD_F32, cpu, NULL, &cast), "reshard_tree_cast: tree is NULL");
  BAD(reshard_tree_cast(root, RESHARD_F32, NULL, NULL, &cast), "reshard_tree_cast: device is NULL");
  BAD(reshard_tree_cast(root, RESHARD_F32, cpu, NULL, NULL), "reshard_tree_cast: cast is NULL");
  BAD(reshard_tree_to(NULL, cpu, NULL, NULL, &cast), "reshard_tree_to: tree is NULL");
  BAD(reshard_tree_to(root, NULL, NULL, NULL, &cast), "reshard_tree_to: device is NULL");
  BAD(reshard_tree_to(root, cpu, NULL, NULL, NULL), "reshard_tree_to: moved is NULL");
  FAILS(reshard_tree_cast(root, RESHARD_I32, cpu, NULL, &cast), RESHARD_ERROR_UNSUPPORTED,
        "reshard_tree_cast: to i32, which is no floating dtype with casts");
  FAILS_WITH(reshard_tree_cast(root, RESHARD_BF16, cpu, &cast, &cast), RESHARD_ERROR_INVALID, "on the CPU it is NULL");
  const reshard_move_options wrong = {.size = 1};
  FAILS_WITH(reshard_tree_to(root, cpu, NULL, &wrong, &cast), RESHARD_ERROR_INVALID, "size field 1");
  set(root, "b", append(list(), leaf_of(freed)));
  BAD(reshard_tree_cast(root, RESHARD_BF16, cpu, NULL, &cast),
      "path 'b.0': reshard_tree_cast: the storage of a tensor of shape 100 is freed");
  assert_null(cast);
  reshard_tree_release(root);
}

static void tensors_that_are_there_stay_the_same(void **state) {
  reshard_device cpu = *state;
  const int64_t n = 5;
  reshard_tree moved, args_list, kwargs_list, x = leaf_of(filled(RESHARD_F32, 1, &n, 1));
  reshard_tree args = append(tuple(), x), kwargs = set(dict(), "x", reshard_tree_retain(x)), empty = dict();
  GOOD(reshard_tree_to(args, cpu, NULL, NULL, &moved));
  assert_ptr_equal(moved, args);
  reshard_tree_release(moved);
  GOOD(reshard_tree_to_kwargs(args, kwargs, cpu, NULL, NULL, &args_list, &kwargs_list));
  assert_int_equal(reshard_tree_count(args_list), 1);
  assert_ptr_equal(node_at(args_list, "0"), args);
  assert_ptr_equal(node_at(kwargs_list, "0"), kwargs);
  reshard_tree_release(args_list);
  reshard_tree_release(kwargs_list);
  GOOD(reshard_tree_to_kwargs(args, NULL, cpu, NULL, NULL, &args_list, &kwargs_list));
  assert_ptr_equal(node_at(args_list, "0"), args);
  assert_int_equal(reshard_tree_get_kind(node_at(kwargs_list, "0")), RESHARD_TREE_DICT);
  assert_int_equal(reshard_tree_count(node_at(kwargs_list, "0")), 0);
  reshard_tree_release(args_list);
  reshard_tree_release(kwargs_list);
  GOOD(reshard_tree_to_kwargs(NULL, kwargs, cpu, NULL, NULL, &args_list, &kwargs_list));
  assert_int_equal(reshard_tree_get_kind(node_at(args_list, "0")), RESHARD_TREE_TUPLE);
  assert_int_equal(reshard_tree_count(node_at(args_list, "0")), 0);
  assert_ptr_equal(node_at(kwargs_list, "0"), kwargs);
  reshard_tree_release(args_list);
  reshard_tree_release(kwargs_list);
  GOOD(reshard_tree_to_kwargs(NULL, empty, cpu, NULL, NULL, &args_list, &kwargs_list));
  assert_int_equal(reshard_tree_count(args_list), 0);
  assert_int_equal(reshard_tree_count(kwargs_list), 0);
  reshard_tree_release(args_list);
  reshard_tree_release(kwargs_list);
  BAD(reshard_tree_to_kwargs(kwargs, NULL, cpu, NULL, NULL, &args_list, &kwargs_list),
      "reshard_tree_to_kwargs: args is a dict, a tuple or a list is needed");
  BAD(reshard_tree_to_kwargs(NULL, args, cpu, NULL, NULL, &args_list, &kwargs_list),
      "reshard_tree_to_kwargs: kwargs is a tuple, a dict is needed");
  BAD(reshard_tree_to_kwargs(args, NULL, cpu, NULL, NULL, NULL, &kwargs_list),
      "reshard_tree_to_kwargs: args_list is NULL");
  reshard_tree_release(args);
  reshard_tree_release(kwargs);
  reshard_tree_release(empty);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(floating_tensors_are_cast_and_the_rest_stays, open_cpu, close_cpu),
      cmocka_unit_test_setup_teardown(test_others_stay, open_cpu, close_cpu),
      cmocka_unit_test_setup_teardown(test_floating_pairs, open_cpu, close_cpu),
      cmocka_unit_test_setup_teardown(wrong_casts_are_refused_with_the_path, open_cpu, close_cpu),
      cmocka_unit_test_setup_teardown(tensors_that_are_there_stay_the_same, open_cpu, close_cpu)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
