/* Workers by name, and placements as text: an owner, which may be left out, and a device. Every error tells the column
 * and what was expected there. */

#include "base/text.h"
#include "file/ground/names.h"
#include "metadata/metadata.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { QUOTED = 96 }; /* characters of a placement or a name that an error quotes */

typedef struct worker {
  int64_t rank;
  char name[];
} worker;

struct reshard_workers_s {
  RS_VEC(worker *) list;
  rs_names names, ranks; /* numbers are places in the list */
};

static bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

static int64_t find_worker(reshard_workers workers, const char *name, size_t n) {
  int64_t i = workers != NULL ? rs_names_find(&workers->names, name, n) : -1;
  return i >= 0 ? workers->list.at[i]->rank : -1;
}

reshard_status reshard_workers_create(reshard_workers *workers) {
  RS_TRY(RS_GIVEN("reshard_workers_create", workers));
  reshard_workers made;
  RS_TRY(rs_alloc_zero(&made, 1, sizeof *made));
  *workers = made;
  return RESHARD_SUCCESS;
}

reshard_status reshard_workers_add(reshard_workers workers, const char *name, int64_t rank) {
  RS_TRY(RS_GIVEN("reshard_workers_add", workers, name));
  size_t n = 0;
  while (is_name_character(name[n]))
    n++;
  char text[QUOTED], other[QUOTED];
  rs_quote(text, sizeof text, name);
  if (n == 0 || name[n] != '\0' || strcmp(name, "rank") == 0)
    return rs_error(RESHARD_ERROR_INVALID,
                    "workers: \"%s\" is no name: one has letters, digits, '_' and '-', and is not \"rank\"", text);
  if (rank < 0)
    return rs_error(RESHARD_ERROR_INVALID, "workers: \"%s\" has rank %lld, 0 is the least", text, (long long)rank);
  int64_t same = rs_names_find(&workers->ranks, &rank, sizeof rank);
  if (same >= 0)
    return rs_error(RESHARD_ERROR_INVALID, "workers: \"%s\" and \"%s\" both have rank %lld",
                    rs_quote(other, sizeof other, workers->list.at[same]->name), text, (long long)rank);
  same = rs_names_find(&workers->names, name, n);
  if (same >= 0)
    return rs_error(RESHARD_ERROR_INVALID, "workers: \"%s\" has ranks %lld and %lld", text,
                    (long long)workers->list.at[same]->rank, (long long)rank);
  int64_t all = workers->list.n + 1;
  worker *made;
  RS_TRY(rs_vec_reserve(&workers->list, all));
  RS_TRY(rs_names_reserve(&workers->names, all));
  RS_TRY(rs_names_reserve(&workers->ranks, all));
  RS_TRY(rs_alloc(&made, 1, sizeof *made + n + 1));
  made->rank = rank;
  memcpy(made->name, name, n + 1);
  workers->list.at[workers->list.n++] = made;
  RS_TRY(rs_names_put(&workers->names, made->name, n, &same));
  return rs_names_put(&workers->ranks, &made->rank, sizeof made->rank, &same);
}

void reshard_workers_free(reshard_workers workers) {
  if (workers == NULL)
    return;
  for (int64_t i = 0; i < workers->list.n; i++)
    free(workers->list.at[i]);
  rs_names_free(&workers->names);
  rs_names_free(&workers->ranks);
  free(workers->list.at);
  free(workers);
}

static const char *const type_names[] = {[RESHARD_DEVICE_CPU] = "cpu", [RESHARD_DEVICE_CUDA] = "cuda"};

typedef struct placement_scan {
  const char *text, *at;
} placement_scan;

static reshard_status error_expected(const placement_scan *s, const char *what) {
  char text[QUOTED];
  return rs_error(RESHARD_ERROR_INVALID, "placement \"%s\": column %lld: %s", rs_quote(text, sizeof text, s->text),
                  (long long)(s->at - s->text) + 1, what);
}

