#include "ends.h"

#include "bench/cli/util.h"
#include "comm/comm.h"
#include "support/fixtures/rank_threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PART = 6 /* rows and columns of a rank */, TURNS = 3, DEADLINE_MS = 100 };

/* Objects that one rank has on a communicator. */
typedef struct held {
  reshard_comm comm;
  reshard_layout rows, columns;
  reshard_plan plan;
  reshard_transfer transfer;
  reshard_sharder sharder;
  reshard_mesh mesh;
  void *src, *dst; /* elements of 4 bytes */
} held;

static int32_t value(int64_t row, int64_t column) { return (int32_t)(row * 1000 + column); }

static bool open_held(contract_rank *s, held *h) {
  int64_t n = reshard_comm_size(s->comm), rank = reshard_comm_rank(s->comm), shape[] = {n * PART, n * PART};
  const size_t bytes = (size_t)(PART * n * PART) * sizeof(int32_t);
  const reshard_sharder_options options = {.size = RESHARD_SHARDER_OPTIONS_INIT, .device = s->device};
  *h = (held){.comm = NULL};
  if (!CONTRACT_SUCCEEDS(s, reshard_comm_split(s->comm, 0, rank, &h->comm)) ||
      !CONTRACT_SUCCEEDS(s, reshard_layout_parse("chunk(0)", 2, shape, n, &h->rows)) ||
      !CONTRACT_SUCCEEDS(s, reshard_layout_parse("chunk(1)", 2, shape, n, &h->columns)))
    return false;
  const reshard_entry entry = {RESHARD_ENTRY_INIT, .src = h->rows, .dst = h->columns, .dtype = RESHARD_I32};
  if (!CONTRACT_SUCCEEDS(s, reshard_plan_create(1, &entry, rank, NULL, &h->plan)) ||
      !CONTRACT_SUCCEEDS(s, reshard_comm_alloc(h->comm, bytes, &h->src)) ||
      !CONTRACT_SUCCEEDS(s, reshard_comm_alloc(h->comm, bytes, &h->dst)))
    return false;
  const reshard_arrays arrays = {RESHARD_ARRAYS_INIT, &h->src, &h->dst, NULL, NULL, 1, 1};
  int32_t *host = cli_alloc(PART * n * PART, sizeof *host);
  for (int64_t i = 0; i < PART * n * PART; i++)
    host[i] = value(rank * PART + i / (n * PART), i % (n * PART));
  contract_copy(s, h->src, host, bytes);
  free(host);
  return CONTRACT_SUCCEEDS(s, reshard_transfer_create(h->plan, h->comm, &arrays, NULL, &h->transfer)) &&
         CONTRACT_SUCCEEDS(s, reshard_sharder_create(h->comm, &options, &h->sharder)) &&
         CONTRACT_SUCCEEDS(s, reshard_mesh_create(h->comm, 0, 1, &n, NULL, 0, NULL, &h->mesh));
}

static int64_t count_wrong(contract_rank *s, const held *h) {
  int64_t n = reshard_comm_size(s->comm), rank = reshard_comm_rank(s->comm), wrong = 0;
  int32_t *host = cli_alloc(n * PART * PART, sizeof *host);
  contract_copy(s, host, h->dst, (size_t)(n * PART * PART) * sizeof *host);
  for (int64_t i = 0; i < n * PART * PART; i++)
    wrong += host[i] != value(i / PART, rank * PART + i % PART);
  free(host);
  return wrong;
}

/* Destroys what is on the communicator, from another one on in each turn; with the last the handle goes. */
static void close_held(contract_rank *s, held *h, int turn) {
  for (int i = 0; i < TURNS; i++)
    switch ((i + turn) % TURNS) {
    case 0: reshard_transfer_destroy(h->transfer); break;
    case 1: reshard_sharder_destroy(h->sharder); break;
    default: reshard_mesh_release(h->mesh);
    }
  CONTRACT_SUCCEEDS(s, reshard_comm_free(h->comm, h->src));
  CONTRACT_SUCCEEDS(s, reshard_comm_free(h->comm, h->dst));
  reshard_plan_destroy(h->plan);
  reshard_layout_release(h->rows);
  reshard_layout_release(h->columns);
}

