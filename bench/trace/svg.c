/* A trace as a picture: a row a track, GPU by GPU, time from left to right.
 *
 * Work is a box with the number and in the colour of its round. A thin line is time in which a stream waits. An edge is
 * a curve from the record of an event to the end of the wait. */
#include "bench/trace/trace.h"

#include "bench/cli/svg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH  1280.0
#define LEFT   150.0
#define RIGHT  28.0
#define TOP    84.0
#define ROW    30.0
#define BOX    18.0
#define GAP    20.0 /* before a device's rows: its name */
#define BOTTOM 66.0

typedef struct trace_picture {
  const trace *t;
  rs_text out;
  double first, scale; /* us at LEFT, pixels a us */
  double *y;           /* [nlanes], of a row's middle */
  double height;
} trace_picture;

static double x_of(const trace_picture *p, double us) { return LEFT + (us - p->first) * p->scale; }

static void place_rows(trace_picture *p) {
  const trace *t = p->t;
  double last = 0, y = TOP;
  p->first = t->nsteps > 0 ? INFINITY : 0;
  for (int64_t i = 0; i < t->nsteps; i++) {
    p->first = fmin(p->first, t->step[i].begin);
    last = fmax(last, t->step[i].end);
  }
  p->scale = (WIDTH - LEFT - RIGHT) / fmax(last - p->first, 1e-3);
  p->y = cli_alloc(t->ntracks, sizeof *p->y);
  for (int64_t i = 0; i < t->ntracks; i++) {
    if (i == 0 || !trace_same_device(&t->track[i], &t->track[i - 1]))
      y += GAP;
    p->y[i] = y + ROW / 2;
    y += ROW;
  }
  p->height = y + BOTTOM;
}

static void draw_rows(trace_picture *p) {
  const trace *t = p->t;
  for (int64_t i = 0; i < t->ntracks; i++) {
    const trace_track *track = &t->track[i];
    char device[TRACE_NAME];
    if (i == 0 || !trace_same_device(&t->track[i - 1], track))
      svg_words(&p->out, 24, p->y[i] - ROW / 2 - 3, 12, SVG_START, SVG_INK, true, 0,
                trace_device_text(t, track, device));
    svg_words(&p->out, LEFT - 12, p->y[i] + 4, 11, SVG_END, SVG_GREY, false, 24, track->name);
    svg_line(&p->out, LEFT, p->y[i], WIDTH - RIGHT, p->y[i], SVG_PALE, 1);
  }
}

/* A round number of us, five to ten of which fit in the picture. */
static double choose_tick(double span) {
  double tick = pow(10, floor(log10(span)));
  while (span / tick < 5)
    tick /= span / tick < 2.5 ? 5 : 2;
  return tick;
}

static void draw_axis(trace_picture *p) {
  double span = (WIDTH - LEFT - RIGHT) / p->scale, tick = choose_tick(span), y = p->height - BOTTOM + 12;
  char text[32];
  for (int i = 0; i * tick <= span; i++) {
    double x = LEFT + i * tick * p->scale;
    svg_line(&p->out, x, TOP + GAP - 4, x, y, SVG_PALE, 1);
    snprintf(text, sizeof text, "%g", i * tick);
    svg_words(&p->out, x, y + 14, 11, SVG_MIDDLE, SVG_GREY, false, 0, text);
  }
  svg_words(&p->out, LEFT - 12, y + 14, 11, SVG_END, SVG_GREY, false, 0, "us");
}

/* The colour of a step's round; grey for a step of no round. */
static const char *colour_of(const trace_step *s) {
  static const char none[] = "#9aa5b1";
  return s->is.round >= 0 ? svg_rank_colour(s->is.round) : none;
}

/* True where another step of the track is inside of this one. Steps are in the order in which they began. */
static bool has_nested(const trace *t, const trace_step *s) {
  for (const trace_step *next = s + 1; next < t->step + t->nsteps; next++)
    if (next->track == s->track)
      return next->depth > s->depth;
  return false;
}

static void draw_step(trace_picture *p, const trace_step *s) {
  double x = x_of(p, s->begin), width = x_of(p, s->end) - x, y = p->y[s->track], height = BOX - 5 * s->depth;
  if (s->is.kind == RS_TRACE_WAIT && width > 0.5) {
    bool inside = p->t->track[s->track].gpu == TRACE_CPU; /* of the execute, in whose grey a line would not show */
    cli_add(&p->out, "<g>");
    if (inside)
      svg_rectangle(&p->out, x, y - height / 2, width, height, (svg_paint){"#e4e7eb", 1, NULL, 0});
    svg_line(&p->out, x, y, x + width, y, SVG_GREY, 2);
    cli_add(&p->out, "<title>waits: %s: %.3f us from %.3f us on</title></g>\n", s->is.name, s->end - s->begin,
            s->begin - p->first);
    if (inside && width > 7.0 * (double)strlen(s->is.name))
      svg_words(&p->out, x + width / 2, y - 3, 9.5, SVG_MIDDLE, SVG_INK, false, 0, s->is.name);
  }
  if (s->is.kind != RS_TRACE_WORK)
    return;
  char text[TRACE_NAME];
  snprintf(text, sizeof text, s->is.round >= 0 ? "%s %lld" : "%s", s->is.name, (long long)s->is.round);
  cli_add(&p->out, "<g>");
  svg_rectangle(&p->out, x, y - height / 2, fmax(width, 1), height,
                (svg_paint){colour_of(s), s->depth > 0 || s->is.round >= 0 ? 0.92 : 0.6, "#ffffff", 1});
  cli_add(&p->out, "<title>%s: %.3f us from %.3f us on", text, s->end - s->begin, s->begin - p->first);
  if (s->is.bytes >= 0)
    cli_add(&p->out, ", %lld bytes", (long long)s->is.bytes);
  cli_add(&p->out, "</title></g>\n");
  if (s->is.round >= 0) /* the row says what it is */
    snprintf(text, sizeof text, "%lld", (long long)s->is.round);
  if (width > 7.0 * (double)strlen(text) && !has_nested(p->t, s))
    svg_words(&p->out, x + width / 2, y + 4, 11, SVG_MIDDLE, svg_ink_on(colour_of(s)), false, 0, text);
}

