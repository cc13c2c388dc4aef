/* Ranks that ask for different things. All get the same status and the same text, which names ranks and the first field
 * that differs, before any byte moves. The communicator goes on. */
#include "support/fixtures/case.h"
#include "support/reshards/rows_to_columns.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENCE = 60000, RANKS = 3 };

static const reshard_path paths[2] = {RESHARD_PATH_DIRECT, RESHARD_PATH_PACKED};

/* Contents of a rank's plan. */
typedef struct wish {
  const char *src, *dst; /* NULL: chunk(0), chunk(1) */
  int64_t columns;       /* 0: MATRIX_COLUMNS */
  reshard_dtype dtype;   /* NONE: u32 */
  const int64_t *offset, *extent;
  const int *permutation;
  int64_t limit;
  const int64_t *nodes;
  int entries; /* 0: one */
} wish;

static const int64_t origin[2] = {0, 0}, one_down[2] = {1, 0}, short_extent[2] = {119, 200}, square[2] = {120, 120};
static const int64_t same_node[3] = {0, 0, 0}, other_nodes[3] = {0, 1, 0};
static const int swapped[2] = {1, 0};

static reshard_plan plan_of(const wish *w, int64_t rank) {
  const int64_t shape[2] = {MATRIX_ROWS, w->columns > 0 ? w->columns : MATRIX_COLUMNS};
  reshard_layout src, dst;
  reshard_plan plan;
  assert_int_equal(reshard_layout_parse(w->src != NULL ? w->src : "chunk(0)", 2, shape, RANKS, &src), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse(w->dst != NULL ? w->dst : "chunk(1)", 2, shape, RANKS, &dst), RESHARD_SUCCESS);
  reshard_entry e = {RESHARD_ENTRY_INIT,
                     .src = src,
                     .dst = dst,
                     .dtype = w->dtype != RESHARD_DTYPE_NONE ? w->dtype : RESHARD_U32,
                     .src_offset = w->offset,
                     .src_extent = w->extent,
                     .dst_offset = w->offset,
                     .dst_extent = w->extent,
                     .permutation = w->permutation};
  reshard_entry entries[2] = {e, e};
  reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = w->limit, .nodes = w->nodes};
  if (reshard_plan_create(w->entries > 0 ? w->entries : 1, entries, rank, &options, &plan) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  reshard_layout_release(src);
  reshard_layout_release(dst);
  return plan;
}

