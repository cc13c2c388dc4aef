/* Text of any length, for the headers of files: JSON as the Python packages write it, byte for byte. Additions after
 * one that failed do nothing, so that a text is checked once, when it is complete. */
#ifndef RS_FILE_PRINT_H
#define RS_FILE_PRINT_H

#include "base/base.h"

typedef struct rs_print {
  char *at; /* owned; not NUL-terminated */
  int64_t n, cap;
  reshard_status status; /* RESHARD_ERROR_OUT_OF_MEMORY when an addition failed */
} rs_print;

void rs_print_bytes(rs_print *out, const char *text, int64_t n);
void rs_print_text(rs_print *out, const char *text);
void rs_print_number(rs_print *out, int64_t number);
/* "[1,2,3]", with that separator. */
void rs_print_list(rs_print *out, int64_t n, const int64_t *numbers, const char *separator);
/* A valid UTF-8 text in quotes. ascii: as Python's json.dumps has it, every character outside of printable ASCII as
 * \uXXXX; else as safetensors has it, where only control characters are. */
void rs_print_string(rs_print *out, const char *text, bool ascii);
/* JSON text of printable ASCII as the inside of a string, without the quotes. */
void rs_print_nested(rs_print *out, const char *text, int64_t n);

/* No bytes that are not UTF-8: a reader of JSON refuses them. */
bool rs_utf8_valid(const char *text);

#endif
