/* Copies to a rank straight from the arrays of the ranks that hold the data, as boxes. */
#include "exec/arrays.h"
#include "plan/messages.h"

/* Copies of one message (or of what is kept: the message to itself), all into this rank's arrays. */
static reshard_status pull_message(const struct reshard_plan_s *plan, int64_t entry, bool kept,
                                   const rs_message *message, rs_view_of view_of, void *user, rs_copies *copies) {
  const rs_class *c = &plan->classes.at[plan->entries[entry].class_];
  for (int64_t i = 0; i < message->count; i++) {
    const rs_segment *s = &message->segments[i];
    rs_view src, dst;
    RS_TRY(view_of(user, message->peer, entry, true, s->src_array, &src));
    RS_TRY(view_of(user, plan->rank, entry, false, s->dst_array, &dst));
    rs_lowering lowering = {c, kept, {message->peer, plan->rank}, s, &src, &dst, NULL};
    RS_TRY(rs_lower(&lowering, copies));
  }
  return RESHARD_SUCCESS;
}

/* Copies of the data that stays on the rank. */
static reshard_status pull_own(const struct reshard_plan_s *plan, int64_t entry, rs_view_of view_of, void *user,
                               rs_copies *copies) {
  const rs_message *own = rs_side_message(&plan->classes.at[plan->entries[entry].class_].send, plan->rank);
  return own != NULL ? pull_message(plan, entry, true, own, view_of, user, copies) : RESHARD_SUCCESS;
}

reshard_status rs_pull(const struct reshard_plan_s *plan, rs_view_of view_of, void *user, rs_copies *copies,
                       int64_t *foreign_bytes) {
  for (int64_t i = 0; i < plan->nentries; i++) {
    const rs_class *c = &plan->classes.at[plan->entries[i].class_];
    RS_TRY(pull_own(plan, i, view_of, user, copies));
    int64_t before = copies->bytes;
    for (int64_t m = 0; m < c->receive.messages.n; m++)
      RS_TRY(pull_message(plan, i, false, &c->receive.messages.at[m], view_of, user, copies));
    *foreign_bytes += copies->bytes - before;
  }
  return RESHARD_SUCCESS;
}

typedef struct own_arrays {
  const struct reshard_plan_s *plan;
  const rs_arrays *arrays;
} own_arrays;

static reshard_status view_of_own(void *user, int64_t rank, int64_t entry, bool source, int64_t array, rs_view *view) {
  const own_arrays *own = user;
  (void)rank;
  rs_arrays_view(own->arrays, own->plan, entry, source, array, view);
  return RESHARD_SUCCESS;
}

reshard_status rs_pull_own(const struct reshard_plan_s *plan, const rs_arrays *arrays, rs_copies *copies) {
  own_arrays own = {plan, arrays};
  for (int64_t i = 0; i < plan->nentries; i++)
    RS_TRY(pull_own(plan, i, view_of_own, &own, copies));
  return RESHARD_SUCCESS;
}
