/* Selection along one dim, at the speed of a copy.
 *
 * The bytes are cut in units of the widest access that addresses, strides and run are all aligned to, 16 bytes down
 * to 1. All units make one long list in the order of the destination: its loops are sorted by stride, the dim among
 * them, so that neighbouring threads write neighbouring units whatever dim is selected along. A unit's place is found
 * by dividing its number by the loops' counts (as multiplications). On the way the dim's coordinate is replaced by the
 * index there, which a warp mostly reads from one line.
 *
 * A checked selection leaves the first bad position by an atomic minimum: the least position wins whatever the order of
 * the blocks. -1 is the largest unsigned number, so it says "none" without more. The value there is filled in by a
 * launch of its own. */
#include "kernels/index_select.h"

#include "kernels/divide.cuh"

namespace {

enum { THREADS = 256, BLOCKS = 5 /* on one SM */, UNITS = 4 /* of a thread */, LOOPS = RESHARD_MAX_DIMS + 1 };
#ifndef RS_SELECT_MOST /* tests compile this file with less, too */
#define RS_SELECT_MOST INT32_MAX
#endif
constexpr int64_t UNITS_MOST = RS_SELECT_MOST; /* of a launch: rs_divider takes no more */

struct select_loop {
  int64_t src, dst;
  rs_divider n;
};
struct selection {
  const char *src, *index;
  char *dst;
  int64_t extent, index_stride, src_stride;
  int64_t first; /* position of index, where a selection is cut in several launches */
  uint32_t units;
  int nloops, dim;              /* dim: which loop the selection is along */
  rs_divider run;               /* units of it */
  select_loop loops[LOOPS];     /* innermost first */
  unsigned long long *position; /* of the fault; NULL: unchecked */
};

/* A unit: its place in the destination, and in the source but for its index. */
struct selected_unit {
  const char *from;
  char *to; /* NULL: there is no unit */
  uint32_t along;
};
template <int Bytes> __device__ __forceinline__ selected_unit find(const selection &s, uint32_t i) {
  uint32_t rest;
  uint32_t row = rs_divide(s.run, i, &rest);
  selected_unit at = {s.src + static_cast<int64_t>(rest) * Bytes, s.dst + static_cast<int64_t>(rest) * Bytes, 0};
#pragma unroll 1
  for (int k = 0; k < s.nloops; k++) {
    row = rs_divide(s.loops[k].n, row, &rest);
    if (k == s.dim)
      at.along = rest;
    else
      at.from += rest * s.loops[k].src;
    at.to += rest * s.loops[k].dst;
  }
  return at;
}

/* All indices of a thread are under way before the first is looked at, then all its units before the first store. */
template <int Bytes, typename Index, bool Checked>
__global__ void __launch_bounds__(THREADS, BLOCKS) select(RS_GRID_CONSTANT(selection) s) {
  typedef typename rs_unit<Bytes>::type Unit;
  selected_unit at[UNITS];
  Index index[UNITS];
  Unit values[UNITS];
#pragma unroll
  for (int k = 0; k < UNITS; k++) {
    uint32_t i = (blockIdx.x * UNITS + k) * THREADS + threadIdx.x;
    at[k].to = nullptr;
    if (i < s.units) {
      at[k] = find<Bytes>(s, i);
      index[k] = __ldg(reinterpret_cast<const Index *>(s.index + at[k].along * s.index_stride));
    }
  }
#pragma unroll
  for (int k = 0; k < UNITS; k++) {
    if (at[k].to == nullptr)
      continue;
    if (Checked && (index[k] < 0 || index[k] >= s.extent)) {
      atomicMin(s.position, static_cast<unsigned long long>(s.first + at[k].along));
      at[k].to = nullptr;
      continue;
    }
    values[k] = __ldg(reinterpret_cast<const Unit *>(at[k].from + index[k] * s.src_stride));
  }
#pragma unroll
  for (int k = 0; k < UNITS; k++)
    if (at[k].to != nullptr)
      *reinterpret_cast<Unit *>(at[k].to) = values[k];
}

__global__ void begin_fault(rs_select_fault *fault) {
  fault->position = -1;
  fault->value = 0;
}

template <typename Index> __global__ void end_fault(const char *index, int64_t index_stride, rs_select_fault *fault) {
  if (fault->position >= 0)
    fault->value = *reinterpret_cast<const Index *>(index + fault->position * index_stride);
}

/* --- On the host -------------------------------------------------------------------------------------------------*/

template <int Bytes, typename Index> int launch(const selection &s, void *stream) {
  dim3 grid((s.units + THREADS * UNITS - 1) / (THREADS * UNITS));
  return s.position != nullptr ? rs_launch(select<Bytes, Index, true>, grid, dim3(THREADS), 0, stream, s)
                               : rs_launch(select<Bytes, Index, false>, grid, dim3(THREADS), 0, stream, s);
}

template <typename Index> int launch_units(const selection &s, int bytes, void *stream) {
  switch (bytes) {
  case 16: return launch<16, Index>(s, stream);
  case 8: return launch<8, Index>(s, stream);
  case 4: return launch<4, Index>(s, stream);
  case 2: return launch<2, Index>(s, stream);
  default: return launch<1, Index>(s, stream);
  }
}

/* The job with the dim as one of its loops, sorted: outermost first. */
struct sorted_select {
  const char *src, *index;
  char *dst;
  int64_t run, first;
  int nloops, dim;
  rs_axis loops[LOOPS];
};

int64_t size_of(int64_t stride) { return stride < 0 ? -stride : stride; }

sorted_select sort_select(const rs_select &job) {
  sorted_select p = {};
  p.src = job.src;
  p.index = job.index;
  p.dst = job.dst;
  p.run = job.run;
  for (int i = 0; i <= job.naxes; i++) {
    bool along = i == job.naxes;
    rs_axis loop = along ? rs_axis{job.count, 0, job.dst_stride} : job.axes[i];
    if (loop.n == 1 && !along)
      continue;
    int at = p.nloops++;
    for (; at > 0 && size_of(p.loops[at - 1].dst) < size_of(loop.dst); at--)
      p.loops[at] = p.loops[at - 1];
    p.loops[at] = loop;
    p.dim = at; // of the last one, the dim
  }
  return p;
}

/* Bytes that every access is aligned to. */
int unit_bytes(const rs_select &job, const sorted_select &p) {
  uint64_t all = reinterpret_cast<uintptr_t>(p.src) | reinterpret_cast<uintptr_t>(p.dst) |
                 static_cast<uint64_t>(p.run) | static_cast<uint64_t>(job.src_stride) | 16;
  for (int i = 0; i < p.nloops; i++)
    all |= static_cast<uint64_t>(p.loops[i].src) | static_cast<uint64_t>(p.loops[i].dst);
  return 1 << __builtin_ctzll(all);
}

/* Halves a selection that is too much for one launch: its outermost loop, or a run without loops. */
void halve(const rs_select &job, int bytes, sorted_select *first, sorted_select *second) {
  int k = 0;
  while (k < first->nloops && first->loops[k].n == 1)
    k++;
  if (k == first->nloops) {
    first->run = first->run / bytes / 2 * bytes;
    second->run -= first->run;
    second->src += first->run;
    second->dst += first->run;
    return;
  }
  rs_axis *half = &first->loops[k];
  half->n /= 2;
  second->loops[k].n -= half->n;
  second->dst += half->n * half->dst;
  second->src += half->n * half->src;
  if (k == first->dim) {
    second->index += half->n * job.index_stride;
    second->first += half->n;
  }
}

/* most: units of a launch. */
int launch_sorted(const rs_select &job, const sorted_select &p, int bytes, int64_t most, rs_select_fault *fault,
                  void *stream) {
  int64_t units = p.run / bytes;
  bool fits = true;
  for (int i = 0; i < p.nloops && fits; i++)
    fits = !__builtin_mul_overflow(units, p.loops[i].n, &units);
  if (!fits || units > most) {
    sorted_select first = p, second = p;
    halve(job, bytes, &first, &second);
    int error = launch_sorted(job, first, bytes, most, fault, stream);
    return error != cudaSuccess ? error : launch_sorted(job, second, bytes, most, fault, stream);
  }
  selection s = {};
  s.src = p.src;
  s.index = p.index;
  s.dst = p.dst;
  s.extent = job.extent;
  s.index_stride = job.index_stride;
  s.src_stride = job.src_stride;
  s.first = p.first;
  s.units = static_cast<uint32_t>(units);
  s.nloops = p.nloops;
  s.dim = p.nloops - 1 - p.dim;
  s.run = rs_divider_make(static_cast<uint32_t>(p.run / bytes));
  for (int i = 0; i < p.nloops; i++) {
    const rs_axis &from = p.loops[p.nloops - 1 - i];
    s.loops[i] = select_loop{from.src, from.dst, rs_divider_make(static_cast<uint32_t>(from.n))};
  }
  s.position = fault == nullptr ? nullptr : reinterpret_cast<unsigned long long *>(&fault->position);
  return job.index_bytes == 4 ? launch_units<int32_t>(s, bytes, stream) : launch_units<int64_t>(s, bytes, stream);
}

} // namespace

extern "C" int rs_index_select_launch(const rs_select *job, rs_select_fault *fault, uint32_t most, void *stream) {
  if ((job->index_bytes != 4 && job->index_bytes != 8) || job->naxes >= LOOPS)
    return cudaErrorInvalidValue;
  int error = fault == nullptr ? cudaSuccess : rs_launch(begin_fault, dim3(1), dim3(1), 0, stream, fault);
  if (error != cudaSuccess || job->count == 0 || job->run == 0)
    return error;
  for (int i = 0; i < job->naxes; i++)
    if (job->axes[i].n == 0)
      return cudaSuccess;
  sorted_select p = sort_select(*job);
  int64_t units = int64_t{most} * THREADS * UNITS;
  units = most == 0 || units > UNITS_MOST ? UNITS_MOST : units;
  error = launch_sorted(*job, p, unit_bytes(*job, p), units, fault, stream);
  if (error != cudaSuccess || fault == nullptr)
    return error;
  return job->index_bytes == 4
             ? rs_launch(end_fault<int32_t>, dim3(1), dim3(1), 0, stream, job->index, job->index_stride, fault)
             : rs_launch(end_fault<int64_t>, dim3(1), dim3(1), 0, stream, job->index, job->index_stride, fault);
}
