#define _GNU_SOURCE
#include "disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE (1 << 1)
#endif

/* A change since the last sync: of the bytes of a file, or of one or two entries of a directory. */
typedef struct change {
  journal_kind kind;
  int64_t at, n;
  const char *data;
  int names;
  disk_entry name[2];
} change;

typedef struct disk_file {
  uint64_t inode;
  bool directory;
  char *bytes; /* on the disk */
  int64_t size;
  disk_entries entries; /* on the disk */
  int64_t nchanges;
  change *changes;
} disk_file;

struct disk {
  int64_t n;
  disk_file *files; /* the last one of an inode number is the one that has it */
};

static const disk_crash nothing_lost = {0, 1, 1, 1};

void disk_fail(const char *format, ...) {
  va_list rest;
  va_start(rest, format);
  vfprintf(stderr, format, rest);
  va_end(rest);
  fputc('\n', stderr);
  exit(3);
}

void *disk_alloc(void *old, int64_t n) {
  void *at = realloc(old, n > 0 ? (size_t)n : 1);
  if (at == NULL)
    disk_fail("no memory for %lld bytes", (long long)n);
  return at;
}

/* --- Reading ----------------------------------------------------------------------------------------------------- */

static int64_t add_file(disk *d, uint64_t inode, bool directory) {
  d->files = disk_alloc(d->files, (d->n + 1) * (int64_t)sizeof *d->files);
  d->files[d->n] = (disk_file){.inode = inode, .directory = directory};
  return d->n++;
}

static void set_entry(disk_entries *list, const disk_entry *e) {
  int64_t i = 0;
  while (i < list->n && strcmp(list->at[i].name, e->name) != 0)
    i++;
  if (e->file < 0) {
    if (i < list->n)
      list->at[i] = list->at[--list->n];
    return;
  }
  if (i == list->n)
    list->at = disk_alloc(list->at, ++list->n * (int64_t)sizeof *list->at);
  list->at[i] = *e;
}

static void read_into(disk *d, int64_t file, int fd) {
  struct stat info;
  if (fd < 0 || fstat(fd, &info) != 0)
    disk_fail("reading: %s", strerror(errno));
  d->files[file].inode = info.st_ino;
  if (!d->files[file].directory) {
    char *bytes = disk_alloc(NULL, info.st_size);
    if (read(fd, bytes, (size_t)info.st_size) != info.st_size)
      disk_fail("reading: %s", strerror(errno));
    d->files[file].bytes = bytes;
    d->files[file].size = info.st_size;
    close(fd);
    return;
  }
  DIR *list = fdopendir(fd);
  for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
    disk_entry e = {.file = -1};
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
      continue;
    int in = openat(fd, entry->d_name, O_RDONLY);
    if (in < 0 || fstat(in, &info) != 0)
      disk_fail("%s: %s", entry->d_name, strerror(errno));
    snprintf(e.name, sizeof e.name, "%s", entry->d_name);
    e.file = add_file(d, 0, S_ISDIR(info.st_mode));
    set_entry(&d->files[file].entries, &e);
    read_into(d, e.file, in);
  }
  closedir(list);
}

disk *disk_read(const char *directory) {
  disk *d = disk_alloc(NULL, sizeof *d);
  *d = (disk){0};
  read_into(d, add_file(d, 0, true), open(directory, O_RDONLY | O_DIRECTORY));
  return d;
}

disk *disk_clone(const disk *d) {
  disk *clone = disk_alloc(NULL, sizeof *clone);
  *clone = (disk){0};
  for (int64_t i = 0; i < d->n; i++) {
    add_file(clone, d->files[i].inode, d->files[i].directory);
    disk_file *f = &clone->files[i];
    f->bytes = disk_content(d, &nothing_lost, i, &f->size);
    f->entries = disk_list(d, &nothing_lost, i);
  }
  return clone;
}

void disk_free(disk *d) {
  for (int64_t i = 0; i < d->n; i++) {
    free(d->files[i].bytes);
    free(d->files[i].entries.at);
    free(d->files[i].changes);
  }
  free(d->files);
  free(d);
}

