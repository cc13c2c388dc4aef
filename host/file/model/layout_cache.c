/* A model has thousands of tensors and a dozen ways to cut them. A layout is found by everything it is made from, as
 * one string of bytes. */
#include "file/model/layout_cache.h"

#include "layout/text/spec.h"

#include <stdlib.h>
#include <string.h>

enum { SINGLE, TEXT, MANY, BOXES };

void rs_layout_cache_free(rs_layout_cache *layouts) {
  for (int64_t i = 0; i < layouts->made.n; i++)
    reshard_layout_release(layouts->made.at[i]);
  rs_names_free_all(&layouts->keys);
  free(layouts->made.at);
  free(layouts->key.at);
  *layouts = (rs_layout_cache){0};
}

/* Begins a key that has room for `more` numbers behind its head. */
static reshard_status begin_key(rs_layout_cache *layouts, int64_t kind, int ndim, const int64_t *shape, int64_t world,
                                int64_t more) {
  RS_TRY(rs_vec_reserve(&layouts->key, 3 + ndim + more));
  int64_t *key = layouts->key.at;
  key[0] = kind;
  key[1] = ndim;
  key[2] = world;
  for (int d = 0; d < ndim; d++)
    key[3 + d] = shape[d];
  layouts->key.n = 3 + ndim;
  return RESHARD_SUCCESS;
}

static bool find_key(const rs_layout_cache *layouts, int64_t *number) {
  int64_t found = rs_names_find(&layouts->keys, layouts->key.at, (size_t)layouts->key.n * sizeof(int64_t));
  if (found >= 0)
    *number = found;
  return found >= 0;
}

/* Takes a layout over, under the key. */
static reshard_status cache_layout(rs_layout_cache *layouts, reshard_layout layout, int64_t *number) {
  void *key = NULL;
  reshard_status status = rs_vec_reserve(&layouts->made, layouts->made.n + 1);
  RS_THEN(status, rs_alloc_copy(&key, layouts->key.at, layouts->key.n, sizeof(int64_t)));
  RS_THEN(status, rs_names_put(&layouts->keys, key, (size_t)layouts->key.n * sizeof(int64_t), number));
  if (status != RESHARD_SUCCESS) {
    free(key);
    reshard_layout_release(layout);
    return status;
  }
  layouts->made.at[layouts->made.n++] = layout;
  return RESHARD_SUCCESS;
}

reshard_status rs_layout_cache_single(rs_layout_cache *layouts, int ndim, const int64_t *shape, int64_t *number) {
  reshard_layout made;
  RS_TRY(begin_key(layouts, SINGLE, ndim, shape, 1, 0));
  if (find_key(layouts, number))
    return RESHARD_SUCCESS;
  RS_TRY(reshard_layout_create_single(ndim, shape, 1, 0, &made));
  return cache_layout(layouts, made, number);
}

reshard_status rs_layout_cache_text(rs_layout_cache *layouts, const char *text, bool many, int ndim,
                                    const int64_t *shape, int64_t world, int64_t *number) {
  reshard_layout made;
  size_t size = strlen(text);
  int64_t words = rs_ceil_div((int64_t)size, sizeof(int64_t));
  RS_TRY(begin_key(layouts, many ? MANY : TEXT, ndim, shape, world, words));
  int64_t *tail = layouts->key.at + layouts->key.n;
  if (words > 0)
    tail[words - 1] = 0;
  memcpy(tail, text, size);
  layouts->key.n += words;
  if (find_key(layouts, number))
    return RESHARD_SUCCESS;
  RS_TRY((many ? rs_layout_parse_many : reshard_layout_parse)(text, ndim, shape, world, &made));
  return cache_layout(layouts, made, number);
}

reshard_status rs_layout_cache_boxes(rs_layout_cache *layouts, int ndim, const int64_t *shape, int64_t world, int64_t n,
                                     const int64_t *ranks, const reshard_box *boxes, int64_t *number) {
  reshard_layout made;
  RS_TRY(begin_key(layouts, BOXES, ndim, shape, world, n * (1 + 2 * ndim)));
  for (int64_t i = 0; i < n; i++) {
    layouts->key.at[layouts->key.n++] = ranks[i];
    for (int d = 0; d < ndim; d++) {
      layouts->key.at[layouts->key.n++] = boxes[i].offset[d];
      layouts->key.at[layouts->key.n++] = boxes[i].extent[d];
    }
  }
  if (find_key(layouts, number))
    return RESHARD_SUCCESS;
  RS_TRY(reshard_layout_create_boxes(ndim, shape, world, n, ranks, boxes, 0, &made));
  if (made->boxes->ncells < n) { /* equal ones: this is what they are declared by */
    reshard_layout_release(made);
    RS_TRY(reshard_layout_create_boxes(ndim, shape, world, n, ranks, boxes, 1, &made));
  }
  return cache_layout(layouts, made, number);
}
