/* A DTensor from placing to placing: a pair of mesh layouts and a cached plan.
 *
 * Tensors that stay on a sub-mesh are moved by its group outside. Else all ranks of the communicator take part, in its
 * numbers: a tensor on a sub-mesh gets another layout there, with the same arrays. */
#include "dtensor/group.h"

#include "base/dtype.h"

#include <stdlib.h>

enum { FEW = 4 }; /* tensors for whose lists nothing is allocated */

/* Arrays of a tensor in the numbers of the ranks that take part; the arrays are borrowed, the layout is not. */
typedef struct side {
  rs_local_arrays src, dst;
} side;

typedef struct redistribution {
  const char *call;
  reshard_sharder given;   /* of all tensors */
  reshard_sharder sharder; /* of the ranks that take part: `given`, or that of a group */
  bool group;              /* it is a group's */
  bool outside;            /* this rank is outside of that group */
  bool local;              /* no other rank has a part in it */
  void *stream;
  int64_t n;
  const reshard_dtensor *tensors;
  const reshard_placing *placings;
  const reshard_dtype *dtypes; /* of the results, NONE: the tensor's; NULL: all are */
  const reshard_dtensor *into; /* results that are there; NULL: they are made, by placings */
  reshard_dtensor *made;       /* the lists below, or allocated ones */
  rs_sharder_entry *entries;
  side *sides;
  rs_cached_plan *plan;
  reshard_dtensor few_made[FEW];
  rs_sharder_entry few_entries[FEW];
  side few_sides[FEW];
} redistribution;

/* All tensors stay on the sub-mesh of the first. Wrong arguments do not count: each rank must find the ranks to agree
 * with. */
static bool stays_in_group(const redistribution *r, reshard_mesh first) {
  bool same = rs_mesh_is_sub(first);
  for (int64_t i = 0; i < r->n && same; i++) {
    reshard_mesh to = r->into != NULL       ? reshard_dtensor_mesh(r->into[i])
                      : r->placings != NULL ? r->placings[i].mesh
                                            : NULL;
    same = (r->tensors[i] == NULL || rs_same_group(first, r->tensors[i]->mesh)) &&
           (to == NULL || rs_same_group(first, to));
  }
  return same;
}

/* Finds the ranks that take part; first: one of the tensors. */
static void find_ranks(redistribution *r, reshard_dtensor first) {
  r->given = first->given;
  r->group = stays_in_group(r, first->mesh);
  r->sharder = r->group ? first->sharder : r->given;
  r->outside = r->group && r->sharder == r->given;
}

/* Gives a tensor's arrays a layout in the numbers of the ranks that take part. */
static reshard_status renumber_arrays(const redistribution *r, reshard_dtensor t, rs_local_arrays *other,
                                      const rs_local_arrays **local) {
  *local = &t->local;
  if (r->group || t->sharder == r->given)
    return RESHARD_SUCCESS;
  const struct reshard_layout_s *l = t->local.layout;
  const reshard_placing placing = {t->mesh, l->placements, t->order};
  RS_TRY(rs_placing_layout(r->call, r->given, &placing, l->ndim, l->shape, &other->layout));
  other->n = t->local.n;
  other->arrays = t->local.arrays;
  *local = other;
  return RESHARD_SUCCESS;
}

/* Makes the result, still without arrays. */
static reshard_status make_result(redistribution *r, int64_t i) {
  reshard_dtensor t = r->tensors[i];
  rs_local_arrays local = {.n = 0};
  rs_placing_group group;
  reshard_properties properties = t->properties;
  if (r->dtypes != NULL && r->dtypes[i] != RESHARD_DTYPE_NONE)
    properties.dtype = r->dtypes[i];
  RS_TRY(rs_placing_group_find(r->call, r->given, &r->placings[i], &group));
  reshard_sharder s = group.sharder;
  RS_TRY(rs_placing_layout(r->call, s, &r->placings[i], t->local.layout->ndim, t->local.layout->shape, &local.layout));
  reshard_status status = rs_dtensor_new(r->given, s, r->placings[i].mesh, &properties, &local, &r->made[i]);
  if (status != RESHARD_SUCCESS)
    rs_local_arrays_free(&local);
  return status;
}

