/* The cache of layouts of placings, owned by the sharder, used last first. A pair of placings between which a tensor
 * goes to and fro costs no layouts, and no list of the ranks of a large mesh. */
#include "dtensor/group.h"

#include <stdlib.h>
#include <string.h>

/* All that makes a layout, but for the mesh and the parts of placements. Unused bytes are 0: keys are compared and
 * hashed as bytes. */
typedef struct placement_key {
  int kind, dim;
  int64_t split_factor;
  int nparts, ratio;
} placement_key;

typedef struct layout_key {
  int ndim, mesh_ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  placement_key placements[RESHARD_MAX_DIMS];
  int order[RESHARD_MAX_DIMS];
} layout_key;
_Static_assert(sizeof(placement_key) == 24 && sizeof(layout_key) == 296, "keys are compared as bytes");

struct rs_cached_layout {
  uint64_t hash;
  layout_key key;
  reshard_part *parts; /* of all placements, one after the other */
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
    if (p->kind == RESHARD_PLACEMENT_SHARD && p->nparts > 0) {
      key.placements[m].nparts = p->nparts;
      key.placements[m].ratio = p->ratio != 0;
    }
    key.order[m] = placing->order != NULL ? placing->order[m] : m;
  }
  return key;
}

/* Copies the parts of a placing, or compares them with those of its key. Returns how many there are; *same: they are
 * the same. */
static int64_t walk_parts(const reshard_placing *placing, const layout_key *key, reshard_part *to,
                          const reshard_part *known, bool *same) {
  int64_t n = 0;
  for (int m = 0; m < key->mesh_ndim; m++)
    for (int k = 0; k < key->placements[m].nparts; k++, n++) {
      const reshard_part *part = &placing->placements[m].parts[k];
      if (to != NULL)
        to[n] = *part;
      if (known != NULL)
        *same = *same && part->size == known[n].size && part->pieces == known[n].pieces;
    }
  return n;
}

void rs_cached_layout_free(struct rs_cached_layout *cached) {
  reshard_mesh_release(cached->mesh);
  reshard_layout_release(cached->layout);
  free(cached->parts);
  free(cached);
}

/* Puts a layout in the place of the one that was used longest ago. */
static reshard_status cache_layout(rs_dtensor_cache *c, int64_t most, const layout_key *key, uint64_t hash,
                                   const reshard_placing *placing, reshard_layout layout) {
  struct rs_cached_layout *cached;
  reshard_part *parts;
  if (most == 0)
    return RESHARD_SUCCESS;
  RS_TRY(rs_vec_reserve(&c->layouts, rs_min(c->layouts.n + 1, most)));
  RS_TRY(rs_alloc(&parts, walk_parts(placing, key, NULL, NULL, NULL), sizeof *parts));
  walk_parts(placing, key, parts, NULL, NULL);
  if (rs_alloc(&cached, 1, sizeof *cached) != RESHARD_SUCCESS) {
    free(parts);
    return RESHARD_ERROR_OUT_OF_MEMORY;
  }
  *cached =
      (struct rs_cached_layout){hash, *key, parts, reshard_mesh_retain(placing->mesh), reshard_layout_retain(layout)};
  if (c->layouts.n == most)
    rs_cached_layout_free(c->layouts.at[--c->layouts.n]);
  memmove(c->layouts.at + 1, c->layouts.at, (size_t)c->layouts.n++ * sizeof *c->layouts.at);
  c->layouts.at[0] = cached;
  return RESHARD_SUCCESS;
}

static reshard_layout find_layout(rs_dtensor_cache *c, const layout_key *key, uint64_t hash,
                                  const reshard_placing *placing) {
  for (int64_t i = 0; i < c->layouts.n; i++) {
    struct rs_cached_layout *p = c->layouts.at[i];
    bool same = p->hash == hash && memcmp(&p->key, key, sizeof *key) == 0;
    if (same)
      walk_parts(placing, key, NULL, p->parts, &same);
    if (!same || (p->mesh != placing->mesh && !reshard_mesh_equal(p->mesh, placing->mesh)))
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

reshard_status rs_dtensor_check_parts(const char *call, const struct reshard_layout_s *l) {
  char text[160] = "";
  for (int m = 0; m < l->mesh_ndim; m++)
    for (int k = 0; k < l->placements[m].nparts; k++)
      if (l->placements[m].parts[k].pieces > 0) {
        (void)reshard_layout_print((reshard_layout)l, text, sizeof text, NULL); /* what fits is enough */
        return rs_error(RESHARD_ERROR_UNSUPPORTED,
                        "%s: part %d of mesh dim %d is in %lld pieces (/) over %lld ranks, which a DTensor cannot "
                        "have: %s",
                        call, k, m, (long long)l->placements[m].parts[k].pieces, (long long)l->mesh_shape[m], text);
      }
  return RESHARD_SUCCESS;
}

reshard_status rs_placing_layout(const char *call, reshard_sharder s, const reshard_placing *placing, int ndim,
                                 const int64_t *shape, reshard_layout *layout) {
  bool sound = ndim >= 0 && ndim <= RESHARD_MAX_DIMS && (ndim == 0 || shape != NULL); /* else there is no key */
  for (int m = 0; m < placing->mesh->ndim; m++)
    sound = sound && placing->placements[m].nparts >= 0 &&
            (placing->placements[m].nparts == 0 || placing->placements[m].parts != NULL);
  layout_key key = {0};
  uint64_t hash = 0;
  rs_dtensor_cache *cache;
  RS_TRY(rs_dtensor_cache_get(s, &cache));
  if (sound) {
    key = make_key(placing, ndim, shape);
    hash = rs_hash(0, &key, sizeof key);
    reshard_layout known = find_layout(cache, &key, hash, placing);
    if (known != NULL) {
      *layout = reshard_layout_retain(known);
      return RESHARD_SUCCESS;
    }
  }
  reshard_layout made;
  reshard_status status = make_layout(s, placing, ndim, shape, &made);
  if (status != RESHARD_SUCCESS)
    return rs_error(status, "%s: %s", call, reshard_last_error());
  status = rs_dtensor_check_parts(call, made);
  RS_THEN(status, cache_layout(cache, 2 * s->limit, &key, hash, placing, made)); /* two for each plan */
  RS_TRY_OR(status, reshard_layout_release(made));
  *layout = made;
  return RESHARD_SUCCESS;
}
