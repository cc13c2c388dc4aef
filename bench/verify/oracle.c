/* The definition, written down: a dim is a list of indices, a cut keeps some of them, an array is the product of its
 * dims' lists. A reshard looks up each destination element's source. Nothing is clever on purpose. */
#include "bench/verify/oracle.h"
#include "bench/cli/util.h"

#include <stdlib.h>
#include <string.h>

/* Indices of one dim that a rank keeps, in order. */
typedef struct index_list {
  int64_t n;
  int64_t *at;
} index_list;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* The chunk rule: [*begin, *end) of n positions is chunk i of w. */
static void chunk_range(int64_t n, int64_t w, int64_t i, int64_t *begin, int64_t *end) {
  int64_t split = (n + w - 1) / w;
  *begin = smaller(split * i, n);
  *end = smaller(split * (i + 1), n);
}

static void cut_chunk(index_list *k, int64_t w, int64_t i) {
  int64_t begin, end;
  chunk_range(k->n, w, i, &begin, &end);
  memmove(k->at, k->at + begin, (size_t)(end - begin) * sizeof *k->at);
  k->n = end - begin;
}

static void cut_strided(index_list *k, int64_t factor, int64_t w, int64_t i) {
  int64_t out = 0;
  for (int64_t f = 0; f < factor; f++) {
    int64_t begin, end, from, to;
    chunk_range(k->n, factor, f, &begin, &end);
    chunk_range(end - begin, w, i, &from, &to);
    for (int64_t p = begin + from; p < begin + to; p++)
      k->at[out++] = k->at[p];
  }
  k->n = out;
}

/* The i-th of w ranks keeps its chunk of each part; n ranks side by side may have one chunk. */
static void cut_parts(index_list *k, int nparts, const reshard_part *part, int64_t w, int64_t i) {
  int64_t out = 0, first = 0;
  for (int p = 0; p < nparts; first += part[p++].size) {
    int64_t pieces = part[p].pieces > 0 ? smaller(part[p].pieces, w) : w, begin, end;
    chunk_range(part[p].size, pieces, i / (w / pieces), &begin, &end);
    for (int64_t at = first + begin; at < first + end; at++)
      k->at[out++] = k->at[at];
  }
  k->n = out;
}

static void cut_cyclic(index_list *k, int64_t block, int64_t w, int64_t i) {
  int64_t out = 0;
  for (int64_t p = 0; p < k->n; p++)
    if (p / block % w == i)
      k->at[out++] = k->at[p];
  k->n = out;
}

static int64_t volume(int ndim, const int64_t *shape) {
  int64_t n = 1;
  for (int d = 0; d < ndim; d++)
    n *= shape[d];
  return n;
}

/* The product of the kept indices, as a buffer. */
static void write_product(const oracle_layout *l, const index_list *k, oracle_buffer *out) {
  out->ndim = l->ndim;
  out->n = 1;
  for (int d = 0; d < l->ndim; d++)
    out->n *= out->shape[d] = k[d].n;
  out->index = cli_alloc(out->n, sizeof *out->index);
  for (int64_t e = 0; e < out->n; e++) {
    int64_t rest = e, linear = 0, stride = 1;
    for (int d = l->ndim - 1; d >= 0; d--) {
      linear += k[d].at[rest % k[d].n] * stride;
      rest /= k[d].n;
      stride *= l->shape[d];
    }
    out->index[e] = linear;
  }
}

/* Cuts every dim to the indices of the rank at a position of the rank list. */
static void cut_regular(const oracle_layout *l, int64_t position, index_list *k) {
  if (l->kind == RESHARD_LAYOUT_CHUNK)
    cut_chunk(&k[l->dim], l->nranks, position);
  int64_t coordinate[RESHARD_MAX_DIMS];
  if (l->kind == RESHARD_LAYOUT_CYCLIC)
    for (int d = l->ndim - 1; d >= 0; d--) {
      cut_cyclic(&k[d], l->block[d], l->grid[d], position % l->grid[d]);
      position /= l->grid[d];
    }
  if (l->kind != RESHARD_LAYOUT_MESH)
    return;
  for (int m = l->mesh_ndim - 1; m >= 0; m--) {
    coordinate[m] = position % l->mesh[m];
    position /= l->mesh[m];
  }
  for (int o = 0; o < l->mesh_ndim; o++) {
    int m = l->order[o];
    const reshard_placement *p = &l->placement[m];
    if (p->kind == RESHARD_PLACEMENT_SHARD && p->nparts > 0)
      cut_parts(&k[p->dim], p->nparts, l->part[m], l->mesh[m], coordinate[m]);
    else if (p->kind == RESHARD_PLACEMENT_SHARD)
      cut_chunk(&k[p->dim], l->mesh[m], coordinate[m]);
    else if (p->kind == RESHARD_PLACEMENT_STRIDED_SHARD)
      cut_strided(&k[p->dim], p->split_factor, l->mesh[m], coordinate[m]);
  }
}

/* A box, or all of the tensor where box is NULL, through the cuts of a rank at a position (-1: none). */
static void evaluate_box(const oracle_layout *l, const reshard_box *box, int64_t position, oracle_buffer *out) {
  index_list k[RESHARD_MAX_DIMS];
  for (int d = 0; d < l->ndim; d++) {
    int64_t begin = box != NULL ? box->offset[d] : 0;
    k[d].n = box != NULL ? box->extent[d] : l->shape[d];
    k[d].at = cli_alloc(k[d].n, sizeof *k[d].at);
    for (int64_t i = 0; i < k[d].n; i++)
      k[d].at[i] = begin + i;
  }
  if (position >= 0)
    cut_regular(l, position, k);
  write_product(l, k, out);
  for (int d = 0; d < l->ndim; d++)
    free(k[d].at);
}

