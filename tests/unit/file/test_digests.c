/* Digests in the files that are written: right whatever wrote them, every flipped bit is found, files without are read
 * as before. */
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"
#include "support/fixtures/scratch.h"

#include "bench/cli/util.h"
#include "bench/verify/random.h"
#include "file/ground/digest.h"

#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include <reshard/reshard.h>
#include <reshard/torch.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef RS_HAVE_XXHASH
#define XXH_INLINE_ALL
#include <xxhash.h>

static unsigned char *read_file(const char *path, int64_t *size) {
  FILE *file = fopen(path, "rb");
  struct stat info;
  assert_non_null(file);
  assert_int_equal(fstat(fileno(file), &info), 0);
  *size = info.st_size;
  unsigned char *bytes = malloc((size_t)*size + 1);
  assert_int_equal(fread(bytes, 1, (size_t)*size, file), *size);
  bytes[*size] = '\0';
  fclose(file);
  return bytes;
}

static void flip_bit(const char *path, int64_t byte, int bit) {
  FILE *file = fopen(path, "r+b");
  assert_non_null(file);
  assert_int_equal(fseek(file, byte, SEEK_SET), 0);
  int was = fgetc(file);
  assert_int_equal(fseek(file, byte, SEEK_SET), 0);
  assert_int_equal(fputc(was ^ 1 << bit, file), was ^ 1 << bit);
  assert_int_equal(fclose(file), 0);
}

static int64_t header_size(const unsigned char *bytes) {
  int64_t n = 8;
  for (int i = 0; i < 8; i++)
    n += (int64_t)bytes[i] << 8 * i;
  return n;
}

/* --- By the words of the format ---------------------------------------------------------------------------------- */

/* The digest of a piece: of the digests of its cells, as the pages of the format say. */
static uint64_t naive_piece(const unsigned char *bytes, int64_t n) {
  uint64_t cells[256];
  int64_t count = 0;
  for (int64_t at = 0; at < n; at += 4096)
    cells[count++] = XXH3_64bits(bytes + at, (size_t)(n - at < 4096 ? n - at : 4096));
  return XXH3_64bits(cells, (size_t)count * 8);
}

static int by_begin(const void *a, const void *b) {
  const int64_t *x = a, *y = b;
  return x[0] < y[0] ? -1 : x[0] > y[0];
}

/* Compares the digits in a file with what its bytes make; returns the number of pieces. */
static int64_t check_digits(const char *path) {
  int64_t size, boxes[64][2], n = 0, pieces = 0;
  unsigned char *bytes = read_file(path, &size);
  int64_t start = header_size(bytes);
  char *header = malloc((size_t)start + 1);
  memcpy(header, bytes, (size_t)start);
  header[start] = '\0';
  for (const char *at = header + 8; (at = strstr(at, "\"data_offsets\":[")) != NULL; at++) {
    long long begin, end;
    assert_int_equal(sscanf(at, "\"data_offsets\":[%lld,%lld]", &begin, &end), 2);
    boxes[n][0] = begin;
    boxes[n++][1] = end;
  }
  qsort(boxes, (size_t)n, sizeof *boxes, by_begin);
  char *digits = strstr(header + 8, "\\\"header\\\":\\\"");
  assert_non_null(digits);
  digits += strlen("\\\"header\\\":\\\"");
  char *at = digits + 16 + strlen("\\\",\\\"pieces\\\":\\\""), text[17];
  for (int64_t b = 0; b < n; b++)
    for (int64_t from = boxes[b][0]; from < boxes[b][1]; from += 1 << 20, at += 16, pieces++) {
      int64_t end = boxes[b][1] < from + (1 << 20) ? boxes[b][1] : from + (1 << 20);
      snprintf(text, sizeof text, "%016llx", (unsigned long long)naive_piece(bytes + start + from, end - from));
      if (memcmp(at, text, 16) != 0)
        fail_msg("%s: box %lld: the bytes from %lld on have %.16s, should be %s", path, (long long)b, (long long)from,
                 at, text);
    }
  assert_memory_equal(at, "\\\"}\"}", 5);
  char stored[17] = {0};
  memcpy(stored, digits, 16);
  memset(digits, '0', 16);
  snprintf(text, sizeof text, "%016llx", (unsigned long long)XXH3_64bits(header, (size_t)start));
  assert_string_equal(stored, text);
  free(header);
  free(bytes);
  return pieces;
}

