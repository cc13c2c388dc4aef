/* The all-gather of ranks that are processes of the virtual GPU, as their program has it. */
#ifndef TESTS_VG_NODE_GATHER_H
#define TESTS_VG_NODE_GATHER_H

#include <reshard/comm.h>

#include <pthread.h>
#include <string.h>

enum { NODE_RANKS = 3 };

typedef struct node_gather {
  pthread_mutex_t mutex;
  pthread_cond_t moved;
  int came, meetings;
  char shown[NODE_RANKS][4096];
} node_gather;

/* One rank, the user of its all-gather. */
typedef struct node_gatherer {
  node_gather *gather;
  int64_t rank;
} node_gatherer;

static inline void node_gather_begin(node_gather *g) {
  pthread_mutex_init(&g->mutex, NULL);
  pthread_cond_init(&g->moved, NULL);
}

static inline void node_gather_end(node_gather *g) {
  pthread_mutex_destroy(&g->mutex);
  pthread_cond_destroy(&g->moved);
}

/* Returns when all ranks have come. */
static inline void node_gather_meet(node_gather *g) {
  pthread_mutex_lock(&g->mutex);
  int meeting = g->meetings;
  if (++g->came == NODE_RANKS) {
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
  for (int r = 0; r < NODE_RANKS; r++)
    memcpy((char *)all + (size_t)r * bytes, me->gather->shown[r], bytes);
  node_gather_meet(me->gather);
  return RESHARD_SUCCESS;
}

#endif
