/* SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104). */
#ifndef RS_COMM_BOOTSTRAP_HMAC_H
#define RS_COMM_BOOTSTRAP_HMAC_H

#include <stddef.h>

enum { RS_SHA256_BYTES = 32 };

void rs_sha256(const void *bytes, size_t n, unsigned char digest[RS_SHA256_BYTES]);
void rs_hmac_sha256(const void *key, size_t key_bytes, const void *bytes, size_t n, unsigned char mac[RS_SHA256_BYTES]);

#endif
