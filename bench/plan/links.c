#include "bench/plan/links.h"

#include <math.h>
#include <stdlib.h>

/* Seconds that a rank's links are busy: each direction of each is by itself. */
static double busy_time(const reshard_topology *t, const reshard_plan_info *i) {
  double between = (double)rs_max(i->between_sent_bytes, i->between_received_bytes) / (double)t->between;
  double within = (double)rs_max(i->within_sent_bytes, i->within_received_bytes) / (double)t->within;
  return fmax(between, within);
}

/* Seconds that the bytes which a rank lacks take, over both of its links. */
static double lack_time(const reshard_topology *t, const reshard_plan_info *i) {
  return (double)i->lower_bound_bytes / ((double)t->between + (double)t->within);
}

/* The estimate: the busiest link, stretched by rounds in which later hops have nothing yet, and the rounds' cost. */
static double estimate_time(const reshard_topology *t, double busy, int64_t rounds, int64_t waits) {
  double steps = (double)(rounds + waits);
  return rounds > 0 ? busy * steps / (double)rounds + steps * 1e-9 * (double)t->round_ns : 0;
}

static void add_rank(struct link_counts *l, const reshard_plan_info *i, int64_t *holders) {
  domain_links *d = &l->domain[i->domain];
  d->ranks++;
  d->receivers += i->lower_bound_bytes + i->self_copy_bytes > 0;
  d->entering += i->between_received_bytes;
  d->least += i->entering_least_bytes;
  *holders += i->source_bytes > 0;
  l->within_least += i->lower_bound_bytes - i->entering_least_bytes;
  l->between += i->between_received_bytes;
  l->within += i->within_received_bytes;
  l->leaving += i->leaving_bytes;
  l->leaving_least += i->leaving_least_bytes;
  l->most_out = rs_max(l->most_out, i->between_sent_bytes);
  l->most_in = rs_max(l->most_in, i->between_received_bytes);
  l->most_within = rs_max(l->most_within, rs_max(i->within_sent_bytes, i->within_received_bytes));
  l->hops = rs_max(l->hops, i->hops);
  l->chains = i->chains;
  l->later = rs_max(l->later, i->later_rounds);
}

struct link_counts *link_counts_make(const world_plan *p, const reshard_topology *topology, int64_t rounds_twice) {
  struct link_counts *l = cli_alloc(1, sizeof *l);
  const reshard_topology *t = &l->topology;
  int64_t holders = 0;
  double busy = 0;
  l->topology = *topology;
  l->ndomains = p->rank[0].info.domains;
  l->domain = cli_alloc(l->ndomains, sizeof *l->domain);
  for (int64_t i = 0; i < p->n; i++) {
    add_rank(l, &p->rank[i].info, &holders);
    busy = fmax(busy, busy_time(t, &p->rank[i].info));
    l->bound = fmax(l->bound, lack_time(t, &p->rank[i].info));
  }
  for (int64_t d = 0; d < l->ndomains; d++) {
    const domain_links *k = &l->domain[d];
    l->entering += k->entering;
    l->entering_least += k->least;
    l->bound = fmax(l->bound, (double)k->least / ((double)rs_max(1, k->receivers) * (double)t->between));
  }
  l->bound = fmax(l->bound, (double)l->leaving_least / ((double)rs_max(1, holders) * (double)t->between));
  l->estimate = estimate_time(t, busy, p->rounds, l->later);
  l->twice = estimate_time(t, busy, rounds_twice, l->later);
  return l;
}

void link_counts_free(struct link_counts *l) {
  if (l == NULL)
    return;
  free(l->domain);
  free(l);
}

/* "3.00 GiB, 1.500 x", of a least; "3.00 GiB" where nothing has to. */
static const char *beside_least(char text[96], int64_t bytes, int64_t least) {
  char a[CLI_BYTES_TEXT], b[CLI_BYTES_TEXT];
  if (least > 0)
    snprintf(text, 96, "%s, %.3f x the least of %s", cli_bytes_text(a, (double)bytes), (double)bytes / (double)least,
             cli_bytes_text(b, (double)least));
  else
    snprintf(text, 96, "%s", cli_bytes_text(a, (double)bytes));
  return text;
}

static bool has_blocks(const world_plan *p) {
  bool any = false;
  for (int64_t i = 0; i < p->nconversions; i++)
    any = any || rs_class_in_blocks(p->conversions[i].class_);
  return any;
}

