/* Layout strings: what is read, what is printed, and where an error is said to be. */
#include "support/fixtures/case.h"

#include <reshard/layout.h>

#include "support/fixtures/expect.h"
#include "support/fixtures/temporary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHAPE(...) \
  (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { __VA_ARGS__ }
#define SCALAR 0, NULL

static char *print(reshard_layout layout) {
  size_t needed = 0;
  assert_int_equal(reshard_layout_print(layout, NULL, 0, &needed), RESHARD_ERROR_INVALID);
  char *text = malloc(needed);
  assert_int_equal(reshard_layout_print(layout, text, needed - 1, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_layout_print(layout, text, needed, &needed), RESHARD_SUCCESS);
  assert_int_equal(strlen(text) + 1, needed);
  return text;
}

/* Reads as `canonical`, which reads as itself; world is given, or 0 where the string names it. */
static void reads(const char *text, int ndim, const int64_t *shape, int64_t given, int64_t world,
                  const char *canonical) {
  reshard_layout layout, again;
  int64_t named = -1;
  if (reshard_layout_parse(text, ndim, shape, given, &layout) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  assert_int_equal(reshard_layout_world(layout), world);
  char *printed = print(layout);
  assert_string_equal(printed, canonical);
  assert_int_equal(reshard_layout_parse(printed, ndim, shape, given, &again), RESHARD_SUCCESS);
  assert_true(reshard_layout_equal(layout, again));
  char *reprinted = print(again);
  assert_string_equal(reprinted, canonical);
  assert_int_equal(reshard_layout_parse_world(text, &named), RESHARD_SUCCESS);
  assert_true(given > 0 || named == world);
  free(printed);
  free(reprinted);
  reshard_layout_release(layout);
  reshard_layout_release(again);
}

static void refuses(const char *text, int ndim, const int64_t *shape, int64_t world, reshard_status status,
                    const char *error) {
  reshard_layout layout = (reshard_layout)(void *)text;
  assert_int_equal(reshard_layout_parse(text, ndim, shape, world, &layout), status);
  assert_string_equal(reshard_last_error(), error);
  assert_ptr_equal(layout, text); /* outputs are written only on success */
}

static void bad(const char *text, int ndim, const int64_t *shape, int64_t world, const char *error) {
  char whole[1024];
  snprintf(whole, sizeof whole, "layout \"%s\": %s", text, error);
  refuses(text, ndim, shape, world, RESHARD_ERROR_INVALID, whole);
}

CASE(texts_of_chunks_are_read_and_printed) {
  reads("chunk(0)", SHAPE(8), 4, 4, "chunk(0;0-3)");
  reads("chunk(0;0-3)", SHAPE(8), 0, 4, "chunk(0;0-3)");
  reads("chunk(-1;2,0,3,1)", SHAPE(8, 6), 0, 4, "chunk(1;2,0,3,1)");
  reads(" chunk ( - 2 ; 4 - 6 , 0 ) ", SHAPE(8, 6), 9, 9, "chunk(0;4-6,0)");
  reads("chunk(0;3-0)", SHAPE(8), 0, 4, "chunk(0;3-0)");
  reads("chunk(0;0,1,2,7,6,9)", SHAPE(8), 0, 10, "chunk(0;0-2,7-6,9)");
  reads("chunk(0;5)", SHAPE(0), 0, 6, "chunk(0;5)");
  reads("chunk(0;0-1,2-3)", SHAPE(9), 0, 4, "chunk(0;0-3)");
  reads("chunk(0;0-9999999999)", SHAPE(9), 0, 10000000000, "chunk(0;0-9999999999)");
  bad("chunk(0)", SHAPE(8), 0, "it names no ranks, and no world is given");
  bad("chunk()", SHAPE(8), 4, "column 7: expected a tensor dim");
  bad("chunk(0;)", SHAPE(8), 4, "column 9: expected a rank");
  bad("chunk(0;1,)", SHAPE(8), 4, "column 11: expected a rank");
  bad("chunk(0;1-)", SHAPE(8), 4, "column 11: expected a rank");
  bad("chunk(0;-1)", SHAPE(8), 4, "column 9: expected a rank");
  bad("chunk(0;1 2)", SHAPE(8), 4, "column 11: expected ')'");
  bad("chunk(0;0-4)", SHAPE(8), 4, "column 11: rank 4 is not in the world of 4 ranks");
  bad("chunk(0;0-999999999999)", SHAPE(8), 4, "column 11: rank 999999999999 is not in the world of 4 ranks");
  bad("chunk(0;1-999999999999)", SHAPE(8), 0,
      "column 9: 999999999999 ranks are named, without a world given 16777216 at most");
  bad("chunk(0;0-3,0-3)", SHAPE(8), 4, "column 9: 8 ranks are named, the world has 4");
  bad("chunk(0;0-2,2)", SHAPE(8), 4, "chunk: rank 2 is named twice");
  bad("chunk(0;9223372036854775807)", SHAPE(8), 0, "column 9: the rank does not fit in 63 bits");
  bad("chunk(0;9223372036854775808)", SHAPE(8), 0, "column 9: the number does not fit in 63 bits");
  bad("chunk(2)", SHAPE(8, 8), 4, "column 7: dim 2 of a tensor of 2 dims");
  bad("chunk(-3)", SHAPE(8, 8), 4, "column 7: dim -3 of a tensor of 2 dims");
  bad("chunk(0)", SCALAR, 4, "column 7: dim 0 of a tensor of 0 dims");
  bad("chunk(0", SHAPE(8), 4, "column 8: expected ')'");
  bad("chunk(0)x", SHAPE(8), 4, "column 9: expected the end of the layout");
  bad("chunk 0", SHAPE(8), 4, "column 7: expected '('");
}

CASE(texts_of_single_flat_and_cyclic_are_read_and_printed) {
  reads("rank(3)", SHAPE(8), 0, 4, "rank(3)");
  reads("rank(0)", SCALAR, 2, 2, "rank(0)");
  bad("rank(0-1)", SHAPE(8), 4, "column 6: expected one rank");
  bad("rank()", SHAPE(8), 4, "column 6: expected a rank");
  bad("rank(4)", SHAPE(8), 4, "column 6: rank 4 is not in the world of 4 ranks");
  reads("flat()", SHAPE(3, 5), 4, 4, "flat(0-3)");
  reads("flat(4-7)", SCALAR, 0, 8, "flat(4-7)");
  bad("flat()", SHAPE(8), 0, "it names no ranks, and no world is given");
  bad("flat(a)", SHAPE(8), 4, "column 6: expected a rank");
  reads("cyclic(2x2;32x32)", SHAPE(100, 100), 0, 4, "cyclic(2x2@0-3;32x32)");
  reads("cyclic(2 x 2 @ 3 - 0 ; 1 x 7)", SHAPE(10, 10), 9, 9, "cyclic(2x2@3-0;1x7)");
  reads("cyclic(;)", SCALAR, 0, 1, "cyclic(@0;)");
  reads("cyclic(@5;)", SCALAR, 0, 6, "cyclic(@5;)");
  bad("cyclic(2x2;32)", SHAPE(8, 8), 0, "column 12: 1 block extents, the grid has 2 dims");
  bad("cyclic(2;32)", SHAPE(8, 8), 0, "column 8: 1 grid dims, the tensor has 2 dims");
  bad("cyclic(;)", SHAPE(8), 1, "column 8: 0 grid dims, the tensor has 1 dims");
  bad("cyclic(0x2;1x1)", SHAPE(8, 8), 0, "column 8: expected at least 1");
  bad("cyclic(2x2;0x1)", SHAPE(8, 8), 0, "column 12: expected at least 1");
  bad("cyclic(2x2@0-2;1x1)", SHAPE(8, 8), 0, "column 12: the grid has 4 ranks, 3 are named");
  bad("cyclic(4294967296x4294967296;1x1)", SHAPE(8, 8), 0, "column 8: the number of ranks overflows 63 bits");
  bad("", SHAPE(8), 4, "column 1: expected a kind of layout: chunk, mesh, cyclic, rank, flat or boxes");
  bad("shard(0)", SHAPE(8), 4, "column 1: unknown kind of layout, known are chunk, mesh, cyclic, rank, flat and boxes");
  refuses(
      "chu\nnk(0)", SHAPE(8), 4, RESHARD_ERROR_INVALID,
      "layout \"chu?nk(0)\": column 1: unknown kind of layout, known are chunk, mesh, cyclic, rank, flat and boxes");
}

/* A mesh dim without a size takes all ranks that the others leave it. */
CASE(test_open_sizes) {
  reads("mesh(fsdp;S0)", SHAPE(8), 6, 6, "mesh(fsdp=6@0-5;S0)");
  reads("mesh( dp , tp = 2 ;S0,S0;order=tp,dp)", SHAPE(7), 6, 6, "mesh(dp=3,tp=2@0-5;S0,S0;order=tp,dp)");
  reads("mesh(dp=2,tp;S0,R)", SHAPE(7), 2, 2, "mesh(dp=2,tp=1@0-1;S0,R)");
  reads("mesh(dp,tp=2@4-7;S0,R)", SHAPE(7), 0, 8, "mesh(dp=2,tp=2@4-7;S0,R)");
  reads("mesh(dp@3,1;S0)", SHAPE(7), 9, 9, "mesh(dp=2@3,1;S0)");
  bad("mesh(dp,tp;S0,R)", SHAPE(8), 4, "column 9: mesh dims dp and tp have no size, at most one may be left out");
  bad("mesh(tp=4,dp;S0,R)", SHAPE(8), 6,
      "column 11: mesh dim dp has no size, and 6 ranks are no multiple of the other dims' 4");
  bad("mesh(tp=4,dp;S0,R)", SHAPE(8), 2,
      "column 11: mesh dim dp has no size, and 2 ranks are no multiple of the other dims' 4");
  bad("mesh(tp=2,dp@0-2;S0,R)", SHAPE(8), 4,
      "column 11: mesh dim dp has no size, and 3 ranks are no multiple of the other dims' 2");
  bad("mesh(dp=;S0)", SHAPE(8), 4, "column 9: expected a number");
  bad("mesh(4x;S0)", SHAPE(8), 4, "column 8: expected a number");
  reads("rank(0/128)", SHAPE(8), 8, 8, "rank(0)");
  reads("rank(127/128)", SHAPE(8), 8, 8, "rank(7)");
  reads("rank( 4 / 5 )", SHAPE(8), 4, 4, "rank(2)"); /* 2, 2, 1, 0 */
  reads("rank(1/2)", SHAPE(8), 9, 9, "rank(1)");
  bad("rank(1/2)", SHAPE(8), 0, "it names no ranks, and no world is given");
  bad("rank(2/2)", SHAPE(8), 4, "column 6: piece 2 of 2");
  bad("rank(0/0)", SHAPE(8), 4, "column 8: expected at least 1");
  bad("rank(0/)", SHAPE(8), 4, "column 8: expected a number");
}

CASE(parts_are_printed_in_elements) {
  reads("mesh(tp=4;S0{4096,1024,1024})", SHAPE(6144), 0, 4, "mesh(tp=4@0-3;S0{4096,1024,1024})");
  reads("mesh(tp=4;S0{32:8:8})", SHAPE(6144, 3), 0, 4, "mesh(tp=4@0-3;S0{4096,1024,1024})");
  reads("mesh(4;S-1 { 1 : 1 })", SHAPE(3, 10), 0, 4, "mesh(4@0-3;S1{5,5})");
  reads("mesh(4;S0{0,6,0})", SHAPE(6), 0, 4, "mesh(4@0-3;S0{0,6,0})");
  reads("mesh(4;S0{0,0})", SHAPE(0), 0, 4, "mesh(4@0-3;S0{0,0})");
  reads("mesh(4;S0{2:1})", SHAPE(0), 0, 4, "mesh(4@0-3;S0{0,0})");
  reads("mesh(4;S0{7})", SHAPE(6), 0, 4, "mesh(4@0-3;S0)"); /* one number, of any size */
  reads("mesh(fsdp=2,tp=4;S0,S0{3:1};order=tp,fsdp)", SHAPE(8), 0, 8, "mesh(fsdp=2,tp=4@0-7;S0,S0{6,2};order=tp,fsdp)");
  reads("mesh(fsdp=1,tp=4;S0,S0{3:1})", SHAPE(8), 0, 4, "mesh(fsdp=1,tp=4@0-3;S0,S0{6,2})"); /* cuts nothing */
  bad("mesh(4;S0{4096,1024})", SHAPE(6144), 0, "mesh: dim 0: {4096,1024} is 5120 of 6144");
  bad("mesh(4;S1{4096,1024,1025})", SHAPE(2, 6144), 0, "mesh: dim 1: {4096,1024,1025} is 6145 of 6144");
#define ELEVEN "100,100,100,100,100,100,100,100,100,100,100,"
  bad("mesh(4;S0{" ELEVEN ELEVEN "100,9})", SHAPE(6144), 0, "mesh: dim 0: {" ELEVEN ELEVEN "100,9} is 2309 of 6144");
  bad("mesh(4;S0{" ELEVEN ELEVEN "100,10})", SHAPE(6144), 0, "mesh: dim 0: {" ELEVEN ELEVEN "10...} is 2310 of 6144");
  bad("mesh(4;S0{3:2})", SHAPE(6144), 0, "mesh: dim 0: the sum of {3:2}, 5, does not divide 6144");
  bad("mesh(4;S0{9223372036854775807,1})", SHAPE(6), 0, "mesh: the parts of mesh dim 0 overflow 63 bits");
  bad("mesh(4;S0{4,1:1})", SHAPE(6), 0, "column 14: parts are elements, with commas, or a ratio, with colons");
  bad("mesh(4;S0{4:1,1})", SHAPE(6), 0, "column 14: parts are elements, with commas, or a ratio, with colons");
  bad("mesh(4;S0{1:0})", SHAPE(6), 0, "column 13: a number of a ratio is at least 1");
  bad("mesh(4;S0{0:1})", SHAPE(6), 0, "column 11: a number of a ratio is at least 1");
  bad("mesh(4;S0{})", SHAPE(6), 0, "column 11: expected the size of a part");
  bad("mesh(4;S0{3,})", SHAPE(6), 0, "column 13: expected the size of a part");
  bad("mesh(4;S0{3,3)", SHAPE(6), 0, "column 14: expected '}'");
  bad("mesh(4;S0{-3,9})", SHAPE(6), 0, "column 11: expected the size of a part");
  bad("mesh(fsdp=2,tp=4;S0,S0{3:1})", SHAPE(8), 0,
      "mesh: S0{6,2} of mesh dim tp cuts behind mesh dim fsdp: say order=tp,fsdp");
  bad("mesh(2x3x4;S0,R,S0{6,2})", SHAPE(8), 0, "mesh: S0{6,2} of mesh dim 2 cuts behind mesh dim 0: say order=2,0,1");
  bad("mesh(2x4;S0{6,2},S0{6,2})", SHAPE(8), 0, "mesh: mesh dims 0 and 1 both cut dim 0 part by part");
}

CASE(parts_in_fewer_pieces_than_ranks_are_printed) {
  reads("mesh(tp=16;S0{32:8/8:8/8})", SHAPE(6144), 0, 16, "mesh(tp=16@0-15;S0{4096,1024/8,1024/8})");
  reads("mesh(tp=8;S0{32:8/8:8/8})", SHAPE(6144), 0, 8, "mesh(tp=8@0-7;S0{4096,1024,1024})"); /* 8 pieces, 8 ranks */
  reads("mesh(tp=6;S0{4/1,8/2,6/3,6/9})", SHAPE(24), 0, 6, "mesh(tp=6@0-5;S0{4/1,8/2,6/3,6})");
  reads("mesh(8;S0/4)", SHAPE(6), 0, 8, "mesh(8@0-7;S0/4)");
  reads("mesh(8;S0{9/4})", SHAPE(6), 0, 8, "mesh(8@0-7;S0/4)");
  reads("mesh(4;S0/4)", SHAPE(6), 0, 4, "mesh(4@0-3;S0)");
  reads("mesh(fsdp=2,tp=4;S0,S0/4;order=tp,fsdp)", SHAPE(8), 0, 8, "mesh(fsdp=2,tp=4@0-7;S0,S0;order=tp,fsdp)");
  reads("mesh(fsdp=2,tp=8;S1,S0/4)", SHAPE(8, 2), 0, 16, "mesh(fsdp=2,tp=8@0-15;S1,S0/4)");
  bad("mesh(8;S0/6)", SHAPE(6), 0, "mesh: dim 0: /6 of 8 ranks, which it does not divide");
  bad("mesh(8;S0{4,1/3,1})", SHAPE(6), 0, "mesh: dim 0: /3 of 8 ranks, which it does not divide");
  bad("mesh(8;S0/0)", SHAPE(6), 0, "column 11: expected at least 1");
  bad("mesh(8;S0/)", SHAPE(6), 0, "column 11: expected a number");
  bad("mesh(fsdp=2,tp=8;S0,S0/4;order=tp,fsdp)", SHAPE(8), 0,
      "mesh: mesh dims 1 and 0 cut dim 0, which parts with / allow to one");
  bad("mesh(4x4;S0{2,6/2},S1{2/2,2})", SHAPE(8, 4), 0,
      "mesh: parts with / in dims 0 and 1, one dim of a layout may have them");
}

CASE(lists_of_too_many_parts_are_refused) {
  static reshard_part parts[RESHARD_MAX_PARTS + 1];
  const int64_t shape = RESHARD_MAX_PARTS, ranks = 2;
  reshard_placement cut = {.kind = RESHARD_PLACEMENT_SHARD, .nparts = RESHARD_MAX_PARTS + 1, .parts = parts};
  reshard_layout layout = NULL;
  for (int i = 0; i < RESHARD_MAX_PARTS; i++)
    parts[i].size = 1;
  FAILS(reshard_layout_create_mesh(1, &shape, 2, 1, &ranks, NULL, &cut, NULL, NULL, &layout), RESHARD_ERROR_UNSUPPORTED,
        "mesh: 4097 parts of mesh dim 0, at most 4096");
  cut.nparts = -1;
  BAD(reshard_layout_create_mesh(1, &shape, 2, 1, &ranks, NULL, &cut, NULL, NULL, &layout),
      "mesh: -1 parts of mesh dim 0, or NULL");
  cut.nparts = RESHARD_MAX_PARTS;
  GOOD(reshard_layout_create_mesh(1, &shape, 2, 1, &ranks, NULL, &cut, NULL, NULL, &layout));
  reshard_layout_release(layout);
}

CASE(parts_of_a_strided_shard_are_refused) {
  const int64_t shape = 8, ranks = 4;
  const reshard_part parts[2] = {{4, 0}, {4, 0}};
  reshard_placement cut = {.kind = RESHARD_PLACEMENT_STRIDED_SHARD, .split_factor = 2, .nparts = 2, .parts = parts};
  reshard_layout layout = NULL;
  assert_int_equal(reshard_layout_create_mesh(1, &shape, 4, 1, &ranks, NULL, &cut, NULL, NULL, &layout),
                   RESHARD_ERROR_INVALID);
  assert_string_equal(reshard_last_error(), "mesh: 2 parts of mesh dim 0, which is strided: a Shard has parts");
  cut.nparts = 0;
  assert_int_equal(reshard_layout_create_mesh(1, &shape, 4, 1, &ranks, NULL, &cut, NULL, NULL, &layout),
                   RESHARD_SUCCESS);
  reshard_layout_release(layout);
}

CASE(texts_of_meshes_are_read_and_printed) {
  reads("mesh(2x4;S0,R)", SHAPE(8, 8), 0, 8, "mesh(2x4@0-7;S0,R)");
  reads("mesh(dp=2,tp=4;S0,S1)", SHAPE(8, 8), 0, 8, "mesh(dp=2,tp=4@0-7;S0,S1)");
  reads("mesh(dp = 2 , tp = 4 @ 0 - 7 ; S 0 , S - 1)", SHAPE(8, 8), 0, 8, "mesh(dp=2,tp=4@0-7;S0,S1)");
  reads("mesh(2x2@4-7;R,S1)", SHAPE(8, 8), 0, 8, "mesh(2x2@4-7;R,S1)");
  reads("mesh(dp=3,tp=2;S0,S0;order=tp,dp)", SHAPE(7), 0, 6, "mesh(dp=3,tp=2@0-5;S0,S0;order=tp,dp)");
  reads("mesh(dp=3,tp=2;S0,S0;order=1,0)", SHAPE(7), 0, 6, "mesh(dp=3,tp=2@0-5;S0,S0;order=tp,dp)");
  reads("mesh(3x2;S0,S0;order=1,0)", SHAPE(7), 0, 6, "mesh(3x2@0-5;S0,S0;order=1,0)");
  reads("mesh(dp=3,tp=2;S0,S0;order=dp,tp)", SHAPE(7), 0, 6, "mesh(dp=3,tp=2@0-5;S0,S0)");
  reads("mesh(2x2;S0*2,S0)", SHAPE(7), 0, 4, "mesh(2x2@0-3;S0*2,S0)");
  reads("mesh(4;R)", SCALAR, 0, 4, "mesh(4@0-3;R)");
  reads("mesh(x=2;R)", SCALAR, 0, 2, "mesh(x=2@0-1;R)");
  reads("mesh(2@1,0;R)", SCALAR, 0, 2, "mesh(2@1-0;R)");
  bad("mesh(2x;S0)", SHAPE(8), 0, "column 8: expected a number");
  bad("mesh(;S0)", SHAPE(8), 0, "column 6: expected a number");
  bad("mesh(2xtp=2;S0)", SHAPE(8), 0, "column 8: expected a number");
  bad("mesh(dp=2,2;S0)", SHAPE(8), 0, "column 11: expected the name of a mesh dim");
  bad("mesh(dp;S0)", SHAPE(8), 0, "it names no ranks, and no world is given");
  bad("mesh(dp2;S0,R)", SHAPE(8), 4, "column 10: 2 placements, the mesh has 1 dims");
  bad("mesh(dp=;S0)", SHAPE(8), 0, "column 9: expected a number");
  bad("mesh(0;R)", SHAPE(8), 0, "column 6: expected at least 1");
  bad("mesh(2x2;S0)", SHAPE(8), 0, "column 10: 1 placements, the mesh has 2 dims");
  bad("mesh(2;S0,R)", SHAPE(8), 0, "column 8: 2 placements, the mesh has 1 dims");
  bad("mesh(2)", SHAPE(8), 0, "column 7: expected ';'");
  bad("mesh(2;)", SHAPE(8), 0, "column 8: expected a placement: S0, S0*2 or R");
  bad("mesh(2;Q)", SHAPE(8), 0, "column 8: expected a placement: S0, S0*2 or R");
  bad("mesh(2;RR)", SHAPE(8), 0, "column 8: expected a placement: S0, S0*2 or R");
  bad("mesh(2;S)", SHAPE(8), 0, "column 9: expected a tensor dim");
  bad("mesh(2;S1)", SHAPE(8), 0, "column 9: dim 1 of a tensor of 1 dims");
  bad("mesh(2;S0*)", SHAPE(8), 0, "column 11: expected a number");
  bad("mesh(2;S0*0)", SHAPE(8), 0, "column 11: expected at least 1");
  bad("mesh(2x2@0-2;R,R)", SHAPE(8), 4, "column 10: the mesh has 4 ranks, 3 are named");
  bad("mesh(2x2;R,R)", SHAPE(8), 3, "mesh: 4 ranks are needed, the world has 3");
  bad("mesh(a=2,a=2;R,R)", SHAPE(8), 0, "mesh: mesh dims 0 and 1 are both named 'a'");
  bad("mesh(2x2;R,R;order=0)", SHAPE(8), 0, "column 20: order= has 1 mesh dims, the mesh has 2");
  bad("mesh(2x2;R,R;order=0,0)", SHAPE(8), 0, "column 22: mesh dim 0 stands twice in order=");
  bad("mesh(2x2;R,R;order=0,2)", SHAPE(8), 0, "column 22: mesh dim 2 of 2");
  bad("mesh(2x2;R,R;order=a,b)", SHAPE(8), 0, "column 20: the mesh has no dim named a");
  bad("mesh(2x2;R,R;sort=0,1)", SHAPE(8), 0, "column 14: expected order=");
  bad("mesh(9223372036854775807x2;R,R)", SHAPE(8), 0, "column 6: the number of ranks overflows 63 bits");
  static const char *const partial[] = {"Psum", "Pavg", "Pmin", "Pmax", "Pprod"};
  for (int i = 0; i < 5; i++) {
    char text[32], error[128];
    int64_t world;
    snprintf(text, sizeof text, "mesh(2x2;R,%s)", partial[i]);
    snprintf(error, sizeof error, "layout \"%s\": column 12: %s (Partial) is reserved, this version lacks it", text,
             partial[i]);
    refuses(text, SHAPE(8), 0, RESHARD_ERROR_UNSUPPORTED, error);
    assert_int_equal(reshard_layout_parse_world(text, &world), RESHARD_ERROR_UNSUPPORTED);
  }
}

/* In a mesh, and where a layout should be. */
CASE(placements_as_pytorch_writes_them_are_answered_with_ours) {
  bad("mesh(2x2;Shard(0),Replicate)", SHAPE(8), 4, "column 10: write S0,R");
  bad("mesh(2x2;[Shard(dim=1), Replicate()])", SHAPE(8), 4, "column 10: write S1,R");
  bad("mesh(2x2;Partial(sum),Shard(-1))", SHAPE(8), 4, "column 10: write Psum,S-1");
  bad("mesh(2x2;_StridedShard(dim=0, split_factor=2),Shard(1))", SHAPE(8), 4, "column 10: write S0*2,S1");
  bad("StridedShard(1, 3)", SHAPE(8), 4, "column 1: write S1*3, in a mesh: mesh(2;S1*3)");
  bad("[Partial(), Replicate()]", SHAPE(8), 4, "column 1: write Psum,R, in a mesh: mesh(2x2;Psum,R)");
}

CASE(texts_of_boxes_are_read_and_printed) {
  reads("boxes(0:[0,0]+[5,12];1:[5,0]+[8,12])", SHAPE(13, 12), 0, 2, "boxes(0:[0,0]+[5,12];1:[5,0]+[8,12])");
  reads("boxes(3 : [ 5 ] + [ 8 ] ; 1:[0]+[5])", SHAPE(13), 0, 4, "boxes(3:[5]+[8];1:[0]+[5])");
  reads("boxes(0:[]+[])", SCALAR, 0, 1, "boxes(0:[]+[])");
  reads("boxes(replicated;0:[]+[];7:[]+[])", SCALAR, 0, 8, "boxes(replicated;0:[]+[];7:[]+[])");
  reads("boxes()", SHAPE(4), 2, 2, "boxes()");
  reads("boxes(replicated;)", SHAPE(4), 2, 2, "boxes(replicated;)");
  reads("boxes(0:[9]+[0])", SHAPE(9), 0, 1, "boxes(0:[9]+[0])");
  bad("boxes()", SHAPE(4), 0, "it names no ranks, and no world is given");
  bad("boxes(replicated)", SHAPE(4), 1, "column 17: expected ';'");
  bad("boxes(replica;)", SHAPE(4), 1, "column 7: expected a rank, @FILE or replicated");
  bad("boxes(0:[0]+[4];)", SHAPE(4), 1, "column 17: expected a rank");
  bad("boxes(0[0]+[4])", SHAPE(4), 1, "column 8: expected ':'");
  bad("boxes(0:[0][4])", SHAPE(4), 1, "column 12: expected '+'");
  bad("boxes(0:[0,]+[4])", SHAPE(4), 1, "column 12: expected a number");
  bad("boxes(0:[0]+[4)", SHAPE(4), 1, "column 15: expected ']'");
  bad("boxes(0:[0,0]+[4,4])", SHAPE(4), 1, "column 9: 2 numbers, the tensor has 1 dims");
  bad("boxes(0:[-1]+[4])", SHAPE(4), 1, "column 10: expected a number");
  bad("boxes(1:[0]+[4])", SHAPE(4), 1, "column 7: rank 1 is not in the world of 1 ranks");
  bad("boxes(0:[1]+[4])", SHAPE(4), 1, "box 0 of rank 0 has offset 1 and extent 4 in dim 0 of shape 4");
  bad("boxes(0:[0]+[3];0:[2]+[2])", SHAPE(4), 1, "boxes 0 and 1 overlap at [2,3), both on rank 0");
  int64_t world;
  assert_int_equal(reshard_layout_parse_world("boxes(0:[0]+[1];1:[0,0]+[1,1])", &world), RESHARD_ERROR_INVALID);
  assert_string_equal(reshard_last_error(),
                      "layout \"boxes(0:[0]+[1];1:[0,0]+[1,1])\": column 19: 2 numbers, the tensor has 1 dims");
  assert_int_equal(reshard_layout_parse_world("boxes(0:[0,0,0,0,0,0,0,0,0]+[1])", &world), RESHARD_ERROR_INVALID);
  assert_string_equal(reshard_last_error(),
                      "layout \"boxes(0:[0,0,0,0,0,0,0,0,0]+[1])\": column 9: 9 numbers, a tensor has at most 8 dims");
}

static char file_path[TEMPORARY_PATH];

static void write_file(const char *text, size_t size) {
  snprintf(file_path, sizeof file_path, "%s/reshard-boxes-XXXXXX", temporary());
  int fd = mkstemp(file_path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, size), size);
  close(fd);
}

static void file_reads(const char *text, const char *before, int64_t world, const char *canonical) {
  char layout[TEMPORARY_PATH + 64];
  write_file(text, strlen(text));
  snprintf(layout, sizeof layout, "boxes(%s@%s)", before, file_path);
  reads(layout, SHAPE(13, 12), 0, world, canonical);
  unlink(file_path);
}

static void file_bad(const char *text, size_t size, const char *error) {
  char layout[TEMPORARY_PATH + 64], whole[2 * TEMPORARY_PATH];
  write_file(text, size);
  snprintf(layout, sizeof layout, "boxes(@%s)", file_path);
  snprintf(whole, sizeof whole, "box file \"%s\": %s", file_path, error);
  refuses(layout, SHAPE(13, 12), 0, RESHARD_ERROR_INVALID, whole);
  unlink(file_path);
}

CASE(test_box_files) {
  const char *two = "boxes(0:[0,0]+[5,12];1:[5,0]+[8,12])";
  file_reads("0 [0,0]+[5,12]\n1 [5,0]+[8,12]\n", "", 2, two);
  file_reads("# parts\r\n\r\n  0\t[ 0, 0 ] + [5,12]\r\n1 [5,0]+[8,12] # rest", "", 2, two);
  file_reads("\n\n0 [0,0]+[5,12]#\n \t\n1 [5,0]+[8,12]\n\n#", " ", 2, two);
  file_reads("0 [0,0]+[13,12]\n1 [0,0]+[13,12]\n", "replicated; ", 2,
             "boxes(replicated;0:[0,0]+[13,12];1:[0,0]+[13,12])");
#define BAD_FILE(text, error) file_bad(text, sizeof text - 1, error)
  BAD_FILE("0 [0,0]+[5,12]\n1 5,0]", "line 2, column 3: expected '['");
  BAD_FILE("0 [0,0]+[5,12] 1 [5,0]+[8,12]", "line 1, column 16: expected the end of the line");
  BAD_FILE("# a\n0 [0,0]+\n[5,12]", "line 2, column 9: expected '['");
  BAD_FILE("0 [0,0]+[5,12\n]", "line 1, column 14: expected ']'");
  BAD_FILE("0 [0]+[5]\n", "line 1, column 3: 1 numbers, the tensor has 2 dims");
  BAD_FILE("x", "line 1, column 1: expected a rank");
  BAD_FILE("0 [0,0]+[5,12]\n\0", "line 2, column 1: expected a rank");
  BAD_FILE("0 [0,0]+[5,12]\0\n", "line 1, column 15: expected the end of the line");
  BAD_FILE("0 [0,0]+[5,99999999999999999999]\n", "line 1, column 12: the number does not fit in 63 bits");
  refuses("boxes(@/nonexistent/boxes)", SHAPE(1), 1, RESHARD_ERROR_INVALID,
          "box file \"/nonexistent/boxes\": No such file or directory");
  refuses("boxes(@/)", SHAPE(1), 1, RESHARD_ERROR_INVALID, "box file \"/\": Is a directory");
  refuses("boxes(@/dev/zero)", SHAPE(1), 1, RESHARD_ERROR_INVALID,
          "box file \"/dev/zero\": longer than 67108864 bytes");
  bad("boxes(@)", SHAPE(1), 1, "column 8: expected the name of a file");
  bad("boxes(@parts", SHAPE(1), 1, "column 13: expected ')'");
  bad("boxes(@parts", SHAPE(1), 1, "column 13: expected ')'");
  write_file("", 0);
  char layout[TEMPORARY_PATH + 64];
  snprintf(layout, sizeof layout, "boxes(@%s)", file_path);
  reads(layout, SHAPE(4), 3, 3, "boxes()");
  unlink(file_path);
}

/* 40,000 boxes: more text than one read, and a string that is longer than an error can quote. */
CASE(texts_of_many_boxes_are_read_and_printed) {
  int64_t n = 40000;
  size_t size = 0, room = (size_t)n * 32;
  char *text = malloc(room), layout[TEMPORARY_PATH + 64];
  for (int64_t i = 0; i < n; i++)
    size += (size_t)snprintf(text + size, room - size, "%lld [%lld,0]+[1,2]\n", (long long)(i % 7), (long long)i);
  write_file(text, size);
  snprintf(layout, sizeof layout, "boxes(@%s)", file_path);
  reshard_layout a, b;
  assert_int_equal(reshard_layout_parse(layout, SHAPE(n, 2), 0, &a), RESHARD_SUCCESS);
  unlink(file_path);
  assert_int_equal(reshard_layout_check_source(a), RESHARD_SUCCESS);
  char *printed = print(a);
  assert_int_equal(reshard_layout_parse(printed, SHAPE(n, 2), 7, &b), RESHARD_SUCCESS);
  assert_true(reshard_layout_equal(a, b));
  printed[strlen(printed) - 2] = ';';
  assert_int_equal(reshard_layout_parse(printed, SHAPE(n, 2), 7, &b), RESHARD_ERROR_INVALID);
  assert_true(strlen(reshard_last_error()) < 300);
  assert_non_null(strstr(reshard_last_error(), "...\": column "));
  free(printed);
  free(text);
  reshard_layout_release(a);
  reshard_layout_release(b);
}

CASE(wrong_arguments_are_invalid) {
  reshard_layout layout = NULL;
  int64_t shape[1] = {4}, world;
  char text[64];
  assert_int_equal(reshard_layout_parse(NULL, 1, shape, 1, &layout), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_layout_parse("chunk(0)", 1, NULL, 1, &layout), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_layout_parse("chunk(0)", 1, shape, 1, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_layout_parse("chunk(0)", 9, shape, 1, &layout), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_layout_parse("chunk(0)", -1, shape, 1, &layout), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_layout_parse("chunk(0)", 1, shape, -1, &layout), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_layout_parse("chunk(0)", 1, (int64_t[]){-4}, 1, &layout), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_layout_parse_world(NULL, &world), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_layout_parse_world("chunk(0)", NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_layout_print(NULL, text, sizeof text, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_layout_parse("chunk(0)", 1, shape, 1, &layout), RESHARD_SUCCESS);
  assert_int_equal(reshard_layout_print(layout, NULL, 8, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_layout_print(layout, text, sizeof text, NULL), RESHARD_SUCCESS);
  assert_string_equal(text, "chunk(0;0)");
  reshard_layout_release(layout);
}

RUN_CASES