static const struct {
  const char *what, *field, *values[2]; /* of all, of the odd one */
  wish all, odd;
} cases[] = {
    {"columns", "'tensor': shape", {"[120,200]", "[120,190]"}, {0}, {.columns = 190}},
    {"number of tensors", NULL, {NULL}, {0}, {.entries = 2}},
    {"source", "'tensor': source layout", {"chunk(0;0-2)", "chunk(0;0,2-1)"}, {0}, {.src = "chunk(0;0,2,1)"}},
    {"destination",
     "'tensor': destination layout",
     {"chunk(1;0-2)", "cyclic(1x3@0-2;120x1)"},
     {0},
     {.dst = "cyclic(1x3;120x1)"}},
    {"boxes",
     "'tensor': source layout",
     {"boxes(0:[0,0]+[40,200];1:[40,0]+[40,200];2:[80,0]+[40,200])",
      "boxes(0:[0,0]+[40,200];1:[40,0]+[50,200];2:[90,0]+[30,200])"},
     {.src = "boxes(0:[0,0]+[40,200];1:[40,0]+[40,200];2:[80,0]+[40,200])"},
     {.src = "boxes(0:[0,0]+[40,200];1:[40,0]+[50,200];2:[90,0]+[30,200])"}},
    {"order of replicas",
     "'tensor': destination layout",
     {"mesh(3@0-2;R)", "mesh(3@2-0;R)"},
     {.dst = "mesh(3;R)"},
     {.dst = "mesh(3@2-0;R)"}},
    {"dtype of equal width", "'tensor': dtype", {"u32", "f32"}, {0}, {.dtype = RESHARD_F32}},
    {"dtype of another width", "'tensor': dtype", {"u32", "u8"}, {0}, {.dtype = RESHARD_U8}},
    {"region",
     "'tensor': source region",
     {"[0,120)x[0,200)", "[1,120)x[0,200)"},
     {0},
     {.offset = one_down, .extent = short_extent}},
    {"permutation",
     "'tensor': destination region",
     {"[0,120)x[0,120) of dims 0,1", "[0,120)x[0,120) of dims 1,0"},
     {.offset = origin, .extent = square},
     {.offset = origin, .extent = square, .permutation = swapped}},
    {"limit", "workspace_limit", {"default", "12288"}, {0}, {.limit = 12288}},
    {"no limit", "workspace_limit", {"default", "none"}, {0}, {.limit = RESHARD_NO_LIMIT}},
    {"no limit of all", "workspace_limit", {"none", "16384"}, {.limit = RESHARD_NO_LIMIT}, {.limit = 16384}},
    {"another limit", "workspace_limit", {"12288", "12544"}, {.limit = 12288}, {.limit = 12544}},
    {"node map", "nodes", {"none", "[0,0,0]"}, {0}, {.nodes = same_node}},
    {"another node map", "node of rank 1:", {"0", "1"}, {.nodes = same_node}, {.nodes = other_nodes}},
    {"all at once",
     "'tensor': shape",
     {"[120,200]", "[120,190]"},
     {0},
     {.src = "chunk(1)", .columns = 190, .dtype = RESHARD_U16, .limit = 12288}},
};

/* Text that all ranks get when one of them has the odd plan. */
static const char *text_of(char text[512], size_t i, int64_t odd) {
  int other = odd == 0 ? 1 : (int)odd;
  if (cases[i].field == NULL)
    snprintf(text, 512, "tensor 1 is on rank %d, and not on rank %d (%d tensors on rank 0, %d on rank %d)", (int)odd,
             odd == 0 ? 1 : 0, odd == 0 ? 2 : 1, odd == 0 ? 1 : 2, other);
  else
    snprintf(text, 512, "%s %s on rank 0, %s on rank %d", cases[i].field, cases[i].values[odd == 0],
             cases[i].values[odd != 0], other);
  return text;
}

static void replace_plans(rows_to_columns *s, const wish *all, const wish *odd, int64_t odd_rank) {
  for (int64_t r = 0; r < RANKS; r++) {
    reshard_plan_destroy(s->plans[r]);
    s->plans[r] = plan_of(r == odd_rank ? odd : all, r);
  }
}

CASE(first_field_that_differs_is_named_on_all_ranks) {
  for (int p = 0; p < 2; p++)
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
      for (int64_t odd = 0; odd < RANKS; odd++) {
        /* memory enough for a replicated destination, or a second one */
        static uint32_t room[RANKS][3][MATRIX_ROWS * MATRIX_COLUMNS];
        rows_to_columns s;
        rows_to_columns_open(&s, RANKS, PATIENCE, paths[p], NULL);
        replace_plans(&s, &cases[i].all, &cases[i].odd, odd);
        void *from[RANKS][2], *to[RANKS][2];
        memset(room, 0x5a, sizeof room);
        for (int64_t r = 0; r < RANKS; r++) {
          from[r][0] = from[r][1] = room[r][0];
          to[r][0] = room[r][1];
          to[r][1] = room[r][2];
          s.arrays[r] = (reshard_arrays){RESHARD_ARRAYS_INIT, from[r], to[r], NULL, NULL, 0, 0};
        }
        rows_to_columns_create(&s);
        char text[512];
        rows_to_columns_assert_all(&s, RESHARD_ERROR_MISMATCH, text_of(text, i, odd), NULL);
        strcat(text, " (reshard_transfer_create, call 1)");
        assert_string_equal(s.results[0].text, text);
        for (size_t b = 0; b < sizeof room; b++)
          assert_int_equal(((unsigned char *)room)[b], 0x5a);
        replace_plans(&s, &cases[i].all, &cases[i].all, 0); /* now all want the same */
        rows_to_columns_create(&s);
        if (s.results[0].status != RESHARD_SUCCESS)
          fail_msg("%s: %s", cases[i].what, s.results[0].text);
        rows_to_columns_assert_all(&s, RESHARD_SUCCESS, NULL);
        rows_to_columns_execute(&s);
        rows_to_columns_assert_all(&s, RESHARD_SUCCESS, NULL);
        rows_to_columns_close(&s);
      }
}

