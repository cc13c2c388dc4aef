/* Inside of a transfer. */
#ifndef RS_EXEC_TRANSFER_H
#define RS_EXEC_TRANSFER_H

#include "comm/comm.h"
#include "exec/arrays.h"
#include "exec/differ.h"
#include "exec/gate.h"
#include "exec/lane.h"
#include "exec/path.h"
#include "plan/plan.h"

#include <reshard/transfer.h>

/* All that depends on the arrays: made anew by a rebind, then put in place of the old one. */
typedef struct rs_binding {
  rs_arrays arrays;
  struct rs_direct_programs *direct; /* direct path */
  int64_t foreign_bytes;             /* that it brings to this rank from others */
  rs_program *keep;                  /* packed path: copies that stay on the rank */
  struct rs_round *rounds;
  int64_t nrounds;                /* 0 on another path */
  struct rs_use *sent, *received; /* [nsent], [nreceived] by slot */
  int64_t nsent, nreceived;
  void *workspace; /* owned; NULL when it is the caller's */
  reshard_transfer_info info;
} rs_binding;

struct reshard_transfer_s {
  reshard_plan plan;       /* borrowed */
  reshard_comm comm;       /* borrowed */
  const rs_path_ops *path; /* all ranks have the same */
  bool on_streams;         /* the device has streams, to which execute gives the work; else it does the work at once */
  void *user_workspace;    /* borrowed */
  size_t user_workspace_bytes;
  reshard_collective_use use;
  reshard_pattern collective; /* that all ranks have, and take; kind NONE: sends and receives */
  int64_t rounds;             /* of the packed path, on all ranks */
  char why[160];              /* in words */
  uint64_t key;               /* the same on all ranks of one creation */
  atomic_flag busy;
  rs_call *call; /* of the thread that executes for all; NULL: within another one */
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

/* A rank's plan and arrays, shown to the others while all bind: read by them until the path's bind returns. */
typedef struct rs_offer {
  const struct reshard_plan_s *plan;
  const rs_arrays *arrays;
} rs_offer;

/* Collective: success when every rank brings success, else the first failing rank's status, and its text with its
 * number, on all ranks. */
reshard_status rs_agree(reshard_comm comm, reshard_status mine);
/* Agrees where all ranks also give the argument alike: else RESHARD_ERROR_MISMATCH with both values, whatever the
 * statuses. argument NULL: none. */
reshard_status rs_agree_on(reshard_comm comm, reshard_status mine, const rs_argument *argument);

#endif
