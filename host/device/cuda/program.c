/* Programs of the CUDA device: tables of tiles in its memory, and the launches that run them.
 *
 * compile uploads the tables on a stream of the device's own and waits for that. Any stream may run the program from
 * then on, also into a graph. Running n programs is one launch for each class of tiles that they have; its parameter
 * tells where their tables are.
 *
 * Copies that run once have their tables uploaded by the run itself (upload.c). recompile takes an upload buffer for
 * them, and waits for the oldest only when all buffers are in use. */

#include "device/cuda/memory.h"
#include "device/cuda/tiles.h"
#include "device/plain.h"
#include "device/stream.h"
#include "kernels/box_convert.h"

#include <stdlib.h>

enum { PLAIN_SPAN = 64 << 20 /* spans of which each is worth a call of its own */ };

typedef struct cuda_program {
  rs_box_part part[RS_BOX_CLASSES];
  int64_t count;
  const uint32_t *closed; /* rs_box_batch.closed, or closed_late */
  bool own;               /* nothing but this rank's memory is read */
  char *memory;           /* of the device: of a program that was compiled for good */
  /* Copies that run once. */
  bool once;
  bool pending; /* the tables are in buffer->host, and not uploaded yet */
  int64_t table_bytes;
  rs_upload_buffers buffers;
  rs_upload_buffer *buffer; /* of what was compiled last */
  rs_box_tables tables;
} cuda_program;

static inline cuda_program *program_of(rs_program *p) { return (cuda_program *)p; }

/* --- Compiling --- */

static reshard_status make_tables(rs_device *device, rs_box_tables *tables, const rs_copies *copies) {
  const rs_cuda *cuda = rs_cuda_of(device);
  const rs_box_policy policy = {cuda->multiprocessors, cuda->tile, cuda->bulk_from, cuda->leap};
  return rs_box_tables_make(tables, copies, &policy);
}

static void write_tables(cuda_program *p, const rs_box_tables *tables, const rs_copies *copies, char *host,
                         char *memory) {
  rs_box_tables_write(tables, host, memory, p->part);
  p->own = !copies->deal;
  p->count = 0;
  for (int c = 0; c < RS_BOX_CLASSES; c++)
    p->count += p->part[c].count;
}

/* Uploads from host memory to memory of the device, before it returns. */
static reshard_status upload_tables(rs_device *device, void *memory, const void *host, size_t bytes) {
  rs_cuda *cuda = rs_cuda_of(device);
  reshard_status status = RESHARD_SUCCESS;
  pthread_mutex_lock(&cuda->mutex);
  void *stream = cuda->upload;
  if (stream == NULL)
    status = device->streams->create(device, &stream);
  cuda->upload = stream;
  pthread_mutex_unlock(&cuda->mutex);
  RS_TRY(status);
  rs_cuda_before before;
  RS_TRY(rs_cuda_enter(device, &before));
  enum cudaStreamCaptureMode mode = rs_cuda_relax();
  RS_THEN(status, rs_cuda_memcpy(device, memory, host, bytes, stream));
  if (status == RESHARD_SUCCESS) {
    status = device->streams->synchronize(device, stream);
    if (status != RESHARD_SUCCESS)
      (void)device->streams->finish(device); /* both memories will be freed */
  }
  (void)rs_cuda_restore(mode, cudaSuccess);
  rs_cuda_leave(before);
  return status;
}

/* Brings the code of the program, and of spans, to the device, so that no launch has to. NULL: of all programs. */
static reshard_status load_code(rs_device *device, const cuda_program *p) {
  int (*const load[RS_BOX_CLASSES])(void) = {rs_box_rows_load, rs_box_transpose_load, rs_box_bulk_load,
                                             rs_box_convert_load, rs_box_vectors_load};
  rs_cuda_before before;
  RS_TRY(rs_cuda_enter(device, &before));
  enum cudaStreamCaptureMode mode = rs_cuda_relax();
  reshard_status status = RESHARD_SUCCESS;
  for (int c = 0; c < RS_BOX_CLASSES && status == RESHARD_SUCCESS; c++)
    if (c == RS_BOX_ROWS || p == NULL || p->part[c].count > 0)
      status = rs_cuda_check((cudaError_t)load[c](), "cudaFuncGetAttributes");
  (void)rs_cuda_restore(mode, cudaSuccess);
  rs_cuda_leave(before);
  return status;
}

reshard_status rs_cuda_load_copies(rs_device *device) { return load_code(device, NULL); }

