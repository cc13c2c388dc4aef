/* A process of a node is lost in the middle of a call - killed, stopped, or late - and the others go on: with an error
 * that names it, within their deadline, with nothing written afterwards, over a new communicator, and with no
 * descriptor and no memory left.
 *
 * The device of each rank is the library's, with work that counts: so a rank is lost at a certain piece of it. Every
 * trial has processes of its own, which the first one starts and waits for.
 *
 * usage: node_losses RANKS TRIALS [SEED [STEP [kill|stop|late]]]. RESHARD_TEST_SCALE scales TRIALS. */
#define _GNU_SOURCE
#include "base/base.h"
#include "device/handle.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"
#include "support/fixtures/stop_counts.h"
#include "support/processes/children.h"

#include <reshard/reshard.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RANKS = 32, SHOWN = 1024, SPARE_MS = 1000, POISON = 0xa5, COLUMNS = 6144 };
enum { CREATE, JOIN, BIND, PACK, EXCHANGE, UNPACK, DESTROY, STEPS };
static const char *const step_names[STEPS] = {"create", "join", "bind", "pack", "exchange", "unpack", "destroy"};
enum { KILL, STOP, LATE, WAYS };
static const char *const way_names[WAYS] = {"kill", "stop", "late"};

/* Of all ranks of a trial. */
static struct board {
  _Atomic int64_t came[4]; /* to all-gathers: of all, and of those that are there */
  char shown[4][MOST_RANKS][SHOWN];
  _Atomic int lost;    /* the victim has come to its place */
  _Atomic int through; /* ranks that have ended, but the victim */
  _Atomic int failures;
  _Atomic int64_t longest_ms;
  stop_counts counts[WAYS][STEPS];
} * board;

static int rank, size, victim, step, way;
static int64_t deadline_ms, countdown, work_done, since; /* of the call */
static int64_t messages;                                 /* on sockets, until the victim is lost before one; 0: never */

