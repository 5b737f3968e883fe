"""Checkpoints of a training.

format: the file of a checkpoint. metadata: what it holds beside the weights. store: checkpoints in a folder and in a
bucket. saver: threads that write and upload. progress_marker: the last step of an attempt. manager: what the training
loop uses of all this.
"""
