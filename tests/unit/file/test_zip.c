/* Archives of torch.save, made by hand as it writes them and with Zip64 (entries of 4 GiB and more, which no test can
 * hold). Some do not fit. */
#include "file/format/zip.h"
#include "support/fixtures/case.h"

#include <stdlib.h>
#include <string.h>

/* An archive of one entry, "a/x", with `data` as its bytes; numbers of its records can be set. */
typedef struct archive {
  char bytes[1024];
  int64_t n;
} archive;

typedef struct shape {
  bool zip64;           /* sizes, offset and end record by Zip64 */
  int64_t before;       /* bytes before the archive in its file */
  int64_t size, header; /* of the directory's entry; -1: the right ones */
  int method, flags;
  int copies; /* of the entry in the directory; 0: one */
} shape;

static const char data[] = "twelve bytes";

static void put_number(archive *a, int n, uint64_t number) {
  for (int i = 0; i < n; i++)
    a->bytes[a->n++] = (char)(i < 8 ? number >> 8 * i : 0);
}

static void put_text(archive *a, const char *text) {
  memcpy(a->bytes + a->n, text, strlen(text));
  a->n += (int64_t)strlen(text);
}

static void put_entry(archive *a, const shape *s) {
  uint64_t size = s->size >= 0 ? (uint64_t)s->size : sizeof data - 1, header = s->header >= 0 ? (uint64_t)s->header : 0;
  put_text(a, "PK\1\2");
  put_number(a, 4, 0);
  put_number(a, 2, (uint64_t)s->flags);
  put_number(a, 2, (uint64_t)s->method);
  put_number(a, 8, 0);
  put_number(a, 4, s->zip64 ? UINT32_MAX : size);
  put_number(a, 4, s->zip64 ? UINT32_MAX : size);
  put_number(a, 2, 3);
  put_number(a, 2, s->zip64 ? 34 : 0);
  put_number(a, 10, 0);
  put_number(a, 4, s->zip64 ? UINT32_MAX : header);
  put_text(a, "a/x");
  if (s->zip64) {
    put_number(a, 2, 9); /* another extra field first */
    put_number(a, 2, 2);
    put_number(a, 2, 7);
    put_number(a, 2, 1);
    put_number(a, 2, 24);
    put_number(a, 8, size);
    put_number(a, 8, size);
    put_number(a, 8, header);
  }
}

static void make_archive(archive *a, const shape *s) {
  *a = (archive){.n = s->before};
  put_text(a, "PK\3\4");
  put_number(a, 22, 0);
  put_number(a, 2, 3);
  put_number(a, 2, 5);
  put_text(a, "a/x12345");
  put_text(a, data);
  uint64_t begin = (uint64_t)(a->n - s->before), entries = s->copies > 0 ? (uint64_t)s->copies : 1;
  for (uint64_t i = 0; i < entries; i++)
    put_entry(a, s);
  uint64_t end = (uint64_t)(a->n - s->before);
  if (s->zip64) {
    put_text(a, "PK\6\6");
    put_number(a, 8, 44);
    put_number(a, 12, 0);
    put_number(a, 8, entries);
    put_number(a, 8, entries);
    put_number(a, 8, end - begin);
    put_number(a, 8, begin);
    put_text(a, "PK\6\7");
    put_number(a, 4, 0);
    put_number(a, 8, end);
    put_number(a, 4, 1);
  }
  put_text(a, "PK\5\6");
  put_number(a, 4, 0);
  put_number(a, 2, s->zip64 ? UINT16_MAX : entries);
  put_number(a, 2, s->zip64 ? UINT16_MAX : entries);
  put_number(a, 4, s->zip64 ? UINT32_MAX : end - begin);
  put_number(a, 4, s->zip64 ? UINT32_MAX : begin);
  put_number(a, 2, 0);
}

/* Opens an archive and reads its entry; NULL: it must be right, else the text of the error. */
static void check_archive(const archive *a, const shape *s, reshard_status should, const char *why) {
  char path[] = "memory", *bytes = NULL, memory[sizeof a->bytes];
  int64_t size = 0, begin = -1;
  memcpy(memory, a->bytes, sizeof memory);
  rs_file file = {.path = path, .fd = -1, .memory = memory, .size = a->n};
  rs_zip zip;
  reshard_status status = rs_zip_open("file 'x'", &file, s->before, a->n - s->before, 1000, &zip);
  if (status == RESHARD_SUCCESS) {
    assert_int_equal(rs_zip_find(&zip, "a/x", 3), -1);
    assert_int_equal(rs_zip_find(&zip, "x", 1), 0);
    status = rs_zip_locate(&zip, 0, &begin);
  }
  if (status == RESHARD_SUCCESS)
    status = rs_zip_read(&zip, 0, 100, &bytes, &size);
  rs_zip_free(&zip);
  if (status != should || (why != NULL && strstr(reshard_last_error(), why) == NULL))
    fail_msg("expected %s '%s', got %s: %s", reshard_status_string(should), why != NULL ? why : "",
             reshard_status_string(status), status != RESHARD_SUCCESS ? reshard_last_error() : "");
  if (status == RESHARD_SUCCESS) {
    assert_int_equal(begin, s->before + 30 + 8);
    assert_int_equal(size, sizeof data - 1);
    assert_memory_equal(bytes, data, sizeof data - 1);
  }
  free(bytes);
}

