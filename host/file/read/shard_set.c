/* The files of a set of shards, taken together.
 *
 * PyTorch's files say where each shard begins, and nothing of the whole: the shape is then the largest end per dim.
 * Ours carry one text more, "reshard": {"version": 1, "world", "files", "shapes", "layout"}. It is the same in every
 * file but for "intervals", the index runs of arrays in that file which are stored whole. It is long, so it is parsed
 * for the first file and for those whose bytes differ. */
#include "file/read/shards.h"

#include "file/ground/file.h"
#include "file/ground/json.h"

#include <stdlib.h>
#include <string.h>

const char *rs_shard_where(const rs_shards *s, const rs_shard *shard, char where[RS_SHARD_WHERE]) {
  char quoted[RS_QUOTE], file[RS_WHERE];
  rs_text_add(&(rs_text){.at = where, .size = RS_SHARD_WHERE}, "%s: tensor '%s'",
              rs_opening_where(s->opening, shard->file, file),
              rs_quote(quoted, sizeof quoted, s->tensors.at[shard->tensor].name));
  return where;
}

#ifdef RS_HAVE_JANSSON

/* Holders of one box are listed one by one: a bound for a world that a text can claim. */
#define WORLD_LIMIT ((int64_t)1 << 20)

/* "file 'x': reshard metadata" */
static const char *text_where(const rs_shards *s, int64_t f, char where[RS_SHARD_WHERE]) {
  char file[RS_WHERE];
  rs_text_add(&(rs_text){.at = where, .size = RS_SHARD_WHERE}, "%s: reshard metadata",
              rs_opening_where(s->opening, f, file));
  return where;
}

static reshard_status parse_text(const rs_shards *s, int64_t f, json_t **root) {
  char where[RS_SHARD_WHERE];
  const char *text = s->opening->headers[f].reshard;
  json_t *made = NULL;
  text_where(s, f, where);
  RS_TRY(rs_json_parse(where, text, (int64_t)strlen(text), s->opening->headers[f].file_bytes, &made));
  json_t *version = json_object_get(made, "version"), *intervals = json_object_get(made, "intervals");
  reshard_status status = RESHARD_SUCCESS;
  if (!json_is_object(made) || !json_is_integer(version))
    status = rs_error(RESHARD_ERROR_INVALID, "%s: no object with a \"version\"", where);
  else if (json_integer_value(version) != 1)
    status = rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: version %lld, this library reads 1", where,
                      (long long)json_integer_value(version));
  else if (intervals != NULL && !json_is_object(intervals))
    status = rs_error(RESHARD_ERROR_INVALID, "%s: \"intervals\" is no object", where);
  if (status != RESHARD_SUCCESS)
    json_decref(made);
  else
    *root = made;
  return status;
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* "files" against the files that are there, which are in order of their names. */
static reshard_status check_files(const rs_shards *s, const char *where, json_t *files) {
  int64_t n = (int64_t)json_array_size(files), there = s->opening->checkpoint->store.files.n;
  const char **names = NULL;
  char quoted[RS_QUOTE];
  if (!json_is_array(files))
    return rs_error(RESHARD_ERROR_INVALID, "%s: \"files\" is missing or no list", where);
  RS_TRY(rs_alloc(&names, n, sizeof *names));
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = 0; i < n && status == RESHARD_SUCCESS; i++) {
    names[i] = json_string_value(json_array_get(files, (size_t)i));
    if (names[i] == NULL)
      status = rs_error(RESHARD_ERROR_INVALID, "%s: \"files\"[%lld] is no string", where, (long long)i);
  }
  if (status == RESHARD_SUCCESS && n > 0)
    qsort(names, (size_t)n, sizeof *names, by_text);
  for (int64_t i = 0, f = 0; status == RESHARD_SUCCESS && (i < n || f < there); i++, f++) {
    int order = i == n ? 1 : f == there ? -1 : strcmp(names[i], rs_opening_name(s->opening, f));
    if (order < 0)
      status =
          rs_error(RESHARD_ERROR_INVALID, "%s: file '%s' is missing: %s names %lld files, %lld are there",
                   s->opening->where, rs_quote(quoted, sizeof quoted, names[i]), where, (long long)n, (long long)there);
    else if (order > 0)
      status = rs_error(RESHARD_ERROR_INVALID, "%s: file '%s' is none of the set: %s names %lld files, %lld are there",
                        s->opening->where, rs_quote(quoted, sizeof quoted, rs_opening_name(s->opening, f)), where,
                        (long long)n, (long long)there);
  }
  free(names);
  return status;
}

