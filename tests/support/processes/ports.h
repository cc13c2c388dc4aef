/* Ports at which a test listens later. */
#ifndef TESTS_SUPPORT_PORTS_H
#define TESTS_SUPPORT_PORTS_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

static inline bool port_is_free(int port) {
  struct sockaddr_in at = {
      .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bool is_free = bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
  close(fd);
  return is_free;
}

/* A port that is free, and so is the next one. The system gives neither to a connection of another test, since both are
 * below those that it hands out. */
static inline int free_port(void) {
  static unsigned tries;
  for (;;) {
    int port = 10000 + (int)((61 * (unsigned)getpid() + 2 * tries++) % 22000);
    if (port_is_free(port) && port_is_free(port + 1))
      return port;
  }
}

#endif
