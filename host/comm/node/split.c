/* Parts of a node communicator: splits, and those that are there after a loss. Each is made like any other, from
 * addresses. Addresses of a split go round in its all-gathers, and those of a shrink lie in the parts of the ranks; a
 * part holds as long as a rank has it. */
#define _GNU_SOURCE
#include "comm/node/create.h"
#include "comm/node/wait.h"

#include "comm/split.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The group before it is connected. */
static reshard_status create_part(rs_node *c, rs_split_group *group, reshard_comm *part) {
  rs_node *made = NULL;
  RS_TRY(rs_node_alloc(group->n, group->key, group->global_ranks, &made));
  *part = &made->base;
  group->global_ranks = NULL;
  made->base.timeout_ms = c->base.timeout_ms;
  made->handle = reshard_device_retain(c->handle);
  made->base.device = c->base.device;
  return rs_board_join(&made->base, &c->base);
}

static reshard_status split_node(rs_node *c, rs_split_group *group, reshard_comm *part) {
  reshard_status status = group->n > 0 ? create_part(c, group, part) : RESHARD_SUCCESS;
  rs_node *made = rs_node_of(*part);
  if (made != NULL) {
    made->parent = c;
    atomic_fetch_add(&c->users, 1);
  }
  return rs_node_connect(&c->base, "reshard_comm_split", status, made, group->ranks);
}

/* --- Shrinks ------------------------------------------------------------------------------------------------------ */

/* The shrink of one rank. */
typedef struct node_shrink {
  rs_shrink base;
  rs_node_address *addresses; /* [n] of those that have come */
} node_shrink;

/* Shows what this rank wants; address NULL: nothing any more. A list that is not like others stays, for those that come
 * later. */
static void show_loss(const rs_shrink *s, const rs_node_address *address, bool differs) {
  rs_node_loss *own = &rs_node_own_rank(rs_node_of(s->comm))->loss;
  atomic_fetch_add(&own->tries, 1);
  own->loss = address != NULL || differs ? s->mine : (rs_loss){0};
  own->loss.hash = address != NULL ? s->mine.hash : 0;
  if (address != NULL)
    memcpy(own->record, address, sizeof *address);
  atomic_fetch_add(&own->tries, 1);
}

static bool read_loss(rs_shrink *s, int64_t i, rs_loss *loss) {
  rs_node_loss *other = &rs_node_of(s->comm)->ranks[s->group->ranks[i]].loss;
  uint64_t tries = atomic_load(&other->tries);
  *loss = other->loss;
  memcpy(&((node_shrink *)s)->addresses[i], other->record, sizeof(rs_node_address));
  atomic_thread_fence(memory_order_acquire);
  return tries % 2 == 0 && atomic_load(&other->tries) == tries && loss->text[0] != '\0';
}

static bool is_gone(rs_shrink *s, int64_t i) {
  return rs_node_hung_up(rs_node_of(s->comm)->sockets[s->group->ranks[i]]);
}

static void miss_rank(rs_shrink *s, int64_t i) {
  rs_node *c = rs_node_of(s->comm);
  c->losses[(atomic_load(&c->block->ended) - 1) * c->base.size + s->group->ranks[i]] = 1;
}

static reshard_status pause_shrink(rs_shrink *s, int64_t since) {
  (void)s, (void)since;
  nanosleep(&(struct timespec){0, 500000}, NULL);
  return RESHARD_SUCCESS;
}

static reshard_status shrink_node(rs_node *c, rs_split_group *group, reshard_comm *part) {
  node_shrink s = {.base = {.comm = &c->base,
                            .group = group,
                            .look = read_loss,
                            .gone = is_gone,
                            .miss = miss_rank,
                            .pause = pause_shrink}};
  rs_node_address address;
  char text[64];
  int listener = -1;
  rs_comm_shrunk_text(text, sizeof text, c->base.rank);
  rs_node_end(c, RESHARD_ERROR_PEER, text, NULL);
  reshard_status status = rs_shrink_begin(&s.base);
  RS_THEN(status, rs_alloc(&s.addresses, group->n, sizeof *s.addresses));
  RS_THEN(status, create_part(c, group, part));
  if (status == RESHARD_SUCCESS) {
    rs_node_make_address(rs_node_of(*part), 0, status, &address, &listener);
    status = (reshard_status)address.status;
  }
  if (status == RESHARD_SUCCESS) {
    s.addresses[group->key] = address;
    show_loss(&s.base, &address, false);
    status = rs_shrink_await(&s.base);
    if (status == RESHARD_SUCCESS) {
      status = rs_node_join(rs_node_of(*part), "reshard_comm_shrink", s.addresses, listener);
      listener = -1;
    }
    show_loss(&s.base, NULL, status == RESHARD_ERROR_MISMATCH);
  }
  if (listener >= 0)
    close(listener);
  rs_shrink_end(&s.base);
  free(s.addresses);
  return status;
}

reshard_status rs_node_make_part(reshard_comm comm, rs_split_group *group, reshard_comm *part) {
  return (group->nlost > 0 ? shrink_node : split_node)(rs_node_of(comm), group, part);
}