/* Takes a result that is there. */
static reshard_status take_result(redistribution *r, int64_t i) {
  reshard_dtensor t = r->tensors[i], to = r->into[i];
  if (to == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: result %lld is NULL", r->call, (long long)i);
  if (to->given != r->given)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor and result %lld are of different sharders", r->call,
                    (long long)i);
  if (to->properties.dtype != t->properties.dtype)
    return rs_error(RESHARD_ERROR_INVALID, "%s: result %lld is of %s, its tensor of %s", r->call, (long long)i,
                    reshard_dtype_string(to->properties.dtype), reshard_dtype_string(t->properties.dtype));
  char is[RS_SHAPE_TEXT], due[RS_SHAPE_TEXT];
  const struct reshard_layout_s *a = to->local.layout, *b = t->local.layout;
  if (!rs_shape_equal(a->ndim, a->shape, b->ndim, b->shape))
    return rs_error(RESHARD_ERROR_INVALID, "%s: result %lld has shape %s, its tensor %s", r->call, (long long)i,
                    rs_shape_text(is, a->ndim, a->shape), rs_shape_text(due, b->ndim, b->shape));
  r->made[i] = reshard_dtensor_retain(to);
  return RESHARD_SUCCESS;
}

/* Makes the arrays of a result. */
static reshard_status make_arrays(redistribution *r, int64_t i) {
  reshard_dtensor t = r->made[i];
  rs_local_arrays local;
  RS_TRY(rs_local_arrays_create(t->sharder->device, t->local.layout, t->sharder->comm->rank, &t->properties, r->stream,
                                &local));
  rs_local_arrays_free(&t->local);
  t->local = local;
  r->sides[i].dst.n = local.n; /* in other numbers, where it is the entry's */
  r->sides[i].dst.arrays = local.arrays;
  return RESHARD_SUCCESS;
}

/* Makes the result and the entry that fills it. */
static reshard_status make_entry(redistribution *r, int64_t i) {
  reshard_dtensor t = r->tensors[i];
  if (t == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor %lld is NULL", r->call, (long long)i);
  if (t->given != r->given)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensors 0 and %lld are of different sharders", r->call, (long long)i);
  reshard_dtype from = t->properties.dtype, to = r->dtypes != NULL ? r->dtypes[i] : RESHARD_DTYPE_NONE;
  to = to == from ? RESHARD_DTYPE_NONE : to;
  if (to != RESHARD_DTYPE_NONE && !rs_cast_supported(from, to))
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: tensor %lld: no cast from %s to %s", r->call, (long long)i,
                    reshard_dtype_string(from), reshard_dtype_string(to));
  RS_TRY(r->into != NULL ? take_result(r, i) : make_result(r, i));
  r->entries[i] = (rs_sharder_entry){.dtype = from, .dst_dtype = to};
  RS_TRY(renumber_arrays(r, t, &r->sides[i].src, &r->entries[i].src));
  return renumber_arrays(r, r->made[i], &r->sides[i].dst, &r->entries[i].dst);
}

static reshard_status prepare_move(redistribution *r, const reshard_dtensor *results) {
  if (r->into == NULL && (r->placings == NULL || results == NULL))
    return rs_error_null(r->call, r->placings == NULL && results != NULL ? "placings" : "results");
  r->made = r->few_made;
  r->entries = r->few_entries;
  r->sides = r->few_sides;
  if (r->n > FEW) {
    r->made = NULL;
    r->entries = NULL;
    r->sides = NULL;
    RS_TRY(rs_alloc_zero(&r->made, r->n, sizeof *r->made));
    RS_TRY(rs_alloc_zero(&r->sides, r->n, sizeof *r->sides));
    RS_TRY(rs_alloc(&r->entries, r->n, sizeof *r->entries));
  }
  for (int64_t i = 0; i < r->n; i++)
    RS_TRY(make_entry(r, i));
  if (!r->outside && !r->local) /* first: a rank without memory for the arrays knows if the others have to meet */
    RS_TRY(rs_sharder_plan(r->sharder, r->n, r->entries, &r->plan));
  for (int64_t i = 0; i < r->n && r->into == NULL; i++)
    RS_TRY(make_arrays(r, i));
  return !r->outside && r->local ? rs_sharder_plan_local(r->sharder, r->n, r->entries, &r->plan) : RESHARD_SUCCESS;
}

/* Returns the results, or releases them. */
static reshard_status finish_move(redistribution *r, reshard_status status, reshard_dtensor *results) {
  for (int64_t i = 0; r->sides != NULL && i < r->n; i++) {
    reshard_layout_release(r->sides[i].src.layout);
    reshard_layout_release(r->sides[i].dst.layout);
  }
  for (int64_t i = 0; r->made != NULL && i < r->n; i++)
    if (status == RESHARD_SUCCESS && r->into == NULL)
      results[i] = r->made[i];
    else
      reshard_dtensor_release(r->made[i]);
  if (r->n > FEW) {
    free(r->made);
    free(r->entries);
    free(r->sides);
  }
  return status;
}

/* Finds the ranks, and refuses a stream that is being captured: rs_request_begin. */
static reshard_status begin_move(redistribution *r, reshard_dtensor first, reshard_status *mine) {
  find_ranks(r, first);
  *mine = RESHARD_SUCCESS;
  return r->outside ? RESHARD_SUCCESS : rs_request_begin(r->call, r->sharder->comm, r->sharder->path, r->stream, mine);
}

