#include "caffe/util/limits.hpp"

#include <climits>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "caffe/blob.hpp"
#include "caffe/common.hpp"

namespace caffe {

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

const double kInfinity = std::numeric_limits<double>::infinity();

/// The numbers from `least` to `most`, perhaps without `most` itself.
struct Range {
  double least, most;
  bool has_most = true;

  bool Contains(double value) const {
    return value >= least && (has_most ? value <= most : value < most);
  }
  std::string Text() const;
};

Range Between(double least, double most) { return {least, most}; }
Range AtLeast(double least) { return {least, kInfinity, false}; }
Range Below(double least, double most) { return {least, most, false}; }

std::string NumberText(double number) {
  std::ostringstream text;
  if (number == std::floor(number) && std::fabs(number) < 1e15) {
    text << static_cast<int64_t>(number);
  } else {
    text << number;
  }
  return text.str();
}

std::string Range::Text() const {
  const bool is_open = most == kInfinity && !has_most;
  if (is_open && least == -std::numeric_limits<float>::max()) {
    return "a finite number";
  }
  if (least == -kInfinity) return "a number";
  if (is_open) return "a finite number, " + NumberText(least) + " or greater";
  if (!has_most) {
    return NumberText(least) + " or greater and less than " + NumberText(most);
  }
  return NumberText(least) + " to " + NumberText(most);
}

// Sums of some of these, as in the size of a padded image, are far from the end
// of an int.
const int kLongestWindow = 1 << 24;
// Each is a blob of a whole batch.
const int kMostBatches = 1024;
// Each is a part of a batch, with a sample of all weights of the layer.
const int kMostDraws = 1024;
// 2^15 bins: more than any image has pixels in a row.
const int kHighestPyramid = 16;
// Their squares, and the squares of weights divided by them, are neither 0 nor
// infinite in single precision.
const double kSmallestScale = 1e-6, kLargestScale = 1e6;
// Noise a thousand times as large as the weights leaves nothing of them, and
// its square is still far from infinity.
const double kLargestTau = 1e3;

const Range kSize = Between(1, INT_MAX);
const Range kPadding = Between(0, kLongestWindow);
const Range kWindow = Between(1, kLongestWindow);
const Range kAxis = Between(-kMaxBlobAxes, kMaxBlobAxes);
const Range kFactor = AtLeast(0);
const Range kDecay = Below(0, 1);
const Range kScale = Between(kSmallestScale, kLargestScale);
const Range kTau = Between(0, kLargestTau);

// The limits of fields whose type alone allows too much, by the name of the
// message and of the field, or of a field in any message. What is not here may
// be any finite number, or any int other than the least.
const std::map<std::string, Range>& Limits() {
  static const std::map<std::string, Range> limits = {
      // Places in a shape: no blob has more than 32 axes.
      {"axis", kAxis},
      {"end_axis", kAxis},
      {"num_axes", Between(-1, kMaxBlobAxes)},
      {"concat_dim", Between(0, kMaxBlobAxes)},
      {"slice_dim", Between(0, kMaxBlobAxes)},
      // Lengths: -1 is for Reshape, which finds it, 0 is for what is to be
      // reshaped later.
      {"BlobShape.dim", Between(-1, INT_MAX)},
      // What there must be at least one of.
      {"batch_size", kSize},
      {"num_output", kSize},
      {"top_k", kSize},
      {"EmbedParameter.input_dim", kSize},
      {"MemoryDataParameter.channels", kSize},
      {"MemoryDataParameter.height", kSize},
      {"MemoryDataParameter.width", kSize},
      {"TileParameter.tiles", kSize},
      {"ConvolutionParameter.group", kSize},
      {"SPPParameter.pyramid_height", Between(1, kHighestPyramid)},
      // Without a batch to fill, a data layer waits forever.
      {"DataParameter.prefetch", Between(1, kMostBatches)},
      // Windows on images.
      {"pad", kPadding},
      {"pad_h", kPadding},
      {"pad_w", kPadding},
      {"kernel_size", kWindow},
      {"kernel_h", kWindow},
      {"kernel_w", kWindow},
      {"stride", kWindow},
      {"stride_h", kWindow},
      {"stride_w", kWindow},
      {"dilation", kWindow},
      {"LRNParameter.local_size", kWindow},
      {"new_height", kPadding},
      {"new_width", kPadding},
      {"crop_size", kPadding},
      // No bound is the way to clip at one side only.
      {"ClipParameter.min", {-kInfinity, kInfinity}},
      {"ClipParameter.max", {-kInfinity, kInfinity}},
      // Shares. What drops out entirely is divided by 0.
      {"DropoutParameter.dropout_ratio", kDecay},
      {"BatchNormParameter.moving_average_fraction", Between(0, 1)},
      // Under a square root.
      {"BatchNormParameter.eps", kFactor},
      {"MVNParameter.eps", kFactor},
      {"FillerParameter.std", kFactor},
      // What is learned, and from what: a negative one goes uphill.
      {"lr_mult", kFactor},
      {"decay_mult", kFactor},
      // Bayesian layers.
      {"BayesParameter.prior_mean", Between(-kLargestScale, kLargestScale)},
      {"BayesParameter.bias_prior_mean",
       Between(-kLargestScale, kLargestScale)},
      {"BayesParameter.prior_std", kScale},
      {"BayesParameter.bias_prior_std", kScale},
      {"BayesParameter.prior_scale", kScale},
      {"BayesParameter.prior_std_min", kScale},
      {"BayesParameter.tau_init", kTau},
      {"BayesParameter.bias_tau_init", kTau},
      {"BayesParameter.tau_min", kTau},
      {"BayesParameter.kl_weight", kFactor},
      {"BayesParameter.dataset_size", Between(1, 1e15)},
      {"BayesParameter.draws_per_batch", Between(1, kMostDraws)},
      {"LossParameter.alpha", Between(0, 100)},
      // The solver.
      {"SolverParameter.base_lr", kFactor},
      {"SolverParameter.weight_decay", kFactor},
      {"SolverParameter.gamma", kFactor},
      {"SolverParameter.delta", kFactor},
      {"SolverParameter.momentum", kDecay},
      {"SolverParameter.momentum2", kDecay},
      {"SolverParameter.rms_decay", kDecay},
      {"SolverParameter.iter_size", kSize},
      {"SolverParameter.average_loss", kSize},
      {"SolverParameter.test_iter", kSize},
      {"SolverParameter.max_iter", Between(0, INT_MAX)},
      {"SolverParameter.test_interval", Between(0, INT_MAX)},
      {"SolverParameter.display", Between(0, INT_MAX)},
      {"SolverParameter.snapshot", Between(0, INT_MAX)},
      {"SolverParameter.stepsize", kSize},
      {"SolverParameter.stepvalue", Between(0, INT_MAX)},
      {"SolverParameter.test_draws", Between(0, INT_MAX)},
  };
  return limits;
}

/// A field that a layer cannot do without, as its default is not within its
/// limits.
struct Required {
  const char *type, *message, *field;
};

const Required kRequired[] = {
    {"Data", "data_param", "batch_size"},
    {"HDF5Data", "hdf5_data_param", "batch_size"},
    {"MemoryData", "memory_data_param", "batch_size"},
    {"MemoryData", "memory_data_param", "channels"},
    {"MemoryData", "memory_data_param", "height"},
    {"MemoryData", "memory_data_param", "width"},
    {"Convolution", "convolution_param", "num_output"},
    {"Deconvolution", "convolution_param", "num_output"},
    {"InnerProduct", "inner_product_param", "num_output"},
    {"Embed", "embed_param", "num_output"},
    {"Embed", "embed_param", "input_dim"},
    {"LSTM", "recurrent_param", "num_output"},
    {"RNN", "recurrent_param", "num_output"},
    {"SPP", "spp_param", "pyramid_height"},
    {"Tile", "tile_param", "tiles"},
};

const Range* FindLimit(const FieldDescriptor& field) {
  const auto& limits = Limits();
  auto found =
      limits.find(field.containing_type()->name() + "." + field.name());
  if (found == limits.end()) found = limits.find(field.name());
  return found == limits.end() ? nullptr : &found->second;
}

Range LimitOf(const FieldDescriptor& field) {
  if (const Range* limit = FindLimit(field)) return *limit;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return Between(0, INT_MAX);  // Caffe takes them for int.
    case FieldDescriptor::CPPTYPE_INT32:
      return Between(-INT_MAX, INT_MAX);  // -INT_MIN is no int.
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return AtLeast(-std::numeric_limits<float>::max());
    default:
      return {-kInfinity, kInfinity};
  }
}

