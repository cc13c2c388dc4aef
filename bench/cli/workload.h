/* The workload of a plan or a benchmark: tensors, and their layouts before and after. */
#ifndef BENCH_WORKLOAD_H
#define BENCH_WORKLOAD_H

#include "bench/cli/options.h"
#include "bench/cli/workload_layouts.h"

typedef struct workload_tensor {
  const char *name;
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS]; /* of the source */
  reshard_dtype dtype;
  reshard_layout src, dst; /* equal (shape, layout string) share one object */
} workload_tensor;

typedef struct workload {
  int64_t n;
  workload_tensor *tensor;
  int64_t world;
  int64_t bytes;       /* of all tensors */
  reshard_model model; /* NULL with --shape */
  struct workload_side *side[2];
  bool permuted;                     /* the one tensor's dims are: */
  int permutation[RESHARD_MAX_DIMS]; /* as in reshard_entry */
} workload;

/* Reads --shape and --dtype or --model, --src and --dst, and the world: --ranks, else the larger of what the two sides
 * name. Ends the program where something is wrong. */
void workload_read(const cli_options *o, workload *out);
/* Changes the shape of the one tensor. */
void workload_set_shape(workload *w, int ndim, const int64_t *shape);
void workload_free(workload *w);

/* Entries of a plan over all tensors, whole to whole. The caller frees them, and uses them no longer than w. */
reshard_entry *workload_entries(const workload *w);

#endif
