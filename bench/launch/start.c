/* Processes that the program starts itself. They are children of one that only waits, and share a page with it. */
#define _GNU_SOURCE
#include "bench/launch/processes.h"

#include "base/base.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SHOWN = 1024 };

/* Bytes that the processes show each other, once a meeting; those of two meetings one after the other are apart. */
struct processes_page {
  _Atomic int64_t came;
  int64_t meetings[]; /* [n], then [2][n] of SHOWN bytes */
};

static char *place_of(const processes *p, int64_t meeting, int64_t rank) {
  return (char *)(p->page->meetings + p->n) + ((meeting % 2) * p->n + rank) * SHOWN;
}

static int exit_status_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : EXIT_FAILED;
}

/* The children, for a handler of signals; 0: it has ended. */
static pid_t *started;
static int64_t nstarted;

static void pass_signal(int number) {
  for (int64_t i = 0; i < nstarted; i++)
    if (started[i] > 0)
      kill(started[i], number);
}

/* Passes on what ends this process: the children may have something to write. */
static void pass_signals(int64_t n, pid_t *pids) {
  static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
  started = pids;
  nstarted = n;
  for (int i = 0; i < 3; i++) {
    struct sigaction before, action = {.sa_handler = pass_signal}; /* a wait ends by it, and begins again */
    if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
      (void)sigaction(numbers[i], &action, NULL);
  }
}

/* Waits for all; the end of the first one that failed, which has told why, is that of the others. */
static _Noreturn void wait_for_all(int64_t n, pid_t *pids) {
  int result = 0, status;
  pass_signals(n, pids);
  for (pid_t pid; (pid = wait(&status)) > 0 || errno == EINTR;) {
    for (int64_t i = 0; i < n; i++)
      if (pids[i] == pid)
        pids[i] = 0;
    if (pid < 0 || result != 0)
      continue;
    result = exit_status_of(status);
    if (result != 0)
      pass_signal(SIGTERM);
  }
  _exit(result);
}

void processes_start(int64_t n, processes *out) {
  size_t bytes = sizeof(struct processes_page) + (size_t)n * (sizeof(int64_t) + 2 * SHOWN);
  pid_t *pids = cli_alloc(n, sizeof *pids), parent = getpid();
  void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED)
    cli_exit(EXIT_FAILED, "--processes %lld: no shared memory: %s", (long long)n, strerror(errno));
  fflush(NULL);
  for (int64_t i = 0; i < n; i++) {
    pids[i] = fork();
    if (pids[i] < 0) {
      int failed = errno;
      for (int64_t k = 0; k < i; k++)
        kill(pids[k], SIGTERM);
      cli_exit(EXIT_FAILED, "--processes %lld: process %lld: %s", (long long)n, (long long)i, strerror(failed));
    }
    if (pids[i] == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent)
        _exit(EXIT_FAILED);
      char rank[32];
      snprintf(rank, sizeof rank, "%lld", (long long)i);
      setenv("RANK", rank, 1); /* by which errors come one after the other */
      free(pids);
      *out = (processes){.n = n, .me = i, .local_n = n, .local_me = i, .by = "program", .page = page};
      return;
    }
  }
  wait_for_all(n, pids);
}

reshard_status processes_show(processes *p, const void *mine, size_t bytes, void *all) {
  int64_t since = rs_now_ns(), meeting = ++p->page->meetings[p->me];
  if (bytes > SHOWN)
    return rs_error(RESHARD_ERROR_INVALID, "%zu bytes, at most %d are shown", bytes, SHOWN);
  memcpy(place_of(p, meeting, p->me), mine, bytes);
  atomic_fetch_add(&p->page->came, 1);
  while (atomic_load(&p->page->came) < meeting * p->n) {
    if (rs_late(since, processes_timeout_ms()))
      return rs_error(RESHARD_ERROR_TIMEOUT, "process %lld: the others did not come within %lld ms", (long long)p->me,
                      (long long)processes_timeout_ms());
    nanosleep(&(struct timespec){0, 100000}, NULL);
  }
  for (int64_t r = 0; r < p->n; r++)
    memcpy((char *)all + (size_t)r * bytes, place_of(p, meeting, r), bytes);
  return RESHARD_SUCCESS;
}
