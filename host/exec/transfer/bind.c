/* Binding a transfer to arrays, when it is made and later. */
#include "exec/addresses.h"
#include "exec/transfer/steps.h"

#include <stdlib.h>

reshard_status rs_transfer_describe(reshard_transfer t, rs_binding *binding, rs_record *mine) {
  const rs_arrays *arrays = &binding->arrays;
  mine->private_entry = t->path->reads_others && arrays->has_private ? arrays->private_entry : -1;
  if (!rs_transfer_reads_processes(t))
    return RESHARD_SUCCESS;
  mine->malloced = rs_transfer_reads_malloc(t);
  RS_TRY(rs_sources_describe(t->comm->device, t->plan, arrays, mine->malloced, &binding->sources));
  mine->private_entry = binding->sources.private_entry;
  mine->of_malloc = binding->sources.of_malloc;
  return RESHARD_SUCCESS;
}

static bool is_of_malloc(const struct reshard_transfer_s *t, const rs_record *all) {
  bool any = false;
  for (int64_t r = 0; r < t->comm->size; r++)
    any |= all[r].of_malloc != 0;
  return any;
}

/* Local: takes the words of the peers, by whose execute a rank's stream waits for theirs. */
static reshard_status connect_meeting(reshard_transfer t, void *const *words) {
  int64_t *peers, n = 0;
  void **theirs = NULL;
  RS_TRY(rs_alloc(&peers, t->plan->peers.n, sizeof *peers));
  reshard_status status = rs_alloc((void *)&theirs, t->plan->peers.n, sizeof *theirs);
  for (int64_t i = 0; status == RESHARD_SUCCESS && i < t->plan->peers.n; i++) {
    int64_t rank = t->plan->peers.at[i].rank;
    if (t->comm->memory.imports[rank] == NULL)
      continue;
    peers[n] = rank;
    theirs[n++] = words[rank];
  }
  const rs_stream_meeting_terms terms = {.rank = t->comm->rank,
                                         .npeers = n,
                                         .peers = peers,
                                         .words = theirs,
                                         .ended = t->comm->waits.ended,
                                         .late = t->comm->waits.late,
                                         .timeout_ms = t->comm->timeout_ms};
  RS_THEN(status, t->comm->device->processes->connect(t->comm->device, t->streams.meeting, &terms));
  free(theirs);
  free(peers);
  return status;
}

/* Binds where ranks are processes, each of which maps the others' sources. Those with GPUs make their meeting with it,
 * once. */
static reshard_status bind_processes(reshard_transfer t, rs_binding *binding) {
  reshard_comm comm = t->comm;
  const rs_device_processes *processes = comm->device->processes;
  rs_offers *offers;
  const rs_offer mine = {comm->rank, t->plan, &binding->arrays, NULL};
  bool first = t->streams.used && t->streams.meeting == NULL;
  reshard_status status = RESHARD_SUCCESS;
  if (first)
    status =
        processes->create(comm->device, comm->size, 0, &comm->waits.meetings, &t->streams.meeting, &t->streams.words);
  status = rs_offers_exchange(comm, status, t->plan, &binding->arrays, &binding->sources,
                              t->streams.used ? &t->streams.words : NULL, &offers);
  rs_transfer_unbind_freed(comm, t); /* others may have told of it before they failed */
  RS_TRY(status);
  binding->mappings = offers->mappings;
  if (first)
    status = rs_agree(comm, connect_meeting(t, offers->words));
  offers->offer[comm->rank] = &mine;
  if (status == RESHARD_SUCCESS)
    status = rs_agree(comm, t->path->bind(t, binding, offers->offer));
  offers->offer[comm->rank] = NULL;
  rs_offers_free(offers);
  return status;
}

