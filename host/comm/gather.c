/* One of the ranks of a process copies all strings end to end, once for all. Between ranks that do not reach each
 * other's memory the lengths go round first and then the strings, a record at a time: for kilobytes to a few megabytes
 * that are exchanged when something is made, not for data. */
#include "comm/gather.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

reshard_status rs_strings_create(int64_t n, int64_t (*size)(const void *user, int64_t rank), const void *user,
                                 rs_strings **out) {
  int64_t bytes, total = 0;
  bool fits = rs_mul(n + 1, (int64_t)sizeof(int64_t), &bytes) && rs_add(bytes, (int64_t)sizeof(rs_strings), &bytes);
  for (int64_t r = 0; r < n && fits; r++)
    fits = rs_add(total, size(user, r), &total);
  if (!fits || !rs_add(bytes, total, &bytes))
    return rs_error_memory(SIZE_MAX);
  rs_strings *made = NULL;
  RS_TRY(rs_alloc(&made, bytes, 1));
  made->n = n;
  made->bytes = (char *)(made->first + n + 1);
  made->first[0] = 0;
  for (int64_t r = 0; r < n; r++)
    made->first[r + 1] = made->first[r] + size(user, r);
  atomic_init(&made->users, 1);
  *out = made;
  return RESHARD_SUCCESS;
}

void rs_strings_release(rs_strings *strings) {
  if (strings != NULL && atomic_fetch_sub(&strings->users, 1) == 1)
    free(strings);
}

/* --- Ranks that reach each other's memory ----------------------------------------------------------------------- */

typedef struct gather_call {
  reshard_status status;
  const char *text; /* of a status that is no success */
  const void *mine;
  int64_t size;
  rs_strings *all;
} gather_call;

static int64_t call_size(const void *user, int64_t rank) { return ((gather_call *const *)user)[rank]->size; }

static reshard_status gather_calls(int64_t n, void **all) {
  gather_call *const *g = (gather_call *const *)all;
  for (int64_t r = 0; r < n; r++)
    if (g[r]->status != RESHARD_SUCCESS)
      return rs_error(g[r]->status, "rank %lld: %s", (long long)r, g[r]->text);
  rs_strings *made = NULL;
  RS_TRY(rs_strings_create(n, call_size, g, &made));
  for (int64_t r = 0; r < n; r++)
    if (g[r]->size > 0)
      memcpy(made->bytes + made->first[r], g[r]->mine, (size_t)g[r]->size);
  atomic_store(&made->users, n);
  for (int64_t r = 0; r < n; r++)
    g[r]->all = made;
  return RESHARD_SUCCESS;
}

/* --- Ranks that do not ------------------------------------------------------------------------------------------ */

reshard_status rs_comm_bring(reshard_comm comm, reshard_status status, rs_brought *mine, const rs_brought **all) {
  _Static_assert(sizeof *mine == RS_COMM_RECORD, "it fits the communicator's buffer");
  mine->status = status;
  if (status != RESHARD_SUCCESS)
    snprintf(mine->text, sizeof mine->text, "%s", reshard_last_error());
  const void *gathered;
  RS_TRY(rs_comm_allgather(comm, mine, sizeof *mine, &gathered));
  *all = gathered;
  for (int64_t r = 0; r < comm->size; r++)
    if ((*all)[r].status != RESHARD_SUCCESS)
      return rs_error((reshard_status)(*all)[r].status, "rank %lld: %s", (long long)r, (*all)[r].text);
  return RESHARD_SUCCESS;
}

reshard_status rs_comm_agree(reshard_comm comm, reshard_status status) {
  const rs_brought *all;
  return rs_comm_bring(comm, status, &(rs_brought){0}, &all);
}

static int64_t brought_size(const void *user, int64_t rank) { return ((const rs_brought *)user)[rank].numbers[0]; }

static reshard_status gather_records(reshard_comm comm, const char *mine, rs_strings *all) {
  char piece[RS_COMM_RECORD] = {0};
  int64_t longest = 0, size = all->first[comm->rank + 1] - all->first[comm->rank];
  for (int64_t r = 0; r < all->n; r++)
    longest = rs_max(longest, all->first[r + 1] - all->first[r]);
  for (int64_t at = 0; at < longest; at += RS_COMM_RECORD) {
    if (at < size)
      memcpy(piece, mine + at, (size_t)rs_min(RS_COMM_RECORD, size - at));
    const void *gathered;
    RS_TRY(rs_comm_allgather(comm, piece, RS_COMM_RECORD, &gathered));
    for (int64_t r = 0; r < all->n; r++) {
      int64_t left = all->first[r + 1] - all->first[r] - at;
      if (left > 0)
        memcpy(all->bytes + all->first[r] + at, (const char *)gathered + r * RS_COMM_RECORD,
               (size_t)rs_min(RS_COMM_RECORD, left));
    }
  }
  return RESHARD_SUCCESS;
}

static reshard_status gather_by_records(reshard_comm comm, reshard_status status, const void *mine, int64_t size,
                                        rs_strings **out) {
  rs_brought own = {.numbers = {size}};
  const rs_brought *sizes;
  rs_strings *all = NULL;
  RS_TRY(rs_comm_bring(comm, status, &own, &sizes));
  status = rs_strings_create(comm->size, brought_size, sizes, &all);
  RS_TRY_GOTO(status, rs_comm_agree(comm, status), fail);
  RS_TRY_GOTO(status, gather_records(comm, mine, all), fail);
  *out = all;
  return RESHARD_SUCCESS;
fail:
  free(all);
  return status;
}

reshard_status rs_comm_gather_bytes(reshard_comm comm, reshard_status status, const void *mine, int64_t size,
                                    rs_strings **all) {
  if (!comm->ops->addressable)
    return gather_by_records(comm, status, mine, size, all);
  gather_call g = {.status = status, .text = reshard_last_error(), .mine = mine, .size = size};
  RS_TRY(rs_comm_combine(comm, gather_calls, &g));
  *all = g.all;
  return RESHARD_SUCCESS;
}
