/* Shared by fuzz targets: a condition that must hold, and bytes as a file. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static inline void fuzz_require(int truth) {
  if (!truth)
    abort();
}

/* Path of a file in memory with these bytes, the same in each call; NULL where there is none. */
static inline const char *fuzz_file(const uint8_t *data, size_t size) {
  static int file = -1;
  static char path[64];
  if (file < 0) {
    file = memfd_create("fuzz", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  }
  return file >= 0 && ftruncate(file, 0) == 0 && pwrite(file, data, size, 0) == (ssize_t)size ? path : NULL;
}

#endif
