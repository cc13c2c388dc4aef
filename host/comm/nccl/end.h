/* Errors of an NCCL communicator, the host's waits, and its end. */
#ifndef RS_COMM_NCCL_END_H
#define RS_COMM_NCCL_END_H

#include "comm/nccl/nccl.h"

/* An NCCL result as a status, with NCCL's own words. nccl may be NULL. */
reshard_status rs_nccl_error(const rs_nccl_api *api, ncclComm_t nccl, ncclResult_t result, const char *call);
/* Waits until a call of a non-blocking communicator is through; result is what the call returned. At the deadline, or
 * when the communicator ends meanwhile, the communicator is given up. */
reshard_status rs_nccl_settle(rs_nccl *c, ncclResult_t result, const char *call);
/* A wait for other ranks: since when, and when it was last looked who has come. */
typedef struct rs_nccl_wait {
  const char *call;
  int64_t since, looked;
} rs_nccl_wait;
enum { RS_NCCL_LOOK_NS = 20000000 }; /* between two such looks */
/* Goes on waiting for others: gives up at the deadline, or when another rank of the node has given up, or ended it. */
reshard_status rs_nccl_wait_more(rs_nccl *c, rs_nccl_wait *wait, int64_t spin_ns);
/* The communicator's own state; an error where it has one. call: for its text. */
reshard_status rs_nccl_get_async_error(rs_nccl *c, const char *call, ncclResult_t *state);
/* When the rank comes to a call: SUCCESS, or why the communicator has ended, or ends now as its node has. */
reshard_status rs_nccl_check_call(rs_nccl *c);
/* Between two looks at something that NCCL or a GPU has still to do: short at first, for so long, and then a sleep. */
enum { RS_NCCL_SPIN_NS = 20000 };
void rs_nccl_pause(int64_t since_ns, int64_t spin_ns);
/* The communicator, locked against an abort; RESHARD_ERROR_PEER, unlocked, when it has ended. */
reshard_status rs_nccl_lock(rs_nccl *c);
void rs_nccl_unlock(rs_nccl *c);
/* Ends what NCCL has made for the communicator; NULL is allowed. With the GPU as the current one: NCCL makes the one
 * current again that was, and with it a context. */
void rs_nccl_abort(const rs_nccl *c, ncclComm_t nccl);
/* Ends it and those that were split from it. Callable from any thread. */
void rs_nccl_end(rs_nccl *c);

/* Ends the communicator of a rank that failed to make a call which the others make: they would take its next call for
 * this one. The others hear by their deadline, or before. Returns the status. */
reshard_status rs_nccl_end_after_error(rs_nccl *c, reshard_status status);

/* Stops all that is under way, and keeps the communicator; false: NCCL cannot, and it has to be aborted. With the
 * communicator locked. */
bool rs_nccl_revoke(rs_nccl *c);
/* It can: not in a process that has loaded an NCCL before 2.28, or 2.27. */
bool rs_nccl_has_revoke(const rs_nccl *c);
/* State that NCCL tells of a communicator that has ended; not one of which nothing is left. */
ncclResult_t rs_nccl_look_at_ended(rs_nccl *c);
/* The same, once NCCL has ended what was under way, or after the limit. */
ncclResult_t rs_nccl_wait_for_ended(rs_nccl *c, int64_t limit_ms);
/* Waits, not for long, until all that was under way has stopped. */
void rs_nccl_quiesce(rs_nccl *c);

#endif
