#define _GNU_SOURCE /* memfd_create */
#include "store.h"

#include "bench/cli/naive_cast.h"

#ifdef RS_HAVE_JANSSON

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FILLED_BEFORE = 0xEE, BETWEEN = 0x5A };

#define MUST(call) \
  do { \
    if ((call) != RESHARD_SUCCESS) \
      cli_exit(EXIT_FAILED, "a store by hand: %s", reshard_last_error()); \
  } while (0)

static int64_t width_of(const naive_tensor *t) { return (int64_t)reshard_dtype_size(t->dtype); }

static rs_file *file_at(rs_store *s, int64_t i) { return &s->files.at[i]; }

/* Blocks go to the files at random, in order. */
static void place_block(rng *r, rs_store *s, int64_t bytes, rs_stored_block *block) {
  block->file = (int32_t)rng_below(r, s->files.n);
  rs_file *f = file_at(s, block->file);
  block->offset = f->size + (rng_one_in(r, 2) ? 0 : rng_below(r, 5));
  f->size = block->offset + bytes;
}

static void add_tensor(rng *r, rs_store *s, const naive_tensor *t, const naive_side *side, bool reversed) {
  MUST(rs_vec_reserve(&s->tensors, s->tensors.n + 1));
  rs_stored_tensor *stored = &s->tensors.at[s->tensors.n++];
  *stored =
      (rs_stored_tensor){.layout = reshard_layout_retain(side->layout), .first = s->arrays.n, .reversed = reversed};
  for (int64_t i = 0; i < side->cut.n; i++) {
    const naive_shard *shard = &side->cut.at[i];
    if (shard->n == 0)
      continue;
    MUST(rs_vec_reserve(&s->blocks, s->blocks.n + 1));
    place_block(r, s, shard->n * width_of(t), &s->blocks.at[s->blocks.n]);
    rs_stored_array *last = stored->count > 0 ? &s->arrays.at[s->arrays.n - 1] : NULL;
    if (last != NULL && last->rank == shard->rank && last->index == shard->array)
      last->count++;
    else {
      MUST(rs_vec_reserve(&s->arrays, s->arrays.n + 1));
      s->arrays.at[s->arrays.n++] = (rs_stored_array){shard->rank, shard->array, s->blocks.n, 1};
      stored->count++;
    }
    s->blocks.n++;
  }
}

static void put_bytes(const rs_store *s, const rs_stored_block *block, int64_t offset, const void *from, int64_t n) {
  const rs_file *f = &s->files.at[block->file];
  if (f->memory != NULL)
    memcpy(f->memory + block->offset + offset, from, (size_t)n);
  else if (pwrite(f->fd, from, (size_t)n, block->offset + offset) != n)
    cli_exit(EXIT_FAILED, "a store by hand cannot be written");
}

static char *get(const rs_file *f) {
  char *all = cli_alloc(f->size, 1);
  if (f->memory != NULL)
    memcpy(all, f->memory, (size_t)f->size);
  else if (pread(f->fd, all, (size_t)f->size, 0) != f->size)
    cli_exit(EXIT_FAILED, "a store by hand cannot be read");
  return all;
}

/* Row-major number in the model's shape of an element of the stored one. */
static int64_t in_model(const naive_tensor *t, bool reversed, int64_t index) {
  if (!reversed)
    return index;
  int64_t linear = 0, at[RESHARD_MAX_DIMS];
  for (int d = 0; d < t->ndim; d++) {
    at[d] = index % t->shape[d];
    index /= t->shape[d];
  }
  for (int d = 0; d < t->ndim; d++)
    linear = linear * t->shape[d] + at[d];
  return linear;
}

/* Expected bytes of a shard. */
static unsigned char *values_of(const naive_tensor *t, bool reversed, const naive_shard *shard) {
  int64_t width = width_of(t);
  unsigned char *values = cli_alloc(shard->n * width, 1);
  for (int64_t e = 0; e < shard->n; e++)
    memcpy(values + e * width, t->bytes + in_model(t, reversed, shard->index[e]) * width, (size_t)width);
  return values;
}

rs_stored_block naive_store_block(const rs_store *s, int64_t tensor, const naive_cut *cut, int64_t shard) {
  int64_t block = s->arrays.at[s->tensors.at[tensor].first].first;
  for (int64_t i = 0; i < shard; i++)
    block += cut->at[i].n > 0;
  return s->blocks.at[block];
}

static void make_files(rs_store *s, bool in_files) {
  for (int64_t i = 0; i < s->files.n; i++) {
    rs_file *f = file_at(s, i);
    char *bytes = cli_alloc(f->size, 1);
    memset(bytes, BETWEEN, (size_t)f->size);
    if (!in_files) {
      f->memory = bytes;
      continue;
    }
    char name[32];
    snprintf(name, sizeof name, "file-%lld", (long long)i);
    MUST(rs_alloc_copy(&f->path, name, (int64_t)strlen(name) + 1, 1));
    f->fd = memfd_create(name, MFD_CLOEXEC);
    if (f->fd < 0 || write(f->fd, bytes, (size_t)f->size) != f->size)
      cli_exit(EXIT_FAILED, "no file in memory");
    free(bytes);
  }
}

