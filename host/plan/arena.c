/* Blocks are doubled up to a few MiB. Large ones are in huge pages (rs_alloc): the lists of a world's plans are
 * hundreds of MiB, and touching small pages for the first time would take longer than to fill them. Still larger ones
 * malloc would map, and the system clear, anew for each world. */
#include "plan/arena.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST = 16 << 10, MOST = 4 << 20, STEP = 2 << 20, ALIGNMENT = 16 };

static reshard_status add_block(rs_arena *arena, size_t need) {
  RS_TRY(rs_vec_reserve(&arena->blocks, arena->blocks.n + 1));
  size_t size = arena->blocks.n == 0 ? LEAST : 2 * arena->blocks.at[arena->blocks.n - 1].size;
  size = size < MOST ? size : MOST;
  size = need > size ? (need + STEP - 1) / STEP * STEP : size;
  char *at;
  RS_TRY(rs_alloc(&at, (int64_t)size, 1));
  arena->blocks.at[arena->blocks.n++] = (rs_arena_block){at, size, 0};
  return RESHARD_SUCCESS;
}

reshard_status rs_arena_alloc(rs_arena *arena, void *out, int64_t n, size_t element) {
  int64_t bytes;
  void *none = NULL;
  memcpy(out, &none, sizeof none);
  if (!rs_mul(n, (int64_t)element, &bytes) || bytes > INT64_MAX - STEP)
    return rs_error_memory(SIZE_MAX);
  size_t need = ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  if (need == 0)
    return RESHARD_SUCCESS;
  rs_arena_block *last = arena->blocks.n > 0 ? &arena->blocks.at[arena->blocks.n - 1] : NULL;
  if (last == NULL || last->size - last->used < need) {
    RS_TRY(add_block(arena, need));
    last = &arena->blocks.at[arena->blocks.n - 1];
  }
  char *at = last->at + last->used;
  memcpy(out, &at, sizeof at);
  last->used += need;
  return RESHARD_SUCCESS;
}

void rs_arena_free(rs_arena *arena) {
  for (int64_t i = 0; i < arena->blocks.n; i++)
    free(arena->blocks.at[i].at);
  free(arena->blocks.at);
  *arena = (rs_arena){0};
}
