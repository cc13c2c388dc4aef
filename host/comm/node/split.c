/* Parts of a node communicator: splits, and those that are there after a loss. Each is made like any other, from
 * addresses. Addresses of a split go round in its all-gathers, and those of a shrink lie in the parts of the ranks; a
 * part holds as long as a rank has it. */
#define _GNU_SOURCE
#include "comm/node/create.h"
#include "comm/node/end.h"

#include "comm/split_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Rank in c of one by its number in the communicator that was split first. */
static int64_t find_rank(const rs_node *c, int64_t global_rank) {
  int64_t r = 0;
  while ((c->global_ranks != NULL ? c->global_ranks[r] : r) != global_rank)
    r++;
  return r;
}

/* Some ranks of c, this one among them, before they are connected; takes global_ranks, if there is *out. */
static reshard_status create_part(rs_node *c, int64_t size, int64_t rank, int64_t *global_ranks, rs_node **out) {
  RS_TRY(rs_node_alloc(size, rank, global_ranks, out));
  (*out)->timeout_ms = c->timeout_ms;
  (*out)->handle = reshard_device_retain(c->handle);
  (*out)->base.device = c->base.device;
  return rs_board_join(&(*out)->base, &c->base);
}

/* The addresses of this rank's group, in its order, from those of all ranks. */
static reshard_status find_addresses(const rs_node *c, const rs_split_group *group, const rs_node_address *all,
                                     rs_node_address **out) {
  RS_TRY(rs_alloc(out, group->n, sizeof **out));
  for (int64_t i = 0; i < group->n; i++)
    (*out)[i] = all[find_rank(c, group->global_ranks[i])];
  return RESHARD_SUCCESS;
}

/* Shows this rank's address to all of c, and joins those of its group. Either all ranks of c succeed or none. */
static reshard_status join_group(rs_node *c, const rs_split_group *group, reshard_status status, rs_node *made) {
  rs_node_address mine = {0}, *addresses = NULL;
  const void *all;
  int listener = -1;
  if (made != NULL)
    rs_node_make_address(made, 0, status, &mine, &listener);
  if (mine.status != RESHARD_SUCCESS)
    status = (reshard_status)mine.status;
  RS_TRY_GOTO(status, rs_split_agree(&c->base, status), done);
  RS_TRY_GOTO(status, rs_comm_allgather(&c->base, &mine, sizeof mine, &all), done);
  if (made != NULL)
    status = find_addresses(c, group, all, &addresses);
  RS_TRY_GOTO(status, rs_split_agree(&c->base, status), done);
  if (made != NULL) {
    status = rs_node_join(made, "reshard_comm_split", addresses, listener);
    listener = -1;
  }
  status = rs_split_agree(&c->base, status);
done:
  if (listener >= 0)
    close(listener);
  free(addresses);
  return status;
}

reshard_status rs_node_split(reshard_comm comm, const rs_split *mine, reshard_comm *sub) {
  rs_node *c = rs_node_of(comm), *made = NULL;
  rs_split_group group;
  reshard_status status = RESHARD_SUCCESS;
  RS_TRY(rs_split_group_find(comm, mine, &group));
  if (group.n > 0)
    status = create_part(c, group.n, group.key, group.global_ranks, &made);
  if (made == NULL) {
    int64_t *unused = group.global_ranks;
    status = join_group(c, &group, status, NULL);
    free(unused);
    return status;
  }
  made->parent = c;
  atomic_fetch_add(&c->users, 1);
  status = join_group(c, &group, status, made);
  if (status == RESHARD_SUCCESS)
    *sub = &made->base;
  else
    rs_node_release(made);
  return status;
}

/* --- Shrinks ------------------------------------------------------------------------------------------------------ */

typedef char loss_text[sizeof((rs_node_loss *)NULL)->text];

