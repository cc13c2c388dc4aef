/* Layouts and communicators of meshes.
 *
 * The communicators of all parts of a mesh are kept by its root, by what they are groups of: the region - the ranks of
 * the part, and of the parts that other ranks have in its place - and for each of its digits the weight in the ranking
 * of the group, 0 where the digit tells groups apart. This is the same on all ranks, so that all of them find a
 * communicator or all make it; which group a rank is in follows from its own position. To look for one allocates
 * nothing: a rank that cannot look would not know whether the others wait for it. */
#include "mesh/mesh.h"

#include <stdlib.h>
#include <string.h>

/* Ranks 0, 1, 2, ... in row-major order of the dims? */
static bool counts_up(const struct reshard_mesh_s *m) {
  int64_t step;
  return m->root->regular && m->offset == 0 && rs_mesh_run(m, &step) == m->size && step == 1;
}

reshard_status reshard_mesh_layout(reshard_mesh mesh, int ndim, const int64_t *shape,
                                   const reshard_placement *placements, const int *order, reshard_layout *layout) {
  if (mesh == NULL || placements == NULL || layout == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_mesh_layout: %s is NULL",
                    mesh == NULL         ? "mesh"
                    : placements == NULL ? "placements"
                                         : "layout");
  int64_t *ranks = NULL;
  if (!counts_up(mesh)) {
    RS_TRY(rs_alloc(&ranks, mesh->size, sizeof *ranks));
    reshard_mesh_ranks(mesh, ranks);
  }
  reshard_status status = reshard_layout_create_mesh(ndim, shape, mesh->root->world, mesh->ndim, mesh->shape,
                                                     mesh->names[0] != NULL ? (const char *const *)mesh->names : NULL,
                                                     placements, order, ranks, layout);
  free(ranks);
  return status;
}

/* --- Communicators ----------------------------------------------------------------------------------------------- */

/* The group that is asked for, without its communicator. */
static void describe(const struct reshard_mesh_s *m, const int *dims, int n, rs_mesh_group *group) {
  int64_t inner[RESHARD_MAX_DIMS] = {0}, extent = 1;
  for (int i = n - 1; i >= 0; i--) {
    inner[dims[i]] = extent;
    extent *= m->shape[dims[i]];
  }
  *group = (rs_mesh_group){.region = m->region, .ndigits = m->ndigits};
  for (int i = 0; i < m->ndigits; i++) {
    rs_digit g = m->digits[i];
    g.weight = g.dim >= 0 ? g.weight * inner[g.dim] : 0;
    g.dim = 0;
    group->digits[i] = g;
  }
}

static bool same_group(const rs_mesh_group *a, const rs_mesh_group *b) {
  return a->region == b->region && a->ndigits == b->ndigits &&
         memcmp(a->digits, b->digits, (size_t)a->ndigits * sizeof *a->digits) == 0;
}

/* All ranks of the mesh's communicator, in their order. */
static bool everybody(const struct reshard_mesh_s *root, const rs_mesh_group *group) {
  int64_t size = 1;
  bool whole = root->regular;
  for (int i = 0; i < group->ndigits && whole; i++) {
    size *= group->digits[i].n;
    whole = group->digits[i].weight == group->digits[i].stride;
  }
  return whole && size == root->world;
}

/* What ranks compare before they split: words for people, and a hash of all that has to be equal. */
#define WHAT_TEXT (RS_MESH_TEXT + 128)
static void print_what(char buffer[WHAT_TEXT], const struct reshard_mesh_s *m, const int *dims, int n,
                       const rs_mesh_group *group) {
  rs_text text = {buffer, WHAT_TEXT, 0};
  for (int i = 0; i < n; i++)
    if (m->names[dims[i]] != NULL)
      rs_text_add(&text, "%s%.16s", i > 0 ? "," : "mesh dims ", m->names[dims[i]]);
    else
      rs_text_add(&text, "%s%d", i > 0 ? "," : "mesh dims ", dims[i]);
  const struct reshard_mesh_s *root = m->root;
  uint64_t hash = rs_hash((uint64_t)group->region, group->digits, (size_t)group->ndigits * sizeof *group->digits);
  for (int64_t i = 0; i < root->list.nranges; i++)
    hash = rs_hash(hash, &root->list.ranges[i], sizeof root->list.ranges[i]);
  char whole[RS_MESH_TEXT];
  rs_text_add(&text, " of %s (%08x)", rs_mesh_text(whole, root), (unsigned)(hash ^ hash >> 32));
}

