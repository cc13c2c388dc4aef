/* Elements of a benchmark: a stamp for each, and the check of what has become of it. */
#ifndef BENCH_ELEMENTS_H
#define BENCH_ELEMENTS_H

#include "bench/cli/workload.h"

/* Elements of a tensor on a side, or scales of their blocks. */
typedef struct bench_elements {
  size_t width;
  uint64_t key;
  reshard_dtype from, to;          /* its dtypes, where those of the destination are converted ones; else equal */
  const workload_tensor *scaled;   /* NULL: there are no scales */
  bool made;                       /* what the reshard makes: else it is stamped */
  bool scales;                     /* of blocks: an index is a block's */
  int64_t block[RESHARD_MAX_DIMS]; /* per dim of the source */
  int64_t step[RESHARD_MAX_DIMS];  /* likewise, from block to block */
  int64_t grid[RESHARD_MAX_DIMS];  /* the same steps per dim of the side that has the scales */
  float *most;                     /* the largest magnitude of each block, below 0 where nothing is known; or NULL */
} bench_elements;

/* The caller frees `most`, which is there where the side's scales are made. */
bench_elements bench_elements_of(const workload *w, int64_t tensor, bool source);
bench_elements bench_scales_of(const bench_elements *values);

/* Work on elements [index, index + n), one after the other in memory: stamps them; counts those that are not what they
 * should be; or notes the magnitudes that belong there. */
typedef int64_t (*bench_visitor)(unsigned char *at, const bench_elements *e, int64_t index, int64_t n);
int64_t bench_fill_visit(unsigned char *at, const bench_elements *e, int64_t index, int64_t n);
int64_t bench_wrong_visit(unsigned char *at, const bench_elements *e, int64_t index, int64_t n);
int64_t bench_most_visit(unsigned char *at, const bench_elements *e, int64_t index, int64_t n);

#endif
