/* Segments of this process, and the list of them in the order of their addresses.
 *
 * Pages of a memory file come one by one where the system gives it no huge ones. Touching them then costs eight times
 * as much as huge pages of private memory. One touch and MADV_COLLAPSE make a huge page of each, at the price of
 * private ones. That takes the memory when a segment is allocated, not when it is written. */
#define _GNU_SOURCE /* fallocate, MADV_HUGEPAGE */
#include "device/cpu/segment.h"

#include "device/cpu/threads.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HUGE = 2 << 20 };
#define LONGEST ((int64_t)1 << 62) /* bytes of a file, nearly all of which are holes */

typedef struct shared_segment {
  char *at;
  rs_shared_place place;
  bool inherited; /* from the parent of a fork: not of this process's file */
} shared_segment;

/* The one file of the process: an address alone tells where it is, whichever device it was allocated by. */
static struct {
  pthread_mutex_t mutex;
  rs_forkable forkable;
  int64_t users;
  int fd, reader;                  /* to be read alone, for other processes; -1: not yet */
  int64_t end, length;             /* of the ranges given out; of the file */
  RS_VEC(shared_segment) segments; /* by address */
} file = {.mutex = PTHREAD_MUTEX_INITIALIZER, .fd = -1, .reader = -1};

static int64_t round_up(int64_t bytes, int64_t to) { return rs_ceil_div(bytes, to) * to; }

/* Index of the first segment behind an address. */
static int64_t find_behind(const char *at) {
  int64_t low = 0, high = file.segments.n;
  RS_LOWER_BOUND(low, high, file.segments.at[i].at <= at);
  return low;
}

/* --- The file ----------------------------------------------------------------------------------------------------- */

static void close_file(void) {
  if (file.fd >= 0)
    close(file.fd);
  if (file.reader >= 0)
    close(file.reader);
  file.fd = file.reader = -1;
}

/* A child of fork writes to copies of the pages, as to all its memory. It has a file of its own if it needs one. */
static void copy_segments(rs_forkable *self) {
  (void)self;
  for (int64_t i = 0; i < file.segments.n; i++) {
    shared_segment *s = &file.segments.at[i];
    if (!s->inherited)
      (void)mmap(s->at, (size_t)s->place.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file.fd,
                 (off_t)s->place.offset);
    s->inherited = true;
  }
  close_file();
}

__attribute__((constructor)) static void watch_file(void) {
  rs_forkable_hold(&file.forkable, copy_segments, &file.mutex);
}

/* No other user opens it anew, through /proc: its mode lets the owner read alone. */
static reshard_status make_file(void) {
  int64_t length = rs_memory_file_limit(LONGEST);
  int fd, failed = rs_memory_file_make("reshard", length, S_IRUSR, &fd);
  if (failed != 0)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "no memory for other processes: a memory file of %lld bytes: %s",
                    (long long)length, strerror(failed));
  file.fd = fd;
  file.end = 0;
  file.length = length;
  return RESHARD_SUCCESS;
}

static reshard_status make_reader(void) {
  int failed = rs_memory_file_reopen(file.fd, &file.reader);
  if (failed == 0)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_SYSTEM, "this process's memory file, /proc/self/fd/%d, to be read: %s", file.fd,
                  strerror(failed));
}

reshard_status rs_shared_open(int *fd) {
  pthread_mutex_lock(&file.mutex);
  reshard_status status = file.fd < 0 ? make_file() : RESHARD_SUCCESS;
  if (fd != NULL && file.reader < 0)
    RS_THEN(status, make_reader());
  if (status == RESHARD_SUCCESS) {
    file.users++;
    if (fd != NULL)
      *fd = file.reader;
  } else if (file.users == 0) {
    close_file();
  }
  pthread_mutex_unlock(&file.mutex);
  return status;
}

void rs_shared_close(void) {
  pthread_mutex_lock(&file.mutex);
  if (--file.users == 0) {
    close_file();
    free(file.segments.at);
    memset(&file.segments, 0, sizeof file.segments);
  }
  pthread_mutex_unlock(&file.mutex);
}

/* --- Segments ----------------------------------------------------------------------------------------------------- */

static int64_t alignment(int64_t bytes) { return bytes >= HUGE ? HUGE : sysconf(_SC_PAGESIZE); }

