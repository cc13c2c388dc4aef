/* Collectives: chosen by all ranks when they make a transfer, and their messages' addresses.
 *
 * Every rank proposes the collective that its own messages are a part of, and all compare. A rank that cannot take part
 * proposes none, and says why. The data that stays on a rank takes part: the collective writes its place among the
 * messages: an all-gather goes from array to array where both sides are contiguous, and otherwise through staging of
 * the size that the messages of the plan would have: a rank packs into its own place of the received data. An
 * all-to-all takes staging for the data that stays, too.
 *
 * The parts of the round stay listed, with the addresses that they have here, counted and ordered, and their programs
 * pack and unpack. */
#include "exec/packed/packer.h"

#include "plan/place.h"
#include "plan/rounds.h"

#include <stdio.h>

/* --- Whether ---------------------------------------------------------------------------------------------------- */

/* Reason why this transfer takes no collective; NULL: there is none. */
static const char *transfer_refusal(const struct reshard_transfer_s *t) {
  if (t->messages.use == RESHARD_COLLECTIVE_USE_FORBID)
    return "forbidden by the options";
  if (t->path->no_collective != NULL &&
      (t->comm->memory.direct || t->choice.only)) /* else the path may still be left */
    return t->path->no_collective;
  return t->comm->messages.fit[RESHARD_COLLECTIVE_ALL_GATHER] == RS_FIT_NONE ? "the communicator has no collectives"
                                                                             : NULL;
}

/* Reason why this rank cannot take the collective that its messages are a part of; NULL: there is none. */
static const char *rank_refusal(const struct reshard_transfer_s *t, const rs_arrays *arrays,
                                const reshard_pattern *pattern) {
  rs_placement p;
  if (pattern->kind == RESHARD_COLLECTIVE_NONE)
    return pattern->why;
  if (t->comm->messages.fit[pattern->kind] == RS_FIT_NONE)
    return "the communicator lacks it";
  rs_collective_place(t, pattern, arrays, &p);
  if (t->workspace.at != NULL && rs_placement_bytes(&p) > t->workspace.bytes)
    return "the caller's workspace is too small for it";
  return t->plan->limit > 0 && rs_placement_bytes(&p) > (size_t)t->plan->limit
             ? "the workspace limit is too small for it"
             : NULL; /* the default one is about rounds, and there is one */
}

void rs_collective_propose(struct reshard_transfer_s *t, const rs_arrays *arrays, rs_proposal *mine) {
  reshard_pattern pattern = {.root = -1, .why = transfer_refusal(t)};
  const char *why = pattern.why;
  if (why == NULL) { /* looked for only where it can be taken: that takes time */
    pattern = rs_plan_pattern(t->plan);
    why = rank_refusal(t, arrays, &pattern);
  }
  *mine = (rs_proposal){why == NULL ? (int32_t)pattern.kind : RESHARD_COLLECTIVE_NONE, pattern.root, pattern.bytes, ""};
  snprintf(mine->why, sizeof mine->why, "%s", why != NULL ? why : pattern.why);
}

static bool same_proposal(const rs_proposal *a, const rs_proposal *b) {
  return a->kind == b->kind && a->root == b->root && a->bytes == b->bytes;
}

reshard_status rs_collective_decide(struct reshard_transfer_s *t,
                                    const rs_proposal *(*of)(const void *all, int64_t rank), const void *all) {
  int64_t n = t->comm->size, none = -1, other = -1;
  const rs_proposal *first = of(all, 0);
  for (int64_t r = 0; r < n; r++) {
    none = none < 0 && of(all, r)->kind == RESHARD_COLLECTIVE_NONE ? r : none;
    other = other < 0 && !same_proposal(of(all, r), first) ? r : other;
  }
  const char *name = reshard_collective_string((reshard_collective)first->kind);
  t->messages.collective = (reshard_pattern){.root = -1};
  if (none >= 0)
    snprintf(t->messages.why, sizeof t->messages.why, "rank %lld: %s", (long long)none, of(all, none)->why);
  else if (other >= 0)
    snprintf(t->messages.why, sizeof t->messages.why, "rank 0 has %s of %lld bytes each, rank %lld %s of %lld", name,
             (long long)first->bytes, (long long)other,
             reshard_collective_string((reshard_collective)of(all, other)->kind), (long long)of(all, other)->bytes);
  if (none >= 0 || other >= 0)
    return t->messages.use != RESHARD_COLLECTIVE_USE_FORCE
               ? RESHARD_SUCCESS
               : rs_error(RESHARD_ERROR_UNSUPPORTED, "a collective is forced, and there is none: %s", t->messages.why);
  bool taken = t->messages.use == RESHARD_COLLECTIVE_USE_FORCE || t->comm->messages.fit[first->kind] == RS_FIT_FASTER;
  if (taken)
    t->messages.collective = (reshard_pattern){(reshard_collective)first->kind, first->root, first->bytes, NULL};
  snprintf(t->messages.why, sizeof t->messages.why, "%s of %lld bytes each: %s%s", name, (long long)first->bytes,
           first->why, taken ? "" : "; sends and receives are the faster way");
  return RESHARD_SUCCESS;
}

