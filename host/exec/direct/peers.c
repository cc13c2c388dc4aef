/* Descriptors between processes, and what they open. Both sides know alone which are passed on: those of the memory in
 * a rank's string that it has not passed on to the other one before. Messages have one descriptor each, and go in turns
 * of a few for each rank, so that no rank fills a connection that nobody empties. */
#include "exec/direct/peers.h"

#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TURN = 32 };

/* Memory of another rank. */
typedef struct peer_memory {
  rs_exported_memory memory;
  int fd;   /* until it was opened; -1: it was */
  void *at; /* NULL: not opened yet */
  int64_t users;
  bool gone; /* its owner has freed it */
} peer_memory;

typedef struct peer_rank {
  RS_VEC(peer_memory) memory; /* of that rank */
  RS_VEC(uint64_t) passed;    /* to it */
  int64_t settled;            /* of these; the others are passed on now */
} peer_rank;

/* Descriptors that are still to be passed on to a rank and by it. */
typedef struct passing {
  int64_t rank, next, last, missing;
} passing;

struct rs_peers {
  peer_rank *ranks;    /* [comm->size] */
  rs_peer_list *lists; /* [comm->size] */
  passing *passing;    /* [comm->size] */
};

static void close_memory(reshard_comm comm, const peer_memory *m) {
  if (m->at != NULL)
    comm->device->processes->close(comm->device, &m->memory, m->at);
  if (m->fd >= 0)
    close(m->fd);
}

static void free_peers(reshard_comm comm) {
  struct rs_peers *peers = comm->peers;
  for (int64_t r = 0; peers->ranks != NULL && r < comm->size; r++) {
    for (int64_t i = 0; i < peers->ranks[r].memory.n; i++)
      close_memory(comm, &peers->ranks[r].memory.at[i]);
    free(peers->ranks[r].memory.at);
    free(peers->ranks[r].passed.at);
  }
  free(peers->ranks);
  free(peers->lists);
  free(peers->passing);
  free(peers);
  comm->peers = NULL;
}

static reshard_status make_peers(reshard_comm comm) {
  if (comm->peers != NULL)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc_zero((void *)&comm->peers, 1, sizeof *comm->peers));
  comm->drop_peers = free_peers;
  reshard_status status = rs_alloc_zero(&comm->peers->ranks, comm->size, sizeof *comm->peers->ranks);
  RS_THEN(status, rs_alloc_zero(&comm->peers->lists, comm->size, sizeof *comm->peers->lists));
  RS_THEN(status, rs_alloc_zero(&comm->peers->passing, comm->size, sizeof *comm->peers->passing));
  if (status != RESHARD_SUCCESS)
    free_peers(comm);
  return status;
}

/* --- This rank's own ---------------------------------------------------------------------------------------------- */

static bool has_number(const uint64_t *numbers, int64_t n, uint64_t number) {
  for (int64_t i = 0; i < n; i++)
    if (numbers[i] == number)
      return true;
  return false;
}

/* Forgets what was freed. */
static void forget_freed(reshard_comm comm, peer_rank *p) {
  int64_t kept = 0;
  for (int64_t i = 0; i < p->passed.n; i++)
    if (comm->device->processes->file(p->passed.at[i]) >= 0)
      p->passed.at[kept++] = p->passed.at[i];
  p->passed.n = p->settled = kept;
}

reshard_status rs_peers_prepare(reshard_comm comm, int64_t most, uint64_t **live, int64_t *nlive) {
  int64_t all = 0, listed = 0;
  uint64_t *made;
  RS_TRY(make_peers(comm));
  for (int64_t r = 0; r < comm->size; r++) {
    peer_rank *p = &comm->peers->ranks[r];
    forget_freed(comm, p);
    RS_TRY(rs_vec_reserve(&p->passed, p->passed.n + most));
    all += p->passed.n;
  }
  RS_TRY(rs_alloc(&made, all, sizeof *made));
  for (int64_t r = 0; r < comm->size; r++) {
    const peer_rank *p = &comm->peers->ranks[r];
    for (int64_t i = 0; i < p->passed.n; i++)
      if (!has_number(made, listed, p->passed.at[i]))
        made[listed++] = p->passed.at[i];
  }
  *live = made;
  *nlive = listed;
  return RESHARD_SUCCESS;
}

rs_peer_list *rs_peers_lists(reshard_comm comm) { return comm->peers->lists; }

/* --- Passing on --------------------------------------------------------------------------------------------------- */

static rs_exported_memory memory_of(const rs_peer_list *list, int64_t i) {
  rs_exported_memory memory;
  memcpy(&memory, list->memory + i * list->stride, sizeof memory);
  return memory;
}

/* Passes on up to TURN descriptors that a rank lacks, from the *next memory of the list on. */
static reshard_status send_some(reshard_comm comm, int64_t rank, const rs_peer_list *mine, int64_t *next) {
  peer_rank *p = &comm->peers->ranks[rank];
  for (int sent = 0; sent < TURN && *next < mine->n; ++*next) {
    const rs_exported_memory memory = memory_of(mine, *next);
    if (!memory.by_file || has_number(p->passed.at, p->passed.n, memory.number))
      continue;
    RS_TRY(comm->ops->pass(comm, rank, memory.number, comm->device->processes->file(memory.number)));
    p->passed.at[p->passed.n++] = memory.number;
    sent++;
  }
  return RESHARD_SUCCESS;
}

