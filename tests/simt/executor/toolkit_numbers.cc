#include "toolkit_numbers.h"

#include <reshard/dtype.h>

#ifdef RS_HAVE_TOOLKIT
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstring>

template <typename To, typename From> static To as(From from) {
  static_assert(sizeof(To) == sizeof(From), "equal sizes");
  To to;
  std::memcpy(static_cast<void *>(&to), &from, sizeof to);
  return to;
}

static bool widen(int32_t from, uint64_t bits, double *x) {
  switch (from) {
  case RESHARD_F8_E4M3:
  case RESHARD_F8_E5M2: {
    __half_raw half =
        __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(bits), from == RESHARD_F8_E4M3 ? __NV_E4M3 : __NV_E5M2);
    *x = __half2float(__half(half));
    return true;
  }
  case RESHARD_F16: *x = __half2float(as<__half>(static_cast<uint16_t>(bits))); return true;
  case RESHARD_BF16: *x = __bfloat162float(as<__nv_bfloat16>(static_cast<uint16_t>(bits))); return true;
  case RESHARD_F32: *x = as<float>(static_cast<uint32_t>(bits)); return true;
  case RESHARD_F64: *x = as<double>(bits); return true;
  default: return false;
  }
}

bool toolkit_convert(int32_t from, int32_t to, uint64_t bits, uint64_t *out) {
  double x;
  if (!widen(from, bits, &x))
    return false;
  switch (to) {
  case RESHARD_F8_E4M3:
  case RESHARD_F8_E5M2:
    *out = __nv_cvt_double_to_fp8(x, to == RESHARD_F8_E4M3 ? __NV_SATFINITE : __NV_NOSAT,
                                  to == RESHARD_F8_E4M3 ? __NV_E4M3 : __NV_E5M2);
    return true;
  case RESHARD_F16:
    *out = as<uint16_t>(from == RESHARD_F64 ? __double2half(x) : __float2half_rn(static_cast<float>(x)));
    return true;
  case RESHARD_BF16:
    *out = as<uint16_t>(from == RESHARD_F64 ? __double2bfloat16(x) : __float2bfloat16_rn(static_cast<float>(x)));
    return true;
  case RESHARD_F32: *out = as<uint32_t>(static_cast<float>(x)); return true;
  case RESHARD_F64: *out = as<uint64_t>(x); return true;
  default: return false;
  }
}
#else
bool toolkit_convert(int32_t, int32_t, uint64_t, uint64_t *) { return false; }
#endif
