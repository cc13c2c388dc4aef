/* Broadcasts a few bytes from the first process to all, over TCP. The first process listens and answers each process of
 * this run once; the others try until it is there. One deadline ends everything.
 *
 * Whoever connects has PATIENCE_MS and is served beside the others, so that one who is idle holds up none. He is
 * answered when his greeting is that of this run: version, job, world, and a rank that has not been answered. A rank is
 * answered when it has said so: one that gave up before may come again. */
#define _GNU_SOURCE
#include "bench/launch/processes.h"

#include "base/base.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC 0x72657368617264u
enum { PATIENCE_MS = 2000, MOST_GUESTS = 256 };

typedef struct greeting {
  uint64_t magic, run; /* hash of the version and the job */
  int64_t n, me, bytes;
} greeting;

static double deadline;

/* The earlier of a time and the deadline. */
static int ms_until(double time) {
  double left = 1e3 * ((time < deadline ? time : deadline) - rs_seconds());
  return left <= 0 ? 0 : left < INT_MAX ? (int)left + 1 : INT_MAX;
}

static double patience_ends(void) { return rs_seconds() + 1e-3 * PATIENCE_MS; }

/* RESHARD_JOB, a secret if need be, or the id that torchrun gives a run. */
static greeting make_greeting(const processes *p, size_t n) {
  const char *job = getenv("RESHARD_JOB");
  if (job == NULL)
    job = getenv("TORCHELASTIC_RUN_ID");
  if (job == NULL)
    job = "";
  uint64_t version = rs_hash(0, RESHARD_VERSION_STRING, strlen(RESHARD_VERSION_STRING));
  return (greeting){MAGIC, rs_hash(version, job, strlen(job)), p->n, p->me, (int64_t)n};
}

/* Sends or receives what it can, up to n bytes; false where the other side is gone. */
static bool transfer_some(int fd, bool out, void *bytes, size_t n, size_t *done) {
  ssize_t some = out ? send(fd, (char *)bytes + *done, n - *done, MSG_NOSIGNAL | MSG_DONTWAIT)
                     : recv(fd, (char *)bytes + *done, n - *done, MSG_DONTWAIT);
  *done += some > 0 ? (size_t)some : 0;
  return some > 0 || (some < 0 && (errno == EAGAIN || errno == EINTR));
}