#define CHECK(condition, ...) \
  do { \
    if (!(condition)) { \
      board->failures++; \
      printf("rank %d, %s in %s of rank %d: %s:%d: %s: ", rank, way_names[way], step_names[step], victim, __FILE__, \
             __LINE__, #condition); \
      printf(__VA_ARGS__); \
      printf(" (last error: %s)\n", reshard_last_error()); \
      fflush(stdout); \
    } \
  } while (0)

/* The victim is lost here; a stopped or a late one comes back. */
static void lose(void) {
  board->lost = 1;
  if (way == LATE)
    test_sleep_ms(2 * deadline_ms);
  else
    raise(way == KILL ? SIGKILL : SIGSTOP);
}

/* The library's call comes here: ranks that connect send their greetings and verdicts by it. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
  if (messages > 0 && --messages == 0)
    lose();
  return syscall(SYS_sendmsg, fd, message, flags);
}

/* --- The device --------------------------------------------------------------------------------------------------- */

static const rs_device_work *real_work;
static rs_device_work counted_work;

static void count_work(void) {
  work_done++;
  if (countdown > 0 && --countdown == 0)
    lose();
}

static reshard_status counted_run(rs_device *device, int64_t n, rs_program *const *programs, void *stream) {
  count_work();
  return real_work->run(device, n, programs, stream);
}

static reshard_status counted_copy(rs_device *device, int64_t n, const rs_span *spans, int64_t bytes, void *stream) {
  count_work();
  return real_work->copy(device, n, spans, bytes, stream);
}

static reshard_status counted_compile(rs_device *device, const rs_copies *copies, int64_t bytes, rs_program **program) {
  count_work();
  return real_work->compile(device, copies, bytes, program);
}

static reshard_device make_device(void) {
  reshard_device_options options = {.size = RESHARD_DEVICE_OPTIONS_INIT, .threads = 1};
  reshard_device device = NULL;
  CHECK(reshard_device_create("cpu", &options, &device) == RESHARD_SUCCESS, "a device");
  real_work = device->device->work;
  counted_work = *real_work;
  counted_work.run = counted_run;
  counted_work.copy = counted_copy;
  counted_work.compile = counted_compile;
  device->device->work = &counted_work;
  return device;
}

/* --- Communicators ------------------------------------------------------------------------------------------------ */

/* One all-gather: which one, and of how many ranks, this one's place among them. */
typedef struct gathering {
  int number, n, place;
} gathering;

static reshard_status allgather(void *user, const void *mine, size_t bytes, void *all) {
  const gathering *g = user;
  memcpy(board->shown[g->number][g->place], mine, bytes);
  board->came[g->number]++;
  while (board->came[g->number] < g->n)
    nanosleep(&(struct timespec){0, 50000}, NULL);
  for (int r = 0; r < g->n; r++)
    memcpy((char *)all + (size_t)r * bytes, board->shown[g->number][r], bytes);
  if (g->number == 0 && step == CREATE && rank == victim) /* the others connect meanwhile */
    lose();
  return RESHARD_SUCCESS;
}

static reshard_status make_comm(const gathering *g, reshard_device device, reshard_comm *comm) {
  reshard_node_options options = {RESHARD_NODE_OPTIONS_INIT, device, deadline_ms, "losses"};
  return reshard_comm_create_node(g->n, g->place, allgather, (void *)g, &options, comm);
}

/* --- A reshard of all ranks of a communicator --------------------------------------------------------------------- */

typedef struct work {
  reshard_plan plan;
  reshard_transfer transfer;
  reshard_layout from, to;
  unsigned char *src, *dst;
  int64_t src_bytes, dst_bytes;
} work;

static unsigned char element_value(int64_t row, int64_t column) {
  return (unsigned char)((uint64_t)(row * COLUMNS + column + 1) * 0x9e3779b97f4a7c15u >> 56);
}

/* Global row of element i of a rank's source, whose rows are dealt out by fours. */
static int64_t row_of(int64_t n, int64_t me, int64_t i) {
  int64_t local = i / COLUMNS;
  return (local / 4 * n + me) * 4 + local % 4;
}

static reshard_status bind_work(reshard_comm comm, work *w) {
  int64_t n = reshard_comm_size(comm), me = reshard_comm_rank(comm), shape[] = {(n < 8 ? 1024 : 128) * n, COLUMNS},
          elements;
  char from[64], to[64];
  *w = (work){0};
  snprintf(from, sizeof from, "cyclic(%lldx1;4x%d)", (long long)n, COLUMNS);
  snprintf(to, sizeof to, "chunk(1)");
  CHECK(reshard_layout_parse(from, 2, shape, n, &w->from) == RESHARD_SUCCESS, "%s", from);
  CHECK(reshard_layout_parse(to, 2, shape, n, &w->to) == RESHARD_SUCCESS, "%s", to);
  CHECK(reshard_layout_buffer_elements(w->from, me, 0, &elements) == RESHARD_SUCCESS, "elements");
  w->src_bytes = elements;
  w->dst_bytes = reshard_layout_buffer_elements(w->to, me, 0, &elements) == RESHARD_SUCCESS ? elements : 0;
  w->src = malloc((size_t)w->src_bytes);
  w->dst = malloc((size_t)w->dst_bytes + 1);
  for (int64_t i = 0; i < w->src_bytes; i++)
    w->src[i] = element_value(row_of(n, me, i), i % COLUMNS);
  memset(w->dst, 0, (size_t)w->dst_bytes);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = w->from, .dst = w->to, .dtype = RESHARD_U8};
  CHECK(reshard_plan_create(1, &entry, me, NULL, &w->plan) == RESHARD_SUCCESS, "plan");
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, (void *[]){w->src}, (void *[]){w->dst}, NULL, NULL, 0, 0};
  since = rs_now_ns();
  return reshard_transfer_create(w->plan, comm, &arrays, NULL, &w->transfer);
}

static int64_t count_wrong(reshard_comm comm, const work *w) {
  int64_t n = reshard_comm_size(comm), me = reshard_comm_rank(comm), width = (COLUMNS + n - 1) / n, wrong = 0;
  int64_t mine = width < COLUMNS - me * width ? width : COLUMNS - me * width;
  for (int64_t i = 0; i < w->dst_bytes; i++)
    wrong += w->dst[i] != element_value(i / mine, me * width + i % mine);
  return wrong;
}

static void work_release(work *w) {
  reshard_transfer_destroy(w->transfer);
  reshard_plan_destroy(w->plan);
  reshard_layout_release(w->from);
  reshard_layout_release(w->to);
  free(w->src);
  free(w->dst);
}

/* --- Trials ------------------------------------------------------------------------------------------------------- */

/* Segments of the library that this process has mapped. */
static int count_segments(void) {
  char line[512];
  FILE *maps = fopen("/proc/self/maps", "r");
  int n = 0;
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
    n += strstr(line, "memfd:reshard") != NULL;
  if (maps != NULL)
    fclose(maps);
  return n;
}

