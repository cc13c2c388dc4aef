/* Communicators: a const table of few functions. All calls are collective unless they say otherwise; every rank makes
 * the same calls on a communicator in the same order.
 *
 * A process may have several ranks of a communicator (the local one has them all). They meet in `combine`: the last of
 * them to come acts for all, the others sleep. So work for all ranks of this process is written once, and needs no more
 * threads than those that copy. */
#ifndef RS_COMM_COMM_H
#define RS_COMM_COMM_H

#include "base/base.h"
#include "comm/calls.h"
#include "device/handle.h"

#include <reshard/comm.h>
#include <reshard/plan.h>

#include <stdio.h>

/* One send or receive of a round. */
typedef struct rs_part {
  int64_t peer;
  char *at;
  int64_t bytes;       /* never 0 */
  rs_program *program; /* packs `at` before it is sent, unpacks it after it was received; NULL: not done by exchange */
  bool staged;         /* `at` is in staging; else in the user's array */
  bool in_mailbox;     /* that is the pair's mailbox: what one side packs there the other one unpacks */
  /* Place of the mailbox that it goes through, on both sides alike: pieces of a message take 0 and 1 by turns. -1: it
   * is the whole message, and exchanges take them by turns; program is for 0, other_program for 1. */
  int mailbox_slot;
  rs_program *other_program;
  void *type;     /* of a send whose runs lie in the user's array from `at` on; NULL: it is contiguous */
  int64_t passed; /* bytes of it that the sender has received, and passes on */
} rs_part;

/* The messages of a round as one call. ALL_GATHER: `send` [bytes] of every rank to `receive` [size * bytes] of all,
 * rank after rank. ALL_TO_ALL: `send` [size * bytes] and `receive` [size * bytes], rank after rank. BROADCAST: root's
 * `send` [bytes] to the others' `receive` [bytes]. What a rank sends itself comes to its place in `receive`; there it
 * may be already in an all-gather. */
typedef struct rs_collective {
  reshard_collective kind; /* NONE: there is none */
  int64_t root;
  char *send, *receive;
  int64_t bytes;
} rs_collective;

/* Work of a rank that is done while the messages of its round are under way. */
typedef struct rs_overlapped {
  reshard_status (*run)(const void *user);
  const void *user;
  uint64_t key; /* of the meeting of the node that follows */
} rs_overlapped;

/* Messages of one rank of this process in a round: one send and one receive per peer at most, both by peer
 * ascending. */
typedef struct rs_exchange {
  reshard_comm comm;
  int64_t nsends, nreceives;
  const rs_part *sends, *receives;
  const rs_collective *collective; /* does what all of these would; NULL: there is none */
  void *stream; /* of the rank's device: what it receives is moved in its order; NULL on a device without streams */
  const rs_overlapped *overlapped; /* run once all have met; then the meeting of the node begins; NULL: nothing */
  const int64_t *domains;          /* of the ranks, by which what comes is counted; NULL: it is not */
} rs_exchange;

#define RS_COMM_RECORD 1024 /* room for the text of an error with a path in it */

/* A rank's part in a meeting of processes. */
typedef struct rs_visit {
  uint64_t call;     /* unequal ones are different calls */
  uint64_t transfer; /* the transfer that it executes; 0: none */
  int64_t bytes;     /* of the record */
  rs_call_label caller;
  char record[RS_COMM_RECORD];
} rs_visit;

enum { RS_COMM_DIFFER_MS = 1000 }; /* without a deadline: for a rank that shrinks to try again with another list */

/* Whether a communicator has a collective. */
typedef enum rs_fit { RS_FIT_NONE, RS_FIT_SLOWER, RS_FIT_FASTER } rs_fit; /* than sends and receives */

struct rs_split_group; /* comm/split.h */

/* - BEGIN: the only rank of a process comes to a step; END is held in it, or after it, by that or by an exchange, with
 *   the same error on all.
 * - ALL: an all-gather.
 * - NODE: ranks of this node have read each other's memory; RESHARD_ERROR_MISMATCH with unequal keys.
 * - CLOSED, of neighbours: ranks of this node have closed what they had open of each other's for the first `key`
 *   closings, by the deadline at most. On a communicator that has ended that is for 2 s at most: ranks that hear of the
 *   end in different steps need not all tell. It has no error. */
