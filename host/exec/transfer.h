/* Inside of a transfer. */
#ifndef RS_EXEC_TRANSFER_H
#define RS_EXEC_TRANSFER_H

#include "comm/comm.h"
#include "exec/arrays.h"
#include "exec/descriptor.h"
#include "exec/differ.h"
#include "exec/fork_join.h"
#include "exec/lane.h"
#include "exec/path.h"
#include "exec/record.h"
#include "exec/staging.h"
#include "plan/hops.h"
#include "plan/rounds.h"

#include <reshard/transfer.h>

/* All that depends on the arrays: made anew by a rebind, then put in place of the old one. */
typedef struct rs_binding {
  rs_arrays arrays;
  rs_sources sources;            /* where other processes read these arrays; all zero: they do not */
  rs_mappings *mappings;         /* of other processes' arrays, that it reads; NULL: none */
  int64_t foreign_bytes;         /* that it brings to this rank from others */
  RS_VEC(rs_program *) compiled; /* owned: all that follow, in the order of their making */
  int64_t ncompiled;             /* of these so far; the others are of the binding before, to be compiled anew */
  /* Direct path, of the first rank of a process that has several: `compiled` has the program of each lane. */
  bool by_lane;
  rs_copies listed; /* direct path, of ranks of one process: those to this rank, until one of them has compiled all */
  rs_program *self_copy; /* packed path: copies that stay on the rank; direct path of a process: all copies to it */
  struct rs_round *rounds;
  int64_t nrounds;                /* 0 on another path */
  struct rs_use *sent, *received; /* [nsent], [nreceived] by slot */
  int64_t nsent, nreceived;
  void *workspace; /* owned; NULL when it is the caller's, or cached */
  bool of_malloc;  /* processes have memory of cudaMalloc open, which its owner frees when all have closed it */
  reshard_transfer_info info;
} rs_binding;

/* One rank's part in a call that makes transfers, or binds them anew. */
typedef struct rs_bind_call {
  struct reshard_transfer_s *t; /* NULL: it could not be made */
  rs_binding *binding;          /* what the path binds */
  rs_binding made;              /* to take the place of the transfer's */
  bool idle;                    /* earlier executes have ended */
  rs_record record;             /* that the others see */
  rs_descriptor descriptor;     /* of the record */
  rs_saved_error failed;        /* what it has done alone: the path's bind, and what comes before a rebind's */
  rs_call_scope scope;          /* where the thread acts for other ranks, too */
} rs_bind_call;

/* The parts of the ranks for which a thread acts, by rank: of its own alone, or of all of the process. */
typedef struct rs_bind_calls {
  int64_t n;
  reshard_comm comm; /* the first one's */
  rs_bind_call *const *rank;
  rs_record *records; /* [n] where n > 1: what ranks else send to each other */
} rs_bind_calls;

/* Why a transfer is on its path. */
typedef struct rs_path_choice {
  bool only;        /* the user wants no other */
  const char *left; /* why all ranks have left another path; NULL: none was left */
  int64_t left_by;  /* the rank that could not stay on it; -1: none alone */
} rs_path_choice;

/* How the messages of a transfer go. */
typedef struct rs_message_terms {
  reshard_collective_use use;
  reshard_pattern collective; /* that all ranks have, and take; kind NONE: sends and receives */
  char why[160];              /* in words */
  rs_schedule schedule;       /* of the packed path */
  int64_t least_rounds;       /* lower bound of its rounds */
  bool strided;               /* they go from strided sources where they can, and all in one round */
  int64_t streams, later;     /* where bytes are passed on: the most of any rank; rounds beyond those of the schedule */
} rs_message_terms;

/* Lists of the one thread that executes for all ranks of the process, [comm->locals] each. */
typedef struct rs_team_lists {
  struct reshard_transfer_s **ranks;
  rs_program **programs;
  rs_exchange *exchanges;
  int64_t *cursor;
} rs_team_lists;

/* Streams of a transfer on a device that has some. */
typedef struct rs_transfer_streams {
  bool used; /* execute gives the work to them; else it does the work at once, and all else is zero */
  rs_fork_join fork_join;
  rs_stream_barrier *barrier; /* with its peers, which are processes; NULL: the communicator's own calls meet them */
  rs_shared_flags flags;      /* of it */
  rs_lane lane;               /* of the first rank on it */
  rs_lane **lanes;            /* [comm->process.lanes], for the one who executes */
  /* Of the first lane's device: the last execute has ended, or that of the last launch of a graph. Ranks that came
   * by fork and join have theirs instead. */
  rs_event *ended;
  bool lost; /* no event tells that */
} rs_transfer_streams;

struct reshard_transfer_s {
  reshard_plan plan;       /* borrowed */
  reshard_comm comm;       /* borrowed */
  const rs_path_ops *path; /* all ranks have the same */
  rs_path_choice choice;
  rs_message_terms messages;
  struct {
    void *at; /* borrowed */
    size_t bytes;
  } workspace;             /* the user's */
  rs_call_staging *cached; /* it is cached, and has its staging there; NULL: bindings have their own */
  bool bound;              /* cached: its binding can be executed, with staging at the same place */
  uint64_t key;            /* the same on all ranks of one creation */
  atomic_int busy;         /* RS_TAKEN by the call that uses it, RS_DESTROYED meanwhile; 0: none does */
  bool holds;              /* its communicator's handle: it is the user's */
  rs_call *call;           /* of the thread that executes for all; NULL: within another one */
  rs_binding binding;
  rs_binding failed; /* of a rebind, whose memory was not freed: the GPU was stuck; mostly all zero */
  rs_team_lists team;
  rs_transfer_streams streams;
  struct reshard_transfer_s *next; /* of comm->memory.persistent_transfers */
  rs_deferred_destroy deferred;
};

