/* Stamps are as good as random. Where blocks have scales they are numbers of similar magnitude, as weights are: beside
 * what is infinite, the rest of a block would be 0. */
#include "bench/bench/elements.h"

#include "bench/cli/naive_cast.h"
#include "bench/cli/naive_scaled.h"

#include <string.h>

/* The value of an element: the high bits of a product are as good as random, and cost one multiplication. */
static inline uint64_t stamp(uint64_t key, int64_t index) { return (key + (uint64_t)index) * 0x9e3779b97f4a7c15u; }

/* Elements [index, index + n) of a tensor, one after the other in memory. */
static void fill_run(unsigned char *at, size_t width, uint64_t key, int64_t index, int64_t n) {
  switch (width) {
  case 1:
    for (int64_t i = 0; i < n; i++)
      at[i] = (unsigned char)(stamp(key, index + i) >> 56);
    break;
  case 2:
    for (int64_t i = 0; i < n; i++)
      ((uint16_t *)at)[i] = (uint16_t)(stamp(key, index + i) >> 48);
    break;
  case 4:
    for (int64_t i = 0; i < n; i++)
      ((uint32_t *)at)[i] = (uint32_t)(stamp(key, index + i) >> 32);
    break;
  default:
    for (int64_t i = 0; i < n * (int64_t)(width / 8); i++)
      ((uint64_t *)at)[i] = stamp(key, index * (int64_t)(width / 8) + i);
  }
}

static uint64_t converted_bits(const bench_elements *e, int64_t index) {
  _Alignas(16) unsigned char element[16] = {0};
  uint64_t bits;
  fill_run(element, reshard_dtype_size(e->from), e->key, index, 1);
  memcpy(&bits, element, sizeof bits);
  return naive_cast(e->from, e->to, bits);
}

/* --- Blocks with scales ------------------------------------------------------------------------------------------- */

/* Bits of a number of 2^-7 to 2 by its magnitude; of f8_e4m3 any code. */
static uint64_t stamp_number(const bench_elements *e, int64_t index) {
  uint32_t drawn = (uint32_t)(stamp(e->key, index) >> 32), power = drawn >> 23 & 7;
  switch (e->from) {
  case RESHARD_F32: return (drawn & 0x807fffff) | (120 + power) << 23;
  case RESHARD_BF16: return (drawn >> 16 & 0x807f) | (120 + power) << 7;
  case RESHARD_F16: return (drawn >> 16 & 0x83ff) | (8 + power) << 10;
  default: return drawn >> 24;
  }
}

static uint32_t stamp_scale(const bench_elements *e, int64_t block) {
  uint32_t drawn = (uint32_t)(stamp(~e->key, block) >> 32), power = 120 + (drawn >> 23 & 7);
  return e->scaled->blocks.scales == RESHARD_F8_E8M0 ? power : (drawn & 0x7fffff) | power << 23;
}

static int64_t block_of(const bench_elements *e, int64_t index) {
  int64_t block = 0;
  for (int d = e->scaled->ndim - 1; d >= 0; d--) {
    block += index % e->scaled->shape[d] / e->block[d] * e->step[d];
    index /= e->scaled->shape[d];
  }
  return block;
}

static uint64_t scaled_bits(const bench_elements *e, int64_t index) {
  reshard_dtype scales = e->scaled->blocks.scales;
  if (e->scales)
    return e->made ? naive_scale_bits(naive_scale(e->most[index], scales), scales) : stamp_scale(e, index);
  uint64_t number = stamp_number(e, index);
  if (!e->made)
    return number;
  if (e->to == RESHARD_F8_E4M3)
    return naive_scaled(naive_wide(&number, e->from, 0), naive_scale(e->most[block_of(e, index)], scales));
  uint32_t scale = stamp_scale(e, block_of(e, index));
  return naive_unscaled((uint32_t)number, naive_stored_scale(&scale, scales, 0), e->to);
}

/* Blocks of the side with scales, in its order, as dims of the source have them. */
static void set_blocks(const workload *w, const workload_tensor *t, bench_elements *e) {
  bool back = t->dtype == RESHARD_F8_E4M3;
  int64_t blocks = 1;
  for (int d = t->ndim - 1; d >= 0; d--) {
    int p = w->permuted && !back ? w->permutation[d] : d;
    e->block[p] = t->block[d];
    e->step[p] = e->grid[d] = blocks;
    blocks *= rs_ceil_div(t->shape[p], t->block[d]);
  }
  if (!e->made || back)
    return;
  e->most = cli_alloc(blocks, sizeof *e->most);
  for (int64_t i = 0; i < blocks; i++)
    e->most[i] = -1;
}

/* --- Elements of a side ------------------------------------------------------------------------------------------- */

bench_elements bench_elements_of(const workload *w, int64_t tensor, bool source) {
  const workload_tensor *t = &w->tensor[tensor];
  bench_elements e = {.key = (uint64_t)(tensor + 1) * 0xd1b54a32d192ed03u,
                      .from = t->dtype,
                      .to = source ? t->dtype : t->dst_dtype,
                      .made = !source,
                      .scaled = t->scales != NULL ? t : NULL};
  e.width = reshard_dtype_size(e.to);
  if (e.scaled != NULL)
    set_blocks(w, t, &e);
  return e;
}

bench_elements bench_scales_of(const bench_elements *values) {
  bench_elements e = *values;
  e.scales = true;
  e.width = reshard_dtype_size(e.scaled->blocks.scales);
  return e;
}

static void fill_elements(unsigned char *at, const bench_elements *e, int64_t index, int64_t n) {
  if (e->scaled == NULL && e->from == e->to)
    fill_run(at, e->width, e->key, index, n);
  else
    for (int64_t i = 0; i < n; i++, at += e->width) {
      uint64_t bits = e->scaled != NULL ? scaled_bits(e, index + i) : converted_bits(e, index + i);
      memcpy(at, &bits, e->width);
    }
}

int64_t bench_fill_visit(unsigned char *at, const bench_elements *e, int64_t index, int64_t n) {
  fill_elements(at, e, index, n);
  return 0;
}

int64_t bench_wrong_visit(unsigned char *at, const bench_elements *e, int64_t index, int64_t n) {
  _Alignas(16) unsigned char want[4096];
  size_t width = e->width;
  int64_t step = (int64_t)(sizeof want / width), wrong = 0;
  for (int64_t i = 0; i < n; i += step) {
    int64_t m = n - i < step ? n - i : step;
    fill_elements(want, e, index + i, m);
    if (memcmp(at + i * (int64_t)width, want, (size_t)m * width) != 0)
      for (int64_t k = 0; k < m; k++)
        wrong += memcmp(at + (i + k) * (int64_t)width, want + k * (int64_t)width, width) != 0;
  }
  return wrong;
}

int64_t bench_most_visit(unsigned char *at, const bench_elements *e, int64_t index, int64_t n) {
  (void)at;
  for (int64_t i = 0; i < n; i++) {
    uint64_t number = stamp_number(e, index + i);
    float *most = &e->most[block_of(e, index + i)];
    *most = naive_most(*most, naive_wide(&number, e->from, 0));
  }
  return 0;
}
