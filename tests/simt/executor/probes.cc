#include "probes.h"

#include "kernels/launch.h"

namespace {

__global__ void coordinates(uint64_t *out) {
  uint64_t block = blockIdx.x + gridDim.x * (blockIdx.y + static_cast<uint64_t>(gridDim.y) * blockIdx.z);
  uint64_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[block * (blockDim.x * blockDim.y * blockDim.z) + thread] =
      blockIdx.x | blockIdx.y << 8 | blockIdx.z << 16 | static_cast<uint64_t>(threadIdx.x) << 32 |
      static_cast<uint64_t>(threadIdx.y) << 44 | static_cast<uint64_t>(threadIdx.z) << 54;
}

template <bool Ordered> __global__ void transpose(const float *in, float *out, int n) {
  RS_SHARED(float, tile, [32][33]);
  int x = static_cast<int>(blockIdx.x * 32 + threadIdx.x), y = static_cast<int>(blockIdx.y * 32 + threadIdx.y);
  for (int j = 0; j < 32; j += 8)
    if (x < n && y + j < n)
      tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * n + x];
  if (Ordered)
    __syncthreads();
  x = static_cast<int>(blockIdx.y * 32 + threadIdx.x), y = static_cast<int>(blockIdx.x * 32 + threadIdx.y);
  for (int j = 0; j < 32; j += 8)
    if (x < n && y + j < n)
      out[(y + j) * n + x] = tile[threadIdx.x][threadIdx.y + j];
}

__global__ void sum(const uint32_t *in, uint32_t *out) {
  RS_SHARED(uint32_t, part, [32]);
  uint32_t x = in[blockIdx.x * blockDim.x + threadIdx.x];
  int odd = __syncthreads_count(x & 1), any = __syncthreads_or(x == 77), all = __syncthreads_and(x < 1000);
  for (int step = 16; step > 0; step /= 2)
    x += __shfl_xor_sync(0xffffffffu, x, step);
  if (threadIdx.x % 32 == 0)
    part[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x == 0) {
    x = 0;
    for (unsigned i = 0; i < (blockDim.x + 31) / 32; i++)
      x += part[i];
    out[blockIdx.x] = x + static_cast<uint32_t>(odd) * 1000000 + (any ? 100000000u : 0) + (all ? 200000000u : 0);
  }
}

__global__ void dynamic(size_t at, unsigned char *out) {
  RS_SHARED_DYNAMIC(unsigned char, bytes);
  *out = bytes[at];
}

__global__ void warp(uint32_t *out) {
  uint32_t lane = threadIdx.x, x = 100 + lane;
  out[lane] = __shfl_sync(0xffffffffu, x, 5);
  out[32 + lane] = __shfl_up_sync(0xffffffffu, x, 3);
  out[64 + lane] = __shfl_down_sync(0xffffffffu, x, 3, 8);
  out[96 + lane] = __shfl_xor_sync(0xffffffffu, x, 1);
  out[128 + lane] = __ballot_sync(0xffffffffu, lane % 3 == 0);
  out[160 + lane] = static_cast<uint32_t>(__any_sync(0xffffffffu, lane == 9)) * 2 +
                    static_cast<uint32_t>(__all_sync(0xffffffffu, lane == 9));
  uint32_t half = lane < 16 ? 0x0000ffffu : 0xffff0000u; // both halves, each for itself
  out[192 + lane] = __shfl_sync(half, x, lane < 16 ? 2 : 30);
  __syncwarp();
}

__global__ void wrong(int mistake, uint32_t *memory) {
  uint32_t i = threadIdx.x;
  switch (mistake) {
  case PROBE_RETURN:
    if (i < 3)
      return;
    __syncthreads();
    break;
  case PROBE_OTHER_BARRIER:
    if (i < 3)
      __syncthreads();
    else
      __syncthreads();
    break;
  case PROBE_WARP_MASK: __syncwarp(i == 4 ? 1u : 0xffffffefu); break;
  case PROBE_WARP_MISSING:
    if (i != 4)
      __syncwarp();
    else
      __syncthreads();
    break;
  case PROBE_WARP_OVERLAP: __syncwarp(i < 16 ? 0x0001ffffu : 0xffff0000u); break;
  case PROBE_MISALIGNED: memory[i] = __ldg(reinterpret_cast<const uint4 *>(memory + 1)).x; break;
  case PROBE_MISALIGNED_PLAIN: *reinterpret_cast<uint2 *>(memory + 1 + 2 * i) = make_uint2(i, i); break;
  case PROBE_SHARED_SIZE: {
    RS_SHARED(uint32_t, some, [8 << 10]);
    RS_SHARED(uint32_t, more, [8 << 10]);
    memory[i] = some[i] + more[i];
    break;
  }
  case PROBE_MBARRIER:
  case PROBE_UNFENCED:
  case PROBE_BULK_STORE: {
    RS_SHARED(uint4, stage, [64]);
    RS_SHARED(uint64_t, barrier, [1]);
    if (mistake == PROBE_BULK_STORE) {
      if (i == 0) {
        stage[0] = make_uint4(1, 2, 3, 4);
        simt::bulk_store(memory, stage, 16);
        simt::bulk_commit();
      }
      break;
    }
    if (i == 0) {
      simt::mbarrier_init(barrier, 1);
      if (mistake != PROBE_UNFENCED)
        simt::proxy_fence();
      simt::mbarrier_arrive_expect(barrier, mistake == PROBE_MBARRIER ? 64 : 32);
      simt::bulk_load(stage, memory, 32, barrier);
    }
    __syncthreads();
    simt::mbarrier_wait(barrier, 0);
    break;
  }
  }
  memory[i] = 1;
}

