/* Transfers of all ranks of a process, made and bound anew by one thread: as by a thread for each rank. */
#include "support/fixtures/case.h"
#include "support/reshards/rows_to_columns.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENCE = 60000, RANKS = 3 };

static const reshard_path paths[2] = {RESHARD_PATH_DIRECT, RESHARD_PATH_PACKED};

/* The lists of a call, rank order[i] at i. */
typedef struct lists {
  reshard_plan plans[RANKS];
  reshard_comm comms[RANKS];
  const reshard_arrays *arrays[RANKS];
  const reshard_transfer_options *options[RANKS];
  reshard_transfer transfers[RANKS];
} lists;

static lists lists_in_order(rows_to_columns *s, const int *order) {
  lists l;
  for (int i = 0; i < RANKS; i++) {
    int r = order[i];
    l.plans[i] = s->plans[r];
    l.comms[i] = s->comms[r];
    l.arrays[i] = &s->arrays[r];
    l.options[i] = &s->options[r];
    l.transfers[i] = (reshard_transfer)s;
  }
  return l;
}

static lists lists_of(rows_to_columns *s) { return lists_in_order(s, (int[]){0, 1, 2}); }

static reshard_status create(lists *l) {
  return reshard_transfer_create_all(RANKS, l->plans, l->comms, l->arrays, l->options, l->transfers);
}

CASE(one_thread_makes_the_transfers_of_all_ranks_in_any_order) {
  static const int orders[6][RANKS] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (int p = 0; p < 2; p++)
    for (uint32_t i = 0; i < 6; i++) {
      rows_to_columns s;
      reshard_transfer_info told, alone;
      reshard_plan_options limit = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = i % 2 ? 12288 : 0};
      rows_to_columns_open(&s, RANKS, PATIENCE, paths[p], &limit);
      rows_to_columns_must_create(&s);
      lists l = lists_in_order(&s, orders[i]);
      assert_int_equal(create(&l), RESHARD_SUCCESS);
      for (int at = 0; at < RANKS; at++) {
        int r = orders[i][at];
        assert_int_equal(reshard_transfer_get_info(s.transfers[r], &alone), RESHARD_SUCCESS);
        assert_int_equal(reshard_transfer_get_info(l.transfers[at], &told), RESHARD_SUCCESS);
        assert_true(told.path == paths[p] && told.copies == alone.copies && told.rounds == alone.rounds &&
                    told.workspace_bytes == alone.workspace_bytes);
        reshard_transfer_destroy(s.transfers[r]);
        s.transfers[r] = l.transfers[at];
      }
      rows_to_columns_must_execute(&s); /* a thread for each rank */
      rows_to_columns_fill(&s, 7 + i);
      assert_int_equal(reshard_execute_all(RANKS, l.transfers, NULL), RESHARD_SUCCESS);
      assert_true(rows_to_columns_right(&s, 7 + i));
      rows_to_columns_close(&s);
    }
}

CASE(process_with_one_rank_makes_its_own_transfer) {
  for (int p = 0; p < 2; p++) {
    rows_to_columns s;
    rows_to_columns_open(&s, 1, PATIENCE, paths[p], NULL);
    const reshard_arrays *arrays = &s.arrays[0];
    assert_int_equal(reshard_transfer_create_all(1, s.plans, s.comms, &arrays, NULL, s.transfers), RESHARD_SUCCESS);
    rows_to_columns_must_execute(&s);
    assert_int_equal(reshard_transfer_rebind_all(1, s.transfers, &arrays), RESHARD_SUCCESS);
    rows_to_columns_must_execute(&s);
    assert_int_equal(reshard_transfer_rebind_all(1, s.transfers, NULL), RESHARD_ERROR_INVALID);
    rows_to_columns_close(&s);
  }
}