void naive_store_make(rng *r, const naive_set *set, const naive_side *sides, const bool *reversed, bool in_files,
                      bool filled, rs_store *out) {
  rs_store *s = out;
  *s = (rs_store){0};
  MUST(rs_model_new(&s->model));
  int64_t files = rng_in(r, 1, 4);
  MUST(rs_vec_reserve(&s->files, files));
  for (; s->files.n < files; s->files.n++)
    *file_at(s, s->files.n) = (rs_file){.fd = -1};
  for (int64_t i = 0; i < set->n; i++) {
    const naive_tensor *t = &set->at[i];
    MUST(rs_model_add(s->model, "by hand", t->name, strlen(t->name), t->dtype, t->ndim, t->shape));
    add_tensor(r, s, t, &sides[i], reversed != NULL && reversed[i]);
  }
  make_files(s, in_files);
  for (int64_t i = 0; i < set->n; i++)
    for (int64_t j = 0; j < sides[i].cut.n; j++) {
      const naive_shard *shard = &sides[i].cut.at[j];
      if (shard->n == 0)
        continue;
      rs_stored_block block = naive_store_block(s, i, &sides[i].cut, j);
      unsigned char *values = values_of(&set->at[i], s->tensors.at[i].reversed, shard);
      if (!filled)
        memset(values, FILLED_BEFORE, (size_t)(shard->n * width_of(&set->at[i])));
      put_bytes(s, &block, 0, values, shard->n * width_of(&set->at[i]));
      free(values);
    }
}

void naive_store_free(rs_store *s) {
  for (int64_t i = 0; i < s->files.n; i++)
    free(s->files.at[i].memory);
  rs_store_free(s);
}

void naive_region(const naive_set *src, const rs_copy_region *region, naive_set *dst) {
  const naive_tensor none = {.ndim = 0}, *from = region->src < 0 ? &none : &src->at[region->src];
  naive_tensor *to = &dst->at[region->dst];
  int64_t width = width_of(to), from_width = region->src < 0 ? width : width_of(from);
  for (int64_t k = 0, n = naive_volume(to->ndim, region->dst_extent); k < n; k++) {
    int64_t rest = k, at[RESHARD_MAX_DIMS] = {0}, in = 0, out = 0, stride = 1;
    for (int d = 0; d < from->ndim; d++)
      at[d] = region->src_offset[d];
    for (int d = to->ndim - 1; d >= 0; d--) {
      int64_t i = rest % region->dst_extent[d];
      rest /= region->dst_extent[d];
      out += (region->dst_offset[d] + i) * stride;
      stride *= to->shape[d];
      if (region->permutation[d] >= 0)
        at[region->permutation[d]] += i;
    }
    for (int d = 0; d < from->ndim; d++)
      in = in * from->shape[d] + at[d];
    uint64_t bits = 0;
    if (region->src < 0) {
      memset(to->bytes + out * width, 0, (size_t)width);
    } else if (from->dtype == to->dtype) {
      memcpy(to->bytes + out * width, from->bytes + in * width, (size_t)width);
    } else {
      memcpy(&bits, from->bytes + in * from_width, (size_t)from_width);
      bits = naive_cast(from->dtype, to->dtype, bits);
      memcpy(to->bytes + out * width, &bits, (size_t)width);
    }
  }
}

bool naive_store_check(const rs_store *s, const naive_set *set, const naive_side *sides, int64_t only_rank,
                       rs_text *why) {
  char **is = cli_alloc(s->files.n, sizeof *is);
  for (int64_t f = 0; f < s->files.n; f++)
    is[f] = get(&s->files.at[f]);
  bool right = true;
  for (int64_t i = 0; i < set->n; i++)
    for (int64_t j = 0; j < sides[i].cut.n && right; j++) {
      const naive_shard *shard = &sides[i].cut.at[j];
      if (shard->n == 0)
        continue;
      int64_t width = width_of(&set->at[i]), bytes = shard->n * width, b = 0;
      rs_stored_block block = naive_store_block(s, i, &sides[i].cut, j);
      unsigned char *should = values_of(&set->at[i], s->tensors.at[i].reversed, shard);
      if (only_rank >= 0 && shard->rank != only_rank)
        memset(should, FILLED_BEFORE, (size_t)bytes);
      char *at = is[block.file] + block.offset;
      while (b < bytes && at[b] == (char)should[b])
        b++;
      if (b < bytes)
        cli_add(why, "tensor %lld, rank %lld, array %lld, shard %lld: element %lld of %lld is wrong", (long long)i,
                (long long)shard->rank, (long long)shard->array, (long long)j, (long long)(b / width),
                (long long)shard->n);
      right = b == bytes;
      memset(at, BETWEEN, (size_t)bytes);
      free(should);
    }
  for (int64_t f = 0; f < s->files.n; f++) {
    for (int64_t b = 0; b < s->files.at[f].size && right; b++)
      if (is[f][b] != BETWEEN) {
        cli_add(why, "byte %lld of file %lld, which is no block's, was written", (long long)b, (long long)f);
        right = false;
      }
    free(is[f]);
  }
  free(is);
  return right;
}

#endif
