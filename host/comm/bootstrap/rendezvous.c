/* An all-gather between processes that know an address alone, over TCP: rank 0 listens, the others try until it is
 * there. One deadline ends everything. A connection that rank 0 has not taken after a short time is made anew, with
 * more time each time: another may listen there, or rank 0 may be slow. */
#define _GNU_SOURCE
#include "comm/bootstrap/bootstrap.h"
#include "device/cpu/threads.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC 0x72657368617265u
enum { PAUSE_MS = 20 };

int rs_ms_until(int64_t a, int64_t b) {
  int64_t end = a == 0 || (b != 0 && b < a) ? b : a, left = (end - rs_now_ns() + 999999) / 1000000;
  return end == 0 ? -1 : left <= 0 ? 0 : left < INT_MAX ? (int)left : INT_MAX;
}

bool rs_transfer_some(int fd, bool out, void *bytes, int64_t n, int64_t *done) {
  size_t left = (size_t)(n - *done);
  ssize_t some = out ? send(fd, (char *)bytes + *done, left, MSG_NOSIGNAL | MSG_DONTWAIT)
                     : recv(fd, (char *)bytes + *done, left, MSG_DONTWAIT);
  *done += some > 0 ? some : 0;
  return some > 0 || (some < 0 && (errno == EAGAIN || errno == EINTR));
}

/* Sends or receives all n bytes; false at the time given, or at the gathering's end. */
static bool transfer_bytes(const rs_gathering *g, int fd, bool out, void *bytes, int64_t n, int64_t end) {
  for (int64_t done = 0; done < n;) {
    struct pollfd p = {fd, out ? POLLOUT : POLLIN, 0};
    int ready = poll(&p, 1, rs_ms_until(end, g->end));
    if (ready == 0 || (ready < 0 && errno != EINTR) || (ready > 0 && !rs_transfer_some(fd, out, bytes, n, &done)))
      return false;
  }
  return true;
}

static reshard_status resolve(const reshard_rendezvous *at, bool listening, struct addrinfo **found) {
  char port[16];
  snprintf(port, sizeof port, "%d", at->port);
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = listening ? AI_PASSIVE : 0};
  int failed = getaddrinfo(listening ? NULL : at->address, port, &hints, found);
  return failed == 0 ? RESHARD_SUCCESS
                     : rs_error(RESHARD_ERROR_SYSTEM, "rendezvous: address '%s', port %s: %s", at->address, port,
                                gai_strerror(failed));
}

static reshard_status listen_at(const reshard_rendezvous *at, int *listener) {
  struct addrinfo *found = NULL;
  int error = 0;
  RS_TRY(resolve(at, true, &found));
  for (const struct addrinfo *a = found; a != NULL; a = a->ai_next) {
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol), on = 1;
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 128) == 0) {
      freeaddrinfo(found);
      *listener = fd;
      return RESHARD_SUCCESS;
    }
    error = errno;
    if (fd >= 0)
      close(fd);
  }
  freeaddrinfo(found);
  return rs_error(RESHARD_ERROR_SYSTEM, "rendezvous: rank 0 cannot listen at port %d: %s", at->port, strerror(error));
}

static int connect_to(const rs_gathering *g, const struct addrinfo *at, int64_t end) {
  for (; at != NULL; at = at->ai_next) {
    int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
    if (fd < 0)
      continue;
    int error = 0;
    socklen_t size = sizeof error;
    struct pollfd p = {fd, POLLOUT, 0};
    if (connect(fd, at->ai_addr, at->ai_addrlen) == 0 ||
        (errno == EINPROGRESS && poll(&p, 1, rs_ms_until(end, g->end)) > 0 &&
         getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0))
      return fd;
    close(fd);
  }
  return -1;
}

/* One try of another rank than 0: greets, gives its bytes until the time given, waits for those of all and says that
 * they came. */
static bool attend(rs_gathering *g, const struct addrinfo *at, int64_t end) {
  int64_t bytes = g->mine.bytes;
  char told = 0;
  int fd = connect_to(g, at, end);
  bool done = fd >= 0 && transfer_bytes(g, fd, true, &g->mine, sizeof g->mine, end) &&
              transfer_bytes(g, fd, true, g->all + g->mine.rank * bytes, bytes, end) &&
              transfer_bytes(g, fd, false, &told, 1, end) &&
              transfer_bytes(g, fd, false, g->all, g->mine.n * bytes, 0) && transfer_bytes(g, fd, true, &told, 1, 0);
  if (fd >= 0)
    close(fd);
  return done;
}

static reshard_status attend_gathering(rs_gathering *g, const void *mine) {
  struct addrinfo *found = NULL;
  RS_TRY(resolve(g->at, false, &found));
  reshard_status status = RESHARD_SUCCESS;
  int64_t patience = RS_PATIENCE_NS;
  for (int64_t end; !attend(g, found, end = rs_now_ns() + patience);) {
    if (rs_now_ns() >= end)
      patience *= 2;
    memcpy(g->all + g->mine.rank * g->mine.bytes, mine, (size_t)g->mine.bytes);
    if (g->end != 0 && rs_now_ns() >= g->end) {
      status =
          rs_error(RESHARD_ERROR_TIMEOUT, "rendezvous: rank %lld: rank 0 did not answer at %s, port %d, within %lld ms",
                   (long long)g->mine.rank, g->at->address, g->at->port, (long long)g->at->timeout_ms);
      break;
    }
    poll(NULL, 0, PAUSE_MS);
  }
  freeaddrinfo(found);
  return status;
}

reshard_status reshard_rendezvous_allgather(void *rendezvous, const void *mine, size_t bytes, void *all) {
  const reshard_rendezvous *at = rendezvous;
  RS_HOLD_CANCEL;
  RS_TRY(RS_GIVEN("reshard_rendezvous_allgather", rendezvous, mine, all));
  RS_TRY(RS_SIZED(reshard_rendezvous, at));
  bool port = at->n == 1 || (at->port >= 1 && at->port <= 65535); /* one process meets no other */
  if (at->n < 1 || at->rank < 0 || at->rank >= at->n || !port || at->timeout_ms < 0)
    return rs_error(RESHARD_ERROR_INVALID, "rendezvous: rank %lld of %lld, port %d, timeout %lld ms",
                    (long long)at->rank, (long long)at->n, at->port, (long long)at->timeout_ms);
  int64_t now = rs_now_ns(), ms = at->timeout_ms, total;
  if (bytes == 0)
    return rs_error(RESHARD_ERROR_INVALID, "rendezvous: 0 bytes");
  if (bytes > INT64_MAX || !rs_mul(at->n, (int64_t)bytes, &total))
    return rs_error_memory(SIZE_MAX);
  uint64_t version = rs_hash(0, RESHARD_VERSION_STRING, strlen(RESHARD_VERSION_STRING));
  rs_gathering g = {.at = at, .all = all, .end = ms > 0 && ms < (INT64_MAX - now) / 1000000 ? now + ms * 1000000 : 0};
  g.mine = (rs_greeting){MAGIC, rs_hash(version, at->job, strnlen(at->job, sizeof at->job)), at->n, at->rank,
                         (int64_t)bytes};
  memcpy((char *)all + at->rank * (int64_t)bytes, mine, bytes);
  if (at->n == 1)
    return RESHARD_SUCCESS;
  if (at->rank > 0)
    return attend_gathering(&g, mine);
  int listener = -1;
  RS_TRY(listen_at(at, &listener));
  reshard_status status = rs_serve_gathering(&g, listener);
  close(listener);
  return status;
}
