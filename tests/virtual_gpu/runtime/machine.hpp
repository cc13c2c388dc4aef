/* Declarations that the files of the virtual GPU share. All state is under the one lock of the machine (Lock), which
 * each call of the runtime holds from its start to its end. */
#ifndef VG_MACHINE_HPP
#define VG_MACHINE_HPP

#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace vg {

struct Op;
struct Stream;
struct Graph;
struct Capture;

/* --- Order -------------------------------------------------------------------------------------------------------- */
/* Times by chain: what comes before. A chain is a total order: a stream, a host thread, a branch of a graph. */
struct Clock {
  std::vector<uint32_t> t;
  uint32_t at(uint32_t chain) const { return chain < t.size() ? t[chain] : 0; }
  void set(uint32_t chain, uint32_t time) {
    if (chain >= t.size())
      t.resize(chain + 1);
    t[chain] = time;
  }
  bool has(const Clock &other) const {
    for (size_t i = 0; i < other.t.size(); i++)
      if (at((uint32_t)i) < other.t[i])
        return false;
    return true;
  }
  void join(const Clock &other) {
    if (t.size() < other.t.size())
      t.resize(other.t.size());
    for (size_t i = 0; i < other.t.size(); i++)
      t[i] = t[i] < other.t[i] ? other.t[i] : t[i];
  }
};

/* Number of an operation or of an access by the host, in the order of issue. 0 is none. */
using Id = uint32_t;
/* Record of an operation that stays for reports and for the shadow. */
struct Note {
  uint32_t chain, time;
  const char *what; /* lives until the machine ends */
  bool closed;      /* a kernel that has found a word set and stored nothing: what it has read does not matter */
};

/* --- Memory ------------------------------------------------------------------------------------------------------- */
/* A few Ids; more than three are rare. */
struct Ids {
  uint32_t n = 0;
  Id few[3];
  std::unique_ptr<std::vector<Id>> rest;
  Ids() = default;
  Ids(Ids &&) = default;
  Ids &operator=(Ids &&) = default;
  Ids(const Ids &o) { *this = o; }
  Ids &operator=(const Ids &o) {
    n = o.n;
    memcpy(few, o.few, sizeof few);
    rest.reset(o.rest ? new std::vector<Id>(*o.rest) : nullptr);
    return *this;
  }
  Id operator[](uint32_t i) const { return i < 3 ? few[i] : (*rest)[i - 3]; }
  void set(uint32_t i, Id id) { (i < 3 ? few[i] : (*rest)[i - 3]) = id; }
  void add(Id id) {
    if (n >= 3) {
      if (!rest)
        rest.reset(new std::vector<Id>);
      rest->resize(n - 2);
    }
    set(n++, id);
  }
  void clear() { n = 0; }
  bool operator==(const Ids &o) const {
    if (n != o.n)
      return false;
    for (uint32_t i = 0; i < n; i++)
      if ((*this)[i] != o[i])
        return false;
    return true;
  }
};
/* A run of bytes that were used alike. */
struct Cell {
  size_t end;
  Id write; /* the last one, or the allocation */
  bool defined;
  Ids reads; /* since then; none is before another */
};
enum class Kind { Device, Pinned, Registered };
struct Pool;
struct Alloc {
  uintptr_t base;
  size_t bytes;
  Kind kind;
  int device;
  int process;
  Pool *pool;   /* of stream-ordered ones */
  Alloc *of;    /* that it is an import of, whose shadow counts; NULL: it is memory of its own */
  uint64_t ipc; /* of an import by CUDA IPC: the process and number of what it is of; 0: it is none */
  bool foreign; /* memory of another process than this one, of which there is no shadow */
  bool mapped;  /* by cuMemMap: each GPU's access is set, also its own */
  bool rdma;    /* of those, it was asked for */
  uint32_t number;
  bool ended;                    /* free was called */
  Id freed_by;                   /* the operation of the free, once it has run */
  bool user;                     /* of a test itself: no leak */
  std::map<size_t, Cell> shadow; /* by first byte */
};
struct Pool {
  int device;
  bool destroyed, owned;
  uint64_t threshold;
  std::vector<bool> access; /* by device */
  size_t used, used_high;
};

