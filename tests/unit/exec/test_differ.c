/* Ranks that ask for unequal plans of many named tensors. The text has the tensor's name, the field, and both ranks'
 * values, wherever in the list the tensor is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/fixtures/rank_threads.h"

#include <reshard/reshard.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { RANKS = 3, MOST = 70, BYTES = 8 * 8 * 4 };

typedef enum field { SHAPE, SOURCE, DESTINATION, DTYPE, DST_DTYPE, REGION, FROM, TO, DIMS, NAME, MORE, FIELDS } field;

typedef struct fixture {
  reshard_comm comms[RANKS];
  rank_result results[RANKS];
  int n, odd; /* tensors; which one differs, on rank 2 */
  bool named, packed;
  field field;
} fixture;

static char memory[RANKS][2][MOST + 1][BYTES];

static reshard_status make_plan(const fixture *s, int64_t rank, reshard_plan *plan) {
  static _Thread_local char names[MOST + 1][64];
  static const int64_t some[2] = {7, 6}, square[2] = {5, 5}, later[2] = {1, 1};
  static const int turned[2] = {1, 0};
  reshard_entry entries[MOST + 1] = {{0}};
  int n = s->n + (rank == 2 && s->field == MORE);
  reshard_status status = RESHARD_SUCCESS;
  for (int i = 0; i < n; i++) {
    bool odd = rank == 2 && i == s->odd;
    const int64_t shape[2] = {8, odd && s->field == SHAPE ? 7 : 6};
    reshard_layout src = NULL, dst = NULL;
    status = reshard_layout_parse(odd && s->field == SOURCE ? "chunk(0;2,1,0)" : "chunk(0)", 2, shape, RANKS, &src);
    if (status == RESHARD_SUCCESS)
      status = reshard_layout_parse(odd && s->field == DESTINATION ? "chunk(1;0)" : "chunk(1)", 2, shape, RANKS, &dst);
    snprintf(names[i], sizeof names[i], "layers.%d.%s", i, odd && s->field == NAME ? "wk" : "wq");
    entries[i] = (reshard_entry){RESHARD_ENTRY_INIT, .src = src, .dst = dst};
    entries[i].dtype = odd && (s->field == DTYPE || s->field == NAME) ? RESHARD_BF16 : RESHARD_F32;
    entries[i].dst_dtype = odd && s->field == DST_DTYPE ? RESHARD_BF16 : RESHARD_DTYPE_NONE;
    entries[i].src_extent = entries[i].dst_extent = odd && s->field == REGION ? some : NULL;
    if (s->field == FROM || s->field == TO || s->field == DIMS) { /* a region on all ranks, of each tensor */
      entries[i].src_extent = entries[i].dst_extent = square;
      entries[i].src_offset = odd && s->field == FROM ? later : NULL;
      entries[i].dst_offset = odd && s->field == TO ? later : NULL;
      entries[i].permutation = odd && s->field == DIMS ? turned : NULL;
    }
    entries[i].name = s->named ? names[i] : NULL;
  }
  if (status == RESHARD_SUCCESS)
    status = reshard_plan_create(n, entries, rank, NULL, plan);
  for (int i = 0; i < n; i++) {
    reshard_layout_release(entries[i].src);
    reshard_layout_release(entries[i].dst);
  }
  return status;
}

static void differ_body(void *user, int64_t r) {
  fixture *s = user;
  void *src[MOST + 1], *dst[MOST + 1];
  reshard_plan plan = NULL;
  reshard_transfer transfer = NULL;
  const reshard_transfer_options options = {.size = RESHARD_TRANSFER_OPTIONS_INIT,
                                            .path = s->packed ? RESHARD_PATH_PACKED : RESHARD_PATH_AUTO};
  for (int i = 0; i <= MOST; i++) {
    src[i] = memory[r][0][i];
    dst[i] = memory[r][1][i];
  }
  const reshard_arrays arrays = {.size = RESHARD_ARRAYS_INIT, .src = src, .dst = dst};
  reshard_status status = make_plan(s, r, &plan);
  if (status == RESHARD_SUCCESS)
    status = reshard_transfer_create(plan, s->comms[r], &arrays, &options, &transfer);
  rank_result_set(&s->results[r], status);
  reshard_transfer_destroy(transfer);
  reshard_plan_destroy(plan);
}

