/* Contract of communicators: checks that are written once and run by threads on the CPU, by threads on virtual GPUs
 * over NCCL, and by processes over MPI.
 *
 * All ranks make the same calls with the same seeds. No failure ends a rank early, because the others would wait for
 * it: failures are counted, and the first is printed. */
#ifndef TESTS_CONTRACT_H
#define TESTS_CONTRACT_H

#include "bench/verify/oracle.h"
#include "bench/verify/random.h"

#include <reshard/dtensor.h>
#include <reshard/reshard.h>

#include <stdbool.h>

/* One rank of a communicator of any kind, and access to the memory of its tensors. */
typedef struct contract_rank {
  reshard_comm comm;
  reshard_sharder sharder;
  reshard_device device; /* of new tensors and of the sharder; NULL: the CPU */
  void *stream;          /* NULL on the CPU */
  /* Copies between the memory of the host and of the device, after earlier work on the stream; NULL: memcpy. */
  void (*copy)(void *stream, void *dst, const void *src, size_t bytes);
  int64_t wrong; /* failed checks */
} contract_rank;

/* Checks a condition and returns it: a failure counts as wrong and is printed with its line and the last error. */
#define CONTRACT_CHECK(s, what)    contract_check(s, (what), #what, __FILE__, __LINE__)
#define CONTRACT_SUCCEEDS(s, call) CONTRACT_CHECK(s, (call) == RESHARD_SUCCESS)
bool contract_check(contract_rank *s, bool so, const char *what, const char *file, int line);
/* Collective: checks that all ranks have this status and, where it is an error, one text with `part` in it. */
#define CONTRACT_ALL(s, call, wanted, part) contract_all(s, (call), wanted, part, #call, __FILE__, __LINE__)
void contract_all(contract_rank *s, reshard_status status, reshard_status wanted, const char *part, const char *what,
                  const char *file, int line);

/* Creates a tensor on the rank's device; strided: every second element, dims in reverse order. NULL on failure. */
reshard_tensor contract_tensor(contract_rank *s, reshard_dtype dtype, int ndim, const int64_t *shape, bool strided);
/* Fills an array: element i (row-major) gets the value of global element index[i]. flat: the array is the first of a
 * flat piece, whose elements lie end to end. */
void contract_fill(contract_rank *s, reshard_tensor array, int64_t n, const int64_t *index, bool flat, uint64_t key);
/* Counts the elements with another value. */
int64_t contract_count_wrong(contract_rank *s, reshard_tensor array, int64_t n, const int64_t *index, bool flat,
                             uint64_t key);
/* The same for a whole tensor, whose elements are in row-major order. */
void contract_fill_whole(contract_rank *s, reshard_tensor whole, uint64_t key);
int64_t contract_count_wrong_whole(contract_rank *s, reshard_tensor whole, uint64_t key);
/* Copies between the memory of the host and of the device, and waits. */
void contract_copy(const contract_rank *s, void *dst, const void *src, size_t bytes);
/* Payload bytes that this rank has received. */
int64_t contract_received(const contract_rank *s);

/* Opens the same rank on another communicator (a sub-communicator), with a sharder of its own. */
bool contract_rank_open_on(const contract_rank *s, reshard_comm comm, const reshard_sharder_options *options,
                           contract_rank *other);
void contract_rank_close_on(contract_rank *s, contract_rank *other); /* adds its failures to s */

#endif
