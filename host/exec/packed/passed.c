/* Messages of a packed transfer that passes bytes on (rule 11 of plans).
 *
 * A message of a round has a piece of each stream of the pair that has one then. Pieces follow one another in the order
 * of the streams; the last one of a stream may have any length, so those come behind all others. A rank packs what it
 * passes on from its own destination, where it was unpacked in an earlier round: the one before, or on a device with
 * streams, where rounds overlap, the one before that. There peers that are sent the same share a copy of it. */
#include "exec/packed/packer.h"
#include "plan/messages.h"
#include "plan/rounds.h"

#include <stdlib.h>

/* The round of a stream's next piece. */
static void find_round(const packer *p, packed_message *msg) {
  const rs_schedule *schedule = &p->transfer->messages.schedule;
  if (msg->piece < msg->pieces)
    msg->round = rs_piece_round(schedule, msg->pieces, msg->piece) + msg->end->hop * schedule->halves;
}

reshard_status rs_transfer_find_read(const struct reshard_transfer_s *t, bool **read) {
  const rs_hops *h = t->plan->hops;
  *read = NULL;
  if (t->path != &rs_mixed_path)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc(read, h->sends.n + h->receives.n, sizeof **read));
  for (int64_t i = 0; i < h->sends.n + h->receives.n; i++)
    (*read)[i] = rs_transfer_reads(t, i < h->sends.n ? &h->sends.at[i] : &h->receives.at[i - h->sends.n]);
  return RESHARD_SUCCESS;
}

/* Streams of one direction. Those of a peer have one place, with room for the longest piece of each; where all is whole
 * its part for a stream is no other's. Those that are read have no pieces. *next: its offset in the staging. */
static void list_streams(const packer *p, const rs_stream_end *ends, int64_t n, packed_message *messages,
                         size_t *next) {
  const rs_hops *h = p->plan->hops;
  const rs_schedule *schedule = &p->transfer->messages.schedule;
  size_t place = *next;
  for (int64_t i = 0; i < n; i++) {
    int64_t bytes = rs_transfer_reads(p->transfer, &ends[i]) ? 0 : h->streams.at[ends[i].stream].bytes;
    bool shared = ends[i].like >= 0 && p->transfer->streams.used;
    if (i > 0 && ends[i].peer != ends[i - 1].peer)
      place = *next;
    messages[i] =
        (packed_message){.bytes = bytes,
                         .pieces = rs_schedule_pieces(schedule, bytes),
                         /* the workspace is not there yet */
                         .staged = shared ? messages[ends[i].like].staged : (char *)(p->staging.whole ? *next : place),
                         .slot = (int32_t)i,
                         .shared = shared,
                         .end = &ends[i]};
    find_round(p, &messages[i]);
    *next += shared ? 0 : (size_t)rs_place_bytes(schedule, p->staging.whole, bytes);
  }
}

reshard_status rs_packer_find_streams(packer *p) {
  const rs_hops *h = p->plan->hops;
  size_t next = 0;
  bool *read;
  RS_TRY(rs_transfer_find_read(p->transfer, &read));
  p->staging = rs_plan_staging(p->plan, &p->transfer->messages.schedule, read);
  free(read);
  RS_TRY(rs_alloc(&p->sends, h->sends.n, sizeof *p->sends));
  RS_TRY(rs_alloc(&p->receives, h->receives.n, sizeof *p->receives));
  p->nsends = h->sends.n;
  p->nreceives = h->receives.n;
  list_streams(p, h->sends.at, h->sends.n, p->sends, &next);
  list_streams(p, h->receives.at, h->receives.n, p->receives, &next);
  return RESHARD_SUCCESS;
}

void rs_packer_place_streams(packer *p) {
  for (int64_t i = 0; i < p->nsends; i++)
    p->sends[i].staged = p->workspace + (size_t)p->sends[i].staged;
  for (int64_t i = 0; i < p->nreceives; i++)
    p->receives[i].staged = p->workspace + (size_t)p->receives[i].staged;
}

static bool in_round(const packed_message *msg, int64_t round) {
  return msg->round == round && msg->piece < msg->pieces;
}

static int64_t piece_begin(const packer *p, const packed_message *msg, int64_t piece) {
  return rs_piece_begin(&p->transfer->messages.schedule, msg->bytes, msg->pieces, piece);
}

