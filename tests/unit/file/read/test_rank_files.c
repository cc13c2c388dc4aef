/* Files of ranks without metadata: what is read of them by layouts of every kind that they may have, against tensors
 * whose bytes say where they belong; and what is refused. */
#include "support/fixtures/draw.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scale.h"
#include "support/fixtures/scratch.h"

#include "support/fixtures/case.h"
#include <reshard/file.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TENSORS = 4, WORLD = 6 };

/* A tensor; each rank writes several files, tensor i to file i % parts. */
typedef struct made_tensor {
  int ndim;
  int64_t shape[RESHARD_MAX_DIMS];
  const char *layout;
} made_tensor;

static unsigned char byte_at(int tensor, int64_t index) {
  return (unsigned char)(tensor * 53 + index * 7 + index / 256);
}

/* Bytes of a rank's array, u8, from the indices of its runs. */
static int64_t part_bytes(const made_tensor *t, int number, reshard_layout layout, int64_t rank, unsigned char *to,
                          int64_t *shape) {
  int64_t index[RESHARD_MAX_DIMS][64], n = 1, at[RESHARD_MAX_DIMS] = {0};
  for (int d = 0; d < t->ndim; d++) {
    reshard_interval runs[16];
    int64_t count = 0;
    shape[d] = 0;
    GOOD(reshard_layout_array_intervals(layout, rank, 0, d, 0, 16, runs, &count));
    for (int64_t r = 0; r < count; r++)
      for (int64_t i = runs[r].begin; i < runs[r].end; i++)
        index[d][shape[d]++] = i;
    n *= shape[d];
  }
  for (int64_t i = 0; i < n; i++) {
    int64_t global = 0;
    for (int d = 0; d < t->ndim; d++)
      global = global * t->shape[d] + index[d][at[d]];
    to[i] = byte_at(number, global);
    for (int d = t->ndim - 1; d >= 0 && ++at[d] == shape[d]; d--)
      at[d] = 0;
  }
  return n;
}

typedef struct rank_writer {
  char header[4096];
  unsigned char data[8192];
  size_t text, bytes;
} rank_writer;

static void put_part(rank_writer *w, int number, int ndim, const int64_t *shape, const unsigned char *bytes,
                     int64_t n) {
  w->text += (size_t)snprintf(w->header + w->text, sizeof w->header - w->text,
                              "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[", w->text > 1 ? "," : "", number);
  for (int d = 0; d < ndim; d++)
    w->text += (size_t)snprintf(w->header + w->text, sizeof w->header - w->text, "%s%lld", d > 0 ? "," : "",
                                (long long)shape[d]);
  w->text += (size_t)snprintf(w->header + w->text, sizeof w->header - w->text, "],\"data_offsets\":[%zu,%zu]}",
                              w->bytes, w->bytes + (size_t)n);
  memcpy(w->data + w->bytes, bytes, (size_t)n);
  w->bytes += (size_t)n;
}

static void put_file(rank_writer *w, const char *name) {
  unsigned char whole[8 + sizeof w->header + sizeof w->data];
  w->text += (size_t)snprintf(w->header + w->text, sizeof w->header - w->text, "}");
  for (int i = 0; i < 8; i++)
    whole[i] = (unsigned char)(w->text >> 8 * i);
  memcpy(whole + 8, w->header, w->text);
  memcpy(whole + 8 + w->text, w->data, w->bytes);
  scratch_write(name, whole, 8 + w->text + w->bytes);
}