static void error_expect(fixture *s, const char *text) {
  rank_threads_run(RANKS, differ_body, s);
  for (int64_t r = 0; r < RANKS; r++) {
    if (!rank_result_is(&s->results[r], RESHARD_ERROR_MISMATCH, text))
      fail_msg("'%s' is not '%s'", s->results[r].text, text);
  }
}

static void text_of(const fixture *s, char text[256]) {
  static const char *const ends[FIELDS] = {[SHAPE] = ": shape [8,6] on rank 0, [8,7] on rank 2",
                                           [SOURCE] = ": source layout chunk(0;0-2) on rank 0, chunk(0;2-0) on rank 2",
                                           [DESTINATION] =
                                               ": destination layout chunk(1;0-2) on rank 0, chunk(1;0) on rank 2",
                                           [DTYPE] = ": dtype f32 on rank 0, bf16 on rank 2",
                                           [DST_DTYPE] = ": dst_dtype f32 on rank 0, bf16 on rank 2",
                                           [REGION] = ": source region [0,8)x[0,6) on rank 0, [0,7)x[0,6) on rank 2",
                                           [FROM] = ": source region [0,5)x[0,5) on rank 0, [1,6)x[1,6) on rank 2",
                                           [TO] = ": destination region [0,5)x[0,5) of dims 0,1 on rank 0, "
                                                  "[1,6)x[1,6) of dims 0,1 on rank 2",
                                           [DIMS] = ": destination region [0,5)x[0,5) of dims 0,1 on rank 0, "
                                                    "[0,5)x[0,5) of dims 1,0 on rank 2"};
  char label[64];
  if (s->named || s->n == 1)
    snprintf(label, sizeof label, s->named ? "'layers.%d.wq'" : "'tensor'", s->odd);
  else
    snprintf(label, sizeof label, "tensor %d", s->odd);
  if (s->field == MORE)
    snprintf(text, 256,
             s->named ? "'layers.%d.wq' is on rank 2, and not on rank 0 (%d tensors on rank 0, %d on rank 2)"
                      : "tensor %d is on rank 2, and not on rank 0 (%d tensors on rank 0, %d on rank 2)",
             s->n, s->n, s->n + 1);
  else if (s->field == NAME && s->named)
    snprintf(text, 256, "%s: dtype f32 on rank 0, 'layers.%d.wk' with bf16 on rank 2", label, s->odd);
  else
    snprintf(text, 256, "%s%s", label, ends[s->field == NAME ? DTYPE : s->field]);
}

static void first_field_that_differs_is_named_with_its_tensor(void **state) {
  (void)state;
  static const int counts[] = {1, 2, 3, 8, MOST};
  for (int f = 0; f < FIELDS; f++)
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
      for (int i = 0; i < counts[k]; i += 1 + counts[k] / 5) {
        fixture s = {.n = counts[k], .odd = i, .named = (i + f) % 3 != 0, .packed = i % 2, .field = (field)f};
        const reshard_local_options options = {.size = RESHARD_LOCAL_OPTIONS_INIT, .threads = 1, .timeout_ms = 60000};
        char text[256];
        assert_int_equal(reshard_comm_create_local(RANKS, &options, s.comms), RESHARD_SUCCESS);
        text_of(&s, text);
        error_expect(&s, text);
        for (int64_t r = 0; r < RANKS; r++)
          reshard_comm_destroy(s.comms[r]);
      }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(first_field_that_differs_is_named_with_its_tensor)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
