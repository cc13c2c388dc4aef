/* Making and rebinding transfers: what a caller can get wrong in arguments, arrays, strides and workspace. */
#include "support/fixtures/case.h"
#include "support/reshards/rows_to_columns.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATIENCE = 60000 };

static const reshard_path paths[2] = {RESHARD_PATH_DIRECT, RESHARD_PATH_PACKED};

CASE(paths_have_names_that_are_read_again) {
  for (int p = RESHARD_PATH_AUTO; p <= RESHARD_PATH_MIXED; p++) {
    reshard_path path = (reshard_path)9;
    assert_int_equal(reshard_path_parse(reshard_path_string((reshard_path)p), &path), RESHARD_SUCCESS);
    assert_int_equal(path, p);
  }
  reshard_path path = RESHARD_PATH_MIXED;
  assert_string_equal(reshard_path_string(RESHARD_PATH_DIRECT), "direct");
  assert_string_equal(reshard_path_string((reshard_path)9), "unknown");
  assert_int_equal(reshard_path_parse("Direct", &path), RESHARD_ERROR_INVALID);
  assert_string_equal(reshard_last_error(), "unknown path 'Direct': auto, direct, packed or mixed");
  assert_int_equal(path, RESHARD_PATH_MIXED);
}

CASE(null_is_refused) {
  rows_to_columns s;
  rows_to_columns_open(&s, 1, PATIENCE, RESHARD_PATH_AUTO, NULL);
  reshard_transfer t = (reshard_transfer)&s;
  reshard_transfer_info info;
  assert_int_equal(reshard_transfer_create(s.plans[0], NULL, &s.arrays[0], NULL, &t), RESHARD_ERROR_INVALID);
  assert_text_has(reshard_last_error(), "comm is NULL");
  assert_int_equal(reshard_transfer_create(NULL, s.comms[0], &s.arrays[0], NULL, &t), RESHARD_ERROR_INVALID);
  assert_text_has(reshard_last_error(), "plan is NULL");
  assert_int_equal(reshard_transfer_create(s.plans[0], s.comms[0], &s.arrays[0], NULL, NULL), RESHARD_ERROR_INVALID);
  assert_text_has(reshard_last_error(), "transfer is NULL");
  assert_int_equal(reshard_transfer_create(s.plans[0], s.comms[0], NULL, NULL, &t),
                   RESHARD_ERROR_INVALID); /* it holds elements */
  assert_ptr_equal(t, (void *)&s);
  assert_int_equal(reshard_transfer_rebind(NULL, &s.arrays[0]), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_transfer_get_info(NULL, &info), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_execute(NULL, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_execute_all(1, NULL, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_execute_all(1, (reshard_transfer[]){NULL}, NULL), RESHARD_ERROR_INVALID);
  reshard_transfer_destroy(NULL);
  rows_to_columns_must_create(&s);
  assert_int_equal(reshard_transfer_get_info(s.transfers[0], NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_transfer_rebind(s.transfers[0], NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_execute_all(0, s.transfers, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_execute(s.transfers[0], &s), RESHARD_ERROR_INVALID);
  assert_text_has(reshard_last_error(), "on the CPU it is NULL");
  assert_int_equal(reshard_execute_all(1, s.transfers, &s), RESHARD_ERROR_INVALID);
  rows_to_columns_must_execute(&s);
  rows_to_columns_close(&s);
}

/* One rank brings something wrong; all hear of it, and after it is put right all is well. */
typedef struct wrong {
  const char *what, *part;
  reshard_status status;
  void (*spoil)(rows_to_columns *s, int64_t rank);
} wrong;

static void size_of_arrays(rows_to_columns *s, int64_t r) { s->arrays[r].size--; }
static void no_size_of_arrays(rows_to_columns *s, int64_t r) { s->arrays[r].size = 0; }
static void size_of_options(rows_to_columns *s, int64_t r) { s->options[r].size += 8; }
static void more_sources(rows_to_columns *s, int64_t r) { s->arrays[r].nsrc = 2; }
static void more_destinations(rows_to_columns *s, int64_t r) { s->arrays[r].ndst = 3; }
static void minus_one_source(rows_to_columns *s, int64_t r) { s->arrays[r].nsrc = -1; }
static void no_source_list(rows_to_columns *s, int64_t r) { s->arrays[r].src = NULL; }
static void no_destination_list(rows_to_columns *s, int64_t r) { s->arrays[r].dst = NULL; }
static void no_source(rows_to_columns *s, int64_t r) { s->src_list[r] = NULL; }
static void no_destination(rows_to_columns *s, int64_t r) { s->dst_list[r] = NULL; }
static void path_4(rows_to_columns *s, int64_t r) { s->options[r].path = (reshard_path)4; }
static void path_mixed(rows_to_columns *s, int64_t r) { s->options[r].path = RESHARD_PATH_MIXED; }
static void path_minus_1(rows_to_columns *s, int64_t r) { s->options[r].path = (reshard_path)-1; }
static void same_memory(rows_to_columns *s, int64_t r) { s->dst_list[r] = s->src_list[r]; }
static void shifted_memory(rows_to_columns *s, int64_t r) { s->dst_list[r] = s->rows[r] + 1; }
static void shifted_by_a_byte(rows_to_columns *s, int64_t r) { s->src_list[r] = (char *)s->columns[r] + 1; }
static void last_element(rows_to_columns *s, int64_t r) { /* the destination's last is the source's first */
  int64_t offset, columns = MATRIX_COLUMNS / s->n + (MATRIX_COLUMNS % s->n != 0);
  offset = columns * r;
  columns = offset + columns < MATRIX_COLUMNS ? columns : MATRIX_COLUMNS - offset;
  s->dst_list[r] = s->rows[r] - columns * MATRIX_ROWS + 1;
}

static int64_t spoiled_strides[2];
static const int64_t *spoiled_list[1] = {spoiled_strides};
static void destination_strides(rows_to_columns *s, int64_t r, int64_t first, int64_t second) {
  spoiled_strides[0] = first;
  spoiled_strides[1] = second;
  s->arrays[r].dst_strides = spoiled_list;
}
static void source_strides(rows_to_columns *s, int64_t r, int64_t first, int64_t second) {
  spoiled_strides[0] = first;
  spoiled_strides[1] = second;
  s->arrays[r].src_strides = spoiled_list;
}
static void zero_strides(rows_to_columns *s, int64_t r) { destination_strides(s, r, 0, 1); }
static void short_strides(rows_to_columns *s, int64_t r) { destination_strides(s, r, 2, 1); }
static void equal_strides(rows_to_columns *s, int64_t r) { destination_strides(s, r, 1, 1); }
static void opposite_strides(rows_to_columns *s, int64_t r) { destination_strides(s, r, 1, -1); }
static void overflowing(rows_to_columns *s, int64_t r) { destination_strides(s, r, INT64_MAX, 1); }
static void overflowing_down(rows_to_columns *s, int64_t r) { destination_strides(s, r, INT64_MIN, 1); }
static void overflowing_source(rows_to_columns *s, int64_t r) { source_strides(s, r, INT64_MAX / 4, 1); }
static void beyond_memory(rows_to_columns *s, int64_t r) { source_strides(s, r, INT64_MAX / 600, 1); }
static void below_memory(rows_to_columns *s, int64_t r) { source_strides(s, r, -(INT64_MAX / 600), 1); }
static void below_zero(rows_to_columns *s, int64_t r) { source_strides(s, r, -((int64_t)1 << 48), 1); }

static void foreign_rank(rows_to_columns *s, int64_t r) {
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = s->src, .dst = s->dst, .dtype = RESHARD_U32};
  reshard_plan_destroy(s->plans[r]);
  assert_int_equal(reshard_plan_create(1, &entry, (r + 1) % s->n, NULL, &s->plans[r]), RESHARD_SUCCESS);
}
static void foreign_world(rows_to_columns *s, int64_t r) {
  static const int64_t shape[2] = {MATRIX_ROWS, MATRIX_COLUMNS};
  reshard_layout one;
  assert_int_equal(reshard_layout_parse("rank(0)", 2, shape, 5, &one), RESHARD_SUCCESS);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = one, .dst = one, .dtype = RESHARD_U32};
  reshard_plan_destroy(s->plans[r]);
  assert_int_equal(reshard_plan_create(1, &entry, r, NULL, &s->plans[r]), RESHARD_SUCCESS);
  reshard_layout_release(one);
}
static void no_plan(rows_to_columns *s, int64_t r) {
  reshard_plan_destroy(s->plans[r]);
  s->plans[r] = NULL;
}

static const wrong in_arrays[] = {
    /* these a rebind can have too */
    {"size", "size field", RESHARD_ERROR_INVALID, size_of_arrays},
    {"no size", "size field 0", RESHARD_ERROR_INVALID, no_size_of_arrays},
    {"nsrc", "2 source and 1 destination buffers", RESHARD_ERROR_INVALID, more_sources},
    {"ndst", "1 source and 3 destination buffers", RESHARD_ERROR_INVALID, more_destinations},
    {"nsrc -1", "-1 source", RESHARD_ERROR_INVALID, minus_one_source},
    {"src", "source buffer 0 is NULL", RESHARD_ERROR_INVALID, no_source_list},
    {"dst", "destination buffer 0 is NULL", RESHARD_ERROR_INVALID, no_destination_list},
    {"src[0]", "source buffer 0 is NULL and should hold", RESHARD_ERROR_INVALID, no_source},
    {"dst[0]", "destination buffer 0 is NULL and should hold", RESHARD_ERROR_INVALID, no_destination},
    {"in place", "overlaps", RESHARD_ERROR_INVALID, same_memory},
    {"shifted", "overlaps", RESHARD_ERROR_INVALID, shifted_memory},
    {"shifted by a byte", "overlaps", RESHARD_ERROR_INVALID, shifted_by_a_byte},
    {"last element", "overlaps", RESHARD_ERROR_INVALID, last_element},
    {"stride 0", "strides 0x1 of the destination", RESHARD_ERROR_INVALID, zero_strides},
    {"stride 2", "strides 2x1 of the destination", RESHARD_ERROR_INVALID, short_strides},
    {"strides 1, 1", "strides 1x1 of the destination", RESHARD_ERROR_INVALID, equal_strides},
    {"strides 1, -1", "strides 1x-1 of the destination", RESHARD_ERROR_INVALID, opposite_strides},
    {"large", "stride 9223372036854775807 of destination dim 0 overflows", RESHARD_ERROR_INVALID, overflowing},
    {"large down", "stride -9223372036854775808 of destination dim 0 overflows", RESHARD_ERROR_INVALID,
     overflowing_down},
    {"large source", "of source dim 0 overflows", RESHARD_ERROR_INVALID, overflowing_source},
    {"beyond memory", "beyond memory", RESHARD_ERROR_INVALID, beyond_memory},
    {"below memory", "beyond memory", RESHARD_ERROR_INVALID, below_memory},
    {"below zero", "beyond memory", RESHARD_ERROR_INVALID, below_zero},
};
static const wrong in_create[] = {
    {"options", "size field", RESHARD_ERROR_INVALID, size_of_options},
    {"path 4", "unknown path 4", RESHARD_ERROR_INVALID, path_4},
    {"path mixed", "the mixed path needs a communicator of several nodes", RESHARD_ERROR_UNSUPPORTED, path_mixed},
    {"path -1", "unknown path -1", RESHARD_ERROR_INVALID, path_minus_1},
    {"another rank's plan", "on the communicator's rank", RESHARD_ERROR_INVALID, foreign_rank},
    {"another world's plan", "a plan for a world of 5 ranks on a communicator of", RESHARD_ERROR_INVALID,
     foreign_world},
    {"no plan", "plan is NULL", RESHARD_ERROR_INVALID, no_plan},
};
enum { IN_ARRAYS = sizeof in_arrays / sizeof *in_arrays, IN_CREATE = sizeof in_create / sizeof *in_create };

CASE(test_wrong_create) {
  for (int p = 0; p < 2; p++)
    for (int64_t n = 2; n <= 3; n++)
      for (int i = 0; i < IN_ARRAYS + IN_CREATE; i++)
        for (int64_t rank = 0; rank < n; rank += n - 1) {
          const wrong *w = i < IN_ARRAYS ? &in_arrays[i] : &in_create[i - IN_ARRAYS];
          rows_to_columns s;
          rows_to_columns_open(&s, n, PATIENCE, paths[p], NULL);
          w->spoil(&s, rank);
          rows_to_columns_create(&s);
          char name[32];
          snprintf(name, sizeof name, "rank %d: ", (int)rank);
          rows_to_columns_assert_all(&s, w->status, name, w->part, NULL);
          assert_true(rows_to_columns_untouched(&s));
          rows_to_columns_close(&s);
        }
}

/* A failed rebind leaves the transfer bound as it was. On the packed path it is local. */
CASE(test_wrong_rebind) {
  for (int p = 0; p < 2; p++)
    for (int i = 0; i < IN_ARRAYS; i++) {
      const int64_t n = 3, rank = i % 3;
      rows_to_columns s;
      rows_to_columns_open(&s, n, PATIENCE, paths[p], NULL);
      rows_to_columns_must_create(&s);
      rows_to_columns_must_execute(&s);
      reshard_transfer_info before, after;
      assert_int_equal(reshard_transfer_get_info(s.transfers[rank], &before), RESHARD_SUCCESS);
      const reshard_arrays good = s.arrays[rank];
      in_arrays[i].spoil(&s, rank);
      rows_to_columns_rebind(&s);
      if (paths[p] == RESHARD_PATH_DIRECT)
        rows_to_columns_assert_all(&s, RESHARD_ERROR_INVALID, in_arrays[i].part, NULL);
      else
        for (int64_t r = 0; r < n; r++)
          assert_int_equal(s.results[r].status, r == rank ? RESHARD_ERROR_INVALID : RESHARD_SUCCESS);
      assert_text_has(s.results[rank].text, in_arrays[i].part);
      assert_int_equal(reshard_transfer_get_info(s.transfers[rank], &after), RESHARD_SUCCESS);
      assert_memory_equal(&before, &after, sizeof before);
      rows_to_columns_must_execute(&s);
      s.src_list[rank] = s.rows[rank];
      s.dst_list[rank] = s.columns[rank];
      s.arrays[rank] = good;
      rows_to_columns_rebind(&s);
      rows_to_columns_assert_all(&s, RESHARD_SUCCESS, NULL);
      rows_to_columns_must_execute(&s);
      rows_to_columns_close(&s);
    }
}

/* Rebinding to other memory: only that is used from then on. */
CASE(rebind_uses_the_new_memory_alone) {
  for (int p = 0; p < 2; p++) {
    rows_to_columns a, b;
    rows_to_columns_open(&a, 3, PATIENCE, paths[p], NULL);
    rows_to_columns_open(&b, 3, PATIENCE, paths[p], NULL);
    rows_to_columns_must_create(&a);
    rows_to_columns_must_execute(&a);
    for (uint32_t round = 0; round < 3; round++) {
      for (int64_t r = 0; r < 3; r++) {
        a.src_list[r] = round % 2 == 0 ? b.rows[r] : a.rows[r];
        a.dst_list[r] = round % 2 == 0 ? b.columns[r] : a.columns[r];
      }
      rows_to_columns_rebind(&a);
      rows_to_columns_assert_all(&a, RESHARD_SUCCESS, NULL);
      rows_to_columns_fill(&a, 100 + round);
      rows_to_columns_fill(&b, 200 + round);
      rows_to_columns_execute(&a);
      rows_to_columns_assert_all(&a, RESHARD_SUCCESS, NULL);
      assert_true(round % 2 == 0 ? rows_to_columns_right(&b, 200 + round) && rows_to_columns_untouched(&a)
                                 : rows_to_columns_right(&a, 100 + round) && rows_to_columns_untouched(&b));
    }
    rows_to_columns_close(&b);
    rows_to_columns_close(&a);
  }
}

/* One rank, from all of a tensor to all of it: views of one piece of memory. */
typedef struct view {
  int64_t offset, strides[2]; /* in elements */
} view;

static reshard_status copy_view(reshard_path path, int64_t rows, int64_t columns, uint32_t *memory, const view *src,
                                const view *dst, const view *other_dst) {
  const int64_t shape[2] = {rows, columns};
  reshard_comm comm;
  reshard_layout l;
  reshard_plan plan;
  reshard_transfer t;
  reshard_local_options local = {RESHARD_LOCAL_OPTIONS_INIT, 1, RESHARD_ISA_AUTO, PATIENCE, NULL, 0};
  assert_int_equal(reshard_comm_create_local(1, &local, &comm), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse("rank(0)", 2, shape, 1, &l), RESHARD_SUCCESS);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = l, .dst = l, .dtype = RESHARD_U32};
  reshard_entry entries[2] = {entry, entry};
  const int n = other_dst != NULL ? 2 : 1;
  assert_int_equal(reshard_plan_create(n, entries, 0, NULL, &plan), RESHARD_SUCCESS);
  void *from[2] = {memory + src->offset, memory + src->offset};
  void *to[2] = {memory + dst->offset, other_dst != NULL ? memory + other_dst->offset : NULL};
  const int64_t *from_strides[2] = {src->strides, src->strides};
  const int64_t *to_strides[2] = {dst->strides, other_dst != NULL ? other_dst->strides : NULL};
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, from, to, from_strides, to_strides, n, n};
  reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = path};
  reshard_status status = reshard_transfer_create(plan, comm, &arrays, &options, &t);
  if (status == RESHARD_SUCCESS) {
    assert_int_equal(reshard_execute(t, NULL), RESHARD_SUCCESS);
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = 0; j < columns; j++)
        for (int k = 0; k < n; k++) {
          const view *d = k == 0 ? dst : other_dst;
          assert_int_equal(memory[d->offset + i * d->strides[0] + j * d->strides[1]],
                           memory[src->offset + i * src->strides[0] + j * src->strides[1]]);
        }
    reshard_transfer_destroy(t);
  }
  reshard_plan_destroy(plan);
  reshard_layout_release(l);
  reshard_comm_destroy(comm);
  return status;
}

