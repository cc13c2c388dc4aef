/* Binding a transfer to arrays, when it is made and later. */
#include "exec/transfer/steps.h"

#include <stdlib.h>

reshard_status rs_transfer_describe(rs_bind_call *c) {
  reshard_transfer t = c->t;
  const rs_arrays *arrays = &c->binding->arrays;
  c->record.private_entry = t->path->reads_others && arrays->has_private ? arrays->private_entry : -1;
  if (!rs_transfer_reads_processes(t))
    return RESHARD_SUCCESS;
  c->record.malloced = rs_transfer_reads_malloc(t);
  RS_TRY(rs_sources_describe(t->comm->device, t->plan, arrays, c->record.malloced, &c->binding->sources));
  c->record.private_entry = c->binding->sources.private_entry;
  c->record.of_malloc = c->binding->sources.of_malloc;
  return RESHARD_SUCCESS;
}

static bool is_of_malloc(const struct reshard_transfer_s *t, const rs_record *all) {
  bool any = false;
  for (int64_t r = 0; r < t->comm->size; r++)
    any |= all[r].of_malloc != 0;
  return any;
}

/* Local: takes the flags of the peers, by whose execute a rank's stream waits for theirs. */
static reshard_status connect_barrier(reshard_transfer t, void *const *flags) {
  const rs_partners partners = rs_transfer_partners(t);
  int64_t *peers, n = 0;
  void **theirs = NULL;
  RS_TRY(rs_alloc(&peers, partners.n, sizeof *peers));
  reshard_status status = rs_alloc((void *)&theirs, partners.n, sizeof *theirs);
  for (int64_t i = 0; status == RESHARD_SUCCESS && i < partners.n; i++) {
    int64_t rank = partners.at[i].rank;
    if (t->comm->memory.imports[rank] == NULL)
      continue;
    peers[n] = rank;
    theirs[n++] = flags[rank];
  }
  const rs_stream_barrier_terms terms = {.rank = t->comm->rank,
                                         .npeers = n,
                                         .peers = peers,
                                         .flags = theirs,
                                         .ended = t->comm->waits.ended,
                                         .late = t->comm->waits.late,
                                         .timeout_ms = t->comm->timeout_ms};
  RS_THEN(status, t->comm->device->processes->connect(t->comm->device, t->streams.barrier, &terms));
  free(theirs);
  free(peers);
  return status;
}

/* Binds where ranks are processes, each of which maps the others' sources. Those with GPUs make their barrier with it,
 * once. */
static reshard_status bind_processes(reshard_transfer t, rs_binding *binding) {
  reshard_comm comm = t->comm;
  const rs_device_processes *processes = comm->device->processes;
  rs_descriptors *descriptors;
  const rs_descriptor mine = {comm->rank, t->plan, &binding->arrays, NULL};
  bool first = t->streams.used && t->streams.barrier == NULL;
  reshard_status status = RESHARD_SUCCESS;
  if (first)
    status =
        processes->create(comm->device, comm->size, 0, &comm->waits.barriers, &t->streams.barrier, &t->streams.flags);
  status = rs_descriptors_exchange(comm, status, t->plan, rs_transfer_partners(t), &binding->arrays, &binding->sources,
                                   t->streams.used ? &t->streams.flags : NULL, &descriptors);
  rs_transfer_unbind_freed(comm, t); /* others may have told of it before they failed */
  RS_TRY(status);
  binding->mappings = descriptors->mappings;
  if (first)
    status = rs_agree(comm, connect_barrier(t, descriptors->flags));
  descriptors->descriptor[comm->rank] = &mine;
  RS_THEN(status, rs_agree(comm, t->path->bind(t, binding, descriptors->descriptor)));
  descriptors->descriptor[comm->rank] = NULL;
  rs_descriptors_free(descriptors);
  return status;
}

/* --- The ranks for which a thread acts ---------------------------------------------------------------------------- */

