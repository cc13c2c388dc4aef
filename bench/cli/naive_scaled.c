#include "bench/cli/naive_scaled.h"

#include "bench/cli/naive_cast.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float number) {
  uint32_t bits;
  memcpy(&bits, &number, sizeof bits);
  return bits;
}
static float float_of(uint32_t bits) {
  float number;
  memcpy(&number, &bits, sizeof number);
  return number;
}

float naive_wide(const void *numbers, reshard_dtype dtype, int64_t i) {
  uint32_t bits = 0;
  size_t width = reshard_dtype_size(dtype);
  memcpy(&bits, (const char *)numbers + (size_t)i * width, width);
  return float_of(dtype == RESHARD_F32 ? bits : (uint32_t)naive_cast(dtype, RESHARD_F32, bits));
}

float naive_stored_scale(const void *scales, reshard_dtype dtype, int64_t i) {
  return dtype == RESHARD_F8_E8M0 ? ldexpf(1, (int)((const uint8_t *)scales)[i] - 127)
                                  : naive_wide(scales, RESHARD_F32, i);
}

float naive_most(float most, float number) {
  float x = fabsf(number);
  return isnan(most) || isnan(x) ? NAN : x > most ? x : most;
}

float naive_scale(float most, reshard_dtype dtype) {
  volatile float scale = (most < 1e-4f ? 1e-4f : most) / 448.0f;
  if (dtype != RESHARD_F8_E8M0)
    return scale;
  int exponent = isnan(scale) || isinf(scale) ? 127 : ilogbf(scale);
  if (!isnan(scale) && !isinf(scale) && ldexpf(1, exponent) < scale)
    exponent++;
  return ldexpf(1, exponent > 127 ? 127 : exponent);
}

uint32_t naive_scale_bits(float scale, reshard_dtype dtype) {
  return dtype == RESHARD_F8_E8M0 ? (uint32_t)(ilogbf(scale) + 127) : bits_of(scale);
}

uint32_t naive_scaled(float number, float scale) {
  volatile float inverse = 1.0f / scale, product = number * inverse;
  return (uint32_t)naive_cast(RESHARD_F32, RESHARD_F8_E4M3, bits_of(product));
}

uint32_t naive_unscaled(uint32_t code, float scale, reshard_dtype dtype) {
  volatile float product = float_of((uint32_t)naive_cast(RESHARD_F8_E4M3, RESHARD_F32, code)) * scale;
  return dtype == RESHARD_F32 ? bits_of(product) : (uint32_t)naive_cast(RESHARD_F32, dtype, bits_of(product));
}