/* Names, strides and the caller's memory are a rank's own business. */
CASE(test_own_business) {
  for (int p = 0; p < 2; p++) {
    rows_to_columns s;
    rows_to_columns_open(&s, RANKS, PATIENCE, paths[p], NULL);
    reshard_entry entry = {RESHARD_ENTRY_INIT,       .src = s.src,          .dst = s.dst, .dtype = RESHARD_U32,
                           .dst_dtype = RESHARD_U32, .name = "another name"};
    reshard_plan_destroy(s.plans[1]);
    assert_int_equal(reshard_plan_create(1, &entry, 1, NULL, &s.plans[1]), RESHARD_SUCCESS);
    const int64_t strides[2] = {MATRIX_COLUMNS, 1};
    const int64_t *list[1] = {strides};
    s.arrays[2].src_strides = list;
    s.options[0].path = paths[p] == RESHARD_PATH_DIRECT ? RESHARD_PATH_AUTO : paths[p]; /* auto is direct here */
    rows_to_columns_must_create(&s);
    rows_to_columns_must_execute(&s);
    rows_to_columns_close(&s);
  }
}

CASE(paths_that_differ_are_told_on_all_ranks) {
  for (int64_t odd = 0; odd < RANKS; odd++) {
    rows_to_columns s;
    rows_to_columns_open(&s, RANKS, PATIENCE, RESHARD_PATH_DIRECT, NULL);
    s.options[odd].path = RESHARD_PATH_PACKED;
    rows_to_columns_create(&s);
    rows_to_columns_assert_all(
        &s, RESHARD_ERROR_MISMATCH,
        odd == 0 ? "path packed on rank 0, direct on rank 1" : "path direct on rank 0, packed on rank ", NULL);
    assert_true(rows_to_columns_untouched(&s));
    s.options[odd].path = RESHARD_PATH_DIRECT;
    rows_to_columns_must_create(&s);
    rows_to_columns_must_execute(&s);
    rows_to_columns_close(&s);
  }
}

/* Different calls at once, each against each. */
typedef enum call { CREATE, REBIND, EXECUTE, BARRIER, CALLS } call;
typedef struct mixture {
  rows_to_columns *s;
  call of[RANKS];
} mixture;

static void mix_body(void *user, int64_t r) {
  mixture *m = user;
  rows_to_columns *s = m->s;
  reshard_transfer made = NULL;
  reshard_status status = RESHARD_SUCCESS;
  switch (m->of[r]) {
  case CREATE: status = reshard_transfer_create(s->plans[r], s->comms[r], &s->arrays[r], &s->options[r], &made); break;
  case REBIND: status = reshard_transfer_rebind(s->transfers[r], &s->arrays[r]); break;
  case EXECUTE: status = reshard_execute(s->transfers[r], NULL); break;
  default: status = reshard_comm_barrier(s->comms[r]); break;
  }
  rank_result_set(&s->results[r], status);
  reshard_transfer_destroy(made);
}

