/* Splitting an NCCL communicator: the ranks tell each other what they want, NCCL splits, and they tell each other
 * whether it did. */
#include "comm/nccl/end.h"

#include "comm/split_group.h"
#include "device/cuda/cuda.h"

#include <stdlib.h>

/* Collective in NCCL's sense: called by every rank, also one that gets nothing. *out is NULL then, and after an error
 * when the split may be under way still. */
static reshard_status split_nccl(rs_nccl *c, const rs_split_group *group, ncclComm_t *out) {
  rs_cuda_before previous;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  rs_roll_come(c->roll, RS_ROLL_STEP, 0);
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
    rs_roll_pass(c->roll);
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

/* The new communicator, around what NCCL made; made or not, nccl is taken care of. */
static reshard_status create_child(rs_nccl *parent, ncclComm_t nccl, rs_split_group *group, rs_nccl **out) {
  int64_t since = rs_now_ns();
  ncclResult_t state = ncclInProgress;
  while (parent->api.ncclCommGetAsyncError(nccl, &state) == ncclSuccess && state == ncclInProgress && !parent->ended &&
         !rs_comm_poll(&parent->base, since) && !rs_late(since, parent->timeout_ms))
    rs_nccl_pause(since, RS_NCCL_SPIN_NS);
  reshard_status status =
      state == ncclSuccess ? rs_nccl_create(&parent->api, nccl, false, parent->handle, parent->timeout_ms, out)
                           : rs_error(RESHARD_ERROR_PEER,
                                      "ncclCommSplit: the new communicator is not there (NCCL error %d)", (int)state);
  if (status != RESHARD_SUCCESS) {
    rs_nccl_abort(parent, nccl);
    return status;
  }
  (*out)->base.global_ranks = (*out)->global_ranks = group->global_ranks;
  (*out)->number = parent->number;
  group->global_ranks = NULL;
  add_child(parent, *out);
  return rs_board_join(&(*out)->base, &parent->base);
}

/* Tells whether all ranks have succeeded. It also finds the ranks of the part that are in sight, so that errors of its
 * calls name them. */
static reshard_status agree(rs_nccl *c, const rs_split_group *group, rs_nccl *made, reshard_status status) {
  rs_roll_offer *offers = NULL;
  if (status == RESHARD_SUCCESS && made != NULL)
    status = rs_alloc(&offers, group->n, sizeof *offers);
  c->group = group;
  c->part = made;
  status = rs_split_agree(&c->base, status);
  c->part = NULL;
  for (int64_t r = 0; r < c->base.size && status == RESHARD_SUCCESS && made != NULL; r++)
    if (c->all[r].color == group->color)
      offers[c->all[r].place] = c->all[r].roll;
  if (status == RESHARD_SUCCESS && made != NULL)
    rs_roll_join(made->roll, offers, sizeof *offers);
  free(offers);
  return status;
}

reshard_status rs_nccl_split(reshard_comm comm, const rs_split *mine, reshard_comm *sub) {
  rs_nccl *c = rs_nccl_of(comm), *made = NULL;
  ncclComm_t nccl = NULL;
  rs_split_group group;
  RS_TRY(rs_split_group_find(comm, mine, &group));
  reshard_status status = split_nccl(c, &group, &nccl);
  if (status == RESHARD_SUCCESS && nccl != NULL)
    status = create_child(c, nccl, &group, &made);
  else /* it was being made */
    rs_nccl_abort(c, nccl);
  if (status == RESHARD_SUCCESS || !c->ended) /* else no rank hears it any more */
    status = agree(c, &group, made, status);
  if (status != RESHARD_SUCCESS && made != NULL)
    rs_nccl_close(made);
  free(group.global_ranks);
  if (status == RESHARD_SUCCESS)
    *sub = made != NULL ? &made->base : NULL;
  return status;
}
