/* What the ranks say about a tensor of which each has a part: compared in one all-gather, from which all ranks draw the
 * same conclusion. Where the global shape is not known it is inferred: along each dim the parts of those ranks that
 * differ only in the mesh dims that cut it, from the first corner of the mesh, lie end to end. Then every part has to
 * be what the cuts make of that shape. */
#include "dtensor/dtensor.h"

#include <string.h>

typedef struct claim {
  reshard_dtype dtype;
  int ndim;
  bool given, infer;
  uint64_t mesh;                   /* hash */
  int64_t shape[RESHARD_MAX_DIMS]; /* of the part; where it is known, of the whole */
  int mesh_ndim;
  int order[RESHARD_MAX_DIMS];
  reshard_placement placements[RESHARD_MAX_DIMS];
  char mesh_text[96];
} claim;
_Static_assert(sizeof(claim) <= RS_COMM_RECORD, "a claim is one record of the all-gather");

/* Is the sharder that of a sub-mesh's group? Then its ranks are the places of the mesh. */
static bool of_group(reshard_sharder s, reshard_mesh mesh) { return s->comm != mesh->root->comm; }

static int64_t rank_at(reshard_sharder s, reshard_mesh mesh, int64_t i) {
  return of_group(s, mesh) ? i : rs_mesh_rank_at(mesh, rs_mesh_position(mesh, i));
}

/* Of a rank of the sharder: its number in the mesh's communicator. */
static long long shown(reshard_sharder s, reshard_mesh mesh, int64_t rank) {
  return of_group(s, mesh) ? rs_mesh_rank_at(mesh, rs_mesh_position(mesh, rank)) : rank;
}

static claim make_claim(const reshard_placing *placing, reshard_tensor local, int ndim, const int64_t *shape,
                        bool infer) {
  char text[RS_MESH_TEXT];
  reshard_mesh mesh = placing->mesh;
  claim c = {.dtype = local != NULL ? local->info.dtype : RESHARD_DTYPE_NONE,
             .ndim = infer && local != NULL ? local->info.ndim : ndim,
             .given = local != NULL && reshard_mesh_contains(mesh, RESHARD_MESH_MINE),
             .infer = infer,
             .mesh = reshard_mesh_hash(mesh),
             .mesh_ndim = mesh->ndim};
  const int64_t *from = infer && local != NULL ? local->info.shape : shape;
  if (!infer || local != NULL)
    memcpy(c.shape, from, (size_t)c.ndim * sizeof *from);
  for (int m = 0; m < mesh->ndim; m++) {
    c.order[m] = placing->order != NULL ? placing->order[m] : m;
    c.placements[m] = placing->placements[m];
  }
  memcpy(c.mesh_text, rs_mesh_text(text, mesh), sizeof c.mesh_text);
  if (c.mesh_text[sizeof c.mesh_text - 1] != '\0')
    memcpy(c.mesh_text + sizeof c.mesh_text - 4, "...", 4);
  return c;
}

/* The same of a tensor of ndim dims? */
static bool same_placement(const reshard_placement *a, const reshard_placement *b, int ndim) {
  if (a->kind != b->kind)
    return false;
  if (a->kind == RESHARD_PLACEMENT_REPLICATE)
    return true;
  int da = a->dim < 0 ? a->dim + ndim : a->dim, db = b->dim < 0 ? b->dim + ndim : b->dim;
  return da == db && (a->kind == RESHARD_PLACEMENT_SHARD || a->split_factor == b->split_factor);
}

static bool same_cuts(const claim *a, const claim *b, int ndim) {
  bool same = memcmp(a->order, b->order, sizeof a->order) == 0;
  for (int m = 0; m < a->mesh_ndim && same; m++)
    same = same_placement(&a->placements[m], &b->placements[m], ndim);
  return same;
}

static reshard_status differ(int64_t a, int64_t b, const char *what, const char *x, const char *y) {
  return rs_error_differ(what, a, x, b, y);
}

/* Rank b against rank a, which has a tensor; the mesh is this rank's, for its names. */
static reshard_status compare(reshard_sharder s, reshard_mesh mesh, const claim *all, int64_t i, int64_t j) {
  char x[RS_SHAPE_TEXT], y[RS_SHAPE_TEXT], p[RS_PLACEMENTS_TEXT], q[RS_PLACEMENTS_TEXT];
  const claim *ca = &all[i], *cb = &all[j];
  long long a = shown(s, mesh, i), b = shown(s, mesh, j);
  if (ca->infer != cb->infer)
    return differ(a, b, "global shape", ca->infer ? "NULL" : "given", cb->infer ? "NULL" : "given");
  if (ca->mesh != cb->mesh)
    return differ(a, b, "mesh", ca->mesh_text, cb->mesh_text);
  if (cb->dtype != RESHARD_DTYPE_NONE && ca->dtype != cb->dtype)
    return differ(a, b, "dtype", reshard_dtype_string(ca->dtype), reshard_dtype_string(cb->dtype));
  bool shaped = !cb->infer || cb->given; /* cb has a shape to compare, or dims at least */
  bool same = !shaped || (ca->ndim == cb->ndim && (cb->infer || memcmp(ca->shape, cb->shape, sizeof ca->shape) == 0));
  if (!same)
    return differ(a, b, cb->infer ? "local shape" : "global shape", rs_list_text(x, sizeof x, ca->ndim, ca->shape),
                  rs_list_text(y, sizeof y, cb->ndim, cb->shape));
  if (!same_cuts(ca, cb, ca->ndim))
    return differ(a, b, "placements", rs_placements_text(p, mesh, ca->placements, ca->order),
                  rs_placements_text(q, mesh, cb->placements, cb->order));
  return RESHARD_SUCCESS;
}

