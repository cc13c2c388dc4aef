/* Execute on a device with streams: one thread gives the work of all ranks of the process to streams, without a wait.
 *
 * Direct: one program a lane. Packed: round after round, each of them one pack, one exchange and one unpack a lane.
 * Under a workspace limit the pack of the next round and the unpack of the one before run beside the exchange:
 *
 *   pack     0   1 .   2 .   3            pack k waits for move k-2, which sent from its half of the staging
 *   move         0   1   2   3            move k waits for pack k, and for unpack k-2, which emptied its half
 *   unpack           0   1   2   3        unpack k waits for move k
 *   keep     what stays on the rank, beside all of that
 *
 * Without a limit there is one round, and pack, move and unpack follow one another on one stream. A rank skips rounds
 * in which it has nothing, and takes the halves of its staging by turns of its own. So the waits of a
 * round are found rank by rank. */
#include "device/trace.h"
#include "exec/transfer.h"

#include <stdio.h>

typedef struct job {
  int64_t n;
  struct reshard_transfer_s *const *t; /* by rank */
  rs_flow flow;
} job;

static rs_lane *lane_of(const job *j, int64_t i) { return j->flow.lane[j->t[i]->comm->lane]; }

static reshard_status run_direct(job *j) {
  const rs_shared *direct = j->t[0]->binding.direct;
  if (j->flow.n > 1)
    RS_TRY(rs_flow_start(&j->flow));
  for (int64_t g = 0; g < j->flow.n; g++) {
    rs_lane *lane = j->flow.lane[g];
    void *stream;
    if (direct->programs[g] == NULL)
      continue;
    RS_TRY(rs_flow_use(&j->flow, lane, RS_MOVE, &stream));
    rs_trace_begin(lane->device, stream, &(rs_trace_step){RS_TRACE_WORK, "copy", NULL, -1, -1, -1});
    reshard_status status = lane->device->ops->run(lane->device, 1, &direct->programs[g], stream);
    rs_trace_end(lane->device, stream);
    RS_TRY(status);
  }
  for (int64_t i = 0; i < j->n; i++)
    rs_comm_count(j->t[i]->comm, j->t[i]->binding.foreign_bytes, 0);
  return RESHARD_SUCCESS;
}

/* The round that rank i is in, or NULL: it was counted already. */
static const rs_round *round_of(const job *j, int64_t i) {
  const rs_turn *turn = &j->t[0]->turns[i];
  return turn->nsends + turn->nreceives > 0 ? &j->t[i]->binding.rounds[j->t[0]->cursor[i] - 1] : NULL;
}

/* --- For who looks (device/trace.h) --- */

static int64_t bytes_of(const rs_part *parts, int64_t n, bool staged_only) {
  int64_t bytes = 0;
  for (int64_t p = 0; p < n; p++)
    bytes += parts[p].staged || !staged_only ? parts[p].bytes : 0;
  return bytes;
}

/* round NULL: what a rank keeps, or all that it gets. */
static int64_t bytes_of_step(const struct reshard_transfer_s *t, const rs_round *round, rs_step step) {
  if (round == NULL)
    return step == RS_KEEP ? t->plan->info.kept_bytes : 0;
  return step == RS_PACK ? bytes_of(round->sends, round->nsends, true)
                         : bytes_of(round->receives, round->nreceives, step == RS_UNPACK);
}

static void trace_step(const job *j, int64_t g, rs_step step, void *stream, int64_t number) {
  static const char *const names[RS_STEPS] = {"move", "pack", "unpack", "keep"};
  rs_device *device = j->flow.lane[g]->device;
  int64_t bytes = 0, ranks = 0, rank = -1;
  if (device->tracer == NULL)
    return;
  for (int64_t i = 0; i < j->n; i++) {
    if (j->t[i]->comm->lane != g)
      continue;
    bytes += bytes_of_step(j->t[i], step == RS_KEEP ? NULL : round_of(j, i), step);
    rank = j->t[i]->comm->rank;
    ranks++;
  }
  rs_trace_begin(device, stream,
                 &(rs_trace_step){RS_TRACE_WORK, names[step], NULL, ranks == 1 ? rank : -1, number, bytes});
}

static void clear_lane(rs_lane *lane, int64_t lanes) {
  lane->packs = lane->moves = lane->unpacks = lane->note_moved = lane->note_unpacked = false;
  lane->unpack_needed = -1;
  for (int64_t h = 0; h < lanes; h++) {
    lane->from[h] = false;
    lane->move_needed[h] = -1;
  }
}

/* The lane that moves a part which is sent: it fetches it. */
static rs_lane *mover_of(const job *j, const rs_part *part) {
  return j->flow.lane[j->flow.n > 1 ? j->t[part->peer]->comm->lane : 0];
}

/* Notes what a rank packs in a round, the lanes that move it, and the earlier moves out of the slots that it packs
 * over. */
