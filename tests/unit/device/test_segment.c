/* Memory of the CPU that other processes map: segments, their registry, imports in another process, storage pools. */
#include "device/cpu/segment.h"
#include "device/handle.h"
#include "device/memory/pool.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/processes/children.h"

#include <reshard/tensor.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static int file_fd;

static int open_file(void **state) { return rs_shared_open(&file_fd) != RESHARD_SUCCESS; }

static int close_file(void **state) {
  rs_shared_close();
  return 0;
}

/* Bytes that the file takes. */
static int64_t file_bytes(void) {
  struct stat info;
  assert_int_equal(fstat(file_fd, &info), 0);
  return (int64_t)info.st_blocks * 512;
}

static char *alloc_shared(size_t bytes) {
  void *memory;
  GOOD(rs_shared_alloc(bytes, &memory));
  return memory;
}

CASE(registry_finds_the_segment_of_an_address) {
  enum { N = 40 };
  char *at[N];
  rs_shared_place place[N], found;
  int64_t inside;
  for (int i = 0; i < N; i++) {
    size_t bytes = (size_t)1 << (i % 23);
    at[i] = alloc_shared(bytes);
    assert_true(rs_shared_find(at[i], at[i] + bytes, &place[i], &inside));
    assert_int_equal(inside, 0);
    assert_true(place[i].bytes >= (int64_t)bytes && place[i].bytes < (int64_t)bytes + 4096 + 1);
    assert_true(rs_shared_find(at[i] + bytes / 2, at[i] + bytes, &found, &inside));
    assert_int_equal(inside, bytes / 2);
    assert_int_equal(found.offset, place[i].offset);
    for (int j = 0; j < i; j++) /* no range is used twice */
      assert_true(place[j].offset + place[j].bytes <= place[i].offset);
    if (i % 3 == 2) {
      rs_shared_free(at[i - 1]);
      assert_false(rs_shared_find(at[i - 1], at[i - 1] + 1, &found, &inside));
      at[i - 1] = NULL;
    }
  }
  assert_false(rs_shared_find(at[0], at[0] + place[0].bytes + 1, &found, &inside));
  assert_false(rs_shared_find(&inside, &inside + 1, &found, &inside));
  void *private_memory = malloc(1 << 20);
  assert_false(rs_shared_find(private_memory, (char *)private_memory + 1, &found, &inside));
  free(private_memory);
  for (int i = 0; i < N; i++)
    rs_shared_free(at[i]);
  void *none = &none;
  GOOD(rs_shared_alloc(0, &none));
  assert_null(none);
  rs_shared_free(NULL);
}

/* Freed memory goes back at once: also while another process has it mapped, which then reads zeros. */
CASE(test_freed_under_import) {
  enum { BYTES = 5 << 20 };
  int64_t before = file_bytes(), inside;
  char *at = alloc_shared(BYTES);
  memset(at, 7, BYTES);
  assert_in_range(file_bytes() - before, BYTES, BYTES + (2 << 20));
  rs_shared_place place;
  assert_true(rs_shared_find(at, at + BYTES, &place, &inside));
  int down[2], up[2], fd = dup(file_fd);
  assert_int_equal(pipe(down) | pipe(up), 0);
  pid_t child = fork();
  if (child == 0) {
    rs_import *import;
    const char *seen;
    char go;
    CHILD_CHECK(rs_import_open(fd, &import) == RESHARD_SUCCESS);
    CHILD_CHECK(rs_import_map(import, &place, &seen) == RESHARD_SUCCESS);
    CHILD_CHECK(seen[0] == 7 && seen[BYTES - 1] == 7);
    CHILD_CHECK(write(up[1], "m", 1) == 1 && read(down[0], &go, 1) == 1);
    for (int64_t i = 0; i < BYTES; i += 512)
      CHILD_CHECK(seen[i] == 9);
    CHILD_CHECK(write(up[1], "9", 1) == 1 && read(down[0], &go, 1) == 1);
    CHILD_CHECK(seen[0] == 0 && seen[BYTES - 1] == 0);
    rs_import_unmap(import, &place);
    rs_import_close(import);
    _exit(0);
  }
  char word;
  close(fd);
  assert_int_equal(read(up[0], &word, 1), 1);
  memset(at, 9, BYTES);
  assert_int_equal(write(down[1], "g", 1), 1);
  assert_int_equal(read(up[0], &word, 1), 1);
  rs_shared_free(at);
  assert_int_equal(file_bytes(), before);
  assert_int_equal(write(down[1], "g", 1), 1);
  assert_true(child_is_good(child));
  for (int i = 0; i < 2; i++) {
    close(down[i]);
    close(up[i]);
  }
}

