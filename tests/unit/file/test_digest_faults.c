/* Digests where files are written and read in ways of their own: overwritten bytes, checks that end early, pages that
 * stay in memory, headers that are damaged, too large or sparse. */
#include "support/fixtures/scratch.h"

#include "bench/verify/random.h"
#include "file/format/safetensors.h"
#include "file/ground/digest.h"

#include <reshard/reshard.h>
#include <reshard/torch.h>

#include <setjmp.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GOOD(call) \
  do { \
    if ((call) != RESHARD_SUCCESS) \
      fail_msg("%s: %s", #call, reshard_last_error()); \
  } while (0)

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
static void test_overlaps(void **state) {
  (void)state;
  enum { MOST = 40000 };
  char *memory = malloc(HEADER + MOST);
  rng r;
  rng_seed(&r, 0);
  rs_file file = new_file(memory, 16384);
  write_bytes(&file, 0, 10000, &r);
  write_bytes(&file, 5000, 11384, &r);
  check_stored(&file, 0);
  for (uint64_t seed = 1; seed <= 300; seed++) {
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_overlaps),
  };
  return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}

#else
int main(void) {
  puts("skipped: built without xxhash");
  return 77;
}
#endif