__global__ void async(const unsigned char *in, unsigned char *out, int wait) {
  RS_SHARED(uint4, stage, [16]);
  unsigned i = threadIdx.x; // of 16
  simt::async_copy(&stage[i], in + blockIdx.x * 256 + i * 16, 16);
  simt::async_commit();
  if (wait)
    simt::async_wait(0);
  __syncthreads();
  reinterpret_cast<uint4 *>(out + blockIdx.x * 256)[i] = stage[i ^ 1];
}

/* Two rounds over one barrier: from in to shared memory, and by a bulk store to out. */
__global__ void bulk(const unsigned char *in, unsigned char *out, int wait) {
  RS_SHARED(uint4, stage, [16]);
  RS_SHARED(uint64_t, barrier, [1]);
  unsigned i = threadIdx.x;
  if (i == 0) {
    simt::mbarrier_init(barrier, 1);
    simt::proxy_fence();
  }
  __syncthreads();
  for (unsigned round = 0; round < 2; round++) {
    size_t at = blockIdx.x * 256 + round * 128;
    if (i == 0) {
      simt::mbarrier_arrive_expect(barrier, 128);
      simt::bulk_load(&stage[8 * round], in + at, 128, barrier);
    }
    if (wait)
      simt::mbarrier_wait(barrier, round & 1);
    __syncthreads();
    if (i == 0) {
      simt::bulk_store(out + at, &stage[8 * round], 128);
      simt::bulk_commit();
      simt::bulk_wait_read(0);
    }
  }
}

__global__ void atomics(const uint64_t *in, unsigned n, unsigned long long *least, uint32_t *count) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n)
    return;
  atomicMin(least, static_cast<unsigned long long>(in[i]));
  if (in[i] % 2 == 0)
    atomicAdd(count, 1u);
}

} // namespace

int probe_coordinates(uint64_t *out, const unsigned g[3], const unsigned b[3]) {
  return rs_launch(coordinates, dim3(g[0], g[1], g[2]), dim3(b[0], b[1], b[2]), 0, nullptr, out);
}
int probe_transpose(const float *in, float *out, int n) {
  unsigned tiles = static_cast<unsigned>(n + 31) / 32;
  return rs_launch(transpose<true>, dim3(tiles, tiles), dim3(32, 8), 0, nullptr, in, out, n);
}
int probe_transpose_unordered(const float *in, float *out, int n) {
  unsigned tiles = static_cast<unsigned>(n + 31) / 32;
  return rs_launch(transpose<false>, dim3(tiles, tiles), dim3(32, 8), 0, nullptr, in, out, n);
}
int probe_sum(const uint32_t *in, uint32_t *out, unsigned blocks, unsigned threads) {
  return rs_launch(sum, dim3(blocks), dim3(threads), 0, nullptr, in, out);
}
int probe_dynamic(size_t bytes, size_t at, unsigned char *out, int ask_first) {
  if (ask_first) {
    int error = rs_launch_shared(dynamic, bytes);
    if (error != 0)
      return error;
  }
  return rs_launch(dynamic, dim3(1), dim3(1), bytes, nullptr, at, out);
}
int probe_warp(uint32_t *out) { return rs_launch(warp, dim3(1), dim3(32), 0, nullptr, out); }
int probe_wrong(enum probe_mistake mistake, uint32_t *memory) {
  return rs_launch(wrong, dim3(2), dim3(32), 0, nullptr, static_cast<int>(mistake), memory);
}
int probe_async(const unsigned char *in, unsigned char *out, unsigned blocks, int wait) {
  return rs_launch(async, dim3(blocks), dim3(16), 0, nullptr, in, out, wait);
}
int probe_bulk(const unsigned char *in, unsigned char *out, unsigned blocks, int wait) {
  return rs_launch(bulk, dim3(blocks), dim3(16), 0, nullptr, in, out, wait);
}
int probe_atomics(const uint64_t *in, unsigned n, uint64_t *least, uint32_t *count) {
  return rs_launch(atomics, dim3((n + 63) / 64), dim3(64), 0, nullptr, in, n,
                   reinterpret_cast<unsigned long long *>(least), count);
}
