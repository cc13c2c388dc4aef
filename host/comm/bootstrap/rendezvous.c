/* An all-gather between processes that know an address alone, over TCP: rank 0 listens, the others try until it is
 * there. One deadline ends everything. A connection that rank 0 has not taken after a short time is made anew, with
 * more time each time: another may listen there, or rank 0 may be slow. */
#define _GNU_SOURCE
#include "comm/bootstrap/bootstrap.h"

#include "device/cpu/threads.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC 0x72657368617265u
enum { PAUSE_MS = 20 };
#define DIFFER_NS INT64_C(10000000000)

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

static reshard_status resolve(const reshard_rendezvous *at, struct addrinfo **found) {
  char port[16];
  snprintf(port, sizeof port, "%d", at->port);
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
  int failed = getaddrinfo(at->address, port, &hints, found);
  return failed == 0 ? RESHARD_SUCCESS
                     : rs_error(RESHARD_ERROR_SYSTEM, "rendezvous: address '%s', port %s: %s", at->address, port,
                                gai_strerror(failed));
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

/* A rank that looks for rank 0. */
typedef struct bootstrap_seeker {
  rs_gathering *g;
  const struct addrinfo *found;
  rs_secrets differ; /* as the last one told that it has found there */
} bootstrap_seeker;

/* Proves itself to who listens, and has that prove itself: false where that is not rank 0, or not in time. */
static bool meet_first(bootstrap_seeker *s, int fd, const rs_greeting *mine, rs_welcome *welcome, int64_t end) {
  const rs_gathering *g = s->g;
  rs_admission admission;
  rs_proof proof;
  if (!transfer_bytes(g, fd, true, (void *)mine, sizeof *mine, end) ||
      !transfer_bytes(g, fd, false, welcome, sizeof *welcome, end))
    return false;
  if (welcome->secret != mine->secret) {
    s->differ = welcome->secret != 0 ? RS_SECRETS_FIRST : RS_SECRETS_OTHER;
    return false;
  }
  rs_prove(g, RS_PROOF_OF_RANK, mine, welcome, NULL, proof);
  if (!transfer_bytes(g, fd, true, proof, sizeof proof, end) ||
      !transfer_bytes(g, fd, false, &admission, sizeof admission, end))
    return false;
  rs_prove(g, RS_PROOF_OF_FIRST, mine, welcome, NULL, proof);
  bool proven = admission.refused == 0 && rs_proofs_equal(proof, admission.proof);
  s->differ = proven ? RS_SECRETS_SAME : RS_SECRETS_DIFFER;
  return proven;
}

/* Gives this rank's bytes until the time given, waits for those of all and says that they came. */
static bool give_and_take(const rs_gathering *g, int fd, const rs_greeting *mine, const rs_welcome *welcome,
                          int64_t end) {
  int64_t bytes = mine->bytes, all = mine->n * bytes;
  unsigned char digest[RS_SHA256_BYTES];
  rs_proof proof, theirs;
  char told = 0;
  rs_sha256(g->all + mine->rank * bytes, (size_t)bytes, digest);
  rs_prove(g, RS_PROOF_OF_BYTES, mine, welcome, digest, proof);
  if (!transfer_bytes(g, fd, true, g->all + mine->rank * bytes, bytes, end) ||
      !transfer_bytes(g, fd, true, proof, sizeof proof, end) || !transfer_bytes(g, fd, false, &told, 1, end) ||
      !transfer_bytes(g, fd, false, g->all, all, 0) || !transfer_bytes(g, fd, false, theirs, sizeof theirs, 0))
    return false;
  rs_sha256(g->all, (size_t)all, digest);
  rs_prove(g, RS_PROOF_OF_ALL, mine, welcome, digest, proof);
  return rs_proofs_equal(proof, theirs) && transfer_bytes(g, fd, true, &told, 1, 0);
}

/* One try. */
static bool attend(bootstrap_seeker *s, int64_t end) {
  rs_greeting mine = s->g->mine;
  rs_welcome welcome;
  mine.patience = end - rs_now_ns();
  int fd = rs_draw_nonce(mine.nonce) ? connect_to(s->g, s->found, end) : -1;
  if (fd < 0 && (s->g->end == 0 || rs_now_ns() < s->g->end)) /* whoever it was does not listen any more */
    s->differ = RS_SECRETS_SAME;
  bool done = fd >= 0 && meet_first(s, fd, &mine, &welcome, end) && give_and_take(s->g, fd, &mine, &welcome, end);
  if (fd >= 0)
    close(fd);
  return done;
}

static reshard_status error_absent(const bootstrap_seeker *s) {
  const rs_gathering *g = s->g;
  if (s->differ != RS_SECRETS_SAME)
    return rs_error_secrets(s->differ, g->mine.rank);
  return rs_error(RESHARD_ERROR_TIMEOUT, "rendezvous: rank %lld: rank 0 did not answer at %s, port %d, within %lld ms",
                  (long long)g->mine.rank, g->at->address, g->at->port, (long long)g->at->timeout_ms);
}

/* Tries until the deadline. Without one a rank gives up whom rank 0 tells for long that their secrets differ:
 * for a while another may listen there. */
static reshard_status attend_gathering(rs_gathering *g, const void *mine) {
  struct addrinfo *found = NULL;
  RS_TRY(resolve(g->at, &found));
  bootstrap_seeker s = {g, found, RS_SECRETS_SAME};
  reshard_status status = RESHARD_SUCCESS;
  int64_t patience = RS_PATIENCE_NS, differ_since = 0;
  for (int64_t end; !attend(&s, end = rs_now_ns() + patience);) {
    int64_t now = rs_now_ns();
    if (now >= end)
      patience = rs_min(2 * patience, RS_PATIENCE_MOST_NS);
    memcpy(g->all + g->mine.rank * g->mine.bytes, mine, (size_t)g->mine.bytes);
    differ_since = s.differ == RS_SECRETS_SAME ? 0 : differ_since == 0 ? now : differ_since;
    bool differs = g->end == 0 && differ_since != 0 && now - differ_since > DIFFER_NS;
    if (differs || (g->end != 0 && now >= g->end)) {
      status = error_absent(&s);
      break;
    }
    poll(NULL, 0, s.differ == RS_SECRETS_SAME ? PAUSE_MS : 10 * PAUSE_MS);
  }
  freeaddrinfo(found);
  return status;
}

/* --- Where rank 0 listens ----------------------------------------------------------------------------------------- */
/* At the address that the others were given, as far as that is this machine's. A name may be a loopback address here
 * and another one elsewhere (Debian gives its own name 127.0.1.1), so a loopback address is taken where all ranks are
 * on this machine. With ranks elsewhere, and if no address is this machine's, rank 0 listens at all. */

void rs_listeners_close(rs_listeners *listeners) {
  while (listeners->n > 0)
    close(listeners->fd[--listeners->n]);
}

static bool is_loopback(const struct addrinfo *a) {
  const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)a->ai_addr;
  const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)a->ai_addr;
  return a->ai_family == AF_INET ? ntohl(four->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET
                                 : a->ai_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

/* A list may have an address twice. */
static bool is_listed_before(const struct addrinfo *list, const struct addrinfo *a) {
  for (; list != a; list = list->ai_next)
    if (list->ai_addrlen == a->ai_addrlen && memcmp(list->ai_addr, a->ai_addr, a->ai_addrlen) == 0)
      return true;
  return false;
}

/* 0 or errno. */
static int listen_one(const struct addrinfo *a, rs_listeners *listeners) {
  int on = 1, fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
  if (fd < 0)
    return errno;
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
      (a->ai_family != AF_INET6 || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) == 0) &&
      bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 128) == 0) {
    listeners->fd[listeners->n++] = fd;
    return 0;
  }
  int failed = errno;
  close(fd);
  return failed;
}

