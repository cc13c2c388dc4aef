/* Processes of another user beside those of a node communicator: one that has a rank's place and says that it runs as
 * their user, in each role at each socket; one that calls at all sockets; what it can do with a memory file. And what a
 * peer can do with the control block. Strangers run as nobody, so root alone can start them. */
#define _GNU_SOURCE /* setresuid, F_GET_SEALS */
#include "comm/node/sockets.h"
#include "device/cpu/segment.h"
#include "support/fixtures/case.h"
#include "support/processes/processes.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { NOBODY = 65534, RANKS = 4, TIMEOUT_MS = 60000, CALLS = 40 };

static void become_nobody(void) { CHILD_CHECK(setgroups(0, NULL) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0); }

/* Until the addresses of n ranks are there. */
static void await_addresses(const processes *all, int n) {
  while (atomic_load(&all->came) < n)
    poll(NULL, 0, 1);
}

static rs_node_address address_of(const processes *all, int64_t rank) {
  rs_node_address address;
  memcpy(&address, all->card[rank], sizeof address);
  return address;
}

/* Connects to a listener without a look at who that is. */
static int call_at(rs_node_address address) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  memcpy(at.sun_path, address.name, (size_t)address.name_bytes);
  if (connect(fd, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + address.name_bytes)) ==
      0)
    return fd;
  close(fd);
  return -1;
}

/* The first message of a rank that connects. */
typedef struct greeting {
  int64_t step;
  unsigned char secret[16];
  int64_t rank;
} greeting;

/* Bytes that come to a socket until the other side closes it. */
static int64_t count_bytes(int fd) {
  char bytes[4096];
  int64_t n = 0;
  for (ssize_t got; (got = recv(fd, bytes, sizeof bytes, 0)) > 0;)
    n += got;
  close(fd);
  return n;
}

/* --- A rank of another user --------------------------------------------------------------------------------------- */

static void lie(processes *all, int64_t rank, int user) {
  rs_node_address mine = address_of(all, (rank + 1) % RANKS);
  int listener, fd;
  int64_t seen = 0;
  mine.rank = rank;
  CHILD_CHECK(rs_node_listen(&mine, &listener) == 0);
  mine.uid = user;
  memcpy(all->card[rank], &mine, sizeof mine);
  atomic_fetch_add(&all->came, 1);
  for (int64_t r = 0; r < rank; r++) {
    greeting hello = {.step = RS_NODE_GREETING, .rank = rank};
    memcpy(hello.secret, address_of(all, r).secret, sizeof hello.secret);
    if ((fd = call_at(address_of(all, r))) < 0)
      continue;
    (void)send(fd, &hello, sizeof hello, MSG_NOSIGNAL);
    seen += count_bytes(fd);
  }
  while (atomic_load(&all->step[0]) < RANKS - 1) /* honest ranks that have an error */
    if ((fd = accept(listener, NULL, NULL)) >= 0)
      seen += count_bytes(fd);
    else
      poll(NULL, 0, 1);
  CHILD_CHECK(seen == 0);
  close(listener);
}

/* A rank's address is that of an honest one, but for the socket. */
static void meet_liar(processes *all, int64_t rank, void *user) {
  int64_t liar = *(const int64_t *)user;
  reshard_comm comm = NULL;
  char text[160];
  if (rank == liar) {
    await_addresses(all, RANKS - 1);
    become_nobody();
    lie(all, rank, 0);
    return;
  }
  reshard_status status = processes_comm(all, rank, NULL, TIMEOUT_MS, &comm);
  snprintf(text, sizeof text, "rank %lld runs as user 0, it says, and user %d listens at its socket", (long long)liar,
           NOBODY);
  CHILD_CHECK(status == RESHARD_ERROR_UNSUPPORTED);
  CHILD_CHECK(strstr(reshard_last_error(), text) != NULL);
  atomic_fetch_add(&all->step[0], 1);
}

static void stranger_with_a_ranks_place_is_named(void **state) {
  for (int64_t liar = 0; liar < RANKS; liar++)
    assert_int_equal(processes_run(RANKS, 0, meet_liar, &liar), 0);
}

/* --- A caller of another user ------------------------------------------------------------------------------------- */

