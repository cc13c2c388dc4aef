// Statuses as exceptions. The classes are Python's own (reshard/_errors.py); the text is the library's.
#include "core.h"

#include <cstring>
#include <exception>
#include <utility>

#include <sys/syscall.h>
#include <unistd.h>

static thread_local std::exception_ptr raised_in_wait;

int poll_signals(void *) {
  if (syscall(SYS_gettid) != getpid()) // others hear no signals, and would wait for the GIL
    return 0;
  nb::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() == 0)
    return 0;
  raised_in_wait = std::make_exception_ptr(nb::python_error());
  return 1;
}

void raise(reshard_status status, std::string text, const Shape &missing, const char *kind) {
  static const char *const kinds[] = {"InternalError", "InvalidError",  "UnsupportedError", "OutOfMemoryError",
                                      "SystemError",   "MismatchError", "PeerError",        "BusyError",
                                      "TimeoutError",  "InternalError", "CancelledError",   "CorruptError"};
  if (std::exception_ptr raised = std::exchange(raised_in_wait, nullptr); raised != nullptr)
    std::rethrow_exception(raised);
  if (text.empty())
    text = reshard_last_error();
  nb::object type = nb::module_::import_("reshard._errors").attr(kind != nullptr ? kind : kinds[status]);
  nb::object error = type(nb::steal(PyUnicode_DecodeUTF8(text.data(), Py_ssize_t(text.size()), "replace")));
  if (!missing.empty())
    error.attr("missing") = tuple_of(int(missing.size()), missing.data());
  PyErr_SetObject(type.ptr(), error.ptr());
  throw nb::python_error();
}

const char *c_text(const std::string &text, const char *what) {
  if (text.find('\0') != std::string::npos)
    invalid(std::string(what) + ": a NUL at character " + std::to_string(text.find('\0')));
  return text.c_str();
}

std::string shape_text(int ndim, const int64_t *shape) {
  std::string text = "(";
  for (int d = 0; d < ndim; d++)
    text += (d ? ", " : "") + std::to_string(shape[d]);
  return text + (ndim == 1 ? ",)" : ")");
}

void bind_error(nb::module_ &m) { m.attr("version") = reshard_version(); }
