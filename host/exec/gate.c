#include "exec/gate.h"

#include "device/stream.h"

static rs_device *first_device(const rs_gate *gate) { return gate->comm->process.lane_devices[0]; }

reshard_status rs_gate_create(reshard_comm comm, rs_gate *gate) {
  rs_gate made = {.comm = comm};
  if (comm->locals == 1)
    return RESHARD_SUCCESS;
  reshard_status status = comm->device->streams->event_create(comm->device, &made.came);
  RS_THEN(status, first_device(&made)->streams->event_create(first_device(&made), &made.done));
  if (status != RESHARD_SUCCESS || made.came == NULL)
    rs_gate_destroy(&made);
  else
    *gate = made;
  return status;
}

void rs_gate_destroy(rs_gate *gate) {
  if (gate->comm == NULL)
    return;
  if (gate->came != NULL)
    gate->comm->device->streams->event_destroy(gate->comm->device, gate->came);
  if (gate->done != NULL)
    first_device(gate)->streams->event_destroy(first_device(gate), gate->done);
  *gate = (rs_gate){0};
}

void rs_gate_record(rs_gate *gate) {
  gate->behind = false;
  gate->status = rs_stream_record(gate->comm->device, gate->came, gate->stream, RS_EDGE("rank before work"));
  gate->text = reshard_last_error();
}

reshard_status rs_gate_open(rs_gate *gate, void *work) {
  if (gate->comm == NULL)
    return RESHARD_SUCCESS;
  if (gate->status != RESHARD_SUCCESS)
    return rs_error(gate->status, "rank %lld: %s", (long long)gate->comm->rank, gate->text);
  return rs_stream_wait(first_device(gate), work, gate->came, RS_EDGE("work after rank"));
}

reshard_status rs_gate_close(rs_gate *gate, void *work) {
  if (gate->comm == NULL)
    return RESHARD_SUCCESS;
  reshard_status status = rs_stream_record(first_device(gate), gate->done, work, RS_EDGE("work before rank"));
  if (status != RESHARD_SUCCESS) /* the work must not outlive what the rank does with its arrays next */
    (void)first_device(gate)->streams->finish(first_device(gate));
  gate->behind = status == RESHARD_SUCCESS;
  return status;
}

/* The host waits where the stream cannot: the other ranks have heard already that the work is given. */
reshard_status rs_gate_wait(rs_gate *gate, reshard_status status) {
  rs_kept_error kept = {.status = RESHARD_SUCCESS};
  rs_error_keep(&kept, status);
  reshard_status waited = rs_stream_wait(gate->comm->device, gate->stream, gate->done, RS_EDGE("rank after work"));
  if (waited != RESHARD_SUCCESS)
    waited = first_device(gate)->streams->finish(first_device(gate));
  gate->behind = false;
  return status == RESHARD_SUCCESS ? waited : rs_error_restore(&kept);
}
