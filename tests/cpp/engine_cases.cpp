#include "engine_cases.hpp"

#include <google/protobuf/text_format.h>

#include "caffe/common.hpp"

namespace caffe {

string Describe(const Case& c) {
  string text = c.layer;
  for (const auto& shape : c.bottoms) {
    text += " [";
    for (int dim : shape) text += " " + std::to_string(dim);
    text += " ]";
  }
  return text;
}

LayerParameter Param(const Case& c) {
  LayerParameter param;
  CHECK(google::protobuf::TextFormat::ParseFromString(
      "name: 'layer' " + c.layer, &param))
      << c.layer;
  return param;
}

Case Convolution(const string& options, const vector<int>& bottom) {
  return {
      "type: 'Convolution' convolution_param { " + options + " }", {bottom}, 1};
}

vector<Case> Convolutions() {
  vector<Case> cases = {
      Convolution("num_output: 1 kernel_size: 1", {1, 1, 1, 1}),
      Convolution("num_output: 20 kernel_size: 5", {3, 1, 28, 28}),
      Convolution("num_output: 50 kernel_size: 5", {2, 20, 12, 12}),
      // Kernels that are no squares, or as large as the image.
      Convolution("num_output: 5 kernel_h: 1 kernel_w: 7", {2, 3, 6, 40}),
      Convolution("num_output: 5 kernel_h: 7 kernel_w: 1", {2, 3, 9, 5}),
      Convolution("num_output: 5 kernel_h: 2 kernel_w: 3", {2, 3, 9, 11}),
      Convolution("num_output: 17 kernel_size: 5", {3, 20, 5, 5}),
      Convolution("num_output: 3 kernel_size: 1", {2, 20, 7, 7}),
      Convolution("num_output: 40 kernel_size: 1", {1, 70, 14, 13}),
      Convolution("num_output: 7 kernel_size: 1", {9, 3, 2, 1}),
      Convolution("num_output: 40 kernel_size: 1 group: 2", {3, 70, 14, 13}),
      Convolution("num_output: 3 kernel_size: 5 bias_term: false",
                  {2, 3, 9, 9}),
      // Pads up to more than the kernel covers.
      Convolution("num_output: 7 kernel_size: 3 pad: 1", {2, 3, 9, 10}),
      Convolution("num_output: 7 kernel_size: 3 pad: 2", {2, 3, 9, 10}),
      Convolution("num_output: 7 kernel_size: 3 pad: 3", {2, 3, 9, 10}),
      Convolution("num_output: 4 kernel_size: 1 pad: 2", {1, 3, 3, 4}),
      Convolution("num_output: 6 kernel_size: 5 pad: 2", {2, 20, 8, 8}),
      Convolution("num_output: 5 kernel_size: 3 pad_h: 0 pad_w: 2",
                  {2, 3, 8, 9}),
      Convolution("num_output: 5 kernel_size: 3 pad_h: 3 pad_w: 1",
                  {2, 3, 8, 9}),
      Convolution("num_output: 5 kernel_size: 3 pad: 1", {2, 3, 1, 1}),
      // Strides, of which some leave a part of the image unused.
      Convolution("num_output: 5 kernel_size: 3 stride: 2", {2, 3, 9, 12}),
      Convolution("num_output: 5 kernel_size: 3 stride: 3", {2, 3, 11, 13}),
      Convolution("num_output: 5 kernel_size: 2 stride: 3", {2, 3, 9, 10}),
      Convolution("num_output: 5 kernel_size: 1 stride: 2", {2, 3, 8, 8}),
      Convolution("num_output: 5 kernel_size: 3 stride: 2 pad: 1",
                  {2, 3, 10, 9}),
      Convolution("num_output: 5 kernel_size: 5 stride: 3 pad: 3",
                  {2, 3, 10, 9}),
      Convolution("num_output: 5 kernel_size: 3 stride_h: 1 stride_w: 2",
                  {2, 3, 10, 40}),
      Convolution("num_output: 5 kernel_size: 3 stride_h: 3 stride_w: 1",
                  {2, 3, 10, 40}),
      // Dilation.
      Convolution("num_output: 5 kernel_size: 3 dilation: 2", {2, 3, 11, 9}),
      Convolution("num_output: 5 kernel_size: 3 dilation: 2 pad: 2",
                  {2, 3, 11, 9}),
      Convolution("num_output: 5 kernel_size: 2 dilation: 2 pad: 3 stride: 2",
                  {2, 3, 11, 9}),
      Convolution("num_output: 5 kernel_size: 3 dilation: 1 dilation: 2",
                  {2, 3, 11, 19}),
      Convolution("num_output: 5 kernel_size: 3 dilation: 2 dilation: 1 pad: 1",
                  {2, 3, 11, 19}),
      // Groups.
      Convolution("num_output: 6 kernel_size: 3 group: 2", {2, 4, 9, 9}),
      Convolution("num_output: 34 kernel_size: 3 group: 2 pad: 1 stride: 2",
                  {3, 20, 9, 9}),
      Convolution("num_output: 20 kernel_size: 3 group: 20 pad: 1",
                  {2, 20, 9, 9}),
      Convolution("num_output: 9 kernel_size: 3 group: 3 bias_term: false",
                  {2, 3, 9, 9}),
      // Each channel by itself.
      Convolution("num_output: 3 kernel_size: 3 pad: 1 group: 3",
                  {9, 3, 70, 35}),
      Convolution("num_output: 20 kernel_size: 3 pad: 1 stride: 2 group: 20",
                  {3, 20, 14, 15}),
      Convolution("num_output: 4 kernel_size: 3 pad: 1 stride: 2 group: 4",
                  {3, 4, 13, 28}),
      Convolution("num_output: 4 kernel_size: 5 pad: 3 stride: 3 group: 4",
                  {3, 4, 13, 28}),
      Convolution("num_output: 4 kernel_size: 1 stride: 2 group: 4",
                  {3, 4, 5, 6}),
      Convolution("num_output: 4 kernel_size: 2 stride: 3 group: 4",
                  {3, 4, 10, 11}),
      Convolution("num_output: 4 kernel_size: 3 pad: 5 dilation: 2 group: 4",
                  {3, 4, 7, 7}),
      Convolution("num_output: 4 kernel_size: 3 dilation: 3 stride: 2 group: 4",
                  {3, 4, 17, 16}),
      Convolution("num_output: 3 kernel_h: 2 kernel_w: 5 pad_h: 0 pad_w: 2"
                  " stride_h: 1 stride_w: 2 group: 3",
                  {2, 3, 5, 33}),
      Convolution("num_output: 3 kernel_h: 4 kernel_w: 1 pad_h: 2 pad_w: 0"
                  " stride_h: 3 stride_w: 1 group: 3 bias_term: false",
                  {2, 3, 9, 9}),
      Convolution("num_output: 2 kernel_size: 3 pad: 1 group: 2", {2, 2, 1, 1}),
      // Many images; weights of which few sums fit into the engine's memory.
      Convolution("num_output: 5 kernel_size: 3 pad: 1", {19, 3, 6, 6}),
      Convolution("num_output: 64 kernel_size: 3", {17, 128, 4, 3}),
      // Kernels of the size that most nets have, with many channels.
      Convolution("num_output: 33 kernel_size: 3 pad: 1", {3, 32, 14, 15}),
      Convolution("num_output: 64 kernel_size: 3 pad: 1", {2, 64, 8, 8}),
      Convolution("num_output: 17 kernel_size: 3", {1, 48, 21, 9}),
      Convolution("num_output: 40 kernel_size: 3 pad: 2 group: 2",
                  {5, 32, 8, 7}),
      Convolution("num_output: 16 kernel_size: 3 pad_h: 0 pad_w: 3",
                  {3, 16, 7, 6}),
      Convolution("num_output: 16 kernel_size: 3 pad: 1", {11, 16, 4, 4}),
      Convolution("num_output: 18 kernel_size: 3 pad: 1 bias_term: false",
                  {1, 16, 5, 75}),
      // Rows much wider than a vector.
      Convolution("num_output: 3 kernel_size: 3 pad: 1", {1, 2, 3, 301}),
      Convolution("num_output: 2 kernel_h: 1 kernel_w: 3 stride_h: 1"
                  " stride_w: 2",
                  {1, 1, 1, 260}),
      // What the engine leaves to upstream.
      Convolution("num_output: 3 kernel_size: 2 pad: 1", {2, 2, 3, 4, 5}),
      Convolution("num_output: 3 kernel_size: 3", {2, 2, 9}),
  };
  Case several =
      Convolution("num_output: 7 kernel_size: 3 pad: 1", {2, 3, 5, 6});
  several.bottoms.assign(3, several.bottoms[0]);
  several.tops = 3;
  cases.push_back(several);
  // Everything that vectors and blocks of rows divide with a remainder.
  for (int width : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65}) {
    for (int outputs : {1, 5, 6, 7, 13, 14, 15, 29}) {
      cases.push_back(Convolution("num_output: " + std::to_string(outputs) +
                                      " kernel_h: 2 kernel_w: 3 pad_h: 0"
                                      " pad_w: 1",
                                  {2, 2, 3, width}));
    }
  }
  return cases;
}

