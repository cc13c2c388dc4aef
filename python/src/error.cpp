// Statuses as exceptions. The classes are Python's own (reshard/_errors.py); the text is the library's.
#include "core.h"

#include <cstring>

void raise(reshard_status status, std::string text, const std::vector<int64_t> &missing) {
  if (text.empty())
    text = reshard_last_error();
  nb::object make = nb::module_::import_("reshard._errors").attr("of_status");
  nb::object error = make(int(status), nb::bytes(text.data(), text.size()), nb::tuple(nb::cast(missing)));
  PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
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

void bind_error(nb::module_ &m) {
  m.attr("version") = reshard_version();
  m.def("status_name", [](int status) { return reshard_status_string(reshard_status(status)); });
}
