/* The link of communicators over one duplicate, and their release: memory stays while messages are under way. */
#include "comm/mpi/link.h"
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

reshard_status rs_mpi_create_link(rs_mpi_link **out) {
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
  c->next = c->link->kept;
  while (!atomic_compare_exchange_weak(&c->link->kept, &c->next, c))
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
  if (link->kept == NULL)
    return;
  for (rs_mpi *c = atomic_exchange(&link->kept, NULL), *next; c != NULL; c = next) {
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
