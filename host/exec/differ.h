/* Words for what ranks do not have in common. */
#ifndef RS_EXEC_DIFFER_H
#define RS_EXEC_DIFFER_H

#include "comm/comm.h"
#include "plan/plan.h"

/* An argument that all ranks of a call give alike. */
typedef struct rs_argument {
  const char *name; /* with the call: "reshard_transfer_create: count" */
  int64_t value;
} rs_argument;

/* Collective: ranks 0 and `rank` have plans of n0 and n tensors that differ in a field (RS_FIELD_TENSORS to
 * RS_FIELD_OPTIONS). RESHARD_ERROR_MISMATCH on all ranks, with the first tensor that differs and both values; or what
 * the communicator says. */
reshard_status rs_plans_differ(reshard_comm comm, const struct reshard_plan_s *plan, int field, int64_t rank,
                               int64_t n0, int64_t n);

/* The same of two plans that this thread has, of ranks 0 and `rank`. */
reshard_status rs_plans_here_differ(const struct reshard_plan_s *first, const struct reshard_plan_s *plan, int field,
                                    int64_t rank);

/* Hash of tensors [first, end) of a list that may be shorter, chained to that of those before. */
typedef uint64_t (*rs_range_hash)(const void *user, int64_t first, int64_t end, uint64_t hash);
/* Collective: finds the first tensor in which this rank or `rank` differs from rank 0, among the first n of both. Each
 * step exchanges the hash of a prefix, chained to that of the longest one known to be equal. */
reshard_status rs_find_difference(reshard_comm comm, int64_t n, int64_t rank, rs_range_hash hash_range,
                                  const void *user, int64_t *found);

#endif
