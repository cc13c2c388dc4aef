/* The presence: ranks of a node see who has come to a step, whether they are threads of one process or processes. */
#define _GNU_SOURCE /* memfd_create */
#include "comm/presence.h"
#include "support/fixtures/case.h"
#include "support/processes/children.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MOST = 70 };

/* --- Ranks of one process ----------------------------------------------------------------------------------------- */

typedef struct world {
  int64_t n;
  rs_presence *presences[MOST];
  rs_presence_offer offers[MOST];
} world;

static void world_make(world *w, int64_t n) {
  *w = (world){.n = n};
  for (int64_t r = 0; r < n; r++) {
    assert_int_equal(rs_presence_make(n, r, &w->presences[r]), RESHARD_SUCCESS);
    w->offers[r] = rs_presence_own_offer(w->presences[r]);
    assert_true(w->offers[r].fd >= 0);
  }
}

static void world_join(const world *w) {
  for (int64_t r = 0; r < w->n; r++)
    rs_presence_join(w->presences[r], w->offers, sizeof *w->offers, NULL);
}

static void world_destroy(world *w) {
  for (int64_t r = 0; r < w->n; r++)
    rs_presence_destroy(w->presences[r]);
}

static void come(const world *w, int64_t first, int64_t end, rs_presence_kind kind, uint64_t number) {
  for (int64_t r = first; r < end; r++)
    rs_presence_come(w->presences[r], kind, number);
}

static void assert_text(const rs_presence *presence, const char *expected) {
  char text[RS_PRESENCE_TEXT];
  assert_string_equal(rs_presence_text(presence, 0, NULL, text), expected);
}

CASE(ranks_see_who_has_come_to_a_step) {
  world w;
  int64_t ranks[4];
  int descriptors = count_descriptors();
  world_make(&w, 4);
  assert_text(w.presences[0], ""); /* before the first all-gather nothing is known */
  world_join(&w);
  assert_text(w.presences[0], "none: all ranks have come");
  assert_int_equal(count_descriptors(), descriptors + 1);
  come(&w, 0, 3, RS_PRESENCE_STEP, 0);
  assert_text(w.presences[0], "3");
  assert_text(w.presences[3], "none: all ranks have come"); /* it waits for nothing that others have not come to */
  assert_int_equal(rs_presence_absent(w.presences[2], 0, NULL, 4, ranks), 1);
  assert_int_equal(ranks[0], 3);
  come(&w, 0, 2, RS_PRESENCE_CALL, 7); /* one behind, two behind */
  assert_text(w.presences[1], "2-3");
  come(&w, 2, 3, RS_PRESENCE_CALL, 6);
  assert_text(w.presences[1], "2-3");
  come(&w, 2, 4, RS_PRESENCE_CALL, 7);
  assert_text(w.presences[1], "none: all ranks have come");
  rs_presence_leave(w.presences[2]);
  assert_text(w.presences[1], "2");
  come(&w, 0, 2, RS_PRESENCE_SHRINK, 0); /* to which rank 2 may come all the same */
  assert_text(w.presences[0], "2-3");
  char text[RS_PRESENCE_TEXT];
  assert_string_equal(rs_presence_text(w.presences[0], 1, (int64_t[]){3}, text), "2");
  come(&w, 2, 3, RS_PRESENCE_SHRINK, 0);
  assert_string_equal(rs_presence_text(w.presences[0], 1, (int64_t[]){3}, text), "none: all ranks have come");
  assert_int_equal(count_maps_of("reshard-presence"), 4);
  world_join(&w); /* the second all-gather */
  assert_int_equal(count_descriptors(), descriptors);
  world_destroy(&w);
  assert_int_equal(count_maps_of("reshard-presence"), 0);
}

