/* Meetings of GPUs of processes (kernels/meet.h), and memory of the host that their kernels poll. */
#include "device/cuda/cuda.h"
#include "device/cuda/ipc.h"
#include "device/cuda/memory.h"
#include "device/cuda/segments.h"
#include "device/plain.h"
#include "kernels/meet.h"

#include <stdlib.h>
#include <string.h>

/* A segment in pieces of one size, each of which has the words of a meeting, or no meeting's. */
typedef struct word_segment {
  char *memory;
  size_t bytes; /* that the pool counts */
  bool *taken;  /* [pieces] */
  int64_t pieces;
} word_segment;

struct rs_stream_meetings {
  uint32_t *closed;
  size_t piece;
  RS_VEC(word_segment) segments;
};

struct rs_stream_meeting {
  rs_meet meet;
  char *words;         /* of this GPU, in a segment: the state, and a word for each rank */
  int64_t room_at;     /* place of the room behind them; 0: there is none */
  size_t counted;      /* bytes of a segment of its own that the pool counts */
  bool *piece;         /* of the segment that it shares with other meetings; NULL: it has its own */
  rs_meet_peer *peers; /* of this GPU */
  void **theirs;       /* [npeers] words of the peers */
};

enum { ALIGNMENT = 256 };

static uint64_t *word_of(void *words, int64_t rank) { return (uint64_t *)((rs_meet_state *)words + 1) + rank; }

static void free_word_segment(rs_device *device, const word_segment *s) {
  rs_cuda_segment_destroy(device, s->memory);
  rs_device_uncount_meeting(device, s->bytes);
  free(s->taken);
}

static void meetings_end(rs_device *device, rs_stream_meetings *meetings) {
  if (meetings == NULL)
    return;
  for (int64_t i = 0; i < meetings->segments.n; i++)
    free_word_segment(device, &meetings->segments.at[i]);
  free(meetings->segments.at);
  rs_device_free(device, meetings->closed);
  free(meetings);
}

