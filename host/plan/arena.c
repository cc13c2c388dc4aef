/* Blocks are doubled up to a few MiB, in huge pages where the system has them: the lists of a world's plans are
 * hundreds of MiB, and touching small pages for the first time would take longer than to fill them. */
#define _DEFAULT_SOURCE /* MADV_HUGEPAGE */
#include "plan/arena.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LEAST = 16 << 10, MOST = 16 << 20, HUGE = 2 << 20, ALIGNMENT = 16 };

static reshard_status add_block(rs_arena *arena, size_t need) {
  RS_TRY(rs_vec_reserve(&arena->blocks, arena->blocks.n + 1));
  size_t size = arena->blocks.n == 0 ? LEAST : 2 * arena->blocks.at[arena->blocks.n - 1].size;
  size = size < MOST ? size : MOST;
  size = need > size ? (need + HUGE - 1) / HUGE * HUGE : size;
  void *at = NULL;
  if (posix_memalign(&at, size >= HUGE ? HUGE : ALIGNMENT, size) != 0)
    return rs_error_memory(size);
#if defined(MADV_HUGEPAGE)
  if (size >= HUGE)
    (void)madvise(at, size / HUGE * HUGE, MADV_HUGEPAGE);
#endif
  arena->blocks.at[arena->blocks.n++] = (rs_arena_block){at, size, 0};
  return RESHARD_SUCCESS;
}

reshard_status rs_arena_alloc(rs_arena *arena, void *out, int64_t n, size_t element) {
  int64_t bytes;
  void *none = NULL;
  memcpy(out, &none, sizeof none);
  if (!rs_mul(n, (int64_t)element, &bytes) || bytes > INT64_MAX - HUGE)
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