CASE(views_that_overlap_are_refused) {
  enum { MEMORY = 4096 };
  static const struct {
    const char *what;
    int64_t rows, columns;
    view src, dst, other;
    bool two, good;
  } cases[] = {
      {"left and right half of the columns", 8, 10, {0, {20, 1}}, {10, {20, 1}}, {0, {0, 0}}, false, true},
      {"halves that share a column", 8, 10, {0, {20, 1}}, {9, {20, 1}}, {0, {0, 0}}, false, false},
      {"even and odd columns", 8, 10, {0, {20, 2}}, {1, {20, 2}}, {0, {0, 0}}, false, true},
      {"even columns twice", 8, 10, {0, {20, 2}}, {2, {20, 2}}, {0, {0, 0}}, false, false},
      {"even and odd rows", 8, 10, {0, {20, 1}}, {200, {20, 1}}, {0, {0, 0}}, false, true},
      {"rows upside down", 8, 10, {150, {-20, 1}}, {20 * 8, {20, 1}}, {0, {0, 0}}, false, true},
      {"rows upside down onto others", 8, 10, {150, {-20, 1}}, {20 * 7 + 9, {20, 1}}, {0, {0, 0}}, false, false},
      {"transposed, beside", 8, 10, {0, {1, 16}}, {8, {1, 16}}, {0, {0, 0}}, false, true},
      {"transposed, onto", 8, 10, {0, {1, 16}}, {0, {16, 1}}, {0, {0, 0}}, false, false},
      {"no common stride, apart", 4, 4, {0, {24, 4}}, {1, {24, 6}}, {0, {0, 0}}, false, true},
      {"no common stride, one element met", 1, 6, {0, {0, 2}}, {1, {0, 3}}, {0, {0, 0}}, false, false},
      {"a broadcast source", 8, 10, {0, {0, 1}}, {10, {10, 1}}, {0, {0, 0}}, false, true},
      {"all of it one element", 8, 10, {0, {0, 0}}, {1, {10, 1}}, {0, {0, 0}}, false, true},
      {"all of it one element of the destination", 8, 10, {40, {0, 0}}, {1, {10, 1}}, {0, {0, 0}}, false, false},
      {"one element in a gap of the destination", 8, 10, {15, {0, 0}}, {0, {16, 1}}, {0, {0, 0}}, false, true},
      {"a sliding window", 8, 10, {0, {1, 1}}, {17, {10, 1}}, {0, {0, 0}}, false, true},
      {"a sliding window that reaches in", 8, 10, {0, {1, 1}}, {16, {10, 1}}, {0, {0, 0}}, false, false},
      {"two destinations beside each other", 8, 10, {2000, {10, 1}}, {0, {20, 1}}, {10, {20, 1}}, true, true},
      {"two destinations that share a column", 8, 10, {2000, {10, 1}}, {0, {20, 1}}, {9, {20, 1}}, true, false},
      {"the same destination twice", 8, 10, {2000, {10, 1}}, {0, {20, 1}}, {0, {20, 1}}, true, false},
      {"source between two destinations", 8, 10, {10, {30, 1}}, {0, {30, 1}}, {20, {30, 1}}, true, true},
      {"destination in the gaps of a longer one", 8, 10, {2000, {10, 1}}, {0, {100, 1}}, {10, {11, 1}}, true, true},
      {"over that, in the gaps too", 8, 10, {20, {10, 1}}, {0, {200, 1}}, {10, {10, 1}}, true, false},
      {"a row stride that no one walks", 1, 10, {0, {-999999, 1}}, {10, {1, 1}}, {0, {0, 0}}, false, true},
  };
  uint32_t *memory = malloc(MEMORY * sizeof *memory);
  for (int p = 0; p < 2; p++)
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
      for (uint32_t k = 0; k < MEMORY; k++)
        memory[k] = k * 2654435761u;
      reshard_status status = copy_view(paths[p], cases[i].rows, cases[i].columns, memory, &cases[i].src, &cases[i].dst,
                                        cases[i].two ? &cases[i].other : NULL);
      if (status != (cases[i].good ? RESHARD_SUCCESS : RESHARD_ERROR_INVALID))
        fail_msg("%s: %s: %s", cases[i].what, reshard_status_string(status), reshard_last_error());
      if (!cases[i].good)
        assert_text_has(reshard_last_error(), "overlaps the ");
    }
  free(memory);
}

