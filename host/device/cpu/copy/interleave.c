/* Groups of copies that interleave.
 *
 * Where rows become columns, copies to different destinations take turns in the source: done one after the other, each
 * would read every row again, a part of it, with gaps that hardware does not foresee. Where columns become rows they
 * take turns in the destination, and each would write parts of lines. Cyclic blocks do both. Such copies have loops of
 * the same lengths, and equal strides on the side on which they alternate. Their first runs lie within one step of the
 * innermost loop there. Sorting finds them, once by source and once by destination. A group is then read and
 * written in a few ascending streams, whatever its runs.
 *
 * Stores past the cache save the reading of what is overwritten, but they must fill whole lines. Runs that are whole
 * lines, or are long, are streamed as they are. Others must be put together, as far as the runs of a step follow one
 * another in the destination and steps are contiguous: from single loads, in a partial line that goes on from run to
 * run, or in a small buffer. Runs that allow none of these are stored plainly. */
#include "device/cpu/copy/program.h"

#include "base/order.h"

#include <stdlib.h>

enum {
  LONG_RUN = 1024,        /* worth streaming whatever its alignment */
  APPEND_RUN = 192,       /* worth appending to a partial line one by one */
  APPEND_ALONE = 96,      /* the same where each copy has a line of its own */
  ALONE_RUN = 64 << 10,   /* runs as long as this gain nothing from a group */
  PLAIN_WINDOW = 8 << 10, /* bytes of a block of all copies of a plain group */
  WINDOW = 4 << 10,       /* the same of a buffered one: its reads and stores must overlap */
  CHUNK_LEAST = 256,      /* bytes of a block of one copy */
  STRETCH = 512,          /* contiguous bytes worth storing past the cache */
  SHORT_LOOP = 32,
};

typedef struct rs_copy_key {
  const rs_ordered_copy *copy;
  const rs_loop *loops;
  uint32_t index;
} rs_copy_key;

/* Orders by lengths of the loops, then strides on one side. */
static int by_shape(const rs_copy_key *x, const rs_copy_key *y, bool of_source) {
  int order = RS_ORDER(x->copy->nloops, y->copy->nloops);
  for (int i = 0; order == 0 && i < x->copy->nloops; i++)
    order = RS_ORDER(x->loops[i].n, y->loops[i].n);
  for (int i = 0; order == 0 && i < x->copy->nloops; i++)
    order = of_source ? RS_ORDER(x->loops[i].src, y->loops[i].src) : RS_ORDER(x->loops[i].dst, y->loops[i].dst);
  return order;
}

static int by_source(const void *a, const void *b) {
  const rs_copy_key *x = a, *y = b;
  int order = by_shape(x, y, true);
  return order != 0 ? order : RS_ORDER(x->copy->src, y->copy->src);
}

static int by_destination(const void *a, const void *b) {
  const rs_copy_key *x = a, *y = b;
  int order = by_shape(x, y, false);
  return order != 0 ? order : RS_ORDER(x->copy->dst, y->copy->dst);
}

typedef struct rs_grouping {
  rs_program *program;
  rs_ordered_copy *sorted;
  rs_copy_key *keys;
  uint32_t *parent; /* of each copy: a forest whose roots stand for groups */
  uint32_t *size;   /* of each root */
} rs_grouping;

static uint32_t root_of(rs_grouping *grouping, uint32_t copy) {
  while (grouping->parent[copy] != copy)
    copy = grouping->parent[copy] = grouping->parent[grouping->parent[copy]];
  return copy;
}

static void unite_copies(rs_grouping *grouping, uint32_t a, uint32_t b) {
  a = root_of(grouping, a);
  b = root_of(grouping, b);
  if (a == b || grouping->size[a] + grouping->size[b] > RS_GROUP_COPIES)
    return;
  grouping->parent[b] = a;
  grouping->size[a] += grouping->size[b];
}

/* Unites neighbours of the sorted list that start within one step of the innermost loop. */
static void unite_neighbours(rs_grouping *grouping, int64_t n, bool of_source) {
  const rs_copy_key *start = NULL;
  for (int64_t i = 0; i < n; i++) {
    const rs_copy_key *key = &grouping->keys[i];
    if (start != NULL && by_shape(start, key, of_source) == 0) {
      const rs_loop *inner = &key->loops[key->copy->nloops - 1];
      int64_t distance = of_source ? key->copy->src - start->copy->src : key->copy->dst - start->copy->dst;
      if (distance < llabs(of_source ? inner->src : inner->dst)) {
        unite_copies(grouping, start->index, key->index);
        continue;
      }
    }
    start = key;
  }
}

static int by_root(const void *a, const void *b) {
  const rs_copy_key *x = a, *y = b; /* index holds the root here */
  int order = RS_ORDER(x->index, y->index);
  return order != 0 ? order : RS_ORDER(x->copy->src, y->copy->src);
}

