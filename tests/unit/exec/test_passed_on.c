/* Transfers whose ranks pass bytes on within their domain: 2 holders to 4 replicas, through slices of each. Random ones
 * are in tests/random. */
#include "support/fixtures/case.h"
#include "support/fixtures/layouts.h"

#include <reshard/transfer.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 6, HOLDERS = 2, ROWS = 2048, COLUMNS = 1024 };

typedef struct world {
  reshard_plan plans[RANKS];
  reshard_comm comms[RANKS];
  reshard_transfer transfers[RANKS];
  unsigned char *src[RANKS], *dst[RANKS];
  void *sources[RANKS], *destinations[RANKS];
  reshard_arrays arrays[RANKS];
  const reshard_arrays *array_lists[RANKS];
  reshard_transfer_options options;
  const reshard_transfer_options *option_lists[RANKS];
} world;

static unsigned char byte_at(int64_t i, int seed) { return (unsigned char)(i % 251 + i / 8191 + seed); }

static void fill_world(world *w, int seed) {
  for (int r = 0; r < RANKS; r++) {
    memset(w->dst[r], 0xee, (size_t)ROWS * COLUMNS);
    for (int64_t i = 0; i < ROWS * COLUMNS / HOLDERS && r < HOLDERS; i++)
      w->src[r][i] = byte_at(r * (ROWS * COLUMNS / HOLDERS) + i, seed);
  }
}

static void check_world(const world *w, int seed) {
  for (int r = HOLDERS; r < RANKS; r++)
    for (int64_t i = 0; i < ROWS * COLUMNS; i++)
      if (w->dst[r][i] != byte_at(i, seed))
        fail_msg("rank %d: byte %lld is wrong", r, (long long)i);
}

static void bind_lists(world *w) {
  for (int r = 0; r < RANKS; r++) {
    w->sources[r] = w->src[r];
    w->destinations[r] = w->dst[r];
    w->arrays[r] = (reshard_arrays){.size = RESHARD_ARRAYS_INIT, .src = &w->sources[r], .dst = &w->destinations[r]};
    w->array_lists[r] = &w->arrays[r];
    w->option_lists[r] = &w->options;
  }
}

static int64_t most_chains = 2;

/* domains: of the ranks. */
static reshard_status open_world(world *w, const int64_t *domains, int64_t limit, reshard_path path) {
  const int64_t shape[2] = {ROWS, COLUMNS};
  *w = (world){.options = {.size = RESHARD_TRANSFER_OPTIONS_INIT, .path = path}};
  reshard_topology topology = RESHARD_TOPOLOGY_DEFAULTS;
  topology.ranks = RANKS;
  topology.domain = domains;
  topology.chains = most_chains;
  topology.round_ns = 10;
  reshard_layout src = layout_from_text("chunk(0;0-1)", 2, shape, RANKS),
                 dst = layout_from_text("mesh(4@2-5;R)", 2, shape, RANKS);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_U8};
  reshard_plan_options options = {RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = limit, .on_cpu = 1,
                                  .topology = &topology};
  assert_int_equal(reshard_plan_create_all(1, &entry, RANKS, NULL, &options, w->plans), RESHARD_SUCCESS);
  reshard_layout_release(src);
  reshard_layout_release(dst);
  assert_int_equal(reshard_comm_create_local(RANKS, NULL, w->comms), RESHARD_SUCCESS);
  for (int r = 0; r < RANKS; r++) {
    w->src[r] = malloc((size_t)ROWS * COLUMNS);
    w->dst[r] = malloc((size_t)ROWS * COLUMNS);
    assert_true(w->src[r] != NULL && w->dst[r] != NULL);
  }
  bind_lists(w);
  return reshard_transfer_create_all(RANKS, w->plans, w->comms, w->array_lists, w->option_lists, w->transfers);
}

static void close_world(world *w) {
  for (int r = 0; r < RANKS; r++) {
    reshard_transfer_destroy(w->transfers[r]);
    reshard_plan_destroy(w->plans[r]);
    free(w->src[r]);
    free(w->dst[r]);
  }
  for (int r = 0; r < RANKS; r++)
    reshard_comm_destroy(w->comms[r]);
}

/* Counts of all ranks, of so many executes, beside those of the plans: each byte leaves once, and enters once. */
static void check_counts(const world *w, int64_t executes, bool counted) {
  int64_t left = 0, leaving = 0;
  for (int r = 0; r < RANKS; r++) {
    reshard_comm_stats stats;
    reshard_plan_info info;
    assert_int_equal(reshard_comm_get_stats(w->comms[r], &stats), RESHARD_SUCCESS);
    assert_int_equal(reshard_plan_get_info(w->plans[r], &info), RESHARD_SUCCESS);
    assert_int_equal(stats.between_bytes, counted ? executes * info.between_received_bytes : 0);
    assert_int_equal(stats.within_bytes, counted ? executes * info.within_received_bytes : 0);
    left += stats.leaving_bytes;
    leaving += info.leaving_bytes;
  }
  assert_int_equal(left, counted ? executes * leaving : 0);
}

static const int64_t two_domains[RANKS] = {0, 0, 1, 1, 1, 1}, one_receiver_each[RANKS] = {0, 0, 0, 0, 0, 1},
                     chained[RANKS] = {0, 0, 1, 1, 2, 2};

