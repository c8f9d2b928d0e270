// caffe.Error of pycaffe: caffe::Error as a Python exception.

#include "caffe/error.hpp"

#include <boost/python.hpp>
#include <new>
#include <string>

namespace bp = boost::python;

namespace caffe {

namespace {

PyObject* error_class = nullptr;

// File names and the like need not be UTF-8.
bp::object AsText(const std::string& text) {
  return bp::object(bp::handle<>(
      PyUnicode_DecodeUTF8(text.data(), text.size(), "backslashreplace")));
}

void Raise(const Error& error) {
  bp::object type(bp::handle<>(bp::borrowed(error_class)));
  bp::object raised = type(AsText(error.what()));
  raised.attr("message") = AsText(error.message());
  raised.attr("file") = AsText(error.file());
  raised.attr("line") = error.line();
  PyErr_SetObject(error_class, raised.ptr());
}

// Outside of layers, whose errors say more. Python's MemoryError would be
// empty.
void RaiseOutOfMemory(const std::bad_alloc&) {
  Raise(Error("", 0, "out of memory; the net asks for more than there is"));
}

}  // namespace

void RegisterError() {
  error_class = PyErr_NewExceptionWithDoc(
      "caffe.Error",
      "An error in Caffe: its message, and the file and line of Caffe's source "
      "that noticed it.",
      PyExc_RuntimeError, nullptr);
  bp::scope().attr("Error") =
      bp::object(bp::handle<>(bp::borrowed(error_class)));
  bp::register_exception_translator<Error>(&Raise);
  bp::register_exception_translator<std::bad_alloc>(&RaiseOutOfMemory);
}

}  // namespace caffe