CASE(one_thread_binds_all_ranks_to_other_arrays) {
  for (int p = 0; p < 2; p++) {
    rows_to_columns s, other;
    rows_to_columns_open(&s, RANKS, PATIENCE, paths[p], NULL);
    rows_to_columns_open(&other, RANKS, PATIENCE, paths[p], NULL);
    lists l = lists_of(&s), turned = lists_in_order(&other, (int[]){2, 0, 1});
    assert_int_equal(create(&l), RESHARD_SUCCESS);
    rows_to_columns_fill(&s, 1);
    rows_to_columns_fill(&other, 2);
    reshard_transfer order[RANKS] = {l.transfers[2], l.transfers[0], l.transfers[1]};
    assert_int_equal(reshard_transfer_rebind_all(RANKS, order, turned.arrays), RESHARD_SUCCESS);
    assert_int_equal(reshard_execute_all(RANKS, l.transfers, NULL), RESHARD_SUCCESS);
    assert_true(rows_to_columns_right(&other, 2) && rows_to_columns_untouched(&s));
    memcpy(s.transfers, l.transfers, sizeof l.transfers);
    rows_to_columns_rebind(&s); /* back, by a thread for each rank */
    rows_to_columns_assert_all(&s, RESHARD_SUCCESS, NULL);
    rows_to_columns_must_execute(&s);
    rows_to_columns_close(&other);
    rows_to_columns_close(&s);
  }
}

CASE(rebind_of_all_ranks_that_fails_leaves_all_bound_as_before) {
  for (int p = 0; p < 2; p++)
    for (int bad = 0; bad < RANKS; bad++) {
      rows_to_columns s;
      char part[32];
      rows_to_columns_open(&s, RANKS, PATIENCE, paths[p], NULL);
      lists l = lists_of(&s);
      assert_int_equal(create(&l), RESHARD_SUCCESS);
      memcpy(s.transfers, l.transfers, sizeof l.transfers);
      reshard_arrays wrong = s.arrays[bad];
      wrong.nsrc = 5;
      l.arrays[bad] = &wrong;
      snprintf(part, sizeof part, "rank %d: ", bad);
      assert_int_equal(reshard_transfer_rebind_all(RANKS, l.transfers, l.arrays), RESHARD_ERROR_INVALID);
      assert_text_has(reshard_last_error(), part);
      l.arrays[bad] = NULL;
      assert_int_equal(reshard_transfer_rebind_all(RANKS, l.transfers, l.arrays), RESHARD_ERROR_INVALID);
      assert_int_equal(reshard_transfer_rebind_all(RANKS, l.transfers, NULL), RESHARD_ERROR_INVALID);
      rows_to_columns_must_execute(&s);
      rows_to_columns_close(&s);
    }
}

static void create_is_refused(lists *l, reshard_status status, const char *part) {
  assert_int_equal(create(l), status);
  assert_text_has(reshard_last_error(), part);
  for (int i = 0; i < RANKS; i++)
    assert_true(l->transfers[i] == l->transfers[0]); /* nothing was written */
}

CASE(lists_that_are_not_one_of_each_rank_are_refused) {
  for (int p = 0; p < 2; p++) {
    rows_to_columns s, other;
    rows_to_columns_open(&s, RANKS, PATIENCE, paths[p], NULL);
    rows_to_columns_open(&other, RANKS, PATIENCE, paths[p], NULL);
    lists l = lists_of(&s);
    reshard_transfer *t = l.transfers;
    assert_int_equal(reshard_transfer_create_all(0, l.plans, l.comms, l.arrays, NULL, t), RESHARD_ERROR_INVALID);
    assert_int_equal(reshard_transfer_create_all(2, l.plans, l.comms, l.arrays, NULL, t), RESHARD_ERROR_INVALID);
    assert_text_has(reshard_last_error(), "2 comms, this process has 3 ranks");
    l.comms[1] = other.comms[1];
    create_is_refused(&l, RESHARD_ERROR_INVALID, "comms 0 and 1 are on different communicators");
    l.comms[1] = s.comms[2];
    create_is_refused(&l, RESHARD_ERROR_INVALID, "comm 2 is of rank 2, as another one is");
    l.comms[1] = NULL;
    create_is_refused(&l, RESHARD_ERROR_INVALID, "comm 1 is NULL");
    l.comms[1] = s.comms[1];
    l.plans[1] = s.plans[0];
    create_is_refused(&l, RESHARD_ERROR_INVALID, "rank 1: the plan of rank 0 on the communicator's rank 1");
    l.plans[1] = NULL;
    create_is_refused(&l, RESHARD_ERROR_INVALID, "rank 1: reshard_transfer_create: plan is NULL");
    l.plans[1] = s.plans[1];
    l.arrays[2] = NULL;
    create_is_refused(&l, RESHARD_ERROR_INVALID, "rank 2: ");
    l.arrays[2] = &s.arrays[2];
    assert_int_equal(create(&l), RESHARD_SUCCESS);
    const reshard_arrays *const *arrays = l.arrays;
    assert_int_equal(reshard_transfer_rebind_all(2, t, arrays), RESHARD_ERROR_INVALID);
    assert_int_equal(reshard_transfer_rebind_all(3, (reshard_transfer[]){t[0], t[1], t[1]}, arrays),
                     RESHARD_ERROR_INVALID);
    assert_text_has(reshard_last_error(), "transfers 1 and 2 are the same");
    assert_int_equal(reshard_transfer_rebind_all(3, (reshard_transfer[]){t[0], t[1], NULL}, arrays),
                     RESHARD_ERROR_INVALID);
    memcpy(s.transfers, t, sizeof l.transfers);
    rows_to_columns_must_execute(&s);
    assert_int_equal(reshard_comm_abort(s.comms[1]), RESHARD_SUCCESS);
    assert_int_equal(create(&l), RESHARD_ERROR_PEER);
    rows_to_columns_close(&other);
    rows_to_columns_close(&s);
  }
}

