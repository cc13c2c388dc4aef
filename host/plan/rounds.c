/* Rounds: the time at which each piece of each message travels (rule 6 of plans).
 *
 * All ranks take the same number of rounds K. A message of m bytes has n = min(K, max(1, m / F)) pieces of whole steps
 * of 256 bytes. They are spread evenly over the rounds. F is the least piece that is worth a message, and so small that
 * all peers' fit. Both ends compute that from m, K and the limit alone, so all messages move on at the same pace: none
 * is through early and leaves the staging idle. A limit too small for steps of 256 bytes has steps of 16, the widest
 * element. So the least limit is that of one such step: 16 shares of 16 bytes for each rank of the world.
 *
 * A rank with the limit L needs one round where all that it stages fits. Else it needs the least K for which the
 * longest pieces of its messages fit L, or one half of L where neighbouring rounds overlap. That sum falls as K rises,
 * so the largest K of all ranks fits all. What goes in place takes no staging, but is cut alike.
 *
 * The CPU packs, moves and unpacks at once, so its rounds do not overlap. It is the faster the more of that stays in
 * the cache. So it stages CACHED at most, or what the communicator has found to be best, whatever the limit allows. On
 * GPUs a round hides the time of its launches and messages where it moves tens of MiB. */
#include "plan/rounds.h"
#include "plan/held.h"
#include "plan/place.h"

#include <stdlib.h>

enum { STEP = 256, SMALL_STEP = 16, FINE = 256 << 10, SHARES = 16 }; /* shares of the limit that a rank has */
enum {
  CACHED = 1 << 20,          /* staging of a rank on the CPU; and at least */
  CACHED_OF_PEER = 16 << 10, /* for each rank of the world */
  DEFAULT = 64 << 20,        /* staging of a rank on a GPU; and at least */
  DEFAULT_OF_PEER = 4 << 10, /* for each rank of the world; and */
  DEFAULT_SHARE = 50,        /* one in so many of the bytes that a rank holds on average (held.h) */
};

/* Limit that holds on a kind of device; INT64_MAX: none. best: staging of a rank on the CPU, 0: CACHED. */
static int64_t limit_on(const struct reshard_plan_s *plan, bool cpu, int64_t best) {
  int64_t asked = plan->limit == RESHARD_NO_LIMIT ? INT64_MAX : plan->limit;
  int64_t world = rs_min(plan->world, INT64_MAX / CACHED_OF_PEER);
  int64_t cached = rs_max(best > 0 ? best : CACHED, CACHED_OF_PEER * world);
  if (cpu)
    return asked == RESHARD_DEFAULT_LIMIT ? cached : rs_min(asked, cached);
  int64_t share = plan->held / DEFAULT_SHARE / STEP * STEP;
  return asked == RESHARD_DEFAULT_LIMIT ? rs_max(share, rs_max(DEFAULT, DEFAULT_OF_PEER * world)) : asked;
}

/* Counted only where the share may be more than the least limit: counting takes time for each rank of the world. */
reshard_status rs_plan_set_held(struct reshard_plan_s *plan) {
  bool matters = plan->limit == RESHARD_DEFAULT_LIMIT && rs_plan_held_at_most(plan) / DEFAULT_SHARE > DEFAULT;
  return matters ? rs_plan_held(plan, &plan->held) : RESHARD_SUCCESS;
}

rs_pace rs_plan_pace(const struct reshard_plan_s *plan, bool cpu, int64_t best, int64_t rounds) {
  return (rs_pace){plan->world, limit_on(plan, cpu, best), cpu ? 1 : 2, rounds};
}

/* A rank receives the bytes once at most, and sends them once at most to each other, in steps of 256 for each. */
bool rs_plan_may_take_rounds(const struct reshard_plan_s *plan, const rs_pace *pace) {
  return plan->info.bytes + 2 * STEP > pace->limit / pace->world;
}

static int64_t step_of(const rs_pace *pace) { return pace->limit / SHARES / pace->world >= STEP ? STEP : SMALL_STEP; }

/* Steps are powers of two: no division, of which a dense world takes millions. */
static int64_t round_up(int64_t bytes, int64_t step) { return (bytes + step - 1) & -step; }

/* F: pieces of less are not made. */
static int64_t fine_of(const rs_pace *pace) {
  int64_t step = step_of(pace);
  return rs_min(FINE, pace->limit / SHARES / pace->world / step * step);
}

