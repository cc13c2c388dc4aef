/* Runs a test in a directory of its own, with TMPDIR in another. Both are empty when it has ended. It runs no longer
 * than it gets on.
 *
 * A test hangs when it has used more processor time than it may, or when it uses next to none and asks for none.
 * Either is the same on an idle machine and on one that a hundred other programs share. Limits of wall-clock time end
 * tests that are merely slow.
 *
 * usage: guard DIRECTORY SECONDS [WINDOW] -- COMMAND...
 * SECONDS of processor time for each core, of all processes of the test together; WINDOW: seconds within which it uses
 * half a second of it, or waits for it so long (default 180). Exit status: the test's; 1 where it has left something
 * behind, or hangs. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PROCESSES = 4096, DEFAULT_WINDOW = 180, LOOK_MS = 1000, ENDING_MS = 10000 };

static _Noreturn void fail(const char *what, const char *path) {
  fprintf(stderr, "guard: %s%s%s: %s\n", what, path[0] != '\0' ? " " : "", path, strerror(errno));
  exit(2);
}

/* --- Processes --------------------------------------------------------------------------------------------------- */

typedef struct processes {
  int n;
  pid_t at[PROCESSES];
} processes;

static void add_children(processes *list, pid_t pid) {
  char path[96];
  snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
  DIR *threads = opendir(path);
  for (struct dirent *entry; threads != NULL && (entry = readdir(threads)) != NULL;) {
    snprintf(path, sizeof path, "/proc/%d/task/%.20s/children", (int)pid, entry->d_name);
    FILE *file = entry->d_name[0] != '.' ? fopen(path, "r") : NULL;
    int child;
    while (file != NULL && list->n < PROCESSES && fscanf(file, "%d", &child) == 1)
      list->at[list->n++] = child;
    if (file != NULL)
      fclose(file);
  }
  if (threads != NULL)
    closedir(threads);
}

/* All that descend from this one: orphans too, which come to it (PR_SET_CHILD_SUBREAPER). */
static void descendants(processes *list) {
  list->n = 0;
  add_children(list, getpid());
  for (int i = 0; i < list->n; i++)
    add_children(list, list->at[i]);
}

/* True when this system can tell: some kernels are built without it. Where it does not, nothing but ctest's limit ends
 * a hang. */
static bool tells_children(void) {
  char path[96];
  snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)getpid(), (int)getpid());
  return access(path, R_OK) == 0;
}

/* Seconds of a process and of those that it has waited for. */
static double processor_time(pid_t pid) {
  char path[64], line[1024];
  unsigned long user = 0, system = 0;
  long user_below = 0, system_below = 0;
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  FILE *file = fopen(path, "r");
  if (file == NULL)
    return 0;
  const char *at = fgets(line, sizeof line, file) != NULL ? strrchr(line, ')') : NULL; /* names may have blanks */
  if (at != NULL)
    sscanf(at + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %ld %ld", &user, &system, &user_below,
           &system_below);
  fclose(file);
  return ((double)user + (double)system + (double)user_below + (double)system_below) / (double)sysconf(_SC_CLK_TCK);
}

/* Seconds that its threads have been ready to run, and others ran: 0 where the system does not tell. */
static double waited_for_processor(pid_t pid) {
  char path[96];
  double sum = 0;
  snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
  DIR *threads = opendir(path);
  for (struct dirent *entry; threads != NULL && (entry = readdir(threads)) != NULL;) {
    unsigned long long waited = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%.20s/schedstat", (int)pid, entry->d_name);
    FILE *file = entry->d_name[0] != '.' ? fopen(path, "r") : NULL;
    if (file != NULL && fscanf(file, "%*u %llu", &waited) == 1)
      sum += 1e-9 * (double)waited;
    if (file != NULL)
      fclose(file);
  }
  if (threads != NULL)
    closedir(threads);
  return sum;
}

static double seconds_of(struct timeval t) { return (double)t.tv_sec + 1e-6 * (double)t.tv_usec; }

static double used(double *waited) {
  processes list;
  struct rusage ended = {0};
  getrusage(RUSAGE_CHILDREN, &ended);
  double sum = seconds_of(ended.ru_utime) + seconds_of(ended.ru_stime);
  descendants(&list);
  *waited = 0;
  for (int i = 0; i < list.n; i++) {
    sum += processor_time(list.at[i]);
    *waited += waited_for_processor(list.at[i]);
  }
  return sum;
}

