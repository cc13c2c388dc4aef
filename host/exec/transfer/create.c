/* Making a transfer: every rank checks its own side, then all compare, then all bind. A rank whose own step failed
 * takes part in what is collective with its status, so nobody waits for it. */
#include "exec/packed/packed.h"
#include "exec/packed/packer.h"
#include "exec/transfer/steps.h"

#include <stdlib.h>

static const rs_proposal *proposal_of(const void *all, int64_t rank) {
  return &((const rs_record *)all)[rank].collective;
}

static reshard_status read_options(struct reshard_transfer_s *t, const reshard_transfer_options *options) {
  const reshard_transfer_options defaults = {RESHARD_TRANSFER_OPTIONS_INIT, .path = RESHARD_PATH_AUTO};
  if (options == NULL)
    options = &defaults;
  RS_TRY(RS_SIZED(reshard_transfer_options, options));
  if ((int)options->path < RESHARD_PATH_AUTO || options->path > RESHARD_PATH_MIXED)
    return rs_error(RESHARD_ERROR_INVALID, "unknown path %d", (int)options->path);
  if ((int)options->collective < RESHARD_COLLECTIVE_USE_AUTO || options->collective > RESHARD_COLLECTIVE_USE_FORBID)
    return rs_error(RESHARD_ERROR_INVALID, "unknown use of collectives %d", (int)options->collective);
  t->path = rs_path_find(t->comm, options->path);
  if (t->path == NULL && options->path == RESHARD_PATH_MIXED)
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "the mixed path needs a communicator of several nodes, on some of which ranks reach each other's "
                    "memory, and this one (%s, on %s) is none",
                    t->comm->ops->name, t->comm->device->name);
  if (t->path == NULL)
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "the direct path needs a communicator whose ranks reach each other's memory, "
                    "and this one (%s, on %s) does not",
                    t->comm->ops->name, t->comm->device->name);
  t->choice.only = options->path != RESHARD_PATH_AUTO;
  t->workspace.at = options->workspace;
  t->workspace.bytes = options->workspace_bytes;
  t->messages.use = options->collective;
  return RESHARD_SUCCESS;
}

/* The direct path between GPUs, which all ranks leave where a GPU does not reach an array. */
static bool may_leave_gpus(const struct reshard_transfer_s *t) {
  return t->path->reads_others && !t->choice.only && t->comm->device->memory->look_up != NULL &&
         (t->comm->process.lanes > 1 || rs_transfer_reads_processes(t));
}

/* Makes the streams and events of executing on a device with streams. */
static reshard_status make_streams(struct reshard_transfer_s *t) {
  reshard_comm comm = t->comm;
  bool packs = t->path->packs || may_leave_gpus(t);
  const rs_lane_needs needs = {.ranks = comm->locals > 1,
                               .rounds = packs && rs_plan_may_take_rounds(t->plan, &t->messages.schedule),
                               .packed = packs,
                               .lanes = comm->process.lanes,
                               .number = comm->process.lane};
  t->streams.used = comm->device->streams->asynchronous;
  if (!t->streams.used)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc_zero((void *)&t->streams.lanes, comm->process.lanes, sizeof *t->streams.lanes));
  RS_TRY(rs_fork_join_create(comm, &t->streams.fork_join));
  RS_TRY(comm->process.lane_devices[0]->streams->event_create(comm->process.lane_devices[0], &t->streams.ended));
  return comm->process.lane_rank == 0 ? rs_lane_create(comm->device, &needs, &t->streams.lane) : RESHARD_SUCCESS;
}

reshard_status rs_transfer_check_plan(reshard_comm comm, reshard_plan plan) {
  if (plan->nentries > 0 && plan->world != comm->size)
    return rs_error(RESHARD_ERROR_INVALID, "a plan for a world of %lld ranks on a communicator of %lld",
                    (long long)plan->world, (long long)comm->size);
  if (plan->rank != comm->rank)
    return rs_error(RESHARD_ERROR_INVALID, "the plan of rank %lld on the communicator's rank %lld",
                    (long long)plan->rank, (long long)comm->rank);
  return RESHARD_SUCCESS;
}

