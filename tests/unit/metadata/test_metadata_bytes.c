/* Metadata as a byte string and as JSON: every string that is read is the one that is written for what it says. */
#include "bench/verify/random.h"
#include "metadata/serialize.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"
#include "support/fixtures/scale.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Small numbers, large ones, and the largest. */
static int64_t number(rng *r, int64_t most) {
  if (most < 2)
    return rng_in(r, 0, most);
  return rng_one_in(r, 4) ? 0 : rng_one_in(r, 8) ? most : rng_in(r, 0, rng_log(r, most - 1));
}

static reshard_metadata make_metadata(rng *r, int64_t most) {
  reshard_properties p = {(reshard_dtype)rng_in(r, 1, RESHARD_DTYPE_COUNT - 1), (reshard_memory_format)rng_below(r, 2),
                          (int)rng_below(r, 2), (int)rng_below(r, 2)};
  int ndim = (int)rng_in(r, 0, RESHARD_MAX_DIMS);
  int64_t shape[RESHARD_MAX_DIMS], n = rng_in(r, 0, most);
  reshard_shard *shards = calloc((size_t)n + 1, sizeof *shards);
  assert_non_null(shards);
  int64_t large = ndim == 1 ? INT64_MAX : ndim < 3 ? INT32_MAX : 100; /* so that no product overflows */
  for (int d = 0; d < ndim; d++)
    shape[d] = number(r, large);
  for (int64_t i = 0; i < n; i++) {
    for (int d = 0; d < ndim; d++) {
      shards[i].box.extent[d] = number(r, large);
      shards[i].box.offset[d] = number(r, INT64_MAX - shards[i].box.extent[d]);
    }
    shards[i].placement =
        (reshard_remote_device){rng_one_in(r, 4) ? -1 : number(r, INT64_MAX), (reshard_device_type)rng_below(r, 2),
                                rng_one_in(r, 4) ? -1 : (int)number(r, INT_MAX)};
  }
  reshard_metadata m;
  GOOD(reshard_metadata_create(&p, ndim, shape, n, shards, &m));
  free(shards);
  return m;
}

/* In memory of exactly its length. */
static unsigned char *string_of(reshard_metadata m, size_t *size) {
  GOOD(reshard_metadata_serialize(m, NULL, 0, size));
  unsigned char *bytes = malloc(*size);
  assert_non_null(bytes);
  GOOD(reshard_metadata_serialize(m, bytes, *size, NULL));
  return bytes;
}

CASE(test_round_trip) {
  for (int64_t seed = 1; seed <= test_scaled(3000, 1); seed++) {
    rng r;
    size_t size, longer;
    reshard_metadata again;
    rng_seed(&r, (uint64_t)seed);
    reshard_metadata m = make_metadata(&r, 12);
    unsigned char *bytes = string_of(m, &size);
    GOOD(reshard_metadata_deserialize(bytes, size, &again));
    assert_true(reshard_metadata_equal(m, again));
    assert_true(reshard_metadata_hash(m) == reshard_metadata_hash(again));
    unsigned char *room = malloc(size + 8);
    memset(room, 0x5a, size + 8);
    GOOD(reshard_metadata_serialize(again, room, size + 8, &longer));
    assert_int_equal(longer, size);
    assert_memory_equal(room, bytes, size);
    assert_int_equal(room[size], 0x5a);
    free(room);
    free(bytes);
    reshard_metadata_release(again);
    reshard_metadata_release(m);
  }
}

/* The bytes of an example: metadata that was written stays readable, on every machine. */
CASE(recorded_bytes_stay_readable) {
  static const char known[] = "RSMD\1\0\0\0"                     /* version */
                              "\20\0\0\0\0\0\0\0"                /* length */
                              "\xf1\x31\x2a\x73\x02\xe3\x38\xa9" /* checksum */
                              "\2\16\0\1"                        /* ndim, bf16, contiguous, requires_grad */
                              "\xac\2\6\1"                       /* 300x6, one shard */
                              "\0\0\xac\2\6\4\1\2";              /* all of it on rank:3/cuda:1 */
  const reshard_properties p = {RESHARD_BF16, RESHARD_MEMORY_CONTIGUOUS, 1, 0};
  const int64_t shape[2] = {300, 6};
  const reshard_shard shard = {{{0, 0}, {300, 6}}, {3, RESHARD_DEVICE_CUDA, 1}};
  reshard_metadata m;
  size_t size;
  GOOD(reshard_metadata_create(&p, 2, shape, 1, &shard, &m));
  unsigned char *bytes = string_of(m, &size);
  assert_int_equal(size, sizeof known - 1);
  assert_memory_equal(bytes, known, size);
  free(bytes);
  reshard_metadata_release(m);
}

