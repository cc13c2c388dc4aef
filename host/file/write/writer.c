/* A checkpoint that is written is a store like any other: its files are open, as long as they will be, with their
 * headers in them, before the first byte of a tensor is. Who has the data puts it in place, array by array, through the
 * store; then all is synced and renamed. */
#define _GNU_SOURCE /* sync_file_range */
#include "file/write/writer.h"

#include "base/text.h"
#include "device/cpu/cpu.h"
#include "device/cpu/threads.h"
#include "file/ground/digest.h"
#include "file/write/header.h"
#include "file/write/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INDEX_NAME "model.safetensors.index.json"
/* Less is reserved before a thread has started. */
#define RESERVED_ALONE ((int64_t)32 << 20)

struct reshard_writer_s {
  rs_store store;
  rs_output output;
  rs_writer_report report;
  char where[RS_WHERE];
  int64_t headers;          /* bytes of all so far */
  _Atomic int64_t unbacked; /* bytes of files that the file system could not reserve */
  unsigned char *put;       /* per array of the store: it was put */
  rs_scratch scratch;
};

void reshard_writer_abandon(reshard_writer w) {
  if (w == NULL)
    return;
  rs_store_free(&w->store);
  rs_output_free(&w->output);
  free(w->put);
  free(w->scratch.at);
  free(w);
}

/* Names, dtypes and layouts into the store. */
static reshard_status add_tensor(reshard_writer w, int64_t i, const reshard_writer_tensor *t, reshard_model packed,
                                 int64_t world) {
  char quoted[RS_QUOTE];
  reshard_file_format format = w->report.format;
  if (t->name == NULL || t->layout == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor %lld: name or layout is NULL", w->where, (long long)i);
  rs_quote(quoted, sizeof quoted, t->name);
  if (*t->name == '\0' || !rs_utf8_valid(t->name) ||
      (format != RESHARD_FORMAT_NPY && strcmp(t->name, "__metadata__") == 0))
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor %lld: '%s' is no name for a tensor", w->where, (long long)i,
                    quoted);
  if (reshard_dtype_size(t->dtype) == 0)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': dtype %d is unknown", w->where, quoted, (int)t->dtype);
  if (format == RESHARD_FORMAT_NPY && rs_header_descr(t->dtype) == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': numpy has no dtype %s", w->where, quoted,
                    reshard_dtype_string(t->dtype));
  if (format != RESHARD_FORMAT_NPY && rs_header_class(t->dtype) == 0)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: tensor '%s': safetensors files have no dtype %s", w->where, quoted,
                    reshard_dtype_string(t->dtype));
  if (t->layout->world != world)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': a layout of %lld ranks, the first tensor's has %lld",
                    w->where, quoted, (long long)t->layout->world, (long long)world);
  RS_TRY(rs_model_add(w->store.model, w->where, t->name,
                      packed != NULL ? rs_model_name_length(packed, i) : strlen(t->name), t->dtype, t->layout->ndim,
                      t->layout->shape));
  w->store.tensors.at[w->store.tensors.n++] = (rs_stored_tensor){.layout = reshard_layout_retain(t->layout)};
  return RESHARD_SUCCESS;
}

static reshard_status add_tensors(reshard_writer w, int64_t n, const reshard_writer_tensor *tensors,
                                  reshard_model packed) {
  if (w->report.format == RESHARD_FORMAT_NPY && n != 1)
    return rs_error(RESHARD_ERROR_INVALID, "%s: an .npy file has one tensor, not %lld", w->where, (long long)n);
  RS_TRY(rs_model_new(&w->store.model));
  RS_TRY(rs_vec_reserve(&w->store.tensors, n));
  for (int64_t i = 0; i < n; i++)
    RS_TRY(add_tensor(w, i, &tensors[i], packed, tensors[0].layout != NULL ? tensors[0].layout->world : 0));
  return rs_model_check_names(w->store.model, w->where);
}