/* Reorders the copies by group. */
static void sort_copies(rs_grouping *grouping) {
  rs_program *program = grouping->program;
  int64_t n = program->copy.n;
  for (int64_t i = 0; i < n; i++)
    grouping->keys[i] = (rs_copy_key){&program->copy.at[i], NULL, root_of(grouping, (uint32_t)i)};
  qsort(grouping->keys, (size_t)n, sizeof *grouping->keys, by_root);
  for (int64_t i = 0; i < n; i++) {
    grouping->sorted[i] = *grouping->keys[i].copy;
    grouping->size[i] = grouping->keys[i].index;
  }
  for (int64_t i = 0; i < n; i++)
    program->copy.at[i] = grouping->sorted[i];
}

/* --- The mode of a group --- */

static bool whole_lines(const rs_program *program, const rs_ordered_copy *copy) {
  uint64_t bits = (uint64_t)(uintptr_t)copy->dst | (uint64_t)copy->run;
  for (int i = 0; i < copy->nloops; i++)
    bits |= (uint64_t)rs_copy_loops(program, copy)[i].dst;
  return bits % RS_LINE == 0;
}

RS_ORDER_BY(by_address, rs_ordered_copy, dst)

static bool equal_destination_strides(const rs_program *program, const rs_ordered_copy *x, const rs_ordered_copy *y) {
  for (int i = 0; i < x->nloops; i++)
    if (rs_copy_loops(program, x)[i].dst != rs_copy_loops(program, y)[i].dst)
      return false;
  return true;
}

/* Contiguous bytes of steps that fill `width` bytes each. */
static int64_t contiguous_bytes(const rs_program *program, const rs_ordered_copy *copy, int64_t width) {
  const rs_loop *loops = rs_copy_loops(program, copy);
  for (int i = copy->nloops - 1; i >= 0 && loops[i].dst == width; i--)
    width *= loops[i].n;
  return width;
}

/* Merges runs that follow one another in the destination, sorting the copies of a group by it. False where some steps
 * do not follow one another, so that partial lines cannot go on. */
static bool merge_runs(rs_program *program, rs_copy_group *group) {
  rs_ordered_copy *copies = program->copy.at + group->first;
  qsort(copies, group->ncopies, sizeof *copies, by_address);
  group->first_merged = (uint32_t)program->merged.n;
  for (uint32_t i = 0, next; i < group->ncopies; i = next) {
    int64_t width = copies[i].run;
    for (next = i + 1; next < group->ncopies && copies[next].dst == copies[i].dst + width &&
                       equal_destination_strides(program, &copies[i], &copies[next]);
         next++)
      width += copies[next].run;
    const rs_loop *inner = copies->nloops == 0 ? NULL : &rs_copy_loops(program, &copies[i])[copies->nloops - 1];
    if (inner == NULL || inner->dst != width || contiguous_bytes(program, &copies[i], width) < STRETCH)
      return false;
    program->merged.at[program->merged.n++] = (rs_merged_run){next - i, (uint32_t)width};
  }
  group->nmerged = (uint32_t)program->merged.n - group->first_merged;
  return true;
}

/* True for equal narrow runs, each copy to contiguous bytes of its own. */
static bool can_gather(const rs_program *program, const rs_copy_group *group) {
  const rs_ordered_copy *copies = program->copy.at + group->first;
  if (rs_width_index(copies->run) < 0 || copies->nloops == 0)
    return false;
  for (uint32_t i = 0; i < group->ncopies; i++) {
    const rs_loop *inner = &rs_copy_loops(program, &copies[i])[copies->nloops - 1];
    if (copies[i].run != copies->run || inner->dst != copies->run || inner->n * copies->run < STRETCH ||
        (uintptr_t)copies[i].dst % (uintptr_t)copies->run != 0)
      return false;
    for (int k = 0; k < copies->nloops; k++)
      if (rs_copy_loops(program, &copies[i])[k].dst % copies->run != 0)
        return false;
  }
  return true;
}

/* Chooses partial lines or buffers for a group whose runs are merged. */
static rs_mode partial_line_mode(const rs_program *program, rs_copy_group *group) {
  const rs_ordered_copy *copy = &program->copy.at[group->first];
  const rs_loop *loops = rs_copy_loops(program, copy);
  const rs_merged_run *merged = program->merged.at + group->first_merged;
  int64_t widest = 0, narrowest = INT64_MAX;
  for (uint32_t g = 0; g < group->nmerged; g++)
    widest = rs_max(widest, merged[g].width);
  for (uint32_t i = 0; i < group->ncopies; i++)
    narrowest = rs_min(narrowest, copy[i].run);
  int64_t most = RS_BUFFER / group->nmerged / widest; /* steps that the buffer of a merged run takes */
  if (narrowest >= (group->nmerged == group->ncopies ? APPEND_ALONE : APPEND_RUN) || most == 0)
    return RS_MODE_PARTIAL_LINES;
  group->block = rs_min(most, rs_max(WINDOW / group->step_bytes, rs_ceil_div(CHUNK_LEAST, narrowest)));
  int last = copy->nloops - 1;
  group->rows = last > 0 && loops[last].n < SHORT_LOOP && loops[last].n <= group->block;
  for (uint32_t i = 0; i < group->ncopies && group->rows; i++) {
    const rs_loop *mine = rs_copy_loops(program, copy + i);
    group->rows = mine[last - 1].dst == mine[last].dst * mine[last].n;
  }
  if (group->rows)
    group->block -= group->block % loops[last].n;
  return RS_MODE_BUFFER;
}

