/* Inside of the packed path: packed.c, bind.c, passed.c and streams.c. */
#ifndef RS_EXEC_PACKED_H
#define RS_EXEC_PACKED_H

#include "exec/transfer.h"

/* Place of a part of a round in the staging that rounds share. Slots of both halves are numbered together, those of
 * sends and of receives apart. */
typedef struct rs_slot {
  int32_t number; /* -1: the part is not staged */
  bool reused;    /* by a later round */
} rs_slot;
/* When a slot was used last in the execute that is given to streams. */
typedef struct rs_use {
  int64_t lane;  /* which moved from it, or unpacked it */
  int64_t round; /* number of the round, for all ranks of the process; -1: not yet */
} rs_use;

/* A round in which this rank has something. */
typedef struct rs_round {
  int64_t number;            /* the same moment on all ranks */
  rs_part *sends, *receives; /* with their programs, owned */
  int64_t nsends, nreceives;
  rs_collective collective;
  bool passes, brings; /* bytes on that came two rounds before; bytes that a later one passes on */
  /* on a device with streams */
  rs_program *pack, *unpack;           /* of all parts; owned; NULL: there is nothing to do */
  rs_slot *send_slots, *receive_slots; /* of the parts; owned; NULL where rounds do not share staging */
} rs_round;

/* Functions of the table; the mixed path is made of the same. Descriptors given to bind: sources of ranks that the
 * transfer reaches are read with what stays on the rank. */
reshard_status rs_packed_bind(reshard_transfer transfer, rs_binding *binding, const rs_descriptor *const *descriptors);
reshard_status rs_packed_prepare(const rs_bind_calls *calls);
reshard_status rs_packed_run(rs_execution *execution);
void rs_packed_release(reshard_comm comm, rs_binding *binding);
reshard_status rs_packed_run_on_streams(rs_execution *execution);

/* passed.c: which of the streams are read, those sent first; NULL: none is. To be freed. */
reshard_status rs_transfer_find_read(const struct reshard_transfer_s *transfer, bool **read);

/* Sets the exchanges of the next round that any of the ranks has; returns its number, or -1 when all are done.
 * t[0]->cursor: rounds of each rank that are behind. Moves the cursors of the ranks in the round. */
int64_t rs_packed_next_round(const rs_execution *execution);

#endif
