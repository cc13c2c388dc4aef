/* Inside of the rendezvous: processes that know an address, and maybe a secret.
 *
 * A connection goes through these messages, of a rank and of rank 0 by turns:
 *
 * - rs_greeting, rs_welcome: what each is, with a nonce, drawn for this connection;
 * - the proof of the rank that it has the secret, then rs_admission, with that of rank 0;
 * - the rank's bytes with their proof, then one byte: they were taken, and the rank has its place;
 * - when all have come, the bytes of all with their proof, then one byte: they are there.
 *
 * A proof is an HMAC by the secret (rs_prove). Without a secret the key is empty, and the proof proves nothing. */
#ifndef RS_COMM_BOOTSTRAP_H
#define RS_COMM_BOOTSTRAP_H

#include "base/base.h"

#include <reshard/comm.h>

/* --- SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), of hmac.c ------------------------------------------------- */

enum { RS_SHA256_BYTES = 32 };

void rs_sha256(const void *bytes, size_t n, unsigned char digest[RS_SHA256_BYTES]);
void rs_hmac_sha256(const void *key, size_t key_bytes, const void *bytes, size_t n, unsigned char mac[RS_SHA256_BYTES]);

/* Time that a stranger has to show who it is, at least: who connects, and who listens at the address. */
#define RS_PATIENCE_NS      INT64_C(2000000000)
#define RS_PATIENCE_MOST_NS INT64_C(64000000000)

typedef unsigned char rs_proof[RS_SHA256_BYTES];

typedef struct rs_greeting {
  uint64_t magic, run; /* hash of the version and the job */
  int64_t n, rank, bytes;
  int64_t patience; /* nanoseconds that it waits for its place */
  int64_t secret;   /* 1: it has one */
  rs_proof nonce;
} rs_greeting;

typedef struct rs_welcome {
  int64_t secret;
  rs_proof nonce;
} rs_welcome;

typedef struct rs_admission {
  int64_t refused; /* 1: the secrets differ */
  rs_proof proof;
} rs_admission;

/* How the secret of rank 0 differs from that of another rank. */
typedef enum rs_secrets { RS_SECRETS_SAME, RS_SECRETS_FIRST, RS_SECRETS_OTHER, RS_SECRETS_DIFFER } rs_secrets;

/* One all-gather. */
typedef struct rs_gathering {
  const reshard_rendezvous *at;
  rs_greeting mine;
  char *all;   /* [n * bytes] with this rank's own in its place */
  int64_t end; /* by rs_now_ns; 0: never */
} rs_gathering;

/* Subject of a proof: whose it is, in which step. */
typedef enum rs_proof_of { RS_PROOF_OF_RANK, RS_PROOF_OF_FIRST, RS_PROOF_OF_BYTES, RS_PROOF_OF_ALL } rs_proof_of;

/* Milliseconds until the earlier of two times (0: never), for poll. */
int rs_ms_until(int64_t a, int64_t b);
/* Sends or receives what it can, up to n bytes; false where the other side is gone. */
bool rs_transfer_some(int fd, bool out, void *bytes, int64_t n, int64_t *done);

/* proof.c: the proof over the greeting, the welcome and what bytes have as their digest (NULL: there are none). */
void rs_prove(const rs_gathering *g, rs_proof_of what, const rs_greeting *greeting, const rs_welcome *welcome,
              const unsigned char *digest, rs_proof proof);
/* Compares in a time that does not depend on where they differ. */
bool rs_proofs_equal(const rs_proof a, const rs_proof b);
bool rs_draw_nonce(rs_proof nonce);
/* RESHARD_ERROR_MISMATCH, which names both ranks. */
reshard_status rs_error_secrets(rs_secrets secrets, int64_t rank);

/* Sockets at which rank 0 listens. */
enum { RS_LISTENERS = 8 };
typedef struct rs_listeners {
  int n, fd[RS_LISTENERS];
} rs_listeners;
reshard_status rs_listen_at(const reshard_rendezvous *at, rs_listeners *listeners);
void rs_listeners_close(rs_listeners *listeners);

/* serve.c: rank 0. */
reshard_status rs_serve_gathering(rs_gathering *g, const rs_listeners *listeners);

#endif
