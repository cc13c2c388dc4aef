/* The holders of a tensor's elements as a small table: the begins and ends of all runs of a layout cut two dims, and
 * between neighbouring cuts the holders are the same. */
#ifndef BENCH_CELL_TABLE_H
#define BENCH_CELL_TABLE_H

#include "bench/cli/workload.h"

#define MOST_LABELS 512

typedef struct dim_cuts {
  int dim; /* -1: none */
  int64_t extent;
  int64_t shown; /* of the extent */
  int64_t n, cap;
  int64_t *at; /* ascending, at[0] = 0, at[n - 1] = shown */
} dim_cuts;

typedef struct cell_frame {
  double x, y, width, height;
} cell_frame;

typedef struct cell_table {
  dim_cuts down, across;
  int64_t at[RESHARD_MAX_DIMS]; /* index of the other dims */
  uint64_t *src, *dst;          /* per cell a bit per rank */
  bool origins;                 /* dots tell where cells come from */
  int nlabels;                  /* rank numbers that are drawn, which dots leave free */
  cell_frame label[MOST_LABELS];
} cell_table;

/* Sides of a reshard whose cuts count. */
enum { OF_SRC = 1, OF_DST = 2, OF_BOTH = 3 };

/* Chooses the two dims with the most cuts, in their order. */
void cell_table_choose_dims(const workload_tensor *t, int sides, cell_table *table);
/* Finds the holders of all cells, at the index of the other dims. */
void cell_table_fill(const workload_tensor *t, cell_table *table);
/* Counts the dims that are cut. */
int cell_table_count_dims(const workload_tensor *t, int sides);
/* Sets the other dims to those of the i-th slice: between cuts of these dims the holders are the same. Writes which one
 * it is, "dim 2: [0,32)", "" where the other dims are not cut. False: behind the last. */
bool cell_table_choose_slice(const workload_tensor *t, int sides, int64_t i, cell_table *table, char text[160]);
/* Frees it, and makes it empty. */
void cell_table_free(cell_table *table);

#endif
