/* tests/examples/fsdp_tp.c as it is, on virtual GPUs: its ranks share one, and two; the checker has nothing to report
 * under any schedule. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scratch.h"
#include "virtual_gpu.h"

#include <stdio.h>

int fsdp_tp_main(int argc, char **argv); /* the example's main */

static void run_example(int gpus, vg_policy policy, uint64_t seed) {
  char directory[256];
  char *argv[] = {(char[]){"fsdp_tp"}, directory, (char[]){"cuda:0"}, (char[]){"cuda:1"}, NULL};
  vg_options options = {.devices = gpus, .seed = seed, .policy = policy};
#ifdef __SANITIZE_ADDRESS__
  options.no_check = true; /* what the library's own copies write to pinned memory is not seen */
#endif
  snprintf(directory, sizeof directory, "%s", scratch_path("checkpoint"));
  vg_begin(&options);
  assert_int_equal(fsdp_tp_main(2 + gpus, argv), 0);
  assert_int_equal(vg_end(), 0);
}

static void test_example(void **state) {
  (void)state;
  for (int policy = VG_RANDOM; policy <= VG_IN_ORDER; policy++)
    for (int gpus = 1; gpus <= 2; gpus++)
      run_example(gpus, (vg_policy)policy, (uint64_t)(policy * 10 + gpus));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_example)};
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
