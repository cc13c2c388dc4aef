/* A safetensors file is an 8-byte little-endian length, a JSON object of that length, and the data. The object maps a
 * name to {"dtype", "shape", "data_offsets": [begin, end]}, offsets counted from the data's first byte; the tensors
 * tile the data without gap or overlap. "__metadata__" is no tensor but a map of string to string. Source: the format's
 * README.
 *
 * PyTorch's distributed checkpoint keeps where its shards begin in that map, as JSON text in a string. */
#include "file/format/safetensors.h"

#include "base/json.h"
#include "base/order.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

void rs_safetensors_free(rs_safetensors *header) {
  reshard_model_free(header->model);
  free(header->offsets.at);
  rs_text_pairs_free(&header->owner);
  free(header->sharding);
  free(header->reshard);
  free(header->saved.at);
  *header = (rs_safetensors){0};
}

#ifdef RS_HAVE_JANSSON

#define HEADER_LIMIT ((int64_t)100000000) /* the format's own */

/* A tensor as one dim of bytes. both: its name and the text behind it, which is freed. */
static reshard_status add_bytes(reshard_model model, const char *where, char *both, reshard_dtype dtype, uint8_t packed,
                                int64_t bytes) {
  reshard_status status = rs_model_add(model, where, both, rs_name_length(both, true), dtype, 1, &bytes);
  free(both);
  RS_TRY(status);
  model->tensors.at[model->tensors.n - 1].packed = packed;
  model->tensors.at[model->tensors.n - 1].solid = true;
  return RESHARD_SUCCESS;
}

/* A tensor whose last dim ends within a byte: as many bytes as all its elements are. */
static reshard_status add_solid(reshard_model model, const char *where, const char *name, uint8_t packed, int ndim,
                                const int64_t *shape) {
  const rs_packed_type *type = &rs_packed_types[packed];
  char quoted[RS_QUOTE];
  rs_json both = {.text.grows = true};
  int64_t elements;
  rs_quote(quoted, sizeof quoted, name);
  if (rs_tensor_bytes(ndim, shape, (size_t)type->bytes, &elements) != RESHARD_SUCCESS)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': %s", where, quoted, reshard_last_error());
  if (elements % type->elements != 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': its elements of %s end within a byte", where, quoted,
                    type->name);
  rs_text_bytes(&both.text, name, strlen(name) + 1);
  rs_json_list(&both, NULL, ndim, shape);
  if (both.text.status != RESHARD_SUCCESS) {
    free(both.text.at);
    return both.text.status;
  }
  return add_bytes(model, where, both.text.at, RESHARD_U8, packed, elements / type->elements);
}

/* bytes NULL: nothing is there to be left out. */
static reshard_status add_unknown(reshard_model model, const char *where, const char *name, const char *dtype,
                                  const int64_t *bytes) {
  char *both;
  RS_TRY(rs_model_unknown(where, name, dtype, &both));
  if (bytes != NULL)
    return add_bytes(model, where, both, RESHARD_DTYPE_NONE, 0, *bytes);
  reshard_status status = rs_error(RESHARD_ERROR_INVALID, "%s", both + strlen(both) + 1);
  free(both);
  return status;
}

