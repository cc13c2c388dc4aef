/* The ground: statuses, the last error, checked allocation, growable arrays, text, hash, dtypes. */
#include "base/base.h"
#include "bench/verify/random.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"

#include <reshard/reshard.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CASE(statuses_have_their_names) {
  static const char *const names[] = {
      "RESHARD_SUCCESS",       "RESHARD_ERROR_INVALID",  "RESHARD_ERROR_UNSUPPORTED", "RESHARD_ERROR_OUT_OF_MEMORY",
      "RESHARD_ERROR_SYSTEM",  "RESHARD_ERROR_MISMATCH", "RESHARD_ERROR_PEER",        "RESHARD_ERROR_BUSY",
      "RESHARD_ERROR_TIMEOUT", "RESHARD_ERROR_INTERNAL", "RESHARD_ERROR_CANCELLED",   "RESHARD_ERROR_CORRUPT"};
  for (int i = 0; i < 12; i++)
    assert_string_equal(reshard_status_string((reshard_status)i), names[i]);
  assert_string_equal(reshard_status_string((reshard_status)12), "unknown status");
  assert_string_equal(reshard_status_string((reshard_status)-1), "unknown status");
  char version[32];
  snprintf(version, sizeof version, "%d.%d.%d", RESHARD_VERSION_MAJOR, RESHARD_VERSION_MINOR, RESHARD_VERSION_PATCH);
  assert_string_equal(reshard_version(), version);
  assert_string_equal(reshard_version(), RESHARD_VERSION_STRING);
}

static void fresh_thread(void *user, int64_t rank) {
  rank_result *result = user;
  rank_result_set(result, RESHARD_SUCCESS); /* before any error of this thread */
  rs_error(RESHARD_ERROR_INVALID, "of the other thread");
}

CASE(test_last_error) {
  FAILS(rs_error(RESHARD_ERROR_TIMEOUT, "%d of %s", 3, "four"), RESHARD_ERROR_TIMEOUT, "3 of four");
  rank_result other;
  rank_thread_join(rank_thread_start(fresh_thread, &other));
  assert_string_equal(other.text, "");
  assert_string_equal(reshard_last_error(), "3 of four"); /* each thread has its own */
  reshard_dtype dtype;
  GOOD(reshard_dtype_parse("f32", &dtype));
  assert_string_equal(reshard_last_error(), "3 of four"); /* success leaves it */

  FAILS_WITH(rs_error_memory(12345), RESHARD_ERROR_OUT_OF_MEMORY, "12345 bytes");
  rs_error_set("from elsewhere");
  assert_string_equal(reshard_last_error(), "from elsewhere");
  rs_error_set(reshard_last_error()); /* itself */
  assert_string_equal(reshard_last_error(), "from elsewhere");

  char *long_text = malloc(5000);
  memset(long_text, 'x', 4999);
  long_text[4999] = '\0';
  rs_error(RESHARD_ERROR_INVALID, "%s", long_text);
  assert_int_equal(strlen(reshard_last_error()), 1023); /* cut, not overrun */
  rs_error_set(long_text);
  assert_int_equal(strlen(reshard_last_error()), 1023);
  free(long_text);
}

CASE(callback_sets_the_last_error_as_one_line) {
  char huge[2000];
  FAILS(reshard_error_set(RESHARD_ERROR_PEER, "no\nroute"), RESHARD_ERROR_PEER, "no route");
  assert_int_equal(reshard_error_set(RESHARD_SUCCESS, "x"), RESHARD_ERROR_INVALID);
  BAD(reshard_error_set((reshard_status)12, "x"), "reshard_error_set: status 12 is no error");
  memset(huge, 'a', sizeof huge);
  huge[sizeof huge - 1] = '\0';
  assert_int_equal(reshard_error_set(RESHARD_ERROR_SYSTEM, huge), RESHARD_ERROR_SYSTEM);
  assert_int_equal(strlen(reshard_last_error()), 1023);
}

