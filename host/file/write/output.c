/* An output appears complete or not at all, and leftovers of a killed run are removed by the next.
 *
 * Everything is written to a sibling, ".NAME.reshard-PID-N", on the same file system, hence one rename from its place.
 * Its maker holds a lock (flock) on it, which ends with the process. A sibling of that form whose lock is free has no
 * owner, and the next run with the same output removes it.
 *
 * A sibling is made first and locked then; in between another run may take it for a leftover. So each of the two, once
 * it has the lock, checks that the name still means the file that it has locked. The cleaner then removes nothing that
 * was renamed meanwhile, and the maker takes the next N. Where there are no locks, nothing is ever taken for a
 * leftover.
 *
 * To replace, the two names are exchanged. One of the old and the new is there at any moment, also for directories. A
 * sync that fails can be followed by a second exchange. */
#define _GNU_SOURCE /* renameat2 */
#include "file/write/output.h"

#include "base/text.h"
#include "file/ground/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Times that others may replace an output while it is looked at. */
enum { REPLACED_MOST = 1000 };

/* Names of the files in a checkpoint's directory. */
static bool is_part(const char *name) { return rs_ends(name, ".safetensors") || rs_ends(name, ".json"); }

static bool is_temporary(const char *name, const char *entry) {
  size_t n = strlen(name);
  return rs_temporary_name(entry) == n && strncmp(entry + 1, name, n) == 0;
}

/* 0: the name means the file that is open as fd. ENOENT: another one, or none. Else an error number. */
static int compare_name(int parent, const char *name, int fd) {
  struct stat a, b;
  if (fstat(fd, &a) != 0 || fstatat(parent, name, &b, AT_SYMLINK_NOFOLLOW) != 0)
    return errno;
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino ? 0 : ENOENT;
}

static DIR *open_directory(int parent, const char *name) {
  int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
  if (directory == NULL && fd >= 0)
    close(fd);
  return directory;
}

static bool is_file(int parent, const char *name) {
  struct stat info;
  return fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode);
}

/* Removes the files of a checkpoint from a directory, and closes it. */
static void discard_files(DIR *directory) {
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
    if (is_part(entry->d_name) && is_file(dirfd(directory), entry->d_name))
      unlinkat(dirfd(directory), entry->d_name, 0);
  closedir(directory);
}

/* A file, or a directory with the files of a checkpoint; where more is in it, it stays too. */
static void discard_entry(int parent, const char *name) {
  if (is_file(parent, name)) {
    unlinkat(parent, name, 0);
    return;
  }
  DIR *directory = open_directory(parent, name);
  if (directory == NULL)
    return;
  discard_files(directory);
  unlinkat(parent, name, AT_REMOVEDIR);
}

/* Files are opened for writing too: some network file systems lock no others. */
static void remove_leftovers(const rs_output *t) {
  DIR *directory = open_directory(t->parent, ".");
  for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
    if (!is_temporary(t->name, entry->d_name))
      continue;
    int how = is_file(t->parent, entry->d_name) ? O_RDWR : O_RDONLY | O_DIRECTORY;
    int fd = openat(t->parent, entry->d_name, how | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && compare_name(t->parent, entry->d_name, fd) == 0)
      discard_entry(t->parent, entry->d_name);
    if (fd >= 0)
      close(fd);
  }
  if (directory != NULL)
    closedir(directory);
}

/* Checks that the files of a directory may be replaced. What goes meanwhile does not matter. */
static reshard_status check_files(DIR *directory, const char *where) {
  char quoted[RS_QUOTE];
  struct stat info;
  for (;;) {
    errno = 0;
    struct dirent *entry = readdir(directory);
    if (entry == NULL) /* after an error there may be more of them */
      return errno != 0 ? rs_file_error(where, errno) : RESHARD_SUCCESS;
    const char *name = entry->d_name;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
      continue;
    if (fstatat(dirfd(directory), name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno != ENOENT)
        return rs_file_error(where, errno);
    } else if (!is_part(name) || !S_ISREG(info.st_mode)) {
      return rs_error(RESHARD_ERROR_INVALID,
                      "%s: is not replaced: '%s' in it is no regular file named *.safetensors or *.json", where,
                      rs_quote(quoted, sizeof quoted, name));
    }
  }
}

