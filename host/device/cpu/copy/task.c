/* One task of a program: ranges of steps of groups, and the kernel calls that these need. */
#include "device/cpu/copy/task.h"

#include <string.h>

/* Copies steps [at, at + n) of one copy by ordinary stores, as rectangles of its two innermost loops. */
static void copy_steps(const rs_program *program, const rs_kernels *kernels, const rs_ordered_copy *copy, int64_t at,
                       int64_t n, rs_shift shift) {
  const rs_loop *loops = rs_copy_loops(program, copy);
  int last = copy->nloops - 1;
  if (last < 0) {
    memcpy(copy->dst + shift.dst, copy->src + shift.src, (size_t)copy->run);
    return;
  }
  const rs_loop *l0 = &loops[last];
  while (n > 0) {
    char *dst = copy->dst + shift.dst;
    const char *src = copy->src + shift.src;
    int64_t rest = at, step = 0, left = 1;
    for (int i = 0; i <= last; i++) {
      step = rest / loops[i].inner;
      rest -= step * loops[i].inner;
      dst += step * loops[i].dst;
      src += step * loops[i].src;
      if (i == last - 1)
        left = loops[i].n - step;
    }
    rs_run_loops run_loops = {.run = copy->run, .n1 = 1, .n0 = l0->n, .src0 = l0->src, .dst0 = l0->dst};
    if (step > 0 || n < l0->n) {
      run_loops.n0 = rs_min(n, l0->n - step);
    } else if (last > 0) {
      const rs_loop *l1 = &loops[last - 1];
      run_loops.n1 = rs_min(n / l0->n, left);
      run_loops.src1 = l1->src;
      run_loops.dst1 = l1->dst;
      if (run_loops.n1 > run_loops.n0 && run_loops.n0 < 8) /* the longer loop inside */
        run_loops = (rs_run_loops){copy->run, l0->n, l0->src, l0->dst, run_loops.n1, l1->src, l1->dst};
    }
    kernels->runs[rs_run_class(copy->run)](dst, src, &run_loops);
    at += run_loops.n0 * run_loops.n1;
    n -= run_loops.n0 * run_loops.n1;
  }
}

int64_t rs_copy_group_cursors(const rs_program *program, const rs_copy_group *group, int64_t at, rs_shift shift,
                              rs_cursor *cursors) {
  const rs_ordered_copy *copies = program->copy.at + group->first;
  int nloops = copies->nloops;
  int64_t left = 1;
  for (uint32_t k = 0; k < group->ncopies; k++) {
    const rs_ordered_copy *copy = &copies[k];
    const rs_loop *loops = rs_copy_loops(program, copy);
    rs_cursor cursor = {copy->dst + shift.dst, copy->src + shift.src, copy->run, 0, 0, NULL};
    int64_t rest = at;
    for (int i = 0; i < nloops; i++) {
      int64_t step = rest / loops[i].inner;
      rest -= step * loops[i].inner;
      cursor.dst += step * loops[i].dst;
      cursor.src += step * loops[i].src;
      cursor.dst_step = loops[i].dst;
      cursor.src_step = loops[i].src;
      left = loops[i].n - step; /* of the innermost loop in the end */
    }
    cursors[k] = cursor;
  }
  return left;
}

static void run_streaming(const rs_program *program, const rs_kernels *kernels, const rs_copy_group *group, int64_t at,
                          int64_t n, rs_shift shift, rs_cursor *cursors) {
  while (n > 0) {
    int64_t part = rs_min(rs_copy_group_cursors(program, group, at, shift, cursors), n);
    if (group->mode == RS_MODE_GATHER)
      kernels->stream_gather(cursors, (int)group->ncopies, part);
    else
      kernels->stream_runs(cursors, (int)group->ncopies, part);
    at += part;
    n -= part;
  }
}

static void run_plain(const rs_program *program, const rs_kernels *kernels, const rs_copy_group *group, int64_t at,
                      int64_t n, rs_shift shift) {
  while (n > 0) {
    int64_t part = rs_min(group->block, n);
    for (uint32_t k = 0; k < group->ncopies; k++)
      copy_steps(program, kernels, &program->copy.at[group->first + k], at, part, shift);
    at += part;
    n -= part;
  }
}

rs_transposed_block rs_transpose_block(const rs_program *program, const rs_ordered_copy *copy, int64_t at,
                                       rs_shift shift) {
  const rs_loop *loops = rs_copy_loops(program, copy), *i = &loops[copy->nloops - 2], *j = &loops[copy->nloops - 1];
  const rs_blocks blocks = rs_copy_blocks(copy, loops);
  char *dst = copy->dst + shift.dst;
  const char *src = copy->src + shift.src;
  for (const rs_loop *loop = loops; loop < i; loop++) {
    int64_t step = at / loop->inner;
    at -= step * loop->inner;
    dst += step * loop->dst;
    src += step * loop->src;
  }
  int64_t i1 = at % blocks.down * blocks.ni - blocks.skew_i, i0 = rs_max(i1, 0);
  int64_t j1 = at / blocks.down * blocks.nj - blocks.skew_j, j0 = rs_max(j1, 0);
  return (rs_transposed_block){dst + i0 * i->dst + j0 * j->dst, src + i0 * i->src + j0 * j->src,
                               rs_min(i1 + blocks.ni, i->n) - i0, rs_min(j1 + blocks.nj, j->n) - j0};
}

