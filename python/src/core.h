// Errors, arrays of other libraries, and the owners of C handles: shared by the files of the module.
//
// An owner frees its handle once, and knows what stands on it: a communicator ends its transfers before itself. Every
// call that may wait, move or read gives the GIL back (run).
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <reshard/file.h>
#include <reshard/reshard.h>
#include <reshard/sharded.h>
#include <reshard/tensor.h>

#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

using Shape = std::vector<int64_t>;

using Any = nb::typed<nb::object, nb::any>; // of stubs
using Report = nb::typed<nb::dict, nb::str, nb::any>;
using IntTuple = nb::typed<nb::tuple, int64_t, nb::ellipsis>;
inline IntTuple tuple_of(int n, const int64_t *numbers) {
  nb::tuple tuple = nb::steal<nb::tuple>(PyTuple_New(n));
  for (int i = 0; i < n; i++)
    PyTuple_SetItem(tuple.ptr(), i, PyLong_FromLongLong(numbers[i]));
  return tuple;
}

// Raises the exception of a status, with the library's text where text is empty. kind: a class below that.
[[noreturn]] void raise(reshard_status status, std::string text = "", const Shape &missing = {},
                        const char *kind = nullptr);
inline void check(reshard_status status) {
  if (status != RESHARD_SUCCESS)
    raise(status);
}
[[noreturn]] inline void invalid(const std::string &text) { raise(RESHARD_ERROR_INVALID, text); }

// A function for reshard_comm_set_poll: what a handler of signals raises ends the wait of the main thread, and comes
// out of raise.
int poll_signals(void *unused);

// Of `with`.
template <typename T> nb::typed<nb::object, T> entered(nb::object self) { return self; }
const nb::sig EXIT("def __exit__(self, *unused: object) -> None");

// Runs a call of the library without the GIL, and raises what it returns.
template <typename Call> void run(Call &&call) {
  reshard_status status;
  {
    nb::gil_scoped_release release;
    status = call();
  }
  check(status);
}

// A text for the C library: one with a NUL would end there unseen.
const char *c_text(const std::string &text, const char *what);
std::string path_of(nb::handle path, bool there = true); // of a str or os.PathLike, which has to be there
// The text of a print-out with (text, size, &needed).
template <typename Print> std::string printed(Print &&print) {
  std::string text(256, '\0');
  size_t needed = 0;
  while (print(text.data(), text.size(), &needed) != RESHARD_SUCCESS) {
    if (needed <= text.size())
      raise(RESHARD_ERROR_INTERNAL);
    text.resize(needed);
  }
  text.resize(needed - 1);
  return text;
}
std::string shape_text(int ndim, const int64_t *shape);

// --- Element types ---------------------------------------------------------------------------------------------------
// By name ("bf16", "BF16"), a numpy dtype or scalar type, an ml_dtypes one, or torch's.
reshard_dtype dtype_of(nb::handle dtype);
const char *dtype_name(reshard_dtype dtype); // as torch and ml_dtypes have it
inline reshard_dtype dtype_or(nb::handle dtype, reshard_dtype other) {
  return dtype.is_none() ? other : dtype_of(dtype);
}

// --- Arrays ----------------------------------------------------------------------------------------------------------
// Memory of a numpy, torch, JAX, CuPy ... array: where it is, never a copy. owner keeps it.
struct Array {
  void *data = nullptr;
  reshard_dtype dtype = RESHARD_DTYPE_NONE;
  int ndim = 0;
  int64_t shape[RESHARD_MAX_DIMS] = {}, strides[RESHARD_MAX_DIMS] = {}; // in elements
  bool writable = false;
  int gpu = -1; // number of the GPU; -1: the CPU
  nb::object owner;
  nb::ndarray<nb::ro> view; // the export, where it came by one
  nb::object torch;         // the tensor, where it is torch's: its storage can be freed under it
  int64_t elements() const {
    int64_t n = 1;
    for (int d = 0; d < ndim; d++)
      n *= shape[d];
    return n;
  }
  bool contiguous() const { // row-major, as the buffers of files are
    int64_t due = 1;
    for (int d = ndim - 1; d >= 0; due *= shape[d], d--)
      if (shape[d] > 1 && strides[d] != due && elements() > 0)
        return false;
    return true;
  }
};
// The name of an array in errors, "source of rank 1, 'w', buffer 0", which costs nothing until there is one.
struct What {
  const char *side;
  int64_t rank = -1; // -1: side is all of it
  const std::string *name = nullptr;
  int64_t buffer = -1; // -1: the only one
  std::string text() const;
};
inline std::string operator+(const What &what, const std::string &more) { return what.text() + more; }
Array array_of(nb::handle object, const What &what);
// numpy's dtype. bits: types that it lacks are unsigned integers, else those of ml_dtypes.
nb::handle numpy_type(reshard_dtype dtype, bool bits = false);
nb::object numpy_empty(reshard_dtype dtype, int ndim, const int64_t *shape);
nb::object numpy_over(const Array &memory, bool bits, nb::handle owner);
nb::object numpy_of(reshard_tensor tensor, bool bits = false); // a view that keeps the tensor

