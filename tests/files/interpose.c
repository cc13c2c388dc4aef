/* Preloaded into a program (LD_PRELOAD), makes its k-th call of a kind go wrong. So every error path of file work can
 * be walked, one run each. Only calls on files under one directory count (the program's own libraries and /proc do
 * not).
 *
 *   FAULT_UNDER   the directory or file, absolute; relative paths count always
 *   FAULT_KIND    open close read write pread pwrite truncate fallocate fsync rename renameat2 mkdir unlink stat list
 *                 lock copy thread, or "any" of them
 *   FAULT_AT      k, from 1
 *   FAULT_HOW     fail (once), always (from the k-th on), short (half of the bytes are moved, once), shorts (always),
 *                 signal (before the call), signalled (after it), shrink, grow, touch (the file that the call is on is
 *                 changed by someone else before it), appear (someone else makes what a renameat2 that replaces nothing
 *                 is about to make), replace (the same, and that renameat2 replaces it: the mistake that appear finds)
 *   FAULT_NUMBER  of the error, or of the signal
 *   FAULT_LACKS   a kind that the file system does not have: EINVAL, always, besides the above
 *   FAULT_COUNT   a file that gets, at exit, a line "KIND CALLS" per kind
 *
 * A failed close has closed, as on Linux; every other failed call has done nothing. */
#define _GNU_SOURCE
#include "watched.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>

/* clang-format off */
enum { OPEN, CLOSE, READ, WRITE, PREAD, PWRITE, TRUNCATE, FALLOCATE, FSYNC, RENAME, RENAMEAT2, MKDIR, UNLINK, STAT,
       LIST, LOCK, COPY, THREAD, KINDS };
static const char *const kind_names[KINDS] = {
    "open", "close", "read", "write", "pread", "pwrite", "truncate", "fallocate", "fsync", "rename", "renameat2",
    "mkdir", "unlink", "stat", "list", "lock", "copy", "thread"};
/* clang-format on */
static atomic_long counts[KINDS], matched;

static struct {
  int kind;  /* KINDS: any */
  int lacks; /* KINDS: none */
  long at;
  const char *how;
  int number;
  pid_t process;
} plan;

static int kind_of(const char *name) {
  int kind = 0;
  while (kind < KINDS && (name == NULL || strcmp(name, kind_names[kind]) != 0))
    kind++;
  return kind;
}

static void __attribute__((constructor)) begin(void) {
  const char *kind = getenv("FAULT_KIND"), *at = getenv("FAULT_AT"), *number = getenv("FAULT_NUMBER");
  plan.how = getenv("FAULT_HOW");
  watched = getenv("FAULT_UNDER");
  plan.at = at != NULL ? atol(at) : 0;
  plan.number = number != NULL ? atoi(number) : EIO;
  plan.process = getpid();
  plan.kind = kind_of(kind);
  plan.lacks = kind_of(getenv("FAULT_LACKS"));
}

static void __attribute__((destructor)) end(void) {
  const char *path = getenv("FAULT_COUNT");
  char text[KINDS * 40];
  int n = 0;
  if (path == NULL)
    return;
  for (int i = 0; i < KINDS; i++)
    n += sprintf(text + n, "%s %ld\n", kind_names[i], counts[i]);
  int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file < 0 || syscall(SYS_write, file, text, n) != n)
    _exit(99);
  syscall(SYS_close, file);
}

/* Changes a file that is read, as another program would. */
static void file_change(int fd) {
  char path[4096];
  struct stat info;
  path_of(fd, path);
  if (syscall(SYS_fstat, fd, &info) != 0)
    return;
  if (strcmp(plan.how, "shrink") == 0)
    syscall(SYS_truncate, path, (long)info.st_size / 2);
  else if (strcmp(plan.how, "grow") == 0)
    syscall(SYS_truncate, path, (long)info.st_size + 1);
  else {
    struct timespec times[2] = {{1, 0}, {info.st_mtim.tv_sec + 1, 0}};
    syscall(SYS_utimensat, AT_FDCWD, path, times, 0);
  }
}

