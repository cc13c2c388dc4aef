/* The log of a communicator: RESHARD_LOG=info tells of each transfer as it is made and of each call that fails, trace
 * of every call besides, on standard error or in RESHARD_LOG_FILE, a line at once, each with the host, the
 * process and the rank before it. Nothing of the environment is in a line. */
#define _GNU_SOURCE
#include "comm/calls.h"

#include "comm/comm.h"
#include "device/cpu/threads.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static reshard_status read_level(rs_log_level *level) {
  static const char *const words[] = {"", "info", "trace"};
  const char *text = getenv("RESHARD_LOG");
  for (int i = 0; i < 3; i++)
    if (strcasecmp(text != NULL ? text : "", words[i]) == 0) {
      *level = (rs_log_level)i;
      return RESHARD_SUCCESS;
    }
  return rs_error(RESHARD_ERROR_INVALID, "RESHARD_LOG=%.32s is none of info, trace", text);
}

static void add_name(rs_text *out, const char *pattern, const char *host) {
  for (const char *at = pattern; *at != '\0'; at++) {
    const char *next = at[0] == '%' && at[1] != '\0' && strchr("hp%", at[1]) != NULL ? ++at : NULL;
    if (next == NULL || *next == '%')
      rs_text_add(out, "%c", *at);
    else if (*next == 'h')
      rs_text_add(out, "%s", host);
    else
      rs_text_add(out, "%lld", (long long)getpid());
  }
}

reshard_status rs_log_open(rs_log *log) {
  *log = (rs_log){.fd = STDERR_FILENO};
  RS_TRY(read_level(&log->level));
  const char *pattern = getenv("RESHARD_LOG_FILE");
  if (log->level == RS_LOG_OFF)
    return RESHARD_SUCCESS;
  if (gethostname(log->host, sizeof log->host - 1) != 0)
    snprintf(log->host, sizeof log->host, "localhost");
  log->host[strcspn(log->host, ".")] = '\0';
  if (pattern == NULL || *pattern == '\0')
    return RESHARD_SUCCESS;
  rs_text name = {.grows = true};
  add_name(&name, pattern, log->host);
  reshard_status status = name.status;
  if (status == RESHARD_SUCCESS)
    log->fd = open(name.at, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
  if (status == RESHARD_SUCCESS && log->fd < 0)
    status =
        rs_error(errno == ENOENT || errno == ENOTDIR || errno == EISDIR ? RESHARD_ERROR_INVALID : RESHARD_ERROR_SYSTEM,
                 "RESHARD_LOG_FILE: '%.200s': %s", name.at, strerror(errno));
  free(name.at);
  return status;
}

void rs_log_close(rs_log *log) {
  if (log->level != RS_LOG_OFF && log->fd > STDERR_FILENO)
    close(log->fd);
  log->level = RS_LOG_OFF;
}

static void write_all(int fd, const char *bytes, size_t n) {
  while (n > 0) {
    ssize_t written = write(fd, bytes, n);
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      return;
    bytes += written;
    n -= (size_t)written;
  }
}

void rs_log_lines(const rs_log *log, reshard_comm comm, const char *text) {
  RS_HOLD_CANCEL; /* its caller may not */
  rs_text out = {.grows = true};
  int saved = errno;
  for (const char *at = text; *at != '\0';) {
    size_t length = strcspn(at, "\n");
    rs_text_add(&out, "reshard: %s:%lld rank %lld", log->host, (long long)getpid(), (long long)comm->rank);
    if (comm->global_ranks != NULL)
      rs_text_add(&out, " (global %lld)", (long long)comm->global_ranks[comm->rank]);
    rs_text_add(&out, ": %.*s\n", (int)length, at);
    at += length + (at[length] == '\n');
  }
  if (out.status == RESHARD_SUCCESS && out.at != NULL)
    write_all(log->fd, out.at, out.length); /* at once, so that lines of several ranks do not mix */
  free(out.at);
  errno = saved;
}
