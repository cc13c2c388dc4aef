/* Every way to give four chunks to four ranks, to every other way, on the same dim and across dims, even and uneven.
 * Every element is checked, over both paths, and the bytes that travel. PyTorch's reshard on one dim hangs or aborts on
 * the 3-cycles and 4-cycles among these. */
#include "bench/cli/util.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scale.h"
#include "support/reshards/local_world.h"

#include <stdlib.h>
#include <string.h>

typedef struct split {
  int64_t shape[2];
  int dim;
  const int64_t *ranks; /* piece i is on ranks[i] */
} split;

/* Element [row, column] of the part of a rank: false when it is not there. */
static bool find(const split *s, int64_t rank, int64_t row, int64_t column, int64_t *at) {
  int64_t n = s->shape[s->dim], size = (n + 3) / 4, x = s->dim == 0 ? row : column;
  if (s->ranks[x / size] != rank)
    return false;
  int64_t begin = x / size * size, width = s->dim == 0 ? s->shape[1] : (begin + size < n ? size : n - begin);
  *at = s->dim == 0 ? (row - begin) * width + column : row * width + (column - begin);
  return true;
}

/* Fills the buffers of all ranks with the tensor (or with poison), or counts what differs from it. */
static int64_t split_visit(const split *s, const rank_buffers *d, const unsigned char *tensor, bool fill) {
  int64_t wrong = 0, width = d->width;
  for (int64_t rank = 0; rank < 4; rank++)
    for (int64_t row = 0; row < s->shape[0]; row++)
      for (int64_t column = 0, at; column < s->shape[1]; column++) {
        if (!find(s, rank, row, column, &at))
          continue;
        unsigned char *local = d->buffer[d->first[rank]] + at * width;
        const unsigned char *global = tensor + (row * s->shape[1] + column) * width;
        if (fill)
          memcpy(local, global, (size_t)width);
        wrong += memcmp(local, global, (size_t)width) != 0;
      }
  return wrong;
}

static int64_t lacking(const split *src, const split *dst, int64_t rank) {
  int64_t n = 0;
  for (int64_t row = 0; row < src->shape[0]; row++)
    for (int64_t column = 0, at; column < src->shape[1]; column++)
      n += find(dst, rank, row, column, &at) && !find(src, rank, row, column, &at);
  return n;
}

#define PAIRS 24

/* Pairs of one shape, each a tensor of its own, in one plan. */
static void check_pairs(local_world *world, int n, const split *src, const split *dst, const reshard_dtype *dtypes) {
  reshard_entry entries[PAIRS];
  reshard_layout from[PAIRS], to[PAIRS];
  rank_buffers a[PAIRS], b[PAIRS];
  const rank_buffers *as[PAIRS], *bs[PAIRS];
  unsigned char *tensor[PAIRS], *poison = cli_alloc(src->shape[0] * src->shape[1], 16);
  for (int i = 0; i < n; i++) {
    int64_t width = (int64_t)reshard_dtype_size(dtypes[i]);
    GOOD(reshard_layout_create_chunk(2, src[i].shape, 4, src[i].dim, 4, src[i].ranks, &from[i]));
    GOOD(reshard_layout_create_chunk(2, dst[i].shape, 4, dst[i].dim, 4, dst[i].ranks, &to[i]));
    entries[i] = (reshard_entry){RESHARD_ENTRY_INIT, .dtype = dtypes[i]};
    tensor[i] = whole_tensor_create(src[i].shape[0] * src[i].shape[1], width, 4 + (uint64_t)i);
    rank_buffers_create(from[i], width, &a[i]);
    rank_buffers_create(to[i], width, &b[i]);
    split_visit(&src[i], &a[i], tensor[i], true);
    as[i] = &a[i];
    bs[i] = &b[i];
  }
  for (int path = RESHARD_PATH_DIRECT; path <= RESHARD_PATH_PACKED; path++) {
    local_world_result result;
    for (int i = 0; i < n; i++)
      split_visit(&dst[i], &b[i], poison, true);
    local_world_reshard(world, n, entries, as, bs, NULL, (reshard_path)path, false, &result);
    if (result.status != RESHARD_SUCCESS)
      fail_msg("%s", result.error);
    int64_t wire[4] = {0};
    for (int i = 0; i < n; i++) {
      const int64_t *p = src[i].ranks, *q = dst[i].ranks;
      if (split_visit(&dst[i], &b[i], tensor[i], false) != 0 || split_visit(&src[i], &a[i], tensor[i], false) != 0)
        fail_msg("%lld x %lld: dim %d over %lld,%lld,%lld,%lld to dim %d over %lld,%lld,%lld,%lld, path %d",
                 (long long)src->shape[0], (long long)src->shape[1], src[i].dim, (long long)p[0], (long long)p[1],
                 (long long)p[2], (long long)p[3], dst[i].dim, (long long)q[0], (long long)q[1], (long long)q[2],
                 (long long)q[3], path);
      for (int64_t r = 0; r < 4; r++)
        wire[r] += lacking(&src[i], &dst[i], r) * (int64_t)reshard_dtype_size(dtypes[i]);
    }
    for (int64_t r = 0; r < 4; r++) {
      assert_int_equal(result.wire_bytes[r], wire[r]);
      assert_int_equal(result.info[r].lower_bound_bytes, wire[r]);
    }
    local_world_result_free(&result);
  }
  for (int i = 0; i < n; i++) {
    rank_buffers_free(&a[i]);
    rank_buffers_free(&b[i]);
    reshard_layout_release(from[i]);
    reshard_layout_release(to[i]);
    free(tensor[i]);
  }
  free(poison);
}

