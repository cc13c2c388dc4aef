/* Inside of binding the arrays of a packed transfer: bind.c, collective.c, and passed.c, where bytes are passed on. */
#ifndef RS_EXEC_PACKER_H
#define RS_EXEC_PACKER_H

#include "exec/packed/packed.h"
#include "plan/hops.h"

/* --- Collectives (collective.c) ----------------------------------------------------------------------------------- */

/* Local; the options are read, the arrays bound. */
void rs_collective_propose(struct reshard_transfer_s *t, const rs_arrays *arrays, rs_proposal *mine);
/* Decides from all ranks' proposals, on every rank alike: sets t->collective and t->why. RESHARD_ERROR_UNSUPPORTED
 * where a collective was forced and there is none. */
reshard_status rs_collective_decide(struct reshard_transfer_s *t,
                                    const rs_proposal *(*of)(const void *all, int64_t rank), const void *all);

/* Addresses of the messages of a collective in the user's arrays; NULL: they take so many bytes of staging. An
 * all-gather packs into the rank's own place of the received data. */
typedef struct rs_placement {
  char *send, *receive;
  int64_t send_bytes, receive_bytes;
  bool self_copies; /* what stays on the rank is copied by itself; else the collective brings it */
} rs_placement;
void rs_collective_place(const struct reshard_transfer_s *t, const reshard_pattern *pattern, const rs_arrays *arrays,
                         rs_placement *placement);
/* Staging, in steps as rs_plan_staged. */
size_t rs_placement_bytes(const rs_placement *placement);

/* --- Binding ------------------------------------------------------------------------------------------------------ */

/* A message on its way through the rounds, or a stream: pieces are asked for in order, so it is walked once. */
typedef struct packed_message {
  const rs_peer *peer;
  int64_t bytes;
  int64_t pieces, piece;       /* all, and the next one */
  int64_t round;               /* of the next piece */
  char *in_place;              /* where the message is in the user's memory; NULL: staged */
  rs_strided strided;          /* its runs there, where it is sent from them */
  char *staged;                /* its place in the first half of the staging */
  int32_t slot;                /* number of that place */
  bool own;                    /* kept data, as a part of a collective */
  bool shared;                 /* an earlier message is the same, and is packed already */
  int64_t part;                /* of streams to or from a peer, the first: messages that were made of them */
  int64_t at, segment, before; /* walk: position in plan->order, segment of that entry's message, bytes before it */
  const rs_stream_end *end; /* it is a stream of messages to or from the peer, which are made in passed.c; else NULL */
} packed_message;

typedef struct packer {
  reshard_transfer transfer;
  const struct reshard_plan_s *plan;
  rs_binding *binding;
  const rs_descriptor *const *descriptors; /* by rank; NULL: no sources of others are read */
  rs_staging_size staging;
  char *workspace;
  packed_message *sends, *receives; /* by peer */
  int64_t nsends, nreceives;
  rs_collective collective;
  rs_placement placement; /* of it */
  rs_copies copies;       /* of the part being made */
} packer;

/* Lists bytes [begin, end) of a message as copies between the rank's arrays and `linear`, where byte `begin` is. */
reshard_status rs_packer_lower(packer *packer, packed_message *message, bool sending, int64_t begin, int64_t end,
                               char *linear);
/* The copies listed so far, as a program; none when there are none. */
reshard_status rs_packer_compile(packer *packer, rs_copies *copies, rs_program **program);

/* passed.c: lists the streams of all messages, by peer, with their places from 0 on. */
reshard_status rs_packer_find_streams(packer *packer);
/* Adds the workspace to their places. */
void rs_packer_place_streams(packer *packer);
/* The messages of a round in one direction. */
reshard_status rs_packer_make_passed(packer *packer, bool sending, rs_round *round, int half);

#endif
