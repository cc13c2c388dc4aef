/* Binds the arrays of a packed transfer: lists its rounds, with addresses and programs. */
#include "device/plain.h"
#include "exec/packed/packer.h"
#include "plan/messages.h"
#include "plan/place.h"
#include "plan/rounds.h"

#include <stdlib.h>
#include <string.h>

/* One segment of a message, as a lowering but for its view and its place in the message. */
static rs_lowering lowering_of(const packer *p, const packed_message *msg, const rs_class *c, bool sending,
                               const rs_segment *s) {
  if (msg->end == NULL) {
    bool sent = sending || msg->own; /* kept data is on the send side */
    return (rs_lowering){
        .class_ = c, .sending = sent, .route = rs_route_of(p->plan->rank, sent, msg->peer->rank), .segment = s};
  }
  const rs_stream *stream = &p->plan->hops->streams.at[msg->end->stream];
  return (rs_lowering){.class_ = c,
                       .sending = stream->from_here,
                       .route = {stream->holder, stream->from_here ? stream->taker : p->plan->rank},
                       .segment = s,
                       .passed = msg->end->hop > 0,
                       .back = sending && msg->end->hop > 0};
}

/* The part that an entry has in a message; NULL: none. */
static const rs_message *part_of_entry(const packer *p, const packed_message *msg, bool sending, const rs_class *c) {
  if (msg->end != NULL)
    return rs_side_message(rs_stream_side(&p->plan->hops->streams.at[msg->end->stream], c), msg->end->stream);
  return rs_side_message(sending || msg->own ? &c->send : &c->receive, msg->peer->rank);
}

reshard_status rs_packer_lower(packer *p, packed_message *msg, bool sending, int64_t begin, int64_t end, char *linear) {
  const struct reshard_plan_s *plan = p->plan;
  const rs_class *classes = msg->end != NULL ? plan->hops->classes : plan->classes.at;
  for (; msg->at < plan->nentries; msg->at++, msg->segment = 0) {
    int64_t entry = plan->order[msg->at];
    const rs_class *c = &classes[plan->entries[entry].class_];
    const rs_message *m = part_of_entry(p, msg, sending, c);
    for (; m != NULL && msg->segment < m->count; msg->segment++) {
      const rs_segment *s = &m->segments[msg->segment];
      int64_t bytes = s->elements * c->wire.width, from = rs_max(begin - msg->before, 0),
              to = rs_min(end - msg->before, bytes);
      if (from < to) {
        rs_view view;
        rs_lowering lowering = lowering_of(p, msg, c, sending, s);
        bool of_source = sending && !lowering.back;
        rs_arrays_view(&p->binding->arrays, plan, entry, of_source, of_source ? s->src_array : s->dst_array, &view);
        *(of_source ? &lowering.src : &lowering.dst) = &view;
        lowering.linear = linear + (msg->before + from - begin);
        RS_TRY(from == 0 && to == bytes
                   ? rs_lower(&lowering, &p->copies)
                   : rs_lower_range(&lowering, from / c->wire.width, to / c->wire.width, &p->copies));
      }
      if (msg->before + bytes >= end && to < bytes)
        return RESHARD_SUCCESS; /* the next piece goes on within this segment */
      msg->before += bytes;
      if (msg->before == end) {
        msg->segment++;
        return RESHARD_SUCCESS;
      }
    }
  }
  return RESHARD_SUCCESS;
}

static reshard_status message_of(const packer *p, const rs_peer *peer, bool sending, packed_message *out) {
  const struct reshard_plan_s *plan = p->plan;
  const rs_arrays *arrays = &p->binding->arrays;
  int64_t bytes = sending ? peer->sent : peer->received,
          pieces = rs_schedule_pieces(&p->transfer->messages.schedule, bytes);
  packed_message msg = {.peer = peer, .bytes = bytes, .pieces = pieces};
  if (!p->transfer->comm->messages.staged)
    msg.in_place = rs_arrays_message(arrays, plan, peer, sending, rs_comm_alignment(p->transfer->comm));
  if (p->transfer->messages.strided && sending && msg.in_place == NULL) {
    RS_TRY(rs_arrays_strided(arrays, plan, peer, p->transfer->comm->messages.least_run, &msg.strided));
    msg.in_place = (char *)msg.strided.at; /* which is read alone */
  }
  msg.round = rs_piece_round(&p->transfer->messages.schedule, pieces, 0);
  *out = msg;
  return RESHARD_SUCCESS;
}

