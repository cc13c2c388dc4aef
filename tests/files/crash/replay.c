/* Crashes of a program that writes OUT in a directory, as SQLite's tests do them. The program runs once, under
 * journal.c. Its journal is then replayed: after each of its calls the power may fail, and of what was not synced any
 * part may be lost. In each such state OUT has to be what it was or what it became. What else was in the directory has
 * to be there. Anything new beside it has the name of a temporary. Once the program has ended, OUT is what it became.
 *
 * So that this notices mistakes, the syncs of each file are left out in turn. Then the rename or link to OUT is done
 * before all syncs: every time some state has to be wrong.
 *
 *     replay JOURNAL_LIBRARY STATES SEED EVERY KEPT DIRECTORY OUT PROGRAM ARGUMENT...
 *
 * STATES of a crash are drawn after each call, beside those that lose nothing, all, all names, all bytes. Each EVERY-th
 * state is written to KEPT, a directory that is made, as a directory of its own. Prints calls, states, and mistakes
 * that were noticed. Exit status 1: a wrong state, or a mistake that was not noticed; 3: nothing could be replayed. */
#define _GNU_SOURCE
#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct event {
  journal_record record;
  const char *data;
} event;

typedef struct run {
  const char *directory, *out, *kept;
  int64_t states, every;
  uint64_t seed;
  disk *before, *after;
  int64_t nevents;
  const event *events;
  int64_t seen; /* states */
  char why[1024];
} run;

static const char *const kinds[JOURNAL_KINDS] = {"create", "mkdir",  "write", "truncate", "fallocate",
                                                 "sync",   "rename", "link",  "unlink",   "unknown"};
static const disk_crash whole = {0, 1, 1, 1};

/* --- One state ---------------------------------------------------------------------------------------------------- */

static int64_t find_entry(const disk_entries *list, const char *name) {
  for (int64_t i = 0; i < list->n; i++)
    if (strcmp(list->at[i].name, name) == 0)
      return list->at[i].file;
  return -1;
}

/* -1, for a file that is not there, is the same as -1 alone. */
static bool same_file(const disk *a, const disk_crash *c, int64_t x, const disk *b, int64_t y) {
  if (x < 0 || y < 0 || disk_is_directory(a, x) != disk_is_directory(b, y))
    return x < 0 && y < 0;
  if (!disk_is_directory(a, x)) {
    int64_t n, m;
    char *p = disk_content(a, c, x, &n), *q = disk_content(b, &whole, y, &m);
    bool same = n == m && memcmp(p, q, (size_t)n) == 0;
    free(p);
    free(q);
    return same;
  }
  disk_entries p = disk_list(a, c, x), q = disk_list(b, &whole, y);
  bool same = p.n == q.n;
  for (int64_t i = 0; i < p.n && same; i++)
    same = strcmp(p.at[i].name, q.at[i].name) == 0 && same_file(a, c, p.at[i].file, b, q.at[i].file);
  free(p.at);
  free(q.at);
  return same;
}

static bool is_temporary(const run *r, const char *name) {
  size_t n = strlen(r->out);
  return name[0] == '.' && strncmp(name + 1, r->out, n) == 0 && strncmp(name + 1 + n, ".reshard-", 9) == 0;
}

/* Sets r->why for a state that may not be. */
static bool check_state(run *r, const disk *d, const disk_crash *c, bool ended) {
  disk_entries list = disk_list(d, c, 0), before = disk_list(r->before, &whole, 0),
               after = disk_list(r->after, &whole, 0);
  int64_t is = find_entry(&list, r->out), was = find_entry(&before, r->out), becomes = find_entry(&after, r->out);
  bool new = same_file(d, c, is, r->after, becomes), right = new || (!ended && same_file(d, c, is, r->before, was));
  if (!right)
    snprintf(r->why, sizeof r->why, "%s is %s", r->out,
             is < 0  ? "not there"
             : ended ? "not what the program has made"
                     : "neither what it was nor what it became");
  for (int64_t i = 0; i < before.n && right; i++) {
    const disk_entry *e = &before.at[i];
    right = strcmp(e->name, r->out) == 0 || is_temporary(r, e->name) ||
            same_file(d, c, find_entry(&list, e->name), r->before, e->file);
    if (!right)
      snprintf(r->why, sizeof r->why, "%s, which is nobody's, is not what it was", e->name);
  }
  for (int64_t i = 0; i < list.n && right; i++) {
    const char *name = list.at[i].name;
    right = strcmp(name, r->out) == 0 || is_temporary(r, name) || find_entry(&before, name) >= 0;
    if (!right)
      snprintf(r->why, sizeof r->why, "%s is left", name);
  }
  free(list.at);
  free(before.at);
  free(after.at);
  return right;
}