/* --- Operations --------------------------------------------------------------------------------------------------- */
struct Range {
  uintptr_t at;
  size_t n;
  bool write;
};
/* An operation that a call gives to a stream. */
struct Event;
struct Work {
  const char *what = "";
  std::vector<Range> ranges;             /* that it declares */
  std::function<void()> run;             /* may be empty */
  bool watch = false;                    /* each load and store of run is to be seen */
  bool peers = false;                    /* reaches other devices without peer access */
  bool unlocked = false;                 /* run without the lock: host functions */
  std::function<void(const Op &)> after; /* with the lock: what the checker does beside ranges */
  /* Called when an operation has been made of it (again at each launch of a graph), which is held until let_go. */
  std::function<void(Id)> placed;
  Event *records = nullptr; /* external record of a graph: each launch records the event here */
};
struct Op {
  Id id;
  Stream *stream; /* where its place is; a graph's nodes have the stream of the launch */
  int device;
  Work work;
  Clock clock;
  uint32_t blockers;      /* operations before it that have not run; and holds */
  std::vector<Op *> next; /* that wait for it */
  std::vector<Id> deps;
  uint32_t mark;
  bool running;
};
using Frontier = std::vector<Id>; /* operations of which all others are ancestors */

struct Stream {
  int device;
  uint32_t chain;
  bool blocking, legacy, destroyed, builtin;
  int priority;
  Frontier frontier;
  Clock clock;
  uint32_t joined_thread; /* the last thread whose clock was joined, by its chain, and which of its versions */
  uint64_t joined_version;
  uint64_t joined_legacy;
  uint64_t version; /* of a legacy stream: operations given to it */
  Capture *capture;
  std::vector<uint32_t> nodes; /* frontier in the capture */
  uint32_t branch;
  std::string name;
};
struct Event {
  int device;
  bool destroyed, recorded, timing;
  Frontier frontier;
  Clock clock;
  Capture *capture; /* that it was last recorded in */
  uint64_t capture_id;
  std::vector<uint32_t> nodes;
  uint32_t thread_chain, thread_time; /* who recorded it, for order on the host */
  uint32_t use;                       /* of an edge that it was recorded at last (edges.cpp); 0: of none */
};

/* --- Threads ------------------------------------------------------------------------------------------------------ */
struct Thread {
  uint64_t generation; /* of the machine that it was set up for */
  uint32_t chain;
  Clock clock;
  uint64_t version; /* changes with the clock */
  bool released;    /* somebody has joined the clock at its time */
  int device;       /* the current one: of the context, else the one that was set */
  int chosen;       /* by cudaSetDevice; 0 before */
  bool context;     /* one is current */
  cudaError_t last;
  Op *running; /* a host function runs on the thread */
  enum cudaStreamCaptureMode capture_mode;
  std::vector<Stream *> default_streams; /* cudaStreamPerThread, by device */
  std::string name;
};

struct Device {
  size_t used, peak;
  Stream *legacy;
  Pool default_pool;
  Pool *pool;
  std::vector<bool> peers; /* enabled towards */
  std::vector<Stream *> streams;
  cudaError_t broken; /* a kernel's fault: it stays */
  bool context;       /* there is the primary one */
};

/* Work that a thread waits for. */
struct Awaited {
  Frontier frontier;
  Clock clock; /* which the thread joins then */
};

/* --- The machine -------------------------------------------------------------------------------------------------- */
struct Fault {
  std::string name;
  bool any = false, from_then_on = false;
  int64_t k = 0, seen = 0, fired = 0;
  int error = 0;
  uint32_t chain = 0; /* of the thread whose calls it is about; 0: all */
};
struct Machine {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
  bool on = false;
  int threads = 0;
  uint64_t generation = 0;
  vg_options options{};
  vg_policy policy = VG_RANDOM;
  uint64_t random = 1;

