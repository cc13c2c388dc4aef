/* The log's line of a transfer: what it moves, on which path and why. */
#include "exec/transfer/steps.h"

#include <stdio.h>
#include <stdlib.h>

static void add_path(rs_text *out, const struct reshard_transfer_s *t) {
  rs_text_add(out, ", path %s: ", reshard_path_string(t->path->number));
  if (t->choice.only)
    rs_text_add(out, "as asked");
  else if (t->choice.left != NULL && t->choice.left_by >= 0)
    rs_text_add(out, "rank %lld has %s", (long long)t->choice.left_by, t->choice.left);
  else if (t->choice.left != NULL)
    rs_text_add(out, "%s", t->choice.left);
  else if (t->path == &rs_direct_path)
    rs_text_add(out, "all ranks reach each other's memory");
  else if (t->path == &rs_mixed_path)
    rs_text_add(out, "ranks of a node reach each other's memory");
  else
    rs_text_add(out, "ranks over %s do not read each other's memory", t->comm->ops->name);
}

void rs_transfer_tell(const struct reshard_transfer_s *t) {
  const rs_log *log = rs_comm_log(t->comm);
  if (log == NULL)
    return;
  const reshard_plan_info *plan = &t->plan->info;
  rs_text out = {.grows = true};
  char error[1024];
  reshard_transfer_info info;
  (void)reshard_transfer_get_info((reshard_transfer)t, &info); /* it is given all */
  snprintf(error, sizeof error, "%s", reshard_last_error());
  rs_text_add(&out, "transfer %lld%s: rank %lld of %lld over %s on %s", (long long)t->comm->made,
              t->cached != NULL ? " of a sharder" : "", (long long)t->comm->rank, (long long)t->comm->size,
              t->comm->ops->name, t->comm->device->name);
  add_path(&out, t);
  rs_text_add(&out, ", %lld round%s, ", (long long)info.rounds, info.rounds == 1 ? "" : "s");
  if (info.workspace_limit > 0)
    rs_text_add(&out, "limit %lld bytes", (long long)info.workspace_limit);
  else
    rs_text_add(&out, "no limit");
  rs_text_add(&out,
              ", workspace %zu bytes; %lld tensor%s of %lld bytes, sends %lld, receives %lld, self copy %lld, "
              "%lld peer%s",
              info.workspace_bytes, (long long)plan->entries, plan->entries == 1 ? "" : "s", (long long)plan->bytes,
              (long long)plan->sent_bytes, (long long)plan->received_bytes, (long long)plan->self_copy_bytes,
              (long long)plan->peers, plan->peers == 1 ? "" : "s");
  rs_text_add(&out, "; collective %s", reshard_collective_string(info.collective));
  if (info.collective_why != NULL && info.collective_why[0] != '\0')
    rs_text_add(&out, ": %s", info.collective_why);
  if (out.status == RESHARD_SUCCESS)
    rs_log_lines(log, t->comm, out.at);
  free(out.at);
  rs_error_set(error); /* where there was no memory */
}
