/* All ranks have the same tensors, or all get one text with ranks, index, name and what both have; nobody waits. */
#include "bench/cli/util.h"
#include "bench/verify/random.h"
#include "support/fixtures/case.h"
#include "support/fixtures/sharded_ranks.h"

#include <reshard/sync.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 40 };

/* Parameters that each rank brings; tensors and names are the ranks' own copies. */
typedef struct lists {
  int64_t n[SHARDED_RANKS_MOST];
  reshard_tensor tensors[SHARDED_RANKS_MOST][MOST];
  const char *names[SHARDED_RANKS_MOST][MOST];
  bool unnamed[SHARDED_RANKS_MOST];
} lists;

static char spare[1 << 16]; /* what all tensors lie over: nothing here reads them */

static reshard_tensor tensor_make(reshard_dtype dtype, int ndim, const int64_t *shape, const int64_t *strides) {
  reshard_tensor t;
  CLI_TRY("tensor: ", reshard_tensor_wrap(dtype, ndim, shape, strides, spare, NULL, NULL, &t));
  return t;
}

static void lists_put(lists *l, int64_t rank, int64_t i, reshard_tensor t) {
  reshard_tensor_release(l->tensors[rank][i]);
  l->tensors[rank][i] = t;
}

static void lists_fill(lists *l, int64_t ranks, int64_t n) {
  static char text[MOST][16];
  for (int64_t i = 0; i < MOST; i++)
    snprintf(text[i], sizeof text[i], "layer.%d", (int)i);
  memset(l, 0, sizeof *l);
  for (int64_t r = 0; r < ranks; r++) {
    l->n[r] = n;
    for (int64_t i = 0; i < MOST; i++) {
      const int64_t shape[2] = {4 + i, 8};
      l->tensors[r][i] = tensor_make(RESHARD_F32, (int)(i % 3), shape, NULL);
      l->names[r][i] = text[i];
    }
  }
}

static void lists_drop(lists *l) {
  for (int64_t r = 0; r < SHARDED_RANKS_MOST; r++)
    for (int64_t i = 0; i < MOST; i++)
      reshard_tensor_release(l->tensors[r][i]);
}

static void verify(void *user, int64_t r) {
  sharded_ranks *p = user;
  const lists *l = p->user;
  rank_result_set(&p->results[r],
                  reshard_verify_shapes(p->comms[r], l->n[r], l->tensors[r], l->unnamed[r] ? NULL : l->names[r]));
}

/* All ranks have this text; and none the next time. */
static void assert_text(sharded_ranks *p, lists *l, const char *text) {
  sharded_ranks_run(p, verify, l);
  sharded_ranks_assert(p, RESHARD_ERROR_MISMATCH, NULL);
  if (!rank_result_is(&p->results[0], RESHARD_ERROR_MISMATCH, text))
    fail_msg("'%s' is not '%s'", p->results[0].text, text);
}

CASE(equal_lists_pass_on_all_ranks) {
  static lists l;
  for (int64_t ranks = 1; ranks <= 5; ranks += 2)
    for (int64_t n = 0; n <= MOST; n += 13) {
      sharded_ranks p;
      sharded_ranks_open(&p, ranks, NULL);
      lists_fill(&l, ranks, n);
      sharded_ranks_run(&p, verify, &l);
      sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
      memset(l.unnamed, 1, sizeof l.unnamed);
      sharded_ranks_run(&p, verify, &l);
      sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
      sharded_ranks_close(&p);
      lists_drop(&l);
    }
}

