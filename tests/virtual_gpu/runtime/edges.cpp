/* Edges of the library left out one at a time, by the hook of host/device/stream.h.
 *
 * A use of an edge is its name, record or wait, and how many uses of that name and kind came before. First the scenario
 * runs with nothing left out, for each seed, which lists the uses and must report nothing. Then each use is left out in
 * a run of its own, under one seed after the other until the checker reports something. A record that nobody waits for,
 * or asks about, has no later side before the scenario ends: there is nothing to be found. */
#include "machine.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

struct rs_device;
extern "C" void rs_stream_set_hook(bool (*hook)(void *user, const char *edge, bool wait), void *user);

namespace {

enum { PROVING_RUNS = 60, PROVING_SEEDS = 20, TWICE = 2, PROVING_TWICE = 20 };

using Edge = std::pair<std::string, bool>; /* name, wait? */
struct Uses {
  std::string only;
  std::map<Edge, int> seen;                  /* in this run */
  std::vector<std::pair<Edge, int>> records; /* in this run */
  std::set<std::pair<Edge, int>> idle;       /* of them: nobody has waited for it */
  Edge left_out;
  int use = -1; /* of it; -1: none */
  bool met = false;
};
Uses *current;                         /* of the run that goes on */
thread_local uint32_t about_to_record; /* use that the thread's next record is of: place in records, from 1; 0: none */

bool on_edge(void *user, const char *name, bool wait) {
  vg::Lock lock;
  Uses &uses = *(Uses *)user;
  about_to_record = 0;
  if (!vg::M.on || strncmp(name, uses.only.c_str(), uses.only.size()) != 0)
    return false;
  Edge edge(name, wait);
  int n = uses.seen[edge]++;
  bool out = n == uses.use && edge == uses.left_out;
  uses.met |= out;
  if (!wait && !out) {
    uses.records.push_back({edge, n});
    uses.idle.insert({edge, n});
    about_to_record = (uint32_t)uses.records.size();
  }
  return out;
}

vg_policy policy_of(uint64_t seed) { return (vg_policy)(VG_RANDOM + seed % 5); }

const char *name_of(vg_policy policy) {
  switch (policy) {
  case VG_DEPTH_FIRST: return "depth first";
  case VG_NEWEST_FIRST: return "newest first";
  case VG_VICTIM: return "victim";
  case VG_IN_ORDER: return "in order";
  default: return "random";
  }
}

/* Reports of one run. */
int run(const vg_edge_search &search, uint64_t seed, Uses &uses) {
  vg_options options = search.options;
  options.seed += seed;
  options.policy = policy_of(options.seed);
  uses.only = search.only ? search.only : "";
  current = &uses;
  rs_stream_set_hook(on_edge, &uses);
  search.run(search.user, &options);
  rs_stream_set_hook(nullptr, nullptr);
  current = nullptr;
  return vg_reports();
}

/* A seed under which the use is missed; -1: none. */
int find(const vg_edge_search &search, int seeds, const Edge &edge, int use) {
  for (int seed = 0; seed < seeds; seed++) {
    Uses uses;
    uses.left_out = edge;
    uses.use = use;
    if (run(search, (uint64_t)seed, uses) > 0 && uses.met)
      return seed;
  }
  return -1;
}

/* Uses to be left out: all but idle records, or so many of them, the first and the last too. */
std::vector<int> chosen(const vg_edge_search &search, const Uses &uses, const Edge &edge, int n) {
  std::vector<int> all, some;
  for (int use = 0; use < n; use++)
    if (!uses.idle.count({edge, use}))
      all.push_back(use);
  int most = search.most;
  if (most < 2 || vg_proving() || (int)all.size() <= most)
    return all;
  for (int i = 0; i < most; i++)
    some.push_back(all[(size_t)i * (all.size() - 1) / (size_t)(most - 1)]);
  return some;
}

bool is_covered(const vg_edge_search &search, const Edge &edge) {
  if (!search.covered || !search.covered_edges)
    return search.covered;
  return ("|" + std::string(search.covered_edges) + "|").find("|" + edge.first + "|") != std::string::npos;
}

void tell(const vg_edge_search &search, const Edge &edge, int use, int uses, int seed) {
  const char *kind = edge.second ? "wait" : "record", *name = edge.first.c_str();
  if (seed < 0 && is_covered(search, edge)) {
    vg_prove("edge|%s|%s|%s|%d|%d||covered", search.path, name, kind, use + 1, uses);
    return;
  }
  if (seed < 0) {
    vg_prove("edge|%s|%s|%s|%d|%d||", search.path, name, kind, use + 1, uses);
    fprintf(stderr, "edge not missed: %s: %s of '%s', use %d of %d\n", search.path, kind, name, use + 1, uses);
    return;
  }
  uint64_t at = search.options.seed + (uint64_t)seed;
  vg_prove("edge|%s|%s|%s|%d|%d|%d|%s", search.path, name, kind, use + 1, uses, (int)at, name_of(policy_of(at)));
  if (getenv("VG_EDGES"))
    printf("%s: %s of '%s', use %d of %d, seed %d: %s\n", search.path, kind, name, use + 1, uses, (int)at,
           vg_report(0));
}

} // namespace

void vg::edge_recorded(Event &event) {
  event.use = current ? about_to_record : 0;
  about_to_record = 0;
}

void vg::edge_awaited(const Event &event) {
  if (current && event.use)
    current->idle.erase(current->records[event.use - 1]);
}

vg_edge_result vg_for_each_edge(const vg_edge_search *search) {
  vg_edge_result result{};
  Uses first;
  int clean = vg_proving() ? std::max((int)PROVING_RUNS, search->seeds) : search->seeds;
  int seeds = vg_proving() ? std::max((int)PROVING_SEEDS, search->seeds) : search->seeds;
  int twice = std::min(clean, (int)(vg_proving() ? PROVING_TWICE : TWICE)), same = 0;
  for (int seed = 0; seed < clean; seed++) {
    Uses uses, again;
    int reports = run(*search, (uint64_t)seed, uses);
    uint64_t digest = vg_digest();
    if (seed < twice) {
      int first = reports;
      reports = run(*search, (uint64_t)seed, again);
      same += digest == vg_digest() && first == reports && again.seen == uses.seen;
    }
    result.false_alarms += reports;
    for (int i = 0; i < reports; i++)
      fprintf(stderr, "%s: with every edge in place, seed %d: %s\n", search->path, seed, vg_report(i));
    if (seed == 0)
      first = uses;
  }
  if (same < twice)
    fprintf(stderr, "%s: %d of %d seeds give another run the second time\n", search->path, twice - same, twice);
  result.false_alarms += twice - same;
  vg_prove("twice|%s|%d|%d", search->path, twice, same);
  bool quiet = vg::M.quiet;
  vg_quiet(true);
  for (const auto &[edge, n] : first.seen) {
    result.edges++;
    for (int use : chosen(*search, first, edge, n)) {
      bool named = search->covered_edges && is_covered(*search, edge); /* nothing is lost with those not found */
      int seed = find(*search, named ? search->seeds : seeds, edge, use);
      result.uses++;
      result.found += seed >= 0;
      result.covered += seed < 0 && is_covered(*search, edge);
      tell(*search, edge, use, n, seed);
    }
  }
  vg_quiet(quiet);
  vg_prove("path|%s|%d|%d|%d|%d|%d|%d|%s", search->path, result.edges, result.uses, result.found, clean,
           result.false_alarms, result.covered, search->covered ? search->covered : "");
  return result;
}
