/* Gathering to one rank and to all, scattering from one: every rank in turn, outputs of any strides, and the three
 * errors of outputs: one missing, one too many, and a wrong one. */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/sharded_ranks.h"

#include <string.h>

enum { RANKS = 4 };

typedef struct fixture {
  int ndim;
  const int64_t *shape;
  reshard_properties properties;
  reshard_layout layout, whole[RANKS]; /* whole[r]: rank(r) */
  bool strided;
} fixture;

static void open_fixture(fixture *s, const char *text) {
  s->layout = layout_from_text(text, s->ndim, s->shape, RANKS);
  for (int64_t r = 0; r < RANKS; r++)
    GOOD(reshard_layout_create_single(s->ndim, s->shape, RANKS, r, &s->whole[r]));
}

static void close_fixture(fixture *s) {
  reshard_layout_release(s->layout);
  for (int64_t r = 0; r < RANKS; r++)
    reshard_layout_release(s->whole[r]);
}

static reshard_status make_whole(const fixture *s, reshard_tensor *whole) {
  if (!s->strided)
    return reshard_tensor_create(s->properties.dtype, s->ndim, s->shape, whole);
  *whole = strided_tensor(s->properties.dtype, s->ndim, s->shape, true);
  return RESHARD_SUCCESS;
}

/* From each rank in turn to the layout, back to the next rank, then to all. */
static void round_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const fixture *s = p->user;
  reshard_tensor whole = NULL;
  reshard_status status = make_whole(s, &whole);
  for (int64_t src = 0; src < RANKS && status == RESHARD_SUCCESS; src++) {
    int64_t dst = (src + 1) % RANKS;
    uint64_t seed = (uint64_t)src;
    reshard_sharded_tensor t = NULL;
    if (r == src)
      array_fill(s->whole[r], r, 0, whole, seed);
    status = reshard_sharded_tensor_scatter(p->sharders[r], r == src ? whole : NULL, src, s->layout, &s->properties,
                                            NULL, &t);
    if (status == RESHARD_SUCCESS) {
      p->wrong[r] += sharded_check(t, r, seed);
      array_fill(s->whole[r], r, 0, whole, 99); /* else */
      status = reshard_sharded_tensor_gather(t, dst, r == dst ? whole : NULL, NULL);
      p->wrong[r] += array_check(s->whole[r], r, 0, whole, r == dst ? seed : 99);
    }
    if (status == RESHARD_SUCCESS) {
      array_fill(s->whole[r], r, 0, whole, 98);
      status = reshard_sharded_tensor_gather_all(t, whole, NULL);
      p->wrong[r] += array_check(s->whole[r], r, 0, whole, seed);
      p->wrong[r] += sharded_check(t, r, seed);
    }
    reshard_sharded_tensor_release(t);
  }
  reshard_tensor_release(whole);
  rank_result_set(&p->results[r], status);
}

CASE(gather_and_scatter_are_inverse_on_any_rank) {
  static const char *const texts[] = {"chunk(1;2,0,3,1)", "mesh(2x2;S0,R)",
                                      "cyclic(2x2;2x3)",  "flat()",
                                      "rank(2)",          "boxes(0:[0,0]+[13,2];0:[0,2]+[5,19];3:[5,2]+[8,19])"};
  static const int64_t shape[2] = {13, 21}, empty[2] = {13, 0};
  static const reshard_dtype dtypes[] = {RESHARD_U8, RESHARD_F16, RESHARD_F32, RESHARD_I64, RESHARD_C128};
  for (int k = 0; k < 6; k++)
    for (int path = RESHARD_PATH_AUTO; path <= RESHARD_PATH_PACKED; path += RESHARD_PATH_PACKED) {
      fixture s = {.ndim = 2, .shape = shape, .properties = {.dtype = dtypes[k % 5]}, .strided = k % 2};
      reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .path = (reshard_path)path};
      open_fixture(&s, texts[k]);
      sharded_ranks_check(RANKS, &options, round_body, &s, RESHARD_SUCCESS, NULL);
      close_fixture(&s);
    }
  for (int scalar = 0; scalar < 2; scalar++) {
    fixture s = {.ndim = scalar ? 0 : 2, .shape = empty, .properties = {.dtype = RESHARD_F64}};
    open_fixture(&s, scalar ? "rank(1)" : "chunk(0)");
    sharded_ranks_check(RANKS, NULL, round_body, &s, RESHARD_SUCCESS, NULL);
    close_fixture(&s);
  }
}