/* Listens at all addresses of a list that are this machine's; 0 or errno. */
static int listen_all(const struct addrinfo *list, bool local, rs_listeners *listeners) {
  for (const struct addrinfo *a = list; a != NULL && listeners->n < RS_LISTENERS; a = a->ai_next) {
    if ((is_loopback(a) && !local) || is_listed_before(list, a))
      continue;
    int failed = listen_one(a, listeners);
    if (failed != 0 && failed != EADDRNOTAVAIL && failed != EAFNOSUPPORT)
      return failed;
  }
  return 0;
}

reshard_status rs_listen_at(const reshard_rendezvous *at, rs_listeners *listeners) {
  const struct addrinfo here = {.ai_socktype = SOCK_STREAM}, all = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
  struct addrinfo *found = NULL;
  char port[16];
  int failed = 0;
  snprintf(port, sizeof port, "%d", at->port);
  listeners->n = 0;
  if (getaddrinfo(at->address, port, &here, &found) == 0) {
    failed = listen_all(found, at->local_n == at->n, listeners);
    freeaddrinfo(found);
  }
  if (failed == 0 && listeners->n == 0) {
    int unknown = getaddrinfo(NULL, port, &all, &found);
    if (unknown != 0)
      return rs_error(RESHARD_ERROR_SYSTEM, "rendezvous: rank 0, port %d: %s", at->port, gai_strerror(unknown));
    failed = listen_all(found, true, listeners);
    freeaddrinfo(found);
    failed = failed == 0 && listeners->n == 0 ? EADDRNOTAVAIL : failed;
  }
  if (failed == 0)
    return RESHARD_SUCCESS;
  rs_listeners_close(listeners);
  return rs_error(RESHARD_ERROR_SYSTEM, "rendezvous: rank 0 cannot listen at '%s', port %d: %s", at->address, at->port,
                  strerror(failed));
}

/* --- The call ----------------------------------------------------------------------------------------------------- */

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
  g.mine = (rs_greeting){.magic = MAGIC,
                         .run = rs_hash(version, at->job, strnlen(at->job, sizeof at->job)),
                         .n = at->n,
                         .rank = at->rank,
                         .bytes = (int64_t)bytes,
                         .secret = at->secret[0] != '\0'};
  memcpy((char *)all + at->rank * (int64_t)bytes, mine, bytes);
  if (at->n == 1)
    return RESHARD_SUCCESS;
  if (at->rank > 0)
    return attend_gathering(&g, mine);
  rs_listeners listeners;
  RS_TRY(rs_listen_at(at, &listeners));
  reshard_status status = rs_serve_gathering(&g, &listeners);
  rs_listeners_close(&listeners);
  return status;
}
