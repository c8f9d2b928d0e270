#include "caffe/engine/machine.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace caffe {
namespace engine {

namespace {

InstructionSet Best() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw")) {
    return kAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return kAvx2;
  }
#endif
  return kPlain;
}

InstructionSet Allowed() {
  const char* said = std::getenv("BAYESCAFFE_ISA");
  const std::string isa = said ? said : "";
  return isa == "plain" ? kPlain : isa == "avx2" ? kAvx2 : kAvx512;
}

}  // namespace

InstructionSet Machine() {
  static const InstructionSet machine = std::min(Best(), Allowed());
  return machine;
}

}  // namespace engine
}  // namespace caffe
