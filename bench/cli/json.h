/* Writes JSON value by value, with commas and without indentation. The names differ from jansson's, whose calls would
 * otherwise find them. */
#ifndef BENCH_JSON_H
#define BENCH_JSON_H

#include "bench/cli/util.h"

typedef struct json {
  cli_text text;
  bool more; /* something stands before in the list or object that is open */
} json;

/* key NULL inside lists and for the outermost value. */
void cli_json_open(json *j, const char *key, char bracket); /* '{' or '[' */
void cli_json_close(json *j, char bracket);                 /* '}' or ']' */
void cli_json_int(json *j, const char *key, int64_t value);
void cli_json_real(json *j, const char *key, double value); /* null where it is not finite */
void cli_json_time(json *j, const char *key, double us);    /* to the nanosecond, however large */
void cli_json_bool(json *j, const char *key, bool value);
void cli_json_null(json *j, const char *key);
void cli_json_string(json *j, const char *key, const char *value);
/* Begins a new line before the next value, for people who read the file. */
void cli_json_line(json *j);
/* Ends the text with a newline, writes it (path "-" is standard output) and frees it. */
void cli_json_write(json *j, const char *path);

#endif