/* The shrink of one rank. */
typedef struct node_shrink {
  rs_node *c;
  int64_t n, nlost; /* ranks that are there; that are lost */
  const int64_t *lost;
  int64_t *there;             /* [n] ranks of c */
  bool *came;                 /* [n]: the address of a rank that wants the same was taken */
  rs_node_address *addresses; /* [n] */
  uint64_t hash;
  loss_text text, *texts; /* [n]: the lists that they have shown last, "" for none */
  int64_t changed;        /* when one of them did */
} node_shrink;

static reshard_status list_there(node_shrink *s) {
  RS_TRY(rs_alloc(&s->there, s->n, sizeof *s->there));
  RS_TRY(rs_alloc_zero(&s->came, s->n, sizeof *s->came));
  RS_TRY(rs_alloc(&s->addresses, s->n, sizeof *s->addresses));
  RS_TRY(rs_alloc_zero((void *)&s->texts, s->n, sizeof *s->texts));
  for (int64_t r = 0, k = 0, at = 0; r < s->c->base.size; r++)
    if (k < s->nlost && s->lost[k] == r)
      k++;
    else
      s->there[at++] = r;
  s->hash = rs_hash(1, s->lost, (size_t)s->nlost * sizeof *s->lost);
  rs_ranges_text(s->text, sizeof s->text, s->nlost, s->lost);
  return RESHARD_SUCCESS;
}

/* Shows what this rank wants; address NULL: nothing any more. A list that is not like others stays, for those that come
 * later. */
static void show_loss(const node_shrink *s, const rs_node_address *address, bool differs) {
  rs_node_loss *loss = &rs_node_own_rank(s->c)->loss;
  atomic_fetch_add(&loss->tries, 1);
  loss->hash = address != NULL ? s->hash : 0;
  memset(loss->text, 0, sizeof loss->text);
  if (address != NULL || differs)
    memcpy(loss->text, s->text, sizeof loss->text);
  if (address != NULL)
    memcpy(loss->record, address, sizeof *address);
  atomic_fetch_add(&loss->tries, 1);
}

/* Takes what a rank shows: false where that is nothing. */
static bool read_loss(const node_shrink *s, int64_t rank, rs_node_loss *out) {
  rs_node_loss *loss = &s->c->ranks[rank].loss;
  uint64_t tries = atomic_load(&loss->tries);
  out->hash = loss->hash;
  memcpy(out->text, loss->text, sizeof out->text);
  memcpy(out->record, loss->record, sizeof out->record);
  atomic_thread_fence(memory_order_acquire);
  return tries % 2 == 0 && atomic_load(&loss->tries) == tries && out->text[0] != '\0';
}

/* Takes the addresses of those that want the same; returns how many have not come. A rank that has shown this one's
 * list may try with a longer one by now. */
static int64_t take_addresses(node_shrink *s) {
  rs_node_loss loss;
  int64_t absent = 0;
  for (int64_t i = 0; i < s->n; i++) {
    if (!s->came[i] && read_loss(s, s->there[i], &loss)) {
      s->came[i] = loss.hash == s->hash;
      if (strcmp(s->texts[i], loss.text) != 0)
        s->changed = rs_now_ns();
      memcpy(s->texts[i], loss.text, sizeof loss.text);
      memcpy(&s->addresses[i], loss.record, sizeof s->addresses[i]);
    }
    absent += !s->came[i];
  }
  return absent;
}

/* An error where a rank has shown another list than the lowest one that has shown any. */
static reshard_status compare_losses(const node_shrink *s) {
  int64_t lowest = 0; /* this rank has shown one */
  while (s->texts[lowest][0] == '\0')
    lowest++;
  for (int64_t i = lowest + 1; i < s->n; i++)
    if (s->texts[i][0] != '\0' && strcmp(s->texts[i], s->texts[lowest]) != 0)
      return rs_error_differ("lost ranks", s->there[lowest], s->texts[lowest], s->there[i], s->texts[i]);
  return RESHARD_SUCCESS;
}

