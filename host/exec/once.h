/* One execute of a plan, without a transfer to keep: for arrays that are used once. */
#ifndef RS_EXEC_ONCE_H
#define RS_EXEC_ONCE_H

#include "exec/transfer.h"

/* Collective. What reshard_transfer_create, reshard_execute and reshard_transfer_destroy do together; with AUTO or
 * DIRECT, where all ranks are in this process, in one meeting of the ranks instead of five.
 *
 * mine: a rank whose own preparation failed passes its status (its text is in reshard_last_error); plan and arrays are
 * then not read. Nothing moves unless every rank comes with success, equal plans and good arrays; else all ranks get
 * the same error. *workspace_bytes: staging that was in use. */
reshard_status rs_execute_once(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays, reshard_path path,
                               reshard_status mine, void *stream, size_t *workspace_bytes);

#endif