/* Collective, but for a rank outside of the group. mine: the status of this rank's preparations. */
static reshard_status run_move(redistribution *r, reshard_status mine, reshard_dtensor *results) {
  if (r->outside)
    return finish_move(r, mine, results);
  RS_CALL_AS(r->sharder->comm, r->call, 0);
  mine = rs_sharder_execute(r->sharder, r->plan, r->entries, mine, r->stream, NULL);
  return finish_move(r, mine, results);
}

static reshard_sharder dtensor_sharder(const void *tensors, int64_t i) {
  reshard_dtensor t = ((const reshard_dtensor *)tensors)[i];
  return t != NULL ? t->given : NULL;
}

/* results: where r->into is NULL. */
static reshard_status move_tensors(redistribution *r, reshard_dtensor *results) {
  const reshard_dtensor *first = r->tensors;
  RS_TRY(rs_find_sharder(r->call, r->n, first, dtensor_sharder, &r->given));
  if (r->n == 0)
    return RESHARD_SUCCESS;
  while (*first == NULL)
    first++;
  reshard_status mine;
  RS_TRY(begin_move(r, *first, &mine));
  RS_THEN(mine, prepare_move(r, results));
  return run_move(r, mine, results);
}

reshard_status reshard_dtensor_redistribute(int64_t n, const reshard_dtensor *tensors, const reshard_placing *placings,
                                            void *stream, reshard_dtensor *results) {
  redistribution r = {
      .call = "reshard_dtensor_redistribute", .stream = stream, .n = n, .tensors = tensors, .placings = placings};
  return move_tensors(&r, results);
}

reshard_status reshard_dtensor_redistribute_as(int64_t n, const reshard_dtensor *tensors,
                                               const reshard_placing *placings, const reshard_dtype *dtypes,
                                               void *stream, reshard_dtensor *results) {
  redistribution r = {.call = "reshard_dtensor_redistribute_as",
                      .stream = stream,
                      .n = n,
                      .tensors = tensors,
                      .placings = placings,
                      .dtypes = dtypes};
  return move_tensors(&r, results);
}

reshard_status reshard_dtensor_redistribute_into(int64_t n, const reshard_dtensor *tensors,
                                                 const reshard_dtensor *results, void *stream) {
  redistribution r = {
      .call = "reshard_dtensor_redistribute_into", .stream = stream, .n = n, .tensors = tensors, .into = results};
  return move_tensors(&r, NULL);
}

reshard_status rs_dtensor_redistribute(const char *call, reshard_sharder ranks, reshard_status mine,
                                       reshard_dtensor tensor, const reshard_placing *placing, reshard_dtype dtype,
                                       void *stream, reshard_dtensor *result) {
  redistribution r = {.call = call,
                      .sharder = ranks,
                      .stream = stream,
                      .n = 1,
                      .tensors = &tensor,
                      .placings = placing,
                      .dtypes = &dtype};
  if (mine == RESHARD_SUCCESS) {
    find_ranks(&r, tensor);
    mine = prepare_move(&r, result);
  } else {
    r.outside = ranks == NULL;
  }
  return run_move(&r, mine, result);
}

reshard_status rs_dtensor_redistribute_local(const char *call, reshard_dtensor tensor, const reshard_placing *placing,
                                             void *stream, reshard_dtensor *result) {
  redistribution r = {.call = call, .local = true, .stream = stream, .n = 1, .tensors = &tensor, .placings = placing};
  find_ranks(&r, tensor);
  reshard_status status = prepare_move(&r, result);
  if (status == RESHARD_SUCCESS && !r.outside)
    status = rs_sharder_copy_local(r.sharder, r.plan, r.entries, r.stream);
  return finish_move(&r, status, result);
}

reshard_status reshard_dtensor_full(reshard_dtensor tensor, void *stream, reshard_tensor *whole) {
  static const char call[] = "reshard_dtensor_full";
  RS_TRY(RS_GIVEN(call, tensor));
  const reshard_placement replicate[RESHARD_MAX_DIMS] = {{.kind = RESHARD_PLACEMENT_REPLICATE}};
  const reshard_placing placing = {tensor->mesh, replicate, NULL};
  redistribution r = {.call = call, .stream = stream, .n = 1, .tensors = &tensor, .placings = &placing};
  reshard_dtensor result = NULL;
  reshard_status mine;
  RS_TRY(begin_move(&r, tensor, &mine));
  RS_THEN(mine, whole != NULL ? prepare_move(&r, &result) : rs_error_null(call, "whole"));
  RS_TRY(run_move(&r, mine, &result));
  *whole = reshard_tensor_retain(reshard_dtensor_local(result));
  reshard_dtensor_release(result);
  return RESHARD_SUCCESS;
}
