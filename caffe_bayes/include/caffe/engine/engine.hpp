#ifndef CAFFE_ENGINE_ENGINE_HPP_
#define CAFFE_ENGINE_ENGINE_HPP_

namespace caffe {
namespace engine {

/// Whether a layer with this value in its engine field computes with the engine
/// on the CPU: DEFAULT does, CAFFE does not. BAYESCAFFE_ENGINE=caffe in the
/// environment makes DEFAULT mean CAFFE.
bool IsChosen(int engine);

/// What DEFAULT means from now on: the engine, or Caffe's own code. For tests
/// that compare them.
void SetDefault(bool is_engine);

/// Sets n numbers to 0, with all threads where that is worth it.
template <typename T>
void SetZero(int n, T* x);

}  // namespace engine
}  // namespace caffe

#endif  // CAFFE_ENGINE_ENGINE_HPP_