/* The last process is no rank: it knows all addresses, and the ranks of two communicators meet beside it. */
static void call_all(processes *all) {
  int fds[RANKS - 1][CALLS];
  int64_t seen = 0;
  become_nobody();
  await_addresses(all, (int)all->n);
  for (int64_t r = 0; r < RANKS - 1; r++)
    for (int i = 0; i < CALLS; i++) {
      greeting hello = {.step = RS_NODE_GREETING, .rank = i % RANKS};
      memcpy(hello.secret, address_of(all, r).secret, sizeof hello.secret);
      fds[r][i] = call_at(address_of(all, r));
      if (fds[r][i] >= 0 && i % 3 != 0) /* others are silent */
        (void)send(fds[r][i], &hello, sizeof hello, MSG_NOSIGNAL);
    }
  atomic_fetch_add(&all->step[0], 1); /* the last rank goes on */
  for (int64_t r = 0; r < RANKS - 1; r++)
    for (int i = 0; i < CALLS; i++)
      seen += fds[r][i] >= 0 ? count_bytes(fds[r][i]) : 0;
  CHILD_CHECK(seen == 0);
}

static reshard_status show_addresses(void *user, const void *mine, size_t bytes, void *addresses) {
  processes *all = user;
  int64_t rank = ((const rs_node_address *)mine)->rank;
  memcpy(all->card[rank], mine, bytes);
  atomic_fetch_add(&all->came, rank == 0 ? 2 : 1); /* the stranger shows none */
  await_addresses(all, (int)all->n);
  while (rank == RANKS - 2 && atomic_load(&all->step[0]) == 0)
    poll(NULL, 0, 1);
  for (int64_t r = 0; r < RANKS - 1; r++)
    memcpy((char *)addresses + (size_t)r * bytes, all->card[r], bytes);
  return RESHARD_SUCCESS;
}

static void meet_caller(processes *all, int64_t rank, void *user) {
  reshard_comm comm;
  const reshard_node_options options = {.size = RESHARD_NODE_OPTIONS_INIT, .timeout_ms = TIMEOUT_MS};
  (void)user;
  if (rank == RANKS - 1) {
    call_all(all);
    return;
  }
  CHILD_CHECK(reshard_comm_create_node(RANKS - 1, rank, show_addresses, all, &options, &comm) == RESHARD_SUCCESS);
  CHILD_CHECK(reshard_comm_barrier(comm) == RESHARD_SUCCESS);
  reshard_comm_destroy(comm);
}

static void strangers_that_call_get_nothing(void **state) {
  assert_int_equal(processes_run(RANKS, 0, meet_caller, NULL), 0);
}

/* --- Files -------------------------------------------------------------------------------------------------------- */

static bool cannot_open(const char *path, int flags) {
  int fd = open(path, flags);
  if (fd >= 0)
    close(fd);
  return fd < 0 && errno == EACCES;
}

/* All that could change a file by its descriptor, or cut it. */
static void try_to_change(int fd, int64_t bytes) {
  CHILD_CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  char *at = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
  CHILD_CHECK(at != MAP_FAILED && at[0] == 7); /* peers read */
  CHILD_CHECK(mprotect(at, 4096, PROT_READ | PROT_WRITE) != 0);
  CHILD_CHECK(pwrite(fd, "x", 1, 0) < 0);
  CHILD_CHECK(ftruncate(fd, 0) != 0 && ftruncate(fd, bytes * 2) != 0);
  CHILD_CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) != 0);
  CHILD_CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) != 0 && fchmod(fd, 0777) != 0);
}

/* The descriptor is that which all ranks pass. */
static void test_memory_file(void **state) {
  char path[64];
  void *memory;
  int fd;
  pid_t parent = getpid();
  assert_int_equal(rs_shared_open(&fd), RESHARD_SUCCESS);
  assert_int_equal(rs_shared_alloc(4096, &memory), RESHARD_SUCCESS);
  memset(memory, 7, 4096);
  int reader = dup(fd); /* which a child keeps */
  pid_t child = fork();
  if (child == 0) {
    become_nobody();
    try_to_change(reader, 4096);
    snprintf(path, sizeof path, "/proc/self/fd/%d", reader);
    CHILD_CHECK(cannot_open(path, O_RDWR) && cannot_open(path, O_WRONLY) && cannot_open(path, O_RDONLY));
    for (int i = 0; i < 64; i++) { /* one is the descriptor that writes */
      snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)parent, i);
      CHILD_CHECK(cannot_open(path, O_RDWR));
    }
    _exit(0);
  }
  assert_true(child_is_good(child));
  close(reader);
  assert_int_equal(((char *)memory)[0], 7);
  rs_shared_free(memory);
  rs_shared_close();
}

