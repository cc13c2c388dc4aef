/* Output paths of a writer: outputs that are replaced and those that never are, temporaries, leftovers of killed runs,
 * limits, and syncing. */
#include "support/fixtures/scratch.h"

#include "file/write/writer.h"
#include "support/fixtures/case.h"
#include "support/fixtures/expect.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static void touch_file(const char *name) { scratch_write(name, "old", 3); }

static bool is_old(const char *name) {
  char bytes[8] = "";
  FILE *file = fopen(scratch_path(name), "rb");
  size_t n = file != NULL ? fread(bytes, 1, sizeof bytes, file) : 0;
  if (file != NULL)
    fclose(file);
  return n == 3 && memcmp(bytes, "old", 3) == 0;
}

/* A tensor "x" of 8 bytes on two ranks, or on one. */
static reshard_status create_at(const char *path, bool force, reshard_writer *writer) {
  size_t n = strlen(path);
  bool file = (n > 4 && strcmp(path + n - 4, ".npy") == 0) || (n > 12 && strcmp(path + n - 12, ".safetensors") == 0);
  reshard_writer_tensor tensor = {"x", RESHARD_U8, NULL};
  GOOD(reshard_layout_parse(file ? "rank(0)" : "chunk(0)", 1, (const int64_t[]){8}, 2, &tensor.layout));
  reshard_writer_options options = {.size = RESHARD_WRITER_OPTIONS_INIT, .force = force};
  reshard_status status = reshard_writer_create(path, 1, &tensor, &options, writer);
  reshard_layout_release(tensor.layout);
  return status;
}

static reshard_writer create_writer(const char *name, bool force) {
  reshard_writer writer;
  if (create_at(scratch_path(name), force, &writer) != RESHARD_SUCCESS)
    fail_msg("%s: %s", name, reshard_last_error());
  for (int64_t rank = 0; rank < 2; rank++)
    GOOD(reshard_writer_put(writer, 0, rank, (const void *const[]){"12345678"}));
  return writer;
}

static void replace_output(const char *name, bool force) {
  if (reshard_writer_commit(create_writer(name, force)) != RESHARD_SUCCESS)
    fail_msg("%s: %s", name, reshard_last_error());
}

static void refused_at(const char *path, bool force, reshard_status status, const char *text) {
  reshard_writer untouched = (reshard_writer)&untouched, writer = untouched;
  reshard_status is = create_at(path, force, &writer);
  if (is != status || strstr(reshard_last_error(), text) == NULL)
    fail_msg("expected %s with '%s', got %s: %s", reshard_status_string(status), text, reshard_status_string(is),
             is != RESHARD_SUCCESS ? reshard_last_error() : "");
  assert_ptr_equal(writer, untouched);
}

static void refused_output(const char *name, bool force, const char *text) {
  refused_at(scratch_path(name), force, RESHARD_ERROR_INVALID, text);
}

#define SHARD(r) "shard-0000" r "-model-00001-of-00001.safetensors"

CASE(force_replaces_outputs_in_one_step) {
  scratch_directory("r");
  for (int i = 0; i < 2; i++) { /* there already the second time */
    replace_output("r/a.npy", i > 0);
    replace_output("r/b.safetensors", i > 0);
    replace_output("r/c", i > 0);
    refused_output("r/a.npy", false, "r/a.npy': is there");
    refused_output("r/b.safetensors", false, "is there");
    refused_output("r/c", false, "is there");
    assert_string_equal(scratch_list("r"), "a.npy b.safetensors c");
    assert_string_equal(scratch_list("r/c"), SHARD("1") " " SHARD("2"));
    touch_file("r/a.npy");
    touch_file("r/b.safetensors");
    touch_file("r/c/other.safetensors");
    touch_file("r/c/config.json");
  }
  replace_output("r/a.npy", true);
  assert_false(is_old("r/a.npy"));
  scratch_directory("r/empty");
  refused_output("r/empty", false, "is there");
  replace_output("r/empty///", true);
  assert_string_equal(scratch_list("r/empty"), SHARD("1") " " SHARD("2"));

  /* what must stay as it is */
  scratch_directory("r/d.npy");
  touch_file("r/file");
  refused_output("r/d.npy", true, "is a directory");
  refused_output("r/file", true, "is a file");
  assert_int_equal(mkfifo(scratch_path("r/p.npy"), 0600), 0);
  refused_output("r/p.npy", true, "neither file nor directory");
  static const char *const foreign[] = {"notes.txt", ".safetensors.swp", ".git", "a.json/"};
  for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
    char name[64], shown[64];
    snprintf(name, sizeof name, "r/c/%s", foreign[i]);
    snprintf(shown, sizeof shown, "'%.*s'", (int)strcspn(foreign[i], "/"), foreign[i]);
    if (strchr(foreign[i], '/') != NULL) {
      name[strlen(name) - 1] = '\0';
      scratch_directory(name);
    } else {
      touch_file(name);
    }
    refused_output("r/c", true, shown);
    scratch_remove(name);
  }
  assert_int_equal(symlink("other.safetensors", scratch_path("r/c/link.safetensors")), 0);
  refused_output("r/c", true, "'link.safetensors'");
  assert_true(is_old("r/c/other.safetensors") && is_old("r/c/config.json") && is_old("r/file"));
  assert_string_equal(scratch_list("r"), "a.npy b.safetensors c d.npy empty file p.npy");
  scratch_remove("r");
}

