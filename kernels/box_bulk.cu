/* Box copies by the bulk copy engine of sm_90 and later: long rows, aligned to 16 bytes on both sides.
 *
 * The engine moves a row piece between memory and shared memory for one instruction, and holds no register while it is
 * under way. A block is one warp, and there are as many blocks as fit. All its lanes look up tiles, 32 at a time; then
 * lane 0 gives the engine one stage of bytes after another. It waits until the store that used the stage's room has
 * read it, and announces and starts the loads. Then it starts the stores of the stage that was loaded
 * RS_BOX_STAGES_AHEAD before, when its barrier says that all bytes are there. So some stages are always being loaded
 * and others stored, and no thread ever touches the bytes. Since one thread issues, waits and issues again, the stages
 * need no barrier between threads.
 *
 * Code for older GPUs, which the host does not choose (rs_box_bulk_arch), has the warp copy the tiles itself. */
#include "kernels/box_device.cuh"

using namespace rs_box;

namespace {

#ifndef RS_BOX_ENGINE /* tests compile this file without it, too */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define RS_BOX_ENGINE 1
#else
#define RS_BOX_ENGINE 0
#endif
#endif

/* --- The engine --- */

#if RS_BOX_ENGINE && defined(__CUDACC__)
__device__ __forceinline__ uint32_t shared_address(const void *p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
#endif

#if RS_BOX_ENGINE
/* A barrier whose phase ends when one thread has arrived and the bytes that it announced have come. */
__device__ __forceinline__ void barrier_init(uint64_t *barrier) {
#ifdef __CUDACC__
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
#else
  simt::mbarrier_init(barrier, 1);
#endif
}
/* The engine sees barriers that this thread has made. */
__device__ __forceinline__ void barriers_ready() {
#ifdef __CUDACC__
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  simt::proxy_fence();
#endif
}
__device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes) {
#ifdef __CUDACC__
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
#else
  simt::mbarrier_arrive_expect(barrier, bytes);
#endif
}
__device__ __forceinline__ void barrier_wait(uint64_t *barrier, uint32_t parity) {
#ifdef __CUDACC__
  uint32_t done = 0;
  while (done == 0)
    asm volatile("{\n\t"
                 ".reg .pred done;\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n\t"
                 "selp.u32 %0, 1, 0, done;\n\t"
                 "}"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
#else
  simt::mbarrier_wait(barrier, parity);
#endif
}
__device__ __forceinline__ void load_bulk(void *shared, const char *src, uint32_t bytes, uint64_t *barrier) {
#ifdef __CUDACC__
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(__cvta_generic_to_global(src)), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
#else
  simt::bulk_load(shared, src, bytes, barrier);
#endif
}
__device__ __forceinline__ void store_bulk(char *dst, const void *shared, uint32_t bytes) {
#ifdef __CUDACC__
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(dst)),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
#else
  simt::bulk_store(dst, shared, bytes);
#endif
}
/* Stores since the last call are a group. */
__device__ __forceinline__ void commit_stores() {
#ifdef __CUDACC__
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#else
  simt::bulk_commit();
#endif
}
/* Waits until all groups but the last `Left` have read the bytes that they store. */
template <int Left> __device__ __forceinline__ void wait_read() {
#ifdef __CUDACC__
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Left) : "memory");
#else
  simt::bulk_wait_read(Left);
#endif
}
__device__ __forceinline__ void wait_stored() {
#ifdef __CUDACC__
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#else
  simt::bulk_wait(0);
#endif
}

/* --- Stages --- */

/* Rows that fill a stage at most; bytes of a row and of the stage are multiples of 16. */
struct stage {
  char *dst;
  int64_t dst_step;
  uint32_t rows, run;
};

struct room {
  alignas(128) uint4 bytes[RS_BOX_STAGES][RS_BOX_STAGE / 16]; /* by lines; the engine needs 16 */
  uint64_t barrier[RS_BOX_STAGES];
  stage pending[RS_BOX_STAGES]; /* being loaded, to be stored */
  const uint32_t *closed_late;  /* rs_box_batch.closed_late, and whether it is: known from the first stage on */
  uint32_t closed;
};
static_assert(RS_BOX_STAGES_AHEAD < RS_BOX_STAGES, "stages are stored while others are loaded");

__device__ __forceinline__ void store_stage(room &r, uint32_t number) {
  const uint32_t slot = number % RS_BOX_STAGES;
  const stage s = r.pending[slot];
  const uint32_t closed = number == 0 ? load_closed(r.closed_late) : r.closed; /* comes beside the stage */
  barrier_wait(&r.barrier[slot], number / RS_BOX_STAGES % 2);
  r.closed = closed;
  for (uint32_t i = 0; closed == 0 && i < s.rows; i++)
    store_bulk(s.dst + i * s.dst_step, reinterpret_cast<const char *>(r.bytes[slot]) + i * s.run, s.run);
  commit_stores();
}

