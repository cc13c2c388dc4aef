// Errors, arrays of other libraries, owners of C handles, and calls of all ranks: shared by the files of the module.
//
// An owner frees its handle once, and knows what stands on it: a communicator ends its transfers before itself. Every
// call that may wait, move or read gives the GIL back (run, waited).
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

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

using Shape = std::vector<int64_t>;
using Limit = std::optional<int64_t>; // bytes of staging a rank; none: the library's
inline int64_t limit_of(Limit limit) { return limit.value_or(RESHARD_DEFAULT_LIMIT); }

// --- Types of stubs -------------------------------------------------------------------------------------------------
using Any = nb::typed<nb::object, nb::any>;
using IntTuple = nb::typed<nb::tuple, int64_t, nb::ellipsis>;
inline IntTuple tuple_of(int n, const int64_t *numbers) {
  nb::tuple tuple = nb::steal<nb::tuple>(PyTuple_New(n));
  for (int i = 0; i < n; i++)
    PyTuple_SetItem(tuple.ptr(), i, PyLong_FromLongLong(numbers[i]));
  return tuple;
}
inline IntTuple tuple_of(const Shape &numbers) { return tuple_of(int(numbers.size()), numbers.data()); }
// An argument that may be left out: None.
inline auto operator""_n(const char *name, size_t) { return nb::arg(name) = nb::none(); }
#define FIELD(of, name) nb::arg(#name) = (of).name // of a report
using Report = nb::typed<nb::dict, nb::str, nb::any>;
template <typename... All> Report report_of(All &&...all) { // of "name"_a = value, ...
  return nb::borrow<Report>(nb::handle(&PyDict_Type)(std::forward<All>(all)...));
}

// --- Errors ---------------------------------------------------------------------------------------------------------
template <typename... Parts> std::string text_of(const Parts &...parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}
std::string str_of(nb::handle object);
inline std::string name_of(nb::handle type) { return str_of(type.attr("__name__")); }
inline std::string shape_text(int ndim, const int64_t *shape) { return nb::repr(tuple_of(ndim, shape)).c_str(); }
// Raises the exception of a status, with the library's text where text is empty. That of a deadline has the ranks which
// the communicator of the call misses.
[[noreturn]] void raise(reshard_status status, std::string text = "", reshard_comm comm = nullptr);
template <typename... Parts> [[noreturn]] void invalid(const Parts &...parts) {
  raise(RESHARD_ERROR_INVALID, text_of(parts...));
}
template <typename... Parts> [[noreturn]] void unsupported(const Parts &...parts) {
  raise(RESHARD_ERROR_UNSUPPORTED, text_of(parts...));
}
inline int ndim_of(const Shape &shape) {
  if (shape.size() > RESHARD_MAX_DIMS)
    unsupported("a shape of ", shape.size(), " dims; at most ", RESHARD_MAX_DIMS);
  return int(shape.size());
}
inline void check(reshard_status status, reshard_comm comm = nullptr, const char *text = "") {
  if (status != RESHARD_SUCCESS)
    raise(status, text, comm);
}
std::vector<int64_t> missing_of(reshard_comm comm);
// A callback of the library's in Python: what it raises comes out of the call that it was made for, by raise, and is
// `failed` to the library, which else hears 0.
int in_python(int failed, const std::function<void()> &call);
inline void check_signals() {
  if (PyErr_CheckSignals() != 0)
    throw nb::python_error();
}

// --- Calls of the library -------------------------------------------------------------------------------------------
template <typename Call> reshard_status without_gil(Call &&call) {
  nb::gil_scoped_release release;
  return call();
}
template <typename Call> void run(Call &&call) { check(without_gil(call)); }
// The value that a call gives by its last argument; `waited`: without the GIL.
template <typename Value, typename Call, typename... Arguments> Value got(Call call, const Arguments &...arguments) {
  Value value = {};
  check(call(arguments..., &value));
  return value;
}
template <typename Value, typename Call, typename... Arguments> Value waited(Call call, const Arguments &...arguments) {
  Value value = {};
  run([&] { return call(arguments..., &value); });
  return value;
}
// The text of a print-out whose last arguments are (text, size, &needed).
template <typename Print, typename... Arguments> std::string printed(Print print, const Arguments &...arguments) {
  std::string text(256, '\0');
  size_t needed = 0;
  while (reshard_status status = print(arguments..., text.data(), text.size(), &needed)) {
    if (needed <= text.size())
      raise(status);
    text.resize(needed);
  }
  text.resize(needed - 1);
  return text;
}
// A text for the C library: one with a NUL would end there unseen.
inline const char *c_text(const std::string &text, const char *what) {
  if (text.find('\0') != std::string::npos)
    invalid(what, ": a NUL at character ", text.find('\0'));
  return text.c_str();
}

