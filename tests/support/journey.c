#include "support/journey.h"

#include <stdlib.h>
#include <string.h>

static uint64_t key_of(const journey *j, int64_t tensor) {
  return rng_mix(j->seed * JOURNEY_TENSORS + (uint64_t)tensor);
}

/* A rank's buffers and their elements. Buffers of a flat piece are several arrays end to end. */
static void visit(site *s, const journey *j, int64_t tensor, const journey_stop *stop, reshard_sharded_tensor t,
                  bool stamp, bool strided) {
  int64_t rank = reshard_comm_rank(s->comm), first = stop->held.first[rank];
  bool flat = stop->what.kind == RESHARD_LAYOUT_FLAT;
  SITE_SO(s, reshard_sharded_tensor_layout(t) == stop->layout);
  for (int64_t b = first; b < stop->held.first[rank + 1]; b++) {
    const oracle_buffer *buffer = &stop->held.buffer[b];
    reshard_tensor array;
    reshard_tensor_info info;
    if (buffer->n == 0)
      continue;
    if (!SITE_GOOD(s, reshard_sharded_tensor_local(t, b - first, &array, NULL)) ||
        !SITE_GOOD(s, reshard_tensor_get_info(array, &info)))
      return;
    SITE_SO(s, strided || info.contiguous);
    if (stamp)
      site_stamp(s, array, buffer->n, buffer->index, flat, key_of(j, tensor));
    else
      SITE_SO(s, site_unlike(s, array, buffer->n, buffer->index, flat, key_of(j, tensor)) == 0);
  }
}

void journey_stamp(site *s, const journey *j, int64_t tensor, int step, reshard_sharded_tensor t) {
  visit(s, j, tensor, &j->stops[tensor][step], t, true, true);
}

void journey_check(site *s, const journey *j, int64_t tensor, int step, reshard_sharded_tensor t, bool strided) {
  visit(s, j, tensor, &j->stops[tensor][step], t, false, strided);
}

/* A tensor over arrays with strides of their own, where the kind allows them. */
static reshard_status make_strided(site *s, reshard_layout layout, const reshard_properties *properties,
                                   reshard_sharded_tensor *tensor) {
  int64_t n = 0, r = reshard_comm_rank(s->comm);
  reshard_status status = reshard_layout_array_count(layout, r, &n);
  reshard_tensor *arrays = cli_alloc(n + 1, sizeof *arrays);
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++) {
    reshard_array_info info;
    status = reshard_layout_array(layout, r, i, &info);
    arrays[i] = site_tensor(s, properties->dtype, reshard_layout_ndim(layout), info.shape, true);
    reshard_tensor_set_requires_grad(arrays[i], properties->requires_grad);
  }
  if (status == RESHARD_SUCCESS)
    status = reshard_sharded_tensor_from_layout(s->sharder, layout, properties, n, arrays, tensor);
  for (int64_t i = 0; i < n; i++)
    reshard_tensor_release(arrays[i]);
  free(arrays);
  return status;
}

reshard_status journey_begin(site *s, const journey *j, reshard_sharded_tensor *tensors) {
  for (int64_t i = 0; i < j->n; i++) {
    const journey_stop *stop = &j->stops[i][0];
    bool strided = j->strided && stop->what.kind != RESHARD_LAYOUT_FLAT;
    reshard_status status =
        strided ? make_strided(s, stop->layout, &j->properties[i], &tensors[i])
                : reshard_sharded_tensor_empty(s->sharder, stop->layout, &j->properties[i], s->stream, &tensors[i]);
    if (status != RESHARD_SUCCESS)
      return status;
    journey_stamp(s, j, i, 0, tensors[i]);
  }
  return RESHARD_SUCCESS;
}

static reshard_status take_step(site *s, const journey *j, int step, reshard_sharded_tensor *tensors) {
  reshard_layout layouts[JOURNEY_TENSORS];
  reshard_sharded_tensor results[JOURNEY_TENSORS];
  for (int64_t i = 0; i < j->n; i++)
    layouts[i] = j->stops[i][step].layout;
  reshard_status status = j->in_place ? reshard_sharded_tensor_reshard(j->n, tensors, layouts, s->stream)
                                      : reshard_sharded_tensor_reshard_to(j->n, tensors, layouts, s->stream, results);
  for (int64_t i = 0; i < j->n && status == RESHARD_SUCCESS; i++) {
    if (!j->in_place) {
      journey_check(s, j, i, step - 1, tensors[i], step == 1); /* the first arrays are the test's own */
      reshard_sharded_tensor_release(tensors[i]);
      tensors[i] = results[i];
    }
    journey_check(s, j, i, step, tensors[i], false);
  }
  return status;
}

reshard_status journey_walk(site *s, const journey *j) {
  reshard_sharded_tensor tensors[JOURNEY_TENSORS] = {NULL};
  reshard_status status = journey_begin(s, j, tensors);
  for (int step = 1; step < JOURNEY_STEPS && status == RESHARD_SUCCESS; step++)
    status = take_step(s, j, step, tensors);
  for (int64_t i = 0; i < j->n; i++)
    reshard_sharded_tensor_release(tensors[i]);
  return status;
}

void journey_plan(rng *r, uint64_t seed, int64_t world, journey *j) {
  static const reshard_dtype dtypes[] = {RESHARD_U8, RESHARD_BF16, RESHARD_F32, RESHARD_I64, RESHARD_C128};
  *j = (journey){
      .seed = seed, .n = rng_in(r, 1, JOURNEY_TENSORS), .in_place = rng_one_in(r, 2), .strided = rng_one_in(r, 2)};
  for (int64_t i = 0; i < j->n; i++) {
    int ndim = (int)rng_in(r, 0, 4);
    int64_t shape[4] = {0};
    for (int d = 0; d < ndim; d++)
      shape[d] = rng_one_in(r, 30) ? 0 : rng_in(r, 1, ndim > 2 ? 7 : 25);
    j->properties[i] = (reshard_properties){.dtype = dtypes[rng_below(r, 5)], .requires_grad = rng_one_in(r, 2)};
    for (int step = 0; step < JOURNEY_STEPS; step++) {
      journey_stop *s = &j->stops[i][step];
      case_describe(r, ndim, shape, world, true, &s->what); /* a destination is the source of the next step */
      oracle_evaluate(&s->what, &s->held);
      CLI_TRY("layout: ", case_build(r, &s->what, &s->layout, &s->text));
    }
  }
}

void journey_free(journey *j) {
  for (int64_t i = 0; i < j->n; i++)
    for (int step = 0; step < JOURNEY_STEPS; step++) {
      journey_stop *s = &j->stops[i][step];
      oracle_held_free(&s->held, s->what.world);
      case_describe_free(&s->what);
      reshard_layout_release(s->layout);
      free(s->text);
    }
}

void journey_make(site *s, uint64_t seed) {
  rng r;
  journey j;
  rng_seed(&r, seed);
  journey_plan(&r, seed, reshard_comm_size(s->comm), &j);
  SITE_GOOD(s, journey_walk(s, &j));
  journey_free(&j);
}
