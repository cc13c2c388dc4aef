/* The machine: its start and end, threads, chains, notes and reports. */
#include "machine.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace vg {

Machine M;
static thread_local Thread *mine;
static thread_local int own_process;
static thread_local std::map<std::string, std::string> own_environment;
static std::vector<std::unique_ptr<Thread>> threads; /* all that ever called, until the process ends */
static std::vector<Thread *> ended;                  /* of these: used again */

uint64_t draw() {
  uint64_t x = M.random;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  M.random = x;
  return x * 0x2545F4914F6CDD1Dull >> 11;
}

uint32_t new_chain(std::string name) {
  M.chains.push_back(std::move(name));
  M.processes.push_back(own_process);
  return (uint32_t)M.chains.size() - 1;
}

Id note(uint32_t chain, uint32_t time, const char *what) {
  M.notes.push_back({chain, time, what, false});
  M.live.push_back(nullptr);
  return (Id)M.notes.size() - 1;
}

const char *keep(std::string text) { return M.words.insert(std::move(text)).first->c_str(); }

Thread &self() {
  if (!mine && !ended.empty()) {
    mine = ended.back();
    ended.pop_back();
  } else if (!mine) {
    threads.emplace_back(new Thread{});
    mine = threads.back().get();
    mine->generation = UINT64_MAX;
  }
  if (mine->generation != M.generation) {
    *mine = Thread{};
    mine->generation = M.generation;
    own_process = 0;
    own_environment.clear();
    if (!M.on)
      return *mine;
    mine->name = "thread " + std::to_string(M.threads++);
    mine->chain = new_chain(mine->name);
    mine->clock.set(mine->chain, 1);
    mine->version = 1;
  }
  return *mine;
}

void thread_ends() {
  if (!mine)
    return;
  *mine = Thread{};
  mine->generation = UINT64_MAX;
  ended.push_back(mine);
  mine = nullptr;
}

} // namespace vg

void vg_process(int number) {
  vg::Lock lock;
  if (!vg::M.on)
    return;
  vg::M.processes[vg::self().chain] = vg::own_process = number;
  vg::M.most_processes = std::max(vg::M.most_processes, number + 1);
}

void vg_setenv(const char *name, const char *value) {
  vg::Lock lock;
  if (vg::M.on && vg::self().generation == vg::M.generation)
    vg::own_environment[name] = value;
}

/* A process, as others know it, and its environment. */
extern "C" {
uint64_t __real_rs_process_hash(void);
char *__real_getenv(const char *name);

static bool is_of_machine(void) { return vg::M.on && vg::mine && vg::mine->generation == vg::M.generation; }

uint64_t __wrap_rs_process_hash(void) {
  return __real_rs_process_hash() + (is_of_machine() ? (uint64_t)vg::own_process : 0);
}

char *__wrap_getenv(const char *name) {
  if (is_of_machine() && vg::own_environment.count(name) > 0)
    return vg::own_environment[name].data();
  return __real_getenv(name);
}
}

namespace vg {

void thread_joins(Thread &thread, const Clock &clock) {
  thread.clock.join(clock);
  thread.version++;
}

Id thread_note(Thread &thread, const char *what) {
  if (thread.released) {
    thread.released = false;
    thread.clock.set(thread.chain, thread.clock.at(thread.chain) + 1);
    thread.version++;
  }
  return note(thread.chain, thread.clock.at(thread.chain), what);
}

std::string describe(Id id) {
  const Note &n = M.notes[id];
  std::string of = M.most_processes > 1 ? " of process " + std::to_string(M.processes[n.chain]) : "";
  return std::string(n.what) + " (#" + std::to_string(id) + ", " + M.chains[n.chain] + of + ")";
}

void report(const std::string &key, const char *format, ...) {
  if (M.report_keys[key]++ || M.reports.size() >= 1000)
    return;
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  M.reports.push_back(text);
}

static void forget() {
  for (Op *op : M.live)
    delete op;
  for (Op *op : M.spare)
    delete op;
  imports_end();
  memory_end();
  graphs_end();
  M.live.clear(), M.ready.clear(), M.polling.clear(), M.spare.clear(), M.notes.clear(), M.chains.clear(),
      M.words.clear();
  M.devices.clear(), M.streams.clear(), M.events.clear(), M.pools.clear(), M.handles.clear(), M.host_order.clear();
  M.processes.clear(), M.flags.clear();
  M.most_processes = 1;
  M.favourite = M.victim = nullptr;
}

static void leaks() {
  for (auto &s : M.streams)
    if (!s->builtin && !s->destroyed && !M.faulty) /* what still uses it could not be waited for */
      report("leak stream " + s->name, "leak: stream %s was not destroyed", s->name.c_str());
  size_t events = 0;
  for (auto &e : M.events)
    events += !e->destroyed;
  if (events)
    report("leak events", "leak: %zu of %zu events were not destroyed", events, M.events.size());
  for (auto &p : M.pools)
    if (!p->destroyed)
      report("leak pool", "leak: a memory pool was not destroyed");
  memory_leaks();
  graph_leaks();
  if (vg_nccl_leaks)
    vg_nccl_leaks();
}

} // namespace vg

