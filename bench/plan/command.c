/* reshard plan: the command, and what it tells of the plans. */
#include "bench/cli/rule_uses.h"
#include "bench/plan/links.h"
#include "bench/plan/plan.h"
#include "bench/plan/svg.h"

#include <stdlib.h>
#include <string.h>

static void add_rank(rs_json *j, const world_plan *p, const rank_plan *r, bool peers) {
  rs_json_open(j, NULL, '{');
  rs_json_ints(j, {"rank", r->info.rank}, {"sent_bytes", r->info.sent_bytes},
               {"received_bytes", r->info.received_bytes}, {"self_copy_bytes", r->info.self_copy_bytes},
               {"messages", r->info.messages_sent}, {"rounds", r->info.rounds}, {"least_rounds", r->info.least_rounds},
               {"staged_bytes", r->info.staged_bytes}, {"workspace_bytes", r->info.workspace_bytes},
               {"workspace_limit", r->info.workspace_limit}, {"packs_skipped", r->info.packs_skipped},
               {"unpacks_skipped", r->info.unpacks_skipped});
  if (r->info.domains > 0)
    link_counts_json_rank(&p->topology, &r->info, j);
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

static void print_conversions(const world_plan *p) {
  char bytes[CLI_BYTES_TEXT], dtypes[3][RS_CONVERSION_TEXT];
  for (int64_t i = 0; i < p->nconversions; i++) {
    const rs_conversion *c = &p->conversions[i];
    bool blocks = rs_class_in_blocks(c->class_);
    rs_conversion_dtypes(c, dtypes);
    printf("converts      %lld tensor%s from %s to %s: %s travel%s, %s; converted in the %s\n", (long long)c->entries,
           cli_plural(c->entries), dtypes[0], dtypes[1], blocks ? "values and scales" : dtypes[2], blocks ? "" : "s",
           cli_bytes_text(bytes, (double)c->bytes), rs_conversion_place(c));
  }
}

static void write_plan(const cli_options *o, const workload *w, const rule_uses *uses, const world_plan *p) {
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
  if (p->links != NULL)
    link_counts_json(p->links, &j);
  rule_uses_json(uses, &j);
  if (w->scalars > 0)
    rs_json_int(&j, "scalars", w->scalars);
  rs_conversions_json(p->conversions, p->nconversions, &j);
  rs_json_string(&j, "path", p->path);
  if (o->rank < 0 && p->n <= PLAN_PATTERNS)
    rs_json_string(&j, "collective", reshard_collective_string(common_collective(p)));
  if (o->rank < 0)
    rs_json_real(&j, "plan_us", 1e6 * p->seconds);
  rs_json_open(&j, "per_rank", '[');
  for (int64_t i = 0; i < p->n; i++) {
    rs_json_line(&j, 2);
    add_rank(&j, p, &p->rank[i], o->peers || o->rank >= 0);
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
         cli_bytes_text(c, (double)i->self_copy_bytes), (long long)i->peers, (long long)i->messages_sent,
         cli_bytes_text(d, (double)i->workspace_bytes), (long long)i->packs_skipped, (long long)i->unpacks_skipped,
         1e-3 * (double)i->plan_ns);
  for (int64_t k = 0; peers && k < i->peers; k++)
    printf("         to and from rank %6lld: %12s sent, %12s received\n", (long long)r->peer[k].rank,
           cli_bytes_text(a, (double)r->peer[k].sent), cli_bytes_text(b, (double)r->peer[k].received));
}

static int compare_loads(const void *a, const void *b) {
  const reshard_plan_info *x = &(*(const rank_plan *const *)a)->info, *y = &(*(const rank_plan *const *)b)->info;
  int64_t p = rs_max(x->sent_bytes, x->received_bytes), q = rs_max(y->sent_bytes, y->received_bytes);
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
  printf("busiest rank  %s in one direction%s, ", cli_bytes_text(a, (double)p->busiest),
         p->links != NULL ? " over both of its links" : "");
  if (p->busiest_bound > 0)
    printf("%.3f x its bound of %s\n", (double)p->busiest / (double)p->busiest_bound,
           cli_bytes_text(c, (double)p->busiest_bound));
  else
    printf("its bound\n");
  if (p->links != NULL)
    link_counts_print(p, p->links);
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

static void print_plan(const cli_options *o, const workload *w, const rule_uses *uses, const world_plan *p) {
  char a[CLI_BYTES_TEXT], shape[RS_SHAPE_TEXT], text[RS_BLOCKS_TEXT];
  if (w->model == NULL)
    printf("tensor        %s %s, %s\n", rs_shape_text(shape, w->tensor->ndim, w->tensor->shape),
           workload_dtype_text(w->tensor, true, text), cli_bytes_text(a, (double)w->bytes));
  else
    printf("model         %s: %lld tensors, %s\n", o->model, (long long)w->n, cli_bytes_text(a, (double)w->bytes));
  printf("layouts       %s -> %s%s%s\n", o->src, o->dst, o->mesh != NULL ? ", " : "", o->mesh != NULL ? o->mesh : "");
  print_conversions(p);
  printf("ranks         %lld\n", (long long)p->ranks);
  if (w->scalars > 0)
    printf("without dims  %lld tensor%s, whole on each rank of %s layout\n", (long long)w->scalars,
           cli_plural(w->scalars), w->scalars == 1 ? "its" : "their");
  rule_uses_print(uses);
  if (o->rank < 0)
    print_totals(o, p);
  else if (p->topology.domain != NULL)
    link_counts_print_rank(&p->topology, &p->rank[0].info);
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
  if (o.path == RESHARD_PATH_MIXED)
    cli_exit(EXIT_USAGE, "--path mixed: a plan knows no nodes; --path packed is as if each rank had its own");
  workload_read(&o, &w);
  rule_uses uses = rule_uses_of(&w);
  plan_world(&o, &w, o.peers || o.rank >= 0, o.svg != NULL, &plan);
  if (o.svg != NULL)
    plan_svg(&o, &w, &plan);
  if (o.json != NULL)
    write_plan(&o, &w, &uses, &plan);
  if ((o.json == NULL || strcmp(o.json, "-") != 0) && (o.svg == NULL || strcmp(o.svg, "-") != 0)) {
    print_plan(&o, &w, &uses, &plan);
    if (o.svg != NULL)
      printf("\npicture       %s\n", o.svg);
  }
  rule_uses_warn(&uses);
  rule_uses_free(&uses);
  plan_free(&plan);
  workload_free(&w);
  return EXIT_DONE;
}