static void meeting_destroy(rs_device *device, rs_stream_meeting *m) {
  if (m == NULL)
    return;
  rs_device_free(device, m->peers);
  if (m->piece != NULL)
    *m->piece = false;
  else
    rs_cuda_segment_destroy(device, m->words);
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

static reshard_status load_kernel(rs_device *device) { RS_ON_DEVICE_RELAXED(device, rs_meet_load()); }

static reshard_status create_segment(rs_device *device, size_t *bytes, char **memory) {
  RS_TRY(rs_cuda_segment_round(device, bytes));
  RS_TRY(rs_device_count_meeting(device, *bytes));
  reshard_status status = rs_cuda_segment_create(device, *bytes, (void **)memory);
  if (status != RESHARD_SUCCESS)
    rs_device_uncount_meeting(device, *bytes);
  return status;
}

static reshard_status add_word_segment(rs_device *device, rs_stream_meetings *meetings) {
  word_segment made = {.bytes = meetings->piece};
  RS_TRY(rs_vec_reserve(&meetings->segments, meetings->segments.n + 1));
  RS_TRY(create_segment(device, &made.bytes, &made.memory));
  made.pieces = (int64_t)(made.bytes / meetings->piece);
  reshard_status status = rs_alloc_zero(&made.taken, made.pieces, sizeof *made.taken);
  if (status == RESHARD_SUCCESS)
    meetings->segments.at[meetings->segments.n++] = made;
  else
    free_word_segment(device, &made);
  return status;
}

/* The first piece of those that are free. */
static bool take_piece(rs_stream_meetings *meetings, rs_stream_meeting *m) {
  for (int64_t i = 0; i < meetings->segments.n; i++) {
    const word_segment *s = &meetings->segments.at[i];
    bool *piece = memchr(s->taken, false, (size_t)s->pieces);
    if (piece == NULL)
      continue;
    *piece = true;
    m->piece = piece;
    m->words = s->memory + (size_t)(piece - s->taken) * meetings->piece;
    return true;
  }
  return false;
}

/* With a room it has a segment of its own. */
static reshard_status alloc_words(rs_device *device, rs_stream_meetings *meetings, size_t bytes, int64_t room,
                                  rs_stream_meeting *m) {
  if (room > 0) {
    m->room_at = rs_ceil_div((int64_t)bytes, ALIGNMENT) * ALIGNMENT;
    bytes = (size_t)(m->room_at + room);
    RS_TRY(create_segment(device, &bytes, &m->words));
    m->counted = bytes;
    return RESHARD_SUCCESS;
  }
  if (!take_piece(meetings, m)) {
    RS_TRY(add_word_segment(device, meetings));
    (void)take_piece(meetings, m);
  }
  return RESHARD_SUCCESS;
}

static reshard_status make_meetings(rs_device *device, size_t bytes, rs_stream_meetings **meetings) {
  rs_stream_meetings *made;
  void *closed;
  if (*meetings != NULL)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  made->piece = (size_t)(rs_ceil_div((int64_t)bytes, ALIGNMENT) * ALIGNMENT);
  reshard_status status = rs_device_alloc(device, sizeof *made->closed, &closed);
  if (status == RESHARD_SUCCESS) {
    made->closed = closed;
    status = fill_memory(device, closed, NULL, sizeof *made->closed);
  }
  if (status == RESHARD_SUCCESS)
    *meetings = made;
  else
    meetings_end(device, made);
  return status;
}

static reshard_status meeting_create(rs_device *device, int64_t ranks, int64_t room, rs_stream_meetings **meetings,
                                     rs_stream_meeting **out, rs_shared_words *words) {
  rs_stream_meeting *m;
  size_t bytes = sizeof(rs_meet_state) + (size_t)ranks * sizeof(uint64_t);
  bool found;
  RS_TRY(make_meetings(device, bytes, meetings));
  RS_TRY(rs_alloc_zero(&m, 1, sizeof *m));
  reshard_status status = alloc_words(device, *meetings, bytes, room, m);
  RS_THEN(status, fill_memory(device, m->words, NULL, bytes));
  RS_THEN(status, rs_cuda_find_exported(device, m->words, m->words + bytes, &words->memory, &words->inside, &found));
  RS_THEN(status, load_kernel(device));
  if (room > 0) /* copies are launched while meetings wait */
    RS_THEN(status, rs_cuda_load_copies(device));
  m->meet.state = (rs_meet_state *)(void *)m->words;
  m->meet.closed = (*meetings)->closed;
  if (status == RESHARD_SUCCESS)
    *out = m;
  else
    meeting_destroy(device, m);
  return status;
}

static char *meeting_room(const rs_stream_meeting *m, int64_t peer) {
  return (peer < 0 ? m->words : (char *)m->theirs[peer]) + m->room_at;
}

static reshard_status meeting_connect(rs_device *device, rs_stream_meeting *m, const rs_stream_meeting_terms *terms) {
  rs_meet_peer *table = NULL;
  size_t bytes = (size_t)terms->npeers * sizeof *table;
  reshard_status status = rs_alloc(&table, terms->npeers, sizeof *table);
  RS_THEN(status, rs_alloc(&m->theirs, terms->npeers, sizeof *m->theirs));
  RS_THEN(status, rs_device_alloc(device, bytes, (void **)&m->peers));
  for (int64_t i = 0; status == RESHARD_SUCCESS && i < terms->npeers; i++) {
    int64_t rank = terms->peers[i];
    m->theirs[i] = terms->words[i];
    table[i] =
        (rs_meet_peer){.theirs = word_of(m->theirs[i], terms->rank), .ours = word_of(m->words, rank), .rank = rank};
  }
  RS_THEN(status, fill_memory(device, m->peers, table, bytes));
  m->meet.peers = m->peers;
  m->meet.n = (uint32_t)terms->npeers;
  m->meet.ended = terms->ended;
  m->meet.late = terms->late;
  m->meet.timeout_ns = terms->timeout_ms < INT64_MAX / 1000000 ? terms->timeout_ms * 1000000 : 0;
  free(table);
  return status;
}

static reshard_status launch_meeting(rs_device *device, const rs_meet *meet, void *stream) {
  RS_ON_DEVICE(device, rs_meet_launch(meet, stream));
}

/* Sets the bits of those of the first n peers that are met; false: none is. */
static bool choose_peers(rs_meet *meet, const bool *with, int64_t n) {
  bool any = false;
  memset(meet->bits, 0, sizeof meet->bits);
  for (int64_t i = 0; i < n; i++) {
    meet->bits[i / 32] |= (uint32_t)with[i] << i % 32;
    any |= with[i];
  }
  meet->n = (uint32_t)n;
  meet->some = 1;
  return any;
}

/* Where very many are there, some are met after others: all ranks meet those of low numbers first. */
static reshard_status meeting_run(rs_device *device, rs_stream_meeting *m, const bool *with, uint32_t subject,
                                  bool wait, void *stream) {
  rs_meet meet = m->meet;
  int64_t n = meet.n;
  meet.wait = wait;
  meet.subject = subject;
  if (with == NULL)
    return n == 0 ? RESHARD_SUCCESS : launch_meeting(device, &meet, stream);
  for (int64_t first = 0; first < n; first += RS_MEET_SOME) {
    meet.peers = m->peers + first;
    if (choose_peers(&meet, with + first, rs_min(n - first, RS_MEET_SOME)))
      RS_TRY(launch_meeting(device, &meet, stream));
  }
  return RESHARD_SUCCESS;
}

static void guard_program(rs_program *program, const rs_stream_meeting *m) {
  rs_cuda_program_close(program, m->meet.closed);
}

static reshard_status copy_guarded(rs_device *device, const rs_stream_meeting *m, int64_t n, const rs_span *spans,
                                   int64_t total_bytes, void *stream) {
  return rs_cuda_copy_unless(device, n, spans, total_bytes, m->meet.closed, stream);
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
    .create = meeting_create,
    .connect = meeting_connect,
    .destroy = meeting_destroy,
    .end = meetings_end,
    .room = meeting_room,
    .run = meeting_run,
    .guard = guard_program,
    .copy = copy_guarded,
};
