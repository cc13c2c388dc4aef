/* Devices: where memory is and what copies it.
 *
 * A device has three const tables of functions: memory, streams, and work. All functions may be called from any thread.
 * Those with a stream run in the order of that stream; on the CPU the stream is NULL and they return when done. None
 * changes the current CUDA device of the thread. Those that say "blocks" wait for the device: they are for preparing,
 * never for executing. */
#ifndef RS_DEVICE_H
#define RS_DEVICE_H

#include "device/copies.h"

#include <reshard/device.h>

#include <pthread.h>
#include <stdatomic.h>

/* A contiguous copy decided at run time (exchange of staged messages). */
typedef struct rs_span {
  const char *src;
  char *dst;
  int64_t bytes;
  bool staging; /* as in rs_copies */
} rs_span;

typedef struct rs_device rs_device;
typedef struct rs_event rs_event;     /* a point in a stream's order; the CPU's are NULL */
typedef struct rs_program rs_program; /* compiled copies; owned by who compiled them */

/* A message from staging to staging, or from or to the user's memory where a program is NULL. Where one step does for
 * two, staging between them is left as it was. A thread packs to the staging of one of its messages. */
typedef struct rs_relay {
  atomic_bool taken;      /* the device's, while it relays: false before and after */
  const rs_program *pack; /* fills span.src, or as much elsewhere */
  rs_span span;
  const rs_program *unpack; /* empties span.dst */
} rs_relay;

/* The place of an address. */
typedef struct rs_address {
  int gpu;         /* whose memory it is; -1: the host's, or managed */
  bool accessible; /* by kernels of the device that was asked */
} rs_address;

/* Memory of a device as it gives it; rs_device_alloc and the pools are made of these, and other rooms use those. NULL
 * is allowed in the functions that free. */
typedef struct rs_device_memory {
  bool shared; /* other processes of the node can map what alloc_async gives */
  /* Allocates memory of the device, aligned to 256 bytes; *memory NULL for 0 bytes. For preparing: usable on all
   * streams at once, and free may block until nothing uses the memory. */
  reshard_status (*alloc)(rs_device *device, size_t bytes, void **memory);
  void (*free)(rs_device *device, void *memory);
  /* The same in the order of stream, without blocking where the device can do that (else as above): usable on stream
   * from here on, and not used any more from there on. The storage pool is made of these. */
  reshard_status (*alloc_async)(rs_device *device, size_t bytes, void *stream, void **memory);
  void (*free_async)(rs_device *device, void *memory, void *stream);
  /* Memory of the host that the device copies to and from on its own (pinned). */
  reshard_status (*host_alloc)(rs_device *device, size_t bytes, void **memory);
  void (*host_free)(rs_device *device, void *memory);
  /* Copies n bytes between memory of the device, of the host and of other devices of its kind, in the order of stream.
   * Host memory that is pageable may make it block. */
  reshard_status (*memcpy)(rs_device *device, void *dst, const void *src, size_t bytes, void *stream);
  reshard_status (*memset)(rs_device *device, void *dst, int byte, size_t bytes, void *stream);
  /* Lets kernels of device reach memory of other (of the same kind), where they can: *can stays what it is. For
   * preparing. */
  reshard_status (*enable_access)(rs_device *device, rs_device *other, bool *can);
  /* Looks where an address is. NULL: the device reaches all. */
  reshard_status (*look_up)(rs_device *device, const void *at, rs_address *address);
} rs_device_memory;

/* Streams and events. On a device without them (the CPU) both are NULL, and all of this does nothing and succeeds. So
 * callers ask for `asynchronous` only to tell the user, to choose another algorithm, or to keep what is read later. */
typedef struct rs_device_streams {
  bool asynchronous; /* work goes on in streams after a call returned: there are streams */
  /* Side streams: non-blocking with respect to the default stream. */
  reshard_status (*create)(rs_device *device, void **stream);
  /* The same, and what is ready in it goes ahead of what is in others. NULL: no stream does. */
  reshard_status (*create_urgent)(rs_device *device, void **stream);
  void (*destroy)(rs_device *device, void *stream);
  /* Events are without timing. Records and waits are called by stream.c alone, which every other file goes through. */
  reshard_status (*event_create)(rs_device *device, rs_event **event);
  void (*event_destroy)(rs_device *device, rs_event *event);
  reshard_status (*event_record)(rs_device *device, rs_event *event, void *stream);
  /* Records an event that the host alone asks for. On a stream that is being captured each launch of the graph records
   * it. NULL: as event_record. */
  reshard_status (*event_record_external)(rs_device *device, rs_event *event, void *stream);
  reshard_status (*event_wait)(rs_device *device, void *stream, rs_event *event);
  /* Tells whether the event has happened. Does not block. */
  reshard_status (*event_done)(rs_device *device, rs_event *event, bool *done);
  reshard_status (*synchronize)(rs_device *device, void *stream); /* blocks until the stream is empty */
  reshard_status (*finish)(rs_device *device); /* blocks until all that any stream was given so far is done */
  /* Tells whether the stream is being captured into a graph, or may not be given work because another one is. */
  reshard_status (*capturing)(rs_device *device, void *stream, bool *capturing);
} rs_device_streams;

