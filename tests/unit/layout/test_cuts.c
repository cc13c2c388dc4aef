/* Cuts of one dim against lists of indices: every sequence of up to two cuts of every n up to 12, and drawn sequences
 * of three and four. Near the end of 63 bits only the laws between the four functions can be checked. */
#include "bench/cli/util.h"
#include "bench/verify/random.h"
#include "layout/cut.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scale.h"

#include <string.h>

#define MOST_CUTS    4
#define MOST_INDICES 64

typedef struct indices {
  int64_t n, at[MOST_INDICES];
} indices;

static int64_t ceil_of(int64_t n, int64_t w) { return (n + w - 1) / w; }

/* The chunk rule, one index after the other. */
static void chunk(const indices *in, int64_t w, int64_t j, indices *out) {
  int64_t size = ceil_of(in->n, w);
  out->n = 0;
  for (int64_t i = 0; i < in->n; i++)
    if (i / size == j)
      out->at[out->n++] = in->at[i];
}

static reshard_part given[3]; /* of the cut of parts that is checked, whose pieces are said */

/* Piece j of parts of which each run of one number of pieces has its own. */
static void cut_parts(const indices *in, const rs_cut *cut, int64_t j, indices *out) {
  int64_t first = 0, begin = 0;
  out->n = 0;
  for (int k = 0; k < cut->nparts; begin += given[k++].size) {
    if (k > 0 && given[k].pieces != given[k - 1].pieces)
      first += given[k - 1].pieces;
    indices part = {.n = given[k].size}, kept;
    memcpy(part.at, in->at + begin, (size_t)part.n * sizeof *part.at);
    chunk(&part, given[k].pieces, j - first, &kept);
    for (int64_t i = 0; i < kept.n; i++)
      out->at[out->n++] = kept.at[i];
  }
}

static void cut_once(const indices *in, const rs_cut *cut, int64_t j, indices *out) {
  if (cut->kind == RS_CUT_SHARD) {
    chunk(in, cut->w, j, out);
    return;
  }
  if (cut->kind == RS_CUT_PARTS) {
    cut_parts(in, cut, j, out);
    return;
  }
  out->n = 0;
  if (cut->kind == RS_CUT_CYCLIC) {
    for (int64_t i = 0; i < in->n; i++)
      if (i / cut->factor % cut->w == j)
        out->at[out->n++] = in->at[i];
    return;
  }
  for (int64_t c = 0; c < cut->factor; c++) {
    indices whole, part;
    chunk(in, cut->factor, c, &whole);
    chunk(&whole, cut->w, j, &part);
    for (int64_t i = 0; i < part.n; i++)
      out->at[out->n++] = part.at[i];
  }
}

/* Indices of a part, in local order. */
static void part_of(const rs_dim *dim, int64_t part, indices *out) {
  indices now = {.n = dim->n};
  for (int64_t i = 0; i < dim->n; i++)
    now.at[i] = i;
  int64_t parts = dim->parts;
  for (int c = 0; c < dim->ncuts; c++) {
    indices before = now;
    parts /= dim->cuts[c].w;
    cut_once(&before, &dim->cuts[c], part / parts, &now);
    part %= parts;
  }
  *out = now;
}

static void check_dim(const rs_dim *dim) {
  int64_t total = 0;
  for (int64_t part = 0; part < dim->parts; part++) {
    indices want;
    part_of(dim, part, &want);
    total += want.n;
    assert_int_equal(rs_dim_length(dim, part), want.n);
    int64_t below = 0;
    for (int64_t i = 0; i <= dim->n; i++) {
      assert_int_equal(rs_dim_rank(dim, part, i), below);
      below += below < want.n && want.at[below] == i;
    }
    for (int64_t x = 0; x < want.n; x++) {
      int64_t p, local, global, run, least = 1;
      while (x + least < want.n && want.at[x + least] == want.at[x] + least)
        least++; /* the longest that a run may be */
      rs_dim_locate(dim, want.at[x], &p, &local, &run);
      assert_int_equal(p, part);
      assert_int_equal(local, x);
      assert_in_range(run, 1, least);
      rs_dim_expand(dim, part, x, &global, &run);
      assert_int_equal(global, want.at[x]);
      assert_in_range(run, 1, least);
    }
  }
  assert_int_equal(total, dim->n);
}

static rs_cut cut_of(rs_cut_kind kind, int64_t w, int64_t factor) {
  return (rs_cut){.kind = kind, .w = w, .factor = factor, .stride = 1, .ranks = w, .nruns = 1};
}

