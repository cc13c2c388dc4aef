/* The duplicate of the caller's communicator, by a deadline. MPI says of a duplication that it is not done, and not for
 * whom it waits: such a deadline names nobody.
 *
 * MPI has no end for a duplication that is under way, and would take a second one for it. So the caller's communicator
 * keeps one that was not done, as an attribute, and the rank's next creation goes on with it. */
#include "comm/mpi/duplicate.h"

#include "comm/mpi/end.h"
#include "comm/mpi/link.h"

static int unfinished_key = MPI_KEYVAL_INVALID; /* of the attribute: the link of a duplication under way, or NULL */

/* The caller's communicator is freed: MPI may write to the link still. */
static int leave_link(MPI_Comm mpi, int key, void *value, void *extra) {
  (void)mpi, (void)key, (void)value, (void)extra;
  return MPI_SUCCESS;
}

static void make_key(void) {
  if (MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, leave_link, &unfinished_key, NULL) != MPI_SUCCESS)
    unfinished_key = MPI_KEYVAL_INVALID;
}

reshard_status rs_mpi_find_link(MPI_Comm mpi, rs_mpi_link **link) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  rs_mpi_link *unfinished = NULL;
  int found = 0;
  pthread_once(&once, make_key);
  if (unfinished_key == MPI_KEYVAL_INVALID ||
      MPI_Comm_get_attr(mpi, unfinished_key, &unfinished, &found) != MPI_SUCCESS)
    return rs_error(RESHARD_ERROR_PEER, "MPI has no attribute left");
  if (!found || unfinished == NULL)
    return rs_mpi_create_link(link);
  atomic_fetch_add(&unfinished->users, 1);
  *link = unfinished;
  return RESHARD_SUCCESS;
}

/* The attribute is a user of the link from here until MPI no longer writes to it. */
static int begin_duplicate(rs_mpi_link *link, MPI_Comm mpi) {
  if (link->made != MPI_REQUEST_NULL)
    return MPI_SUCCESS;
  int code = MPI_Comm_set_attr(mpi, unfinished_key, link);
  if (code != MPI_SUCCESS)
    return code;
  atomic_fetch_add(&link->users, 1);
  code = MPI_Comm_idup(mpi, &link->mpi, &link->made);
  if (code != MPI_SUCCESS) { /* none is under way */
    (void)MPI_Comm_set_attr(mpi, unfinished_key, NULL);
    rs_mpi_release_link(link);
  }
  return code;
}

reshard_status rs_mpi_duplicate(rs_mpi *c, MPI_Comm mpi) {
  rs_mpi_link *link = c->link;
  int made = 0, found = 0, *most = NULL, code = begin_duplicate(link, mpi);
  for (int64_t since = rs_now_ns(); code == MPI_SUCCESS && !made; rs_mpi_sleep(since)) {
    code = MPI_Test(&link->made, &made, MPI_STATUS_IGNORE);
    if (code == MPI_SUCCESS && !made && rs_late(since, c->base.timeout_ms))
      return rs_comm_error_timeout(&c->base, "MPI_Comm_idup", c->base.timeout_ms, "not known yet");
  }
  if (code != MPI_SUCCESS) {
    link->stays = true;
    return rs_mpi_error(c, code, "MPI_Comm_idup");
  }
  (void)MPI_Comm_set_attr(mpi, unfinished_key, NULL);
  rs_mpi_release_link(link);
  MPI_Comm_set_errhandler(link->mpi, MPI_ERRORS_RETURN);
  code = MPI_Comm_get_attr(link->mpi, MPI_TAG_UB, &most, &found);
  link->numbers = (code == MPI_SUCCESS && found ? *most : 32767) / RS_MPI_TAGS;
  return RESHARD_SUCCESS;
}
