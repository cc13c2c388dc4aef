/* A header names each tensor a few times and has a few numbers for it: what makes it is appending, not a tree of values
 * that is printed later. Escapes are those of the writers whose files ours are compared with (lower-case digits). */
#include "base/json.h"
#include "base/text.h"

#include <math.h>
#include <string.h>

static void add_unit(rs_text *out, uint32_t unit) {
  static const char digits[] = "0123456789abcdef";
  const char text[6] = {
      '\\', 'u', digits[unit >> 12], digits[unit >> 8 & 15], digits[unit >> 4 & 15], digits[unit & 15]};
  rs_text_bytes(out, text, sizeof text);
}

static void add_escape(rs_text *out, uint32_t code) {
  static const char named[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
  const char *found = code < 0x80 ? strchr(named, (int)code) : NULL;
  if (found != NULL) {
    const char text[2] = {'\\', letters[found - named]};
    rs_text_bytes(out, text, sizeof text);
  } else if (code < 0x10000) {
    add_unit(out, code);
  } else {
    add_unit(out, 0xd800 + ((code - 0x10000) >> 10));
    add_unit(out, 0xdc00 + (code & 0x3ff));
  }
}

void rs_json_escape(rs_text *out, const char *value, bool ascii) {
  for (const char *plain = value;; plain = value) {
    while (*value >= ' ' && *value < 0x7f && *value != '"' && *value != '\\')
      value++;
    rs_text_bytes(out, plain, (size_t)(value - plain));
    if (*value == '\0')
      return;
    uint32_t code;
    int n = rs_utf8_decode(value, &code);
    if (n > 0 && code >= 0x7f && !ascii)
      rs_text_bytes(out, value, (size_t)n);
    else
      add_escape(out, n > 0 ? code : 0xfffd);
    value += n > 0 ? n : 1;
  }
}

static void add_quoted(rs_json *j, const char *value) {
  rs_text_string(&j->text, "\"");
  rs_json_escape(&j->text, value, j->ascii);
  rs_text_string(&j->text, "\"");
}

static void add_comma(rs_json *j) {
  if (j->more)
    rs_text_string(&j->text, ",");
}

void rs_json_key(rs_json *j, const char *key) {
  add_comma(j);
  if (j->more && j->spaced)
    rs_text_string(&j->text, " ");
  j->more = true;
  if (key != NULL) {
    add_quoted(j, key);
    rs_text_string(&j->text, j->spaced ? ": " : ":");
  }
}

void rs_json_open(rs_json *j, const char *key, char bracket) {
  rs_json_key(j, key);
  rs_text_bytes(&j->text, &bracket, 1);
  j->more = false;
}

void rs_json_close(rs_json *j, char bracket) {
  rs_text_bytes(&j->text, &bracket, 1);
  j->more = true;
}

void rs_json_int(rs_json *j, const char *key, int64_t value) {
  rs_json_key(j, key);
  rs_text_number(&j->text, value);
}

void rs_json_numbers(rs_json *j, const rs_json_number *numbers, size_t n) {
  for (size_t i = 0; i < n; i++)
    rs_json_int(j, numbers[i].key, numbers[i].value);
}

void rs_json_list(rs_json *j, const char *key, int64_t n, const int64_t *numbers) {
  rs_json_open(j, key, '[');
  rs_text_numbers(&j->text, n, numbers, j->spaced ? ", " : ",");
  rs_json_close(j, ']');
}

void rs_json_real(rs_json *j, const char *key, double value) {
  rs_json_key(j, key);
  rs_text_add(&j->text, isfinite(value) ? "%.6g" : "null", value);
}

void rs_json_time(rs_json *j, const char *key, double us) {
  rs_json_key(j, key);
  rs_text_add(&j->text, "%.3f", us);
}

void rs_json_bool(rs_json *j, const char *key, bool value) {
  rs_json_key(j, key);
  rs_text_string(&j->text, value ? "true" : "false");
}

void rs_json_null(rs_json *j, const char *key) {
  rs_json_key(j, key);
  rs_text_string(&j->text, "null");
}

void rs_json_string(rs_json *j, const char *key, const char *value) {
  rs_json_key(j, key);
  add_quoted(j, value);
}

void rs_json_line(rs_json *j, int indent) {
  add_comma(j);
  j->more = false;
  rs_text_add(&j->text, "\n%*s", indent, "");
}
