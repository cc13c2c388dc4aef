/* Stream capture and graphs. A captured stream notes its work as nodes instead of giving it to the device; an event
 * that is recorded in it stands for nodes, and a stream that waits for such an event joins the capture as a branch. A
 * launch gives all nodes at once: each branch is a chain of its own, so that an edge missing between branches is a
 * race. */
#include "machine.hpp"

#include <algorithm>

namespace vg {

struct Node {
  Work work;
  std::vector<uint32_t> deps;
  uint32_t branch;
  int device;
};
struct Graph {
  bool destroyed, exec;
  std::vector<Node> nodes;
  std::vector<std::string> branches;
  /* of an executable one: */
  std::vector<uint32_t> chains, times; /* by branch */
  Frontier frontier;                   /* of its last launch: one launch comes after the other */
  Clock clock;
};
struct Capture {
  uint64_t id;
  Graph *graph;
  Stream *origin;
  Thread *thread;
  enum cudaStreamCaptureMode mode;
  cudaError_t invalid;
  std::vector<Stream *> streams; /* that take part */
  std::vector<Event *> events;
};
static std::vector<std::unique_ptr<Capture>> captures; /* that go on */
static uint64_t capture_ids;
static std::vector<std::unique_ptr<Graph>> graphs;

/* True when the thread must not call what may wait for the device. */
static Capture *forbids(Thread &thread) {
  if (thread.capture_mode == cudaStreamCaptureModeRelaxed)
    return nullptr;
  for (auto &c : captures) {
    bool own = c->thread == &thread && c->mode != cudaStreamCaptureModeRelaxed;
    bool others = thread.capture_mode == cudaStreamCaptureModeGlobal && c->mode == cudaStreamCaptureModeGlobal;
    if (own || others)
      return c.get();
  }
  return nullptr;
}

bool unsafe(Thread &thread, const char *call) {
  Capture *capture = forbids(thread);
  if (!capture)
    return false;
  report(std::string("unsafe ") + call, "misuse: %s by %s while %s is captured: the capture is invalid now", call,
         thread.name.c_str(), capture->origin->name.c_str());
  invalidate(capture, cudaErrorStreamCaptureUnsupported);
  return true;
}

cudaError_t invalidate(Capture *capture, cudaError_t error) {
  if (capture->invalid == cudaSuccess)
    capture->invalid = error;
  return error;
}

cudaError_t capture_work(Stream &stream, Work &&work) {
  Capture &c = *stream.capture;
  if (c.invalid != cudaSuccess)
    return cudaErrorStreamCaptureInvalidated;
  c.graph->nodes.push_back({std::move(work), stream.nodes, stream.branch, stream.device});
  stream.nodes.assign(1, (uint32_t)c.graph->nodes.size() - 1);
  return cudaSuccess;
}

cudaError_t capture_record(Stream &stream, Event &event) {
  Capture &c = *stream.capture;
  if (c.invalid != cudaSuccess)
    return cudaErrorStreamCaptureInvalidated;
  event.recorded = true;
  event.capture = &c;
  event.capture_id = c.id;
  event.nodes = stream.nodes;
  c.events.push_back(&event);
  return cudaSuccess;
}

static void join(Stream &stream, Capture &c) {
  stream.capture = &c;
  stream.nodes.clear();
  stream.branch = (uint32_t)c.graph->branches.size();
  c.graph->branches.push_back(stream.name);
  c.streams.push_back(&stream);
}

cudaError_t capture_wait(Stream &stream, Event &event) {
  Capture *c = stream.capture;
  if (c && c->invalid != cudaSuccess)
    return cudaErrorStreamCaptureInvalidated;
  if (!event.recorded)
    return cudaSuccess;
  if (!event.capture_id) {
    report("isolation " + stream.name,
           "misuse: captured %s waits for an event that was recorded outside of the capture", stream.name.c_str());
    return invalidate(c, cudaErrorStreamCaptureIsolation);
  }
  if (!event.capture)
    return c ? invalidate(c, cudaErrorCapturedEvent) : cudaErrorCapturedEvent; /* its capture has ended */
  if (c && c != event.capture) {
    report("merge " + stream.name, "misuse: %s waits for an event of another capture", stream.name.c_str());
    invalidate(event.capture, cudaErrorStreamCaptureMerge);
    return invalidate(c, cudaErrorStreamCaptureMerge);
  }
  if (event.capture->invalid != cudaSuccess)
    return cudaErrorStreamCaptureInvalidated;
  if (stream.legacy)
    return invalidate(event.capture, cudaErrorStreamCaptureImplicit);
  if (!c)
    join(stream, *event.capture);
  for (uint32_t node : event.nodes)
    if (std::find(stream.nodes.begin(), stream.nodes.end(), node) == stream.nodes.end())
      stream.nodes.push_back(node);
  return cudaSuccess;
}

/* True when all that was captured comes before the end of the stream that the capture began on. */
static bool joined(const Capture &c) {
  std::vector<char> before(c.graph->nodes.size(), 0);
  std::vector<uint32_t> todo = c.origin->nodes;
  while (!todo.empty()) {
    uint32_t node = todo.back();
    todo.pop_back();
    if (before[node])
      continue;
    before[node] = 1;
    const std::vector<uint32_t> &deps = c.graph->nodes[node].deps;
    todo.insert(todo.end(), deps.begin(), deps.end());
  }
  return std::find(before.begin(), before.end(), 0) == before.end();
}

static Graph *new_graph(bool exec) {
  graphs.emplace_back(new Graph{});
  Graph *graph = graphs.back().get();
  graph->exec = exec;
  M.handles[graph] = exec ? HANDLE_EXEC : HANDLE_GRAPH;
  return graph;
}

static Graph *graph_of(const void *handle, bool exec, const char *call) {
  auto it = M.handles.find(handle);
  Graph *graph = (Graph *)handle;
  if (it != M.handles.end() && it->second == (exec ? HANDLE_EXEC : HANDLE_GRAPH) && !graph->destroyed)
    return graph;
  report(std::string("graph ") + call, "misuse: %s with a handle that is no graph, or destroyed", call);
  return nullptr;
}

void graph_leaks() {
  size_t n = 0;
  for (auto &g : graphs)
    n += !g->destroyed;
  if (n)
    report("leak graphs", "leak: %zu graphs were not destroyed", n);
  if (!captures.empty())
    report("leak captures", "leak: %zu captures were not ended", captures.size());
}

void graphs_end() {
  captures.clear();
  graphs.clear();
}

void graphs_come_after(const std::function<bool(const Frontier &)> &touched, const Clock &clock) {
  for (auto &graph : graphs)
    if (touched(graph->frontier))
      graph->clock.join(clock);
}

/* From the launch on the event stands for the operation. */
static void record_external(Event &event, const Op &op) {
  const Note &place = M.notes[thread_note(self(), "cudaGraphLaunch")];
  event.recorded = true;
  event.frontier.assign(1, op.id);
  event.clock = op.clock;
  event.thread_chain = place.chain;
  event.thread_time = place.time;
}

static void launch(Graph &exec, Stream &stream) {
  arrive(stream);
  Clock base = stream.clock;
  base.join(exec.clock);
  Frontier roots = stream.frontier;
  merge(roots, exec.frontier);
  std::vector<Op *> ops;
  std::vector<char> leaf(exec.nodes.size(), 1);
  for (Node &node : exec.nodes) {
    Op *op = new_op(stream, node.work.what, exec.chains[node.branch]);
    op->device = node.device;
    op->work = node.work;
    op->clock = base;
    for (uint32_t dep : node.deps) {
      op->clock.join(ops[dep]->clock);
      depend(op, ops[dep]->id);
      leaf[dep] = 0;
    }
    if (node.deps.empty())
      for (Id id : roots)
        depend(op, id);
    M.notes[op->id].time = ++exec.times[node.branch];
    op->clock.set(exec.chains[node.branch], exec.times[node.branch]);
    if (node.work.records)
      record_external(*node.work.records, *op);
    ops.push_back(op);
  }
  Op *end = new_op(stream, "the end of a graph", stream.chain);
  for (size_t i = 0; i < ops.size(); i++)
    if (leaf[i]) {
      stream.clock.join(ops[i]->clock);
      depend(end, ops[i]->id);
    }
  for (Id id : roots)
    depend(end, id);
  stream.clock.join(base);
  M.notes[end->id].time = stream.clock.at(stream.chain) + 1;
  stream.clock.set(stream.chain, M.notes[end->id].time);
  end->clock = stream.clock;
  stream.frontier.assign(1, end->id);
  stream.version += stream.legacy;
  exec.frontier = stream.frontier;
  exec.clock = stream.clock;
  for (Op *op : ops)
    start(op);
  start(end);
}

} // namespace vg

