#include "comm/mpi/missing.h"

#include <stdlib.h>
#include <time.h>

reshard_status rs_mpi_roll_init(rs_mpi_roll *roll, MPI_Comm mpi) {
  *roll = (rs_mpi_roll){.mpi = mpi};
  MPI_Comm_size(mpi, &roll->size);
  MPI_Comm_rank(mpi, &roll->rank);
  RS_TRY(rs_alloc_zero(&roll->peers, roll->size, sizeof *roll->peers));
  for (int r = 0; r < roll->size; r++)
    roll->peers[r].question.request = roll->peers[r].answer.request = MPI_REQUEST_NULL;
  return RESHARD_SUCCESS;
}

/* True when nothing of the note is on its way. */
static bool note_delivered(rs_mpi_note *note) {
  int done = 0;
  return MPI_Test(&note->request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done;
}

/* Sends without waiting; false: the note's last number is still on its way. */
static bool send_note(const rs_mpi_roll *roll, int rank, int tag, rs_mpi_note *note, int64_t number) {
  if (!note_delivered(note))
    return false;
  note->number = number;
  if (MPI_Isend(&note->number, 1, MPI_INT64_T, rank, tag, roll->mpi, &note->request) != MPI_SUCCESS)
    note->request = MPI_REQUEST_NULL;
  return true;
}

/* The sender of the next number of a tag, which is taken; -1: there is none. */
static int receive_number(const rs_mpi_roll *roll, int tag, int64_t *number) {
  MPI_Status status;
  int there = 0;
  if (MPI_Iprobe(MPI_ANY_SOURCE, tag, roll->mpi, &there, &status) != MPI_SUCCESS || !there ||
      MPI_Recv(number, 1, MPI_INT64_T, status.MPI_SOURCE, tag, roll->mpi, MPI_STATUS_IGNORE) != MPI_SUCCESS)
    return -1;
  return status.MPI_SOURCE;
}

void rs_mpi_roll_free(rs_mpi_roll *roll) {
  int64_t number = 0;
  bool delivered = true;
  while (receive_number(roll, RS_MPI_TAG_ASK, &number) >= 0 || receive_number(roll, RS_MPI_TAG_HERE, &number) >= 0)
    ;
  for (int r = 0; r < roll->size; r++) {
    rs_mpi_note *notes[] = {&roll->peers[r].question, &roll->peers[r].answer};
    for (int i = 0; i < 2; i++)
      if (!note_delivered(notes[i])) {
        MPI_Request_free(&notes[i]->request);
        delivered = false;
      }
  }
  if (delivered) /* else MPI may still read a number */
    free(roll->peers);
  roll->peers = NULL;
}

void rs_mpi_answer(rs_mpi_roll *roll) {
  int64_t number = 0;
  for (int r = receive_number(roll, RS_MPI_TAG_ASK, &number); r >= 0; r = receive_number(roll, RS_MPI_TAG_ASK, &number))
    roll->peers[r].asks = number;
  for (int r = 0; r < roll->size; r++) {
    rs_mpi_peer *peer = &roll->peers[r]; /* one that is ahead gets its answer when this rank has come there */
    if (peer->asks > 0 && peer->asks <= roll->number && send_note(roll, r, RS_MPI_TAG_HERE, &peer->answer, peer->asks))
      peer->asks = 0;
  }
}

static void ask_others(rs_mpi_roll *roll) {
  for (int r = 0; r < roll->size; r++)
    if (r != roll->rank && roll->peers[r].question.number != roll->number)
      send_note(roll, r, RS_MPI_TAG_ASK, &roll->peers[r].question, roll->number);
}

/* Marks who has answered or given up; returns how many of the others have not. */
static int mark_answers(const rs_mpi_roll *roll, int gone, char *here, bool *given_up) {
  int left = 0;
  int64_t number = 0;
  for (int r = receive_number(roll, RS_MPI_TAG_HERE, &number); r >= 0;
       r = receive_number(roll, RS_MPI_TAG_HERE, &number))
    if (number == roll->number) /* else to a question about one that is done */
      here[r] = 1;
  for (int r = 0; r < roll->size; r++) {
    int there = 0;
    if (r != roll->rank && MPI_Iprobe(r, gone, roll->mpi, &there, MPI_STATUS_IGNORE) == MPI_SUCCESS && there)
      here[r] = *given_up = true;
    left += !here[r] && r != roll->rank;
  }
  return left;
}

bool rs_mpi_find_missing(rs_mpi_roll *roll, MPI_Request *request, int gone, int64_t patience_ms, int64_t finish_ms,
                         char *missing, size_t size) {
  int done = 0, left = 1;
  bool given_up = false;
  char *here = NULL;
  int64_t *ranks = NULL, count = 0, since = rs_now_ns(), limit_ms = patience_ms;
  missing[0] = '\0';
  if (rs_alloc_zero(&here, roll->size, 1) == RESHARD_SUCCESS &&
      rs_alloc(&ranks, roll->size, sizeof *ranks) == RESHARD_SUCCESS) {
    while (!done && (left > 0 || !given_up) && rs_now_ns() - since < limit_ms * 1000000) {
      int before = left;
      ask_others(roll);
      nanosleep(&(struct timespec){0, 50000}, NULL);
      rs_mpi_answer(roll);
      left = mark_answers(roll, gone, here, &given_up);
      if (left == 0 && before > 0) { /* the last has come: the all-gather takes some steps still */
        since = rs_now_ns();
        limit_ms = finish_ms;
      }
      if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        break;
    }
    for (int r = 0; r < roll->size; r++)
      if (!here[r] && r != roll->rank)
        ranks[count++] = r;
    rs_ranges_text(missing, size, count, ranks);
  }
  free(here);
  free(ranks);
  return done != 0;
}
