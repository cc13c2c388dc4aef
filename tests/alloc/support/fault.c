#include "fault.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *at, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_posix_memalign(void **at, size_t alignment, size_t size);
char *__real_strdup(const char *text);
void __real_free(void *at);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *at, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_posix_memalign(void **at, size_t alignment, size_t size);
char *__wrap_strdup(const char *text);
void __wrap_free(void *at);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument);

static _Thread_local bool marked;
static atomic_bool armed;
static _Atomic int64_t counted, victim, live, calls, bytes, peak;
static atomic_int fired;

void fault_mark(bool counts) { marked = counts; }

void fault_arm(int64_t k) {
  atomic_store(&counted, 0);
  atomic_store(&victim, k);
  atomic_store(&fired, FAULT_NONE);
  atomic_store(&peak, atomic_load(&bytes));
  atomic_store(&armed, true);
}

int64_t fault_disarm(void) {
  atomic_store(&armed, false);
  return atomic_load(&counted);
}

fault_kind fault_fired(void) { return (fault_kind)atomic_load(&fired); }
int64_t fault_live(void) { return atomic_load(&live); }
int64_t fault_calls(void) { return atomic_load(&calls); }
int64_t fault_bytes(void) { return atomic_load(&bytes); }
int64_t fault_peak(void) { return atomic_load(&peak); }

/* True for the call that fails. */
static bool fails(fault_kind kind) {
  atomic_fetch_add(&calls, 1);
  if (!marked || !atomic_load(&armed) || atomic_fetch_add(&counted, 1) != atomic_load(&victim))
    return false;
  atomic_store(&fired, (int)kind);
  return true;
}

static void grown(int64_t by) {
  int64_t now = atomic_fetch_add(&bytes, by) + by, most = atomic_load(&peak);
  while (now > most && !atomic_compare_exchange_weak(&peak, &most, now))
    continue;
}

static void *born(void *at) {
  if (at != NULL) {
    atomic_fetch_add(&live, 1);
    grown((int64_t)malloc_usable_size(at));
  }
  return at;
}

static void *allocation_refused(void) {
  errno = ENOMEM;
  return NULL;
}

void *__wrap_malloc(size_t size) { return fails(FAULT_MEMORY) ? allocation_refused() : born(__real_malloc(size)); }
void *__wrap_calloc(size_t n, size_t size) {
  return fails(FAULT_MEMORY) ? allocation_refused() : born(__real_calloc(n, size));
}

void *__wrap_realloc(void *at, size_t size) {
  if (fails(FAULT_MEMORY))
    return allocation_refused();
  int64_t old = at != NULL ? (int64_t)malloc_usable_size(at) : 0;
  void *moved = __real_realloc(at, size);
  if (at == NULL)
    return born(moved);
  if (moved != NULL)
    grown((int64_t)malloc_usable_size(moved) - old);
  return moved;
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
  return fails(FAULT_MEMORY) ? allocation_refused() : born(__real_aligned_alloc(alignment, size));
}

int __wrap_posix_memalign(void **at, size_t alignment, size_t size) {
  if (fails(FAULT_MEMORY))
    return ENOMEM;
  int error = __real_posix_memalign(at, alignment, size);
  if (error == 0)
    born(*at);
  return error;
}

char *__wrap_strdup(const char *text) { return fails(FAULT_MEMORY) ? allocation_refused() : born(__real_strdup(text)); }

void __wrap_free(void *at) {
  if (at != NULL) {
    atomic_fetch_sub(&live, 1);
    atomic_fetch_sub(&bytes, (int64_t)malloc_usable_size(at));
  }
  __real_free(at);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) {
  return fails(FAULT_THREAD) ? EAGAIN : __real_pthread_create(thread, attributes, body, argument);
}
