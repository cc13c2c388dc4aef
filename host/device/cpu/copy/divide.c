/* Ranges and tasks: groups are cut in ranges of steps of some hundred KiB, or MiB, sorted by where they read first. So
 * copies from the same source lines follow one another in time also where they are not of one group. Threads draw tasks
 * in this order; small neighbours are one task. */
#include "device/cpu/cast/blocks.h"
#include "device/cpu/copy/program.h"

#include <stdlib.h>

enum {
  TASK_LEAST = 64 << 10,
  TASK_MOST = 512 << 10,
  SCALED_MOST = 8 << 20, /* where blocks are made while others are read: the first and last ones of a range are alone */
  TASKS_PER_THREAD = 8,
};

static int by_source(const void *a, const void *b) {
  const rs_sorted_range *x = a, *y = b;
  if (x->src != y->src)
    return x->src < y->src ? -1 : 1;
  if (x->range.group != y->range.group)
    return x->range.group < y->range.group ? -1 : 1;
  return x->range.first < y->range.first ? -1 : x->range.first > y->range.first;
}

/* Address that a group reads at a step. */
static const char *source_of(const rs_program *program, const rs_copy_group *group, int64_t step) {
  const rs_ordered_copy *copy = &program->copy.at[group->first];
  const rs_loop *loops = rs_copy_loops(program, copy);
  const char *src = copy->src;
  int n = copy->transpose ? copy->nloops - 2 : copy->nloops;
  for (int i = 0; i < n; i++) {
    src += step / loops[i].inner * loops[i].src;
    step %= loops[i].inner;
  }
  if (copy->transpose) {
    rs_blocks blocks = rs_copy_blocks(copy, loops);
    src += rs_max(step % blocks.down * blocks.ni - blocks.skew_i, 0) * loops[n].src +
           rs_max(step / blocks.down * blocks.nj - blocks.skew_j, 0) * loops[n + 1].src;
  }
  return src;
}

/* Steps of a range of about as many bytes, or less: whole inner loops where these are shorter. */
static int64_t steps_of_range(const rs_program *program, const rs_copy_group *group, int64_t most) {
  const rs_ordered_copy *copy = &program->copy.at[group->first];
  bool together = copy->scaled > 0 && copy->from != RESHARD_F8_E4M3 &&
                  rs_blocks_rows(&program->scaled.at[copy->scaled - 1].box) == 0;
  int64_t size = rs_max(rs_min(most, together ? SCALED_MOST : TASK_MOST), TASK_LEAST);
  int64_t steps = rs_max(size / group->step_bytes, 1);
  int n = copy->transpose ? copy->nloops - 2 : copy->nloops;
  for (int i = 0; i < n; i++) {
    int64_t inner = rs_copy_loops(program, copy)[i].inner;
    if (inner <= steps)
      return steps / inner * inner;
  }
  return steps;
}

static reshard_status cut_groups(rs_program *program, int64_t most) {
  for (int64_t f = 0; f < program->group.n; f++) {
    const rs_copy_group *group = &program->group.at[f];
    int64_t steps = steps_of_range(program, group, most), n = rs_ceil_div(group->steps, steps);
    RS_TRY(rs_vec_reserve(&program->sorted_range, program->sorted_range.n + n));
    for (int64_t at = 0; at < group->steps; at += steps) {
      uint32_t mine = (uint32_t)rs_min(steps, group->steps - at);
      program->sorted_range.at[program->sorted_range.n++] =
          (rs_sorted_range){source_of(program, group, at), {at, mine, (uint32_t)f}};
      program->count += program->copy.at[group->first].transpose ? mine : group->ncopies;
    }
  }
  return RESHARD_SUCCESS;
}

static reshard_status make_tasks(rs_program *program, int64_t size) {
  int64_t n = program->sorted_range.n;
  RS_TRY(rs_vec_reserve(&program->range, n));
  program->range.n = n;
  for (int64_t i = 0, bytes = size; i < n; i++) {
    const rs_step_range *range = &program->sorted_range.at[i].range;
    program->range.at[i] = *range;
    if (bytes >= size) {
      RS_TRY(rs_vec_reserve(&program->task, program->task.n + 2));
      program->task.at[program->task.n++] = i;
      bytes = 0;
    }
    bytes += range->steps * program->group.at[range->group].step_bytes;
  }
  if (program->task.n > 0)
    program->task.at[program->task.n] = n;
  return RESHARD_SUCCESS;
}

reshard_status rs_program_divide(rs_program *program, int threads) {
  int64_t most = program->bytes / ((int64_t)threads * TASKS_PER_THREAD);
  int64_t size = rs_max(rs_min(most, TASK_MOST), TASK_LEAST);
  RS_TRY(cut_groups(program, most));
  if (program->sorted_range.n > 1 && program->bytes > RS_SMALL)
    qsort(program->sorted_range.at, (size_t)program->sorted_range.n, sizeof *program->sorted_range.at, by_source);
  return make_tasks(program, size);
}

void rs_program_clear(rs_program *program) {
  program->copy.n = program->loop.n = program->group.n = program->merged.n = program->range.n = program->task.n = 0;
  program->scaled.n = 0;
  program->sorted_range.n = 0;
  program->bytes = program->count = 0;
}

void rs_program_free_temporary(rs_program *program) {
  free(program->temporary.at);
  rs_copies_free(&program->turned);
  free(program->sorted_range.at);
  program->temporary.at = NULL;
  program->sorted_range.at = NULL;
  program->temporary.cap = program->sorted_range.cap = program->sorted_range.n = 0;
}

void rs_program_free(rs_program *program) {
  if (program == NULL)
    return;
  rs_program_free_temporary(program);
  free(program->copy.at);
  free(program->loop.at);
  free(program->scaled.at);
  free(program->group.at);
  free(program->merged.at);
  free(program->range.at);
  free(program->task.at);
  free(program);
}
