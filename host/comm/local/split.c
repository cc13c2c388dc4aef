/* Splitting a communicator of threads: one meeting of its ranks, in which one of them makes the teams of all: either
 * all are made or none, and nobody waits for a rank that failed. Shrinking: the ranks that are there meet once more, on
 * the team that has ended. */
#include "comm/local/local.h"

#include "comm/split.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One rank's call: its arguments and its result. */
typedef struct split_call {
  reshard_comm comm;
  rs_split_group *group;
  reshard_comm made;
} split_call;

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

/* The team of a group, of which this is a rank's. */
static reshard_status create_team(rs_team *parent, rs_split_group *group, split_call *const *s) {
  rs_team *team = NULL;
  RS_TRY(rs_team_create(group->n, parent->timeout_ms, &team));
  add_child(parent, team, group->nlost > 0);
  team->global_ranks = group->global_ranks;
  group->global_ranks = NULL;
  reshard_status status;
  for (int64_t i = 0; i < group->n; i++) {
    split_call *call = s[group->ranks[i]];
    RS_TRY_GOTO(status, rs_team_add_rank(team, i, call->comm->device, &call->made), done);
    RS_TRY_GOTO(status, rs_board_join(call->made, call->comm), done);
  }
  bool direct;
  RS_TRY_GOTO(status, rs_team_connect(team, &direct), done);
  for (int64_t i = 0; i < group->n; i++) {
    s[group->ranks[i]]->made->process.lanes = team->nlanes;
    s[group->ranks[i]]->made->memory.direct = direct;
  }
done:
  for (int64_t i = 0; status != RESHARD_SUCCESS && i < group->n; i++) {
    reshard_comm_destroy(s[group->ranks[i]]->made);
    s[group->ranks[i]]->made = NULL;
  }
  rs_team_release(team);
  return status;
}

static reshard_status split_calls(int64_t n, void **all) {
  split_call *const *s = (split_call *const *)all;
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t r = 0; r < n; r++)
    if (s[r]->group->n > 0 && s[r]->group->key == 0)
      RS_THEN(status, create_team(rs_team_of(s[r]->comm), s[r]->group, s));
  for (int64_t r = 0; r < n && status != RESHARD_SUCCESS; r++)
    reshard_comm_destroy(s[r]->made); /* of another color */
  return status;
}

/* --- Shrinking ---------------------------------------------------------------------------------------------------- */

/* The mutex is held in all of these, but for where the team is made. */
static reshard_status end_shrink(rs_team *team, reshard_status result) {
  team->shrink.result.status = RESHARD_SUCCESS;
  rs_error_save(&team->shrink.result, result);
  team->shrink.came = 0;
  team->shrink.held++;
  pthread_cond_broadcast(&team->changed);
  return result;
}

/* The team of those that have come, which are all. */
static reshard_status shrink_team(rs_team *team, rs_split_group *group) {
  team->running = true;
  pthread_mutex_unlock(&team->mutex);
  reshard_status status = create_team(team, group, (split_call *const *)team->slots);
  pthread_mutex_lock(&team->mutex);
  team->running = false;
  return end_shrink(team, status);
}

/* Ranks that are neither lost nor here; only those that cannot come any more, where `dead`. */
static int64_t find_absent(const rs_team *team, const rs_split_group *group, bool dead, char *text, size_t size) {
  int64_t few[64], n = 0; /* a text has no room for more */
  for (int64_t i = 0; i < group->n && n < 64; i++) {
    int64_t r = group->ranks[i];
    if (team->runs[r] == NULL && (!dead || team->gone[r] == RS_DEAD))
      few[n++] = r;
  }
  rs_ranges_text(text, size, n, few);
  return n;
}

