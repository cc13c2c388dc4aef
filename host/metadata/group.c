/* Ranks of a communicator and of the world. */
#include "metadata/group.h"

#include <stdlib.h>

/* "0..3", or the ranks as far as a line goes. */
static void list_ranks(rs_text *text, const reshard_group *group) {
  if (group->ranks == NULL) {
    rs_text_add(text, "0..%lld", (long long)group->n - 1);
    return;
  }
  rs_text_numbers(text, rs_min(group->n, 8), group->ranks, ", ");
  if (group->n > 8)
    rs_text_add(text, ", ... (%lld in all)", (long long)group->n);
}

static reshard_status error_not_found(const reshard_group *group, int64_t global_rank) {
  char list[256] = "";
  rs_text text = {.at = list, .size = sizeof list};
  if (group->n < 1)
    return rs_error(RESHARD_ERROR_INVALID, "rank %lld is not in the group, which has no ranks", (long long)global_rank);
  list_ranks(&text, group);
  return rs_error(RESHARD_ERROR_INVALID, "rank %lld is not in the group of ranks %s", (long long)global_rank, list);
}

reshard_status reshard_group_find(const reshard_group *group, int64_t global_rank, int64_t *rank) {
  RS_TRY(RS_GIVEN("reshard_group_find", group, rank));
  int64_t found = group->ranks == NULL && global_rank >= 0 && global_rank < group->n ? global_rank : -1;
  for (int64_t i = 0; group->ranks != NULL && i < group->n && found < 0; i++)
    found = group->ranks[i] == global_rank ? i : -1;
  if (found < 0)
    return error_not_found(group, global_rank);
  *rank = found;
  return RESHARD_SUCCESS;
}

reshard_status rs_group_map_create(const reshard_group *group, rs_group_map *out) {
  if (group->n < 1)
    return rs_error(RESHARD_ERROR_INVALID, "a group of %lld ranks", (long long)group->n);
  if (group->ranks == NULL) {
    *out = (rs_group_map){group, NULL};
    return RESHARD_SUCCESS;
  }
  reshard_status status;
  rs_pair *pairs = NULL, *spare = NULL, *sorted;
  uint64_t bits = 0;
  RS_TRY_GOTO(status, rs_alloc(&pairs, group->n, sizeof *pairs), fail);
  RS_TRY_GOTO(status, rs_alloc(&spare, group->n, sizeof *spare), fail);
  for (int64_t i = 0; i < group->n; i++) {
    pairs[i] = (rs_pair){(uint64_t)group->ranks[i], (uint64_t)i};
    bits |= pairs[i].key;
  }
  sorted = rs_sort_pairs(pairs, spare, group->n, false, 0, rs_bits(bits));
  for (int64_t i = 0; i < group->n; i++) /* negative ones are the largest keys */
    if ((int64_t)sorted[i].key < 0 || (i > 0 && sorted[i].key == sorted[i - 1].key)) {
      status = rs_error(RESHARD_ERROR_INVALID, "group: rank %lld is %s", (long long)sorted[i].key,
                        (int64_t)sorted[i].key < 0 ? "negative" : "named twice");
      goto fail;
    }
  free(sorted == pairs ? spare : pairs);
  *out = (rs_group_map){group, sorted};
  return RESHARD_SUCCESS;
fail:
  free(pairs);
  free(spare);
  return status;
}

reshard_status rs_group_check(const reshard_group *group) {
  rs_group_map map = {0};
  RS_TRY(rs_group_map_create(group, &map));
  rs_group_map_free(&map);
  return RESHARD_SUCCESS;
}

void rs_group_map_free(rs_group_map *map) {
  free(map->sorted);
  map->sorted = NULL;
}

reshard_status rs_group_map_find(const rs_group_map *map, int64_t global_rank, int64_t *rank) {
  if (map->sorted == NULL)
    return reshard_group_find(map->group, global_rank, rank);
  int64_t low = 0, high = map->group->n;
  RS_LOWER_BOUND(low, high, (int64_t)map->sorted[i].key < global_rank);
  if (low == map->group->n || (int64_t)map->sorted[low].key != global_rank)
    return error_not_found(map->group, global_rank);
  *rank = (int64_t)map->sorted[low].value;
  return RESHARD_SUCCESS;
}

reshard_status rs_sort_by_rank(int64_t n, const int64_t *ranks, size_t step, int64_t *order) {
  rs_pair *pairs = NULL, *spare = NULL, *sorted;
  uint64_t bits = 0;
  reshard_status status;
  RS_TRY_GOTO(status, rs_alloc(&pairs, n, sizeof *pairs), done);
  RS_TRY_GOTO(status, rs_alloc(&spare, n, sizeof *spare), done);
  for (int64_t i = 0; i < n; i++) {
    pairs[i] = (rs_pair){(uint64_t) * (const int64_t *)((const char *)ranks + (size_t)i * step) + 1, (uint64_t)i};
    bits |= pairs[i].key;
  }
  sorted = rs_sort_pairs(pairs, spare, n, false, 0, rs_bits(bits));
  for (int64_t i = 0; i < n; i++)
    order[i] = (int64_t)sorted[i].value;
done:
  free(pairs);
  free(spare);
  return status;
}