/* --- Inference --------------------------------------------------------------------------------------------------- */

/* Row-major index to coordinate; whether it is 0 in every mesh dim that does not cut tensor dim d. */
static bool on_edge(const reshard_mesh mesh, const claim *c, int64_t index, int d, int ndim) {
  for (int m = mesh->ndim - 1; m >= 0; m--) {
    const reshard_placement *p = &c->placements[m];
    bool cuts = p->kind != RESHARD_PLACEMENT_REPLICATE && (p->dim < 0 ? p->dim + ndim : p->dim) == d;
    if (!cuts && index % mesh->shape[m] != 0)
      return false;
    index /= mesh->shape[m];
  }
  return true;
}

static reshard_status add_parts(reshard_sharder s, reshard_mesh mesh, const claim *all, int ndim, int64_t *shape) {
  const claim *own = NULL;
  memset(shape, 0, RESHARD_MAX_DIMS * sizeof *shape);
  for (int64_t i = 0; i < mesh->size; i++) {
    const claim *c = &all[rank_at(s, mesh, i)];
    own = own == NULL ? c : own;
    for (int d = 0; d < ndim; d++)
      if (c->given && on_edge(mesh, own, i, d, ndim) && !rs_add(shape[d], c->shape[d], &shape[d]))
        return rs_error(RESHARD_ERROR_INVALID, "the extents of the local tensors in dim %d overflow 63 bits", d);
  }
  return RESHARD_SUCCESS;
}

static reshard_status check_parts(reshard_sharder s, reshard_layout layout, reshard_mesh mesh, const claim *all) {
  int ndim = reshard_layout_ndim(layout);
  for (int64_t r = 0; r < s->comm->size; r++) {
    char has[RS_SHAPE_TEXT], wants[RS_SHAPE_TEXT], whole[RS_SHAPE_TEXT];
    reshard_array_info part;
    if (!of_group(s, mesh) && !reshard_mesh_contains(mesh, r))
      continue;
    RS_TRY(reshard_layout_array(layout, r, 0, &part));
    if (all[r].given ? memcmp(all[r].shape, part.shape, sizeof part.shape) == 0 : part.elements == 0)
      continue;
    return rs_error(RESHARD_ERROR_INVALID,
                    "the local tensor of rank %lld is %s%s and should be of %s: all parts together are a tensor of "
                    "shape %s",
                    shown(s, mesh, r), all[r].given ? "of shape " : "NULL",
                    all[r].given ? rs_shape_text(has, ndim, all[r].shape) : "", rs_shape_text(wants, ndim, part.shape),
                    rs_shape_text(whole, ndim, reshard_layout_shape(layout)));
  }
  return RESHARD_SUCCESS;
}

static reshard_status infer(reshard_sharder s, const reshard_placing *placing, const claim *all, int ndim,
                            int64_t *shape) {
  reshard_layout layout;
  RS_TRY(add_parts(s, placing->mesh, all, ndim, shape));
  RS_TRY(rs_placing_layout("reshard_dtensor_from_local", s, placing, ndim, shape, &layout));
  reshard_status status = check_parts(s, layout, placing->mesh, all);
  reshard_layout_release(layout);
  return status;
}

/* --- The call ---------------------------------------------------------------------------------------------------- */

reshard_status rs_dtensor_compare(reshard_sharder s, const reshard_placing *placing, reshard_tensor local, int *ndim,
                                  int64_t shape[RESHARD_MAX_DIMS], bool infer_shape, reshard_dtype *dtype) {
  const void *records;
  claim own = make_claim(placing, local, *ndim, shape, infer_shape);
  RS_TRY(s->comm->ops->allgather(s->comm, &own, sizeof own, &records));
  const claim *all = records;
  int64_t first = 0; /* the lowest rank that has a part */
  while (first < s->comm->size && !all[first].given)
    first++;
  if (first == s->comm->size)
    return rs_error(RESHARD_ERROR_INVALID, "no rank of the mesh %s has a local tensor", own.mesh_text);
  for (int64_t r = 0; r < s->comm->size; r++)
    RS_TRY(compare(s, placing->mesh, all, first, r));
  *ndim = all[first].ndim;
  *dtype = all[first].dtype;
  if (!infer_shape)
    return RESHARD_SUCCESS;
  /* What is wrong with the parts is the same on all ranks; only memory can be short on one alone. */
  reshard_status status = infer(s, placing, all, *ndim, shape);
  RS_TRY(rs_agree(s->comm, status == RESHARD_ERROR_OUT_OF_MEMORY ? status : RESHARD_SUCCESS));
  return status;
}
