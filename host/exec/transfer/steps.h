/* Steps that making, binding and ending a transfer share. */
#ifndef RS_EXEC_TRANSFER_STEPS_H
#define RS_EXEC_TRANSFER_STEPS_H

#include "exec/descriptor.h"
#include "exec/record.h"
#include "exec/transfer.h"

/* The direct path between ranks that are processes. */
static inline bool rs_transfer_reads_processes(const struct reshard_transfer_s *t) {
  return t->path->reads_others && !t->comm->memory.direct;
}

/* A transfer on an explicit path reads memory of cudaMalloc of other processes; those of AUTO and of sharded calls
 * read storage alone. */
static inline bool rs_transfer_reads_malloc(const struct reshard_transfer_s *t) {
  return t->choice.only && t->cached == NULL;
}

/* bind.c */
/* Local: describes the memory of the sources, also in the record. */
reshard_status rs_transfer_describe(rs_bind_call *call);
/* Everybody's record, or the error of all (rs_records_exchange). */
reshard_status rs_bind_calls_exchange(const rs_bind_calls *calls, const rs_record **all);
/* Binds on all ranks or on none. */
reshard_status rs_bind_calls_bind(const rs_bind_calls *calls, const rs_record *all);
/* Lists of a thread that acts for all ranks of its process. */
typedef struct rs_bind_lists {
  const char *name;           /* of the caller's call */
  rs_bind_call *call, **rank; /* [n] in the caller's order; by rank, NULL until they are added */
  rs_bind_calls calls;
} rs_bind_lists;
/* After an error the lists are to be freed, too. */
reshard_status rs_bind_lists_create(const char *name, int64_t n, rs_bind_lists *lists);
/* Adds element i of the caller's list. what: names it; first: the communicator of the first one. */
reshard_status rs_bind_lists_add(rs_bind_lists *lists, const char *what, int64_t i, reshard_comm first,
                                 reshard_comm comm);
void rs_bind_lists_free(rs_bind_lists *lists);

/* execute.c */
/* The place among the n ranks of this process of comm, that of element i of a caller's list. what: names an element;
 * first: the communicator of the first one. Each rank comes once, else rs_error_twice. */
reshard_status rs_place_of_rank(const char *call, const char *what, int64_t n, int64_t i, reshard_comm first,
                                reshard_comm comm, int64_t *place);
reshard_status rs_error_twice(const char *call, const char *what, int64_t i, int64_t rank);
/* Takes the transfers for a call: all, or none. */
reshard_status rs_transfers_take(const char *call, int64_t n, const reshard_transfer *transfers);
void rs_transfers_give_back(int64_t n, const reshard_transfer *transfers);

/* describe.c */
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
