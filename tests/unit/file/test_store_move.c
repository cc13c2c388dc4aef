/* The engine between stores: random regions between random cuts, in memory and in files, numbers converted or not,
 * against the regions walked element by element; comparing, one rank alone, files that became shorter, progress. */
#include "base/dtype.h"
#include "file/move/move.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scale.h"
#include "support/oracles/store.h"

#ifdef RS_HAVE_JANSSON

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Tensors on both sides, the regions between them, and what comes of it. */
typedef struct fixture {
  naive_set src, dst; /* dst: 0xEE where no region leads */
  naive_set reached;  /* of the shapes of dst: 0 where a region leads, 0xEE else */
  naive_side *from, *to;
  bool *reversed; /* of src */
  rs_copy_regions regions;
} fixture;

static void must_succeed(bool right, uint64_t seed, const rs_text *why) {
  if (!right)
    fail_msg("seed %llu: %s", (unsigned long long)seed, why->at);
}

static void poison_blocks(naive_set *set) {
  for (int64_t i = 0; i < set->n; i++)
    memset(set->at[i].bytes, 0xEE, (size_t)set->at[i].n * reshard_dtype_size(set->at[i].dtype));
}

/* A tensor to one part of another: dims in any order, unit dims left out and put in, and more around it. */
static void add_small(rng *r, fixture *s, bool join, int64_t big, const int64_t *offset, const int64_t *extent) {
  naive_set *bigs = join ? &s->dst : &s->src, *smalls = join ? &s->src : &s->dst;
  int ndim = bigs->at[big].ndim, n = 0, dim[RESHARD_MAX_DIMS]; /* per small dim the big one, or -1 */
  int64_t shape[RESHARD_MAX_DIMS], first[RESHARD_MAX_DIMS] = {0}, size[RESHARD_MAX_DIMS];
  for (int d = 0; d < ndim; d++)
    if (extent[d] != 1 || rng_one_in(r, 2))
      dim[n++] = d;
  while (n < RESHARD_MAX_DIMS && rng_one_in(r, 5))
    dim[n++] = -1;
  for (int i = 0; i < n && !rng_one_in(r, 3); i++) {
    int j = (int)rng_in(r, i, n - 1), t = dim[i];
    dim[i] = dim[j];
    dim[j] = t;
  }
  bool around = rng_one_in(r, 3) && naive_volume(ndim, extent) < 500 && n < 5;
  for (int i = 0; i < n; i++) {
    size[i] = dim[i] < 0 ? 1 : extent[dim[i]];
    first[i] = around ? rng_below(r, 2) : 0;
    shape[i] = first[i] + size[i] + (around ? rng_below(r, 2) : 0);
  }
  char name[32];
  snprintf(name, sizeof name, "small-%lld", (long long)smalls->n);
  reshard_dtype dtype = bigs->at[big].dtype, other = naive_draw_dtype(r);
  naive_add(smalls, name, rng_one_in(r, 2) && rs_cast_supported(dtype, other) ? other : dtype, n, shape);
  rs_copy_region region = {.src = join ? smalls->n - 1 : big, .dst = join ? big : smalls->n - 1};
  memcpy(join ? region.src_offset : region.dst_offset, first, sizeof first);
  memcpy(join ? region.src_extent : region.dst_extent, size, sizeof size);
  memcpy(join ? region.dst_offset : region.src_offset, offset, sizeof first);
  memcpy(join ? region.dst_extent : region.src_extent, extent, sizeof first);
  for (int d = 0; d < RESHARD_MAX_DIMS; d++)
    region.permutation[d] = !join && d < n ? dim[d] : -1;
  for (int i = 0; join && i < n; i++)
    if (dim[i] >= 0)
      region.permutation[dim[i]] = i;
  GOOD(rs_vec_reserve(&s->regions, s->regions.n + 1));
  s->regions.at[s->regions.n++] = region;
}

/* One tensor cut in slabs, each of which is a part of a tensor of the other side. */
static void add_group(rng *r, fixture *s, int64_t most) {
  bool join = rng_one_in(r, 2);
  naive_set *bigs = join ? &s->dst : &s->src;
  int64_t shape[RESHARD_MAX_DIMS] = {0}, offset[RESHARD_MAX_DIMS] = {0}, extent[RESHARD_MAX_DIMS];
  int ndim = naive_draw_shape(r, most, shape), cut = ndim > 0 ? (int)rng_below(r, ndim) : 0;
  char name[32];
  snprintf(name, sizeof name, "big-%lld", (long long)bigs->n);
  naive_add(bigs, name, naive_draw_dtype(r), ndim, shape);
  int64_t big = bigs->n - 1, slabs = ndim > 0 && rng_one_in(r, 2) ? rng_in(r, 1, 4) : 1;
  memcpy(extent, shape, sizeof extent);
  for (int64_t i = 0; i < slabs && (ndim == 0 || offset[cut] < shape[cut] || i == 0); i++) {
    if (slabs > 1)
      extent[cut] = i == slabs - 1 ? shape[cut] - offset[cut] : rng_in(r, 0, shape[cut] - offset[cut]);
    if (!rng_one_in(r, 10)) /* or nothing there */
      add_small(r, s, join, big, offset, extent);
    offset[cut] += extent[cut];
  }
}

