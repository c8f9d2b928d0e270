#ifndef TESTS_FUZZ_MUTATE_HPP_
#define TESTS_FUZZ_MUTATE_HPP_

// Changes messages field by field. Bytes that are changed at random are mostly
// no message at all.

#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <random>
#include <string>
#include <vector>

#include "caffe/layer_factory.hpp"
#include "fuzz.hpp"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace fuzz {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  int Below(int n) { return random_() % n; }

  /// Changes one field of the message, or of a message in it.
  void Change(Message* message) {
    const Reflection& reflection = *message->GetReflection();
    const FieldDescriptor* field = Choose(*message);
    if (!field) return;
    if (field->is_repeated()) {
      ChangeRepeated(field, message);
    } else if (OneIn(16)) {
      reflection.ClearField(message, field);
    } else if (field->message_type()) {
      Change(reflection.MutableMessage(message, field));
    } else {
      SetValue(field, message);
    }
  }

 private:
  bool OneIn(int n) { return Below(n) == 0; }

  const std::string& OneOf(const std::vector<std::string>& words) {
    return words[Below(words.size())];
  }

  // Mostly one that is set: a layer has parameters for all types of layers.
  const FieldDescriptor* Choose(const Message& message) {
    std::vector<const FieldDescriptor*> fields;
    message.GetReflection()->ListFields(message, &fields);
    if (fields.empty() || OneIn(4)) {
      fields.clear();
      for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
        fields.push_back(message.GetDescriptor()->field(i));
      }
    }
    return fields.empty() ? nullptr : fields[Below(fields.size())];
  }

  void ChangeRepeated(const FieldDescriptor* field, Message* message) {
    const Reflection& reflection = *message->GetReflection();
    const int size = reflection.FieldSize(*message, field);
    if (size > 0 && OneIn(8)) {
      reflection.RemoveLast(message, field);
      return;
    }
    const int place = Below(size + 1);
    if (!field->message_type()) {
      SetValue(field, message);  // adds one
    } else if (place < size && !OneIn(8)) {
      Change(reflection.MutableRepeatedMessage(message, field, place));
      return;
    } else {
      Message* added = reflection.AddMessage(message, field);
      if (place < size) {
        added->CopyFrom(reflection.GetRepeatedMessage(*message, field, place));
      }
      Change(added);
    }
    if (reflection.FieldSize(*message, field) == size || place == size) return;
    reflection.SwapElements(message, field, place, size);
    if (!field->message_type()) reflection.RemoveLast(message, field);
  }

  // What the type of the field does not allow changes nothing.
  void SetValue(const FieldDescriptor* field, Message* message) {
    Silence silence;
    google::protobuf::TextFormat::Parser parser;
    parser.RecordErrorsTo(&silence);
    parser.ParseFieldValueFromString(ValueText(*field), field, message);
  }

  std::string ValueText(const FieldDescriptor& field) {
    static const std::vector<std::string> numbers = {
        "0",          "1",          "2",           "3",
        "4",          "5",          "6",           "7",
        "32",         "33",         "255",         "65537",
        "16777216",   "2147483647", "2147483648",  "4294967295",
        "4294967297", "-1",         "-2",          "-32",
        "-33",        "-65537",     "-2147483647", "-2147483648",
        "1e30",       "3e38",       "-3e38",       "9223372036854775807",
        "0.5",        "-0.5",       "1e-45",       "1e-30",
        "inf",        "-inf",       "nan"};
    static const std::vector<std::string> words = [] {
      std::vector<std::string> known = {
          "image",    "image2",   "vector", "vector2",  "label",
          "steps",    "marks",    "l",      "t0",       "t1",
          "x",        "conv",     "norm",   "fc",       "",
          "constant", "gaussian", "msra",   "bilinear", "positive_unitball",
          "uniform",  "xavier"};
      for (const auto& type : caffe::LayerRegistry<float>::LayerTypeList()) {
        known.push_back(type);
      }
      return known;
    }();
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        return OneIn(2) ? "true" : "false";
      case FieldDescriptor::CPPTYPE_ENUM:
        return field.enum_type()
            ->value(Below(field.enum_type()->value_count()))
            ->name();
      case FieldDescriptor::CPPTYPE_STRING:
        return '"' +
               (field.type() == FieldDescriptor::TYPE_BYTES
                    ? std::string(Below(100), '7')
                    : OneOf(words)) +
               '"';
      default:
        return OneOf(numbers);
    }
  }

  std::mt19937 random_;
};

/// libFuzzer's custom mutator for inputs that hold one message, for which there
/// are functions
///     bool Parse(const std::string& bytes, MessageType* message)
///     std::string Print(const MessageType& message)
template <typename MessageType, typename ParseFunction, typename PrintFunction>
size_t Mutate(uint8_t* data, size_t size, size_t max_size, unsigned seed,
              ParseFunction Parse, PrintFunction Print) {
  Mutator mutator(seed);
  MessageType message;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  if (mutator.Below(3) > 0 && Parse(bytes, &message)) {
    do {
      mutator.Change(&message);
    } while (mutator.Below(2));
    const std::string changed = Print(message);
    if (changed.size() <= max_size) {
      std::copy(changed.begin(), changed.end(), data);
      return changed.size();
    }
  }
  return LLVMFuzzerMutate(data, size, max_size);
}

}  // namespace fuzz

#endif  // TESTS_FUZZ_MUTATE_HPP_
