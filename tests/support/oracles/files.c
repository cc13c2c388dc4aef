#include "files.h"

#ifdef RS_HAVE_JANSSON

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct {
  const char *safetensors, *numpy;
} names[RESHARD_DTYPE_COUNT] = {
    [RESHARD_BOOL] = {"BOOL", "|b1"},   [RESHARD_U8] = {"U8", "|u1"},       [RESHARD_I8] = {"I8", "|i1"},
    [RESHARD_U16] = {"U16", "<u2"},     [RESHARD_I16] = {"I16", "<i2"},     [RESHARD_U32] = {"U32", "<u4"},
    [RESHARD_I32] = {"I32", "<i4"},     [RESHARD_U64] = {"U64", "<u8"},     [RESHARD_I64] = {"I64", "<i8"},
    [RESHARD_F8_E4M3] = {"F8_E4M3", 0}, [RESHARD_F8_E5M2] = {"F8_E5M2", 0}, [RESHARD_F8_E8M0] = {"F8_E8M0", 0},
    [RESHARD_F16] = {"F16", "<f2"},     [RESHARD_BF16] = {"BF16", 0},       [RESHARD_F32] = {"F32", "<f4"},
    [RESHARD_F64] = {"F64", "<f8"},     [RESHARD_C64] = {"C64", "<c8"},     [RESHARD_C128] = {0, "<c16"},
};

bool naive_numpy_has(reshard_dtype dtype) { return names[dtype].numpy != NULL; }
bool naive_safetensors_has(reshard_dtype dtype) { return names[dtype].safetensors != NULL; }

int64_t naive_volume(int ndim, const int64_t *shape) {
  int64_t n = 1;
  for (int d = 0; d < ndim; d++)
    n *= shape[d];
  return n;
}

static int64_t width_of(const naive_tensor *t) { return (int64_t)reshard_dtype_size(t->dtype); }

naive_tensor *naive_add(naive_set *set, const char *name, reshard_dtype dtype, int ndim, const int64_t *shape) {
  set->at = cli_realloc(set->at, set->n + 1, sizeof *set->at);
  naive_tensor *t = &set->at[set->n++];
  *t = (naive_tensor){.name = cli_strdup(name), .dtype = dtype, .ndim = ndim, .n = naive_volume(ndim, shape)};
  for (int d = 0; d < ndim; d++)
    t->shape[d] = shape[d];
  t->bytes = cli_alloc(t->n, reshard_dtype_size(dtype));
  return t;
}

const naive_tensor *naive_find(const naive_set *set, const char *name) {
  for (int64_t i = 0; i < set->n; i++)
    if (strcmp(set->at[i].name, name) == 0)
      return &set->at[i];
  return NULL;
}

void naive_set_free(naive_set *set) {
  for (int64_t i = 0; i < set->n; i++) {
    free(set->at[i].name);
    free(set->at[i].bytes);
  }
  free(set->at);
  *set = (naive_set){0};
}

/* --- Files ------------------------------------------------------------------------------------------------------- */

static void file_save(const char *path, const rs_text *text) {
  FILE *file = fopen(path, "wb");
  if (file == NULL || fwrite(text->at, 1, text->length, file) != text->length || fclose(file) != 0)
    cli_exit(EXIT_FAILED, "%s: %s", path, strerror(errno));
}

static bool file_load(const char *path, rs_text *out, rs_text *why) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    cli_add(why, "%s: %s", path, strerror(errno));
    return false;
  }
  char some[65536];
  cli_add(out, "%s", "");
  for (size_t n; (n = fread(some, 1, sizeof some, file)) > 0;)
    cli_add_bytes(out, some, n);
  fclose(file);
  return true;
}

static bool file_wrong(rs_text *why, const char *path, const char *what) {
  cli_add(why, "%s: %s", path, what);
  return false;
}

static void add_little_endian(rs_text *text, uint64_t x, int bytes) {
  for (int i = 0; i < bytes; i++)
    cli_add_bytes(text, &(char){(char)(x >> 8 * i)}, 1);
}

static uint64_t little_endian(const char *at, int bytes) {
  uint64_t x = 0;
  for (int i = bytes - 1; i >= 0; i--)
    x = x << 8 | (unsigned char)at[i];
  return x;
}

