/* Checkpoints of PyTorch's own formats, recorded (tests/files/distcp): what they hold, loading them into a state, and
 * files that are changed, truncated or lie. tests/files/distcp.sh compares all bytes. */
#include "file/format/torch.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/recorded.h"
#include "support/fixtures/scale.h"
#include "support/fixtures/scratch.h"
#include "support/fixtures/sharded_ranks.h"

#include "base/base.h"
#include "support/fixtures/case.h"
#include <reshard/state_dict.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define B(bytes) bytes, sizeof(bytes) - 1

static void check_layout(reshard_checkpoint checkpoint, const char *name, const char *should) {
  int64_t i;
  reshard_layout layout;
  char text[512];
  GOOD(reshard_checkpoint_find(checkpoint, name, &i));
  GOOD(reshard_checkpoint_layout(checkpoint, i, &layout));
  GOOD(reshard_layout_print(layout, text, sizeof text, NULL));
  assert_string_equal(text, should);
  reshard_layout_release(layout);
}

CASE(recorded_shards_have_shape_layout_and_data) {
  reshard_checkpoint_info info;
  recorded_sharded("d");
  reshard_checkpoint checkpoint = scratch_open("d");
  GOOD(reshard_checkpoint_get_info(checkpoint, &info));
  assert_int_equal(info.format, RESHARD_FORMAT_DISTCP);
  assert_string_equal(reshard_file_format_string(info.format), "distcp");
  assert_true(info.tensors == 12 && info.files == 2 && info.world == 2 && info.described && info.leaves == 3 &&
              info.left_out == 0);
  assert_true(info.bytes == 180 && info.stored_bytes == 180);
  check_layout(checkpoint, "rows", "boxes(0:[0,0]+[3,3];1:[3,0]+[2,3])");
  check_layout(checkpoint, "columns", "boxes(0:[0,0]+[2,4];1:[0,4]+[2,3])");
  check_layout(checkpoint, "few", "boxes(0:[0,0]+[1,3])");
  reshard_checkpoint_close(checkpoint);
  scratch_write("d/__7_0.distcp", "", 0); /* of a rank that had nothing to write */
  reshard_checkpoint_close(scratch_open("d"));
}

CASE(test_state_dict) {
  reshard_checkpoint_info info;
  reshard_model model;
  recorded file = recorded_read("state.pt");
  scratch_write("any.name", file.at, file.n);
  scratch_write("s.pt", file.at, file.n);
  reshard_checkpoint checkpoint = scratch_open("any.name");
  GOOD(reshard_checkpoint_get_info(checkpoint, &info));
  assert_int_equal(info.format, RESHARD_FORMAT_TORCH);
  assert_string_equal(reshard_file_format_string(info.format), "torch");
  assert_true(info.tensors == 25 && info.files == 1 && info.world == 1 && info.leaves == 7 && info.left_out == 3);
  check_layout(checkpoint, "fortran", "rank(0)");
  check_layout(checkpoint, "shared.1", "rank(0)");
  reshard_checkpoint_close(checkpoint);
  GOOD(reshard_model_open(scratch_path("s.pt"), &model));
  assert_int_equal(reshard_model_count(model), 25);
  assert_int_equal(reshard_model_bytes(model), info.bytes);
  reshard_model_free(model);
  recorded_free(&file);
}

/* Byte i of the recorded tensor number `seed`, as make.py gives them. */
static unsigned char byte_of(size_t i, int seed) {
  return (unsigned char)(((size_t)seed * 41 + i * 7 + i / 250) % 251);
}

/* --- A state dict, cut otherwise than what was saved ------------------------------------------------------------- */

static reshard_status make_state(sharded_ranks *p, int64_t r, reshard_layout layout, reshard_tree *root,
                                 reshard_sharded_tensor *rows) {
  const reshard_properties properties = {.dtype = RESHARD_F32};
  reshard_tree leaf = NULL;
  reshard_status status = reshard_sharded_tensor_empty(p->sharders[r], layout, &properties, NULL, rows);
  RS_THEN(status, reshard_tree_dict(root));
  RS_THEN(status, reshard_state_sharded(*rows, &leaf));
  RS_THEN(status, reshard_tree_set(*root, "rows", leaf));
  reshard_tree_release(leaf);
  return status;
}

