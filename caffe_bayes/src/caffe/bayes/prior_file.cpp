#include "caffe/bayes/prior_file.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "caffe/bayes/layer_trait.hpp"
#include "caffe/bayes/posterior.hpp"
#include "caffe/error.hpp"
#include "caffe/util/checks.hpp"
#include "caffe/util/upgrade_proto.hpp"

namespace caffe {
namespace bayes {

namespace {

const LayerParameter& FindLayer(const NetParameter& net,
                                const std::string& name) {
  const LayerParameter* found = nullptr;
  std::string names;
  for (const LayerParameter& layer : net.layer()) {
    if (layer.name() == name) found = &layer;
    if (layer.blobs_size() > 0) names += " '" + layer.name() + "'";
  }
  CHECK(found) << "has no layer '" << name << "'; its layers with weights are"
               << names;
  return *found;
}

template <typename Dtype>
shared_ptr<Blob<Dtype> > ReadMeans(const LayerParameter& source, int i,
                                   const vector<int>& shape) {
  shared_ptr<Blob<Dtype> > means(new Blob<Dtype>(shape));
  Blob<Dtype> found;
  found.FromProto(source.blobs(i), true);
  CHECK(means->ShapeEquals(source.blobs(i)))
      << (i == 0 ? "the weights" : "the biases") << " have the shape "
      << found.shape_string() << ", but those of the net have "
      << means->shape_string();
  means->FromProto(source.blobs(i), false);
  CheckFinite(*means, source.name(), i);
  return means;
}

// The standard deviations of a posterior.
template <typename Dtype>
shared_ptr<Blob<Dtype> > ReadStds(const LayerParameter& source, int i,
                                  const shared_ptr<Blob<Dtype> >& means) {
  const int count = source.blobs_size() / kBlobsPerParameter;
  shared_ptr<Blob<Dtype> > delta(new Blob<Dtype>());
  delta->FromProto(source.blobs(count + i), true);
  CheckFinite(*delta, source.name(), count + i);
  shared_ptr<Blob<Dtype> > noise(new Blob<Dtype>(means->shape()));
  shared_ptr<Blob<Dtype> > stds(new Blob<Dtype>(means->shape()));
  Posterior<Dtype>(means, delta, noise, source.bayes_param().tau_min())
      .Variance(stds.get());
  Dtype* numbers = stds->mutable_cpu_data();
  for (int k = 0; k < stds->count(); ++k) numbers[k] = std::sqrt(numbers[k]);
  return stds;
}

// Names the file in errors.
template <typename Work>
auto InPriorFile(const LayerParameter& layer, const Work& work) {
  return InFile("bayes_param.prior_from: " + layer.bayes_param().prior_from(),
                work);
}

}  // namespace

LayerParameter ReadPriorLayer(const LayerParameter& layer) {
  return InPriorFile(layer, [&] {
    NetParameter net;
    ReadNetParamsFromBinaryFileOrDie(layer.bayes_param().prior_from(), &net);
    return FindLayer(net, layer.name());
  });
}

template <typename Dtype>
vector<OwnPriors<Dtype> > ReadPriors(const LayerParameter& layer,
                                     const vector<vector<int> >& shapes) {
  const BayesParameter& param = layer.bayes_param();
  const LayerParameter source = ReadPriorLayer(layer);
  vector<OwnPriors<Dtype> > priors;
  InPriorFile(layer, [&] {
    const int count = shapes.size(), found = source.blobs_size();
    const bool has_posterior = found == kBlobsPerParameter * count;
    CHECK(has_posterior || found == count)
        << "layer '" << layer.name() << "' has " << found
        << " blobs, but must have " << count << ", or "
        << kBlobsPerParameter * count << " if it is Bayesian";
    for (int i = 0; i < count; ++i) {
      OwnPriors<Dtype> prior;
      prior.means = ReadMeans<Dtype>(source, i, shapes[i]);
      if (has_posterior) {
        prior.stds = ReadStds(source, i, prior.means);
      } else {
        prior.stds.reset(new Blob<Dtype>(shapes[i]));
        std::fill_n(prior.stds->mutable_cpu_data(), prior.stds->count(),
                    i == 0 ? param.prior_std() : param.bias_prior_std());
      }
      Dtype* stds = prior.stds->mutable_cpu_data();
      for (int k = 0; k < prior.stds->count(); ++k) {
        stds[k] = std::max<Dtype>(param.prior_scale() * stds[k],
                                  param.prior_std_min());
      }
      priors.push_back(prior);
    }
  });
  return priors;
}

template vector<OwnPriors<float> > ReadPriors(const LayerParameter&,
                                              const vector<vector<int> >&);
template vector<OwnPriors<double> > ReadPriors(const LayerParameter&,
                                               const vector<vector<int> >&);

}  // namespace bayes
}  // namespace caffe
