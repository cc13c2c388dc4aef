/* Tensors from other programs and to them. An imported one is borrowed memory whose release is the other's deleter. An
 * exported one is over our storage, whose memory stays until our deleter is called. */
#include "tensor/dlpack.h"

#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

static const struct {
  reshard_dtype dtype;
  uint8_t code, bits;
} dtypes[] = {
    {RESHARD_BOOL, RS_DL_BOOL, 8},         {RESHARD_U8, RS_DL_UINT, 8},         {RESHARD_I8, RS_DL_INT, 8},
    {RESHARD_U16, RS_DL_UINT, 16},         {RESHARD_I16, RS_DL_INT, 16},        {RESHARD_U32, RS_DL_UINT, 32},
    {RESHARD_I32, RS_DL_INT, 32},          {RESHARD_U64, RS_DL_UINT, 64},       {RESHARD_I64, RS_DL_INT, 64},
    {RESHARD_F8_E4M3, RS_DL_F8_E4M3FN, 8}, {RESHARD_F8_E5M2, RS_DL_F8_E5M2, 8}, {RESHARD_F8_E8M0, RS_DL_F8_E8M0, 8},
    {RESHARD_F16, RS_DL_FLOAT, 16},        {RESHARD_BF16, RS_DL_BFLOAT, 16},    {RESHARD_F32, RS_DL_FLOAT, 32},
    {RESHARD_F64, RS_DL_FLOAT, 64},        {RESHARD_C64, RS_DL_COMPLEX, 64},    {RESHARD_C128, RS_DL_COMPLEX, 128},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

/* --- In ---------------------------------------------------------------------------------------------------------- */

static void delete_managed(void *managed, void *data) {
  rs_dl_managed *m = managed;
  (void)data;
  if (m->deleter != NULL)
    m->deleter(m);
}

static void delete_versioned(void *managed, void *data) {
  rs_dl_versioned *m = managed;
  (void)data;
  if (m->deleter != NULL)
    m->deleter(m);
}

static reshard_status read_dtype(const char *call, const rs_dl_tensor *from, reshard_dtype *dtype) {
  for (int i = 0; i < DTYPES && from->lanes == 1; i++)
    if (dtypes[i].code == from->code && dtypes[i].bits == from->bits) {
      *dtype = dtypes[i].dtype;
      return RESHARD_SUCCESS;
    }
  return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: dtype of code %d, %d bits and %d lanes", call, from->code, from->bits,
                  from->lanes);
}

static reshard_status read_device(const char *call, const rs_dl_tensor *from, rs_storage *storage) {
  bool cuda = from->device_type == RS_DL_CUDA;
  if (!cuda && from->device_type != RS_DL_CPU && from->device_type != RS_DL_CUDA_HOST)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: device type %d, the CPU (%d, %d) and CUDA (%d) are known", call,
                    (int)from->device_type, RS_DL_CPU, RS_DL_CUDA_HOST, RS_DL_CUDA);
  if (cuda && from->device_index < 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: CUDA device %d", call, (int)from->device_index);
  storage->type = cuda ? RESHARD_DEVICE_CUDA : RESHARD_DEVICE_CPU;
  storage->index = cuda ? from->device_index : 0;
  return RESHARD_SUCCESS;
}

/* Makes a tensor over the memory that is described, which the storage borrows. */
static reshard_status make_tensor(const char *call, const rs_dl_tensor *from, rs_storage *storage,
                                  reshard_tensor *tensor) {
  reshard_tensor_info info;
  reshard_dtype dtype = RESHARD_DTYPE_NONE;
  size_t span;
  RS_TRY(read_dtype(call, from, &dtype));
  RS_TRY(read_device(call, from, storage));
  RS_TRY(rs_tensor_describe(call, dtype, from->ndim, from->shape, from->strides, &info, &span));
  if (from->data == NULL && info.elements > 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: data is NULL and should hold %lld elements", call,
                    (long long)info.elements);
  info.pin_memory = from->device_type == RS_DL_CUDA_HOST;
  storage->memory = from->data != NULL ? (char *)from->data + from->byte_offset : NULL;
  storage->bytes = span;
  return rs_tensor_new(storage, &info, span, 0, tensor);
}

