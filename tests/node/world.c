/* Processes that the first one starts, before it has any thread. They share a page of counters, and bytes that each
 * shows the others. The first process waits for them, and ends them when one of them ends by a signal. */
#include "support/processes/world.h"

#include "bench/cli/util.h"
#include "comm/node/node.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SHOWN = 4096, MOST_RANKS = 64 };

const char world_name[] = "node";
const char world_call[] = "reshard_comm_create_node";
const char world_bad_timeout[] = "rank 1: reshard_comm_create_node: timeout_ms -1 ms";

static struct page {
  _Atomic int64_t came, failures;
  char shown[MOST_RANKS][SHOWN];
} * page;
static int world_rank, world_size;
static int64_t meetings;

void world_barrier(void) {
  int64_t wanted = ++meetings * world_size;
  page->came++;
  while (page->came < wanted)
    nanosleep(&(struct timespec){0, 50000}, NULL);
}

void world_broadcast(void *bytes, size_t n, int from) {
  if (world_rank == from)
    memcpy(page->shown[from], bytes, n);
  world_barrier();
  memcpy(bytes, page->shown[from], n);
  world_barrier();
}

static reshard_status allgather(void *user, const void *mine, size_t bytes, void *all) {
  (void)user;
  memcpy(page->shown[world_rank], mine, bytes);
  world_barrier();
  for (int r = 0; r < world_size; r++)
    memcpy((char *)all + (size_t)r * bytes, page->shown[r], bytes);
  world_barrier();
  return RESHARD_SUCCESS;
}

reshard_status world_connect(int64_t timeout_ms, reshard_comm *comm) {
  reshard_node_options options = {.size = RESHARD_NODE_OPTIONS_INIT, .timeout_ms = timeout_ms};
  return reshard_comm_create_node(world_size, world_rank, allgather, NULL, &options, comm);
}

static reshard_status wait_in_vain(void *user, const void *mine, size_t bytes, void *all) {
  int64_t ms = *(const int64_t *)user;
  (void)mine, (void)bytes, (void)all;
  nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
  return RESHARD_ERROR_TIMEOUT;
}

reshard_status world_connect_without(int64_t timeout_ms, reshard_comm *comm) {
  if (timeout_ms == 0)
    return RESHARD_SUCCESS;
  return reshard_comm_create_node(world_size, world_rank, wait_in_vain, &timeout_ms, NULL, comm);
}

/* The first process: ends with the others. */
static _Noreturn void ranks_watch(const pid_t *pids) {
  bool good = true;
  int status;
  for (pid_t pid; (pid = wait(&status)) > 0;) {
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
      continue;
    if (WIFSIGNALED(status) && good) {
      printf("a rank was ended by signal %d\n", WTERMSIG(status));
      for (int r = 0; r < world_size; r++)
        kill(pids[r], SIGKILL);
    }
    good = false;
  }
  fflush(stdout);
  _exit(!good);
}

void world_open(int *argc, char ***argv, int *rank, int *size) {
  pid_t pids[MOST_RANKS], parent = getpid();
  world_size = *argc > 1 ? atoi((*argv)[1]) : 0;
  if (world_size < 1 || world_size > MOST_RANKS)
    cli_exit(EXIT_USAGE, "the number of ranks comes first, 1 to %d", MOST_RANKS);
  page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED)
    cli_exit(EXIT_FAILED, "no shared page");
  for (int r = 0; r < world_size; r++) {
    pids[r] = fork();
    if (pids[r] == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent)
        _exit(1);
      (*argv)[1] = (*argv)[0];
      *argv += 1;
      *argc -= 1;
      *rank = world_rank = r;
      *size = world_size;
      return;
    }
  }
  ranks_watch(pids);
}

int64_t world_close(int64_t failures) {
  page->failures += failures;
  world_barrier();
  return page->failures;
}

int64_t world_meetings(reshard_comm comm) { return (int64_t)rs_node_of(comm)->meetings; }
