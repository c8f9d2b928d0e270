"""Training. A solver prototxt comes in; a caffemodel, a log and a learning curve go out."""
