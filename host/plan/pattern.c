/* Finds the collective that this rank's messages may be a part of.
 *
 * Each rank can only see its own messages: the same content to everybody, the same number of bytes to and from
 * everybody, all from one rank. All ranks compare what they found by a record; only then is the collective
 * certain. */
#include "plan/messages.h"

/* True when two segments of one class name the same elements of the source, in the same order. */
static bool same_elements(const rs_class *c, rs_route to_a, const rs_segment *a, rs_route to_b, const rs_segment *b) {
  if (a->src_array != b->src_array || a->elements != b->elements)
    return false;
  rs_geometry x, y;
  rs_segment_geometry(c, &c->send, to_a, a, &x);
  rs_segment_geometry(c, &c->send, to_b, b, &y);
  if (x.cut != y.cut || a->begin != b->begin)
    return false;
  for (int d = 0; d < x.naxes; d++) {
    if (x.axis[d].count != y.axis[d].count)
      return false;
    for (int64_t r = 0; r < x.axis[d].count; r++) { /* `ask` is this rank's own side */
      const rs_run *p = &x.axis[d].runs[r], *q = &y.axis[d].runs[r];
      if (p->ask != q->ask || p->n != q->n)
        return false;
    }
  }
  return true;
}

static bool same_content(const struct reshard_plan_s *plan, int64_t peer, int64_t other) {
  for (int64_t k = 0; k < plan->classes.n; k++) {
    const rs_class *c = &plan->classes.at[k];
    const rs_message *a = rs_side_message(&c->send, peer), *b = rs_side_message(&c->send, other);
    if ((a == NULL) != (b == NULL) || (a != NULL && a->count != b->count))
      return false;
    for (int64_t i = 0; a != NULL && i < a->count; i++)
      if (!same_elements(c, (rs_route){plan->rank, peer}, &a->segments[i], (rs_route){plan->rank, other},
                         &b->segments[i]))
        return false;
  }
  return true;
}

static bool same_to_all(const struct reshard_plan_s *plan) {
  for (int64_t i = 1; i < plan->peers.n; i++)
    if (!same_content(plan, plan->peers.at[0].rank, plan->peers.at[i].rank))
      return false;
  return true;
}

static reshard_pattern no_pattern(const char *why) { return (reshard_pattern){RESHARD_COLLECTIVE_NONE, -1, 0, why}; }

reshard_pattern rs_plan_pattern(const struct reshard_plan_s *plan) {
  int64_t n = plan->peers.n, sends = 0, receives = 0, bytes = 0, from = -1;
  bool equal = true;
  if (plan->world < 2 || n == 0)
    return no_pattern("it exchanges nothing");
  for (int64_t i = 0; i < n; i++) {
    const rs_peer *p = &plan->peers.at[i];
    int64_t sides[] = {p->sent, p->received};
    for (int s = 0; s < 2; s++) {
      equal &= sides[s] == 0 || bytes == 0 || sides[s] == bytes;
      bytes = sides[s] > 0 ? sides[s] : bytes;
    }
    sends += p->sent > 0;
    receives += p->received > 0;
    from = p->received > 0 ? p->rank : from;
  }
  if (!equal)
    return no_pattern("messages differ in length");
  if (sends == 0 && receives == 1)
    return (reshard_pattern){RESHARD_COLLECTIVE_BROADCAST, from, bytes, "all from one rank"};
  if (sends != plan->world - 1)
    return no_pattern("not everybody is sent to");
  if (receives == 0)
    return same_to_all(plan)
               ? (reshard_pattern){RESHARD_COLLECTIVE_BROADCAST, plan->rank, bytes, "the same to everybody"}
               : no_pattern("one rank sends different bytes to each");
  if (receives != plan->world - 1)
    return no_pattern("not everybody sends");
  if (same_to_all(plan))
    return (reshard_pattern){RESHARD_COLLECTIVE_ALL_GATHER, -1, bytes, "the same to everybody, as much from everybody"};
  if (plan->info.self_copy_bytes != bytes)
    return no_pattern("what stays differs in length from what is sent");
  return (reshard_pattern){RESHARD_COLLECTIVE_ALL_TO_ALL, -1, bytes, "as much to everybody as from everybody"};
}

bool rs_plan_keeps_what_it_sends(const struct reshard_plan_s *plan) {
  return plan->peers.n > 0 && same_content(plan, plan->rank, plan->peers.at[0].rank);
}

const char *reshard_collective_string(reshard_collective collective) {
  static const char *const names[] = {"none", "all-gather", "all-to-all", "broadcast"};
  return (int)collective >= 0 && collective <= RESHARD_COLLECTIVE_BROADCAST ? names[collective] : "unknown";
}

reshard_status reshard_plan_get_pattern(reshard_plan plan, reshard_pattern *pattern) {
  if (plan == NULL || pattern == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_plan_get_pattern: %s is NULL", plan == NULL ? "plan" : "pattern");
  *pattern = rs_plan_pattern(plan);
  return RESHARD_SUCCESS;
}
