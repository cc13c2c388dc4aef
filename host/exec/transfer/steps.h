/* Steps that making, binding and ending a transfer share. */
#ifndef RS_EXEC_TRANSFER_STEPS_H
#define RS_EXEC_TRANSFER_STEPS_H

#include "exec/offer.h"
#include "exec/record.h"
#include "exec/transfer.h"

/* The direct path between ranks that are processes. */
static inline bool rs_transfer_reads_processes(const struct reshard_transfer_s *t) {
  return t->path->reads_others && !t->comm->memory.direct;
}

/* A transfer that was told its path reads memory of cudaMalloc of other processes; those of AUTO and of sharded calls
 * read storage alone. */
static inline bool rs_transfer_reads_malloc(const struct reshard_transfer_s *t) {
  return t->choice.only && t->cached == NULL;
}

/* bind.c */
/* Local: describes the memory of the sources, also in the record. */
reshard_status rs_transfer_describe(reshard_transfer t, rs_binding *binding, rs_record *mine);
/* Binds on all ranks or on none. */
reshard_status rs_transfer_bind_path(reshard_transfer t, rs_binding *binding, const rs_record *all);

/* told.c */
/* Tells the communicator's log of a transfer that was made. */
void rs_transfer_tell(const struct reshard_transfer_s *t);

/* end.c */
/* Waits for what streams have still to do with the transfer, and with its staging, which a peer's GPU may read. A
 * device that cannot be waited for twice is lost. *late: they have not done it by the deadline, or are stuck. */
void rs_transfer_finish(reshard_transfer t, bool *late);
/* Returns when all ranks of the node have closed what a binding had open `of_malloc`, or are gone. That is by the
 * deadline at most, and within 2 s on a communicator that has ended. Collective over the node, in one order. */
void rs_transfer_await_closed(reshard_comm comm, bool closed);

#endif
