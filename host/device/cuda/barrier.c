/* Barriers of GPUs of processes (kernels/barrier.h), and memory of the host that their kernels poll. */
#include "kernels/barrier.h"
#include "device/cuda/cuda.h"
#include "device/cuda/ipc.h"
#include "device/cuda/memory.h"
#include "device/cuda/segments.h"
#include "device/plain.h"

#include <stdlib.h>
#include <string.h>

/* A segment in pieces of one size, each of which has the flags of a barrier, or no barrier's. */
typedef struct flag_segment {
  char *memory;
  size_t bytes; /* that the pool counts */
  bool *taken;  /* [pieces] */
  int64_t pieces;
} flag_segment;

struct rs_stream_barriers {
  uint32_t *closed;
  size_t piece;
  RS_VEC(flag_segment) segments;
};

struct rs_stream_barrier {
  rs_barrier barrier;
  char *flags;            /* of this GPU, in a segment: the state, and a flag for each rank */
  int64_t room_at;        /* place of the room behind them; 0: there is none */
  size_t counted;         /* bytes of a segment of its own that the pool counts */
  bool *piece;            /* of the segment that it shares with other barriers; NULL: it has its own */
  rs_barrier_peer *peers; /* of this GPU */
  void **theirs;          /* [npeers] flags of the peers */
};

enum { ALIGNMENT = 256 };

static uint64_t *flag_of(void *flags, int64_t rank) { return (uint64_t *)((rs_barrier_state *)flags + 1) + rank; }

static void free_flag_segment(rs_device *device, const flag_segment *s) {
  rs_cuda_segment_destroy(device, s->memory);
  rs_device_uncount_meeting(device, s->bytes);
  free(s->taken);
}

static void barriers_end(rs_device *device, rs_stream_barriers *barriers) {
  if (barriers == NULL)
    return;
  for (int64_t i = 0; i < barriers->segments.n; i++)
    free_flag_segment(device, &barriers->segments.at[i]);
  free(barriers->segments.at);
  rs_device_free(device, barriers->closed);
  free(barriers);
}

static void barrier_destroy(rs_device *device, rs_stream_barrier *m) {
  if (m == NULL)
    return;
  rs_device_free(device, m->peers);
  if (m->piece != NULL)
    *m->piece = false;
  else
    rs_cuda_segment_destroy(device, m->flags);
  rs_device_uncount_meeting(device, m->counted);
  free(m->theirs);
  free(m);
}

/* Fills memory of the GPU, with zeros or from the host, before it returns. Both memories may be freed then, also after
 * an error. */
static reshard_status fill_memory(rs_device *device, void *at, const void *from, size_t bytes) {
  void *stream;
  rs_cuda_before before;
  RS_TRY(device->streams->create(device, &stream));
  reshard_status status = rs_cuda_enter(device, &before);
  if (status == RESHARD_SUCCESS) {
    enum cudaStreamCaptureMode mode = rs_cuda_relax();
    status =
        from == NULL ? rs_cuda_memset(device, at, 0, bytes, stream) : rs_cuda_memcpy(device, at, from, bytes, stream);
    RS_THEN(status, device->streams->synchronize(device, stream));
    if (status != RESHARD_SUCCESS)
      (void)device->streams->finish(device);
    (void)rs_cuda_restore(mode, cudaSuccess);
    rs_cuda_leave(before);
  }
  device->streams->destroy(device, stream);
  return status;
}

static reshard_status load_kernel(rs_device *device) { RS_ON_DEVICE_RELAXED(device, rs_barrier_load()); }

static reshard_status create_segment(rs_device *device, size_t *bytes, char **memory) {
  RS_TRY(rs_cuda_segment_round(device, bytes));
  RS_TRY(rs_device_count_meeting(device, *bytes));
  reshard_status status = rs_cuda_segment_create(device, *bytes, (void **)memory);
  if (status != RESHARD_SUCCESS)
    rs_device_uncount_meeting(device, *bytes);
  return status;
}

static reshard_status add_flag_segment(rs_device *device, rs_stream_barriers *barriers) {
  flag_segment made = {.bytes = barriers->piece};
  RS_TRY(rs_vec_reserve(&barriers->segments, barriers->segments.n + 1));
  RS_TRY(create_segment(device, &made.bytes, &made.memory));
  made.pieces = (int64_t)(made.bytes / barriers->piece);
  reshard_status status = rs_alloc_zero(&made.taken, made.pieces, sizeof *made.taken);
  if (status == RESHARD_SUCCESS)
    barriers->segments.at[barriers->segments.n++] = made;
  else
    free_flag_segment(device, &made);
  return status;
}

