/* Inside of a device mesh.
 *
 * A position numbers the ranks of the root mesh: the rank itself where the rank list is regular, else the index in the
 * list. A mesh dim is an arithmetic of digits: its coordinate is the sum of digit * weight, the position the sum of
 * digit * stride over all dims, plus an offset. A dim of the root has one digit, a flattened dim those of its parts, a
 * dim of extent 1 none. Digits are sorted by descending stride, and each stride is greater than the greatest sum of all
 * smaller ones. So digits are found by division, and a position that leaves a rest is not in the mesh. */
#ifndef RS_MESH_MESH_H
#define RS_MESH_MESH_H

#include "comm/comm.h"
#include "layout/ranks.h"

#include <reshard/mesh.h>

/* A digit, 0..n-1. dim -1: a dim that a sub-mesh left out. Its digit is that of this rank, and in `offset`; other ranks
 * have sub-meshes with other digits there. */
typedef struct rs_digit {
  int64_t dim;
  int64_t n; /* 2 or more */
  int64_t weight, stride;
} rs_digit;

/* A communicator made for a mesh: for the groups of ranks that differ in some digits of a region. */
typedef struct rs_mesh_group {
  struct rs_mesh_group *next;
  reshard_comm comm; /* NULL: this rank is outside */
  int64_t first;     /* position of the first rank of this rank's group; outside it has no meaning */
  int64_t region;
  int ndigits;
  rs_digit digits[RESHARD_MAX_DIMS]; /* weight: in the group's ranking; 0: not of the group */
} rs_mesh_group;

struct reshard_mesh_s {
  atomic_int references;
  struct reshard_mesh_s *root; /* itself; else retained */
  int ndim;
  int64_t size;
  int64_t shape[RESHARD_MAX_DIMS];
  char *names[RESHARD_MAX_DIMS]; /* all or none */
  int64_t offset;                /* position of coordinate 0, ..., 0 */
  int64_t region;                /* the same where the digits of dim -1 are 0, too */
  int ndigits;
  rs_digit digits[RESHARD_MAX_DIMS]; /* |stride| descending */

  /* of a root alone */
  reshard_comm comm; /* NULL: dry */
  int64_t world;
  bool regular;                     /* positions are ranks */
  rs_ranks list;                    /* else */
  _Atomic(rs_mesh_group *) groups;  /* immutable once they are here */
  struct reshard_mesh_s *made_from; /* retained, for its communicator; or NULL */
};

/* A root without ranks: one reference, shape, size and names, on comm or of a world. */
reshard_status rs_mesh_new(reshard_comm comm, int64_t world, int ndim, const int64_t *shape, const char *const *names,
                           reshard_mesh *mesh);
/* Ranks 0, 1, 2, ... */
void rs_mesh_count_up(reshard_mesh mesh);
/* A part of a mesh, with one reference: equal to it, but without its names. */
reshard_status rs_mesh_part(reshard_mesh mesh, reshard_mesh *part);
reshard_status rs_mesh_set_name(reshard_mesh mesh, int dim, const char *name);
/* Puts the digits in order. */
void rs_mesh_sort(reshard_mesh mesh);

/* Rank at a position; position of a rank (or RESHARD_MESH_MINE), which is RESHARD_ERROR_INVALID outside of the mesh.
 * coordinate: NULL, or ndim. */
int64_t rs_mesh_rank_at(const struct reshard_mesh_s *mesh, int64_t position);
reshard_status rs_mesh_find(const struct reshard_mesh_s *mesh, int64_t rank, int64_t *position, int64_t *coordinate);
/* Runs of ranks: those of row-major indices i to i + n - 1 are in steps of *step, 1 or -1, for each multiple i of n.
 * Returns n, which divides the size; 1 and a step of 1 for a mesh of one rank. */
int64_t rs_mesh_run(const struct reshard_mesh_s *mesh, int64_t *step);
/* Position of a row-major index. */
int64_t rs_mesh_position(const struct reshard_mesh_s *mesh, int64_t index);

/* The same ranks in the same order. */
bool rs_mesh_same_ranks(const struct reshard_mesh_s *a, const struct reshard_mesh_s *b);
/* A part with fewer ranks than its root. */
static inline bool rs_mesh_is_sub(const struct reshard_mesh_s *mesh) { return mesh->size < mesh->root->size; }
/* Communicator of exactly the ranks of a mesh that this rank is in, in their order, where the root has made it; else
 * NULL. Local, and allocates nothing. */
reshard_comm rs_mesh_known_comm(const struct reshard_mesh_s *mesh);

/* Dims from text, "dp,tp": numbers, each once. dims: room for ndim. NULL: all dims in their order. */
reshard_status rs_mesh_dims(const struct reshard_mesh_s *mesh, const char *text, int *dims, int *n);
/* One dim. */
reshard_status rs_mesh_one_dim(const struct reshard_mesh_s *mesh, const char *text, int *dim);
/* "dp=2,tp=4@0-7", cut off where it gets long; returns buffer. */
#define RS_MESH_TEXT 160
const char *rs_mesh_text(char buffer[RS_MESH_TEXT], const struct reshard_mesh_s *mesh);

#endif