/* Elements of a rank's array that are not those that were saved; column-wise cut: all 5 rows, columns [first, ...). */
static int64_t check_rows(reshard_sharded_tensor rows) {
  int64_t wrong = 0;
  for (int64_t a = 0; a < reshard_sharded_tensor_local_count(rows); a++) {
    reshard_tensor array;
    reshard_box box;
    reshard_tensor_info info;
    if (reshard_sharded_tensor_local(rows, a, &array, &box) != RESHARD_SUCCESS ||
        reshard_tensor_get_info(array, &info) != RESHARD_SUCCESS)
      return -1;
    for (int64_t i = 0; i < box.extent[0] * box.extent[1]; i++)
      for (int64_t b = 0; b < 4; b++) {
        int64_t global = (box.offset[0] + i / box.extent[1]) * 3 + box.offset[1] + i % box.extent[1];
        wrong += ((unsigned char *)info.data)[4 * i + b] != byte_of((size_t)(4 * global + b), 0);
      }
  }
  return wrong;
}

static void load_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  const int64_t shape[2] = {5, 3};
  reshard_state_load_options partial = {.size = RESHARD_STATE_LOAD_OPTIONS_INIT, .partial = 1};
  reshard_layout layout = NULL;
  reshard_sharded_tensor rows = NULL;
  reshard_tree root = NULL;
  reshard_status status = reshard_layout_parse("chunk(1)", 2, shape, p->n, &layout);
  RS_THEN(status, make_state(p, r, layout, &root, &rows));
  RS_THEN(status, reshard_state_load(p->sharders[r], root, p->user, &partial, NULL));
  rank_result_set(&p->results[r], status);
  p->wrong[r] = status == RESHARD_SUCCESS ? check_rows(rows) : 0;
  reshard_tree_release(root);
  reshard_sharded_tensor_release(rows);
  reshard_layout_release(layout);
}

CASE(test_load_state) {
  reshard_model model;
  char path[256];
  recorded_sharded("d");
  strcpy(path, scratch_path("d"));
  GOOD(reshard_model_open(path, &model));
  assert_int_equal(reshard_model_count(model), 12);
  reshard_model_free(model);
  for (int64_t n = 1; n <= 4; n++) {
    sharded_ranks_check(n, NULL, load_body, path, RESHARD_SUCCESS, NULL);
  }
}

/* --- Numbers and texts of a state dict ---------------------------------------------------------------------------- */

static reshard_status set_null(reshard_tree root, const char *path) {
  reshard_tree null = NULL;
  reshard_status status = reshard_tree_null(&null);
  RS_THEN(status, reshard_tree_set(root, path, null));
  reshard_tree_release(null);
  return status;
}

/* Every value that was saved, in the place of a null. */
static int64_t check_leaves(reshard_tree root, bool file) {
  reshard_tree leaf;
  int64_t step = -1;
  double lr = 0;
  const void *note = NULL;
  size_t size = 0;
  int64_t wrong = reshard_tree_find(root, "optim.state.0.step", &leaf) != 0 ||
                  reshard_tree_get_int(leaf, &step) != RESHARD_SUCCESS || step != (file ? 3 : 1);
  if (file)
    return wrong +
           (reshard_tree_find(root, "optim.lr", &leaf) != RESHARD_SUCCESS ||
            reshard_tree_get_float(leaf, &lr) != RESHARD_SUCCESS || lr != 1e-3) +
           (reshard_tree_find(root, "name", &leaf) != RESHARD_SUCCESS ||
            reshard_tree_get_kind(leaf) != RESHARD_TREE_NULL);
  return wrong + (reshard_tree_find(root, "note", &leaf) != RESHARD_SUCCESS ||
                  reshard_tree_get_bytes(leaf, &note, &size) != RESHARD_SUCCESS || size != 12 ||
                  memcmp(note, "not a tensor", 12) != 0);
}

