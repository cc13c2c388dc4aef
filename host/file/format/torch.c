/* A tensor in data.pkl is a call of torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks
 * [, metadata]), offset and strides in elements. _v3 has the dtype before the metadata, and an untyped storage. The
 * storage is a persistent id ("storage", class, key, location, size), size in elements of its class. Source:
 * torch._tensor, torch._utils, torch.serialization. */
#include "file/format/torch.h"

#include <stdlib.h>
#include <string.h>

static reshard_status check_kind(const rs_torch *t) {
  const char *where = t->zip.where;
  char order[8] = "";
  if (rs_zip_find(&t->zip, "constants.pkl", 13) >= 0)
    return rs_error(RESHARD_ERROR_UNSUPPORTED,
                    "%s: a TorchScript program: in Python: t = torch.jit.load(PATH).state_dict(); "
                    "safetensors.torch.save_file(t, OUT)",
                    where);
  if (rs_zip_find(&t->zip, "data.pkl", 8) < 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: a zip archive without data.pkl: torch.save has not written it", where);
  int64_t entry = rs_zip_find(&t->zip, "byteorder", 9), begin = 0;
  if (entry < 0)
    return RESHARD_SUCCESS; /* before version 2.1 of PyTorch: little */
  RS_TRY(rs_zip_locate(&t->zip, entry, &begin));
  RS_TRY(rs_file_read_at(t->zip.file, begin, order, rs_min(t->zip.entries.at[entry].size, sizeof order - 1)));
  if (strcmp(order, "little") != 0) {
    char quoted[RS_QUOTE];
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: data of byte order '%s', only little-endian is read", where,
                    rs_quote(quoted, sizeof quoted, order));
  }
  return RESHARD_SUCCESS;
}

static reshard_status check_begin(const char *where, const rs_file *file, int64_t offset, int64_t length) {
  char first[16] = "";
  RS_TRY(rs_file_read_at(file, offset, first, rs_min(length, sizeof first)));
  if (memcmp(first, RS_ZIP_MAGIC, sizeof RS_ZIP_MAGIC - 1) == 0)
    return RESHARD_SUCCESS;
  if (first[8] == '{')
    return rs_error(
        RESHARD_ERROR_UNSUPPORTED,
        "%s: its data is safetensors (SerializationFormat.SAFETENSORS), which PyTorch itself does not load: "
        "rename the .distcp files to .safetensors and move .metadata away to read them",
        where);
  return rs_error(RESHARD_ERROR_INVALID, "%s: no archive of torch.save begins at byte %lld", where, (long long)offset);
}

reshard_status rs_torch_open(const char *where, const rs_file *file, int64_t offset, int64_t length, int64_t limit,
                             rs_torch *t) {
  int64_t size = 0;
  *t = (rs_torch){.pickle.root = -1};
  RS_TRY(check_begin(where, file, offset, length));
  RS_TRY(rs_zip_open(where, file, offset, length, limit, &t->zip));
  RS_TRY(check_kind(t));
  RS_TRY(rs_zip_read(&t->zip, rs_zip_find(&t->zip, "data.pkl", 8), limit, &t->text, &size));
  return rs_pickle_read(where, t->text, size, file->size, rs_zip_memory(&t->zip), &t->pickle);
}

void rs_torch_free(rs_torch *t) {
  rs_pickle_free(&t->pickle);
  free(t->text);
  t->text = NULL;
  rs_zip_free(&t->zip);
}

/* A name of torch that is in no list: a type that is moved as bytes, or one that is newer than this library. */
static bool is_other(const rs_pickle *p, int64_t value, rs_torch_tensor *out) {
  char text[RS_QUOTE];
  const char *name = text + 6;
  uint8_t packed = RS_PACKED_TYPES - 1;
  rs_pickle_describe(text, p, value);
  if (strncmp(text, "torch.", 6) != 0 || strchr(name, '.') != NULL)
    return false;
  while (packed > 0 && (rs_packed_types[packed].torch == NULL || strcmp(rs_packed_types[packed].torch, name) != 0))
    packed--;
  bool half = out->ndim == 0 && rs_packed_types[packed].elements > 1; /* two elements, and no dim that has them */
  out->dtype = packed > 0 && !half ? RESHARD_U8 : RESHARD_DTYPE_NONE;
  out->packed = half ? 0 : packed;
  rs_text_add(&(rs_text){.at = out->unknown, .size = sizeof out->unknown}, "%s%s", name, half ? " without dims" : "");
  return true;
}

