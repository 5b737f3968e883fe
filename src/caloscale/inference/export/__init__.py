"""Released generators in files of other programs.

`runtimes` keeps the exports that `generate` computes, beside the network; `files` writes and checks a file for a
target: ONNX, OpenVINO, Geant4's example Par04, DDML. `formats` writes the file of a graph. Imports of TensorFlow are
late.
"""
