"""Training. In: a solver prototxt. Out: a caffemodel, a log and a learning curve."""
