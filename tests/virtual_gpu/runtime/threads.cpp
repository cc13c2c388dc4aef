/* Order between host threads, by the pthread calls that make it, and turns at them (turns.cpp): these are wrapped when
 * tests are linked. */
#include "machine.hpp"

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <ctime>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

using namespace vg;

/* Shared memory that processes have at addresses of their own: order goes by what it is of the file. */
struct Mapping {
  size_t bytes;
  uintptr_t file; /* where the file's bytes would be */
};
static std::map<uintptr_t, Mapping> mappings; /* under the lock */
static std::map<std::pair<dev_t, ino_t>, uintptr_t> files;

static const void *one_address(const void *p) {
  uintptr_t at = (uintptr_t)p;
  auto it = mappings.upper_bound(at);
  if (it == mappings.begin())
    return p;
  --it;
  return at - it->first < it->second.bytes ? (const void *)(it->second.file + (at - it->first)) : p;
}

static void hold(const void *at) { /* what the thread did comes before what follows an acquire of `at` */
  Lock lock;
  if (!M.on)
    return;
  Thread &thread = self();
  host_seen(thread);
  M.host_order[one_address(at)].join(thread.clock);
  thread.released = true;
}

static void get(const void *at) {
  Lock lock;
  if (!M.on)
    return;
  Thread &thread = self();
  host_seen(thread);
  auto it = M.host_order.find(one_address(at));
  if (it != M.host_order.end())
    thread_joins(thread, it->second);
}

static void forget(const void *at) {
  Lock lock;
  M.host_order.erase(at);
}

enum class State { Absent, Idle, Works };
static State let_device_work(uint64_t steps) {
  Lock lock;
  return !M.on ? State::Absent : run_some(steps) ? State::Works : State::Idle;
}

void vg_host_release(const void *at) { hold(at); }
void vg_host_acquire(const void *at) { get(at); }

/* --- Calls -------------------------------------------------------------------------------------------------------- */
extern "C" {
int __real_pthread_mutex_trylock(pthread_mutex_t *);
int __real_pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *);
int __real_pthread_cond_signal(pthread_cond_t *);
int __real_pthread_cond_broadcast(pthread_cond_t *);
int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __real_pthread_join(pthread_t, void **);
int __real_nanosleep(const struct timespec *, struct timespec *);
int __real_sched_yield(void);
int __real_sigwait(const sigset_t *, int *);
int __real_pthread_kill(pthread_t, int);
int __real_poll(struct pollfd *, nfds_t, int);
long __real_syscall(long, ...);
void *__real_mmap(void *, size_t, int, int, int, off_t);
int __real_munmap(void *, size_t);
int __real_clock_gettime(clockid_t, struct timespec *);

static int64_t nanoseconds(const struct timespec *t) { return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec; }

/* The time of the turns; CLOCK_MONOTONIC_RAW is the machine's. */
int __wrap_clock_gettime(clockid_t clock, struct timespec *t) {
  if (!turns_taken() || (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME))
    return __real_clock_gettime(clock, t);
  int64_t now = turn_time();
  *t = {(time_t)(now / 1000000000), (long)(now % 1000000000)};
  return 0;
}

static void count_sleep() {
  static const int index = call_index("nanosleep");
  Lock lock;
  M.call_counts[(size_t)index] += M.on;
}

/* While the host lets time pass the device works; where it has nothing to do the host need not sleep for long. */
int __wrap_nanosleep(const struct timespec *wanted, struct timespec *left) {
  count_sleep();
  State device = let_device_work(32);
  if (turns_taken()) {
    turn_wait(wanted, "sleeps", turn_time() + nanoseconds(wanted));
    return 0;
  }
  if (device == State::Works)
    return 0;
  struct timespec brief = {0, 50000};
  bool briefly = device == State::Idle && wanted->tv_sec == 0 && wanted->tv_nsec > brief.tv_nsec;
  return briefly ? __real_nanosleep(&brief, nullptr) : __real_nanosleep(wanted, left);
}