typedef enum rs_scope { RS_MEET_BEGIN, RS_MEET_END, RS_MEET_ALL, RS_MEET_NODE, RS_MEET_CLOSED } rs_scope;

typedef struct rs_meeting {
  rs_scope scope;
  reshard_status status; /* of END */
  uint64_t key;          /* of NODE, CLOSED */
  const void *record;    /* of ALL, RS_COMM_RECORD bytes at most */
  size_t bytes;
  const void **all; /* of all ranks, in memory of the communicator that holds until this one's next collective call */
} rs_meeting;

/* ABORT: the communicator ends. STREAMS: what an abort has left for a shrink ends, where a stream has work of it at two
 * such calls, and with it that work. CALLS: this rank makes no more; those who wait for it hear of it as by destroy.
 * NOTHING: for what `end` returns. */
typedef enum rs_end { RS_END_NOTHING, RS_END_ABORT, RS_END_STREAMS, RS_END_CALLS } rs_end;

/* Peers that this rank sends to and receives from, ascending, or those of a collective. */
typedef struct rs_links {
  const int64_t *sends, *receives;
  int64_t nsends, nreceives, root;
  reshard_collective kind;
} rs_links;

/* Ranks that are threads of one process. */
typedef struct rs_thread_ops {
  /* Waits for all of them, then run(n, all) is called by one: all[i] is what the i-th gave as mine. Every rank returns
   * what run returned. Ranks that came with another `run` make it RESHARD_ERROR_MISMATCH, and nothing runs. */
  reshard_status (*combine)(reshard_comm comm, reshard_status (*run)(int64_t n, void **all), void *mine);
  /* Between enter and leave this rank may read memory of the others that they published in the last all-gather. A rank
   * whose next collective call ends early (abort, deadline) returns from that call only after leave. Neither is
   * collective, and between them no collective call is made. RESHARD_ERROR_PEER, and nothing to leave, when a rank has
   * given up already. */
  reshard_status (*enter)(reshard_comm comm);
  void (*leave)(reshard_comm comm);
} rs_thread_ops;

/* Memory that messages go through, and how they lie there. */
typedef struct rs_message_ops {
  /* Makes room for exchanges that have so many receives over all ranks of this process: called inside `combine`, or by
   * all ranks of a communicator of processes with GPUs, where it makes their mailboxes. Collective. NULL: they need
   * none. */
  reshard_status (*reserve)(reshard_comm comm, int64_t receives);
  /* Makes the connections to peers ahead of the exchanges, since they can take most of a second; touches no user's
   * array. Collective. NULL: none are made. */
  reshard_status (*connect)(reshard_comm comm, const rs_links *links);
  /* The place of a pair's mailbox that messages to the peer (sending), or from it, go through: at most `bytes`, which
   * are there from then on. Not collective. NULL where messages.mailbox is 0. */
  reshard_status (*mailbox)(reshard_comm comm, int64_t peer, bool sending, int slot, int64_t bytes, char **at);
  /* Frees memory of the device that exchanges went through, when none reads or writes it any more: one that has failed
   * may have messages under way. NULL: that is at once. */
  void (*retire)(reshard_comm comm, void *memory);
  /* Makes the type of sends of `runs` runs, each of `run` bytes, of which the next begins `stride` bytes further on.
   * It is the caller's, who gives it back; a send that is under way keeps it. Not collective. NULL where least_run
   * is 0. */
  reshard_status (*make_type)(reshard_comm comm, int64_t runs, int64_t run, int64_t stride, void **type);
  void (*free_type)(reshard_comm comm, void *type);
} rs_message_ops;

/* Ranks that are processes of one node, and use each other's memory. */
typedef struct rs_neighbour_ops {
  /* Sets imports, elsewhere, ended and late, for the ranks of each node, where all ranks are processes of several nodes
   * with neighbours; nothing where that was done. Collective: all ranks succeed, or all get the same error and it stays
   * as it was. Only a wish of the user is worth it. NULL: they are set when the communicator is made. */
  reshard_status (*open)(reshard_comm comm);
  /* Passes a descriptor of this process on to a rank, with a number, and takes one, which is this process's from then
   * on. Neither is collective, or waits for longer than some ms. *done false: it is not possible now, and was not since
   * then (rs_now_ns). pass: a descriptor that cannot be passed on is an error on both sides, fd -1 there alone. An
   * error with *done is of this message alone, which has come; one without ends all passing to and from that rank.
   * Between ranks that have imports of each other. */
  reshard_status (*pass)(reshard_comm comm, int64_t rank, int64_t since, uint64_t number, int fd, bool *done);
  reshard_status (*take)(reshard_comm comm, int64_t rank, int64_t since, uint64_t *number, int *fd, bool *done);
  /* Shows the others that this rank's next work on a stream is of the transfer with this key, the same on all ranks.
   * reads_others: it is on the direct path; captured: the work is put into a graph. Not collective, and no wait.
   * RESHARD_ERROR_MISMATCH, and the communicator has ended, where another has come with other work instead. NULL: ranks
   * meet in their executes, or on their streams alone. */
  reshard_status (*publish)(reshard_comm comm, uint64_t key, bool reads_others, bool captured);
} rs_neighbour_ops;

