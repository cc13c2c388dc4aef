/* Streams and events. */
#include "machine.hpp"

#include <algorithm>

namespace vg {

Stream *new_stream(int device, bool blocking, const char *name) {
  M.streams.emplace_back(new Stream{});
  Stream *stream = M.streams.back().get();
  Device &d = M.devices[(size_t)device];
  stream->device = device;
  stream->blocking = blocking;
  stream->name = "GPU " + std::to_string(device) + " " +
                 (name ? std::string(name) : "stream " + std::to_string(M.streams.size() - M.devices.size()));
  stream->chain = new_chain(stream->name);
  d.streams.push_back(stream);
  M.handles[stream] = HANDLE_STREAM;
  return stream;
}

static Stream *default_stream(Thread &thread) {
  thread.default_streams.resize(M.devices.size());
  Stream *&stream = thread.default_streams[(size_t)thread.device];
  if (!stream) {
    stream = new_stream(thread.device, true, ("default stream of " + thread.name).c_str());
    stream->builtin = true;
  }
  return stream;
}

Stream *stream_of(cudaStream_t handle, const char *call) {
  Thread &thread = self();
  if (!handle || handle == cudaStreamLegacy) {
    Device &device = M.devices[(size_t)thread.device];
    for (Stream *stream : device.streams)
      if (stream->capture && stream->blocking) {
        report(std::string("implicit ") + call, "misuse: %s on the default stream while a blocking stream is captured",
               call);
        invalidate(stream->capture, cudaErrorStreamCaptureImplicit);
      }
    return device.legacy;
  }
  if (handle == cudaStreamPerThread)
    return default_stream(thread);
  auto it = M.handles.find(handle);
  Stream *stream = (Stream *)handle;
  if (it != M.handles.end() && it->second == HANDLE_STREAM && !stream->destroyed)
    return stream;
  bool was = it != M.handles.end() && it->second == HANDLE_STREAM;
  report(std::string("stream ") + call, "misuse: %s with %s", call,
         was ? ("destroyed " + stream->name).c_str() : "a handle that is no stream");
  return nullptr;
}

static Event *event_of(cudaEvent_t handle, const char *call) {
  auto it = M.handles.find(handle);
  Event *event = (Event *)handle;
  bool was = it != M.handles.end() && it->second == HANDLE_EVENT;
  if (was && !event->destroyed)
    return event;
  report(std::string("event ") + call, "misuse: %s with %s", call,
         was ? "a destroyed event" : "a handle that is no event");
  return nullptr;
}

static cudaError_t record(Stream &stream, Event &event) {
  if (stream.device != event.device)
    return cudaErrorInvalidResourceHandle;
  edge_recorded(event);
  if (stream.capture)
    return capture_record(stream, event);
  arrive(stream);
  if (stream.legacy)
    stream.version++; /* a record on the legacy stream is work that blocking streams come after */
  event.capture = nullptr;
  event.capture_id = 0;
  event.recorded = true;
  event.frontier.clear();
  merge(event.frontier, stream.frontier);
  event.clock = stream.clock;
  const Note &place = M.notes[thread_note(self(), "cudaEventRecord")];
  event.thread_chain = place.chain;
  event.thread_time = place.time;
  return cudaSuccess;
}

void come_after_stream(Stream &later, Stream &earlier) {
  if (later.capture) {
    for (uint32_t node : earlier.nodes)
      if (std::find(later.nodes.begin(), later.nodes.end(), node) == later.nodes.end())
        later.nodes.push_back(node);
    return;
  }
  arrive(earlier);
  arrive(later);
  later.version += later.legacy;
  later.clock.join(earlier.clock);
  merge(later.frontier, earlier.frontier);
}

static cudaError_t wait(Stream &stream, Event &event) {
  edge_awaited(event);
  if (event.capture_id || stream.capture)
    return capture_wait(stream, event);
  if (!event.recorded)
    return cudaSuccess;
  Thread &thread = self();
  if (thread.clock.at(event.thread_chain) < event.thread_time)
    report("order " + stream.name, "host: %s waits for an event while %s may not have recorded it yet",
           thread.name.c_str(), M.chains[event.thread_chain].c_str());
  arrive(stream);
  if (stream.legacy)
    stream.version++;
  stream.clock.join(event.clock);
  merge(stream.frontier, event.frontier);
  return cudaSuccess;
}

} // namespace vg

using namespace vg;

