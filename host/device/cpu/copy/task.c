/* One task of a program: pieces of families, and the kernel calls that they come down to. */
#include "device/cpu/copy/program.h"

#include <string.h>

/* Steps [at, at + n) of one op by ordinary stores, as rectangles of its two innermost loops. */
static void copy_steps(const rs_program *program, const rs_kernels *kernels, const rs_op *op, int64_t at, int64_t n) {
  const rs_loop *loops = rs_op_loops(program, op);
  int last = op->nloops - 1;
  if (last < 0) {
    memcpy(op->dst, op->src, (size_t)op->run);
    return;
  }
  const rs_loop *l0 = &loops[last];
  while (n > 0) {
    char *dst = op->dst;
    const char *src = op->src;
    int64_t rest = at, step = 0, left = 1;
    for (int i = 0; i <= last; i++) {
      step = rest / loops[i].inner;
      rest -= step * loops[i].inner;
      dst += step * loops[i].dst;
      src += step * loops[i].src;
      if (i == last - 1)
        left = loops[i].n - step;
    }
    rs_walk walk = {.run = op->run, .n1 = 1, .n0 = l0->n, .src0 = l0->src, .dst0 = l0->dst};
    if (step > 0 || n < l0->n) {
      walk.n0 = rs_min(n, l0->n - step);
    } else if (last > 0) {
      const rs_loop *l1 = &loops[last - 1];
      walk.n1 = rs_min(n / l0->n, left);
      walk.src1 = l1->src;
      walk.dst1 = l1->dst;
      if (walk.n1 > walk.n0 && walk.n0 < 8) /* the longer loop inside */
        walk = (rs_walk){op->run, l0->n, l0->src, l0->dst, walk.n1, l1->src, l1->dst};
    }
    kernels->runs[rs_run_class(op->run)](dst, src, &walk);
    at += walk.n0 * walk.n1;
    n -= walk.n0 * walk.n1;
  }
}

int64_t rs_family_strands(const rs_program *program, const rs_family *family, int64_t at, rs_strand *strands) {
  const rs_op *ops = program->op.at + family->first;
  int nloops = ops->nloops;
  int64_t left = 1;
  for (uint32_t k = 0; k < family->nops; k++) {
    const rs_op *op = &ops[k];
    const rs_loop *loops = rs_op_loops(program, op);
    rs_strand strand = {op->dst, op->src, op->run, 0, 0, NULL};
    int64_t rest = at;
    for (int i = 0; i < nloops; i++) {
      int64_t step = rest / loops[i].inner;
      rest -= step * loops[i].inner;
      strand.dst += step * loops[i].dst;
      strand.src += step * loops[i].src;
      strand.dst_step = loops[i].dst;
      strand.src_step = loops[i].src;
      left = loops[i].n - step; /* of the innermost loop in the end */
    }
    strands[k] = strand;
  }
  return left;
}

static void run_strands(const rs_program *program, const rs_kernels *kernels, const rs_family *family, int64_t at,
                        int64_t n, rs_strand *strands) {
  while (n > 0) {
    int64_t part = rs_min(rs_family_strands(program, family, at, strands), n);
    if (family->mode == RS_MODE_GATHER)
      kernels->stream_gather(strands, (int)family->nops, part);
    else
      kernels->stream_fan(strands, (int)family->nops, part);
    at += part;
    n -= part;
  }
}

static void run_plain(const rs_program *program, const rs_kernels *kernels, const rs_family *family, int64_t at,
                      int64_t n) {
  while (n > 0) {
    int64_t part = rs_min(family->block, n);
    for (uint32_t k = 0; k < family->nops; k++)
      copy_steps(program, kernels, &program->op.at[family->first + k], at, part);
    at += part;
    n -= part;
  }
}

/* Blocks of a transpose, one below the other: so the source is read along its rows. */
static void run_squares(const rs_program *program, const rs_kernels *kernels, const rs_family *family, int64_t at,
                        int64_t n) {
  const rs_op *op = &program->op.at[family->first];
  const rs_loop *loops = rs_op_loops(program, op), *i = &loops[op->nloops - 2], *j = &loops[op->nloops - 1];
  const rs_blocks blocks = rs_op_blocks(op, loops);
  for (; n > 0; at++, n--) {
    char *dst = op->dst;
    const char *src = op->src;
    int64_t rest = at;
    for (const rs_loop *loop = loops; loop < i; loop++) {
      int64_t step = rest / loop->inner;
      rest -= step * loop->inner;
      dst += step * loop->dst;
      src += step * loop->src;
    }
    int64_t i1 = rest % blocks.down * blocks.ni - blocks.skew_i, i0 = rs_max(i1, 0);
    int64_t j1 = rest / blocks.down * blocks.nj - blocks.skew_j, j0 = rs_max(j1, 0);
    int64_t ni = rs_min(i1 + blocks.ni, i->n) - i0, nj = rs_min(j1 + blocks.nj, j->n) - j0;
    dst += i0 * i->dst + j0 * j->dst;
    src += i0 * i->src + j0 * j->src;
    if (op->width >= 0) {
      kernels->transpose[op->width](dst, src, ni, nj, i->dst, j->src, family->streaming);
    } else {
      rs_walk walk = {op->run, ni, i->src, i->dst, nj, j->src, j->dst};
      kernels->runs[rs_run_class(op->run)](dst, src, &walk);
    }
  }
}

void rs_program_run_task(const rs_program *program, const rs_kernels *kernels, int64_t task) {
  rs_scratch scratch;
  for (int64_t p = program->task.at[task]; p < program->task.at[task + 1]; p++) {
    const rs_piece *piece = &program->piece.at[p];
    const rs_family *family = &program->family.at[piece->family];
    int64_t at = piece->first, n = piece->steps;
    switch (family->mode) {
    case RS_MODE_PLAIN: run_plain(program, kernels, family, at, n); break;
    case RS_MODE_FAN:
    case RS_MODE_GATHER: run_strands(program, kernels, family, at, n, scratch.strands); break;
    case RS_MODE_CARRY:
    case RS_MODE_WEAVE: rs_run_carried(program, kernels, family, at, n, &scratch); break;
    case RS_MODE_SQUARES: run_squares(program, kernels, family, at, n); break;
    }
  }
}

/* To the next run of the op; false behind the last one. */
static bool step_ahead(rs_ahead *a, const rs_op *op) {
  const rs_loop *loops = rs_op_loops(a->program, op);
  for (int i = op->nloops - 1; i >= 0; i--) {
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
  while (bytes > 0 && a->program != NULL && a->op < a->program->op.n) {
    const rs_op *op = &a->program->op.at[a->op];
    if (op->blocked || op->run < RS_LINE || op->nloops > RS_OP_LOOPS) {
      a->op++;
      continue;
    }
    if (a->src == NULL)
      a->src = op->src;
    int64_t end = rs_min(op->run, a->at + bytes);
    bytes -= end - a->at;
    for (; a->at < end; a->at += RS_LINE)
      __builtin_prefetch(a->src + a->at, 0, 2);
    if (a->at < op->run)
      return;
    a->at = 0;
    if (!step_ahead(a, op)) {
      a->op++;
      a->src = NULL;
    }
  }
}
