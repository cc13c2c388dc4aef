/* Leaves of a state dict that are no tensors, as a JSON text. Written by appending, read by jansson. */
#include "file/ground/json.h"
#include "base/text.h"
#include "file/ground/file.h"
#include "state/checkpoint.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void rs_stored_leaves_free(rs_stored_leaves *l) {
  for (int64_t i = 0; i < l->all.n; i++)
    reshard_tree_release(l->all.at[i]);
  for (int64_t i = 0; i < l->paths.n; i++)
    free(l->paths.at[i]);
  rs_names_free(&l->names);
  free(l->all.at);
  free(l->paths.at);
  *l = (rs_stored_leaves){0};
}

void rs_state_json_value(rs_text *text, reshard_tree leaf) {
  static const rs_leaf_kind kinds[] = {[RESHARD_TREE_BYTES] = RS_LEAF_BYTES,
                                       [RESHARD_TREE_INT] = RS_LEAF_INT,
                                       [RESHARD_TREE_FLOAT] = RS_LEAF_FLOAT,
                                       [RESHARD_TREE_BOOL] = RS_LEAF_BOOL,
                                       [RESHARD_TREE_NULL] = RS_LEAF_NULL};
  bool bytes = leaf->kind == RESHARD_TREE_BYTES;
  rs_leaf value = {.kind = kinds[leaf->kind]};
  if (bytes)
    value.size = (int64_t)leaf->size;
  else if (leaf->kind == RESHARD_TREE_FLOAT)
    value.real = leaf->real;
  else if (leaf->kind != RESHARD_TREE_NULL)
    value.integer = leaf->integer;
  rs_leaf_json(text, &value, bytes ? leaf->bytes : NULL);
}

void rs_state_json_add(rs_json *j, const rs_state_leaf *leaf) {
  rs_leaves_json_key(j, leaf->path);
  if (leaf->remote != NULL)
    rs_text_string(&j->text, leaf->remote->value);
  else
    rs_state_json_value(&j->text, leaf->node);
}

#ifdef RS_HAVE_JANSSON

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* Reads exactly what rs_leaf_json writes. */
static reshard_status read_base64(const char *text, size_t n, reshard_tree *leaf, bool *good) {
  unsigned char *bytes, *to;
  *good = n % 4 == 0;
  if (!*good)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc(&bytes, (int64_t)n + 1, 1));
  to = bytes;
  for (size_t i = 0; i < n && *good; i += 4) {
    uint32_t bits = 0;
    int pads = i + 4 < n ? 0 : (text[i + 3] == '=') + (text[i + 3] == '=' && text[i + 2] == '=');
    for (size_t k = 0; k < 4; k++) {
      const char *digit = text[i + k] != '\0' ? strchr(digits, text[i + k]) : NULL;
      bool padded = (int)k >= 4 - pads;
      *good = *good && (padded || digit != NULL);
      bits = bits << 6 | (padded || digit == NULL ? 0 : (uint32_t)(digit - digits));
    }
    *good = *good && (bits & ((1u << 8 * pads) - 1)) == 0; /* no bits of bytes that are not there */
    for (int k = 0; k < 3 - pads; k++)
      *to++ = (unsigned char)(bits >> (16 - 8 * k));
  }
  reshard_status status = *good ? reshard_tree_bytes(bytes, (size_t)(to - bytes), leaf) : RESHARD_SUCCESS;
  free(bytes);
  return status;
}

/* *good: false where rs_state_json_value writes no such value. */
static reshard_status read_value(json_t *value, reshard_tree *leaf, bool *good) {
  *good = true;
  if (json_is_null(value))
    return reshard_tree_null(leaf);
  if (json_is_boolean(value))
    return reshard_tree_bool(json_is_true(value), leaf);
  if (json_is_integer(value))
    return reshard_tree_int(json_integer_value(value), leaf);
  if (json_is_real(value))
    return reshard_tree_float(json_real_value(value), leaf);
  json_t *bytes = json_object_get(value, "bytes");
  const char *number = json_string_value(json_object_get(value, "float"));
  *good = json_object_size(value) == 1 && (json_is_string(bytes) || number != NULL);
  if (!*good)
    return RESHARD_SUCCESS;
  if (number == NULL)
    return read_base64(json_string_value(bytes), json_string_length(bytes), leaf, good);
  double real = strcmp(number, "nan") == 0   ? (double)NAN
                : strcmp(number, "inf") == 0 ? (double)INFINITY
                                             : -(double)INFINITY;
  *good = strcmp(number, "nan") == 0 || strcmp(number, "inf") == 0 || strcmp(number, "-inf") == 0;
  return *good ? reshard_tree_float(real, leaf) : RESHARD_SUCCESS;
}

