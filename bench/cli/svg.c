#include "bench/cli/svg.h"

#include <stdlib.h>

static void add_paint(rs_text *out, svg_paint p) {
  cli_add(out, " fill=\"%s\"", p.fill);
  if (p.opacity > 0 && p.opacity < 1)
    cli_add(out, " fill-opacity=\"%.2f\"", p.opacity);
  if (p.stroke != NULL)
    cli_add(out, " stroke=\"%s\" stroke-width=\"%.2f\"", p.stroke, p.stroke_width);
  cli_add(out, "/>\n");
}

void svg_open(rs_text *out, double width, double height) {
  cli_add(out,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
          "font-family=\"Helvetica, Arial, sans-serif\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
          width, height, width, height);
}

void svg_close(rs_text *out) { cli_add(out, "</svg>\n"); }

void svg_rectangle(rs_text *out, double x, double y, double width, double height, svg_paint p) {
  cli_add(out, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"", x, y, width, height);
  add_paint(out, p);
}

void svg_circle(rs_text *out, double x, double y, double radius, svg_paint p) {
  cli_add(out, "<circle cx=\"%.2f\" cy=\"%.2f\" r=\"%.2f\"", x, y, radius);
  add_paint(out, p);
}

void svg_line(rs_text *out, double x1, double y1, double x2, double y2, const char *stroke, double width) {
  cli_add(out, "<line x1=\"%.2f\" y1=\"%.2f\" x2=\"%.2f\" y2=\"%.2f\" stroke=\"%s\" stroke-width=\"%.2f\"/>\n", x1, y1,
          x2, y2, stroke, width);
}

void svg_band(rs_text *out, double x1, double left, double x2, double right, double thick, const char *fill,
              double opacity) {
  double middle = 0.5 * (x1 + x2);
  cli_add(out,
          "<path d=\"M%.2f %.2fC%.2f %.2f %.2f %.2f %.2f %.2fL%.2f %.2fC%.2f %.2f %.2f %.2f %.2f %.2fZ\" fill=\"%s\" "
          "fill-opacity=\"%.2f\"/>\n",
          x1, left, middle, left, middle, right, x2, right, x2, right + thick, middle, right + thick, middle,
          left + thick, x1, left + thick, fill, opacity);
}

/* XML text; control characters, which XML does not know, are question marks. */
static void add_escaped(rs_text *out, const char *text, size_t most) {
  size_t shown = 0;
  for (const char *at = text; *at != '\0'; at++) {
    if (most > 0 && ((unsigned char)*at & 0xc0) != 0x80 && shown++ == most) {
      cli_add(out, "…");
      return;
    }
    switch (*at) {
    case '&': cli_add(out, "&amp;"); break;
    case '<': cli_add(out, "&lt;"); break;
    case '>': cli_add(out, "&gt;"); break;
    case '"': cli_add(out, "&quot;"); break;
    default: cli_add(out, "%c", (unsigned char)*at < 0x20 ? '?' : *at);
    }
  }
}

void svg_words(rs_text *out, double x, double y, double size, svg_anchor anchor, const char *fill, bool bold,
               size_t most, const char *text) {
  static const char *const anchors[] = {"start", "middle", "end"};
  cli_add(out, "<text x=\"%.2f\" y=\"%.2f\" font-size=\"%.1f\" text-anchor=\"%s\" fill=\"%s\"%s>", x, y, size,
          anchors[anchor], fill, bold ? " font-weight=\"600\"" : "");
  add_escaped(out, text, most);
  cli_add(out, "</text>\n");
}

void svg_words_up(rs_text *out, double x, double y, double size, const char *fill, const char *text) {
  cli_add(out,
          "<text transform=\"translate(%.2f %.2f) rotate(-90)\" font-size=\"%.1f\" text-anchor=\"middle\" fill=\"%s\">",
          x, y, size, fill);
  add_escaped(out, text, 0);
  cli_add(out, "</text>\n");
}

const char *svg_rank_colour(int64_t rank) {
  static const char *const colours[16] = {"#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948",
                                          "#b07aa1", "#9c755f", "#a0cbe8", "#ffbe7d", "#8cd17d", "#ff9d9a",
                                          "#1b6f6a", "#b6992d", "#d4a6c8", "#5d4a3f"};
  return colours[rank & 15];
}

static void read_channels(const char *colour, int *rgb) {
  unsigned long v = strtoul(colour + 1, NULL, 16);
  rgb[0] = (int)(v >> 16 & 255), rgb[1] = (int)(v >> 8 & 255), rgb[2] = (int)(v & 255);
}

const char *svg_ink_on(const char *colour) {
  int c[3];
  read_channels(colour, c);
  return 299 * c[0] + 587 * c[1] + 114 * c[2] < 140000 ? "#ffffff" : SVG_INK;
}

const char *svg_scale_colour(char buffer[8], double value) {
  static const char *const stops[] = {"#eef3f8", "#bcd5e8", "#6fa8d2", "#2f74b0", "#133a6b", "#0a1a3a"};
  value = value < 0 ? 0 : value > 1 ? 1 : value;
  double at = value * 5;
  int i = at >= 5 ? 4 : (int)at, a[3], b[3];
  read_channels(stops[i], a);
  read_channels(stops[i + 1], b);
  snprintf(buffer, 8, "#%02x%02x%02x", (unsigned char)(a[0] + (b[0] - a[0]) * (at - i)),
           (unsigned char)(a[1] + (b[1] - a[1]) * (at - i)), (unsigned char)(a[2] + (b[2] - a[2]) * (at - i)));
  return buffer;
}
