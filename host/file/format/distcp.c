/* .metadata is a pickle of torch.distributed.checkpoint.metadata.Metadata. state_dict_metadata maps a name to
 * TensorStorageMetadata(properties, size, chunks), each chunk a box of offsets and sizes, or to BytesStorageMetadata.
 * storage_data maps MetadataIndex(fqn, offset) to _StorageInfo(relative_path, offset, length), in which file and where
 * the torch.save of that chunk is.
 *
 * Others have classes of their own in their place: Megatron's MCoreMetadata has a field more. So the root is known by
 * its fields. Texts of the pickle are used where they are. Chunks find their places by the number of their name and by
 * their offset. */
#include "file/format/distcp.h"

#include "base/order.h"
#include "file/format/torch.h"
#include "file/ground/file.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of a name of a tensor, and of a file. Many places may share one text, so that a text is as short as these
 * before it is looked at. */
enum { NAME = 4096, FILE_NAME = 255 };
/* Bytes that a chunk takes, here and as a shard of a layout. */
#define CHUNK_MEMORY ((int64_t)500)

/* A place's key. */
typedef struct key {
  int64_t name, ndim, offset[RESHARD_MAX_DIMS];
} key;

typedef struct reader {
  rs_distcp *d;
  const rs_pickle *p;
  rs_names names; /* of tensors and bytes, in both dicts */
  rs_names keys;  /* of places */
  key *key;       /* their bytes */
  rs_pickle_text name;
  char quoted[RS_QUOTE]; /* the name, for errors */
} reader;

void rs_distcp_free(rs_distcp *d) {
  rs_pickle_free(&d->pickle);
  reshard_model_free(d->model);
  free(d->chunks.at);
  free(d->places.at);
  free(d->leaves.at);
  rs_names_free(&d->paths);
  free(d->text);
  *d = (rs_distcp){.pickle.root = -1};
}

static reshard_status malformed_value(const reader *r, int64_t value, const char *what) {
  char found[RS_QUOTE];
  return rs_error(RESHARD_ERROR_INVALID, "%s: byte %lld of the pickle: %s is expected, it is %s", r->d->where,
                  (long long)(value >= 0 ? rs_pickle_byte(r->p, value) : r->p->size), what,
                  rs_pickle_describe(found, r->p, value));
}

static reshard_status malformed_tensor(const reader *r, const char *what) {
  return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': %s", r->d->where, r->quoted, what);
}

static reshard_status check_length(const reader *r, int64_t value, const char *what, int64_t limit) {
  int64_t size = 0;
  if (rs_pickle_is(r->p, value, RS_PICKLE_TEXT))
    rs_pickle_text_of(r->p, value, &size);
  if (size <= limit)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_INVALID, "%s: byte %lld of the pickle: %s of %lld bytes, at most %lld are read",
                  r->d->where, (long long)rs_pickle_byte(r->p, value), what, (long long)size, (long long)limit);
}

static reshard_status put_text(const reader *r, rs_names *to, int64_t value, int64_t *number) {
  int64_t size = 0;
  const char *text = rs_pickle_text_of(r->p, value, &size);
  return rs_names_put(to, text, (size_t)size, number);
}

/* --- storage_data ------------------------------------------------------------------------------------------------ */

/* A file is beside .metadata: a path that leads elsewhere is none of this checkpoint. */
static reshard_status read_path(reader *r, int64_t value, int64_t *number) {
  bool is_text = false;
  char quoted[RS_QUOTE];
  r->name.n = 0;
  RS_TRY(check_length(r, value, "a name of a file", FILE_NAME));
  if (rs_pickle_is(r->p, value, RS_PICKLE_TEXT))
    RS_TRY(rs_pickle_add_text(r->p, value, &r->name, &is_text));
  if (!is_text)
    return malformed_value(r, value, "relative_path, a text,");
  if (r->name.n == 0 || strchr(r->name.at, '/') != NULL || strcmp(r->name.at, ".") == 0 ||
      strcmp(r->name.at, "..") == 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: it names the file '%s', which is not in its directory", r->d->where,
                    rs_quote(quoted, sizeof quoted, r->name.at));
  return put_text(r, &r->d->paths, value, number);
}

