/* The node of an NCCL rank: a node communicator of the ranks that are on it, for a path which reads their arrays. All
 * ranks make theirs together, when the first transfer asks for it. No bytes go through it. It passes on descriptors of
 * memory, and has the words that streams look at while they wait for each other.
 *
 * Both communicators end together. A rank that ends NCCL's tells its node at once, so that no stream waits for it
 * there. A rank that finds its node ended, or its own stream without a peer, ends NCCL's with its next call. */
#include "comm/nccl/node.h"

#include "comm/nccl/end.h"
#include "comm/node/create.h"
#include "comm/node/wait.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- Opening ------------------------------------------------------------------------------------------------------ */

/* Place of a rank. */
typedef struct nccl_place {
  uint64_t node;
  int64_t number; /* of the node, on one system */
  int64_t uid;
} nccl_place;

/* The same verdict on every rank, since all look at the same places. */
static reshard_status check_places(const rs_nccl *c, const nccl_place *all) {
  bool neighbours = false, elsewhere = false;
  for (int64_t b = 1; b < c->base.size; b++)
    for (int64_t a = 0; a < b; a++) {
      bool same = all[a].node == all[b].node && all[a].number == all[b].number;
      neighbours |= same;
      elsewhere |= !same;
      if (same && (c->all[a].process == c->all[b].process || all[a].uid != all[b].uid))
        return rs_error(RESHARD_ERROR_UNSUPPORTED,
                        "the mixed path reads memory of other processes of a node, and ranks %lld and %lld of one are "
                        "%s",
                        (long long)a, (long long)b,
                        all[a].uid != all[b].uid ? "of different users" : "threads of one process");
    }
  if (neighbours && elsewhere)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_UNSUPPORTED,
                  "the mixed path needs several nodes, and more than one rank on some: here %s",
                  neighbours ? "all ranks are on one node" : "no two ranks are on one node");
}

static void print_end(const rs_nccl *c, char text[64]) {
  snprintf(text, 64, "rank %lld has ended the communicator", (long long)c->base.rank);
}

/* SUCCESS, or why NCCL's has ended: by this rank, by one in sight, or as NCCL says. */
static reshard_status look_at_whole(reshard_comm comm) {
  rs_nccl *c = rs_nccl_of(comm);
  ncclResult_t state;
  RS_TRY(rs_nccl_check_call(c));
  const char *reason = rs_presence_reason(c->presence);
  if (reason != NULL)
    return rs_error(RESHARD_ERROR_PEER, "%.*s", RS_PRESENCE_REASON, reason);
  return rs_nccl_get_async_error(c, "opening a node", &state);
}

/* Ranks in sight wait for this one in vain, where it has ended the communicator meanwhile. */
static void tell_end(rs_nccl *c) {
  char text[64];
  print_end(c, text);
  if (c->ended) /* with an error of NCCL's, or by an abort */
    (void)rs_presence_conclude(c->presence, c->lost != RESHARD_SUCCESS ? c->lost : RESHARD_ERROR_PEER,
                               c->lost != RESHARD_SUCCESS ? c->why : text);
}

/* Local. Lists the ranks of this node, and prepares its communicator. After an error the caller frees what there is. */
static reshard_status prepare_node(rs_nccl *c, const nccl_place *all, int64_t **numbers, rs_node **out) {
  const nccl_place *mine = &all[c->base.rank];
  int64_t n = 0, *ranks = NULL;
  RS_TRY(rs_alloc(numbers, c->base.size, sizeof **numbers));
  for (int64_t r = 0; r < c->base.size; r++)
    (*numbers)[r] = all[r].node == mine->node && all[r].number == mine->number ? n++ : -1;
  RS_TRY(rs_alloc(&ranks, n, sizeof *ranks));
  for (int64_t r = 0; r < c->base.size; r++)
    if ((*numbers)[r] >= 0)
      ranks[(*numbers)[r]] = r;
  RS_TRY_OR(rs_node_alloc(n, (*numbers)[c->base.rank], ranks, out), free(ranks));
  (*out)->whole = &c->base;
  (*out)->look = look_at_whole;
  (*out)->base.timeout_ms = c->base.timeout_ms;
  (*out)->handle = reshard_device_retain(c->handle);
  (*out)->base.device = c->base.device;
  return RESHARD_SUCCESS;
}

