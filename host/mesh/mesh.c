/* Meshes: made, and the places of ranks in them. */
#include "mesh/mesh.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* --- Life -------------------------------------------------------------------------------------------------------- */

static bool is_name(const char *s) {
  if (!(isalpha((unsigned char)*s) || *s == '_'))
    return false;
  while (isalnum((unsigned char)*s) || *s == '_')
    s++;
  return *s == '\0';
}

reshard_status rs_mesh_set_name(reshard_mesh mesh, int dim, const char *name) {
  if (name == NULL || !is_name(name))
    return rs_error(RESHARD_ERROR_INVALID, "mesh: '%.64s' is no name for mesh dim %d", name != NULL ? name : "NULL",
                    dim);
  for (int d = 0; d < mesh->ndim; d++)
    if (d != dim && mesh->names[d] != NULL && strcmp(mesh->names[d], name) == 0)
      return rs_error(RESHARD_ERROR_INVALID, "mesh: mesh dims %d and %d are both named '%.64s'", d < dim ? d : dim,
                      d < dim ? dim : d, name);
  return rs_alloc_copy(&mesh->names[dim], name, (int64_t)strlen(name) + 1, 1);
}

static reshard_status check_shape(int ndim, const int64_t *shape, int64_t *size) {
  if (ndim < 1 || ndim > RESHARD_MAX_DIMS)
    return rs_error(RESHARD_ERROR_INVALID, "mesh: %d mesh dims, 1 to %d are allowed", ndim, RESHARD_MAX_DIMS);
  *size = 1;
  for (int d = 0; d < ndim; d++)
    if (shape[d] < 1)
      return rs_error(RESHARD_ERROR_INVALID, "mesh: extent %lld of mesh dim %d, at least 1 is needed",
                      (long long)shape[d], d);
    else if (!rs_mul(*size, shape[d], size)) {
      char text[RS_SHAPE_TEXT];
      return rs_error(RESHARD_ERROR_INVALID, "mesh: the ranks of %s overflow 63 bits",
                      rs_shape_text(text, ndim, shape));
    }
  return RESHARD_SUCCESS;
}

/* Returns the world: the communicator's, the stated one, or 0. */
static reshard_status check_world(reshard_comm comm, int64_t world, int64_t *out) {
  if (world < 0 || (comm != NULL && world != 0 && world != comm->size))
    return comm == NULL ? rs_error(RESHARD_ERROR_INVALID, "mesh: a world of %lld ranks", (long long)world)
                        : rs_error(RESHARD_ERROR_INVALID, "mesh: a world of %lld ranks on a communicator of %lld",
                                   (long long)world, (long long)comm->size);
  *out = comm != NULL ? comm->size : world;
  return RESHARD_SUCCESS;
}

reshard_status rs_mesh_new(reshard_comm comm, int64_t world, int ndim, const int64_t *shape, const char *const *names,
                           reshard_mesh *mesh) {
  int64_t size = 0;
  RS_TRY(check_shape(ndim, shape, &size));
  RS_TRY(check_world(comm, world, &world));
  struct reshard_mesh_s *m;
  RS_TRY(rs_alloc_zero(&m, 1, sizeof *m));
  atomic_init(&m->references, 1);
  atomic_init(&m->groups, NULL);
  m->root = m;
  m->comm = comm;
  m->world = world;
  m->ndim = ndim;
  m->size = size;
  memcpy(m->shape, shape, (size_t)ndim * sizeof *shape);
  for (int d = 0; names != NULL && d < ndim; d++) {
    reshard_status status = rs_mesh_set_name(m, d, names[d]);
    if (status != RESHARD_SUCCESS) {
      reshard_mesh_release(m);
      return status;
    }
  }
  *mesh = m;
  return RESHARD_SUCCESS;
}

reshard_status rs_mesh_part(reshard_mesh mesh, reshard_mesh *part) {
  struct reshard_mesh_s *m;
  RS_TRY(rs_alloc_copy(&m, mesh, 1, sizeof *m));
  atomic_init(&m->references, 1);
  atomic_init(&m->groups, NULL);
  memset(m->names, 0, sizeof m->names);
  m->root = reshard_mesh_retain(mesh->root);
  *part = m;
  return RESHARD_SUCCESS;
}

reshard_mesh reshard_mesh_retain(reshard_mesh mesh) { return RS_RETAIN(mesh); }

void reshard_mesh_release(reshard_mesh mesh) {
  if (!RS_DROP(mesh))
    return;
  for (int d = 0; d < mesh->ndim; d++)
    free(mesh->names[d]);
  if (mesh->root != mesh) {
    reshard_mesh_release(mesh->root);
  } else {
    for (rs_mesh_group *g = atomic_load(&mesh->groups), *next; g != NULL; g = next) {
      next = g->next;
      reshard_comm_destroy(g->comm);
      free(g);
    }
    rs_ranks_free(&mesh->list);
    reshard_mesh_release(mesh->made_from);
  }
  free(mesh);
}

/* --- Ranks ------------------------------------------------------------------------------------------------------- */

static int64_t stride_magnitude(int64_t n) { return n < 0 ? -n : n; }

void rs_mesh_sort(reshard_mesh m) {
  for (int i = 1; i < m->ndigits; i++)
    for (int j = i; j > 0 && stride_magnitude(m->digits[j].stride) > stride_magnitude(m->digits[j - 1].stride); j--) {
      rs_digit swapped = m->digits[j];
      m->digits[j] = m->digits[j - 1];
      m->digits[j - 1] = swapped;
    }
}

