/* Splits and shrinks. Every rank sends its request to all, in one all-gather: colors and keys may be of any size, all
 * hear of a rank that failed, and every rank knows its group. A rank that has no memory for that says so in a second
 * one. What makes a communicator of a group is the transport's. */
#include "comm/split.h"

#include "base/order.h"
#include "comm/gather.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numbers that a rank brings. by: hash of its words, 0 for none. */
enum { SPLIT_COLOR, SPLIT_KEY, SPLIT_BY };

typedef struct split_request {
  int64_t color, key, rank;
} split_request;

static int compare_requests(const void *a, const void *b) {
  const split_request *x = a, *y = b;
  int order = RS_ORDER(x->color, y->color);
  order = order != 0 ? order : RS_ORDER(x->key, y->key);
  return order != 0 ? order : RS_ORDER(x->rank, y->rank);
}

static reshard_status exchange_requests(reshard_comm comm, const rs_split *mine, const rs_brought **all) {
  rs_brought own = {.numbers = {mine->color, mine->key}};
  snprintf(own.text, sizeof own.text, "%s", mine->by != NULL ? mine->by : "color");
  if (mine->by != NULL)
    own.numbers[SPLIT_BY] = (int64_t)rs_hash(1, mine->by, strlen(mine->by));
  RS_TRY(rs_comm_bring(comm, mine->status, &own, all));
  for (int64_t r = 1; r < comm->size; r++)
    if ((*all)[r].numbers[SPLIT_BY] != (*all)[0].numbers[SPLIT_BY])
      return rs_error(RESHARD_ERROR_MISMATCH, "rank 0 splits by %s, rank %lld by %s", (*all)[0].text, (long long)r,
                      (*all)[r].text);
  return RESHARD_SUCCESS;
}

static void free_group(rs_split_group *group) {
  free(group->ranks);
  free(group->global_ranks);
}

/* Room for the group's ranks. */
static reshard_status alloc_group(rs_split_group *group) {
  RS_TRY(rs_alloc(&group->ranks, group->n, sizeof *group->ranks));
  return rs_alloc(&group->global_ranks, group->n, sizeof *group->global_ranks);
}

static void add_rank(reshard_comm comm, rs_split_group *group, int64_t i, int64_t rank) {
  group->ranks[i] = rank;
  group->global_ranks[i] = rs_comm_global(comm, rank);
}

static reshard_status find_group(reshard_comm comm, const rs_brought *all, rs_split_group *group) {
  split_request *requests = NULL;
  RS_TRY(rs_alloc(&requests, comm->size, sizeof *requests));
  for (int64_t r = 0; r < comm->size; r++)
    requests[r] = (split_request){all[r].numbers[SPLIT_COLOR], all[r].numbers[SPLIT_KEY], r};
  qsort(requests, (size_t)comm->size, sizeof *requests, compare_requests);
  reshard_status status = RESHARD_SUCCESS;
  int color = 0;
  for (int64_t i = 0, end; i < comm->size && group->n == 0; i = end) {
    for (end = i; end < comm->size && requests[end].color == requests[i].color; end++)
      if (requests[end].rank == comm->rank && requests[i].color >= 0) {
        group->color = color;
        group->key = (int)(end - i);
      }
    color += requests[i].color >= 0;
    if (group->color < 0)
      continue;
    group->n = end - i;
    status = alloc_group(group);
    for (int64_t k = i; k < end && status == RESHARD_SUCCESS; k++)
      add_rank(comm, group, k - i, requests[k].rank);
  }
  free(requests);
  return status;
}

/* The communicator of the group, or NULL for a rank in none. */
static reshard_status make_part(reshard_comm comm, rs_split_group *group, reshard_comm *part) {
  reshard_comm made = NULL;
  reshard_status status = comm->ops->make(comm, group, &made);
  if (status != RESHARD_SUCCESS && made != NULL)
    made->ops->destroy(made);
  RS_TRY(status);
  if (made != NULL)
    made->process.node = comm->process.node;
  *part = made;
  return RESHARD_SUCCESS;
}

reshard_status rs_comm_split(reshard_comm comm, const rs_split *mine, reshard_comm *sub) {
  const rs_brought *all;
  rs_split_group group = {.color = -1};
  comm->meets.begun = rs_now_ns();
  reshard_status status = exchange_requests(comm, mine, &all);
  RS_THEN(status, rs_comm_agree(comm, find_group(comm, all, &group)));
  RS_THEN(status, make_part(comm, &group, sub));
  comm->meets.begun = 0;
  free_group(&group);
  return status;
}

reshard_status reshard_comm_split(reshard_comm comm, int64_t color, int64_t key, reshard_comm *sub) {
  RS_TRY(RS_GIVEN("reshard_comm_split", comm));
  RS_CALL(comm, 0);
  rs_split mine = {.color = color, .key = key};
  reshard_comm made = NULL;
  if (sub == NULL) /* the others are told */
    mine.status = rs_error(RESHARD_ERROR_INVALID, "reshard_comm_split: sub is NULL");
  RS_TRY(rs_comm_cancel(comm, rs_comm_split(comm, &mine, &made)));
  *sub = made;
  return RESHARD_SUCCESS;
}

/* --- Shrinks ------------------------------------------------------------------------------------------------------ */

/* Ascending ranks of the communicator, without this one; "" or what is wrong. */
static reshard_status check_lost(reshard_comm comm, int64_t n, const int64_t *lost) {
  for (int64_t i = 0; i < n; i++) {
    if (lost[i] < 0 || lost[i] >= comm->size || lost[i] == comm->rank)
      return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_shrink: lost[%lld] is %lld; this is rank %lld of %lld",
                      (long long)i, (long long)lost[i], (long long)comm->rank, (long long)comm->size);
    if (i > 0 && lost[i] <= lost[i - 1])
      return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_shrink: lost[%lld] is %lld, after %lld", (long long)i,
                      (long long)lost[i], (long long)lost[i - 1]);
  }
  return RESHARD_SUCCESS;
}

