/* Ranks that are processes of one node: meetings, all-gathers, executes on streams, and the table.
 *
 * A meeting is held when all ranks have come. Each leaves what it brings in its part of the block and counts itself;
 * the last one to come rings for the others: a rank costs one store and, where it has to wait, one sleep.
 *
 * Every call of `combine` is a meeting, in which ranks publish the call and their status: all get the error of the
 * lowest rank that failed, or that makes another call than rank 0. The verdict is held with the first step inside that
 * needs the others: an exchange, which has filled its mailbox by then, or an all-gather, so a small exchange takes one
 * meeting. */
#include "comm/node/create.h"
#include "comm/node/streams.h"
#include "comm/node/wait.h"

#include <stdio.h>
#include <string.h>

static void mark_absent(rs_node *c, const void *user) {
  (void)user;
  for (int64_t r = 0; r < c->base.size; r++)
    c->missing[r] = atomic_load(&c->block->came[r]) < c->meetings;
}

static bool all_came(const rs_node *c) {
  for (int64_t r = 0; r < c->base.size; r++)
    if (atomic_load(&c->block->came[r]) < c->meetings)
      return false;
  return true;
}

static rs_visit *visit_of(const rs_node *c, int64_t rank) { return &c->ranks[rank].visits[c->meetings % 2]; }

/* The same on every rank, since all look at the same visits. */
static reshard_status compare_visits(rs_node *c) {
  for (int64_t r = 0; r < c->base.size; r++) {
    int64_t status = c->ranks[r].status[c->meetings % 2];
    if (status != RESHARD_SUCCESS)
      return rs_error((reshard_status)status, "rank %lld: %s", (long long)r, visit_of(c, r)->record);
  }
  return rs_visits_compare(&c->base, visit_of(c, 0), sizeof *c->ranks);
}

/* --- Executes on streams ------------------------------------------------------------------------------------------ */

/* Hosts do not meet where their streams do. Each publishes what it executes before it looks at what others have
 * published, so of two ranks that differ the later one finds it. Ranks whose streams wait for it by then hear of the
 * end. */

static bool is_comparable(const rs_node *c, int64_t rank) {
  return rank != c->base.rank && !c->ranks[rank].executes.captured && !rs_node_own_rank(c)->executes.captured;
}

static reshard_status end_different(rs_node *c, int64_t rank) {
  int64_t me = c->base.rank;
  return rs_node_give_up(c,
                         rs_error(RESHARD_ERROR_MISMATCH, "ranks %lld and %lld execute different transfers",
                                  (long long)rs_min(me, rank), (long long)rs_max(me, rank)),
                         NULL);
}

/* caller: of the rank that waits in a meeting. */
static reshard_status end_other_call(rs_node *c, int64_t executes, int64_t meets, const rs_call_label *caller) {
  return rs_node_give_up(c,
                         rs_error(RESHARD_ERROR_MISMATCH,
                                  "ranks %lld and %lld make different calls: rank %lld executes a transfer, rank %lld "
                                  "is in %s, call %lld",
                                  (long long)rs_min(executes, meets), (long long)rs_max(executes, meets),
                                  (long long)executes, (long long)meets, caller->name, (long long)caller->number),
                         NULL);
}

/* Compares what this rank and another have both given. Of messages alone streams find that they differ. */
static reshard_status compare_executes(rs_node *c, int64_t rank) {
  const rs_node_executes *mine = &rs_node_own_rank(c)->executes, *theirs = &c->ranks[rank].executes;
  int64_t both = rs_min(mine->given, theirs->given);
  for (int64_t i = rs_max(c->compared[rank], both - RS_NODE_EXECUTES); i < both; i++) {
    uint64_t a = mine->published[i % RS_NODE_EXECUTES], b = theirs->published[i % RS_NODE_EXECUTES];
    bool there = mine->given - i <= RS_NODE_EXECUTES && theirs->given - i < RS_NODE_EXECUTES;
    if (there && a != b && ((a | b) & 1) != 0)
      return end_different(c, rank);
  }
  c->compared[rank] = both;
  return RESHARD_SUCCESS;
}

static reshard_status node_publish(reshard_comm comm, uint64_t key, bool reads_others, bool captured) {
  rs_node *c = rs_node_of(comm);
  rs_node_executes *mine = &rs_node_own_rank(c)->executes;
  if (captured) {
    mine->captured = true;
    return RESHARD_SUCCESS;
  }
  int64_t number = mine->given;
  mine->published[number % RS_NODE_EXECUTES] = (key & ~UINT64_C(1)) | reads_others;
  mine->given = number + 1;
  for (int64_t r = 0; r < comm->size; r++) {
    if (!is_comparable(c, r))
      continue;
    bool waits = c->block->came[r] > c->meetings; /* for this one, and gives nothing meanwhile */
    if (waits && c->ranks[r].executes.given <= number)
      return end_other_call(c, comm->rank, r, &c->ranks[r].visits[(c->meetings + 1) % 2].caller);
    RS_TRY(compare_executes(c, r));
  }
  return RESHARD_SUCCESS;
}

