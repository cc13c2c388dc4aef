/* Random sequences of all that can be done with tensors and their storage, against a model. They are made, viewed,
 * exported, freed, allocated, used, cast, moved, let go of. The model has which storage each tensor looks at, from
 * where, whether it is there, and what is written in it. After each step the pools' statistics are compared with sums
 * over the model, and some storage byte by byte: so memory that is given out twice, or taken away too early, is seen.
 * On GPUs the model orders what it does itself on their streams, as a user does. It waits for nothing that it need not
 * wait for. */
#ifndef TESTS_TENSOR_MODEL_H
#define TESTS_TENSOR_MODEL_H

#include <reshard/device.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MODEL_PLACES = 5, MODEL_STREAMS = 6, MODEL_PATTERN = 1 << 20 };

/* A device that storage can be of: CPUs first, of which there is one at least. */
typedef struct model_place {
  reshard_device device;
  const unsigned char *pattern; /* MODEL_PATTERN bytes there; NULL: it is a CPU */
} model_place;

typedef struct model_stream {
  void *handle;
  int place;
  unsigned char *scratch; /* MODEL_PATTERN bytes there, which nobody looks at */
} model_stream;

typedef struct model_machine {
  int nplaces, nstreams;
  model_place place[MODEL_PLACES];
  model_stream stream[MODEL_STREAMS];
  const unsigned char *pattern; /* the same bytes on the host */
  /* Operations of a user beside the library; not called without streams. */
  void (*copy)(void *dst, const void *src, size_t bytes, const model_stream *stream);
  void (*order)(const model_stream *earlier, const model_stream *later);
  void (*settle)(const model_stream *stream);                  /* the host waits for it */
  void (*fetch)(void *host, const void *memory, size_t bytes); /* from a GPU; what writes there was waited for */
  void *(*pin)(size_t bytes);                                  /* pinned memory */
  void (*unpin)(void *user, void *memory);
  void (*touch)(void *pinned, size_t bytes, bool write); /* the host is about to read it, or to write it */
  int64_t (*waits)(void);                                /* of the host so far, but those for freeing memory */
} model_machine;

typedef enum model_kind {
  MODEL_CREATE,
  MODEL_VIEW,
  MODEL_EXPORT,
  MODEL_FREE,
  MODEL_FREE_VIEWED, /* with other tensors over it */
  MODEL_ALLOC,
  MODEL_USE,
  MODEL_CAST,
  MODEL_MOVE,
  MODEL_RELEASE,
  MODEL_TRIM,
  MODEL_REFUSED, /* any of them that the library had to refuse */
  MODEL_KINDS
} model_kind;

/* So many steps; then all is compared and let go of. done: how often each kind did something, added up. What is wrong
 * ends the test. Devices and streams stay. */
void model_run(const model_machine *machine, uint64_t seed, int64_t steps, int64_t done[MODEL_KINDS]);
/* Prints them; none may be 0 (moves: where there are GPUs). */
void model_report(const model_machine *machine, const int64_t done[MODEL_KINDS]);

#endif
