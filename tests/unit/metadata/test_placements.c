/* Placements as text, workers' names, groups, and lists of placements: index from placements, chunk specs, reshard
 * metadata. */
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/rank_threads.h"

#include <reshard/metadata.h>

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static reshard_workers make_workers(void) {
  reshard_workers workers;
  GOOD(reshard_workers_create(&workers));
  GOOD(reshard_workers_add(workers, "trainer10", 10));
  GOOD(reshard_workers_add(workers, "trainer1", 1));
  GOOD(reshard_workers_add(workers, "trainer-1_b", 0));
  GOOD(reshard_workers_add(workers, "cuda", INT64_MAX));
  GOOD(reshard_workers_add(workers, "a", 7));
  return workers;
}

CASE(texts_of_placements_are_read) {
  const struct {
    const char *text, *printed; /* NULL: the same */
    reshard_remote_device is;
  } cases[] = {
      {"rank:3/cuda:1", NULL, {3, RESHARD_DEVICE_CUDA, 1}},
      {"rank:0/cpu", NULL, {0, RESHARD_DEVICE_CPU, -1}},
      {"rank:0/cpu:0", NULL, {0, RESHARD_DEVICE_CPU, 0}},
      {"rank:12/cuda", NULL, {12, RESHARD_DEVICE_CUDA, -1}},
      {"cuda:0", NULL, {-1, RESHARD_DEVICE_CUDA, 0}},
      {"cuda", NULL, {-1, RESHARD_DEVICE_CUDA, -1}},
      {"cpu", NULL, {-1, RESHARD_DEVICE_CPU, -1}},
      {"rank:9223372036854775807/cuda:2147483647", NULL, {INT64_MAX, RESHARD_DEVICE_CUDA, INT_MAX}},
      {"rank:007/cuda:01", "rank:7/cuda:1", {7, RESHARD_DEVICE_CUDA, 1}},
      {"trainer1/cuda:1", "rank:1/cuda:1", {1, RESHARD_DEVICE_CUDA, 1}},
      {"trainer10/cpu", "rank:10/cpu", {10, RESHARD_DEVICE_CPU, -1}},
      {"trainer-1_b/cpu", "rank:0/cpu", {0, RESHARD_DEVICE_CPU, -1}},
      {"cuda/cuda:3", "rank:9223372036854775807/cuda:3", {INT64_MAX, RESHARD_DEVICE_CUDA, 3}},
      {"a/cpu", "rank:7/cpu", {7, RESHARD_DEVICE_CPU, -1}},
      {"rank:0", "rank:0/cpu", {0, RESHARD_DEVICE_CPU, -1}},
      {"rank:007", "rank:7/cpu", {7, RESHARD_DEVICE_CPU, -1}},
      {"trainer10", "rank:10/cpu", {10, RESHARD_DEVICE_CPU, -1}},
      {"trainer-1_b", "rank:0/cpu", {0, RESHARD_DEVICE_CPU, -1}},
  };
  reshard_workers workers = make_workers();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    reshard_remote_device device = {-9, RESHARD_DEVICE_CPU, -9}, again;
    char text[64];
    size_t needed = 0;
    GOOD(reshard_remote_device_parse(cases[i].text, workers, &device));
    assert_int_equal(device.rank, cases[i].is.rank);
    assert_int_equal(device.type, cases[i].is.type);
    assert_int_equal(device.index, cases[i].is.index);
    GOOD(reshard_remote_device_print(&device, text, sizeof text, &needed));
    assert_string_equal(text, cases[i].printed != NULL ? cases[i].printed : cases[i].text);
    assert_int_equal(needed, strlen(text) + 1);
    GOOD(reshard_remote_device_parse(text, NULL, &again));
    assert_true(reshard_remote_device_equal(&device, &again));
    for (size_t j = 0; j < sizeof cases / sizeof *cases; j++)
      if (memcmp(&cases[i].is, &cases[j].is, sizeof device) != 0)
        assert_false(reshard_remote_device_equal(&device, &cases[j].is));
  }
  reshard_workers_free(workers);
}

