/* Two ranks, which are threads, make collective calls in any order: splits, shrinks, aborts, transfers, sharded tensors
 * that go through layouts. Most calls are the same on both; else one rank leaves a call out, makes another one, or has
 * other arguments. Finds calls that never return, and data that is wrong where both have succeeded. Finds memory that
 * is touched out of bounds, while the other rank uses it, or after an error. */
#define _GNU_SOURCE
#include "fuzz.h"

#include "bench/launch/rank_threads.h"

#include <reshard/reshard.h>
#include <reshard/torch.h>

#include <stdbool.h>
#include <string.h>

enum { RANKS = 2, LAYOUTS = 5, SLOTS = 3, MOST_CALLS = 24, SIDE = 12, ARGUMENTS = 4, POISON = 0xa5, DEADLINE_MS = 20 };

/* One call, as a rank makes it. */
typedef struct rank_call {
  int kind; /* KINDS: none */
  uint8_t a[ARGUMENTS];
} rank_call;

typedef struct fuzz_world {
  reshard_layout layouts[LAYOUTS]; /* the last one is of another shape */
  int64_t shape[2];
  int ncalls;
  rank_call calls[RANKS][MOST_CALLS];
  struct fuzz_rank *ranks[RANKS];
} fuzz_world;

typedef struct rank_transfer {
  reshard_plan plan;
  reshard_transfer at;
  unsigned char src[SIDE * SIDE], dst[SIDE * SIDE];
  bool failed; /* dst is the caller's again, and poison */
} rank_transfer;

typedef struct fuzz_rank {
  const fuzz_world *world;
  reshard_comm comm, sub;
  reshard_sharder sharder;
  reshard_sharded_tensor tensors[SLOTS]; /* of elements as element_value says, whatever call has failed */
  rank_transfer transfers[SLOTS];
} fuzz_rank;

static bool told(reshard_status status) {
  fuzz_require(status == RESHARD_SUCCESS || (status != RESHARD_ERROR_INTERNAL && reshard_last_error()[0] != '\0'));
  return status == RESHARD_SUCCESS;
}

static unsigned char element_value(int64_t i, int64_t j) { return (unsigned char)(31 * i + 7 * j + 1); }

/* --- Communicators ------------------------------------------------------------------------------------------------ */

static void meet(fuzz_rank *r, const uint8_t *a) { (void)told(reshard_comm_barrier(a[0] % 4 ? r->comm : r->sub)); }

static void split(fuzz_rank *r, const uint8_t *a) {
  reshard_comm made = NULL;
  if (told(reshard_comm_split(r->comm, a[0] % 3 - 1, a[1], &made))) {
    reshard_comm_destroy(r->sub);
    r->sub = made;
  }
}

static void shrink(fuzz_rank *r, const uint8_t *a) {
  int64_t lost[RANKS] = {a[0] % 3, a[1] % 3};
  reshard_comm made = NULL;
  if (told(reshard_comm_shrink(a[2] % 2 ? r->comm : r->sub, a[3] % 3, a[2] % 8 < 6 ? lost : NULL, &made)))
    (void)told(reshard_comm_barrier(made));
  reshard_comm_destroy(made);
}

static void end_comm(fuzz_rank *r, const uint8_t *a) { (void)told(reshard_comm_abort(a[0] % 2 ? r->comm : r->sub)); }

static void ask_comm(fuzz_rank *r, const uint8_t *a) {
  char text[512];
  int64_t missing[RANKS], n = 0;
  (void)told(reshard_comm_report(r->comm, a[0], text, a[1], NULL));
  (void)told(reshard_comm_missing(r->comm, missing, &n));
  fuzz_require(n <= RANKS);
}

/* --- Transfers ---------------------------------------------------------------------------------------------------- */

static void transfer_end(rank_transfer *t) {
  reshard_transfer_destroy(t->at);
  reshard_plan_destroy(t->plan);
  for (size_t i = 0; i < sizeof t->dst && t->failed; i++)
    fuzz_require(t->dst[i] == POISON);
  memset(t, 0, sizeof *t);
}

