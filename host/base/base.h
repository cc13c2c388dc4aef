/* Ground of every room: errors with the numbers in them, checked products, growable arrays, text. */
#ifndef RS_BASE_H
#define RS_BASE_H

#include <reshard/status.h>

#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

/* Marks what libreshard_mpi uses of this library: exported in the version RESHARD_PRIVATE, for a library of the same
 * build alone. */
#define RS_PRIVATE_API RESHARD_API
/* The build of this library: "0.2.0, build 3f2a91c04d7e". */
RS_PRIVATE_API const char *rs_build(void);

/* Records the text as this thread's last error and returns status. Call it where an error is first decided; pass the
 * status on from there. The last error may be among the arguments: words are put before or behind it. */
RS_PRIVATE_API reshard_status rs_error(reshard_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* RESHARD_ERROR_INVALID of an argument: "reshard_plan_create: layout is NULL". */
RS_PRIVATE_API reshard_status rs_error_null(const char *call, const char *argument);
/* That error where one of the arguments is NULL, which it names: RS_TRY(RS_GIVEN("reshard_plan_create", layout, plan)).
 */
#define RS_GIVEN(call, ...) \
  rs_given((call), #__VA_ARGS__, (const void *const[]){__VA_ARGS__}, \
           (int)(sizeof((const void *const[]){__VA_ARGS__}) / sizeof(void *)))
reshard_status rs_given(const char *call, const char *names, const void *const *arguments, int n);
/* RESHARD_ERROR_INVALID where the size field of a caller's struct is not this library's. */
#define RS_SIZED(type, at) rs_sized(#type, (at)->size, sizeof(type))
reshard_status rs_sized(const char *type, size_t given, size_t size);
/* RESHARD_ERROR_MISMATCH of two ranks that have unequal values of a field: "shape [8,6] on rank 0, [8,7] on rank 2". */
reshard_status rs_error_differ(const char *field, int64_t rank, const char *value, int64_t other,
                               const char *other_value);
/* RESHARD_ERROR_OUT_OF_MEMORY with the size in it. */
reshard_status rs_error_memory(size_t bytes);
/* Replaces this thread's last error by a text that comes from elsewhere (another thread, another rank). */
void rs_error_set(const char *text);
/* The first error of several steps, saved over those that follow. Its status is RESHARD_SUCCESS at first. */
typedef struct rs_saved_error {
  reshard_status status;
  char text[1024];
} rs_saved_error;
/* Saves this thread's last error, unless the status is RESHARD_SUCCESS or an error is saved already. */
void rs_error_save(rs_saved_error *saved, reshard_status status);
/* Makes what is saved the last error again, and returns its status. */
reshard_status rs_error_restore(const rs_saved_error *saved);
/* Errors of this thread so far, and the status of the last one. */
unsigned long rs_error_count(void);
reshard_status rs_error_status(void);
/* Counts a status that comes from another thread, with its text; returns it. RESHARD_SUCCESS counts as none. */
reshard_status rs_error_pass(reshard_status status);

#define RS_TRY(call) \
  do { \
    reshard_status rs_try_status_ = (call); \
    if (rs_try_status_ != RESHARD_SUCCESS) \
      return rs_try_status_; \
  } while (0)
#define RS_TRY_GOTO(status, call, label) \
  do { \
    (status) = (call); \
    if ((status) != RESHARD_SUCCESS) \
      goto label; \
  } while (0)

/* Undoes what was done before where a call fails, and returns the error. */
#define RS_TRY_OR(call, undo) \
  do { \
    reshard_status rs_try_status_ = (call); \
    if (rs_try_status_ != RESHARD_SUCCESS) { \
      undo; \
      return rs_try_status_; \
    } \
  } while (0)

/* The next call, where all before have succeeded: for what is cleaned up after the last one. */
#define RS_THEN(status, call) \
  do { \
    if ((status) == RESHARD_SUCCESS) \
      (status) = (call); \
  } while (0)

/* *out = a * b, or a + b, for non-negative numbers; false on overflow. */
static inline bool rs_mul(int64_t a, int64_t b, int64_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline bool rs_add(int64_t a, int64_t b, int64_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline int64_t rs_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t rs_max(int64_t a, int64_t b) { return a > b ? a : b; }
/* ceil(a / b) for a >= 0, b > 0, without overflow. */
static inline int64_t rs_ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* Sets low, and high, to the first index i of [low, high) for which `before` is false: it is true of all below. */
#define RS_LOWER_BOUND(low, high, before) \
  while ((low) < (high)) { \
    int64_t i = (low) + ((high) - (low)) / 2; \
    if (before) \
      (low) = i + 1; \
    else \
      (high) = i; \
  }

/* Adds a reference to an object, which may be NULL; its value is the object. And: drops one; true for the last. */
#define RS_RETAIN(object) \
  ((object) != NULL ? (atomic_fetch_add_explicit(&(object)->references, 1, memory_order_relaxed), (object)) : NULL)
#define RS_DROP(object) \
  ((object) != NULL && atomic_fetch_sub_explicit(&(object)->references, 1, memory_order_acq_rel) == 1)

/* malloc and calloc of n elements that check the product and say what failed. *out is NULL for n == 0 or on error.
 * rs_alloc puts 2 MiB and more into huge pages, where the system has them. */
RS_PRIVATE_API reshard_status rs_alloc(void *out, int64_t n, size_t element);
RS_PRIVATE_API reshard_status rs_alloc_zero(void *out, int64_t n, size_t element);
/* A copy of n elements of `from`. */
reshard_status rs_alloc_copy(void *out, const void *from, int64_t n, size_t element);

/* Growable array: RS_VEC(int64_t) v = {0}; RS_TRY(rs_vec_push(&v, x)); ... free(v.at); */
#define RS_VEC(type) \
  struct { \
    type *at; \
    int64_t n, cap; \
  }
#define rs_vec_reserve(v, need) \
  ((need) <= (v)->cap ? RESHARD_SUCCESS : rs_grow(&(v)->at, &(v)->cap, (need), sizeof *(v)->at))
/* Appends an element, whose value is found once there is room for it; and n elements that lie elsewhere. */
#define rs_vec_push(v, ...) \
  (rs_vec_reserve((v), (v)->n + 1) == RESHARD_SUCCESS ? ((v)->at[(v)->n++] = __VA_ARGS__, RESHARD_SUCCESS) \
                                                      : RESHARD_ERROR_OUT_OF_MEMORY)
#define rs_vec_append(v, from, count) rs_append(&(v)->at, &(v)->n, &(v)->cap, (from), (int64_t)(count), sizeof *(v)->at)
reshard_status rs_append(void *at, int64_t *n, int64_t *cap, const void *from, int64_t count, size_t element);
/* At least doubles, so that appending is linear. The array is as it was on error. */
reshard_status rs_grow(void *at, int64_t *cap, int64_t need, size_t element);

/* Text that is built piece by piece, NUL-terminated after each: in a caller's buffer, where what does not fit is
 * counted only, or in memory that grows. Additions after one that failed do nothing, so that a text is checked once. */
typedef struct rs_text {
  char *at;              /* owned by the caller; freed by it where the text grows */
  size_t size;           /* of the buffer */
  size_t length;         /* wanted so far, without the NUL */
  bool grows;            /* at may be NULL before the first addition */
  reshard_status status; /* RESHARD_ERROR_OUT_OF_MEMORY when an addition failed */
} rs_text;
void rs_text_add(rs_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void rs_text_vadd(rs_text *text, const char *format, va_list arguments) __attribute__((format(printf, 2, 0)));
/* Additions that format nothing, for long texts. */
void rs_text_bytes(rs_text *text, const char *from, size_t n);
void rs_text_string(rs_text *text, const char *from);
void rs_text_number(rs_text *text, int64_t number);
/* "1,2,3", with that separator; "[1,2,3]". */
void rs_text_numbers(rs_text *text, int64_t n, const int64_t *numbers, const char *separator);
void rs_text_list(rs_text *text, int64_t n, const int64_t *numbers);
/* Ends a public print call: writes *needed (may be NULL), error when the buffer was too small. */
reshard_status rs_text_finish(rs_text *text, size_t *needed);

/* Of a clock that only goes forward: differences count. */
RS_PRIVATE_API int64_t rs_now_ns(void);
/* True when so many milliseconds have passed since then; never for 0. */
static inline bool rs_late(int64_t since_ns, int64_t limit_ms) {
  return limit_ms > 0 && (rs_now_ns() - since_ns) / 1000000 >= limit_ms;
}
static inline double rs_seconds(void) { return (double)rs_now_ns() * 1e-9; }

/* 64-bit hash of bytes, the same on all machines of one byte order; chained through seed. */
RS_PRIVATE_API uint64_t rs_hash(uint64_t seed, const void *bytes, size_t size);
/* Hash of the running system and of this process's namespace of a kind ("pid", "net"): processes of which it is the
 * same see each other's numbers, or sockets. 0: the system does not say. */
RS_PRIVATE_API uint64_t rs_system_hash(const char *kind);
uint64_t rs_process_hash(void); /* of this process, and its host's name: two processes mostly have different ones */

/* True for as many dims of the same extents; of strides, offsets and coordinates, too. */
static inline bool rs_shape_equal(int n, const int64_t *a, int m, const int64_t *b) {
  return n == m && memcmp(a, b, (size_t)n * sizeof *a) == 0;
}
/* "13x21", "scalar" for no dims; returns buffer. 8 x 20 + 8 characters always suffice. */
#define RS_SHAPE_TEXT 176
const char *rs_shape_text(char buffer[RS_SHAPE_TEXT], int ndim, const int64_t *shape);
/* "[8,6]", "[]" for none; returns buffer. What does not fit is cut off. */
const char *rs_list_text(char *buffer, size_t size, int64_t n, const int64_t *numbers);
/* "3-5,9", as in rank lists, of ascending numbers; returns buffer. What does not fit is cut off and ends in "...". */
RS_PRIVATE_API const char *rs_ranges_text(char *buffer, size_t size, int64_t n, const int64_t *numbers);
/* "[0,4)x[8,12)", "[]" for no dims. */
#define RS_BOX_TEXT 384
const char *rs_box_text(char buffer[RS_BOX_TEXT], int ndim, const int64_t *offset, const int64_t *extent);

#endif