/* A survivor is told who is lost, in time. */
static void check_error(reshard_status status) {
  char name[64], missing[64];
  int64_t ms = (rs_now_ns() - since) / 1000000;
  snprintf(name, sizeof name, "rank %d", victim);
  snprintf(missing, sizeof missing, "missing: %d", victim);
  if (status == RESHARD_SUCCESS)
    return;
  stop_counts *counts = &board->counts[way][step];
  const char *who = strstr(reshard_last_error(), way == KILL ? name : missing);
  counts->errors++;
  counts->late += ms >= (way == KILL ? 0 : deadline_ms) + SPARE_MS;
  counts->unnamed += who == NULL || !stop_is_named(reshard_last_error());
  if (ms > board->longest_ms)
    board->longest_ms = ms;
  CHECK(status == RESHARD_ERROR_PEER || (way != KILL && status == RESHARD_ERROR_TIMEOUT), "%s",
        reshard_status_string(status));
  CHECK(who != NULL && stop_is_named(reshard_last_error()), "names the rank and the call");
  CHECK(ms < (way == KILL ? 0 : deadline_ms) + 20 * SPARE_MS, "after %lld ms", (long long)ms);
}

/* Those that are there move data over a communicator of their own. */
static void use_rest(reshard_comm rest) {
  work w;
  reshard_status status = bind_work(rest, &w);
  if (status == RESHARD_SUCCESS)
    status = reshard_execute(w.transfer, NULL);
  CHECK(status == RESHARD_SUCCESS, "a reshard of the rest: %s", reshard_status_string(status));
  CHECK(status != RESHARD_SUCCESS || count_wrong(rest, &w) == 0, "the rest has wrong data");
  work_release(&w);
}

/* The step in which the victim is lost, and those before it. */
static reshard_status run_steps(reshard_device device, reshard_comm *comm, work *w, uint64_t seed) {
  gathering all = {0, size, rank};
  since = rs_now_ns();
  if (rank == victim && step == JOIN) /* before the last verdict of rank 0, of which some might hear and some not */
    messages = 1 + (int64_t)(seed % (uint64_t)(rank == 0 ? size : rank + 2));
  RS_TRY(make_comm(&all, device, comm));
  if (rank == victim && step == BIND)
    countdown = 1 + (int64_t)(seed % (uint64_t)size);
  RS_TRY(bind_work(*comm, w));
  countdown = 0;
  int64_t before = work_done;
  since = rs_now_ns();
  RS_TRY(reshard_execute(w->transfer, NULL)); /* counts the work */
  CHECK(count_wrong(*comm, w) == 0, "wrong data before anything was lost");
  int64_t works = work_done - before;
  memset(w->dst, 0, (size_t)w->dst_bytes);
  RS_TRY(reshard_comm_barrier(*comm));
  if (rank == victim)
    countdown = step == PACK ? 2 : step == EXCHANGE ? 3 + (int64_t)(seed % (uint64_t)works) * 3 / 4 : works;
  if (rank == victim && (step == CREATE || step == BIND || step == DESTROY))
    countdown = 0;
  since = rs_now_ns();
  RS_TRY(reshard_execute(w->transfer, NULL));
  countdown = 0;
  CHECK(count_wrong(*comm, w) == 0, "wrong data in an execute that succeeded");
  if (rank == victim)
    lose();
  since = rs_now_ns();
  RS_TRY(reshard_comm_barrier(*comm));
  return RESHARD_SUCCESS;
}

static void survive(reshard_device device, reshard_comm comm, work *w, reshard_status status) {
  int64_t lost[MOST_RANKS], n = 0, wrong = 0;
  reshard_comm rest = NULL;
  CHECK(status != RESHARD_SUCCESS, "nothing is noticed");
  if (w->dst != NULL)
    memset(w->dst, POISON, (size_t)w->dst_bytes);
  if (comm == NULL) {
    gathering those = {1, size - 1, rank - (rank > victim)};
    CHECK(make_comm(&those, device, &rest) == RESHARD_SUCCESS, "a new communicator");
  } else {
    CHECK(reshard_comm_barrier(comm) == RESHARD_ERROR_PEER, "it has ended");
    CHECK(reshard_comm_missing(comm, lost, &n) == RESHARD_SUCCESS && n == 1 && lost[0] == victim, "%lld are missing",
          (long long)n);
    CHECK(reshard_comm_shrink(comm, 1, (int64_t[]){victim}, &rest) == RESHARD_SUCCESS, "those that are there");
  }
  if (rest != NULL)
    use_rest(rest);
  for (int64_t i = 0; w->dst != NULL && i < w->dst_bytes; i++)
    wrong += w->dst[i] != POISON;
  board->counts[way][step].wrong += wrong;
  CHECK(wrong == 0, "%lld bytes were written after the error", (long long)wrong);
  reshard_comm_destroy(rest);
}