/* --- Files of many layouts --------------------------------------------------------------------------------------- */

/* Tensors of random bytes in one file, without digests. */
static void write_source(const char *name, int64_t n, const reshard_model_tensor *models, uint64_t seed) {
  reshard_writer_tensor tensors[8] = {{0}};
  const reshard_writer_options options = {.size = RESHARD_WRITER_OPTIONS_INIT, .no_digests = 1};
  reshard_writer writer;
  rng r;
  rng_seed(&r, seed);
  for (int64_t i = 0; i < n; i++) {
    tensors[i] = (reshard_writer_tensor){models[i].name, models[i].dtype, NULL};
    GOOD(reshard_layout_parse("rank(0)", models[i].ndim, models[i].shape, 1, &tensors[i].layout));
  }
  GOOD(reshard_writer_create(scratch_path(name), n, tensors, &options, &writer));
  for (int64_t i = 0; i < n; i++) {
    int64_t bytes = (int64_t)reshard_dtype_size(models[i].dtype);
    for (int d = 0; d < models[i].ndim; d++)
      bytes *= models[i].shape[d];
    uint64_t *memory = malloc((size_t)bytes + 8);
    for (int64_t w = 0; w <= bytes / 8; w++)
      memory[w] = rng_next(&r);
    GOOD(reshard_writer_put(writer, i, 0, (const void *const[]){memory}));
    free(memory);
    reshard_layout_release(tensors[i].layout);
  }
  GOOD(reshard_writer_commit(writer));
}

static void list_names(const char *directory, char names[64][128], int *n) {
  char all[4096], *rest = NULL;
  snprintf(all, sizeof all, "%s", scratch_list(directory));
  *n = 0;
  for (char *name = strtok_r(all, " ", &rest); name != NULL; name = strtok_r(NULL, " ", &rest))
    snprintf(names[(*n)++], sizeof names[0], "%s", name);
}

/* Rows of odd sizes, columns, blocks, transposes, by several threads: pieces whose cells no write has as a whole. */
CASE(pieces_of_any_layout_have_the_right_digest) {
  static const reshard_model_tensor models[] = {{"a", RESHARD_F32, 2, {1031, 617}},
                                                {"b", RESHARD_BF16, 3, {7, 513, 301}},
                                                {"c", RESHARD_U8, 1, {(2 << 20) + 4097}},
                                                {"d", RESHARD_F64, 2, {512, 256}},
                                                {"e", RESHARD_U8, 1, {4096}},
                                                {"f", RESHARD_I16, 0, {0}},
                                                {"g", RESHARD_I16, 1, {0}}};
  static const struct {
    const char *dst, *map;
    int64_t world;
  } cases[] = {{"chunk(0)", NULL, 3},
               {"chunk(-1)", NULL, 2},
               {"flat()", NULL, 5},
               {"mesh(2x2;S0,S0)", NULL, 4},
               {"rank(1)", "a = transpose(a)\nd = transpose(d)\n* = *\n", 2},
               {"chunk(0)", "x = concat(0; c, e)\ny = stack(d, d)\ndrop(d)\n* = *\n", 2}};
  write_source("in.safetensors", 7, models, 1);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    reshard_convert_options options = {.size = RESHARD_CONVERT_OPTIONS_INIT,
                                       .dst = cases[i].dst,
                                       .world = cases[i].world,
                                       .threads = 1 + (int)i % 3,
                                       .dedup = i % 2 == 1};
    reshard_rules rules = NULL;
    reshard_convert_report report;
    reshard_check_report checked;
    char text[256], names[64][128];
    int files;
    int64_t pieces = 0;
    snprintf(text, sizeof text, "[fg] rank(0)\n* %s\n", cases[i].dst);
    GOOD(reshard_rules_parse(text, "rules", &rules));
    options.dst = NULL;
    options.dst_rules = rules;
    if (cases[i].map != NULL)
      GOOD(reshard_map_parse(cases[i].map, "map", &options.map));
    GOOD(reshard_convert(scratch_path("in.safetensors"), scratch_path("out"), &options, &report));
    list_names("out", names, &files);
    for (int f = 0; f < files; f++) {
      snprintf(text, sizeof text, "out/%.120s", names[f]);
      pieces += check_digits(scratch_path(text));
    }
    assert_int_equal(report.digests, pieces);
    assert_true(pieces > 9);
    GOOD(reshard_checkpoint_check(scratch_path("out"), NULL, &checked));
    assert_true(checked.files == files && checked.unchecked_files == 0 && checked.wrong == 0);
    assert_true(checked.checked_bytes > report.bytes);
    reshard_rules_free(rules);
    reshard_map_free(options.map);
    scratch_remove("out");
  }
  scratch_remove("in.safetensors");
}

