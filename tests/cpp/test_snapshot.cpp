// Files that are replaced only when they are complete, and what a snapshot
// tells of itself.

#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/filesystem.hpp>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "caffe/test/test_caffe_main.hpp"
#include "caffe/util/atomic_file.hpp"
#include "caffe/util/hash.hpp"
#include "caffe/util/io.hpp"
#include "caffe/util/snapshot.hpp"
#include "expect_error.hpp"

namespace caffe {

namespace {

class AtomicFileTest : public ::testing::Test {
 protected:
  AtomicFileTest() { MakeTempDir(&folder_); }
  ~AtomicFileTest() override { boost::filesystem::remove_all(folder_); }

  string Path(const string& name) const { return folder_ + "/" + name; }
  static void Put(const string& path, const string& text) {
    std::ofstream(path) << text;
  }
  static string Read(const string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  static void Write(const string& path, const string& text) {
    AtomicFile file(path);
    file.Write(text.data(), text.size());
    file.Commit();
  }
  int NumFiles() const {
    const boost::filesystem::directory_iterator begin(folder_), end;
    return std::distance(begin, end);
  }

  string folder_;
};

uint64_t HashOf(const string& text, size_t first = 0) {
  Hash hash;
  hash.Add(text.data(), first);
  hash.Add(text.data() + first, text.size() - first);
  return hash.Value();
}

}  // namespace

// What the authors of XXH64 and others publish.
TEST(HashTest, IsXXH64) {
  EXPECT_EQ(0xef46db3751d8e999, HashOf(""));
  EXPECT_EQ(0xd24ec4f1a98c6e5b, HashOf("a"));
  EXPECT_EQ(0x44bc2cf5ad770999, HashOf("abc"));
  EXPECT_EQ(0xfbcea83c8a378bf1,
            HashOf("Nobody inspects the spammish repetition"));
}

TEST(HashTest, PartsDoNotMatter) {
  string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>(7 * i);
  for (size_t first = 0; first <= text.size(); ++first) {
    EXPECT_EQ(HashOf(text), HashOf(text, first)) << first;
  }
  EXPECT_NE(HashOf(text), HashOf(text.substr(1)));
}

TEST_F(AtomicFileTest, ReplacesWhenCommitted) {
  const string path = Path("file");
  Put(path, "old");
  {
    AtomicFile file(path);
    file.Write("new", 3);
    EXPECT_EQ("old", Read(path));
  }
  EXPECT_EQ("old", Read(path));
  EXPECT_EQ(1, NumFiles());
  Write(path, "new");
  EXPECT_EQ("new", Read(path));
  EXPECT_EQ(1, NumFiles());
}

TEST_F(AtomicFileTest, HasTheModeOfTheUmask) {
  const mode_t before = umask(027);
  Write(Path("file"), "text");
  umask(before);
  struct stat status;
  ASSERT_EQ(0, stat(Path("file").c_str(), &status));
  EXPECT_EQ(0640, status.st_mode & 0777);
}

TEST_F(AtomicFileTest, ReplacesALinkAndNotItsTarget) {
  Put(Path("precious"), "mine");
  ASSERT_EQ(0, symlink(Path("precious").c_str(), Path("file").c_str()));
  Write(Path("file"), "text");
  EXPECT_EQ("mine", Read(Path("precious")));
  EXPECT_EQ("text", Read(Path("file")));
}

TEST_F(AtomicFileTest, RemovesWhatKilledWritersLeft) {
  Put(Path(".file.0123456789abcdef.tmp"), "left");
  Put(Path(".file.4711.tmp"), "left by an earlier version");
  Put(Path(".file.mine.tmp"), "a user's");
  Put(Path(".other.0123456789abcdef.tmp"), "of another file");
  AtomicFile writer(Path("file"));  // which is not left
  EXPECT_EQ(3, NumFiles());
  Write(Path("file"), "text");
  EXPECT_EQ(4, NumFiles());
  writer.Write("late", 4);
  writer.Commit();
  EXPECT_EQ("late", Read(Path("file")));
  EXPECT_EQ(3, NumFiles());
}

TEST_F(AtomicFileTest, ErrorsNameTheFile) {
  EXPECT_ERROR(AtomicFile(Path("nowhere/file")),
               "^" + Path("nowhere/file") + ": No such file or directory$");
  AtomicFile full("/dev/full");  // a device, which is written in place
  EXPECT_ERROR(full.Write("text", 4), "^/dev/full: No space left on device$");
  NetParameter net;
  net.set_name("net");
  EXPECT_ERROR(WriteProtoToBinaryFile(net, "/dev/full"),
               "^/dev/full: No space left on device$");
}

TEST_F(AtomicFileTest, FilesAreReplacedTogether) {
  Put(Path("model"), "old");
  Put(Path("state"), "old");
  {
    FilesTogether both;
    Write(Path("model"), "new");
    EXPECT_EQ("new", Read(FilesTogether::ReadableName(Path("model"))));
    EXPECT_EQ(Path("state"), FilesTogether::ReadableName(Path("state")));
  }  // as if the second one failed
  EXPECT_EQ("old", Read(Path("model")));
  EXPECT_EQ(2, NumFiles());
  {
    FilesTogether both;
    Write(Path("model"), "new");
    Write(Path("state"), "new");
    EXPECT_EQ("old", Read(Path("model")));
    both.Commit();
  }
  EXPECT_EQ("new", Read(Path("model")));
  EXPECT_EQ("new", Read(Path("state")));
  EXPECT_EQ(2, NumFiles());
}

TEST_F(AtomicFileTest, MessagesHaveAChecksum) {
  NetParameter net;
  for (const char* name : {"one", "two", "three"}) {
    LayerParameter* layer = net.add_layer();
    layer->set_name(name);
    layer->add_blobs()->add_data(1);
  }
  SolverState state;
  state.set_iter(7);
  const string path = Path("file");
  const auto try_message = [&](const google::protobuf::Message& message) {
    WriteProtoToBinaryFile(message, path);
    const std::unique_ptr<google::protobuf::Message> read(message.New());
    ASSERT_TRUE(ReadProtoFromBinaryFile(path, read.get()));
    EXPECT_EQ(message.SerializeAsString(), read->SerializeAsString());

    const string content = Read(path);
    const size_t head = content.size() - message.ByteSizeLong();
    EXPECT_EQ(21, head);
    for (size_t size = head; size < content.size(); ++size) {
      Put(path, content.substr(0, size));
      EXPECT_ERROR(
          ReadProtoFromBinaryFile(path, read.get()),
          "^" + path + ": cut off, or changed: it has " +
              std::to_string(size - head) + " bytes after its head, but " +
              std::to_string(content.size() - head) + " were written$");
      string damaged = content;
      damaged[size] ^= 1;
      Put(path, damaged);
      EXPECT_ERROR(ReadProtoFromBinaryFile(path, read.get()),
                   "^" + path + ": damaged: its content does not have");
    }
    Put(path, content + "x");
    EXPECT_ERROR(ReadProtoFromBinaryFile(path, read.get()), "cut off");
    // A file of stock Caffe.
    Put(path, message.SerializeAsString());
    EXPECT_TRUE(ReadProtoFromBinaryFile(path, read.get()));
  };
  try_message(net);
  try_message(state);
}

// So that they can be read from a pipe.
TEST_F(AtomicFileTest, DevicesGetNoChecksum) {
  NetParameter net;
  net.set_name("net");
  WriteProtoToBinaryFile(net, "/dev/null");
}

}  // namespace caffe
