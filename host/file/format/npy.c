/* An .npy file is a magic string, two bytes of version, the length of the header, the header and the data. The length
 * has 2 bytes in version 1, 4 in versions 2 and 3, little-endian. The header is a Python dictionary as text, {'descr':
 * '<f4', 'fortran_order': False, 'shape': (3, 4), }, padded with spaces. Source: numpy.lib.format.
 *
 * numpy writes the dictionary by hand and reads it as any Python literal. This reads what numpy has ever written: the
 * three keys in any order, spaces between all tokens, both kinds of quotes, and the 'L' of Python 2 behind numbers. */
#include "file/format/npy.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

#define HEADER_LIMIT ((int64_t)1 << 20) /* a shape and a type are a hundred bytes */

typedef struct scan {
  const char *where;
  const char *at, *end;
} scan;

static void skip_space(scan *s) {
  while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\t' || *s->at == '\r'))
    s->at++;
}

static bool take_char(scan *s, char c) {
  skip_space(s);
  bool is = s->at < s->end && *s->at == c;
  s->at += is;
  return is;
}

/* Quotes the rest of the text, up to `most` characters, for an error. */
static const char *quote_rest(const scan *s, char quoted[RS_QUOTE], size_t most) {
  char text[RS_QUOTE] = "";
  size_t n = (size_t)(s->end - s->at);
  memcpy(text, s->at, n < most ? n : most);
  return rs_quote(quoted, RS_QUOTE, text);
}

static reshard_status expected_here(const scan *s, const char *what) {
  char quoted[RS_QUOTE];
  return rs_error(RESHARD_ERROR_INVALID, "%s: header: expected %s before '%s'", s->where, what,
                  quote_rest(s, quoted, 40));
}

static reshard_status expect_char(scan *s, char c) {
  char what[4] = {'\'', c, '\'', 0};
  return take_char(s, c) ? RESHARD_SUCCESS : expected_here(s, what);
}

/* A string in either kind of quotes, without escapes. */
static reshard_status read_string(scan *s, const char *what, const char **text, size_t *length) {
  skip_space(s);
  char quote = s->at < s->end ? *s->at : '\0';
  const char *close = quote == '\'' || quote == '"' ? memchr(s->at + 1, quote, (size_t)(s->end - s->at) - 1) : NULL;
  if (close == NULL)
    return expected_here(s, what);
  *text = s->at + 1;
  *length = (size_t)(close - s->at) - 1;
  s->at = close + 1;
  return RESHARD_SUCCESS;
}

/* The letter and width of a type as numpy names it, without the byte order. */
static const struct {
  const char *name;
  reshard_dtype dtype;
} dtypes[] = {{"b1", RESHARD_BOOL}, {"u1", RESHARD_U8},  {"i1", RESHARD_I8},  {"u2", RESHARD_U16},  {"i2", RESHARD_I16},
              {"u4", RESHARD_U32},  {"i4", RESHARD_I32}, {"u8", RESHARD_U64}, {"i8", RESHARD_I64},  {"f2", RESHARD_F16},
              {"f4", RESHARD_F32},  {"f8", RESHARD_F64}, {"c8", RESHARD_C64}, {"c16", RESHARD_C128}};

/* A descr 'V2' is raw bytes, as numpy saves the types of ml_dtypes: what they are must be given. */
static reshard_status check_raw(const scan *s, const scan *descr, const char *width, reshard_dtype given) {
  char quoted[RS_QUOTE], size[8];
  rs_text text = {.at = size, .size = sizeof size};
  rs_text_add(&text, "%zu", reshard_dtype_size(given));
  if (given == RESHARD_DTYPE_NONE)
    return rs_error(RESHARD_ERROR_INVALID,
                    "%s: raw bytes, as numpy saves types of others: descr '%s'; --source-dtype %s (source_dtype in C) "
                    "says what they are",
                    s->where, quote_rest(descr, quoted, 60), strcmp(width, "1") == 0 ? "f8_e4m3" : "bf16");
  if (strcmp(size, width) != 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: --source-dtype %s has %s bytes: descr '%s'", s->where,
                    reshard_dtype_string(given), size, quote_rest(descr, quoted, 60));
  return RESHARD_SUCCESS;
}

