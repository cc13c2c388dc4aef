/* Layout strings: the first three bytes make shape and world, the rest is the string. What is read must print as
 * something that reads as an equal layout and prints as itself. Strings that name files are left to fuzz_boxes. */
#include <reshard/layout.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition, const char *what, const char *text) {
  if (!condition) {
    fprintf(stderr, "%s: %s\n%s\n", what, text, reshard_last_error());
    abort();
  }
}

static int names_file(const char *text) {
  char before = '\0';
  for (; *text != '\0'; text++) {
    if (*text == '@' && (before == '(' || before == ';'))
      return 1;
    if (!isspace((unsigned char)*text))
      before = *text;
  }
  return 0;
}

static char *print(reshard_layout layout, const char *what) {
  size_t needed = 0;
  reshard_layout_print(layout, NULL, 0, &needed);
  char *text = malloc(needed);
  require(text != NULL && reshard_layout_print(layout, text, needed, &needed) == RESHARD_SUCCESS, "print", what);
  require(strlen(text) + 1 == needed, "length", text);
  return text;
}

static void layout_check(const char *text, int ndim, const int64_t *shape, int64_t world) {
  reshard_layout layout, again;
  int64_t named = 0;
  reshard_status status = reshard_layout_parse_world(text, &named);
  require(status == RESHARD_SUCCESS || status == RESHARD_ERROR_INVALID || status == RESHARD_ERROR_UNSUPPORTED, "world",
          text);
  status = reshard_layout_parse(text, ndim, shape, world, &layout);
  if (status != RESHARD_SUCCESS) {
    require(status == RESHARD_ERROR_INVALID || status == RESHARD_ERROR_UNSUPPORTED, "status", text);
    require(strlen(reshard_last_error()) > 0 && strchr(reshard_last_error(), '\n') == NULL, "error text", text);
    return;
  }
  require(world > 0 || reshard_layout_world(layout) == named, "smallest world", text);
  char *printed = print(layout, text);
  require(reshard_layout_parse(printed, ndim, shape, reshard_layout_world(layout), &again) == RESHARD_SUCCESS, text,
          printed);
  char *reprinted = print(again, printed);
  require(reshard_layout_equal(layout, again), "not equal", printed);
  require(strcmp(printed, reprinted) == 0, "printed differently", printed);
  reshard_layout_check_source(layout);
  free(printed);
  free(reprinted);
  reshard_layout_release(layout);
  reshard_layout_release(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const int64_t extents[8] = {7, 12, 1, 0, 5, 64, 1000, 3}, worlds[4] = {0, 1, 8, 64};
  int64_t shape[RESHARD_MAX_DIMS];
  if (size < 3)
    return 0;
  int ndim = data[0] % (RESHARD_MAX_DIMS + 1);
  for (int d = 0; d < ndim; d++)
    shape[d] = extents[(data[1] + d) % 8];
  char *text = malloc(size - 2);
  require(text != NULL, "malloc", "");
  memcpy(text, data + 3, size - 3);
  text[size - 3] = '\0';
  if (!names_file(text))
    layout_check(text, ndim, shape, worlds[data[2] % 4]);
  free(text);
  return 0;
}
