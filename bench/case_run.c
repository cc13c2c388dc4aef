/* Runs one case: every rank is a thread. Plans are made and compared with the oracle's counts; then transfers are made
 * and executed, twice and more with other data, over one path or several, by the rank threads or by one thread for all.
 *
 * No barrier stands between filling a source and executing, nor between an execute and checking the destination and
 * overwriting the source: exactly that order is execute's promise. */
#include "case_bind.h"
#include "case_check.h"
#include "case_comms.h"
#include "ranks.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct case_runner {
  case_fixed fixed;
  rank_pool *pool;
  case_comms *comms;
};

/* One transfer and how it is used. */
typedef struct pass {
  reshard_path path;
  bool drive_all; /* one thread executes for all ranks */
  bool own_workspace;
  bool reverse; /* of the reverse plans, from what the pass before delivered */
  int executes;
  unsigned rebind; /* bit k: other arrays before execute k */
} pass;

typedef struct rank_state {
  reshard_plan plan, back;
  reshard_plan_info info;
  reshard_transfer transfer;
  case_binding src, dst;
  unsigned char *workspace;
  size_t workspace_bytes;
  int64_t wire;
} rank_state;

typedef struct live {
  case_runner *runner;
  const case_plan *c;
  reshard_entry *entries;
  reshard_comm *comms;
  rank_state *rank;
  reshard_transfer *transfers;
  reshard_status all_status;
  int npasses;
  pass passes[4];
  pthread_mutex_t lock;
  cli_text why;
} live;

case_runner *case_runner_create(const case_fixed *fixed) {
  case_runner *runner = cli_alloc(1, sizeof *runner);
  runner->fixed = *fixed;
  runner->pool = rank_pool_create();
  runner->comms = case_comms_create();
  return runner;
}

void case_runner_destroy(case_runner *runner) {
  if (runner == NULL)
    return;
  case_comms_free(runner->comms);
  rank_pool_destroy(runner->pool);
  free(runner);
}

/* Records the first failure of a case; returns false. */
static bool failed(live *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool failed(live *l, const char *format, ...) {
  char text[1500];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  pthread_mutex_lock(&l->lock);
  if (l->why.length == 0)
    cli_add(&l->why, "%s", text);
  pthread_mutex_unlock(&l->lock);
  return false;
}

static bool failed_call(live *l, const char *call, int64_t rank, reshard_status status) {
  return failed(l, "rank %lld: %s: %s: %s", (long long)rank, call, reshard_status_string(status), reshard_last_error());
}

static bool passes_on(live *l, cli_text *why) {
  bool right = why->length == 0 || failed(l, "%s", why->at);
  free(why->at);
  return right;
}

static bool make_plan(live *l, int64_t rank) {
  const case_plan *c = l->c;
  rank_state *s = &l->rank[rank];
  reshard_status status;
  if (c->least_limit > 0 && c->world > 1 && c->nentries > 0 && c->seed % 8 == 0) {
    reshard_plan_options small = c->options;
    small.workspace_limit = c->least_limit - 1;
    status = reshard_plan_create(c->nentries, l->entries, rank, &small, &s->plan);
    if (status == RESHARD_SUCCESS) {
      reshard_plan_destroy(s->plan);
      s->plan = NULL;
    }
    if (status != RESHARD_ERROR_INVALID)
      return failed(l, "rank %lld: a limit of %lld bytes, one below the least, gives %s", (long long)rank,
                    (long long)small.workspace_limit, reshard_status_string(status));
  }
  status = reshard_plan_create(c->nentries, l->entries, rank, &c->options, &s->plan);
  if (status != RESHARD_SUCCESS)
    return failed_call(l, "reshard_plan_create", rank, status);
  reshard_plan_get_info(s->plan, &s->info);
  s->wire = c->counts.lacked[rank];
  cli_text why = {0};
  case_check_plan(c, rank, s->plan, &s->info, &why);
  return passes_on(l, &why);
}

static bool check_world(live *l) {
  const int64_t n = l->c->world;
  reshard_plan *plans = cli_alloc(n, sizeof *plans);
  for (int64_t r = 0; r < n; r++)
    plans[r] = l->rank[r].plan;
  cli_text why = {0};
  case_check_world(l->c, plans, &why);
  free(plans);
  return passes_on(l, &why);
}

static reshard_arrays arrays_of(const case_binding *src, const case_binding *dst, bool lengths) {
  return (reshard_arrays){.size = RESHARD_ARRAYS_INIT,
                          .src = src->pointer,
                          .dst = dst->pointer,
                          .src_strides = src->stride_list,
                          .dst_strides = dst->stride_list,
                          .nsrc = lengths ? src->n : 0,
                          .ndst = lengths ? dst->n : 0};
}

/* Guard bytes follow a workspace that the caller owns. */
#define GUARD 256

static bool make_transfer(live *l, const pass *p, int64_t rank, const reshard_arrays *arrays) {
  rank_state *s = &l->rank[rank];
  reshard_plan plan = p->reverse ? s->back : s->plan;
  reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = p->path};
  if (p->own_workspace) {
    reshard_plan_workspace(plan, &s->workspace_bytes);
    s->workspace = aligned_alloc(256, (s->workspace_bytes + 2 * GUARD) & ~(size_t)(GUARD - 1));
    if (s->workspace == NULL)
      cli_exit(EXIT_FAILED, "out of memory: %zu bytes refused", s->workspace_bytes);
    memset(s->workspace + s->workspace_bytes, 0x5a,
           ((s->workspace_bytes + 2 * GUARD) & ~(size_t)(GUARD - 1)) - s->workspace_bytes);
    options.workspace = s->workspace_bytes > 0 ? s->workspace : NULL;
    options.workspace_bytes = s->workspace_bytes;
  }
  reshard_status status = reshard_transfer_create(plan, l->comms[rank], arrays, &options, &s->transfer);
  if (status != RESHARD_SUCCESS)
    return failed_call(l, "reshard_transfer_create", rank, status);
  l->transfers[rank] = s->transfer;
  reshard_transfer_info info;
  status = reshard_transfer_get_info(s->transfer, &info);
  if (status != RESHARD_SUCCESS)
    return failed_call(l, "reshard_transfer_get_info", rank, status);
  if (info.path == RESHARD_PATH_AUTO || (p->path != RESHARD_PATH_AUTO && info.path != p->path))
    return failed(l, "rank %lld: asked for path %d, the transfer took %d", (long long)rank, p->path, info.path);
  if (l->c->options.workspace_limit > 0 && (int64_t)info.workspace_bytes > l->c->options.workspace_limit)
    return failed(l, "rank %lld: %zu bytes of staging, the limit is %lld", (long long)rank, info.workspace_bytes,
                  (long long)l->c->options.workspace_limit);
  return true;
}