/* An array that is put again has the digests of its last bytes. */
CASE(array_put_again_has_its_last_digest) {
  enum { N = 3 << 20 };
  const int64_t shape[] = {N};
  reshard_writer_tensor tensor = {"a", RESHARD_U8, NULL};
  reshard_writer writer;
  unsigned char *bytes = calloc(1, N);
  GOOD(reshard_layout_parse("cyclic(1;900000)", 1, shape, 1, &tensor.layout));
  GOOD(reshard_writer_create(scratch_path("s"), 1, &tensor, NULL, &writer));
  for (int turn = 0; turn < 3; turn++) {
    memset(bytes, turn, N);
    GOOD(reshard_writer_put(writer, 0, 0, (const void *const[]){bytes}));
  }
  GOOD(reshard_writer_commit(writer));
  GOOD(reshard_checkpoint_check(scratch_path("s"), NULL, NULL));
  reshard_layout_release(tensor.layout);
  free(bytes);
  scratch_remove("s");
}

/* Digits are left out when a header is parsed, and nothing else: a quote among them ends the text that has them. */
CASE(header_with_a_quote_among_its_digests_is_not_opened) {
  const int64_t shape[] = {64};
  reshard_writer_tensor tensor = {"a", RESHARD_U8, NULL};
  reshard_writer writer;
  reshard_checkpoint checkpoint;
  char bytes[64] = {1}, path[512];
  int64_t size;
  GOOD(reshard_layout_create_single(1, shape, 1, 0, &tensor.layout));
  snprintf(path, sizeof path, "%s", scratch_path("q.safetensors"));
  GOOD(reshard_writer_create(path, 1, &tensor, NULL, &writer));
  GOOD(reshard_writer_put(writer, 0, 0, (const void *const[]){bytes}));
  GOOD(reshard_writer_commit(writer));
  GOOD(reshard_checkpoint_open(path, &checkpoint));
  reshard_checkpoint_close(checkpoint);
  unsigned char *file = read_file(path, &size);
  char *digits = strstr((char *)file + 8, "\\\"pieces\\\":\\\"");
  assert_non_null(digits);
  digits[14 + 5] = '"';
  scratch_write("q.safetensors", file, (size_t)size);
  FAILS_WITH(reshard_checkpoint_open(path, &checkpoint), RESHARD_ERROR_INVALID, ": line 1 column");
  reshard_layout_release(tensor.layout);
  free(file);
  scratch_remove("q.safetensors");
}

/* Threads that put the same array at the same time: the same bytes, several times over. */
typedef struct same_put {
  reshard_writer writer;
  const void *bytes;
} same_put;

static void put_same(void *user, int64_t rank) {
  const same_put *p = user;
  for (int i = 0; i < 3; i++)
    if (reshard_writer_put(p->writer, 0, 0, &p->bytes) != RESHARD_SUCCESS)
      abort();
}

