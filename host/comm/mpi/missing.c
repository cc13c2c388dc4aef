#include "comm/mpi/missing.h"

#include <stdlib.h>
#include <time.h>

/* Empty messages need no memory that outlives them. */
static void send_empty(MPI_Comm mpi, int rank, int tag) {
  MPI_Request request;
  if (MPI_Isend(NULL, 0, MPI_BYTE, rank, tag, mpi, &request) == MPI_SUCCESS)
    MPI_Request_free(&request);
}

/* The sender of the next message of a tag, which is taken; -1: there is none. */
static int receive_empty(MPI_Comm mpi, int tag) {
  MPI_Status status;
  int there = 0;
  if (MPI_Iprobe(MPI_ANY_SOURCE, tag, mpi, &there, &status) != MPI_SUCCESS || !there ||
      MPI_Recv(NULL, 0, MPI_BYTE, status.MPI_SOURCE, tag, mpi, MPI_STATUS_IGNORE) != MPI_SUCCESS)
    return -1;
  return status.MPI_SOURCE;
}

void rs_mpi_answer(MPI_Comm mpi) {
  for (int rank = receive_empty(mpi, RS_MPI_TAG_ASK); rank >= 0; rank = receive_empty(mpi, RS_MPI_TAG_ASK))
    send_empty(mpi, rank, RS_MPI_TAG_HERE);
}

/* Marks who has answered or given up; returns how many of the others have not. */
static int mark_answers(MPI_Comm mpi, int size, int me, int gone, char *here) {
  int left = 0;
  for (int rank = receive_empty(mpi, RS_MPI_TAG_HERE); rank >= 0; rank = receive_empty(mpi, RS_MPI_TAG_HERE))
    here[rank] = 1;
  for (int r = 0; r < size; r++) {
    int there = 0;
    if (!here[r] && r != me && MPI_Iprobe(r, gone, mpi, &there, MPI_STATUS_IGNORE) == MPI_SUCCESS && there)
      here[r] = 1;
    left += !here[r] && r != me;
  }
  return left;
}

bool rs_mpi_find_missing(MPI_Comm mpi, MPI_Request *request, int gone, int64_t patience_ms, char *missing,
                         size_t size) {
  int n = 0, me = 0, done = 0, left = 1;
  char *here = NULL;
  int64_t *ranks = NULL, count = 0, since = rs_now_ns();
  missing[0] = '\0';
  MPI_Comm_size(mpi, &n);
  MPI_Comm_rank(mpi, &me);
  if (rs_alloc_zero(&here, n, 1) == RESHARD_SUCCESS && rs_alloc(&ranks, n, sizeof *ranks) == RESHARD_SUCCESS) {
    for (int r = 0; r < n; r++)
      if (r != me)
        send_empty(mpi, r, RS_MPI_TAG_ASK);
    while (!done && left > 0 && rs_now_ns() - since < patience_ms * 1000000) {
      nanosleep(&(struct timespec){0, 50000}, NULL);
      rs_mpi_answer(mpi);
      left = mark_answers(mpi, n, me, gone, here);
      if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        break;
    }
    for (int r = 0; r < n; r++)
      if (!here[r] && r != me)
        ranks[count++] = r;
    rs_ranges_text(missing, size, count, ranks);
  }
  free(here);
  free(ranks);
  return done != 0;
}
