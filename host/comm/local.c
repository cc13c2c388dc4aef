/* Ranks that are threads of one process.
 *
 * All ranks share a team. A collective call is a meeting: each rank leaves what it brings in its slot; the last one to
 * come does the work for all while the others sleep (they may be more than there are cores, so they do not spin), and
 * wakes them with the result. A rank that gives up - deadline, abort - ends the team: nobody can know any more who is
 * where. */
#include "comm/local.h"

#include "device/cpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static reshard_status ended(void) {
  return rs_error(RESHARD_ERROR_PEER, "the communicator was aborted, or a rank gave up waiting");
}

/* Runs the meeting for all ranks; the mutex is held, and left while running. */
static void hold(rs_team *team) {
  bool same = true;
  for (int64_t i = 1; i < team->n; i++)
    same &= team->runs[i] == team->runs[0];
  team->running = true;
  pthread_mutex_unlock(&team->mutex);
  reshard_status result = same ? team->runs[0](team->n, team->slots)
                               : rs_error(RESHARD_ERROR_MISMATCH, "the ranks make different collective calls at once");
  pthread_mutex_lock(&team->mutex);
  team->running = false;
  team->result = result;
  if (result != RESHARD_SUCCESS)
    snprintf(team->text, sizeof team->text, "%s", reshard_last_error());
  team->arrived = 0;
  for (int64_t i = 0; i < team->n; i++)
    team->runs[i] = NULL;
  team->generation++;
  pthread_cond_broadcast(&team->changed);
}

static struct timespec deadline_in(int64_t ms) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  t.tv_sec += (time_t)(ms / 1000);
  t.tv_nsec += (long)(ms % 1000) * 1000000;
  if (t.tv_nsec >= 1000000000) {
    t.tv_sec++;
    t.tv_nsec -= 1000000000;
  }
  return t;
}

/* Sleeps until the meeting was held. Once it runs it is waited for: it touches this rank's memory. */
static reshard_status await(rs_team *team) {
  uint64_t generation = team->generation;
  struct timespec deadline = deadline_in(team->timeout_ms);
  bool late = false;
  while (team->generation == generation) {
    if (team->ended && !team->running)
      return ended();
    if (late && !team->running) {
      int64_t arrived = team->arrived;
      team->ended = true;
      pthread_cond_broadcast(&team->changed);
      return rs_error(RESHARD_ERROR_TIMEOUT, "%lld of %lld ranks came within %lld ms", (long long)arrived,
                      (long long)team->n, (long long)team->timeout_ms);
    }
    if (team->timeout_ms == 0 || late)
      pthread_cond_wait(&team->changed, &team->mutex);
    else
      late = pthread_cond_timedwait(&team->changed, &team->mutex, &deadline) == ETIMEDOUT;
  }
  return RESHARD_SUCCESS;
}

/* A call that does not return together with the others' may end before those who read this rank's memory have read. */
static void await_readers(rs_team *team) {
  while (team->readers > 0)
    pthread_cond_wait(&team->changed, &team->mutex);
}

static reshard_status local_together(reshard_comm comm, rs_meeting run, void *mine) {
  rs_team *team = rs_team_of(comm);
  if (team->n == 1 && !team->ended)
    return run(1, &mine); /* nobody to meet */
  pthread_mutex_lock(&team->mutex);
  reshard_status status = RESHARD_SUCCESS;
  if (team->ended) {
    status = ended();
  } else if (team->runs[comm->rank] != NULL) { /* its slot is taken: the one who waits there must not be lost */
    status = rs_error(RESHARD_ERROR_BUSY, "rank %lld is in another collective call of this communicator already",
                      (long long)comm->rank);
  } else {
    team->slots[comm->rank] = mine;
    team->runs[comm->rank] = run;
    if (++team->arrived == team->n)
      hold(team);
    else
      status = await(team);
    if (status == RESHARD_SUCCESS) {
      status = team->result;
      if (status != RESHARD_SUCCESS)
        rs_error_set(team->text);
    }
  }
  if (team->ended)
    await_readers(team);
  pthread_mutex_unlock(&team->mutex);
  return status;
}

static reshard_status local_enter(reshard_comm comm) {
  rs_team *team = rs_team_of(comm);
  pthread_mutex_lock(&team->mutex);
  reshard_status status = team->ended ? ended() : RESHARD_SUCCESS;
  team->readers += status == RESHARD_SUCCESS;
  pthread_mutex_unlock(&team->mutex);
  return status;
}

