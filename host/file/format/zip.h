/* Zip archives as torch.save writes them, in a file or in a part of one: entries are stored, not compressed. Source:
 * PKWARE's APPNOTE.TXT, sections 4.3 to 4.5, with Zip64. */
#ifndef RS_FILE_ZIP_H
#define RS_FILE_ZIP_H

#include "file/ground/file.h"
#include "file/ground/names.h"

typedef struct rs_zip_entry {
  int64_t header; /* where its local header is, in the file */
  int64_t size;   /* bytes */
  int method, flags;
} rs_zip_entry;

typedef struct rs_zip {
  const char *where; /* borrowed: begins the text of errors */
  const rs_file *file;
  int64_t offset, end; /* of the archive in the file; the data end where its directory begins */
  char *directory;
  int64_t directory_bytes;
  rs_names names; /* of entries, without the folder that torch.save puts them in */
  RS_VEC(rs_zip_entry) entries;
} rs_zip;

/* Reads the directory of the archive in bytes [offset, offset + length) of a file. where and file must live as long as
 * it does. The caller frees it, also after an error.
 * Errors: RESHARD_ERROR_INVALID when it is no archive, or its directory does not fit it or is longer than limit. */
reshard_status rs_zip_open(const char *where, const rs_file *file, int64_t offset, int64_t length, int64_t limit,
                           rs_zip *zip);
void rs_zip_free(rs_zip *zip);
/* Bytes that it holds. */
int64_t rs_zip_memory(const rs_zip *zip);
/* Number of the entry of that name; -1: none. */
int64_t rs_zip_find(const rs_zip *zip, const char *name, size_t size);
/* Finds where an entry's bytes begin in the file. Errors: RESHARD_ERROR_UNSUPPORTED when it is compressed or encrypted,
 * RESHARD_ERROR_INVALID when it is not within the archive. */
reshard_status rs_zip_locate(const rs_zip *zip, int64_t entry, int64_t *begin);
/* The whole of an entry of at most limit bytes; the caller frees it. */
reshard_status rs_zip_read(const rs_zip *zip, int64_t entry, int64_t limit, char **bytes, int64_t *size);

#endif