/* Checks that the directory that is there may be replaced. *again: another writer has replaced it meanwhile. */
static reshard_status check_directory(const rs_output *t, const char *where, bool *again) {
  if (faccessat(t->parent, t->name, W_OK | X_OK, 0) != 0) { /* it could not be emptied */
    *again = errno == ENOENT;
    return *again ? RESHARD_SUCCESS : rs_file_error(where, errno);
  }
  DIR *directory = open_directory(t->parent, t->name);
  if (directory == NULL) {
    *again = errno == ENOENT;
    return *again ? RESHARD_SUCCESS : rs_file_error(where, errno);
  }
  reshard_status status = check_files(directory, where);
  *again = status == RESHARD_SUCCESS && compare_name(t->parent, t->name, dirfd(directory)) == ENOENT;
  closedir(directory);
  return status;
}

/* Looks at the output's path: *there when something that may be replaced is there. */
static reshard_status check_existing(const rs_output *t, const char *where, bool *there) {
  struct stat info;
  bool again = true;
  *there = false;
  for (int attempt = 0; again; attempt++) {
    if (fstatat(t->parent, t->name, &info, AT_SYMLINK_NOFOLLOW) != 0)
      return errno == ENOENT ? RESHARD_SUCCESS : rs_file_error(where, errno);
    if (!t->force)
      return rs_error(RESHARD_ERROR_INVALID, "%s: is there; --force, in C the option force, replaces it", where);
    if (t->directory != !!S_ISDIR(info.st_mode) || (!t->directory && !S_ISREG(info.st_mode)))
      return rs_error(RESHARD_ERROR_INVALID, "%s: is %s, and no %s takes its place", where,
                      S_ISDIR(info.st_mode)   ? "a directory"
                      : S_ISREG(info.st_mode) ? "a file"
                                              : "neither file nor directory",
                      t->directory ? "directory" : "file");
    again = false;
    if (t->directory)
      RS_TRY(check_directory(t, where, &again));
    if (attempt == REPLACED_MOST)
      return rs_error(RESHARD_ERROR_SYSTEM, "%s: others have replaced it %d times meanwhile", where, attempt);
  }
  *there = true;
  return RESHARD_SUCCESS;
}

/* A link that another user has put into a directory that all may write to leads where that user wants it. Source: the
 * kernel's may_follow_link. */
static reshard_status check_link(const char *where, const char *path, const char *directory, uid_t owner) {
  struct stat info;
  char quoted[RS_QUOTE];
  if (stat(directory, &info) != 0)
    return rs_file_error(where, errno);
  if ((info.st_mode & S_ISVTX) == 0 || (info.st_mode & S_IWOTH) == 0 || owner == geteuid() || owner == info.st_uid)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_SYSTEM,
                  "%s: is not followed: '%s' is a symbolic link of user %lld in a sticky directory of user %lld", where,
                  rs_quote(quoted, sizeof quoted, path), (long long)owner, (long long)info.st_uid);
}

/* Each link on the way, and in what it leads to; where that ends, or turns in a circle, is for others to say. */
static reshard_status check_links(const char *where, const char *path) {
  char at[PATH_MAX], directory[PATH_MAX], to[PATH_MAX], next[2 * PATH_MAX];
  struct stat info;
  int hops = 0, begin = 0, length = snprintf(at, sizeof at, "%s", path);
  while (hops < 40 && length < PATH_MAX) {
    begin += (int)strspn(at + begin, "/");
    int end = begin + (int)strcspn(at + begin, "/");
    char rest = at[end];
    at[end] = '\0';
    if (begin == end || lstat(at, &info) != 0)
      break;
    if (!S_ISLNK(info.st_mode)) {
      at[end] = rest;
      begin = end;
      continue;
    }
    snprintf(directory, sizeof directory, "%.*s.", begin, at);
    RS_TRY(check_link(where, at, directory, info.st_uid));
    ssize_t got = readlink(at, to, sizeof to - 1);
    if (got < 0)
      break;
    to[got] = '\0';
    begin = *to == '/' ? 0 : begin;
    length = snprintf(next, sizeof next, "%.*s%s%s%s", begin, at, to, rest != '\0' ? "/" : "",
                      rest != '\0' ? at + end + 1 : "");
    snprintf(at, sizeof at, "%.*s", PATH_MAX - 1, next);
    hops++;
  }
  return RESHARD_SUCCESS;
}