vector<Case> InnerProducts() {
  vector<Case> cases;
  const auto add = [&](const string& options, const vector<int>& bottom) {
    cases.push_back(
        {"type: 'InnerProduct' inner_product_param { " + options + " }",
         {bottom},
         1});
  };
  for (int inputs : {1, 3, 17, 100}) {
    for (int outputs : {1, 6, 10, 15, 50}) {
      for (int images : {1, 2, 5, 16, 33}) {
        for (const char* more : {"", " transpose: true"}) {
          add("num_output: " + std::to_string(outputs) + more,
              {images, inputs});
        }
      }
    }
  }
  add("num_output: 500", {64, 800});
  add("num_output: 10", {3, 50, 4, 4});
  add("num_output: 7 bias_term: false", {5, 33});
  add("num_output: 7 bias_term: false transpose: true", {5, 33});
  add("num_output: 7 axis: 2", {3, 5, 9});
  add("num_output: 7 axis: 2 transpose: true", {3, 5, 3, 3});
  add("num_output: 7 axis: 2 bias_term: false", {3, 5, 3, 3});
  add("num_output: 5 axis: 0", {4, 9});
  return cases;
}

vector<Case> Poolings() {
  vector<Case> cases;
  const vector<vector<int> > images = {
      {1, 1, 3, 3},  {2, 3, 4, 4},  {2, 3, 5, 7},  {3, 20, 8, 8},
      {1, 2, 6, 33}, {1, 2, 9, 70}, {2, 7, 13, 14}};
  for (const auto& image : images) {
    for (const char* method : {"MAX", "AVE"}) {
      const auto add = [&](const string& options, int tops = 1) {
        cases.push_back({string("type: 'Pooling' pooling_param { pool: ") +
                             method + " " + options + " }",
                         {image},
                         tops});
      };
      for (const char* options :
           {"kernel_size: 2 stride: 1", "kernel_size: 2 stride: 2",
            "kernel_size: 2 stride: 2 pad: 1", "kernel_size: 3 stride: 1",
            "kernel_size: 3 stride: 2", "kernel_size: 3 stride: 3",
            "kernel_size: 3 stride: 1 pad: 1",
            "kernel_size: 3 stride: 2 pad: 1",
            "kernel_size: 3 stride: 2 pad: 2", "kernel_size: 1 stride: 1",
            "kernel_size: 2 stride: 2 round_mode: FLOOR",
            "kernel_h: 2 kernel_w: 3 stride_h: 2 stride_w: 1",
            "kernel_h: 3 kernel_w: 2 stride: 2",
            "kernel_h: 2 kernel_w: 2 stride_h: 1 stride_w: 2",
            "kernel_h: 1 kernel_w: 3 pad_h: 0 pad_w: 1",
            "kernel_h: 3 kernel_w: 1 pad_h: 2 pad_w: 0 stride: 1",
            "global_pooling: true"}) {
        add(options);
      }
      // Once more with the places of the maxima as a top.
      if (string(method) == "MAX") {
        add("kernel_size: 2 stride: 2", 2);
        add("kernel_size: 3 stride: 1 pad: 1", 2);
      }
      if (image[2] >= 5) {
        add("kernel_size: 5 stride: 2");
        add("kernel_size: 5 stride: 1 pad: 2");
        add("kernel_size: 4 stride: 3 pad: 2");
      }
    }
  }
  return cases;
}

