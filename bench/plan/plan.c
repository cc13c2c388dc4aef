/* reshard plan: plans every rank of a world without data, and sums the plans up.
 *
 * Plans that fit in memory are made together, which finds each intersection once. Of larger worlds a few threads plan
 * the ranks one after the other and keep sums alone. So 16,384 ranks need the memory of a few plans. Ranks that need
 * fewer rounds than others have other messages in as many: their plans are kept until that is known, where they are
 * small, and else made again. */
#include "bench/plan/plan.h"

#include "bench/cli/machine.h"
#include "bench/plan/svg.h"

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
  bool together;      /* all plans fit in memory */
  reshard_plan *kept; /* [out->n] or NULL */
  int64_t kept_bytes;
  world_plan *out;
  bool keep_peers;
} planner;

/* Counts each byte at its sender; where one rank alone is planned, also what it receives. */
static void add_heat(world_plan *out, reshard_plan plan, const reshard_plan_info *info, bool alone) {
  int64_t me = info->rank / out->per_bin;
  if (out->per_bin == 1)
    out->heat[me * out->bins + me] += info->kept_bytes;
  for (int64_t i = 0; i < info->peers; i++) {
    int64_t rank, sent, received;
    CLI_TRY("", reshard_plan_peer(plan, i, &rank, &sent, &received));
    out->heat[me * out->bins + rank / out->per_bin] += sent;
    if (alone)
      out->heat[rank / out->per_bin * out->bins + me] += received;
  }
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Takes the plan. */
static void record_rank(planner *p, reshard_plan plan, int64_t rank) {
  rank_plan *r = &p->out->rank[rank - p->out->first];
  CLI_TRY("", reshard_plan_get_info(plan, &r->info));
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
  p->out->rounds = larger(p->out->rounds, r->info.rounds);
  p->out->least_rounds = larger(p->out->least_rounds, r->info.least_rounds);
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
                                .on_cpu = !direct && p->o->device != NULL && strcmp(p->o->device, "cpu") == 0};
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
  if (info->peers > 0 && info->rounds < p->rounds) {
    plan = plan != NULL ? plan : make_plan(p, rank);
    CLI_TRY("", reshard_plan_get_info_at(plan, p->rounds, info));
    info->plan_ns = took;
  }
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
  out->bytes = w->bytes;
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
    out->kept += info->kept_bytes;
    out->messages += info->messages_sent;
    out->max_sent = larger(out->max_sent, info->sent_bytes);
    out->max_received = larger(out->max_received, info->received_bytes);
    out->workspace = larger(out->workspace, info->workspace_bytes);
    out->limit = info->workspace_limit; /* all have the same */
    out->busiest_bound = larger(out->busiest_bound, larger(info->lower_bound_bytes, info->exclusive_bytes));
    out->stages = larger(out->stages, info->stages);
    const reshard_pattern *x = &out->rank[0].pattern, *y = &out->rank[i].pattern;
    if (out->odd < 0 &&
        (y->kind == RESHARD_COLLECTIVE_NONE || y->kind != x->kind || y->root != x->root || y->bytes != x->bytes))
      out->odd = i;
  }
  out->busiest = larger(out->max_sent, out->max_received);
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
  int64_t threads = o->threads > 0 ? o->threads : cli_cores();
  double begin = rs_seconds();
  if (!plan_together(&p))
    cli_run_threads(threads < out->n ? threads : out->n, plan_ranks, &p);
  out->seconds = rs_seconds() - begin;
  if (out->n > 1) { /* as many for those that need fewer */
    p.next = out->first;
    p.rounds = larger(out->rounds, 1);
    cli_run_threads(threads < out->n ? threads : out->n, plan_ranks, &p);
  }
  cli_progress_clear();
  free(p.kept);
  free(p.entries);
  sum_ranks(o, w, out);
}

void plan_free(world_plan *plan) {
  for (int64_t i = 0; i < plan->n; i++)
    free(plan->rank[i].peer);
  free(plan->rank);
  free(plan->heat);
  *plan = (world_plan){0};
}

static void add_rank(rs_json *j, const rank_plan *r, bool peers) {
  rs_json_open(j, NULL, '{');
  rs_json_ints(j, {"rank", r->info.rank}, {"sent_bytes", r->info.sent_bytes},
               {"received_bytes", r->info.received_bytes}, {"kept_bytes", r->info.kept_bytes},
               {"messages", r->info.messages_sent}, {"rounds", r->info.rounds}, {"least_rounds", r->info.least_rounds},
               {"staged_bytes", r->info.staged_bytes}, {"workspace_bytes", r->info.workspace_bytes},
               {"workspace_limit", r->info.workspace_limit}, {"packs_skipped", r->info.packs_skipped},
               {"unpacks_skipped", r->info.unpacks_skipped});
  rs_json_real(j, "plan_us", 1e-3 * (double)r->info.plan_ns);
  if (peers) {
    rs_json_open(j, "peers", '[');
    for (int64_t i = 0; i < r->info.peers; i++) {
      rs_json_open(j, NULL, '{');
      rs_json_ints(j, {"rank", r->peer[i].rank}, {"sent_bytes", r->peer[i].sent},
                   {"received_bytes", r->peer[i].received});
      rs_json_close(j, '}');
    }
    rs_json_close(j, ']');
  }
  rs_json_close(j, '}');
}