/* Lists the messages, those that go in place among them, and the size of the staging for the others. */
static reshard_status find_messages(packer *p) {
  if (p->transfer->messages.schedule.passes)
    return rs_packer_find_streams(p);
  const struct reshard_plan_s *plan = p->plan;
  reshard_transfer_info *info = &p->binding->info;
  bool *in_place = NULL;
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc_zero(&in_place, 2 * plan->peers.n, sizeof *in_place), done);
  RS_TRY_GOTO(status, rs_alloc(&p->sends, plan->peers.n, sizeof *p->sends), done);
  RS_TRY_GOTO(status, rs_alloc(&p->receives, plan->peers.n, sizeof *p->receives), done);
  for (int64_t i = 0; i < plan->peers.n; i++) {
    const rs_peer *peer = &plan->peers.at[i];
    if (rs_transfer_maps(p->transfer, peer->rank)) {
      in_place[2 * i] = in_place[2 * i + 1] = true;
      continue;
    }
    if (peer->sent > 0) {
      RS_TRY_GOTO(status, message_of(p, peer, true, &p->sends[p->nsends]), done);
      in_place[2 * i] = p->sends[p->nsends++].in_place != NULL;
    }
    if (peer->received > 0) {
      RS_TRY_GOTO(status, message_of(p, peer, false, &p->receives[p->nreceives]), done);
      in_place[2 * i + 1] = p->receives[p->nreceives++].in_place != NULL;
    }
    info->packs_skipped += in_place[2 * i];
    info->unpacks_skipped += in_place[2 * i + 1];
  }
  p->staging = rs_plan_staging(plan, &p->transfer->messages.schedule, in_place);
done:
  free(in_place);
  return status;
}

/* Messages of a collective lie where it wants them. */
static void place_collective(packer *p) {
  const reshard_pattern *pattern = &p->transfer->messages.collective;
  bool packs = p->placement.send == NULL, unpacks = p->placement.receive == NULL;
  int64_t bytes = pattern->bytes, send_step = 0, receive_step = bytes, me = p->plan->rank;
  rs_collective *c = &p->collective;
  *c = (rs_collective){pattern->kind, pattern->root, p->placement.send, p->placement.receive, bytes};
  if (unpacks)
    c->receive = p->workspace + rs_plan_staged(p->placement.send_bytes);
  if (packs)
    c->send = pattern->kind == RESHARD_COLLECTIVE_ALL_GATHER ? c->receive + me * bytes : p->workspace;
  if (pattern->kind == RESHARD_COLLECTIVE_ALL_TO_ALL)
    send_step = bytes;
  if (pattern->kind == RESHARD_COLLECTIVE_BROADCAST)
    receive_step = 0;
  for (int64_t i = 0; i < p->nsends; i++) {
    packed_message *msg = &p->sends[i];
    char *at = c->send + msg->peer->rank * send_step;
    msg->in_place = packs ? NULL : at;
    msg->staged = packs ? at : NULL;
    msg->shared = send_step == 0 && i > 0;
  }
  for (int64_t i = 0; i < p->nreceives; i++) {
    packed_message *msg = &p->receives[i];
    char *at = c->receive + msg->peer->rank * receive_step;
    msg->in_place = unpacks ? NULL : at;
    msg->staged = unpacks ? at : NULL;
  }
  p->binding->info.packs_skipped = packs ? 0 : p->nsends;
  p->binding->info.unpacks_skipped = unpacks ? 0 : p->nreceives;
}

/* Gives the staged messages their places from `next` on; returns the end of them. */
static char *place_messages(packer *p, packed_message *messages, int64_t n, char *next) {
  int32_t slot = 0;
  for (int64_t i = 0; i < n; i++) {
    packed_message *msg = &messages[i];
    if (msg->in_place != NULL)
      continue;
    msg->staged = next;
    msg->slot = slot++;
    next += rs_place_bytes(&p->transfer->messages.schedule, p->staging.whole, msg->bytes);
  }
  return next;
}

