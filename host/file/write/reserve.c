#define _GNU_SOURCE /* fallocate */
#include "file/write/output.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

int64_t rs_free_bytes(int fd, bool kept) {
  struct statvfs info;
  int64_t bytes;
  if (fstatvfs(fd, &info) != 0 || info.f_blocks == 0)
    return INT64_MAX;
  return rs_mul((int64_t)(kept ? info.f_bfree : info.f_bavail), (int64_t)info.f_frsize, &bytes) ? bytes : INT64_MAX;
}

bool rs_over_file_limit(struct rlimit *limit, int64_t size) {
  return getrlimit(RLIMIT_FSIZE, limit) == 0 && limit->rlim_cur != RLIM_INFINITY && limit->rlim_cur < (uint64_t)size;
}

int rs_reserve(int output, int fd, int64_t bytes, int64_t size, _Atomic int64_t *unbacked) {
  const int64_t piece = (int64_t)1 << 30;
  for (int64_t at = 0; at < bytes;) {
    if (fallocate(fd, 0, at, rs_min(piece, bytes - at)) == 0) {
      at += piece;
      continue;
    }
    if (errno == EINTR)
      continue;
    if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL)
      return errno;
    if (bytes == size && atomic_fetch_add(unbacked, size) + size > rs_free_bytes(output, true))
      return ENOSPC;
    return ftruncate(fd, size) == 0 ? 0 : errno;
  }
  return 0;
}
