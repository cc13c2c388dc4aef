/* A file that cannot be read, or has become shorter, in the middle of a load: at each read in turn, by ranks that read
 * together and by ranks of which each reads its own. Nobody hangs, all ranks have one error, and what state_dict.h says
 * of the tensors holds: each element is as it was or as it was saved, and before the first byte of data all are as they
 * were; other leaves are as they were; a load after that succeeds. */
#define _GNU_SOURCE
#ifdef RS_HAVE_JANSSON
#include "support/fixtures/case.h"
#include "support/fixtures/scratch.h"
#include "support/fixtures/sharded_ranks.h"

#include <reshard/state_dict.h>

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The victim-th read of a file fails, or finds its end. */
static atomic_llong reads, victim;
static atomic_bool ends, fired;

ssize_t pread(int fd, void *to, size_t n, off_t offset) {
  if (atomic_fetch_add(&reads, 1) != atomic_load(&victim))
    return syscall(SYS_pread64, fd, to, n, offset);
  atomic_store(&fired, true);
  if (atomic_load(&ends))
    return 0;
  errno = EIO;
  return -1;
}

static void arm(int64_t k, bool end) {
  atomic_store(&reads, 0);
  atomic_store(&ends, end);
  atomic_store(&fired, false);
  atomic_store(&victim, k);
}

enum { RANKS = 3, TENSORS = 3, SAVED = 5, BEFORE = 6 };

typedef struct fixture {
  const char *path;
  reshard_layout from[TENSORS], to[TENSORS];
  bool together, saves, good;
  int64_t old[RANKS], new[RANKS]; /* arrays that are all as before, or all as saved */
} fixture;

static reshard_tree make_state(sharded_ranks *p, int64_t r, const fixture *s, reshard_sharded_tensor *tensors) {
  static const reshard_properties i64 = {.dtype = RESHARD_I64};
  reshard_tree state = NULL, leaf = NULL;
  p->wrong[r] += reshard_tree_dict(&state) != RESHARD_SUCCESS;
  for (int i = 0; i < TENSORS; i++) {
    char key[16];
    snprintf(key, sizeof key, "t%d", i);
    p->wrong[r] += reshard_sharded_tensor_empty(p->sharders[r], s->saves ? s->from[i] : s->to[i], &i64, NULL,
                                                &tensors[i]) != RESHARD_SUCCESS;
    sharded_fill(tensors[i], r, s->saves ? SAVED : BEFORE);
    p->wrong[r] += reshard_state_sharded(tensors[i], &leaf) != RESHARD_SUCCESS ||
                   reshard_tree_set(state, key, leaf) != RESHARD_SUCCESS;
    reshard_tree_release(leaf);
  }
  p->wrong[r] += reshard_tree_int(s->saves ? SAVED : BEFORE, &leaf) != RESHARD_SUCCESS ||
                 reshard_tree_set(state, "step", leaf) != RESHARD_SUCCESS;
  reshard_tree_release(leaf);
  return state;
}

/* Elements that are neither as before nor as saved: of two copies that are all the one and all the other. */
static int64_t strange(reshard_sharded_tensor tensor, int64_t r) {
  reshard_layout layout = reshard_sharded_tensor_layout(tensor);
  int64_t wrong = 0;
  for (int64_t i = 0; i < reshard_sharded_tensor_local_count(tensor); i++) {
    reshard_tensor array = NULL, sides[2] = {NULL};
    reshard_tensor_info info, of[2];
    reshard_sharded_tensor_local(tensor, i, &array, NULL);
    reshard_tensor_get_info(array, &info);
    for (int k = 0; k < 2; k++) {
      reshard_tensor_create(info.dtype, info.ndim, info.shape, &sides[k]);
      array_fill(layout, r, i, sides[k], k == 0 ? BEFORE : SAVED);
      reshard_tensor_get_info(sides[k], &of[k]);
    }
    for (int64_t e = 0; e < info.elements; e++) {
      int64_t is = ((int64_t *)info.data)[e];
      wrong += is != ((int64_t *)of[0].data)[e] && is != ((int64_t *)of[1].data)[e];
    }
    reshard_tensor_release(sides[0]);
    reshard_tensor_release(sides[1]);
  }
  return wrong;
}

