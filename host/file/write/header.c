/* Headers: the bytes before the data of a file.
 *
 * An .npy file has a line of Python that says dtype, order and shape. A .safetensors file has a JSON object of the
 * tensors, with "__metadata__" first. In shards that says where in the tensors the file's boxes begin, and what the
 * whole checkpoint is. The latter can be megabytes and is nearly the same in all files: it is made once. A file's own
 * part is made in one walk over its blocks, which gives them their offsets too. */
#include "file/write/header.h"

#include "file/ground/digest.h"

#include <stdlib.h>
#include <string.h>

#define SAFETENSORS_MOST 100000000 /* bytes of a header that the safetensors library reads */

static const struct {
  const char *name; /* safetensors */
  int class;
  const char *descr; /* numpy */
} dtypes[RESHARD_DTYPE_COUNT] = {
    [RESHARD_BOOL] = {"BOOL", 1, "|b1"},      [RESHARD_U8] = {"U8", 2, "|u1"},
    [RESHARD_I8] = {"I8", 3, "|i1"},          [RESHARD_F8_E5M2] = {"F8_E5M2", 4, NULL},
    [RESHARD_F8_E4M3] = {"F8_E4M3", 5, NULL}, [RESHARD_F8_E8M0] = {"F8_E8M0", 6, NULL},
    [RESHARD_I16] = {"I16", 7, "<i2"},        [RESHARD_U16] = {"U16", 8, "<u2"},
    [RESHARD_F16] = {"F16", 9, "<f2"},        [RESHARD_BF16] = {"BF16", 10, NULL},
    [RESHARD_I32] = {"I32", 11, "<i4"},       [RESHARD_U32] = {"U32", 12, "<u4"},
    [RESHARD_F32] = {"F32", 13, "<f4"},       [RESHARD_C64] = {"C64", 14, "<c8"},
    [RESHARD_F64] = {"F64", 15, "<f8"},       [RESHARD_I64] = {"I64", 16, "<i8"},
    [RESHARD_U64] = {"U64", 17, "<u8"},       [RESHARD_C128] = {NULL, 0, "<c16"},
};

int rs_header_class(reshard_dtype dtype) { return dtypes[dtype].class; }
const char *rs_header_descr(reshard_dtype dtype) { return dtypes[dtype].descr; }

void rs_header_texts_free(rs_header_texts *h) {
  free(h->common.at);
  free(h->whole.text.at);
  free(h->body.text.at);
  free(h->sharding.text.at);
  free(h->intervals.text.at);
  *h = (rs_header_texts){0};
}

int64_t rs_header_least(const rs_file_layout *files) {
  static const char digests[] = RS_DIGEST_BEFORE RS_DIGEST_BETWEEN RS_DIGEST_BEHIND;
  int64_t owner = 0;
  for (int64_t i = 0; files->owner != NULL && i < files->owner->all.n; i++) {
    const rs_text_pair *pair = &files->owner->all.at[i];
    owner += (int64_t)sizeof ",\"\":\"\"" + 6 * (int64_t)(strlen(pair->key) + strlen(pair->value));
  }
  return 64 + owner + (files->digests ? (int64_t)sizeof digests + RS_DIGEST_DIGITS : 0);
}

int64_t rs_header_most(const rs_file_layout *files, const rs_store *store, int64_t tensor) {
  static const char fixed[] = ",\"\":{\"dtype\":\"F8_E4M3FNUZ\",\"shape\":[],\"data_offsets\":[,]}";
  const rs_model_tensor *t = &store->model->tensors.at[tensor];
  int64_t numbers = t->ndim + 2, pieces = 0;
  if (files->digests)
    pieces = rs_digest_pieces(store->tensors.at[tensor].layout->elements * (int64_t)reshard_dtype_size(t->dtype));
  return (int64_t)sizeof fixed + 6 * (int64_t)strlen(rs_model_name(store->model, tensor)) + 20 * numbers +
         RS_DIGEST_DIGITS * pieces; /* \u001f at the worst */
}

