/* Communicators: a const table of few functions. All calls are collective unless they say otherwise; every rank makes
 * the same calls on a communicator in the same order.
 *
 * A process may have several ranks of a communicator (the local one has them all). They meet in `together`: the last of
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
  int turn;
  rs_program *other_program;
  void *type; /* of a send whose runs lie in the user's array from `at` on; NULL: it is contiguous */
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
typedef struct rs_beside {
  reshard_status (*run)(const void *user);
  const void *user;
  uint64_t key; /* of the meeting of the node that follows */
} rs_beside;

/* Messages of one rank of this process in a round: one send and one receive per peer at most, both by peer
 * ascending. */
typedef struct rs_turn {
  reshard_comm comm;
  int64_t nsends, nreceives;
  const rs_part *sends, *receives;
  const rs_collective *collective; /* does what all of these would; NULL: there is none */
  void *stream; /* of the rank's device: what it receives is moved in its order; NULL on a device without streams */
  const rs_beside *beside; /* run once all have met; then the meeting of the node begins; NULL: nothing */
} rs_turn;

#define RS_COMM_RECORD 512
enum { RS_COMM_DIFFER_MS = 1000 }; /* without a deadline: for a rank that shrinks to try again with another list */

/* Whether a communicator has a collective. */
typedef enum rs_fit { RS_FIT_NONE, RS_FIT_SLOWER, RS_FIT_FASTER } rs_fit; /* than sends and receives */

struct rs_split_group; /* comm/split.h */

