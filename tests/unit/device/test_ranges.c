/* Ranges for NVTX, as a tool hears them (tests/nvtx): each thread's are inside of one another and all of them end, also
 * after errors; and they say what they are of. Skipped where NVTX_INJECTION64_PATH names no tool. */
#define _GNU_SOURCE
#include "nvtx/nvtx_record.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scratch.h"
#include "support/fixtures/sharded_ranks.h"
#include "support/fixtures/trees.h"

#include "bench/cli/util.h"

#include <reshard/state_dict.h>

#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 3 };

static nvtx_recorded_function recorded;

/* The ranges from the first-th on, checked: all have ended, in the thread that began them, inside of their parents. */
typedef struct heard {
  const nvtx_range *range;
  int64_t first, n;
} heard;

static int64_t count_ranges(void) {
  int64_t n, unbegun;
  (void)recorded("reshard", &n, &unbegun);
  return n;
}

static heard hear_from(int64_t first) {
  heard h = {.first = first};
  int64_t unbegun;
  h.range = recorded("reshard", &h.n, &unbegun);
  assert_int_equal(unbegun, 0);
  for (int64_t i = 0; i < h.n; i++) {
    const nvtx_range *r = &h.range[i], *in = r->parent >= 0 ? &h.range[r->parent] : NULL;
    assert_true(r->begin < r->end);
    assert_true(r->registered);
    if (in != NULL)
      assert_true(in->begin < r->begin && r->end < in->end && in->thread == r->thread);
  }
  return h;
}

static const nvtx_range *parent_of(const heard *h, const nvtx_range *r) {
  return r->parent >= 0 ? &h->range[r->parent] : NULL;
}

/* True where a range of that name is around r. */
static bool is_within(const heard *h, const nvtx_range *r, const char *name) {
  for (r = parent_of(h, r); r != NULL; r = parent_of(h, r))
    if (strcmp(r->name, name) == 0)
      return true;
  return false;
}

/* The number of ranges of a name since the first; the last of them, if there is one, goes to *last. */
static int64_t find_ranges(const heard *h, const char *name, const nvtx_range **last) {
  int64_t n = 0;
  for (int64_t i = h->first; i < h->n; i++)
    if (strcmp(h->range[i].name, name) == 0) {
      n++;
      if (last != NULL)
        *last = &h->range[i];
    }
  return n;
}

/* --- Transfers ---------------------------------------------------------------------------------------------------- */

typedef struct moved {
  reshard_path path;
  int64_t limit, rows; /* rows of 100 columns */
  bool wrong;          /* rank 1 moves another type: all ranks hear of it */
  bool back;           /* from columns to rows */
  int64_t thread[RANKS];
} moved;

static void move_body(void *user, int64_t rank) {
  sharded_ranks *p = user;
  moved *m = p->user;
  const int64_t shape[] = {m->rows, 100}, row[] = {m->rows / RANKS, 100}, column[] = {m->rows, rank < 2 ? 34 : 32};
  reshard_layout before = layout_from_text(m->back ? "chunk(1)" : "chunk(0)", 2, shape, RANKS),
                 after = layout_from_text(m->back ? "chunk(0)" : "chunk(1)", 2, shape, RANKS);
  reshard_dtype dtype = m->wrong && rank == 1 ? RESHARD_I32 : RESHARD_F32;
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = before, .dst = after, .dtype = dtype};
  reshard_plan_options limited = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = m->limit};
  reshard_transfer_options on_path = {.size = RESHARD_TRANSFER_OPTIONS_INIT, .path = m->path};
  reshard_tensor src, dst;
  reshard_tensor_info from, to;
  reshard_plan plan;
  reshard_transfer transfer = NULL;
  m->thread[rank] = gettid();
  CLI_TRY("", reshard_tensor_create(RESHARD_F32, 2, m->back ? column : row, &src));
  CLI_TRY("", reshard_tensor_create(RESHARD_F32, 2, m->back ? row : column, &dst));
  CLI_TRY("", reshard_tensor_get_info(src, &from));
  CLI_TRY("", reshard_tensor_get_info(dst, &to));
  array_fill(before, rank, 0, src, 1);
  void *sources[] = {from.data};
  void *destinations[] = {to.data};
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, .src = sources, .dst = destinations};
  CLI_TRY("", reshard_plan_create(1, &entry, rank, &limited, &plan));
  rank_result_set(&p->results[rank], reshard_transfer_create(plan, p->comms[rank], &arrays, &on_path, &transfer));
  if (transfer != NULL) {
    CLI_TRY("", reshard_transfer_rebind(transfer, &arrays));
    rank_result_set(&p->results[rank], reshard_execute(transfer, NULL));
    p->wrong[rank] += array_check(after, rank, 0, dst, 1);
  }
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
  reshard_tensor_release(dst);
  reshard_tensor_release(src);
  reshard_layout_release(after);
  reshard_layout_release(before);
}

