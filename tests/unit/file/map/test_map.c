/* Maps: what each operation makes of the elements, on both sides; stars; what is refused, with its text. */
#include "map_arrays.h"
#include "support/fixtures/temporary.h"

#include <unistd.h>

static set source, target;

static void makes(const char *tensors, const char *map_text, const char *expected) {
  char text[8192];
  reshard_map map;
  if (reshard_map_parse(map_text, NULL, &map) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  read_set(tensors, &source);
  if (apply(map, &source, &target) != RESHARD_SUCCESS)
    fail_msg("%s\n%s", map_text, reshard_last_error());
  show(&source, &target, text, sizeof text);
  assert_string_equal(text, expected);
  clear(&target);
  clear(&source);
  reshard_map_free(map);
}

static void map_refused(const char *map_text, const char *expected) {
  reshard_map map = (reshard_map)&source;
  if (reshard_map_parse(map_text, "m", &map) != RESHARD_ERROR_INVALID)
    fail_msg("taken: %s", map_text);
  assert_ptr_equal(map, &source);
  assert_string_equal(reshard_last_error(), expected);
}

static void fails(const char *tensors, const char *map_text, const char *expected) {
  reshard_map map;
  if (reshard_map_parse(map_text, "m", &map) != RESHARD_SUCCESS)
    fail_msg("%s", reshard_last_error());
  read_set(tensors, &source);
  if (apply(map, &source, &target) != RESHARD_ERROR_INVALID)
    fail_msg("taken: %s", map_text);
  assert_string_equal(reshard_last_error(), expected);
  clear(&source);
  reshard_map_free(map);
}

/* --- Operations -------------------------------------------------------------------------------------------------- */

CASE(right_side_operations_move_each_element) {
  makes("a 2x2, b 1x2", "x = concat(0; a, b)", "x 3x2: a0 a1 a2 a3 b0 b1");
  makes("a 2x2, b 2x1", "x = concat(1; a, b)", "x 2x3: a0 a1 b0 a2 a3 b1");
  makes("a 2x2, b 2x1", "x = concat(-1; b, a)", "x 2x3: b0 a0 a1 b1 a2 a3");
  makes("a 2, b 0, c 1", "x = concat(0; a, b, c)", "x 3: a0 a1 c0");
  makes("a 2x2", "x = concat(1; a)", "x 2x2: a0 a1 a2 a3");
  makes("a 3, b 3", "x = stack(a, b)", "x 2x3: a0 a1 a2 b0 b1 b2");
  makes("a 3, b 3", "x = stack(1; a, b)", "x 3x2: a0 b0 a1 b1 a2 b2");
  makes("a 2x2, b 2x2", "x = stack(-2; a, b)", "x 2x2x2: a0 a1 b0 b1 a2 a3 b2 b3");
  makes("a 2x2, b 2x2", "x = stack(-1; a, b)", "x 2x2x2: a0 b0 a1 b1 a2 b2 a3 b3");
  makes("a scalar, b scalar", "x = stack(b, a)", "x 2: b0 a0");
  makes("a 2", "x = stack(a)", "x 1x2: a0 a1");
  makes("a 2x3", "x = transpose(a)", "x 3x2: a0 a3 a1 a4 a2 a5");
  makes("a 2x1x3", "x = transpose(a)", "x 2x3x1: a0 a1 a2 a3 a4 a5");
  makes("a 2x1x3", "x = transpose(1,2,0; a)", "x 1x3x2: a0 a3 a1 a4 a2 a5");
  makes("a 2x1x3", "x = transpose(-1,0,-2; a)", "x 3x2x1: a0 a3 a1 a4 a2 a5");
  makes("a 2x2, b 2x2", "x = transpose(concat(0; a, transpose(b)))", "x 2x4: a0 a2 b0 b1 a1 a3 b2 b3");
  makes("a 2, b 2, c 2", "x = concat(0; stack(a, b), stack(c))", "x 3x2: a0 a1 b0 b1 c0 c1");
  makes("a 2, b 2", "x = transpose(stack(b, a))", "x 2x2: b0 a0 b1 a1");
  makes("a 1x1x1x1x1x1x2", "x = stack(7; a, a)", "x 1x1x1x1x1x1x2x2: a0 a0 a1 a1");
  makes("a 2 bf16", "x = a", "x 2 bf16: a0 a1");
  makes("", "# nothing", "");
}

CASE(cast_gives_a_dtype_at_any_place_of_the_right_side) {
  makes("a 2 f32", "x = cast(bf16; a)", "x 2 bf16: a0 a1");
  makes("a 2 f32", "x = cast(F8_E4M3; a)", "x 2 f8_e4m3: a0 a1");
  makes("a 2 bf16", "x = cast( bf16 ; a )", "x 2 bf16: a0 a1");
  makes("a 2 f32, b 1 bf16", "x = concat(0; cast(bf16; a), b)", "x 3 bf16: a0 a1 b0");
  makes("a 2 f32, b 1 bf16", "x = concat(0; a, zeros():1, cast(f32; b))", "x 4 f32: a0 a1 0 b0");
  makes("a 2x2 f16", "x = transpose(cast(f64; a))", "x 2x2 f64: a0 a2 a1 a3");
  makes("a 1 f32, b 1 f32", "x = cast(f16; stack(b, a))", "x 2x1 f16: b0 a0");
  makes("l.0.w 1 f32, l.1.w 1 f16", "l.*.w = cast(bf16; l.*.w)", "l.0.w 1 bf16: l.0.w0, l.1.w 1 bf16: l.1.w0");
  makes("e.0.w 1 f32, e.1.w 1 f32", "e = cast(bf16; stack(e.*.w))", "e 2x1 bf16: e.0.w0 e.1.w0");
  makes("x 3 f32", "concat(0; a:2, b) = cast(bf16; x)", "a 2 bf16: x0 x1, b 1 bf16: x2");
  makes("x 3 f32, y 1 f32", "concat(0; a:2, b) = cast(bf16; x)\ny = y", "a 2 bf16: x0 x1, b 1 bf16: x2, y 1 f32: y0");
}

CASE(casts_that_have_no_meaning_are_refused) {
  static const char wanted[] =
      "before ';' of a cast stands f64, f32, f16, bf16, f8_e4m3, f8_e5m2 or f8_e4m3/128x128, not";
  static const struct {
    const char *map, *at, *wrong; /* NULL: `wanted`, and this word */
  } texts[] = {
      {"x = cast(i32; a)", "m:1:10", "'i32'"},
      {"x = cast(f8_e8m0; a)", "m:1:10", "'f8_e8m0'"},
      {"x = cast(bf17; a)", "m:1:10", "'bf17'"},
      {"x = cast(bf16,f16; a)", "m:1:10", "'bf16'"},
      {"x = cast(concat(0; a); a)", "m:1:10", "'concat'"},
  };
  char text[256];
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    snprintf(text, sizeof text, "%s: %s %s", texts[i].at, wanted, texts[i].wrong);
    map_refused(texts[i].map, text);
  }
  map_refused("x = cast(a)", "m:1:5: cast has a dtype first, and one part: cast(bf16; X)");
  map_refused("x = cast(bf16; a, b)", "m:1:5: cast has a dtype first, and one part: cast(bf16; X)");
  map_refused("cast(bf16; x) = a", "m:1:1: cast stands on the right side");
  map_refused("concat(0; x, cast(bf16; y)) = a", "m:1:14: cast stands on the right side");
  map_refused("x = cast(bf16; a.*)",
              "m:1:16: 'a.*' has 1 '*', the other side 0; one more is for a name alone in stack or concat");
  map_refused("concat(0; x, y) = cast(bf16; concat(0; a, b))",
              "m:1:30: concat on the left side and concat on the right: one side is a name");
  fails("a 2", "x = cast(bf16; a)", "m:1:5: cast: no cast to bf16: 2 i32 ('a')");
  fails("a 2 f32", "x = cast(bf16; concat(0; cast(f16; a)))", "m:1:5: cast: a cast inside of a cast: 2 f16 ('a')");
  fails("a 2 f32, b 2 f32", "x = concat(0; cast(bf16; a), b)",
        "m:1:5: concat along dim 0: 2 bf16 ('a') and 2 f32 ('b') do not fit");
}