/* All that a rank can check and make on its own, but for its arrays. *out is to be freed after an error, too. */
static reshard_status check_and_allocate(reshard_comm comm, reshard_plan plan, const reshard_transfer_options *options,
                                         rs_call_staging *staging, struct reshard_transfer_s **out) {
  if (plan == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_transfer_create: plan is NULL");
  RS_TRY(rs_transfer_check_plan(comm, plan));
  struct reshard_transfer_s *t;
  RS_TRY(rs_alloc_zero(&t, 1, sizeof *t));
  *out = t;
  t->plan = plan;
  t->comm = comm;
  t->cached = staging;
  t->messages.schedule =
      rs_plan_schedule(plan, !comm->device->streams->asynchronous, comm->messages.best_staging, 1, 0);
  atomic_init(&t->busy, 0);
  RS_TRY(read_options(t, options));
  RS_TRY(rs_alloc_zero(&t->team.ranks, comm->locals, sizeof *t->team.ranks));
  RS_TRY(rs_alloc_zero(&t->team.programs, comm->locals, sizeof *t->team.programs));
  RS_TRY(rs_alloc_zero(&t->team.exchanges, comm->locals, sizeof *t->team.exchanges));
  RS_TRY(rs_alloc_zero(&t->team.cursor, comm->locals, sizeof *t->team.cursor));
  return make_streams(t);
}

reshard_status rs_transfer_create_alone(reshard_plan plan, reshard_comm comm, rs_call_staging *staging,
                                        reshard_transfer *transfer) {
  const reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = RESHARD_PATH_DIRECT};
  struct reshard_transfer_s *t = NULL;
  RS_TRY_OR(check_and_allocate(comm, plan, &options, staging, &t), reshard_transfer_destroy(t));
  *transfer = t;
  return RESHARD_SUCCESS;
}

/* Rounds where messages go from strided sources, too; only on one node, where none of the ranks is reached. */
static reshard_status find_strided_rounds(reshard_transfer t, const rs_arrays *arrays, bool *in_place,
                                          rs_record *mine) {
  rs_strided strided;
  for (int64_t i = 0; i < t->plan->peers.n; i++) {
    if (in_place[2 * i])
      continue;
    RS_TRY(rs_arrays_strided(arrays, t->plan, &t->plan->peers.at[i], t->comm->messages.least_run, &strided));
    in_place[2 * i] = strided.at != NULL;
  }
  mine->strided_rounds = rs_plan_least_rounds(t->plan, &t->messages.schedule, in_place);
  return RESHARD_SUCCESS;
}

/* Rounds that this rank needs at least for these arrays. */
static reshard_status find_rounds(reshard_transfer t, const rs_arrays *arrays, rs_record *mine) {
  bool *in_place;
  size_t alignment = rs_comm_alignment(t->comm);
  if (rs_transfer_mailbox(t) > 0) { /* which is there anyway: nothing is staged beside it */
    mine->rounds = rs_plan_mailbox_rounds(t->plan, NULL, t->comm->messages.mailbox);
    return RESHARD_SUCCESS;
  }
  RS_TRY(rs_alloc_zero(&in_place, 2 * t->plan->peers.n, sizeof *in_place));
  for (int64_t i = 0; i < t->plan->peers.n && !t->comm->messages.staged; i++) {
    const rs_peer *p = &t->plan->peers.at[i];
    in_place[2 * i] = p->sent > 0 && rs_arrays_message(arrays, t->plan, p, true, alignment) != NULL;
    in_place[2 * i + 1] = p->received > 0 && rs_arrays_message(arrays, t->plan, p, false, alignment) != NULL;
  }
  mine->rounds = rs_plan_least_rounds(t->plan, &t->messages.schedule, in_place);
  mine->staged = rs_plan_staging(t->plan, &t->messages.schedule, in_place).staged;
  if (t->messages.schedule.block > 0)
    mine->needed = rs_plan_needed_limit(t->plan, &t->messages.schedule, in_place);
  for (int64_t i = 0; i < t->plan->peers.n; i++)
    if (rs_transfer_maps(t, t->plan->peers.at[i].rank))
      in_place[2 * i] = in_place[2 * i + 1] = true; /* no message stages it */
  mine->mixed_rounds = rs_plan_least_rounds(t->plan, &t->messages.schedule, in_place);
  mine->mixed_staged = rs_plan_staging(t->plan, &t->messages.schedule, in_place).staged;
  if (t->messages.schedule.block > 0)
    mine->mixed_needed = rs_plan_needed_limit(t->plan, &t->messages.schedule, in_place);
  mine->strided_rounds = mine->rounds;
  reshard_status status = RESHARD_SUCCESS;
  if (mine->rounds > 1 && t->comm->messages.least_run > 0 && !(t->path->reads_others && t->choice.only))
    status = find_strided_rounds(t, arrays, in_place, mine);
  free(in_place);
  return status;
}