/* A fault, and the rank that has it. */
typedef enum wrong_kind {
  NO_OUTPUT,
  FOREIGN_OUTPUT,
  WRONG_SHAPE,
  WRONG_DIMS,
  WRONG_DTYPE,
  NO_SUCH_RANK,
  NEGATIVE_RANK,
  OTHER_RANKS,
  OTHER_RANKS_ONE_OUTPUT,
  ALL_BUT_ONE,
  A_STREAM,
  ALIASED,
  SCATTER_NOTHING,
  SCATTER_TWO,
  SCATTER_SHAPE,
  SCATTER_NO_RESULT,
  SCATTER_OTHER_RANKS,
  SCATTER_NO_LAYOUT
} wrong_kind;
typedef struct wrong_case {
  wrong_kind what;
  reshard_status status;
  const char *text;
} wrong_case;
static const wrong_case wrong_cases[] = {
    {NO_OUTPUT, RESHARD_ERROR_INVALID,
     "rank 2: reshard_sharded_tensor_gather: rank 2 has to give the output, and gives none"},
    {FOREIGN_OUTPUT, RESHARD_ERROR_INVALID,
     "rank 1: reshard_sharded_tensor_gather: the output is rank 2's to give, and rank 1 gives one"},
    {WRONG_SHAPE, RESHARD_ERROR_INVALID, "rank 2: output is of shape 12x21 and should be of 13x21"},
    {WRONG_DIMS, RESHARD_ERROR_INVALID, "rank 2: output is of shape 13 and should be of 13x21"},
    {WRONG_DTYPE, RESHARD_ERROR_INVALID, "rank 2: output is i64 and should be f32"},
    {NO_SUCH_RANK, RESHARD_ERROR_INVALID, "rank 0: reshard_sharded_tensor_gather: rank 4 of a communicator of 4"},
    {NEGATIVE_RANK, RESHARD_ERROR_INVALID, "rank 0: reshard_sharded_tensor_gather: rank -1 of a communicator of 4"},
    {OTHER_RANKS, RESHARD_ERROR_MISMATCH, "reshard_sharded_tensor_gather: dst 0 on rank 0, 1 on rank 1"},
    {OTHER_RANKS_ONE_OUTPUT, RESHARD_ERROR_MISMATCH, "reshard_sharded_tensor_gather: dst 2 on rank 0, 1 on rank 3"},
    {SCATTER_OTHER_RANKS, RESHARD_ERROR_MISMATCH, "reshard_sharded_tensor_scatter: src 2 on rank 0, 3 on rank 3"},
    {ALL_BUT_ONE, RESHARD_ERROR_INVALID,
     "rank 3: reshard_sharded_tensor_gather_all: rank 3 has to give the output, and gives none"},
    {A_STREAM, RESHARD_ERROR_INVALID, "on the CPU it is NULL"},
    {ALIASED, RESHARD_ERROR_INVALID, "overlap"},
    {SCATTER_NOTHING, RESHARD_ERROR_INVALID,
     "rank 2: reshard_sharded_tensor_scatter: rank 2 has to give the whole tensor, and gives none"},
    {SCATTER_TWO, RESHARD_ERROR_INVALID,
     "rank 1: reshard_sharded_tensor_scatter: the whole tensor is rank 2's to give, and rank 1 gives one"},
    {SCATTER_SHAPE, RESHARD_ERROR_INVALID, "rank 2: whole tensor is of shape 12x21 and should be of 13x21"},
    {SCATTER_NO_RESULT, RESHARD_ERROR_INVALID, "rank 1: reshard_sharded_tensor_scatter: tensor is NULL"},
    {SCATTER_NO_LAYOUT, RESHARD_ERROR_INVALID, "rank 1: reshard_sharded_tensor_scatter: layout is NULL"},
};

typedef struct wrong_world {
  fixture s;
  wrong_kind what;
  reshard_sharded_tensor tensors[RANKS];
  reshard_tensor wholes[RANKS], narrow, flat, wide;
} wrong_world;

static reshard_status scatter_wrong(sharded_ranks *p, int64_t r, const wrong_world *w, reshard_tensor given) {
  void *poison = p;
  reshard_sharded_tensor made = poison;
  given = w->what == SCATTER_NOTHING           ? NULL
          : w->what == SCATTER_TWO && r == 1   ? w->wholes[1]
          : w->what == SCATTER_SHAPE && r == 2 ? w->narrow
                                               : given;
  reshard_status status =
      reshard_sharded_tensor_scatter(p->sharders[r], given, w->what == SCATTER_OTHER_RANKS && r == 3 ? 3 : 2,
                                     w->what == SCATTER_NO_LAYOUT && r == 1 ? NULL : w->s.layout, &w->s.properties,
                                     NULL, w->what == SCATTER_NO_RESULT && r == 1 ? NULL : &made);
  p->wrong[r] += made != poison;
  return status;
}

