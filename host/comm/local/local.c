/* Ranks that are threads of one process.
 *
 * All ranks share a team. A collective call is a meeting: each rank leaves its argument in its slot. The last rank to
 * come does the work for all and wakes the others with the result; these sleep meanwhile, for they may be more than
 * there are cores. A rank that gives up - deadline, abort - ends the team: no rank can know any more where the others
 * are. */
#include "comm/local/local.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Runs the meeting for all ranks; the mutex is held, and left while running. The others are still to be woken. */
static void run_meeting(reshard_comm comm, rs_team *team) {
  int64_t other = 1;
  while (other < team->n && team->runs[other] == team->runs[0])
    other++;
  team->running = true;
  pthread_mutex_unlock(&team->mutex);
  reshard_status result = other == team->n ? team->runs[0](team->n, team->slots) : rs_comm_error_calls(comm, other);
  pthread_mutex_lock(&team->mutex);
  team->running = false;
  team->result.status = RESHARD_SUCCESS;
  rs_error_save(&team->result, result);
  team->arrived = 0;
  for (int64_t i = 0; i < team->n; i++)
    team->runs[i] = NULL;
  team->generation++;
}

bool rs_team_sleep(reshard_comm comm, int64_t since) {
  rs_team *team = rs_team_of(comm);
  bool polls = comm->polling.call != NULL && !team->running;
  int64_t wake = INT64_MAX;
  if (team->timeout_ms > 0 && !rs_late(since, team->timeout_ms))
    wake = since + rs_min(team->timeout_ms, INT64_MAX / 4000000) * 1000000;
  if (polls)
    wake = rs_min(wake, rs_now_ns() + RS_POLL_NS);
  struct timespec until = {(time_t)(wake / 1000000000), (long)(wake % 1000000000)};
  if (wake == INT64_MAX)
    pthread_cond_wait(&team->changed, &team->mutex);
  else
    (void)pthread_cond_timedwait(&team->changed, &team->mutex, &until);
  if (polls && !team->running) {
    pthread_mutex_unlock(&team->mutex);
    (void)rs_comm_poll(comm, since);
    pthread_mutex_lock(&team->mutex);
  }
  return rs_late(since, team->timeout_ms);
}

/* Error of a rank whose team has ended. The mutex is held. */
static reshard_status error_ended_by(const rs_team *team) {
  return team->why[0] == '\0' ? rs_comm_error_ended() : rs_error(RESHARD_ERROR_PEER, "%s", team->why);
}

/* Ends a team for the first reason that there is, and wakes those who wait. The mutex is held. */
static void end_meetings(rs_team *team, const char *why) {
  if (!team->ended)
    snprintf(team->why, sizeof team->why, "%s", why);
  team->ended = true;
  pthread_cond_broadcast(&team->changed);
}

void rs_team_end(rs_team *team, const char *why) {
  end_meetings(team, why);
  for (rs_team *child = team->children; child != NULL; child = child->next) {
    pthread_mutex_lock(&child->mutex);
    rs_team_end(child, why);
    pthread_mutex_unlock(&child->mutex);
  }
}

/* Prints the ranks that are in the meeting, or those that are not; the mutex is held. */
static void print_ranks(const rs_team *team, bool arrived, char *text, size_t size) {
  int64_t at = 0, few[64]; /* a text has no room for more */
  for (int64_t r = 0; r < team->n && at < 64; r++)
    if ((team->runs[r] != NULL) == arrived)
      few[at++] = r;
  rs_ranges_text(text, size, at, few);
}

/* A call that does not return together with the others' may end before those who read this rank's memory have read. */
static void wait_for_readers(rs_team *team) {
  while (team->readers > 0)
    pthread_cond_wait(&team->changed, &team->mutex);
}

/* A rank's wait. */
typedef struct rank_wait {
  reshard_comm comm;
  bool ran; /* the meeting, for the others */
} rank_wait;