using namespace vg;

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  VG_CALL(cudaThreadExchangeStreamCaptureMode, CALL_PLAIN);
  std::swap(*mode, api.thread->capture_mode);
  return api.end(cudaSuccess);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode) {
  VG_CALL(cudaStreamBeginCapture, CALL_PLAIN);
  Stream *stream = stream_of(handle, "cudaStreamBeginCapture");
  if (!stream || stream->legacy || stream->capture)
    return api.end(stream ? cudaErrorStreamCaptureUnsupported : cudaErrorInvalidResourceHandle);
  captures.emplace_back(new Capture{});
  Capture *c = captures.back().get();
  c->id = ++capture_ids;
  c->graph = new_graph(false);
  c->origin = stream;
  c->thread = api.thread;
  c->mode = mode;
  join(*stream, *c);
  return api.end(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *out) {
  VG_CALL(cudaStreamEndCapture, CALL_PLAIN);
  Stream *stream = stream_of(handle, "cudaStreamEndCapture");
  if (!stream || !stream->capture || !out)
    return api.end(stream && out ? cudaErrorIllegalState : cudaErrorInvalidValue);
  *out = nullptr;
  Capture *c = stream->capture;
  if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != api.thread)
    return api.end(cudaErrorStreamCaptureWrongThread);
  cudaError_t error = c->invalid != cudaSuccess ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  if (error == cudaSuccess && c->origin != stream)
    error = cudaErrorStreamCaptureUnmatched;
  if (error == cudaSuccess && !joined(*c)) {
    report("unjoined", "misuse: the capture of %s ends with work that was not joined to it", c->origin->name.c_str());
    error = cudaErrorStreamCaptureUnjoined;
  }
  for (Stream *s : c->streams)
    s->capture = nullptr;
  for (Event *e : c->events)
    if (e->capture == c)
      e->capture = nullptr;
  if (error == cudaSuccess) {
    *out = (cudaGraph_t)c->graph;
  } else {
    c->graph->destroyed = true;
    c->graph->nodes.clear();
  }
  captures.erase(std::find_if(captures.begin(), captures.end(), [c](auto &one) { return one.get() == c; }));
  return api.end(error);
}