/* Two tensors into parts of a third: one array for both entries, as long as the parts are apart. */
static reshard_status stack(reshard_path path, int64_t second_row, int64_t shift, const int64_t *second_strides,
                            uint32_t *to) {
  const int64_t half[2] = {4, 10}, whole[2] = {8, 10}, first_at[2] = {0, 0}, second_at[2] = {second_row, 0};
  uint32_t from[2][40];
  for (uint32_t i = 0; i < 80; i++)
    from[i / 40][i % 40] = i;
  reshard_comm comm;
  reshard_layout src, dst;
  reshard_plan plan;
  reshard_transfer t;
  assert_int_equal(reshard_comm_create_local(1, NULL, &comm), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse("rank(0)", 2, half, 1, &src), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse("rank(0)", 2, whole, 1, &dst), RESHARD_SUCCESS);
  reshard_entry entries[2] = {{RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_U32, .dst_offset = first_at,
                               .dst_extent = half, .name = "k"},
                              {RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_U32,
                               .dst_offset = second_at, .dst_extent = half, .name = "v"}};
  assert_int_equal(reshard_plan_create(2, entries, 0, NULL, &plan), RESHARD_SUCCESS);
  void *src_list[2] = {from[0], from[1]}, *dst_list[2] = {to, to + shift};
  const int64_t *strides[2] = {NULL, second_strides};
  reshard_arrays arrays = {RESHARD_ARRAYS_INIT, src_list, dst_list, NULL, strides, 2, 2};
  reshard_transfer_options options = {RESHARD_TRANSFER_OPTIONS_INIT, .path = path};
  reshard_status status = reshard_transfer_create(plan, comm, &arrays, &options, &t);
  if (status == RESHARD_SUCCESS) {
    assert_int_equal(reshard_execute(t, NULL), RESHARD_SUCCESS);
    reshard_transfer_destroy(t);
  }
  reshard_plan_destroy(plan);
  reshard_layout_release(src);
  reshard_layout_release(dst);
  reshard_comm_destroy(comm);
  return status;
}

