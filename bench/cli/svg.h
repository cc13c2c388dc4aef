/* Elements of a picture in SVG. Coordinates are pixels from the top left. */
#ifndef BENCH_SVG_H
#define BENCH_SVG_H

#include "bench/cli/util.h"

typedef struct svg_paint {
  const char *fill;   /* "#rrggbb", or "none" */
  double opacity;     /* 0 means 1 */
  const char *stroke; /* NULL: none */
  double stroke_width;
} svg_paint;

typedef enum svg_anchor { SVG_START, SVG_MIDDLE, SVG_END } svg_anchor;

/* The document's first lines, with a white ground, and its end. */
void svg_open(rs_text *out, double width, double height);
void svg_close(rs_text *out);

void svg_rectangle(rs_text *out, double x, double y, double width, double height, svg_paint paint);
void svg_circle(rs_text *out, double x, double y, double radius, svg_paint paint);
void svg_line(rs_text *out, double x1, double y1, double x2, double y2, const char *stroke, double width);
/* A band from [left, left + thick) at x1 to [right, right + thick) at x2, both vertical. */
void svg_band(rs_text *out, double x1, double left, double x2, double right, double thick, const char *fill,
              double opacity);
/* Text on a base line; cut with an ellipsis where it is longer than most characters (0: never). */
void svg_words(rs_text *out, double x, double y, double size, svg_anchor anchor, const char *fill, bool bold,
               size_t most, const char *text);
/* Text turned by 90 degrees to the left. */
void svg_words_up(rs_text *out, double x, double y, double size, const char *fill, const char *text);

/* The colour of a rank in a small world; and a colour for text on a colour. */
const char *svg_rank_colour(int64_t rank);
const char *svg_ink_on(const char *colour);
/* The colour of a value from 0 (light) to 1 (dark). */
const char *svg_scale_colour(char buffer[8], double value);

#define SVG_INK  "#1f2933"
#define SVG_GREY "#7b8794"
#define SVG_PALE "#e4e7eb"

#endif
