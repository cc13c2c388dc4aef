/* Random tensors and random layouts of them. */
#ifndef TESTS_NAIVE_FILE_RANDOM_H
#define TESTS_NAIVE_FILE_RANDOM_H

#include "file_cut.h"

#ifdef RS_HAVE_JANSSON

/* A random layout of a tensor: drawn, described for the oracle, and built by the library. */
typedef struct naive_side {
  oracle_layout what;
  oracle_buffers held;
  reshard_layout layout;
  char *text; /* a string that makes it, in a world of what.world */
  naive_cut cut;
  bool gapped, haloed; /* elements that nobody holds; that boxes which differ hold */
} naive_side;

/* kind: RESHARD_LAYOUT_KIND_COUNT for any. source: whole, and what several ranks hold is declared. most_boxes and dedup
 * as above. */
bool naive_side_make(rng *r, int ndim, const int64_t *shape, int64_t world, bool source, reshard_layout_kind kind,
                     int64_t most_boxes, bool dedup, naive_side *out, rs_text *why);
void naive_side_free(naive_side *side);

/* Extents whose product is at most `most`, 0 now and then; returns ndim. */
int naive_draw_shape(rng *r, int64_t most, int64_t *shape);
reshard_dtype naive_draw_dtype(rng *r);
/* Every element different, as far as its width allows. */
void naive_fill(naive_tensor *tensor, uint64_t key);

#endif
#endif
