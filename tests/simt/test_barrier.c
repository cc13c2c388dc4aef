/* The kernel by which GPUs of processes meet, each rank on a thread of its own: nobody goes on before all have come for
 * the same, numbers go on, and a barrier that fails stays closed. */
#include "kernels/barrier.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/fixtures/case.h"

enum { RANKS = 3, MEETINGS = 20, MANY = 300, THREADS = 128 };

/* Memory of one rank's GPU: its state, then the flags of all ranks. */
typedef struct room {
  rs_barrier_state state;
  uint32_t closed;
  uint64_t flags[MANY];
  uint32_t from; /* number of its barriers before the first one */
} room;

static room rooms[RANKS];
static atomic_int came[MEETINGS], wrong;
static int64_t deadline_ns; /* of all barriers; 0: none */

enum { SUBJECT = 77 };
static uint64_t flag(uint32_t number) { return (uint64_t)SUBJECT << 32 | number; }

static rs_barrier meet_of(int rank, rs_barrier_peer *peers, const int64_t *ended, int64_t *late) {
  uint32_t n = 0;
  for (int r = 0; r < RANKS; r++)
    if (r != rank)
      peers[n++] = (rs_barrier_peer){&rooms[r].flags[rank], &rooms[rank].flags[r], r, rooms[rank].from, 0};
  return (rs_barrier){.state = &rooms[rank].state,
                      .closed = &rooms[rank].closed,
                      .peers = peers,
                      .ended = ended,
                      .late = late,
                      .n = n,
                      .wait = 1,
                      .key = SUBJECT};
}

/* Half of what the clock shows: a deadline that is far for a barrier, and has passed for one without a beginning. */
static int64_t far_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (t.tv_sec * INT64_C(1000000000) + t.tv_nsec) / 2;
}

static void *meet_often(void *argument) {
  int rank = (int)(intptr_t)argument;
  rs_barrier_peer peers[RANKS];
  int64_t ended = 0, late = 0;
  rs_barrier barrier = meet_of(rank, peers, &ended, &late);
  barrier.timeout_ns = deadline_ns;
  for (int i = 0; i < MEETINGS; i++) {
    atomic_fetch_add(&came[i], 1);
    wrong += rs_barrier_launch(&barrier, NULL) != 0;
    wrong += atomic_load(&came[i]) != RANKS;
  }
  for (int i = 0; i < RANKS - 1; i++)
    wrong +=
        peers[i].number != rooms[rank].from + MEETINGS || rooms[rank].flags[peers[i].rank] != flag(peers[i].number);
  wrong += rooms[rank].closed != 0;
  return NULL;
}

/* Numbers go round the end of 32 bits. */
CASE(test_all_come) {
  static const uint32_t from[] = {0, UINT32_MAX - MEETINGS / 2};
  for (int k = 0; k < 2; k++) {
    pthread_t threads[RANKS];
    memset(rooms, 0, sizeof rooms);
    memset((void *)came, 0, sizeof came);
    deadline_ns = k == 0 ? far_ns() : 0;
    for (int r = 0; r < RANKS; r++) {
      rooms[r].from = from[k];
      for (int i = 0; i < RANKS; i++)
        rooms[r].flags[i] = from[k];
    }
    for (int r = 0; r < RANKS; r++)
      assert_int_equal(pthread_create(&threads[r], NULL, meet_often, (void *)(intptr_t)r), 0);
    for (int r = 0; r < RANKS; r++)
      assert_int_equal(pthread_join(threads[r], NULL), 0);
    assert_int_equal(wrong, 0);
  }
}

/* Rank 2 does not come. */
CASE(rank_that_does_not_come_is_named) {
  rs_barrier_peer peers[RANKS];
  int64_t ended = 0, late = 0;
  memset(rooms, 0, sizeof rooms);
  rooms[0].flags[1] = flag(1);
  rs_barrier barrier = meet_of(0, peers, &ended, &late);
  barrier.timeout_ns = 2000000;
  assert_int_equal(rs_barrier_launch(&barrier, NULL), 0);
  assert_int_equal(late, 1 + 2);
  assert_int_equal(rooms[0].closed, 1);
  assert_true(peers[0].number == 0 && peers[1].number == 0);
  assert_int_equal(rooms[0].state.since, 0);
  assert_true(rooms[2].flags[0] == flag(1));
  rooms[0].flags[2] = flag(5);
  rooms[0].flags[1] = flag(5); /* they come after all: it stays closed */
  rooms[2].flags[0] = 0;
  assert_int_equal(rs_barrier_launch(&barrier, NULL), 0);
  assert_true(peers[0].number == 0 && peers[1].number == 0);
  assert_int_equal(rooms[2].flags[0], 0);
}

