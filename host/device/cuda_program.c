/* Programs of the CUDA device: tables of tiles in its memory, and the launches that run them.
 *
 * compile puts the tables where they stay: it uploads them on a stream of the device's own and waits for that, so that
 * any stream may run the program from then on, also into a graph. To run n programs is a launch for each class of tiles
 * that they have, with where their tables are as a parameter.
 *
 * Copies that run once have their tables uploaded by the run itself, in its own stream, from pinned memory: the host
 * waits for nothing. What a run reads - pinned memory as long as the upload, device memory as long as the kernels -
 * must stay as it is until that stream is there, while the host goes on and compiles the next copies. So such a program
 * has several sets of tables ("lots"), each with an event that is recorded behind the last use. recompile takes a lot
 * whose event has happened, or one more; only when there are LOTS of them, all in use, it waits for the oldest. */
#include "device/cuda.h"

#include "device/cuda_tiles.h"
#include "device/stream.h"

#include <sched.h>
#include <stdlib.h>

enum {
  LOTS = 8,
  LOT_LEAST = 64 << 10,
  ENGINE = 9,            /* compute capability that has the bulk copy engine */
  PLAIN_SPAN = 64 << 20, /* spans of which each is worth a call of its own */
};

typedef struct lot {
  char *host, *memory; /* pinned, of the device */
  size_t bytes;        /* of each */
  rs_event *event;
  void *stream; /* of the last use */
  bool used;    /* the event was recorded behind it */
} lot;

typedef struct program {
  rs_box_part part[RS_BOX_CLASSES];
  int64_t count;
  char *memory; /* of the device: of a program that was compiled for good */
  /* Copies that run once. */
  bool once;
  bool pending; /* the tables are in lot[now].host, and not uploaded yet */
  int64_t table_bytes;
  int nlots, now;
  lot lot[LOTS];
  rs_box_tables tables;
} program;

static inline program *program_of(rs_program *p) { return (program *)p; }

/* --- Compiling --- */

static reshard_status make_tables(rs_device *device, rs_box_tables *tables, const rs_copies *copies) {
  const rs_cuda *cuda = rs_cuda_of(device);
  return rs_box_tables_make(tables, copies,
                            &(rs_box_policy){.sms = cuda->multiprocessors, .bulk = cuda->major >= ENGINE});
}

static void write_tables(rs_device *device, program *p, const rs_box_tables *tables, const rs_copies *copies,
                         int64_t total_bytes, char *host, char *memory) {
  rs_box_tables_write(tables, host, memory, p->part);
  bool streaming = !copies->staging && total_bytes >= rs_cuda_of(device)->l2_bytes / 2;
  p->count = 0;
  for (int c = 0; c < RS_BOX_CLASSES; c++) {
    p->part[c].streaming = streaming;
    p->count += p->part[c].count;
  }
}

/* Host memory to memory of the device, before it returns. */
static reshard_status upload(rs_device *device, void *memory, const void *host, size_t bytes) {
  rs_cuda *cuda = rs_cuda_of(device);
  reshard_status status = RESHARD_SUCCESS;
  pthread_mutex_lock(&cuda->mutex);
  void *stream = cuda->upload;
  if (stream == NULL)
    status = device->ops->stream_create(device, &stream);
  cuda->upload = stream;
  pthread_mutex_unlock(&cuda->mutex);
  enum cudaStreamCaptureMode mode = rs_cuda_relax();
  if (status == RESHARD_SUCCESS)
    status = rs_cuda_memcpy(device, memory, host, bytes, stream);
  if (status == RESHARD_SUCCESS) {
    status = device->ops->synchronize(device, stream);
    if (status != RESHARD_SUCCESS)
      (void)device->ops->finish(device); /* both memories will be freed */
  }
  (void)rs_cuda_restore(mode, cudaSuccess);
  return status;
}

