#ifndef CAFFE_UTIL_FILE_HEAD_HPP_
#define CAFFE_UTIL_FILE_HEAD_HPP_

// Caffemodels and solver states begin with the size and the hash of all that
// follows, so that one that is cut off or damaged is noticed. In a BINARYPROTO
// file the head is a field, FileHead of caffe.proto, which other readers skip.
// In an HDF5 file it is in the user block before the file itself, which HDF5
// skips. Files without a head, such as those of stock Caffe, are not checked.

#include <google/protobuf/message.h>

#include <string>

#include "caffe/util/atomic_file.hpp"
#include "caffe/util/hash.hpp"

namespace caffe {

/// Whether files of such messages begin with a head.
bool HasHead(const google::protobuf::Message& message);

/// Removes the head that a message was read with.
void ForgetHead(google::protobuf::Message* message);

/// The head of what was hashed.
std::string MakeHead(const Hash& rest);

/// The same, filled up to the size of a user block of HDF5.
std::string MakeHDF5Head(const Hash& rest);

/// For a file whose rest is written piece by piece: first the space for the
/// head; the head itself when the rest is there.
void LeaveSpaceForHead(AtomicFile* file);
void WriteHead(AtomicFile* file);

/// The hash in the head of a file; 0 if it has no head.
uint64_t ChecksumOf(const std::string& filename);

/// Throws if a file has a head and the rest is not what the head tells.
void CheckHead(const std::string& filename);

}  // namespace caffe

#endif  // CAFFE_UTIL_FILE_HEAD_HPP_
