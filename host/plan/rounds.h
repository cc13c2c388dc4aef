/* Rounds of a plan, and their staging. */
#ifndef RS_PLAN_ROUNDS_H
#define RS_PLAN_ROUNDS_H

#include "plan/plan.h"

/* Group of the peers at distance (receiver - sender) mod world. */
int64_t rs_plan_group(const struct reshard_plan_s *plan, int64_t sender, int64_t receiver);
int64_t rs_plan_groups(const struct reshard_plan_s *plan);
/* Pieces of a message of so many bytes. */
int64_t rs_plan_pieces(const struct reshard_plan_s *plan, int64_t bytes);
/* Bytes of staging that so many take: in steps, so that all places are aligned alike. */
static inline int64_t rs_plan_staged(int64_t bytes) { return (bytes + 255) / 256 * 256; }
/* Staging for one rank, in these steps, when the marked peers go in place (worst: none does). */
typedef struct rs_staging_size {
  int64_t slot;                      /* bytes of a slot under a limit, else 0: every message has its own place */
  int64_t send_slots, receive_slots; /* under a limit: of one half */
  int64_t halves;                    /* 2 under a limit with more than one round, so that neighbours overlap */
  int64_t bytes;
} rs_staging_size;
/* in_place[2 * i] and [2 * i + 1] say it of sends to and receives from peers.at[i]; NULL: none. */
reshard_status rs_plan_staging(const struct reshard_plan_s *plan, const bool *in_place, rs_staging_size *staging);
/* Piece size of the plan, its rounds per group; rounds, messages, skips and workspace of its info. */
reshard_status rs_plan_set_rounds(struct reshard_plan_s *plan);

#endif