static void make_transfer(fuzz_rank *r, const uint8_t *a) {
  rank_transfer *t = &r->transfers[a[0] % SLOTS];
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = r->world->layouts[a[1] % LAYOUTS],
                         .dst = r->world->layouts[a[2] % LAYOUTS], .dtype = RESHARD_U8};
  reshard_plan_options cuts = {RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = a[3] & 8 ? 8192 : 0};
  reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = (reshard_path)(a[3] % 3)};
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, (void *[]){t->src}, (void *[]){t->dst}, NULL, NULL, 0, 0};
  int64_t rank = reshard_comm_rank(r->comm);
  transfer_end(t);
  if (told(reshard_plan_create(1, &entry, rank, &cuts, &t->plan)))
    (void)told(reshard_transfer_create(t->plan, r->comm, &arrays, &options, &t->at));
}

static void execute(fuzz_rank *r, const uint8_t *a) {
  rank_transfer *t = &r->transfers[a[0] % SLOTS];
  if (t->at == NULL || t->failed || told(reshard_execute(t->at, NULL)))
    return;
  t->failed = true;
  memset(t->dst, POISON, sizeof t->dst);
}

/* --- Sharded tensors ---------------------------------------------------------------------------------------------- */

static void drop_tensors(fuzz_rank *r) {
  for (int i = 0; i < SLOTS; i++) {
    reshard_sharded_tensor_release(r->tensors[i]);
    r->tensors[i] = NULL;
  }
  reshard_sharder_destroy(r->sharder);
  r->sharder = NULL;
}

static void put_tensor(fuzz_rank *r, int64_t slot, reshard_sharded_tensor made) {
  reshard_sharded_tensor_release(r->tensors[slot]);
  r->tensors[slot] = made;
}

static void make_sharder(fuzz_rank *r, const uint8_t *a) {
  reshard_sharder_options options = {RESHARD_SHARDER_OPTIONS_INIT, .cached_plans = a[0] % 4 - 1,
                                     .workspace_limit = a[1] % 2 ? 8192 : 0, .path = (reshard_path)(a[2] % 3)};
  drop_tensors(r);
  (void)told(reshard_sharder_create(r->comm, &options, &r->sharder));
}

/* The whole tensor; rank-local. */
static reshard_tensor make_whole(const fuzz_world *w, bool filled, unsigned char data[SIDE * SIDE]) {
  reshard_tensor whole = NULL;
  for (int64_t i = 0; i < w->shape[0] * w->shape[1]; i++)
    data[i] = filled ? element_value(i / w->shape[1], i % w->shape[1]) : POISON;
  (void)told(reshard_tensor_wrap(RESHARD_U8, 2, w->shape, NULL, data, NULL, NULL, &whole));
  return whole;
}

static void make_tensor(fuzz_rank *r, const uint8_t *a) {
  const reshard_properties properties = {.dtype = RESHARD_U8};
  unsigned char data[SIDE * SIDE];
  int64_t from = a[2] % RANKS;
  reshard_sharded_tensor made = NULL;
  reshard_tensor whole = reshard_comm_rank(r->comm) == from ? make_whole(r->world, true, data) : NULL;
  if (told(reshard_sharded_tensor_scatter(r->sharder, whole, from, r->world->layouts[a[1] % LAYOUTS], &properties, NULL,
                                          &made)))
    put_tensor(r, a[0] % SLOTS, made);
  reshard_tensor_release(whole);
}

static void reshard_tensors(fuzz_rank *r, const uint8_t *a) {
  reshard_sharded_tensor from = r->tensors[a[0] % SLOTS], made = NULL;
  reshard_layout layout = r->world->layouts[a[1] % LAYOUTS];
  if (a[3] % 2 == 0)
    (void)told(reshard_sharded_tensor_reshard(1, &from, &layout, NULL));
  else if (told(reshard_sharded_tensor_reshard_to(1, &from, &layout, NULL, &made)))
    put_tensor(r, a[2] % SLOTS, made);
}

static void gather(fuzz_rank *r, const uint8_t *a) {
  const fuzz_world *w = r->world;
  reshard_sharded_tensor tensor = r->tensors[a[0] % SLOTS];
  unsigned char data[SIDE * SIDE];
  int64_t to = a[1] % 3;
  bool all = a[2] % 2, mine = all || reshard_comm_rank(r->comm) == to;
  reshard_tensor whole = mine || a[3] % 8 == 0 ? make_whole(w, false, data) : NULL;
  bool done = told(all ? reshard_sharded_tensor_gather_all(tensor, whole, NULL)
                       : reshard_sharded_tensor_gather(tensor, to, whole, NULL));
  for (int64_t i = 0; i < w->shape[0] * w->shape[1] && done && mine; i++)
    fuzz_require(data[i] == element_value(i / w->shape[1], i % w->shape[1]));
  reshard_tensor_release(whole);
}

