/* Checkpoints of state dicts on disk: in work, replaced, cut short, of other formats, and read once. */
#include "bench/cli/util.h"
#include "support/fixtures/case.h"
#include "support/fixtures/scale.h"
#include "support/fixtures/scratch.h"
#include "support/fixtures/state_dicts.h"
#include "support/oracles/file_random.h"

#include "file/read/checkpoint.h"

#ifdef RS_HAVE_JANSSON

#include <dirent.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const int64_t square[2] = {8, 6};

/* A writer's unfinished directory is hidden, and is refused by all that read. */
CASE(test_in_work) {
  sharded_ranks p;
  state_spec specs[1] = {state_spec_sharded("chunk(0)", 2)};
  reshard_writer_tensor tensor = {"t.0", RESHARD_F32, specs[0].layout};
  reshard_writer writer;
  char hidden[300] = "", inside[700];
  CLI_TRY("", reshard_writer_create(scratch_path("work"), 1, &tensor, NULL, &writer));
  DIR *directory = opendir(scratch_path(""));
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
    if (strncmp(entry->d_name, ".work.reshard-", 14) == 0)
      snprintf(hidden, sizeof hidden, "%s", entry->d_name);
  closedir(directory);
  assert_true(hidden[0] == '.');
  const char *path = state_path(hidden);
  state_fixture s = {.n = 1, .specs = specs, .seed = SAVED, .path = path};
  sharded_ranks_open(&p, 2, NULL);
  state_load_refused(&p, &s, RESHARD_ERROR_INVALID, "is not complete: a writer has '.work.reshard-");
  s.path = state_path("work");
  state_load_refused(&p, &s, RESHARD_ERROR_INVALID, "work': No such file or directory");
  reshard_checkpoint checkpoint;
  assert_int_equal(reshard_checkpoint_open(path, &checkpoint), RESHARD_ERROR_INVALID);
  snprintf(inside, sizeof inside, "%s/shard-00001-model-00001-of-00001.safetensors", path);
  assert_int_equal(access(inside, R_OK), 0);
  assert_int_equal(reshard_checkpoint_open(inside, &checkpoint), RESHARD_ERROR_INVALID);
  reshard_convert_options options = {.size = RESHARD_CONVERT_OPTIONS_INIT};
  assert_int_equal(reshard_convert(path, scratch_path("work.safetensors"), &options, NULL), RESHARD_ERROR_INVALID);
  assert_non_null(strstr(reshard_last_error(), "is not complete: a writer has '.work.reshard-"));
  assert_int_equal(symlink(path, scratch_path("link")), 0);
  assert_int_equal(reshard_checkpoint_open(scratch_path("link"), &checkpoint), RESHARD_ERROR_INVALID);
  reshard_writer_abandon(writer);
  sharded_ranks_close(&p);
  reshard_layout_release(specs[0].layout);
}

/* Saves over a directory again and again, each time with another seed and that as the step. */
typedef struct replacer {
  sharded_ranks p;
  state_fixture s;
  atomic_bool stop;
  int64_t saves;
} replacer;

static void replace_body(void *user, int64_t rank) {
  replacer *r = user;
  while (!atomic_load(&r->stop)) {
    r->s.seed += 16; /* no tensor's seed is another's of the save before */
    state_save(&r->p, &r->s);
    r->saves++;
  }
}

/* Loads what is there; a load that succeeds is of one save, its tensors and its step. */
static void read_replaced_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  state_fixture before = *(state_fixture *)p->user;
  before.seed = OTHER;
  reshard_tree state = state_make(p, r, &before);
  reshard_status status = reshard_state_load(p->sharders[r], state, before.path, NULL, NULL);
  rank_result_set(&p->results[r], status);
  p->wrong[r] = status == RESHARD_SUCCESS ? state_check(r, state, &before, (uint64_t)state_step(state)) : 0;
  reshard_tree_release(state);
}

