/* A journal of what a program does to the files under one directory, as journal.c writes it and replay.c reads it:
 * records, each followed by the bytes of a WRITE. Files are told by their inode numbers. */
#ifndef TESTS_JOURNAL_H
#define TESTS_JOURNAL_H

#include <stdint.h>

typedef enum journal_kind {
  JOURNAL_CREATE,    /* name in directory `inode` is the new file `other` */
  JOURNAL_MKDIR,     /* the same, a directory */
  JOURNAL_WRITE,     /* n bytes of `inode` at `at` */
  JOURNAL_TRUNCATE,  /* `inode` has n bytes */
  JOURNAL_FALLOCATE, /* `inode` has n bytes from `at` on */
  JOURNAL_SYNC,      /* what was done to `inode` so far is on the disk */
  JOURNAL_RENAME,    /* name in directory `inode` is `to` in directory `other`; flags of renameat2 */
  JOURNAL_LINK,
  JOURNAL_UNLINK,  /* name in directory `inode` */
  JOURNAL_UNKNOWN, /* a call that no replay knows; its name */
  JOURNAL_KINDS
} journal_kind;

typedef struct journal_record {
  uint32_t kind, flags;
  uint64_t inode, other;
  int64_t at, n;
  char name[256], to[256];
} journal_record;

#endif