reshard_status rs_safetensors_add_tensor(reshard_model model, const char *where, const char *name, json_t *object,
                                         int64_t *bytes) {
  char quoted[RS_QUOTE];
  rs_quote(quoted, sizeof quoted, name);
  json_t *dtype_text = json_object_get(object, "dtype"), *extents = json_object_get(object, "shape");
  if (*name == '\0')
    return rs_error(RESHARD_ERROR_INVALID, "%s: a tensor has the empty name", where);
  if (!json_is_string(dtype_text) || !json_is_array(extents))
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': \"%s\" is missing or no %s", where, quoted,
                    !json_is_string(dtype_text) ? "dtype" : "shape", !json_is_string(dtype_text) ? "string" : "list");
  reshard_dtype dtype;
  const char *text = json_string_value(dtype_text);
  uint8_t packed = rs_packed_find(text);
  if (packed > 0)
    dtype = RESHARD_U8;
  else if (reshard_dtype_parse(text, &dtype) != RESHARD_SUCCESS)
    return add_unknown(model, where, name, text, bytes);
  size_t ndim = json_array_size(extents);
  if (ndim > RESHARD_MAX_DIMS)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': %zu dims, %d is the most", where, quoted, ndim,
                    RESHARD_MAX_DIMS);
  int64_t shape[RESHARD_MAX_DIMS];
  for (size_t d = 0; d < ndim; d++) {
    json_t *extent = json_array_get(extents, d);
    if (!json_is_integer(extent))
      return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': shape[%zu] is no integer", where, quoted, d);
    shape[d] = json_integer_value(extent);
  }
  const rs_packed_type *type = &rs_packed_types[packed];
  int64_t before = model->bytes;
  if (type->elements > 1 && (ndim == 0 || shape[ndim - 1] % type->elements != 0)) {
    RS_TRY(add_solid(model, where, name, packed, (int)ndim, shape));
    if (bytes != NULL)
      *bytes = model->bytes - before;
    return RESHARD_SUCCESS;
  }
  if (ndim > 0)
    shape[ndim - 1] = shape[ndim - 1] / type->elements * type->bytes;
  RS_TRY(rs_model_add(model, where, name, strlen(name), dtype, (int)ndim, shape));
  model->tensors.at[model->tensors.n - 1].packed = packed;
  if (bytes != NULL)
    *bytes = model->bytes - before;
  return RESHARD_SUCCESS;
}

typedef struct data_range {
  int64_t begin, end, tensor;
} data_range;

RS_ORDER_BY_TWO(by_begin, data_range, begin, end)

/* Gaps and overlaps; empty tensors lie anywhere. */
static reshard_status check_tiling(reshard_model model, const char *where, data_range *ranges, int64_t n,
                                   int64_t data) {
  char quoted[RS_QUOTE];
  if (n > 0)
    qsort(ranges, (size_t)n, sizeof *ranges, by_begin);
  int64_t at = 0;
  for (int64_t i = 0; i < n; i++) {
    const char *name = rs_model_name(model, ranges[i].tensor);
    if (ranges[i].begin == ranges[i].end)
      continue;
    if (ranges[i].begin != at)
      return rs_error(RESHARD_ERROR_INVALID,
                      "%s: tensor '%s' begins at byte %lld of the data, the one before ends at %lld", where,
                      rs_quote(quoted, sizeof quoted, name), (long long)ranges[i].begin, (long long)at);
    at = ranges[i].end;
  }
  if (at != data)
    return rs_error(RESHARD_ERROR_INVALID, "%s: its tensors end at byte %lld of the data, the file has %lld", where,
                    (long long)at, (long long)data);
  return RESHARD_SUCCESS;
}

static reshard_status add_header_tensor(reshard_model model, const char *where, const char *name, json_t *value,
                                        int64_t data, data_range *out) {
  char quoted[RS_QUOTE];
  rs_quote(quoted, sizeof quoted, name);
  if (!json_is_object(value))
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': no object", where, quoted);
  json_t *offsets = json_object_get(value, "data_offsets");
  json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
  if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': \"data_offsets\" is missing or not two integers", where,
                    quoted);
  int64_t begin = json_integer_value(first), end = json_integer_value(last);
  if (begin < 0 || end < begin || end > data)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': data_offsets [%lld, %lld] in %lld bytes of data", where,
                    quoted, (long long)begin, (long long)end, (long long)data);
  int64_t bytes = end - begin;
  RS_TRY(rs_safetensors_add_tensor(model, where, name, value, &bytes));
  if (end - begin != bytes)
    return rs_error(RESHARD_ERROR_INVALID,
                    "%s: tensor '%s': data_offsets [%lld, %lld] hold %lld bytes, its shape and dtype need %lld", where,
                    quoted, (long long)begin, (long long)end, (long long)(end - begin), (long long)bytes);
  *out = (data_range){begin, end, model->tensors.n - 1};
  return RESHARD_SUCCESS;
}

static reshard_status keep_text(json_t *metadata, const char *key, char **text) {
  json_t *value = json_object_get(metadata, key);
  if (value == NULL)
    return RESHARD_SUCCESS;
  return rs_alloc_copy(text, json_string_value(value), (int64_t)json_string_length(value) + 1, 1);
}