CASE(save_with_force_replaces_the_checkpoint) {
  sharded_ranks to;
  state_spec specs[2] = {state_spec_sharded("chunk(0)", 2), state_spec_sharded("chunk(1)", 2)};
  reshard_state_save_options force = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1};
  replacer r = {.s = {.n = 2, .specs = specs, .seed = SAVED, .path = state_path("replaced"), .save = &force}};
  state_fixture s = r.s;
  sharded_ranks_open(&r.p, 2, NULL);
  sharded_ranks_open(&to, 2, NULL);
  state_save(&r.p, &r.s);
  rank_thread *thread = rank_thread_start(replace_body, &r);
  int64_t loads = test_scaled(200, 1);
  for (int64_t i = 0; i < loads; i++) {
    sharded_ranks_run(&to, read_replaced_body, &s);
    if (to.results[0].status != RESHARD_SUCCESS)
      sharded_ranks_assert(&to, to.results[0].status, "replaced");
    assert_int_equal(to.wrong[0] + to.wrong[1], 0);
  }
  atomic_store(&r.stop, true);
  rank_thread_join(thread);
  sharded_ranks_run(&to, read_replaced_body, &s); /* nobody writes any more */
  sharded_ranks_assert(&to, RESHARD_SUCCESS, NULL);
  /* what was opened, and another directory of its name */
  reshard_checkpoint checkpoint;
  CLI_TRY("", reshard_checkpoint_open(s.path, &checkpoint));
  CLI_TRY("", rs_checkpoint_in_place(checkpoint, s.path));
  state_save(&r.p, &r.s);
  assert_int_equal(rs_checkpoint_in_place(checkpoint, s.path), RESHARD_ERROR_SYSTEM);
  assert_non_null(
      strstr(reshard_last_error(), "replaced': another directory took its place while it was opened: inode"));
  assert_int_equal(rs_checkpoint_in_place(checkpoint, state_path("nowhere")), RESHARD_ERROR_INVALID);
  reshard_checkpoint_close(checkpoint);
  sharded_ranks_close(&to);
  sharded_ranks_close(&r.p);
  reshard_layout_release(specs[0].layout);
  reshard_layout_release(specs[1].layout);
}

/* A rank that ends the communicator instead: the others come back, and nothing is left. */
static void abort_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  if (r == 1) {
    test_sleep_ms(20);
    rank_result_set(&p->results[r], reshard_comm_abort(p->comms[r]));
    return;
  }
  state_save_body(user, r);
}

CASE(abort_in_a_save_leaves_no_checkpoint) {
  sharded_ranks p;
  state_spec specs[1] = {state_spec_sharded("chunk(0)", 3)};
  state_fixture s = {.n = 1, .specs = specs, .seed = SAVED, .path = state_path("aborted")};
  sharded_ranks_open(&p, 3, NULL);
  sharded_ranks_run(&p, abort_body, &s);
  assert_int_equal(p.results[0].status, RESHARD_ERROR_PEER);
  assert_int_equal(p.results[2].status, RESHARD_ERROR_PEER);
  assert_int_equal(state_names("aborted"), 0);
  assert_int_equal(state_names(".aborted"), 0);
  sharded_ranks_close(&p);
  reshard_layout_release(specs[0].layout);
}

/* Other formats than ours: a file of whole tensors, and a numpy array in Fortran's order. */
static void formats_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const state_fixture *s = p->user;
  reshard_tree root, leaf;
  reshard_sharded_tensor tensor;
  CLI_TRY("", reshard_tree_dict(&root));
  CLI_TRY("", reshard_sharded_tensor_empty(p->sharders[r], s->specs[0].layout,
                                           &(reshard_properties){.dtype = RESHARD_F32}, NULL, &tensor));
  CLI_TRY("", reshard_state_sharded(tensor, &leaf));
  state_put(root, "tensor", leaf);
  rank_result_set(&p->results[r], reshard_state_load(p->sharders[r], root, s->path, NULL, NULL));
  p->wrong[r] = sharded_check(tensor, r, SAVED);
  reshard_sharded_tensor_release(tensor);
  reshard_tree_release(root);
}

CASE(test_other_formats) {
  sharded_ranks p;
  state_spec specs[1] = {state_spec_sharded("mesh(3;S0)", 3)};
  state_fixture s = {.n = 1, .specs = specs};
  naive_set set = {0};
  rng r;
  rng_seed(&r, 5);
  naive_tensor *t = naive_add(&set, "tensor", RESHARD_F32, 2, square);
  reshard_tensor whole;
  reshard_layout layout = layout_from_text("rank(0)", 2, square, 1);
  CLI_TRY("", reshard_tensor_wrap(RESHARD_F32, 2, square, NULL, t->bytes, NULL, NULL, &whole));
  array_fill(layout, 0, 0, whole, SAVED);
  naive_file file = {.set = set};
  naive_write_safetensors(&r, scratch_path("one.safetensors"), &file);
  naive_write_npy(&r, scratch_path("one.npy"), t, true);
  sharded_ranks_open(&p, 3, NULL);
  for (int i = 0; i < 2; i++) {
    s.path = state_path(i == 0 ? "one.safetensors" : "one.npy");
    sharded_ranks_run(&p, formats_body, &s);
    sharded_ranks_assert(&p, RESHARD_SUCCESS, NULL);
  }
  sharded_ranks_close(&p);
  reshard_tensor_release(whole);
  reshard_layout_release(layout);
  reshard_layout_release(specs[0].layout);
  naive_set_free(&set);
}