static void evaluate_flat(const oracle_layout *l, int64_t position, oracle_buffer *out) {
  int64_t begin, end;
  chunk_range(volume(l->ndim, l->shape), l->nranks, position, &begin, &end);
  out->ndim = 1;
  out->shape[0] = out->n = end - begin;
  out->index = cli_alloc(out->n, sizeof *out->index);
  for (int64_t e = 0; e < out->n; e++)
    out->index[e] = begin + e;
}

void oracle_evaluate(const oracle_layout *l, oracle_buffers *buffers) {
  int64_t n = 0;
  buffers->buffer = cli_alloc(l->world + l->nboxes, sizeof *buffers->buffer);
  for (int64_t r = 0; r < l->world; r++) {
    buffers->first[r] = n;
    if (l->kind == RESHARD_LAYOUT_BOXES) {
      for (int64_t b = 0; b < l->nboxes; b++)
        if (l->box_rank[b] == r)
          evaluate_box(l, &l->box[b], -1, &buffers->buffer[n++]);
      continue;
    }
    int64_t position = 0;
    while (position < l->nranks && l->ranks[position] != r)
      position++;
    if (position == l->nranks)
      buffers->buffer[n].ndim = l->kind == RESHARD_LAYOUT_FLAT ? 1 : l->ndim; /* one buffer with nothing in it */
    else if (l->kind == RESHARD_LAYOUT_FLAT)
      evaluate_flat(l, position, &buffers->buffer[n]);
    else
      evaluate_box(l, NULL, position, &buffers->buffer[n]);
    n++;
  }
  buffers->first[l->world] = n;
}

void oracle_buffers_free(oracle_buffers *buffers, int64_t world) {
  for (int64_t b = 0; buffers->buffer != NULL && b < buffers->first[world]; b++)
    free(buffers->buffer[b].index);
  free(buffers->buffer);
  buffers->buffer = NULL;
}

/* Source element of a destination element, or -1 outside the region. */
static int64_t find_source(const oracle_layout *src, const oracle_layout *dst, const oracle_region *region,
                           int64_t index) {
  int64_t at[RESHARD_MAX_DIMS];
  for (int d = 0; d < src->ndim; d++)
    at[d] = region->src_offset[d];
  for (int d = dst->ndim - 1; d >= 0; d--) {
    int64_t i = index % dst->shape[d] - region->dst_offset[d];
    index /= dst->shape[d];
    if (i < 0 || i >= region->dst_extent[d])
      return -1;
    if (region->permutation[d] >= 0)
      at[region->permutation[d]] += i;
  }
  int64_t linear = 0;
  for (int d = 0; d < src->ndim; d++) {
    if (region->src_extent[d] == 0)
      return -1;
    linear = linear * src->shape[d] + at[d];
  }
  return linear;
}

void oracle_count(const oracle_layout *src, const oracle_buffers *from, const oracle_layout *dst,
                  const oracle_buffers *to, const int64_t *bytes, oracle_counts *counts) {
  int64_t n = volume(src->ndim, src->shape);
  uint64_t *has = cli_alloc(n, sizeof *has), *needs = cli_alloc(n, sizeof *needs); /* a bit per rank */
  for (int64_t r = 0; r < src->world; r++)
    for (int64_t b = from->first[r]; b < from->first[r + 1]; b++)
      for (int64_t e = 0; e < from->buffer[b].n; e++)
        has[from->buffer[b].index[e]] |= (uint64_t)1 << r;
  for (int64_t r = 0; r < dst->world; r++)
    for (int64_t b = to->first[r]; b < to->first[r + 1]; b++)
      for (int64_t e = 0; e < to->buffer[b].n; e++) {
        int64_t s = to->buffer[b].index[e];
        if (s < 0)
          continue;
        needs[s] |= (uint64_t)1 << r;
        counts->needed[r] += bytes[s];
        counts->lacked[r] += has[s] >> r & 1 ? 0 : bytes[s];
      }
  for (int64_t s = 0; s < n; s++)
    if (__builtin_popcountll(has[s]) == 1 && (needs[s] & ~has[s]) != 0)
      counts->exclusive[__builtin_ctzll(has[s])] += bytes[s];
  free(has);
  free(needs);
}

void oracle_reshard(const oracle_layout *src, const oracle_buffers *from, const oracle_layout *dst, oracle_buffers *to,
                    const oracle_region *region, int64_t width, oracle_counts *counts) {
  int64_t n = volume(src->ndim, src->shape), *bytes = cli_alloc(n, sizeof *bytes);
  for (int64_t s = 0; s < n; s++)
    bytes[s] = width;
  for (int64_t b = 0; b < to->first[dst->world]; b++)
    for (int64_t e = 0; e < to->buffer[b].n; e++)
      to->buffer[b].index[e] = find_source(src, dst, region, to->buffer[b].index[e]);
  oracle_count(src, from, dst, to, bytes, counts);
  free(bytes);
}

void oracle_stamp(uint64_t key, int64_t index, size_t width, unsigned char *bytes) {
  for (size_t b = 0; b < width; b += 8) {
    uint64_t x = (key ^ (b << 56)) + (uint64_t)index * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    memcpy(bytes + b, &x, width - b < 8 ? width - b : 8);
  }
}