CASE(test_same_at_once) {
  enum { N = 3 << 20, THREADS = 4 };
  const int64_t shape[] = {N};
  reshard_writer_tensor tensor = {"a", RESHARD_U8, NULL};
  unsigned char *bytes = malloc(N);
  for (int i = 0; i < N; i++)
    bytes[i] = (unsigned char)(i * 7 + i / 251);
  GOOD(reshard_layout_parse("cyclic(1;9000)", 1, shape, 1, &tensor.layout));
  for (int64_t turn = 0; turn < test_scaled(20, 3); turn++) {
    same_put p = {.bytes = bytes};
    GOOD(reshard_writer_create(scratch_path("s"), 1, &tensor, NULL, &p.writer));
    rank_threads_run(THREADS, put_same, &p);
    GOOD(reshard_writer_commit(p.writer));
    GOOD(reshard_checkpoint_check(scratch_path("s"), NULL, NULL));
    scratch_remove("s");
  }
  reshard_layout_release(tensor.layout);
  free(bytes);
}

/* --- Flipped bits ------------------------------------------------------------------------------------------------ */

typedef struct findings {
  int wrong, without;
  char text[1024];
} findings;

static void take_finding(void *user, int wrong, const char *text) {
  findings *f = user;
  f->wrong += wrong;
  f->without += !wrong;
  snprintf(f->text, sizeof f->text, "%s", text);
}

/* One bit, in the header or in the data: found, and named. */
static void check_flip(const char *path, const char *name, rng *r) {
  int64_t size;
  unsigned char *bytes = read_file(path, &size);
  int64_t start = header_size(bytes),
          byte = rng_one_in(r, 2) || size == start ? rng_below(r, start) : rng_in(r, start, size - 1);
  int bit = (int)rng_below(r, 8);
  findings found = {0};
  const reshard_check_options options = {
      .size = RESHARD_CHECK_OPTIONS_INIT, .threads = 1, .found = take_finding, .user = &found};
  free(bytes);
  flip_bit(path, byte, bit);
  reshard_status status = reshard_checkpoint_check(path, &options, NULL);
  flip_bit(path, byte, bit);
  if (status != RESHARD_ERROR_CORRUPT || found.wrong != 1 || strstr(found.text, name) == NULL)
    fail_msg("%s: bit %d of byte %lld of %lld, header %lld: %s, %d found: %s", path, bit, (long long)byte,
             (long long)size, (long long)start, reshard_status_string(status), found.wrong, found.text);
  if (byte < start)
    return;
  const char *range = strstr(found.text, ": bytes ");
  long long begin, end;
  assert_non_null(strstr(found.text, "tensor 't"));
  assert_non_null(strstr(found.text, ", box ["));
  assert_int_equal(sscanf(range, ": bytes %lld to %lld of", &begin, &end), 2);
  assert_true(begin <= byte && byte <= end && end - begin < 1 << 20);
}

/* Sets of files of small tensors; in each file one bit after another is flipped. */
CASE(any_flipped_bit_of_a_set_is_found) {
  enum { SET = 20 };
  int64_t files = test_scaled(1000, 1), done = 0;
  for (uint64_t seed = 1; done < files; seed++) {
    reshard_writer_tensor tensors[3];
    int64_t shape[2];
    reshard_writer writer;
    char text[8][8], names[64][128], path[160];
    int n;
    rng r;
    rng_seed(&r, seed);
    unsigned char *memory = calloc(1, 1 << 20);
    for (int i = 0; i < 3; i++) {
      snprintf(text[i], sizeof *text, "t%d", (int)rng_below(&r, 10) * 10 + i);
      shape[0] = SET + rng_below(&r, 100);
      shape[1] = 1 + rng_below(&r, rng_one_in(&r, 40) ? 8000 : 40);
      tensors[i] = (reshard_writer_tensor){text[i], rng_one_in(&r, 2) ? RESHARD_U8 : RESHARD_F32, NULL};
      GOOD(reshard_layout_parse("mesh(20;S0)", 2, shape, SET, &tensors[i].layout));
    }
    for (int64_t i = 0; i < 1 << 17; i++)
      ((uint64_t *)(void *)memory)[i] = rng_next(&r);
    GOOD(reshard_writer_create(scratch_path("set"), 3, tensors, NULL, &writer));
    for (int64_t i = 0; i < 3; i++)
      for (int64_t rank = 0; rank < SET; rank++)
        GOOD(reshard_writer_put(writer, i, rank, (const void *const[]){memory}));
    GOOD(reshard_writer_commit(writer));
    GOOD(reshard_checkpoint_check(scratch_path("set"), NULL, NULL));
    list_names("set", names, &n);
    for (int f = 0; f < n && done < files; f++, done++) {
      snprintf(path, sizeof path, "set/%.120s", names[f]);
      check_flip(scratch_path(path), names[f], &r);
    }
    for (int i = 0; i < 3; i++)
      reshard_layout_release(tensors[i].layout);
    free(memory);
    scratch_remove("set");
  }
  printf("%lld files, a flipped bit in each: all found\n", (long long)done);
}

