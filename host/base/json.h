/* Writes JSON value by value, with commas: compact, or spaced as Python's json.dumps has it. */
#ifndef RS_BASE_JSON_H
#define RS_BASE_JSON_H

#include "base/base.h"

typedef struct rs_json {
  rs_text text;
  bool spaced; /* ", " and ": " */
  bool ascii;  /* \uXXXX for each character outside of printable ASCII; else for control characters alone */
  bool more;   /* something stands before in the list or object that is open */
} rs_json;

/* The key of a value that the caller adds to the text. NULL inside lists and for the outermost value, as below. */
void rs_json_key(rs_json *j, const char *key);
void rs_json_open(rs_json *j, const char *key, char bracket); /* '{' or '[' */
void rs_json_close(rs_json *j, char bracket);                 /* '}' or ']' */
void rs_json_int(rs_json *j, const char *key, int64_t value);
/* Several: rs_json_ints(j, {"rank", rank}, {"bytes", bytes}). */
typedef struct rs_json_number {
  const char *key;
  int64_t value;
} rs_json_number;
#define rs_json_ints(j, ...) \
  rs_json_numbers((j), (const rs_json_number[]){__VA_ARGS__}, \
                  sizeof((const rs_json_number[]){__VA_ARGS__}) / sizeof(rs_json_number))
void rs_json_numbers(rs_json *j, const rs_json_number *numbers, size_t n);
void rs_json_list(rs_json *j, const char *key, int64_t n, const int64_t *numbers);
void rs_json_real(rs_json *j, const char *key, double value); /* null where it is not finite */
void rs_json_time(rs_json *j, const char *key, double us);    /* to the nanosecond, however large */
void rs_json_bool(rs_json *j, const char *key, bool value);
void rs_json_null(rs_json *j, const char *key);
/* Bytes that are not UTF-8 become U+FFFD. */
void rs_json_string(rs_json *j, const char *key, const char *value);
/* A text as the inside of a string, without the quotes. */
void rs_json_escape(rs_text *out, const char *value, bool ascii);
/* Begins a new line before the next value, indented by that much, for people who read the file. */
void rs_json_line(rs_json *j, int indent);

#endif
