/* Splitting a communicator of threads: one meeting of its ranks, in which one of them makes the teams of all: either
 * all are made or none, and nobody waits for a rank that failed. Shrinking: the ranks that are there meet once more, on
 * the team that has ended. */
#include "comm/local/local.h"

#include "comm/split_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One rank's call of split: its arguments and its result. */
typedef struct split_call {
  reshard_comm comm;
  const rs_split *request;
  const char *text; /* of a status that is no success */
  reshard_comm made;
} split_call;

static bool same_text(const char *a, const char *b) { return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0); }

/* The lowest rank that failed, else that wants something else than rank 0. */
static reshard_status check_calls(int64_t n, split_call *const *s) {
  for (int64_t r = 0; r < n; r++)
    if (s[r]->request->status != RESHARD_SUCCESS)
      return rs_error(s[r]->request->status, "rank %lld: %s", (long long)r, s[r]->text);
  for (int64_t r = 1; r < n; r++)
    if (!same_text(s[0]->request->by, s[r]->request->by))
      return rs_error(RESHARD_ERROR_MISMATCH, "rank 0 splits by %s, rank %lld by %s",
                      s[0]->request->by != NULL ? s[0]->request->by : "color", (long long)r,
                      s[r]->request->by != NULL ? s[r]->request->by : "color");
  return RESHARD_SUCCESS;
}

/* A child may outlive the handles of its parent, but not the parent's team. apart: it does not end with it. */
static void add_child(rs_team *parent, rs_team *child, bool apart) {
  child->parent = parent;
  pthread_mutex_lock(&parent->mutex);
  if (!apart) {
    child->ended = atomic_load(&parent->ended); /* aborted meanwhile */
    memcpy(child->why, parent->why, sizeof child->why);
    child->next = parent->children;
    parent->children = child;
  }
  parent->users++;
  pthread_mutex_unlock(&parent->mutex);
}

/* The team of n ranks of one color. */
static reshard_status create_team(rs_team *parent, bool apart, int64_t n, const rs_split_request *requests,
                                  split_call *const *s) {
  rs_team *team = NULL;
  RS_TRY(rs_team_create(n, parent->timeout_ms, &team));
  add_child(parent, team, apart);
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc(&team->global_ranks, n, sizeof *team->global_ranks), done);
  for (int64_t i = 0; i < n; i++)
    team->global_ranks[i] = parent->global_ranks != NULL ? parent->global_ranks[requests[i].rank] : requests[i].rank;
  for (int64_t i = 0; i < n; i++) {
    split_call *call = s[requests[i].rank];
    RS_TRY_GOTO(status, rs_team_add_rank(team, i, call->comm->device, &call->made), done);
    RS_TRY_GOTO(status, rs_board_join(call->made, call->comm), done);
  }
  bool direct;
  RS_TRY_GOTO(status, rs_team_connect(team, &direct), done);
  for (int64_t i = 0; i < n; i++) {
    s[requests[i].rank]->made->process.lanes = team->nlanes;
    s[requests[i].rank]->made->memory.direct = direct;
  }
done:
  rs_team_release(team);
  return status;
}

static reshard_status split_calls(int64_t n, void **all) {
  split_call *const *s = (split_call *const *)all;
  RS_TRY(check_calls(n, s));
  rs_split_request *requests = NULL;
  RS_TRY(rs_alloc(&requests, n, sizeof *requests));
  for (int64_t r = 0; r < n; r++)
    requests[r] = (rs_split_request){s[r]->request->color, s[r]->request->key, r};
  rs_split_requests_sort(n, requests);
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0, end; i < n && status == RESHARD_SUCCESS; i = end) {
    for (end = i + 1; end < n && requests[end].color == requests[i].color; end++)
      ;
    if (requests[i].color >= 0)
      status = create_team(rs_team_of(s[0]->comm), false, end - i, requests + i, s);
  }
  free(requests);
  for (int64_t r = 0; status != RESHARD_SUCCESS && r < n; r++)
    reshard_comm_destroy(s[r]->made);
  return status;
}

reshard_status rs_local_split(reshard_comm comm, const rs_split *mine, reshard_comm *sub) {
  split_call s = {comm, mine, reshard_last_error(), NULL};
  RS_TRY(rs_comm_together(comm, split_calls, &s));
  *sub = s.made;
  return RESHARD_SUCCESS;
}

/* --- Shrinking ---------------------------------------------------------------------------------------------------- */

typedef struct shrink_call {
  split_call split;
  int64_t n;
  const int64_t *lost;
} shrink_call;

/* The mutex is held in all of these, but for where the team is made. */
static reshard_status end_shrink(rs_team *team, reshard_status result) {
  team->shrink.result = result;
  if (result != RESHARD_SUCCESS)
    snprintf(team->shrink.text, sizeof team->shrink.text, "%s", reshard_last_error());
  team->shrink.came = 0;
  team->shrink.held++;
  pthread_cond_broadcast(&team->changed);
  return result;
}

