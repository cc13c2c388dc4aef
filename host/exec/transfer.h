/* Inside of a transfer. */
#ifndef RS_EXEC_TRANSFER_H
#define RS_EXEC_TRANSFER_H

#include "comm/comm.h"
#include "exec/arrays.h"
#include "exec/differ.h"
#include "exec/gate.h"
#include "exec/lane.h"
#include "plan/plan.h"

#include <reshard/transfer.h>

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
  int64_t group, piece;
  rs_part *sends, *receives; /* with their programs, owned */
  int64_t nsends, nreceives;
  rs_collective collective;
  /* on a device with streams */
  rs_program *pack, *unpack;           /* of all parts; owned; NULL: there is nothing to do */
  rs_slot *send_slots, *receive_slots; /* of the parts; owned; NULL where rounds do not share staging */
} rs_round;

/* The direct path's programs for all ranks of the process, one a lane; the last rank frees them. */
typedef struct rs_shared {
  atomic_llong users;
  rs_device *const *devices;
  int64_t n;
  rs_program *programs[]; /* NULL: nothing comes to the lane's ranks */
} rs_shared;

/* One user less. NULL is allowed. */
void rs_shared_drop(rs_shared *shared);

/* All that depends on the arrays: made anew by a rebind, then put in place of the old one. */
typedef struct rs_binding {
  rs_arrays arrays;
  rs_shared *direct;     /* direct path */
  int64_t foreign_bytes; /* that it brings to this rank from others */
  rs_program *keep;      /* packed path: what stays on the rank */
  rs_round *rounds;
  int64_t nrounds;
  rs_use *sent, *received; /* [nsent], [nreceived] by slot */
  int64_t nsent, nreceived;
  void *workspace; /* owned; NULL when it is the caller's */
  reshard_transfer_info info;
} rs_binding;

struct reshard_transfer_s {
  reshard_plan plan;    /* borrowed */
  reshard_comm comm;    /* borrowed */
  reshard_path path;    /* direct or packed */
  void *user_workspace; /* borrowed */
  size_t user_workspace_bytes;
  reshard_collective_use use;
  reshard_pattern collective; /* that all ranks have, and take; kind NONE: sends and receives */
  char why[160];              /* in words */
  uint64_t key;               /* the same on all ranks of one creation */
  atomic_flag busy;
  rs_binding binding;
  /* what the one thread that executes for all ranks of the process needs, [comm->locals] each */
  struct reshard_transfer_s **ranks;
  rs_program **programs;
  rs_turn *turns;
  int64_t *cursor;
  /* on a device with streams */
  rs_gate gate;
  rs_lane lane;    /* of the first rank on it */
  rs_lane **lanes; /* [comm->lanes], for the one who executes */
  bool used;       /* streams may still use what the binding has */
};

/* A rank's plan and arrays, shown to the others while all bind a direct path: read by them until `rs_bind_direct`
 * returns. */
typedef struct rs_offer {
  const struct reshard_plan_s *plan;
  const rs_arrays *arrays;
} rs_offer;

/* bind_direct.c: collective; offers of all ranks. bind_packed.c: local. */
reshard_status rs_bind_direct(reshard_transfer transfer, rs_binding *binding, const rs_offer *const *offers);
reshard_status rs_bind_packed(reshard_transfer transfer, rs_binding *binding);
void rs_binding_free(reshard_comm comm, rs_binding *binding);

/* streams.c: one execute for the n ranks of this process, by rank, on a device with streams. stream: where they all
 * are, of the first rank's device; not read where they have come through their gates. */
reshard_status rs_execute_on_streams(int64_t n, struct reshard_transfer_s *const *transfers, void *stream, bool gates);
/* execute.c: the next round that any of the ranks has; false when all are done. t[0]->cursor: rounds of each rank that
 * are behind. Fills t[0]->turns, with the stream of the rank's lane, and moves the cursors of those that are in it. */
bool rs_next_round(int64_t n, struct reshard_transfer_s *const *t);

/* Collective: success when every rank brings success, else the first failing rank's status, and its text with its
 * number, on all ranks. */
reshard_status rs_agree(reshard_comm comm, reshard_status mine);
/* Agrees where all ranks also give the argument alike: else RESHARD_ERROR_MISMATCH with both values, whatever the
 * statuses. argument NULL: none. */
reshard_status rs_agree_on(reshard_comm comm, reshard_status mine, const rs_argument *argument);

#endif