static void end_all(void) {
  processes list;
  for (descendants(&list); list.n > 0; descendants(&list)) {
    for (int i = 0; i < list.n; i++)
      kill(list.at[i], SIGKILL);
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
    poll(NULL, 0, 10);
  }
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static volatile sig_atomic_t stopped; /* the signal that ends all, or 0: ctest's end is one */
static void stop(int number) { stopped = number; }

static void child_ended(int number) { (void)number; }

/* The end of a child ends poll_children, with the mask from here; it is not lost between two of these. */
static void block_child_ends(sigset_t *mask) {
  sigset_t ends;
  signal(SIGCHLD, child_ended);
  sigemptyset(&ends);
  sigaddset(&ends, SIGCHLD);
  sigprocmask(SIG_BLOCK, &ends, mask);
  sigdelset(mask, SIGCHLD);
}

static void poll_children(double seconds, const sigset_t *mask) {
  struct timespec t = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
  if (seconds > 0)
    ppoll(NULL, 0, &t, mask);
}

/* The test's status; *hangs where it was ended. */
static int test_watch(pid_t test, double limit, double window, const sigset_t *mask, bool *hangs) {
  double since = now(), before = 0, look = since + 1e-3 * LOOK_MS;
  bool tells = tells_children();
  int status = 0;
  for (pid_t ended; (ended = waitpid(-1, &status, WNOHANG)) != test;) {
    if (ended > 0)
      continue; /* an orphan */
    if (ended < 0 && errno != EINTR)
      fail("waitpid", "");
    if (stopped != 0) {
      *hangs = true;
      fprintf(stderr, "guard: ended by %s\n", strsignal(stopped));
      end_all();
      return 0;
    }
    poll_children(look - now(), mask);
    if (now() < look)
      continue;
    look = now() + 1e-3 * LOOK_MS;
    if (!tells)
      continue;
    double waited, time = used(&waited), active = time + waited;
    if (active > before + 0.5 || active < before) { /* less: what a process had used that has ended */
      before = active;
      since = now();
    }
    *hangs = time > limit || now() - since > window;
    if (!*hangs)
      continue;
    if (time > limit)
      fprintf(stderr, "guard: ended, it has used %.0f s of processor time, %.0f s are the limit\n", time, limit);
    else
      fprintf(stderr, "guard: ended, it has used less than half a second of processor time in the last %.0f s\n",
              window);
    end_all();
    return 0;
  }
  return status;
}

/* --- Files ------------------------------------------------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *s, int flag, struct FTW *where) {
  (void)s, (void)flag, (void)where;
  return remove(path);
}

static int make_accessible(const char *path, const struct stat *s, int flag, struct FTW *where) {
  (void)where;
  if (flag == FTW_D || flag == FTW_DNR)
    chmod(path, s->st_mode | 0700);
  return 0;
}

static void remove_tree(const char *path) {
  nftw(path, make_accessible, 16, FTW_PHYS);
  nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int left;
static size_t root_length;

static int list_one(const char *path, const struct stat *s, int flag, struct FTW *where) {
  (void)s, (void)flag;
  if (where->level == 0)
    return 0;
  if (strncmp(path + where->base, "tsan.rodata.", 12) == 0) /* ThreadSanitizer's, of what was killed as it began */
    return 0;
  if (left++ < 20)
    fprintf(stderr, "guard: left behind: %s\n", path + root_length);
  return 0;
}

static void make_directory(const char *path) {
  if (mkdir(path, 0755) != 0 && errno != EEXIST)
    fail("directory", path);
}

/* DIRECTORY and those above it. */
static void make_directories(char *path) {
  for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    make_directory(path);
    *slash = '/';
  }
  make_directory(path);
}

/* Waits for a guard of a second ctest that has the same directory. The lock lasts until its file is removed; a guard
 * that has waited for a removed file locks the next one of that name. */
static void wait_for_turn(const char *path) {
  struct stat locked, named;
  for (;;) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || flock(fd, LOCK_EX) != 0 || fstat(fd, &locked) != 0)
      fail("lock", path);
    if (stat(path, &named) == 0 && named.st_ino == locked.st_ino)
      return;
    close(fd);
  }
}

int main(int argc, char **argv) {
  int dashes = argc > 3 && strcmp(argv[3], "--") == 0 ? 3 : 4;
  char root[PATH_MAX], here[PATH_MAX + 8], temporary[PATH_MAX + 8], lock[PATH_MAX + 8];
  if (argc <= dashes + 1 || strcmp(argv[dashes], "--") != 0 || strlen(argv[1]) >= sizeof root) {
    fprintf(stderr, "usage: guard DIRECTORY SECONDS [WINDOW] -- COMMAND...\n");
    return 2;
  }
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  double limit = strtod(argv[2], NULL) * (cores > 0 ? (double)cores : 1);
  double window = dashes == 4 ? strtod(argv[3], NULL) : DEFAULT_WINDOW;
  strcpy(root, argv[1]);
  snprintf(lock, sizeof lock, "%s.lock", root);
  make_directories(root);
  wait_for_turn(lock);
  remove_tree(root); /* of a run that was killed */
  make_directories(root);
  snprintf(here, sizeof here, "%s/cwd", root);
  snprintf(temporary, sizeof temporary, "%s/tmp", root);
  make_directory(here);
  make_directory(temporary);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  signal(SIGTERM, stop);
  signal(SIGINT, stop);
  sigset_t mask;
  block_child_ends(&mask);
  pid_t test = fork();
  if (test < 0)
    fail("fork", "");
  if (test == 0) {
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    for (int fd = 3; fd < 256; fd++) /* tests count and limit them: none comes from who runs the tests */
      close(fd);
    setenv("TMPDIR", temporary, 1);
    setenv("LC_ALL", "C.UTF-8", 1); /* numbers of awk, orders of sort */
    if (chdir(here) != 0)
      fail("directory", here);
    execvp(argv[dashes + 1], argv + dashes + 1);
    fail("program", argv[dashes + 1]);
  }
  bool hangs = false;
  int status = test_watch(test, limit, window, &mask, &hangs);
  processes list;
  for (double end = now() + 1e-3 * ENDING_MS; descendants(&list), list.n > 0 && now() < end;) {
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
    poll(NULL, 0, 10);
  }
  if (list.n > 0)
    fprintf(stderr, "guard: left behind: %d processes\n", list.n);
  end_all();
  root_length = strlen(root) + 1;
  nftw(here, list_one, 16, FTW_PHYS);
  nftw(temporary, list_one, 16, FTW_PHYS);
  remove_tree(root);
  unlink(lock);
  int result = hangs ? 1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (!hangs && WIFSIGNALED(status))
    fprintf(stderr, "guard: ended by signal %d\n", WTERMSIG(status));
  if ((left > 0 || list.n > 0) && (result == 0 || result == 77))
    result = 1;
  return result;
}