static const char *owners_format(const rs_file_layout *files) {
  return files->owner != NULL ? rs_text_pairs_find(files->owner, "format") : NULL;
}

reshard_status rs_header_common(const rs_file_layout *files, const rs_store *store, rs_text *common) {
  int64_t n = store->model->tensors.n;
  rs_json j = {.text.grows = true, .ascii = true};
  char name[RS_FILE_LAYOUT_NAME];
  rs_json_open(&j, NULL, '{');
  rs_json_int(&j, "version", 1);
  rs_json_int(&j, "world", n > 0 ? store->tensors.at[0].layout->world : 1);
  if (owners_format(files) != NULL && strcmp(owners_format(files), "pt") != 0)
    rs_json_string(&j, "format", owners_format(files));
  rs_json_open(&j, "files", '[');
  for (int64_t f = 0; f < files->all.n; f++)
    rs_json_string(&j, NULL, rs_file_layout_name(files, f, name));
  rs_json_close(&j, ']');
  rs_json_open(&j, "shapes", '{');
  for (int64_t i = 0; i < n; i++) {
    reshard_layout layout = store->tensors.at[i].layout;
    rs_json_list(&j, rs_model_name(store->model, i), layout->ndim, layout->shape);
  }
  rs_json_close(&j, '}');
  rs_json_open(&j, "layout", '{');
  for (int64_t i = 0; i < n; i++) {
    rs_json_key(&j, rs_model_name(store->model, i));
    rs_text_string(&j.text, "\"");
    rs_layout_print(store->tensors.at[i].layout, &j.text);
    rs_text_string(&j.text, "\"");
  }
  rs_json_close(&j, '}');
  common->grows = true;
  common->status = j.text.status;
  if (common->status == RESHARD_SUCCESS)
    rs_json_escape(common, j.text.at, true);
  free(j.text.at);
  return common->status;
}

/* Index runs of an array that is stored whole though it is many boxes. first: of the first run, per dim. */
static reshard_status add_intervals(rs_json *j, const char *name, reshard_layout layout, const rs_stored_array *array,
                                    int64_t *first) {
  RS_VEC(reshard_interval) runs = {0};
  reshard_status status = RESHARD_SUCCESS;
  if (j->text.length == 0)
    rs_json_open(j, "intervals", '{');
  rs_json_open(j, name, '[');
  for (int d = 0; d < layout->ndim && status == RESHARD_SUCCESS; d++) {
    int64_t count;
    status = reshard_layout_array_intervals(layout, array->rank, array->index, d, 0, 0, NULL, &count);
    RS_THEN(status, rs_vec_reserve(&runs, count));
    RS_THEN(status, reshard_layout_array_intervals(layout, array->rank, array->index, d, 0, count, runs.at, &count));
    if (status != RESHARD_SUCCESS)
      break;
    first[d] = runs.at[0].begin;
    rs_json_open(j, NULL, '[');
    for (int64_t i = 0; i < count; i++)
      rs_json_list(j, NULL, 2, (const int64_t[]){runs.at[i].begin, runs.at[i].end});
    rs_json_close(j, ']');
  }
  rs_json_close(j, ']');
  free(runs.at);
  return status;
}

/* A block's box in its tensor; of an array stored whole, its first index and its shape. */
static reshard_status find_box(rs_header_texts *h, const rs_store *store, const rs_file_block *b, reshard_box *box) {
  reshard_layout layout = store->tensors.at[b->tensor].layout;
  if (b->array < 0) {
    for (int d = 0; d < layout->ndim; d++) {
      box->offset[d] = 0;
      box->extent[d] = layout->shape[d];
    }
    return RESHARD_SUCCESS;
  }
  const rs_stored_array *array = &store->arrays.at[b->array];
  if (b->box >= 0)
    return rs_array_box(layout, array->rank, array->index, b->box, box, NULL);
  RS_TRY(rs_array_boxes(layout, array->rank, array->index, NULL, box->extent));
  return add_intervals(&h->intervals, rs_model_name(store->model, b->tensor), layout, array, box->offset);
}