CASE(parts_of_one_tensor_share_its_buffers) {
  const int64_t same[2] = {10, 1}, others[2] = {1, 8};
  for (int p = 0; p < 2; p++)
    for (int explicit_strides = 0; explicit_strides < 2; explicit_strides++) {
      uint32_t to[200];
      memset(to, -1, sizeof to);
      assert_int_equal(stack(paths[p], 4, 0, explicit_strides ? same : NULL, to), RESHARD_SUCCESS);
      for (uint32_t i = 0; i < 200; i++)
        assert_int_equal(to[i], i < 80 ? i : UINT32_MAX);
      assert_int_equal(stack(paths[p], 3, 0, explicit_strides ? same : NULL, to),
                       RESHARD_ERROR_INVALID); /* a row in both */
      assert_text_has(reshard_last_error(), "overlaps the destination of entry 0 'k'");
      assert_int_equal(stack(paths[p], 4, 8, explicit_strides ? same : NULL, to), RESHARD_ERROR_INVALID);
      assert_int_equal(stack(paths[p], 4, 80, explicit_strides ? same : NULL, to), RESHARD_SUCCESS);
    }
  uint32_t to[200];
  assert_int_equal(stack(RESHARD_PATH_AUTO, 4, 0, others, to),
                   RESHARD_ERROR_INVALID); /* the parts are apart, the bytes are not */
}