/* Draws an edge between the facing sides of two rows, with a head; pale where the event had happened before the stream
 * came to wait. */
static void draw_edge(trace_picture *p, const trace_step *wait) {
  const trace_step *record = &p->t->step[wait->from];
  if (record->track == wait->track)
    return;
  double side = p->y[wait->track] > p->y[record->track] ? 1 : -1;
  double x1 = x_of(p, record->begin), y1 = p->y[record->track] + side * BOX / 2;
  double x2 = x_of(p, wait->end), y2 = p->y[wait->track] - side * BOX / 2, bend = (y2 - y1) / 2;
  const char *colour = trace_same_device(&p->t->track[record->track], &p->t->track[wait->track]) ? SVG_INK : "#c2410c";
  cli_add(&p->out,
          "<g stroke=\"%s\" stroke-opacity=\"%s\" fill=\"none\"><path d=\"M%.2f %.2fC%.2f %.2f %.2f %.2f %.2f %.2f\"/>"
          "<path d=\"M%.2f %.2fL%.2f %.2fL%.2f %.2f\"/><title>%s</title></g>\n",
          colour, record->begin > wait->begin ? "0.75" : "0.22", x1, y1, x1, y1 + bend, x2, y2 - bend, x2, y2, x2 - 3,
          y2 - 5 * side, x2, y2, x2 + 3, y2 - 5 * side, wait->is.name);
}

/* Kinds of things in a picture. */
typedef struct trace_contents {
  bool rounds, no_round, parts, waits, edges, other_gpu;
} trace_contents;

static trace_contents find_contents(const trace_picture *p) {
  const trace *t = p->t;
  trace_contents c = {false, false, false, false, false, false};
  for (const trace_step *s = t->step; s < t->step + t->nsteps; s++) {
    c.rounds |= s->is.kind == RS_TRACE_WORK && s->is.round >= 0;
    c.no_round |= s->is.kind == RS_TRACE_WORK && s->is.round < 0 && s->depth == 0;
    c.parts |= s->is.kind == RS_TRACE_WORK && s->is.round < 0 && s->depth > 0;
    c.waits |= s->is.kind == RS_TRACE_WAIT && (s->end - s->begin) * p->scale > 0.5;
    const trace_step *record = s->from >= 0 ? &t->step[s->from] : NULL;
    bool between = record != NULL && record->track != s->track;
    bool gpus = between && !trace_same_device(&t->track[record->track], &t->track[s->track]);
    c.edges |= between && !gpus;
    c.other_gpu |= gpus;
  }
  return c;
}

/* Draws a box of an opacity or a line of a width, and what it means, from x on; returns where the next one begins. */
static double draw_sign(trace_picture *p, double x, double y, bool box, const char *colour, double weight,
                        const char *meaning) {
  if (box)
    svg_rectangle(&p->out, x, y - 10, 26, 13, (svg_paint){colour, weight, NULL, 0});
  else
    svg_line(&p->out, x, y - 4, x + 26, y - 4, colour, weight);
  svg_words(&p->out, x + 34, y, 11, SVG_START, SVG_GREY, false, 0, meaning);
  return x + 34 + 5.6 * (double)strlen(meaning) + 26;
}

/* Explains what is in the picture, and nothing else. */
static void draw_legend(trace_picture *p, const char *note) {
  double y = p->height - 18, x = LEFT;
  trace_contents c = find_contents(p);
  if (c.rounds) {
    double number = x + 13;
    x = draw_sign(p, x, y, true, svg_rank_colour(0), 0.92, "work of a round");
    svg_words(&p->out, number, y, 10, SVG_MIDDLE, "#ffffff", false, 0, "0");
  }
  if (c.no_round)
    x = draw_sign(p, x, y, true, "#9aa5b1", 0.6, c.rounds ? "of no round" : "work");
  if (c.parts)
    x = draw_sign(p, x, y, true, "#9aa5b1", 0.92, "a part of the work around it");
  if (c.waits)
    x = draw_sign(p, x, y, false, SVG_GREY, 2, "it waits");
  if (c.edges)
    x = draw_sign(p, x, y, false, SVG_INK, 1, "an edge (pale: there is nothing to wait for)");
  if (c.other_gpu)
    x = draw_sign(p, x, y, false, "#c2410c", 1, c.edges ? "to another GPU" : "an edge to another GPU");
  svg_words(&p->out, 24, 56, 12, SVG_START, SVG_GREY, false, 180, note);
}

void trace_svg(const trace *t, const char *title, const char *note, const char *path) {
  trace_picture p = {.t = t};
  place_rows(&p);
  svg_open(&p.out, WIDTH, p.height);
  svg_words(&p.out, 24, 34, 16, SVG_START, SVG_INK, true, 130, title);
  draw_axis(&p);
  draw_rows(&p);
  for (int64_t i = 0; i < t->nsteps; i++)
    draw_step(&p, &t->step[i]);
  for (int64_t i = 0; i < t->nsteps; i++)
    if (t->step[i].from >= 0)
      draw_edge(&p, &t->step[i]);
  draw_legend(&p, note);
  svg_close(&p.out);
  cli_write_file(path, p.out.at, p.out.length);
  free(p.out.at);
  free(p.y);
}