/* Gives up for all ranks that wait, who hear the same. The mutex is held. */
static reshard_status give_up(reshard_comm comm) {
  rs_team *team = rs_team_of(comm);
  char call[RS_CALL_TEXT], missing[160], why[sizeof team->why];
  print_ranks(team, false, missing, sizeof missing);
  for (int64_t r = 0; r < team->n; r++)
    team->gone[r] = team->runs[r] == NULL ? RS_LATE : team->gone[r];
  team->late = true;
  snprintf(why, sizeof why, "%s: %lld of %lld ranks came within %lld ms; missing: %s", rs_call_text(comm, call),
           (long long)team->arrived, (long long)team->n, (long long)team->timeout_ms, missing);
  end_meetings(team, why);
  return rs_error(RESHARD_ERROR_TIMEOUT, "%s", why);
}

/* Sleeps until the meeting was held. Once it runs it is waited for: it touches this rank's memory. */
static reshard_status wait_for_meeting(rank_wait *w) {
  rs_team *team = rs_team_of(w->comm);
  uint64_t generation = team->generation;
  int64_t since = rs_now_ns();
  for (bool late = false; team->generation == generation; late = rs_team_sleep(w->comm, since)) {
    if (team->ended && !team->running)
      return team->late ? rs_error(RESHARD_ERROR_TIMEOUT, "%s", team->why) : error_ended_by(team);
    if (late && !team->running)
      return give_up(w->comm);
  }
  return RESHARD_SUCCESS;
}

/* Leaves the rank's argument in its slot; the last one runs the meeting, the others wait for it. The mutex is held. */
static reshard_status come_to_meeting(rank_wait *w, rs_team_run run, void *mine) {
  rs_team *team = rs_team_of(w->comm);
  int64_t rank = w->comm->rank;
  if (team->ended)
    return error_ended_by(team);
  if (team->runs[rank] != NULL) /* its slot is taken: the one who waits there must not be lost */
    return rs_error(RESHARD_ERROR_BUSY, "rank %lld is in another collective call of this communicator already",
                    (long long)rank);
  team->slots[rank] = mine;
  team->runs[rank] = run;
  w->ran = ++team->arrived == team->n;
  if (w->ran)
    run_meeting(w->comm, team);
  else
    RS_TRY(wait_for_meeting(w));
  return rs_error_restore(&team->result);
}

static __attribute__((noinline)) reshard_status meet_team(reshard_comm comm, rs_team_run run, void *mine) {
  rs_team *team = rs_team_of(comm);
  rank_wait w = {.comm = comm};
  pthread_mutex_lock(&team->mutex);
  reshard_status status = come_to_meeting(&w, run, mine);
  if (team->ended) {
    pthread_cond_broadcast(&team->changed);
    wait_for_readers(team);
  }
  pthread_mutex_unlock(&team->mutex);
  if (w.ran) /* those who wake take the mutex, each for a moment: while it is held they would sleep once more */
    pthread_cond_broadcast(&team->changed);
  return status;
}

static reshard_status local_combine(reshard_comm comm, rs_team_run run, void *mine) {
  const rs_team *team = rs_team_of(comm);
  bool alone = team->n == 1 && !team->ended; /* no other rank to meet, or to wait for this one */
  return alone ? run(1, &mine) : meet_team(comm, run, mine);
}

static reshard_status look(rs_team *team, int64_t readers) {
  pthread_mutex_lock(&team->mutex);
  reshard_status status = team->ended ? error_ended_by(team) : RESHARD_SUCCESS;
  team->readers += status == RESHARD_SUCCESS ? readers : 0;
  pthread_mutex_unlock(&team->mutex);
  return status;
}

static reshard_status local_look(reshard_comm comm) { return look(rs_team_of(comm), 0); }
static reshard_status local_enter(reshard_comm comm) { return look(rs_team_of(comm), 1); }

static void local_leave(reshard_comm comm) {
  rs_team *team = rs_team_of(comm);
  pthread_mutex_lock(&team->mutex);
  if (--team->readers == 0)
    pthread_cond_broadcast(&team->changed);
  pthread_mutex_unlock(&team->mutex);
}

typedef struct allgather_call {
  reshard_comm comm;
  const void *mine;
  size_t bytes;
} allgather_call;

static reshard_status gather_records(int64_t n, void **all) {
  allgather_call *const *g = (allgather_call *const *)all;
  for (int64_t r = 1; r < n; r++)
    if (g[r]->bytes != g[0]->bytes) /* a barrier here, an agreement there */
      return rs_comm_error_calls(g[0]->comm, r);
  for (int64_t r = 0; r < n; r++)
    memcpy(rs_team_of(g[0]->comm)->records + (size_t)r * g[0]->bytes, g[r]->mine, g[0]->bytes);
  return RESHARD_SUCCESS;
}