typedef struct rs_comm_ops {
  const char *name; /* "local" */
  size_t alignment; /* of messages that go from or to the caller's arrays, else they are staged; 0: any */
  bool reach;       /* every rank's host memory can be addressed by every rank: ranks of one process */
  bool one_node;    /* all ranks are on one node, by what the communicator is */
  /* Waits for all ranks of this process, then run(n, all) is called by one of them: all[i] is what the i-th gave as
   * mine. Every rank returns what run returned. Ranks that came with another `run` make it RESHARD_ERROR_MISMATCH, and
   * nothing runs. */
  reshard_status (*together)(reshard_comm comm, reshard_status (*run)(int64_t n, void **all), void *mine);
  /* Inside `run`, before a destination is written: the meeting with other processes that `together` is has been held,
   * with the same error on all. The first exchange holds it too. NULL: it is held before `run`, or there is none. */
  reshard_status (*meet)(reshard_comm comm);
  /* Returns when all ranks of this node have come, with this key: the end of an execute in which they have read each
   * other's memory. RESHARD_ERROR_MISMATCH on them where one has come with another. Ranks of other nodes do not take
   * part. NULL: `elsewhere` is never set where there are imports, or the streams of a node's ranks meet. */
  reshard_status (*meet_node)(reshard_comm comm, uint64_t key);
  /* Blocking. *all: size * bytes, rank after rank, in memory of the communicator that holds until this rank's next
   * collective call. The call allocates nothing, so that a rank without memory can still say so. bytes: RS_COMM_RECORD
   * at most. */
  reshard_status (*allgather)(reshard_comm comm, const void *mine, size_t bytes, const void **all);
  /* Between enter and leave this rank may read memory of ranks of this process that they showed in the last all-gather.
   * A rank whose next collective call ends early (abort, deadline) returns from that call only after leave. Neither is
   * collective, and between them no collective call is made. RESHARD_ERROR_PEER, and nothing to leave, when a rank has
   * given up already. NULL: a process has one rank. */
  reshard_status (*enter)(reshard_comm comm);
  void (*leave)(reshard_comm comm);
  /* Shows the others that this rank's next work on a stream is of the transfer with this key, the same on all ranks.
   * reads_others: it is on the direct path; captured: the work is put into a graph. Not collective, and no wait.
   * RESHARD_ERROR_MISMATCH, and the communicator has ended, where another has come with other work instead. NULL: ranks
   * meet in their executes, or on their streams alone. */
  reshard_status (*show)(reshard_comm comm, uint64_t key, bool reads_others, bool captured);
  /* Moves one round for the n ranks of this process, called by one thread for all, and counts the bytes received.
   * Sends and receives of a pair agree in bytes. total_bytes: of all rounds together (streaming stores pay or not).
   * At most as many receives, and as many sends, come in one call as were reserved. Without streams it also packs and
   * unpacks, by the programs of the parts, and returns when all is done. On a device with streams parts have no
   * programs, and exchange enqueues and does not block. The caller has packed in the order of the turns' streams, and
   * unpacks after them. A rank's turns of one sequence of rounds have one stream. */
  reshard_status (*exchange)(int64_t n, const rs_turn *turns, int64_t total_bytes);
  /* Memory for exchanges of up to `most` receives over all ranks of this process. Called inside `together`, or by all
   * ranks of a communicator of processes with GPUs: there it is collective, and makes their mailboxes. */
  reshard_status (*reserve)(reshard_comm comm, int64_t most);
  /* The place of a pair's mailbox that messages to the peer (sending), or from it, go through: at most `bytes`, which
   * are there from then on. Not collective. NULL where messages.mailbox is 0. */
  reshard_status (*mailbox)(reshard_comm comm, int64_t peer, bool sending, int turn, int64_t bytes, char **at);
  /* Frees memory of the device that exchanges went through, when none reads or writes it any more: one that has failed
   * may have messages under way. NULL: that is at once. */
  void (*retire)(reshard_comm comm, void *memory);
  /* Makes the type of sends of `runs` runs, each of `run` bytes, of which the next begins `stride` bytes further on.
   * It is the caller's, who gives it back; a send that is under way keeps it. Not collective. NULL where least_run
   * is 0. */
  reshard_status (*make_type)(reshard_comm comm, int64_t runs, int64_t run, int64_t stride, void **type);
  void (*free_type)(reshard_comm comm, void *type);
  /* Makes the connections to the peers that this rank will send to and receive from, both ascending, or those of a
   * collective. The call touches no user's array. It is collective, and made ahead of the exchanges, since it can
   * take most of a second. NULL: there are none to make. */
  reshard_status (*connect)(reshard_comm comm, int64_t nsends, const int64_t *sends, int64_t nreceives,
                            const int64_t *receives, reshard_collective kind, int64_t root);
  /* Sets imports, elsewhere, ended and late, for the ranks of each node, where all ranks are processes of several nodes
   * with neighbours; nothing where that was done. Collective: all ranks succeed, or all get the same error and it stays
   * as it was. Only a wish of the user is worth it. NULL: they are set when the communicator is made, or never. */
  reshard_status (*open_node)(reshard_comm comm);
  /* Passes a descriptor of this process on to a rank, with a number, and takes one, which is this process's from then
   * on. Neither is collective, or waits for longer than some ms. *done false: it is not possible now, and was not since
   * then (rs_now_ns). pass: a descriptor that cannot be passed on is an error on both sides, fd -1 there alone. An
   * error with *done is of this message alone, which has come; one without ends all passing to and from that rank.
   * Between ranks that have imports of each other. NULL: ranks are no processes of one node. */
  reshard_status (*pass)(reshard_comm comm, int64_t rank, int64_t since, uint64_t number, int fd, bool *done);
  reshard_status (*take)(reshard_comm comm, int64_t rank, int64_t since, uint64_t *number, int *fd, bool *done);
  /* Tells the others that this rank has closed what it had open of theirs for the first n closings (below). Waits
   * until all that are there have told so, by the deadline at most. On a communicator that has ended that is for 2 s at
   * most: ranks that hear of the end in different steps need not all tell. With ranks of several nodes those of this
   * one. NULL: ranks have nothing of each other's open that they would have to close. */
  void (*await_closed)(reshard_comm comm, uint64_t n);
  /* Makes the part of the communicator that is this rank's group. Collective, also over the ranks that are in none. All
   * ranks succeed, or all get the same error. */
  reshard_status (*split)(reshard_comm comm, struct rs_split_group *group, reshard_comm *part);
  /* The same by the ranks of the group alone, who come with the same list of lost ones, which is checked. The
   * communicator may have ended, and has afterwards. */
  reshard_status (*shrink)(reshard_comm comm, struct rs_split_group *group, reshard_comm *part);
  /* Ranks that had not come when a deadline passed, ascending, to ranks [size]. The same on all ranks that waited. Not
   * collective. */
  int64_t (*missing)(reshard_comm comm, int64_t *ranks);
  /* The call that a rank was in when it came to the last all-gather, on a communicator over processes. Not collective.
   * NULL: it cannot know, or all ranks are in this process. */
  void (*caller)(reshard_comm comm, int64_t rank, rs_stamp *stamp);
  reshard_status (*alive)(reshard_comm comm); /* not collective; RESHARD_ERROR_PEER after an abort */
  reshard_status (*abort)(reshard_comm comm); /* not collective */
  /* A stream has work of the communicator still. Where it had, too, at the last such call, and the communicator had
   * ended by then: ends what an abort has left for a shrink, and with it that work. Not collective. NULL: an abort
   * leaves no such work. */
  void (*stop)(reshard_comm comm);
  /* Its GPU may wait for a peer for ever, in work of a caller's communicator that was given up; so would whatever waits
   * for the GPU. Not collective. NULL: it never does. */
  bool (*stuck)(reshard_comm comm);
  /* This rank makes no more calls: its own are RESHARD_ERROR_PEER from here on. Those that wait for it hear of it as by
   * destroy, which comes later. Not collective; from any thread. */
  void (*quit)(reshard_comm comm);
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
  rs_device *const *lane_devices; /* [lanes] that of the first rank of each */
} rs_comm_lanes;