/* Zeros stand at each place of a concat, in each dim, below other operations; parts are dropped likewise. */
CASE(zeros_and_drops_stand_at_any_place_of_a_concat) {
  makes("a 2", "x = concat(0; a, zeros():2)", "x 4: a0 a1 0 0");
  makes("a 2", "x = concat(0; zeros():1, zeros():2, a)", "x 5: 0 0 0 a0 a1");
  makes("a 2, b 1", "x = concat(0; zeros():1, a, zeros ( ) : 1, b, zeros():1)", "x 6: 0 a0 a1 0 b0 0");
  makes("a 2, b 1", "x = concat(0; a, zeros():0, b)", "x 3: a0 a1 b0");
  makes("a 0x2", "x = concat(0; a, zeros():1)", "x 1x2: 0 0");
  makes("a 2x1 bf16", "x = concat(-1; a, zeros():1)", "x 2x2 bf16: a0 0 a1 0");
  makes("a 2x1", "x = transpose(concat(1; zeros():1, a))", "x 2x2: 0 0 a0 a1");
  makes("a 1, b 2", "x = stack(concat(0; a, zeros():1), b)", "x 2x2: a0 0 b0 b1");
  makes("l.0.w 1, l.1.w 1", "l.*.w = concat(0; zeros():1, l.*.w)", "l.0.w 2: 0 l.0.w0, l.1.w 2: 0 l.1.w0");
  makes("x 4", "concat(0; a:1, drop():2, b:1) = x", "a 1: x0, b 1: x3");
  makes("x 4", "concat(0; drop():1, a, drop():2) = x", "a 1: x1");
  makes("x 4", "concat(0; drop():0, a, b, drop():0) = x", "a 2: x0 x1, b 2: x2 x3");
  makes("x 2x3", "transpose(concat(0; drop():1, stack(a, b):2)) = x", "a 2: x1 x4, b 2: x2 x5");
  makes("x 3x2", "concat(0; drop():1, concat(1; a, drop():1)) = x", "a 2x1: x2 x4");
  fails("x 4", "concat(0; a:1, drop():2) = x", "m:1:1: concat: the sizes add up to 3, not 4: 4 i32 ('x')");
  fails("x 4", "concat(0; a, drop():5) = x", "m:1:1: concat: the sizes add up to 5, not 4: 4 i32 ('x')");
  fails("a 4", "x = concat(0; a, zeros():9223372036854775807)", "m:1:5: concat: the sizes add up to more than 2^63");
  fails("a 4", "x = concat(0; zeros():9223372036854775807, zeros():1, a)",
        "m:1:5: concat: the sizes add up to more than 2^63");
  fails("b 4", "x.* = concat(0; zeros():1, a.*)\n* = *",
        "m:1:28: no tensor that the lines before have left matches 'a.*'");
}

