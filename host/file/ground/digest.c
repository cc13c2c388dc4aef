/* Digests of pieces that are written and read in parts.
 *
 * Each piece counts the bytes that are still to be written. Cells that lie in one write as a whole are digested there,
 * while they are in the cache. Who writes the last bytes of a piece reads back the cells that no write had as a whole,
 * and has the piece's digest. The list of cells is there only while a piece is in work: 2 KiB for a MiB.
 *
 * A piece that is read is checked once: by the first who reads of it, who reads all of it for that. Others go on, as
 * the whole operation fails with the one that finds it wrong. */
#include "file/ground/digest.h"

#include <stdlib.h>
#include <string.h>

#ifdef RS_HAVE_XXHASH
#define XXH_INLINE_ALL
#include <xxhash.h>
bool rs_digest_built(void) { return true; }
uint64_t rs_digest_bytes(const void *bytes, int64_t n) { return XXH3_64bits(bytes, (size_t)n); }
#else
bool rs_digest_built(void) { return false; }
uint64_t rs_digest_bytes(const void *bytes, int64_t n) {
  (void)bytes;
  (void)n;
  return 0;
}
#endif

enum { CELLS = RS_DIGEST_PIECE / RS_DIGEST_CELL };

int64_t rs_digest_pieces(int64_t bytes) { return rs_ceil_div(bytes, RS_DIGEST_PIECE); }

static void print_digest(char digits[RS_DIGEST_DIGITS], uint64_t value) {
  for (int i = 0; i < RS_DIGEST_DIGITS; i++)
    digits[i] = "0123456789abcdef"[value >> (60 - 4 * i) & 15];
}

bool rs_digest_parse(const char *digits, uint64_t *value) {
  uint64_t number = 0;
  for (int i = 0; i < RS_DIGEST_DIGITS; i++) {
    char c = digits[i];
    if ((c < '0' || c > '9') && (c < 'a' || c > 'f'))
      return false;
    number = number << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
  }
  *value = number;
  return true;
}

/* Place of a seal's digits, from the end of its text. */
enum { SEAL = sizeof RS_DIGEST_SEAL - 1, SEAL_DIGITS = RS_DIGEST_DIGITS + 3 };

void rs_digest_seal(char *text, int64_t n) { print_digest(text + n - SEAL_DIGITS, rs_digest_bytes(text, n)); }

/* A seal has its digits in their place, or the word before them: a flipped bit leaves one of them. */
reshard_status rs_digest_check_seal(const char *where, char *text, int64_t n, bool *sealed) {
  static const char seal[] = RS_DIGEST_SEAL;
  uint64_t stored = 0, value = 0;
  char *end = text + n;
  bool digits = n > SEAL && rs_digest_parse(end - SEAL_DIGITS, &stored);
  *sealed = digits || (n > SEAL && memcmp(end - SEAL, seal, SEAL - SEAL_DIGITS) == 0);
  if (!*sealed)
    return RESHARD_SUCCESS;
  if (!rs_digest_built())
    return rs_error(RESHARD_ERROR_UNSUPPORTED, "%s: has a digest, this build checks none, it was made without xxhash",
                    where);
  memset(end - SEAL_DIGITS, '0', RS_DIGEST_DIGITS);
  value = rs_digest_bytes(text, n);
  if (digits && value == stored)
    return RESHARD_SUCCESS;
  return rs_error(RESHARD_ERROR_CORRUPT,
                  "%s: its %lld bytes are not those that were written: their digest is %016llx, %016llx is stored",
                  where, (long long)n, (unsigned long long)value, (unsigned long long)stored);
}

void rs_digests_free(rs_digests *d) {
  if (d == NULL)
    return;
  for (int64_t p = 0; p < d->pieces.n; p++)
    free(d->pieces.at[p].cells);
  free(d->boxes.at);
  free(d->names.at);
  free(d->pieces.at);
  free(d);
}

static int32_t piece_bytes(const rs_digest_box *box, int64_t piece) {
  return (int32_t)rs_min(RS_DIGEST_PIECE, box->end - box->begin - (piece - box->first) * RS_DIGEST_PIECE);
}

reshard_status rs_digests_add(rs_digests *d, int64_t begin, int64_t bytes) {
  int64_t n = rs_digest_pieces(bytes);
  RS_TRY(rs_vec_reserve(&d->boxes, d->boxes.n + 1));
  RS_TRY(rs_vec_reserve(&d->pieces, d->pieces.n + n));
  rs_digest_box *box = &d->boxes.at[d->boxes.n++];
  *box = (rs_digest_box){.begin = begin, .end = begin + bytes, .first = d->pieces.n};
  for (int64_t i = 0; i < n; i++) {
    rs_digest_piece *p = &d->pieces.at[d->pieces.n];
    memset(p, 0, sizeof *p);
    atomic_init(&p->cells, NULL);
    atomic_init(&p->left, piece_bytes(box, d->pieces.n++));
  }
  return RESHARD_SUCCESS;
}