static void local_leave(reshard_comm comm) {
  rs_team *team = rs_team_of(comm);
  pthread_mutex_lock(&team->mutex);
  if (--team->readers == 0)
    pthread_cond_broadcast(&team->changed);
  pthread_mutex_unlock(&team->mutex);
}

typedef struct gathering {
  const void *mine;
  size_t bytes;
  char *all; /* the team's */
} gathering;

static reshard_status gather(int64_t n, void **all) {
  gathering *const *g = (gathering *const *)all;
  for (int64_t r = 1; r < n; r++)
    if (g[r]->bytes != g[0]->bytes) /* a barrier here, a transfer being made there */
      return rs_error(RESHARD_ERROR_MISMATCH, "the ranks make different collective calls at once");
  for (int64_t r = 0; r < n; r++)
    memcpy(g[0]->all + (size_t)r * g[0]->bytes, g[r]->mine, g[0]->bytes);
  return RESHARD_SUCCESS;
}

static reshard_status local_allgather(reshard_comm comm, const void *mine, size_t bytes, const void **all) {
  gathering g = {mine, bytes, rs_team_of(comm)->records};
  *all = g.all;
  return local_together(comm, gather, &g);
}

static reshard_status local_reserve(reshard_comm comm, int64_t most) {
  rs_team *team = rs_team_of(comm);
  if (most <= team->reserved)
    return RESHARD_SUCCESS;
  rs_link *links = NULL;
  rs_span *spans = NULL;
  rs_program **programs = NULL;
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc_zero(&links, most, sizeof *links), fail);
  RS_TRY_GOTO(status, rs_alloc(&spans, most, sizeof *spans), fail);
  RS_TRY_GOTO(status, rs_alloc(&programs, most, sizeof *programs), fail);
  free(team->links);
  free(team->spans);
  free(team->programs);
  team->links = links;
  team->spans = spans;
  team->programs = programs;
  team->reserved = most;
  return RESHARD_SUCCESS;
fail:
  free(links);
  free(spans);
  free(programs);
  return status;
}

/* Turns are few and their parts sorted, so a search is as quick as a cursor per sender and needs no memory. */
static const rs_part *find_send(const rs_turn *turn, int64_t receiver) {
  int64_t low = 0, high = turn->nsends;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (turn->sends[middle].peer < receiver)
      low = middle + 1;
    else
      high = middle;
  }
  return low < turn->nsends && turn->sends[low].peer == receiver ? &turn->sends[low] : NULL;
}

/* Pairs each receive with its send, as links; counts what comes. */
static reshard_status pair(rs_team *team, int64_t n, const rs_turn *turns, int64_t *nlinks) {
  int64_t sends = 0, made = 0;
  for (int64_t i = 0; i < n; i++)
    sends += turns[i].nsends;
  for (int64_t i = 0; i < n; i++) {
    int64_t me = turns[i].comm->rank, bytes = 0;
    for (int64_t r = 0; r < turns[i].nreceives; r++) {
      const rs_part *want = &turns[i].receives[r];
      const rs_part *have = find_send(&turns[want->peer], me); /* turns are by rank: all ranks are here */
      if (have == NULL || have->bytes != want->bytes || made == team->reserved)
        return rs_error(RESHARD_ERROR_INTERNAL, "rank %lld expects %lld bytes from rank %lld, which sends %lld",
                        (long long)me, (long long)want->bytes, (long long)want->peer,
                        have != NULL ? (long long)have->bytes : 0);
      rs_link *link = &team->links[made++];
      link->pack = have->program;
      link->span = (rs_span){have->at, want->at, want->bytes, want->program != NULL};
      link->unpack = want->program;
      bytes += want->bytes;
    }
    rs_comm_count(turns[i].comm, bytes, turns[i].nreceives);
  }
  if (sends != made)
    return rs_error(RESHARD_ERROR_INTERNAL, "%lld messages are sent, %lld are received", (long long)sends,
                    (long long)made);
  *nlinks = made;
  return RESHARD_SUCCESS;
}

/* Messages that fit a core's cache are packed, copied and unpacked one by one, each by one thread, as long as there are
 * enough of them for all threads. Else the threads do all packing together, then all copying, then all unpacking. */
