/* Rounds of the packed path under a workspace limit, and staging (rule 6 of plans). */
#ifndef RS_PLAN_ROUNDS_H
#define RS_PLAN_ROUNDS_H

#include "plan/plan.h"

/* Bytes of staging that so many take: in steps, so that all places are aligned alike. */
static inline int64_t rs_plan_staged(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/* The schedule of a transfer's messages: the same on all its ranks. */
typedef struct rs_schedule {
  int64_t world;
  int64_t limit;  /* of each rank's workspace; INT64_MAX: none */
  int64_t halves; /* of the workspace, which rounds take by turns: 2 where neighbouring rounds overlap, else 1 */
  int64_t rounds; /* those that all ranks take */
  int64_t share;  /* of the limit, which bounds the least piece: all of a rank's messages have several */
  int64_t block;  /* bytes of the largest block that no piece cuts; 0: there is none */
  bool passes;    /* bytes are passed on: messages are made of streams, none goes in place */
} rs_schedule;
/* Sets what the default limit of a plan needs, once its classes are known. */
reshard_status rs_plan_set_held(struct reshard_plan_s *plan);
/* The schedule of a plan on the CPU, or on GPUs. best: reshard_comm_s's best_staging. streams: the most of any rank,
 * where bytes are passed on; 0: none is. */
rs_schedule rs_plan_schedule(const struct reshard_plan_s *plan, bool cpu, int64_t best, int64_t rounds,
                             int64_t streams);
/* Streams that a rank stages, of those that a shared copy serves one. */
int64_t rs_plan_streams(const struct reshard_plan_s *plan, bool cpu);
/* Rounds beyond schedule->rounds, in which bytes that come late are passed on, on a plan that passes some on. */
int64_t rs_plan_later_rounds(const struct reshard_plan_s *plan, const rs_schedule *schedule);

/* False where no rank can need several rounds, for any arrays: the same on all. */
bool rs_plan_may_take_rounds(const struct reshard_plan_s *plan, const rs_schedule *schedule);

/* Pieces of a message of so many bytes; both ends compute the same. */
int64_t rs_schedule_pieces(const rs_schedule *schedule, int64_t bytes);
/* First byte of piece i of n; of piece n the end of the message. */
int64_t rs_piece_begin(const rs_schedule *schedule, int64_t bytes, int64_t n, int64_t i);
/* The begin of the block that byte `at` of a message to a peer, or from it, lies in; `at` where it is in none. */
int64_t rs_plan_block_begin(const struct reshard_plan_s *plan, bool sending, int64_t peer, int64_t at);
/* Round in which piece i of n travels, 0 <= round < rounds; rises with i. Hop h is h * halves rounds later. */
int64_t rs_piece_round(const rs_schedule *schedule, int64_t n, int64_t i);
/* Bytes of the place that a message has in the staging: whole, or for its longest piece. */
int64_t rs_place_bytes(const rs_schedule *schedule, bool whole, int64_t bytes);
/* The least number of rounds in which so many bytes can go through the staging, if all of it were in use. */
int64_t rs_rounds_bound(const rs_schedule *schedule, int64_t staged);

/* Least number of rounds that this rank needs: 0 without messages. All ranks take the largest of these. The rounds of
 * the schedule are not read. in_place: [2 * i] of the message to peers.at[i], [2 * i + 1] of that from it; of streams
 * those that no message carries, the sent ones first. */
int64_t rs_plan_least_rounds(const struct reshard_plan_s *plan, const rs_schedule *schedule, const bool *in_place);

/* The least limit for which there are such rounds; it may be above the schedule's where blocks are not cut. */
int64_t rs_plan_needed_limit(const struct reshard_plan_s *plan, const rs_schedule *schedule, const bool *in_place);

/* Rounds in which no message is longer than so many bytes: at least 4 KiB, and 128 KiB / world + 256 bytes. schedule:
 * of messages that are made of streams, after rs_schedule_fit; NULL: they are not. */
int64_t rs_plan_mailbox_rounds(const struct reshard_plan_s *plan, const rs_schedule *schedule, int64_t bytes);
/* False where a piece of whole blocks may be longer than so many bytes. */
bool rs_schedule_fits_mailbox(const rs_schedule *schedule, int64_t bytes);
/* Makes the least pieces so short that messages of so many streams, at most bytes / 64, fit so many bytes. */
void rs_schedule_fit(rs_schedule *schedule, int64_t bytes, int64_t streams);
/* The least limit with so many streams of a rank. */
int64_t rs_plan_least_limit(const struct reshard_plan_s *plan, int64_t streams);

/* Staging of one rank. */
typedef struct rs_staging_size {
  bool whole;     /* every message has a place of its own; else a place for its longest piece in each of the halves */
  int64_t half;   /* bytes of a half; of all of it where messages are whole */
  int64_t bytes;  /* of all of it */
  int64_t staged; /* bytes that go through it */
} rs_staging_size;
/* in_place as above; NULL: nothing is. */
rs_staging_size rs_plan_staging(const struct reshard_plan_s *plan, const rs_schedule *schedule, const bool *in_place);

/* Checks the limit; rounds, messages, skips and workspace of the plan's info. */
reshard_status rs_plan_set_rounds(struct reshard_plan_s *plan);

#endif
