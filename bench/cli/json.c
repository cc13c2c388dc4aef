#include "bench/cli/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Length of the UTF-8 character at text, 0 where there is none. */
static int utf8_length(const unsigned char *text) {
  int n = text[0] < 0x80                      ? 1
          : text[0] >= 0xc2 && text[0] < 0xe0 ? 2
          : text[0] >= 0xe0 && text[0] < 0xf0 ? 3
          : text[0] >= 0xf0 && text[0] < 0xf5 ? 4
                                              : 0;
  for (int i = 1; i < n; i++)
    if ((text[i] & 0xc0) != 0x80)
      return 0;
  if ((text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xed && text[1] > 0x9f) ||
      (text[0] == 0xf0 && text[1] < 0x90) || (text[0] == 0xf4 && text[1] > 0x8f))
    return 0;
  return n;
}

static void add_quoted(cli_text *t, const char *value) {
  cli_add(t, "\"");
  for (const unsigned char *at = (const unsigned char *)value; *at != '\0';) {
    int n = utf8_length(at);
    if (*at == '"' || *at == '\\')
      cli_add(t, "\\%c", *at);
    else if (*at < 0x20)
      cli_add(t, "\\u%04x", *at);
    else if (n == 0)
      cli_add(t, "\\ufffd");
    else
      cli_add_bytes(t, (const char *)at, (size_t)n);
    at += n > 0 ? n : 1;
  }
  cli_add(t, "\"");
}

static void begin_value(json *j, const char *key) {
  if (j->more)
    cli_add(&j->text, ",");
  if (j->more && j->text.length > 0 && key == NULL)
    cli_add(&j->text, " ");
  j->more = true;
  if (key != NULL) {
    add_quoted(&j->text, key);
    cli_add(&j->text, ":");
  }
}

void cli_json_open(json *j, const char *key, char bracket) {
  begin_value(j, key);
  cli_add(&j->text, "%c", bracket);
  j->more = false;
}

void cli_json_close(json *j, char bracket) {
  cli_add(&j->text, "%c", bracket);
  j->more = true;
}

void cli_json_int(json *j, const char *key, int64_t value) {
  begin_value(j, key);
  cli_add(&j->text, "%lld", (long long)value);
}

void cli_json_real(json *j, const char *key, double value) {
  begin_value(j, key);
  cli_add(&j->text, isfinite(value) ? "%.6g" : "null", value);
}

void cli_json_time(json *j, const char *key, double us) {
  begin_value(j, key);
  cli_add(&j->text, "%.3f", us);
}

void cli_json_bool(json *j, const char *key, bool value) {
  begin_value(j, key);
  cli_add(&j->text, value ? "true" : "false");
}

void cli_json_null(json *j, const char *key) {
  begin_value(j, key);
  cli_add(&j->text, "null");
}

void cli_json_string(json *j, const char *key, const char *value) {
  begin_value(j, key);
  add_quoted(&j->text, value);
}

void cli_json_line(json *j) {
  if (j->more)
    cli_add(&j->text, ",");
  j->more = false;
  cli_add(&j->text, "\n  ");
}

void cli_json_write(json *j, const char *path) {
  cli_add(&j->text, "\n");
  cli_write_file(path, j->text.at, j->text.length);
  free(j->text.at);
  *j = (json){0};
}
