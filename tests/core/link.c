/* Plans a reshard with the rooms base, layout and plan alone; tests/core/check links it with libc and nothing else. */
#include <reshard/plan.h>

#include <stdio.h>

int main(void) {
  const int64_t shape[] = {13, 21};
  reshard_layout rows = NULL, columns = NULL;
  reshard_plan plan = NULL;
  reshard_plan_info info;
  reshard_status status = reshard_layout_parse("chunk(0)", 2, shape, 4, &rows);
  if (status == RESHARD_SUCCESS)
    status = reshard_layout_parse("chunk(1)", 2, shape, 4, &columns);
  if (status == RESHARD_SUCCESS) {
    reshard_entry entry = {.size = RESHARD_ENTRY_INIT, .src = rows, .dst = columns, .dtype = RESHARD_F32};
    status = reshard_plan_create(1, &entry, 1, NULL, &plan);
  }
  if (status == RESHARD_SUCCESS)
    status = reshard_plan_get_info(plan, &info);
  if (status != RESHARD_SUCCESS)
    printf("%s: %s\n", reshard_status_string(status), reshard_last_error());
  /* Rank 1 of 4 gets rows 0-3, 8-11 and 12 of columns 6-11 from others: 9 x 6 elements of 4 bytes. */
  else if (info.received_bytes != 216)
    printf("rank 1 receives %lld bytes, not 216\n", (long long)info.received_bytes);
  else
    printf("planned with libc alone\n");
  int failed = status != RESHARD_SUCCESS || info.received_bytes != 216;
  reshard_plan_destroy(plan);
  reshard_layout_release(columns);
  reshard_layout_release(rows);
  return failed;
}
