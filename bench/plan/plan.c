/* Plans every rank of a world without data, and sums the plans up.
 *
 * Plans that fit in memory are made together, which finds each intersection once. Of larger worlds a few threads plan
 * the ranks one after the other and keep sums alone. So 16,384 ranks need the memory of a few plans. Ranks that need
 * fewer rounds than others have other messages in as many: their plans are kept until that is known, where they are
 * small, and else made again. */
#include "bench/plan/plan.h"

#include "bench/cli/machine.h"
#include "bench/cli/topology.h"
#include "bench/plan/links.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT = 256 << 20 }; /* bytes of plans that are kept */

typedef struct planner {
  const cli_options *o;
  const workload *w;
  reshard_entry *entries;
  pthread_mutex_t lock;
  int64_t next, end;
  int64_t rounds;     /* that all ranks take; 0: as many as each needs, and not known yet */
  int64_t streams;    /* the most of a rank; 0: not known yet, or nothing is passed on */
  bool together;      /* all plans fit in memory */
  reshard_plan *kept; /* [out->n] or NULL */
  int64_t kept_bytes;
  world_plan *out;
  bool keep_peers;
  reshard_topology topology; /* domain NULL: none */
} planner;

/* Counts each byte at its sender; where one rank alone is planned, also what it receives. */
static void add_heat(world_plan *out, reshard_plan plan, const reshard_plan_info *info, bool alone) {
  int64_t me = info->rank / out->per_bin;
  if (out->per_bin == 1)
    out->heat[me * out->bins + me] += info->self_copy_bytes;
  for (int64_t i = 0; i < info->peers; i++) {
    int64_t rank, sent, received;
    CLI_TRY("", reshard_plan_peer(plan, i, &rank, &sent, &received));
    out->heat[me * out->bins + rank / out->per_bin] += sent;
    if (alone)
      out->heat[rank / out->per_bin * out->bins + me] += received;
  }
}

/* Takes the plan. */
static void record_rank(planner *p, reshard_plan plan, int64_t rank) {
  rank_plan *r = &p->out->rank[rank - p->out->first];
  CLI_TRY("", reshard_plan_get_info(plan, &r->info));
  r->needed = r->info.rounds;
  if (p->out->n <= PLAN_PATTERNS)
    CLI_TRY("", reshard_plan_get_pattern(plan, &r->pattern));
  if (p->keep_peers) {
    r->peer = cli_alloc(r->info.peers, sizeof *r->peer);
    for (int64_t i = 0; i < r->info.peers; i++)
      CLI_TRY("", reshard_plan_peer(plan, i, &r->peer[i].rank, &r->peer[i].sent, &r->peer[i].received));
  }
  pthread_mutex_lock(&p->lock);
  if (p->out->heat != NULL)
    add_heat(p->out, plan, &r->info, p->end - p->out->first == 1);
  p->out->rounds = rs_max(p->out->rounds, r->info.rounds);
  p->out->least_rounds = rs_max(p->out->least_rounds, r->info.least_rounds);
  bool keep = p->together || (p->end - p->out->first > 1 && p->kept_bytes + r->info.memory_bytes <= KEPT);
  p->kept_bytes += keep ? r->info.memory_bytes : 0;
  pthread_mutex_unlock(&p->lock);
  p->kept[rank - p->out->first] = keep ? plan : NULL;
  if (!keep)
    reshard_plan_destroy(plan);
}

static reshard_plan_options options_of(const planner *p) {
  bool direct = p->o->path == RESHARD_PATH_DIRECT; /* nothing is staged */
  return (reshard_plan_options){.size = RESHARD_PLAN_OPTIONS_INIT,
                                .workspace_limit = direct ? RESHARD_NO_LIMIT : p->o->workspace,
                                .on_cpu = !direct && p->o->device != NULL && strcmp(p->o->device, "cpu") == 0,
                                .topology = p->topology.domain != NULL ? &p->topology : NULL};
}

/* The plan of a rank; one that cannot be made ends the program. */
static reshard_plan make_plan(planner *p, int64_t rank) {
  const reshard_plan_options options = options_of(p);
  reshard_plan plan;
  reshard_status status = reshard_plan_create(p->w->n, p->entries, rank, &options, &plan);
  if (status != RESHARD_SUCCESS) {
    pthread_mutex_lock(&p->lock); /* one thread ends the program */
    cli_fail(status, "%s", reshard_last_error());
  }
  return plan;
}