static void choose_mode(rs_program *program, rs_copy_group *group, bool streaming) {
  const rs_ordered_copy *copies = program->copy.at + group->first;
  group->lines = true;
  for (uint32_t i = 0; i < group->ncopies; i++)
    group->lines &= copies[i].run >= LONG_RUN || whole_lines(program, &copies[i]);
  group->mode = RS_MODE_PLAIN;
  group->block = rs_max(PLAIN_WINDOW / group->step_bytes, rs_ceil_div(CHUNK_LEAST, copies->run));
  if (streaming && group->lines)
    group->mode = RS_MODE_STREAM;
  else if (streaming && can_gather(program, group))
    group->mode = RS_MODE_GATHER;
  else if (streaming) {
    int64_t before = program->merged.n;
    if (merge_runs(program, group))
      group->mode = partial_line_mode(program, group);
    else
      program->merged.n = before;
  }
}

static reshard_status make_group(rs_program *program, uint32_t first, uint32_t n, bool streaming) {
  RS_TRY(rs_vec_reserve(&program->group, program->group.n + 1));
  RS_TRY(rs_vec_reserve(&program->merged, program->merged.n + n));
  const rs_ordered_copy *copies = program->copy.at + first;
  const rs_loop *loops = rs_copy_loops(program, &copies[0]);
  rs_copy_group group = {.first = first, .ncopies = n, .steps = copies->nloops == 0 ? 1 : loops[0].n * loops[0].inner};
  for (uint32_t i = 0; i < n; i++)
    group.step_bytes += copies[i].run;
  if (copies->transpose) {
    rs_blocks blocks = rs_copy_blocks(copies, loops);
    group.mode = rs_copy_converts(copies) ? RS_MODE_CONVERT : RS_MODE_TRANSPOSE;
    group.step_bytes = blocks.ni * blocks.nj * copies->run;
    group.streaming = streaming;
    if (copies->nloops == 2)
      group.steps = blocks.down * blocks.across;
  } else if (rs_copy_converts(copies)) {
    group.mode = RS_MODE_CONVERT;
    group.streaming = streaming;
  } else {
    choose_mode(program, &group, streaming);
  }
  program->group.at[program->group.n++] = group;
  return RESHARD_SUCCESS;
}

static reshard_status group_copies(rs_grouping *grouping, bool streaming) {
  rs_program *program = grouping->program;
  int64_t n = program->copy.n, m = 0;
  for (int64_t i = 0; i < n; i++) {
    const rs_ordered_copy *copy = &program->copy.at[i];
    grouping->parent[i] = (uint32_t)i;
    grouping->size[i] = 1;
    if (copy->nloops > 0 && !copy->transpose && copy->run < ALONE_RUN && !rs_copy_converts(copy))
      grouping->keys[m++] = (rs_copy_key){copy, rs_copy_loops(program, copy), (uint32_t)i};
  }
  for (int side = 0; side < 2; side++) {
    qsort(grouping->keys, (size_t)m, sizeof *grouping->keys, side == 0 ? by_source : by_destination);
    unite_neighbours(grouping, m, side == 0);
  }
  sort_copies(grouping);
  for (int64_t i = 0, next; i < n; i = next) { /* size[i] is now the root of copy i */
    for (next = i + 1; next < n && grouping->size[next] == grouping->size[i];)
      next++;
    RS_TRY(make_group(program, (uint32_t)i, (uint32_t)(next - i), streaming));
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_program_interleave(rs_program *program, bool streaming) {
  int64_t n = program->copy.n;
  if (n > UINT32_MAX)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "%lld copies in one program, at most %lld are possible", (long long)n,
                    (long long)UINT32_MAX);
  if (!streaming && program->bytes <= RS_SMALL) {
    for (int64_t i = 0; i < n; i++)
      RS_TRY(make_group(program, (uint32_t)i, 1, false));
    return RESHARD_SUCCESS;
  }
  if (n == 0)
    return RESHARD_SUCCESS;
  rs_grouping grouping = {.program = program};
  int64_t each = sizeof *grouping.sorted + sizeof *grouping.keys + sizeof *grouping.parent + sizeof *grouping.size;
  RS_TRY(rs_vec_reserve(&program->temporary, n * each)); /* n is below 2^32 */
  grouping.sorted = (rs_ordered_copy *)program->temporary.at;
  grouping.keys = (rs_copy_key *)(grouping.sorted + n);
  grouping.parent = (uint32_t *)(grouping.keys + n);
  grouping.size = grouping.parent + n;
  return group_copies(&grouping, streaming);
}
