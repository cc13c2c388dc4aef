/* Questions to a mesh: its form, which rank is where in it, and whether two are equal. */
#include "mesh/mesh.h"

#include <stdlib.h>
#include <string.h>

int reshard_mesh_ndim(reshard_mesh mesh) { return mesh != NULL ? mesh->ndim : 0; }
const int64_t *reshard_mesh_shape(reshard_mesh mesh) { return mesh != NULL ? mesh->shape : NULL; }
const char *reshard_mesh_name(reshard_mesh mesh, int dim) {
  return dim >= 0 && dim < reshard_mesh_ndim(mesh) ? mesh->names[dim] : NULL;
}
int64_t reshard_mesh_size(reshard_mesh mesh) { return mesh != NULL ? mesh->size : 0; }
int64_t reshard_mesh_world(reshard_mesh mesh) { return mesh != NULL ? mesh->root->world : 0; }
reshard_comm reshard_mesh_base_comm(reshard_mesh mesh) { return mesh != NULL ? mesh->root->comm : NULL; }
reshard_mesh reshard_mesh_root(reshard_mesh mesh) { return mesh != NULL ? mesh->root : NULL; }
int64_t reshard_mesh_rank(reshard_mesh mesh) { return reshard_comm_rank(reshard_mesh_base_comm(mesh)); }

int64_t rs_mesh_rank_at(const struct reshard_mesh_s *m, int64_t position) {
  return m->root->regular ? position : rs_ranks_at(&m->root->list, position);
}

int64_t rs_mesh_position(const struct reshard_mesh_s *m, int64_t index) {
  int64_t weights[RESHARD_MAX_DIMS], weight = 1, position = m->offset;
  for (int d = m->ndim - 1; d >= 0; d--) {
    weights[d] = weight;
    weight *= m->shape[d];
  }
  for (int i = 0; i < m->ndigits; i++) {
    const rs_digit *g = &m->digits[i];
    if (g->dim >= 0)
      position += index / weights[g->dim] % m->shape[g->dim] / g->weight % g->n * g->stride;
  }
  return position;
}

int64_t rs_mesh_run(const struct reshard_mesh_s *m, int64_t *step) {
  int64_t weights[RESHARD_MAX_DIMS], weight = 1, run = 1;
  *step = 1;
  for (int d = m->ndim - 1; d >= 0; d--) {
    weights[d] = weight;
    weight *= m->shape[d];
  }
  for (int i = m->ndigits - 1; i >= 0 && m->root->regular; i--) { /* the smallest stride first */
    const rs_digit *g = &m->digits[i];
    if (g->dim < 0)
      continue;
    if (run == 1 && g->stride == -1)
      *step = -1;
    if (g->stride != *step * run || weights[g->dim] * g->weight != run)
      return run;
    run *= g->n;
  }
  return run;
}

/* Digits by division, largest stride first. A negative stride counts down from its last digit. */
static bool decode_digits(const struct reshard_mesh_s *m, int64_t position, int64_t *coordinate) {
  int64_t rest = position - m->offset;
  if (coordinate != NULL)
    memset(coordinate, 0, (size_t)m->ndim * sizeof *coordinate);
  for (int i = 0; i < m->ndigits; i++)
    if (m->digits[i].dim >= 0 && m->digits[i].stride < 0)
      rest -= m->digits[i].stride * (m->digits[i].n - 1);
  for (int i = 0; i < m->ndigits && rest >= 0; i++) {
    const rs_digit *g = &m->digits[i];
    if (g->dim < 0)
      continue;
    int64_t stride = llabs(g->stride), digit = rest / stride;
    if (digit >= g->n)
      return false;
    rest -= digit * stride;
    if (coordinate != NULL)
      coordinate[g->dim] += (g->stride > 0 ? digit : g->n - 1 - digit) * g->weight;
  }
  return rest == 0;
}

/* Position of a rank, or -1. */
static int64_t position_of(const struct reshard_mesh_s *m, int64_t rank) {
  if (rank == RESHARD_MESH_MINE)
    rank = m->root->comm != NULL ? m->root->comm->rank : -1;
  if (rank < 0 || rank >= m->root->world)
    return -1;
  return m->root->regular ? rank : rs_ranks_find(&m->root->list, rank);
}

int reshard_mesh_contains(reshard_mesh mesh, int64_t rank) {
  if (mesh == NULL)
    return 0;
  int64_t position = position_of(mesh, rank);
  return position >= 0 && decode_digits(mesh, position, NULL);
}

reshard_status rs_mesh_find(const struct reshard_mesh_s *m, int64_t rank, int64_t *position, int64_t *coordinate) {
  if (rank == RESHARD_MESH_MINE && m->root->comm == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "a dry mesh has no rank of its own: name one");
  *position = position_of(m, rank);
  char text[RS_MESH_TEXT];
  if (*position < 0 || !decode_digits(m, *position, coordinate))
    return rs_error(RESHARD_ERROR_INVALID, "rank %lld is not in the mesh %s",
                    (long long)(rank == RESHARD_MESH_MINE ? m->root->comm->rank : rank), rs_mesh_text(text, m));
  return RESHARD_SUCCESS;
}

