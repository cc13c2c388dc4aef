/* Rows to columns over MPI, as many ranks as there are; an MPI program alone is one rank. */
#include <mpi.h>

#include <reshard/mpi.h>
#include <reshard/reshard.h>

#include <stdio.h>

static reshard_status rows_to_columns(reshard_comm comm) {
  enum { N = 8 };
  const int64_t shape[] = {N, N};
  int64_t ranks = reshard_comm_size(comm);
  float rows[N * N], columns[N * N] = {0};
  void *src = rows, *dst = columns;
  reshard_layout from = NULL, to = NULL;
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  reshard_status status = RESHARD_SUCCESS;
  for (int i = 0; i < N * N; i++)
    rows[i] = (float)(i + 1);
  if ((status = reshard_layout_parse("chunk(0)", 2, shape, ranks, &from)) == RESHARD_SUCCESS &&
      (status = reshard_layout_parse("chunk(1)", 2, shape, ranks, &to)) == RESHARD_SUCCESS) {
    reshard_entry entry = RESHARD_ENTRY_DEFAULTS;
    entry.src = from, entry.dst = to, entry.dtype = RESHARD_F32;
    status = reshard_plan_create(1, &entry, reshard_comm_rank(comm), NULL, &plan);
  }
  if (status == RESHARD_SUCCESS) {
    reshard_arrays arrays = RESHARD_ARRAYS_DEFAULTS;
    arrays.src = &src, arrays.dst = &dst;
    status = reshard_transfer_create(plan, comm, &arrays, NULL, &transfer);
  }
  if (status == RESHARD_SUCCESS)
    status = reshard_execute(transfer, NULL);
  if (status == RESHARD_SUCCESS && columns[0] == 0)
    status = RESHARD_ERROR_SYSTEM;
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_layout_release(from);
  reshard_layout_release(to);
  return status;
}

int main(int argc, char **argv) {
  reshard_comm comm = NULL;
  MPI_Init(&argc, &argv);
  reshard_status status = reshard_comm_from_mpi_comm(MPI_COMM_WORLD, NULL, 0, &comm);
  if (status == RESHARD_SUCCESS)
    status = rows_to_columns(comm);
  printf("%s: %s\n", reshard_status_string(status), status == RESHARD_SUCCESS ? "over MPI" : reshard_last_error());
  reshard_comm_destroy(comm);
  MPI_Finalize();
  return status != RESHARD_SUCCESS;
}
