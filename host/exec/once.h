/* One execute of a plan, without a transfer to keep: for arrays that are used once. */
#ifndef RS_EXEC_ONCE_H
#define RS_EXEC_ONCE_H

#include "exec/transfer.h"

/* Memory of such executes, one after the other; all zero at first. Where it suffices nothing is allocated. */
typedef struct rs_once_memory {
  rs_extents extents;
  rs_copies copies;
  rs_program *program;
  rs_gate gate; /* on a device with streams, with more than one rank in the process */
  void *stream; /* a side stream: of the first rank, for all */
} rs_once_memory;
/* On a device with streams it blocks until they have run the program. */
void rs_once_memory_free(rs_once_memory *memory, rs_device *device);

/* Collective. Does what reshard_transfer_create, reshard_execute and reshard_transfer_destroy do together. With AUTO or
 * DIRECT, where all ranks are in this process, that takes one meeting of the ranks instead of five. The lists of arrays
 * are all there, and those of strides, where one has strides.
 *
 * mine: a rank whose own preparation failed passes its status (its text is in reshard_last_error); plan and arrays are
 * then not read. Nothing moves unless every rank comes with success, equal plans and good arrays; else all ranks get
 * the same error. argument: as in rs_agree_on. memory: this rank's, and of one communicator. *workspace_bytes: staging
 * that was in use. On a device with streams the work is in the order of `stream`, and the call does not block where all
 * is done in one meeting. */
reshard_status rs_execute_once(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays, reshard_path path,
                               reshard_status mine, const rs_argument *argument, rs_once_memory *memory, void *stream,
                               size_t *workspace_bytes);

/* Local: what a plan brings to its rank from this rank itself. RESHARD_ERROR_INVALID, and nothing is done, where it
 * would bring something from others, too. */
reshard_status rs_execute_local(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays,
                                rs_once_memory *memory, void *stream);

#endif
