/* Files by system calls, and the errors of these. */
#define _DEFAULT_SOURCE /* mincore */
#include "file/ground/file.h"

#include "base/text.h"
#include "file/ground/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

const char *rs_where(char where[RS_WHERE], const char *what, const char *path) {
  char quoted[RS_WHERE - 64];
  rs_text text = {.at = where, .size = RS_WHERE};
  rs_text_add(&text, "%s '%s'", what, rs_quote(quoted, sizeof quoted, path));
  return where;
}

static int64_t time_ns(struct timespec time) { return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec; }

reshard_status rs_file_stat(const char *where, int fd, int64_t *size, int64_t *changed_ns) {
  struct stat info;
  if (fstat(fd, &info) != 0)
    return rs_file_error(where, errno);
  if (!S_ISREG(info.st_mode))
    return rs_error(RESHARD_ERROR_INVALID, "%s: no regular file", where);
  *size = (int64_t)info.st_size;
  *changed_ns = rs_max(time_ns(info.st_mtim), time_ns(info.st_ctim));
  return RESHARD_SUCCESS;
}

static reshard_status open_error(const char *where, int64_t files, int number) {
  struct rlimit limit;
  if (number == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0)
    return rs_error(RESHARD_ERROR_SYSTEM,
                    "%s: one of %lld that are read at a time, and this process may have %lld open", where,
                    (long long)files, (long long)limit.rlim_cur);
  return rs_file_error(where, number);
}

reshard_status rs_file_open(const char *where, const char *path, int64_t files, rs_file *file) {
  rs_file made = {.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)}; /* a named pipe is refused, not waited for */
  if (made.fd < 0)
    return open_error(where, files, errno);
  reshard_status status = rs_file_stat(where, made.fd, &made.size, &made.changed_ns);
  RS_THEN(status, rs_alloc_copy(&made.path, path, (int64_t)strlen(path) + 1, 1));
  RS_TRY_OR(status, close(made.fd));
  posix_fadvise(made.fd, 0, 0, POSIX_FADV_SEQUENTIAL);
  *file = made;
  return RESHARD_SUCCESS;
}

void rs_file_close(rs_file *file) {
  if (file->fd >= 0)
    close(file->fd);
  rs_digests_free(file->digests);
  free(file->path);
  *file = (rs_file){.fd = -1};
}

reshard_status rs_file_read_at(const rs_file *file, int64_t offset, void *to, int64_t n) {
  RS_TRY(rs_file_read_plain(file, offset, to, n));
  return file->digests != NULL && file->digests->reading ? rs_digests_read(file, offset, to, n) : RESHARD_SUCCESS;
}

