/* Rounds of the packed path under a workspace limit, and staging (rule 6 of plans). */
#ifndef RS_PLAN_ROUNDS_H
#define RS_PLAN_ROUNDS_H

#include "plan/plan.h"

/* Bytes of staging that so many take: in steps, so that all places are aligned alike. */
static inline int64_t rs_plan_staged(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/* Pieces of a message of so many bytes when all ranks take so many rounds; both ends compute the same. */
int64_t rs_plan_pieces(const struct reshard_plan_s *plan, int64_t rounds, int64_t bytes);
/* First byte of piece i of n; of piece n the end of the message. */
int64_t rs_piece_begin(const struct reshard_plan_s *plan, int64_t bytes, int64_t n, int64_t i);
/* Round in which piece i of n travels, 0 <= round < rounds; rises with i. */
int64_t rs_piece_round(int64_t rounds, int64_t n, int64_t i);

/* Marks what goes in place: [2 * i] the message to peers.at[i], [2 * i + 1] that from it. strides as in
 * rs_message_in_place; NULL: all arrays are contiguous. */
void rs_plan_find_in_place(const struct reshard_plan_s *plan, const int64_t *const *src_strides,
                           const int64_t *const *dst_strides, bool *in_place);
/* Least number of rounds for this rank's own limit: 0 without messages. All ranks take the largest of these. */
int64_t rs_plan_least_rounds(const struct reshard_plan_s *plan, const bool *in_place);

/* Rounds in which no piece of a message is longer than so many bytes, at least 512 KiB. */
int64_t rs_plan_mailed_rounds(const struct reshard_plan_s *plan, int64_t bytes);

/* Staging of one rank when all take so many rounds. */
typedef struct rs_staging_size {
  bool whole;     /* every message has a place of its own; else a place for its longest piece in each of two halves */
  int64_t half;   /* bytes of a half; of all of it where messages are whole */
  int64_t bytes;  /* of all of it */
  int64_t staged; /* bytes that go through it */
} rs_staging_size;
/* in_place as above; NULL: nothing is. */
rs_staging_size rs_plan_staging(const struct reshard_plan_s *plan, int64_t rounds, const bool *in_place);
/* Bytes of the place that a message has in the staging. */
int64_t rs_plan_place_bytes(const struct reshard_plan_s *plan, int64_t rounds, bool whole, int64_t bytes);

/* Checks the limit; rounds, messages, skips and workspace of the plan's info. */
reshard_status rs_plan_set_rounds(struct reshard_plan_s *plan);

#endif
