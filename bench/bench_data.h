/* Data of a benchmark: memory for all ranks, every element stamped, and the check of what arrived. */
#ifndef BENCH_DATA_H
#define BENCH_DATA_H

#include "what.h"

/* The buffers of all ranks for one side, in one piece of memory, so that a straight copy of it is what ours is compared
 * with. */
typedef struct bench_side {
  unsigned char *memory;
  size_t mapped;
  int64_t bytes;  /* of elements, without the gaps that align */
  int64_t extent; /* with them */
  int64_t *first; /* [world + 1]: buffers of rank r are [first[r], first[r + 1]) */
  void **buffer;
} bench_side;

void bench_side_make(const what *w, bool source, bench_side *out);
void bench_side_free(bench_side *side);

/* Stamps every element that a rank's buffers hold: a value from tensor and global index. */
void bench_fill(const what *w, bool source, const bench_side *side, int64_t rank);
/* Number of elements of a rank's buffers that do not have their stamp. */
int64_t bench_wrong(const what *w, bool source, const bench_side *side, int64_t rank);
/* Overwrites a rank's buffers. */
void bench_poison(const bench_side *side, int64_t world, int64_t rank);

#endif