int64_t rs_pace_pieces(const rs_pace *pace, int64_t bytes) {
  return pace->rounds <= 1 ? bytes > 0 : rs_min(pace->rounds, rs_max(bytes > 0, bytes / fine_of(pace)));
}

int64_t rs_piece_begin(const rs_pace *pace, int64_t bytes, int64_t n, int64_t i) {
  int64_t step = step_of(pace), steps = rs_ceil_div(bytes, step);
  return i == n ? bytes : (i * (steps / n) + rs_min(i, steps % n)) * step;
}

int64_t rs_piece_round(const rs_pace *pace, int64_t n, int64_t i) {
  return (int64_t)((unsigned __int128)(2 * i + 1) * (uint64_t)pace->rounds / (uint64_t)(2 * n));
}

/* Marks what goes in place where all arrays are contiguous. */
static void find_in_place(const struct reshard_plan_s *plan, bool *in_place) {
  for (int64_t i = 0; i < plan->peers.n; i++) {
    int64_t send = plan->peers.at[i].send_message, receive = plan->peers.at[i].receive_message;
    const rs_side *sends = &rs_plan_class_of_message(plan, true, send)->send,
                  *receives = &rs_plan_class_of_message(plan, false, receive)->receive;
    in_place[2 * i] = send >= 0 && sends->messages.at[send - sends->first_message].src_in_place;
    in_place[2 * i + 1] = receive >= 0 && receives->messages.at[receive - receives->first_message].dst_in_place;
  }
}

int64_t rs_place_bytes(const rs_pace *pace, bool whole, int64_t bytes) {
  int64_t step = step_of(pace), n = whole ? 1 : rs_pace_pieces(pace, bytes);
  return n <= 1 ? round_up(bytes, step)
                : rs_ceil_div(rs_ceil_div(bytes, step), n) * step; /* the first piece is the longest */
}

/* The i-th of all messages: to and from a peer by turns. 0: it takes no staging. */
static int64_t staged_message(const struct reshard_plan_s *plan, const bool *in_place, int64_t i) {
  const rs_peer *p = &plan->peers.at[i / 2];
  return in_place != NULL && in_place[i] ? 0 : i % 2 == 0 ? p->sent : p->received;
}

rs_staging_size rs_plan_staging(const struct reshard_plan_s *plan, const rs_pace *pace, const bool *in_place) {
  rs_staging_size s = {.whole = true};
  int64_t places = 0, step = step_of(pace);
  for (int64_t i = 0; i < 2 * plan->peers.n; i++) {
    int64_t bytes = staged_message(plan, in_place, i), whole = round_up(bytes, step);
    s.staged += bytes;
    s.half += whole;
    places += pace->rounds <= 1 ? whole : rs_place_bytes(pace, false, bytes);
  }
  s.bytes = s.half;
  if (places < s.bytes - (pace->halves - 1) * places)
    s = (rs_staging_size){.half = places, .bytes = pace->halves * places, .staged = s.staged};
  return s;
}

/* Upper bound, which falls as rounds rise, of the places of one half. */
static int64_t bound_places(const struct reshard_plan_s *plan, const rs_pace *pace, const bool *in_place,
                            int64_t rounds) {
  int64_t sum = 0, fine = fine_of(pace), step = step_of(pace);
  for (int64_t i = 0; i < 2 * plan->peers.n; i++) {
    int64_t bytes = staged_message(plan, in_place, i);
    sum += round_up(rs_max(rs_ceil_div(bytes, rounds), rs_min(bytes, 2 * fine)), step);
  }
  return sum;
}

/* rs_plan_least_rounds, for so many bytes of staging in one round. */
static int64_t least_rounds(const struct reshard_plan_s *plan, const rs_pace *pace, const bool *in_place,
                            int64_t bytes) {
  if (plan->peers.n == 0 || bytes <= pace->limit)
    return plan->peers.n > 0;
  int64_t below = 1, rounds = 2, half = pace->limit / pace->halves; /* so many are too few; so many may do */
  while (bound_places(plan, pace, in_place, rounds) > half) {
    below = rounds;
    rounds *= 2;
  }
  while (rounds - below > 1) {
    int64_t middle = below + (rounds - below) / 2;
    if (bound_places(plan, pace, in_place, middle) > half)
      below = middle;
    else
      rounds = middle;
  }
  return rounds;
}