bool IsMaxPooling(const Case& c) {
  return Param(c).pooling_param().pool() == PoolingParameter_PoolMethod_MAX;
}

vector<Case> Relus() {
  vector<Case> cases;
  for (const char* slope : {"0", "0.1"}) {
    for (int tops : {0, 1}) {
      for (int count : {1, 15, 17, 14000}) {
        cases.push_back({string("type: 'ReLU' relu_param { negative_slope: ") +
                             slope + " }",
                         {{3, count}},
                         tops});
      }
    }
  }
  return cases;
}

vector<Case> Softmaxes() {
  vector<Case> cases;
  const auto add = [&](const string& options, const vector<int>& bottom) {
    cases.push_back(
        {"type: 'Softmax' softmax_param { " + options + " }", {bottom}, 1});
  };
  add("", {1, 1});
  add("", {1, 10});
  add("", {7, 10});
  add("", {300, 100});
  add("", {2, 4, 3, 5});
  add("", {3, 5, 33});
  add("axis: 2", {2, 3, 5, 7});
  add("axis: 0", {5, 3});
  add("axis: -1", {2, 3, 17});
  return cases;
}

vector<Case> Lrns() {
  vector<Case> cases;
  const vector<vector<int> > images = {{1, 1, 1, 1},
                                       {2, 2, 3, 3},
                                       {2, 10, 6, 7},
                                       {3, 20, 13, 13},
                                       {1, 3, 25, 33}};
  for (const auto& image : images) {
    for (const char* region : {"ACROSS_CHANNELS", "WITHIN_CHANNEL"}) {
      for (const char* options :
           {"", "alpha: 0.0001", "local_size: 1", "local_size: 3 alpha: 2",
            "local_size: 7 beta: 0.5 k: 2", "alpha: 0.1 beta: 1 k: 0.2",
            "beta: 2.5", "beta: -0.3", "beta: 0", "alpha: 0"}) {
        cases.push_back({string("type: 'LRN' lrn_param { norm_region: ") +
                             region + " " + options + " }",
                         {image},
                         1});
      }
    }
  }
  return cases;
}

