/* Every rank sends its request to all, in one all-gather: colors and keys may be of any size, all hear of a rank
 * that failed, and every rank knows the table of global ranks. A rank that has no memory for its own table says so in a
 * second one. */
#include "comm/split_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct split_record {
  int64_t status, color, key;
  uint64_t by;                                     /* hash of the words, 0 for none */
  char text[RS_COMM_RECORD - 4 * sizeof(int64_t)]; /* of the error, else the words */
} split_record;
_Static_assert(sizeof(split_record) == RS_COMM_RECORD, "a record fits the communicator's buffer");

static int compare_requests(const void *a, const void *b) {
  const rs_split_request *x = a, *y = b;
  if (x->color != y->color)
    return x->color < y->color ? -1 : 1;
  if (x->key != y->key)
    return x->key < y->key ? -1 : 1;
  return x->rank < y->rank ? -1 : 1;
}

void rs_split_requests_sort(int64_t n, rs_split_request *requests) {
  qsort(requests, (size_t)n, sizeof *requests, compare_requests);
}

/* Checks the records of all ranks; the result is the same on every rank. */
static reshard_status check_records(int64_t n, const split_record *all) {
  for (int64_t r = 0; r < n; r++)
    if (all[r].status != RESHARD_SUCCESS)
      return rs_error((reshard_status)all[r].status, "rank %lld: %s", (long long)r, all[r].text);
  for (int64_t r = 1; r < n; r++)
    if (all[r].by != all[0].by)
      return rs_error(RESHARD_ERROR_MISMATCH, "rank 0 splits by %s, rank %lld by %s", all[0].text, (long long)r,
                      all[r].text);
  return RESHARD_SUCCESS;
}

static reshard_status exchange_records(reshard_comm comm, const rs_split *mine, const split_record **all) {
  split_record r = {.status = mine->status, .color = mine->color, .key = mine->key};
  const char *words = mine->status != RESHARD_SUCCESS ? reshard_last_error() : mine->by != NULL ? mine->by : "color";
  snprintf(r.text, sizeof r.text, "%s", words);
  if (mine->by != NULL)
    r.by = rs_hash(1, mine->by, strlen(mine->by));
  const void *gathered;
  RS_TRY(rs_comm_allgather(comm, &r, sizeof r, &gathered));
  *all = gathered;
  return check_records(comm->size, *all);
}

static reshard_status find_group(reshard_comm comm, const split_record *all, rs_split_group *group) {
  rs_split_request *requests = NULL;
  RS_TRY(rs_alloc(&requests, comm->size, sizeof *requests));
  for (int64_t r = 0; r < comm->size; r++)
    requests[r] = (rs_split_request){all[r].color, all[r].key, r};
  rs_split_requests_sort(comm->size, requests);
  reshard_status status = RESHARD_SUCCESS;
  int color = 0;
  for (int64_t i = 0, end; i < comm->size; i = end) {
    int64_t here = -1;
    for (end = i; end < comm->size && requests[end].color == requests[i].color; end++)
      if (requests[end].rank == comm->rank)
        here = end - i;
    if (requests[i].color < 0)
      continue;
    if (here >= 0) {
      *group = (rs_split_group){color, (int)here, end - i, NULL};
      status = rs_alloc(&group->global_ranks, end - i, sizeof *group->global_ranks);
      for (int64_t k = i; k < end && status == RESHARD_SUCCESS; k++)
        group->global_ranks[k - i] =
            comm->global_ranks != NULL ? comm->global_ranks[requests[k].rank] : requests[k].rank;
      break;
    }
    color++;
  }
  free(requests);
  return status;
}

reshard_status rs_split_group_find(reshard_comm comm, const rs_split *mine, rs_split_group *group) {
  const split_record *all;
  rs_split_group found = {.color = -1};
  RS_TRY(exchange_records(comm, mine, &all));
  reshard_status status = rs_split_agree(comm, find_group(comm, all, &found));
  if (status != RESHARD_SUCCESS)
    free(found.global_ranks);
  else
    *group = found;
  return status;
}

reshard_status rs_split_agree(reshard_comm comm, reshard_status mine) {
  const split_record *all;
  return exchange_records(comm, &(rs_split){.status = mine}, &all);
}
