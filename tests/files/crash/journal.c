/* Preloaded into a program (LD_PRELOAD), writes down for replay.c what it does to the files under one directory, in the
 * system's order.
 *
 *   JOURNAL        the file that gets the records (journal.h)
 *   JOURNAL_UNDER  the directory, absolute
 *
 * A call and its record are one step for all threads and processes that write to the journal. sync_file_range is left
 * out: it promises nothing. What changes files in ways that no replay knows is written down as unknown. */
#define _GNU_SOURCE
#include "journal.h"

#include "files/watched.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

static int journal = -1;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void __attribute__((constructor)) begin(void) {
  const char *path = getenv("JOURNAL");
  watched = getenv("JOURNAL_UNDER");
  if (path != NULL)
    journal = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CLOEXEC);
  if (journal < 0)
    _exit(98);
}

static void journal_enter(void) {
  pthread_mutex_lock(&mutex);
  syscall(SYS_flock, journal, LOCK_EX);
}

static void journal_leave(void) {
  int kept = errno;
  syscall(SYS_flock, journal, LOCK_UN);
  pthread_mutex_unlock(&mutex);
  errno = kept;
}

static void record(journal_record r, const void *data) {
  int kept = errno;
  const char *parts[] = {(const char *)&r, data};
  long left[] = {sizeof r, data != NULL ? (long)r.n : 0};
  for (int i = 0; i < 2; i++)
    for (long n; left[i] > 0; parts[i] += n, left[i] -= n)
      if ((n = syscall(SYS_write, journal, parts[i], left[i])) <= 0)
        _exit(98);
  errno = kept;
}

static void unknown(const char *call) {
  journal_record r = {.kind = JOURNAL_UNKNOWN};
  strncat(r.name, call, sizeof r.name - 1);
  journal_enter();
  record(r, NULL);
  journal_leave();
}

static uint64_t inode_of(int at, const char *path, int flags) {
  struct stat info;
  return syscall(SYS_newfstatat, at, path, &info, flags) == 0 ? info.st_ino : 0;
}

static uint64_t inode_of_fd(int fd) { return inode_of(fd, "", AT_EMPTY_PATH); }

/* The directory that a path is in, and the name there. */
static uint64_t path_split(int at, const char *path, char name[256]) {
  const char *slash = strrchr(path, '/');
  char parent[4096] = ".";
  name[0] = '\0';
  strncat(name, slash != NULL ? slash + 1 : path, 255);
  if (slash != NULL)
    snprintf(parent, sizeof parent, "%.*s", slash == path ? 1 : (int)(slash - path), path);
  return inode_of(at, parent, 0);
}

/* A call by a descriptor that returns 0 when it is done. */
#define ON_FD(name, params, call, ...) \
  int name params { \
    if (!of_fd(fd)) \
      return (int)call; \
    journal_enter(); \
    int result = (int)call; \
    if (result == 0) \
      record((journal_record){.inode = inode_of_fd(fd), __VA_ARGS__}, NULL); \
    journal_leave(); \
    return result; \
  }
#define SIZES(suffix, offset) \
  ON_FD(ftruncate##suffix, (int fd, offset size), syscall(SYS_ftruncate, fd, size), .kind = JOURNAL_TRUNCATE, \
        .n = size) \
  ON_FD(fallocate##suffix, (int fd, int mode, offset at, offset n), syscall(SYS_fallocate, fd, mode, at, n), \
        .kind = mode == 0 ? JOURNAL_FALLOCATE : JOURNAL_UNKNOWN, .name = "fallocate", .at = at, .n = n)
SIZES(, off_t)
SIZES(64, off64_t)
ON_FD(fsync, (int fd), syscall(SYS_fsync, fd), .kind = JOURNAL_SYNC)
ON_FD(fdatasync, (int fd), syscall(SYS_fdatasync, fd), .kind = JOURNAL_SYNC)

/* Bytes, at an offset or where the descriptor is. */
#define WRITES(name, params, call, where) \
  ssize_t name params { \
    if (!of_fd(fd)) \
      return syscall call; \
    journal_enter(); \
    ssize_t result = syscall call; \
    if (result > 0) \
      record((journal_record){.kind = JOURNAL_WRITE, .inode = inode_of_fd(fd), .at = where, .n = result}, data); \
    journal_leave(); \
    return result; \
  }
WRITES(pwrite, (int fd, const void *data, size_t n, off_t at), (SYS_pwrite64, fd, data, n, at), at)
WRITES(pwrite64, (int fd, const void *data, size_t n, off64_t at), (SYS_pwrite64, fd, data, n, at), at)
WRITES(write, (int fd, const void *data, size_t n), (SYS_write, fd, data, n), lseek(fd, 0, SEEK_CUR) - result)

