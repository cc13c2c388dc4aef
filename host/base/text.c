/* Texts from outside, and shell patterns.
 *
 * The matcher of patterns is our own. Where the rest of a pattern does not fit behind a '*', the last star takes one
 * character more. No earlier star needs another try: whatever it could leave to the last one, the last one can take
 * itself. So a match costs at most pattern x name. libc's fnmatch took two to three times as long and depends on the
 * locale. It also reads a malformed set as plain text, which in a file of rules is a mistake to report. */
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *rs_quote(char *buffer, size_t size, const char *text) {
  size_t n = 0;
  for (; text[n] != '\0' && n + 4 < size; n++)
    buffer[n] = (unsigned char)text[n] < ' ' || text[n] == 127 ? '?' : text[n];
  strcpy(buffer + n, text[n] != '\0' ? "..." : "");
  return buffer;
}

bool rs_ends(const char *text, const char *end) {
  size_t n = strlen(text), k = strlen(end);
  return n >= k && strcmp(text + n - k, end) == 0;
}

/* RFC 3629: no longer form than needed, no surrogates. */
int rs_utf8_decode(const char *text, uint32_t *code) {
  static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
  const unsigned char *s = (const unsigned char *)text;
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
  for (int n; *text != '\0'; text += n)
    if ((n = rs_utf8_decode(text, &code)) == 0)
      return false;
  return true;
}

bool rs_pattern_plain(char c) { return c != '*' && c != '?' && c != '[' && c != ']' && c != '\\'; }

/* Reads one character of a set, quoted by '\' or not, and moves on; '\0' at the end. */
static unsigned char set_character(const char **p) {
  if (**p == '\\' && (*p)[1] != '\0')
    ++*p;
  unsigned char c = (unsigned char)**p;
  *p += c != '\0';
  return c;
}

/* Matches c with a set; p is behind its '['. Returns the text behind the ']', or NULL with the reason. */
static const char *match_set(const char *p, unsigned char c, bool *in, const char **problem) {
  bool negated = *p == '!' || *p == '^', found = false, first = true;
  p += negated;
  for (; *p != ']' || first; first = false) {
    if (p[0] == '[' && (p[1] == ':' || p[1] == '.' || p[1] == '=')) {
      *problem = "classes in sets are not known, write ranges such as [0-9]";
      return NULL;
    }
    unsigned char low = set_character(&p), high = low;
    if (low != '\0' && p[0] == '-' && p[1] != ']') {
      p++;
      high = set_character(&p);
    }
    if (low == '\0' || high == '\0') {
      *problem = "'[' without ']'";
      return NULL;
    }
    if (high < low) {
      *problem = "a range in a set runs backwards";
      return NULL;
    }
    found = found || (low <= c && c <= high);
  }
  *in = found != negated;
  return p + 1;
}

/* Matches c with the one-character item at p, which is no '*' and not the end; *next is behind the item. */
static bool match_item(const char *p, char c, const char **next) {
  bool in = false;
  const char *problem;
  switch (*p) {
  case '?': *next = p + 1; return true;
  case '[': *next = match_set(p + 1, (unsigned char)c, &in, &problem); return in;
  case '\\': *next = p + 2; return p[1] == c;
  default: *next = p + 1; return *p == c;
  }
}

bool rs_pattern_matches(const char *p, const char *name) {
  const char *star = NULL, *taken = NULL, *next;
  while (*name != '\0') {
    if (*p == '*') {
      star = ++p;
      taken = name;
    } else if (*p != '\0' && match_item(p, *name, &next)) {
      p = next;
      name++;
    } else if (star != NULL) {
      p = star;
      name = ++taken;
    } else {
      return false;
    }
    if (p != star)
      continue;
    /* Behind a star: nothing left to fit, or nothing but the pattern's next character can go on. */
    if (*p == '\0')
      return true;
    if (rs_pattern_plain(*p)) {
      bool pair = p[1] != '\0' && rs_pattern_plain(p[1]);
      for (name = strchr(name, *p); name != NULL && pair && name[1] != p[1];)
        name = strchr(name + 1, *p);
      if (name == NULL)
        return false;
      taken = name;
    }
  }
  while (*p == '*')
    p++;
  return *p == '\0';
}

const char *rs_pattern_problem(const char *pattern, int64_t *at) {
  const char *problem = NULL;
  for (const char *p = pattern; *p != '\0';) {
    bool in;
    *at = p - pattern;
    if (*p == '\\' && p[1] == '\0')
      problem = "'\\' before nothing";
    else if (*p == '[')
      p = match_set(p + 1, 'x', &in, &problem);
    else
      p += *p == '\\' ? 2 : 1;
    if (problem != NULL)
      return problem;
  }
  return NULL;
}

const char *rs_float_text(char buffer[RS_FLOAT_TEXT], double value) {
  char *to = buffer;
  if (!isfinite(value))
    return strcpy(buffer, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
  for (int digits = 15; digits <= 17; digits++) {
    snprintf(buffer, RS_FLOAT_TEXT - 2, "%.*g", digits, value);
    if (strtod(buffer, NULL) == value)
      break;
  }
  for (const char *at = buffer; *at != '\0'; at++)
    if (strchr("0123456789+-e", *at) != NULL)
      *to++ = *at;
    else if (to == buffer || to[-1] != '.') /* a locale's point, which may be several bytes */
      *to++ = '.';
  *to = '\0';
  if (strpbrk(buffer, ".e") == NULL)
    strcpy(to, ".0");
  return buffer;
}
