/* Descriptors of files: those that are open while checkpoints are read and written are closed on exec, and none is left
 * open by what succeeded or was refused. */
#include "support/fixtures/recorded.h"
#include "support/fixtures/scratch.h"

#include "file/write/writer.h"
#include "support/fixtures/case.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Descriptors of this process that lead into the scratch directory; fails for one that a program would inherit. */
static int count_descriptors(void) {
  const char *under = scratch_path("");
  int count = 0;
  DIR *list = opendir("/proc/self/fd");
  assert_non_null(list);
  for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
    char path[4096];
    ssize_t n = readlinkat(dirfd(list), entry->d_name, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    if (n <= 0 || strncmp(path, under, strlen(under)) != 0)
      continue;
    int flags = fcntl(atoi(entry->d_name), F_GETFD);
    if (flags < 0 || (flags & FD_CLOEXEC) == 0)
      fail_msg("%s is left to programs that are started", path);
    count++;
  }
  closedir(list);
  return count;
}

static void assert_open(int wanted, const char *what) {
  int count = count_descriptors();
  if (count != wanted)
    fail_msg("%s: %d descriptors are open, not %d (%s)", what, count, wanted, reshard_last_error());
}

static reshard_status create_writer(const char *name, bool force, reshard_writer *writer) {
  reshard_writer_tensor tensor = {"x", RESHARD_U8, NULL};
  bool one = strchr(name, '.') != NULL;
  assert_int_equal(reshard_layout_parse(one ? "rank(0)" : "chunk(0)", 1, (const int64_t[]){8}, 2, &tensor.layout),
                   RESHARD_SUCCESS);
  reshard_writer_options options = {.size = RESHARD_WRITER_OPTIONS_INIT, .force = force};
  reshard_status status = reshard_writer_create(scratch_path(name), 1, &tensor, &options, writer);
  reshard_layout_release(tensor.layout);
  return status;
}

static void put_all(reshard_writer writer) {
  for (int64_t rank = 0; rank < 2; rank++)
    assert_int_equal(reshard_writer_put(writer, 0, rank, (const void *const[]){"12345678"}), RESHARD_SUCCESS);
}

CASE(writers_leave_no_descriptor_open) {
  static const char *const names[] = {"a.npy", "a.safetensors", "a"};
  for (int i = 0; i < 3; i++)
    for (int force = 0; force < 2; force++) {
      reshard_writer writer, rival;
      assert_int_equal(create_writer(names[i], force, &writer), RESHARD_SUCCESS);
      assert_true(count_descriptors() >= 3); /* the place, the temporary, a file of it */
      reshard_writer_abandon(writer);
      assert_open(0, "abandoned");
      assert_int_equal(create_writer(names[i], force, &writer), RESHARD_SUCCESS);
      assert_int_equal(create_writer(names[i], force, &rival), RESHARD_SUCCESS);
      put_all(writer);
      put_all(rival);
      assert_int_equal(reshard_writer_commit(writer), RESHARD_SUCCESS);
      assert_int_equal(reshard_writer_commit(rival), force ? RESHARD_SUCCESS : RESHARD_ERROR_INVALID);
      assert_open(0, "committed");
    }
}

static void refused_writer(const char *name, bool force) {
  reshard_writer writer;
  assert_int_not_equal(create_writer(name, force, &writer), RESHARD_SUCCESS);
  assert_open(0, name);
}

CASE(test_refused_writers) {
  struct rlimit before, low;
  scratch_directory("w");
  scratch_directory("w/set");
  scratch_write("w/set/notes.txt", "x", 1);
  scratch_write("w/one.npy", "x", 1);
  assert_int_equal(symlink("one.npy", scratch_path("w/link.npy")), 0);
  assert_int_equal(symlink("nothing", scratch_path("w/none.npy")), 0);
  refused_writer("w/one.npy", false);
  refused_writer("w/set", true);
  refused_writer("w/none.npy", true);
  refused_writer("w/.x.reshard-1-1", true);
  refused_writer("w/no/such.npy", true);
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  low = before;
  low.rlim_cur = 100;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
  refused_writer("w/link.npy", true);
  refused_writer("w/large", false);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  reshard_writer writer;
  assert_int_equal(create_writer("w/link.npy", true, &writer), RESHARD_SUCCESS);
  assert_int_equal(reshard_writer_commit(writer), RESHARD_ERROR_INVALID); /* nothing was put */
  assert_open(0, "nothing was put");
  assert_int_equal(mkfifo(scratch_path("w/.set.reshard-12-0"), 0600), 0); /* leftovers: looked at, and left */
  scratch_write("w/.one.npy.reshard-12-0.npy", "x", 1);
  assert_int_equal(create_writer("w/one.npy", true, &writer), RESHARD_SUCCESS);
  reshard_writer_abandon(writer);
  assert_open(0, "leftovers");
  scratch_remove("w");
}