static reshard_status read_transforms(const reader *r, int64_t value) {
  char name[64] = "", quoted[RS_QUOTE];
  int64_t first = rs_pickle_item(r->p, value, 0);
  if (value < 0 || rs_pickle_is(r->p, value, RS_PICKLE_NONE) ||
      ((rs_pickle_is(r->p, value, RS_PICKLE_LIST) || rs_pickle_is(r->p, value, RS_PICKLE_TUPLE)) && first < 0))
    return RESHARD_SUCCESS;
  if (!rs_pickle_is(r->p, first, RS_PICKLE_TEXT))
    return malformed_value(r, value, "transform_descriptors, a list of texts,");
  int64_t size = 0;
  const char *text = rs_pickle_text_of(r->p, first, &size);
  memcpy(name, text, (size_t)rs_min(size, sizeof name - 1));
  return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: its data was transformed by '%s', as compression does: %s",
                  r->d->where, rs_quote(quoted, sizeof quoted, name), RS_DISTCP_PYTHON);
}

static reshard_status read_place(reader *r, int64_t index, int64_t info) {
  const rs_pickle *p = r->p;
  rs_distcp *d = r->d;
  int64_t fqn = rs_pickle_under(p, index, "fqn"), offset = rs_pickle_under(p, index, "offset");
  int64_t at = d->places.n, number;
  key *k = &r->key[at];
  int ndim = -1;
  rs_distcp_place place = {0};
  if (!rs_pickle_is_object(p, index, RS_ROLE_INDEX) || !rs_pickle_is(p, fqn, RS_PICKLE_TEXT))
    return malformed_value(r, index, "a MetadataIndex with a name");
  RS_TRY(check_length(r, fqn, "a name of a tensor", NAME));
  if (!rs_pickle_is_object(p, info, RS_ROLE_STORAGE_INFO))
    return malformed_value(r, info, "a _StorageInfo");
  if (offset >= 0 && !rs_pickle_is(p, offset, RS_PICKLE_NONE) &&
      !rs_pickle_extents(p, offset, RESHARD_MAX_DIMS, &ndim, k->offset))
    return malformed_value(r, offset, "an offset of at most 8 integers");
  if (!rs_pickle_count(p, rs_pickle_under(p, info, "offset"), &place.offset) ||
      !rs_pickle_count(p, rs_pickle_under(p, info, "length"), &place.length))
    return malformed_value(r, info, "a _StorageInfo with an offset and a length of 0 or more");
  RS_TRY(read_path(r, rs_pickle_under(p, info, "relative_path"), &place.path));
  RS_TRY(read_transforms(r, rs_pickle_under(p, info, "transform_descriptors")));
  RS_TRY(put_text(r, &r->names, fqn, &k->name));
  k->ndim = ndim;
  for (int i = ndim < 0 ? 0 : ndim; i < RESHARD_MAX_DIMS; i++)
    k->offset[i] = 0;
  RS_TRY(rs_names_put(&r->keys, k, sizeof *k, &number));
  if (number < at)
    return malformed_value(r, index, "a MetadataIndex that is not there twice");
  d->places.at[d->places.n++] = place;
  return RESHARD_SUCCESS;
}

static int by_range(const void *left, const void *right) {
  const rs_distcp_place *a = left, *b = right;
  int order = RS_ORDER(a->path, b->path);
  order = order != 0 ? order : RS_ORDER(a->offset, b->offset);
  return order != 0 ? order : RS_ORDER(a->length, b->length);
}

reshard_status rs_distcp_check_overlap(const rs_distcp *d) {
  rs_distcp_place *sorted = NULL;
  reshard_status status = RESHARD_SUCCESS;
  if (d->places.n < 2)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc_copy(&sorted, d->places.at, d->places.n, sizeof *sorted));
  qsort(sorted, (size_t)d->places.n, sizeof *sorted, by_range);
  for (int64_t i = 1; i < d->places.n && status == RESHARD_SUCCESS; i++) {
    const rs_distcp_place *a = &sorted[i - 1], *b = &sorted[i];
    if (a->path != b->path || b->offset - a->offset >= a->length)
      continue;
    char name[256] = "", quoted[RS_QUOTE];
    memcpy(name, d->paths.all.at[a->path].at, rs_min(d->paths.all.at[a->path].size, sizeof name - 1));
    status = rs_error(RESHARD_ERROR_INVALID,
                      "%s: two chunks overlap in the file '%s': %lld bytes from byte %lld on, %lld from byte %lld on",
                      d->where, rs_quote(quoted, sizeof quoted, name), (long long)a->length, (long long)a->offset,
                      (long long)b->length, (long long)b->offset);
  }
  free(sorted);
  return status;
}