/* Decides the fate of a call; when it is to fail, errno is set. */
enum { PASS, FAIL, SHORT, SIGNALLED };
static int decide(int kind, bool counted, int fd) {
  if (!counted || plan.process != getpid())
    return PASS;
  int kept = errno;
  counts[kind]++;
  if (kind == plan.lacks) {
    errno = EINVAL;
    return FAIL;
  }
  if (plan.how == NULL || (plan.kind != KINDS && plan.kind != kind))
    return PASS;
  long k = ++matched;
  bool from = strcmp(plan.how, "always") == 0 || strcmp(plan.how, "shorts") == 0;
  if (k != plan.at && !(from && k > plan.at))
    return PASS;
  if (strcmp(plan.how, "fail") == 0 || strcmp(plan.how, "always") == 0) {
    errno = plan.number;
    return FAIL;
  }
  if (strncmp(plan.how, "short", 5) == 0)
    return SHORT;
  if (strcmp(plan.how, "signalled") == 0)
    return SIGNALLED;
  if (strcmp(plan.how, "signal") == 0)
    kill(getpid(), plan.number);
  else if (fd >= 0)
    file_change(fd);
  errno = kept;
  return PASS;
}

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

/* The body of a wrapper: failed is what it returns when it fails; `half` is what is done in place of a short call. */
#define CALL(kind, counted, fd, type, failed, real, half) \
  do { \
    int what = decide(kind, counted, fd); \
    if (what == FAIL) \
      return failed; \
    type result = what == SHORT ? (half) : (real); \
    if (what == SIGNALLED) { \
      int kept = errno; \
      kill(getpid(), plan.number); \
      errno = kept; \
    } \
    return result; \
  } while (0)
#define WHOLE(kind, counted, fd, type, failed, real) CALL(kind, counted, fd, type, failed, real, real)
#define HALF(n)                                      ((n) > 1 ? (n) / 2 : (n))

/* Bytes: each name once as it is, once with 64-bit offsets. */
#define MOVES(name, kind, pointer) \
  ssize_t name(int fd, pointer data, size_t n, off_t offset) { \
    ssize_t (*real)(int, pointer, size_t, off_t) = REAL(ssize_t, name, int, pointer, size_t, off_t); \
    CALL(kind, of_fd(fd), fd, ssize_t, -1, real(fd, data, n, offset), real(fd, data, HALF(n), offset)); \
  }
#define MOVES_VECTOR(name, kind) \
  ssize_t name(int fd, const struct iovec *parts, int n, off_t offset) { \
    ssize_t (*real)(int, const struct iovec *, int, off_t) = \
        REAL(ssize_t, name, int, const struct iovec *, int, off_t); \
    struct iovec half = {n > 0 ? parts->iov_base : NULL, n > 0 ? HALF(parts->iov_len) : 0}; \
    CALL(kind, of_fd(fd), fd, ssize_t, -1, real(fd, parts, n, offset), real(fd, &half, n > 0, offset)); \
  }
#define FILLS(name, kind, pointer) \
  ssize_t name(int fd, pointer data, size_t n) { \
    ssize_t (*real)(int, pointer, size_t) = REAL(ssize_t, name, int, pointer, size_t); \
    CALL(kind, of_fd(fd), fd, ssize_t, -1, real(fd, data, n), real(fd, data, HALF(n))); \
  }
#define FILLS_VECTOR(name, kind) \
  ssize_t name(int fd, const struct iovec *parts, int n) { \
    ssize_t (*real)(int, const struct iovec *, int) = REAL(ssize_t, name, int, const struct iovec *, int); \
    struct iovec half = {n > 0 ? parts->iov_base : NULL, n > 0 ? HALF(parts->iov_len) : 0}; \
    CALL(kind, of_fd(fd), fd, ssize_t, -1, real(fd, parts, n), real(fd, &half, n > 0)); \
  }
MOVES(pread, PREAD, void *)
MOVES(pread64, PREAD, void *)
MOVES(pwrite, PWRITE, const void *)
MOVES(pwrite64, PWRITE, const void *)
MOVES_VECTOR(preadv, PREAD)
MOVES_VECTOR(preadv64, PREAD)
MOVES_VECTOR(pwritev, PWRITE)
MOVES_VECTOR(pwritev64, PWRITE)
FILLS(read, READ, void *)
FILLS(write, WRITE, const void *)
FILLS_VECTOR(readv, READ)
FILLS_VECTOR(writev, WRITE)

/* A file by its descriptor: failed -1 with errno. */
#define ON_FD(name, kind, params, args, types) \
  int name params { \
    int(*real) types = (int(*) types)dlsym(RTLD_NEXT, #name); \
    WHOLE(kind, of_fd(fd), fd, int, -1, real args); \
  }
ON_FD(ftruncate, TRUNCATE, (int fd, off_t size), (fd, size), (int, off_t))
ON_FD(ftruncate64, TRUNCATE, (int fd, off64_t size), (fd, size), (int, off64_t))
ON_FD(fallocate, FALLOCATE, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n), (int, int, off_t, off_t))
ON_FD(fallocate64, FALLOCATE, (int fd, int mode, off64_t at, off64_t n), (fd, mode, at, n),
      (int, int, off64_t, off64_t))
