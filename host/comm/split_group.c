/* All ranks tell all ranks what they want, in one all-gather, so that colors and keys may be of any size, a rank that
 * failed is heard of, and every rank knows the table of global ranks. A rank that has no memory for its own table says
 * so in a second one. */
#include "comm/split_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct record {
  int64_t status, color, key;
  uint64_t what;                                   /* hash of the words, 0 for none */
  char text[RS_COMM_RECORD - 4 * sizeof(int64_t)]; /* of the error, else the words */
} record;
_Static_assert(sizeof(record) == RS_COMM_RECORD, "a record fits the communicator's buffer");

static int compare_requests(const void *a, const void *b) {
  const rs_asked *x = a, *y = b;
  if (x->color != y->color)
    return x->color < y->color ? -1 : 1;
  if (x->key != y->key)
    return x->key < y->key ? -1 : 1;
  return x->rank < y->rank ? -1 : 1;
}

void rs_asked_sort(int64_t n, rs_asked *asked) { qsort(asked, (size_t)n, sizeof *asked, compare_requests); }

/* The same verdict on every rank. */
static reshard_status check_records(int64_t n, const record *all) {
  for (int64_t r = 0; r < n; r++)
    if (all[r].status != RESHARD_SUCCESS)
      return rs_error((reshard_status)all[r].status, "rank %lld: %s", (long long)r, all[r].text);
  for (int64_t r = 1; r < n; r++)
    if (all[r].what != all[0].what)
      return rs_error(RESHARD_ERROR_MISMATCH, "rank 0 splits by %s, rank %lld by %s", all[0].text, (long long)r,
                      all[r].text);
  return RESHARD_SUCCESS;
}

static reshard_status exchange_records(reshard_comm comm, const rs_split *mine, const record **all) {
  record r = {.status = mine->status, .color = mine->color, .key = mine->key};
  const char *words = mine->status != RESHARD_SUCCESS ? reshard_last_error()
                      : mine->what != NULL            ? mine->what
                                                      : "color";
  snprintf(r.text, sizeof r.text, "%s", words);
  if (mine->what != NULL)
    r.what = rs_hash(1, mine->what, strlen(mine->what));
  const void *gathered;
  RS_TRY(comm->ops->allgather(comm, &r, sizeof r, &gathered));
  *all = gathered;
  return check_records(comm->size, *all);
}

static reshard_status find_group(reshard_comm comm, const record *all, rs_seat *seat) {
  rs_asked *places = NULL;
  RS_TRY(rs_alloc(&places, comm->size, sizeof *places));
  for (int64_t r = 0; r < comm->size; r++)
    places[r] = (rs_asked){all[r].color, all[r].key, r};
  rs_asked_sort(comm->size, places);
  reshard_status status = RESHARD_SUCCESS;
  int color = 0;
  for (int64_t i = 0, end; i < comm->size; i = end) {
    int64_t here = -1;
    for (end = i; end < comm->size && places[end].color == places[i].color; end++)
      if (places[end].rank == comm->rank)
        here = end - i;
    if (places[i].color < 0)
      continue;
    if (here >= 0) {
      *seat = (rs_seat){color, (int)here, end - i, NULL};
      status = rs_alloc(&seat->global_ranks, end - i, sizeof *seat->global_ranks);
      for (int64_t k = i; k < end && status == RESHARD_SUCCESS; k++)
        seat->global_ranks[k - i] = comm->global_ranks != NULL ? comm->global_ranks[places[k].rank] : places[k].rank;
      break;
    }
    color++;
  }
  free(places);
  return status;
}

reshard_status rs_seat_find(reshard_comm comm, const rs_split *mine, rs_seat *seat) {
  const record *all;
  rs_seat found = {.color = -1};
  RS_TRY(exchange_records(comm, mine, &all));
  reshard_status status = rs_seat_agree(comm, find_group(comm, all, &found));
  if (status != RESHARD_SUCCESS)
    free(found.global_ranks);
  else
    *seat = found;
  return status;
}

reshard_status rs_seat_agree(reshard_comm comm, reshard_status mine) {
  const record *all;
  return exchange_records(comm, &(rs_split){.status = mine}, &all);
}
