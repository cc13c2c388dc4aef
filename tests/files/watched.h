/* Files under one directory, told by their paths or descriptors: the only ones whose calls a preloaded library breaks
 * (interpose.c) or writes down (crash/journal.c). */
#ifndef TESTS_WATCHED_H
#define TESTS_WATCHED_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *watched; /* the directory or file, absolute; NULL: relative paths alone */

static inline bool under(const char *path) {
  size_t n = watched != NULL ? strlen(watched) : 0;
  return path != NULL &&
         (path[0] != '/' || (n > 0 && strncmp(path, watched, n) == 0 && (path[n] == '/' || path[n] == '\0')));
}

/* The path of a descriptor, "/" when it has none. */
static inline const char *path_of(int fd, char path[4096]) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  long n = syscall(SYS_readlinkat, AT_FDCWD, link, path, 4095);
  path[n > 0 ? n : 0] = '\0';
  return path[0] == '/' ? path : "/";
}

static inline bool of_fd(int fd) {
  char path[4096];
  return under(path_of(fd, path));
}

static inline bool of_at(int at, const char *path) {
  return path != NULL && path[0] != '/' && at != AT_FDCWD ? of_fd(at) : under(path);
}

#endif