/* Sends or receives all n bytes; false at the time given. */
static bool transfer_bytes(int fd, bool out, void *bytes, size_t n, double end) {
  for (size_t done = 0; done < n;) {
    struct pollfd p = {fd, out ? POLLOUT : POLLIN, 0};
    if (poll(&p, 1, ms_until(end)) <= 0 || !transfer_some(fd, out, bytes, n, &done))
      return false;
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

/* --- The first process -------------------------------------------------------------------------------------------- */

/* A connection: its greeting comes in, the bytes go out, a byte comes in that says that they have come. */
typedef struct guest {
  int fd;
  double end;
  greeting g;
  char received;
  size_t greeted, answered, thanked; /* bytes of each step that are done */
} guest;

typedef struct host {
  greeting mine;
  void *bytes;
  size_t n;
  bool *served; /* [processes] */
  int64_t count;
  int listener, nguests;
  guest guests[MOST_GUESTS];
  struct pollfd polls[MOST_GUESTS + 1]; /* the listener is the last one */
} host;

/* Ends a connection; the order of the others stays: by age. */
static void dismiss(host *h, int i) {
  close(h->guests[i].fd);
  memmove(&h->guests[i], &h->guests[i + 1], (size_t)(--h->nguests - i) * sizeof *h->guests);
}

static bool is_expected(const host *h, const guest *who) {
  const greeting *g = &who->g;
  if (g->magic != h->mine.magic || g->run != h->mine.run || g->n != h->mine.n || g->bytes != h->mine.bytes ||
      g->me <= 0 || g->me >= h->mine.n || h->served[g->me])
    return false;
  for (int i = 0; i < h->nguests; i++) /* the same rank twice at a time */
    if (&h->guests[i] != who && h->guests[i].greeted == sizeof *g && h->guests[i].g.me == g->me)
      return false;
  return true;
}

/* Goes on with a connection that is ready; false where it has ended. */
static bool serve_guest(host *h, guest *who) {
  if (who->greeted < sizeof who->g)
    return transfer_some(who->fd, false, &who->g, sizeof who->g, &who->greeted) &&
           (who->greeted < sizeof who->g || is_expected(h, who));
  if (who->answered < h->n)
    return transfer_some(who->fd, true, h->bytes, h->n, &who->answered);
  if (!transfer_some(who->fd, false, &who->received, 1, &who->thanked))
    return false;
  h->served[who->g.me] = who->thanked == 1;
  h->count += who->thanked == 1;
  return who->thanked == 0;
}

/* Lets one in; where there are too many, the oldest has to go. */
static void admit_guest(host *h) {
  if (h->nguests == MOST_GUESTS)
    dismiss(h, 0);
  int fd = accept4(h->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0)
    h->guests[h->nguests++] = (guest){.fd = fd, .end = patience_ends()};
  else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
    if (h->nguests > 0)
      dismiss(h, 0);
    else
      poll(NULL, 0, 20);
  }
}

/* Waits for something to happen, and goes on with it; false at the deadline. */
static bool serve_some(host *h) {
  double end = h->nguests > 0 ? h->guests[0].end : deadline;
  int n = h->nguests;
  for (int i = 0; i < n; i++) {
    const guest *who = &h->guests[i];
    bool out = who->greeted == sizeof who->g && who->answered < h->n;
    h->polls[i] = (struct pollfd){who->fd, out ? POLLOUT : POLLIN, 0};
  }
  h->polls[n] = (struct pollfd){h->listener, POLLIN, 0};
  poll(h->polls, (nfds_t)n + 1, ms_until(end));
  double now = rs_seconds();
  for (int i = n - 1; i >= 0; i--)
    if ((h->polls[i].revents != 0 && !serve_guest(h, &h->guests[i])) || h->guests[i].end < now)
      dismiss(h, i);
  if (h->polls[n].revents != 0)
    admit_guest(h);
  return now < deadline;
}

static void serve_bytes(const processes *p, void *bytes, size_t n) {
  char port[16];
  struct addrinfo *at = resolve("", true, port);
  host *h = cli_alloc(1, sizeof *h);
  *h = (host){.mine = make_greeting(p, n), .bytes = bytes, .n = n, .listener = listen_at_port(at, port)};
  freeaddrinfo(at);
  h->served = cli_alloc(p->n, sizeof *h->served);
  h->count = 1;
  while (h->count < p->n)
    if (!serve_some(h))
      cli_exit(EXIT_FAILED, "process 0: %lld of %lld processes came to port %s within %lld ms", (long long)h->count,
               (long long)p->n, port, (long long)processes_timeout_ms());
  while (h->nguests > 0)
    dismiss(h, h->nguests - 1);
  close(h->listener);
  free(h->served);
  free(h);
}

/* --- The others -------------------------------------------------------------------------------------------------- */

static int connect_to(const struct addrinfo *at, double end) {
  for (; at != NULL; at = at->ai_next) {
    int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
    if (fd < 0)
      continue;
    int error = 0;
    socklen_t size = sizeof error;
    struct pollfd p = {fd, POLLOUT, 0};
    if (connect(fd, at->ai_addr, at->ai_addrlen) == 0 ||
        (errno == EINPROGRESS && poll(&p, 1, ms_until(end)) > 0 &&
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
    greeting g = make_greeting(p, n);
    double end = patience_ends();
    int fd = connect_to(at, end);
    done = fd >= 0 && transfer_bytes(fd, true, &g, sizeof g, end) && transfer_bytes(fd, false, bytes, n, end) &&
           transfer_bytes(fd, true, "", 1, end);
    if (fd >= 0)
      close(fd);
    if (!done && rs_seconds() >= deadline)
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
