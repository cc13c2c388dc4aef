/* Node communicators, made and released. */
#ifndef RS_COMM_NODE_CREATE_H
#define RS_COMM_NODE_CREATE_H

#include "comm/node/node.h"
#include "comm/node/sockets.h"

/* Processes of one number find each other's sockets. */
uint64_t rs_node_hash(void);
/* A rank that is not connected yet. global_ranks (NULL: the same numbers) is taken on success. The device, the deadline
 * and `whole` are for the caller to set. */
reshard_status rs_node_alloc(int64_t size, int64_t rank, int64_t *global_ranks, rs_node **out);
/* Fills the address, and opens the socket that others connect to (-1: there is none, as its status tells). c NULL:
 * the rank connects to nobody, and publishes its status alone. */
void rs_node_make_address(const rs_node *c, uint64_t job, reshard_status status, rs_node_address *address,
                          int *listener);
/* Connects the ranks whose addresses these are, of which none has failed; by rank. Collective. call: its name, for
 * errors. Closes the listener. Waits end, too, when what the ranks come from has ended. */
reshard_status rs_node_join(rs_node *c, const char *call, const rs_node_address *addresses, int listener);
/* Connects parts of a communicator. Collective over `over`: all ranks publish their addresses, also one that
 * brings an error, and those of no part, which have c NULL. ranks: those of c in `over`. All succeed, or all get the
 * same error. */
reshard_status rs_node_connect(reshard_comm over, const char *call, reshard_status status, rs_node *c,
                               const int64_t *ranks);
/* The others find that this rank is gone. */
void rs_node_close_sockets(rs_node *c);
/* One user less; the last one frees. */
void rs_node_release(rs_node *c);

/* files.c. Local: imports of the handle, of no file yet. */
reshard_status rs_node_mark_ranks(rs_node *c);
/* rs_neighbour_ops.pass and take. */
reshard_status rs_node_pass(reshard_comm comm, int64_t rank, int64_t since, uint64_t number, int fd, bool *done);
reshard_status rs_node_take(reshard_comm comm, int64_t rank, int64_t since, uint64_t *number, int *fd, bool *done);

#endif