/* A transport: how bytes, and a record of each rank, get from rank to rank. */
typedef struct rs_comm_ops {
  const char *name;             /* "local" */
  size_t alignment;             /* of messages that go from or to the caller's arrays, else they are staged; 0: any */
  bool addressable;             /* every rank's host memory can be addressed by every rank: ranks of one process */
  bool one_node;                /* all ranks are on one node, by what the communicator is */
  const rs_thread_ops *threads; /* NULL: a process has one rank */
  const rs_message_ops *messages;
  const rs_neighbour_ops *neighbours; /* NULL: ranks use no memory of each other's, or need nobody for that */
  /* Not collective, and no wait: SUCCESS, or RESHARD_ERROR_PEER when the communicator has ended. */
  reshard_status (*look)(reshard_comm comm);
  /* Blocking. RESHARD_ERROR_PEER when the communicator has ended. The call allocates nothing, so that a rank without
   * memory can still say so. */
  reshard_status (*meet)(reshard_comm comm, const rs_meeting *meeting);
  /* Moves one round for the n ranks of this process, called by one thread for all, and counts the bytes received. Sends
   * and receives of a pair agree in bytes. total_bytes: of all rounds together (streaming stores pay or not). At most
   * as many receives, and as many sends, come in one call as there is room for. Without streams it also packs and
   * unpacks, by the programs of the parts, and returns when all is done. On a device with streams parts have no
   * programs, and exchange enqueues and does not block. The caller has packed in the order of the exchanges' streams,
   * and unpacks after them. A rank's exchanges of one sequence of rounds have one stream. */
  reshard_status (*exchange)(int64_t n, const rs_exchange *exchanges, int64_t total_bytes);
  /* Makes the communicator of this rank's group. A split is collective, also over the ranks that are in none. With lost
   * ranks it is a shrink, by the ranks of the group alone, who come with the same list of lost ones, which is checked:
   * the communicator may have ended, and has afterwards. All ranks succeed, or all get the same error: *part is what
   * there is of it then, which the caller destroys, or NULL. */
  reshard_status (*make)(reshard_comm comm, struct rs_split_group *group, reshard_comm *part);
  /* Ranks that had not come when a deadline passed, ascending, to ranks [size]. The same on all ranks that waited. Not
   * collective. */
  int64_t (*absent)(reshard_comm comm, int64_t *ranks);
  /* Not collective; from any thread. Returns whether a GPU may wait for a peer for ever, in work of a caller's
   * communicator that was given up: whatever waits for the GPU would so, too. */
  bool (*end)(reshard_comm comm, rs_end what);
  void (*destroy)(reshard_comm comm); /* not collective */
} rs_comm_ops;

/* Something that could not be freed by the deadline: a GPU waits for a peer that may never come. It stays until the
 * communicator is destroyed, and for ever where the GPU still has it then. */
typedef struct rs_deferred_destroy {
  struct rs_deferred_destroy *next;
  bool (*has_ended)(const struct rs_deferred_destroy *deferred); /* no GPU uses it any more */
  void (*free)(struct rs_deferred_destroy *deferred);
} rs_deferred_destroy;

/* The caller's function for waits of a rank. Its time is of the thread that works for the rank. */
typedef struct rs_polling {
  reshard_poll call; /* NULL: there is none */
  void *user;
  int64_t last;       /* time: it was called, or set */
  uint64_t cancelled; /* number of the call that it has ended; 0: none */
} rs_polling;
enum { RS_POLL_NS = 50000000 };

