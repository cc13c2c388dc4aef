/* Parts of a mesh, each a rearrangement of digits. A sub-mesh takes some out, a slice shortens or widens one, a
 * flattened dim owns those of several dims. No list of ranks is read. */
#include "mesh/mesh.h"

/* Returns the part, or releases it after an error. */
static reshard_status return_part(reshard_status status, reshard_mesh part, reshard_mesh *out) {
  RS_TRY_OR(status, reshard_mesh_release(part));
  *out = part;
  return RESHARD_SUCCESS;
}

static reshard_status copy_name(reshard_mesh part, int dim, const struct reshard_mesh_s *mesh, int from) {
  return mesh->names[from] != NULL ? rs_mesh_set_name(part, dim, mesh->names[from]) : RESHARD_SUCCESS;
}

/* --- Sub-meshes -------------------------------------------------------------------------------------------------- */

/* Gives the digits of the other dims the values that they have at `coordinate`. mine: they stay as those of sub-meshes
 * side by side; else the other sub-meshes are forgotten. */
static void drop_dims(reshard_mesh part, const int *number, const int64_t *coordinate, bool mine) {
  int kept = 0;
  for (int i = 0; i < part->ndigits; i++) {
    rs_digit g = part->digits[i];
    int64_t dim = g.dim >= 0 ? number[g.dim] : -1;
    if (g.dim >= 0 && dim < 0)
      part->offset += coordinate[g.dim] / g.weight % g.n * g.stride;
    g.dim = dim;
    if (dim >= 0 || mine)
      part->digits[kept++] = g;
  }
  part->ndigits = kept;
  if (!mine)
    part->region = part->offset;
}

reshard_status reshard_mesh_sub(reshard_mesh mesh, const char *dims, int64_t rank, reshard_mesh *sub) {
  RS_TRY(RS_GIVEN("reshard_mesh_sub", mesh, dims, sub));
  int list[RESHARD_MAX_DIMS], n, number[RESHARD_MAX_DIMS];
  int64_t position, coordinate[RESHARD_MAX_DIMS];
  RS_TRY(rs_mesh_dims(mesh, dims, list, &n));
  RS_TRY(rs_mesh_find(mesh, rank, &position, coordinate));
  reshard_mesh part;
  RS_TRY(rs_mesh_part(mesh, &part));
  part->ndim = n;
  part->size = 1;
  for (int d = 0; d < mesh->ndim; d++)
    number[d] = -1;
  reshard_status status = RESHARD_SUCCESS;
  for (int i = 0; i < n && status == RESHARD_SUCCESS; i++) {
    number[list[i]] = i;
    part->shape[i] = mesh->shape[list[i]];
    part->size *= part->shape[i];
    status = copy_name(part, i, mesh, list[i]);
  }
  drop_dims(part, number, coordinate, rank == RESHARD_MESH_MINE);
  return return_part(status, part, sub);
}

/* --- Slices ------------------------------------------------------------------------------------------------------ */

/* Joins the digits of a dim into one, where its coordinates lie at equal distances; false else. */
static bool join_dim(reshard_mesh m, int dim, rs_digit *joined) {
  *joined = (rs_digit){dim, 1, 1, 0};
  for (int i = m->ndigits - 1; i >= 0; i--) { /* the smallest first */
    const rs_digit *g = &m->digits[i];
    if (g->dim != dim)
      continue;
    if (joined->n > 1 && (g->weight != joined->n || g->stride != joined->stride * joined->n))
      return false;
    joined->stride = joined->n == 1 ? g->stride : joined->stride;
    joined->n *= g->n;
  }
  return true;
}

static int64_t dim_distance(const struct reshard_mesh_s *m, int dim, int64_t coordinate) {
  int64_t sum = 0;
  for (int i = 0; i < m->ndigits; i++)
    if (m->digits[i].dim == dim)
      sum += coordinate / m->digits[i].weight % m->digits[i].n * m->digits[i].stride;
  return sum;
}