static reshard_status find_workspace(packer *p) {
  reshard_transfer t = p->transfer;
  if (t->messages.collective.kind != RESHARD_COLLECTIVE_NONE) {
    rs_collective_place(t, &t->messages.collective, &p->binding->arrays, &p->placement);
    p->staging = (rs_staging_size){.whole = true, .bytes = (int64_t)rs_placement_bytes(&p->placement)};
  }
  if (rs_transfer_mailbox(t) > 0) /* which is the staging of both sides */
    p->staging = (rs_staging_size){.whole = false};
  p->binding->info.workspace_bytes = (size_t)p->staging.bytes;
  p->workspace = t->comm->messages.staged ? NULL : t->workspace.at;
  if (p->staging.bytes > 0 && t->cached != NULL) {
    RS_TRY(rs_call_staging_take(t->cached, (size_t)p->staging.bytes, (void **)&p->workspace));
  } else if (p->staging.bytes > 0 && p->workspace == NULL) {
    RS_TRY(rs_device_alloc(t->comm->device, (size_t)p->staging.bytes, &p->binding->workspace));
    p->workspace = p->binding->workspace;
  } else if (p->workspace != NULL && t->workspace.bytes < (size_t)p->staging.bytes) {
    return rs_error(RESHARD_ERROR_INVALID, "a workspace of %zu bytes, %lld are needed", t->workspace.bytes,
                    (long long)p->staging.bytes);
  }
  if (p->staging.bytes > 0)
    RS_TRY(rs_staging_look_up(t->comm, p->workspace, (size_t)p->staging.bytes));
  if (t->messages.collective.kind != RESHARD_COLLECTIVE_NONE) {
    place_collective(p);
    return RESHARD_SUCCESS;
  }
  if (rs_transfer_mailbox(t) > 0)
    return RESHARD_SUCCESS;
  if (t->messages.schedule.passes) {
    rs_packer_place_streams(p);
    return RESHARD_SUCCESS;
  }
  char *next = place_messages(p, p->sends, p->nsends, p->workspace);
  place_messages(p, p->receives, p->nreceives, next);
  return RESHARD_SUCCESS;
}

reshard_status rs_packer_compile(packer *p, rs_copies *copies, rs_program **program) {
  reshard_comm comm = p->transfer->comm;
  *program = NULL;
  if (copies->copy.n == 0)
    return RESHARD_SUCCESS;
  RS_TRY(rs_binding_compile(p->transfer, p->binding, copies, p->plan->info.bytes, comm->waits.barrier, program));
  p->binding->info.copies += comm->device->work->count(*program);
  copies->copy.n = copies->axis.n = copies->scaled.n = 0;
  copies->bytes = 0;
  return RESHARD_SUCCESS;
}

/* Adds the copies between the rank's arrays and its own part of an all-to-all. */
static reshard_status lower_own(packer *p, bool sending) {
  const rs_collective *c = &p->collective;
  if (c->kind != RESHARD_COLLECTIVE_ALL_TO_ALL || (sending ? p->placement.send : p->placement.receive) != NULL)
    return RESHARD_SUCCESS;
  rs_peer own = rs_plan_own(p->plan);
  packed_message msg = {.peer = &own, .bytes = own.sent, .own = true};
  char *at = (sending ? c->send : c->receive) + own.rank * c->bytes;
  p->copies.staging = sending;
  return rs_packer_lower(p, &msg, sending, 0, own.sent, at);
}

/* First byte of piece i of a message. */
static int64_t piece_begin(const packer *p, const packed_message *msg, bool sending, int64_t i) {
  int64_t at = rs_piece_begin(&p->transfer->messages.schedule, msg->bytes, msg->pieces, i);
  return rs_plan_block_begin(p->plan, sending, msg->peer->rank, at);
}

