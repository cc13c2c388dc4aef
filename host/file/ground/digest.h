/* Digests of the data of a file: one for each MiB of each box in it.
 *
 * A digest is XXH3 (64 bits) of a list of numbers, each of 8 bytes, the lowest first: XXH3 of each 4 KiB. So threads
 * that write parts of a MiB, in any order, each take what they have in their cache. */
#ifndef RS_FILE_DIGEST_H
#define RS_FILE_DIGEST_H

#include "file/ground/file.h"

#include <stdatomic.h>

#define RS_DIGEST_PIECE  ((int64_t)1 << 20)
#define RS_DIGEST_CELL   ((int64_t)4096)
#define RS_DIGEST_DIGITS 16

/* Digests in the header of a safetensors file: an entry of "__metadata__", a JSON text, which is found by its bytes.
 * The parts stand before the digest of the header, between it and those of the pieces, and behind these. The header's
 * is XXH3 of all its bytes, with zeros for its own digits. */
#define RS_DIGEST_KEY     "\"reshard_digests\""
#define RS_DIGEST_HASH    "{\\\"version\\\":1,\\\"hash\\\":\\\"xxh3\\\",\\\"piece\\\":1048576,\\\"cell\\\":4096,"
#define RS_DIGEST_BEFORE  "," RS_DIGEST_KEY ":\"" RS_DIGEST_HASH "\\\"header\\\":\\\""
#define RS_DIGEST_BETWEEN "\\\",\\\"pieces\\\":\\\""
#define RS_DIGEST_BEHIND  "\\\"}\""

/* A MiB of a box, or what is left of it at its end. */
typedef struct rs_digest_piece {
  _Atomic(uint64_t *) cells; /* of a piece that is written in parts: digests of its cells so far, 0 for the others */
  _Atomic int32_t left;      /* bytes that are not written; of a file that is read: above 0 until it is checked */
  _Atomic int32_t writers;   /* that use `cells` now; below 0: it is complete, and they are freed */
  uint64_t value;
} rs_digest_piece;

typedef struct rs_digest_box {
  int64_t begin, end; /* bytes of the file */
  int64_t first;      /* its first piece */
  int64_t name;       /* of a file that is read: where its name begins in `names` */
} rs_digest_box;

/* Boxes lie one behind the other, from the end of the header to the end of the file. */
struct rs_digests {
  bool reading;
  RS_VEC(rs_digest_box) boxes;
  RS_VEC(char) names; /* "tensor 'a', box [0,4)x[8,12)", a NUL behind each */
  RS_VEC(rs_digest_piece) pieces;
  int64_t header;               /* bytes of the header */
  int64_t header_at, pieces_at; /* of a file that is written: where the digits of both stand in its header */
  _Atomic bool begun;           /* some of it was written here */
  _Atomic int64_t checked;      /* bytes whose digest was found right */
};

/* True in a build that has XXH3. */
bool rs_digest_built(void);
int64_t rs_digest_pieces(int64_t bytes);
/* Digest of bytes as they are, not of a list. 0 in a build without XXH3. */
uint64_t rs_digest_bytes(const void *bytes, int64_t n);
bool rs_digest_parse(const char *digits, uint64_t *value);

/* The leaves of a state dict that are no tensors: a JSON text in the directory, with a digest of its own at its end.
 * rs_digest_seal puts it in the place of the zeros of RS_DIGEST_SEAL. The other checks it: RESHARD_ERROR_CORRUPT;
 * *sealed: the text has one. */
#define RS_STATE_JSON  "state.json"
#define RS_DIGEST_SEAL "\"digest\": \"0000000000000000\"}\n"
void rs_digest_seal(char *text, int64_t n);
reshard_status rs_digest_check_seal(const char *where, char *text, int64_t n, bool *sealed);

/* Appends a box behind the last one. */
reshard_status rs_digests_add(rs_digests *digests, int64_t begin, int64_t bytes);
/* Takes note of bytes that were written, and of bytes that were read: the first to read of a piece reads all of it.
 * Errors: RESHARD_ERROR_CORRUPT naming file, box and bytes; of the file. */
reshard_status rs_digests_written(const rs_file *file, int64_t offset, const char *bytes, int64_t n);
reshard_status rs_digests_read(const rs_file *file, int64_t offset, const char *bytes, int64_t n);
/* Reads and checks a piece. */
reshard_status rs_digests_check(const rs_file *file, int64_t piece);
/* All is written: puts the digests into the header, and that of the header itself. */
reshard_status rs_digests_store(const rs_file *file);
void rs_digests_free(rs_digests *digests);

#endif