CASE(test_parse_errors) {
#define DEVICE_OR_OWNER "expected a device, \"cpu\" or \"cuda\", \"rank:\" and a number, or a worker's name"
#define RANK_OR_NAME    "expected \"rank:\" and a number, or a worker's name"
  const struct {
    const char *text, *error; /* behind `placement "...": ` */
  } cases[] = {
      {"", "column 1: " DEVICE_OR_OWNER},
      {"gpu", "column 1: " DEVICE_OR_OWNER},
      {" cpu", "column 1: " DEVICE_OR_OWNER},
      {"Cuda:0", "column 1: " DEVICE_OR_OWNER},
      {"cpus", "column 4: expected ':' and the index of a device, or the end"},
      {"cuda0", "column 5: expected ':' and the index of a device, or the end"},
      {"cuda:", "column 6: expected the index of a device, a number of 0 or more"},
      {"cuda:-1", "column 6: expected the index of a device, a number of 0 or more"},
      {"cuda:x", "column 6: expected the index of a device, a number of 0 or more"},
      {"cuda:1x", "column 7: expected the end"},
      {"cuda:1 ", "column 7: expected the end"},
      {"cuda:2147483648", "column 6: the index of the device does not fit in 31 bits"},
      {"rank:1/cuda:99999999999999999999", "column 13: the index of the device does not fit in 31 bits"},
      {"rank:", "column 6: expected a rank, a number of 0 or more"},
      {"rank:/cpu", "column 6: expected a rank, a number of 0 or more"},
      {"rank:-1/cpu", "column 6: expected a rank, a number of 0 or more"},
      {"rank:x/cpu", "column 6: expected a rank, a number of 0 or more"},
      {"rank:9223372036854775808/cpu", "column 6: the rank does not fit in 63 bits"},
      {"rank:3:cpu", "column 7: expected '/' and a device, or the end"},
      {"rank:3x", "column 7: expected '/' and a device, or the end"},
      {"rank", "column 1: " DEVICE_OR_OWNER},
      {"nobody", "column 1: " DEVICE_OR_OWNER},
      {"trainer", "column 1: " DEVICE_OR_OWNER},
      {"trainer1/", "column 10: expected a device, \"cpu\" or \"cuda\""},
      {"rank:3/", "column 8: expected a device, \"cpu\" or \"cuda\""},
      {"rank:3/tpu:0", "column 8: expected a device, \"cpu\" or \"cuda\""},
      {"rank:3/cuda:0/1", "column 14: expected the end"},
      {"rank/cpu", "column 5: expected ':' and a number after \"rank\""},
      {"/cpu", "column 1: " RANK_OR_NAME},
      {"nobody/cpu", "column 1: " RANK_OR_NAME "; there is no \"nobody\""},
      {"trainer/cpu", "column 1: " RANK_OR_NAME "; there is no \"trainer\""},
      {"trainer100/cpu", "column 1: " RANK_OR_NAME "; there is no \"trainer100\""},
      {"ranks/cpu", "column 1: " RANK_OR_NAME "; there is no \"ranks\""},
      {"train er/cpu", "column 6: expected '/', or a letter, digit, '_' or '-' of a worker's name"},
      {"Rank:3/cpu", "column 5: expected '/', or a letter, digit, '_' or '-' of a worker's name"},
      {"a/gpu", "column 3: expected a device, \"cpu\" or \"cuda\""},
  };
  reshard_workers workers = make_workers();
  const reshard_remote_device before = {-9, RESHARD_DEVICE_CPU, -9};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    reshard_remote_device device = before;
    char text[256];
    snprintf(text, sizeof text, "placement \"%s\": %s", cases[i].text, cases[i].error);
    FAILS(reshard_remote_device_parse(cases[i].text, workers, &device), RESHARD_ERROR_INVALID, text);
    assert_true(reshard_remote_device_equal(&device, &before));
  }
  reshard_remote_device device = before;
  FAILS(reshard_remote_device_parse("a/cpu", NULL, &device), RESHARD_ERROR_INVALID,
        "placement \"a/cpu\": column 1: " RANK_OR_NAME "; there is no table with \"a\"");
  FAILS(reshard_remote_device_parse("cpu\n\x7f", workers, &device), RESHARD_ERROR_INVALID,
        "placement \"cpu??\": column 4: expected ':' and the index of a device, or the end");
  FAILS(reshard_remote_device_parse(NULL, workers, &device), RESHARD_ERROR_INVALID,
        "reshard_remote_device_parse: text is NULL");
  FAILS(reshard_remote_device_parse("cpu", workers, NULL), RESHARD_ERROR_INVALID,
        "reshard_remote_device_parse: device is NULL");
  char endless[2000];
  memset(endless, 'x', sizeof endless);
  memcpy(endless + sizeof endless - 5, "/cpu", 5);
  assert_int_equal(reshard_remote_device_parse(endless, workers, &device), RESHARD_ERROR_INVALID);
  assert_non_null(strstr(reshard_last_error(), "xxx...\": column 1: expected"));
  reshard_workers_free(workers);
}

