/* A DTensor from placing to placing: a pair of mesh layouts and a plan that the sharder keeps.
 *
 * What stays on a sub-mesh is moved by its group alone. Else all ranks of the communicator take part, and number
 * themselves as it does: then a tensor on a sub-mesh is seen in another layout, with the same arrays. */
#include "dtensor/dtensor.h"

#include <stdlib.h>

enum { FEW = 4 }; /* tensors for whose lists nothing is allocated */

/* Arrays of a tensor in the numbers of those who move them; the arrays are borrowed, the layout is not. */
typedef struct side {
  rs_local_arrays src, dst;
} side;

typedef struct job {
  const char *call;
  reshard_sharder given; /* of all tensors */
  reshard_sharder over;  /* of the ranks that take part: the same, or that of a group */
  bool group;            /* the latter */
  bool alone;            /* this rank is outside of that group */
  void *stream;
  int64_t n;
  const reshard_dtensor *tensors;
  const reshard_placing *placings;
  reshard_dtensor *made; /* the lists below, or allocated ones */
  rs_leg *legs;
  side *sides;
  rs_planned *planned;
  reshard_dtensor few_made[FEW];
  rs_leg few_legs[FEW];
  side few_sides[FEW];
} job;

/* Do all tensors stay on the sub-mesh of the first? Arguments that are wrong say nothing: a rank that has them finds
 * those whom it has to tell. */
static bool stays(const job *j, reshard_mesh first) {
  bool same = rs_mesh_is_sub(first);
  for (int64_t i = 0; i < j->n && same; i++) {
    reshard_mesh to = j->placings != NULL ? j->placings[i].mesh : NULL;
    same = (j->tensors[i] == NULL || rs_same_group(first, j->tensors[i]->mesh)) &&
           (to == NULL || rs_same_group(first, to));
  }
  return same;
}

/* first: one of the tensors. */
static void find_ranks(job *j, reshard_dtensor first) {
  j->given = first->given;
  j->group = stays(j, first->mesh);
  j->over = j->group ? first->sharder : j->given;
  j->alone = j->group && j->over == j->given;
}

/* What a tensor has, in the numbers of those who take part. */
static reshard_status number(const job *j, reshard_dtensor t, rs_local_arrays *other, const rs_local_arrays **local) {
  *local = &t->local;
  if (j->group || t->sharder == j->given)
    return RESHARD_SUCCESS;
  const struct reshard_layout_s *l = t->local.layout;
  const reshard_placing placing = {t->mesh, l->placements, t->order};
  RS_TRY(rs_placing_layout(j->call, j->given, &placing, l->ndim, l->shape, &other->layout));
  other->n = t->local.n;
  other->arrays = t->local.arrays;
  *local = other;
  return RESHARD_SUCCESS;
}

/* The new arrays and the handle that they will have. */
static reshard_status make_result(job *j, int64_t i) {
  reshard_dtensor t = j->tensors[i];
  reshard_layout layout;
  rs_members members;
  rs_local_arrays local;
  RS_TRY(rs_members_find(j->call, j->given, &j->placings[i], &members));
  reshard_sharder s = members.sharder;
  RS_TRY(rs_placing_layout(j->call, s, &j->placings[i], t->local.layout->ndim, t->local.layout->shape, &layout));
  reshard_status status = rs_local_arrays_create(s->device, layout, s->comm->rank, &t->properties, j->stream, &local);
  reshard_layout_release(layout);
  RS_TRY(status);
  status = rs_dtensor_new(j->given, s, j->placings[i].mesh, &t->properties, &local, &j->made[i]);
  if (status != RESHARD_SUCCESS)
    rs_local_arrays_free(&local);
  return status;
}