/* Another barrier of the same GPU, for which all have come, comes after one that is late. */
CASE(test_closed_by_another) {
  rs_barrier_peer peers[2][RANKS];
  int64_t ended = 0, late = 0;
  memset(rooms, 0, sizeof rooms);
  rs_barrier missed = meet_of(0, peers[0], &ended, &late), other = meet_of(1, peers[1], &ended, &late);
  rooms[0].flags[1] = rooms[1].flags[0] = rooms[1].flags[2] = flag(1);
  missed.timeout_ns = 1;
  other.closed = missed.closed;
  assert_int_equal(rs_barrier_launch(&missed, NULL), 0);
  assert_int_equal(rooms[0].closed, 1);
  assert_int_equal(rs_barrier_launch(&other, NULL), 0);
  assert_true(peers[1][0].number == 0 && peers[1][1].number == 0);
  assert_true(rooms[2].flags[1] == 0);
}

CASE(barrier_that_has_ended_is_not_waited_for) {
  rs_barrier_peer peers[RANKS];
  int64_t ended = 1, late = 0;
  memset(rooms, 0, sizeof rooms);
  rs_barrier barrier = meet_of(1, peers, &ended, &late);
  assert_int_equal(rs_barrier_launch(&barrier, NULL), 0);
  assert_int_equal(rooms[1].closed, 1);
  assert_int_equal(late, 0);
  memset(rooms, 0, sizeof rooms);
  rooms[1].flags[0] = rooms[1].flags[2] = flag(1); /* all have come: the end is not looked at */
  assert_int_equal(rs_barrier_launch(&barrier, NULL), 0);
  assert_int_equal(rooms[1].closed, 0);
  assert_true(peers[0].number == 1 && peers[1].number == 1);
}

/* The kernel's clock, which it reads at its start and in each poll where there is a deadline: at reading `at` a flag
 * comes. */
static struct {
  bool counts;
  int readings, at;
  uint64_t *flag, value;
} ticks;

int clock_gettime(clockid_t clock, struct timespec *t) {
  if (ticks.counts && ++ticks.readings == ticks.at)
    __atomic_store_n(ticks.flag, ticks.value, __ATOMIC_RELEASE);
  return (int)syscall(SYS_clock_gettime, clock, t);
}

/* The host's flag is looked at in each 16th poll, and before a peer is called late. A poll that finds all reads no
 * clock. */
CASE(test_ended_looked_at_seldom) {
  static const struct {
    int comes_at, readings; /* comes_at 0: it does not come */
    bool past;              /* the deadline has passed */
  } cases[] = {{10, 10, false}, {16, 16, false}, {0, 1 + 16, false}, {17, 1 + 16, false}, {0, 1 + 1, true}};
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
    rs_barrier_peer peers[RANKS];
    int64_t ended = 1, late = 0;
    memset(rooms, 0, sizeof rooms);
    rooms[0].flags[1] = flag(1);
    rs_barrier barrier = meet_of(0, peers, &ended, &late);
    barrier.timeout_ns = cases[k].past ? 1 : far_ns();
    ticks.at = cases[k].comes_at;
    ticks.flag = &rooms[0].flags[2];
    ticks.value = flag(1);
    ticks.readings = 0;
    ticks.counts = true;
    assert_int_equal(rs_barrier_launch(&barrier, NULL), 0);
    ticks.counts = false;
    bool held = cases[k].comes_at > 0 && cases[k].comes_at <= 16;
    assert_int_equal(rooms[0].closed, !held);
    assert_int_equal(late, 0);
    assert_int_equal(ticks.readings, cases[k].readings);
  }
}

/* Rank 2 has come for something else, or had when it came to this barrier. */
CASE(test_other_key) {
  for (int alike = 0; alike < 2; alike++) {
    rs_barrier_peer peers[RANKS];
    int64_t ended = 0, late = 0;
    memset(rooms, 0, sizeof rooms);
    rooms[0].flags[1] = flag(1);
    rooms[0].flags[2] =
        (uint64_t)(SUBJECT + 1) << 32 | (uint32_t)(1 + alike); /* one that is ahead has found it alike */
    rs_barrier barrier = meet_of(0, peers, &ended, &late);
    assert_int_equal(rs_barrier_launch(&barrier, NULL), 0);
    assert_int_equal(late, alike ? 0 : -(1 + 2));
    assert_int_equal(rooms[0].closed, !alike);
    assert_true(peers[0].number == (uint32_t)alike && peers[1].number == (uint32_t)alike);
    assert_true(rooms[1].flags[0] == flag(1) && rooms[2].flags[0] == flag(1)); /* by which that one hears of it */
  }
}

/* And rank 1 does not come: that is not waited for, and by a deadline it says nothing new. */
CASE(test_other_key_and_late) {
  for (int deadline = 0; deadline < 2; deadline++) {
    rs_barrier_peer peers[RANKS];
    int64_t ended = 0, late = 0;
    memset(rooms, 0, sizeof rooms);
    rooms[0].flags[2] = 1;
    rs_barrier barrier = meet_of(0, peers, &ended, &late);
    barrier.timeout_ns = deadline; /* which has passed */
    assert_int_equal(rs_barrier_launch(&barrier, NULL), 0);
    assert_int_equal(late, -(1 + 2));
    assert_int_equal(rooms[0].closed, 1);
    assert_true(peers[0].number == 0 && peers[1].number == 0);
  }
}