/* All have come, and one is held up before others can meet it: it does not tell that it waits. */
CASE(rank_that_is_held_up_does_not_tell_that_it_waits) {
  world w;
  int64_t ranks[4] = {0};
  world_make(&w, 4);
  world_join(&w);
  come(&w, 0, 4, RS_PRESENCE_STEP, 0);
  assert_text(w.presences[0], "none: all ranks have come"); /* nobody was asked */
  rs_presence_ask(w.presences[0], 1);
  assert_text(w.presences[0], "1-3");
  assert_text(w.presences[1], "none: all ranks have come"); /* it has not asked */
  rs_presence_wait(w.presences[1]);
  rs_presence_pass(w.presences[2]);
  assert_text(w.presences[0], "3");
  rs_presence_pass(w.presences[3]);
  assert_text(w.presences[0], "none: all ranks have come");
  come(&w, 1, 4, RS_PRESENCE_SHRINK, 0);
  rs_presence_ask(w.presences[0], 1);
  come(&w, 0, 1, RS_PRESENCE_SHRINK, 0);
  assert_text(w.presences[0], "none: all ranks have come"); /* it has not asked in the shrink */
  come(&w, 0, 3, RS_PRESENCE_STEP, 0);
  rs_presence_ask(w.presences[0], 1);
  assert_text(w.presences[0], "3"); /* it has not come: ranks 1 and 2 may not get on without it */
  come(&w, 3, 4, RS_PRESENCE_STEP, 0);
  rs_presence_wait(w.presences[1]);
  rs_presence_wait(w.presences[2]);
  rs_presence_ask(w.presences[0], 1);
  rs_presence_wait(w.presences[1]);
  rs_presence_wait(w.presences[2]);
  assert_non_null(rs_presence_conclude(w.presences[0], RESHARD_ERROR_TIMEOUT, "it ends"));
  assert_int_equal(rs_presence_missing(w.presences[1], ranks), 1);
  assert_int_equal(ranks[0], 3);
  rs_presence_ask(w.presences[1], 1000000); /* the reason is there */
  world_destroy(&w);
}

/* The first reason counts, with the ranks that were absent then. */
CASE(first_reason_counts) {
  world w;
  int64_t ranks[4] = {0};
  world_make(&w, 4);
  assert_null(rs_presence_conclude(w.presences[0], RESHARD_ERROR_TIMEOUT, "nobody hears it"));
  world_join(&w);
  come(&w, 0, 4, RS_PRESENCE_STEP, 0);
  come(&w, 1, 3, RS_PRESENCE_STEP, 0);
  assert_null(rs_presence_reason(w.presences[3]));
  assert_int_equal(rs_presence_missing(w.presences[3], ranks), 0);
  assert_string_equal(rs_presence_conclude(w.presences[1], RESHARD_ERROR_TIMEOUT, "rank 1 waits for 0 and 3"),
                      "rank 1 waits for 0 and 3");
  come(&w, 3, 4, RS_PRESENCE_STEP, 0); /* too late */
  assert_string_equal(rs_presence_conclude(w.presences[2], RESHARD_ERROR_TIMEOUT, "rank 2 waits for 0"),
                      "rank 1 waits for 0 and 3");
  for (int64_t r = 0; r < 4; r++) {
    assert_string_equal(rs_presence_reason(w.presences[r]), "rank 1 waits for 0 and 3");
    assert_int_equal(rs_presence_missing(w.presences[r], ranks), 2);
    assert_true(ranks[0] == 0 && ranks[1] == 3);
  }
  world_destroy(&w);
}

/* An end before any deadline: nobody is missing, and a later deadline changes nothing. */
CASE(end_before_a_deadline_names_nobody) {
  world w;
  int64_t ranks[4] = {0};
  world_make(&w, 4);
  world_join(&w);
  come(&w, 0, 3, RS_PRESENCE_STEP, 0);
  assert_int_equal(rs_presence_status(w.presences[0]), RESHARD_SUCCESS);
  assert_string_equal(rs_presence_conclude(w.presences[1], RESHARD_ERROR_PEER, "rank 3 has ended it"),
                      "rank 3 has ended it");
  assert_string_equal(rs_presence_conclude(w.presences[0], RESHARD_ERROR_TIMEOUT, "too late"), "rank 3 has ended it");
  for (int64_t r = 0; r < 4; r++) {
    assert_int_equal(rs_presence_status(w.presences[r]), RESHARD_ERROR_PEER);
    assert_int_equal(rs_presence_missing(w.presences[r], ranks), 0);
  }
  world_destroy(&w);
}

