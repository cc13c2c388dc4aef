/* Losing one rank of a communicator in a step of its work, and judging how the others take it: written once, and run by
 * threads of a process, processes of a node, ranks of mpirun and ranks over NCCL. A transport says how ranks are
 * started, joined and stopped, how they make a communicator, and where their memory is.
 *
 * Each rank makes the step once where nobody is lost, which counts the places that it passes: work of its device, calls
 * of what is below the communicator. The seed draws one of the victim's, before the first one included; a victim that
 * does not come to it is lost after the step. Then all meet. The others have an error that names the victim, by the
 * deadline. Their memory is theirs from then on. They go on without the victim, and have nothing left behind. */
#ifndef TESTS_LOSSES_H
#define TESTS_LOSSES_H

#include <reshard/sharded.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* By the names of the rows of profiles/results/stops.md. */
typedef enum loss_step {
  LOSS_MAKE,
  LOSS_CREATE,
  LOSS_DELAYED, /* "create", at its first place */
  LOSS_JOIN,
  LOSS_MEET,
  LOSS_SPLIT,
  LOSS_TRANSFER,
  LOSS_FIRST, /* "create", of a transfer */
  LOSS_BIND,
  LOSS_REBIND,
  LOSS_EXECUTE,
  LOSS_TRANSPOSE, /* "execute", from rows to columns */
  LOSS_STRIDED,
  LOSS_COPY,
  LOSS_PACK,
  LOSS_EXCHANGE,
  LOSS_UNPACK,
  LOSS_FIRST_EXECUTE, /* before the first of two executes, whose streams the host does not wait for */
  LOSS_SECOND_EXECUTE,
  LOSS_BARRIER, /* behind both */
  LOSS_WITHIN_FIRST_EXECUTE,
  LOSS_WITHIN_SECOND_EXECUTE,
  LOSS_REDISTRIBUTE,
  LOSS_DESTROY,
  LOSS_END,
  LOSS_ABORT,
  LOSS_ABORT_STRIDED,
  LOSS_STEPS
} loss_step;

/* FAILS is the way of the steps that are within an execute, ABORTS of those that are aborted.
 * - KILL: its process is killed. STOP: stopped, until the others have gone on. LATE: it sleeps for two deadlines.
 * - GONE: it comes when the others have gone on. IN_TIME: late by less than the deadline, which is no loss.
 * - LEAVES: it destroys its handle. ABORTS: another thread of it aborts while it makes the call. FAILS: a call of its
 *   device fails, and it waits for the others. */
typedef enum loss_way {
  LOSS_KILL,
  LOSS_STOP,
  LOSS_LATE,
  LOSS_GONE,
  LOSS_IN_TIME,
  LOSS_LEAVES,
  LOSS_ABORTS,
  LOSS_FAILS,
  LOSS_WAYS
} loss_way;

/* Kinds of places. */
enum { LOSS_PREPARES = 1, LOSS_LAUNCHES = 2, LOSS_CALLS = 4, LOSS_MESSAGES = 8, LOSS_TURNS = 16 };
enum { LOSS_MOST = 32, LOSS_GUARD = 64 /* bytes behind the destination */ };
/* Communicators of a trial. */
typedef enum loss_which { LOSS_ALL, LOSS_REHEARSAL, LOSS_REST, LOSS_COMMS } loss_which;

typedef struct loss_trial loss_trial;
typedef struct loss_rank loss_rank;