/* Buffers without elements may be NULL; lists may be NULL where a rank has no buffers; strides are not for flat pieces.
 * */
static reshard_status make_transfer(const char *src, const char *dst, int ndim, const int64_t *shape, int64_t rank,
                                    const reshard_arrays *arrays) {
  reshard_comm comm;
  reshard_layout from, to;
  reshard_plan plan;
  reshard_transfer t;
  reshard_local_options local = {RESHARD_LOCAL_OPTIONS_INIT, 1, RESHARD_ISA_AUTO, PATIENCE, NULL, 0};
  assert_int_equal(rank, 0);
  assert_int_equal(reshard_comm_create_local(1, &local, &comm), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse(src, ndim, shape, 1, &from), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_parse(dst, ndim, shape, 1, &to), RESHARD_SUCCESS);
  reshard_entry entry = {RESHARD_ENTRY_INIT, .src = from, .dst = to, .dtype = RESHARD_U32};
  assert_int_equal(reshard_plan_create(1, &entry, rank, NULL, &plan), RESHARD_SUCCESS);
  reshard_status status = reshard_transfer_create(plan, comm, arrays, NULL, &t);
  if (status == RESHARD_SUCCESS) {
    assert_int_equal(reshard_execute(t, NULL), RESHARD_SUCCESS);
    reshard_transfer_destroy(t);
  }
  reshard_plan_destroy(plan);
  reshard_layout_release(from);
  reshard_layout_release(to);
  reshard_comm_destroy(comm);
  return status;
}

