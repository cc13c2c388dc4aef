/* The box copy kernels, run without a GPU, against loops that move one element at a time: any shape of copy, all kinds
 * of tiles, several programs in one launch. Each allocation that kernels see is exact, so that an access out of bounds
 * is one for the sanitizer as well. */
#include "device/cuda/tiles.h"
#include "support/fixtures/expect.h"
#include "support/oracles/box_copy.h"

#include "executor/probes.h"
#include "simt.h"
#include "support/fixtures/draw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fixtures/case.h"

#if defined(__SANITIZE_ADDRESS__)
enum { CASES = 500 }; /* ten times as slow */
#else
enum { CASES = 2000 };
#endif
enum { MAX_AXES = RS_BOX_LOOPS, SMS = 4 };

static uint64_t seed;
static int64_t hits[RS_BOX_TRANSPOSE + 1][3]; /* tiles by kind and loops (one, two, more) */
static int64_t contiguous_hits[2], bulk_hits[2], transpose_hits[5],
    unequal_hits; /* rows class or not; by element; shifted rows */

/* --- Copies, and what they should do --- */

/* A copy whose addresses are relative to the lowest byte that it touches on either side. */
typedef struct box {
  int32_t element;
  int naxes;
  rs_axis axes[MAX_AXES];
  int64_t src, dst;             /* of the first element */
  int64_t src_size, dst_size;   /* bytes from the lowest to behind the highest */
  int64_t src_shift, dst_shift; /* where the lowest byte is, modulo 256 */
} box;

static void measure(box *b) {
  b->src = b->dst = 0;
  b->src_size = b->dst_size = b->element;
  for (int i = 0; i < b->naxes; i++) {
    int64_t src = (b->axes[i].n - 1) * b->axes[i].src, dst = (b->axes[i].n - 1) * b->axes[i].dst;
    b->src += src < 0 ? -src : 0;
    b->dst += dst < 0 ? -dst : 0;
    b->src_size += llabs(src);
    b->dst_size += llabs(dst);
  }
}

/* One list of boxes with memory of its own. */
typedef struct program {
  int n;
  box *boxes;
  char **src, **dst; /* exact allocations */
  char **want;
  rs_copies copies;
  rs_box_tables tables;
  rs_box_part part[RS_BOX_CLASSES];
  char *memory; /* of the tables */
} program;

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define FORBID(at, n) ASAN_POISON_MEMORY_REGION(at, n)
#else
#define FORBID(at, n) ((void)(at), (void)(n))
#endif

/* Memory of size bytes whose address is shift modulo 256; nothing behind the last byte, and nothing before the first
 * one as far as the sanitizer can tell: in whole 8 bytes. */
static char *exact(int64_t size, int64_t shift) {
  char *base = NULL;
  if (posix_memalign((void **)&base, 256, (size_t)(size + shift)) != 0)
    abort();
  FORBID(base, (size_t)(shift / 8 * 8));
  return base + shift;
}

static void add_box(program *p, const box *b) {
  p->boxes = realloc(p->boxes, (size_t)(p->n + 1) * sizeof *p->boxes);
  p->src = realloc(p->src, (size_t)(p->n + 1) * sizeof *p->src);
  p->dst = realloc(p->dst, (size_t)(p->n + 1) * sizeof *p->dst);
  p->want = realloc(p->want, (size_t)(p->n + 1) * sizeof *p->want);
  char *src = exact(b->src_size, b->src_shift), *dst = exact(b->dst_size, b->dst_shift);
  char *want = malloc((size_t)b->dst_size);
  for (int64_t i = 0; i < b->src_size; i++)
    src[i] = (char)draw();
  memset(dst, 0x5a, (size_t)b->dst_size);
  memset(want, 0x5a, (size_t)b->dst_size);
  oracle_box_copy(src + b->src, want + b->dst, b->element, b->naxes, b->axes);
  p->boxes[p->n] = *b;
  p->src[p->n] = src;
  p->dst[p->n] = dst;
  p->want[p->n] = want;
  p->n++;
  GOOD(rs_copies_add(&p->copies, src + b->src, dst + b->dst, b->element, b->naxes, b->axes));
}