/* Ranks of another node, and one whose segment is not to be had. */
CASE(test_out_of_sight) {
  world w;
  int64_t ranks[8];
  world_make(&w, 8);
  int32_t taken = w.offers[0].fd;
  w.offers[0].node++;
  for (int64_t r = 5; r < 8; r++)
    w.offers[r].fd = -1;
  for (int64_t r = 1; r < 5; r++)
    rs_presence_join(w.presences[r], w.offers, sizeof *w.offers, NULL);
  come(&w, 1, 5, RS_PRESENCE_STEP, 0);
  assert_text(w.presences[2], "not known, of: 0,5-7");
  come(&w, 2, 5, RS_PRESENCE_STEP, 0);
  assert_text(w.presences[2], "1; not known of: 0,5-7");
  assert_non_null(rs_presence_conclude(w.presences[2], RESHARD_ERROR_TIMEOUT, "it ends"));
  assert_int_equal(rs_presence_missing(w.presences[2], ranks), 0); /* there may be more */
  w.offers[1].fd = taken; /* of rank 0: another segment than rank 1 has told of */
  rs_presence_join(w.presences[5], w.offers, sizeof *w.offers, NULL);
  assert_text(w.presences[5], "");
  world_destroy(&w);

  int64_t n = MOST; /* more than a text has room for */
  world_make(&w, n);
  world_join(&w);
  for (int64_t r = 0; r < n; r += 2)
    rs_presence_come(w.presences[r], RS_PRESENCE_STEP, 0);
  char text[RS_PRESENCE_TEXT];
  assert_non_null(strstr(rs_presence_text(w.presences[0], 0, NULL, text), "..."));
  assert_int_equal(rs_presence_absent(w.presences[0], 0, NULL, 8, ranks), 8);
  assert_int_equal(ranks[7], 15);
  world_destroy(&w);

  rs_presence_come(NULL, RS_PRESENCE_STEP, 0);
  rs_presence_leave(NULL);
  assert_text(NULL, "");
  assert_null(rs_presence_reason(NULL));
}

/* --- Ranks that find each other by a name ------------------------------------------------------------------------- */

/* No other process has it. */
static void world_find(world *w, int64_t r, const char *name) {
  const int64_t mine[] = {getpid(), (int64_t)(uintptr_t)name};
  rs_presence_find(w->presences[r], mine, sizeof mine);
  w->offers[r] = rs_presence_own_offer(w->presences[r]);
}

