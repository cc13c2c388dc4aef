/* Random cases (bench/verify/cases.h) on devices with streams. Uploads, executes and downloads are given to streams one
 * after the other, and the host waits once, at the end: nothing but the order of streams stands between what a user
 * does with his arrays and an execute. */
#ifndef TESTS_STREAMED_H
#define TESTS_STREAMED_H

#include "bench/verify/cases.h"

#include "device/device.h"

typedef enum streamed_drive {
  STREAMED_THREADS, /* every rank a thread with a stream of its own */
  STREAMED_ONCE,    /* the same, without a transfer: rs_execute_once */
  STREAMED_ALL,     /* one thread, one stream */
  STREAMED_GRAPH    /* the same, captured once and launched for each execute */
} streamed_drive;

typedef struct streamed {
  const reshard_device *devices;
  int64_t ndevices;
  reshard_path path;
  streamed_drive drive;
  int executes;
  bool rebind;        /* other arrays before the last execute */
  bool shared_handle; /* all give this handle: a default stream, of the device or of the thread */
  void *handle;
  /* STREAMED_GRAPH: all that is given to stream between the first two goes into a graph, which launch runs. */
  reshard_status (*capture)(void *user, void *stream);
  reshard_status (*captured)(void *user, void *stream);
  reshard_status (*launch)(void *user, void *stream);
  void (*end)(void *user); /* of the graph, if there is one */
  void *user;
  /* Called around what has to be free of allocations and synchronisations; may be NULL. */
  void (*watch)(void *user, bool on);
  void (*calm)(
      void *user); /* no call is to fail any more: the test waits for the streams and takes down; may be NULL */
  void (*touch)(void *at, size_t n,
                bool write); /* the host is about to write, or to read, pinned memory; may be NULL */
  int64_t (*pending)(void);  /* what streams have still to do; may be NULL */
  int64_t ranks;             /* 0: the case's own */
  bool rounds;               /* as many as can be */
  int64_t executed;          /* counts up */
  int64_t rounds_most;       /* rounds of a rank's plan, the most there were */
  int64_t left;              /* counts up: what was pending when the streams that were given had come to their ends */
} streamed;

/* True when all was right; else what was not, first. status (may be NULL): of the first call that failed. */
bool streamed_case(streamed *s, const case_plan *c, cli_text *why, reshard_status *status);
enum { STREAMED_ROWS = 60, STREAMED_COLUMNS = 48 };
/* A case made by hand: an f32 matrix of 60 x 48 from one layout to another on n ranks. dim >= 0: chunk(dim); else
 * cyclic(1xn;AxB) of the block. limit, window: workspace limit and peers per round. To be freed by case_free. */
typedef struct streamed_side {
  int dim;
  int64_t block[2];
} streamed_side;
void streamed_make(int64_t n, streamed_side src, streamed_side dst, int64_t limit, int64_t window, case_plan *c);

/* Gives a case the least workspace there is, and one peer a round in every second one: as many rounds as can be. */
void streamed_force_rounds(case_plan *c);

/* The case of a seed. */
bool streamed_seed(streamed *s, uint64_t seed, cli_text *why, reshard_status *status);

/* One case in every way in which streams are used. */
typedef struct streamed_way {
  const char *name;
  reshard_path path;
  streamed_drive drive;
  int64_t devices, ranks;
  streamed_side src, dst;
  int64_t limit, window;
  int64_t edges; /* records and waits of an execute; -1: as many as there are */
} streamed_way;
extern const streamed_way streamed_ways[];
extern const int streamed_nways;
/* s->devices and what it wants to be told are given; the way has the rest. */
bool streamed_run_way(streamed *s, const streamed_way *way, cli_text *why, reshard_status *status);

#endif
