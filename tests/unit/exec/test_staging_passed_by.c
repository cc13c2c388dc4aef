/* Messages between threads that are packed to where they are wanted, or unpacked from where they are: the staging
 * between is left as it was, and so is no other byte. A thread packs all its messages to the staging of one. */
#include "support/fixtures/case.h"
#include "support/fixtures/layouts.h"
#include "support/fixtures/rank_threads.h"
#include "support/reshards/rank_buffers.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, LINE = 64, POISON = 0x5a, PATIENCE = 60000 };

typedef struct way {
  const char *src, *dst;
  int64_t shape[2];
  int64_t shift; /* bytes from a line to the destination's begin */
  bool packs;    /* to staging of a sender; that of a receiver is never used */
  bool uneven;   /* messages: one may have no room in staging of another */
  int64_t limit; /* of the workspace, or 0: the library's */
} way;

typedef struct rank_memory {
  unsigned char *src, *dst, *workspace; /* whole lines */
  int64_t src_bytes, dst_bytes, staged; /* staged: bytes of the workspace that the transfer says it uses */
  int64_t room;                         /* bytes of the workspace; what is not staged is a guard */
  int64_t rounds;
} rank_memory;

typedef struct scene {
  const way *way;
  reshard_entry entry;
  reshard_comm comms[RANKS];
  rank_memory memory[RANKS];
  rank_result results[RANKS];
} scene;

static unsigned char *poisoned_lines(int64_t bytes) {
  size_t room = ((size_t)bytes + 2 * LINE) / LINE * LINE;
  unsigned char *lines = aligned_alloc(LINE, room);
  memset(lines, POISON, room);
  return lines;
}

static int64_t bytes_of(reshard_layout layout, int64_t rank) {
  int64_t elements;
  assert_int_equal(reshard_layout_buffer_elements(layout, rank, 0, &elements), RESHARD_SUCCESS);
  return elements * (int64_t)sizeof(float);
}

static reshard_status execute_rank(scene *s, int64_t rank, reshard_plan plan) {
  rank_memory *m = &s->memory[rank];
  void *src = m->src, *dst = m->dst + s->way->shift;
  const reshard_arrays arrays = {RESHARD_ARRAYS_INIT, .src = &src, .dst = &dst};
  const reshard_transfer_options options = {.size = RESHARD_TRANSFER_OPTIONS_INIT,
                                            .path = RESHARD_PATH_PACKED,
                                            .workspace = m->workspace,
                                            .workspace_bytes = (size_t)m->room};
  reshard_transfer transfer;
  reshard_transfer_info info;
  reshard_status status = reshard_transfer_create(plan, s->comms[rank], &arrays, &options, &transfer);
  if (status != RESHARD_SUCCESS)
    return status;
  status = reshard_transfer_get_info(transfer, &info);
  m->staged = (int64_t)info.workspace_bytes;
  m->rounds = info.rounds;
  for (int turn = 0; turn < 2 && status == RESHARD_SUCCESS; turn++)
    status = reshard_execute(transfer, NULL);
  reshard_transfer_destroy(transfer);
  return status;
}

static void run_rank(void *user, int64_t rank) {
  scene *s = user;
  reshard_plan plan;
  const reshard_plan_options options = {RESHARD_PLAN_OPTIONS_INIT, .workspace_limit = s->way->limit};
  reshard_status status = reshard_plan_create(1, &s->entry, rank, &options, &plan);
  if (status == RESHARD_SUCCESS) {
    status = execute_rank(s, rank, plan);
    reshard_plan_destroy(plan);
  }
  rank_result_set(&s->results[rank], status);
}

static bool is_untouched(const unsigned char *at, int64_t n) {
  return n == 0 || (*at == POISON && memcmp(at, at + 1, (size_t)n - 1) == 0);
}

/* Tells if a rank's staging was packed to. Sends lie before receives, and both take as much where both are staged. */
static bool check_staging(const way *w, const rank_memory *m) {
  int64_t receives = strncmp(w->src, "cyclic", 6) == 0 ? m->staged / 2 : m->staged;
  assert_true(m->staged > 0 && m->staged < m->room);
  assert_true(is_untouched(m->workspace + receives, m->room - receives)); /* the guard, too */
  return !is_untouched(m->workspace, receives);
}

static void open_rank(scene *s, int64_t rank, const rank_buffers *from) {
  rank_memory *m = &s->memory[rank];
  m->src_bytes = bytes_of(s->entry.src, rank);
  m->dst_bytes = bytes_of(s->entry.dst, rank);
  m->room = m->src_bytes + m->dst_bytes;
  m->src = poisoned_lines(m->src_bytes);
  m->dst = poisoned_lines(m->dst_bytes + LINE);
  m->workspace = poisoned_lines(m->room);
  memcpy(m->src, from->buffer[rank], (size_t)m->src_bytes);
}

