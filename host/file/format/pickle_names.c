/* The names that pickles of PyTorch may have. What is not here is refused; what is here is not run either. */
#include "file/format/pickle.h"

#include <string.h>

#define M  RS_IN_METADATA
#define T  RS_IN_TENSORS
#define MT (M | T)

#define DCP         "torch.distributed.checkpoint.metadata"
#define SHARD       "torch.distributed._shard.sharded_tensor.metadata"
#define UTILS       "torch._utils"
#define INERT       RS_ROLE_INERT, RESHARD_DTYPE_NONE
#define ODD         RS_ROLE_ODD_TENSOR, RESHARD_DTYPE_NONE
#define PLAIN(role) role, RESHARD_DTYPE_NONE

static const rs_pickle_name list[] = {
    {DCP, "ChunkStorageMetadata", M, PLAIN(RS_ROLE_CHUNK)},
    {DCP, "MetadataIndex", M, PLAIN(RS_ROLE_INDEX)},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo", M, PLAIN(RS_ROLE_STORAGE_INFO)},
    {"torch", "Size", MT, PLAIN(RS_ROLE_SIZE)},
    {DCP, "TensorProperties", M, PLAIN(RS_ROLE_PROPERTIES)},
    {DCP, "TensorStorageMetadata", M, PLAIN(RS_ROLE_TENSOR_METADATA)},
    {DCP, "BytesStorageMetadata", M, PLAIN(RS_ROLE_BYTES_METADATA)},
    {DCP, "Metadata", M, PLAIN(RS_ROLE_METADATA)},
    {DCP, "StorageMeta", M, INERT},
    {DCP, "_MEM_FORMAT_ENCODING", M, INERT},
    {SHARD, "TensorProperties", M, PLAIN(RS_ROLE_PROPERTIES)},
    {SHARD, "MEM_FORMAT_ENCODING", M, INERT},
    {"torch.serialization", "_get_layout", MT, INERT},
    {"builtins", "getattr", M, INERT}, /* of an enumeration's member, as some versions of Python write it */
    {"__builtin__", "getattr", M, INERT},
    {"pathlib", "PosixPath", MT, INERT},
    {"pathlib", "WindowsPath", MT, INERT},
    {"pathlib._local", "PosixPath", MT, INERT},
    {"pathlib._local", "WindowsPath", MT, INERT},
    {"collections", "OrderedDict", MT, PLAIN(RS_ROLE_DICT)},
    {"builtins", "set", MT, INERT},
    {"__builtin__", "set", MT, INERT},

    {UTILS, "_rebuild_tensor_v2", T, PLAIN(RS_ROLE_TENSOR)},
    {UTILS, "_rebuild_tensor_v3", T, PLAIN(RS_ROLE_TENSOR)},
    {UTILS, "_rebuild_parameter", T, PLAIN(RS_ROLE_PARAMETER)},
    {UTILS, "_rebuild_parameter_with_state", T, PLAIN(RS_ROLE_PARAMETER)},
    {UTILS, "_rebuild_sparse_tensor", T, ODD},
    {UTILS, "_rebuild_nested_tensor", T, ODD},
    {UTILS, "_rebuild_qtensor", T, ODD},
    {UTILS, "_rebuild_meta_tensor_no_storage", T, ODD},
    {UTILS, "_rebuild_wrapper_subclass", T, ODD},
    {UTILS, "_rebuild_device_tensor_from_numpy", T, ODD},
    {UTILS, "_rebuild_device_tensor_from_cpu_tensor", T, ODD},
    {"torch._tensor", "_rebuild_from_type_v2", T, ODD},
    {"torch.distributed.tensor", "DTensor", T, INERT}, /* arguments of _rebuild_from_type_v2 */
    {"torch.distributed.tensor._dtensor_spec", "DTensorSpec", T, INERT},
    {"torch.distributed.tensor._dtensor_spec", "TensorMeta", T, INERT},
    {"torch.distributed.tensor.placement_types", "Shard", T, INERT},
    {"torch.distributed.tensor.placement_types", "Replicate", T, INERT},
    {"torch.distributed.device_mesh", "DeviceMesh", T, INERT},
    {"torch", "device", T, INERT},
    {"argparse", "Namespace", T, INERT},
    {"_codecs", "encode", T, INERT},
    {"numpy", "dtype", T, INERT},
    {"numpy.core.multiarray", "scalar", T, INERT},
    {"numpy._core.multiarray", "scalar", T, INERT},

    {"torch", "BoolStorage", T, RS_ROLE_STORAGE, RESHARD_BOOL},
    {"torch", "ByteStorage", T, RS_ROLE_STORAGE, RESHARD_U8},
    {"torch", "CharStorage", T, RS_ROLE_STORAGE, RESHARD_I8},
    {"torch", "ShortStorage", T, RS_ROLE_STORAGE, RESHARD_I16},
    {"torch", "IntStorage", T, RS_ROLE_STORAGE, RESHARD_I32},
    {"torch", "LongStorage", T, RS_ROLE_STORAGE, RESHARD_I64},
    {"torch", "HalfStorage", T, RS_ROLE_STORAGE, RESHARD_F16},
    {"torch", "BFloat16Storage", T, RS_ROLE_STORAGE, RESHARD_BF16},
    {"torch", "FloatStorage", T, RS_ROLE_STORAGE, RESHARD_F32},
    {"torch", "DoubleStorage", T, RS_ROLE_STORAGE, RESHARD_F64},
    {"torch", "ComplexFloatStorage", T, RS_ROLE_STORAGE, RESHARD_C64},
    {"torch", "ComplexDoubleStorage", T, RS_ROLE_STORAGE, RESHARD_C128},
    {"torch.storage", "UntypedStorage", T, RS_ROLE_STORAGE, RESHARD_DTYPE_NONE},
    {"torch", "QInt8Storage", T, INERT}, /* arguments of _rebuild_qtensor */
    {"torch", "QUInt8Storage", T, INERT},
    {"torch", "QInt32Storage", T, INERT},
    {"torch", "per_tensor_affine", T, INERT},
    {"torch", "per_channel_affine", T, INERT},

    {"torch", "bool", MT, RS_ROLE_DTYPE, RESHARD_BOOL},
    {"torch", "uint8", MT, RS_ROLE_DTYPE, RESHARD_U8},
    {"torch", "int8", MT, RS_ROLE_DTYPE, RESHARD_I8},
    {"torch", "uint16", MT, RS_ROLE_DTYPE, RESHARD_U16},
    {"torch", "int16", MT, RS_ROLE_DTYPE, RESHARD_I16},
    {"torch", "uint32", MT, RS_ROLE_DTYPE, RESHARD_U32},
    {"torch", "int32", MT, RS_ROLE_DTYPE, RESHARD_I32},
    {"torch", "uint64", MT, RS_ROLE_DTYPE, RESHARD_U64},
    {"torch", "int64", MT, RS_ROLE_DTYPE, RESHARD_I64},
    {"torch", "float8_e4m3fn", MT, RS_ROLE_DTYPE, RESHARD_F8_E4M3},
    {"torch", "float8_e5m2", MT, RS_ROLE_DTYPE, RESHARD_F8_E5M2},
    {"torch", "float8_e8m0fnu", MT, RS_ROLE_DTYPE, RESHARD_F8_E8M0},
    {"torch", "float16", MT, RS_ROLE_DTYPE, RESHARD_F16},
    {"torch", "bfloat16", MT, RS_ROLE_DTYPE, RESHARD_BF16},
    {"torch", "float32", MT, RS_ROLE_DTYPE, RESHARD_F32},
    {"torch", "float64", MT, RS_ROLE_DTYPE, RESHARD_F64},
    {"torch", "complex64", MT, RS_ROLE_DTYPE, RESHARD_C64},
    {"torch", "complex128", MT, RS_ROLE_DTYPE, RESHARD_C128},
    {"torch", "complex32", MT, RS_ROLE_DTYPE, RESHARD_DTYPE_NONE},
    {"torch", "float8_e4m3fnuz", MT, RS_ROLE_DTYPE, RESHARD_DTYPE_NONE},
    {"torch", "float8_e5m2fnuz", MT, RS_ROLE_DTYPE, RESHARD_DTYPE_NONE},
    {"torch", "float4_e2m1fn_x2", MT, RS_ROLE_DTYPE, RESHARD_DTYPE_NONE},
    {"torch", "qint8", MT, RS_ROLE_DTYPE, RESHARD_DTYPE_NONE},
    {"torch", "quint8", MT, RS_ROLE_DTYPE, RESHARD_DTYPE_NONE},
    {"torch", "qint32", MT, RS_ROLE_DTYPE, RESHARD_DTYPE_NONE},
};

const rs_pickle_name *rs_pickle_find_name(unsigned in, const char *module, size_t module_size, const char *name,
                                          size_t name_size) {
  for (size_t i = 0; i < sizeof list / sizeof *list; i++)
    if ((list[i].in & in) != 0 && strlen(list[i].name) == name_size && memcmp(list[i].name, name, name_size) == 0 &&
        strlen(list[i].module) == module_size && memcmp(list[i].module, module, module_size) == 0)
      return &list[i];
  return NULL;
}