CASE(ranks_find_the_page_of_their_name_alone) {
  static const char name[] = "one", other[] = "other";
  world w;
  int descriptors = count_descriptors();
  world_make(&w, 4);
  world_find(&w, 1, name); /* the first */
  come(&w, 1, 2, RS_PRESENCE_STEP, 0);
  assert_text(w.presences[1], "not come, or out of sight: 0,2-3");
  world_find(&w, 3, name);
  world_find(&w, 0, name);
  assert_text(w.presences[1], "0,3; not come, or out of sight: 2");
  come(&w, 0, 1, RS_PRESENCE_STEP, 0);
  come(&w, 3, 4, RS_PRESENCE_STEP, 0);
  assert_text(w.presences[0], "not come, or out of sight: 2");
  world_find(&w, 2, other); /* of another communicator */
  come(&w, 2, 3, RS_PRESENCE_STEP, 0);
  assert_text(w.presences[2], "not come, or out of sight: 0-1,3");
  assert_text(w.presences[0], "not come, or out of sight: 2");
  come(&w, 0, 2, RS_PRESENCE_STEP, 0); /* the all-gather */
  assert_text(w.presences[0], "3; not come, or out of sight: 2");
  come(&w, 2, 4, RS_PRESENCE_STEP, 0);
  world_join(&w);
  assert_text(w.presences[0], "none: all ranks have come");
  assert_text(w.presences[2], "none: all ranks have come");
  come(&w, 0, 3, RS_PRESENCE_STEP, 0);
  assert_text(w.presences[2], "3");
  assert_int_equal(count_maps_of("reshard-presence"), 4);
  world_join(&w);
  assert_int_equal(count_descriptors(), descriptors);
  world_destroy(&w);

  world_make(&w, 4); /* they end before they have met */
  for (int64_t r = 0; r < 4; r++)
    world_find(&w, r, name);
  come(&w, 0, 4, RS_PRESENCE_STEP, 0);
  rs_presence_leave(w.presences[2]);
  assert_text(w.presences[0], "2");
  assert_string_equal(rs_presence_conclude(w.presences[1], RESHARD_ERROR_TIMEOUT, "rank 2 is gone"), "rank 2 is gone");
  assert_string_equal(rs_presence_reason(w.presences[3]), "rank 2 is gone");
  world_destroy(&w);
  assert_int_equal(count_descriptors(), descriptors);
  assert_int_equal(count_maps_of("reshard-presence"), 0);
}

/* The first rank goes before the others come: one that has met it is found in its place. */
CASE(test_find_without_first) {
  static const char name[] = "without the first";
  world w;
  int descriptors = count_descriptors();
  world_make(&w, 4);
  rs_presence_hold(w.presences[0]); /* of no name */
  world_find(&w, 1, name);
  world_find(&w, 0, name);
  rs_presence_hold(w.presences[0]); /* the first one listens still */
  rs_presence_leave(w.presences[1]);
  rs_presence_destroy(w.presences[1]);
  w.presences[1] = NULL;
  rs_presence_hold(w.presences[0]);
  rs_presence_hold(w.presences[0]);
  world_find(&w, 3, name);
  come(&w, 3, 4, RS_PRESENCE_STEP, 0);
  come(&w, 0, 1, RS_PRESENCE_STEP, 0);
  assert_text(w.presences[3], "1; not come, or out of sight: 2");
  assert_text(w.presences[0], "1; not come, or out of sight: 2");
  assert_non_null(rs_presence_conclude(w.presences[3], RESHARD_ERROR_PEER, "rank 1 is gone"));
  assert_string_equal(rs_presence_reason(w.presences[0]), "rank 1 is gone");
  world_destroy(&w);
  assert_int_equal(count_descriptors(), descriptors);
}

/* All users can list the socket's address: it tells half of the hash, so that nothing follows from it. */
CASE(test_name_is_secret) {
  static const char name[] = "secret";
  const int64_t mine[] = {getpid(), (int64_t)(uintptr_t)name};
  char line[512], address[64];
  int found = 0;
  world w;
  world_make(&w, 1);
  uint64_t hash = rs_hash(w.offers[0].node, mine, sizeof mine);
  world_find(&w, 0, name);
  snprintf(address, sizeof address, "@reshard-presence-%08x", (unsigned)(hash >> 32));
  FILE *list = fopen("/proc/net/unix", "r");
  assert_non_null(list);
  while (fgets(line, sizeof line, list) != NULL) {
    const char *at = strstr(line, address);
    found += at != NULL;
    assert_true(at == NULL || at[strlen(address)] == '\n');
  }
  fclose(list);
  assert_int_equal(found, 1);
  world_destroy(&w);
}

