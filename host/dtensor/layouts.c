/* The cache of layouts of placings, owned by the sharder, used last first. A pair of placings between which a tensor
 * goes to and fro costs no layouts, and no list of the ranks of a large mesh. */
#include "dtensor/group.h"

#include <stdlib.h>
#include <string.h>

/* All that makes a layout, but for the mesh. Unused bytes are 0: keys are compared and hashed as bytes. */
typedef struct layout_key {
  int ndim, mesh_ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  reshard_placement placements[RESHARD_MAX_DIMS];
  int order[RESHARD_MAX_DIMS];
} layout_key;
_Static_assert(sizeof(reshard_placement) == 16 && sizeof(layout_key) == 232, "keys are compared as bytes");

struct rs_cached_layout {
  uint64_t hash;
  layout_key key;
  reshard_mesh mesh;
  reshard_layout layout;
};

static layout_key make_key(const reshard_placing *placing, int ndim, const int64_t *shape) {
  layout_key key = {.ndim = ndim, .mesh_ndim = placing->mesh->ndim};
  for (int d = 0; d < ndim; d++)
    key.shape[d] = shape[d];
  for (int m = 0; m < key.mesh_ndim; m++) {
    const reshard_placement *p = &placing->placements[m];
    key.placements[m].kind = p->kind;
    if (p->kind != RESHARD_PLACEMENT_REPLICATE)
      key.placements[m].dim = p->dim;
    if (p->kind == RESHARD_PLACEMENT_STRIDED_SHARD)
      key.placements[m].split_factor = p->split_factor;
    key.order[m] = placing->order != NULL ? placing->order[m] : m;
  }
  return key;
}

void rs_cached_layout_free(struct rs_cached_layout *cached) {
  reshard_mesh_release(cached->mesh);
  reshard_layout_release(cached->layout);
  free(cached);
}

/* Puts a layout in the place of the one that was used longest ago. */
static reshard_status cache_layout(rs_dtensor_cache *c, int64_t most, const layout_key *key, uint64_t hash,
                                   reshard_mesh mesh, reshard_layout layout) {
  struct rs_cached_layout *cached;
  if (most == 0)
    return RESHARD_SUCCESS;
  RS_TRY(rs_vec_reserve(&c->layouts, rs_min(c->layouts.n + 1, most)));
  RS_TRY(rs_alloc(&cached, 1, sizeof *cached));
  *cached = (struct rs_cached_layout){hash, *key, reshard_mesh_retain(mesh), reshard_layout_retain(layout)};
  if (c->layouts.n == most)
    rs_cached_layout_free(c->layouts.at[--c->layouts.n]);
  memmove(c->layouts.at + 1, c->layouts.at, (size_t)c->layouts.n++ * sizeof *c->layouts.at);
  c->layouts.at[0] = cached;
  return RESHARD_SUCCESS;
}

static reshard_layout find_layout(rs_dtensor_cache *c, const layout_key *key, uint64_t hash, reshard_mesh mesh) {
  for (int64_t i = 0; i < c->layouts.n; i++) {
    struct rs_cached_layout *p = c->layouts.at[i];
    if (p->hash != hash || memcmp(&p->key, key, sizeof *key) != 0 ||
        (p->mesh != mesh && !reshard_mesh_equal(p->mesh, mesh)))
      continue;
    memmove(c->layouts.at + 1, c->layouts.at, (size_t)i * sizeof *c->layouts.at);
    c->layouts.at[0] = p;
    return p->layout;
  }
  return NULL;
}

static reshard_status make_layout(reshard_sharder s, const reshard_placing *placing, int ndim, const int64_t *shape,
                                  reshard_layout *layout) {
  reshard_mesh mesh = placing->mesh;
  if (s->comm == mesh->root->comm)
    return reshard_mesh_layout(mesh, ndim, shape, placing->placements, placing->order, layout);
  return reshard_layout_create_mesh(ndim, shape, mesh->size, mesh->ndim, mesh->shape,
                                    mesh->names[0] != NULL ? (const char *const *)mesh->names : NULL,
                                    placing->placements, placing->order, NULL, layout);
}

reshard_status rs_placing_layout(const char *call, reshard_sharder s, const reshard_placing *placing, int ndim,
                                 const int64_t *shape, reshard_layout *layout) {
  bool sound = ndim >= 0 && ndim <= RESHARD_MAX_DIMS && (ndim == 0 || shape != NULL); /* else there is no key */
  layout_key key = {0};
  uint64_t hash = 0;
  rs_dtensor_cache *cache;
  RS_TRY(rs_dtensor_cache_get(s, &cache));
  if (sound) {
    key = make_key(placing, ndim, shape);
    hash = rs_hash(0, &key, sizeof key);
    reshard_layout known = find_layout(cache, &key, hash, placing->mesh);
    if (known != NULL) {
      *layout = reshard_layout_retain(known);
      return RESHARD_SUCCESS;
    }
  }
  reshard_layout made;
  reshard_status status = make_layout(s, placing, ndim, shape, &made);
  if (status != RESHARD_SUCCESS)
    return rs_error(status, "%s: %s", call, reshard_last_error());
  status = cache_layout(cache, 2 * s->limit, &key, hash, placing->mesh, made); /* two for each plan */
  if (status == RESHARD_SUCCESS)
    *layout = made;
  else
    reshard_layout_release(made);
  return status;
}
