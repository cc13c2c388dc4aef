/* The k-th allocation fails while tensors, views and managed tensors are made, and while storage is allocated: the call
 * says so, its output is as it was, nothing is left behind, and lent memory is still the caller's. */
#include "bench/cli/util.h"
#include "support/fault_local.h"
#include "support/fixtures/case.h"
#include "tensor/dlpack.h"

#include <reshard/tensor.h>

#include <string.h>

enum { SMALL = 1000, LARGE = 1 << 20 };

typedef struct local {
  reshard_device device;
  reshard_tensor tensor, freed;
  rs_dl_versioned managed;
  int64_t shape[2], bytes;
  int released, deleted;
  char memory[SMALL];
} local;

static void memory_release(void *user, void *data) { ++*(int *)user; }
static void delete_managed(rs_dl_versioned *self) { ++*(int *)self->owner; }

static void drop_tensor(fault_output *out) { reshard_tensor_release(out->object); }
static void drop_device(fault_output *out) { reshard_device_release(out->object); }
static void drop_managed(fault_output *out) {
  rs_dl_versioned *managed = out->object;
  managed->deleter(managed);
}
/* Keeps *out as it was until there is a result. */
#define MAKE(name, type, expression) \
  static reshard_status name(fault_output *out, const void *with) { \
    local *l = (local *)with; \
    type made = out->object; \
    reshard_status status = (expression); \
    out->object = made; \
    return status; \
  }
static const reshard_device_options options = {.size = RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .keep_bytes = -1};
MAKE(make_device, reshard_device, ((void)l, reshard_device_create("cpu", &options, &made)))
MAKE(make_plain, reshard_tensor, reshard_tensor_create(RESHARD_U8, 1, &l->bytes, &made))
MAKE(make_pooled, reshard_tensor, reshard_tensor_create_on(l->device, RESHARD_U8, 1, &l->bytes, NULL, &made))
MAKE(make_wrapped, reshard_tensor,
     reshard_tensor_wrap_on(l->device, RESHARD_U8, 2, l->shape, NULL, l->memory, memory_release, &l->released, &made))
MAKE(make_strided, reshard_tensor, reshard_tensor_as_strided(l->tensor, 2, l->shape, NULL, 3, &made))
MAKE(make_narrow, reshard_tensor, reshard_tensor_narrow(l->tensor, 0, 5, 7, &made))
MAKE(make_permuted, reshard_tensor, reshard_tensor_permute(l->tensor, (int[]){0}, &made))
MAKE(make_reshaped, reshard_tensor, reshard_tensor_reshape(l->tensor, 2, (int64_t[]){-1, 10}, &made))
MAKE(make_imported, reshard_tensor, reshard_tensor_from_dlpack(&l->managed, 1, 0, &made))
MAKE(make_exported, void *, reshard_tensor_to_dlpack(l->tensor, 1, &made))

/* Allocates storage that is freed, and frees it again; a failed call leaves it freed. */
static reshard_status alloc_storage(fault_output *out, const void *with) {
  const local *l = with;
  int allocated = 0;
  reshard_status status = reshard_storage_alloc(l->freed, LARGE, NULL, &allocated);
  if (status == RESHARD_SUCCESS)
    out->number = allocated;
  else if (allocated != 0 || reshard_data_allocated(l->freed))
    out->number = -1; /* which is found to be written to */
  return status;
}
static bool is_there(const fault_output *out, const void *with) {
  local *l = (local *)with;
  bool there = out->number == 1 && reshard_data_allocated(l->freed);
  return reshard_storage_free(l->freed, NULL, NULL) == RESHARD_SUCCESS && there;
}

CASE(calls_of_tensors_survive_any_failed_allocation) {
  static int64_t shape[1] = {SMALL}, strides[1] = {1};
  local l = {.shape = {10, 20}, .bytes = LARGE};
  int64_t live = fault_live(), large = LARGE, small = SMALL;
  CLI_TRY("device: ", reshard_device_create("cpu", &options, &l.device));
  CLI_TRY("tensor: ", reshard_tensor_create_on(l.device, RESHARD_U8, 1, &small, NULL, &l.tensor));
  CLI_TRY("tensor: ", reshard_tensor_create_on(l.device, RESHARD_U8, 1, &large, NULL, &l.freed));
  CLI_TRY("free: ", reshard_storage_free(l.freed, NULL, NULL)); /* what the pool needs to know of blocks is there now */
  l.managed = (rs_dl_versioned){.major = 1,
                                .owner = &l.deleted,
                                .deleter = delete_managed,
                                .tensor = {.data = l.memory,
                                           .device_type = RS_DL_CPU,
                                           .ndim = 1,
                                           .code = RS_DL_UINT,
                                           .bits = 8,
                                           .lanes = 1,
                                           .shape = shape,
                                           .strides = strides}};
  const struct {
    fault_local call;
    int64_t allocations; /* at least */
  } cases[] = {
      {{"reshard_device_create", make_device, fault_any_output, drop_device, &l}, 3},
      {{"reshard_tensor_create", make_plain, fault_any_output, drop_tensor, &l}, 3},
      {{"reshard_tensor_create_on", make_pooled, fault_any_output, drop_tensor, &l}, 3},
      {{"reshard_tensor_wrap_on", make_wrapped, fault_any_output, drop_tensor, &l}, 2},
      {{"reshard_tensor_as_strided", make_strided, fault_any_output, drop_tensor, &l}, 1},
      {{"reshard_tensor_narrow", make_narrow, fault_any_output, drop_tensor, &l}, 1},
      {{"reshard_tensor_permute", make_permuted, fault_any_output, drop_tensor, &l}, 1},
      {{"reshard_tensor_reshape", make_reshaped, fault_any_output, drop_tensor, &l}, 1},
      {{"reshard_tensor_from_dlpack", make_imported, fault_any_output, drop_tensor, &l}, 2},
      {{"reshard_tensor_to_dlpack", make_exported, fault_any_output, drop_managed, &l}, 1},
      {{"reshard_storage_alloc", alloc_storage, is_there, NULL, &l}, 1},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int64_t allocations = fault_local_run(&cases[i].call);
    if (allocations < cases[i].allocations)
      fail_msg("%s allocates %lld times", cases[i].call.name, (long long)allocations);
    /* a run that is well after each that failed, and the last one */
    if (cases[i].call.call == make_wrapped)
      assert_int_equal(l.released, allocations + 1);
    if (cases[i].call.call == make_imported)
      assert_int_equal(l.deleted, allocations + 1);
  }
  reshard_tensor_release(l.tensor);
  reshard_tensor_release(l.freed);
  reshard_device_release(l.device);
  assert_int_equal(fault_live(), live);
}

RUN_CASES