CASE(products_and_sums_that_overflow_are_told) {
  int64_t x = 7;
  assert_true(rs_mul(INT64_MAX / 3, 3, &x));
  assert_true(x == INT64_MAX / 3 * 3);
  assert_false(rs_mul(INT64_MAX / 2 + 1, 2, &x));
  assert_true(rs_mul(0, INT64_MAX, &x));
  assert_true(x == 0);
  assert_true(rs_add(INT64_MAX - 1, 1, &x));
  assert_true(x == INT64_MAX);
  assert_false(rs_add(INT64_MAX, 1, &x));
  assert_true(rs_ceil_div(0, 5) == 0);
  assert_true(rs_ceil_div(1, 5) == 1);
  assert_true(rs_ceil_div(5, 5) == 1);
  assert_true(rs_ceil_div(6, 5) == 2);
  assert_true(rs_ceil_div(INT64_MAX, 1) == INT64_MAX);
  assert_true(rs_ceil_div(INT64_MAX, 2) == INT64_MAX / 2 + 1);
  assert_true(rs_ceil_div(INT64_MAX, INT64_MAX) == 1);
  assert_true(rs_min(-1, 2) == -1 && rs_max(-1, 2) == 2);
}

CASE(allocations_of_nothing_and_too_much_are_told) {
  int64_t *p = (int64_t *)&p;
  GOOD(rs_alloc(&p, 0, sizeof *p));
  assert_null(p);
  GOOD(rs_alloc_zero(&p, 100, sizeof *p));
  for (int i = 0; i < 100; i++)
    assert_true(p[i] == 0);
  p[99] = 5;
  int64_t *copy;
  GOOD(rs_alloc_copy(&copy, p, 100, sizeof *p));
  assert_memory_equal(copy, p, 100 * sizeof *p);
  free(copy);
  free(p);
  GOOD(rs_alloc_copy(&copy, NULL, 0, sizeof *p));
  assert_null(copy);

  static const struct {
    int64_t n;
    size_t element;
  } wrong[] = {{INT64_MAX, 16}, {INT64_MAX, 2}, {INT64_MAX / 8 + 1, 8}, {-1, 1}, {INT64_MIN, 4}, {2, SIZE_MAX}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    p = (int64_t *)&p;
    assert_int_equal(rs_alloc(&p, wrong[i].n, wrong[i].element), RESHARD_ERROR_OUT_OF_MEMORY);
    assert_null(p);
    assert_non_null(strstr(reshard_last_error(), "out of memory"));
    p = (int64_t *)&p;
    assert_int_equal(rs_alloc_zero(&p, wrong[i].n, wrong[i].element), RESHARD_ERROR_OUT_OF_MEMORY);
    assert_null(p);
  }
}

/* Large lists begin at a huge page, whether the system has them or not, and may grow as others do. */
CASE(test_large_lists) {
  enum { HUGE_PAGE = 2 << 20 };
  for (int64_t bytes = HUGE_PAGE - 1; bytes <= 5 * HUGE_PAGE; bytes = bytes < HUGE_PAGE ? HUGE_PAGE : 2 * bytes + 1) {
    RS_VEC(char) list = {0};
    GOOD(rs_alloc(&list.at, bytes, 1));
    assert_true(bytes < HUGE_PAGE || (uintptr_t)list.at % HUGE_PAGE == 0);
    memset(list.at, 7, (size_t)bytes);
    list.n = list.cap = bytes;
    GOOD(rs_vec_reserve(&list, bytes + 1));
    assert_true(list.cap >= 2 * bytes && list.at[0] == 7 && list.at[bytes - 1] == 7);
    char *copy;
    GOOD(rs_alloc_copy(&copy, list.at, bytes, 1));
    assert_memory_equal(copy, list.at, (size_t)bytes);
    free(copy);
    free(list.at);
  }
}

CASE(vectors_grow_by_doubling) {
  RS_VEC(int64_t) v = {0};
  int64_t growths = 0, cap = 0;
  for (int64_t i = 0; i < 100000; i++) {
    GOOD(rs_vec_reserve(&v, v.n + 1));
    growths += v.cap != cap;
    cap = v.cap;
    v.at[v.n++] = i * i;
  }
  assert_true(growths < 20); /* appending is linear */
  for (int64_t i = 0; i < v.n; i++)
    assert_true(v.at[i] == i * i);
  int64_t *before = v.at;
  assert_int_equal(rs_vec_reserve(&v, INT64_MAX), RESHARD_ERROR_OUT_OF_MEMORY);
  assert_int_equal(rs_vec_reserve(&v, INT64_MAX / 8 + 1), RESHARD_ERROR_OUT_OF_MEMORY);
  assert_ptr_equal(v.at, before); /* as it was */
  assert_true(v.cap == cap && v.n == 100000 && v.at[99999] == (int64_t)99999 * 99999);
  GOOD(rs_vec_reserve(&v, 5));
  assert_ptr_equal(v.at, before);
  free(v.at);
}

