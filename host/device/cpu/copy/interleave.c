/* Families: copies that go on together.
 *
 * Where rows become columns, copies to different destinations take turns in the source: done one after the other, each
 * would read every row again, a part of it, with gaps that hardware does not foresee. Where columns become rows they
 * take turns in the destination, and each would write parts of lines. Cyclic blocks do both. Such copies have loops of
 * the same lengths and equal strides on the side on which they alternate, and their first runs lie within one step of
 * the innermost loop there. They are found by sorting, once by source and once by destination, and joined; a family is
 * then read and written in a few ascending streams, whatever its runs.
 *
 * Stores past the cache save the reading of what is overwritten, but they must fill whole lines. Runs that are whole
 * lines, or are long, are streamed as they are. Others must be put together, which ops whose runs follow one another
 * in the destination - a group - allow as far as their steps are contiguous: from single loads, from a line that is
 * carried from run to run, or in a small buffer. What fits none of these is stored plainly. */
#include "device/cpu/copy/program.h"

#include <stdlib.h>

enum {
  LONG_RUN = 1024,        /* worth streaming whatever its alignment */
  CARRY_RUN = 192,        /* worth appending to a line one by one */
  CARRY_ALONE = 96,       /* the same where each op has a line of its own */
  APART = 64 << 10,       /* runs as long as this gain nothing from company */
  PLAIN_WINDOW = 8 << 10, /* bytes of a block of all ops of a plain family */
  WINDOW = 4 << 10,       /* the same of a woven one: its reads and stores must overlap */
  CHUNK_LEAST = 256,      /* bytes of a block of one op */
  STRETCH = 512,          /* contiguous bytes worth storing past the cache */
  SHORT_LOOP = 32,
};

typedef struct rs_entry {
  const rs_op *op;
  const rs_loop *loops;
  uint32_t index;
} rs_entry;

static int compare(int64_t a, int64_t b) { return a < b ? -1 : a > b; }

/* By lengths of the loops, then strides on one side. */
static int by_shape(const rs_entry *x, const rs_entry *y, bool of_source) {
  int order = compare(x->op->nloops, y->op->nloops);
  for (int i = 0; order == 0 && i < x->op->nloops; i++)
    order = compare(x->loops[i].n, y->loops[i].n);
  for (int i = 0; order == 0 && i < x->op->nloops; i++)
    order = of_source ? compare(x->loops[i].src, y->loops[i].src) : compare(x->loops[i].dst, y->loops[i].dst);
  return order;
}

static int by_source(const void *a, const void *b) {
  const rs_entry *x = a, *y = b;
  int order = by_shape(x, y, true);
  return order != 0 ? order : compare((intptr_t)x->op->src, (intptr_t)y->op->src);
}

static int by_destination(const void *a, const void *b) {
  const rs_entry *x = a, *y = b;
  int order = by_shape(x, y, false);
  return order != 0 ? order : compare((intptr_t)x->op->dst, (intptr_t)y->op->dst);
}

typedef struct rs_join {
  rs_program *program;
  rs_op *sorted;
  rs_entry *entries;
  uint32_t *parent; /* of each op: a forest whose roots stand for families */
  uint32_t *size;   /* of each root */
} rs_join;

static uint32_t root(rs_join *join, uint32_t op) {
  while (join->parent[op] != op)
    op = join->parent[op] = join->parent[join->parent[op]];
  return op;
}

static void unite(rs_join *join, uint32_t a, uint32_t b) {
  a = root(join, a);
  b = root(join, b);
  if (a == b || join->size[a] + join->size[b] > RS_FAMILY)
    return;
  join->parent[b] = a;
  join->size[a] += join->size[b];
}

/* Joins neighbours of the sorted list that start within one step of the innermost loop. */
static void unite_neighbours(rs_join *join, int64_t n, bool of_source) {
  const rs_entry *start = NULL;
  for (int64_t i = 0; i < n; i++) {
    const rs_entry *entry = &join->entries[i];
    if (start != NULL && by_shape(start, entry, of_source) == 0) {
      const rs_loop *inner = &entry->loops[entry->op->nloops - 1];
      int64_t distance = of_source ? entry->op->src - start->op->src : entry->op->dst - start->op->dst;
      if (distance < llabs(of_source ? inner->src : inner->dst)) {
        unite(join, start->index, entry->index);
        continue;
      }
    }
    start = entry;
  }
}

static int by_root(const void *a, const void *b) {
  const rs_entry *x = a, *y = b; /* index holds the root here */
  int order = compare(x->index, y->index);
  return order != 0 ? order : compare((intptr_t)x->op->src, (intptr_t)y->op->src);
}

