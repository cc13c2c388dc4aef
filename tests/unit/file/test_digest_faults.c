/* Digests where files are written and read in ways of their own: overwritten bytes, checks that end early, pages that
 * stay in memory, headers that are damaged, too large or sparse. */
#include "support/fixtures/scale.h"
#include "support/fixtures/scratch.h"

#include "bench/verify/random.h"
#include "file/format/safetensors.h"
#include "file/ground/digest.h"
#include "file/write/writer.h"

#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include <reshard/reshard.h>
#include <reshard/torch.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef RS_HAVE_XXHASH
/* --- Written --------------------------------------------------------------------------------------------------- */

enum { HEADER = 256, HEADER_AT = 16, PIECES_AT = 64 };

/* A file in memory, of one box behind the header. */
static rs_file new_file(char *memory, int64_t bytes) {
  rs_file file = {.fd = -1, .memory = memory, .size = HEADER + bytes, .digests = calloc(1, sizeof *file.digests)};
  memset(memory, ' ', HEADER);
  file.digests->header = HEADER;
  file.digests->header_at = HEADER_AT;
  file.digests->pieces_at = PIECES_AT;
  GOOD(rs_digests_add(file.digests, HEADER, bytes));
  return file;
}

static void write_bytes(const rs_file *file, int64_t at, int64_t n, rng *r) {
  char *to = file->memory + HEADER + at;
  for (int64_t i = 0; i < n; i++)
    to[i] = (char)rng_next(r);
  GOOD(rs_digests_written(file, HEADER + at, to, n));
}

/* Stores the digests, and compares that of the only piece with what the bytes make. */
static void check_stored(rs_file *file, uint64_t seed) {
  uint64_t cells[RS_DIGEST_PIECE / RS_DIGEST_CELL], stored = 0;
  int64_t n = file->size - HEADER, count = 0;
  GOOD(rs_digests_store(file));
  for (int64_t at = 0; at < n; at += RS_DIGEST_CELL)
    cells[count++] = rs_digest_bytes(file->memory + HEADER + at, n - at < RS_DIGEST_CELL ? n - at : RS_DIGEST_CELL);
  uint64_t value = rs_digest_bytes((char *)cells, count * 8);
  assert_true(rs_digest_parse(file->memory + PIECES_AT, &stored));
  if (stored != value)
    fail_msg("seed %llu, %lld bytes: %016llx is stored, %016llx is right", (unsigned long long)seed, (long long)n,
             (unsigned long long)stored, (unsigned long long)value);
  rs_digests_free(file->digests);
}

/* Two writes that overlap within a cell, and any writes in any order: the digest is that of the last bytes. */
CASE(overlapping_writes_leave_the_digest_of_the_last) {
  enum { MOST = 40000 };
  char *memory = malloc(HEADER + MOST);
  rng r;
  rng_seed(&r, 0);
  rs_file file = new_file(memory, 16384);
  write_bytes(&file, 0, 10000, &r);
  write_bytes(&file, 5000, 11384, &r);
  check_stored(&file, 0);
  for (uint64_t seed = 1; seed <= 300 / (uint64_t)test_one_in(8); seed++) {
    rng_seed(&r, seed);
    int64_t n = rng_in(&r, 1, MOST), writes = rng_below(&r, 5), all = rng_below(&r, writes + 1);
    file = new_file(memory, n);
    for (int64_t w = 0; w <= writes; w++) {
      int64_t at = w == all ? 0 : rng_below(&r, n);
      write_bytes(&file, at, w == all ? n : rng_in(&r, 1, n - at), &r);
    }
    check_stored(&file, seed);
  }
  free(memory);
}

/* --- Checked --------------------------------------------------------------------------------------------------- */

static void flip_bit(const char *path, int64_t byte, int bit) {
  unsigned char was;
  int fd = open(path, O_RDWR | O_CLOEXEC);
  assert_true(fd >= 0);
  assert_int_equal(pread(fd, &was, 1, byte), 1);
  was ^= (unsigned char)(1 << bit);
  assert_int_equal(pwrite(fd, &was, 1, byte), 1);
  close(fd);
}

