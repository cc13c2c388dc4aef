/* Sharded tensors from random layouts through random layouts, several at once, against the oracle, which shares no code
 * with layouts and plans. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "cases.h"
#include "support/parts.h"

#include <stdlib.h>
#include <string.h>

enum { TENSORS = 3, STEPS = 4, RANKS = 8 };

/* What a tensor is at one step of its way. */
typedef struct stop {
  oracle_layout what;
  oracle_held held;
  reshard_layout layout;
  char *text;
} stop;

typedef struct journey {
  uint64_t seed;
  int64_t n;     /* tensors */
  bool in_place; /* else into new ones */
  bool strided;  /* the first step's arrays are the test's own */
  reshard_properties properties[TENSORS];
  stop stops[TENSORS][STEPS];
} journey;

static uint64_t key_of(const journey *j, int64_t tensor) { return rng_mix(j->seed * TENSORS + (uint64_t)tensor); }

/* Stamps a rank's buffers, or counts what is not as stamped. Buffers of a flat piece are several arrays end to end. */
static int64_t visit(const journey *j, int64_t tensor, const stop *s, int64_t rank, reshard_sharded_tensor t,
                     bool check) {
  int64_t wrong = reshard_sharded_tensor_layout(t) != s->layout;
  for (int64_t b = s->held.first[rank]; b < s->held.first[rank + 1]; b++) {
    const oracle_buffer *buffer = &s->held.buffer[b];
    reshard_tensor array;
    reshard_tensor_info info;
    if (buffer->n == 0)
      continue;
    if (reshard_sharded_tensor_local(t, b - s->held.first[rank], &array, NULL) != RESHARD_SUCCESS ||
        reshard_tensor_get_info(array, &info) != RESHARD_SUCCESS)
      return 1;
    size_t width = reshard_dtype_size(info.dtype);
    bool flat = s->what.kind == RESHARD_LAYOUT_FLAT;
    wrong += check && !info.contiguous;
    for (int64_t k = 0; k < buffer->n; k++) {
      int64_t place = flat ? k : 0, rest = k;
      for (int d = info.ndim - 1; d >= 0 && !flat; d--) {
        place += rest % info.shape[d] * info.strides[d];
        rest /= info.shape[d];
      }
      unsigned char stamp[16], *at = (unsigned char *)info.data + place * (int64_t)width;
      oracle_stamp(key_of(j, tensor), buffer->index[k], width, stamp);
      if (check)
        wrong += memcmp(at, stamp, width) != 0;
      else
        memcpy(at, stamp, width);
    }
  }
  return wrong;
}

/* A tensor over arrays with strides of their own, where the kind allows them. */
static reshard_status make_strided(reshard_sharder sharder, int64_t r, reshard_layout layout,
                                   const reshard_properties *properties, reshard_sharded_tensor *tensor) {
  int64_t n = 0;
  reshard_status status = reshard_layout_array_count(layout, r, &n);
  reshard_tensor *arrays = cli_alloc(n + 1, sizeof *arrays);
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++) {
    reshard_array_info info;
    status = reshard_layout_array(layout, r, i, &info);
    arrays[i] = parts_strided(properties->dtype, reshard_layout_ndim(layout), info.shape, (r + i) % 2);
    reshard_tensor_set_requires_grad(arrays[i], properties->requires_grad);
  }
  if (status == RESHARD_SUCCESS)
    status = reshard_sharded_tensor_from_layout(sharder, layout, properties, n, arrays, tensor);
  for (int64_t i = 0; i < n; i++)
    reshard_tensor_release(arrays[i]);
  free(arrays);
  return status;
}

static void body(void *user, int64_t r) {
  parts *p = user;
  const journey *j = p->user;
  reshard_sharded_tensor tensors[TENSORS] = {NULL};
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < j->n && status == RESHARD_SUCCESS; i++) {
    const stop *s = &j->stops[i][0];
    status = j->strided && s->what.kind != RESHARD_LAYOUT_FLAT
                 ? make_strided(p->sharders[r], r, s->layout, &j->properties[i], &tensors[i])
                 : reshard_sharded_tensor_empty(p->sharders[r], s->layout, &j->properties[i], NULL, &tensors[i]);
    if (status == RESHARD_SUCCESS)
      p->wrong[r] += visit(j, i, s, r, tensors[i], false);
  }
  for (int step = 1; step < STEPS && status == RESHARD_SUCCESS; step++) {
    reshard_layout layouts[TENSORS];
    reshard_sharded_tensor results[TENSORS];
    for (int64_t i = 0; i < j->n; i++)
      layouts[i] = j->stops[i][step].layout;
    status = j->in_place ? reshard_sharded_tensor_reshard(j->n, tensors, layouts, NULL)
                         : reshard_sharded_tensor_reshard_to(j->n, tensors, layouts, NULL, results);
    for (int64_t i = 0; i < j->n && status == RESHARD_SUCCESS; i++) {
      if (!j->in_place) {
        p->wrong[r] += visit(j, i, &j->stops[i][step - 1], r, tensors[i], step > 1 || !j->strided);
        reshard_sharded_tensor_release(tensors[i]);
        tensors[i] = results[i];
      }
      p->wrong[r] += visit(j, i, &j->stops[i][step], r, tensors[i], true);
    }
  }
  for (int64_t i = 0; i < j->n; i++)
    reshard_sharded_tensor_release(tensors[i]);
  crew_note(&p->results[r], status);
}