/* Brings the info of a rank to the rounds of all. */
static void agree_rank(planner *p, int64_t rank) {
  reshard_plan_info *info = &p->out->rank[rank - p->out->first].info;
  reshard_plan plan = p->kept[rank - p->out->first];
  int64_t took = info->plan_ns;
  if (info->peers > 0 && (info->rounds < p->rounds || info->streams < p->streams)) {
    plan = plan != NULL ? plan : make_plan(p, rank);
    CLI_TRY("", reshard_plan_get_info_at(plan, p->rounds, p->streams, info));
    info->plan_ns = took;
  }
  reshard_plan_destroy(plan);
}

/* Finds the rounds that a rank needs where all have the pieces of messages that the one with most streams has. */
static void need_rounds(planner *p, int64_t rank) {
  rank_plan *r = &p->out->rank[rank - p->out->first];
  reshard_plan kept = p->kept[rank - p->out->first], plan = kept != NULL ? kept : make_plan(p, rank);
  reshard_plan_info info;
  CLI_TRY("", reshard_plan_get_info_at(plan, 0, p->streams, &info));
  r->needed = info.rounds;
  pthread_mutex_lock(&p->lock);
  p->out->rounds = rs_max(p->out->rounds, info.rounds);
  pthread_mutex_unlock(&p->lock);
  if (kept == NULL)
    reshard_plan_destroy(plan);
}

static void *plan_ranks(void *user) {
  planner *p = user;
  for (;;) {
    pthread_mutex_lock(&p->lock);
    int64_t rank = p->next++;
    if (rank < p->end && p->end - p->out->first > 1)
      cli_progress("plan: rank %lld of %lld", (long long)rank, (long long)p->end);
    pthread_mutex_unlock(&p->lock);
    if (rank >= p->end)
      return NULL;
    if (p->rounds > 0)
      agree_rank(p, rank);
    else if (p->streams > 0)
      need_rounds(p, rank);
    else
      record_rank(p, make_plan(p, rank), rank);
  }
}

/* Bytes that the plans of all ranks take, from two of them. */
static int64_t guess_memory(const planner *p, const reshard_plan_options *options) {
  int64_t world = p->w->world, ranks[2] = {world / 3, world - 1 - world / 3}, bytes = 0;
  reshard_plan plans[2];
  CLI_TRY("", reshard_plan_create_all(p->w->n, p->entries, 2, ranks, options, plans));
  for (int i = 0; i < 2; i++) {
    reshard_plan_info info;
    CLI_TRY("", reshard_plan_get_info(plans[i], &info));
    bytes += info.memory_bytes / 2;
    reshard_plan_destroy(plans[i]);
  }
  return bytes < INT64_MAX / world ? bytes * world : INT64_MAX;
}

/* Plans all ranks in one call; false where their plans may not fit. */
static bool plan_together(planner *p) {
  int64_t n = p->out->n;
  reshard_plan_options options = options_of(p);
  if (p->w->n == 0 || n < p->w->world || n < 3 || guess_memory(p, &options) > machine_available() / 4)
    return false;
  reshard_plan *plans = cli_alloc(n, sizeof(reshard_plan));
  CLI_TRY("", reshard_plan_create_all(p->w->n, p->entries, n, NULL, &options, plans));
  p->together = true;
  for (int64_t r = 0; r < n; r++)
    record_rank(p, plans[r], r);
  free(plans);
  return true;
}

static void sum_ranks(const cli_options *o, const workload *w, world_plan *out) {
  bool direct = o->path == RESHARD_PATH_DIRECT;
  out->ranks = w->world;
  out->tensors = w->n;
  out->bytes = out->n > 0 ? out->rank[0].info.bytes : w->bytes; /* as they travel */
  out->path = direct ? "direct" : "packed";
  out->stages = 1;
  out->odd = -1;
  for (int64_t i = 0; i < out->n; i++) {
    reshard_plan_info *info = &out->rank[i].info;
    if (direct) { /* peers' memory is copied from as it is */
      info->workspace_bytes = info->packs_skipped = info->unpacks_skipped = 0;
      info->workspace_limit = info->staged_bytes = 0;
    }
    out->wire += info->received_bytes;
    out->bound += info->lower_bound_bytes;
    out->kept += info->self_copy_bytes;
    out->messages += info->messages_sent;
    out->max_sent = rs_max(out->max_sent, info->sent_bytes);
    out->max_received = rs_max(out->max_received, info->received_bytes);
    out->workspace = rs_max(out->workspace, info->workspace_bytes);
    out->limit = info->workspace_limit; /* all have the same */
    out->busiest_bound = rs_max(out->busiest_bound, rs_max(info->lower_bound_bytes, info->exclusive_bytes));
    out->stages = rs_max(out->stages, info->stages);
    const reshard_pattern *x = &out->rank[0].pattern, *y = &out->rank[i].pattern;
    if (out->odd < 0 &&
        (y->kind == RESHARD_COLLECTIVE_NONE || y->kind != x->kind || y->root != x->root || y->bytes != x->bytes))
      out->odd = i;
  }
  out->busiest = rs_max(out->max_sent, out->max_received);
}

