/* Inside of a layout, for its own room and those above.
 *
 * Chunk, mesh, cyclic and single layouts are all "regular": per dim a sequence of cuts (cut.h), and mesh dims that
 * replicate. A cell is the finest thing with one set of holders. In a regular layout that is one part per dim (number
 * in mixed radix over the dims, dim 0 most significant). In boxes it is a distinct box, in a flat layout one box of one
 * piece. A regular layout has one array for each rank that it names, or one for each run of parts of one dim. */
#ifndef RS_LAYOUT_LAYOUT_H
#define RS_LAYOUT_LAYOUT_H

#include "layout/boxes.h"
#include "layout/cut.h"
#include "layout/ranks.h"

#include <reshard/layout.h>

#include <stdatomic.h>

/* A mesh dim that replicates: n copies, `stride` apart in the rank list. */
typedef struct rs_replica {
  int64_t n, stride;
} rs_replica;

struct reshard_layout_s {
  atomic_int references;
  struct reshard_layout_s *of; /* retained: this one has all of its lists, in a larger world; NULL: they are its own */
  _Atomic uint64_t hash;       /* 0 until it was asked for */
  reshard_layout_kind kind;
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  int64_t elements;
  int64_t world;
  rs_ranks ranks; /* every kind but boxes; single: one rank */

  /* regular kinds */
  rs_dim dim[RESHARD_MAX_DIMS];
  rs_cut *cuts; /* storage behind dim[].cuts */
  int nreplicas;
  rs_replica *replica; /* mesh dims that replicate and have more than one rank */
  int64_t replicas;    /* product of their n */
  int64_t cells;       /* product of parts over dims */
  int runs_dim;        /* the dim of which each rank has several runs of parts, an array for each; -1: none */

  /* as given, for printing */
  int chunk_dim;                   /* CHUNK */
  int mesh_ndim;                   /* MESH; CYCLIC: ndim */
  int64_t *mesh_shape;             /* MESH, CYCLIC: the grid */
  char **names;                    /* MESH: mesh_ndim names or NULL */
  reshard_placement *placements;   /* MESH; dims are normalised to 0..ndim-1, parts owned (parts.h) */
  int *order;                      /* MESH: mesh_ndim, or NULL for left to right */
  int64_t block[RESHARD_MAX_DIMS]; /* CYCLIC */

  int64_t flat_piece; /* FLAT: elements of a full piece */
  rs_boxes *boxes;    /* BOXES */
};

static inline bool rs_layout_regular(const struct reshard_layout_s *l) { return l->kind <= RESHARD_LAYOUT_SINGLE; }
/* Arrays of each rank that a regular layout names. */
static inline int rs_layout_runs(const struct reshard_layout_s *l) {
  return l->runs_dim < 0 ? 1 : rs_dim_runs(&l->dim[l->runs_dim]);
}
/* True where a rank may have several arrays in a buffer. */
static inline bool rs_layout_bundles(const struct reshard_layout_s *l) {
  return (l->kind == RESHARD_LAYOUT_FLAT && l->ndim != 1) || l->runs_dim >= 0;
}
/* True where several ranks of a regular or flat layout hold the same. */
static inline bool rs_layout_replicates(const struct reshard_layout_s *l) {
  return l->replicas > 1 || l->runs_dim >= 0;
}

/* A run of indices of one dim: [begin, begin + n) of the asked layout's coordinates, `local` on in the asker's array.
 */
typedef struct rs_piece {
  int64_t begin, n, local;
} rs_piece;
typedef RS_VEC(rs_piece) rs_pieces;

/* Holders of a cell, rank ascending: how many, and which. `storage` has room for all; the result is there, or in the
 * layout itself. */
int64_t rs_layout_holder_count(const struct reshard_layout_s *layout, int64_t cell);
const rs_holder *rs_layout_holders(const struct reshard_layout_s *layout, int64_t cell, rs_holder *storage);

/* True when the rank is among the holders. */
bool rs_layout_holds(const struct reshard_layout_s *layout, int64_t cell, int64_t rank);

/* Buffers of a rank (reshard_layout_buffer_count), which may be beyond the layout's world. */
int64_t rs_layout_buffers(const struct reshard_layout_s *layout, int64_t rank);
/* Arrays of a rank, and the cell of one. */
int64_t rs_layout_arrays(const struct reshard_layout_s *layout, int64_t rank);
int64_t rs_layout_cell(const struct reshard_layout_s *layout, int64_t rank, int64_t array);
/* The indices of dim runs_dim that a rank's arrays before this one have: where it begins in their buffer. */
int64_t rs_layout_array_begin(const struct reshard_layout_s *layout, int64_t rank, int64_t array);
/* Extents of a buffer: those of its array, or of its arrays together; a flat piece is one dim of elements. Returns the
 * number of dims. */
int rs_layout_buffer_shape(const struct reshard_layout_s *layout, int64_t rank, int64_t buffer, int64_t *shape);
/* Elements before an array in its buffer, whose strides these are. */
int64_t rs_layout_array_offset(const struct reshard_layout_s *layout, int64_t rank, const reshard_array_info *info,
                               int64_t array, const int64_t *strides);
/* Extent in each dim of the array that holds a cell. */
void rs_layout_cell_shape(const struct reshard_layout_s *layout, int64_t cell, int64_t *shape);
/* The box of a cell of a boxes or flat layout. */
void rs_layout_cell_box(const struct reshard_layout_s *layout, int64_t cell, int64_t *lo, int64_t *hi);
/* Appends the pieces of a cell in one dim clipped to [lo, hi): begin in global coordinates, local in the cell's array.
 */
reshard_status rs_layout_pieces(const struct reshard_layout_s *layout, int64_t cell, int dim, int64_t lo, int64_t hi,
                                rs_pieces *out);

/* Indices [begin, end) of the array that holds a cell, in one dim, that lie in [lo, hi) of the tensor: one range, since
 * arrays ascend. */
void rs_layout_clip(const struct reshard_layout_s *layout, int64_t cell, int dim, int64_t lo, int64_t hi,
                    int64_t *begin, int64_t *end);

/* Boxes of a piece of a flat layout, and the most that there can be: cells are numbered piece by piece, with room for
 * so many. Writes lo and hi of each ([2 * ndim] apart) in row-major order, returns how many. */
static inline int rs_flat_most(int ndim) { return ndim > 0 ? 2 * ndim - 1 : 1; }
int rs_flat_boxes(int ndim, const int64_t *shape, int64_t begin, int64_t end, int64_t *corners);

/* Constructor helper shared by the kinds. output is where the constructor's caller wants the layout, and only checked.
 */
reshard_status rs_layout_new(const char *what, reshard_layout_kind kind, int ndim, const int64_t *shape, int64_t world,
                             const reshard_layout *output, reshard_layout *out);
/* Hash of everything that reshard_layout_equal compares. */
uint64_t rs_layout_hash(struct reshard_layout_s *layout);
/* Appends its string. */
void rs_layout_print(reshard_layout layout, rs_text *text);

#endif
