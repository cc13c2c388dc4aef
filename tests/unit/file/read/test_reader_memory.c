/* Memory that readers take of the worst inputs of each format: 64 MiB and 8 times the file, or an error with both
 * numbers. Long headers that are right are read within it. */
#include "file/ground/file.h"
#include "state/checkpoint.h"
#include "support/fixtures/expect.h"
#include "support/fixtures/scratch.h"

#include "support/fixtures/case.h"
#include <reshard/file.h>

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MEASURED = 0, SIZE = 1 << 20, EACH = 3 }; /* one in so many texts */
#else
enum { MEASURED = 1, SIZE = 4 << 20, EACH = 1 };
#endif

/* Largest resident size of this process since the last call; 0: it cannot be read. */
static int64_t peak_bytes(void) {
  char line[256];
  long long peak = 0;
  FILE *status = fopen("/proc/self/status", "r"), *reset;
  while (status != NULL && fgets(line, sizeof line, status) != NULL)
    if (strncmp(line, "VmHWM:", 6) == 0)
      peak = strtoll(line + 6, NULL, 10) * 1024;
  if (status != NULL)
    fclose(status);
  reset = fopen("/proc/self/clear_refs", "w");
  if (reset == NULL)
    return 0;
  fputs("5", reset);
  return fclose(reset) == 0 ? peak : 0;
}

typedef struct text {
  char *at;
  size_t n;
} text;

static void add(text *to, const char *from, size_t n) {
  memcpy(to->at + to->n, from, n);
  to->n += n;
}

/* begin, `again` as often as it fits, end. %: a number in place of it. */
static text repeated(const char *begin, const char *again, const char *end, size_t size) {
  text made = {malloc(size + 1024), 0};
  const char *number = strchr(again, '%');
  char digits[24];
  assert_non_null(made.at);
  add(&made, begin, strlen(begin));
  for (int64_t i = 0; made.n + strlen(again) + 32 < size; i++) {
    if (i > 0 && again[0] != ']' && again[0] != '}' && again[0] != '[')
      add(&made, ",", begin[0] == '{' || begin[0] == '[');
    add(&made, again, number != NULL ? (size_t)(number - again) : strlen(again));
    if (number != NULL) {
      add(&made, digits, (size_t)snprintf(digits, sizeof digits, "%lld", (long long)i));
      add(&made, number + 1, strlen(number + 1));
    }
  }
  add(&made, end, strlen(end));
  return made;
}

static void write_headed(const char *name, const text *header, const char *data, size_t n) {
  text whole = {malloc(header->n + n + 8), 0};
  assert_non_null(whole.at);
  for (int i = 0; i < 8; i++)
    whole.at[whole.n++] = (char)(header->n >> 8 * i);
  add(&whole, header->at, header->n);
  add(&whole, data, n);
  scratch_write(name, whole.at, whole.n);
  free(whole.at);
}

/* Opens a path as a checkpoint or a model, and compares what that took. */
static void check_memory(const char *what, const char *path, int64_t file_bytes, bool model, bool good) {
  reshard_checkpoint checkpoint = NULL;
  reshard_model made = NULL;
  malloc_trim(0); /* else what was freed hides what is taken next */
  peak_bytes();
  int64_t before = peak_bytes();
  reshard_status status =
      model ? reshard_model_load(scratch_path(path), &made) : reshard_checkpoint_open(scratch_path(path), &checkpoint);
  int64_t taken = peak_bytes() - before;
  if (MEASURED && before > 0 && taken > rs_budget_limit(file_bytes))
    fail_msg("%s: %lld bytes were taken of a file of %lld, %lld are the limit", what, (long long)taken,
             (long long)file_bytes, (long long)rs_budget_limit(file_bytes));
  if ((status == RESHARD_SUCCESS) != good)
    fail_msg("%s: %s: %s", what, reshard_status_string(status), reshard_last_error());
  if (status == RESHARD_ERROR_CORRUPT)
    assert_non_null(strstr(reshard_last_error(), "are taken for a file of"));
  reshard_checkpoint_close(checkpoint);
  reshard_model_free(made);
}

