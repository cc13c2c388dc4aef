/* The packed path on a device with streams: round after round, each of them one pack, one exchange and one unpack a
 * lane. Under a workspace limit the pack of the next round and the unpack of the one before run beside the exchange:
 *
 *   pack     0   1 .   2 .   3            pack k waits for move k-2, which sent from its half of the staging
 *   move         0   1   2   3            move k waits for pack k, and for unpack k-2, which emptied its half
 *   unpack           0   1   2   3        unpack k waits for move k; pack k+2 for it, where it passes bytes on
 *   keep     copies that stay on the rank, beside all of that; on the mixed path between two meetings of the node
 *
 * Without a limit there is one round, and pack, move and unpack follow one another on one stream. A rank skips rounds
 * in which it has nothing, and takes the halves of its staging by turns of its own: the waits of a round are found rank
 * by rank. */
#include "device/stream.h"
#include "device/trace.h"
#include "exec/packed/packed.h"

static rs_lane *lane_of(const rs_execution *x, int64_t i) { return x->flow.lane[x->t[i]->comm->process.lane]; }

/* The round that rank i is in, or NULL: it was counted already. */
static const rs_round *round_of(const rs_execution *x, int64_t i) {
  const rs_exchange *exchange = &x->t[0]->team.exchanges[i];
  return exchange->nsends + exchange->nreceives > 0 ? &x->t[i]->binding.rounds[x->t[0]->team.cursor[i] - 1] : NULL;
}

/* --- Tracing (device/trace.h) --- */

static int64_t bytes_of(const rs_part *parts, int64_t n, bool staged_only) {
  int64_t bytes = 0;
  for (int64_t p = 0; p < n; p++)
    bytes += parts[p].staged || !staged_only ? parts[p].bytes : 0;
  return bytes;
}

/* round NULL: what a rank keeps, or all that it gets. */
static int64_t bytes_of_step(const struct reshard_transfer_s *t, const rs_round *round, rs_step step) {
  if (round == NULL)
    return step == RS_SELF_COPY ? t->plan->info.self_copy_bytes + t->binding.foreign_bytes : 0;
  return step == RS_PACK ? bytes_of(round->sends, round->nsends, true)
                         : bytes_of(round->receives, round->nreceives, step == RS_UNPACK);
}

static void trace_step(const rs_execution *x, int64_t g, rs_step step, void *stream, int64_t number) {
  static const char *const names[RS_STEPS] = {"move", "pack", "unpack", "self_copy"};
  rs_device *device = x->flow.lane[g]->device;
  int64_t bytes = 0, ranks = 0, rank = -1, peers = 0;
  if (!rs_trace_heard(device))
    return;
  for (int64_t i = 0; i < x->n; i++) {
    if (x->t[i]->comm->process.lane != g)
      continue;
    const rs_round *round = step == RS_SELF_COPY ? NULL : round_of(x, i);
    bytes += bytes_of_step(x->t[i], round, step);
    peers += round == NULL ? 0 : step == RS_PACK ? round->nsends : round->nreceives;
    rank = rs_comm_global(x->t[i]->comm, x->t[i]->comm->rank);
    ranks++;
  }
  rs_trace_begin_work(device, stream,
                      &(rs_trace_step){RS_TRACE_WORK, names[step], NULL, ranks == 1 ? rank : -1, number, bytes, peers});
}

static void clear_lane(rs_lane *lane, int64_t lanes) {
  lane->packs = lane->moves = lane->unpacks = lane->note_moved = lane->note_unpacked = false;
  lane->unpack_needed = lane->pass_needed = -1;
  for (int64_t h = 0; h < lanes; h++) {
    lane->from[h] = false;
    lane->move_needed[h] = -1;
  }
}

/* The lane that moves a part which is sent: it fetches it. */
static rs_lane *mover_of(const rs_execution *x, const rs_part *part) {
  return x->flow.lane[x->flow.n > 1 ? x->t[part->peer]->comm->process.lane : 0];
}

/* Notes what a rank packs in a round, the lanes that move it, and the earlier moves out of the slots that it packs
 * over. */
static void find_send_work(rs_execution *x, int64_t i, const rs_round *r, int64_t number) {
  struct reshard_transfer_s *t = x->t[i];
  for (int64_t p = 0; p < r->nsends; p++) {
    if (!r->sends[p].staged)
      continue;
    rs_lane *mover = mover_of(x, &r->sends[p]);
    mover->from[t->comm->process.lane] = true;
    if (r->send_slots == NULL)
      continue;
    rs_use *last = &t->binding.sent[r->send_slots[p].number];
    int64_t *needed = &lane_of(x, i)->move_needed[last->lane];
    *needed = rs_max(*needed, last->round);
    *last = (rs_use){mover->number, number};
    mover->note_moved |= r->send_slots[p].reused;
  }
}