ON_FD(fsync, FSYNC, (int fd), (fd), (int))
ON_FD(fdatasync, FSYNC, (int fd), (fd), (int))
ON_FD(syncfs, FSYNC, (int fd), (fd), (int))
ON_FD(sync_file_range, FSYNC, (int fd, off64_t at, off64_t n, unsigned flags), (fd, at, n, flags),
      (int, off64_t, off64_t, unsigned))
ON_FD(flock, LOCK, (int fd, int operation), (fd, operation), (int, int))
ON_FD(fstat, STAT, (int fd, struct stat *info), (fd, info), (int, struct stat *))
ON_FD(fstat64, STAT, (int fd, struct stat64 *info), (fd, info), (int, struct stat64 *))

/* posix_fallocate returns the number. */
#define RESERVES(name) \
  int name(int fd, off_t at, off_t n) { \
    int (*real)(int, off_t, off_t) = REAL(int, name, int, off_t, off_t); \
    WHOLE(FALLOCATE, of_fd(fd), fd, int, errno, real(fd, at, n)); \
  }
RESERVES(posix_fallocate)
RESERVES(posix_fallocate64)

int close(int fd) {
  int (*real)(int) = REAL(int, close, int);
  bool counted = of_fd(fd);
  int result = real(fd), kept = errno, what = decide(CLOSE, counted, -1);
  if (what == FAIL)
    return -1;
  if (what == SIGNALLED)
    kill(getpid(), plan.number);
  errno = kept;
  return result;
}

