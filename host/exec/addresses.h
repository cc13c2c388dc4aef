/* Places of arrays in memory. */
#ifndef RS_EXEC_ADDRESSES_H
#define RS_EXEC_ADDRESSES_H

#include "exec/arrays.h"

/* Looks where the arrays are: memory that the rank's GPU reaches, not another GPU's. direct_only: a source that another
 * GPU of the process does not reach is RESHARD_ERROR_UNSUPPORTED, else noted in *arrays. extents: as in
 * rs_arrays_borrow. */
reshard_status rs_arrays_look_up(reshard_comm comm, const struct reshard_plan_s *plan, rs_extents *extents,
                                 bool direct_only, rs_arrays *arrays);
/* rs_arrays_bind, and looks where they are. *out is to be freed after an error, too. */
reshard_status rs_arrays_bind_on(reshard_comm comm, const struct reshard_plan_s *plan, const reshard_arrays *given,
                                 bool direct_only, rs_arrays *out);
/* RESHARD_ERROR_UNSUPPORTED where a GPU of the process that may fetch messages there does not reach staging. */
reshard_status rs_staging_look_up(reshard_comm comm, const void *staging, size_t bytes);

#endif