static void find_receive_work(rs_execution *x, int64_t i, const rs_round *r, int64_t number) {
  rs_lane *lane = lane_of(x, i);
  for (int64_t p = 0; p < r->nreceives && r->receive_slots != NULL; p++) {
    if (!r->receives[p].staged)
      continue;
    rs_use *last = &x->t[i]->binding.received[r->receive_slots[p].number];
    lane->unpack_needed = rs_max(lane->unpack_needed, last->round);
    *last = (rs_use){lane->number, number};
    lane->note_unpacked |= r->receive_slots[p].reused;
  }
}

/* Finds the work of the lanes in a round, and the waits before staging is used again. brought: the round in which came
 * what this one passes on. */
static void find_round_work(rs_execution *x, int64_t number, int64_t brought) {
  for (int64_t g = 0; g < x->flow.n; g++)
    clear_lane(x->flow.lane[g], x->flow.n);
  for (int64_t i = 0; i < x->n; i++) {
    const rs_round *r = round_of(x, i);
    rs_lane *lane = lane_of(x, i);
    x->t[0]->team.exchanges[i].stream = lane->stream[RS_MOVE];
    if (r == NULL)
      continue;
    lane->moves |= r->nreceives > 0 || x->flow.n == 1;
    lane->packs |= r->pack != NULL;
    lane->unpacks |= r->unpack != NULL;
    lane->note_moved |= r->unpack != NULL;
    lane->note_unpacked |= r->brings;
    lane->pass_needed = r->passes ? brought : lane->pass_needed;
    find_send_work(x, i, r, number);
    find_receive_work(x, i, r, number);
  }
}

/* Of an earlier execute nothing has to be waited for: the user's stream comes after it. */
static void reset_uses(rs_use *uses, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    uses[i] = (rs_use){0, -1};
}

/* One launch for the ranks of a lane. */
static reshard_status run_programs(rs_execution *x, int64_t g, rs_step step, void *stream, int64_t number) {
  rs_program **programs = x->t[0]->team.programs;
  rs_lane *lane = x->flow.lane[g];
  int64_t n = 0;
  for (int64_t i = 0; i < x->n; i++) {
    if (x->t[i]->comm->process.lane != g)
      continue;
    const rs_round *r = step == RS_SELF_COPY ? NULL : round_of(x, i);
    programs[n++] = step == RS_SELF_COPY ? x->t[i]->binding.self_copy
                    : r == NULL          ? NULL
                    : step == RS_PACK    ? r->pack
                                         : r->unpack;
  }
  trace_step(x, g, step, stream, number);
  reshard_status status = lane->device->work->run(lane->device, n, programs, stream);
  rs_trace_worked(lane->device, stream);
  return status;
}

static reshard_status pack_lane(rs_execution *x, int64_t g, int64_t number) {
  rs_lane *lane = x->flow.lane[g];
  void *stream;
  bool other = false; /* it is moved on another stream */
  RS_TRY(rs_flow_wait(lane, RS_PACK, lane, RS_UNPACK, lane->pass_needed, &lane->pass_seen));
  lane->move_seen[g] = rs_max(lane->move_seen[g], lane->pass_seen); /* an unpack comes after its move */
  for (int64_t h = 0; h < x->flow.n; h++)
    RS_TRY(rs_flow_wait(lane, RS_PACK, x->flow.lane[h], RS_MOVE, lane->move_needed[h], &lane->move_seen[h]));
  RS_TRY(rs_flow_use(&x->flow, lane, RS_PACK, &stream));
  RS_TRY(run_programs(x, g, RS_PACK, stream, number));
  for (int64_t h = 0; h < x->flow.n; h++)
    other |= x->flow.lane[h]->from[g] && (h != g || lane->at[RS_PACK] != RS_MOVE);
  return other ? rs_flow_note(lane, RS_PACK, number) : RESHARD_SUCCESS;
}

static reshard_status begin_move(rs_execution *x, int64_t g, int64_t number) {
  rs_lane *lane = x->flow.lane[g];
  void *stream;
  for (int64_t h = 0; h < x->flow.n; h++) {
    int64_t seen = -1;
    if (lane->from[h])
      RS_TRY(rs_flow_wait(lane, RS_MOVE, x->flow.lane[h], RS_PACK, number, &seen));
  }
  if (lane->from[g]) /* and after all that its pack comes after */
    lane->unpack_seen = rs_max(lane->unpack_seen, lane->pass_seen);
  RS_TRY(rs_flow_wait(lane, RS_MOVE, lane, RS_UNPACK, lane->unpack_needed, &lane->unpack_seen));
  return rs_flow_use(&x->flow, lane, RS_MOVE, &stream);
}