/* A rank that has not come to the meeting executes instead, where it has given more than this one. */
static reshard_status look_at_executes(rs_node *c) {
  for (int64_t r = 0; r < c->base.size; r++) {
    bool more = c->ranks[r].executes.given > rs_node_own_rank(c)->executes.given;
    if (more && c->block->came[r] < c->meetings && is_comparable(c, r))
      return end_other_call(c, r, c->base.rank, &visit_of(c, c->base.rank)->caller);
  }
  return RESHARD_SUCCESS;
}

/* --- Meetings ----------------------------------------------------------------------------------------------------- */

/* bytes: of an all-gather, of which the records stay in the parts of the ranks; -1: of a meeting. */
static reshard_status hold_meeting(rs_node *c, reshard_status status, const void *mine, int64_t bytes) {
  rs_node_wait w = {.step = bytes < 0 ? "meeting" : "all-gather", .mark = mark_absent};
  RS_TRY(rs_node_check(c, false));
  c->due = false;
  c->meetings++;
  rs_visit *v = visit_of(c, c->base.rank);
  rs_visit_fill(&c->base, v, 0, mine, (size_t)rs_max(bytes, 0));
  rs_node_own_rank(c)->status[c->meetings % 2] = status;
  if (status != RESHARD_SUCCESS)
    snprintf(v->record, sizeof v->record, "%s", reshard_last_error());
  v->call = rs_hash((uint64_t)bytes, v->caller.name, strlen(v->caller.name));
  atomic_store(&c->block->came[c->base.rank], c->meetings);
  if (all_came(c)) {
    rs_node_ring_all(c);
    return compare_visits(c);
  }
  if (c->pinned != NULL) /* the ranks have GPUs */
    RS_TRY(look_at_executes(c));
  rs_node_wait_begin(&w);
  for (;;) {
    uint32_t seen = rs_node_rings(c);
    if (all_came(c)) {
      rs_node_wait_end(c, &w);
      return compare_visits(c);
    }
    RS_TRY(rs_node_wait_more(c, &w, seen));
  }
}

reshard_status rs_node_meet(rs_node *c, reshard_status status) {
  return c->due ? hold_meeting(c, status, NULL, -1) : status;
}

static reshard_status node_meet(reshard_comm comm, const rs_meeting *m) {
  rs_node *c = rs_node_of(comm);
  if (m->scope == RS_MEET_END)
    return rs_node_meet(c, m->status);
  if (m->scope == RS_MEET_ALL) {
    RS_TRY(hold_meeting(c, RESHARD_SUCCESS, m->record, (int64_t)m->bytes));
    rs_visits_pack(comm, m->bytes, c->gathered);
    *m->all = c->gathered;
    return RESHARD_SUCCESS;
  }
  if (m->scope == RS_MEET_CLOSED) {
    rs_node_await_closed(comm, m->key);
    return RESHARD_SUCCESS;
  }
  RS_TRY(rs_node_check(c, false));
  c->due = c->due || m->scope == RS_MEET_BEGIN;
  return RESHARD_SUCCESS;
}

static reshard_status node_look(reshard_comm comm) { return rs_node_check(rs_node_of(comm), false); }

/* Tells the ranks that wait for this one, or will. */
static void tell_left(rs_node *c) {
  if (c->block == NULL) /* it was not connected */
    return;
  rs_node_own_rank(c)->left = true;
  rs_node_ring_all(c);
}

static bool node_end(reshard_comm comm, rs_end what) {
  rs_node *c = rs_node_of(comm);
  if (what == RS_END_ABORT)
    rs_node_abort(c);
  if (what == RS_END_CALLS)
    tell_left(c);
  return false;
}

/* Parts that were split from it keep the block alone. */
static void node_destroy(reshard_comm comm) {
  rs_node *c = rs_node_of(comm);
  rs_node_boxes_free(c);
  rs_comm_close_imports(comm);
  tell_left(c);
  rs_node_close_sockets(c);
  rs_node_release(c);
}

static const rs_message_ops node_messages = {.reserve = rs_node_reserve, .mailbox = rs_node_mailbox};
static const rs_neighbour_ops node_neighbours = {.pass = rs_node_pass, .take = rs_node_take, .publish = node_publish};

const rs_comm_ops rs_node_ops = {
    .name = "node",
    .one_node = true,
    .messages = &node_messages,
    .neighbours = &node_neighbours,
    .look = node_look,
    .meet = node_meet,
    .exchange = rs_node_exchange,
    .make = rs_node_make_part,
    .absent = rs_node_absent,
    .end = node_end,
    .destroy = node_destroy,
};
