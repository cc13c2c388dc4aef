/* Broadcasts a few bytes from the first process to all, over TCP. The first process listens and answers each process of
 * this run once; the others try until it is there. One deadline ends everything. */
#define _GNU_SOURCE
#include "bench/launch/processes.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC 0x72657368617264u

typedef struct greeting {
  uint64_t magic;
  int64_t n, me, bytes;
} greeting;

static double deadline;

static int remaining_ms(void) {
  double left = 1e3 * (deadline - rs_seconds());
  return left > 0 ? (int)left + 1 : 0;
}

/* Sends or receives all n bytes; false at the deadline, and where the other side is gone. */
static bool transfer_bytes(int fd, bool out, void *bytes, size_t n) {
  for (size_t done = 0; done < n;) {
    struct pollfd p = {fd, out ? POLLOUT : POLLIN, 0};
    if (poll(&p, 1, remaining_ms()) <= 0)
      return false;
    ssize_t some = out ? send(fd, (char *)bytes + done, n - done, MSG_NOSIGNAL | MSG_DONTWAIT)
                       : recv(fd, (char *)bytes + done, n - done, MSG_DONTWAIT);
    if (some == 0 || (some < 0 && errno != EAGAIN && errno != EINTR))
      return false;
    done += some > 0 ? (size_t)some : 0;
  }
  return true;
}

static struct addrinfo *resolve(const char *address, bool listening, char port[16]) {
  char *end;
  const char *text = getenv("MASTER_PORT");
  long number = strtol(text, &end, 10);
  if (end == text || *end != '\0' || number < 1 || number > 65534)
    cli_exit(EXIT_USAGE, "MASTER_PORT=%s: a port from 1 to 65534 is expected; the one after it is used", text);
  snprintf(port, 16, "%ld", number + 1);
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = listening ? AI_PASSIVE : 0}, *found = NULL;
  int failed = getaddrinfo(listening ? NULL : address, port, &hints, &found);
  if (failed != 0)
    cli_exit(EXIT_FAILED, "MASTER_ADDR=%s, port %s: %s", address, port, gai_strerror(failed));
  return found;
}

static int listen_at_port(const struct addrinfo *at, const char *port) {
  int error = 0;
  for (; at != NULL; at = at->ai_next) {
    int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol), on = 1;
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, 128) == 0)
      return fd;
    error = errno;
    if (fd >= 0)
      close(fd);
  }
  cli_exit(EXIT_FAILED, "process 0 cannot listen at port %s, the one after MASTER_PORT: %s", port, strerror(error));
}

static void serve_bytes(const processes *p, void *bytes, size_t n) {
  char port[16];
  struct addrinfo *at = resolve("", true, port);
  int listener = listen_at_port(at, port);
  freeaddrinfo(at);
  bool *served = cli_alloc(p->n, sizeof *served);
  int64_t count = 1;
  while (count < p->n) {
    struct pollfd wait = {listener, POLLIN, 0};
    if (poll(&wait, 1, remaining_ms()) <= 0)
      cli_exit(EXIT_FAILED, "process 0: %lld of %lld processes came to port %s within %lld ms", (long long)count,
               (long long)p->n, port, (long long)processes_timeout_ms());
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    greeting g = {0};
    bool ours = fd >= 0 && transfer_bytes(fd, false, &g, sizeof g) && g.magic == MAGIC && g.n == p->n && g.me > 0 &&
                g.me < p->n && g.bytes == (int64_t)n && !served[g.me];
    if (ours && transfer_bytes(fd, true, bytes, n)) {
      served[g.me] = true;
      count++;
    }
    if (fd >= 0)
      close(fd);
  }
  close(listener);
  free(served);
}

static int connect_to(const struct addrinfo *at) {
  for (; at != NULL; at = at->ai_next) {
    int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
    if (fd < 0)
      continue;
    int error = 0;
    socklen_t size = sizeof error;
    struct pollfd p = {fd, POLLOUT, 0};
    if (connect(fd, at->ai_addr, at->ai_addrlen) == 0 ||
        (errno == EINPROGRESS && poll(&p, 1, remaining_ms()) > 0 &&
         getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0))
      return fd;
    close(fd);
  }
  return -1;
}

static void request_bytes(const processes *p, void *bytes, size_t n) {
  const char *address = getenv("MASTER_ADDR");
  char port[16];
  struct addrinfo *at = resolve(address, false, port);
  for (bool done = false; !done;) {
    greeting g = {MAGIC, p->n, p->me, (int64_t)n};
    int fd = connect_to(at);
    done = fd >= 0 && transfer_bytes(fd, true, &g, sizeof g) && transfer_bytes(fd, false, bytes, n);
    if (fd >= 0)
      close(fd);
    if (!done && remaining_ms() == 0)
      cli_exit(EXIT_FAILED, "process %lld: process 0 did not answer at %s, port %s, within %lld ms", (long long)p->me,
               address, port, (long long)processes_timeout_ms());
    if (!done)
      poll(NULL, 0, 20);
  }
  freeaddrinfo(at);
}

void tcp_share(const processes *p, void *bytes, size_t n) {
  deadline = rs_seconds() + 1e-3 * (double)processes_timeout_ms();
  if (p->me == 0)
    serve_bytes(p, bytes, n);
  else
    request_bytes(p, bytes, n);
}