/* True where all ranks need one round, since some send from strided sources, and would need several else. Not where a
 * transfer is cached: other sources of it would stage all of a message, beyond the limit. */
static bool agree_on_strided(const struct reshard_transfer_s *t, const rs_record *all) {
  bool several = false, one = t->comm->messages.least_run > 0 && t->cached == NULL;
  for (int64_t r = 0; r < t->comm->size; r++) {
    several |= all[r].rounds > 1;
    one = one && all[r].strided_rounds <= 1;
  }
  return several && one;
}

/* Blocks that are not cut may need more than the limit: the library's own rises then, a user's is refused by all. */
static reshard_status agree_on_limit(struct reshard_transfer_s *t, const rs_record *all) {
  rs_schedule *schedule = &t->messages.schedule;
  int64_t needed = 0, rank = 0;
  if (schedule->block == 0 || !t->path->packs || t->messages.collective.kind != RESHARD_COLLECTIVE_NONE ||
      t->messages.strided)
    return RESHARD_SUCCESS;
  for (int64_t r = 0; r < t->comm->size; r++) {
    int64_t theirs = t->path == &rs_mixed_path ? all[r].mixed_needed : all[r].needed;
    rank = theirs > needed ? r : rank;
    needed = rs_max(needed, theirs);
  }
  if (t->plan->limit > 0 && needed > t->plan->limit)
    return rs_error(RESHARD_ERROR_INVALID,
                    "a workspace limit of %lld bytes is too small: rank %lld needs %lld for blocks of up to %lld bytes "
                    "that travel with their scales",
                    (long long)t->plan->limit, (long long)rank, (long long)needed, (long long)schedule->block);
  schedule->limit = rs_max(schedule->limit, needed);
  return RESHARD_SUCCESS;
}

/* Sets the rounds of all ranks: of sends and receives as many as any of them needs. */
static reshard_status agree_on_rounds(struct reshard_transfer_s *t, const rs_record *all) {
  bool collective = t->messages.collective.kind != RESHARD_COLLECTIVE_NONE, mixed = t->path == &rs_mixed_path;
  t->messages.strided = !collective && !mixed && !t->messages.schedule.passes && agree_on_strided(t, all);
  RS_TRY(agree_on_limit(t, all));
  t->messages.schedule.rounds = t->messages.least_rounds = collective || t->messages.strided;
  for (int64_t r = 0; r < t->comm->size && !collective && !t->messages.strided; r++) {
    int64_t rounds = mixed ? all[r].mixed_rounds : all[r].rounds;
    t->messages.schedule.rounds = rs_max(t->messages.schedule.rounds, rounds);
    if (rounds > 0)
      t->messages.least_rounds =
          rs_max(t->messages.least_rounds,
                 rs_rounds_bound(&t->messages.schedule, mixed ? all[r].mixed_staged : all[r].staged));
  }
  return RESHARD_SUCCESS;
}

/* Opens the nodes of a communicator for its first transfer that asks for it. The rounds are other ones then, which the
 * ranks tell each other in records anew. Collective. */
static reshard_status open_node(reshard_transfer t, const rs_arrays *arrays, rs_record *mine, const rs_record **all) {
  if (t->path != &rs_mixed_path || t->comm->memory.imports != NULL)
    return RESHARD_SUCCESS;
  RS_TRY(t->comm->ops->neighbours->open(t->comm));
  rs_record_set_status(mine, find_rounds(t, arrays, mine));
  return rs_records_exchange(t->comm, t->plan, mine, all);
}

