/* Every call of the runtime: counted, failed where a test wants it, and its error kept as the last one of the thread.
 */
#include "machine.hpp"

namespace vg {

static std::vector<std::string> names;

int call_index(const char *name) {
  Lock lock;
  names.push_back(name);
  M.call_counts.resize(names.size());
  return (int)names.size() - 1;
}

static bool matches(const std::string &pattern, const char *name) {
  size_t n = pattern.size();
  return n && pattern[n - 1] == '*' ? strncmp(pattern.c_str(), name, n - 1) == 0 : pattern == name;
}

static cudaError_t suits(int flags) {
  if (flags & CALL_ALLOC)
    return cudaErrorMemoryAllocation;
  return flags & CALL_LAUNCH ? cudaErrorLaunchFailure : cudaErrorUnknown;
}

static thread_local bool own_calls;

void count(int64_t &counter) { counter += !own_calls; }

Api::Api(int index, const char *name, int flags) : thread(nullptr), flags(flags), fault(cudaSuccess) {
  thread = &self();
  if (!M.on || M.devices.empty()) {
    if (!(flags & CALL_NO_GPU_NEEDED))
      fault = M.on && M.options.devices < 0 ? cudaErrorInsufficientDriver : cudaErrorNoDevice;
    if (!M.on)
      return;
  }
  if (!thread->context && !M.devices.empty() && !(flags & (CALL_NO_CONTEXT | CALL_NO_GPU_NEEDED)))
    enter_context(*thread, thread->device); /* the runtime does so by itself */
  host_seen(*thread);
  if (own_calls)
    return;
  M.call_counts[(size_t)index]++;
  vg_counts &c = M.counts;
  c.calls++;
  c.allocs += (flags & CALL_ALLOC) != 0;
  c.frees += (flags & CALL_FREE) != 0;
  c.creates += (flags & CALL_CREATE) != 0;
  c.destroys += (flags & CALL_DESTROY) != 0;
  c.host_syncs += (flags & CALL_SYNC) != 0;
  c.copies += (flags & CALL_COPY) != 0;
  c.launches += (flags & CALL_LAUNCH) != 0;
  Fault &f = M.fault;
  if (f.k > 0 && fault == cudaSuccess && (f.chain == 0 || f.chain == thread->chain) &&
      (f.any || matches(f.name, name))) {
    f.seen++;
    if (f.seen == f.k || (f.seen > f.k && f.from_then_on)) {
      f.fired++;
      fault = f.error ? (cudaError_t)f.error : suits(flags);
    }
  }
  if (fault == cudaSuccess && !(flags & (CALL_ALWAYS | CALL_NO_GPU_NEEDED)))
    fault = M.devices[(size_t)thread->device].broken;
}

/* A fault of a kernel is told by the next call, whichever that is: also by one that ran into it. */
cudaError_t Api::end(cudaError_t error) {
  bool always = (flags & (CALL_ALWAYS | CALL_NO_GPU_NEEDED)) != 0 || !M.on || M.devices.empty();
  cudaError_t broken = always ? cudaSuccess : M.devices[(size_t)thread->device].broken;
  if (broken != cudaSuccess)
    return broken;
  if (error != cudaSuccess)
    thread->last = error;
  return error;
}

} // namespace vg

using namespace vg;

vg_counts vg_count(void) {
  Lock lock;
  return M.counts;
}

int64_t vg_calls(const char *name) {
  Lock lock;
  int64_t n = 0;
  for (size_t i = 0; i < names.size(); i++)
    n += matches(name, names[i].c_str()) ? M.call_counts[i] : 0;
  return n;
}

void vg_fail(const char *name, int64_t k, bool from_then_on, int error) {
  Lock lock;
  M.fault = {};
  M.fault.any = name == NULL;
  M.fault.name = name ? name : "";
  M.fault.k = k;
  M.fault.from_then_on = from_then_on;
  M.fault.error = error;
}

void vg_fail_here(const char *name, int64_t k, bool from_then_on, int error) {
  vg_fail(name, k, from_then_on, error);
  Lock lock;
  M.fault.chain = self().chain;
}

void vg_own_calls(bool own) { own_calls = own; }

int64_t vg_failed(void) {
  Lock lock;
  return M.fault.fired;
}