static reshard_status read_places(reader *r, int64_t dict) {
  const rs_pickle *p = r->p;
  if (!rs_pickle_is(p, dict, RS_PICKLE_DICT))
    return malformed_value(r, dict, "storage_data, a dict,");
  int64_t n = rs_pickle_items(p, dict) / 2, index, info;
  RS_TRY(rs_vec_reserve(&r->d->places, n));
  RS_TRY(rs_alloc_zero(&r->key, n, sizeof *r->key));
  rs_pickle_cursor items = rs_pickle_begin(p, dict);
  while (rs_pickle_next(&items, &index) && rs_pickle_next(&items, &info))
    RS_TRY(read_place(r, index, info));
  return RESHARD_SUCCESS;
}

/* --- state_dict_metadata ----------------------------------------------------------------------------------------- */

/* A list may stand at many places, and each chunk becomes a shard of a layout: so chunks count to the memory. */
static reshard_status check_memory(const reader *r) {
  const rs_pickle *p = r->p;
  int64_t taken = p->size + p->words.n * (int64_t)sizeof *p->words.at + r->d->chunks.n * CHUNK_MEMORY +
                  r->d->places.n * (int64_t)(sizeof *r->d->places.at + sizeof *r->key) + r->d->model->names.cap;
  return rs_budget_check(r->d->where, p->size, taken);
}

static reshard_status read_chunk(reader *r, int64_t value, int64_t name) {
  const rs_pickle *p = r->p;
  const rs_model_tensor *t = &r->d->model->tensors.at[r->d->model->tensors.n - 1];
  rs_distcp_chunk chunk = {.tensor = r->d->model->tensors.n - 1, .place = -1};
  key k = {.name = name, .ndim = t->ndim};
  int offsets, sizes;
  if (!rs_pickle_is_object(p, value, RS_ROLE_CHUNK) ||
      !rs_pickle_extents(p, rs_pickle_under(p, value, "offsets"), RESHARD_MAX_DIMS, &offsets, chunk.box.offset) ||
      !rs_pickle_extents(p, rs_pickle_under(p, value, "sizes"), RESHARD_MAX_DIMS, &sizes, chunk.box.extent))
    return malformed_value(r, value, "a ChunkStorageMetadata with offsets and sizes of 0 or more");
  if (offsets != t->ndim || sizes != t->ndim)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': a chunk of %d offsets and %d sizes, it has %d dims",
                    r->d->where, r->quoted, offsets, sizes, t->ndim);
  for (int d = 0; d < t->ndim; d++) {
    if (chunk.box.offset[d] > t->shape[d] || chunk.box.extent[d] > t->shape[d] - chunk.box.offset[d])
      return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': a chunk at %lld of %lld in dim %d, which has %lld",
                      r->d->where, r->quoted, (long long)chunk.box.offset[d], (long long)chunk.box.extent[d], d,
                      (long long)t->shape[d]);
    k.offset[d] = chunk.box.offset[d];
    chunk.empty |= chunk.box.extent[d] == 0;
  }
  int64_t place = rs_names_find(&r->keys, &k, sizeof k);
  if (place < 0 && !chunk.empty) {
    char text[RS_BOX_TEXT];
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': storage_data does not say where its chunk %s is",
                    r->d->where, r->quoted, rs_box_text(text, t->ndim, chunk.box.offset, chunk.box.extent));
  }
  chunk.place = chunk.empty ? -1 : place;
  RS_TRY(check_memory(r));
  return rs_vec_push(&r->d->chunks, chunk);
}

/* One of an unknown dtype has its own shape here, and the bytes of its chunks in the checkpoint. */
static reshard_status add_tensor(reader *r, const rs_torch_tensor *t) {
  reshard_model model = r->d->model;
  bool solid = t->dtype == RESHARD_DTYPE_NONE;
  char *unknown = NULL;
  const char *name = r->name.at;
  if (solid)
    RS_TRY(rs_model_unknown(r->d->where, name, t->unknown, &unknown));
  name = solid ? unknown : name;
  reshard_status status =
      rs_model_add(model, r->d->where, name, rs_name_length(name, solid), t->dtype, t->ndim, t->shape);
  free(unknown);
  RS_TRY(status);
  model->tensors.at[model->tensors.n - 1].packed = t->packed;
  model->tensors.at[model->tensors.n - 1].solid = solid;
  return RESHARD_SUCCESS;
}

