#ifndef CAFFE_RANKS_DIVIDE_BATCH_HPP_
#define CAFFE_RANKS_DIVIDE_BATCH_HPP_

#include "caffe/proto/caffe.pb.h"

namespace caffe {

/// Divides the batch of a net's data layers among the ranks that this process
/// is one of. Refuses a batch that cannot be divided evenly, and a layer that
/// is a source of data and does not tell what its batch is.
/// @param net a net of one phase only
void DivideBatch(NetParameter* net);

/// Refuses a test net with a layer that is a source of data and cannot leave
/// batches out, which the other ranks test.
/// @param net a net of one phase only
void CheckSharedTest(const NetParameter& net);

}  // namespace caffe

#endif  // CAFFE_RANKS_DIVIDE_BATCH_HPP_
