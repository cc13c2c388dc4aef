/* The direct path between processes where one rank's k-th allocation fails: all ranks hear of it, none keeps anything,
 * and the next call works. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/fault.h"
#include "support/processes/processes.h"

#include <reshard/reshard.h>
#include <reshard/tensor.h>

#include <string.h>

enum { RANKS = 3, SIDE = 12, VICTIM = 1 };
#define GOOD(call) CHILD_CHECK((call) == RESHARD_SUCCESS)

typedef struct side {
  reshard_comm comm;
  reshard_plan plan;
  void *src[2], *dst;
  int64_t strides[2][2];
} side;

static reshard_arrays arrays_of(const side *s, int which, const int64_t *list[1]) {
  list[0] = s->strides[which];
  return (reshard_arrays){RESHARD_ARRAYS_INIT, &s->src[which], &s->dst, list, NULL, 1, 1};
}

/* Each call of all ranks, with the victim's k-th allocation failing, until there is none left to fail. */
static void fail_each(processes *all, int64_t rank, side *s, reshard_transfer *transfer) {
  const int64_t *list[1];
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = RESHARD_PATH_DIRECT};
  bool rebinds = *transfer != NULL, fired = true;
  int64_t k = 0;
  for (; fired; k++) {
    reshard_arrays arrays = arrays_of(s, (int)(k % 2), list);
    reshard_transfer made = NULL;
    int64_t live = fault_live();
    fault_arm(rank == VICTIM ? k : -1);
    reshard_status status = rebinds ? reshard_transfer_rebind(*transfer, &arrays)
                                    : reshard_transfer_create(s->plan, s->comm, &arrays, &options, &made);
    (void)fault_disarm();
    if (rank == VICTIM)
      atomic_store(&all->step[0], fault_fired() != FAULT_NONE);
    if (status != RESHARD_SUCCESS)
      CHILD_CHECK(fault_live() == live && made == NULL);
    GOOD(reshard_comm_barrier(s->comm));
    fired = atomic_load(&all->step[0]);
    CHILD_CHECK(status == (fired ? RESHARD_ERROR_OUT_OF_MEMORY : RESHARD_SUCCESS));
    CHILD_CHECK(!fired || strstr(reshard_last_error(), "rank 1: ") != NULL);
    if (!fired && !rebinds)
      *transfer = made;
    if (rebinds) /* bound as before, or anew */
      GOOD(reshard_execute(*transfer, NULL));
    GOOD(reshard_comm_barrier(s->comm));
  }
  CHILD_CHECK(k > 10);
}

static void fail_allocations(processes *all, int64_t rank, void *user) {
  (void)user;
  side s = {.strides = {{SIDE, 1}, {SIDE, 1}}};
  int64_t shape[] = {SIDE, SIDE}, bytes = SIDE * SIDE / RANKS * 4;
  reshard_device device;
  reshard_layout rows, columns;
  reshard_tensor tensors[3];
  reshard_tensor_info info;
  reshard_transfer transfer = NULL, first = NULL;
  fault_mark(true);
  const reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .shared = 1};
  GOOD(reshard_device_create("cpu", &options, &device));
  GOOD(processes_comm(all, rank, device, 60000, &s.comm));
  for (int i = 0; i < 3; i++) {
    GOOD(reshard_tensor_create_on(device, RESHARD_U8, 1, &bytes, NULL, &tensors[i]));
    GOOD(reshard_tensor_get_info(tensors[i], &info));
    *(i < 2 ? &s.src[i] : &s.dst) = info.data;
    memset(info.data, (int)rank + 1, (size_t)bytes);
  }
  GOOD(reshard_layout_parse("chunk(0)", 2, shape, RANKS, &rows));
  GOOD(reshard_layout_parse("chunk(1)", 2, shape, RANKS, &columns));
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = rows, .dst = columns, .dtype = RESHARD_F32};
  GOOD(reshard_plan_create(1, &entry, rank, NULL, &s.plan));
  const int64_t *list[1];
  reshard_arrays arrays = arrays_of(&s, 0, list); /* what is kept from the first time on */
  GOOD(reshard_transfer_create(s.plan, s.comm, &arrays, NULL, &first));
  fail_each(all, rank, &s, &transfer);
  fail_each(all, rank, &s, &transfer);
  memset(s.dst, 0, (size_t)bytes);
  GOOD(reshard_execute(transfer, NULL));
  for (int64_t i = 0; i < bytes; i++)
    CHILD_CHECK(((char *)s.dst)[i] == i / (bytes / RANKS) + 1);
  reshard_transfer_destroy(transfer);
  reshard_transfer_destroy(first);
  reshard_plan_destroy(s.plan);
  reshard_layout_release(rows);
  reshard_layout_release(columns);
  for (int i = 0; i < 3; i++)
    reshard_tensor_release(tensors[i]);
  reshard_comm_destroy(s.comm);
  reshard_device_release(device);
}

static void test_failures(void **state) {
  (void)state;
  assert_int_equal(processes_run(RANKS, 0, fail_allocations, NULL), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_failures),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
