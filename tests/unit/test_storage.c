/* Memory of tensors that is used again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/crew.h"
#include "support/parts.h"
#include "tensor/storage.h"
#include "util.h"

#include <reshard/dtensor.h>

#include <string.h>

enum { BLOCK = 256 << 10 };

static rs_storage *open_storage(int64_t most) {
  rs_storage *storage;
  CLI_TRY("storage: ", rs_storage_create(most, &storage));
  return storage;
}

static reshard_tensor take(rs_storage *storage, int64_t bytes) {
  reshard_tensor tensor;
  CLI_TRY("tensor: ", rs_storage_tensor(storage, RESHARD_U8, 1, &bytes, &tensor));
  reshard_tensor_info info;
  CLI_TRY("tensor: ", reshard_tensor_get_info(tensor, &info));
  assert_int_equal(info.elements, bytes);
  assert_true((uintptr_t)info.data % 256 == 0 && info.contiguous);
  if (bytes > 0)
    memset(info.data, 1, (size_t)bytes);
  return tensor;
}

static void *memory_of(reshard_tensor tensor) { return tensor->info.data; }

/* Takes one, and tells whether it has that memory. */
static bool again(rs_storage *storage, int64_t bytes, const void *memory) {
  reshard_tensor tensor = take(storage, bytes);
  bool same = memory_of(tensor) == memory;
  reshard_tensor_release(tensor);
  return same;
}

static void test_reuse(void **state) {
  (void)state;
  rs_storage *s = open_storage(4 * BLOCK);
  reshard_tensor a = take(s, BLOCK), b = take(s, 2 * BLOCK), c = take(s, 3 * BLOCK);
  void *of_a = memory_of(a), *of_b = memory_of(b), *of_c = memory_of(c);
  reshard_tensor_release(b);
  reshard_tensor_release(a);
  assert_true(again(s, BLOCK, of_a));
  assert_true(again(s, 2 * BLOCK, of_b));
  assert_true(again(s, 2 * BLOCK - BLOCK / 8, of_b));  /* little smaller */
  assert_false(again(s, 2 * BLOCK - BLOCK / 2, of_b)); /* which is kept, too: 4.5 blocks are too many */
  assert_true(again(s, 2 * BLOCK, of_b));
  reshard_tensor_release(c); /* that alone has no room for another of 2 */
  assert_true(again(s, 2 * BLOCK + BLOCK / 4 * 3, of_c));
  reshard_tensor d = take(s, BLOCK), e = take(s, BLOCK);
  rs_storage_drop(s);
  reshard_tensor_release(d); /* after the storage itself */
  reshard_tensor_release(e);
}

static void test_small(void **state) {
  (void)state;
  const int64_t bad[2] = {INT64_MAX, 3};
  rs_storage *s = open_storage(4 * BLOCK);
  reshard_tensor_release(take(s, BLOCK - 1));
  reshard_tensor_release(take(s, 0));
  reshard_tensor_release(take(NULL, BLOCK));
  reshard_tensor none = NULL;
  assert_int_equal(rs_storage_tensor(s, RESHARD_F32, 2, bad, &none), RESHARD_ERROR_INVALID);
  assert_int_equal(rs_storage_tensor(s, RESHARD_F32, 9, bad, &none), RESHARD_ERROR_INVALID);
  assert_int_equal(rs_storage_tensor(s, RESHARD_DTYPE_NONE, 1, (int64_t[]){BLOCK}, &none), RESHARD_ERROR_INVALID);
  assert_null(none);
  rs_storage_drop(s);
  rs_storage_drop(NULL);
}

/* Threads that take and give back at the same time. */
static void busy_body(void *user, int64_t r) {
  rs_storage *s = user;
  for (int i = 0; i < 50; i++) {
    reshard_tensor tensor;
    int64_t bytes = BLOCK + (r + i) % 3 * BLOCK;
    if (rs_storage_tensor(s, RESHARD_U8, 1, &bytes, &tensor) == RESHARD_SUCCESS) {
      memset(memory_of(tensor), (int)r, 64);
      reshard_tensor_release(tensor);
    }
  }
}

static void test_threads(void **state) {
  (void)state;
  rs_storage *s = open_storage(4 * BLOCK);
  crew_run(4, busy_body, s);
  rs_storage_drop(s);
}

/* To and fro between two placings: the third result has the memory of the first one. */
static void redistribute_body(void *user, int64_t r) {
  parts *p = user;
  const int64_t size = 2, shape[2] = {512, 512};
  const reshard_properties f32 = {.dtype = RESHARD_F32};
  const reshard_placement cuts[2] = {{RESHARD_PLACEMENT_SHARD, 0, 0}, {RESHARD_PLACEMENT_SHARD, 1, 0}};
  reshard_mesh mesh;
  reshard_dtensor tensor, next;
  void *memory[2] = {NULL};
  reshard_status status = RESHARD_SUCCESS;
  CLI_TRY("mesh: ", reshard_mesh_create(p->comms[r], 0, 1, &size, NULL, 0, NULL, &mesh));
  CLI_TRY("tensor: ",
          reshard_dtensor_empty(p->sharders[r], &(reshard_placing){mesh, &cuts[0], NULL}, 2, shape, &f32, &tensor));
  parts_fill(reshard_dtensor_layout(tensor), r, 0, reshard_dtensor_local(tensor), 3);
  for (int i = 1; i <= 6 && status == RESHARD_SUCCESS; i++) {
    status = reshard_dtensor_redistribute(1, &tensor, &(reshard_placing){mesh, &cuts[i % 2], NULL}, NULL, &next);
    if (status != RESHARD_SUCCESS)
      break;
    p->wrong[r] += i > 2 && memory_of(reshard_dtensor_local(next)) != memory[i % 2];
    memory[i % 2] = memory_of(reshard_dtensor_local(next));
    p->wrong[r] += parts_check(reshard_dtensor_layout(next), r, 0, reshard_dtensor_local(next), 3);
    reshard_dtensor_release(tensor);
    tensor = next;
  }
  crew_note(&p->results[r], status);
  reshard_dtensor_release(tensor);
  reshard_mesh_release(mesh);
}

static void test_redistribute(void **state) {
  (void)state;
  parts p;
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .reused_bytes = 1 << 20};
  parts_open(&p, 2, &options);
  parts_run(&p, redistribute_body, NULL);
  parts_assert(&p, RESHARD_SUCCESS, NULL);
  parts_close(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_reuse), cmocka_unit_test(test_small),
                                     cmocka_unit_test(test_threads), cmocka_unit_test(test_redistribute)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