CASE(archives_of_torch_save_are_read) {
  archive a;
  for (int zip64 = 0; zip64 < 2; zip64++)
    for (int64_t before = 0; before < 300; before += 77) {
      shape s = {.zip64 = zip64, .before = before, .size = -1, .header = -1};
      make_archive(&a, &s);
      check_archive(&a, &s, RESHARD_SUCCESS, NULL);
    }
}

CASE(archives_that_do_not_fit_are_refused) {
  static const struct {
    shape s;
    reshard_status status;
    const char *why;
  } cases[] = {
      {{.size = -1, .header = -1, .method = 8},
       RESHARD_ERROR_UNSUPPORTED,
       "entry 'x' of the zip archive is compressed"},
      {{.size = -1, .header = -1, .flags = 1}, RESHARD_ERROR_UNSUPPORTED, "is encrypted"},
      {{.size = 13, .header = -1}, RESHARD_ERROR_INVALID, "no header at byte 0 for its 13 bytes"},
      {{.size = 51, .header = -1}, RESHARD_ERROR_INVALID, "an entry of 51 bytes at byte 0, its data end at byte 50"},
      {{.size = INT64_MAX, .header = -1, .zip64 = true},
       RESHARD_ERROR_INVALID,
       "an entry of 9223372036854775807 bytes"},
      {{.size = 0, .header = INT64_MAX, .zip64 = true}, RESHARD_ERROR_INVALID, "at byte 9223372036854775807"},
      {{.size = 0, .header = 50}, RESHARD_ERROR_INVALID, "an entry begins at its end"},
      {{.size = 0, .header = 1}, RESHARD_ERROR_INVALID, "no header at byte 1"},
      {{.size = -1, .header = -1, .copies = 2}, RESHARD_ERROR_INVALID, "two entries of one name"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    archive a;
    make_archive(&a, &cases[i].s);
    check_archive(&a, &cases[i].s, cases[i].status, cases[i].why);
  }
}

/* Every byte of the archive set to each of some values: right, or refused; never out of bounds. */
CASE(any_changed_byte_is_right_or_refused) {
  static const unsigned char values[] = {0, 1, 0x7f, 0x80, 0xff};
  for (int zip64 = 0; zip64 < 2; zip64++) {
    shape s = {.zip64 = zip64, .size = -1, .header = -1};
    archive a;
    make_archive(&a, &s);
    for (int64_t i = 0; i < a.n; i++)
      for (size_t v = 0; v < sizeof values; v++) {
        char path[] = "memory", *memory = malloc((size_t)a.n);
        memcpy(memory, a.bytes, (size_t)a.n);
        memory[i] = (char)values[v];
        rs_file file = {.path = path, .fd = -1, .memory = memory, .size = a.n};
        rs_zip zip;
        int64_t begin = 0;
        if (rs_zip_open("file 'x'", &file, 0, a.n, 1000, &zip) == RESHARD_SUCCESS && zip.entries.n == 1 &&
            rs_zip_locate(&zip, 0, &begin) == RESHARD_SUCCESS)
          assert_true(begin >= 0 && begin + zip.entries.at[0].size <= a.n);
        rs_zip_free(&zip);
        free(memory);
      }
  }
}

/* A directory that is longer than its limit, or than its entries can be, is refused before memory is taken for it. */
CASE(test_long_directory) {
  static const struct {
    int64_t size, limit;
    const char *why;
  } cases[] = {{1 << 20, INT64_MAX, "a directory of 0 entries in 1048576 bytes from byte 0 of 1048598"},
               {1000, 999, "file 'x': the zip archive at byte 0: a directory of 1000 bytes, at most 999 are read"},
               {1000, 1000, NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char path[] = "memory", *memory = calloc((size_t)cases[i].size + 22, 1);
    archive end = {.n = 0};
    put_text(&end, "PK\5\6");
    put_number(&end, 8, 0);
    put_number(&end, 4, (uint64_t)cases[i].size);
    assert_non_null(memory);
    memcpy(memory + cases[i].size, end.bytes, (size_t)end.n);
    rs_file file = {.path = path, .fd = -1, .memory = memory, .size = cases[i].size + 22};
    rs_zip zip;
    reshard_status status = rs_zip_open("file 'x'", &file, 0, file.size, cases[i].limit, &zip);
    assert_int_equal(status, cases[i].why == NULL ? RESHARD_SUCCESS : RESHARD_ERROR_INVALID);
    assert_true(cases[i].why == NULL || strstr(reshard_last_error(), cases[i].why) != NULL);
    rs_zip_free(&zip);
    free(memory);
  }
}

RUN_CASES