#define OPENS(name, counted, params, types, args) \
  int name params { \
    int(*real) types = (int(*) types)dlsym(RTLD_NEXT, #name); \
    mode_t mode = 0; \
    if ((flags & (O_CREAT | O_TMPFILE)) != 0) { \
      va_list rest; \
      va_start(rest, flags); \
      mode = va_arg(rest, mode_t); \
      va_end(rest); \
    } \
    WHOLE(OPEN, counted, -1, int, -1, real args); \
  }
OPENS(open, under(path), (const char *path, int flags, ...), (const char *, int, ...), (path, flags, mode))
OPENS(open64, under(path), (const char *path, int flags, ...), (const char *, int, ...), (path, flags, mode))
OPENS(openat, of_at(at, path), (int at, const char *path, int flags, ...), (int, const char *, int, ...),
      (at, path, flags, mode))
OPENS(openat64, of_at(at, path), (int at, const char *path, int flags, ...), (int, const char *, int, ...),
      (at, path, flags, mode))

/* stdio opens by itself. */
#define OPENS_STREAM(name) \
  FILE *name(const char *path, const char *mode) { \
    FILE *(*real)(const char *, const char *) = REAL(FILE *, name, const char *, const char *); \
    WHOLE(OPEN, under(path), -1, FILE *, NULL, real(path, mode)); \
  }
OPENS_STREAM(fopen)
OPENS_STREAM(fopen64)

/* A file by its path. */
#define ON_PATH(name, kind, counted, params, args, types) \
  int name params { \
    int(*real) types = (int(*) types)dlsym(RTLD_NEXT, #name); \
    WHOLE(kind, counted, -1, int, -1, real args); \
  }
ON_PATH(truncate, TRUNCATE, under(path), (const char *path, off_t size), (path, size), (const char *, off_t))
ON_PATH(rename, RENAME, under(to), (const char *from, const char *to), (from, to), (const char *, const char *))
ON_PATH(renameat, RENAME, of_at(b, to), (int a, const char *from, int b, const char *to), (a, from, b, to),
        (int, const char *, int, const char *))
ON_PATH(link, RENAME, under(to), (const char *from, const char *to), (from, to), (const char *, const char *))
ON_PATH(linkat, RENAME, of_at(b, to), (int a, const char *from, int b, const char *to, int flags),
        (a, from, b, to, flags), (int, const char *, int, const char *, int))
ON_PATH(mkdir, MKDIR, under(path), (const char *path, mode_t mode), (path, mode), (const char *, mode_t))
ON_PATH(mkdirat, MKDIR, of_at(at, path), (int at, const char *path, mode_t mode), (at, path, mode),
        (int, const char *, mode_t))
ON_PATH(mkostemp, OPEN, under(path), (char *path, int flags), (path, flags), (char *, int))
ON_PATH(mkstemp, OPEN, under(path), (char *path), (path), (char *))
ON_PATH(unlink, UNLINK, under(path), (const char *path), (path), (const char *))
ON_PATH(unlinkat, UNLINK, of_at(at, path), (int at, const char *path, int flags), (at, path, flags),
        (int, const char *, int))
ON_PATH(rmdir, UNLINK, under(path), (const char *path), (path), (const char *))
ON_PATH(remove, UNLINK, under(path), (const char *path), (path), (const char *))
ON_PATH(stat, STAT, under(path), (const char *path, struct stat *info), (path, info), (const char *, struct stat *))
ON_PATH(stat64, STAT, under(path), (const char *path, struct stat64 *info), (path, info),
        (const char *, struct stat64 *))
ON_PATH(lstat, STAT, under(path), (const char *path, struct stat *info), (path, info), (const char *, struct stat *))
ON_PATH(lstat64, STAT, under(path), (const char *path, struct stat64 *info), (path, info),
        (const char *, struct stat64 *))
ON_PATH(fstatat, STAT, of_at(at, path), (int at, const char *path, struct stat *info, int flags),
        (at, path, info, flags), (int, const char *, struct stat *, int))
ON_PATH(fstatat64, STAT, of_at(at, path), (int at, const char *path, struct stat64 *info, int flags),
        (at, path, info, flags), (int, const char *, struct stat64 *, int))
ON_PATH(access, STAT, under(path), (const char *path, int mode), (path, mode), (const char *, int))
ON_PATH(faccessat, STAT, of_at(at, path), (int at, const char *path, int mode, int flags), (at, path, mode, flags),
        (int, const char *, int, int))

/* Someone else makes a file or an empty directory of that name, as the one that is to be renamed. */
static void appear(int a, const char *from, int b, const char *to) {
  struct stat info;
  if (syscall(SYS_newfstatat, a, from, &info, AT_SYMLINK_NOFOLLOW) != 0)
    return;
  if (S_ISDIR(info.st_mode))
    syscall(SYS_mkdirat, b, to, 0700);
  else
    syscall(SYS_close, syscall(SYS_openat, b, to, O_WRONLY | O_CREAT | O_EXCL, 0600));
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
  int (*real)(int, const char *, int, const char *, unsigned) =
      REAL(int, renameat2, int, const char *, int, const char *, unsigned);
  bool replace = plan.how != NULL && strcmp(plan.how, "replace") == 0;
  if (of_at(b, to) && flags == RENAME_NOREPLACE && (replace || (plan.how != NULL && strcmp(plan.how, "appear") == 0)))
    appear(a, from, b, to);
  WHOLE(RENAMEAT2, of_at(b, to), -1, int, -1, real(a, from, b, to, replace ? flags & ~RENAME_NOREPLACE : flags));
}

char *mkdtemp(char *path) {
  char *(*real)(char *) = REAL(char *, mkdtemp, char *);
  WHOLE(MKDIR, under(path), -1, char *, NULL, real(path));
}
char *realpath(const char *path, char *to) {
  char *(*real)(const char *, char *) = REAL(char *, realpath, const char *, char *);
  WHOLE(STAT, under(path), -1, char *, NULL, real(path, to));
}
DIR *opendir(const char *path) {
  DIR *(*real)(const char *) = REAL(DIR *, opendir, const char *);
  WHOLE(LIST, under(path), -1, DIR *, NULL, real(path));
}
DIR *fdopendir(int fd) {
  DIR *(*real)(int) = REAL(DIR *, fdopendir, int);
  WHOLE(LIST, of_fd(fd), -1, DIR *, NULL, real(fd));
}
struct dirent *readdir(DIR *directory) {
  struct dirent *(*real)(DIR *) = REAL(struct dirent *, readdir, DIR *);
  WHOLE(LIST, of_fd(dirfd(directory)), -1, struct dirent *, NULL, real(directory));
}
struct dirent64 *readdir64(DIR *directory) {
  struct dirent64 *(*real)(DIR *) = REAL(struct dirent64 *, readdir64, DIR *);
  WHOLE(LIST, of_fd(dirfd(directory)), -1, struct dirent64 *, NULL, real(directory));
}
ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *to_at, size_t n, unsigned flags) {
  ssize_t (*real)(int, off64_t *, int, off64_t *, size_t, unsigned) =
      REAL(ssize_t, copy_file_range, int, off64_t *, int, off64_t *, size_t, unsigned);
  CALL(COPY, of_fd(to), from, ssize_t, -1, real(from, at, to, to_at, n, flags),
       real(from, at, to, to_at, HALF(n), flags));
}
/* Returns the number; counted wherever it is. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
  int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
      REAL(int, pthread_create, pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  WHOLE(THREAD, true, -1, int, errno, real(thread, attributes, run, argument));
}
