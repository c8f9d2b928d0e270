// The CPU engine touches nothing before or behind its arrays, and its products
// are right for both layouts of both factors.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "caffe/engine/convolution.hpp"
#include "caffe/engine/engine.hpp"
#include "caffe/engine/product.hpp"
#include "caffe/test/test_caffe_main.hpp"
#include "engine_trial.hpp"

namespace caffe {

namespace {

// An array with a page that cannot be touched right behind its last number, or
// right before its first one.
template <typename T>
class Guarded {
 public:
  Guarded(size_t count, bool guard_behind) {
    const size_t page = sysconf(_SC_PAGESIZE), bytes = count * sizeof(T);
    const size_t inside = (bytes + page - 1) / page * page;
    size_ = inside + 2 * page;
    start_ = static_cast<char*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    CHECK(start_ != MAP_FAILED);
    CHECK_EQ(0, mprotect(start_, page, PROT_NONE));
    CHECK_EQ(0, mprotect(start_ + page + inside, page, PROT_NONE));
    data_ = reinterpret_cast<T*>(start_ + page +
                                 (guard_behind ? inside - bytes : 0));
  }
  ~Guarded() { munmap(start_, size_); }
  Guarded(const Guarded&) = delete;
  T* data() const { return data_; }
  void Fill(const Numbers<T>& from) const {
    std::copy(from.begin(), from.end(), data_);
  }

 private:
  size_t size_;
  char* start_;
  T* data_;
};

}  // namespace

template <typename Dtype>
class EngineArraysTest : public CPUDeviceTest<Dtype> {
 protected:
  // Against the sum in double precision. The bits of `option` choose the layout
  // of both factors and the result, and what the result starts from.
  void ExpectProduct(int rows, int columns, int depth, int option) {
    const bool a_turned = option & 1, b_turned = option & 2;
    const bool transpose = option & 4, add = option & 8;
    const bool guard_behind = option & 16;
    if (add && transpose) return;
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns) +
                 " x " + std::to_string(depth) + " option " +
                 std::to_string(option));
    const Guarded<Dtype> a(rows * depth, guard_behind);
    const Guarded<Dtype> b(depth * columns, guard_behind);
    const Guarded<Dtype> c(rows * columns, guard_behind);
    const Guarded<Dtype> bias(rows, guard_behind);
    FillNormal(1, rows * depth, a.data());
    FillNormal(2, depth * columns, b.data());
    FillNormal(3, rows * columns, c.data());
    FillNormal(4, rows, bias.data());
    Numbers<Dtype> expected(rows * columns);
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < columns; ++j) {
        const int at = transpose ? j * rows + i : i * columns + j;
        double sum = add ? c.data()[at] : bias.data()[i];
        for (int k = 0; k < depth; ++k) {
          sum += static_cast<double>(
                     a.data()[a_turned ? k * rows + i : i * depth + k]) *
                 b.data()[b_turned ? j * depth + k : k * columns + j];
        }
        expected[at] = sum;
      }
    }
    engine::Start<Dtype> start;
    start.add = add;
    if (!add) start.row_bias = bias.data();
    engine::Multiply<Dtype>(
        rows, columns, depth,
        {a.data(), a_turned ? 1 : depth, a_turned ? rows : 1},
        {b.data(), b_turned ? 1 : columns, b_turned ? depth : 1}, c.data(),
        transpose ? rows : columns, transpose, start);
    const Numbers<Dtype> found(c.data(), c.data() + rows * columns);
    ExpectClose<Dtype>({{"c", expected, 1}}, {{"c", found, 1}},
                       EngineTolerance<Dtype>());
  }
};
TYPED_TEST_CASE(EngineArraysTest, TestDtypes);