static void leaves_body(void *user, int64_t r) {
  sharded_ranks *p = user;
  bool file = strcmp(strrchr(p->user, '/'), "/s.pt") == 0;
  static const char *const paths[2][3] = {{"optim.state.0.step", "note", "step"},
                                          {"optim.state.0.step", "optim.lr", "name"}};
  reshard_state_load_options partial = {.size = RESHARD_STATE_LOAD_OPTIONS_INIT, .partial = 1};
  reshard_tree root = NULL;
  reshard_status status = reshard_tree_dict(&root);
  for (int i = 0; i < 3 && status == RESHARD_SUCCESS; i++)
    status = set_null(root, paths[file][i]);
  RS_THEN(status, reshard_state_load(p->sharders[r], root, p->user, &partial, NULL));
  rank_result_set(&p->results[r], status);
  p->wrong[r] = status == RESHARD_SUCCESS ? check_leaves(root, file) : 0;
  reshard_tree_release(root);
}

/* From PyTorch's files, and from shards that convert has made of them. */
CASE(test_load_leaves) {
  char from[256], to[256];
  recorded_sharded("d");
  recorded file = recorded_read("state.pt");
  scratch_write("s.pt", file.at, file.n);
  recorded_free(&file);
  for (int i = 0; i < 2; i++) {
    reshard_convert_options options = {.size = RESHARD_CONVERT_OPTIONS_INIT, .dst = "flat(0-1)"};
    reshard_convert_report report;
    strcpy(from, scratch_path(i == 0 ? "d" : "s.pt"));
    sharded_ranks_check(2, NULL, leaves_body, from, RESHARD_SUCCESS, NULL);
    scratch_directory("shards");
    strcpy(to, scratch_path(i == 0 ? "shards/d" : "shards/s.pt"));
    GOOD(reshard_convert(from, to, &options, &report));
    assert_true(report.leaves == report.source.leaves && report.leaves == (i == 0 ? 3 : 7));
    sharded_ranks_check(2, NULL, leaves_body, to, RESHARD_SUCCESS, NULL);
  }
}

typedef struct change {
  const char *file, *from;
  size_t from_n;
  const char *to;
  size_t to_n;
  bool all;
  reshard_status status;
  const char *first, *second;
} change;

