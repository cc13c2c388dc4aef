/* A header names each tensor a few times and has a few numbers for it: what makes it is appending, not a tree of values
 * that is printed later. Escapes are those of the writers whose files ours are compared with (lower-case digits). */
#include "file/ground/print.h"

#include <string.h>

/* Room for n more; false after a failure. */
static bool reserve_room(rs_print *out, int64_t n) {
  if (out->status == RESHARD_SUCCESS)
    out->status = rs_vec_reserve(out, out->n + n);
  return out->status == RESHARD_SUCCESS;
}

void rs_print_bytes(rs_print *out, const char *text, int64_t n) {
  if (n == 0 || !reserve_room(out, n))
    return;
  memcpy(out->at + out->n, text, (size_t)n);
  out->n += n;
}

void rs_print_text(rs_print *out, const char *text) { rs_print_bytes(out, text, (int64_t)strlen(text)); }

void rs_print_number(rs_print *out, int64_t number) {
  char digits[24];
  int at = sizeof digits;
  uint64_t rest = number < 0 ? -(uint64_t)number : (uint64_t)number;
  do
    digits[--at] = (char)('0' + rest % 10);
  while ((rest /= 10) > 0);
  if (number < 0)
    digits[--at] = '-';
  rs_print_bytes(out, digits + at, (int64_t)sizeof digits - at);
}

void rs_print_list(rs_print *out, int64_t n, const int64_t *numbers, const char *separator) {
  rs_print_text(out, "[");
  for (int64_t i = 0; i < n; i++) {
    if (i > 0)
      rs_print_text(out, separator);
    rs_print_number(out, numbers[i]);
  }
  rs_print_text(out, "]");
}

/* One character: its length in bytes, 0 when it is not UTF-8 (RFC 3629: no longer form than needed, no surrogates). */
static int decode_utf8(const unsigned char *s, uint32_t *code) {
  static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
  int n = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
  uint32_t c = n <= 1 ? s[0] : s[0] & (0x7fu >> n);
  for (int i = 1; i < n; i++) {
    if (s[i] >> 6 != 2)
      return 0;
    c = c << 6 | (s[i] & 0x3f);
  }
  if (n == 0 || c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
    return 0;
  *code = c;
  return n;
}

bool rs_utf8_valid(const char *text) {
  uint32_t code;
  int n;
  for (const unsigned char *s = (const unsigned char *)text; *s != '\0'; s += n)
    if ((n = decode_utf8(s, &code)) == 0)
      return false;
  return true;
}

static void add_unit(rs_print *out, uint32_t unit) {
  static const char digits[] = "0123456789abcdef";
  const char text[6] = {
      '\\', 'u', digits[unit >> 12], digits[unit >> 8 & 15], digits[unit >> 4 & 15], digits[unit & 15]};
  rs_print_bytes(out, text, sizeof text);
}

static void add_escape(rs_print *out, uint32_t code) {
  static const char named[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
  const char *found = code < 0x80 ? strchr(named, (int)code) : NULL;
  if (found != NULL) {
    const char text[2] = {'\\', letters[found - named]};
    rs_print_bytes(out, text, sizeof text);
  } else if (code < 0x10000) {
    add_unit(out, code);
  } else {
    add_unit(out, 0xd800 + ((code - 0x10000) >> 10));
    add_unit(out, 0xdc00 + (code & 0x3ff));
  }
}

void rs_print_string(rs_print *out, const char *text, bool ascii) {
  const unsigned char *s = (const unsigned char *)text;
  rs_print_text(out, "\"");
  for (;;) {
    const unsigned char *plain = s;
    while (*s >= ' ' && *s != '"' && *s != '\\' && (!ascii || *s < 0x7f))
      s++;
    rs_print_bytes(out, (const char *)plain, s - plain);
    uint32_t code;
    int n = *s != '\0' ? decode_utf8(s, &code) : 0;
    if (n == 0)
      break;
    add_escape(out, code);
    s += n;
  }
  rs_print_text(out, "\"");
}

void rs_print_nested(rs_print *out, const char *text, int64_t n) {
  if (!reserve_room(out, 2 * n)) /* the most that it can be */
    return;
  char *to = out->at + out->n;
  for (int64_t i = 0; i < n; i++) {
    if (text[i] == '"' || text[i] == '\\')
      *to++ = '\\';
    *to++ = text[i];
  }
  out->n = to - out->at;
}
