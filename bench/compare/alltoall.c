/* A reshard from rows to columns by MPI's own calls, for peers.py: alltoall SIDE, under mpirun.
 *
 * Each of P ranks has SIDE / P rows of a square matrix of f32, and gets as many columns of it. Rank 0 reads what to do
 * from standard input, a line each, and answers with the seconds of the slowest rank:
 *   MPI_Alltoallw          one call; a peer's part is a vector type of the rows, and contiguous in the columns
 *   pack + MPI_Alltoall    a loop of memcpy makes parts contiguous, the call delivers them in place
 * The result of each is checked after its first time. */
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ALLTOALLW, PACK, WAYS, END };
static const char *const ways[WAYS] = {"MPI_Alltoallw", "pack + MPI_Alltoall"};

typedef struct alltoall {
  int rank, ranks, side, part; /* part: rows or columns of a rank */
  float *rows, *columns, *packed;
  int *counts, *ones, *source_offsets, *offsets;
  MPI_Datatype *source_types, *types, vector;
} alltoall;

static void *allocate(size_t bytes) {
  void *made = malloc(bytes);
  if (made == NULL) {
    fprintf(stderr, "alltoall: no memory for %zu bytes\n", bytes);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return made;
}

/* Element (row, column) of the whole matrix; every f32 can be it. */
static float element(int row, int column) { return (float)(((long)row * 4099 + column) % (1 << 24)); }

static void alltoall_open(alltoall *a, int side) {
  size_t elements = (size_t)side * (size_t)a->part, n = (size_t)a->ranks;
  a->side = side;
  a->rows = allocate(elements * sizeof *a->rows);
  a->columns = allocate(elements * sizeof *a->columns);
  a->packed = allocate(elements * sizeof *a->packed);
  a->counts = allocate(n * sizeof *a->counts);
  a->ones = allocate(n * sizeof *a->ones);
  a->source_offsets = allocate(n * sizeof *a->source_offsets);
  a->offsets = allocate(n * sizeof *a->offsets);
  a->source_types = allocate(n * sizeof(MPI_Datatype));
  a->types = allocate(n * sizeof(MPI_Datatype));
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
      a->rows[(size_t)r * (size_t)side + (size_t)c] = element(a->rank * a->part + r, c);
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

static void alltoall_move(alltoall *a, int way) {
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

static void alltoall_check(const alltoall *a, int way) {
  for (int r = 0; r < a->side; r++)
    for (int c = 0; c < a->part; c++) {
      float is = a->columns[(size_t)r * (size_t)a->part + (size_t)c], wanted = element(r, a->rank * a->part + c);
      if (is != wanted) {
        fprintf(stderr, "alltoall: %s: rank %d: row %d, column %d is %g, not %g\n", ways[way], a->rank, r, c,
                (double)is, (double)wanted);
        MPI_Abort(MPI_COMM_WORLD, 1);
      }
    }
}

/* Returns rank 0's next line as a way. Ranks sleep while they wait: others are measured then. */
static int next_way(const alltoall *a) {
  int way = END;
  char line[64];
  MPI_Request request;
  if (a->rank == 0 && fgets(line, sizeof line, stdin) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    for (way = 0; way < WAYS && strcmp(line, ways[way]) != 0;)
      way++;
    if (way == WAYS) {
      fprintf(stderr, "alltoall: no way '%s'\n", line);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
  MPI_Ibcast(&way, 1, MPI_INT, 0, MPI_COMM_WORLD, &request);
  for (int done = 0; !done;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (!done)
      nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  return way;
}

int main(int argc, char **argv) {
  alltoall a = {0};
  bool checked[WAYS] = {false};
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length, way;
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
  if (a.rank == 0)
    printf("ready %s\n", version);
  fflush(stdout);
  while ((way = next_way(&a)) != END) {
    memset(a.columns, 0xff, (size_t)side * (size_t)a.part * sizeof *a.columns);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime(), seconds, most;
    alltoall_move(&a, way);
    seconds = MPI_Wtime() - begin;
    MPI_Reduce(&seconds, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (!checked[way])
      alltoall_check(&a, way);
    checked[way] = true;
    MPI_Barrier(MPI_COMM_WORLD);
    if (a.rank == 0)
      printf("%.9f\n", most);
    fflush(stdout);
  }
  alltoall_close(&a);
  MPI_Finalize();
  return 0;
}
