/* The end of a node communicator. */
#ifndef RS_COMM_NODE_END_H
#define RS_COMM_NODE_END_H

#include "comm/node/node.h"

/* Success, while the communicator goes on; waits: the error is that of a rank which waited in it. */
reshard_status rs_node_check(rs_node *c, bool waits);
/* True when the communicator has ended, or what it was split from was aborted. */
bool rs_node_has_ended(const rs_node *c);
/* The communicator ends with this rank's last error, if it has not. missing: [n], NULL: none. */
reshard_status rs_node_give_up(rs_node *c, reshard_status status, const bool *missing);
void rs_node_end(rs_node *c, reshard_status status, const char *text, const bool *missing);
void rs_node_abort(rs_node *c);
int64_t rs_node_absent(reshard_comm comm, int64_t *ranks);

#endif
