#include "caffe/util/lmdb_pages.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace caffe {

namespace {

// ---- LMDB's format, version 1, as it is on 64-bit machines ------------------

struct PageHead {
  uint64_t number;
  uint16_t unused, flags;
  // Of a page of the tree: where its free space begins and ends.
  uint16_t lower, upper;
};
const int kBranch = 0x01, kLeaf = 0x02, kMeta = 0x08;
// What LMDB writes into the flags of a page while it is in memory.
const int kKinds = 0x7F & ~0x10;

struct NodeHead {
  // Of a leaf: the size of the record. Of a branch: 48 bits of a page number,
  // together with the flags.
  uint16_t low, high;
  uint16_t flags;
  uint16_t key_size;
};
const int kBigRecord = 0x01;  // the leaf has the number of the record's page

struct Tree {
  uint32_t page_size;  // in the first tree of a meta page only
  uint16_t flags, depth;
  uint64_t branches, leaves, big_pages, records, root;
};

struct Meta {
  uint32_t magic, version;
  uint64_t address, map_size;
  Tree free_pages, main;
  uint64_t last_page, transaction;
};
const uint32_t kMagic = 0xBEEFC0DE, kVersion = 1;
const uint64_t kNoPage = ~uint64_t{0};
const int kMaxDepth = 32;  // LMDB's cursors go no deeper

static_assert(sizeof(PageHead) == 16 && sizeof(NodeHead) == 8 &&
                  sizeof(Tree) == 48 && sizeof(Meta) == 136,
              "the layout of LMDB's files");

// ---- the check --------------------------------------------------------------

class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A part of the file. Nothing in it needs to be aligned.
struct Bytes {
  const char* data;
  size_t size;