/* A tensor of bytes "a", in as many files as the layout has ranks. */
static void write_tensor(const char *name, const char *layout, int64_t world, int64_t bytes) {
  reshard_writer_tensor tensor = {"a", RESHARD_U8, NULL};
  reshard_writer writer;
  char *memory = calloc(1, (size_t)bytes);
  GOOD(reshard_layout_parse(layout, 1, &bytes, world, &tensor.layout));
  GOOD(reshard_writer_create(scratch_path(name), 1, &tensor, NULL, &writer));
  for (int64_t rank = 0; rank < world; rank++)
    GOOD(reshard_writer_put(writer, 0, rank, (const void *const[]){memory}));
  GOOD(reshard_writer_commit(writer));
  reshard_layout_release(tensor.layout);
  free(memory);
}

typedef struct early {
  char path[512];
  int wrong;
  bool truncates;
} early;

static void count_wrong(void *user, int wrong, const char *text) {
  early *e = user;
  e->wrong += wrong;
  if (e->truncates)
    assert_int_equal(truncate(e->path, (2 << 20) + 4096), 0);
}

static int cancel(void *user, const char *stage, int64_t done, int64_t all) { return done > 0 && all > done; }

/* A wrong piece does not hide that the check was cancelled, or that the file could not be read to its end. */
CASE(wrong_piece_does_not_hide_why_the_check_ended) {
  early e = {.truncates = false};
  reshard_check_options options = {
      .size = RESHARD_CHECK_OPTIONS_INIT, .threads = 1, .found = count_wrong, .progress = cancel, .user = &e};
  snprintf(e.path, sizeof e.path, "%s", scratch_path("in.safetensors"));
  write_tensor("in.safetensors", "rank(0)", 1, 4 << 20);
  for (int64_t piece = 0; piece < 4; piece++)
    flip_bit(e.path, (piece << 20) + 5000, 1);
  FAILS_WITH(reshard_checkpoint_check(e.path, &options, NULL), RESHARD_ERROR_CANCELLED, "cancelled after 1048576 of ");
  assert_int_equal(e.wrong, 1);
  options.progress = NULL;
  e = (early){.truncates = true};
  snprintf(e.path, sizeof e.path, "%s", scratch_path("in.safetensors"));
  FAILS_WITH(reshard_checkpoint_check(e.path, &options, NULL), RESHARD_ERROR_SYSTEM,
             "became shorter while it was read");
  assert_true(e.wrong >= 1 && e.wrong < 4);
  scratch_remove("in.safetensors");
}

/* --- Pages in memory ------------------------------------------------------------------------------------------- */

enum { HELD = 4096 };

/* Keeps the first page of a file in memory: pages that are mapped are not dropped. */
static void *hold_page(const char *name) {
  int fd = open(scratch_path(name), O_RDONLY | O_CLOEXEC);
  assert_true(fd >= 0);
  assert_int_equal(fsync(fd), 0);
  volatile char *page = mmap(NULL, HELD, PROT_READ, MAP_SHARED, fd, 0);
  assert_true(page != MAP_FAILED);
  (void)page[0];
  close(fd);
  return (void *)page;
}

/* Lets go of it when the first file is being checked. */
static int let_go(void *user, const char *stage, int64_t done, int64_t all) {
  void **page = user;
  if (*page != NULL)
    munmap(*page, HELD);
  *page = NULL;
  return 0;
}