/* The next piece of a message, as a part of this round; copies between its place and the rank's arrays are listed. */
static reshard_status make_part(packer *p, packed_message *msg, bool sending, int half, rs_part *part, rs_slot *slot) {
  int64_t begin = piece_begin(p, msg, sending, msg->piece), end = piece_begin(p, msg, sending, msg->piece + 1);
  reshard_comm comm = p->transfer->comm;
  bool staged = msg->in_place == NULL, in_mailbox = rs_transfer_mailbox(p->transfer) > 0 && staged;
  int mailbox_slot = msg->pieces == 1 ? -1 : (int)(msg->piece % 2);
  char *at, *mailbox = NULL;
  for (int64_t left = end - begin, i = msg->piece; comm->messages.mailbox > 0 && left > 0 && i < msg->piece + 2;
       i++, left -= comm->messages.mailbox) { /* both places, where it is longer than one */
    char *place;
    RS_TRY(comm->ops->messages->mailbox(comm, msg->peer->rank, sending, (int)(i % 2),
                                        rs_min(left, comm->messages.mailbox), &place));
    mailbox = i == msg->piece ? place : mailbox;
  }
  at = in_mailbox ? mailbox
       : !staged  ? msg->in_place + begin
                  : msg->staged + (p->staging.whole ? begin : half * p->staging.half);
  *part = (rs_part){msg->peer->rank, at, end - begin, NULL, staged, in_mailbox, mailbox_slot, NULL, NULL, 0};
  if (msg->strided.at != NULL)
    RS_TRY(comm->ops->messages->make_type(comm, msg->strided.runs, msg->strided.run, msg->strided.stride, &part->type));
  if (slot != NULL)
    *slot = (rs_slot){staged ? 2 * msg->slot + half : -1, false};
  if (++msg->piece < msg->pieces)
    msg->round = rs_piece_round(&p->transfer->messages.schedule, msg->pieces, msg->piece);
  if (!staged || msg->shared)
    return RESHARD_SUCCESS;
  p->copies.staging = sending;
  return rs_packer_lower(p, msg, sending, begin, end, at);
}

/* Prepares a whole message for the other place of the mailbox; msg: as it was before its part was made. */
static reshard_status make_other(packer *p, packed_message msg, bool sending, rs_part *part) {
  reshard_comm comm = p->transfer->comm;
  int64_t copies = p->binding->info.copies; /* one of the two runs */
  char *mailbox;
  RS_TRY(comm->ops->messages->mailbox(comm, part->peer, sending, 1, rs_min(part->bytes, comm->messages.mailbox),
                                      &mailbox));
  if (!part->in_mailbox)
    return RESHARD_SUCCESS;
  p->copies.staging = sending;
  RS_TRY(rs_packer_lower(p, &msg, sending, 0, part->bytes, mailbox));
  RS_TRY(rs_packer_compile(p, &p->copies, &part->other_program));
  p->binding->info.copies = copies;
  return RESHARD_SUCCESS;
}

/* Messages that have a piece in this round. */
static int64_t count_parts(const packed_message *messages, int64_t n, int64_t round) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i++)
    count += messages[i].round == round && messages[i].piece < messages[i].pieces;
  return count;
}

/* Parts of one round in one direction. */
static reshard_status make_parts(packer *p, bool sending, rs_round *r, int half) {
  packed_message *messages = sending ? p->sends : p->receives;
  int64_t n = sending ? p->nsends : p->nreceives, made = 0, count = count_parts(messages, n, r->number);
  rs_part **parts = sending ? &r->sends : &r->receives;
  rs_slot **slots = sending ? &r->send_slots : &r->receive_slots;
  bool together = p->transfer->streams.used;
  RS_TRY(rs_alloc(parts, count, sizeof **parts));
  *(sending ? &r->nsends : &r->nreceives) = count;
  for (int64_t i = 0; i < count; i++)
    (*parts)[i] = (rs_part){0}; /* what is released when one is not made */
  if (together && !p->staging.whole)
    RS_TRY(rs_alloc(slots, count, sizeof **slots));
  RS_TRY(lower_own(p, sending));
  for (int64_t i = 0; i < n; i++) {
    packed_message *msg = &messages[i];
    if (msg->round != r->number || msg->piece == msg->pieces)
      continue;
    rs_part *part = &(*parts)[made];
    packed_message before = *msg;
    RS_TRY(make_part(p, msg, sending, half, part, *slots != NULL ? &(*slots)[made] : NULL));
    if (!together)
      RS_TRY(rs_packer_compile(p, &p->copies, &part->program));
    if (p->transfer->comm->messages.mailbox > 0 && part->mailbox_slot < 0)
      RS_TRY(make_other(p, before, sending, part));
    made++;
  }
  return together ? rs_packer_compile(p, &p->copies, sending ? &r->pack : &r->unpack) : RESHARD_SUCCESS;
}

