/* A DTensor from placing to placing: a pair of mesh layouts and a plan that the sharder keeps. */
#include "dtensor/dtensor.h"

#include <stdlib.h>

enum { FEW = 4 }; /* tensors for whose lists nothing is allocated */

typedef struct job {
  const char *call;
  reshard_sharder sharder;
  void *stream;
  int64_t n;
  const reshard_dtensor *tensors;
  const reshard_placing *placings;
  reshard_dtensor *made; /* the lists below, or allocated ones */
  rs_leg *legs;
  rs_planned *planned;
  reshard_dtensor few_made[FEW];
  rs_leg few_legs[FEW];
} job;

/* The new arrays, the leg to them, and the handle that they will have. */
static reshard_status make(job *j, int64_t i) {
  reshard_dtensor t = j->tensors[i];
  reshard_layout layout;
  rs_held held;
  if (t == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor %lld is NULL", j->call, (long long)i);
  if (t->sharder != j->sharder)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensors 0 and %lld are of different sharders", j->call, (long long)i);
  RS_TRY(rs_placing_layout(j->call, j->sharder, &j->placings[i], t->held.layout->ndim, t->held.layout->shape, &layout));
  reshard_status status =
      rs_held_create(j->sharder->device, layout, j->sharder->comm->rank, &t->properties, j->stream, &held);
  reshard_layout_release(layout);
  RS_TRY(status);
  status = rs_dtensor_new(j->sharder, j->placings[i].mesh, &t->properties, &held, &j->made[i]);
  if (status != RESHARD_SUCCESS) {
    rs_held_free(&held);
    return status;
  }
  j->legs[i] = (rs_leg){&t->held, &j->made[i]->held, t->properties.dtype};
  return RESHARD_SUCCESS;
}

static reshard_status prepare(job *j, const reshard_dtensor *results) {
  if (j->placings == NULL || results == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s is NULL", j->call, j->placings == NULL ? "placings" : "results");
  j->made = j->few_made;
  j->legs = j->few_legs;
  if (j->n > FEW) {
    j->made = NULL;
    j->legs = NULL;
    RS_TRY(rs_alloc_zero(&j->made, j->n, sizeof *j->made));
    RS_TRY(rs_alloc(&j->legs, j->n, sizeof *j->legs));
  }
  for (int64_t i = 0; i < j->n; i++)
    RS_TRY(make(j, i));
  return rs_sharder_plan(j->sharder, j->n, j->legs, &j->planned);
}

/* Gives the results away, or drops them. */
static reshard_status end(job *j, reshard_status status, reshard_dtensor *results) {
  for (int64_t i = 0; j->made != NULL && i < j->n; i++)
    if (status == RESHARD_SUCCESS)
      results[i] = j->made[i];
    else
      reshard_dtensor_release(j->made[i]);
  if (j->n > FEW) {
    free(j->made);
    free(j->legs);
  }
  return status;
}

static reshard_sharder sharder_of(const void *tensors, int64_t i) {
  reshard_dtensor t = ((const reshard_dtensor *)tensors)[i];
  return t != NULL ? t->sharder : NULL;
}

reshard_status reshard_dtensor_redistribute(int64_t n, const reshard_dtensor *tensors, const reshard_placing *placings,
                                            void *stream, reshard_dtensor *results) {
  job j = {.call = "reshard_dtensor_redistribute", .stream = stream, .n = n, .tensors = tensors, .placings = placings};
  RS_TRY(rs_find_sharder(j.call, n, tensors, sharder_of, &j.sharder));
  if (n == 0)
    return RESHARD_SUCCESS;
  reshard_status mine = prepare(&j, results);
  return end(&j, rs_sharder_move(j.sharder, j.planned, j.legs, mine, j.stream, NULL), results);
}

reshard_status rs_dtensor_keep(const char *call, reshard_dtensor tensor, const reshard_placing *placing, void *stream,
                               reshard_dtensor *result) {
  job j = {.call = call, .sharder = tensor->sharder, .stream = stream, .n = 1, .tensors = &tensor, .placings = placing};
  reshard_status status = prepare(&j, result);
  if (status == RESHARD_SUCCESS)
    status = rs_sharder_keep(j.sharder, j.planned, j.legs, j.stream);
  return end(&j, status, result);
}

reshard_status reshard_dtensor_full(reshard_dtensor tensor, void *stream, reshard_tensor *whole) {
  static const char call[] = "reshard_dtensor_full";
  if (tensor == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor is NULL", call);
  const reshard_placement replicate[RESHARD_MAX_DIMS] = {{.kind = RESHARD_PLACEMENT_REPLICATE}};
  const reshard_placing placing = {tensor->mesh, replicate, NULL};
  job j = {
      .call = call, .sharder = tensor->sharder, .stream = stream, .n = 1, .tensors = &tensor, .placings = &placing};
  reshard_dtensor result = NULL;
  reshard_status mine =
      whole != NULL ? prepare(&j, &result) : rs_error(RESHARD_ERROR_INVALID, "%s: whole is NULL", call);
  RS_TRY(end(&j, rs_sharder_move(j.sharder, j.planned, j.legs, mine, j.stream, NULL), &result));
  *whole = reshard_tensor_retain(reshard_dtensor_local(result));
  reshard_dtensor_release(result);
  return RESHARD_SUCCESS;
}