bool rs_torch_dtype(const rs_pickle *p, int64_t value, rs_torch_tensor *out) {
  const rs_pickle_name *name = rs_pickle_is(p, value, RS_PICKLE_GLOBAL) ? rs_pickle_name_of(p, value) : NULL;
  if (name == NULL)
    return rs_pickle_is(p, value, RS_PICKLE_GLOBAL) && is_other(p, value, out);
  out->dtype = name->dtype;
  return name->role == RS_ROLE_DTYPE;
}

bool rs_torch_is_tensor(const rs_torch *t, int64_t value) {
  if (!rs_pickle_is(&t->pickle, value, RS_PICKLE_OBJECT))
    return false;
  const rs_pickle_name *name = rs_pickle_name_of(&t->pickle, value);
  return name != NULL && (name->role == RS_ROLE_TENSOR || name->role == RS_ROLE_PARAMETER ||
                          name->role == RS_ROLE_TYPED || name->role == RS_ROLE_ODD_TENSOR);
}

typedef struct reading {
  const rs_torch *torch;
  const char *name;
  int64_t arguments; /* of the call */
  int64_t first, numel, stride[RESHARD_MAX_DIMS];
} reading;

static rs_pickle_role role_of(const rs_pickle *p, int64_t value) {
  const rs_pickle_name *name = value >= 0 ? rs_pickle_name_of(p, value) : NULL;
  return name != NULL ? name->role : RS_ROLE_UNKNOWN;
}

int64_t rs_torch_attributes(const rs_torch *t, int64_t value) {
  rs_pickle_role role = role_of(&t->pickle, value);
  bool has = role == RS_ROLE_TYPED || role == RS_ROLE_PARAMETER;
  return has ? rs_pickle_item(&t->pickle, rs_pickle_parts_of(&t->pickle, value).arguments, 3) : -1;
}

static reshard_status malformed_tensor(const reading *r, const char *what) {
  return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': %s", r->torch->zip.where, r->name, what);
}

/* by: how Python makes it plain, NULL: it cannot. */
static reshard_status not_plain(const reading *r, const char *what, const char *by) {
  return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: tensor '%s' is %s%s%s", r->torch->zip.where, r->name, what,
                  by != NULL ? ": " : "", by != NULL ? by : "");
}

static reshard_status odd_tensor(const reading *r, int64_t class) {
  char text[RS_QUOTE];
  rs_pickle_describe(text, &r->torch->pickle, class);
  return strstr(text, "sparse") != NULL    ? not_plain(r, "sparse", RS_TORCH_PYTHON_BY("to_dense"))
         : strstr(text, "qtensor") != NULL ? not_plain(r, "quantized", RS_TORCH_PYTHON_BY("dequantize"))
         : strstr(text, "meta") != NULL    ? not_plain(r, "without data (on the meta device)", NULL)
                                           : not_plain(r, "of a subclass of Tensor: save its plain tensor", NULL);
}

/* Finds the call that makes a tensor's values. A parameter is made of a tensor. A tensor with attributes of its own is
 * made by a function that is named, of a type, with that function's arguments. */