/* --- All states --------------------------------------------------------------------------------------------------- */

/* States after a call: each kind of loss, then drawn ones; each once. */
static disk_crash draw_crash(const run *r, int64_t call, int64_t i) {
  static const double chances[] = {0.5, 0.1, 0.9, 0, 1};
  const disk_crash kinds_of_loss[] = {{0, 0, 0, 0}, {0, 1, 1, 1}, {0, 1, 0, 0}, {0, 1, 1, 0}, {0, 0, 1, 1}};
  const int64_t n = sizeof kinds_of_loss / sizeof *kinds_of_loss, k = i - n;
  if (k < 0)
    return kinds_of_loss[i];
  uint64_t seed = (r->seed + (uint64_t)(call * 4099 + i)) * 0x2545f4914f6cdd1du;
  return (disk_crash){seed, chances[k % 5], chances[(k + k / 5) % 5], chances[k / 5 % 5]};
}

static void keep_state(const run *r, const disk *d, const disk_crash *c) {
  char path[4096];
  if (r->kept == NULL || r->seen % r->every != 0)
    return;
  snprintf(path, sizeof path, "%s/%lld", r->kept, (long long)r->seen);
  disk_write(d, c, path);
}

static bool check_states(run *r, const disk *d, int64_t call, bool ended) {
  uint64_t *numbers = disk_alloc(NULL, (r->states + 5) * (int64_t)sizeof *numbers);
  int64_t n = 0;
  bool right = true;
  for (int64_t i = 0; i < r->states + 5 && right; i++) {
    disk_crash c = draw_crash(r, call, i);
    uint64_t number = disk_crash_number(d, &c);
    int64_t j = 0;
    while (j < n && numbers[j] != number)
      j++;
    if (j < n)
      continue;
    numbers[n++] = number;
    r->seen++;
    right = check_state(r, d, &c, ended);
    size_t at = strlen(r->why);
    if (!right)
      snprintf(r->why + at, sizeof r->why - at,
               ", with %g of the names, %g of the sizes and %g of the pages that were not synced", c.names, c.sizes,
               c.pages);
    keep_state(r, d, &c);
  }
  free(numbers);
  return right;
}

/* Replays the journal without the syncs of an inode (0: none), with a call done before the first sync (-1: none). False
 * at a wrong state: r->why and *at, the call before it. */
static bool replay(run *r, uint64_t unsynced, int64_t early, int64_t *at) {
  disk *d = disk_clone(r->before);
  int64_t first = 0;
  bool right = true;
  while (first < r->nevents && r->events[first].record.kind != JOURNAL_SYNC)
    first++;
  for (*at = 0; right; ++*at) {
    right = check_states(r, d, *at, *at == r->nevents);
    if (*at == r->nevents || !right)
      break;
    if (*at == first && early >= 0) {
      disk_apply(d, &r->events[early].record, r->events[early].data);
      right = check_states(r, d, r->nevents + 1, false);
    }
    const event *e = &r->events[*at];
    bool left_out = e->record.kind == JOURNAL_SYNC && e->record.inode == unsynced;
    if (!left_out && *at != early && !disk_apply(d, &e->record, e->data))
      disk_fail("no replay knows the call '%s'", e->record.name);
  }
  disk_free(d);
  return right;
}

static void print_journal(const run *r, int64_t end) {
  for (int64_t i = 0; i < end; i++) {
    const journal_record *e = &r->events[i].record;
    fprintf(stderr, "  %-9s %llu %s%s%s at %lld, %lld\n", kinds[e->kind], (unsigned long long)e->inode, e->name,
            e->to[0] != '\0' ? " to " : "", e->to, (long long)e->at, (long long)e->n);
  }
}

