/* The broadcast of a few bytes over TCP, by which --comm nccl begins: a late first process, strangers at the port, two
 * processes of one rank, a process that gives up, one that never comes. */
#include "bench/launch/processes.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/processes/ports.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 128, LONG_MS = 200000 }; /* longer than a busy machine takes */

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
  processes p = {.n = 1};
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
CASE(others_wait_for_a_first_process_that_is_late) {
  enum { N = 5 };
  pid_t child[N];
  int port = free_port();
  for (int i = N - 1; i >= 0; i--)
    child[i] = start_process(port, N, i, i == 0 ? 150 : 0, i % 2 ? LONG_MS : INT64_MAX); /* as good as none */
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
CASE(strangers_at_the_port_are_let_in_nowhere) {
  enum { IDLE = 100 };
  int port = free_port(), idle[IDLE];
  double begun = rs_seconds();
  pid_t first = start_process(port, 2, 0, 0, LONG_MS), other = start_process(port, 3, 1, 0, 1000);
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
  pid_t second = start_process(port, 2, 1, 0, LONG_MS);
  assert_int_equal(exit_status(second), 0);
  assert_int_equal(exit_status(first), 0);
  assert_true(rs_seconds() - begun < 120); /* one after the other they have more patience than that */
  for (int i = 1; i < IDLE; i++)
    close(idle[i]);
}

/* More connections than process 0 has room for: the oldest go. */
CASE(oldest_connections_go_where_there_is_no_room) {
  enum { IDLE = 300 };
  int port = free_port(), idle[IDLE];
  pid_t first = start_process(port, 2, 0, 0, LONG_MS);
  for (int i = 0; i < IDLE; i++)
    idle[i] = connect_stranger(port);
  assert_int_equal(exit_status(start_process(port, 2, 1, 0, LONG_MS)), 0);
  assert_int_equal(exit_status(first), 0);
  for (int i = 0; i < IDLE; i++)
    close(idle[i]);
}

/* Of two processes of one rank one is answered, when the third has come. */
CASE(test_same_rank) {
  int port = free_port();
  pid_t first = start_process(port, 3, 0, 0, LONG_MS);
  pid_t a = start_process(port, 3, 1, 0, 10000), b = start_process(port, 3, 1, 0, 10000);
  pid_t third = start_process(port, 3, 2, 300, LONG_MS);
  int status = exit_status(a), other = exit_status(b);
  assert_true((status == 0 && other == EXIT_FAILED) || (status == EXIT_FAILED && other == 0));
  assert_int_equal(exit_status(third), 0);
  assert_int_equal(exit_status(first), 0);
}

/* A process that gives up before it has the bytes may come again: the first listens, and does not serve yet. */
CASE(process_that_gave_up_may_come_again) {
  int port = free_port();
  pid_t first = start_process(port, 2, 0, 0, LONG_MS);
  close(connect_stranger(port)); /* it listens */
  int status;
  kill(first, SIGSTOP);
  assert_int_equal(waitpid(first, &status, WUNTRACED), first);
  assert_int_equal(exit_status(start_process(port, 2, 1, 0, 300)), EXIT_FAILED);
  kill(first, SIGCONT);
  assert_int_equal(exit_status(start_process(port, 2, 1, 0, LONG_MS)), 0);
  assert_int_equal(exit_status(first), 0);
}

CASE(missing_processes_are_named_at_the_deadline) {
  int port = free_port();
  pid_t first = start_process(port, 3, 0, 0, 600), second = start_process(port, 3, 1, 0, 600);
  assert_int_equal(exit_status(first), EXIT_FAILED);
  assert_int_equal(exit_status(second), EXIT_FAILED);
  assert_int_equal(exit_status(start_process(port, 3, 2, 0, 200)), EXIT_FAILED);
}

/* All-gathers of a few and of many bytes, one after the other at one port. */
CASE(allgathers_follow_one_another_at_one_port) {
  enum { N = 4, MANY = 200000 };
  pid_t child[N];
  int port = free_port();
  for (int r = 0; r < N; r++) {
    child[r] = fork();
    if (child[r] != 0)
      continue;
    reshard_rendezvous at = {RESHARD_RENDEZVOUS_INIT, .n = N,           .rank = r,
                             .timeout_ms = LONG_MS,   .port = port + 1, .address = "127.0.0.1"};
    char *mine = malloc(MANY), *all = malloc((size_t)N * MANY);
    int64_t wrong = 0;
    for (int round = 0; round < 3; round++) {
      size_t bytes = round == 1 ? MANY : 1 + (size_t)round;
      memset(mine, 10 * round + r, bytes);
      wrong += reshard_rendezvous_allgather(&at, mine, bytes, all) != RESHARD_SUCCESS;
      for (size_t i = 0; i < N * bytes; i++)
        wrong += all[i] != (char)(10 * round + (int)(i / bytes));
    }
    _exit(wrong != 0);
  }
  for (int r = 0; r < N; r++)
    assert_int_equal(exit_status(child[r]), 0);
}

/* --- A slow way between two processes ----------------------------------------------------------------------------- */

/* Passes bytes on until one side ends. What process 0 says waits for longer than a stranger may take, at its first byte
 * and again at the next. */
static void relay_slowly(int client, int server) {
  static char bytes[1 << 16];
  struct pollfd polls[] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
  for (int64_t said = 0; poll(polls, 2, -1) > 0;) {
    int from = polls[1].revents == 0 ? 0 : 1;
    if (from == 1 && said++ < 2)
      poll(NULL, 0, 2500);
    ssize_t n = recv(polls[from].fd, bytes, said == 1 ? 1 : sizeof bytes, 0), out = 0;
    for (ssize_t some; out < n; out += some)
      if ((some = send(polls[1 - from].fd, bytes + out, (size_t)(n - out), MSG_NOSIGNAL)) <= 0)
        return;
    if (n <= 0)
      return;
  }
}

/* A process that listens at a port, and passes on to the next one; killed by who started it. */
static pid_t start_relay(int port) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  at.sin_port = htons((uint16_t)port);
  int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  assert_int_equal(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
  assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
  assert_int_equal(listen(listener, 8), 0);
  pid_t child = fork();
  while (child == 0) {
    int client = accept(listener, NULL, NULL), server = connect_stranger(port);
    relay_slowly(client, server);
    close(client);
    close(server);
  }
  close(listener);
  return child;
}

/* A process that has shown that it belongs to the run has the time of the call, however slow its way is. */
CASE(test_slow_way) {
  enum { MANY = 8 << 20 }; /* more than the system keeps for a connection */
  int port = free_port();
  pid_t relay = start_relay(port), child[2];
  for (int r = 0; r < 2; r++) {
    child[r] = fork();
    if (child[r] != 0)
      continue;
    reshard_rendezvous at = {RESHARD_RENDEZVOUS_INIT, .n = 2, .rank = r, .timeout_ms = LONG_MS, .port = port + (r == 0),
                             .address = "127.0.0.1"};
    char *mine = malloc(MANY), *all = malloc(2 * MANY);
    memset(mine, 5 + r, MANY);
    bool right = reshard_rendezvous_allgather(&at, mine, MANY, all) == RESHARD_SUCCESS;
    for (int i = 0; i < 2 * MANY; i++)
      right = right && all[i] == 5 + i / MANY;
    free(mine);
    free(all);
    _exit(!right);
  }
  assert_int_equal(exit_status(child[1]), 0);
  assert_int_equal(exit_status(child[0]), 0);
  kill(relay, SIGKILL);
  assert_int_equal(exit_status(relay), 100);
}

static void clear_environment(void) {
  const char *const names[] = {"RANK",
                               "WORLD_SIZE",
                               "LOCAL_RANK",
                               "LOCAL_WORLD_SIZE",
                               "MASTER_ADDR",
                               "MASTER_PORT",
                               "SLURM_PROCID",
                               "SLURM_NTASKS",
                               "SLURM_STEP_NUM_TASKS",
                               "SLURM_LOCALID",
                               "SLURM_JOB_ID",
                               "SLURM_STEP_ID",
                               "SLURM_STEP_NUM_NODES",
                               "SLURM_STEP_NODELIST",
                               "RESHARD_JOB",
                               "SLURM_NTASKS_PER_NODE",
                               "SLURM_STEP_TASKS_PER_NODE",
                               "SLURM_NODEID",
                               "RESHARD_TIMEOUT_MS",
                               "TORCHELASTIC_RUN_ID"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    unsetenv(names[i]);
}

CASE(environment_tells_processes_or_the_variable_that_is_wrong) {
  reshard_rendezvous r = RESHARD_RENDEZVOUS_DEFAULTS, first = {.size = 1};
  clear_environment();
  GOOD(reshard_rendezvous_from_environment(&r));
  assert_true(r.n == 1 && r.rank == 0 && r.local_n == 1);
  setenv("RANK", "5", 1);
  FAILS_WITH(reshard_rendezvous_from_environment(&r), RESHARD_ERROR_INVALID, "RANK is set and WORLD_SIZE is not");
  setenv("WORLD_SIZE", "8", 1);
  setenv("LOCAL_WORLD_SIZE", "4", 1);
  setenv("LOCAL_RANK", "1", 1);
  setenv("MASTER_ADDR", "there", 1);
  setenv("MASTER_PORT", "65535", 1);
  FAILS_WITH(reshard_rendezvous_from_environment(&r), RESHARD_ERROR_INVALID,
             "MASTER_PORT=65535: a number from 1 to 65534 is expected");
  setenv("MASTER_PORT", "29500", 1);
  setenv("RESHARD_TIMEOUT_MS", "1234", 1);
  setenv("TORCHELASTIC_RUN_ID", "run", 1);
  GOOD(reshard_rendezvous_from_environment(&r));
  assert_true(r.n == 8 && r.rank == 5 && r.local_n == 4 && r.local_rank == 1 && r.port == 29501 &&
              r.timeout_ms == 1234);
  assert_string_equal(r.address, "there");
  assert_string_equal(r.job, "run");
  setenv("LOCAL_RANK", "4", 1);
  FAILS_WITH(reshard_rendezvous_from_environment(&r), RESHARD_ERROR_INVALID,
             "LOCAL_RANK=4, and 4 processes on this node by LOCAL_WORLD_SIZE");
  setenv("LOCAL_RANK", "3", 1);
  GOOD(reshard_rendezvous_from_environment(&r));
  unsetenv("LOCAL_RANK"); /* RANK is 5 */
  FAILS_WITH(reshard_rendezvous_from_environment(&r), RESHARD_ERROR_INVALID,
             "LOCAL_WORLD_SIZE is set and LOCAL_RANK is not");
  clear_environment();
  setenv("SLURM_PROCID", "3", 1);
  setenv("SLURM_NTASKS", "4", 1);
  setenv("SLURM_JOB_ID", "77", 1);
  setenv("SLURM_STEP_ID", "0", 1);
  assert_int_equal(reshard_rendezvous_from_environment(&first), RESHARD_ERROR_INVALID); /* its size is not set */
  first = r;
  GOOD(reshard_rendezvous_from_environment(&first));
  assert_true(first.n == 4 && first.rank == 3 && first.local_n == 4 && first.local_rank == 3);
  assert_string_equal(first.address, "127.0.0.1");
  setenv("SLURM_STEP_NUM_NODES", "2", 1);
  setenv("SLURM_LOCALID", "1", 1);
  setenv("SLURM_NTASKS_PER_NODE", "2", 1);
  setenv("SLURM_STEP_NODELIST", "node[07-08,11],other", 1);
  setenv("SLURM_STEP_ID", "1", 1);
  GOOD(reshard_rendezvous_from_environment(&r));
  assert_true(r.local_n == 2 && r.local_rank == 1 && r.port != first.port); /* steps of one job do not meet */
  assert_string_equal(r.address, "node07");
  setenv("SLURM_STEP_NODELIST", "other,node[07-08]", 1);
  GOOD(reshard_rendezvous_from_environment(&r));
  assert_string_equal(r.address, "other");
  setenv("SLURM_LOCALID", "2", 1);
  FAILS_WITH(reshard_rendezvous_from_environment(&r), RESHARD_ERROR_INVALID,
             "SLURM_LOCALID=2, and 2 processes on this node by SLURM_NTASKS_PER_NODE");
  setenv("SLURM_NODEID", "1", 1);
  setenv("SLURM_STEP_TASKS_PER_NODE", "1,3", 1);
  GOOD(reshard_rendezvous_from_environment(&r));
  assert_true(r.local_n == 3 && r.local_rank == 2);
  setenv("SLURM_STEP_TASKS_PER_NODE", "3(x2),1", 1);
  GOOD(reshard_rendezvous_from_environment(&r));
  assert_true(r.local_n == 3 && r.local_rank == 2);
  setenv("SLURM_NODEID", "2", 1);
  FAILS_WITH(reshard_rendezvous_from_environment(&r), RESHARD_ERROR_INVALID,
             "SLURM_LOCALID=2, and 1 processes on this node by SLURM_STEP_TASKS_PER_NODE");
  for (const char *const *bad = (const char *const[]){"", "x", "2(x", "2(x0)", "2;1", "1", NULL}; *bad != NULL; bad++) {
    setenv("SLURM_STEP_TASKS_PER_NODE", *bad, 1);
    FAILS_WITH(reshard_rendezvous_from_environment(&r), RESHARD_ERROR_INVALID, "SLURM_STEP_TASKS_PER_NODE=");
  }
  unsetenv("SLURM_STEP_TASKS_PER_NODE");
  unsetenv("SLURM_NTASKS_PER_NODE");
  GOOD(reshard_rendezvous_from_environment(&r)); /* as far as that is known */
  assert_true(r.local_n == 3 && r.local_rank == 2);
  setenv("SLURM_PROCID", "4", 1);
  assert_int_equal(reshard_rendezvous_from_environment(&r), RESHARD_ERROR_INVALID);
  clear_environment();
}

RUN_CASES