static reshard_status find_call(reading *r, int64_t value) {
  const rs_pickle *p = &r->torch->pickle;
  for (int wraps = 0; wraps < 4 && rs_pickle_is(p, value, RS_PICKLE_OBJECT); wraps++) {
    rs_pickle_parts parts = rs_pickle_parts_of(p, value);
    rs_pickle_role role = role_of(p, value);
    if (role == RS_ROLE_TYPED) {
      rs_pickle_role type = role_of(p, rs_pickle_item(p, parts.arguments, 1));
      if (type != RS_ROLE_TENSOR_TYPE && type != RS_ROLE_PARAMETER)
        return odd_tensor(r, parts.class);
      parts.class = rs_pickle_item(p, parts.arguments, 0);
      parts.arguments = rs_pickle_item(p, parts.arguments, 2);
      role = role_of(p, parts.class);
    }
    if (role == RS_ROLE_ODD_TENSOR)
      return odd_tensor(r, parts.class);
    r->arguments = parts.arguments;
    if (role == RS_ROLE_TENSOR)
      return RESHARD_SUCCESS;
    value = role == RS_ROLE_PARAMETER ? rs_pickle_item(p, parts.arguments, 0) : -1;
  }
  return malformed_tensor(r, "a parameter of what is no tensor");
}

/* Conjugate and negative views keep their sign in the metadata. */
static reshard_status check_views(const reading *r, int64_t metadata) {
  const rs_pickle *p = &r->torch->pickle;
  static const char *const keys[] = {"conj", "neg"};
  for (int i = 0; i < 2; i++) {
    int64_t flag = rs_pickle_under(p, metadata, keys[i]);
    if (flag >= 0 && !(rs_pickle_is(p, flag, RS_PICKLE_BOOL) && rs_pickle_number(p, flag) == 0))
      return i == 0 ? not_plain(r, "a conjugate view", RS_TORCH_PYTHON_BY("resolve_conj"))
                    : not_plain(r, "a negative view", RS_TORCH_PYTHON_BY("resolve_neg"));
  }
  return RESHARD_SUCCESS;
}

static reshard_status read_dtype(const reading *r, int64_t class, rs_torch_tensor *out) {
  const rs_pickle *p = &r->torch->pickle;
  bool third = rs_pickle_is(p, rs_pickle_item(p, r->arguments, 6), RS_PICKLE_GLOBAL);
  char quoted[RS_QUOTE];
  if (!rs_pickle_is(p, class, RS_PICKLE_GLOBAL) || role_of(p, class) != RS_ROLE_STORAGE)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': its storage is of '%s', no class of storages",
                    r->torch->zip.where, r->name, rs_pickle_describe(quoted, p, class));
  out->dtype = rs_pickle_name_of(p, class)->dtype;
  if (third && !rs_torch_dtype(p, rs_pickle_item(p, r->arguments, 6), out))
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': its dtype is '%s', which is none", r->torch->zip.where,
                    r->name, rs_pickle_describe(quoted, p, rs_pickle_item(p, r->arguments, 6)));
  if (out->dtype == RESHARD_DTYPE_NONE)
    return third ? RESHARD_SUCCESS : malformed_tensor(r, "an untyped storage, and no dtype");
  int64_t metadata = rs_pickle_item(p, r->arguments, third ? 7 : 6);
  return metadata >= 0 ? check_views(r, metadata) : RESHARD_SUCCESS;
}

/* Row-major or Fortran order; extents of 1 have any stride. */
static reshard_status check_strides(reading *r, rs_torch_tensor *out) {
  char shape[RS_SHAPE_TEXT], strides[RS_SHAPE_TEXT];
  int64_t row = 1, column = 1;
  bool is_row = true, is_column = true;
  for (int i = 0; i < out->ndim; i++) {
    int d = out->ndim - 1 - i;
    is_row &= out->shape[d] <= 1 || r->stride[d] == row;
    is_column &= out->shape[i] <= 1 || r->stride[i] == column;
    if (!rs_mul(row, out->shape[d], &row) || !rs_mul(column, out->shape[i], &column))
      return malformed_tensor(r, "its shape overflows");
  }
  r->numel = row;
  out->reversed = row > 1 && !is_row && is_column;
  if (row <= 1 || is_row || is_column)
    return RESHARD_SUCCESS;
  rs_shape_text(shape, out->ndim, out->shape);
  rs_shape_text(strides, out->ndim, r->stride);
  char what[2 * RS_SHAPE_TEXT + 64];
  rs_text_add(&(rs_text){.at = what, .size = sizeof what}, "not contiguous (shape %s, strides %s)", shape, strides);
  return not_plain(r, what, RS_TORCH_PYTHON);
}

