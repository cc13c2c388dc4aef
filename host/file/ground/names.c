/* A hash table with open addressing, half full at most. A slot holds the top half of a hash and a number + 1. Names
 * that differ nearly always differ there, so that a search seldom leaves the table. */
#include "file/ground/names.h"

#include <stdlib.h>
#include <string.h>

#define NUMBER (((uint64_t)1 << 32) - 1)

/* The slot of a name, or the free one where it would be. */
static int64_t seek_slot(const rs_names *names, uint64_t hash, const void *at, size_t size) {
  uint64_t mask = (uint64_t)names->slots - 1, slot = hash & mask;
  for (;; slot = (slot + 1) & mask) {
    uint64_t held = names->slot[slot];
    if (held == 0)
      return (int64_t)slot;
    const rs_name *name = &names->all.at[(held & NUMBER) - 1];
    if (((held ^ hash) & ~NUMBER) == 0 && name->size == size && memcmp(name->at, at, size) == 0)
      return (int64_t)slot;
  }
}

int64_t rs_names_find(const rs_names *names, const void *at, size_t size) {
  if (names->slots == 0)
    return -1;
  return (int64_t)(names->slot[seek_slot(names, rs_hash(0, at, size), at, size)] & NUMBER) - 1;
}

static reshard_status grow_table(rs_names *names, int64_t slots) {
  rs_names larger = {.slots = slots};
  RS_TRY(rs_alloc_zero(&larger.slot, larger.slots, sizeof *larger.slot));
  for (int64_t i = 0; i < names->slots; i++)
    if (names->slot[i] != 0) {
      const rs_name *name = &names->all.at[(names->slot[i] & NUMBER) - 1];
      uint64_t mask = (uint64_t)larger.slots - 1, at = rs_hash(0, name->at, name->size) & mask;
      while (larger.slot[at] != 0)
        at = (at + 1) & mask;
      larger.slot[at] = names->slot[i];
    }
  free(names->slot);
  names->slot = larger.slot;
  names->slots = larger.slots;
  return RESHARD_SUCCESS;
}

reshard_status rs_names_reserve(rs_names *names, int64_t n) {
  int64_t slots = names->slots;
  while (slots < 2 * n)
    slots = rs_max(16, 2 * slots);
  if (slots > names->slots)
    RS_TRY(grow_table(names, slots));
  return rs_vec_reserve(&names->all, n);
}

reshard_status rs_names_put(rs_names *names, const void *at, size_t size, int64_t *number) {
  RS_TRY(rs_names_reserve(names, names->all.n + 1));
  uint64_t hash = rs_hash(0, at, size), *slot = &names->slot[seek_slot(names, hash, at, size)];
  if (*slot == 0) {
    if (names->all.n >= (int64_t)NUMBER)
      return rs_error_memory(SIZE_MAX);
    names->all.at[names->all.n++] = (rs_name){at, size};
    *slot = (hash & ~NUMBER) | (uint64_t)names->all.n;
  }
  *number = (int64_t)(*slot & NUMBER) - 1;
  return RESHARD_SUCCESS;
}

void rs_names_free(rs_names *names) {
  free(names->all.at);
  free(names->slot);
  *names = (rs_names){0};
}

void rs_names_free_all(rs_names *names) {
  for (int64_t i = 0; i < names->all.n; i++)
    free((void *)names->all.at[i].at);
  rs_names_free(names);
}