CASE(left_side_operations_cut_each_element) {
  makes("x 3x2", "concat(0; a:1, b:2) = x", "a 1x2: x0 x1, b 2x2: x2 x3 x4 x5");
  makes("x 2x4", "concat(-1; a, b) = x", "a 2x2: x0 x1 x4 x5, b 2x2: x2 x3 x6 x7");
  makes("x 5", "concat(0; a, b:1, c) = x", "a 2: x0 x1, b 1: x2, c 2: x3 x4");
  makes("x 2", "concat(0; a:0, b) = x", "a 0, b 2: x0 x1");
  makes("x 2", "concat(0; a, b:2) = x", "a 0, b 2: x0 x1");
  makes("x 2x3", "stack(a, b) = x", "a 3: x0 x1 x2, b 3: x3 x4 x5");
  makes("x 2x3", "stack(-1; a, b, c) = x", "a 2: x0 x3, b 2: x1 x4, c 2: x2 x5");
  makes("x 1", "stack(a) = x", "a scalar: x0");
  makes("x 2x3", "transpose(a) = x", "a 3x2: x0 x3 x1 x4 x2 x5");
  makes("x 1x3x2", "transpose(1,2,0; a) = x", "a 2x1x3: x0 x2 x4 x1 x3 x5");
  makes("x 2x4", "transpose(concat(0; a:3, transpose(b))) = x", "a 3x2: x0 x4 x1 x5 x2 x6, b 2x1: x3 x7");
  makes("x 3x2", "concat(0; stack(a, b):2, stack(c)) = x", "a 2: x0 x1, b 2: x2 x3, c 2: x4 x5");
  makes("x 0x2, y 1", "stack(a.*) = x\n* = *", "y 1: y0");
}

/* Groups of query heads with their heads of k and v, as Megatron's linear_qkv has them. */
CASE(interleave_takes_a_group_of_each_in_turn_and_gives_it_back) {
  makes("q 4, k 2, v 2", "x = interleave(0,2; q, k, v)", "x 8: q0 q1 k0 v0 q2 q3 k1 v1");
  makes("x 8", "interleave(0,2; q:4, k:2, v:2) = x", "q 4: x0 x1 x4 x5, k 2: x2 x6, v 2: x3 x7");
  makes("x 6", "interleave(0,3; a, b) = x", "a 3: x0 x2 x4, b 3: x1 x3 x5");
  makes("a 2x2, b 2x4", "x = interleave(-1,2; a, b)", "x 2x6: a0 b0 b1 a1 b2 b3 a2 b4 b5 a3 b6 b7");
  makes("a 2, b 2", "x = interleave(0,2; concat(0; a, zeros():2), b)", "x 6: a0 a1 b0 0 0 b1");
  makes("a 2x2, b 2x2", "x = transpose(interleave(0,2; transpose(a), b))", "x 2x4: a0 b0 a1 b2 a2 b1 a3 b3");
  makes("x 8", "interleave(0,2; concat(0; a:1, b:3), c:4) = x", "a 1: x0, b 3: x1 x4 x5, c 4: x2 x3 x6 x7");
  makes("x 4x2", "interleave(0,2; stack(a, b):2, transpose(c)) = x", "a 2: x0 x1, b 2: x4 x5, c 2x2: x2 x6 x3 x7");
  makes("e.0 2, e.1 2", "x = interleave(0,2; e.*)", "x 4: e.00 e.10 e.01 e.11");
  makes("x 4", "interleave(0,2; e.*:2) = x", "e.0 2: x0 x2, e.1 2: x1 x3");
  makes("a 0, b 2", "x = interleave(0,2; a, b)", "x 2: b0 b1");
  makes("a 0, b 2", "x = interleave(0,2; concat(0; a, zeros():2), b)", "x 4: 0 b0 0 b1");
  makes("a 0, b 2", "x = interleave(0,2; concat(0; zeros():2, a), b)", "x 4: 0 b0 0 b1");
  makes("x 2", "interleave(0,2; a:0, b) = x", "a 0, b 2: x0 x1");
  fails("a 3, b 2", "x = interleave(0,2; a, b)",
        "m:1:5: interleave: part 0 has 3 indices, no multiple of 2 groups, in 5 i32 ('a')");
  fails("x 5", "interleave(0,2; a:2, b:3) = x",
        "m:1:1: interleave: part 1 has 3 indices, no multiple of 2 groups, in 5 i32 ('x')");
  fails("x 5", "interleave(0,2; a:2, b:2) = x", "m:1:1: interleave: the sizes add up to 4, not 5: 5 i32 ('x')");
}

