/* Rounds: the time at which each piece of each message travels (rule 6 of plans).
 *
 * Peers are grouped by distance: W receivers after me are group 0, the next W group 1, and so on. The senders that I
 * receive from in a group are those at the same distances before me. Messages are cut in pieces of c bytes; round
 * (group, piece) carries that piece of every message of the group. Both ends of a message compute the same round from
 * distance and length alone. Every rank walks its rounds in lexicographic order, so no ranks wait for each other in a
 * circle. With L bytes of staging, c = L / 4W: two halves, so that neighbouring rounds overlap, times W sends and W
 * receives. */
#include "plan/rounds.h"

#include <stdlib.h>

int64_t rs_plan_group(const struct reshard_plan_s *plan, int64_t sender, int64_t receiver) {
  int64_t distance = receiver - sender;
  if (distance < 0)
    distance += plan->world;
  return plan->piece == 0 ? 0 : (distance - 1) / plan->window;
}

int64_t rs_plan_groups(const struct reshard_plan_s *plan) {
  return plan->piece == 0 ? 1 : rs_max(1, rs_ceil_div(plan->world - 1, plan->window));
}

int64_t rs_plan_pieces(const struct reshard_plan_s *plan, int64_t bytes) {
  return bytes == 0 ? 0 : plan->piece == 0 ? 1 : rs_ceil_div(bytes, plan->piece);
}

reshard_status rs_plan_staging(const struct reshard_plan_s *plan, const bool *in_place, rs_staging_size *staging) {
  rs_staging_size s = {.halves = 1};
  if (plan->piece == 0) {
    for (int64_t i = 0; i < plan->peers.n; i++) {
      s.bytes += in_place != NULL && in_place[2 * i] ? 0 : rs_plan_staged(plan->peers.at[i].sent);
      s.bytes += in_place != NULL && in_place[2 * i + 1] ? 0 : rs_plan_staged(plan->peers.at[i].received);
    }
    *staging = s;
    return RESHARD_SUCCESS;
  }
  int64_t *slots, groups = rs_plan_groups(plan), longest = 0;
  RS_TRY(rs_alloc_zero(&slots, 2 * groups, sizeof *slots));
  for (int64_t i = 0; i < plan->peers.n; i++) {
    const rs_peer *p = &plan->peers.at[i];
    if (p->sent > 0 && !(in_place != NULL && in_place[2 * i])) {
      slots[2 * rs_plan_group(plan, plan->rank, p->rank)]++;
      longest = rs_max(longest, p->sent);
    }
    if (p->received > 0 && !(in_place != NULL && in_place[2 * i + 1])) {
      slots[2 * rs_plan_group(plan, p->rank, plan->rank) + 1]++;
      longest = rs_max(longest, p->received);
    }
  }
  for (int64_t g = 0; g < groups; g++) {
    s.send_slots = rs_max(s.send_slots, slots[2 * g]);
    s.receive_slots = rs_max(s.receive_slots, slots[2 * g + 1]);
  }
  free(slots);
  s.slot = rs_min(plan->piece, rs_plan_staged(longest));
  s.halves = plan->info.rounds > 1 ? 2 : 1;
  s.bytes = s.halves * (s.send_slots + s.receive_slots) * s.slot;
  *staging = s;
  return RESHARD_SUCCESS;
}

reshard_status rs_plan_set_rounds(struct reshard_plan_s *plan) {
  reshard_plan_info *info = &plan->info;
  if (plan->limit > 0 && plan->world > 1 && plan->nentries > 0) {
    plan->piece = plan->limit / 4 / plan->window / 256 * 256;
    if (plan->piece == 0)
      return rs_error(RESHARD_ERROR_INVALID,
                      "a workspace limit of %lld bytes is too small: %lld is the least with %lld peers a round",
                      (long long)plan->limit, (long long)(4 * plan->window * 256), (long long)plan->window);
  }
  info->round_groups = rs_plan_groups(plan);
  RS_TRY(rs_alloc_zero(&plan->group_rounds, info->round_groups, sizeof *plan->group_rounds));
  bool *in_place;
  RS_TRY(rs_alloc_zero(&in_place, 2 * plan->peers.n, sizeof *in_place));
  for (int64_t i = 0; i < plan->peers.n; i++) {
    const rs_peer *p = &plan->peers.at[i];
    rs_place place;
    int64_t sends = rs_plan_pieces(plan, p->sent), receives = rs_plan_pieces(plan, p->received);
    if (sends > 0) {
      int64_t *rounds = &plan->group_rounds[rs_plan_group(plan, plan->rank, p->rank)];
      *rounds = rs_max(*rounds, sends);
      info->messages_sent += sends;
      in_place[2 * i] = rs_message_in_place(plan, p, true, NULL, &place);
      info->packs_skipped += in_place[2 * i];
    }
    if (receives > 0) {
      int64_t *rounds = &plan->group_rounds[rs_plan_group(plan, p->rank, plan->rank)];
      *rounds = rs_max(*rounds, receives);
      info->messages_received += receives;
      in_place[2 * i + 1] = rs_message_in_place(plan, p, false, NULL, &place);
      info->unpacks_skipped += in_place[2 * i + 1];
    }
  }
  for (int64_t g = 0; g < info->round_groups; g++)
    info->rounds += plan->group_rounds[g];
  rs_staging_size staging;
  reshard_status status = rs_plan_staging(plan, in_place, &staging);
  if (status == RESHARD_SUCCESS)
    info->workspace_bytes = staging.bytes;
  free(in_place);
  return status;
}