static void note_hits(const program *p) {
  for (int c = 0; c < RS_BOX_CLASSES; c++)
    for (int64_t i = 0; i < p->tables.tile[c].n; i++) {
      const rs_box_tile *tile = &p->tables.tile[c].at[i];
      const rs_box_shape *shape = tile->shape == RS_BOX_CONTIGUOUS ? NULL : &p->tables.shape.at[tile->shape];
      if (c == RS_BOX_BULK)
        bulk_hits[shape != NULL]++;
      else if (shape == NULL)
        contiguous_hits[((uintptr_t)tile->src - (uintptr_t)tile->dst) % 16 != 0]++;
      else {
        hits[shape->kind][shape->inside < 2 ? shape->inside : 2]++;
        unequal_hits += shape->kind == RS_BOX_SLOTS && !shape->agree;
        if (shape->kind == RS_BOX_TRANSPOSE)
          transpose_hits[__builtin_ctz(shape->run)]++;
      }
    }
}

static void program_make(program *p, const rs_box_policy *policy) {
  GOOD(rs_box_tables_make(&p->tables, &p->copies, policy));
  int64_t bytes = rs_box_tables_bytes(&p->tables);
  p->memory = malloc((size_t)bytes + 1);
  rs_box_tables_write(&p->tables, p->memory, p->memory, p->part);
  note_hits(p);
}

/* closed: of a batch, known early or late; NULL, or a word. */
/* Blocks that share a tile: a power of two. */
static int64_t bulk_parts(const rs_box_batch *batch) {
  int64_t parts = 1, largest = 0;
  for (uint32_t i = 0; i < batch->nparts; i++)
    largest = rs_max(largest, batch->part[i].largest);
  while (parts * 16 * RS_BOX_BULK_THREADS * RS_BOX_BULK_LOADS < largest)
    parts *= 2;
  return parts;
}

static void classes_launch(program *programs, int n, const uint32_t *closed) {
  int (*const launch[])(const rs_box_batch *, uint32_t, void *) = {rs_box_rows_launch, rs_box_transpose_launch,
                                                                   rs_box_bulk_launch};
  for (int c = 0; c < RS_BOX_CONVERTS; c++) {
    rs_box_batch batch = {.loads = below(2) == 0 ? 0 : 1u << (1 + below(3))};
    *(below(2) == 0 ? &batch.closed : &batch.closed_late) = closed;
    for (int i = 0; i < n; i++)
      if (programs[i].part[c].count > 0) {
        assert_true(rs_box_batch_add(&batch, &programs[i].part[c]));
      }
    rs_box_batch_close(&batch);
    uint32_t most = below(2) == 0 ? 0 : 1 + (uint32_t)below(5);
    int64_t before = simt_get_counts().blocks;
    int64_t blocks = c == RS_BOX_BULK ? batch.tiles * bulk_parts(&batch) : batch.tiles;
    assert_int_equal(launch[c](&batch, most, NULL), 0);
    assert_int_equal(simt_get_counts().blocks - before, most > 0 ? rs_min(blocks, most) : blocks);
  }
}

/* After a meeting that has failed nothing is copied. */
static void programs_launch(program *programs, int n) {
  static const uint32_t words[] = {0, 1};
  bool fails = below(4) == 0;
  if (fails)
    classes_launch(programs, n, &words[1]);
  for (int i = 0; i < n && fails; i++)
    for (int k = 0; k < programs[i].n; k++)
      for (int64_t at = 0; at < programs[i].boxes[k].dst_size; at++)
        assert_int_equal(programs[i].dst[k][at], 0x5a);
  classes_launch(programs, n, below(2) == 0 ? &words[0] : NULL);
}

static void program_check(program *p) {
  for (int i = 0; i < p->n; i++) {
    const box *b = &p->boxes[i];
    if (memcmp(p->dst[i], p->want[i], (size_t)b->dst_size) == 0)
      continue;
    int64_t at = 0;
    while (p->dst[i][at] == p->want[i][at])
      at++;
    char text[512] = "";
    for (int k = 0, used = 0; k < b->naxes; k++)
      used += snprintf(text + used, sizeof text - (size_t)used, " %lldx(%lld,%lld)", (long long)b->axes[k].n,
                       (long long)b->axes[k].src, (long long)b->axes[k].dst);
    fail_msg("seed %llu: box %d of %d, element %d,%s: byte %lld of %lld is %02x, not %02x", (unsigned long long)seed, i,
             p->n, b->element, text, (long long)at, (long long)b->dst_size, p->dst[i][at] & 255, p->want[i][at] & 255);
  }
}

