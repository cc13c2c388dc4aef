/* The duplicate of the caller's communicator: by a deadline, and with the ranks that do not come.
 *
 * MPI says of a collective call that it is not done, and not for whom it waits. So each rank first scatters a byte: a
 * rank whose byte is out has not come, for MPI_Iscatterv sends from its root to each rank. One that is lost in the
 * duplication itself is known by its silence: the others tell each other that they give up. That goes from rank to rank
 * on the caller's communicator, for Open MPI takes no collective call there while a duplication is under way. */
#include "comm/mpi/duplicate.h"

#include "comm/mpi/end.h"

enum { GIVE_UP_MS = 500 }; /* for others to give up the same duplication */

static reshard_status alloc_greetings(rs_mpi_link *link, int64_t size) {
  RS_TRY(rs_alloc(&link->greetings, size, sizeof *link->greetings));
  RS_TRY(rs_alloc_zero(&link->bytes, size + 1, 1));
  RS_TRY(rs_alloc_zero(&link->parts, 2 * size, sizeof *link->parts));
  for (int64_t r = 0; r < size; r++) {
    link->greetings[r] = MPI_REQUEST_NULL;
    link->parts[r] = 1;
  }
  return RESHARD_SUCCESS;
}

static int begin_greetings(rs_mpi *c, MPI_Comm mpi) {
  rs_mpi_link *link = c->link;
  int64_t size = c->base.size;
  int code = MPI_SUCCESS;
  for (int64_t r = 0; r < size && code == MPI_SUCCESS; r++)
    code = MPI_Iscatterv(link->bytes + size, link->parts, link->parts + size, MPI_CHAR, link->bytes + r, 1, MPI_CHAR,
                         (int)r, mpi, &link->greetings[r]);
  return code;
}

static reshard_status await_greetings(rs_mpi *c) {
  MPI_Request *greetings = c->link->greetings;
  for (int64_t since = rs_now_ns();; rs_mpi_sleep(since)) {
    int ngot = 0, code = MPI_Testsome((int)c->base.size, greetings, &ngot, c->done, c->statuses);
    for (int i = 0; code == MPI_ERR_IN_STATUS && i < ngot; i++)
      c->missing[c->done[i]] = c->statuses[i].MPI_ERROR != MPI_SUCCESS;
    if (code != MPI_SUCCESS)
      return rs_mpi_error(c, code, "MPI_Iscatterv");
    int64_t out = 0; /* this rank's own may be: they do not come to one that is stopped */
    for (int64_t r = 0; r < c->base.size; r++)
      out += c->missing[r] = greetings[r] != MPI_REQUEST_NULL && r != c->base.rank;
    if (out == 0)
      return RESHARD_SUCCESS;
    RS_TRY(rs_mpi_await(c, since, "MPI_Comm_idup"));
  }
}

static int highest_tag(MPI_Comm mpi) {
  int found = 0, *most = NULL, code = MPI_Comm_get_attr(mpi, MPI_TAG_UB, &most, &found);
  return code == MPI_SUCCESS && found ? *most : 32767;
}

void rs_mpi_say_given_up(const rs_mpi *c, MPI_Comm mpi) {
  MPI_Request request;
  for (int64_t r = 0; r < c->base.size; r++)
    if (r != c->base.rank && MPI_Isend(NULL, 0, MPI_BYTE, (int)r, highest_tag(mpi), mpi, &request) == MPI_SUCCESS)
      MPI_Request_free(&request);
}

/* The error, with the ranks that do not say that they give up. */
static reshard_status error_silent(rs_mpi *c, MPI_Comm mpi) {
  int tag = highest_tag(mpi), there = 0;
  int64_t silent = 0;
  rs_mpi_say_given_up(c, mpi);
  for (int64_t r = 0; r < c->base.size; r++)
    silent += c->missing[r] = r != c->base.rank;
  for (int64_t since = rs_now_ns(); silent > 0 && !rs_late(since, rs_min(c->timeout_ms, GIVE_UP_MS));
       rs_mpi_sleep(since))
    for (int64_t r = 0; r < c->base.size; r++)
      if (c->missing[r] && MPI_Iprobe((int)r, tag, mpi, &there, MPI_STATUS_IGNORE) == MPI_SUCCESS && there) {
        MPI_Recv(NULL, 0, MPI_BYTE, (int)r, tag, mpi, MPI_STATUS_IGNORE);
        c->missing[r] = false;
        silent--;
      }
  return silent > 0 ? rs_mpi_await(c, rs_now_ns() - c->timeout_ms * 1000000, "MPI_Comm_idup")
                    : rs_error(RESHARD_ERROR_TIMEOUT, "rank %lld: MPI_Comm_idup: not done within %lld ms on any rank",
                               (long long)c->base.rank, (long long)c->timeout_ms);
}

static reshard_status await_duplicate(rs_mpi *c, MPI_Comm mpi) {
  MPI_Request *own = &c->link->greetings[c->base.rank];
  for (int64_t since = rs_now_ns();; rs_mpi_sleep(since)) {
    int made = 0, greeted = 0, code = MPI_Test(&c->link->made, &made, MPI_STATUS_IGNORE);
    if (code == MPI_SUCCESS)
      code = MPI_Test(own, &greeted, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS)
      return rs_mpi_error(c, code, "MPI_Comm_idup");
    if (made && greeted)
      return RESHARD_SUCCESS;
    if (rs_late(since, c->timeout_ms))
      return error_silent(c, mpi);
  }
}

reshard_status rs_mpi_duplicate(rs_mpi *c, MPI_Comm mpi) {
  rs_mpi_link *link = c->link;
  RS_TRY(alloc_greetings(link, c->base.size));
  int code = begin_greetings(c, mpi);
  if (code == MPI_SUCCESS)
    code = MPI_Comm_idup(mpi, &link->mpi, &link->made);
  reshard_status status = code == MPI_SUCCESS ? RESHARD_SUCCESS : rs_mpi_error(c, code, "MPI_Comm_idup");
  RS_THEN(status, await_greetings(c));
  RS_THEN(status, await_duplicate(c, mpi));
  if (status != RESHARD_SUCCESS) { /* what is begun stays: MPI writes to it */
    link->stays = true;
    atomic_fetch_add(&link->users, 1);
    return status;
  }
  MPI_Comm_set_errhandler(link->mpi, MPI_ERRORS_RETURN);
  link->numbers = highest_tag(link->mpi) / RS_MPI_TAGS;
  return RESHARD_SUCCESS;
}
