/* Turns of the host's threads: a seed gives the same run each time, another seed another one; who waits is woken, is
 * late by the time of the turns, and all who wait for ever are told of. */
#include "support/fixtures/rank_threads.h"
#include "virtual_gpu.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/fixtures/case.h"

#define OK(call) assert_int_equal(call, 0)

enum { THREADS = 4, STEPS = 6, SEEDS = 200 };

typedef struct world {
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  int n, order[THREADS * STEPS]; /* who had the mutex */
  int present;
  cudaStream_t stream;
  char *memory;
} world;

static int64_t time_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void sleep_us(int64_t us) { nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL); }

static world world_begin(uint64_t seed) {
  vg_begin(&(vg_options){.seed = seed});
  return (world){.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
}

/* --- The first ---------------------------------------------------------------------------------------------------- */
static void takes_the_mutex(void *user, int64_t number) {
  world *w = user;
  for (int i = 0; i < STEPS; i++) {
    pthread_mutex_lock(&w->mutex);
    w->order[w->n++] = (int)number;
    cudaMemsetAsync(w->memory, (int)number, 16, w->stream);
    pthread_mutex_unlock(&w->mutex);
  }
}

static uint64_t contest(uint64_t seed, world *w) {
  *w = world_begin(seed);
  OK(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking));
  OK(cudaMalloc((void **)&w->memory, 16));
  rank_threads_run(THREADS, takes_the_mutex, w);
  assert_int_equal(w->n, THREADS * STEPS);
  OK(cudaStreamSynchronize(w->stream));
  OK(cudaFree(w->memory));
  OK(cudaStreamDestroy(w->stream));
  OK(vg_end());
  return vg_digest();
}

CASE(a_seed_gives_one_run) {
  uint64_t digests[SEEDS];
  int others = 0, first[THREADS] = {0};
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    world one, again;
    digests[seed] = contest(seed, &one);
    assert_true(contest(seed, &again) == digests[seed]);
    assert_memory_equal(one.order, again.order, sizeof one.order);
    first[one.order[0]]++;
    bool is_new = true;
    for (uint64_t i = 0; i < seed; i++)
      is_new &= digests[i] != digests[seed];
    others += is_new;
  }
  assert_true(others > SEEDS * 9 / 10);
  for (int i = 0; i < THREADS; i++)
    assert_true(first[i] > 0);
}

/* --- Mistakes that only some orders show -------------------------------------------------------------------------- */
static void adds_carelessly(void *user, int64_t number) { /* reads, lets others go on, writes */
  world *w = user;
  for (int i = 0; i < STEPS; i++) {
    pthread_mutex_lock(&w->mutex);
    int n = w->n;
    pthread_mutex_unlock(&w->mutex);
    pthread_mutex_lock(&w->mutex);
    w->n = n + 1;
    pthread_mutex_unlock(&w->mutex);
  }
}

CASE(a_mistake_comes_again_with_its_seed) {
  int wrong = 0;
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    int n[2];
    for (int i = 0; i < 2; i++) {
      world w = world_begin(seed);
      rank_threads_run(2, adds_carelessly, &w);
      OK(vg_end());
      n[i] = w.n;
    }
    assert_int_equal(n[0], n[1]);
    wrong += n[0] != 2 * STEPS;
  }
  assert_true(wrong > SEEDS / 4 && wrong < SEEDS);
}

/* --- Waiting ------------------------------------------------------------------------------------------------------ */
static void comes_and_waits(void *user, int64_t number) {
  world *w = user;
  pthread_mutex_lock(&w->mutex);
  if (++w->present == THREADS)
    pthread_cond_broadcast(&w->cond);
  while (w->present < THREADS)
    pthread_cond_wait(&w->cond, &w->mutex);
  pthread_mutex_unlock(&w->mutex);
  sleep_us(1000 * (THREADS - number)); /* the last comes first */
  pthread_mutex_lock(&w->mutex);
  w->order[w->n++] = (int)number;
  pthread_mutex_unlock(&w->mutex);
}

CASE(who_waits_is_woken_and_sleep_has_its_length) {
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    world w = world_begin(seed);
    int64_t start = time_now();
    rank_threads_run(THREADS, comes_and_waits, &w);
    assert_in_range(time_now() - start, 1000000 * THREADS, 1000000 * THREADS + 500000);
    for (int i = 0; i < THREADS; i++)
      assert_int_equal(w.order[i], THREADS - 1 - i);
    OK(vg_end());
  }
}

