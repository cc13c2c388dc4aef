/* Comparison of all ranks' tensors, by one all-gather of a hash.
 *
 * After a mismatch, halving finds the first tensor in which a rank differs from rank 0: the ranks exchange hashes of
 * ever better prefixes of their lists, and at last the two tensors, each time in a record of fixed size. So nothing is
 * allocated, and the cost of a mismatch grows with the logarithm of the number of tensors alone. All ranks see the same
 * records and so come to the same text. */
#include "base/text.h"
#include "exec/differ.h"
#include "module/module.h"

#include <stdio.h>
#include <string.h>

/* Arguments of a rank's call. */
typedef struct call_record {
  int64_t status, n, src, bucket, path, moved;
  uint64_t call, hash; /* of all tensors */
  char text[RS_COMM_RECORD - 8 * sizeof(int64_t)];
} call_record;
_Static_assert(sizeof(call_record) == RS_COMM_RECORD, "a record fits the communicator's buffer");

/* One tensor, in numbers that are equal where the tensors are. */
typedef struct parameter_record {
  int64_t there; /* 0: the rank has none of this number */
  int64_t dtype, ndim, shape[RESHARD_MAX_DIMS], strides[RESHARD_MAX_DIMS];
  uint64_t name_hash;
  char name[RS_QUOTE];
} parameter_record;
_Static_assert(sizeof(parameter_record) <= RS_COMM_RECORD, "a tensor fits the communicator's buffer");

static const char *name_of(const rs_listed *l, int64_t i) {
  return l->names != NULL && l->names[i] != NULL ? l->names[i] : "";
}

/* Describes a tensor, all but its name for people. */
static void describe_tensor(const rs_listed *l, int64_t i, parameter_record *out) {
  const reshard_tensor_info *info = &l->tensors[i]->info;
  const char *name = name_of(l, i);
  *out = (parameter_record){.there = 1, .dtype = info->dtype, .ndim = info->ndim};
  for (int d = 0; d < info->ndim; d++) {
    out->shape[d] = info->shape[d];
    out->strides[d] = l->strides && info->elements > 0 && info->shape[d] > 1 ? info->strides[d] : 0;
  }
  out->name_hash = rs_hash(0, name, strlen(name));
}

/* Hashes tensors [first, end) of the list, chained to the hash of those before. */
static uint64_t hash_range(const void *listed, int64_t first, int64_t end, uint64_t hash) {
  const rs_listed *l = listed;
  parameter_record t;
  for (int64_t i = first; i < rs_min(end, l->n); i++) {
    describe_tensor(l, i, &t);
    hash = rs_hash(hash, &t, offsetof(parameter_record, name));
  }
  return hash;
}

reshard_status rs_listed_check(const rs_listed *l) {
  if (l->n < 0 || (l->n > 0 && l->tensors == NULL))
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld tensors, list %s", l->call, (long long)l->n,
                    l->tensors == NULL ? "NULL" : "given");
  for (int64_t i = 0; i < l->n; i++)
    if (l->tensors[i] == NULL)
      return rs_error(RESHARD_ERROR_INVALID, "%s: tensor %lld is NULL", l->call, (long long)i);
  return RESHARD_SUCCESS;
}

/* Error of the first field in which two ranks' tensors differ, with both values; label names the tensor. */
static reshard_status error_tensors_differ(const char *label, int64_t rank, const parameter_record *a,
                                           const parameter_record *b) {
  char field[RS_QUOTE + 96], values[2][RS_SHAPE_TEXT];
  const parameter_record *of[2] = {a, b};
  bool shape = !rs_shape_equal(a->ndim, a->shape, b->ndim, b->shape);
  const char *what = shape ? "shape" : a->dtype != b->dtype ? "dtype" : "strides";
  for (int i = 0; i < 2; i++)
    if (!shape && a->dtype != b->dtype)
      snprintf(values[i], sizeof values[i], "%s", reshard_dtype_string((reshard_dtype)of[i]->dtype));
    else
      rs_list_text(values[i], sizeof values[i], of[i]->ndim, shape ? of[i]->shape : of[i]->strides);
  snprintf(field, sizeof field, "%s: %s", label, what);
  return rs_error_differ(field, 0, values[0], rank, values[1]);
}

