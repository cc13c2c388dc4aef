/* Inside of the local communicator: ranks that are threads of one process. */
#ifndef RS_COMM_LOCAL_H
#define RS_COMM_LOCAL_H

#include "comm/comm.h"
#include "device/cpu/threads.h"

#include <pthread.h>
#include <time.h>

typedef reshard_status (*rs_team_run)(int64_t n, void **all);

/* A rank had not come when a deadline passed; or has destroyed its handle. */
enum { RS_THERE, RS_LATE, RS_DEAD };

/* State that the ranks of one communicator share. */
typedef struct rs_team {
  rs_forkable forkable;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int64_t n;     /* ranks */
  int64_t users; /* handles not destroyed yet, teams split from this one, and who makes it */
  int64_t arrived;
  uint64_t generation; /* meetings held */
  int64_t readers;     /* ranks between enter and leave */
  bool running;
  atomic_bool ended;
  char why[384]; /* under the mutex: error of those who come after the end */
  bool late;     /* under the mutex, as the next: it ended by a deadline */
  char *gone;    /* [n]: RS_THERE, RS_LATE, RS_DEAD */
  struct {
    int64_t came;
    uint64_t held;         /* shrinks that have ended */
    rs_saved_error result; /* of the last one */
  } shrink;                /* under the mutex; uses slots and runs after the end */
  int64_t timeout_ms;
  void **slots;
  rs_team_run *runs;
  rs_saved_error result;   /* of the last meeting */
  rs_device *device;       /* a CPU of its own, where the caller gave no devices */
  reshard_device *handles; /* [nhandles]: those that the caller gave, kept */
  int64_t nhandles;
  rs_device **lanes; /* [nlanes] of at most n: see reshard_comm_s */
  int64_t nlanes, *lane_ranks;
  char *records;    /* [n * RS_COMM_RECORD] of an all-gather */
  int64_t reserved; /* messages that one exchange can have */
  rs_relay *links;  /* of one exchange */
  rs_span *spans;
  rs_program **programs;

  int64_t *global_ranks;    /* NULL: the same numbers */
  struct rs_team *parent;   /* which it was split from, and whose devices it uses; NULL: they are its own */
  struct rs_team *children; /* split from it; under its mutex, which is taken before a child's */
  struct rs_team *next;     /* child of the same parent */
} rs_team;

typedef struct rs_local_comm {
  struct reshard_comm_s base;
  rs_team *team;
} rs_local_comm;

static inline rs_team *rs_team_of(reshard_comm comm) { return ((rs_local_comm *)comm)->team; }

extern const rs_comm_ops rs_local_ops;

/* A team without a device, with one user: the caller. */
reshard_status rs_team_create(int64_t n, int64_t timeout_ms, rs_team **team);
/* One more user: the handle of a rank whose arrays are on the device. Ranks are seated in ascending order, and lack the
 * number of lanes and `direct`. The team has its table of global ranks. */
reshard_status rs_team_add_rank(rs_team *team, int64_t rank, rs_device *device, reshard_comm *comm);
/* Lets the GPUs of a team with all its ranks reach each other's memory, if they can. */
reshard_status rs_team_connect(rs_team *team, bool *direct);
/* One user less; the last one frees. */
void rs_team_release(rs_team *team);

/* Ends a team and those split from it. The mutex is held; a parent's, where it is held, keeps it from being freed. */
void rs_team_end(rs_team *team, const char *why);
/* Sleeps until something has changed, a deadline has passed, or it is time for the caller's function, which is called
 * then. The mutex is held, but for that. Returns whether the deadline of a wait since then has passed. */
bool rs_team_sleep(reshard_comm comm, int64_t since);

/* exchange.c */
reshard_status rs_local_exchange(int64_t n, const rs_exchange *exchanges, int64_t total_bytes);
reshard_status rs_local_reserve(reshard_comm comm, int64_t most);

/* split.c */
reshard_status rs_local_make_part(reshard_comm comm, struct rs_split_group *group, reshard_comm *part);

#endif