CASE(test_empty_and_flat) {
  const int64_t empty[2] = {4, 0}, some[2] = {4, 3}, line[1] = {12}, strides[2] = {3, 1};
  uint32_t a[64] = {0}, b[64] = {0};
  void *from[2] = {a, NULL}, *to[2] = {b, NULL};
  const int64_t *list[2] = {strides, NULL};
  const reshard_arrays none = {RESHARD_ARRAYS_INIT, NULL, NULL, NULL, NULL, 0, 0};
  const reshard_arrays plain = {RESHARD_ARRAYS_INIT, from, to, NULL, NULL, 0, 0};
  const reshard_arrays src_strides = {RESHARD_ARRAYS_INIT, from, to, list, NULL, 0, 0};
  const reshard_arrays dst_strides = {RESHARD_ARRAYS_INIT, from, to, NULL, list, 0, 0};
  assert_int_equal(make_transfer("chunk(0)", "chunk(1)", 2, empty, 0, NULL), RESHARD_SUCCESS);
  assert_int_equal(make_transfer("chunk(0)", "flat()", 2, empty, 0, &none), RESHARD_SUCCESS);
  assert_int_equal(make_transfer("chunk(0)", "boxes(0:[0,0]+[4,0])", 2, empty, 0, &none), RESHARD_SUCCESS);
  assert_int_equal(make_transfer("chunk(0)", "chunk(0)", 2, some, 0, &none), RESHARD_ERROR_INVALID);
  assert_int_equal(make_transfer("chunk(0)", "chunk(0)", 2, some, 0, &plain), RESHARD_SUCCESS);
  assert_int_equal(make_transfer("flat()", "chunk(0)", 2, some, 0, &src_strides), RESHARD_ERROR_INVALID);
  assert_text_has(reshard_last_error(), "strides for a flat layout of 2 dims");
  assert_int_equal(make_transfer("chunk(0)", "flat()", 2, some, 0, &dst_strides), RESHARD_ERROR_INVALID);
  assert_int_equal(make_transfer("flat()", "chunk(0)", 1, line, 0, &src_strides), RESHARD_SUCCESS);
  assert_int_equal(make_transfer("chunk(0)", "chunk(0)", 2, some, 0, &src_strides), RESHARD_SUCCESS);
  void *two[2] = {b, b + 6}, *same[2] = {b, b};
  const reshard_arrays boxes = {RESHARD_ARRAYS_INIT, from, two, NULL, NULL, 1, 2};
  const reshard_arrays equal = {RESHARD_ARRAYS_INIT, from, same, NULL, NULL, 1, 2};
  const reshard_arrays one = {RESHARD_ARRAYS_INIT, from, two, NULL, NULL, 1, 1};
  assert_int_equal(make_transfer("chunk(0)", "boxes(0:[0,0]+[2,3];0:[2,0]+[2,3])", 2, some, 0, &boxes),
                   RESHARD_SUCCESS);
  assert_int_equal(make_transfer("chunk(0)", "boxes(0:[0,0]+[2,3];0:[2,0]+[2,3])", 2, some, 0, &equal),
                   RESHARD_ERROR_INVALID);
  assert_int_equal(make_transfer("chunk(0)", "boxes(0:[0,0]+[2,3];0:[2,0]+[2,3])", 2, some, 0, &one),
                   RESHARD_ERROR_INVALID);

  /* a plan without entries fits any world, and lists that have nothing are not looked at */
  reshard_comm comm;
  reshard_plan plan;
  reshard_transfer t;
  assert_int_equal(reshard_comm_create_local(1, NULL, &comm), RESHARD_SUCCESS);
  assert_int_equal(reshard_plan_create(0, NULL, 0, NULL, &plan), RESHARD_SUCCESS);
  assert_int_equal(reshard_transfer_create(plan, comm, &src_strides, NULL, &t), RESHARD_SUCCESS);
  assert_int_equal(reshard_execute(t, NULL), RESHARD_SUCCESS);
  assert_int_equal(reshard_execute_all(1, &t, NULL), RESHARD_SUCCESS);
  reshard_transfer_destroy(t);
  reshard_plan_destroy(plan);
  reshard_comm_destroy(comm);
}

