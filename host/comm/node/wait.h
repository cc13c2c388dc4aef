/* Waits of a rank, and what ends them. */
#ifndef RS_COMM_NODE_WAIT_H
#define RS_COMM_NODE_WAIT_H

#include "comm/node/node.h"
#include "comm/node/sockets.h"

/* A wait of a rank. */
typedef struct rs_node_wait {
  const char *step;
  void (*mark)(rs_node *c, const void *user); /* sets c->missing of the ranks that it waits for */
  const void *user;
  int64_t since, looked;
  int turns;
  bool gone; /* one of them is gone: what it has done before counts still */
} rs_node_wait;
void rs_node_wait_begin(rs_node_wait *w);
/* Shows no more that this rank waits: all that it waited for is there. */
static inline void rs_node_wait_end(rs_node *c, const rs_node_wait *w) {
  if (w->looked != 0)
    rs_node_own_rank(c)->waited = 0;
}
/* Shows that this rank waits for those that c->missing marks. */
void rs_node_show_wait(rs_node *c);
/* Waits a little, unless this rank's doorbell has rung since it was `seen`; the caller looks again then. An error when
 * the communicator ends, by this rank or another. */
reshard_status rs_node_wait_more(rs_node *c, rs_node_wait *w, uint32_t seen);
static inline uint32_t rs_node_rings(const rs_node *c) {
  return atomic_load_explicit(&rs_node_own_rank(c)->doorbell.rings, memory_order_seq_cst);
}
/* Wakes a rank, after what it waits for was stored. */
void rs_node_ring(rs_node *c, int64_t rank);
void rs_node_ring_all(rs_node *c);

/* While ranks are being connected: SUCCESS, or why what they come from has ended - the communicator that they are split
 * from, or whose ranks on this node they are. */
reshard_status rs_node_look(rs_node *c);
/* Functions of sockets.h, between this rank and another; they look meanwhile. ECANCELED: it has ended, ... */
int rs_node_dial_to(rs_node *c, int64_t rank, const rs_node_address *address, int64_t end, uid_t *user);
int rs_node_send_to(rs_node *c, int64_t rank, rs_node_step step, const void *bytes, size_t n, int with, int64_t end);
int rs_node_receive_from(rs_node *c, int64_t rank, rs_node_step step, void *bytes, size_t n, int *with, int64_t end);
/* ... for this reason, in the thread that was told so. */
reshard_status rs_node_error_look(rs_node *c);

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
