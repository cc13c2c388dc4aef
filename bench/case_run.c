/* Runs one case: every rank here is a thread. Plans are made and compared with the oracle's counts; then transfers are
 * made and executed, twice and more with other data, over one path or several, by the rank threads or by one thread for
 * all.
 *
 * No barrier stands between filling a source and executing, nor between an execute and checking the destination and
 * overwriting the source: exactly that order is execute's promise. On GPUs each rank has a stream, and the same holds
 * of it. */
#include "case_bind.h"
#include "case_check.h"
#include "case_comms.h"
#include "comm/comm.h"
#include "gpu.h"
#include "session.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct case_runner {
  case_fixed fixed;
  rank_pool *pool;
  case_comms *comms; /* local ones */
  session *remote;   /* what has the communicator, which is not a local one; else NULL */
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
  unsigned char *workspace; /* of the device */
  size_t workspace_bytes;
  int64_t wire;
  rs_device *device; /* of streams; NULL: the CPU */
  void *stream;
} rank_state;

typedef struct live {
  case_runner *runner;
  const case_plan *c;
  reshard_entry *entries;
  int64_t first, locals; /* ranks [first, first + locals) are here */
  reshard_comm *kept;    /* by the runner; NULL: it is not a local communicator */
  reshard_comm *comms;   /* [world], like the following; of the ranks here */
  rank_state *rank;
  reshard_transfer *transfers;
  gpu_graph *graph; /* of all executes of a pass with these arrays; NULL: not captured yet */
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
  session *s = fixed->session;
  runner->comms = case_comms_create(s != NULL ? s->devices : NULL, s != NULL ? s->ndevices : 0);
  runner->remote = s != NULL && s->comms != NULL ? s : NULL;
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

/* Meeting of all ranks, of all processes. */
static bool meet(live *l, int64_t rank, bool ok) {
  session *remote = l->runner->remote;
  if (remote == NULL || remote->processes.n == 1)
    return rank_pool_meet(l->runner->pool, ok);
  return session_meet(remote, rank - l->first, ok);
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

static reshard_status take_workspace(rank_state *s) {
  size_t bytes = (s->workspace_bytes + 2 * GUARD) & ~(size_t)(GUARD - 1);
  if (s->device != NULL) {
    RS_TRY(s->device->ops->alloc(s->device, bytes, (void **)&s->workspace));
    return s->device->ops->memset(s->device, s->workspace, 0x5a, bytes, s->stream);
  }
  s->workspace = aligned_alloc(256, bytes);
  if (s->workspace == NULL)
    cli_exit(EXIT_FAILED, "out of memory: %zu bytes refused", s->workspace_bytes);
  memset(s->workspace, 0x5a, bytes);
  return RESHARD_SUCCESS;
}

/* The first guard byte that was written to; -1: none. */
static int64_t check_workspace(rank_state *s) {
  unsigned char guard[GUARD / 2], *at = s->workspace + s->workspace_bytes;
  if (s->device == NULL) {
    memcpy(guard, at, sizeof guard);
  } else if (s->device->ops->memcpy(s->device, guard, at, sizeof guard, s->stream) != RESHARD_SUCCESS ||
             s->device->ops->synchronize(s->device, s->stream) != RESHARD_SUCCESS) {
    return 0;
  }
  for (size_t i = 0; i < sizeof guard; i++)
    if (guard[i] != 0x5a)
      return (int64_t)i;
  return -1;
}

static void drop_workspace(rank_state *s) {
  if (s->device != NULL)
    s->device->ops->free(s->device, s->workspace);
  else
    free(s->workspace);
  s->workspace = NULL;
}

static bool make_transfer(live *l, const pass *p, int64_t rank, const reshard_arrays *arrays) {
  rank_state *s = &l->rank[rank];
  reshard_plan plan = p->reverse ? s->back : s->plan;
  reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, p->path, NULL, 0};
  if (p->own_workspace) {
    reshard_plan_workspace(plan, &s->workspace_bytes);
    reshard_status taken = take_workspace(s);
    if (taken != RESHARD_SUCCESS)
      return failed_call(l, "taking a workspace", rank, taken);
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

/* What one thread does for all ranks here. */
static reshard_status execute_all(live *l, void *stream) {
  if (l->locals > 1 && l->comms[l->first]->locals == l->locals)
    return reshard_execute_all(l->locals, l->transfers + l->first, stream);
  return reshard_execute(l->transfers[l->first], stream); /* a rank of its own */
}

static reshard_status give(void *user, void *stream) { return execute_all(user, stream); }

/* The same, ended, from a graph where that is wanted. */
static reshard_status drive_all(live *l) {
  rank_state *s = &l->rank[l->first];
  if (!l->runner->fixed.graph) {
    RS_TRY(execute_all(l, s->stream));
  } else {
    if (l->graph == NULL)
      RS_TRY(gpu_capture(s->device, s->stream, give, l, &l->graph));
    RS_TRY(gpu_launch(s->device, l->graph, s->stream));
  }
  return s->device != NULL ? s->device->ops->synchronize(s->device, s->stream) : RESHARD_SUCCESS;
}

static void drop_graph(live *l, int64_t rank) {
  if (rank != l->first)
    return;
  gpu_graph_destroy(l->graph);
  l->graph = NULL;
}

static bool execute(live *l, const pass *p, int64_t rank) {
  reshard_status status;
  if (p->drive_all) {
    rank_pool_meet(l->runner->pool, true);
    if (rank == l->first) {
      l->all_status = drive_all(l);
      if (l->all_status != RESHARD_SUCCESS)
        failed_call(l, "reshard_execute_all", rank, l->all_status);
    }
    rank_pool_meet(l->runner->pool, true);
    status = l->all_status;
  } else {
    status = reshard_execute(l->rank[rank].transfer, l->rank[rank].stream);
    if (status != RESHARD_SUCCESS) {
      failed_call(l, "reshard_execute", rank, status);
      reshard_comm_abort(l->comms[rank]); /* the others must not wait for this rank */
    }
  }
  return status == RESHARD_SUCCESS;
}

/* My source may be overwritten once my stream is past the execute. */
static reshard_status spoil(rank_state *s) {
  if (s->device == NULL)
    return RESHARD_SUCCESS; /* memory of the host is spoilt after it was looked at */
  return s->device->ops->memset(s->device, s->src.memory, 0x77, (size_t)s->src.bytes, s->stream);
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
  reshard_status moved = p->reverse ? RESHARD_SUCCESS : case_move(&s->src, true, s->stream);
  moved = moved == RESHARD_SUCCESS ? case_move(&s->dst, true, s->stream) : moved;
  reshard_comm_get_stats(l->comms[rank], &before);
  if (!execute(l, p, rank)) {
    *right = false;
    return false;
  }
  reshard_comm_get_stats(l->comms[rank], &after);
  bool early =
      s->device != NULL && generation % 2 == 1; /* else the source is looked at, and nothing spoils it before */
  moved = moved == RESHARD_SUCCESS ? early ? spoil(s) : case_move(&s->src, false, s->stream) : moved;
  moved = moved == RESHARD_SUCCESS ? case_move(&s->dst, false, s->stream) : moved;
  if (moved != RESHARD_SUCCESS)
    *right = failed_call(l, "moving data to or from the GPU", rank, moved);
  cli_text why = {0};
  bool clean =
      case_check_memory(c, &s->dst, p->reverse ? FILL_REVERSED : FILL_DESTINATION, generation, rank, &why) &&
      (early || case_check_memory(c, &s->src, p->reverse ? FILL_DESTINATION : FILL_SOURCE, generation, rank, &why));
  if (clean && !p->reverse && !l->runner->fixed.graph && after.received_bytes - before.received_bytes != s->wire)
    cli_add(&why, "rank %lld: %lld bytes came over the wire, the lower bound is %lld", (long long)rank,
            (long long)(after.received_bytes - before.received_bytes), (long long)s->wire);
  if (!p->reverse)
    memset(s->src.arena, 0x77, (size_t)s->src.bytes);
  *right = passes_on(l, &why) && *right;
  return true;
}

static void finish_transfer(live *l, int64_t rank, bool *right) {
  rank_state *s = &l->rank[rank];
  meet(l, rank, true);
  drop_graph(l, rank);
  rank_pool_meet(l->runner->pool, true);
  reshard_transfer_destroy(s->transfer);
  s->transfer = NULL;
  if (s->workspace == NULL)
    return;
  int64_t written = check_workspace(s);
  if (written >= 0)
    *right = failed(l, "rank %lld: byte %lld after a workspace of %zu was written to", (long long)rank,
                    (long long)written, s->workspace_bytes);
  drop_workspace(s);
}

/* Arrays of a side, where the rank's are. */
static void bind(live *l, int64_t rank, bool source, int number, case_binding *b) {
  case_bind(l->c, rank, source, number, b);
  if (l->rank[rank].device != NULL)
    CLI_TRY("", case_bind_device(b, l->rank[rank].device));
}

/* Other addresses and strides. The old arrays may go at once: my execute on them has returned. */
static bool rebind(live *l, const pass *p, int64_t rank, int number) {
  rank_state *s = &l->rank[rank];
  case_binding src, dst;
  bind(l, rank, true, number, &src);
  bind(l, rank, false, number, &dst);
  drop_graph(l, rank);
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
  int binding = number * 4;
  bind(l, rank, true, binding, &s->src);
  bind(l, rank, false, binding, &s->dst);
  reshard_arrays arrays = arrays_of(&s->src, &s->dst, number % 2 == 0);
  bool right = make_transfer(l, p, rank, &arrays);
  if (!meet(l, rank, right)) {
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
  return meet(l, rank, right);
}

/* The reverse plan brings every source element of the region back from what a forward pass delivered. */
static bool run_reverse(live *l, const pass *p, int64_t rank, int number, int generation) {
  rank_state *s = &l->rank[rank];
  case_binding forward_dst = s->dst, forward_src = s->src;
  reshard_status status = reshard_plan_reverse(s->plan, &s->back);
  bool right = status == RESHARD_SUCCESS || failed_call(l, "reshard_plan_reverse", rank, status);
  bind(l, rank, true, number * 4 + 1, &s->dst); /* reversed: source buffers are written to */
  s->src = forward_dst;
  if (meet(l, rank, right)) {
    reshard_arrays arrays = arrays_of(&s->src, &s->dst, true);
    right = make_transfer(l, p, rank, &arrays);
    if (meet(l, rank, right))
      turn(l, p, rank, generation, &right);
    finish_transfer(l, rank, &right);
  }
  reshard_plan_destroy(s->back);
  s->back = NULL;
  case_unbind(&s->dst);
  s->dst = forward_dst;
  s->src = forward_src;
  return meet(l, rank, right);
}

/* The stream of a rank on a GPU. */
static bool take_stream(live *l, int64_t rank) {
  rank_state *s = &l->rank[rank];
  const session *given = l->runner->fixed.session;
  rs_device *device = given != NULL ? session_device(given, rank - l->first) : NULL;
  if (device == NULL || !device->ops->streams)
    return true;
  s->device = device;
  reshard_status status = device->ops->stream_create(device, &s->stream);
  return status == RESHARD_SUCCESS || failed_call(l, "making a stream", rank, status);
}

static void rank_body(void *user, int64_t local) {
  live *l = user;
  int64_t rank = l->first + local;
  rank_state *s = &l->rank[rank];
  bool right = meet(l, rank, take_stream(l, rank) && make_plan(l, rank));
  if (right) /* with plans of all ranks here */
    right = meet(l, rank, local != 0 || l->locals < l->c->world || check_world(l));
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
  if (!right)
    failed(l, "another process found it wrong");
  case_unbind(&s->src);
  case_unbind(&s->dst);
  reshard_plan_destroy(s->plan);
  if (s->device != NULL)
    s->device->ops->stream_destroy(s->device, s->stream);
}

/* One thread for all ranks here: for a graph always, else where these are one group, now and then. */
static bool drives_all(rng *r, const live *l) {
  bool drawn = rng_one_in(r, 2);
  return l->runner->fixed.graph || (drawn && l->comms[l->first]->locals == l->locals);
}

static void draw_passes(rng *r, live *l) {
  static const reshard_path paths[] = {RESHARD_PATH_DIRECT, RESHARD_PATH_PACKED, RESHARD_PATH_AUTO};
  reshard_path fixed = l->runner->fixed.path;
  int first = (int)rng_below(r, 3), n = rng_one_in(r, 2) ? 1 : 2;
  for (int i = 0; i < n; i++) {
    pass *p = &l->passes[l->npasses++];
    *p = (pass){.path = fixed != RESHARD_PATH_AUTO ? fixed : paths[(first + i) % 3]};
    p->drive_all = drives_all(r, l);
    p->own_workspace = p->path != RESHARD_PATH_DIRECT && rng_one_in(r, 3);
    p->executes = rng_one_in(r, 4) ? 3 : 2;
    p->rebind = (unsigned)rng_below(r, 4) << 1;
  }
  if (l->c->reversible && rng_one_in(r, 4)) {
    pass *p = &l->passes[l->npasses++];
    *p = (pass){.path = fixed != RESHARD_PATH_AUTO ? fixed : paths[rng_below(r, 3)], .reverse = true, .executes = 1};
    p->drive_all = drives_all(r, l);
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

/* The communicator of a case, and which of its ranks are here. */
static bool take_comms(live *l, rng *r) {
  case_runner *runner = l->runner;
  const session *remote = runner->remote;
  l->comms = cli_alloc(l->c->world, sizeof(reshard_comm));
  reshard_isa isa = (reshard_isa)rng_below(r, RESHARD_ISA_COUNT);
  int threads = rng_one_in(r, 4) ? (int)rng_in(r, 2, 3) : 1;
  threads = runner->fixed.threads > 0 ? runner->fixed.threads : threads;
  l->first = remote != NULL ? remote->first : 0;
  l->locals = remote != NULL ? remote->locals : l->c->world;
  reshard_comm *comms = remote != NULL ? remote->comms
                                       : case_comms_get(runner->comms, l->c->world, threads,
                                                        reshard_isa_available(isa) ? isa : RESHARD_ISA_AUTO, &l->why);
  for (int64_t i = 0; comms != NULL && i < l->locals; i++)
    l->comms[l->first + i] = comms[i];
  l->kept = remote == NULL ? comms : NULL;
  return comms != NULL;
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
  if (take_comms(&l, &r)) {
    pthread_mutex_init(&l.lock, NULL);
    l.entries = case_entries(&c);
    l.rank = cli_alloc(c.world, sizeof *l.rank);
    l.transfers = cli_alloc(c.world, sizeof(reshard_transfer));
    draw_passes(&r, &l);
    rank_pool_run(runner->pool, l.locals, rank_body, &l);
    add_totals(&l, totals);
    if (l.why.length > 0 && l.kept != NULL)
      case_comms_drop(runner->comms, l.kept); /* a rank may have given up in the middle of a collective call */
    free(l.entries);
    free(l.rank);
    free(l.transfers);
    pthread_mutex_destroy(&l.lock);
  }
  free(l.comms);
  bool right = l.why.length == 0;
  if (!right)
    add_description(&c, &l.why);
  case_free(&c);
  *why = l.why.at;
  return right;
}