static reshard_status reserve_error(reshard_writer w, int error, int64_t size) {
  struct rlimit limit;
  if (error == ENOSPC) {
    for (int64_t i = 0; i < w->store.files.n; i++) /* what this attempt has taken is free again once it is gone */
      if (ftruncate(w->store.files.at[i].fd, 0) != 0)
        break;
    return rs_error(RESHARD_ERROR_SYSTEM, "%s: no space: %lld bytes are needed, %lld are free", w->where,
                    (long long)(w->report.bytes + w->headers), (long long)rs_free_bytes(w->output.fd, false));
  }
  if (error != EFBIG)
    return rs_file_error(w->where, error);
  if (rs_over_file_limit(&limit, size))
    return rs_error(RESHARD_ERROR_SYSTEM,
                    "%s: a file would have %lld bytes, the limit of this process is %lld (RLIMIT_FSIZE)", w->where,
                    (long long)size, (long long)limit.rlim_cur);
  return rs_error(RESHARD_ERROR_SYSTEM, "%s: a file would have %lld bytes, its file system takes none so large",
                  w->where, (long long)size);
}

static reshard_status output_open_error(reshard_writer w, int error, int64_t files) {
  struct rlimit limit;
  if (error != EMFILE || getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return rs_file_error(w->where, error);
  return rs_error(RESHARD_ERROR_SYSTEM,
                  "%s: %lld files are to be open at a time, the limit of this process is %lld (RLIMIT_NOFILE)",
                  w->where, (long long)files, (long long)limit.rlim_cur);
}

/* A file of the store, of that size, that begins with this text. */
static reshard_status add_output_file(reshard_writer w, const char *name, const rs_text *text, int64_t size) {
  rs_file file = {.fd = -1, .size = size};
  int64_t length = (int64_t)(strlen(w->output.path) + strlen(name)) + 2;
  RS_TRY(rs_alloc(&file.path, length, 1));
  snprintf(file.path, (size_t)length, "%s%s%s", w->output.path, *name != '\0' ? "/" : "", name);
  int error = rs_output_open(&w->output, name, &file.fd);
  if (error != 0) {
    free(file.path);
    int64_t files = w->report.files + (w->report.format == RESHARD_FORMAT_WHOLE); /* and the index */
    return output_open_error(w, error, rs_max(files, w->store.files.n + 1));
  }
  w->store.files.at[w->store.files.n++] = file;
  w->headers += (int64_t)text->length;
  struct rlimit limit;
  error = rs_over_file_limit(&limit, size) ? EFBIG : 0;
  if (error == 0 && w->store.files.n == 1 && w->report.bytes > rs_free_bytes(w->output.fd, true))
    error = ENOSPC; /* found out before the disk is full for others */
  if (error == 0)
    error = rs_reserve(w->output.fd, file.fd, (int64_t)text->length, size, &w->unbacked);
  if (error != 0)
    return reserve_error(w, error, size);
  return rs_file_write_at(&file, 0, text->at, (int64_t)text->length);
}

typedef struct reserving {
  reshard_writer writer;
  atomic_int error;
  _Atomic int64_t size; /* of the file that it is about */
} reserving;

static int reserve_whole(reshard_writer w, const rs_file *file) {
  return rs_reserve(w->output.fd, file->fd, file->size, file->size, &w->unbacked);
}

static void reserve_files(const void *job, rs_claim *claim) {
  reserving *r = *(reserving *const *)job;
  for (int64_t f; (f = rs_threads_next(claim)) >= 0;) {
    const rs_file *file = &r->writer->store.files.at[f];
    int error = atomic_load(&r->error) == 0 ? reserve_whole(r->writer, file) : 0, none = 0;
    if (error != 0 && atomic_compare_exchange_strong(&r->error, &none, error))
      atomic_store(&r->size, file->size);
  }
}

/* Space for all files. File systems that give out pages one by one take as long for it as for the data, so that cores
 * share it. */
static reshard_status reserve_all(reshard_writer w) {
  int threads = w->report.bytes < RESERVED_ALONE ? 1 : (int)rs_min(rs_device_cpu_cores(), w->store.files.n);
  reserving r = {.writer = w}, *shared = &r;
  rs_threads *pool = NULL;
  double before = rs_seconds();
  if (threads > 1)
    RS_TRY(rs_threads_create(threads, &pool));
  if (pool != NULL)
    rs_threads_run(pool, w->store.files.n, reserve_files, &shared);
  else
    rs_threads_run_alone(w->store.files.n, reserve_files, &shared);
  rs_threads_destroy(pool);
  w->report.reserve_seconds = rs_seconds() - before;
  return r.error == 0 ? RESHARD_SUCCESS : reserve_error(w, r.error, r.size);
}

static reshard_status add_files(reshard_writer w, const rs_file_layout *files) {
  rs_header_texts headers = {0};
  reshard_status status = RESHARD_SUCCESS;
  char name[RS_FILE_LAYOUT_NAME];
  bool index = files->format == RESHARD_FORMAT_WHOLE;
  RS_TRY(rs_vec_reserve(&w->store.files, files->all.n + index));
  if (files->format == RESHARD_FORMAT_SHARDS)
    status = rs_header_common(files, &w->store, &headers.common);
  for (int64_t f = 0; f < files->all.n && status == RESHARD_SUCCESS; f++) {
    int64_t size;
    status = rs_header_make(&headers, files, &w->store, w->where, f, &size);
    RS_THEN(status, add_output_file(w, rs_file_layout_name(files, f, name), &headers.whole.text, size));
    RS_THEN(status, rs_header_digests(&headers, files, &w->store, f, size, &w->store.files.at[f].digests));
    if (status == RESHARD_SUCCESS && w->store.files.at[f].digests != NULL)
      w->report.digests += w->store.files.at[f].digests->pieces.n;
  }
  if (index && status == RESHARD_SUCCESS) {
    status = rs_header_index(&headers, files, &w->store);
    RS_THEN(status, add_output_file(w, INDEX_NAME, &headers.whole.text, (int64_t)headers.whole.text.length));
  }
  rs_header_texts_free(&headers);
  return status == RESHARD_SUCCESS ? reserve_all(w) : status;
}

static int by_key(const void *a, const void *b) {
  return strcmp(((const rs_text_pair *)a)->key, ((const rs_text_pair *)b)->key);
}

/* The owner's metadata, by key. */
static reshard_status take_metadata(reshard_writer w, const reshard_writer_options *options, rs_text_pairs *owner) {
  if (options->nmetadata > 0 && w->report.format == RESHARD_FORMAT_NPY)
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld entries of metadata: an .npy file has no place for them", w->where,
                    (long long)options->nmetadata);
  for (int64_t i = 0; i < options->nmetadata; i++) {
    const reshard_text_pair *pair = &options->metadata[i];
    char quoted[RS_QUOTE];
    bool differs = false;
    if (pair->key == NULL || pair->value == NULL)
      return rs_error(RESHARD_ERROR_INVALID, "%s: metadata %lld: key or value is NULL", w->where, (long long)i);
    rs_quote(quoted, sizeof quoted, pair->key);
    if (!rs_utf8_valid(pair->key) || !rs_utf8_valid(pair->value))
      return rs_error(RESHARD_ERROR_INVALID, "%s: metadata '%s': key or value is no UTF-8", w->where, quoted);
    if (rs_text_pairs_own(pair->key))
      return rs_error(RESHARD_ERROR_INVALID, "%s: metadata '%s': the writer makes this one", w->where, quoted);
    int64_t before = owner->all.n;
    RS_TRY(rs_text_pairs_put(owner, pair->key, pair->value, &differs));
    if (owner->all.n == before)
      return rs_error(RESHARD_ERROR_INVALID, "%s: metadata '%s' is there twice", w->where, quoted);
  }
  if (owner->all.n > 1)
    qsort(owner->all.at, (size_t)owner->all.n, sizeof *owner->all.at, by_key);
  return rs_text_pairs_settle(owner);
}

