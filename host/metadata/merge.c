/* Local metadata of many tensors and ranks to the global metadata of each tensor.
 *
 * Each rank's locals are one byte string (pack), so that any number of tensors is one exchange. Merging reads all
 * strings side by side, tensor by tensor: first the heads, which must agree and have the numbers of shards, then the
 * shards straight into their places. Each string is read once, front to back, and nothing is looked up. */
#include "metadata/serialize.h"

#include "exec/record.h"
#include "metadata/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- One rank's string: number of tensors, recalc_dim + 1, then per tensor 0 (no shard), or 1 and metadata --- */

static bool has_shards(reshard_metadata local) { return local != NULL && local->n > 0; }

reshard_status rs_metadata_pack(int64_t n, const reshard_metadata *locals, int recalc_dim, char **string,
                                int64_t *size) {
  int64_t body = rs_put_size((uint64_t)n) + rs_put_size((uint64_t)(recalc_dim + 1));
  for (int64_t i = 0; i < n; i++)
    body += 1 + (has_shards(locals[i]) ? rs_metadata_size(locals[i]) : 0);
  char *made;
  RS_TRY(rs_alloc(&made, body + RS_SEAL, 1));
  char *at = rs_put(made + RS_SEAL, (uint64_t)n);
  at = rs_put(at, (uint64_t)(recalc_dim + 1));
  for (int64_t i = 0; i < n; i++) {
    at = rs_put(at, has_shards(locals[i]));
    if (has_shards(locals[i]))
      at = rs_metadata_put(locals[i], at);
  }
  rs_seal(RS_MAGIC_LOCALS, made, body);
  *string = made;
  *size = body + RS_SEAL;
  return RESHARD_SUCCESS;
}

/* --- All ranks' ------------------------------------------------------------------------------------------------- */

typedef struct merger {
  const reshard_group *group;
  int64_t nranks;
  rs_reader *readers; /* [nranks] */
  rs_head *heads;     /* [nranks] of one tensor; n 0: no shard */
  int recalc_dim;
} merger;

static long long global_rank(const merger *m, int64_t rank) { return (long long)rs_group_at(m->group, rank); }

/* Opens the strings; all are of as many tensors, for the same call. */
static reshard_status open_strings(merger *m, const rs_strings *strings, int64_t n) {
  int64_t first = 0, tensors, dim;
  for (int64_t r = 0; r < m->nranks; r++) {
    RS_TRY(rs_unseal(RS_MAGIC_LOCALS, strings->bytes + strings->first[r], strings->first[r + 1] - strings->first[r],
                     &m->readers[r]));
    RS_TRY(rs_take(&m->readers[r], "number of tensors", INT64_MAX, &tensors));
    RS_TRY(rs_take(&m->readers[r], "recalc_dim", RESHARD_MAX_DIMS, &dim));
    if (r == 0) {
      first = tensors;
      m->recalc_dim = (int)dim - 1;
    }
    if (tensors != first)
      return rs_error(RESHARD_ERROR_MISMATCH, "number of tensors %lld on rank %lld, %lld on rank %lld",
                      (long long)first, global_rank(m, 0), (long long)tensors, global_rank(m, r));
    if (dim != m->recalc_dim + 1)
      return rs_error(RESHARD_ERROR_MISMATCH, "recalc_dim %d on rank %lld, %lld on rank %lld", m->recalc_dim,
                      global_rank(m, 0), (long long)dim - 1, global_rank(m, r));
  }
  return first == n
             ? RESHARD_SUCCESS
             : rs_error(RESHARD_ERROR_INTERNAL, "%lld tensors are merged as %lld", (long long)first, (long long)n);
}

static bool same_shape(const rs_head *a, const rs_head *b, int but) {
  bool same = a->ndim == b->ndim;
  for (int d = 0; d < a->ndim && same; d++)
    same = d == but || a->shape[d] == b->shape[d];
  return same;
}

