/* Messages are begun with the peer after this rank, so that not all ranks begin with the same one. */
#include "reshard/reshard.h"

#include <mpi.h>
#include <reshard/mpi.h>
#include <stdbool.h>
#include <stdio.h>

enum { MOST = 64, BYTES = 4096 };

static int rank, size, failures, nsent, nreceived, sent[MOST], received[MOST];
static char a[BYTES], b[BYTES];

/* These stand before MPI's. */
int MPI_Isend(const void *at, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
  if ((const char *)at >= a && (const char *)at < a + BYTES && nsent < MOST) /* of the execute, in place */
    sent[nsent++] = to;
  return PMPI_Isend(at, n, type, to, tag, comm, request);
}

int MPI_Irecv(void *at, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request) {
  if ((char *)at >= b && (char *)at < b + BYTES && nreceived < MOST)
    received[nreceived++] = from;
  return PMPI_Irecv(at, n, type, from, tag, comm, request);
}

static void status_check(reshard_status status, const char *what) {
  if (status == RESHARD_SUCCESS)
    return;
  failures++;
  printf("rank %d: %s: %s\n", rank, what, reshard_last_error());
}

static void check_walk(const char *what, int n, const int *peers) {
  bool right = n == size - 1;
  for (int i = 0; i < n && right; i++)
    right = peers[i] == (rank + 1 + i) % size;
  if (right)
    return;
  failures++;
  printf("rank %d of %d %s:", rank, size, what);
  for (int i = 0; i < n; i++)
    printf(" %d", peers[i]);
  printf("\n");
}

/* Every rank has the whole of a block of each other's: a transpose of blocks, contiguous on both sides. */
int main(int argc, char **argv) {
  int all = 0, level;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm world = MPI_COMM_WORLD;
  int64_t shape[2] = {size, 16L * size};
  reshard_entry entry = {RESHARD_ENTRY_INIT, .dtype = RESHARD_F32};
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, (void *[]){a}, (void *[]){b}, NULL, NULL, 0, 0};
  reshard_comm comm = NULL;
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  status_check(reshard_comm_from_mpi(&world, NULL, 0, &comm), "a communicator");
  status_check(reshard_layout_parse("chunk(0)", 2, shape, size, &entry.src), "rows");
  status_check(reshard_layout_parse("chunk(1)", 2, shape, size, &entry.dst), "columns");
  status_check(reshard_plan_create(1, &entry, rank, NULL, &plan), "a plan");
  status_check(reshard_transfer_create(plan, comm, &arrays, NULL, &transfer), "a transfer");
  if (failures == 0)
    status_check(reshard_execute(transfer, NULL), "an execute");
  check_walk("sends to", nsent, sent);
  check_walk("receives from", nreceived, received);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_layout_release(entry.src);
  reshard_layout_release(entry.dst);
  reshard_comm_destroy(comm);
  MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return all > 0;
}
