#define _DEFAULT_SOURCE /* MADV_HUGEPAGE */
#include "base/base.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { HUGE = 2 << 20 };

static _Thread_local char last_error[1024];
static _Thread_local unsigned long error_count;
static _Thread_local reshard_status error_status;

reshard_status rs_error(reshard_status status, const char *format, ...) {
  char text[sizeof last_error]; /* the last error may be one of the arguments */
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  rs_error_set(text);
  return rs_error_pass(status);
}

unsigned long rs_error_count(void) { return error_count; }
reshard_status rs_error_status(void) { return error_status; }

reshard_status rs_error_pass(reshard_status status) {
  if (status != RESHARD_SUCCESS) {
    error_count++;
    error_status = status;
  }
  return status;
}

reshard_status rs_error_null(const char *call, const char *argument) {
  return rs_error(RESHARD_ERROR_INVALID, "%s: %s is NULL", call, argument);
}

reshard_status rs_given(const char *call, const char *names, const void *const *arguments, int n) {
  for (int i = 0; i < n; i++, names += strcspn(names, ",") + 2)
    if (arguments[i] == NULL)
      return rs_error(RESHARD_ERROR_INVALID, "%s: %.*s is NULL", call, (int)strcspn(names, ","), names);
  return RESHARD_SUCCESS;
}

reshard_status rs_sized(const char *type, size_t given, size_t size) {
  if (given == size)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_INVALID, "size field %zu, this library's %s has %zu", given, type, size);
}

reshard_status rs_error_differ(const char *field, int64_t rank, const char *value, int64_t other,
                               const char *other_value) {
  return rs_error(RESHARD_ERROR_MISMATCH, "%s %s on rank %lld, %s on rank %lld", field, value, (long long)rank,
                  other_value, (long long)other);
}

reshard_status rs_error_memory(size_t bytes) {
  return rs_error(RESHARD_ERROR_OUT_OF_MEMORY, "out of memory: %zu bytes refused", bytes);
}

void rs_error_set(const char *text) {
  if (text != last_error)
    snprintf(last_error, sizeof last_error, "%s", text);
}

void rs_error_save(rs_saved_error *saved, reshard_status status) {
  if (status == RESHARD_SUCCESS || saved->status != RESHARD_SUCCESS)
    return;
  saved->status = status;
  snprintf(saved->text, sizeof saved->text, "%s", last_error);
}

reshard_status rs_error_restore(const rs_saved_error *saved) {
  if (saved->status != RESHARD_SUCCESS)
    rs_error_set(saved->text);
  return saved->status;
}

reshard_status reshard_error_set(reshard_status status, const char *text) {
  RS_TRY(RS_GIVEN("reshard_error_set", text));
  if ((int)status <= RESHARD_SUCCESS || status > RESHARD_ERROR_CORRUPT)
    return rs_error(RESHARD_ERROR_INVALID, "reshard_error_set: status %d is no error", (int)status);
  (void)rs_error(status, "%s", text);
  for (char *at = last_error; *at != '\0'; at++)
    *at = *at == '\n' ? ' ' : *at;
  return status;
}

const char *reshard_last_error(void) { return last_error; }

const char *reshard_version(void) { return RESHARD_VERSION_STRING; }

const char *reshard_status_string(reshard_status status) {
  switch (status) {
  case RESHARD_SUCCESS: return "RESHARD_SUCCESS";
  case RESHARD_ERROR_INVALID: return "RESHARD_ERROR_INVALID";
  case RESHARD_ERROR_UNSUPPORTED: return "RESHARD_ERROR_UNSUPPORTED";
  case RESHARD_ERROR_OUT_OF_MEMORY: return "RESHARD_ERROR_OUT_OF_MEMORY";
  case RESHARD_ERROR_SYSTEM: return "RESHARD_ERROR_SYSTEM";
  case RESHARD_ERROR_MISMATCH: return "RESHARD_ERROR_MISMATCH";
  case RESHARD_ERROR_PEER: return "RESHARD_ERROR_PEER";
  case RESHARD_ERROR_BUSY: return "RESHARD_ERROR_BUSY";
  case RESHARD_ERROR_TIMEOUT: return "RESHARD_ERROR_TIMEOUT";
  case RESHARD_ERROR_INTERNAL: return "RESHARD_ERROR_INTERNAL";
  case RESHARD_ERROR_CANCELLED: return "RESHARD_ERROR_CANCELLED";
  case RESHARD_ERROR_CORRUPT: return "RESHARD_ERROR_CORRUPT";
  }
  return "unknown status";
}

/* Pointers to pointers of any type come in as void *: they are written through memcpy, which may alias. */
static reshard_status store_pointer(void *out, void *memory, size_t bytes) {
  memcpy(out, &memory, sizeof memory);
  return memory != NULL || bytes == 0 ? RESHARD_SUCCESS : rs_error_memory(bytes);
}

