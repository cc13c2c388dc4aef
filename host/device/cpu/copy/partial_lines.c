/* Families whose runs are not whole lines but follow one another in the destination: through carries.
 *
 * Each group has one carry, which goes on from run to run, from block to block and, where the outer loops continue in
 * the destination too, from loop to loop; so partial lines are stored only at the ends of a piece. Long runs are
 * appended one by one (carry). Short ones are written by the plain kernels into the carry's buffer, a block of steps
 * of each op at a time, and flushed (weave). Blocks are small, so that the loads of one overlap with the stores of
 * another. */
#include "device/cpu/copy/program.h"

#include <string.h>

/* Stores what a carry holds and empties it. */
static void finish(const rs_kernels *kernels, rs_carry *carry) {
  kernels->flush(carry);
  if (carry->fill > carry->lo)
    memcpy(carry->dst + carry->lo, carry->bytes + carry->lo, (size_t)(carry->fill - carry->lo));
  carry->lo = carry->fill = 0;
}

/* Makes a carry go on at dst. */
static void direct(const rs_kernels *kernels, rs_carry *carry, char *dst) {
  if (carry->dst != NULL && carry->dst + carry->fill == dst)
    return;
  if (carry->dst != NULL)
    finish(kernels, carry);
  carry->lo = carry->fill = (int64_t)((uintptr_t)dst % RS_LINE);
  carry->dst = dst - carry->lo;
}

/* n steps, or rows of `across` steps, of each group into its buffer. */
static void weave_block(const rs_kernels *kernels, const rs_family *family, const rs_group *groups, rs_scratch *scratch,
                        int64_t n, const rs_loop *rows, int64_t across, const rs_program *program) {
  rs_strand *strand = scratch->strands;
  for (uint32_t g = 0; g < family->ngroups; g++) {
    rs_carry *carry = &scratch->carries[g];
    char *dst = carry->bytes + carry->fill;
    for (uint32_t k = 0; k < groups[g].nops; k++, strand++) {
      rs_walk walk = {.run = strand->run, .n1 = 1, .n0 = n, .src0 = strand->src_step, .dst0 = groups[g].width};
      int64_t move = n * strand->src_step;
      if (rows != NULL) {
        const rs_op *op = &program->op.at[family->first + (strand - scratch->strands)];
        const rs_loop *row = &rs_op_loops(program, op)[op->nloops - 2];
        walk.n0 = across;
        walk.n1 = n;
        walk.src1 = row->src;
        walk.dst1 = across * groups[g].width;
        move = n * row->src;
        if (n > across)
          walk = (rs_walk){walk.run, across, walk.src0, walk.dst0, n, walk.src1, walk.dst1};
      }
      kernels->runs[rs_run_class(walk.run)](dst, strand->src, &walk);
      strand->src += move;
      if (strand->src_step == strand->run) /* many such streams are more than hardware follows */
        for (int64_t at = 0; at < move; at += RS_LINE)
          __builtin_prefetch(strand->src + at, 0, 2);
      dst += strand->run;
    }
    carry->fill += n * (rows != NULL ? across : 1) * groups[g].width;
    kernels->flush(carry);
  }
}

/* Steps up to the end of a loop: of the innermost one, or of the one around it in whole rows. */
static int64_t weave(const rs_program *program, const rs_kernels *kernels, const rs_family *family,
                     const rs_group *groups, rs_scratch *scratch, int64_t at, int64_t n, int64_t left) {
  const rs_op *op = &program->op.at[family->first];
  const rs_loop *inner = &rs_op_loops(program, op)[op->nloops - 1];
  if (family->rows && left == inner->n && n >= inner->n) {
    const rs_loop *row = inner - 1;
    int64_t rows = rs_min(n / inner->n, row->n - at / row->inner % row->n), most = family->block / inner->n;
    for (int64_t done = 0; done < rows; done += most)
      weave_block(kernels, family, groups, scratch, rs_min(most, rows - done), row, inner->n, program);
    return rows * inner->n;
  }
  n = rs_min(n, left);
  for (int64_t done = 0; done < n; done += family->block)
    weave_block(kernels, family, groups, scratch, rs_min(family->block, n - done), NULL, 1, program);
  return n;
}

void rs_run_carried(const rs_program *program, const rs_kernels *kernels, const rs_family *family, int64_t at,
                    int64_t n, rs_scratch *scratch) {
  const rs_group *groups = program->group.at + family->first_group;
  int64_t room = sizeof scratch->buffer / family->ngroups / RS_LINE * RS_LINE;
  for (uint32_t g = 0; g < family->ngroups; g++)
    scratch->carries[g] = (rs_carry){.bytes = scratch->buffer + g * room};
  while (n > 0) {
    int64_t part = rs_family_strands(program, family, at, scratch->strands);
    for (uint32_t g = 0, k = 0; g < family->ngroups; g++) {
      direct(kernels, &scratch->carries[g], scratch->strands[k].dst);
      for (uint32_t end = k + groups[g].nops; k < end; k++)
        scratch->strands[k].carry = &scratch->carries[g];
    }
    if (family->mode == RS_MODE_WEAVE) {
      part = weave(program, kernels, family, groups, scratch, at, n, part);
    } else {
      part = rs_min(part, n);
      kernels->stream_carry(scratch->strands, (int)family->nops, part);
    }
    at += part;
    n -= part;
  }
  for (uint32_t g = 0; g < family->ngroups; g++)
    finish(kernels, &scratch->carries[g]);
}