static bool execute(live *l, const pass *p, int64_t rank) {
  reshard_status status;
  if (p->drive_all) {
    rank_pool_meet(l->runner->pool, true);
    if (rank == 0) {
      l->all_status = reshard_execute_all(l->c->world, l->transfers, NULL);
      if (l->all_status != RESHARD_SUCCESS)
        failed_call(l, "reshard_execute_all", 0, l->all_status);
    }
    rank_pool_meet(l->runner->pool, true);
    status = l->all_status;
  } else {
    status = reshard_execute(l->rank[rank].transfer, NULL);
    if (status != RESHARD_SUCCESS) {
      failed_call(l, "reshard_execute", rank, status);
      reshard_comm_abort(l->comms[rank]); /* the others must not wait for this rank */
    }
  }
  return status == RESHARD_SUCCESS;
}

/* One execute with data of a generation: fill, execute, check, spoil the source. Wrong data clears *right; false is for
 * an execute that failed, after which no other can follow. */
static bool turn(live *l, const pass *p, int64_t rank, int generation, bool *right) {
  rank_state *s = &l->rank[rank];
  const case_plan *c = l->c;
  reshard_comm_stats before = {0, 0}, after = {0, 0};
  if (!p->reverse)
    case_fill_memory(c, &s->src, FILL_SOURCE, generation);
  case_fill_memory(c, &s->dst, p->reverse ? FILL_REVERSED : FILL_DESTINATION, generation);
  reshard_comm_get_stats(l->comms[rank], &before);
  if (!execute(l, p, rank)) {
    *right = false;
    return false;
  }
  reshard_comm_get_stats(l->comms[rank], &after);
  cli_text why = {0};
  bool clean = case_check_memory(c, &s->dst, p->reverse ? FILL_REVERSED : FILL_DESTINATION, generation, rank, &why) &&
               case_check_memory(c, &s->src, p->reverse ? FILL_DESTINATION : FILL_SOURCE, generation, rank, &why);
  if (clean && !p->reverse && after.received_bytes - before.received_bytes != s->wire)
    cli_add(&why, "rank %lld: %lld bytes came over the wire, the lower bound is %lld", (long long)rank,
            (long long)(after.received_bytes - before.received_bytes), (long long)s->wire);
  if (!p->reverse)
    memset(s->src.arena, 0x77, (size_t)s->src.bytes);
  *right = passes_on(l, &why) && *right;
  return true;
}

