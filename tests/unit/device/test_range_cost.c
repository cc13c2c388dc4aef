/* Ranges cost 1 % of an execute of 64 KiB at most where no tool listens: as many as such an execute has, each timed
 * alone, beside the execute. Four ranks are driven by one thread, so that no wait for others is in the time. */
#include "base/range.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"

#include "bench/cli/util.h"

#include <reshard/reshard.h>

#include <stdlib.h>

enum { RANKS = 4, SIDE = 128, RUNS = 2000, LOOP = 10000 };
static const double most_share = 0.01;

typedef struct square_move {
  reshard_path path;
  reshard_comm comms[RANKS];
  reshard_plan plans[RANKS];
  reshard_transfer transfers[RANKS];
  float src[RANKS][SIDE * SIDE / RANKS], dst[RANKS][SIDE * SIDE / RANKS];
} square_move;

static void create_transfer(void *user, int64_t rank) {
  square_move *m = user;
  const int64_t shape[] = {SIDE, SIDE};
  reshard_entry entry = RESHARD_ENTRY_DEFAULTS;
  reshard_layout rows, columns;
  CLI_TRY("", reshard_layout_parse("chunk(0)", 2, shape, RANKS, &rows));
  CLI_TRY("", reshard_layout_parse("chunk(1)", 2, shape, RANKS, &columns));
  entry.src = rows, entry.dst = columns, entry.dtype = RESHARD_F32;
  CLI_TRY("", reshard_plan_create(1, &entry, rank, NULL, &m->plans[rank]));
  void *src = m->src[rank], *dst = m->dst[rank];
  reshard_arrays arrays = RESHARD_ARRAYS_DEFAULTS;
  arrays.src = &src, arrays.dst = &dst;
  reshard_transfer_options options = RESHARD_TRANSFER_OPTIONS_DEFAULTS;
  options.path = m->path;
  CLI_TRY("", reshard_transfer_create(m->plans[rank], m->comms[rank], &arrays, &options, &m->transfers[rank]));
  reshard_layout_release(rows);
  reshard_layout_release(columns);
}

/* --- A tool that counts ------------------------------------------------------------------------------------------- */

static int64_t ranges, open_ranges;

static bool count_begin(const char *name, const rs_range_of *of) {
  (void)name, (void)of;
  ranges++;
  open_ranges++;
  return true;
}
static void count_end(void) { open_ranges--; }
static const rs_range_tool counting = {count_begin, count_end};

/* Ranges of one execute. */
static int64_t count_ranges(const square_move *m) {
  ranges = open_ranges = 0;
  atomic_store(&rs_ranges, &counting);
  GOOD(reshard_execute_all(RANKS, m->transfers, NULL));
  atomic_store(&rs_ranges, NULL);
  assert_int_equal(open_ranges, 0);
  return ranges;
}

/* --- Times, the shortest of many: what else runs makes them longer ------------------------------------------------ */

static double time_execute(const square_move *m) {
  double least = 1;
  for (int i = 0; i < RUNS; i++) {
    double begin = rs_seconds();
    GOOD(reshard_execute_all(RANKS, m->transfers, NULL));
    double seconds = rs_seconds() - begin;
    least = seconds < least ? seconds : least;
  }
  return least;
}

static double time_range(void) {
  double least = 1;
  for (int i = 0; i < 100; i++) {
    double begin = rs_seconds();
    for (int64_t k = 0; k < LOOP; k++) {
      RS_RANGE("none", k, -1, -1, -1);
    }
    double seconds = (rs_seconds() - begin) / LOOP;
    least = seconds < least ? seconds : least;
  }
  return least;
}

static void check_cost(reshard_path path) {
  square_move *m = cli_alloc(1, sizeof *m);
  m->path = path;
  rank_comms_open(RANKS, 1, 60000, m->comms);
  rank_threads_run(RANKS, create_transfer, m);
  double execute = time_execute(m); /* the first range finds that there is no tool */
  assert_null(atomic_load(&rs_ranges));
  double range = time_range();
  int64_t n = count_ranges(m);
  double share = (double)n * range / execute;
  print_message("%s: %lld ranges of %.2f ns are %.3f %% of an execute of %.2f us\n",
                path == RESHARD_PATH_DIRECT ? "direct" : "packed", (long long)n, 1e9 * range, 100 * share,
                1e6 * execute);
  assert_true(n > 1);
  assert_true(share <= most_share);
  for (int r = 0; r < RANKS; r++) {
    reshard_transfer_destroy(m->transfers[r]);
    reshard_plan_destroy(m->plans[r]);
  }
  rank_comms_close(RANKS, m->comms);
  free(m);
}

CASE(ranges_of_the_direct_path_cost_little) { check_cost(RESHARD_PATH_DIRECT); }

CASE(ranges_of_the_packed_path_cost_little) { check_cost(RESHARD_PATH_PACKED); }

int main(void) {
  unsetenv("NVTX_INJECTION64_PATH");
  return case_list_run(__FILE__, NULL, NULL);
}