int64_t rs_plan_least_rounds(const struct reshard_plan_s *plan, const rs_pace *pace, const bool *in_place) {
  rs_pace one = {pace->world, pace->limit, pace->halves, 1};
  return least_rounds(plan, pace, in_place, rs_plan_staging(plan, &one, in_place).bytes);
}

int64_t rs_rounds_bound(const rs_pace *pace, int64_t staged) {
  return staged <= pace->limit ? 1 : rs_ceil_div(staged, pace->limit / pace->halves);
}

/* A message of m bytes has the least of K and m / F pieces, F at most FINE: the former are at most m / K, the latter
 * less than 2 F. */
int64_t rs_plan_mailbox_rounds(const struct reshard_plan_s *plan, int64_t bytes) {
  int64_t longest = 0;
  for (int64_t i = 0; i < plan->peers.n; i++)
    longest = rs_max(longest, rs_max(plan->peers.at[i].sent, plan->peers.at[i].received));
  return rs_ceil_div(longest, rs_min(bytes - STEP, FINE));
}

/* Sets the rounds, messages and workspace of the info, when all ranks take so many; -1: as many as this rank needs. */
static reshard_status describe_rounds(const struct reshard_plan_s *plan, int64_t rounds, reshard_plan_info *info) {
  bool *in_place;
  rs_pace pace = rs_plan_pace(plan, plan->on_cpu, 0, 1);
  RS_TRY(rs_alloc(&in_place, 2 * plan->peers.n, sizeof *in_place));
  find_in_place(plan, in_place);
  rs_staging_size staging = rs_plan_staging(plan, &pace, in_place);
  pace.rounds = rounds >= 0 ? rounds : least_rounds(plan, &pace, in_place, staging.bytes);
  if (pace.rounds > 1)
    staging = rs_plan_staging(plan, &pace, in_place);
  info->rounds = pace.rounds;
  info->workspace_limit = pace.limit == INT64_MAX ? RESHARD_NO_LIMIT : pace.limit;
  info->workspace_bytes = staging.bytes;
  info->staged_bytes = staging.staged;
  info->least_rounds = plan->peers.n > 0 ? rs_rounds_bound(&pace, staging.staged) : 0;
  info->messages_sent = info->messages_received = info->packs_skipped = info->unpacks_skipped = 0;
  for (int64_t i = 0; i < plan->peers.n; i++) {
    info->messages_sent += rs_pace_pieces(&pace, plan->peers.at[i].sent);
    info->messages_received += rs_pace_pieces(&pace, plan->peers.at[i].received);
    info->packs_skipped += in_place[2 * i];
    info->unpacks_skipped += in_place[2 * i + 1];
  }
  free(in_place);
  return RESHARD_SUCCESS;
}

reshard_status rs_plan_set_rounds(struct reshard_plan_s *plan) {
  int64_t least = SHARES * SMALL_STEP; /* of a rank */
  if (plan->limit > 0 && plan->world > 1 && plan->nentries > 0 && plan->limit / least < plan->world)
    return rs_error(RESHARD_ERROR_INVALID,
                    "a workspace limit of %lld bytes is too small: %lld is the least with %lld ranks",
                    (long long)plan->limit, (long long)(least * plan->world), (long long)plan->world);
  return describe_rounds(plan, -1, &plan->info);
}

reshard_status reshard_plan_get_info_at(reshard_plan plan, int64_t rounds, reshard_plan_info *info) {
  RS_TRY(RS_GIVEN("reshard_plan_get_info_at", plan, info));
  if (rounds < plan->info.rounds)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_plan_get_info_at: %lld rounds, this rank needs %lld",
                    (long long)rounds, (long long)plan->info.rounds);
  reshard_plan_info at = plan->info;
  RS_TRY(describe_rounds(plan, rounds, &at));
  *info = at;
  return RESHARD_SUCCESS;
}

reshard_status reshard_plan_workspace(reshard_plan plan, size_t *bytes) {
  RS_TRY(RS_GIVEN("reshard_plan_workspace", plan, bytes));
  rs_pace pace = rs_plan_pace(plan, plan->on_cpu, 0, 1);
  *bytes = (size_t)rs_min(rs_plan_staging(plan, &pace, NULL).bytes, pace.limit);
  return RESHARD_SUCCESS;
}