static reshard_status unpack_lane(rs_execution *x, int64_t g, int64_t number) {
  rs_lane *lane = x->flow.lane[g];
  void *stream;
  int64_t seen = -1;
  bool other = lane->at[RS_UNPACK] != RS_MOVE;
  RS_TRY(rs_flow_wait(lane, RS_UNPACK, lane, RS_MOVE, number, &seen));
  RS_TRY(rs_flow_use(&x->flow, lane, RS_UNPACK, &stream));
  RS_TRY(run_programs(x, g, RS_UNPACK, stream, number));
  return other && lane->note_unpacked ? rs_flow_note(lane, RS_UNPACK, number) : RESHARD_SUCCESS;
}

static reshard_status run_self_copies(rs_execution *x) {
  RS_TRY(rs_execution_meet(x, RS_SELF_COPY, RS_EDGE("self copy after peers")));
  for (int64_t g = 0; g < x->flow.n; g++) {
    bool any = false;
    void *stream;
    for (int64_t i = 0; i < x->n; i++)
      any = any || (x->t[i]->comm->process.lane == g && x->t[i]->binding.self_copy != NULL);
    if (!any)
      continue;
    RS_TRY(rs_flow_use(&x->flow, x->flow.lane[g], RS_SELF_COPY, &stream));
    RS_TRY(run_programs(x, g, RS_SELF_COPY, stream, -1));
  }
  return rs_execution_meet(x, RS_SELF_COPY, RS_EDGE("user after readers"));
}

/* In one call for all lanes. */
static reshard_status exchange_round(rs_execution *x, int64_t number, int64_t agreed) {
  for (int64_t g = 0; g < x->flow.n; g++)
    if (x->flow.lane[g]->moves)
      trace_step(x, g, RS_MOVE, x->flow.lane[g]->stream[RS_MOVE], number);
  reshard_status status = rs_comm_exchange(x->n, x->t[0]->team.exchanges, x->t[0]->plan->info.bytes, agreed);
  for (int64_t g = 0; g < x->flow.n; g++)
    if (x->flow.lane[g]->moves)
      rs_trace_worked(x->flow.lane[g]->device, x->flow.lane[g]->stream[RS_MOVE]);
  return status;
}

/* number: of the rounds here; agreed: the one that all ranks know it by; before: of the last one. */
static reshard_status run_round(rs_execution *x, int64_t number, int64_t agreed, int64_t before) {
  int64_t lanes = x->flow.n;
  find_round_work(x, number, before + 1 == agreed ? number - 2 : number - 1);
  for (int64_t g = 0; g < lanes; g++)
    if (x->flow.lane[g]->packs)
      RS_TRY(pack_lane(x, g, number));
  if (number == 0) /* what others wait for goes first */
    RS_TRY(run_self_copies(x));
  for (int64_t g = 0; g < lanes; g++)
    if (x->flow.lane[g]->moves)
      RS_TRY(begin_move(x, g, number));
  RS_TRY(exchange_round(x, number, agreed));
  for (int64_t g = 0; g < lanes; g++) {
    rs_lane *lane = x->flow.lane[g];
    if (lane->note_moved && lane->at[RS_PACK] != RS_MOVE)
      RS_TRY(rs_flow_note(lane, RS_MOVE, number));
  }
  for (int64_t g = 0; g < lanes; g++)
    if (x->flow.lane[g]->unpacks)
      RS_TRY(unpack_lane(x, g, number));
  return RESHARD_SUCCESS;
}

reshard_status rs_packed_run_on_streams(rs_execution *x) {
  int64_t number = 0, agreed, before = -1;
  for (int64_t i = 0; i < x->n; i++) {
    x->t[0]->team.cursor[i] = 0;
    reset_uses(x->t[i]->binding.sent, x->t[i]->binding.nsent);
    reset_uses(x->t[i]->binding.received, x->t[i]->binding.nreceived);
  }
  if (x->flow.n > 1) /* no lane waits for another one's first launch */
    RS_TRY(rs_flow_start(&x->flow));
  for (; (agreed = rs_packed_next_round(x)) >= 0; before = agreed)
    RS_TRY(run_round(x, number++, agreed, before));
  return number == 0 ? run_self_copies(x) : RESHARD_SUCCESS;
}