/* --- npy --------------------------------------------------------------------------------------------------------- */

/* Row-major number of the element that comes k-th in Fortran order. */
static int64_t fortran_index(int ndim, const int64_t *shape, int64_t k) {
  int64_t at[RESHARD_MAX_DIMS], linear = 0;
  for (int d = 0; d < ndim; d++) {
    at[d] = k % shape[d];
    k /= shape[d];
  }
  for (int d = 0; d < ndim; d++)
    linear = linear * shape[d] + at[d];
  return linear;
}

void naive_write_npy(rng *r, const char *path, const naive_tensor *t, bool fortran) {
  rs_text header = {0}, text = {0};
  int version = (int)rng_in(r, 1, 3);
  cli_add(&header, "{'descr': '%s', 'fortran_order': %s, 'shape': (", names[t->dtype].numpy,
          fortran ? "True" : "False");
  for (int d = 0; d < t->ndim; d++)
    cli_add(&header, t->ndim == 1 ? "%lld," : d > 0 ? ", %lld" : "%lld", (long long)t->shape[d]);
  cli_add(&header, "), }");
  size_t lead = version == 1 ? 10 : 12, unit = rng_one_in(r, 2) ? 64 : 16;
  while ((lead + header.length + 1) % unit != 0)
    cli_add(&header, " ");
  cli_add(&header, "\n");
  cli_add_bytes(&text, "\x93NUMPY", 6);
  add_little_endian(&text, (uint64_t)version, 2);
  add_little_endian(&text, header.length, version == 1 ? 2 : 4);
  cli_add_bytes(&text, header.at, header.length);
  int64_t width = width_of(t);
  for (int64_t k = 0; k < t->n; k++)
    cli_add_bytes(&text, (char *)t->bytes + (fortran ? fortran_index(t->ndim, t->shape, k) : k) * width, (size_t)width);
  file_save(path, &text);
  free(header.at);
  free(text.at);
}

/* The value of a key of the header's dict, which numpy writes in one form alone. */
static const char *value_of(const char *header, const char *key) {
  const char *at = strstr(header, key);
  return at != NULL ? at + strlen(key) : NULL;
}

static bool read_npy(const char *path, const rs_text *text, naive_set *out, rs_text *why) {
  if (text->length < 12 || memcmp(text->at, "\x93NUMPY", 6) != 0 || text->at[6] < 1 || text->at[6] > 3 ||
      text->at[7] != 0)
    return file_wrong(why, path, "no .npy of version 1 to 3");
  int size = text->at[6] == 1 ? 2 : 4;
  size_t length = (size_t)little_endian(text->at + 8, size), data = 8 + (size_t)size + length;
  if (length < 10 || data > text->length || data % 64 != 0 || text->at[data - 1] != '\n')
    return file_wrong(why, path, "the header is not padded to 64 bytes and ended as numpy has it");
  char header[1024] = {0};
  memcpy(header, text->at + 8 + size, length < sizeof header ? length : sizeof header - 1);
  const char *descr = value_of(header, "'descr': "), *order = value_of(header, "'fortran_order': ");
  const char *extents = value_of(header, "'shape': (");
  if (header[0] != '{' || descr == NULL || order == NULL || extents == NULL || strchr(extents, '}') == NULL)
    return file_wrong(why, path, "a key of the header is missing");
  int dtype = 1;
  for (; dtype < RESHARD_DTYPE_COUNT; dtype++) {
    const char *name = names[dtype].numpy;
    if (name != NULL && *descr == '\'' && strncmp(descr + 1, name, strlen(name)) == 0 &&
        descr[1 + strlen(name)] == '\'')
      break;
  }
  if (dtype == RESHARD_DTYPE_COUNT || (strncmp(order, "False", 5) != 0 && strncmp(order, "True", 4) != 0))
    return file_wrong(why, path, header);
  int ndim = 0;
  int64_t shape[RESHARD_MAX_DIMS];
  for (char *end; ndim < RESHARD_MAX_DIMS && *extents != ')'; extents = end + strspn(end, ", ")) {
    shape[ndim++] = strtoll(extents, &end, 10);
    if (end == extents || (*end != ',' && *end != ')') || (ndim == 1 && *end == ')'))
      return file_wrong(why, path, header);
  }
  naive_tensor *t = naive_add(out, "tensor", (reshard_dtype)dtype, ndim, shape);
  int64_t width = width_of(t);
  if ((int64_t)(text->length - data) != t->n * width)
    return file_wrong(why, path, "the data is not as long as shape and dtype say");
  for (int64_t k = 0; k < t->n; k++)
    memcpy(t->bytes + (*order == 'T' ? fortran_index(ndim, shape, k) : k) * width, text->at + data + k * width,
           (size_t)width);
  return true;
}

