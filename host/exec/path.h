/* Ways to move: entries of one static table, which is searched once, when a transfer is made. Each is a file with these
 * functions in this order. */
#ifndef RS_EXEC_PATH_H
#define RS_EXEC_PATH_H

#include "comm/comm.h"
#include "exec/lane.h"

#include <reshard/transfer.h>

struct rs_binding;
struct rs_bind_calls;
struct rs_descriptor;

/* One execute for the n ranks of this process. */
typedef struct rs_execution {
  int64_t n;
  struct reshard_transfer_s *const *t; /* by rank */
  rs_flow flow;                        /* on a device with streams */
} rs_execution;

typedef struct rs_path_ops {
  reshard_path number;
  const char *no_collective; /* why its messages are no collective; NULL: they may be one */
  bool reads_others;         /* bind reads sources of other ranks: it is collective, with their descriptors, by rank */
  bool packs;                /* has rounds, which are packed, moved and unpacked on streams of their own */
  /* True when the ranks of the communicator can move so, where the caller asks for this path; the same on all. Where
   * they open their nodes for that, it may be refused still. */
  bool (*applicable)(reshard_comm comm, reshard_path asked);
  /* Lists and compiles the copies between the arrays of `binding`; after an error the caller releases it. */
  reshard_status (*bind)(reshard_transfer transfer, struct rs_binding *binding,
                         const struct rs_descriptor *const *descriptors);
  /* Compiles what bind has listed, for all ranks of a process that has several: each with its rs_bind_call. The first
   * failure of their binds is its own. NULL: bind has compiled it. */
  reshard_status (*compile)(int64_t n, void **calls);
  /* Collective, once, after the first bind, for the ranks of this thread; NULL: there is nothing to prepare. */
  reshard_status (*prepare)(const struct rs_bind_calls *calls);
  /* Moves all; returns when that is done. */
  reshard_status (*run)(rs_execution *execution);
  /* Gives the work to streams of the flow, which has begun and is ended by the caller. */
  reshard_status (*run_on_streams)(rs_execution *execution);
  /* Frees what bind has put into a binding, which may be all zero. */
  void (*release)(reshard_comm comm, struct rs_binding *binding);
} rs_path_ops;

extern const rs_path_ops rs_direct_path, rs_mixed_path, rs_packed_path;

/* The first path of the table that is applicable and is the one asked for; NULL: there is none. */
const rs_path_ops *rs_path_find(reshard_comm comm, reshard_path asked);

#endif