enum { CARRIED = 1 << 20 };

static reshard_status local_exchange(int64_t n, const rs_turn *turns, int64_t total_bytes, void *stream) {
  rs_team *team = rs_team_of(turns[0].comm);
  rs_device *device = team->device;
  int64_t nlinks = 0, longest = 0;
  RS_TRY(pair(team, n, turns, &nlinks));
  for (int64_t i = 0; i < nlinks; i++)
    longest = rs_max(longest, team->links[i].span.bytes);
  if (longest <= CARRIED && nlinks >= 2 * rs_device_cpu_threads(device))
    return device->ops->carry(device, nlinks, team->links, total_bytes, stream);
  for (int64_t i = 0; i < nlinks; i++) {
    team->programs[i] = (rs_program *)team->links[i].pack;
    team->spans[i] = team->links[i].span;
  }
  RS_TRY(device->ops->run(device, nlinks, team->programs, stream));
  RS_TRY(device->ops->copy(device, nlinks, team->spans, total_bytes, stream));
  for (int64_t i = 0; i < nlinks; i++)
    team->programs[i] = (rs_program *)team->links[i].unpack;
  return device->ops->run(device, nlinks, team->programs, stream);
}

static reshard_status local_alive(reshard_comm comm) { return rs_team_of(comm)->ended ? ended() : RESHARD_SUCCESS; }

/* Under the lock of the team that it was split from, if any, so that it is not freed meanwhile. */
static void end(rs_team *team) {
  pthread_mutex_lock(&team->mutex);
  team->ended = true;
  pthread_cond_broadcast(&team->changed);
  for (rs_team *child = team->children; child != NULL; child = child->next)
    end(child);
  pthread_mutex_unlock(&team->mutex);
}

static reshard_status local_abort(reshard_comm comm) {
  end(rs_team_of(comm));
  return RESHARD_SUCCESS;
}

static void leave_parent(rs_team *team) {
  rs_team *parent = team->parent;
  pthread_mutex_lock(&parent->mutex);
  rs_team **link = &parent->children;
  while (*link != team)
    link = &(*link)->next;
  *link = team->next;
  pthread_mutex_unlock(&parent->mutex);
  rs_team_drop(parent);
}

static void free_team(rs_team *team) {
  if (team->parent != NULL)
    leave_parent(team);
  else if (team->device != NULL)
    team->device->ops->destroy(team->device);
  pthread_cond_destroy(&team->changed);
  pthread_mutex_destroy(&team->mutex);
  free(team->global_ranks);
  free(team->slots);
  free(team->runs);
  free(team->records);
  free(team->links);
  free(team->spans);
  free(team->programs);
  free(team);
}

void rs_team_drop(rs_team *team) {
  pthread_mutex_lock(&team->mutex);
  bool last = --team->users == 0;
  pthread_mutex_unlock(&team->mutex);
  if (last)
    free_team(team);
}

static void local_destroy(reshard_comm comm) {
  rs_team *team = rs_team_of(comm);
  free(comm);
  rs_team_drop(team);
}

static const rs_comm_ops local_ops = {
    .name = "local",
    .reach = true,
    .overlaps = false,
    .together = local_together,
    .allgather = local_allgather,
    .enter = local_enter,
    .leave = local_leave,
    .exchange = local_exchange,
    .reserve = local_reserve,
    .split = rs_local_split,
    .alive = local_alive,
    .abort = local_abort,
    .destroy = local_destroy,
};