static void make_sides(rng *r, const naive_set *set, bool source, const bool *reversed, naive_side **out,
                       uint64_t seed) {
  rs_text why = {0};
  int64_t world = rng_one_in(r, 10) ? rng_in(r, 17, 64) : rng_in(r, 1, 9);
  *out = cli_alloc(set->n, sizeof **out);
  for (int64_t i = 0; i < set->n; i++) {
    const naive_tensor *t = &set->at[i];
    int64_t shape[RESHARD_MAX_DIMS], boxes = rng_one_in(r, 3) ? rng_in(r, 1, 4) : RS_MOST_BOXES;
    for (int d = 0; d < t->ndim; d++)
      shape[d] = t->shape[reversed != NULL && reversed[i] ? t->ndim - 1 - d : d];
    must_succeed(naive_side_make(r, t->ndim, shape, world, source, RESHARD_LAYOUT_KIND_COUNT, boxes, rng_one_in(r, 2),
                                 &(*out)[i], &why),
                 seed, &why);
  }
}

static void make_fixture(rng *r, int64_t groups, int64_t most, fixture *s, uint64_t seed) {
  *s = (fixture){{0}, {0}, {0}, NULL, NULL, NULL, {0}};
  for (int64_t i = 0; i < groups; i++)
    add_group(r, s, most);
  for (int64_t i = 0; i < s->src.n; i++)
    naive_fill(&s->src.at[i], rng_next(r));
  s->reversed = cli_alloc(s->src.n, sizeof *s->reversed);
  for (int64_t i = 0; i < s->src.n; i++)
    s->reversed[i] = rng_one_in(r, 4);
  make_sides(r, &s->src, true, s->reversed, &s->from, seed);
  make_sides(r, &s->dst, false, NULL, &s->to, seed);
  naive_set zeros = {0};
  for (int64_t i = 0; i < s->src.n; i++)
    naive_add(&zeros, "", s->src.at[i].dtype, s->src.at[i].ndim, s->src.at[i].shape);
  for (int64_t i = 0; i < s->dst.n; i++)
    naive_add(&s->reached, "", s->dst.at[i].dtype, s->dst.at[i].ndim, s->dst.at[i].shape);
  poison_blocks(&s->dst);
  poison_blocks(&s->reached);
  for (int64_t i = 0; i < s->regions.n; i++) {
    naive_region(&s->src, &s->regions.at[i], &s->dst);
    naive_region(&zeros, &s->regions.at[i], &s->reached);
  }
  naive_set_free(&zeros);
}

static void free_fixture(fixture *s) {
  for (int64_t i = 0; i < s->src.n; i++)
    naive_side_free(&s->from[i]);
  for (int64_t i = 0; i < s->dst.n; i++)
    naive_side_free(&s->to[i]);
  free(s->from);
  free(s->to);
  free(s->reversed);
  free(s->regions.at);
  naive_set_free(&s->src);
  naive_set_free(&s->dst);
  naive_set_free(&s->reached);
}

static void flip_byte(const rs_store *store, const rs_stored_block *block, int64_t offset) {
  rs_file *f = &store->files.at[block->file];
  char byte;
  if (f->memory != NULL) {
    f->memory[block->offset + offset] ^= 0x10;
    return;
  }
  assert_int_equal(pread(f->fd, &byte, 1, block->offset + offset), 1);
  byte ^= 0x10;
  assert_int_equal(pwrite(f->fd, &byte, 1, block->offset + offset), 1);
}

/* A byte of the target that is not as written is found if a region leads there, and only then. */
static void spoil_byte(rng *r, const fixture *s, rs_store_move *move, uint64_t seed) {
  int64_t t = rng_below(r, s->dst.n);
  const naive_cut *cut = &s->to[t].cut;
  int64_t shard = cut->n > 0 ? rng_below(r, cut->n) : 0;
  if (cut->n == 0 || cut->at[shard].n == 0)
    return;
  int64_t e = rng_below(r, cut->at[shard].n), width = (int64_t)reshard_dtype_size(s->dst.at[t].dtype);
  rs_stored_block block = naive_store_block(move->dst, t, cut, shard);
  bool reached = s->reached.at[t].bytes[cut->at[shard].index[e] * width] == 0;
  int64_t offset = e * width + rng_below(r, width);
  flip_byte(move->dst, &block, offset);
  reshard_status status = rs_store_move_run(move);
  if (status != (reached ? RESHARD_ERROR_CORRUPT : RESHARD_SUCCESS))
    fail_msg("seed %llu: a flipped byte of tensor %lld that %s: status %d", (unsigned long long)seed, (long long)t,
             reached ? "was moved" : "was not moved", status);
  const char *path = move->dst->files.at[block.file].path;
  if (reached && (strstr(reshard_last_error(), s->dst.at[t].name) == NULL ||
                  (path != NULL && strstr(reshard_last_error(), path) == NULL)))
    fail_msg("seed %llu: tensor or file is not named: %s", (unsigned long long)seed, reshard_last_error());
  flip_byte(move->dst, &block, offset);
}

