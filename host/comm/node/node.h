/* Inside of the node communicator: ranks that are processes of one node, on CPUs or GPUs.
 *
 * The processes share one block of memory, which no file names and which ends with the last of them. In it each rank
 * publishes what it brings to a meeting, a doorbell wakes each, and each pair of ranks has a mailbox: two slots by
 * turns, which the sender fills and the receiver empties. Nothing is locked, so a process may die anywhere. The sockets
 * between them, open as long as the communicator, tell that at once; descriptors of memory are passed over them.
 *
 * On GPUs ranks open each other's arrays (exec/direct), or send messages through mailboxes in memory of the GPUs
 * (streams.c). Streams meet by flags there (kernels/barrier.h). Hosts do not meet to execute: each publishes in the
 * block what it gives to a stream, and looks at what others have published. The block is pinned, so that a kernel which
 * polls sees the end of the communicator. Of a peer that did not come, or came with another transfer, it tells in its
 * rank's part. The rank's next call ends the communicator. */
#ifndef RS_COMM_NODE_H
#define RS_COMM_NODE_H

#include "comm/split.h"

#include <pthread.h>

/* Mailboxes take no more memory than RS_NODE_MAILBOXES, but for slots of the least size: pieces of messages fit a slot,
 * and each piece costs a part of a round. Memory of slots is there once a message has gone through them. */
enum { RS_NODE_MAILBOXES = 64 << 20, RS_NODE_SLOT_LEAST = 64 << 10, RS_NODE_SLOT = 512 << 10 };
/* Bytes that a rank sends, or receives, below which a meeting costs more than a second copy, where waits sleep. */
enum { RS_NODE_MAILED = 32 << 10 };
enum { RS_NODE_PAGE = 4096, RS_NODE_LINE = 64 };
/* Executes that ranks compare, of the last ones: more than a GPU takes launches of ahead of its work. */
enum { RS_NODE_EXECUTES = 512 };

/* --- The block of memory ------------------------------------------------------------------------------------------ */

/* A rank sleeps on its own doorbell, whatever it waits for. */
typedef struct rs_node_doorbell {
  _Alignas(RS_NODE_LINE) _Atomic uint32_t rings;
  _Atomic uint32_t sleeps; /* the number of rings at which it has gone to sleep last */
} rs_node_doorbell;

/* Executes that a rank's host has given to streams, in the order of its calls. */
typedef struct rs_node_executes {
  atomic_bool captured;  /* some are in graphs, whose launches nobody counts: no rank compares its own with them */
  _Atomic int64_t given; /* as many */
  /* By number: the key of the transfer, its lowest bit 1 where it reads peers. */
  _Atomic uint64_t published[RS_NODE_EXECUTES];
} rs_node_executes;

/* A try to shrink, as one of those that are there publishes it. */
typedef struct rs_node_loss {
  _Atomic uint64_t tries; /* odd while it is written */
  rs_loss loss;
  char record[RS_COMM_RECORD];
} rs_node_loss;

/* The reason why the communicator has ended, as one rank gives it. */
typedef struct rs_node_why {
  int32_t status; /* for those that wait */
  char text[RS_COMM_RECORD];
} rs_node_why;

typedef struct rs_node_rank {
  rs_node_doorbell doorbell;
  atomic_bool left; /* its handle was destroyed */
  /* 1 + a rank that a kernel of this one has waited for in vain; less than 0: one that executes another transfer; 0:
   * none. By its GPU. */
  int64_t late;
  _Atomic uint64_t closings; /* of which it has closed all that it had open */
  _Atomic int64_t waited;    /* time at which it looked last whether its wait is over, by the node's clock; 0: it is */
  rs_visit visits[2];        /* of two meetings one after the other */
  int64_t status[2];         /* that it brings to them; the text of an error is in the record */
  rs_node_executes executes;
  rs_node_why why;
  rs_node_loss loss;
} rs_node_rank;

/* A slot of a mailbox: full while more was sent than taken. */
typedef struct rs_node_slot {
  _Alignas(RS_NODE_LINE) _Atomic uint32_t sent;
  atomic_bool waits; /* the sender, for the slot to be empty */
  int64_t bytes;
  _Alignas(RS_NODE_LINE) _Atomic uint32_t taken;
} rs_node_slot;