/* --- Where ------------------------------------------------------------------------------------------------------ */

/* Address of a message in the user's arrays; NULL: it is not contiguous there. Any alignment will do: the messages of
 * a collective follow one another as they are, also in staging. */
static char *message_address(const struct reshard_transfer_s *t, const rs_arrays *arrays, const rs_peer *peer,
                             bool sending) {
  return rs_arrays_message(arrays, t->plan, peer, sending, 1);
}

/* Address of the messages of all ranks, own among them, where they lie one after the other in the user's memory; else
 * NULL. */
static char *row_address(const struct reshard_transfer_s *t, int64_t bytes, const rs_arrays *arrays, bool sending) {
  const struct reshard_plan_s *plan = t->plan;
  rs_peer own = rs_plan_own(plan);
  char *mine = message_address(t, arrays, &own, sending);
  if (mine == NULL || own.sent != bytes)
    return NULL;
  char *row = mine - plan->rank * bytes;
  for (int64_t i = 0; i < plan->peers.n; i++)
    if (message_address(t, arrays, &plan->peers.at[i], sending) != row + plan->peers.at[i].rank * bytes)
      return NULL;
  return row;
}

/* The first message, when all are the same one in the user's memory. */
static char *common_address(const struct reshard_transfer_s *t, const rs_arrays *arrays) {
  char *first = message_address(t, arrays, &t->plan->peers.at[0], true);
  for (int64_t i = 1; i < t->plan->peers.n && first != NULL; i++)
    if (message_address(t, arrays, &t->plan->peers.at[i], true) != first)
      return NULL;
  return first;
}

void rs_collective_place(const struct reshard_transfer_s *t, const reshard_pattern *pattern, const rs_arrays *arrays,
                         rs_placement *p) {
  int64_t bytes = pattern->bytes, row = t->plan->world * bytes;
  *p = (rs_placement){.self_copies = true};
  switch (pattern->kind) {
  case RESHARD_COLLECTIVE_ALL_GATHER:
    p->send = common_address(t, arrays);
    p->receive = rs_plan_keeps_what_it_sends(t->plan) ? row_address(t, bytes, arrays, false) : NULL;
    p->self_copies = p->receive == NULL;
    p->receive_bytes = p->receive == NULL ? row : 0;
    break;
  case RESHARD_COLLECTIVE_ALL_TO_ALL:
    p->send = row_address(t, bytes, arrays, true);
    p->receive = row_address(t, bytes, arrays, false);
    p->self_copies = false;
    p->send_bytes = p->send == NULL ? row : 0;
    p->receive_bytes = p->receive == NULL ? row : 0;
    break;
  case RESHARD_COLLECTIVE_BROADCAST:
    if (pattern->root == t->plan->rank) {
      p->send = common_address(t, arrays);
      p->send_bytes = p->send == NULL ? bytes : 0;
    } else {
      p->receive = message_address(t, arrays, &t->plan->peers.at[0], false);
      p->receive_bytes = p->receive == NULL ? bytes : 0;
    }
    break;
  case RESHARD_COLLECTIVE_NONE: break;
  }
}

size_t rs_placement_bytes(const rs_placement *p) {
  return (size_t)(rs_plan_staged(p->send_bytes) + rs_plan_staged(p->receive_bytes));
}