/* A number from the environment, at least 0; *value is left alone where it is not set. */
static reshard_status read_number(const char *name, int64_t *value) {
  const char *text = getenv(name);
  if (text == NULL || *text == '\0')
    return RESHARD_SUCCESS;
  char *end;
  errno = 0;
  long long number = strtoll(text, &end, 10);
  if (errno != 0 || *end != '\0' || number < 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s=%.32s is not a number of 0 or more", name, text);
  *value = number;
  return RESHARD_SUCCESS;
}

static reshard_status read_isa(reshard_isa *isa) {
  const char *text = getenv("RESHARD_ISA");
  if (text == NULL || *text == '\0')
    return RESHARD_SUCCESS;
  for (int i = 0; i < RESHARD_ISA_COUNT; i++)
    if (strcmp(text, reshard_isa_string((reshard_isa)i)) == 0) {
      *isa = (reshard_isa)i;
      return RESHARD_SUCCESS;
    }
  return rs_error(RESHARD_ERROR_INVALID, "RESHARD_ISA=%.32s is none of auto, scalar, sse2, avx2, avx512, neon", text);
}

/* Options, completed from the environment: the only place that reads it. */
static reshard_status read_options(const reshard_local_options *given, reshard_local_options *out) {
  const reshard_local_options defaults = {RESHARD_LOCAL_OPTIONS_INIT, 0, RESHARD_ISA_AUTO, 0};
  *out = given != NULL ? *given : defaults;
  if (out->size != sizeof *out)
    return rs_error(RESHARD_ERROR_INVALID, "size field %zu, this library's reshard_local_options has %zu", out->size,
                    sizeof *out);
  if (out->threads < 0 || out->timeout_ms < 0)
    return rs_error(RESHARD_ERROR_INVALID, "%d threads, timeout of %lld ms: neither may be negative", out->threads,
                    (long long)out->timeout_ms);
  int64_t threads = out->threads;
  if (threads == 0)
    RS_TRY(read_number("RESHARD_THREADS", &threads));
  if (threads > 4096)
    return rs_error(RESHARD_ERROR_INVALID, "%lld copy threads, 4096 are the most", (long long)threads);
  out->threads = (int)threads;
  if (out->timeout_ms == 0)
    RS_TRY(read_number("RESHARD_TIMEOUT_MS", &out->timeout_ms));
  return out->isa == RESHARD_ISA_AUTO ? read_isa(&out->isa) : RESHARD_SUCCESS;
}

reshard_status rs_team_create(int64_t n, int64_t timeout_ms, rs_team **out) {
  rs_team *team;
  RS_TRY(rs_alloc_zero(&team, 1, sizeof *team));
  pthread_condattr_t attributes;
  int failed = pthread_mutex_init(&team->mutex, NULL);
  if (failed != 0) {
    free(team);
    return rs_error(RESHARD_ERROR_SYSTEM, "no mutex: %s", strerror(failed));
  }
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&team->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  team->n = n;
  team->users = 1;
  team->timeout_ms = timeout_ms;
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc_zero(&team->slots, n, sizeof *team->slots), fail);
  RS_TRY_GOTO(status, rs_alloc_zero(&team->runs, n, sizeof *team->runs), fail);
  RS_TRY_GOTO(status, rs_alloc(&team->records, n, RS_COMM_RECORD), fail);
  *out = team;
  return RESHARD_SUCCESS;
fail:
  rs_team_drop(team);
  return status;
}

reshard_status rs_team_seat(rs_team *team, int64_t rank, reshard_comm *comm) {
  rs_local_comm *made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  *made =
      (rs_local_comm){.base = {.ops = &local_ops, .device = team->device, .rank = rank, .size = team->n}, .team = team};
  made->base.locals = team->n;
  made->base.group = team;
  made->base.global_ranks = team->global_ranks;
  pthread_mutex_lock(&team->mutex);
  team->users++;
  pthread_mutex_unlock(&team->mutex);
  *comm = &made->base;
  return RESHARD_SUCCESS;
}

reshard_status reshard_comm_create_local(int64_t n, const reshard_local_options *options, reshard_comm *comms) {
  if (n < 1 || comms == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_create_local: %lld ranks, comms %s", (long long)n,
                    comms == NULL ? "NULL" : "given");
  reshard_local_options complete;
  RS_TRY(read_options(options, &complete));
  rs_team *team = NULL;
  reshard_comm *made = NULL;
  RS_TRY(rs_team_create(n, complete.timeout_ms, &team));
  reshard_status status;
  RS_TRY_GOTO(status, rs_device_cpu_create(complete.threads, complete.isa, &team->device), done);
  RS_TRY_GOTO(status, rs_alloc_zero(&made, n, sizeof *made), done);
  for (int64_t r = 0; r < n; r++)
    RS_TRY_GOTO(status, rs_team_seat(team, r, &made[r]), done);
  memcpy(comms, made, (size_t)n * sizeof *made);
done:
  for (int64_t r = 0; status != RESHARD_SUCCESS && made != NULL && r < n; r++)
    reshard_comm_destroy(made[r]);
  free(made);
  rs_team_drop(team);
  return status;
}
