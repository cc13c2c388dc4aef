#include "comm/bootstrap/bootstrap.h"

#include <stdint.h>
#include <string.h>

enum { BLOCK = 64 };

typedef struct sha256_state {
  uint32_t h[8];
  uint64_t bytes;
  unsigned char block[BLOCK]; /* the last bytes, bytes % BLOCK of them */
} sha256_state;

static const uint32_t sha256_start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static const uint32_t sha256_rounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int by) { return x >> by | x << (32 - by); }

static void sha256_block(uint32_t h[8], const unsigned char *block) {
  uint32_t w[64], v[8];
  for (int i = 0; i < 16; i++)
    w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
           block[4 * i + 3];
  for (int i = 16; i < 64; i++) {
    uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
  }
  memcpy(v, h, sizeof v);
  for (int i = 0; i < 64; i++) {
    uint32_t a = v[0], e = v[4];
    uint32_t one =
        v[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + sha256_rounds[i] + w[i];
    uint32_t two = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
    memmove(v + 1, v, 7 * sizeof *v);
    v[4] += one;
    v[0] = one + two;
  }
  for (int i = 0; i < 8; i++)
    h[i] += v[i];
}

static void sha256_add(sha256_state *s, const void *bytes, size_t n) {
  const unsigned char *at = bytes;
  while (n > 0) {
    size_t full = s->bytes % BLOCK, some = n < BLOCK - full ? n : BLOCK - full;
    memcpy(s->block + full, at, some);
    s->bytes += some;
    at += some;
    n -= some;
    if (s->bytes % BLOCK == 0)
      sha256_block(s->h, s->block);
  }
}

static sha256_state sha256_begin(void) {
  sha256_state s = {.bytes = 0};
  memcpy(s.h, sha256_start, sizeof s.h);
  return s;
}

static void sha256_end(sha256_state *s, unsigned char digest[RS_SHA256_BYTES]) {
  uint64_t bits = s->bytes * 8;
  unsigned char length[8];
  for (int i = 0; i < 8; i++)
    length[i] = (unsigned char)(bits >> (56 - 8 * i));
  sha256_add(s, "\x80", 1);
  while (s->bytes % BLOCK != BLOCK - sizeof length)
    sha256_add(s, "", 1);
  sha256_add(s, length, sizeof length);
  for (int i = 0; i < RS_SHA256_BYTES; i++)
    digest[i] = (unsigned char)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

void rs_sha256(const void *bytes, size_t n, unsigned char digest[RS_SHA256_BYTES]) {
  sha256_state s = sha256_begin();
  sha256_add(&s, bytes, n);
  sha256_end(&s, digest);
}

void rs_hmac_sha256(const void *key, size_t key_bytes, const void *bytes, size_t n,
                    unsigned char mac[RS_SHA256_BYTES]) {
  unsigned char pads[2][BLOCK] = {{0}};
  if (key_bytes > BLOCK)
    rs_sha256(key, key_bytes, pads[0]);
  else
    memcpy(pads[0], key, key_bytes);
  for (int i = 0; i < BLOCK; i++) {
    pads[1][i] = pads[0][i] ^ 0x5c;
    pads[0][i] ^= 0x36;
  }
  sha256_state inner = sha256_begin(), outer = sha256_begin();
  sha256_add(&inner, pads[0], BLOCK);
  sha256_add(&inner, bytes, n);
  sha256_end(&inner, mac);
  sha256_add(&outer, pads[1], BLOCK);
  sha256_add(&outer, mac, RS_SHA256_BYTES);
  sha256_end(&outer, mac);
}