/* The number-th kind of cut: a shard, strided with factors 1 to 4, blocks of 1 to 3; over w pieces. */
#define KINDS 8
static rs_cut cut_number(int64_t number, int64_t w) {
  if (number == 0)
    return cut_of(RS_CUT_SHARD, w, 1);
  return number <= 4 ? cut_of(RS_CUT_STRIDED, w, number) : cut_of(RS_CUT_CYCLIC, w, number - 4);
}

static rs_dim dim_of(int64_t n, int ncuts, rs_cut *cuts) {
  rs_dim dim = {.n = n, .parts = 1, .ncuts = ncuts, .cuts = cuts};
  for (int c = 0; c < ncuts; c++)
    dim.parts *= cuts[c].w;
  return dim;
}

CASE(test_two_cuts) {
  for (int64_t n = 0; n <= 12; n++) {
    rs_dim none = dim_of(n, 0, NULL);
    check_dim(&none);
    for (int64_t first = 0; first < 4 * KINDS; first++) {
      rs_cut cuts[2] = {cut_number(first % KINDS, first / KINDS + 1)};
      rs_dim one = dim_of(n, 1, cuts);
      check_dim(&one);
      for (int64_t second = 0; second < 4 * KINDS; second++) {
        cuts[1] = cut_number(second % KINDS, second / KINDS + 1);
        rs_dim two = dim_of(n, 2, cuts);
        check_dim(&two);
      }
    }
  }
}

CASE(test_more_cuts) {
  rng r;
  rng_seed(&r, 20);
  for (int64_t i = 0, cases = (int64_t)(6000 * test_scale()); i < cases; i++) {
    rs_cut cuts[MOST_CUTS];
    int ncuts = (int)rng_in(&r, 3, MOST_CUTS);
    for (int c = 0; c < ncuts; c++)
      cuts[c] = cut_number(rng_below(&r, KINDS), rng_in(&r, 1, 4));
    rs_dim dim = dim_of(rng_in(&r, 0, MOST_INDICES), ncuts, cuts);
    check_dim(&dim);
  }
}

/* Up to three parts, all in the same number of pieces or not, alone and cut again. */
CASE(parts_are_cut_one_by_one) {
  rng r;
  rng_seed(&r, 22);
  int64_t cut_again = 0, several = 0;
  for (int64_t i = 0, cases = (int64_t)(6000 * test_scale()); i < cases; i++) {
    static const int64_t pieces[] = {1, 2, 3, 6};
    rs_cut_part parts[3];
    rs_part_run runs[3];
    rs_cut cuts[2] = {cut_of(RS_CUT_PARTS, 6, 1)};
    int64_t n = 0;
    int nparts = (int)rng_in(&r, 1, 3);
    bool divided = rng_one_in(&r, 2);
    for (int k = 0; k < nparts; k++) {
      given[k] = (reshard_part){rng_in(&r, 1, 20), divided ? pieces[rng_below(&r, 4)] : 6};
      n += given[k].size;
    }
    rs_cut_set_parts(&cuts[0], nparts, given, parts, runs);
    several += cuts[0].nruns > 1;
    rs_dim dim = dim_of(n, 1, cuts);
    check_dim(&dim);
    for (int64_t piece = 0; piece < cuts[0].w; piece++) { /* the digits that have it are side by side */
      int number = rs_cut_run_of(&cuts[0], piece);
      const rs_part_run of = cuts[0].runs[number];
      int64_t holders = 0;
      for (int64_t digit = 0; digit < 6; digit++) {
        assert_int_equal(rs_cut_digits(&cuts[0], piece, digit), holders);
        bool holds = cuts[0].nruns == 1 ? piece == digit : digit / (6 / of.n) == piece - of.first;
        assert_int_equal(rs_cut_piece(&cuts[0], digit, number) == piece, holds);
        holders += holds;
      }
      assert_int_equal(rs_cut_digits(&cuts[0], piece, 6), holders);
    }
    if (divided)
      continue;
    cuts[1] = cut_number(rng_below(&r, KINDS), rng_in(&r, 1, 4));
    dim = dim_of(n, 2, cuts);
    check_dim(&dim);
    cut_again++;
  }
  assert_true(cut_again > 0 && several > 0);
}

/* Locate and expand undo each other, a run is one in both, and ranks count. */
static void check_laws(const rs_dim *dim, int64_t i) {
  int64_t part, local, run, global, back, end_part, end_local, end_run;
  rs_dim_locate(dim, i, &part, &local, &run);
  assert_true(part >= 0 && part < dim->parts && run >= 1 && run <= dim->n - i);
  int64_t length = rs_dim_length(dim, part);
  assert_true(local >= 0 && local <= length - run);
  rs_dim_expand(dim, part, local, &global, &back);
  assert_int_equal(global, i);
  assert_true(back >= 1 && back <= length - local);
  rs_dim_locate(dim, i + run - 1, &end_part, &end_local, &end_run);
  assert_int_equal(end_part, part);
  assert_int_equal(end_local, local + run - 1);
  assert_int_equal(rs_dim_rank(dim, part, i), local);
  assert_int_equal(rs_dim_rank(dim, part, i + run), local + run);
  assert_int_equal(rs_dim_rank(dim, part, 0), 0);
  assert_int_equal(rs_dim_rank(dim, part, dim->n), length);
}