bool naive_read_npy(const char *path, naive_set *out, rs_text *why) {
  rs_text text = {0};
  *out = (naive_set){0};
  bool right = file_load(path, &text, why) && read_npy(path, &text, out, why);
  free(text.at);
  return right;
}

/* --- safetensors ------------------------------------------------------------------------------------------------- */

static const char *const parsed_keys[] = {"DCP_SHARDING_INFO", "reshard"};

static json_t *dump_metadata(json_t *metadata) {
  json_t *texts = json_copy(metadata);
  for (int i = 0; i < 2; i++) {
    json_t *value = json_object_get(metadata, parsed_keys[i]);
    if (value == NULL)
      continue;
    char *text = json_dumps(value, JSON_COMPACT);
    json_object_set_new(texts, parsed_keys[i], json_pack("s", text));
    free(text);
  }
  return texts;
}

static void shuffle(rng *r, int64_t *order, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    order[i] = i;
  for (int64_t i = 0; i < n; i++) {
    int64_t j = rng_in(r, i, n - 1), t = order[i];
    order[i] = order[j];
    order[j] = t;
  }
}

void naive_write_safetensors(rng *r, const char *path, const naive_file *file) {
  int64_t n = file->set.n, offset = 0;
  int64_t *order = cli_alloc(n, sizeof *order), *listed = cli_alloc(n, sizeof *listed);
  int64_t *begins = cli_alloc(n, sizeof *begins);
  shuffle(r, order, n);
  shuffle(r, listed, n);
  for (int64_t i = 0; i < n; i++) {
    const naive_tensor *t = &file->set.at[order[i]];
    begins[order[i]] = offset;
    offset += t->n * width_of(t);
  }
  json_t *header = json_object();
  bool last = rng_one_in(r, 4);
  if (file->metadata != NULL && !last)
    json_object_set_new(header, "__metadata__", dump_metadata(file->metadata));
  for (int64_t i = 0; i < n; i++) {
    const naive_tensor *t = &file->set.at[listed[i]];
    json_t *shape = json_array();
    for (int d = 0; d < t->ndim; d++)
      json_array_append_new(shape, json_integer(t->shape[d]));
    json_object_set_new(header, t->name,
                        json_pack("{s:s, s:o, s:[I,I]}", "dtype", names[t->dtype].safetensors, "shape", shape,
                                  "data_offsets", (json_int_t)begins[listed[i]],
                                  (json_int_t)(begins[listed[i]] + t->n * width_of(t))));
  }
  if (file->metadata != NULL && last)
    json_object_set_new(header, "__metadata__", dump_metadata(file->metadata));
  char *json = json_dumps(header, rng_one_in(r, 2) ? JSON_COMPACT : JSON_ENSURE_ASCII);
  rs_text text = {0}, padded = {0};
  cli_add(&padded, "%s", json);
  while (rng_one_in(r, 4) ? !rng_one_in(r, 3) : padded.length % 8 != 0)
    cli_add(&padded, " ");
  add_little_endian(&text, padded.length, 8);
  cli_add_bytes(&text, padded.at, padded.length);
  for (int64_t i = 0; i < n; i++) {
    const naive_tensor *t = &file->set.at[order[i]];
    cli_add_bytes(&text, (char *)t->bytes, (size_t)(t->n * width_of(t)));
  }
  file_save(path, &text);
  json_decref(header);
  free(json);
  free(padded.at);
  free(text.at);
  free(order);
  free(listed);
  free(begins);
}

