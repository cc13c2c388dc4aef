/* Inside of the rendezvous: processes that know an address alone. */
#ifndef RS_COMM_BOOTSTRAP_H
#define RS_COMM_BOOTSTRAP_H

#include "base/base.h"

#include <reshard/comm.h>

/* Time that a stranger has to show who it is: who connects, and who listens at the address. */
#define RS_PATIENCE_NS INT64_C(2000000000)

/* The first message of a process. */
typedef struct rs_greeting {
  uint64_t magic, run; /* hash of the version and the job */
  int64_t n, rank, bytes;
} rs_greeting;

/* One all-gather. */
typedef struct rs_gathering {
  const reshard_rendezvous *at;
  rs_greeting mine;
  char *all;   /* [n * bytes] with this rank's own in its place */
  int64_t end; /* by rs_now_ns; 0: never */
} rs_gathering;

/* Milliseconds until the earlier of two times (0: never), for poll. */
int rs_ms_until(int64_t a, int64_t b);
/* Sends or receives what it can, up to n bytes; false where the other side is gone. */
bool rs_transfer_some(int fd, bool out, void *bytes, int64_t n, int64_t *done);

/* serve.c: rank 0. */
reshard_status rs_serve_gathering(rs_gathering *g, int listener);

#endif