CASE(cuts_near_the_end_of_63_bits_hold) {
  rng r;
  rng_seed(&r, 21);
  for (int64_t i = 0, cases = (int64_t)(20000 * test_scale()); i < cases; i++) {
    rs_cut cuts[MOST_CUTS];
    int ncuts = (int)rng_in(&r, 1, MOST_CUTS);
    int64_t n = rng_one_in(&r, 4) ? INT64_MAX - rng_below(&r, 3) : rng_log(&r, INT64_MAX / 2);
    for (int c = 0; c < ncuts; c++) {
      rs_cut_kind kind = (rs_cut_kind)rng_below(&r, 3);
      int64_t w = rng_log(&r, 30000);
      cuts[c] =
          cut_of(kind, w, kind == RS_CUT_SHARD ? 1 : rng_log(&r, kind == RS_CUT_CYCLIC ? n / 4 + 1 : INT64_MAX / 2));
    }
    rs_cut_part parts[3];
    rs_part_run runs[3];
    if (rng_one_in(&r, 4)) { /* the first cut is one of parts */
      reshard_part sizes[3] = {{0, 0}};
      int64_t left = n;
      for (int k = 0; k < 3; left -= sizes[k++].size)
        sizes[k].size = k == 2 ? left : rng_below(&r, left / 2 + 1);
      cuts[0] = cut_of(RS_CUT_PARTS, cuts[0].w, 1);
      rs_cut_set_parts(&cuts[0], 3, sizes, parts, runs);
    }
    rs_dim dim = dim_of(n, ncuts, cuts);
    for (int k = 0; k < 8; k++)
      check_laws(&dim, k == 0 ? 0 : k == 1 ? n - 1 : rng_below(&r, n));
    for (int k = 0; k < 4; k++) { /* any part, also an empty one */
      int64_t part = rng_below(&r, dim.parts), length = rs_dim_length(&dim, part);
      assert_true(length >= 0 && length <= n);
      assert_int_equal(rs_dim_rank(&dim, part, n), length);
      if (length == 0)
        continue;
      int64_t x = rng_below(&r, length), global, run, p, local;
      rs_dim_expand(&dim, part, x, &global, &run);
      assert_true(global >= 0 && global < n && run >= 1 && run <= length - x);
      rs_dim_locate(&dim, global, &p, &local, &run);
      assert_int_equal(p, part);
      assert_int_equal(local, x);
    }
  }
}

/* Lengths and first indices of the pieces of one cut. */
static void pieces_are(int64_t n, rs_cut cut, const int64_t *lengths) {
  rs_dim dim = dim_of(n, 1, &cut);
  for (int64_t j = 0; j < cut.w; j++)
    assert_int_equal(rs_dim_length(&dim, j), lengths[j]);
}

CASE(known_cuts_hold) {
  pieces_are(5, cut_of(RS_CUT_SHARD, 4, 1), (int64_t[]){2, 2, 1, 0});
  pieces_are(3, cut_of(RS_CUT_SHARD, 4, 1), (int64_t[]){1, 1, 1, 0});
  pieces_are(0, cut_of(RS_CUT_SHARD, 3, 1), (int64_t[]){0, 0, 0});
  pieces_are(10, cut_of(RS_CUT_SHARD, 4, 1), (int64_t[]){3, 3, 3, 1});
  pieces_are(9, cut_of(RS_CUT_SHARD, 8, 1), (int64_t[]){2, 2, 2, 2, 1, 0, 0, 0});
  /* 7 in 2 chunks is 4 and 3; each over 3 is 2,2,0 and 1,1,1 */
  pieces_are(7, cut_of(RS_CUT_STRIDED, 3, 2), (int64_t[]){3, 3, 1});
  pieces_are(8, cut_of(RS_CUT_STRIDED, 4, 2), (int64_t[]){2, 2, 2, 2});
  /* 9 in 2 chunks is 5 and 4; over 4, 2,2,1,0 and 1,1,1,1: the last piece has nothing in the full chunk and something
   * in the rest */
  pieces_are(9, cut_of(RS_CUT_STRIDED, 4, 2), (int64_t[]){3, 3, 2, 1});
  pieces_are(7, cut_of(RS_CUT_CYCLIC, 3, 2), (int64_t[]){3, 2, 2});
}

RUN_CASES