CASE(text_is_the_same_in_any_room) {
  /* what the text is does not depend on the room, and the buffer's end is kept */
  for (size_t size = 0; size < 20; size++) {
    char buffer[32];
    memset(buffer, '#', sizeof buffer);
    rs_text text = {.at = size > 0 ? buffer : NULL, .size = size};
    rs_text_add(&text, "%s", "abc");
    rs_text_add(&text, "%d", 12345);
    rs_text_add(&text, "%s", "");
    rs_text_add(&text, "-%c", 'z');
    size_t needed = 99;
    reshard_status status = rs_text_finish(&text, &needed);
    assert_int_equal(needed, 11);
    assert_int_equal(status, size >= 11 ? RESHARD_SUCCESS : RESHARD_ERROR_INVALID);
    if (size > 0) {
      assert_int_equal(strlen(buffer), size < 11 ? size - 1 : 10);
      assert_memory_equal(buffer, "abc12345-z", strlen(buffer));
    }
    for (size_t i = size; i < sizeof buffer; i++)
      assert_int_equal(buffer[i], '#');
    if (status != RESHARD_SUCCESS)
      assert_non_null(strstr(reshard_last_error(), "needs 11 bytes"));
    assert_int_equal(rs_text_finish(&text, NULL), status);
  }
}

CASE(test_shapes_and_boxes) {
  char shape[RS_SHAPE_TEXT], box[RS_BOX_TEXT];
  const int64_t extents[8] = {13, 21, 0, 4, 5, 6, 7, 8}, offsets[8] = {0, 8, 1, 2, 3, 4, 5, 6};
  assert_string_equal(rs_shape_text(shape, 2, extents), "13x21");
  assert_string_equal(rs_shape_text(shape, 0, NULL), "scalar");
  assert_string_equal(rs_shape_text(shape, 8, extents), "13x21x0x4x5x6x7x8");
  assert_string_equal(rs_box_text(box, 2, offsets, (const int64_t[]){4, 4}), "[0,4)x[8,12)");
  assert_string_equal(rs_box_text(box, 0, NULL, NULL), "[]");
  const int64_t large[8] = {INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN},
                none[8] = {0};
  assert_int_equal(strlen(rs_shape_text(shape, 8, large)), 8 * 20 + 7);
  assert_int_equal(strlen(rs_box_text(box, 8, large, none)), 8 * 43 + 7);
}

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