/* Ranks that have not come, which count as missing from now on; gone: only those whose processes have ended. */
static int64_t find_absent(const node_shrink *s, bool gone, char *text, size_t size) {
  rs_node *c = s->c;
  int64_t few[64], n = 0, by = atomic_load(&c->block->ended) - 1; /* a text has no room for more */
  for (int64_t i = 0; i < s->n; i++)
    if (!s->came[i] && (!gone || rs_node_hung_up(c->sockets[s->there[i]]))) {
      c->losses[by * c->base.size + s->there[i]] = 1;
      if (n < 64)
        few[n++] = s->there[i];
    }
  rs_ranges_text(text, size, n, few);
  return n;
}

static reshard_status wait_for_addresses(node_shrink *s) {
  char text[160];
  int64_t since = rs_now_ns();
  while (take_addresses(s) > 0) {
    bool late = rs_late(since, s->c->timeout_ms);
    if (late ||
        (s->c->timeout_ms == 0 && rs_late(s->changed, RS_COMM_DIFFER_MS))) /* ranks of other lists would never come */
      RS_TRY(compare_losses(s));
    if (find_absent(s, true, text, sizeof text) > 0 && take_addresses(s) > 0)
      return rs_error(RESHARD_ERROR_PEER, "ranks %s are gone as well", text);
    if (late) {
      (void)find_absent(s, false, text, sizeof text);
      return rs_comm_error_timeout(&s->c->base, "those that are there", s->c->timeout_ms, text);
    }
    if (rs_comm_poll(&s->c->base, since))
      return rs_comm_error_ended();
    nanosleep(&(struct timespec){0, 500000}, NULL);
  }
  return RESHARD_SUCCESS;
}

/* A communicator of those that are there, which is not connected yet. */
static reshard_status create_rest(node_shrink *s, rs_node **made) {
  rs_node *c = s->c;
  int64_t *ranks = NULL, rank = 0;
  RS_TRY(list_there(s));
  RS_TRY(rs_alloc(&ranks, s->n, sizeof *ranks));
  for (int64_t i = 0; i < s->n; i++) {
    if (s->there[i] == c->base.rank)
      rank = i;
    ranks[i] = c->global_ranks != NULL ? c->global_ranks[s->there[i]] : s->there[i];
  }
  reshard_status status = create_part(c, s->n, rank, ranks, made);
  if (*made == NULL)
    free(ranks);
  return status;
}

reshard_status rs_node_shrink(reshard_comm comm, int64_t n, const int64_t *lost, reshard_comm *sub) {
  node_shrink s = {.c = rs_node_of(comm), .n = comm->size - n, .nlost = n, .lost = lost};
  rs_node *made = NULL;
  rs_node_address address;
  char text[64];
  int listener = -1;
  snprintf(text, sizeof text, "rank %lld has shrunk the communicator", (long long)comm->rank);
  rs_node_end(s.c, RESHARD_ERROR_PEER, text, NULL);
  reshard_status status = create_rest(&s, &made);
  if (status == RESHARD_SUCCESS) {
    rs_node_make_address(made, 0, status, &address, &listener);
    status = (reshard_status)address.status;
  }
  if (status == RESHARD_SUCCESS) {
    show_loss(&s, &address, false);
    status = wait_for_addresses(&s);
    if (status == RESHARD_SUCCESS) {
      status = rs_node_join(made, "reshard_comm_shrink", s.addresses, listener);
      listener = -1;
    }
    show_loss(&s, NULL, status == RESHARD_ERROR_MISMATCH);
  }
  if (listener >= 0)
    close(listener);
  if (status == RESHARD_SUCCESS)
    *sub = &made->base;
  else if (made != NULL)
    rs_node_release(made);
  free(s.there);
  free(s.came);
  free(s.addresses);
  free(s.texts);
  return status;
}
