/* The k-th allocation fails while a worker is added to a table: the table is as it was, and takes the worker then. And
 * while replicas of a source share a hundred receivers, in another order than that of their ranks. */
#include "support/fault_local.h"
#include "support/fixtures/case.h"

#include <reshard/metadata.h>

#include <stdio.h>
#include <string.h>

static void check_worker(reshard_workers workers, const char *name, int64_t rank) {
  char text[64];
  reshard_remote_device device;
  snprintf(text, sizeof text, "%s/cpu", name);
  if (reshard_remote_device_parse(text, workers, &device) != RESHARD_SUCCESS || device.rank != rank)
    fail_msg("%s: %s", text, reshard_last_error());
}

CASE(tables_of_workers_survive_any_failed_allocation) {
  reshard_workers workers;
  assert_int_equal(reshard_workers_create(&workers), RESHARD_SUCCESS);
  int64_t failed = 0, live = -1;
  for (int64_t rank = 0; rank < 40; rank++) { /* tables grow on the way */
    char name[16], other[16];
    snprintf(name, sizeof name, "w%lld", (long long)rank);
    snprintf(other, sizeof other, "v%lld", (long long)rank);
    reshard_status status = RESHARD_ERROR_OUT_OF_MEMORY;
    int64_t global = rank;
    for (int64_t k = 0; status != RESHARD_SUCCESS; k++) {
      global = rank + 100 * k;
      fault_mark(true);
      fault_arm(k);
      status = reshard_workers_add(workers, k % 2 == 0 ? name : other, global);
      fault_disarm();
      fault_mark(false);
      if (status == RESHARD_SUCCESS) {
        check_worker(workers, k % 2 == 0 ? name : other, global);
        break;
      }
      assert_int_equal(status, RESHARD_ERROR_OUT_OF_MEMORY);
      failed++;
    }
    if (rank > 0)
      assert_int_equal(reshard_workers_add(workers, "again", global), RESHARD_ERROR_INVALID);
    live = fault_live();
  }
  assert_true(failed >= 40 && live > 0);
  reshard_workers_free(workers);
}

static reshard_status create_plan(fault_output *out, const void *with) {
  reshard_plan plan;
  reshard_status status = reshard_plan_create(1, with, 0, NULL, &plan);
  if (status == RESHARD_SUCCESS)
    out->object = plan;
  return status;
}
static bool is_good(const fault_output *out, const void *with) {
  reshard_plan plan;
  reshard_plan_info a = {0}, b = {0};
  bool made = reshard_plan_create(1, with, 0, NULL, &plan) == RESHARD_SUCCESS &&
              reshard_plan_get_info(plan, &a) == RESHARD_SUCCESS &&
              reshard_plan_get_info(out->object, &b) == RESHARD_SUCCESS;
  reshard_plan_destroy(plan);
  return made && a.sent_bytes > 0 && a.sent_bytes == b.sent_bytes && a.received_bytes == b.received_bytes;
}
static void drop_plan(fault_output *out) { reshard_plan_destroy(out->object); }

CASE(shares_of_replicas_survive_any_failed_allocation) {
  const int64_t shape[] = {1000};
  reshard_entry entry = {RESHARD_ENTRY_INIT, .dtype = RESHARD_U8};
  assert_int_equal(reshard_layout_parse("mesh(3@0-2;R)", 1, shape, 100, &entry.src), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse("chunk(0;99-0)", 1, shape, 100, &entry.dst), RESHARD_SUCCESS);
  assert_true(fault_local_run(&(fault_local){"replicas", create_plan, is_good, drop_plan, &entry}) > 10);
  reshard_layout_release((reshard_layout)entry.src);
  reshard_layout_release((reshard_layout)entry.dst);
}

RUN_CASES
