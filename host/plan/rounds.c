/* Rounds: the time at which each piece of each message travels (rule 6 of plans).
 *
 * All ranks take the same number of rounds K. A message of m bytes has n = min(K, max(1, m / F)) pieces of whole steps
 * of 256 bytes. They are spread evenly over the rounds. F is the least piece that is worth a message, and so small that
 * all peers' fit. Both ends compute that from m, K and the limit alone, so all messages move on alike: none is through
 * early and leaves the staging idle. A limit too small for steps of 256 bytes has steps of 16, the widest element. So
 * the least limit is that of one such step: 16 shares of 16 bytes for each rank of the world.
 *
 * A rank with the limit L needs one round where all that it stages fits. Else it needs the least K for which the
 * longest pieces of its messages fit L, or one half of L where neighbouring rounds overlap. That sum falls as K rises,
 * so the largest K of all ranks fits all. What goes in place takes no staging, but is cut alike.
 *
 * Blocks that travel with their scales are not cut: a piece begins where the block does that it would begin in. F is
 * larger then than the largest block of all entries, so that no piece is empty, and a piece may be a block longer.
 * There may be no K that fits the limit. The rank then stages what it needs, or all ranks refuse the limit of a user.
 *
 * The CPU packs, moves and unpacks at once, so its rounds do not overlap. It is the faster the more of that stays in
 * the cache. So it stages CACHED at most, or what the communicator has found to be best, whatever the limit allows. On
 * GPUs a round hides the time of its launches and messages where it moves tens of MiB. */
#include "plan/rounds.h"
#include "plan/held.h"
#include "plan/hops.h"
#include "plan/messages.h"
#include "plan/place.h"
#include "plan/topology.h"

#include <stdlib.h>
#include <string.h>

enum { STEP = 256, SMALL_STEP = 16, FINE = 256 << 10, SHARES = 16 }; /* shares of the limit that a rank has */
enum {
  CACHED = 1 << 20,          /* staging of a rank on the CPU; and at least */
  CACHED_OF_PEER = 16 << 10, /* for each rank of the world */
  LEAST_SHARES = 64,         /* of the least piece, for each part of messages */
  DEFAULT = 64 << 20,        /* staging of a rank on a GPU; and at least */
  DEFAULT_OF_PEER = 4 << 10, /* for each rank of the world; and */
  DEFAULT_SHARE = 50,        /* one in so many of the bytes that a rank holds on average (held.h) */
};

/* Limit that holds on a kind of device; INT64_MAX: none. best: staging of a rank on the CPU, 0: CACHED. parts: those of
 * a rank's messages, two for each rank or more. */