reshard_status rs_bind_lists_create(const char *name, int64_t n, rs_bind_lists *lists) {
  *lists = (rs_bind_lists){.name = name, .calls.n = n};
  RS_TRY(rs_alloc_zero(&lists->call, n, sizeof *lists->call));
  RS_TRY(rs_alloc_zero((void *)&lists->rank, n, sizeof *lists->rank));
  lists->calls.rank = lists->rank;
  return rs_alloc_zero(&lists->calls.records, n, sizeof *lists->calls.records);
}

reshard_status rs_bind_lists_add(rs_bind_lists *lists, const char *what, int64_t i, reshard_comm first,
                                 reshard_comm comm) {
  int64_t place = 0;
  RS_TRY(rs_place_of_rank(lists->name, what, lists->calls.n, i, first, comm, &place));
  if (lists->rank[place] != NULL)
    return rs_error_twice(lists->name, what, i, place);
  lists->rank[place] = &lists->call[i];
  if (place == 0)
    lists->calls.comm = comm;
  return RESHARD_SUCCESS;
}

void rs_bind_lists_free(rs_bind_lists *lists) {
  free(lists->calls.records);
  free((void *)lists->rank);
  free(lists->call);
}

reshard_status rs_bind_calls_failed(int64_t n, rs_bind_call *const *c) {
  for (int64_t i = 0; i < n; i++)
    if (c[i]->failed.status != RESHARD_SUCCESS)
      return rs_error(c[i]->failed.status, "rank %lld: %s", (long long)c[i]->t->comm->rank, c[i]->failed.text);
  return RESHARD_SUCCESS;
}

reshard_status rs_bind_calls_combine(const rs_bind_calls *c, reshard_status (*run)(int64_t n, void **all)) {
  return c->n == 1 ? rs_comm_combine(c->comm, run, c->rank[0]) : run(c->n, (void **)c->rank);
}

reshard_status rs_bind_calls_exchange(const rs_bind_calls *c, const rs_record **all) {
  if (c->n == 1)
    return rs_records_exchange(c->comm, c->rank[0]->descriptor.plan, &c->rank[0]->record, all);
  RS_TRY(rs_comm_alive(c->comm));
  for (int64_t i = 0; i < c->n; i++)
    c->records[i] = c->rank[i]->record;
  *all = c->records;
  return rs_records_compare(c->comm, c->records);
}

/* No destination of a rank shares a byte with what another rank of this thread has; of one rank that was checked. */
static reshard_status check_ranks(const rs_bind_calls *c) {
  rs_extents all = {0};
  reshard_status status = RESHARD_SUCCESS;
  if (c->n == 1)
    return RESHARD_SUCCESS;
  for (int64_t i = 0; i < c->n; i++)
    RS_THEN(status, rs_arrays_add(c->rank[i]->t->plan, &c->rank[i]->binding->arrays, &all));
  RS_THEN(status, rs_check_overlap(&all));
  free(all.at);
  return status;
}

reshard_status rs_bind_calls_bind(const rs_bind_calls *c, const rs_record *all) {
  reshard_transfer t = c->rank[0]->t;
  RS_TRY(check_ranks(c));
  RS_RANGE("bind", t->plan->info.bytes, t->plan->info.peers, -1, t->plan->nentries);
  for (int64_t i = 0; i < c->n; i++)
    c->rank[i]->binding->of_malloc = is_of_malloc(t, all);
  if (t->path->packs && t->streams.used && t->comm->waits.ended != NULL) /* their barrier guards the programs */
    RS_TRY(rs_comm_reserve(t->comm, 0));
  if (rs_transfer_reads_processes(t))
    return bind_processes(t, c->rank[0]->binding);
  const rs_descriptor **descriptors = NULL;
  reshard_status status =
      t->path->reads_others ? rs_alloc(&descriptors, t->comm->size, sizeof *descriptors) : RESHARD_SUCCESS;
  for (int64_t r = 0; descriptors != NULL && r < t->comm->size; r++)
    descriptors[r] = all[r].descriptor;
  for (int64_t i = 0; i < c->n; i++)
    rs_error_save(&c->rank[i]->failed,
                  status != RESHARD_SUCCESS ? status : t->path->bind(c->rank[i]->t, c->rank[i]->binding, descriptors));
  if (t->path->compile != NULL && t->comm->locals > 1)
    status = rs_bind_calls_combine(c, t->path->compile);
  else
    status = c->n == 1 ? rs_agree(c->comm, c->rank[0]->failed.status) : rs_bind_calls_failed(c->n, c->rank);
  for (int64_t i = 0; i < c->n; i++)
    rs_copies_free(&c->rank[i]->binding->listed);
  free(descriptors);
  return status;
}

