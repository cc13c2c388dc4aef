/* Files of other processes, and the segments of them that are mapped here.
 *
 * Arrays that are moved again and again lie in the same segments. So a mapping that is not used stays: it costs an
 * entry in the system's tables, not memory, which its owner alone gives back. The longest unused goes when there are
 * many. */
#include "device/cpu/segment.h"

#include "device/cpu/threads.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { UNUSED_MOST = 1024 };

typedef struct imported_segment {
  rs_shared_place place;
  char *at;
  int64_t users;
  uint64_t unused_since; /* of the import's clock */
} imported_segment;

struct rs_import {
  rs_import *next;
  int64_t users;
  int fd;
  dev_t device; /* with the inode they are the file's name, as long as it is open here */
  ino_t inode;
  int64_t length;
  uint64_t clock;
  int64_t unused;
  RS_VEC(imported_segment) segments; /* by offset */
};

static pthread_mutex_t imports_lock = PTHREAD_MUTEX_INITIALIZER;
static rs_import *imports; /* of this process, whichever communicators it has */

__attribute__((constructor)) static void watch_imports(void) {
  static rs_forkable forkable;
  rs_forkable_hold(&forkable, NULL, &imports_lock);
}

/* The import of a file, with one more user; NULL: it is new. */
static rs_import *find_import(const struct stat *info) {
  rs_import *at = imports;
  while (at != NULL && (at->device != info->st_dev || at->inode != info->st_ino))
    at = at->next;
  if (at != NULL)
    at->users++;
  return at;
}

static void close_descriptor(int fd) {
  if (fd >= 0)
    close(fd);
}

/* Takes the descriptor. */
static reshard_status take_import(int fd, const struct stat *info, rs_import **import) {
  rs_import *made = NULL;
  reshard_status status = RESHARD_SUCCESS;
  pthread_mutex_lock(&imports_lock);
  rs_import *there = find_import(info);
  if (there == NULL)
    status = rs_alloc_zero(&made, 1, sizeof *made);
  if (made != NULL) {
    made->next = imports;
    made->users = 1;
    made->fd = fd;
    made->device = info->st_dev;
    made->inode = info->st_ino;
    made->length = (int64_t)info->st_size;
    imports = made;
  }
  pthread_mutex_unlock(&imports_lock);
  if (made == NULL) /* it is not needed any more */
    close_descriptor(fd);
  if (status == RESHARD_SUCCESS)
    *import = there != NULL ? there : made;
  return status;
}

reshard_status rs_import_open(int fd, rs_import **import) {
  struct stat info;
  if (fstat(fd, &info) == 0)
    return take_import(fd, &info, import);
  int failed = errno;
  close_descriptor(fd);
  return rs_error(RESHARD_ERROR_SYSTEM, "memory file of another process: %s", strerror(failed));
}

reshard_status rs_import_none(rs_import **import) { return take_import(-1, &(struct stat){.st_ino = 0}, import); }

rs_import *rs_import_retain(rs_import *import) {
  pthread_mutex_lock(&imports_lock);
  import->users++;
  pthread_mutex_unlock(&imports_lock);
  return import;
}

void rs_import_close(rs_import *import) {
  if (import == NULL)
    return;
  pthread_mutex_lock(&imports_lock);
  bool last = --import->users == 0;
  rs_import **link = &imports;
  while (last && *link != import)
    link = &(*link)->next;
  if (last)
    *link = import->next;
  pthread_mutex_unlock(&imports_lock);
  if (!last)
    return;
  for (int64_t i = 0; i < import->segments.n; i++)
    munmap(import->segments.at[i].at, (size_t)import->segments.at[i].place.bytes);
  free(import->segments.at);
  close_descriptor(import->fd);
  free(import);
}

/* Index of the first segment at an offset or behind it. */
static int64_t find_segment(const rs_import *import, int64_t offset) {
  int64_t low = 0, high = import->segments.n;
  RS_LOWER_BOUND(low, high, import->segments.at[i].place.offset < offset);
  return low;
}

static void remove_segment(rs_import *import, int64_t i) {
  imported_segment *at = import->segments.at;
  munmap(at[i].at, (size_t)at[i].place.bytes);
  import->segments.n--;
  memmove(at + i, at + i + 1, (size_t)(import->segments.n - i) * sizeof *at);
}

/* Unmaps the longest unused. */
static void remove_oldest(rs_import *import) {
  int64_t oldest = -1;
  for (int64_t i = 0; i < import->segments.n; i++) {
    const imported_segment *s = &import->segments.at[i];
    if (s->users == 0 && (oldest < 0 || s->unused_since < import->segments.at[oldest].unused_since))
      oldest = i;
  }
  remove_segment(import, oldest);
  import->unused--;
}

static reshard_status add_segment(rs_import *import, int64_t i, const rs_shared_place *place) {
  int64_t end, page = sysconf(_SC_PAGESIZE);
  if (place->offset < 0 || place->bytes < 1 || place->offset % page != 0 ||
      !rs_add(place->offset, place->bytes, &end) || end > import->length)
    return rs_error(RESHARD_ERROR_INVALID, "segment of %lld bytes at %lld in a memory file of %lld bytes",
                    (long long)place->bytes, (long long)place->offset, (long long)import->length);
  RS_TRY(rs_vec_reserve(&import->segments, import->segments.n + 1));
  char *at = rs_shared_map(import->fd, place, PROT_READ);
  if (at == NULL)
    return rs_error(RESHARD_ERROR_OUT_OF_MEMORY, "no room for %lld bytes of another process's memory",
                    (long long)place->bytes);
  imported_segment *all = import->segments.at;
  memmove(all + i + 1, all + i, (size_t)(import->segments.n - i) * sizeof *all);
  all[i] = (imported_segment){.place = *place, .at = at};
  import->segments.n++;
  import->unused++;
  return RESHARD_SUCCESS;
}

static reshard_status map_segment(rs_import *import, const rs_shared_place *place, const char **at) {
  int64_t i = find_segment(import, place->offset);
  bool there = i < import->segments.n && import->segments.at[i].place.offset == place->offset;
  if (there && import->segments.at[i].place.bytes != place->bytes)
    return rs_error(RESHARD_ERROR_INVALID, "segment at %lld of %lld bytes, known with %lld", (long long)place->offset,
                    (long long)place->bytes, (long long)import->segments.at[i].place.bytes);
  if (!there)
    RS_TRY(add_segment(import, i, place));
  imported_segment *s = &import->segments.at[i];
  import->unused -= s->users++ == 0;
  *at = s->at;
  return RESHARD_SUCCESS;
}

reshard_status rs_import_map(rs_import *import, const rs_shared_place *place, const char **at) {
  pthread_mutex_lock(&imports_lock);
  reshard_status status = map_segment(import, place, at);
  pthread_mutex_unlock(&imports_lock);
  return status;
}

void rs_import_unmap(rs_import *import, const rs_shared_place *place) {
  pthread_mutex_lock(&imports_lock);
  imported_segment *s = &import->segments.at[find_segment(import, place->offset)];
  if (--s->users == 0) {
    s->unused_since = ++import->clock;
    if (++import->unused > UNUSED_MOST)
      remove_oldest(import);
  }
  pthread_mutex_unlock(&imports_lock);
}

void rs_import_remove(rs_import *import, const rs_shared_place *place) {
  pthread_mutex_lock(&imports_lock);
  int64_t i = find_segment(import, place->offset);
  if (--import->segments.at[i].users == 0)
    remove_segment(import, i);
  pthread_mutex_unlock(&imports_lock);
}