// The value of a field, or of one of its values if it is repeated.
double Number(const Message& message, const FieldDescriptor* field, int i) {
  const Reflection& get = *message.GetReflection();
  const bool repeated = field->is_repeated();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return repeated ? get.GetRepeatedUInt32(message, field, i)
                      : get.GetUInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT32:
      return repeated ? get.GetRepeatedInt32(message, field, i)
                      : get.GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT64:
      return repeated ? get.GetRepeatedInt64(message, field, i)
                      : get.GetInt64(message, field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return repeated ? get.GetRepeatedFloat(message, field, i)
                      : get.GetFloat(message, field);
    default:
      return 0;  // Of other types every value is allowed.
  }
}

// Weights have checks of their own, and so have the nets of a solver.
bool IsWalked(const FieldDescriptor& field) {
  return field.message_type() != BlobProto::descriptor() &&
         field.message_type() != NetParameter::descriptor();
}

// Checks all fields that are set. `owner` is whose they are, `path` leads to
// the message.
void CheckFields(const Message& message, const std::string& owner,
                 const std::string& path) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (!IsWalked(*field)) continue;
    const std::string name = path + field->name();
    const int values =
        field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < values; ++i) {
      if (field->message_type()) {
        CheckFields(field->is_repeated()
                        ? reflection.GetRepeatedMessage(message, field, i)
                        : reflection.GetMessage(message, field),
                    owner, name + ".");
        continue;
      }
      const Range limit = LimitOf(*field);
      const double value = Number(message, field, i);
      LOG_IF(FATAL, !limit.Contains(value))
          << owner << ": " << name << " is " << NumberText(value)
          << ", but must be " << limit.Text();
    }
  }
}