std::string path_of(nb::handle path); // of a str or os.PathLike

// The T that the caller gave, else a TypeError.
template <typename T> T &as(nb::handle given, const char *what) {
  if (!nb::isinstance<T>(given)) {
    const std::string text =
        text_of(what, ": a ", name_of(given.type()), ", where a ", name_of(nb::type<T>()), " is due");
    throw nb::type_error(text.c_str());
  }
  return *nb::inst_ptr<T>(given);
}

template <typename Handle, void (*end)(Handle)> struct Owned {
  explicit Owned(Handle handle = nullptr) : handle(handle) {}
  Owned(Owned &&other) noexcept : handle(std::exchange(other.handle, nullptr)) {}
  ~Owned() { end(handle); }
  Handle handle;
};

// A call on an object that can be closed, which stays open until the call returns.
template <typename T> struct Use {
  explicit Use(T &object) : object(object) {
    if (object.closed())
      invalid("the ", T::noun, " is closed");
    object.calls++;
  }
  ~Use() { object.calls--; }
  T &object;
};
// A function of an object that can be closed, which stays open meanwhile.
template <typename Result, typename T, typename... More> auto opened(Result (*call)(T &, More...)) {
  return [call](T &object, More... more) -> Result {
    Use<T> in(object);
    return call(object, std::forward<More>(more)...);
  };
}
// Gives a class close(), closed, and `with`.
template <typename T> void bind_closing(nb::class_<T> &type, const char *doc) {
  type.def_prop_ro("closed", &T::closed)
      .def("close", &T::close, doc)
      .def("__enter__", [](nb::object self) -> nb::typed<nb::object, T> { return self; })
      .def(
          "__exit__", [](T &t, nb::args) { t.close(); }, nb::sig("def __exit__(self, *unused: object) -> None"));
}

inline bool is_list(nb::handle h) { return nb::isinstance<nb::list>(h) || nb::isinstance<nb::tuple>(h); }
inline void *address_of(nb::handle number) { return reinterpret_cast<void *>(nb::cast<uintptr_t>(nb::int_(number))); }

// --- Element types and arrays ---------------------------------------------------------------------------------------
// By name ("bf16", "BF16"), a numpy dtype or scalar type, an ml_dtypes one, or torch's. None: `other`.
reshard_dtype dtype_of(nb::handle dtype, reshard_dtype other = RESHARD_DTYPE_NONE);
const char *dtype_name(reshard_dtype dtype); // as torch and ml_dtypes have it
enum { ON_CPU = -1, ON_SOME_GPU = -2 };      // in the place of a GPU's number; the second: nobody has told it
// Memory of a numpy, torch, JAX, CuPy ... array: where it is, never a copy. owner keeps it.
struct Array {
  void *data = nullptr;
  reshard_dtype dtype = RESHARD_DTYPE_NONE;
  int ndim = 0;
  int64_t shape[RESHARD_MAX_DIMS] = {}, strides[RESHARD_MAX_DIMS] = {}; // in elements
  bool writable = false;
  bool flat = false; // of elements side by side: C takes it without strides
  int gpu = ON_CPU;  // number of the GPU
  nb::object owner;
  nb::ndarray<nb::ro> view; // the export, where it came by one
  nb::object torch;         // the tensor, where it is torch's: its storage can be freed under it
  int64_t elements() const { return std::accumulate(shape, shape + ndim, int64_t(1), std::multiplies<>()); }
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
};
std::ostream &operator<<(std::ostream &out, const What &what);
Array array_of(nb::handle object, const What &what);
nb::handle numpy_type(reshard_dtype dtype); // numpy's, of ml_dtypes where it has none
nb::object numpy_empty(reshard_dtype dtype, int ndim, const int64_t *shape);
using Tensor = Owned<reshard_tensor, reshard_tensor_release>;
nb::object numpy_over(const Array &memory, nb::handle owner); // contiguous
// An array in a tensor's storage, which it keeps: of the type `like`, else numpy's, or on a GPU an object that has
// DLPack. That keeps the stream, too, in the order of which its memory goes.
nb::object array_in(reshard_tensor tensor, nb::handle stream, nb::handle like = nb::none());

