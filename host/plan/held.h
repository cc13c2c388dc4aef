/* Counts of what ranks hold of the entries, from the layouts alone: no intersection is made. */
#ifndef RS_PLAN_HELD_H
#define RS_PLAN_HELD_H

#include "plan/plan.h"

/* Calls visit for each cell of one side that has elements in the region: how many, and who holds it, by rank. The boxes
 * of a flat piece, which one rank has, are one cell. */
typedef reshard_status (*rs_held_visit)(void *user, int64_t elements, const rs_holder *holders, int64_t n);
reshard_status rs_class_visit_held(const rs_class *class_, bool src, rs_held_visit visit, void *user);

/* Bytes on the wire that a rank has on average, of those that hold any: of all entries, replicas included, on the side
 * that has more. Every rank computes the same. */
reshard_status rs_plan_held(const struct reshard_plan_s *plan, int64_t *bytes);
/* A bound of it in time that does not depend on the world. */
int64_t rs_plan_held_at_most(const struct reshard_plan_s *plan);

#endif