static void find_send_work(job *j, int64_t i, const rs_round *r, int64_t number) {
  struct reshard_transfer_s *t = j->t[i];
  for (int64_t p = 0; p < r->nsends; p++) {
    if (!r->sends[p].staged)
      continue;
    rs_lane *mover = mover_of(j, &r->sends[p]);
    mover->from[t->comm->lane] = true;
    if (r->send_slots == NULL)
      continue;
    rs_use *last = &t->binding.sent[r->send_slots[p].number];
    int64_t *needed = &lane_of(j, i)->move_needed[last->lane];
    *needed = rs_max(*needed, last->round);
    *last = (rs_use){mover->number, number};
    mover->note_moved |= r->send_slots[p].reused;
  }
}

static void find_receive_work(job *j, int64_t i, const rs_round *r, int64_t number) {
  rs_lane *lane = lane_of(j, i);
  for (int64_t p = 0; p < r->nreceives && r->receive_slots != NULL; p++) {
    if (!r->receives[p].staged)
      continue;
    rs_use *last = &j->t[i]->binding.received[r->receive_slots[p].number];
    lane->unpack_needed = rs_max(lane->unpack_needed, last->round);
    *last = (rs_use){lane->number, number};
    lane->note_unpacked |= r->receive_slots[p].reused;
  }
}

/* Finds the work of the lanes in a round, and the waits before staging is used again. */
static void find_round_work(job *j, int64_t number) {
  for (int64_t g = 0; g < j->flow.n; g++)
    clear_lane(j->flow.lane[g], j->flow.n);
  for (int64_t i = 0; i < j->n; i++) {
    const rs_round *r = round_of(j, i);
    rs_lane *lane = lane_of(j, i);
    j->t[0]->turns[i].stream = lane->stream[RS_MOVE];
    if (r == NULL)
      continue;
    lane->moves |= r->nreceives > 0 || j->flow.n == 1;
    lane->packs |= r->pack != NULL;
    lane->unpacks |= r->unpack != NULL;
    lane->note_moved |= r->unpack != NULL;
    find_send_work(j, i, r, number);
    find_receive_work(j, i, r, number);
  }
}

/* Of an earlier execute nothing has to be waited for: the user's stream comes after it. */
static void reset_uses(rs_use *uses, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    uses[i] = (rs_use){0, -1};
}

/* One launch for the ranks of a lane. */
static reshard_status run_programs(job *j, int64_t g, rs_step step, void *stream, int64_t number) {
  rs_program **programs = j->t[0]->programs;
  rs_lane *lane = j->flow.lane[g];
  int64_t n = 0;
  for (int64_t i = 0; i < j->n; i++) {
    if (j->t[i]->comm->lane != g)
      continue;
    const rs_round *r = step == RS_KEEP ? NULL : round_of(j, i);
    programs[n++] = step == RS_KEEP ? j->t[i]->binding.keep : r == NULL ? NULL : step == RS_PACK ? r->pack : r->unpack;
  }
  trace_step(j, g, step, stream, number);
  reshard_status status = lane->device->ops->run(lane->device, n, programs, stream);
  rs_trace_end(lane->device, stream);
  return status;
}

static reshard_status pack_lane(job *j, int64_t g, int64_t number) {
  rs_lane *lane = j->flow.lane[g];
  void *stream;
  bool other = false; /* it is moved on another stream */
  for (int64_t h = 0; h < j->flow.n; h++)
    RS_TRY(rs_flow_wait(lane, RS_PACK, j->flow.lane[h], RS_MOVE, lane->move_needed[h], &lane->move_seen[h]));
  RS_TRY(rs_flow_use(&j->flow, lane, RS_PACK, &stream));
  RS_TRY(run_programs(j, g, RS_PACK, stream, number));
  for (int64_t h = 0; h < j->flow.n; h++)
    other |= j->flow.lane[h]->from[g] && (h != g || lane->at[RS_PACK] != RS_MOVE);
  return other ? rs_flow_note(lane, RS_PACK, number) : RESHARD_SUCCESS;
}

static reshard_status begin_move(job *j, int64_t g, int64_t number) {
  rs_lane *lane = j->flow.lane[g];
  void *stream;
  for (int64_t h = 0; h < j->flow.n; h++) {
    int64_t seen = -1;
    if (lane->from[h])
      RS_TRY(rs_flow_wait(lane, RS_MOVE, j->flow.lane[h], RS_PACK, number, &seen));
  }
  RS_TRY(rs_flow_wait(lane, RS_MOVE, lane, RS_UNPACK, lane->unpack_needed, &lane->unpack_seen));
  return rs_flow_use(&j->flow, lane, RS_MOVE, &stream);
}

static reshard_status unpack_lane(job *j, int64_t g, int64_t number) {
  rs_lane *lane = j->flow.lane[g];
  void *stream;
  int64_t seen = -1;
  bool other = lane->at[RS_UNPACK] != RS_MOVE;
  RS_TRY(rs_flow_wait(lane, RS_UNPACK, lane, RS_MOVE, number, &seen));
  RS_TRY(rs_flow_use(&j->flow, lane, RS_UNPACK, &stream));
  RS_TRY(run_programs(j, g, RS_UNPACK, stream, number));
  return other && lane->note_unpacked ? rs_flow_note(lane, RS_UNPACK, number) : RESHARD_SUCCESS;
}