/* True where messages can be made of streams: the plan passes bytes on. */
static bool may_pass_on(const struct reshard_transfer_s *t) { return t->plan->hops != NULL; }

/* Refuses streams for which there is no room; the same on all ranks. */
static reshard_status check_streams(const struct reshard_transfer_s *t, int64_t streams, int64_t of_pair) {
  int64_t least = rs_plan_least_limit(t->plan, streams), mailbox = t->comm->messages.mailbox;
  if (t->plan->limit > 0 && t->plan->limit < least)
    return rs_error(RESHARD_ERROR_INVALID,
                    "a workspace limit of %lld bytes is too small: %lld is the least with the %lld streams of the rank "
                    "that stages most, where bytes are passed on",
                    (long long)t->plan->limit, (long long)least, (long long)streams);
  return mailbox == 0 || of_pair <= mailbox / 64
             ? RESHARD_SUCCESS
             : rs_error(RESHARD_ERROR_UNSUPPORTED,
                        "messages of %lld streams, where bytes are passed on: mailboxes of %lld bytes take %lld",
                        (long long)of_pair, (long long)mailbox, (long long)(mailbox / 64));
}

/* Rounds of this rank, with the pieces that all have. */
static reshard_status find_stream_rounds(rs_bind_call *c, int64_t streams, int64_t of_pair) {
  reshard_transfer t = c->t;
  int64_t mailbox = t->comm->messages.mailbox;
  rs_schedule *schedule = &t->messages.schedule;
  *schedule = rs_plan_schedule(t->plan, !t->streams.used, t->comm->messages.best_staging, 1, streams);
  if (mailbox > 0)
    rs_schedule_fit(schedule, mailbox, of_pair);
  bool *read;
  RS_TRY(rs_transfer_find_read(t, &read));
  c->record.mixed_rounds = c->record.rounds =
      mailbox > 0 ? rs_plan_mailbox_rounds(t->plan, schedule, mailbox) : rs_plan_least_rounds(t->plan, schedule, read);
  c->record.mixed_staged = c->record.staged = rs_plan_staging(t->plan, schedule, read).staged;
  free(read);
  return RESHARD_SUCCESS;
}

/* Where there are messages, without a collective, bytes are passed on. Pieces go by the most streams of any rank, and
 * rounds by the pieces, so ranks tell each other both, one after the other. Collective. */
static reshard_status pass_on(const rs_bind_calls *calls, const rs_record **all) {
  const struct reshard_transfer_s *first = calls->rank[0]->t;
  int64_t streams = 0, of_pair = 0, hops = 0, n = first->comm->size;
  if (!may_pass_on(first) || !first->path->packs || first->messages.collective.kind != RESHARD_COLLECTIVE_NONE)
    return RESHARD_SUCCESS;
  for (int64_t r = 0; r < n; r++) {
    streams = rs_max(streams, (*all)[r].streams);
    of_pair = rs_max(of_pair, (*all)[r].of_pair);
    hops = rs_max(hops, (*all)[r].hops);
  }
  if (hops < 2)
    return RESHARD_SUCCESS;
  RS_TRY(check_streams(first, streams, of_pair));
  for (int64_t i = 0; i < calls->n; i++)
    rs_record_set_status(&calls->rank[i]->record, find_stream_rounds(calls->rank[i], streams, of_pair));
  RS_TRY(rs_bind_calls_exchange(calls, all));
  for (int64_t i = 0; i < calls->n; i++) {
    reshard_transfer t = calls->rank[i]->t;
    RS_TRY(agree_on_rounds(t, *all));
    t->messages.streams = streams;
    t->messages.later = t->messages.schedule.halves * (hops - 1);
  }
  return RESHARD_SUCCESS;
}