/* Opens it, and closes it; with files open in between, which ones depends on the format. */
static void opened(const char *name) {
  reshard_checkpoint checkpoint = scratch_open(name);
  count_descriptors();
  reshard_checkpoint_close(checkpoint);
  assert_open(0, name);
}

static void file_refused(const char *name) {
  reshard_checkpoint checkpoint;
  assert_int_not_equal(reshard_checkpoint_open(scratch_path(name), &checkpoint), RESHARD_SUCCESS);
  assert_open(0, name);
}

CASE(readers_leave_no_descriptor_open) {
  reshard_writer writer;
  static const char *const names[] = {"r/a.npy", "r/a.safetensors", "r/a"};
  scratch_directory("r");
  for (int i = 0; i < 3; i++) {
    assert_int_equal(create_writer(names[i], false, &writer), RESHARD_SUCCESS);
    put_all(writer);
    assert_int_equal(reshard_writer_commit(writer), RESHARD_SUCCESS);
    opened(names[i]);
  }
  assert_int_equal(unlink(scratch_path("r/a/shard-00002-model-00001-of-00001.safetensors")), 0);
  file_refused("r/a");
  scratch_write("r/bad.npy", "\x93NUMPY\x01\x00\xff\xff", 10);
  file_refused("r/bad.npy");
  scratch_write("r/bad.safetensors", "12345678{", 9);
  file_refused("r/bad.safetensors");
  scratch_safetensors("r/long.safetensors", "{" SCRATCH_TENSOR("x", "U8", "[8]", "[0,8]") "}", 9, 0);
  file_refused("r/long.safetensors");
  file_refused("r/none.npy");
  file_refused("r");
  scratch_directory("r/empty");
  file_refused("r/empty");
  scratch_directory("r/index");
  scratch_write("r/index/model.safetensors.index.json", "{\"weight_map\":{\"x\":\"none.safetensors\"}}", 40);
  scratch_safetensors("r/index/a.safetensors", "{" SCRATCH_TENSOR("y", "U8", "[8]", "[0,8]") "}", 8, 0);
  file_refused("r/index");
  assert_int_equal(mkfifo(scratch_path("r/fifo.npy"), 0600), 0);
  file_refused("r/fifo.npy");
  scratch_remove("r");
}

CASE(readers_of_pickles_leave_no_descriptor_open) {
  if (!recorded_there())
    skip();
  recorded_sharded("d");
  opened("d");
  recorded file = recorded_read("state.pt");
  scratch_write("state.pt", file.at, file.n);
  opened("state.pt");
  scratch_write("cut.pt", file.at, file.n - 9);
  file_refused("cut.pt");
  scratch_write("zeros.pt", file.at, file.n / 2);
  file_refused("zeros.pt");
  recorded_free(&file);
  scratch_write("d/.metadata", "x", 1);
  file_refused("d");
  scratch_remove("d");
}

/* Texts are read and closed, whether they are right or not. */
CASE(texts_are_closed_right_or_wrong) {
  reshard_model model;
  reshard_rules rules;
  reshard_map map;
  static const char right[] = "[{\"name\":\"x\",\"shape\":[4],\"dtype\":\"f32\"}]";
  scratch_write("m.json", right, sizeof right - 1);
  assert_int_equal(reshard_model_load(scratch_path("m.json"), &model), RESHARD_SUCCESS);
  reshard_model_free(model);
  assert_open(0, "model");
  scratch_write("bad.json", "[{", 2);
  assert_int_not_equal(reshard_model_load(scratch_path("bad.json"), &model), RESHARD_SUCCESS);
  assert_open(0, "bad model");
  scratch_write("rules", "* chunk(0)\n", 11);
  assert_int_equal(reshard_rules_load(scratch_path("rules"), &rules), RESHARD_SUCCESS);
  reshard_rules_free(rules);
  assert_open(0, "rules");
  scratch_write("bad.rules", "one\n", 4);
  assert_int_not_equal(reshard_rules_load(scratch_path("bad.rules"), &rules), RESHARD_SUCCESS);
  assert_open(0, "bad rules");
  scratch_write("bad.map", "x = cat(\n", 9);
  assert_int_not_equal(reshard_map_load(scratch_path("bad.map"), &map), RESHARD_SUCCESS);
  assert_open(0, "bad map");
  scratch_directory("none");
  assert_int_not_equal(reshard_model_load(scratch_path("none"), &model), RESHARD_SUCCESS);
  assert_open(0, "a directory");
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)
