/* Box copies of long rows that are aligned to 16 bytes on both sides.
 *
 * Many small blocks share a tile: each has one batch of RS_BOX_BULK_LOADS loads a thread, 4 KiB in all, and ends with
 * its stores. Blocks begin in the order of their numbers, so at any time all SMs together are within a few MB of either
 * side, which memory likes: on an H200 this takes 1.03 times as long as a memcpy. Blocks with 16 to 32 KiB of the same
 * tiles take 1.04 to 1.10, those that go on to another tile more. So does the bulk copy engine (cp.async.bulk) with
 * stages in shared memory: 1.08 to 1.12, and 1.04 where a block has 4 KiB and ends. */
#include "kernels/box_device.cuh"

using namespace rs_box;

namespace {

constexpr uint32_t PART = RS_BOX_BULK_THREADS * RS_BOX_BULK_LOADS; /* items of 16 bytes that a block copies */

/* A tile: n items, so many in a row, over one loop. */
struct long_rows {
  const char *src;
  char *dst;
  int64_t src_step, dst_step;
  uint32_t n, items, magic;
};

__device__ __forceinline__ long_rows find_rows(const rs_box_batch &batch, uint32_t t) {
  uint32_t k;
  const rs_box_tile tile = find_tile(batch, t, &k);
  if (tile.shape == RS_BOX_CONTIGUOUS)
    return {tile.src, tile.dst, 0, 0, tile.count / 16, 0, 1}; /* any item divided by 2^32 is in row 0 */
  const rs_box_shape shape = load_shape(batch.part[k].shapes + tile.shape);
  return {tile.src, tile.dst, shape.outer_src, shape.outer_dst, tile.count * shape.items, shape.items, shape.magic};
}

__device__ __forceinline__ void copy_part(const long_rows &rows, uint32_t first, const uint32_t *closed) {
  uint4 v[RS_BOX_BULK_LOADS] = {};
  char *to[RS_BOX_BULK_LOADS] = {};
#pragma unroll
  for (uint32_t u = 0; u < RS_BOX_BULK_LOADS; u++) {
    const uint32_t i = first + u * RS_BOX_BULK_THREADS;
    if (i < rows.n) {
      const uint32_t r = rs_box_divide(i, rows.magic), column = i - r * rows.items;
      v[u] = load<uint4>(rows.src + r * rows.src_step + column * 16);
      to[u] = rows.dst + r * rows.dst_step + column * 16;
    }
  }
  if (is_closed(closed))
    return;
#pragma unroll
  for (uint32_t u = 0; u < RS_BOX_BULK_LOADS; u++)
    if (first + u * RS_BOX_BULK_THREADS < rows.n)
      store(to[u], v[u]);
}

/* parts: log2 of the blocks that share a tile. */
__global__ static void __launch_bounds__(RS_BOX_BULK_THREADS, RS_BOX_BULK_BLOCKS)
    copy_bulk(RS_GRID_CONSTANT(rs_box_batch) batch, uint32_t parts) {
  if (is_closed(batch.closed))
    return;
  const uint64_t n = static_cast<uint64_t>(batch.tiles) << parts;
  for (uint64_t i = blockIdx.x; i < n; i += gridDim.x) {
    const uint32_t part = static_cast<uint32_t>(i) & ((1u << parts) - 1);
    copy_part(find_rows(batch, static_cast<uint32_t>(i >> parts)), part * PART + threadIdx.x, batch.closed_late);
  }
}

} // namespace

extern "C" int rs_box_bulk_load(void) { return rs_launch_load(copy_bulk); }

extern "C" int rs_box_bulk_launch(const rs_box_batch *batch, uint32_t most, void *stream) {
  uint32_t largest = 0, parts = 0;
  for (uint32_t k = 0; k < batch->nparts; k++)
    largest = max(largest, batch->part[k].largest);
  while ((16 * PART << parts) < largest)
    parts++;
  const uint64_t blocks = min(static_cast<uint64_t>(batch->tiles) << parts, uint64_t{most > 0 ? most : INT32_MAX});
  return rs_launch(copy_bulk, dim3(static_cast<uint32_t>(blocks)), dim3(RS_BOX_BULK_THREADS), 0, stream, *batch, parts);
}