static void wrong_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const wrong_world *w = p->user;
  reshard_tensor mine = w->wholes[r], given = r == 2 ? mine : NULL, shard = NULL;
  int64_t dst = 2;
  reshard_status status = reshard_sharded_tensor_local(w->tensors[r], 0, &shard, NULL);
  switch (w->what) {
  case NO_OUTPUT: given = NULL; break;
  case FOREIGN_OUTPUT: given = r == 1 ? mine : given; break;
  case WRONG_SHAPE: given = r == 2 ? w->narrow : NULL; break;
  case WRONG_DIMS: given = r == 2 ? w->flat : NULL; break;
  case WRONG_DTYPE: given = r == 2 ? w->wide : NULL; break;
  case NO_SUCH_RANK: dst = 4, given = NULL; break;
  case NEGATIVE_RANK: dst = -1, given = NULL; break;
  case OTHER_RANKS: dst = r, given = mine; break;
  case OTHER_RANKS_ONE_OUTPUT: dst = r == 3 ? 1 : 2; break;
  case ALL_BUT_ONE: given = r == 3 ? NULL : mine; break;
  default: break;
  }
  if (status != RESHARD_SUCCESS) {
    p->wrong[r]++;
  } else if (w->what == ALIASED) { /* all of it is on rank 2, and the output is that memory */
    reshard_sharded_tensor t = NULL;
    status = reshard_sharded_tensor_reshard_to(1, &w->tensors[r], &w->s.whole[2], NULL, &t);
    if (r == 2 && status == RESHARD_SUCCESS)
      status = reshard_sharded_tensor_local(t, 0, &given, NULL);
    p->wrong[r] += status != RESHARD_SUCCESS;
    status = reshard_sharded_tensor_gather(t, 2, given, NULL);
    reshard_sharded_tensor_release(t);
  } else if (w->what >= SCATTER_NOTHING) {
    status = scatter_wrong(p, r, w, given);
  } else if (w->what == ALL_BUT_ONE) {
    status = reshard_sharded_tensor_gather_all(w->tensors[r], given, NULL);
  } else {
    status = reshard_sharded_tensor_gather(w->tensors[r], dst, given, w->what == A_STREAM && r == 0 ? p : NULL);
  }
  rank_result_set(&p->results[r], status);
  p->wrong[r] += array_check(w->s.whole[r], r, 0, mine, 50) + sharded_check(w->tensors[r], r, 51);
  status = reshard_sharded_tensor_gather(w->tensors[r], 2, r == 2 ? mine : NULL, NULL); /* and now it works */
  p->wrong[r] += status != RESHARD_SUCCESS || array_check(w->s.whole[r], r, 0, mine, r == 2 ? 51 : 50);
}

CASE(outputs_that_do_not_fit_are_refused_on_all) {
  static const int64_t shape[2] = {13, 21}, narrow[2] = {12, 21};
  wrong_world w = {.s = {.ndim = 2, .shape = shape, .properties = {.dtype = RESHARD_F32}}};
  open_fixture(&w.s, "chunk(0;3,1,0,2)");
  GOOD(reshard_tensor_create(RESHARD_F32, 2, narrow, &w.narrow));
  GOOD(reshard_tensor_create(RESHARD_F32, 1, shape, &w.flat));
  GOOD(reshard_tensor_create(RESHARD_I64, 2, shape, &w.wide));
  for (size_t i = 0; i < sizeof wrong_cases / sizeof *wrong_cases; i++)
    for (int path = RESHARD_PATH_AUTO; path <= RESHARD_PATH_PACKED; path += RESHARD_PATH_PACKED) {
      sharded_ranks p;
      reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .path = (reshard_path)path};
      sharded_ranks_open(&p, RANKS, &options);
      w.what = wrong_cases[i].what;
      for (int64_t r = 0; r < RANKS; r++) {
        assert_int_equal(make_whole(&w.s, &w.wholes[r]), RESHARD_SUCCESS);
        array_fill(w.s.whole[r], r, 0, w.wholes[r], 50);
        GOOD(reshard_sharded_tensor_empty(p.sharders[r], w.s.layout, &w.s.properties, NULL, &w.tensors[r]));
        sharded_fill(w.tensors[r], r, 51);
      }
      sharded_ranks_run(&p, wrong_body, &w);
      sharded_ranks_assert(&p, wrong_cases[i].status, wrong_cases[i].text);
      for (int64_t r = 0; r < RANKS; r++) {
        reshard_tensor_release(w.wholes[r]);
        reshard_sharded_tensor_release(w.tensors[r]);
      }
      sharded_ranks_close(&p);
    }
  reshard_tensor_release(w.narrow);
  reshard_tensor_release(w.flat);
  reshard_tensor_release(w.wide);
  close_fixture(&w.s);
}

CASE(gather_of_null_is_refused) {
  reshard_sharded_tensor t;
  BAD(reshard_sharded_tensor_gather(NULL, 0, NULL, NULL), "reshard_sharded_tensor_gather: tensor is NULL");
  BAD(reshard_sharded_tensor_gather_all(NULL, NULL, NULL), "reshard_sharded_tensor_gather_all: tensor is NULL");
  BAD(reshard_sharded_tensor_scatter(NULL, NULL, 0, NULL, NULL, NULL, &t),
      "reshard_sharded_tensor_scatter: sharder is NULL");
}

RUN_CASES
