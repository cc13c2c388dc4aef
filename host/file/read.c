#include "file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *rs_quote(char *buffer, size_t size, const char *text) {
  size_t n = 0;
  for (; text[n] != '\0' && n + 4 < size; n++)
    buffer[n] = (unsigned char)text[n] < ' ' || text[n] == 127 ? '?' : text[n];
  strcpy(buffer + n, text[n] != '\0' ? "..." : "");
  return buffer;
}

const char *rs_where(char where[RS_WHERE], const char *what, const char *path) {
  char quoted[RS_WHERE - 64];
  rs_text text = {where, RS_WHERE, 0};
  rs_text_add(&text, "%s '%s'", what, rs_quote(quoted, sizeof quoted, path));
  return where;
}

reshard_status rs_file_error(const char *where, int number) {
  bool absent = number == ENOENT || number == ENOTDIR || number == EISDIR || number == ENAMETOOLONG;
  return rs_error(absent ? RESHARD_ERROR_INVALID : RESHARD_ERROR_SYSTEM, "%s: %s", where, strerror(number));
}

/* Reads to the end, not to a size asked beforehand: what is named may be a pipe ("@<(...)" of a shell). */
reshard_status rs_file_read(const char *where, const char *path, int64_t limit, char **text, int64_t *size) {
  RS_VEC(char) read_so_far = {0};
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return rs_file_error(where, errno);
  reshard_status status;
  for (;;) {
    RS_TRY_GOTO(status, rs_vec_reserve(&read_so_far, read_so_far.n + 4096), fail);
    ssize_t n = read(file, read_so_far.at + read_so_far.n, (size_t)(read_so_far.cap - read_so_far.n - 1));
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0) {
      status = rs_file_error(where, errno);
      goto fail;
    }
    read_so_far.n += n;
    if (n == 0)
      break;
    if (read_so_far.n > limit) {
      status = rs_error(RESHARD_ERROR_INVALID, "%s: longer than %lld bytes", where, (long long)limit);
      goto fail;
    }
  }
  close(file);
  read_so_far.at[read_so_far.n] = '\0';
  *text = read_so_far.at;
  *size = read_so_far.n;
  return RESHARD_SUCCESS;
fail:
  free(read_so_far.at);
  close(file);
  return status;
}
