/* The streams of one GPU for one transfer, and the order between them.
 *
 * Ranks of a process on one GPU share a lane. A round is packed, moved and unpacked; each of these steps has a stream
 * of its own where rounds overlap. The data that stays on a rank has one where it runs beside the exchange. A step's
 * stream comes after the user's when it is first used, by `start`, unless it waits for another step that did. At the
 * end the user's stream waits for those streams of all lanes that have work which no other has waited for.
 *
 * A stream is forked only when it gets work, and every event that is recorded is waited for. However far an execute
 * came, after rs_flow_end nothing of it runs beside the user's stream. */
#ifndef RS_EXEC_LANE_H
#define RS_EXEC_LANE_H

#include "device/device.h"

typedef enum rs_step { RS_MOVE, RS_PACK, RS_UNPACK, RS_SELF_COPY, RS_STEPS } rs_step;

/* Events of neighbouring rounds alternate: [2] by the parity of the round's number. */
enum { RS_START, RS_END, RS_PACKED, RS_MOVED = RS_PACKED + 2, RS_UNPACKED = RS_MOVED + 2, RS_EVENTS = RS_UNPACKED + 2 };

typedef struct rs_lane {
  rs_device *device; /* NULL: not this rank's */
  int64_t number;    /* of the lane */
  void *side[RS_STEPS];
  rs_event *event[RS_EVENTS];
  /* of the execute that is given to it */
  void *stream[RS_STEPS];
  rs_step at[RS_STEPS];        /* which of the streams a step is on */
  bool open[RS_STEPS];         /* a stream comes after the user's */
  int64_t given[RS_STEPS];     /* things that a stream has been given */
  int64_t joined[RS_STEPS];    /* of them, how many another stream comes after */
  int64_t noted[RS_EVENTS];    /* things that an event stands for */
  int64_t noted_in[RS_EVENTS]; /* number of the round in which an event was recorded last; -1: in none */
  /* of a round of it */
  bool packs, moves, unpacks;     /* it has something to */
  bool note_moved, note_unpacked; /* another step will wait for it */
  bool *from;                     /* [lanes]: what it moves was packed there */
  /* Staging is used again: rounds that have to be behind, and those that are known to be; -1: none. */
  int64_t *move_needed, *move_seen; /* [lanes]: what was packed here, and is packed over, was moved by that lane */
  int64_t unpack_needed, unpack_seen;
  int64_t pass_needed, pass_seen; /* the same of unpacks whose bytes are packed again, to be passed on */
} rs_lane;

/* Streams that a transfer needs: one that stands for those of the ranks; those of overlapping rounds; of the packed
 * path. */
typedef struct rs_lane_needs {
  bool ranks, rounds, packed;
  int64_t lanes, number; /* number of lanes, and of this one */
} rs_lane_needs;
reshard_status rs_lane_create(rs_device *device, const rs_lane_needs *needs, rs_lane *lane);
void rs_lane_destroy(rs_lane *lane);

/* All lanes of an execute. */
typedef struct rs_flow {
  int64_t n;
  rs_lane **lane; /* the user's stream, or what stands for the ranks', is stream[RS_MOVE] of the first */
  bool started;
} rs_flow;
/* rounds: that there are any, and more than one. */
void rs_flow_begin(rs_flow *flow, void *stream, bool any_rounds, bool more_rounds);
/* All streams of steps that begin later come after what the user's stream has now. Done when the first of them begins,
 * if not before. */
reshard_status rs_flow_start(rs_flow *flow);
/* The stream for a step of a lane, which is about to get work. */
reshard_status rs_flow_use(rs_flow *flow, rs_lane *lane, rs_step step, void **stream);
/* Records what a step has been given up to a round, for others to wait for. */
reshard_status rs_flow_note(rs_lane *lane, rs_step step, int64_t round);
/* A step waits for what another one did in a round, which was noted; nothing where they are on one stream. *seen: the
 * last round of the other one that it is known to come after, -1 at first. */
reshard_status rs_flow_wait(rs_lane *later, rs_step step, rs_lane *earlier, rs_step other, int64_t round,
                            int64_t *seen);
/* Joins what has been given to any stream; also after an error. The user's stream comes after all. */
reshard_status rs_flow_end(rs_flow *flow);

#endif
