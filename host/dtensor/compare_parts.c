/* Comparison of the ranks' parts of a tensor: one all-gather of records, from which all ranks draw the same conclusion.
 * A global shape that is not known is inferred. Along each dim, parts lie end to end: those of ranks that differ only
 * in the mesh dims that cut it, from the first corner of the mesh. Then every part is compared with its cut of that
 * shape. */
#include "dtensor/group.h"

#include <string.h>

typedef struct placement_record {
  int kind, dim;
  uint64_t cut; /* split factor, or a hash of its parts; 0: neither */
} placement_record;

typedef struct part_record {
  reshard_dtype dtype;
  int ndim;
  bool given, infer;
  uint64_t mesh;                   /* hash */
  int64_t shape[RESHARD_MAX_DIMS]; /* of the part; of the whole, where it is given */
  int mesh_ndim;
  int order[RESHARD_MAX_DIMS];
  placement_record placements[RESHARD_MAX_DIMS];
  char mesh_text[96], placements_text[RS_PLACEMENTS_TEXT];
} part_record;
_Static_assert(sizeof(part_record) <= RS_COMM_RECORD, "a part_record is one record of the all-gather");

/* The sharder is that of a sub-mesh's group: its ranks are the indices of the mesh. */
static bool is_group_sharder(reshard_sharder s, reshard_mesh mesh) { return s->comm != mesh->root->comm; }

static int64_t mesh_rank(reshard_sharder s, reshard_mesh mesh, int64_t i) {
  return is_group_sharder(s, mesh) ? i : rs_mesh_rank_at(mesh, rs_mesh_position(mesh, i));
}

/* Rank of the mesh's communicator, of a rank of the sharder. */
static long long comm_rank(reshard_sharder s, reshard_mesh mesh, int64_t rank) {
  return is_group_sharder(s, mesh) ? rs_mesh_rank_at(mesh, rs_mesh_position(mesh, rank)) : rank;
}

static placement_record make_placement_record(const reshard_placement *p) {
  placement_record made = {.kind = (int)p->kind, .dim = p->dim};
  if (p->kind == RESHARD_PLACEMENT_STRIDED_SHARD)
    made.cut = (uint64_t)p->split_factor;
  else if (p->kind == RESHARD_PLACEMENT_SHARD && p->nparts > 0)
    made.cut = rs_hash(1 + (p->ratio != 0), p->parts, (size_t)p->nparts * sizeof *p->parts);
  return made;
}

static part_record make_part_record(const reshard_placing *placing, reshard_tensor local, int ndim,
                                    const int64_t *shape, bool infer) {
  char text[RS_MESH_TEXT];
  reshard_mesh mesh = placing->mesh;
  part_record c = {.dtype = local != NULL ? local->info.dtype : RESHARD_DTYPE_NONE,
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
    c.placements[m] = make_placement_record(&placing->placements[m]);
  }
  rs_placements_text(c.placements_text, mesh, placing->placements, c.order);
  memcpy(c.mesh_text, rs_mesh_text(text, mesh), sizeof c.mesh_text);
  if (c.mesh_text[sizeof c.mesh_text - 1] != '\0')
    memcpy(c.mesh_text + sizeof c.mesh_text - 4, "...", 4);
  return c;
}

/* Placements of a tensor of ndim dims are the same. */
static bool same_placement(const placement_record *a, const placement_record *b, int ndim) {
  if (a->kind != b->kind)
    return false;
  if (a->kind == RESHARD_PLACEMENT_REPLICATE)
    return true;
  int da = a->dim < 0 ? a->dim + ndim : a->dim, db = b->dim < 0 ? b->dim + ndim : b->dim;
  return da == db && a->cut == b->cut;
}

static bool same_cuts(const part_record *a, const part_record *b, int ndim) {
  bool same = memcmp(a->order, b->order, sizeof a->order) == 0;
  for (int m = 0; m < a->mesh_ndim && same; m++)
    same = same_placement(&a->placements[m], &b->placements[m], ndim);
  return same;
}