CASE(first_difference_is_named_on_all_ranks) {
  static lists l;
  sharded_ranks p;
  sharded_ranks_open(&p, 4, NULL);
  lists_fill(&l, 4, 6); /* of 0, 1, 2, 0, 1, 2 dims: scalar, 5, 6x8, scalar, 8, 9x8 */
  lists_put(&l, 2, 5, tensor_make(RESHARD_F32, 2, (int64_t[]){8, 9}, NULL));
  assert_text(&p, &l, "reshard_verify_shapes: 'layer.5': shape [9,8] on rank 0, [8,9] on rank 2");
  lists_put(&l, 3, 1,
            tensor_make(RESHARD_BF16, 1, (int64_t[]){5}, NULL)); /* the lowest rank that differs is told of, not 3 */
  assert_text(&p, &l, "reshard_verify_shapes: 'layer.5': shape [9,8] on rank 0, [8,9] on rank 2");
  lists_put(&l, 1, 1, tensor_make(RESHARD_BF16, 1, (int64_t[]){5}, NULL));
  assert_text(&p, &l, "reshard_verify_shapes: 'layer.1': dtype f32 on rank 0, bf16 on rank 1");
  lists_put(&l, 1, 1, tensor_make(RESHARD_F32, 2, (int64_t[]){5, 1}, NULL));
  assert_text(&p, &l, "reshard_verify_shapes: 'layer.1': shape [5] on rank 0, [5,1] on rank 1");
  lists_put(&l, 1, 0, tensor_make(RESHARD_F32, 1, (int64_t[]){1}, NULL)); /* the first tensor that differs */
  assert_text(&p, &l, "reshard_verify_shapes: 'layer.0': shape [] on rank 0, [1] on rank 1");
  memset(l.unnamed, 1, sizeof l.unnamed);
  assert_text(&p, &l, "reshard_verify_shapes: tensor 0: shape [] on rank 0, [1] on rank 1");
  lists_drop(&l);

  lists_fill(&l, 4, 6); /* strides */
  lists_put(&l, 1, 2, tensor_make(RESHARD_F32, 2, (int64_t[]){6, 8}, (int64_t[]){1, 6}));
  assert_text(&p, &l, "reshard_verify_shapes: 'layer.2': strides [8,1] on rank 0, [1,6] on rank 1");
  lists_drop(&l);
  lists_fill(&l, 4, 6); /* but those that are not walked */
  for (int64_t r = 0; r < 4; r++) {
    lists_put(&l, r, 2, tensor_make(RESHARD_F32, 3, (int64_t[]){1, 6, 1}, (int64_t[]){r * 5, 1, r}));
    lists_put(&l, r, 5, tensor_make(RESHARD_F32, 2, (int64_t[]){6, 0}, (int64_t[]){r, 3 * r}));
  }
  sharded_ranks_run(&p, verify, &l);
  sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  lists_drop(&l);

  lists_fill(&l, 4, 6); /* names */
  l.names[3][4] = "other\n";
  assert_text(&p, &l,
              "reshard_verify_shapes: tensor 4: name 'layer.4' on rank 0, 'other?' on rank 3 (6 and 6 tensors)");
  l.names[3][4] = NULL;
  assert_text(&p, &l, "reshard_verify_shapes: tensor 4: name 'layer.4' on rank 0, '' on rank 3 (6 and 6 tensors)");
  char long_name[600];
  memset(long_name, 'y', sizeof long_name);
  long_name[sizeof long_name - 1] = '\0';
  l.names[3][4] = long_name;
  sharded_ranks_run(&p, verify, &l);
  sharded_ranks_assert(&p, RESHARD_ERROR_MISMATCH, "tensor 4: name 'layer.4' on rank 0, 'yyyyyyyyy");
  lists_drop(&l);
  sharded_ranks_close(&p);
}

CASE(lists_of_different_lengths_name_the_missing) {
  static lists l;
  sharded_ranks p;
  sharded_ranks_open(&p, 3, NULL);
  lists_fill(&l, 3, 6);
  l.n[2] = 5;
  assert_text(&p, &l,
              "reshard_verify_shapes: 'layer.5' is on rank 0, and not on rank 2 (6 tensors on rank 0, 5 on rank 2)");
  l.n[2] = 8;
  assert_text(&p, &l,
              "reshard_verify_shapes: 'layer.6' is on rank 2, and not on rank 0 (6 tensors on rank 0, 8 on rank 2)");
  l.n[0] = 0;
  assert_text(&p, &l,
              "reshard_verify_shapes: 'layer.0' is on rank 1, and not on rank 0 (0 tensors on rank 0, 6 on rank 1)");
  l.n[0] = 6;
  l.n[1] = 6;
  for (int64_t i = 7; i > 3; i--) { /* one too many in the middle */
    lists_put(&l, 2, i, reshard_tensor_retain(l.tensors[2][i - 1]));
    l.names[2][i] = l.names[2][i - 1];
  }
  lists_put(&l, 2, 3, tensor_make(RESHARD_I64, 1, (int64_t[]){2}, NULL));
  l.names[2][3] = "steps";
  l.n[2] = 7;
  assert_text(&p, &l, "reshard_verify_shapes: tensor 3: name 'layer.3' on rank 0, 'steps' on rank 2 (6 and 7 tensors)");
  memset(l.unnamed, 1, sizeof l.unnamed);
  l.n[2] = 3;
  assert_text(&p, &l,
              "reshard_verify_shapes: tensor 3 is on rank 0, and not on rank 2 (6 tensors on rank 0, 3 on rank 2)");
  lists_drop(&l);
  sharded_ranks_close(&p);
}

