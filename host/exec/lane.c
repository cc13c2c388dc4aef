#include "exec/lane.h"

#include "device/stream.h"

#include <stdlib.h>
#include <string.h>

/* Names of the edges, by the step that is later. An unpack waits for a move before it does anything else, and with that
 * for the user. */
static const char *const start_edges[RS_STEPS] = {RS_EDGE("move after user"), RS_EDGE("pack after user"), NULL,
                                                  RS_EDGE("keep after user")};
static const char *const tail_edges[RS_STEPS] = {RS_EDGE("move before user"), RS_EDGE("pack before user"),
                                                 RS_EDGE("unpack before user"), RS_EDGE("keep before user")};
static const char *const end_edges[RS_STEPS] = {RS_EDGE("user after move"), RS_EDGE("user after pack"),
                                                RS_EDGE("user after unpack"), RS_EDGE("user after keep")};
static const char *const note_edges[RS_STEPS] = {RS_EDGE("move before others"), RS_EDGE("pack before move"),
                                                 RS_EDGE("unpack before others"), NULL};

static bool needs_stream(const rs_lane_needs *needs, int step) {
  return step == RS_MOVE ? needs->ranks : step == RS_SELF_COPY ? needs->packed : needs->rounds;
}

static bool needs_event(const rs_lane_needs *needs, int event) {
  bool lanes = needs->lanes > 1;
  if (event < RS_PACKED)
    return needs->packed || lanes;
  return needs->rounds || (event < RS_MOVED && needs->packed && lanes);
}

reshard_status rs_lane_create(rs_device *device, const rs_lane_needs *needs, rs_lane *out) {
  rs_lane lane = {.device = device, .number = needs->number};
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc_zero(&lane.from, needs->lanes, sizeof *lane.from), fail);
  RS_TRY_GOTO(status, rs_alloc_zero(&lane.move_needed, needs->lanes, sizeof *lane.move_needed), fail);
  RS_TRY_GOTO(status, rs_alloc_zero(&lane.move_seen, needs->lanes, sizeof *lane.move_seen), fail);
  for (int s = 0; s < RS_STEPS; s++)
    if (needs_stream(needs, s))
      RS_TRY_GOTO(status,
                  s == RS_MOVE ? rs_stream_create_urgent(device, &lane.side[s])
                               : device->streams->create(device, &lane.side[s]),
                  fail);
  for (int e = 0; e < RS_EVENTS; e++)
    if (needs_event(needs, e))
      RS_TRY_GOTO(status, device->streams->event_create(device, &lane.event[e]), fail);
  *out = lane;
  return RESHARD_SUCCESS;
fail:
  rs_lane_destroy(&lane);
  return status;
}

void rs_lane_destroy(rs_lane *lane) {
  if (lane->device == NULL)
    return;
  for (int e = 0; e < RS_EVENTS; e++)
    if (lane->event[e] != NULL)
      lane->device->streams->event_destroy(lane->device, lane->event[e]);
  for (int s = 0; s < RS_STEPS; s++)
    if (lane->side[s] != NULL)
      lane->device->streams->destroy(lane->device, lane->side[s]);
  free(lane->from);
  free(lane->move_needed);
  free(lane->move_seen);
  *lane = (rs_lane){0};
}

void rs_flow_begin(rs_flow *flow, void *stream, bool any_rounds, bool more_rounds) {
  flow->started = false;
  for (int64_t g = 0; g < flow->n; g++) {
    rs_lane *lane = flow->lane[g];
    memcpy(lane->stream, lane->side, sizeof lane->stream);
    memset(lane->open, 0, sizeof lane->open);
    memset(lane->given, 0, sizeof lane->given);
    memset(lane->joined, 0, sizeof lane->joined);
    for (int e = 0; e < RS_EVENTS; e++)
      lane->noted_in[e] = -1;
    for (int64_t h = 0; h < flow->n; h++)
      lane->move_seen[h] = -1;
    lane->unpack_seen = lane->pass_seen = -1;
    lane->at[RS_MOVE] = RS_MOVE;
    lane->at[RS_PACK] = more_rounds ? RS_PACK : RS_MOVE;
    lane->at[RS_UNPACK] = more_rounds ? RS_UNPACK : RS_MOVE;
    lane->at[RS_SELF_COPY] = any_rounds ? RS_SELF_COPY : RS_MOVE;
  }
  flow->lane[0]->stream[RS_MOVE] = stream;
  flow->lane[0]->open[RS_MOVE] = true;
}

