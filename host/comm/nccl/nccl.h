/* Inside of the NCCL communicator: one rank of an ncclComm_t. */
#ifndef RS_COMM_NCCL_H
#define RS_COMM_NCCL_H

#include "comm/comm.h"
#include "comm/nccl/load.h"
#include "comm/presence.h"
#include "comm/split.h"

#include <pthread.h>

/* Record of a rank in an all-gather: always of this size, so that ranks that make different calls see it. */
typedef struct rs_nccl_record {
  int32_t device;             /* GPU of the rank ... */
  uint64_t process;           /* ... in its process: ranks of one number are mostly in one process */
  rs_presence_offer presence; /* of the part that a split has made for the rank, else of this communicator */
  rs_visit visit;
} rs_nccl_record;

typedef struct rs_nccl {
  struct reshard_comm_s base;
  rs_nccl_api api;       /* of the libnccl that has made `nccl` */
  pthread_mutex_t mutex; /* of `nccl`, which an abort takes away from the thread that uses it */
  ncclComm_t nccl;       /* NULL after its end, where it is not borrowed */
  atomic_bool ended;
  bool revoked;          /* ended, and there for a shrink: under the mutex */
  bool outlived;         /* revoked, and a stream had work of it after that: likewise */
  bool closing;          /* it ends for good: nothing is made of it any more */
  reshard_status lost;   /* SUCCESS, or why this rank has ended it: it could not make a call that the others make */
  char why[512];         /* in words */
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
  rs_presence *presence; /* NCCL does not tell which ranks have not come */
  struct rs_nccl *part;  /* that a split has made, whose ranks see each other after the next all-gather; NULL: none */
  const int64_t *part_ranks; /* [its size] in this communicator, also where it could not be made; NULL: in none */
  char *packed;              /* [size * RS_COMM_RECORD]: what the caller of an all-gather sees */
  ncclComm_t *split;         /* where NCCL puts what a split makes when that is done, ... */
  bool splitting;            /* ... which may be after it was given up */
  struct rs_node *node; /* the ranks of this node, once they are opened: under the mutex for who ends it; NULL: none */
  int64_t *numbers;     /* [size] of ranks in it; -1: on another one */
  struct rs_nccl *parent, *children, *next; /* the tree of splits: an abort goes down; under the parent's mutex */
  int64_t users;                            /* the handle, and children */
} rs_nccl;

static inline rs_nccl *rs_nccl_of(reshard_comm comm) { return (rs_nccl *)comm; }

/* create.c: a rank around an ncclComm_t, which ends with it unless it is borrowed, with the presence; NULL: one of its
 * own. After an error both are the caller's. */
reshard_status rs_nccl_create(const rs_nccl_api *api, ncclComm_t nccl, bool borrowed, reshard_device device,
                              int64_t timeout_ms, rs_presence *presence, rs_nccl **out);
/* Ends the handle: the communicator now, and the rest with the last of its children. */
void rs_nccl_close(rs_nccl *c);

/* create.c: as rs_comm_ops.end tells. */
bool rs_nccl_stuck(const rs_nccl *c);

/* split.c */
reshard_status rs_nccl_make_part(reshard_comm comm, rs_split_group *group, reshard_comm *part);
/* A communicator of the group around what NCCL makes of it, which is waited for: made or not, nccl is taken care of.
 * call: NCCL's. */
reshard_status rs_nccl_create_part(rs_nccl *c, const char *call, ncclComm_t nccl, rs_split_group *group,
                                   reshard_comm *part);

/* shrink.c: aborts it where its revocation was through at the last call already. NCCL takes the word to end back then:
 * kernels that a graph brings later, or a busy stream comes to, wait for their peers for ever. */
void rs_nccl_stop(rs_nccl *c);
reshard_status rs_nccl_shrink(reshard_comm comm, rs_split_group *group, reshard_comm *part);

extern const rs_comm_ops rs_nccl_ops;

#endif
