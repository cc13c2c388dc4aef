/* Lists of boxes: in the string, RANK:[offset]+[extent] with `;` between; in a file, RANK [offset]+[extent] a line. */
#include "base/read.h"
#include "layout/text/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "[5,0]"; *count is -1 where any number of dims will do. */
static reshard_status parse_vector(rs_scan *scan, int *count, int64_t *numbers) {
  RS_TRY(rs_scan_expect(scan, '['));
  const char *first = scan->at - 1;
  int n = 0;
  if (rs_scan_peek(scan) != ']')
    do {
      int64_t number;
      RS_TRY(rs_scan_number(scan, "a number", &number));
      if (n < RESHARD_MAX_DIMS)
        numbers[n] = number;
      n++;
    } while (rs_scan_take(scan, ','));
  RS_TRY(rs_scan_expect(scan, ']'));
  if (*count >= 0 && n != *count)
    return rs_scan_error(scan, first, RESHARD_ERROR_INVALID, "%d numbers, the tensor has %d dims", n, *count);
  if (n > RESHARD_MAX_DIMS)
    return rs_scan_error(scan, first, RESHARD_ERROR_INVALID, "%d numbers, a tensor has at most %d dims", n,
                         RESHARD_MAX_DIMS);
  *count = n;
  return RESHARD_SUCCESS;
}

/* One box; `colon` stands between rank and box in the string. */
static reshard_status parse_box(rs_scan *scan, rs_spec *spec, bool colon) {
  RS_TRY(rs_vec_reserve(&spec->box_ranks, spec->box_ranks.n + 1));
  RS_TRY(rs_vec_reserve(&spec->boxes, spec->boxes.n + 1));
  reshard_box *box = &spec->boxes.at[spec->boxes.n];
  *box = (reshard_box){{0}, {0}};
  RS_TRY(rs_spec_rank(scan, spec, &spec->box_ranks.at[spec->box_ranks.n]));
  if (colon)
    RS_TRY(rs_scan_expect(scan, ':'));
  RS_TRY(parse_vector(scan, &spec->box_ndim, box->offset));
  RS_TRY(rs_scan_expect(scan, '+'));
  RS_TRY(parse_vector(scan, &spec->box_ndim, box->extent));
  spec->box_ranks.n++;
  spec->boxes.n++;
  return RESHARD_SUCCESS;
}

static reshard_status parse_lines(rs_scan *scan, rs_spec *spec) {
  while (scan->at < scan->end) {
    char next = rs_scan_peek(scan);
    if (scan->at < scan->end && next != '#' && next != '\n')
      RS_TRY(parse_box(scan, spec, false));
    next = rs_scan_peek(scan);
    if (next == '#') {
      const char *newline = memchr(scan->at, '\n', (size_t)(scan->end - scan->at));
      scan->at = newline != NULL ? newline : scan->end;
    }
    if (scan->at == scan->end)
      break;
    if (*scan->at != '\n')
      return rs_scan_error(scan, scan->at, RESHARD_ERROR_INVALID, "expected the end of the line");
    scan->line_begin = ++scan->at;
    scan->line++;
  }
  return RESHARD_SUCCESS;
}

/* The path is everything up to the string's last `)`. */
static reshard_status parse_file(rs_scan *scan, rs_spec *spec) {
  const char *end = scan->end;
  while (end > scan->at && end[-1] != ')')
    end--;
  if (end == scan->at)
    return rs_scan_error(scan, scan->end, RESHARD_ERROR_INVALID, "expected ')'");
  if (--end == scan->at)
    return rs_scan_error(scan, scan->at, RESHARD_ERROR_INVALID, "expected the name of a file");
  reshard_status status;
  char *path = NULL, *text = NULL, where[384];
  int64_t size = 0;
  RS_TRY(rs_alloc_zero(&path, end - scan->at + 1, 1));
  memcpy(path, scan->at, (size_t)(end - scan->at));
  snprintf(where, sizeof where, "box file \"%.300s\"", path);
  RS_TRY_GOTO(status, rs_read_all(where, path, RS_TEXT_LIMIT, RS_TEXT_WAIT_MS, &text, &size), done);
  rs_scan lines = {.begin = text, .end = text + size, .at = text, .path = path, .line_begin = text, .line = 1};
  status = parse_lines(&lines, spec);
  scan->at = end;
done:
  free(path);
  free(text);
  return status;
}

reshard_status rs_spec_boxes(rs_scan *scan, rs_spec *spec) {
  static const char word[] = "replicated";
  spec->box_ndim = spec->ndim;
  rs_scan_skip(scan);
  const char *first;
  size_t length = rs_scan_word(scan, &first);
  if (length > 0) {
    if (length != sizeof word - 1 || memcmp(first, word, length) != 0)
      return rs_scan_error(scan, first, RESHARD_ERROR_INVALID, "expected a rank, @FILE or replicated");
    RS_TRY(rs_scan_expect(scan, ';'));
    spec->replicated = true;
  }
  if (rs_scan_take(scan, '@'))
    return parse_file(scan, spec);
  if (rs_scan_peek(scan) == ')')
    return RESHARD_SUCCESS;
  do
    RS_TRY(parse_box(scan, spec, true));
  while (rs_scan_take(scan, ';'));
  return RESHARD_SUCCESS;
}