/* All that a rank does alone. status: of it so far; staging: of a transfer that is cached, else NULL. */
static void prepare_rank(rs_bind_call *c, reshard_comm comm, reshard_plan plan, const reshard_arrays *arrays,
                         const reshard_transfer_options *options, rs_call_staging *staging, reshard_status status) {
  rs_record *mine = &c->record;
  *mine = (rs_record){.call = RS_RECORD_CREATE, .private_entry = -1};
  c->descriptor = (rs_descriptor){.rank = comm->rank, .plan = plan};
  rs_comm_free_deferred(comm);
  RS_THEN(status, check_and_allocate(comm, plan, options, staging, &c->t));
  struct reshard_transfer_s *t = c->t;
  if (t != NULL) {
    c->binding = &t->binding;
    c->descriptor.arrays = &t->binding.arrays;
  }
  RS_THEN(status, rs_arrays_bind_on(comm, plan, arrays, t->path->reads_others && t->choice.only, &t->binding.arrays));
  if (status == RESHARD_SUCCESS && (t->path->packs || rs_transfer_reads_processes(t) || may_leave_gpus(t)))
    status = find_rounds(t, &t->binding.arrays, mine);
  RS_THEN(status, rs_transfer_describe(c));
  rs_record_set_status(mine, status);
  if (status != RESHARD_SUCCESS)
    return;
  rs_record_set_plan(mine, plan);
  mine->path = (int32_t)t->path->number;
  mine->moved = true;
  mine->only = t->choice.only || !rs_packed_path.applicable(comm, RESHARD_PATH_PACKED);
  mine->eager_limit = rs_transfer_reads_processes(t) ? comm->messages.eager_limit : 0;
  mine->most_bytes = rs_max(plan->info.sent_bytes, plan->info.received_bytes);
  mine->use = (int32_t)t->messages.use;
  if (may_pass_on(t)) {
    mine->streams = rs_plan_streams(plan, !t->streams.used);
    mine->of_pair = (int32_t)rs_min(plan->hops->most_of_pair, INT32_MAX);
    mine->hops = (int32_t)rs_min(plan->hops->hops, INT32_MAX);
  }
  rs_collective_propose(t, &t->binding.arrays, &mine->collective);
  uint64_t name[2] = {(uint64_t)(uintptr_t)comm, (uint64_t)++comm->made};
  mine->key = rs_hash(0, name, sizeof name); /* an address alone could be an earlier transfer's */
  mine->descriptor = &c->descriptor;
}

/* Takes the path and the rounds that all ranks have agreed on. */
static reshard_status settle_rank(rs_bind_call *c, const rs_record **all) {
  reshard_transfer t = c->t;
  t->key = (*all)[0].key;
  if (rs_records_judge(t->comm->size, *all, &t->choice.left_by) == RS_VERDICT_PACK) {
    t->choice.left = t->choice.left_by >= 0 ? "sources that others cannot read"
                                            : "messages are faster than meetings at so few bytes";
    t->path = &rs_packed_path;
  }
  RS_TRY(open_node(t, &t->binding.arrays, &c->record, all));
  RS_TRY(rs_collective_decide(t, proposal_of, *all));
  return agree_on_rounds(t, *all);
}

/* Collective, after all ranks of this thread have prepared theirs: makes the transfers, or frees them. */
static reshard_status finish_creation(const rs_bind_calls *calls) {
  const rs_record *all;
  reshard_status status = rs_bind_calls_exchange(calls, &all);
  for (int64_t i = 0; i < calls->n; i++)
    RS_THEN(status, settle_rank(calls->rank[i], &all));
  RS_THEN(status, pass_on(calls, &all));
  RS_THEN(status, rs_bind_calls_bind(calls, all));
  if (status == RESHARD_SUCCESS && calls->rank[0]->t->path->prepare != NULL)
    status = calls->rank[0]->t->path->prepare(calls);
  for (int64_t i = 0; i < calls->n; i++) {
    reshard_transfer t = calls->rank[i]->t;
    if (status != RESHARD_SUCCESS) {
      reshard_transfer_destroy(t);
      continue;
    }
    rs_transfer_tell(t);
    t->holds = t->cached == NULL; /* the owner of one that is cached holds it */
    if (t->holds)
      rs_comm_hold(t->comm);
  }
  return status;
}

