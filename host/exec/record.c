/* Records that ranks exchange in collective calls of transfers, so that all come to the same verdict. */
#include "exec/record.h"

#include "exec/path.h"

#include <stdio.h>
#include <string.h>

/* Plans that differ, or options: the same verdict on every rank, since all look at the same records. */
static reshard_status compare_options(reshard_comm comm, const struct reshard_plan_s *plan, const rs_record *all) {
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
  for (int64_t r = 1; r < n; r++)
    if (all[r].cached != all[0].cached)
      return rs_error(RESHARD_ERROR_MISMATCH, "rank %lld has a cached transfer for this call, rank %lld has none",
                      all[0].cached ? 0LL : (long long)r, all[0].cached ? (long long)r : 0LL);
  return RESHARD_SUCCESS;
}

/* Compares the records of all ranks; the result is the same on every rank, since all look at the same records. */
static reshard_status compare_records(reshard_comm comm, const struct reshard_plan_s *plan, const rs_record *all) {
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
  if (plan != NULL)
    RS_TRY(compare_options(comm, plan, all));
  for (int64_t r = 1; r < n && all[0].call == RS_RECORD_REBIND; r++)
    if (all[r].key != all[0].key)
      return rs_error(RESHARD_ERROR_MISMATCH, "ranks 0 and %lld rebind different transfers", (long long)r);
  return RESHARD_SUCCESS;
}

void rs_record_set_status(rs_record *mine, reshard_status status) {
  mine->status = (int32_t)status;
  if (status != RESHARD_SUCCESS)
    snprintf(mine->text, sizeof mine->text, "%s", reshard_last_error());
}

void rs_record_set_plan(rs_record *mine, const struct reshard_plan_s *plan) {
  memcpy(mine->fields, plan->fields, sizeof mine->fields);
  mine->entries = plan->nentries;
  snprintf(mine->text, sizeof mine->text, "%s", RESHARD_VERSION_STRING);
}

reshard_status rs_records_exchange(reshard_comm comm, const struct reshard_plan_s *plan, const rs_record *mine,
                                   const rs_record **all) {
  _Static_assert(sizeof(rs_record) <= RS_COMM_RECORD, "a record fits the communicator's buffer");
  const void *gathered;
  RS_TRY(rs_comm_allgather(comm, mine, sizeof *mine, &gathered));
  *all = gathered;
  return compare_records(comm, plan, *all);
}

reshard_status rs_agree_on(reshard_comm comm, reshard_status status, const rs_request *request, const rs_record **all) {
  const rs_argument *argument = request->argument;
  rs_record mine = {.call = RS_RECORD_AGREE, .path = (int32_t)request->path, .cached = request->cached};
  rs_record_set_status(&mine, status);
  if (request->shown != NULL)
    mine.shown = *request->shown;
  if (argument != NULL) {
    mine.value = argument->value;
    snprintf(mine.argument, sizeof mine.argument, "%s", argument->name);
  }
  if (status == RESHARD_SUCCESS && request->plan != NULL)
    rs_record_set_plan(&mine, request->plan);
  return rs_records_exchange(comm, request->plan, &mine, all);
}

reshard_status rs_agree_alike(reshard_comm comm, reshard_status status) {
  const void *gathered;
  rs_kept_error own = {.status = RESHARD_SUCCESS};
  rs_record mine = {.call = RS_RECORD_AGREE};
  bool alike = true;
  rs_error_keep(&own, status);
  rs_record_set_status(&mine, status);
  RS_TRY(rs_comm_allgather(comm, &mine, sizeof mine, &gathered));
  const rs_record *all = gathered;
  for (int64_t r = 0; r < comm->size; r++)
    alike = alike && all[r].call == mine.call && all[r].status == mine.status && strcmp(all[r].text, mine.text) == 0;
  return alike ? rs_error_restore(&own) : compare_records(comm, NULL, all);
}

reshard_status rs_agree(reshard_comm comm, reshard_status status) {
  const rs_record *all;
  return rs_agree_on(comm, status, &(rs_request){.plan = NULL}, &all);
}
