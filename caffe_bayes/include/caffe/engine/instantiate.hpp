#ifndef CAFFE_ENGINE_INSTANTIATE_HPP_
#define CAFFE_ENGINE_INSTANTIATE_HPP_

// What a layer's own file instantiates as a class is without the members that
// the engine defines in other files.

#define INSTANTIATE_FORWARD(Layer, T)                                     \
  template bool Layer<T>::ForwardByEngine(const vector<Blob<T>*>& bottom, \
                                          const vector<Blob<T>*>& top)
#define INSTANTIATE_BOTH(Layer, T)                                             \
  INSTANTIATE_FORWARD(Layer, T);                                               \
  template bool Layer<T>::BackwardByEngine(const vector<Blob<T>*>& top,        \
                                           const vector<bool>& propagate_down, \
                                           const vector<Blob<T>*>& bottom)

#endif  // CAFFE_ENGINE_INSTANTIATE_HPP_