/* The same where one thread has both peers, whichever it looks at first. */
CASE(test_other_key_of_many) {
  static uint64_t theirs[MANY];
  static rs_barrier_peer peers[MANY];
  static const int pairs[][2] = {{0, THREADS}, {2 * THREADS, 0}, {THREADS, 2 * THREADS}};
  for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
    int64_t ended = 0, late = 0;
    memset(rooms, 0, sizeof rooms);
    for (int i = 0; i < MANY; i++) {
      rooms[0].flags[i] = flag(1);
      peers[i] = (rs_barrier_peer){&theirs[i], &rooms[0].flags[i], i, 0, 0};
    }
    rooms[0].flags[pairs[k][0]] = 0;
    rooms[0].flags[pairs[k][1]] = 1;
    rs_barrier barrier = {.state = &rooms[0].state,
                          .closed = &rooms[0].closed,
                          .peers = peers,
                          .ended = &ended,
                          .late = &late,
                          .n = MANY,
                          .wait = 1,
                          .key = SUBJECT};
    assert_int_equal(rs_barrier_launch(&barrier, NULL), 0);
    assert_int_equal(late, -(1 + pairs[k][1]));
    assert_int_equal(rooms[0].closed, 1);
  }
}

/* More peers than the block has threads; and one that does not wait. */
CASE(test_many_peers) {
  static uint64_t theirs[MANY];
  static rs_barrier_peer peers[MANY];
  int64_t ended = 0, late = 0;
  memset(rooms, 0, sizeof rooms);
  for (int i = 0; i < MANY; i++) {
    rooms[0].flags[i] = 1 + i % 2; /* some are one ahead */
    peers[i] = (rs_barrier_peer){&theirs[i], &rooms[0].flags[i], i, 0, 0};
  }
  rs_barrier barrier = {.state = &rooms[0].state,
                        .closed = &rooms[0].closed,
                        .peers = peers,
                        .ended = &ended,
                        .late = &late,
                        .n = MANY,
                        .wait = 1,
                        .timeout_ns = 1};
  assert_int_equal(rs_barrier_load(), 0);
  assert_int_equal(rs_barrier_launch(&barrier, NULL), 0);
  assert_int_equal(rooms[0].closed, 0);
  for (int i = 0; i < MANY; i++)
    assert_int_equal(theirs[i], 1);
  barrier.wait = 0;
  assert_int_equal(rs_barrier_launch(&barrier, NULL), 0);
  for (int i = 0; i < MANY; i++)
    assert_int_equal(peers[i].number, 2);
  rooms[0].flags[MANY - 1] = 2; /* the last one is late */
  barrier.wait = 1;
  for (int i = 0; i < MANY - 1; i++)
    rooms[0].flags[i] = 3;
  assert_int_equal(rs_barrier_launch(&barrier, NULL), 0);
  assert_int_equal(late, 1 + MANY - 1);
  rooms[0].closed = 0;
  rooms[0].flags[MANY - 1 - THREADS] = 2; /* and one that its thread looks at before */
  assert_int_equal(rs_barrier_launch(&barrier, NULL), 0);
  assert_int_equal(late, 1 + MANY - 1 - THREADS);
}

/* Some of the peers, which have met more or less often: only these are told, waited for and counted. */
CASE(test_some_peers) {
  static uint64_t theirs[MANY];
  static rs_barrier_peer peers[MANY];
  static const int chosen[] = {0, 31, 32, 127, 128, MANY - 1};
  int64_t ended = 0, late = 0;
  rs_barrier barrier = {.state = &rooms[0].state,
                        .closed = &rooms[0].closed,
                        .peers = peers,
                        .ended = &ended,
                        .late = &late,
                        .n = MANY,
                        .wait = 1,
                        .some = 1};
  memset(rooms, 0, sizeof rooms);
  for (int i = 0; i < MANY; i++)
    peers[i] = (rs_barrier_peer){&theirs[i], &rooms[0].flags[i], i, 7 + i / THREADS, 0};
  for (size_t k = 0; k < sizeof chosen / sizeof *chosen; k++) {
    barrier.bits[chosen[k] / 32] |= UINT32_C(1) << chosen[k] % 32;
    rooms[0].flags[chosen[k]] = 8 + chosen[k] / THREADS;
  }
  assert_int_equal(rs_barrier_launch(&barrier, NULL), 0);
  assert_int_equal(rooms[0].closed, 0);
  for (int i = 0, k = 0; i < MANY; i++) {
    bool met = i == chosen[k];
    k += met;
    assert_int_equal(theirs[i], met ? 8 + i / THREADS : 0);
    assert_int_equal(peers[i].number, 7 + i / THREADS + met);
  }
  ended = 1; /* one of them has not come again */
  for (size_t k = 1; k < sizeof chosen / sizeof *chosen; k++)
    rooms[0].flags[chosen[k]] = 9 + chosen[k] / THREADS;
  assert_int_equal(rs_barrier_launch(&barrier, NULL), 0);
  assert_int_equal(rooms[0].closed, 1);
  assert_int_equal(peers[31].number, 8);
}

RUN_CASES
