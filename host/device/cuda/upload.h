/* Tables that the host writes and a GPU reads. */
#ifndef RS_DEVICE_CUDA_UPLOAD_H
#define RS_DEVICE_CUDA_UPLOAD_H

#include "device/device.h"

/* An upload buffer: a table is written at `host`, which is pinned, and uploaded to `memory`. */
typedef struct rs_upload_buffer {
  char *host, *memory; /* parts of all buffers' */
  rs_event *event;
  void *stream; /* of the last use */
  bool used;    /* the event behind the last use has not been seen to have happened */
  bool lost;    /* no event could be recorded, nor the stream be waited for */
} rs_upload_buffer;
enum { RS_UPLOAD_BUFFERS = 8 };
typedef struct rs_upload_buffers {
  int n, last;         /* how many have an event; index of the one taken last */
  char *host, *memory; /* of all */
  size_t bytes;        /* of each buffer */
  rs_upload_buffer buffer[RS_UPLOAD_BUFFERS];
} rs_upload_buffers;

/* Called by one thread at a time. Takes a buffer of `bytes` or more that nothing uses. Where all are in use, the
 * host waits for the oldest, or *buffer is NULL (wait false). Where no buffer was as large before it waits for all, and
 * allocates. */
reshard_status rs_upload_buffers_take(rs_device *device, rs_upload_buffers *buffers, size_t bytes, bool wait,
                                      rs_upload_buffer **buffer);
/* Records the last use: stream has been given all that reads the buffer. Also to be called after a part failed. */
reshard_status rs_upload_buffer_used(rs_device *device, rs_upload_buffer *buffer, void *stream);
/* Frees the buffers; waits until nothing uses them. */
void rs_upload_buffers_free(rs_device *device, rs_upload_buffers *buffers);

#endif
