#include "support/scratch.h"
#include "support/temporary.h"

#include <setjmp.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[TEMPORARY_PATH];

const char *scratch_path(const char *name) {
  static char paths[8][2 * TEMPORARY_PATH];
  static int next;
  char *path = paths[next++ % 8];
  snprintf(path, sizeof paths[0], "%s%s%s", directory, *name != '\0' ? "/" : "", name);
  return path;
}

void scratch_remove(const char *name) {
  char path[2 * TEMPORARY_PATH], inside[3 * TEMPORARY_PATH];
  snprintf(path, sizeof path, "%s", scratch_path(name));
  if (unlink(path) == 0 || errno == ENOENT)
    return;
  DIR *opened = opendir(path);
  for (struct dirent *entry; opened != NULL && (entry = readdir(opened)) != NULL;) {
    snprintf(inside, sizeof inside, "%s%s%s", name, *name != '\0' ? "/" : "", entry->d_name);
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
      scratch_remove(inside);
  }
  if (opened != NULL)
    closedir(opened);
  assert_int_equal(rmdir(path), 0);
}

int scratch_setup(void **state) {
  (void)state;
  snprintf(directory, sizeof directory, "%s/reshard-test-XXXXXX", temporary());
  return mkdtemp(directory) != NULL ? 0 : -1;
}

int scratch_teardown(void **state) {
  (void)state;
  scratch_remove("");
  return 0;
}

void scratch_directory(const char *name) {
  scratch_remove(name);
  assert_int_equal(mkdir(scratch_path(name), 0777), 0);
}

void scratch_write(const char *name, const void *bytes, size_t size) {
  FILE *file = fopen(scratch_path(name), "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, size, file), size);
  assert_int_equal(fclose(file), 0);
}

unsigned char scratch_byte(size_t i, int seed) { return (unsigned char)((i * 7 + (size_t)seed) % 251); }

void scratch_safetensors(const char *name, const char *header, size_t data, int seed) {
  size_t length = strlen(header);
  unsigned char *bytes = malloc(8 + length + data);
  assert_non_null(bytes);
  for (int i = 0; i < 8; i++)
    bytes[i] = (unsigned char)((uint64_t)length >> 8 * i);
  memcpy(bytes + 8, header, length);
  for (size_t i = 0; i < data; i++)
    bytes[8 + length + i] = scratch_byte(i, seed);
  scratch_write(name, bytes, 8 + length + data);
  free(bytes);
}

void scratch_refused(const char *name, reshard_status status, const char *first, const char *second) {
  reshard_checkpoint untouched = (reshard_checkpoint)directory, checkpoint = untouched;
  reshard_status is = reshard_checkpoint_open(scratch_path(name), &checkpoint);
  if (is != status || strstr(reshard_last_error(), first) == NULL || strstr(reshard_last_error(), second) == NULL ||
      strchr(reshard_last_error(), '\n') != NULL)
    fail_msg("expected %s with '%s' and '%s', got %s: %s", reshard_status_string(status), first, second,
             reshard_status_string(is), is != RESHARD_SUCCESS ? reshard_last_error() : "");
  assert_ptr_equal(checkpoint, untouched);
}

reshard_checkpoint scratch_open(const char *name) {
  reshard_checkpoint checkpoint = NULL;
  if (reshard_checkpoint_open(scratch_path(name), &checkpoint) != RESHARD_SUCCESS)
    fail_msg("%s: %s", name, reshard_last_error());
  return checkpoint;
}

static int by_text(const void *a, const void *b) { return strcmp(a, b); }

const char *scratch_list(const char *name) {
  static char text[64 * 97];
  char names[64][96];
  int n = 0;
  DIR *opened = opendir(scratch_path(name));
  assert_non_null(opened);
  for (struct dirent *entry; (entry = readdir(opened)) != NULL;)
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
      assert_true(n < 64);
      snprintf(names[n++], sizeof names[0], "%.90s", entry->d_name);
    }
  closedir(opened);
  qsort(names, (size_t)n, sizeof names[0], by_text);
  text[0] = '\0';
  for (int i = 0; i < n; i++)
    snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i > 0 ? " " : "", names[i]);
  return text;
}
