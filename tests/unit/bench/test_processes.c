/* The broadcast of a few bytes over TCP, as --comm nccl begins: a late first process, strangers at the port, two
 * processes of one rank, a process that gives up, one that never comes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "bench/launch/processes.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 128 };

/* A port whose next one is free now. */
static int free_port(void) {
  for (;;) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, size), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    close(fd);
    if (ntohs(at.sin_port) > 1024)
      return ntohs(at.sin_port) - 1;
  }
}

static void set_number(const char *name, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)value);
  setenv(name, text, 1);
}

/* A process of n; its exit status is that of the program, or 9 where it got other bytes. */
static pid_t start_process(int port, int64_t n, int64_t me, int after_ms, int64_t timeout_ms) {
  pid_t child = fork();
  assert_true(child >= 0);
  if (child != 0)
    return child;
  unsigned char bytes[BYTES];
  memset(bytes, me == 0 ? 0x42 : 0, sizeof bytes);
  set_number("RANK", me);
  set_number("WORLD_SIZE", n);
  set_number("MASTER_PORT", port);
  set_number("RESHARD_TIMEOUT_MS", timeout_ms);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  unsetenv("OMPI_COMM_WORLD_SIZE");
  poll(NULL, 0, after_ms);
  processes p;
  processes_open("nccl", &p);
  bool right = p.n == n && p.me == me;
  processes_share(&p, bytes, sizeof bytes);
  for (int i = 0; i < BYTES; i++)
    right = right && bytes[i] == 0x42;
  processes_close(&p);
  _exit(right ? 0 : 9);
}

static int exit_status(pid_t child) {
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100;
}

/* The first comes last, and the others wait for it. */
static void test_share(void **state) {
  (void)state;
  enum { N = 5 };
  pid_t child[N];
  int port = free_port();
  for (int i = N - 1; i >= 0; i--)
    child[i] = start_process(port, N, i, i == 0 ? 150 : 0, i % 2 ? 20000 : INT64_MAX); /* as good as none */
  for (int i = 0; i < N; i++)
    assert_int_equal(exit_status(child[i]), 0);
}

/* Connects to process 0 as soon as it listens. */
static int connect_stranger(int port) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  at.sin_port = htons((uint16_t)(port + 1));
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  while (connect(fd, (struct sockaddr *)&at, sizeof at) != 0) {
    close(fd);
    poll(NULL, 0, 10);
    fd = socket(AF_INET, SOCK_STREAM, 0);
  }
  return fd;
}

/* A stranger that connects and sends something else, or nothing, is no process of this run; nor is one of another
 * world, or of another job. Those that are idle hold up none. */
static void test_strangers(void **state) {
  (void)state;
  enum { IDLE = 8 };
  int port = free_port(), idle[IDLE];
  double begun = rs_seconds();
  pid_t first = start_process(port, 2, 0, 0, 20000), other = start_process(port, 3, 1, 0, 1000);
  setenv("RESHARD_JOB", "another", 1);
  pid_t foreign = start_process(port, 2, 1, 0, 1000);
  unsetenv("RESHARD_JOB");
  for (int i = 0; i < IDLE; i++)
    idle[i] = connect_stranger(port);
  const char *text = "GET / HTTP/1.1\r\nHost: localhost:1\r\nAccept: */*\r\n\r\n";
  assert_int_equal(send(idle[1], text, strlen(text), MSG_NOSIGNAL), strlen(text));
  assert_int_equal(send(idle[2], text, 5, MSG_NOSIGNAL), 5);
  close(idle[0]);
  assert_int_equal(exit_status(other), EXIT_FAILED);
  assert_int_equal(exit_status(foreign), EXIT_FAILED);
  pid_t second = start_process(port, 2, 1, 0, 20000);
  assert_int_equal(exit_status(second), 0);
  assert_int_equal(exit_status(first), 0);
  assert_true(rs_seconds() - begun < 10); /* one after the other they have more patience than that */
  for (int i = 1; i < IDLE; i++)
    close(idle[i]);
}

/* More connections than process 0 has room for: the oldest go. */
static void test_crowd(void **state) {
  (void)state;
  enum { IDLE = 300 };
  int port = free_port(), idle[IDLE];
  pid_t first = start_process(port, 2, 0, 0, 20000);
  for (int i = 0; i < IDLE; i++)
    idle[i] = connect_stranger(port);
  assert_int_equal(exit_status(start_process(port, 2, 1, 0, 20000)), 0);
  assert_int_equal(exit_status(first), 0);
  for (int i = 0; i < IDLE; i++)
    close(idle[i]);
}

/* Of two processes of one rank one is answered. */
static void test_same_rank(void **state) {
  (void)state;
  int port = free_port();
  pid_t first = start_process(port, 3, 0, 0, 20000);
  pid_t a = start_process(port, 3, 1, 0, 1000), b = start_process(port, 3, 1, 0, 1000);
  int status = exit_status(a), other = exit_status(b);
  assert_true((status == 0 && other == EXIT_FAILED) || (status == EXIT_FAILED && other == 0));
  assert_int_equal(exit_status(start_process(port, 3, 2, 0, 20000)), 0);
  assert_int_equal(exit_status(first), 0);
}

/* A process that gives up before it has the bytes may come again: the first listens, and does not serve yet. */
static void test_again(void **state) {
  (void)state;
  int port = free_port();
  pid_t first = start_process(port, 2, 0, 0, 20000);
  close(connect_stranger(port)); /* it listens */
  kill(first, SIGSTOP);
  assert_int_equal(exit_status(start_process(port, 2, 1, 0, 300)), EXIT_FAILED);
  kill(first, SIGCONT);
  assert_int_equal(exit_status(start_process(port, 2, 1, 0, 20000)), 0);
  assert_int_equal(exit_status(first), 0);
}

static void test_deadline(void **state) {
  (void)state;
  int port = free_port();
  pid_t first = start_process(port, 3, 0, 0, 600), second = start_process(port, 3, 1, 0, 600);
  assert_int_equal(exit_status(first), EXIT_FAILED);
  assert_int_equal(exit_status(second), 0);
  assert_int_equal(exit_status(start_process(port, 3, 2, 0, 200)), EXIT_FAILED);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_share),     cmocka_unit_test(test_strangers), cmocka_unit_test(test_crowd),
      cmocka_unit_test(test_same_rank), cmocka_unit_test(test_again),     cmocka_unit_test(test_deadline),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