/* Launches of the program, and of spans, which go with it, need not bring code to the device any more. */
static reshard_status load_code(rs_device *device, const program *p) {
  int (*const load[RS_BOX_CLASSES])(void) = {rs_box_rows_load, rs_box_squares_load, rs_box_bulk_load};
  int before;
  RS_TRY(rs_cuda_enter(device, &before));
  enum cudaStreamCaptureMode mode = rs_cuda_relax();
  reshard_status status = RESHARD_SUCCESS;
  for (int c = 0; c < RS_BOX_CLASSES && status == RESHARD_SUCCESS; c++)
    if (c == RS_BOX_ROWS || p->part[c].count > 0)
      status = rs_cuda_check((cudaError_t)load[c](), "cudaFuncGetAttributes");
  (void)rs_cuda_restore(mode, cudaSuccess);
  rs_cuda_leave(before);
  return status;
}

static reshard_status compile(rs_device *device, const rs_copies *copies, int64_t total_bytes, program *p) {
  char *host = NULL;
  rs_box_tables tables = {0};
  reshard_status status;
  RS_TRY_GOTO(status, make_tables(device, &tables, copies), done);
  int64_t bytes = rs_box_tables_bytes(&tables);
  if (bytes == 0)
    goto done;
  RS_TRY_GOTO(status, rs_alloc(&host, bytes, 1), done);
  RS_TRY_GOTO(status, rs_cuda_alloc(device, (size_t)bytes, (void **)&p->memory), done);
  write_tables(device, p, &tables, copies, total_bytes, host, p->memory);
  RS_TRY_GOTO(status, upload(device, p->memory, host, (size_t)bytes), done);
  status = load_code(device, p);
done:
  free(host);
  rs_box_tables_free(&tables);
  return status;
}

reshard_status rs_cuda_compile(rs_device *device, const rs_copies *copies, int64_t total_bytes, rs_program **out) {
  program *p;
  RS_TRY(rs_alloc_zero(&p, 1, sizeof *p));
  reshard_status status = compile(device, copies, total_bytes, p);
  if (status != RESHARD_SUCCESS) {
    rs_cuda_release(device, (rs_program *)p);
    return status;
  }
  *out = (rs_program *)p;
  return RESHARD_SUCCESS;
}

/* --- Copies that run once --- */

static reshard_status lot_free(rs_device *device, lot *l, bool *is) {
  if (l->used) {
    bool done = false;
    RS_TRY(device->ops->event_done(device, l->event, &done));
    l->used = !done;
  }
  *is = !l->used;
  return RESHARD_SUCCESS;
}

static reshard_status wait_for(rs_device *device, lot *l) {
  for (bool is = false;;) {
    RS_TRY(lot_free(device, l, &is));
    if (is)
      return RESHARD_SUCCESS;
    sched_yield();
  }
}

static void drop_lot(rs_device *device, lot *l) {
  rs_cuda_host_free(device, l->host);
  rs_cuda_free(device, l->memory);
  l->host = l->memory = NULL;
  l->bytes = 0;
}

/* A lot that nothing uses, of as many bytes: one that is large enough, else a new one, else one that grows. */
static reshard_status find_lot(rs_device *device, program *p, size_t bytes) {
  int found = -1;
  for (int i = 0; i < p->nlots; i++) {
    bool is;
    RS_TRY(lot_free(device, &p->lot[i], &is));
    if (is && (found < 0 || p->lot[i].bytes > p->lot[found].bytes))
      found = i;
  }
  if ((found < 0 || p->lot[found].bytes < bytes) && p->nlots < LOTS) {
    RS_TRY(device->ops->event_create(device, &p->lot[p->nlots].event));
    found = p->nlots++;
  }
  if (found < 0) {
    found = (p->now + 1) % LOTS; /* they are taken in turn when all are in use */
    RS_TRY(wait_for(device, &p->lot[found]));
  }
  p->now = found;
  lot *l = &p->lot[found];
  if (l->bytes >= bytes)
    return RESHARD_SUCCESS;
  drop_lot(device, l);
  size_t size = LOT_LEAST;
  while (size < bytes)
    size *= 2;
  RS_TRY(rs_cuda_host_alloc(device, size, (void **)&l->host));
  RS_TRY(rs_cuda_alloc(device, size, (void **)&l->memory));
  l->bytes = size;
  return RESHARD_SUCCESS;
}

