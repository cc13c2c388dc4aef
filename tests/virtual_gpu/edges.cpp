/* Edges of the library left out one at a time, by the hook of host/device/stream.h.
 *
 * A use of an edge is its name, record or wait, and how many uses of that name and kind came before it in the run.
 * First the scenario runs with nothing left out, for each seed, which lists the uses and must report nothing. Then each
 * use is left out in a run of its own, under one seed after the other until the checker reports something. */
#include "machine.hpp"

#include <cstdio>
#include <cstdlib>

struct rs_device;
extern "C" void rs_stream_set_hook(bool (*hook)(void *user, const char *edge, bool wait), void *user);

namespace {

using Edge = std::pair<std::string, bool>; /* name, wait? */
struct Uses {
  std::map<Edge, int> seen; /* in this run */
  Edge left_out;
  int use = -1; /* of it; -1: none */
  bool met = false;
};

bool on_edge(void *user, const char *name, bool wait) {
  vg::Lock lock;
  if (!vg::M.on)
    return false;
  Uses &uses = *(Uses *)user;
  Edge edge(name, wait);
  int n = uses.seen[edge]++;
  bool out = n == uses.use && edge == uses.left_out;
  uses.met |= out;
  return out;
}

/* Reports of one run. */
int run(vg_scenario scenario, void *user, vg_options options, uint64_t seed, Uses &uses) {
  options.seed = seed;
  options.policy = VG_AUTO;
  uses.seen.clear();
  uses.met = false;
  rs_stream_set_hook(on_edge, &uses);
  scenario(user, &options);
  rs_stream_set_hook(nullptr, nullptr);
  return vg_reports();
}

} // namespace

vg_edge_result vg_for_each_edge(vg_scenario scenario, void *user, const vg_options *given, int seeds) {
  vg_options options = given ? *given : vg_options{};
  vg_edge_result result{};
  std::map<Edge, int> listed;
  for (int s = 0; s < seeds; s++) {
    Uses uses;
    int reports = run(scenario, user, options, options.seed + (uint64_t)s, uses);
    result.false_alarms += reports;
    for (int i = 0; i < reports; i++)
      fprintf(stderr, "with every edge in place, seed %d: %s\n", s, vg_report(i));
    if (s == 0)
      listed = uses.seen;
  }
  vg_quiet(true);
  for (const auto &[edge, n] : listed) {
    result.edges++;
    for (int use = 0; use < n; use++) {
      int seed = 0;
      bool found = false;
      for (; seed < seeds && !found; seed += !found) {
        Uses uses;
        uses.left_out = edge;
        uses.use = use;
        found = run(scenario, user, options, options.seed + (uint64_t)seed, uses) > 0 && uses.met;
      }
      result.uses++;
      result.found += found;
      const char *kind = edge.second ? "wait" : "record", *name = edge.first.c_str();
      if (!found)
        fprintf(stderr, "edge not missed: %s of '%s', use %d of %d\n", kind, name, use + 1, n);
      else if (getenv("VG_EDGES"))
        printf("edge %d, %s of '%s', use %d of %d, seed %d: %s\n", result.uses, kind, name, use + 1, n, seed,
               vg_report(0));
    }
  }
  vg_quiet(false);
  return result;
}
