/* DLPack without another program: every field that is read, who owns what when, and deleters that are called once.
 * tests/files/dlpack.sh has its header, and the round trip with NumPy and PyTorch. */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "tensor/dlpack.h"

#include <reshard/tensor.h>

#include <stdio.h>
#include <string.h>

/* A managed tensor of each form over the same memory. */
typedef struct source {
  int16_t memory[64];
  int64_t shape[2], strides[2];
  rs_dl_managed older;
  rs_dl_versioned newer;
  int deleted;
} source;

static void delete_older(rs_dl_managed *self) { ((source *)self->owner)->deleted++; }
static void delete_newer(rs_dl_versioned *self) { ((source *)self->owner)->deleted++; }

static void fill_source(source *s) {
  *s = (source){.shape = {3, 4}, .strides = {1, 5}};
  const rs_dl_tensor tensor = {.data = s->memory,
                               .device_type = RS_DL_CPU,
                               .ndim = 2,
                               .code = RS_DL_INT,
                               .bits = 16,
                               .lanes = 1,
                               .shape = s->shape,
                               .strides = s->strides};
  for (int i = 0; i < 64; i++)
    s->memory[i] = (int16_t)i;
  s->older = (rs_dl_managed){tensor, s, delete_older};
  s->newer = (rs_dl_versioned){1, 0, s, delete_newer, 0, tensor};
}

static void *form(source *s, int versioned) { return versioned ? (void *)&s->newer : (void *)&s->older; }
static rs_dl_tensor *tensor_of(source *s, int versioned) { return versioned ? &s->newer.tensor : &s->older.tensor; }

static reshard_tensor_info source_take(source *s, int versioned, reshard_tensor *t) {
  reshard_tensor_info info;
  GOOD(reshard_tensor_from_dlpack(form(s, versioned), versioned, 0, t));
  GOOD(reshard_tensor_get_info(*t, &info));
  return info;
}

CASE(managed_tensors_are_taken_with_all_fields) {
  for (int versioned = 0; versioned < 2; versioned++) {
    source s;
    reshard_tensor t, view;
    fill_source(&s);
    tensor_of(&s, versioned)->byte_offset = 6;
    reshard_tensor_info info = source_take(&s, versioned, &t);
    assert_true(info.dtype == RESHARD_I16 && info.ndim == 2 && info.shape[0] == 3 && info.shape[1] == 4);
    assert_true(info.strides[0] == 1 && info.strides[1] == 5 && !info.contiguous && !info.overlapping);
    assert_ptr_equal(info.data, s.memory + 3);
    assert_true(info.storage_bytes == 36 && info.offset == 0 && info.device_type == RESHARD_DEVICE_CPU);
    assert_true(!info.pin_memory && !info.requires_grad);
    GOOD(reshard_tensor_narrow(t, 0, 1, 2, &view));
    reshard_tensor_release(t);
    assert_int_equal(s.deleted, 0); /* the view keeps it */
    reshard_tensor_release(view);
    assert_int_equal(s.deleted, 1);

    fill_source(&s); /* strides NULL: contiguous; pinned memory; nobody who deletes */
    tensor_of(&s, versioned)->strides = NULL;
    tensor_of(&s, versioned)->device_type = RS_DL_CUDA_HOST;
    tensor_of(&s, versioned)->device_index = 5;
    s.older.deleter = NULL;
    s.newer.deleter = NULL;
    info = source_take(&s, versioned, &t);
    assert_true(info.contiguous && info.pin_memory && info.device_type == RESHARD_DEVICE_CPU && info.device_index == 0);
    reshard_tensor_release(t);
    assert_int_equal(s.deleted, 0);

    fill_source(&s); /* no elements need no memory */
    s.shape[1] = 0;
    tensor_of(&s, versioned)->data = NULL;
    info = source_take(&s, versioned, &t);
    assert_true(info.elements == 0 && info.data == NULL && reshard_data_allocated(t));
    reshard_tensor_release(t);
    assert_int_equal(s.deleted, 1);
  }
}