static void run_seed(uint64_t seed, int64_t groups, int64_t most) {
  rng r;
  fixture s;
  rs_store src, dst;
  rs_text why = {0};
  rng_seed(&r, seed);
  make_fixture(&r, groups, most, &s, seed);
  int64_t only = rng_one_in(&r, 4) && s.dst.n > 0 ? rng_below(&r, s.to[0].what.world) : -1;
  naive_store_make(&r, &s.src, s.from, s.reversed, rng_one_in(&r, 2), true, &src);
  naive_store_make(&r, &s.dst, s.to, NULL, rng_one_in(&r, 2), false, &dst);
  rs_store_move move = {.src = &src,
                        .dst = &dst,
                        .nregions = s.regions.n,
                        .regions = s.regions.at,
                        .threads = (int)rng_below(&r, 4),
                        .only_rank = only};
  if (rs_store_move_run(&move) != RESHARD_SUCCESS)
    fail_msg("seed %llu: %s", (unsigned long long)seed, reshard_last_error());
  must_succeed(naive_store_check(&dst, &s.dst, s.to, only, &why), seed, &why);
  move.compare = true;
  if (rs_store_move_run(&move) != RESHARD_SUCCESS)
    fail_msg("seed %llu: compared: %s", (unsigned long long)seed, reshard_last_error());
  must_succeed(naive_store_check(&dst, &s.dst, s.to, only, &why), seed, &why);
  for (int i = 0; i < 3 && only < 0 && s.dst.n > 0; i++)
    spoil_byte(&r, &s, &move, seed);
  must_succeed(naive_store_check(&src, &s.src, s.from, -1, &why), seed, &why);
  naive_store_free(&src);
  naive_store_free(&dst);
  free_fixture(&s);
  free(why.at);
}

CASE(random_regions_move_between_random_cuts) {
  double cases = 1500 * test_scale();
  for (uint64_t i = 0; i < (uint64_t)cases + 1; i++)
    run_seed(1000 + i, 1 + (int64_t)i % 4, i % 3 == 0 ? 2000 : 200);
}

/* Many tensors to a batch. */
CASE(test_many_small) {
  double cases = 20 * test_scale();
  for (uint64_t i = 0; i < (uint64_t)cases + 1; i++)
    run_seed(100000 + i, 100, 60);
}

/* Many tiles to a tensor. */
CASE(tensors_of_many_tiles_move_right) {
  double cases = 40 * test_scale();
  for (uint64_t i = 0; i < (uint64_t)cases + 1; i++)
    run_seed(200000 + i, 1, 400000);
}

/* --- By hand ----------------------------------------------------------------------------------------------------- */

/* One f32 tensor of 1000 x 500, rows on 4 ranks to columns on 2, in files. */
typedef struct pair {
  fixture s;
  rs_store src, dst;
  rs_store_move move;
} pair;

static void side_of(naive_side *side, const char *text, int64_t rows, int64_t columns) {
  const int64_t shape[] = {rows, columns};
  *side = (naive_side){.what = {.kind = RESHARD_LAYOUT_CHUNK, .ndim = 2, .shape = {rows, columns}}};
  GOOD(reshard_layout_parse(text, 2, shape, 0, &side->layout));
  side->what.world = side->what.nranks = reshard_layout_world(side->layout);
  side->what.dim = text[6] - '0';
  for (int64_t i = 0; i < side->what.nranks; i++)
    side->what.ranks[i] = i;
  oracle_evaluate(&side->what, &side->held);
  naive_cut_make(&side->what, &side->held, RS_MOST_BOXES, false, &side->cut);
}

