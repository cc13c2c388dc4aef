#include "layout/text/scan.h"

#include <stdio.h>
#include <string.h>

#define QUOTE_MOST 120
#define QUOTE_TEXT (QUOTE_MOST + 4)

/* An error is one line of bounded length, whatever was given. */
static const char *quote_text(char out[QUOTE_TEXT], const char *text, const char *end) {
  size_t n = (size_t)(end - text), take = n < QUOTE_MOST ? n : QUOTE_MOST;
  for (size_t i = 0; i < take; i++)
    out[i] = (unsigned char)text[i] < ' ' || text[i] == 127 ? '?' : text[i];
  memcpy(out + take, n > take ? "..." : "", n > take ? 4 : 1);
  return out;
}

static const char *subject_of(const rs_scan *scan) { return scan->what != NULL ? scan->what : "layout"; }

reshard_status rs_scan_error(const rs_scan *scan, const char *where, reshard_status status, const char *format, ...) {
  char text[512], shown[QUOTE_TEXT];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (scan->path != NULL)
    return rs_error(status, "box file \"%s\": line %lld, column %lld: %s",
                    quote_text(shown, scan->path, scan->path + strlen(scan->path)), (long long)scan->line,
                    (long long)(where - scan->line_begin) + 1, text);
  return rs_error(status, "%s \"%s\": column %lld: %s", subject_of(scan), quote_text(shown, scan->begin, scan->end),
                  (long long)(where - scan->begin) + 1, text);
}

reshard_status rs_scan_whole(const rs_scan *scan, reshard_status status) {
  char text[768], shown[QUOTE_TEXT];
  const char *said = reshard_last_error();
  size_t n = strlen(subject_of(scan));
  if (strncmp(said, subject_of(scan), n) == 0 && strncmp(said + n, ": ", 2) == 0)
    said += n + 2; /* it says what it is about, and we do */
  snprintf(text, sizeof text, "%s", said);
  return rs_error(status, "%s \"%s\": %s", subject_of(scan), quote_text(shown, scan->begin, scan->end), text);
}

void rs_scan_skip(rs_scan *scan) {
  while (scan->at < scan->end &&
         (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\r' || (*scan->at == '\n' && scan->path == NULL)))
    scan->at++;
}

char rs_scan_peek(rs_scan *scan) {
  rs_scan_skip(scan);
  return scan->at < scan->end ? *scan->at : '\0';
}

bool rs_scan_take(rs_scan *scan, char c) {
  rs_scan_skip(scan);
  if (scan->at == scan->end || *scan->at != c)
    return false;
  scan->at++;
  return true;
}

reshard_status rs_scan_expect(rs_scan *scan, char c) {
  if (rs_scan_take(scan, c))
    return RESHARD_SUCCESS;
  return rs_scan_error(scan, scan->at, RESHARD_ERROR_INVALID, "expected '%c'", c);
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

reshard_status rs_scan_number(rs_scan *scan, const char *what, int64_t *number) {
  rs_scan_skip(scan);
  const char *first = scan->at;
  int64_t n = 0;
  bool fits = true;
  for (; scan->at < scan->end && is_digit(*scan->at); scan->at++)
    fits = fits && rs_mul(n, 10, &n) && rs_add(n, *scan->at - '0', &n);
  if (scan->at == first)
    return rs_scan_error(scan, first, RESHARD_ERROR_INVALID, "expected %s", what);
  if (!fits)
    return rs_scan_error(scan, first, RESHARD_ERROR_INVALID, "the number does not fit in 63 bits");
  *number = n;
  return RESHARD_SUCCESS;
}

reshard_status rs_scan_signed(rs_scan *scan, const char *what, int64_t *number) {
  bool minus = rs_scan_take(scan, '-');
  RS_TRY(rs_scan_number(scan, what, number));
  if (minus)
    *number = -*number;
  return RESHARD_SUCCESS;
}

size_t rs_scan_word(rs_scan *scan, const char **word) {
  rs_scan_skip(scan);
  *word = scan->at;
  while (scan->at < scan->end && (is_letter(*scan->at) || (scan->at > *word && is_digit(*scan->at))))
    scan->at++;
  return (size_t)(scan->at - *word);
}