CASE(destinations_that_overlap_what_another_rank_has_are_refused) {
  static const char *const sides[3] = {"32160 bytes on rank 0", "32160 bytes on rank 0", "32000 bytes on rank 1"};
  for (int p = 0; p < 2; p++) {
    rows_to_columns s;
    rows_to_columns_open(&s, RANKS, PATIENCE, paths[p], NULL);
    lists l = lists_of(&s);
    void *const own = s.dst_list[2], *const wrong[3] = {s.columns[0], s.columns[0] + 100, s.rows[1]};
    for (int w = 0; w < 3; w++) {
      s.dst_list[2] = wrong[w];
      create_is_refused(&l, RESHARD_ERROR_INVALID, "31680 bytes on rank 2");
      assert_text_has(reshard_last_error(), sides[w]);
    }
    s.dst_list[2] = own;
    s.src_list[0] = s.rows[1]; /* sources may be one */
    assert_int_equal(create(&l), RESHARD_SUCCESS);
    for (int w = 0; w < 3; w++) {
      s.dst_list[2] = wrong[w];
      assert_int_equal(reshard_transfer_rebind_all(RANKS, l.transfers, l.arrays), RESHARD_ERROR_INVALID);
      assert_text_has(reshard_last_error(), "on rank 2");
    }
    memcpy(s.transfers, l.transfers, sizeof l.transfers);
    s.src_list[0] = s.rows[0];
    s.dst_list[2] = own;
    assert_int_equal(reshard_transfer_rebind_all(RANKS, l.transfers, l.arrays), RESHARD_SUCCESS);
    rows_to_columns_must_execute(&s);
    rows_to_columns_close(&s);
  }
}

CASE(rebind_of_ranks_of_different_transfers_is_refused_on_any_paths) {
  for (int p = 0; p < 4; p++) {
    rows_to_columns s, other;
    rows_to_columns_open(&s, RANKS, PATIENCE, paths[p % 2], NULL);
    rows_to_columns_open(&other, RANKS, PATIENCE, paths[p / 2], NULL);
    lists l = lists_of(&s), further = lists_of(&other);
    memcpy(further.comms, l.comms, sizeof l.comms);
    assert_int_equal(create(&l), RESHARD_SUCCESS);
    assert_int_equal(create(&further), RESHARD_SUCCESS);
    const reshard_transfer mixed[RANKS] = {l.transfers[0], l.transfers[1], further.transfers[2]};
    assert_int_equal(reshard_transfer_rebind_all(RANKS, mixed, further.arrays), RESHARD_ERROR_MISMATCH);
    assert_text_has(reshard_last_error(), "transfers 0 and 2 are different ones, of ranks 0 and 2");
    for (int r = 0; r < RANKS; r++)
      reshard_transfer_destroy(further.transfers[r]);
    memcpy(s.transfers, l.transfers, sizeof l.transfers);
    rows_to_columns_must_execute(&s); /* bound as before */
    rows_to_columns_close(&other);
    rows_to_columns_close(&s);
  }
}

