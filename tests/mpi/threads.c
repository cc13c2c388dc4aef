/* A rank aborts by another thread, where MPI lets one thread in at a time (MPI_THREAD_SERIALIZED): the thread that is
 * in a call tells the others, or waits until the one that aborts has done so. By mpirun with 2 or more ranks. */
#include "comm/mpi/mpi.h"
#include "support/processes/check_ranks.h"

#include <reshard/reshard.h>

#include <limits.h>
#include <mpi.h>
#include <pthread.h>
#include <reshard/mpi.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

static pthread_t main_thread;
static atomic_int others_in_mpi, at_once;

static void look_who_is_in_mpi(void) { at_once += pthread_equal(pthread_self(), main_thread) && others_in_mpi > 0; }

/* These stand before MPI's. Another thread than the main one takes long to send. */
int MPI_Isend(const void *at, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
  bool other = !pthread_equal(pthread_self(), main_thread);
  look_who_is_in_mpi();
  others_in_mpi += other;
  if (other)
    nanosleep(&(struct timespec){0, 5000000}, NULL);
  int code = PMPI_Isend(at, n, type, to, tag, comm, request);
  others_in_mpi -= other;
  return code;
}

int MPI_Testsome(int n, MPI_Request requests[], int *ngot, int got[], MPI_Status statuses[]) {
  look_who_is_in_mpi();
  return PMPI_Testsome(n, requests, ngot, got, statuses);
}

int MPI_Improbe(int from, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status) {
  look_who_is_in_mpi();
  return PMPI_Improbe(from, tag, comm, flag, message, status);
}

static void *abort_beside(void *comm) {
  reshard_comm_abort(comm);
  return NULL;
}

static reshard_comm open_comm(void) {
  reshard_comm comm = NULL;
  MPI_Comm world = MPI_COMM_WORLD;
  CHECK(reshard_comm_from_mpi(&world, NULL, 60000, &comm) == RESHARD_SUCCESS, "a communicator");
  return comm;
}

/* Calls on one communicator while rank 0 aborts another, or the same, by a thread: in a call, between two, or as it
 * goes into one. Until an error, or so many. */
static reshard_status call_and_abort(reshard_comm calls, reshard_comm aborted, int most, int turn) {
  pthread_t thread;
  reshard_status status = RESHARD_SUCCESS;
  for (int k = 0; status == RESHARD_SUCCESS && k < most; k++) {
    if (rank == 0 && k == 3)
      pthread_create(&thread, NULL, abort_beside, aborted);
    nanosleep(&(struct timespec){0, turn * 10000}, NULL);
    status = reshard_comm_barrier(calls);
    CHECK(status == RESHARD_SUCCESS || others_in_mpi == 0, "a thread is in MPI when a call has failed");
  }
  if (rank == 0)
    pthread_join(thread, NULL);
  return status;
}

static void aborts_by_threads(void) {
  for (int i = 0; i < 20; i++) {
    reshard_comm comm = open_comm();
    CHECK(call_and_abort(comm, comm, INT_MAX, i) == RESHARD_ERROR_PEER, "it goes on");
    MPI_Barrier(MPI_COMM_WORLD);
    reshard_comm_destroy(comm);
  }
}

/* The thread that is in a call on a part tells that the whole has ended, and the reverse: the part is another's alone,
 * whose ranks hear of it in their next call. */
static void aborts_of_others(void) {
  for (int i = 0; i < 20; i++) {
    reshard_comm comm = open_comm(), part = NULL;
    CHECK(reshard_comm_split(comm, 0, 0, &part) == RESHARD_SUCCESS, "a part");
    CHECK(call_and_abort(comm, part, 20, i) == RESHARD_SUCCESS, "the whole ends with its part");
    CHECK(reshard_comm_barrier(part) == RESHARD_ERROR_PEER, "the part goes on");
    MPI_Barrier(MPI_COMM_WORLD);
    reshard_comm_destroy(part);
    CHECK(reshard_comm_split(comm, 0, 0, &part) == RESHARD_SUCCESS, "another part");
    CHECK(call_and_abort(part, comm, INT_MAX, i) == RESHARD_ERROR_PEER, "the part goes on");
    CHECK(reshard_comm_barrier(comm) == RESHARD_ERROR_PEER, "the whole goes on");
    MPI_Barrier(MPI_COMM_WORLD);
    reshard_comm_destroy(comm);
    reshard_comm_destroy(part);
  }
}

/* Ends it on all ranks: rank 0 does not come by the deadline of the others. */
static void pass_deadline(reshard_comm comm) {
  comm->timeout_ms = 300;
  if (rank != 0)
    CHECK(reshard_comm_barrier(comm) != RESHARD_SUCCESS, "a deadline");
  MPI_Barrier(MPI_COMM_WORLD);
  CHECK(reshard_comm_barrier(comm) != RESHARD_SUCCESS, "after the deadline");
}

/* Parts go on beyond a deadline of the whole, until a rank aborts that: also those that it is not in. */
static void aborts_of_ended(int aborter) {
  reshard_comm comm = open_comm(), part = NULL, others = NULL;
  CHECK(reshard_comm_split(comm, 0, 0, &part) == RESHARD_SUCCESS, "a part");
  CHECK(reshard_comm_split(comm, rank == aborter, 0, &others) == RESHARD_SUCCESS, "all but one");
  pass_deadline(comm);
  CHECK(reshard_comm_barrier(part) == RESHARD_SUCCESS, "the part goes on");
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == aborter)
    CHECK(reshard_comm_abort(comm) == RESHARD_SUCCESS, "abort");
  CHECK(reshard_comm_barrier(rank == (aborter + 1) % size ? part : others) == RESHARD_ERROR_PEER, "a part goes on");
  CHECK(strstr(reshard_last_error(), "aborted the communicator") != NULL, "names who aborted");
  MPI_Barrier(MPI_COMM_WORLD);
  reshard_comm_destroy(others);
  reshard_comm_destroy(part);
  reshard_comm_destroy(comm);
}

/* The same by a thread beside one that is in a call on the part. */
static void aborts_of_ended_by_threads(void) {
  for (int i = 0; i < 3; i++) {
    reshard_comm comm = open_comm(), part = NULL;
    CHECK(reshard_comm_split(comm, 0, 0, &part) == RESHARD_SUCCESS, "a part");
    pass_deadline(comm);
    CHECK(call_and_abort(part, comm, INT_MAX, i) == RESHARD_ERROR_PEER, "the part goes on");
    MPI_Barrier(MPI_COMM_WORLD);
    reshard_comm_destroy(part);
    reshard_comm_destroy(comm);
  }
}

int main(int argc, char **argv) {
  int level, all = 0;
  main_thread = pthread_self();
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  aborts_by_threads();
  aborts_of_others();
  for (int aborter = 0; aborter < 2; aborter++)
    aborts_of_ended(aborter);
  aborts_of_ended_by_threads();
  CHECK(at_once == 0, "%d calls of MPI while another thread was in it", (int)at_once);
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return all > 0;
}