CASE(paths_that_cannot_be_written_are_refused) {
  touch_file("file");
  refused_output("none/a.npy", false, "its directory");
  refused_output("none/a", true, "its directory");
  refused_output("file/a", false, "its directory");
  refused_at("", false, RESHARD_ERROR_INVALID, "name");
  refused_at("/", true, RESHARD_ERROR_INVALID, "name");
  refused_output(".", true, "name");
  refused_output("file/..", true, "name");
  char name[300];
  memset(name, 'n', sizeof name);
  name[250] = '\0';
  refused_output(name, false, "name too long");
  scratch_remove("file");

  /* relative, and the process goes elsewhere */
  char before[1024];
  reshard_writer writer;
  scratch_directory("here");
  assert_non_null(getcwd(before, sizeof before));
  assert_int_equal(chdir(scratch_path("here")), 0);
  assert_int_equal(create_at("a.safetensors", false, &writer), RESHARD_SUCCESS);
  assert_int_equal(strncmp(rs_writer_path(writer), ".a.safetensors.reshard-", 23), 0);
  assert_int_equal(chdir(before), 0);
  GOOD(reshard_writer_put(writer, 0, 0, (const void *const[]){"12345678"}));
  GOOD(reshard_writer_commit(writer));
  assert_string_equal(scratch_list("here"), "a.safetensors");

  if (geteuid() != 0) {
    assert_int_equal(chmod(scratch_path("here"), 0500), 0);
    refused_at(scratch_path("here/b"), false, RESHARD_ERROR_SYSTEM, "Permission denied");
    assert_int_equal(chmod(scratch_path("here"), 0700), 0);
  }
  scratch_remove("here");
}

/* A link is never replaced; with force what it points to is, where it lies. */
CASE(links_are_followed_with_force_never_replaced) {
  struct stat info;
  scratch_directory("l");
  scratch_directory("l/disk");
  scratch_directory("l/disk/set");
  touch_file("l/disk/set/a.safetensors");
  touch_file("l/disk/one.npy");
  assert_int_equal(symlink("disk/set", scratch_path("l/set")), 0);
  assert_int_equal(symlink("disk/one.npy", scratch_path("l/one.npy")), 0);
  assert_int_equal(symlink("nothing", scratch_path("l/dangling.npy")), 0);
  assert_int_equal(symlink("loop", scratch_path("l/loop")), 0);
  refused_output("l/set", false, "is there");
  refused_output("l/dangling.npy", false, "is there");
  refused_output("l/dangling.npy", true, "symbolic link");
  refused_output("l/loop", true, "symbolic link");
  replace_output("l/set", true);
  replace_output("l/one.npy", true);
  assert_int_equal(lstat(scratch_path("l/set"), &info), 0);
  assert_true(S_ISLNK(info.st_mode));
  assert_string_equal(scratch_list("l/disk/set"), SHARD("1") " " SHARD("2"));
  assert_false(is_old("l/disk/one.npy"));
  assert_string_equal(scratch_list("l"), "dangling.npy disk loop one.npy set");
  assert_string_equal(scratch_list("l/disk"), "one.npy set");
  scratch_remove("l");
}

/* Temporaries of killed runs are removed, and nothing else is. */
CASE(leftovers_of_killed_runs_alone_are_removed) {
  scratch_directory("t");
  scratch_directory("t/.a.reshard-12-0");
  touch_file("t/.a.reshard-12-0/" SHARD("1"));
  scratch_directory("t/.a.reshard-12-1"); /* has what no run of ours leaves */
  touch_file("t/.a.reshard-12-1/notes");
  touch_file("t/.a.reshard-12-2.npy");
  touch_file("t/.a.reshard-13-7");
  static const char *const others[] = {".a.reshard-12",    ".a.reshard-12-",   ".a.reshard-x-1",     ".a.reshard-12-1x",
                                       ".b.reshard-12-0",  ".ab.reshard-12-0", ".a.reshard-1-1.old", "a.reshard-12-0",
                                       ".a.reshard-12-0~", ".a.reshard--1"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    char name[64];
    snprintf(name, sizeof name, "t/%s", others[i]);
    touch_file(name);
  }
  assert_int_equal(symlink(".b.reshard-12-0", scratch_path("t/.a.reshard-14-0")), 0);
  touch_file("t/.a.reshard-15-0"); /* in use */
  int lock = open(scratch_path("t/.a.reshard-15-0"), O_RDONLY);
  assert_int_equal(flock(lock, LOCK_EX | LOCK_NB), 0);
  reshard_writer writer = create_writer("t/a", false),
                 second = create_writer("t/a", false); /* nor is that of another writer */
  reshard_writer_abandon(second);
  GOOD(reshard_writer_commit(writer));
  assert_string_equal(scratch_list("t"),
                      ".a.reshard--1 .a.reshard-1-1.old .a.reshard-12 .a.reshard-12- .a.reshard-12-0~ "
                      ".a.reshard-12-1 .a.reshard-12-1x .a.reshard-14-0 .a.reshard-15-0 .a.reshard-x-1 "
                      ".ab.reshard-12-0 .b.reshard-12-0 a a.reshard-12-0");
  assert_string_equal(scratch_list("t/.a.reshard-12-1"), "notes");
  close(lock);
  replace_output("t/a", true);
  assert_null(strstr(scratch_list("t"), "reshard-15-0"));
  scratch_remove("t");
}