// --- Owners ----------------------------------------------------------------------------------------------------------
struct Layout {
  explicit Layout(reshard_layout handle) : handle(handle) {}
  Layout(const Layout &) = delete;
  ~Layout() { reshard_layout_release(handle); }
  reshard_layout handle;
};
const Layout &layout_arg(nb::handle object); // a Layout, else a TypeError

struct Entry {
  nb::object src, dst;                                                      // of Layout
  reshard_dtype dtype = RESHARD_DTYPE_NONE, dst_dtype = RESHARD_DTYPE_NONE; // neither is NONE in one that is made
  std::string name;
  std::optional<Shape> src_offset, src_extent, dst_offset, dst_extent;
  std::optional<std::vector<int>> permutation;
};

struct Plan {
  Plan(reshard_plan handle, std::vector<Entry> entries, int64_t rank)
      : handle(handle), entries(std::move(entries)), rank(rank) {}
  Plan(const Plan &) = delete;
  ~Plan() { reshard_plan_destroy(handle); }
  reshard_plan handle;
  std::vector<Entry> entries;
  int64_t rank;
};
reshard_plan make_plan(const std::vector<Entry> &entries, int64_t rank, int64_t limit);

struct Transfer;
// All ranks of a communicator that this object stands for: one of a node, n of a local world.
struct Comm {
  Comm(std::vector<reshard_comm> handles, bool local, bool streams)
      : handles(std::move(handles)), local(local), streams(streams) {
    for (reshard_comm handle : this->handles)
      check(reshard_comm_set_poll(handle, poll_signals, nullptr));
  }
  Comm(const Comm &) = delete;
  ~Comm();
  void close(); // ends its transfers first; a call that waits in another thread returns with a PeerError
  int64_t size() const { return reshard_comm_size(handles.at(0)); }
  std::vector<reshard_comm> handles;                        // none once it is closed
  std::map<int64_t, std::vector<reshard_sharder>> sharders; // by limit; made with the first call of it
  reshard_device device = nullptr;                          // whose storage the node's processes read; NULL: none
  bool local, streams;
  std::set<Transfer *> transfers;
  int calls = 0; // that threads are in
};

// A call that keeps a communicator open until it returns.
struct CommCall {
  explicit CommCall(Comm &comm);
  ~CommCall() { comm.calls--; }
  Comm &comm;
};

int64_t limit_of(std::optional<int64_t> limit);
void *stream_of(const Comm &comm, nb::handle stream); // checked against the communicator's device

// The buffers that a rank gives for one side of a list of entries, checked against their layouts.
struct Side {
  std::vector<Array> arrays; // one per buffer
  std::vector<void *> data;  // NULL where the rank holds nothing
  std::vector<std::array<int64_t, RESHARD_MAX_DIMS>> stride_numbers;
  std::vector<const int64_t *> strides; // NULL: contiguous
};
struct Wanted {
  const Layout *layout;
  reshard_dtype dtype; // NONE: any
  std::string name;
};
// The shape that buffer b has: of its array, of all its elements (flat), or of its arrays side by side (parts).
Array buffer_shape(const Layout &layout, int64_t rank, int64_t b);
Side side_of(nb::handle given, const std::vector<Wanted> &wanted, int64_t rank, const char *side, bool write, bool gpu);

void bind_error(nb::module_ &m);
void bind_layout(nb::module_ &m);
void bind_plan(nb::module_ &m);
void bind_comm(nb::module_ &m);
void bind_transfer(nb::module_ &m);
void bind_sharded(nb::module_ &m);
void bind_checkpoint(nb::module_ &m);
void bind_file(nb::module_ &m);
