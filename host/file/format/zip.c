/* An archive is read from its end: the end record says where the directory is, the directory where each entry's local
 * header is, and behind that header are the bytes. Sizes are those of the directory: torch.save writes entries before
 * it knows them, so that their headers have none. Checksums are not read; PyTorch may leave them out. */
#include "file/format/zip.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum { END = 22, LOCATOR = 20, END64 = 56, CENTRAL = 46, LOCAL = 30 };
#define END_MAGIC     0x06054b50u
#define LOCATOR_MAGIC 0x07064b50u
#define END64_MAGIC   0x06064b50u
#define CENTRAL_MAGIC 0x02014b50u
#define LOCAL_MAGIC   0x04034b50u
#define TEXTS         (3 * 0xffffu) /* most bytes of an entry's name, extra field and comment */
#define ABOVE_32      0xffffffffu   /* the number is in a record of Zip64 */

static uint64_t read_number(const char *at, int n) {
  uint64_t made = 0;
  for (int i = n - 1; i >= 0; i--)
    made = made << 8 | (unsigned char)at[i];
  return made;
}

static reshard_status malformed_zip(const rs_zip *z, const char *why) {
  return rs_error(RESHARD_ERROR_INVALID, "%s: the zip archive at byte %lld: %s", z->where, (long long)z->offset, why);
}

/* The directory: entries, bytes, where it begins in the archive. */
typedef struct central_directory {
  uint64_t entries, size, offset;
} central_directory;

static reshard_status find_directory(const rs_zip *z, int64_t length, central_directory *found) {
  char end[END], locator[LOCATOR], end64[END64];
  if (length < END)
    return malformed_zip(z, "too short for one");
  RS_TRY(rs_file_read_at(z->file, z->offset + length - END, end, END));
  if (read_number(end, 4) != END_MAGIC || read_number(end + 20, 2) != 0)
    return malformed_zip(z, "no end record where it ends: it is truncated, or none that torch.save wrote");
  *found = (central_directory){read_number(end + 10, 2), read_number(end + 12, 4), read_number(end + 16, 4)};
  uint64_t limit = (uint64_t)length - END;
  if (length >= END + LOCATOR + END64) {
    RS_TRY(rs_file_read_at(z->file, z->offset + length - END - LOCATOR, locator, LOCATOR));
    if (read_number(locator, 4) == LOCATOR_MAGIC) {
      uint64_t at = read_number(locator + 8, 8);
      limit = (uint64_t)(length - END - LOCATOR - END64);
      if (at > limit)
        return malformed_zip(z, "the end record of Zip64 is beyond its end");
      RS_TRY(rs_file_read_at(z->file, z->offset + (int64_t)at, end64, END64));
      if (read_number(end64, 4) != END64_MAGIC)
        return malformed_zip(z, "no end record of Zip64 where it should be");
      *found = (central_directory){read_number(end64 + 32, 8), read_number(end64 + 40, 8), read_number(end64 + 48, 8)};
      limit = at;
    }
  }
  if (found->offset > limit || found->size > limit - found->offset || found->entries > found->size / CENTRAL ||
      found->size / (CENTRAL + TEXTS) > found->entries)
    return rs_error(
        RESHARD_ERROR_INVALID,
        "%s: the zip archive at byte %lld: a directory of %llu entries in %llu bytes from byte %llu of %lld", z->where,
        (long long)z->offset, (unsigned long long)found->entries, (unsigned long long)found->size,
        (unsigned long long)found->offset, (long long)length);
  return RESHARD_SUCCESS;
}

/* Sizes and offset that do not fit 32 bits, from the extra field of Zip64. */
static reshard_status read_extra(const rs_zip *z, const char *extra, int64_t length, uint64_t *size, uint64_t *packed,
                                 uint64_t *header) {
  uint64_t *const wanted[] = {size, packed, header};
  for (int64_t at = 0; at + 4 <= length;) {
    int64_t n = (int64_t)read_number(extra + at + 2, 2), used = 0;
    if (n > length - at - 4)
      break;
    for (int i = 0; i < 3 && read_number(extra + at, 2) == 1; i++) {
      if (*wanted[i] != ABOVE_32)
        continue;
      if (used + 8 > n)
        return malformed_zip(z, "a size of Zip64 is missing");
      *wanted[i] = read_number(extra + at + 4 + used, 8);
      used += 8;
    }
    at += 4 + n;
  }
  return RESHARD_SUCCESS;
}

