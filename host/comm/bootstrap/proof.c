/* Proofs that a side of a rendezvous has the secret, which is never sent. */
#include "comm/bootstrap/bootstrap.h"

#include <string.h>
#include <sys/random.h>

/* All that a proof is over, without gaps. */
typedef struct proof_text {
  int64_t what;
  rs_greeting greeting;
  rs_welcome welcome;
  unsigned char digest[RS_SHA256_BYTES];
} proof_text;
_Static_assert(sizeof(proof_text) == sizeof(int64_t) + sizeof(rs_greeting) + sizeof(rs_welcome) + RS_SHA256_BYTES &&
                   sizeof(rs_greeting) == 7 * sizeof(int64_t) + sizeof(rs_proof) &&
                   sizeof(rs_welcome) == sizeof(int64_t) + sizeof(rs_proof),
               "no bytes without a value");

void rs_prove(const rs_gathering *g, rs_proof_of what, const rs_greeting *greeting, const rs_welcome *welcome,
              const unsigned char *digest, rs_proof proof) {
  proof_text text = {.what = what, .greeting = *greeting, .welcome = *welcome};
  if (digest != NULL)
    memcpy(text.digest, digest, sizeof text.digest);
  rs_hmac_sha256(g->at->secret, strnlen(g->at->secret, sizeof g->at->secret), &text, sizeof text, proof);
}

bool rs_proofs_equal(const rs_proof a, const rs_proof b) {
  unsigned differ = 0;
  for (int i = 0; i < RS_SHA256_BYTES; i++)
    differ |= (unsigned)(a[i] ^ b[i]);
  return differ == 0;
}

bool rs_draw_nonce(rs_proof nonce) { return getrandom(nonce, sizeof(rs_proof), 0) == (ssize_t)sizeof(rs_proof); }

reshard_status rs_error_secrets(rs_secrets secrets, int64_t rank) {
  static const char *const first[] = {"", "set", "not set", "one secret"};
  static const char *const other[] = {"", "not set", "set", "another"};
  return rs_error_differ("rendezvous: RESHARD_SECRET", 0, first[secrets], rank, other[secrets]);
}