/* Compares two heads, as PyTorch's _raise_if_mismatch. */
static reshard_status compare_heads(const merger *m, int64_t i, int64_t j) {
  const rs_head *a = &m->heads[i], *b = &m->heads[j];
  const reshard_properties *p = &a->properties, *q = &b->properties;
  char first[RS_SHAPE_TEXT], other[RS_SHAPE_TEXT];
  const char *what;
  if (!same_shape(a, b, m->recalc_dim)) {
    what = "shape";
    rs_list_text(first, sizeof first, a->ndim, a->shape);
    rs_list_text(other, sizeof other, b->ndim, b->shape);
  } else if (p->dtype != q->dtype) {
    what = "dtype";
    snprintf(first, sizeof first, "%s", reshard_dtype_string(p->dtype));
    snprintf(other, sizeof other, "%s", reshard_dtype_string(q->dtype));
  } else if (p->memory_format != q->memory_format) {
    what = "memory_format";
    snprintf(first, sizeof first, "%s", rs_memory_format_string(p->memory_format));
    snprintf(other, sizeof other, "%s", rs_memory_format_string(q->memory_format));
  } else if (p->requires_grad != q->requires_grad || p->pin_memory != q->pin_memory) {
    bool grad = p->requires_grad != q->requires_grad;
    what = grad ? "requires_grad" : "pin_memory";
    snprintf(first, sizeof first, "%d", grad ? p->requires_grad : p->pin_memory);
    snprintf(other, sizeof other, "%d", grad ? q->requires_grad : q->pin_memory);
  } else {
    return RESHARD_SUCCESS;
  }
  return rs_error_differ(what, global_rank(m, i), first, global_rank(m, j), other);
}

/* Reads and compares the heads of the next tensor; finds the lowest rank that has shards, and their number in all. */
static reshard_status read_heads(merger *m, int64_t *lowest, int64_t *shards) {
  *lowest = -1;
  *shards = 0;
  for (int64_t r = 0; r < m->nranks; r++) {
    int64_t some;
    m->heads[r].n = 0;
    RS_TRY(rs_take(&m->readers[r], "local metadata", 1, &some));
    if (some == 0)
      continue;
    RS_TRY(rs_take_head(&m->readers[r], &m->heads[r]));
    if (*lowest < 0)
      *lowest = r;
    RS_TRY(compare_heads(m, *lowest, r));
    *shards += m->heads[r].n;
  }
  return *lowest >= 0 ? RESHARD_SUCCESS : rs_error(RESHARD_ERROR_INVALID, "no rank has any shard");
}

static reshard_status merge_tensor(merger *m, reshard_metadata *out) {
  int64_t lowest, shards, at = 0;
  RS_TRY(read_heads(m, &lowest, &shards));
  const rs_head *head = &m->heads[lowest];
  reshard_metadata made = NULL, again;
  reshard_status status;
  RS_TRY(rs_metadata_new(&head->properties, head->ndim, head->shape, shards, &made));
  for (int64_t r = 0; r < m->nranks; r++) {
    RS_TRY_GOTO(status, rs_take_shards(&m->readers[r], head->ndim, m->heads[r].n, made->shards + at), fail);
    at += m->heads[r].n;
  }
  RS_TRY_GOTO(status, rs_metadata_check_shards(made), fail);
  if (m->recalc_dim >= 0) {
    RS_TRY_GOTO(status, reshard_metadata_recalc(made, m->recalc_dim, &again), fail);
    reshard_metadata_release(made);
    made = again;
  }
  RS_TRY_GOTO(status, reshard_metadata_check(made), fail);
  *out = made;
  return RESHARD_SUCCESS;
fail:
  reshard_metadata_release(made);
  return status;
}

/* "tensor 5: " before the last error, where there are several. */
static reshard_status error_in_tensor(reshard_status status, int64_t n, int64_t i) {
  return n < 2 ? status : rs_error(status, "tensor %lld: %s", (long long)i, reshard_last_error());
}

