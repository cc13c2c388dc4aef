/* Processes that mpirun has started, and the MPI communicator. */
#include "support/processes/world.h"

#include "comm/mpi/mpi.h"

#include <mpi.h>
#include <reshard/mpi.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

const char world_name[] = "mpi";
const char world_call[] = "reshard_comm_from_mpi";
const char world_bad_timeout[] = "reshard_comm_from_mpi: timeout_ms -1 ms on rank 1, 7000 ms on rank 0";

void world_open(int *argc, char ***argv, int *rank, int *size) {
  int level;
  MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, size);
}

int64_t world_close(int64_t failures) {
  int64_t all = 0;
  MPI_Allreduce(&failures, &all, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  return all;
}

void world_barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

void world_broadcast(void *bytes, size_t n, int from) { MPI_Bcast(bytes, (int)n, MPI_BYTE, from, MPI_COMM_WORLD); }

/* WORLD_PER_NODE: so many ranks are on a node, and share memory there. Without it all is in messages. */
reshard_status world_connect(int64_t timeout_ms, reshard_comm *comm) {
  MPI_Comm world = MPI_COMM_WORLD;
  const char *per_node = getenv("WORLD_PER_NODE");
  const reshard_device_options options = {.size = RESHARD_DEVICE_OPTIONS_INIT, .shared = per_node != NULL};
  reshard_device device = NULL;
  char node[16];
  int rank;
  MPI_Comm_rank(world, &rank);
  snprintf(node, sizeof node, "%d", per_node != NULL ? rank / atoi(per_node) : 0);
  if (per_node != NULL)
    setenv("RESHARD_NODE", node, 1);
  reshard_status status = reshard_device_create("cpu", &options, &device);
  if (status == RESHARD_SUCCESS)
    status = reshard_comm_from_mpi(&world, device, timeout_ms, comm);
  reshard_device_release(device);
  return status;
}

reshard_status world_connect_without(int64_t timeout_ms, reshard_comm *comm) {
  static MPI_Comm copy = MPI_COMM_NULL; /* where the duplication is left half-done */
  if (timeout_ms == 0)
    return MPI_Comm_dup(MPI_COMM_WORLD, &copy) == MPI_SUCCESS ? RESHARD_SUCCESS : RESHARD_ERROR_PEER;
  return reshard_comm_from_mpi(&copy, NULL, timeout_ms, comm);
}

static _Atomic int64_t records;

/* Stands before MPI's: a rank sends its record to each of the others in a meeting. */
int MPI_Isend(const void *at, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
  records += tag % RS_MPI_TAGS == RS_MPI_TAG_RECORD;
  return PMPI_Isend(at, n, type, to, tag, comm, request);
}

int64_t world_meetings(reshard_comm comm) {
  int64_t others = reshard_comm_size(comm) - 1;
  return others > 0 ? records / others : 0;
}