/* For the world outside, which has its own time. */
static int poll_outside(struct pollfd *fds, nfds_t n, int ms) {
  struct timespec before, after;
  __real_clock_gettime(CLOCK_MONOTONIC, &before);
  int found = __real_poll(fds, n, ms);
  __real_clock_gettime(CLOCK_MONOTONIC, &after);
  turn_passes(nanoseconds(&after) - nanoseconds(&before));
  return found;
}

/* Another thread may be at the other side: it goes on meanwhile. Time is that of the turns then. */
int __wrap_poll(struct pollfd *fds, nfds_t n, int ms) {
  if (!turns_taken() || turn_count() < 2)
    return poll_outside(fds, n, ms);
  int64_t until = ms < 0 ? INT64_MAX : turn_time() + (int64_t)ms * 1000000;
  for (;;) {
    bool alone = ms != 0 && !turn_to_another();
    int found = __real_poll(fds, n, alone ? 1 : 0);
    if (found != 0 || turn_time() >= until)
      return found;
    if (alone)
      turn_passes(1000000);
  }
}

/* The one call of the system that is made by number: a wait at a word, and its end. */
long __wrap_syscall(long number, ...) {
  va_list list;
  long a[6];
  va_start(list, number);
  for (long &argument : a)
    argument = va_arg(list, long);
  va_end(list);
  int how = (int)a[1] & FUTEX_CMD_MASK;
  if (number != SYS_futex || !turns_taken() || (how != FUTEX_WAIT && how != FUTEX_WAKE))
    return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  const void *word;
  {
    Lock lock;
    word = one_address((const void *)a[0]);
  }
  if (how == FUTEX_WAKE) {
    if (has_others())
      __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    turn_wake(word);
    turn();
    return 0;
  }
  if (has_others()) { /* which wake nobody here: it looks again and again */
    struct timespec brief = {0, 100000};
    turn_wait(word, "waits at the word", turn_time() + nanoseconds(&brief));
    return 0;
  }
  if (*(volatile uint32_t *)a[0] == (uint32_t)a[2])
    turn_wait(word, "waits at the word", a[3] ? turn_time() + nanoseconds((const struct timespec *)a[3]) : INT64_MAX);
  return 0;
}

static void forget_mappings(uintptr_t begin, uintptr_t end) {
  auto it = mappings.upper_bound(begin);
  if (it != mappings.begin() && std::prev(it)->first + std::prev(it)->second.bytes > begin)
    --it;
  while (it != mappings.end() && it->first < end)
    it = mappings.erase(it);
}

void *__wrap_mmap(void *wanted, size_t n, int protection, int flags, int fd, off_t offset) {
  void *at = __real_mmap(wanted, n, protection, flags, fd, offset);
  struct stat info;
  if (at == MAP_FAILED || lock_depth > 0 || !turns_taken() || (flags & MAP_ANONYMOUS) || !(flags & MAP_SHARED) ||
      fstat(fd, &info) != 0)
    return at;
  Lock lock;
  uintptr_t &file = files[{info.st_dev, info.st_ino}];
  if (file == 0)
    file = files.size() << 48; /* where nothing is mapped */
  forget_mappings((uintptr_t)at, (uintptr_t)at + n);
  mappings[(uintptr_t)at] = {n, file + (uintptr_t)offset};
  return at;
}

int __wrap_munmap(void *at, size_t n) {
  if (lock_depth == 0 && turns_taken()) {
    Lock lock;
    forget_mappings((uintptr_t)at, (uintptr_t)at + n);
  }
  return __real_munmap(at, n);
}

/* For a signal of this process's own: nobody outside sends one. */
static bool signalled;

int __wrap_sigwait(const sigset_t *set, int *number) {
  if (!turns_taken())
    return __real_sigwait(set, number);
  while (!signalled)
    turn_wait(&signalled, "waits for a signal");
  signalled = false;
  for (*number = 1; !sigismember(set, *number);)
    ++*number;
  return 0;
}