static const struct {
  const char *what, *begin, *again, *end;
} json[] = {{"lists", "{\"a\":[", "[]", "]}"},
            {"objects", "{\"a\":[", "{}", "]}"},
            {"members", "{", "\"%\":{}", "}"},
            {"keys", "{\"a\":{", "\"%\":0", "}}"},
            {"numbers", "{\"a\":[", "1", "]}"},
            {"strings", "{\"a\":[", "\"\"", "]}"},
            {"nested", "{\"a\":", "[", "}"},
            {"one key each", "{\"a\":[", "{\"b\":0}", "]}"},
            {"a list", "[", "{}", "]"},
            {"no end", "{\"a\":[", "{\"b\":", ""},
            {"tensors", "{", "\"%\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,0]}", "}"}};

CASE(json_beyond_its_share_of_memory_is_refused) {
  scratch_directory("d");
  for (size_t i = 0; i < sizeof json / sizeof *json; i += EACH) {
    text t = repeated(json[i].begin, json[i].again, json[i].end, SIZE);
    char what[64];
    snprintf(what, sizeof what, "header, %s", json[i].what);
    write_headed("h.safetensors", &t, "", 0);
    check_memory(what, "h.safetensors", (int64_t)t.n + 8, false, false);
    snprintf(what, sizeof what, "model, %s", json[i].what);
    scratch_write("m.json", t.at, t.n);
    check_memory(what, "m.json", (int64_t)t.n, true, false);
    snprintf(what, sizeof what, "index, %s", json[i].what);
    scratch_write("d/model.safetensors.index.json", t.at, t.n);
    check_memory(what, "d", (int64_t)t.n, false, false);
    free(t.at);
  }
}

/* A header of one tensor, with texts in its metadata. */
static void write_metadata(const text *sharding, const text *set) {
  text header = {malloc(2 * (sharding->n + set->n) + 256), 0};
  const text *texts[] = {sharding, set};
  static const char *const keys[] = {"\"__metadata__\":{\"DCP_SHARDING_INFO\":\"", "\",\"reshard\":\""};
  static const char tensor[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},";
  assert_non_null(header.at);
  add(&header, tensor, sizeof tensor - 1);
  for (int i = 0; i < 2; i++) {
    if (texts[i]->n == 0)
      continue;
    add(&header, keys[i], strlen(keys[i]));
    for (size_t at = 0; at < texts[i]->n; at++) {
      if (texts[i]->at[at] == '"')
        add(&header, "\\", 1);
      add(&header, texts[i]->at + at, 1);
    }
  }
  add(&header, "\"}}", 3);
  write_headed("h.safetensors", &header, "x", 1);
  free(header.at);
}

static int64_t header_bytes(void) {
  size_t size;
  free(scratch_read("h.safetensors", &size));
  return (int64_t)size;
}

/* Texts of shards: where they begin, and what a set of ours says of itself. */
CASE(texts_of_shards_stay_in_their_share_of_memory) {
  static char saved[] = "{\"a\":{\"saved_offsets\":[0]}}";
  static const char *const layouts[] = {"rank(0)", "mesh(1048576;R)"};
  const text none = {NULL, 0}, one = {saved, sizeof saved - 1};
  char what[64];
  for (size_t i = 0; i < sizeof json / sizeof *json; i += EACH) {
    if (strchr(json[i].again, '%') == NULL) /* others are refused by their first brackets, as above */
      continue;
    text t = repeated(json[i].begin, json[i].again, json[i].end, SIZE);
    write_metadata(&t, &none);
    snprintf(what, sizeof what, "DCP_SHARDING_INFO, %s", json[i].what);
    check_memory(what, "h.safetensors", header_bytes(), false, false);
    write_metadata(&one, &t);
    snprintf(what, sizeof what, "reshard, %s", json[i].what);
    check_memory(what, "h.safetensors", header_bytes(), false, false);
    free(t.at);
  }
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) { /* shapes differ, so that no two layouts are one */
    text t = {malloc(8 * SIZE), 0};
    int64_t n = 0;
    assert_non_null(t.at);
    t.n = (size_t)sprintf(t.at, "{\"version\":1,\"world\":1048576,\"files\":[\"h.safetensors\"],\"shapes\":{\"a\":[1]");
    for (; t.n < SIZE / 2; n++)
      t.n += (size_t)sprintf(t.at + t.n, ",\"%lld\":[%lld]", (long long)n, (long long)n + 2);
    t.n += (size_t)sprintf(t.at + t.n, "},\"layout\":{\"a\":\"rank(0)\"");
    for (int64_t k = 0; k < n; k++)
      t.n += (size_t)sprintf(t.at + t.n, ",\"%lld\":\"%s\"", (long long)k, layouts[i]);
    t.n += (size_t)sprintf(t.at + t.n, "}}");
    assert_true(t.n < 8 * SIZE);
    write_metadata(&one, &t);
    snprintf(what, sizeof what, "reshard, layouts %s", layouts[i]);
    check_memory(what, "h.safetensors", header_bytes(), false, false);
    free(t.at);
  }
}

