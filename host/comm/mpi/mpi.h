/* Inside of the MPI communicator: one rank of an MPI_Comm.
 *
 * MPI has no deadline, and its MPI_Abort ends the job. A request that is matched can not be taken back. So each wait is
 * a loop of tests. It looks at the clock, and at a tag on which a rank that has ended tells the others why. Memory of a
 * request is the communicator's, and stays with it until the request is done, whatever the caller was told. */
#ifndef RS_COMM_MPI_H
#define RS_COMM_MPI_H

#include "comm/split.h"
#include "device/cpu/segment.h"

#include <mpi.h>
#include <pthread.h>
#include <reshard/mpi.h>

enum { RS_MPI_BLOCK = 1 << 20 };
/* Tags of one communicator, after RS_MPI_TAGS times its number. */
enum { RS_MPI_TAG_RECORD, RS_MPI_TAG_DATA, RS_MPI_TAG_REST, RS_MPI_TAG_NOTE, RS_MPI_TAG_SHRINK, RS_MPI_TAGS };
/* Notes to the others: it ends; this rank is out; it was aborted after its end, also by them. */
enum { RS_MPI_NOTE_END, RS_MPI_NOTE_OUT, RS_MPI_NOTE_ABORT, RS_MPI_NOTES };
/* Requests that each rank has with each other one: its record, this rank's, and what it sends beside them. */
enum {
  RS_MPI_TALK_THEIRS,
  RS_MPI_TALK_OURS,
  RS_MPI_TALK_NOTES,
  RS_MPI_TALK_LOSS = RS_MPI_TALK_NOTES + RS_MPI_NOTES,
  RS_MPI_TALK_ANSWER,
  RS_MPI_TALKS
};
enum { RS_MPI_MOMENT_MS = 250 }; /* of a wait that begins where the deadline of its call ends */

typedef struct rs_mpi rs_mpi;

/* A rank tells the others that the communicator has ended, and why; or for whom it waits. */
typedef struct rs_mpi_note {
  int32_t status; /* what it tells its caller; RESHARD_SUCCESS: it waits, and the communicator goes on */
  bool aborted;   /* with all that was split from it */
  bool out;       /* the rank has no message under way into memory of its caller */
  bool in_part;   /* it waits on what was split from the communicator */
  int64_t probe;  /* that it answers */
  char text[RS_COMM_RECORD];
  unsigned char missing[]; /* [size] of 0 or 1: the ranks that it waited for */
} rs_mpi_note;

/* A flag of a rank, in its memory file (nodes.c). */
typedef struct rs_mpi_flag {
  rs_shared_place segment; /* no bytes: the rank has none */
  int64_t inside;          /* the segment */
  long long value;         /* as long as the rank has the communicator and goes on with it */
} rs_mpi_flag;

/* As much of it travels as the rank has of `record`, and room is for all, so that different calls see each other. */
typedef struct rs_mpi_record {
  rs_mpi_flag flag; /* of the rank */
  rs_visit visit;
} rs_mpi_record;

/* A duplicate of the caller's communicator. It is shared by the communicator made of it and all that are split from
 * that, which have tags of their own: MPI has no split that can be given up. */
typedef struct rs_mpi_link {
  pthread_mutex_t tree; /* of the splits; and of why they end */
  MPI_Comm mpi;
  MPI_Request made;   /* of MPI_Comm_idup, which writes to mpi */
  MPI_Datatype block; /* of RS_MPI_BLOCK bytes */
  int64_t *nodes;     /* [size] lowest rank on the rank's node; NULL: ranks do not share memory */
  int64_t numbers;    /* communicators that MPI has tags for */
  atomic_int users;
  atomic_llong next;         /* number of the next communicator, as far as this rank knows */
  _Atomic(rs_mpi *) pending; /* destroyed with requests that are not done; each is a user */
  atomic_bool stays;         /* a rank may never come to free the duplicate, or a message on it may come after that */
  /* Where MPI lets one thread in at a time, over all communicators of the duplicate; see tell_soon. */
  atomic_int inside;  /* threads in calls */
  atomic_int telling; /* threads that tell an end, or look who does */
  /* Of a creation for which a rank has no memory, this one's and another's; see create.c. */
  rs_mpi_record refusal[2];
  _Atomic(rs_mpi *) unsent; /* ended; the thread that is inside sends their notes; each is a user of itself */
} rs_mpi_link;

/* Memory that a request may still read or write. */
typedef struct rs_mpi_memory {
  struct rs_mpi_memory *next;
  void *at; /* the device's */
} rs_mpi_memory;

/* A flag of another rank on this node. */
typedef struct rs_mpi_seen_flag {
  const atomic_llong *at; /* NULL: none is mapped */
  rs_mpi_flag flag;
} rs_mpi_seen_flag;

/* A failure probe: before a deadline passes, ranks that wait tell each other for whom (probe.c). */
typedef struct rs_mpi_probe {
  atomic_llong number;        /* of the last one that this rank knows of; 0: there was none */
  int64_t begun;              /* when it came to know of it */
  atomic_llong answered;      /* the last one that it has taken part in */
  atomic_flag answering;      /* a thread of this rank tells the others */
  int64_t wait, from;         /* begin of its wait; the time since which answers count for that, or 0 */
  int64_t *waiting, *awaited; /* [size] when a rank has told last that it waits; when one has that it waits for it */
  int64_t *deciding;          /* [size] when a rank has told last that it waits in a call on this communicator */
} rs_mpi_probe;

