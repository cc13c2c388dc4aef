/* Writes JSON piece by piece. Commas are put where they belong; indentation is not. */
#ifndef BENCH_JSON_H
#define BENCH_JSON_H

#include "util.h"

typedef struct json {
  cli_text text;
  bool more; /* something stands before in the list or object that is open */
} json;

/* key NULL inside lists and for the outermost value. */
void json_open(json *j, const char *key, char bracket); /* '{' or '[' */
void json_close(json *j, char bracket);                 /* '}' or ']' */
void json_int(json *j, const char *key, int64_t value);
void json_real(json *j, const char *key, double value); /* null where it is not finite */
void json_bool(json *j, const char *key, bool value);
void json_null(json *j, const char *key);
void json_string(json *j, const char *key, const char *value);
/* A new line before the next value, for people who look at the file. */
void json_line(json *j);
/* Ends the text with a newline, writes it (path "-" is standard output) and frees it. */
void json_write(json *j, const char *path);

#endif