/* Headers and state.json that come from the page cache are not said to come from the device. */
CASE(test_from_device) {
  char text[] = "{\"version\": 1, \"leaves\": {\n},\n" RS_DIGEST_SEAL, name[128];
  reshard_check_report report;
  void *page = NULL;
  const reshard_check_options options = {
      .size = RESHARD_CHECK_OPTIONS_INIT, .threads = 1, .progress = let_go, .user = &page};
  write_tensor("s", "chunk(0)", 2, 4 << 20);
  snprintf(name, sizeof name, "s/%s", strchr(scratch_list("s"), ' ') + 1);
  rs_digest_seal(text, sizeof text - 1);
  scratch_write("s/state.json", text, sizeof text - 1);
  munmap(hold_page("s/state.json"), HELD);
  GOOD(reshard_checkpoint_check(scratch_path("s"), &options, &report));
  assert_true(report.files == 3 && report.unchecked_files == 0);
  if (report.from_device) {
    page = hold_page(name);
    GOOD(reshard_checkpoint_check(scratch_path("s"), &options, &report));
    assert_true(page == NULL && report.from_device == 0);
    GOOD(reshard_checkpoint_check(scratch_path("s"), &options, &report));
    assert_int_equal(report.from_device, 1);
    void *held = hold_page("s/state.json");
    GOOD(reshard_checkpoint_check(scratch_path("s"), &options, &report));
    assert_int_equal(report.from_device, 0);
    munmap(held, HELD);
    page = hold_page(name); /* a single file */
    GOOD(reshard_checkpoint_check(scratch_path(name), &options, &report));
    assert_true(page == NULL && report.from_device == 0);
  }
  scratch_remove("s");
}

/* --- Damaged headers ------------------------------------------------------------------------------------------- */

/* One bit of every byte of a header: what loads and what converts calls the file corrupt, whatever the bit does to its
 * JSON. */
CASE(any_flipped_bit_of_a_header_is_corrupt) {
  const int64_t bytes = 5000;
  const reshard_state_load_options load = {.size = RESHARD_STATE_LOAD_OPTIONS_INIT, .check = 1};
  const reshard_convert_options convert = {.size = RESHARD_CONVERT_OPTIONS_INIT, .verify = 1};
  reshard_comm comm;
  reshard_sharder sharder;
  reshard_tensor tensor;
  reshard_tree tree, leaf;
  char path[512], in[512];
  size_t size;
  rng r;
  rng_seed(&r, 6);
  GOOD(reshard_comm_create_local(1, NULL, &comm));
  GOOD(reshard_sharder_create(comm, NULL, &sharder));
  GOOD(reshard_tensor_create(RESHARD_U8, 1, &bytes, &tensor));
  GOOD(reshard_tree_dict(&tree));
  GOOD(reshard_tree_tensor(tensor, &leaf));
  GOOD(reshard_tree_set(tree, "a", leaf));
  reshard_tree_release(leaf);
  GOOD(reshard_state_save(sharder, tree, scratch_path("s"), NULL, NULL));
  write_tensor("in.safetensors", "rank(0)", 1, bytes);
  snprintf(path, sizeof path, "s/%s", scratch_list("s"));
  free(scratch_read(path, &size));
  snprintf(path, sizeof path, "%s", scratch_path(path));
  for (int64_t byte = 0; byte < (int64_t)size - bytes; byte += test_one_in(8)) {
    int bit = (int)rng_below(&r, 8);
    flip_bit(path, byte, bit);
    reshard_status status = reshard_state_load(sharder, tree, scratch_path("s"), &load, NULL);
    flip_bit(path, byte, bit);
    if (status != RESHARD_ERROR_CORRUPT)
      fail_msg("load, bit %d of byte %lld: %s", bit, (long long)byte, reshard_last_error());
  }
  GOOD(reshard_state_load(sharder, tree, scratch_path("s"), &load, NULL));
  snprintf(in, sizeof in, "%s", scratch_path("in.safetensors"));
  free(scratch_read("in.safetensors", &size));
  for (int64_t byte = 0; byte < (int64_t)size - bytes; byte += test_one_in(8)) {
    int bit = (int)rng_below(&r, 8);
    flip_bit(in, byte, bit);
    reshard_status status = reshard_convert(in, scratch_path("out.safetensors"), &convert, NULL);
    flip_bit(in, byte, bit);
    if (status != RESHARD_ERROR_CORRUPT)
      fail_msg("convert, bit %d of byte %lld: %s", bit, (long long)byte, reshard_last_error());
  }
  GOOD(reshard_convert(in, scratch_path("out.safetensors"), &convert, NULL));
  reshard_tree_release(tree);
  reshard_tensor_release(tensor);
  reshard_sharder_destroy(sharder);
  reshard_comm_destroy(comm);
  for (int i = 0; i < 3; i++)
    scratch_remove((const char *[]){"s", "in.safetensors", "out.safetensors"}[i]);
}

