/* Runs a fuzz target on the files of a corpus without libFuzzer: each find is tested in every build. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
    perror(path);
    return 1;
  }
  long size = ftell(file);
  rewind(file);
  /* Exactly as large as the input, so that a sanitizer sees a read past its end. */
  uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
  int failed = data == NULL || size < 0 || fread(data, 1, (size_t)size, file) != (size_t)size;
  fclose(file);
  if (!failed)
    LLVMFuzzerTestOneInput(data, (size_t)size);
  else
    fprintf(stderr, "%s: cannot be read\n", path);
  free(data);
  return failed;
}

int main(int argc, char **argv) {
  int failed = 0, count = 0;
  for (int i = 1; i < argc; i++) {
    DIR *directory = opendir(argv[i]);
    if (directory == NULL) {
      printf("skipped: no corpus %s\n", argv[i]);
      return 77;
    }
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
      char path[4096];
      if (entry->d_name[0] == '.')
        continue;
      snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
      failed |= replay_file(path);
      count++;
    }
    closedir(directory);
  }
  printf("%d inputs\n", count);
  return failed;
}