/* Adds the round, where this rank has something in it. */
static reshard_status make_round(packer *p, int64_t number) {
  rs_binding *b = p->binding;
  if (count_parts(p->sends, p->nsends, number) + count_parts(p->receives, p->nreceives, number) == 0)
    return RESHARD_SUCCESS;
  int half = p->transfer->streams.used && !p->staging.whole ? (int)(b->nrounds % 2) : 0;
  rs_round *r = &b->rounds[b->nrounds++]; /* from here on the binding frees it */
  *r = (rs_round){.number = number, .collective = p->collective};
  for (int sending = 1; sending >= 0; sending--)
    RS_TRY(p->transfer->messages.schedule.passes ? rs_packer_make_passed(p, sending, r, half)
                                                 : make_parts(p, sending, r, half));
  return RESHARD_SUCCESS;
}

/* Uses of slots, from the last one back; seen by slot: a later round uses it. */
static void mark_reused(rs_slot *slots, int64_t n, bool *seen) {
  for (int64_t i = 0; slots != NULL && i < n; i++)
    if (slots[i].number >= 0) {
      slots[i].reused = seen[slots[i].number];
      seen[slots[i].number] = true;
    }
}

/* Marks the slots that are used again, and makes room to remember their last use. */
static reshard_status find_reuse(packer *p) {
  rs_binding *b = p->binding;
  bool *seen;
  if (!p->transfer->streams.used || p->staging.whole)
    return RESHARD_SUCCESS;
  b->nsent = 2 * p->nsends;
  b->nreceived = 2 * p->nreceives;
  RS_TRY(rs_alloc(&b->sent, b->nsent, sizeof *b->sent));
  RS_TRY(rs_alloc(&b->received, b->nreceived, sizeof *b->received));
  RS_TRY(rs_alloc_zero(&seen, b->nsent + b->nreceived, sizeof *seen));
  for (int64_t i = b->nrounds - 1; i >= 0; i--) {
    rs_round *r = &b->rounds[i];
    mark_reused(r->send_slots, r->nsends, seen);
    mark_reused(r->receive_slots, r->nreceives, seen + b->nsent);
  }
  free(seen);
  return RESHARD_SUCCESS;
}

/* rs_view_of and rs_maps_rank of ranks whose sources are read. */
static reshard_status view_of_peer(void *user, int64_t rank, int64_t entry, bool source, int64_t array, rs_view *view) {
  rs_descriptor_view(((const packer *)user)->descriptors[rank], entry, source, array, view);
  return RESHARD_SUCCESS;
}
static bool maps_peer(void *user, int64_t rank) { return rs_transfer_maps(((const packer *)user)->transfer, rank); }

/* Compiles the copies that stay on the rank, with those from ranks whose sources are read. */
static reshard_status make_keep(packer *p) {
  rs_copies kept = {.deal = p->descriptors != NULL};
  const rs_hops *hops = p->transfer->messages.schedule.passes ? p->plan->hops : NULL;
  reshard_status status = p->descriptors == NULL
                              ? rs_pull_own(p->plan, &p->binding->arrays, &kept)
                              : rs_pull(p->plan, hops, view_of_peer, maps_peer, p, &kept, &p->binding->foreign_bytes);
  RS_THEN(status, rs_packer_compile(p, &kept, &p->binding->self_copy));
  if (status == RESHARD_SUCCESS && p->binding->self_copy != NULL &&
      p->transfer->streams.barrier != NULL) /* it reads others' memory */
    p->transfer->comm->device->processes->guard(p->binding->self_copy, p->transfer->streams.barrier);
  rs_copies_free(&kept);
  return status;
}

reshard_status rs_packed_bind(reshard_transfer t, rs_binding *binding, const rs_descriptor *const *descriptors) {
  packer p = {.transfer = t, .plan = t->plan, .binding = binding, .descriptors = descriptors};
  binding->info = (reshard_transfer_info){.path = t->path->number, .rounds = t->messages.schedule.rounds};
  reshard_status status;
  RS_TRY_GOTO(status, find_messages(&p), done);
  RS_TRY_GOTO(status, find_workspace(&p), done);
  if (p.collective.kind == RESHARD_COLLECTIVE_NONE || p.placement.self_copies)
    RS_TRY_GOTO(status, make_keep(&p), done);
  int64_t rounds = t->messages.schedule.rounds + t->messages.later;
  RS_TRY_GOTO(status, rs_alloc_zero(&binding->rounds, rounds, sizeof *binding->rounds), done);
  for (int64_t number = 0; number < rounds; number++)
    RS_TRY_GOTO(status, make_round(&p, number), done);
  status = find_reuse(&p);
done:
  free(p.sends);
  free(p.receives);
  rs_copies_free(&p.copies);
  return status;
}