/* Asking does no harm to what the answer is about. */
static cudaError_t capture_status(Thread &thread, cudaStream_t handle, const char *call,
                                  enum cudaStreamCaptureStatus *status, unsigned long long *id) {
  if (!handle || handle == cudaStreamLegacy)
    for (Stream *other : M.devices[(size_t)thread.device].streams)
      if (other->capture && other->blocking)
        return cudaErrorStreamCaptureImplicit;
  Stream *stream = stream_of(handle, call);
  if (!stream)
    return cudaErrorInvalidResourceHandle;
  *status = !stream->capture                          ? cudaStreamCaptureStatusNone
            : stream->capture->invalid != cudaSuccess ? cudaStreamCaptureStatusInvalidated
                                                      : cudaStreamCaptureStatusActive;
  if (id && *status == cudaStreamCaptureStatusActive)
    *id = stream->capture->id;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status) {
  VG_CALL(cudaStreamIsCapturing, CALL_PLAIN);
  return api.end(capture_status(*api.thread, handle, "cudaStreamIsCapturing", status, nullptr));
}

static cudaError_t get_capture_info(cudaStream_t handle, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                    bool more) {
  VG_CALL(cudaStreamGetCaptureInfo, CALL_PLAIN);
  return api.end(more ? cudaErrorNotSupported /* the library asks for no more */
                      : capture_status(*api.thread, handle, "cudaStreamGetCaptureInfo", status, id));
}

#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *n) {
  return get_capture_info(handle, status, id, graph || nodes || edges || n);
}
#else
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t handle, enum cudaStreamCaptureStatus *status,
                                        unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes,
                                        size_t *n) {
  return get_capture_info(handle, status, id, graph || nodes || n);
}
#endif

cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t *nodes, size_t *n) {
  VG_CALL(cudaGraphGetNodes, CALL_PLAIN);
  Graph *graph = graph_of(handle, false, "cudaGraphGetNodes");
  if (!graph || nodes)
    return api.end(cudaErrorInvalidValue); /* only their number */
  *n = graph->nodes.size();
  return api.end(cudaSuccess);
}

static cudaError_t instantiate(cudaGraphExec_t *out, cudaGraph_t handle, unsigned long long) {
  Graph *graph = graph_of(handle, false, "cudaGraphInstantiate");
  if (!graph || !out)
    return cudaErrorInvalidValue;
  Graph *exec = new_graph(true);
  exec->nodes = graph->nodes;
  exec->branches = graph->branches;
  for (const std::string &branch : exec->branches)
    exec->chains.push_back(new_chain("graph, branch of " + branch));
  exec->times.assign(exec->chains.size(), 0);
  *out = (cudaGraphExec_t)exec;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
  VG_CALL(cudaGraphInstantiate, CALL_CREATE);
  return api.end(instantiate(out, graph, flags));
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
  VG_CALL(cudaGraphInstantiateWithFlags, CALL_CREATE);
  return api.end(instantiate(out, graph, flags));
}

cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t) {
  VG_CALL(cudaGraphUpload, CALL_PLAIN);
  return api.end(graph_of(handle, true, "cudaGraphUpload") ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream_handle) {
  VG_CALL(cudaGraphLaunch, CALL_LAUNCH);
  count(M.counts.graph_launches);
  Graph *exec = graph_of(handle, true, "cudaGraphLaunch");
  Stream *stream = stream_of(stream_handle, "cudaGraphLaunch");
  if (!exec || !stream)
    return api.end(cudaErrorInvalidResourceHandle);
  if (stream->capture) /* a graph in a graph: the library has none */
    return api.end(invalidate(stream->capture, cudaErrorNotSupported));
  launch(*exec, *stream);
  return api.end(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
  VG_CALL(cudaGraphExecDestroy, CALL_DESTROY);
  Graph *exec = graph_of(handle, true, "cudaGraphExecDestroy");
  if (exec) {
    exec->destroyed = true;
    exec->nodes.clear(); /* and with them what they hold */
  }
  VG_END(exec ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
  VG_CALL(cudaGraphDestroy, CALL_DESTROY);
  Graph *graph = graph_of(handle, false, "cudaGraphDestroy");
  if (graph) {
    graph->destroyed = true;
    graph->nodes.clear();
  }
  VG_END(graph ? cudaSuccess : cudaErrorInvalidValue);
}
