#ifndef CAFFE_UTIL_HDF5_SCOPE_HPP_
#define CAFFE_UTIL_HDF5_SCOPE_HPP_
#ifdef USE_HDF5

// What holds while a scope is not left, be it by an error.

#include <hdf5.h>

#include <memory>
#include <string>

#include "caffe/common.hpp"
#include "caffe/util/atomic_file.hpp"
#include "caffe/util/file_head.hpp"

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

/**
 * @brief An HDF5 file in memory, which Save writes at once.
 *
 * HDF5 itself does not tell why it cannot write a file, such as a full disk.
 */
class HDF5Image {
 public:
  HDF5Image() : id_(Create()), closer_(id_) {
    CHECK_GE(id_, 0) << "Failed to make an HDF5 file in memory";
  }

  hid_t id() const { return id_; }

  void Save(const std::string& filename) const {
    H5Fflush(id_, H5F_SCOPE_GLOBAL);
    const ssize_t size = H5Fget_file_image(id_, nullptr, 0);
    CHECK_GT(size, 0) << filename << ": Failed to make the HDF5 file";
    // Not cleared first, as a string is.
    const std::unique_ptr<char[]> content(new char[size]);
    CHECK_EQ(size, H5Fget_file_image(id_, content.get(), size)) << filename;
    Hash hash;
    hash.Add(content.get(), size);
    const std::string head = MakeHDF5Head(hash);
    AtomicFile file(filename);
    file.Write(head.data(), head.size());
    file.Write(content.get(), size);
    file.Commit();
  }

 private:
  static hid_t Create() {
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    const HDF5Closer access_closer(access);
    const size_t kGrowth = 1 << 20;
    const bool kOnDisk = false;
    H5Pset_fapl_core(access, kGrowth, kOnDisk);
    return H5Fcreate("image", H5F_ACC_TRUNC, H5P_DEFAULT, access);
  }

  const hid_t id_;
  const HDF5Closer closer_;
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
