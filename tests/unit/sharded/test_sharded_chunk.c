/* From chunks to chunks by PyTorch's names: every permutation, dims from either end, fewer and other ranks, strided
 * shards; what is refused. */
#include "base/base.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/sharded_ranks.h"

#include <stdlib.h>
#include <string.h>

/* A rank's number in placements: that of a larger world. */
static const int64_t global_ranks[4] = {6, 3, 9, 4};

typedef struct side {
  int dim; /* as it is passed */
  int64_t n, order[4];
} side;

typedef struct exchange {
  reshard_dtype dtype;
  int ndim;
  const int64_t *shape;
  side before, after;
  reshard_layout layouts[2];
  bool strided, grad; /* grad: the lowest rank's shard requires a gradient */
} exchange;

static reshard_layout layout_of(const exchange *x, const side *s, int64_t world) {
  reshard_layout layout;
  GOOD(reshard_layout_create_chunk(x->ndim, x->shape, world, s->dim, s->n, s->order, &layout));
  return layout;
}

static void place(const side *s, reshard_remote_device *placements) {
  for (int64_t i = 0; i < s->n; i++)
    placements[i] = (reshard_remote_device){global_ranks[s->order[i]], RESHARD_DEVICE_CPU, -1};
}

static bool same_dim(const exchange *x) { return (x->before.dim - x->after.dim) % x->ndim == 0; }

static reshard_local_reshard cuts_of(const exchange *x, const reshard_remote_device *before,
                                     const reshard_remote_device *after) {
  return (reshard_local_reshard){.size = RESHARD_LOCAL_RESHARD_INIT,
                                 .dtype = x->dtype,
                                 .ndim = x->ndim,
                                 .shape = x->shape,
                                 .before = {x->before.dim, x->before.n, before},
                                 .after = {x->after.dim, x->after.n, after}};
}

static reshard_status exchange_call(reshard_sharder sharder, const exchange *x, reshard_tensor local,
                                    reshard_tensor *result) {
  reshard_remote_device before[4], after[4];
  place(&x->before, before);
  place(&x->after, after);
  const reshard_local_reshard cuts = cuts_of(x, before, after);
  return (same_dim(x) ? reshard_reshuffle_local_shard : reshard_reshard_local_shard)(sharder, &cuts, local, NULL,
                                                                                     result);
}

static void chunk_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const exchange *x = p->user;
  reshard_tensor local = NULL, result = (reshard_tensor)p;
  int64_t n[2];
  reshard_array_info info;
  reshard_status status = reshard_layout_array_count(x->layouts[0], r, &n[0]);
  RS_THEN(status, reshard_layout_array_count(x->layouts[1], r, &n[1]));
  if (status == RESHARD_SUCCESS && n[0] > 0) {
    status = reshard_layout_array(x->layouts[0], r, 0, &info);
    if (status == RESHARD_SUCCESS && x->strided)
      local = strided_tensor(x->dtype, x->ndim, info.shape, true);
    else if (status == RESHARD_SUCCESS)
      status = reshard_tensor_create(x->dtype, x->ndim, info.shape, &local);
    array_fill(x->layouts[0], r, 0, local, 5);
    reshard_tensor_set_requires_grad(local, x->grad && r == x->before.order[0]);
  }
  RS_THEN(status, exchange_call(p->sharders[r], x, local, &result));
  if (status == RESHARD_SUCCESS && n[1] == 0)
    p->wrong[r] += result != NULL;
  else if (status == RESHARD_SUCCESS) {
    reshard_tensor_info got;
    p->wrong[r] += array_check(x->layouts[1], r, 0, result, 5);
    p->wrong[r] += reshard_tensor_get_info(result, &got) != RESHARD_SUCCESS || !got.contiguous;
    p->wrong[r] += got.requires_grad != x->grad || got.pin_memory;
    reshard_tensor_release(result);
  }
  reshard_tensor_release(local);
  rank_result_set(&p->results[r], status);
}