CASE(replicas_receive_slices_and_pass_them_on) {
  const int64_t limits[] = {RESHARD_DEFAULT_LIMIT, RESHARD_NO_LIMIT, 65536, 3072};
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
    world w;
    reshard_transfer_info info;
    assert_int_equal(open_world(&w, two_domains, limits[i], RESHARD_PATH_PACKED), RESHARD_SUCCESS);
    for (int seed = 1; seed < 3; seed++) {
      fill_world(&w, seed);
      assert_int_equal(reshard_execute_all(RANKS, w.transfers, NULL), RESHARD_SUCCESS);
      check_world(&w, seed);
    }
    for (int r = 0; r < RANKS; r++) {
      assert_int_equal(reshard_transfer_get_info(w.transfers[r], &info), RESHARD_SUCCESS);
      /* a receiver gets its slice and three others of both holders, and passes its own on to three */
      assert_true(info.path == RESHARD_PATH_PACKED && info.streams == 14 && info.later_rounds == 1 && info.rounds > 1);
      assert_true(limits[i] <= 0 || (int64_t)info.workspace_bytes <= limits[i]);
    }
    unsigned char *first = w.dst[RANKS - 1]; /* other arrays */
    w.dst[RANKS - 1] = w.dst[HOLDERS];
    w.dst[HOLDERS] = first;
    bind_lists(&w);
    assert_int_equal(reshard_transfer_rebind_all(RANKS, w.transfers, w.array_lists), RESHARD_SUCCESS);
    fill_world(&w, 9);
    assert_int_equal(reshard_execute_all(RANKS, w.transfers, NULL), RESHARD_SUCCESS);
    check_world(&w, 9);
    check_counts(&w, 3, true);
    close_world(&w);
  }
}

CASE(transfers_pass_nothing_on_where_they_are_direct_or_domains_have_no_replicas) {
  const struct {
    const int64_t *domains;
    reshard_path path;
  } worlds[] = {{two_domains, RESHARD_PATH_DIRECT}, {one_receiver_each, RESHARD_PATH_PACKED}};
  for (int i = 0; i < 2; i++) {
    world w;
    reshard_transfer_info info;
    assert_int_equal(open_world(&w, worlds[i].domains, RESHARD_DEFAULT_LIMIT, worlds[i].path), RESHARD_SUCCESS);
    fill_world(&w, 4);
    assert_int_equal(reshard_execute_all(RANKS, w.transfers, NULL), RESHARD_SUCCESS);
    check_world(&w, 4);
    assert_int_equal(reshard_transfer_get_info(w.transfers[2], &info), RESHARD_SUCCESS);
    assert_true(info.path == worlds[i].path && info.streams == 0 && info.later_rounds == 0);
    check_counts(&w, 1, info.path == RESHARD_PATH_PACKED);
    close_world(&w);
  }
}

/* Paths, chains that the model does not choose, and chains that nobody wants. */
CASE(plans_say_what_is_not_passed_on_and_why) {
  const struct {
    int64_t chains;
    const char *why;
  } plans[] = {
      {1, " on GPUs\n  pattern   none: not everybody is sent to\n  passed on 2 streams here, of 4 that are staged; "
          "2 more rounds for later hops\n  not passed on: anything, where a transfer is direct or takes a "
          "collective; a mixed one reads only what is not passed on\n"},
      {0, "\n  pattern   none: not everybody is sent to\n  not passed on: anything, as it would take no less "
          "time\n"},
      {RESHARD_NO_CHAINS, NULL}};
  const int64_t shape[2] = {8, 8}, domains[RANKS] = {0, 0, 1, 1, 1, 1};
  reshard_layout src = layout_from_text("chunk(0;0-1)", 2, shape, RANKS),
                 dst = layout_from_text("mesh(4@2-5;R)", 2, shape, RANKS);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_U8};
  reshard_topology topology = RESHARD_TOPOLOGY_DEFAULTS;
  topology.ranks = RANKS;
  topology.domain = domains;
  reshard_plan_options options = {RESHARD_PLAN_OPTIONS_INIT, .topology = &topology};
  for (int i = 0; i < 3; i++) {
    char text[4096];
    reshard_plan plan;
    topology.chains = plans[i].chains;
    assert_int_equal(reshard_plan_create(1, &entry, 2, &options, &plan), RESHARD_SUCCESS);
    assert_int_equal(reshard_plan_explain(plan, RESHARD_TEXT, text, sizeof text, NULL), RESHARD_SUCCESS);
    const char *said = strstr(text, plans[i].why != NULL ? plans[i].why : "passed on");
    if ((said != NULL) != (plans[i].why != NULL))
      fail_msg("%s", text);
    reshard_plan_destroy(plan);
  }
  reshard_layout_release(src);
  reshard_layout_release(dst);
}

/* From domain to domain, as the chains have it: what the second one receives has left the source before. */
CASE(bytes_of_a_chain_leave_the_source_once) {
  for (int64_t chains = 1; chains <= 2; chains++) {
    world w;
    most_chains = chains;
    assert_int_equal(open_world(&w, chained, RESHARD_NO_LIMIT, RESHARD_PATH_PACKED), RESHARD_SUCCESS);
    fill_world(&w, 5);
    assert_int_equal(reshard_execute_all(RANKS, w.transfers, NULL), RESHARD_SUCCESS);
    check_world(&w, 5);
    check_counts(&w, 1, true);
    int64_t left = 0, entered = 0;
    for (int r = 0; r < RANKS; r++) {
      reshard_comm_stats stats;
      assert_int_equal(reshard_comm_get_stats(w.comms[r], &stats), RESHARD_SUCCESS);
      left += stats.leaving_bytes;
      entered += stats.between_bytes;
    }
    assert_true(left == chains * ROWS * COLUMNS && entered == 2 * ROWS * COLUMNS);
    close_world(&w);
  }
  most_chains = 2;
}

RUN_CASES