CASE(test_mixed_calls) {
  for (int p = 0; p < 2; p++) {
    rows_to_columns s;
    rows_to_columns_open(&s, RANKS, PATIENCE, paths[p], NULL);
    rows_to_columns_must_create(&s);
    for (int a = 0; a < CALLS; a++)
      for (int b = 0; b < CALLS; b++)
        for (int64_t odd = 0; odd < RANKS; odd++) {
          if (a == b || (paths[p] == RESHARD_PATH_PACKED && (a == REBIND || b == REBIND)))
            continue; /* a rebind is local there */
          mixture m = {.s = &s};
          for (int64_t r = 0; r < RANKS; r++)
            m.of[r] = r == odd ? (call)b : (call)a;
          rows_to_columns_fill(&s, 3);
          rank_threads_run(RANKS, mix_body, &m);
          rows_to_columns_assert_all(&s, RESHARD_ERROR_MISMATCH, "different collective calls at once", NULL);
          assert_true(rows_to_columns_untouched(&s));
        }
    rows_to_columns_must_execute(&s);
    rows_to_columns_close(&s);
  }
}

/* Two transfers on one communicator, and ranks that take now the one, now the other. */
typedef struct two {
  rows_to_columns *s;
  reshard_transfer other[RANKS];
  bool take_other[RANKS], rebind;
} two;

static void two_body(void *user, int64_t r) {
  two *x = user;
  reshard_transfer t = x->take_other[r] ? x->other[r] : x->s->transfers[r];
  rank_result_set(&x->s->results[r],
                  x->rebind ? reshard_transfer_rebind(t, &x->s->arrays[r]) : reshard_execute(t, NULL));
}

CASE(test_two_transfers) {
  for (int p = 0; p < 2; p++) {
    rows_to_columns s;
    rows_to_columns_open(&s, RANKS, PATIENCE, paths[p], NULL);
    two x = {.s = &s};
    rows_to_columns_must_create(&s);
    memcpy(x.other, s.transfers, sizeof x.other);
    rows_to_columns_must_create(&s);
    for (int rebind = 0; rebind < (paths[p] == RESHARD_PATH_DIRECT ? 2 : 1); rebind++)
      for (int mask = 0; mask < 1 << RANKS; mask++) {
        bool same = mask == 0 || mask == (1 << RANKS) - 1;
        for (int64_t r = 0; r < RANKS; r++)
          x.take_other[r] = mask >> r & 1;
        x.rebind = rebind;
        rows_to_columns_fill(&s, 9);
        rank_threads_run(RANKS, two_body, &x);
        if (same)
          rows_to_columns_assert_all(&s, RESHARD_SUCCESS, NULL);
        else
          rows_to_columns_assert_all(&s, RESHARD_ERROR_MISMATCH,
                                     rebind ? "rebind different transfers" : "execute different transfers", NULL);
        assert_true(same && !rebind ? rows_to_columns_right(&s, 9) : rows_to_columns_untouched(&s));
      }
    /* a transfer whose peers' are gone: theirs may lie where the new ones do */
    for (int round = 0; round < 4; round++) {
      for (int64_t r = 0; r < RANKS; r++)
        if (r != round % RANKS) {
          reshard_transfer_destroy(x.other[r]);
          x.other[r] = NULL;
        }
      reshard_transfer kept = x.other[round % RANKS];
      memcpy(x.other, s.transfers, sizeof x.other);
      rows_to_columns_must_create(&s); /* into s.transfers */
      two y = {.s = &s};
      y.other[round % RANKS] = kept;
      y.take_other[round % RANKS] = true;
      rows_to_columns_fill(&s, 4);
      rank_threads_run(RANKS, two_body, &y);
      rows_to_columns_assert_all(&s, RESHARD_ERROR_MISMATCH, "execute different transfers", NULL);
      assert_true(rows_to_columns_untouched(&s));
      reshard_transfer_destroy(kept);
      rows_to_columns_must_execute(&s);
    }
    for (int64_t r = 0; r < RANKS; r++)
      reshard_transfer_destroy(x.other[r]);
    rows_to_columns_must_execute(&s);
    rows_to_columns_close(&s);
  }
}

RUN_CASES
