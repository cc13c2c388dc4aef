/* Layouts that are made once. */
#ifndef RS_FILE_LAYOUT_CACHE_H
#define RS_FILE_LAYOUT_CACHE_H

#include "file/ground/names.h"
#include "layout/layout.h"

/* Layouts that are made once: tensors that are cut alike share one. All zero: none. */
typedef struct rs_layout_cache {
  rs_names keys;
  RS_VEC(reshard_layout) made; /* by number */
  RS_VEC(int64_t) key;         /* scratch */
} rs_layout_cache;
/* Bytes of one that is made, with its key, at most. */
#define RS_LAYOUT_MEMORY ((int64_t)1072)
/* rank(0) in a world of one. */
reshard_status rs_layout_cache_single(rs_layout_cache *layouts, int ndim, const int64_t *shape, int64_t *number);
/* The layout that reshard_layout_parse makes of a text; many: that rs_layout_parse_many does. */
reshard_status rs_layout_cache_text(rs_layout_cache *layouts, const char *text, bool many, int ndim,
                                    const int64_t *shape, int64_t world, int64_t *number);
/* Boxes, replicated where some are equal. */
reshard_status rs_layout_cache_boxes(rs_layout_cache *layouts, int ndim, const int64_t *shape, int64_t world, int64_t n,
                                     const int64_t *ranks, const reshard_box *boxes, int64_t *number);
void rs_layout_cache_free(rs_layout_cache *layouts);

#endif
