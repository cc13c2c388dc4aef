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

#endif