/* A header of n tensors of a byte. */
static text long_header(int64_t n) {
  text header = {malloc((size_t)n * 96 + 64), 0};
  assert_non_null(header.at);
  add(&header, "{", 1);
  for (int64_t i = 0; i < n; i++)
    header.n += (size_t)sprintf(header.at + header.n,
                                "%s\"layers.%lld.w\": {\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%lld,%lld]}",
                                i > 0 ? ", " : "", (long long)i, (long long)i, (long long)i + 1);
  add(&header, " } ", 3);
  return header;
}

/* A right file has many tensors: parsed at once it would take 16 times its size. */
CASE(test_long_header) {
  static const char *const ends[] = {",} ", " }x", "   ", "]  "};
  enum { MANY = 160000, FEW = 20000 };
  char *data = calloc(MANY, 1);
  assert_non_null(data);
  text header = long_header(MANY);
  write_headed("h.safetensors", &header, data, MANY);
  check_memory("160,000 tensors", "h.safetensors", (int64_t)header.n + 8 + MANY, false, true);
  free(header.at);
  header = long_header(FEW); /* names twice, in parts that are parsed apart; texts that end otherwise than they begin */
  memcpy(strstr(header.at, "layers.19999.w"), "layers.10000.w", 14);
  write_headed("h.safetensors", &header, data, FEW);
  scratch_refused("h.safetensors", RESHARD_ERROR_INVALID, "h.safetensors'", "layers.10000.w");
  for (int i = 0; i < 4; i++) {
    memcpy(header.at + header.n - 3, ends[i], 3);
    write_headed("h.safetensors", &header, data, FEW);
    scratch_refused("h.safetensors", RESHARD_ERROR_INVALID, "h.safetensors'", ": line 1 column");
  }
  free(header.at);
  free(data);
}

static void add_little(text *to, int bytes, int64_t number) {
  for (int i = 0; i < bytes; i++)
    to->at[to->n++] = (char)(number >> 8 * i);
}

/* A file as of torch.save: data.pkl, and a directory of as many entries beside as fit 16 bits. */
static size_t write_archive(const char *name, const text *pickle) {
  enum { ENTRIES = 65000 };
  text t = {calloc(pickle->n + ENTRIES * 64 + 1024, 1), 0};
  assert_non_null(t.at);
  add(&t, "PK\3\4", 4);
  t.n += 14;
  add_little(&t, 4, (int64_t)pickle->n);
  add_little(&t, 4, (int64_t)pickle->n);
  add_little(&t, 4, 10);
  add(&t, "a/data.pkl", 10);
  add(&t, pickle->at, pickle->n);
  int64_t directory = (int64_t)t.n;
  for (int64_t i = 0; i < ENTRIES; i++) {
    int64_t bytes = i == 0 ? (int64_t)pickle->n : 0;
    char entry[16];
    int n = snprintf(entry, sizeof entry, i == 0 ? "a/data.pkl" : "a/%lld", (long long)i);
    add(&t, "PK\1\2", 4);
    t.n += 16;
    add_little(&t, 4, bytes);
    add_little(&t, 4, bytes);
    add_little(&t, 4, n);
    t.n += 14;
    add(&t, entry, (size_t)n);
  }
  int64_t size = (int64_t)t.n - directory;
  add(&t, "PK\5\6", 4);
  t.n += 4;
  add_little(&t, 2, ENTRIES);
  add_little(&t, 2, ENTRIES);
  add_little(&t, 4, size);
  add_little(&t, 4, directory);
  t.n += 2;
  scratch_write(name, t.at, t.n);
  size_t written = t.n;
  free(t.at);
  return written;
}

