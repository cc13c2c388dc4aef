/* Variables of the environment that set up a CPU device, widths of elements that its transposes take. */
#include "device/cpu/copy/kernels.h"
#include "device/environment.h"

#include <stdlib.h>
#include <string.h>

#include "support/fixtures/case.h"

static reshard_status read_isa(const char *text, reshard_isa *isa) {
  int threads = 1;
  assert_int_equal(setenv("RESHARD_ISA", text, 1), 0);
  reshard_status status = rs_environment_cpu(&threads, isa);
  assert_int_equal(unsetenv("RESHARD_ISA"), 0);
  assert_int_equal(threads, 1);
  return status;
}

CASE(names_of_instruction_sets_are_read) {
  reshard_isa isa;
  for (int i = 0; i < RESHARD_ISA_COUNT; i++) {
    isa = RESHARD_ISA_AUTO;
    assert_int_equal(read_isa(reshard_isa_string((reshard_isa)i), &isa), RESHARD_SUCCESS);
    assert_int_equal(isa, i);
  }
  isa = RESHARD_ISA_AUTO;
  assert_int_equal(read_isa("", &isa), RESHARD_SUCCESS);
  assert_int_equal(isa, RESHARD_ISA_AUTO);
  isa = RESHARD_ISA_SCALAR; /* what the caller asks for goes first, whatever is set */
  assert_int_equal(read_isa("none", &isa), RESHARD_SUCCESS);
  assert_int_equal(isa, RESHARD_ISA_SCALAR);
  const char *const wrong[] = {"AVX2", "avx", "avx5120", " sse2", "none", reshard_isa_string(RESHARD_ISA_COUNT)};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    isa = RESHARD_ISA_AUTO;
    assert_int_equal(read_isa(wrong[i], &isa), RESHARD_ERROR_INVALID);
    assert_int_equal(isa, RESHARD_ISA_AUTO);
    assert_non_null(strstr(reshard_last_error(), wrong[i]));
  }
}

CASE(numbers_of_threads_are_read) {
  static const struct {
    int given;
    const char *text;
    int threads; /* -1: refused */
  } cases[] = {{0, "3", 3},     {2, "3", 2},   {0, "", 0},       {0, "0", 0},    {0, "4096", 4096},
               {0, "4097", -1}, {0, "-1", -1}, {4096, "", 4096}, {4097, "", -1}, {-1, "", -1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    reshard_isa isa = RESHARD_ISA_AUTO;
    int threads = cases[i].given;
    assert_int_equal(setenv("RESHARD_THREADS", cases[i].text, 1), 0);
    reshard_status status = rs_environment_cpu(&threads, &isa);
    assert_int_equal(unsetenv("RESHARD_THREADS"), 0);
    assert_int_equal(status, cases[i].threads < 0 ? RESHARD_ERROR_INVALID : RESHARD_SUCCESS);
    assert_int_equal(threads, cases[i].threads < 0 ? cases[i].given : cases[i].threads);
  }
}

CASE(widths_of_transposes_are_powers_of_two) {
  for (int64_t width = -2; width <= 65; width++) {
    int index = -1;
    for (int i = 0; i <= 4; i++)
      if (width == (int64_t)1 << i)
        index = i;
    assert_int_equal(rs_width_index(width), index);
  }
}

RUN_CASES
