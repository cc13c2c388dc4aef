/* Copies to a rank from the arrays of all. */
#ifndef RS_EXEC_PULL_H
#define RS_EXEC_PULL_H

#include "device/device.h"
#include "exec/arrays.h"

/* Appends all copies to the plan's rank, from itself and from others, from array to array. *foreign_bytes grows
 * by what others send. view_of: where an array of an entry is on a rank. */
typedef reshard_status (*rs_view_of)(void *user, int64_t rank, int64_t entry, bool source, int64_t array,
                                     rs_view *view);
reshard_status rs_pull(const struct reshard_plan_s *plan, rs_view_of view_of, void *user, rs_copies *copies,
                       int64_t *foreign_bytes);
/* Appends the copies of the data that stays on the rank alone. */
reshard_status rs_pull_own(const struct reshard_plan_s *plan, const rs_arrays *arrays, rs_copies *copies);

#endif
