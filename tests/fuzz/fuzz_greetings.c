/* Bytes of strangers at the sockets by which ranks find each other. At a rendezvous: one without the secret gets no
 * place, and no byte of a rank. On a node: messages of any step, length and number are received, dropped or refused. */
#define _GNU_SOURCE
#include "fuzz.h"

#include "comm/bootstrap/bootstrap.h"
#include "comm/node/sockets.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

enum { BYTES = 48, POISON = 0xa5, MOST_CONNECTIONS = 4, LAST_MS = 1 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* --- The rendezvous ----------------------------------------------------------------------------------------------- */

static rs_listeners *listen_once(struct sockaddr_in *at) {
  static rs_listeners listeners;
  static struct sockaddr_in address;
  socklen_t size = sizeof address;
  if (listeners.n == 0) {
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listeners.fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    fuzz_require(bind(listeners.fd[0], (struct sockaddr *)&address, size) == 0 && listen(listeners.fd[0], 8) == 0 &&
                 getsockname(listeners.fd[0], (struct sockaddr *)&address, &size) == 0);
    listeners.n = 1;
  }
  *at = address;
  return &listeners;
}

/* A connection that says these bytes; its greeting is one of the run where `known`. */
static int say(const struct sockaddr_in *at, const rs_greeting *run, bool known, const uint8_t *data, size_t size) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  rs_greeting g;
  if (fd < 0 || connect(fd, (const struct sockaddr *)at, sizeof *at) != 0)
    return fd;
  if (known && size >= sizeof g) {
    memcpy(&g, data, sizeof g);
    g.magic = run->magic, g.run = run->run, g.n = run->n, g.rank = 1, g.bytes = run->bytes;
    (void)send(fd, &g, sizeof g, MSG_NOSIGNAL);
    data += sizeof g, size -= sizeof g;
  }
  (void)send(fd, data, size < 4096 ? size : 4096, MSG_NOSIGNAL | MSG_DONTWAIT);
  (void)shutdown(fd, SHUT_WR);
  return fd;
}

/* Rank 0 of two, whose rank 1 does not come. */
static void meet_strangers(uint8_t flags, const uint8_t *data, size_t size) {
  reshard_rendezvous at = RESHARD_RENDEZVOUS_DEFAULTS;
  struct sockaddr_in address;
  const rs_listeners *listeners = listen_once(&address);
  unsigned char all[2 * BYTES], got[512];
  int n = 1 + (flags >> 6), fd[MOST_CONNECTIONS];
  at.n = 2;
  at.timeout_ms = LAST_MS;
  at.secret[0] = (flags & 4) != 0 ? 's' : '\0';
  rs_gathering g = {.at = &at, .all = (char *)all, .end = rs_now_ns() + LAST_MS * INT64_C(1000000)};
  g.mine = (rs_greeting){.magic = 1, .run = 2, .n = 2, .bytes = BYTES, .secret = (flags & 4) != 0};
  memset(all, POISON, sizeof all);
  for (int i = 0; i < n; i++)
    fd[i] = say(&address, &g.mine, (flags & 8) != 0, data + size * (size_t)i / (size_t)n, size / (size_t)n);
  reshard_status status = rs_serve_gathering(&g, listeners);
  fuzz_require(status == RESHARD_ERROR_TIMEOUT || status == RESHARD_ERROR_MISMATCH);
  for (int i = 0; i < n; i++) {
    ssize_t heard = fd[i] >= 0 ? recv(fd[i], got, sizeof got, MSG_DONTWAIT) : 0;
    fuzz_require(heard <= (ssize_t)(sizeof(rs_welcome) + sizeof(rs_admission)));
    if (fd[i] >= 0)
      close(fd[i]);
  }
  /* Connections that the gathering was too late for stay in the queue of the listener, where the next find no place. */
  for (int left; (left = accept(listeners->fd[0], NULL, NULL)) >= 0;)
    close(left);
  for (size_t i = 0; i < sizeof all; i++)
    fuzz_require(all[i] == POISON);
}

/* --- A node ------------------------------------------------------------------------------------------------------- */

/* Messages: a byte of length before each, and whether it has a descriptor. */
static void receive_messages(const uint8_t *data, size_t size) {
  unsigned char bytes[16];
  int pair[2], with;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
    return;
  while (size > 0) {
    size_t length = data[0] % 32 < size - 1 ? data[0] % 32 : size - 1;
    if (data[0] < 128)
      (void)send(pair[1], data + 1, length, MSG_NOSIGNAL);
    else
      (void)rs_node_send(pair[1], (rs_node_step)(data[0] >> 5), data + 1, length, pair[1], 1);
    data += 1 + length, size -= 1 + length;
  }
  for (int step = RS_NODE_GREETING; step <= RS_NODE_MEMORY; step++)
    for (int failed = 0; failed == 0 || failed == EPROTO;) {
      failed = rs_node_receive(pair[0], (rs_node_step)step, bytes, sizeof bytes, &with, 1);
      fuzz_require(failed == 0 || failed == EPROTO || failed == EPIPE || failed == ENOMSG || failed == ETIMEDOUT);
      fuzz_require(with < 0 || (failed == 0 && close(with) == 0));
    }
  close(pair[0]);
  close(pair[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 1)
    return 0;
  if (data[0] % 2 == 0)
    meet_strangers(data[0], data + 1, size - 1);
  else
    receive_messages(data + 1, size - 1);
  return 0;
}
