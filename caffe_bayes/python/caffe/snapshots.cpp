// What bayescaffe asks of Caffe before it resumes a training, and when it reads
// or writes a caffemodel.

#include <boost/python.hpp>
#include <string>

#include "caffe/util/file_head.hpp"
#include "caffe/util/snapshot.hpp"
#include "caffe/util/upgrade_proto.hpp"

namespace bp = boost::python;

namespace caffe {

/// check_snapshot: the iteration of a solver state, the file of its weights and
/// the hash of its training, None if it has none. Raises for one that no
/// training can resume from.
bp::tuple CheckedSnapshot(const std::string& state_file) {
  const SolverState state = CheckSnapshot(state_file);
  const std::string& model = state.learned_net();
  const bp::object path(bp::handle<>(
      PyUnicode_DecodeFSDefaultAndSize(model.data(), model.size())));
  const bp::object training =
      state.has_training() ? bp::object(state.training()) : bp::object();
  return bp::make_tuple(state.iter(), path, training);
}

/// training_hash: what the snapshots of a solver prototxt carry.
uint64_t SolverTrainingHash(const std::string& solver_file) {
  SolverParameter solver;
  ReadSolverParamsFromTextFileOrDie(solver_file, &solver);
  return TrainingHash(solver);
}

/// check_head: raises if a file begins with a checksum that is not its own.
void CheckFileHead(const std::string& file) { CheckHead(file); }

/// make_head: what a file with the serialized message `content` begins with.
bp::object FileHeadOf(const std::string& content) {
  Hash hash;
  hash.Add(content.data(), content.size());
  const std::string head = MakeHead(hash);
  return bp::object(
      bp::handle<>(PyBytes_FromStringAndSize(head.data(), head.size())));
}

}  // namespace caffe
