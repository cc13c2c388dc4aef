/* Layouts of ScaLAPACK's descriptors against the formulas of its tools: who has an element (INDXG2P), how many rows and
 * columns a process has (NUMROC), and where its local ones are in the matrix (INDXL2G). Worlds that are made larger. */
#include "support/fixtures/case.h"

#include <reshard/layout.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DTYPE, CTXT, M, N, MB, NB, RSRC, CSRC, LLD, ENTRIES };

/* All from 0. */
static int owner(int index, int block, int source, int processes) { return (source + index / block) % processes; }

static int local_index(int index, int block, int processes) {
  return index / (block * processes) * block + index % block;
}

static int local_extent(int n, int block, int process, int source, int processes) {
  int extent = 0;
  for (int i = 0; i < n; i++)
    extent += owner(i, block, source, processes) == process;
  return extent;
}

/* The local index, in one dim of the array of a process, of each index that it has. */
static void check_dim(reshard_layout l, int64_t rank, int dim, int n, int block, int at, int source, int processes) {
  reshard_interval *runs = malloc((size_t)(n + 1) * sizeof *runs);
  int64_t count = 0, local = 0;
  assert_int_equal(reshard_layout_array_intervals(l, rank, 0, dim, 0, n + 1, runs, &count), RESHARD_SUCCESS);
  for (int64_t r = 0; r < count; r++)
    for (int64_t i = runs[r].begin; i < runs[r].end; i++, local++) {
      assert_int_equal(owner((int)i, block, source, processes), at);
      assert_int_equal(local_index((int)i, block, processes), local);
    }
  assert_int_equal(local, local_extent(n, block, at, source, processes));
  free(runs);
}

static void check_layout(reshard_layout l, const int *d, int rows, int columns, const int64_t *ranks) {
  reshard_array_info info;
  for (int p = 0; p < rows; p++)
    for (int q = 0; q < columns; q++) {
      int64_t rank = ranks != NULL ? ranks[p * columns + q] : p * columns + q;
      assert_int_equal(reshard_layout_array(l, rank, 0, &info), RESHARD_SUCCESS);
      assert_int_equal(info.shape[0], local_extent(d[M], d[MB], p, d[RSRC], rows));
      assert_int_equal(info.shape[1], local_extent(d[N], d[NB], q, d[CSRC], columns));
      check_dim(l, rank, 0, d[M], d[MB], p, d[RSRC], rows);
      check_dim(l, rank, 1, d[N], d[NB], q, d[CSRC], columns);
    }
}

/* The ranks of a grid that BLACS has made by columns ('C'), from `first` on. */
static void by_columns(int rows, int columns, int64_t first, int64_t *ranks) {
  for (int p = 0; p < rows; p++)
    for (int q = 0; q < columns; q++)
      ranks[p * columns + q] = first + q * rows + p;
}

CASE(owners_are_those_of_scalapacks_formulas) {
  static const int grids[][2] = {{1, 1}, {1, 3}, {2, 2}, {3, 2}, {2, 4}};
  static const int matrices[][4] = {{0, 5, 2, 2},   {1, 1, 1, 1},   {17, 11, 3, 2},
                                    {12, 12, 4, 3}, {7, 30, 64, 5}, {9, 8, 1, 8}};
  int cases = 0;
  for (size_t g = 0; g < sizeof grids / sizeof *grids; g++)
    for (size_t m = 0; m < sizeof matrices / sizeof *matrices; m++)
      for (int rsrc = 0; rsrc < grids[g][0]; rsrc++)
        for (int csrc = 0; csrc < grids[g][1]; csrc++) {
          const int rows = grids[g][0], columns = grids[g][1], *x = matrices[m];
          const int d[ENTRIES] = {1, -1, x[0], x[1], x[2], x[3], rsrc, csrc, INT_MIN};
          int64_t ranks[8], first = (int64_t)(m % 3);
          reshard_layout l;
          assert_int_equal(reshard_layout_scalapack(d, rows, columns, NULL, &l), RESHARD_SUCCESS);
          assert_int_equal(reshard_layout_world(l), rows * columns);
          check_layout(l, d, rows, columns, NULL);
          reshard_layout_release(l);
          by_columns(rows, columns, first, ranks);
          assert_int_equal(reshard_layout_scalapack(d, rows, columns, ranks, &l), RESHARD_SUCCESS);
          assert_int_equal(reshard_layout_world(l), first + rows * columns);
          check_layout(l, d, rows, columns, ranks);
          reshard_layout_release(l);
          cases++;
        }
  assert_int_equal(cases, 6 * (1 + 3 + 4 + 6 + 8));
}

