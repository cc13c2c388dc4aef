/* Collectives of a packed transfer (see collective.c). */
#ifndef RS_EXEC_COLLECTIVE_H
#define RS_EXEC_COLLECTIVE_H

#include "exec/record.h"
#include "exec/transfer.h"

/* Local; the options are read, the arrays bound. */
void rs_collective_propose(struct reshard_transfer_s *t, const rs_arrays *arrays, rs_proposal *mine);
/* Decides from all ranks' proposals, on every rank alike: sets t->collective and t->why. RESHARD_ERROR_UNSUPPORTED
 * where a collective was forced and there is none. */
reshard_status rs_collective_decide(struct reshard_transfer_s *t,
                                    const rs_proposal *(*of)(const void *all, int64_t rank), const void *all);

/* Addresses of the messages of a collective in the user's arrays; NULL: they take so many bytes of staging. An
 * all-gather packs into the rank's own place of the received data. */
typedef struct rs_placement {
  char *send, *receive;
  int64_t send_bytes, receive_bytes;
  bool keeps; /* kept data is copied by itself; else the collective brings it */
} rs_placement;
void rs_collective_place(const struct reshard_transfer_s *t, const reshard_pattern *pattern, const rs_arrays *arrays,
                         rs_placement *placement);
/* Staging, in steps as rs_plan_staged. */
size_t rs_placement_bytes(const rs_placement *placement);

#endif