/* Runs blocks of a transpose, one below the other, so that the source is read along its rows. */
static void run_transpose(const rs_program *program, const rs_kernels *kernels, const rs_copy_group *group, int64_t at,
                          int64_t n, rs_shift shift) {
  const rs_ordered_copy *copy = &program->copy.at[group->first];
  const rs_loop *loops = rs_copy_loops(program, copy), *i = &loops[copy->nloops - 2], *j = &loops[copy->nloops - 1];
  for (int64_t end = at + n; at < end; at++) {
    rs_transposed_block b = rs_transpose_block(program, copy, at, shift);
    if (copy->width >= 0) {
      kernels->transpose[copy->width](b.dst, b.src, b.ni, b.nj, i->dst, j->src, group->streaming);
    } else {
      rs_run_loops run_loops = {copy->run, b.ni, i->src, i->dst, b.nj, j->src, j->dst};
      kernels->runs[rs_run_class(copy->run)](b.dst, b.src, &run_loops);
    }
  }
}

/* Goes to the next run of the copy; false behind the last one. */
static bool step_ahead(rs_ahead *a, const rs_ordered_copy *copy) {
  const rs_loop *loops = rs_copy_loops(a->program, copy);
  for (int i = copy->nloops - 1; i >= 0; i--) {
    if (++a->index[i] < loops[i].n) {
      a->src += loops[i].src;
      return true;
    }
    a->src -= (loops[i].n - 1) * loops[i].src;
    a->index[i] = 0;
  }
  return false;
}

void rs_program_ahead(rs_ahead *a, int64_t bytes) {
  while (bytes > 0 && a->program != NULL && a->copy < a->program->copy.n) {
    const rs_ordered_copy *copy = &a->program->copy.at[a->copy];
    if (copy->transpose || copy->scaled > 0 || copy->run < RS_LINE || copy->nloops > RS_AHEAD_LOOPS) {
      a->copy++;
      continue;
    }
    if (a->src == NULL)
      a->src = copy->src;
    int64_t end = rs_min(copy->run, a->at + bytes);
    bytes -= end - a->at;
    for (; a->at < end; a->at += RS_LINE)
      __builtin_prefetch(a->src + a->at, 0, 2);
    if (a->at < copy->run)
      return;
    a->at = 0;
    if (!step_ahead(a, copy)) {
      a->copy++;
      a->src = NULL;
    }
  }
}

/* Steps of a group that are done between two looks ahead: few, so that reads and writes of memory overlap. Groups that
 * put lines together would leave one incomplete each time. */
static int64_t steps_of_part(const rs_copy_group *group, int64_t steps, const rs_ahead *ahead) {
  enum { PART = 4 << 10 };
  bool divisible = group->mode == RS_MODE_PLAIN || group->mode == RS_MODE_STREAM;
  return divisible && ahead != NULL ? rs_max(PART / group->step_bytes, 1) : steps;
}

void rs_program_run_task(const rs_program *program, const rs_kernels *kernels, int64_t task, rs_shift shift,
                         rs_ahead *ahead) {
  rs_task_buffers buffers;
  for (int64_t p = program->task.at[task]; p < program->task.at[task + 1]; p++) {
    const rs_step_range *range = &program->range.at[p];
    const rs_copy_group *group = &program->group.at[range->group];
    int64_t part = steps_of_part(group, range->steps, ahead), end = range->first + range->steps;
    for (int64_t at = range->first, n; at < end; at += n) {
      n = rs_min(part, end - at);
      if (ahead != NULL && group->mode != RS_MODE_CONVERT)
        rs_program_ahead(ahead, n * group->step_bytes);
      switch (group->mode) {
      case RS_MODE_PLAIN: run_plain(program, kernels, group, at, n, shift); break;
      case RS_MODE_STREAM:
      case RS_MODE_GATHER: run_streaming(program, kernels, group, at, n, shift, buffers.cursors); break;
      case RS_MODE_PARTIAL_LINES:
      case RS_MODE_BUFFER: rs_run_partial_lines(program, kernels, group, at, n, shift, &buffers); break;
      case RS_MODE_TRANSPOSE: run_transpose(program, kernels, group, at, n, shift); break;
      case RS_MODE_CONVERT: rs_run_convert(program, kernels, group, at, n, shift, group->streaming, ahead); break;
      }
    }
  }
}

bool rs_program_streams_elsewhere(const rs_program *program, int64_t dst) {
  bool can = dst % RS_LINE == 0;
  for (int64_t i = 0; i < program->group.n && can; i++)
    can = program->group.at[i].mode == RS_MODE_CONVERT ||
          (program->group.at[i].mode == RS_MODE_PLAIN && program->group.at[i].lines);
  return can;
}

void rs_program_stream_elsewhere(const rs_program *program, const rs_kernels *kernels, int64_t dst) {
  rs_cursor cursors[RS_GROUP_COPIES];
  for (int64_t p = 0; p < program->range.n; p++) {
    const rs_step_range *range = &program->range.at[p];
    const rs_copy_group *group = &program->group.at[range->group];
    if (group->mode == RS_MODE_CONVERT)
      rs_run_convert(program, kernels, group, range->first, range->steps, (rs_shift){0, dst}, true, NULL);
    else
      run_streaming(program, kernels, group, range->first, range->steps, (rs_shift){0, dst}, cursors);
  }
}