/* A layout of a first block at (0, 0), row by row, is cyclic(...). */
CASE(descriptor_from_the_first_process_is_cyclic) {
  const int d[ENTRIES] = {1, 7, 100, 80, 16, 8, 0, 0, 52};
  const int64_t shape[] = {100, 80};
  reshard_layout l, same;
  assert_int_equal(reshard_layout_scalapack(d, 2, 3, NULL, &l), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse("cyclic(2x3;16x8)", 2, shape, 6, &same), RESHARD_SUCCESS);
  assert_true(reshard_layout_equal(l, same));
  reshard_layout_release(l);
  reshard_layout_release(same);
}

static void refused(const int *d, int rows, int columns, const int64_t *ranks, reshard_status status,
                    const char *part) {
  reshard_layout untouched = (reshard_layout)&status;
  assert_int_equal(reshard_layout_scalapack(d, rows, columns, ranks, &untouched), status);
  assert_ptr_equal(untouched, &status);
  if (strstr(reshard_last_error(), part) == NULL)
    fail_msg("'%s' lacks '%s'", reshard_last_error(), part);
}

CASE(wrong_descriptors_are_refused_by_field) {
  const int good[ENTRIES] = {1, 0, 10, 10, 2, 2, 0, 0, 10};
  static const struct {
    int entry, value;
    reshard_status status;
    const char *part;
  } bad[] = {{DTYPE, 501, RESHARD_ERROR_UNSUPPORTED, "DTYPE_ is 501"},
             {DTYPE, 0, RESHARD_ERROR_UNSUPPORTED, "DTYPE_ is 0"},
             {M, -1, RESHARD_ERROR_INVALID, "M_ is -1"},
             {N, INT_MIN, RESHARD_ERROR_INVALID, "N_ is -2147483648"},
             {MB, 0, RESHARD_ERROR_INVALID, "MB_ is 0: from 1"},
             {NB, -2, RESHARD_ERROR_INVALID, "NB_ is -2"},
             {RSRC, 2, RESHARD_ERROR_INVALID, "RSRC_ is 2: from 0 to 1"},
             {RSRC, -1, RESHARD_ERROR_INVALID, "RSRC_ is -1"},
             {CSRC, 3, RESHARD_ERROR_INVALID, "CSRC_ is 3: from 0 to 2"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    int d[ENTRIES];
    memcpy(d, good, sizeof d);
    d[bad[i].entry] = bad[i].value;
    refused(d, 2, 3, NULL, bad[i].status, bad[i].part);
  }
  static const int64_t twice[] = {0, 1, 2, 3, 4, 1}, negative[] = {0, 1, 2, 3, -4, 5},
                       huge[] = {0, 1, 2, 3, 4, INT64_MAX};
  refused(good, 0, 3, NULL, RESHARD_ERROR_INVALID, "nprow is 0");
  refused(good, 2, -3, NULL, RESHARD_ERROR_INVALID, "npcol is -3");
  refused(good, 2, 3, twice, RESHARD_ERROR_INVALID, "rank 1");
  refused(good, 2, 3, negative, RESHARD_ERROR_INVALID, "rank -4");
  refused(good, 2, 3, huge, RESHARD_ERROR_INVALID, "rank 9223372036854775807");
}

/* The larger world has all that the layout has, of each kind, and outlives it. */
CASE(larger_world_keeps_the_layout) {
  static const char *const texts[] = {
      "chunk(0;0-2)", "mesh(dp=2,tp=2@0-3;S0,R)",           "cyclic(2x2@3-0;3x2)", "rank(1)",
      "flat(0-3)",    "boxes(0:[0,0]+[5,9];2:[5,0]+[7,9])", "mesh(4;S0*2)"};
  const int64_t shape[] = {12, 9};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    reshard_layout small, wide, wanted, untouched = (reshard_layout)&i;
    char text[2][256];
    int64_t arrays;
    assert_int_equal(reshard_layout_parse(texts[i], 2, shape, 4, &small), RESHARD_SUCCESS);
    assert_int_equal(reshard_layout_parse(texts[i], 2, shape, 7, &wanted), RESHARD_SUCCESS);
    assert_int_equal(reshard_layout_extend(small, 3, &untouched), RESHARD_ERROR_INVALID);
    assert_ptr_equal(untouched, &i);
    assert_int_equal(reshard_layout_extend(small, 7, &wide), RESHARD_SUCCESS);
    assert_false(reshard_layout_equal(small, wide));
    reshard_layout_release(small);
    assert_int_equal(reshard_layout_world(wide), 7);
    assert_true(reshard_layout_equal(wide, wanted));
    assert_int_equal(reshard_layout_array_count(wide, 6, &arrays), RESHARD_SUCCESS);
    assert_int_equal(arrays, 0);
    assert_int_equal(reshard_layout_print(wide, text[0], sizeof text[0], NULL), RESHARD_SUCCESS);
    assert_int_equal(reshard_layout_print(wanted, text[1], sizeof text[1], NULL), RESHARD_SUCCESS);
    assert_string_equal(text[0], text[1]);
    reshard_layout_release(wide);
    reshard_layout_release(wanted);
  }
}

RUN_CASES
