/* The collective step: every rank's locals go to every rank, where they are merged. Each process merges once, and its
 * ranks share the result, which is immutable. All merge the same bytes, so all find the same error. Only memory can be
 * short in one process and not in another: the ranks agree on that. */
#include "metadata/serialize.h"

#include "exec/record.h"

#include <stdlib.h>

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
  reshard_status status = rs_comm_together(comm, merge_once, mine);
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
