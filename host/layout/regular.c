/* Constructors of the regular kinds, and of flat. Each reduces to a rank list, a sequence of cuts per dim, and the mesh
 * dims that replicate. Cuts into one piece and replicas of one are left out, so that equal layouts compare equal. */
#include "layout/layout.h"
#include "layout/parts.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Dim d of ndim, negative from the end, to 0..ndim-1. */
static reshard_status normalise_dim(const char *what, int d, int ndim, int *out) {
  if (d < -ndim || d >= ndim)
    return rs_error(RESHARD_ERROR_INVALID, "%s: dim %d of a tensor of %d dims", what, d, ndim);
  *out = d < 0 ? d + ndim : d;
  return RESHARD_SUCCESS;
}

/* Product of a mesh or grid, each extent 1 or more. */
static reshard_status grid_size(const char *what, int n, const int64_t *grid, int64_t *size) {
  *size = 1;
  for (int i = 0; i < n; i++) {
    if (grid[i] < 1)
      return rs_error(RESHARD_ERROR_INVALID, "%s: extent %lld of mesh dim %d, at least 1 is needed", what,
                      (long long)grid[i], i);
    if (!rs_mul(*size, grid[i], size))
      return rs_error(RESHARD_ERROR_INVALID, "%s: the ranks of the mesh overflow 63 bits", what);
  }
  return RESHARD_SUCCESS;
}

/* Adds a cut to a dim whose storage has room for it. */
static void add_cut(rs_dim *dim, rs_cut cut) {
  if (cut.w == 1)
    return;
  if (cut.nruns == 0) { /* not of parts */
    cut.ranks = cut.w;
    cut.nruns = 1;
  }
  if (cut.kind == RS_CUT_STRIDED && cut.factor == 1)
    cut.kind = RS_CUT_SHARD;
  if (cut.kind == RS_CUT_SHARD)
    cut.factor = 1;
  dim->cuts[dim->ncuts++] = cut;
  dim->parts *= cut.w;
}

static void count_cells(struct reshard_layout_s *l) {
  for (int d = 0; d < l->ndim; d++)
    l->cells *= l->dim[d].parts;
}

/* One cut of one dim, or none (dim -1), over a rank list: chunk and single. */
static reshard_status create_line(const char *what, reshard_layout_kind kind, int ndim, const int64_t *shape,
                                  int64_t world, int dim, int64_t nranks, const int64_t *ranks,
                                  reshard_layout *layout) {
  struct reshard_layout_s *l = NULL;
  RS_TRY(rs_layout_new(what, kind, ndim, shape, world, layout, &l));
  reshard_status status;
  if (dim >= 0 || kind == RESHARD_LAYOUT_CHUNK)
    RS_TRY_GOTO(status, normalise_dim(what, dim, ndim, &dim), fail);
  if (ranks == NULL && nranks == 0)
    nranks = world;
  RS_TRY_GOTO(status, rs_ranks_create(what, nranks, ranks, world, &l->ranks), fail);
  RS_TRY_GOTO(status, rs_alloc(&l->cuts, 1, sizeof *l->cuts), fail);
  if (kind == RESHARD_LAYOUT_CHUNK) {
    l->chunk_dim = dim;
    l->dim[dim].cuts = l->cuts;
    add_cut(&l->dim[dim], (rs_cut){.kind = RS_CUT_SHARD, .w = nranks, .factor = 1, .stride = 1});
  }
  count_cells(l);
  *layout = l;
  return RESHARD_SUCCESS;
fail:
  reshard_layout_release(l);
  return status;
}

reshard_status reshard_layout_create_chunk(int ndim, const int64_t *shape, int64_t world, int dim, int64_t nranks,
                                           const int64_t *ranks, reshard_layout *layout) {
  return create_line("chunk", RESHARD_LAYOUT_CHUNK, ndim, shape, world, dim, nranks, ranks, layout);
}

reshard_status reshard_layout_create_single(int ndim, const int64_t *shape, int64_t world, int64_t rank,
                                            reshard_layout *layout) {
  return create_line("rank", RESHARD_LAYOUT_SINGLE, ndim, shape, world, -1, 1, &rank, layout);
}

reshard_status reshard_layout_create_flat(int ndim, const int64_t *shape, int64_t world, int64_t nranks,
                                          const int64_t *ranks, reshard_layout *layout) {
  struct reshard_layout_s *l = NULL;
  RS_TRY(rs_layout_new("flat", RESHARD_LAYOUT_FLAT, ndim, shape, world, layout, &l));
  if (ranks == NULL && nranks == 0)
    nranks = world;
  int64_t cells;
  reshard_status status = rs_ranks_create("flat", nranks, ranks, world, &l->ranks);
  if (status == RESHARD_SUCCESS && !rs_mul(rs_min(nranks, l->elements), rs_flat_most(ndim), &cells))
    status = rs_error(RESHARD_ERROR_INVALID, "flat: the boxes of %lld pieces overflow 63 bits", (long long)nranks);
  RS_TRY_OR(status, reshard_layout_release(l));
  l->flat_piece = rs_ceil_div(l->elements, nranks);
  *layout = l;
  return RESHARD_SUCCESS;
}

