/* The cost of reading parts of a checkpoint: in proportion to the boxes, and no more threads than data are worth. */
#define _GNU_SOURCE
#include "support/fixtures/expect.h"
#include "support/fixtures/scratch.h"

#include "support/fixtures/case.h"
#include <reshard/file.h>

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ROW = 16 };

static void write_rows(const char *name, int64_t rows) {
  char header[128];
  snprintf(header, sizeof header, "{" SCRATCH_TENSOR("t", "U8", "[%lld,16]", "[0,%lld]") "}", (long long)rows,
           (long long)(rows * ROW));
  scratch_safetensors(name, header, (size_t)(rows * ROW), 3);
}

static double processor_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Every second row as a box of its own, read and compared; the least of a few times. */
static double read_boxes(reshard_checkpoint checkpoint, int64_t rows) {
  int64_t n = rows / 2, *ranks = calloc((size_t)rows, sizeof *ranks), shape[2] = {rows, ROW};
  reshard_box *boxes = calloc((size_t)rows, sizeof *boxes);
  unsigned char *bytes = malloc((size_t)(n * ROW));
  void **to = calloc((size_t)n, sizeof *to);
  reshard_layout layout;
  double best = 1e9;
  assert_true(ranks != NULL && boxes != NULL && bytes != NULL && to != NULL);
  for (int64_t i = 0; i < rows; i++) {
    boxes[i] = (reshard_box){{i, 0}, {1, ROW}};
    ranks[i] = i % 2;
    to[i / 2] = bytes + i / 2 * ROW;
  }
  GOOD(reshard_layout_create_boxes(2, shape, 2, rows, ranks, boxes, 0, &layout));
  for (int again = 0; again < 3; again++) {
    memset(bytes, 0, (size_t)(n * ROW));
    double begin = processor_seconds();
    GOOD(reshard_checkpoint_read(checkpoint, 0, layout, 1, 1, to));
    double took = processor_seconds() - begin;
    best = took < best ? took : best;
    for (int64_t i = 0; i < n * ROW; i++)
      assert_int_equal(bytes[i], scratch_byte((size_t)((i / ROW * 2 + 1) * ROW + i % ROW), 3));
  }
  reshard_layout_release(layout);
  free(ranks);
  free(boxes);
  free(bytes);
  free(to);
  return best;
}

/* 16 times the boxes: 256 times the time where each is compared with each. */
CASE(sixteen_times_the_boxes_cost_sixteen_times_the_time) {
  double few, many;
  write_rows("few.safetensors", 512);
  write_rows("many.safetensors", 8192);
  reshard_checkpoint checkpoint = scratch_open("few.safetensors");
  few = read_boxes(checkpoint, 512);
  reshard_checkpoint_close(checkpoint);
  checkpoint = scratch_open("many.safetensors");
  many = read_boxes(checkpoint, 8192);
  reshard_checkpoint_close(checkpoint);
  if (many > 80 * few)
    fail_msg("256 boxes took %.3f ms, 4096 took %.3f ms", 1e3 * few, 1e3 * many);
}

/* Threads of this process. */
static int count_threads(void) {
  DIR *tasks = opendir("/proc/self/task");
  int n = 0;
  assert_non_null(tasks);
  for (struct dirent *entry; (entry = readdir(tasks)) != NULL;)
    n += entry->d_name[0] != '.';
  closedir(tasks);
  return n;
}

static int watch_threads(void *user, const char *stage, int64_t done, int64_t all) {
  int *most = user, n = strcmp(stage, "moving") == 0 ? count_threads() : 0;
  *most = n > *most ? n : *most;
  return 0;
}

static void *tell_number(void *number) {
  *(pid_t *)number = gettid();
  return NULL;
}

/* A thread that was joined is listed for a moment more. Returns the number of threads that stay. */
static int settled_threads(void) {
  pthread_t first; /* ThreadSanitizer begins one of its own with it */
  pid_t number;
  char path[64];
  assert_int_equal(pthread_create(&first, NULL, tell_number, &number), 0);
  assert_int_equal(pthread_join(first, NULL), 0);
  snprintf(path, sizeof path, "/proc/self/task/%d", (int)number);
  while (access(path, F_OK) == 0)
    sched_yield();
  return count_threads();
}

CASE(small_reads_start_no_threads) {
  const int before = settled_threads();
  static const struct {
    int64_t bytes;
    int threads, most;
  } cases[] = {{1 << 10, 8, 1}, {4 << 20, 8, 1}, {(4 << 20) + ROW, 8, 2}, {12 << 20, 8, 3}, {12 << 20, 2, 2}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char from[256];
    int most = 0;
    write_rows("t.safetensors", cases[i].bytes / ROW);
    strcpy(from, scratch_path("t.safetensors"));
    while (most == 0) { /* the caller is told while it moves, and the others may move all of it before */
      while (count_threads() > before)
        sched_yield();
      GOOD(reshard_convert(from, scratch_path("out.safetensors"),
                           &(reshard_convert_options){.size = RESHARD_CONVERT_OPTIONS_INIT,
                                                      .force = 1,
                                                      .threads = cases[i].threads,
                                                      .progress = watch_threads,
                                                      .user = &most},
                           NULL));
    }
    if (most < before || most > before - 1 + cases[i].most)
      fail_msg("case %zu: %d threads more, at most %d expected", i, most - before, cases[i].most - 1);
  }
}

RUN_JSON_CASES(scratch_setup, scratch_teardown)