/* The 24 permutations; the first is 0, 1, 2, 3. */
static void permutations(int64_t all[24][4]) {
  int n = 0;
  for (int64_t code = 0; code < 256; code++) {
    int64_t p[4] = {code >> 6 & 3, code >> 4 & 3, code >> 2 & 3, code & 3};
    unsigned seen = 1u << p[0] | 1u << p[1] | 1u << p[2] | 1u << p[3];
    if (seen == 15)
      memcpy(all[n++], p, sizeof p);
  }
  assert_int_equal(n, 24);
}

static const int64_t shapes[4][2] = {{13, 21}, {14, 23}, {15, 26}, {12, 24}};
static const reshard_dtype dtypes[5] = {RESHARD_F32, RESHARD_BF16, RESHARD_U8, RESHARD_F64, RESHARD_C128};

/* Ranks in order to every permutation, and every permutation to ranks in order; a transfer each. */
CASE(test_one_by_one) {
  int64_t all[24][4], step = test_scale() < 0.1 ? 5 : 1;
  permutations(all);
  local_world *world = local_world_create(4);
  for (int s = 0; s < 4; s++)
    for (int dims = 0; dims < 4; dims++)
      for (int64_t i = s % step; i < 24; i += step) {
        bool back = (s + dims) % 2;
        split src = {{shapes[s][0], shapes[s][1]}, dims / 2, all[back ? i : 0]};
        split dst = {{shapes[s][0], shapes[s][1]}, dims % 2, all[back ? 0 : i]};
        check_pairs(world, 1, &src, &dst, &dtypes[(i + s) % 5]);
      }
  local_world_destroy(world);
}

/* Every permutation to every other: as many tensors of one plan. */
CASE(every_permutation_of_chunks_goes_to_every_other) {
  int64_t all[24][4], step = test_scale() < 1 ? 5 : 1;
  permutations(all);
  local_world *world = local_world_create(4);
  for (int s = 0; s < 4; s++)
    for (int dims = 0; dims < 4; dims++)
      for (int64_t i = (s + dims) % step; i < 24; i += step) {
        split src[PAIRS], dst[PAIRS];
        reshard_dtype dtype[PAIRS];
        for (int64_t j = 0; j < PAIRS; j++) {
          src[j] = (split){{shapes[s][0], shapes[s][1]}, dims / 2, all[i]};
          dst[j] = (split){{shapes[s][0], shapes[s][1]}, dims % 2, all[j]};
          dtype[j] = dtypes[(i + j + s) % 5];
        }
        check_pairs(world, PAIRS, src, dst, dtype);
      }
  local_world_destroy(world);
}

RUN_CASES