/* A segment does not get shorter while others have it; memory that may do so is none. */
CASE(page_cannot_be_made_shorter) {
  world w;
  world_make(&w, 2);
  assert_int_not_equal(ftruncate(w.offers[0].fd, 0), 0);
  int open = memfd_create("reshard-presence", MFD_CLOEXEC);
  off_t bytes = lseek(w.offers[0].fd, 0, SEEK_END);
  assert_int_equal(ftruncate(open, bytes), 0);
  char segment[4096];
  assert_true(bytes <= (off_t)sizeof segment);
  assert_int_equal(pread(w.offers[0].fd, segment, (size_t)bytes, 0), bytes);
  assert_int_equal(pwrite(open, segment, (size_t)bytes, 0), bytes);
  int32_t sealed = w.offers[0].fd;
  w.offers[0].fd = open;
  rs_presence_join(w.presences[1], w.offers, sizeof *w.offers, NULL);
  assert_text(w.presences[1], "");
  w.offers[0].fd = sealed;
  close(open);
  world_destroy(&w);
}

/* A name that another communicator still has; ranks meet all the same. */
CASE(test_find_again) {
  static const char name[] = "again";
  world first, second;
  int descriptors = count_descriptors();
  world_make(&first, 2);
  world_make(&second, 2);
  for (int64_t r = 0; r < 2; r++)
    world_find(&first, r, name);
  for (int64_t r = 0; r < 2; r++) {
    world_find(&second, r, name);
    come(&second, r, r + 1, RS_PRESENCE_STEP, 0);
    assert_text(second.presences[r], "");
  }
  come(&first, 0, 1, RS_PRESENCE_STEP, 0);
  assert_text(first.presences[0], "1");
  world_join(&second);
  assert_text(second.presences[0], "none: all ranks have come");
  world_join(&second);
  world_destroy(&second);
  world_join(&first);
  world_make(&second, 2); /* it is to be had now, while the segment of the first one is still offered */
  for (int64_t r = 0; r < 2; r++)
    world_find(&second, r, name);
  come(&second, 0, 1, RS_PRESENCE_STEP, 0);
  assert_text(second.presences[0], "1");
  world_destroy(&second);
  world_destroy(&first);
  assert_int_equal(count_descriptors(), descriptors);
}

