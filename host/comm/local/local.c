/* Ranks that are threads of one process.
 *
 * All ranks share a team. A collective call is a meeting: each rank leaves its argument in its slot. The last rank to
 * come does the work for all and wakes the others with the result. They sleep meanwhile, for they may be more than
 * there are cores. A rank that gives up - deadline, abort - ends the team: no rank can know any more where the others
 * are. */
#include "comm/local/local.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Runs the meeting for all ranks; the mutex is held, and left while running. */
static void run_meeting(rs_team *team) {
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

/* Error of a rank whose team has ended; names the missing ranks where one gave up waiting. The mutex is held. */
static reshard_status error_ended_by(const rs_team *team) {
  return team->missing[0] == '\0'
             ? rs_comm_error_ended()
             : rs_error(RESHARD_ERROR_PEER, "a rank gave up waiting after %lld ms; missing were: %s",
                        (long long)team->timeout_ms, team->missing);
}

/* Notes the ranks that have not come to the meeting; the mutex is held. */
static void find_missing(rs_team *team) {
  int64_t at = 0, few[64]; /* a text has no room for more */
  for (int64_t r = 0; r < team->n && at < 64; r++)
    if (team->runs[r] == NULL)
      few[at++] = r;
  rs_ranges_text(team->missing, sizeof team->missing, at, few);
}

/* Sleeps until the meeting was held. Once it runs it is waited for: it touches this rank's memory. */
static reshard_status wait_for_meeting(rs_team *team) {
  uint64_t generation = team->generation;
  struct timespec deadline = deadline_in(team->timeout_ms);
  bool late = false;
  while (team->generation == generation) {
    if (team->ended && !team->running)
      return error_ended_by(team);
    if (late && !team->running) {
      int64_t arrived = team->arrived;
      find_missing(team);
      team->ended = true;
      pthread_cond_broadcast(&team->changed);
      return rs_error(RESHARD_ERROR_TIMEOUT, "%lld of %lld ranks came within %lld ms; missing: %s", (long long)arrived,
                      (long long)team->n, (long long)team->timeout_ms, team->missing);
    }
    if (team->timeout_ms == 0 || late)
      pthread_cond_wait(&team->changed, &team->mutex);
    else
      late = pthread_cond_timedwait(&team->changed, &team->mutex, &deadline) == ETIMEDOUT;
  }
  return RESHARD_SUCCESS;
}

/* A call that does not return together with the others' may end before those who read this rank's memory have read. */
static void wait_for_readers(rs_team *team) {
  while (team->readers > 0)
    pthread_cond_wait(&team->changed, &team->mutex);
}

static reshard_status local_together(reshard_comm comm, rs_meeting run, void *mine) {
  rs_team *team = rs_team_of(comm);
  if (team->n == 1 && !team->ended)
    return run(1, &mine); /* no other rank to meet */
  pthread_mutex_lock(&team->mutex);
  reshard_status status = RESHARD_SUCCESS;
  if (team->ended) {
    status = error_ended_by(team);
  } else if (team->runs[comm->rank] != NULL) { /* its slot is taken: the one who waits there must not be lost */
    status = rs_error(RESHARD_ERROR_BUSY, "rank %lld is in another collective call of this communicator already",
                      (long long)comm->rank);
  } else {
    team->slots[comm->rank] = mine;
    team->runs[comm->rank] = run;
    if (++team->arrived == team->n)
      run_meeting(team);
    else
      status = wait_for_meeting(team);
    if (status == RESHARD_SUCCESS) {
      status = team->result;
      if (status != RESHARD_SUCCESS)
        rs_error_set(team->text);
    }
  }
  if (team->ended)
    wait_for_readers(team);
  pthread_mutex_unlock(&team->mutex);
  return status;
}

static reshard_status local_enter(reshard_comm comm) {
  rs_team *team = rs_team_of(comm);
  pthread_mutex_lock(&team->mutex);
  reshard_status status = team->ended ? error_ended_by(team) : RESHARD_SUCCESS;
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

typedef struct allgather_call {
  const void *mine;
  size_t bytes;
  char *all; /* the team's */
} allgather_call;

static reshard_status gather_records(int64_t n, void **all) {
  allgather_call *const *g = (allgather_call *const *)all;
  for (int64_t r = 1; r < n; r++)
    if (g[r]->bytes != g[0]->bytes) /* a barrier here, an agreement there */
      return rs_error(RESHARD_ERROR_MISMATCH, "the ranks make different collective calls at once");
  for (int64_t r = 0; r < n; r++)
    memcpy(g[0]->all + (size_t)r * g[0]->bytes, g[r]->mine, g[0]->bytes);
  return RESHARD_SUCCESS;
}

static reshard_status local_allgather(reshard_comm comm, const void *mine, size_t bytes, const void **all) {
  allgather_call g = {mine, bytes, rs_team_of(comm)->records};
  *all = g.all;
  return local_together(comm, gather_records, &g);
}

static reshard_status local_alive(reshard_comm comm) {
  return rs_team_of(comm)->ended ? rs_comm_error_ended() : RESHARD_SUCCESS;
}

/* Under the lock of the team that it was split from, if any, so that it is not freed meanwhile. */
static void end_team(rs_team *team) {
  pthread_mutex_lock(&team->mutex);
  team->ended = true;
  pthread_cond_broadcast(&team->changed);
  for (rs_team *child = team->children; child != NULL; child = child->next)
    end_team(child);
  pthread_mutex_unlock(&team->mutex);
}

static reshard_status local_abort(reshard_comm comm) {
  end_team(rs_team_of(comm));
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
  rs_team_release(parent);
}

static void free_team(rs_team *team) {
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

static void local_destroy(reshard_comm comm) {
  rs_team *team = rs_team_of(comm);
  free(comm);
  rs_team_release(team);
}

const rs_comm_ops rs_local_ops = {
    .name = "local",
    .reach = true,
    .together = local_together,
    .allgather = local_allgather,
    .enter = local_enter,
    .leave = local_leave,
    .exchange = rs_local_exchange,
    .reserve = rs_local_reserve,
    .split = rs_local_split,
    .alive = local_alive,
    .abort = local_abort,
    .destroy = local_destroy,
};
