// Net.sample of pycaffe, as far as it is C++: sample.py is the rest.

#include <boost/python.hpp>
#include <boost/python/stl_iterator.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "caffe/bayes/monte_carlo.hpp"
#include "caffe/net.hpp"

namespace bp = boost::python;

namespace caffe {

namespace {

// The memory of an array, which sample.py has made contiguous and of floats.
class Array {
 public:
  Array(const bp::object& array, bool writable) {
    if (PyObject_GetBuffer(array.ptr(), &view_,
                           writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO)) {
      bp::throw_error_already_set();
    }
  }
  ~Array() { PyBuffer_Release(&view_); }
  Array(const Array&) = delete;
  float* data() const { return static_cast<float*>(view_.buf); }

 private:
  Py_buffer view_;
};

typedef std::map<std::string, bp::object> Objects;

Objects ByName(const bp::dict& dict) {
  Objects objects;
  const bp::list items = dict.items();
  for (int i = 0; i < bp::len(items); ++i) {
    objects[bp::extract<std::string>(items[i][0])] = items[i][1];
  }
  return objects;
}

// Items of `size` numbers from an array, or from a function that gives arrays.
bayes::MonteCarlo<float>::Source MakeSource(const bp::object& input,
                                            size_t size) {
  if (PyCallable_Check(input.ptr())) {
    const auto current = std::make_shared<std::unique_ptr<Array> >();
    return [=](int first, int count) {
      current->reset();
      current->reset(new Array(input(first, count), false));
      return (*current)->data();
    };
  }
  const auto array = std::make_shared<Array>(input, false);
  return [=](int first, int) { return array->data() + first * size; };
}

// What a net keeps for its next sample is an attribute of its Python object. It
// is not there while it is used, as a callback may sample too.
const char kAttribute[] = "_monte_carlo";

void Delete(PyObject* capsule) {
  delete static_cast<bayes::MonteCarlo<float>*>(
      PyCapsule_GetPointer(capsule, kAttribute));
}

// Null if there is none.
std::unique_ptr<bayes::MonteCarlo<float> > Take(const bp::object& net) {
  bp::dict attributes = bp::extract<bp::dict>(net.attr("__dict__"));
  if (!attributes.has_key(kAttribute)) return nullptr;
  const bp::object capsule = attributes.get(kAttribute);
  std::unique_ptr<bayes::MonteCarlo<float> > taken(
      static_cast<bayes::MonteCarlo<float>*>(
          PyCapsule_GetPointer(capsule.ptr(), kAttribute)));
  PyCapsule_SetDestructor(capsule.ptr(), nullptr);
  attributes[kAttribute].del();
  return taken;
}

void Keep(std::unique_ptr<bayes::MonteCarlo<float> > monte_carlo,
          bp::object net) {
  const bp::object capsule{
      bp::handle<>(PyCapsule_New(monte_carlo.get(), kAttribute, &Delete))};
  monte_carlo.release();
  net.attr(kAttribute) = capsule;
}

}  // namespace

void Net_Sample(bp::object self, const std::string& output,
                const bp::object& draws, int images, const bp::dict& inputs,
                const bp::dict& kept, const bp::object& out,
                const bp::object& progress, size_t draw_memory) {
  Net<float>* net = bp::extract<Net<float>*>(self);
  const std::vector<uint64_t> draw_list{bp::stl_input_iterator<uint64_t>(draws),
                                        bp::stl_input_iterator<uint64_t>()};
  const Array out_array(out, true);
  bayes::MonteCarlo<float>::Inputs input_data;
  for (const auto& input : ByName(inputs)) {
    input_data[input.first] =
        MakeSource(input.second, net->blob_by_name(input.first)->count(1));
  }
  std::vector<std::unique_ptr<Array> > kept_arrays;
  bayes::MonteCarlo<float>::Kept kept_data;
  for (const auto& keep : ByName(kept)) {
    kept_arrays.emplace_back(new Array(keep.second, true));
    kept_data[keep.first] = kept_arrays.back()->data();
  }
  std::unique_ptr<bayes::MonteCarlo<float> > monte_carlo = Take(self);
  if (!monte_carlo || monte_carlo->output() != output ||
      monte_carlo->draw_memory() != draw_memory || !monte_carlo->IsCurrent()) {
    monte_carlo.reset();
    monte_carlo.reset(new bayes::MonteCarlo<float>(net, output, draw_memory));
  }
  for (const auto& keep : kept_data) {
    if (!monte_carlo->IsFixed(keep.first)) {
      const std::string message = "keep: the blob '" + keep.first +
                                  "' depends on the draw; sample it as output";
      PyErr_SetString(PyExc_ValueError, message.c_str());
      bp::throw_error_already_set();
    }
  }
  // An exception of the callback, or Ctrl-C, waits until the threads have
  // ended.
  const bool finished = monte_carlo->Run(
      draw_list, images, input_data, kept_data, out_array.data(),
      [&](double share) {
        if (PyErr_CheckSignals()) return false;
        if (progress.is_none()) return true;
        PyObject* result = PyObject_CallFunction(progress.ptr(), "d", share);
        Py_XDECREF(result);
        return result != nullptr;
      });
  if (!finished) bp::throw_error_already_set();
  if (draw_memory > 0) Keep(std::move(monte_carlo), self);
}

}  // namespace caffe
