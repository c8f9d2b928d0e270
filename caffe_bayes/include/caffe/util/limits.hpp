#ifndef CAFFE_UTIL_LIMITS_HPP_
#define CAFFE_UTIL_LIMITS_HPP_

// What the numbers of a net and of a solver may be. A table in limits.cpp tells
// it; it is checked before anything is made of them. An error names the layer
// or the solver, the field, the value and what is allowed.

#include <cstdint>
#include <string>
#include <vector>

#include "caffe/proto/caffe.pb.h"

namespace caffe {

/// Refuses a net with a number that no layer can work with.
void CheckLimits(const NetParameter& net);

/// Refuses a solver with a number that no training can work with.
void CheckLimits(const SolverParameter& solver);

/// The number of elements of a blob of this shape. Refuses one that has no such
/// blob: more than 32 axes, an axis of negative length or too many elements.
int CheckedCount(const std::vector<int>& shape);

/// The product of two lengths. Refuses one that is no int.
int CheckedProduct(int64_t a, int64_t b);

/// The shape as a vector. Refuses a length that is no int.
std::vector<int> CheckedShape(const BlobShape& shape);

}  // namespace caffe

#endif  // CAFFE_UTIL_LIMITS_HPP_
