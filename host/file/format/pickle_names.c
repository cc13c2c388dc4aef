/* The names in pickles of PyTorch that have a meaning here. All others are classes without one, and none is run. */
#include "file/format/pickle.h"

#include <string.h>

#define DCP         "torch.distributed.checkpoint.metadata"
#define SHARD       "torch.distributed._shard.sharded_tensor.metadata"
#define UTILS       "torch._utils"
#define ODD         RS_ROLE_ODD_TENSOR, RESHARD_DTYPE_NONE
#define PLAIN(role) role, RESHARD_DTYPE_NONE

static const rs_pickle_name list[] = {
    {DCP, "ChunkStorageMetadata", PLAIN(RS_ROLE_CHUNK)},
    {DCP, "MetadataIndex", PLAIN(RS_ROLE_INDEX)},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo", PLAIN(RS_ROLE_STORAGE_INFO)},
    {"torch", "Size", PLAIN(RS_ROLE_SIZE)},
    {DCP, "TensorProperties", PLAIN(RS_ROLE_PROPERTIES)},
    {DCP, "TensorStorageMetadata", PLAIN(RS_ROLE_TENSOR_METADATA)},
    {DCP, "BytesStorageMetadata", PLAIN(RS_ROLE_BYTES_METADATA)},
    {SHARD, "TensorProperties", PLAIN(RS_ROLE_PROPERTIES)},
    {"collections", "OrderedDict", PLAIN(RS_ROLE_DICT)},
    {"collections", "defaultdict", PLAIN(RS_ROLE_DICT)},
    {"collections", "Counter", PLAIN(RS_ROLE_DICT)},
    {"builtins", "set", PLAIN(RS_ROLE_SET)},
    {"builtins", "frozenset", PLAIN(RS_ROLE_SET)},
    {"__builtin__", "set", PLAIN(RS_ROLE_SET)},
    {"__builtin__", "frozenset", PLAIN(RS_ROLE_SET)},

    {UTILS, "_rebuild_tensor", PLAIN(RS_ROLE_TENSOR)},
    {UTILS, "_rebuild_tensor_v2", PLAIN(RS_ROLE_TENSOR)},
    {UTILS, "_rebuild_tensor_v3", PLAIN(RS_ROLE_TENSOR)},
    {UTILS, "_rebuild_parameter", PLAIN(RS_ROLE_PARAMETER)},
    {UTILS, "_rebuild_parameter_with_state", PLAIN(RS_ROLE_PARAMETER)},
    {"torch.nn.parameter", "Parameter", PLAIN(RS_ROLE_PARAMETER)},
    {"torch.nn.parameter", "Buffer", PLAIN(RS_ROLE_PARAMETER)},
    {"torch", "Tensor", PLAIN(RS_ROLE_TENSOR_TYPE)},
    {"torch._tensor", "_rebuild_from_type_v2", PLAIN(RS_ROLE_TYPED)},
    {UTILS, "_rebuild_sparse_tensor", ODD},
    {UTILS, "_rebuild_sparse_csr_tensor", ODD},
    {UTILS, "_rebuild_nested_tensor", ODD},
    {UTILS, "_rebuild_qtensor", ODD},
    {UTILS, "_rebuild_meta_tensor_no_storage", ODD},
    {UTILS, "_rebuild_wrapper_subclass", ODD},
    {UTILS, "_rebuild_device_tensor_from_numpy", ODD},
    {UTILS, "_rebuild_device_tensor_from_cpu_tensor", ODD},

    {"torch", "BoolStorage", RS_ROLE_STORAGE, RESHARD_BOOL},
    {"torch", "ByteStorage", RS_ROLE_STORAGE, RESHARD_U8},
    {"torch", "CharStorage", RS_ROLE_STORAGE, RESHARD_I8},
    {"torch", "ShortStorage", RS_ROLE_STORAGE, RESHARD_I16},
    {"torch", "IntStorage", RS_ROLE_STORAGE, RESHARD_I32},
    {"torch", "LongStorage", RS_ROLE_STORAGE, RESHARD_I64},
    {"torch", "HalfStorage", RS_ROLE_STORAGE, RESHARD_F16},
    {"torch", "BFloat16Storage", RS_ROLE_STORAGE, RESHARD_BF16},
    {"torch", "FloatStorage", RS_ROLE_STORAGE, RESHARD_F32},
    {"torch", "DoubleStorage", RS_ROLE_STORAGE, RESHARD_F64},
    {"torch", "ComplexFloatStorage", RS_ROLE_STORAGE, RESHARD_C64},
    {"torch", "ComplexDoubleStorage", RS_ROLE_STORAGE, RESHARD_C128},
    {"torch.storage", "UntypedStorage", RS_ROLE_STORAGE, RESHARD_DTYPE_NONE},

    {"torch", "bool", RS_ROLE_DTYPE, RESHARD_BOOL},
    {"torch", "uint8", RS_ROLE_DTYPE, RESHARD_U8},
    {"torch", "int8", RS_ROLE_DTYPE, RESHARD_I8},
    {"torch", "uint16", RS_ROLE_DTYPE, RESHARD_U16},
    {"torch", "int16", RS_ROLE_DTYPE, RESHARD_I16},
    {"torch", "uint32", RS_ROLE_DTYPE, RESHARD_U32},
    {"torch", "int32", RS_ROLE_DTYPE, RESHARD_I32},
    {"torch", "uint64", RS_ROLE_DTYPE, RESHARD_U64},
    {"torch", "int64", RS_ROLE_DTYPE, RESHARD_I64},
    {"torch", "float8_e4m3fn", RS_ROLE_DTYPE, RESHARD_F8_E4M3},
    {"torch", "float8_e5m2", RS_ROLE_DTYPE, RESHARD_F8_E5M2},
    {"torch", "float8_e8m0fnu", RS_ROLE_DTYPE, RESHARD_F8_E8M0},
    {"torch", "float16", RS_ROLE_DTYPE, RESHARD_F16},
    {"torch", "bfloat16", RS_ROLE_DTYPE, RESHARD_BF16},
    {"torch", "float32", RS_ROLE_DTYPE, RESHARD_F32},
    {"torch", "float64", RS_ROLE_DTYPE, RESHARD_F64},
    {"torch", "complex64", RS_ROLE_DTYPE, RESHARD_C64},
    {"torch", "complex128", RS_ROLE_DTYPE, RESHARD_C128},
};

int64_t rs_pickle_find_name(const char *module, size_t module_size, const char *name, size_t name_size) {
  for (size_t i = 0; i < sizeof list / sizeof *list; i++)
    if (strlen(list[i].name) == name_size && memcmp(list[i].name, name, name_size) == 0 &&
        strlen(list[i].module) == module_size && memcmp(list[i].module, module, module_size) == 0)
      return (int64_t)i;
  return -1;
}

const rs_pickle_name *rs_pickle_name_at(int64_t number) { return &list[number]; }