static void clear(program *p) {
  for (int i = 0; i < p->n; i++) {
    free(p->src[i] - p->boxes[i].src_shift);
    free(p->dst[i] - p->boxes[i].dst_shift);
    free(p->want[i]);
  }
  free(p->boxes);
  free(p->src);
  free(p->dst);
  free(p->want);
  free(p->memory);
  rs_copies_free(&p->copies);
  rs_box_tables_free(&p->tables);
  *p = (program){0};
}

/* --- Random boxes --- */

/* Loops of the destination from the inside out, with gaps here and there; those of the source in the same order or in
 * another one, with gaps, of zero stride, or turned round; then all of them shuffled. */
static box random_box(int64_t most) {
  box b = {.element = 1 << below(5), .naxes = (int)below(9)};
  int64_t extent = b.element, reach = b.element, grain = below(3) == 0 ? b.element : below(2) == 0 ? 16 : 4;
  grain = rs_max(grain, b.element);
  for (int i = b.naxes - 1; i >= 0; i--) {
    b.axes[i].n = between(1, rs_max(rs_min(most / extent, below(3) == 0 ? 300 : 9), 1));
    b.axes[i].dst = extent + (below(3) == 0 ? below(6) * b.element : 0);
    if (below(2) == 0)
      b.axes[i].dst = (b.axes[i].dst + grain - 1) / grain * grain;
    extent += (b.axes[i].n - 1) * b.axes[i].dst;
  }
  int order[MAX_AXES];
  for (int i = 0; i < b.naxes; i++)
    order[i] = i;
  for (int i = b.naxes - 1; i > 0 && below(2) == 0; i--) {
    int j = (int)below(i + 1), swap = order[i];
    order[i] = order[j];
    order[j] = swap;
  }
  for (int k = b.naxes - 1; k >= 0; k--) {
    rs_axis *axis = &b.axes[order[k]];
    axis->src = below(12) == 0 ? 0 : reach + (below(4) == 0 ? below(40) * b.element : 0);
    if (below(2) == 0)
      axis->src = (axis->src + grain - 1) / grain * grain;
    if (axis->n * axis->src > 1 << 20)
      axis->src = b.element;
    reach = rs_max(axis->n * axis->src, reach);
  }
  for (int i = 0; i < b.naxes; i++)
    if (below(4) == 0) {
      b.axes[i].src = -b.axes[i].src;
      if (below(2) == 0)
        b.axes[i].dst = -b.axes[i].dst;
    }
  for (int i = b.naxes - 1; i > 0; i--) {
    int j = (int)below(i + 1);
    rs_axis swap = b.axes[i];
    b.axes[i] = b.axes[j];
    b.axes[j] = swap;
  }
  bool aligned = below(2) == 0;
  b.src_shift = aligned ? below(8) * 16 : below(150);
  b.dst_shift = aligned ? below(8) * 16 : below(3) == 0 ? b.src_shift : below(150);
  measure(&b);
  return b;
}

/* Shapes that plans are made of: rows of any width with gaps, transposes. */
static box regular_box(int64_t most) {
  int32_t element = 1 << below(5);
  int64_t width = element * (below(3) == 0 ? between(1, 8) : below(2) == 0 ? between(1, 90) : between(90, 2000));
  if (below(3) == 0)
    width = (width + 15) / 16 * 16;
  box b = {.element = element};
  if (below(2) == 0) { /* rows, in groups, in groups */
    int64_t src = width, dst = width, whole = below(2) == 0 ? 16 : element;
    b.naxes = (int)between(2, 5);
    for (int i = b.naxes - 2; i >= 0; i--) {
      int64_t n = between(1, i > 0 ? 4 : rs_max(most / dst, 3));
      src = (src + below(2) * below(5) * element + whole - 1) / whole * whole;
      dst = (dst + below(2) * below(5) * element + whole - 1) / whole * whole;
      b.axes[i] = (rs_axis){n, src, dst};
      src *= n;
      dst *= n;
    }
    b.axes[b.naxes - 1] = (rs_axis){width / element, element, element};
  } else {
    int64_t lanes = below(4) == 0 ? 3 : 1, run = lanes * element; /* pixels of three */
    int64_t ni = between(1, 300), nj = between(1, rs_max(rs_min(most / (ni * run), 300), 1)), outer = between(1, 3);
    int64_t src = (ni + below(2) * below(9)) * run, dst = (nj + below(2) * below(9)) * run;
    if (below(2) == 0) {
      src = (src + 15) / 16 * 16;
      dst = (dst + 15) / 16 * 16;
    }
    b.naxes = 4;
    b.axes[0] = (rs_axis){outer, src * nj, dst * ni};
    b.axes[1] = (rs_axis){ni, below(4) == 0 ? -run : run, dst};
    b.axes[2] = (rs_axis){nj, src, run};
    b.axes[3] = (rs_axis){lanes, element, element};
  }
  b.src_shift = below(2) == 0 ? 0 : below(140) / element * element;
  b.dst_shift = below(2) == 0 ? 0 : below(140) / element * element;
  measure(&b);
  return b;
}

