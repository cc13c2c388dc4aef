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

enum { SHOWN = 1024, GRACE_MS = 3000 }; /* from SIGTERM to SIGKILL */

/* Bytes that the processes show each other, once a meeting; those of two meetings one after the other are apart. */
struct processes_page {
  _Atomic int64_t came;
  atomic_int told;    /* one of them has said why the run ends */
  int64_t meetings[]; /* [n], then [2][n] of SHOWN bytes */
};

static char *place_of(const processes *p, int64_t meeting, int64_t rank) {
  return (char *)(p->page->meetings + p->n) + ((meeting % 2) * p->n + rank) * SHOWN;
}

static int exit_status_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : EXIT_FAILED;
}

/* The children, for a handler of signals. */
static struct {
  int64_t n;
  pid_t *pid;                  /* 0: it has ended */
  volatile sig_atomic_t ended; /* the first signal that was passed on to them, 0: none yet */
} started;

static void pass_signal(int number) {
  if (started.ended == 0)
    started.ended = number;
  for (int64_t i = 0; i < started.n; i++)
    if (started.pid[i] > 0)
      kill(started.pid[i], number);
}

/* Passes on what ends this process: the children may have something to write. */
static void pass_signals(int64_t n, pid_t *pids) {
  started.n = n;
  started.pid = pids;
  cli_on_signals(pass_signal, 0); /* a wait ends by it, and begins again */
}

/* The state of the children, as the parent knows it. */
typedef struct children {
  int64_t left, stopped; /* children; the one that has been stopped first, -1: none is */
  int result;            /* status: of the signal that ended the run, else of the first child that failed */
  int64_t since, ending; /* of the stop; of the end: 0: not yet */
} children;

/* Takes all changes of children that there are. */
static void take_changes(children *c) {
  int status;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0;)
    for (int64_t i = 0; i < started.n; i++) {
      if (started.pid[i] != pid)
        continue;
      if (WIFSTOPPED(status) && c->stopped < 0) {
        c->stopped = i;
        c->since = rs_now_ns();
      } else if (!WIFSTOPPED(status) && c->stopped == i) {
        c->stopped = -1;
      }
      if (WIFSTOPPED(status) || WIFCONTINUED(status))
        continue;
      started.pid[i] = 0;
      c->left--;
      if (c->result == 0 && exit_status_of(status) != 0) {
        c->result = started.ended != 0 ? 128 + started.ended : exit_status_of(status);
        pass_signal(SIGTERM);
      }
    }
}

/* Ends the run where a child is stopped for as long as others would wait for it. */
static void end_stopped(children *c, struct processes_page *page) {
  if (c->stopped < 0 || c->ending != 0 || !rs_late(c->since, processes_timeout_ms()))
    return;
  if (atomic_exchange(&page->told, 1) == 0)
    cli_error("process %lld (rank %lld) is silent: it was stopped %lld ms ago", (long long)started.pid[c->stopped],
              (long long)c->stopped, (long long)processes_timeout_ms());
  c->result = EXIT_FAILED;
  pass_signal(SIGTERM);
}

/* Waits for all; the end of the first one that failed, which has told why, is that of the others. A child that does
 * not end by SIGTERM, as one that is stopped, is killed. */
static _Noreturn void wait_for_all(int64_t n, pid_t *pids, struct processes_page *page) {
  children c = {.left = n, .stopped = -1};
  sigset_t changes;
  sigemptyset(&changes);
  sigaddset(&changes, SIGCHLD);
  sigprocmask(SIG_BLOCK, &changes, NULL);
  pass_signals(n, pids);
  for (take_changes(&c); c.left > 0; take_changes(&c)) {
    const struct timespec soon = {0, 50000000};
    end_stopped(&c, page);
    if (started.ended && c.ending == 0)
      c.ending = rs_now_ns();
    if (c.ending != 0 && rs_late(c.ending, GRACE_MS))
      pass_signal(SIGKILL);
    if (c.stopped >= 0 || c.ending != 0)
      (void)sigtimedwait(&changes, NULL, &soon);
    else
      (void)sigwaitinfo(&changes, NULL); /* or until a signal comes that is passed on */
  }
  _exit(c.result);
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
      cli_tell_once(&((struct processes_page *)page)->told);
      *out = (processes){.n = n, .me = i, .local_n = n, .local_me = i, .by = "program", .page = page};
      return;
    }
  }
  wait_for_all(n, pids, page);
}

/* Processes that have not come to a meeting: "1, 3-5". */
static const char *missing_text(const processes *p, int64_t meeting, char *text, size_t size) {
  int64_t few[64], n = 0;
  for (int64_t r = 0; r < p->n && n < 64; r++)
    if (__atomic_load_n(&p->page->meetings[r], __ATOMIC_ACQUIRE) < meeting)
      few[n++] = r;
  return rs_ranges_text(text, size, n, few);
}

reshard_status processes_show(processes *p, const void *mine, size_t bytes, void *all) {
  int64_t since = rs_now_ns(), meeting = __atomic_add_fetch(&p->page->meetings[p->me], 1, __ATOMIC_ACQ_REL);
  char missing[160];
  if (bytes > SHOWN)
    return rs_error(RESHARD_ERROR_INVALID, "%zu bytes, at most %d are shown", bytes, SHOWN);
  memcpy(place_of(p, meeting, p->me), mine, bytes);
  atomic_fetch_add(&p->page->came, 1);
  while (atomic_load(&p->page->came) < meeting * p->n) {
    if (rs_late(since, processes_timeout_ms()))
      return rs_error(RESHARD_ERROR_TIMEOUT, "process %lld: not come within %lld ms: %s", (long long)p->me,
                      (long long)processes_timeout_ms(), missing_text(p, meeting, missing, sizeof missing));
    nanosleep(&(struct timespec){0, 100000}, NULL);
  }
  for (int64_t r = 0; r < p->n; r++)
    memcpy((char *)all + (size_t)r * bytes, place_of(p, meeting, r), bytes);
  return RESHARD_SUCCESS;
}
