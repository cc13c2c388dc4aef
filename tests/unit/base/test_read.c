/* Small files that are read whole: their limit, devices that never end, and pipes with and without writers. */
#include "base/read.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scratch.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Its bytes, or the status with a minus. */
static int64_t read_bytes(const char *from, int64_t limit, int64_t wait_ms, char **text) {
  int64_t size = -1;
  reshard_status status = rs_read_all("file", from, limit, wait_ms, text, &size);
  return status == RESHARD_SUCCESS ? size : -(int64_t)status;
}

CASE(files_beyond_their_limit_are_refused) {
  const char *path = scratch_path("plain");
  char bytes[6000], *text;
  memset(bytes, 'x', sizeof bytes);
  for (size_t n = 0; n <= sizeof bytes; n += 1500) {
    scratch_write("plain", bytes, n);
    assert_int_equal(read_bytes(path, (int64_t)n, 1000, &text), n);
    assert_memory_equal(text, bytes, n);
    assert_int_equal(text[n], '\0');
    free(text);
    if (n == 0)
      continue;
    assert_int_equal(read_bytes(path, (int64_t)n - 1, 1000, &text), -RESHARD_ERROR_INVALID);
    assert_non_null(strstr(reshard_last_error(), "longer than"));
  }
  assert_int_equal(read_bytes("/dev/zero", 1 << 20, 1000, &text), -RESHARD_ERROR_INVALID);
  assert_string_equal(reshard_last_error(), "file: longer than 1048576 bytes");
  assert_int_equal(read_bytes("/dev/null", 1 << 20, 1000, &text), 0);
  free(text);
  assert_int_equal(read_bytes(scratch_path(""), 1, 1000, &text), -RESHARD_ERROR_INVALID);
  assert_int_equal(read_bytes(scratch_path("missing"), 1, 1000, &text), -RESHARD_ERROR_INVALID);
}

typedef struct pipe_writer {
  pthread_t thread;
  const char *path;
  size_t bytes;
} pipe_writer;

/* Opens the pipe, which waits for its reader, and writes in small parts. */
static void *write_pipe(void *user) {
  pipe_writer *w = user;
  int file = open(w->path, O_WRONLY);
  char part[777];
  memset(part, 'y', sizeof part);
  for (size_t done = 0; done < w->bytes;) {
    size_t n = w->bytes - done < sizeof part ? w->bytes - done : sizeof part;
    ssize_t put = write(file, part, n);
    if (put <= 0)
      break;
    done += (size_t)put;
  }
  close(file);
  return NULL;
}

CASE(pipes_without_a_writer_end_with_an_error) {
  const char *path = scratch_path("pipe");
  char *text;
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_int_equal(read_bytes(path, 1 << 20, 30, &text), -RESHARD_ERROR_SYSTEM); /* nobody writes */
  assert_string_equal(reshard_last_error(), "file: its end did not come within 30 ms");
  int held = open(path, O_RDWR); /* a writer that says nothing, and one that does not end */
  assert_int_equal(read_bytes(path, 1 << 20, 30, &text), -RESHARD_ERROR_SYSTEM);
  assert_int_equal(write(held, "abc", 3), 3);
  assert_int_equal(read_bytes(path, 1 << 20, 30, &text), -RESHARD_ERROR_SYSTEM);
  close(held);
  static const size_t bytes[] = {0, 1, 300000};
  for (int i = 0; i < 3; i++) {
    pipe_writer w = {.path = path, .bytes = bytes[i]};
    assert_int_equal(pthread_create(&w.thread, NULL, write_pipe, &w), 0);
    int64_t got = read_bytes(path, 1 << 20, 60000, &text);
    pthread_join(w.thread, NULL);
    assert_int_equal(got, bytes[i]);
    for (size_t at = 0; at < bytes[i]; at++)
      assert_int_equal(text[at], 'y');
    free(text);
  }
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)
