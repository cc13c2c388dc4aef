/* Shrinking an NCCL communicator. After a deadline it is revoked, where NCCL can: that ends its kernels as an abort
 * does, but leaves what a shrink needs. An older NCCL has the shrink alone, which then ends them itself. */
#include "comm/nccl/end.h"

#include "comm/gather.h"
#include "comm/nccl/node.h"
#include "device/cuda/cuda.h"

#include <stdlib.h>

/* Ends the communicator where it has not ended, but for what the shrink needs. A revoked one is shrunk when that is
 * through. Where it has an error, as of a peer that died, NCCL cannot say so, and the shrink ends what is left. */
static reshard_status prepare_shrink(rs_nccl *c, int *flags) {
  ncclResult_t state = ncclInternalError;
  if (rs_nccl_has_revoke(c))
    rs_nccl_end(c);
  c->ended = true;
  pthread_mutex_lock(&c->mutex);
  rs_nccl_leave_node(c); /* streams wait there for a lost rank */
  pthread_mutex_unlock(&c->mutex);
  if (c->revoked)
    state = rs_nccl_wait_for_ended(c, c->base.timeout_ms);
  if (state == ncclInProgress)
    return rs_comm_error_timeout(&c->base, "ncclCommRevoke", c->base.timeout_ms, "");
  *flags = state == ncclSuccess ? NCCL_SHRINK_DEFAULT : NCCL_SHRINK_ABORT;
  return RESHARD_SUCCESS;
}

/* Of no more use, for NCCL cannot shrink it again: what it was making is given up. */
static void abort_ended(rs_nccl *c) {
  pthread_mutex_lock(&c->mutex);
  ncclComm_t nccl = c->nccl;
  c->nccl = NULL;
  c->revoked = false;
  pthread_mutex_unlock(&c->mutex);
  rs_nccl_abort(c, nccl);
}

void rs_nccl_stop(rs_nccl *c) {
  ncclResult_t state = rs_nccl_look_at_ended(c);
  pthread_mutex_lock(&c->mutex);
  bool through = c->revoked && state != ncclInProgress, again = c->outlived;
  c->outlived = through;
  pthread_mutex_unlock(&c->mutex);
  if (through && again)
    abort_ended(c);
}

/* The call itself, and until it is through. list: the lost ranks as NCCL wants them. */
static reshard_status call_shrink(rs_nccl *c, const rs_split_group *group, int *list, int flags) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  char missing[RS_PRESENCE_TEXT];
  config.blocking = 0;
  ncclResult_t result = ncclInvalidUsage;
  pthread_mutex_lock(&c->mutex);
  bool aborted = c->nccl == NULL; /* it could not be revoked */
  if (!aborted)
    result = c->api.ncclCommShrink(c->nccl, list, (int)group->nlost, c->split, &config, flags);
  pthread_mutex_unlock(&c->mutex);
  if (aborted)
    return rs_error(RESHARD_ERROR_SYSTEM, "ncclCommRevoke has failed, and the communicator was aborted");
  c->splitting = result == ncclInProgress;
  if (result == ncclInProgress)
    result = rs_nccl_wait_for_ended(c, c->base.timeout_ms);
  if (result == ncclInProgress)
    return rs_comm_error_timeout(&c->base, "ncclCommShrink", c->base.timeout_ms,
                                 rs_presence_text(c->presence, group->nlost, group->lost, missing));
  return result == ncclSuccess ? RESHARD_SUCCESS : rs_nccl_error(&c->api, c->nccl, result, "ncclCommShrink");
}

/* Collective over the survivors, in NCCL's sense. */
static reshard_status shrink_nccl(rs_nccl *c, const rs_split_group *group, ncclComm_t *out) {
  rs_cuda_before previous;
  int *list = NULL, flags = NCCL_SHRINK_DEFAULT;
  RS_TRY(rs_alloc(&list, group->nlost, sizeof *list));
  rs_presence_come(c->presence, RS_PRESENCE_SHRINK, 0);
  for (int64_t i = 0; i < group->nlost; i++)
    list[i] = (int)group->lost[i];
  reshard_status status = prepare_shrink(c, &flags);
  RS_THEN(status, rs_cuda_enter(c->base.device, &previous));
  if (status == RESHARD_SUCCESS) {
    status = call_shrink(c, group, list, flags);
    rs_cuda_leave(previous);
  }
  free(list);
  RS_TRY_OR(status, abort_ended(c));
  *out = *c->split;
  *c->split = NULL;
  c->splitting = false;
  return RESHARD_SUCCESS;
}

reshard_status rs_nccl_shrink(reshard_comm comm, rs_split_group *group, reshard_comm *part) {
  rs_nccl *c = rs_nccl_of(comm);
  ncclComm_t nccl = NULL;
  if (c->api.ncclCommShrink == NULL)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "reshard_comm_shrink: NCCL has ncclCommShrink from 2.27 on");
  if (c->base.borrowed)
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "reshard_comm_shrink: the NCCL communicator is the caller's, who shrinks it by ncclCommShrink");
  if (c->ended && !c->revoked)
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "reshard_comm_shrink: the communicator was aborted; NCCL keeps one that has ncclCommRevoke");
  RS_TRY(shrink_nccl(c, group, &nccl));
  RS_TRY(rs_nccl_create_part(c, "ncclCommShrink", nccl, group, part)); /* others hear of an error when they agree */
  return rs_comm_agree(*part, RESHARD_SUCCESS);
}