static bool array_bytes(int64_t n, size_t element, size_t *bytes) {
  return n >= 0 && !__builtin_mul_overflow((size_t)n, element, bytes) && *bytes <= PTRDIFF_MAX;
}

/* Large memory, in huge pages where the system has them: lists of a million are read here and there, and a small page
 * that is not known to the processor takes longer than the line. Freed by free. */
static void *alloc_huge(size_t bytes) {
  void *at = NULL;
  if (posix_memalign(&at, HUGE, bytes) != 0)
    return NULL;
#if defined(MADV_HUGEPAGE)
  (void)madvise(at, bytes / HUGE * HUGE, MADV_HUGEPAGE);
#endif
  return at;
}

reshard_status rs_alloc(void *out, int64_t n, size_t element) {
  size_t bytes;
  if (!array_bytes(n, element, &bytes))
    return store_pointer(out, NULL, SIZE_MAX);
  return store_pointer(out, bytes == 0 ? NULL : bytes >= HUGE ? alloc_huge(bytes) : malloc(bytes), bytes);
}

reshard_status rs_alloc_zero(void *out, int64_t n, size_t element) {
  size_t bytes;
  if (!array_bytes(n, element, &bytes))
    return store_pointer(out, NULL, SIZE_MAX);
  return store_pointer(out, bytes == 0 ? NULL : calloc(1, bytes), bytes);
}

reshard_status rs_alloc_copy(void *out, const void *from, int64_t n, size_t element) {
  RS_TRY(rs_alloc(out, n, element));
  void *memory;
  memcpy(&memory, out, sizeof memory);
  if (memory != NULL)
    memcpy(memory, from, (size_t)n * element);
  return RESHARD_SUCCESS;
}

reshard_status rs_grow(void *at, int64_t *cap, int64_t need, size_t element) {
  if (need <= *cap)
    return RESHARD_SUCCESS;
  int64_t want = rs_max(need, *cap > INT64_MAX / 2 ? need : *cap * 2);
  want = rs_max(want, 8);
  size_t bytes;
  if (!array_bytes(want, element, &bytes))
    return rs_error_memory(SIZE_MAX);
  void *memory;
  memcpy(&memory, at, sizeof memory);
  memory = realloc(memory, bytes);
  if (memory == NULL)
    return rs_error_memory(bytes);
  memcpy(at, &memory, sizeof memory);
  *cap = want;
  return RESHARD_SUCCESS;
}

reshard_status rs_append(void *at, int64_t *n, int64_t *cap, const void *from, int64_t count, size_t element) {
  RS_TRY(rs_grow(at, cap, *n + count, element));
  char *memory;
  memcpy(&memory, at, sizeof memory);
  if (count > 0)
    memcpy(memory + (size_t)*n * element, from, (size_t)count * element);
  *n += count;
  return RESHARD_SUCCESS;
}

/* The room behind a text, its NUL's byte included; more than n where the text grows. */
static size_t text_room(rs_text *text, size_t n) {
  int64_t size = (int64_t)text->size;
  if (text->grows && text->size - text->length <= n) {
    text->status = rs_grow(&text->at, &size, (int64_t)(text->length + n + 1), 1);
    text->size = (size_t)size;
  }
  return text->length < text->size ? text->size - text->length : 0;
}

void rs_text_bytes(rs_text *text, const char *from, size_t n) {
  size_t room = text->status == RESHARD_SUCCESS ? text_room(text, n) : 0;
  if (text->status != RESHARD_SUCCESS)
    return;
  if (room > 0 && n > 0) {
    size_t fits = n < room ? n : room - 1;
    memcpy(text->at + text->length, from, fits);
    text->at[text->length + fits] = '\0';
  }
  text->length += n;
}

void rs_text_string(rs_text *text, const char *from) { rs_text_bytes(text, from, strlen(from)); }

void rs_text_number(rs_text *text, int64_t number) {
  char digits[24];
  size_t at = sizeof digits;
  uint64_t rest = number < 0 ? -(uint64_t)number : (uint64_t)number;
  do
    digits[--at] = (char)('0' + rest % 10);
  while ((rest /= 10) > 0);
  if (number < 0)
    digits[--at] = '-';
  rs_text_bytes(text, digits + at, sizeof digits - at);
}

void rs_text_numbers(rs_text *text, int64_t n, const int64_t *numbers, const char *separator) {
  for (int64_t i = 0; i < n; i++) {
    if (i > 0)
      rs_text_string(text, separator);
    rs_text_number(text, numbers[i]);
  }
}

