/* The k-th allocation fails, for every k, in the opening of a checkpoint of each format, and in what is asked of it.
 *
 * Of this library's own: jansson 2.14 takes no notice when it cannot grow the text of a string of 16 bytes or more. It
 * goes on with what it has, to an assertion at worst; there is nothing to be done about it from outside. */
#include "support/fault_local.h"
#include "support/fixtures/case.h"
#include "support/fixtures/recorded.h"
#include "support/fixtures/scratch.h"

#include <string.h>

#define T SCRATCH_TENSOR

typedef struct opened {
  const char *name;
  int64_t tensors, bytes;
  reshard_file_format format;
  const char *tensor;            /* a name that is there */
  reshard_checkpoint checkpoint; /* made without faults */
} opened;

static reshard_status open_one(fault_output *out, const void *with) {
  const opened *o = with;
  reshard_checkpoint made = out->object;
  reshard_status status = reshard_checkpoint_open(scratch_path(o->name), &made);
  out->object = made;
  return status;
}

static reshard_status open_of_ranks(fault_output *out, const void *with) {
  const opened *o = with;
  reshard_checkpoint made = out->object;
  reshard_status status = reshard_checkpoint_open_ranks(scratch_path(o->name), "{R}.*", "chunk(0)", NULL, 2, &made);
  out->object = made;
  return status;
}

static bool good(const fault_output *out, const void *with) {
  const opened *o = with;
  reshard_checkpoint_info info;
  int64_t i;
  return reshard_checkpoint_get_info(out->object, &info) == RESHARD_SUCCESS && info.tensors == o->tensors &&
         info.bytes == o->bytes && info.format == o->format &&
         (o->tensors == 0 || reshard_checkpoint_find(out->object, o->tensor, &i) == RESHARD_SUCCESS);
}

static void checkpoint_drop(fault_output *out) { reshard_checkpoint_close(out->object); }

static reshard_status layout_of(fault_output *out, const void *with) {
  const opened *o = with;
  reshard_layout made = out->object;
  reshard_status status = reshard_checkpoint_layout(o->checkpoint, 0, &made);
  out->object = made;
  return status;
}
static bool some_layout(const fault_output *out, const void *with) {
  return reshard_layout_check_source(out->object) == RESHARD_SUCCESS;
}
static void drop_layout(fault_output *out) { reshard_layout_release(out->object); }

static void check_faults_named(const char *name, reshard_file_format format, int64_t tensors, int64_t bytes,
                               const char *tensor, int64_t least) {
  opened o = {name, tensors, bytes, format, tensor, NULL};
  o.checkpoint = scratch_open(name);
  assert_true(fault_local_run(&(fault_local){name, open_one, good, checkpoint_drop, &o}) >= least);
  fault_local_run(&(fault_local){"checkpoint_layout", layout_of, some_layout, drop_layout, &o});
  reshard_checkpoint_close(o.checkpoint);
}

static void check_open_faults(const char *name, reshard_file_format format, int64_t tensors, int64_t bytes,
                              int64_t least) {
  check_faults_named(name, format, tensors, bytes, tensors > 1 ? "w" : "tensor", least);
}

CASE(npy_files_open_after_any_failed_allocation) {
  static const char header[] = "{'descr': '<f2', 'fortran_order': True, 'shape': (2, 3), }\n";
  char bytes[128] = "\x93NUMPY\1";
  bytes[8] = sizeof header - 1;
  memcpy(bytes + 10, header, sizeof header - 1);
  scratch_write("a.npy", bytes, 10 + sizeof header - 1 + 12);
  check_open_faults("a.npy", RESHARD_FORMAT_NPY, 1, 12, 5);
}

/* Shards of PyTorch's own format, and a file of torch.save. */
CASE(torch_files_open_after_any_failed_allocation) {
  if (!recorded_there())
    skip();
  recorded_sharded("d");
  recorded file = recorded_read("state.pt");
  scratch_write("s.pt", file.at, file.n);
  recorded_free(&file);
  check_faults_named("d", RESHARD_FORMAT_DISTCP, 12, 180, "rows", 100);
  check_faults_named("s.pt", RESHARD_FORMAT_TORCH, 25, 533, "scalar", 50);
}

#ifdef RS_HAVE_JANSSON

#define WV "{" T("w", "U8", "[2,3]", "[0,6]") "," T("v", "F32", "[]", "[6,10]") "}"