/* Reorders the ops by family. */
static void sort_ops(rs_join *join) {
  rs_program *program = join->program;
  int64_t n = program->op.n;
  for (int64_t i = 0; i < n; i++)
    join->entries[i] = (rs_entry){&program->op.at[i], NULL, root(join, (uint32_t)i)};
  qsort(join->entries, (size_t)n, sizeof *join->entries, by_root);
  for (int64_t i = 0; i < n; i++) {
    join->sorted[i] = *join->entries[i].op;
    join->size[i] = join->entries[i].index;
  }
  for (int64_t i = 0; i < n; i++)
    program->op.at[i] = join->sorted[i];
}

/* --- What a family is --- */

static bool whole_lines(const rs_program *program, const rs_op *op) {
  uint64_t bits = (uint64_t)(uintptr_t)op->dst | (uint64_t)op->run;
  for (int i = 0; i < op->nloops; i++)
    bits |= (uint64_t)rs_op_loops(program, op)[i].dst;
  return bits % RS_LINE == 0;
}

static int by_address(const void *a, const void *b) {
  const rs_op *x = a, *y = b;
  return compare((intptr_t)x->dst, (intptr_t)y->dst);
}

static bool equal_destination_strides(const rs_program *program, const rs_op *x, const rs_op *y) {
  for (int i = 0; i < x->nloops; i++)
    if (rs_op_loops(program, x)[i].dst != rs_op_loops(program, y)[i].dst)
      return false;
  return true;
}

/* Contiguous bytes of steps that fill `width` bytes each. */
static int64_t stretch(const rs_program *program, const rs_op *op, int64_t width) {
  const rs_loop *loops = rs_op_loops(program, op);
  for (int i = op->nloops - 1; i >= 0 && loops[i].dst == width; i--)
    width *= loops[i].n;
  return width;
}

/* Makes groups of a family, sorting its ops by destination. False where some steps do not follow one another, so that
 * the family cannot be carried. */
static bool make_groups(rs_program *program, rs_family *family) {
  rs_op *ops = program->op.at + family->first;
  qsort(ops, family->nops, sizeof *ops, by_address);
  family->first_group = (uint32_t)program->group.n;
  for (uint32_t i = 0, next; i < family->nops; i = next) {
    int64_t width = ops[i].run;
    for (next = i + 1; next < family->nops && ops[next].dst == ops[i].dst + width &&
                       equal_destination_strides(program, &ops[i], &ops[next]);
         next++)
      width += ops[next].run;
    const rs_loop *inner = ops->nloops == 0 ? NULL : &rs_op_loops(program, &ops[i])[ops->nloops - 1];
    if (inner == NULL || inner->dst != width || stretch(program, &ops[i], width) < STRETCH)
      return false;
    program->group.at[program->group.n++] = (rs_group){next - i, (uint32_t)width};
  }
  family->ngroups = (uint32_t)program->group.n - family->first_group;
  return true;
}

/* Equal narrow runs, each op to a contiguous stretch of its own. */
static bool gathers(const rs_program *program, const rs_family *family) {
  const rs_op *ops = program->op.at + family->first;
  if (rs_width_index(ops->run) < 0 || ops->nloops == 0)
    return false;
  for (uint32_t i = 0; i < family->nops; i++) {
    const rs_loop *inner = &rs_op_loops(program, &ops[i])[ops->nloops - 1];
    if (ops[i].run != ops->run || inner->dst != ops->run || inner->n * ops->run < STRETCH ||
        (uintptr_t)ops[i].dst % (uintptr_t)ops->run != 0)
      return false;
    for (int k = 0; k < ops->nloops; k++)
      if (rs_op_loops(program, &ops[i])[k].dst % ops->run != 0)
        return false;
  }
  return true;
}

