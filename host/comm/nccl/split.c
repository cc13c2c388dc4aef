/* Splitting an NCCL communicator: NCCL splits, and the ranks tell each other whether it did. */
#include "comm/nccl/end.h"

#include "comm/gather.h"
#include "device/cuda/cuda.h"

#include <stdlib.h>

/* Collective in NCCL's sense: called by every rank, also one that gets nothing. *out is NULL then, and after an error
 * when the split may be under way still. */
static reshard_status split_nccl(rs_nccl *c, const rs_split_group *group, ncclComm_t *out) {
  rs_cuda_before previous;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  rs_presence_come(c->presence, RS_PRESENCE_STEP, 0);
  rs_nccl_abort(c, *c->split); /* of an earlier one that failed, and has been through since */
  *c->split = NULL;
  RS_TRY(rs_cuda_enter(c->base.device, &previous));
  reshard_status status = rs_nccl_lock(c);
  if (status == RESHARD_SUCCESS) {
    ncclResult_t result =
        c->api.ncclCommSplit(c->nccl, group->n > 0 ? group->color : NCCL_SPLIT_NOCOLOR, group->key, c->split, &config);
    rs_nccl_unlock(c);
    c->splitting = result == ncclInProgress;
    status = rs_nccl_settle(c, result, "ncclCommSplit"); /* the parent's state */
  }
  rs_cuda_leave(previous);
  if (status == RESHARD_SUCCESS)
    rs_presence_pass(c->presence);
  if (!c->ended) {
    *out = *c->split;
    *c->split = NULL;
    c->splitting = false;
  }
  return status;
}

/* A child is ended with its parent, and may outlive the parent's handle. */
static void add_child(rs_nccl *parent, rs_nccl *child) {
  child->parent = parent;
  pthread_mutex_lock(&parent->mutex);
  bool ended = parent->ended; /* aborted meanwhile */
  child->next = parent->children;
  parent->children = child;
  parent->users++;
  pthread_mutex_unlock(&parent->mutex);
  if (ended)
    rs_nccl_end(child);
}

/* An end of the communicator ends the wait of a split; of a shrink it comes before. */
reshard_status rs_nccl_create_part(rs_nccl *c, const char *call, ncclComm_t nccl, rs_split_group *group,
                                   reshard_comm *part) {
  rs_nccl *made = NULL;
  int64_t since = rs_now_ns();
  ncclResult_t state = ncclInProgress;
  while (c->api.ncclCommGetAsyncError(nccl, &state) == ncclSuccess && state == ncclInProgress &&
         (group->nlost > 0 || !c->ended) && !rs_comm_poll(&c->base, since) && !rs_late(since, c->base.timeout_ms))
    rs_nccl_pause(since, RS_NCCL_SPIN_NS);
  RS_TRY_OR(state == ncclSuccess ? rs_nccl_create(&c->api, nccl, false, c->handle, c->base.timeout_ms, NULL, &made)
                                 : rs_error(RESHARD_ERROR_PEER, "%s: the new communicator is not there (NCCL error %d)",
                                            call, (int)state),
            rs_nccl_abort(c, nccl));
  made->base.global_ranks = group->global_ranks;
  group->global_ranks = NULL;
  (void)rs_board_join(&made->base, &c->base);
  *part = &made->base;
  return RESHARD_SUCCESS;
}

reshard_status rs_nccl_make_part(reshard_comm comm, rs_split_group *group, reshard_comm *part) {
  if (group->nlost > 0)
    return rs_nccl_shrink(comm, group, part);
  rs_nccl *c = rs_nccl_of(comm);
  ncclComm_t nccl = NULL;
  reshard_status status = split_nccl(c, group, &nccl);
  if (status == RESHARD_SUCCESS && nccl != NULL)
    status = rs_nccl_create_part(c, "ncclCommSplit", nccl, group, part);
  else /* it was being made */
    rs_nccl_abort(c, nccl);
  if (*part != NULL)
    add_child(c, rs_nccl_of(*part));
  c->part = rs_nccl_of(*part);
  c->part_ranks = group->ranks;
  if (status == RESHARD_SUCCESS || !c->ended) /* else no rank hears it any more */
    status = rs_comm_agree(comm, status);
  c->part = NULL;
  c->part_ranks = NULL;
  return status;
}