/* --- The control block -------------------------------------------------------------------------------------------- */

/* Rank 1 is a peer of rank 0 as far as the block, which it then tries to cut. */
static void take_block(processes *all) {
  struct {
    int64_t status;
    char text[RS_COMM_RECORD - sizeof(int64_t)];
  } verdict = {.status = RESHARD_SUCCESS};
  greeting hello = {.rank = 1};
  rs_node_address mine = {.size = 0};
  int listener, block, fd;
  uid_t user;
  CHILD_CHECK(rs_node_listen(&mine, &listener) == 0);
  await_addresses(all, 1);
  rs_node_address first = address_of(all, 0), own;
  own = first;
  memcpy(own.name, mine.name, sizeof mine.name);
  own.name_bytes = mine.name_bytes;
  own.rank = 1;
  memcpy(all->card[1], &own, sizeof own);
  atomic_fetch_add(&all->came, 1);
  CHILD_CHECK(rs_node_dial(&first, 0, &fd, &user) == 0 && user == geteuid());
  memcpy(hello.secret, first.secret, sizeof hello.secret);
  CHILD_CHECK(rs_node_send(fd, RS_NODE_GREETING, hello.secret, sizeof hello - sizeof hello.step, -1, 0) == 0);
  CHILD_CHECK(rs_node_send(fd, RS_NODE_CONNECTED, &verdict, sizeof verdict, -1, 0) == 0);
  CHILD_CHECK(rs_node_receive(fd, RS_NODE_CONNECTED, &verdict, sizeof verdict, &block, 0) == 0);
  CHILD_CHECK(verdict.status == RESHARD_SUCCESS && block >= 0);
  CHILD_CHECK(ftruncate(block, 0) != 0 && errno == EPERM);
  CHILD_CHECK(ftruncate(block, (off_t)1 << 40) != 0 && errno == EPERM);
  CHILD_CHECK((fcntl(block, F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) ==
              (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  if (geteuid() == 0) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", block);
    become_nobody();
    CHILD_CHECK(cannot_open(path, O_RDWR) && cannot_open(path, O_RDONLY));
  }
}

static void cut_block(processes *all, int64_t rank, void *user) {
  reshard_comm comm;
  (void)user;
  if (rank == 1) {
    take_block(all);
    return;
  }
  CHILD_CHECK(processes_comm(all, 0, NULL, TIMEOUT_MS, &comm) == RESHARD_ERROR_PEER);
  CHILD_CHECK(strstr(reshard_last_error(), "rank 1 is gone") != NULL);
}

static void rank_that_goes_with_the_block_is_named(void **state) {
  assert_int_equal(processes_run(2, 0, cut_block, NULL), 0);
}

/* A limit of the size of files of any rank is an error on all, not a signal. */
static void meet_limited(processes *all, int64_t rank, void *user) {
  reshard_comm comm;
  char text[64];
  int64_t limited = *(const int64_t *)user;
  if (rank == limited)
    CHILD_CHECK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){65536, 65536}) == 0);
  reshard_status status = processes_comm(all, rank, NULL, TIMEOUT_MS, &comm);
  if (limited != 0) { /* rank 0 alone makes the block */
    CHILD_CHECK(status == RESHARD_SUCCESS && reshard_comm_barrier(comm) == RESHARD_SUCCESS);
    reshard_comm_destroy(comm);
    return;
  }
  snprintf(text, sizeof text, "a file may have 65536 (ulimit -f)");
  CHILD_CHECK(status == RESHARD_ERROR_OUT_OF_MEMORY && strstr(reshard_last_error(), text) != NULL);
}

static void test_file_limit(void **state) {
  for (int64_t limited = 0; limited < 2; limited++)
    assert_int_equal(processes_run(3, 0, meet_limited, &limited), 0);
}