static heard move(moved *m, reshard_status status, const char *part) {
  int64_t first = count_ranges();
  sharded_ranks_check(RANKS, NULL, move_body, m, status, part);
  return hear_from(first);
}

/* One range of the name for each rank, on its own thread. */
static const nvtx_range *one_of_each(const heard *h, const moved *m, const char *name, int64_t each) {
  const nvtx_range *last = NULL;
  assert_int_equal(find_ranges(h, name, &last), each * RANKS);
  for (int r = 0; r < RANKS; r++) {
    int64_t mine = 0;
    for (int64_t i = h->first; i < h->n; i++)
      mine += h->range[i].thread == m->thread[r] && strcmp(h->range[i].name, name) == 0;
    assert_int_equal(mine, each);
  }
  return last;
}

static void check_calls(const heard *h, const moved *m) {
  int64_t bytes = m->rows * 100 * 4;
  assert_int_equal(one_of_each(h, m, "plan", 1)->tensors, 1);
  static const char *const calls[] = {"create", "execute"};
  for (int i = 0; i < 2; i++) {
    const nvtx_range *r = one_of_each(h, m, calls[i], 1);
    assert_true(r->bytes == bytes && (!r->schema || (r->peers == RANKS - 1 && r->tensors == 1)));
  }
  assert_true(one_of_each(h, m, "bind", 2)->bytes == bytes); /* of create, and of rebind */
  assert_true(find_ranges(h, "all-gather", NULL) >= RANKS && find_ranges(h, "meeting", NULL) >= RANKS);
}

CASE(direct_path_has_its_ranges) {
  moved m = {RESHARD_PATH_DIRECT, 0, 120, false, false, {0}};
  const nvtx_range *copy = NULL;
  heard h = move(&m, RESHARD_SUCCESS, NULL);
  check_calls(&h, &m);
  assert_int_equal(find_ranges(&h, "copy", &copy), 1);
  assert_true(is_within(&h, copy, "execute"));
  assert_int_equal(find_ranges(&h, "exchange", NULL), 0);
}

CASE(packed_path_has_its_ranges) {
  moved m = {RESHARD_PATH_PACKED, 16384, 600, false, false, {0}};
  const nvtx_range *last = NULL;
  heard h = move(&m, RESHARD_SUCCESS, NULL);
  check_calls(&h, &m);
  assert_int_equal(find_ranges(&h, "self_copy", &last), 1);
  assert_true(is_within(&h, last, "execute"));
  int64_t rounds = find_ranges(&h, "exchange", &last), sent = 0;
  assert_true(rounds > 1 && is_within(&h, last, "execute"));
  assert_true(!last->schema || last->round == rounds - 1);
  assert_true(find_ranges(&h, "pack", &last) > 0 && is_within(&h, last, "exchange"));
  for (int64_t i = h.first; i < h.n; i++)
    sent += strcmp(h.range[i].name, "send") == 0 ? h.range[i].bytes : 0;
  assert_int_equal(sent, 600 * 100 * 4 * 2 / 3);        /* all but what ranks keep */
  assert_int_equal(find_ranges(&h, "unpack", NULL), 0); /* it lands in place; and back */
  m.back = true;
  h = move(&m, RESHARD_SUCCESS, NULL);
  assert_true(find_ranges(&h, "unpack", &last) > 0 && is_within(&h, last, "exchange"));
  assert_int_equal(find_ranges(&h, "pack", NULL), 0);
}

