// The loops of kernels.hpp, for one instruction set: see targets.inl.

#include "caffe/engine/kernels/vector.inl"
// The others build on it.
#include "caffe/engine/kernels/depthwise.inl"
#include "caffe/engine/kernels/elementwise.inl"
#include "caffe/engine/kernels/lrn.inl"
#include "caffe/engine/kernels/normalisation.inl"
#include "caffe/engine/kernels/packing.inl"
#include "caffe/engine/kernels/pooling.inl"
#include "caffe/engine/kernels/product.inl"
#include "caffe/engine/kernels/updates.inl"
#include "caffe/engine/kernels/winograd.inl"

template <typename T>
const Kernels<T>& All() {
  static const Kernels<T> kernels = {
      ENGINE_TARGET,
      ENGINE_BLOCK_ROWS,
      2 * Lanes<T>(),
      MultiplyRows<T, ENGINE_BLOCK_ROWS>::Run,
      MultiplyVector<T>,
      PackPieces<T>,
      Transpose<T>,
      Copy<T>,
      AddPieces<T>,
      Sum<T>,
      SplitPairs<T>,
      WinogradWeights<T>,
      WinogradInput<T>,
      WinogradOutput<T>,
      WeightedRow<T>,
      ProductsOfRows<T>,
      MaxPool<T>,
      MaxPoolGradient<T>,
      AveragePool<T>,
      AveragePoolGradient<T>,
      LrnAcross<T>,
      LrnAcrossGradient<T>,
      LrnWithin<T>,
      LrnWithinGradient<T>,
      ReluActivation<T>(),
      ActivationOf<Sigmoid, T>(),
      ActivationOf<Tanh, T>(),
      ActivationOf<Elu, T>(),
      ReluMoments<T>,
      SlopeGradient<T>,
      Moments<T>,
      SumsAndProducts<T>,
      Affine<T>,
      NormalisedGradient<T>,
      Softmax<T>,
      Update<MomentumRule, T>,
      Update<NesterovRule, T>,
      Update<RootMeanSquareRule, T>,
      Update<AdamRule, T>,
  };
  return kernels;
}
