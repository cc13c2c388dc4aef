/* Inside of a layout, for its own room and those above.
 *
 * Chunk, mesh, cyclic and single layouts are all "regular": per dim a sequence of cuts (cut.h), and mesh dims that
 * replicate. A cell is the finest thing with one set of holders. In a regular layout that is one part per dim (number
 * in mixed radix over the dims, dim 0 most significant). In boxes it is a distinct box, in a flat layout one box of one
 * piece. */
#ifndef RS_LAYOUT_LAYOUT_H
#define RS_LAYOUT_LAYOUT_H

#include "layout/boxes.h"
#include "layout/cut.h"

#include <reshard/layout.h>

#include <stdatomic.h>

/* A list of distinct ranks, kept as ranges, so that "all of the world" costs the same for 4 and for 16,384 ranks. */
typedef struct rs_rank_range {
  int64_t position; /* of its first rank in the list */
  int64_t first, count;
  int64_t step; /* +1 up, -1 down; +1 for one rank */
} rs_rank_range;

typedef struct rs_ranks {
  int64_t n; /* ranks in the list */
  int64_t nranges;
  rs_rank_range *ranges; /* in list order */
  rs_rank_range *sorted; /* the same, by lowest rank */
  bool ascending;        /* the list is in ascending order */
} rs_ranks;

/* ranks NULL: 0..n-1. Errors: a rank outside [0, world), a duplicate; what ("chunk", "mesh") names the layout in the
 * text. */
reshard_status rs_ranks_create(const char *what, int64_t n, const int64_t *ranks, int64_t world, rs_ranks *out);
void rs_ranks_free(rs_ranks *ranks);
int64_t rs_ranks_at(const rs_ranks *ranks, int64_t position);
/* Position of a rank, or -1. */
int64_t rs_ranks_find(const rs_ranks *ranks, int64_t rank);
bool rs_ranks_equal(const rs_ranks *a, const rs_ranks *b);

/* A mesh dim that replicates: n copies, `stride` apart in the rank list. */
typedef struct rs_replica {
  int64_t n, stride;
} rs_replica;

struct reshard_layout_s {
  atomic_int references;
  _Atomic uint64_t hash; /* 0 until it was asked for */
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

  /* as given, for printing */
  int chunk_dim;                   /* CHUNK */
  int mesh_ndim;                   /* MESH; CYCLIC: ndim */
  int64_t *mesh_shape;             /* MESH, CYCLIC: the grid */
  char **names;                    /* MESH: mesh_ndim names or NULL */
  reshard_placement *placements;   /* MESH; dims are normalised to 0..ndim-1 */
  int *order;                      /* MESH: mesh_ndim, or NULL for left to right */
  int64_t block[RESHARD_MAX_DIMS]; /* CYCLIC */

  int64_t flat_piece; /* FLAT: elements of a full piece */
  rs_boxes *boxes;    /* BOXES */
};

static inline bool rs_layout_regular(const struct reshard_layout_s *l) { return l->kind <= RESHARD_LAYOUT_SINGLE; }

/* A run of indices of one dim: [begin, begin + n) of the asked layout's coordinates, `local` on in the asker's array.
 */
typedef struct rs_piece {
  int64_t begin, n, local;
} rs_piece;
typedef RS_VEC(rs_piece) rs_pieces;

/* A run that asker and holder share: n indices from `ask` on in the asker's array, from `held` on in the holder's. */
typedef struct rs_run {
  int64_t ask, held, n;
} rs_run;
typedef struct rs_list {
  int64_t first, count; /* in rs_lists.run */
  int64_t length;       /* sum of n */
} rs_list;
/* A part of one dim that a query meets: its list, and the number of the part. */
typedef struct rs_group {
  int64_t part, list;
} rs_group;
typedef struct rs_found {
  int64_t part;
  rs_run run;
} rs_found;
/* Pool of lists of runs; ascending within a list. The rest is scratch memory of queries, kept from one to the next. */
typedef struct rs_lists {
  RS_VEC(rs_run) run;
  RS_VEC(rs_list) list;
  RS_VEC(rs_found) found;
  RS_VEC(rs_group) group;
} rs_lists;
void rs_lists_free(rs_lists *lists);
/* Frees the scratch memory, once no query comes any more. */
void rs_lists_drop_scratch(rs_lists *lists);

/* Product of index sets: per dim of the layout `count[d]` pieces, ascending. */
typedef struct rs_query {
  int64_t count[RESHARD_MAX_DIMS];
  const rs_piece *pieces[RESHARD_MAX_DIMS];
} rs_query;

/* One cell that the query meets. list[d]: number in the pool of the runs in dim d; length[d]: their indices; elements:
 * the product of the lengths. */
typedef struct rs_hit {
  int64_t cell;
  int64_t elements;
  int64_t length[RESHARD_MAX_DIMS];
  int64_t list[RESHARD_MAX_DIMS];
} rs_hit;
typedef reshard_status (*rs_hit_visit)(void *user, const rs_hit *hit);

/* Calls visit for each cell that shares elements with the query; lists are appended to `lists`. With ndim 0 a query
 * meets its one cell once, with no lists. Regular layouts make their lists before the first visit and share them
 * between cells; the others make ndim lists for each cell. lists NULL: none are made; allowed for boxes and flat
 * layouts, with one piece per dim. Cost: the runs met, and a search for each. */
reshard_status rs_layout_query(const struct reshard_layout_s *layout, const rs_query *query, rs_lists *lists,
                               rs_hit_visit visit, void *user);

/* Counts the elements of a query that the ranks of a regular layout hold, without visiting them (census.c). For layouts
 * whose rank list ascends, and for one rank of it. Made once, asked for query after query: a dim in which the query is
 * as before is not counted again. */
typedef struct rs_census {
  const struct reshard_layout_s *layout;
  int64_t position; /* of the rank, in the rank list */
  int nsubsets;
  struct rs_census_subset *subsets;
  struct {
    rs_pieces asked; /* the query it was counted for */
    rs_lists lists;
    int64_t all;    /* queried indices, over all parts */
    int64_t *below; /* [nsubsets] over the parts of ranks of that subset */
  } dim[RESHARD_MAX_DIMS];
} rs_census;
reshard_status rs_census_create(const struct reshard_layout_s *layout, int64_t rank, rs_census *out);
void rs_census_free(rs_census *census);
reshard_status rs_census_take(rs_census *census, const rs_query *query);
/* Elements of the query that a rank holds; that all ranks below mine hold, summed; that all ranks hold, summed. */
int64_t rs_census_of(const rs_census *census, int64_t rank);
int64_t rs_census_below(const rs_census *census);
int64_t rs_census_all(const rs_census *census);
/* Parts of one dim that pieces meet, as groups appended to lists->group, each with a list (query.c). */
reshard_status rs_dim_meet(const rs_dim *dim, const rs_piece *pieces, int64_t count, rs_lists *lists);

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