/* skip: a rank and tensor that are left out; flip: one whose first byte is another. -1: none. */
static void write_ranks(const made_tensor *tensors, int64_t world, int parts, int64_t skip, int64_t flip) {
  unsigned char bytes[4096];
  scratch_remove("in");
  scratch_directory("in");
  for (int64_t rank = 0; rank < world; rank++)
    for (int part = 0; part < parts; part++) {
      rank_writer w = {.header = "{", .text = 1};
      char name[64];
      for (int i = part; i < TENSORS; i += parts) {
        reshard_layout layout;
        int64_t count, shape[RESHARD_MAX_DIMS] = {0};
        GOOD(reshard_layout_parse(tensors[i].layout, tensors[i].ndim, tensors[i].shape, world, &layout));
        GOOD(reshard_layout_array_count(layout, rank, &count));
        if (count > 0 && skip != rank * TENSORS + i) {
          int64_t n = part_bytes(&tensors[i], i, layout, rank, bytes, shape);
          bytes[0] ^= flip == rank * TENSORS + i;
          put_part(&w, i, tensors[i].ndim, shape, bytes, n);
        }
        reshard_layout_release(layout);
      }
      snprintf(name, sizeof name, "in/model-rank-%lld-part-%d.safetensors", (long long)rank, part);
      put_file(&w, name);
    }
}

static reshard_rules make_rules(const made_tensor *tensors) {
  char text[1024] = "";
  reshard_rules rules;
  for (int i = 0; i < TENSORS; i++)
    snprintf(text + strlen(text), sizeof text - strlen(text), "t%d %s\n", i, tensors[i].layout);
  GOOD(reshard_rules_parse(text, "r", &rules));
  return rules;
}

static int64_t check_whole(reshard_checkpoint checkpoint, const made_tensor *t, int number) {
  char name[16];
  unsigned char bytes[4096];
  void *to = bytes;
  int64_t i, wrong = 0, elements = 1;
  reshard_layout layout;
  reshard_model_tensor is;
  snprintf(name, sizeof name, "t%d", number);
  GOOD(reshard_checkpoint_find(checkpoint, name, &i));
  GOOD(reshard_model_get(reshard_checkpoint_model(checkpoint), i, &is));
  for (int d = 0; d < t->ndim; d++)
    elements *= t->shape[d];
  if (is.ndim != t->ndim || memcmp(is.shape, t->shape, (size_t)t->ndim * sizeof *t->shape) != 0)
    return 1;
  GOOD(reshard_layout_create_single(t->ndim, t->shape, 1, 0, &layout));
  memset(bytes, 0xee, sizeof bytes);
  GOOD(reshard_checkpoint_read(checkpoint, i, layout, 0, 1, &to));
  reshard_layout_release(layout);
  for (int64_t e = 0; e < elements; e++)
    wrong += bytes[e] != byte_at(number, e);
  return wrong;
}

/* Layouts of a world of 6, for tensors of two dims, with the places of extents that are cut. */
static const char *const layouts[] = {
    "chunk(0)",           "chunk(-1;2,0,3,1)", "mesh(6;R)",       "mesh(6;S1)",
    "mesh(2x3;S0,S1)",    "mesh(2x3;S1,R)",    "mesh(3x2;S0,S0)", "mesh(dp=2,tp=3;S0,S0;order=tp,dp)",
    "mesh(2x2@1-4;R,S0)", "rank(4)",           "mesh(3;S0)"};

CASE(random_layouts_give_every_byte_its_place) {
  int64_t cases = test_scaled(150, 10);
  for (int64_t c = 0; c < cases; c++) {
    draw_state = (uint64_t)c + 1;
    made_tensor tensors[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
      made_tensor *t = &tensors[i];
      t->ndim = 2 + (int)below(2);
      t->layout = layouts[below((int64_t)(sizeof layouts / sizeof *layouts))];
      for (int d = 0; d < t->ndim; d++)
        t->shape[d] = (int64_t)below(13);
      if (strstr(t->layout, "order") != NULL) /* else what a rank has may be several boxes */
        t->shape[0] -= t->shape[0] % 6;
    }
    write_ranks(tensors, WORLD, 1 + (int)below(3), -1, -1);
    reshard_rules rules = make_rules(tensors);
    reshard_checkpoint checkpoint = NULL;
    reshard_checkpoint_info info;
    reshard_status status =
        reshard_checkpoint_open_ranks(scratch_path("in"), NULL, NULL, rules, c % 2 == 0 ? WORLD : 0, &checkpoint);
    if (status != RESHARD_SUCCESS)
      fail_msg("seed %lld: %s", (long long)c + 1, reshard_last_error());
    GOOD(reshard_checkpoint_get_info(checkpoint, &info));
    assert_true(info.format == RESHARD_FORMAT_SHARDS && info.world == WORLD && info.tensors == TENSORS);
    for (int i = 0; i < TENSORS; i++)
      if (check_whole(checkpoint, &tensors[i], i) != 0)
        fail_msg("seed %lld: tensor %d, %s", (long long)c + 1, i, tensors[i].layout);
    reshard_checkpoint_close(checkpoint);
    reshard_rules_free(rules);
  }
}

