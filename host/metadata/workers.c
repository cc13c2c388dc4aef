#include "base/text.h"
#include "metadata/metadata.h"

#include "file/ground/names.h"

#include <stdlib.h>
#include <string.h>

typedef struct worker {
  int64_t rank;
  char name[];
} worker;

struct reshard_workers_s {
  RS_VEC(worker *) list;
  rs_names names, ranks; /* numbers are places in the list */
};

bool rs_worker_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

int64_t rs_workers_find(reshard_workers workers, const char *name, size_t n) {
  int64_t i = workers != NULL ? rs_names_find(&workers->names, name, n) : -1;
  return i >= 0 ? workers->list.at[i]->rank : -1;
}

reshard_status reshard_workers_create(reshard_workers *workers) {
  RS_TRY(RS_GIVEN("reshard_workers_create", workers));
  reshard_workers made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  *workers = made;
  return RESHARD_SUCCESS;
}

reshard_status reshard_workers_add(reshard_workers workers, const char *name, int64_t rank) {
  RS_TRY(RS_GIVEN("reshard_workers_add", workers, name));
  size_t n = 0;
  while (rs_worker_character(name[n]))
    n++;
  char text[RS_QUOTED], other[RS_QUOTED];
  rs_quote(text, sizeof text, name);
  if (n == 0 || name[n] != '\0' || strcmp(name, "rank") == 0)
    return rs_error(RESHARD_ERROR_INVALID,
                    "workers: \"%s\" is no name: one has letters, digits, '_' and '-', and is not \"rank\"", text);
  if (rank < 0)
    return rs_error(RESHARD_ERROR_INVALID, "workers: \"%s\" has rank %lld, 0 is the least", text, (long long)rank);
  int64_t same = rs_names_find(&workers->ranks, &rank, sizeof rank);
  if (same >= 0)
    return rs_error(RESHARD_ERROR_INVALID, "workers: \"%s\" and \"%s\" both have rank %lld",
                    rs_quote(other, sizeof other, workers->list.at[same]->name), text, (long long)rank);
  same = rs_names_find(&workers->names, name, n);
  if (same >= 0)
    return rs_error(RESHARD_ERROR_INVALID, "workers: \"%s\" has ranks %lld and %lld", text,
                    (long long)workers->list.at[same]->rank, (long long)rank);
  int64_t all = workers->list.n + 1;
  worker *made;
  RS_TRY(rs_vec_reserve(&workers->list, all));
  RS_TRY(rs_names_reserve(&workers->names, all));
  RS_TRY(rs_names_reserve(&workers->ranks, all));
  RS_TRY(rs_alloc(&made, 1, sizeof *made + n + 1));
  made->rank = rank;
  memcpy(made->name, name, n + 1);
  workers->list.at[workers->list.n++] = made;
  RS_TRY(rs_names_put(&workers->names, made->name, n, &same));
  return rs_names_put(&workers->ranks, &made->rank, sizeof made->rank, &same);
}

void reshard_workers_free(reshard_workers workers) {
  if (workers == NULL)
    return;
  for (int64_t i = 0; i < workers->list.n; i++)
    free(workers->list.at[i]);
  rs_names_free(&workers->names);
  rs_names_free(&workers->ranks);
  free(workers->list.at);
  free(workers);
}
