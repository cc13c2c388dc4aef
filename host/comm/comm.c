#include "comm/comm.h"

reshard_status rs_comm_error_ended(void) {
  return rs_error(RESHARD_ERROR_PEER, "the communicator was aborted, or a rank gave up waiting");
}

int64_t reshard_comm_rank(reshard_comm comm) { return comm != NULL ? comm->rank : -1; }
int64_t reshard_comm_size(reshard_comm comm) { return comm != NULL ? comm->size : 0; }

const int64_t *reshard_comm_global_ranks(reshard_comm comm) { return comm != NULL ? comm->global_ranks : NULL; }

void reshard_comm_destroy(reshard_comm comm) {
  if (comm != NULL)
    comm->ops->destroy(comm);
}

reshard_status reshard_comm_abort(reshard_comm comm) {
  if (comm == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_abort: comm is NULL");
  return comm->ops->abort(comm);
}

reshard_status reshard_comm_split(reshard_comm comm, int64_t color, int64_t key, reshard_comm *sub) {
  if (comm == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_split: comm is NULL");
  rs_split mine = {.color = color, .key = key};
  reshard_comm made = NULL;
  if (sub == NULL) /* the others are told */
    mine.status = rs_error(RESHARD_ERROR_INVALID, "reshard_comm_split: sub is NULL");
  RS_TRY(comm->ops->split(comm, &mine, &made));
  *sub = made;
  return RESHARD_SUCCESS;
}

reshard_status reshard_comm_barrier(reshard_comm comm) {
  if (comm == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_barrier: comm is NULL");
  const void *all;
  return comm->ops->allgather(comm, "", 1, &all);
}

reshard_status reshard_comm_get_stats(reshard_comm comm, reshard_comm_stats *stats) {
  if (comm == NULL || stats == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_get_stats: NULL argument");
  stats->received_bytes = atomic_load_explicit(&comm->received_bytes, memory_order_relaxed);
  stats->received_messages = atomic_load_explicit(&comm->received_messages, memory_order_relaxed);
  return RESHARD_SUCCESS;
}
