/* Making and rebinding a transfer: every rank checks its own side, then all compare, then all bind. A rank whose own
 * step failed takes part in what is collective with its status, so nobody waits for it. */
#include "exec/packed/collective.h"
#include "plan/rounds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Calls that exchange records: those of different calls are not to be compared. */
enum { CALL_CREATE = 1, CALL_REBIND, CALL_AGREE };

/* Record that ranks exchange and compare: of fixed size, whatever the plan. */
typedef struct record {
  int32_t status, path, call, use;
  rs_proposal collective;
  uint64_t fields[RS_FIELDS];
  uint64_t key;           /* create: rank 0's is taken; rebind: compared */
  const rs_offer *offer;  /* read by ranks of the same process only */
  int64_t entries, value; /* of the plan; of the argument */
  int64_t rounds;         /* that this rank needs at least */
  char argument[48];      /* its name; "": there is none */
  char text[256];         /* of an error, else the library's version */
} record;

/* Plans that differ, or options: the same verdict on every rank, since all look at the same records. */
static reshard_status compare_options(reshard_comm comm, const struct reshard_plan_s *plan, const record *all) {
  static const char *const uses[] = {"auto", "force", "forbid"};
  int64_t n = comm->size;
  for (int f = 0; f < RS_FIELDS; f++)
    for (int64_t r = 1; r < n; r++) {
      if (all[r].fields[f] == all[0].fields[f])
        continue;
      if (f == RS_FIELD_VERSION) /* which may have another way to go on */
        return rs_error(RESHARD_ERROR_MISMATCH, "version of the library %s on rank 0, %s on rank %lld", all[0].text,
                        all[r].text, (long long)r);
      return rs_plans_differ(comm, plan, f, r, all[0].entries, all[r].entries);
    }
  for (int64_t r = 1; r < n; r++)
    if (all[r].path != all[0].path)
      return rs_error(RESHARD_ERROR_MISMATCH, "path %s on rank 0, %s on rank %lld",
                      rs_path_name((reshard_path)all[0].path), rs_path_name((reshard_path)all[r].path), (long long)r);
  for (int64_t r = 1; r < n; r++)
    if (all[r].use != all[0].use)
      return rs_error(RESHARD_ERROR_MISMATCH, "use of collectives %s on rank 0, %s on rank %lld", uses[all[0].use],
                      uses[all[r].use], (long long)r);
  return RESHARD_SUCCESS;
}

/* Compares the records of all ranks; the result is the same on every rank, since all look at the same records. */
static reshard_status compare_records(reshard_comm comm, const struct reshard_plan_s *plan, const record *all) {
  int64_t n = comm->size;
  for (int64_t r = 1; r < n; r++)
    if (all[r].call != all[0].call)
      return rs_comm_error_calls(comm, r);
  for (int64_t r = 1; r < n; r++) /* before the failures that it brings */
    if (all[r].value != all[0].value && strcmp(all[r].argument, all[0].argument) == 0)
      return rs_error(RESHARD_ERROR_MISMATCH, "%s %lld on rank 0, %lld on rank %lld", all[0].argument,
                      (long long)all[0].value, (long long)all[r].value, (long long)r);
  for (int64_t r = 0; r < n; r++)
    if (all[r].status != RESHARD_SUCCESS)
      return rs_error((reshard_status)all[r].status, "rank %lld: %s", (long long)r, all[r].text);
  if (all[0].call == CALL_CREATE)
    RS_TRY(compare_options(comm, plan, all));
  for (int64_t r = 1; r < n && all[0].call == CALL_REBIND; r++)
    if (all[r].key != all[0].key)
      return rs_error(RESHARD_ERROR_MISMATCH, "ranks 0 and %lld rebind different transfers", (long long)r);
  return RESHARD_SUCCESS;
}

static void set_status(record *mine, reshard_status status) {
  mine->status = (int32_t)status;
  if (status != RESHARD_SUCCESS)
    snprintf(mine->text, sizeof mine->text, "%s", reshard_last_error());
}

/* Everybody's record, compared; plan: of a create. Where plans differ the ranks exchange more to name the tensor, and
 * *all is no more. */
static reshard_status exchange_records(reshard_comm comm, const struct reshard_plan_s *plan, const record *mine,
                                       const record **all) {
  _Static_assert(sizeof(record) <= RS_COMM_RECORD, "a record fits the communicator's buffer");
  const void *gathered;
  RS_TRY(rs_comm_allgather(comm, mine, sizeof *mine, &gathered));
  *all = gathered;
  return compare_records(comm, plan, *all);
}

static const rs_proposal *proposal_of(const void *all, int64_t rank) { return &((const record *)all)[rank].collective; }

reshard_status rs_agree_on(reshard_comm comm, reshard_status status, const rs_argument *argument) {
  record mine = {.call = CALL_AGREE};
  const record *all;
  set_status(&mine, status);
  if (argument != NULL) {
    mine.value = argument->value;
    snprintf(mine.argument, sizeof mine.argument, "%s", argument->name);
  }
  return exchange_records(comm, NULL, &mine, &all);
}

