/* DLPack's own header, in DLPACK_HEADER, beside ours: places and sizes of all fields, and all values in use. It is
 * compiled alone (dlpack.sh). */
#include DLPACK_HEADER

#include "tensor/dlpack.h"

#if DLPACK_MAJOR_VERSION != 1 || DLPACK_MINOR_VERSION < 1
#error "the header is of another version"
#endif
_Static_assert(RS_DL_MAJOR == 1 && RS_DL_MINOR == 1, "the version above is that of ours");

#define SAME_FIELD(ours, field, theirs, their_field) \
  _Static_assert(offsetof(ours, field) == offsetof(theirs, their_field), #theirs ": place of " #their_field); \
  _Static_assert(sizeof((ours){0}.field) == sizeof((theirs){0}.their_field), #theirs ": size of " #their_field)
#define SAME_VALUE(ours, theirs) _Static_assert((unsigned long long)(ours) == (unsigned long long)(theirs), #theirs)

SAME_FIELD(rs_dl_tensor, data, DLTensor, data);
SAME_FIELD(rs_dl_tensor, device_type, DLTensor, device.device_type);
SAME_FIELD(rs_dl_tensor, device_index, DLTensor, device.device_id);
SAME_FIELD(rs_dl_tensor, ndim, DLTensor, ndim);
SAME_FIELD(rs_dl_tensor, code, DLTensor, dtype.code);
SAME_FIELD(rs_dl_tensor, bits, DLTensor, dtype.bits);
SAME_FIELD(rs_dl_tensor, lanes, DLTensor, dtype.lanes);
SAME_FIELD(rs_dl_tensor, shape, DLTensor, shape);
SAME_FIELD(rs_dl_tensor, strides, DLTensor, strides);
SAME_FIELD(rs_dl_tensor, byte_offset, DLTensor, byte_offset);
SAME_VALUE(sizeof(rs_dl_tensor), sizeof(DLTensor));

SAME_FIELD(rs_dl_managed, tensor, DLManagedTensor, dl_tensor);
SAME_FIELD(rs_dl_managed, owner, DLManagedTensor, manager_ctx);
SAME_FIELD(rs_dl_managed, deleter, DLManagedTensor, deleter);
SAME_VALUE(sizeof(rs_dl_managed), sizeof(DLManagedTensor));

SAME_FIELD(rs_dl_versioned, major, DLManagedTensorVersioned, version.major);
SAME_FIELD(rs_dl_versioned, minor, DLManagedTensorVersioned, version.minor);
SAME_FIELD(rs_dl_versioned, owner, DLManagedTensorVersioned, manager_ctx);
SAME_FIELD(rs_dl_versioned, deleter, DLManagedTensorVersioned, deleter);
SAME_FIELD(rs_dl_versioned, flags, DLManagedTensorVersioned, flags);
SAME_FIELD(rs_dl_versioned, tensor, DLManagedTensorVersioned, dl_tensor);
SAME_VALUE(sizeof(rs_dl_versioned), sizeof(DLManagedTensorVersioned));

SAME_VALUE(RS_DL_READ_ONLY, DLPACK_FLAG_BITMASK_READ_ONLY);
SAME_VALUE(RS_DL_CPU, kDLCPU);
SAME_VALUE(RS_DL_CUDA, kDLCUDA);
SAME_VALUE(RS_DL_CUDA_HOST, kDLCUDAHost);
SAME_VALUE(RS_DL_INT, kDLInt);
SAME_VALUE(RS_DL_UINT, kDLUInt);
SAME_VALUE(RS_DL_FLOAT, kDLFloat);
SAME_VALUE(RS_DL_BFLOAT, kDLBfloat);
SAME_VALUE(RS_DL_COMPLEX, kDLComplex);
SAME_VALUE(RS_DL_BOOL, kDLBool);
SAME_VALUE(RS_DL_F8_E4M3FN, kDLFloat8_e4m3fn);
SAME_VALUE(RS_DL_F8_E5M2, kDLFloat8_e5m2);
SAME_VALUE(RS_DL_F8_E8M0, kDLFloat8_e8m0fnu);

#ifdef PLANTED /* what has to be found */
SAME_FIELD(rs_dl_tensor, code, DLTensor, dtype.bits);
#endif