/* A rank that has no descriptor left for a socket is out of sight until the ranks meet. */
CASE(test_find_without_sockets) {
  static const char name[] = "without";
  world w;
  struct rlimit limit, none;
  world_make(&w, 2);
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
  int next = dup(STDERR_FILENO);
  close(next);
  none = (struct rlimit){(rlim_t)next, limit.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
  world_find(&w, 0, name);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
  world_find(&w, 1, name);
  come(&w, 0, 2, RS_PRESENCE_STEP, 0);
  assert_text(w.presences[0], "");
  assert_text(w.presences[1], "not come, or out of sight: 0");
  world_join(&w);
  come(&w, 0, 1, RS_PRESENCE_STEP, 0);
  assert_text(w.presences[0], "1");
  world_destroy(&w);
}

/* --- Ranks that are processes ------------------------------------------------------------------------------------- */

enum { PROCESSES = 4 };

typedef struct shared {
  rs_presence_offer offers[PROCESSES];
  atomic_int made, joined, steps, read;
} shared;

/* Waits for a state, as long as it takes. */
static void await(const atomic_int *number, int least) {
  while (atomic_load(number) < least)
    sched_yield();
}

/* Rank 1 does not come to the second step; rank 2 comes, and ends there. Ranks 0 and 3 wait. */
static void run_process(shared *s, int64_t r) {
  rs_presence *presence;
  char text[RS_PRESENCE_TEXT];
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* where another fails, this one would wait for ever */
  CHILD_CHECK(rs_presence_make(PROCESSES, r, &presence) == RESHARD_SUCCESS);
  s->offers[r] = rs_presence_own_offer(presence);
  s->made++;
  await(&s->made, PROCESSES);
  rs_presence_join(presence, s->offers, sizeof *s->offers, NULL);
  s->joined++;
  await(&s->joined, PROCESSES);
  if (r == 1) {
    await(&s->read, 2);
    _exit(0);
  }
  rs_presence_come(presence, RS_PRESENCE_STEP, 0);
  s->steps++;
  if (r == 2)
    _exit(0);
  await(&s->steps, 3);
  while (strcmp(rs_presence_text(presence, 0, NULL, text), "1-2") !=
         0) { /* rank 2 ends, and its parent does not wait for it */
    CHILD_CHECK(strcmp(text, "1") == 0);
    sched_yield();
  }
  const char *reason = rs_presence_conclude(presence, RESHARD_ERROR_TIMEOUT, text);
  CHILD_CHECK(reason != NULL && strcmp(reason, "1-2") == 0);
  int64_t ranks[PROCESSES];
  CHILD_CHECK(rs_presence_missing(presence, ranks) == 2 && ranks[0] == 1 && ranks[1] == 2);
  s->read++;
  await(&s->read, 2); /* one that ends is absent, too */
  rs_presence_destroy(presence);
  _exit(0);
}

CASE(processes_see_who_has_come) {
  pid_t children[PROCESSES];
  shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(s, MAP_FAILED);
  for (int64_t r = 0; r < PROCESSES; r++) {
    fflush(NULL);
    children[r] = fork();
    assert_true(children[r] >= 0);
    if (children[r] == 0)
      run_process(s, r);
  }
  for (int64_t r = PROCESSES - 1; r >= 0; r--) /* rank 2 has ended and is not waited for while others look */
    assert_true(child_is_good(children[r]));
  munmap(s, sizeof *s);
}

/* Rank r comes as number r. Rank 0, at whose socket the others find it, ends. */
static void run_finder(shared *s, int64_t r, const int64_t *name) {
  rs_presence *presence;
  char text[RS_PRESENCE_TEXT];
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  CHILD_CHECK(rs_presence_make(PROCESSES, r, &presence) == RESHARD_SUCCESS);
  await(&s->made, (int)r);
  rs_presence_find(presence, name, 2 * sizeof *name);
  s->made++;
  rs_presence_come(presence, RS_PRESENCE_STEP, 0);
  s->steps++;
  await(&s->steps, PROCESSES - 1);
  if (r == 0)
    _exit(0);
  while (strcmp(rs_presence_text(presence, 0, NULL, text), "0; not come, or out of sight: 3") != 0) {
    CHILD_CHECK(strcmp(text, "not come, or out of sight: 3") == 0);
    sched_yield();
  }
  s->read++;
  await(&s->read, 2);
  rs_presence_destroy(presence);
  _exit(0);
}

CASE(processes_that_find_each_other_have_one_page) {
  pid_t children[PROCESSES - 1];
  const int64_t name[] = {getpid(), rs_now_ns()};
  shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(s, MAP_FAILED);
  for (int64_t r = 0; r < PROCESSES - 1; r++) {
    fflush(NULL);
    children[r] = fork();
    assert_true(children[r] >= 0);
    if (children[r] == 0)
      run_finder(s, r, name);
  }
  for (int64_t r = PROCESSES - 2; r >= 0; r--) /* rank 0 has ended and is not waited for while others look */
    assert_true(child_is_good(children[r]));
  munmap(s, sizeof *s);
}

/* Another user that listens at the name is not believed, also where this one may see what it has. */
CASE(test_another_user) {
  enum { NOBODY = 65534 };
  const int64_t name[] = {getpid(), rs_now_ns()};
  if (geteuid() != 0)
    skip();
  shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(s, MAP_FAILED);
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  rs_presence *presence;
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    CHILD_CHECK(seteuid(NOBODY) == 0);
    CHILD_CHECK(rs_presence_make(2, 0, &presence) == RESHARD_SUCCESS);
    rs_presence_find(presence, name, sizeof name);
    s->made++;
    await(&s->read, 1);
    _exit(0);
  }
  await(&s->made, 1);
  assert_int_equal(rs_presence_make(2, 1, &presence), RESHARD_SUCCESS);
  rs_presence_find(presence, name, sizeof name);
  assert_text(presence, "");
  s->read++;
  assert_true(child_is_good(child));
  rs_presence_destroy(presence);
  munmap(s, sizeof *s);
}

RUN_CASES