static reshard_status read_metadata_map(const char *where, json_t *metadata, rs_safetensors *header) {
  if (json_is_null(metadata)) /* none, as the safetensors library reads it */
    return RESHARD_SUCCESS;
  if (!json_is_object(metadata))
    return rs_error(RESHARD_ERROR_INVALID, "%s: \"__metadata__\" is no object", where);
  const char *key;
  json_t *value;
  json_object_foreach(metadata, key, value) {
    char quoted[RS_QUOTE];
    if (!json_is_string(value))
      return rs_error(RESHARD_ERROR_INVALID, "%s: \"__metadata__\": the value of '%s' is no string", where,
                      rs_quote(quoted, sizeof quoted, key));
    bool differs;
    if (!rs_text_pairs_own(key))
      RS_TRY(rs_text_pairs_put(&header->owner, key, json_string_value(value), &differs));
  }
  RS_TRY(keep_text(metadata, "DCP_SHARDING_INFO", &header->sharding));
  return keep_text(metadata, "reshard", &header->reshard);
}

/* A header that is read, member by member. */
typedef struct header_reading {
  const char *where;
  rs_safetensors *header;
  int64_t data; /* bytes */
  bool described;
  RS_VEC(data_range) ranges;
} header_reading;

static reshard_status read_member(void *user, const char *name, json_t *value) {
  header_reading *r = user;
  rs_safetensors *header = r->header;
  if (strcmp(name, "__metadata__") == 0) {
    if (r->described)
      return rs_error(RESHARD_ERROR_INVALID, "%s: \"__metadata__\" is there twice", r->where);
    r->described = true;
    return read_metadata_map(r->where, value, header);
  }
  RS_TRY(rs_vec_reserve(&header->offsets, header->offsets.n + 1));
  RS_TRY(rs_vec_reserve(&r->ranges, r->ranges.n + 1));
  data_range *range = &r->ranges.at[r->ranges.n];
  RS_TRY(add_header_tensor(header->model, r->where, name, value, r->data, range));
  header->offsets.at[header->offsets.n++] = header->start + range->begin;
  r->ranges.n++;
  return RESHARD_SUCCESS;
}

static reshard_status read_members(const char *where, const char *text, int64_t length, const rs_file *file,
                                   rs_safetensors *header) {
  header_reading r = {.where = where, .header = header, .data = file->size - header->start};
  bool object = false;
  reshard_status status = rs_json_members(where, text, length, file->size, read_member, &r, &object);
  if (status == RESHARD_SUCCESS && !object)
    status = rs_error(RESHARD_ERROR_INVALID, "%s: the header is no JSON object", where);
  RS_THEN(status, rs_model_check_names(header->model, where));
  RS_THEN(status, check_tiling(header->model, where, r.ranges.at, r.ranges.n, r.data));
  free(r.ranges.at);
  return status;
}

/* The text of the header; the caller frees it. */
static reshard_status read_metadata_text(const char *where, const rs_file *file, char **text, int64_t *length) {
  unsigned char bytes[8];
  if (file->size < 8)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld bytes are too few for a safetensors file", where,
                    (long long)file->size);
  RS_TRY(rs_file_read_at(file, 0, bytes, 8));
  uint64_t n = 0;
  for (int i = 7; i >= 0; i--)
    n = n << 8 | bytes[i];
  if (n > (uint64_t)file->size - 8 || n > (uint64_t)HEADER_LIMIT)
    return rs_error(RESHARD_ERROR_INVALID, "%s: a header of %llu bytes in a file of %lld (at most %lld are allowed)",
                    where, (unsigned long long)n, (long long)file->size, (long long)HEADER_LIMIT);
  char *made;
  RS_TRY(rs_alloc(&made, (int64_t)n + 1, 1));
  RS_TRY_OR(rs_file_read_at(file, 8, made, (int64_t)n), free(made));
  *text = made;
  *length = (int64_t)n;
  return RESHARD_SUCCESS;
}

/* The parser would only say that it expected the end. */
static reshard_status check_padding(const char *where, const char *text, int64_t length) {
  int64_t n = length;
  while (n > 0 && text[n - 1] == '\0')
    n--;
  if (n == length || n == 0)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_INVALID, "%s: the header is padded with %lld zero bytes (NUL), where spaces belong",
                  where, (long long)(length - n));
}

