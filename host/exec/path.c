#include "exec/path.h"

#include "device/stream.h"
#include "device/trace.h"
#include "exec/transfer.h"

#include <stddef.h>

/* The best first. */
static const rs_path_ops *const paths[] = {&rs_direct_path, &rs_mixed_path, &rs_packed_path};
enum { PATHS = sizeof paths / sizeof *paths };

const rs_path_ops *rs_path_find(reshard_comm comm, reshard_path wish) {
  for (int i = 0; i < PATHS; i++)
    if ((wish == RESHARD_PATH_AUTO || wish == paths[i]->number) && paths[i]->applicable(comm, wish))
      return paths[i];
  return NULL;
}

const char *rs_path_name(reshard_path number) {
  for (int i = 0; i < PATHS; i++)
    if (paths[i]->number == number)
      return paths[i]->name;
  return "auto";
}

reshard_status rs_execution_meet(rs_execution *x, rs_step step, const char *edge) {
  rs_stream_meeting *meeting = x->t[0]->meeting;
  rs_lane *lane = x->flow.lane[0];
  void *stream;
  if (meeting == NULL)
    return RESHARD_SUCCESS;
  RS_TRY(rs_flow_use(&x->flow, lane, step, &stream));
  return rs_stream_meet(lane->device, meeting, NULL, 0, stream, edge); /* the meeting is this transfer's alone */
}

int64_t rs_execution_copied(const rs_execution *x, const rs_device *device) {
  int64_t bytes = 0;
  if (!rs_trace_heard(device))
    return -1;
  for (int64_t i = 0; i < x->n; i++)
    bytes += x->t[i]->plan->info.kept_bytes + x->t[i]->binding.foreign_bytes;
  return bytes;
}
