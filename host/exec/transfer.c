/* Making and rebinding a transfer: every rank checks its own side, then all compare, then all bind. A rank whose own
 * step failed takes part in what is collective with its status, so nobody waits for it. */
#include "exec/addresses.h"
#include "exec/cached.h"
#include "exec/packed/collective.h"

#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LOOK_MS = 1000 }; /* without a deadline: between two looks whether the communicator has ended */

static const rs_proposal *proposal_of(const void *all, int64_t rank) {
  return &((const rs_record *)all)[rank].collective;
}

/* path: of the transfer; NULL: none was found, and nothing but the arrays is bound. */
static void free_binding(reshard_comm comm, const rs_path_ops *path, rs_binding *b) {
  if (path != NULL)
    path->release(comm, b);
  rs_arrays_free(&b->arrays);
  *b = (rs_binding){0};
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
  t->path_only = options->path != RESHARD_PATH_AUTO;
  t->user_workspace = options->workspace;
  t->user_workspace_bytes = options->workspace_bytes;
  t->use = options->collective;
  return RESHARD_SUCCESS;
}

/* The direct path between ranks that are processes. */
static bool reads_processes(const struct reshard_transfer_s *t) { return t->path->reads_others && !t->comm->direct; }

/* The direct path between GPUs, which all ranks leave where a GPU does not reach an array. */
static bool may_leave_gpus(const struct reshard_transfer_s *t) {
  return t->path->reads_others && !t->path_only && t->comm->device->memory->look_up != NULL &&
         (t->comm->lanes > 1 || reads_processes(t));
}

/* Makes the streams and events of executing on a device with streams. */
static reshard_status make_streams(struct reshard_transfer_s *t) {
  reshard_comm comm = t->comm;
  bool packs = t->path->packs || may_leave_gpus(t);
  const rs_lane_needs needs = {.ranks = comm->locals > 1,
                               .rounds = packs && rs_plan_may_take_rounds(t->plan, &t->pace),
                               .packed = packs,
                               .lanes = comm->lanes,
                               .number = comm->lane};
  t->on_streams = comm->device->streams->asynchronous;
  if (!t->on_streams)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc_zero((void *)&t->lanes, comm->lanes, sizeof *t->lanes));
  RS_TRY(rs_gate_create(comm, &t->gate));
  RS_TRY(comm->lane_devices[0]->streams->event_create(comm->lane_devices[0], &t->ended));
  return comm->lane_rank == 0 ? rs_lane_create(comm->device, &needs, &t->lane) : RESHARD_SUCCESS;
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

