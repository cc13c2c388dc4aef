/* Counts of what ranks hold of the entries, from the layouts alone: no intersection is made. */
#ifndef RS_PLAN_HELD_H
#define RS_PLAN_HELD_H

#include "plan/plan.h"

/* Elements of the region of a class that each of `world` ranks holds in its arrays of one side. */
reshard_status rs_class_held(const rs_class *class_, bool src, int64_t world, int64_t *held);

/* Elements of a cell, in the region, that a rank holds. */
typedef struct rs_held_piece {
  uint64_t cell;
  int64_t rank, elements;
} rs_held_piece;
typedef RS_VEC(rs_held_piece) rs_held_pieces;
/* Those of one side, by cell and rank. Flat pieces, which have one holder each, are a cell each. */
reshard_status rs_class_pieces(const rs_class *class_, bool src, int64_t world, rs_held_pieces *pieces);

/* Bytes on the wire that a rank has on average, of those that hold any: of all entries, replicas included, on the side
 * that has more. Every rank computes the same. */
reshard_status rs_plan_held(const struct reshard_plan_s *plan, int64_t *bytes);
/* A bound of it in time that does not depend on the world. */
int64_t rs_plan_held_at_most(const struct reshard_plan_s *plan);

#endif
