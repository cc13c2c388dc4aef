/* A reshard from rows to columns by MPI's own calls, for peers.py: alltoall SIDE, under mpirun.
 *
 * Each of P ranks has SIDE / P rows of a square matrix of f32, and gets as many columns of it. The ways:
 *   MPI_Alltoallw          one call; a peer's part is a vector type of the rows, and contiguous in the columns
 *   pack + MPI_Alltoall    a loop of memcpy makes parts contiguous, the call delivers them in place
 * The result of each is checked after its first time. */
#include "bench/compare/mpi_turns.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALLTOALLW, PACK };
static const char *const ways[] = {"MPI_Alltoallw", "pack + MPI_Alltoall", NULL};

typedef struct alltoall {
  int rank, ranks, side, part; /* part: rows or columns of a rank */
  float *rows, *columns, *packed;
  int *counts, *ones, *source_offsets, *offsets;
  MPI_Datatype *source_types, *types, vector;
} alltoall;

static void alltoall_open(alltoall *a, int side) {
  size_t elements = (size_t)side * (size_t)a->part, n = (size_t)a->ranks;
  a->side = side;
  a->rows = mpi_turns_alloc(elements * sizeof *a->rows);
  a->columns = mpi_turns_alloc(elements * sizeof *a->columns);
  a->packed = mpi_turns_alloc(elements * sizeof *a->packed);
  a->counts = mpi_turns_alloc(n * sizeof *a->counts);
  a->ones = mpi_turns_alloc(n * sizeof *a->ones);
  a->source_offsets = mpi_turns_alloc(n * sizeof *a->source_offsets);
  a->offsets = mpi_turns_alloc(n * sizeof *a->offsets);
  a->source_types = mpi_turns_alloc(n * sizeof(MPI_Datatype));
  a->types = mpi_turns_alloc(n * sizeof(MPI_Datatype));
  MPI_Type_vector(a->part, a->part, side, MPI_FLOAT, &a->vector);
  MPI_Type_commit(&a->vector);
  for (int p = 0; p < a->ranks; p++) {
    a->ones[p] = 1;
    a->counts[p] = a->part * a->part;
    a->source_offsets[p] = p * a->part * (int)sizeof(float);
    a->offsets[p] = p * a->part * a->part * (int)sizeof(float);
    a->source_types[p] = a->vector;
    a->types[p] = MPI_FLOAT;
  }
  for (int r = 0; r < a->part; r++)
    for (int c = 0; c < side; c++)
      a->rows[(size_t)r * (size_t)side + (size_t)c] = mpi_turns_element(a->rank * a->part + r, c);
  memset(a->packed, 0, elements * sizeof *a->packed);
}

static void alltoall_close(alltoall *a) {
  MPI_Type_free(&a->vector);
  free(a->rows);
  free(a->columns);
  free(a->packed);
  free(a->counts);
  free(a->ones);
  free(a->source_offsets);
  free(a->offsets);
  free(a->source_types);
  free(a->types);
}

static void alltoall_clear(void *user) {
  alltoall *a = user;
  memset(a->columns, 0xff, (size_t)a->side * (size_t)a->part * sizeof *a->columns);
}

static void alltoall_move(void *user, int way) {
  alltoall *a = user;
  size_t part = (size_t)a->part;
  if (way == ALLTOALLW) {
    MPI_Alltoallw(a->rows, a->ones, a->source_offsets, a->source_types, a->columns, a->counts, a->offsets, a->types,
                  MPI_COMM_WORLD);
    return;
  }
  for (size_t p = 0; p < (size_t)a->ranks; p++)
    for (size_t r = 0; r < part; r++)
      memcpy(a->packed + (p * part + r) * part, a->rows + r * (size_t)a->side + p * part, part * sizeof *a->packed);
  MPI_Alltoall(a->packed, a->part * a->part, MPI_FLOAT, a->columns, a->part * a->part, MPI_FLOAT, MPI_COMM_WORLD);
}

static void alltoall_check(void *user, int way) {
  const alltoall *a = user;
  for (int r = 0; r < a->side; r++)
    for (int c = 0; c < a->part; c++) {
      float is = a->columns[(size_t)r * (size_t)a->part + (size_t)c],
            wanted = mpi_turns_element(r, a->rank * a->part + c);
      if (is != wanted)
        mpi_turns_fail("alltoall: %s: rank %d: row %d, column %d is %g, not %g", ways[way], a->rank, r, c, (double)is,
                       (double)wanted);
    }
}

int main(int argc, char **argv) {
  alltoall a = {0};
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &a.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &a.ranks);
  int side = argc == 2 ? atoi(argv[1]) : 0;
  if (side < 1 || side > 32768 || side % a.ranks != 0) {
    if (a.rank == 0)
      fprintf(stderr, "usage: alltoall SIDE, from 1 to 32768, a multiple of the %d ranks\n", a.ranks);
    MPI_Finalize();
    return 2;
  }
  a.part = side / a.ranks;
  alltoall_open(&a, side);
  MPI_Get_library_version(version, &length);
  version[strcspn(version, ",\n")] = '\0';
  mpi_turns_serve(&(mpi_turns){ways, &a, alltoall_clear, alltoall_move, alltoall_check}, version);
  alltoall_close(&a);
  MPI_Finalize();
  return 0;
}