static int run_rank(uint64_t seed) {
  reshard_comm comm = NULL;
  work w = {0};
  int fds = count_descriptors();
  reshard_device device = make_device();
  reshard_status status = run_steps(device, &comm, &w, seed);
  if (rank != victim) {
    check_error(status);
    survive(device, comm, &w, status);
    board->through++;
  } else {
    CHECK(way != KILL, "it lives");
    CHECK(status == RESHARD_ERROR_PEER || status == RESHARD_ERROR_TIMEOUT || step <= JOIN, "the lost one: %s",
          reshard_status_string(status));
    while (board->through < size - 1) /* it keeps what it has: the others do without */
      test_sleep_ms(1);
  }
  work_release(&w);
  reshard_comm_destroy(comm);
  reshard_device_release(device);
  CHECK(count_descriptors() == fds, "%d descriptors, %d before", count_descriptors(), fds);
  CHECK(count_segments() == 0, "%d segments are left", count_segments());
  return 0;
}

/* Waits for the ranks; a stopped victim goes on when the others are through. */
static void wait_for_ranks(const pid_t *pids) {
  int left = size, status;
  for (int64_t begun = rs_now_ns(); left > 0;) {
    pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid > 0) {
      left--;
      bool killed = WIFSIGNALED(status) && pid == pids[victim] && way == KILL;
      rank = -1;
      CHECK(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0), "a rank ended with status %x", status);
      continue;
    }
    if (way == STOP && board->through == size - 1)
      kill(pids[victim], SIGCONT);
    if (rs_late(begun, 300000)) {
      CHECK(false, "%d ranks hang", left);
      for (int r = 0; r < size; r++)
        kill(pids[r], SIGKILL);
      begun = INT64_MAX;
    }
    nanosleep(&(struct timespec){0, 500000}, NULL);
  }
}

static void run_once(uint64_t seed, int64_t limit_ms) {
  pid_t pids[MOST_RANKS], parent = getpid();
  memset(board->came, 0, sizeof board->came);
  board->lost = board->through = 0;
  victim = (int)((seed >> 8) % (uint64_t)size);
  deadline_ms = limit_ms;
  fflush(stdout);
  for (int r = 0; r < size; r++) {
    pids[r] = fork();
    if (pids[r] == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      rank = r;
      int status = getppid() == parent ? run_rank(seed >> 16) : 1;
      fflush(stdout);
      _exit(status);
    }
  }
  wait_for_ranks(pids);
  board->counts[way][step].stops += board->lost;
}

/* Where the fault may be a short deadline that a busy machine has missed, it is what is wrong with a long one. */
static void run_trial(uint64_t seed) {
  const stop_counts counts = board->counts[way][step];
  int before = board->failures;
  run_once(seed, way == KILL ? 10000 : 700);
  if (way == KILL || board->failures == before)
    return;
  printf("%s in %s: once more with a long deadline\n", way_names[way], step_names[step]);
  board->failures = before;
  board->counts[way][step] = counts;
  run_once(seed, 15000);
}

int main(int argc, char **argv) {
  size = argc > 1 ? atoi(argv[1]) : 0;
  int64_t trials = test_scaled(argc > 2 ? atoll(argv[2]) : 1, 1), made = 0;
  uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
  char where[32];
  if (size < 3 || size > MOST_RANKS || trials < 1) {
    printf("usage: node_losses RANKS TRIALS [SEED [STEP [kill|stop|late]]], 3 to %d ranks\n", MOST_RANKS);
    return 2;
  }
  board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (board == MAP_FAILED)
    return 1;
  for (int64_t i = 0; i < trials; i++)
    for (way = 0; way < WAYS; way++)
      for (step = 0; step < STEPS; step++) {
        if (argc <= 4 && test_scale() < 0.5 && (way + step) % WAYS != 0) /* with a sanitizer: each step in one way */
          continue;
        if ((argc > 4 && strcmp(argv[4], step_names[step]) != 0) || (argc > 5 && strcmp(argv[5], way_names[way]) != 0))
          continue;
        run_trial((seed + (uint64_t)(made++)) * 0x9e3779b97f4a7c15u >> 8);
      }
  snprintf(where, sizeof where, "node, %d processes", size);
  for (way = 0; way < WAYS; way++)
    for (step = 0; step < STEPS; step++)
      stop_counts_print(where, way_names[way], step_names[step], &board->counts[way][step]);
  printf("%lld losses, %d ranks, after %lld ms at most: %d checks failed\n", (long long)made, size,
         (long long)board->longest_ms, board->failures);
  return board->failures > 0;
}