CASE(pickles_that_lie_are_refused_with_the_reason) {
#define WRONG  RESHARD_ERROR_INVALID
#define UNREAD RESHARD_ERROR_UNSUPPORTED
  static const change changes[] = {
      {".metadata", B("\x8c\x25torch.distributed.checkpoint.metadata\x94\x8c\x08Metadata"),
       B("\x8c\x02os\x94\x8c\x06system"), false, WRONG, "d/.metadata'",
       "a MetadataIndex with a name is expected, it is os.MetadataIndex"},
      {".metadata", B("MetadataIndex"), B("MetadataIndey"), true, WRONG, "a MetadataIndex with a name is expected",
       ".metadata.MetadataIndey"},
      {".metadata", B("storage_data"), B("storage_dato"), true, WRONG, "storage_data, a dict", "it is nothing"},
      {".metadata", B("\x8c\x0c__0_0.distcp"), B("\x8c\x0c../../passwd"), true, WRONG, "'../../passwd'",
       "not in its directory"},
      {".metadata", B("\x8c\x0c__0_0.distcp"), B("\x8c\x0c__5_0.distcp"), true, WRONG, "d/__5_0.distcp'",
       "No such file"},
      {".metadata",
       B("\x8c\x07"
         "float64"),
       B("\x8c\x05int64"), true, WRONG, "tensor 'scalar'", "f64 scalar at byte"},
      {".metadata",
       B("\x8c\x07"
         "float64"),
       B("\x8c\x09"
         "complex32"),
       true, WRONG, "tensor 'scalar'", "f64 scalar at byte"},
      {".metadata", B("K\x03K\x00\x86"), B("K\x04K\x00\x86"), true, WRONG, "tensor 'rows'",
       "a chunk at 4 of 2 in dim 0, which has 5"},
      {".metadata", B("K\x03K\x00\x86"), B("K\x02K\x00\x86"), true, WRONG, "tensor 'rows'", "overlap"},
      {".metadata", B("K\x03K\x00\x86"), B("K\x02K\x00\x86"), false, WRONG, "tensor 'rows'", "[2,4)x[0,3)"},
      {".metadata", B("K\x05K\x03\x86"), B("K\x06K\x03\x86"), false, WRONG, "tensor 'rows'", "[5,6)"},
      {".metadata", B("relative_path"), B("relative_pa\x00h"), false, WRONG, "relative_path, a text", "it is nothing"},
      {".metadata", B("M)\x06u"), B("M*\x06u"), false, WRONG, "d/.metadata'",
       "overlap in the file '__0_0.distcp': 1578 bytes from byte 0 on, 1577 from byte 1577 on"},
      {".metadata", B("M)\x06j"), B("M\x00\x00j"), false, WRONG, "d/.metadata'",
       "overlap in the file '__0_0.distcp': 1577 bytes from byte 0 on, 1577 from byte 0 on"},
      {"__0_0.distcp", B("FloatStorage"), B("DouleStorage"), false, WRONG, "__0_0.distcp'",
       "'torch.DouleStorage', no class of storages"},
      {"__0_0.distcp", B("little"), B("BIGEND"), false, UNREAD, "__0_0.distcp'", "byte order 'BIGEND'"},
      {"__0_0.distcp", B("PK\x05\x06"), B("PK\x05\x07"), false, WRONG, "__0_0.distcp'", "no end record"},
      {"__0_0.distcp", B("PK\x01\x02\x00\x00\x00\x00\x08\x08\x00\x00"), B("PK\x01\x02\x00\x00\x00\x00\x08\x08\x08\x00"),
       false, UNREAD, "__0_0.distcp'", "compressed"},
      {"__0_0.distcp", B("PK\x01\x02"), B("PK\x01\x03"), false, WRONG, "__0_0.distcp'", "an entry of its directory"},
      {"__0_0.distcp", B("PK\x03\x04"), B("PK\x03\x05"), false, WRONG, "__0_0.distcp'", "no archive of torch.save"},
      {"__0_0.distcp", B("K\x03K\x03\x86q\x06K\x03K\x01\x86"), B("K\x03K\x03\x86q\x06K\x01K\x03\x86"), false, UNREAD,
       "tensor 'rows'", "3x3 in Fortran order"},
      {"__0_0.distcp", B("K\x03K\x03\x86q\x06K\x03K\x01\x86"), B("K\x03K\x03\x86q\x06K\x02K\x03\x86"), false, UNREAD,
       "tensor 'rows'", "strides 2x3"},
      {"__0_0.distcp", B("QK\x00K\x03K\x03\x86"), B("QK\x01K\x03K\x03\x86"), false, WRONG, "tensor 'rows'",
       "9 elements of 4 bytes from element 1 on, entry 'data/0' has 36 bytes"},
      {"__0_0.distcp", B("K\x03K\x03\x86q\x06K\x03K\x01\x86"), B("K\x02K\x03\x86q\x06K\x03K\x01\x86"), false, WRONG,
       "f32 2x3 at byte", ".metadata says f32 3x3"},
      {"__0_0.distcp",
       B("X\x01\x00\x00\x00"
         "0q\x03"),
       B("X\x01\x00\x00\x00"
         "1q\x03"),
       false, WRONG, "tensor '", "no entry 'data/1'"},
  };
  for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
    const change *c = &changes[i];
    char from[64], to[64];
    snprintf(from, sizeof from, "sharded/%s", c->file);
    snprintf(to, sizeof to, "d/%s", c->file);
    recorded_sharded("d");
    recorded file = recorded_read(from);
    recorded_replace(&file, c->from, c->from_n, c->to, c->to_n, c->all);
    scratch_write(to, file.at, file.n);
    recorded_free(&file);
    scratch_refused("d", c->status, c->first, c->second);
  }
}