/* The result and the leg to it. */
static reshard_status make(job *j, int64_t i) {
  reshard_dtensor t = j->tensors[i];
  if (t == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor %lld is NULL", j->call, (long long)i);
  if (t->given != j->given)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensors 0 and %lld are of different sharders", j->call, (long long)i);
  RS_TRY(make_result(j, i));
  j->legs[i] = (rs_leg){.dtype = t->properties.dtype};
  RS_TRY(number(j, t, &j->sides[i].src, &j->legs[i].src));
  return number(j, j->made[i], &j->sides[i].dst, &j->legs[i].dst);
}

static reshard_status prepare(job *j, const reshard_dtensor *results) {
  if (j->placings == NULL || results == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s is NULL", j->call, j->placings == NULL ? "placings" : "results");
  j->made = j->few_made;
  j->legs = j->few_legs;
  j->sides = j->few_sides;
  if (j->n > FEW) {
    j->made = NULL;
    j->legs = NULL;
    j->sides = NULL;
    RS_TRY(rs_alloc_zero(&j->made, j->n, sizeof *j->made));
    RS_TRY(rs_alloc_zero(&j->sides, j->n, sizeof *j->sides));
    RS_TRY(rs_alloc(&j->legs, j->n, sizeof *j->legs));
  }
  for (int64_t i = 0; i < j->n; i++)
    RS_TRY(make(j, i));
  return j->alone ? RESHARD_SUCCESS : rs_sharder_plan(j->over, j->n, j->legs, &j->planned);
}

/* Gives the results away, or drops them. */
static reshard_status end(job *j, reshard_status status, reshard_dtensor *results) {
  for (int64_t i = 0; j->sides != NULL && i < j->n; i++) {
    reshard_layout_release(j->sides[i].src.layout);
    reshard_layout_release(j->sides[i].dst.layout);
  }
  for (int64_t i = 0; j->made != NULL && i < j->n; i++)
    if (status == RESHARD_SUCCESS)
      results[i] = j->made[i];
    else
      reshard_dtensor_release(j->made[i]);
  if (j->n > FEW) {
    free(j->made);
    free(j->legs);
    free(j->sides);
  }
  return status;
}

/* Collective, but for a rank that is outside. mine: of what this rank has prepared. */
static reshard_status move(job *j, reshard_status mine, reshard_dtensor *results) {
  if (!j->alone)
    mine = rs_sharder_move(j->over, j->planned, j->legs, mine, j->stream, NULL);
  return end(j, mine, results);
}

static reshard_sharder sharder_of(const void *tensors, int64_t i) {
  reshard_dtensor t = ((const reshard_dtensor *)tensors)[i];
  return t != NULL ? t->given : NULL;
}

reshard_status reshard_dtensor_redistribute(int64_t n, const reshard_dtensor *tensors, const reshard_placing *placings,
                                            void *stream, reshard_dtensor *results) {
  job j = {.call = "reshard_dtensor_redistribute", .stream = stream, .n = n, .tensors = tensors, .placings = placings};
  RS_TRY(rs_find_sharder(j.call, n, tensors, sharder_of, &j.given));
  if (n == 0)
    return RESHARD_SUCCESS;
  while (*tensors == NULL)
    tensors++;
  find_ranks(&j, *tensors);
  return move(&j, prepare(&j, results), results);
}

reshard_status rs_dtensor_keep(const char *call, reshard_dtensor tensor, const reshard_placing *placing, void *stream,
                               reshard_dtensor *result) {
  job j = {.call = call, .stream = stream, .n = 1, .tensors = &tensor, .placings = placing};
  find_ranks(&j, tensor);
  reshard_status status = prepare(&j, result);
  if (status == RESHARD_SUCCESS && !j.alone)
    status = rs_sharder_keep(j.over, j.planned, j.legs, j.stream);
  return end(&j, status, result);
}

reshard_status reshard_dtensor_full(reshard_dtensor tensor, void *stream, reshard_tensor *whole) {
  static const char call[] = "reshard_dtensor_full";
  if (tensor == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor is NULL", call);
  const reshard_placement replicate[RESHARD_MAX_DIMS] = {{.kind = RESHARD_PLACEMENT_REPLICATE}};
  const reshard_placing placing = {tensor->mesh, replicate, NULL};
  job j = {.call = call, .stream = stream, .n = 1, .tensors = &tensor, .placings = &placing};
  reshard_dtensor result = NULL;
  find_ranks(&j, tensor);
  reshard_status mine =
      whole != NULL ? prepare(&j, &result) : rs_error(RESHARD_ERROR_INVALID, "%s: whole is NULL", call);
  RS_TRY(move(&j, mine, &result));
  *whole = reshard_tensor_retain(reshard_dtensor_local(result));
  reshard_dtensor_release(result);
  return RESHARD_SUCCESS;
}