/* The first piece of those that are free. */
static bool take_piece(rs_stream_barriers *barriers, rs_stream_barrier *m) {
  for (int64_t i = 0; i < barriers->segments.n; i++) {
    const flag_segment *s = &barriers->segments.at[i];
    bool *piece = memchr(s->taken, false, (size_t)s->pieces);
    if (piece == NULL)
      continue;
    *piece = true;
    m->piece = piece;
    m->flags = s->memory + (size_t)(piece - s->taken) * barriers->piece;
    return true;
  }
  return false;
}

/* With a room it has a segment of its own. */
static reshard_status alloc_flags(rs_device *device, rs_stream_barriers *barriers, size_t bytes, int64_t room,
                                  rs_stream_barrier *m) {
  if (room > 0) {
    m->room_at = rs_ceil_div((int64_t)bytes, ALIGNMENT) * ALIGNMENT;
    bytes = (size_t)(m->room_at + room);
    RS_TRY(create_segment(device, &bytes, &m->flags));
    m->counted = bytes;
    return RESHARD_SUCCESS;
  }
  if (!take_piece(barriers, m)) {
    RS_TRY(add_flag_segment(device, barriers));
    (void)take_piece(barriers, m);
  }
  return RESHARD_SUCCESS;
}

static reshard_status make_barriers(rs_device *device, size_t bytes, rs_stream_barriers **barriers) {
  rs_stream_barriers *made;
  void *closed;
  if (*barriers != NULL)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  made->piece = (size_t)(rs_ceil_div((int64_t)bytes, ALIGNMENT) * ALIGNMENT);
  reshard_status status = rs_device_alloc(device, sizeof *made->closed, &closed);
  if (status == RESHARD_SUCCESS) {
    made->closed = closed;
    status = fill_memory(device, closed, NULL, sizeof *made->closed);
  }
  if (status == RESHARD_SUCCESS)
    *barriers = made;
  else
    barriers_end(device, made);
  return status;
}

static reshard_status barrier_create(rs_device *device, int64_t ranks, int64_t room, rs_stream_barriers **barriers,
                                     rs_stream_barrier **out, rs_shared_flags *flags) {
  rs_stream_barrier *m;
  size_t bytes = sizeof(rs_barrier_state) + (size_t)ranks * sizeof(uint64_t);
  bool found;
  RS_TRY(make_barriers(device, bytes, barriers));
  RS_TRY(rs_alloc_zero(&m, 1, sizeof *m));
  reshard_status status = alloc_flags(device, *barriers, bytes, room, m);
  RS_THEN(status, fill_memory(device, m->flags, NULL, bytes));
  RS_THEN(status, rs_cuda_find_exported(device, m->flags, m->flags + bytes, &flags->memory, &flags->inside, &found));
  RS_THEN(status, load_kernel(device));
  if (room > 0) /* copies are launched while barriers wait */
    RS_THEN(status, rs_cuda_load_copies(device));
  m->barrier.state = (rs_barrier_state *)(void *)m->flags;
  m->barrier.closed = (*barriers)->closed;
  if (status == RESHARD_SUCCESS)
    *out = m;
  else
    barrier_destroy(device, m);
  return status;
}

static char *barrier_room(const rs_stream_barrier *m, int64_t peer) {
  return (peer < 0 ? m->flags : (char *)m->theirs[peer]) + m->room_at;
}

static reshard_status barrier_connect(rs_device *device, rs_stream_barrier *m, const rs_stream_barrier_terms *terms) {
  rs_barrier_peer *table = NULL;
  size_t bytes = (size_t)terms->npeers * sizeof *table;
  reshard_status status = rs_alloc(&table, terms->npeers, sizeof *table);
  RS_THEN(status, rs_alloc(&m->theirs, terms->npeers, sizeof *m->theirs));
  RS_THEN(status, rs_device_alloc(device, bytes, (void **)&m->peers));
  for (int64_t i = 0; status == RESHARD_SUCCESS && i < terms->npeers; i++) {
    int64_t rank = terms->peers[i];
    m->theirs[i] = terms->flags[i];
    table[i] =
        (rs_barrier_peer){.theirs = flag_of(m->theirs[i], terms->rank), .ours = flag_of(m->flags, rank), .rank = rank};
  }
  RS_THEN(status, fill_memory(device, m->peers, table, bytes));
  m->barrier.peers = m->peers;
  m->barrier.n = (uint32_t)terms->npeers;
  m->barrier.ended = terms->ended;
  m->barrier.late = terms->late;
  m->barrier.timeout_ns = terms->timeout_ms < INT64_MAX / 1000000 ? terms->timeout_ms * 1000000 : 0;
  free(table);
  return status;
}