  std::vector<Note> notes;
  std::vector<std::string> chains; /* names */
  std::vector<int> processes;      /* of the chains */
  int most_processes = 1;          /* that threads have been of */
  std::vector<Op *> live;          /* by Id; NULL when it has run */
  std::vector<Op *> ready, spare;
  std::vector<Op *> polling;      /* kernels that have found a word not to be as they wait for; they are run again */
  std::vector<Awaited *> awaited; /* by threads that wait now */
  int unlocked_running = 0;       /* host functions */
  uint32_t marks = 0;
  Stream *favourite = nullptr, *victim = nullptr; /* of the policies */
  std::vector<vg_span> spans;                     /* as asked for */
  bool timed = false;                             /* somebody wants to know how long things take */

  std::vector<Device> devices;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Event>> events;
  std::vector<std::unique_ptr<Pool>> pools;
  std::vector<std::unique_ptr<Alloc>> allocs;             /* of the arena, by address */
  std::map<uintptr_t, std::unique_ptr<Alloc>> registered; /* by address */
  std::unordered_map<const void *, int> handles;          /* what a handle is: HandleKind */
  std::set<std::string> words;                            /* texts that notes point to */
  std::unordered_map<const void *, Clock> host_order;     /* mutexes and others, by address */
  std::unordered_map<uintptr_t, Clock> flags;             /* words by which kernels order themselves */

  std::vector<std::string> reports;
  std::map<std::string, int> report_keys;
  bool quiet = false;
  uint64_t digest = 0; /* of who ran when */
  vg_counts counts{};
  std::vector<int64_t> call_counts;
  Fault fault;
  bool faulty = false;  /* a device is broken */
  int64_t break_at = 0; /* kernels until one has a fault; 0: none has */
};
extern Machine M;
enum HandleKind { HANDLE_STREAM = 1, HANDLE_EVENT, HANDLE_GRAPH, HANDLE_EXEC, HANDLE_POOL };