static reshard_status read_tensor(reader *r, int64_t value, int64_t name) {
  const rs_pickle *p = r->p;
  int64_t properties = rs_pickle_under(p, value, "properties"), chunks = rs_pickle_under(p, value, "chunks");
  rs_torch_tensor t = {0};
  if (!rs_pickle_extents(p, rs_pickle_under(p, value, "size"), RESHARD_MAX_DIMS, &t.ndim, t.shape))
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': its size is no list of at most %d extents of 0 or more",
                    r->d->where, r->quoted, RESHARD_MAX_DIMS);
  if (!rs_pickle_is_object(p, properties, RS_ROLE_PROPERTIES) ||
      !rs_torch_dtype(p, rs_pickle_item(p, rs_pickle_parts_of(p, properties).state, 0), &t))
    return malformed_tensor(r, "no TensorProperties with a dtype");
  if (!rs_pickle_is(p, chunks, RS_PICKLE_LIST))
    return malformed_tensor(r, "no list of chunks");
  if (rs_pickle_items(p, chunks) == 0)
    return malformed_tensor(r, "it has no chunk");
  RS_TRY(add_tensor(r, &t));
  rs_pickle_cursor items = rs_pickle_begin(p, chunks);
  for (int64_t chunk; rs_pickle_next(&items, &chunk);)
    RS_TRY(read_chunk(r, chunk, name));
  return RESHARD_SUCCESS;
}

static reshard_status read_item(reader *r, int64_t key, int64_t value, bool *seen) {
  bool is_text = false;
  int64_t name;
  r->name.n = 0;
  RS_TRY(check_length(r, key, "a name of a tensor", NAME));
  if (rs_pickle_is(r->p, key, RS_PICKLE_TEXT))
    RS_TRY(rs_pickle_add_text(r->p, key, &r->name, &is_text));
  if (!is_text || r->name.n == 0)
    return malformed_value(r, key, "a name of a tensor, a text of UTF-8,");
  rs_quote(r->quoted, sizeof r->quoted, r->name.at);
  RS_TRY(put_text(r, &r->names, key, &name));
  if (seen[name])
    return malformed_tensor(r, "its name is there twice");
  seen[name] = true;
  if (rs_pickle_is_object(r->p, value, RS_ROLE_BYTES_METADATA)) {
    const struct key k = {.name = name, .ndim = -1};
    return rs_vec_push(&r->d->leaves, (rs_distcp_leaves){key, rs_names_find(&r->keys, &k, sizeof k)});
  }
  if (!rs_pickle_is_object(r->p, value, RS_ROLE_TENSOR_METADATA))
    return malformed_value(r, value, "TensorStorageMetadata or BytesStorageMetadata");
  return read_tensor(r, value, name);
}

static reshard_status read_items(reader *r, int64_t dict) {
  const rs_pickle *p = r->p;
  bool *seen = NULL;
  if (!rs_pickle_is(p, dict, RS_PICKLE_DICT))
    return malformed_value(r, dict, "state_dict_metadata, a dict,");
  reshard_status status = RESHARD_SUCCESS;
  RS_TRY(rs_alloc_zero(&seen, r->names.all.n + rs_pickle_items(p, dict) / 2, sizeof *seen));
  rs_pickle_cursor items = rs_pickle_begin(p, dict);
  for (int64_t key, value; status == RESHARD_SUCCESS && rs_pickle_next(&items, &key) && rs_pickle_next(&items, &value);)
    status = read_item(r, key, value, seen);
  free(seen);
  return status;
}

reshard_status rs_distcp_read(rs_distcp *d, int64_t size) {
  reader r = {.d = d, .p = &d->pickle};
  RS_TRY(rs_pickle_read(d->where, d->text, size, size, 0, &d->pickle));
  int64_t root = rs_pickle_is(r.p, r.p->root, RS_PICKLE_OBJECT) ? r.p->root : -1;
  int64_t places = rs_pickle_under(r.p, root, "storage_data"),
          items = rs_pickle_under(r.p, root, "state_dict_metadata");
  if (places < 0 && items < 0)
    return malformed_value(&r, r.p->root, "Metadata of torch.distributed.checkpoint");
  reshard_status status = rs_model_new(&d->model);
  RS_THEN(status, read_places(&r, places));
  RS_THEN(status, read_items(&r, items));
  rs_names_free(&r.names);
  rs_names_free(&r.keys);
  free(r.key);
  free(r.name.at);
  return status;
}
