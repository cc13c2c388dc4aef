/* Records that ranks exchange in collective calls of transfers, so that all come to the same verdict. */
#include "exec/record.h"

#include "exec/descriptor.h"

#include <stdio.h>
#include <string.h>

/* Two ranks' records of one call of which one is wrong, whichever that is. */
static bool records_differ(const rs_record *a, const rs_record *b) {
  bool other_value = a->value != b->value && strcmp(a->argument, b->argument) == 0;
  bool other_key = a->call == RS_RECORD_REBIND && a->key != b->key;
  return a->call != b->call || other_value || other_key || memcmp(a->fields, b->fields, sizeof a->fields) != 0 ||
         a->path != b->path || a->use != b->use || a->cached != b->cached;
}

rs_verdict rs_records_judge(int64_t n, const rs_record *all, int64_t *rank) {
  int64_t eager_limit = 0, most = 0, moved = -1, private_rank = -1;
  bool only = false;
  for (*rank = 0; *rank < n; ++*rank)
    if (all[*rank].status != RESHARD_SUCCESS || records_differ(&all[0], &all[*rank]))
      return RS_VERDICT_FAIL;
  for (int64_t r = n - 1; r >= 0; r--) {
    only = only || all[r].only;
    eager_limit = rs_max(eager_limit, all[r].eager_limit);
    most = rs_max(most, all[r].most_bytes);
    moved = all[r].moved ? r : moved;
    private_rank = all[r].private_entry >= 0 ? r : private_rank;
  }
  *rank = private_rank;
  if (private_rank >= 0)
    return only ? RS_VERDICT_FAIL : RS_VERDICT_PACK;
  if (!only &&
      most < eager_limit) /* for mailboxes, which take one meeting, where ranks that read each other take two */
    return RS_VERDICT_PACK;
  *rank = moved;
  return moved >= 0 ? RS_VERDICT_REBIND : RS_VERDICT_RUN;
}

/* Plans that differ, or options. here: this thread has the plans of all ranks. */
static reshard_status error_options(reshard_comm comm, const struct reshard_plan_s *plan, const rs_record *all,
                                    bool here) {
  static const char *const uses[] = {"auto", "force", "forbid"};
  int64_t n = comm->size;
  for (int f = 0; f < RS_FIELDS; f++)
    for (int64_t r = 1; r < n; r++) {
      if (all[r].fields[f] == all[0].fields[f])
        continue;
      if (f == RS_FIELD_VERSION && (all[r].fields[f] == 0 || all[0].fields[f] == 0)) /* one call compares no plan */
        return rs_comm_error_calls(comm, r);
      if (f == RS_FIELD_VERSION) /* which may have another way to go on */
        return rs_error(RESHARD_ERROR_MISMATCH, "version of the library %s on rank 0, %s on rank %lld", all[0].text,
                        all[r].text, (long long)r);
      return here ? rs_plans_here_differ(all[0].descriptor->plan, all[r].descriptor->plan, f, r)
                  : rs_plans_differ(comm, plan, f, r, all[0].entries, all[r].entries);
    }
  for (int64_t r = 1; r < n; r++)
    if (all[r].path != all[0].path)
      return rs_error(RESHARD_ERROR_MISMATCH, "path %s on rank 0, %s on rank %lld",
                      reshard_path_string((reshard_path)all[0].path), reshard_path_string((reshard_path)all[r].path),
                      (long long)r);
  for (int64_t r = 1; r < n; r++)
    if (all[r].use != all[0].use)
      return rs_error(RESHARD_ERROR_MISMATCH, "use of collectives %s on rank 0, %s on rank %lld", uses[all[0].use],
                      uses[all[r].use], (long long)r);
  for (int64_t r = 1; r < n; r++)
    if (all[r].cached != all[0].cached)
      return rs_error(RESHARD_ERROR_MISMATCH, "rank %lld has a cached transfer for this call, rank %lld has none",
                      all[0].cached ? 0LL : (long long)r, all[0].cached ? (long long)r : 0LL);
  return RESHARD_SUCCESS;
}

/* A rank has a source that others cannot map, where no other path will do. of_malloc: they map memory of cudaMalloc. */
static reshard_status error_private(reshard_comm comm, const struct reshard_plan_s *plan, int64_t rank, int64_t entry,
                                    bool of_malloc) {
  if (comm->device->processes != NULL && !comm->memory.direct)
    return rs_error(
        RESHARD_ERROR_UNSUPPORTED,
        "a %s communicator over GPUs reads storage of devices made with `shared`%s, and rank %lld has a source of "
        "entry %lld '%.64s' elsewhere: %s",
        comm->ops->name, of_malloc ? " and memory of cudaMalloc" : "", (long long)rank, (long long)entry,
        plan->entries[entry].name,
        of_malloc ? "of a memory pool, of cuMemMap, or not of its GPU"
                  : "of cudaMalloc, of a memory pool, of cuMemMap, or not of its GPU");
  return rs_error(RESHARD_ERROR_UNSUPPORTED,
                  "the %s path of a %s communicator reads %s, and rank %lld has a source of entry %lld '%.64s' "
                  "elsewhere",
                  comm->memory.multi_node ? "mixed" : "direct", comm->ops->name,
                  comm->memory.direct ? "memory that all its GPUs reach" : "storage of devices made with `shared`",
                  (long long)rank, (long long)entry, plan->entries[entry].name);
}