/* The rounds with a limit of twice the size, as the rank that needs most has them; 0: there is no limit. */
static int64_t rounds_twice(planner *p) {
  const rank_plan *most = &p->out->rank[0];
  for (int64_t i = 1; i < p->out->n; i++)
    most = p->out->rank[i].needed > most->needed ? &p->out->rank[i] : most;
  reshard_plan_options options = options_of(p);
  int64_t limit = most->info.workspace_limit;
  reshard_plan_info info;
  reshard_plan plan;
  if (limit <= 0 || limit > INT64_MAX / 2)
    return 0;
  options.workspace_limit = 2 * limit;
  CLI_TRY("", reshard_plan_create(p->w->n, p->entries, most->info.rank, &options, &plan));
  CLI_TRY("", reshard_plan_get_info(plan, &info));
  reshard_plan_destroy(plan);
  return info.rounds;
}

/* Keeps what converts, which all ranks' plans tell alike. */
static void find_conversions(planner *p) {
  bool converts = false;
  for (int64_t t = 0; t < p->w->n; t++)
    converts = converts || p->w->tensor[t].dtype != p->w->tensor[t].dst_dtype;
  if (!converts)
    return;
  p->out->converting = make_plan(p, p->out->first);
  CLI_TRY("", rs_plan_conversions(p->out->converting, &p->out->conversions, &p->out->nconversions));
}

void plan_world(const cli_options *o, const workload *w, bool keep_peers, bool heat, world_plan *out) {
  *out = (world_plan){.first = o->rank >= 0 ? o->rank : 0, .n = o->rank >= 0 ? 1 : w->world};
  out->rank = cli_alloc(out->n, sizeof *out->rank);
  if (heat) {
    out->per_bin = (w->world + PLAN_BINS - 1) / PLAN_BINS;
    out->bins = (w->world + out->per_bin - 1) / out->per_bin;
    out->heat = cli_alloc(out->bins * out->bins, sizeof *out->heat);
  }
  planner p = {.o = o,
               .w = w,
               .entries = workload_entries(w),
               .lock = PTHREAD_MUTEX_INITIALIZER,
               .next = out->first,
               .end = out->first + out->n,
               .out = out,
               .kept = cli_alloc(out->n, sizeof(reshard_plan)),
               .keep_peers = keep_peers};
  if (o->topology != NULL)
    cli_read_topology(o->topology, w->world, &p.topology);
  int64_t threads = o->threads > 0 ? o->threads : cli_cores();
  double begin = rs_seconds();
  if (!plan_together(&p))
    cli_run_threads(threads < out->n ? threads : out->n, plan_ranks, &p);
  out->seconds = rs_seconds() - begin;
  for (int64_t i = 0; i < out->n && out->n > 1; i++)
    p.streams = rs_max(p.streams, out->rank[i].info.streams);
  if (p.streams > 0) {
    p.next = out->first;
    cli_run_threads(threads < out->n ? threads : out->n, plan_ranks, &p);
  }
  if (out->n > 1) { /* as many for those that need fewer */
    p.next = out->first;
    p.rounds = rs_max(out->rounds, 1);
    cli_run_threads(threads < out->n ? threads : out->n, plan_ranks, &p);
  }
  cli_progress_clear();
  sum_ranks(o, w, out);
  find_conversions(&p);
  out->topology = p.topology;
  if (p.topology.domain != NULL && o->rank < 0 && w->n > 0)
    out->links = link_counts_make(out, &p.topology, rounds_twice(&p));
  free(p.kept);
  free(p.entries);
}

void plan_free(world_plan *plan) {
  for (int64_t i = 0; i < plan->n; i++)
    free(plan->rank[i].peer);
  free(plan->rank);
  free(plan->heat);
  free(plan->conversions);
  reshard_plan_destroy(plan->converting);
  free((int64_t *)plan->topology.domain);
  link_counts_free(plan->links);
  *plan = (world_plan){0};
}
