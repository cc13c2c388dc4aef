/* Box files: the first byte makes the number of dims, the rest is the file. What is read must print as a list that
 * reads as an equal layout, and coverage must be what counting elements says. */
#define _GNU_SOURCE
#include <reshard/layout.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition, const char *what) {
  if (!condition) {
    fprintf(stderr, "%s\n%s\n", what, reshard_last_error());
    abort();
  }
}

static int count_ranks(void *user, int64_t rank, int64_t array, int64_t elements) {
  (void)rank, (void)array, (void)elements;
  ++*(int64_t *)user;
  return 0;
}

/* Checks that each element is in one box exactly; equal boxes on several ranks count several times. */
static int held_once(reshard_layout layout) {
  const int64_t *shape = reshard_layout_shape(layout);
  for (int64_t e = 0; e < reshard_layout_elements(layout); e++) {
    reshard_box box = {{0}, {0}};
    int64_t holders = 0, rest = e;
    for (int d = reshard_layout_ndim(layout) - 1; d >= 0; d--) {
      box.offset[d] = rest % shape[d];
      box.extent[d] = 1;
      rest /= shape[d];
    }
    require(reshard_layout_meet(layout, &box, count_ranks, &holders) == RESHARD_SUCCESS, "meet");
    if (holders != 1)
      return 0;
  }
  return 1;
}

static void boxes_check(const char *path, int ndim) {
  static const int64_t shape[3] = {5, 4, 3};
  char text[64];
  size_t needed = 0;
  reshard_layout layout, again;
  snprintf(text, sizeof text, "boxes(@%s)", path);
  reshard_status status = reshard_layout_parse(text, ndim, shape, 8, &layout);
  if (status != RESHARD_SUCCESS) {
    require(status == RESHARD_ERROR_INVALID, "status");
    return;
  }
  reshard_layout_print(layout, NULL, 0, &needed);
  char *printed = malloc(needed);
  require(printed != NULL && reshard_layout_print(layout, printed, needed, NULL) == RESHARD_SUCCESS, "print");
  require(reshard_layout_parse(printed, ndim, shape, 8, &again) == RESHARD_SUCCESS, "read again");
  require(reshard_layout_equal(layout, again), "not equal");
  require((reshard_layout_check_source(layout) == RESHARD_SUCCESS) == held_once(layout), "coverage");
  free(printed);
  reshard_layout_release(layout);
  reshard_layout_release(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char path[40];
  if (size < 1)
    return 0;
  int fd = memfd_create("boxes", 0);
  require(fd >= 0 && write(fd, data + 1, size - 1) == (ssize_t)size - 1, "file in memory");
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  boxes_check(path, data[0] % 4);
  close(fd);
  return 0;
}