/* A GPU's memory is only carried here: nothing of it is touched. */
CASE(test_in_of_gpu) {
  source s;
  reshard_tensor t, index, dst;
  void *managed;
  fill_source(&s);
  s.newer.tensor.device_type = RS_DL_CUDA;
  s.newer.tensor.device_index = 3;
  reshard_tensor_info info = source_take(&s, 1, &t);
  assert_true(info.device_type == RESHARD_DEVICE_CUDA && info.device_index == 3 && info.data == s.memory);
  GOOD(reshard_tensor_create(RESHARD_I64, 1, (int64_t[]){2}, &index));
  GOOD(reshard_tensor_create(RESHARD_I16, 2, (int64_t[]){2, 4}, &dst));
  BAD(reshard_index_select(t, 0, index, dst, 1, NULL),
      "reshard_index_select: src: a tensor on cuda:3, and not on the CPU");
  BAD(reshard_index_select(dst, 0, index, t, 1, NULL),
      "reshard_index_select: tensors on cuda:3, of which none was made with a device");
  GOOD(reshard_tensor_to_dlpack(t, 1, &managed));
  const rs_dl_versioned *out = managed;
  assert_true(out->tensor.device_type == RS_DL_CUDA && out->tensor.device_index == 3);
  reshard_tensor_release(t);
  assert_int_equal(s.deleted, 0);
  out->deleter(managed);
  assert_int_equal(s.deleted, 1);
  reshard_tensor_release(index);
  reshard_tensor_release(dst);
}

/* After an error the managed tensor is the caller's, as it was. */
CASE(refused_managed_tensor_stays_the_callers) {
  static const char call[] = "reshard_tensor_from_dlpack";
  reshard_tensor t = NULL;
  int64_t bad[2] = {-1, 4}, back[2] = {4, -1};
  for (int versioned = 0; versioned < 2; versioned++) {
    source s;
    rs_dl_tensor *tensor = tensor_of(&s, versioned);
    char text[160];
#define REFUSE(status, change, ...) \
  do { \
    fill_source(&s); \
    change; \
    snprintf(text, sizeof text, __VA_ARGS__); \
    FAILS(reshard_tensor_from_dlpack(form(&s, versioned), versioned, 0, &t), status, text); \
    assert_true(s.deleted == 0 && t == NULL); \
  } while (0)
    REFUSE(RESHARD_ERROR_UNSUPPORTED, tensor->lanes = 4, "%s: dtype of code 0, 16 bits and 4 lanes", call);
    REFUSE(RESHARD_ERROR_UNSUPPORTED, tensor->bits = 4, "%s: dtype of code 0, 4 bits and 1 lanes", call);
    REFUSE(RESHARD_ERROR_UNSUPPORTED, tensor->code = 3, "%s: dtype of code 3, 16 bits and 1 lanes", call);
    REFUSE(RESHARD_ERROR_UNSUPPORTED, tensor->device_type = 10,
           "%s: device type 10, the CPU (1, 3) and CUDA (2) are known", call);
    REFUSE(RESHARD_ERROR_INVALID, (tensor->device_type = RS_DL_CUDA, tensor->device_index = -2), "%s: CUDA device -2",
           call);
    REFUSE(RESHARD_ERROR_INVALID, tensor->ndim = 9, "%s: 9 dims, 0 to 8 are allowed", call);
    REFUSE(RESHARD_ERROR_INVALID, tensor->ndim = -1, "%s: -1 dims, 0 to 8 are allowed", call);
    REFUSE(RESHARD_ERROR_INVALID, tensor->shape = NULL, "%s: shape is NULL", call);
    REFUSE(RESHARD_ERROR_INVALID, tensor->shape = bad, "%s: extent -1 of dim 0 is negative", call);
    REFUSE(RESHARD_ERROR_INVALID, tensor->strides = back, "%s: stride -1 of dim 1 is negative", call);
    REFUSE(RESHARD_ERROR_INVALID, tensor->data = NULL, "%s: data is NULL and should hold 12 elements", call);
    if (versioned) {
      REFUSE(RESHARD_ERROR_UNSUPPORTED, s.newer.major = 2, "%s: DLPack version 2.0, 1 is understood", call);
      REFUSE(RESHARD_ERROR_INVALID, s.newer.flags = RS_DL_READ_ONLY, "%s: the tensor is read-only", call);
    }
    fill_source(&s);
    s.newer.minor = 99; /* a later minor version adds values only */
    reshard_tensor_info info = source_take(&s, versioned, &t);
    assert_int_equal(info.elements, 12);
    reshard_tensor_release(t);
    assert_int_equal(s.deleted, 1);
    t = NULL;
  }
  void *managed = NULL;
  BAD(reshard_tensor_from_dlpack(NULL, 1, 0, &t), "reshard_tensor_from_dlpack: managed is NULL");
  BAD(reshard_tensor_from_dlpack(&t, 1, 0, NULL), "reshard_tensor_from_dlpack: tensor is NULL");
  BAD(reshard_tensor_to_dlpack(NULL, 1, &managed), "reshard_tensor_to_dlpack: tensor is NULL");
  GOOD(reshard_tensor_create(RESHARD_F32, 0, NULL, &t));
  BAD(reshard_tensor_to_dlpack(t, 1, NULL), "reshard_tensor_to_dlpack: managed is NULL");
  reshard_tensor_release(t);
}