CASE(test_other_kinds) {
  recorded_sharded("d");
  recorded file = recorded_read("sharded/.metadata");
  /* a state of _StorageInfo with one key more */
  recorded_replace(&file, B("\x8c\x06length\x94"),
                   B("\x8c\x15transform_descriptors]\x8c\x0dstream.zstd/1a\x8c\x06length\x94"), false);
  scratch_write("d/.metadata", file.at, file.n);
  scratch_refused("d", RESHARD_ERROR_UNSUPPORTED, "'stream.zstd/1'", "dcp_to_torch_save");
  recorded_free(&file);
  recorded_sharded("d");
  file = recorded_read("sharded/.metadata");
#define EIGHT "zzzzzzzz"
  recorded_replace(&file, B("\x8c\x06length\x94"), /* a name of 72 bytes, the first 63 of which are told */
                   B("\x8c\x15transform_descriptors]\x8c\x48" EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT
                     "a\x8c\x06length\x94"),
                   false);
  scratch_write("d/.metadata", file.at, file.n);
  scratch_refused("d", RESHARD_ERROR_UNSUPPORTED, "'" EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT EIGHT "zzzzzzz'",
                  "dcp_to_torch_save");
#undef EIGHT
  recorded_free(&file);
  recorded_sharded("d");
  scratch_safetensors("d/__0_0.distcp", "{}", 40000, 1);
  scratch_refused("d", RESHARD_ERROR_UNSUPPORTED, "d/__0_0.distcp'", "SerializationFormat.SAFETENSORS");
  scratch_write("d/__0_0.distcp", "", 0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "d/__0_0.distcp'", "the file has 0");
  scratch_refused("d/__1_0.distcp", RESHARD_ERROR_INVALID, "d/__1_0.distcp'", "name its directory");
  static const char old[] = "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.";
  scratch_write("old.pt", old, sizeof old - 1);
  scratch_refused("old.pt", RESHARD_ERROR_UNSUPPORTED, "before version 1.6", "torch.load(PATH");
}

/* Every length but the whole is refused, with the file's name. */
CASE(any_shorter_file_is_refused_by_name) {
  static const char *const names[][2] = {
      {"sharded/.metadata", "d/.metadata"}, {"sharded/__0_0.distcp", "d/__0_0.distcp"}, {"state.pt", "s.pt"}};
  recorded_sharded("d");
  for (int f = 0; f < 3; f++) {
    recorded file = recorded_read(names[f][0]);
    for (size_t n = 0; n < file.n; n += (f == 1 ? 37 : 5) * (size_t)test_one_in(16)) {
      scratch_write(names[f][1], file.at, n);
      scratch_refused(f < 2 ? "d" : "s.pt", RESHARD_ERROR_INVALID, names[f][1], "");
    }
    scratch_write(names[f][1], file.at, file.n);
    reshard_checkpoint_close(scratch_open(f < 2 ? "d" : "s.pt"));
    recorded_free(&file);
  }
}

/* A byte changed anywhere is read as something else or refused, in one line; never read out of bounds. */
CASE(test_changed_bytes) {
  static const char *const names[][2] = {{"sharded/.metadata", "d/.metadata"}, {"state.pt", "s.pt"}};
  recorded_sharded("d");
  int64_t opened = 0, refused = 0;
  for (int f = 0; f < 2; f++) {
    recorded file = recorded_read(names[f][0]);
    for (size_t i = 0; i < file.n; i += 3 * (size_t)test_one_in(16)) {
      char kept = file.at[i];
      file.at[i] = (char)(kept + 1 + (int)(i % 250));
      scratch_write(names[f][1], file.at, file.n);
      file.at[i] = kept;
      reshard_checkpoint checkpoint = NULL;
      reshard_status status = reshard_checkpoint_open(scratch_path(f == 0 ? "d" : "s.pt"), &checkpoint);
      refused += status != RESHARD_SUCCESS;
      opened += status == RESHARD_SUCCESS;
      assert_true(status == RESHARD_SUCCESS || strchr(reshard_last_error(), '\n') == NULL);
      reshard_checkpoint_close(checkpoint);
    }
    recorded_free(&file);
    recorded_sharded("d");
  }
  assert_true(refused > 1000 / test_one_in(16) && opened > 1000 / test_one_in(16));
}

/* A named pipe in place of .metadata is not waited for; a length above the limit is not read. */
CASE(test_metadata_file) {
  recorded_sharded("d");
  assert_int_equal(truncate(scratch_path("d/.metadata"), ((off_t)1 << 30) + 1), 0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "d/.metadata'", "1073741825 bytes, at most 1073741824 are read");
  scratch_remove("d/.metadata");
  assert_int_equal(mkfifo(scratch_path("d/.metadata"), 0600), 0);
  scratch_refused("d", RESHARD_ERROR_INVALID, "d/.metadata'", "no regular file");
}