static void plan_journey(rng *r, uint64_t seed, int64_t world, journey *j) {
  static const reshard_dtype dtypes[] = {RESHARD_U8, RESHARD_BF16, RESHARD_F32, RESHARD_I64, RESHARD_C128};
  *j = (journey){.seed = seed, .n = rng_in(r, 1, TENSORS), .in_place = rng_one_in(r, 2), .strided = rng_one_in(r, 2)};
  for (int64_t i = 0; i < j->n; i++) {
    int ndim = (int)rng_in(r, 0, 4);
    int64_t shape[4] = {0};
    for (int d = 0; d < ndim; d++)
      shape[d] = rng_one_in(r, 30) ? 0 : rng_in(r, 1, ndim > 2 ? 7 : 25);
    j->properties[i] = (reshard_properties){.dtype = dtypes[rng_below(r, 5)], .requires_grad = rng_one_in(r, 2)};
    for (int step = 0; step < STEPS; step++) {
      stop *s = &j->stops[i][step];
      case_describe(r, ndim, shape, world, true, &s->what); /* a destination is the source of the next step */
      oracle_evaluate(&s->what, &s->held);
      CLI_TRY("layout: ", case_build(r, &s->what, &s->layout, &s->text));
    }
  }
}

static void end_journey(journey *j) {
  for (int64_t i = 0; i < j->n; i++)
    for (int step = 0; step < STEPS; step++) {
      stop *s = &j->stops[i][step];
      oracle_held_free(&s->held, s->what.world);
      case_describe_free(&s->what);
      reshard_layout_release(s->layout);
      free(s->text);
    }
}

/* Says what came out wrong, with the way that led there. */
static void check(const parts *p, const journey *j) {
  for (int64_t r = 0; r < p->n; r++) {
    if (p->results[r].status == RESHARD_SUCCESS && p->wrong[r] == 0)
      continue;
    for (int64_t i = 0; i < j->n; i++)
      for (int step = 0; step < STEPS; step++)
        print_error("tensor %d, step %d: %s\n", (int)i, step, j->stops[i][step].text);
    fail_msg("seed %llu, rank %d of %d: %d wrong, %s", (unsigned long long)j->seed, (int)r, (int)p->n, (int)p->wrong[r],
             p->results[r].text);
  }
}

static void test_random(void **state) {
  (void)state;
  static int64_t pairs[RESHARD_LAYOUT_KIND_COUNT][RESHARD_LAYOUT_KIND_COUNT];
  int64_t cases = crew_scaled(1000);
  for (int64_t c = 1; c <= cases; c++) {
    rng r;
    journey j;
    parts p;
    rng_seed(&r, (uint64_t)c);
    int64_t world = rng_in(&r, 1, RANKS);
    reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT,
                                       .cached_plans = rng_in(&r, -1, 2),
                                       .workspace_limit = rng_one_in(&r, 2) ? 65536 : 0,
                                       .path = (reshard_path)rng_below(&r, 3)};
    plan_journey(&r, (uint64_t)c, world, &j);
    for (int64_t i = 0; i < j.n; i++)
      for (int step = 1; step < STEPS; step++)
        pairs[j.stops[i][step - 1].what.kind][j.stops[i][step].what.kind]++;
    parts_open(&p, world, &options);
    parts_run(&p, body, &j);
    check(&p, &j);
    parts_close(&p);
    end_journey(&j);
  }
  for (int a = 0; a < RESHARD_LAYOUT_KIND_COUNT && cases >= 1000; a++)
    for (int b = 0; b < RESHARD_LAYOUT_KIND_COUNT; b++)
      if (pairs[a][b] == 0)
        fail_msg("no case from %s to %s", case_kind_name[a], case_kind_name[b]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