/* descr: '<f4', '|u1'. A list of fields or a tuple is a structured type. *dtype: that of raw bytes before. */
static reshard_status read_descr(scan *s, reshard_dtype *dtype) {
  const char *text = "";
  char quoted[RS_QUOTE], name[8] = "";
  size_t length = 0;
  skip_space(s);
  if (s->at < s->end && (*s->at == '[' || *s->at == '('))
    return rs_error(RESHARD_ERROR_INVALID, "%s: a structured type: descr %s", s->where, quote_rest(s, quoted, 60));
  RS_TRY(read_string(s, "a string as the descr", &text, &length));
  char order = length > 0 ? text[0] : '\0';
  if (length > 1 && length <= sizeof name)
    memcpy(name, text + 1, length - 1);
  scan whole = {s->where, text, text + length};
  if (name[0] == 'V' && order != '\0' && strchr("<|=", order) != NULL)
    return check_raw(s, &whole, name + 1, *dtype);
  for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
    if (strcmp(name, dtypes[i].name) != 0 || order == '\0' || strchr("<>=|", order) == NULL)
      continue;
    if (order == '>')
      return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: big-endian data: descr '%s'", s->where,
                      quote_rest(&whole, quoted, 60));
    if (order == '|' && reshard_dtype_size(dtypes[i].dtype) > 1)
      continue;
    if (*dtype != RESHARD_DTYPE_NONE && *dtype != dtypes[i].dtype)
      return rs_error(RESHARD_ERROR_INVALID, "%s: --source-dtype is %s, the file says %s: descr '%s'", s->where,
                      reshard_dtype_string(*dtype), reshard_dtype_string(dtypes[i].dtype),
                      quote_rest(&whole, quoted, 60));
    *dtype = dtypes[i].dtype;
    return RESHARD_SUCCESS;
  }
  return rs_error(RESHARD_ERROR_INVALID, "%s: unknown type: descr '%s'", s->where, quote_rest(&whole, quoted, 60));
}

static reshard_status read_order(scan *s, bool *fortran) {
  skip_space(s);
  size_t left = (size_t)(s->end - s->at);
  *fortran = left >= 4 && memcmp(s->at, "True", 4) == 0;
  if (!*fortran && (left < 5 || memcmp(s->at, "False", 5) != 0))
    return expected_here(s, "True or False as the fortran_order");
  s->at += *fortran ? 4 : 5;
  return RESHARD_SUCCESS;
}

static reshard_status read_extent(scan *s, int64_t *extent) {
  skip_space(s);
  const char *first = s->at;
  int64_t n = 0;
  for (; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++)
    if (!rs_mul(n, 10, &n) || !rs_add(n, *s->at - '0', &n)) {
      s->at = first;
      return expected_here(s, "an extent below 2^63");
    }
  if (s->at == first)
    return expected_here(s, "an extent");
  s->at += s->at < s->end && *s->at == 'L';
  *extent = n;
  return RESHARD_SUCCESS;
}

/* A tuple: (), (3,), (3, 4). "(3)" is a number to Python. */
static reshard_status read_shape(scan *s, int *ndim, int64_t *shape) {
  bool comma = true;
  int n = 0;
  RS_TRY(expect_char(s, '('));
  while (!take_char(s, ')')) {
    int64_t extent = 0;
    if (!comma)
      return expected_here(s, "',' or ')' in the shape");
    RS_TRY(read_extent(s, &extent));
    if (n < RESHARD_MAX_DIMS)
      shape[n] = extent;
    n++;
    comma = take_char(s, ',');
  }
  if (n == 1 && !comma)
    return rs_error(RESHARD_ERROR_INVALID, "%s: header: the shape (%lld) is no tuple", s->where, (long long)shape[0]);
  if (n > RESHARD_MAX_DIMS)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %d dims, %d is the most", s->where, n, RESHARD_MAX_DIMS);
  *ndim = n;
  return RESHARD_SUCCESS;
}

