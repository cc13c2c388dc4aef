/* The thread of a rank that is cancelled at each of its reads and writes in turn, in a save and in a load: it ends in a
 * meeting, if at all, and the others hear of it there. Between meetings they would wait for it in vain. */
#define _GNU_SOURCE
#ifdef RS_HAVE_JANSSON
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/fixtures/scratch.h"
#include "support/fixtures/sharded_ranks.h"

#include <reshard/state_dict.h>

#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Memory that a call takes and that its thread, cancelled in it, cannot give back: comm.h says so. */
const char *__lsan_default_options(void);
const char *__lsan_default_options(void) { return "print_suppressions=0"; }
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:reshard_state_save\nleak:reshard_state_load\n"; }

enum { RANKS = 3, VICTIM = 1, SAVED = 5, BEFORE = 6 };

/* Reads and writes of this thread until it is cancelled; below 0: it is not. */
static _Thread_local int64_t left = -1;
static bool fired; /* by the victim's thread */

static void count_call(void) {
  if (left-- != 0)
    return;
  fired = true;
  pthread_cancel(pthread_self());
  pthread_testcancel(); /* as in the call that this stands for */
}

ssize_t pread(int fd, void *to, size_t n, off_t offset) {
  count_call();
  return syscall(SYS_pread64, fd, to, n, offset);
}

ssize_t pwrite(int fd, const void *from, size_t n, off_t offset) {
  count_call();
  return syscall(SYS_pwrite64, fd, from, n, offset);
}

typedef struct fixture {
  const char *path;
  reshard_layout layout;
  int64_t at; /* the victim's read or write; below 0: none */
  bool saves;
  bool returned[RANKS];
} fixture;

/* Objects of a rank's thread, which it drops also where it ends early. */
typedef struct own {
  reshard_sharded_tensor tensor;
  reshard_tree leaf, state;
} own;

static void drop_own(void *user) {
  own *o = user;
  reshard_tree_release(o->state);
  reshard_tree_release(o->leaf);
  reshard_sharded_tensor_release(o->tensor);
}

static void cancel_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  fixture *s = p->user;
  own o = {NULL};
  static const reshard_properties i64 = {.dtype = RESHARD_I64};
  const reshard_state_save_options save = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .threads = 1, .force = 1};
  const reshard_state_load_options load = {.size = RESHARD_STATE_LOAD_OPTIONS_INIT,
                                           .threads = r == 0 ? 2 : 1}; /* each reads its own */
  pthread_cleanup_push(drop_own, &o);
  p->wrong[r] += reshard_sharded_tensor_empty(p->sharders[r], s->layout, &i64, NULL, &o.tensor) != RESHARD_SUCCESS ||
                 reshard_tree_dict(&o.state) != RESHARD_SUCCESS ||
                 reshard_state_sharded(o.tensor, &o.leaf) != RESHARD_SUCCESS ||
                 reshard_tree_set(o.state, "t", o.leaf) != RESHARD_SUCCESS;
  sharded_fill(o.tensor, r, s->saves ? SAVED : BEFORE);
  left = r == VICTIM ? s->at : -1;
  reshard_status status = s->saves ? reshard_state_save(p->sharders[r], o.state, s->path, &save, NULL)
                                   : reshard_state_load(p->sharders[r], o.state, s->path, &load, NULL);
  left = -1;
  rank_result_set(&p->results[r], status);
  if (status == RESHARD_SUCCESS)
    p->wrong[r] += sharded_check(o.tensor, r, SAVED);
  s->returned[r] = true;
  pthread_cleanup_pop(1);
}

/* The ranks' call with the victim cancelled there. Returns true when it has ended in its call. */
static bool run_case(fixture *s, int64_t at) {
  sharded_ranks p;
  fired = false;
  s->at = at;
  s->path = scratch_path("checkpoint");
  memset(s->returned, 0, sizeof s->returned);
  sharded_ranks_open(&p, RANKS, NULL);
  sharded_ranks_run(&p, cancel_body, s);
  bool ended = !s->returned[VICTIM];
  assert_true(!ended || fired);
  for (int64_t r = 0; r < RANKS; r++) {
    assert_int_equal(p.wrong[r], 0);
    if (r == VICTIM && ended)
      continue;
    assert_true(s->returned[r]);
    if (p.results[r].status != (ended ? RESHARD_ERROR_PEER : RESHARD_SUCCESS))
      fail_msg("%s, call %d: rank %d: %s", s->saves ? "save" : "load", (int)at, (int)r, p.results[r].text);
    assert_true(!ended || strstr(p.results[r].text, "the thread of rank 1 was cancelled") != NULL);
  }
  sharded_ranks_close(&p);
  assert_string_equal(scratch_list(""), "checkpoint"); /* what is not published is removed */
  return ended;
}

static void test_each(void **state) {
  (void)state;
  const int64_t shape[2] = {30, 7};
  fixture s = {.layout = layout_from_text("chunk(0)", 2, shape, RANKS)};
  for (int saves = 1; saves >= 0; saves--) {
    int64_t ended = 0, at = 0;
    s.saves = saves;
    assert_false(run_case(&s, -1));
    do
      ended += run_case(&s, at++);
    while (fired);
    assert_true(ended > 0);
  }
  reshard_layout_release(s.layout);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_each)};
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

#else

int main(void) { return 77; }

#endif