static int64_t limit_on(const struct reshard_plan_s *plan, bool cpu, int64_t best, int64_t parts) {
  int64_t asked = plan->limit == RESHARD_NO_LIMIT ? INT64_MAX : plan->limit;
  int64_t world = rs_min(plan->world, INT64_MAX / CACHED_OF_PEER);
  int64_t cached = rs_max(best > 0 ? best : CACHED, CACHED_OF_PEER * world);
  cached = rs_max(cached, rs_min(parts, INT64_MAX / CACHED_OF_PEER) * LEAST_SHARES * SMALL_STEP);
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

rs_schedule rs_plan_schedule(const struct reshard_plan_s *plan, bool cpu, int64_t best, int64_t rounds,
                             int64_t streams) {
  int64_t parts = rs_max(streams, 2 * rs_min(plan->world, INT64_MAX / 2)), limit = limit_on(plan, cpu, best, parts);
  return (rs_schedule){plan->world, limit, cpu ? 1 : 2, rounds, limit / (SHARES / 2) / parts, plan->block, streams > 0};
}

int64_t rs_plan_streams(const struct reshard_plan_s *plan, bool cpu) {
  const rs_hops *h = plan->hops;
  return h != NULL ? h->sends.n + h->receives.n - (cpu ? 0 : h->shared) : 0;
}

int64_t rs_plan_later_rounds(const struct reshard_plan_s *plan, const rs_schedule *schedule) {
  return schedule->passes ? schedule->halves * (plan->hops->hops - 1) : 0;
}

/* A rank receives the bytes once at most, and sends them once at most to each other, in steps of 256 for each. */
bool rs_plan_may_take_rounds(const struct reshard_plan_s *plan, const rs_schedule *schedule) {
  return plan->hops != NULL || plan->info.bytes + 2 * STEP > schedule->limit / schedule->world;
}

static int64_t step_of(const rs_schedule *schedule) { return schedule->share >= STEP ? STEP : SMALL_STEP; }

/* Steps are powers of two: no division, of which a dense world takes millions. */
static int64_t round_up(int64_t bytes, int64_t step) { return (bytes + step - 1) & -step; }

/* F: pieces of less are not made. */
static int64_t fine_of(const rs_schedule *schedule) {
  int64_t step = step_of(schedule);
  return rs_max(rs_min(FINE, schedule->share / step * step), schedule->block > 0 ? schedule->block + STEP : 0);
}

/* Bytes by which a piece may be longer than others of its message. */
static int64_t longer(const rs_schedule *schedule) { return round_up(schedule->block, step_of(schedule)); }

int64_t rs_schedule_pieces(const rs_schedule *schedule, int64_t bytes) {
  return schedule->rounds <= 1 ? bytes > 0 : rs_min(schedule->rounds, rs_max(bytes > 0, bytes / fine_of(schedule)));
}

int64_t rs_piece_begin(const rs_schedule *schedule, int64_t bytes, int64_t n, int64_t i) {
  int64_t step = step_of(schedule), steps = rs_ceil_div(bytes, step);
  return i == n ? bytes : (i * (steps / n) + rs_min(i, steps % n)) * step;
}

int64_t rs_plan_block_begin(const struct reshard_plan_s *plan, bool sending, int64_t peer, int64_t at) {
  int64_t before = 0;
  for (int64_t i = 0; i < plan->nentries && plan->block > 0; i++) {
    const rs_class *c = &plan->classes.at[plan->entries[plan->order[i]].class_];
    const rs_message *m = rs_side_message(sending ? &c->send : &c->receive, peer);
    int64_t bytes = m != NULL ? m->elements * c->wire.width : 0;
    if (at - before < bytes)
      return rs_class_in_blocks(c) ? at - (at - before) % c->wire.width : at;
    before += bytes;
  }
  return at;
}

int64_t rs_piece_round(const rs_schedule *schedule, int64_t n, int64_t i) {
  return (int64_t)((unsigned __int128)(2 * i + 1) * (uint64_t)schedule->rounds / (uint64_t)(2 * n));
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

int64_t rs_place_bytes(const rs_schedule *schedule, bool whole, int64_t bytes) {
  int64_t step = step_of(schedule), n = whole ? 1 : rs_schedule_pieces(schedule, bytes);
  int64_t longest = rs_ceil_div(rs_ceil_div(bytes, step), rs_max(n, 1)) * step; /* the first piece, but for blocks */
  return n <= 1 ? round_up(bytes, step) : rs_min(longest + longer(schedule), round_up(bytes, step));
}

/* Things that a rank stages: messages, or streams of them. */
static int64_t count_staged(const struct reshard_plan_s *plan, const rs_schedule *schedule) {
  return schedule->passes ? plan->hops->sends.n + plan->hops->receives.n : 2 * plan->peers.n;
}

/* The i-th of all messages: to and from a peer by turns; of all streams: those sent first. 0: it takes no staging. */
static int64_t staged_message(const struct reshard_plan_s *plan, const rs_schedule *schedule, const bool *in_place,
                              int64_t i) {
  const rs_hops *h = plan->hops;
  if (in_place != NULL && in_place[i])
    return 0;
  if (schedule->passes) {
    const rs_stream_end *end = i < h->sends.n ? &h->sends.at[i] : &h->receives.at[i - h->sends.n];
    return end->like >= 0 && schedule->halves > 1 ? 0 : h->streams.at[end->stream].bytes;
  }
  const rs_peer *p = &plan->peers.at[i / 2];
  return i % 2 == 0 ? p->sent : p->received;
}

rs_staging_size rs_plan_staging(const struct reshard_plan_s *plan, const rs_schedule *schedule, const bool *in_place) {
  rs_staging_size s = {.whole = true};
  int64_t places = 0, step = step_of(schedule), last = 0, place = 0;
  for (int64_t i = 0, n = count_staged(plan, schedule); i < n; i++) {
    int64_t bytes = staged_message(plan, schedule, in_place, i), whole = round_up(bytes, step);
    if (bytes != last)
      place = schedule->rounds <= 1 ? whole : rs_place_bytes(schedule, false, bytes);
    last = bytes;
    s.staged += bytes;
    s.half += whole;
    places += place;
  }
  s.bytes = s.half;
  bool shorter = places < s.bytes - (schedule->halves - 1) * places;
  if (schedule->passes ? schedule->rounds > 1 : shorter) /* a message of several streams has one place in all rounds */
    s = (rs_staging_size){.half = places, .bytes = schedule->halves * places, .staged = s.staged};
  return s;
}

/* Upper bound, which falls as rounds rise, of the places of one half. */
static int64_t bound_places(const struct reshard_plan_s *plan, const rs_schedule *schedule, const bool *in_place,
                            int64_t rounds) {
  int64_t sum = 0, fine = fine_of(schedule), step = step_of(schedule), last = 0, place = 0; /* many are equal */
  for (int64_t i = 0, n = count_staged(plan, schedule); i < n; i++) {
    int64_t bytes = staged_message(plan, schedule, in_place, i);
    if (bytes != last) {
      int64_t piece = rs_max(rs_ceil_div(bytes, rounds), rs_min(bytes, 2 * fine));
      place = round_up(rs_min(piece + longer(schedule), bytes), step);
    }
    last = bytes;
    sum += place;
  }
  return sum;
}

int64_t rs_plan_needed_limit(const struct reshard_plan_s *plan, const rs_schedule *schedule, const bool *in_place) {
  if (schedule->block == 0)
    return schedule->limit;
  rs_schedule one = *schedule;
  one.rounds = 1;
  int64_t least = bound_places(plan, schedule, in_place, INT64_MAX / 2),
          bytes = rs_plan_staging(plan, &one, in_place).bytes;
  return rs_max(schedule->limit, rs_min(least * schedule->halves, bytes));
}

/* Rounds in which staging fits, for so many bytes of staging in one round. */
static int64_t fitting_rounds(const struct reshard_plan_s *plan, const rs_schedule *schedule, const bool *in_place,
                              int64_t bytes) {
  int64_t limit = rs_plan_needed_limit(plan, schedule, in_place);
  if (bytes <= limit)
    return 1;
  int64_t half = limit / schedule->halves, below = rs_ceil_div(bytes, half) - 1,
          rounds = below + 1; /* too few; may do */
  for (int64_t more = 1; bound_places(plan, schedule, in_place, rounds) > half; more *= 2) {
    below = rounds;
    rounds += more;
  }
  while (rounds - below > 1) {
    int64_t middle = below + (rounds - below) / 2;
    if (bound_places(plan, schedule, in_place, middle) > half)
      below = middle;
    else
      rounds = middle;
  }
  return rounds;
}

/* Rounds that bytes which are passed on take at least, else the second hop waits for all of the first. */
static int64_t pipelined_rounds(const struct reshard_plan_s *plan, const rs_schedule *schedule) {
  return rs_min(plan->topology->pipelined, plan->hops->longest / fine_of(schedule));
}

/* rs_plan_least_rounds, for so many bytes of staging in one round. */
static int64_t least_rounds(const struct reshard_plan_s *plan, const rs_schedule *schedule, const bool *in_place,
                            int64_t bytes) {
  if (count_staged(plan, schedule) == 0)
    return 0;
  int64_t rounds = fitting_rounds(plan, schedule, in_place, bytes);
  return schedule->passes ? rs_max(rounds, pipelined_rounds(plan, schedule)) : rounds;
}

int64_t rs_plan_least_rounds(const struct reshard_plan_s *plan, const rs_schedule *schedule, const bool *in_place) {
  rs_schedule one = *schedule;
  one.rounds = 1;
  return least_rounds(plan, schedule, in_place, rs_plan_staging(plan, &one, in_place).bytes);
}

int64_t rs_rounds_bound(const rs_schedule *schedule, int64_t staged) {
  return staged <= schedule->limit ? 1 : rs_ceil_div(staged, schedule->limit / schedule->halves);
}

void rs_schedule_fit(rs_schedule *schedule, int64_t bytes, int64_t streams) {
  schedule->share = rs_min(schedule->share, bytes / 4 / rs_max(1, streams));
}

/* A message of m bytes has the least of K and m / F pieces, F at most FINE: the former are at most m / K, the latter
 * less than 2 F. Made of streams, the former take half of the bytes at most, the latter as much. */
int64_t rs_plan_mailbox_rounds(const struct reshard_plan_s *plan, const rs_schedule *schedule, int64_t bytes) {
  const rs_peer *peers = plan->peers.at;
  int64_t longest = 0, n = plan->peers.n;
  if (schedule != NULL)
    n = rs_plan_partners(plan, &peers);
  for (int64_t i = 0; i < n; i++)
    longest = rs_max(longest, rs_max(peers[i].sent, peers[i].received));
  return schedule == NULL ? rs_ceil_div(longest, rs_min(bytes - STEP - round_up(plan->block, STEP), FINE))
                          : rs_max(rs_ceil_div(longest, bytes / 2), pipelined_rounds(plan, schedule));
}

bool rs_schedule_fits_mailbox(const rs_schedule *schedule, int64_t bytes) {
  return schedule->block == 0 || 2 * (fine_of(schedule) + STEP) + longer(schedule) <= bytes;
}

/* Messages of a direction, where they are made of streams. busy: room for a flag of each round. The pieces of a stream
 * travel in rounds of their own. */
static int64_t count_messages(const struct reshard_plan_s *plan, const rs_schedule *schedule, const rs_stream_end *ends,
                              int64_t n, bool *busy) {
  int64_t count = 0, last = 0;
  for (int64_t i = 0, end; i < n; i = end) {
    for (end = i + 1; end < n && ends[end].peer == ends[i].peer;)
      end++;
    if (end - i > 1)
      memset(busy, 0, (size_t)(schedule->rounds + rs_plan_later_rounds(plan, schedule)) * sizeof *busy);
    for (int64_t e = i; e < end; e++) {
      int64_t bytes = plan->hops->streams.at[ends[e].stream].bytes;
      if (e > i && bytes == last && ends[e].hop == ends[e - 1].hop) /* in the same rounds */
        continue;
      int64_t pieces = rs_schedule_pieces(schedule, bytes);
      last = bytes;
      for (int64_t k = 0; k < pieces && end - i > 1; k++) {
        bool *round = &busy[rs_piece_round(schedule, pieces, k) + ends[e].hop * schedule->halves];
        count += !*round;
        *round = true;
      }
      count += end - i == 1 ? pieces : 0;
    }
  }
  return count;
}

static reshard_status describe_messages(const struct reshard_plan_s *plan, const rs_schedule *schedule,
                                        const bool *in_place, reshard_plan_info *info) {
  info->messages_sent = info->messages_received = info->packs_skipped = info->unpacks_skipped = 0;
  if (schedule->passes) {
    bool *busy;
    const rs_hops *h = plan->hops;
    RS_TRY(rs_alloc(&busy, schedule->rounds + rs_plan_later_rounds(plan, schedule), sizeof *busy));
    info->messages_sent = count_messages(plan, schedule, h->sends.at, h->sends.n, busy);
    info->messages_received = count_messages(plan, schedule, h->receives.at, h->receives.n, busy);
    free(busy);
    return RESHARD_SUCCESS;
  }
  for (int64_t i = 0; i < plan->peers.n; i++) {
    info->messages_sent += rs_schedule_pieces(schedule, plan->peers.at[i].sent);
    info->messages_received += rs_schedule_pieces(schedule, plan->peers.at[i].received);
    info->packs_skipped += in_place[2 * i];
    info->unpacks_skipped += in_place[2 * i + 1];
  }
  return RESHARD_SUCCESS;
}

/* Sets the rounds, messages and workspace of the info, when all ranks take so many; -1: as many as this rank needs.
 * streams: the most of any rank, where bytes are passed on. Fewer rounds than needed are an error. */
static reshard_status describe_rounds(const struct reshard_plan_s *plan, int64_t rounds, int64_t streams,
                                      reshard_plan_info *info) {
  bool *in_place = NULL; /* no stream is */
  rs_schedule schedule = rs_plan_schedule(plan, plan->on_cpu, 0, 1, streams);
  if (!schedule.passes) {
    RS_TRY(rs_alloc(&in_place, 2 * plan->peers.n, sizeof *in_place));
    find_in_place(plan, in_place);
  }
  rs_staging_size staging = rs_plan_staging(plan, &schedule, in_place);
  int64_t least = least_rounds(plan, &schedule, in_place, staging.bytes);
  schedule.rounds = rounds >= 0 ? rounds : least;
  if (schedule.rounds > 1)
    staging = rs_plan_staging(plan, &schedule, in_place);
  info->rounds = schedule.rounds;
  info->later_rounds = rs_plan_later_rounds(plan, &schedule);
  info->streams = rs_plan_streams(plan, plan->on_cpu);
  schedule.limit = rs_plan_needed_limit(plan, &schedule, in_place);
  info->workspace_limit = schedule.limit == INT64_MAX ? RESHARD_NO_LIMIT : schedule.limit;
  info->workspace_bytes = staging.bytes;
  info->staged_bytes = staging.staged;
  info->least_rounds = least > 0 ? rs_rounds_bound(&schedule, staging.staged) : 0;
  reshard_status status =
      schedule.rounds >= least
          ? describe_messages(plan, &schedule, in_place, info)
          : rs_error(RESHARD_ERROR_INVALID, "reshard_plan_get_info_at: %lld rounds, this rank needs %lld",
                     (long long)rounds, (long long)least);
  free(in_place);
  return status;
}

int64_t rs_plan_least_limit(const struct reshard_plan_s *plan, int64_t streams) {
  int64_t parts = rs_max(streams, 2 * rs_min(plan->world, INT64_MAX / SHARES / SHARES));
  return SHARES / 2 * SMALL_STEP * parts;
}

reshard_status rs_plan_set_rounds(struct reshard_plan_s *plan) {
  int64_t streams = rs_plan_streams(plan, plan->on_cpu), least = rs_plan_least_limit(plan, streams);
  if (plan->limit > 0 && plan->world > 1 && plan->nentries > 0 && plan->limit < least)
    return rs_error(RESHARD_ERROR_INVALID,
                    "a workspace limit of %lld bytes is too small: %lld is the least with %lld ranks%s",
                    (long long)plan->limit, (long long)least, (long long)plan->world,
                    streams > 2 * plan->world ? ", of which this one stages many streams that are passed on" : "");
  return describe_rounds(plan, -1, streams, &plan->info);
}

reshard_status reshard_plan_get_info_at(reshard_plan plan, int64_t rounds, int64_t streams, reshard_plan_info *info) {
  RS_TRY(RS_GIVEN("reshard_plan_get_info_at", plan, info));
  int64_t own = plan->info.streams;
  if (streams != 0 && streams < own)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_plan_get_info_at: %lld streams, this rank has %lld",
                    (long long)streams, (long long)own);
  if (rounds < 0)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_plan_get_info_at: %lld rounds, this rank needs %lld",
                    (long long)rounds, (long long)plan->info.rounds);
  reshard_plan_info at = plan->info;
  RS_TRY(describe_rounds(plan, rounds > 0 ? rounds : -1, plan->hops != NULL ? rs_max(streams, own) : 0, &at));
  *info = at;
  return RESHARD_SUCCESS;
}

/* Staging suffices whether the transfer passes bytes on or not. Where it does it takes two halves in two rounds
 * already, and less in more. On the CPU the default limit rises with the streams that other ranks have. */
reshard_status reshard_plan_workspace(reshard_plan plan, size_t *bytes) {
  RS_TRY(RS_GIVEN("reshard_plan_workspace", plan, bytes));
  int64_t streams = rs_plan_streams(plan, plan->on_cpu), most = 0;
  for (int64_t rounds = 0; rounds <= (streams > 0 ? 2 : 0); rounds++) {
    rs_schedule schedule = rs_plan_schedule(plan, plan->on_cpu, 0, rs_max(1, rounds), rounds > 0 ? streams : 0);
    int64_t limit = rounds == 0 || !plan->on_cpu ? rs_plan_needed_limit(plan, &schedule, NULL)
                    : plan->limit > 0            ? plan->limit
                                                 : INT64_MAX;
    most = rs_max(most, rs_min(rs_plan_staging(plan, &schedule, NULL).bytes, limit));
  }
  *bytes = (size_t)most;
  return RESHARD_SUCCESS;
}