static const made_tensor plain[TENSORS] = {
    {2, {4, 6}, "chunk(0)"}, {2, {4, 6}, "mesh(2x2;S1,R)"}, {1, {5}, "mesh(4;R)"}, {2, {3, 2}, "chunk(0)"}};

static void refused(const char *pattern, const char *layout, int64_t world, const char *why) {
  reshard_checkpoint checkpoint = NULL;
  reshard_rules rules = layout == NULL ? make_rules(plain) : NULL;
  FAILS_WITH(reshard_checkpoint_open_ranks(scratch_path("in"), pattern, layout, rules, world, &checkpoint),
             RESHARD_ERROR_INVALID, why);
  assert_null(checkpoint);
  assert_null(strchr(reshard_last_error(), '\n'));
  reshard_rules_free(rules);
}

CASE(files_that_do_not_fit_the_world_are_refused) {
  write_ranks(plain, 4, 2, -1, -1);
  refused(NULL, NULL, 3, "is of rank 3, the world has 3 ranks");
  refused(NULL, NULL, 5, "no file of rank 4, the world has 5 ranks");
  refused("other-{R}.safetensors", NULL, 4, "no file of a rank: its pattern is 'other-{R}.safetensors'");
  refused("other.safetensors", NULL, 4, "it has no '{R}'");
  refused("{R}{R}", NULL, 4, "or two");
  refused("a/{R}", NULL, 4, "a '/'");
  refused("[{R}", NULL, 4, "pattern of rank files");
  refused(NULL, "flat()", 4, "not as flat, cyclic and boxes");
  refused(NULL, "cyclic(4;1)", 4, "tensor 't");
  reshard_checkpoint checkpoint = NULL;
  FAILS_WITH(reshard_checkpoint_open_ranks(scratch_path("in"), NULL, "mesh(4;S0{1:1})", NULL, 4, &checkpoint),
             RESHARD_ERROR_UNSUPPORTED, "where a rank has one box, not part by part: 'mesh(4;S0{1:1})'");
  scratch_remove("in/model-rank-0-part-0.safetensors"); /* leaves t1 and t3, and t3 has 3 rows for 4 ranks */
  scratch_remove("in/model-rank-1-part-0.safetensors");
  scratch_remove("in/model-rank-2-part-0.safetensors");
  scratch_remove("in/model-rank-3-part-0.safetensors");
  refused(NULL, "mesh(4;S1)", 4, "tensor 't3': rank 3 has 0x2, by its layout and shape 1x8 it would have 1x2");
  write_ranks(plain, 4, 2, -1, -1);
  scratch_remove("in/model-rank-2-part-1.safetensors"); /* rank 2 has a file more, and lacks tensors */
  refused(NULL, NULL, 4, "rank 2 has nothing, by its layout");
  scratch_remove("in/model-rank-2-part-0.safetensors");
  refused(NULL, NULL, 4, "no file of rank 2");
  write_ranks(plain, 4, 1, 1 * TENSORS + 0, -1);
  refused(NULL, NULL, 4, "tensor 't0': rank 1 has nothing, by its layout and shape 3x6 it would have 1x6");
  write_ranks(plain, 4, 1, -1, 3 * TENSORS + 2);
  refused(
      NULL, NULL, 4,
      "tensor 't2': files 'model-rank-0-part-0.safetensors' and 'model-rank-3-part-0.safetensors' have the same part "
      "of it, and differ at byte 0");
  write_ranks(plain, 4, 1, -1, -1);
  scratch_safetensors("in/model-rank-1-part-7.safetensors", "{" SCRATCH_TENSOR("t3", "U8", "[1,2]", "[0,2]") "}", 2, 1);
  refused(NULL, NULL, 4, "of rank 1 both have a tensor 't3'");
  scratch_safetensors("in/model-rank-1-part-7.safetensors", "{" SCRATCH_TENSOR("t3", "I8", "[1,2]", "[0,2]") "}", 2, 1);
  refused(NULL, NULL, 4, "tensor 't3' is i8 of 2 dims, in file");
  scratch_safetensors("in/model-rank-1-part-7.safetensors", "{" SCRATCH_TENSOR("x", "U8", "[1,2]", "[0,2]") "}", 2, 1);
  refused(NULL, NULL, 4, "'x'");
  checkpoint = NULL;
  FAILS_WITH(reshard_checkpoint_open_ranks(scratch_path("in"), NULL, NULL, NULL, 4, &checkpoint), RESHARD_ERROR_INVALID,
             "neither layout nor rules");
  FAILS_WITH(reshard_checkpoint_open_ranks(scratch_path("in/model-rank-1-part-7.safetensors"), NULL, "chunk(0)", NULL,
                                           4, &checkpoint),
             RESHARD_ERROR_INVALID, "no directory of files of ranks");
}