/* The system refuses. */
CASE(limit_of_the_system_ends_a_save_with_its_error) {
  sharded_ranks p;
  state_spec specs[1] = {state_spec_sharded("chunk(0)", 2)};
  state_fixture s = {.n = 1, .specs = specs, .seed = SAVED, .path = state_path("limit")};
  struct rlimit before, small;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  small = before;
  small.rlim_cur = 100;
  sharded_ranks_open(&p, 2, NULL);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
  sharded_ranks_run(&p, state_save_body, &s);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  sharded_ranks_assert(&p, RESHARD_ERROR_SYSTEM, "the limit of this process is 100 (RLIMIT_FSIZE)");
  assert_int_equal(state_names("limit"), 0);
  assert_int_equal(state_names(".limit"), 0);
  sharded_ranks_close(&p);
  reshard_layout_release(specs[0].layout);
}

/* Bytes that the kernel has counted, beside those of the report. */
static int64_t read_so_far(void) {
  long long bytes = -1;
  FILE *file = fopen("/proc/self/io", "r");
  if (file != NULL) {
    if (fscanf(file, "rchar: %lld", &bytes) != 1)
      bytes = -1;
    fclose(file);
  }
  return bytes;
}

/* Saved part by part, loaded in other parts, and without any. */
CASE(parts_are_saved_from_and_loaded_into_views_of_one_buffer) {
  static const char *const layouts[] = {"mesh(4;S0{4,2/2,2/1})", "mesh(4;S1{2/2,4})", "chunk(0)", "mesh(4;S0/2)"};
  sharded_ranks p;
  reshard_state_save_options force = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1};
  sharded_ranks_open(&p, 4, NULL);
  for (int from = 0; from < 4; from++) {
    state_spec saved = state_spec_sharded(layouts[from], 4);
    state_fixture s = {.n = 1, .specs = &saved, .seed = SAVED, .path = state_path("parts"), .save = &force};
    state_save(&p, &s);
    for (int to = 0; to < 4; to++) {
      state_spec loaded = state_spec_sharded(layouts[to], 4);
      s.specs = &loaded;
      state_load(&p, &s);
      reshard_layout_release(loaded.layout);
    }
    reshard_layout_release(saved.layout);
  }
  sharded_ranks_close(&p);
}

CASE(test_bytes_read) {
  sharded_ranks from, to;
  const int64_t shape[2] = {1536, 1024};
  state_spec save_spec = {.dtype = RESHARD_F32, .ndim = 2, .shape = {1536, 1024}};
  state_spec load_spec = save_spec;
  save_spec.layout = layout_from_text("chunk(0)", 2, shape, 4);
  static const char *const layouts[] = {"chunk(1)", "chunk(0)", "rank(1)", "mesh(3;R)", "cyclic(3x1;64x64)"};
  reshard_state_save_options force = {.size = RESHARD_STATE_SAVE_OPTIONS_INIT, .force = 1};
  state_fixture s = {.n = 1, .specs = &save_spec, .seed = SAVED, .path = state_path("bytes"), .save = &force};
  sharded_ranks_open(&from, 4, NULL);
  state_save(&from, &s);
  sharded_ranks_close(&from);
  s.specs = &load_spec;
  sharded_ranks_open(&to, 3, NULL);
  for (int i = 0; i < 5; i++) {
    load_spec.layout = layout_from_text(layouts[i], 2, shape, 3);
    int64_t before = read_so_far(), needed = 0;
    state_load(&to, &s);
    int64_t after = read_so_far();
    for (int r = 0; r < 3; r++) {
      assert_int_equal(s.reports[r].read_bytes, s.reports[r].bytes / (i == 3 ? 3 : 1)); /* replicas, read once */
      needed += s.reports[r].bytes;
    }
    assert_int_equal(needed, 1536 * 1024 * 4 * (i == 3 ? 3 : 1));
    if (before >= 0 && after - before > needed + needed / 100)
      fail_msg("%s: %lld bytes were read, %lld are needed", layouts[i], (long long)(after - before), (long long)needed);
    reshard_layout_release(load_spec.layout);
  }
  sharded_ranks_close(&to);
  reshard_layout_release(save_spec.layout);
}

RUN_CASES_WITH(scratch_setup, scratch_teardown)

#else

int main(void) { return 77; }

#endif