/* The caller's workspace: too small is refused with the number that is needed; exactly enough is used, and nothing
 * beside it. */
CASE(exact_workspace_is_used_and_a_smaller_one_refused) {
  enum { GUARD = 512 };
  for (int limited = 0; limited < 2; limited++) {
    reshard_plan_options options = {.size = RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = limited ? 12288 : 0};
    rows_to_columns s;
    rows_to_columns_open(&s, 3, PATIENCE, RESHARD_PATH_PACKED, &options);
    unsigned char *memory[3];
    size_t bytes[3], needed = 0;
    rows_to_columns_must_create(&s); /* of its own */
    rows_to_columns_must_execute(&s);
    for (int64_t r = 0; r < 3; r++) {
      reshard_transfer_info info;
      assert_int_equal(reshard_transfer_get_info(s.transfers[r], &info), RESHARD_SUCCESS);
      assert_int_equal(reshard_plan_workspace(s.plans[r], &bytes[r]), RESHARD_SUCCESS);
      assert_true(info.workspace_bytes <= bytes[r]);
      assert_true(!limited || bytes[r] <= 12288);
      bytes[r] = info.workspace_bytes;
      needed = r == 1 ? info.workspace_bytes : needed;
    }
    rows_to_columns_destroy(&s);
    assert_true(needed > 0);
    for (int64_t r = 0; r < 3; r++) {
      memory[r] = malloc(bytes[r] + 2 * GUARD);
      memset(memory[r], 0x5a, bytes[r] + 2 * GUARD);
      s.options[r].workspace = memory[r] + GUARD + 1; /* aligned to nothing */
      s.options[r].workspace_bytes = bytes[r] - (r == 1);
    }
    rows_to_columns_fill(&s, 7);
    rows_to_columns_create(&s);
    char text[64];
    snprintf(text, sizeof text, "a workspace of %zu bytes, %zu are needed", needed - 1, needed);
    rows_to_columns_assert_all(&s, RESHARD_ERROR_INVALID, "rank 1: ", text, NULL);
    assert_true(rows_to_columns_untouched(&s));
    s.options[1].workspace_bytes++;
    rows_to_columns_must_create(&s);
    rows_to_columns_must_execute(&s);
    rows_to_columns_must_execute(&s);
    bool used = false; /* on one rank at least: a thread packs all its messages to the staging of one */
    for (int64_t r = 0; r < 3; r++) {
      for (size_t i = 0; i < bytes[r] + 2 * GUARD; i++) {
        if (i >= GUARD + 1 && i < GUARD + 1 + bytes[r])
          used |= memory[r][i] != 0x5a;
        else
          assert_int_equal(memory[r][i], 0x5a);
      }
    }
    assert_true(used);
    rows_to_columns_close(&s);
    for (int64_t r = 0; r < 3; r++)
      free(memory[r]);
  }
  /* the direct path has no use for one */
  rows_to_columns s;
  char small[1];
  rows_to_columns_open(&s, 2, PATIENCE, RESHARD_PATH_DIRECT, NULL);
  s.options[0].workspace = small;
  s.options[0].workspace_bytes = sizeof small;
  rows_to_columns_must_create(&s);
  rows_to_columns_must_execute(&s);
  rows_to_columns_close(&s);
}

RUN_CASES
