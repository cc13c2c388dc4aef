/* Bytes that receivers pass on (rule 11 of plans), beside the messages of the classes.
 *
 * A source cell meets an array that ranks of a domain hold alike, and none of them holds the cell. Some of these, the
 * takers, receive a slice each, and pass it on to the others: it enters the domain once. Domains with equally many such
 * ranks form chains. Takers of the first domain of a chain receive from the holders, those of each other one from the
 * domain before it. What one holder sends to one taker, for the same ranks, is a stream: its pieces stay as they are on
 * all hops. A pair of ranks has one message a round, a piece of each of its streams. All else that a holder sends to a
 * rank is the plain stream.
 *
 * The messages of the plan's classes pass nothing on. They are what transfers take whose path does not. */
#ifndef RS_PLAN_HOPS_H
#define RS_PLAN_HOPS_H

#include "plan/plan.h"

/* Ranks of the domains of a chain, one after the other, that hold an array alike: by rank in each. */
typedef struct rs_hop_group {
  int64_t first, count; /* in rs_hop_groups.rank */
  int64_t each;         /* ranks of a domain */
  uint64_t hash;
} rs_hop_group;
typedef struct rs_hop_groups {
  RS_VEC(rs_hop_group) group; /* the first one is none */
  RS_VEC(int64_t) rank;
  RS_VEC(int64_t) table; /* of numbers, by hash; -1: free */
} rs_hop_groups;

struct rs_receiver;
struct rs_work;
/* The number of the group of so many receivers' ranks, `each` of a domain; it is added where there is none. */
reshard_status rs_hop_groups_find(rs_hop_groups *groups, int64_t n, int64_t each, const struct rs_receiver *receivers,
                                  int64_t *number);
/* Cuts the receivers of a cell, whose sources are found, in slices that enter their domains once (topology/units.c). */
reshard_status rs_cut_units(struct rs_work *work);

typedef struct rs_stream {
  int64_t holder, taker;
  int64_t group;  /* of the takers and those whom they pass on to; 0: none, it is plain */
  bool from_here; /* the holder is this rank: the segments are of the send side */
  int64_t bytes;
  /* Place of its first segment in the order of messages: entries, the taker's array, the holder's array. */
  int64_t width, entry;
  int32_t taker_array, src_array;
} rs_stream;

/* A stream as a part of the messages to a peer, or from it. */
typedef struct rs_stream_end {
  int64_t peer, stream;
  int64_t like; /* sent: the end of an earlier peer, in a message that is the same; -1: there is none */
  int hop;
} rs_stream_end;
typedef RS_VEC(rs_stream_end) rs_stream_ends;

typedef struct rs_hops {
  rs_class *classes; /* as the plan's. The messages are those of streams: `peer` is the stream's number */
  int64_t nclasses;
  rs_hop_groups groups;
  RS_VEC(rs_stream) streams;
  rs_stream_ends sends, receives; /* by peer, and in the order of the message */
  RS_VEC(rs_peer) peers;          /* what they come to */
  int64_t shared;                 /* ends of the sends that are */
  int64_t most_of_pair;           /* streams of a message */
  int64_t longest;                /* bytes of a stream that is passed on */
  int64_t hops;                   /* of the longest way to this rank, or from it; 1: none is passed on */
} rs_hops;

/* Finds the parts that the plan's rank has in what is passed on. */
reshard_status rs_hops_create(const struct reshard_plan_s *plan, rs_hops **hops);
void rs_hops_free(rs_hops *hops);
int64_t rs_hops_memory(const rs_hops *hops);

/* Classes whose destination has overlapping boxes pass nothing on: who needs what is no longer a matter of arrays. */
static inline bool rs_class_passes(const rs_class *c) {
  return c->dst->kind != RESHARD_LAYOUT_BOXES || !c->dst->boxes->overlapping;
}

/* The side that has the messages of a stream. */
static inline const rs_side *rs_stream_side(const rs_stream *stream, const rs_class *class_) {
  return stream->from_here ? &class_->send : &class_->receive;
}

/* The peers that a plan tells of: by way of others where it passes bytes on, else those of its messages. */
static inline int64_t rs_plan_told(const struct reshard_plan_s *plan, const rs_peer **peers) {
  *peers = plan->hops != NULL ? plan->hops->peers.at : plan->peers.at;
  return plan->hops != NULL ? plan->hops->peers.n : plan->peers.n;
}

#endif