reshard_status rs_agree(reshard_comm comm, reshard_status status) { return rs_agree_on(comm, status, NULL); }

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
  if ((int)options->path < RESHARD_PATH_AUTO || options->path > RESHARD_PATH_PACKED)
    return rs_error(RESHARD_ERROR_INVALID, "unknown path %d", (int)options->path);
  if ((int)options->collective < RESHARD_COLLECTIVE_USE_AUTO || options->collective > RESHARD_COLLECTIVE_USE_FORBID)
    return rs_error(RESHARD_ERROR_INVALID, "unknown use of collectives %d", (int)options->collective);
  t->path = rs_path_find(t->comm, options->path);
  if (t->path == NULL)
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "the direct path needs a communicator whose ranks reach each other's memory, "
                    "and this one (%s, on %s) does not",
                    t->comm->ops->name, t->comm->device->name);
  t->user_workspace = options->workspace;
  t->user_workspace_bytes = options->workspace_bytes;
  t->use = options->collective;
  return RESHARD_SUCCESS;
}

/* Makes the streams and events of executing on a device with streams. */
static reshard_status make_streams(struct reshard_transfer_s *t) {
  reshard_comm comm = t->comm;
  const rs_lane_needs needs = {.ranks = comm->locals > 1,
                               .rounds = t->path->packs && t->plan->limit > 0,
                               .packed = t->path->packs,
                               .lanes = comm->lanes,
                               .number = comm->lane};
  t->on_streams = comm->device->streams->asynchronous;
  if (!t->on_streams)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc_zero((void *)&t->lanes, comm->lanes, sizeof *t->lanes));
  RS_TRY(rs_gate_create(comm, &t->gate));
  return comm->lane_rank == 0 ? rs_lane_create(comm->device, &needs, &t->lane) : RESHARD_SUCCESS;
}