/* --- After a crash ------------------------------------------------------------------------------------------------ */

/* Tells whether a part of a change is there. */
static bool is_kept(const disk_crash *c, double chance, int64_t file, int64_t number, int64_t part) {
  if (chance <= 0 || chance >= 1)
    return chance >= 1;
  uint64_t z = c->seed + 0x9e3779b97f4a7c15u * (uint64_t)(file * 1000003 + number * 4099 + part + 2);
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return (double)((z ^ z >> 31) >> 11) * 0x1p-53 < chance;
}

uint64_t disk_crash_number(const disk *d, const disk_crash *c) {
  uint64_t number = 0;
  for (int64_t f = 0; f < d->n; f++)
    for (int64_t i = 0; i < d->files[f].nchanges; i++) {
      const change *e = &d->files[f].changes[i];
      if (e->names > 0 || e->kind != JOURNAL_WRITE) {
        number = (number + is_kept(c, e->names > 0 ? c->names : c->sizes, f, i, -1) + 1) * 0x100000001b3u;
        continue;
      }
      number = (number + is_kept(c, c->sizes, f, i, -1) + 1) * 0x100000001b3u;
      for (int64_t page = e->at / DISK_PAGE; page * DISK_PAGE < e->at + e->n; page++)
        number = (number + is_kept(c, c->pages, f, i, page) + 1) * 0x100000001b3u;
    }
  return number;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const disk_entry *)a)->name, ((const disk_entry *)b)->name);
}

disk_entries disk_list(const disk *d, const disk_crash *c, int64_t directory) {
  const disk_file *f = &d->files[directory];
  disk_entries list = {0};
  for (int64_t i = 0; i < f->entries.n; i++)
    set_entry(&list, &f->entries.at[i]);
  for (int64_t i = 0; i < f->nchanges; i++)
    for (int k = 0; k < f->changes[i].names && is_kept(c, c->names, directory, i, -1); k++)
      set_entry(&list, &f->changes[i].name[k]);
  if (list.n > 1)
    qsort(list.at, (size_t)list.n, sizeof *list.at, by_name);
  return list;
}

static void resize(char **bytes, int64_t *cap, int64_t *size, int64_t n) {
  if (n > *cap) {
    *bytes = disk_alloc(*bytes, n);
    memset(*bytes + *cap, 0, (size_t)(n - *cap));
    *cap = n;
  }
  if (n < *size)
    memset(*bytes + n, 0, (size_t)(*size - n));
  *size = n;
}

/* Pages behind the size are there no more. */
char *disk_content(const disk *d, const disk_crash *c, int64_t file, int64_t *n) {
  const disk_file *f = &d->files[file];
  int64_t cap = f->size, size = f->size;
  char *bytes = disk_alloc(NULL, cap);
  memcpy(bytes, f->bytes != NULL ? f->bytes : "", (size_t)size);
  for (int64_t i = 0; i < f->nchanges; i++) {
    const change *e = &f->changes[i];
    int64_t end = e->kind == JOURNAL_TRUNCATE ? e->n : e->at + e->n;
    if (is_kept(c, c->sizes, file, i, -1) && (e->kind == JOURNAL_TRUNCATE || end > size))
      resize(&bytes, &cap, &size, end);
    for (int64_t at = e->at; e->kind == JOURNAL_WRITE && at < end && at < size;) {
      int64_t page = at / DISK_PAGE, next = (page + 1) * DISK_PAGE;
      next = next < end ? next : end;
      next = next < size ? next : size;
      if (is_kept(c, c->pages, file, i, page))
        memcpy(bytes + at, e->data + (at - e->at), (size_t)(next - at));
      at = next;
    }
  }
  *n = size;
  return bytes;
}

bool disk_is_directory(const disk *d, int64_t file) { return d->files[file].directory; }