reshard_status rs_metadata_merge(const reshard_group *group, const rs_strings *strings, int64_t n,
                                 reshard_metadata *globals) {
  merger m = {.group = group, .nranks = strings->n};
  reshard_metadata *made = NULL;
  int64_t done = 0;
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc(&made, n, sizeof *made), end);
  RS_TRY_GOTO(status, rs_alloc(&m.readers, m.nranks, sizeof *m.readers), end);
  RS_TRY_GOTO(status, rs_alloc(&m.heads, m.nranks, sizeof *m.heads), end);
  RS_TRY_GOTO(status, open_strings(&m, strings, n), end);
  for (; done < n; done++) {
    status = merge_tensor(&m, &made[done]);
    if (status != RESHARD_SUCCESS) {
      error_in_tensor(status, n, done);
      goto end;
    }
  }
  for (int64_t r = 0; r < m.nranks; r++)
    RS_TRY_GOTO(status, rs_take_end(&m.readers[r]), end);
  for (int64_t i = 0; i < n; i++)
    globals[i] = made[i];
  done = 0;
end:
  for (int64_t i = 0; i < done; i++)
    reshard_metadata_release(made[i]);
  free(made);
  free(m.readers);
  free(m.heads);
  return status;
}

/* --- Without a communicator ------------------------------------------------------------------------------------- */

static int64_t size_of_rank(const void *sizes, int64_t rank) { return ((const int64_t *)sizes)[rank]; }

/* Joins strings, in the order of ranks 0 to n - 1. */
static reshard_status join_strings(int64_t n, char *const *strings, const int64_t *sizes, rs_strings **out) {
  RS_TRY(rs_strings_create(n, size_of_rank, sizes, out));
  for (int64_t r = 0; r < n; r++)
    memcpy((*out)->bytes + (*out)->first[r], strings[r], (size_t)sizes[r]);
  return RESHARD_SUCCESS;
}

reshard_status reshard_metadata_merge(int64_t n, const reshard_metadata *locals, int recalc_dim,
                                      reshard_metadata *global) {
  static const char call[] = "reshard_metadata_merge";
  if (n < 0 || (n > 0 && locals == NULL) || global == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld local metadata, %s", call, (long long)n,
                    global == NULL ? "global is NULL"
                    : n < 0        ? "0 is the least"
                                   : "locals is NULL");
  if (recalc_dim < -1 || recalc_dim >= RESHARD_MAX_DIMS)
    return rs_error(RESHARD_ERROR_INVALID, "%s: recalc_dim %d, -1 to %d are allowed", call, recalc_dim,
                    RESHARD_MAX_DIMS - 1);
  if (n == 0)
    return rs_error(RESHARD_ERROR_INVALID, "no rank has any shard");
  rs_strings *joined = NULL;
  char **strings = NULL;
  int64_t *sizes = NULL;
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc_zero((void *)&strings, n, sizeof *strings), end);
  RS_TRY_GOTO(status, rs_alloc(&sizes, n, sizeof *sizes), end);
  for (int64_t r = 0; r < n; r++) {
    if (recalc_dim >= 0 && locals[r] != NULL && recalc_dim >= locals[r]->ndim)
      RS_TRY_GOTO(status,
                  rs_error(RESHARD_ERROR_INVALID, "%s: recalc_dim %d of a tensor of %d dims", call, recalc_dim,
                           locals[r]->ndim),
                  end);
    RS_TRY_GOTO(status, rs_metadata_pack(1, &locals[r], recalc_dim, &strings[r], &sizes[r]), end);
  }
  RS_TRY_GOTO(status, join_strings(n, strings, sizes, &joined), end);
  status = rs_metadata_merge(NULL, joined, 1, global);
end:
  for (int64_t r = 0; strings != NULL && r < n; r++)
    free(strings[r]);
  rs_strings_release(joined);
  free(strings);
  free(sizes);
  return status;
}

/* --- The collective step ------------------------------------------------------------------------------------------ */
/* Every rank's locals go to every rank, where they are merged. Each process merges once, and its ranks share the
 * result, which is immutable. All merge the same bytes, so all find the same error. Only memory can be short in one
 * process and not in another: the ranks agree on that. */

typedef struct merging {
  const reshard_group *group;
  const rs_strings *strings;
  int64_t n;
  reshard_metadata *made; /* [n] */
} merging;