/* All that a rank can check and make on its own. */
static reshard_status check_and_allocate(reshard_comm comm, reshard_plan plan, const reshard_arrays *arrays,
                                         const reshard_transfer_options *options, rs_cached_transfer *cached,
                                         struct reshard_transfer_s **out, rs_binding *binding) {
  if (plan == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_transfer_create: plan is NULL");
  RS_TRY(rs_transfer_check_plan(comm, plan));
  struct reshard_transfer_s *t;
  RS_TRY(rs_alloc_zero(&t, 1, sizeof *t));
  *out = t;
  t->plan = plan;
  t->comm = comm;
  t->cached = cached;
  t->pace = rs_plan_pace(plan, !comm->device->streams->asynchronous, comm->best_staging, 1);
  atomic_flag_clear(&t->busy);
  RS_TRY(read_options(t, options));
  RS_TRY(rs_alloc_zero(&t->ranks, comm->locals, sizeof *t->ranks));
  RS_TRY(rs_alloc_zero(&t->programs, comm->locals, sizeof *t->programs));
  RS_TRY(rs_alloc_zero(&t->turns, comm->locals, sizeof *t->turns));
  RS_TRY(rs_alloc_zero(&t->cursor, comm->locals, sizeof *t->cursor));
  RS_TRY(make_streams(t));
  return rs_arrays_bind_on(comm, plan, arrays, t->path->reads_others && t->path_only, &binding->arrays);
}

/* Rounds where messages go from strided sources, too; only on one node, where none of the ranks is reached. */
static reshard_status find_strided_rounds(reshard_transfer t, const rs_arrays *arrays, bool *in_place,
                                          rs_record *mine) {
  rs_strided strided;
  for (int64_t i = 0; i < t->plan->peers.n; i++) {
    if (in_place[2 * i])
      continue;
    RS_TRY(rs_arrays_strided(arrays, t->plan, &t->plan->peers.at[i], t->comm->least_run, &strided));
    in_place[2 * i] = strided.at != NULL;
  }
  mine->strided_rounds = rs_plan_least_rounds(t->plan, &t->pace, in_place);
  return RESHARD_SUCCESS;
}

/* Rounds that this rank needs at least for these arrays. */
static reshard_status find_rounds(reshard_transfer t, const rs_arrays *arrays, rs_record *mine) {
  bool *in_place;
  size_t alignment = rs_comm_alignment(t->comm);
  if (t->comm->mailbox > 0) { /* which is there anyway: nothing is staged beside it */
    mine->rounds = rs_plan_mailbox_rounds(t->plan, t->comm->mailbox);
    return RESHARD_SUCCESS;
  }
  RS_TRY(rs_alloc_zero(&in_place, 2 * t->plan->peers.n, sizeof *in_place));
  for (int64_t i = 0; i < t->plan->peers.n && !t->comm->staged; i++) {
    const rs_peer *p = &t->plan->peers.at[i];
    in_place[2 * i] = p->sent > 0 && rs_arrays_message(arrays, t->plan, p, true, alignment) != NULL;
    in_place[2 * i + 1] = p->received > 0 && rs_arrays_message(arrays, t->plan, p, false, alignment) != NULL;
  }
  mine->rounds = rs_plan_least_rounds(t->plan, &t->pace, in_place);
  mine->staged = rs_plan_staging(t->plan, &t->pace, in_place).staged;
  for (int64_t i = 0; i < t->plan->peers.n; i++)
    if (rs_transfer_reaches(t, t->plan->peers.at[i].rank))
      in_place[2 * i] = in_place[2 * i + 1] = true; /* no message stages it */
  mine->mixed_rounds = rs_plan_least_rounds(t->plan, &t->pace, in_place);
  mine->mixed_staged = rs_plan_staging(t->plan, &t->pace, in_place).staged;
  mine->strided_rounds = mine->rounds;
  reshard_status status = RESHARD_SUCCESS;
  if (mine->rounds > 1 && t->comm->least_run > 0 && !(t->path->reads_others && t->path_only))
    status = find_strided_rounds(t, arrays, in_place, mine);
  free(in_place);
  return status;
}

/* True where all ranks need one round, since some send from strided sources, and would need several else. Not where a
 * transfer is cached: other sources of it would stage all of a message, beyond the limit. */
static bool agree_on_strided(const struct reshard_transfer_s *t, const rs_record *all) {
  bool several = false, one = t->comm->least_run > 0 && t->cached == NULL;
  for (int64_t r = 0; r < t->comm->size; r++) {
    several |= all[r].rounds > 1;
    one = one && all[r].strided_rounds <= 1;
  }
  return several && one;
}

/* Sets the rounds of all ranks: of sends and receives as many as any of them needs. */
static void agree_on_rounds(struct reshard_transfer_s *t, const rs_record *all) {
  bool collective = t->collective.kind != RESHARD_COLLECTIVE_NONE, mixed = t->path == &rs_mixed_path;
  t->strided = !collective && !mixed && agree_on_strided(t, all);
  t->pace.rounds = t->least_rounds = collective || t->strided;
  for (int64_t r = 0; r < t->comm->size && !collective && !t->strided; r++) {
    int64_t rounds = mixed ? all[r].mixed_rounds : all[r].rounds;
    t->pace.rounds = rs_max(t->pace.rounds, rounds);
    if (rounds > 0)
      t->least_rounds = rs_max(t->least_rounds, rs_rounds_bound(&t->pace, mixed ? all[r].mixed_staged : all[r].staged));
  }
}

/* Small enough on each rank for mailboxes, by the rank that allows them most: they take one meeting, and ranks that
 * read each other two. */
static bool is_small(const struct reshard_transfer_s *t, const rs_record *all) {
  int64_t mailed = 0, moved = 0;
  for (int64_t r = 0; r < t->comm->size; r++) {
    mailed = rs_max(mailed, all[r].mailed);
    moved = rs_max(moved, all[r].moved);
  }
  return reads_processes(t) && moved < mailed;
}

/* Private sources end the direct path: on all ranks, or with an error on all. A small transfer leaves it, too. */
static reshard_status keep_or_leave_path(reshard_transfer t, const rs_record *all, bool leave) {
  leave = leave && rs_packed_path.applicable(t->comm, RESHARD_PATH_PACKED);
  for (int64_t r = 0; r < t->comm->size; r++)
    leave = leave && !all[r].only;
  for (int64_t r = 0; t->path->reads_others && r < t->comm->size; r++) {
    if (all[r].private_entry < 0)
      continue;
    if (!leave)
      return rs_sources_error_private(t->comm, t->plan, r, all[r].private_entry);
    t->path = &rs_packed_path;
  }
  if (leave && is_small(t, all))
    t->path = &rs_packed_path;
  return RESHARD_SUCCESS;
}

/* Local: takes the words of the peers, by whose execute a rank's stream waits for theirs. */
static reshard_status connect_meeting(reshard_transfer t, void *const *words) {
  int64_t *peers, n = 0;
  void **theirs = NULL;
  RS_TRY(rs_alloc(&peers, t->plan->peers.n, sizeof *peers));
  reshard_status status = rs_alloc((void *)&theirs, t->plan->peers.n, sizeof *theirs);
  for (int64_t i = 0; status == RESHARD_SUCCESS && i < t->plan->peers.n; i++) {
    int64_t rank = t->plan->peers.at[i].rank;
    if (t->comm->imports[rank] == NULL)
      continue;
    peers[n] = rank;
    theirs[n++] = words[rank];
  }
  const rs_stream_meeting_terms terms = {.rank = t->comm->rank,
                                         .npeers = n,
                                         .peers = peers,
                                         .words = theirs,
                                         .ended = t->comm->ended,
                                         .late = t->comm->late,
                                         .timeout_ms = t->comm->timeout_ms};
  RS_THEN(status, t->comm->device->processes->connect(t->comm->device, t->meeting, &terms));
  free(theirs);
  free(peers);
  return status;
}

/* Opens the nodes of a communicator for its first transfer that asks for it. The rounds are other ones then, which the
 * ranks tell each other in records anew. Collective. */
static reshard_status open_node(reshard_transfer t, const rs_arrays *arrays, rs_record *mine, const rs_record **all) {
  if (t->path != &rs_mixed_path || t->comm->imports != NULL)
    return RESHARD_SUCCESS;
  RS_TRY(t->comm->ops->open_node(t->comm));
  rs_record_set_status(mine, find_rounds(t, arrays, mine));
  return rs_records_exchange(t->comm, t->plan, mine, all);
}

static void finish_streams(reshard_transfer t, bool *late);

static void forget_kept(reshard_transfer t) {
  struct reshard_transfer_s **at = &t->comm->kept_transfers;
  while (*at != NULL && *at != t)
    at = &(*at)->next;
  if (*at == t)
    *at = t->next;
}

/* Ends bindings of other transfers to memory that its owner has freed: as long as they have it open it is not free. */
static void unbind_freed(const struct reshard_transfer_s *t) {
  for (reshard_transfer kept = t->comm->kept_transfers; kept != NULL; kept = kept->next) {
    bool late;
    if (kept == t || !rs_mappings_freed(kept->binding.mappings))
      continue;
    finish_streams(kept, &late);
    if (late)
      continue;
    free_binding(kept->comm, kept->path, &kept->binding);
    kept->cached->bound = false;
  }
}

void rs_transfer_keep(reshard_transfer t) {
  t->parts = false;
  forget_kept(t);
  t->next = t->comm->kept_transfers;
  t->comm->kept_transfers = t;
}

/* Binds where ranks are processes, each of which maps the others' sources. Those with GPUs make their meeting with it,
 * once. */
static reshard_status bind_processes(reshard_transfer t, rs_binding *binding) {
  reshard_comm comm = t->comm;
  const rs_device_processes *processes = comm->device->processes;
  uint64_t storage = 1;
  rs_offers *offers;
  const rs_offer mine = {comm->rank, t->plan, &binding->arrays, NULL};
  bool first = t->on_streams && t->meeting == NULL;
  reshard_status status =
      t->on_streams ? rs_sources_version(comm, t->plan, &binding->arrays, &storage) : RESHARD_SUCCESS;
  if (first)
    RS_THEN(status, processes->create(comm->device, comm->size, 0, &comm->meetings, &t->meeting, &t->words));
  t->parts = t->on_streams;
  binding->exposed = storage == 0;
  RS_TRY(rs_offers_exchange(comm, status, t->plan, &binding->arrays, t->on_streams ? &t->words : NULL, &offers));
  binding->mappings = offers->mappings;
  unbind_freed(t);
  if (first)
    status = rs_agree(comm, connect_meeting(t, offers->words));
  offers->offer[comm->rank] = &mine;
  if (status == RESHARD_SUCCESS)
    status = rs_agree(comm, t->path->bind(t, binding, offers->offer));
  offers->offer[comm->rank] = NULL;
  rs_offers_free(offers);
  return status;
}

/* Binds on all ranks or on none. */
static reshard_status bind_path(reshard_transfer t, rs_binding *binding, const rs_record *all) {
  RS_RANGE("bind", t->plan->info.bytes, t->plan->info.peers, -1, t->plan->nentries);
  if (t->path->packs && t->on_streams && t->comm->ended != NULL) /* their meeting guards the programs */
    RS_TRY(t->comm->ops->reserve(t->comm, 0));
  if (!t->path->reads_others)
    return rs_agree(t->comm, t->path->bind(t, binding, NULL));
  if (reads_processes(t))
    return bind_processes(t, binding);
  const rs_offer **offers;
  reshard_status memory = rs_alloc(&offers, t->comm->size, sizeof *offers);
  for (int64_t r = 0; memory == RESHARD_SUCCESS && r < t->comm->size; r++)
    offers[r] = all[r].offer;
  reshard_status status = rs_agree(t->comm, memory);
  RS_THEN(status, t->path->bind(t, binding, offers));
  free(offers);
  return status;
}

/* cached: NULL, or of the transfer. */
static reshard_status create_transfer(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays,
                                      const reshard_transfer_options *options, rs_cached_transfer *cached,
                                      reshard_transfer *transfer) {
  struct reshard_transfer_s *t = NULL;
  rs_binding binding = {.cached = cached != NULL};
  rs_record mine = {.call = RS_RECORD_CREATE, .private_entry = -1};
  if (transfer == NULL)
    rs_record_set_status(&mine, rs_error(RESHARD_ERROR_INVALID, "reshard_transfer_create: transfer is NULL"));
  else
    rs_record_set_status(&mine, check_and_allocate(comm, plan, arrays, options, cached, &t, &binding));
  if (mine.status == RESHARD_SUCCESS && (t->path->packs || reads_processes(t) || may_leave_gpus(t)))
    rs_record_set_status(&mine, find_rounds(t, &binding.arrays, &mine));
  if (mine.status == RESHARD_SUCCESS && reads_processes(t))
    rs_record_set_status(&mine, rs_sources_find_private(comm->device, plan, &binding.arrays, &mine.private_entry));
  else if (mine.status == RESHARD_SUCCESS && t->path->reads_others && binding.arrays.has_private)
    mine.private_entry = binding.arrays.private_entry;
  rs_offer offer = {comm->rank, plan, &binding.arrays, NULL};
  if (mine.status == RESHARD_SUCCESS) {
    rs_record_set_plan(&mine, plan);
    mine.path = (int32_t)t->path->number;
    mine.only = t->path_only;
    mine.mailed = comm->mailed;
    mine.moved = rs_max(plan->info.sent_bytes, plan->info.received_bytes);
    mine.use = (int32_t)t->use;
    rs_collective_propose(t, &binding.arrays, &mine.collective);
    uint64_t name[2] = {(uint64_t)(uintptr_t)comm, (uint64_t)++comm->made};
    mine.key = rs_hash(0, name, sizeof name); /* an address alone could be an earlier transfer's */
    mine.offer = &offer;
  }
  const rs_record *all;
  reshard_status status;
  RS_TRY_GOTO(status, rs_records_exchange(comm, plan, &mine, &all), fail);
  t->key = all[0].key;
  RS_TRY_GOTO(status, keep_or_leave_path(t, all, true), fail);
  RS_TRY_GOTO(status, open_node(t, &binding.arrays, &mine, &all), fail);
  RS_TRY_GOTO(status, rs_collective_decide(t, proposal_of, all), fail);
  agree_on_rounds(t, all);
  RS_TRY_GOTO(status, bind_path(t, &binding, all), fail);
  t->binding = binding;
  if (t->path->prepare != NULL)
    RS_TRY_GOTO(status, t->path->prepare(t), bound);
  *transfer = t;
  return RESHARD_SUCCESS;
bound:
  binding = t->binding;
fail:
  if (t == NULL)
    free_binding(comm, NULL, &binding);
  else
    t->binding = binding; /* it stays where the GPU is stuck */
  reshard_transfer_destroy(t);
  return status;
}

reshard_status reshard_transfer_create(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays,
                                       const reshard_transfer_options *options, reshard_transfer *transfer) {
  if (comm == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_transfer_create: comm is NULL");
  RS_CALL_OF(comm, __func__, plan != NULL ? plan->info.bytes : 0, plan != NULL ? plan->info.peers : -1,
             plan != NULL ? plan->nentries : -1);
  return create_transfer(plan, comm, arrays, options, NULL, transfer);
}

reshard_status rs_transfer_create_cached(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays,
                                         const reshard_transfer_options *options, rs_cached_transfer *cached) {
  return create_transfer(plan, comm, arrays, options, cached, &cached->transfer);
}

/* A communicator of the library's own ends at its deadline, and with it what a stream waits for. Where it had ended
 * before, that is work of a graph that was launched, or that the stream came to, after its end. */
static void stop_streams(reshard_comm comm) {
  if (comm->ops->stop != NULL)
    comm->ops->stop(comm);
  if (comm->timeout_ms > 0)
    (void)comm->ops->abort(comm);
}

/* A peer may have ended the communicator, and with it what a stream waits for. The caller's last error stays. */
static void look_at_peers(reshard_comm comm) {
  char text[1024];
  snprintf(text, sizeof text, "%s", reshard_last_error());
  if (comm->ops->alive(comm) != RESHARD_SUCCESS)
    rs_error_set(text);
}

/* Waits until an event has happened; *late: it has not by the deadline, and nothing here can make it. */
static reshard_status wait_for_event(reshard_comm comm, rs_event *event, int64_t since, bool *late) {
  rs_device *device = comm->lane_devices[0];
  bool done = event == NULL;
  int64_t limit_ms = comm->timeout_ms == 0 && !comm->borrowed ? LOOK_MS : comm->timeout_ms;
  for (int64_t from = since; !done && !*late;) {
    RS_TRY(device->streams->event_done(device, event, &done));
    if (!done)
      look_at_peers(comm);
    if (!done && rs_late(from, limit_ms)) {
      *late = comm->borrowed;
      if (!comm->borrowed)
        stop_streams(comm);
      from = rs_now_ns();
    }
    if (!done && rs_now_ns() - since < 200000)
      sched_yield();
    else if (!done)
      nanosleep(&(struct timespec){0, 50000}, NULL);
  }
  return RESHARD_SUCCESS;
}

static bool is_stuck(reshard_comm comm) { return comm->ops->stuck != NULL && comm->ops->stuck(comm); }

/* Waits for what streams have still to do with the transfer, and with its staging, which a peer's GPU may read. A
 * device that cannot be waited for twice is lost. *late: they have not done it by the deadline, or are stuck. */
static void finish_streams(reshard_transfer t, bool *late) {
  int64_t since = rs_now_ns();
  reshard_status status = t->lost ? RESHARD_ERROR_SYSTEM : RESHARD_SUCCESS;
  *late = false;
  if (!t->on_streams)
    return;
  *late = is_stuck(t->comm);
  RS_THEN(status, wait_for_event(t->comm, t->gate.done, since, late));
  RS_THEN(status, wait_for_event(t->comm, t->ended, since, late));
  if (*late)
    return;
  for (int64_t g = 0; status != RESHARD_SUCCESS && g < t->comm->lanes; g++) {
    rs_device *device = t->comm->lane_devices[g];
    if (device->streams->finish(device) != RESHARD_SUCCESS)
      (void)device->streams->finish(device);
  }
  t->lost = false;
}

static reshard_status finish_execute(reshard_transfer t) {
  bool late;
  finish_streams(t, &late);
  return late ? rs_error(RESHARD_ERROR_TIMEOUT, "the last execute of the transfer has not ended within %lld ms",
                         (long long)t->comm->timeout_ms)
              : RESHARD_SUCCESS;
}

/* Where memory of this rank's caller was open, waits until all peers have closed it, or are gone. */
static void part_from_peers(reshard_transfer t, bool exposed) {
  if (t->parts)
    t->comm->ops->part(t->comm, exposed);
}

reshard_status reshard_transfer_rebind(reshard_transfer t, const reshard_arrays *arrays) {
  if (t == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_transfer_rebind: transfer is NULL");
  rs_binding binding = {.cached = t->cached != NULL};
  if (atomic_flag_test_and_set(&t->busy)) /* this rank is in a collective call, and cannot take part in another */
    return rs_error(RESHARD_ERROR_BUSY, "reshard_transfer_rebind: the transfer is executing");
  reshard_status status = finish_execute(t);
  bool idle = status == RESHARD_SUCCESS;
  t->ncompiled = 0;
  RS_THEN(status, rs_arrays_bind_on(t->comm, t->plan, arrays, t->path->reads_others, &binding.arrays));
  if (!t->path->reads_others) {
    RS_RANGE("bind", t->plan->info.bytes, t->plan->info.peers, -1, t->plan->nentries);
    RS_THEN(status, t->path->bind(t, &binding, NULL));
  } else {
    RS_CALL(t->comm, t->plan->info.bytes);
    t->parts = t->meeting != NULL;
    rs_offer offer = {t->comm->rank, t->plan, &binding.arrays, NULL};
    rs_record mine = {.call = RS_RECORD_REBIND, .key = t->key, .offer = &offer, .private_entry = -1};
    const rs_record *all;
    if (reads_processes(t))
      RS_THEN(status, rs_sources_find_private(t->comm->device, t->plan, &binding.arrays, &mine.private_entry));
    rs_record_set_status(&mine, status);
    status = rs_records_exchange(t->comm, NULL, &mine, &all);
    RS_THEN(status, keep_or_leave_path(t, all, false));
    RS_THEN(status, bind_path(t, &binding, all));
  }
  if (status == RESHARD_SUCCESS) {
    rs_binding old = t->binding;
    t->binding = binding;
    binding = old;
  }
  bool exposed = binding.exposed;
  if (status != RESHARD_SUCCESS && idle && is_stuck(t->comm))
    t->failed = binding; /* the only one: none begins on a GPU that is stuck */
  else
    free_binding(t->comm, t->path, &binding);
  part_from_peers(t, exposed);
  atomic_flag_clear(&t->busy);
  return status;
}

reshard_status rs_transfer_rebind_cached(reshard_transfer t, const reshard_arrays *arrays,
                                         const rs_offer *const *offers) {
  rs_binding binding = {.cached = true};
  t->ncompiled = 0;
  reshard_status status = rs_arrays_bind_on(t->comm, t->plan, arrays, false, &binding.arrays);
  RS_THEN(status, t->path->bind(t, &binding, offers));
  if (status == RESHARD_SUCCESS) { /* streams may use the old one's staging and tables, which are not freed here */
    rs_binding old = t->binding;
    t->binding = binding;
    binding = old;
  }
  free_binding(t->comm, t->path, &binding);
  return status;
}

reshard_status rs_transfer_program(reshard_transfer t, rs_program ***program) {
  if (t->ncompiled == t->compiled.n) {
    RS_TRY(rs_vec_reserve(&t->compiled, t->compiled.n + 1));
    t->compiled.at[t->compiled.n++] = NULL;
  }
  *program = &t->compiled.at[t->ncompiled++];
  return RESHARD_SUCCESS;
}

/* Nothing of this rank uses it any more. */
static void free_transfer(reshard_transfer t) {
  rs_device *device = t->comm->device;
  bool exposed = t->binding.exposed || t->failed.exposed;
  free_binding(t->comm, t->path, &t->binding);
  free_binding(t->comm, t->path, &t->failed);
  if (t->meeting != NULL)
    device->processes->destroy(device, t->meeting);
  part_from_peers(t, exposed);
  for (int64_t i = 0; i < t->compiled.n; i++)
    device->work->release(device, t->compiled.at[i]);
  free(t->compiled.at);
  rs_gate_destroy(&t->gate);
  rs_lane_destroy(&t->lane);
  if (t->ended != NULL)
    t->comm->lane_devices[0]->streams->event_destroy(t->comm->lane_devices[0], t->ended);
  free(t->lanes);
  free(t->ranks);
  free(t->programs);
  free(t->turns);
  free(t->cursor);
  free(t);
}

/* The communicator is about to go: what a GPU still uses stays. */
static void try_destroy(rs_deferred_destroy *deferred) {
  reshard_transfer t = (reshard_transfer)((char *)deferred - offsetof(struct reshard_transfer_s, deferred));
  bool done = false, ended = false;
  rs_device *first = t->comm->lane_devices[0];
  if (!is_stuck(t->comm) &&
      (t->gate.done == NULL || (first->streams->event_done(first, t->gate.done, &done) == RESHARD_SUCCESS && done)) &&
      first->streams->event_done(first, t->ended, &ended) == RESHARD_SUCCESS && ended)
    free_transfer(t);
  else
    t->comm->held = true;
}

void reshard_transfer_destroy(reshard_transfer t) {
  bool late;
  if (t == NULL)
    return;
  forget_kept(t);
  finish_streams(t, &late);
  if (!late) {
    free_transfer(t);
    return;
  }
  t->deferred = (rs_deferred_destroy){t->comm->deferred, try_destroy};
  t->comm->deferred = &t->deferred;
}

reshard_status reshard_transfer_get_info(reshard_transfer transfer, reshard_transfer_info *info) {
  RS_TRY(RS_GIVEN("reshard_transfer_get_info", transfer, info));
  *info = transfer->binding.info;
  if (transfer->path->packs) {
    info->workspace_limit = transfer->pace.limit < INT64_MAX ? transfer->pace.limit : RESHARD_NO_LIMIT;
    info->least_rounds = transfer->least_rounds;
  }
  info->collective = transfer->collective.kind;
  info->collective_why = transfer->why;
  return RESHARD_SUCCESS;
}
