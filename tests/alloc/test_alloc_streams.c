/* The k-th allocation of the host fails while a transfer is made on devices with streams: all ranks get the same status
 * and text, nothing is left behind, and the next transfer works. */
#include "bench/cli/util.h"
#include "support/devices/late.h"
#include "support/fault_local.h"
#include "support/fixtures/case.h"
#include "support/fixtures/rank_threads.h"

#include <string.h>

enum { RANKS = 3, DEVICES = 2, ROWS = 24, COLUMNS = 45, NUMBERS = ROWS * COLUMNS / RANKS };

typedef struct world {
  reshard_comm comms[RANKS];
  reshard_plan plans[RANKS];
  reshard_path path;
  reshard_transfer transfers[RANKS];
  rank_result results[RANKS];
  bool marked;
  uint32_t src[RANKS][NUMBERS], dst[RANKS][NUMBERS];
} world;

static void create_body(void *user, int64_t r) {
  world *w = user;
  void *src = w->src[r], *dst = w->dst[r];
  const reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = &src, .dst = &dst};
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = w->path};
  fault_mark(w->marked);
  reshard_status status = reshard_transfer_create(w->plans[r], w->comms[r], &arrays, &options, &w->transfers[r]);
  fault_mark(false);
  rank_result_set(&w->results[r], status);
}

static void execute_body(void *user, int64_t r) {
  world *w = user;
  rank_result_set(&w->results[r], reshard_execute(w->transfers[r], NULL));
}

static void works(world *w) {
  w->marked = false;
  rank_threads_run(RANKS, create_body, w);
  rank_results_assert(RANKS, w->results, RESHARD_SUCCESS, NULL, "create");
  for (int r = 0; r < RANKS; r++)
    for (int i = 0; i < NUMBERS; i++) {
      w->src[r][i] = (uint32_t)(r * NUMBERS + i);
      w->dst[r][i] = UINT32_MAX;
    }
  rank_threads_run(RANKS, execute_body, w);
  rank_results_assert(RANKS, w->results, RESHARD_SUCCESS, NULL, "execute");
  for (int r = 0; r < RANKS; r++) {
    reshard_transfer_destroy(w->transfers[r]); /* waits for the devices */
    w->transfers[r] = NULL;
  }
  for (int r = 0; r < RANKS; r++)
    for (int i = 0; i < ROWS; i++)
      for (int j = 0; j < COLUMNS / RANKS; j++)
        assert_int_equal(w->dst[r][i * COLUMNS / RANKS + j], i * COLUMNS + r * COLUMNS / RANKS + j);
}

/* Returns the allocations of one create. */
static int64_t each_create(world *w, const reshard_device *devices) {
  const reshard_local_options local = {
      .size = RESHARD_LOCAL_OPTIONS_INIT, .timeout_ms = 60000, .devices = devices, .ndevices = DEVICES};
  for (int64_t k = 0;; k++) {
    CLI_TRY("communicator: ", reshard_comm_create_local(RANKS, &local, w->comms));
    w->marked = true;
    fault_arm(k);
    rank_threads_run(RANKS, create_body, w);
    int64_t made = fault_disarm();
    fault_kind kind = fault_fired();
    rank_results_assert(RANKS, w->results, fault_status(kind), NULL, "create");
    for (int r = 0; r < RANKS; r++) {
      assert_true(kind == FAULT_NONE || w->transfers[r] == NULL);
      reshard_transfer_destroy(w->transfers[r]);
      w->transfers[r] = NULL;
    }
    works(w);
    rank_comms_close(RANKS, w->comms);
    if (kind == FAULT_NONE)
      return made;
  }
}

CASE(create_on_streams_survives_a_failed_allocation_of_any_rank) {
  static const int64_t shape[2] = {ROWS, COLUMNS}, limits[3] = {0, 0, 1024};
  static world w;
  for (int i = 0; i < 3; i++) { /* direct, packed, packed in rounds */
    const reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = limits[i]};
    int64_t live = fault_live();
    reshard_device devices[DEVICES];
    reshard_layout src, dst;
    late_open(DEVICES, 1, devices);
    w.path = i == 0 ? RESHARD_PATH_DIRECT : RESHARD_PATH_PACKED;
    CLI_TRY("source: ", reshard_layout_parse("chunk(0)", 2, shape, RANKS, &src));
    CLI_TRY("destination: ", reshard_layout_parse("chunk(1)", 2, shape, RANKS, &dst));
    const reshard_entry entry = {.size = RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_U32};
    for (int r = 0; r < RANKS; r++)
      CLI_TRY("plan: ", reshard_plan_create(1, &entry, r, &options, &w.plans[r]));
    printf("%lld allocations\n", (long long)each_create(&w, devices));
    for (int r = 0; r < RANKS; r++)
      reshard_plan_destroy(w.plans[r]);
    reshard_layout_release(src);
    reshard_layout_release(dst);
    assert_int_equal(late_close(), 0);
    assert_int_equal(fault_live(), live);
  }
}

RUN_CASES