/* A file system that this process alone sees, in the place of the control groups. */
static bool limit_group(void) {
  FILE *file = NULL;
  if (unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
      mount("none", "/sys/fs/cgroup", "tmpfs", 0, NULL) == 0)
    file = fopen("/sys/fs/cgroup/memory.max", "w");
  if (file == NULL || fputs("104857600\n", file) <= 0 || fclose(file) != 0)
    return false;
  file = fopen("/sys/fs/cgroup/memory.current", "w");
  if (file == NULL || fputs("104857600\n", file) <= 0 || fclose(file) != 0)
    return false;
  file = fopen("/sys/fs/cgroup/memory.stat", "w"); /* pages of files go where memory is wanted */
  return file != NULL && fputs("anon 1\ninactive_file 1000000\nactive_file 48576\n", file) > 0 && fclose(file) == 0;
}

/* A limit of the memory of any rank's control group, less what is in use there, is an error on all. */
static void meet_grouped(processes *all, int64_t rank, void *user) {
  reshard_comm comm;
  char text[64];
  int64_t limited = *(const int64_t *)user;
  if (rank == limited)
    CHILD_CHECK(limit_group());
  reshard_status status = processes_comm(all, rank, NULL, TIMEOUT_MS, &comm);
  snprintf(text, sizeof text, "rank %lld may have 1048576 more of memory", (long long)limited);
  CHILD_CHECK(status == RESHARD_ERROR_OUT_OF_MEMORY && strstr(reshard_last_error(), text) != NULL);
}

static void test_group_limit(void **state) {
  int ended = -1;
  pid_t child = fork();
  if (child == 0)
    _exit(limit_group() ? 0 : 1);
  if (waitpid(child, &ended, 0) != child || ended != 0) {
    printf("skipped: no mount namespace for a limit of a control group\n");
    skip();
  }
  for (int64_t limited = 0; limited < 2; limited++)
    assert_int_equal(processes_run(3, 0, meet_grouped, &limited), 0);
}

/* One that sends what no step is, or what is over for ever, holds nobody up. */
static void messages_of_no_step_and_of_steps_that_are_over_end_in_time(void **state) {
  (void)state;
  int pair[2];
  int64_t bytes = 0;
  const int64_t message[2] = {-7, 0};
  assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
  for (size_t n = 1; n <= sizeof message; n++) {
    assert_int_equal(send(pair[0], message, n, 0), n);
    assert_int_equal(rs_node_receive(pair[1], RS_NODE_MEMORY, &bytes, sizeof bytes, NULL, 0), EPROTO);
  }
  for (int i = 0; i < 3; i++)
    assert_int_equal(rs_node_send(pair[0], RS_NODE_GREETING, &bytes, sizeof bytes, -1, 0), 0);
  assert_int_equal(rs_node_receive(pair[1], RS_NODE_MEMORY, &bytes, sizeof bytes, NULL, 1), ETIMEDOUT);
  assert_int_equal(rs_node_receive(pair[1], RS_NODE_GREETING, &bytes, sizeof bytes, NULL, 1), 0); /* the second */
  assert_int_equal(rs_node_send(pair[0], RS_NODE_MEMORY, &bytes, sizeof bytes, -1, 0), 0);
  assert_int_equal(rs_node_receive(pair[1], RS_NODE_MEMORY, &bytes, sizeof bytes, NULL, 0), 0);
  close(pair[0]);
  close(pair[1]);
}

int main(void) {
  const struct CMUnitTest all[] = {cmocka_unit_test(rank_that_goes_with_the_block_is_named),
                                   cmocka_unit_test(messages_of_no_step_and_of_steps_that_are_over_end_in_time),
                                   cmocka_unit_test(test_file_limit),
                                   cmocka_unit_test(test_group_limit),
                                   cmocka_unit_test(stranger_with_a_ranks_place_is_named),
                                   cmocka_unit_test(strangers_that_call_get_nothing),
                                   cmocka_unit_test(test_memory_file)};
  if (geteuid() == 0)
    return cmocka_run_group_tests(all, NULL, NULL);
  const struct CMUnitTest mine[] = {cmocka_unit_test(rank_that_goes_with_the_block_is_named),
                                    cmocka_unit_test(messages_of_no_step_and_of_steps_that_are_over_end_in_time),
                                    cmocka_unit_test(test_file_limit)};
  int failed = cmocka_run_group_tests(mine, NULL, NULL);
  printf("skipped: strangers run as another user, whom root alone can become\n");
  return failed != 0 ? failed : 77;
}