/* A small header of 2^60 bytes, as a sparse file may have: no memory is taken for digests that have no place in it. */
CASE(huge_sparse_header_takes_no_memory) {
  static const char format[] =
      "{\"__metadata__\":{\"format\":\"pt\"" RS_DIGEST_BEFORE "0000000000000000" RS_DIGEST_BETWEEN
      "0000000000000000" RS_DIGEST_BEHIND "},\"a\":{\"dtype\":\"U8\",\"shape\":[%lld],\"data_offsets\":[0,%lld]}}";
  const int64_t data = (int64_t)1 << 60;
  char memory[1024] = {0};
  int n = snprintf(memory + 8, sizeof memory - 8, format, (long long)data, (long long)data);
  rs_file file = {.fd = -1, .memory = memory, .size = 8 + n + data};
  rs_safetensors header = {0};
  memory[0] = (char)(n & 0xff);
  memory[1] = (char)(n >> 8);
  GOOD(rs_safetensors_read("file", &file, &header));
  FAILS_WITH(rs_safetensors_read_digests("file", &header, &file), RESHARD_ERROR_CORRUPT,
             "for 1099511627776 pieces of 1 boxes");
  assert_null(file.digests);
  rs_safetensors_free(&header);
}

/* --- The format's limit of a header ------------------------------------------------------------------------------ */

/* Number of digests of a file whose only tensor has a name of that many bytes; -1: the header is too long. */
static int64_t digests_of(char *name, int64_t n) {
  const int64_t bytes = 4;
  reshard_writer_tensor tensor = {name, RESHARD_U8, NULL};
  reshard_writer writer;
  rs_writer_report report;
  name[n] = '\0';
  GOOD(reshard_layout_parse("rank(0)", 1, &bytes, 1, &tensor.layout));
  reshard_status status = reshard_writer_create(scratch_path("long.safetensors"), 1, &tensor, NULL, &writer);
  name[n] = 'n';
  reshard_layout_release(tensor.layout);
  if (status == RESHARD_ERROR_UNSUPPORTED)
    return -1;
  GOOD(status);
  rs_writer_get_report(writer, &report);
  reshard_writer_abandon(writer);
  return report.digests;
}

/* Digests are left out where the header is too long with them, and are there where it just is not. */
CASE(digests_are_left_out_of_headers_too_long) {
  static const char plain[] = "{\"__metadata__\":{\"format\":\"pt\"},\"\":{\"dtype\":\"U8\",\"shape\":[4],"
                              "\"data_offsets\":[0,4]}}";
  const int64_t most = 100000000 - (int64_t)sizeof plain + 1,
                digests = (int64_t)sizeof(RS_DIGEST_BEFORE RS_DIGEST_BETWEEN RS_DIGEST_BEHIND) - 1 + 32;
  char *name = malloc((size_t)most + 2);
  memset(name, 'n', (size_t)most + 2);
  if (test_one_in(2) == 1) { /* each takes 15 s where accesses are looked at */
    assert_int_equal(digests_of(name, most - digests), 1);
    assert_int_equal(digests_of(name, most - digests + 1), 0);
  }
  assert_int_equal(digests_of(name, most + 1), -1);
  free(name);
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)

#else
RUN_CASES_IF(0, "built without xxhash")
#endif