/* cut: without the digits, which nothing here looks at. */
static reshard_status read_header(const char *where, const rs_file *file, bool cut, rs_safetensors *header) {
  char *text = NULL;
  int64_t length = 0;
  rs_safetensors made = {0};
  RS_TRY(read_metadata_text(where, file, &text, &length));
  made.file_bytes = file->size;
  made.start = 8 + length;
  reshard_status status = check_padding(where, text, length);
  RS_THEN(status, rs_model_new(&made.model));
  RS_THEN(status, read_members(where, text, cut ? rs_safetensors_cut_digits(text, length) : length, file, &made));
  free(text);
  if (status != RESHARD_SUCCESS)
    rs_safetensors_free(&made);
  else
    *header = made;
  return status;
}

/* An error tells its place in the text as the file has it. */
reshard_status rs_safetensors_read(const char *where, const rs_file *file, rs_safetensors *header) {
  reshard_status status = read_header(where, file, true, header);
  return status == RESHARD_ERROR_INVALID ? read_header(where, file, false, header) : status;
}

/* "saved_offsets" of one tensor, appended to header->saved. */
static reshard_status read_saved(const char *where, json_t *object, const rs_model_tensor *tensor, const char *name,
                                 rs_safetensors *header) {
  char quoted[RS_QUOTE];
  rs_quote(quoted, sizeof quoted, name);
  json_t *offsets = json_object_get(object, "saved_offsets");
  if (!json_is_array(offsets))
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': DCP_SHARDING_INFO has no list \"saved_offsets\" of it",
                    where, quoted);
  if (tensor->solid) { /* whole; what of a tensor one of an unknown dtype is cannot be said */
    bool zero = true;
    for (size_t d = 0; d < json_array_size(offsets); d++)
      zero = zero && json_is_integer(json_array_get(offsets, d)) && json_integer_value(json_array_get(offsets, d)) == 0;
    if (!zero && tensor->dtype != RESHARD_DTYPE_NONE)
      return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': a part of it, whose last dim ends within a byte", where,
                      quoted);
    return rs_vec_push(&header->saved, 0);
  }
  if (json_array_size(offsets) != (size_t)tensor->ndim)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': %zu saved_offsets, it has %d dims", where, quoted,
                    json_array_size(offsets), tensor->ndim);
  RS_TRY(rs_vec_reserve(&header->saved, header->saved.n + tensor->ndim));
  for (int d = 0; d < tensor->ndim; d++) {
    json_t *offset = json_array_get(offsets, (size_t)d);
    int64_t end;
    if (!json_is_integer(offset) || json_integer_value(offset) < 0)
      return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': saved_offsets[%d] is no integer of 0 or more", where,
                      quoted, d);
    const rs_packed_type *type = &rs_packed_types[d == tensor->ndim - 1 ? tensor->packed : 0];
    int64_t begin = json_integer_value(offset) / type->elements * type->bytes;
    if (json_integer_value(offset) % type->elements != 0)
      return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': saved_offsets[%d] = %lld of %s is no multiple of %d",
                      where, quoted, d, (long long)json_integer_value(offset), type->name, type->elements);
    if (!rs_add(begin, tensor->shape[d], &end))
      return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': saved_offsets[%d] = %lld overflows with its extent %lld",
                      where, quoted, d, (long long)json_integer_value(offset), (long long)tensor->shape[d]);
    header->saved.at[header->saved.n++] = begin;
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_safetensors_read_sharding(const char *where, rs_safetensors *header) {
  char inside[RS_WHERE + 32];
  rs_text text = {.at = inside, .size = sizeof inside};
  rs_text_add(&text, "%s: DCP_SHARDING_INFO", where);
  json_t *root;
  RS_TRY(rs_json_parse(inside, header->sharding, (int64_t)strlen(header->sharding), header->file_bytes, &root));
  reshard_status status = RESHARD_SUCCESS;
  if (!json_is_object(root))
    status = rs_error(RESHARD_ERROR_INVALID, "%s is no JSON object", inside);
  reshard_model model = header->model;
  for (int64_t i = 0; i < model->tensors.n && status == RESHARD_SUCCESS; i++) {
    const char *name = rs_model_name(model, i);
    status = read_saved(where, json_object_get(root, name), &model->tensors.at[i], name, header);
  }
  json_decref(root);
  return status;
}

#else

reshard_status rs_safetensors_read(const char *where, const rs_file *file, rs_safetensors *header) {
  (void)file;
  (void)header;
  return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: this build reads no safetensors, it was made without jansson", where);
}

reshard_status rs_safetensors_read_sharding(const char *where, rs_safetensors *header) {
  return rs_safetensors_read(where, NULL, header);
}

#endif
