/* Turns of the host's threads. One of them runs at a time; at a call that orders threads, at a call of the runtime and
 * where one waits, the seed says which goes on. A run so comes out of its seed alone: which rank asks first, who gets a
 * mutex, who is late. Time is made up as well: each call takes a little, and when all wait it is at once as late as the
 * first of them waits for. So nobody waits in vain for long, and where all wait for ever that is said, and by whom.
 *
 * In a child of fork, ranks are real processes, which take no turns: where all threads wait, real time passes.
 *
 * Under ThreadSanitizer threads run as they do anywhere: it is to see them meet. */
#include "machine.hpp"

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <semaphore.h>
#include <unistd.h>

namespace vg {

#ifdef VG_UNDER_TSAN
static constexpr bool taken = false;
#else
static constexpr bool taken = true;
#endif

enum : int64_t { CALL_NS = 200, FOR_EVER = INT64_MAX };

struct Turn {
  uint32_t number;   /* the lowest that no other has */
  sem_t mine;        /* posted: it is this thread's turn */
  const void *waits; /* for what; NULL: it can go on */
  const char *for_what;
  int64_t until;
  bool late, ended;
};

/* The thread whose turn it is owns all of this. */
static std::vector<Turn *> turns; /* of threads that have not ended, in the order of their creation */
static thread_local Turn *own;
static int64_t now = 1000000000;
static uint64_t random_state = 1;
static unsigned switch_one_in = 4;

static uint64_t pick(uint64_t n) {
  uint64_t &x = random_state;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return (x * 0x2545F4914F6CDD1Dull >> 11) % n;
}

Turn *turn_new() {
  if (!taken)
    return nullptr;
  Turn *turn = new Turn{};
  turn->until = FOR_EVER;
  for (bool used = true; used; turn->number += used) {
    used = false;
    for (Turn *t : turns)
      used |= t->number == turn->number;
  }
  sem_init(&turn->mine, 0, 0);
  turns.push_back(turn);
  return turn;
}

static struct First { /* the thread that the process begins with */
  pid_t process = getpid();
  First() { own = turn_new(); }
} first;

bool has_others() { return getpid() != first.process; }

extern "C" int __real_nanosleep(const struct timespec *, struct timespec *);
extern "C" int __real_clock_gettime(clockid_t, struct timespec *);

static int64_t real_time() {
  struct timespec t;
  __real_clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

/* Lets other processes go on for a while. */
static void pass_real_time() {
  const struct timespec brief = {0, 50000};
  int64_t before = real_time();
  __real_nanosleep(&brief, nullptr);
  now += real_time() - before;
}

static void go_on(Turn *next) {
  digest(next->number);
  sem_post(&next->mine);
}

static void until_my_turn(Turn *turn) {
  while (sem_wait(&turn->mine) != 0) {
  }
}

static void pass_to(Turn *next) {
  Turn *turn = own;
  if (next == turn)
    return;
  go_on(next);
  until_my_turn(turn);
}

/* Those that can go on, after all whose time has come. */
static std::vector<Turn *> &able() {
  static std::vector<Turn *> list;
  list.clear();
  for (Turn *t : turns) {
    if (t->waits && t->until <= now) {
      t->waits = nullptr;
      t->late = true;
    }
    if (!t->waits && !t->ended)
      list.push_back(t);
  }
  return list;
}

static void nobody_can() {
  fprintf(stderr, "virtual GPU: deadlock: all threads wait for ever\n");
  for (Turn *t : turns)
    if (!t->ended)
      fprintf(stderr, "  thread %u of the process: %s %p\n", t->number, t->for_what, t->waits);
  abort();
}

/* The next one when the calling thread cannot go on; time passes where that is what all wait for. */
static Turn *next_able() {
  for (;;) {
    auto &list = able();
    if (!list.empty())
      return list[pick(list.size())];
    int64_t first = FOR_EVER;
    for (Turn *t : turns)
      if (!t->ended && t->until < first)
        first = t->until;
    if (first == FOR_EVER)
      nobody_can();
    if (has_others())
      pass_real_time();
    else
      now = first;
  }
}

void turns_begin(uint64_t seed) {
  random_state = (seed + 1) * 0xD1B54A32D192ED03ull | 1;
  for (int i = 0; i < 4; i++)
    pick(1);
  static const unsigned one_in[] = {2, 4, 8, 16, 64};
  switch_one_in = one_in[pick(5)];
}

bool turns_taken() { return taken; }

void turn_passes(int64_t ns) { now += ns; }

int64_t turn_time() {
  turn_passes(CALL_NS);
  return now;
}

void turn() {
  if (!taken)
    return;
  turn_passes(CALL_NS);
  if (turns.size() < 2 || pick(switch_one_in))
    return;
  auto &list = able();
  pass_to(list[pick(list.size())]);
}

size_t turn_count() { return turns.size(); }

bool turn_to_another() {
  turn_passes(CALL_NS);
  auto &list = able();
  if (list.size() < 2)
    return false;
  Turn *next = list[pick(list.size() - 1)];
  pass_to(next == own ? list.back() : next);
  return true;
}

bool turn_wait(const void *on, const char *for_what, int64_t until) {
  Turn &turn = *own;
  turn.waits = on;
  turn.for_what = for_what;
  turn.until = until;
  turn.late = false;
  pass_to(next_able());
  turn.until = FOR_EVER;
  return !turn.late;
}

void turn_wake(const void *on, bool all) {
  std::vector<Turn *> who;
  for (Turn *t : turns)
    if (t->waits == on)
      who.push_back(t);
  if (who.empty())
    return;
  if (!all)
    who.assign(1, who[pick(who.size())]);
  for (Turn *t : who)
    t->waits = nullptr;
}

void turn_first(Turn *turn) {
  if (!taken)
    return;
  own = turn;
  until_my_turn(turn);
}

void turn_last() {
  if (!taken)
    return;
  Turn *turn = own;
  turn->ended = true;
  turn_wake(turn, true);
  go_on(next_able());
}

bool turn_ended(const Turn *turn) { return turn->ended; }

void turn_delete(Turn *turn) {
  if (!taken)
    return;
  for (size_t i = 0; i < turns.size(); i++)
    if (turns[i] == turn) {
      turns.erase(turns.begin() + (ptrdiff_t)i);
      break;
    }
  sem_destroy(&turn->mine);
  delete turn;
}

/* --- In the runtime ----------------------------------------------------------------------------------------------- */
static int waiting; /* threads that wait for M.moved; under the lock */

void tell_moved() {
  if (taken)
    turn_wake(&M.moved);
  else if (waiting > 0)
    pthread_cond_broadcast(&M.moved);
}

bool wait_moved(int64_t ms) {
  if (taken) {
    lock_depth--;
    __real_pthread_mutex_unlock(&M.lock);
    bool moved = turn_wait(&M.moved, "waits for the GPU, or for other ranks, at", now + ms * 1000000);
    __real_pthread_mutex_lock(&M.lock);
    lock_depth++;
    return moved;
  }
  struct timespec until;
  __real_clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += (time_t)(ms / 1000) + (until.tv_nsec + ms % 1000 * 1000000) / 1000000000;
  until.tv_nsec = (until.tv_nsec + ms % 1000 * 1000000) % 1000000000;
  waiting++;
  bool moved = __real_pthread_cond_timedwait(&M.moved, &M.lock, &until) == 0;
  waiting--;
  return moved;
}

} // namespace vg
