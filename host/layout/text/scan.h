/* Tokens of layout strings and box files, and errors that say where. */
#ifndef RS_LAYOUT_TEXT_SCAN_H
#define RS_LAYOUT_TEXT_SCAN_H

#include "base/base.h"

/* A position in text [begin, end). In a file (path not NULL) a token ends at the end of its line. */
typedef struct rs_scan {
  const char *begin, *end;
  const char *at;
  const char *what; /* "mesh"; NULL: "layout" */
  const char *path;
  const char *line_begin; /* files: start of the current line, and its number from 1 */
  int64_t line;
} rs_scan;

/* layout "mesh(2x;S0)": column 8: expected a number
 * box file "parts": line 3, column 5: expected '['
 * where is in [begin, end] and, in a file, on the current line. Returns status. */
reshard_status rs_scan_error(const rs_scan *scan, const char *where, reshard_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Puts `layout "..."` before the last error's text, for an error that concerns the layout as a whole. */
reshard_status rs_scan_whole(const rs_scan *scan, reshard_status status);

/* Skips blanks; in a file not the end of a line. Each call below skips them first. */
void rs_scan_skip(rs_scan *scan);
/* The next character, or NUL at the end. */
char rs_scan_peek(rs_scan *scan);
/* True when the next character is c, which is then consumed. */
bool rs_scan_take(rs_scan *scan, char c);
/* Error "expected 'c'" where it is not. */
reshard_status rs_scan_expect(rs_scan *scan, char c);
/* A number of 0 or more that fits in 63 bits; what ("a number", "a rank") names it in the text. */
reshard_status rs_scan_number(rs_scan *scan, const char *what, int64_t *number);
/* A number with an optional minus. */
reshard_status rs_scan_signed(rs_scan *scan, const char *what, int64_t *number);
/* [A-Za-z_][A-Za-z0-9_]* from *word on; returns its length, 0 where there is none. */
size_t rs_scan_word(rs_scan *scan, const char **word);

/* RESHARD_ERROR_INVALID with our spelling where placements are spelled so. alone: without a
 * mesh, where our spelling is refused likewise. */
reshard_status rs_refuse_torch_spelling(const rs_scan *scan, bool alone);

#endif
