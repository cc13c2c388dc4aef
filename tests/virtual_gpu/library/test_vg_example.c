/* examples/fsdp_tp.c and hsdp_tp.c as they are, on virtual GPUs: their ranks share one, and two; the checker has
 * nothing to report under any schedule. */
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scratch.h"
#include "virtual_gpu.h"

#include <stdio.h>

typedef int example(int argc, char **argv);
example fsdp_tp_main, hsdp_tp_main; /* the examples' main */

static void run_example(example *main_of, int gpus, vg_policy policy, uint64_t seed) {
  char directory[256];
  char *argv[] = {(char[]){"example"}, directory, (char[]){"cuda:0"}, (char[]){"cuda:1"}, NULL};
  vg_options options = {.devices = gpus, .seed = seed, .policy = policy};
#ifdef __SANITIZE_ADDRESS__
  options.no_check = true; /* what the library's own copies write to pinned memory is not seen */
#endif
  snprintf(directory, sizeof directory, "%s", scratch_path("checkpoint"));
  vg_begin(&options);
  assert_int_equal(main_of(2 + gpus, argv), 0);
  assert_int_equal(vg_end(), 0);
}

static void run_all(example *main_of) {
  for (int policy = VG_RANDOM; policy <= VG_IN_ORDER; policy++)
    for (int gpus = 1; gpus <= 2; gpus++)
      run_example(main_of, gpus, (vg_policy)policy, (uint64_t)(policy * 10 + gpus));
}

CASE(test_fsdp_tp) { run_all(fsdp_tp_main); }

CASE(test_hsdp_tp) { run_all(hsdp_tp_main); }

RUN_CASES_WITH(scratch_setup, scratch_teardown)
