/* Splitting a communicator of threads: one meeting of its ranks, in which one of them makes the teams of all. So either
 * all are made or none, and nobody waits for a rank that failed. */
#include "comm/local/local.h"

#include "comm/split_group.h"

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

/* A child may outlive the handles of its parent, but not the parent's team. */
static void add_child(rs_team *parent, rs_team *child) {
  child->parent = parent;
  pthread_mutex_lock(&parent->mutex);
  child->ended = atomic_load(&parent->ended); /* aborted meanwhile */
  child->next = parent->children;
  parent->children = child;
  parent->users++;
  pthread_mutex_unlock(&parent->mutex);
}

/* The team of n ranks of one color. */
static reshard_status create_team(rs_team *parent, int64_t n, const rs_split_request *requests, split_call *const *s) {
  rs_team *team = NULL;
  RS_TRY(rs_team_create(n, parent->timeout_ms, &team));
  add_child(parent, team);
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
    s[requests[i].rank]->made->lanes = team->nlanes;
    s[requests[i].rank]->made->direct = direct;
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
      status = create_team(rs_team_of(s[0]->comm), end - i, requests + i, s);
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