static bool skip_text(placement_scan *s, const char *word) {
  size_t n = strlen(word);
  if (strncmp(s->at, word, n) != 0)
    return false;
  s->at += n;
  return true;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static reshard_status read_number(placement_scan *s, int64_t most, const char *expected, const char *too_large,
                                  int64_t *number) {
  const char *first = s->at;
  int64_t n = 0;
  bool fits = true;
  for (; is_digit(*s->at); s->at++)
    fits = fits && rs_mul(n, 10, &n) && rs_add(n, *s->at - '0', &n) && n <= most;
  if (s->at == first)
    return error_expected(s, expected);
  if (!fits) {
    s->at = first;
    return error_expected(s, too_large);
  }
  *number = n;
  return RESHARD_SUCCESS;
}

/* "rank:3" */
static reshard_status read_rank(placement_scan *s, int64_t *rank) {
  RS_TRY(read_number(s, INT64_MAX, "expected a rank, a number of 0 or more", "the rank does not fit in 63 bits", rank));
  return *s->at == '/' || *s->at == '\0' ? RESHARD_SUCCESS : error_expected(s, "expected '/' and a device, or the end");
}

/* "trainer0" */
static reshard_status read_worker(placement_scan *s, reshard_workers workers, int64_t *rank) {
  const char *name = s->at;
  char text[160];
  while (is_name_character(*s->at))
    s->at++;
  size_t n = (size_t)(s->at - name);
  if (n == 4 && memcmp(name, "rank", 4) == 0)
    return error_expected(s, "expected ':' and a number after \"rank\"");
  if ((*s->at != '/' && *s->at != '\0') || n == 0)
    return error_expected(s, n == 0 ? "expected \"rank:\" and a number, or a worker's name"
                                    : "expected '/', or a letter, digit, '_' or '-' of a worker's name");
  *rank = find_worker(workers, name, n);
  if (*rank < 0) {
    s->at = name;
    rs_text_add(&(rs_text){.at = text, .size = sizeof text},
                "expected \"rank:\" and a number, or a worker's name; %s \"%.*s\"",
                workers == NULL ? "there is no table with" : "there is no", n < 64 ? (int)n : 64, name);
    return error_expected(s, text);
  }
  return RESHARD_SUCCESS;
}

static reshard_status read_device(placement_scan *s, reshard_remote_device *device) {
  int64_t index = -1;
  if (skip_text(s, "cpu"))
    device->type = RESHARD_DEVICE_CPU;
  else if (skip_text(s, "cuda"))
    device->type = RESHARD_DEVICE_CUDA;
  else
    return error_expected(s, s->at == s->text
                                 ? "expected a device, \"cpu\" or \"cuda\", \"rank:\" and a number, or a worker's name"
                                 : "expected a device, \"cpu\" or \"cuda\"");
  if (skip_text(s, ":"))
    RS_TRY(read_number(s, INT_MAX, "expected the index of a device, a number of 0 or more",
                       "the index of the device does not fit in 31 bits", &index));
  device->index = (int)index;
  return *s->at == '\0'
             ? RESHARD_SUCCESS
             : error_expected(s, index < 0 ? "expected ':' and the index of a device, or the end" : "expected the end");
}

/* A worker's name alone. "cpu" and "cuda" are devices, whatever workers there are. */
static bool is_worker(const char *text, reshard_workers workers) {
  return strcmp(text, "cpu") != 0 && strcmp(text, "cuda") != 0 && find_worker(workers, text, strlen(text)) >= 0;
}

reshard_status reshard_remote_device_parse(const char *text, reshard_workers workers, reshard_remote_device *device) {
  RS_TRY(RS_GIVEN("reshard_remote_device_parse", text, device));
  placement_scan s = {text, text};
  reshard_remote_device made = {-1, RESHARD_DEVICE_CPU, -1};
  if (skip_text(&s, "rank:"))
    RS_TRY(read_rank(&s, &made.rank));
  else if (strchr(text, '/') != NULL || is_worker(text, workers))
    RS_TRY(read_worker(&s, workers, &made.rank));
  if (s.at == text || skip_text(&s, "/"))
    RS_TRY(read_device(&s, &made)); /* an owner alone is on its CPU */
  *device = made;
  return RESHARD_SUCCESS;
}

static void add_placement(rs_text *text, const reshard_remote_device *device) {
  if (device->rank >= 0)
    rs_text_add(text, "rank:%lld/", (long long)device->rank);
  rs_text_add(text, "%s", type_names[device->type]);
  if (device->index >= 0)
    rs_text_add(text, ":%d", device->index);
}

reshard_status reshard_remote_device_print(const reshard_remote_device *device, char *text, size_t size,
                                           size_t *needed) {
  if (device == NULL || (text == NULL && size > 0))
    return rs_error_null("reshard_remote_device_print", device == NULL ? "device" : "text");
  if (device->type != RESHARD_DEVICE_CPU && device->type != RESHARD_DEVICE_CUDA)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_remote_device_print: unknown device type %d", (int)device->type);
  rs_text out = {.at = text, .size = size};
  add_placement(&out, device);
  return rs_text_finish(&out, needed);
}

const char *rs_placement_text(char buffer[RS_PLACEMENT_TEXT], const reshard_remote_device *device) {
  rs_text text = {.at = buffer, .size = RS_PLACEMENT_TEXT};
  add_placement(&text, device);
  return buffer;
}

int reshard_remote_device_equal(const reshard_remote_device *a, const reshard_remote_device *b) {
  if (a == NULL || b == NULL)
    return a == b;
  return a->rank == b->rank && a->type == b->type && a->index == b->index;
}