static reshard_status compile_program(rs_device *device, const rs_copies *copies, cuda_program *p) {
  char *host = NULL;
  rs_box_tables tables = {0};
  reshard_status status;
  RS_TRY_GOTO(status, make_tables(device, &tables, copies), done);
  int64_t bytes = rs_box_tables_bytes(&tables);
  if (bytes > 0) {
    RS_TRY_GOTO(status, rs_alloc(&host, bytes, 1), done);
    RS_TRY_GOTO(status, rs_device_alloc(device, (size_t)bytes, (void **)&p->memory), done);
    write_tables(p, &tables, copies, host, p->memory);
    RS_TRY_GOTO(status, upload_tables(device, p->memory, host, (size_t)bytes), done);
  }
  status = load_code(device, p); /* also without copies: spans may follow */
done:
  free(host);
  rs_box_tables_free(&tables);
  return status;
}

reshard_status rs_cuda_compile(rs_device *device, const rs_copies *copies, int64_t total_bytes, rs_program **out) {
  (void)total_bytes;
  cuda_program *p;
  RS_TRY(rs_alloc_zero(&p, 1, sizeof *p));
  RS_TRY_OR(compile_program(device, copies, p), rs_cuda_release(device, (rs_program *)p));
  *out = (rs_program *)p;
  return RESHARD_SUCCESS;
}

/* --- Copies that run once --- */

reshard_status rs_cuda_recompile(rs_device *device, const rs_copies *copies, int64_t total_bytes, rs_program **out) {
  (void)total_bytes;
  if (*out == NULL)
    RS_TRY(rs_alloc_zero(out, 1, sizeof(cuda_program)));
  cuda_program *p = program_of(*out);
  p->once = true;
  p->pending = false;
  p->count = 0;
  for (int c = 0; c < RS_BOX_CLASSES; c++)
    p->part[c].count = 0;
  RS_TRY(make_tables(device, &p->tables, copies));
  p->table_bytes = rs_box_tables_bytes(&p->tables);
  if (p->table_bytes == 0)
    return RESHARD_SUCCESS;
  RS_TRY(rs_upload_buffers_take(device, &p->buffers, (size_t)p->table_bytes, true, &p->buffer));
  write_tables(p, &p->tables, copies, p->buffer->host, p->buffer->memory);
  p->pending = true;
  return RESHARD_SUCCESS;
}

void rs_cuda_release(rs_device *device, rs_program *released) {
  cuda_program *p = program_of(released);
  if (p == NULL)
    return;
  rs_upload_buffers_free(device, &p->buffers);
  rs_device_free(device, p->memory);
  rs_box_tables_free(&p->tables);
  free(p);
}

/* Uploads the tables of copies that run once, in the order of stream, before the launches. */
static reshard_status upload_once(rs_device *device, cuda_program *p, void *stream) {
  rs_upload_buffer *buffer = p->buffer;
  bool captured;
  RS_TRY(device->streams->capturing(device, stream, &captured));
  if (captured)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "copies that are compiled to run once cannot be captured");
  if (p->pending) {
    RS_TRY(rs_cuda_memcpy(device, buffer->memory, buffer->host, (size_t)p->table_bytes, stream));
    p->pending = false;
  } else if (buffer->used &&
             (buffer->stream != stream || stream == cudaStreamPerThread)) { /* once more, maybe elsewhere */
    RS_TRY(rs_stream_wait(device, stream, buffer->event, RS_EDGE("tables after upload")));
  }
  return RESHARD_SUCCESS;
}

/* --- Running --- */

static reshard_status launch_batch(const rs_cuda *cuda, int class, rs_box_batch *batch, void *stream) {
  if (batch->nparts == 0)
    return RESHARD_SUCCESS;
  rs_box_batch_close(batch);
  int (*const launch[RS_BOX_CLASSES])(const rs_box_batch *, uint32_t,
                                      void *) = {[RS_BOX_ROWS] = rs_box_rows_launch,
                                                 [RS_BOX_TRANSPOSES] = rs_box_transpose_launch,
                                                 [RS_BOX_BULK] = rs_box_bulk_launch,
                                                 [RS_BOX_CONVERTS] = rs_box_convert_launch,
                                                 [RS_BOX_VECTORS] = rs_box_vectors_launch};
  const uint32_t most = (uint32_t)cuda->base.max_blocks;
  int error = launch[class](batch, most, stream);
  batch->nparts = batch->tiles = 0;
  return rs_cuda_check((cudaError_t)error, "box copy launch");
}