void link_counts_print(const world_plan *p, const struct link_counts *l) {
  const reshard_topology *t = &l->topology;
  char a[96], b[CLI_BYTES_TEXT], c[CLI_BYTES_TEXT];
  int64_t worst = 0;
  for (int64_t d = 1; d < l->ndomains; d++)
    if ((double)l->domain[d].entering * (double)rs_max(1, l->domain[worst].least) >
        (double)l->domain[worst].entering * (double)rs_max(1, l->domain[d].least))
      worst = d;
  printf("topology      %lld domain%s; %.4g GB/s between and %.4g within, %.4g us a round\n", (long long)l->ndomains,
         l->ndomains == 1 ? "" : "s", 1e-9 * (double)t->between, 1e-9 * (double)t->within, 1e-3 * (double)t->round_ns);
  printf("leaving       %s (from holders to other domains)\n", beside_least(a, l->leaving, l->leaving_least));
  printf("entering      %s (all domains); ", beside_least(a, l->entering, l->entering_least));
  printf("domain %lld %s\n", (long long)worst, beside_least(a, l->domain[worst].entering, l->domain[worst].least));
  printf("between       %s; busiest link %s out, ", cli_bytes_text(b, (double)l->between),
         cli_bytes_text(c, (double)l->most_out));
  printf("%s in\n", cli_bytes_text(b, (double)l->most_in));
  printf("within        %s where a byte enters once; busiest link %s\n", beside_least(a, l->within, l->within_least),
         cli_bytes_text(c, (double)l->most_within));
  if (l->chains > 0)
    printf("passed on     in %lld hops, by %lld chain%s; nothing where a transfer is direct or takes a collective\n",
           (long long)l->hops, (long long)l->chains, l->chains == 1 ? "" : "s");
  else
    printf("passed on     nothing%s\n", t->chains == RESHARD_NO_CHAINS ? ""
                                        : has_blocks(p)                ? ": blocks travel with their scales"
                                                                       : ": it would take no less time");
  printf("estimate      %.6g us in %lld round%s", 1e6 * l->estimate, (long long)p->rounds, p->rounds == 1 ? "" : "s");
  if (l->later > 0)
    printf(" and %lld more for later hops", (long long)l->later);
  if (l->bound > 0)
    printf("; %.3f x the bound of %.6g us", l->estimate / l->bound, 1e6 * l->bound);
  if (l->twice > 0 && p->limit > 0)
    printf("; %.6g us with twice the limit", 1e6 * l->twice);
  printf("\n");
}

void link_counts_print_rank(const reshard_topology *t, const reshard_plan_info *i) {
  char a[96], b[CLI_BYTES_TEXT];
  printf("domain        %lld of %lld\n", (long long)i->domain, (long long)i->domains);
  printf("leaving       %s\n", beside_least(a, i->leaving_bytes, i->leaving_least_bytes));
  printf("entering      %s\n", beside_least(a, i->between_received_bytes, i->entering_least_bytes));
  printf("between       %s out, ", cli_bytes_text(b, (double)i->between_sent_bytes));
  printf("%s in\n", cli_bytes_text(b, (double)i->between_received_bytes));
  printf("within        %s out, ", cli_bytes_text(b, (double)i->within_sent_bytes));
  printf("%s in\n", cli_bytes_text(b, (double)i->within_received_bytes));
  printf("estimate      %.6g us; the bound is %.6g us\n",
         1e6 * estimate_time(t, busy_time(t, i), i->rounds, i->later_rounds), 1e6 * lack_time(t, i));
}

void link_counts_json(const struct link_counts *l, rs_json *j) {
  rs_json_ints(j, {"domains", l->ndomains}, {"between_bytes", l->between}, {"within_bytes", l->within},
               {"within_least_bytes", l->within_least}, {"leaving_bytes", l->leaving},
               {"leaving_least_bytes", l->leaving_least}, {"entering_bytes", l->entering},
               {"entering_least_bytes", l->entering_least}, {"max_between_sent_bytes", l->most_out},
               {"max_between_received_bytes", l->most_in}, {"max_within_bytes", l->most_within}, {"hops", l->hops},
               {"chains", l->chains}, {"later_rounds", l->later});
  rs_json_real(j, "estimate_us", 1e6 * l->estimate);
  rs_json_real(j, "bound_us", 1e6 * l->bound);
  if (l->twice > 0)
    rs_json_real(j, "estimate_twice_limit_us", 1e6 * l->twice);
  rs_json_open(j, "per_domain", '[');
  for (int64_t d = 0; d < l->ndomains; d++) {
    rs_json_open(j, NULL, '{');
    rs_json_ints(j, {"domain", d}, {"ranks", l->domain[d].ranks}, {"entering_bytes", l->domain[d].entering},
                 {"entering_least_bytes", l->domain[d].least});
    rs_json_close(j, '}');
  }
  rs_json_close(j, ']');
}

void link_counts_json_rank(const reshard_topology *t, const reshard_plan_info *i, rs_json *j) {
  rs_json_ints(j, {"between_bytes", i->between_received_bytes}, {"between_sent_bytes", i->between_sent_bytes},
               {"within_bytes", i->within_received_bytes}, {"within_sent_bytes", i->within_sent_bytes},
               {"leaving_bytes", i->leaving_bytes}, {"leaving_least_bytes", i->leaving_least_bytes},
               {"entering_bytes", i->between_received_bytes}, {"entering_least_bytes", i->entering_least_bytes},
               {"streams", i->streams}, {"hops", i->hops}, {"chains", i->chains});
  rs_json_real(j, "estimate_us", 1e6 * estimate_time(t, busy_time(t, i), i->rounds, i->later_rounds));
  rs_json_real(j, "bound_us", 1e6 * lack_time(t, i));
}