/* --- Binding anew ------------------------------------------------------------------------------------------------- */

static reshard_status finish_execute(reshard_transfer t) {
  bool late;
  rs_transfer_finish(t, &late);
  return late ? rs_error(RESHARD_ERROR_TIMEOUT, "the last execute of the transfer has not ended within %lld ms",
                         (long long)t->comm->timeout_ms)
              : RESHARD_SUCCESS;
}

/* All that a rank does alone. */
static void prepare_rebind(rs_bind_call *c, reshard_transfer t, const reshard_arrays *arrays) {
  c->t = t;
  c->binding = &c->made;
  c->descriptor = (rs_descriptor){t->comm->rank, t->plan, &c->made.arrays, NULL};
  c->record = (rs_record){
      .call = RS_RECORD_REBIND, .key = t->key, .descriptor = &c->descriptor, .private_entry = -1, .only = true};
  reshard_status status = finish_execute(t);
  c->idle = status == RESHARD_SUCCESS;
  RS_THEN(status, rs_arrays_bind_on(t->comm, t->plan, arrays, t->path->reads_others, &c->made.arrays));
  RS_THEN(status, rs_transfer_describe(c));
  rs_record_set_status(&c->record, status);
  rs_error_save(&c->failed, status);
}

static reshard_status bind_alone(const rs_bind_calls *calls) {
  const struct reshard_plan_s *plan = calls->rank[0]->t->plan;
  RS_RANGE("bind", plan->info.bytes, plan->info.peers, -1, plan->nentries);
  if (calls->n > 1) {
    RS_TRY(rs_bind_calls_failed(calls->n, calls->rank));
    RS_TRY(check_ranks(calls));
  }
  for (int64_t i = 0; i < calls->n; i++) {
    rs_bind_call *c = calls->rank[i];
    if (c->failed.status == RESHARD_SUCCESS)
      rs_error_save(&c->failed, c->t->path->bind(c->t, c->binding, NULL));
  }
  return calls->n == 1 ? calls->rank[0]->failed.status : rs_bind_calls_failed(calls->n, calls->rank);
}

/* One call of every rank. */
static reshard_status bind_with_others(const rs_bind_calls *calls, const char *name) {
  int64_t bytes = calls->rank[0]->t->plan->info.bytes;
  const rs_record *all;
  RS_RANGE(name, bytes, -1, -1, -1);
  for (int64_t i = 0; i < calls->n; i++)
    calls->rank[i]->scope = rs_call_enter(calls->rank[i]->t->comm, name, bytes);
  reshard_status status = rs_bind_calls_exchange(calls, &all);
  RS_THEN(status, rs_bind_calls_bind(calls, all));
  for (int64_t i = 0; i < calls->n; i++)
    rs_call_leave(&calls->rank[i]->scope);
  return status;
}

/* Puts the new binding in place of the old one, or frees it. */
static void end_rebind(rs_bind_call *c, reshard_status status) {
  reshard_transfer t = c->t;
  if (status == RESHARD_SUCCESS) {
    rs_binding old = t->binding;
    t->binding = c->made;
    c->made = old;
  }
  bool of_malloc = c->made.of_malloc;
  if (status != RESHARD_SUCCESS && c->idle && rs_comm_is_stuck(t->comm))
    t->failed = c->made; /* the only one: none begins on a GPU that is stuck */
  else
    rs_binding_free(t->comm, t->path, &c->made);
  if (of_malloc)
    rs_transfer_await_closed(t->comm, !t->failed.of_malloc);
}