static bool is_synced_before(const run *r, int64_t call) {
  for (int64_t i = 0; i < call; i++)
    if (r->events[i].record.kind == JOURNAL_SYNC && r->events[i].record.inode == r->events[call].record.inode)
      return true;
  return false;
}

static bool replay_all(run *r) {
  int64_t at, noticed = 0;
  bool right = replay(r, 0, -1, &at);
  if (!right) {
    print_journal(r, at);
    fprintf(stderr, "after call %lld of %lld: %s\n", (long long)at, (long long)r->nevents, r->why);
    return false;
  }
  run mistakes = *r;
  mistakes.kept = NULL;
  for (int64_t i = 0; i < r->nevents; i++) {
    const journal_record *e = &r->events[i].record;
    bool sync = e->kind == JOURNAL_SYNC, place = strcmp(e->to, r->out) == 0;
    if ((!sync && !place) || (sync && is_synced_before(r, i)))
      continue;
    noticed++;
    if (replay(&mistakes, sync ? e->inode : 0, place ? i : -1, &at)) {
      print_journal(r, r->nevents);
      fprintf(stderr, "call %lld, %s, %s, and no state is wrong\n", (long long)i, kinds[e->kind],
              sync ? "is left out, and all others of the file" : "comes before the first sync");
      right = false;
    }
  }
  printf("%lld %lld %lld\n", (long long)r->nevents, (long long)r->seen, (long long)noticed);
  return right;
}

/* --- The program -------------------------------------------------------------------------------------------------- */

static void run_program(const char *library, const char *journal, const char *directory, char **arguments) {
  int fd = open(journal, O_WRONLY | O_CREAT | O_TRUNC, 0600), status;
  if (fd < 0)
    disk_fail("%s: %s", journal, strerror(errno));
  close(fd);
  pid_t child = fork();
  if (child == 0) {
    setenv("LD_PRELOAD", library, 1);
    setenv("JOURNAL", journal, 1);
    setenv("JOURNAL_UNDER", directory, 1);
    if (dup2(STDERR_FILENO, STDOUT_FILENO) >= 0)
      execvp(arguments[0], arguments);
    _exit(127);
  }
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
    disk_fail("%s: ends with status %d", arguments[0], child < 0 ? -1 : status);
}

static void read_journal(run *r, const char *path) {
  FILE *in = fopen(path, "rb");
  event *events = NULL;
  journal_record record;
  while (in != NULL && fread(&record, sizeof record, 1, in) == 1) {
    char *data = record.kind == JOURNAL_WRITE ? disk_alloc(NULL, record.n) : NULL;
    if (data != NULL && fread(data, 1, (size_t)record.n, in) != (size_t)record.n)
      disk_fail("%s: ends early", path);
    events = disk_alloc(events, (r->nevents + 1) * (int64_t)sizeof *events);
    events[r->nevents++] = (event){record, data};
  }
  if (in == NULL || r->nevents == 0)
    disk_fail("%s: no call is in it", path);
  fclose(in);
  r->events = events;
}

int main(int argc, char **argv) {
  if (argc < 9)
    disk_fail("usage: replay LIBRARY STATES SEED EVERY KEPT DIRECTORY OUT PROGRAM ARGUMENT...");
  run r = {.directory = argv[6], .out = argv[7], .states = atol(argv[2]), .seed = (uint64_t)atoll(argv[3])};
  r.every = atol(argv[4]);
  r.kept = r.every > 0 ? argv[5] : NULL;
  char journal[4096];
  snprintf(journal, sizeof journal, "%s.journal", argv[5]);
  if (r.kept != NULL && mkdir(r.kept, 0777) != 0)
    disk_fail("%s: %s", r.kept, strerror(errno));
  r.before = disk_read(r.directory);
  run_program(argv[1], journal, r.directory, argv + 8);
  r.after = disk_read(r.directory);
  read_journal(&r, journal);
  bool right = replay_all(&r);
  for (int64_t i = 0; i < r.nevents; i++)
    free((char *)r.events[i].data);
  free((void *)r.events);
  disk_free(r.before);
  disk_free(r.after);
  return !right;
}