/* Copies the destination to its buffer; bytes around it are as they were. */
static void close_rank(scene *s, int64_t rank, const rank_buffers *to) {
  rank_memory *m = &s->memory[rank];
  const unsigned char *begin = m->dst + s->way->shift, *end = begin + m->dst_bytes;
  memcpy(to->buffer[rank], begin, (size_t)m->dst_bytes);
  assert_true(is_untouched(m->dst, begin - m->dst) && is_untouched(end, m->dst + m->dst_bytes + LINE - end));
  free(m->src);
  free(m->dst);
  free(m->workspace);
}

static void check_way_by(const way *w, int threads) {
  int64_t packed = 0; /* ranks */
  scene s = {.way = w};
  int64_t elements = w->shape[0] * w->shape[1];
  reshard_layout src = layout_from_text(w->src, 2, w->shape, RANKS), dst = layout_from_text(w->dst, 2, w->shape, RANKS);
  rank_buffers from, to;
  s.entry = (reshard_entry){RESHARD_ENTRY_INIT, .src = src, .dst = dst, .dtype = RESHARD_F32};
  rank_buffers_create(src, sizeof(float), &from);
  rank_buffers_create(dst, sizeof(float), &to);
  unsigned char *tensor = whole_tensor_create(elements, sizeof(float), 7),
                *result = whole_tensor_create(elements, sizeof(float), 8);
  rank_buffers_scatter(&from, tensor);
  for (int64_t r = 0; r < RANKS; r++)
    open_rank(&s, r, &from);
  rank_comms_open(RANKS, threads, PATIENCE, s.comms);
  rank_threads_run(RANKS, run_rank, &s);
  rank_results_assert(RANKS, s.results, RESHARD_SUCCESS, NULL, w->src);
  rank_comms_close(RANKS, s.comms);
  for (int64_t r = 0; r < RANKS; r++) {
    assert_true(s.memory[r].rounds > 1 || !w->uneven || r == 1);
    packed += check_staging(w, &s.memory[r]);
    close_rank(&s, r, &to);
  }
  assert_int_equal(packed > 0, w->packs);
  assert_true(packed <= 1 || threads > 1 || w->uneven); /* the first one's staging has room for equal messages */
  assert_int_equal(rank_buffers_gather(&to, result), 0);
  assert_memory_equal(result, tensor, (size_t)elements * sizeof(float));
  free(result);
  free(tensor);
  rank_buffers_free(&to);
  rank_buffers_free(&from);
  reshard_layout_release(dst);
  reshard_layout_release(src);
}

static void check_way(const way *w) {
#if !defined(__SANITIZE_THREAD__) /* which has the same accesses to see in both */
  check_way_by(w, 1);
#endif
  check_way_by(w, 2);
}

/* Messages lie in place at the receiver, whose memory they are packed to. */
CASE(test_packed_there) {
  check_way(&(way){"chunk(0)", "chunk(1)", {2048, 2048}, 0, false, false, 0});
  check_way(&(way){"chunk(0)", "chunk(1)", {16384, 256}, 0, false, false, 0});
}

/* Stores past the cache would not be of whole lines: packed in the cache, and sent. */
CASE(test_packed_in_staging) {
  check_way(&(way){"chunk(0)", "chunk(1)", {2048, 2048}, 16, true, false, 0});
  check_way(&(way){"chunk(0)", "chunk(1)", {32768, 48}, 0, true, false, 0});
}

CASE(test_unpacked_there) {
  check_way(&(way){"chunk(1)", "chunk(0)", {2048, 2048}, 0, false, false, 0});
  check_way(&(way){"cyclic(2x2;64x64)", "cyclic(2x2;96x96)", {1536, 1536}, 0, true, false, 0});
  check_way(&(way){"cyclic(2x2;64x60)", "cyclic(2x2;96x90)", {1536, 1440}, 8, true, false, 0});
}

/* The first message is rank 1's, which are the smallest: its staging has no room for another. Places in staging are not
 * of whole lines. */
CASE(uneven_messages_share_no_staging) {
  static const char rows[] = "boxes(0:[0,0]+[422,1111];1:[422,0]+[8,1111];2:[430,0]+[201,1111];3:[631,0]+[369,1111])";
#if defined(__SANITIZE_THREAD__) /* without a limit, and with the largest */
  const int64_t step = 256 << 10;
#else
  const int64_t step = 64 << 10;
#endif
  for (int64_t limit = 0; limit <= 256 << 10; limit += step) {
    check_way(&(way){rows, "chunk(1)", {1000, 1111}, 4, true, true, limit});
    check_way(&(way){"chunk(1)", rows, {1000, 1111}, 4, false, true, limit});
  }
}

RUN_CASES