reshard_status reshard_mesh_coordinate(reshard_mesh mesh, int64_t rank, int64_t *coordinate) {
  RS_TRY(RS_GIVEN("reshard_mesh_coordinate", mesh, coordinate));
  int64_t position, found[RESHARD_MAX_DIMS];
  RS_TRY(rs_mesh_find(mesh, rank, &position, found));
  memcpy(coordinate, found, (size_t)mesh->ndim * sizeof *found);
  return RESHARD_SUCCESS;
}

reshard_status reshard_mesh_local_rank(reshard_mesh mesh, const char *dim, int64_t rank, int64_t *local) {
  RS_TRY(RS_GIVEN("reshard_mesh_local_rank", mesh, local));
  int d;
  int64_t position, found[RESHARD_MAX_DIMS];
  RS_TRY(rs_mesh_one_dim(mesh, dim, &d));
  RS_TRY(rs_mesh_find(mesh, rank, &position, found));
  *local = found[d];
  return RESHARD_SUCCESS;
}

reshard_status reshard_mesh_rank_at(reshard_mesh mesh, const int64_t *coordinate, int64_t *rank) {
  RS_TRY(RS_GIVEN("reshard_mesh_rank_at", mesh, coordinate, rank));
  int64_t index = 0;
  for (int d = 0; d < mesh->ndim; d++) {
    if (coordinate[d] < 0 || coordinate[d] >= mesh->shape[d])
      return rs_error(RESHARD_ERROR_INVALID, "coordinate %lld in mesh dim %d%s%s of extent %lld",
                      (long long)coordinate[d], d, mesh->names[d] != NULL ? ", " : "",
                      mesh->names[d] != NULL ? mesh->names[d] : "", (long long)mesh->shape[d]);
    index = index * mesh->shape[d] + coordinate[d];
  }
  *rank = rs_mesh_rank_at(mesh, rs_mesh_position(mesh, index));
  return RESHARD_SUCCESS;
}

reshard_status reshard_mesh_ranks(reshard_mesh mesh, int64_t *ranks) {
  RS_TRY(RS_GIVEN("reshard_mesh_ranks", mesh, ranks));
  for (int64_t i = 0; i < mesh->size; i++)
    ranks[i] = rs_mesh_rank_at(mesh, rs_mesh_position(mesh, i));
  return RESHARD_SUCCESS;
}

bool rs_mesh_same_ranks(const struct reshard_mesh_s *a, const struct reshard_mesh_s *b) {
  if (a == b || a->size != b->size)
    return a == b;
  bool positions = a->root == b->root || (a->root->regular && b->root->regular);
  if (positions && rs_shape_equal(a->ndim, a->shape, b->ndim, b->shape) && a->offset == b->offset &&
      a->ndigits == b->ndigits && memcmp(a->digits, b->digits, (size_t)a->ndigits * sizeof *a->digits) == 0)
    return true; /* without a look at each rank, unless digits of dim -1 ask for one */
  for (int64_t i = 0; i < a->size; i++)
    if (rs_mesh_rank_at(a, rs_mesh_position(a, i)) != rs_mesh_rank_at(b, rs_mesh_position(b, i)))
      return false;
  return true;
}

int reshard_mesh_equal(reshard_mesh a, reshard_mesh b) {
  if (a == b)
    return 1;
  if (a == NULL || b == NULL || a->root->world != b->root->world ||
      !rs_shape_equal(a->ndim, a->shape, b->ndim, b->shape))
    return 0;
  const void *groups[2] = {a->root->comm != NULL ? a->root->comm->group : NULL,
                           b->root->comm != NULL ? b->root->comm->group : NULL};
  if (groups[0] != groups[1])
    return 0;
  for (int d = 0; d < a->ndim; d++)
    if ((a->names[d] == NULL) != (b->names[d] == NULL) ||
        (a->names[d] != NULL && strcmp(a->names[d], b->names[d]) != 0))
      return 0;
  return rs_mesh_same_ranks(a, b);
}

/* Hashes what equal meshes share however they were made: the first rank, the last, and neighbours. */
uint64_t reshard_mesh_hash(reshard_mesh mesh) {
  if (mesh == NULL)
    return 0;
  int64_t words[3 + 2 * RESHARD_MAX_DIMS] = {mesh->root->world, rs_mesh_rank_at(mesh, rs_mesh_position(mesh, 0)),
                                             rs_mesh_rank_at(mesh, rs_mesh_position(mesh, mesh->size - 1))};
  int n = 3;
  for (int64_t d = 0, weight = mesh->size; d < mesh->ndim; d++) {
    weight /= mesh->shape[d];
    words[n++] = mesh->shape[d];
    words[n++] = mesh->shape[d] > 1 ? rs_mesh_rank_at(mesh, rs_mesh_position(mesh, weight)) : 0;
  }
  uint64_t hash = rs_hash(0, words, (size_t)n * sizeof *words);
  for (int d = 0; d < mesh->ndim && mesh->names[d] != NULL; d++)
    hash = rs_hash(hash, mesh->names[d], strlen(mesh->names[d]));
  return hash;
}