/* Checks that nodes are numbered in the order of their lowest ranks. */
static void check_nodes(contract_rank *s) {
  int64_t n = reshard_comm_size(s->comm), known = 0, *nodes = cli_alloc(n, sizeof *nodes);
  CONTRACT_ALL(s, reshard_comm_nodes(s->comm, nodes), RESHARD_SUCCESS, NULL);
  for (int64_t r = 0; r < n; r++) {
    CONTRACT_CHECK(s, nodes[r] >= 0 && nodes[r] <= known);
    known = nodes[r] == known ? known + 1 : known;
  }
  free(nodes);
}

void contract_check_ends(contract_rank *s) {
  check_nodes(s);
  for (int turn = 0; turn < TURNS; turn++) {
    held h;
    if (!open_held(s, &h))
      return;
    CONTRACT_ALL(s, reshard_execute(h.transfer, s->stream), RESHARD_SUCCESS, NULL);
    reshard_comm_destroy(h.comm);
    CONTRACT_CHECK(s, strstr(reshard_last_error(), " has 5 transfers, sharders, meshes or allocations on ") != NULL);
    CONTRACT_SUCCEEDS(s, reshard_comm_barrier(s->comm));
    CONTRACT_CHECK(s, reshard_execute(h.transfer, s->stream) == RESHARD_ERROR_PEER);
    CONTRACT_CHECK(s, strstr(reshard_last_error(), "has destroyed its handle") != NULL);
    CONTRACT_CHECK(s, count_wrong(s, &h) == 0);
    close_held(s, &h, turn);
  }
}

/* Counts its calls, and ends the wait with the last that is due; 0: never. */
typedef struct poll_count {
  int calls, most;
} poll_count;

static int poll_and_count(void *user) {
  poll_count *p = user;
  return ++p->calls == p->most;
}

static void check_cancelled(contract_rank *s, reshard_status status, const poll_count *p) {
  CONTRACT_CHECK(s, status == RESHARD_ERROR_CANCELLED && p->calls == p->most);
  CONTRACT_CHECK(s, strstr(reshard_last_error(), "the poll function of rank ") != NULL);
}

/* Rank 0 comes to a barrier when the others' waits for it have ended. */
static void cancel_barrier(contract_rank *s, reshard_comm comm, const poll_count *p) {
  int64_t rank = reshard_comm_rank(comm);
  if (rank == 0)
    CONTRACT_SUCCEEDS(s, reshard_comm_barrier(s->comm));
  reshard_status status = reshard_comm_barrier(comm);
  if (p->most > 0)
    check_cancelled(s, status, p);
  else
    CONTRACT_CHECK(s, status == RESHARD_ERROR_PEER);
  if (rank != 0)
    CONTRACT_SUCCEEDS(s, reshard_comm_barrier(s->comm));
  CONTRACT_CHECK(s, reshard_comm_barrier(comm) == RESHARD_ERROR_PEER); /* it has ended */
}

/* The last rank shrinks alone, without rank 0, until it ends that. */
static void cancel_shrink(contract_rank *s, reshard_comm comm, const poll_count *p) {
  const int64_t lost = 0;
  reshard_comm left = NULL;
  if (reshard_comm_rank(comm) == reshard_comm_size(comm) - 1) {
    reshard_status status = reshard_comm_shrink(comm, 1, &lost, &left);
    if (status != RESHARD_ERROR_UNSUPPORTED) /* an NCCL of the caller's */
      check_cancelled(s, status, p);
    CONTRACT_CHECK(s, left == NULL);
  }
  CONTRACT_SUCCEEDS(s, reshard_comm_barrier(s->comm));
}

void contract_check_poll(contract_rank *s, bool told) {
  int64_t n = reshard_comm_size(s->comm), rank = reshard_comm_rank(s->comm);
  for (int shrinks = 0; shrinks < (n > 2 ? 2 : n > 1); shrinks++) {
    reshard_comm whole = NULL, part = NULL;
    poll_count p = {0};
    if (!CONTRACT_SUCCEEDS(s, reshard_comm_split(s->comm, 0, rank, &whole)) ||
        !CONTRACT_SUCCEEDS(s, reshard_comm_set_poll(whole, poll_and_count, &p)) ||
        !CONTRACT_SUCCEEDS(s, reshard_comm_split(whole, 0, rank, &part))) /* which has the function, too */
      return;
    p = (poll_count){.most = !told || rank == n - 1 ? 3 : 0}; /* not earlier: ranks wait in splits, too */
    (shrinks ? cancel_shrink : cancel_barrier)(s, part, &p);
    reshard_comm_destroy(part);
    reshard_comm_destroy(whole);
  }
}