static bool read_metadata(const char *path, json_t *texts, naive_file *out, rs_text *why) {
  const char *key;
  json_t *value;
  out->metadata = json_object();
  json_object_foreach(texts, key, value) {
    if (!json_is_string(value))
      return file_wrong(why, path, "a value of __metadata__ is no string");
    if (strcmp(key, "reshard_digests") == 0)
      continue;
    bool parsed = strcmp(key, parsed_keys[0]) == 0 || strcmp(key, parsed_keys[1]) == 0;
    json_t *item = parsed ? json_loads(json_string_value(value), JSON_REJECT_DUPLICATES, NULL) : json_incref(value);
    if (item == NULL)
      return file_wrong(why, path, json_string_value(value));
    json_object_set_new(out->metadata, key, item);
  }
  return true;
}

/* Data that is not one tensor's after another's is counted: every byte belongs to exactly one. */
static bool read_tensor(const char *path, const char *name, json_t *entry, const char *data, int64_t size,
                        unsigned char *used, naive_set *set, rs_text *why) {
  const char *dtype_name = NULL;
  json_t *extents = NULL, *extent;
  json_int_t begin = 0, end = 0;
  int64_t shape[RESHARD_MAX_DIMS] = {0};
  size_t d;
  int dtype = 1;
  if (json_unpack(entry, "{s:s, s:o, s:[I,I!]!}", "dtype", &dtype_name, "shape", &extents, "data_offsets", &begin,
                  &end) != 0 ||
      json_array_size(extents) > RESHARD_MAX_DIMS)
    return file_wrong(why, path, name);
  json_array_foreach(extents, d, extent) shape[d] = json_integer_value(extent);
  while (dtype < RESHARD_DTYPE_COUNT &&
         (names[dtype].safetensors == NULL || strcmp(names[dtype].safetensors, dtype_name) != 0))
    dtype++;
  if (dtype == RESHARD_DTYPE_COUNT)
    return file_wrong(why, path, dtype_name);
  naive_tensor *t = naive_add(set, name, (reshard_dtype)dtype, (int)json_array_size(extents), shape);
  if (begin < 0 || end > size || end - begin != t->n * width_of(t))
    return file_wrong(why, path, "data_offsets");
  for (int64_t i = begin; i < end; i++) {
    if (used[i]++ != 0)
      return file_wrong(why, path, "two tensors overlap");
    t->bytes[i - begin] = (unsigned char)data[i];
  }
  return true;
}

static bool read_safetensors(const char *path, const rs_text *text, naive_file *out, rs_text *why) {
  uint64_t length = text->length >= 8 ? little_endian(text->at, 8) : UINT64_MAX;
  if (length > text->length - 8)
    return file_wrong(why, path, "shorter than its header says");
  json_error_t error;
  json_t *header = json_loadb(text->at + 8, length, JSON_REJECT_DUPLICATES, &error), *value;
  if (header == NULL)
    return file_wrong(why, path, error.text);
  int64_t size = (int64_t)(text->length - 8 - length);
  unsigned char *used = cli_alloc(size, 1);
  bool right = text->at[8] == '{' || file_wrong(why, path, "the header does not begin with {");
  const char *name;
  json_object_foreach(header, name, value) {
    if (!right)
      break;
    right = strcmp(name, "__metadata__") == 0
                ? read_metadata(path, value, out, why)
                : read_tensor(path, name, value, text->at + 8 + length, size, used, &out->set, why);
  }
  for (int64_t i = 0; i < size && right; i++)
    right = used[i] == 1 || file_wrong(why, path, "a byte belongs to no tensor");
  free(used);
  json_decref(header);
  return right;
}

bool naive_read_safetensors(const char *path, naive_file *out, rs_text *why) {
  const char *slash = strrchr(path, '/');
  rs_text text = {0};
  *out = (naive_file){.name = cli_strdup(slash != NULL ? slash + 1 : path)};
  bool right = file_load(path, &text, why) && read_safetensors(path, &text, out, why);
  free(text.at);
  return right;
}

void naive_file_free(naive_file *file) {
  naive_set_free(&file->set);
  json_decref(file->metadata);
  free(file->name);
  *file = (naive_file){0};
}

#endif