/* For the bulk kernel. */
static box long_rows(void) {
  int64_t width = between(128, below(2) == 0 ? 520 : 3000) * 16;
  box b = {.element = 16, .naxes = 3, .src_shift = below(16) * 16, .dst_shift = below(16) * 16};
  b.axes[0] = (rs_axis){between(1, 3), (3 + below(2)) * 2 * width, 6 * (width + 16)};
  b.axes[1] = (rs_axis){between(1, 6), below(3) == 0 ? -2 * width : width + below(2) * 32, width + below(2) * 16};
  b.axes[2] = (rs_axis){width / 16, 16, 16};
  b.axes[1].n = rs_min(b.axes[1].n, rs_max((48 << 10) / width, 1));
  measure(&b);
  return b;
}

static rs_box_policy random_policy(void) {
  static const int64_t tiles[] = {0, 4096, 8192, 5120, RS_BOX_TILE, RS_BOX_TILE_MOST};
  return (rs_box_policy){SMS, tiles[below(6)], below(2) == 0 ? 1 : 0, below(2) == 0 ? 0 : 8 << below(5)};
}

CASE(random_boxes) {
  for (int k = 0; k < CASES; k++) {
    draw_state = seed = 20261121 + (uint64_t)k;
    simt_set_order(seed % 3 == 0 ? 0 : seed);
    program programs[4] = {0};
    int n = below(3) == 0 ? (int)between(2, 4) : 1;
    for (int i = 0; i < n; i++) {
      rs_box_policy policy = random_policy();
      bool bulk = policy.bulk_from == 1 && below(2) == 0;
      for (int64_t boxes = between(0, 4); boxes >= 0; boxes--) {
        int64_t most = below(4) == 0 ? 48 << 10 : 6 << 10;
        box b = bulk ? long_rows() : below(2) == 0 ? random_box(most) : regular_box(most);
        add_box(&programs[i], &b);
      }
      program_make(&programs[i], &policy);
    }
    programs_launch(programs, n);
    for (int i = 0; i < n; i++) {
      program_check(&programs[i]);
      clear(&programs[i]);
    }
  }
}

/* Each width, each pair of alignments, rows around the sizes at which the kind changes. */
CASE(every_alignment) {
  static const int64_t runs[] = {1, 2, 3, 7, 8, 12, 16, 31, 32, 48, 63, 100, 127, 128, 129, 144, 160, 255, 256, 1000};
  draw_state = seed = 7;
  simt_set_order(seed);
  for (size_t r = 0; r < sizeof runs / sizeof *runs; r++)
    for (int64_t shift = 0; shift < 16; shift++) {
      program p = {0};
      for (int64_t to = 0; to < 16; to += runs[r] < 120 ? 5 : 1) {
        int64_t gap = below(4) * 16 + (below(2) == 0 ? below(16) : -runs[r] % 16 + 16);
        box b = {.element = 1, .naxes = 2, .src_shift = shift, .dst_shift = to};
        b.axes[0] = (rs_axis){3, runs[r] + gap, runs[r] + (below(2) == 0 ? gap : below(20))};
        b.axes[1] = (rs_axis){runs[r], 1, 1};
        measure(&b);
        add_box(&p, &b);
      }
      program_make(&p, &(rs_box_policy){SMS, 0, 0, 0});
      programs_launch(&p, 1);
      program_check(&p);
      clear(&p);
    }
}