static reshard_status copy_kept(job *j) {
  for (int64_t g = 0; g < j->flow.n; g++) {
    bool any = false;
    void *stream;
    for (int64_t i = 0; i < j->n; i++)
      any = any || (j->t[i]->comm->lane == g && j->t[i]->binding.keep != NULL);
    if (!any)
      continue;
    RS_TRY(rs_flow_use(&j->flow, j->flow.lane[g], RS_KEEP, &stream));
    RS_TRY(run_programs(j, g, RS_KEEP, stream, -1));
  }
  return RESHARD_SUCCESS;
}

/* In one call for all lanes. */
static reshard_status exchange_round(job *j, int64_t number) {
  for (int64_t g = 0; g < j->flow.n; g++)
    if (j->flow.lane[g]->moves)
      trace_step(j, g, RS_MOVE, j->flow.lane[g]->stream[RS_MOVE], number);
  reshard_status status = j->t[0]->comm->ops->exchange(j->n, j->t[0]->turns, j->t[0]->plan->info.bytes);
  for (int64_t g = 0; g < j->flow.n; g++)
    if (j->flow.lane[g]->moves)
      rs_trace_end(j->flow.lane[g]->device, j->flow.lane[g]->stream[RS_MOVE]);
  return status;
}

static reshard_status run_round(job *j, int64_t number) {
  int64_t lanes = j->flow.n;
  find_round_work(j, number);
  for (int64_t g = 0; g < lanes; g++)
    if (j->flow.lane[g]->packs)
      RS_TRY(pack_lane(j, g, number));
  if (number == 0) /* what others wait for goes first */
    RS_TRY(copy_kept(j));
  for (int64_t g = 0; g < lanes; g++)
    if (j->flow.lane[g]->moves)
      RS_TRY(begin_move(j, g, number));
  RS_TRY(exchange_round(j, number));
  for (int64_t g = 0; g < lanes; g++) {
    rs_lane *lane = j->flow.lane[g];
    if (lane->note_moved && lane->at[RS_PACK] != RS_MOVE)
      RS_TRY(rs_flow_note(lane, RS_MOVE, number));
  }
  for (int64_t g = 0; g < lanes; g++)
    if (j->flow.lane[g]->unpacks)
      RS_TRY(unpack_lane(j, g, number));
  return RESHARD_SUCCESS;
}

static reshard_status run_packed(job *j) {
  int64_t number = 0;
  for (int64_t i = 0; i < j->n; i++)
    j->t[0]->cursor[i] = 0;
  if (j->flow.n > 1) /* no lane waits for another one's first launch */
    RS_TRY(rs_flow_start(&j->flow));
  while (rs_next_round(j->n, j->t))
    RS_TRY(run_round(j, number++));
  return number == 0 ? copy_kept(j) : RESHARD_SUCCESS;
}

static void begin_flow(job *j, void *stream, bool gates) {
  struct reshard_transfer_s *const *t = j->t;
  int64_t rounds = 0;
  j->flow = (rs_flow){.n = t[0]->comm->lanes, .lane = t[0]->lanes};
  for (int64_t i = 0; i < j->n; i++) {
    t[i]->used = true;
    if (t[i]->comm->lane_rank == 0)
      j->flow.lane[t[i]->comm->lane] = &t[i]->lane;
    rounds = rs_max(rounds, t[i]->binding.nrounds);
    reset_uses(t[i]->binding.sent, t[i]->binding.nsent);
    reset_uses(t[i]->binding.received, t[i]->binding.nreceived);
  }
  rs_flow_begin(&j->flow, gates ? t[0]->lane.side[RS_MOVE] : stream, rounds > 0, rounds > 1);
}

/* The first error, and its text, while others may follow. */
typedef struct first_error {
  reshard_status status;
  char text[512];
} first_error;

static void add_error(first_error *v, reshard_status status) {
  if (v->status != RESHARD_SUCCESS || status == RESHARD_SUCCESS)
    return;
  v->status = status;
  snprintf(v->text, sizeof v->text, "%s", reshard_last_error());
}

reshard_status rs_execute_on_streams(int64_t n, struct reshard_transfer_s *const *t, void *stream, bool gates) {
  job j = {.n = n, .t = t};
  first_error v;
  v.status = RESHARD_SUCCESS;
  begin_flow(&j, stream, gates);
  void *main = j.flow.lane[0]->stream[RS_MOVE];
  for (int64_t i = 0; i < n && gates && v.status == RESHARD_SUCCESS; i++)
    add_error(&v, rs_gate_open(&t[i]->gate, main));
  if (v.status == RESHARD_SUCCESS)
    add_error(&v, t[0]->path == RESHARD_PATH_DIRECT ? run_direct(&j) : run_packed(&j));
  add_error(&v, rs_flow_end(&j.flow));
  for (int64_t i = 0; i < n && gates; i++)
    add_error(&v, rs_gate_close(&t[i]->gate, main));
  if (v.status != RESHARD_SUCCESS)
    rs_error_set(v.text);
  return v.status;
}