CASE(stars_apply_a_line_to_each_match) {
  const char *layers = "l.1.k 1, l.0.q 2, n 1, l.1.q 2, l.0.k 1";
  makes(layers, "* = *", "l.1.k 1: l.1.k0, l.0.q 2: l.0.q0 l.0.q1, n 1: n0, l.1.q 2: l.1.q0 l.1.q1, l.0.k 1: l.0.k0");
  makes(layers, "l.*.qk = concat(0; l.*.q, l.*.k)\n* = *",
        "l.1.qk 3: l.1.q0 l.1.q1 l.1.k0, l.0.qk 3: l.0.q0 l.0.q1 l.0.k0, n 1: n0");
  makes(layers, "first = l.0.q\nh.*.* = l.*.*\nm.* = *",
        "first 2: l.0.q0 l.0.q1, h.1.k 1: l.1.k0, h.1.q 2: l.1.q0 l.1.q1, h.0.k 1: l.0.k0, m.n 1: n0");
  makes(layers, "drop(l.*.q)\ndrop(n)\n* = *", "l.1.k 1: l.1.k0, l.0.k 1: l.0.k0");
  makes("a.b.w 1, a.w 1", "x.* = *.w\n* = *", "x.a 1: a.w0, a.b.w 1: a.b.w0");
  makes("abbc 1, a1b2c 1, ab2c 1", "x.*.* = a*b*c\n* = *", "x.1.2 1: a1b2c0, abbc 1: abbc0, ab2c 1: ab2c0");
  makes("a.b 1, a 1", "x.* = *", "x.a.b 1: a.b0, x.a 1: a0");
}

CASE(star_in_stack_spreads_over_numbers_in_order) {
  const char *experts =
      "e.10.w 1, e.2.w 1, e.0.w 1, e.1.w 1, e.3.w 1, e.4.w 1, e.5.w 1, e.6.w 1, e.9.w 1, e.8.w 1, e.7.w 1";
  makes(experts, "x = stack(e.*.w)",
        "x 11x1: e.0.w0 e.1.w0 e.2.w0 e.3.w0 e.4.w0 e.5.w0 e.6.w0 e.7.w0 e.8.w0 e.9.w0 e.10.w0");
  makes("e.01 1, e.00 2", "x = concat(0; e.*)", "x 3: e.000 e.001 e.010");
  makes("l.1.e.0 1, l.0.e.1 1, l.0.e.0 1", "l.*.e = stack(l.*.e.*)",
        "l.1.e 1x1: l.1.e.00, l.0.e 2x1: l.0.e.00 l.0.e.10");
  makes("l.0.e.1.g 1, l.0.e.0.g 1, l.0.e.0.u 1, l.0.e.1.u 1", "l.*.gu = concat(1; stack(l.*.e.*.g), stack(l.*.e.*.u))",
        "l.0.gu 2x2: l.0.e.0.g0 l.0.e.0.u0 l.0.e.1.g0 l.0.e.1.u0");
  makes("e.1.x.w 1, e..w 1, e.0.w 1", "x = stack(e.*.w)\n* = *", "x 1x1: e.0.w0, e.1.x.w 1: e.1.x.w0, e..w 1: e..w0");
  makes("0 1, 1 1, a 1", "a = a\nx = stack(*)", "a 1: a0, x 2x1: 00 10");
  makes("l.0.w 2x1, l.1.w 1x1", "stack(l.*.e.*) = l.*.w", "l.0.e.0 1: l.0.w0, l.0.e.1 1: l.0.w1, l.1.e.0 1: l.1.w0");
  makes("x 6", "concat(0; e.*.w:2) = x", "e.0.w 2: x0 x1, e.1.w 2: x2 x3, e.2.w 2: x4 x5");
  makes("x 2x2", "concat(1; stack(g.*), stack(u.*)) = x", "g.0 1: x0, g.1 1: x2, u.0 1: x1, u.1 1: x3");
}

CASE(tensor_is_taken_once_by_stars_and_often_by_name) {
  makes("a 1, b 1", "c = a\nd = a\n* = *", "c 1: a0, d 1: a0, b 1: b0");
  makes("a 1", "drop(a)\nb = a", "b 1: a0");
  makes("e.0 1, e.1 1", "x = stack(e.*)\ny = e.1", "x 2x1: e.00 e.10, y 1: e.10");
  makes("e.0 1, e.1 1", "x = concat(1; stack(e.*), stack(e.*))", "x 2x2: e.00 e.00 e.10 e.10");
  makes("l.0 1", "x.* = concat(0; l.*, l.*)", "x.0 2: l.00 l.00");
  /* A tensor that fits two names of a line goes to the first match; the rest of the other match follows. */
  makes("b.a 1, b.b 1, a.a 1", "x.* = concat(0; *.a, b.*)", "x.b 2: b.a0 b.b0, x.a 2: a.a0 b.a0");
}

