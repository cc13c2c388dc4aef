/* Reads to the end, not to a size asked beforehand: what is named may be a pipe ("@<(...)" of a shell). A device may
 * never end, and a pipe may have nobody at its other end: neither takes all memory, or for ever. */
#include "base/read.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

reshard_status rs_file_error(const char *where, int number) {
  bool absent = number == ENOENT || number == ENOTDIR || number == EISDIR || number == ENAMETOOLONG || number == ELOOP;
  return rs_error(absent ? RESHARD_ERROR_INVALID : RESHARD_ERROR_SYSTEM, "%s: %s", where, strerror(number));
}

/* Waits for bytes, or for the end. */
static reshard_status wait_readable(const char *where, int file, int64_t begin_ns, int64_t wait_ms) {
  for (;;) {
    struct pollfd wanted = {.fd = file, .events = POLLIN};
    int64_t left = wait_ms - (rs_now_ns() - begin_ns) / 1000000;
    int ready = poll(&wanted, 1, (int)rs_max(left, 0));
    if (ready > 0)
      return RESHARD_SUCCESS;
    if (ready == 0)
      return rs_error(RESHARD_ERROR_SYSTEM, "%s: its end did not come within %lld ms", where, (long long)wait_ms);
    if (errno != EINTR)
      return rs_file_error(where, errno);
  }
}

reshard_status rs_read_all(const char *where, const char *path, int64_t limit, int64_t wait_ms, char **text,
                           int64_t *size) {
  RS_VEC(char) all = {0};
  int64_t begin = rs_now_ns();
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a pipe that nobody writes to opens, too */
  if (file < 0)
    return rs_file_error(where, errno);
  reshard_status status = RESHARD_SUCCESS;
  for (ssize_t n = 1; n != 0 && status == RESHARD_SUCCESS;) {
    RS_THEN(status, rs_vec_reserve(&all, all.n + 4096));
    RS_THEN(status, wait_readable(where, file, begin, wait_ms));
    if (status != RESHARD_SUCCESS)
      break;
    n = read(file, all.at + all.n, (size_t)rs_min(all.cap - all.n - 1, limit + 1 - all.n));
    if (n > 0 && (all.n += n) > limit)
      status = rs_error(RESHARD_ERROR_INVALID, "%s: longer than %lld bytes", where, (long long)limit);
    else if (n < 0 && errno != EINTR && errno != EAGAIN)
      status = rs_file_error(where, errno);
  }
  close(file);
  RS_TRY_OR(status, free(all.at));
  all.at[all.n] = '\0';
  *text = all.at;
  *size = all.n;
  return RESHARD_SUCCESS;
}
