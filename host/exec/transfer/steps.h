/* Steps that making, binding and ending a transfer share. */
#ifndef RS_EXEC_TRANSFER_STEPS_H
#define RS_EXEC_TRANSFER_STEPS_H

#include "exec/offer.h"
#include "exec/record.h"
#include "exec/transfer.h"

/* The direct path between ranks that are processes. */
static inline bool rs_transfer_reads_processes(const struct reshard_transfer_s *t) {
  return t->path->reads_others && !t->comm->direct;
}

/* bind.c */
/* Private sources end the direct path: on all ranks, or with an error on all. A small transfer leaves it, too. */
reshard_status rs_transfer_keep_or_leave_path(reshard_transfer t, const rs_record *all, bool leave);
/* Binds on all ranks or on none. */
reshard_status rs_transfer_bind_path(reshard_transfer t, rs_binding *binding, const rs_record *all);

/* told.c */
/* Tells the communicator's log of a transfer that was made. */
void rs_transfer_tell(const struct reshard_transfer_s *t);

/* end.c */
/* path: of the transfer; NULL: none was found, and nothing but the arrays is bound. */
void rs_transfer_free_binding(reshard_comm comm, const rs_path_ops *path, rs_binding *binding);
/* Waits for what streams have still to do with the transfer, and with its staging, which a peer's GPU may read. A
 * device that cannot be waited for twice is lost. *late: they have not done it by the deadline, or are stuck. */
void rs_transfer_finish(reshard_transfer t, bool *late);
/* Gives the end of a binding its number among the partings of all ranks, which is 0 where ranks need not part. */
uint64_t rs_transfer_begin_parting(reshard_comm comm, rs_exposed exposed);
/* Tells that this rank has closed what it had open. Where memory of its own caller was open it waits until all peers
 * have closed that, or are gone. */
void rs_transfer_part(reshard_comm comm, uint64_t parting, rs_exposed exposed);

#endif
