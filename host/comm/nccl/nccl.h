/* Inside of the NCCL communicator: one rank of an ncclComm_t. */
#ifndef RS_COMM_NCCL_H
#define RS_COMM_NCCL_H

#include "comm/comm.h"
#include "comm/nccl/load.h"
#include "comm/roll.h"
#include "comm/split_group.h"

#include <pthread.h>

/* Record of a rank in an all-gather: always of this size, so that ranks that make different calls see it. */
typedef struct rs_nccl_record {
  int32_t bytes;    /* of the record that are used */
  int32_t device;   /* GPU of the rank ... */
  uint64_t process; /* ... in its process: ranks of one number are mostly in one process */
  rs_stamp caller;
  int32_t color, place; /* of the part that a split makes for the rank; -1: none */
  rs_roll_offer roll;   /* of that part, else of this communicator */
  char record[RS_COMM_RECORD];
} rs_nccl_record;

typedef struct rs_nccl {
  struct reshard_comm_s base;
  rs_nccl_api api;       /* of the libnccl that has made `nccl` */
  pthread_mutex_t mutex; /* of `nccl`, which an abort takes away from the thread that uses it */
  ncclComm_t nccl;       /* NULL after its end, where it is not borrowed */
  bool borrowed;         /* nccl is the caller's: never ended here */
  atomic_bool quit;      /* the handle was destroyed, and transfers hold it */
  atomic_bool ended;
  bool revoked;          /* ended, and there for a shrink: under the mutex */
  bool outlived;         /* revoked, and a stream had work of it after that: likewise */
  bool closing;          /* it ends for good: nothing is made of it any more */
  reshard_status lost;   /* SUCCESS, or why this rank has ended it: it could not make a call that the others make */
  char why[512];         /* in words */
  int64_t timeout_ms;    /* 0: none */
  int64_t since;         /* of a creation, whose deadline its waits have; 0: each has one of its own */
  uint64_t process;      /* as in a record */
  int64_t spin_ns;       /* time that calls of NCCL take now, and more: no sleep before that */
  bool met;              /* the ranks know who is in one process */
  reshard_device handle; /* kept */
  void *stream;          /* side stream of the all-gathers */
  rs_event *gathered;    /* after what this rank has given to it; NULL once they are freed */
  atomic_bool handed;    /* NCCL has a call that no event comes after yet, and may launch it later */
  rs_nccl_record *mine, *all; /* pinned; [1], [size] */
  rs_nccl_record *device_mine, *device_all;
  rs_roll *roll;               /* NCCL does not tell which ranks have not come */
  const rs_split_group *group; /* of a split, with its part where that is made; NULL: none */
  struct rs_nccl *part;
  char *packed;          /* [size * RS_COMM_RECORD]: what the caller of an all-gather sees */
  int64_t *global_ranks; /* of base; owned */
  ncclComm_t *split;     /* where NCCL puts what a split makes when that is done, ... */
  bool splitting;        /* ... which may be after it was given up */
  int64_t number;        /* RESHARD_NODE: ranks with other numbers are on other nodes */
  struct rs_node *node;  /* the ranks of this node, once they are opened: under the mutex for who ends it; NULL: none */
  int64_t *numbers;      /* [size] of ranks in it; -1: on another one */
  struct rs_nccl *parent, *children, *next; /* the tree of splits: an abort goes down; under the parent's mutex */
  int64_t users;                            /* the handle, and children */
} rs_nccl;

static inline rs_nccl *rs_nccl_of(reshard_comm comm) { return (rs_nccl *)comm; }

/* An NCCL result as a status, with NCCL's own words. nccl may be NULL. */
reshard_status rs_nccl_error(const rs_nccl_api *api, ncclComm_t nccl, ncclResult_t result, const char *call);
/* Waits until a call of a non-blocking communicator is through; result is what the call returned. At the deadline, or
 * when the communicator ends meanwhile, the communicator is given up. */
reshard_status rs_nccl_settle(rs_nccl *c, ncclResult_t result, const char *call);
/* A wait for other ranks: since when, and when it was last looked who has come. */
typedef struct rs_nccl_wait {
  const char *call;
  int64_t since, looked;
} rs_nccl_wait;
enum { RS_NCCL_LOOK_NS = 20000000 }; /* between two such looks */
/* Goes on waiting for others: gives up at the deadline, or when another rank of the node has given up, or ended it. */
reshard_status rs_nccl_wait_more(rs_nccl *c, rs_nccl_wait *wait, int64_t spin_ns);
/* The communicator's own state; an error where it has one. call: for its text. */
reshard_status rs_nccl_get_async_error(rs_nccl *c, const char *call, ncclResult_t *state);
/* When the rank comes to a call: SUCCESS, or why the communicator has ended, or ends now as its node has. */
reshard_status rs_nccl_check_call(rs_nccl *c);
/* Between two looks at something that NCCL or a GPU has still to do: short at first, for so long, and then a sleep. */
enum { RS_NCCL_SPIN_NS = 20000 };
void rs_nccl_pause(int64_t since_ns, int64_t spin_ns);
/* The communicator, locked against an abort; RESHARD_ERROR_PEER, unlocked, when it has ended. */
reshard_status rs_nccl_lock(rs_nccl *c);
void rs_nccl_unlock(rs_nccl *c);
/* Ends what NCCL has made for the communicator; NULL is allowed. With the GPU as the current one: NCCL makes the one
 * current again that was, and with it a context. */
void rs_nccl_abort(const rs_nccl *c, ncclComm_t nccl);
/* Ends it and those that were split from it. Callable from any thread. */
void rs_nccl_end(rs_nccl *c);

/* Ends the communicator of a rank that failed to make a call which the others make: they would take its next call for
 * this one. The others hear by their deadline, or before. Returns the status. */
reshard_status rs_nccl_end_after_error(rs_nccl *c, reshard_status status);

/* create.c: a rank around an ncclComm_t, which ends with it unless it is borrowed; after an error it is the caller's
 * to end. */
reshard_status rs_nccl_create(const rs_nccl_api *api, ncclComm_t nccl, bool borrowed, reshard_device device,
                              int64_t timeout_ms, rs_nccl **out);
/* Ends the handle: the communicator now, and the rest with the last of its children. */
void rs_nccl_close(rs_nccl *c);

/* create.c: as in the table. */
bool rs_nccl_stuck(reshard_comm comm);

/* split.c */
reshard_status rs_nccl_split(reshard_comm comm, const rs_split *mine, reshard_comm *sub);

/* shrink.c: stops all that is under way, and keeps the communicator; false: NCCL cannot, and it has to be aborted. With
 * the communicator locked. */
bool rs_nccl_revoke(rs_nccl *c);
/* Waits, not for long, until all that was under way has stopped. */
void rs_nccl_quiesce(rs_nccl *c);
/* Aborts it where its revocation was through at the last call already. NCCL takes the word to end back then: kernels
 * that a graph brings later, or a busy stream comes to, wait for their peers for ever. */
void rs_nccl_stop(rs_nccl *c);
reshard_status rs_nccl_shrink(reshard_comm comm, int64_t n, const int64_t *lost, reshard_comm *sub);

extern const rs_comm_ops rs_nccl_ops;

#endif
