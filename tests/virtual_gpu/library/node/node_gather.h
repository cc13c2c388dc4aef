/* Ranks that are processes of the virtual GPU: their run, and their all-gather, as their program has it. */
#ifndef TESTS_VG_NODE_GATHER_H
#define TESTS_VG_NODE_GATHER_H

#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#include <reshard/comm.h>

#include <pthread.h>
#include <string.h>

enum { NODE_RANKS = 3, NODE_MOST_RANKS = 4 };

typedef struct node_gather {
  pthread_mutex_t mutex;
  pthread_cond_t moved;
  int ranks; /* NODE_RANKS at first */
  int came, meetings;
  char shown[NODE_MOST_RANKS][4096];
} node_gather;

/* One rank, the user of its all-gather. */
typedef struct node_gatherer {
  node_gather *gather;
  int64_t rank;
} node_gatherer;

static inline void node_gather_begin(node_gather *g) {
  memset(g, 0, sizeof *g);
  g->ranks = NODE_RANKS;
  pthread_mutex_init(&g->mutex, NULL);
  pthread_cond_init(&g->moved, NULL);
}

static inline void node_gather_end(node_gather *g) {
  pthread_mutex_destroy(&g->mutex);
  pthread_cond_destroy(&g->moved);
}

/* Runs all ranks, a thread each, on a virtual GPU of its own, with a gather that is new. Returns the reports. */
static inline int node_ranks_run(node_gather *g, const vg_options *options, void (*body)(void *user, int64_t rank),
                                 void *user) {
  node_gather_begin(g);
  vg_begin(options);
  rank_threads_run(NODE_RANKS, body, user);
  int reports = vg_end();
  node_gather_end(g);
  return reports;
}

/* The same as a vg_scenario, for edges that are left out. */
typedef struct node_scenario {
  node_gather *gather;
  void (*body)(void *user, int64_t rank);
  void *user;
} node_scenario;

static inline void node_scenario_run(void *scenario, const vg_options *options) {
  const node_scenario *s = scenario;
  (void)node_ranks_run(s->gather, options, s->body, s->user);
}

/* Returns when all ranks have come. */
static inline void node_gather_meet(node_gather *g) {
  pthread_mutex_lock(&g->mutex);
  int meeting = g->meetings;
  if (++g->came == g->ranks) {
    g->came = 0;
    g->meetings++;
    pthread_cond_broadcast(&g->moved);
  }
  while (meeting == g->meetings)
    pthread_cond_wait(&g->moved, &g->mutex);
  pthread_mutex_unlock(&g->mutex);
}

/* A reshard_allgather; user: a node_gatherer. */
static inline reshard_status node_gather_all(void *user, const void *mine, size_t bytes, void *all) {
  const node_gatherer *me = user;
  memcpy(me->gather->shown[me->rank], mine, bytes);
  node_gather_meet(me->gather);
  for (int r = 0; r < me->gather->ranks; r++)
    memcpy((char *)all + (size_t)r * bytes, me->gather->shown[r], bytes);
  node_gather_meet(me->gather);
  return RESHARD_SUCCESS;
}

#endif