static reshard_status fill_output(reshard_writer w, const char *path, int64_t n, const reshard_writer_tensor *tensors,
                                  reshard_model packed, const reshard_writer_options *options, int mode) {
  bool npy = w->report.format == RESHARD_FORMAT_NPY, one = npy || w->report.format == RESHARD_FORMAT_SAFETENSORS;
  const char *suffix = npy ? ".npy" : one ? ".safetensors" : "";
  rs_file_layout files = {.format = w->report.format, .digests = !npy && !options->no_digests && rs_digest_built()};
  rs_text_pairs owner = {0};
  RS_TRY(add_tensors(w, n, tensors, packed));
  for (int64_t i = 0; i < n && packed != NULL; i++) {
    char quoted[RS_QUOTE];
    uint8_t type = packed->tensors.at[i].packed;
    w->store.model->tensors.at[i].packed = type;
    w->store.model->tensors.at[i].solid = packed->tensors.at[i].solid;
    if (type > 0 && npy)
      return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': numpy has no dtype %s", w->where,
                      rs_quote(quoted, sizeof quoted, tensors[i].name), rs_packed_types[type].name);
  }
  reshard_status status;
  RS_TRY_GOTO(status, take_metadata(w, options, &owner), done);
  files.owner = &owner;
  RS_TRY_GOTO(status, rs_file_layout_make(&files, &w->store, w->where, options->dedup != 0, options->index_bytes),
              done);
  RS_TRY_GOTO(status, rs_alloc_zero(&w->put, w->store.arrays.n, 1), done);
  RS_TRY_GOTO(status, rs_output_create(&w->output, w->where, path, !one, suffix, options->force != 0, mode), done);
  w->report.files = files.all.n;
  w->report.bytes = files.bytes;
  w->report.whole_arrays = files.whole_arrays;
  status = add_files(w, &files);
