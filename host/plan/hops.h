/* Bytes that receivers pass on (rule 11 of plans), beside the messages of the classes.
 *
 * A source cell meets an array that ranks of a domain hold alike, and none of them holds the cell. Some of these, the
 * takers, receive a slice each, and pass it on to the others: it enters the domain once. Domains with equally many such
 * ranks form chains. Takers of the first domain of a chain receive from the holders, those of each other one from the
 * domain before it. What one holder sends to one taker, for the same ranks, is a stream: its pieces stay as they are on
 * all hops. A pair of ranks has one message a round, a piece of each of its streams. All else that a holder sends to a
 * rank is the plain stream.
 *
 * The messages of the plan's classes pass nothing on. They are what direct transfers take, and those of collectives. On
 * the mixed path plain streams of ranks of the node are no messages: their segments are read at the holder.
 *
 * Both are made with the plan, since a rank tells the others the rounds of both before a path is chosen. Of a plan of
 * DeepSeek-V3 (128 trainers to 16 engines of 8) the messages are 0.4 to 1.6 % of the instructions, and all that has to
 * do with domains is 5 to 10 %. Of one tensor on 16,384 ranks they are 20 %. Made on demand they would save that in dry
 * plans alone, and a class would have to be split from its segments wherever they are used. */
#ifndef RS_PLAN_HOPS_H
#define RS_PLAN_HOPS_H

#include "layout/sort.h"
#include "plan/plan.h"

/* Ranks of a domain that hold a destination cell: by rank. */
typedef struct rs_hop_domain {
  int64_t number;
  int64_t first, count; /* in rs_hop_groups.holder */
  int64_t begin, end;   /* of the places of the cell's domains with as many */
  uint64_t hash_before; /* sum over the domains of the cell before it */
} rs_hop_domain;

/* A destination cell of a class. Its domains come with few holders first, those with equally many by number. */
typedef struct rs_hop_cell {
  int64_t class_, cell;
  int64_t holders;        /* the first, in rs_hop_groups.holder */
  int64_t first, domains; /* in rs_hop_groups.domain */
  int64_t own, own_array; /* place of my domain among them, and my array; -1: none */
  uint64_t sum;           /* of the hashes of all */
  bool ascending;         /* of domains with equally many, each has its ranks above those of the one before */
} rs_hop_cell;

/* Domains [begin, end) of a cell that pass bytes on, but for some of them, which hold the source cell. */
typedef struct rs_hop_chain {
  int64_t cell; /* in rs_hop_groups.cell */
  int64_t begin, end;
  const int64_t *without; /* places, ascending */
  int64_t nwithout;
} rs_hop_chain;
/* All chains of the same ranks: as the first of them. */
typedef struct rs_hop_group {
  int64_t cell, begin, end, without, nwithout;
} rs_hop_group;

/* Numbers of things by their hashes. */
typedef struct rs_hop_table {
  RS_VEC(int64_t) slot; /* -1: free */
  RS_VEC(uint64_t) hash;
} rs_hop_table;
typedef struct rs_hop_groups {
  rs_hop_table cells, groups;
  RS_VEC(rs_hop_cell) cell;
  int64_t last;                 /* the cell that was found last */
  RS_VEC(rs_holder) holder;     /* of the cells */
  RS_VEC(rs_hop_domain) domain; /* of the cells */
  RS_VEC(rs_pair) place;        /* beside them: each cell's domains by number, and their places */
  RS_VEC(rs_hop_group) group;
  RS_VEC(int64_t) without;
} rs_hop_groups;

struct rs_work;
struct rs_hop_unit;
/* topology/groups.c. The number of a cell of the class that is intersected; one that is new is listed. */
reshard_status rs_hop_cell_find(struct rs_work *work, int64_t cell, int64_t *number);
/* Place of a domain among those of a cell; -1: it has no holder. */
int64_t rs_hop_cell_place(const rs_hop_groups *groups, const rs_hop_cell *cell, int64_t domain);
/* Domains of a chain, and the i-th of them; its place; how many are left out before a place. */
int64_t rs_hop_chain_domains(const rs_hop_chain *chain);
const rs_hop_domain *rs_hop_chain_at(const rs_hop_groups *groups, const rs_hop_chain *chain, int64_t i);
int64_t rs_hop_chain_place(const rs_hop_chain *chain, int64_t i);
int64_t rs_hop_without(const rs_hop_chain *chain, int64_t place);
/* The number of a chain's group, from 1 on, and the chain of a group. */
reshard_status rs_hop_groups_find(rs_hop_groups *groups, const rs_hop_chain *chain, int64_t *number);
rs_hop_chain rs_hop_chain_of(const rs_hop_groups *groups, int64_t group);
void rs_hop_groups_free(rs_hop_groups *groups);

/* topology/units.c. Receivers of a source cell, whose sources and units are found: slices that enter domains without
 * holders, or parts of those that are `here`, in this rank's domain. */
reshard_status rs_list_line(struct rs_work *work, bool here);
/* Those of one unit in the chain of this rank, which has that array of it. */
reshard_status rs_list_own_chain(struct rs_work *work, const struct rs_hop_unit *unit, int64_t array);
/* True where the line of domains without holders is counted, not listed, for so many of its places. */
reshard_status rs_line_is_counted(struct rs_work *work, int64_t wants, bool *counted);
/* Elements of that line, and before the slice that a rank takes for an array. */
reshard_status rs_count_line(struct rs_work *work, int64_t rank, int64_t array, int64_t *before, int64_t *total);

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
static inline int64_t rs_plan_partners(const struct reshard_plan_s *plan, const rs_peer **peers) {
  *peers = plan->hops != NULL ? plan->hops->peers.at : plan->peers.at;
  return plan->hops != NULL ? plan->hops->peers.n : plan->peers.n;
}

#endif