/* Carried or woven, when the groups allow. */
static rs_mode carried_mode(const rs_program *program, rs_family *family) {
  const rs_op *op = &program->op.at[family->first];
  const rs_loop *loops = rs_op_loops(program, op);
  const rs_group *groups = program->group.at + family->first_group;
  int64_t widest = 0, narrowest = INT64_MAX;
  for (uint32_t g = 0; g < family->ngroups; g++)
    widest = rs_max(widest, groups[g].width);
  for (uint32_t i = 0; i < family->nops; i++)
    narrowest = rs_min(narrowest, op[i].run);
  int64_t most = RS_BUFFER / family->ngroups / widest; /* steps that a group's buffer takes */
  if (narrowest >= (family->ngroups == family->nops ? CARRY_ALONE : CARRY_RUN) || most == 0)
    return RS_MODE_CARRY;
  family->block = rs_min(most, rs_max(WINDOW / family->step_bytes, rs_ceil_div(CHUNK_LEAST, narrowest)));
  int last = op->nloops - 1;
  family->rows = last > 0 && loops[last].n < SHORT_LOOP && loops[last].n <= family->block;
  for (uint32_t i = 0; i < family->nops && family->rows; i++) {
    const rs_loop *mine = rs_op_loops(program, op + i);
    family->rows = mine[last - 1].dst == mine[last].dst * mine[last].n;
  }
  if (family->rows)
    family->block -= family->block % loops[last].n;
  return RS_MODE_WEAVE;
}

static void choose_mode(rs_program *program, rs_family *family, bool streaming) {
  const rs_op *ops = program->op.at + family->first;
  bool fan = streaming;
  for (uint32_t i = 0; i < family->nops; i++)
    fan &= ops[i].run >= LONG_RUN || whole_lines(program, &ops[i]);
  family->mode = RS_MODE_PLAIN;
  family->block = rs_max(PLAIN_WINDOW / family->step_bytes, rs_ceil_div(CHUNK_LEAST, ops->run));
  if (fan)
    family->mode = RS_MODE_FAN;
  else if (streaming && gathers(program, family))
    family->mode = RS_MODE_GATHER;
  else if (streaming) {
    int64_t groups = program->group.n;
    if (make_groups(program, family))
      family->mode = carried_mode(program, family);
    else
      program->group.n = groups;
  }
}

static reshard_status make_family(rs_program *program, uint32_t first, uint32_t n, bool streaming) {
  RS_TRY(rs_vec_reserve(&program->family, program->family.n + 1));
  RS_TRY(rs_vec_reserve(&program->group, program->group.n + n));
  const rs_op *ops = program->op.at + first;
  const rs_loop *loops = rs_op_loops(program, &ops[0]);
  rs_family family = {.first = first, .nops = n, .steps = ops->nloops == 0 ? 1 : loops[0].n * loops[0].inner};
  for (uint32_t i = 0; i < n; i++)
    family.step_bytes += ops[i].run;
  if (ops->blocked) {
    rs_blocks blocks = rs_op_blocks(ops, loops);
    family.mode = RS_MODE_SQUARES;
    family.step_bytes = blocks.ni * blocks.nj * ops->run;
    family.streaming = streaming;
    if (ops->nloops == 2)
      family.steps = blocks.down * blocks.across;
  } else {
    choose_mode(program, &family, streaming);
  }
  program->family.at[program->family.n++] = family;
  return RESHARD_SUCCESS;
}

static reshard_status join_ops(rs_join *join, bool streaming) {
  rs_program *program = join->program;
  int64_t n = program->op.n, m = 0;
  for (int64_t i = 0; i < n; i++) {
    const rs_op *op = &program->op.at[i];
    join->parent[i] = (uint32_t)i;
    join->size[i] = 1;
    if (op->nloops > 0 && !op->blocked && op->run < APART)
      join->entries[m++] = (rs_entry){op, rs_op_loops(program, op), (uint32_t)i};
  }
  for (int side = 0; side < 2; side++) {
    qsort(join->entries, (size_t)m, sizeof *join->entries, side == 0 ? by_source : by_destination);
    unite_neighbours(join, m, side == 0);
  }
  sort_ops(join);
  for (int64_t i = 0, next; i < n; i = next) { /* size[i] is now the root of op i */
    for (next = i + 1; next < n && join->size[next] == join->size[i];)
      next++;
    RS_TRY(make_family(program, (uint32_t)i, (uint32_t)(next - i), streaming));
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_program_join(rs_program *program, bool streaming) {
  int64_t n = program->op.n;
  if (n > UINT32_MAX)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "%lld copies in one program, at most %lld are possible", (long long)n,
                    (long long)UINT32_MAX);
  if (n == 0)
    return RESHARD_SUCCESS;
  rs_join join = {.program = program};
  int64_t each = sizeof *join.sorted + sizeof *join.entries + sizeof *join.parent + sizeof *join.size;
  RS_TRY(rs_vec_reserve(&program->room, n * each)); /* n is below 2^32 */
  join.sorted = (rs_op *)program->room.at;
  join.entries = (rs_entry *)(join.sorted + n);
  join.parent = (uint32_t *)(join.entries + n);
  join.size = join.parent + n;
  return join_ops(&join, streaming);
}
