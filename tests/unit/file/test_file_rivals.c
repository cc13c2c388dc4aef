/* Others at work on the same paths, at each step of a writer and of a reader; and file systems that reserve no space.
 * Calls of the system are replaced here, so that what others do comes right before a given one. */
#define _GNU_SOURCE
#include "base/base.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

/* --- The system -------------------------------------------------------------------------------------------------- */

static void (*act)(void); /* done before call number `at` of those that look at or open a path; NULL: nothing */
static int calls, at;

static void rival_step(void) {
  void (*now)(void) = act;
  if (now == NULL || ++calls != at)
    return;
  act = NULL;
  now();
  act = now;
}

int fstatat(int directory, const char *path, struct stat *info, int flags) {
  rival_step();
  return (int)syscall(SYS_newfstatat, directory, path, info, flags);
}

int faccessat(int directory, const char *path, int mode, int flags) {
  rival_step();
  return (int)syscall(SYS_faccessat, directory, path, mode);
}

int open(const char *path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  int mode = flags & O_CREAT ? va_arg(arguments, int) : 0;
  va_end(arguments);
  rival_step();
  return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static bool reserves = true;
static int64_t free_bytes = -1; /* -1: what the system says */

int fallocate(int fd, int mode, off_t offset, off_t n) {
  if (reserves)
    return (int)syscall(SYS_fallocate, fd, mode, offset, n);
  errno = EOPNOTSUPP;
  return -1;
}

int fstatvfs(int fd, struct statvfs *info) {
  *info = (struct statvfs){.f_bsize = 4096, .f_frsize = 1, .f_blocks = (fsblkcnt_t)1 << 50};
  info->f_bfree = info->f_bavail = free_bytes < 0 ? (fsblkcnt_t)1 << 50 : (fsblkcnt_t)free_bytes;
  return 0;
}

/* --- Checkpoints ------------------------------------------------------------------------------------------------- */

enum { RANKS = 4, BYTES = 4096 };

/* A tensor of RANKS x BYTES bytes, all of one value, a file a rank. */
static reshard_status begin_writer(const char *name, bool force, reshard_writer *writer) {
  reshard_writer_tensor tensor = {"x", RESHARD_U8, NULL};
  const reshard_writer_options options = {.size = RESHARD_WRITER_OPTIONS_INIT, .force = force, .no_digests = 1};
  GOOD(reshard_layout_parse("chunk(0)", 2, (const int64_t[]){RANKS, BYTES}, RANKS, &tensor.layout));
  reshard_status status = reshard_writer_create(scratch_path(name), 1, &tensor, &options, writer);
  reshard_layout_release(tensor.layout);
  return status;
}

static void write_checkpoint(const char *name, int value) {
  reshard_writer writer;
  unsigned char bytes[BYTES];
  memset(bytes, value, sizeof bytes);
  GOOD(begin_writer(name, true, &writer));
  for (int64_t rank = 0; rank < RANKS; rank++)
    GOOD(reshard_writer_put(writer, 0, rank, (const void *const[]){bytes}));
  GOOD(reshard_writer_commit(writer));
}

/* The value of all bytes; 0 where they differ. */
static int read_value(reshard_checkpoint checkpoint) {
  static unsigned char bytes[RANKS * BYTES];
  reshard_layout layout;
  GOOD(reshard_layout_parse("rank(0)", 2, (const int64_t[]){RANKS, BYTES}, 1, &layout));
  GOOD(reshard_checkpoint_read(checkpoint, 0, layout, 0, 1, (void *const[]){bytes}));
  reshard_layout_release(layout);
  for (int i = 1; i < RANKS * BYTES; i++)
    if (bytes[i] != bytes[0])
      return 0;
  return bytes[0];
}

/* --- Writers ----------------------------------------------------------------------------------------------------- */

static void replace_output(void) { write_checkpoint("out", 7); }

static void remove_output(void) { scratch_remove("out"); }

/* The output is whole, ours or the other's, and alone; or the other has removed it. */
static void check_output(bool removed) {
  reshard_checkpoint checkpoint;
  if (removed && access(scratch_path("out"), F_OK) != 0)
    return;
  GOOD(reshard_checkpoint_open(scratch_path("out"), &checkpoint));
  int value = read_value(checkpoint);
  assert_true(value == 9 || (value == 7 && !removed));
  reshard_checkpoint_close(checkpoint);
  assert_string_equal(scratch_list(""), "out");
}

/* Another writer replaces the output, or it is removed, before each look at it. */
CASE(rival_writer_at_any_step_loses_nothing) {
  static void (*const others[])(void) = {replace_output, remove_output};
  for (size_t other = 0; other < 2; other++) {
    bool more = true;
    for (at = 1; more; at++) {
      reshard_writer writer;
      unsigned char bytes[BYTES];
      memset(bytes, 9, sizeof bytes);
      act = NULL;
      write_checkpoint("out", 5);
      calls = 0;
      act = others[other];
      if (begin_writer("out", true, &writer) != RESHARD_SUCCESS)
        fail_msg("begun, other %zu before call %d: %s", other, at, reshard_last_error());
      for (int64_t rank = 0; rank < RANKS; rank++)
        GOOD(reshard_writer_put(writer, 0, rank, (const void *const[]){bytes}));
      if (reshard_writer_commit(writer) != RESHARD_SUCCESS)
        fail_msg("committed, other %zu before call %d: %s", other, at, reshard_last_error());
      more = calls >= at;
      act = NULL;
      check_output(other == 1);
    }
    assert_true(at > 10); /* calls that were tried */
    scratch_remove("out");
  }
}

static void swap_paths(const char *a, const char *b) {
  assert_int_equal(syscall(SYS_renameat2, AT_FDCWD, scratch_path(a), AT_FDCWD, scratch_path(b), 2), 0);
}

static void swap_notes(void) { swap_paths("out", "notes"); }

/* A directory with other files in it comes in the place of the output: it is never lost. */
CASE(foreign_files_in_the_place_of_the_output_survive) {
  int refused = 0;
  bool more = true;
  for (at = 1; more; at++) {
    reshard_writer writer = NULL;
    act = NULL;
    write_checkpoint("out", 5);
    scratch_directory("notes");
    scratch_write("notes/text", "keep", 4);
    calls = 0;
    act = swap_notes;
    reshard_status status = begin_writer("out", true, &writer);
    for (int64_t rank = 0; rank < RANKS && status == RESHARD_SUCCESS; rank++)
      GOOD(reshard_writer_put(writer, 0, rank, (const void *const[]){(unsigned char[BYTES]){0}}));
    RS_THEN(status, reshard_writer_commit(writer));
    more = calls >= at;
    act = NULL;
    assert_true(status == RESHARD_SUCCESS || status == RESHARD_ERROR_INVALID);
    refused += status != RESHARD_SUCCESS;
    if (access(scratch_path("out/text"), F_OK) != 0 && access(scratch_path("notes/text"), F_OK) != 0)
      fail_msg("swapped before call %d: what was in the other directory is gone", at);
    scratch_remove("notes");
    scratch_remove("out");
    assert_string_equal(scratch_list(""), "");
  }
  assert_true(refused > 5);
}

/* --- Readers ----------------------------------------------------------------------------------------------------- */

static void swap_directories(void) { swap_paths("in", "other"); }

/* A directory takes another's place before each call: one of the two is read, or none, never some of both. */
CASE(directory_replaced_while_read_is_never_mixed) {
  int opened = 0, refused = 0;
  bool more = true;
  write_checkpoint("in", 5);
  write_checkpoint("other", 7);
  for (at = 1; more; at++) {
    reshard_checkpoint checkpoint;
    calls = 0;
    act = swap_directories;
    reshard_status status = reshard_checkpoint_open(scratch_path("in"), &checkpoint);
    more = calls >= at;
    act = NULL;
    if (status == RESHARD_SUCCESS) {
      int value = read_value(checkpoint);
      if (value != 5 && value != 7)
        fail_msg("swapped before call %d: some of both is read", at);
      reshard_checkpoint_close(checkpoint);
      opened++;
    } else {
      FAILS_WITH(status, RESHARD_ERROR_SYSTEM, "another directory took its place while it was opened: inode ");
      refused++;
    }
  }
  assert_true(opened >= 1 && refused >= RANKS);
  scratch_remove("in");
  scratch_remove("other");
}

/* --- Space ------------------------------------------------------------------------------------------------------- */

/* Where nothing is reserved, what all files need together is compared with what is free, before a byte of a tensor. */
CASE(missing_space_is_told_before_a_byte_is_written) {
  reshard_writer writer = NULL;
  char text[64];
  reserves = false;
  free_bytes = RANKS * BYTES + 100; /* for the data, but not for the headers besides */
  assert_int_equal(begin_writer("s", false, &writer), RESHARD_ERROR_SYSTEM);
  assert_non_null(strstr(reshard_last_error(), "no space: "));
  snprintf(text, sizeof text, " bytes are needed, %lld are free", (long long)free_bytes);
  assert_non_null(strstr(reshard_last_error(), text));
  assert_string_equal(scratch_list(""), "");
  free_bytes = 2 * RANKS * BYTES;
  GOOD(begin_writer("s", false, &writer));
  reshard_writer_abandon(writer);

  /* Where it is reserved, too little is found out before any of it is taken. */
  reserves = true;
  free_bytes = RANKS * BYTES - 1;
  assert_int_equal(begin_writer("s", false, &writer), RESHARD_ERROR_SYSTEM);
  assert_non_null(strstr(reshard_last_error(), "no space: "));
  free_bytes = -1;
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)
