/* Texts from outside: quoted for an error, and matched with shell patterns. */
#ifndef RS_BASE_TEXT_H
#define RS_BASE_TEXT_H

#include "base/base.h"

/* Copies a text as it can stand in a one-line error: shortened to size (4 at least), control characters as '?'.
 * Returns buffer. */
#define RS_QUOTE 128 /* enough of a tensor's name */
const char *rs_quote(char *buffer, size_t size, const char *text);
/* One character: its length in bytes, 0 where it is not UTF-8. */
int rs_utf8_decode(const char *text, uint32_t *code);
/* No bytes that are not UTF-8: a reader of JSON refuses them. */
bool rs_utf8_valid(const char *text);
/* True for a text with that end. */
bool rs_ends(const char *text, const char *end);

/* The fault of a malformed shell pattern, and which byte of it is at fault; NULL for a well-formed one. */
const char *rs_pattern_problem(const char *pattern, int64_t *at);
/* True where a well-formed pattern fits all of a name. */
bool rs_pattern_matches(const char *pattern, const char *name);
/* True for a character that a pattern takes as it is. */
bool rs_pattern_plain(char c);

/* The fewest digits from which the number can be read again (17 at most), with a point or an exponent: "0.1", "1.0";
 * "nan", "inf", "-inf". The same in every locale. Returns buffer. */
#define RS_FLOAT_TEXT 40
const char *rs_float_text(char buffer[RS_FLOAT_TEXT], double value);

#endif
