/* Making and rebinding a transfer: every rank checks its own side, then all compare, then all bind. A rank whose own
 * step failed takes part in what is collective with its status, so nobody waits for it. */
#include "exec/collective.h"

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
  char argument[48];      /* its name; "": there is none */
  char text[256];         /* of an error, else the library's version */
} record;

/* Plans that differ, or options: the same verdict on every rank, since all look at the same records. */
static reshard_status compare_options(reshard_comm comm, const struct reshard_plan_s *plan, const record *all) {
  static const char *const paths[] = {"auto", "direct", "packed"}, *const uses[] = {"auto", "force", "forbid"};
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
      return rs_error(RESHARD_ERROR_MISMATCH, "path %s on rank 0, %s on rank %lld", paths[all[0].path],
                      paths[all[r].path], (long long)r);
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
      return rs_error(RESHARD_ERROR_MISMATCH, "ranks 0 and %lld make different collective calls at once", (long long)r);
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
  RS_TRY(comm->ops->allgather(comm, mine, sizeof *mine, &gathered));
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

static void free_rounds(rs_device *device, rs_binding *b) {
  for (int64_t i = 0; i < b->nrounds; i++) {
    rs_round *r = &b->rounds[i];
    for (int64_t p = 0; p < r->nsends; p++)
      device->ops->release(device, r->sends[p].program);
    for (int64_t p = 0; p < r->nreceives; p++)
      device->ops->release(device, r->receives[p].program);
    device->ops->release(device, r->pack);
    device->ops->release(device, r->unpack);
    free(r->sends);
    free(r->receives);
    free(r->send_slots);
    free(r->receive_slots);
  }
  free(b->rounds);
  free(b->sent);
  free(b->received);
}

void rs_binding_free(reshard_comm comm, rs_binding *b) {
  rs_device *device = comm->device;
  rs_shared_drop(b->direct);
  device->ops->release(device, b->keep);
  free_rounds(device, b);
  device->ops->free(device, b->workspace);
  rs_arrays_free(&b->arrays);
  *b = (rs_binding){0};
}

static reshard_status read_options(struct reshard_transfer_s *t, const reshard_transfer_options *options) {
  const reshard_transfer_options defaults = {RESHARD_TRANSFER_OPTIONS_INIT, .path = RESHARD_PATH_AUTO};
  if (options == NULL)
    options = &defaults;
  if (options->size != sizeof *options)
    return rs_error(RESHARD_ERROR_INVALID, "size field %zu, this library's reshard_transfer_options has %zu",
                    options->size, sizeof *options);
  if ((int)options->path < RESHARD_PATH_AUTO || options->path > RESHARD_PATH_PACKED)
    return rs_error(RESHARD_ERROR_INVALID, "unknown path %d", (int)options->path);
  if ((int)options->collective < RESHARD_COLLECTIVE_AUTO || options->collective > RESHARD_COLLECTIVE_FORBID)
    return rs_error(RESHARD_ERROR_INVALID, "unknown use of collectives %d", (int)options->collective);
  bool reach = t->comm->direct;
  if (options->path == RESHARD_PATH_DIRECT && !reach)
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "the direct path needs a communicator whose ranks reach each other's memory, "
                    "and this one (%s, on %s) does not",
                    t->comm->ops->name, t->comm->device->ops->name);
  t->path = options->path != RESHARD_PATH_AUTO ? options->path : reach ? RESHARD_PATH_DIRECT : RESHARD_PATH_PACKED;
  t->user_workspace = options->workspace;
  t->user_workspace_bytes = options->workspace_bytes;
  t->use = options->collective;
  return RESHARD_SUCCESS;
}