/* *at: of an entry in the directory, and then of the next one. */
static reshard_status read_entry(rs_zip *z, int64_t *at, int64_t size) {
  const char *head = z->directory + *at;
  if (size - *at < CENTRAL || read_number(head, 4) != CENTRAL_MAGIC)
    return malformed_zip(z, "an entry of its directory is none");
  int64_t name = (int64_t)read_number(head + 28, 2), extra = (int64_t)read_number(head + 30, 2);
  int64_t all = CENTRAL + name + extra + (int64_t)read_number(head + 32, 2);
  if (all > size - *at)
    return malformed_zip(z, "an entry of its directory goes beyond its end");
  uint64_t bytes = read_number(head + 24, 4), packed = read_number(head + 20, 4), header = read_number(head + 42, 4);
  RS_TRY(read_extra(z, head + CENTRAL + name, extra, &bytes, &packed, &header));
  rs_zip_entry entry = {.flags = (int)read_number(head + 8, 2), .method = (int)read_number(head + 10, 2)};
  uint64_t limit = (uint64_t)(z->end - z->offset);
  if (header > limit || bytes > limit - header || (entry.method == 0 && packed != bytes))
    return rs_error(RESHARD_ERROR_INVALID,
                    "%s: the zip archive at byte %lld: an entry of %llu bytes at byte %llu, its data end at byte %llu",
                    z->where, (long long)z->offset, (unsigned long long)bytes, (unsigned long long)header,
                    (unsigned long long)limit);
  entry.size = (int64_t)bytes;
  entry.header = z->offset + (int64_t)header;
  const char *text = head + CENTRAL, *slash = memchr(text, '/', (size_t)name);
  const char *inner = slash != NULL ? slash + 1 : text;
  int64_t number_of = 0;
  RS_TRY(rs_names_put(&z->names, inner, (size_t)(text + name - inner), &number_of));
  if (number_of < z->entries.n)
    return malformed_zip(z, "two entries of one name");
  z->entries.at[z->entries.n++] = entry;
  *at += all;
  return RESHARD_SUCCESS;
}

reshard_status rs_zip_open(const char *where, const rs_file *file, int64_t offset, int64_t length, int64_t limit,
                           rs_zip *zip) {
  central_directory directory = {0};
  *zip = (rs_zip){.where = where, .file = file, .offset = offset};
  RS_TRY(find_directory(zip, length, &directory));
  zip->end = offset + (int64_t)directory.offset;
  int64_t size = (int64_t)directory.size;
  if (size > limit)
    return rs_error(RESHARD_ERROR_INVALID,
                    "%s: the zip archive at byte %lld: a directory of %lld bytes, at most %lld are read", where,
                    (long long)offset, (long long)size, (long long)limit);
  RS_TRY(rs_alloc(&zip->directory, size, 1));
  zip->directory_bytes = size;
  RS_TRY(rs_file_read_at(file, zip->end, zip->directory, size));
  RS_TRY(rs_vec_reserve(&zip->entries, (int64_t)directory.entries));
  int64_t at = 0;
  for (uint64_t i = 0; i < directory.entries; i++)
    RS_TRY(read_entry(zip, &at, size));
  return RESHARD_SUCCESS;
}

void rs_zip_free(rs_zip *zip) {
  rs_names_free(&zip->names);
  free(zip->entries.at);
  free(zip->directory);
  *zip = (rs_zip){0};
}

int64_t rs_zip_memory(const rs_zip *zip) {
  return zip->directory_bytes + zip->entries.cap * (int64_t)sizeof *zip->entries.at +
         zip->names.all.cap * (int64_t)sizeof *zip->names.all.at + zip->names.slots * (int64_t)sizeof *zip->names.slot;
}

int64_t rs_zip_find(const rs_zip *zip, const char *name, size_t size) { return rs_names_find(&zip->names, name, size); }

reshard_status rs_zip_locate(const rs_zip *z, int64_t i, int64_t *begin) {
  const rs_zip_entry *entry = &z->entries.at[i];
  char head[LOCAL], text[64] = "", quoted[RS_QUOTE];
  size_t n = z->names.all.at[i].size;
  memcpy(text, z->names.all.at[i].at, n < sizeof text - 1 ? n : sizeof text - 1);
  rs_quote(quoted, sizeof quoted, text);
  if (entry->method != 0 || (entry->flags & 1) != 0)
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: entry '%s' of the zip archive is %s: unpack it and save it again",
                    z->where, quoted, entry->method != 0 ? "compressed" : "encrypted");
  if (z->end - entry->header < LOCAL)
    return malformed_zip(z, "an entry begins at its end");
  RS_TRY(rs_file_read_at(z->file, entry->header, head, LOCAL));
  int64_t data = entry->header + LOCAL + (int64_t)read_number(head + 26, 2) + (int64_t)read_number(head + 28, 2);
  if (read_number(head, 4) != LOCAL_MAGIC || read_number(head + 26, 2) < n || data > z->end ||
      entry->size > z->end - data)
    return rs_error(RESHARD_ERROR_INVALID,
                    "%s: entry '%s' of the zip archive: no header at byte %lld for its %lld bytes", z->where, quoted,
                    (long long)entry->header, (long long)entry->size);
  *begin = data;
  return RESHARD_SUCCESS;
}

reshard_status rs_zip_read(const rs_zip *z, int64_t entry, int64_t limit, char **bytes, int64_t *size) {
  int64_t begin = 0, n = z->entries.at[entry].size;
  char *made;
  RS_TRY(rs_zip_locate(z, entry, &begin));
  if (n > limit)
    return rs_error(RESHARD_ERROR_INVALID, "%s: an entry of %lld bytes, at most %lld are read", z->where, (long long)n,
                    (long long)limit);
  RS_TRY(rs_alloc(&made, n + 1, 1));
  RS_TRY_OR(rs_file_read_at(z->file, begin, made, n), free(made));
  *bytes = made;
  *size = n;
  return RESHARD_SUCCESS;
}
