/* Messages between the processes of a node: waits that signals interrupt or that fail, steps, a peer that leaves with
 * its file passed, a process without standard input, and a node without memory to share. */
#define _GNU_SOURCE
#include "comm/node/create.h"
#include "comm/node/sockets.h"
#include "device/cpu/segment.h"
#include "device/handle.h"
#include "support/fixtures/case.h"
#include "support/processes/processes.h"

#include <errno.h>
#include <fcntl.h>
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
static const struct {
  int64_t step;
  char word[4];
} tick_message = {RS_NODE_MAPPED, "tick"};

/* Sends what is waited for when it has interrupted the wait often. */
static void tick(int signal) {
  int before = errno;
  if (++ticks == TICKS)
    (void)!write(sender, &tick_message, offsetof(__typeof__(tick_message), word) + 4);
  errno = before;
}

CASE(waits_go_on_after_signals) {
  int pair[2];
  char got[4];
  struct sigaction action = {.sa_handler = tick}, before; /* without SA_RESTART */
  const struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
  open_pair(pair);
  sender = pair[1];
  assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
  assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
  int failed = rs_node_receive(pair[0], RS_NODE_MAPPED, got, sizeof got, NULL, 0);
  assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
  assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
  assert_int_equal(failed, 0);
  assert_memory_equal(got, "tick", 4);
  close_pair(pair);
}

/* A process that may have no descriptors cannot poll one. */
CASE(test_wait_fails) {
  int pair[2];
  char got;
  struct rlimit before, none;
  open_pair(pair);
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  none = (struct rlimit){0, before.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
  int failed = rs_node_receive(pair[0], RS_NODE_MAPPED, &got, 1, NULL, 0);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  assert_int_equal(failed, EINVAL);
  close_pair(pair);
}

/* The descriptor of a message of another length is closed once: its number may be another's from then on. */
CASE(test_wrong_length) {
  int pair[2], file;
  int64_t number;
  open_pair(pair);
  assert_int_equal(rs_node_send(pair[1], RS_NODE_MAPPED, "odd", 3, pair[1], 0), 0);
  assert_int_equal(rs_node_receive(pair[0], RS_NODE_MAPPED, &number, sizeof number, &file, 0), EPROTO);
  assert_int_equal(file, -1);
  close(pair[1]);
  assert_true(rs_node_hung_up(pair[0])); /* it has been closed */
  close(pair[0]);
}

/* --- Steps -------------------------------------------------------------------------------------------------------- */

/* A message of an earlier step is dropped, with its descriptor; one of a later step stays. */
CASE(message_of_an_earlier_step_is_dropped) {
  int pair[2], file, spare[2];
  int64_t number = 1;
  open_pair(pair);
  open_pair(spare);
  assert_int_equal(rs_node_send(pair[1], RS_NODE_GREETING, &number, sizeof number, -1, 0), 0);
  assert_int_equal(rs_node_send(pair[1], RS_NODE_MAPPED, "odd", 3, spare[1], 0), 0);
  number = 2;
  assert_int_equal(rs_node_send(pair[1], RS_NODE_MEMORY, &number, sizeof number, -1, 0), 0);
  close(spare[1]);
  assert_false(rs_node_hung_up(spare[0])); /* it is in the message */
  assert_int_equal(rs_node_receive(pair[0], RS_NODE_CONNECTED, &number, sizeof number, NULL, 0), ENOMSG);
  assert_int_equal(rs_node_receive(pair[0], RS_NODE_MEMORY, &number, sizeof number, &file, 0), 0);
  assert_int_equal(number, 2);
  assert_int_equal(file, -1);
  assert_true(rs_node_hung_up(spare[0]));
  close(spare[0]);
  close_pair(pair);
}

/* A peer that goes with a message unread resets the connection. Its own last message is taken still. */
CASE(last_message_before_a_reset_is_taken) {
  int pair[2];
  int64_t number = 3;
  open_pair(pair);
  assert_int_equal(rs_node_send(pair[1], RS_NODE_MEMORY, &number, sizeof number, -1, 0), 0);
  assert_int_equal(rs_node_send(pair[0], RS_NODE_MAPPED, "", 1, -1, 0), 0);
  close(pair[1]);
  number = 0;
  assert_int_equal(rs_node_receive(pair[0], RS_NODE_MEMORY, &number, sizeof number, NULL, 0), 0);
  assert_int_equal(number, 3);
  assert_int_equal(rs_node_receive(pair[0], RS_NODE_MEMORY, &number, sizeof number, NULL, 0), EPIPE);
  close(pair[0]);
}

/* --- Descriptor 0 ------------------------------------------------------------------------------------------------- */

/* The node is told by a file, which has the first free descriptor. */
static void meet_without_input(processes *all, int64_t rank, void *user) {
  reshard_comm comm;
  if (rank == 1)
    close(STDIN_FILENO);
  CHILD_CHECK(processes_comm(all, rank, NULL, TIMEOUT_MS, &comm) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_comm_barrier(comm) == RESHARD_SUCCESS);
  reshard_comm_destroy(comm);
}

CASE(test_no_input) { assert_int_equal(processes_run(2, 0, meet_without_input, NULL), 0); }

/* --- The memory that all share ------------------------------------------------------------------------------------ */

static bool full; /* the system has no memory left for a file */

/* Calls of the library come here. */
int posix_fallocate(int fd, off_t offset, off_t length) {
  if (full)
    return ENOSPC;
  return fallocate(fd, 0, offset, length) == 0 ? 0 : errno;
}

static void meet_without_memory(processes *all, int64_t rank, void *user) {
  reshard_comm comm = NULL;
  for (int turn = 0; turn < 2; turn++) {
    full = rank == 0 && turn == 0;
    reshard_status status = processes_comm(all, rank, NULL, TIMEOUT_MS, &comm);
    CHILD_CHECK(status == (turn == 0 ? RESHARD_ERROR_OUT_OF_MEMORY : RESHARD_SUCCESS));
    CHILD_CHECK((comm == NULL) == (turn == 0));
    CHILD_CHECK(turn > 0 || (strstr(reshard_last_error(), "shared memory of ") != NULL &&
                             strstr(reshard_last_error(), strerror(ENOSPC)) != NULL));
  }
  CHILD_CHECK(reshard_comm_barrier(comm) == RESHARD_SUCCESS);
  reshard_comm_destroy(comm);
}

CASE(ranks_without_memory_to_share_are_told_why) {
  assert_int_equal(processes_run(3, 0, meet_without_memory, NULL), 0);
}

RUN_CASES