typedef struct rs_node_memory {
  _Atomic int64_t ended;   /* 1 + the rank whose reason counts; 0: it goes on */
  _Atomic int64_t aborted; /* 1 + a rank that has aborted it with all that was split from it, also later; 0: none */
  _Atomic uint64_t came[]; /* [n] meetings that a rank has come to */
} rs_node_memory;

/* --- The handle --------------------------------------------------------------------------------------------------- */

typedef struct rs_node {
  struct reshard_comm_s base;
  atomic_int users;
  struct rs_node *parent; /* that it was split from: an abort of that ends it */
  reshard_comm whole;     /* the communicator whose ranks on this node these are: errors name its; NULL: none */
  reshard_status (*look)(reshard_comm whole); /* SUCCESS, or why that has ended; NULL: nobody asks */
  reshard_device handle;
  int spins;                /* before a wait sleeps */
  rs_node_memory *block;    /* with the places of the other parts: */
  _Atomic uint8_t *losses;  /* [n * n] ranks that the one who ends it waited for */
  _Atomic uint8_t *awaited; /* [n * n] ranks that each one waits for, while it does */
  rs_node_rank *ranks;      /* [n] */
  rs_node_slot *slots;      /* [n * n * 2] by sender, receiver */
  char *mailbox;            /* [n * n * 2] of base.mailbox bytes */
  int64_t block_bytes;
  void *pinned;                /* the block, as this rank's GPU has it; NULL: it is a CPU */
  struct rs_node_boxes *boxes; /* mailboxes in memory of GPUs; NULL: none were needed yet, or ranks have CPUs */
  int *sockets;                /* [n]; -1: this rank's own */
  pthread_mutex_t ending;      /* of this rank's reason */
  uint64_t meetings;           /* come to */
  bool due;                    /* in `combine`, and its meeting was not held yet */
  char *gathered;              /* [n * RS_COMM_RECORD] */
  bool *missing;               /* [n]: of a step that waits */
  int64_t *progress;           /* [2 * reserved] bytes that are behind, of an exchange's sends, then its receives */
  int64_t reserved;
  int64_t *compared; /* [n] executes of a rank that are known to be those of this one */
  int64_t *there;    /* [2 * n]: bytes of the slots to each rank that the system has given */
} rs_node;

static inline rs_node *rs_node_of(reshard_comm comm) { return (rs_node *)comm; }
/* The communicator whose calls an error names, and the number of a rank there. */
static inline reshard_comm rs_node_named(rs_node *c) { return c->whole != NULL ? c->whole : &c->base; }
static inline int64_t rs_node_name(const rs_node *c, int64_t rank) {
  return c->whole != NULL ? c->base.global_ranks[rank] : rank;
}
static inline rs_node_rank *rs_node_own_rank(const rs_node *c) { return &c->ranks[c->base.rank]; }
static inline rs_node_slot *rs_node_slot_of(const rs_node *c, int64_t from, int64_t to, int64_t slot) {
  return &c->slots[2 * (from * c->base.size + to) + slot % 2];
}
static inline char *rs_node_mailbox_of(const rs_node *c, int64_t from, int64_t to, int64_t slot) {
  return c->mailbox + (2 * (from * c->base.size + to) + slot % 2) * c->base.messages.mailbox;
}

/* Meets all ranks in `combine`, where that is due, with this rank's status: the lowest rank's error on all. */
reshard_status rs_node_meet(rs_node *c, reshard_status status);

/* exchange.c */
reshard_status rs_node_exchange(int64_t n, const rs_exchange *exchanges, int64_t total_bytes);
reshard_status rs_node_reserve(reshard_comm comm, int64_t most);
reshard_status rs_node_mailbox(reshard_comm comm, int64_t peer, bool sending, int slot, int64_t bytes, char **at);

/* wait.c: RS_MEET_CLOSED. */
void rs_node_await_closed(reshard_comm comm, uint64_t n);

/* split.c */
reshard_status rs_node_make_part(reshard_comm comm, struct rs_split_group *group, reshard_comm *part);

extern const rs_comm_ops rs_node_ops;

#endif
