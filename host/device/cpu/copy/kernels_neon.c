/* Copy kernels with NEON, which every 64-bit Arm has. It has no store past the cache that compilers offer alike. */
#include "device/cpu/copy/kernels.h"

#if defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>

#define VB 16
typedef uint8x16_t vec;
static inline vec vload(const char *src) { return vld1q_u8((const uint8_t *)src); }
static inline void vstore(char *dst, vec v) { vst1q_u8((uint8_t *)dst, v); }

/* 4 x 4 words: pairs of words, then pairs of pairs. */
static inline void transpose_square_4(char *dst, const char *src, int64_t pitch, int64_t stride) {
  uint32x4_t a = vreinterpretq_u32_u8(vload(src)), b = vreinterpretq_u32_u8(vload(src + stride));
  uint32x4_t c = vreinterpretq_u32_u8(vload(src + 2 * stride)), d = vreinterpretq_u32_u8(vload(src + 3 * stride));
  uint64x2_t ab0 = vreinterpretq_u64_u32(vzip1q_u32(a, b)), ab2 = vreinterpretq_u64_u32(vzip2q_u32(a, b));
  uint64x2_t cd0 = vreinterpretq_u64_u32(vzip1q_u32(c, d)), cd2 = vreinterpretq_u64_u32(vzip2q_u32(c, d));
  vstore(dst, vreinterpretq_u8_u64(vzip1q_u64(ab0, cd0)));
  vstore(dst + pitch, vreinterpretq_u8_u64(vzip2q_u64(ab0, cd0)));
  vstore(dst + 2 * pitch, vreinterpretq_u8_u64(vzip1q_u64(ab2, cd2)));
  vstore(dst + 3 * pitch, vreinterpretq_u8_u64(vzip2q_u64(ab2, cd2)));
}
#define SIDE_4  4
#define MICRO_4 transpose_square_4
#include "device/cpu/copy/kernels_body.h"

static const rs_kernels kernels = KERNELS(RESHARD_ISA_NEON);
const rs_kernels *const rs_kernels_neon = &kernels;
#else
const rs_kernels *const rs_kernels_neon = NULL;
#endif