static reshard_status read_dictionary(scan *s, reshard_model_tensor *tensor, bool *fortran) {
  static const char *const keys[] = {"descr", "fortran_order", "shape"};
  bool seen[3] = {false, false, false}, comma = true;
  RS_TRY(expect_char(s, '{'));
  while (!take_char(s, '}')) {
    const char *text = "";
    size_t length = 0;
    int key = 0;
    if (!comma)
      return expected_here(s, "',' or '}'");
    RS_TRY(read_string(s, "a key", &text, &length));
    while (key < 3 && (strlen(keys[key]) != length || memcmp(keys[key], text, length) != 0))
      key++;
    if (key == 3 || seen[key]) {
      char quoted[RS_QUOTE];
      scan name = {s->where, text, text + length};
      return rs_error(RESHARD_ERROR_INVALID, "%s: header: the key '%s' is %s", s->where, quote_rest(&name, quoted, 40),
                      key == 3 ? "unknown" : "there twice");
    }
    seen[key] = true;
    RS_TRY(expect_char(s, ':'));
    RS_TRY(key == 0   ? read_descr(s, &tensor->dtype)
           : key == 1 ? read_order(s, fortran)
                      : read_shape(s, &tensor->ndim, tensor->shape));
    comma = take_char(s, ',');
  }
  for (int key = 0; key < 3; key++)
    if (!seen[key])
      return rs_error(RESHARD_ERROR_INVALID, "%s: header: the key '%s' is missing", s->where, keys[key]);
  skip_space(s);
  return s->at == s->end ? RESHARD_SUCCESS : expected_here(s, "nothing");
}

/* Finds where the header begins and how long it is. */
static reshard_status read_head(const char *where, const rs_file *file, int64_t *begin, int64_t *length) {
  unsigned char head[12] = {0};
  if (file->size < 10)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld bytes are too few for an .npy file", where, (long long)file->size);
  RS_TRY(rs_file_read_at(file, 0, head, rs_min(file->size, sizeof head)));
  if (memcmp(head, RS_NPY_MAGIC, 6) != 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: no .npy file: it does not begin with \\x93NUMPY", where);
  if (head[6] < 1 || head[6] > 3 || head[7] != 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: version %d.%d of .npy, 1.0, 2.0 and 3.0 are known", where, head[6],
                    head[7]);
  *begin = head[6] == 1 ? 10 : 12;
  *length = head[8] | head[9] << 8;
  if (head[6] > 1)
    *length |= (int64_t)head[10] << 16 | (int64_t)head[11] << 24;
  if (*length > file->size - *begin || *length > HEADER_LIMIT)
    return rs_error(RESHARD_ERROR_INVALID, "%s: a header of %lld bytes in a file of %lld (at most %lld are allowed)",
                    where, (long long)*length, (long long)file->size, (long long)HEADER_LIMIT);
  return RESHARD_SUCCESS;
}

reshard_status rs_npy_read(const char *where, const rs_file *file, reshard_dtype raw, rs_whole_tensor *whole) {
  int64_t begin = 0, length = 0, bytes = 0;
  char *text, shape[RS_SHAPE_TEXT];
  bool fortran = false;
  reshard_model_tensor tensor = {.name = "tensor", .dtype = raw};
  RS_TRY(read_head(where, file, &begin, &length));
  RS_TRY(rs_alloc(&text, length + 1, 1));
  scan s = {where, text, text + length};
  reshard_status status = rs_file_read_at(file, begin, text, length);
  RS_THEN(status, read_dictionary(&s, &tensor, &fortran));
  free(text);
  RS_TRY(status);
  if (rs_tensor_bytes(tensor.ndim, tensor.shape, reshard_dtype_size(tensor.dtype), &bytes) != RESHARD_SUCCESS)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s", where, reshard_last_error());
  begin += length;
  if (bytes != file->size - begin)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld bytes of data, shape %s of %s needs %lld", where,
                    (long long)(file->size - begin), rs_shape_text(shape, tensor.ndim, tensor.shape),
                    reshard_dtype_string(tensor.dtype), (long long)bytes);
  *whole = (rs_whole_tensor){tensor, .reversed = fortran && tensor.ndim > 1, .offset = begin};
  return RESHARD_SUCCESS;
}