/* Lists the copies of a stream's next piece, or skips those that another message has. */
static reshard_status lower_piece(packer *p, packed_message *msg, bool sending, char **at) {
  int64_t begin = piece_begin(p, msg, msg->piece), end = piece_begin(p, msg, ++msg->piece);
  if (!msg->shared)
    RS_TRY(rs_packer_lower(p, msg, sending, begin, end, *at));
  *at += end - begin;
  find_round(p, msg); /* which is a later one */
  return RESHARD_SUCCESS;
}

/* The message of a round to a peer, or from it: pieces of its n streams. */
static reshard_status make_part(packer *p, packed_message *messages, int64_t n, bool sending, rs_round *r, int half,
                                rs_part *part) {
  reshard_comm comm = p->transfer->comm;
  bool in_mailbox = comm->messages.mailbox > 0;
  int64_t bytes = 0, passed = 0, peer = messages->end->peer;
  int mailbox_slot = (int)(messages->part++ % 2); /* both ends count the messages of the pair */
  char *at = NULL;
  for (int64_t i = 0; i < n; i++) {
    const packed_message *msg = &messages[i];
    if (!in_round(msg, r->number))
      continue;
    at = at != NULL ? at : msg->staged + half * p->staging.half;
    int64_t piece = piece_begin(p, msg, msg->piece + 1) - piece_begin(p, msg, msg->piece);
    bytes += piece;
    passed += msg->end->hop > 0 ? piece : 0;
    r->passes |= sending && msg->end->hop > 0;
  }
  if (in_mailbox)
    RS_TRY(comm->ops->messages->mailbox(comm, peer, sending, mailbox_slot, bytes, &at));
  *part = (rs_part){peer, at, bytes, NULL, true, in_mailbox, mailbox_slot, NULL, NULL, passed};
  p->copies.staging = sending;
  for (int last = 0; last < 2; last++)
    for (int64_t i = 0; i < n; i++) {
      packed_message *msg = &messages[i];
      if (!in_round(msg, r->number) || (msg->piece + 1 == msg->pieces) != last)
        continue;
      RS_TRY(lower_piece(p, msg, sending, &at));
    }
  return p->transfer->streams.used ? RESHARD_SUCCESS : rs_packer_compile(p, &p->copies, &part->program);
}

/* End of the streams of the peer that those from `first` on have; *any: some have a piece in the round. */
static int64_t end_of_peer(const packed_message *messages, int64_t n, int64_t first, int64_t round, bool *any) {
  int64_t i = first;
  for (*any = false; i < n && messages[i].end->peer == messages[first].end->peer; i++)
    *any = *any || in_round(&messages[i], round);
  return i;
}

/* Marks the round that brought what this one passes on. Each round of a stream has its piece in one hop later. */
static void mark_bringing(const packer *p, const rs_round *r) {
  rs_round *before = p->binding->rounds + p->binding->nrounds - 1;
  while (before->number > r->number - p->transfer->messages.schedule.halves)
    before--;
  before->brings = true;
}

reshard_status rs_packer_make_passed(packer *p, bool sending, rs_round *r, int half) {
  packed_message *messages = sending ? p->sends : p->receives;
  int64_t n = sending ? p->nsends : p->nreceives, count = 0, *made = sending ? &r->nsends : &r->nreceives;
  rs_part **parts = sending ? &r->sends : &r->receives;
  rs_slot **slots = sending ? &r->send_slots : &r->receive_slots;
  bool any, together = p->transfer->streams.used;
  for (int64_t i = 0; i < n;) {
    i = end_of_peer(messages, n, i, r->number, &any);
    count += any;
  }
  RS_TRY(rs_alloc_zero(parts, count, sizeof **parts));
  if (together && !p->staging.whole)
    RS_TRY(rs_alloc(slots, count, sizeof **slots));
  for (int64_t i = 0, end; i < n; i = end) {
    end = end_of_peer(messages, n, i, r->number, &any);
    if (!any)
      continue;
    if (*slots != NULL)
      (*slots)[*made] = (rs_slot){2 * messages[i].slot + half, false};
    RS_TRY(make_part(p, messages + i, end - i, sending, r, half, &(*parts)[(*made)++]));
  }
  if (sending && r->passes)
    mark_bringing(p, r);
  return together ? rs_packer_compile(p, &p->copies, sending ? &r->pack : &r->unpack) : RESHARD_SUCCESS;
}
