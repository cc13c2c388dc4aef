/* A process of a node is lost in the middle of a call: killed, stopped, or late (support/losses/losses.h). Every trial
 * has processes of its own, which the first one starts and waits for. A loss leaves no descriptor and no memory.
 *
 * usage: node_losses RANKS TRIALS [SEED [STEP [kill|stop|late]]]. RESHARD_TEST_SCALE scales TRIALS. */
#define _GNU_SOURCE
#include "support/losses/losses.h"
#include "bench/cli/util.h"
#include "support/fixtures/scale.h"
#include "support/processes/processes.h"

#include <reshard/reshard.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>

enum { SHOWN = 1024 };

/* Shown by the ranks to each other while they make a communicator. */
static struct cards {
  _Atomic int64_t came[LOSS_COMMS];
  char shown[LOSS_COMMS][LOSS_MOST][SHOWN];
} * cards;
static processes *others;
static int descriptors;

/* One all-gather: of which communicator, of how many ranks, this one's place among them. */
typedef struct gathering {
  loss_which which;
  int n, place;
  bool late; /* to connect */
} gathering;

static reshard_status allgather(void *user, const void *mine, size_t bytes, void *all) {
  const gathering *g = user;
  memcpy(cards->shown[g->which][g->place], mine, bytes);
  cards->came[g->which]++;
  while (cards->came[g->which] < g->n)
    nanosleep(&(struct timespec){0, 50000}, NULL);
  for (int r = 0; r < g->n; r++)
    memcpy((char *)all + (size_t)r * bytes, cards->shown[g->which][r], bytes);
  loss_pass(LOSS_PREPARES); /* the others connect meanwhile */
  if (g->late)
    nanosleep(&(struct timespec){0, 200000000}, NULL);
  return RESHARD_SUCCESS;
}

/* The library's call comes here: ranks that connect send their greetings and verdicts by it. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
  loss_pass(LOSS_MESSAGES);
  return syscall(SYS_sendmsg, fd, message, flags);
}

static reshard_status make_comm(loss_rank *me, loss_which which, int64_t timeout_ms, reshard_comm *comm) {
  bool rest = which == LOSS_REST;
  gathering g = {which, me->t->n - rest, me->number - (rest && me->number > me->t->victim), false};
  g.late = which == LOSS_ALL && me->t->step == LOSS_CREATE && me->t->packed && g.place == (me->t->victim + 1) % g.n;
  const reshard_node_options options = {RESHARD_NODE_OPTIONS_INIT, me->device, timeout_ms, "losses"};
  return reshard_comm_create_node(g.n, g.place, allgather, &g, &options, comm);
}

static void begin_rank(loss_rank *me) {
  const reshard_device_options options = {.size = RESHARD_DEVICE_OPTIONS_INIT, .threads = 1};
  descriptors = count_descriptors();
  LOSS_CHECK(me, reshard_device_create("cpu", &options, &me->device) == RESHARD_SUCCESS, "a device");
  loss_count_device(me->device);
}

static void end_rank(loss_rank *me) {
  loss_rank_drop(me);
  reshard_device_release(me->device);
}

static void check_left(loss_rank *me) {
  LOSS_CHECK(me, count_descriptors() == descriptors, "%d descriptors, %d before", count_descriptors(), descriptors);
  LOSS_CHECK(me, count_maps_of("memfd:reshard") == 0, "%d segments", count_maps_of("memfd:reshard"));
}

static void wait_some(const loss_rank *me) {
  if (loss_rank_resumes(me) && others->pid[me->t->victim] > 0)
    kill(others->pid[me->t->victim], SIGCONT);
  nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static void run_process(processes *all, int64_t rank, void *user) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  others = all;
  loss_rank_run(user, (int)rank);
}

static void run_ranks(loss_trial *t) {
  memset(cards->came, 0, sizeof cards->came);
  t->board->failures += processes_run(t->n, t->way == LOSS_KILL ? 1u << t->victim : 0, run_process, t);
}

static int64_t deadline_of(const loss_trial *t) { return t->way == LOSS_KILL ? 10000 : 700; }

int main(int argc, char **argv) {
  int size = argc > 1 ? atoi(argv[1]) : 0;
  int64_t trials = test_scaled(argc > 2 ? atoll(argv[2]) : 1, 1);
  char where[32];
  if (size < 3 || size > PROCESSES_MOST)
    cli_exit(EXIT_USAGE, "node_losses RANKS TRIALS [SEED [STEP [kill|stop|late]]], 3 to %d ranks", PROCESSES_MOST);
  snprintf(where, sizeof where, "node, %d processes", size);
  const loss_transport node = {.where = where,
                               .steps = 1u << LOSS_CREATE | 1u << LOSS_JOIN | 1u << LOSS_BIND | 1u << LOSS_PACK |
                                        1u << LOSS_EXCHANGE | 1u << LOSS_UNPACK | 1u << LOSS_DESTROY,
                               .ways = 1u << LOSS_KILL | 1u << LOSS_STOP | 1u << LOSS_LATE,
                               .rows = (size < 8 ? 1024 : 128) * size,
                               .columns = 6144,
                               .patience_ms = 60000,
                               .spare_ms = 20000,
                               .gathers = true,
                               .hears = true,
                               .deadline = deadline_of,
                               .run = run_ranks,
                               .begin = begin_rank,
                               .end = end_rank,
                               .left = check_left,
                               .wait = wait_some,
                               .make = make_comm};
  loss_board *board = loss_board_make();
  cards = mmap(NULL, sizeof *cards, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  loss_run(&node, board, size, trials, argc > 3 ? strtoull(argv[3], NULL, 10) : 1, argc > 4 ? argv[4] : NULL,
           argc > 5 ? argv[5] : NULL, argc <= 4 && test_scale() < 0.5 ? 3 : 1); /* with a sanitizer: each in one way */
  loss_report(&node, board);
  return board->failures > 0;
}