static reshard_status launch_barrier(rs_device *device, const rs_barrier *barrier, void *stream) {
  RS_ON_DEVICE(device, rs_barrier_launch(barrier, stream));
}

/* Sets the bits of those of the first n peers that are met; false: none is. */
static bool choose_peers(rs_barrier *barrier, const bool *with, int64_t n) {
  bool any = false;
  memset(barrier->bits, 0, sizeof barrier->bits);
  for (int64_t i = 0; i < n; i++) {
    barrier->bits[i / 32] |= (uint32_t)with[i] << i % 32;
    any |= with[i];
  }
  barrier->n = (uint32_t)n;
  barrier->some = 1;
  return any;
}

/* Where very many are there, some are met after others: all ranks meet those of low numbers first. */
static reshard_status barrier_run(rs_device *device, rs_stream_barrier *m, const bool *with, uint32_t key, bool wait,
                                  void *stream) {
  rs_barrier barrier = m->barrier;
  int64_t n = barrier.n;
  barrier.wait = wait;
  barrier.key = key;
  if (with == NULL)
    return n == 0 ? RESHARD_SUCCESS : launch_barrier(device, &barrier, stream);
  for (int64_t first = 0; first < n; first += RS_BARRIER_SOME) {
    barrier.peers = m->peers + first;
    if (choose_peers(&barrier, with + first, rs_min(n - first, RS_BARRIER_SOME)))
      RS_TRY(launch_barrier(device, &barrier, stream));
  }
  return RESHARD_SUCCESS;
}

static void guard_program(rs_program *program, const rs_stream_barrier *m) {
  rs_cuda_program_close(program, m->barrier.closed);
}

static reshard_status copy_guarded(rs_device *device, const rs_stream_barrier *m, int64_t n, const rs_span *spans,
                                   void *stream) {
  return rs_cuda_copy_unless(device, n, spans, m->barrier.closed, stream);
}

static cudaError_t pin_memory(void *memory, size_t bytes, void **at) {
  cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
  if (error != cudaSuccess)
    return error;
  error = cudaHostGetDevicePointer(at, memory, 0);
  if (error != cudaSuccess)
    rs_cuda_ignore(cudaHostUnregister(memory));
  return error;
}

static reshard_status cuda_pin(rs_device *device, void *memory, size_t bytes, void **at) {
  RS_ON_DEVICE_RELAXED(device, pin_memory(memory, bytes, at));
}

static cudaError_t unpin_memory(void *memory) {
  enum cudaStreamCaptureMode mode = rs_cuda_relax();
  return rs_cuda_restore(mode, cudaHostUnregister(memory));
}

static void cuda_unpin(rs_device *device, void *memory) { RS_ON_DEVICE_VOID(device, unpin_memory(memory)); }

static cudaError_t find_capture(void *stream, uint64_t *capture) {
  enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
#if CUDART_VERSION >= 13000
  cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, &id, NULL, NULL, NULL, NULL);
#else
  cudaError_t error = cudaStreamGetCaptureInfo_v2(stream, &status, &id, NULL, NULL, NULL);
#endif
  *capture = status == cudaStreamCaptureStatusActive ? id : 0;
  return error;
}

static reshard_status cuda_capture(rs_device *device, void *stream, uint64_t *capture) {
  RS_ON_DEVICE(device, find_capture(stream, capture));
}

const rs_device_processes rs_cuda_processes = {
    .find = rs_cuda_find_exported,
    .there = rs_cuda_segment_there,
    .freed = rs_cuda_segments_freed,
    .file = rs_cuda_segment_file,
    .open = rs_cuda_open_exported,
    .close = rs_cuda_close_exported,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .capture = cuda_capture,
    .create = barrier_create,
    .connect = barrier_connect,
    .destroy = barrier_destroy,
    .end = barriers_end,
    .room = barrier_room,
    .run = barrier_run,
    .guard = guard_program,
    .copy = copy_guarded,
};
