/* Words of ranks on one node, by which they tell an end before their notes come. Run by mpirun with 2 or more ranks.
 *
 * Parts that are made and destroyed take no more of a rank's address space and memory file. A word that another part
 * was given does not hide the end of the first. A note that is late is waited for, and one that never comes makes its
 * rank a missing one. */
#include "comm/comm.h"
#include "device/cpu/segment.h"
#include "support/processes/check_ranks.h"

#include <reshard/reshard.h>

#include <mpi.h>
#include <reshard/mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SPLITS = 60, DEADLINE_MS = 1000, PATIENCE_MS = 60000 };

static int delay_ms; /* of this rank's next message, after a meeting of all ranks */

/* Stands before MPI's. */
int MPI_Isend(const void *at, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
  if (delay_ms > 0) {
    struct timespec time = {delay_ms / 1000, delay_ms % 1000 * 1000000L};
    delay_ms = 0;
    PMPI_Barrier(MPI_COMM_WORLD);
    nanosleep(&time, NULL);
  }
  return PMPI_Isend(at, n, type, to, tag, comm, request);
}

static reshard_comm make_comm(reshard_device device, int timeout_ms) {
  MPI_Comm world = MPI_COMM_WORLD;
  reshard_comm comm = NULL;
  CHECK(reshard_comm_from_mpi(&world, device, timeout_ms, &comm) == RESHARD_SUCCESS, "create");
  return comm;
}

static int count_maps(void) {
  FILE *file = fopen("/proc/self/maps", "r");
  int n = 0;
  for (int c; file != NULL && (c = fgetc(file)) != EOF;)
    n += c == '\n';
  if (file != NULL)
    fclose(file);
  return n;
}

/* Where the next segment of this rank's memory file begins. */
static int64_t file_end(void) {
  rs_shared_place place = {.offset = 0};
  int64_t inside;
  void *memory;
  if (rs_shared_alloc(1, &memory) != RESHARD_SUCCESS)
    return -1;
  CHECK(rs_shared_find(memory, (char *)memory + 1, &place, &inside), "a segment");
  rs_shared_free(memory);
  return place.offset;
}

static void split_often(reshard_device device) {
  reshard_comm comm = make_comm(device, 0);
  int maps = 0;
  int64_t end = 0;
  for (int i = 0; i < SPLITS; i++) {
    reshard_comm part = NULL;
    if (i == SPLITS / 2) {
      maps = count_maps();
      end = file_end();
    }
    CHECK(reshard_comm_split(comm, 0, 0, &part) == RESHARD_SUCCESS, "split %d", i);
    CHECK(reshard_comm_barrier(part) == RESHARD_SUCCESS, "barrier %d", i);
    reshard_comm_destroy(part);
  }
  int more = count_maps() - maps;
  int64_t bytes = file_end() - end;
  CHECK(more < SPLITS / 10, "%d more mappings after %d splits", more, SPLITS / 2);
  CHECK(bytes < 16 * 4096, "%lld more bytes of the file", (long long)bytes);
  reshard_comm_destroy(comm);
}

/* The last call on a communicator that rank 0 has ended: it names it, and says why. missing: whether it counts as. */
static void check_end(reshard_comm comm, const char *why, bool missing) {
  int64_t n = 0, ranks[64] = {-1};
  CHECK(reshard_comm_barrier(comm) == RESHARD_ERROR_PEER, "an end");
  CHECK(strstr(reshard_last_error(), why) != NULL, "the reason");
  CHECK(reshard_comm_missing(comm, ranks, &n) == RESHARD_SUCCESS, "missing");
  CHECK(n == missing && (n == 0 || ranks[0] == 0), "%lld missing, the first is %lld", (long long)n,
        (long long)ranks[0]);
}

/* Rank 0 gives its word to another part, while the others still have the first. */
static void reuse_words(reshard_device device) {
  reshard_comm comm = make_comm(device, DEADLINE_MS), first = NULL, second = NULL;
  CHECK(reshard_comm_split(comm, 0, 0, &first) == RESHARD_SUCCESS, "split");
  CHECK(reshard_comm_barrier(first) == RESHARD_SUCCESS, "barrier");
  if (rank == 0)
    reshard_comm_destroy(first);
  CHECK(reshard_comm_split(comm, 0, 0, &second) == RESHARD_SUCCESS, "split");
  CHECK(reshard_comm_barrier(second) == RESHARD_SUCCESS, "barrier");
  if (rank != 0) {
    check_end(first, "rank 0 has given up, and has not told why", true);
    reshard_comm_destroy(first);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  reshard_comm_destroy(second);
  reshard_comm_destroy(comm);
}

/* Rank 0 aborts, and its note comes late. */
static void delay_note(reshard_device device, int timeout_ms, int late_ms, const char *why, bool missing) {
  reshard_comm comm = make_comm(device, timeout_ms > 0 ? PATIENCE_MS : 0);
  comm->timeout_ms = timeout_ms; /* once all are there */
  CHECK(reshard_comm_barrier(comm) == RESHARD_SUCCESS, "barrier");
  if (rank == 0) {
    delay_ms = late_ms;
    CHECK(reshard_comm_abort(comm) == RESHARD_SUCCESS, "abort");
  } else {
    PMPI_Barrier(MPI_COMM_WORLD);
    check_end(comm, why, missing);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  reshard_comm_destroy(comm);
}

int main(int argc, char **argv) {
  const reshard_device_options options = {.size = RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .shared = true};
  reshard_device device = NULL;
  int level, all = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  CHECK(reshard_device_create("cpu", &options, &device) == RESHARD_SUCCESS, "device");
  split_often(device);
  reuse_words(device);
  delay_note(device, 0, 700, "rank 0 aborted the communicator", false);
  delay_note(device, 300, 3000, "rank 0 has given up, and has not told why", true);
  reshard_device_release(device);
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0)
    printf("%d ranks: %d checks failed\n", size, all);
  MPI_Finalize();
  return all > 0;
}