/* Copies, casts and selection. */
typedef struct rs_device_work {
  /* Chooses each copy's variant, the order for the cache, and the division over threads. All computing and allocating
   * is done here; may block. total_bytes: of all ranks' programs that will run together (cache or memory?). Any stream
   * may run the program from then on, also into a graph. No stream runs it when it is released. */
  reshard_status (*compile)(rs_device *device, const rs_copies *copies, int64_t total_bytes, rs_program **program);
  /* Compiles copies that run once, into *program, which is NULL or from an earlier call of this function. It stays one
   * that can be released, also after an error. Memory of the program and of compiling it is used again, and nothing is
   * allocated where that suffices. Tables that earlier runs still read stay as they are. The host waits only where many
   * of them (8) have not ended, or where tables are longer than any before. run then uploads the tables in the order of
   * its stream, whichever that is. It is RESHARD_ERROR_UNSUPPORTED on a stream that is being captured. release waits
   * for the runs. */
  reshard_status (*recompile)(rs_device *device, const rs_copies *copies, int64_t total_bytes, rs_program **program);
  void (*release)(rs_device *device, rs_program *program);
  /* Runs n programs (some may be NULL) as one job, divided over the threads by bytes. Allocates nothing. */
  reshard_status (*run)(rs_device *device, int64_t n, rs_program *const *programs, void *stream);
  /* Runs n contiguous copies as one job, divided likewise. total_bytes: of the whole exchange that they are a round of
   * (streaming stores pay or not), as in compile. Allocates nothing. */
  reshard_status (*copy)(rs_device *device, int64_t n, const rs_span *spans, int64_t total_bytes, void *stream);
  /* Runs n messages as one job: each packed and unpacked by one thread, so that its staging stays in that thread's
   * cache. total_bytes as in copy. Allocates nothing. NULL on a device with streams. */
  reshard_status (*relay)(rs_device *device, int64_t n, rs_relay *relays, int64_t total_bytes, void *stream);
  /* Counts the box copies in a program, after tiling. */
  int64_t (*count)(const rs_program *program);
  /* Converts numbers: one launch or one job for all. A long list is several launches where the stream is captured, or
   * where many of them (8) have not ended. The list is not needed any more when it returns. The host does not wait; a
   * list longer than any before may allocate. Elements may overlap only where src == dst and sizes are equal. */
  reshard_status (*cast)(rs_device *device, const rs_casts *casts, void *stream);
  /* Selects along a dim. With a fault each index is compared with the extent: one out of range is not followed. The
   * first by position is left in *fault (memory of the device; -1 there where all are in range). Without, indices were
   * checked before, or are ours. */
  reshard_status (*select)(rs_device *device, const rs_select *select, rs_select_fault *fault, void *stream);
} rs_device_work;

/* Memory of a GPU as other processes of the node know it. */
typedef struct rs_exported_memory {
  uint64_t number; /* in its process; no other memory has it, before or after */
  int64_t bytes;
  bool by_file; /* a descriptor is passed beside this, by which it is opened; else the handle says all */
  unsigned char handle[64];
} rs_exported_memory;

/* Barriers of this rank's streams with those of its peers, which are other processes (kernels/barrier.h). */
typedef struct rs_stream_barrier rs_stream_barrier;
/* A flag that closes all barriers of a communicator on a GPU, and memory for the flags of each. */
typedef struct rs_stream_barriers rs_stream_barriers;

/* The flags of a rank's part of a barrier, which its peers open by a descriptor. */
typedef struct rs_shared_flags {
  rs_exported_memory memory;
  int64_t inside;
} rs_shared_flags;

/* The ranks of a barrier, and when it is given up. */
typedef struct rs_stream_barrier_terms {
  int64_t rank, npeers;
  const int64_t *peers; /* [npeers] */
  void *const *flags;   /* [npeers] theirs, at addresses of this process, open as long as the barrier is there */
  const int64_t *ended; /* pinned: not 0 once it is to be given up */
  int64_t *late;      /* pinned: gets 1 + the rank of a peer that did not come, or less that of one with another key */
  int64_t timeout_ms; /* 0: none */
} rs_stream_barrier_terms;

