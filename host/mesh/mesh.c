/* Meshes: made and released. */
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
  if (comm != NULL)
    rs_comm_hold(comm);
  m->world = world;
  m->ndim = ndim;
  m->size = size;
  memcpy(m->shape, shape, (size_t)ndim * sizeof *shape);
  for (int d = 0; names != NULL && d < ndim; d++)
    RS_TRY_OR(rs_mesh_set_name(m, d, names[d]), reshard_mesh_release(m));
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
    if (mesh->comm != NULL)
      rs_comm_let_go(mesh->comm);
    reshard_mesh_release(mesh->made_from);
  }
  free(mesh);
}

/* --- Ranks ------------------------------------------------------------------------------------------------------- */

void rs_mesh_sort(reshard_mesh m) {
  for (int i = 1; i < m->ndigits; i++)
    for (int j = i; j > 0 && llabs(m->digits[j].stride) > llabs(m->digits[j - 1].stride); j--) {
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

static void set_row_major(reshard_mesh m) {
  int64_t strides[RESHARD_MAX_DIMS], stride = 1;
  for (int d = m->ndim - 1; d >= 0; d--) {
    strides[d] = stride;
    stride *= m->shape[d];
  }
  set_digits(m, 0, strides);
}

void rs_mesh_count_up(reshard_mesh mesh) {
  mesh->regular = true;
  set_row_major(mesh);
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
    int64_t stride = llabs(m->digits[i].stride);
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
    set_row_major(m);
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_mesh_create(reshard_comm comm, int64_t world, int ndim, const int64_t *shape,
                                   const char *const *names, int64_t nranks, const int64_t *ranks, reshard_mesh *mesh) {
  RS_TRY(RS_GIVEN("reshard_mesh_create", shape, mesh));
  reshard_mesh m;
  RS_TRY(rs_mesh_new(comm, world, ndim, shape, names, &m));
  RS_TRY_OR(set_ranks(m, nranks, ranks), reshard_mesh_release(m));
  *mesh = m;
  return RESHARD_SUCCESS;
}
