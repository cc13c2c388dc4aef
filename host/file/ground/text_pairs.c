#include "file/ground/text_pairs.h"

#include <stdlib.h>
#include <string.h>

bool rs_text_pairs_own(const char *key) {
  static const char *const own[] = {"reshard", "reshard_digests", "DCP_VERSION", "DCP_SHARDING_INFO"};
  for (size_t i = 0; i < sizeof own / sizeof *own; i++)
    if (strcmp(key, own[i]) == 0)
      return true;
  return false;
}

reshard_status rs_text_pairs_put(rs_text_pairs *pairs, const char *key, const char *value, bool *differs) {
  size_t length = strlen(key), behind = strlen(value) + 1;
  int64_t number = rs_names_find(&pairs->names, key, length);
  if (number >= 0) {
    rs_text_pair *pair = &pairs->all.at[number];
    *differs = pair->value != NULL && strcmp(pair->value, value) != 0;
    pair->value = *differs ? NULL : pair->value;
    return RESHARD_SUCCESS;
  }
  rs_text_pair made = {NULL, NULL};
  RS_TRY(rs_vec_reserve(&pairs->all, pairs->all.n + 1));
  RS_TRY(rs_alloc(&made.key, (int64_t)(length + 1 + behind), 1));
  memcpy(made.key, key, length + 1);
  memcpy(made.key + length + 1, value, behind);
  made.value = made.key + length + 1;
  RS_TRY_OR(rs_names_put(&pairs->names, made.key, length, &number), free(made.key));
  pairs->all.at[pairs->all.n++] = made;
  *differs = false;
  return RESHARD_SUCCESS;
}

const char *rs_text_pairs_find(const rs_text_pairs *pairs, const char *key) {
  int64_t number = rs_names_find(&pairs->names, key, strlen(key));
  return number < 0 ? NULL : pairs->all.at[number].value;
}

reshard_status rs_text_pairs_settle(rs_text_pairs *pairs) {
  int64_t kept = 0, number;
  rs_names_free(&pairs->names);
  for (int64_t i = 0; i < pairs->all.n; i++) {
    if (pairs->all.at[i].value != NULL)
      pairs->all.at[kept++] = pairs->all.at[i];
    else
      free(pairs->all.at[i].key);
  }
  pairs->all.n = kept;
  for (int64_t i = 0; i < kept; i++)
    RS_TRY(rs_names_put(&pairs->names, pairs->all.at[i].key, strlen(pairs->all.at[i].key), &number));
  return RESHARD_SUCCESS;
}

void rs_text_pairs_free(rs_text_pairs *pairs) {
  for (int64_t i = 0; i < pairs->all.n; i++)
    free(pairs->all.at[i].key);
  free(pairs->all.at);
  rs_names_free(&pairs->names);
  *pairs = (rs_text_pairs){0};
}
