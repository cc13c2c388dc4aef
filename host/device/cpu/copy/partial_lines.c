/* Groups whose runs are not whole lines but follow one another in the destination: through partial lines.
 *
 * Each merged run has one partial line. It goes on from run to run, from block to block and, where the outer loops
 * continue in the destination too, from loop to loop. So parts of lines are stored only at the ends of a range. Long
 * runs are appended one by one. Short ones are interleaved: the plain kernels write a block of steps of each copy at a
 * time into the line's buffer, whose whole lines are then stored. Blocks are small, so that the loads of one overlap
 * with the stores of another. */
#include "device/cpu/copy/task.h"

#include <string.h>

/* Stores the bytes of a line and empties it. */
static void finish_line(const rs_kernels *kernels, rs_partial_line *line) {
  kernels->flush(line);
  if (line->fill > line->lo)
    memcpy(line->dst + line->lo, line->bytes + line->lo, (size_t)(line->fill - line->lo));
  line->lo = line->fill = 0;
}

/* Makes a line go on at dst. */
static void direct_line(const rs_kernels *kernels, rs_partial_line *line, char *dst) {
  if (line->dst != NULL && line->dst + line->fill == dst)
    return;
  if (line->dst != NULL)
    finish_line(kernels, line);
  line->lo = line->fill = (int64_t)((uintptr_t)dst % RS_LINE);
  line->dst = dst - line->lo;
}

/* Interleaves n steps, or rows of `across` steps, of each merged run in its buffer. */
static void interleave_block(const rs_kernels *kernels, const rs_copy_group *group, const rs_merged_run *merged,
                             rs_task_buffers *buffers, int64_t n, const rs_loop *rows, int64_t across,
                             const rs_program *program) {
  rs_cursor *cursor = buffers->cursors;
  for (uint32_t g = 0; g < group->nmerged; g++) {
    rs_partial_line *line = &buffers->lines[g];
    char *dst = line->bytes + line->fill;
    for (uint32_t k = 0; k < merged[g].ncopies; k++, cursor++) {
      rs_run_loops run_loops = {
          .run = cursor->run, .n1 = 1, .n0 = n, .src0 = cursor->src_step, .dst0 = merged[g].width};
      int64_t move = n * cursor->src_step;
      if (rows != NULL) {
        const rs_ordered_copy *copy = &program->copy.at[group->first + (cursor - buffers->cursors)];
        const rs_loop *row = &rs_copy_loops(program, copy)[copy->nloops - 2];
        run_loops.n0 = across;
        run_loops.n1 = n;
        run_loops.src1 = row->src;
        run_loops.dst1 = across * merged[g].width;
        move = n * row->src;
        if (n > across)
          run_loops =
              (rs_run_loops){run_loops.run, across, run_loops.src0, run_loops.dst0, n, run_loops.src1, run_loops.dst1};
      }
      kernels->runs[rs_run_class(run_loops.run)](dst, cursor->src, &run_loops);
      cursor->src += move;
      if (cursor->src_step == cursor->run) /* many such streams are more than hardware follows */
        for (int64_t at = 0; at < move; at += RS_LINE)
          __builtin_prefetch(cursor->src + at, 0, 2);
      dst += cursor->run;
    }
    line->fill += n * (rows != NULL ? across : 1) * merged[g].width;
    kernels->flush(line);
  }
}

/* Interleaves steps up to the end of a loop: of the innermost one, or of the one around it in whole rows. */
static int64_t interleave_steps(const rs_program *program, const rs_kernels *kernels, const rs_copy_group *group,
                                const rs_merged_run *merged, rs_task_buffers *buffers, int64_t at, int64_t n,
                                int64_t left) {
  const rs_ordered_copy *copy = &program->copy.at[group->first];
  const rs_loop *inner = &rs_copy_loops(program, copy)[copy->nloops - 1];
  if (group->rows && left == inner->n && n >= inner->n) {
    const rs_loop *row = inner - 1;
    int64_t rows = rs_min(n / inner->n, row->n - at / row->inner % row->n), most = group->block / inner->n;
    for (int64_t done = 0; done < rows; done += most)
      interleave_block(kernels, group, merged, buffers, rs_min(most, rows - done), row, inner->n, program);
    return rows * inner->n;
  }
  n = rs_min(n, left);
  for (int64_t done = 0; done < n; done += group->block)
    interleave_block(kernels, group, merged, buffers, rs_min(group->block, n - done), NULL, 1, program);
  return n;
}

void rs_run_partial_lines(const rs_program *program, const rs_kernels *kernels, const rs_copy_group *group, int64_t at,
                          int64_t n, rs_shift shift, rs_task_buffers *buffers) {
  const rs_merged_run *merged = program->merged.at + group->first_merged;
  int64_t room = sizeof buffers->buffer / group->nmerged / RS_LINE * RS_LINE;
  for (uint32_t g = 0; g < group->nmerged; g++)
    buffers->lines[g] = (rs_partial_line){.bytes = buffers->buffer + g * room};
  while (n > 0) {
    int64_t part = rs_copy_group_cursors(program, group, at, shift, buffers->cursors);
    for (uint32_t g = 0, k = 0; g < group->nmerged; g++) {
      direct_line(kernels, &buffers->lines[g], buffers->cursors[k].dst);
      for (uint32_t end = k + merged[g].ncopies; k < end; k++)
        buffers->cursors[k].line = &buffers->lines[g];
    }
    if (group->mode == RS_MODE_BUFFER) {
      part = interleave_steps(program, kernels, group, merged, buffers, at, n, part);
    } else {
      part = rs_min(part, n);
      kernels->stream_partial(buffers->cursors, (int)group->ncopies, part);
    }
    at += part;
    n -= part;
  }
  for (uint32_t g = 0; g < group->nmerged; g++)
    finish_line(kernels, &buffers->lines[g]);
}
