/* A reshard from blocks of 64 x 64 to blocks of 96 x 96 by psgemr2d, for peers.py, under mpirun:
 * scalapack SIDE [LIBRARY].
 *
 * The matrix of f32 is square, and block-cyclic over a grid of 2 columns. psgemr2d is ScaLAPACK's, or that of LIBRARY,
 * as COSTA has one. */
#define _GNU_SOURCE /* dladdr */
#include "bench/compare/mpi_turns.h"

#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 2, FROM = 64, TO = 96, DESCRIPTOR = 9 };

typedef void redistribute(const int *m, const int *n, const float *a, const int *ia, const int *ja, const int *desca,
                          float *b, const int *ib, const int *jb, const int *descb, const int *context);

/* ScaLAPACK's C and Fortran, which have no header. */
void Cblacs_pinfo(int *rank, int *ranks);
void Cblacs_get(int context, int what, int *value);
void Cblacs_gridinit(int *context, const char *order, int rows, int columns);
void Cblacs_gridinfo(int context, int *rows, int *columns, int *row, int *column);
void Cblacs_gridexit(int context);

static const char *const ways[] = {"psgemr2d", NULL};

/* A rank's part of the matrix in blocks of one size, column by column. */
typedef struct block_cyclic {
  int block, grid[2], at[2], extent[2], descriptor[DESCRIPTOR];
  float *data;
} block_cyclic;

typedef struct scalapack {
  int side, rank, context;
  block_cyclic from, to;
  redistribute *move;
} scalapack;

/* Global index of a local one along a dim. */
static int global_index(const block_cyclic *m, int dim, int local) {
  return (local / m->block * m->grid[dim] + m->at[dim]) * m->block + local % m->block;
}

static int local_extent(const block_cyclic *m, int dim, int side) {
  int local = 0;
  for (int block = m->at[dim]; block * m->block < side; block += m->grid[dim])
    local += side - block * m->block < m->block ? side - block * m->block : m->block;
  return local;
}

static void open_matrix(const scalapack *s, block_cyclic *m, int block) {
  m->block = block;
  Cblacs_gridinfo(s->context, &m->grid[0], &m->grid[1], &m->at[0], &m->at[1]);
  for (int dim = 0; dim < 2; dim++)
    m->extent[dim] = local_extent(m, dim, s->side);
  const int dense = 1, leading = m->extent[0] > 0 ? m->extent[0] : 1;
  memcpy(m->descriptor, (int[DESCRIPTOR]){dense, s->context, s->side, s->side, block, block, 0, 0, leading},
         sizeof m->descriptor);
  m->data = mpi_turns_alloc((size_t)m->extent[0] * (size_t)m->extent[1] * sizeof *m->data);
}

static float *element_of(const block_cyclic *m, int row, int column) {
  return m->data + (size_t)column * (size_t)m->extent[0] + (size_t)row;
}

static void scalapack_clear(void *user) {
  scalapack *s = user;
  memset(s->to.data, 0xff, (size_t)s->to.extent[0] * (size_t)s->to.extent[1] * sizeof *s->to.data);
}

static void scalapack_move(void *user, int way) {
  scalapack *s = user;
  const int one = 1;
  (void)way;
  s->move(&s->side, &s->side, s->from.data, &one, &one, s->from.descriptor, s->to.data, &one, &one, s->to.descriptor,
          &s->context);
}

static void scalapack_check(void *user, int way) {
  const scalapack *s = user;
  const block_cyclic *m = &s->to;
  for (int c = 0; c < m->extent[1]; c++)
    for (int r = 0; r < m->extent[0]; r++) {
      int row = global_index(m, 0, r), column = global_index(m, 1, c);
      float is = *element_of(m, r, c), wanted = mpi_turns_element(row, column);
      if (is != wanted)
        mpi_turns_fail("scalapack: %s: rank %d: row %d, column %d is %g, not %g", ways[way], s->rank, row, column,
                       (double)is, (double)wanted);
    }
}

/* Finds the function that redistributes, and returns the name of the file that it is of; NULL where there is none. */
static const char *find_function(scalapack *s, const char *library) {
  void *loaded = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  void *found = loaded != NULL ? dlsym(loaded, "psgemr2d_") : NULL;
  Dl_info info;
  if (found == NULL || dladdr(found, &info) == 0)
    return NULL;
  memcpy(&s->move, &found, sizeof found);
  const char *slash = strrchr(info.dli_fname, '/');
  return slash != NULL ? slash + 1 : info.dli_fname;
}

int main(int argc, char **argv) {
  scalapack s = {0};
  int ranks;
  MPI_Init(&argc, &argv);
  Cblacs_pinfo(&s.rank, &ranks);
  s.side = argc == 2 || argc == 3 ? atoi(argv[1]) : 0;
  if (s.side < 1 || s.side > 32768 || ranks % COLUMNS != 0) {
    if (s.rank == 0)
      fprintf(stderr, "usage: scalapack SIDE [LIBRARY], from 1 to 32768, by an even number of ranks\n");
    MPI_Finalize();
    return 2;
  }
  Cblacs_get(-1, 0, &s.context);
  Cblacs_gridinit(&s.context, "Row", ranks / COLUMNS, COLUMNS);
  const char *file = find_function(&s, argc == 3 ? argv[2] : NULL);
  if (file == NULL) {
    if (s.rank == 0)
      printf("skipped %s\n", dlerror());
    MPI_Finalize();
    return 0;
  }
  open_matrix(&s, &s.from, FROM);
  open_matrix(&s, &s.to, TO);
  for (int c = 0; c < s.from.extent[1]; c++)
    for (int r = 0; r < s.from.extent[0]; r++)
      *element_of(&s.from, r, c) = mpi_turns_element(global_index(&s.from, 0, r), global_index(&s.from, 1, c));
  mpi_turns_serve(&(mpi_turns){ways, &s, scalapack_clear, scalapack_move, scalapack_check}, file);
  free(s.from.data);
  free(s.to.data);
  Cblacs_gridexit(s.context);
  MPI_Finalize();
  return 0;
}
