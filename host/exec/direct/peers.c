/* Descriptors between processes, and what they open. Both sides know alone which are passed on: those of the memory in
 * a rank's string that it has not passed on to the other one before. All these messages are sent and taken, also by a
 * rank that has failed: none is left for a later call. Each has one descriptor, which is made when it is sent, and
 * closed then and where it was opened. Messages go in turns of a few for each rank, and none is waited for alone: the
 * system limits what a process has open, and what is under way. */
#include "exec/direct/peers.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TURN = 4 };

/* Memory of another rank. */
typedef struct peer_memory {
  rs_exported_memory memory;
  void *at;
  int64_t users;
  bool fresh; /* it has come in a call that is not settled yet */
  bool gone;  /* its owner has freed it */
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
  uint64_t freed;      /* as rs_device_processes.freed was when this rank looked for what it has freed last */
  bool unpublished;    /* it has found some, and others have not heard of it */
  int64_t gone;        /* memory of others that bindings still have, and that its owner has freed */
};

static void close_memory(reshard_comm comm, const peer_memory *m) {
  comm->device->processes->close(comm->device, &m->memory, m->at);
}

static void free_peers(reshard_comm comm) {
  struct rs_peers *peers = comm->memory.peers;
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
  comm->memory.peers = NULL;
}

static reshard_status make_peers(reshard_comm comm) {
  if (comm->memory.peers != NULL)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc_zero((void *)&comm->memory.peers, 1, sizeof *comm->memory.peers));
  comm->memory.drop_peers = free_peers;
  reshard_status status = rs_alloc_zero(&comm->memory.peers->ranks, comm->size, sizeof *comm->memory.peers->ranks);
  RS_THEN(status, rs_alloc_zero(&comm->memory.peers->lists, comm->size, sizeof *comm->memory.peers->lists));
  RS_THEN(status, rs_alloc_zero(&comm->memory.peers->passing, comm->size, sizeof *comm->memory.peers->passing));
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
    if (comm->device->processes->there(p->passed.at[i]))
      p->passed.at[kept++] = p->passed.at[i];
  comm->memory.peers->unpublished |= kept < p->passed.n;
  p->passed.n = p->settled = kept;
}

/* Asks for each only where the process has freed any at all. */
bool rs_peers_have_freed(reshard_comm comm) {
  struct rs_peers *peers = comm->memory.peers;
  uint64_t freed;
  if (peers == NULL || peers->unpublished)
    return peers != NULL;
  freed = comm->device->processes->freed();
  if (freed == peers->freed)
    return false;
  for (int64_t r = 0; r < comm->size; r++)
    for (int64_t i = 0; i < peers->ranks[r].passed.n; i++)
      if (!comm->device->processes->there(peers->ranks[r].passed.at[i]))
        return true;
  peers->freed = freed;
  return false;
}

reshard_status rs_peers_prepare(reshard_comm comm, int64_t most, uint64_t **live, int64_t *nlive) {
  int64_t all = 0, listed = 0;
  uint64_t *made, freed = comm->device->processes->freed();
  RS_TRY(make_peers(comm));
  for (int64_t r = 0; r < comm->size; r++) {
    peer_rank *p = &comm->memory.peers->ranks[r];
    forget_freed(comm, p);
    RS_TRY(rs_vec_reserve(&p->passed, p->passed.n + most));
    all += p->passed.n;
  }
  RS_TRY(rs_alloc(&made, all, sizeof *made));
  comm->memory.peers->freed = freed;
  for (int64_t r = 0; r < comm->size; r++) {
    const peer_rank *p = &comm->memory.peers->ranks[r];
    for (int64_t i = 0; i < p->passed.n; i++)
      if (!has_number(made, listed, p->passed.at[i]))
        made[listed++] = p->passed.at[i];
  }
  *live = made;
  *nlive = listed;
  return RESHARD_SUCCESS;
}

rs_peer_list *rs_peers_lists(reshard_comm comm) { return comm->memory.peers->lists; }

/* --- Passing on --------------------------------------------------------------------------------------------------- */

static rs_exported_memory memory_of(const rs_peer_list *list, int64_t i) {
  rs_exported_memory memory;
  memcpy(&memory, list->memory + i * list->stride, sizeof memory);
  return memory;
}

/* Descriptors that a call passes on. */
typedef struct pass_state {
  const rs_peer_list *mine;
  int64_t since;        /* something has moved last */
  bool refused;         /* a descriptor could not be passed on: messages go without from then on */
  rs_saved_error first; /* nothing is opened from then on */
} pass_state;