static void finish_transfer(live *l, int64_t rank, bool *right) {
  rank_state *s = &l->rank[rank];
  rank_pool_meet(l->runner->pool, true);
  reshard_transfer_destroy(s->transfer);
  s->transfer = NULL;
  for (size_t i = 0; s->workspace != NULL && i < GUARD / 2; i++)
    if (s->workspace[s->workspace_bytes + i] != 0x5a) {
      *right = failed(l, "rank %lld: byte %zu after a workspace of %zu was written to", (long long)rank, i,
                      s->workspace_bytes);
      break;
    }
  free(s->workspace);
  s->workspace = NULL;
}

/* Other addresses and strides. The old arrays may go at once: my execute on them has returned. */
static bool rebind(live *l, const pass *p, int64_t rank, int number) {
  rank_state *s = &l->rank[rank];
  case_binding src, dst;
  case_bind(l->c, rank, true, number, &src);
  case_bind(l->c, rank, false, number, &dst);
  reshard_arrays arrays = arrays_of(&src, &dst, true);
  reshard_status status = reshard_transfer_rebind(s->transfer, &arrays);
  case_unbind(&s->src);
  case_unbind(&s->dst);
  s->src = src;
  s->dst = dst;
  if (status != RESHARD_SUCCESS) {
    failed_call(l, "reshard_transfer_rebind", rank, status);
    reshard_comm_abort(l->comms[rank]);
  }
  return p->drive_all ? rank_pool_meet(l->runner->pool, status == RESHARD_SUCCESS) : status == RESHARD_SUCCESS;
}

/* A pass, on one rank. generation counts on, so that no data comes twice. */
static bool run_pass(live *l, const pass *p, int64_t rank, int number, int *generation) {
  rank_state *s = &l->rank[rank];
  const case_plan *c = l->c;
  int binding = number * 4;
  case_bind(c, rank, true, binding, &s->src);
  case_bind(c, rank, false, binding, &s->dst);
  reshard_arrays arrays = arrays_of(&s->src, &s->dst, number % 2 == 0);
  bool right = make_transfer(l, p, rank, &arrays);
  if (!rank_pool_meet(l->runner->pool, right)) {
    finish_transfer(l, rank, &right);
    return false;
  }
  for (int k = 0; k < p->executes; k++) {
    if ((p->rebind >> k & 1) && !rebind(l, p, rank, binding + k))
      break;
    if (!turn(l, p, rank, ++*generation, &right))
      break;
  }
  finish_transfer(l, rank, &right);
  return rank_pool_meet(l->runner->pool, right);
}

/* The reverse plan brings every source element of the region back from what a forward pass delivered. */
static bool run_reverse(live *l, const pass *p, int64_t rank, int number, int generation) {
  rank_state *s = &l->rank[rank];
  case_binding forward_dst = s->dst, forward_src = s->src;
  reshard_status status = reshard_plan_reverse(s->plan, &s->back);
  bool right = status == RESHARD_SUCCESS || failed_call(l, "reshard_plan_reverse", rank, status);
  case_bind(l->c, rank, true, number * 4 + 1, &s->dst); /* reversed: source buffers are written to */
  s->src = forward_dst;
  if (rank_pool_meet(l->runner->pool, right)) {
    reshard_arrays arrays = arrays_of(&s->src, &s->dst, true);
    right = make_transfer(l, p, rank, &arrays);
    if (rank_pool_meet(l->runner->pool, right))
      turn(l, p, rank, generation, &right);
    finish_transfer(l, rank, &right);
  }
  reshard_plan_destroy(s->back);
  s->back = NULL;
  case_unbind(&s->dst);
  s->dst = forward_dst;
  s->src = forward_src;
  return rank_pool_meet(l->runner->pool, right);
}

static void rank_body(void *user, int64_t rank) {
  live *l = user;
  rank_state *s = &l->rank[rank];
  bool right = rank_pool_meet(l->runner->pool, make_plan(l, rank));
  if (right)
    right = rank_pool_meet(l->runner->pool, rank != 0 || check_world(l));
  int generation = 0;
  for (int i = 0; i < l->npasses && right; i++) {
    if (l->passes[i].reverse)
      right = run_reverse(l, &l->passes[i], rank, i, generation);
    else {
      case_unbind(&s->src);
      case_unbind(&s->dst);
      right = run_pass(l, &l->passes[i], rank, i, &generation);
    }
  }
  case_unbind(&s->src);
  case_unbind(&s->dst);
  reshard_plan_destroy(s->plan);
}