/* Whatever the text is: refused with one line, or read, printed, and read as the same. */
CASE(test_parse_anything) {
  static const char *const parts[] = {"rank", ":",     "3", "/",  "cuda", "cpu", "0",  "trainer1", "a",   "-1",
                                      "x",    "rank:", "",  "\n", "99",   "//",  "::", "cuda:",    "cpu/"};
  enum { N = sizeof parts / sizeof *parts };
  reshard_workers workers = make_workers();
  int64_t read = 0;
  for (int i = 0; i < N * N * N * N; i++) {
    char text[64], printed[64];
    reshard_remote_device device, again;
    snprintf(text, sizeof text, "%s%s%s%s", parts[i % N], parts[i / N % N], parts[i / N / N % N], parts[i / N / N / N]);
    if (reshard_remote_device_parse(text, workers, &device) != RESHARD_SUCCESS) {
      assert_null(strchr(reshard_last_error(), '\n'));
      assert_non_null(strstr(reshard_last_error(), "column "));
      continue;
    }
    read++;
    GOOD(reshard_remote_device_print(&device, printed, sizeof printed, NULL));
    GOOD(reshard_remote_device_parse(printed, NULL, &again));
    assert_true(reshard_remote_device_equal(&device, &again));
  }
  assert_true(read > 50);
  reshard_workers_free(workers);
}

CASE(placements_print_in_the_room_given) {
  const reshard_remote_device device = {3, RESHARD_DEVICE_CUDA, 1};
  char text[32];
  size_t needed = 0;
  memset(text, '#', sizeof text);
  FAILS(reshard_remote_device_print(&device, text, 5, &needed), RESHARD_ERROR_INVALID,
        "the text needs 14 bytes, the buffer has 5");
  assert_int_equal(needed, 14);
  assert_int_equal(text[5], '#');
  FAILS(reshard_remote_device_print(&device, NULL, 0, &needed), RESHARD_ERROR_INVALID,
        "the text needs 14 bytes, the buffer has 0");
  FAILS(reshard_remote_device_print(NULL, text, sizeof text, NULL), RESHARD_ERROR_INVALID,
        "reshard_remote_device_print: device is NULL");
  const reshard_remote_device odd = {3, (reshard_device_type)5, 1};
  FAILS(reshard_remote_device_print(&odd, text, sizeof text, NULL), RESHARD_ERROR_INVALID,
        "reshard_remote_device_print: unknown device type 5");
}

