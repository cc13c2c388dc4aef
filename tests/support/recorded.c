#define _GNU_SOURCE
#include "support/recorded.h"

#include "support/scratch.h"

#include <setjmp.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *path_of(const char *name) {
  static char path[1024];
  const char *source = getenv("SOURCE");
  snprintf(path, sizeof path, "%s/tests/files/distcp/%s", source != NULL ? source : ".", name);
  return path;
}

bool recorded_there(void) { return access(path_of("state.pt"), R_OK) == 0; }

recorded recorded_read(const char *name) {
  FILE *file = fopen(path_of(name), "rb");
  recorded made = {malloc(1 << 20), 0};
  assert_non_null(file);
  assert_non_null(made.at);
  made.n = fread(made.at, 1, 1 << 20, file);
  assert_int_equal(fclose(file), 0);
  return made;
}

void recorded_free(recorded *file) {
  free(file->at);
  *file = (recorded){NULL, 0};
}

void recorded_replace(recorded *file, const void *from, size_t from_n, const void *to, size_t to_n, bool all) {
  char *at = file->at;
  bool found = false;
  while ((all || !found) && (at = memmem(at, file->n - (size_t)(at - file->at), from, from_n)) != NULL) {
    memmove(at + to_n, at + from_n, file->n - (size_t)(at - file->at) - from_n);
    memcpy(at, to, to_n);
    file->n = file->n - from_n + to_n;
    at += to_n;
    found = true;
  }
  assert_true(found);
}

void recorded_sharded(const char *name) {
  static const char *const files[] = {".metadata", "__0_0.distcp", "__1_0.distcp"};
  scratch_directory(name);
  for (int i = 0; i < 3; i++) {
    char from[64], to[64];
    snprintf(from, sizeof from, "sharded/%s", files[i]);
    snprintf(to, sizeof to, "%s/%s", name, files[i]);
    recorded file = recorded_read(from);
    scratch_write(to, file.at, file.n);
    recorded_free(&file);
  }
}