static void make_pair(pair *p) {
  const int64_t shape[] = {1000, 500};
  rng r;
  rng_seed(&r, 1);
  *p = (pair){.s = {{0}, {0}, {0}, NULL, NULL, NULL, {0}}};
  naive_fill(naive_add(&p->s.src, "w", RESHARD_F32, 2, shape), 1);
  naive_add(&p->s.dst, "w", RESHARD_F32, 2, shape);
  p->s.from = cli_alloc(1, sizeof *p->s.from);
  p->s.to = cli_alloc(1, sizeof *p->s.to);
  side_of(p->s.from, "chunk(0;0-3)", 1000, 500);
  side_of(p->s.to, "chunk(1;0-1)", 1000, 500);
  GOOD(rs_vec_reserve(&p->s.regions, 1));
  p->s.regions.at[p->s.regions.n++] =
      (rs_copy_region){.src_extent = {1000, 500}, .dst_extent = {1000, 500}, .permutation = {0, 1}};
  naive_region(&p->s.src, p->s.regions.at, &p->s.dst);
  naive_store_make(&r, &p->s.src, p->s.from, NULL, true, true, &p->src);
  naive_store_make(&r, &p->s.dst, p->s.to, NULL, true, false, &p->dst);
  p->move = (rs_store_move){
      .src = &p->src, .dst = &p->dst, .nregions = 1, .regions = p->s.regions.at, .threads = 2, .only_rank = -1};
}

static void free_pair(pair *p) {
  naive_store_free(&p->src);
  naive_store_free(&p->dst);
  free_fixture(&p->s);
}

CASE(files_that_became_shorter_are_an_error) {
  for (int target = 0; target < 2; target++) {
    pair p;
    make_pair(&p);
    GOOD(rs_store_move_run(&p.move));
    p.move.compare = target;
    rs_store *store = target ? &p.dst : &p.src;
    int64_t i = 0;
    while (store->files.at[i].size == 0)
      i++;
    assert_int_equal(ftruncate(store->files.at[i].fd, store->files.at[i].size - 1), 0);
    FAILS_WITH(rs_store_move_run(&p.move), RESHARD_ERROR_SYSTEM, store->files.at[i].path);
    store->files.at[i].size = 0; /* as naive_store_free has no use for it */
    free_pair(&p);
  }
}

CASE(test_read_only) {
  pair p;
  make_pair(&p);
  for (int64_t i = 0; i < p.dst.files.n; i++) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", p.dst.files.at[i].fd);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_true(dup2(fileno(file), p.dst.files.at[i].fd) >= 0);
    fclose(file);
  }
  FAILS_WITH(rs_store_move_run(&p.move), RESHARD_ERROR_SYSTEM, "file-");
  free_pair(&p);
}

typedef struct watched {
  int64_t calls, last, all, cancel_at;
  const char *stage;
  bool right;
} watched;

static int watch_progress(void *user, const char *stage, int64_t done, int64_t all) {
  watched *w = user;
  w->right = w->right && strcmp(stage, w->stage) == 0 && done >= w->last && done <= all && all == 2000000;
  w->last = done;
  return ++w->calls == w->cancel_at;
}

CASE(progress_is_told_and_can_cancel) {
  pair p;
  make_pair(&p);
  for (int i = 0; i < 4; i++) {
    watched w = {.stage = i % 2 == 1 ? "comparing" : "moving", .right = true, .cancel_at = i < 2 ? 0 : 1};
    p.move.progress = watch_progress;
    p.move.user = &w;
    p.move.compare = i % 2 == 1;
    reshard_status status = rs_store_move_run(&p.move);
    assert_true(w.right);
    assert_int_equal(status, w.cancel_at > 0 && w.calls > 0 ? RESHARD_ERROR_CANCELLED : RESHARD_SUCCESS);
    assert_true(w.calls <= (w.cancel_at > 0 ? 1 : 1000));
  }
  free_pair(&p);
}

CASE(stores_that_do_not_match_are_refused) {
  pair p;
  make_pair(&p);
  rs_copy_region *region = p.s.regions.at, good = *region;
  region->src_extent[0] = 999; /* not as much as the target's */
  assert_int_equal(rs_store_move_run(&p.move), RESHARD_ERROR_INTERNAL);
  *region = good;
  region->dst_offset[1] = 1; /* past its end */
  assert_int_equal(rs_store_move_run(&p.move), RESHARD_ERROR_INTERNAL);
  *region = good;
  region->permutation[1] = 2; /* no such dim */
  assert_int_equal(rs_store_move_run(&p.move), RESHARD_ERROR_INTERNAL);
  *region = good;
  p.src.tensors.at[0].first++; /* rank 0's is not stored */
  p.src.tensors.at[0].count--;
  FAILS_WITH(rs_store_move_run(&p.move), RESHARD_ERROR_INTERNAL, "'w'");
  p.src.tensors.at[0].first--;
  p.src.tensors.at[0].count++;
  p.move.nregions = 0;
  GOOD(rs_store_move_run(&p.move));
  free_pair(&p);
}

RUN_CASES

#else
RUN_CASES_IF(0, "built without jansson, which the naive files need")
#endif
