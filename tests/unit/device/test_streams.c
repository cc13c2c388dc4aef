/* Execute on a device with streams: random cases over both paths, by rank threads and by one thread, on one device and
 * on several, with streams as late as can be; edges left out one by one; calls that fail one by one. */
#include "comm/comm.h"
#include "device/handle.h"
#include "support/devices/late.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"
#include "support/reshards/stream_ways.h"

#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_THREAD__)
enum { SPARSE = 32, LEFT_OUT = 0 }; /* one in so many: what is looked for is another thing, ten times as slowly */
#elif defined(__SANITIZE_ADDRESS__)
enum { SPARSE = 16, LEFT_OUT = 1 };
#else
enum { SPARSE = 1, LEFT_OUT = 1 }; /* edges are left out */
#endif
enum { DEVICES = 3, EXECUTES = 2, TRIES = 4000 };

static bool in_full; /* else fewer cases, and fewer edges and calls of those that are many: the virtual GPU has all */

static const reshard_path paths[2] = {RESHARD_PATH_DIRECT, RESHARD_PATH_PACKED};

/* Inside of an execute nothing is allocated and nothing waited for. */
static late_counts before;
static int64_t costs;

static void streams_watch(void *user, bool on) {
  late_counts now = late_count();
  if (on)
    before = now;
  else
    costs += now.allocs - before.allocs + now.syncs - before.syncs;
}

CASE(random_reshards_are_right_on_late_streams) {
  int64_t cases = test_scaled((in_full ? 2000 : 500) / SPARSE, 8), executed = 0;
  for (int64_t i = 0; i < cases; i++) {
    uint64_t seed = 1 + (uint64_t)i;
    reshard_device devices[DEVICES];
    rs_text why = {0};
    late_open(DEVICES, seed, devices);
    stream_case s = {.devices = devices,
                     .ndevices = seed % 4 == 3 ? 3 : (int64_t)(seed % 2) + 1,
                     .path = paths[seed / 2 % 2],
                     .drive = (stream_drive)(seed / 3 % 4),
                     .executes = 3,
                     .rebind = seed % 5 == 0,
                     .shared_handle = seed % 7 == 0,
                     .watch = streams_watch,
                     .pending = late_pending,
                     .ranks = 1 + (int64_t)(seed % 8)};
    if (!stream_case_run_seed(&s, seed, &why, NULL))
      fail_msg("%s", why.at);
    assert_int_equal(s.left, 0);
    executed += s.executed;
    assert_int_equal(late_close(), 0);
    free(why.at);
  }
  assert_int_equal(costs, 0);
  printf("%lld cases, %lld executes\n", (long long)cases, (long long)executed);
}

/* --- One case, in every way in which streams are used ------------------------------------------------------------- */

typedef struct outcome {
  bool right;
  reshard_status status;
  int64_t edges, left, failed;
  int wrong;
} outcome;

/* skip, fail: as in late_skip and late_fail, from the first execute on and from the making of the communicator on. */
static outcome run_way(const stream_way *w, const case_plan *c, uint64_t seed, int64_t skip, int64_t fail, bool go_on) {
  reshard_device devices[DEVICES];
  rs_text why = {0};
  outcome o = {.right = false};
  late_open(DEVICES, seed, devices);
  stream_case s = {.devices = devices, .executes = EXECUTES, .pending = late_pending};
  late_skip(skip);
  late_fail(fail, go_on);
  o.right = stream_way_run_made(&s, w, c, &why, &o.status);
  o.failed = late_failed();
  late_counts counts = late_count();
  o.edges = counts.records + counts.waits;
  o.left = s.left;
  o.wrong = late_close();
  if (fail == 0 && skip == 0 && !o.right)
    fail_msg("%s: %s", w->name, why.at);
  free(why.at);
  return o;
}

/* Each record and each wait is needed: without it some schedule gives wrong data. */
CASE(every_record_and_wait_is_needed) {
  int64_t total = 0, runs = 0;
  for (int i = 0; i < stream_nways; i++) {
    const stream_way *w = &stream_ways[i];
    case_plan c;
    stream_way_make(w, &c);
    int64_t edges = run_way(w, &c, 1, 0, 0, false).edges;
    if (w->edges >= 0)
      assert_int_equal(edges, EXECUTES * w->edges);
    int64_t step = (edges > 60 ? 3 : 1) * (in_full || edges < 16 ? 1 : edges > 60 ? 3 : 2) * SPARSE;
    for (int64_t k = 1; LEFT_OUT && k <= edges; k += step) {
      bool found = false;
      for (int64_t t = 0; t < TRIES && !found; t++, runs++) {
        outcome o = run_way(w, &c, (uint64_t)(1000 * k + t), k, 0, false);
        found = !o.right || o.left > 0 || o.wrong > 0;
      }
      if (!found)
        fail_msg("%s: nobody misses edge %lld of %lld", w->name, (long long)k, (long long)edges);
    }
    total += edges / step;
    case_free(&c);
  }
  printf("%lld edges of %d ways, %lld runs\n", (long long)total, stream_nways, (long long)runs);
}

