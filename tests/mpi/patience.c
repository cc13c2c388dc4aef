/* A deadline is of a creation, or a split, as a whole: a rank that is late at each of its steps, by less, is missing
 * from it. And a rank that waits on what was split from a communicator is there for those that wait on that: they name
 * the one that it waits for.
 *
 * usage: mpi_patience [TIMES], by mpirun with 4 ranks. */
#include "comm/mpi/mpi.h"
#include "support/losses/losses.h"
#include "support/processes/check_ranks.h"

#include <mpi.h>
#include <reshard/mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SLOW = 2, LIMIT_MS = 1000, PATIENT_MS = 60000, STEP_MS = 4 * LIMIT_MS / 5, TAG = 7, TRIES = 20 };

static bool slow, tells; /* this rank is late; it says so when it waits */
static int steps;        /* at which it was late */
enum { MAKE, SPLIT, PART, WHATS };
static const char *const what_names[WHATS] = {"make", "split", "meet beside a split"};
static loss_counts counts[WHATS];

/* An error of one that is there. */
static void count_error(int what, bool named, int64_t ms) {
  counts[what].stops += rank == SLOW - 1;
  counts[what].errors += rank != SLOW;
  counts[what].unnamed += rank != SLOW && !named;
  counts[what].late += rank != SLOW && ms > LIMIT_MS + 1000;
}

