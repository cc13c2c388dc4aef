/* The stored shards of a tensor, and directories of them. */
#ifndef TESTS_NAIVE_FILE_CUT_H
#define TESTS_NAIVE_FILE_CUT_H

#include "file_directory.h"

#ifdef RS_HAVE_JANSSON

/* One stored shard of a tensor: a box, or (whole) an array of more than 64 boxes. */
typedef struct naive_shard {
  int64_t rank, array, number; /* number: among what the rank stores of the tensor */
  bool whole;
  reshard_box box;   /* whole: first index and number of indices per dim */
  int64_t n, *index; /* global row-major number of each element, in the order in which they are stored; owned */
  int64_t nruns[RESHARD_MAX_DIMS];
  reshard_interval *runs[RESHARD_MAX_DIMS]; /* maximal runs of indices per dim; owned */
} naive_shard;

typedef struct naive_cut {
  int64_t n; /* by rank, then number */
  naive_shard *at;
} naive_cut;

/* most_boxes: 64. dedup: what a lower rank stores too is left out. */
void naive_cut_make(const oracle_layout *layout, const oracle_buffers *held, int64_t most_boxes, bool dedup,
                    naive_cut *out);
void naive_cut_free(naive_cut *cut);

/* The directory of shards that these cuts make, one per tensor of the set. layouts: strings for the "reshard" metadata;
 * NULL: none is written, as PyTorch does. */
void naive_shards_dir(const naive_set *set, const naive_cut *cuts, int64_t world, const char *const *layouts,
                      naive_dir *out);

#endif
#endif