static void write_into(const disk *d, const disk_crash *c, int64_t file, const char *path) {
  if (!d->files[file].directory) {
    int64_t n;
    char *bytes = disk_content(d, c, file, &n);
    FILE *out = fopen(path, "wb");
    if (out == NULL || fwrite(bytes, 1, (size_t)n, out) != (size_t)n || fclose(out) != 0)
      disk_fail("%s: %s", path, strerror(errno));
    free(bytes);
    return;
  }
  if (mkdir(path, 0777) != 0)
    disk_fail("%s: %s", path, strerror(errno));
  disk_entries list = disk_list(d, c, file);
  for (int64_t i = 0; i < list.n; i++) {
    char below[4096];
    snprintf(below, sizeof below, "%s/%s", path, list.at[i].name);
    write_into(d, c, list.at[i].file, below);
  }
  free(list.at);
}

void disk_write(const disk *d, const disk_crash *c, const char *directory) { write_into(d, c, 0, directory); }

/* --- Records ------------------------------------------------------------------------------------------------------ */

static int64_t file_of(const disk *d, uint64_t inode) {
  for (int64_t i = d->n - 1; i >= 0; i--)
    if (d->files[i].inode == inode)
      return i;
  disk_fail("inode %llu was never made", (unsigned long long)inode);
}

static int64_t look_up(const disk *d, int64_t directory, const char *name) {
  disk_entries list = disk_list(d, &nothing_lost, directory);
  int64_t file = -1;
  for (int64_t i = 0; i < list.n; i++)
    if (strcmp(list.at[i].name, name) == 0)
      file = list.at[i].file;
  free(list.at);
  return file;
}

static change *add_change(disk *d, int64_t file, change c) {
  disk_file *f = &d->files[file];
  f->changes = disk_alloc(f->changes, (f->nchanges + 1) * (int64_t)sizeof *f->changes);
  f->changes[f->nchanges] = c;
  return &f->changes[f->nchanges++];
}

static void add_name(change *c, const char *name, int64_t file) {
  disk_entry *e = &c->name[c->names++];
  *e = (disk_entry){.file = file};
  snprintf(e->name, sizeof e->name, "%s", name);
}

static void sync_file(disk *d, int64_t file) {
  disk_file *f = &d->files[file];
  int64_t size;
  char *bytes = disk_content(d, &nothing_lost, file, &size);
  disk_entries entries = disk_list(d, &nothing_lost, file);
  free(f->bytes);
  free(f->entries.at);
  f->bytes = bytes;
  f->size = size;
  f->entries = entries;
  f->nchanges = 0;
}

static void rename_entry(disk *d, const journal_record *r) {
  int64_t a = file_of(d, r->inode), b = file_of(d, r->other), from = look_up(d, a, r->name), to = look_up(d, b, r->to);
  change *c = add_change(d, a, (change){.kind = JOURNAL_RENAME});
  add_name(c, r->name, r->kind == JOURNAL_LINK ? from : (r->flags & RENAME_EXCHANGE) != 0 ? to : -1);
  if (a != b)
    c = add_change(d, b, (change){.kind = JOURNAL_RENAME});
  add_name(c, r->to, from);
}

bool disk_apply(disk *d, const journal_record *r, const char *data) {
  int64_t file = r->kind == JOURNAL_UNKNOWN ? -1 : file_of(d, r->inode), made;
  switch ((journal_kind)r->kind) {
  case JOURNAL_CREATE:
  case JOURNAL_MKDIR:
    made = add_file(d, r->other, r->kind == JOURNAL_MKDIR);
    add_name(add_change(d, file, (change){.kind = (journal_kind)r->kind}), r->name, made);
    return true;
  case JOURNAL_WRITE:
  case JOURNAL_TRUNCATE:
  case JOURNAL_FALLOCATE:
    add_change(d, file, (change){.kind = (journal_kind)r->kind, .at = r->at, .n = r->n, .data = data});
    return true;
  case JOURNAL_SYNC: sync_file(d, file); return true;
  case JOURNAL_RENAME:
  case JOURNAL_LINK: rename_entry(d, r); return true;
  case JOURNAL_UNLINK: add_name(add_change(d, file, (change){.kind = JOURNAL_UNLINK}), r->name, -1); return true;
  default: return false;
  }
}
