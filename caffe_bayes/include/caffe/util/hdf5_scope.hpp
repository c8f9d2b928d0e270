#ifndef CAFFE_UTIL_HDF5_SCOPE_HPP_
#define CAFFE_UTIL_HDF5_SCOPE_HPP_
#ifdef USE_HDF5

// What holds while a scope is not left, be it by an error.

#include <hdf5.h>

#include <string>

#include "caffe/common.hpp"

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

/// Adds a dataset without numbers.
inline void HDF5SaveNothing(hid_t group, const std::string& name) {
  const hid_t space = H5Screate(H5S_NULL);
  const HDF5Closer space_closer(space);
  const hid_t dataset = H5Dcreate2(group, name.c_str(), H5T_NATIVE_FLOAT, space,
                                   H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  const HDF5Closer dataset_closer(dataset);
  CHECK_GE(dataset, 0) << "Failed to make the empty dataset " << name;
}

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