// The layers give the engine's own results, and the engine touches nothing
// before or behind its arrays.
TYPED_TEST(EngineArraysTest, ConvolutionStaysInsideOfItsArrays) {
  if (!engine::IsChosen(0)) return;
  for (const Case& c : Convolutions()) {
    if (c.bottoms[0].size() != 4 || c.bottoms.size() > 1) continue;
    SCOPED_TRACE(Describe(c));
    const ConvolutionParameter param = Param(c).convolution_param();
    Trial<TypeParam> trial(c);
    const auto& blobs = trial.layer()->blobs();
    const bool bias = blobs.size() == 2;
    const Blob<TypeParam>&bottom = *trial.bottom(0), &top = *trial.top(0);
    const auto either = [](int both, bool has_own, int own, int none) {
      return has_own ? own : both >= 0 ? both : none;
    };
    // Fields that are given once for both axes, or once for each.
    const auto field = [&](const auto& values, int axis, int none) {
      return values.size() ? values.Get(std::min(axis, values.size() - 1))
                           : none;
    };
    const int no = -1;
    const engine::ConvolutionShape shape = {
        bottom.shape(0),
        bottom.shape(1),
        static_cast<int>(param.num_output()),
        static_cast<int>(param.group()),
        {bottom.shape(2), bottom.shape(3)},
        {blobs[0]->shape(2), blobs[0]->shape(3)},
        {either(field(param.stride(), 0, no), param.has_stride_h(),
                param.stride_h(), 1),
         either(field(param.stride(), 1, no), param.has_stride_w(),
                param.stride_w(), 1)},
        {either(field(param.pad(), 0, no), param.has_pad_h(), param.pad_h(), 0),
         either(field(param.pad(), 1, no), param.has_pad_w(), param.pad_w(),
                0)},
        {static_cast<int>(field(param.dilation(), 0, 1)),
         static_cast<int>(field(param.dilation(), 1, 1))}};
    ASSERT_EQ(top.shape(2), shape.output(0));
    ASSERT_EQ(top.shape(3), shape.output(1));

    // What the gradients are added to.
    const Numbers<TypeParam> w_diff = trial.Diff(*blobs[0]);
    const Numbers<TypeParam> b_diff =
        bias ? trial.Diff(*blobs[1]) : Numbers<TypeParam>();
    trial.ForwardBackward();
    for (bool guard_behind : {false, true}) {
      const auto guarded = [&](const Numbers<TypeParam>& numbers) {
        shared_ptr<Guarded<TypeParam> > array(
            new Guarded<TypeParam>(numbers.size(), guard_behind));
        array->Fill(numbers);
        return array;
      };
      const auto x = guarded(trial.Data(bottom));
      const auto w = guarded(trial.Data(*blobs[0]));
      const auto b =
          guarded(bias ? trial.Data(*blobs[1]) : Numbers<TypeParam>());
      const auto dy = guarded(trial.Diff(top));
      const auto dw = guarded(w_diff), db = guarded(b_diff);
      const Guarded<TypeParam> y(top.count(), guard_behind);
      const Guarded<TypeParam> dx(bottom.count(), guard_behind);
      engine::ConvolutionForward<TypeParam>(
          shape, x->data(), w->data(), bias ? b->data() : nullptr, y.data());
      engine::ConvolutionInputGradient(shape, dy->data(), w->data(), dx.data());
      engine::ConvolutionWeightGradient(shape, x->data(), dy->data(),
                                        dw->data());
      const auto same = [](const TypeParam* a, const TypeParam* b, int count) {
        return std::equal(a, a + count, b);
      };
      EXPECT_TRUE(same(top.cpu_data(), y.data(), top.count()));
      EXPECT_TRUE(same(bottom.cpu_diff(), dx.data(), bottom.count()));
      EXPECT_TRUE(same(blobs[0]->cpu_diff(), dw->data(), blobs[0]->count()));
      if (bias) {
        engine::ConvolutionBiasGradient(shape, dy->data(), db->data());
        EXPECT_TRUE(same(blobs[1]->cpu_diff(), db->data(), blobs[1]->count()));
      }
    }
  }
}