vector<Case> Concats() {
  return {
      {"type: 'Concat'", {{2, 3, 4, 5}, {2, 1, 4, 5}, {2, 4, 4, 5}}, 1},
      {"type: 'Concat' concat_param { axis: 0 }", {{2, 3}, {5, 3}}, 1},
      {"type: 'Concat' concat_param { axis: 2 }",
       {{300, 2, 2, 5}, {300, 2, 7, 5}},
       1},
      // More in a row than one thread takes at a time.
      {"type: 'Concat'", {{2, 3, 70, 70}, {2, 2, 70, 70}}, 1},
  };
}

// Shapes with planes of all sizes, with channels that come one after the other,
// and with more numbers than one thread takes at a time.
static vector<vector<int> > ImageShapes() {
  return {{6, 1},        {5, 7},          {64, 300},      {3, 5, 4},
          {3, 2, 3, 3},  {2, 70, 4, 4},   {5, 17, 7, 7},  {4, 3, 33, 31},
          {2, 3, 65, 1}, {1, 2, 100, 99}, {9, 20, 12, 12}};
}

vector<Case> BatchNorms() {
  vector<Case> cases;
  for (const auto& shape : ImageShapes()) {
    for (const char* options :
         {"use_global_stats: false",
          "use_global_stats: false moving_average_fraction: 0.5 eps: 0.1",
          "use_global_stats: true"}) {
      for (int tops : {0, 1}) {
        cases.push_back(
            {string("type: 'BatchNorm' batch_norm_param { ") + options + " }",
             {shape},
             tops});
      }
    }
  }
  return cases;
}

vector<Case> Scales() {
  vector<Case> cases;
  const auto add = [&](const string& options,
                       const vector<vector<int> >& bottoms) {
    for (int tops : {0, 1}) {
      cases.push_back(
          {"type: 'Scale' scale_param { " + options + " }", bottoms, tops});
      cases.push_back(
          {"type: 'Scale' scale_param { bias_term: true " + options + " }",
           bottoms, tops});
      cases.push_back(
          {"type: 'Bias' bias_param { " + options + " }", bottoms, tops});
    }
  };
  for (const auto& shape : ImageShapes()) add("", {shape});
  add("num_axes: 2", {{3, 4, 5, 6}});
  add("num_axes: -1", {{3, 4, 50, 60}});
  add("axis: 2", {{3, 4, 5, 6}});
  add("axis: -1", {{3, 4, 5, 6}});
  add("axis: 0", {{3, 4, 5}});
  add("axis: 0 num_axes: -1", {{3, 40, 50}});
  add("num_axes: 0", {{3, 4, 5}});
  add("num_axes: 0", {{3, 40, 500}});
  // The factors or summands are a bottom.
  add("", {{3, 4, 5, 6}, {4}});
  add("", {{3, 4, 5, 6}, {4, 5}});
  add("axis: 0", {{3, 4, 50, 60}, {3, 4}});
  add("axis: 0", {{3, 4, 5}, {3, 4, 5}});
  add("axis: 0", {{3, 4, 5}, {}});
  return cases;
}