static reshard_collective common_collective(const world_plan *p) {
  return p->odd < 0 ? p->rank[0].pattern.kind : RESHARD_COLLECTIVE_NONE;
}

static void print_collective(const world_plan *p) {
  const rank_plan *r = &p->rank[p->odd < 0 ? 0 : p->odd];
  const char *name = reshard_collective_string(r->pattern.kind);
  char bytes[CLI_BYTES_TEXT];
  if (p->n > PLAN_PATTERNS)
    return;
  if (p->odd < 0) /* of one rank alone it is its part, if the others say the same */
    printf("collective    %s of %s each: %s\n", name, cli_bytes_text(bytes, (double)r->pattern.bytes), r->pattern.why);
  else if (r->pattern.kind == RESHARD_COLLECTIVE_NONE)
    printf("collective    none: rank %lld: %s\n", (long long)r->info.rank, r->pattern.why);
  else
    printf("collective    none: ranks 0 and %lld have different ones\n", (long long)r->info.rank);
}

static void write_plan(const cli_options *o, const world_plan *p) {
  rs_json j = {.text.grows = true};
  rs_json_open(&j, NULL, '{');
  rs_json_ints(&j, {"version", 1}, {"ranks", p->ranks}, {"tensors", p->tensors}, {"bytes", p->bytes});
  if (o->rank < 0) {
    rs_json_ints(&j, {"wire_bytes", p->wire}, {"lower_bound_bytes", p->bound}, {"busiest_bytes", p->busiest},
                 {"busiest_bound_bytes", p->busiest_bound}, {"messages", p->messages}, {"rounds", p->rounds},
                 {"least_rounds", p->least_rounds}, {"stages", p->stages}, {"max_sent_bytes", p->max_sent},
                 {"max_received_bytes", p->max_received}, {"workspace_bytes", p->workspace},
                 {"workspace_limit", p->limit});
  }
  rs_json_string(&j, "path", p->path);
  if (o->rank < 0 && p->n <= PLAN_PATTERNS)
    rs_json_string(&j, "collective", reshard_collective_string(common_collective(p)));
  if (o->rank < 0)
    rs_json_real(&j, "plan_us", 1e6 * p->seconds);
  rs_json_open(&j, "per_rank", '[');
  for (int64_t i = 0; i < p->n; i++) {
    rs_json_line(&j, 2);
    add_rank(&j, &p->rank[i], o->peers || o->rank >= 0);
  }
  rs_json_close(&j, ']');
  rs_json_close(&j, '}');
  cli_write_json(o->json, &j);
}

static const char *percent(char buffer[16], int64_t part, int64_t whole) {
  if (whole > 0)
    snprintf(buffer, 16, "%.1f %%", 100.0 * (double)part / (double)whole);
  else
    snprintf(buffer, 16, "-");
  return buffer;
}

static void print_rank(const rank_plan *r, bool peers) {
  const reshard_plan_info *i = &r->info;
  char a[CLI_BYTES_TEXT], b[CLI_BYTES_TEXT], c[CLI_BYTES_TEXT], d[CLI_BYTES_TEXT];
  printf("  %6lld %12s %12s %12s %6lld %9lld %12s %6lld %8lld %10.1f\n", (long long)i->rank,
         cli_bytes_text(a, (double)i->sent_bytes), cli_bytes_text(b, (double)i->received_bytes),
         cli_bytes_text(c, (double)i->kept_bytes), (long long)i->peers, (long long)i->messages_sent,
         cli_bytes_text(d, (double)i->workspace_bytes), (long long)i->packs_skipped, (long long)i->unpacks_skipped,
         1e-3 * (double)i->plan_ns);
  for (int64_t k = 0; peers && k < i->peers; k++)
    printf("         to and from rank %6lld: %12s sent, %12s received\n", (long long)r->peer[k].rank,
           cli_bytes_text(a, (double)r->peer[k].sent), cli_bytes_text(b, (double)r->peer[k].received));
}

static int compare_loads(const void *a, const void *b) {
  const reshard_plan_info *x = &(*(const rank_plan *const *)a)->info, *y = &(*(const rank_plan *const *)b)->info;
  int64_t p = larger(x->sent_bytes, x->received_bytes), q = larger(y->sent_bytes, y->received_bytes);
  return p != q ? (p < q) - (p > q) : (x->rank > y->rank) - (x->rank < y->rank);
}