/* Splits the path, and opens the directory that the output is in. */
static reshard_status locate_output(rs_output *t, const char *where, const char *path) {
  size_t n = strlen(path);
  RS_TRY(rs_alloc_copy(&t->path, path, (int64_t)n + 1, 1));
  while (n > 1 && t->path[n - 1] == '/')
    t->path[--n] = '\0';
  char *slash = strrchr(t->path, '/');
  t->name = slash != NULL ? slash + 1 : t->path;
  if (*t->name == '\0' || strcmp(t->name, ".") == 0 || strcmp(t->name, "..") == 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: does not end in a name", where);
  if (rs_temporary_name(t->name) > 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: has a name of a writer's temporary, and would be taken for a leftover",
                    where);
  if (slash != NULL)
    *slash = '\0';
  reshard_status links = slash != NULL ? check_links(where, t->path) : RESHARD_SUCCESS;
  t->parent = open(slash == NULL ? "." : slash == t->path ? "/" : t->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int error = errno;
  if (slash != NULL)
    *slash = '/';
  RS_TRY(links);
  if (t->parent >= 0)
    return RESHARD_SUCCESS;
  char text[RS_WHERE + 32];
  snprintf(text, sizeof text, "%s: its directory", where);
  return rs_file_error(text, error);
}

/* cp writes through a symbolic link, to a place that its owner has chosen for the data (another disk); we too. */
static reshard_status follow_link(rs_output *t, const char *where, const char *path) {
  struct stat info;
  char real[PATH_MAX];
  if (fstatat(t->parent, t->name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISLNK(info.st_mode) || !t->force)
    return RESHARD_SUCCESS;
  RS_TRY(check_links(where, t->path));
  if (realpath(path, real) == NULL)
    return rs_error(errno == ENOENT || errno == ELOOP ? RESHARD_ERROR_INVALID : RESHARD_ERROR_SYSTEM,
                    "%s: is a symbolic link that leads nowhere: %s", where, strerror(errno));
  close(t->parent);
  t->parent = -1;
  free(t->path);
  t->path = NULL;
  t->linked = true;
  return locate_output(t, where, real);
}

/* Makes and locks the temporary; *again when it was taken for a leftover. 0 or an error number. */
static int try_temporary(rs_output *t, bool *again) {
  *again = false;
  if (t->directory && mkdirat(t->parent, t->hidden, (mode_t)t->directory_mode) != 0)
    return errno;
  int flags = t->directory ? O_RDONLY | O_DIRECTORY : O_RDWR | O_CREAT | O_EXCL, error;
  t->fd = openat(t->parent, t->hidden, flags | O_NOFOLLOW | O_CLOEXEC, t->file_mode);
  if (t->fd < 0) {
    error = errno;
    *again = t->directory && error == ENOENT;
    if (t->directory && !*again)
      unlinkat(t->parent, t->hidden, AT_REMOVEDIR);
    return error;
  }
  bool held = flock(t->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  error = held ? ENOENT : compare_name(t->parent, t->hidden, t->fd);
  if (error == 0 && (t->directory ? t->exact_directory : t->exact_file)) /* some file systems have no modes */
    (void)!fchmod(t->fd, (mode_t)(t->directory ? t->directory_mode : t->file_mode));
  if (error == 0)
    return 0;
  *again = error == ENOENT;
  if (!*again)
    unlinkat(t->parent, t->hidden, t->directory ? AT_REMOVEDIR : 0);
  close(t->fd);
  t->fd = -1;
  return error;
}

static reshard_status make_temporary(rs_output *t, const char *where, const char *suffix) {
  int64_t size = (int64_t)strlen(t->path) + 80;
  int stem = (int)(t->name - t->path);
  RS_TRY(rs_alloc(&t->temporary, size, 1));
  t->hidden = t->temporary + stem;
  for (int n = 0;; n++) {
    snprintf(t->temporary, (size_t)size, "%.*s.%s" RS_TEMPORARY_MARK "%lld-%d%s", stem, t->path, t->name,
             (long long)getpid(), n, suffix);
    bool again;
    int error = try_temporary(t, &again);
    if (error == 0)
      return RESHARD_SUCCESS;
    if (n >= 1000 || (error != EEXIST && !again))
      return rs_file_error(where, error);
  }
}

/* A directory's files have the mode of one that is in the old one. */
static void take_modes(rs_output *t) {
  struct stat info;
  DIR *directory = t->directory ? open_directory(t->parent, t->name) : NULL;
  if (fstatat(t->parent, t->name, &info, AT_SYMLINK_NOFOLLOW) == 0) {
    if (t->directory)
      t->directory_mode = (int)info.st_mode & 07777;
    else
      t->file_mode = (int)info.st_mode & 0777;
    t->exact_file = !t->directory;
    t->exact_directory = t->directory;
  }
  for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
    if (!is_part(entry->d_name) || fstatat(dirfd(directory), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    t->file_mode = (int)info.st_mode & 0777;
    t->exact_file = true;
    break;
  }
  if (directory != NULL)
    closedir(directory);
}

reshard_status rs_output_create(rs_output *t, const char *where, const char *path, bool directory, const char *suffix,
                                bool force, int mode) {
  bool there;
  *t = (rs_output){.parent = -1, .fd = -1, .directory = directory, .force = force, .file_mode = mode & 0777};
  t->directory_mode = t->file_mode | (t->file_mode & 0444) >> 2 | 0700;
  reshard_status status;
  RS_TRY_GOTO(status, locate_output(t, where, path), fail);
  RS_TRY_GOTO(status, follow_link(t, where, path), fail);
  RS_TRY_GOTO(status, check_existing(t, where, &there), fail);
  if (there)
    take_modes(t);
  remove_leftovers(t);
  RS_TRY_GOTO(status, make_temporary(t, where, suffix), fail);
  return RESHARD_SUCCESS;
fail:
  rs_output_free(t);
  return status;
}

int rs_output_open(const rs_output *t, const char *name, int *fd) {
  *fd = t->directory ? openat(t->fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, t->file_mode)
                     : fcntl(t->fd, F_DUPFD_CLOEXEC, 0);
  if (t->directory && t->exact_file && *fd >= 0)
    (void)!fchmod(*fd, (mode_t)t->file_mode);
  return *fd >= 0 ? 0 : errno;
}

int rs_sync_directory(int fd) {
  for (;;) {
    if (fsync(fd) == 0 || errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS)
      return 0;
    if (errno != EINTR)
      return errno;
  }
}

/* Way in which the new output came to its place; each can be undone but for OVERWRITTEN. */
typedef enum way { MOVED, EXCHANGED, SET_ASIDE, OVERWRITTEN } way;

/* For file systems that cannot exchange, or cannot rename without replacing (NFS). The old output is set aside, a file
 * by a second link, so that it stays in place until the new one is. Its name there is never removed as a leftover: it
 * may be the only copy. */
static int place_without_exchange(const rs_output *t, bool there, const char *aside, way *how) {
  *how = there ? SET_ASIDE : MOVED;
  if (!there && !t->directory) {
    if (linkat(t->parent, t->hidden, t->parent, t->name, 0) == 0) {
      unlinkat(t->parent, t->hidden, 0);
      return 0;
    }
    if (errno == EEXIST)
      return EEXIST;
  }
  if (there && t->directory && renameat(t->parent, t->name, t->parent, aside) != 0)
    return errno;
  if (there && !t->directory && linkat(t->parent, t->name, t->parent, aside, 0) != 0)
    *how = OVERWRITTEN;
  if (renameat(t->parent, t->hidden, t->parent, t->name) == 0)
    return 0;
  int error = errno;
  if (*how == SET_ASIDE && t->directory)
    renameat(t->parent, aside, t->parent, t->name);
  if (*how == SET_ASIDE && !t->directory)
    unlinkat(t->parent, aside, 0);
  return error;
}

static int place_output(const rs_output *t, bool there, const char *aside, way *how) {
  *how = there ? EXCHANGED : MOVED;
  if (renameat2(t->parent, t->hidden, t->parent, t->name, there ? RENAME_EXCHANGE : RENAME_NOREPLACE) == 0)
    return 0;
  bool lacking = errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP;
  return lacking ? place_without_exchange(t, there, aside, how) : errno;
}

static bool undo_place(const rs_output *t, const char *aside, way how) {
  if (how == EXCHANGED)
    return renameat2(t->parent, t->hidden, t->parent, t->name, RENAME_EXCHANGE) == 0;
  return how != OVERWRITTEN && renameat(t->parent, t->name, t->parent, t->hidden) == 0 &&
         (how != SET_ASIDE || renameat(t->parent, aside, t->parent, t->name) == 0);
}

reshard_status rs_output_publish(rs_output *t, const char *where) {
  bool there;
  way how;
  char aside[NAME_MAX + 8];
  snprintf(aside, sizeof aside, "%s.old", t->hidden);
  int error = EEXIST;
  for (int attempt = 0; attempt < 16 && (error == EEXIST || error == ENOENT); attempt++) {
    RS_TRY(check_existing(t, where, &there)); /* it may have come or gone since */
    error = place_output(t, there, aside, &how);
  }
  if (error != 0)
    return rs_error(RESHARD_ERROR_SYSTEM, "%s: cannot be put in its place: %s", where, strerror(error));
  error = rs_sync_directory(t->parent);
  if (error != 0 && undo_place(t, aside, how))
    return rs_file_error(where, error);
  close(t->fd);
  t->fd = -1; /* nothing of ours is under the temporary's name any more */
  if (error != 0)
    return rs_file_error(where, error);
  if (how == EXCHANGED || how == SET_ASIDE)
    discard_entry(t->parent, how == EXCHANGED ? t->hidden : aside);
  return RESHARD_SUCCESS;
}

/* By its own descriptor where it is a directory: there may be no other to have. */
static void discard_temporary(rs_output *t) {
  DIR *directory = t->directory ? fdopendir(t->fd) : NULL;
  if (directory != NULL) {
    discard_files(directory);
    unlinkat(t->parent, t->hidden, AT_REMOVEDIR);
    return;
  }
  discard_entry(t->parent, t->hidden);
  close(t->fd);
}

void rs_output_free(rs_output *t) {
  if (t->fd >= 0)
    discard_temporary(t);
  if (t->parent >= 0)
    close(t->parent);
  free(t->path);
  free(t->temporary);
  *t = (rs_output){.parent = -1, .fd = -1};
}

reshard_status rs_sync_file(const char *output, const rs_file *file, int64_t *done, int64_t all,
                            int (*progress)(void *, const char *, int64_t, int64_t), void *user) {
  const int64_t piece = (int64_t)64 << 20;
  char where[RS_WHERE];
  for (int64_t at = 0; at < file->size; at += piece) {
    int64_t n = rs_min(piece, file->size - at);
    int flags = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (progress != NULL && sync_file_range(file->fd, at, n, (unsigned)flags) != 0 &&
        (errno == EIO || errno == ENOSPC || errno == EDQUOT))
      return rs_file_error(rs_where(where, "file", file->path), errno);
    *done += n;
    if (progress != NULL && progress(user, "syncing", *done, all) != 0)
      return rs_error(RESHARD_ERROR_CANCELLED, "%s: cancelled after %lld of %lld bytes were synced", output,
                      (long long)*done, (long long)all);
  }
  while (fsync(file->fd) != 0)
    if (errno != EINTR)
      return rs_file_error(rs_where(where, "file", file->path), errno);
  return RESHARD_SUCCESS;
}