/* Makes the streams and events of executing on a device with streams. */
static reshard_status make_streams(struct reshard_transfer_s *t) {
  reshard_comm comm = t->comm;
  const rs_lane_needs needs = {.ranks = comm->locals > 1,
                               .rounds = t->path == RESHARD_PATH_PACKED && t->plan->piece > 0,
                               .packed = t->path == RESHARD_PATH_PACKED,
                               .lanes = comm->lanes,
                               .number = comm->lane};
  if (!comm->device->ops->streams)
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

/* The leader's part of a packed transfer: room for the receives that one exchange can bring. */
static reshard_status reserve_exchange(int64_t n, void **all) {
  int64_t most = 0;
  for (int64_t i = 0; i < n; i++) {
    const rs_binding *b = &((reshard_transfer)all[i])->binding;
    int64_t mine = 0;
    for (int64_t r = 0; r < b->nrounds; r++)
      mine = rs_max(mine, rs_max(b->rounds[r].nsends, b->rounds[r].nreceives));
    most += mine;
  }
  reshard_comm comm = ((reshard_transfer)all[0])->comm;
  return comm->ops->reserve(comm, most);
}

/* Connections to the peers: every rank has bound its arrays. */
static reshard_status connect_peers(reshard_transfer t) {
  const struct reshard_plan_s *plan = t->plan;
  int64_t *sends = NULL, *receives = NULL, nsends = 0, nreceives = 0;
  reshard_status status = rs_alloc(&sends, plan->peers.n, sizeof *sends);
  if (status == RESHARD_SUCCESS)
    status = rs_alloc(&receives, plan->peers.n, sizeof *receives);
  for (int64_t i = 0; i < plan->peers.n && status == RESHARD_SUCCESS; i++) {
    if (plan->peers.at[i].sent > 0)
      sends[nsends++] = plan->peers.at[i].rank;
    if (plan->peers.at[i].received > 0)
      receives[nreceives++] = plan->peers.at[i].rank;
  }
  status = rs_agree(t->comm, status);
  if (status == RESHARD_SUCCESS)
    status = rs_agree(t->comm, t->comm->ops->connect(t->comm, nsends, sends, nreceives, receives, t->collective.kind,
                                                     t->collective.root));
  free(sends);
  free(receives);
  return status;
}

/* Prepares the communicator for the exchanges of a packed transfer, on all ranks or on none. */
static reshard_status prepare_exchange(reshard_transfer t) {
  reshard_comm comm = t->comm;
  reshard_status status = comm->ops->together(comm, reserve_exchange, t);
  if (comm->locals < comm->size) /* ranks that do not meet may fail one by one */
    status = rs_agree(comm, status);
  return status == RESHARD_SUCCESS && comm->ops->connect != NULL ? connect_peers(t) : status;
}

static reshard_status bind_path(reshard_transfer t, rs_binding *binding, const record *all) {
  if (t->path == RESHARD_PATH_PACKED)
    return rs_agree(t->comm, rs_bind_packed(t, binding));
  const rs_offer **offers;
  reshard_status memory = rs_alloc(&offers, t->comm->size, sizeof *offers);
  for (int64_t r = 0; memory == RESHARD_SUCCESS && r < t->comm->size; r++)
    offers[r] = all[r].offer;
  reshard_status status = rs_agree(t->comm, memory);
  if (status == RESHARD_SUCCESS)
    status = rs_bind_direct(t, binding, offers);
  free(offers);
  return status;
}

reshard_status reshard_transfer_create(reshard_plan plan, reshard_comm comm, const reshard_arrays *arrays,
                                       const reshard_transfer_options *options, reshard_transfer *transfer) {
  if (comm == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_transfer_create: comm is NULL");
  struct reshard_transfer_s *t = NULL;
  rs_binding binding = {0};
  record mine = {.call = CALL_CREATE};
  if (transfer == NULL)
    set_status(&mine, rs_error(RESHARD_ERROR_INVALID, "reshard_transfer_create: transfer is NULL"));
  else
    set_status(&mine, check_and_allocate(comm, plan, arrays, options, &t, &binding));
  rs_offer offer = {plan, &binding.arrays};
  if (mine.status == RESHARD_SUCCESS) {
    memcpy(mine.fields, plan->fields, sizeof mine.fields);
    mine.entries = plan->nentries;
    snprintf(mine.text, sizeof mine.text, "%s", RESHARD_VERSION_STRING);
    mine.path = t->path;
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
  RS_TRY_GOTO(status, bind_path(t, &binding, all), fail);
  t->binding = binding;
  if (t->path == RESHARD_PATH_PACKED)
    RS_TRY_GOTO(status, prepare_exchange(t), bound);
  *transfer = t;
  return RESHARD_SUCCESS;
bound:
  binding = t->binding;
fail:
  rs_binding_free(comm, &binding);
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
    if (device->ops->finish(device) != RESHARD_SUCCESS)
      (void)device->ops->finish(device);
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
  if (t->path == RESHARD_PATH_PACKED) {
    if (status == RESHARD_SUCCESS)
      status = rs_bind_packed(t, &binding);
  } else {
    rs_offer offer = {t->plan, &binding.arrays};
    record mine = {.call = CALL_REBIND, .key = t->key, .offer = &offer};
    const record *all;
    set_status(&mine, status);
    status = exchange_records(t->comm, NULL, &mine, &all);
    if (status == RESHARD_SUCCESS)
      status = bind_path(t, &binding, all);
  }
  if (status == RESHARD_SUCCESS) {
    finish_streams(t);
    rs_binding old = t->binding;
    t->binding = binding;
    binding = old;
  }
  rs_binding_free(t->comm, &binding);
  atomic_flag_clear(&t->busy);
  return status;
}

void reshard_transfer_destroy(reshard_transfer t) {
  if (t == NULL)
    return;
  finish_streams(t);
  rs_binding_free(t->comm, &t->binding);
  rs_gate_destroy(&t->gate);
  rs_lane_destroy(&t->lane);
  free(t->lanes);
  free(t->ranks);
  free(t->programs);
  free(t->turns);
  free(t->cursor);
  free(t);
}

reshard_status reshard_transfer_get_info(reshard_transfer t, reshard_transfer_info *info) {
  if (t == NULL || info == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_transfer_get_info: NULL argument");
  *info = t->binding.info;
  info->collective = t->collective.kind;
  info->collective_why = t->why;
  return RESHARD_SUCCESS;
}
