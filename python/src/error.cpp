// The module reshard._core, and statuses as exceptions. Python's own classes are in reshard/_errors.py; the text is the
// library's.
#include "core.h"

#include <exception>

static thread_local std::exception_ptr raised_in_call;

int in_python(int failed, const std::function<void()> &call) {
  nb::gil_scoped_acquire acquire;
  try {
    call();
    return 0;
  } catch (...) {
    raised_in_call = std::current_exception();
    return failed;
  }
}

void raise(reshard_status status, std::string text, reshard_comm comm) {
  if (std::exception_ptr raised = std::exchange(raised_in_call, nullptr); raised != nullptr)
    std::rethrow_exception(raised);
  if (text.empty())
    text = reshard_last_error();
  const Shape missing = status == RESHARD_ERROR_TIMEOUT && comm != nullptr ? missing_of(comm) : Shape();
  const nb::object said = nb::steal(PyUnicode_DecodeUTF8(text.data(), Py_ssize_t(text.size()), "replace"));
  const nb::object error =
      nb::module_::import_("reshard._errors").attr("of_status")(int(status), said, tuple_of(missing));
  PyErr_SetObject(error.type().ptr(), error.ptr());
  throw nb::python_error();
}

std::string str_of(nb::handle object) {
  Py_ssize_t size = 0;
  const nb::str text(object);
  const char *bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes == nullptr)
    nb::raise_python_error();
  return std::string(bytes, size_t(size));
}

NB_MODULE(_core, m) {
#ifdef NDEBUG
  nb::set_leak_warnings(false); // a thread that waits at exit keeps its objects
#endif
  m.attr("version") = reshard_version();
  for (auto bind : {bind_plan, bind_comm, bind_transfer, bind_sharded, bind_file})
    bind(m);
}