/* Each call that can fail does: the error comes out, unless the host could wait in place of a stream; nothing is left
 * behind, and nobody waits for ever. */
CASE(every_failing_call_comes_out_as_its_error) {
  int64_t runs = 0;
  for (int i = 0; i < stream_nways; i++) {
    case_plan c;
    stream_way_make(&stream_ways[i], &c);
    for (int go_on = 0; go_on < 2; go_on++)
      for (int64_t k = 1, failed = 1; failed > 0; k += SPARSE + (in_full ? 0 : k / 8), runs++) {
        outcome o = run_way(&stream_ways[i], &c, (uint64_t)k, 0, k, go_on);
        failed = o.failed;
        assert_int_equal(o.left, 0);
        assert_int_equal(o.wrong, 0);
        assert_true(o.right || failed > 0);
        if (!o.right)
          assert_int_equal(o.status, RESHARD_ERROR_SYSTEM);
      }
    case_free(&c);
  }
  printf("%lld runs\n", (long long)runs);
}

/* The event that is made, recorded on one stream and waited for by the other. */
CASE(order_of_streams_fails_with_any_call_that_it_makes) {
  reshard_device device;
  void *streams[2];
  late_open(1, 1, &device);
  for (int i = 0; i < 2; i++)
    GOOD(reshard_stream_create(device, &streams[i]));
  for (int64_t k = 1; k <= 4; k++) {
    late_fail(k, false);
    assert_int_equal(reshard_stream_order(device, streams[0], streams[1]) == RESHARD_SUCCESS, k == 4);
    assert_int_equal(late_failed(), k < 4);
  }
  late_fail(0, false);
  for (int i = 0; i < 2; i++)
    device->device->streams->destroy(device->device, streams[i]); /* these devices have no pool of storage to tell */
  assert_int_equal(late_close(), 0);
}

/* Devices that do not reach each other's memory have the packed path. */
CASE(devices_out_of_reach_take_the_packed_path) {
  reshard_device devices[DEVICES];
  late_open(DEVICES, 1, devices);
  late_set_peers(false);
  for (int i = 0; i < stream_nways; i++) {
    stream_way way = stream_ways[i];
    stream_case s = {.devices = devices, .executes = EXECUTES, .pending = late_pending};
    rs_text why = {0};
    reshard_status status;
    bool right = stream_way_run(&s, &way, &why, &status);
    if (way.path == RESHARD_PATH_DIRECT && way.devices > 1) {
      assert_int_equal(status, RESHARD_ERROR_UNSUPPORTED);
      assert_non_null(strstr(why.at, "ranks reach each other's memory"));
      why.length = 0;
      way.path = RESHARD_PATH_AUTO;
      right = stream_way_run(&s, &way, &why, &status);
    }
    if (!right)
      fail_msg("%s: %s", way.name, why.at);
    free(why.at);
  }
  assert_int_equal(late_close(), 0);
}

/* Devices of a local communicator. */
CASE(devices_of_a_communicator_are_of_one_type) {
  reshard_device given[DEVICES + 1], cpu;
  reshard_comm comms[3];
  late_open(DEVICES, 1, given);
  GOOD(reshard_device_create("cpu", NULL, &cpu));
  reshard_local_options o = {.size = RESHARD_LOCAL_OPTIONS_INIT, .devices = given, .ndevices = 2};
  given[1] = cpu;
  BAD(reshard_comm_create_local(3, &o, comms), "devices of two types: 0 is late, 1 is cpu");
  given[1] = NULL;
  BAD(reshard_comm_create_local(3, &o, comms), "device 1 of 2 is NULL");
  o.ndevices = -1;
  assert_int_equal(reshard_comm_create_local(3, &o, comms), RESHARD_ERROR_INVALID);
  o.ndevices = 2;
  o.devices = NULL;
  BAD(reshard_comm_create_local(3, &o, comms), "2 devices, list NULL");
  o.devices = given;
  given[0] = given[1] = cpu; /* kept: the caller's reference may go */
  GOOD(reshard_comm_create_local(3, &o, comms));
  reshard_device_release(cpu);
  for (int r = 0; r < 3; r++) {
    assert_ptr_equal(comms[r]->device, cpu->device);
    assert_int_equal(comms[r]->process.lanes, 1);
    assert_true(comms[r]->memory.direct);
    reshard_comm_destroy(comms[r]);
  }
  assert_int_equal(late_close(), 0);
}

/* With an argument, in full. */
int main(int argc, char **argv) {
  in_full = argc > 1;
  return case_list_run(__FILE__, NULL, NULL);
}
