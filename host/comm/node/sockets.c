/* Sockets between the processes of a node: of whole messages, with descriptors in them. Their names are abstract, so
 * they leave no file, and are known to those alone who are shown them. */
#define _GNU_SOURCE
#include "comm/node/sockets.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { BACKLOG = 1024, MOST_DESCRIPTORS = 64 };

static struct sockaddr_un socket_address(const rs_node_address *address, socklen_t *size) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  size_t bytes = (size_t)rs_max(0, rs_min(address->name_bytes, sizeof address->name)); /* another process wrote it */
  memcpy(at.sun_path, address->name, bytes);
  *size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes);
  return at;
}

int rs_node_listen(rs_node_address *address, int *listener) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  socklen_t size = sizeof at;
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return errno;
  /* Without a name the system finds one that no other has. */
  if (bind(fd, (struct sockaddr *)&at, sizeof(sa_family_t)) != 0 || listen(fd, BACKLOG) != 0 ||
      getsockname(fd, (struct sockaddr *)&at, &size) != 0) {
    int failed = errno;
    close(fd);
    return failed;
  }
  address->name_bytes =
      (int32_t)rs_min((int64_t)sizeof address->name, size - (int64_t)offsetof(struct sockaddr_un, sun_path));
  memcpy(address->name, at.sun_path, (size_t)address->name_bytes);
  *listener = fd;
  return 0;
}

/* Milliseconds until then, for poll. */
static int ms_until(int64_t end) {
  int64_t left = end != 0 ? (end - rs_now_ns() + 999999) / 1000000 : -1;
  return end == 0 ? -1 : left <= 0 ? 0 : left < INT_MAX ? (int)left : INT_MAX;
}

/* 0 when the socket is ready, in time. */
static int await_socket(int fd, short events, int64_t end) {
  for (;;) {
    struct pollfd p = {fd, events, 0};
    int ready = poll(&p, 1, ms_until(end));
    if (ready > 0)
      return 0;
    if (ready == 0)
      return ETIMEDOUT;
    if (errno != EINTR)
      return errno;
  }
}

int rs_node_dial(const rs_node_address *address, int64_t end, int *out) {
  socklen_t size;
  struct sockaddr_un at = socket_address(address, &size);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return errno;
  while (connect(fd, (struct sockaddr *)&at, size) != 0) {
    int failed = errno;
    if ((failed == EAGAIN || failed == EINTR) && ms_until(end) != 0) { /* many wait to be let in */
      nanosleep(&(struct timespec){0, 1000000}, NULL);
      continue;
    }
    close(fd);
    return failed == EAGAIN ? ETIMEDOUT : failed;
  }
  *out = fd;
  return 0;
}

int rs_node_admit(int listener) {
  struct ucred who;
  socklen_t size = sizeof who;
  int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0)
    return -1;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.uid == geteuid())
    return fd;
  close(fd);
  return -1;
}

int rs_node_send(int fd, const void *bytes, size_t n, const int *fds, int nfds, int64_t end) {
  union {
    char bytes[CMSG_SPACE(MOST_DESCRIPTORS * sizeof(int))];
    struct cmsghdr aligned;
  } control;
  struct iovec part = {(void *)bytes, n};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (nfds > 0) {
    memset(&control, 0, sizeof control);
    message.msg_control = &control;
    message.msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int));
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int));
    memcpy(CMSG_DATA(rights), fds, (size_t)nfds * sizeof(int));
  }
  for (;;) {
    if (sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
      return 0;
    if (errno != EAGAIN && errno != EINTR)
      return errno;
    int failed = await_socket(fd, POLLOUT, end);
    if (failed != 0)
      return failed;
  }
}

/* Descriptors of a message, in order; those that are not wanted are closed. Returns their number. */
static int take_descriptors(struct msghdr *message, int *fds, int nfds) {
  int taken = 0;
  for (struct cmsghdr *h = CMSG_FIRSTHDR(message); h != NULL; h = CMSG_NXTHDR(message, h)) {
    if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
      continue;
    int n = (int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    for (int i = 0; i < n; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(h) + (size_t)i * sizeof fd, sizeof fd);
      if (taken < nfds)
        fds[taken++] = fd;
      else
        close(fd);
    }
  }
  return taken;
}

int rs_node_receive(int fd, void *bytes, size_t n, int *fds, int nfds, int64_t end) {
  union {
    char bytes[CMSG_SPACE(MOST_DESCRIPTORS * sizeof(int))];
    struct cmsghdr aligned;
  } control;
  struct iovec part = {bytes, n};
  for (;;) {
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got >= 0) {
      int taken = take_descriptors(&message, fds, nfds);
      if ((size_t)got == n && taken == nfds)
        return 0;
      while (taken > 0) {
        close(fds[--taken]);
        fds[taken] = -1;
      }
      return got == 0 ? EPIPE : (message.msg_flags & MSG_CTRUNC) != 0 ? EMFILE : EPROTO;
    }
    if (errno != EAGAIN && errno != EINTR)
      return errno;
    int failed = await_socket(fd, POLLIN, end);
    if (failed != 0)
      return failed;
  }
}

bool rs_node_hung_up(int fd) {
  struct pollfd p = {fd, 0, 0};
  return fd < 0 || (poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0);
}
