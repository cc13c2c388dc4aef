/* Space for files on file systems that reserve none, that are nearly full, and that say nothing: the system's calls are
 * this program's own. */
#define _GNU_SOURCE
#include "support/fixtures/scratch.h"

#include "file/write/output.h"
#include "support/fixtures/case.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define GIB ((int64_t)1 << 30)

static struct statvfs disk;
static int disk_error;         /* of fstatvfs */
static int errors[8], nerrors; /* of the next calls of fallocate; 0: it reserves */
static int64_t reserved[8][2]; /* what the calls were about */
static int calls;

int fallocate(int fd, int mode, off_t offset, off_t length) {
  assert_int_equal(mode, 0);
  int error = calls < nerrors ? errors[calls] : 0;
  assert_true(calls < 8);
  reserved[calls][0] = offset;
  reserved[calls++][1] = length;
  errno = error;
  return error == 0 ? 0 : -1;
}

int fstatvfs(int fd, struct statvfs *info) {
  assert_true(fd >= 0);
  *info = disk;
  errno = disk_error;
  return disk_error == 0 ? 0 : -1;
}

static void set_errors(int n, const int *list) {
  for (int i = 0; i < n; i++)
    errors[i] = list[i];
  nerrors = n;
  calls = 0;
}

static void set_disk(uint64_t blocks, uint64_t of_all, uint64_t of_users, uint64_t size) {
  disk = (struct statvfs){.f_blocks = blocks, .f_bfree = of_all, .f_bavail = of_users, .f_frsize = size};
}

static int64_t size_of(int fd) {
  struct stat info;
  assert_int_equal(fstat(fd, &info), 0);
  return info.st_size;
}

CASE(test_free_bytes) {
  set_disk(100, 30, 20, 512);
  assert_int_equal(rs_free_bytes(0, true), 30 * 512);
  assert_int_equal(rs_free_bytes(0, false), 20 * 512);
  set_disk(0, 30, 20, 512);
  assert_true(rs_free_bytes(0, true) == INT64_MAX);
  set_disk(100, (uint64_t)1 << 40, 20, (uint64_t)1 << 30);
  assert_true(rs_free_bytes(0, true) == INT64_MAX);
  set_disk(100, 30, 20, 512);
  disk_error = EIO;
  assert_true(rs_free_bytes(0, false) == INT64_MAX);
  disk_error = 0;
}

/* In pieces of 1 GiB, each begun again after a signal. */
CASE(reserves_in_pieces_again_after_a_signal) {
  _Atomic int64_t unbacked = 5;
  set_errors(3, (const int[]){EINTR, 0, EINTR});
  assert_int_equal(rs_reserve(0, 0, 2 * GIB + 7, 2 * GIB + 7, &unbacked), 0);
  const int64_t wanted[][2] = {{0, GIB}, {0, GIB}, {GIB, GIB}, {GIB, GIB}, {2 * GIB, 7}};
  assert_int_equal(calls, 5);
  assert_memory_equal(reserved, wanted, sizeof wanted);
  assert_true(unbacked == 5);
  set_errors(0, NULL);
  assert_int_equal(rs_reserve(0, 0, 2 * GIB, 3 * GIB, &unbacked), 0); /* no piece of nothing */
  assert_int_equal(calls, 2);
  assert_int_equal(rs_reserve(0, 0, 0, 0, &unbacked), 0);
  assert_int_equal(calls, 2);
  set_errors(2, (const int[]){0, ENOSPC});
  assert_int_equal(rs_reserve(0, 0, 2 * GIB, 2 * GIB, &unbacked), ENOSPC);
  set_errors(1, (const int[]){EIO});
  assert_int_equal(rs_reserve(0, 0, 1, 1, &unbacked), EIO);
}

