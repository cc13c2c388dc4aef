/* Stamps and checks go through the layouts' public queries, run by run. They cost about as much as a copy, so that a
 * benchmark of any size can check every byte. */
#define _GNU_SOURCE
#include "bench/bench/data.h"

#include "bench/bench/elements.h"
#include "bench/cli/machine.h"
#include "bench/launch/gpu.h"

#include "device/handle.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGN 256

static reshard_layout layout_of(const workload *w, bool source, int64_t t) {
  return source ? w->tensor[t].src : w->tensor[t].dst;
}

/* Maps memory, by large pages where the system has them: for both sides and the straight copy alike. */
static unsigned char *map_memory(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    cli_exit(EXIT_FAILED, "out of memory: %zu bytes refused", bytes);
  madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

static reshard_dtype dtype_of(const workload *w, bool source, int64_t t) {
  return source ? w->tensor[t].dtype : w->tensor[t].dst_dtype;
}

static int64_t arena_of(const bench_side *side, int64_t local) { return local % side->narenas; }

static bool has_scales(const workload *w, bool source, int64_t t) {
  return w->tensor[t].scales != NULL && dtype_of(w, source, t) == RESHARD_F8_E4M3;
}

/* A rank's buffers as they are placed. */
typedef struct placing {
  bench_side *side;
  bench_arena *arena; /* NULL: the rank is another process's */
  int64_t n, shift, *cap;
} placing;

/* Adds a rank's buffers of a layout. moved: bytes that are read and written for an element. */
static void place_buffers(placing *p, reshard_layout layout, int64_t rank, int64_t width, double moved) {
  bench_side *s = p->side;
  int64_t count = 0;
  CLI_TRY("", reshard_layout_buffer_count(layout, rank, &count));
  if (p->arena != NULL && p->n + count > *p->cap)
    s->offset = cli_realloc(s->offset, *p->cap = 2 * (p->n + count) + 64, sizeof *s->offset);
  for (int64_t b = 0; b < count; b++) {
    int64_t elements = 0;
    CLI_TRY("", reshard_layout_buffer_elements(layout, rank, b, &elements));
    s->bytes += elements * width;
    s->moved += (int64_t)((double)elements * moved / 2);
    if (p->arena == NULL)
      continue;
    s->offset[p->n++] = p->arena->extent + p->shift * width;
    if (__builtin_add_overflow(p->arena->extent, (((elements + p->shift) * width + ALIGN - 1) & -(int64_t)ALIGN),
                               &p->arena->extent) ||
        p->arena->extent > INT64_MAX / 4)
      cli_exit(EXIT_USAGE, "the buffers of all ranks overflow 61 bits of bytes");
  }
}

/* Adds the buffers of a rank to the side's bytes and, where the rank is local (local >= 0), gives them offsets in their
 * arena. */
static void place_rank(const workload *w, bool source, int64_t rank, int64_t local, int64_t shift, bench_side *s,
                       int64_t *cap) {
  placing p = {s, local >= 0 ? &s->arena[arena_of(s, local)] : NULL, local >= 0 ? s->first[local] : 0, shift, cap};
  for (int64_t t = 0; t < w->n; t++) {
    int64_t width = (int64_t)reshard_dtype_size(dtype_of(w, source, t)), scales = workload_scale_bytes(&w->tensor[t]);
    double elements = (double)reshard_layout_elements(w->tensor[t].src);
    double moved = (double)(width + (int64_t)reshard_dtype_size(dtype_of(w, !source, t)));
    place_buffers(&p, layout_of(w, source, t), rank, width, scales > 0 ? moved + (double)scales / elements : moved);
    if (has_scales(w, source, t))
      place_buffers(&p, w->tensor[t].scales, rank, (int64_t)reshard_dtype_size(w->tensor[t].blocks.scales), 0);
  }
  if (p.arena != NULL)
    s->first[local + 1] = p.n;
}

static void alloc_arenas(bench_side *s) {
  for (int64_t p = 0; p < s->narenas; p++) {
    bench_arena *arena = &s->arena[p];
    if (arena->shared != NULL)
      CLI_TRY("", session_alloc(arena->shared, arena->extent + ALIGN, (void **)&arena->host));
    else
      arena->host = map_memory((size_t)arena->extent + ALIGN);
    arena->memory = arena->host;
    if (arena->device != NULL)
      CLI_TRY("", session_alloc(arena->device, s->sets * arena->extent + ALIGN, (void **)&arena->memory));
  }
}

/* Tells whether needed[0] bytes of the source and needed[1] of the destination are at most a process's share of what is
 * available. */
static bool fits(const char *where, const int64_t *needed, int64_t processes, int64_t available, char *why,
                 size_t size) {
  int64_t part = 1;
  if (needed[0] + needed[1] <= available / processes)
    return true;
  while ((needed[0] + needed[1]) / part > available / processes && part < (int64_t)1 << 40)
    part *= 2;
  char a[CLI_BYTES_TEXT], b[CLI_BYTES_TEXT], c[CLI_BYTES_TEXT], d[CLI_BYTES_TEXT], each[48] = "";
  if (processes > 1)
    snprintf(each, sizeof each, " in each of %lld processes", (long long)processes);
  snprintf(why, size,
           "the source buffers of all ranks take %s and the destination buffers %s, together %s%s: %s has %s "
           "available; --scale 1/%lld would fit",
           cli_bytes_text(a, (double)needed[0]), cli_bytes_text(b, (double)needed[1]),
           cli_bytes_text(c, (double)(needed[0] + needed[1])), each, where, cli_bytes_text(d, (double)available),
           (long long)part);
  return false;
}

bool bench_sides_fit(const session *session, const bench_side *src, const bench_side *dst, int64_t sets, char *why,
                     size_t size) {
  int64_t host[2] = {0};
  for (int64_t p = 0; p < src->narenas; p++) {
    const bench_arena *from = &src->arena[p], *to = &dst->arena[p];
    host[0] += from->extent + ALIGN; /* no overflow: an extent is less than a quarter of what fits */
    host[1] += to->extent + ALIGN;
    if (host[0] > INT64_MAX / 4 || host[1] > INT64_MAX / 4)
      cli_exit(EXIT_USAGE, "the buffers of all ranks overflow 61 bits of bytes");
    if (from->device == NULL)
      continue;
    int64_t device[2] = {0}, available = 0;
    char name[32];
    if (__builtin_mul_overflow(sets, from->extent, &device[0]) ||
        __builtin_mul_overflow(sets, to->extent, &device[1]) || device[0] > INT64_MAX / 4 || device[1] > INT64_MAX / 4)
      cli_exit(EXIT_USAGE, "the buffers of all ranks overflow 61 bits of bytes");
    CLI_TRY("", gpu_available(from->device, &available));
    snprintf(name, sizeof name, "cuda:%d", from->device->index);
    if (!fits(name, device, 1, available, why, size))
      return false;
  }
  return fits("this machine", host, session->processes.local_n, machine_available(), why, size);
}

void bench_side_create(const workload *w, const session *session, bool source, int64_t shift, bench_side *s) {
  int64_t locals = session->locals, cap = 0;
  *s = (bench_side){.narenas = session->cuda ? session->ndevices : 1, .locals = locals};
  s->first = cli_alloc(locals + 1, sizeof *s->first);
  s->begin = cli_alloc(locals + 1, sizeof *s->begin);
  s->end = cli_alloc(locals + 1, sizeof *s->end);
  s->arena = cli_alloc(s->narenas, sizeof *s->arena);
  for (int64_t p = 0; session->cuda && p < s->narenas; p++)
    s->arena[p].device = session->devices[p]->device;
  if (!session->cuda && session->ndevices > 0 && session->devices[0]->device->memory->shared)
    s->arena[0].shared = session->devices[0]->device;
  for (int64_t r = 0; r < w->world; r++) {
    int64_t local = r >= session->first && r < session->first + locals ? r - session->first : -1;
    if (local >= 0)
      s->begin[local] = s->arena[arena_of(s, local)].extent;
    place_rank(w, source, r, local, shift, s, &cap);
    if (local >= 0)
      s->end[local] = s->arena[arena_of(s, local)].extent;
  }
}

void bench_side_alloc(bench_side *s, int64_t sets) {
  int64_t n = s->first[s->locals];
  s->sets = sets;
  alloc_arenas(s);
  s->buffer = cli_alloc(sets * n, sizeof *s->buffer);
  s->host = cli_alloc(n, sizeof *s->host);
  for (int64_t l = 0; l < s->locals; l++)
    for (int64_t i = s->first[l]; i < s->first[l + 1]; i++) {
      const bench_arena *arena = &s->arena[arena_of(s, l)];
      s->host[i] = arena->host + s->offset[i];
      for (int64_t k = 0; k < sets; k++)
        s->buffer[k * n + i] = arena->memory + k * arena->extent + s->offset[i];
    }
}

void bench_side_free(bench_side *s) {
  for (int64_t p = 0; p < s->narenas; p++) {
    bench_arena *arena = &s->arena[p];
    if (arena->host == NULL)
      continue;
    if (arena->shared != NULL)
      session_free(arena->shared, arena->host);
    else
      munmap(arena->host, (size_t)arena->extent + ALIGN);
    if (arena->device != NULL)
      session_free(arena->device, arena->memory);
  }
  free(s->arena);
  free(s->buffer);
  free(s->host);
  free(s->offset);
  free(s->first);
  free(s->begin);
  free(s->end);
  *s = (bench_side){0};
}

/* One dim of an array: its runs, and the position of the walk. */
typedef struct walk_dim {
  int64_t count;
  reshard_interval *runs;
  int64_t run, at; /* current run, and global index in it */
} walk_dim;

/* Steps to the next combination of indices of the dims before the last; false after the last one. */
static bool step_outer(walk_dim *d, int outer) {
  for (int k = outer - 1; k >= 0; k--) {
    if (++d[k].at < d[k].runs[d[k].run].end)
      return true;
    if (++d[k].run < d[k].count) {
      d[k].at = d[k].runs[d[k].run].begin;
      return true;
    }
    d[k].run = 0;
    d[k].at = d[k].runs[0].begin;
  }
  return false;
}

/* Visits every run of an array. weight[d] is the distance of two neighbours in dim d, in the row-major order of the
 * source. */
static int64_t walk_array(reshard_layout layout, int64_t rank, int64_t array, unsigned char *memory,
                          const bench_elements *e, const int64_t *weight, bench_visitor visit) {
  int ndim = reshard_layout_ndim(layout);
  reshard_array_info info;
  walk_dim d[RESHARD_MAX_DIMS];
  CLI_TRY("", reshard_layout_array(layout, rank, array, &info));
  if (info.elements == 0)
    return 0;
  int64_t width = (int64_t)e->width;
  memory += info.offset * width;
  if (ndim == 0)
    return visit(memory, e, 0, 1);
  for (int k = 0; k < ndim; k++) {
    CLI_TRY("", reshard_layout_array_intervals(layout, rank, array, k, 0, 0, NULL, &d[k].count));
    d[k].runs = cli_alloc(d[k].count, sizeof *d[k].runs);
    CLI_TRY("", reshard_layout_array_intervals(layout, rank, array, k, 0, d[k].count, d[k].runs, &d[k].count));
    d[k].run = 0;
    d[k].at = d[k].runs[0].begin;
  }
  int64_t result = 0, row = 0;
  const walk_dim *inner = &d[ndim - 1];
  unsigned char *array_begin = memory;
  do {
    int64_t base = 0, rest = row++, place = 0; /* rows of arrays side by side have those of others between them */
    for (int k = ndim - 2; k >= 0; k--) {
      base += d[k].at * weight[k];
      place += rest % info.shape[k] * info.strides[k];
      rest /= info.shape[k];
    }
    memory = array_begin + place * width;
    for (int64_t i = 0; i < inner->count; i++) {
      int64_t step = weight[ndim - 1], at = inner->runs[i].begin, run = step == 1 ? inner->runs[i].end - at : 1;
      for (; at < inner->runs[i].end; at += run) {
        result += visit(memory, e, base + at * step, run);
        memory += run * width;
      }
    }
  } while (step_outer(d, ndim - 1));
  for (int k = 0; k < ndim; k++)
    free(d[k].runs);
  return result;
}

/* Visits the values of a tensor that a rank has, or its scales, in the buffers from `buffer` on. */
static int64_t walk_tensor(reshard_layout layout, int64_t rank, unsigned char **buffer, const bench_elements *e,
                           const int64_t *weight, bench_visitor visit) {
  int64_t arrays = 0, result = 0;
  CLI_TRY("", reshard_layout_array_count(layout, rank, &arrays));
  for (int64_t a = 0; a < arrays; a++) {
    reshard_array_info info;
    CLI_TRY("", reshard_layout_array(layout, rank, a, &info));
    result += walk_array(layout, rank, a, buffer[info.buffer], e, weight, visit);
  }
  return result;
}

static int64_t walk_rank(const workload *w, bool source, const bench_side *side, int64_t rank, int64_t local,
                         bench_visitor visit) {
  int64_t buffer = side->first[local], result = 0;
  for (int64_t t = 0; t < w->n; t++) {
    reshard_layout layout = layout_of(w, source, t);
    bench_elements e = bench_elements_of(w, t, source);
    int64_t buffers = 0, own[RESHARD_MAX_DIMS], weight[RESHARD_MAX_DIMS];
    for (int d = w->tensor[t].ndim - 1; d >= 0; d--)
      own[d] = d == w->tensor[t].ndim - 1 ? 1 : own[d + 1] * w->tensor[t].shape[d + 1];
    for (int d = 0; d < w->tensor[t].ndim; d++)
      weight[d] = own[w->permuted && !source ? w->permutation[d] : d];
    CLI_TRY("", reshard_layout_buffer_count(layout, rank, &buffers));
    if (e.most != NULL)
      walk_tensor(layout, rank, side->host + buffer, &e, weight, bench_most_visit);
    result += walk_tensor(layout, rank, side->host + buffer, &e, weight, visit);
    buffer += buffers;
    if (has_scales(w, source, t)) {
      const bench_elements scales = bench_scales_of(&e);
      result += walk_tensor(w->tensor[t].scales, rank, side->host + buffer, &scales, e.grid, visit);
      buffer += buffers;
    }
    free(e.most);
  }
  return result;
}

/* Copies a local rank's buffers of a set from host to device, or back. */
static void copy_set(const bench_side *side, int64_t local, int64_t set, bool to_device, void *stream) {
  const bench_arena *arena = &side->arena[arena_of(side, local)];
  if (arena->device == NULL)
    return;
  unsigned char *there = arena->memory + set * arena->extent + side->begin[local];
  unsigned char *here = arena->host + side->begin[local];
  CLI_TRY("", arena->device->memory->memcpy(arena->device, to_device ? there : here, to_device ? here : there,
                                            (size_t)(side->end[local] - side->begin[local]), stream));
  CLI_TRY("", arena->device->streams->synchronize(arena->device, stream));
}

static void copy_to_device(const bench_side *side, int64_t local, void *stream) {
  for (int64_t set = 0; set < side->sets; set++)
    copy_set(side, local, set, true, stream);
}

void bench_fill(const workload *w, const session *s, bool source, const bench_side *side, int64_t local, void *stream) {
  walk_rank(w, source, side, s->first + local, local, bench_fill_visit);
  copy_to_device(side, local, stream);
}

int64_t bench_wrong(const workload *w, const session *s, bool source, const bench_side *side, int64_t local,
                    void *stream) {
  int64_t wrong = 0;
  for (int64_t set = 0; set < side->sets; set++) {
    copy_set(side, local, set, false, stream);
    wrong += walk_rank(w, source, side, s->first + local, local, bench_wrong_visit);
  }
  return wrong;
}

void bench_poison(const bench_side *side, int64_t local, void *stream) {
  const bench_arena *arena = &side->arena[arena_of(side, local)];
  memset(arena->host + side->begin[local], 0xdb, (size_t)(side->end[local] - side->begin[local]));
  copy_to_device(side, local, stream);
}
