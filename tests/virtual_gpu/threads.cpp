/* Order between host threads, by the pthread calls that make it: these are wrapped when tests are linked. */
#include "machine.hpp"

using namespace vg;

static void hold(const void *at) { /* what the thread did comes before what follows an acquire of `at` */
  Lock lock;
  if (!M.on)
    return;
  Thread &thread = self();
  host_seen(thread);
  M.host_order[at].join(thread.clock);
  thread.released = true;
}

static void get(const void *at) {
  Lock lock;
  if (!M.on)
    return;
  Thread &thread = self();
  host_seen(thread);
  auto it = M.host_order.find(at);
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

extern "C" {
int __real_pthread_mutex_trylock(pthread_mutex_t *);
int __real_pthread_cond_wait(pthread_cond_t *, pthread_mutex_t *);
int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __real_pthread_join(pthread_t, void **);
int __real_pthread_barrier_wait(pthread_barrier_t *);

int __real_nanosleep(const struct timespec *, struct timespec *);
int __real_sched_yield(void);

/* While the host lets time pass the device works; where it has nothing to do the host need not sleep for long. */
int __wrap_nanosleep(const struct timespec *wanted, struct timespec *left) {
  State device = let_device_work(32);
  if (device == State::Works)
    return 0;
  struct timespec brief = {0, 50000};
  bool briefly = device == State::Idle && wanted->tv_sec == 0 && wanted->tv_nsec > brief.tv_nsec;
  return briefly ? __real_nanosleep(&brief, nullptr) : __real_nanosleep(wanted, left);
}

int __wrap_sched_yield(void) { return let_device_work(4) == State::Works ? 0 : __real_sched_yield(); }

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex) {
  int error = __real_pthread_mutex_lock(mutex);
  if (!error)
    get(mutex);
  return error;
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex) {
  int error = __real_pthread_mutex_trylock(mutex);
  if (!error)
    get(mutex);
  return error;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex) {
  hold(mutex);
  return __real_pthread_mutex_unlock(mutex);
}

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex) {
  hold(mutex);
  int error = __real_pthread_cond_wait(cond, mutex);
  get(mutex);
  return error;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until) {
  hold(mutex);
  int error = __real_pthread_cond_timedwait(cond, mutex, until);
  get(mutex);
  return error;
}

int __wrap_pthread_barrier_wait(pthread_barrier_t *barrier) {
  hold(barrier);
  int error = __real_pthread_barrier_wait(barrier);
  get(barrier);
  return error;
}

struct Birth {
  void *(*run)(void *);
  void *argument;
};

static void *born(void *p) {
  Birth birth = *(Birth *)p;
  void *me = (void *)pthread_self();
  get(p);
  forget(p);
  forget(me); /* an earlier thread's */
  delete (Birth *)p;
  void *result = birth.run(birth.argument);
  hold(me);
  host_thread_ends();
  Lock lock;
  thread_ends();
  return result;
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
  Birth *birth = new Birth{run, argument};
  hold(birth);
  int error = __real_pthread_create(thread, attributes, born, birth);
  if (error)
    delete birth;
  return error;
}

int __wrap_pthread_join(pthread_t thread, void **result) {
  int error = __real_pthread_join(thread, result);
  if (!error)
    get((void *)thread);
  return error;
}
}