/* --- Reading ----------------------------------------------------------------------------------------------------- */

/* Text of an error is whole with a path of this length in it. */
#define TEN  "ten-bytes-"
#define LONG TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN

static reshard_status load_state(reshard_sharder sharder, reshard_tree state, const char *name, int check,
                                 reshard_state_load_report *report) {
  const reshard_state_load_options options = {.size = RESHARD_STATE_LOAD_OPTIONS_INIT, .check = check};
  return reshard_state_load(sharder, state, scratch_path(name), &options, report);
}

CASE(load_checks_what_it_reads) {
  const int64_t shape[] = {300, 1000};
  reshard_comm comm;
  reshard_sharder sharder;
  reshard_tensor tensor;
  reshard_tree tree, leaf;
  reshard_state_load_report report;
  GOOD(reshard_comm_create_local(1, NULL, &comm));
  GOOD(reshard_sharder_create(comm, NULL, &sharder));
  GOOD(reshard_tensor_create(RESHARD_F64, 2, shape, &tensor));
  GOOD(reshard_tree_dict(&tree));
  GOOD(reshard_tree_tensor(tensor, &leaf));
  GOOD(reshard_tree_set(tree, "w", leaf));
  reshard_tree_release(leaf);
  GOOD(reshard_state_save(sharder, tree, scratch_path(LONG), NULL, NULL));
  GOOD(load_state(sharder, tree, LONG, 1, &report));
  assert_true(report.checked_bytes == 300 * 8000 && report.unchecked_files == 0);
  GOOD(load_state(sharder, tree, LONG, 0, &report));
  assert_int_equal(report.checked_bytes, 0);

  char name[256];
  snprintf(name, sizeof name, "%s/%s", LONG, scratch_list(LONG));
  int64_t size;
  free(read_file(scratch_path(name), &size));
  flip_bit(scratch_path(name), size - 5, 3);
  GOOD(load_state(sharder, tree, LONG, 0, NULL));
  for (int again = 0; again < 2; again++) {
    assert_int_equal(load_state(sharder, tree, LONG, 1, NULL), RESHARD_ERROR_CORRUPT);
    assert_non_null(strstr(reshard_last_error(), "tensor 'w', box [0,300)x[0,1000): bytes "));
    assert_string_equal(strrchr(reshard_last_error(), ' '), " stored");
  }
  const reshard_state_save_options bare = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1, .no_digests = 1};
  GOOD(reshard_state_save(sharder, tree, scratch_path(LONG), &bare, NULL));
  GOOD(load_state(sharder, tree, LONG, 1, &report));
  assert_true(report.checked_bytes == 0 && report.unchecked_files == 1);
  reshard_tree_release(tree);
  reshard_tensor_release(tensor);
  reshard_sharder_destroy(sharder);
  reshard_comm_destroy(comm);
  scratch_remove(LONG);
}