CASE(names_of_workers_stand_for_ranks) {
  const char *const no_name = "\" is no name: one has letters, digits, '_' and '-', and is not \"rank\"";
  const struct {
    const char *name, *shown;
  } none[] = {{"", ""},       {"rank", "rank"}, {"a b", "a b"},
              {"a/b", "a/b"}, {"a\nb", "a?b"},  {"r\xc3\xa4t", "r\xc3\xa4t"}};
  reshard_workers workers = make_workers();
  for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
    char text[256];
    snprintf(text, sizeof text, "workers: \"%s%s", none[i].shown, no_name);
    FAILS(reshard_workers_add(workers, none[i].name, 20), RESHARD_ERROR_INVALID, text);
  }
  FAILS(reshard_workers_add(workers, "b", -1), RESHARD_ERROR_INVALID, "workers: \"b\" has rank -1, 0 is the least");
  FAILS(reshard_workers_add(workers, "b", 10), RESHARD_ERROR_INVALID,
        "workers: \"trainer10\" and \"b\" both have rank 10");
  FAILS(reshard_workers_add(workers, "trainer1", 30), RESHARD_ERROR_INVALID,
        "workers: \"trainer1\" has ranks 1 and 30");
  FAILS(reshard_workers_add(workers, NULL, 1), RESHARD_ERROR_INVALID, "reshard_workers_add: name is NULL");
  FAILS(reshard_workers_add(NULL, "b", 1), RESHARD_ERROR_INVALID, "reshard_workers_add: workers is NULL");
  FAILS(reshard_workers_create(NULL), RESHARD_ERROR_INVALID, "reshard_workers_create: workers is NULL");
  for (int64_t i = 100; i < 400; i++) { /* in no order of names */
    char name[32];
    snprintf(name, sizeof name, "w%lld", (long long)(i * 7919 % 1000));
    GOOD(reshard_workers_add(workers, name, i));
  }
  for (int64_t i = 100; i < 400; i++) {
    char text[32];
    reshard_remote_device device;
    snprintf(text, sizeof text, "w%lld/cpu", (long long)(i * 7919 % 1000));
    GOOD(reshard_remote_device_parse(text, workers, &device));
    assert_int_equal(device.rank, i);
  }
  reshard_workers_free(workers);
  reshard_workers_free(NULL);
}

/* As many as a large job has: a search through all of them for each takes seconds. */
CASE(test_many_workers) {
  enum { MANY = 20000 };
  reshard_workers workers;
  GOOD(reshard_workers_create(&workers));
  for (int64_t i = 0; i < MANY; i++) {
    char name[32];
    snprintf(name, sizeof name, "node%lld-worker", (long long)(i * 7919 % MANY));
    GOOD(reshard_workers_add(workers, name, MANY - i));
  }
  for (int64_t i = 0; i < MANY; i++) {
    char text[32];
    reshard_remote_device device;
    snprintf(text, sizeof text, "node%lld-worker/cpu", (long long)(i * 7919 % MANY));
    GOOD(reshard_remote_device_parse(text, workers, &device));
    assert_int_equal(device.rank, MANY - i);
  }
  FAILS(reshard_workers_add(workers, "new", MANY), RESHARD_ERROR_INVALID,
        "workers: \"node0-worker\" and \"new\" both have rank 20000");
  FAILS(reshard_workers_add(workers, "node0-worker", 0), RESHARD_ERROR_INVALID,
        "workers: \"node0-worker\" has ranks 20000 and 0");
  reshard_workers_free(workers);
}