// --- Layouts and plans ----------------------------------------------------------------------------------------------
struct Layout : Owned<reshard_layout, reshard_layout_release> {
  using Owned::Owned;
  Layout(const Layout &other) : Owned(reshard_layout_retain(other.handle)) {}
  int ndim() const { return reshard_layout_ndim(handle); }
  int64_t world() const { return reshard_layout_world(handle); }
  reshard_layout_kind kind() const { return reshard_layout_get_kind(handle); }
  IntTuple shape() const { return tuple_of(ndim(), reshard_layout_shape(handle)); }
  std::string text() const { return printed(reshard_layout_print, handle); }
  int64_t count(int64_t rank) const { return got<int64_t>(reshard_layout_array_count, handle, rank); }
  // Without memory: of a rank's array, of all its elements (flat), of its arrays side by side (parts that ranks share).
  const std::vector<Array> &buffers(int64_t rank) const;
  // The value of a rank, as a caller has it: a list of its buffers for boxes, else the only one. None: it is not named.
  nb::object value(int64_t rank, const nb::list &buffers) const {
    if (kind() == RESHARD_LAYOUT_BOXES)
      return buffers;
    return kind() == RESHARD_LAYOUT_FLAT || count(rank) > 0 ? nb::object(buffers[0]) : nb::none();
  }

private:
  mutable std::map<int64_t, std::vector<Array>> kept;
};

using Numbers = std::optional<Shape>;
using Dims = std::optional<std::vector<int>>;
struct Entry {
  Layout src, dst;
  reshard_dtype dtype, dst_dtype; // neither is NONE
  std::string name;
  Numbers src_offset = {}, src_extent = {}, dst_offset = {}, dst_extent = {};
  Dims permutation = {};
  Numbers block = {};                             // of the side that is f8_e4m3, which has scales then
  reshard_dtype scale_dtype = RESHARD_DTYPE_NONE; // f32
  const Shape *block_of(reshard_dtype side) const { return block && side == RESHARD_F8_E4M3 ? &*block : nullptr; }
};

struct Plan : Owned<reshard_plan, reshard_plan_destroy> {
  Plan(reshard_plan handle, std::vector<Entry> entries, int64_t rank)
      : Owned(handle), entries(std::move(entries)), rank(rank) {}
  std::vector<Entry> entries;
  int64_t rank;
};
Plan make_plan(std::vector<Entry> entries, int64_t rank, Limit limit);

// The buffers that a rank gives for one side of a list of entries, checked against their layouts.
struct Side {
  std::vector<Array> arrays;            // one per buffer
  std::vector<void *> data;             // NULL where the rank holds nothing
  std::vector<const int64_t *> strides; // of the arrays; NULL: contiguous
};
struct Wanted {
  const Layout *layout;
  reshard_dtype dtype; // NONE: that of the first array which tells one
  std::string name;
  bool file = false;            // of contiguous arrays
  const Shape *block = nullptr; // of values that have scales behind them
  reshard_dtype scales = RESHARD_DTYPE_NONE;
};
Side side_of(nb::handle given, std::vector<Wanted> &wanted, int64_t rank, const char *side, bool write, int gpu);

// --- Communicators, and collective calls of all ranks that one stands for -------------------------------------------
struct Transfer;
void end_transfer(Transfer &transfer); // destroys its handles, and takes it from its communicator

using Sharder = Owned<reshard_sharder, reshard_sharder_destroy>;

