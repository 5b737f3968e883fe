"""Showers from a trained generator. ONNX Runtime and OpenVINO compute an exported one without TensorFlow."""
