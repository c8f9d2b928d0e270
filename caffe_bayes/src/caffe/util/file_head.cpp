#include "caffe/util/file_head.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

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

// A file and its head, if it has one.
class HeadedFile {
 public:
  explicit HeadedFile(const std::string& filename) : filename_(filename) {
    struct stat status;
    if (stat(filename.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) {
      return;
    }
    size_ = status.st_size;
    file_ = open(filename.c_str(), O_RDONLY | O_CLOEXEC);
    if (file_ < 0) return;  // which the reader tells
    const std::string first = ReadAt(filename, file_, HeadSize() + 1, 0);
    has_head_ = ParseHead(first.substr(0, HeadSize()), &head_);
    // No field of a message begins with 0.
    const bool has_user_block = first.size() > HeadSize() && first.back() == 0;
    start_ =
        std::min<uint64_t>(has_user_block ? kUserBlock : HeadSize(), size_);
  }
  ~HeadedFile() {
    if (file_ >= 0) close(file_);
  }
  HeadedFile(const HeadedFile&) = delete;

  uint64_t checksum() const { return has_head_ ? head_.hash() : 0; }

  void Check() const {
    if (!has_head_) return;
    if (size_ - start_ != head_.size()) {
      FailFile(filename_, "cut off, or changed: it has " +
                              std::to_string(size_ - start_) +
                              " bytes after its head, but " +
                              std::to_string(head_.size()) + " were written");
    }
    if (HashFrom(filename_, file_, start_).Value() != head_.hash()) {
      FailFile(filename_, "damaged: its content does not have its checksum");
    }
  }

 private:
  const std::string filename_;
  uint64_t size_ = 0;
  int file_ = -1;
  bool has_head_ = false;
  FileHead head_;
  // Where the rest begins.
  uint64_t start_ = 0;
};

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

uint64_t ChecksumOf(const std::string& filename) {
  return HeadedFile(filename).checksum();
}

void CheckHead(const std::string& filename) { HeadedFile(filename).Check(); }

}  // namespace caffe
