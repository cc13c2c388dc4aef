/* Messages between the processes of a node: waits that signals interrupt or that fail, a peer that leaves with its file
 * passed, and a process without standard input. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "comm/node/create.h"
#include "comm/node/sockets.h"
#include "device/cpu/segment.h"
#include "support/processes/processes.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { TICKS = 20, TIMEOUT_MS = 60000 };

static void open_pair(int pair[2]) {
  assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
}

static void close_pair(const int pair[2]) {
  close(pair[0]);
  close(pair[1]);
}

/* --- Waiting ------------------------------------------------------------------------------------------------------ */

static volatile sig_atomic_t ticks;
static int sender;

/* Sends what is waited for when it has interrupted the wait often. */
static void tick(int signal) {
  int before = errno;
  (void)signal;
  if (++ticks == TICKS)
    (void)!write(sender, "tick", 4);
  errno = before;
}

static void test_interrupted(void **state) {
  (void)state;
  int pair[2];
  char got[4];
  struct sigaction action = {.sa_handler = tick}, before; /* without SA_RESTART */
  const struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
  open_pair(pair);
  sender = pair[1];
  assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
  assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
  int failed = rs_node_receive(pair[0], got, sizeof got, NULL, 0, 0);
  assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
  assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
  assert_int_equal(failed, 0);
  assert_memory_equal(got, "tick", 4);
  close_pair(pair);
}

/* A process that may have no descriptors cannot poll one. */
static void test_wait_fails(void **state) {
  (void)state;
  int pair[2];
  char got;
  struct rlimit before, none;
  open_pair(pair);
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  none = (struct rlimit){0, before.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
  int failed = rs_node_receive(pair[0], &got, 1, NULL, 0, 0);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  assert_int_equal(failed, EINVAL);
  close_pair(pair);
}

/* The descriptor of a message of another length is closed once: its number may be another's from then on. */
static void test_wrong_length(void **state) {
  (void)state;
  int pair[2], file;
  int64_t number;
  open_pair(pair);
  assert_int_equal(rs_node_send(pair[1], "odd", 3, &pair[1], 1, 0), 0);
  assert_int_equal(rs_node_receive(pair[0], &number, sizeof number, &file, 1, 0), EPROTO);
  assert_int_equal(file, -1);
  close(pair[1]);
  assert_true(rs_node_hung_up(pair[0])); /* it has been closed */
  close(pair[0]);
}

/* --- Files -------------------------------------------------------------------------------------------------------- */

/* A peer passes its file and is gone before it takes ours. */
static void test_peer_leaves(void **state) {
  (void)state;
  int pair[2], file;
  int64_t peer = 1;
  rs_node *c;
  open_pair(pair);
  assert_int_equal(rs_node_alloc(2, 0, NULL, &c), RESHARD_SUCCESS);
  c->sockets[1] = pair[0];
  assert_int_equal(rs_shared_open(&file), RESHARD_SUCCESS);
  assert_int_equal(rs_node_send(pair[1], &peer, sizeof peer, &file, 1, 0), 0);
  rs_shared_close();
  close(pair[1]);
  assert_int_equal(rs_node_pass_files(c, 0), RESHARD_ERROR_PEER);
  assert_non_null(strstr(reshard_last_error(), "memory file to or from rank 1: "));
  rs_node_release(c); /* closes the socket, too */
}

/* --- Descriptor 0 ------------------------------------------------------------------------------------------------- */

/* The node is told by a file, which has the first free descriptor. */
static void meet_without_input(processes *all, int64_t rank, void *user) {
  reshard_comm comm;
  (void)user;
  if (rank == 1)
    close(STDIN_FILENO);
  CHILD_CHECK(processes_comm(all, rank, NULL, TIMEOUT_MS, &comm) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_comm_barrier(comm) == RESHARD_SUCCESS);
  reshard_comm_destroy(comm);
}

static void test_no_input(void **state) {
  (void)state;
  assert_int_equal(processes_run(2, 0, meet_without_input, NULL), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_interrupted), cmocka_unit_test(test_wait_fails), cmocka_unit_test(test_wrong_length),
      cmocka_unit_test(test_peer_leaves), cmocka_unit_test(test_no_input),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