/* Ranks of a process on one GPU (or the CPU) are a lane. */
typedef struct rs_comm_lanes {
  int64_t lanes, lane;            /* their number, by their first ranks; that of this rank */
  int64_t lane_rank;              /* ranks of the process before this one on its lane */
  int64_t node;                   /* of the rank, by RESHARD_NODE, which tells nodes of one machine apart */
  rs_device *const *lane_devices; /* [lanes] that of the first rank of each */
} rs_comm_lanes;

/* Terms that suit the messages of a communicator. */
typedef struct rs_comm_messages {
  bool staged;          /* no message goes from or to memory of the caller: see retire */
  int64_t mailbox;      /* bytes of a place of a pair's mailbox, which both sides address; 0: there is none */
  int64_t eager_limit;  /* fewer bytes of each rank go faster through those than by reading peers */
  int64_t best_staging; /* on the CPU: bytes of a rank's that messages go through fastest; 0: the plan's */
  rs_fit fit[RESHARD_COLLECTIVE_BROADCAST + 1]; /* by kind, for exchanges; the same on all ranks */
  /* Long messages in runs of so many bytes go from strided sources; the same on all ranks. 0: none do. */
  int64_t least_run;
} rs_comm_messages;

/* The call, counted from 1 on by `settled`, in which a memory file has gone to a rank, or come from it. 0: it has not,
 * or the call has failed. Both ranks know that alike. */
typedef struct rs_passed_file {
  uint64_t to, from;
} rs_passed_file;

/* Memory of other ranks that this one reads. */
typedef struct rs_comm_memory {
  bool direct; /* work on every rank's device can address every rank's arrays */
  /* [size] memory files of the ranks' processes (device/cpu/segment.h), whose shared storage this rank can map, as the
   * others can this one's. On GPUs these stand for memory of the GPUs, of which descriptors are passed on. So they do
   * where `passed` is, until a file has come. NULL on all ranks: they cannot, reach it anyway, or have not opened their
   * nodes yet. The table's owner has opened this process's file for as long as it lives. */
  struct rs_import **imports;
  rs_passed_file *passed; /* [size]; NULL: no memory files are passed on */
  uint64_t settled;       /* calls so far that may have passed some on, and have ended */
  bool multi_node; /* not all ranks are on one node: those of ranks on another one are NULL; the same on all ranks */
  struct rs_peers *peers; /* memory of others' GPUs that this rank has opened (exec/direct); NULL: none */
  void (*drop_peers)(reshard_comm);
  struct reshard_transfer_s *persistent_transfers; /* that have these open between calls */
  uint64_t closings; /* ends so far of what ranks had open of each other's, and its owner may free */
} rs_comm_memory;

/* Waits of GPUs for each other, of ranks that are processes. */
typedef struct rs_comm_waits {
  /* Flags of the host that the GPUs reach (rs_stream_barrier_terms); NULL: it has no GPU. */
  const int64_t *ended;
  int64_t *late;
  /* Of all ranks, in their exchanges. Programs of messages are guarded by it. NULL: there is none, or none yet
   * (reserve). */
  rs_stream_barrier *barrier;
  rs_stream_barriers *barriers; /* shared by these and those of transfers; NULL: none yet */
} rs_comm_waits;

/* Holders of a handle, and memory that it keeps until its end. */
typedef struct rs_comm_life {
  _Atomic int64_t held;              /* by transfers, sharders, meshes, memory; one less from the handle's destroy on */
  atomic_bool quit;                  /* the handle was destroyed, and some of them hold it */
  rs_deferred_destroy *deferred;     /* what a GPU may still use */
  void *cached;                      /* of a call, for the next one alike; NULL: nothing */
  void (*drop_cached)(reshard_comm); /* frees that; called before the communicator is destroyed */
  uint64_t forks;                    /* rs_forks where it was made: a child's handle is no rank of processes */
} rs_comm_life;

