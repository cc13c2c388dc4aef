/* Models from files: a JSON list of tensors, or the header of a safetensors file.
 *
 * A safetensors file is an 8-byte little-endian length, a JSON object of that length, and the data. The object maps a
 * name to {"dtype", "shape", "data_offsets": [begin, end]}, offsets counted from the data's first byte; the tensors
 * tile the data without gap or overlap. "__metadata__" is no tensor. Source: the format's README. */
#include "file/file.h"

#include <string.h>

#ifdef RS_HAVE_JANSSON

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define JSON_LIMIT   ((int64_t)1 << 30)
#define HEADER_LIMIT ((int64_t)100000000) /* the format's own */

typedef struct range {
  int64_t begin, end, tensor;
} range;

/* Without memory the parser may say nothing, or take a string that it could not keep for a syntax error: an error that
 * is not the same a second time is none of the text's. */
static reshard_status parse(const char *where, const char *text, int64_t size, json_t **root) {
  json_error_t error, again;
  *root = json_loadb(text, (size_t)size, JSON_REJECT_DUPLICATES, &error);
  if (*root != NULL)
    return RESHARD_SUCCESS;
  json_t *second = json_loadb(text, (size_t)size, JSON_REJECT_DUPLICATES, &again);
  bool same = second == NULL && error.position == again.position && strcmp(error.text, again.text) == 0;
  json_decref(second);
  if (!same || json_error_code(&error) == json_error_out_of_memory || error.text[0] == '\0')
    return rs_error_memory((size_t)size);
  char quoted[JSON_ERROR_TEXT_LENGTH];
  return rs_error(RESHARD_ERROR_INVALID, "%s: line %d column %d: %s", where, error.line, error.column,
                  rs_quote(quoted, sizeof quoted, error.text));
}

/* One tensor of either kind of file: "dtype" and "shape" of the object. bytes may be NULL. */
static reshard_status add(reshard_model model, const char *where, const char *name, json_t *object, int64_t *bytes) {
  char quoted[RS_QUOTE];
  rs_quote(quoted, sizeof quoted, name);
  json_t *dtype_text = json_object_get(object, "dtype"), *extents = json_object_get(object, "shape");
  if (*name == '\0')
    return rs_error(RESHARD_ERROR_INVALID, "%s: a tensor has the empty name", where);
  if (!json_is_string(dtype_text) || !json_is_array(extents))
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': \"%s\" is missing or no %s", where, quoted,
                    !json_is_string(dtype_text) ? "dtype" : "shape", !json_is_string(dtype_text) ? "string" : "list");
  reshard_dtype dtype;
  if (reshard_dtype_parse(json_string_value(dtype_text), &dtype) != RESHARD_SUCCESS) {
    char other[RS_QUOTE];
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': unknown dtype '%s'", where, quoted,
                    rs_quote(other, sizeof other, json_string_value(dtype_text)));
  }
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
  int64_t before = model->bytes;
  RS_TRY(rs_model_add(model, where, name, strlen(name), dtype, (int)ndim, shape));
  if (bytes != NULL)
    *bytes = model->bytes - before;
  return RESHARD_SUCCESS;
}

static reshard_status add_list(reshard_model model, const char *where, json_t *root) {
  if (!json_is_array(root))
    return rs_error(RESHARD_ERROR_INVALID, "%s: a list of {\"name\", \"shape\", \"dtype\"} is expected", where);
  for (size_t i = 0; i < json_array_size(root); i++) {
    json_t *item = json_array_get(root, i), *name = json_object_get(item, "name");
    if (!json_is_object(item) || !json_is_string(name))
      return rs_error(RESHARD_ERROR_INVALID, "%s: item %zu: %s", where, i,
                      json_is_object(item) ? "\"name\" is missing or no string" : "no object");
    RS_TRY(add(model, where, json_string_value(name), item, NULL));
  }
  return rs_model_check_names(model, where);
}

static reshard_status load_list(reshard_model model, const char *where, const char *path) {
  char *text;
  int64_t size;
  json_t *root;
  RS_TRY(rs_file_read(where, path, JSON_LIMIT, &text, &size));
  reshard_status status = parse(where, text, size, &root);
  free(text);
  RS_TRY(status);
  status = add_list(model, where, root);
  json_decref(root);
  return status;
}

static int by_begin(const void *a, const void *b) {
  const range *x = a, *y = b;
  if (x->begin != y->begin)
    return x->begin < y->begin ? -1 : 1;
  return x->end < y->end ? -1 : x->end > y->end;
}