struct rs_mpi {
  struct reshard_comm_s base; /* its global ranks are those in the duplicate */
  rs_mpi_link *link;
  int64_t number;
  reshard_device handle;
  atomic_bool ended;                       /* set under the link's mutex, once why is */
  atomic_bool inside;                      /* a thread is in a call on it, and will see `ended` */
  atomic_bool waits;                       /* the thread that is inside sends it */
  rs_mpi *next_unsent;                     /* of the link's */
  atomic_bool sent[RS_MPI_NOTES];          /* the others have the note */
  atomic_bool aborts;                      /* the third note is to be sent */
  atomic_flag hearing;                     /* a thread takes notes */
  struct rs_mpi *parent, *children, *next; /* the tree of splits, under the link's mutex: an abort goes down */
  atomic_int users;
  rs_mpi_record *records; /* [size + 1], the last is this rank's own */
  rs_mpi_note *why;       /* once ended; more may be missing later, under the link's mutex */
  rs_mpi_note *notes[RS_MPI_NOTES];
  rs_mpi_note *received;   /* from another */
  rs_mpi_note *answer;     /* to the others: this rank waits */
  rs_mpi_probe probe;      /* under the link's mutex, but for what this rank's call alone has */
  bool *out;               /* [size]: the rank has said so */
  bool *missing;           /* [size]: of a step that is late */
  char *gathered;          /* [size * RS_COMM_RECORD]: what the caller of an all-gather sees */
  atomic_llong *flag;      /* this rank's, where it has imports */
  rs_mpi_flag own_flag;    /* the same, for the others */
  rs_mpi_seen_flag *flags; /* [size] the others'; NULL: no record has come yet */
  bool due;                /* the meeting of `combine` has begun, and was not ended: its records use `talks` */
  bool node_due;           /* the same of the meeting of the node, which was begun beside messages */
  rs_loss loss;            /* to the others of the shrink that makes it */
  MPI_Request *talks;      /* [RS_MPI_TALKS * size] */
  int64_t reserved;        /* messages each way of one exchange */
  MPI_Request *requests;   /* [4 * reserved]: two a message; receives first */
  int nrequests;           /* of the last exchange */
  int *done;               /* [4 * max(reserved, size)] indices of MPI_Testsome */
  MPI_Status *statuses;    /* [the same] */
  rs_mpi_memory *memories; /* for requests that are not done */
};

static inline rs_mpi *rs_mpi_of(reshard_comm comm) { return (rs_mpi *)comm; }
static inline int rs_mpi_rank(const rs_mpi *c, int64_t rank) {
  return (int)(c->base.global_ranks != NULL ? c->base.global_ranks[rank] : rank);
}
/* Rank of the communicator with this rank in the duplicate; its size: none. */
static inline int64_t rs_mpi_find_rank(const rs_mpi *c, int there) {
  int64_t r = 0;
  while (r < c->base.size && rs_mpi_rank(c, r) != there)
    r++;
  return r;
}
static inline MPI_Request *rs_mpi_talks(const rs_mpi *c, int64_t talk) { return c->talks + talk * c->base.size; }
static inline int rs_mpi_tag(const rs_mpi *c, int tag) { return (int)(c->number * RS_MPI_TAGS) + tag; }
/* The deadline of a wait that has begun at `since` counts from here: from where its call has begun, where that has one
 * deadline. A wait that begins near its end, or after it, has a moment of its own: whoever has given up by then tells
 * why, and ranks that are there have come. A call has few waits. */
static inline int64_t rs_mpi_waits_from(const rs_mpi *c, int64_t since) {
  const int64_t moment = rs_min(c->base.timeout_ms / 4, RS_MPI_MOMENT_MS);
  if (c->base.meets.begun == 0)
    return since;
  return rs_max(c->base.meets.begun, since - (c->base.timeout_ms - moment) * 1000000);
}
static inline size_t rs_mpi_note_bytes(int64_t size) { return sizeof(rs_mpi_note) + (size_t)size; }

/* create.c. RESHARD_ERROR_UNSUPPORTED where libreshard is not of this library's build. */
reshard_status rs_mpi_check_build(void);
/* One more user of the link, also when it fails. global_ranks (NULL: the same numbers) is taken on success.
 * The device and all that follows from options is for the caller to set. */
reshard_status rs_mpi_create(rs_mpi_link *link, int64_t size, int64_t rank, int64_t *global_ranks, rs_mpi **out);

/* split.c */
reshard_status rs_mpi_make_part(reshard_comm comm, struct rs_split_group *group, reshard_comm *part);

/* table.c: ends the meeting that is due, if one is, in which ranks find out that they execute one transfer; within
 * rs_mpi_begin and rs_mpi_end. An error of the comparison is the same on all ranks, and the communicator goes on. Not
 * waits: only if all have come. */
reshard_status rs_mpi_meet(rs_mpi *c, bool waits);
/* Begins the meeting of the node, after this rank has read memory of others there; within rs_mpi_begin and rs_mpi_end.
 */
reshard_status rs_mpi_begin_node(rs_mpi *c, uint64_t key);

/* messages.c */
reshard_status rs_mpi_exchange(int64_t n, const rs_exchange *exchanges, int64_t total_bytes);
reshard_status rs_mpi_reserve(reshard_comm comm, int64_t most);
void rs_mpi_retire(reshard_comm comm, void *memory);
reshard_status rs_mpi_make_type(reshard_comm comm, int64_t runs, int64_t run, int64_t stride, void **type);
void rs_mpi_free_type(reshard_comm comm, void *type);

extern const rs_comm_ops rs_mpi_ops;

#endif
