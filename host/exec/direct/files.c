/* Memory files of processes with CPUs. A rank passes its own to those that read it in a plan, when they first do, and
 * takes theirs: whoever reads none has none. A rank that fails goes on with the others, so that no message is left. */
#include "exec/descriptor.h"

#include "device/cpu/segment.h"

static bool is_wanted(reshard_comm comm, const rs_peer *p, bool from) {
  const rs_passed_file *f = &comm->memory.passed[p->rank];
  return comm->memory.imports[p->rank] != NULL /* this rank itself */ &&
         (from ? p->received > 0 && f->from == 0 : p->sent > 0 && f->to == 0);
}

/* Takes the descriptor. The file may be there already, from a call that failed. */
static reshard_status keep_file(reshard_comm comm, int64_t rank, int fd) {
  rs_import *import;
  RS_TRY(rs_import_open(fd, &import));
  rs_import_close(comm->memory.imports[rank]);
  comm->memory.imports[rank] = import;
  return RESHARD_SUCCESS;
}

/* *done: the file has gone, or come, or never will. */
static reshard_status pass_one(reshard_comm comm, int64_t rank, bool from, int own, int64_t since, bool *done) {
  rs_passed_file *f = &comm->memory.passed[rank];
  uint64_t number = 0;
  int fd = -1;
  reshard_status status = from ? comm->ops->neighbours->take(comm, rank, since, &number, &fd, done)
                               : comm->ops->neighbours->pass(comm, rank, since, number, own, done);
  if (fd >= 0)
    status = keep_file(comm, rank, fd);
  *done |= status != RESHARD_SUCCESS;
  *(from ? &f->from : &f->to) = *done ? comm->memory.settled + 1 : 0;
  return status;
}

reshard_status rs_files_pass(reshard_comm comm, rs_partners with) {
  rs_saved_error first = {0};
  int64_t since = rs_now_ns();
  int own = -1;
  bool some = false, open;
  for (int64_t i = 0; comm->memory.passed != NULL && i < with.n && !some; i++)
    some = is_wanted(comm, &with.at[i], false) || is_wanted(comm, &with.at[i], true);
  if (!some)
    return RESHARD_SUCCESS;
  rs_error_save(&first, rs_shared_open(&own));
  open = own >= 0;
  for (bool more = true; more;) {
    more = false;
    for (int64_t i = 0; i < 2 * with.n; i++) { /* all are passed on before one is waited for */
      const rs_peer *p = &with.at[i % with.n];
      bool from = i >= with.n, done;
      if (!is_wanted(comm, p, from))
        continue;
      rs_error_save(&first, pass_one(comm, p->rank, from, own, since, &done));
      since = done ? rs_now_ns() : since;
      more |= !done;
    }
  }
  if (open)
    rs_shared_close();
  return rs_error_restore(&first);
}

void rs_files_settle(reshard_comm comm, bool success) {
  const uint64_t call = ++comm->memory.settled;
  for (int64_t r = 0; !success && comm->memory.passed != NULL && r < comm->size; r++) {
    rs_passed_file *f = &comm->memory.passed[r];
    f->to = f->to == call ? 0 : f->to;
    f->from = f->from == call ? 0 : f->from;
  }
}