reshard_status reshard_layout_create_cyclic(int ndim, const int64_t *shape, int64_t world, const int64_t *grid,
                                            const int64_t *block, const int64_t *ranks, reshard_layout *layout) {
  struct reshard_layout_s *l = NULL;
  if (ndim > 0 && (grid == NULL || block == NULL))
    return rs_error(RESHARD_ERROR_INVALID, "cyclic: NULL grid or block");
  RS_TRY(rs_layout_new("cyclic", RESHARD_LAYOUT_CYCLIC, ndim, shape, world, layout, &l));
  reshard_status status;
  int64_t size;
  RS_TRY_GOTO(status, grid_size("cyclic", ndim, grid, &size), fail);
  for (int d = 0; d < ndim; d++)
    if (block[d] < 1) {
      status =
          rs_error(RESHARD_ERROR_INVALID, "cyclic: block %lld in dim %d, at least 1 is needed", (long long)block[d], d);
      goto fail;
    }
  RS_TRY_GOTO(status, rs_ranks_create("cyclic", size, ranks, world, &l->ranks), fail);
  RS_TRY_GOTO(status, rs_alloc_copy(&l->mesh_shape, grid, ndim, sizeof *grid), fail);
  RS_TRY_GOTO(status, rs_alloc(&l->cuts, rs_max(1, ndim), sizeof *l->cuts), fail);
  l->mesh_ndim = ndim;
  int64_t stride = size;
  for (int d = 0; d < ndim; d++) {
    stride /= grid[d];
    l->block[d] = block[d];
    l->dim[d].cuts = l->cuts + d;
    /* A block longer than the dim is the dim: keeps block arithmetic within 63 bits. */
    int64_t factor = rs_max(1, rs_min(block[d], shape[d]));
    add_cut(&l->dim[d], (rs_cut){.kind = RS_CUT_CYCLIC, .w = grid[d], .factor = factor, .stride = stride});
  }
  count_cells(l);
  *layout = l;
  return RESHARD_SUCCESS;
fail:
  reshard_layout_release(l);
  return status;
}

static bool is_name(const char *s) {
  if (s == NULL || !(isalpha((unsigned char)*s) || *s == '_'))
    return false;
  for (; *s != '\0'; s++)
    if (!(isalnum((unsigned char)*s) || *s == '_'))
      return false;
  return true;
}

static reshard_status check_names(int n, const char *const *names) {
  for (int i = 0; i < n; i++) {
    if (!is_name(names[i]))
      return rs_error(RESHARD_ERROR_INVALID, "mesh: '%.64s' is no name for mesh dim %d", names[i] ? names[i] : "NULL",
                      i);
    for (int j = 0; j < i; j++)
      if (strcmp(names[i], names[j]) == 0)
        return rs_error(RESHARD_ERROR_INVALID, "mesh: mesh dims %d and %d are both named '%.64s'", j, i, names[i]);
  }
  return RESHARD_SUCCESS;
}

static reshard_status check_order(int n, const int *order) {
  for (int i = 0; i < n; i++) {
    if (order[i] < 0 || order[i] >= n)
      return rs_error(RESHARD_ERROR_INVALID, "mesh: order names mesh dim %d of %d", order[i], n);
    for (int j = 0; j < i; j++)
      if (order[i] == order[j])
        return rs_error(RESHARD_ERROR_INVALID, "mesh: order names mesh dim %d twice", order[i]);
  }
  return RESHARD_SUCCESS;
}

static reshard_status check_placements(int ndim, int n, reshard_placement *placements) {
  for (int m = 0; m < n; m++) {
    reshard_placement *p = &placements[m];
    if ((int)p->kind < RESHARD_PLACEMENT_REPLICATE || p->kind > RESHARD_PLACEMENT_STRIDED_SHARD)
      return rs_error(RESHARD_ERROR_INVALID, "mesh: unknown placement %d of mesh dim %d", (int)p->kind, m);
    if (p->kind == RESHARD_PLACEMENT_REPLICATE) {
      *p = (reshard_placement){.kind = RESHARD_PLACEMENT_REPLICATE};
      continue;
    }
    RS_TRY(normalise_dim("mesh", p->dim, ndim, &p->dim));
    if (p->kind == RESHARD_PLACEMENT_SHARD)
      p->split_factor = 0;
    else if (p->split_factor < 1)
      return rs_error(RESHARD_ERROR_INVALID, "mesh: split factor %lld of mesh dim %d, at least 1 is needed",
                      (long long)p->split_factor, m);
  }
  return RESHARD_SUCCESS;
}