/* Collective where ranks read each other's sources; else each rank binds alone. */
static reshard_status rebind_calls(const rs_bind_calls *calls, const char *name) {
  bool others = calls->rank[0]->t->path->reads_others;
  reshard_status status = others ? bind_with_others(calls, name) : bind_alone(calls);
  for (int64_t i = 0; i < calls->n; i++)
    end_rebind(calls->rank[i], status);
  return status;
}

reshard_status reshard_transfer_rebind(reshard_transfer t, const reshard_arrays *arrays) {
  if (t == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_transfer_rebind: transfer is NULL");
  RS_HOLD_CANCEL;
  rs_bind_call mine = {0}, *rank = &mine;
  if (!rs_transfer_take(t)) /* this rank is in a collective call, and cannot take part in another */
    return rs_error(RESHARD_ERROR_BUSY, "reshard_transfer_rebind: the transfer is executing");
  prepare_rebind(&mine, t, arrays);
  reshard_status status = rebind_calls(&(rs_bind_calls){1, t->comm, &rank, NULL}, "reshard_transfer_rebind");
  rs_transfer_give_back(t);
  return status;
}

reshard_status reshard_transfer_rebind_all(int64_t n, const reshard_transfer *transfers,
                                           const reshard_arrays *const *arrays) {
  static const char name[] = "reshard_transfer_rebind_all";
  if (n == 1 && transfers != NULL && transfers[0] != NULL && transfers[0]->comm->locals == 1)
    return reshard_transfer_rebind(transfers[0], arrays != NULL ? arrays[0] : NULL);
  RS_HOLD_CANCEL;
  RS_TRY(rs_transfers_take(name, n, transfers));
  rs_bind_lists lists;
  reshard_status status = rs_bind_lists_create(name, n, &lists);
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++)
    status = rs_bind_lists_add(&lists, "transfer", i, transfers[0]->comm, transfers[i]->comm);
  for (int64_t i = 1; i < n && status == RESHARD_SUCCESS; i++)
    if (transfers[i]->key != transfers[0]->key) /* they may be on different paths, too */
      status = rs_error(RESHARD_ERROR_MISMATCH, "%s: transfers 0 and %lld are different ones, of ranks %lld and %lld",
                        name, (long long)i, (long long)transfers[0]->comm->rank, (long long)transfers[i]->comm->rank);
  if (status == RESHARD_SUCCESS) {
    for (int64_t i = 0; i < n; i++)
      prepare_rebind(&lists.call[i], transfers[i], arrays != NULL ? arrays[i] : NULL);
    status = rebind_calls(&lists.calls, name);
  }
  rs_bind_lists_free(&lists);
  rs_transfers_give_back(n, transfers);
  return status;
}

reshard_status rs_transfer_rebind_cached(reshard_transfer t, const reshard_arrays *arrays,
                                         const rs_descriptor *const *descriptors) {
  rs_binding binding = {0}, old = t->binding;
  reshard_status status = RESHARD_SUCCESS;
  if (arrays != NULL)
    status = rs_arrays_bind_on(t->comm, t->plan, arrays, false, &binding.arrays);
  binding.compiled = old.compiled; /* streams may use these, and the old one's staging: nothing of it is freed here */
  RS_THEN(status, t->path->bind(t, &binding, descriptors));
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
                                  rs_stream_barrier *barrier, rs_program **program) {
  rs_device *device = t->comm->device;
  if (b->ncompiled == b->compiled.n)
    RS_TRY(rs_vec_push(&b->compiled, NULL));
  rs_program **compiled = &b->compiled.at[b->ncompiled++];
  bool again = t->cached != NULL && !(t->streams.used && t->path->reads_others); /* else by reshard_transfer_rebind */
  RS_TRY((again ? device->work->recompile : device->work->compile)(device, copies, bytes, compiled));
  if (barrier != NULL)
    device->processes->guard(*compiled, barrier);
  *program = *compiled;
  return RESHARD_SUCCESS;
}