/* Names up to their limits are read; longer ones are refused before anything is made of them. */
CASE(test_long_names) {
  static const struct {
    const char *after, *text; /* the text that becomes longer, and what stands before it */
    int64_t size;
    const char *why;
  } cases[] = {
      {"relative_path\x94", "__0_0.distcp", 256, ": a name of a file of 256 bytes, at most 255 are read"},
      {"relative_path\x94", "__0_0.distcp", 255, "No such file"},
      {"fqn\x94", "rows", 4097, ": a name of a tensor of 4097 bytes, at most 4096 are read"},
      {"fqn\x94", "rows", 4096, "tensor 'rows': storage_data does not say"},
      {"state_dict_metadata\x94}\x94(", "rows", 4097, ": a name of a tensor of 4097 bytes, at most 4096 are read"},
      {"state_dict_metadata\x94}\x94(", "rows", 4096, ": storage_data does not say"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char from[64], *to = malloc(64 + 4097);
    assert_non_null(to);
    size_t before = strlen(cases[i].after), n = (size_t)cases[i].size;
    int from_n = snprintf(from, sizeof from, "%s\x8c%c%s", cases[i].after, (int)strlen(cases[i].text), cases[i].text);
    memcpy(to, cases[i].after, before);
    to[before] = 'X';
    for (int b = 0; b < 4; b++)
      to[before + 1 + (size_t)b] = (char)(n >> 8 * b);
    memset(to + before + 5, 'x', n);
    recorded_sharded("d");
    recorded file = recorded_read("sharded/.metadata");
    recorded_replace(&file, from, (size_t)from_n, to, before + 5 + n, false);
    scratch_write("d/.metadata", file.at, file.n);
    scratch_refused("d", RESHARD_ERROR_INVALID, "", cases[i].why);
    recorded_free(&file);
    free(to);
  }
}

/* --- A pickle in an archive of torch.save ------------------------------------------------------------------------- */

typedef struct bytes {
  char *at;
  size_t n;
} bytes;

static void bytes_put(bytes *to, const void *from, size_t n) {
  memcpy(to->at + to->n, from, n);
  to->n += n;
}

static void put_number(bytes *to, int width, size_t number) {
  for (int i = 0; i < width; i++)
    to->at[to->n++] = (char)(i < 8 ? number >> 8 * i : 0);
}

/* Entries data.pkl and data/0, the latter of 4 bytes. */
static void write_archive(const char *name, const bytes *pickle) {
  const struct {
    const char *name, *at;
    size_t n;
  } entries[] = {{"a/data.pkl", pickle->at, pickle->n}, {"a/data/0", "data", 4}};
  bytes made = {malloc(pickle->n + 1024), 0};
  size_t header[2];
  assert_non_null(made.at);
  for (int i = 0; i < 2; i++) {
    header[i] = made.n;
    bytes_put(&made, B("PK\3\4"));
    put_number(&made, 22, 0);
    put_number(&made, 4, strlen(entries[i].name));
    bytes_put(&made, entries[i].name, strlen(entries[i].name));
    bytes_put(&made, entries[i].at, entries[i].n);
  }
  size_t begin = made.n;
  for (int i = 0; i < 2; i++) {
    bytes_put(&made, B("PK\1\2"));
    put_number(&made, 16, 0);
    put_number(&made, 4, entries[i].n);
    put_number(&made, 4, entries[i].n);
    put_number(&made, 14, strlen(entries[i].name));
    put_number(&made, 4, header[i]);
    bytes_put(&made, entries[i].name, strlen(entries[i].name));
  }
  size_t end = made.n;
  bytes_put(&made, B("PK\5\6"));
  put_number(&made, 6, 0);
  put_number(&made, 2, 2);
  put_number(&made, 4, end - begin);
  put_number(&made, 4, begin);
  put_number(&made, 2, 0);
  scratch_write(name, made.at, made.n);
  free(made.at);
}

/* One tensor under a long key, n times in a list: each place makes a name of it. */
static void write_shared(const char *name, size_t key, size_t n) {
  bytes pickle = {malloc(key + 2 * n + 1024), 0};
  assert_non_null(pickle.at);
  bytes_put(&pickle, B("\x80\x02}X"));
  put_number(&pickle, 4, key);
  memset(pickle.at + pickle.n, 'k', key);
  pickle.n += key;
  bytes_put(&pickle, B("](ctorch._utils\n_rebuild_tensor_v2\n"
                       "((\x8c\x07storagectorch\nFloatStorage\n\x8c\x01"
                       "0\x8c\x03"
                       "cpuK\x01tQK\x00K\x01\x85K\x01\x85\x89}tRq\x00"));
  for (size_t i = 1; i < n; i++)
    bytes_put(&pickle, B("h\x00"));
  bytes_put(&pickle, B("es."));
  write_archive(name, &pickle);
  free(pickle.at);
}

/* Names count to what a reader may take: 64 MiB, and 8 times the file. */
CASE(test_shared_tensor) {
  reshard_checkpoint_info info;
  write_shared("s.pt", 4000, 300);
  reshard_checkpoint checkpoint = scratch_open("s.pt");
  GOOD(reshard_checkpoint_get_info(checkpoint, &info));
  assert_int_equal(info.tensors, 300);
  reshard_checkpoint_close(checkpoint);
  write_shared("s.pt", 4000, 20000);
  scratch_refused("s.pt", RESHARD_ERROR_CORRUPT, "s.pt': reading it takes",
                  "at most 67463384 are taken for a file of 44315");
}

/* A chunk's archive is opened with a limit for its data.pkl, and for its directory. */
CASE(chunks_are_opened_within_a_limit_of_memory) {
  rs_file file = {.fd = -1};
  write_shared("s.pt", 4000, 1);
  GOOD(rs_file_open("file 's'", scratch_path("s.pt"), 1, &file));
  static const struct {
    int64_t limit;
    const char *why;
  } cases[] = {{100, "file 's': the zip archive at byte 0: a directory of 110 bytes, at most 100 are read"},
               {4000, "file 's': an entry of 4"},
               {5000, NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    rs_torch torch;
    reshard_status status = rs_torch_open("file 's'", &file, 0, file.size, cases[i].limit, &torch);
    rs_torch_free(&torch);
    assert_int_equal(status, cases[i].why == NULL ? RESHARD_SUCCESS : RESHARD_ERROR_INVALID);
    assert_true(cases[i].why == NULL || strstr(reshard_last_error(), cases[i].why) != NULL);
  }
  rs_file_close(&file);
}

/* All tensors are without elements: no rank has written a file, and rank 0 has them. */
CASE(checkpoints_without_files_are_those_of_one_rank) {
#define CLASS(name) "ctorch.distributed.checkpoint.metadata\n" name "\n"
#define NEW(name)   CLASS(name) ")\x81"
#define SIZE(n, m)  "ctorch\nSize\nK" n "K" m "\x86\x85R"
  char room[1024];
  bytes pickle = {room, 0};
  bytes_put(&pickle, B("\x80\x02" NEW("Metadata")));
  bytes_put(&pickle, B("}(\x8c\x13state_dict_metadata}(\x8c\x01w" NEW("TensorStorageMetadata")));
  bytes_put(&pickle, B("}(\x8c\x0aproperties" NEW("TensorProperties")));
  bytes_put(&pickle, B("(ctorch\nfloat32\nctorch.serialization\n_get_layout\n\x8c\x0dtorch.strided\x85R\x89"));
  bytes_put(&pickle, B(CLASS("_MEM_FORMAT_ENCODING") "K\x00\x85R\x89tb"));
  bytes_put(&pickle, B("\x8c\x04size" SIZE("\x00", "\x03")));
  bytes_put(&pickle, B("\x8c\x06"
                       "chunks](" NEW("ChunkStorageMetadata")));
  bytes_put(&pickle, B("}(\x8c\x07offsets" SIZE("\x00", "\x00") "\x8c\x05sizes" SIZE("\x00", "\x03") "ubeubu"));
  bytes_put(&pickle, B("\x8c\x0cstorage_data}ub."));
  reshard_checkpoint_info info;
  scratch_directory("nothing");
  scratch_write("nothing/.metadata", pickle.at, pickle.n);
  reshard_checkpoint checkpoint = scratch_open("nothing");
  GOOD(reshard_checkpoint_get_info(checkpoint, &info));
  assert_true(info.format == RESHARD_FORMAT_DISTCP && info.tensors == 1 && info.files == 0 && info.world == 1);
  check_layout(checkpoint, "w", "boxes(0:[0,0]+[0,3])");
  reshard_checkpoint_close(checkpoint);
}

RUN_CASES_ALL(recorded_there(), "no tests/files/distcp in SOURCE", scratch_setup, scratch_teardown)