done:
  rs_text_pairs_free(&owner);
  rs_file_layout_free(&files);
  return status;
}

/* The files that the other process has made: their places in the store, and this rank's opened. */
static reshard_status open_rank_files(reshard_writer w, const rs_file_layout *files, const char *temporary,
                                      int64_t rank) {
  rs_header_texts headers = {0};
  char name[RS_FILE_LAYOUT_NAME];
  RS_TRY(rs_vec_reserve(&w->store.files, files->all.n));
  reshard_status status = rs_header_common(files, &w->store, &headers.common);
  for (int64_t f = 0; f < files->all.n && status == RESHARD_SUCCESS; f++) {
    rs_file file = {.fd = -1};
    int64_t length = (int64_t)strlen(temporary) + RS_FILE_LAYOUT_NAME + 1;
    status = rs_header_make(&headers, files, &w->store, w->where, f, &file.size);
    RS_THEN(status, rs_alloc(&file.path, length, 1));
    if (status != RESHARD_SUCCESS)
      break;
    snprintf(file.path, (size_t)length, "%s/%s", temporary, rs_file_layout_name(files, f, name));
    if (files->all.at[f].rank == rank)
      file.fd = open(file.path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (files->all.at[f].rank == rank && file.fd < 0)
      status = output_open_error(w, errno, files->all.n);
    else if (files->all.at[f].rank == rank)
      status = rs_header_digests(&headers, files, &w->store, f, file.size, &file.digests);
    w->store.files.at[w->store.files.n++] = file;
  }
  rs_header_texts_free(&headers);
  return status;
}

reshard_status rs_writer_join(const char *temporary, int64_t rank, bool digests, int64_t n,
                              const reshard_writer_tensor *tensors, reshard_writer *writer) {
  reshard_writer w;
  RS_TRY(rs_alloc_zero(&w, 1, sizeof *w));
  w->output = (rs_output){.parent = -1, .fd = -1};
  w->report.format = RESHARD_FORMAT_SHARDS;
  rs_where(w->where, "output", temporary);
  rs_file_layout files = {.format = RESHARD_FORMAT_SHARDS, .digests = digests && rs_digest_built()};
  reshard_status status = add_tensors(w, n, tensors, NULL);
  RS_THEN(status, rs_file_layout_make(&files, &w->store, w->where, true, 0));
  RS_THEN(status, open_rank_files(w, &files, temporary, rank));
  rs_file_layout_free(&files);
  if (status != RESHARD_SUCCESS)
    reshard_writer_abandon(w);
  else
    *writer = w;
  return status;
}

reshard_status reshard_writer_create(const char *path, int64_t n, const reshard_writer_tensor *tensors,
                                     const reshard_writer_options *options, reshard_writer *writer) {
  return rs_writer_create(path, n, tensors, NULL, options, 0666, writer);
}

reshard_status rs_writer_create(const char *path, int64_t n, const reshard_writer_tensor *tensors, reshard_model packed,
                                const reshard_writer_options *options, int mode, reshard_writer *writer) {
  const reshard_writer_options none = {.size = RESHARD_WRITER_OPTIONS_INIT};
  if (path == NULL || writer == NULL || n < 0 || (n > 0 && tensors == NULL))
    return rs_error(RESHARD_ERROR_INVALID, "reshard_writer_create: NULL argument, or %lld tensors", (long long)n);
  if (options == NULL)
    options = &none;
  RS_TRY(RS_SIZED(reshard_writer_options, options));
  bool npy = rs_ends(path, ".npy"), safetensors = rs_ends(path, ".safetensors");
  char where[RS_WHERE];
  rs_where(where, "output", path);
  if (options->nmetadata < 0 || (options->nmetadata > 0 && options->metadata == NULL))
    return rs_error(RESHARD_ERROR_INVALID, "%s: %lld entries of metadata, or NULL", where,
                    (long long)options->nmetadata);
  if (options->index_bytes < 0 || (options->index_bytes > 0 && (npy || safetensors)))
    return rs_error(RESHARD_ERROR_INVALID, "%s: index_bytes %lld: %s", where, (long long)options->index_bytes,
                    options->index_bytes < 0 ? "is negative" : "an index is for a directory, this is one file");
  reshard_writer w;
  RS_TRY(rs_alloc_zero(&w, 1, sizeof *w));
  w->output = (rs_output){.parent = -1, .fd = -1};
  memcpy(w->where, where, sizeof where);
  w->report.format = npy                        ? RESHARD_FORMAT_NPY
                     : safetensors              ? RESHARD_FORMAT_SAFETENSORS
                     : options->index_bytes > 0 ? RESHARD_FORMAT_WHOLE
                                                : RESHARD_FORMAT_SHARDS;
  reshard_status status = fill_output(w, path, n, tensors, packed, options, mode);
  if (status != RESHARD_SUCCESS)
    reshard_writer_abandon(w);
  else
    *writer = w;
  return status;
}

/* An array beside others in its buffer has rows of the buffer's stride: each is written alone. */
static reshard_status put_array(reshard_writer w, int64_t tensor, const rs_stored_array *array,
                                const reshard_array_info *info, const char *memory) {
  reshard_layout layout = w->store.tensors.at[tensor].layout;
  int64_t lo[RESHARD_MAX_DIMS] = {0}, extent[RESHARD_MAX_DIMS], rows = 1;
  int64_t width = (int64_t)reshard_dtype_size(w->store.model->tensors.at[tensor].dtype);
  memcpy(extent, info->shape, sizeof extent);
  for (int d = 0; d < layout->runs_dim; d++) {
    rows *= extent[d];
    extent[d] = 1;
  }
  for (int64_t row = 0; row < rows; row++) {
    int64_t rest = row, offset = 0;
    for (int d = layout->runs_dim - 1; d >= 0; d--) {
      lo[d] = rest % info->shape[d];
      rest /= info->shape[d];
      offset += lo[d] * info->strides[d];
    }
    RS_TRY(rs_store_write(&w->store, tensor, array, lo, extent, memory + offset * width, &w->scratch));
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_writer_put(reshard_writer w, int64_t tensor, int64_t rank, const void *const *buffers) {
  if (w == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_writer_put: writer is NULL");
  if (tensor < 0 || tensor >= w->store.tensors.n)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor %lld of %lld", w->where, (long long)tensor,
                    (long long)w->store.tensors.n);
  const rs_stored_tensor *stored = &w->store.tensors.at[tensor];
  char quoted[RS_QUOTE];
  const rs_model_tensor *t = &w->store.model->tensors.at[tensor];
  rs_quote(quoted, sizeof quoted, w->store.model->names.at + t->name);
  if (rank < 0 || rank >= stored->layout->world)
    return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': rank %lld of %lld", w->where, quoted, (long long)rank,
                    (long long)stored->layout->world);
  for (int64_t h = stored->first; h < stored->first + stored->count; h++) {
    const rs_stored_array *array = &w->store.arrays.at[h];
    reshard_array_info info;
    if (array->rank != rank)
      continue;
    RS_TRY(reshard_layout_array(stored->layout, rank, array->index, &info));
    const char *memory = buffers != NULL ? buffers[info.buffer] : NULL;
    if (memory == NULL)
      return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': buffer %lld of rank %lld is NULL", w->where, quoted,
                      (long long)info.buffer, (long long)rank);
    memory += info.offset * (int64_t)reshard_dtype_size(t->dtype);
    RS_TRY(put_array(w, tensor, array, &info, memory));
    __atomic_store_n(&w->put[h], 1, __ATOMIC_RELAXED); /* threads may put the same array at once */
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_writer_attach(reshard_writer w, const char *name, const rs_text *text) {
  RS_TRY(text->status);
  if ((int64_t)text->length > RS_TEXT_LIMIT) /* nobody reads more */
    return rs_error(RESHARD_ERROR_INVALID, "%s: %s would have %zu bytes, %lld are the most", w->where, name,
                    text->length, (long long)RS_TEXT_LIMIT);
  RS_TRY(rs_vec_reserve(&w->store.files, w->store.files.n + 1));
  return add_output_file(w, name, text, (int64_t)text->length);
}

const rs_store *rs_writer_store(reshard_writer w) { return &w->store; }
const char *rs_writer_path(reshard_writer w) { return w->output.temporary; }
void rs_writer_get_report(reshard_writer w, rs_writer_report *report) {
  *report = w->report;
  report->linked = w->output.linked ? w->output.path : NULL;
}

/* Puts the digests into the headers of files of which data was put here; those of other ranks have theirs already. */
static reshard_status store_digests(reshard_writer w) {
  for (int64_t f = 0; f < w->store.files.n; f++) {
    const rs_file *file = &w->store.files.at[f];
    if (file->digests != NULL && (file->digests->begun || file->digests->boxes.n == 0))
      RS_TRY(rs_digests_store(file));
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_writer_sync(reshard_writer w, int (*progress)(void *, const char *, int64_t, int64_t), void *user) {
  int64_t done = 0, all = 0;
  RS_TRY(store_digests(w));
  for (int64_t f = 0; f < w->store.files.n; f++)
    all += w->store.files.at[f].size;
  for (int64_t f = 0; f < w->store.files.n; f++)
    if (w->store.files.at[f].fd >= 0) /* else another process's */
      RS_TRY(rs_sync_file(w->where, &w->store.files.at[f], &done, all, progress, user));
  int error = w->output.directory ? rs_sync_directory(w->output.fd) : 0;
  return error == 0 ? RESHARD_SUCCESS : rs_file_error(w->where, error);
}

reshard_status rs_writer_publish(reshard_writer w) {
  reshard_status status = rs_output_publish(&w->output, w->where);
  reshard_writer_abandon(w);
  return status;
}

static reshard_status check_put(reshard_writer w) {
  char quoted[RS_QUOTE];
  for (int64_t i = 0; i < w->store.tensors.n; i++) {
    const rs_stored_tensor *stored = &w->store.tensors.at[i];
    for (int64_t h = stored->first; h < stored->first + stored->count; h++)
      if (!w->put[h])
        return rs_error(RESHARD_ERROR_INVALID, "%s: tensor '%s': what rank %lld holds was never put", w->where,
                        rs_quote(quoted, sizeof quoted, rs_model_name(w->store.model, i)),
                        (long long)w->store.arrays.at[h].rank);
  }
  return RESHARD_SUCCESS;
}

reshard_status reshard_writer_commit(reshard_writer w) {
  if (w == NULL)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_writer_commit: writer is NULL");
  reshard_status status = check_put(w);
  RS_THEN(status, rs_writer_sync(w, NULL, NULL));
  if (status == RESHARD_SUCCESS)
    return rs_writer_publish(w);
  reshard_writer_abandon(w);
  return status;
}