/* The ranks that are there. */
static reshard_status find_rest(reshard_comm comm, rs_split_group *group) {
  group->n = comm->size - group->nlost;
  RS_TRY(alloc_group(group));
  for (int64_t r = 0, k = 0; r < comm->size; r++) {
    if (k < group->nlost && group->lost[k] == r) {
      k++;
      continue;
    }
    add_rank(comm, group, r - k, r);
    if (r == comm->rank)
      group->key = (int)(r - k);
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_shrink_begin(rs_shrink *s) {
  const rs_split_group *group = s->group;
  s->mine.hash = rs_hash(1, group->lost, (size_t)group->nlost * sizeof *group->lost);
  rs_ranges_text(s->mine.text, sizeof s->mine.text, group->nlost, group->lost);
  RS_TRY(rs_alloc_zero(&s->seen, group->n, sizeof *s->seen));
  s->seen[group->key] = s->mine;
  return RESHARD_SUCCESS;
}

void rs_shrink_end(rs_shrink *s) { free(s->seen); }

static bool has_come(const rs_shrink *s, int64_t i) {
  return s->seen[i].text[0] != '\0' && s->seen[i].hash == s->mine.hash;
}

/* Takes the lists that are published; returns how many ranks have not come. One that has published this rank's list may
 * try with a longer one by now. */
static int64_t take_lists(rs_shrink *s) {
  rs_loss loss;
  int64_t absent = 0;
  for (int64_t i = 0; i < s->group->n; i++) {
    if (!has_come(s, i) && s->look(s, i, &loss)) {
      if (strcmp(s->seen[i].text, loss.text) != 0)
        s->changed = rs_now_ns();
      s->seen[i] = loss;
    }
    absent += !has_come(s, i);
  }
  return absent;
}

/* An error where a rank has published another list than the lowest one that has published any. */
static reshard_status compare_lists(const rs_shrink *s) {
  int64_t a = 0; /* this rank has published one */
  while (s->seen[a].text[0] == '\0')
    a++;
  for (int64_t b = a + 1; b < s->group->n; b++)
    if (s->seen[b].text[0] != '\0' && strcmp(s->seen[b].text, s->seen[a].text) != 0)
      return rs_error_differ("lost ranks", s->group->ranks[a], s->seen[a].text, s->group->ranks[b], s->seen[b].text);
  return RESHARD_SUCCESS;
}

/* Ranks that have not come, which count as missing from now on; gone: only those whose processes have ended. */
static int64_t find_absent(rs_shrink *s, bool gone, char *text, size_t size) {
  int64_t few[64], n = 0; /* a text has no room for more */
  for (int64_t i = 0; i < s->group->n; i++)
    if (!has_come(s, i) && (!gone || (s->gone != NULL && s->gone(s, i)))) {
      s->miss(s, i);
      if (n < 64)
        few[n++] = s->group->ranks[i];
    }
  rs_ranges_text(text, size, n, few);
  return n;
}

reshard_status rs_shrink_await(rs_shrink *s) {
  char text[160];
  int64_t since = rs_now_ns();
  while (take_lists(s) > 0) {
    bool late = rs_late(since, s->comm->timeout_ms);
    /* Without a deadline, ranks of other lists would never come. */
    if (late || (s->comm->timeout_ms == 0 && s->changed != 0 && rs_late(s->changed, RS_COMM_DIFFER_MS)))
      RS_TRY(compare_lists(s));
    if (find_absent(s, true, text, sizeof text) > 0 && take_lists(s) > 0)
      return rs_error(RESHARD_ERROR_PEER, "ranks %s are gone as well", text);
    if (late) {
      (void)find_absent(s, false, text, sizeof text);
      return rs_comm_error_timeout(s->comm, "those that are there", s->comm->timeout_ms, text);
    }
    if (rs_comm_poll(s->comm, since))
      return rs_comm_error_ended();
    RS_TRY(s->pause(s, since));
  }
  return RESHARD_SUCCESS;
}

static reshard_status shrink_comm(reshard_comm comm, int64_t n, const int64_t *lost, reshard_comm *sub) {
  rs_split_group group = {.nlost = n, .lost = lost};
  if (n == 0)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_shrink: no rank is known as missing");
  RS_TRY(check_lost(comm, n, lost));
  if (rs_comm_is_forked(comm))
    return rs_comm_alive(comm);
  reshard_status status = find_rest(comm, &group);
  RS_THEN(status, make_part(comm, &group, sub));
  free_group(&group);
  return rs_comm_cancel(comm, status);
}

reshard_status reshard_comm_shrink(reshard_comm comm, int64_t n, const int64_t *lost, reshard_comm *sub) {
  int64_t *missing = NULL;
  if (comm == NULL || sub == NULL || n < 0 || (n > 0 && lost == NULL))
    return rs_error(RESHARD_ERROR_INVALID, "reshard_comm_shrink: comm %s, sub %s, %lld lost ranks, list %s",
                    comm == NULL ? "NULL" : "given", sub == NULL ? "NULL" : "given", (long long)n,
                    lost == NULL ? "NULL" : "given");
  if (n == 0) {
    RS_TRY(rs_alloc(&missing, comm->size, sizeof *missing));
    RS_TRY(reshard_comm_missing(comm, missing, &n));
  }
  RS_CALL(comm, 0);
  reshard_status status = shrink_comm(comm, n, missing != NULL ? missing : lost, sub);
  free(missing);
  return status;
}