/* --- Parts, aborts, losses ---------------------------------------------------------------------------------------- */

static int64_t global_rank(const contract_rank *s, int64_t rank) {
  const int64_t *global = reshard_comm_global_ranks(s->comm);
  return global != NULL ? global[rank] : rank;
}

/* Colors and keys beyond an int, ranks in the reverse order; a rank in no part; a part that outlives the whole. */
static void check_split(contract_rank *s) {
  int64_t n = reshard_comm_size(s->comm), rank = reshard_comm_rank(s->comm), of = (n - rank % 2 + 1) / 2;
  reshard_comm whole = NULL, part = NULL, none = s->comm;
  if (!CONTRACT_SUCCEEDS(s, reshard_comm_split(s->comm, 0, rank, &whole)) ||
      !CONTRACT_SUCCEEDS(s, reshard_comm_split(whole, INT64_MAX - rank % 2, -(rank << 40), &part)) ||
      !CONTRACT_SUCCEEDS(s, reshard_comm_split(whole, rank == 0 ? -1 : 3, 0, &none)))
    return;
  CONTRACT_CHECK(s, (none == NULL) == (rank == 0));
  CONTRACT_CHECK(s, reshard_comm_size(part) == of && reshard_comm_rank(part) == of - 1 - rank / 2);
  for (int64_t i = 0; i < of; i++)
    CONTRACT_CHECK(s, reshard_comm_global_ranks(part)[i] == global_rank(s, 2 * (of - 1 - i) + rank % 2));
  reshard_comm_destroy(none);
  CONTRACT_SUCCEEDS(s, reshard_comm_barrier(part));
  reshard_comm_destroy(whole);
  CONTRACT_SUCCEEDS(s, reshard_comm_barrier(part));
  reshard_comm_destroy(part);
}

/* Rank 0 aborts a part, which the whole outlives, or the whole, which ends its parts: others wait in some of them. */
static void check_abort(contract_rank *s, bool told, bool of_whole) {
  int64_t rank = reshard_comm_rank(s->comm);
  reshard_comm whole = NULL, part = NULL, apart = NULL;
  if (!CONTRACT_SUCCEEDS(s, reshard_comm_split(s->comm, 0, rank, &whole)) ||
      !CONTRACT_SUCCEEDS(s, reshard_comm_split(whole, 0, rank, &part)) ||
      !CONTRACT_SUCCEEDS(s, reshard_comm_split(whole, rank == 0, 0, &apart)) ||
      !CONTRACT_SUCCEEDS(s, reshard_comm_barrier(s->comm)))
    return;
  if (rank == 0 || !told)
    CONTRACT_SUCCEEDS(s, reshard_comm_abort(of_whole ? whole : part));
  CONTRACT_CHECK(s, reshard_comm_barrier(of_whole && rank > 1 ? whole : part) == RESHARD_ERROR_PEER);
  CONTRACT_CHECK(s, rank == 0 || !told || strstr(reshard_last_error(), "rank 0 aborted the communicator") != NULL);
  CONTRACT_CHECK(s, reshard_comm_barrier(part) == RESHARD_ERROR_PEER);
  CONTRACT_CHECK(s, reshard_comm_barrier(apart) == (of_whole ? RESHARD_ERROR_PEER : RESHARD_SUCCESS));
  CONTRACT_CHECK(s, reshard_comm_barrier(whole) == (of_whole ? RESHARD_ERROR_PEER : RESHARD_SUCCESS));
  reshard_comm_destroy(apart);
  reshard_comm_destroy(part);
  reshard_comm_destroy(whole);
}