/* Once all others wait. Each sleep is shorter than the deadline, two are longer. */
static void be_late(void) {
  for (int r = 0; slow && steps == 0 && r < size; r++)
    if (r != rank)
      PMPI_Recv(NULL, 0, MPI_CHAR, r, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  if (!slow)
    return;
  steps++;
  nanosleep(&(struct timespec){0, STEP_MS * 1000000}, NULL);
}

static void tell_wait(int to) {
  if (tells)
    PMPI_Send(NULL, 0, MPI_CHAR, to, TAG, MPI_COMM_WORLD);
  tells = false;
}

/* These stand before MPI's. A step begins with the first of some calls that are alike. */
int MPI_Comm_idup(MPI_Comm comm, MPI_Comm *made, MPI_Request *request) {
  be_late();
  return PMPI_Comm_idup(comm, made, request);
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status) { /* in the duplication */
  tell_wait(SLOW);
  return PMPI_Test(request, flag, status);
}

int MPI_Isend(const void *at, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
  if (to == (rank + 1) % size && tag % RS_MPI_TAGS == RS_MPI_TAG_RECORD) /* the first of an all-gather */
    be_late();
  return PMPI_Isend(at, n, type, to, tag, comm, request);
}

int MPI_Testsome(int n, MPI_Request requests[], int *ngot, int got[], MPI_Status statuses[]) {
  tell_wait(SLOW);
  return PMPI_Testsome(n, requests, ngot, got, statuses);
}

/* The others have an error by the deadline; the slow one has theirs when it comes. In a creation it may be there again
 * while they ask, and then no rank is missing. */
static void check_late(reshard_status status, int64_t since, const char *call, int what) {
  int64_t ms = (rs_now_ns() - since) / 1000000;
  char name[32];
  slow = tells = false;
  snprintf(name, sizeof name, "; missing: %d", SLOW);
  int gave_up = strstr(reshard_last_error(), "not known yet") != NULL; /* on a busy machine, before a second step */
  MPI_Allreduce(MPI_IN_PLACE, &gave_up, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (what == MAKE && gave_up) {
    steps = 1; /* once more */
    return;
  }
  const char *missing = strstr(reshard_last_error(), "; missing: ");
  CHECK(status == RESHARD_ERROR_TIMEOUT, "%s: %s", call, reshard_status_string(status));
  CHECK(strstr(reshard_last_error(), call) != NULL, "names the call");
  CHECK(missing != NULL ? strcmp(missing, name) == 0 : what == MAKE, "names the rank that is late, and no other");
  CHECK(ms < PATIENT_MS / 2, "%s: %lld ms", call, (long long)ms);
  count_error(what, missing != NULL, ms);
  MPI_Barrier(MPI_COMM_WORLD);
}

static void check_creation(MPI_Comm mpi) {
  reshard_comm comm = NULL;
  slow = rank == SLOW;
  tells = !slow;
  steps = 0;
  int64_t since = rs_now_ns();
  reshard_status status = reshard_comm_from_mpi(&mpi, NULL, LIMIT_MS, &comm);
  check_late(status, since, "reshard_comm_from_mpi", MAKE);
}

static void check_split(MPI_Comm mpi) {
  reshard_comm comm = NULL, part = NULL;
  CHECK(reshard_comm_from_mpi(&mpi, NULL, PATIENT_MS, &comm) == RESHARD_SUCCESS, "a comm");
  comm->timeout_ms = rank == SLOW ? PATIENT_MS : LIMIT_MS;
  MPI_Barrier(MPI_COMM_WORLD);
  slow = rank == SLOW;
  tells = !slow;
  steps = 0;
  int64_t since = rs_now_ns();
  reshard_status status = reshard_comm_split(comm, 0, 0, &part);
  check_late(status, since, "reshard_comm_split", SPLIT);
  reshard_comm_destroy(comm);
}

/* Ranks 1 and 3 wait on the whole for ranks 0 and 2. Rank 2 comes to nothing, and rank 0 waits for it on a part. */
static void check_part(MPI_Comm mpi) {
  reshard_comm comm = NULL, part = NULL;
  CHECK(reshard_comm_from_mpi(&mpi, NULL, PATIENT_MS, &comm) == RESHARD_SUCCESS, "a comm");
  comm->timeout_ms = rank % 2 == 0 ? PATIENT_MS : LIMIT_MS;
  CHECK(reshard_comm_split(comm, rank % 2, 0, &part) == RESHARD_SUCCESS, "parts");
  MPI_Barrier(MPI_COMM_WORLD);
  reshard_status status = RESHARD_SUCCESS;
  if (rank == 0) {
    tells = true; /* that it waits */
    status = reshard_comm_barrier(part);
    CHECK(status == RESHARD_SUCCESS, "%s", reshard_status_string(status));
  } else if (rank == SLOW) {
    for (int r = 0; r < 4; r++)
      if (r != rank)
        PMPI_Recv(NULL, 0, MPI_CHAR, r, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    status = reshard_comm_barrier(part);
    CHECK(status == RESHARD_SUCCESS, "%s", reshard_status_string(status));
  } else {
    int64_t since = rs_now_ns();
    status = reshard_comm_barrier(comm);
    const char *missing = strstr(reshard_last_error(), "; missing: ");
    CHECK(status == RESHARD_ERROR_TIMEOUT, "%s", reshard_status_string(status));
    CHECK(missing != NULL && strcmp(missing, "; missing: 2") == 0, "names the rank that is lost, and no other");
    count_error(PART, missing != NULL, (rs_now_ns() - since) / 1000000);
    PMPI_Send(NULL, 0, MPI_CHAR, SLOW, TAG, MPI_COMM_WORLD);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  reshard_comm_destroy(part);
  reshard_comm_destroy(comm);
}

/* A wait has the rest of its call's time, and a moment at least, also when that has passed. */
static void check_moment(void) {
  const int64_t ms = 1000000, begun = 5000 * ms;
  const rs_mpi c = {.base = {.meets.begun = begun, .timeout_ms = LIMIT_MS}};
  for (int64_t passed = 0; passed <= 3 * LIMIT_MS; passed += 50) {
    int64_t left = rs_mpi_waits_from(&c, begun + passed * ms) / ms + LIMIT_MS - 5000 - passed;
    CHECK(left == rs_max(LIMIT_MS - passed, RS_MPI_MOMENT_MS), "%d ms are left after %d", (int)left, (int)passed);
  }
}

int main(int argc, char **argv) {
  void (*const checks[WHATS])(MPI_Comm) = {check_creation, check_split, check_part};
  int level, all = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  check_moment();
  int times = argc > 1 ? atoi(argv[1]) : 1;
  for (int i = 0; i < times * WHATS; i++) {
    int late_at = 1; /* on a busy machine the others may give up before its second step */
    for (int tries = 0; tries < TRIES && late_at == 1; tries++) {
      MPI_Comm mpi;
      MPI_Comm_dup(MPI_COMM_WORLD, &mpi);
      checks[i % WHATS](mpi);
      late_at = i % WHATS == PART ? 0 : steps;
      MPI_Bcast(&late_at, 1, MPI_INT, SLOW, MPI_COMM_WORLD);
    }
    CHECK(i % WHATS == PART || late_at > 1, "%s: late at %d steps", what_names[i % WHATS], late_at);
  }
  for (int what = 0; what < WHATS; what++) {
    int64_t sum[] = {counts[what].stops, counts[what].errors, counts[what].late, counts[what].unnamed};
    MPI_Allreduce(MPI_IN_PLACE, sum, 4, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
      loss_counts_print("mpi, any, 4 processes", what == PART ? "stop" : "late at each step", what_names[what],
                        &(loss_counts){sum[0], sum[1], 0, sum[2], sum[3]});
  }
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0)
    printf("%d ranks: %d checks failed\n", size, all);
  MPI_Finalize();
  return all > 0;
}