/* Bytes of a leaf beside its path and its value, in the lists and for malloc. */
#define LEAF ((int64_t)(sizeof(struct reshard_tree_s) + 160))

/* *taken: memory of the text's values, and of the leaves so far. */
static reshard_status add_leaf(const char *where, const char *path, json_t *value, int64_t file_bytes, int64_t *taken,
                               rs_stored_leaves *leaves) {
  char quoted[RS_QUOTE];
  int64_t number;
  bool good;
  reshard_tree leaf = NULL;
  *taken += LEAF + (int64_t)strlen(path) + 2 * (int64_t)json_string_length(json_object_get(value, "bytes"));
  RS_TRY(rs_budget_check(where, file_bytes, *taken));
  RS_TRY(rs_vec_reserve(&leaves->all, leaves->all.n + 1));
  RS_TRY(rs_vec_reserve(&leaves->paths, leaves->paths.n + 1));
  RS_TRY(rs_alloc_copy(&leaves->paths.at[leaves->paths.n], path, (int64_t)strlen(path) + 1, 1));
  leaves->paths.n++;
  RS_TRY(read_value(value, &leaf, &good));
  if (!good)
    return rs_error(RESHARD_ERROR_INVALID, "%s: \"leaves\": '%s' has a value that no leaf is written as", where,
                    rs_quote(quoted, sizeof quoted, path));
  leaves->all.at[leaves->all.n++] = leaf;
  return rs_names_put(&leaves->names, leaves->paths.at[leaves->paths.n - 1], strlen(path), &number);
}

static reshard_status read_leaves(const char *where, json_t *root, int64_t file_bytes, int64_t taken,
                                  rs_stored_leaves *leaves) {
  json_t *version = json_object_get(root, "version"), *object = json_object_get(root, "leaves"), *value;
  const char *path;
  if (!json_is_integer(version))
    return rs_error(RESHARD_ERROR_INVALID, "%s: no object with a \"version\"", where);
  if (json_integer_value(version) != 1)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: version %lld, this library reads 1", where,
                    (long long)json_integer_value(version));
  if (!json_is_object(object))
    return rs_error(RESHARD_ERROR_INVALID, "%s: \"leaves\" is missing or no object", where);
  json_object_foreach(object, path, value) RS_TRY(add_leaf(where, path, value, file_bytes, &taken, leaves));
  return RESHARD_SUCCESS;
}

static reshard_status read_text(const char *where, const char *path, bool check, rs_stored_leaves *leaves) {
  bool sealed;
  reshard_status status = RESHARD_SUCCESS;
  char *text = NULL;
  int64_t size, taken = 0;
  json_t *root = NULL;
  RS_TRY(rs_read_all(where, path, RS_TEXT_LIMIT, RS_TEXT_WAIT_MS, &text, &size));
  if (check)
    status = rs_digest_check_seal(where, text, size, &sealed);
  RS_THEN(status, rs_json_parse(where, text, size, size, &root));
  if (status == RESHARD_SUCCESS)
    taken = rs_json_memory(text, size);
  free(text);
  RS_THEN(status, read_leaves(where, root, size, taken, leaves));
  json_decref(root);
  return status;
}

#else

static reshard_status read_text(const char *where, const char *path, bool check, rs_stored_leaves *leaves) {
  (void)check;
  (void)path;
  (void)leaves;
  return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: this build reads no JSON, it was made without jansson", where);
}

#endif

reshard_status rs_state_json_read(const char *directory, bool check, rs_stored_leaves *leaves) {
  char *path, where[RS_WHERE];
  struct stat info;
  int64_t size = (int64_t)strlen(directory) + (int64_t)sizeof RS_STATE_JSON + 1;
  RS_TRY(rs_alloc(&path, size, 1));
  snprintf(path, (size_t)size, "%s/" RS_STATE_JSON, directory);
  rs_where(where, "file", path);
  reshard_status status = RESHARD_SUCCESS;
  if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
    status = rs_error(RESHARD_ERROR_INVALID, "%s: no regular file", where);
  else if (stat(path, &info) == 0)
    status = read_text(where, path, check, leaves);
  else if (errno != ENOENT && errno != ENOTDIR)
    status = rs_file_error(where, errno);
  free(path);
  return status;
}