/* A string of both: JSON that is escaped already, or NULL, and JSON that is not. */
static void add_nested(rs_text *out, const rs_text *escaped, const rs_text *json) {
  rs_text_string(out, "\"");
  if (escaped != NULL)
    rs_text_bytes(out, escaped->at, escaped->length);
  if (json->status == RESHARD_SUCCESS)
    rs_json_escape(out, json->at, true);
  rs_text_string(out, "\"");
}

/* One block: its entry, and where it begins in its tensor. */
static void add_entry(rs_header_texts *h, const rs_store *store, int64_t tensor, const reshard_box *box, int64_t begin,
                      int64_t end) {
  const rs_model_tensor *t = &store->model->tensors.at[tensor];
  const char *name = rs_model_name(store->model, tensor);
  const rs_packed_type *type = &rs_packed_types[t->packed];
  reshard_box elements = *box;
  if (t->solid) {
    const char *shape = name + strlen(name) + 1;
    rs_json_open(&h->body, name, '{');
    rs_json_string(&h->body, "dtype", type->name);
    rs_json_key(&h->body, "shape");
    rs_text_string(&h->body.text, shape);
    rs_json_list(&h->body, "data_offsets", 2, (const int64_t[]){begin, end});
    rs_json_close(&h->body, '}');
    int64_t zero[RESHARD_MAX_DIMS] = {0}, ndim = 1;
    for (; (shape = strchr(shape, ',')) != NULL; shape++)
      ndim++;
    rs_json_open(&h->sharding, name, '{');
    rs_json_list(&h->sharding, "saved_offsets", ndim, zero);
    rs_json_close(&h->sharding, '}');
    return;
  }
  if (t->ndim > 0) {
    elements.offset[t->ndim - 1] = box->offset[t->ndim - 1] / type->bytes * type->elements;
    elements.extent[t->ndim - 1] = box->extent[t->ndim - 1] / type->bytes * type->elements;
  }
  rs_json_open(&h->body, name, '{');
  rs_json_string(&h->body, "dtype", t->packed > 0 ? type->name : dtypes[t->dtype].name);
  rs_json_list(&h->body, "shape", t->ndim, elements.extent);
  rs_json_list(&h->body, "data_offsets", 2, (const int64_t[]){begin, end});
  rs_json_close(&h->body, '}');
  rs_json_open(&h->sharding, name, '{');
  rs_json_list(&h->sharding, "saved_offsets", t->ndim, elements.offset);
  rs_json_close(&h->sharding, '}');
}

/* Room for digests, zeros until they are known. */
static void add_digests(rs_header_texts *h, int64_t pieces) {
  rs_text *text = &h->whole.text;
  rs_text_string(text, RS_DIGEST_BEFORE);
  h->header_at = (int64_t)text->length;
  rs_text_string(text, "0000000000000000" RS_DIGEST_BETWEEN);
  h->pieces_at = (int64_t)text->length;
  for (int64_t i = 0; i < pieces; i++)
    rs_text_string(text, "0000000000000000");
  rs_text_string(text, RS_DIGEST_BEHIND);
}

static void add_owner(rs_json *j, const rs_file_layout *files) {
  for (int64_t i = 0; files->owner != NULL && i < files->owner->all.n; i++)
    if (strcmp(files->owner->all.at[i].key, "format") != 0)
      rs_json_string(j, files->owner->all.at[i].key, files->owner->all.at[i].value);
}