/* Replaces the digits of a dim by one of n coordinates. */
static void replace_dim(reshard_mesh m, int dim, int64_t first, int64_t n, int64_t stride) {
  int64_t by = dim_distance(m, dim, first);
  m->offset += by;
  m->region += by;
  int kept = 0;
  for (int i = 0; i < m->ndigits; i++)
    if (m->digits[i].dim != dim)
      m->digits[kept++] = m->digits[i];
  if (n > 1)
    m->digits[kept++] = (rs_digit){dim, n, 1, stride};
  m->ndigits = kept;
  m->size = m->size / m->shape[dim] * n;
  m->shape[dim] = n;
  rs_mesh_sort(m);
}

reshard_status reshard_mesh_slice(reshard_mesh mesh, const char *dim, int64_t begin, int64_t end, int64_t step,
                                  reshard_mesh *slice) {
  RS_TRY(RS_GIVEN("reshard_mesh_slice", mesh, slice));
  int d;
  RS_TRY(rs_mesh_one_dim(mesh, dim, &d));
  if (begin < 0 || end > mesh->shape[d] || begin >= end || step < 1)
    return rs_error(RESHARD_ERROR_INVALID, "slice %lld:%lld:%lld of mesh dim %s, which has %lld coordinates",
                    (long long)begin, (long long)end, (long long)step, dim, (long long)mesh->shape[d]);
  int64_t n = rs_ceil_div(end - begin, step);
  rs_digit joined;
  bool even = join_dim(mesh, d, &joined);
  if (!even && n > 1 && n < mesh->shape[d]) {
    char text[RS_MESH_TEXT];
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "slice %lld:%lld:%lld of mesh dim %s of %s: its ranks do not lie at equal distances",
                    (long long)begin, (long long)end, (long long)step, dim, rs_mesh_text(text, mesh));
  }
  reshard_mesh part;
  RS_TRY(rs_mesh_part(mesh, &part));
  reshard_status status = RESHARD_SUCCESS;
  for (int i = 0; i < mesh->ndim && status == RESHARD_SUCCESS; i++)
    status = copy_name(part, i, mesh, i);
  if (n < mesh->shape[d])
    replace_dim(part, d, begin, n, n > 1 ? joined.stride * step : 0);
  return return_part(status, part, slice);
}

/* --- Flattened dims ---------------------------------------------------------------------------------------------- */

static reshard_status name_flat(reshard_mesh part, const struct reshard_mesh_s *mesh, const int *number, int flat,
                                const char *name) {
  if (name == NULL && mesh->names[0] == NULL)
    return RESHARD_SUCCESS;
  if (name == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "the flattened mesh dim needs a name, as the others have");
  if (mesh->names[0] == NULL && part->ndim > 1)
    return rs_error(RESHARD_ERROR_INVALID, "the flattened mesh dim gets the name '%.64s', the others have none", name);
  for (int d = 0; d < mesh->ndim; d++)
    if (number[d] != flat)
      RS_TRY(copy_name(part, number[d], mesh, d));
  return rs_mesh_set_name(part, flat, name);
}

reshard_status reshard_mesh_flatten(reshard_mesh mesh, const char *dims, const char *name, reshard_mesh *flat) {
  RS_TRY(RS_GIVEN("reshard_mesh_flatten", mesh, flat));
  int list[RESHARD_MAX_DIMS], n, number[RESHARD_MAX_DIMS]; /* of a dim, in the part */
  RS_TRY(rs_mesh_dims(mesh, dims, list, &n));
  int64_t inner[RESHARD_MAX_DIMS] = {0}, extent = 1; /* extents behind a dim of the list; 0: it is not there */
  for (int i = n - 1; i >= 0; i--) {
    inner[list[i]] = extent;
    extent *= mesh->shape[list[i]];
  }
  reshard_mesh part;
  RS_TRY(rs_mesh_part(mesh, &part));
  part->ndim = 0;
  for (int d = 0; d < mesh->ndim; d++)
    if (inner[d] == 0 || d == list[0]) {
      part->shape[part->ndim] = inner[d] == 0 ? mesh->shape[d] : extent;
      number[d] = part->ndim++;
    }
  for (int i = 1; i < n; i++)
    number[list[i]] = number[list[0]];
  for (int i = 0; i < part->ndigits; i++) {
    rs_digit *g = &part->digits[i];
    if (g->dim >= 0 && inner[g->dim] > 0)
      g->weight *= inner[g->dim];
    if (g->dim >= 0)
      g->dim = number[g->dim];
  }
  return return_part(name_flat(part, mesh, number, number[list[0]], name), part, flat);
}