static reshard_status local_meet(reshard_comm comm, const rs_meeting *m) {
  rs_team *team = rs_team_of(comm);
  allgather_call g = {comm, m->record, m->bytes};
  *m->all = team->records;
  return local_combine(comm, gather_records, &g);
}

static void abort_team(rs_team *team, int64_t rank) {
  char why[64];
  rs_comm_abort_text(why, sizeof why, rank);
  pthread_mutex_lock(&team->mutex);
  rs_team_end(team, why);
  pthread_mutex_unlock(&team->mutex);
}

/* Ranks that gave up waiting, and those that have left since, are there. */
static int64_t local_absent(reshard_comm comm, int64_t *ranks) {
  rs_team *team = rs_team_of(comm);
  int64_t n = 0;
  pthread_mutex_lock(&team->mutex);
  for (int64_t r = 0; r < team->n; r++)
    if (team->gone[r] != RS_THERE)
      ranks[n++] = r;
  pthread_mutex_unlock(&team->mutex);
  return n;
}

static void leave_parent(rs_team *team) {
  rs_team *parent = team->parent;
  pthread_mutex_lock(&parent->mutex);
  rs_team **link = &parent->children;
  while (*link != NULL && *link != team)
    link = &(*link)->next;
  if (*link != NULL) /* else it was apart */
    *link = team->next;
  pthread_mutex_unlock(&parent->mutex);
  rs_team_release(parent);
}

static void free_team(rs_team *team) {
  rs_forkable_remove(&team->forkable);
  if (team->parent != NULL)
    leave_parent(team);
  else if (team->device != NULL)
    team->device->destroy(team->device);
  for (int64_t i = 0; i < team->nhandles; i++)
    reshard_device_release(team->handles[i]);
  pthread_cond_destroy(&team->changed);
  pthread_mutex_destroy(&team->mutex);
  free(team->global_ranks);
  free(team->slots);
  free(team->runs);
  free(team->gone);
  free(team->records);
  free(team->links);
  free(team->spans);
  free(team->programs);
  free(team->lanes);
  free(team->lane_ranks);
  free(team->handles);
  free(team);
}

void rs_team_release(rs_team *team) {
  pthread_mutex_lock(&team->mutex);
  bool last = --team->users == 0;
  pthread_mutex_unlock(&team->mutex);
  if (last)
    free_team(team);
}

/* A rank that is gone comes to no meeting: the others hear of it, those that wait for it at once. */
static void end_without(rs_team *team, int64_t rank) {
  char why[sizeof team->why], waiting[160];
  pthread_mutex_lock(&team->mutex);
  if (!team->ended) {
    print_ranks(team, true, waiting, sizeof waiting);
    snprintf(why, sizeof why, "rank %lld has destroyed its handle%s%s", (long long)rank,
             team->arrived > 0 ? " while others waited for it: " : "", waiting);
    end_meetings(team, why);
  }
  team->gone[rank] = RS_DEAD;
  pthread_cond_broadcast(&team->changed); /* others may shrink without it */
  pthread_mutex_unlock(&team->mutex);
}

static bool local_end(reshard_comm comm, rs_end what) {
  if (what == RS_END_ABORT)
    abort_team(rs_team_of(comm), comm->rank);
  else if (what == RS_END_CALLS)
    end_without(rs_team_of(comm), comm->rank);
  return false;
}

static void local_destroy(reshard_comm comm) {
  rs_team *team = rs_team_of(comm);
  end_without(team, comm->rank);
  free(comm);
  rs_team_release(team);
}

static const rs_thread_ops local_threads = {local_combine, local_enter, local_leave};
static const rs_message_ops local_messages = {.reserve = rs_local_reserve};

const rs_comm_ops rs_local_ops = {
    .name = "local",
    .addressable = true,
    .one_node = true,
    .threads = &local_threads,
    .messages = &local_messages,
    .look = local_look,
    .meet = local_meet,
    .exchange = rs_local_exchange,
    .make = rs_local_make_part,
    .absent = local_absent,
    .end = local_end,
    .destroy = local_destroy,
};