static reshard_status wait_for_shrink(reshard_comm comm, const split_call *mine) {
  rs_team *team = rs_team_of(comm);
  char text[160], call[RS_CALL_TEXT];
  int64_t since = rs_now_ns();
  uint64_t held = team->shrink.held;
  for (bool late = false; team->shrink.held == held; late = rs_team_sleep(comm, since)) {
    if (!team->running && rs_comm_is_cancelled(comm)) { /* the team had ended before */
      rs_comm_abort_text(text, sizeof text, comm->rank);
      return end_shrink(team, rs_error(RESHARD_ERROR_PEER, "%s", text));
    }
    if (!team->running && find_absent(team, mine->group, true, text, sizeof text) > 0)
      return end_shrink(team, rs_error(RESHARD_ERROR_PEER, "ranks %s are gone as well", text));
    if (!team->running && late) {
      (void)find_absent(team, mine->group, false, text, sizeof text);
      for (int64_t r = 0; r < team->n; r++)
        if (team->runs[r] == NULL && team->gone[r] == RS_THERE)
          team->gone[r] = RS_LATE;
      return end_shrink(team, rs_error(RESHARD_ERROR_TIMEOUT, "%s: %lld of %lld ranks came within %lld ms; missing: %s",
                                       rs_call_text(comm, call), (long long)team->shrink.came,
                                       (long long)mine->group->n, (long long)team->timeout_ms, text));
    }
  }
  if (mine->made != NULL) /* whatever has become of later tries since */
    return RESHARD_SUCCESS;
  return team->shrink.result.status == RESHARD_SUCCESS
             ? rs_error(RESHARD_ERROR_PEER, "the others have shrunk the communicator without rank %lld",
                        (long long)comm->rank)
             : rs_error(team->shrink.result.status, "%s", team->shrink.result.text);
}

static reshard_status come_to_shrink(reshard_comm comm, split_call *mine) {
  rs_team *team = rs_team_of(comm);
  const rs_split_group *own = mine->group;
  const split_call *other = NULL;
  if (team->shrink.came == 0)
    memset(team->runs, 0, (size_t)team->n * sizeof *team->runs); /* of a meeting that was not held */
  if (team->runs[comm->rank] != NULL)
    return rs_error(RESHARD_ERROR_BUSY, "rank %lld shrinks this communicator already", (long long)comm->rank);
  for (int64_t r = 0; r < team->n && other == NULL; r++)
    if (team->runs[r] != NULL)
      other = team->slots[r];
  if (other != NULL && (other->group->nlost != own->nlost ||
                        memcmp(other->group->lost, own->lost, (size_t)own->nlost * sizeof *own->lost) != 0)) {
    char a[120], b[120];
    int64_t rank = other->comm->rank;
    bool lower = rank < comm->rank;
    rs_ranges_text(lower ? a : b, sizeof a, other->group->nlost, other->group->lost);
    rs_ranges_text(lower ? b : a, sizeof b, own->nlost, own->lost);
    return end_shrink(team, rs_error_differ("lost ranks", rs_min(rank, comm->rank), a, rs_max(rank, comm->rank), b));
  }
  team->slots[comm->rank] = mine;
  team->runs[comm->rank] = split_calls; /* any: it has come */
  return ++team->shrink.came == own->n ? shrink_team(team, mine->group) : wait_for_shrink(comm, mine);
}

/* The ranks that are there, on the team that has ended. */
static reshard_status shrink_calls(reshard_comm comm, split_call *mine) {
  rs_team *team = rs_team_of(comm);
  char text[64];
  rs_comm_shrunk_text(text, sizeof text, comm->rank);
  pthread_mutex_lock(&team->mutex);
  rs_team_end(team, text);
  while (team->running || team->readers > 0) /* the last meeting */
    pthread_cond_wait(&team->changed, &team->mutex);
  reshard_status status = come_to_shrink(comm, mine);
  pthread_mutex_unlock(&team->mutex);
  return status;
}

reshard_status rs_local_make_part(reshard_comm comm, rs_split_group *group, reshard_comm *part) {
  split_call mine = {comm, group, NULL};
  RS_TRY(group->nlost > 0 ? shrink_calls(comm, &mine) : rs_comm_combine(comm, split_calls, &mine));
  *part = mine.made;
  return RESHARD_SUCCESS;
}
