#include "onednn.hpp"

#include <dnnl.h>

#include <dnnl.hpp>
#include <memory>
#include <unordered_map>
#include <vector>

namespace onednn {

namespace {

dnnl::engine& Engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::stream& Stream() {
  static dnnl::stream stream(Engine());
  return stream;
}

// Version 3 has no descriptors apart from those of primitives.
template <typename Primitive, typename... Arguments>
typename Primitive::primitive_desc Describe(Arguments... arguments) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Primitive::primitive_desc(Engine(), arguments...);
#else
  return typename Primitive::primitive_desc(
      typename Primitive::desc(arguments...), Engine());
#endif
}

template <typename Primitive, typename... Arguments>
typename Primitive::primitive_desc DescribeGradient(
    const dnnl::convolution_forward::primitive_desc& hint,
    Arguments... arguments) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Primitive::primitive_desc(Engine(), arguments..., hint);
#else
  return typename Primitive::primitive_desc(
      typename Primitive::desc(arguments...), Engine(), hint);
#endif
}

// A blob in Caffe's layout, and in the one that the convolution wants.
struct Operand {
  Operand(const dnnl::memory::dims& dims, dnnl::memory::format_tag layout,
          const dnnl::memory::desc& wanted, float* data)
      : caffes({dims, dnnl::memory::data_type::f32, layout}, Engine(), data),
        own(caffes.get_desc() == wanted ? caffes
                                        : dnnl::memory(wanted, Engine())) {}
  void Read() { Reorder(caffes, own); }
  void Write() { Reorder(own, caffes); }

 private:
  static void Reorder(dnnl::memory& from, dnnl::memory& to) {
    if (from.get_desc() == to.get_desc()) return;
    dnnl::reorder(from, to).execute(Stream(), from, to);
  }

 public:
  dnnl::memory caffes, own;
};

}  // namespace

void Sgemm(bool turn_a, bool turn_b, int m, int n, int k, const float* a,
           int lda, const float* b, int ldb, float beta, float* c, int ldc) {
  dnnl_sgemm(turn_a ? 'T' : 'N', turn_b ? 'T' : 'N', m, n, k, 1, a, lda, b, ldb,
             beta, c, ldc);
}

Convolution MakeConvolution(const caffe::engine::ConvolutionShape& s,
                            Direction direction, float* x, float* w,
                            float* bias, float* y) {
  using dnnl::memory;
  using dnnl::prop_kind;
  const auto any = [](const memory::dims& dims) {
    return memory::desc(dims, memory::data_type::f32, memory::format_tag::any);
  };
  const auto by_itself = dnnl::algorithm::convolution_auto;
  const memory::dims x_dims = {s.images, s.channels, s.input[0], s.input[1]};
  const memory::dims w_dims = {s.outputs, s.channels, s.kernel[0], s.kernel[1]};
  const memory::dims y_dims = {s.images, s.outputs, s.output(0), s.output(1)};
  const memory::dims strides = {s.stride[0], s.stride[1]};
  const memory::dims pad = {s.pad[0], s.pad[1]};
  const memory::desc bias_desc({s.outputs}, memory::data_type::f32,
                               memory::format_tag::x);
  const auto forward = Describe<dnnl::convolution_forward>(
      direction == kForward ? prop_kind::forward_inference
                            : prop_kind::forward_training,
      by_itself, any(x_dims), any(w_dims), bias_desc, any(y_dims), strides, pad,
      pad);

  dnnl::primitive primitive;
  memory::desc wanted[3];
  int read[2], written;  // which of x, w, y
  int names[3] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
  if (direction == kForward) {
    wanted[0] = forward.src_desc();
    wanted[1] = forward.weights_desc();
    wanted[2] = forward.dst_desc();
    read[0] = 0, read[1] = 1, written = 2;
    primitive = dnnl::convolution_forward(forward);
  } else if (direction == kInputGradient) {
    const auto desc = DescribeGradient<dnnl::convolution_backward_data>(
        forward, dnnl::algorithm::convolution_direct, any(x_dims), any(w_dims),
        any(y_dims), strides, pad, pad);
    wanted[0] = desc.diff_src_desc();
    wanted[1] = desc.weights_desc();
    wanted[2] = desc.diff_dst_desc();
    read[0] = 1, read[1] = 2, written = 0;
    names[0] = DNNL_ARG_DIFF_SRC, names[2] = DNNL_ARG_DIFF_DST;
    primitive = dnnl::convolution_backward_data(desc);
  } else {
    const auto desc = DescribeGradient<dnnl::convolution_backward_weights>(
        forward, dnnl::algorithm::convolution_direct, any(x_dims), any(w_dims),
        any(y_dims), strides, pad, pad);
    wanted[0] = desc.src_desc();
    wanted[1] = desc.diff_weights_desc();
    wanted[2] = desc.diff_dst_desc();
    read[0] = 0, read[1] = 2, written = 1;
    names[1] = DNNL_ARG_DIFF_WEIGHTS, names[2] = DNNL_ARG_DIFF_DST;
    primitive = dnnl::convolution_backward_weights(desc);
  }

  const auto nchw = memory::format_tag::nchw, oihw = memory::format_tag::oihw;
  auto operands = std::make_shared<std::vector<Operand> >();
  operands->emplace_back(x_dims, nchw, wanted[0], x);
  operands->emplace_back(w_dims, oihw, wanted[1], w);
  operands->emplace_back(y_dims, nchw, wanted[2], y);
  std::unordered_map<int, memory> arguments;
  for (int i = 0; i < 3; ++i) arguments[names[i]] = (*operands)[i].own;
  if (direction == kForward) {
    arguments[DNNL_ARG_BIAS] = memory(bias_desc, Engine(), bias);
  }

  Convolution made;
  made.run_in_own_layout = [operands, primitive, arguments] {
    primitive.execute(Stream(), arguments);
    Stream().wait();
  };
  const auto compute = made.run_in_own_layout;
  const int first = read[0], second = read[1];
  made.run = [operands, compute, first, second, written] {
    (*operands)[first].Read();
    (*operands)[second].Read();
    compute();
    (*operands)[written].Write();
    Stream().wait();
  };
  return made;
}

}  // namespace onednn