CASE(spaces_comments_and_newlines_are_free) {
  makes("a 1, b 1", "\xef\xbb\xbf# first\r\n\r\n  x=concat ( 0 ;a,b )#c\r\n", "x 2: a0 b0");
  makes("a 1, b 1", "x = concat(0; # both\n\n   a,   # a\n b)\n", "x 2: a0 b0");
  makes("z 2", "concat(0;\nx:1\n,y:\n1) = \tz", "x 1: z0, y 1: z1");
  makes("concat 1, drop 1, 1 1", "0 = stack(1)\ntranspose=concat\nstack = drop",
        "0 1x1: 10, transpose 1: concat0, stack 1: drop0");
  makes("a-b/c[0]{}!'@$%^&+|<>.?~` 1", "x = a-b/c[0]{}!'@$%^&+|<>.?~`", "x 1: a-b/c[0]{}!'@$%^&+|<>.?~`0");
  makes("a*b 1, a*c 1", "\"x y\".* = \"a*\"*", "x y.b 1: a*b0, x y.c 1: a*c0");
  makes("a\"b\\ 1", "\"(\\\"\\\\)\" = a\"\\\"\"b\"\\\\\"", "(\"\\) 1: a\"b\\0");
}

/* --- Refusals ---------------------------------------------------------------------------------------------------- */