/* Rows of 1 to 16 bytes that lie between each other's, as one copy or as one for each place in the lines. */
CASE(rows_between_each_other) {
  for (seed = 1; seed <= CASES / 10; seed++) {
    draw_state = seed;
    program p = {0};
    int32_t element = 1 << below(4);
    int64_t run = element * between(1, 16 / element), k = between(2, rs_max(127 / run, 2)), m = between(1, 900);
    int64_t leap = k * run + (below(2) == 0 ? below(5) * element : 0), apart = below(4) == 0 ? m * run + 32 : m * run;
    box b = {.element = element, .naxes = 3, .src_shift = below(40) * element, .dst_shift = below(40) * element};
    b.axes[0] = (rs_axis){k, below(6) == 0 ? -run : run, apart};
    b.axes[1] = (rs_axis){m, below(6) == 0 ? -leap : leap, run};
    b.axes[2] = (rs_axis){run / element, element, element};
    measure(&b);
    add_box(&p, &b);
    if (below(3) > 0) {
      rs_copies_clear(&p.copies);
      int64_t first = below(3) == 0 ? below(k) : 0; /* ranks may begin with their own */
      for (int64_t i = first, left = k; left > 0; left--, i = (i + 1) % k)
        GOOD(rs_copies_add(&p.copies, p.src[0] + b.src + i * b.axes[0].src, p.dst[0] + b.dst + i * b.axes[0].dst,
                           element, 2, b.axes + 1));
    }
    rs_box_policy policy = random_policy();
    program_make(&p, &policy);
    programs_launch(&p, 1);
    program_check(&p);
    clear(&p);
  }
}

/* Transposes of 1 and 2 bytes whose rows begin and end anywhere in a word. */
CASE(transposes_of_unaligned_rows) {
  static const int64_t sizes[] = {8, 9, 31, 64, 66, 95, 127, 128, 129, 131, 254, 257};
  for (seed = 1; seed <= CASES / 8; seed++) {
    draw_state = seed;
    program p = {0};
    int32_t element = 1 << below(2);
    int64_t ni = sizes[below(12)], nj = sizes[below(12)];
    box b = {.element = element, .naxes = 2, .src_shift = below(4) * element, .dst_shift = below(4) * element};
    b.axes[0] = (rs_axis){ni, element, (nj + below(5)) * element};
    b.axes[1] = (rs_axis){nj, rs_max(ni, 128) * element + below(5) * element, element};
    measure(&b);
    add_box(&p, &b);
    program_make(&p, &(rs_box_policy){SMS, RS_BOX_TILE, 0, 0});
    assert_true(p.part[RS_BOX_TRANSPOSES].count > 0);
    programs_launch(&p, 1);
    program_check(&p);
    clear(&p);
  }
}

/* As many loops as a tile can have, turned round in the source. */
CASE(tiles_of_the_most_loops) {
  for (seed = 1; seed <= 4; seed++) {
    draw_state = seed;
    program p = {0};
    box b = {.element = 1, .naxes = RS_BOX_LOOPS};
    for (int i = 0; i < RS_BOX_LOOPS; i++)
      b.axes[i] = (rs_axis){2, 1 << i, 1 << (RS_BOX_LOOPS - 1 - i)};
    measure(&b);
    add_box(&p, &b);
    add_box(&p, &b);
    program_make(&p, &(rs_box_policy){SMS, RS_BOX_TILE_MOST, 0, 0});
    assert_int_equal(p.part[RS_BOX_ROWS].count, 2);
    assert_int_equal(p.tables.shape.at[0].inside, RS_BOX_LOOPS - 1);
    programs_launch(&p, 1);
    program_check(&p);
    clear(&p);
  }
}

CASE(batches_of_the_most_parts_are_copied_whole) {
  static program programs[RS_BOX_PARTS];
  draw_state = seed = 20261129;
  for (int i = 0; i < RS_BOX_PARTS; i++) {
    box few = {.element = 4, .naxes = 2, .axes = {{5, 40, 24}, {3, 4, 4}}}, many = long_rows();
    measure(&few);
    add_box(&programs[i], &few);
    add_box(&programs[i], &many);
    program_make(&programs[i], &(rs_box_policy){SMS, RS_BOX_TILE_MOST, 1, 0});
    assert_true(programs[i].part[RS_BOX_ROWS].count > 0 && programs[i].part[RS_BOX_BULK].count > 0);
  }
  programs_launch(programs, RS_BOX_PARTS);
  for (int i = 0; i < RS_BOX_PARTS; i++) {
    program_check(&programs[i]);
    clear(&programs[i]);
  }
}