static void with_parts(int64_t ranks, exchange *x, reshard_path path) {
  sharded_ranks p;
  reshard_sharder_options options = {
      .size = RESHARD_SHARDER_OPTIONS_INIT, .group = {ranks, global_ranks}, .path = path};
  sharded_ranks_open(&p, ranks, &options);
  x->layouts[0] = layout_of(x, &x->before, ranks);
  x->layouts[1] = layout_of(x, &x->after, ranks);
  sharded_ranks_run(&p, chunk_body, x);
  sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  reshard_layout_release(x->layouts[0]);
  reshard_layout_release(x->layouts[1]);
  sharded_ranks_close(&p);
}

/* The number-th of n! orders of 0..n-1. */
static void permute(int64_t n, int64_t number, int64_t *order) {
  int64_t left[4] = {0, 1, 2, 3};
  for (int64_t i = 0; i < n; i++) {
    int64_t k = number % (n - i);
    number /= n - i;
    order[i] = left[k];
    memmove(left + k, left + k + 1, (size_t)(n - i - 1 - k) * sizeof *left);
  }
}

/* Every pair of orders of three ranks, and every order of four from one: cycles of any length. */
CASE(every_order_of_ranks_goes_to_every_other) {
  static const int64_t shapes[3][2] = {{13, 21}, {12, 24}, {2, 5}};
  for (int same = 0; same < 2; same++)
    for (int64_t a = 0; a < 6; a++)
      for (int64_t b = 0; b < 6; b++) {
        exchange x = {.dtype = RESHARD_F32, .ndim = 2, .shape = shapes[(a + b) % 3], .strided = (a ^ b) & 1};
        x.grad = (a + b) % 3 == 0;
        x.before = (side){.dim = (int)(a % 2), .n = 3};
        x.after = (side){.dim = same ? x.before.dim : 1 - x.before.dim, .n = 3};
        permute(3, a, x.before.order);
        permute(3, b, x.after.order);
        with_parts(3, &x, a % 2 ? RESHARD_PATH_PACKED : RESHARD_PATH_AUTO);
      }
  for (int64_t a = 0; a < 24; a++) {
    exchange x = {.dtype = RESHARD_U16, .ndim = 2, .shape = shapes[a % 3]};
    x.before = (side){.dim = -1, .n = 4, .order = {1, 0, 3, 2}};
    x.after = (side){.dim = a % 2 ? 1 : -2, .n = 4};
    permute(4, a, x.after.order);
    with_parts(4, &x, RESHARD_PATH_AUTO);
  }
}

/* A part of the ranks before, another part after; three dims, the dims from either end; every width. */
CASE(some_ranks_chunk_to_others) {
  static const int64_t shape[3] = {5, 4, 7};
  static const reshard_dtype dtypes[] = {RESHARD_BOOL, RESHARD_BF16, RESHARD_F32, RESHARD_C64, RESHARD_C128};
  static const side sides[] = {{0, 2, {3, 1}},        {-3, 2, {0, 2}}, {2, 4, {3, 2, 1, 0}},
                               {-1, 4, {0, 1, 2, 3}}, {1, 1, {2}},     {-2, 3, {2, 3, 0}}};
  for (int a = 0; a < 6; a++)
    for (int b = 0; b < 6; b++) {
      exchange x = {dtypes[(a + b) % 5], 3, shape, sides[a], sides[b], {NULL}, a % 2, b % 2};
      if (!same_dim(&x) || sides[a].n == sides[b].n)
        with_parts(4, &x, b % 2 ? RESHARD_PATH_DIRECT : RESHARD_PATH_AUTO);
    }
}

/* One rank passes something else. */
typedef struct wrong {
  exchange x;
  bool null_result, no_shard, shard_elsewhere, bad_shape, bad_dtype, null_list, foreign_rank, by_other_name, null_cuts,
      bad_size;
} wrong;

