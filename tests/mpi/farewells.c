/* A rank gives up a communicator while it is made: all others hear it at once, whatever their deadlines, and get the
 * same error. So does one that comes later. Calls that follow while a rank is absent name it, on all ranks. The next
 * communicator from the same MPI_Comm is made.
 *
 * usage: mpi_farewells, by mpirun with 3 or more ranks. */
#include "base/base.h"
#include "support/processes/check_ranks.h"

#include <mpi.h>
#include <reshard/mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { IMPATIENT = 1, IMPATIENT_MS = 1000, PATIENT_MS = 60000 };

static bool stops, blind; /* in the duplication; it does not see that it is done */

/* These stand before MPI's. */
int MPI_Comm_idup(MPI_Comm comm, MPI_Comm *made, MPI_Request *request) {
  if (stops) {
    stops = false;
    PMPI_Barrier(MPI_COMM_WORLD);
  }
  return PMPI_Comm_idup(comm, made, request);
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status) {
  if (!blind)
    return PMPI_Test(request, flag, status);
  *flag = 0;
  return PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &(int){0}, MPI_STATUS_IGNORE);
}

/* All ranks have this rank's text. */
static void check_one_text(int of, const char *text) {
  char all[1024];
  snprintf(all, sizeof all, "%s", text);
  MPI_Bcast(all, sizeof all, MPI_CHAR, of, MPI_COMM_WORLD);
  CHECK(strcmp(all, text) == 0, "'%s', on rank %d '%s'", text, of, all);
}

typedef enum way { NOT_THERE, STOPPED, BLIND } way;

/* A creation that rank 1 gives up. Rank 0 comes after that, or is stopped in the duplication, or all is done but for
 * what rank 1 sees. */
static void give_up(MPI_Comm mpi, way way, const char *why) {
  reshard_comm comm = NULL;
  char text[1024];
  bool late = way == NOT_THERE && rank == 0;
  MPI_Barrier(MPI_COMM_WORLD);
  if (late)
    MPI_Barrier(MPI_COMM_WORLD); /* all others have given up */
  stops = way == STOPPED && rank == 0;
  blind = way == BLIND && rank == IMPATIENT;
  int64_t since = rs_now_ns();
  reshard_status status = reshard_comm_from_mpi(&mpi, NULL, rank == IMPATIENT ? IMPATIENT_MS : PATIENT_MS, &comm);
  int64_t ms = (rs_now_ns() - since) / 1000000;
  snprintf(text, sizeof text, "%s", reshard_last_error());
  blind = false;
  CHECK(status == RESHARD_ERROR_TIMEOUT && comm == NULL, "way %d: %s", way, reshard_status_string(status));
  CHECK(strstr(text, why) != NULL, "way %d: '%s' is not in '%s'", way, why, text);
  CHECK(ms < PATIENT_MS / 2, "way %d: %lld ms", way, (long long)ms);
  if (way != BLIND && rank != 0)
    MPI_Barrier(MPI_COMM_WORLD);
  check_one_text(IMPATIENT, text);
}

/* Calls that rank 0 makes after all others have given up all of theirs. It has as many before the next is made. */
static void give_up_often(MPI_Comm mpi, int times) {
  char text[1024], why[256];
  reshard_comm comm = NULL;
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0)
    MPI_Barrier(MPI_COMM_WORLD);
  for (int i = 0; i < times; i++) {
    reshard_status status = reshard_comm_from_mpi(&mpi, NULL, rank == IMPATIENT ? IMPATIENT_MS : PATIENT_MS, &comm);
    snprintf(text, sizeof text, "%s", reshard_last_error());
    CHECK(status == RESHARD_ERROR_TIMEOUT && comm == NULL, "time %d: %s", i, reshard_status_string(status));
    snprintf(why, sizeof why, "call 1: %sMPI_Comm_idup: not done within %d ms; missing: 0", i > 0 ? "an earlier " : "",
             IMPATIENT_MS);
    CHECK(strstr(text, why) != NULL, "time %d: '%s' is not in '%s'", i, why, text);
  }
  if (rank != 0)
    MPI_Barrier(MPI_COMM_WORLD);
  check_one_text(IMPATIENT, text);
}

static void check_next(MPI_Comm mpi, int way) {
  reshard_comm comm = NULL;
  CHECK(reshard_comm_from_mpi(&mpi, NULL, PATIENT_MS, &comm) == RESHARD_SUCCESS, "after way %d", way);
  CHECK(reshard_comm_barrier(comm) == RESHARD_SUCCESS, "after way %d", way);
  reshard_comm_destroy(comm);
}

int main(int argc, char **argv) {
  static const char *const whys[] = {
      [NOT_THERE] = "reshard_comm_from_mpi, call 1: MPI_Comm_idup: not done within 1000 ms; missing: 0",
      [STOPPED] = "reshard_comm_from_mpi, call 1: MPI_Comm_idup: not done within 1000 ms; missing: 0",
      [BLIND] = "reshard_comm_from_mpi, call 1: MPI_Comm_idup: not done within 1000 ms"};
  int level, all = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int way = NOT_THERE; way <= BLIND; way++) {
    MPI_Comm mpi;
    MPI_Comm_dup(MPI_COMM_WORLD, &mpi);
    for (int i = 0; i < 2 && (i == 0 || way == BLIND); i++) /* again: the others begin a duplication, and rank 1 none */
      give_up(mpi, (enum way)way, whys[way]);
    check_next(mpi, way);
  }
  for (int times = 2; times <= 3; times++) {
    MPI_Comm mpi;
    MPI_Comm_dup(MPI_COMM_WORLD, &mpi);
    give_up_often(mpi, times);
    check_next(mpi, BLIND + times);
  }
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0)
    printf("%d ranks: %d checks failed\n", size, all);
  MPI_Finalize();
  return all > 0;
}