/* Tensors and layouts of a text are held beside the text. */
enum { NAME = 48 };
static reshard_status check_memory(const rs_shards *s, const char *where) {
  const rs_safetensors *header = &s->opening->headers[0];
  int64_t n = s->tensors.n, layouts = s->layouts.made.n * RS_LAYOUT_MEMORY;
  return rs_budget_check(where, header->file_bytes,
                         s->text_memory + layouts + n * NAME + s->tensors.cap * (int64_t)sizeof *s->tensors.at);
}

static reshard_status add_global(rs_shards *s, const rs_global_tensor *global) {
  int64_t number;
  RS_TRY(rs_vec_reserve(&s->tensors, s->tensors.n + 1));
  RS_TRY(rs_names_put(&s->names, global->name, strlen(global->name), &number));
  s->tensors.at[s->tensors.n++] = *global;
  return RESHARD_SUCCESS;
}

/* One entry of "shapes", with its layout. */
static reshard_status add_described_tensor(rs_shards *s, const char *where, const char *name, json_t *shape,
                                           json_t *layouts) {
  rs_global_tensor global = {.name = name, .layout = -1};
  char quoted[RS_QUOTE];
  int64_t bytes;
  rs_quote(quoted, sizeof quoted, name);
  if (!json_is_array(shape) || json_array_size(shape) > RESHARD_MAX_DIMS)
    return rs_error(RESHARD_ERROR_INVALID, "%s: the shape of tensor '%s' is no list of at most %d extents", where,
                    quoted, RESHARD_MAX_DIMS);
  global.ndim = (int)json_array_size(shape);
  for (int d = 0; d < global.ndim; d++) {
    json_t *extent = json_array_get(shape, (size_t)d);
    if (!json_is_integer(extent) || json_integer_value(extent) < 0)
      return rs_error(RESHARD_ERROR_INVALID, "%s: the shape of tensor '%s': extent %d is no integer of 0 or more",
                      where, quoted, d);
    global.shape[d] = json_integer_value(extent);
  }
  const char *text = json_string_value(json_object_get(layouts, name));
  if (text == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s' has no layout string", where, quoted);
  if (strncmp(text, "boxes", 5) == 0 && strchr(text, '@') != NULL) /* whatever that file is, it is not of this set */
    return rs_error(RESHARD_ERROR_INVALID, "%s: the layout of tensor '%s' is in another file", where, quoted);
  reshard_status status = rs_tensor_bytes(global.ndim, global.shape, 1, &bytes);
  RS_THEN(status, rs_layout_cache_text(&s->layouts, text, false, global.ndim, global.shape, s->world, &global.layout));
  if (status != RESHARD_SUCCESS && status != RESHARD_ERROR_OUT_OF_MEMORY)
    return rs_error(status, "%s: tensor '%s': %s", where, quoted, reshard_last_error());
  RS_TRY(status);
  RS_TRY(check_memory(s, where));
  return add_global(s, &global);
}

/* The first file's text: world, tensors. */
static reshard_status read_text(rs_shards *s) {
  char where[RS_SHARD_WHERE];
  const char *text = s->opening->headers[0].reshard;
  RS_TRY(parse_text(s, 0, &s->root));
  text_where(s, 0, where);
  s->text_memory = (int64_t)strlen(text) + rs_json_memory(text, (int64_t)strlen(text));
  json_t *world = json_object_get(s->root, "world"), *shapes = json_object_get(s->root, "shapes");
  json_t *layouts = json_object_get(s->root, "layout"), *shape;
  const char *name;
  if (!json_is_integer(world) || json_integer_value(world) < 1 || json_integer_value(world) > WORLD_LIMIT)
    return rs_error(RESHARD_ERROR_INVALID, "%s: \"world\" is no integer from 1 to %lld", where, (long long)WORLD_LIMIT);
  s->world = json_integer_value(world);
  RS_TRY(check_files(s, where, json_object_get(s->root, "files")));
  if (!json_is_object(shapes) || !json_is_object(layouts))
    return rs_error(RESHARD_ERROR_INVALID, "%s: \"%s\" is missing or no object", where,
                    json_is_object(shapes) ? "layout" : "shapes");
  if (json_object_size(shapes) != json_object_size(layouts))
    return rs_error(RESHARD_ERROR_INVALID, "%s: %zu shapes and %zu layouts", where, json_object_size(shapes),
                    json_object_size(layouts));
  json_object_foreach(shapes, name, shape) RS_TRY(add_described_tensor(s, where, name, shape, layouts));
  return RESHARD_SUCCESS;
}

/* Another file's text that is not the same byte for byte. */
static reshard_status compare_texts(const rs_shards *s, int64_t f, json_t *root) {
  static const char *const keys[] = {"world", "files", "shapes", "layout"};
  char first[RS_QUOTE], second[RS_QUOTE];
  for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
    if (!json_equal(json_object_get(s->root, keys[k]), json_object_get(root, keys[k])))
      return rs_error(RESHARD_ERROR_INVALID, "%s: files '%s' and '%s' differ in \"%s\" of their reshard metadata",
                      s->opening->where, rs_quote(first, sizeof first, rs_opening_name(s->opening, 0)),
                      rs_quote(second, sizeof second, rs_opening_name(s->opening, f)), keys[k]);
  return RESHARD_SUCCESS;
}

/* "intervals" of a tensor: [[[begin, end], ...] per dim]. What they must be is known once the layout is. */
static reshard_status read_runs(rs_shards *s, rs_shard *shard, json_t *dims) {
  char where[RS_SHARD_WHERE];
  int ndim = s->tensors.at[shard->tensor].ndim;
  if (!json_is_array(dims) || json_array_size(dims) != (size_t)ndim)
    return rs_error(RESHARD_ERROR_INVALID, "%s: its \"intervals\" are no list of %d lists",
                    rs_shard_where(s, shard, where), ndim);
  shard->runs = s->runs.n;
  for (int d = 0; d < ndim; d++) {
    json_t *runs = json_array_get(dims, (size_t)d);
    int64_t n = (int64_t)json_array_size(runs);
    RS_TRY(rs_vec_reserve(&s->runs, s->runs.n + 1 + 2 * n));
    s->runs.at[s->runs.n++] = n;
    for (int64_t i = 0; i < n; i++) {
      json_t *run = json_array_get(runs, (size_t)i), *begin = json_array_get(run, 0), *end = json_array_get(run, 1);
      if (json_array_size(run) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return rs_error(RESHARD_ERROR_INVALID, "%s: interval %lld of dim %d is no pair of integers",
                        rs_shard_where(s, shard, where), (long long)i, d);
      s->runs.at[s->runs.n++] = json_integer_value(begin);
      s->runs.at[s->runs.n++] = json_integer_value(end);
    }
  }
  s->tensors.at[shard->tensor].whole_arrays = true;
  return RESHARD_SUCCESS;
}

/* The tensor of a shard, which is new where nothing describes the set; what they have in common must agree. */
static reshard_status match_tensor(rs_shards *s, rs_shard *shard, const reshard_model_tensor *t,
                                   const rs_model_tensor *from) {
  uint8_t packed = from->packed;
  char where[RS_SHARD_WHERE], first[RS_WHERE], quoted[RS_QUOTE], file[RS_WHERE];
  shard->tensor = rs_names_find(&s->names, t->name, strlen(t->name));
  if (shard->tensor < 0 && s->root != NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s' is not in its reshard metadata",
                    rs_opening_where(s->opening, shard->file, file), rs_quote(quoted, sizeof quoted, t->name));
  if (shard->tensor < 0) {
    shard->tensor = s->tensors.n;
    RS_TRY(add_global(s, &(rs_global_tensor){.name = t->name, .ndim = t->ndim, .layout = -1}));
  }
  rs_global_tensor *global = &s->tensors.at[shard->tensor];
  if (global->count == 0) {
    global->dtype = t->dtype;
    global->packed = packed;
    global->solid = from->solid;
    if (from->solid)
      global->name = t->name;
    global->file = shard->file;
  }
  rs_opening_where(s->opening, global->file, first);
  if (global->dtype != t->dtype || global->packed != packed || global->solid != from->solid)
    return rs_error(RESHARD_ERROR_INVALID, "%s is %s, in %s it is %s", rs_shard_where(s, shard, where),
                    rs_type_text(t->dtype, packed), first, rs_type_text(global->dtype, global->packed));
  if (t->dtype == RESHARD_DTYPE_NONE)
    return rs_shards_append(s, shard, t->shape[0]);
  if (global->ndim != t->ndim)
    return rs_error(RESHARD_ERROR_INVALID, "%s has %d dims, %s %s it has %d", rs_shard_where(s, shard, where), t->ndim,
                    s->root != NULL ? "in the reshard metadata of" : "in", first, global->ndim);
  for (int d = 0; d < t->ndim; d++) {
    int64_t end = shard->box.offset[d] + shard->box.extent[d]; /* was checked */
    if (s->root != NULL && end > global->shape[d])
      return rs_error(RESHARD_ERROR_INVALID, "%s: saved offset %lld and extent %lld in dim %d, which has %lld",
                      rs_shard_where(s, shard, where), (long long)shard->box.offset[d], (long long)shard->box.extent[d],
                      d, (long long)global->shape[d]);
    global->shape[d] = rs_max(global->shape[d], end);
  }
  global->count++;
  return RESHARD_SUCCESS;
}

static reshard_status add_file_shards(rs_shards *s, int64_t f, json_t *intervals) {
  const rs_safetensors *header = &s->opening->headers[f];
  const int64_t *saved = header->saved.at;
  size_t whole = 0;
  s->file_first.at[f] = s->all.n;
  RS_TRY(rs_vec_reserve(&s->all, s->all.n + header->model->tensors.n));
  for (int64_t i = 0; i < header->model->tensors.n; i++) {
    reshard_model_tensor t = {0};
    rs_shard shard = {.file = f, .offset = header->offsets.at[i], .runs = -1};
    RS_TRY(reshard_model_get(header->model, i, &t));
    for (int d = 0; d < t.ndim; d++) {
      shard.box.offset[d] = *saved++;
      shard.box.extent[d] = t.shape[d];
      shard.empty |= t.shape[d] == 0;
    }
    RS_TRY(match_tensor(s, &shard, &t, &header->model->tensors.at[i]));
    json_t *runs = intervals != NULL ? json_object_get(intervals, t.name) : NULL;
    if (runs != NULL && t.dtype != RESHARD_DTYPE_NONE)
      RS_TRY(read_runs(s, &shard, runs));
    whole += runs != NULL;
    s->all.at[s->all.n++] = shard;
  }
  char where[RS_SHARD_WHERE];
  if (whole != json_object_size(intervals))
    return rs_error(RESHARD_ERROR_INVALID, "%s: \"intervals\" of tensors that are not in the file",
                    text_where(s, f, where));
  return RESHARD_SUCCESS;
}

static reshard_status add_described(rs_shards *s, int64_t f) {
  const rs_safetensors *headers = s->opening->headers;
  json_t *root = NULL;
  bool other = f > 0 && strcmp(headers[f].reshard, headers[0].reshard) != 0;
  if (!other)
    return add_file_shards(s, f, json_object_get(s->root, "intervals"));
  RS_TRY(parse_text(s, f, &root));
  reshard_status status = compare_texts(s, f, root);
  RS_THEN(status, add_file_shards(s, f, json_object_get(root, "intervals")));
  json_decref(root);
  return status;
}

reshard_status rs_shards_collect(rs_shards *s) {
  const rs_opening *o = s->opening;
  int64_t files = o->checkpoint->store.files.n, described[2] = {0, 0};
  char with[RS_QUOTE], without[RS_QUOTE];
  for (int64_t f = 0; f < files; f++)
    described[o->headers[f].reshard != NULL] = f + 1;
  if (described[0] > 0 && described[1] > 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: file '%s' has reshard metadata, file '%s' has none", o->where,
                    rs_quote(with, sizeof with, rs_opening_name(o, described[1] - 1)),
                    rs_quote(without, sizeof without, rs_opening_name(o, described[0] - 1)));
  s->world = files;
  if (described[1] > 0)
    RS_TRY(read_text(s));
  RS_TRY(rs_vec_reserve(&s->file_first, files + 1));
  for (int64_t f = 0; f < files; f++)
    RS_TRY(s->root != NULL ? add_described(s, f) : add_file_shards(s, f, NULL));
  s->file_first.at[files] = s->all.n;
  return RESHARD_SUCCESS;
}

#endif
