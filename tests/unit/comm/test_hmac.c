/* SHA-256 and HMAC-SHA-256 by the vectors of their standards. */
#include "comm/bootstrap/bootstrap.h"
#include "support/fixtures/case.h"

#include <stdio.h>
#include <string.h>

static void assert_hex(const unsigned char *bytes, const char *hex) {
  char text[2 * RS_SHA256_BYTES + 1];
  for (int i = 0; i < RS_SHA256_BYTES; i++)
    snprintf(text + 2 * i, 3, "%02x", bytes[i]);
  text[strlen(hex)] = '\0'; /* one vector is cut */
  assert_string_equal(text, hex);
}

/* FIPS 180-4: NIST's examples, and lengths about a block's end. */
CASE(sha256_gives_the_digests_of_its_standard) {
  static char million[1000000];
  unsigned char digest[RS_SHA256_BYTES];
  memset(million, 'a', sizeof million);
  const struct {
    const char *text;
    size_t n;
    const char *hex;
  } cases[] = {
      {"", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56,
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {million, sizeof million, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    rs_sha256(cases[i].text, cases[i].n, digest);
    assert_hex(digest, cases[i].hex);
  }
}

/* RFC 4231, 4.2 to 4.8. */
CASE(hmac_gives_the_codes_of_its_standard) {
  unsigned char mac[RS_SHA256_BYTES], b[20], aa[131], counted[25], dd[50], cd[50], c[20];
  memset(b, 0x0b, sizeof b);
  memset(aa, 0xaa, sizeof aa);
  memset(dd, 0xdd, sizeof dd);
  memset(cd, 0xcd, sizeof cd);
  memset(c, 0x0c, sizeof c);
  for (int i = 0; i < 25; i++)
    counted[i] = (unsigned char)(i + 1);
  static const char larger[] = "Test Using Larger Than Block-Size Key - Hash Key First",
                    both[] = "This is a test using a larger than block-size key and a larger than block-size data. The "
                             "key needs to be hashed before being used by the HMAC algorithm.";
  const struct {
    const void *key;
    size_t key_bytes;
    const void *text;
    size_t n;
    const char *hex;
  } cases[] = {
      {b, 20, "Hi There", 8, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {"Jefe", 4, "what do ya want for nothing?", 28,
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {aa, 20, dd, 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {counted, 25, cd, 50, "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {c, 20, "Test With Truncation", 20, "a3b6167473100ee06e0c796c2955552b"},
      {aa, 131, larger, sizeof larger - 1, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
      {aa, 131, both, sizeof both - 1, "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    rs_hmac_sha256(cases[i].key, cases[i].key_bytes, cases[i].text, cases[i].n, mac);
    assert_hex(mac, cases[i].hex);
  }
}

RUN_CASES