CASE(imports_open_a_file_once) {
  enum { N = 1500 };
  int descriptors = count_descriptors(), maps = count_maps();
  rs_import *import, *again;
  GOOD(rs_import_open(dup(file_fd), &import));
  GOOD(rs_import_open(dup(file_fd), &again));
  assert_ptr_equal(import, again);
  rs_import_close(again);
  assert_int_equal(count_descriptors(), descriptors + 1);
  char **at = malloc(N * sizeof *at);
  rs_shared_place *place = malloc(N * sizeof *place);
  const char *first, *seen;
  int64_t inside;
  for (int i = 0; i < N; i++) {
    at[i] = alloc_shared(1);
    *at[i] = (char)i;
    assert_true(rs_shared_find(at[i], at[i] + 1, &place[i], &inside));
  }
  GOOD(rs_import_map(import, &place[0], &first));
  for (int i = N - 1; i >= 0; i--) { /* the unused ones go, the used one and the last ones stay where they are */
    GOOD(rs_import_map(import, &place[i], &seen));
    assert_int_equal(*seen, (char)i);
    rs_import_unmap(import, &place[i]);
  }
  assert_ptr_equal(seen, first);
  const char *last;
  GOOD(rs_import_map(import, &place[1], &last));
  rs_import_unmap(import, &place[1]);
  GOOD(rs_import_map(import, &place[1], &seen));
  assert_ptr_equal(seen, last);
  rs_import_unmap(import, &place[1]);
  rs_import_unmap(import, &place[0]);
  assert_in_range(count_maps() - maps, 1, N + 1024 + 200);
  for (int i = 0; i < 2; i++)
    GOOD(rs_import_map(import, &place[1], &seen));
  rs_import_remove(import, &place[1]);
  assert_int_equal(*seen, 1); /* one is left that uses it */
  rs_import_remove(import, &place[1]);
  assert_int_equal(msync((void *)(uintptr_t)seen, 1, MS_ASYNC), -1); /* nothing is mapped there */
  rs_shared_place wrong[] = {{-4096, 4096}, {1, 4096}, {place[0].offset, 0}, {INT64_MAX / 4096 * 4096, 8192}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    assert_int_equal(rs_import_map(import, &wrong[i], &seen), RESHARD_ERROR_INVALID);
  assert_non_null(strstr(reshard_last_error(), "8192 bytes at"));
  rs_shared_place other = {place[5].offset, place[5].bytes * 2};
  assert_int_equal(rs_import_map(import, &other, &seen), RESHARD_ERROR_INVALID);
  rs_import_close(import);
  for (int i = 0; i < N; i++)
    rs_shared_free(at[i]);
  free(at);
  free(place);
  assert_int_equal(count_descriptors(), descriptors);
  assert_in_range(count_maps(), 1, maps + 200);
  assert_int_equal(rs_import_open(-1, &import), RESHARD_ERROR_SYSTEM);
}

static bool shown(const void *at, size_t bytes) {
  rs_shared_place place;
  int64_t inside;
  return rs_shared_find(at, (const char *)at + bytes, &place, &inside);
}

/* No size of a shared pool is left to malloc; no size of another is in a segment. */
CASE(shared_pool_takes_all_from_segments) {
  int64_t before = file_bytes();
  for (int shared = 0; shared < 2; shared++) {
    reshard_device device;
    rs_storage_pool *pool;
    rs_block *block[24];
    GOOD(reshard_device_create(
        "cpu", &(reshard_device_options){RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .shared = shared}, &device));
    GOOD(rs_device_pool(device, &pool));
    for (int i = 0; i < 24; i++) {
      size_t bytes = ((size_t)1 << i) - (i > 3);
      GOOD(rs_storage_pool_alloc(pool, bytes, NULL, &block[i]));
      assert_int_equal((uintptr_t)block[i]->memory % 256, 0);
      memset(block[i]->memory, i, bytes);
      assert_int_equal(shown(block[i]->memory, bytes), shared);
    }
    for (int i = 0; i < 24; i++) {
      assert_int_equal(((char *)block[i]->memory)[((size_t)1 << i) / 2], i);
      rs_storage_pool_free(pool, block[i], NULL);
    }
    reshard_memory_stats stats;
    GOOD(reshard_device_get_memory_stats(device, &stats));
    assert_int_equal(stats.in_use_bytes, 0);
    assert_true(stats.peak_held_bytes < (size_t)(20 << 20)); /* 16 MiB in blocks */
    assert_true(file_bytes() - before <= (int64_t)stats.kept_bytes);
    GOOD(reshard_device_trim(device, 0));
    assert_int_equal(file_bytes(), before);
    reshard_device_release(device);
  }
}

static void *alloc_nothing(void *user, size_t bytes, void *stream) {
  (void)user, (void)bytes, (void)stream;
  return NULL;
}

static void free_nothing(void *user, void *memory, size_t bytes, void *stream) {
  (void)user, (void)memory, (void)bytes, (void)stream;
}

CASE(wrong_options_of_shared_devices_are_refused) {
  reshard_device device;
  reshard_device_options options = {RESHARD_DEVICE_OPTIONS_INIT, .shared = 2};
  assert_int_equal(reshard_device_create("cpu", &options, &device), RESHARD_ERROR_INVALID);
  options.shared = 1;
  const reshard_allocator allocator = {alloc_nothing, free_nothing, NULL};
  options.allocator = &allocator;
  FAILS_WITH(reshard_device_create("cpu", &options, &device), RESHARD_ERROR_INVALID, "allocator");
}

/* A child of fork has copies: what it writes and frees is not its parent's. */
CASE(child_has_copies_of_segments) {
  enum { BYTES = 1 << 20 };
  char *at = alloc_shared(BYTES);
  memset(at, 1, BYTES);
  pid_t child = fork();
  if (child == 0) {
    void *more;
    CHILD_CHECK(at[0] == 1 && !shown(at, BYTES));
    memset(at, 2, BYTES);
    CHILD_CHECK(rs_shared_alloc(BYTES, &more) == RESHARD_SUCCESS && shown(more, BYTES));
    memset(more, 3, BYTES);
    CHILD_CHECK(at[BYTES - 1] == 2);
    rs_shared_free(at);
    rs_shared_free(more);
    _exit(0);
  }
  assert_true(child_is_good(child));
  for (int64_t i = 0; i < BYTES; i += 4096)
    assert_int_equal(at[i], 1);
  rs_shared_free(at);
}

/* A limit of the size of files holds for the memory file: an error, not a signal. */
CASE(test_file_limit) {
  pid_t child = fork();
  if (child == 0) {
    void *memory, *more;
    CHILD_CHECK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){64 << 10, 64 << 10}) == 0);
    CHILD_CHECK(rs_shared_alloc(60 << 10, &memory) == RESHARD_SUCCESS);
    memset(memory, 1, 60 << 10);
    CHILD_CHECK(rs_shared_alloc(8 << 10, &more) == RESHARD_ERROR_OUT_OF_MEMORY);
    CHILD_CHECK(strstr(reshard_last_error(), "8192 bytes of shared memory: 61440 of 65536") != NULL);
    CHILD_CHECK(rs_shared_alloc(4 << 10, &more) == RESHARD_SUCCESS);
    rs_shared_free(memory);
    rs_shared_free(more);
    _exit(0);
  }
  assert_true(child_is_good(child));
  void *memory;
  assert_int_equal(rs_shared_alloc(SIZE_MAX / 2, &memory), RESHARD_ERROR_OUT_OF_MEMORY);
}

/* Devices come and go; nothing of them stays. */
CASE(devices_leave_nothing) {
  int descriptors = 0, maps = 0;
  int64_t before = file_bytes();
  for (int i = 0; i < 200; i++) {
    reshard_device device;
    reshard_tensor tensor;
    reshard_tensor_info info;
    GOOD(reshard_device_create("cpu", &(reshard_device_options){RESHARD_DEVICE_OPTIONS_INIT, .threads = 1, .shared = 1},
                               &device));
    GOOD(reshard_tensor_create_on(device, RESHARD_F32, 1, (int64_t[]){1000 + 9000 * (i % 50)}, NULL, &tensor));
    GOOD(reshard_tensor_get_info(tensor, &info));
    assert_true(shown(info.data, info.storage_bytes));
    reshard_tensor_release(tensor);
    reshard_device_release(device);
    if (i == 20) {
      descriptors = count_descriptors();
      maps = count_maps();
    }
  }
  assert_int_equal(count_descriptors(), descriptors);
  assert_in_range(count_maps(), 1, maps + 2);
  assert_int_equal(file_bytes(), before);
}

RUN_CASES_WITH(open_file, close_file)