static void read_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  fixture *s = p->user;
  reshard_sharded_tensor tensors[TENSORS] = {NULL};
  reshard_tree state = make_state(p, r, s, tensors), leaf = NULL;
  const reshard_state_load_options options = {.size = RESHARD_STATE_LOAD_OPTIONS_INIT,
                                              .threads = s->together ? 1 : 1 + (int)r}; /* else each reads its own */
  reshard_status status = s->saves ? reshard_state_save(p->sharders[r], state, s->path, NULL, NULL)
                                   : reshard_state_load(p->sharders[r], state, s->path, &options, NULL);
  int64_t number = 0;
  rank_result_set(&p->results[r], status);
  p->wrong[r] += reshard_tree_find(state, "step", &leaf) != RESHARD_SUCCESS ||
                 reshard_tree_get_int(leaf, &number) != RESHARD_SUCCESS ||
                 number != (s->saves || status == RESHARD_SUCCESS ? SAVED : BEFORE);
  s->old[r] = s->new[r] = 0;
  for (int i = 0; i < TENSORS; i++) {
    p->wrong[r] += strange(tensors[i], r);
    s->old[r] += sharded_check(tensors[i], r, BEFORE) == 0;
    s->new[r] += sharded_check(tensors[i], r, SAVED) == 0;
    reshard_sharded_tensor_release(tensors[i]);
  }
  reshard_tree_release(state);
}

static void open_fixture(fixture *s, int64_t rows) {
  const int64_t shapes[TENSORS][2] = {{rows, 9}, {6, 31}, {5 * rows, 4}};
  static const char *const from[TENSORS] = {"chunk(0)", "chunk(1;2,0,1)", "rank(1)"};
  static const char *const to[TENSORS] = {"chunk(1)", "cyclic(3x1;2x2)", "chunk(0;1,2,0)"};
  *s = (fixture){.path = scratch_path("checkpoint"), .saves = true};
  for (int i = 0; i < TENSORS; i++) {
    s->from[i] = layout_from_text(from[i], 2, shapes[i], RANKS);
    s->to[i] = layout_from_text(to[i], 2, shapes[i], RANKS);
  }
}

static void close_fixture(fixture *s) {
  for (int i = 0; i < TENSORS; i++) {
    reshard_layout_release(s->from[i]);
    reshard_layout_release(s->to[i]);
  }
}

/* Tensors that failed reads left as they were, and those that they filled in part. */
typedef struct tally {
  int untouched, touched;
} tally;

/* The k-th read fails; false where there are not so many. Then the load is made again. */
static bool fail_at(sharded_ranks *p, fixture *s, int64_t k, bool end, tally *t) {
  arm(k, end);
  sharded_ranks_run(p, read_body, s);
  bool failed = atomic_load(&fired);
  arm(-1, false);
  sharded_ranks_assert(p, failed ? p->results[0].status : RESHARD_SUCCESS, failed ? "checkpoint/" : NULL);
  if (!failed)
    return false;
  int64_t as_before = 0;
  for (int64_t r = 0; r < RANKS; r++)
    as_before += s->old[r];
  bool untouched = as_before == RANKS * TENSORS;
  t->untouched += untouched;
  t->touched += !untouched;
  /* data that cannot be read is an error of the system; so is a header, but one that is cut off is malformed */
  if (p->results[0].status != RESHARD_ERROR_SYSTEM)
    assert_true(p->results[0].status == RESHARD_ERROR_INVALID && untouched && end);
  sharded_ranks_run(p, read_body, s);
  sharded_ranks_assert(p, RESHARD_SUCCESS, NULL);
  for (int64_t r = 0; r < RANKS; r++)
    assert_int_equal(s->new[r], TENSORS);
  return true;
}

static void save_rows(sharded_ranks *p, fixture *s, int64_t rows) {
  arm(-1, false);
  open_fixture(s, rows);
  sharded_ranks_open(p, RANKS, NULL);
  sharded_ranks_run(p, read_body, s);
  sharded_ranks_assert(p, RESHARD_SUCCESS, NULL);
  s->saves = false;
}

static void state_drop(sharded_ranks *p, fixture *s) {
  sharded_ranks_close(p);
  close_fixture(s);
  scratch_remove("checkpoint");
}

CASE(failing_read_ends_the_load_on_all_ranks) {
  sharded_ranks p;
  fixture s;
  save_rows(&p, &s, 14);
  for (int together = 0; together < 2; together++)
    for (int end = 0; end < 2; end++) {
      tally t = {0};
      s.together = together;
      for (int64_t k = 0; fail_at(&p, &s, k, end, &t); k++)
        continue;
      assert_true(t.untouched > 0);
      assert_true(together || t.touched > 0); /* together: so little is one batch, and is there whole or not at all */
    }
  state_drop(&p, &s);
}

/* More than the ranks read in one piece. */
CASE(large_reads_are_made_in_pieces) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  skip(); /* many bytes, and nothing new for a sanitizer */
#endif
  sharded_ranks p;
  fixture s;
  tally t = {0};
  save_rows(&p, &s, 300000); /* five batches, for three threads */
  s.together = true;
  arm(-1, false);
  sharded_ranks_run(&p, read_body, &s);
  sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  int64_t all = atomic_load(&reads);
  assert_true(fail_at(&p, &s, all - 2, false, &t));
  assert_int_equal(t.touched, 1);
  state_drop(&p, &s);
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)

#else

int main(void) { return 77; }

#endif