CASE(groups_translate_ranks_both_ways) {
  const int64_t ranks[] = {4, 2, 9}, many[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const reshard_group some = {3, ranks}, all = {4, NULL}, large = {10, many}, none = {0, NULL};
  int64_t rank = -7;
  for (int64_t i = 0; i < 3; i++) {
    GOOD(reshard_group_find(&some, ranks[i], &rank));
    assert_int_equal(rank, i);
  }
  GOOD(reshard_group_find(&all, 3, &rank));
  assert_int_equal(rank, 3);
  FAILS(reshard_group_find(&some, 3, &rank), RESHARD_ERROR_INVALID, "rank 3 is not in the group of ranks 4, 2, 9");
  FAILS(reshard_group_find(&some, -1, &rank), RESHARD_ERROR_INVALID, "rank -1 is not in the group of ranks 4, 2, 9");
  FAILS(reshard_group_find(&all, 4, &rank), RESHARD_ERROR_INVALID, "rank 4 is not in the group of ranks 0..3");
  FAILS(reshard_group_find(&all, -1, &rank), RESHARD_ERROR_INVALID, "rank -1 is not in the group of ranks 0..3");
  FAILS(reshard_group_find(&large, 11, &rank), RESHARD_ERROR_INVALID,
        "rank 11 is not in the group of ranks 1, 2, 3, 4, 5, 6, 7, 8, ... (10 in all)");
  FAILS(reshard_group_find(&none, 0, &rank), RESHARD_ERROR_INVALID, "rank 0 is not in the group, which has no ranks");
  FAILS(reshard_group_find(NULL, 0, &rank), RESHARD_ERROR_INVALID, "reshard_group_find: group is NULL");
  FAILS(reshard_group_find(&all, 0, NULL), RESHARD_ERROR_INVALID, "reshard_group_find: rank is NULL");
  assert_int_equal(rank, 3);
}

static reshard_remote_device on(int64_t rank) {
  return (reshard_remote_device){rank, RESHARD_DEVICE_CUDA, (int)(rank & 7)};
}

CASE(placement_of_a_rank_is_found) {
  reshard_remote_device list[10];
  int64_t index = -7;
  for (int64_t i = 0; i < 10; i++)
    list[i] = on((i * 3 + 1) % 10);
  for (int64_t i = 0; i < 10; i++) {
    GOOD(reshard_placements_find(10, list, (i * 3 + 1) % 10, &index));
    assert_int_equal(index, i);
  }
  FAILS(reshard_placements_find(2, list, 3, &index), RESHARD_ERROR_INVALID,
        "rank 3 is not among the placements: rank:1/cuda:1, rank:4/cuda:4");
  FAILS(reshard_placements_find(10, list, 12, &index), RESHARD_ERROR_INVALID,
        "rank 12 is not among the placements: rank:1/cuda:1, rank:4/cuda:4, rank:7/cuda:7, rank:0/cuda:0, "
        "rank:3/cuda:3, rank:6/cuda:6, rank:9/cuda:1, rank:2/cuda:2, ... (10 in all)");
  FAILS(reshard_placements_find(0, NULL, 0, &index), RESHARD_ERROR_INVALID, "rank 0 is not among the placements: none");
  list[0] = (reshard_remote_device){-1, RESHARD_DEVICE_CPU, -1};
  FAILS(reshard_placements_find(1, list, -1, &index), RESHARD_ERROR_INVALID,
        "rank -1 is not among the placements: cpu");
  FAILS(reshard_placements_find(-1, list, 0, &index), RESHARD_ERROR_INVALID,
        "reshard_placements_find: -1 placements, nothing is NULL");
  FAILS(reshard_placements_find(2, NULL, 0, &index), RESHARD_ERROR_INVALID,
        "reshard_placements_find: 2 placements, the list is NULL");
  FAILS(reshard_placements_find(2, list, 4, NULL), RESHARD_ERROR_INVALID,
        "reshard_placements_find: 2 placements, index is NULL");
  list[0].type = (reshard_device_type)9;
  FAILS(reshard_placements_find(2, list, 4, &index), RESHARD_ERROR_INVALID,
        "metadata: placement 0 is on a device of type 9, which is none");
  assert_int_equal(index, 9);
}

/* The chunk rule, said again: piece i is what of [split * i, split * (i + 1)) is below n. */
static void assert_piece(const reshard_shard *s, int ndim, const int64_t *shape, int dim, int64_t w, int64_t i) {
  int64_t split = (shape[dim] + w - 1) / w, begin = split * i < shape[dim] ? split * i : shape[dim];
  int64_t end = split * (i + 1) < shape[dim] ? split * (i + 1) : shape[dim];
  for (int d = 0; d < RESHARD_MAX_DIMS; d++) {
    assert_int_equal(s->box.offset[d], d == dim ? begin : 0);
    assert_int_equal(s->box.extent[d], d == dim ? end - begin : d < ndim ? shape[d] : 0);
  }
}

CASE(chunk_specs_make_shards_of_the_list) {
  const int64_t shapes[][3] = {{13, 21, 1}, {14, 23, 2}, {15, 26, 3}, {12, 24, 4}, {5, 3, 0}, {0, 1, 7}};
  const reshard_properties properties = {.dtype = RESHARD_F32};
  for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
    for (int dim = -3; dim < 3; dim++)
      for (int64_t w = 1; w <= 8; w++) {
        reshard_remote_device placements[8];
        reshard_shard shards[11];
        int64_t order[8];
        reshard_metadata m;
        for (int64_t i = 0; i < w; i++)
          placements[i] = on((i * 5 + 3) % 11); /* 11 is prime: no rank twice */
        GOOD(reshard_metadata_from_chunk(&properties, 3, shapes[k], dim, w, placements, &m));
        assert_int_equal(reshard_metadata_count(m), w);
        GOOD(reshard_metadata_check(m));
        GOOD(reshard_build_reshard_metadata(3, shapes[k], dim, w, placements, 11, shards, order));
        int d = dim < 0 ? dim + 3 : dim;
        for (int64_t i = 0; i < w; i++) {
          const reshard_shard *s = &reshard_metadata_shards(m)[i];
          assert_piece(s, 3, shapes[k], d, w, i);
          assert_true(reshard_remote_device_equal(&s->placement, &placements[i]));
          assert_int_equal(order[i], placements[i].rank);
          assert_memory_equal(&shards[order[i]], s, sizeof *s);
        }
        for (int64_t r = 0; r < 11; r++) {
          int64_t index;
          if (reshard_placements_find(w, placements, r, &index) == RESHARD_SUCCESS)
            continue;
          const reshard_remote_device idle = {r, RESHARD_DEVICE_CPU, -1};
          assert_true(reshard_remote_device_equal(&shards[r].placement, &idle));
          for (int e = 0; e < 3; e++) {
            assert_int_equal(shards[r].box.offset[e], 0);
            assert_int_equal(shards[r].box.extent[e], e == d ? 0 : shapes[k][e]);
          }
        }
        reshard_metadata_release(m);
      }
}

/* 5 over 4 is 2, 2, 1, 0; the empty piece is at 5. */
CASE(test_chunk_example) {
  const reshard_properties properties = {.dtype = RESHARD_F32};
  const reshard_remote_device placements[4] = {
      on(2), on(0), {-1, RESHARD_DEVICE_CPU, -1}, {-1, RESHARD_DEVICE_CPU, -1}};
  const int64_t offsets[4] = {0, 2, 4, 5}, sizes[4] = {2, 2, 1, 0}, large = INT64_MAX;
  const int64_t shape[1] = {5};
  reshard_metadata m;
  GOOD(reshard_metadata_from_chunk(&properties, 1, shape, 0, 4, placements, &m));
  for (int i = 0; i < 4; i++) {
    assert_int_equal(reshard_metadata_shards(m)[i].box.offset[0], offsets[i]);
    assert_int_equal(reshard_metadata_shards(m)[i].box.extent[0], sizes[i]);
  }
  reshard_metadata_release(m);
  GOOD(reshard_metadata_from_chunk(&properties, 1, &large, 0, 4, placements, &m)); /* nothing overflows */
  assert_int_equal(reshard_metadata_shards(m)[3].box.offset[0], INT64_MAX / 4 * 3 + 3);
  GOOD(reshard_metadata_check(m));
  reshard_metadata_release(m);
}

CASE(test_chunk_errors) {
  const reshard_properties properties = {.dtype = RESHARD_F32};
  const int64_t shape[2] = {4, 6}, negative[2] = {4, -6}, huge[2] = {INT64_MAX, 2};
  const reshard_remote_device good[3] = {on(2), on(0), on(1)}, twice[3] = {on(2), on(0), on(2)};
  const reshard_remote_device odd[2] = {on(1), {0, RESHARD_DEVICE_CPU, -2}}, nobody[1] = {{-1, RESHARD_DEVICE_CUDA, 4}};
  const reshard_remote_device below[1] = {{-2, RESHARD_DEVICE_CPU, -1}};
  const struct {
    int ndim;
    const int64_t *shape;
    int dim;
    int64_t n;
    const reshard_remote_device *placements;
    const char *error; /* behind the name of the call, where it begins with ':' */
  } cases[] = {
      {2, shape, 2, 3, good, ": dim 2 of a tensor of 2 dims"},
      {2, shape, -3, 3, good, ": dim -3 of a tensor of 2 dims"},
      {0, NULL, 0, 3, good, ": dim 0 of a tensor of 0 dims"},
      {2, shape, 0, 0, good, ": 0 placements, 1 is the least"},
      {2, shape, 0, -3, good, ": -3 placements, 1 is the least"},
      {2, shape, 0, 3, NULL, ": 3 placements, 1 is the least; the list is NULL"},
      {2, shape, 0, 3, twice, ": placements 0 and 2 are both on rank 2"},
      {2, shape, 0, 2, odd, "metadata: placement 1 is on device -2"},
      {2, shape, 0, 1, below, "metadata: placement 0 is on rank -2"},
      {2, negative, 0, 3, good, "metadata: size -6 of dim 1 is negative"},
      {2, huge, 0, 3, good, "metadata: the elements of shape 9223372036854775807x2 overflow 63 bits"},
      {2, NULL, 0, 3, good, "metadata: shape is NULL"},
      {9, shape, 0, 3, good, "metadata: 9 dims, 0 to 8 are allowed"},
      {-1, shape, 0, 3, good, "metadata: -1 dims, 0 to 8 are allowed"},
  };
  reshard_metadata m = (reshard_metadata)&m;
  reshard_shard shards[3];
  int64_t order[3];
  memset(shards, 7, sizeof shards);
  memset(order, 7, sizeof order);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[256];
    bool named = cases[i].error[0] == ':';
    snprintf(text, sizeof text, "%s%s", named ? "reshard_metadata_from_chunk" : "", cases[i].error);
    FAILS(reshard_metadata_from_chunk(&properties, cases[i].ndim, cases[i].shape, cases[i].dim, cases[i].n,
                                      cases[i].placements, &m),
          RESHARD_ERROR_INVALID, text);
    snprintf(text, sizeof text, "%s%s", named ? "reshard_build_reshard_metadata" : "", cases[i].error);
    FAILS(reshard_build_reshard_metadata(cases[i].ndim, cases[i].shape, cases[i].dim, cases[i].n, cases[i].placements,
                                         3, shards, order),
          RESHARD_ERROR_INVALID, text);
  }
  FAILS(reshard_build_reshard_metadata(2, shape, 0, 3, good, 2, shards, order), RESHARD_ERROR_INVALID,
        "reshard_build_reshard_metadata: placement 0 is rank:2/cuda:2, of a world of 2 ranks");
  FAILS(reshard_build_reshard_metadata(2, shape, 0, 1, nobody, 2, shards, order), RESHARD_ERROR_INVALID,
        "reshard_build_reshard_metadata: placement 0 is cuda:4, of a world of 2 ranks");
  FAILS(reshard_build_reshard_metadata(2, shape, 0, 3, good, -1, shards, order), RESHARD_ERROR_INVALID,
        "reshard_build_reshard_metadata: placement 0 is rank:2/cuda:2, of a world of -1 ranks");
  FAILS(reshard_build_reshard_metadata(2, shape, 0, 3, good, 3, NULL, order), RESHARD_ERROR_INVALID,
        "reshard_build_reshard_metadata: shards is NULL");
  FAILS(reshard_build_reshard_metadata(2, shape, 0, 3, good, 3, shards, NULL), RESHARD_ERROR_INVALID,
        "reshard_build_reshard_metadata: order is NULL");
  FAILS(reshard_metadata_from_chunk(&properties, 2, shape, 0, 3, good, NULL), RESHARD_ERROR_INVALID,
        "reshard_metadata_from_chunk: metadata is NULL");
  FAILS(reshard_metadata_from_chunk(NULL, 2, shape, 0, 3, good, &m), RESHARD_ERROR_INVALID,
        "metadata: properties is NULL");
  assert_ptr_equal(m, (void *)&m);
  for (size_t b = 0; b < sizeof shards; b++)
    assert_int_equal(((unsigned char *)shards)[b], 7);
  for (size_t b = 0; b < sizeof order; b++)
    assert_int_equal(((unsigned char *)order)[b], 7);
}

RUN_CASES