/* One digit per dim of more than one rank; strides: of positions. */
static void set_digits(reshard_mesh m, int64_t offset, const int64_t *strides) {
  m->offset = m->region = offset;
  m->ndigits = 0;
  for (int d = 0; d < m->ndim; d++)
    if (m->shape[d] > 1)
      m->digits[m->ndigits++] = (rs_digit){d, m->shape[d], 1, strides[d]};
  rs_mesh_sort(m);
}

/* Positions first, first + step, first + 2 step, ... */
static void set_row_major(reshard_mesh m, int64_t first, int64_t step) {
  int64_t strides[RESHARD_MAX_DIMS], stride = step;
  for (int d = m->ndim - 1; d >= 0; d--) {
    strides[d] = stride;
    stride *= m->shape[d];
  }
  set_digits(m, first, strides);
}

void rs_mesh_count_up(reshard_mesh mesh) {
  mesh->regular = true;
  set_row_major(mesh, 0, 1);
}

/* Sets the digits where the list is a first rank and a stride per dim, and digits are found by division. Then no rank
 * is twice there, either. Each rank is compared with the one a step before it in the last dim in which there is one. */
static bool set_regular(reshard_mesh m, const int64_t *ranks) {
  int64_t strides[RESHARD_MAX_DIMS], weights[RESHARD_MAX_DIMS], weight = 1;
  for (int d = m->ndim - 1; d >= 0; d--) {
    weights[d] = weight;
    strides[d] = m->shape[d] > 1 ? ranks[weight] - ranks[0] : 0;
    weight *= m->shape[d];
  }
  for (int64_t i = 1; i < m->size; i++) {
    int d = m->ndim - 1;
    while (i / weights[d] % m->shape[d] == 0)
      d--;
    if (ranks[i] - ranks[i - weights[d]] != strides[d])
      return false;
  }
  set_digits(m, ranks[0], strides);
  int64_t below = 0; /* the greatest sum of the smaller strides */
  for (int i = m->ndigits - 1; i >= 0; i--) {
    int64_t stride = stride_magnitude(m->digits[i].stride);
    if (stride <= below)
      return false;
    below += stride * (m->digits[i].n - 1);
  }
  return true;
}

static reshard_status set_ranks(reshard_mesh m, int64_t nranks, const int64_t *ranks) {
  if (ranks == NULL && nranks != 0)
    return rs_error(RESHARD_ERROR_INVALID, "mesh: %lld ranks, the list is NULL", (long long)nranks);
  if (ranks != NULL && nranks != m->size) {
    char text[RS_SHAPE_TEXT];
    return rs_error(RESHARD_ERROR_INVALID, "mesh: a mesh of %s has %lld ranks, %lld are given",
                    rs_shape_text(text, m->ndim, m->shape), (long long)m->size, (long long)nranks);
  }
  int64_t lowest = ranks == NULL ? 0 : ranks[0], highest = ranks == NULL ? m->size - 1 : ranks[0];
  for (int64_t i = 1; i < nranks; i++) {
    lowest = rs_min(lowest, ranks[i]);
    highest = rs_max(highest, ranks[i]);
  }
  if (m->world == 0 && (lowest < 0 || highest == INT64_MAX))
    return rs_error(RESHARD_ERROR_INVALID, "mesh: there is no rank %lld", (long long)(lowest < 0 ? lowest : highest));
  if (m->world == 0)
    m->world = highest + 1;
  if (ranks == NULL && m->size > m->world)
    return rs_error(RESHARD_ERROR_INVALID, "mesh: %lld ranks are needed, the world has %lld", (long long)m->size,
                    (long long)m->world);
  if (ranks == NULL)
    rs_mesh_count_up(m);
  else if (lowest >= 0 && highest < m->world && set_regular(m, ranks))
    m->regular = true;
  else {
    RS_TRY(rs_ranks_create("mesh", nranks, ranks, m->world, &m->list));
    set_row_major(m, 0, 1);
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_mesh_create(reshard_comm comm, int64_t world, int ndim, const int64_t *shape,
                                   const char *const *names, int64_t nranks, const int64_t *ranks, reshard_mesh *mesh) {
  RS_TRY(RS_GIVEN("reshard_mesh_create", shape, mesh));
  reshard_mesh m;
  RS_TRY(rs_mesh_new(comm, world, ndim, shape, names, &m));
  reshard_status status = set_ranks(m, nranks, ranks);
  if (status == RESHARD_SUCCESS)
    *mesh = m;
  else
    reshard_mesh_release(m);
  return status;
}

/* --- Questions --------------------------------------------------------------------------------------------------- */

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
    int64_t stride = stride_magnitude(g->stride), digit = rest / stride;
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
  if (positions && a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0 &&
      a->offset == b->offset && a->ndigits == b->ndigits &&
      memcmp(a->digits, b->digits, (size_t)a->ndigits * sizeof *a->digits) == 0)
    return true; /* without a look at each rank, unless digits of dim -1 ask for one */
  for (int64_t i = 0; i < a->size; i++)
    if (rs_mesh_rank_at(a, rs_mesh_position(a, i)) != rs_mesh_rank_at(b, rs_mesh_position(b, i)))
      return false;
  return true;
}

int reshard_mesh_equal(reshard_mesh a, reshard_mesh b) {
  if (a == b)
    return 1;
  if (a == NULL || b == NULL || a->ndim != b->ndim || a->root->world != b->root->world ||
      memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) != 0)
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