char *rs_shared_map(int fd, const rs_shared_place *place, int protection) {
  size_t bytes = (size_t)place->bytes, align = (size_t)alignment(place->bytes);
  char *room = mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED)
    return NULL;
  size_t before = (align - (uintptr_t)room % align) % align;
  if (mmap(room + before, bytes, protection, MAP_SHARED | MAP_FIXED, fd, (off_t)place->offset) == MAP_FAILED) {
    munmap(room, bytes + align);
    return NULL;
  }
  if (before > 0)
    munmap(room, before);
  munmap(room + before + bytes, align - before);
  return room + before;
}

/* Huge pages where they fit: lazily where the system has them for such files, else made now. */
static void ask_huge_pages(char *at, int64_t bytes) {
#if defined(MADV_HUGEPAGE) && defined(__linux__)
  enum { COLLAPSE = 25 /* MADV_COLLAPSE, of Linux 6.1 */ };
  unsigned char resident = 0;
  int64_t whole = bytes / HUGE * HUGE;
  long page = sysconf(_SC_PAGESIZE);
  if (whole == 0)
    return;
  (void)madvise(at, (size_t)whole, MADV_HUGEPAGE);
  *(volatile char *)at = 0;
  if (mincore(at + HUGE - page, (size_t)page, &resident) == 0 && (resident & 1) != 0)
    return;
  for (int64_t i = HUGE; i < whole; i += HUGE)
    *(volatile char *)(at + i) = 0;
  (void)madvise(at, (size_t)whole, COLLAPSE);
#else
  (void)at, (void)bytes;
#endif
}

static reshard_status add_segment(size_t given, shared_segment *added) {
  if (file.fd < 0)
    RS_TRY(make_file()); /* in a child of fork */
  int64_t offset = round_up(file.end, alignment((int64_t)given)), page = sysconf(_SC_PAGESIZE);
  if (offset > file.length || given > (size_t)(file.length - offset) / (size_t)page * (size_t)page)
    return rs_error(RESHARD_ERROR_OUT_OF_MEMORY, "%zu bytes of shared memory: %lld of %lld of the memory file are used",
                    given, (long long)file.end, (long long)file.length);
  shared_segment made = {.place = {offset, round_up((int64_t)given, page)}};
  RS_TRY(rs_vec_reserve(&file.segments, file.segments.n + 1));
  made.at = rs_shared_map(file.fd, &made.place, PROT_READ | PROT_WRITE);
  if (made.at == NULL)
    return rs_error_memory(given);
  int64_t i = find_behind(made.at);
  shared_segment *all = file.segments.at;
  memmove(all + i + 1, all + i, (size_t)(file.segments.n - i) * sizeof *all);
  all[i] = *added = made;
  file.segments.n++;
  file.end = offset + made.place.bytes;
  return RESHARD_SUCCESS;
}

reshard_status rs_shared_alloc(size_t bytes, void **memory) {
  shared_segment added = {.at = NULL};
  reshard_status status = RESHARD_SUCCESS;
  if (bytes > 0) {
    pthread_mutex_lock(&file.mutex);
    status = add_segment(bytes, &added);
    pthread_mutex_unlock(&file.mutex);
  }
  RS_TRY(status);
  ask_huge_pages(added.at, added.place.bytes);
  *memory = added.at;
  return RESHARD_SUCCESS;
}

void rs_shared_free(void *memory) {
  if (memory == NULL)
    return;
  pthread_mutex_lock(&file.mutex);
  int64_t i = find_behind(memory) - 1;
  shared_segment s = file.segments.at[i];
  file.segments.n--;
  memmove(file.segments.at + i, file.segments.at + i + 1, (size_t)(file.segments.n - i) * sizeof *file.segments.at);
  munmap(s.at, (size_t)s.place.bytes);
#ifdef FALLOC_FL_PUNCH_HOLE
  if (!s.inherited)
    (void)fallocate(file.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)s.place.offset, (off_t)s.place.bytes);
#endif
  pthread_mutex_unlock(&file.mutex);
}

bool rs_shared_find(const void *begin, const void *end, rs_shared_place *place, int64_t *inside) {
  pthread_mutex_lock(&file.mutex);
  int64_t i = find_behind(begin) - 1;
  const shared_segment *s = i >= 0 ? &file.segments.at[i] : NULL;
  bool found = s != NULL && !s->inherited && (const char *)end <= s->at + s->place.bytes;
  if (found) {
    *place = s->place;
    *inside = (const char *)begin - s->at;
  }
  pthread_mutex_unlock(&file.mutex);
  return found;
}
