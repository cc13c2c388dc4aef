/* Order between streams. stream.c has every event that the library records and every wait for one, each at a named
 * edge. So they can be read, listed, drawn and - in a test - left out one by one.
 *
 * An edge is a place in the library where one stream has to come after another. Its name tells what is protected from
 * what ("pack after user", "reuse after free"). Names are string literals, unique to the place, each marked by RS_EDGE.
 * On a device without streams events are NULL, and nothing happens. */
#ifndef RS_DEVICE_STREAM_H
#define RS_DEVICE_STREAM_H

#include "device/device.h"

/* Marks the name of an edge: ./run prove collects the names, and fails when no test misses an edge that is left out. */
#define RS_EDGE(name) name

/* A side stream for what others wait for, as messages to peers. */
reshard_status rs_stream_create_urgent(rs_device *device, void **stream);

/* Records `event` at the end of stream as it is now. An event is recorded again only when no stream will wait for its
 * last record any more. */
reshard_status rs_stream_record(rs_device *device, rs_event *event, void *stream, const char *edge);
/* Records an event that no stream waits for: the host asks for it. It may ask while a graph runs that has the record in
 * it, of which each launch records the event. */
reshard_status rs_stream_record_external(rs_device *device, rs_event *event, void *stream, const char *edge);
/* Makes work that is given to stream from here on come after the event. Does not block the host. Callers leave out
 * edges from a stream to itself. */
reshard_status rs_stream_wait(rs_device *device, void *stream, rs_event *event, const char *edge);
/* Records and waits: `later` comes after all that is in `earlier` now. Nothing when they are the same stream. */
reshard_status rs_stream_order(rs_device *device, void *earlier, void *later, rs_event *event, const char *edge);

/* Streams meet those of peers in other processes: work that is given to stream from here on comes after all that theirs
 * were given before. Does not block the host. with, key: rs_device_processes.run; NULL: all. */
reshard_status rs_stream_meet(rs_device *device, rs_stream_barrier *meeting, const bool *with, uint32_t key,
                              void *stream, const char *edge);

/* Checks a stream that a user gives to a call: RESHARD_ERROR_INVALID where it is not NULL and the device has no
 * streams. */
reshard_status rs_stream_check(const rs_device *device, void *stream, const char *call);

/* Sets a hook for tests (virtual GPU): called before each record and wait; true leaves it out. Only in builds with
 * RS_TEST_EDGES; set once, before any stream is used. */
#ifdef RS_TEST_EDGES
typedef bool (*rs_edge_hook)(void *user, const char *edge, bool wait);
void rs_stream_set_hook(rs_edge_hook hook, void *user);
#endif

#endif
