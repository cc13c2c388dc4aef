/* Memory of many small lists with one life. */
#ifndef RS_PLAN_ARENA_H
#define RS_PLAN_ARENA_H

#include "base/base.h"

typedef struct rs_arena_block {
  char *at;
  size_t size, used;
} rs_arena_block;

typedef struct rs_arena {
  RS_VEC(rs_arena_block) blocks; /* the last one is filled */
} rs_arena;

/* n elements, not cleared, that live as long as the arena. *out is NULL for n == 0 or on error. */
reshard_status rs_arena_alloc(rs_arena *arena, void *out, int64_t n, size_t element);
void rs_arena_free(rs_arena *arena);

#endif