/* Compares rank b with rank a, which has a tensor. */
static reshard_status compare_records(reshard_sharder s, reshard_mesh mesh, const part_record *all, int64_t i,
                                      int64_t j) {
  char x[RS_SHAPE_TEXT], y[RS_SHAPE_TEXT];
  const part_record *ca = &all[i], *cb = &all[j];
  long long a = comm_rank(s, mesh, i), b = comm_rank(s, mesh, j);
  if (ca->infer != cb->infer)
    return rs_error_differ("global shape", a, ca->infer ? "NULL" : "given", b, cb->infer ? "NULL" : "given");
  if (ca->mesh != cb->mesh)
    return rs_error_differ("mesh", a, ca->mesh_text, b, cb->mesh_text);
  if (cb->dtype != RESHARD_DTYPE_NONE && ca->dtype != cb->dtype)
    return rs_error_differ("dtype", a, reshard_dtype_string(ca->dtype), b, reshard_dtype_string(cb->dtype));
  bool shaped = !cb->infer || cb->given; /* rank b has a shape to compare, or a number of dims */
  bool same = !shaped || (cb->infer ? ca->ndim == cb->ndim : rs_shape_equal(ca->ndim, ca->shape, cb->ndim, cb->shape));
  if (!same)
    return rs_error_differ(cb->infer ? "local shape" : "global shape", a,
                           rs_list_text(x, sizeof x, ca->ndim, ca->shape), b,
                           rs_list_text(y, sizeof y, cb->ndim, cb->shape));
  if (!same_cuts(ca, cb, ca->ndim))
    return rs_error_differ("placements", a, ca->placements_text, b, cb->placements_text);
  return RESHARD_SUCCESS;
}

/* --- Inference --------------------------------------------------------------------------------------------------- */

/* A row-major index has coordinate 0 in every mesh dim that does not cut tensor dim d. */
static bool on_edge(const reshard_mesh mesh, const part_record *c, int64_t index, int d, int ndim) {
  for (int m = mesh->ndim - 1; m >= 0; m--) {
    const placement_record *p = &c->placements[m];
    bool cuts = p->kind != RESHARD_PLACEMENT_REPLICATE && (p->dim < 0 ? p->dim + ndim : p->dim) == d;
    if (!cuts && index % mesh->shape[m] != 0)
      return false;
    index /= mesh->shape[m];
  }
  return true;
}

static reshard_status add_parts(reshard_sharder s, reshard_mesh mesh, const part_record *all, int ndim,
                                int64_t *shape) {
  const part_record *own = NULL;
  memset(shape, 0, RESHARD_MAX_DIMS * sizeof *shape);
  for (int64_t i = 0; i < mesh->size; i++) {
    const part_record *c = &all[mesh_rank(s, mesh, i)];
    own = own == NULL ? c : own;
    for (int d = 0; d < ndim; d++)
      if (c->given && on_edge(mesh, own, i, d, ndim) && !rs_add(shape[d], c->shape[d], &shape[d]))
        return rs_error(RESHARD_ERROR_INVALID, "the extents of the local tensors in dim %d overflow 63 bits", d);
  }
  return RESHARD_SUCCESS;
}

static reshard_status check_parts(reshard_sharder s, reshard_layout layout, reshard_mesh mesh, const part_record *all) {
  int ndim = reshard_layout_ndim(layout);
  for (int64_t r = 0; r < s->comm->size; r++) {
    char has[RS_SHAPE_TEXT], wants[RS_SHAPE_TEXT], whole[RS_SHAPE_TEXT];
    reshard_array_info part;
    if (!is_group_sharder(s, mesh) && !reshard_mesh_contains(mesh, r))
      continue;
    RS_TRY(reshard_layout_array(layout, r, 0, &part));
    if (all[r].given ? memcmp(all[r].shape, part.shape, sizeof part.shape) == 0 : part.elements == 0)
      continue;
    return rs_error(RESHARD_ERROR_INVALID,
                    "the local tensor of rank %lld is %s%s and should be of %s: all parts together are a tensor of "
                    "shape %s",
                    comm_rank(s, mesh, r), all[r].given ? "of shape " : "NULL",
                    all[r].given ? rs_shape_text(has, ndim, all[r].shape) : "", rs_shape_text(wants, ndim, part.shape),
                    rs_shape_text(whole, ndim, reshard_layout_shape(layout)));
  }
  return RESHARD_SUCCESS;
}

static reshard_status infer_global_shape(reshard_sharder s, const reshard_placing *placing, const part_record *all,
                                         int ndim, int64_t *shape) {
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
  part_record own = make_part_record(placing, local, *ndim, shape, infer_shape);
  RS_TRY(rs_comm_allgather(s->comm, &own, sizeof own, &records));
  const part_record *all = records;
  int64_t first = 0; /* the lowest rank that has a part */
  while (first < s->comm->size && !all[first].given)
    first++;
  if (first == s->comm->size)
    return rs_error(RESHARD_ERROR_INVALID, "no rank of the mesh %s has a local tensor", own.mesh_text);
  for (int64_t r = 0; r < s->comm->size; r++)
    RS_TRY(compare_records(s, placing->mesh, all, first, r));
  *ndim = all[first].ndim;
  *dtype = all[first].dtype;
  if (!infer_shape)
    return RESHARD_SUCCESS;
  return rs_agree_alike(s->comm, infer_global_shape(s, placing, all, *ndim, shape));
}