/* --- Streams ------------------------------------------------------------------------------------------------------ */
static cudaError_t create(Thread &thread, cudaStream_t *out, unsigned flags, int priority) {
  if (!out || flags & ~cudaStreamNonBlocking)
    return cudaErrorInvalidValue;
  Stream *stream = new_stream(thread.device, !(flags & cudaStreamNonBlocking), nullptr);
  stream->priority = priority;
  *out = (cudaStream_t)stream;
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *out) {
  VG_CALL(cudaStreamCreate, CALL_CREATE);
  return api.end(create(*api.thread, out, 0, 0));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
  VG_CALL(cudaStreamCreateWithFlags, CALL_CREATE);
  return api.end(create(*api.thread, out, flags, 0));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
  VG_CALL(cudaStreamCreateWithPriority, CALL_CREATE);
  return api.end(create(*api.thread, out, flags, priority));
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  VG_CALL(cudaStreamDestroy, CALL_DESTROY);
  Stream *stream = stream_of(handle, "cudaStreamDestroy");
  if (!stream || stream->builtin)
    VG_END(cudaErrorInvalidResourceHandle);
  if (stream->capture)
    invalidate(stream->capture, cudaErrorStreamCaptureUnsupported);
  Device &device = M.devices[(size_t)stream->device];
  if (stream->blocking) { /* the default stream still comes after what is in it */
    device.legacy->clock.join(stream->clock);
    merge(device.legacy->frontier, stream->frontier);
  }
  stream->destroyed = true;
  device.streams.erase(std::find(device.streams.begin(), device.streams.end(), stream));
  VG_END(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  VG_CALL(cudaStreamQuery, CALL_PLAIN);
  count(M.counts.queries);
  Stream *stream = stream_of(handle, "cudaStreamQuery");
  if (!stream)
    return api.end(cudaErrorInvalidResourceHandle);
  if (stream->capture)
    return api.end(invalidate(stream->capture, cudaErrorStreamCaptureUnsupported));
  if (unsafe(*api.thread, "cudaStreamQuery"))
    return api.end(cudaErrorStreamCaptureUnsupported);
  run_some(draw() % 4);
  if (!finished(stream->frontier))
    return api.end(cudaErrorNotReady);
  thread_joins(*api.thread, stream->clock);
  return api.end(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  VG_CALL(cudaStreamSynchronize, CALL_SYNC);
  Stream *stream = stream_of(handle, "cudaStreamSynchronize");
  if (!stream)
    return api.end(cudaErrorInvalidResourceHandle);
  if (stream->capture)
    return api.end(invalidate(stream->capture, cudaErrorStreamCaptureUnsupported));
  if (unsafe(*api.thread, "cudaStreamSynchronize"))
    return api.end(cudaErrorStreamCaptureUnsupported);
  return api.end(thread_awaits(*api.thread, {stream->frontier, stream->clock}));
}

bool vg::finish_device(int device) {
  Frontier target;
  for (auto &stream : M.streams)
    if (stream->device == device)
      merge(target, stream->frontier);
  return run_until(target);
}

cudaError_t cudaDeviceSynchronize(void) {
  VG_CALL(cudaDeviceSynchronize, CALL_SYNC);
  if (unsafe(*api.thread, "cudaDeviceSynchronize"))
    return api.end(cudaErrorStreamCaptureUnsupported);
  for (auto &stream : M.streams) /* whatever the thread's mode: the device has the stream */
    if (stream->device == api.thread->device && stream->capture)
      return api.end(invalidate(stream->capture, cudaErrorStreamCaptureUnsupported));
  Awaited all;
  for (auto &stream : M.streams)
    if (stream->device == api.thread->device) {
      merge(all.frontier, stream->frontier);
      all.clock.join(stream->clock);
    }
  return api.end(thread_awaits(*api.thread, std::move(all)));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned flags) {
  VG_CALL(cudaStreamWaitEvent, CALL_PLAIN);
  count(M.counts.waits);
  Stream *stream = stream_of(handle, "cudaStreamWaitEvent");
  Event *event = event_of(event_handle, "cudaStreamWaitEvent");
  if (!stream || !event || flags)
    return api.end(flags ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle);
  return api.end(wait(*stream, *event));
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned *flags) {
  VG_CALL(cudaStreamGetFlags, CALL_PLAIN);
  Stream *stream = stream_of(handle, "cudaStreamGetFlags");
  if (!stream)
    return api.end(cudaErrorInvalidResourceHandle);
  *flags = stream->blocking ? cudaStreamDefault : cudaStreamNonBlocking;
  return api.end(cudaSuccess);
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority) {
  VG_CALL(cudaStreamGetPriority, CALL_PLAIN);
  Stream *stream = stream_of(handle, "cudaStreamGetPriority");
  if (!stream)
    return api.end(cudaErrorInvalidResourceHandle);
  *priority = stream->priority;
  return api.end(cudaSuccess);
}

/* --- Events ------------------------------------------------------------------------------------------------------- */
static cudaError_t create_event(Thread &thread, cudaEvent_t *out, unsigned flags) {
  if (!out || flags & ~(cudaEventBlockingSync | cudaEventDisableTiming))
    return cudaErrorInvalidValue;
  M.events.emplace_back(new Event{});
  Event *event = M.events.back().get();
  event->device = thread.device;
  event->timing = !(flags & cudaEventDisableTiming);
  M.timed |= event->timing;
  M.handles[event] = HANDLE_EVENT;
  *out = (cudaEvent_t)event;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out) {
  VG_CALL(cudaEventCreate, CALL_CREATE);
  return api.end(create_event(*api.thread, out, 0));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
  VG_CALL(cudaEventCreateWithFlags, CALL_CREATE);
  return api.end(create_event(*api.thread, out, flags));
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  VG_CALL(cudaEventDestroy, CALL_DESTROY);
  Event *event = event_of(handle, "cudaEventDestroy");
  if (!event)
    VG_END(cudaErrorInvalidResourceHandle);
  event->destroyed = true;
  event->clock = Clock();
  VG_END(cudaSuccess);
}

static cudaError_t record_call(cudaEvent_t handle, cudaStream_t stream_handle, const char *call) {
  count(M.counts.records);
  Stream *stream = stream_of(stream_handle, call);
  Event *event = event_of(handle, call);
  return stream && event ? record(*stream, *event) : cudaErrorInvalidResourceHandle;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  VG_CALL(cudaEventRecord, CALL_PLAIN);
  return api.end(record_call(handle, stream, "cudaEventRecord"));
}

/* An external record is a node of the graph, and the event is none of the capture's. */
static cudaError_t record_external_call(cudaEvent_t handle, cudaStream_t stream_handle) {
  count(M.counts.records);
  Stream *stream = stream_of(stream_handle, "cudaEventRecordWithFlags");
  Event *event = event_of(handle, "cudaEventRecordWithFlags");
  if (!stream || !event || stream->device != event->device)
    return cudaErrorInvalidResourceHandle;
  if (!stream->capture)
    return cudaErrorIllegalState;
  edge_recorded(*event);
  Work work;
  work.what = "an external record";
  work.records = event;
  return capture_work(*stream, std::move(work));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream, unsigned flags) {
  VG_CALL(cudaEventRecordWithFlags, CALL_PLAIN);
  if (flags == cudaEventRecordExternal)
    return api.end(record_external_call(handle, stream));
  return api.end(flags ? cudaErrorInvalidValue : record_call(handle, stream, "cudaEventRecordWithFlags"));
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  VG_CALL(cudaEventQuery, CALL_PLAIN);
  count(M.counts.queries);
  Event *event = event_of(handle, "cudaEventQuery");
  if (!event)
    return api.end(cudaErrorInvalidResourceHandle);
  edge_awaited(*event);
  if (event->capture_id)
    return api.end(event->capture ? invalidate(event->capture, cudaErrorCapturedEvent) : cudaErrorCapturedEvent);
  if (unsafe(*api.thread, "cudaEventQuery"))
    return api.end(cudaErrorStreamCaptureUnsupported);
  if (!event->recorded)
    return api.end(cudaSuccess);
  run_some(draw() % 4);
  if (!finished(event->frontier))
    return api.end(cudaErrorNotReady);
  thread_joins(*api.thread, event->clock);
  return api.end(cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  VG_CALL(cudaEventSynchronize, CALL_SYNC);
  Event *event = event_of(handle, "cudaEventSynchronize");
  if (!event)
    return api.end(cudaErrorInvalidResourceHandle);
  edge_awaited(*event);
  if (event->capture_id)
    return api.end(event->capture ? invalidate(event->capture, cudaErrorCapturedEvent) : cudaErrorCapturedEvent);
  if (unsafe(*api.thread, "cudaEventSynchronize"))
    return api.end(cudaErrorStreamCaptureUnsupported);
  return api.end(thread_awaits(*api.thread, {event->frontier, event->clock}));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t first, cudaEvent_t second) {
  VG_CALL(cudaEventElapsedTime, CALL_PLAIN);
  Event *a = event_of(first, "cudaEventElapsedTime"), *b = event_of(second, "cudaEventElapsedTime");
  if (!a || !b || !a->timing || !b->timing || !a->recorded || !b->recorded)
    return api.end(cudaErrorInvalidResourceHandle);
  if (!finished(a->frontier) || !finished(b->frontier))
    return api.end(cudaErrorNotReady);
  *ms = (float)(1e-3 * (time_of(b->clock) - time_of(a->clock)));
  return api.end(cudaSuccess);
}
