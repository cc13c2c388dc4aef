/* One execute of a plan for arrays that are used once. What ranks need between them may be cached for the next one. */
#ifndef RS_EXEC_CALL_H
#define RS_EXEC_CALL_H

#include "exec/cached.h"
#include "exec/record.h"

/* Memory of such executes, one after the other; all zero at first, but for the staging_cache's pool. Nothing is
 * allocated while it suffices. */
typedef struct rs_request_memory {
  rs_extents extents;
  rs_copies copies;
  rs_fork_join fork_join; /* on a device with streams, with more than one rank in the process */
  /* Of the first rank, for all: a program a lane; streams of the ranks' work. */
  int64_t nlanes;
  rs_program **programs;
  rs_lane *lanes, **flow;
  rs_program *own; /* of copies that stay on the rank */
  rs_staging_cache staging_cache;
  rs_publication publication; /* of processes that reach each other's memory */
} rs_request_memory;
/* On a device with streams it blocks until they have run the program. Transfers that are cached are freed before. */
void rs_request_memory_free(rs_request_memory *memory, reshard_comm comm);

/* Arguments of one rank.
 *
 * - plan, arrays: not read where the rank's own preparation failed. The lists of arrays are all there, and those of
 *   strides, where one has strides.
 * - cached: of the plan. NULL: nothing is cached. Whether it has a transfer must follow from what ranks know of each
 *   other: it has one after the first call that took one and succeeded, and only then. */
typedef struct rs_request {
  rs_request_terms terms;
  reshard_plan plan;
  const reshard_arrays *arrays;
  rs_cached_transfer *cached;
  void *stream;
} rs_request;

/* Collective. Does what reshard_transfer_create, reshard_execute and reshard_transfer_destroy do together; with a
 * cached transfer, what reshard_transfer_rebind and reshard_execute do. With AUTO or DIRECT, where all ranks are in
 * this process, that takes one meeting of the ranks instead of five, and two where they are processes that reach
 * each other's memory, and no rank has private sources.
 *
 * mine: a rank whose own preparation failed passes its status (its text is in reshard_last_error). Nothing moves unless
 * every rank comes with success, equal requests and good arrays; else all ranks get the same error. Processes that map
 * each other's memory do so after that: where one finds no memory for it all get its error, and destinations are
 * undefined. Ranks that do not meet to execute - over NCCL - cannot tell each other where a transfer is cached. A rank
 * that fails alone then ends the communicator.
 *
 * memory: this rank's, and of one communicator. *workspace_bytes: staging that was in use. On a device with streams the
 * work is in the order of the stream. The call does not block where threads do all in one meeting, or a transfer is
 * cached. But processes with GPUs that read each other meet in each call, and wait where arrays have moved. */
reshard_status rs_request_execute(reshard_comm comm, const rs_request *request, reshard_status mine,
                                  rs_request_memory *memory, size_t *workspace_bytes);

/* Local; begins a call that comes to rs_request_execute, before the ranks meet and before any work is given to the
 * stream.
 *
 * *mine: RESHARD_ERROR_INVALID where the stream is being captured: the call compiles copies for itself alone. Ranks
 * that are threads of one process hear of it in their meeting, as do processes whose hosts meet in each call on the
 * path. To another rank that is a process the error is also returned, which ends a call whose hosts need not meet: the
 * communicator goes on where all capture. Other ranks have been told nothing: with a cached transfer no host could, but
 * by ending the communicator. A rank that captures alone is waited for until the deadline. */
reshard_status rs_request_begin(const char *call, reshard_comm comm, reshard_path path, void *stream,
                                reshard_status *mine);

/* combine.c: one meeting of the ranks of one process. direct: copies, else cached transfers. *done false: it was not
 * as usual, and nothing has moved. */
reshard_status rs_request_combine(reshard_comm comm, const rs_request *request, bool direct, reshard_status *mine,
                                  rs_request_memory *memory, bool *done);
void rs_request_free_lanes(rs_request_memory *memory); /* also what was made half-way */

/* Local: what a plan brings to its rank from this rank itself. RESHARD_ERROR_INVALID, and nothing is done, where it
 * would bring something from others, too. */
reshard_status rs_execute_local(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays,
                                rs_request_memory *memory, void *stream);

#endif