/* Terms that suit the messages of a communicator. */
typedef struct rs_comm_messages {
  bool staged;          /* no message goes from or to memory of the caller: see retire */
  int64_t mailbox;      /* bytes of a place of a pair's mailbox, which both sides address; 0: there is none */
  int64_t mailed;       /* fewer bytes of each rank go faster through those than by reading peers */
  int64_t best_staging; /* on the CPU: bytes of a rank's that messages go through fastest; 0: the plan's */
  rs_fit fit[RESHARD_COLLECTIVE_BROADCAST + 1]; /* by kind, for turns; the same on all ranks */
  /* Long messages in runs of so many bytes go from strided sources; the same on all ranks. 0: none do. */
  int64_t least_run;
} rs_comm_messages;

/* A memory file has gone to a rank, or come from it: in a call of all ranks that has not ended yet, or in one that has
 * succeeded. Both ranks know that alike. */
typedef enum rs_passing { RS_PASSED_NOT = 0, RS_PASSED_NOW, RS_PASSED } rs_passing;
typedef struct rs_passed_file {
  uint8_t to, from;
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
  bool elsewhere; /* not all ranks are on one node: those of ranks on another one are NULL; the same on all ranks */
  struct rs_peers *peers; /* memory of others' GPUs that this rank has opened (exec/direct); NULL: none */
  void (*drop_peers)(reshard_comm);
  struct reshard_transfer_s *kept_transfers; /* that have these open between calls */
  uint64_t closings; /* ends so far of what ranks had open of each other's, and its owner may free */
} rs_comm_memory;

/* Waits of GPUs for each other, of ranks that are processes. */
typedef struct rs_comm_waits {
  /* Words of the host that the GPUs reach (rs_stream_meeting_terms); NULL: it has no GPU. */
  const int64_t *ended;
  int64_t *late;
  /* Of all ranks, in their exchanges. Programs of messages are guarded by it. NULL: there is none, or none yet
   * (reserve). */
  rs_stream_meeting *meeting;
  rs_stream_meetings *meetings; /* shared by these and those of transfers; NULL: none yet */
} rs_comm_waits;

/* Holders of a handle, and memory that it keeps until its end. */
typedef struct rs_comm_life {
  _Atomic int64_t held;            /* by transfers, sharders, meshes, memory; one less from the handle's destroy on */
  rs_deferred_destroy *deferred;   /* what a GPU may still use */
  void *kept;                      /* of a call, for the next one alike; NULL: nothing */
  void (*drop_kept)(reshard_comm); /* frees that; called before the communicator is destroyed */
  uint64_t forks;                  /* rs_forks where it was made: a child's handle is no rank of processes */
} rs_comm_life;

struct reshard_comm_s {
  const rs_comm_ops *ops;
  rs_device *device; /* may be shared with other communicators */
  int64_t rank, size;
  int64_t locals; /* ranks of this process */
  int64_t node;   /* number of this rank's node by RESHARD_NODE, which tells nodes of one machine apart */
  rs_comm_lanes process;
  rs_comm_messages messages;
  rs_comm_memory memory;
  rs_comm_waits waits;
  struct {
    _Atomic int64_t received_bytes, received_messages;
  } stats;
  int64_t timeout_ms;          /* for work of GPUs that waits for peers; 0: none */
  bool borrowed;               /* an abort does not end such work: it is the caller's to end */
  int64_t begun;               /* time: a creation or split, whose waits have one deadline; 0: each has its own */
  uint64_t subject;            /* of a transfer that it executes: ranks that meet compare it; 0: none */
  int64_t made;                /* objects made on this handle so far: numbers them */
  const void *group;           /* one for all ranks of this process, and no other communicator's */
  const int64_t *global_ranks; /* [size], or NULL: the same numbers */
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
static inline bool rs_comm_is_forked(reshard_comm comm) { return comm->life.forks != rs_forks() && !comm->ops->reach; }
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
static inline bool rs_comm_is_stuck(reshard_comm comm) { return comm->ops->stuck != NULL && comm->ops->stuck(comm); }

/* Closes the memory files of other ranks, and this process's own for this user; nothing where none are open. */
RS_PRIVATE_API void rs_comm_close_imports(reshard_comm comm);
/* Functions of the table, as steps of the rank's call; outside of one they are calls of their own. */
reshard_status rs_comm_together(reshard_comm comm, reshard_status (*run)(int64_t n, void **all), void *mine);
RS_PRIVATE_API reshard_status rs_comm_meet(reshard_comm comm);
reshard_status rs_comm_meet_node(reshard_comm comm, uint64_t key);
RS_PRIVATE_API reshard_status rs_comm_allgather(reshard_comm comm, const void *mine, size_t bytes, const void **all);
reshard_status rs_comm_exchange(int64_t n, const rs_turn *turns, int64_t total_bytes, int64_t round);
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
RS_PRIVATE_API reshard_status rs_comm_error_calls(reshard_comm comm, int64_t rank);

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
static inline void rs_comm_count(reshard_comm comm, int64_t bytes, int64_t messages) {
  if (bytes > 0)
    atomic_fetch_add_explicit(&comm->stats.received_bytes, bytes, memory_order_relaxed);
  if (messages > 0)
    atomic_fetch_add_explicit(&comm->stats.received_messages, messages, memory_order_relaxed);
}

#endif