typedef struct loss_transport {
  const char *where;     /* first column of the rows */
  const char *aborts;    /* name of LOSS_ABORTS there */
  uint32_t steps, ways;  /* bits of those that it has */
  int64_t rows, columns; /* of the tensor of bytes that moves */
  int64_t limit;         /* of the workspace, in half of the trials */
  int64_t patience_ms;   /* deadline of what is no loss; 0: the trial's */
  int64_t spare_ms;      /* calls that last so much longer than the deadline have failed */
  int64_t most;          /* places, of a rank that polls; 0: any number */
  bool asynchronous;     /* memory is of GPUs; the caller's when the transfer is destroyed */
  bool gathers;          /* a communicator is made by an all-gather of the caller's, which has no deadline */
  bool hears;            /* that a process has died, before the deadline */
  bool told;             /* paths */
  bool borrowed;         /* the communicator is the caller's, who ends it; it does not shrink */
  bool approximate;      /* on a busy machine others are missing, too, or in its place */
  const char *unnamed;   /* error before ranks know each other; NULL: none */
  int64_t (*deadline)(const loss_trial *t);
  void (*run)(loss_trial *t);        /* starts the ranks, each of which calls loss_rank_run, and joins them */
  void (*begin)(loss_rank *me);      /* sets device, stream, own */
  void (*end)(loss_rank *me);        /* loss_rank_drop, then gives back what begin has set */
  void (*left)(loss_rank *me);       /* checks that nothing is left */
  void (*fail)(int64_t call);        /* from here on the thread's call with this number fails; 0: none */
  void (*wait)(const loss_rank *me); /* for some time, in which others go on: also a victim that was stopped */
  bool (*is_dead)(const loss_rank *me, int rank); /* NULL: the killed victim alone */
  reshard_status (*make)(loss_rank *me, loss_which which, int64_t timeout_ms, reshard_comm *comm);
  reshard_status (*shrink)(loss_rank *me, reshard_comm *rest); /* NULL: the library's */
  int (*agree)(int failures);                                  /* of all ranks; NULL: one process knows all */
  /* Memory; all NULL: the process's own, of which a source can be taken away. */
  char *(*alloc)(loss_rank *me, size_t bytes, bool source);
  void (*release)(loss_rank *me, char *at, size_t bytes, bool source);
  void (*copy)(loss_rank *me, void *dst, const void *src, size_t bytes);
} loss_transport;

/* Counts of one step: a line of profiles/results/stops.md, which `./run soak` collects. */
typedef struct loss_counts {
  _Atomic int64_t stops;   /* ranks that were lost */
  _Atomic int64_t errors;  /* calls of others that returned one */
  _Atomic int64_t wrong;   /* bytes of the caller's memory that were written after that */
  _Atomic int64_t late;    /* calls that outlasted the deadline by more than a second */
  _Atomic int64_t unnamed; /* errors without the lost rank alone, or the call; approximate: without any rank */
} loss_counts;

/* Counts of all ranks, in memory that they share. */
typedef struct loss_board {
  _Atomic int64_t state[LOSS_MOST]; /* of each rank, which grows from trial to trial */
  _Atomic int64_t without;          /* the trial in which a rank that is there has no communicator */
  _Atomic int64_t errors, exact;    /* of all trials; those that name the lost rank alone */
  _Atomic int failures;
  _Atomic int64_t longest_ms;
  loss_counts counts[LOSS_WAYS][LOSS_STEPS];
} loss_board;

/* Its choices are the same on all ranks. */
struct loss_trial {
  const loss_transport *transport;
  loss_board *board;
  int n, victim;
  loss_step step;
  loss_way way;
  int64_t number, deadline_ms;
  uint64_t seed, place;               /* place: drawn of all numbers */
  bool limited, packed, apart, drops; /* apart: the rehearsal has a communicator of its own */
};

struct loss_rank {
  const loss_trial *t;
  int number;
  reshard_device device;
  void *stream;
  void *own; /* the transport's */
  reshard_comm comm, sub;
  char *src, *dst, *other; /* other: destination where nobody is lost */
  reshard_layout from, to;
  reshard_plan plan;
  reshard_transfer transfer;
  reshard_sharder sharder;
  reshard_sharded_tensor tensor;
  int64_t since; /* of its call */
};

#define LOSS_CHECK(me, condition, ...) \
  do \
    if (!(condition)) \
      loss_failed(me, __FILE__, __LINE__, #condition, __VA_ARGS__); \
  while (0)
void loss_failed(const loss_rank *me, const char *file, int line, const char *condition, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* A rank of a trial, on the thread or in the process that is this rank. */
void loss_rank_run(const loss_trial *t, int number);
/* Drops what is on the communicator, and it. */
void loss_rank_drop(loss_rank *me);
/* Tells whether a victim that was stopped goes on: the others have gone on without it. */
bool loss_rank_resumes(const loss_rank *me);
/* A place of this kind: the victim may be lost here. */
void loss_pass(int kind);
/* The device's work counts from here on; also its memory and streams where it has streams. */
void loss_count_device(reshard_device device);

/* Loses ranks, so many in each step in each way that are named between commas (NULL: all), and returns how many checks
 * have failed. of: one in so many pairs of step and way; other ones with the next seed. */
int loss_run(const loss_transport *transport, loss_board *board, int n, int64_t trials, uint64_t seed, const char *in,
             const char *ways, int of);
/* The rows; one of them. */
void loss_report(const loss_transport *transport, const loss_board *board);
void loss_counts_print(const char *where, const char *way, const char *step, const loss_counts *counts);
loss_board *loss_board_make(void); /* shared with processes that this one starts */

#endif