reshard_status rs_cuda_recompile(rs_device *device, const rs_copies *copies, int64_t total_bytes, rs_program **out) {
  if (*out == NULL)
    RS_TRY(rs_alloc_zero(out, 1, sizeof(program)));
  program *p = program_of(*out);
  p->once = true;
  p->pending = false;
  p->count = 0;
  for (int c = 0; c < RS_BOX_CLASSES; c++)
    p->part[c].count = 0;
  RS_TRY(make_tables(device, &p->tables, copies));
  p->table_bytes = rs_box_tables_bytes(&p->tables);
  if (p->table_bytes == 0)
    return RESHARD_SUCCESS;
  RS_TRY(find_lot(device, p, (size_t)p->table_bytes));
  write_tables(device, p, &p->tables, copies, total_bytes, p->lot[p->now].host, p->lot[p->now].memory);
  p->pending = true;
  return RESHARD_SUCCESS;
}

void rs_cuda_release(rs_device *device, rs_program *released) {
  program *p = program_of(released);
  if (p == NULL)
    return;
  for (int i = 0; i < p->nlots; i++) {
    if (wait_for(device, &p->lot[i]) != RESHARD_SUCCESS)
      (void)device->ops->finish(device); /* the device is lost, or this is the last that it did */
    drop_lot(device, &p->lot[i]);
    device->ops->event_destroy(device, p->lot[i].event);
  }
  rs_cuda_free(device, p->memory);
  rs_box_tables_free(&p->tables);
  free(p);
}

/* Before the launches: the tables are there in the order of stream. */
static reshard_status begin_once(rs_device *device, program *p, void *stream) {
  lot *l = &p->lot[p->now];
  bool captured;
  RS_TRY(device->ops->capturing(device, stream, &captured));
  if (captured)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "copies that are compiled to run once cannot be captured");
  if (p->pending) {
    RS_TRY(rs_cuda_memcpy(device, l->memory, l->host, (size_t)p->table_bytes, stream));
    p->pending = false;
  } else if (l->used && l->stream != stream) { /* run once more, elsewhere */
    RS_TRY(rs_stream_wait(device, stream, l->event, "tables after upload"));
  }
  return RESHARD_SUCCESS;
}

/* Behind them, and after a failure: something may be reading the lot. */
static reshard_status end_once(rs_device *device, program *p, void *stream) {
  lot *l = &p->lot[p->now];
  l->stream = stream;
  reshard_status status = rs_stream_record(device, l->event, stream, "tables after run");
  l->used = status == RESHARD_SUCCESS;
  if (status != RESHARD_SUCCESS)
    (void)device->ops->synchronize(device, stream); /* no event tells, so this must */
  return status;
}

/* --- Running --- */

static reshard_status launch(const rs_cuda *cuda, int class, rs_box_batch *batch, void *stream) {
  if (batch->nparts == 0)
    return RESHARD_SUCCESS;
  rs_box_batch_close(batch);
  int error = class == RS_BOX_ROWS      ? rs_box_rows_launch(batch, stream)
              : class == RS_BOX_SQUARES ? rs_box_squares_launch(batch, stream)
                                        : rs_box_bulk_launch(batch, cuda->multiprocessors, stream);
  batch->nparts = batch->tiles = 0;
  return rs_cuda_check((cudaError_t)error, "box copy launch");
}