/* From now on an end of one is the other's. */
static void take_node(rs_nccl *c, int64_t *numbers, struct rs_import **imports, rs_node *node) {
  for (int64_t r = 0; r < c->base.size; r++)
    imports[r] = numbers[r] >= 0 ? node->base.memory.imports[numbers[r]] : NULL;
  c->numbers = numbers;
  c->base.memory.imports = imports;
  c->base.memory.multi_node = true;
  c->base.waits.ended = node->base.waits.ended;
  c->base.waits.late = node->base.waits.late;
  pthread_mutex_lock(&c->mutex);
  c->node = node;
  if (c->ended) /* meanwhile, of another thread */
    rs_nccl_leave_node(c);
  pthread_mutex_unlock(&c->mutex);
}

reshard_status rs_nccl_open_node(reshard_comm comm) {
  rs_nccl *c = rs_nccl_of(comm);
  const nccl_place mine = {rs_node_hash(), comm->process.node, (int64_t)geteuid()};
  const void *all;
  int64_t *numbers = NULL;
  struct rs_import **imports = NULL;
  rs_node *node = NULL;
  if (c->node != NULL)
    return RESHARD_SUCCESS;
  RS_TRY(rs_comm_allgather(comm, &mine, sizeof mine, &all));
  RS_TRY(check_places(c, all));
  reshard_status status = rs_alloc_zero((void *)&imports, comm->size, sizeof *imports);
  RS_THEN(status, prepare_node(c, all, &numbers, &node));
  status = rs_node_connect(comm, "opening a node", status, node, node != NULL ? node->base.global_ranks : NULL);
  if (status == RESHARD_SUCCESS) {
    take_node(c, numbers, imports, node);
    return RESHARD_SUCCESS;
  }
  tell_end(c);
  if (node != NULL)
    rs_node_release(node);
  free(imports);
  free(numbers);
  return status;
}

/* --- The table ---------------------------------------------------------------------------------------------------- */

/* A peer that could not pass anything on, or a deadline there, has ended the node. */
static reshard_status end_with_node(rs_nccl *c, reshard_status status) {
  if (status == RESHARD_SUCCESS || atomic_load(&c->node->block->ended) == 0)
    return status;
  return rs_nccl_end_after_error(c, status);
}

reshard_status rs_nccl_pass(reshard_comm comm, int64_t rank, int64_t since, uint64_t number, int fd, bool *done) {
  rs_nccl *c = rs_nccl_of(comm);
  return end_with_node(c, rs_node_pass(&c->node->base, c->numbers[rank], since, number, fd, done));
}

reshard_status rs_nccl_take(reshard_comm comm, int64_t rank, int64_t since, uint64_t *number, int *fd, bool *done) {
  rs_nccl *c = rs_nccl_of(comm);
  return end_with_node(c, rs_node_take(&c->node->base, c->numbers[rank], since, number, fd, done));
}

void rs_nccl_await_closed(reshard_comm comm, uint64_t n) {
  const rs_nccl *c = rs_nccl_of(comm);
  if (c->node != NULL)
    rs_node_await_closed(&c->node->base, n);
}

/* --- The end ------------------------------------------------------------------------------------------------------ */

reshard_status rs_nccl_check_node(const rs_nccl *c) {
  return c->node != NULL ? rs_node_check(c->node, true) : RESHARD_SUCCESS;
}

void rs_nccl_end_node(const rs_nccl *c, reshard_status status, const char *text) {
  if (c->node != NULL)
    rs_node_end(c->node, status, text, NULL);
}

void rs_nccl_leave_node(const rs_nccl *c) {
  char text[64];
  print_end(c, text);
  rs_nccl_end_node(c, RESHARD_ERROR_PEER, text);
}

void rs_nccl_close_node(rs_nccl *c, bool idle) {
  pthread_mutex_lock(&c->mutex);
  rs_node *node = c->node;
  c->node = NULL;
  pthread_mutex_unlock(&c->mutex);
  free(c->base.memory.imports);
  free(c->numbers);
  c->base.memory.imports = NULL;
  c->numbers = NULL;
  if (node == NULL)
    return;
  if (!idle) /* the words stay */
    atomic_fetch_add(&node->users, 1);
  node->base.ops->destroy(&node->base);
}
