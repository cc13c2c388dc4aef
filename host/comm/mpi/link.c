/* The link of communicators over one duplicate, and their release: memory stays while messages are under way. */
#include "comm/mpi/link.h"

#include "comm/mpi/end.h"
#include "comm/mpi/nodes.h"
#include "device/plain.h"

#include <stdlib.h>
#include <string.h>

/* --- The link ----------------------------------------------------------------------------------------------------- */

void rs_mpi_release_link(rs_mpi_link *link) {
  int finalized = 0;
  if (atomic_fetch_sub(&link->users, 1) > 1)
    return;
  MPI_Finalized(&finalized);
  if (!finalized && link->block != MPI_DATATYPE_NULL)
    MPI_Type_free(&link->block);
  if (!finalized && !link->stays && link->mpi != MPI_COMM_NULL)
    MPI_Comm_free(&link->mpi);
  pthread_mutex_destroy(&link->tree);
  free(link->nodes);
  free(link);
}

/* With one user. */
static reshard_status create_link(rs_mpi_link **out) {
  rs_mpi_link *link = NULL;
  RS_TRY(rs_alloc_zero(&link, 1, sizeof *link));
  int failed = pthread_mutex_init(&link->tree, NULL);
  if (failed != 0) {
    free(link);
    return rs_error(RESHARD_ERROR_SYSTEM, "no mutex: %s", strerror(failed));
  }
  link->mpi = MPI_COMM_NULL;
  link->made = MPI_REQUEST_NULL;
  link->block = MPI_DATATYPE_NULL;
  atomic_init(&link->users, 1);
  atomic_init(&link->next, 1);
  *out = link;
  return RESHARD_SUCCESS;
}

/* --- Communicators ----------------------------------------------------------------------------------------------- */

void rs_mpi_free(rs_mpi *c) {
  rs_board_leave(&c->base);
  for (rs_mpi_memory *m = c->memories, *next; m != NULL; m = next) {
    next = m->next;
    rs_device_free(c->base.device, m->at);
    free(m);
  }
  reshard_device_release(c->handle);
  rs_mpi_release_link(c->link);
  free(c->why);
  for (int i = 0; i < RS_MPI_NOTES; i++)
    free(c->notes[i]);
  free(c->received);
  free(c->answer);
  free(c->probe.waiting);
  free(c->probe.awaited);
  free(c->probe.deciding);
  free(c->out);
  free(c->missing);
  free(c->gathered);
  free(c->records);
  free(c->talks);
  free(c->requests);
  free(c->done);
  free(c->statuses);
  free(c->base.global_ranks);
  free(c);
}

static void keep_comm(rs_mpi *c) {
  c->next = c->link->pending;
  while (!atomic_compare_exchange_weak(&c->link->pending, &c->next, c))
    ;
}

/* A thread that waits on a part may answer for c meanwhile, by the same requests. */
bool rs_mpi_quiet(rs_mpi *c) {
  int finalized = 0, talked = 0, moved = 0;
  MPI_Finalized(&finalized);
  if (finalized)
    return true;
  if (atomic_flag_test_and_set(&c->probe.answering))
    return false;
  bool quiet = MPI_Testall((int)(RS_MPI_TALKS * c->base.size), c->talks, &talked, MPI_STATUSES_IGNORE) == MPI_SUCCESS &&
               talked && MPI_Testall(c->nrequests, c->requests, &moved, MPI_STATUSES_IGNORE) == MPI_SUCCESS && moved;
  atomic_flag_clear(&c->probe.answering);
  return quiet;
}

void rs_mpi_sweep(rs_mpi_link *link) {
  if (link->pending == NULL)
    return;
  for (rs_mpi *c = atomic_exchange(&link->pending, NULL), *next; c != NULL; c = next) {
    next = c->next;
    if (rs_mpi_quiet(c))
      rs_mpi_free(c);
    else
      keep_comm(c);
  }
}

void rs_mpi_release(rs_mpi *c) {
  if (atomic_fetch_sub(&c->users, 1) > 1)
    return;
  if (c->parent != NULL) {
    pthread_mutex_lock(&c->link->tree);
    rs_mpi **at = &c->parent->children;
    while (*at != c)
      at = &(*at)->next;
    *at = c->next;
    pthread_mutex_unlock(&c->link->tree);
    rs_mpi_release(c->parent);
  }
  rs_mpi_sweep(c->link);
  rs_mpi_close_files(c); /* a request of a lost rank may never be done */
  if (rs_mpi_quiet(c))
    rs_mpi_free(c);
  else
    keep_comm(c);
}

/* --- The duplicate ------------------------------------------------------------------------------------------------ */
/* By a deadline. MPI says of a duplication that it is not done, and not for whom it waits: such a deadline names
 * nobody.
 *
 * MPI has no end for a duplication that is under way, and would take a second one for it. So the caller's communicator
 * keeps one that was not done, as an attribute, and the rank's next creation goes on with it. */

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
    return create_link(link);
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