/* --- Ranks that want different things ----------------------------------------------------------------------------- */

/* Plans and path of one rank, or of the others. */
typedef struct variant {
  const char *name, *src, *dst;
  int64_t extent, limit;
  const int64_t *nodes;
  reshard_dtype dtype;
  int64_t more; /* entries */
  reshard_path path;
} variant;

static void make_plans(rows_to_columns *s, const variant *common, const variant *odd) {
  for (int r = 0; r < RANKS; r++) {
    const variant *v = r == 2 ? odd : common;
    int64_t shape[2] = {MATRIX_ROWS, v->extent};
    reshard_entry entry[2] = {RESHARD_ENTRY_DEFAULTS, RESHARD_ENTRY_DEFAULTS};
    reshard_layout src, dst;
    assert_int_equal(reshard_layout_parse(v->src, 2, shape, RANKS, &src), RESHARD_SUCCESS);
    assert_int_equal(reshard_layout_parse(v->dst, 2, shape, RANKS, &dst), RESHARD_SUCCESS);
    for (int e = 0; e < 2; e++) {
      entry[e].src = src;
      entry[e].dst = dst;
      entry[e].dtype = v->dtype;
      entry[e].name = e == 0 ? "first" : v->name;
    }
    reshard_plan_options options = RESHARD_PLAN_OPTIONS_DEFAULTS;
    options.workspace_limit = v->limit;
    options.nodes = v->nodes;
    reshard_plan_destroy(s->plans[r]);
    assert_int_equal(reshard_plan_create(1 + v->more, entry, r, &options, &s->plans[r]), RESHARD_SUCCESS);
    reshard_layout_release(src);
    reshard_layout_release(dst);
    s->options[r].path = v->path;
  }
}

/* The text but for the call's own name and number. */
static char *without_call(const char *text) {
  char *copy = strdup(text), *call = strstr(copy, " (reshard_transfer_create");
  if (call != NULL)
    *call = '\0';
  return copy;
}

CASE(ranks_that_differ_have_the_error_that_threads_would_have) {
  static const int64_t one_node[RANKS] = {0, 0, 0}, two_nodes[RANKS] = {0, 0, 1};
  const variant plain = {"w", "chunk(0)", "chunk(1)", 30, 0, NULL, RESHARD_F32, 1, RESHARD_PATH_PACKED};
  variant odd[8];
  for (int i = 0; i < 8; i++)
    odd[i] = plain;
  odd[0].dst = "chunk(0)";
  odd[1].extent = 40;
  odd[2].dtype = RESHARD_I32;
  odd[3].limit = 4096;
  odd[4].nodes = one_node;
  odd[5].more = 0;
  odd[6].path = RESHARD_PATH_DIRECT;
  odd[7].nodes = two_nodes;
  for (int i = 0; i < 8; i++) {
    variant common = plain;
    rows_to_columns s;
    rows_to_columns_open(&s, RANKS, PATIENCE, RESHARD_PATH_PACKED, NULL);
    common.nodes = i == 7 ? one_node : NULL;
    make_plans(&s, &common, &odd[i]);
    for (int r = 0; r < RANKS; r++) /* whose memory is enough for all of these */
      s.arrays[r].nsrc = s.arrays[r].ndst = 0;
    void *src[2] = {s.rows[0], s.rows[1]}, *dst[2] = {s.columns[0], s.columns[1]};
    for (int r = 0; r < RANKS; r++) {
      s.arrays[r].src = src;
      s.arrays[r].dst = dst;
    }
    lists l = lists_of(&s);
    rows_to_columns_create(&s);
    char *threads = without_call(s.results[0].text);
    create_is_refused(&l, RESHARD_ERROR_MISMATCH, "rank 2");
    char *one = without_call(reshard_last_error());
    assert_int_equal(s.results[0].status, RESHARD_ERROR_MISMATCH);
    assert_string_equal(one, threads);
    free(one);
    free(threads);
    rows_to_columns_close(&s);
  }
}

RUN_CASES