/* Where nothing is reserved, a file is as long as it will be, and all files together fit what is free. */
CASE(test_no_fallocate) {
  static const int lacking[] = {EOPNOTSUPP, ENOSYS, EINVAL};
  scratch_directory("r");
  int fd = open(scratch_path("r/file"), O_RDWR | O_CREAT, 0600);
  assert_true(fd >= 0);
  set_disk(100, 10, 1, 100);
  for (int i = 0; i < 3; i++) {
    _Atomic int64_t unbacked = 0;
    set_errors(1, &lacking[i]);
    assert_int_equal(rs_reserve(fd, fd, 10, 600, &unbacked),
                     0); /* a header: the file counts when all of it is asked for */
    assert_true(unbacked == 0 && size_of(fd) == 600);
    set_errors(1, &lacking[i]);
    assert_int_equal(rs_reserve(fd, fd, 600, 600, &unbacked), 0);
    set_errors(1, &lacking[i]);
    assert_int_equal(rs_reserve(fd, fd, 400, 400, &unbacked), 0); /* the last byte that is free */
    assert_true(unbacked == 1000 && size_of(fd) == 400);
    set_errors(1, &lacking[i]);
    assert_int_equal(rs_reserve(fd, fd, 1, 1, &unbacked), ENOSPC);
    assert_int_equal(size_of(fd), 400);
  }
  close(fd);
  _Atomic int64_t unbacked = 0;
  int closed = open(scratch_path("r/file"), O_RDONLY);
  set_errors(1, lacking);
  assert_int_equal(rs_reserve(closed, closed, 1, 1, &unbacked), EINVAL); /* ftruncate's */
  close(closed);
  scratch_remove("r");
}

static reshard_status create_writer(const char *name, reshard_writer *writer) {
  reshard_writer_tensor tensor = {"x", RESHARD_U8, NULL};
  assert_int_equal(reshard_layout_parse("chunk(0)", 1, (const int64_t[]){4000}, 2, &tensor.layout), RESHARD_SUCCESS);
  reshard_status status = reshard_writer_create(scratch_path(name), 1, &tensor, NULL, writer);
  reshard_layout_release(tensor.layout);
  return status;
}

/* A writer says how much it needs and how much there is for this user; nothing stays. */
CASE(full_file_system_is_told_with_both_numbers) {
  static const int lacking[] = {EOPNOTSUPP, EOPNOTSUPP, EOPNOTSUPP, EOPNOTSUPP, EOPNOTSUPP, EOPNOTSUPP};
  reshard_writer writer;
  char text[64];
  long long needed = 0;
  scratch_directory("w");
  set_disk(100, 3999, 7, 1);
  set_errors(0, NULL);
  assert_int_equal(create_writer("w/a", &writer), RESHARD_ERROR_SYSTEM); /* less than the tensors, before any file */
  assert_non_null(strstr(reshard_last_error(), "no space"));
  assert_non_null(strstr(reshard_last_error(), " 7 are free"));
  assert_int_equal(calls, 0);
  assert_string_equal(scratch_list("w"), "");

  set_disk(100, 4000, 7, 1);
  set_errors(6, lacking);
  assert_int_equal(create_writer("w/a", &writer), RESHARD_ERROR_SYSTEM); /* no room for headers */
  assert_int_equal(sscanf(strstr(reshard_last_error(), "no space"), "no space: %lld bytes", &needed), 1);
  assert_true(needed > 4000);
  assert_string_equal(scratch_list("w"), "");

  set_disk(100, (uint64_t)needed, (uint64_t)needed, 1);
  set_errors(6, lacking);
  assert_int_equal(create_writer("w/a", &writer), RESHARD_SUCCESS);
  for (int64_t rank = 0; rank < 2; rank++) {
    char bytes[2000];
    memset(bytes, 'a' + (int)rank, sizeof bytes);
    assert_int_equal(reshard_writer_put(writer, 0, rank, (const void *const[]){bytes}), RESHARD_SUCCESS);
  }
  assert_int_equal(reshard_writer_commit(writer), RESHARD_SUCCESS);
  snprintf(text, sizeof text, "%s", scratch_list("w"));
  assert_string_equal(text, "a");
  reshard_checkpoint_close(scratch_open("w/a"));
  set_disk(100, (uint64_t)needed - 1, 0, 1);
  set_errors(6, lacking);
  assert_int_equal(create_writer("w/b", &writer), RESHARD_ERROR_SYSTEM);
  assert_string_equal(scratch_list("w"), "a");
  scratch_remove("w");
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)