/* Leaves that are no tensors: every bit of state.json is seen to. */
CASE(any_flipped_bit_of_state_json_is_found) {
  reshard_comm comm;
  reshard_sharder sharder;
  reshard_tree tree, leaf;
  reshard_check_report report;
  GOOD(reshard_comm_create_local(1, NULL, &comm));
  GOOD(reshard_sharder_create(comm, NULL, &sharder));
  GOOD(reshard_tree_dict(&tree));
  for (int64_t i = 0; i < 2; i++) {
    GOOD(reshard_tree_int(1000 + i, &leaf));
    GOOD(reshard_tree_set(tree, (const char *[]){"step", "seed"}[i], leaf));
    reshard_tree_release(leaf);
  }
  GOOD(reshard_state_save(sharder, tree, scratch_path("s"), NULL, NULL));
  GOOD(reshard_checkpoint_check(scratch_path("s"), NULL, &report));
  assert_true(report.files == 2 && report.unchecked_files == 0);
  int64_t size, checked = report.checked_bytes;
  char path[512];
  snprintf(path, sizeof path, "%s", scratch_path("s/state.json"));
  free(read_file(path, &size));
  for (int64_t bit = 0; bit < 8 * size; bit++) {
    flip_bit(path, bit / 8, (int)(bit % 8));
    if (reshard_checkpoint_check(scratch_path("s"), NULL, &report) != RESHARD_ERROR_CORRUPT || report.wrong != 1 ||
        strstr(reshard_last_error(), "state.json': its ") == NULL)
      fail_msg("bit %lld of state.json: %s", (long long)bit, reshard_last_error());
    assert_int_equal(load_state(sharder, tree, "s", 1, NULL), RESHARD_ERROR_CORRUPT);
    flip_bit(path, bit / 8, (int)(bit % 8));
  }
  GOOD(load_state(sharder, tree, "s", 1, NULL));
  static const char bare[] = "{\"version\": 1, \"leaves\": {\n\"step\": 3,\n\"seed\": 4\n}}\n";
  scratch_write("s/state.json", bare, sizeof bare - 1);
  GOOD(load_state(sharder, tree, "s", 1, NULL));
  GOOD(reshard_checkpoint_check(scratch_path("s"), NULL, &report));
  assert_true(report.files == 2 && report.unchecked_files == 1);
  assert_int_equal(report.checked_bytes, checked - size);
  reshard_tree_release(tree);
  reshard_sharder_destroy(sharder);
  reshard_comm_destroy(comm);
  scratch_remove("s");
}

/* A source that is verified is checked as it is read, a tensor that is not read is not. */
CASE(convert_checks_only_what_it_reads) {
  static const reshard_model_tensor models[] = {{"a", RESHARD_F32, 2, {600, 700}}, {"z", RESHARD_U8, 1, {5000}}};
  reshard_convert_options options = {.size = RESHARD_CONVERT_OPTIONS_INIT, .force = 1};
  reshard_convert_report report;
  write_source("bare.safetensors", 2, models, 5);
  char in[512], out[512];
  snprintf(in, sizeof in, "%s", scratch_path("in.safetensors"));
  snprintf(out, sizeof out, "%s", scratch_path("out.safetensors"));
  GOOD(reshard_convert(scratch_path("bare.safetensors"), in, &options, &report));
  options.verify = 1;
  GOOD(reshard_convert(scratch_path("bare.safetensors"), out, &options, &report));
  assert_true(report.checked_bytes == 0 && report.digests == 3);
  GOOD(reshard_convert(in, out, &options, &report));
  assert_int_equal(report.checked_bytes, report.bytes);
  int64_t size;
  free(read_file(in, &size));
  flip_bit(in, size - 1, 0); /* of z, which is the last */
  FAILS_WITH(reshard_convert(in, out, &options, &report), RESHARD_ERROR_CORRUPT, "in.safetensors': tensor 'z': bytes ");
  GOOD(reshard_map_parse("a = transpose(a)\ndrop(z)\n", "map", &options.map));
  GOOD(reshard_convert(in, out, &options, &report));
  assert_int_equal(report.checked_bytes, 600 * 700 * 4);
  reshard_map_free(options.map);
  options = (reshard_convert_options){.size = RESHARD_CONVERT_OPTIONS_INIT, .force = 1, .no_digests = 1};
  GOOD(reshard_convert(in, out, &options, &report));
  findings found = {0};
  const reshard_check_options check = {.size = RESHARD_CHECK_OPTIONS_INIT, .found = take_finding, .user = &found};
  reshard_check_report checked;
  GOOD(reshard_checkpoint_check(out, &check, &checked));
  assert_true(found.wrong == 0 && found.without == 1 && checked.unchecked_files == 1 && checked.checked_bytes == 0);
  assert_non_null(strstr(found.text, "out.safetensors': has no digests"));
  for (int i = 0; i < 3; i++)
    scratch_remove((const char *[]){"bare.safetensors", "in.safetensors", "out.safetensors"}[i]);
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)

#else
RUN_CASES_IF(0, "built without xxhash")
#endif