/* The last box that begins at an offset or before it; NULL: none. */
static const rs_digest_box *box_at(const rs_digests *d, int64_t offset) {
  int64_t low = 0, high = d->boxes.n;
  RS_LOWER_BOUND(low, high, d->boxes.at[i].begin <= offset);
  return low > 0 ? &d->boxes.at[low - 1] : NULL;
}

static const rs_digest_box *box_of_piece(const rs_digests *d, int64_t piece) {
  int64_t low = 0, high = d->boxes.n;
  RS_LOWER_BOUND(low, high, d->boxes.at[i].first <= piece);
  return &d->boxes.at[low - 1];
}

/* Bytes that are wanted of one piece. */
typedef struct stretch {
  const rs_digest_box *box;
  int64_t piece;
  int32_t size, at, n; /* bytes of the piece, and which of them */
} stretch;

/* The first stretch of [offset, offset + n), of which the file has a box. */
static bool first_stretch(const rs_digests *d, int64_t offset, int64_t n, stretch *s) {
  s->box = n > 0 ? box_at(d, offset) : NULL;
  if (s->box == NULL || offset >= s->box->end)
    return false;
  int64_t inside = offset - s->box->begin;
  s->piece = s->box->first + inside / RS_DIGEST_PIECE;
  s->size = piece_bytes(s->box, s->piece);
  s->at = (int32_t)(inside % RS_DIGEST_PIECE);
  s->n = (int32_t)rs_min(n, s->size - s->at);
  return true;
}

/* Digest of a list of cells. */
static uint64_t join_cells(const uint64_t *cells, int64_t size) {
  return rs_digest_bytes(cells, rs_ceil_div(size, RS_DIGEST_CELL) * (int64_t)sizeof *cells);
}

/* Digests the cells [first, end) of a piece, whose bytes begin with those of cell `first`. Threads that write the same
 * bytes store the same. */
static void digest_cells(const char *bytes, int64_t first, int64_t end, int32_t size, uint64_t *cells) {
  for (int64_t i = first; i < end; i++) {
    int64_t n = rs_min(RS_DIGEST_CELL, size - i * RS_DIGEST_CELL);
    __atomic_store_n(&cells[i], rs_digest_bytes(bytes + (i - first) * RS_DIGEST_CELL, n), __ATOMIC_RELAXED);
  }
}

/* Reads the cells whose digest is 0: several at a time where they are neighbours. */
static reshard_status read_cells(const rs_file *file, const stretch *s, uint64_t *cells) {
  char bytes[8 * RS_DIGEST_CELL];
  int64_t n = rs_ceil_div(s->size, RS_DIGEST_CELL);
  int64_t begin = s->box->begin + (s->piece - s->box->first) * RS_DIGEST_PIECE;
  for (int64_t i = 0, end; i < n; i = end) {
    for (end = i; end < n && end < i + 8 && cells[end] == 0; end++)
      ;
    if (end == i) {
      end++;
      continue;
    }
    int64_t from = i * RS_DIGEST_CELL, to = rs_min(end * RS_DIGEST_CELL, s->size);
    RS_TRY(rs_file_read_plain(file, begin + from, bytes, to - from));
    digest_cells(bytes, i, end, s->size, cells);
  }
  return RESHARD_SUCCESS;
}

enum { COMPLETE = INT32_MIN / 2 }; /* writers of a piece that is */

/* --- Writing ----------------------------------------------------------------------------------------------------- */

/* The list of a piece's cells, made by the first who needs it. */
static reshard_status cells_of(rs_digest_piece *p, uint64_t **cells) {
  uint64_t *made = NULL;
  *cells = atomic_load(&p->cells);
  if (*cells != NULL)
    return RESHARD_SUCCESS;
  RS_TRY(rs_alloc_zero(&made, CELLS, sizeof *made));
  if (atomic_compare_exchange_strong(&p->cells, cells, made))
    *cells = made;
  else
    free(made);
  return RESHARD_SUCCESS;
}

static reshard_status complete_piece(const rs_file *file, const stretch *s) {
  rs_digest_piece *p = &file->digests->pieces.at[s->piece];
  uint64_t none[CELLS] = {0}, *cells = atomic_exchange(&p->cells, NULL);
  reshard_status status = read_cells(file, s, cells != NULL ? cells : none);
  if (status == RESHARD_SUCCESS)
    p->value = join_cells(cells != NULL ? cells : none, s->size);
  free(cells);
  return status;
}

/* Leaves the piece. The last writer completes it, once all is written; what is written after that, again, counts below
 * 0, and rs_digests_store reads the piece. */
