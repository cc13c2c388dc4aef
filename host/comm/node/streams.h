/* Messages between processes with GPUs. */
#ifndef RS_COMM_NODE_STREAMS_H
#define RS_COMM_NODE_STREAMS_H

#include "comm/node/node.h"

/* Makes the mailboxes in memory of the GPUs, which are there until the communicator ends; nothing where they are there
 * already. Collective: all ranks succeed, or all get the same error. */
reshard_status rs_node_boxes_make(rs_node *c);
/* Nothing of this rank's is under way any more. The rank is not gone yet for the others. */
void rs_node_boxes_free(rs_node *c);
/* rs_comm_ops.exchange of this process's one rank. An error ends the communicator. */
reshard_status rs_node_exchange_on_stream(rs_node *c, const rs_exchange *exchange);

#endif