/* Which group this rank is in, and where in it. */
static void place(const struct reshard_mesh_s *m, const int *dims, int n, rs_split *split) {
  int64_t position, coordinate[RESHARD_MAX_DIMS];
  split->color = -1;
  if (!reshard_mesh_contains((reshard_mesh)m, RESHARD_MESH_MINE) ||
      rs_mesh_find(m, RESHARD_MESH_MINE, &position, coordinate) != RESHARD_SUCCESS)
    return;
  for (int i = 0; i < n; i++) {
    split->key = split->key * m->shape[dims[i]] + coordinate[dims[i]];
    coordinate[dims[i]] = 0;
  }
  int64_t first; /* of the group: no other group has it */
  reshard_mesh_rank_at((reshard_mesh)m, coordinate, &first);
  split->color = first;
}

/* A rank whose own step failed gives its status, and the others are told, unless they make nothing: the communicator is
 * there. */
static reshard_status group_comm(reshard_mesh mesh, const char *text, reshard_status status, reshard_comm *comm) {
  struct reshard_mesh_s *root = mesh->root;
  int dims[RESHARD_MAX_DIMS], n = 0;
  rs_mesh_group wanted, *made = NULL;
  reshard_status known = rs_mesh_dims(mesh, text, dims, &n);
  if (known == RESHARD_SUCCESS) {
    describe(mesh, dims, n, &wanted);
    *comm = root->comm;
    if (everybody(root, &wanted))
      return status;
    for (rs_mesh_group *g = atomic_load(&root->groups); g != NULL; g = g->next)
      if (same_group(g, &wanted)) {
        *comm = g->comm;
        return status;
      }
  }
  if (status == RESHARD_SUCCESS)
    status = known;
  if (status == RESHARD_SUCCESS)
    status = rs_alloc_copy(&made, &wanted, 1, sizeof wanted);
  char what[WHAT_TEXT] = "";
  rs_split split = {.status = status, .what = what};
  if (status == RESHARD_SUCCESS) {
    print_what(what, mesh, dims, n, &wanted);
    place(mesh, dims, n, &split);
    made->next = atomic_load(&root->groups);
  }
  status = root->comm->ops->split(root->comm, &split, made != NULL ? &made->comm : comm);
  if (status != RESHARD_SUCCESS) {
    free(made);
    return status;
  }
  atomic_store(&root->groups, made);
  *comm = made->comm;
  return RESHARD_SUCCESS;
}

static reshard_status check(const char *what, reshard_mesh mesh) {
  if (mesh == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: mesh is NULL", what);
  if (mesh->root->comm == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: a dry mesh has no communicator", what);
  return RESHARD_SUCCESS;
}

reshard_status reshard_mesh_comm(reshard_mesh mesh, const char *dims, reshard_comm *comm) {
  RS_TRY(check("reshard_mesh_comm", mesh));
  reshard_comm found = NULL;
  reshard_status status = RESHARD_SUCCESS;
  if (comm == NULL)
    status = rs_error(RESHARD_ERROR_INVALID, "reshard_mesh_comm: comm is NULL");
  RS_TRY(group_comm(mesh, dims, status, &found));
  *comm = found;
  return RESHARD_SUCCESS;
}

reshard_status reshard_mesh_own(reshard_mesh mesh, reshard_mesh *own) {
  RS_TRY(check("reshard_mesh_own", mesh));
  reshard_mesh made = NULL;
  reshard_comm comm = NULL;
  reshard_status status = RESHARD_SUCCESS;
  if (own == NULL)
    status = rs_error(RESHARD_ERROR_INVALID, "reshard_mesh_own: own is NULL");
  if (status == RESHARD_SUCCESS) /* before the others are met: afterwards it could fail for one rank alone */
    status = rs_mesh_new(NULL, mesh->size, mesh->ndim, mesh->shape,
                         mesh->names[0] != NULL ? (const char *const *)mesh->names : NULL, &made);
  status = group_comm(mesh, NULL, status, &comm);
  if (status != RESHARD_SUCCESS || comm == NULL) {
    reshard_mesh_release(made);
    if (status == RESHARD_SUCCESS)
      *own = NULL;
    return status;
  }
  rs_mesh_count_up(made);
  made->comm = comm;
  made->made_from = reshard_mesh_retain(mesh);
  *own = made;
  return RESHARD_SUCCESS;
}