static int open_at(int at, const char *path, int flags, mode_t mode) {
  journal_record r = {.kind = JOURNAL_CREATE};
  if (!of_at(at, path))
    return (int)syscall(SYS_openat, at, path, flags, mode);
  journal_enter();
  bool was = inode_of(at, path, 0) != 0;
  int fd = (int)syscall(SYS_openat, at, path, flags, mode);
  if (fd >= 0 && of_fd(fd) && (flags & (O_CREAT | O_TRUNC)) != 0) {
    r.other = inode_of_fd(fd);
    if ((flags & O_TMPFILE) == O_TMPFILE)
      record((journal_record){.kind = JOURNAL_UNKNOWN, .name = "open O_TMPFILE"}, NULL);
    else if (was && (flags & O_TRUNC) != 0)
      record((journal_record){.kind = JOURNAL_TRUNCATE, .inode = r.other}, NULL);
    else if (!was) {
      r.inode = path_split(at, path, r.name);
      record(r, NULL);
    }
  }
  journal_leave();
  return fd;
}
#define OPENS(name, at, params) \
  int name params { \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0; \
    va_end(rest); \
    return open_at(at, path, flags, mode); \
  }
OPENS(open, AT_FDCWD, (const char *path, int flags, ...))
OPENS(open64, AT_FDCWD, (const char *path, int flags, ...))
OPENS(openat, at, (int at, const char *path, int flags, ...))
OPENS(openat64, at, (int at, const char *path, int flags, ...))

int mkdirat(int at, const char *path, mode_t mode) {
  journal_record r = {.kind = JOURNAL_MKDIR};
  journal_enter();
  int result = (int)syscall(SYS_mkdirat, at, path, mode);
  if (result == 0 && of_at(at, path)) {
    r.inode = path_split(at, path, r.name);
    r.other = inode_of(at, path, 0);
    record(r, NULL);
  }
  journal_leave();
  return result;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int unlinkat(int at, const char *path, int flags) {
  journal_record r = {.kind = JOURNAL_UNLINK};
  journal_enter();
  int result = (int)syscall(SYS_unlinkat, at, path, flags);
  if (result == 0 && of_at(at, path)) {
    r.inode = path_split(at, path, r.name);
    record(r, NULL);
  }
  journal_leave();
  return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char *path) {
  int result = unlink(path);
  return result != 0 && errno == EISDIR ? rmdir(path) : result;
}

static int two_names(journal_kind kind, int a, const char *from, int b, const char *to, unsigned flags) {
  journal_record r = {.kind = kind, .flags = flags};
  journal_enter();
  int result = (int)(kind == JOURNAL_LINK ? syscall(SYS_linkat, a, from, b, to, flags)
                                          : syscall(SYS_renameat2, a, from, b, to, flags));
  if (result == 0 && (of_at(a, from) || of_at(b, to))) {
    r.inode = path_split(a, from, r.name);
    r.other = path_split(b, to, r.to);
    record(r, NULL);
  }
  journal_leave();
  return result;
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
  return two_names(JOURNAL_RENAME, a, from, b, to, flags);
}
int renameat(int a, const char *from, int b, const char *to) { return two_names(JOURNAL_RENAME, a, from, b, to, 0); }
int rename(const char *from, const char *to) { return two_names(JOURNAL_RENAME, AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
  return two_names(JOURNAL_LINK, a, from, b, to, (unsigned)flags);
}
int link(const char *from, const char *to) { return two_names(JOURNAL_LINK, AT_FDCWD, from, AT_FDCWD, to, 0); }

/* Stores that no replay knows. */
void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset) {
  if (fd >= 0 && (flags & MAP_SHARED) != 0 && (protection & PROT_WRITE) != 0 && of_fd(fd))
    unknown("mmap");
  return (void *)syscall(SYS_mmap, at, n, protection, flags, fd, offset); /* NOLINT: an address */
}
void *mmap64(void *at, size_t n, int protection, int flags, int fd, off64_t offset) {
  return mmap(at, n, protection, flags, fd, offset);
}
#define NOT_KNOWN(type, name, fd, params, call) \
  type name params { \
    if (of_fd(fd)) \
      unknown(#name); \
    return (type)syscall call; \
  }
NOT_KNOWN(ssize_t, pwritev, fd, (int fd, const struct iovec *v, int n, off_t at), (SYS_pwritev, fd, v, n, at, 0))
NOT_KNOWN(ssize_t, writev, fd, (int fd, const struct iovec *v, int n), (SYS_writev, fd, v, n))
NOT_KNOWN(ssize_t, copy_file_range, to, (int fd, off64_t *at, int to, off64_t *to_at, size_t n, unsigned flags),
          (SYS_copy_file_range, fd, at, to, to_at, n, flags))
NOT_KNOWN(ssize_t, sendfile, to, (int to, int fd, off_t *at, size_t n), (SYS_sendfile, to, fd, at, n))
