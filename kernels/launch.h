/* Macros and types in which kernels of this library are written. nvcc compiles the same file for a GPU, and a plain
 * C++ compiler for the tests. There a header of that name in tests/simt/include stands in for the toolkit's.
 *
 * Three things of CUDA cannot be written as C++ and have a seam here: launches, shared memory, and by-value parameters
 * that are too large to be copied by each thread. Launchers get everything else from the host: they ask the runtime for
 * nothing. Inline PTX stands in small helpers, under __CUDA_ARCH__, beside C that does the same. */
#ifndef RS_KERNELS_LAUNCH_H
#define RS_KERNELS_LAUNCH_H

#include <cuda_runtime.h>

#include <stddef.h>
#include <stdint.h>

/* Most bytes that the parameters of one kernel may have together. */
#if defined(CUDART_VERSION) && CUDART_VERSION < 12010
#define RS_PARAMETER_BYTES 4096
#else
#define RS_PARAMETER_BYTES 32764
#endif

#ifdef __CUDACC__

/* A parameter of a kernel that all threads read where it is. */
#define RS_GRID_CONSTANT(type) const __grid_constant__ type
/* An array in shared memory: RS_SHARED(float, tile, [32][33]). */
#define RS_SHARED(type, name, dims) __shared__ type name dims
/* The launch's dynamic shared memory as `type *name`, aligned to 128 bytes. */
#define RS_SHARED_DYNAMIC(type, name) \
  extern __shared__ __align__(128) unsigned char rs_shared_dynamic_[]; \
  type *name = reinterpret_cast<type *>(rs_shared_dynamic_)

/* Launches; returns what the launch itself returned, not an earlier error. An empty grid is nothing to do. */
template <typename... P, typename... A>
static int rs_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, void *stream, A &&...arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0)
    return cudaSuccess;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = static_cast<cudaStream_t>(stream);
  return cudaLaunchKernelEx(&config, kernel, static_cast<A &&>(arguments)...);
}

/* Has the kernel's code on the current device: else its first launch brings it there, which may allocate, wait for the
 * device, and be refused while a stream is captured. */
template <typename... P> static int rs_launch_load(void (*kernel)(P...)) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(kernel));
}

/* Lets launches of this kernel on the current device have so many bytes of dynamic shared memory. */
template <typename... P> static int rs_launch_shared(void (*kernel)(P...), size_t bytes) {
  return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

#endif
/* The type of an access of that many bytes. */
template <int Bytes> struct rs_unit;
template <> struct rs_unit<1> { using type = uint8_t; };
template <> struct rs_unit<2> { using type = uint16_t; };
template <> struct rs_unit<4> { using type = uint32_t; };
template <> struct rs_unit<8> { using type = uint2; };
template <> struct rs_unit<16> { using type = uint4; };

#endif
