/* Ranks of the node within an NCCL communicator. */
#ifndef RS_COMM_NCCL_NODE_H
#define RS_COMM_NCCL_NODE_H

#include "comm/nccl/nccl.h"

/* Functions of the table, and RS_MEET_CLOSED. */
reshard_status rs_nccl_open_node(reshard_comm comm);
reshard_status rs_nccl_pass(reshard_comm comm, int64_t rank, int64_t since, uint64_t number, int fd, bool *done);
reshard_status rs_nccl_take(reshard_comm comm, int64_t rank, int64_t since, uint64_t *number, int *fd, bool *done);
void rs_nccl_await_closed(reshard_comm comm, uint64_t n);
/* RESHARD_ERROR_PEER when a rank of the node has ended it, RESHARD_ERROR_TIMEOUT when a stream has waited in vain: says
 * why. */
reshard_status rs_nccl_check_node(const rs_nccl *c);
/* Ends the node with a reason, unless it has ended. With the communicator locked. */
void rs_nccl_end_node(const rs_nccl *c, reshard_status status, const char *text);
/* The same where this rank has ended the communicator. */
void rs_nccl_leave_node(const rs_nccl *c);
/* The ranks of the node find that this one is gone. idle: no stream of it waits for them any more. */
void rs_nccl_close_node(rs_nccl *c, bool idle);

#endif