static void wrong_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const wrong *w = p->user;
  exchange x = w->x;
  reshard_remote_device before[4], after[4];
  static const int64_t bad[2] = {1, 1};
  reshard_tensor local = NULL, result = (reshard_tensor)p;
  bool me = r == 1, give = r < 2 && !(me && w->no_shard);
  if (give || (w->shard_elsewhere && r == 2))
    reshard_tensor_create(me && w->bad_dtype ? RESHARD_I8 : RESHARD_F32, 2,
                          me && w->bad_shape ? bad : (int64_t[]){3, 6}, &local);
  place(&x.before, before);
  place(&x.after, after);
  if (me && w->foreign_rank)
    after[0].rank = 77;
  reshard_tensor *out = me && w->null_result ? NULL : &result;
  reshard_local_reshard cuts = cuts_of(&x, me && w->null_list ? NULL : before, after);
  cuts.size -= me && w->bad_size;
  bool same = same_dim(&x) != w->by_other_name;
  reshard_status status = (same ? reshard_reshuffle_local_shard : reshard_reshard_local_shard)(
      p->sharders[r], me && w->null_cuts ? NULL : &cuts, local, NULL, out);
  rank_result_set(&p->results[r], status);
  p->wrong[r] += result != (reshard_tensor)p;
  reshard_tensor_release(local);
}

CASE(wrong_chunk_specs_are_refused) {
  static const int64_t shape[2] = {6, 6};
  const exchange x = {
      .dtype = RESHARD_F32, .ndim = 2, .shape = shape, .before = {0, 2, {0, 1}}, .after = {1, 2, {2, 0}}};
  exchange other_n = x, no_dim = x, twice = x, none = x, same = x;
  other_n.after = (side){0, 3, {2, 0, 1}};
  no_dim.after.dim = 3;
  twice.after = (side){1, 2, {2, 2}};
  none.after.n = 0;
  same.after.dim = -2;
  const struct {
    const char *text;
    wrong w;
  } all[] = {
      {"reshard_reshuffle_local_shard: 2 placements before and 3 after: the chunks are not the same", {.x = other_n}},
      {"reshard_reshard_local_shard: dim 3 of a tensor of 2 dims", {.x = no_dim}},
      {"reshard_reshard_local_shard: placements after: group: rank 9 is named twice", {.x = twice}},
      {"reshard_reshard_local_shard: placements after: 0, list given", {.x = none}},
      {"reshard_reshard_local_shard: dim 0 before and after: reshard_reshuffle_local_shard does that",
       {.x = same, .by_other_name = true}},
      {"reshard_reshuffle_local_shard: dim 0 before and 1 after: reshard_reshard_local_shard does that",
       {.x = x, .by_other_name = true}},
      {"rank 1: reshard_reshard_local_shard: cuts is NULL", {.x = x, .null_cuts = true}},
      {"rank 1: size field 71, this library's reshard_local_reshard has 72", {.x = x, .bad_size = true}},
      {"rank 1: reshard_reshard_local_shard: result is NULL", {.x = x, .null_result = true}},
      {"rank 1: local shard is NULL and should be of shape 3x6", {.x = x, .no_shard = true}},
      {"rank 2: reshard_reshard_local_shard: global rank 9 gives a shard, and is not in the placements before",
       {.x = x, .shard_elsewhere = true}},
      {"rank 1: local shard is of shape 1x1 and should be of 3x6", {.x = x, .bad_shape = true}},
      {"rank 1: local shard is i8 and should be f32", {.x = x, .bad_dtype = true}},
      {"rank 1: reshard_reshard_local_shard: placements before: 2, list NULL", {.x = x, .null_list = true}},
      {"rank 1: reshard_reshard_local_shard: placements after: rank 77 is not in the group of ranks 6, 3, 9",
       {.x = x, .foreign_rank = true}},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .group = {3, global_ranks}};
    sharded_ranks_check(3, &options, wrong_body, (void *)&all[i].w, RESHARD_ERROR_INVALID, all[i].text);
  }
  reshard_tensor result;
  const reshard_local_reshard cuts = cuts_of(&x, NULL, NULL);
  BAD(reshard_reshard_local_shard(NULL, &cuts, NULL, NULL, &result), "reshard_reshard_local_shard: sharder is NULL");
}

RUN_CASES