static reshard_status launch_class(const rs_cuda *cuda, int class, int64_t n, rs_program *const *programs,
                                   void *stream) {
  rs_box_batch batch;
  batch.nparts = batch.tiles = 0;
  for (int64_t i = 0; i < n; i++) {
    const program *p = program_of(programs[i]);
    if (p == NULL || p->part[class].count == 0)
      continue;
    if (!rs_box_batch_add(&batch, &p->part[class])) {
      RS_TRY(launch(cuda, class, &batch, stream));
      (void)rs_box_batch_add(&batch, &p->part[class]);
    }
  }
  return launch(cuda, class, &batch, stream);
}

static reshard_status run(rs_device *device, int64_t n, rs_program *const *programs, void *stream) {
  reshard_status status = RESHARD_SUCCESS;
  int64_t begun = 0;
  for (; begun < n; begun++) {
    program *p = program_of(programs[begun]);
    if (p != NULL && p->once && p->count > 0)
      status = begin_once(device, p, stream);
    if (status != RESHARD_SUCCESS)
      break;
  }
  for (int c = 0; c < RS_BOX_CLASSES && status == RESHARD_SUCCESS; c++)
    status = launch_class(rs_cuda_of(device), c, n, programs, stream);
  for (int64_t i = 0; i < begun; i++) {
    program *p = program_of(programs[i]);
    if (p == NULL || !p->once || p->count == 0)
      continue;
    reshard_status ended = end_once(device, p, stream);
    status = status == RESHARD_SUCCESS ? ended : status;
  }
  return status;
}

reshard_status rs_cuda_run(rs_device *device, int64_t n, rs_program *const *programs, void *stream) {
  int before;
  RS_TRY(rs_cuda_enter(device, &before));
  reshard_status status = run(device, n, programs, stream);
  rs_cuda_leave(before);
  return status;
}

/* --- Spans --- */

static reshard_status launch_spans(rs_box_spans *spans, void *stream) {
  reshard_status status = rs_cuda_check((cudaError_t)rs_box_spans_launch(spans, stream), "span copy launch");
  spans->n = 0;
  return status;
}

/* One span, or few large ones, are left to the driver, which has the fastest copy of each kind there is, between GPUs
 * as well; for many its calls would take longer than the copies. */
static reshard_status copy(rs_device *device, int64_t n, const rs_span *spans, int64_t total_bytes, void *stream) {
  const rs_cuda *cuda = rs_cuda_of(device);
  rs_box_spans batch;
  batch.n = 0;
  batch.streaming = total_bytes >= cuda->l2_bytes / 2;
  int64_t bytes = 0, some = 0;
  for (int64_t i = 0; i < n; i++) {
    bytes += spans[i].bytes;
    some += spans[i].bytes > 0;
    batch.streaming &= !spans[i].staging;
  }
  batch.tile = (uint32_t)rs_box_tile_bytes(bytes, cuda->multiprocessors);
  for (int64_t i = 0; i < n; i++) {
    const rs_span *s = &spans[i];
    if (s->bytes == 0)
      continue;
    if (some == 1 || s->bytes >= PLAIN_SPAN) {
      RS_CUDA_TRY(cudaMemcpyAsync(s->dst, s->src, (size_t)s->bytes, cudaMemcpyDefault, stream));
    } else if (!rs_box_spans_add(&batch, s->src, s->dst, s->bytes)) {
      RS_TRY(launch_spans(&batch, stream));
      (void)rs_box_spans_add(&batch, s->src, s->dst, s->bytes);
    }
  }
  return batch.n > 0 ? launch_spans(&batch, stream) : RESHARD_SUCCESS;
}

reshard_status rs_cuda_copy(rs_device *device, int64_t n, const rs_span *spans, int64_t total_bytes, void *stream) {
  int before;
  RS_TRY(rs_cuda_enter(device, &before));
  reshard_status status = copy(device, n, spans, total_bytes, stream);
  rs_cuda_leave(before);
  return status;
}

int64_t rs_cuda_count(const rs_program *p) { return p == NULL ? 0 : ((const program *)p)->count; }