// All ranks of a communicator that this object stands for: one of a node, n of a local world. Closed at exit.
struct Comm {
  Comm(std::vector<reshard_comm> handles, bool local, int gpu);
  Comm(const Comm &) = delete;
  ~Comm() { close(); }
  void close(); // ends its transfers first; a call that waits in another thread returns with a PeerError
  bool closed() const { return handles.empty(); }
  int64_t size() const { return reshard_comm_size(handles.at(0)); }
  int64_t rank(size_t i) const { return reshard_comm_rank(handles.at(i)); }
  std::vector<reshard_comm> handles;                // none once it is closed
  std::map<int64_t, std::vector<Sharder>> sharders; // by limit; made with the first call of it
  bool local;
  int gpu; // that its arrays are on
  bool streams() const { return gpu != ON_CPU; }
  reshard_device device = nullptr; // of `empty`, whose storage the node's processes read; NULL: none yet
  std::set<Transfer *> transfers;
  std::map<void *, nb::object> used; // the callers' streams, which live as long as what is freed in their order
  int calls = 0;                     // that threads are in
  static constexpr const char *noun = "communicator";
};

void *stream_of(Comm &comm, nb::handle stream); // checked against the communicator's device, which keeps it

// A call of this thread for all ranks here.
template <typename Call> void run_in(Comm &comm, Call &&call) { check(without_gil(call), comm.handles[0]); }

// A call of each rank here, where C has none for all of them: each on a thread of its own.
template <typename Call> void run_ranks(Comm &comm, Call &&call) {
  std::vector<std::pair<reshard_status, std::string>> ended(comm.handles.size());
  auto one = [&](size_t i) { ended[i].first = call(i), ended[i].second = reshard_last_error(); };
  run([&] {
    std::vector<std::thread> threads;
    for (size_t i = 1; i < ended.size(); i++)
      threads.emplace_back(one, i);
    one(0);
    std::for_each(threads.begin(), threads.end(), std::mem_fn(&std::thread::join));
    return RESHARD_SUCCESS;
  });
  for (size_t i = 0; i < ended.size(); i++)
    check(ended[i].first, comm.handles[i], ended[i].second.c_str());
}

// Tells the other ranks; raises only what ends the wait.
inline void refuse(Comm &comm, const std::string &text) {
  Use<Comm> in(comm);
  const reshard_status mine = reshard_error_set(RESHARD_ERROR_INVALID, text.c_str());
  const reshard_status status = without_gil([&] { return reshard_comm_agree(comm.handles[0], mine); });
  if (status == RESHARD_ERROR_CANCELLED)
    raise(status);
}

// Checks what a call of all ranks takes. Where a rank that is a process refuses it, all have its error: the others are
// in the call, or come to it.
template <typename Take> auto joined(Comm &comm, Take &&take) {
  try {
    return take();
  } catch (std::exception &error) {
    if (comm.local || comm.size() == 1)
      throw;
    auto *python = dynamic_cast<nb::python_error *>(&error);
    refuse(comm, python != nullptr ? str_of(python->value()) : error.what());
    throw;
  }
}

// A thing of each rank here.
inline std::vector<nb::object> of_ranks(const Comm &comm, nb::handle given, const char *what) {
  if (comm.handles.size() == 1 && !(comm.local && nb::isinstance<nb::list>(given)))
    return {nb::borrow(given)};
  const size_t ranks = comm.handles.size();
  if (!is_list(given))
    invalid(what, ": a ", name_of(given.type()), ", where ", ranks,
            " ranks of this process take a list with a thing for each");
  std::vector<nb::object> list = nb::cast<std::vector<nb::object>>(given);
  if (list.size() != ranks)
    invalid(what, ": a list of ", list.size(), " things for ", ranks, " ranks of this process");
  return list;
}
// Things of the ranks here, as of_ranks takes them.
inline nb::object for_ranks(const Comm &comm, const nb::list &made) {
  return comm.local ? nb::object(made) : nb::object(made[0]);
}

void bind_plan(nb::module_ &m), bind_comm(nb::module_ &m), bind_transfer(nb::module_ &m);
void bind_sharded(nb::module_ &m), bind_file(nb::module_ &m);