CASE(whole_tensors_open_after_any_failed_allocation) {
  static const char index[] = "{\"weight_map\":{\"w\":\"a.safetensors\",\"v\":\"a.safetensors\","
                              "\"x\":\"./b.safetensors\"}}";
  scratch_directory("d");
  scratch_safetensors("d/a.safetensors", WV, 10, 1);
  check_open_faults("d/a.safetensors", RESHARD_FORMAT_SAFETENSORS, 2, 10, 5);
  scratch_safetensors("d/b.safetensors", "{" T("x", "U8", "[0,3]", "[0,0]") "}", 0, 1);
  check_open_faults("d", RESHARD_FORMAT_WHOLE, 3, 10, 10);
  scratch_write("d/model.safetensors.index.json", index, sizeof index - 1);
  check_open_faults("d", RESHARD_FORMAT_WHOLE, 3, 10, 15);
}

/* JSON in the strings of a header. */
#define META(sharding, more) "{\"__metadata__\":{\"format\":\"pt\",\"DCP_SHARDING_INFO\":\"" sharding "\"" more "},"
#define AT(w)                "{\\\"w\\\":{\\\"saved_offsets\\\":" w "},\\\"v\\\":{\\\"saved_offsets\\\":[0]}}"
#define SET(w, more) \
  ",\"reshard\":\"{\\\"version\\\":1,\\\"world\\\":3,\\\"files\\\":[\\\"a.safetensors\\\",\\\"b.safetensors\\\"]," \
  "\\\"shapes\\\":{\\\"w\\\":[4,3],\\\"v\\\":[5]},\\\"layout\\\":{\\\"w\\\":\\\"" w "\\\",\\\"v\\\":\\\"mesh(2@1-2;R)" \
  "\\\"}" more "}\""
#define RUNS(first, second) ",\\\"intervals\\\":{\\\"w\\\":[[" first "," second "],[[0,3]]]}"
#define BOTH                T("w", "U8", "[2,3]", "[0,6]") "," T("v", "U8", "[5]", "[6,11]") "}"

CASE(shards_open_after_any_failed_allocation) {
  scratch_directory("d");
  scratch_safetensors("d/a.safetensors", META(AT("[0,0]"), "") BOTH, 11, 1);
  scratch_safetensors("d/b.safetensors", META(AT("[2,0]"), "") BOTH, 11, 1);
  check_open_faults("d", RESHARD_FORMAT_SHARDS, 2, 17, 20);
  scratch_safetensors("d/a.safetensors", META(AT("[0,0]"), SET("mesh(2@2-1;S0)", "")) BOTH, 11, 1);
  scratch_safetensors("d/b.safetensors", META(AT("[2,0]"), SET("mesh(2@2-1;S0)", "")) BOTH, 11, 1);
  check_open_faults("d", RESHARD_FORMAT_SHARDS, 2, 17, 20);
  scratch_safetensors("d/a.safetensors", META(AT("[0,0]"), SET("cyclic(2x1@2-1;1x3)", RUNS("[0,1]", "[2,3]"))) BOTH, 11,
                      1);
  scratch_safetensors("d/b.safetensors", META(AT("[1,0]"), SET("cyclic(2x1@2-1;1x3)", RUNS("[1,2]", "[3,4]"))) BOTH, 11,
                      1);
  check_open_faults("d", RESHARD_FORMAT_SHARDS, 2, 17, 20);
}

/* A set with a gap. */
CASE(sets_with_a_gap_are_refused_after_any_failed_allocation) {
  scratch_directory("d");
  scratch_safetensors("d/a.safetensors", META(AT("[0,0]"), SET("mesh(2@2-1;S0)", "")) BOTH, 11, 1);
  scratch_safetensors("d/b.safetensors", META(AT("[1,0]"), SET("mesh(2@2-1;S0)", "")) BOTH, 11, 1);
  for (int64_t k = 0;; k++) {
    int64_t live = fault_live();
    reshard_checkpoint checkpoint = NULL;
    fault_mark(true);
    fault_arm(k);
    reshard_status status = reshard_checkpoint_open(scratch_path("d"), &checkpoint);
    fault_disarm();
    fault_mark(false);
    assert_null(checkpoint);
    assert_int_equal(fault_live(), live);
    if (fault_fired() == FAULT_NONE) {
      assert_int_equal(status, RESHARD_ERROR_INVALID);
      break;
    }
    assert_int_equal(status, RESHARD_ERROR_OUT_OF_MEMORY);
  }
}

/* Two ranks' files, with a replica that is compared. */
CASE(test_rank_files) {
  scratch_directory("r");
  for (int r = 0; r < 2; r++)
    scratch_safetensors(r == 0 ? "r/0.safetensors" : "r/1.safetensors", WV, 10, 1);
  opened o = {"r", 2, 16, RESHARD_FORMAT_SHARDS, "w", NULL};
  assert_true(fault_local_run(&(fault_local){"open_ranks", open_of_ranks, good, checkpoint_drop, &o}) >= 30);
}

#endif

RUN_CASES_WITH(scratch_setup, scratch_teardown)