/* The bytes of the tensor within its storage's entry. */
static reshard_status locate_tensor(const reading *r, int64_t id, rs_torch_tensor *out) {
  const rs_torch *t = r->torch;
  const rs_pickle *p = &t->pickle;
  int64_t key = rs_pickle_item(p, id, 2), count = 0, begin = 0, bytes, offset, end, wanted;
  if (!rs_pickle_is(p, key, RS_PICKLE_TEXT) || !rs_pickle_count(p, rs_pickle_item(p, id, 4), &count))
    return malformed_tensor(r, "its storage has no key or no size");
  char path[64] = "data/", quoted[RS_QUOTE];
  int64_t size = 0;
  const char *text = rs_pickle_text_of(p, key, &size);
  if (size > (int64_t)sizeof path - 6)
    return malformed_tensor(r, "a key of its storage of more than 58 characters");
  memcpy(path + 5, text, (size_t)size);
  rs_quote(quoted, sizeof quoted, path);
  int64_t entry = rs_zip_find(&t->zip, path, 5 + (size_t)size), width = (int64_t)reshard_dtype_size(out->dtype);
  if (entry < 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': the archive has no entry '%s'", t->zip.where, r->name,
                    quoted);
  bytes = t->zip.entries.at[entry].size;
  RS_TRY(rs_zip_locate(&t->zip, entry, &begin));
  if (out->dtype == RESHARD_DTYPE_NONE) { /* elements of what size they may be */
    out->ndim = 1;
    out->shape[0] = bytes;
    out->offset = begin;
    return RESHARD_SUCCESS;
  }
  if (!rs_mul(r->first, width, &offset) || !rs_mul(r->numel, width, &wanted) || !rs_add(offset, wanted, &end) ||
      (end > bytes && r->numel > 0))
    return rs_error(RESHARD_ERROR_INVALID,
                    "%s: tensor '%s': %lld elements of %lld bytes from element %lld on, entry '%s' has %lld bytes",
                    t->zip.where, r->name, (long long)r->numel, (long long)width, (long long)r->first, quoted,
                    (long long)bytes);
  out->offset = begin + (r->numel > 0 ? offset : 0);
  return RESHARD_SUCCESS;
}

reshard_status rs_torch_tensor_read(const rs_torch *torch, const char *name, int64_t value, rs_torch_tensor *tensor) {
  const rs_pickle *p = &torch->pickle;
  reading r = {.torch = torch, .name = name};
  rs_torch_tensor made = {0};
  int strides;
  RS_TRY(find_call(&r, value));
  int64_t storage = rs_pickle_item(p, r.arguments, 0);
  int64_t id = rs_pickle_is(p, storage, RS_PICKLE_PERSISTENT) ? rs_pickle_parts_of(p, storage).arguments : -1;
  if (!rs_pickle_is_text(p, rs_pickle_item(p, id, 0), "storage"))
    return malformed_tensor(&r, "no storage is there for it");
  if (!rs_pickle_count(p, rs_pickle_item(p, r.arguments, 1), &r.first))
    return malformed_tensor(&r, "its offset is no integer of 0 or more");
  if (!rs_pickle_extents(p, rs_pickle_item(p, r.arguments, 2), RESHARD_MAX_DIMS, &made.ndim, made.shape) ||
      !rs_pickle_extents(p, rs_pickle_item(p, r.arguments, 3), RESHARD_MAX_DIMS, &strides, r.stride) ||
      strides != made.ndim)
    return rs_error(RESHARD_ERROR_INVALID,
                    "%s: tensor '%s': its shape and strides are no tuples of equally many integers, %d at most",
                    torch->zip.where, name, RESHARD_MAX_DIMS);
  RS_TRY(read_dtype(&r, rs_pickle_item(p, id, 1), &made));
  if (made.dtype != RESHARD_DTYPE_NONE)
    RS_TRY(check_strides(&r, &made));
  RS_TRY(locate_tensor(&r, id, &made));
  *tensor = made;
  return RESHARD_SUCCESS;
}
