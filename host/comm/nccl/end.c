/* Errors of an NCCL communicator, the host's waits, and its end. */
#include "comm/nccl/end.h"

#include "base/range.h"
#include "comm/nccl/node.h"
#include "device/cuda/cuda.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { ASK_MS = 250 }; /* at most, and two looks at least, for others to tell that they wait */

static reshard_status status_of(ncclResult_t result) {
  switch (result) {
  case ncclInvalidArgument:
  case ncclInvalidUsage: return RESHARD_ERROR_INVALID;
  case ncclRemoteError: return RESHARD_ERROR_PEER;
  case ncclInternalError: return RESHARD_ERROR_INTERNAL;
  default: return RESHARD_ERROR_SYSTEM;
  }
}

reshard_status rs_nccl_error(const rs_nccl_api *api, ncclComm_t nccl, ncclResult_t result, const char *call) {
  const char *last = api->ncclGetLastError(nccl);
  return rs_error(status_of(result), "%s: %s (NCCL error %d)%s%.300s", call, api->ncclGetErrorString(result),
                  (int)result, last != NULL && *last != '\0' ? ": " : "", last != NULL ? last : "");
}

/* SUCCESS, or why it has ended. */
static reshard_status check_alive(const rs_nccl *c) {
  if (c->base.life.quit)
    return rs_comm_error_destroyed((reshard_comm)&c->base);
  if (!c->ended)
    return RESHARD_SUCCESS;
  const char *reason = rs_presence_reason(c->presence);
  if (c->lost != RESHARD_SUCCESS)
    return rs_error(c->lost, "%s", c->why);
  return reason != NULL ? rs_error(RESHARD_ERROR_PEER, "the communicator has ended: %.*s", RS_PRESENCE_REASON, reason)
                        : rs_comm_error_ended();
}

reshard_status rs_nccl_end_after_error(rs_nccl *c, reshard_status status) {
  if (status == RESHARD_SUCCESS || c->ended)
    return status;
  c->lost = status;
  snprintf(c->why, sizeof c->why, "%s", reshard_last_error());
  rs_nccl_end(c);
  rs_nccl_quiesce(c);
  return status;
}

/* Ends the communicator where its node has ended. Ranks in sight say the same: what the first of them has found. */
static reshard_status check_node(rs_nccl *c) {
  reshard_status status = c->ended || c->closing ? RESHARD_SUCCESS : rs_nccl_check_node(c);
  if (status == RESHARD_SUCCESS)
    return status;
  static const char ended[] = "the communicator has ended: "; /* as later calls say */
  const char *reason = rs_presence_conclude(c->presence, status, reshard_last_error());
  if (reason != NULL)
    status = rs_presence_status(c->presence);
  snprintf(c->why, sizeof c->why, "%s%.*s", ended, (int)(sizeof c->why - sizeof ended),
           reason != NULL ? reason : reshard_last_error());
  c->lost = RESHARD_ERROR_PEER;
  rs_nccl_end(c);
  rs_nccl_quiesce(c);
  return rs_error(status, "%s", c->why + strlen(ended));
}

reshard_status rs_nccl_check_call(rs_nccl *c) {
  RS_TRY(check_node(c));
  return check_alive(c);
}

reshard_status rs_nccl_lock(rs_nccl *c) {
  pthread_mutex_lock(&c->mutex);
  reshard_status status = check_alive(c);
  if (status != RESHARD_SUCCESS)
    pthread_mutex_unlock(&c->mutex);
  return status;
}

void rs_nccl_unlock(rs_nccl *c) { pthread_mutex_unlock(&c->mutex); }

void rs_nccl_abort(const rs_nccl *c, ncclComm_t nccl) {
  if (nccl == NULL)
    return;
  rs_cuda_before before = rs_cuda_try_enter(c->base.device);
  (void)c->api.ncclCommAbort(nccl);
  rs_cuda_leave(before);
}

void rs_nccl_end(rs_nccl *c) {
  c->ended = true; /* before the lock: who holds it may be waiting for NCCL */
  rs_presence_leave(c->presence);
  pthread_mutex_lock(&c->mutex);
  rs_nccl_leave_node(c);
  ncclComm_t nccl = c->base.borrowed || c->revoked ? NULL : c->nccl;
  if (nccl != NULL && !c->closing && rs_nccl_revoke(c)) {
    c->revoked = true; /* rs_nccl_close aborts it */
    nccl = NULL;
  } else if (nccl != NULL) {
    c->nccl = NULL;
  }
  for (rs_nccl *child = c->children; child != NULL; child = child->next)
    rs_nccl_end(child);
  pthread_mutex_unlock(&c->mutex);
  rs_nccl_abort(c, nccl);
}

/* The sleep grows with the wait: one that lasts until a deadline would look at NCCL 20,000 times a second. */
void rs_nccl_pause(int64_t since, int64_t spin_ns) {
  const int64_t shortest = 50000, longest = 1000000, waited = rs_now_ns() - since;
  if (waited < spin_ns)
    sched_yield();
  else
    nanosleep(&(struct timespec){0, rs_min(rs_max(waited / 16, shortest), longest)}, NULL);
}