reshard_status rs_transfer_bind_path(reshard_transfer t, rs_binding *binding, const rs_record *all) {
  RS_RANGE("bind", t->plan->info.bytes, t->plan->info.peers, -1, t->plan->nentries);
  binding->of_malloc = is_of_malloc(t, all);
  if (t->path->packs && t->streams.used && t->comm->waits.ended != NULL) /* their meeting guards the programs */
    RS_TRY(t->comm->ops->reserve(t->comm, 0));
  if (!t->path->reads_others)
    return rs_agree(t->comm, t->path->bind(t, binding, NULL));
  if (rs_transfer_reads_processes(t))
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

static reshard_status finish_execute(reshard_transfer t) {
  bool late;
  rs_transfer_finish(t, &late);
  return late ? rs_error(RESHARD_ERROR_TIMEOUT, "the last execute of the transfer has not ended within %lld ms",
                         (long long)t->comm->timeout_ms)
              : RESHARD_SUCCESS;
}

reshard_status reshard_transfer_rebind(reshard_transfer t, const reshard_arrays *arrays) {
  if (t == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_transfer_rebind: transfer is NULL");
  RS_HOLD_CANCEL;
  rs_binding binding = {0};
  if (!rs_transfer_take(t)) /* this rank is in a collective call, and cannot take part in another */
    return rs_error(RESHARD_ERROR_BUSY, "reshard_transfer_rebind: the transfer is executing");
  reshard_status status = finish_execute(t);
  bool idle = status == RESHARD_SUCCESS;
  RS_THEN(status, rs_arrays_bind_on(t->comm, t->plan, arrays, t->path->reads_others, &binding.arrays));
  if (!t->path->reads_others) {
    RS_RANGE("bind", t->plan->info.bytes, t->plan->info.peers, -1, t->plan->nentries);
    RS_THEN(status, t->path->bind(t, &binding, NULL));
  } else {
    RS_CALL(t->comm, t->plan->info.bytes);
    rs_offer offer = {t->comm->rank, t->plan, &binding.arrays, NULL};
    rs_record mine = {.call = RS_RECORD_REBIND, .key = t->key, .offer = &offer, .private_entry = -1, .only = true};
    const rs_record *all;
    RS_THEN(status, rs_transfer_describe(t, &binding, &mine));
    rs_record_set_status(&mine, status);
    status = rs_records_exchange(t->comm, t->plan, &mine, &all);
    RS_THEN(status, rs_transfer_bind_path(t, &binding, all));
  }
  if (status == RESHARD_SUCCESS) {
    rs_binding old = t->binding;
    t->binding = binding;
    binding = old;
  }
  bool of_malloc = binding.of_malloc;
  if (status != RESHARD_SUCCESS && idle && rs_comm_is_stuck(t->comm))
    t->failed = binding; /* the only one: none begins on a GPU that is stuck */
  else
    rs_binding_free(t->comm, t->path, &binding);
  if (of_malloc)
    rs_transfer_await_closed(t->comm, !t->failed.of_malloc);
  rs_transfer_give_back(t);
  return status;
}

reshard_status rs_transfer_rebind_cached(reshard_transfer t, const reshard_arrays *arrays,
                                         const rs_offer *const *offers) {
  rs_binding binding = {0}, old = t->binding;
  reshard_status status = RESHARD_SUCCESS;
  if (arrays != NULL)
    status = rs_arrays_bind_on(t->comm, t->plan, arrays, false, &binding.arrays);
  binding.compiled = old.compiled; /* streams may use these, and the old one's staging: nothing of it is freed here */
  RS_THEN(status, t->path->bind(t, &binding, offers));
  old.compiled = binding.compiled;
  if (status == RESHARD_SUCCESS) {
    t->binding = binding;
    binding = old;
  } else {
    t->binding = old;
  }
  binding.compiled.at = NULL;
  binding.compiled.n = 0;
  rs_binding_free(t->comm, t->path, &binding);
  return status;
}

reshard_status rs_binding_compile(reshard_transfer t, rs_binding *b, const rs_copies *copies, int64_t bytes,
                                  rs_stream_meeting *meeting, rs_program **program) {
  rs_device *device = t->comm->device;
  if (b->ncompiled == b->compiled.n) {
    RS_TRY(rs_vec_reserve(&b->compiled, b->compiled.n + 1));
    b->compiled.at[b->compiled.n++] = NULL;
  }
  rs_program **compiled = &b->compiled.at[b->ncompiled++];
  bool again = t->cached != NULL && !(t->streams.used && t->path->reads_others); /* else by reshard_transfer_rebind */
  RS_TRY((again ? device->work->recompile : device->work->compile)(device, copies, bytes, compiled));
  if (meeting != NULL)
    device->processes->guard(*compiled, meeting);
  *program = *compiled;
  return RESHARD_SUCCESS;
}