/* All that a rank can check and make on its own. */
static reshard_status check_and_allocate(reshard_comm comm, reshard_plan plan, const reshard_arrays *arrays,
                                         const reshard_transfer_options *options, struct reshard_transfer_s **out,
                                         rs_binding *binding) {
  if (plan == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_transfer_create: plan is NULL");
  if (plan->nentries > 0 && plan->world != comm->size)
    return rs_error(RESHARD_ERROR_INVALID, "a plan for a world of %lld ranks on a communicator of %lld",
                    (long long)plan->world, (long long)comm->size);
  if (plan->rank != comm->rank)
    return rs_error(RESHARD_ERROR_INVALID, "the plan of rank %lld on the communicator's rank %lld",
                    (long long)plan->rank, (long long)comm->rank);
  struct reshard_transfer_s *t;
  RS_TRY(rs_alloc_zero(&t, 1, sizeof *t));
  *out = t;
  t->plan = plan;
  t->comm = comm;
  atomic_flag_clear(&t->busy);
  RS_TRY(read_options(t, options));
  RS_TRY(rs_alloc_zero(&t->ranks, comm->locals, sizeof *t->ranks));
  RS_TRY(rs_alloc_zero(&t->programs, comm->locals, sizeof *t->programs));
  RS_TRY(rs_alloc_zero(&t->turns, comm->locals, sizeof *t->turns));
  RS_TRY(rs_alloc_zero(&t->cursor, comm->locals, sizeof *t->cursor));
  RS_TRY(make_streams(t));
  return rs_arrays_bind(plan, arrays, &binding->arrays);
}

/* Rounds that this rank needs at least for these arrays. */
static reshard_status find_rounds(reshard_transfer t, const rs_arrays *arrays, int64_t *rounds) {
  bool *in_place;
  RS_TRY(rs_alloc(&in_place, 2 * t->plan->peers.n, sizeof *in_place));
  rs_plan_find_in_place(t->plan, arrays->src_strides, arrays->dst_strides, in_place);
  *rounds = rs_plan_least_rounds(t->plan, t->comm->staged ? NULL : in_place);
  free(in_place);
  return RESHARD_SUCCESS;
}

/* Rounds of all ranks: of sends and receives as many as any of them needs. */
static int64_t agreed_rounds(const struct reshard_transfer_s *t, const record *all) {
  int64_t rounds = t->collective.kind != RESHARD_COLLECTIVE_NONE;
  for (int64_t r = 0; r < t->comm->size && t->collective.kind == RESHARD_COLLECTIVE_NONE; r++)
    rounds = rs_max(rounds, all[r].rounds);
  return rounds;
}

/* Binds on all ranks or on none. */
static reshard_status bind_path(reshard_transfer t, rs_binding *binding, const record *all) {
  RS_RANGE("bind", t->plan->info.bytes, t->plan->info.peers, -1, t->plan->nentries);
  if (!t->path->reads_others)
    return rs_agree(t->comm, t->path->bind(t, binding, NULL));
  const rs_offer **offers;
  reshard_status memory = rs_alloc(&offers, t->comm->size, sizeof *offers);
  for (int64_t r = 0; memory == RESHARD_SUCCESS && r < t->comm->size; r++)
    offers[r] = all[r].offer;
  reshard_status status = rs_agree(t->comm, memory);
  RS_THEN(status, t->path->bind(t, binding, offers));
  free(offers);
  return status;
}

reshard_status reshard_transfer_create(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays,
                                       const reshard_transfer_options *options, reshard_transfer *transfer) {
  if (comm == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_transfer_create: comm is NULL");
  RS_CALL_OF(comm, __func__, plan != NULL ? plan->info.bytes : 0, plan != NULL ? plan->info.peers : -1,
             plan != NULL ? plan->nentries : -1);
  struct reshard_transfer_s *t = NULL;
  rs_binding binding = {0};
  record mine = {.call = CALL_CREATE};
  if (transfer == NULL)
    set_status(&mine, rs_error(RESHARD_ERROR_INVALID, "reshard_transfer_create: transfer is NULL"));
  else
    set_status(&mine, check_and_allocate(comm, plan, arrays, options, &t, &binding));
  if (mine.status == RESHARD_SUCCESS && t->path->packs)
    set_status(&mine, find_rounds(t, &binding.arrays, &mine.rounds));
  rs_offer offer = {plan, &binding.arrays};
  if (mine.status == RESHARD_SUCCESS) {
    memcpy(mine.fields, plan->fields, sizeof mine.fields);
    mine.entries = plan->nentries;
    snprintf(mine.text, sizeof mine.text, "%s", RESHARD_VERSION_STRING);
    mine.path = (int32_t)t->path->number;
    mine.use = (int32_t)t->use;
    rs_collective_propose(t, &binding.arrays, &mine.collective);
    uint64_t name[2] = {(uint64_t)(uintptr_t)comm, (uint64_t)++comm->made};
    mine.key = rs_hash(0, name, sizeof name); /* an address alone could be an earlier transfer's */
    mine.offer = &offer;
  }
  const record *all;
  reshard_status status;
  RS_TRY_GOTO(status, exchange_records(comm, plan, &mine, &all), fail);
  t->key = all[0].key;
  RS_TRY_GOTO(status, rs_collective_decide(t, proposal_of, all), fail);
  t->rounds = agreed_rounds(t, all);
  RS_TRY_GOTO(status, bind_path(t, &binding, all), fail);
  t->binding = binding;
  if (t->path->prepare != NULL)
    RS_TRY_GOTO(status, t->path->prepare(t), bound);
  *transfer = t;
  return RESHARD_SUCCESS;
bound:
  binding = t->binding;
fail:
  free_binding(comm, t != NULL ? t->path : NULL, &binding);
  if (t != NULL)
    t->binding = (rs_binding){0};
  reshard_transfer_destroy(t);
  return status;
}

/* Waits for what streams have still to do with the binding. A peer's GPU may read this rank's staging. A device that
 * cannot be waited for twice is lost. */
static void finish_streams(reshard_transfer t) {
  for (int64_t g = 0; t->used && g < t->comm->lanes; g++) {
    rs_device *device = t->comm->lane_devices[g];
    if (device->streams->finish(device) != RESHARD_SUCCESS)
      (void)device->streams->finish(device);
  }
  t->used = false;
}

reshard_status reshard_transfer_rebind(reshard_transfer t, const reshard_arrays *arrays) {
  if (t == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_transfer_rebind: transfer is NULL");
  rs_binding binding = {0};
  if (atomic_flag_test_and_set(&t->busy)) /* this rank is in a collective call, and cannot take part in another */
    return rs_error(RESHARD_ERROR_BUSY, "reshard_transfer_rebind: the transfer is executing");
  reshard_status status = rs_arrays_bind(t->plan, arrays, &binding.arrays);
  if (!t->path->reads_others) {
    RS_RANGE("bind", t->plan->info.bytes, t->plan->info.peers, -1, t->plan->nentries);
    RS_THEN(status, t->path->bind(t, &binding, NULL));
  } else {
    RS_CALL(t->comm, t->plan->info.bytes);
    rs_offer offer = {t->plan, &binding.arrays};
    record mine = {.call = CALL_REBIND, .key = t->key, .offer = &offer};
    const record *all;
    set_status(&mine, status);
    status = exchange_records(t->comm, NULL, &mine, &all);
    RS_THEN(status, bind_path(t, &binding, all));
  }
  if (status == RESHARD_SUCCESS) {
    finish_streams(t);
    rs_binding old = t->binding;
    t->binding = binding;
    binding = old;
  }
  free_binding(t->comm, t->path, &binding);
  atomic_flag_clear(&t->busy);
  return status;
}

void reshard_transfer_destroy(reshard_transfer t) {
  if (t == NULL)
    return;
  finish_streams(t);
  free_binding(t->comm, t->path, &t->binding);
  rs_gate_destroy(&t->gate);
  rs_lane_destroy(&t->lane);
  free(t->lanes);
  free(t->ranks);
  free(t->programs);
  free(t->turns);
  free(t->cursor);
  free(t);
}

reshard_status reshard_transfer_get_info(reshard_transfer transfer, reshard_transfer_info *info) {
  RS_TRY(RS_GIVEN("reshard_transfer_get_info", transfer, info));
  *info = transfer->binding.info;
  info->collective = transfer->collective.kind;
  info->collective_why = transfer->why;
  return RESHARD_SUCCESS;
}
