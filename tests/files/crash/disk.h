/* A model of a disk: what is on it for certain, and what was done since, any part of which a crash may lose.
 *
 * - A file's bytes are on the disk once it was synced. Of what was written since, each page and the size may be there
 *   or not, each for itself.
 * - An entry of a directory is on the disk once the directory was synced. Of what was done to its entries since, each
 *   call may be there or not; a call that changes two names of one directory does so at once. */
#ifndef TESTS_DISK_H
#define TESTS_DISK_H

#include "journal.h"

#include <stdbool.h>
#include <stddef.h>

enum { DISK_PAGE = 4096 };

typedef struct disk disk;
typedef struct disk_entry {
  char name[256];
  int64_t file; /* -1: none */
} disk_entry;
typedef struct disk_entries {
  int64_t n;
  disk_entry *at;
} disk_entries;

/* A state that a crash leaves: chances that a change since the last sync is there, drawn from the seed for each. */
typedef struct disk_crash {
  uint64_t seed;
  double names, sizes, pages;
} disk_crash;

/* Contents of a directory of this machine, all of it on the disk. */
disk *disk_read(const char *directory);
disk *disk_clone(const disk *d); /* without changes */
void disk_free(disk *d);

/* Does what a record says; false for one that no replay knows. data: the bytes of a WRITE. */
bool disk_apply(disk *d, const journal_record *r, const char *data);

/* A number that two crashes share when they leave the same changes; 0 when there are no changes to lose. */
uint64_t disk_crash_number(const disk *d, const disk_crash *c);

/* After a crash: entries of a directory, sorted by name, and bytes of a file; the caller frees `at` and the bytes. The
 * root is file 0. */
disk_entries disk_list(const disk *d, const disk_crash *c, int64_t directory);
char *disk_content(const disk *d, const disk_crash *c, int64_t file, int64_t *n);
bool disk_is_directory(const disk *d, int64_t file);

/* Writes all of it to a new directory. */
void disk_write(const disk *d, const disk_crash *c, const char *directory);

void disk_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void *disk_alloc(void *old, int64_t n);

#endif
