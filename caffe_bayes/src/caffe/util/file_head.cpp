#include "caffe/util/file_head.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "caffe/proto/caffe.pb.h"

namespace caffe {

namespace {

// HDF5 looks for its own first bytes at 0, 512, 1024 and so on.
const size_t kUserBlock = 512;

std::string Serialized(uint64_t size, uint64_t hash) {
  NetParameter head;  // or a SolverState, which has the same field
  head.mutable_head()->set_size(size);
  head.mutable_head()->set_hash(hash);
  return head.SerializeAsString();
}

// All heads have one size, since their numbers are fixed64.
size_t HeadSize() {
  static const size_t size = Serialized(0, 0).size();
  return size;
}

// Up to `size` bytes from `at` on; fewer only at the end of the file.
std::string ReadAt(const std::string& filename, int file, size_t size,
                   off_t at) {
  std::string content(size, 0);
  size_t filled = 0;
  while (filled < size) {
    const ssize_t part =
        pread(file, &content[filled], size - filled, at + filled);
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) FailFile(filename, std::strerror(errno));
    if (part == 0) break;
    filled += part;
  }
  content.resize(filled);
  return content;
}

Hash HashFrom(const std::string& filename, int file, off_t start) {
  const size_t kPart = 1 << 18;  // stays in the cache
  Hash hash;
  std::string part;
  do {
    part = ReadAt(filename, file, kPart, start + hash.size());
    hash.Add(part.data(), part.size());
  } while (part.size() == kPart);
  return hash;
}

// False if the bytes are no head.
bool ParseHead(const std::string& bytes, FileHead* head) {
  const std::string like = Serialized(0, 0);
  NetParameter read;
  // Its tag and its length.
  if (bytes.size() < like.size() || bytes.compare(0, 3, like, 0, 3) != 0 ||
      !read.ParseFromString(bytes)) {
    return false;
  }
  *head = read.head();
  return head->has_size() && head->has_hash();
}

void CheckRest(const std::string& filename, int file, uint64_t file_size) {
  const std::string first = ReadAt(filename, file, HeadSize() + 1, 0);
  FileHead head;
  if (!ParseHead(first.substr(0, HeadSize()), &head)) return;
  // No field of a message begins with 0.
  const bool has_user_block = first.size() > HeadSize() && first.back() == 0;
  const uint64_t start =
      std::min<uint64_t>(has_user_block ? kUserBlock : HeadSize(), file_size);
  if (file_size - start != head.size()) {
    FailFile(filename, "cut off, or changed: it has " +
                           std::to_string(file_size - start) +
                           " bytes after its head, but " +
                           std::to_string(head.size()) + " were written");
  }
  if (HashFrom(filename, file, start).Value() != head.hash()) {
    FailFile(filename, "damaged: its content does not have its checksum");
  }
}

}  // namespace

bool HasHead(const google::protobuf::Message& message) {
  return message.GetDescriptor()->FindFieldByName("head") != nullptr;
}

void ForgetHead(google::protobuf::Message* message) {
  if (!HasHead(*message)) return;
  message->GetReflection()->ClearField(
      message, message->GetDescriptor()->FindFieldByName("head"));
}

std::string MakeHead(const Hash& rest) {
  return Serialized(rest.size(), rest.Value());
}

std::string MakeHDF5Head(const Hash& rest) {
  std::string head = MakeHead(rest);
  head.resize(kUserBlock);
  return head;
}

void LeaveSpaceForHead(AtomicFile* file) {
  const std::string head = MakeHead(Hash());
  file->Write(head.data(), head.size());
}

void WriteHead(AtomicFile* file) {
  const std::string head =
      MakeHead(HashFrom(file->filename(), file->descriptor(), HeadSize()));
  file->WriteAt(0, head.data(), head.size());
}

void CheckHead(const std::string& filename) {
  struct stat status;
  if (stat(filename.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  const int file = open(filename.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return;  // which the reader tells
  const std::unique_ptr<const int, void (*)(const int*)> closer(
      &file, [](const int* opened) { close(*opened); });
  CheckRest(filename, file, status.st_size);
}

}  // namespace caffe
