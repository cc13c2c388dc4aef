/* A directory of a test's own, with files made of texts and bytes. */
#ifndef TESTS_SCRATCH_H
#define TESTS_SCRATCH_H

#include <reshard/reshard.h>

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Group setup and teardown of cmocka: makes the directory, under $TMPDIR or /tmp; removes it with all in it. */
int scratch_setup(void **state);
int scratch_teardown(void **state);
/* Path of a name in it ("" for itself); valid until the eighth call after. */
const char *scratch_path(const char *name);
/* Removes a file, or a directory with all in it; nothing when it is not there. */
void scratch_remove(const char *name);
void scratch_directory(const char *name);
/* Names in a directory, sorted, with spaces between; valid until the next call. */
const char *scratch_list(const char *name);
void scratch_write(const char *name, const void *bytes, size_t size);

/* A safetensors file: the header's text, and so many bytes of data, byte i being (i * 7 + seed) % 251. */
void scratch_safetensors(const char *name, const char *header, size_t data, int seed);
unsigned char scratch_byte(size_t i, int seed);

/* "[a]: {...}" text of one tensor in a header. */
#define SCRATCH_TENSOR(name, dtype, shape, offsets) \
  "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

/* Opening it must fail with this status, in one line that has both pieces, and leave the output alone. */
void scratch_refused(const char *name, reshard_status status, const char *first, const char *second);
reshard_checkpoint scratch_open(const char *name);

#endif
