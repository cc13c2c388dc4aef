/* Messages between the processes of a node: waits that signals interrupt or that fail, steps, a peer that leaves with
 * its file passed, and a process without standard input. */
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
} tick_message = {RS_NODE_FILE, "tick"};

/* Sends what is waited for when it has interrupted the wait often. */
static void tick(int signal) {
  int before = errno;
  (void)signal;
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
  int failed = rs_node_receive(pair[0], RS_NODE_FILE, got, sizeof got, NULL, 0);
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
  int failed = rs_node_receive(pair[0], RS_NODE_FILE, &got, 1, NULL, 0);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  assert_int_equal(failed, EINVAL);
  close_pair(pair);
}

/* The descriptor of a message of another length is closed once: its number may be another's from then on. */
CASE(test_wrong_length) {
  int pair[2], file;
  int64_t number;
  open_pair(pair);
  assert_int_equal(rs_node_send(pair[1], RS_NODE_FILE, "odd", 3, pair[1], 0), 0);
  assert_int_equal(rs_node_receive(pair[0], RS_NODE_FILE, &number, sizeof number, &file, 0), EPROTO);
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
  assert_int_equal(rs_node_send(pair[1], RS_NODE_CONNECTED, &number, sizeof number, -1, 0), 0);
  assert_int_equal(rs_node_send(pair[1], RS_NODE_FILE, "odd", 3, spare[1], 0), 0);
  number = 2;
  assert_int_equal(rs_node_send(pair[1], RS_NODE_READY, &number, sizeof number, -1, 0), 0);
  close(spare[1]);
  assert_false(rs_node_hung_up(spare[0])); /* it is in the message */
  assert_int_equal(rs_node_receive(pair[0], RS_NODE_MAPPED, &number, sizeof number, NULL, 0), ENOMSG);
  assert_int_equal(rs_node_receive(pair[0], RS_NODE_READY, &number, sizeof number, &file, 0), 0);
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
  assert_int_equal(rs_node_send(pair[1], RS_NODE_READY, &number, sizeof number, -1, 0), 0);
  assert_int_equal(rs_node_send(pair[0], RS_NODE_FILE, "", 1, -1, 0), 0);
  close(pair[1]);
  number = 0;
  assert_int_equal(rs_node_receive(pair[0], RS_NODE_READY, &number, sizeof number, NULL, 0), 0);
  assert_int_equal(number, 3);
  assert_int_equal(rs_node_receive(pair[0], RS_NODE_READY, &number, sizeof number, NULL, 0), EPIPE);
  close(pair[0]);
}

/* --- Files -------------------------------------------------------------------------------------------------------- */

enum { RANKS = 4 };

/* Rank 0 of four; the test has the other ends of its sockets. */
static rs_node *open_rank(int theirs[RANKS]) {
  rs_node *c;
  assert_int_equal(rs_node_alloc(RANKS, 0, NULL, &c), RESHARD_SUCCESS);
  assert_int_equal(reshard_device_create("cpu", NULL, &c->handle), RESHARD_SUCCESS);
  c->base.device = c->handle->device;
  for (int r = 1; r < RANKS; r++) {
    int pair[2];
    open_pair(pair);
    c->sockets[r] = pair[0];
    theirs[r] = pair[1];
  }
  return c;
}

static void pass_file(int fd, int64_t rank) {
  int file;
  assert_int_equal(rs_shared_open(&file), RESHARD_SUCCESS);
  assert_int_equal(rs_node_send(fd, RS_NODE_FILE, &rank, sizeof rank, file, 0), 0);
  rs_shared_close();
}

/* The file that a rank passes to another is to be read alone. */
static void take_file(int fd) {
  int64_t from;
  int file;
  assert_int_equal(rs_node_receive(fd, RS_NODE_FILE, &from, sizeof from, &file, 1), 0);
  assert_int_equal(from, 0);
  assert_true(file >= 0);
  assert_int_equal(fcntl(file, F_GETFL) & O_ACCMODE, O_RDONLY);
  close(file);
}

/* A peer passes its file and is gone before it takes ours. Another one has failed: it says so to all, later. Of these
 * two the first is named, and the last one is served. */
CASE(test_peer_leaves) {
  int theirs[RANKS];
  int64_t verdict = RESHARD_ERROR_SYSTEM;
  rs_node *c = open_rank(theirs);
  assert_int_equal(rs_node_send(theirs[1], RS_NODE_READY, &verdict, sizeof verdict, -1, 0), 0);
  pass_file(theirs[2], 2);
  pass_file(theirs[3], 3);
  close(theirs[2]);
  assert_int_equal(rs_node_pass_files(c, "a call", 0), RESHARD_ERROR_PEER);
  assert_string_equal(reshard_last_error(), "a call: memory files: rank 2 is gone");
  take_file(theirs[1]);
  take_file(theirs[3]);
  assert_int_equal(rs_node_receive(c->sockets[1], RS_NODE_READY, &verdict, sizeof verdict, NULL, 1), 0);
  assert_int_equal(verdict, RESHARD_ERROR_SYSTEM);
  rs_node_release(c); /* closes the sockets, too */
  close(theirs[1]);
  close(theirs[3]);
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

CASE(test_no_input) { assert_int_equal(processes_run(2, 0, meet_without_input, NULL), 0); }

RUN_CASES