/* Every place of a difference, in lists of every length, on every rank, others being longer or shorter. */
CASE(test_every_place) {
  static lists l;
  sharded_ranks p;
  sharded_ranks_open(&p, 4, NULL);
  for (int64_t n = 1; n <= 17; n++)
    for (int64_t at = 0; at < n; at++) {
      char text[128];
      rng random;
      rng_seed(&random, (uint64_t)(n * 100 + at));
      int64_t rank = rng_in(&random, 1, 3);
      lists_fill(&l, 4, n);
      lists_put(&l, rank, at, tensor_make(RESHARD_C64, 1, (int64_t[]){3}, NULL));
      for (int64_t r = rank + 1; r < 4; r++)
        l.n[r] = rng_below(&random, MOST);
      snprintf(text, sizeof text, "reshard_verify_shapes: 'layer.%d': shape [", (int)at);
      sharded_ranks_run(&p, verify, &l);
      sharded_ranks_assert(&p, RESHARD_ERROR_MISMATCH, text);
      snprintf(text, sizeof text, " on rank 0, [3] on rank %d", (int)rank);
      sharded_ranks_assert(&p, RESHARD_ERROR_MISMATCH, text);
      lists_drop(&l);
    }
  sharded_ranks_close(&p);
}

/* --- Ranks that cannot ------------------------------------------------------------------------------------------ */

static void one_does_not(void *user, int64_t r) {
  sharded_ranks *p = user;
  const lists *l = p->user;
  rank_result_set(&p->results[r],
                  r != 2 ? reshard_verify_shapes(p->comms[r], l->n[r], l->tensors[r], NULL)
                         : reshard_sync_tensors(p->comms[r], 0, l->n[r], l->tensors[r], NULL, NULL, NULL, NULL));
}

static void one_has_no_list(void *user, int64_t r) {
  sharded_ranks *p = user;
  const lists *l = p->user;
  rank_result_set(&p->results[r],
                  reshard_verify_shapes(p->comms[r], r == 1 ? 3 : l->n[r], r == 1 ? NULL : l->tensors[r], NULL));
}

static void one_aborts(void *user, int64_t r) {
  sharded_ranks *p = user;
  const lists *l = p->user;
  if (r == 1)
    rank_result_set(&p->results[r], reshard_comm_abort(p->comms[r]));
  else
    rank_result_set(&p->results[r], reshard_verify_shapes(p->comms[r], l->n[r], l->tensors[r], NULL));
}

CASE(failure_of_one_rank_is_told_on_all) {
  static lists l;
  sharded_ranks p;
  sharded_ranks_open(&p, 3, NULL);
  lists_fill(&l, 3, 6);
  lists_put(&l, 1, 4, NULL);
  sharded_ranks_run(&p, verify, &l);
  sharded_ranks_assert(&p, RESHARD_ERROR_INVALID, NULL);
  assert_string_equal(p.results[0].text, "rank 1: reshard_verify_shapes: tensor 4 is NULL");
  lists_put(&l, 1, 4, reshard_tensor_retain(l.tensors[0][4]));
  l.n[2] = -5;
  sharded_ranks_run(&p, verify, &l);
  sharded_ranks_assert(&p, RESHARD_ERROR_INVALID, NULL);
  assert_string_equal(p.results[0].text, "rank 2: reshard_verify_shapes: -5 tensors, list given");
  l.n[2] = 6;
  sharded_ranks_run(&p, one_has_no_list, &l);
  sharded_ranks_assert(&p, RESHARD_ERROR_INVALID, NULL);
  assert_string_equal(p.results[0].text, "rank 1: reshard_verify_shapes: 3 tensors, list NULL");
  sharded_ranks_run(&p, one_does_not, &l);
  sharded_ranks_assert(&p, RESHARD_ERROR_MISMATCH, NULL);
  assert_string_equal(p.results[0].text, "ranks 0 and 2 make different collective calls at once: "
                                         "reshard_verify_shapes, call 5, and reshard_sync_tensors, call 5");
  assert_int_equal(reshard_verify_shapes(NULL, 0, NULL, NULL), RESHARD_ERROR_INVALID);
  assert_string_equal(reshard_last_error(), "reshard_verify_shapes: comm is NULL");
  sharded_ranks_run(&p, verify, &l); /* and all goes on */
  sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  sharded_ranks_run(&p, one_aborts, &l);
  assert_int_equal(p.results[0].status, RESHARD_ERROR_PEER);
  assert_int_equal(p.results[2].status, RESHARD_ERROR_PEER);
  lists_drop(&l);
  sharded_ranks_close(&p);
}

RUN_CASES