int __wrap_pthread_kill(pthread_t thread, int number) {
  if (!turns_taken())
    return __real_pthread_kill(thread, number);
  signalled = true;
  turn_wake(&signalled);
  turn();
  return 0;
}

int __wrap_sched_yield(void) {
  State device = let_device_work(4);
  if (turns_taken()) {
    turn_to_another();
    return 0;
  }
  return device == State::Works ? 0 : __real_sched_yield();
}

static int take(pthread_mutex_t *mutex) {
  int error = turns_taken() ? __real_pthread_mutex_trylock(mutex) : __real_pthread_mutex_lock(mutex);
  while (turns_taken() && error == EBUSY) {
    turn_wait(mutex, "waits for the mutex at");
    error = __real_pthread_mutex_trylock(mutex);
  }
  if (!error || error == EOWNERDEAD)
    get(mutex);
  return error;
}

static int give(pthread_mutex_t *mutex) {
  hold(mutex);
  int error = __real_pthread_mutex_unlock(mutex);
  turn_wake(mutex);
  return error;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex) {
  turn();
  return take(mutex);
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex) {
  turn();
  int error = __real_pthread_mutex_trylock(mutex);
  if (!error)
    get(mutex);
  return error;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex) {
  int error = give(mutex);
  turn();
  return error;
}

static int wait_for(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until) {
  give(mutex);
  bool told = turn_wait(cond, "waits for the condition at", until);
  int error = take(mutex);
  return error ? error : told ? 0 : ETIMEDOUT;
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex) {
  if (turns_taken())
    return wait_for(cond, mutex, INT64_MAX);
  hold(mutex);
  int error = __real_pthread_cond_wait(cond, mutex);
  get(mutex);
  return error;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until) {
  if (turns_taken())
    return wait_for(cond, mutex, nanoseconds(until));
  hold(mutex);
  int error = __real_pthread_cond_timedwait(cond, mutex, until);
  get(mutex);
  return error;
}

int __wrap_pthread_cond_signal(pthread_cond_t *cond) {
  if (!turns_taken())
    return __real_pthread_cond_signal(cond);
  turn_wake(cond, false);
  turn();
  return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *cond) {
  if (!turns_taken())
    return __real_pthread_cond_broadcast(cond);
  turn_wake(cond);
  turn();
  return 0;
}

struct Birth {
  void *(*run)(void *);
  void *argument;
  Turn *turn;
};

static std::map<pthread_t, Turn *> unjoined;

static void *born(void *p) {
  Birth birth = *(Birth *)p;
  turn_first(birth.turn);
  void *me = (void *)pthread_self();
  get(p);
  forget(p);
  forget(me); /* an earlier thread's */
  delete (Birth *)p;
  void *result = birth.run(birth.argument);
  hold(me);
  host_thread_ends();
  {
    Lock lock;
    thread_ends();
  }
  turn_last();
  return result;
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
  Birth *birth = new Birth{run, argument, turn_new()};
  Turn *turn = birth->turn;
  hold(birth);
  int error = __real_pthread_create(thread, attributes, born, birth);
  if (error) {
    forget(birth);
    delete birth;
    turn_delete(turn);
    return error;
  }
  if (turns_taken())
    unjoined[*thread] = turn;
  vg::turn();
  return 0;
}

int __wrap_pthread_join(pthread_t thread, void **result) {
  auto it = turns_taken() ? unjoined.find(thread) : unjoined.end();
  if (it != unjoined.end()) {
    Turn *turn = it->second;
    unjoined.erase(it);
    while (!turn_ended(turn))
      turn_wait(turn, "waits for the end of the thread at");
    turn_delete(turn);
  }
  int error = __real_pthread_join(thread, result);
  if (!error)
    get((void *)thread);
  return error;
}
}
