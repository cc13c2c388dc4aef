/* Sockets between the processes of a node. Functions return 0 or errno; end: by rs_now_ns, 0 for never. */
#ifndef RS_COMM_NODE_SOCKETS_H
#define RS_COMM_NODE_SOCKETS_H

#include "comm/comm.h"

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

int rs_node_listen(rs_node_address *address, int *listener);
int rs_node_dial(const rs_node_address *address, int64_t end, int *fd);
/* Lets one in, of this user; -1: there is none. */
int rs_node_admit(int listener);
/* One message, which is sent and received as a whole; with descriptors, which the receiver owns. After an error it has
 * none. */
int rs_node_send(int fd, const void *bytes, size_t n, const int *fds, int nfds, int64_t end);
int rs_node_receive(int fd, void *bytes, size_t n, int *fds, int nfds, int64_t end);
/* True when the process at the other side is gone, or has destroyed its handle. */
bool rs_node_hung_up(int fd);
static inline int64_t rs_node_deadline(int64_t timeout_ms) {
  int64_t now = rs_now_ns();
  return timeout_ms > 0 ? timeout_ms < (INT64_MAX - now) / 1000000 ? now + timeout_ms * 1000000 : 0 : 0;
}

#endif
