"""The HTTP server of `keras-transformer serve`, which speaks TensorFlow Serving's REST protocol."""
