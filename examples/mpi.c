/* Rows to columns of a matrix over MPI, on as many ranks as there are; a program without mpirun is one rank. */
#include <mpi.h>

#include <reshard/mpi.h>
#include <reshard/reshard.h>

#include <stdbool.h>
#include <stdio.h>

enum { N = 8 }; /* the element (i, j) of the matrix is N * i + j + 1 */

/* Moves the matrix, and sets *right if this rank has its columns. */
static reshard_status rows_to_columns(reshard_comm comm, bool *right) {
  const int64_t shape[] = {N, N}, ranks = reshard_comm_size(comm), rank = reshard_comm_rank(comm);
  int64_t part = (N + ranks - 1) / ranks, first = rank * part < N ? rank * part : N; /* as torch.chunk cuts */
  int64_t count = N - first < part ? N - first : part;
  float rows[N * N], columns[N * N] = {0};
  void *src = rows, *dst = columns;
  reshard_layout from = NULL, to = NULL;
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < count * N; i++)
    rows[i] = (float)(first * N + i + 1);
  if ((status = reshard_layout_parse("chunk(0)", 2, shape, ranks, &from)) == RESHARD_SUCCESS &&
      (status = reshard_layout_parse("chunk(1)", 2, shape, ranks, &to)) == RESHARD_SUCCESS) {
    reshard_entry entry = RESHARD_ENTRY_DEFAULTS;
    entry.src = from, entry.dst = to, entry.dtype = RESHARD_F32;
    status = reshard_plan_create(1, &entry, rank, NULL, &plan);
  }
  if (status == RESHARD_SUCCESS) {
    reshard_arrays arrays = RESHARD_ARRAYS_DEFAULTS;
    arrays.src = &src, arrays.dst = &dst;
    status = reshard_transfer_create(plan, comm, &arrays, NULL, &transfer);
  }
  if (status == RESHARD_SUCCESS)
    status = reshard_execute(transfer, NULL);
  *right = status == RESHARD_SUCCESS;
  for (int64_t i = 0; *right && i < N * count; i++)
    *right = columns[i] == (float)(i / count * N + first + i % count + 1);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_layout_release(from);
  reshard_layout_release(to);
  return status;
}

int main(int argc, char **argv) {
  reshard_comm comm = NULL;
  bool right = false;
  MPI_Init(&argc, &argv);
  reshard_status status = reshard_comm_from_mpi_comm(MPI_COMM_WORLD, NULL, 0, &comm);
  if (status == RESHARD_SUCCESS)
    status = rows_to_columns(comm, &right);
  if (status != RESHARD_SUCCESS)
    printf("%s: %s\n", reshard_status_string(status), reshard_last_error());
  else
    printf("over MPI: the columns are %s\n", right ? "right" : "wrong");
  reshard_comm_destroy(comm);
  MPI_Finalize();
  return !right;
}
