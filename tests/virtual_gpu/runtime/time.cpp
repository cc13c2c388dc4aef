/* Time, for events with timing. There is none here, so it is made up: an operation begins when the last of those that
 * it comes after has ended, and takes some microseconds and what its bytes would take. Streams and links are never
 * busy with something else: what overlaps is what the declared order allows to overlap, on a machine that is large
 * enough. The seed changes nothing of it. */
#include "machine.hpp"

#include <algorithm>

namespace vg {

namespace {

constexpr double LAUNCH = 1.5;                               /* us */
constexpr double HERE = 1.5e6, THERE = 0.4e6, HOST = 0.05e6; /* bytes a us: own memory, another GPU's, the host's */

/* Bytes that the running operation has touched. */
struct Touched {
  size_t read, written;
  bool there, host, to_host;
} touched;

/* When the operations of each chain ended, by their time on it. */
std::vector<std::vector<double>> ends;

double end_of(uint32_t chain, uint32_t time) {
  if (chain >= ends.size() || ends[chain].empty())
    return 0;
  return ends[chain][std::min((size_t)time, ends[chain].size() - 1)];
}

} // namespace

double time_of(const Clock &clock) {
  double last = 0;
  for (uint32_t chain = 0; chain < clock.t.size(); chain++)
    last = std::max(last, end_of(chain, clock.t[chain]));
  return last;
}

void time_begin() {
  M.timed = M.options.spans;
  M.spans.clear();
  ends.clear();
}

void time_touched(int device, uintptr_t at, size_t n, bool write) {
  (write ? touched.written : touched.read) += n;
  const Alloc *alloc = find(at);
  if (alloc && alloc->kind == Kind::Device)
    touched.there |= alloc->device != device;
  else
    touched.host = true, touched.to_host |= write;
}

void time_op_begins() { touched = Touched{}; }

void time_op_ends(const Op &op) {
  const Note &note = M.notes[op.id];
  size_t bytes = std::max(touched.read, touched.written);
  double rate = touched.host ? HOST : touched.there ? THERE : HERE;
  double begin = time_of(op.clock), end = begin + (bytes > 0 ? LAUNCH + (double)bytes / rate : 0);
  if (note.chain >= ends.size())
    ends.resize(note.chain + 1);
  std::vector<double> &chain = ends[note.chain];
  chain.resize(std::max(chain.size(), (size_t)note.time + 1), chain.empty() ? 0 : chain.back());
  chain[note.time] = end;
  if (M.options.spans && bytes > 0)
    M.spans.push_back({note.what, keep(op.stream->name), touched.to_host, begin, end});
}

} // namespace vg

size_t vg_spans(const vg_span **spans) {
  vg::Lock lock;
  *spans = vg::M.spans.data();
  return vg::M.spans.size();
}