static reshard_status launch_class(const rs_cuda *cuda, int class, int64_t n, rs_program *const *programs,
                                   void *stream) {
  rs_box_batch batch;
  batch.nparts = batch.tiles = 0;
  batch.loads = (uint32_t)cuda->loads;
  const cuda_program *only = n == 1 ? program_of(programs[0]) : NULL;
  batch.closed = only != NULL && !only->own ? only->closed : NULL;
  batch.closed_late = only != NULL && only->own ? only->closed : NULL;
  for (int64_t i = 0; i < n; i++) {
    const cuda_program *p = program_of(programs[i]);
    if (p == NULL || p->part[class].count == 0)
      continue;
    if (!rs_box_batch_add(&batch, &p->part[class])) {
      RS_TRY(launch_batch(cuda, class, &batch, stream));
      (void)rs_box_batch_add(&batch, &p->part[class]);
    }
  }
  return launch_batch(cuda, class, &batch, stream);
}

static reshard_status run_programs(rs_device *device, int64_t n, rs_program *const *programs, void *stream) {
  reshard_status status = RESHARD_SUCCESS;
  int64_t begun = 0;
  for (; begun < n; begun++) {
    cuda_program *p = program_of(programs[begun]);
    if (p != NULL && p->once && p->count > 0)
      status = upload_once(device, p, stream);
    if (status != RESHARD_SUCCESS)
      break;
  }
  for (int c = 0; c < RS_BOX_CLASSES && status == RESHARD_SUCCESS; c++)
    status = launch_class(rs_cuda_of(device), c, n, programs, stream);
  for (int64_t i = 0; i < begun; i++) {
    cuda_program *p = program_of(programs[i]);
    if (p == NULL || !p->once || p->count == 0)
      continue;
    reshard_status ended = rs_upload_buffer_used(device, p->buffer, stream); /* also after a failure */
    status = status == RESHARD_SUCCESS ? ended : status;
  }
  return status;
}

reshard_status rs_cuda_run(rs_device *device, int64_t n, rs_program *const *programs, void *stream) {
  rs_cuda_before before;
  RS_TRY(rs_cuda_enter(device, &before));
  reshard_status status = run_programs(device, n, programs, stream);
  rs_cuda_leave(before);
  return status;
}

/* --- Spans --- */

static reshard_status launch_spans(const rs_cuda *cuda, rs_box_spans *spans, void *stream) {
  reshard_status status = rs_cuda_check(
      (cudaError_t)rs_box_spans_launch(spans, (uint32_t)cuda->base.max_blocks, stream), "span copy launch");
  spans->n = 0;
  return status;
}

/* Copies one span, or large ones, by the driver, which has the fastest copy of each kind there is, between GPUs as
 * well. For many spans its calls would take longer than the copies: these go by a kernel. */
static reshard_status copy_spans(rs_device *device, int64_t n, const rs_span *spans, const uint32_t *closed,
                                 void *stream) {
  const rs_cuda *cuda = rs_cuda_of(device);
  rs_box_spans batch;
  batch.n = 0;
  batch.closed = closed;
  int64_t bytes = 0, some = 0;
  for (int64_t i = 0; i < n; i++) {
    bytes += spans[i].bytes;
    some += spans[i].bytes > 0;
  }
  int64_t tile = rs_min(rs_box_tile_bytes(bytes, cuda->multiprocessors), RS_BOX_PIECE);
  batch.tile = (uint32_t)(cuda->tile > 0 ? cuda->tile : tile);
  for (int64_t i = 0; i < n; i++) {
    const rs_span *s = &spans[i];
    if (s->bytes == 0)
      continue;
    if (closed == NULL && (some == 1 || s->bytes >= PLAIN_SPAN)) {
      RS_CUDA_TRY(cudaMemcpyAsync(s->dst, s->src, (size_t)s->bytes, cudaMemcpyDefault, stream));
    } else if (!rs_box_spans_add(&batch, s->src, s->dst, s->bytes)) {
      RS_TRY(launch_spans(cuda, &batch, stream));
      (void)rs_box_spans_add(&batch, s->src, s->dst, s->bytes);
    }
  }
  return batch.n > 0 ? launch_spans(cuda, &batch, stream) : RESHARD_SUCCESS;
}

reshard_status rs_cuda_copy_unless(rs_device *device, int64_t n, const rs_span *spans, const uint32_t *closed,
                                   void *stream) {
  rs_cuda_before before;
  RS_TRY(rs_cuda_enter(device, &before));
  reshard_status status = copy_spans(device, n, spans, closed, stream);
  rs_cuda_leave(before);
  return status;
}

reshard_status rs_cuda_copy(rs_device *device, int64_t n, const rs_span *spans, int64_t total_bytes, void *stream) {
  (void)total_bytes;
  return rs_cuda_copy_unless(device, n, spans, NULL, stream);
}

int64_t rs_cuda_count(const rs_program *p) { return p == NULL ? 0 : ((const cuda_program *)p)->count; }

void rs_cuda_program_close(rs_program *program, const uint32_t *closed) { program_of(program)->closed = closed; }
