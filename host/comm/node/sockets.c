/* Sockets between the processes of a node: of whole messages, with descriptors in them. Names are abstract, so
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

enum { BACKLOG = 1024 };

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

/* User of the process at the other side, as it was when that listened, or connected. */
static int peer_user(int fd, uid_t *user) {
  struct ucred who;
  socklen_t size = sizeof who;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0)
    return errno;
  *user = who.uid;
  return who.uid == geteuid() ? 0 : EKEYREJECTED;
}

int rs_node_dial(const rs_node_address *address, int64_t end, int *out, uid_t *user) {
  socklen_t size;
  struct sockaddr_un at = socket_address(address, &size);
  int failed = 0, fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return errno;
  while (failed == 0 && connect(fd, (struct sockaddr *)&at, size) != 0) {
    failed = errno;
    if ((failed == EAGAIN || failed == EINTR) && ms_until(end) != 0) { /* many wait to be let in */
      nanosleep(&(struct timespec){0, 1000000}, NULL);
      failed = 0;
    }
  }
  if (failed == 0)
    failed = peer_user(fd, user);
  if (failed == 0)
    *out = fd;
  else
    close(fd);
  return failed == EAGAIN ? ETIMEDOUT : failed;
}

int rs_node_admit(int listener) {
  uid_t user;
  int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0 || peer_user(fd, &user) == 0)
    return fd;
  close(fd);
  return -1;
}

/* --- Messages ----------------------------------------------------------------------------------------------------- */

/* A message, with room for one descriptor: others that come with it are closed. */
typedef struct socket_message {
  int64_t step;
  struct iovec parts[2];
  _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  struct msghdr header;
} socket_message;

static void lay_out(socket_message *m, void *bytes, size_t n) {
  memset(m->control, 0, sizeof m->control);
  m->parts[0] = (struct iovec){&m->step, sizeof m->step};
  m->parts[1] = (struct iovec){bytes, n};
  m->header = (struct msghdr){.msg_iov = m->parts, .msg_iovlen = 2};
}

static void add_descriptor(socket_message *m, int fd) {
  m->header.msg_control = m->control;
  m->header.msg_controllen = sizeof m->control;
  struct cmsghdr *rights = CMSG_FIRSTHDR(&m->header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(rights), &fd, sizeof fd);
}

int rs_node_send(int fd, rs_node_step step, const void *bytes, size_t n, int with, int64_t end) {
  socket_message m = {.step = step};
  lay_out(&m, (void *)bytes, n);
  if (with >= 0)
    add_descriptor(&m, with);
  for (;;) {
    if (sendmsg(fd, &m.header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
      return 0;
    if (errno != EAGAIN && errno != EINTR)
      return errno;
    int failed = await_socket(fd, POLLOUT, end);
    if (failed != 0)
      return failed;
  }
}

/* The first descriptor of a message; -1: it has none. */
static int take_descriptor(struct msghdr *message) {
  int taken = -1;
  for (struct cmsghdr *h = CMSG_FIRSTHDR(message); h != NULL; h = CMSG_NXTHDR(message, h)) {
    if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
      continue;
    int n = (int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    for (int i = 0; i < n; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(h) + (size_t)i * sizeof fd, sizeof fd);
      if (taken < 0)
        taken = fd;
      else
        close(fd);
    }
  }
  return taken;
}

/* Takes the first message of a socket, which is there. */
static int take_message(int fd, void *bytes, size_t n, int *with) {
  socket_message m;
  lay_out(&m, bytes, n);
  m.header.msg_control = m.control;
  m.header.msg_controllen = sizeof m.control;
  ssize_t got = recvmsg(fd, &m.header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0)
    return errno;
  int taken = take_descriptor(&m.header), failed = 0;
  if ((m.header.msg_flags & MSG_CTRUNC) != 0)
    failed = EMFILE;
  else if ((size_t)got != sizeof m.step + n || (m.header.msg_flags & MSG_TRUNC) != 0)
    failed = EPROTO;
  if (failed == 0 && with != NULL)
    *with = taken;
  else if (taken >= 0)
    close(taken);
  return failed;
}

int rs_node_receive(int fd, rs_node_step step, void *bytes, size_t n, int *with, int64_t end) {
  bool reset = false;
  if (with != NULL)
    *with = -1;
  for (;;) {
    int64_t first = -1;
    ssize_t seen = recv(fd, &first, sizeof first, MSG_PEEK | MSG_DONTWAIT);
    if (seen == 0)
      return EPIPE;
    if (seen > 0 && first == step)
      return take_message(fd, bytes, n, with);
    if (seen > 0 && first > step)
      return ENOMSG;
    if (seen > 0) {
      int64_t dropped;
      (void)take_message(fd, &dropped, sizeof dropped, NULL);
      if (first < 0) /* there is no such step */
        return EPROTO;
      if (end != 0 && rs_now_ns() >= end)
        return ETIMEDOUT;
      continue;
    }
    if (errno == ECONNRESET && !reset) { /* the other side has not read all, and is gone; what it has sent is here */
      reset = true;
      continue;
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
