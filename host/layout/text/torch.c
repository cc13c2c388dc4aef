/* Refuses what PyTorch writes, and placements without their mesh, with ours in the error: placement by placement. */
#include "layout/text/scan.h"

#include <ctype.h>
#include <string.h>

static bool take_word(const char **at, const char *end, const char *word) {
  size_t n = strlen(word);
  if ((size_t)(end - *at) < n || memcmp(*at, word, n) != 0)
    return false;
  *at += n;
  return true;
}

/* The i-th number of the arguments, whether by name or not; 0: there is none. */
static int64_t argument_of(const char *at, const char *end, int i) {
  for (const char *first = at; at < end && *at != ')'; at++)
    if (isdigit((unsigned char)*at) && i-- == 0) {
      int64_t sign = at > first && at[-1] == '-' ? -1 : 1, number = *at - '0';
      while (at + 1 < end && isdigit((unsigned char)at[1]) && number < 1000)
        number = 10 * number + *++at - '0';
      return sign * number;
    }
  return 0;
}

/* The length of a placement in our own spelling, which stands where a layout should; 0: there is none. */
static int length_of_ours(const char *at, const char *end) {
  int n = at < end && (*at == 'R' || *at == 'S');
  while (n > 0 && *at == 'S' && at + n < end && memchr("-*0123456789", at[n], 12) != NULL)
    n++;
  return (n > 1 || (n == 1 && *at == 'R')) && (at + n == end || at[n] == ',' || at[n] == ']') ? n : 0;
}

/* Writes our spelling of the placement at *at; false where there is none. */
static bool take_placement(const char **at, const char *end, bool alone, rs_text *out) {
  int ours = alone ? length_of_ours(*at, end) : 0;
  if (ours > 0) {
    rs_text_add(out, "%.*s", ours, *at);
    *at += ours;
    return true;
  }
  bool strided = take_word(at, end, "_StridedShard") || take_word(at, end, "StridedShard");
  if (strided || take_word(at, end, "Shard")) {
    rs_text_add(out, "S%lld", (long long)argument_of(*at, end, 0));
    if (strided)
      rs_text_add(out, "*%lld", (long long)argument_of(*at, end, 1));
  } else if (take_word(at, end, "Replicate"))
    rs_text_add(out, "R");
  else if (take_word(at, end, "Partial"))
    rs_text_add(out, "Psum");
  else
    return false;
  if (*at < end && **at == '(') {
    const char *close = memchr(*at, ')', (size_t)(end - *at));
    *at = close != NULL ? close + 1 : end;
  }
  return true;
}

reshard_status rs_refuse_torch_spelling(const rs_scan *scan, bool alone) {
  const char *at = scan->at + (scan->at < scan->end && *scan->at == '[');
  char ours[80], mesh[40];
  rs_text out = {.at = ours, .size = sizeof ours}, extents = {.at = mesh, .size = sizeof mesh};
  if (!take_placement(&at, scan->end, alone, &out))
    return RESHARD_SUCCESS;
  rs_text_add(&extents, "2");
  for (;;) {
    while (at < scan->end && (*at == ' ' || *at == ','))
      at++;
    size_t before = out.length;
    rs_text_add(&out, ",");
    if (!take_placement(&at, scan->end, alone, &out)) {
      ours[before < sizeof ours ? before : sizeof ours - 1] = '\0';
      break;
    }
    rs_text_add(&extents, "x2");
  }
  if (alone)
    return rs_scan_error(scan, scan->at, RESHARD_ERROR_INVALID, "write %s, in a mesh: mesh(%s;%s)", ours, mesh, ours);
  return rs_scan_error(scan, scan->at, RESHARD_ERROR_INVALID, "write %s", ours);
}