vector<Case> Eltwises() {
  vector<Case> cases;
  const vector<vector<int> > shapes = {{1, 1}, {2, 3, 4, 5}, {3, 20, 150}};
  for (const auto& shape : shapes) {
    for (const char* options :
         {"operation: SUM", "operation: MAX", "operation: PROD",
          "operation: PROD stable_prod_grad: false"}) {
      for (int bottoms : {2, 3, 5}) {
        cases.push_back(
            {string("type: 'Eltwise' eltwise_param { ") + options + " }",
             vector<vector<int> >(bottoms, shape), 1});
      }
    }
    cases.push_back({"type: 'Eltwise' eltwise_param { coeff: 1 coeff: -1 }",
                     {shape, shape},
                     1});
    cases.push_back(
        {"type: 'Eltwise' eltwise_param { coeff: 2 coeff: 0 coeff: 0.3 }",
         {shape, shape, shape},
         1});
  }
  return cases;
}

vector<Case> Activations() {
  vector<Case> cases;
  const vector<vector<int> > shapes = {
      {1, 1}, {3, 17}, {2, 5, 3, 4}, {3, 70, 50}, {5, 3, 40, 41}};
  for (const char* layer :
       {"type: 'Sigmoid'", "type: 'TanH'", "type: 'ELU'",
        "type: 'ELU' elu_param { alpha: 0.3 }", "type: 'Swish'",
        "type: 'Swish' swish_param { beta: -1.5 }", "type: 'PReLU'",
        "type: 'PReLU' prelu_param { channel_shared: true }"}) {
    for (const auto& shape : shapes) {
      for (int tops : {0, 1}) cases.push_back({layer, {shape}, tops});
    }
  }
  return cases;
}

vector<Case> Splits() {
  return {{"type: 'Split'", {{2, 3}}, 1},
          {"type: 'Split'", {{2, 3, 4}}, 2},
          {"type: 'Split'", {{3, 70, 50}}, 2},
          {"type: 'Split'", {{3, 70, 50}}, 4}};
}

vector<Case> BayesLayers() {
  const string bayes =
      " bayes_param { kl_weight: 2 dataset_size: 100 prior_std: 1 }";
  return {
      {"type: 'BayesConvolution' convolution_param {"
       " num_output: 7 kernel_size: 3 pad: 1 }" +
           bayes,
       {{3, 2, 9, 9}},
       2},
      {"type: 'BayesConvolution' convolution_param {"
       " num_output: 50 kernel_size: 5 }" +
           bayes,
       {{2, 20, 9, 9}},
       1},
      {"type: 'BayesInnerProduct' inner_product_param { num_output: 70 }" +
           bayes,
       {{5, 300}},
       2},
      // So many weights that they are not left in the cache, in strips of rows
      // of which the last is shorter.
      {"type: 'BayesInnerProduct' inner_product_param { num_output: 1100 }" +
           bayes,
       {{3, 1003}},
       1},
      {"type: 'BayesDeconvolution' convolution_param {"
       " num_output: 3 kernel_size: 2 stride: 2 }" +
           bayes,
       {{2, 2, 4, 5}},
       1},
      {"type: 'BayesScale' scale_param { bias_term: true }" + bayes,
       {{4, 7, 50, 51}},
       0},
      {"type: 'BayesScale' scale_param { bias_term: true } bayes_param {"
       " kl_weight: 2 dataset_size: 100 prior_std: 1 draws_per_batch: 2 }",
       {{4, 7, 50, 51}},
       2},
  };
}

vector<Case> All() {
  vector<Case> all;
  for (const auto& cases :
       {Convolutions(), InnerProducts(), Poolings(), Relus(), Softmaxes(),
        Lrns(), Concats(), BatchNorms(), Scales(), Eltwises(), Activations(),
        Splits()}) {
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
}

}  // namespace caffe