static void draw_passes(rng *r, live *l) {
  static const reshard_path paths[] = {RESHARD_PATH_DIRECT, RESHARD_PATH_PACKED, RESHARD_PATH_AUTO};
  reshard_path fixed = l->runner->fixed.path;
  int first = (int)rng_below(r, 3), n = rng_one_in(r, 2) ? 1 : 2;
  for (int i = 0; i < n; i++) {
    pass *p = &l->passes[l->npasses++];
    *p = (pass){.path = fixed != RESHARD_PATH_AUTO ? fixed : paths[(first + i) % 3]};
    p->drive_all = rng_one_in(r, 2);
    p->own_workspace = p->path != RESHARD_PATH_DIRECT && rng_one_in(r, 3);
    p->executes = rng_one_in(r, 4) ? 3 : 2;
    p->rebind = (unsigned)rng_below(r, 4) << 1;
  }
  if (l->c->reversible && rng_one_in(r, 4)) {
    pass *p = &l->passes[l->npasses++];
    *p = (pass){.path = fixed != RESHARD_PATH_AUTO ? fixed : paths[rng_below(r, 3)], .reverse = true, .executes = 1};
    p->drive_all = rng_one_in(r, 2);
  }
}

static void add_totals(const live *l, case_totals *totals) {
  bool seen[RESHARD_LAYOUT_KIND_COUNT][RESHARD_LAYOUT_KIND_COUNT] = {{false}};
  for (int64_t i = 0; i < l->c->nentries; i++)
    seen[l->c->entry[i].src.what.kind][l->c->entry[i].dst.what.kind] = true;
  for (int a = 0; a < RESHARD_LAYOUT_KIND_COUNT; a++)
    for (int b = 0; b < RESHARD_LAYOUT_KIND_COUNT; b++)
      totals->pairs[a][b] += seen[a][b];
  totals->cases++;
  totals->entries += l->c->nentries;
  totals->bytes += l->c->bytes;
  for (int i = 0; i < l->npasses; i++) {
    totals->executes += l->passes[i].executes;
    totals->reversed += l->passes[i].reverse;
  }
  for (int64_t r = 0; r < l->c->world; r++)
    totals->wire_bytes += l->c->counts.lacked[r];
}

static void add_description(const case_plan *c, cli_text *why) {
  cli_add(why, "%s  world %lld, limit %lld, peers per round %lld%s", why->length > 0 ? "\n" : "", (long long)c->world,
          (long long)c->options.workspace_limit, (long long)c->options.peers_per_round,
          c->options.nodes != NULL ? ", node map" : "");
  for (int64_t i = 0; i < c->nentries; i++)
    case_describe_entry(&c->entry[i], i, why);
}

bool case_run(case_runner *runner, uint64_t seed, case_totals *totals, char **why) {
  case_plan c;
  live l = {.runner = runner, .c = &c};
  *why = NULL;
  if (runner->fixed.describe) {
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout); /* before anything can crash */
  }
  if (!case_make(seed, &runner->fixed, &c, &l.why)) {
    *why = l.why.at;
    return false;
  }
  if (runner->fixed.describe) {
    cli_text text = {0};
    add_description(&c, &text);
    printf("%s\n", text.at);
    fflush(stdout);
    free(text.at);
  }
  rng r;
  rng_seed(&r, seed ^ 0x72756e);
  reshard_isa isa = (reshard_isa)rng_below(&r, RESHARD_ISA_COUNT);
  int threads = rng_one_in(&r, 4) ? (int)rng_in(&r, 2, 3) : 1;
  threads = runner->fixed.threads > 0 ? runner->fixed.threads : threads;
  l.comms =
      case_comms_get(runner->comms, c.world, threads, reshard_isa_available(isa) ? isa : RESHARD_ISA_AUTO, &l.why);
  if (l.comms != NULL) {
    pthread_mutex_init(&l.lock, NULL);
    l.entries = case_entries(&c);
    l.rank = cli_alloc(c.world, sizeof *l.rank);
    l.transfers = cli_alloc(c.world, sizeof *l.transfers);
    draw_passes(&r, &l);
    rank_pool_run(runner->pool, c.world, rank_body, &l);
    add_totals(&l, totals);
    if (l.why.length > 0)
      case_comms_drop(runner->comms, l.comms); /* a rank may have given up in the middle of a collective call */
    free(l.entries);
    free(l.rank);
    free(l.transfers);
    pthread_mutex_destroy(&l.lock);
  }
  bool right = l.why.length == 0;
  if (!right)
    add_description(&c, &l.why);
  case_free(&c);
  *why = l.why.at;
  return right;
}
