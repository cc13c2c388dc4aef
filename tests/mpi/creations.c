/* A rank does not come to a creation by the deadline of the others. Their error names nobody, for MPI does not tell.
 * They call again with the same MPI_Comm, and have a communicator when all ranks have come.
 *
 * usage: mpi_creations, by mpirun with 3 or more ranks. */
#include "support/processes/check_ranks.h"

#include <mpi.h>
#include <reshard/mpi.h>
#include <stdio.h>
#include <string.h>

enum { LATE = 1, SHORT_MS = 300, PATIENT_MS = 60000 };

static void check_made(MPI_Comm mpi) {
  reshard_comm comm = NULL;
  CHECK(reshard_comm_from_mpi(&mpi, NULL, PATIENT_MS, &comm) == RESHARD_SUCCESS, "%s", reshard_last_error());
  CHECK(reshard_comm_barrier(comm) == RESHARD_SUCCESS, "%s", reshard_last_error());
  reshard_comm_destroy(comm);
}

/* The late rank comes when the others have given up so many times. */
static void check_retries(int times) {
  static const char text[] =
      "reshard_comm_from_mpi, call 1: MPI_Comm_idup: not done within 300 ms; missing: not known yet";
  MPI_Comm mpi;
  MPI_Comm_dup(MPI_COMM_WORLD, &mpi);
  for (int i = 0; i < times && rank != LATE; i++) {
    reshard_comm comm = NULL;
    reshard_status status = reshard_comm_from_mpi(&mpi, NULL, SHORT_MS, &comm);
    CHECK(status == RESHARD_ERROR_TIMEOUT && comm == NULL, "time %d: %s", i, reshard_status_string(status));
    CHECK(strncmp(reshard_last_error(), text, strlen(text)) == 0, "time %d: '%s'", i, reshard_last_error());
  }
  MPI_Barrier(MPI_COMM_WORLD);
  check_made(mpi);
  check_made(mpi); /* a duplicate of its own */
  MPI_Comm_free(&mpi);
}

int main(int argc, char **argv) {
  int level, all = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int times = 0; times <= 3; times++)
    check_retries(times);
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0)
    printf("%d ranks: %d checks failed\n", size, all);
  MPI_Finalize();
  return all > 0;
}