extern "C" int __real_pthread_mutex_lock(pthread_mutex_t *);
extern "C" int __real_pthread_mutex_unlock(pthread_mutex_t *);
extern "C" int __real_pthread_cond_timedwait(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
extern __thread int lock_depth;
struct Lock {
  Lock() {
    __real_pthread_mutex_lock(&M.lock);
    lock_depth++;
  }
  ~Lock() {
    lock_depth--;
    __real_pthread_mutex_unlock(&M.lock);
  }
  Lock(const Lock &) = delete;
};

inline int process_of(const Thread &thread) { return M.processes[thread.chain]; }

/* device.cpp: the device's context is the thread's current one from here on. */
void enter_context(Thread &thread, int device);

/* machine.cpp */
Thread &self();                       /* of the calling thread, in this machine */
void thread_ends();                   /* the calling one */
uint64_t draw();                      /* random bits by the seed */
uint32_t new_chain(std::string name); /* of the calling thread's process */
Id note(uint32_t chain, uint32_t time, const char *what);
const char *keep(std::string text); /* until the machine ends */
void thread_joins(Thread &thread, const Clock &clock);
/* An access by the host, or a call that is a point in its order. */
Id thread_note(Thread &thread, const char *what);
void report(const std::string &key, const char *format, ...) __attribute__((format(printf, 2, 3)));
std::string describe(Id id);

inline void digest(uint64_t more) { M.digest = (M.digest ^ more) * 0x9E3779B97F4A7C15ull + (M.digest >> 29); }

/* turns.cpp: never called with the lock, but turns_begin, turn_wake and the two of M.moved. */
struct Turn; /* a thread of the process */
bool turns_taken();
bool has_others(); /* other processes may do what this one waits for */
void turns_begin(uint64_t seed);
int64_t turn_time(); /* ns */
void turn_passes(int64_t ns);
void turn();            /* another may go on now */
bool turn_to_another(); /* false: no other can go on now */
size_t turn_count();    /* of threads */
/* Until turn_wake for the same address; false: the time came first. */
bool turn_wait(const void *on, const char *for_what, int64_t until = INT64_MAX);
void turn_wake(const void *on, bool all = true);
/* A thread: its first turn, its last, and whether it has had that. */
Turn *turn_new();
void turn_first(Turn *turn);
void turn_last();
bool turn_ended(const Turn *turn);
void turn_delete(Turn *turn);
/* Something that calls wait for has come; waits for that, without the lock meanwhile. False: nothing has for so long.
 */
void tell_moved();
bool wait_moved(int64_t ms);

/* A fault of the GPU, by a kernel: it stays, and whatever is still in its streams does not run. */
void break_device(int device, cudaError_t error);

/* memory.cpp */
Alloc *find(uintptr_t at); /* the one that at is in, or that ends before it by less than the gap; NULL elsewhere */
constexpr size_t arena_bytes = (size_t)64 << 30;
extern uintptr_t arena; /* where all but registered memory is */
inline bool in_arena(uintptr_t at) { return at - arena < arena_bytes; }
std::string describe(const Alloc &alloc);
/* `by` is the operation or the host's place from which on it may be used. NULL: the arena is full. */
Alloc *add_alloc(Kind kind, int device, size_t bytes, Id by);
/* The allocation that begins at p and may be freed, or NULL with the misuse reported. */
Alloc *owned_alloc(void *p, bool device_memory, const char *call);
bool take_memory(int device, size_t bytes); /* false: beyond the limit */
/* A range of the arena that nobody gets, at a multiple of `align`; 0: there is none. Memory of a device there. */
uintptr_t reserve_arena(size_t bytes, size_t align);
Alloc *add_alloc_at(uintptr_t base, int device, size_t bytes, Id by);
void give_memory(Alloc &alloc);
void memory_begin();
void memory_end();
void memory_leaks();

/* ipc.cpp */
uintptr_t own_memory(uintptr_t at); /* where imported memory is exported */
/* The driver's cuPointerGetAttributes. */
cudaError_t get_pointer_attributes(unsigned n, const int *attributes, void **values, unsigned long long at);
void imports_end();
/* Checks a free of memory that other processes may have open. */
void check_exports(const Alloc &alloc, const char *call);

/* A function of the driver, which the runtime finds by its name. */
struct DriverFunction {
  const char *name;
  void *function;
  unsigned since = 11030;
};
/* mapping.cpp: those for virtual memory. */
extern const std::vector<DriverFunction> mapping_functions;
void mappings_end();
void mapping_leaks();

/* check.cpp */
/* A word of device memory by which kernels order themselves: it may be read and written at any time, after what was
 * there before. */
void access_flag(Id id, const Clock &clock, int device, uintptr_t at, size_t n);
/* A use of the memory by `process` that does not come before `clock`; 0: there is none. */
Id unordered_use(const Alloc &alloc, int process, const Clock &clock);
/* device -1: the host. peers: reaches other devices without peer access. */
void access(Id id, const Clock &clock, int device, uintptr_t at, size_t n, bool write, bool peers = false);
bool reaches(const Alloc &alloc, int device); /* kernels of the device may access it */
void host_access(Thread &thread, uintptr_t at, size_t n, bool write);
void access_end(Alloc &alloc, Id id, const Clock &clock); /* a free */
/* As if nobody had ever used the bytes: written, or not yet. */
void access_reset(Alloc &alloc, size_t begin, size_t n, bool defined);
bool ordered(Id before, const Clock &clock);

/* schedule.cpp */
/* Gives work to a stream: or to the graph that it is captured into. *id may be NULL; it is 0 when captured. */
cudaError_t submit(Stream &stream, Work &&work, Id *id = nullptr);
/* For those who know the order themselves (graphs): clock and dependencies are the caller's. */
Op *new_op(Stream &stream, const char *what, uint32_t chain);
void depend(Op *op, Id before);
void start(Op *op);          /* all dependencies are given */
void release(Op *op);        /* one blocker less */
void arrive(Stream &stream); /* joins the calling thread, and the legacy stream's rules */
/* For operations that others take part in (NCCL). `later` is held: it, and all that comes after it, comes after
 * `before`, which is held too or has not run. */
void come_after(Id later, Id before);
void let_go(Id held);
void learn(Op *op, const Clock &clock); /* it, and all that comes after it, comes after that, too */
bool finished(const Frontier &frontier);
void merge(Frontier &into, const Frontier &from);
/* Runs until all of it has run. False when nothing can run any more (an operation waits for what never comes). */
bool run_until(const Frontier &target);
/* The same for a thread, which then comes after all of it, and after what that learns meanwhile. */
cudaError_t thread_awaits(Thread &thread, Awaited awaited);
void run_all();
bool run_some(uint64_t most); /* false: there is nothing that can run now */
void schedule_begin();

/* time.cpp: of events with timing, once there is one (M.timed). Called when an operation runs, for what it touches, and
 * when it has run. */
void time_begin();
void time_op_begins();
void time_touched(int device, uintptr_t at, size_t n, bool write);
void time_op_ends(const Op &op);
double time_of(const Clock &clock); /* us: when all of that had ended, as far as it has run */

/* stream.cpp */
bool finish_device(int device); /* runs all that its streams have, without telling the host; false: it cannot */
Stream *stream_of(cudaStream_t handle, const char *call); /* NULL: not a stream (reported) */
Stream *new_stream(int device, bool blocking, const char *name);
/* Operations given to `later` from here on come after all that is in `earlier` now, as by an event of the callee's own.
 * Neither is captured, or both are, by the same graph. */
void come_after_stream(Stream &later, Stream &earlier);

/* graph.cpp */
cudaError_t capture_work(Stream &stream, Work &&work);
cudaError_t capture_record(Stream &stream, Event &event);
cudaError_t capture_wait(Stream &stream, Event &event);
bool unsafe(Thread &thread, const char *call); /* a capture forbids the call: reported, and the capture is invalid */
cudaError_t invalidate(Capture *capture, cudaError_t error);
void graphs_come_after(const std::function<bool(const Frontier &)> &touched, const Clock &clock);
void graphs_end();
void graph_leaks();

/* observe.cpp */
void watch_begin(Op &op); /* of a kernel */
/* False: the kernel is to be run again. */
bool watch_end(Op &op);
void kernel_begins(const void *object, size_t bytes); /* its own, which begin there */
void kernel_seen(const void *at, size_t n, int write);
void kernel_pauses();           /* the one that runs is to be run again from its start */
void host_seen(Thread &thread); /* what the thread has touched since the last call */
void host_thread_ends();        /* the calling one */
bool sees_host();               /* are the host's accesses seen in this build? */

/* edges.cpp: what an event stands for from now on, and that somebody waits for it, or asks. */
void edge_recorded(Event &event);
void edge_awaited(const Event &event);

/* kernels.cpp */
void kernels_begin();

/* calls.cpp: each function of the runtime starts with VG_CALL(name) */
struct Api {
  struct Before {
    Before() { turn(); }
  } before;
  Lock lock;
  Thread *thread;
  int flags;
  cudaError_t fault; /* what to return instead of doing it */
  Api(int index, const char *name, int flags);
  cudaError_t end(cudaError_t error);
};
enum {
  CALL_PLAIN = 0,
  CALL_ALLOC = 1,
  CALL_FREE = 2,
  CALL_CREATE = 4,
  CALL_DESTROY = 8,
  CALL_SYNC = 16,
  CALL_COPY = 32,
  CALL_LAUNCH = 64,
  CALL_NO_GPU_NEEDED = 128,
  CALL_ALWAYS = 256,    /* also of a GPU with a fault that stays */
  CALL_NO_CONTEXT = 512 /* by a thread without one, which has none afterwards */
};
int call_index(const char *name);
void count(int64_t &counter); /* unless the call is a test's own */
#define VG_CALL(name, flags) \
  static const int call_index_ = call_index(#name); \
  Api api(call_index_, #name, flags); \
  if (api.fault != cudaSuccess && (!((flags) & (CALL_FREE | CALL_DESTROY)) || M.devices.empty())) \
  return api.end(api.fault)
#define VG_END(error) return api.end(api.fault != cudaSuccess ? api.fault : (error))

} // namespace vg

/* nccl.cpp, in builds that have it. */
extern "C" void vg_nccl_leaks() __attribute__((weak));
#endif