static reshard_status check_versioned(const char *call, const rs_dl_versioned *from, int read_only) {
  if (from->major != RS_DL_MAJOR)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: DLPack version %u.%u, %d is understood", call,
                    (unsigned)from->major, (unsigned)from->minor, RS_DL_MAJOR);
  if ((from->flags & RS_DL_READ_ONLY) != 0 && !read_only)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the tensor is read-only", call);
  return RESHARD_SUCCESS;
}

reshard_status reshard_tensor_from_dlpack(void *managed, int versioned, int read_only, reshard_tensor *tensor) {
  static const char call[] = "reshard_tensor_from_dlpack";
  const rs_dl_versioned *newer = managed;
  const rs_dl_managed *older = managed;
  rs_storage *storage;
  if (managed == NULL || tensor == NULL)
    return rs_error_null(call, managed == NULL ? "managed" : "tensor");
  if (versioned)
    RS_TRY(check_versioned(call, newer, read_only));
  RS_TRY(rs_storage_borrow(NULL, NULL, 0, NULL, managed, &storage));
  storage->read_only = versioned && (newer->flags & RS_DL_READ_ONLY) != 0;
  reshard_status status = make_tensor(call, versioned ? &newer->tensor : &older->tensor, storage, tensor);
  if (status == RESHARD_SUCCESS)
    storage->release = versioned ? delete_versioned : delete_managed; /* from here on it is ours */
  else
    rs_storage_release(storage);
  return status;
}

/* --- Out --------------------------------------------------------------------------------------------------------- */

typedef struct exported {
  union {
    rs_dl_managed older;
    rs_dl_versioned newer;
  } managed; /* first: its address is that of the struct */
  rs_storage *storage;
  int64_t shape[RESHARD_MAX_DIMS], strides[RESHARD_MAX_DIMS];
} exported;

static void release_exported(exported *g) {
  atomic_fetch_sub_explicit(&g->storage->exported, 1, memory_order_release);
  rs_storage_release(g->storage);
  free(g);
}
static void delete_older(rs_dl_managed *self) { release_exported(self->owner); }
static void delete_newer(rs_dl_versioned *self) { release_exported(self->owner); }

/* Describes a tensor. The address is that of the first element: other programs are known to ignore byte_offset. */
static rs_dl_tensor describe_tensor(exported *g, reshard_tensor tensor) {
  const reshard_tensor_info *info = &tensor->info;
  bool cuda = info->device_type == RESHARD_DEVICE_CUDA;
  int i = 0;
  while (dtypes[i].dtype != info->dtype) /* all of ours are in the list */
    i++;
  memcpy(g->shape, info->shape, sizeof g->shape);
  memcpy(g->strides, info->strides, sizeof g->strides);
  return (rs_dl_tensor){.data = info->elements > 0 ? rs_tensor_data(tensor) : NULL,
                        .device_type = cuda ? RS_DL_CUDA : RS_DL_CPU,
                        .device_index = info->device_index,
                        .ndim = info->ndim,
                        .code = dtypes[i].code,
                        .bits = dtypes[i].bits,
                        .lanes = 1,
                        .shape = g->shape,
                        .strides = g->strides};
}

reshard_status reshard_tensor_to_dlpack(reshard_tensor tensor, int versioned, void **managed) {
  static const char call[] = "reshard_tensor_to_dlpack";
  exported *g;
  if (tensor == NULL || managed == NULL)
    return rs_error_null(call, tensor == NULL ? "tensor" : "managed");
  RS_TRY(rs_tensor_ready(call, tensor));
  if (tensor->storage->read_only && !versioned)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: the tensor is read-only, which the unversioned form cannot say",
                    call);
  RS_TRY(rs_alloc_zero(&g, 1, sizeof *g));
  g->storage = rs_storage_retain(tensor->storage);
  atomic_fetch_add_explicit(&g->storage->exported, 1, memory_order_relaxed);
  if (versioned)
    g->managed.newer = (rs_dl_versioned){.major = RS_DL_MAJOR,
                                         .minor = RS_DL_MINOR,
                                         .owner = g,
                                         .deleter = delete_newer,
                                         .flags = tensor->storage->read_only ? RS_DL_READ_ONLY : 0,
                                         .tensor = describe_tensor(g, tensor)};
  else
    g->managed.older = (rs_dl_managed){.tensor = describe_tensor(g, tensor), .owner = g, .deleter = delete_older};
  *managed = &g->managed;
  return RESHARD_SUCCESS;
}