/* Copies what the caller gave, checked; what is missing stays NULL. */
static reshard_status keep_mesh(struct reshard_layout_s *l, int n, const int64_t *shape, const char *const *names,
                                const reshard_placement *placements, const int *order) {
  l->mesh_ndim = n;
  RS_TRY(rs_alloc_copy(&l->mesh_shape, shape, n, sizeof *shape));
  RS_TRY(rs_alloc_copy(&l->placements, placements, n, sizeof *placements));
  for (int m = 0; m < n; m++) { /* the caller's */
    l->placements[m].parts = NULL;
    l->placements[m].nparts = l->placements[m].ratio = 0;
  }
  RS_TRY(check_placements(l->ndim, n, l->placements));
  if (names != NULL) {
    RS_TRY(check_names(n, names));
    RS_TRY(rs_alloc_zero(&l->names, n, sizeof *l->names));
    for (int i = 0; i < n; i++)
      RS_TRY(rs_alloc_copy(&l->names[i], names[i], (int64_t)strlen(names[i]) + 1, 1));
  }
  bool plain = true;
  if (order != NULL)
    RS_TRY(check_order(n, order));
  for (int i = 0; i < n && order != NULL; i++)
    plain &= order[i] == i;
  if (!plain)
    RS_TRY(rs_alloc_copy(&l->order, order, n, sizeof *order));
  return rs_parts_keep(l, placements);
}

static void add_replica(struct reshard_layout_s *l, rs_replica replica) {
  if (replica.n == 1)
    return;
  l->replica[l->nreplicas++] = replica;
  l->replicas *= replica.n;
}

/* Turns placements into cuts, dim by dim in the order of cutting, and replicas. */
static void cut_mesh(struct reshard_layout_s *l, const int64_t *stride) {
  rs_cut *next = l->cuts;
  for (int d = 0; d < l->ndim; d++) {
    l->dim[d].cuts = next;
    for (int i = 0; i < l->mesh_ndim; i++) {
      int m = l->order != NULL ? l->order[i] : i;
      const reshard_placement *p = &l->placements[m];
      if (p->kind == RESHARD_PLACEMENT_REPLICATE || p->dim != d)
        continue;
      rs_replica none;
      rs_cut cut = rs_parts_cut(l, m, stride[m], &none);
      if (p->kind == RESHARD_PLACEMENT_STRIDED_SHARD) {
        cut.kind = RS_CUT_STRIDED;
        cut.factor = p->split_factor;
      }
      add_cut(&l->dim[d], cut);
    }
    if (rs_dim_runs(&l->dim[d]) > 1)
      l->runs_dim = d;
    next += l->dim[d].ncuts;
  }
  for (int m = 0; m < l->mesh_ndim; m++) {
    rs_replica replica = {l->mesh_shape[m], stride[m]};
    if (l->placements[m].kind != RESHARD_PLACEMENT_REPLICATE)
      rs_parts_cut(l, m, stride[m], &replica);
    add_replica(l, replica);
  }
  count_cells(l);
}

reshard_status reshard_layout_create_mesh(int ndim, const int64_t *shape, int64_t world, int mesh_ndim,
                                          const int64_t *mesh_shape, const char *const *names,
                                          const reshard_placement *placements, const int *order, const int64_t *ranks,
                                          reshard_layout *layout) {
  if (mesh_ndim < 1 || mesh_shape == NULL || placements == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "mesh: %d mesh dims with NULL or no extents or placements", mesh_ndim);
  struct reshard_layout_s *l = NULL;
  RS_TRY(rs_layout_new("mesh", RESHARD_LAYOUT_MESH, ndim, shape, world, layout, &l));
  reshard_status status;
  int64_t size, *stride = NULL;
  RS_TRY_GOTO(status, grid_size("mesh", mesh_ndim, mesh_shape, &size), done);
  RS_TRY_GOTO(status, rs_ranks_create("mesh", size, ranks, world, &l->ranks), done);
  RS_TRY_GOTO(status, keep_mesh(l, mesh_ndim, mesh_shape, names, placements, order), done);
  RS_TRY_GOTO(status, rs_alloc(&l->cuts, mesh_ndim, sizeof *l->cuts), done);
  RS_TRY_GOTO(status, rs_alloc(&l->replica, mesh_ndim, sizeof *l->replica), done);
  RS_TRY_GOTO(status, rs_alloc(&stride, mesh_ndim, sizeof *stride), done);
  for (int m = mesh_ndim - 1; m >= 0; m--)
    stride[m] = m == mesh_ndim - 1 ? 1 : stride[m + 1] * mesh_shape[m + 1];
  cut_mesh(l, stride);
  *layout = l;
  l = NULL;
done:
  free(stride);
  reshard_layout_release(l);
  return status;
}

reshard_status reshard_layout_create_boxes(int ndim, const int64_t *shape, int64_t world, int64_t nboxes,
                                           const int64_t *ranks, const reshard_box *boxes, int replicated,
                                           reshard_layout *layout) {
  if (nboxes < 0 || (nboxes > 0 && (ranks == NULL || boxes == NULL)))
    return rs_error(RESHARD_ERROR_INVALID, "boxes: %lld boxes with NULL ranks or boxes", (long long)nboxes);
  struct reshard_layout_s *l = NULL;
  RS_TRY(rs_layout_new("boxes", RESHARD_LAYOUT_BOXES, ndim, shape, world, layout, &l));
  RS_TRY_OR(rs_boxes_create(ndim, shape, world, nboxes, ranks, boxes, replicated != 0, &l->boxes),
            reshard_layout_release(l));
  *layout = l;
  return RESHARD_SUCCESS;
}