struct reshard_comm_s {
  const rs_comm_ops *ops;
  rs_device *device; /* may be shared with other communicators */
  int64_t rank, size;
  int64_t locals; /* ranks of this process */
  rs_comm_lanes process;
  rs_comm_messages messages;
  rs_comm_memory memory;
  rs_comm_waits waits;
  struct {
    _Atomic int64_t received_bytes, received_messages, between_bytes, within_bytes, leaving_bytes;
  } stats;
  int64_t timeout_ms; /* of waits for ranks of other processes, GPUs' too; 0: none */
  bool borrowed;      /* an abort ends no such wait of a GPU: it is the caller's to end */
  struct {
    int64_t begun;          /* time: a creation or split, whose waits have one deadline; 0: each has its own */
    uint64_t transfer;      /* of a transfer that it executes: ranks that meet compare it; 0: none */
    const rs_visit *visits; /* of the last one, `stride` bytes apart; NULL: none, or all ranks are in this process */
    size_t stride;
  } meets;
  int64_t made;          /* objects made on this handle so far: numbers them */
  const void *group;     /* one for all ranks of this process, and no other communicator's */
  int64_t *global_ranks; /* [size], or NULL: the same numbers; the transport's */
  rs_comm_life life;
  rs_polling polling;
  struct {
    rs_board *board;
    reshard_comm board_next;
    rs_calls calls;
  } log;
};

/* The number in the world of a rank of the communicator. */
static inline int64_t rs_comm_global(reshard_comm comm, int64_t rank) {
  return comm->global_ranks != NULL ? comm->global_ranks[rank] : rank;
}

/* The reason of all communicators that a rank has aborted, or shrunk. */
static inline void rs_comm_abort_text(char *text, size_t size, int64_t rank) {
  snprintf(text, size, "rank %lld aborted the communicator", (long long)rank);
}
static inline void rs_comm_shrunk_text(char *text, size_t size, int64_t rank) {
  snprintf(text, size, "rank %lld has shrunk the communicator", (long long)rank);
}

/* True in a child of fork, but for ranks of one process, whose child has them all. */
static inline bool rs_comm_is_forked(reshard_comm comm) {
  return comm->life.forks != rs_forks() && !comm->ops->addressable;
}
/* RESHARD_ERROR_PEER where the communicator has ended, or is forked. Not collective. */
reshard_status rs_comm_alive(reshard_comm comm);
/* A transfer, sharder, mesh or memory holds the handle until it lets go: one that is destroyed before that quits, and
 * is freed by the last one that lets go. */
void rs_comm_hold(reshard_comm comm);
void rs_comm_let_go(reshard_comm comm);
/* Ends the communicator of a rank that has failed alone, for whose work on a stream others would wait for ever. Returns
 * the status, with its text. */
reshard_status rs_comm_end_after_error(reshard_comm comm, reshard_status status);

/* A wait of the rank since then (rs_now_ns), which holds no lock: calls the caller's function where it is time. True
 * where the function has ended the call, now or before. The communicator has ended then, and rs_comm_cancel makes
 * whatever error the step ends with RESHARD_ERROR_CANCELLED. */
RS_PRIVATE_API bool rs_comm_poll(reshard_comm comm, int64_t since);
bool rs_comm_is_cancelled(reshard_comm comm);
reshard_status rs_comm_cancel(reshard_comm comm, reshard_status status);

/* Frees what was deferred and has ended. Local. */
void rs_comm_free_deferred(reshard_comm comm);
static inline bool rs_comm_is_stuck(reshard_comm comm) { return comm->ops->end(comm, RS_END_NOTHING); }
/* Messages of an exchange that has failed may be under way in memory that they went through ... */
static inline bool rs_comm_keeps_messages(reshard_comm comm) { return comm->ops->messages->retire != NULL; }
/* ... which is freed after them. */
void rs_comm_retire(reshard_comm comm, void *memory);
static inline reshard_status rs_comm_reserve(reshard_comm comm, int64_t receives) {
  return comm->ops->messages->reserve != NULL ? comm->ops->messages->reserve(comm, receives) : RESHARD_SUCCESS;
}
/* Ranks of its nodes find each other when a transfer asks for it. */
static inline bool rs_comm_opens_nodes(reshard_comm comm) {
  return comm->ops->neighbours != NULL && comm->ops->neighbours->open != NULL;
}