CASE(test_refused_text) {
  static const char *const cases[][2] = {
      {"a", "m:1:2: '=' is expected, not the end"},
      {"\n\na b", "m:3:3: '=' is expected, not 'b'"},
      {"a =", "m:1:4: a name or an operation is expected, not the end"},
      {"= a", "m:1:1: a name or an operation is expected, not '='"},
      {"a = b c", "m:1:7: the end of the line is expected, not 'c'"},
      {"a = b = c", "m:1:7: the end of the line is expected, not '='"},
      {"a = \x01:", "m:1:6: the end of the line is expected, not ':'"},
      {"a\n= b", "m:1:2: '=' is expected, not the end"},
      {"x = concat(0; a, b", "m:1:19: ',' or ')' is expected, not the end"},
      {"x = concat(0; a,\n  b\n", "m:3:1: ',' or ')' is expected, not the end"},
      {"x = concat(0; a, b))", "m:1:20: the end of the line is expected, not ')'"},
      {"x = concat(0; a,)", "m:1:17: a name or an operation is expected, not ')'"},
      {"x = concat()", "m:1:12: a name or an operation is expected, not ')'"},
      {"x = concat(a, b)", "m:1:5: concat has one dim first: concat(0; ...)"},
      {"x = concat(0, 1; a, b)", "m:1:5: concat has one dim first: concat(0; ...)"},
      {"x = concat(0; 1; a, b)", "m:1:16: ',' or ')' is expected, not ';'"},
      {"x = interleave(0; a)", "m:1:5: interleave has one dim and a number of groups first: interleave(0,8; ...)"},
      {"x = interleave(a, b)", "m:1:5: interleave has one dim and a number of groups first: interleave(0,8; ...)"},
      {"x = interleave(0, 0; a)", "m:1:19: 0 groups: 1 or more, below 2^63"},
      {"x = interleave(0, 8, 1; a)",
       "m:1:5: interleave has one dim and a number of groups first: interleave(0,8; ...)"},
      {"x = interleave(0, 8; a:1)", "m:1:22: a size (':1') is for parts of concat on the left side"},
      {"x = interleave(0, 8; a, zeros():1)", "m:1:25: zeros():N is a part of concat on the right side, with its size"},
      {"x = stack(0, 1; a, b)", "m:1:5: stack has one dim, not 2"},
      {"x = stack(z; a, b)", "m:1:11: before ';' stand dims, and 'z' is none"},
      {"x = stack(0x1; a, b)", "m:1:11: before ';' stand dims, and '0x1' is none"},
      {"x = stack(stack(a); a, b)", "m:1:11: before ';' stand dims, and 'stack' is none"},
      {"x = stack(8; a, b)", "m:1:11: dim 8: a tensor has 8 at most"},
      {"x = stack(-99999999999999999999; a, b)", "m:1:11: dim -9223372036854775808: a tensor has 8 at most"},
      {"x = transpose(0,1,2,3,4,5,6,7,0; a)", "m:1:31: more than 8 dims"},
      {"x = transpose(a, b)", "m:1:5: transpose has one part, not 2; dims stand before ';': transpose(1,0; X)"},
      {"x = gather(a)", "m:1:5: no operation 'gather': there are concat, interleave, stack, transpose, cast, drop "
                        "alone on its line, and "
                        "zeros():N, drop():N as parts of concat"},
      {"x = stack(drop(a))", "m:1:16: ')' is expected, not 'a'"},
      {"x = concat(0; a, zeros(b):1)", "m:1:24: ')' is expected, not 'b'"},
      {"x = concat(0; a, zeros(0; b):1)", "m:1:24: ')' is expected, not '0'"},
      {"x = concat(0; a, zeros())", "m:1:18: zeros():N is a part of concat on the right side, with its size"},
      {"x = concat(0; a, zeros():-1)", "m:1:26: a size below 2^63 is expected, not '-'"},
      {"x = concat(0; a, drop():1)", "m:1:18: drop():N is a part of concat on the left side, with its size"},
      {"concat(0; a, zeros():1) = x", "m:1:14: zeros():N is a part of concat on the right side, with its size"},
      {"concat(0; a, drop()) = x", "m:1:14: drop():N is a part of concat on the left side, with its size"},
      {"x = stack(a, zeros())", "m:1:14: zeros():N is a part of concat on the right side, with its size"},
      {"x = transpose(zeros())", "m:1:15: zeros():N is a part of concat on the right side, with its size"},
      {"x = zeros()", "m:1:5: zeros():N is a part of concat on the right side, with its size"},
      {"x = concat(0; zeros():1, zeros():2)", "m:1:5: concat: no part of it is a tensor"},
      {"concat(0; drop():8) = x", "m:1:1: concat: no part of it is a tensor"},
      {"x = stack(concat(0; zeros():1), a)", "m:1:11: concat: no part of it is a tensor"},
      {"drop(stack(a))", "m:1:6: drop has a name, not stack"},
      {"drop(a, b)", "m:1:7: ')' is expected, not ','"},
      {"drop(a) = b", "m:1:9: the end of the line is expected, not '='"},
      {"concat(0; a, b) = concat(0; c, d)",
       "m:1:19: concat on the left side and concat on the right: one side is a name"},
      {"x = \"a", "m:1:5: '\"' without another on the line"},
      {"x = \"a\\b\"", "m:1:7: '\\' in a quoted name is followed by '\"' or '\\'"},
      {"x = \"\"", "m:1:5: an empty name"},
      {"x = a.**", "m:1:7: '**' is not known; a '*' is any characters but '.'"},
      {"x = a.*", "m:1:5: 'a.*' has 1 '*', the other side 0; one more is for a name alone in stack or concat"},
      {"x.* = a", "m:1:7: 'a' has 0 '*', the other side 1"},
      {"x.* = stack(a.*, b)", "m:1:18: 'b' has 0 '*', the other side 1"},
      {"x = stack(a.*, b.*)",
       "m:1:11: 'a.*' has 1 '*', the other side 0; one more is for a name alone in stack or concat"},
      {"x = stack(a.*.*)", "m:1:11: 'a.*.*' has 2 '*', the other side 0"},
      {"x = transpose(a.*)",
       "m:1:15: 'a.*' has 1 '*', the other side 0; one more is for a name alone in stack or concat"},
      {"x = stack(stack(a.*))\ny = transpose(stack(stack(a.*), b.*))",
       "m:2:33: 'b.*' has 1 '*', the other side 0; one more is for a name alone in stack or concat"},
      {"concat(0; a.*) = x", "m:1:11: 'a.*' as parts of concat on the left side needs their size: 'a.*:SIZE'"},
      {"concat(0; a.*:0) = x", "m:1:11: 'a.*' as parts of concat on the left side needs their size: 'a.*:SIZE'"},
      {"concat(0; a:-1, b) = x", "m:1:13: a size below 2^63 is expected, not '-'"},
      {"concat(0; a:99999999999999999999, b) = x", "m:1:13: a size below 2^63 is expected, not '9'"},
      {"a:4 = x", "m:1:2: '=' is expected, not ':'"},
      {"stack(a:4) = x", "m:1:7: a size (':4') is for parts of concat on the left side"},
      {"x = concat(0; a:4, b)", "m:1:15: a size (':4') is for parts of concat on the left side"},
      {"concat(0:1; a) = x", "m:1:8: before ';' stand dims, and '0' is none"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    map_refused(cases[i][0], cases[i][1]);
}

CASE(wrong_maps_are_refused_with_line_and_column) {
  static const char *const cases[][3] = {
      {"a 1", "x = b", "m:1:5: there is no tensor 'b'"},
      {"a 1, b 1", "\n x = a", "m: no line takes 'b'; add one, such as '* = *' or 'drop(NAME)'"},
      {"a 1, b 1, c 1", "x = b", "m: no line takes 'a' and 1 more; add one, such as '* = *' or 'drop(NAME)'"},
      {"a 1", "x = a\n\nx = a\n", "m:3: 'x' is made twice, line 1 makes it too"},
      {"a 1, b 1", "concat(0; x, x) = a\ny = b", "m:1:1: concat: 1 do not divide in 2 equal parts: 1 i32 ('a')"},
      {"a 1, x 1", "x = a\n* = *", "m:2: 'x' is made twice, line 1 makes it too"},
      {"a 1", "* = *\nx.* = b.*", "m:2:7: no tensor that the lines before have left matches 'b.*'"},
      {"a 1", "* = *\n  y.* = concat(0;\n b.*, c.*)", "m:3:2: no tensor that the lines before have left matches 'b.*'"},
      {"a 1", "* = *\n* = *", "m:2:5: no tensor that the lines before have left matches '*'"},
      {"a 1", "x = stack(b.*)\n* = *", "m:1:11: no tensor that the lines before have left matches 'b.*'"},
      {"a 1", "drop(b)\n* = *", "m:1:6: there is no tensor 'b'"},
      {"a 1", "drop(b.*)\n* = *", "m:1:6: no tensor that the lines before have left matches 'b.*'"},
      {"l.0.q 1, l.1.q 1, l.0.k 1", "l.*.qk = concat(0; l.*.q, l.*.k)",
       "m:1:27: there is no tensor 'l.1.k' to go with 'l.1.q'"},
      {"l.0.q 1, l.0.k 1", "x = l.0.k\nl.*.qk = concat(0; l.*.q, l.*.k)",
       "m:2:27: line 1 has taken 'l.0.k', which goes with 'l.0.q'"},
      {"e.0 1, e.1 1, e.3 1", "x = stack(e.*)", "m:1:11: 'e.2' is missing among the 3 that match 'e.*'"},
      {"e.1 1", "x = stack(e.*)", "m:1:11: 'e.0' is missing among the 1 that match 'e.*'"},
      {"e.99999999999999999999999 1", "x = stack(e.*)", "m:1:11: 'e.0' is missing among the 1 that match 'e.*'"},
      {"e.0 1, e.1 1, e.2 1", "y = e.1\nx = stack(e.*)",
       "m:2:11: 'e.1' is missing among the 2 that match 'e.*': line 1 has taken it"},
      {"e.0 1, e.shared 1", "x = stack(e.*)", "m:1:11: 'e.shared' has no index where the last '*' is"},
      {"e.1 1, e.01 1", "x = stack(e.*)", "m:1:11: 'e.01' and 'e.1' have the same index"},
      {"l.0.e.0 1, l.1.w 1", "l.*.x = concat(0; l.*.w, concat(0; l.*.e.*))",
       "m:1:19: there is no tensor 'l.0.w' to go with 'l.0.e.0'"},
      {"a 2x3, b 3x3", "x = concat(1; a, b)", "m:1:5: concat along dim 1: 2x3 i32 ('a') and 3x3 i32 ('b') do not fit"},
      {"a 2x3, b 3", "x = concat(0; a, b)", "m:1:5: concat along dim 0: 2x3 i32 ('a') and 3 i32 ('b') do not fit"},
      {"a 2x3, b 2x3 f32", "x = concat(0; a, b)",
       "m:1:5: concat along dim 0: 2x3 i32 ('a') and 2x3 f32 ('b') do not fit"},
      {"a 2x3, b 2x4", "x = stack(a, b)", "m:1:5: stack along dim 0: 2x3 i32 ('a') and 2x4 i32 ('b') do not fit"},
      {"a 2x3, b 4x3", "x = stack(a, b)", "m:1:5: stack along dim 0: 2x3 i32 ('a') and 4x3 i32 ('b') do not fit"},
      {"a 2, b 2x3", "x = stack(a, b)", "m:1:5: stack along dim 0: 2 i32 ('a') and 2x3 i32 ('b') do not fit"},
      {"a 2, b 2, c 3", "x = concat(0; stack(a, b), stack(c))",
       "m:1:5: concat along dim 0: 2x2 i32 ('a') and 1x3 i32 ('c') do not fit"},
      {"a 2x3", "x = concat(2; a)", "m:1:5: concat: no dim 2 in 2x3 i32 ('a')"},
      {"a 2x3", "x = concat(-3; a)", "m:1:5: concat: no dim -3 in 2x3 i32 ('a')"},
      {"a scalar, b scalar", "x = concat(0; a, b)", "m:1:5: concat: no dim 0 in scalar i32 ('a')"},
      {"a 2x3", "x = stack(3; a)", "m:1:5: stack: no dim 3 in a stack of 2x3 i32 ('a')"},
      {"a 1x1x1x1x1x1x1x1", "x = stack(a)", "m:1:5: stack: 9 dims, 8 at most, in a stack of 1x1x1x1x1x1x1x1 i32 ('a')"},
      {"a 2", "x = transpose(a)", "m:1:5: transpose: fewer than two dims: 2 i32 ('a')"},
      {"a scalar", "x = transpose(a)", "m:1:5: transpose: fewer than two dims: scalar i32 ('a')"},
      {"a 2", "x = transpose(0; a)", "m:1:5: transpose: fewer than two dims: 2 i32 ('a')"},
      {"a 2x3", "x = transpose(0; a)", "m:1:5: transpose: each of the 2 dims must be there once: 2x3 i32 ('a')"},
      {"a 2x3", "x = transpose(1,1; a)", "m:1:5: transpose: each of the 2 dims must be there once: 2x3 i32 ('a')"},
      {"a 2x3", "x = transpose(0,1,2; a)", "m:1:5: transpose: each of the 2 dims must be there once: 2x3 i32 ('a')"},
      {"a 2x3", "x = transpose(0,2; a)", "m:1:5: transpose: each of the 2 dims must be there once: 2x3 i32 ('a')"},
      {"x 5", "concat(0; a, b) = x", "m:1:1: concat: 5 do not divide in 2 equal parts: 5 i32 ('x')"},
      {"x 5", "concat(0; a:2, b:2) = x", "m:1:1: concat: the sizes add up to 4, not 5: 5 i32 ('x')"},
      {"x 5", "concat(0; a:2, b:4) = x", "m:1:1: concat: the sizes add up to 6, not 5: 5 i32 ('x')"},
      {"x 5", "concat(0; a:6, b) = x", "m:1:1: concat: the sizes add up to 6, not 5: 5 i32 ('x')"},
      {"x 5", "concat(0; a:2, b, c) = x", "m:1:1: concat: 3 do not divide in 2 equal parts: 5 i32 ('x')"},
      {"x 5", "concat(0; a:9223372036854775807, b:9223372036854775807) = x",
       "m:1:34: concat: the sizes add up to more than 2^63"},
      {"x 5x2", "concat(0; e.*:2) = x", "m:1:11: concat: parts of 2 do not divide 5: 5x2 i32 ('x')"},
      {"x 5", "stack(a, b) = x", "m:1:1: stack: 2 parts for 5 indices: 5 i32 ('x')"},
      {"x scalar", "stack(a) = x", "m:1:1: stack: no dim 0 in scalar i32 ('x')"},
      {"x 5", "transpose(a) = x", "m:1:1: transpose: fewer than two dims: 5 i32 ('x')"},
      {"x 5x1", "transpose(stack(a, b)) = x", "m:1:11: stack: 2 parts for 1 indices: 1x5 i32 ('x')"},
      {"x 5x1", "stack(2; a, b) = x", "m:1:1: stack: no dim 2 in 5x1 i32 ('x')"},
      {"a 1048576x1048576x1048576 u8", "x = concat(0; a, a, a, a, a, a, a, a)",
       "m:1: tensor 'x': shape 8388608x1048576x1048576 of 1-byte elements overflows 2^63 bytes"},
      {"a 1152921504606846976 u8", "x = concat(0; a, a, a, a)\ny = concat(0; a, a, a, a)",
       "m:2: with tensor 'y' the model has more than 2^63 bytes"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    fails(cases[i][0], cases[i][1], cases[i][2]);
}

CASE(operations_nest_to_a_limit) {
  for (int depth = 60; depth < 70; depth++) {
    char text[1024] = "x = ";
    for (int i = 0; i < depth; i++)
      strcat(text, "concat(0;");
    strcat(text, "a");
    for (int i = 0; i < depth; i++)
      strcat(text, ")");
    if (depth <= 64)
      makes("a 2", text, "x 2: a0 a1");
    else
      map_refused(text, "m:1:581: more than 64 operations inside one another");
  }
  /* Much deeper: by the limit, not by the stack. */
  size_t n = (size_t)1 << 20;
  char *text = malloc(6 * n + 16);
  assert_non_null(text);
  strcpy(text, "x = ");
  for (size_t i = 0; i < n; i++)
    memcpy(text + 4 + 6 * i, "stack(", 7);
  map_refused(text, "m:1:389: more than 64 operations inside one another");
  free(text);
}

CASE(wrong_arguments_are_invalid) {
  reshard_map map = NULL;
  reshard_model model;
  assert_int_equal(reshard_map_parse(NULL, "m", &map), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_map_parse("", "m", NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_map_load(NULL, &map), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_map_load("x", NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_map_model(NULL, NULL, &model), RESHARD_ERROR_INVALID);
  read_set("b 1, a 2x1", &source);
  reshard_model from = model_of(&source);
  assert_int_equal(reshard_map_model(NULL, from, NULL), RESHARD_ERROR_INVALID);
  reshard_model_free(from);
  reshard_map_free(NULL);
  /* No map: all as it is. */
  assert_int_equal(apply(NULL, &source, &target), RESHARD_SUCCESS);
  char text[256];
  show(&source, &target, text, sizeof text);
  assert_string_equal(text, "b 1: b0, a 2x1: a0 a1");
  clear(&source);
  clear(&target);
}

static void write_file(const char *path, const char *bytes, size_t n) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, n, file), n);
  assert_int_equal(fclose(file), 0);
}

CASE(map_file_is_read_or_refused_by_name) {
  char path[TEMPORARY_PATH], expected[TEMPORARY_PATH + 128];
  reshard_map map = NULL;
  snprintf(path, sizeof path, "%s/reshard-map-%ld", temporary(), (long)getpid());
  assert_int_equal(reshard_map_load(path, &map), RESHARD_ERROR_INVALID);
  snprintf(expected, sizeof expected, "map file '%s': No such file or directory", path);
  assert_string_equal(reshard_last_error(), expected);
  write_file(path, "a = b\n\0c", 8);
  assert_int_equal(reshard_map_load(path, &map), RESHARD_ERROR_INVALID);
  snprintf(expected, sizeof expected, "map file '%s': byte 6 is NUL, this is no text", path);
  assert_string_equal(reshard_last_error(), expected);
  write_file(path, "a = b\nc\n", 8);
  assert_int_equal(reshard_map_load(path, &map), RESHARD_ERROR_INVALID);
  snprintf(expected, sizeof expected, "%s:2:2: '=' is expected, not the end", path);
  assert_string_equal(reshard_last_error(), expected);
  write_file(path, "x = a\n", 6);
  assert_int_equal(reshard_map_load(path, &map), RESHARD_SUCCESS);
  unlink(path);
  reshard_map_free(map);
  /* Text of others in an error: one line, and not long. */
  char long_text[3000] = "x = \x1b[31m";
  memset(long_text + strlen(long_text), 'y', 2000);
  strcat(long_text, "()");
  assert_int_equal(reshard_map_parse(long_text, "a\nb", &map), RESHARD_ERROR_INVALID);
  assert_memory_equal(reshard_last_error(), "a?b:1:5: no operation '?[31myyyy", 32);
  assert_true(strlen(reshard_last_error()) < 300);
}

RUN_CASES