/* Work that is large enough for copy threads is on theirs, and the rank waits for them. */
CASE(copy_threads_have_their_ranges) {
  moved m = {RESHARD_PATH_DIRECT, 0, 9000, false, false, {0}};
  int64_t elsewhere = 0;
  cpu_set_t cores;
  for (int i = 0; i < 1000 && elsewhere == 0; i++) { /* a thread that wakes late takes no share */
    heard h = move(&m, RESHARD_SUCCESS, NULL);
    assert_true(find_ranges(&h, "wait", NULL) > 0);
    for (int64_t k = h.first; k < h.n; k++)
      elsewhere += strcmp(h.range[k].name, "share") == 0 && h.range[k].parent < 0;
  }
  assert_true(elsewhere > 0 || (sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) == 1));
}

CASE(ranges_end_after_errors) {
  moved m = {RESHARD_PATH_PACKED, 0, 120, true, false, {0}};
  heard h = move(&m, RESHARD_ERROR_MISMATCH, "dtype");
  assert_int_equal(find_ranges(&h, "create", NULL), RANKS);
  assert_int_equal(find_ranges(&h, "execute", NULL), 0);
  int64_t first = count_ranges();
  reshard_plan plan;
  reshard_entry entry = {RESHARD_ENTRY_INIT, .dtype = RESHARD_F32};
  assert_int_not_equal(reshard_plan_create(1, &entry, 0, NULL, &plan), RESHARD_SUCCESS);
  h = hear_from(first);
}

/* --- Storage and checkpoints -------------------------------------------------------------------------------------- */

CASE(storage_has_its_ranges) {
  const int64_t shape[] = {300};
  const nvtx_range *alloc = NULL, *freed = NULL;
  int64_t first = count_ranges();
  reshard_tensor t;
  GOOD(reshard_tensor_create(RESHARD_F32, 1, shape, &t));
  reshard_tensor_release(t);
  heard h = hear_from(first);
  assert_int_equal(find_ranges(&h, "alloc", &alloc), find_ranges(&h, "free", &freed));
  assert_true(alloc != NULL && alloc->bytes >= 1200 && freed->bytes >= 1200);
}

CASE(saves_and_loads_have_their_ranges) {
  reshard_comm comm;
  reshard_sharder sharder;
  reshard_tree tree = set(dict(), "weight", leaf_of(floats(50)));
  char path[256];
  strcpy(path, scratch_path("ranges"));
  GOOD(reshard_comm_create_local(1, NULL, &comm));
  GOOD(reshard_sharder_create(comm, NULL, &sharder));
  int64_t first = count_ranges();
  GOOD(reshard_state_save(sharder, tree, path, NULL, NULL));
  GOOD(reshard_state_load(sharder, tree, path, NULL, NULL));
  FAILS_WITH(reshard_state_load(sharder, tree, scratch_path("none"), NULL, NULL), RESHARD_ERROR_INVALID, "none");
  heard h = hear_from(first);
  assert_int_equal(find_ranges(&h, "save", NULL), 1);
  assert_true(find_ranges(&h, "load", NULL) >= 1);
  reshard_tree_release(tree);
  reshard_sharder_destroy(sharder);
  reshard_comm_destroy(comm);
}

int main(void) {
  const char *tool = getenv("NVTX_INJECTION64_PATH");
  void *library = tool != NULL ? dlopen(tool, RTLD_NOW) : NULL;
  recorded = library != NULL ? (nvtx_recorded_function)dlsym(library, "nvtx_recorded") : NULL;
  if (recorded == NULL) {
    printf("skipped: NVTX_INJECTION64_PATH names no recorder: built without NVTX's headers\n");
    return 77;
  }
  return case_list_run(__FILE__, scratch_setup, scratch_teardown);
}