/* The ranks of `rest` make parts of it. */
static void use_rest(contract_rank *s, reshard_comm rest) {
  int64_t rank = reshard_comm_rank(rest);
  reshard_comm half = NULL;
  CONTRACT_CHECK(s, reshard_comm_size(rest) == reshard_comm_size(s->comm) - 1);
  CONTRACT_SUCCEEDS(s, reshard_comm_barrier(rest));
  if (!CONTRACT_SUCCEEDS(s, reshard_comm_split(rest, rank % 2, 0, &half)))
    return;
  CONTRACT_SUCCEEDS(s, reshard_comm_barrier(half));
  int64_t old = reshard_comm_global_ranks(half)[reshard_comm_rank(half)];
  CONTRACT_CHECK(s, old == global_rank(s, reshard_comm_rank(s->comm)));
  reshard_comm_destroy(half);
}

/* The others shrink without the last rank, which is told so. */
static void check_shrink(contract_rank *s, bool told) {
  int64_t rank = reshard_comm_rank(s->comm), last = reshard_comm_size(s->comm) - 1;
  reshard_comm whole = NULL, rest = NULL;
  if (!CONTRACT_SUCCEEDS(s, reshard_comm_split(s->comm, 0, rank, &whole)) ||
      !CONTRACT_SUCCEEDS(s, reshard_comm_barrier(s->comm)))
    return;
  if (rank != last && CONTRACT_SUCCEEDS(s, reshard_comm_shrink(whole, 1, &last, &rest)))
    use_rest(s, rest);
  CONTRACT_SUCCEEDS(s, reshard_comm_barrier(s->comm));
  if (rank != last || told)
    CONTRACT_CHECK(s, reshard_comm_barrier(whole) == RESHARD_ERROR_PEER);
  CONTRACT_CHECK(s, !told || strstr(reshard_last_error(), "has shrunk the communicator") != NULL);
  reshard_comm_destroy(rest);
  reshard_comm_destroy(whole);
}

/* The last rank alone waits, until a short deadline: it names all others, who hear so in their next call. */
static void check_deadline(contract_rank *s, bool told) {
  int64_t rank = reshard_comm_rank(s->comm), last = reshard_comm_size(s->comm) - 1, n = -1;
  int64_t *missing = cli_alloc(last + 1, sizeof *missing);
  char names[64];
  reshard_comm whole = NULL;
  snprintf(names, sizeof names, last > 1 ? "; missing: 0-%lld" : "; missing: 0", (long long)last - 1);
  if (CONTRACT_SUCCEEDS(s, reshard_comm_split(s->comm, 0, rank, &whole))) {
    if (whole->ops->addressable)
      rank_comms_limit(whole, DEADLINE_MS);
    else
      whole->timeout_ms = rank == last ? DEADLINE_MS : whole->timeout_ms;
    CONTRACT_SUCCEEDS(s, reshard_comm_barrier(s->comm));
    if (rank == last)
      CONTRACT_CHECK(s, reshard_comm_barrier(whole) == RESHARD_ERROR_TIMEOUT);
    CONTRACT_CHECK(s, rank < last || strstr(reshard_last_error(), names) != NULL);
    CONTRACT_SUCCEEDS(s, reshard_comm_barrier(s->comm));
    reshard_status status = reshard_comm_barrier(whole);
    CONTRACT_CHECK(s, status == RESHARD_ERROR_PEER || (!told && status == RESHARD_ERROR_TIMEOUT));
    CONTRACT_CHECK(s, strstr(reshard_last_error(), names) != NULL);
    CONTRACT_CHECK(s, reshard_comm_missing(whole, missing, &n) == RESHARD_SUCCESS && n == last);
    for (int64_t r = 0; r < n; r++)
      CONTRACT_CHECK(s, missing[r] == r);
    CONTRACT_SUCCEEDS(s, reshard_comm_barrier(s->comm)); /* a rank that has destroyed its handle counts as missing */
  }
  reshard_comm_destroy(whole);
  free(missing);
}

void contract_check_losses(contract_rank *s, bool told) {
  check_split(s);
  if (reshard_comm_size(s->comm) > 1)
    check_deadline(s, told);
  check_abort(s, told, false);
  check_abort(s, told, true);
  if (reshard_comm_size(s->comm) > 2)
    check_shrink(s, told);
}