/* --- A run -------------------------------------------------------------------------------------------------------- */

static void (*const kinds[])(fuzz_rank *r, const uint8_t *a) = {
    meet,         split,       shrink,      end_comm,        ask_comm,        make_transfer, execute, execute,
    make_sharder, make_tensor, make_tensor, reshard_tensors, reshard_tensors, gather,        gather};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void run_rank(void *user, int64_t number) {
  fuzz_rank *r = ((fuzz_world *)user)->ranks[number];
  for (int i = 0; i < r->world->ncalls; i++) {
    const rank_call *call = &r->world->calls[number][i];
    if (call->kind < KINDS)
      kinds[call->kind](r, call->a);
  }
  drop_tensors(r);
  reshard_comm_destroy(r->sub);
}

/* Two ranks that end: what was given up is looked at when both have. */
static void run_world(fuzz_world *w, rank_pool *pool) {
  const reshard_local_options options = {.size = RESHARD_LOCAL_OPTIONS_INIT, .threads = 1, .timeout_ms = DEADLINE_MS};
  reshard_comm comms[RANKS] = {NULL};
  fuzz_require(reshard_comm_create_local(RANKS, &options, comms) == RESHARD_SUCCESS);
  for (int i = 0; i < RANKS; i++) {
    w->ranks[i] = calloc(1, sizeof *w->ranks[i]);
    fuzz_require(w->ranks[i] != NULL);
    w->ranks[i]->world = w;
    w->ranks[i]->comm = comms[i];
  }
  rank_pool_run(pool, RANKS, run_rank, w);
  for (int i = 0; i < RANKS; i++) {
    for (int t = 0; t < SLOTS; t++)
      transfer_end(&w->ranks[i]->transfers[t]);
    reshard_comm_destroy(comms[i]);
    free(w->ranks[i]);
  }
}

/* Both ranks' calls; a second byte of 192 and more lets one of them differ. */
static void draw_calls(fuzz_world *w, const uint8_t *data, size_t size) {
  enum { BYTES = 2 + ARGUMENTS };
  for (; w->ncalls < MOST_CALLS && size >= BYTES; data += BYTES, size -= BYTES, w->ncalls++) {
    rank_call call = {.kind = data[0] % KINDS};
    memcpy(call.a, data + 2, ARGUMENTS);
    for (int i = 0; i < RANKS; i++)
      w->calls[i][w->ncalls] = call;
    rank_call *odd = &w->calls[data[1] % RANKS][w->ncalls];
    int way = data[1] >= 192 ? data[1] / 2 % 8 : 8;
    if (way == 0)
      odd->kind = KINDS;
    else if (way == 1)
      odd->kind = (odd->kind + data[2]) % KINDS;
    else if (way < 6)
      odd->a[way - 2]++;
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const texts[] = {"chunk(0)",  "chunk(1)",        "flat()",     "rank(0)",     "rank(1)",
                                      "mesh(2;R)", "cyclic(2x1;2x3)", "mesh(2;S1)", "chunk(0;1,0)"};
  static rank_pool *pool;
  if (pool == NULL)
    pool = rank_pool_create();
  if (size < 2 + LAYOUTS)
    return 0;
  fuzz_world w = {.shape = {data[0] % SIDE + 1, data[1] % SIDE + 1}};
  for (int i = 0; i < LAYOUTS; i++) {
    int64_t shape[2] = {w.shape[0], i == LAYOUTS - 1 ? w.shape[1] % SIDE + 1 : w.shape[1]};
    fuzz_require(reshard_layout_parse(texts[data[2 + i] % (sizeof texts / sizeof *texts)], 2, shape, RANKS,
                                      &w.layouts[i]) == RESHARD_SUCCESS);
  }
  draw_calls(&w, data + 2 + LAYOUTS, size - 2 - LAYOUTS);
  run_world(&w, pool);
  for (int i = 0; i < LAYOUTS; i++)
    reshard_layout_release(w.layouts[i]);
  return 0;
}
