/* Resharding in place and into new tensors: n tensors, one plan.
 *
 * All that can fail on one rank alone - checks, the plan, the new arrays, the new metadata - is done before the ranks
 * meet. When they have met, every rank's data has moved or none's has, and what is left are assignments. So a tensor
 * has its old arrays, layout and metadata until the call is sure to succeed everywhere. */
#include "sharded/sharder.h"

#include <stdlib.h>
#include <string.h>

/* What a tensor gets. */
typedef struct replacement {
  rs_local_arrays local;
  reshard_metadata metadata;
} replacement;

typedef struct job {
  const char *call;
  bool in_place;
  void *stream;
  reshard_sharder sharder;
  int64_t n, marked; /* tensors of which it is known that they are moved in place */
  const reshard_sharded_tensor *tensors;
  const reshard_layout *layouts;
  replacement *made;
  rs_leg *legs;
  rs_planned *planned;
} job;

static reshard_status check_tensor(job *j, int64_t i) {
  reshard_sharded_tensor t = j->tensors[i];
  if (t == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor %lld is NULL", j->call, (long long)i);
  if (t->sharder != j->sharder)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensors 0 and %lld are of different sharders", j->call, (long long)i);
  if (j->in_place && t->moving)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor %lld is in the list twice", j->call, (long long)i);
  t->moving = j->in_place;
  j->marked = i + 1;
  return rs_check_layout(j->call, j->sharder, j->layouts[i], reshard_metadata_ndim(t->metadata),
                         reshard_metadata_shape(t->metadata));
}

static reshard_status make_replacement(job *j, int64_t i) {
  reshard_sharded_tensor t = j->tensors[i];
  reshard_properties properties = reshard_metadata_properties(t->metadata);
  RS_TRY(rs_local_arrays_create(j->sharder->device, j->layouts[i], j->sharder->comm->rank, &properties, j->stream,
                                &j->made[i].local));
  j->legs[i] = (rs_leg){&t->local, &j->made[i].local, properties.dtype};
  return RESHARD_SUCCESS;
}

static reshard_status prepare(job *j) {
  if (j->layouts == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: layouts is NULL", j->call);
  for (int64_t i = 0; i < j->n; i++)
    RS_TRY(check_tensor(j, i));
  RS_TRY(rs_alloc_zero(&j->made, j->n, sizeof *j->made));
  RS_TRY(rs_alloc(&j->legs, j->n, sizeof *j->legs));
  for (int64_t i = 0; i < j->n; i++)
    RS_TRY(make_replacement(j, i));
  RS_TRY(rs_sharder_plan(j->sharder, j->n, j->legs, &j->planned));
  for (int64_t i = 0; i < j->n; i++) {
    reshard_properties properties = reshard_metadata_properties(j->tensors[i]->metadata);
    RS_TRY(rs_sharder_metadata(j->sharder, j->planned, i, &properties, &j->made[i].metadata));
  }
  return RESHARD_SUCCESS;
}

static reshard_sharder sharder_of(const void *tensors, int64_t i) {
  reshard_sharded_tensor t = ((const reshard_sharded_tensor *)tensors)[i];
  return t != NULL ? t->sharder : NULL;
}

static reshard_status move(job *j, reshard_status mine) {
  int64_t peak = 0;
  RS_TRY(rs_sharder_move(j->sharder, j->planned, j->legs, mine, j->stream, &peak));
  for (int64_t i = 0; i < j->n; i++)
    peak += rs_local_arrays_bytes(&j->made[i].local);
  j->sharder->stats.peak_bytes = peak;
  return RESHARD_SUCCESS;
}

/* Also frees what the tensors have given away. */
static void end(job *j) {
  for (int64_t i = 0; i < j->marked; i++)
    j->tensors[i]->moving = false;
  for (int64_t i = 0; j->made != NULL && i < j->n; i++) {
    rs_local_arrays_free(&j->made[i].local);
    reshard_metadata_release(j->made[i].metadata);
  }
  free(j->made);
  free(j->legs);
}

static void swap(reshard_sharded_tensor t, replacement *made) {
  replacement old = {t->local, t->metadata};
  reshard_metadata_release(t->holders);
  t->holders = NULL;
  t->local = made->local;
  t->metadata = made->metadata;
  *made = old;
}

reshard_status reshard_sharded_tensor_reshard(int64_t n, const reshard_sharded_tensor *tensors,
                                              const reshard_layout *layouts, void *stream) {
  job j = {.call = "reshard_sharded_tensor_reshard",
           .in_place = true,
           .stream = stream,
           .n = n,
           .tensors = tensors,
           .layouts = layouts};
  RS_TRY(rs_find_sharder(j.call, n, tensors, sharder_of, &j.sharder));
  if (n == 0)
    return RESHARD_SUCCESS;
  reshard_status status = move(&j, prepare(&j));
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++)
    swap(tensors[i], &j.made[i]);
  end(&j);
  return status;
}

/* The new tensors, still without arrays. */
static reshard_status make_results(job *j, const reshard_sharded_tensor *results, reshard_sharded_tensor **out) {
  if (results == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: results is NULL", j->call);
  RS_TRY(prepare(j));
  RS_TRY(rs_alloc_zero(out, j->n, sizeof **out));
  for (int64_t i = 0; i < j->n; i++)
    RS_TRY(rs_sharded_new(j->sharder, NULL, &(rs_local_arrays){0}, &(*out)[i]));
  return RESHARD_SUCCESS;
}

reshard_status reshard_sharded_tensor_reshard_to(int64_t n, const reshard_sharded_tensor *tensors,
                                                 const reshard_layout *layouts, void *stream,
                                                 reshard_sharded_tensor *results) {
  job j = {
      .call = "reshard_sharded_tensor_reshard_to", .stream = stream, .n = n, .tensors = tensors, .layouts = layouts};
  RS_TRY(rs_find_sharder(j.call, n, tensors, sharder_of, &j.sharder));
  if (n == 0)
    return RESHARD_SUCCESS;
  reshard_sharded_tensor *made = NULL;
  reshard_status status = move(&j, make_results(&j, results, &made));
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++) {
    swap(made[i], &j.made[i]);
    results[i] = made[i];
    made[i] = NULL;
  }
  for (int64_t i = 0; made != NULL && i < n; i++)
    reshard_sharded_tensor_release(made[i]);
  free(made);
  end(&j);
  return status;
}