/* Read-only stays with it, and the form that cannot say so is refused. */
CASE(test_read_only) {
  source s;
  reshard_tensor t, view;
  void *managed = NULL;
  fill_source(&s);
  s.newer.flags = RS_DL_READ_ONLY;
  GOOD(reshard_tensor_from_dlpack(&s.newer, 1, 1, &t));
  GOOD(reshard_tensor_permute(t, (int[]){1, 0}, &view));
  reshard_tensor_release(t);
  FAILS(reshard_tensor_to_dlpack(view, 0, &managed), RESHARD_ERROR_UNSUPPORTED,
        "reshard_tensor_to_dlpack: the tensor is read-only, which the unversioned form cannot say");
  assert_null(managed);
  GOOD(reshard_tensor_to_dlpack(view, 1, &managed));
  rs_dl_versioned *out = managed;
  assert_int_equal(out->flags, RS_DL_READ_ONLY);
  reshard_tensor_release(view);
  out->deleter(out);
  assert_int_equal(s.deleted, 1);
}

/* Every dtype goes out and comes back as itself. */
CASE(every_dtype_goes_out_and_comes_back) {
  for (int d = RESHARD_BOOL; d < RESHARD_DTYPE_COUNT; d++)
    for (int versioned = 0; versioned < 2; versioned++) {
      reshard_tensor t, view, back;
      reshard_tensor_info info, again;
      void *managed;
      GOOD(reshard_tensor_create((reshard_dtype)d, 2, (int64_t[]){4, 6}, &t));
      GOOD(reshard_tensor_narrow(t, 1, 2, 3, &view));
      reshard_tensor_release(t);
      GOOD(reshard_tensor_get_info(view, &info));
      GOOD(reshard_tensor_to_dlpack(view, versioned, &managed));
      reshard_tensor_release(view); /* the managed tensor keeps the storage */
      const rs_dl_tensor *out = versioned ? &((rs_dl_versioned *)managed)->tensor : &((rs_dl_managed *)managed)->tensor;
      assert_true(out->bits == 8 * reshard_dtype_size((reshard_dtype)d) && out->lanes == 1 && out->byte_offset == 0);
      assert_true(out->data == info.data && out->device_type == RS_DL_CPU && out->device_index == 0);
      memset(out->data, 1, reshard_dtype_size((reshard_dtype)d));
      GOOD(reshard_tensor_from_dlpack(managed, versioned, 0, &back));
      GOOD(reshard_tensor_get_info(back, &again));
      assert_true(again.dtype == info.dtype && again.data == info.data && again.ndim == 2);
      assert_memory_equal(again.shape, info.shape, sizeof info.shape);
      assert_memory_equal(again.strides, info.strides, sizeof info.strides);
      reshard_tensor_release(back);
    }
}

/* Deleters may be called from any thread, while the storage has other occupants. */
enum { THREADS = 4, TIMES = 300 };
static void share_body(void *user, int64_t r) {
  for (int i = 0; i < TIMES; i++) {
    void *managed;
    reshard_tensor back;
    if (reshard_tensor_to_dlpack(user, 1, &managed) || reshard_tensor_from_dlpack(managed, 1, 0, &back))
      return;
    reshard_tensor_release(back);
    if (reshard_tensor_to_dlpack(user, 0, &managed))
      return;
    ((rs_dl_managed *)managed)->deleter(managed);
  }
  reshard_tensor_release(user);
}

CASE(threads_share_one_managed_tensor) {
  source s;
  reshard_tensor t;
  fill_source(&s);
  GOOD(reshard_tensor_from_dlpack(&s.newer, 1, 0, &t));
  for (int r = 1; r < THREADS; r++)
    reshard_tensor_retain(t);
  rank_threads_run(THREADS, share_body, t);
  assert_int_equal(s.deleted, 1); /* every thread has come to its end */
}

RUN_CASES