/* Passes on memory of this rank, or tells that it cannot. */
static reshard_status send_one(reshard_comm comm, int64_t rank, uint64_t number, pass_state *s, bool *done) {
  int fd = -1;
  reshard_status made = RESHARD_SUCCESS;
  if (!s->refused)
    made = comm->device->processes->file(comm->device, number, &fd);
  rs_error_save(&s->first, made);
  reshard_status status = comm->ops->neighbours->pass(comm, rank, s->since, number, fd, done);
  s->refused |= made != RESHARD_SUCCESS || status != RESHARD_SUCCESS;
  if (fd >= 0)
    close(fd);
  return status;
}

/* Passes on up to TURN descriptors that a rank lacks, from the next memory of the list on. */
static void send_some(reshard_comm comm, passing *with, pass_state *s) {
  peer_rank *p = &comm->memory.peers->ranks[with->rank];
  for (int sent = 0; sent < TURN && with->next < with->last; with->next++) {
    const rs_exported_memory memory = memory_of(s->mine, with->next);
    bool done;
    if (!memory.by_file || has_number(p->passed.at, p->passed.n, memory.number))
      continue;
    reshard_status status = send_one(comm, with->rank, memory.number, s, &done);
    rs_error_save(&s->first, status);
    if (!done) {
      if (status != RESHARD_SUCCESS)
        with->next = with->last;
      return;
    }
    p->passed.at[p->passed.n++] = memory.number;
    s->since = rs_now_ns();
    sent++;
  }
}

static peer_memory *find_memory(peer_rank *p, uint64_t number) {
  for (int64_t i = 0; i < p->memory.n; i++)
    if (p->memory.at[i].memory.number == number)
      return &p->memory.at[i];
  return NULL;
}

/* The memory in a rank's list; false: it has none such. */
static bool find_listed(const rs_peer_list *list, uint64_t number, rs_exported_memory *memory) {
  for (int64_t i = 0; i < list->n; i++) {
    *memory = memory_of(list, i);
    if (memory->by_file && memory->number == number)
      return true;
  }
  return false;
}

/* Opens what has come, for which there is room. */
static reshard_status open_fresh(reshard_comm comm, peer_rank *p, const rs_exported_memory *memory, int fd) {
  peer_memory made = {.memory = *memory, .fresh = true};
  RS_TRY(comm->device->processes->open(comm->device, memory, fd, &made.at));
  p->memory.at[p->memory.n++] = made;
  return RESHARD_SUCCESS;
}

/* Takes up to TURN descriptors that a rank passes on, and opens their memory. */
static void receive_some(reshard_comm comm, passing *with, pass_state *s) {
  peer_rank *p = &comm->memory.peers->ranks[with->rank];
  for (int left = TURN; left > 0 && with->missing > 0; left--) {
    rs_exported_memory memory;
    uint64_t number = 0;
    int fd = -1;
    bool done;
    reshard_status status = comm->ops->neighbours->take(comm, with->rank, s->since, &number, &fd, &done);
    if (!done) {
      rs_error_save(&s->first, status);
      with->missing = status == RESHARD_SUCCESS ? with->missing : 0;
      return;
    }
    if (find_listed(&comm->memory.peers->lists[with->rank], number, &memory) && find_memory(p, number) == NULL) {
      rs_error_save(&s->first, status);
      if (s->first.status == RESHARD_SUCCESS)
        rs_error_save(&s->first, open_fresh(comm, p, &memory, fd));
      with->missing--;
    }
    if (fd >= 0)
      close(fd);
    s->since = rs_now_ns();
  }
}

/* Closes what a rank has freed, unless a binding is still of it. */
static void close_freed(reshard_comm comm, peer_rank *p, const rs_peer_list *list) {
  for (int64_t i = 0; i < p->memory.n;) {
    peer_memory *m = &p->memory.at[i];
    comm->memory.peers->gone -= m->gone;
    m->gone = true;
    for (int64_t k = 0; k < list->nlive && m->gone; k++)
      m->gone =
          memcmp(&m->memory.number, list->live + k * (int64_t)sizeof m->memory.number, sizeof m->memory.number) != 0;
    if (m->gone && m->users == 0) {
      close_memory(comm, m);
      *m = p->memory.at[--p->memory.n];
    } else {
      comm->memory.peers->gone += m->gone;
      i++;
    }
  }
}

