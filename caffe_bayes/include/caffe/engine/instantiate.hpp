#ifndef CAFFE_ENGINE_INSTANTIATE_HPP_
#define CAFFE_ENGINE_INSTANTIATE_HPP_

// What the layers' own files instantiate as classes is without the members that
// the engine's files define. These instantiate them.

#define INSTANTIATE_FORWARD(Layer, T)                                     \
  template bool Layer<T>::ForwardByEngine(const vector<Blob<T>*>& bottom, \
                                          const vector<Blob<T>*>& top)
#define INSTANTIATE_BACKWARD(Layer, T)                                         \
  template bool Layer<T>::BackwardByEngine(const vector<Blob<T>*>& top,        \
                                           const vector<bool>& propagate_down, \
                                           const vector<Blob<T>*>& bottom)
#define INSTANTIATE_BOTH(Layer, T) \
  INSTANTIATE_FORWARD(Layer, T);   \
  INSTANTIATE_BACKWARD(Layer, T)

#endif  // CAFFE_ENGINE_INSTANTIATE_HPP_