/* One layout for all; a tensor without dims is whole on each rank. Numbers in names may have zeros before. */
CASE(one_layout_serves_all_and_numbers_may_have_zeros) {
  reshard_checkpoint checkpoint = NULL;
  scratch_remove("in");
  scratch_directory("in");
  for (int r = 0; r < 2; r++) {
    char name[32];
    snprintf(name, sizeof name, "in/w_%02d_8.safetensors", r);
    scratch_safetensors(
        name, "{" SCRATCH_TENSOR("s", "U8", "[]", "[0,1]") "," SCRATCH_TENSOR("w", "U8", "[1,3]", "[1,4]") "}", 4, 5);
  }
  GOOD(reshard_checkpoint_open_ranks(scratch_path("in"), "w_{R}_?.safe*", "chunk(0)", NULL, 0, &checkpoint));
  reshard_model_tensor t;
  GOOD(reshard_model_get(reshard_checkpoint_model(checkpoint), 1, &t));
  assert_true(t.ndim == 2 && t.shape[0] == 2 && t.shape[1] == 3);
  GOOD(reshard_model_get(reshard_checkpoint_model(checkpoint), 0, &t));
  assert_int_equal(t.ndim, 0);
  reshard_checkpoint_close(checkpoint);
}

/* convert takes the usual patterns where --src is said; the world is the source's. */
CASE(convert_takes_usual_patterns_where_src_is_said) {
  char from[256], to[256];
  reshard_rules rules = make_rules(plain);
  reshard_convert_options options = {
      .size = RESHARD_CONVERT_OPTIONS_INIT, .src_rules = rules, .dst = "flat()", .world = 4};
  reshard_convert_report report;
  write_ranks(plain, 4, 2, -1, -1);
  strcpy(from, scratch_path("in"));
  strcpy(to, scratch_path("out"));
  GOOD(reshard_convert(from, to, &options, &report));
  assert_true(report.source.world == 4 && report.world == 4 && report.tensors == TENSORS);
  reshard_checkpoint checkpoint = scratch_open("out");
  for (int i = 0; i < TENSORS; i++)
    assert_int_equal(check_whole(checkpoint, &plain[i], i), 0);
  reshard_checkpoint_close(checkpoint);
  reshard_rules_free(rules);
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)
