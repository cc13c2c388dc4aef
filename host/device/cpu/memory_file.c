#define _GNU_SOURCE /* memfd_create, F_ADD_SEALS */
#include "device/cpu/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

int64_t rs_memory_file_limit(int64_t most) {
  struct rlimit limit;
  bool limited = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return limited && limit.rlim_cur < (rlim_t)most ? (int64_t)limit.rlim_cur : most;
}

/* The sum of the numbers behind some words in a group's file, each at the beginning of a line; -1: there is none. */
static int64_t group_number(const char *root, const char *group, const char *name, int nwords,
                            const char *const *words) {
  char path[4096 + 64], line[128];
  int64_t sum = -1;
  int n = snprintf(path, sizeof path, "%s%s/%s", root, group, name);
  FILE *file = n < (int)sizeof path ? fopen(path, "re") : NULL;
  while (file != NULL && fgets(line, sizeof line, file) != NULL)
    for (int w = 0; w < nwords; w++) {
      const char *number = line + strlen(words[w]);
      if (strncmp(line, words[w], strlen(words[w])) == 0 && *number >= '0' && *number <= '9')
        sum = rs_max(sum, 0) + strtoll(number, NULL, 10);
    }
  if (file != NULL)
    fclose(file);
  return sum;
}

/* The least that a group and those above it may have more: the limit less what is in use, but for pages of files, which
 * go where memory is wanted. What this process does not see has no limit. */
static int64_t group_limit(const char *root, char *group, const char *limit, const char *used, int64_t most) {
  static const char *const plain[] = {""}, *const files[] = {"inactive_file ", "active_file "};
  for (;;) {
    int64_t all = group_number(root, group, limit, 1, plain);
    if (all >= 0) {
      int64_t held = rs_max(group_number(root, group, used, 1, plain), 0);
      held -= rs_min(held, rs_max(group_number(root, group, "memory.stat", 2, files), 0));
      most = rs_min(most, rs_max(all - held, 0));
    }
    char *slash = strrchr(group, '/');
    if (slash == NULL)
      return most;
    *slash = '\0';
  }
}

int64_t rs_memory_group_limit(int64_t most) {
  char line[4096];
  FILE *groups = fopen("/proc/self/cgroup", "re"); /* "0::/group" of version 2, "4:memory:/group" of version 1 */
  while (groups != NULL && fgets(line, sizeof line, groups) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    char *names = strchr(line, ':'), *group = names != NULL ? strchr(names + 1, ':') : NULL;
    if (group == NULL)
      continue;
    *group++ = '\0';
    if (names[1] == '\0')
      most = group_limit("/sys/fs/cgroup", group, "memory.max", "memory.current", most);
    else if (strcmp(names + 1, "memory") == 0)
      most = group_limit("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes", "memory.usage_in_bytes", most);
  }
  if (groups != NULL)
    fclose(groups);
  return most;
}

#if defined(__linux__) && defined(MFD_ALLOW_SEALING)

int rs_memory_file_make(const char *name, int64_t bytes, mode_t mode, int *fd) {
  if (bytes > rs_memory_file_limit(bytes)) /* else a signal ends the process */
    return EFBIG;
  int made = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (made < 0)
    return errno;
  if (ftruncate(made, (off_t)bytes) != 0 || fchmod(made, mode) != 0 ||
      fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    int failed = errno;
    close(made);
    return failed;
  }
  *fd = made;
  return 0;
}

int rs_memory_file_reopen(int fd, int *reader) {
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int opened = open(path, O_RDONLY | O_CLOEXEC);
  if (opened < 0)
    return errno;
  *reader = opened;
  return 0;
}

#else

int rs_memory_file_make(const char *name, int64_t bytes, mode_t mode, int *fd) {
  (void)name, (void)bytes, (void)mode, (void)fd;
  return ENOSYS;
}

int rs_memory_file_reopen(int fd, int *reader) {
  (void)fd, (void)reader;
  return ENOSYS;
}

#endif