// The stock type of a Bayesian layer, which takes its parameters.
std::string StockType(const std::string& type) {
  const std::string prefix = "Bayes";
  return type.compare(0, prefix.size(), prefix) == 0
             ? type.substr(prefix.size())
             : type;
}

void CheckRequired(const LayerParameter& layer, const std::string& owner) {
  const std::string type = StockType(layer.type());
  for (const Required& required : kRequired) {
    if (type != required.type) continue;
    const FieldDescriptor* message_field =
        layer.GetDescriptor()->FindFieldByName(required.message);
    const Message& message =
        layer.GetReflection()->GetMessage(layer, message_field);
    const FieldDescriptor* field =
        message.GetDescriptor()->FindFieldByName(required.field);
    LOG_IF(FATAL, !message.GetReflection()->HasField(message, field))
        << owner << ": " << required.message << "." << required.field
        << " is missing, but must be " << LimitOf(*field).Text();
  }
}

void CheckSteps(const SolverParameter& solver) {
  const std::string& policy = solver.lr_policy();
  const bool has_steps = policy == "step" || policy == "sigmoid";
  LOG_IF(FATAL, has_steps && !solver.has_stepsize())
      << "solver: stepsize is missing, but must be " << kSize.Text()
      << " with lr_policy: \"" << policy << "\"";
  if (policy != "multistep") return;
  LOG_IF(FATAL, solver.stepvalue_size() == 0)
      << "solver: stepvalue is missing, but must be given once or more with "
         "lr_policy: \"multistep\"";
  for (int i = 1; i < solver.stepvalue_size(); ++i) {
    LOG_IF(FATAL, solver.stepvalue(i) < solver.stepvalue(i - 1))
        << "solver: stepvalue is " << solver.stepvalue(i) << " after "
        << solver.stepvalue(i - 1)
        << ", but each must be as great as the one before, or greater";
  }
}

}  // namespace

void CheckLimits(const NetParameter& net) {
  for (const LayerParameter& layer : net.layer()) {
    const std::string owner = "layer '" + layer.name() + "'";
    CheckFields(layer, owner, "");
    CheckRequired(layer, owner);
  }
}

void CheckLimits(const SolverParameter& solver) {
  CheckFields(solver, "solver", "");
  CheckSteps(solver);
}

int CheckedCount(const std::vector<int>& shape) {
  const auto text = [&] {
    std::ostringstream lengths;
    for (int i = 0; i < shape.size(); ++i) {
      lengths << (i ? " x " : "") << shape[i];
    }
    return lengths.str();
  };
  CHECK_LE(shape.size(), kMaxBlobAxes) << "a blob cannot have more axes";
  int64_t count = 1;
  for (int i = 0; i < shape.size(); ++i) {
    CHECK_GE(shape[i], 0) << "the shape of a blob is " << text()
                          << ", but no length can be negative";
    count *= shape[i];
    CHECK_LE(count, INT_MAX)
        << "blob size exceeds INT_MAX: the shape is " << text();
  }
  return count;
}

int CheckedProduct(int64_t a, int64_t b) {
  CHECK_LE(a * b, INT_MAX) << "a blob of " << a << " times " << b
                           << " elements is too large";
  return a * b;
}

std::vector<int> CheckedShape(const BlobShape& shape) {
  std::vector<int> lengths;
  for (int64_t length : shape.dim()) {
    CHECK(length >= 0 && length <= INT_MAX)
        << "the length of axis " << lengths.size() << " of a blob is " << length
        << ", but must be " << Between(0, INT_MAX).Text();
    lengths.push_back(length);
  }
  return lengths;
}

}  // namespace caffe