enum { RS_TAKEN = 1, RS_DESTROYED };

/* Takes a transfer for a call; false: another one has it. */
static inline bool rs_transfer_take(struct reshard_transfer_s *t) {
  int idle = 0;
  return atomic_compare_exchange_strong_explicit(&t->busy, &idle, RS_TAKEN, memory_order_acquire, memory_order_relaxed);
}
/* Frees a transfer that no call has, when its streams have done with it. */
void rs_transfer_end(struct reshard_transfer_s *t);
/* Gives it back; one that was destroyed meanwhile is freed. */
static inline void rs_transfer_give_back(struct reshard_transfer_s *t) {
  if (atomic_exchange_explicit(&t->busy, 0, memory_order_acq_rel) == RS_DESTROYED)
    rs_transfer_end(t);
}

/* The ranks that it has messages with, or reads. */
static inline rs_partners rs_transfer_partners(const struct reshard_transfer_s *t) {
  rs_partners all = {t->plan->peers.at, t->plan->peers.n};
  if (t->messages.schedule.passes)
    all.n = rs_plan_partners(t->plan, &all.at);
  return all;
}

/* True where the transfer reads the rank's sources itself; of what is not passed on no message goes from that rank, or
 * to it. */
static inline bool rs_transfer_maps(const struct reshard_transfer_s *t, int64_t rank) {
  return t->path == &rs_mixed_path && t->comm->memory.imports != NULL && t->comm->memory.imports[rank] != NULL;
}

/* True where a stream is no message, as the transfer reads it. */
static inline bool rs_transfer_reads(const struct reshard_transfer_s *t, const rs_stream_end *end) {
  return t->plan->hops->streams.at[end->stream].group == 0 && rs_transfer_maps(t, end->peer);
}

/* Bytes of a place of a pair's mailbox that staged messages lie in; 0: they have staging of their own. */
static inline int64_t rs_transfer_mailbox(const struct reshard_transfer_s *t) {
  int64_t bytes = t->comm->messages.mailbox;
  return bytes > 0 && rs_schedule_fits_mailbox(&t->messages.schedule, bytes) ? bytes : 0;
}

/* The first failure of a path's bind, with the number of its rank. */
reshard_status rs_bind_calls_failed(int64_t n, rs_bind_call *const *rank);
/* run(n, calls) for all ranks of this process, by this thread where it acts for them; else they meet. */
reshard_status rs_bind_calls_combine(const rs_bind_calls *calls, reshard_status (*run)(int64_t n, void **all));

/* Checks that a plan is the one of the communicator's rank. */
reshard_status rs_transfer_check_plan(reshard_comm comm, reshard_plan plan);
/* Compiles the next program of a binding, which owns it. A cached transfer that a rank binds alone is bound anew while
 * the device may still run what was compiled for the arrays before. barrier: guards the program; NULL: none does. */
reshard_status rs_binding_compile(reshard_transfer transfer, rs_binding *binding, const rs_copies *copies,
                                  int64_t bytes, rs_stream_barrier *barrier, rs_program **program);
/* reshard_transfer_create, of a transfer that is cached. */
reshard_status rs_transfer_create_cached(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays,
                                         const reshard_transfer_options *options, rs_call_staging *staging,
                                         reshard_transfer *transfer);
/* path: of the transfer; NULL: none was found, and nothing but the arrays is bound. */
void rs_binding_free(reshard_comm comm, const rs_path_ops *path, rs_binding *binding);
/* A cached transfer on the direct path between processes, which each rank makes alone and binds by
 * rs_transfer_rebind_cached. Its executes are within a call in which ranks have published their sources. */
reshard_status rs_transfer_create_alone(reshard_plan plan, reshard_comm comm, rs_call_staging *staging,
                                        reshard_transfer *transfer);
/* reshard_transfer_rebind by the rank alone, in the order of its stream: of a transfer that is cached. descriptors:
 * sources of others, by rank, on a path that reads them; else NULL. arrays: NULL where the descriptors have them. */
reshard_status rs_transfer_rebind_cached(reshard_transfer transfer, const reshard_arrays *arrays,
                                         const rs_descriptor *const *descriptors);
/* A cached transfer, which reads storage of others alone, may stay bound between calls. Its binding ends where others
 * have freed that (`bound`), and nobody waits for this rank where it is destroyed. */
void rs_transfer_persist(reshard_transfer transfer);
/* Ends bindings of transfers that are kept, `but` for one, to memory that its owner has freed: as long as they have it
 * open it is not free. It waits for none: a stream may use it still, and a later call ends it. */
void rs_transfer_unbind_freed(reshard_comm comm, const struct reshard_transfer_s *but);
/* Executes for all ranks of this process, by rank. forked: they come by fork and join; else all are on `stream`. */
reshard_status rs_transfers_run(int64_t n, struct reshard_transfer_s *const *transfers, void *stream, bool forked);
/* The streams of the transfer's peers and a step's go on when all have come here; nothing where the transfer has no
 * meeting. */
reshard_status rs_execution_meet(rs_execution *execution, rs_step step, const char *edge);

/* Bytes that the ranks of an execute copy without messages, for a trace of the device; -1: nobody listens. */
int64_t rs_execution_copied(const rs_execution *execution, const rs_device *device);

#endif