reshard_status rs_flow_start(rs_flow *flow) {
  rs_lane *first = flow->lane[0];
  if (!flow->started)
    RS_TRY(
        rs_stream_record(first->device, first->event[RS_START], first->stream[RS_MOVE], RS_EDGE("user before sides")));
  flow->started = true;
  return RESHARD_SUCCESS;
}

reshard_status rs_flow_use(rs_flow *flow, rs_lane *lane, rs_step step, void **stream) {
  rs_step at = lane->at[step];
  if (!lane->open[at]) {
    RS_TRY(rs_flow_start(flow));
    RS_TRY(rs_stream_wait(lane->device, lane->stream[at], flow->lane[0]->event[RS_START], start_edges[at]));
    lane->open[at] = true;
  }
  lane->given[at]++;
  *stream = lane->stream[at];
  return RESHARD_SUCCESS;
}

/* The first of a step's two events by parity. */
static int event_of(rs_step step) { return step == RS_PACK ? RS_PACKED : step == RS_MOVE ? RS_MOVED : RS_UNPACKED; }

reshard_status rs_flow_note(rs_lane *lane, rs_step step, int64_t round) {
  rs_step at = lane->at[step];
  int event = event_of(step) + (int)(round % 2);
  lane->noted[event] = lane->given[at];
  lane->noted_in[event] = round;
  return rs_stream_record(lane->device, lane->event[event], lane->stream[at], note_edges[step]);
}

/* Name of a wait, by the two steps. */
static const char *wait_edge(rs_step later, rs_step earlier) {
  if (later == RS_MOVE)
    return earlier == RS_PACK ? RS_EDGE("move after pack") : RS_EDGE("move after unpack");
  if (later == RS_PACK)
    return earlier == RS_UNPACK ? RS_EDGE("pack after unpack") : RS_EDGE("pack after move");
  return RS_EDGE("unpack after move");
}

reshard_status rs_flow_wait(rs_lane *later, rs_step step, rs_lane *earlier, rs_step other, int64_t round,
                            int64_t *seen) {
  rs_step at = later->at[step], from = earlier->at[other];
  if ((later == earlier && at == from) || *seen >= round)
    return RESHARD_SUCCESS;
  /* The older of the two events that comes after the round: rounds in between may have recorded again. */
  const int64_t *noted_in = &earlier->noted_in[event_of(other)];
  int which = noted_in[1] < round || (noted_in[0] >= round && noted_in[0] < noted_in[1]) ? 0 : 1;
  int event = event_of(other) + which;
  RS_TRY(rs_stream_wait(later->device, later->stream[at], earlier->event[event], wait_edge(step, other)));
  *seen = noted_in[which];
  earlier->joined[from] = rs_max(earlier->joined[from], earlier->noted[event]);
  later->open[at] = true;
  later->given[at]++; /* a step after this one is after the other, too */
  return RESHARD_SUCCESS;
}

/* The host waits only where the stream cannot. */
static reshard_status join_stream(rs_lane *first, rs_lane *lane, int s) {
  reshard_status status = rs_stream_record(lane->device, lane->event[RS_END], lane->stream[s], tail_edges[s]);
  RS_THEN(status, rs_stream_wait(first->device, first->stream[RS_MOVE], lane->event[RS_END], end_edges[s]));
  if (status != RESHARD_SUCCESS)
    (void)lane->device->streams->synchronize(lane->device, lane->stream[s]);
  return status;
}

reshard_status rs_flow_end(rs_flow *flow) {
  rs_lane *first = flow->lane[0];
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t g = 0; g < flow->n; g++)
    for (int s = 0; s < RS_STEPS; s++) {
      rs_lane *lane = flow->lane[g];
      if (lane->joined[s] == lane->given[s] || (lane == first && s == RS_MOVE))
        continue;
      reshard_status joined = join_stream(first, lane, s);
      status = status != RESHARD_SUCCESS ? status : joined;
    }
  return status;
}
