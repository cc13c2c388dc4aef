/* Shared by fuzz targets: a condition that must hold, and bytes as a string or a file. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static inline void fuzz_require(int truth) {
  if (!truth)
    abort();
}

/* The bytes as a string; free it. NULL: no memory. */
static inline char *fuzz_text(const uint8_t *data, size_t size) {
  char *text = malloc(size + 1);
  if (text == NULL)
    return NULL;
  if (size > 0)
    memcpy(text, data, size);
  text[size] = '\0';
  return text;
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