/* Finds the difference between rank 0, with n0 tensors, and another one, with n1. */
static reshard_status report_difference(reshard_comm comm, const rs_listed *l, int64_t rank, int64_t n0, int64_t n1) {
  int64_t number;
  parameter_record mine = {0};
  const void *gathered;
  RS_TRY(rs_find_difference(comm, rs_min(n0, n1), rank, hash_range, l, &number));
  if (number < l->n) {
    describe_tensor(l, number, &mine);
    rs_quote(mine.name, sizeof mine.name, name_of(l, number));
  }
  RS_TRY(rs_comm_allgather(comm, &mine, sizeof mine, &gathered));
  const parameter_record *tensors = gathered, *a = &tensors[0], *b = &tensors[rank], *one = a->there ? a : b;
  char label[RS_QUOTE + 64];
  rs_text out = {.at = label, .size = sizeof label};
  rs_text_add(&out, "%s: ", l->call);
  if (one->name[0] != '\0' && (a->name_hash == b->name_hash || !a->there || !b->there))
    rs_text_add(&out, "'%s'", one->name);
  else
    rs_text_add(&out, "tensor %lld", (long long)number);
  if (!a->there || !b->there)
    return rs_error(RESHARD_ERROR_MISMATCH,
                    "%s is on rank %lld, and not on rank %lld (%lld tensors on rank 0, %lld on rank %lld)", label,
                    a->there ? 0LL : (long long)rank, a->there ? (long long)rank : 0LL, (long long)n0, (long long)n1,
                    (long long)rank);
  if (a->name_hash != b->name_hash)
    return rs_error(RESHARD_ERROR_MISMATCH, "%s: name '%s' on rank 0, '%s' on rank %lld (%lld and %lld tensors)", label,
                    a->name, b->name, (long long)rank, (long long)n0, (long long)n1);
  return error_tensors_differ(label, rank, a, b);
}

/* Compares the calls, before the tensors; every rank comes to the same result. */
static reshard_status compare_calls(reshard_comm comm, const char *call, const call_record *all) {
  for (int64_t r = 1; r < comm->size; r++)
    if (all[r].call != all[0].call)
      return rs_comm_error_calls(comm, r);
  for (int64_t r = 0; r < comm->size; r++)
    if (all[r].status != RESHARD_SUCCESS)
      return rs_error((reshard_status)all[r].status, "rank %lld: %s", (long long)r, all[r].text);
  for (int64_t r = 1; r < comm->size; r++) {
    if (all[r].src != all[0].src)
      return rs_error(RESHARD_ERROR_MISMATCH, "%s: src %lld on rank 0, %lld on rank %lld", call, (long long)all[0].src,
                      (long long)all[r].src, (long long)r);
    if (all[r].bucket != all[0].bucket)
      return rs_error(RESHARD_ERROR_MISMATCH, "%s: bucket_bytes %lld on rank 0, %lld on rank %lld", call,
                      (long long)all[0].bucket, (long long)all[r].bucket, (long long)r);
    if (all[r].path != all[0].path)
      return rs_error(RESHARD_ERROR_MISMATCH, "%s: path %s on rank 0, %s on rank %lld", call,
                      reshard_path_string((reshard_path)all[0].path), reshard_path_string((reshard_path)all[r].path),
                      (long long)r);
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_listed_compare(reshard_comm comm, const rs_listed *l, reshard_status status, bool *moved) {
  call_record mine = {.status = status, .call = rs_hash(0, l->call, strlen(l->call))};
  if (status != RESHARD_SUCCESS) {
    snprintf(mine.text, sizeof mine.text, "%s", reshard_last_error());
  } else {
    mine.n = l->n;
    mine.src = l->src;
    mine.bucket = l->bucket;
    mine.path = l->path;
    mine.moved = l->moved;
    mine.hash = hash_range(l, 0, l->n, 0);
  }
  const void *gathered;
  RS_TRY(rs_comm_allgather(comm, &mine, sizeof mine, &gathered));
  const call_record *all = gathered;
  RS_TRY(compare_calls(comm, l->call, all));
  for (int64_t r = 1; r < comm->size; r++)
    if (all[r].n != all[0].n || all[r].hash != all[0].hash)
      return report_difference(comm, l, r, all[0].n, all[r].n);
  *moved = false;
  for (int64_t r = 0; r < comm->size; r++)
    *moved |= all[r].moved != 0;
  return RESHARD_SUCCESS;
}

reshard_status reshard_verify_shapes(reshard_comm comm, int64_t n, const reshard_tensor *tensors,
                                     const char *const *names) {
  rs_listed l = {.call = "reshard_verify_shapes", .n = n, .tensors = tensors, .names = names, .strides = true};
  if (comm == NULL)
    return rs_error_null(l.call, "comm");
  RS_CALL(comm, 0);
  bool moved;
  return rs_listed_compare(comm, &l, rs_listed_check(&l), &moved);
}