/* Merges for all ranks of the process. */
static reshard_status merge_once(int64_t nranks, void **all) {
  merging *const *m = (merging *const *)all;
  RS_TRY(rs_metadata_merge(m[0]->group, m[0]->strings, m[0]->n, m[0]->made));
  for (int64_t r = 1; r < nranks; r++)
    for (int64_t i = 0; i < m[r]->n; i++)
      m[r]->made[i] = reshard_metadata_retain(m[0]->made[i]);
  return RESHARD_SUCCESS;
}

/* All ranks merged, or none. */
static reshard_status merge_process(reshard_comm comm, merging *mine) {
  reshard_status status = rs_comm_combine(comm, merge_once, mine);
  if (comm->locals == comm->size)
    return status;
  reshard_status agreed = rs_agree_alike(comm, status);
  for (int64_t i = 0; i < mine->n && status == RESHARD_SUCCESS && agreed != RESHARD_SUCCESS; i++)
    reshard_metadata_release(mine->made[i]);
  return agreed;
}

/* Checks the arguments of this rank. */
static reshard_status check_local_arguments(reshard_comm comm, const reshard_group *group, int64_t n,
                                            const reshard_metadata *locals, int recalc_dim,
                                            const reshard_metadata *globals) {
  if (n < 0 || (n > 0 && (locals == NULL || globals == NULL)))
    return rs_error(RESHARD_ERROR_INVALID, "reshard_metadata_build_global: %lld tensors, %s is NULL", (long long)n,
                    n < 0            ? "nothing"
                    : locals == NULL ? "locals"
                                     : "globals");
  if (group != NULL && group->n != comm->size)
    return rs_error(RESHARD_ERROR_INVALID, "a group of %lld ranks, the communicator has %lld", (long long)group->n,
                    (long long)comm->size);
  if (recalc_dim < -1 || recalc_dim >= RESHARD_MAX_DIMS)
    return rs_error(RESHARD_ERROR_INVALID, "recalc_dim %d, -1 to %d are allowed", recalc_dim, RESHARD_MAX_DIMS - 1);
  for (int64_t i = 0; i < n && recalc_dim >= 0; i++)
    if (locals[i] != NULL && recalc_dim >= locals[i]->ndim)
      return rs_error(RESHARD_ERROR_INVALID, "recalc_dim %d of a tensor of %d dims", recalc_dim, locals[i]->ndim);
  return RESHARD_SUCCESS;
}

reshard_status rs_metadata_build_global(reshard_comm comm, const reshard_group *group, int64_t n,
                                        const reshard_metadata *locals, reshard_status local_status, int recalc_dim,
                                        reshard_metadata *globals) {
  RS_TRY(RS_GIVEN("reshard_metadata_build_global", comm));
  RS_CALL_AS(comm, "reshard_metadata_build_global", 0);
  merging mine = {.group = group, .n = n};
  rs_strings *strings = NULL;
  char *string = NULL;
  int64_t size = 0;
  reshard_status status = local_status;
  RS_THEN(status, check_local_arguments(comm, group, n, locals, recalc_dim, globals));
  RS_THEN(status, rs_alloc(&mine.made, n, sizeof *mine.made));
  RS_THEN(status, rs_metadata_pack(n, locals, recalc_dim, &string, &size));
  RS_TRY_GOTO(status, rs_comm_gather_bytes(comm, status, string, size, &strings), done);
  mine.strings = strings;
  RS_TRY_GOTO(status, merge_process(comm, &mine), done);
  for (int64_t i = 0; i < n; i++)
    globals[i] = mine.made[i];
done:
  rs_strings_release(strings);
  free(string);
  free(mine.made);
  return status;
}

reshard_status reshard_metadata_build_global(reshard_comm comm, reshard_metadata local, reshard_status local_status,
                                             int recalc_dim, reshard_metadata *global) {
  return rs_metadata_build_global(comm, NULL, 1, &local, local_status, recalc_dim, global);
}

reshard_status reshard_metadata_build_global_many(reshard_comm comm, int64_t n, const reshard_metadata *locals,
                                                  reshard_status local_status, reshard_metadata *globals) {
  return rs_metadata_build_global(comm, NULL, n, locals, local_status, -1, globals);
}