/* pieces: of digests; -1: none are wanted. They are left out where the header would be too long with them. */
static void add_metadata(rs_header_texts *h, const rs_file_layout *files, int64_t pieces) {
  bool shards = files->format == RESHARD_FORMAT_SHARDS;
  const char *format = owners_format(files);
  static const char digests[] = RS_DIGEST_BEFORE RS_DIGEST_BETWEEN RS_DIGEST_BEHIND, ends[] = "}}";
  rs_json_open(&h->whole, NULL, '{');
  rs_json_open(&h->whole, "__metadata__", '{');
  if (shards) {
    rs_json_close(&h->sharding, '}');
    rs_json_key(&h->whole, "DCP_SHARDING_INFO");
    add_nested(&h->whole.text, NULL, &h->sharding.text);
    rs_json_string(&h->whole, "DCP_VERSION", "1.0");
  }
  rs_json_string(&h->whole, "format", shards || format == NULL ? "pt" : format);
  add_owner(&h->whole, files);
  if (shards) {
    rs_text_string(&h->intervals.text, h->intervals.text.length > 0 ? "}}" : "}");
    rs_json_key(&h->whole, "reshard");
    add_nested(&h->whole.text, &h->common, &h->intervals.text);
  }
  size_t length = h->whole.text.length - 8 + sizeof digests - 1 + h->body.text.length + sizeof ends - 1;
  if (pieces >= 0 && (int64_t)length + (pieces + 1) * RS_DIGEST_DIGITS <= SAFETENSORS_MOST)
    add_digests(h, pieces);
  rs_json_close(&h->whole, '}');
}

static void restart(rs_json *j, bool more) {
  j->text.length = 0;
  j->text.grows = true;
  j->more = more;
}

static reshard_status make_safetensors(rs_header_texts *h, const rs_file_layout *files, rs_store *store,
                                       const char *where, const rs_layout_file *file, int64_t *size) {
  int64_t end = 0, pieces = 0;
  h->header_at = h->pieces_at = 0;
  restart(&h->body, true);
  restart(&h->intervals, true);
  restart(&h->sharding, false);
  h->intervals.ascii = h->sharding.ascii = h->sharding.spaced = true;
  rs_json_open(&h->sharding, NULL, '{');
  for (int64_t i = file->first; i < file->first + file->count; i++) {
    const rs_file_block *b = &files->blocks.at[files->order[i]];
    const rs_model_tensor *t = &store->model->tensors.at[b->tensor];
    reshard_box box;
    RS_TRY(find_box(h, store, b, &box));
    int64_t begin = end, bytes = (int64_t)reshard_dtype_size(t->dtype);
    for (int d = 0; d < t->ndim; d++)
      bytes *= box.extent[d];
    end += bytes;
    pieces += rs_digest_pieces(bytes);
    store->blocks.at[files->order[i]].offset = begin;
    add_entry(h, store, b->tensor, &box, begin, end);
  }
  rs_text *text = &h->whole.text;
  rs_text_string(text, "12345678"); /* for the length */
  add_metadata(h, files, files->digests ? pieces : -1);
  rs_text_bytes(text, h->body.text.at, h->body.text.length);
  rs_text_string(text, "}");
  rs_text_bytes(text, "       ", -text->length & 7);
  RS_TRY(h->body.text.status);
  RS_TRY(h->sharding.text.status);
  RS_TRY(h->intervals.text.status);
  RS_TRY(text->status);
  int64_t length = (int64_t)text->length - 8;
  if (length > SAFETENSORS_MOST)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: a header would have %lld bytes, %d are the most in this format",
                    where, (long long)length, SAFETENSORS_MOST);
  for (int i = 0; i < 8; i++)
    text->at[i] = (char)(length >> 8 * i);
  for (int64_t i = file->first; i < file->first + file->count; i++)
    store->blocks.at[files->order[i]].offset += length + 8;
  *size = length + 8 + end;
  return RESHARD_SUCCESS;
}

/* Version 1 always: 8 extents fit by far. numpy leaves room for the first extent to grow to 21 digits. It pads so that
 * the data begins at a multiple of 64, by 64 where it already would. */