/* Gaps and overlaps; empty tensors lie anywhere. */
static reshard_status check_tiling(reshard_model model, const char *where, range *ranges, int64_t n, int64_t data) {
  char quoted[RS_QUOTE];
  if (n > 0)
    qsort(ranges, (size_t)n, sizeof *ranges, by_begin);
  int64_t at = 0;
  for (int64_t i = 0; i < n; i++) {
    const char *name = model->names.at + model->tensors.at[ranges[i].tensor].name;
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
                                        int64_t data, range *out) {
  char quoted[RS_QUOTE];
  rs_quote(quoted, sizeof quoted, name);
  if (!json_is_object(value))
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': no object", where, quoted);
  json_t *offsets = json_object_get(value, "data_offsets");
  json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
  if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last))
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': \"data_offsets\" is missing or not two integers", where,
                    quoted);
  int64_t begin = json_integer_value(first), end = json_integer_value(last), bytes;
  RS_TRY(add(model, where, name, value, &bytes));
  if (begin < 0 || end < begin || end > data)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': data_offsets [%lld, %lld] in %lld bytes of data", where,
                    quoted, (long long)begin, (long long)end, (long long)data);
  if (end - begin != bytes)
    return rs_error(RESHARD_ERROR_INVALID,
                    "%s: tensor '%s': data_offsets [%lld, %lld] hold %lld bytes, its shape and dtype need %lld", where,
                    quoted, (long long)begin, (long long)end, (long long)(end - begin), (long long)bytes);
  *out = (range){begin, end, model->tensors.n - 1};
  return RESHARD_SUCCESS;
}

static reshard_status add_header(reshard_model model, const char *where, json_t *root, int64_t data) {
  if (!json_is_object(root))
    return rs_error(RESHARD_ERROR_INVALID, "%s: the header is no JSON object", where);
  range *ranges;
  RS_TRY(rs_alloc(&ranges, (int64_t)json_object_size(root), sizeof *ranges));
  reshard_status status = RESHARD_SUCCESS;
  const char *name;
  json_t *value;
  int64_t n = 0;
  json_object_foreach(root, name, value) {
    if (strcmp(name, "__metadata__") == 0)
      continue;
    status = add_header_tensor(model, where, name, value, data, &ranges[n]);
    if (status != RESHARD_SUCCESS)
      break;
    n++;
  }
  if (status == RESHARD_SUCCESS)
    status = check_tiling(model, where, ranges, n, data);
  free(ranges);
  return status;
}

static reshard_status read_at(const char *where, int file, int64_t offset, void *to, int64_t size) {
  for (int64_t done = 0; done < size;) {
    ssize_t n = pread(file, (char *)to + done, (size_t)(size - done), (off_t)(offset + done));
    if (n < 0 && errno != EINTR)
      return rs_file_error(where, errno);
    if (n == 0)
      return rs_error(RESHARD_ERROR_SYSTEM, "%s: became shorter while it was read", where);
    done += n > 0 ? n : 0;
  }
  return RESHARD_SUCCESS;
}

static reshard_status read_header(const char *where, int file, char **header, int64_t *length, int64_t *data) {
  struct stat info;
  unsigned char bytes[8];
  if (fstat(file, &info) != 0)
    return rs_file_error(where, errno);
  if (!S_ISREG(info.st_mode))
    return rs_error(RESHARD_ERROR_INVALID, "%s: no regular file", where);
  if (info.st_size < 8)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld bytes are too few for a safetensors file", where,
                    (long long)info.st_size);
  RS_TRY(read_at(where, file, 0, bytes, 8));
  uint64_t n = 0;
  for (int i = 7; i >= 0; i--)
    n = n << 8 | bytes[i];
  if (n > (uint64_t)info.st_size - 8 || n > (uint64_t)HEADER_LIMIT)
    return rs_error(RESHARD_ERROR_INVALID, "%s: a header of %llu bytes in a file of %lld (at most %lld are allowed)",
                    where, (unsigned long long)n, (long long)info.st_size, (long long)HEADER_LIMIT);
  char *text;
  RS_TRY(rs_alloc(&text, (int64_t)n + 1, 1));
  reshard_status status = read_at(where, file, 8, text, (int64_t)n);
  if (status != RESHARD_SUCCESS) {
    free(text);
    return status;
  }
  *header = text;
  *length = (int64_t)n;
  *data = (int64_t)info.st_size - 8 - (int64_t)n;
  return RESHARD_SUCCESS;
}

static reshard_status load_header(reshard_model model, const char *where, const char *path) {
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a named pipe is refused, not waited for */
  if (file < 0)
    return rs_file_error(where, errno);
  char *header = NULL;
  int64_t length = 0, data = 0;
  json_t *root;
  reshard_status status = read_header(where, file, &header, &length, &data);
  close(file);
  RS_TRY(status);
  status = parse(where, header, length, &root);
  free(header);
  RS_TRY(status);
  status = add_header(model, where, root, data);
  json_decref(root);
  return status;
}

static reshard_status load(reshard_model model, const char *where, const char *path) {
  static const char suffix[] = ".safetensors";
  size_t n = strlen(path), k = sizeof suffix - 1;
  return n >= k && strcmp(path + n - k, suffix) == 0 ? load_header(model, where, path) : load_list(model, where, path);
}

#else

static reshard_status load(reshard_model model, const char *where, const char *path) {
  (void)model;
  (void)path;
  return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: this build reads no model files, it was made without jansson", where);
}

#endif

reshard_status reshard_model_load(const char *path, reshard_model *model) {
  if (path == NULL || model == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_model_load: NULL argument");
  char where[RS_WHERE];
  reshard_model made;
  RS_TRY(rs_model_new(&made));
  reshard_status status = load(made, rs_where(where, "model file", path), path);
  if (status != RESHARD_SUCCESS) {
    reshard_model_free(made);
    return status;
  }
  *model = made;
  return RESHARD_SUCCESS;
}