CASE(hashes_differ_and_spread) {
  enum { N = 200000 };
  uint64_t *seen = malloc((N + 4096) * sizeof *seen);
  int64_t n = 0;
  for (uint64_t i = 0; i < N; i++)
    seen[n++] = rs_hash(0, &i, sizeof i);
  const char zeros[64] = {0};
  for (size_t size = 0; size < 64; size++) /* the length counts */
    seen[n++] = rs_hash(1, zeros, size);
  for (uint64_t seed = 2; seed < 1000; seed++) /* and so does the seed */
    seen[n++] = rs_hash(seed, zeros, 24);
  qsort(seen, (size_t)n, sizeof *seen, by_value);
  for (int64_t i = 1; i < n; i++)
    assert_true(seen[i] != seen[i - 1]);
  free(seen);

  /* every bit of the input moves about half of the output; no byte outside is read */
  rng r;
  rng_seed(&r, 1);
  for (size_t size = 1; size <= 40; size++) {
    unsigned char *bytes = malloc(size);
    for (size_t i = 0; i < size; i++)
      bytes[i] = (unsigned char)rng_next(&r);
    uint64_t hash = rs_hash(7, bytes, size);
    assert_true(hash == rs_hash(7, bytes, size));
    double moved = 0;
    for (size_t bit = 0; bit < 8 * size; bit++) {
      bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
      moved += __builtin_popcountll(hash ^ rs_hash(7, bytes, size));
      bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    moved /= 8 * (double)size;
    assert_true(moved > 26 && moved < 38);
    free(bytes);
  }
}

CASE(dtypes_have_names_and_sizes) {
  static const struct {
    const char *name;
    reshard_dtype dtype;
    size_t size;
  } all[] = {{"bool", RESHARD_BOOL, 1},       {"u8", RESHARD_U8, 1},           {"i8", RESHARD_I8, 1},
             {"u16", RESHARD_U16, 2},         {"i16", RESHARD_I16, 2},         {"u32", RESHARD_U32, 4},
             {"i32", RESHARD_I32, 4},         {"u64", RESHARD_U64, 8},         {"i64", RESHARD_I64, 8},
             {"f8_e4m3", RESHARD_F8_E4M3, 1}, {"f8_e5m2", RESHARD_F8_E5M2, 1}, {"f8_e8m0", RESHARD_F8_E8M0, 1},
             {"f16", RESHARD_F16, 2},         {"bf16", RESHARD_BF16, 2},       {"f32", RESHARD_F32, 4},
             {"f64", RESHARD_F64, 8},         {"c64", RESHARD_C64, 8},         {"c128", RESHARD_C128, 16}};
  assert_int_equal(sizeof all / sizeof *all, RESHARD_DTYPE_COUNT - 1);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    assert_int_equal(reshard_dtype_size(all[i].dtype), all[i].size);
    assert_string_equal(reshard_dtype_string(all[i].dtype), all[i].name);
    reshard_dtype dtype = RESHARD_DTYPE_NONE;
    GOOD(reshard_dtype_parse(all[i].name, &dtype));
    assert_int_equal(dtype, all[i].dtype);
    char upper[16] = "", mixed[16];
    for (size_t c = 0; all[i].name[c] != '\0'; c++)
      upper[c] = (char)toupper((unsigned char)all[i].name[c]);
    dtype = RESHARD_DTYPE_NONE; /* safetensors' spelling; it has no c128 */
    bool known = all[i].dtype != RESHARD_C128;
    assert_int_equal(reshard_dtype_parse(upper, &dtype), known ? RESHARD_SUCCESS : RESHARD_ERROR_INVALID);
    assert_int_equal(dtype, known ? all[i].dtype : RESHARD_DTYPE_NONE);
    snprintf(mixed, sizeof mixed, "%c%s", upper[0], all[i].name + 1);
    if (strcmp(mixed, upper) != 0)
      assert_int_equal(reshard_dtype_parse(mixed, &dtype), RESHARD_ERROR_INVALID);
    snprintf(mixed, sizeof mixed, "%s ", all[i].name);
    assert_int_equal(reshard_dtype_parse(mixed, &dtype), RESHARD_ERROR_INVALID);
  }
  reshard_dtype dtype = RESHARD_F64;
  static const char *const wrong[] = {"", "none", "float32", "f3", "f322", "NONE"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    assert_int_equal(reshard_dtype_parse(wrong[i], &dtype), RESHARD_ERROR_INVALID);
    char quoted[32];
    snprintf(quoted, sizeof quoted, "'%s'", wrong[i]);
    assert_non_null(strstr(reshard_last_error(), quoted));
    for (size_t j = 0; j < sizeof all / sizeof *all; j++) /* the list of names */
      assert_non_null(strstr(reshard_last_error(), all[j].name));
  }
  assert_int_equal(reshard_dtype_parse(NULL, &dtype), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_dtype_parse("f32", NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(dtype, RESHARD_F64);
  assert_int_equal(reshard_dtype_size(RESHARD_DTYPE_NONE), 0);
  assert_int_equal(reshard_dtype_size(RESHARD_DTYPE_COUNT), 0);
  assert_int_equal(reshard_dtype_size((reshard_dtype)-1), 0);
  assert_string_equal(reshard_dtype_string(RESHARD_DTYPE_NONE), "none");
  assert_string_equal(reshard_dtype_string((reshard_dtype)1000), "none");
  assert_string_equal(reshard_dtype_string((reshard_dtype)-1), "none");
}

CASE(lists_of_numbers_print_in_the_room_given) {
  static const int64_t numbers[] = {3, 4, 5, 9, 11, 12};
  char text[32], small[8];
  assert_string_equal(rs_list_text(text, sizeof text, 3, numbers), "[3,4,5]");
  assert_string_equal(rs_list_text(text, sizeof text, 0, NULL), "[]");
  assert_string_equal(rs_ranges_text(text, sizeof text, 6, numbers), "3-5,9,11-12");
  assert_string_equal(rs_ranges_text(text, sizeof text, 1, numbers), "3");
  assert_string_equal(rs_ranges_text(text, sizeof text, 0, NULL), "");
  assert_string_equal(rs_ranges_text(small, sizeof small, 6, numbers), "3-5,...");
}

CASE(deadlines_pass_without_overflow) {
  int64_t ms = 1000000, now = rs_now_ns();
  assert_true(rs_late(now - 7 * ms, 7));
  assert_false(rs_late(now - 7 * ms, 7000));
  assert_false(rs_late(now - 7 * ms, 0)); /* none */
  assert_false(rs_late(now, 9300000000000));
  assert_false(rs_late(now, INT64_MAX));
}

RUN_CASES