static reshard_status make_npy(rs_text *text, rs_store *store, int64_t *size) {
  const rs_model_tensor *t = &store->model->tensors.at[0];
  rs_text_bytes(text, "\223NUMPY\1\0??", 10);
  rs_text_add(text, "{'descr': '%s', 'fortran_order': False, 'shape': (", dtypes[t->dtype].descr);
  size_t before = text->length, digits;
  rs_text_numbers(text, t->ndim > 0, t->shape, "");
  digits = text->length - before;
  for (int d = 1; d < t->ndim; d++)
    rs_text_add(text, ", %lld", (long long)t->shape[d]);
  rs_text_add(text, "%s), }%*s", t->ndim == 1 ? "," : "", t->ndim > 0 ? 21 - (int)digits : 0, "");
  rs_text_add(text, "%*s\n", 64 - (int)((text->length + 1) % 64), "");
  RS_TRY(text->status);
  text->at[8] = (char)((text->length - 10) & 0xff);
  text->at[9] = (char)((text->length - 10) >> 8);
  int64_t bytes = (int64_t)reshard_dtype_size(t->dtype);
  for (int d = 0; d < t->ndim; d++)
    bytes *= t->shape[d];
  store->blocks.at[0].offset = (int64_t)text->length;
  *size = (int64_t)text->length + bytes;
  return RESHARD_SUCCESS;
}

reshard_status rs_header_make(rs_header_texts *h, const rs_file_layout *files, rs_store *store, const char *where,
                              int64_t file, int64_t *size) {
  restart(&h->whole, false);
  return files->format == RESHARD_FORMAT_NPY ? make_npy(&h->whole.text, store, size)
                                             : make_safetensors(h, files, store, where, &files->all.at[file], size);
}

reshard_status rs_header_digests(const rs_header_texts *h, const rs_file_layout *files, const rs_store *store,
                                 int64_t file, int64_t size, rs_digests **digests) {
  const rs_layout_file *f = &files->all.at[file];
  rs_digests *d;
  *digests = NULL;
  if (!files->digests || h->header_at == 0)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc_zero(&d, 1, sizeof *d));
  d->header = (int64_t)h->whole.text.length;
  d->header_at = h->header_at;
  d->pieces_at = h->pieces_at;
  reshard_status status = RESHARD_SUCCESS;
  for (int64_t i = f->first; i < f->first + f->count && status == RESHARD_SUCCESS; i++) {
    int64_t begin = store->blocks.at[files->order[i]].offset;
    int64_t end = i + 1 < f->first + f->count ? store->blocks.at[files->order[i + 1]].offset : size;
    if (begin < end)
      status = rs_digests_add(d, begin, end - begin);
  }
  RS_TRY_OR(status, rs_digests_free(d));
  *digests = d;
  return RESHARD_SUCCESS;
}

typedef struct entry {
  const char *name;
  int64_t file;
} entry;

static int by_name(const void *a, const void *b) { return strcmp(((const entry *)a)->name, ((const entry *)b)->name); }

reshard_status rs_header_index(rs_header_texts *h, const rs_file_layout *files, const rs_store *store) {
  int64_t n = files->blocks.n;
  char name[RS_FILE_LAYOUT_NAME];
  entry *entries;
  RS_TRY(rs_alloc(&entries, n, sizeof *entries));
  for (int64_t i = 0; i < n; i++)
    entries[i] = (entry){rs_model_name(store->model, files->blocks.at[i].tensor), files->blocks.at[i].number};
  if (n > 1)
    qsort(entries, (size_t)n, sizeof *entries, by_name);
  rs_json *j = &h->whole;
  restart(j, false);
  j->spaced = j->ascii = true;
  rs_json_open(j, NULL, '{');
  rs_json_line(j, 2);
  rs_json_open(j, "metadata", '{');
  rs_json_line(j, 4);
  rs_json_int(j, "total_size", store->model->bytes);
  rs_text_string(&j->text, "\n  ");
  rs_json_close(j, '}');
  rs_json_line(j, 2);
  rs_json_open(j, "weight_map", '{');
  for (int64_t i = 0; i < n; i++) {
    rs_json_line(j, 4);
    rs_json_string(j, entries[i].name, rs_file_layout_name(files, entries[i].file, name));
  }
  rs_text_string(&j->text, n > 0 ? "\n  }\n}\n" : "}\n}\n");
  free(entries);
  return j->text.status;
}