/* The team of those that have come, which are all. */
static reshard_status shrink_team(rs_team *team) {
  int64_t n = team->shrink.came, at = 0;
  split_call *const *s = (split_call *const *)team->slots;
  rs_split_request *requests = NULL;
  team->running = true;
  pthread_mutex_unlock(&team->mutex);
  reshard_status status = rs_alloc(&requests, n, sizeof *requests);
  for (int64_t r = 0; r < team->n && status == RESHARD_SUCCESS; r++)
    if (team->runs[r] != NULL)
      requests[at++] = (rs_split_request){0, r, r};
  if (status == RESHARD_SUCCESS)
    status = create_team(team, true, n, requests, s);
  for (int64_t r = 0; r < team->n && status != RESHARD_SUCCESS; r++)
    if (team->runs[r] != NULL) {
      reshard_comm_destroy(s[r]->made);
      s[r]->made = NULL;
    }
  free(requests);
  pthread_mutex_lock(&team->mutex);
  team->running = false;
  return end_shrink(team, status);
}

/* Ranks that are neither lost nor here; only those that cannot come any more, where `dead`. */
static int64_t find_absent(const rs_team *team, const shrink_call *mine, bool dead, char *text, size_t size) {
  int64_t few[64], n = 0, at = 0; /* a text has no room for more */
  for (int64_t r = 0; r < team->n && n < 64; r++) {
    bool lost = at < mine->n && mine->lost[at] == r;
    at += lost;
    if (!lost && team->runs[r] == NULL && (!dead || team->gone[r] == RS_DEAD))
      few[n++] = r;
  }
  rs_ranges_text(text, size, n, few);
  return n;
}

static reshard_status wait_for_shrink(reshard_comm comm, const shrink_call *mine) {
  rs_team *team = rs_team_of(comm);
  char text[160], call[RS_CALL_TEXT];
  int64_t since = rs_now_ns();
  uint64_t held = team->shrink.held;
  for (bool late = false; team->shrink.held == held; late = rs_team_sleep(comm, since)) {
    if (!team->running && rs_comm_is_cancelled(comm)) { /* the team had ended before */
      rs_comm_abort_text(text, sizeof text, comm->rank);
      return end_shrink(team, rs_error(RESHARD_ERROR_PEER, "%s", text));
    }
    if (!team->running && find_absent(team, mine, true, text, sizeof text) > 0)
      return end_shrink(team, rs_error(RESHARD_ERROR_PEER, "ranks %s are gone as well", text));
    if (!team->running && late) {
      (void)find_absent(team, mine, false, text, sizeof text);
      for (int64_t r = 0; r < team->n; r++)
        if (team->runs[r] == NULL && team->gone[r] == RS_THERE)
          team->gone[r] = RS_LATE;
      return end_shrink(team, rs_error(RESHARD_ERROR_TIMEOUT, "%s: %lld of %lld ranks came within %lld ms; missing: %s",
                                       rs_call_text(comm, call), (long long)team->shrink.came,
                                       (long long)(team->n - mine->n), (long long)team->timeout_ms, text));
    }
  }
  if (mine->split.made != NULL) /* whatever has become of later tries since */
    return RESHARD_SUCCESS;
  return team->shrink.result == RESHARD_SUCCESS
             ? rs_error(RESHARD_ERROR_PEER, "the others have shrunk the communicator without rank %lld",
                        (long long)comm->rank)
             : rs_error(team->shrink.result, "%s", team->shrink.text);
}

static reshard_status come_to_shrink(reshard_comm comm, shrink_call *mine) {
  rs_team *team = rs_team_of(comm);
  const shrink_call *other = NULL;
  if (team->shrink.came == 0)
    memset(team->runs, 0, (size_t)team->n * sizeof *team->runs); /* of a meeting that was not held */
  if (team->runs[comm->rank] != NULL)
    return rs_error(RESHARD_ERROR_BUSY, "rank %lld shrinks this communicator already", (long long)comm->rank);
  for (int64_t r = 0; r < team->n && other == NULL; r++)
    if (team->runs[r] != NULL)
      other = team->slots[r];
  if (other != NULL &&
      (other->n != mine->n || memcmp(other->lost, mine->lost, (size_t)mine->n * sizeof *mine->lost) != 0)) {
    char a[120], b[120];
    int64_t rank = other->split.comm->rank;
    bool lower = rank < comm->rank;
    rs_ranges_text(lower ? a : b, sizeof a, other->n, other->lost);
    rs_ranges_text(lower ? b : a, sizeof b, mine->n, mine->lost);
    return end_shrink(team, rs_error_differ("lost ranks", rs_min(rank, comm->rank), a, rs_max(rank, comm->rank), b));
  }
  team->slots[comm->rank] = mine;
  team->runs[comm->rank] = split_calls; /* any: it has come */
  return ++team->shrink.came == team->n - mine->n ? shrink_team(team) : wait_for_shrink(comm, mine);
}

reshard_status rs_local_shrink(reshard_comm comm, int64_t n, const int64_t *lost, reshard_comm *sub) {
  rs_team *team = rs_team_of(comm);
  shrink_call mine = {.split = {.comm = comm}, .n = n, .lost = lost};
  char text[64];
  snprintf(text, sizeof text, "rank %lld has shrunk the communicator", (long long)comm->rank);
  pthread_mutex_lock(&team->mutex);
  rs_team_end(team, text);
  while (team->running || team->readers > 0) /* the last meeting */
    pthread_cond_wait(&team->changed, &team->mutex);
  reshard_status status = come_to_shrink(comm, &mine);
  pthread_mutex_unlock(&team->mutex);
  if (status == RESHARD_SUCCESS)
    *sub = mine.split.made;
  return status;
}