/* Every truncation, every flipped bit, and bytes behind the end are refused. */
CASE(any_damage_of_the_bytes_is_refused) {
  for (int64_t seed = 1; seed <= test_scaled(60, 1); seed++) {
    rng r;
    size_t size;
    reshard_metadata again = (reshard_metadata)&again;
    rng_seed(&r, (uint64_t)seed);
    reshard_metadata m = make_metadata(&r, 4);
    unsigned char *bytes = string_of(m, &size);
    for (size_t cut = 0; cut < size; cut++) {
      unsigned char *part = malloc(cut > 0 ? cut : 1);
      memcpy(part, bytes, cut);
      assert_int_equal(reshard_metadata_deserialize(part, cut, &again), RESHARD_ERROR_INVALID);
      free(part);
    }
    for (size_t bit = 0; bit < size * 8; bit++) {
      bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
      assert_int_equal(reshard_metadata_deserialize(bytes, size, &again), RESHARD_ERROR_INVALID);
      bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    unsigned char *longer = calloc(1, size + 1);
    memcpy(longer, bytes, size);
    assert_int_equal(reshard_metadata_deserialize(longer, size + 1, &again), RESHARD_ERROR_INVALID);
    free(longer);
    assert_ptr_equal(again, (void *)&again);
    free(bytes);
    reshard_metadata_release(m);
  }
}

/* The same under a checksum that is right: refused, or it is the string of what was read. */
CASE(test_sealed_damage) {
  int64_t refused = 0, read = 0;
  for (int64_t seed = 1; seed <= 8 + test_scaled(4, 1); seed++) {
    rng r;
    size_t size, length;
    rng_seed(&r, (uint64_t)seed);
    reshard_metadata m = make_metadata(&r, 4), again;
    unsigned char *bytes = string_of(m, &size);
    for (size_t i = RS_SEAL; i < size; i++)
      for (int flip = 1; flip < 256; flip++) {
        bytes[i] ^= (unsigned char)flip;
        size_t cut = rng_one_in(&r, 8) ? i + 1 : size;
        rs_seal(RS_MAGIC_METADATA, (char *)bytes, (int64_t)cut - RS_SEAL);
        if (reshard_metadata_deserialize(bytes, cut, &again) == RESHARD_SUCCESS) {
          unsigned char *written = string_of(again, &length);
          assert_int_equal(length, cut);
          assert_memory_equal(written, bytes, cut);
          free(written);
          reshard_metadata_release(again);
          read++;
        } else {
          refused++;
        }
        bytes[i] ^= (unsigned char)flip;
      }
    free(bytes);
    reshard_metadata_release(m);
  }
  assert_true(read > 1000 && refused > 1000);
}

/* A sealed string of these numbers (and bytes); the error that reading it gives. */
static void expect_numbers(int64_t n, const uint64_t *numbers, int64_t nbytes, const char *bytes, const char *error) {
  char string[256], *at = string + RS_SEAL;
  reshard_metadata m = (reshard_metadata)&m;
  for (int64_t i = 0; i < n; i++)
    at = rs_put(at, numbers[i]);
  memcpy(at, bytes, (size_t)nbytes);
  at += nbytes;
  rs_seal(RS_MAGIC_METADATA, string, at - string - RS_SEAL);
  BAD(reshard_metadata_deserialize(string, (size_t)(at - string), &m), error);
  assert_ptr_equal(m, (void *)&m);
}
#define NUMBERS(...) sizeof((const uint64_t[]){__VA_ARGS__}) / 8, (const uint64_t[]){__VA_ARGS__}, 0, ""

/* Metadata that ranks bring to each other are sealed, too, and read to their end. */
static int64_t size_of_rank(const void *size, int64_t rank) { return *(const int64_t *)size; }

CASE(strings_of_ranks_with_bytes_behind_their_end_are_refused) {
  const reshard_properties p = {.dtype = RESHARD_F32};
  const int64_t shape[2] = {4, 6};
  const reshard_shard shard = {.box = {{0, 0}, {4, 6}}};
  reshard_metadata local, global;
  GOOD(reshard_metadata_create(&p, 2, shape, 1, &shard, &local));
  for (int64_t more = 0; more <= 2; more++) {
    char *packed, longer[256] = {0};
    int64_t size;
    rs_strings *all;
    GOOD(rs_metadata_pack(1, &local, -1, &packed, &size));
    assert_true(size + more <= (int64_t)sizeof longer);
    memcpy(longer, packed, (size_t)size);
    free(packed);
    size += more;
    rs_seal(RS_MAGIC_LOCALS, longer, size - RS_SEAL);
    GOOD(rs_strings_create(1, size_of_rank, &size, &all));
    memcpy(all->bytes, longer, (size_t)size);
    global = (reshard_metadata)&global;
    if (more > 0) {
      FAILS_WITH(rs_metadata_merge(NULL, all, 1, &global), RESHARD_ERROR_INVALID, "the end is expected here");
      assert_ptr_equal(global, (void *)&global);
    } else {
      GOOD(rs_metadata_merge(NULL, all, 1, &global));
      assert_true(reshard_metadata_equal(global, local));
      reshard_metadata_release(global);
    }
    rs_strings_release(all);
  }
  reshard_metadata_release(local);
}

CASE(wrong_fields_are_refused_with_their_byte) {
  const uint64_t max = INT64_MAX, over = max + 1;
  expect_numbers(NUMBERS(9), "metadata string: byte 24: ndim is too large");
  expect_numbers(NUMBERS(1, RESHARD_DTYPE_COUNT), "metadata string: byte 25: dtype is too large");
  expect_numbers(NUMBERS(1, 1, 2), "metadata string: byte 26: memory format is too large");
  expect_numbers(NUMBERS(1, 1, 0, 4), "metadata string: byte 27: flags is too large");
  expect_numbers(NUMBERS(1, 1, 0, 0, over), "metadata string: byte 28: shape is too large");
  expect_numbers(NUMBERS(1, 1, 0, 0, 5, 2, 0, 5, 0, 0, 0), "metadata string: byte 29: number of shards is too large");
  expect_numbers(NUMBERS(1, 1, 0, 0, 5, max), "metadata string: byte 29: number of shards is too large");
  expect_numbers(NUMBERS(1, 1, 0, 0, 5, 1, over, 5, 0, 0, 0), "metadata string: byte 30: offset is too large");
  expect_numbers(NUMBERS(1, 1, 0, 0, 5, 1, 0, over, 0, 0, 0), "metadata string: byte 31: size is too large");
  expect_numbers(NUMBERS(1, 1, 0, 0, 5, 1, 0, 5, over + 1, 0, 0), "metadata string: byte 32: rank is too large");
  expect_numbers(NUMBERS(1, 1, 0, 0, 5, 1, 0, 5, 0, 2, 0), "metadata string: byte 33: device type is too large");
  expect_numbers(NUMBERS(1, 1, 0, 0, 5, 1, 0, 5, 0, 1, (uint64_t)INT_MAX + 2),
                 "metadata string: byte 34: device index is too large");
  expect_numbers(NUMBERS(1, 1, 0, 0, 5, 1, 0, 5, 0, 1, 0, 0), "metadata string: byte 35: the end is expected here");
  expect_numbers(NUMBERS(1, 0, 0, 0, 5, 0), "metadata: 0 is no dtype");
  expect_numbers(NUMBERS(2, 1, 0, 0, max, 2, 0),
                 "metadata: the elements of shape 9223372036854775807x2 overflow 63 bits");
  expect_numbers(NUMBERS(1, 1, 0, 0, 5, 1, max, 1, 0, 1, 0),
                 "metadata: shard 0 has offset 9223372036854775807 and size 1 in dim 0");
  expect_numbers(NUMBERS(1), "metadata string: byte 25: dtype is cut off");
  expect_numbers(0, NULL, 0, "", "metadata string: byte 24: ndim is cut off");
  expect_numbers(0, NULL, 2, "\x81\x80", "metadata string: byte 24: ndim is cut off");
  expect_numbers(0, NULL, 2, "\x81\x00", "metadata string: byte 24: ndim is longer than it need be");
  expect_numbers(0, NULL, 10, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
                 "metadata string: byte 24: ndim does not fit in 64 bits");
  expect_numbers(0, NULL, 11, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x81\x00",
                 "metadata string: byte 24: ndim does not fit in 64 bits");
  expect_numbers(0, NULL, 10, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                 "metadata string: byte 24: ndim is too large");
}

CASE(test_header_texts) {
  const reshard_properties f32 = {.dtype = RESHARD_F32};
  size_t size, needed = 0;
  reshard_metadata m, again;
  GOOD(reshard_metadata_create(&f32, 0, NULL, 0, NULL, &m));
  unsigned char *bytes = string_of(m, &size);
  assert_int_equal(size, 29);
  BAD(reshard_metadata_deserialize(bytes, 23, &again), "metadata string: 23 bytes, its header alone has 24");
  BAD(reshard_metadata_deserialize(bytes, 28, &again), "metadata string: 4 bytes follow the header, which says 5");
  bytes[24] ^= 1;
  BAD(reshard_metadata_deserialize(bytes, size, &again), "metadata string: its checksum is not that of its 5 bytes");
  bytes[24] ^= 1;
  bytes[4] = 2;
  BAD(reshard_metadata_deserialize(bytes, size, &again), "metadata string: version 2, this library reads version 1");
  bytes[3] = 'L'; /* locals on their way are no metadata */
  BAD(reshard_metadata_deserialize(bytes, size, &again), "metadata string: it does not begin with \"RSMD\"");
  BAD(reshard_metadata_deserialize(NULL, 5, &again), "reshard_metadata_deserialize: bytes is NULL");
  BAD(reshard_metadata_deserialize(bytes, size, NULL), "reshard_metadata_deserialize: metadata is NULL");
  BAD(reshard_metadata_serialize(m, bytes, 28, &needed), "the metadata need 29 bytes, the buffer has 28");
  assert_int_equal(needed, 29);
  BAD(reshard_metadata_serialize(NULL, bytes, size, &needed), "reshard_metadata_serialize: metadata is NULL");
  BAD(reshard_metadata_serialize(m, NULL, size, &needed), "reshard_metadata_serialize: bytes is NULL");
  BAD(reshard_metadata_serialize(m, NULL, 0, NULL), "reshard_metadata_serialize: bytes is NULL");
  free(bytes);
  reshard_metadata_release(m);
}

CASE(json_tells_every_field) {
  const reshard_properties p = {RESHARD_BF16, RESHARD_MEMORY_PRESERVE, 1, 0},
                           q = {.dtype = RESHARD_U8, .pin_memory = 1};
  const int64_t shape[2] = {5, 3};
  const reshard_shard shards[2] = {{{{0, 0}, {5, 2}}, {4, RESHARD_DEVICE_CUDA, 1}},
                                   {{{0, 2}, {5, 1}}, {-1, RESHARD_DEVICE_CPU, -1}}};
  const char *const expected =
      "{\"shape\": [5, 3], \"dtype\": \"bf16\", \"memory_format\": \"preserve\", \"requires_grad\": true, "
      "\"pin_memory\": false, \"shards\": [{\"offsets\": [0, 0], \"sizes\": [5, 2], \"placement\": \"rank:4/cuda:1\"}, "
      "{\"offsets\": [0, 2], \"sizes\": [5, 1], \"placement\": \"cpu\"}]}";
  reshard_metadata m;
  char text[512];
  size_t needed = 0;
  GOOD(reshard_metadata_create(&p, 2, shape, 2, shards, &m));
  GOOD(reshard_metadata_print_json(m, text, sizeof text, &needed));
  assert_string_equal(text, expected);
  assert_int_equal(needed, strlen(expected) + 1);
  GOOD(reshard_metadata_print_json(m, text, needed, NULL));
  assert_int_equal(reshard_metadata_print_json(m, text, needed - 1, NULL), RESHARD_ERROR_INVALID);
  assert_int_equal(reshard_metadata_print_json(m, NULL, 0, &needed), RESHARD_ERROR_INVALID);
  assert_int_equal(needed, strlen(expected) + 1);
  BAD(reshard_metadata_print_json(NULL, text, sizeof text, NULL), "reshard_metadata_print_json: metadata is NULL");
  BAD(reshard_metadata_print_json(m, NULL, 1, NULL), "reshard_metadata_print_json: text is NULL");
  reshard_metadata_release(m);
  GOOD(reshard_metadata_create(&q, 0, NULL, 0, NULL, &m));
  GOOD(reshard_metadata_print_json(m, text, sizeof text, NULL));
  assert_string_equal(text, "{\"shape\": [], \"dtype\": \"u8\", \"memory_format\": \"contiguous\", \"requires_grad\": "
                            "false, \"pin_memory\": true, \"shards\": []}");
  reshard_metadata_release(m);
}

RUN_CASES
