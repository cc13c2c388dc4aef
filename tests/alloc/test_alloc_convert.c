/* The k-th allocation fails while a checkpoint is converted, to numbers with scales of blocks and back, cut for ranks
 * and whole: no part of an output is left, and the same call right after makes the files that it made before. */
#include "support/fault_local.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef RS_HAVE_JANSSON

#define T SCRATCH_TENSOR

typedef struct conversion {
  const char *in, *made, *wanted; /* wanted: what the same call has made */
  reshard_convert_options options;
} conversion;

static reshard_status convert(fault_output *out, const void *with) {
  const conversion *c = with;
  reshard_convert_report report = {.tensors = -1};
  reshard_status status = reshard_convert(scratch_path(c->in), scratch_path(c->made), &c->options, &report);
  if (status == RESHARD_SUCCESS)
    out->number = report.tensors;
  else
    assert_true(report.tensors == -1 && strstr(scratch_list(""), "made") == NULL);
  return status;
}

static void assert_same_file(const char *made, const char *wanted) {
  size_t n, m;
  char *a = scratch_read(made, &n), *b = scratch_read(wanted, &m);
  assert_int_equal(n, m);
  assert_memory_equal(a, b, n);
  free(a);
  free(b);
}

static bool same(const fault_output *out, const void *with) {
  const conversion *c = with;
  char names[512] = "", made[600], wanted[600];
  if (strchr(c->made, '.') != NULL)
    assert_same_file(c->made, c->wanted);
  else
    snprintf(names, sizeof names, "%s", scratch_list(c->made));
  assert_true(names[0] == '\0' || strcmp(names, scratch_list(c->wanted)) == 0);
  for (char *name = strtok(names, " "); name != NULL; name = strtok(NULL, " ")) {
    snprintf(made, sizeof made, "%s/%s", c->made, name);
    snprintf(wanted, sizeof wanted, "%s/%s", c->wanted, name);
    assert_same_file(made, wanted);
  }
  return out->number > 0;
}

static void drop(fault_output *out) {
  scratch_remove("made");
  scratch_remove("made.safetensors");
}

static void check_conversion(const char *in, const char *made, const char *wanted, reshard_convert_options options) {
  options.size = RESHARD_CONVERT_OPTIONS_INIT;
  options.threads = 1;
  conversion c = {in, made, wanted, options};
  if (reshard_convert(scratch_path(in), scratch_path(wanted), &options, NULL) != RESHARD_SUCCESS)
    fail_msg("%s: %s", wanted, reshard_last_error());
  assert_true(fault_local_run(&(fault_local){wanted, convert, same, drop, &c}) >= 200);
}

#define HEADER \
  "{" T("w", "F32", "[6,5]", "[0,120]") "," T("m", "BF16", "[2,4,3]", "[120,168]") "," T( \
      "v", "F16", "[9]", "[168,186]") "," T("i", "I64", "[2]", "[186,202]") "}"

CASE(conversions_leave_nothing_after_any_failed_allocation) {
  reshard_convert_options to = {.dst = "rank(0)", .dtype = RESHARD_F8_E4M3, .blocks = {2, 3, RESHARD_F32}};
  scratch_safetensors("in.safetensors", HEADER, 202, 1);
  check_conversion("in.safetensors", "made.safetensors", "scaled.safetensors", to);
  to.dst = "mesh(3;R)";
  to.dedup = 1;
  check_conversion("in.safetensors", "made", "ranks", to);
  check_conversion("ranks", "made", "back",
                   (reshard_convert_options){.dst = "chunk(0)", .world = 2, .dtype = RESHARD_BF16, .verify = 1});
}

/* Each call syncs, which takes longest on a disk. */
static int set_up(void **state) {
  if (access("/dev/shm", W_OK) == 0)
    setenv("TMPDIR", "/dev/shm", 1);
  return scratch_setup(state);
}

RUN_CASES_WITH(set_up, scratch_teardown)

#else
RUN_CASES_IF(0, "built without jansson")
#endif
