/* Binds the arrays of a packed transfer: lists its rounds, with addresses and programs. */
#include "exec/lower.h"
#include "exec/packed/collective.h"
#include "exec/packed/packed.h"
#include "exec/pull.h"
#include "plan/rounds.h"

#include <stdlib.h>
#include <string.h>

/* A message on its way through the rounds: pieces are asked for in order, so it is walked once. */
typedef struct packed_message {
  const rs_peer *peer;
  int64_t bytes, group;
  char *in_place;              /* where the message is in the user's memory; NULL: staged */
  char *staged;                /* its own staging; NULL under a limit */
  bool own;                    /* kept data, as a part of a collective */
  bool shared;                 /* an earlier message is the same, and is packed already */
  int64_t at, segment, before; /* walk: position in plan->order, segment of that entry's message, bytes before it */
} packed_message;

typedef struct packer {
  reshard_transfer transfer;
  const struct reshard_plan_s *plan;
  rs_binding *binding;
  rs_staging_size staging;
  char *workspace;
  packed_message *sends, *receives; /* by group, then peer */
  int64_t nsends, nreceives;
  rs_collective collective;
  rs_placement placement; /* of it */
  rs_copies copies;       /* of the part being made */
} packer;

/* Bytes [begin, end) of a message, as copies between the rank's arrays and `linear`, where byte `begin` is. */
static reshard_status lower_piece(packer *p, packed_message *msg, bool sending, int64_t begin, int64_t end,
                                  char *linear, rs_copies *copies) {
  const struct reshard_plan_s *plan = p->plan;
  for (; msg->at < plan->nentries; msg->at++, msg->segment = 0) {
    int64_t entry = plan->order[msg->at];
    const rs_class *c = &plan->classes.at[plan->entries[entry].class_];
    bool sent = sending || msg->own; /* kept data is on the send side */
    const rs_side *side = sent ? &c->send : &c->receive;
    const rs_message *m = rs_side_message(side, msg->peer->rank);
    for (; m != NULL && msg->segment < m->count; msg->segment++) {
      const rs_segment *s = &side->segments.at[m->first + msg->segment];
      int64_t bytes = s->elements * c->width, from = rs_max(begin - msg->before, 0),
              to = rs_min(end - msg->before, bytes);
      if (from < to) {
        rs_view view;
        rs_arrays_view(&p->binding->arrays, plan, entry, sending, sending ? s->src_array : s->dst_array, &view);
        rs_lowering lowering = {
            plan, c, sent, s, sending ? &view : NULL, sending ? NULL : &view, linear + (msg->before + from - begin)};
        RS_TRY(from == 0 && to == bytes ? rs_lower(&lowering, copies)
                                        : rs_lower_range(&lowering, from / c->width, to / c->width, copies));
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

static int by_group(const void *a, const void *b) {
  const packed_message *x = a, *y = b;
  if (x->group != y->group)
    return x->group < y->group ? -1 : 1;
  return x->peer->rank < y->peer->rank ? -1 : x->peer->rank > y->peer->rank;
}

/* Lists the messages, those that go in place among them, and the size of the staging for the others. */
static reshard_status find_messages(packer *p) {
  const struct reshard_plan_s *plan = p->plan;
  const rs_arrays *arrays = &p->binding->arrays;
  bool *in_place = NULL, staged = p->transfer->comm->staged;
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc_zero(&in_place, 2 * plan->peers.n, sizeof *in_place), done);
  RS_TRY_GOTO(status, rs_alloc_zero(&p->sends, plan->peers.n, sizeof *p->sends), done);
  RS_TRY_GOTO(status, rs_alloc_zero(&p->receives, plan->peers.n, sizeof *p->receives), done);
  for (int64_t i = 0; i < plan->peers.n; i++) {
    const rs_peer *peer = &plan->peers.at[i];
    rs_place place;
    if (peer->sent > 0) {
      packed_message *msg = &p->sends[p->nsends++];
      *msg = (packed_message){.peer = peer, .bytes = peer->sent, .group = rs_plan_group(plan, plan->rank, peer->rank)};
      in_place[2 * i] = !staged && rs_message_in_place(plan, peer, true, arrays->src_strides, &place);
      if (in_place[2 * i])
        msg->in_place = (char *)arrays->src[place.buffer] + place.offset;
    }
    if (peer->received > 0) {
      packed_message *msg = &p->receives[p->nreceives++];
      *msg =
          (packed_message){.peer = peer, .bytes = peer->received, .group = rs_plan_group(plan, peer->rank, plan->rank)};
      in_place[2 * i + 1] = !staged && rs_message_in_place(plan, peer, false, arrays->dst_strides, &place);
      if (in_place[2 * i + 1])
        msg->in_place = (char *)arrays->dst[place.buffer] + place.offset;
    }
    p->binding->info.packs_skipped += in_place[2 * i];
    p->binding->info.unpacks_skipped += in_place[2 * i + 1];
  }
  if (p->nsends > 1)
    qsort(p->sends, (size_t)p->nsends, sizeof *p->sends, by_group);
  if (p->nreceives > 1)
    qsort(p->receives, (size_t)p->nreceives, sizeof *p->receives, by_group);
  status = rs_plan_staging(plan, in_place, &p->staging);
done:
  free(in_place);
  return status;
}

/* Messages of a collective lie where it wants them. */
static void place_collective(packer *p) {
  const reshard_pattern *pattern = &p->transfer->collective;
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

static reshard_status find_workspace(packer *p) {
  reshard_transfer t = p->transfer;
  if (t->collective.kind != RESHARD_COLLECTIVE_NONE) {
    rs_collective_place(t, &t->collective, &p->binding->arrays, &p->placement);
    p->staging = (rs_staging_size){.halves = 1, .bytes = (int64_t)rs_placement_bytes(&p->placement)};
  }
  p->binding->info.workspace_bytes = (size_t)p->staging.bytes;
  p->workspace = t->comm->staged ? NULL : t->user_workspace;
  if (p->staging.bytes > 0 && p->workspace == NULL) {
    RS_TRY(t->comm->device->memory->alloc(t->comm->device, (size_t)p->staging.bytes, &p->binding->workspace));
    p->workspace = p->binding->workspace;
  } else if (p->workspace != NULL && t->user_workspace_bytes < (size_t)p->staging.bytes) {
    return rs_error(RESHARD_ERROR_INVALID, "a workspace of %zu bytes, %lld are needed", t->user_workspace_bytes,
                    (long long)p->staging.bytes);
  }
  if (t->collective.kind != RESHARD_COLLECTIVE_NONE)
    place_collective(p);
  if (t->collective.kind != RESHARD_COLLECTIVE_NONE || p->staging.slot > 0)
    return RESHARD_SUCCESS;
  char *next = p->workspace;
  for (int64_t i = 0; i < p->nsends + p->nreceives; i++) {
    packed_message *msg = i < p->nsends ? &p->sends[i] : &p->receives[i - p->nsends];
    if (msg->in_place == NULL) {
      msg->staged = next;
      next += rs_plan_staged(msg->bytes);
    }
  }
  return RESHARD_SUCCESS;
}

/* The copies listed so far, as a program; none when there are none. */
static reshard_status compile_copies(packer *p, rs_copies *copies, rs_program **program) {
  rs_device *device = p->transfer->comm->device;
  *program = NULL;
  if (copies->copy.n == 0)
    return RESHARD_SUCCESS;
  RS_TRY(device->work->compile(device, copies, p->plan->info.bytes, program));
  p->binding->info.copies += device->work->count(*program);
  copies->copy.n = copies->axis.n = 0;
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
  return lower_piece(p, &msg, sending, 0, own.sent, at, &p->copies);
}

/* Parts of one round in one direction: every message of the group that still has this piece. */
static reshard_status make_parts(packer *p, packed_message *messages, int64_t n, bool sending, int64_t group,
                                 int64_t piece, int half, rs_part **parts, int64_t *nparts, rs_program **all,
                                 rs_slot **slots) {
  const rs_staging_size *staging = &p->staging;
  int64_t size = p->plan->piece, count = 0, slot = half * (sending ? staging->send_slots : staging->receive_slots);
  char *at = p->workspace + half * (staging->send_slots + staging->receive_slots) * staging->slot;
  bool together = p->transfer->comm->device->streams->asynchronous;
  *nparts = 0;
  for (int64_t i = 0; i < n; i++)
    count += messages[i].group == group && rs_plan_pieces(p->plan, messages[i].bytes) > piece;
  RS_TRY(rs_alloc(parts, count, sizeof **parts));
  if (together && staging->slot > 0)
    RS_TRY(rs_alloc(slots, count, sizeof **slots));
  if (!sending)
    at += staging->send_slots * staging->slot;
  RS_TRY(lower_own(p, sending));
  for (int64_t i = 0; i < n; i++) {
    packed_message *msg = &messages[i];
    if (msg->group != group || rs_plan_pieces(p->plan, msg->bytes) <= piece)
      continue;
    int64_t begin = piece * size, end = size == 0 ? msg->bytes : rs_min(msg->bytes, begin + size);
    if (*slots != NULL)
      (*slots)[*nparts] = (rs_slot){msg->in_place != NULL ? -1 : (int32_t)slot++, false};
    rs_part *part = &(*parts)[(*nparts)++];
    *part = (rs_part){msg->peer->rank, msg->in_place != NULL ? msg->in_place + begin : msg->staged, end - begin, NULL,
                      msg->in_place == NULL};
    if (msg->in_place != NULL || msg->shared)
      continue;
    if (part->at == NULL) {
      part->at = at;
      at += staging->slot;
    }
    p->copies.staging = sending;
    RS_TRY(lower_piece(p, msg, sending, begin, end, part->at, &p->copies));
    if (!together)
      RS_TRY(compile_copies(p, &p->copies, &part->program));
  }
  return together ? compile_copies(p, &p->copies, all) : RESHARD_SUCCESS;
}

/* Journeys of one group: they lie together. */
static packed_message *messages_of_group(packed_message *messages, int64_t n, int64_t group, int64_t *count) {
  int64_t first = 0;
  while (first < n && messages[first].group < group)
    first++;
  *count = 0;
  while (first + *count < n && messages[first + *count].group == group)
    (*count)++;
  return messages + first;
}

static reshard_status make_round(packer *p, int64_t group, int64_t piece) {
  rs_binding *b = p->binding;
  rs_round *r = &b->rounds[b->nrounds];
  int half = p->transfer->comm->device->streams->asynchronous ? (int)(b->nrounds % p->staging.halves) : 0;
  *r = (rs_round){.group = group, .piece = piece, .collective = p->collective};
  b->nrounds++; /* from here on the binding frees it */
  int64_t count;
  packed_message *msg = messages_of_group(p->sends, p->nsends, group, &count);
  RS_TRY(make_parts(p, msg, count, true, group, piece, half, &r->sends, &r->nsends, &r->pack, &r->send_slots));
  msg = messages_of_group(p->receives, p->nreceives, group, &count);
  return make_parts(p, msg, count, false, group, piece, half, &r->receives, &r->nreceives, &r->unpack,
                    &r->receive_slots);
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
  if (!p->transfer->comm->device->streams->asynchronous || p->staging.slot == 0)
    return RESHARD_SUCCESS;
  b->nsent = p->staging.halves * p->staging.send_slots;
  b->nreceived = p->staging.halves * p->staging.receive_slots;
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

/* Compiles the copies that stay on the rank. */
static reshard_status make_keep(packer *p) {
  rs_copies kept = {0};
  reshard_status status = rs_pull_own(p->plan, &p->binding->arrays, &kept);
  if (status == RESHARD_SUCCESS)
    status = compile_copies(p, &kept, &p->binding->keep);
  rs_copies_free(&kept);
  return status;
}

reshard_status rs_packed_bind(reshard_transfer t, rs_binding *binding, const rs_offer *const *offers) {
  (void)offers;
  packer p = {.transfer = t, .plan = t->plan, .binding = binding};
  binding->info = (reshard_transfer_info){.path = RESHARD_PATH_PACKED, .rounds = t->plan->info.rounds};
  reshard_status status;
  RS_TRY_GOTO(status, find_messages(&p), done);
  RS_TRY_GOTO(status, find_workspace(&p), done);
  if (p.collective.kind == RESHARD_COLLECTIVE_NONE || p.placement.keeps)
    RS_TRY_GOTO(status, make_keep(&p), done);
  RS_TRY_GOTO(status, rs_alloc_zero(&binding->rounds, t->plan->info.rounds, sizeof *binding->rounds), done);
  for (int64_t g = 0; g < t->plan->info.round_groups; g++)
    for (int64_t piece = 0; piece < t->plan->group_rounds[g]; piece++)
      RS_TRY_GOTO(status, make_round(&p, g, piece), done);
  status = find_reuse(&p);
done:
  free(p.sends);
  free(p.receives);
  rs_copies_free(&p.copies);
  return status;
}