static peer_memory *find_memory(peer_rank *p, uint64_t number) {
  for (int64_t i = 0; i < p->memory.n; i++)
    if (p->memory.at[i].memory.number == number)
      return &p->memory.at[i];
  return NULL;
}

/* Takes up to TURN descriptors that a rank passes on; *missing less. Those of a call that failed come once more. */
static reshard_status receive_some(reshard_comm comm, int64_t rank, int64_t *missing) {
  peer_rank *p = &comm->peers->ranks[rank];
  for (int left = TURN; left > 0 && *missing > 0; left--) {
    peer_memory made = {.fd = -1};
    RS_TRY(rs_vec_reserve(&p->memory, p->memory.n + 1));
    RS_TRY(comm->ops->take(comm, rank, &made.memory.number, &made.fd));
    if (find_memory(p, made.memory.number) != NULL) {
      close(made.fd);
      continue;
    }
    p->memory.at[p->memory.n++] = made;
    --*missing;
  }
  return RESHARD_SUCCESS;
}

/* Closes what a rank has freed, unless a binding is still of it. */
static void close_freed(reshard_comm comm, peer_rank *p, const rs_peer_list *list) {
  for (int64_t i = 0; i < p->memory.n;) {
    peer_memory *m = &p->memory.at[i];
    m->gone = true;
    for (int64_t k = 0; k < list->nlive && m->gone; k++)
      m->gone =
          memcmp(&m->memory.number, list->live + k * (int64_t)sizeof m->memory.number, sizeof m->memory.number) != 0;
    if (m->gone && m->users == 0) {
      close_memory(comm, m);
      *m = p->memory.at[--p->memory.n];
    } else {
      i++;
    }
  }
}

static int64_t count_missing(peer_rank *p, const rs_peer_list *list) {
  int64_t missing = 0;
  for (int64_t i = 0; i < list->n; i++) {
    const rs_exported_memory memory = memory_of(list, i);
    missing += memory.by_file && find_memory(p, memory.number) == NULL;
  }
  return missing;
}

static reshard_status pass_in_turns(reshard_comm comm, const rs_peer_list *mine, passing *with, int64_t n) {
  reshard_status status = RESHARD_SUCCESS;
  for (bool more = true; more;) {
    more = false;
    for (int64_t i = 0; i < n; i++) {
      reshard_status sent = send_some(comm, with[i].rank, mine, &with[i].next);
      if (sent != RESHARD_SUCCESS) /* the others are not to wait for theirs */
        with[i].next = with[i].last;
      status = status != RESHARD_SUCCESS ? status : sent;
      more |= with[i].next < with[i].last;
    }
    for (int64_t i = 0; i < n; i++) {
      reshard_status taken = receive_some(comm, with[i].rank, &with[i].missing);
      if (taken != RESHARD_SUCCESS)
        with[i].missing = 0;
      status = status != RESHARD_SUCCESS ? status : taken;
      more |= with[i].missing > 0;
    }
  }
  return status;
}

reshard_status rs_peers_pass(reshard_comm comm, const struct reshard_plan_s *plan) {
  struct rs_peers *peers = comm->peers;
  const rs_peer_list *mine = &peers->lists[comm->rank];
  int64_t n = 0;
  for (int64_t i = 0; i < plan->peers.n; i++) {
    const rs_peer *p = &plan->peers.at[i];
    passing with = {.rank = p->rank, .next = p->sent > 0 ? 0 : mine->n, .last = mine->n};
    if (p->rank == comm->rank)
      continue;
    if (p->received > 0) {
      close_freed(comm, &peers->ranks[p->rank], &peers->lists[p->rank]);
      with.missing = count_missing(&peers->ranks[p->rank], &peers->lists[p->rank]);
    }
    peers->passing[n++] = with;
  }
  return pass_in_turns(comm, mine, peers->passing, n);
}

void rs_peers_settle(reshard_comm comm, bool success) {
  for (int64_t r = 0; comm->peers != NULL && r < comm->size; r++) {
    peer_rank *p = &comm->peers->ranks[r];
    if (success)
      p->settled = p->passed.n;
    else
      p->passed.n = p->settled;
  }
}

/* --- Memory of others ------------------------------------------------------------------------------------------ */

reshard_status rs_peers_open(reshard_comm comm, int64_t rank, const rs_exported_memory *memory, void **at) {
  peer_memory *m = comm->peers != NULL ? find_memory(&comm->peers->ranks[rank], memory->number) : NULL;
  if (m == NULL)
    return rs_error(RESHARD_ERROR_MISMATCH, "rank %lld tells of memory that it has not passed on", (long long)rank);
  if (m->at == NULL) {
    RS_TRY(comm->device->processes->open(comm->device, memory, m->fd, &m->at));
    m->memory = *memory;
    close(m->fd);
    m->fd = -1;
  }
  m->users++;
  *at = m->at;
  return RESHARD_SUCCESS;
}

void rs_peers_close(reshard_comm comm, int64_t rank, uint64_t number) {
  peer_rank *p = &comm->peers->ranks[rank];
  peer_memory *m = find_memory(p, number);
  if (--m->users > 0 || !m->gone)
    return;
  close_memory(comm, m);
  *m = p->memory.at[--p->memory.n];
}