/* The error that all ranks have after the verdict FAIL, in which a source of `rank` may have a part. */
static reshard_status error_records(reshard_comm comm, const struct reshard_plan_s *plan, const rs_record *all,
                                    int64_t rank, bool here) {
  int64_t n = comm->size;
  for (int64_t r = 1; r < n; r++)
    if (all[r].call != all[0].call && all[r].call != RS_RECORD_ERROR && all[0].call != RS_RECORD_ERROR)
      return rs_comm_error_calls(comm, r);
  for (int64_t r = 1; r < n; r++) /* before the failures that it brings */
    if (all[r].value != all[0].value && strcmp(all[r].argument, all[0].argument) == 0)
      return rs_error(RESHARD_ERROR_MISMATCH, "%s %lld on rank 0, %lld on rank %lld", all[0].argument,
                      (long long)all[0].value, (long long)all[r].value, (long long)r);
  for (int64_t r = 0; r < n; r++)
    if (all[r].status != RESHARD_SUCCESS)
      return rs_error((reshard_status)all[r].status, "rank %lld: %s", (long long)r, all[r].text);
  RS_TRY(error_options(comm, plan, all, here));
  for (int64_t r = 1; r < n && all[0].call == RS_RECORD_REBIND; r++)
    if (all[r].key != all[0].key)
      return rs_error(RESHARD_ERROR_MISMATCH, "ranks 0 and %lld rebind different transfers", (long long)r);
  return error_private(comm, plan, rank, all[rank].private_entry, all[rank].malloced);
}

void rs_record_set_status(rs_record *mine, reshard_status status) {
  mine->status = (int32_t)status;
  if (status != RESHARD_SUCCESS)
    snprintf(mine->text, sizeof mine->text, "%s", reshard_last_error());
}

void rs_record_set_plan(rs_record *mine, const struct reshard_plan_s *plan) {
  memcpy(mine->fields, plan->fields, sizeof mine->fields);
  mine->entries = plan->ngiven;
  snprintf(mine->text, sizeof mine->text, "%s", RESHARD_VERSION_STRING);
}

reshard_status rs_records_exchange(reshard_comm comm, const struct reshard_plan_s *plan, const rs_record *mine,
                                   const rs_record **all) {
  /* Records of other calls have that size: ranks of one process tell calls apart by it. */
  _Static_assert(sizeof(rs_record) < RS_COMM_RECORD, "a record fits the communicator's buffer, and does not fill it");
  const void *gathered;
  RS_TRY(rs_comm_allgather(comm, mine, sizeof *mine, &gathered));
  int64_t rank;
  *all = gathered;
  return rs_records_judge(comm->size, *all, &rank) != RS_VERDICT_FAIL ? RESHARD_SUCCESS
                                                                      : error_records(comm, plan, *all, rank, false);
}

reshard_status rs_records_compare(reshard_comm comm, const rs_record *all) {
  int64_t rank;
  if (rs_records_judge(comm->size, all, &rank) != RS_VERDICT_FAIL)
    return RESHARD_SUCCESS;
  return error_records(comm, all[0].descriptor != NULL ? all[0].descriptor->plan : NULL, all, rank, true);
}

reshard_status rs_agree_on(reshard_comm comm, reshard_status status, const rs_request_terms *terms,
                           const rs_record **all) {
  const rs_argument *argument = terms->argument;
  rs_record mine = {.call = RS_RECORD_AGREE,
                    .path = (int32_t)terms->path,
                    .only = terms->path != RESHARD_PATH_AUTO,
                    .cached = terms->cached,
                    .private_entry = -1};
  rs_record_set_status(&mine, status);
  if (terms->published != NULL) {
    mine.published = *terms->published;
    mine.private_entry = terms->private_entry;
    mine.moved = terms->moved;
  }
  if (argument != NULL) {
    mine.value = argument->value;
    snprintf(mine.argument, sizeof mine.argument, "%s", argument->name);
  }
  if (status == RESHARD_SUCCESS && terms->plan != NULL)
    rs_record_set_plan(&mine, terms->plan);
  return rs_records_exchange(comm, terms->plan, &mine, all);
}

reshard_status rs_agree_alike(reshard_comm comm, reshard_status status) {
  const void *gathered;
  rs_saved_error own = {.status = RESHARD_SUCCESS};
  rs_record mine = {.call = RS_RECORD_AGREE, .private_entry = -1};
  int64_t rank;
  bool alike = true;
  rs_error_save(&own, status);
  rs_record_set_status(&mine, status);
  RS_TRY(rs_comm_allgather(comm, &mine, sizeof mine, &gathered));
  const rs_record *all = gathered;
  for (int64_t r = 0; r < comm->size; r++)
    alike = alike && all[r].call == mine.call && all[r].status == mine.status && strcmp(all[r].text, mine.text) == 0;
  if (alike || rs_records_judge(comm->size, all, &rank) != RS_VERDICT_FAIL)
    return rs_error_restore(&own);
  return error_records(comm, NULL, all, rank, false);
}

reshard_status rs_agree(reshard_comm comm, reshard_status status) {
  const rs_record *all;
  return rs_agree_on(comm, status, &(rs_request_terms){.plan = NULL}, &all);
}

static reshard_status bring_error(int64_t n, void **status) {
  (void)n;
  return *(const reshard_status *)status[0];
}

/* Processes of a node bring a status to a meeting of any kind; elsewhere a record has it, which meets other records. */
reshard_status reshard_comm_agree(reshard_comm comm, reshard_status status) {
  RS_TRY(RS_GIVEN("reshard_comm_agree", comm));
  RS_CALL(comm, 0);
  const rs_record *all;
  rs_record mine = {.call = status == RESHARD_SUCCESS ? RS_RECORD_AGREE : RS_RECORD_ERROR, .private_entry = -1};
  if (status != RESHARD_SUCCESS && comm->ops->one_node && comm->locals == 1)
    return rs_comm_combine(comm, bring_error, &status);
  rs_record_set_status(&mine, status);
  return rs_records_exchange(comm, NULL, &mine, &all);
}