reshard_status rs_file_read_plain(const rs_file *file, int64_t offset, void *to, int64_t n) {
  if (file->zeros) {
    memset(to, 0, (size_t)n);
    return RESHARD_SUCCESS;
  }
  if (file->memory != NULL) {
    memcpy(to, file->memory + offset, (size_t)n);
    return RESHARD_SUCCESS;
  }
  for (int64_t done = 0; done < n;) {
    ssize_t got = pread(file->fd, (char *)to + done, (size_t)(n - done), (off_t)(offset + done));
    if (got < 0 && errno == EINTR)
      continue;
    char where[RS_WHERE];
    if (got < 0)
      return rs_file_error(rs_where(where, "file", file->path), errno);
    if (got == 0)
      return rs_error(RESHARD_ERROR_SYSTEM, "%s: became shorter while it was read: %lld bytes when it was opened",
                      rs_where(where, "file", file->path), (long long)file->size);
    done += got;
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_file_write_at(const rs_file *file, int64_t offset, const void *from, int64_t n) {
  if (file->memory != NULL) {
    memcpy(file->memory + offset, from, (size_t)n);
    return RESHARD_SUCCESS;
  }
  for (int64_t done = 0; done < n;) {
    ssize_t put = pwrite(file->fd, (const char *)from + done, (size_t)(n - done), (off_t)(offset + done));
    if (put < 0 && errno == EINTR)
      continue;
    char where[RS_WHERE];
    if (put <= 0)
      return rs_file_error(rs_where(where, "file", file->path), put < 0 ? errno : EIO);
    done += put;
  }
  return file->digests != NULL ? rs_digests_written(file, offset, from, n) : RESHARD_SUCCESS;
}

bool rs_file_drop_pages(const rs_file *file) {
  enum { PAGES = 1 << 16 };
  unsigned char kept[PAGES];
  int64_t page = sysconf(_SC_PAGESIZE), most = PAGES * page;
  if (page <= 0 || posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
    return false;
  bool dropped = true;
  for (int64_t at = 0; at < file->size && dropped; at += most) {
    int64_t n = rs_min(most, file->size - at);
    void *mapped = mmap(NULL, (size_t)n, PROT_NONE, MAP_SHARED, file->fd, (off_t)at);
    if (mapped == MAP_FAILED)
      return false;
    dropped = mincore(mapped, (size_t)n, kept) == 0;
    for (int64_t i = 0; i < rs_ceil_div(n, page) && dropped; i++)
      dropped = (kept[i] & 1) == 0;
    munmap(mapped, (size_t)n);
  }
  return dropped;
}

reshard_status rs_path_join(const char *path, const char *name, rs_path_text *whole) {
  int64_t need = (int64_t)(strlen(path) + strlen(name)) + 2;
  RS_TRY(rs_vec_reserve(whole, need));
  rs_text_add(&(rs_text){.at = whole->at, .size = (size_t)need}, "%s%s%s", path, rs_ends(path, "/") ? "" : "/", name);
  return RESHARD_SUCCESS;
}

/* --- Temporaries -------------------------------------------------------------------------------------------------- */

static const char *skip_digits(const char *text) {
  const char *at = text;
  while (*at >= '0' && *at <= '9')
    at++;
  return at > text ? at : "!";
}

size_t rs_temporary_name(const char *entry) {
  const char *mark = NULL;
  if (entry[0] != '.')
    return 0;
  for (const char *at = entry + 2; at[-1] != '\0' && (at = strstr(at, RS_TEMPORARY_MARK)) != NULL; at++)
    mark = at;
  if (mark == NULL)
    return 0;
  const char *end = skip_digits(mark + sizeof RS_TEMPORARY_MARK - 1);
  end = *end == '-' ? skip_digits(end + 1) : "!";
  bool is = *end == '\0' || strcmp(end, ".npy") == 0 || strcmp(end, ".safetensors") == 0;
  return is ? (size_t)(mark - entry) - 1 : 0;
}

reshard_status rs_temporary_refuse(const char *where, const char *path) {
  char real[PATH_MAX], *rest = NULL, quoted[RS_QUOTE];
  if (realpath(path, real) == NULL) /* who opens it says why */
    return RESHARD_SUCCESS;
  for (char *entry = strtok_r(real, "/", &rest); entry != NULL; entry = strtok_r(NULL, "/", &rest))
    if (rs_temporary_name(entry) > 0)
      return rs_error(RESHARD_ERROR_INVALID, "%s: is not complete: a writer has '%s' in work, or was killed at it",
                      where, rs_quote(quoted, sizeof quoted, entry));
  return RESHARD_SUCCESS;
}

/* --- Memory that a reader may take -------------------------------------------------------------------------------- */

#define ALWAYS ((int64_t)64 << 20)
/* Resident as well, and not counted by readers: code that runs for the first time, ends of the allocator's pages. */
#define BESIDE ((int64_t)2 << 20)

int64_t rs_budget_limit(int64_t file_bytes) { return ALWAYS + 8 * rs_min(file_bytes, INT64_MAX / 16); }

reshard_status rs_budget_check(const char *where, int64_t file_bytes, int64_t taken) {
  if (taken <= rs_budget_limit(file_bytes) - BESIDE)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_CORRUPT,
                  "%s: reading it takes %lld bytes of memory and more, at most %lld are taken for a file of %lld",
                  where, (long long)(taken + BESIDE), (long long)rs_budget_limit(file_bytes), (long long)file_bytes);
}