void rs_peers_hear(reshard_comm comm) {
  struct rs_peers *peers = comm->memory.peers;
  peers->unpublished = false;              /* all have this rank's list */
  for (int64_t r = 0; r < comm->size; r++) /* each rank tells of its own once, whoever reads it in a plan */
    if (comm->memory.imports[r] != NULL)
      close_freed(comm, &peers->ranks[r], &peers->lists[r]);
}

/* Of the first n. */
static int64_t count_missing(peer_rank *p, const rs_peer_list *list, int64_t n) {
  int64_t missing = 0;
  for (int64_t i = 0; i < n; i++) {
    const rs_exported_memory memory = memory_of(list, i);
    missing += memory.by_file && find_memory(p, memory.number) == NULL;
  }
  return missing;
}

static reshard_status pass_in_turns(reshard_comm comm, pass_state *s, passing *with, int64_t n) {
  s->since = rs_now_ns();
  for (bool more = true; more;) {
    more = false;
    for (int64_t i = 0; i < n; i++)
      send_some(comm, &with[i], s);
    for (int64_t i = 0; i < n; i++) {
      receive_some(comm, &with[i], s);
      more |= with[i].next < with[i].last || with[i].missing > 0;
    }
  }
  return rs_error_restore(&s->first);
}

reshard_status rs_peers_pass(reshard_comm comm, rs_partners partners) {
  struct rs_peers *peers = comm->memory.peers;
  pass_state state = {.mine = &peers->lists[comm->rank]};
  int64_t n = 0;
  rs_peers_hear(comm);
  for (int64_t i = 0; i < partners.n; i++) {
    const rs_peer *p = &partners.at[i];
    peer_rank *peer = &peers->ranks[p->rank];
    const rs_peer_list *theirs = &peers->lists[p->rank];
    passing with = {.rank = p->rank, .last = p->sent > 0 ? state.mine->n : state.mine->nflags};
    if (comm->memory.imports[p->rank] == NULL) /* on another node, or this rank itself */
      continue;
    with.missing = count_missing(peer, theirs, p->received > 0 ? theirs->n : theirs->nflags);
    rs_error_save(&state.first, rs_vec_reserve(&peer->memory, peer->memory.n + with.missing));
    peers->passing[n++] = with;
  }
  return pass_in_turns(comm, &state, peers->passing, n);
}

static void settle_memory(reshard_comm comm, peer_rank *p, bool success) {
  for (int64_t i = 0; i < p->memory.n;) {
    peer_memory *m = &p->memory.at[i];
    if (m->fresh && !success) {
      close_memory(comm, m);
      *m = p->memory.at[--p->memory.n];
    } else {
      m->fresh = false;
      i++;
    }
  }
}

void rs_peers_settle(reshard_comm comm, bool success) {
  for (int64_t r = 0; comm->memory.peers != NULL && r < comm->size; r++) {
    peer_rank *p = &comm->memory.peers->ranks[r];
    settle_memory(comm, p, success);
    if (success)
      p->settled = p->passed.n;
    else
      p->passed.n = p->settled;
  }
}

/* --- Memory of others ------------------------------------------------------------------------------------------ */

reshard_status rs_peers_open(reshard_comm comm, int64_t rank, const rs_exported_memory *memory, void **at) {
  peer_memory *m = comm->memory.peers != NULL ? find_memory(&comm->memory.peers->ranks[rank], memory->number) : NULL;
  if (m == NULL)
    return rs_error(RESHARD_ERROR_MISMATCH, "rank %lld tells of memory that it has not passed on", (long long)rank);
  m->users++;
  *at = m->at;
  return RESHARD_SUCCESS;
}

bool rs_peers_have_gone(reshard_comm comm) { return comm->memory.peers != NULL && comm->memory.peers->gone > 0; }

bool rs_peers_is_gone(reshard_comm comm, int64_t rank, uint64_t number) {
  const peer_memory *m = find_memory(&comm->memory.peers->ranks[rank], number);
  return m != NULL && m->gone;
}

void rs_peers_close(reshard_comm comm, int64_t rank, uint64_t number) {
  peer_rank *p = &comm->memory.peers->ranks[rank];
  peer_memory *m = find_memory(p, number);
  if (--m->users > 0 || !m->gone)
    return;
  comm->memory.peers->gone--;
  close_memory(comm, m);
  *m = p->memory.at[--p->memory.n];
}
