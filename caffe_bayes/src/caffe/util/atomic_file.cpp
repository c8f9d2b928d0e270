#include "caffe/util/atomic_file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <utility>

#include "caffe/error.hpp"

namespace caffe {

namespace {

thread_local FilesTogether* together = nullptr;

// python/bayescaffe/common/files.py has the same names: .NAME.KEY.tmp, with a
// key of hexadecimal digits.
const char kSuffix[] = ".tmp";
const char kDigits[] = "0123456789abcdef";

std::string Folder(const std::string& filename) {
  const size_t slash = filename.rfind('/');
  return slash == std::string::npos ? "./" : filename.substr(0, slash + 1);
}

std::string Prefix(const std::string& filename) {
  const size_t slash = filename.rfind('/');
  const size_t start = slash == std::string::npos ? 0 : slash + 1;
  return "." + filename.substr(start) + ".";
}

std::string RandomKey() {
  std::random_device random;
  char key[17];
  std::snprintf(key, sizeof(key), "%08x%08x", random(), random());
  return key;
}

bool IsScratch(const std::string& name, const std::string& prefix) {
  const size_t ends = prefix.size() + std::strlen(kSuffix);
  if (name.size() <= ends || name.compare(0, prefix.size(), prefix) != 0 ||
      name.compare(name.size() - 4, 4, kSuffix) != 0) {
    return false;
  }
  const std::string key = name.substr(prefix.size(), name.size() - ends);
  return key.find_first_not_of(kDigits) == std::string::npos;
}

void RemoveIfLeft(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) return;
  if (flock(file, LOCK_EX | LOCK_NB) == 0) unlink(path.c_str());
  close(file);
}

// Removes what killed processes left of the same file.
void RemoveRemains(const std::string& filename) {
  const std::string folder = Folder(filename), prefix = Prefix(filename);
  DIR* entries = opendir(folder.c_str());
  if (!entries) return;
  while (const dirent* entry = readdir(entries)) {
    if (IsScratch(entry->d_name, prefix)) RemoveIfLeft(folder + entry->d_name);
  }
  closedir(entries);
}

bool IsDevice(const std::string& filename) {
  struct stat status;
  return stat(filename.c_str(), &status) == 0 && !S_ISREG(status.st_mode) &&
         !S_ISDIR(status.st_mode);
}

// Some file systems cannot sync a folder, and devices have nothing to sync.
bool Sync(int descriptor) {
  return fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP;
}

}  // namespace

void FailFile(const std::string& filename, const std::string& why) {
  throw Error("", 0, filename + ": " + why);
}

ScratchFile::ScratchFile(const std::string& filename)
    : filename_(filename), name_(filename) {
  if (IsDevice(filename)) {
    descriptor_ = open(filename.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor_ < 0) FailFile(filename, std::strerror(errno));
    return;
  }
  RemoveRemains(filename);
  // Before it is locked, another writer may take it for remains.
  while (!OpenLocked()) close(descriptor_);
}

bool ScratchFile::OpenLocked() {
  name_ = Folder(filename_) + Prefix(filename_) + RandomKey() + kSuffix;
  descriptor_ = open(name_.c_str(),
                     O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (descriptor_ < 0) FailFile(filename_, std::strerror(errno));
  flock(descriptor_, LOCK_EX);  // fails on some network file systems
  return access(name_.c_str(), F_OK) == 0;
}

ScratchFile::~ScratchFile() {
  if (!IsInPlace()) unlink(name_.c_str());
  close(descriptor_);
}

void ScratchFile::Sync() {
  if (!caffe::Sync(descriptor_)) FailFile(filename_, std::strerror(errno));
}

void ScratchFile::Rename() {
  if (IsInPlace()) return;
  if (std::rename(name_.c_str(), filename_.c_str()) != 0) {
    FailFile(filename_, std::strerror(errno));
  }
  name_ = filename_;
}

void ScratchFile::SyncFolder() {
  const int folder =
      open(Folder(filename_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;  // a folder that may be written but not read
  const bool synced = caffe::Sync(folder);
  const int error = errno;
  close(folder);
  if (!synced) FailFile(filename_, std::strerror(error));
}

AtomicFile::AtomicFile(const std::string& filename)
    : scratch_(new ScratchFile(filename)) {}

void AtomicFile::Write(const void* data, size_t size) {
  WriteAll(data, size, [&](const char* next, size_t left) {
    return write(descriptor(), next, left);
  });
}

void AtomicFile::WriteAt(size_t at, const void* data, size_t size) {
  WriteAll(data, size, [&](const char* next, size_t left) {
    return pwrite(descriptor(), next, left, at + size - left);
  });
}

template <typename WriteSome>
void AtomicFile::WriteAll(const void* data, size_t size,
                          const WriteSome& write_some) const {
  const char* next = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = write_some(next, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) Fail(errno);
    next += written;
    size -= written;
  }
}

void AtomicFile::Fail(int error) const {
  FailFile(scratch_->filename(), std::strerror(error));
}

void AtomicFile::Commit() {
  scratch_->Sync();
  if (together) {
    together->waiting_.push_back(std::move(scratch_));
  } else {
    scratch_->Rename();
    scratch_->SyncFolder();
  }
}

FilesTogether::FilesTogether() {
  CHECK(together == nullptr) << "files are written together already";
  together = this;
}

FilesTogether::~FilesTogether() { together = nullptr; }

void FilesTogether::Commit() {
  // All are renamed before anything is waited for: a process that is killed in
  // between leaves a new file with an old one.
  for (const std::unique_ptr<ScratchFile>& file : waiting_) file->Rename();
  for (const std::unique_ptr<ScratchFile>& file : waiting_) file->SyncFolder();
  waiting_.clear();
}

std::string FilesTogether::ReadableName(const std::string& filename) {
  if (together) {
    for (const std::unique_ptr<ScratchFile>& file : together->waiting_) {
      if (file->filename() == filename) return file->name();
    }
  }
  return filename;
}

}  // namespace caffe