static void waits_until(void *user, int64_t number) {
  world *w = user;
  int64_t until = time_now() + 1000000 * (1 + number);
  struct timespec t = {until / 1000000000, until % 1000000000};
  pthread_mutex_lock(&w->mutex);
  int error = 0;
  while (error == 0 && w->present == 0)
    error = pthread_cond_timedwait(&w->cond, &w->mutex, &t);
  w->order[number] = error;
  if (error == ETIMEDOUT && time_now() < until)
    w->order[number] = -1;
  pthread_mutex_unlock(&w->mutex);
}

static void tells(void *user, int64_t number) {
  world *w = user;
  sleep_us(2500);
  pthread_mutex_lock(&w->mutex);
  w->present = 1;
  pthread_mutex_unlock(&w->mutex);
  pthread_cond_broadcast(&w->cond);
}

static void waits_or_tells(void *user, int64_t number) { (number == THREADS - 1 ? tells : waits_until)(user, number); }

CASE(who_is_late_is_told_so) {
  struct timespec begun, done;
  clock_gettime(CLOCK_MONOTONIC_RAW, &begun);
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    world w = world_begin(seed);
    rank_threads_run(THREADS, waits_or_tells, &w); /* at 1 ms, at 2 ms, and at 2.5 ms before 3 ms have passed */
    assert_int_equal(w.order[0], ETIMEDOUT);
    assert_int_equal(w.order[1], ETIMEDOUT);
    assert_int_equal(w.order[2], 0);
    sleep_us(60 * 1000000); /* takes no time */
    OK(vg_end());
  }
  clock_gettime(CLOCK_MONOTONIC_RAW, &done);
  assert_true(done.tv_sec - begun.tv_sec < 60);
}

static void signals(void *user, int64_t number) {
  world *w = user;
  bool waits = number != THREADS - 1;
  for (int i = 1; i < THREADS && !waits; i++) {
    pthread_mutex_lock(&w->mutex);
    w->present++;
    pthread_cond_signal(&w->cond);
    pthread_mutex_unlock(&w->mutex);
  }
  pthread_mutex_lock(&w->mutex);
  while (waits && w->present == 0)
    pthread_cond_wait(&w->cond, &w->mutex);
  if (waits) {
    w->present--;
    w->order[w->n++] = (int)number;
  }
  pthread_mutex_unlock(&w->mutex);
}

CASE(a_signal_wakes_one_by_the_seed) {
  int first[THREADS] = {0};
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    world w = world_begin(seed);
    rank_threads_run(THREADS, signals, &w);
    assert_int_equal(w.n, THREADS - 1);
    assert_int_equal(w.present, 0);
    first[w.order[0]]++;
    OK(vg_end());
  }
  for (int i = 0; i < THREADS - 1; i++)
    assert_true(first[i] > 0);
}

static void spins(void *user, int64_t number) {
  world *w = user;
  if (number == 0)
    while (!__atomic_load_n(&w->present, __ATOMIC_ACQUIRE))
      sched_yield();
  else
    __atomic_store_n(&w->present, 1, __ATOMIC_RELEASE);
}

CASE(who_yields_lets_another_go_on) {
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    world w = world_begin(seed);
    rank_threads_run(2, spins, &w);
    OK(vg_end());
  }
}

/* --- Waiting for ever --------------------------------------------------------------------------------------------- */
static void takes_two(void *user, int64_t number) {
  world *w = user;
  static pthread_mutex_t other = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_t *first = number == 0 ? &w->mutex : &other, *second = number == 0 ? &other : &w->mutex;
  for (int i = 0; i < 100; i++) {
    pthread_mutex_lock(first);
    pthread_mutex_lock(second);
    pthread_mutex_unlock(second);
    pthread_mutex_unlock(first);
  }
}

CASE(a_deadlock_is_told_with_who_waits) {
  int end[2];
  OK(pipe(end));
  pid_t child = fork();
  if (child == 0) {
    signal(SIGABRT, SIG_DFL);
    dup2(end[1], STDERR_FILENO);
    world w = world_begin(1);
    rank_threads_run(2, takes_two, &w);
    _exit(0);
  }
  close(end[1]);
  char text[2000] = "";
  size_t n = 0;
  for (ssize_t got; n + 1 < sizeof text && (got = read(end[0], text + n, sizeof text - n - 1)) > 0;)
    n += (size_t)got;
  close(end[0]);
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  assert_non_null(strstr(text, "deadlock: all threads wait for ever"));
  assert_non_null(strstr(text, "thread 0 of the process: waits for the end of the thread"));
  assert_non_null(strstr(text, "thread 1 of the process: waits for the mutex"));
  assert_non_null(strstr(text, "thread 2 of the process: waits for the mutex"));
}

RUN_CASES