  bool operator<(const Bytes& other) const {
    const int order = std::memcmp(data, other.data, std::min(size, other.size));
    return order != 0 ? order < 0 : size < other.size;
  }
};

template <typename T>
T Read(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

class Walk {
 public:
  explicit Walk(Bytes file) : file_(file), meta_(NewestMeta()) {}

  void Run() {
    const Tree& tree = meta_.main;
    Require(tree.flags == 0, "its database has flags that no data set has");
    if (tree.root != kNoPage) {
      Require(tree.depth >= 1 && tree.depth <= kMaxDepth,
              "its tree is " + std::to_string(tree.depth) + " pages deep");
      Visit(tree.root, 1);
    }
    // Readers take this for the size of the data set.
    Require(found_records_ == tree.records,
            "its tree has " + std::to_string(found_records_) +
                " records, but its head tells of " +
                std::to_string(tree.records));
  }

 private:
  static void Require(bool is_right, const std::string& fault) {
    if (!is_right) throw Fault("damaged: " + fault);
  }
  static void Require(bool is_right, uint64_t page, const char* fault) {
    // The text is made only if it is needed: this is asked for every record.
    if (is_right) return;
    throw Fault("damaged: page " + std::to_string(page) + " " + fault);
  }

  Meta MetaAt(size_t offset) const {
    const std::string bytes = std::to_string(file_.size) + " bytes";
    if (offset + sizeof(PageHead) + sizeof(Meta) > file_.size) {
      throw Fault("truncated, or not an LMDB: its file has " + bytes);
    }
    const auto head = Read<PageHead>(file_.data + offset);
    const auto meta = Read<Meta>(file_.data + offset + sizeof(PageHead));
    if (!(head.flags & kMeta) || meta.magic != kMagic) {
      throw Fault("truncated, or not an LMDB: it does not begin as one");
    }
    Require(meta.version == kVersion,
            "its format has the version " + std::to_string(meta.version));
    const uint32_t page = meta.free_pages.page_size;
    Require(page >= 512 && page <= 65536 && (page & (page - 1)) == 0,
            "its page size is " + std::to_string(page));
    return meta;
  }

  /// The one that LMDB reads: the first two pages take turns.
  Meta NewestMeta() const {
    const Meta first = MetaAt(0);
    const Meta second = MetaAt(first.free_pages.page_size);
    Require(first.free_pages.page_size == second.free_pages.page_size,
            "it has two page sizes");
    const bool is_second = first.transaction < second.transaction;
    const Meta& newest = is_second ? second : first;
    // LMDB finds it by this, too.
    Require(newest.transaction % 2 == is_second,
            "its head is not of its last transaction");
    // LMDB maps as many pages, also those at the end that are in no file.
    const uint64_t most = std::max<uint64_t>(newest.map_size, file_.size);
    Require(newest.last_page <= most / newest.free_pages.page_size,
            "its head tells of page " + std::to_string(newest.last_page));
    return newest;
  }

  size_t page_size() const { return meta_.free_pages.page_size; }

  /// Counts pages as used. A page that is used twice would be a loop.
  void Take(uint64_t first, uint64_t count, uint64_t from) {
    Require(first >= 2 && first <= meta_.last_page &&
                count <= meta_.last_page + 1 - first,
            from, "names pages that are not there");
    // Pages at the end that LMDB gave up before it wrote them are in no file.
    const uint64_t in_file = file_.size / page_size();
    if (first + count > in_file) {
      throw Fault("truncated: its file has " + std::to_string(file_.size) +
                  " bytes, but page " + std::to_string(first + count - 1) +
                  " of " + std::to_string(page_size()) + " bytes is in use");
    }
    if (is_used_.empty()) is_used_.resize(in_file);
    for (uint64_t page = first; page < first + count; ++page) {
      Require(!is_used_[page], from, "names a page that has another use");
      is_used_[page] = true;
    }
  }

  void Visit(uint64_t number, int depth) {
    Take(number, 1, number);
    const char* page = file_.data + number * page_size();
    const auto head = Read<PageHead>(page);
    const bool is_leaf = depth == meta_.main.depth;
    Require(head.number == number, number, "has another number");
    Require((head.flags & kKinds) == (is_leaf ? kLeaf : kBranch), number,
            is_leaf ? "is not a leaf" : "is not a branch");
    Require(head.lower >= sizeof(PageHead) && head.lower <= head.upper &&
                head.upper <= page_size() && head.lower % 2 == 0,
            number, "has impossible bounds");
    const int nodes = (head.lower - sizeof(PageHead)) / 2;
    // LMDB stops the process if a branch has only one.
    Require(nodes >= (is_leaf ? 1 : 2), number, "has too few entries");
    for (int i = 0; i < nodes; ++i) {
      const auto offset = Read<uint16_t>(page + sizeof(PageHead) + 2 * i);
      Require(offset >= head.upper && offset + sizeof(NodeHead) <= page_size(),
              number, "has an entry outside of itself");
      VisitNode(number, {page + offset, page_size() - offset}, i, depth);
    }
  }

  /// @param rest the page from the node on
  void VisitNode(uint64_t page, Bytes rest, int index, int depth) {
    const auto node = Read<NodeHead>(rest.data);
    const size_t end = sizeof(NodeHead) + node.key_size;
    Require(end <= rest.size, page, "has a key outside of itself");
    const Bytes key{rest.data + sizeof(NodeHead), node.key_size};
    const uint64_t low = node.low | uint64_t{node.high} << 16;
    if (depth < meta_.main.depth) {
      // The first key of a branch says nothing.
      if (index > 0) Follow(page, key, false);
      Visit(low | uint64_t{node.flags} << 32, depth + 1);
      return;
    }
    Follow(page, key, true);
    ++found_records_;
    Require((node.flags & ~kBigRecord) == 0, page,
            "has an entry that is no record");
    if (!(node.flags & kBigRecord)) {
      Require(low <= rest.size - end, page, "has a record outside of itself");
      return;
    }
    Require(end + 8 <= rest.size, page, "has an entry outside of itself");
    const uint64_t count =
        (sizeof(PageHead) + low + page_size() - 1) / page_size();
    Take(Read<uint64_t>(rest.data + end), count, page);
  }

  /// Keys ascend, or they are not found. That of a branch may be the same as
  /// the first one below it.
  void Follow(uint64_t page, Bytes key, bool is_record) {
    const bool is_first = last_.data == nullptr;
    const bool may_repeat = is_record && !is_last_of_record_;
    Require(is_first || last_ < key || (may_repeat && !(key < last_)), page,
            "has keys that are not in order");
    last_ = key;
    is_last_of_record_ = is_record;
  }

  const Bytes file_;
  const Meta meta_;
  uint64_t found_records_ = 0;
  std::vector<bool> is_used_;
  Bytes last_ = {nullptr, 0};
  bool is_last_of_record_ = false;
};

/// A file in memory, as long as this is there.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;
    if (fd < 0) return;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) {
      is_file_ = true;
      bytes_.size = status.st_size;
      void* map = bytes_.size == 0 ? MAP_FAILED
                                   : mmap(nullptr, bytes_.size, PROT_READ,
                                          MAP_SHARED, fd, 0);
      if (map != MAP_FAILED) bytes_.data = static_cast<const char*>(map);
    }
    close(fd);
  }
  ~MappedFile() {
    if (bytes_.data) munmap(const_cast<char*>(bytes_.data), bytes_.size);
  }
  MappedFile(const MappedFile&) = delete;

  bool is_file() const { return is_file_; }
  /// Without data if the file is empty, or cannot be mapped.
  Bytes bytes() const { return bytes_; }

 private:
  Bytes bytes_ = {nullptr, 0};
  bool is_file_ = false;
};

}  // namespace

std::string LMDBFault(const std::string& source) {
  struct stat status;
  const bool is_folder =
      stat(source.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  const MappedFile file(is_folder ? source + "/data.mdb" : source);
  if (!file.is_file()) return "";
  if (file.bytes().size == 0) return "truncated: its file is empty";
  if (file.bytes().data == nullptr) return "";
  try {
    Walk(file.bytes()).Run();
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "";
}

}  // namespace caffe