/* Two at a time, and what comes in between. */
CASE(two_writers_of_one_path_lose_nothing) {
  static const char *const names[] = {"v/a.safetensors", "v/a.npy", "v/a"};
  for (int i = 0; i < 3; i++) {
    scratch_directory("v");
    reshard_writer first = create_writer(names[i], false), second = create_writer(names[i], false),
                   third = create_writer(names[i], true);
    GOOD(reshard_writer_commit(first));
    FAILS_WITH(reshard_writer_commit(second), RESHARD_ERROR_INVALID, "is there");
    GOOD(reshard_writer_commit(third)); /* with force: the last one wins */
    assert_string_equal(scratch_list("v"), names[i] + 2);
    reshard_writer fourth = create_writer(names[i], true);
    if (i < 2) {
      scratch_directory(names[i]);
    } else {
      scratch_remove(names[i]);
      touch_file(names[i]);
    }
    assert_int_equal(reshard_writer_commit(fourth), RESHARD_ERROR_INVALID);
    assert_string_equal(scratch_list("v"), names[i] + 2);
    reshard_writer fifth = create_writer("v/b", true);
    scratch_directory("v/b");
    touch_file("v/b/thesis.tex");
    assert_int_equal(reshard_writer_commit(fifth), RESHARD_ERROR_INVALID);
    assert_string_equal(scratch_list("v/b"), "thesis.tex");
    scratch_remove("v");
  }
}

CASE(modes_are_of_what_is_replaced_or_the_umask) {
  struct stat info;
  scratch_directory("m");
  mode_t before = umask(027);
  replace_output("m/a.npy", false);
  replace_output("m/a", false);
  umask(before);
  assert_int_equal(stat(scratch_path("m/a.npy"), &info), 0);
  assert_int_equal(info.st_mode & 07777, 0640);
  assert_int_equal(stat(scratch_path("m/a"), &info), 0);
  assert_int_equal(info.st_mode & 07777, 0750);
  assert_int_equal(stat(scratch_path("m/a/" SHARD("1")), &info), 0);
  assert_int_equal(info.st_mode & 07777, 0640);
  scratch_remove("m");
}

CASE(limits_of_the_process_are_told_and_leave_nothing) {
  struct rlimit before, low;
  scratch_directory("n");
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  low = before;
  low.rlim_cur = 100;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
  refused_at(scratch_path("n/a.npy"), false, RESHARD_ERROR_SYSTEM, "136 bytes, the limit of this process is 100");
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);

  /* rank 0 has 64 boxes, hence as many files */
  reshard_writer writer;
  reshard_writer_tensor tensor = {"x", RESHARD_U8, NULL};
  GOOD(reshard_layout_parse("cyclic(2;1)", 1, (const int64_t[]){128}, 2, &tensor.layout));
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  low = before;
  low.rlim_cur = 40;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
  reshard_status status = reshard_writer_create(scratch_path("n/a"), 1, &tensor, NULL, &writer);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  FAILS_WITH(status, RESHARD_ERROR_SYSTEM, "128 files");
  assert_non_null(strstr(reshard_last_error(), "is 40"));
  reshard_layout_release(tensor.layout);
  assert_string_equal(scratch_list("n"), "");
  scratch_remove("n");
}

typedef struct watch {
  int64_t calls, done, all, stop;
} watch;

static int look_at_output(void *user, const char *stage, int64_t done, int64_t all) {
  watch *w = user;
  assert_string_equal(stage, "syncing");
  assert_true(done > w->done && done <= all && (w->calls == 0 || all == w->all));
  w->done = done;
  w->all = all;
  return ++w->calls == w->stop;
}

CASE(sync_tells_progress_and_can_be_stopped) {
  scratch_directory("y");
  reshard_writer writer = create_writer("y/a", false);
  watch w = {0, 0, 0, 0}, stopped = {0, 0, 0, 2};
  GOOD(rs_writer_sync(writer, look_at_output, &w));
  assert_true(w.calls == 2 && w.done == w.all);
  GOOD(rs_writer_publish(writer));
  assert_string_equal(scratch_list("y"), "a");
  writer = create_writer("y/b", false);
  assert_int_equal(rs_writer_sync(writer, look_at_output, &stopped), RESHARD_ERROR_CANCELLED);
  reshard_writer_abandon(writer);
  assert_string_equal(scratch_list("y"), "a");
  scratch_remove("y");
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)
