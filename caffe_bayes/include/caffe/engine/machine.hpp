#ifndef CAFFE_ENGINE_MACHINE_HPP_
#define CAFFE_ENGINE_MACHINE_HPP_

namespace caffe {
namespace engine {

/// The instruction sets that loops are compiled for.
enum InstructionSet {
  kPlain,  // whatever the compiler takes as its baseline
  kAvx2,
  kAvx512,
};

/// The best that this machine has, found out once. BAYESCAFFE_ISA=avx2 or plain
/// in the environment holds it back, for tests.
InstructionSet Machine();

}  // namespace engine
}  // namespace caffe

#endif  // CAFFE_ENGINE_MACHINE_HPP_