static reshard_status leave_piece(const rs_file *file, const stretch *s) {
  rs_digest_piece *p = &file->digests->pieces.at[s->piece];
  int32_t none = 0;
  bool last = atomic_fetch_sub(&p->writers, 1) == 1 && atomic_load(&p->left) == 0;
  if (!last || !atomic_compare_exchange_strong(&p->writers, &none, COMPLETE))
    return RESHARD_SUCCESS;
  return complete_piece(file, s);
}

static reshard_status write_stretch(const rs_file *file, const stretch *s, const char *bytes) {
  rs_digest_piece *p = &file->digests->pieces.at[s->piece];
  int64_t first = rs_ceil_div(s->at, RS_DIGEST_CELL), end = (s->at + s->n) / RS_DIGEST_CELL;
  if (s->at + s->n == s->size)
    end = rs_ceil_div(s->size, RS_DIGEST_CELL);
  uint64_t *cells;
  reshard_status status = RESHARD_SUCCESS;
  if (atomic_fetch_add(&p->writers, 1) >= 0 && end > first) {
    status = cells_of(p, &cells);
    if (status == RESHARD_SUCCESS)
      digest_cells(bytes + first * RS_DIGEST_CELL - s->at, first, end, s->size, cells);
  }
  atomic_fetch_sub(&p->left, s->n);
  RS_THEN(status, leave_piece(file, s));
  return status;
}

reshard_status rs_digests_written(const rs_file *file, int64_t offset, const char *bytes, int64_t n) {
  stretch s;
  for (; first_stretch(file->digests, offset, n, &s); offset += s.n, bytes += s.n, n -= s.n) {
    if (!atomic_load_explicit(&file->digests->begun, memory_order_relaxed))
      atomic_store_explicit(&file->digests->begun, true, memory_order_relaxed);
    RS_TRY(write_stretch(file, &s, bytes));
  }
  return RESHARD_SUCCESS;
}

reshard_status rs_digests_store(const rs_file *file) {
  rs_digests *d = file->digests;
  char *text;
  RS_TRY(rs_alloc(&text, d->header, 1));
  reshard_status status = rs_file_read_plain(file, 0, text, d->header);
  for (int64_t p = 0; p < d->pieces.n && status == RESHARD_SUCCESS; p++) {
    stretch s = {.box = box_of_piece(d, p), .piece = p};
    s.size = piece_bytes(s.box, p);
    if (atomic_load(&d->pieces.at[p].left) != 0) { /* some of it was written twice: a cell's digest may be older */
      free(atomic_exchange(&d->pieces.at[p].cells, NULL));
      status = complete_piece(file, &s);
    }
    print_digest(text + d->pieces_at + p * RS_DIGEST_DIGITS, d->pieces.at[p].value);
  }
  if (status == RESHARD_SUCCESS) {
    memset(text + d->header_at, '0', RS_DIGEST_DIGITS);
    print_digest(text + d->header_at, rs_digest_bytes(text, d->header));
    status = rs_file_write_at(file, 0, text, d->header);
  }
  free(text);
  return status;
}

/* --- Reading ----------------------------------------------------------------------------------------------------- */

static reshard_status compare_piece(const rs_file *file, const stretch *s, uint64_t *cells) {
  rs_digests *d = file->digests;
  RS_TRY(read_cells(file, s, cells));
  uint64_t value = join_cells(cells, s->size), stored = d->pieces.at[s->piece].value;
  if (value == stored) {
    atomic_fetch_add(&d->checked, s->size);
    return RESHARD_SUCCESS;
  }
  char where[RS_WHERE];
  int64_t begin = s->box->begin + (s->piece - s->box->first) * RS_DIGEST_PIECE;
  return rs_error(RESHARD_ERROR_CORRUPT,
                  "%s: %s: bytes %lld to %lld of the file are not those that were written: their digest is %016llx, "
                  "%016llx is stored",
                  rs_where(where, "file", file->path), d->names.at + s->box->name, (long long)begin,
                  (long long)(begin + s->size - 1), (unsigned long long)value, (unsigned long long)stored);
}

reshard_status rs_digests_check(const rs_file *file, int64_t piece) {
  uint64_t cells[CELLS] = {0};
  stretch s = {.box = box_of_piece(file->digests, piece), .piece = piece};
  s.size = piece_bytes(s.box, piece);
  return compare_piece(file, &s, cells);
}

reshard_status rs_digests_read(const rs_file *file, int64_t offset, const char *bytes, int64_t n) {
  stretch s;
  for (; first_stretch(file->digests, offset, n, &s); offset += s.n, bytes += s.n, n -= s.n) {
    rs_digest_piece *p = &file->digests->pieces.at[s.piece];
    int32_t left = s.size;
    if (!atomic_compare_exchange_strong(&p->left, &left, 0))
      continue;
    uint64_t cells[CELLS] = {0};
    if (s.n == s.size)
      digest_cells(bytes, 0, rs_ceil_div(s.size, RS_DIGEST_CELL), s.size, cells);
    RS_TRY(compare_piece(file, &s, cells));
  }
  return RESHARD_SUCCESS;
}
