/* A fault that stays: after a kernel's illegal address every later call for its GPU fails, whatever it is for. In every
 * way in which streams are used, with the fault in one kernel after the other: no call hangs, an execute that cannot be
 * seen to have succeeded says so, and all memory is given back. */
#include "support/fixtures/case.h"
#include <cuda_runtime_api.h>

#include "support/reshards/stream_ways.h"
#include "virtual_gpu.h"

#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__)
enum { SPARSE = 4 };
#else
enum { SPARSE = 1 };
#endif
enum { MOST_DEVICES = 3, MOST_KERNELS = 400 };

/* Runs a way in which kernel k has the fault. False: there are not so many. */
static bool run_broken(const stream_way *way, int64_t k, uint64_t seed) {
  reshard_device devices[MOST_DEVICES];
  rs_text why = {0};
  int n = (int)way->devices;
  bool broken = false;
  reshard_status status = RESHARD_SUCCESS;
  vg_begin(&(vg_options){.devices = n, .seed = seed});
  for (int i = 0; i < n; i++) {
    char name[16];
    snprintf(name, sizeof name, "cuda:%d", i);
    assert_int_equal(reshard_device_create(name, NULL, &devices[i]), RESHARD_SUCCESS);
  }
  stream_case s = {.devices = devices, .executes = 2};
  vg_break_kernel(k);
  bool right = stream_way_run(&s, way, &why, &status);
  vg_break_kernel(0);
  for (int i = 0; i < n; i++) {
    (void)cudaSetDevice(i);
    broken |= cudaPeekAtLastError() == cudaErrorIllegalAddress;
    reshard_device_release(devices[i]);
  }
  (void)cudaSetDevice(0);
  if (vg_end() != 0)
    fail_msg("%s, kernel %lld has a fault: %s", way->name, (long long)k, vg_report(0));
  if (broken == right)
    fail_msg("%s, kernel %lld: broken %d, right %d: %s", way->name, (long long)k, broken, right,
             why.length > 0 ? why.at : "");
  if (broken && status == RESHARD_SUCCESS)
    fail_msg("%s, kernel %lld: no call says so", way->name, (long long)k);
  free(why.at);
  return broken;
}

CASE(test_faults_that_stay) {
  int64_t runs = 0;
  vg_quiet(true);
  for (int i = 0; i < stream_nways; i++) {
    int64_t k = 1;
    for (; k < MOST_KERNELS && run_broken(&stream_ways[i], k, (uint64_t)(k + i)); runs++)
      k += SPARSE + k / 4;
    assert_true(k > 1);
  }
  vg_quiet(false);
  printf("%lld runs\n", (long long)runs);
}

RUN_CASES_IF(vg_sees_kernels(), "nothing is checked in this build")