reshard_status rs_transfer_create_cached(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays,
                                         const reshard_transfer_options *options, rs_call_staging *staging,
                                         reshard_transfer *transfer) {
  rs_bind_call mine = {0}, *rank = &mine;
  prepare_rank(&mine, comm, plan, arrays, options, staging,
               transfer != NULL ? RESHARD_SUCCESS
                                : rs_error(RESHARD_ERROR_INVALID, "reshard_transfer_create: transfer is NULL"));
  RS_TRY(finish_creation(&(rs_bind_calls){1, comm, &rank, NULL}));
  *transfer = mine.t;
  return RESHARD_SUCCESS;
}

reshard_status reshard_transfer_create(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays,
                                       const reshard_transfer_options *options, reshard_transfer *transfer) {
  if (comm == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_transfer_create: comm is NULL");
  RS_CALL_OF(comm, __func__, plan != NULL ? plan->info.bytes : 0, plan != NULL ? plan->info.peers : -1,
             plan != NULL ? plan->nentries : -1);
  return rs_transfer_create_cached(plan, comm, arrays, options, NULL, transfer);
}

/* The lists are checked. */
static reshard_status create_ranks(rs_bind_lists *lists, const reshard_plan *plans, const reshard_comm *comms,
                                   const reshard_arrays *const *arrays,
                                   const reshard_transfer_options *const *options) {
  int64_t n = lists->calls.n;
  RS_RANGE(lists->name, plans[0] != NULL ? plans[0]->info.bytes : 0, -1, -1, -1);
  for (int64_t i = 0; i < n; i++) {
    rs_bind_call *c = &lists->call[i];
    c->scope = rs_call_enter(comms[i], lists->name, plans[i] != NULL ? plans[i]->info.bytes : 0);
    prepare_rank(c, comms[i], plans[i], arrays != NULL ? arrays[i] : NULL, options != NULL ? options[i] : NULL, NULL,
                 RESHARD_SUCCESS);
  }
  reshard_status status = finish_creation(&lists->calls);
  for (int64_t i = 0; i < n; i++)
    rs_call_leave(&lists->call[i].scope);
  return status;
}

reshard_status reshard_transfer_create_all(int64_t n, const reshard_plan *plans, const reshard_comm *comms,
                                           const reshard_arrays *const *arrays,
                                           const reshard_transfer_options *const *options,
                                           reshard_transfer *transfers) {
  static const char name[] = "reshard_transfer_create_all";
  if (n < 1)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld ranks", name, (long long)n);
  RS_TRY(RS_GIVEN(name, plans, comms, transfers));
  for (int64_t i = 0; i < n; i++)
    if (comms[i] == NULL)
      return rs_error(RESHARD_ERROR_INVALID, "%s: comm %lld is NULL", name, (long long)i);
  if (n == 1 && comms[0]->locals == 1) /* without lists: others wait for a rank that has no memory for them */
    return reshard_transfer_create(plans[0], comms[0], arrays != NULL ? arrays[0] : NULL,
                                   options != NULL ? options[0] : NULL, &transfers[0]);
  RS_HOLD_CANCEL;
  rs_bind_lists lists;
  reshard_status status = rs_bind_lists_create(name, n, &lists);
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++)
    status = rs_bind_lists_add(&lists, "comm", i, comms[0], comms[i]);
  RS_THEN(status, create_ranks(&lists, plans, comms, arrays, options));
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++)
    transfers[i] = lists.call[i].t;
  rs_bind_lists_free(&lists);
  return status;
}

reshard_status reshard_transfer_get_info(reshard_transfer transfer, reshard_transfer_info *info) {
  RS_TRY(RS_GIVEN("reshard_transfer_get_info", transfer, info));
  *info = transfer->binding.info;
  if (transfer->path->packs) {
    info->workspace_limit =
        transfer->messages.schedule.limit < INT64_MAX ? transfer->messages.schedule.limit : RESHARD_NO_LIMIT;
    info->least_rounds = transfer->messages.least_rounds;
    info->streams = transfer->messages.streams;
    info->later_rounds = transfer->messages.later;
  }
  info->collective = transfer->messages.collective.kind;
  info->collective_why = transfer->messages.why;
  return RESHARD_SUCCESS;
}
