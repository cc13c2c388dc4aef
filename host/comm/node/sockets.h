/* Sockets between the processes of a node. Functions return 0 or errno; end: by rs_now_ns, 0 for never. */
#ifndef RS_COMM_NODE_SOCKETS_H
#define RS_COMM_NODE_SOCKETS_H

#include "comm/comm.h"

#include <sys/types.h>

/* One rank of a communicator that is being made, as the others see it. */
typedef struct rs_node_address {
  uint64_t build, node, job; /* hashes: version of the library; the machine; the caller's name of the job */
  int64_t status, size, rank, timeout_ms;
  int32_t uid, name_bytes, device; /* kind of device */
  char name[16];                   /* abstract, of the socket that it listens at */
  unsigned char secret[16];        /* that those who connect to it know */
  char text[RS_COMM_RECORD - 100];
} rs_node_address;
_Static_assert(sizeof(rs_node_address) == RS_COMM_RECORD, "an address fits the communicator's buffer");

/* Messages of a socket, in the order in which ranks come to them. A step that has failed on one side may leave some. */
typedef enum rs_node_step {
  RS_NODE_GREETING,
  RS_NODE_CONNECTED, /* verdicts: with the block of memory; ... */
  RS_NODE_MAPPED,
  RS_NODE_MEMORY /* from then on */
} rs_node_step;

int rs_node_listen(rs_node_address *address, int *listener);
/* Connects to who listens there: EKEYREJECTED where that is a process of another user, which gets nothing. *user: its,
 * as the system says. */
int rs_node_dial(const rs_node_address *address, int64_t end, int *fd, uid_t *user);
/* Lets one in, of this user; -1: there is none, or it is another's. */
int rs_node_admit(int listener);
/* One message, which is sent and received as a whole. with: a descriptor that goes with it; -1: none. */
int rs_node_send(int fd, rs_node_step step, const void *bytes, size_t n, int with, int64_t end);
/* Receives one of that step; those of earlier ones are dropped, while there is time. EPROTO: there is no such step.
 * ENOMSG: the other side has gone on to a later step, of which the message stays. *with: its descriptor, which is the
 * receiver's; -1: it has none, or there is an error. EMFILE: there was no room for it. with NULL: none is wanted. */
int rs_node_receive(int fd, rs_node_step step, void *bytes, size_t n, int *with, int64_t end);
/* True when the process at the other side is gone, or has destroyed its handle. */
bool rs_node_hung_up(int fd);
static inline int64_t rs_node_deadline(int64_t timeout_ms) {
  int64_t now = rs_now_ns();
  return timeout_ms > 0 ? timeout_ms < (INT64_MAX - now) / 1000000 ? now + timeout_ms * 1000000 : 0 : 0;
}

#endif