/* Prints all ranks where they are few, else the busiest. */
static void print_ranks(const cli_options *o, const world_plan *p) {
  int64_t shown = p->n <= 16 || o->peers ? p->n : 8;
  const rank_plan **order = cli_alloc(p->n, sizeof *order);
  for (int64_t i = 0; i < p->n; i++)
    order[i] = &p->rank[i];
  if (shown < p->n) {
    qsort(order, (size_t)p->n, sizeof *order, compare_loads);
    printf("\nthe %lld busiest of %lld ranks\n", (long long)shown, (long long)p->n);
  } else
    printf("\nload per rank\n");
  printf("  %6s %12s %12s %12s %6s %9s %12s %6s %8s %10s\n", "", "", "", "", "", "", "", "packs", "unpacks", "plan");
  printf("  %6s %12s %12s %12s %6s %9s %12s %6s %8s %10s\n", "rank", "sent", "received", "kept", "peers", "messages",
         "workspace", "skip.", "skipped", "us");
  for (int64_t i = 0; i < shown; i++)
    print_rank(order[i], o->peers || o->rank >= 0);
  free(order);
}

static void print_totals(const cli_options *o, const world_plan *p) {
  char a[CLI_BYTES_TEXT], b[16], c[CLI_BYTES_TEXT];
  printf("on the wire   %s, %s of the tensors; ", cli_bytes_text(a, (double)p->wire), percent(b, p->wire, p->bytes));
  if (p->wire == p->bound)
    printf("the lower bound\n");
  else
    printf("%.3f x the lower bound\n", (double)p->wire / (double)p->bound);
  printf("kept          %s stay on their ranks\n", cli_bytes_text(a, (double)p->kept));
  printf("busiest rank  %s in one direction, ", cli_bytes_text(a, (double)p->busiest));
  if (p->busiest_bound > 0)
    printf("%.3f x its bound of %s\n", (double)p->busiest / (double)p->busiest_bound,
           cli_bytes_text(c, (double)p->busiest_bound));
  else
    printf("its bound\n");
  printf("messages      %lld in %lld round%s, %lld stage%s\n", (long long)p->messages, (long long)p->rounds,
         p->rounds == 1 ? "" : "s", (long long)p->stages, p->stages == 1 ? "" : "s");
  printf("workspace     %s on the largest rank", cli_bytes_text(a, (double)p->workspace));
  if (p->limit > 0)
    printf(", %s of a limit of %s%s; %lld round%s at least", percent(b, p->workspace, p->limit),
           cli_bytes_text(c, (double)p->limit), o->workspace > 0 ? "" : " (the default)", (long long)p->least_rounds,
           p->least_rounds == 1 ? "" : "s");
  else if (p->limit == RESHARD_NO_LIMIT)
    printf(", no limit");
  printf("\npath          %s%s\n", p->path,
         o->path == RESHARD_PATH_AUTO ? " (where peers' memory can be reached, a transfer takes direct: nothing staged)"
                                      : "");
  printf("planned in    %.1f ms, %lld rank%s\n", 1e3 * p->seconds, (long long)p->n, p->n == 1 ? "" : "s");
}

static void print_plan(const cli_options *o, const workload *w, const world_plan *p) {
  char a[CLI_BYTES_TEXT], shape[RS_SHAPE_TEXT];
  if (w->model == NULL)
    printf("tensor        %s %s, %s\n", rs_shape_text(shape, w->tensor->ndim, w->tensor->shape),
           reshard_dtype_string(w->tensor->dtype), cli_bytes_text(a, (double)w->bytes));
  else
    printf("model         %s: %lld tensors, %s\n", o->model, (long long)w->n, cli_bytes_text(a, (double)w->bytes));
  printf("layouts       %s -> %s%s%s\n", o->src, o->dst, o->mesh != NULL ? ", " : "", o->mesh != NULL ? o->mesh : "");
  printf("ranks         %lld\n", (long long)p->ranks);
  if (o->rank < 0)
    print_totals(o, p);
  print_collective(p);
  print_ranks(o, p);
}

int command_plan(int argc, char **argv) {
  cli_options o;
  cli_read_options(argc, argv, COMMAND_PLAN,
                   "usage: reshard plan (--shape S [--dtype T] | --model NAME|FILE) --src L --dst L [OPTION]...\n\n"
                   "Plans every rank of the world without data or communicator, and tells bytes, messages, rounds, "
                   "workspace and load.\n"
                   "L is a layout string: chunk(0)  mesh(dp=2,tp=4;S0,S1)  cyclic(2x2;32x32)  rank(3)  flat()  "
                   "boxes(0:[0,0]+[5,12];...)\n"
                   "or @FILE, a file of rules; a bare name is looked up among the program's own rules too.\n",
                   &o);
  workload w;
  world_plan plan;
  workload_read(&o, &w);
  plan_world(&o, &w, o.peers || o.rank >= 0, o.svg != NULL, &plan);
  if (o.svg != NULL)
    plan_svg(&o, &w, &plan);
  if (o.json != NULL)
    write_plan(&o, &plan);
  if ((o.json == NULL || strcmp(o.json, "-") != 0) && (o.svg == NULL || strcmp(o.svg, "-") != 0)) {
    print_plan(&o, &w, &plan);
    if (o.svg != NULL)
      printf("\npicture       %s\n", o.svg);
  }
  plan_free(&plan);
  workload_free(&w);
  return EXIT_DONE;
}
