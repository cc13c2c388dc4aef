/* Resharding in place and into new tensors: n tensors, one plan.
 *
 * Checks, the plan, the new arrays and the new metadata can fail on one rank alone: they come before the ranks meet.
 * The plan comes before the arrays: a rank without memory for them knows if the others have to meet. When they have
 * met, every rank's data has moved or none's has, and only assignments are left. So a tensor has its old arrays, layout
 * and metadata until the call is sure to succeed everywhere. */
#include "sharded/sharder.h"

#include <stdlib.h>
#include <string.h>

/* New arrays and metadata of a tensor. */
typedef struct replacement {
  rs_local_arrays local;
  reshard_metadata metadata;
} replacement;

typedef struct resharding {
  const char *call;
  bool in_place;
  void *stream;
  reshard_sharder sharder;
  int64_t n, marked; /* marked: tensors whose `moving` is set */
  const reshard_sharded_tensor *tensors;
  const reshard_layout *layouts;
  const reshard_dtype *dtypes; /* of the results, NONE: the tensor's; NULL: all are */
  replacement *made;
  rs_sharder_entry *entries;
  rs_cached_plan *plan;
} resharding;

static reshard_status check_tensor(resharding *r, int64_t i) {
  reshard_sharded_tensor t = r->tensors[i];
  if (t == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor %lld is NULL", r->call, (long long)i);
  if (t->sharder != r->sharder)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensors 0 and %lld are of different sharders", r->call, (long long)i);
  if (r->in_place && t->moving)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor %lld is in the list twice", r->call, (long long)i);
  t->moving = r->in_place;
  r->marked = i + 1;
  return rs_check_layout(r->call, r->sharder, r->layouts[i], reshard_metadata_ndim(t->metadata),
                         reshard_metadata_shape(t->metadata));
}

static reshard_properties properties_of(const resharding *r, int64_t i) {
  reshard_properties properties = reshard_metadata_properties(r->tensors[i]->metadata);
  if (r->dtypes != NULL && r->dtypes[i] != RESHARD_DTYPE_NONE)
    properties.dtype = r->dtypes[i];
  return properties;
}

static reshard_status make_replacement(resharding *r, int64_t i) {
  reshard_properties properties = properties_of(r, i);
  rs_local_arrays local;
  RS_TRY(rs_local_arrays_create(r->sharder->device, r->layouts[i], r->sharder->comm->rank, &properties, r->stream,
                                &local));
  rs_local_arrays_free(&r->made[i].local);
  r->made[i].local = local;
  return rs_sharder_metadata(r->sharder, r->plan, i, &properties, &r->made[i].metadata);
}

static reshard_status prepare_reshard(resharding *r) {
  if (r->layouts == NULL)
    return rs_error_null(r->call, "layouts");
  for (int64_t i = 0; i < r->n; i++)
    RS_TRY(check_tensor(r, i));
  RS_TRY(rs_alloc_zero(&r->made, r->n, sizeof *r->made));
  RS_TRY(rs_alloc(&r->entries, r->n, sizeof *r->entries));
  for (int64_t i = 0; i < r->n; i++) {
    reshard_dtype from = reshard_metadata_properties(r->tensors[i]->metadata).dtype, to = properties_of(r, i).dtype;
    r->made[i].local.layout = reshard_layout_retain(r->layouts[i]);
    r->entries[i] = (rs_sharder_entry){&r->tensors[i]->local, &r->made[i].local, .dtype = from,
                                       .dst_dtype = from != to ? to : RESHARD_DTYPE_NONE};
  }
  RS_TRY(rs_sharder_plan(r->sharder, r->n, r->entries, &r->plan));
  for (int64_t i = 0; i < r->n; i++)
    RS_TRY(make_replacement(r, i));
  return RESHARD_SUCCESS;
}

static reshard_sharder tensor_sharder(const void *tensors, int64_t i) {
  reshard_sharded_tensor t = ((const reshard_sharded_tensor *)tensors)[i];
  return t != NULL ? t->sharder : NULL;
}

static reshard_status run_reshard(resharding *r, reshard_status mine) {
  int64_t peak = 0;
  RS_TRY(rs_sharder_execute(r->sharder, r->plan, r->entries, mine, r->stream, &peak));
  for (int64_t i = 0; i < r->n; i++)
    peak += rs_local_arrays_bytes(&r->made[i].local);
  r->sharder->stats.peak_bytes = peak;
  return RESHARD_SUCCESS;
}

/* Also frees the tensors' old arrays. */
static void free_resharding(resharding *r) {
  for (int64_t i = 0; i < r->marked; i++)
    r->tensors[i]->moving = false;
  for (int64_t i = 0; r->made != NULL && i < r->n; i++) {
    rs_local_arrays_free(&r->made[i].local);
    reshard_metadata_release(r->made[i].metadata);
  }
  free(r->made);
  free(r->entries);
}

static void swap_arrays(reshard_sharded_tensor t, replacement *made) {
  replacement old = {t->local, t->metadata};
  reshard_metadata_release(t->holders);
  t->holders = NULL;
  t->local = made->local;
  t->metadata = made->metadata;
  *made = old;
}

/* Makes the new tensors, still without arrays. */
static reshard_status make_results(resharding *r, const reshard_sharded_tensor *results, reshard_sharded_tensor **out) {
  if (results == NULL)
    return rs_error_null(r->call, "results");
  RS_TRY(prepare_reshard(r));
  RS_TRY(rs_alloc_zero(out, r->n, sizeof **out));
  for (int64_t i = 0; i < r->n; i++)
    RS_TRY(rs_sharded_new(r->sharder, NULL, &(rs_local_arrays){0}, &(*out)[i]));
  return RESHARD_SUCCESS;
}

/* results: the new tensors; in place there are none. */
static reshard_status reshard_tensors(resharding *r, reshard_sharded_tensor *results) {
  RS_TRY(rs_find_sharder(r->call, r->n, r->tensors, tensor_sharder, &r->sharder));
  if (r->n == 0)
    return RESHARD_SUCCESS;
  reshard_status status;
  RS_TRY(rs_request_begin(r->call, r->sharder->comm, r->sharder->path, r->stream, &status));
  RS_CALL_AS(r->sharder->comm, r->call, 0);
  reshard_sharded_tensor *made = NULL;
  RS_THEN(status, r->in_place ? prepare_reshard(r) : make_results(r, results, &made));
  status = run_reshard(r, status);
  for (int64_t i = 0; i < r->n && status == RESHARD_SUCCESS; i++) {
    swap_arrays(r->in_place ? r->tensors[i] : made[i], &r->made[i]);
    if (made != NULL) {
      results[i] = made[i];
      made[i] = NULL;
    }
  }
  for (int64_t i = 0; made != NULL && i < r->n; i++)
    reshard_sharded_tensor_release(made[i]);
  free(made);
  free_resharding(r);
  return status;
}

reshard_status reshard_sharded_tensor_reshard(int64_t n, const reshard_sharded_tensor *tensors,
                                              const reshard_layout *layouts, void *stream) {
  resharding r = {.call = "reshard_sharded_tensor_reshard",
                  .in_place = true,
                  .stream = stream,
                  .n = n,
                  .tensors = tensors,
                  .layouts = layouts};
  return reshard_tensors(&r, NULL);
}

reshard_status reshard_sharded_tensor_reshard_to(int64_t n, const reshard_sharded_tensor *tensors,
                                                 const reshard_layout *layouts, void *stream,
                                                 reshard_sharded_tensor *results) {
  resharding r = {
      .call = "reshard_sharded_tensor_reshard_to", .stream = stream, .n = n, .tensors = tensors, .layouts = layouts};
  return reshard_tensors(&r, results);
}

reshard_status reshard_sharded_tensor_reshard_to_as(int64_t n, const reshard_sharded_tensor *tensors,
                                                    const reshard_layout *layouts, const reshard_dtype *dtypes,
                                                    void *stream, reshard_sharded_tensor *results) {
  resharding r = {.call = "reshard_sharded_tensor_reshard_to_as",
                  .stream = stream,
                  .n = n,
                  .tensors = tensors,
                  .layouts = layouts,
                  .dtypes = dtypes};
  return reshard_tensors(&r, results);
}