using namespace vg;

void vg::break_device(int device, cudaError_t error) {
  Device &d = M.devices[(size_t)device];
  d.broken = d.broken != cudaSuccess ? d.broken : error;
  M.faulty = true;
}

void vg_break_kernel(int64_t k) {
  Lock lock;
  M.break_at = k;
}

void vg_begin(const vg_options *options) {
  Lock lock;
  forget();
  M.on = true;
  M.generation++;
  M.options = options ? *options : vg_options{};
  M.options.no_check |= !vg_sees_kernels();
  if (M.options.devices == 0)
    M.options.devices = 1;
  if (M.options.memory == 0)
    M.options.memory = (size_t)80 << 30;
  if (M.options.multiprocessors == 0)
    M.options.multiprocessors = 132;
  if (M.options.l2 == 0)
    M.options.l2 = (size_t)50 << 20;
  uint64_t seed = M.options.seed;
  M.random = (seed + 1) * 0x9E3779B97F4A7C15ull | 1;
  for (int i = 0; i < 4; i++)
    draw();
  M.policy = M.options.policy != VG_AUTO ? M.options.policy : (vg_policy)(VG_RANDOM + seed % 5);
  M.threads = 0;
  M.digest = 0;
  turns_begin(seed);
  M.reports.clear(), M.report_keys.clear();
  M.counts = {};
  std::fill(M.call_counts.begin(), M.call_counts.end(), 0);
  M.fault = {};
  M.break_at = 0;
  M.faulty = false;
  time_begin();
  new_chain("nothing");
  note(0, 0, "nothing");
  memory_begin();
  kernels_begin();
  int n = M.options.no_device || M.options.devices < 0 ? 0 : M.options.devices;
  M.devices.resize((size_t)n);
  for (int d = 0; d < n; d++) {
    Device &device = M.devices[(size_t)d];
    device = Device{};
    device.peers.assign((size_t)n, false);
    device.default_pool.device = d;
    device.default_pool.access.assign((size_t)n, false);
    device.default_pool.access[(size_t)d] = true;
    device.pool = &device.default_pool;
    M.handles[&device.default_pool] = HANDLE_POOL;
    device.legacy = new_stream(d, true, "default stream");
    device.legacy->legacy = device.legacy->builtin = true;
  }
}

int vg_end(void) {
  Lock lock;
  if (!M.on)
    return 0;
  run_all();
  leaks();
  if (!M.quiet)
    for (const std::string &text : M.reports)
      fprintf(stderr, "virtual GPU: %s\n", text.c_str());
  forget();
  M.on = false;
  M.generation++;
  return (int)M.reports.size();
}

uint64_t vg_digest(void) {
  Lock lock;
  return M.digest;
}

void vg_quiet(bool quiet) {
  Lock lock;
  M.quiet = quiet;
}

int vg_reports(void) {
  Lock lock;
  return (int)M.reports.size();
}

const char *vg_report(int i) {
  Lock lock;
  return i >= 0 && (size_t)i < M.reports.size() ? M.reports[(size_t)i].c_str() : NULL;
}

int vg_reports_with(const char *words) {
  Lock lock;
  int n = 0;
  for (const std::string &text : M.reports) {
    bool all = true;
    std::string wanted(words);
    for (size_t at = 0; all && at < wanted.size();) {
      size_t end = wanted.find(' ', at);
      if (end == std::string::npos)
        end = wanted.size();
      all = text.find(wanted.substr(at, end - at)) != std::string::npos;
      at = end + 1;
    }
    n += all;
  }
  return n;
}

void vg_name_thread(const char *name) {
  Lock lock;
  if (!M.on)
    return;
  Thread &thread = self();
  thread.name = name;
  M.chains[thread.chain] = name;
}

void vg_name_stream(void *stream, const char *name) {
  Lock lock;
  Stream *s = M.on ? stream_of((cudaStream_t)stream, "vg_name_stream") : nullptr;
  if (s) {
    s->name = name;
    M.chains[s->chain] = name;
  }
}

void vg_drain(void) {
  Lock lock;
  if (M.on)
    run_all();
}
