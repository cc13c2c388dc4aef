/* Pieces and tasks: families are cut in ranges of steps of some hundred KiB, sorted by where they read first, so that
 * copies from the same source lines follow one another in time also where they are not of one family. Threads draw
 * tasks in this order; neighbours that are small are one task. */
#include "device/cpu/copy/program.h"

#include <stdlib.h>

enum { TASK_LEAST = 64 << 10, TASK_MOST = 512 << 10, TASKS_PER_THREAD = 8 };

static int by_source(const void *a, const void *b) {
  const rs_place *x = a, *y = b;
  if (x->src != y->src)
    return x->src < y->src ? -1 : 1;
  if (x->piece.family != y->piece.family)
    return x->piece.family < y->piece.family ? -1 : 1;
  return x->piece.first < y->piece.first ? -1 : x->piece.first > y->piece.first;
}

/* Where a family reads at a step. */
static const char *source_of(const rs_program *program, const rs_family *family, int64_t step) {
  const rs_op *op = &program->op.at[family->first];
  const rs_loop *loops = rs_op_loops(program, op);
  const char *src = op->src;
  int n = op->blocked ? op->nloops - 2 : op->nloops;
  for (int i = 0; i < n; i++) {
    src += step / loops[i].inner * loops[i].src;
    step %= loops[i].inner;
  }
  if (op->blocked) {
    rs_blocks blocks = rs_op_blocks(op, loops);
    src += rs_max(step % blocks.down * blocks.ni - blocks.skew_i, 0) * loops[n].src +
           rs_max(step / blocks.down * blocks.nj - blocks.skew_j, 0) * loops[n + 1].src;
  }
  return src;
}

/* Steps of a piece of about `size` bytes: whole inner loops where these are shorter. */
static int64_t steps_of(const rs_program *program, const rs_family *family, int64_t size) {
  const rs_op *op = &program->op.at[family->first];
  int64_t steps = rs_max(size / family->step_bytes, 1);
  int n = op->blocked ? op->nloops - 2 : op->nloops;
  for (int i = 0; i < n; i++) {
    int64_t inner = rs_op_loops(program, op)[i].inner;
    if (inner <= steps)
      return steps / inner * inner;
  }
  return steps;
}

static reshard_status cut(rs_program *program, int64_t size) {
  for (int64_t f = 0; f < program->family.n; f++) {
    const rs_family *family = &program->family.at[f];
    int64_t steps = steps_of(program, family, size), n = rs_ceil_div(family->steps, steps);
    RS_TRY(rs_vec_reserve(&program->place, program->place.n + n));
    for (int64_t at = 0; at < family->steps; at += steps) {
      uint32_t mine = (uint32_t)rs_min(steps, family->steps - at);
      program->place.at[program->place.n++] = (rs_place){source_of(program, family, at), {at, mine, (uint32_t)f}};
      program->count += family->mode == RS_MODE_SQUARES ? mine : family->nops;
    }
  }
  return RESHARD_SUCCESS;
}

static reshard_status make_tasks(rs_program *program, int64_t size) {
  int64_t n = program->place.n;
  RS_TRY(rs_vec_reserve(&program->piece, n));
  program->piece.n = n;
  for (int64_t i = 0, bytes = size; i < n; i++) {
    const rs_piece *piece = &program->place.at[i].piece;
    program->piece.at[i] = *piece;
    if (bytes >= size) {
      RS_TRY(rs_vec_reserve(&program->task, program->task.n + 2));
      program->task.at[program->task.n++] = i;
      bytes = 0;
    }
    bytes += piece->steps * program->family.at[piece->family].step_bytes;
  }
  if (program->task.n > 0)
    program->task.at[program->task.n] = n;
  return RESHARD_SUCCESS;
}

reshard_status rs_program_divide(rs_program *program, int threads) {
  int64_t size = program->bytes / ((int64_t)threads * TASKS_PER_THREAD);
  size = rs_max(rs_min(size, TASK_MOST), TASK_LEAST);
  RS_TRY(cut(program, size));
  if (program->place.n > 1)
    qsort(program->place.at, (size_t)program->place.n, sizeof *program->place.at, by_source);
  return make_tasks(program, size);
}

void rs_program_clear(rs_program *program) {
  program->op.n = program->loop.n = program->family.n = program->group.n = program->piece.n = program->task.n = 0;
  program->place.n = 0;
  program->bytes = program->count = 0;
}

void rs_program_free_room(rs_program *program) {
  free(program->room.at);
  free(program->place.at);
  program->room.at = NULL;
  program->place.at = NULL;
  program->room.cap = program->place.cap = program->place.n = 0;
}

void rs_program_free(rs_program *program) {
  if (program == NULL)
    return;
  rs_program_free_room(program);
  free(program->op.at);
  free(program->loop.at);
  free(program->family.at);
  free(program->group.at);
  free(program->piece.at);
  free(program->task.at);
  free(program);
}
