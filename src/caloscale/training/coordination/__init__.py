"""How the workers of a training act together.

setup: the rendezvous of the workers and the distribution strategy. peers: their messages, heartbeats and failures.
signals: SIGTERM and Ctrl-C. failures: what an error of TensorFlow means.
"""