/* The ranks of a node that give up say the same: what the first of them has found. At its end none is waited for. */
static reshard_status give_up(rs_nccl *c, const char *call) {
  char missing[RS_PRESENCE_TEXT];
  rs_presence *presence = c->closing ? NULL : c->presence;
  rs_presence_ask(presence, rs_max(rs_min(c->base.timeout_ms / 2, ASK_MS), 2 * RS_NCCL_LOOK_NS / 1000000));
  reshard_status status =
      rs_comm_error_timeout(&c->base, call, c->base.timeout_ms, rs_presence_text(presence, 0, NULL, missing));
  const char *reason = rs_presence_conclude(presence, status, reshard_last_error());
  if (reason != NULL)
    status = rs_error(rs_presence_status(presence), "%.*s", RS_PRESENCE_REASON, reason);
  pthread_mutex_lock(&c->mutex);
  if (!c->closing) /* the node hears the same, also where there is no presence */
    rs_nccl_end_node(c, status, reshard_last_error());
  pthread_mutex_unlock(&c->mutex);
  rs_nccl_end(c);
  rs_nccl_quiesce(c);
  return status;
}

/* The presence comes first: those that give up end their nodes after it. */
reshard_status rs_nccl_wait_more(rs_nccl *c, rs_nccl_wait *w, int64_t spin_ns) {
  int64_t few[RS_AWAITED], now = rs_now_ns();
  if (!c->closing && rs_presence_reason(c->presence) != NULL)
    return give_up(c, w->call);
  RS_TRY(check_node(c));
  if (rs_late(c->since != 0 ? c->since : w->since, c->base.timeout_ms))
    return give_up(c, w->call);
  if (now - w->looked >= RS_NCCL_LOOK_NS) {
    w->looked = now;
    rs_presence_wait(c->presence);
    rs_comm_await(&c->base, rs_presence_absent(c->presence, 0, NULL, RS_AWAITED, few), few);
  }
  if (rs_comm_poll(&c->base, w->since))
    return rs_comm_error_ended();
  rs_nccl_pause(w->since, spin_ns);
  return RESHARD_SUCCESS;
}

reshard_status rs_nccl_get_async_error(rs_nccl *c, const char *call, ncclResult_t *state) {
  RS_TRY(rs_nccl_lock(c));
  ncclResult_t result = c->api.ncclCommGetAsyncError(c->nccl, state);
  reshard_status status = RESHARD_SUCCESS;
  if (result != ncclSuccess || (*state != ncclSuccess && *state != ncclInProgress))
    status = rs_nccl_error(&c->api, c->nccl, result != ncclSuccess ? result : *state, call);
  rs_nccl_unlock(c);
  return status;
}

/* NCCL takes up each group of a non-blocking communicator on a thread of its own, in some tens of microseconds. A sleep
 * meanwhile would last longer than that. What takes far longer, as a first connection, is slept through. */
static void learn_spin(rs_nccl *c, int64_t took_ns) {
  const int64_t most = 1000000;
  c->spin_ns = rs_min(most, rs_max(RS_NCCL_SPIN_NS, rs_max(2 * took_ns, c->spin_ns - c->spin_ns / 8)));
}

reshard_status rs_nccl_settle(rs_nccl *c, ncclResult_t result, const char *call) {
  rs_nccl_wait w = {call, rs_now_ns(), rs_now_ns()};
  if (result != ncclSuccess && result != ncclInProgress)
    return rs_nccl_error(&c->api, c->nccl, result, call);
  RS_RANGE("wait", -1, -1, -1, -1);
  while (result == ncclInProgress) {
    RS_TRY(rs_nccl_get_async_error(c, call, &result));
    if (result == ncclInProgress)
      RS_TRY(rs_nccl_wait_more(c, &w, c->spin_ns));
  }
  learn_spin(c, rs_now_ns() - w.since);
  return RESHARD_SUCCESS;
}

/* --- Revoking ----------------------------------------------------------------------------------------------------- */

bool rs_nccl_has_revoke(const rs_nccl *c) { return c->api.ncclCommRevoke != NULL && c->api.ncclCommShrink != NULL; }

bool rs_nccl_revoke(rs_nccl *c) {
  if (!rs_nccl_has_revoke(c))
    return false;
  rs_cuda_before before = rs_cuda_try_enter(c->base.device);
  ncclResult_t result = c->api.ncclCommRevoke(c->nccl, NCCL_REVOKE_DEFAULT);
  rs_cuda_leave(before);
  return result == ncclSuccess || result == ncclInProgress;
}

ncclResult_t rs_nccl_look_at_ended(rs_nccl *c) {
  ncclResult_t state = ncclInvalidUsage, asked = ncclSuccess;
  pthread_mutex_lock(&c->mutex);
  if (c->nccl != NULL)
    asked = c->api.ncclCommGetAsyncError(c->nccl, &state);
  pthread_mutex_unlock(&c->mutex);
  return asked != ncclSuccess ? asked : state;
}

ncclResult_t rs_nccl_wait_for_ended(rs_nccl *c, int64_t limit_ms) {
  int64_t since = rs_now_ns();
  ncclResult_t state = rs_nccl_look_at_ended(c);
  while (state == ncclInProgress && !rs_comm_poll(&c->base, since) && !rs_late(since, limit_ms)) {
    rs_nccl_pause(since, RS_NCCL_SPIN_NS);
    state = rs_nccl_look_at_ended(c);
  }
  return state;
}

void rs_nccl_quiesce(rs_nccl *c) {
  if (c->revoked)
    (void)rs_nccl_wait_for_ended(c, 500);
}