/* Processes of a node that reach each other's GPUs. All but run and copy may block. */
typedef struct rs_device_processes {
  /* Finds memory that has all of [begin, end) and that other processes can open; *found false: none has. */
  reshard_status (*find)(rs_device *device, const void *begin, const void *end, rs_exported_memory *memory,
                         int64_t *inside, bool *found);
  /* Tells whether memory that was found is there still. */
  bool (*there)(uint64_t number);
  /* As often memory that has a descriptor was freed in this process. */
  uint64_t (*freed)(void);
  /* A descriptor of memory that was found and is there, which the caller closes. */
  reshard_status (*file)(rs_device *device, uint64_t number, int *fd);
  /* Opens memory of another process for this GPU. It is closed as often, before its owner frees it where that has no
   * descriptor. fd: of memory that has one; it stays the caller's. */
  reshard_status (*open)(rs_device *device, const rs_exported_memory *memory, int fd, void **at);
  void (*close)(rs_device *device, const rs_exported_memory *memory, void *at);
  /* Lets the GPU reach memory of the host that processes share, at *at. */
  reshard_status (*pin)(rs_device *device, void *memory, size_t bytes, void **at);
  void (*unpin)(rs_device *device, void *memory);
  /* Finds the capture that takes the work of a stream, by a number that no other has; 0: it is not captured. */
  reshard_status (*capture)(rs_device *device, void *stream, uint64_t *capture);
  /* Makes this rank's part of a barrier, and tells where its flags are; behind them is a room, bytes that peers read
   * and write. A peer's mapping keeps all that: each rank destroys its part when it likes, once its streams have ended
   * their barriers. *barriers: those of the communicator, all of as many ranks; NULL: they are made. `end` frees them
   * after the last one. */
  reshard_status (*create)(rs_device *device, int64_t ranks, int64_t room, rs_stream_barriers **barriers,
                           rs_stream_barrier **barrier, rs_shared_flags *flags);
  reshard_status (*connect)(rs_device *device, rs_stream_barrier *barrier, const rs_stream_barrier_terms *terms);
  void (*destroy)(rs_device *device, rs_stream_barrier *barrier);
  void (*end)(rs_device *device, rs_stream_barriers *barriers);
  /* The room of a peer, by its place in the terms, aligned to 256 bytes; -1: this rank's. */
  char *(*room)(const rs_stream_barrier *barrier, int64_t peer);
  /* The stream goes on when those of all peers, or of those `with` is true of ([npeers]), have come as far, with the
   * same key. Once one has failed none of the communicator's is held. */
  reshard_status (*run)(rs_device *device, rs_stream_barrier *barrier, const bool *with, uint32_t key, bool wait,
                        void *stream);
  /* A program copies nothing once the barrier has failed, which outlives it. */
  void (*guard)(rs_program *program, const rs_stream_barrier *barrier);
  /* rs_device_work.copy, likewise. */
  reshard_status (*copy)(rs_device *device, const rs_stream_barrier *barrier, int64_t n, const rs_span *spans,
                         void *stream);
} rs_device_processes;

struct rs_device {
  const char *name; /* "cpu", "cuda" */
  const rs_device_memory *memory;
  const rs_device_streams *streams;
  const rs_device_work *work;
  const rs_device_processes *processes; /* NULL: a CPU, whose memory that is shared is in cpu/segment.h */
  /* Gives back what the device took of its pool, before that ends. NULL: nothing. */
  void (*close)(rs_device *device);
  void (*destroy)(rs_device *device);
  struct rs_storage_pool *pool; /* of the handle that has the device; NULL: it has none */
  reshard_device_type type;
  int index;      /* of the GPU */
  size_t granule; /* other processes can map what alloc_async gives where its size is a multiple of this; 0: never */
  int max_blocks; /* of each launch of copies and casts on a GPU; 0: no limit */
  /* A handle that means another stream in each thread (cudaStreamPerThread), and one whose order comes after those of
   * all threads (cudaStreamLegacy). Both NULL: there are none. */
  void *thread_stream, *legacy_stream;
  struct rs_tracer *tracer; /* trace.h; NULL: none */
};

/* cuda.c; no_cuda.c in builds without CUDA. index -1 is the current device. */
reshard_status rs_device_cuda_create(int index, rs_device **device);
/* Lets other processes of the node map its storage. RESHARD_ERROR_UNSUPPORTED where the driver cannot. */
reshard_status rs_device_cuda_share(rs_device *device);

#endif
