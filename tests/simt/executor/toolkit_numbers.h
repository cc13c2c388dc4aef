/* Conversions by the host functions of the CUDA toolkit's own headers, which do what the hardware does. */
#ifndef SIMT_TOOLKIT_NUMBERS_H
#define SIMT_TOOLKIT_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* false: this build has no toolkit, or its headers no such conversion. Numbers only, no NaN. */
bool toolkit_convert(int32_t from, int32_t to, uint64_t bits, uint64_t *out);

#ifdef __cplusplus
}
#endif
#endif
