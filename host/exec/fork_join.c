#include "exec/fork_join.h"

#include "device/stream.h"

static rs_device *first_device(const rs_fork_join *fork_join) { return fork_join->comm->process.lane_devices[0]; }

reshard_status rs_fork_join_create(reshard_comm comm, rs_fork_join *fork_join) {
  rs_fork_join made = {.comm = comm};
  if (comm->locals == 1)
    return RESHARD_SUCCESS;
  reshard_status status = comm->device->streams->event_create(comm->device, &made.came);
  RS_THEN(status, first_device(&made)->streams->event_create(first_device(&made), &made.done));
  if (status != RESHARD_SUCCESS || made.came == NULL)
    rs_fork_join_destroy(&made);
  else
    *fork_join = made;
  return status;
}

void rs_fork_join_destroy(rs_fork_join *fork_join) {
  if (fork_join->comm == NULL)
    return;
  if (fork_join->came != NULL)
    fork_join->comm->device->streams->event_destroy(fork_join->comm->device, fork_join->came);
  if (fork_join->done != NULL)
    first_device(fork_join)->streams->event_destroy(first_device(fork_join), fork_join->done);
  *fork_join = (rs_fork_join){0};
}

void rs_fork_join_record(rs_fork_join *fork_join) {
  fork_join->behind = false;
  fork_join->status =
      rs_stream_record(fork_join->comm->device, fork_join->came, fork_join->stream, RS_EDGE("rank before work"));
  fork_join->text = reshard_last_error();
}

reshard_status rs_fork_join_open(rs_fork_join *fork_join, void *work) {
  if (fork_join->comm == NULL)
    return RESHARD_SUCCESS;
  if (fork_join->status != RESHARD_SUCCESS)
    return rs_error(fork_join->status, "rank %lld: %s", (long long)fork_join->comm->rank, fork_join->text);
  return rs_stream_wait(first_device(fork_join), work, fork_join->came, RS_EDGE("work after rank"));
}

reshard_status rs_fork_join_close(rs_fork_join *fork_join, void *work) {
  if (fork_join->comm == NULL)
    return RESHARD_SUCCESS;
  reshard_status status = rs_stream_record(first_device(fork_join), fork_join->done, work, RS_EDGE("work before rank"));
  if (status != RESHARD_SUCCESS) /* the work must not outlive what the rank does with its arrays next */
    (void)first_device(fork_join)->streams->finish(first_device(fork_join));
  fork_join->behind = status == RESHARD_SUCCESS;
  return status;
}

/* The host waits where the stream cannot: the other ranks have heard already that the work is given. */
reshard_status rs_fork_join_wait(rs_fork_join *fork_join, reshard_status status) {
  rs_saved_error saved = {.status = RESHARD_SUCCESS};
  rs_error_save(&saved, status);
  reshard_status waited =
      rs_stream_wait(fork_join->comm->device, fork_join->stream, fork_join->done, RS_EDGE("rank after work"));
  if (waited != RESHARD_SUCCESS)
    waited = first_device(fork_join)->streams->finish(first_device(fork_join));
  fork_join->behind = false;
  return status == RESHARD_SUCCESS ? waited : rs_error_restore(&saved);
}
