/* Metadata as byte strings. The first byte chooses: a string as it is; a body that is given a header, so that the
 * numbers are reached; the bodies of two ranks' locals, which are merged. What is read must be written as the same
 * bytes. */
#include "metadata/serialize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition, const char *what) {
  if (!condition) {
    fprintf(stderr, "%s\n%s\n", what, reshard_last_error());
    abort();
  }
}

/* Exactly as long as it is, so that a sanitizer sees a read past its end. */
static char *seal(const char *magic, const uint8_t *body, size_t n, size_t *size) {
  char *string = malloc(RS_SEAL + n);
  require(string != NULL, "memory");
  memcpy(string + RS_SEAL, body, n);
  rs_seal(magic, string, (int64_t)n);
  *size = RS_SEAL + n;
  return string;
}

static void expect_wrong(reshard_status status, const char *what) {
  require((status == RESHARD_ERROR_INVALID || status == RESHARD_ERROR_MISMATCH) && reshard_last_error()[0] != '\0' &&
              strchr(reshard_last_error(), '\n') == NULL,
          what);
}

/* All that can be asked of metadata. */
static void metadata_use(reshard_metadata m) {
  const reshard_group group = {8, NULL};
  reshard_metadata other = NULL;
  reshard_layout layout = NULL;
  size_t needed = 0;
  reshard_status status = reshard_metadata_check(m);
  if (status != RESHARD_SUCCESS)
    expect_wrong(status, "check");
  for (int d = 0; d < reshard_metadata_ndim(m); d++) {
    status = reshard_metadata_recalc(m, d, &other);
    if (status != RESHARD_SUCCESS) {
      expect_wrong(status, "recalc");
      continue;
    }
    require(reshard_metadata_check(other) == RESHARD_SUCCESS || reshard_metadata_count(m) == 0 ||
                reshard_metadata_ndim(m) > 1,
            "rows that are put end to end cover");
    reshard_metadata_release(other);
  }
  status = reshard_metadata_layout(m, &group, 0, &layout);
  if (status != RESHARD_SUCCESS)
    expect_wrong(status, "layout");
  reshard_layout_release(layout);
  reshard_metadata_print_json(m, NULL, 0, &needed);
  char *text = malloc(needed);
  require(text != NULL && reshard_metadata_print_json(m, text, needed, NULL) == RESHARD_SUCCESS, "json");
  free(text);
}

static void read_string(const void *string, size_t size) {
  reshard_metadata m, again;
  size_t needed = 0;
  reshard_status status = reshard_metadata_deserialize(string, size, &m);
  if (status != RESHARD_SUCCESS) {
    expect_wrong(status, "deserialize");
    return;
  }
  char *written = malloc(size);
  require(written != NULL && reshard_metadata_serialize(m, written, size, &needed) == RESHARD_SUCCESS, "serialize");
  require(needed == size && memcmp(written, string, size) == 0, "not the same bytes");
  free(written);
  require(reshard_metadata_create(&m->properties, m->ndim, m->shape, m->n, m->shards, &again) == RESHARD_SUCCESS,
          "create");
  require(reshard_metadata_equal(m, again) && reshard_metadata_hash(m) == reshard_metadata_hash(again), "not equal");
  reshard_metadata_release(again);
  metadata_use(m);
  reshard_metadata_release(m);
}

/* Two ranks' locals of up to four tensors: the number is the first rank's, as a merge of its own call has it. */
static void merge(const uint8_t *data, size_t size) {
  size_t cut = size > 0 ? data[0] : 0, n[2];
  if (size > 0) {
    data++;
    size--;
  }
  cut = cut < size ? cut : size;
  char *string[2] = {seal(RS_MAGIC_LOCALS, data, cut, &n[0]), seal(RS_MAGIC_LOCALS, data + cut, size - cut, &n[1])};
  rs_strings *all = malloc(sizeof *all + 3 * sizeof(int64_t) + n[0] + n[1]);
  require(all != NULL, "memory");
  all->n = 2;
  all->bytes = (char *)(all->first + 3);
  all->first[0] = 0;
  for (int r = 0; r < 2; r++) {
    all->first[r + 1] = all->first[r] + (int64_t)n[r];
    memcpy(all->bytes + all->first[r], string[r], n[r]);
    free(string[r]);
  }
  int64_t tensors = n[0] > RS_SEAL ? all->bytes[RS_SEAL] & 3 : 0;
  reshard_metadata made[3] = {NULL, NULL, NULL};
  reshard_status status = rs_metadata_merge(NULL, all, tensors, made);
  if (status == RESHARD_SUCCESS)
    for (int64_t i = 0; i < tensors; i++) {
      require(reshard_metadata_check(made[i]) == RESHARD_SUCCESS, "merged, and not right");
      metadata_use(made[i]);
      reshard_metadata_release(made[i]);
    }
  else if (status != RESHARD_ERROR_INTERNAL) /* it says that the number is another */
    expect_wrong(status, "merge");
  free(all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  size_t length;
  if (size < 1)
    return 0;
  if (data[0] % 3 == 0) {
    read_string(data + 1, size - 1);
  } else if (data[0] % 3 == 1) {
    char *string = seal(RS_MAGIC_METADATA, data + 1, size - 1, &length);
    read_string(string, length);
    free(string);
  } else {
    merge(data + 1, size - 1);
  }
  return 0;
}
