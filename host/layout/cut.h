/* Cuts of one dim of a regular layout: arithmetic only, no table of parts.
 *
 * A dim has a sequence of cuts. Each cuts what the cuts before have left, taken as positions 0, 1, 2, ... of what is
 * left. A part is one choice of piece per cut; parts are numbered in mixed radix, first cut most significant. A run of
 * positions that stays in one piece is a run one level up as well. So both directions - global index to (part, local
 * index), and back - are a short loop over the cuts, whatever the number of ranks or blocks.
 *
 * Where a dim is cut part by part, parts may be in fewer pieces than there are ranks. Then a rank has a piece of each
 * run of neighbouring parts of one number of pieces, and neighbouring ranks share one. Pieces are numbered run after
 * run. */
#ifndef RS_LAYOUT_CUT_H
#define RS_LAYOUT_CUT_H

#include "base/base.h"

#include <reshard/layout.h>

typedef enum rs_cut_kind {
  RS_CUT_SHARD,   /* the chunk rule: ceil(n / w) each */
  RS_CUT_STRIDED, /* `factor` chunks, each of them cut in w; piece i is the i-th of each, one after the other */
  RS_CUT_CYCLIC,  /* blocks of `factor` dealt to w pieces in turn */
  RS_CUT_PARTS    /* the chunk rule on each of some parts; a piece is its chunks, one after the other */
} rs_cut_kind;

/* A part of a cut, none of them empty. */
typedef struct rs_cut_part {
  int64_t size, begin; /* positions */
  int64_t chunk;       /* positions of a full piece */
} rs_cut_part;

/* Neighbouring parts [from, to), each in n pieces, whose numbers are first, first + 1, ... */
typedef struct rs_part_run {
  int64_t first, n;
  int from, to;
} rs_part_run;

typedef struct rs_cut {
  rs_cut_kind kind;
  int64_t w;      /* pieces */
  int64_t factor; /* STRIDED: chunks; CYCLIC: block */
  int64_t stride; /* of this cut's digit in the position of a rank in the layout's rank list */
  int64_t ranks;  /* values of that digit: w, but where there are several runs */
  int nruns;      /* PARTS: an array of each rank for each; else 1 */
  int nparts;     /* PARTS */
  const rs_cut_part *parts;
  const rs_part_run *runs;
} rs_cut;

/* Makes a cut one of n parts over its ranks, pieces 0 or ranks at most. Memory for n of each is the caller's. */
void rs_cut_set_parts(rs_cut *cut, int n, const reshard_part *given, rs_cut_part *parts, rs_part_run *runs);

/* The run of parts of which that is a piece. */
int rs_cut_run_of(const rs_cut *cut, int64_t piece);
/* The piece that a position of the rank list has in a run of parts. */
static inline int64_t rs_cut_piece(const rs_cut *cut, int64_t position, int run) {
  int64_t digit = position / cut->stride % cut->ranks;
  return cut->nruns == 1 ? digit : cut->runs[run].first + digit / (cut->ranks / cut->runs[run].n);
}
/* The lowest value of the digit whose ranks have a piece. */
int64_t rs_cut_first(const rs_cut *cut, int64_t piece);
/* Values of the digit, of those below `below`, whose ranks have a piece. */
int64_t rs_cut_digits(const rs_cut *cut, int64_t piece, int64_t below);

typedef struct rs_dim {
  int64_t n;     /* extent */
  int64_t parts; /* product of w */
  int ncuts;
  rs_cut *cuts;
} rs_dim;

/* The runs of a dim, of which each rank has an array; 1 where it is not cut in such parts. */
static inline int rs_dim_runs(const rs_dim *dim) { return dim->ncuts > 0 ? dim->cuts[0].nruns : 1; }
/* The part of a dim that a position of the rank list has in a run. */
static inline int64_t rs_dim_part(const rs_dim *dim, int64_t position, int run) {
  int64_t part = 0;
  for (int c = 0; c < dim->ncuts; c++)
    part = part * dim->cuts[c].w + rs_cut_piece(&dim->cuts[c], position, run);
  return part;
}
/* Finds the part that holds global index i (0 <= i < n) and its local index there. *run: indices from i on, i included,
 * that are neighbours in that part too. */
void rs_dim_locate(const rs_dim *dim, int64_t i, int64_t *part, int64_t *local, int64_t *run);
/* The other way round: global index of local index `local` (0 <= local < length) of a part, and the run from there on.
 */
void rs_dim_expand(const rs_dim *dim, int64_t part, int64_t local, int64_t *global, int64_t *run);
/* Indices in a part. */
int64_t rs_dim_length(const rs_dim *dim, int64_t part);
/* Neighbours in a part that are no neighbours in the dim: local indices i - 1 and i for each i = first + k * step,
 * 0 <= k < count. */
typedef struct rs_breaks {
  int64_t first, step, count;
} rs_breaks;
/* False where several cuts break the part, or a list of parts does, which gives no such sequence. */
bool rs_dim_breaks(const rs_dim *dim, int64_t part, rs_breaks *breaks);
/* Least number of runs in n neighbouring indices of a dim, n > 0: a bound by its first cut. */
int64_t rs_dim_least_runs(const rs_dim *dim, int64_t n);
/* The error of a list of that many runs of a dim, for which there is no memory. */
reshard_status rs_dim_error_runs(const rs_dim *dim, int64_t runs);
/* Number of indices of a part below global index i (0 <= i <= n): the local index of i, or where the next one would
 * be. */
int64_t rs_dim_rank(const rs_dim *dim, int64_t part, int64_t i);

#endif