__device__ __forceinline__ void load_stage(room &r, uint32_t number, const char *src, int64_t src_step,
                                           const stage &s) {
  const uint32_t slot = number % RS_BOX_STAGES;
  /* The stage that had this room is in the group before the last STAGES - AHEAD - 1 ones. */
  wait_read<RS_BOX_STAGES - RS_BOX_STAGES_AHEAD - 1>();
  r.pending[slot] = s;
  barrier_expect(&r.barrier[slot], s.rows * s.run);
  for (uint32_t i = 0; i < s.rows; i++)
    load_bulk(reinterpret_cast<char *>(r.bytes[slot]) + i * s.run, src + i * src_step, s.run, &r.barrier[slot]);
  if (number >= RS_BOX_STAGES_AHEAD)
    store_stage(r, number - RS_BOX_STAGES_AHEAD);
}

/* A tile as each lane computes it. */
struct work {
  const char *src;
  char *dst;
  int64_t src_step, dst_step;
  uint32_t rows, run;
};

__device__ __forceinline__ work find_work(const rs_box_batch &batch, uint32_t t) {
  uint32_t k;
  const rs_box_tile tile = find_tile(batch, t, &k);
  if (tile.shape == RS_BOX_CONTIGUOUS)
    return {tile.src, tile.dst, 0, 0, 1, tile.count};
  const rs_box_shape &shape = batch.part[k].shapes[tile.shape];
  return {tile.src, tile.dst, shape.outer_src, shape.outer_dst, tile.count, shape.run};
}

/* By lane 0; returns the number of the next stage. */
__device__ __forceinline__ uint32_t move_tile(room &r, const work &w, uint32_t number) {
  if (w.rows == 1) {
    for (uint32_t at = 0; at < w.run; at += RS_BOX_STAGE)
      load_stage(r, number++, w.src + at, 0, {w.dst + at, 0, 1, min(w.run - at, uint32_t{RS_BOX_STAGE})});
    return number;
  }
  const uint32_t rows = RS_BOX_STAGE / w.run;
  for (uint32_t at = 0; at < w.rows; at += rows)
    load_stage(r, number++, w.src + at * w.src_step, w.src_step,
               {w.dst + at * w.dst_step, w.dst_step, min(w.rows - at, rows), w.run});
  return number;
}
#endif

__global__ static void __launch_bounds__(32) copy_bulk(RS_GRID_CONSTANT(rs_box_batch) batch) {
  if (is_closed(batch.closed))
    return;
#if RS_BOX_ENGINE
  RS_SHARED(room, r, );
  RS_SHARED(work, found, [32]);
  const uint32_t lane = threadIdx.x;
  uint32_t number = 0; /* lane 0: stages so far */
  if (lane == 0) {
    r.closed_late = batch.closed_late;
    r.closed = 0;
    for (int i = 0; i < RS_BOX_STAGES; i++)
      barrier_init(&r.barrier[i]);
    barriers_ready();
  }
  /* Blocks take turns, so that at any time they are at neighbouring tiles. */
  for (uint64_t first = blockIdx.x; first < batch.tiles; first += 32 * gridDim.x) {
    const uint64_t mine = first + lane * gridDim.x;
    if (mine < batch.tiles)
      found[lane] = find_work(batch, static_cast<uint32_t>(mine));
    __syncthreads();
    for (uint32_t i = 0; lane == 0 && i < 32 && first + i * gridDim.x < batch.tiles; i++)
      number = move_tile(r, found[i], number);
    __syncthreads();
  }
  if (lane == 0) {
    for (uint32_t i = number < RS_BOX_STAGES_AHEAD ? 0 : number - RS_BOX_STAGES_AHEAD; i < number; i++)
      store_stage(r, i);
    wait_stored();
  }
#else
  if (is_closed(batch.closed_late)) /* is known before anything is read, too */
    return;
  for (uint64_t t = blockIdx.x; t < batch.tiles; t += gridDim.x) {
    uint32_t k;
    const rs_box_tile tile = find_tile(batch, static_cast<uint32_t>(t), &k);
    const bool contiguous = tile.shape == RS_BOX_CONTIGUOUS;
    const rs_box_shape *shape = contiguous ? nullptr : &batch.part[k].shapes[tile.shape];
    const uint32_t run = contiguous ? tile.count : shape->run;
    for (uint32_t row = 0; row < (contiguous ? 1 : tile.count); row++)
      for (uint32_t at = threadIdx.x * 16; at < run; at += 32 * 16)
        store<false>(tile.dst + (contiguous ? 0 : row * shape->outer_dst) + at,
                     load<false, uint4>(tile.src + (contiguous ? 0 : row * shape->outer_src) + at));
  }
#endif
}

} // namespace

extern "C" int rs_box_bulk_load(void) { return rs_box_bulk_arch(nullptr); }

/* RS_BOX_BULK_BLOCKS with their stages nearly fill an SM. */
extern "C" int rs_box_bulk_arch(int *arch) {
  int error = rs_launch_load(copy_bulk, arch);
  return error != cudaSuccess ? error : rs_launch_prefer_shared(copy_bulk);
}

extern "C" int rs_box_bulk_launch(const rs_box_batch *batch, int sms, uint32_t most, void *stream) {
  uint32_t blocks = min(batch->tiles, static_cast<uint32_t>(sms) * RS_BOX_BULK_BLOCKS);
  if (most > 0)
    blocks = min(blocks, most);
  return rs_launch(copy_bulk, dim3(blocks), dim3(32), 0, stream, *batch);
}
