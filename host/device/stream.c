/* All records of events and all waits for them. */
#include "device/stream.h"

#include "device/trace.h"

#ifdef RS_TEST_EDGES
static rs_edge_hook edge_hook;
static void *edge_hook_user;

void rs_stream_set_hook(rs_edge_hook set, void *user) {
  edge_hook = set;
  edge_hook_user = user;
}

static bool edge_left_out(const char *edge, bool wait) {
  return edge_hook != NULL && edge_hook(edge_hook_user, edge, wait);
}
#else
static inline bool edge_left_out(const char *edge, bool wait) {
  (void)edge, (void)wait;
  return false;
}
#endif

reshard_status rs_stream_create_urgent(rs_device *device, void **stream) {
  const rs_device_streams *streams = device->streams;
  return streams->create_urgent != NULL ? streams->create_urgent(device, stream) : streams->create(device, stream);
}

typedef reshard_status (*record_function)(rs_device *device, rs_event *event, void *stream);

static reshard_status record_event(rs_device *device, record_function record, rs_event *event, void *stream,
                                   const char *edge) {
  if (event == NULL || edge_left_out(edge, false))
    return RESHARD_SUCCESS;
  rs_trace_begin(device, stream, &(rs_trace_step){RS_TRACE_RECORD, edge, event, -1, -1, -1, -1});
  reshard_status status = record(device, event, stream);
  rs_trace_end(device, stream);
  return status;
}

reshard_status rs_stream_record(rs_device *device, rs_event *event, void *stream, const char *edge) {
  return record_event(device, device->streams->event_record, event, stream, edge);
}

reshard_status rs_stream_record_external(rs_device *device, rs_event *event, void *stream, const char *edge) {
  record_function external = device->streams->event_record_external;
  return record_event(device, external != NULL ? external : device->streams->event_record, event, stream, edge);
}

reshard_status rs_stream_wait(rs_device *device, void *stream, rs_event *event, const char *edge) {
  if (event == NULL || edge_left_out(edge, true))
    return RESHARD_SUCCESS;
  rs_trace_begin(device, stream, &(rs_trace_step){RS_TRACE_WAIT, edge, event, -1, -1, -1, -1});
  reshard_status status = device->streams->event_wait(device, stream, event);
  rs_trace_end(device, stream);
  return status;
}

reshard_status rs_stream_meet(rs_device *device, rs_stream_barrier *meeting, const bool *with, uint32_t key,
                              void *stream, const char *edge) {
  rs_trace_work(device, stream, edge, -1, -1);
  reshard_status status = device->processes->run(device, meeting, with, key, !edge_left_out(edge, true), stream);
  rs_trace_worked(device, stream);
  return status;
}

reshard_status rs_stream_order(rs_device *device, void *earlier, void *later, rs_event *event, const char *edge) {
  if (earlier == later)
    return RESHARD_SUCCESS;
  RS_TRY(rs_stream_record(device, event, earlier, edge));
  return rs_stream_wait(device, later, event, edge);
}