/* Pickles, also of an archive with a long directory, and headers of numpy. */
CASE(pickles_and_headers_stay_in_their_share_of_memory) {
  static const char *const worst[] = {"]", "}", "N", "(", ")\x85", "cm\nn\n", "]a", "}Q", "X\1\0\0\0a"};
  scratch_directory("p");
  for (size_t i = 0; i < sizeof worst / sizeof *worst; i += EACH) {
    text t = {malloc(SIZE), 0};
    size_t n = i + 1 < sizeof worst / sizeof *worst ? strlen(worst[i]) : 6;
    assert_non_null(t.at);
    add(&t, "\x80\x02]", 3);
    while (t.n + n < SIZE)
      add(&t, worst[i], n);
    scratch_write("p/.metadata", t.at, t.n);
    check_memory(".metadata", "p", (int64_t)t.n, false, false);
    size_t archive = write_archive("a.pt", &t);
    check_memory("archive", "a.pt", (int64_t)archive, false, false);
    assert_null(strstr(reshard_last_error(), "zip archive"));
    free(t.at);
  }
  text npy = repeated("\x93NUMPY\x02\x00\xf0\xff\x3f\x00{'descr': '<f4', 'shape': (", "1, ", ")}", SIZE);
  scratch_write("n.npy", npy.at, npy.n);
  check_memory("npy", "n.npy", (int64_t)npy.n, false, false);
  free(npy.at);
}

/* Tensors of as many shapes, of which each has a layout: in the store, which headers are made into. */
CASE(store_made_of_a_header_stays_in_its_share_of_memory) {
  text t = {malloc(2 * SIZE + 256), 1};
  assert_non_null(t.at);
  t.at[0] = '{';
  for (int64_t i = 1; t.n < 2 * SIZE; i++)
    t.n += (size_t)sprintf(t.at + t.n, "%s\"%llx\":{\"dtype\":\"U8\",\"shape\":[%lld,0],\"data_offsets\":[0,0]}",
                           i > 1 ? "," : "", (long long)i, (long long)i);
  t.at[t.n++] = '}';
  write_headed("h.safetensors", &t, "", 0);
  check_memory("shapes", "h.safetensors", (int64_t)t.n + 8, false, SIZE < 4 << 20);
  free(t.at);
}

/* The leaves of a state dict beside its tensors. */
CASE(leaves_of_state_json_stay_in_their_share_of_memory) {
  static const char *const again[] = {"\"%\":0", "\"%\":{\"bytes\":\"\"}", "\"%\":{\"float\":\"inf\"}"};
  scratch_directory("l");
  for (size_t i = 0; i < sizeof again / sizeof *again; i++) {
    rs_stored_leaves leaves = {0};
    text t = repeated("{\"version\":1,\"leaves\":{", again[i], "}}", SIZE);
    scratch_write("l/state.json", t.at, t.n);
    malloc_trim(0);
    peak_bytes();
    int64_t before = peak_bytes();
    reshard_status status = rs_state_json_read(scratch_path("l"), false, &leaves);
    int64_t taken = peak_bytes() - before;
    if (MEASURED && before > 0 && taken > rs_budget_limit((int64_t)t.n))
      fail_msg("%s: %lld bytes were taken of %zu", again[i], (long long)taken, t.n);
    if (status != RESHARD_SUCCESS &&
        (status != RESHARD_ERROR_CORRUPT || strstr(reshard_last_error(), "are taken for a file of") == NULL))
      fail_msg("%s: %s", again[i], reshard_last_error());
    assert_true(i > 0 || !MEASURED || status == RESHARD_ERROR_CORRUPT);
    rs_stored_leaves_free(&leaves);
    free(t.at);
  }
}

RUN_JSON_CASES(scratch_setup, scratch_teardown)
