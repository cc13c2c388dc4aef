/* Random copies that convert, each once for a GPU and once for the CPU: casts, and values of f8_e4m3 with a scale for
 * each block, both ways. They begin at any byte. */
#include "bench/gpu/context.h"

enum { PIECES = 8, NUMBERS = 6000 }; /* pieces of the room, of which a copy takes less than one on either side */

typedef struct conversion_draw {
  rng *r;
  int64_t room;
  char *const *from, *const *to; /* of both devices */
  rs_copies *copies;
} conversion_draw;

/* A place for so many bytes, on a multiple of 16 or not. */
static int64_t draw_source(conversion_draw *c, int64_t bytes) {
  int64_t at = rng_below(c->r, c->room - bytes);
  return rng_one_in(c->r, 2) ? at & -16 : at;
}
static int64_t draw_shift(conversion_draw *c, int64_t at) {
  return rng_one_in(c->r, 2) ? (-at) & 15 : rng_below(c->r, 16);
}

/* Adds a cast to the bytes from at on; returns the bytes that it takes there. */
static int64_t add_cast(conversion_draw *c, int64_t at) {
  static const reshard_dtype dtypes[] = {RESHARD_F8_E4M3, RESHARD_F8_E5M2, RESHARD_F16,
                                         RESHARD_BF16,    RESHARD_F32,     RESHARD_F64};
  const int64_t number = rng_below(c->r, 6);
  const reshard_dtype in = dtypes[number], out = dtypes[(number + rng_in(c->r, 1, 5)) % 6];
  int64_t extent[4], src[4], dst[4], read, written;
  rs_axis axes[4];
  int n;
  do {
    n = (int)rng_in(c->r, 1, 4);
    const bool gaps = !rng_one_in(c->r, 3);
    int64_t left = NUMBERS;
    for (int d = 0; d < n; d++) {
      extent[d] = rng_log(c->r, left);
      left = rs_max(left / extent[d], 1);
    }
    read = gpu_draw_strides(c->r, n, extent, (int32_t)reshard_dtype_size(in), gaps, src);
    written = gpu_draw_strides(c->r, n, extent, (int32_t)reshard_dtype_size(out), gaps, dst);
  } while (rs_max(read, written) > c->room / PIECES - 16);
  for (int d = 0; d < n; d++)
    axes[d] = (rs_axis){extent[d], src[d], dst[d]};
  const int64_t source = draw_source(c, read), shift = draw_shift(c, at);
  for (int i = 0; i < 2; i++)
    CLI_TRY("", rs_copies_convert(&c->copies[i], c->from[i] + source, c->to[i] + at + shift, in, out, n, axes));
  return shift + written;
}

/* Draws strides of rows and columns, or the other way round, with a gap. Returns the bytes that they span. */
static int64_t draw_box(rng *r, const int64_t *n, int64_t element, int64_t *stride) {
  const int inner = rng_one_in(r, 6) ? 0 : 1;
  stride[inner] = element;
  stride[!inner] = (n[inner] + (rng_one_in(r, 3) ? rng_below(r, 20) : 0)) * element;
  return n[!inner] * stride[!inner];
}

/* Adds one or two boxes of blocks, to values and scales from at on, or back. */
static int64_t add_blocks(conversion_draw *c, int64_t at) {
  static const reshard_dtype wide[] = {RESHARD_F32, RESHARD_F16, RESHARD_BF16};
  rng *r = c->r;
  rs_block_box box = {.wide_dtype = wide[rng_below(r, 3)],
                      .scale_dtype = rng_one_in(r, 2) ? RESHARD_F32 : RESHARD_F8_E8M0};
  const bool back = rng_one_in(r, 2);
  const int64_t scale = (int64_t)reshard_dtype_size(box.scale_dtype);
  rs_block_axis loop;
  do {
    for (int i = 0; i < 2; i++)
      box.block[i] = rng_one_in(r, 3) ? 1 : rng_one_in(r, 2) ? rng_in(r, 1, 40) : 32 << rng_below(r, 3);
    if (rng_one_in(r, 12))
      box.block[0] = 32768 / box.block[1]; /* the largest */
    for (int i = 0; i < 2; i++) {
      box.n[i] = rng_in(r, 1, 3 * box.block[i] + 2);
      box.skip[i] = back && rng_one_in(r, 2) ? rng_below(r, box.block[i]) : 0;
    }
    box.scale_stride[1] = scale;
    box.scale_stride[0] = rs_ceil_div(box.n[1] + box.skip[1], box.block[1]) * scale;
    loop.n = rng_in(r, 1, 2);
    loop.wide = draw_box(r, box.n, (int64_t)reshard_dtype_size(box.wide_dtype), box.wide_stride);
    loop.values = draw_box(r, box.n, 1, box.value_stride) + rng_below(r, 7);
    loop.scales = rs_ceil_div(box.n[0] + box.skip[0], box.block[0]) * box.scale_stride[0];
  } while (loop.n * rs_max(loop.wide, loop.values + loop.scales) > c->room / PIECES - 32);
  const int64_t values = loop.n * loop.values, scales = loop.n * loop.scales, shift = draw_shift(c, at);
  const int64_t source = draw_source(c, back ? values : loop.n * loop.wide), there = draw_source(c, scales);
  const int64_t behind = shift + values + rng_below(r, 16);
  for (int i = 0; i < 2; i++) {
    char *src = c->from[i] + source, *dst = c->to[i] + at;
    box.wide = back ? dst + shift : src;
    box.values = back ? src : dst + shift;
    box.scales = back ? c->from[i] + there : dst + behind;
    CLI_TRY("", rs_copies_scale(&c->copies[i], &box, back, 1, &loop));
  }
  return back ? shift + loop.n * loop.wide : behind + scales;
}

void gpu_draw_conversions(rng *r, int64_t room, char *const from[2], char *const to[2], rs_copies copies[2]) {
  conversion_draw c = {r, room, from, to, copies};
  int64_t at = 0;
  for (int64_t left = rng_in(r, 1, PIECES - 1); left > 0; left--)
    at += rng_one_in(r, 2) ? add_cast(&c, at) : add_blocks(&c, at);
}