// Layers that compute with the arrays of their blobs as they are.
TYPED_TEST(EngineArraysTest, LayersStayInsideOfTheirArrays) {
  vector<Case> cases;
  for (const auto& more : {Poolings(), Lrns(), Concats(), Splits()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  for (const Case& c : cases) {
    SCOPED_TRACE(Describe(c));
    const Results<TypeParam> expected = Trial<TypeParam>(c).ForwardBackward();
    for (bool guard_behind : {false, true}) {
      Trial<TypeParam> trial(c);
      vector<shared_ptr<Guarded<TypeParam> > > arrays;
      const auto guard = [&](int count, SyncedMemory* memory) {
        arrays.emplace_back(new Guarded<TypeParam>(count, guard_behind));
        const TypeParam* from =
            static_cast<const TypeParam*>(memory->cpu_data());
        std::copy(from, from + count, arrays.back()->data());
        memory->set_cpu_data(arrays.back()->data());
      };
      vector<Blob<TypeParam>*> blobs;
      for (int i = 0; i < c.bottoms.size(); ++i) {
        blobs.push_back(trial.bottom(i));
      }
      for (int i = 0; i < c.tops; ++i) blobs.push_back(trial.top(i));
      for (Blob<TypeParam>* blob : blobs) {
        guard(blob->count(), blob->data().get());
        guard(blob->count(), blob->diff().get());
      }
      ExpectSameBits(expected, trial.ForwardBackward());
    }
  }
}

TYPED_TEST(EngineArraysTest, ProductStaysInsideOfItsArrays) {
  for (int rows : {1, 3, 6, 14, 15, 29}) {
    for (int columns : {1, 2, 7, 8, 16, 17, 33, 65}) {
      for (int depth : {1, 3, 4, 9, 50}) {
        for (int option = 0; option < 32; ++option) {
          this->ExpectProduct(rows, columns, depth, option);
        }
      }
    }
  }
}

// A product with one column has a loop of its own.
TYPED_TEST(EngineArraysTest, OneColumnHasTheBitsOfMany) {
  const int kColumns = 5;
  for (int rows : {4, 7, 8, 9, 16, 23, 70, 500}) {
    for (int depth : {1, 3, 4, 50, 803}) {
      for (int threads : {1, 3}) {
        SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(depth) +
                     ", " + std::to_string(threads) + " threads");
        const WithThreads with_threads(threads);
        Numbers<TypeParam> a(rows * depth), x(kColumns * depth), bias(rows);
        Numbers<TypeParam> all(rows * kColumns), one(rows);
        FillNormal(1, a.size(), a.data());
        FillNormal(2, x.size(), x.data());
        FillNormal(3, bias.size(), bias.data());
        for (const TypeParam* row_bias :
             {static_cast<const TypeParam*>(nullptr),
              static_cast<const TypeParam*>(bias.data())}) {
          engine::Start<TypeParam> start;
          start.row_bias = row_bias;
          engine::Multiply<TypeParam>(
              rows, kColumns, depth, {a.data(), depth, 1}, {x.data(), 1, depth},
              all.data(), rows, true, start);
          for (int j = 0; j < kColumns; ++j) {
            engine::Multiply<TypeParam>(rows, 1, depth, {a.data(), depth, 1},
                                        {x.data() + j * depth, 1, depth},
                                        one.data(), rows, true, start);
            for (int i = 0; i < rows; ++i) {
              ASSERT_EQ(all[j * rows + i], one[i]) << i << ", " << j;
            }
          }
        }
      }
    }
  }
}

// So many columns that blocks of rows meet many panels at once, and more than
// that.
TYPED_TEST(EngineArraysTest, ProductOfManyColumns) {
  for (int threads : {1, 3}) {
    const WithThreads with_threads(threads);
    for (int columns : {520, 2100}) {
      for (int option = 0; option < 32; ++option) {
        this->ExpectProduct(29, columns, 50, option);
      }
    }
  }
}

}  // namespace caffe
