/* Addresses at which rank 0 listens: the one that the others were given, as far as that is this machine's. A name may
 * be a loopback address here and another one elsewhere (Debian gives its own name 127.0.1.1), so a loopback address is
 * taken where all ranks are on this machine. With ranks elsewhere, and if no address is this machine's, rank 0 listens
 * at all. */
#include "comm/bootstrap/bootstrap.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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
