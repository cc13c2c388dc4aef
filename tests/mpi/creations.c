/* A rank has no memory for a creation: whichever allocation fails, all ranks have the same error, and the next creation
 * of the same MPI_Comm succeeds.
 *
 * A rank does not come to a creation by the deadline of the others. Their error names nobody, for MPI does not tell.
 * They call again with the same MPI_Comm, and have a communicator when all ranks have come.
 *
 * usage: mpi_creations, by mpirun with 3 or more ranks. */
#include "alloc/support/fault.h"
#include "support/processes/check_ranks.h"

#include <mpi.h>
#include <reshard/mpi.h>
#include <stdbool.h>
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

/* Adds to *refused. False: no allocation was left to fail. Shared memory that there is no room for is done without. */
static bool check_without_memory(int k, int *refused) {
  reshard_comm comm = NULL;
  char text[256] = "", theirs[256];
  fault_mark(rank == LATE);
  fault_arm(k);
  reshard_status status = reshard_comm_from_mpi(&(MPI_Comm){MPI_COMM_WORLD}, NULL, PATIENT_MS, &comm);
  fault_disarm();
  fault_mark(false);
  int told[] = {fault_fired(), status};
  if (status != RESHARD_SUCCESS)
    snprintf(text, sizeof text, "%s", reshard_last_error());
  memcpy(theirs, text, sizeof theirs);
  MPI_Bcast(told, 2, MPI_INT, LATE, MPI_COMM_WORLD);
  MPI_Bcast(theirs, sizeof theirs, MPI_BYTE, LATE, MPI_COMM_WORLD);
  CHECK((int)status == told[1] && strcmp(text, theirs) == 0, "allocation %d: '%s', not '%s'", k, text, theirs);
  CHECK(status == RESHARD_SUCCESS ||
            status == (told[0] == FAULT_THREAD ? RESHARD_ERROR_SYSTEM : RESHARD_ERROR_OUT_OF_MEMORY),
        "allocation %d: %s", k, text);
  CHECK(status == RESHARD_SUCCESS || strncmp(text, "rank 1: ", 8) == 0, "allocation %d: %s", k, text);
  CHECK((status == RESHARD_SUCCESS) == (comm != NULL), "allocation %d", k);
  *refused += status != RESHARD_SUCCESS;
  if (status == RESHARD_SUCCESS)
    CHECK(reshard_comm_barrier(comm) == RESHARD_SUCCESS, "allocation %d", k);
  reshard_comm_destroy(comm);
  return told[0] != FAULT_NONE;
}

int main(int argc, char **argv) {
  int level, all = 0, refused = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int k = 0; check_without_memory(k, &refused); k++)
    ;
  CHECK(refused >= 18, "%d allocations refused, of the link, the communicator and its device", refused);
  check_made(MPI_COMM_WORLD);
  for (int times = 0; times <= 3; times++)
    check_retries(times);
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0)
    printf("%d ranks: %d checks failed\n", size, all);
  MPI_Finalize();
  return all > 0;
}
