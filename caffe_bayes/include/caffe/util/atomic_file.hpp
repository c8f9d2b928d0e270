#ifndef CAFFE_UTIL_ATOMIC_FILE_HPP_
#define CAFFE_UTIL_ATOMIC_FILE_HPP_

// Files that replace others only when they are complete and on the disk.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace caffe {

/// Throws: what is wrong with a file, without a place in Caffe's source.
[[noreturn]] void FailFile(const std::string& filename, const std::string& why);

/**
 * @brief A file under a temporary name beside the one that it will replace.
 *
 * The name cannot be guessed and is new, so that nobody's link is followed. The
 * file is locked as long as it is open: one that is not locked was left by a
 * killed process, and the next writer of the same file removes it.
 */
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& filename);
  /// Removes the file unless it was renamed.
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  int descriptor() const { return descriptor_; }
  const std::string& filename() const { return filename_; }
  const std::string& name() const { return name_; }
  /// Whether it has its own name: it was renamed, or cannot be replaced.
  bool IsInPlace() const { return name_ == filename_; }
  /// Waits until the content is on the disk.
  void Sync();
  /// Replaces the file.
  void Rename();
  /// Waits until the new name is on the disk.
  void SyncFolder();

 private:
  // False if the file was removed before it was locked.
  bool OpenLocked();

  const std::string filename_;
  // Equal to filename_ for what cannot be replaced, such as /dev/stdout.
  std::string name_;
  int descriptor_ = -1;
};

/**
 * @brief A file to write. Without Commit, be it for an error, an existing file
 *        stays as it is.
 *
 * Errors are such as "net.caffemodel: No space left on device".
 */
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& filename);

  /// To write to directly; Fail tells of an error.
  int descriptor() const { return scratch_->descriptor(); }
  const std::string& filename() const { return scratch_->filename(); }
  bool IsInPlace() const { return scratch_->IsInPlace(); }
  void Write(const void* data, size_t size);
  /// Overwrites what was written there.
  void WriteAt(size_t at, const void* data, size_t size);
  [[noreturn]] void Fail(int error) const;
  void Commit();

 private:
  // Calls write_some(next, left) until nothing is left.
  template <typename WriteSome>
  void WriteAll(const void* data, size_t size,
                const WriteSome& write_some) const;

  std::unique_ptr<ScratchFile> scratch_;
};

/// While one exists in a thread, the thread's files wait for its Commit. A full
/// disk then leaves all of the old files, and not some of them.
class FilesTogether {
 public:
  FilesTogether();
  ~FilesTogether();
  FilesTogether(const FilesTogether&) = delete;
  FilesTogether& operator=(const FilesTogether&) = delete;

  /// Replaces files in the order in which they were written.
  void Commit();
  /// The name under which a file can be read, even while it waits.
  static std::string ReadableName(const std::string& filename);

 private:
  friend class AtomicFile;
  std::vector<std::unique_ptr<ScratchFile>> waiting_;
};

}  // namespace caffe

#endif  // CAFFE_UTIL_ATOMIC_FILE_HPP_
