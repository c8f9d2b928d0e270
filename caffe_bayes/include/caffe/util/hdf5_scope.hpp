#ifndef CAFFE_UTIL_HDF5_SCOPE_HPP_
#define CAFFE_UTIL_HDF5_SCOPE_HPP_
#ifdef USE_HDF5

// What holds while a scope is not left, be it by an error.

#include <hdf5.h>

namespace caffe {

/// Closes a file or group of HDF5.
class HDF5Closer {
 public:
  explicit HDF5Closer(hid_t id) : id_(id) {}
  ~HDF5Closer() {
    if (id_ >= 0) H5Idec_ref(id_);
  }
  HDF5Closer(const HDF5Closer&) = delete;
  HDF5Closer& operator=(const HDF5Closer&) = delete;

 private:
  const hid_t id_;
};

/// Keeps HDF5 from writing its own report of a failure to stderr.
class HDF5Silence {
 public:
  HDF5Silence() {
    H5Eget_auto2(H5E_DEFAULT, &report_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~HDF5Silence() { H5Eset_auto2(H5E_DEFAULT, report_, data_); }
  HDF5Silence(const HDF5Silence&) = delete;
  HDF5Silence& operator=(const HDF5Silence&) = delete;

 private:
  H5E_auto2_t report_;
  void* data_;
};

}  // namespace caffe

#endif  // USE_HDF5
#endif  // CAFFE_UTIL_HDF5_SCOPE_HPP_
