/* Ranges for a profiler where ranks are on GPUs: in every way in which streams are used, each range ends on the thread
 * that began it, also where a call of the runtime fails. Steps that are given to streams have theirs. */
#include "support/fixtures/case.h"
#include <cuda_runtime_api.h>

#include "base/range.h"
#include "support/reshards/stream_ways.h"
#include "virtual_gpu.h"

#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
enum { STEP = 60 }; /* between calls that fail */
#else
enum { STEP = 12 };
#endif
enum { MOST_DEVICES = 3, MOST_FAULTS = 2000 };

/* --- A tool that counts: names are a profiler's, but for "move", which it shows as exchange ----------------------- */

static const char *const names[] = {
    "reshard_transfer_create", "bind", "pack", "move", "unpack", "self_copy", "copy", "alloc", "wait"};
enum { NAMES = sizeof names / sizeof *names };
static atomic_int_fast64_t begun, ended, unbegun, named[NAMES];
static _Thread_local int64_t depth;

static bool count_begin(const char *name, const rs_range_of *of) {
  depth++;
  begun++;
  for (int i = 0; i < NAMES; i++)
    named[i] += strcmp(name, names[i]) == 0;
  return true;
}

static void count_end(void) {
  unbegun += depth-- <= 0;
  ended++;
}
static const rs_range_tool counting = {count_begin, count_end};

/* --- Runs --------------------------------------------------------------------------------------------------------- */

static void end_faults(void *failed) {
  *(int64_t *)failed += vg_failed();
  vg_fail(NULL, 0, false, 0);
}

/* Runs a way in which the k-th call fails; 0: none. Returns how many failed. */
static int64_t run_way(const stream_way *way, int64_t k) {
  reshard_device devices[MOST_DEVICES];
  rs_text why = {0};
  int64_t failed = 0;
  vg_begin(&(vg_options){.devices = (int)way->devices, .seed = (uint64_t)k + 1});
  for (int i = 0; i < (int)way->devices; i++) {
    char name[16];
    snprintf(name, sizeof name, "cuda:%d", i);
    assert_int_equal(reshard_device_create(name, NULL, &devices[i]), RESHARD_SUCCESS);
  }
  stream_case s = {.devices = devices, .executes = 2, .calm = end_faults, .user = &failed};
  begun = ended = unbegun = 0;
  if (k > 0)
    vg_fail(NULL, k, false, 0);
  bool right = stream_way_run(&s, way, &why, NULL);
  end_faults(&failed);
  for (int i = 0; i < (int)way->devices; i++)
    reshard_device_release(devices[i]);
  int reports = vg_end();
  if (reports > 0 || (failed == 0 && !right))
    fail_msg("%s, call %lld: %s", way->name, (long long)k, reports > 0 ? vg_report(0) : why.at);
  if ((k == 0 && begun == 0) || begun != ended || unbegun > 0)
    fail_msg("%s, call %lld fails: %lld ranges begin, %lld end, %lld of them on another thread", way->name,
             (long long)k, (long long)begun, (long long)ended, (long long)unbegun);
  free(why.at);
  return failed;
}

CASE(every_way_has_all_its_ranges) {
  for (int i = 0; i < stream_nways; i++)
    (void)run_way(&stream_ways[i], 0);
  for (int i = 0; i < NAMES; i++)
    if (named[i] == 0)
      fail_msg("no range '%s'", names[i]);
}

CASE(ranges_end_where_a_call_fails) {
  int64_t runs = 0;
  vg_quiet(true);
  for (int i = 0; i < stream_nways; i++)
    for (int64_t k = 1 + i; k < MOST_FAULTS && run_way(&stream_ways[i], k) > 0; k += STEP + k / 3)
      runs++;
  vg_quiet(false);
  printf("%lld faults\n", (long long)runs);
  assert_true(runs > 2 * stream_nways);
}

int main(void) {
  atomic_store(&rs_ranges, &counting);
  return case_list_run(__FILE__, NULL, NULL);
}