void rs_text_list(rs_text *text, int64_t n, const int64_t *numbers) {
  rs_text_string(text, "[");
  rs_text_numbers(text, n, numbers, ",");
  rs_text_string(text, "]");
}

void rs_text_vadd(rs_text *text, const char *format, va_list arguments) {
  for (size_t wanted = 0, room = 0; text->status == RESHARD_SUCCESS;) {
    va_list again;
    room = text_room(text, wanted);
    va_copy(again, arguments);
    int written = text->status == RESHARD_SUCCESS
                      ? vsnprintf(room > 0 ? text->at + text->length : NULL, room, format, again)
                      : -1;
    va_end(again);
    wanted = written > 0 ? (size_t)written : 0;
    if (!text->grows || wanted < room) {
      text->length += wanted;
      return;
    }
  }
}

void rs_text_add(rs_text *text, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  rs_text_vadd(text, format, arguments);
  va_end(arguments);
}

reshard_status rs_text_finish(rs_text *text, size_t *needed) {
  if (needed != NULL)
    *needed = text->length + 1;
  if (text->length < text->size)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_INVALID, "the text needs %zu bytes, the buffer has %zu", text->length + 1, text->size);
}

static inline uint64_t add_word(uint64_t h, const void *at, size_t bytes) {
  uint64_t word = 0;
  memcpy(&word, at, bytes);
  h = (h ^ word) * 0x100000001b3u;
  return h ^ h >> 29;
}

/* FNV-1a over 8 bytes at a time with a final avalanche (splitmix64's): quick, and equal on all ranks. The seed is mixed
 * before the first word meets it: seed 1 with word 0 is not seed 0 with word 1. */
uint64_t rs_hash(uint64_t seed, const void *bytes, size_t size) {
  const unsigned char *at = bytes;
  uint64_t h = (seed ^ 0xcbf29ce484222325u) * 0xd6e8feb86659fd93u;
  h ^= (h >> 32) ^ (size * 0x9e3779b97f4a7c15u);
  for (; size >= 8; at += 8, size -= 8) /* a copy of a length that is known takes no call */
    h = add_word(h, at, 8);
  if (size > 0)
    h = add_word(h, at, size);
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}

uint64_t rs_system_hash(const char *kind) {
  char boot[64] = "", path[64];
  struct stat namespace;
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  ssize_t n = fd >= 0 ? read(fd, boot, sizeof boot - 1) : 0;
  if (fd >= 0)
    close(fd);
  snprintf(path, sizeof path, "/proc/self/ns/%s", kind);
  return n > 0 && stat(path, &namespace) == 0 ? rs_hash((uint64_t) namespace.st_ino, boot, strlen(boot)) : 0;
}

uint64_t rs_process_hash(void) {
  struct {
    char host[256];
    pid_t pid;
  } name;
  memset(&name, 0, sizeof name);
  (void)gethostname(name.host, sizeof name.host - 1);
  name.pid = getpid();
  return rs_hash(1, &name, sizeof name);
}

const char *rs_shape_text(char buffer[RS_SHAPE_TEXT], int ndim, const int64_t *shape) {
  rs_text text = {.at = buffer, .size = RS_SHAPE_TEXT};
  rs_text_string(&text, ndim == 0 ? "scalar" : "");
  rs_text_numbers(&text, ndim, shape, "x");
  return buffer;
}

const char *rs_list_text(char *buffer, size_t size, int64_t n, const int64_t *numbers) {
  rs_text text = {.at = buffer, .size = size};
  rs_text_list(&text, n, numbers);
  return buffer;
}

const char *rs_ranges_text(char *buffer, size_t size, int64_t n, const int64_t *numbers) {
  rs_text text = {.at = buffer, .size = size};
  rs_text_add(&text, "%s", "");
  for (int64_t i = 0, end; i < n && text.length < size; i = end) {
    for (end = i + 1; end < n && numbers[end] == numbers[end - 1] + 1; end++)
      ;
    rs_text_add(&text, i > 0 ? ",%lld" : "%lld", (long long)numbers[i]);
    if (end - i > 1)
      rs_text_add(&text, "-%lld", (long long)numbers[end - 1]);
  }
  if (text.length >= size && size >= 4)
    memcpy(buffer + size - 4, "...", 4);
  return buffer;
}

const char *rs_box_text(char buffer[RS_BOX_TEXT], int ndim, const int64_t *offset, const int64_t *extent) {
  rs_text text = {.at = buffer, .size = RS_BOX_TEXT};
  rs_text_string(&text, ndim == 0 ? "[]" : "");
  for (int d = 0; d < ndim; d++)
    rs_text_add(&text, d > 0 ? "x[%lld,%lld)" : "[%lld,%lld)", (long long)offset[d],
                (long long)(offset[d] + extent[d]));
  return buffer;
}

int64_t rs_now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