/* Closes the memory files of other ranks, and this process's own for this user; nothing where none are open. */
RS_PRIVATE_API void rs_comm_close_imports(reshard_comm comm);
/* The only rank of a process on its lane, without a device: all that transports over processes have alike. */
RS_PRIVATE_API void rs_comm_init(reshard_comm comm, const rs_comm_ops *ops, int64_t rank, int64_t size);
/* Functions of the table, as steps of the rank's call; outside of one they are calls of their own. */
reshard_status rs_comm_combine(reshard_comm comm, reshard_status (*run)(int64_t n, void **all), void *mine);
reshard_status rs_comm_meet(reshard_comm comm);
reshard_status rs_comm_meet_node(reshard_comm comm, uint64_t key);
RS_PRIVATE_API reshard_status rs_comm_allgather(reshard_comm comm, const void *mine, size_t bytes, const void **all);
reshard_status rs_comm_exchange(int64_t n, const rs_exchange *exchanges, int64_t total_bytes, int64_t round);
/* For transports over processes. This rank's visit. */
RS_PRIVATE_API void rs_visit_fill(reshard_comm comm, rs_visit *visit, uint64_t call, const void *record, size_t bytes);
static inline const rs_visit *rs_visit_of(reshard_comm comm, int64_t rank) {
  return (const rs_visit *)(const void *)((const char *)comm->meets.visits + (size_t)rank * comm->meets.stride);
}
/* Compares the visits of a meeting: the same error on every rank, since all have the same ones. They stay until the
 * next meeting. */
RS_PRIVATE_API reshard_status rs_visits_compare(reshard_comm comm, const rs_visit *first, size_t stride);
/* Their records, `bytes` each, rank after rank. */
RS_PRIVATE_API void rs_visits_pack(reshard_comm comm, size_t bytes, char *to);
/* Peers that the rank's step waits for, ascending, for a report: a hint, which ends with the step. */
RS_PRIVATE_API void rs_comm_await(reshard_comm comm, int64_t n, const int64_t *peers);

/* Error of a call on a communicator that has ended. */
RS_PRIVATE_API reshard_status rs_comm_error_ended(void);
/* Error of a call on a handle that was destroyed. */
RS_PRIVATE_API reshard_status rs_comm_error_destroyed(reshard_comm comm);
/* RESHARD_ERROR_TIMEOUT of a rank that waited: names the call, its number and round. missing: "0-2,5", "": unknown. */
RS_PRIVATE_API reshard_status rs_comm_error_timeout(reshard_comm comm, const char *step, int64_t timeout_ms,
                                                    const char *missing);
/* RESHARD_ERROR_MISMATCH of ranks 0 and `rank`, which have come with different calls: names both, where they are known;
 * by a rank that sees that, before its next collective call. */
reshard_status rs_comm_error_calls(reshard_comm comm, int64_t rank);

static inline size_t rs_comm_alignment(reshard_comm comm) {
  return comm->ops->alignment > 0 ? comm->ops->alignment : 1;
}

/* A walk over n parts, by peer ascending, begins with the peer after this rank, and comes to the first ones in the end:
 * ranks that all began with rank 0 would use its link at once. */
static inline int64_t rs_parts_begin(const rs_part *parts, int64_t n, int64_t rank) {
  int64_t low = 0, high = n;
  RS_LOWER_BOUND(low, high, parts[i].peer <= rank);
  return low;
}
static inline const rs_part *rs_parts_at(const rs_part *parts, int64_t n, int64_t begin, int64_t i) {
  return &parts[begin + i < n ? begin + i : begin + i - n];
}

/* Adds to a rank's statistics. */
static inline void rs_comm_add(_Atomic int64_t *count, int64_t n) {
  if (n > 0)
    atomic_fetch_add_explicit(count, n, memory_order_relaxed);
}
/* Bytes that came without messages. */
static inline void rs_comm_count(reshard_comm comm, int64_t bytes) { rs_comm_add(&comm->stats.received_bytes, bytes); }
/* The messages that an exchange has brought. */
static inline void rs_comm_count_exchange(const rs_exchange *exchange) {
  reshard_comm comm = exchange->comm;
  int64_t bytes = 0, between = 0, leaving = 0;
  for (int64_t i = 0; i < exchange->nreceives; i++) {
    const rs_part *part = &exchange->receives[i];
    bool crosses = exchange->domains != NULL && exchange->domains[part->peer] != exchange->domains[comm->rank];
    bytes += part->bytes;
    between += crosses ? part->bytes : 0;
    leaving += crosses ? part->bytes - part->passed : 0;
  }
  rs_comm_count(comm, bytes);
  rs_comm_add(&comm->stats.received_messages, exchange->nreceives);
  rs_comm_add(&comm->stats.between_bytes, between);
  rs_comm_add(&comm->stats.within_bytes, exchange->domains != NULL ? bytes - between : 0);
  rs_comm_add(&comm->stats.leaving_bytes, leaving);
}

#endif