/* Conditions that every kind must have met by now. */
CASE(all_were_hit) {
  for (int kind = 0; kind <= RS_BOX_SLOTS; kind++)
    for (int loops = 0; loops < 3; loops++)
      if (hits[kind][loops] == 0)
        fail_msg("no tile of kind %d with %d loops inside", kind, loops);
  for (int e = 0; e < 5; e++)
    assert_true(transpose_hits[e] > 0);
  assert_true(contiguous_hits[0] > 0 && contiguous_hits[1] > 0);
  assert_true(bulk_hits[0] > 0 && bulk_hits[1] > 0);
  assert_true(unequal_hits > 0);
  print_message("tiles by kind:");
  for (int kind = 0; kind <= RS_BOX_TRANSPOSE; kind++)
    print_message(" %lld", (long long)(hits[kind][0] + hits[kind][1] + hits[kind][2]));
  print_message("; contiguous %lld and shifted %lld, bulk %lld and rows %lld\n", (long long)contiguous_hits[0],
                (long long)contiguous_hits[1], (long long)bulk_hits[0], (long long)bulk_hits[1]);
}

/* --- Spans --- */

CASE(spans_are_copied_whole) {
  static const uint32_t words[] = {0, 1};
  for (int k = 0; k < CASES / 20; k++) {
    draw_state = seed = 900 + (uint64_t)k;
    rs_box_spans list = {.tile = (uint32_t)between(1, below(4) == 0 ? 320 : 16) * 128};
    char *src[RS_BOX_SPANS], *dst[RS_BOX_SPANS];
    int64_t bytes[RS_BOX_SPANS], from[RS_BOX_SPANS], to[RS_BOX_SPANS];
    int n = (int)below(k % 5 == 0 ? RS_BOX_SPANS + 1 : 8);
    for (int i = 0; i < n; i++) {
      bytes[i] = between(1, below(3) == 0 ? 40000 : 300);
      from[i] = below(140);
      to[i] = below(2) == 0 ? from[i] : below(140);
      src[i] = exact(bytes[i], from[i]);
      dst[i] = exact(bytes[i], to[i]);
      for (int64_t at = 0; at < bytes[i]; at++)
        src[i][at] = (char)draw();
      memset(dst[i], 0x5a, (size_t)bytes[i]);
      assert_true(rs_box_spans_add(&list, src[i], dst[i], bytes[i]));
    }
    if (n == RS_BOX_SPANS)
      assert_false(rs_box_spans_add(&list, src[0], dst[0], 1));
    uint32_t most = below(2) == 0 ? 0 : 1 + (uint32_t)below(5);
    list.closed = &words[1];
    assert_int_equal(rs_box_spans_launch(&list, most, NULL), 0);
    for (int i = 0; i < n; i++)
      for (int64_t at = 0; at < bytes[i]; at++)
        assert_int_equal(dst[i][at], 0x5a);
    list.closed = below(2) == 0 ? &words[0] : NULL;
    int64_t before = simt_get_counts().blocks;
    assert_int_equal(rs_box_spans_launch(&list, most, NULL), 0);
    if (most > 0)
      assert_in_range(simt_get_counts().blocks - before, 0, most);
    for (int i = 0; i < n; i++) {
      assert_memory_equal(src[i], dst[i], (size_t)bytes[i]);
      free(src[i] - from[i]);
      free(dst[i] - to[i]);
    }
  }
}

/* Each class brings all of its kernels. */
CASE(each_class_of_copy_has_all_its_kernels) {
  int64_t before = simt_get_counts().loads;
  assert_int_equal(rs_box_rows_load(), 0);
  assert_int_equal(simt_get_counts().loads - before, 11);
  assert_int_equal(rs_box_transpose_load(), 0);
  assert_int_equal(rs_box_bulk_load(), 0);
  assert_int_equal(simt_get_counts().loads - before, 14);
}

CASE(a_kernel_that_cannot_be_loaded_is_the_error_of_its_class) {
  enum { NO_KERNEL_IMAGE = 209 };
  static const struct {
    int (*load)(void);
    int kernels;
  } class[] = {{rs_box_rows_load, 11}, {rs_box_transpose_load, 2}, {rs_box_bulk_load, 1}};
  for (int c = 0; c < 3; c++)
    for (int k = 1; k <= class[c].kernels; k++) {
      const int64_t before = simt_get_counts().loads;
      simt_fail_load(k, NO_KERNEL_IMAGE);
      assert_int_equal(class[c].load(), NO_KERNEL_IMAGE);
      assert_int_equal(simt_get_counts().loads - before, k);
    }
  simt_fail_load(0, 0);
}

int main(void) {
  _Static_assert(sizeof(rs_box_shape) == 64 && sizeof(rs_box_tile) == 24, "as the kernels read them");
  _Static_assert(sizeof(rs_box_batch) <= 4096 && sizeof(rs_box_spans) <= 4096, "parameters of a launch");
  return case_list_run(__FILE__, NULL, NULL);
}
